"""Forms of a document's vector: each is the model it stands for, within its bound, and a sum over pairs of words."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.methods.projection import Projection
from papers.methods.word_pairs import Bilinear, Polynomial, SeparateCubic
from reranker.arrays import N_TERM_IDS
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.scorers import FORMS, DocumentForm, FormScorer, weights_in
from reranker.text.rows import inner_products
from reranker.words import check_linear
from tests.seeds import seeded_rng

N_WORDS = 40


def table(offset: int, n_dims: int = 6) -> np.ndarray:
    return seeded_rng(offset).normal(scale=0.5, size=(N_WORDS, n_dims)).astype(np.float32)


def rows(n: int, offset: int) -> sp.csr_matrix:
    """Return n rows of listed and unlisted words, row 0 empty and row 1 without a learned word."""
    rng = seeded_rng(offset)
    ids = [np.unique(np.append(rng.integers(0, N_WORDS + 10, 9), 2**30 + rng.integers(0, 3))) for _ in range(n)]
    ids[0], ids[1] = ids[0][:0], np.array([N_WORDS + 2])
    indptr = np.concatenate(([0], np.cumsum([len(one) for one in ids])))
    weights = rng.random(indptr[-1]).astype(np.float32)
    return sp.csr_matrix((weights, np.concatenate(ids).astype(np.int32), indptr), shape=(n, N_TERM_IDS))


Q, D = rows(5, 10), rows(7, 11)
U, V, Y = table(0), table(1), table(2)


def form_scorer(form: str, identity: float = 0.7) -> FormScorer:
    share = FORMS[form].factor_share
    second = np.ascontiguousarray(Y[:, : 6 // share]) if share else None
    return FormScorer(U, DocumentForm(form, V, second), identity)


def left_right(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.ascontiguousarray(table[:, :3]), np.ascontiguousarray(table[:, 3:])


def expected_scores(form: str) -> np.ndarray:
    """Return f of all pairs by the model that the form stands for."""
    if form == "linear":
        return Bilinear(U, V, 0.7).score_matrix(Q, D)
    if form == "cubic":
        return Polynomial(U, (V, Y), 0.7).score_matrix(Q, D)
    if form == "cubic_separate":
        (U1, U2), (V1, V2) = left_right(U), left_right(V)
        return SeparateCubic(U1, V1, np.ascontiguousarray(Y[:, :3]), U2, V2, 0.7).score_matrix(Q, D)
    return Projection(U, V).score_matrix(Q, D) + np.float32(0.7) * inner_products(Q, D)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_the_model_it_stands_for(form: str) -> None:
    scorer = form_scorer(form)
    np.testing.assert_allclose(scorer.score_matrix(Q, D), expected_scores(form), rtol=1e-5, atol=1e-6)
    pairs = scorer.score_pairs(Q, D[:5])
    np.testing.assert_allclose(pairs, np.diag(expected_scores(form)[:, :5]), rtol=1e-5, atol=1e-6)
    known = scorer.embed_documents(D)
    np.testing.assert_array_equal(scorer.score_matrix(Q, D, known), scorer.score_matrix(Q, D))
    assert np.isfinite(scorer.score_matrix(Q, D)).all()
    assert not known[:2].any()
    assert not scorer.embed_queries(Q)[:2].any()


@pytest.mark.parametrize("form", FORMS)
def test_the_learned_part_is_a_sum_over_pairs_of_words(form: str) -> None:
    scorer = form_scorer(form, identity=0.0)
    for i in range(5):
        for j in range(7):
            weights = weights_in(scorer.documents, U, Q[i], D[j])
            assert weights.shape == (Q[i].nnz, D[j].nnz)
            total = Q[i].data.astype(float) @ weights @ D[j].data.astype(float)
            assert total == pytest.approx(float(scorer.score_pairs(Q[i], D[j])[0]), abs=1e-5)


def test_a_pair_of_a_cubic_weighs_more_beside_a_third_word() -> None:
    """One dimension, by hand: c(d) = (Vd)(1 + Yd), so 'b' counts 3 alone and 3 (1 + .5 * 2) beside 'c'."""
    one = np.ones((3, 1), np.float32)
    V, Y = np.array([[0], [3], [0]], np.float32), np.array([[0], [0], [2]], np.float32)
    documents = DocumentForm("cubic", V, Y)
    query, alone, beside = (sp.csr_matrix(np.array([row], np.float32)) for row in ([1, 0, 0], [0, 1, 0], [0, 1, 0.5]))
    assert weights_in(documents, one, query, alone).tolist() == [[3.0]]
    assert weights_in(documents, one, query, beside).tolist() == [[6.0, 0.0]]


@settings(max_examples=60, deadline=None)
@given(form=st.sampled_from(sorted(FORMS)), seed=st.integers(0, 2**32 - 1), reach=st.floats(0.1, 5.0))
def test_no_document_within_reach_is_longer_than_the_bound(form: str, seed: int, reach: float) -> None:
    rng = np.random.default_rng(seed)
    V, Y = (rng.normal(scale=rng.choice([0.1, 3.0]), size=(5, 4)).astype(np.float32) for _ in range(2))
    share = FORMS[form].factor_share
    documents = DocumentForm(form, V, np.ascontiguousarray(Y[:, : 4 // share]) if share else None)
    dense = rng.normal(size=(200, 5))
    dense *= reach / np.linalg.norm(dense, axis=1, keepdims=True)
    lengths = np.linalg.norm(documents.vectors(sp.csr_matrix(dense.astype(np.float32))), axis=1)
    assert lengths.max() <= documents.bound(reach) * (1 + 1e-5)
    assert documents.bound(reach) < 40 * lengths.max(), "and the bound is of use"


def test_texts_whose_vectors_cancel_have_no_direction() -> None:
    V = np.array([[1.0], [-1.0]], np.float32)
    documents = DocumentForm("unit", V)
    assert documents.vectors(sp.csr_matrix(np.array([[0.5, 0.5], [0.5, 0.25]], np.float32))).tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize("identity", [-1.0, float("nan"), float("inf")])
def test_an_unusable_identity_is_refused(identity: float) -> None:
    with pytest.raises(InputError, match="identity weight"):
        form_scorer("cubic", identity)


def test_tables_must_fit() -> None:
    with pytest.raises(ShapeMismatch, match="U has 4 dimensions and V 6"):
        FormScorer(table(0, 4), DocumentForm("unit", V))
    with pytest.raises(ShapeMismatch, match="document vectors of shape"):
        form_scorer("cubic").score_matrix(Q, D, np.zeros((7, 5), np.float32))


def test_what_only_linear_models_have_is_refused_with_a_way_out() -> None:
    check_linear("linear", "a weight")
    with pytest.raises(ConfigError, match=r"a weight needs the document form 'linear', .* 'cubic': see .* --explain"):
        check_linear("cubic", "a weight")
