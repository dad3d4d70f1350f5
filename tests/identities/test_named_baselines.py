"""Baselines that are models of another name, each after one step that is worked out by hand."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.word_pairs import Bilinear, DenseWordPairs, HashKernel
from papers.plain_sgd import PlainData, PlainShape, fit_plain

# One query of word 0, its document of words 1 and 2, another document of word 3: there is only one tuple to draw.
QUERY = sp.csr_matrix(np.array([[1, 0, 0, 0]], np.float32))
DOCUMENTS = sp.csr_matrix(np.array([[0, 0.6, 0.8, 0], [0, 0, 0, 1]], np.float32))
DATA = PlainData(QUERY, DOCUMENTS, sp.csr_matrix(np.array([[1.0, 0.0]])), np.array([-1]))
DELTA = np.array([0, 0.6, 0.8, -1])


def test_M01_the_identity_scores_common_words() -> None:
    # (0, .6, .8, 0) with itself gives 1, with (0, 0, .6, .8) .48; W = I spelled out gives the same.
    other = sp.csr_matrix(np.array([[0, 0, 0.6, 0.8]], np.float32))
    for scorer in (Bilinear.lexical(), DenseWordPairs(np.eye(4, dtype=np.float32))):
        assert scorer.score_matrix(DOCUMENTS[:1], DOCUMENTS[:1])[0, 0] == pytest.approx(1.0)
        assert scorer.score_matrix(DOCUMENTS[:1], other)[0, 0] == pytest.approx(0.48)
        assert scorer.score_matrix(QUERY, DOCUMENTS).tolist() == [[0.0, 0.0]]


def test_M07_leaves_common_words_to_the_embedding() -> None:
    U = np.array([[0, 0], [1, 0], [0, 1], [0, 0]], np.float32)
    V = np.array([[0, 0], [0, 2], [3, 0], [0, 0]], np.float32)
    # Uq = (.6, .8) and Vd = (2.4, 1.2): 1.44 + .96; with the identity 1 more, the cosine.
    row = DOCUMENTS[:1]
    assert Bilinear(U, V, identity=0.0).score_matrix(row, row)[0, 0] == pytest.approx(2.4)
    assert Bilinear(U, V, identity=1.0).score_matrix(row, row)[0, 0] == pytest.approx(3.4)


@pytest.mark.parametrize("n_steps", [1, 2])
def test_B05_the_margin_ranking_perceptron_steps_from_the_identity(n_steps: int) -> None:
    # Each step adds rate * q (d+ - d-)^T while 1 - f(q, d+) + f(q, d-) > 0; one step of .2 closes .4 of the 1.
    scorer = fit_plain("full", DATA, rate=0.2, n_steps=n_steps, rng=np.random.default_rng(0))
    assert isinstance(scorer, DenseWordPairs)
    expected = np.eye(4)
    expected[0] += n_steps * 0.2 * DELTA
    np.testing.assert_allclose(scorer.W, expected, rtol=1e-6)


def test_B05_it_stops_at_the_margin() -> None:
    # q (d+ - d-)^T changes the difference of the scores by rate * |delta|^2 = .4 a step: the hinge is shut after three.
    scorer = fit_plain("full", DATA, rate=0.2, n_steps=50, rng=np.random.default_rng(0))
    scores = scorer.score_matrix(QUERY, DOCUMENTS)[0]
    assert scores[0] - scores[1] == pytest.approx(1.2, rel=1e-5)


def test_B06_hash_kernels_step_in_shared_weights() -> None:
    # h(0, t) = t mod 3: words 0 and 3 of the document side share weight 0.
    shape = PlainShape("hash", n_slots=3)
    scorer = fit_plain(shape, DATA, rate=0.2, n_steps=1, rng=np.random.default_rng(0))
    assert isinstance(scorer, HashKernel)
    np.testing.assert_allclose(scorer.w, [-0.2, 0.12, 0.16], rtol=1e-6)
    np.testing.assert_allclose(scorer.score_matrix(QUERY, DOCUMENTS), [[0.6 * 0.12 + 0.8 * 0.16, -0.2]], rtol=1e-5)
