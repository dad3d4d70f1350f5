"""How many documents a second `ssi vectorize` encodes.

    python benchmarks/bench_vectorize.py [--documents 400000] [--dim 128]

Documents are those of `benchmarks/scale_data.py`, with a random V over all their words. A tenth of them is vectorized
first, for nothing, then again, then all: the rate is that of the nine tenths in between, without the start.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scale_data import World, write_documents

from indexer.vectorizing import vectorize
from reranker.formats import read_documents
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.view import TextView
from reranker.text.vocabulary import VocabularyBuilder


def save_random_model(docs: Path, folder: Path, dim: int) -> None:
    """Write a model over the words of the documents."""
    view, analyzer = TextView.parse(["title^2", "text"]), make_analyzer(AnalyzerConfig())
    builder = VocabularyBuilder()
    documents: Iterator[str] = ("\n".join(view.texts(document.source)) for document in read_documents(docs))
    while texts := list(itertools.islice(documents, 1000)):
        builder.add(analyzer.tokens(texts))
    vocabulary = builder.build(None)
    V = np.random.default_rng(0).normal(scale=0.1, size=(len(vocabulary), dim)).astype(np.float32)
    save_model(RankingModel(Encoder(view, analyzer, vocabulary, "log", V), vocabulary, V), folder)
    print(f"{vocabulary.n_documents:,} documents, {len(vocabulary):,} words, V of {V.nbytes / 1e6:,.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_documents(World(options.documents, 0), folder)
        docs, tenth = folder / "docs.jsonl", folder / "tenth.jsonl"
        with docs.open("rb") as whole, tenth.open("wb") as part:
            part.writelines(itertools.islice(whole, options.documents // 10))
        save_random_model(docs, folder / "model", options.dim)
        seconds, counts = [], []
        for path in (tenth, tenth, docs):
            started = time.monotonic()
            counts.append(vectorize(path, folder / "model", folder / "vectors.parquet"))
            seconds.append(time.monotonic() - started)
    rate = (counts[2] - counts[1]) / (seconds[2] - seconds[1])
    print(f"{rate:,.0f} documents/s; {counts[2]:,} in {seconds[2]:.1f} s")


if __name__ == "__main__":
    main()
