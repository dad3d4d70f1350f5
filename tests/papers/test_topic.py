from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.topics import Similarity, TopicModel, fold_in
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.scorers import Scorer
from tests.papers.study_rows import random_counts
from tests.seeds import seeded_rng

PURE = np.eye(2)
PHI = np.array([[0.75, 0.25], [0.25, 0.75]])


def rows(*values: list[float]) -> sp.csr_matrix:
    return sp.csr_matrix(np.array(values, np.float32))


@pytest.mark.parametrize(
    ("similarity", "half"),
    # Of (1, 0) and (1/2, 1/2): cosine 1 / sqrt 2; JSD = H(3/4, 1/4) - ln 2 / 2 = 0.21576 of ln 2 = 0.69315.
    [("cosine", 0.70711), ("jensen_shannon", 0.68872)],
)
def test_likeness_of_known_mixtures(similarity: Similarity, half: float) -> None:
    scorer = TopicModel(PURE, PURE, similarity)
    assert isinstance(scorer, Scorer)
    texts = rows([2, 0], [0, 5], [3, 3], [0, 0])
    scores = scorer.score_matrix(texts, texts)
    expected = np.array([[1, 0, half, 0], [0, 1, half, 0], [half, half, 1, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    np.testing.assert_allclose(scorer.score_pairs(texts, texts[[2, 1, 0, 3]]), [half, 1, half, 0], atol=1e-5)


def test_one_step_of_folding_in_by_hand() -> None:
    # r(w0) = (.75, .25), r(w1) = (.25, .75): tokens (3 * .75 + .25, 3 * .25 + .75) = (2.5, 1.5), plus a - 1.
    np.testing.assert_allclose(fold_in(rows([3, 1]), PHI, 1.0, 1), [[0.625, 0.375]], rtol=1e-6)
    np.testing.assert_allclose(fold_in(rows([3, 1]), PHI, 1.5, 1), [[0.6, 0.4]], rtol=1e-6)


def test_a_word_that_no_topic_has_changes_nothing() -> None:
    phi = np.array([[0.75, 0.25, 0.0], [0.25, 0.75, 0.0]])
    np.testing.assert_allclose(fold_in(rows([3, 1, 9], [0, 0, 9]), phi, 1.5, 1), [[0.6, 0.4], [0.0, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("similarity", ["cosine", "jensen_shannon"])
def test_blocks_change_nothing(similarity: Similarity, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeded_rng()
    q, d = random_counts(rng, 7, 6), random_counts(rng, 5, 8)
    scorer = TopicModel(rng.dirichlet(np.ones(6), 3), rng.dirichlet(np.ones(8), 3), similarity, 1.1)
    whole = scorer.score_matrix(q, d)
    monkeypatch.setattr("papers.methods.topics._CELLS", 16)
    np.testing.assert_allclose(scorer.score_matrix(q, d), whole, atol=1e-6)
    np.testing.assert_allclose(scorer.score_pairs(q[:5], d), np.diag(whole), atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="cosine, jensen_shannon"):
        TopicModel(PURE, PURE, "euclid")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 1"):
        TopicModel(PURE, PURE, topic_prior=0.5)
    with pytest.raises(ShapeMismatch, match="share their topics"):
        TopicModel(PURE, np.eye(3))
    with pytest.raises(InputError, match="sum to 1"):
        TopicModel(PURE, PURE * 2)
    with pytest.raises(InputError, match="negative"):
        TopicModel(PURE, PURE).embed_queries(rows([1, -1]))
    with pytest.raises(ShapeMismatch, match="3 words"):
        TopicModel(PURE, PURE).embed_queries(rows([1, 1, 1]))
    with pytest.raises(ShapeMismatch, match="not pairs"):
        TopicModel(PURE, PURE).score_pairs(rows([1, 1]), rows([1, 1], [1, 0]))
