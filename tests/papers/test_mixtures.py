"""Mixtures: the ends of alpha, views of a query side by side."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp

from papers.fitting import best_of
from papers.methods.inverted_file import VectorSpace
from papers.methods.lexical import OnView, mixture
from papers.methods.word_pairs import Mix, join_columns
from reranker.arrays import Float32
from reranker.errors import ConfigError, ShapeMismatch
from reranker.lexical.tuning import TENTHS
from reranker.models.scorers import Scorer


@dataclass(frozen=True)
class Dense:
    """q^T W d."""

    W: Float32

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        return np.asarray(q_rows @ self.W @ d_rows.T.toarray(), dtype=np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        return np.asarray(np.diag(self.score_matrix(q_rows, d_rows)), dtype=np.float32)


DOCUMENTS = sp.csr_matrix(np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32))
ENGLISH = sp.csr_matrix(np.array([[1, 0], [0, 1], [0, 0]], np.float32))
JAPANESE = sp.csr_matrix(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32))
TABLE = Dense(np.array([[0, 10], [20, 0], [5, 5]], np.float32))
BOTH = join_columns(JAPANESE, ENGLISH)


def test_B04_mixes_two_cosines_by_alpha() -> None:
    lsi = Dense(np.array([[1, 0.5], [0.5, 1]], np.float32))
    f, g = lsi.score_matrix(ENGLISH, DOCUMENTS), VectorSpace().score_matrix(ENGLISH, DOCUMENTS)
    for alpha in (0.0, 0.3, 1.0):
        mixed = mixture(lsi, VectorSpace(), alpha)
        np.testing.assert_allclose(mixed.score_matrix(ENGLISH, DOCUMENTS), alpha * f + (1 - alpha) * g, rtol=1e-6)
        np.testing.assert_allclose(
            mixed.score_pairs(ENGLISH, DOCUMENTS), np.diag(alpha * f + (1 - alpha) * g), rtol=1e-6
        )


def test_B16a_mixes_the_cosines_of_two_languages() -> None:
    check_mixture(VectorSpace())


def test_B16c_mixes_two_learned_scorers() -> None:
    check_mixture(Dense(np.array([[3, 1], [0, 2]], np.float32)))


def check_mixture(second: Scorer) -> None:
    """Compare the mixture with its formula, written out."""
    mixed = mixture(OnView(TABLE, 0, 3), OnView(second, 3, 5), 0.25)
    expected = 0.25 * TABLE.score_matrix(JAPANESE, DOCUMENTS) + 0.75 * second.score_matrix(ENGLISH, DOCUMENTS)
    np.testing.assert_allclose(mixed.score_matrix(BOTH, DOCUMENTS), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mixed.score_pairs(BOTH, DOCUMENTS), np.diag(expected), rtol=1e-5, atol=1e-6)


def test_a_scorer_of_the_weight_0_is_left_out_whatever_it_scores() -> None:
    infinite = Dense(np.full((2, 2), -np.inf, np.float32))
    mixed = mixture(infinite, VectorSpace(), 0.0)
    alone = VectorSpace().score_matrix(ENGLISH, DOCUMENTS)
    np.testing.assert_array_equal(mixed.score_matrix(ENGLISH, DOCUMENTS), alone)
    np.testing.assert_array_equal(mixed.score_pairs(ENGLISH, DOCUMENTS), np.diag(alone))


def test_B04_B16_alpha_is_chosen_on_validation() -> None:
    # The first scorer puts document 1 first for query 0, the second document 0; the judge wants document 0.
    def loss(scorer: Mix) -> float:
        return float(scorer.score_matrix(BOTH, DOCUMENTS)[0].argmax() != 0)

    parts = OnView(TABLE, 0, 3), OnView(VectorSpace(), 3, 5)
    assert best_of(TENTHS, lambda alpha: mixture(*parts, alpha), loss)[0] == 0.0
    assert loss(mixture(*parts, 1.0)) == 1.0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        mixture(TABLE, TABLE, 1.1)
    with pytest.raises(ConfigError, match="are not a range"):
        OnView(TABLE, 3, 3)
    with pytest.raises(ShapeMismatch, match="columns 3 to 5"):
        OnView(TABLE, 3, 6).score_matrix(BOTH, DOCUMENTS)
