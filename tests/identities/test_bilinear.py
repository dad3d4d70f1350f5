"""Algebra of the bilinear family: each identity of spec 5.11 that concerns it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.methods.word_pairs import Bilinear
from reranker.arrays import N_TERM_IDS, Float32, Float64
from reranker.kernels import rows as compiled
from reranker.text.rows import inner_products
from tests.reference import rows as reference

HASHED = 2**30
N_WORDS = 40
SEEDS = st.integers(0, 2**32 - 1)


def case(seed: int, n_dims: int = 5) -> tuple[Float32, Float32, sp.csr_matrix, sp.csr_matrix]:
    """Return U, V, query rows and document rows, over known, unembedded and hashed words."""
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(2, N_WORDS, n_dims)).astype(np.float32)
    return U, V, random_rows(rng, 5), random_rows(rng, 7)


def random_rows(rng: np.random.Generator, n: int) -> sp.csr_matrix:
    ids = [
        np.unique(np.append(rng.integers(0, 60, rng.integers(0, 20)), HASHED + rng.integers(0, 3))) for _ in range(n)
    ]
    indptr = np.concatenate(([0], np.cumsum([len(one) for one in ids])))
    weights = rng.random(indptr[-1]).astype(np.float32)
    return sp.csr_matrix((weights, np.concatenate(ids).astype(np.int32), indptr), shape=(n, N_TERM_IDS))


def dense(rows: sp.csr_matrix) -> Float64:
    """Return rows as a small dense matrix: known words, then the hashed ones (the second formula of the tests)."""
    out = np.zeros((rows.shape[0], 63))
    for r in range(rows.shape[0]):
        for place in range(rows.indptr[r], rows.indptr[r + 1]):
            word = rows.indices[place]
            out[r, word if word < 60 else 60 + word - HASHED] = rows.data[place]
    return out


def close(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> None:
    np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-5)


@settings(max_examples=40)
@given(SEEDS, st.sampled_from([0.0, 1.0, 2.5]))
def test_score_is_q_w_d_of_the_dense_formula(seed: int, identity: float) -> None:
    U, V, q_rows, d_rows = case(seed)
    W = identity * np.eye(63)
    W[:N_WORDS, :N_WORDS] += U.astype(np.float64) @ V.T
    close(Bilinear(U, V, identity).score_matrix(q_rows, d_rows), dense(q_rows) @ W @ dense(d_rows).T)


@settings(max_examples=25)
@given(SEEDS)
def test_inner_products_are_those_of_dense_rows(seed: int) -> None:
    _, _, q_rows, d_rows = case(seed)
    close(inner_products(q_rows, d_rows), dense(q_rows) @ dense(d_rows).T)


@pytest.mark.parametrize("zero", ["U", "V"])
@settings(max_examples=25)
@given(seed=SEEDS)
def test_zero_u_or_v_is_tf_idf(zero: str, seed: int) -> None:
    U, V, q_rows, d_rows = case(seed)
    model = Bilinear(U * (zero != "U"), V * (zero != "V"))
    np.testing.assert_array_equal(model.score_matrix(q_rows, d_rows), Bilinear.lexical().score_matrix(q_rows, d_rows))


@settings(max_examples=25)
@given(SEEDS)
def test_equal_u_and_v_are_the_tied_model(seed: int) -> None:
    U, _, q_rows, d_rows = case(seed)
    tied, untied = Bilinear(U, U), Bilinear(U, U.copy())
    assert tied.is_tied
    assert not untied.is_tied
    np.testing.assert_array_equal(tied.score_matrix(q_rows, d_rows), untied.score_matrix(q_rows, d_rows))
    close(tied.score_matrix(q_rows, d_rows), tied.score_matrix(d_rows, q_rows).T)


@settings(max_examples=25)
@given(SEEDS, st.integers(0, N_WORDS))
def test_restriction(seed: int, n_words: int) -> None:
    U, V, q_rows, d_rows = case(seed)
    model = Bilinear(U, V)
    everything = model.score_matrix(q_rows, d_rows)
    np.testing.assert_array_equal(model.restricted(N_WORDS).score_matrix(q_rows, d_rows), everything)
    np.testing.assert_array_equal(model.restricted(10 * N_WORDS).score_matrix(q_rows, d_rows), everything)
    np.testing.assert_array_equal(
        model.restricted(0).score_matrix(q_rows, d_rows), Bilinear.lexical().score_matrix(q_rows, d_rows)
    )
    zeroed_U, zeroed_V = U.copy(), V.copy()
    zeroed_U[n_words:], zeroed_V[n_words:] = 0, 0
    np.testing.assert_array_equal(
        model.restricted(n_words).score_matrix(q_rows, d_rows),
        Bilinear(zeroed_U, zeroed_V).score_matrix(q_rows, d_rows),
    )


@settings(max_examples=25)
@given(SEEDS)
def test_cached_and_direct_scores_agree_in_every_bit(seed: int) -> None:
    U, V, q_rows, d_rows = case(seed)
    model = Bilinear(U, V)
    cached = model.embed_documents(d_rows)
    np.testing.assert_array_equal(model.score_matrix(q_rows, d_rows, cached), model.score_matrix(q_rows, d_rows))
    np.testing.assert_array_equal(
        model.score_pairs(q_rows, d_rows[:5], cached[:5]), model.score_pairs(q_rows, d_rows[:5])
    )


@pytest.mark.parametrize("kernels", [reference, compiled], ids=["reference", "compiled"])
@settings(max_examples=25)
@given(seed=SEEDS)
def test_serving_scores_are_the_model_s(kernels: object, seed: int) -> None:
    U, V, q_rows, d_rows = case(seed)
    model = Bilinear(U, V, 1.5)
    scores = model.score_matrix(q_rows, d_rows)
    score_rows = kernels.score_rows  # type: ignore[attr-defined]
    for i in range(5):
        query = q_rows[i]
        served = score_rows(
            model.embed_queries(query)[0],
            query.indices,
            query.data,
            1.5,
            np.arange(7),
            model.embed_documents(d_rows),
            d_rows.indptr,
            d_rows.indices,
            d_rows.data,
        )
        close(served, scores[i])


@settings(max_examples=25)
@given(SEEDS)
def test_one_query_alone_scores_as_in_a_batch(seed: int) -> None:
    U, V, q_rows, d_rows = case(seed)
    model = Bilinear(U, V)
    for i in range(5):
        close(model.score_matrix(q_rows[i], d_rows)[0], model.score_matrix(q_rows, d_rows)[i])
