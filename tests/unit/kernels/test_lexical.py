"""Weights of postings and average precision: the compiled kernels against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.lexical.kernel import Judged, Postings, average_precision, collect_postings, posting_weights
from tests.reference import lexical as reference
from tests.seeds import seeded_rng

N_DOCUMENTS, N_WORDS, N_QUERIES = 40, 15, 12


def postings(rng: np.random.Generator) -> Postings:
    fields = [sp.csc_matrix(rng.poisson(0.3, (N_DOCUMENTS, N_WORDS)).astype(np.float32)) for _ in range(2)]
    both = sp.csc_matrix(fields[0] + fields[1])
    both.sort_indices()
    word = np.repeat(np.arange(N_WORDS), np.diff(both.indptr))
    parts = np.array([np.asarray(field[both.indices, word]).ravel() for field in fields], dtype=np.float32)
    return Postings(both.indptr.astype(np.int64), both.indices.astype(np.int32), parts)


@pytest.mark.parametrize("coverage", [(), (0.0, 3.0), (40.0, 0.7)])
def test_weights_are_the_definitions(coverage: tuple[float, ...]) -> None:
    rng = seeded_rng()
    laid_out, norms, idf = postings(rng), rng.uniform(0.3, 3, (2, N_DOCUMENTS)), rng.uniform(0, 4, N_WORDS)
    covers = np.array([c / rng.uniform(5, 50, N_DOCUMENTS) for c in coverage], np.float32).reshape(-1, N_DOCUMENTS)
    arguments = (laid_out, norms, covers, np.array([7.0, 1.0]), idf, 1.7)
    expected = reference.bm25_weights(*arguments)
    weights = np.full(len(expected), -1, np.float32)
    posting_weights(*arguments, (4, N_WORDS), weights)
    assert (weights[: laid_out.offsets[4]] == -1).all(), "of other words"
    posting_weights(*arguments, (0, 4), weights)
    assert np.array_equal(weights, expected)


def test_postings_are_those_of_the_words_that_are_asked_for() -> None:
    rng = seeded_rng()
    fields = [sp.csr_matrix(rng.poisson(0.3, (N_DOCUMENTS, N_WORDS)).astype(np.float32)) for _ in range(3)]
    asked = np.arange(N_WORDS) % 3 > 0
    counts = sp.hstack(fields, format="csr")
    found = collect_postings(counts.indptr, counts.indices, counts.data, asked, 3)
    for word in range(N_WORDS):
        span = slice(found.offsets[word], found.offsets[word + 1])
        dense = np.stack([field[:, [word]].toarray().ravel() for field in fields])
        holding = np.flatnonzero(dense.any(axis=0)) if asked[word] else np.empty(0)
        assert found.documents[span].tolist() == holding.tolist()
        assert np.array_equal(found.parts[:, span], dense[:, found.documents[span]])
    assert found.offsets[-1] == len(found.documents)


@pytest.mark.parametrize("depth", [3, 1_000])
def test_average_precision_is_the_definitions(depth: int) -> None:
    """Weights of few different values make many ties; some queries have no word, and the last nothing to find."""
    rng = seeded_rng()
    laid_out = postings(rng)
    weights = rng.integers(1, 3, len(laid_out.documents)).astype(np.float32)
    queries = sp.csr_matrix(rng.poisson(0.2, (N_QUERIES, N_WORDS)).astype(np.float32))
    marks = rng.integers(0, 8, (N_QUERIES, N_DOCUMENTS))
    marks[-1] = 2
    relevant, excluded = sp.csr_matrix(marks == 0), sp.csr_matrix(marks == 1)
    judged = Judged(relevant.indptr, relevant.indices, excluded.indptr, excluded.indices)
    arguments = (queries.indptr, queries.indices, queries.data, laid_out, weights, judged, N_DOCUMENTS, depth)
    values = average_precision(*arguments)
    assert values == pytest.approx(reference.average_precision(*arguments), abs=1e-12)
    assert values[-1] == 0.0 and values[:-1].max() > 0
