"""Memory of training beyond what it must hold; part of ``bench_training.py``, which runs it as a process of its own.

    python benchmarks/training_memory.py FOLDER DIM

Prints JSON: megabytes resident after the imports, at the peak of `train_model` with default settings, and of U, V, the
rows of queries and documents and the cache of Vd, each counted once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import reranker.training.linear as training
from reranker.kernels.rows import embed_rows
from reranker.kernels.sgd import sgd_steps
from reranker.tables import read_links
from reranker.training import DocumentSource, Listener, TrainConfig, from_links, train_model
from reranker.training.problem import Problem
from reranker.training.trainer import Trainer

MB = 2**20
IMPORTED = (embed_rows, sgd_steps, Problem)


def resident(key: str) -> float:
    """Return VmRSS (now) or VmHWM (peak of this process) in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {key}: this measurement needs Linux")


class Sizes(Trainer):
    """The trainer, noting the size of what it is given."""

    held: float = 0.0

    def __init__(self, problem: Problem, *args: Any, **options: Any) -> None:
        super().__init__(problem, *args, **options)

    def run(self, U: Any, V: Any) -> Any:
        """Note the sizes and run."""
        p = self.problem
        arrays = [U, V, *p.queries, *p.documents, *p.lexical]
        cache = (len(p.documents.indptr) - 1) * U.shape[1] * 4
        Sizes.held = max(
            Sizes.held, (sum(one.nbytes for one in {id(one): one for one in arrays}.values()) + cache) / MB
        )
        return super().run(U, V)


def main() -> None:
    """Train and print the figures."""
    folder, dim = Path(sys.argv[1]), int(sys.argv[2])
    setattr(training, "Trainer", Sizes)  # noqa: B010 - classes trained by SGD make their trainer by this name
    after_imports = resident("VmRSS")
    phases: dict[str, float] = {}

    def note(title: str, _done: int, _total: int | None) -> None:
        phases[title] = max(phases.get(title, 0.0), resident("VmHWM"))

    config = TrainConfig(dim=dim, epochs=2)
    links, valid = (from_links(read_links(folder / f"links_{side}.tsv.gz")) for side in ("train", "valid"))
    corpus = DocumentSource(folder / "docs_en.jsonl.gz")
    train_model(corpus, links, config, valid=valid, listener=Listener(progress=note))
    peak = resident("VmHWM")
    print(
        json.dumps(
            {
                "after_imports_mb": after_imports,
                "peak_mb": peak,
                "held_mb": Sizes.held,
                "beyond_mb": peak - after_imports - Sizes.held,
                "peak_by_phase_mb": phases,
                "numpy": np.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
