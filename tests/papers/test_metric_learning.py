# ruff: noqa: N802 - tests carry the ids of the papers' checklist

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.projection import Projection
from papers.methods.projections import HdlrSettings, fit_hdlr, learn_metric
from reranker.errors import ConfigError, InputError, ShapeMismatch
from tests.seeds import seeded_rng

EYE = np.eye(2, dtype=np.float32)
START = Projection(EYE, EYE)


def test_B14_one_similar_and_one_dissimilar_pair_by_hand() -> None:
    # Similar, z = (2, 0), p = 4 above the bound 1: al = min(0, 1/2 (1/4 - 1)) = -3/8, be = -3/8 / (1 + 3/2) = -.15,
    # M_00 = 1 - .15 * 4 = .4: the distance falls to 1.6, where the slackened bound xi = 1 / (1 - 3/8) meets it.
    shrunk = learn_metric(np.array([[2.0, 0.0]]), np.array([True]), np.array([1.0]), 1.0, 1, seeded_rng())
    np.testing.assert_allclose(shrunk, [[0.4, 0.0], [0.0, 1.0]], rtol=1e-12)
    # Dissimilar, z = (1, 0), p = 1 below the bound 4: al = -1/2 (1 - 1/4) = -3/8, be = 3/8 / (1 - 3/8) = .6.
    stretched = learn_metric(np.array([[1.0, 0.0]]), np.array([False]), np.array([4.0]), 1.0, 1, seeded_rng())
    np.testing.assert_allclose(stretched, [[1.6, 0.0], [0.0, 1.0]], rtol=1e-12)


def test_B14_pairs_within_their_bounds_leave_the_metric_alone() -> None:
    differences = np.array([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    metric = learn_metric(differences, np.array([True, False, False]), np.array([2.0, 4, 4]), 1.0, 3, seeded_rng())
    np.testing.assert_array_equal(metric, np.eye(2))


def test_B14_learns_which_dimension_tells_texts_apart() -> None:
    rng = seeded_rng()
    # The first word says what a text is about, the second is noise.
    about = rng.integers(0, 2, 60).astype(np.float32)
    x = sp.csr_matrix(np.stack([about, rng.random(60).astype(np.float32) * 2], axis=1))
    other = rng.permutation(60)
    learned = fit_hdlr(START, x, x[other], about == about[other], HdlrSettings(upper=0.3, lower=1.5), rng=rng)
    metric = learned.A.astype(np.float64) @ learned.A.T
    assert learned.is_tied
    assert metric[0, 0] > 1.2 and metric[1, 1] < 0.6
    assert np.linalg.eigvalsh(metric).min() > 0


def test_two_matrices_keep_their_own() -> None:
    x = sp.csr_matrix(np.array([[1, 0], [0, 1]], np.float32))
    y = sp.csr_matrix(np.array([[0.0, 2, 0], [2, 0, 0]], np.float32))
    start = Projection(EYE, np.array([[0, 1], [1, 0], [1, 1]], np.float32))
    learned = fit_hdlr(start, x, y, np.array([True, False]), rng=seeded_rng())
    assert learned.A.shape == (2, 2) and learned.B.shape == (3, 2)
    # Both sides were multiplied by the same factor.
    np.testing.assert_allclose(learned.B, start.B @ learned.A, rtol=1e-6)


def test_what_cannot_be_learned_is_refused() -> None:
    x = sp.csr_matrix(EYE)
    similar = np.array([True, False])
    rng = seeded_rng()
    with pytest.raises(InputError, match="no pair has a distance"):
        fit_hdlr(START, x, x, similar, rng=rng)
    with pytest.raises(ShapeMismatch, match="labels are not pairs"):
        fit_hdlr(START, x, x[:1], similar, rng=rng)
    with pytest.raises(ConfigError, match="sigmoid"):
        fit_hdlr(Projection(START.A, START.B, "sigmoid"), x, x[::-1], similar, rng=rng)
    with pytest.raises(ConfigError, match="above 0"):
        fit_hdlr(START, x, x[::-1], similar, HdlrSettings(slack=0.0), rng=rng)
