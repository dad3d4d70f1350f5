"""Training: time to a MAP by recipe, speed of the compiled kernel on one core, and memory.

    python benchmarks/bench_training.py [FOLDER] [--small] [--only convergence,kernel,memory]

FOLDER holds ``docs_en.jsonl.gz``, ``links_train.tsv.gz`` and ``links_valid.tsv.gz`` (default: ``cppdocs`` in SSI_DATA).
``--small`` makes such a folder of random words instead and takes seconds.

* **convergence**: the papers' recipe (uniform negatives) at the best rate of a small grid, after 6 million tuples,
  started from N(0, 1) as stated and from N(0, 0.1^2), which is fairer; the default recipe until it stands as high.
  Everything in one process and on one thread, MAP on the same validation queries; time spent on MAP does not count.
  Times are processor seconds of the thread, so that others on the machine disturb less; wall seconds are kept, too.
* **kernel**: tuples/s of `sgd_steps` where every step changes U and V, at 8 query and 54 + 54 document words, beside
  a memory copy and numpy products in the same rounds; the best round counts. A tuple takes 2N(8 + 54 + 54)
  multiply-adds (project, update).
* **memory**: peak resident memory of a process that trains, less what its imports take, less U, V, the rows, the cache.
"""

from __future__ import annotations

import os

from provenance import write_results

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import gzip
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from training_kernel import kernel

from reranker.kernels.sgd import StepConfig
from reranker.tables import read_links
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.tfidf import TfIdf
from reranker.text.view import TextView
from reranker.training import TrainConfig, from_links
from reranker.training.config import Schedule, schedule_of
from reranker.training.context import Validator, values_by
from reranker.training.problem import Problem, build_problem, query_set, two_rows
from reranker.training.reading import DocumentSource, Listener, counted, read_corpus_once
from reranker.training.trainer import Trainer, start_parameters
from reranker.training.training_set import split_training_set

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    dim: int
    tuples: int
    grid_tuples: int
    rates: tuple[float, ...]
    default_seconds: float
    kernel_tuples: int
    rounds: int


FULL = Sizes(100, 6_000_000, 100_000, (0.003, 0.03, 0.3), 15.0, 20_000, 12)
SMALL = Sizes(16, 40_000, 20_000, (0.03, 0.3), 1.0, 2_000, 3)


class _EnoughError(Exception):
    """Raised by a curve that needs no more steps."""


@dataclass
class Curve:
    """MAP by tuples and time; called by the trainer between its stretches of steps."""

    measure: Callable[[], float]
    max_tuples: int
    max_seconds: float
    points: list[dict[str, float]] = field(default_factory=list)
    cpu: float = 0.0
    wall: float = 0.0

    def start(self) -> None:
        """Measure the start and set the clocks going."""
        self._add(0)
        self._mark()

    def __call__(self, done: int, _total: int | None) -> None:
        """Stop the clocks, measure where it is worth a point, and go on."""
        self.cpu += time.thread_time() - self._cpu
        self.wall += time.perf_counter() - self._wall
        last = done >= self.max_tuples or self.cpu >= self.max_seconds
        if last or done >= 1.25 * self.points[-1]["tuples"]:
            self._add(done)
        if last:
            raise _EnoughError
        self._mark()

    def _mark(self) -> None:
        self._cpu, self._wall = time.thread_time(), time.perf_counter()

    def _add(self, done: int) -> None:
        self.points.append({"tuples": done, "cpu_s": self.cpu, "wall_s": self.wall, "map": self.measure()})


@dataclass(frozen=True)
class Data:
    """A corpus ready to train on, and what makes the validator of a recipe."""

    problem: Problem
    n_words: int
    validator: Callable[[float], Validator]


def read_data(folder: Path) -> Data:
    """Return the training problem of the links between known documents, title twice the weight of the text."""
    path, view = folder / "docs_en.jsonl.gz", TextView.parse(["title^2", "text"])
    analyzer = make_analyzer(AnalyzerConfig())
    train = from_links(read_links(folder / "links_train.tsv.gz"))
    valid = from_links(read_links(folder / "links_valid.tsv.gz"))
    tokens = read_corpus_once(DocumentSource(path, view, analyzer), analyzer, Listener()).tokens
    vocabulary = tokens.vocabulary()
    wanted = {*train.query_ids, *valid.query_ids}
    corpus = counted(tokens, analyzer, TfIdf(vocabulary, "log"), wanted)
    split = split_training_set(train, valid, corpus.ids, np.random.default_rng(0))
    queries = query_set(corpus, [train, valid], None)
    documents = two_rows(corpus.learned_rows(view.weights), None)
    task = valid.task(split.pool, train.links(), set(corpus.query_row_of))
    rows = queries.rows.part(np.array([queries.row_of[one] for one in task.query_ids]))
    pool = documents.part(np.array([corpus.row_of[one] for one in task.document_ids]))
    problem = build_problem(corpus, queries, documents, train, split.held_out)
    return Data(problem, len(vocabulary), lambda a: Validator(task, rows, pool, a, np.random.default_rng(3)))


def plain(schedule: Schedule, rate: float, deviation: float) -> Schedule:
    """Return the numbers of the papers' recipe: uniform negatives, no cap, no dropout; U and V from a normal start."""
    return replace(
        schedule,
        rate_start=rate,
        identity_scale=1.0,
        max_norm=0.0,
        max_trials=1,
        query_dropout=0.0,
        init_u=deviation,
        stated_negative_ratio=0.5,
        nearest_share=0.0,
        epochs=200,
    )


class PlainTrainer(Trainer):
    """Trains as the papers do: at a constant rate, with the first negative that is drawn."""

    def _config(self) -> StepConfig:
        config = super()._config()
        return config._replace(rate_end=config.rate_start, hard_negatives=False)


def curve(
    data: Data, schedule: Schedule, dim: int, tuples: int, seconds: float, kind: type[Trainer] = Trainer
) -> list[dict[str, float]]:
    """Return the learning curve of a recipe from its start to so many tuples or seconds."""
    rng = np.random.default_rng(1)
    U, V = start_parameters(schedule, data.n_words, dim, rng)
    if kind is PlainTrainer:
        V[:] = rng.standard_normal(V.shape) * schedule.init_u
    validator = data.validator(schedule.identity_scale)
    line = Curve(lambda: float(np.mean(values_by([validator], U, V))), tuples, seconds)
    told: list[str] = []
    trainer = kind(data.problem, schedule, np.random.default_rng(2), progress=line, say=told.append)
    if kind is PlainTrainer:  # long stretches: uniform negatives do not need the cache that each one refreshes
        trainer.n_steps = min(250_000, tuples)
    line.start()
    try:
        trainer.run(U, V)
    except _EnoughError:
        pass
    finally:
        for message in told:
            print("   ", message)
    return line.points


def convergence(data: Data, sizes: Sizes, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return the curves of the recipes and how much earlier the default reaches the others' last MAP."""
    config = TrainConfig(dim=sizes.dim)
    default = schedule_of(config, queries_are_texts=False, unseen_documents=False, only_whole=True)
    curve(data, default, sizes.dim, 1, 1.0)  # compiles the kernels
    found: dict[str, Any] = {"default": curve(data, default, sizes.dim, sys.maxsize, sizes.default_seconds)}
    print_curve("default", found["default"])
    for name, deviation in (("paper", 1.0), ("uniform negatives, start N(0, 0.1^2)", 0.1)):
        grid = {}
        for rate in sizes.rates:
            schedule = plain(default, rate, deviation)
            grid[rate] = curve(data, schedule, sizes.dim, sizes.grid_tuples, np.inf, PlainTrainer)[-1]["map"]
            print(f"  {name}, rate {rate:g}: MAP {grid[rate]:.4f} after {sizes.grid_tuples:,} tuples", flush=True)
        rate = max(grid, key=lambda one: grid[one])
        points = curve(data, plain(default, rate, deviation), sizes.dim, sizes.tuples, np.inf, PlainTrainer)
        print_curve(f"{name}, rate {rate:g}", points)
        found[name] = {"grid": grid, "rate": rate, "points": points, **ratio(points[-1], found["default"])}
        print("  " + json.dumps({k: v for k, v in found[name].items() if k not in ("grid", "points")}), flush=True)
        keep(found)
    return found


def ratio(last: dict[str, float], default: list[dict[str, float]]) -> dict[str, Any]:
    """Return when the default recipe first stood as high as ``last``, at a point measured after its start."""
    reached = next((point for point in default[1:] if point["map"] >= last["map"]), None)
    return {
        "target_map": last["map"],
        "target_cpu_s": last["cpu_s"],
        "default_cpu_s": reached and reached["cpu_s"],
        "default_map_there": reached and reached["map"],
        "times_faster_cpu": reached and last["cpu_s"] / reached["cpu_s"],
        "times_faster_wall": reached and last["wall_s"] / reached["wall_s"],
        "default_start_is_higher": default[0]["map"] >= last["map"],
    }


def print_curve(name: str, points: list[dict[str, float]]) -> None:
    print(name)
    for point in points:
        print("    {tuples:>10,.0f} tuples {cpu_s:8.2f} s ({wall_s:.2f} s wall)  MAP {map:.4f}".format(**point))
    sys.stdout.flush()


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw MAP over processor time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name, one in found.items():
        points = one if isinstance(one, list) else one["points"]
        label = name if isinstance(one, list) else f"{name}, rate {one['rate']:g}"
        axes.plot([p["cpu_s"] for p in points[1:]], [p["map"] for p in points[1:]], marker=".", label=label)
    axes.axhline(found["default"][0]["map"], color="grey", linestyle=":", label="q.d alone (the default's start)")
    axes.set(xscale="log", xlabel="processor seconds, one thread", ylabel="validation MAP", ylim=(0, None))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100, metadata={"Software": None})


def memory(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Return what a process that trains on the folder prints of its memory."""
    command = [sys.executable, str(HERE / "training_memory.py"), str(folder), str(sizes.dim)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    figures: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps(figures, indent=1), flush=True)
    return figures


def make_folder(folder: Path) -> Path:
    """Write a corpus of random words in 20 topics, and links within topics."""
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(1_000)]
    topics = rng.integers(0, 20, 300)
    with gzip.open(folder / "docs_en.jsonl.gz", "wt") as lines:
        for number, topic in enumerate(topics):
            chosen = np.concatenate([rng.integers(0, 1_000, 20), topic * 50 + rng.integers(0, 50, 10)])
            texts = [words[word] for word in chosen]
            lines.write(json.dumps({"id": f"d{number}", "title": " ".join(texts[:2]), "text": " ".join(texts)}) + "\n")
    for name, n in (("links_train.tsv.gz", 1_500), ("links_valid.tsv.gz", 300)):
        with gzip.open(folder / name, "wt") as lines:
            for source in rng.integers(0, 300, n):
                lines.write(f"d{source}\td{rng.choice(np.flatnonzero(topics == topics[source]))}\n")
    return folder


def keep_curves(found: dict[str, Any], figures: dict[str, Any], results: Path) -> None:
    """Write what there is so far: the long runs may be stopped."""
    draw(found, results.with_suffix(".png"))
    write_results(results, figures | {"convergence": found})


def run(folder: Path, sizes: Sizes, parts: list[str], results: Path) -> None:
    """Measure the parts and write them beside the figures already there."""
    figures: dict[str, Any] = json.loads(results.read_text()) if results.is_file() else {}
    machine = f"{platform.machine()}, {os.cpu_count()} cores shared, load {os.getloadavg()[0]:.1f}"
    if "kernel" in parts:
        figures["kernel"] = kernel(sizes.dim, sizes.kernel_tuples, sizes.rounds)
    if "memory" in parts:
        figures["memory"] = memory(folder, sizes)
    if "convergence" in parts:
        convergence(read_data(folder), sizes, lambda found: keep_curves(found, figures | {"machine": machine}, results))
    else:
        write_results(results, figures | {"machine": machine})
    print(f"written: {results}")


def main() -> None:
    """Read the options and run."""
    data = Path(os.environ.get("SSI_DATA", HERE.parents[1] / "shared" / "data"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=data / "cppdocs")
    parser.add_argument("--small", action="store_true", help="random words in place of FOLDER, in seconds")
    parser.add_argument("--only", default="kernel,memory,convergence", help="parts, by commas")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/training.json; --small: nowhere")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        folder = make_folder(place) if options.small else options.folder
        usual = place / "training.json" if options.small else HERE / "results" / "training.json"
        run(folder, SMALL if options.small else FULL, options.only.split(","), options.json or usual)


if __name__ == "__main__":
    main()
