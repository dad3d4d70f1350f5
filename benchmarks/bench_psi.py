"""What PSI of degree 3 costs beside degree 2: training tuples a second, documents encoded, candidates scored.

    python benchmarks/bench_psi.py [--steps N] [--dims N] [--turns N] [--data DIR] [--json FILE]

The texts are those of ``cppdocs`` in SSI_DATA, whole documents as queries, 30,000 words. Each shape is trained by the
papers' plain SGD for the same number of steps, in turns, and the median of the turns counts; times are of the CPU. All
three shapes score candidates as (query vector).(document vector) + q.d, so that with cached vectors they cost the same:
that is measured, too.
"""

from __future__ import annotations

import os

from provenance import write_results

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import gzip
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from papers.plain_sgd import PlainData, fit_plain
from papers.study import study_texts, study_vocabulary
from reranker.tables import read_links
from reranker.text.analyzers import make_analyzer, parse_analyzer

SHAPES = {"PSI k = 2": "low_rank", "PSI k = 3, shared": "cubic", "PSI k = 3, separate": "cubic_separate"}
N_QUERIES, N_CANDIDATES = 200, 1_000


def read_data(folder: Path, n_words: int) -> PlainData:
    """Return documents, the same as queries, and their links."""
    ids, texts = [], []
    with gzip.open(folder / "docs_en.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            ids.append(document["id"])
            texts.append(f"{document['title']}\n{document['text']}")
    tokens = make_analyzer(parse_analyzer("unicode,stop=english")).tokens(texts)
    rows = study_texts(tokens, study_vocabulary(tokens, n_words)).rows
    number = {one: row for row, one in enumerate(ids)}
    pairs = [
        (number[s], number[t]) for s, t in read_links(folder / "links_train.tsv.gz") if s in number and t in number
    ]
    source, target = np.array(pairs).T
    relevant = sp.csr_matrix((np.ones(len(pairs), np.float32), (source, target)), shape=(len(ids), len(ids)))
    return PlainData(rows, rows, relevant, np.arange(len(ids)))


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of some work, and its result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def measure(data: PlainData, dims: int, steps: int, turns: int) -> dict[str, dict[str, float]]:
    """Return, for each shape, tuples/s, documents encoded/s, and microseconds to score a candidate."""

    def train(shape: str, n_steps: int) -> Any:
        rng = np.random.default_rng(0)
        return fit_plain(shape, data, n_dims=dims, rate=0.1, n_steps=n_steps, init_std=0.1, rng=rng)

    for shape in SHAPES.values():
        train(shape, 100)  # compiles
    seconds: dict[str, list[float]] = {name: [] for name in SHAPES}
    encode: dict[str, list[float]] = {name: [] for name in SHAPES}
    score: dict[str, list[float]] = {name: [] for name in SHAPES}
    queries, candidates = data.q_rows[:N_QUERIES], data.d_rows[:N_CANDIDATES]
    for _ in range(turns):
        for name, shape in SHAPES.items():
            taken, scorer = cpu(partial(train, shape, steps))
            seconds[name].append(taken)
            encode[name].append(cpu(partial(scorer.embed_documents, data.d_rows))[0])
            vectors = scorer.embed_documents(candidates)
            score[name].append(cpu(partial(scorer.score_matrix, queries, candidates, vectors))[0])
    return {
        name: {
            "tuples_per_s": steps / statistics.median(seconds[name]),
            "documents_per_s": data.d_rows.shape[0] / statistics.median(encode[name]),
            "us_per_candidate": 1e6 * statistics.median(score[name]) / (N_QUERIES * N_CANDIDATES),
        }
        for name in SHAPES
    }


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--dims", type=int, default=100)
    parser.add_argument("--words", type=int, default=30_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "psi.json")
    options = parser.parse_args()
    found = measure(read_data(options.data / "cppdocs", options.words), options.dims, options.steps, options.turns)
    base = found["PSI k = 2"]
    for name, row in found.items():
        print(
            f"{name:<20}{row['tuples_per_s']:>10,.0f} tuples/s ({base['tuples_per_s'] / row['tuples_per_s']:.2f} times "
            f"the time){row['documents_per_s']:>10,.0f} documents/s{row['us_per_candidate']:>8.2f} us a candidate "
            f"({row['us_per_candidate'] / base['us_per_candidate']:.2f})"
        )
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    write_results(options.json, {"dims": options.dims, "steps": options.steps, "shapes": found, "machine": machine})


if __name__ == "__main__":
    main()
