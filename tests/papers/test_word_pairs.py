# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""Word-pair scorers and polynomials: known answers, equality with dense formulas, and what they refuse."""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from papers.methods.word_pairs import (
    Bilinear,
    DenseWordPairs,
    Diagonal,
    FullPolynomial,
    HashKernel,
    Polynomial,
    QueryPolynomial,
    SeparateCubic,
)
from reranker.errors import InputError, ShapeMismatch
from reranker.models.scorers import Scorer
from tests.seeds import seeded_rng

N_WORDS = 9
Floats = npt.NDArray[np.float32]


def table(offset: int, *shape: int) -> Floats:
    return seeded_rng(offset).normal(size=shape).astype(np.float32)


def random_rows(offset: int, n: int) -> sp.csr_matrix:
    rng = seeded_rng(offset)
    return sp.csr_matrix((rng.random((n, N_WORDS)) * (rng.random((n, N_WORDS)) < 0.5)).astype(np.float32))


Q, D = random_rows(0, 5), random_rows(1, 8)
U, V, Y, U2, V2 = (table(offset, N_WORDS, 3) for offset in range(10, 15))
# W2 = U V^T + I and W3_ijk = sum_l U_il V_jl Y_kl: the weights of a shared cubic.
ORACLE = FullPolynomial(
    (U @ V.T + np.eye(len(U), len(V), dtype=np.float32)).astype(np.float32),
    np.einsum("il,jl,kl->ijk", U, V, Y).astype(np.float32),
)
SCORERS: dict[str, Scorer] = {
    "M02": Diagonal(table(2, N_WORDS)),
    "M03": DenseWordPairs(table(3, N_WORDS, N_WORDS)),
    "M09": HashKernel(table(4, 17), 11),
    "M10": HashKernel(table(4, 17), 11, identity=0.5),
    "M17": ORACLE,
    "M18": Polynomial(U, (V, Y)),
    "M19": SeparateCubic(U, V, Y, U2, V2),
    "M20": Polynomial(U, (V, Y, V2), 0.0),
}


def by_hand(row: list[float]) -> sp.csr_matrix:
    return sp.csr_matrix(np.array([row], np.float32))


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_pairs_are_the_diagonal_and_empty_texts_score_zero(scorer: Scorer) -> None:
    assert isinstance(scorer, Scorer)
    scores = scorer.score_matrix(Q, D)
    assert scores.shape == (5, 8)
    assert scores.dtype == scorer.score_pairs(Q, D[:5]).dtype == np.float32
    np.testing.assert_allclose(scorer.score_pairs(Q, D[2:7]), np.diag(scores[:, 2:7]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scorer.score_matrix(2 * Q, D), 2 * scores, rtol=1e-4, atol=1e-5)
    nothing = sp.csr_matrix(np.zeros((1, N_WORDS), np.float32))
    assert not scorer.score_matrix(nothing, D).any()
    assert not scorer.score_matrix(Q, nothing).any()
    assert scorer.score_matrix(Q[:0], D).shape == (0, 8)
    with pytest.raises(InputError):
        scorer.score_pairs(Q, D)


def test_M02_by_hand_and_weights_of_one_are_tf_idf() -> None:
    scorer = Diagonal(np.array([2, -1, 5], np.float32))
    assert scorer.score_matrix(by_hand([1, 2, 0]), by_hand([3, 1, 1])).tolist() == [[4]]
    ones = Diagonal(np.ones(N_WORDS, np.float32))
    np.testing.assert_array_equal(ones.score_matrix(Q, D), Bilinear.lexical().score_matrix(Q, D))


def test_M03_by_hand_and_from_the_identity_tf_idf() -> None:
    scorer = DenseWordPairs(np.array([[1, 2, 0], [0, 0, 3]], np.float32))
    assert scorer.score_matrix(by_hand([1, 2]), by_hand([1, 1, 1])).tolist() == [[9]]
    start = DenseWordPairs(np.eye(N_WORDS, dtype=np.float32))
    np.testing.assert_allclose(start.score_matrix(Q, D), Bilinear.lexical().score_matrix(Q, D), rtol=1e-5, atol=1e-6)


def test_M04_without_diagonal_scores_no_shared_word() -> None:
    W = table(5, N_WORDS, N_WORDS)
    np.fill_diagonal(W, 0)
    one = by_hand([0, 0, 1, 0, 0, 0, 0, 0, 0])
    assert DenseWordPairs(W).score_matrix(one, one).tolist() == [[0]]


def test_M09_by_hand() -> None:
    scorer = HashKernel(np.arange(10, dtype=np.float32), 7)  # h(1, 2) = 9, h(1, 0) = 7
    assert scorer.score_matrix(by_hand([0, 2, 0]), by_hand([1, 0, 3])).tolist() == [[2 * (7 * 1 + 9 * 3)]]
    assert scorer.score_pairs(by_hand([0, 2, 0]), by_hand([1, 0, 3])).tolist() == [68]


def test_M09_takes_two_vocabularies() -> None:
    scorer = HashKernel(np.arange(10, dtype=np.float32), 7)
    assert scorer.score_matrix(by_hand([0, 2, 0]), by_hand([1, 0, 0, 0, 1])).tolist() == [[2 * (7 + 1)]]


def test_M18_by_hand() -> None:
    u, v, y = (np.array(rows, np.float32) for rows in ([[1], [0]], [[0], [2]], [[3], [1]]))
    scorer = Polynomial(u, (v, y))
    # q = (2, 1), d = (1, 1): Uq = 2, Vd = 2, Yd = 4; 2 * 2 * (1 + 4) + q.d
    assert scorer.score_matrix(by_hand([2, 1]), by_hand([1, 1])).tolist() == [[23]]
    separate = SeparateCubic(u, v, y, u, v)
    assert separate.score_matrix(by_hand([2, 1]), by_hand([1, 1])).tolist() == [[23]]


def test_M18_pairs_of_query_words_by_hand() -> None:
    u, v, y = (np.array(rows, np.float32) for rows in ([[1], [0]], [[0], [2]], [[3], [1]]))
    scorer = QueryPolynomial((u, y), v)
    # q = (2, 1), d = (1, 1): Uq = 2, Yq = 7, Vd = 2; 2 (1 + 7) 2 + q.d. Doubling q multiplies the cubic part by 4.
    assert scorer.score_matrix(by_hand([2, 1]), by_hand([1, 1])).tolist() == [[35]]
    assert scorer.score_matrix(by_hand([4, 2]), by_hand([1, 1])).tolist() == [[2 * 7 + 4 * 28]]
    assert scorer.score_pairs(by_hand([2, 1]), by_hand([1, 1])).tolist() == [35]
    exchanged = Polynomial(V, (U, Y)).score_matrix(D, Q).T
    np.testing.assert_allclose(QueryPolynomial((U, Y), V).score_matrix(Q, D), exchanged, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(
        QueryPolynomial((U,), V).score_matrix(Q, D), Bilinear(U, V).score_matrix(Q, D), "one factor is UᵀV + I"
    )


def test_M17_is_the_oracle_of_the_shared_cubic() -> None:
    np.testing.assert_allclose(
        Polynomial(U, (V, Y)).score_matrix(Q, D), ORACLE.score_matrix(Q, D), rtol=1e-3, atol=1e-5
    )
    weight = np.zeros((3, 3, 3), np.float32)
    weight[0, 1, 2] = 2
    scorer = FullPolynomial(np.zeros((3, 3), np.float32), weight)
    assert scorer.score_matrix(by_hand([3, 0, 0]), by_hand([0, 5, 7])).tolist() == [[210]]


def test_M19_is_the_oracle_with_tables_of_its_own() -> None:
    W2 = U2 @ V2.T + np.eye(N_WORDS, dtype=np.float32)
    oracle = FullPolynomial(W2, np.einsum("il,jl,kl->ijk", U, V, Y).astype(np.float32))
    np.testing.assert_allclose(
        SeparateCubic(U, V, Y, U2, V2).score_matrix(Q, D), oracle.score_matrix(Q, D), rtol=1e-3, atol=1e-5
    )
    np.testing.assert_allclose(
        SeparateCubic(U, V, Y, U, V).score_matrix(Q, D), Polynomial(U, (V, Y)).score_matrix(Q, D), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("degree", [2, 3, 4, 5])
def test_M20_is_the_sum_of_the_products_of_all_degrees(degree: int) -> None:
    factors = tuple(table(20 + j, N_WORDS, 3) for j in range(degree - 1))
    scorer = Polynomial(U, factors, 0.5)
    assert scorer.degree == degree
    q, documents = Q.toarray() @ U, [D.toarray() @ factor for factor in factors]
    expected = 0.5 * (Q @ D.T).toarray()
    for order in range(1, degree):
        expected = expected + q @ reduce(np.multiply, documents[:order]).T
    np.testing.assert_allclose(scorer.score_matrix(Q, D), expected, rtol=1e-3, atol=1e-5)


def test_M06_is_degree_two_and_M18_with_no_third_factor() -> None:
    expected = Bilinear(U, V).score_matrix(Q, D)
    np.testing.assert_allclose(Polynomial(U, (V,)).score_matrix(Q, D), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(Polynomial(U, (V, 0 * Y)).score_matrix(Q, D), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["M18", "M19", "M20"])
def test_cached_documents_serve_as_a_bilinear_model_does(name: str) -> None:
    scorer = SCORERS[name]
    assert isinstance(scorer, Polynomial | SeparateCubic)
    vectors = scorer.embed_documents(D)
    assert vectors.shape == (8, 6 if name == "M19" else 3)
    cached = scorer.embed_queries(Q) @ vectors.T + scorer.identity * (Q @ D.T).toarray()
    np.testing.assert_allclose(scorer.score_matrix(Q, D), cached, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(scorer.score_matrix(Q, D, vectors), scorer.score_matrix(Q, D))
    with pytest.raises(ShapeMismatch, match=r"8 document vectors of shape .* for 3 documents"):
        scorer.score_matrix(Q, D[:3], vectors)


def test_hostile_parameters_are_refused() -> None:
    bad = np.array([1, np.nan], np.float32)
    with pytest.raises(InputError, match="NaN"):
        Diagonal(bad)
    with pytest.raises(InputError, match="NaN"):
        HashKernel(bad)
    with pytest.raises(InputError, match="cannot hash"):
        HashKernel(np.zeros(0, np.float32))
    with pytest.raises(ShapeMismatch, match="float32 with 2 axes"):
        DenseWordPairs(np.eye(3))  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="the same"):
        Polynomial(U, (V[:, :2].copy(),))
    with pytest.raises(InputError, match="needs at least one document factor"):
        Polynomial(U, ())
    with pytest.raises(InputError, match="not usable"):
        SeparateCubic(U, V, Y, U2, V2, -1.0)
    with pytest.raises(InputError, match="at most 200 words"):
        FullPolynomial(np.zeros((201, 201), np.float32))
    with pytest.raises(ShapeMismatch, match="rows of 9 words as queries"):
        Diagonal(np.ones(4, np.float32)).score_matrix(Q, D)
