"""The vector space model through postings against hand-made cosines and the matrix product."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.methods.inverted_file import CourseWeights, VectorSpace, Weighting, invert, score_by_postings
from papers.methods.rows import check_counts, idf_of, tfidf_rows
from reranker.errors import ConfigError, InputError, ShapeMismatch

COUNTS = sp.csr_matrix(np.array([[1, 2, 0, 3], [1, 0, 1, 0], [1, 0, 2, 1]], np.float32))


def test_B18_the_cosine_of_the_course_by_hand() -> None:
    # df = 3, 1, 2, 2 of 3 documents: the first word says nothing, the second ln 3, the others ln 1.5.
    a, b = np.log(3.0), np.log(1.5)
    np.testing.assert_allclose(idf_of(COUNTS), [0.0, a, b, b])
    first, third = np.array([2 * a, 0, 3 * b]), np.array([0, 2 * b, b])
    expected = first @ third / (np.linalg.norm(first) * np.linalg.norm(third))
    rows = tfidf_rows(COUNTS, idf_of(COUNTS))
    scores = VectorSpace().score_matrix(rows, rows)
    np.testing.assert_allclose(scores[0, 2], expected, rtol=1e-6)
    np.testing.assert_allclose(np.diag(scores), 1.0, rtol=1e-6)
    assert scores[0, 1] == 0.0  # they share the first word only


def test_B18_lengths_do_not_matter() -> None:
    # The course divides tf by the text's length; unit length takes that out.
    lengths = np.asarray(COUNTS.sum(axis=1)).ravel()
    shares = sp.diags(1 / lengths) @ COUNTS
    idf = idf_of(COUNTS)
    np.testing.assert_allclose(tfidf_rows(shares.tocsr(), idf).toarray(), tfidf_rows(COUNTS, idf).toarray(), rtol=1e-6)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # Document 0 is (1, 2, 0, 3), document 2 is (1, 0, 2, 1).
        ("presence", 2.0),
        ("occurrences", 1 * 1 + 3 * 1),
        ("share", (1 * 1 + 3 * 1) / (6 * 4)),
        ("share-idf", 3 * 1 * np.log(1.5) ** 2 / (6 * 4)),
    ],
)
def test_B18_the_weights_of_the_course_by_hand(weights: Weighting, expected: float) -> None:
    scorer = CourseWeights(weights, idf=idf_of(COUNTS))
    assert scorer.score_matrix(COUNTS, COUNTS)[0, 2] == pytest.approx(expected)
    assert scorer.score_pairs(COUNTS[[0]], COUNTS[[2]])[0] == pytest.approx(expected)


def test_B18_by_the_cosine_lengths_cancel() -> None:
    by_share, by_count = (CourseWeights(name, cosine=True) for name in ("share", "occurrences"))
    np.testing.assert_allclose(by_share.score_matrix(COUNTS, COUNTS), by_count.score_matrix(COUNTS, COUNTS), rtol=1e-6)
    # (1, 2, 0, 3).(1, 0, 2, 1) = 4, of lengths sqrt 14 and sqrt 6; presence: 2 of 3 words each.
    assert by_count.score_matrix(COUNTS, COUNTS)[0, 2] == pytest.approx(4 / np.sqrt(14 * 6))
    presence = CourseWeights("presence", cosine=True).score_matrix(COUNTS, COUNTS)
    assert presence[0, 2] == pytest.approx(2 / 3)
    rows = tfidf_rows(COUNTS, idf_of(COUNTS))
    weighted = CourseWeights("share-idf", cosine=True, idf=idf_of(COUNTS)).score_matrix(COUNTS, COUNTS)
    np.testing.assert_allclose(weighted, VectorSpace().score_matrix(rows, rows), rtol=1e-5)


def test_B18_an_empty_text_scores_0_and_unknown_weights_are_refused() -> None:
    empty = sp.csr_matrix(np.zeros((1, 4), np.float32))
    for cosine in (True, False):
        assert not CourseWeights("share", cosine).score_matrix(empty, COUNTS).any()
    with pytest.raises(ConfigError, match="choose one of presence, occurrences, share, share-idf"):
        CourseWeights("log")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs the idf"):
        CourseWeights("share-idf")


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_B18_postings_give_the_matrix_product(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries, documents = (
        sp.csr_matrix(rng.random((n, 15), dtype=np.float32) * (rng.random((n, 15)) < 0.3)) for n in (6, 8)
    )
    expected = np.asarray(queries.toarray(), np.float64) @ documents.toarray().T
    np.testing.assert_allclose(score_by_postings(queries, invert(documents)), expected, rtol=1e-6, atol=1e-7)
    pairs = VectorSpace().score_pairs(queries, documents[:6])
    np.testing.assert_allclose(pairs, np.diag(expected), rtol=1e-6, atol=1e-7)


def test_unknown_words_and_wrong_rows() -> None:
    counts = sp.csr_matrix(np.array([[1, 0], [0, 0]], np.float32))
    np.testing.assert_allclose(idf_of(counts), [np.log(2), 0.0])
    assert tfidf_rows(counts, idf_of(counts)).nnz == 1
    with pytest.raises(ShapeMismatch, match="one vocabulary"):
        VectorSpace().score_matrix(counts, COUNTS)
    with pytest.raises(ShapeMismatch, match="one vocabulary"):
        score_by_postings(counts, invert(COUNTS))
    with pytest.raises(ShapeMismatch, match="give one per word"):
        tfidf_rows(counts, np.ones(3))
    with pytest.raises(InputError, match="negative"):
        check_counts(-counts, "counts")
