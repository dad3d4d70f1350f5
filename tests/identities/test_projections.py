"""Algebra of the projections: what they must be equal to whatever the rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.methods.projection import Projection
from papers.methods.projections import Mates, fit_lsa, random_start
from papers.methods.s2net import S2NetObjective, S2NetSettings
from papers.methods.word_pairs import Bilinear
from tests.papers.study_rows import random_rows

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=20)
@given(SEEDS)
def test_projection_on_all_words_is_tfidf(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, d = random_rows(rng, 4, 12), random_rows(rng, 6, 12)
    eye = np.eye(12, dtype=np.float32)
    np.testing.assert_allclose(
        Projection(eye, eye).score_matrix(q, d), Bilinear.lexical().score_matrix(q, d), atol=1e-6
    )


@settings(max_examples=20)
@given(SEEDS)
def test_lsa_of_full_rank_is_tfidf(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, 40, 6, density=0.6)
    np.testing.assert_allclose(
        fit_lsa(rows, 6, rng=rng).score_matrix(rows, rows), Bilinear.lexical().score_matrix(rows, rows), atol=1e-4
    )


@settings(max_examples=20)
@given(SEEDS)
def test_s2net_does_not_depend_on_the_scale_of_its_matrices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = Mates(random_rows(rng, 6, 9), random_rows(rng, 6, 7))
    objective = S2NetObjective(data, random_start((9, 7), 3, rng=rng), S2NetSettings(dtype="float64"))
    loss, gradient = objective(objective.start)
    larger, smaller_gradient = objective(3.0 * objective.start)
    np.testing.assert_allclose(larger, loss, rtol=1e-10)
    np.testing.assert_allclose(3.0 * smaller_gradient, gradient, rtol=1e-7, atol=1e-12)
    # A cosine is constant along each row of X, so the gradient is orthogonal to the matrices.
    assert abs(float(gradient @ objective.start)) < 1e-10
