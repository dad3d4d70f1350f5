from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.projection import Projection
from papers.methods.word_pairs import Bilinear
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.scorers import Scorer, unit
from tests.papers.study_rows import random_rows
from tests.seeds import seeded_rng

A = np.array([[1, 0], [0, 1]], np.float32)
B = np.array([[3, 0], [4, 0], [0, 2]], np.float32)


def rows(*values: list[float]) -> sp.csr_matrix:
    return sp.csr_matrix(np.array(values, np.float32))


def test_the_cosine_of_two_languages_by_hand() -> None:
    scorer = Projection(A, B)
    assert isinstance(scorer, Scorer)
    # g(q) = (1, 1) / sqrt 2; h(d) = (3, 4) -> x: 7 e1 = e1, and (0, 0, 1) -> e2, and (1, 0, 1.5) -> (3, 3).
    scores = scorer.score_matrix(rows([1, 1], [1, 0]), rows([1, 1, 0], [0, 0, 1], [1, 0, 1.5]))
    np.testing.assert_allclose(scores, [[0.5**0.5, 0.5**0.5, 1.0], [1.0, 0.0, 0.5**0.5]], rtol=1e-6)
    np.testing.assert_allclose(scorer.score_pairs(rows([1, 1], [1, 0]), rows([0, 0, 1], [0, 0, 1])), [0.5**0.5, 0])
    assert scores.dtype == np.float32


def test_the_sigmoid_by_hand_and_a_text_without_known_words_scores_zero() -> None:
    scorer = Projection(A, B, "sigmoid")
    half = 1 / (1 + np.exp(-3.0))
    g, h = np.array([1 / (1 + np.exp(-1.0)), 0.5]), np.array([half, 0.5])
    expected = g @ h / np.linalg.norm(g) / np.linalg.norm(h)
    scores = scorer.score_matrix(rows([1, 0], [0, 0]), rows([1, 0, 0], [0, 0, 0]))
    np.testing.assert_allclose(scores, [[expected, 0], [0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(Projection(A, B).score_matrix(rows([0, 0]), rows([1, 1, 1])), [[0]])


def test_unit_vectors_serve_through_the_bilinear_routes() -> None:
    rng = seeded_rng()
    left, right = rng.normal(size=(2, 9, 4)).astype(np.float32)
    scorer = Projection(left, right)
    q, d = random_rows(rng, 5, 9), random_rows(rng, 7, 9)
    identity = np.eye(4, dtype=np.float32)
    dense = Bilinear(identity, identity, identity=0.0)
    vectors = sp.csr_matrix(scorer.embed_queries(q)), sp.csr_matrix(scorer.embed_documents(d))
    np.testing.assert_allclose(dense.score_matrix(*vectors), scorer.score_matrix(q, d), atol=1e-6)


def test_the_first_columns_alone() -> None:
    rng = seeded_rng()
    tied = Projection(*(rng.normal(size=(9, 4)).astype(np.float32),) * 2)
    assert tied.is_tied and tied.first(2).is_tied
    q = random_rows(rng, 5, 9)
    vectors = unit(np.asarray(q @ tied.A[:, :2]))
    np.testing.assert_allclose(tied.first(2).score_matrix(q, q), vectors @ vectors.T, atol=1e-6)
    with pytest.raises(ConfigError, match="ask for 1 to 4"):
        tied.first(5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="same space"):
        Projection(A, np.zeros((3, 5), np.float32))
    with pytest.raises(InputError, match="word 1"):
        Projection(np.array([[1, 1], [np.nan, 1]], np.float32), A)
    with pytest.raises(ConfigError, match="linear, sigmoid"):
        Projection(A, A, "tanh")  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="cannot be paired"):
        Projection(A, A).score_pairs(rows([1, 1]), rows([1, 1], [1, 0]))
