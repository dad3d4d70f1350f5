"""What float16 and int8 cost: error of scores against float32, changes of the ranking, bytes a document.

    python benchmarks/bench_quantisation.py DOCS.jsonl.gz [--queries 500] [--json FILE]

Rows are those of the corpus (fields title, weight 2, and text); vectors are Vd with V (a) of the corpus' own first
100 singular directions, (b) random. Queries are documents drawn from the corpus, not quantised, as in serving. Scores
are f = (Uq).(Vd) + q.d with U = V, scaled so that both parts are of one size on average over the best 10.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from reranker.kernels.packing import QUANTISATIONS, pack_rows, pack_vectors, quantise_rows, quantise_vectors, to_text
from reranker.kernels.rows import embed_rows
from reranker.models.ranking_model import Encoder
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import inner_products, unit_rows
from reranker.text.view import TextView
from reranker.text.vocabulary import VocabularyBuilder

N_DIMS, MAX_WORDS, TOP = 100, 30_000, 10
Matrix = npt.NDArray[np.float32]


def read_rows(path: Path) -> tuple[sp.csr_matrix, int]:
    """Return the rows of a corpus and the number of words in its vocabulary."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        sources = [json.loads(line) for line in lines]
    view, analyzer = TextView.parse(["title^2", "text"]), make_analyzer(AnalyzerConfig())
    builder = VocabularyBuilder()
    builder.add(analyzer.tokens(["\n".join(view.texts(source)) for source in sources]))
    vocabulary = builder.build(MAX_WORDS, min_df=2)
    encoder = Encoder(view, analyzer, vocabulary, "log", np.zeros((0, N_DIMS), np.float32))
    return encoder.rows(sources), len(vocabulary)


def embeddings(rows: sp.csr_matrix, n_words: int, rng: np.random.Generator) -> dict[str, Matrix]:
    """Return V by name."""
    known = rows.indices < n_words
    kept = np.concatenate(([0], np.cumsum(known)))[rows.indptr]
    small = sp.csr_matrix((rows.data[known], rows.indices[known], kept), shape=(rows.shape[0], n_words))
    _, _, directions = svds(small, k=N_DIMS, random_state=rng)
    return {
        "singular": np.ascontiguousarray(directions.T, np.float32),
        "random": rng.normal(size=(n_words, N_DIMS)).astype(np.float32),
    }


def compare(name: str, V: Matrix, rows: sp.csr_matrix, queries: sp.csr_matrix) -> list[dict[str, Any]]:
    """Return the figures of each quantisation with one V."""
    Q = embed_rows(queries, V)
    D = embed_rows(rows, V)
    same_words = inner_products(queries, rows)
    learned = Q @ D.T
    scale = np.sqrt(np.sort(same_words)[:, -TOP:].mean() / np.sort(learned)[:, -TOP:].mean())
    Q, D, learned = Q * scale, D * scale, learned * scale**2
    exact = learned + same_words
    best = np.argsort(-exact, kind="stable")[:, :TOP]
    figures = []
    for quantisation in QUANTISATIONS:
        vectors, weights = quantise_vectors(D, quantisation), quantise_rows(rows, quantisation)
        scores = Q @ vectors.T + inner_products(queries, weights)
        error = np.abs(scores - exact)
        ranked = np.argsort(-scores, kind="stable")[:, :TOP]
        same = np.mean([len(set(a) & set(b)) / TOP for a, b in zip(best.tolist(), ranked.tolist(), strict=True)])
        packed = pack_vectors(vectors[:1000], quantisation), pack_rows(weights[:1000], quantisation)
        n_bytes = [float(np.mean([len(to_text(one)) for one in part])) for part in packed]
        figures.append(
            {
                "V": name,
                "quantisation": quantisation,
                "mean |error|": float(error.mean()),
                "max |error|": float(error.max()),
                "score spread": float(exact.std()),
                "same top 10": float(same),
                "same order of top 10": float((best == ranked).all(axis=1).mean()),
                "bytes of _vec": n_bytes[0],
                "bytes of _terms": n_bytes[1],
            }
        )
    return figures


def main() -> None:
    """Print one line a case, and write them all as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("docs", type=Path)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows, n_words = read_rows(options.docs)
    queries = unit_rows(rows[np.sort(rng.permutation(rows.shape[0])[: options.queries])])
    results = []
    for name, V in embeddings(rows, n_words, rng).items():
        for figures in compare(name, V, rows, queries):
            results.append(figures)
            line = (
                f"{key} {value:.3g}" if isinstance(value, float) else f"{value:8}" for key, value in figures.items()
            )
            print("  ".join(line), flush=True)
    if options.json:
        write_results(options.json, {"documents": rows.shape[0], "results": results})


if __name__ == "__main__":
    main()
