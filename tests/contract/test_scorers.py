"""What every scorer must do. A new one is one more line in ``SCORERS``."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.word_pairs import Bilinear, HashKernel, Mix, Polynomial, SeparateCubic
from reranker.arrays import N_TERM_IDS
from reranker.models.scorers import LinearScorer, Scorer
from tests.seeds import seeded_rng

HASHED = 2**30


def table(n_words: int, n_dims: int = 7, offset: int = 0) -> np.ndarray:
    return seeded_rng(offset).normal(size=(n_words, n_dims)).astype(np.float32)


U, V = table(60), table(60, offset=1)
SCORERS: dict[str, Scorer] = {
    "M01 lexical": Bilinear.lexical(),
    "M05 tied": Bilinear(U, U),
    "M06 U'V + I": Bilinear(U, V),
    "M07 U'V": Bilinear(U, V, identity=0.0),
    "M08 restricted": Bilinear(U, V).restricted(20),
    "scaled identity": Bilinear(U, V, identity=10.0),
    "M09 hash kernel": HashKernel(table(97, 1, offset=2).ravel(), prime=61),
    "M10 hash kernel + I": HashKernel(table(97, 1, offset=2).ravel(), prime=61, identity=1.0),
    "M10 mixture": Mix((HashKernel(table(97, 1, offset=2).ravel(), prime=61), Bilinear.lexical()), (0.3, 0.7)),
    "M18 cubic": Polynomial(U, (V, table(60, offset=3))),
    "M19 separate cubic": SeparateCubic(U, V, table(60, offset=3), V, U),
    "the product's": LinearScorer(U, V, 0.7),
    "M20 degree 4": Polynomial(U, (V, table(60, offset=3), U)),
}


@pytest.fixture(params=list(SCORERS.values()), ids=list(SCORERS))
def scorer(request: pytest.FixtureRequest) -> Scorer:
    assert isinstance(request.param, Scorer)
    return request.param


def rows(n: int, offset: int) -> sp.csr_matrix:
    """Return n rows over known words, words past the vocabulary and hashed words; row 0 is empty."""
    rng = seeded_rng(offset)
    ids = [np.unique(np.append(rng.integers(0, 90, 15), HASHED + rng.integers(0, 4, 2))) for _ in range(n)]
    ids[0] = ids[0][:0]
    indptr = np.concatenate(([0], np.cumsum([len(one) for one in ids])))
    weights = rng.random(indptr[-1]).astype(np.float32)
    return sp.csr_matrix((weights, np.concatenate(ids).astype(np.int32), indptr), shape=(n, N_TERM_IDS))


Q, D = rows(6, 10), rows(9, 11)


def test_shapes_and_types(scorer: Scorer) -> None:
    assert scorer.score_matrix(Q, D).shape == (6, 9)
    assert scorer.score_pairs(Q, D[:6]).shape == (6,)
    assert scorer.score_matrix(Q, D).dtype == scorer.score_pairs(Q, D[:6]).dtype == np.float32
    assert scorer.score_matrix(Q[:0], D).shape == (0, 9)
    assert scorer.score_matrix(Q, D[:0]).shape == (6, 0)


def test_row_i_belongs_to_query_i_and_pairs_are_the_diagonal(scorer: Scorer) -> None:
    scores = scorer.score_matrix(Q, D)
    for i in range(6):
        for j in range(9):
            assert scorer.score_pairs(Q[i], D[j])[0] == pytest.approx(scores[i, j], rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(scorer.score_pairs(Q, D[3:9]), np.diag(scores[:, 3:9]), rtol=1e-5, atol=1e-5)


def test_order_of_documents_does_not_matter(scorer: Scorer) -> None:
    order = seeded_rng().permutation(9)
    np.testing.assert_allclose(
        scorer.score_matrix(Q, D[order]), scorer.score_matrix(Q, D)[:, order], rtol=1e-5, atol=1e-5
    )


def test_scores_are_linear_in_the_query(scorer: Scorer) -> None:
    np.testing.assert_allclose(scorer.score_matrix(2 * Q, D), 2 * scorer.score_matrix(Q, D), rtol=1e-5, atol=1e-5)


def test_empty_query_and_empty_document_score_zero(scorer: Scorer) -> None:
    scores = scorer.score_matrix(Q, D)
    assert not scores[0].any()
    assert not scores[:, 0].any()


def test_inputs_are_left_alone_and_repeats_give_the_same_bits(scorer: Scorer) -> None:
    before = Q.data.copy(), D.data.copy(), Q.indices.copy(), D.indices.copy()
    first, second = scorer.score_matrix(Q, D), scorer.score_matrix(Q, D)
    np.testing.assert_array_equal(first, second)
    for old, new in zip(before, (Q.data, D.data, Q.indices, D.indices), strict=True):
        np.testing.assert_array_equal(old, new)
