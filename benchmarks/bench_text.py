"""Documents a second from text to document vectors on one core, and where the time goes.

    OMP_NUM_THREADS=1 python benchmarks/bench_text.py DOCS.jsonl.gz [--json FILE]

Fields title and text (weights 2 and 1), default analyzer, vocabulary of all words in 2 documents or more.
Processor time, batches of 512, the best of several runs. The last figure but one is the whole of
`reranker.models.ranking_model.Encoder.encode`: the same work, plus source hashes and quantisation.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from provenance import write_results

from reranker.formats import DocumentLine, read_documents
from reranker.kernels.packing import QUANTISATIONS, Quantisation
from reranker.kernels.rows import embed_rows
from reranker.models.ranking_model import Encoder
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import combine
from reranker.text.tfidf import count_rows
from reranker.text.view import TextView
from reranker.text.vocabulary import VocabularyBuilder

BATCH = 512


def main() -> None:
    """Measure, print a table, and write it as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("docs", type=Path)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quantisation", choices=QUANTISATIONS, default="float16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(list(read_documents(options.docs)), options.dim, options.runs, options.quantisation)
    result["reading_s"] = best(options.runs, lambda: sum(1 for _ in read_documents(options.docs)))
    print_table(result)
    if options.json:
        write_results(options.json, result)


def measure(documents: list[DocumentLine], n_dims: int, n_runs: int, quantisation: str) -> dict[str, Any]:
    """Return the seconds of each stage over the corpus in the best of several runs, and what the corpus is."""
    view, analyzer = TextView.parse(["title^2", "text^1"]), make_analyzer(AnalyzerConfig())
    builder = VocabularyBuilder()
    for doc in documents:
        builder.add([[word for words in analyzer.tokens(view.texts(doc.source)) for word in words]])
    vocabulary = builder.build(min_df=2)
    V = np.random.default_rng(0).normal(size=(len(vocabulary), n_dims)).astype(np.float32)
    encoder = Encoder(view, analyzer, vocabulary, "log", V, cast(Quantisation, quantisation))
    batches = [[doc.source for doc in documents[i : i + BATCH]] for i in range(0, len(documents), BATCH)]
    runs = [run_stages(encoder, batches) for _ in range(n_runs)]
    return {
        "documents": len(documents),
        "words": builder.n_tokens,
        "vocabulary": len(vocabulary),
        "dimensions": n_dims,
        "quantisation": quantisation,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "stages_s": min(runs, key=lambda run: sum(run.values())),
        "encode_s": best(n_runs, lambda: [encoder.encode(batch) and None for batch in batches]),
    }


def run_stages(encoder: Encoder, batches: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Return the processor seconds of each stage, batch after batch as `Encoder.encode` goes."""
    view, tfidf = encoder.view, encoder.tfidf
    seconds = Counter[str]()
    for batch in batches:
        clock = Clock(seconds)
        texts = [view.texts(source) for source in batch]
        flat = [text[field] for field in range(len(view.fields)) for text in texts]
        clock.lap("view")
        tokens = encoder.analyzer.tokens(flat)
        clock.lap("tokenise")
        counts = count_rows(tfidf.vocabulary, tokens)
        clock.lap("count")
        rows = tfidf.rows_of_counts(counts)
        clock.lap("rows")
        n = len(batch)
        d = combine([rows[i : i + n] for i in range(0, len(flat), n)], view.weights)
        clock.lap("combine fields")
        embed_rows(d, encoder.V)
        clock.lap("embed (Vd)")
    return dict(seconds)


class Clock:
    """Adds the processor time since its last lap to a stage; other work on the machine disturbs it least."""

    def __init__(self, seconds: Counter[str]) -> None:
        self._seconds = cast(dict[str, float], seconds)
        self._last = time.process_time()

    def lap(self, stage: str) -> None:
        """End a stage and begin the next."""
        now = time.process_time()
        self._seconds[stage] += now - self._last
        self._last = now


def best(n_runs: int, work: Callable[[], object]) -> float:
    """Return the least processor seconds of several runs."""
    seconds = []
    for _ in range(n_runs):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def print_table(result: dict[str, Any]) -> None:
    """Print the stages with their share of the time and the documents a second of the whole."""
    n, seconds = result["documents"], result["stages_s"]
    total = sum(seconds.values())
    print(f"{n:,} documents of {result['words'] / n:.0f} words, vocabulary {result['vocabulary']:,}")
    print(f"N = {result['dimensions']}, kernels: {result['kernels']}")
    for name, value in seconds.items():
        print(f"  {name:<16}{value / n * 1e6:8.1f} µs a document {value / total:7.1%}")
    print(f"  {'together':<16}{total / n * 1e6:8.1f} µs a document = {n / total:,.0f} documents/s a core")
    print(f"Encoder.encode ({result['quantisation']}): {n / result['encode_s']:,.0f} documents/s a core")
    print(f"reading and parsing the file: {n / result['reading_s']:,.0f} documents/s")


if __name__ == "__main__":
    main()
