"""Runs systems side by side on studies: fits, measures, keeps, and uses again what was kept before."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np

from papers.results import Kept, Results, Shelf, Values, file_name, fingerprint, version
from papers.study import Study, Trial, TrialScores
from papers.system import Budget, Fitted, Job, Loss, Progress, System
from papers.task import Request
from reranker.errors import MissingExtra, RerankerError
from reranker.evaluation.ranking import Ranking, top_documents
from reranker.evaluation.runs import RunWriter
from reranker.models.base import Scores

Measure = Callable[[Study, Trial, Fitted], Mapping[str, Values]]
"""Values by measure, one a query or pair; ``rank loss`` in per cent."""
RUN_DEPTH = 100
"""Ranks kept in run files."""


def run_ranking(
    task: str,
    studies: Iterable[Study],
    systems: Sequence[System],
    loss: Loss,
    measure: Measure,
    request: Request,
    budget: Budget,
    progress: Progress,
) -> Results:
    """Return what each system reached on the test trial of each study.

    All of it is kept under ``request.out / task / study``; what is there already for the same study, system, budget
    and version of the program is used again. A system that the study has nothing for, or that fails, has its reason
    in the results instead of values.

    Parameters
    ----------
    task : str
        Id of the task, a folder's name.
    studies : iterable of Study
        Taken one after the other, so that a generator needs the memory of one only; names must differ.
    systems : sequence of System
        To compare.
    loss : callable
        What is tuned, on the study's valid trial.
    measure : callable
        What is measured, once, on its test trial.
    request : Request
        Its ``out`` and ``seed``.
    budget : Budget
        The same for all systems.
    progress : callable
        What is being done.
    """
    cells: dict[tuple[str, str], Kept] = {}
    reused: set[tuple[str, str]] = set()
    for study in studies:
        content = fingerprint(study)
        for system in systems:
            progress(f"{task} {study.name}: {system.title}", 0, None)
            shelf = Shelf(request.out / file_name(task) / file_name(study.name), system.name)
            mark = fingerprint(content, system.name, asdict(budget), version(), _name(loss), _name(measure))
            kept = shelf.load(mark)
            if kept is not None:
                reused.add((study.name, system.name))
                progress(f"{task} {study.name}: {system.title}, used again", 1, 1)
            else:
                runner = _Runner(task, study, budget, loss, measure, progress)
                kept = runner.run(system, shelf, mark, request.seed)
            cells[study.name, system.name] = kept
    return Results(
        task=task,
        titles={system.name: system.title for system in systems},
        values={place: kept.values for place, kept in cells.items() if not kept.failure},
        failures={place: kept.failure for place, kept in cells.items() if kept.failure},
        settings={place: kept.settings for place, kept in cells.items()},
        seconds={place: sum(kept.seconds.values()) for place, kept in cells.items()},
        reused=frozenset(reused),
    )


@dataclass(frozen=True)
class _Runner:
    """One study and how it is worked on."""

    task: str
    study: Study
    budget: Budget
    loss: Loss
    measure: Measure
    progress: Progress

    def run(self, system: System, shelf: Shelf, mark: str, seed: int) -> Kept:
        """Return what a system reaches, kept on its shelf."""
        lacking = system.lacks(self.study)
        if lacking:
            return Kept({}, failure=f"needs {', '.join(lacking)}, which this corpus does not have")
        try:
            kept = self._measured(system, shelf)
        except MissingExtra as error:
            return Kept({}, failure=str(error))  # not kept: it may be installed the next time
        except RerankerError as error:
            kept = Kept({}, failure=str(error))
        shelf.save(mark, kept, self._about(system, seed))
        return kept

    def _measured(self, system: System, shelf: Shelf) -> Kept:
        """Return the values of a system that is fitted now."""
        study = self.study
        begin = time.perf_counter()
        rng = np.random.default_rng([study.seed, crc32(system.name.encode())])
        fitted = system.fit(Job(study, self.budget, self.loss, rng, self._progress_of(system)))
        middle = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="ssi-run-") as aside:
            plain = Path(aside) / "run"
            with ExitStack() as stack:
                writer = stack.enter_context(RunWriter(plain, study.test.task, system.name))
                recorded = _Recorded(fitted.scorer, fitted.query_view, fitted.document_view, fitted.settings, writer)
                values = self.measure(study, study.test, recorded)
            if plain.stat().st_size:
                shelf.keep_run(plain)
        end = time.perf_counter()
        arrays = {name: np.asarray(array, np.float64) for name, array in values.items()}
        return Kept(arrays, fitted.settings, {"fit": middle - begin, "measure": end - middle})

    def _progress_of(self, system: System) -> Progress:
        """Return the progress of one fit under its name."""
        name = f"{self.task} {self.study.name}: {system.title}"
        return lambda what, done, total: self.progress(f"{name}, {what}" if what else name, done, total)

    def _about(self, system: System, seed: int) -> dict[str, Any]:
        """Return what a reader of the JSON file needs to know besides the values."""
        return {
            "task": self.task,
            "study": self.study.name,
            "system": system.name,
            "title": system.title,
            "ids": list(system.ids),
            "seed": seed,
            "study_seed": self.study.seed,
            "version": version(),
            "budget": asdict(self.budget),
            "documents": len(self.study.documents),
            "words": len(self.study.documents.words),
            "training_queries": len(self.study.queries),
            "test_queries": len(self.study.test.queries),
        }


@dataclass(frozen=True)
class _Recorded(Fitted):
    """A fitted system whose rankings of the test trial are written down while they are measured."""

    writer: RunWriter | None = None

    def scores(self, study: Study, trial: Trial) -> TrialScores:
        """Return the scores of a trial, of which each block is written the first time."""
        plain = super().scores(study, trial)
        if trial is not study.test or self.writer is None:
            return plain
        return _RecordedScores(plain.scorer, plain.queries, plain.documents, trial, self.writer, [0])


@dataclass(frozen=True)
class _RecordedScores(TrialScores):
    """Scores that are written to a run as they pass, in the order of the queries."""

    trial: Trial
    writer: RunWriter
    written: list[int]

    def block(self, start: int, stop: int) -> Scores:
        """Return the scores of queries ``start`` to ``stop - 1``."""
        scores = super().block(start, stop)
        if start == self.written[0] and np.isfinite(scores).all():
            self.written[0] = stop
            left = scores.copy()
            excluded = self.trial.task.excluded[start:stop]
            left[np.repeat(np.arange(stop - start), np.diff(excluded.indptr)), excluded.indices] = -np.inf
            documents, best = top_documents(left, RUN_DEPTH)
            self.writer.write(Ranking(start, documents, best))
        return scores


def _name(function: Any) -> str:
    """Return a name of a function that is the same in every run."""
    named = cast(Any, getattr(function, "func", function))
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def with_budget(budget: Budget, request: Request) -> Budget:
    """Return the task's own budget, or `SMALL` in small mode, with the values that the request changes."""
    return replace(SMALL if request.small else budget, **request.budget)


def sizes(request: Request, small: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions that a study by N takes: up to those asked for, which are the last."""
    chosen = small if request.small else full
    most = request.budget.get("n_dims")
    return chosen if most is None else (*(n for n in chosen if n < most), most)


SMALL = Budget(
    n_dims=10, n_steps=20_000, every=10_000, patience=2, n_iterations=5, rates=(0.1,), n_slots=100_000, grid=3
)
"""What `Request.small` may cost: seconds, and figures that mean nothing."""
