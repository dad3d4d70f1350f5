"""Rows of the same words with two weights each: their union, and queries cut to some of their words."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.training.problem import TwoRows, cut_to_keywords, two_rows
from tests.seeds import seeded_rng

N_ROWS, N_WORDS = 200, 40


def sparse(values: np.ndarray) -> sp.csr_matrix:
    return sp.csr_matrix(values.astype(np.float32))


def dense(rows: sp.csr_matrix) -> np.ndarray:
    """Return the columns that these tests have words for."""
    return np.asarray(rows[:, :N_WORDS].toarray())


def random_rows(seed: int, share: float = 0.6) -> np.ndarray:
    rng = seeded_rng(seed)
    return np.where(rng.random((N_ROWS, N_WORDS)) < share, rng.random((N_ROWS, N_WORDS)) + 0.1, 0)


@pytest.fixture
def both() -> TwoRows:
    """Rows whose squares are those of other values than the lexical ones, as BM25's are."""
    lexical = sparse(random_rows(2))
    return two_rows(sparse(random_rows(1)), lexical, (3 * lexical.data**2).astype(np.float32))


def test_both_rows_stand_over_the_words_of_either() -> None:
    learned = np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 0], [0, 0, 0, 0]])
    lexical = np.array([[0, 4, 5, 0], [0, 0, 0, 6], [0, 0, 0, 0], [0, 0, 0, 0]])
    rows = two_rows(sparse(learned), sparse(lexical))
    for part, expected in zip(rows, (learned, lexical, lexical**2), strict=True):
        np.testing.assert_array_equal(part[:, :4].toarray(), expected)
        assert part.dtype == np.float32
        assert part.indptr.tolist() == [0, 3, 4, 5, 5]
        assert part.indices.tolist() == [0, 1, 2, 3, 1]


def test_squares_stand_beside_the_lexical_values(both: TwoRows) -> None:
    np.testing.assert_allclose(dense(both.squares), 3 * dense(both.lexical) ** 2, rtol=1e-6)
    some = both.part(np.array([7, 3]))
    for part, whole in zip(some, both, strict=True):
        np.testing.assert_array_equal(dense(part), dense(whole)[[7, 3]])


def test_one_row_is_both() -> None:
    rows = two_rows(sparse(random_rows(3)), None)
    assert rows.lexical is rows.learned
    np.testing.assert_allclose(dense(rows.squares), dense(rows.learned) ** 2)


@pytest.mark.parametrize("n_words", [1, 4, 99])
def test_queries_of_some_words_are_divided_by_the_length_of_each_part(both: TwoRows, n_words: int) -> None:
    cut = cut_to_keywords(both, n_words, seeded_rng())
    lengths = np.diff(both.learned.indptr)
    for row in range(N_ROWS):
        words = cut.learned[row].indices
        assert len(words) == min(n_words, lengths[row])
        assert set(words) <= set(both.learned[row].indices)
        learned, lexical, squares = (dense(part)[row, words] for part in both)
        np.testing.assert_allclose(dense(cut.learned)[row, words], _divided(learned, learned**2), rtol=1e-5)
        np.testing.assert_allclose(dense(cut.lexical)[row, words], _divided(lexical, squares), rtol=1e-5)
        total = squares.sum()
        np.testing.assert_allclose(dense(cut.squares)[row, words], squares / (total or 1.0), rtol=1e-5)


def _divided(values: np.ndarray, squares: np.ndarray) -> np.ndarray:
    return np.asarray(values / (np.sqrt(squares.sum()) or 1.0))


def test_both_parts_are_of_unit_length_where_the_squares_are_their_own() -> None:
    cut = cut_to_keywords(two_rows(sparse(random_rows(1)), sparse(random_rows(2))), 5, seeded_rng())
    for part in (cut.learned, cut.lexical):
        length = np.linalg.norm(dense(part), axis=1)
        np.testing.assert_allclose(length[length > 0], 1, rtol=1e-5)
        assert (length > 0).mean() > 0.9
    again = cut_to_keywords(cut, 5, seeded_rng(1))
    for part, expected in zip(again, cut, strict=True):
        np.testing.assert_allclose(dense(part), dense(expected), rtol=1e-5)
