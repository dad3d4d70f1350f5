"""The training loop of the linear classes: epochs of SGD steps, validation, early stopping, divergence, checkpoints.

Hard negatives are here, too: the documents that rank highest for each query by the current model.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from reranker.arrays import AnyArray, Float32, Float64, Int32, Int64
from reranker.cores import in_parts, on_cores
from reranker.errors import ArtifactError, TrainingError
from reranker.evaluation import InnerProducts
from reranker.files import replace_files
from reranker.kernels.rows import embed_rows, highest_places
from reranker.kernels.sgd import NegativePool, Parameters, StepConfig, average_changed, sgd_steps
from reranker.progress import Progress, Say, no_progress, silent
from reranker.training.config import PATIENCE, Schedule
from reranker.training.problem import Problem, csr_of
from reranker.training.training_set import N_FOLDS

_STATE = "state.json"


class TrainingCheckpoint:
    """A folder with the state of a run after a finished epoch.

    The arrays are first written to a file named after their epoch, then ``state.json`` is renamed into place. A run
    that is killed at any moment leaves a whole state, the previous or the new one. Only a run of the same fingerprint
    (settings, data and seed, as JSON) uses a state. The folder is created when the first state is written.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, Any]) -> None:
        self.folder = folder
        text = json.dumps(fingerprint, sort_keys=True, default=str)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()

    def write(self, epoch: int, arrays: Mapping[str, AnyArray], values: Mapping[str, Any]) -> None:
        """Write the state after ``epoch`` epochs."""
        from safetensors.numpy import save

        name = f"epoch-{epoch}.safetensors"
        data = save({key: np.ascontiguousarray(array) for key, array in arrays.items()})
        state = {
            "fingerprint": self.fingerprint,
            "file": name,
            "sha256": hashlib.sha256(data).hexdigest(),
            "values": dict(values),
        }
        pointer = (_STATE, json.dumps({**state, "seal": _seal(state)}).encode())
        replace_files(self.folder, data={name: data}, pointer=pointer, stale="epoch-*.safetensors")

    def read(self) -> tuple[dict[str, AnyArray], dict[str, Any]] | None:
        """Return (arrays, values) of the last state, or None if this run has none.

        `ArtifactError` is raised if the state is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        if not (self.folder / _STATE).exists():
            return None
        try:
            state = json.loads((self.folder / _STATE).read_bytes())
            if state.pop("seal") != _seal(state):
                raise ValueError(f"{_STATE} was changed after it was written")
            if state["fingerprint"] != self.fingerprint:
                return None
            data = (self.folder / Path(str(state["file"])).name).read_bytes()
            if hashlib.sha256(data).hexdigest() != state["sha256"]:
                raise ValueError("the bytes of its arrays changed after they were written")
            return load(data), dict(state["values"])
        except (ValueError, KeyError, TypeError, AttributeError, SafetensorError, FileNotFoundError) as error:
            raise ArtifactError(
                f"the checkpoint {str(self.folder)!r} is damaged ({error}): remove it, and train again",
                path=str(self.folder),
            ) from error


def digest(parts: Iterable[AnyArray | str]) -> str:
    """Return a hash over arrays and texts, for a fingerprint."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        total.update(f"{len(data)} ".encode())
        total.update(data)
    return total.hexdigest()


def _seal(state: Mapping[str, Any]) -> str:
    """Return a hash over everything else in the state file."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def checkpoint_of(folder: Path, *, short: bool) -> Path:
    """Return the folder of a state: that of the run for U and V, and a folder next to it for the U of short queries."""
    return folder.with_name(f"{folder.name}-short") if short else folder


def remove_checkpoints(folder: Path) -> None:
    """Remove every state of a run: of the first training, of the folds and of the refit."""
    for part in ("", "-all", *(f"-fold{number}" for number in range(N_FOLDS))):
        for short in (False, True):
            shutil.rmtree(checkpoint_of(folder.with_name(folder.name + part), short=short), ignore_errors=True)


CHECKPOINT_SECONDS = 10.0
"""Least time between two checkpoints: writing one may take as long as a short epoch."""
CHUNKS = 4
MIN_STEPS = 5_000
MAX_STEPS = 1_000_000
STEPS_OF_QUERY = 10
"""Steps of an epoch for each query at most. With more, queries with many relevant documents take most of the time."""
LATER: Final = 0.003
"""Relative difference of validation MAP below which a later epoch is taken: its rate is lower, its rows vary less."""
MAX_HALVINGS = 6
LOOK_UPS: Final = frozenset({0, 1, 2, 3, 5, 8, 12, 18, 27, 41, 62, 93})
"""Epochs before which hard negatives are looked up again. Each number is about one and a half times the one before:
the longer a run, the less the negatives change."""
DIVERGED = 10.0


@dataclass(frozen=True)
class Epoch:
    """One point of the learning curve."""

    number: int
    """Epochs done."""
    violating: float
    """Share of steps that changed the model."""
    tried: float
    """Mean number of negatives tried in a step."""
    hinge: float
    """Mean loss of the steps that changed the model."""
    map: float | None
    """Validation MAP; None without validation."""
    rate: float
    """Learning rate at the start of the schedule, after halvings."""
    seconds: float
    """Time spent in steps since the start."""


@dataclass
class TrainResult:
    """The best U and V of a run, their epoch, and the learning curve."""

    U: Float32
    V: Float32
    best_epoch: int
    best_map: float | None
    history: list[Epoch] = field(default_factory=list)
    halvings: int = 0


def steps_of(problem: Problem) -> int:
    """Return the steps of an epoch: one a tuple but at most 10 a query, at least 5,000 and at most a million."""
    n_queries = int(np.count_nonzero(np.bincount(problem.tuples.query)))  # much faster than sorting millions
    return int(np.clip(min(len(problem.tuples.query), STEPS_OF_QUERY * n_queries), MIN_STEPS, MAX_STEPS))


def start_parameters(schedule: Schedule, n_rows: int, dim: int, rng: np.random.Generator) -> tuple[Float32, Float32]:
    """Return U and V of a new model: U is normal with the schedule's deviation.

    With V = 0 untrained words have no effect, and f starts as q.d.
    """
    U = (rng.standard_normal((n_rows, dim)) * schedule.init_u).astype(np.float32)
    return U, np.zeros((n_rows, dim), np.float32)


class Trainer:
    """Runs the epochs of one problem.

    Parameters
    ----------
    problem, schedule
        What is learned, and how.
    rng : numpy.random.Generator
        Seeds the random numbers of the kernels, one stream for each half.
    halves : bool
        Two copies of U learn at the same time, each by one half of the steps. After each quarter of an epoch they are
        averaged (`average_changed`). The result does not depend on the number of cores. The schedule must freeze the
        documents.
    evaluate : callable, optional
        Returns the validation MAP of U and V; `PATIENCE` epochs without a better one end the run. Without it the last
        epoch is the result.
    nearest : NegativeMiner, optional
        Finds hard negatives before the epochs of ``look_ups``, for the schedule's share of the steps.
    checkpoint : TrainingCheckpoint, optional
        Keeps the state after an epoch, see `CHECKPOINT_SECONDS`.
    say, progress : callable
        Receive one line of text; (steps done, steps in all).

    Attributes
    ----------
    look_ups : frozenset of int
        Epochs before which hard negatives are looked up.
    """

    def __init__(  # noqa: PLR0913 - settings and callbacks of a run
        self,
        problem: Problem,
        schedule: Schedule,
        rng: np.random.Generator,
        *,
        halves: bool = False,
        evaluate: Callable[[Float32, Float32], float] | None = None,
        nearest: NegativeMiner | None = None,
        checkpoint: TrainingCheckpoint | None = None,
        say: Say = silent,
        progress: Progress = no_progress,
    ) -> None:
        self.problem, self.schedule = problem, schedule
        self.evaluate, self.checkpoint = evaluate, checkpoint
        self.nearest = nearest if schedule.nearest_share > 0 else None
        self.look_ups = LOOK_UPS
        # The last hard negatives: a run that goes on needs them until the next look-up.
        self._found: Int32 | None = None
        self.say, self.progress = say, progress
        self.n_steps = min(steps_of(problem), schedule.max_steps or MAX_STEPS)
        if halves and not schedule.freeze_documents:
            raise ValueError("halves learn from fixed documents")
        seeds = rng.integers(1, 2**63 - 1, 2 if halves else 1)
        self.states = [np.array([seed], dtype=np.uint64) for seed in seeds]
        self.rate_factor = 1.0
        self.longest = 0.0
        self._cache: Float32 | None = None
        # The U of the second half, and U before the steps of a quarter. Between quarters both are equal to U.
        self._equal: tuple[Float32, Float32] | None = None
        self._kept_at = -math.inf

    def run(self, U: Float32, V: Float32) -> TrainResult:
        """Return the best state reached from U and V, which are changed in place.

        `TrainingError` is raised if the run diverges however small the rate.
        """
        # Rows that are longer than the cap at the start, those of a base model, are not shortened to it.
        self.longest = max(float(np.linalg.norm(table, axis=1).max(initial=0.0)) for table in (U, V))
        result = TrainResult(*self._copies(U, V), 0, self.evaluate(U, V) if self.evaluate else None)
        epoch = self._resume(U, V, result)
        while epoch < self.schedule.epochs:
            if self.evaluate is not None and epoch - result.best_epoch >= PATIENCE:
                break
            before = self._copies(U, V)
            line = self._epoch(epoch, U, V, result)
            if line is None:
                U[:], V[:] = before
                self._equal = None
                self._slow_down(result, epoch)
                continue
            epoch += 1
            result.history.append(line)
            if is_taken(line, result):
                # Without validation the last epoch is the result, so that no copies are needed.
                result.U, result.V = (U, V) if self.evaluate is None else self._copies(U, V)
                result.best_epoch, result.best_map = epoch, line.map
            self._keep(epoch, U, V, result)
        return result

    def _copies(self, U: Float32, V: Float32) -> tuple[Float32, Float32]:
        """Return copies of the tables that change: one if U is V, none of a V that is frozen."""
        copied = U.copy()
        return copied, copied if U is V else V if self.schedule.freeze_documents else V.copy()

    def _epoch(self, epoch: int, U: Float32, V: Float32, result: TrainResult) -> Epoch | None:
        """Run one epoch; None if it diverged."""
        documents, negatives = self.problem.documents, self.problem.negatives
        stats = np.zeros(3)
        first = result.history[0].hinge if result.history else None
        spent = result.history[-1].seconds if result.history else 0.0
        for chunk in range(CHUNKS):
            started = time.perf_counter()
            if self._cache is None or not self.schedule.freeze_documents:
                self._cache = None  # its memory is needed for the new one
                self._cache = embed_rows(documents, V)
            cache = self._cache
            if chunk == 0 and self.nearest is not None and (self._found is None or epoch in self.look_ups):
                self._found = self.nearest.look_up(U, cache, self.schedule.identity_scale)
            if self._found is not None and self.nearest is not None:
                negatives = negatives._replace(nearest=self._found, list_of=self.nearest.list_of)
            part = self._steps(epoch, chunk, negatives, Parameters(U, V, cache))
            spent += time.perf_counter() - started
            stats += part
            hinge = part[2] / max(part[0], 1.0)
            if not np.isfinite(hinge) or (chunk == CHUNKS - 1 and not (is_finite(U) and is_finite(V))):
                return None
            if first is not None and hinge > DIVERGED * max(first, 1.0):
                return None
            done = epoch * self.n_steps + (chunk + 1) * self.n_steps // CHUNKS
            self.progress(done, self.schedule.epochs * self.n_steps)
        value = self.evaluate(U, V) if self.evaluate else None
        return Epoch(
            epoch + 1,
            float(stats[0] / self.n_steps),
            float(stats[1] / self.n_steps),
            float(stats[2] / max(stats[0], 1.0)),
            value,
            self.schedule.rate_start * self.rate_factor,
            spent,
        )

    def _steps(self, epoch: int, chunk: int, negatives: NegativePool, parameters: Parameters) -> Float64:
        """Run a quarter of an epoch's steps, shared among the halves."""
        config = self._config()
        start = epoch * self.n_steps + chunk * self.n_steps // CHUNKS
        stop = epoch * self.n_steps + (chunk + 1) * self.n_steps // CHUNKS
        borders = np.linspace(start, stop, len(self.states) + 1).astype(int).tolist()
        p = self.problem

        def work(part: int, U: Float32) -> Float64:
            first, last = borders[part], borders[part + 1]
            state, changed = self.states[part], parameters._replace(U=U)
            stats: Float64 = sgd_steps(
                p.queries, p.documents, p.lexical, p.tuples, negatives, changed, config, state, first, last - first
            )
            return stats

        if len(self.states) == 1:
            return work(0, parameters.U)
        if self._equal is None:
            self._equal = parameters.U.copy(), parameters.U.copy()
        tables = (parameters.U, self._equal[0])
        total = sum(on_cores([partial(work, part, table) for part, table in enumerate(tables)]), np.zeros(3))
        average_changed(parameters.U, *self._equal)
        return total

    def _config(self) -> StepConfig:
        s = self.schedule
        of_run = {
            "rate_start": s.rate_start * self.rate_factor,
            "rate_end": 0.0,
            "hard_negatives": True,
            "n_total": s.epochs * self.n_steps,
            "identity": s.identity_scale,
            "max_norm": max(s.max_norm, self.longest) if s.max_norm else 0.0,
            "n_columns": self.problem.n_columns,
            "whole_from": self.problem.n_document_queries,
        }
        return StepConfig.of(**asdict(s) | of_run)

    def _slow_down(self, result: TrainResult, epoch: int) -> None:
        result.halvings += 1
        if result.halvings > MAX_HALVINGS:
            raise TrainingError(
                f"training diverges in epoch {epoch + 1} even at a rate of "
                f"{self.schedule.rate_start * self.rate_factor:.2g}: check the weights of the preferences"
            )
        self.rate_factor /= 2
        self.say(
            f"epoch {epoch + 1} diverged; going on from before it with half the rate "
            f"({self.schedule.rate_start * self.rate_factor:.3g})"
        )

    def _keep(self, epoch: int, U: Float32, V: Float32, result: TrainResult) -> None:
        if self.checkpoint is None or time.monotonic() < self._kept_at + CHECKPOINT_SECONDS:
            return
        arrays: dict[str, AnyArray] = {"U": U, "best_U": result.U}
        if U is not V:
            arrays |= {"V": V, "best_V": result.V}
        arrays["states"] = np.concatenate(self.states)
        if self._found is not None:
            arrays["nearest"] = self._found
        values = {
            "epoch": epoch,
            "best_epoch": result.best_epoch,
            "best_map": result.best_map,
            "rate_factor": self.rate_factor,
            "halvings": result.halvings,
            "history": [asdict(line) for line in result.history],
        }
        self.checkpoint.write(epoch, arrays, values)
        self._kept_at = time.monotonic()

    def _resume(self, U: Float32, V: Float32, result: TrainResult) -> int:
        """Restore the last state of this run, and return the number of epochs done."""
        kept = self.checkpoint.read() if self.checkpoint else None
        if kept is None:
            return 0
        arrays, values = kept
        U[:] = arrays["U"]
        result.U = arrays["best_U"]
        if U is not V:
            V[:] = arrays["V"]
        result.V = arrays.get("best_V", result.U)
        if "nearest" in arrays:
            self._found = arrays["nearest"]
        for state, value in zip(self.states, arrays["states"], strict=True):
            state[0] = value
        result.best_epoch, result.best_map = values["best_epoch"], values["best_map"]
        result.halvings, self.rate_factor = values["halvings"], values["rate_factor"]
        result.history = [Epoch(**line) for line in values["history"]]
        self.say(f"going on after epoch {values['epoch']} of an earlier run")
        return int(values["epoch"])


def is_taken(line: Epoch, result: TrainResult) -> bool:
    """Return whether the result of a run becomes that of its last epoch, ``line``.

    It does if the epoch is the best so far, or almost as good (`LATER`) as the best and not the first that is taken.
    """
    if line.map is None or result.best_map is None:
        return True
    highest = max([result.best_map, *(each.map for each in result.history[:-1] if each.map is not None)])
    return line.map >= (1 - LATER) * highest and (line.map > highest or result.best_epoch > 0)


def is_finite(E: Float32) -> bool:
    """Return whether no value is NaN or infinite."""
    # The sum is finite only if all values are, and needs no second array.
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(E.sum(dtype=np.float64)))


# --- hard negatives

N_NEAREST = 100
"""Hard negatives of a query."""
MAX_QUERIES = 20_000
MAX_DOCUMENTS = 20_000
"""Queries and documents that are searched at most, a random sample of more: the cost is their product."""
_N_LEXICAL = 300  # the lexical score of later documents is replaced by that of the last of these
_BLOCK = 64


class NegativeMiner:
    """Finds the documents of the pool that the model ranks high for each query and that are not relevant to it.

    The lexical part is ranked once, on construction; documents after the first 300 of a query get the lexical score of
    the 300th. ``rng`` samples queries and documents if there are more than `MAX_QUERIES` and `MAX_DOCUMENTS`. Memory:
    3.6 kB a query of the sample.

    Attributes
    ----------
    list_of : array
        Row of each query in the result of `look_up`, (n_queries,) int32; -1 for queries outside the sample.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._queries = _some(np.unique(problem.tuples.query), MAX_QUERIES, rng)
        self.list_of: Int32 = np.full(len(problem.queries.indptr) - 1, -1, np.int32)
        self.list_of[self._queries] = np.arange(len(self._queries))
        self._pool = _some(problem.negatives.pool, MAX_DOCUMENTS, rng)
        self._n_nearest = min(N_NEAREST, len(self._pool) - 1)
        self._blocks = [*range(0, len(self._queries), _BLOCK), len(self._queries)]
        lexical, n_columns = problem.lexical, problem.n_columns
        self._asked = csr_of(problem.queries, n_columns)[self._queries]
        place = np.full(len(problem.documents.indptr) - 1, -1, np.int64)
        place[self._pool] = np.arange(len(self._pool))
        known = problem.negatives
        lists = [place[known.known[known.known_indptr[q] : known.known_indptr[q + 1]]] for q in self._queries.tolist()]
        self._known = [columns[columns >= 0] for columns in lists]
        n = min(_N_LEXICAL, len(self._pool))
        self._columns: Int32 = np.empty((len(self._queries), n), np.int32)
        self._values: Float32 = np.empty((len(self._queries), n), np.float32)
        q, d = (
            csr_of(rows._replace(data=values), n_columns)[chosen]
            for rows, values, chosen in (
                (problem.queries, lexical.queries, self._queries),
                (problem.documents, lexical.documents, self._pool),
            )
        )
        products = InnerProducts(query_rows=q, document_rows=d)

        def rank(start: int, stop: int) -> None:
            scores = products.block(start, stop)
            columns = highest_places(scores, n)
            values = np.take_along_axis(scores, columns, axis=1)
            order = np.lexsort((columns, -values), axis=1)
            self._columns[start:stop] = np.take_along_axis(columns, order, axis=1)
            self._values[start:stop] = np.take_along_axis(values, order, axis=1)

        in_parts(rank, self._blocks)

    def look_up(self, U: Float32, vectors: Float32, identity: float) -> Int32:
        """Return the rows of documents for each query of the sample, (n_lists, n) int32, ascending; see ``list_of``.

        ``vectors`` (n_documents, N) float32 are Vd, ``identity`` is a.
        """
        found = np.full((len(self._queries), max(self._n_nearest, 1)), -1, np.int32)
        if self._n_nearest < 1:
            return found
        pool_vectors = vectors[self._pool].T

        def find(start: int, stop: int) -> None:
            scores = embed_rows(self._asked[start:stop], U) @ pool_vectors
            columns, values = self._columns[start:stop], self._values[start:stop]
            above_last = np.float32(identity) * (values - values[:, -1:])
            np.put_along_axis(scores, columns, np.take_along_axis(scores, columns, axis=1) + above_last, axis=1)
            for row, known in zip(scores, self._known[start:stop], strict=True):
                row[known] = -np.inf
            highest = highest_places(scores, self._n_nearest)
            usable = np.isfinite(np.take_along_axis(scores, highest, axis=1)).all(axis=1)
            found[start:stop][usable] = np.sort(self._pool[highest[usable]], axis=1)

        in_parts(find, self._blocks)
        return found


def _some(rows: Int64, most: int, rng: np.random.Generator) -> Int64:
    """Return the rows, or a random sample of ``most``, ascending."""
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
