"""Likelihoods of translations, both ways, against the formula written out."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.translation import fit_ibm_table, fit_translated_likelihood
from reranker.errors import ConfigError

Q = sp.csr_matrix(np.array([[1, 1, 0, 0], [1, 0, 2, 0], [0, 0, 1, 1]], np.float32))
D = sp.csr_matrix(np.array([[1, 1, 0], [1, 0, 1], [0, 1, 2]], np.float32))


def one_way(
    source: sp.csr_matrix, target: sp.csr_matrix, lam: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    translated = np.asarray(source.toarray(), np.float64) @ fit_ibm_table(source, target, 40, 5).probabilities.toarray()
    counts = np.asarray(target.toarray(), np.float64)
    chance = counts.sum(axis=0) / counts.sum()
    p = (1 - lam) * counts / counts.sum(axis=1, keepdims=True) + lam * chance
    scores: np.ndarray[tuple[int, int], np.dtype[np.float64]] = (
        translated @ np.log(p / chance).T / translated.sum(axis=1, keepdims=True)
    )
    return scores


def test_B15b_B19_both_ways_by_the_formula() -> None:
    scorer = fit_translated_likelihood(Q, D, lam=0.3)
    expected = (one_way(Q, D, 0.3) + one_way(D, Q, 0.3).T) / 2
    np.testing.assert_allclose(scorer.score_matrix(Q, D), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scorer.score_pairs(Q, D), np.diag(expected), rtol=1e-5, atol=1e-6)
    assert scorer.score_matrix(Q, D).argmax(axis=1).tolist() == [0, 1, 2]


def test_no_smoothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        fit_translated_likelihood(Q, D, lam=0.0)
