"""What the bilinear model refuses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.word_pairs import Bilinear
from reranker.arrays import N_TERM_IDS
from reranker.errors import InputError, ShapeMismatch
from reranker.models.scorers import LinearScorer, pair_weights
from reranker.text.rows import inner_products
from tests.seeds import seeded_rng

GOOD = np.ones((3, 2), np.float32)


def no_words(n_rows: int, n_columns: int) -> sp.csr_matrix:
    return sp.csr_matrix(
        (np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(n_rows + 1, np.int32)), shape=(n_rows, n_columns)
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["U", "V"])
def test_values_that_are_not_finite_are_refused_with_their_word(side: str, value: float) -> None:
    bad = np.ones((20_000, 2), np.float32)
    bad[17_000, 1] = value
    with pytest.raises(InputError, match=f"{side} holds NaN or infinity in the row of word 17000"):
        Bilinear(bad, GOOD) if side == "U" else Bilinear(GOOD, bad)


@pytest.mark.parametrize("bad", [np.ones((3, 2)), np.ones(3, np.float32), np.ones((2, 3), np.float32).T])
def test_other_arrays_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(ShapeMismatch, match="C-contiguous float32"):
        Bilinear(bad, GOOD)


def test_dimensions_must_agree() -> None:
    with pytest.raises(ShapeMismatch, match="U has 2 dimensions and V 4"):
        Bilinear(GOOD, np.ones((3, 4), np.float32))
    empty = no_words(2, N_TERM_IDS)
    for shape in ((2, 3), (3, 2), (2,)):
        with pytest.raises(ShapeMismatch, match="encode the documents with this model"):
            Bilinear(GOOD, GOOD).score_matrix(empty, empty, np.ones(shape, np.float32))


@pytest.mark.parametrize("identity", [-1.0, np.nan, np.inf])
def test_identity_must_be_a_weight(identity: float) -> None:
    with pytest.raises(InputError, match="identity weight"):
        Bilinear(GOOD, GOOD, identity)


def test_restriction_to_less_than_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="restriction to -1 words"):
        Bilinear(GOOD, GOOD).restricted(-1)


def test_rows_of_other_widths_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="5 and 6 columns"):
        inner_products(no_words(1, 5), no_words(1, 6))


def test_the_learned_part_is_a_sum_over_pairs_of_words() -> None:
    rng = seeded_rng(3)
    U, V = (rng.normal(scale=0.5, size=(40, 6)).astype(np.float32) for _ in range(2))
    scorer = LinearScorer(U, V, identity=0.0)
    dense = rng.random((12, 50)) * (rng.random((12, 50)) < 0.2)  # words from 40 on have no learned row
    rows = sp.csr_matrix(dense.astype(np.float32))
    for number in range(6):
        q, d = rows[number], rows[6 + number]
        weights = pair_weights(U, V, q.indices, d.indices)
        assert weights.shape == (q.nnz, d.nnz)
        total = q.data.astype(float) @ weights @ d.data.astype(float)
        assert total == pytest.approx(float(scorer.score_pairs(q, d)[0]), abs=1e-5)
