"""The kernels over rows: known answers, agreement of compiled and reference, refusals."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.arrays import N_TERM_IDS
from reranker.errors import InputError, ShapeMismatch
from reranker.kernels import rows as compiled
from tests.reference import rows as reference
from tests.seeds import seeded_rng

HASHED = 2**30 + 7
BOTH = pytest.mark.parametrize("kernels", [reference, compiled], ids=["reference", "compiled"])


def random_rows(rng: np.random.Generator, n_rows: int, n_words: int, n_terms: int) -> sp.csr_matrix:
    """Return rows of distinct sorted ids, some hashed, some rows empty."""
    indptr, indices = [0], []
    for _ in range(n_rows):
        ids = np.unique(rng.integers(0, n_words, rng.integers(0, n_terms + 1)))
        if rng.random() < 0.5:
            ids = np.append(ids, HASHED + rng.integers(0, 3))
        indices.append(ids)
        indptr.append(indptr[-1] + len(ids))
    ids = np.concatenate(indices).astype(np.int32)
    return sp.csr_matrix((rng.random(len(ids)).astype(np.float32), ids, indptr), shape=(n_rows, N_TERM_IDS))


def word_rows(indptr: list[int], indices: list[int], data: list[float]) -> sp.csr_matrix:
    """Return rows of `N_TERM_IDS` columns."""
    parts = (np.array(data, np.float32), np.array(indices, np.int32), np.array(indptr))
    return sp.csr_matrix(parts, shape=(len(indptr) - 1, N_TERM_IDS))


@BOTH
def test_embed_known_answer(kernels: ModuleType) -> None:
    E = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    vectors = kernels.embed_rows(word_rows([0, 2, 2, 4], [0, 2, 1, HASHED], [1, 0.5, 2, 9]), E)
    np.testing.assert_array_equal(vectors, [[3.5, 5], [0, 0], [6, 8]])


@BOTH
def test_score_known_answer(kernels: ModuleType) -> None:
    indptr, indices = np.array([0, 2, 3, 3]), np.array([1, HASHED, 4], np.int32)
    data, V_docs = np.array([0.5, 0.25, 1], np.float32), np.array([[1, 0], [0, 1], [2, 2]], np.float32)
    q_vec, q_ids = np.array([10, 100], np.float32), np.array([1, 3, HASHED], np.int32)
    scores = kernels.score_rows(
        q_vec, q_ids, np.array([2, 7, 4], np.float32), 0.5, np.array([2, 0, 1, 0]), V_docs, indptr, indices, data
    )
    np.testing.assert_array_equal(scores, [220, 11, 100, 11])


@BOTH
def test_dots_known_answer(kernels: ModuleType) -> None:
    left, right = word_rows([0, 2, 3], [1, 5, 2], [2, 3, 4]), word_rows([0, 2, 2], [5, 9], [10, 1])
    np.testing.assert_array_equal(kernels.dots(left, right), [30, 0])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1), n_dims=st.integers(0, 33), n_query=st.integers(0, 300), n_words=st.integers(1, 5000)
)
def test_compiled_agrees_with_reference(seed: int, n_dims: int, n_query: int, n_words: int) -> None:
    rng = np.random.default_rng(seed)
    rows, other = random_rows(rng, 20, n_words, 60), random_rows(rng, 20, n_words, 60)
    E = rng.normal(size=(n_words // 2, n_dims)).astype(np.float32)
    parts = (rows.indptr, rows.indices, rows.data)
    vectors = compiled.embed_rows(rows, E)
    np.testing.assert_allclose(vectors, reference.embed_rows(rows, E), rtol=1e-5, atol=1e-5)
    q_ids = np.unique(np.append(rng.integers(0, n_words, n_query), HASHED)).astype(np.int32)
    query = (rng.normal(size=n_dims).astype(np.float32), q_ids, rng.random(len(q_ids)).astype(np.float32), 0.7)
    candidates = rng.integers(0, 20, 50)
    np.testing.assert_allclose(
        compiled.score_rows(*query, candidates, vectors, *parts),
        reference.score_rows(*query, candidates, vectors, *parts),
        rtol=1e-5,
        atol=2e-5,
    )
    np.testing.assert_allclose(compiled.dots(rows, other), reference.dots(rows, other), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pointer_type", [np.int32, np.int64])
def test_one_row_has_the_same_bits_alone_and_in_a_batch(pointer_type: Any) -> None:
    rng = seeded_rng()
    rows = random_rows(rng, 50, 400, 80)
    E = rng.normal(size=(400, 37)).astype(np.float32)
    parts = (rows.indptr.astype(pointer_type), rows.indices, rows.data)
    together = compiled.embed_rows(rows, E)
    q_ids = np.unique(rng.integers(0, 400, 30)).astype(np.int32)
    query = (E[0].copy(), q_ids, rng.random(len(q_ids)).astype(np.float32), 1.0)
    scores = compiled.score_rows(*query, np.arange(50), together, *parts)
    for place in range(50):
        row = rows[place]
        np.testing.assert_array_equal(compiled.embed_rows(row, E)[0], together[place])
        alone = compiled.score_rows(*query, np.array([place]), together, *parts)
        copied = compiled.score_rows(
            *query, np.array([0]), together[place : place + 1].copy(), row.indptr, row.indices, row.data
        )
        assert alone[0] == scores[place] == copied[0]


@BOTH
def test_ids_that_collide_in_a_hash_table_keep_their_own_weights(kernels: ModuleType) -> None:
    ids = np.unique(seeded_rng().integers(0, N_TERM_IDS, 1000)).astype(np.int32)
    weights = np.arange(1, len(ids) + 1, dtype=np.float32)
    *_, reach = compiled._query_table(ids, weights)
    assert reach > 0, "no two of these ids collide, so this test shows nothing"
    indptr = np.arange(len(ids) + 1)
    scores = kernels.score_rows(
        np.zeros(0, np.float32),
        ids,
        weights,
        1.0,
        np.arange(len(ids)),
        np.zeros((len(ids), 0), np.float32),
        indptr,
        ids,
        np.ones(len(ids), np.float32),
    )
    np.testing.assert_array_equal(scores, weights)


def query_and_store() -> dict[str, Any]:
    """Return good arguments of score_rows."""
    return {
        "q_vec": np.ones(2, np.float32),
        "q_ids": np.array([1, 2], np.int32),
        "q_weights": np.ones(2, np.float32),
        "a": 1.0,
        "cand_rows": np.array([0, 1]),
        "V_docs": np.ones((2, 2), np.float32),
        "indptr": np.array([0, 1, 2]),
        "indices": np.array([1, 2], np.int32),
        "data": np.ones(2, np.float32),
    }


@BOTH
@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("q_vec", np.ones(3, np.float32), ShapeMismatch, "2 dimensions"),
        ("q_vec", np.array([1, np.nan], np.float32), InputError, "NaN"),
        ("q_weights", np.array([1, np.inf], np.float32), InputError, "infinite"),
        ("q_weights", np.ones(1, np.float32), ShapeMismatch, "weights"),
        ("q_ids", np.array([2, 1], np.int32), InputError, "increasing"),
        ("q_ids", np.array([1, 1], np.int32), InputError, "increasing"),
        ("cand_rows", np.array([0, -1]), InputError, "row -1"),
        ("cand_rows", np.array([2]), InputError, "row 2"),
        ("data", np.ones(1, np.float32), ShapeMismatch, "data 1"),
        ("indptr", np.array([0, 1, 3]), ShapeMismatch, "indptr"),
        ("indptr", np.zeros(0, np.int64), ShapeMismatch, "indptr"),
    ],
)
def test_score_refuses(kernels: ModuleType, name: str, value: Any, error: type[Exception], words: str) -> None:
    arguments = query_and_store()
    kernels.score_rows(**arguments)
    with pytest.raises(error, match=words):
        kernels.score_rows(**{**arguments, name: value})


@pytest.mark.parametrize(
    ("indptr", "row"), [([0, 10**9, 2], 0), ([0, 3, 2], 0), ([0, 3, 2], 1), ([0, -1, 2], 0), ([0, -1, 2], 1)]
)
def test_damaged_row_pointers_inside_a_store_are_refused_not_read(indptr: list[int], row: int) -> None:
    arguments = query_and_store() | {"indptr": np.array(indptr), "cand_rows": np.array([row])}
    with pytest.raises(InputError, match="row pointers are damaged"):
        compiled.score_rows(**arguments)


@BOTH
def test_embed_refuses_other_tables(kernels: ModuleType) -> None:
    row = word_rows([0, 1], [0], [1])
    for table in (np.ones((2, 2)), np.ones(2, np.float32), np.ones((2, 3), np.float32).T):
        with pytest.raises(ShapeMismatch, match="C-contiguous float32"):
            kernels.embed_rows(row, table)
    damaged = word_rows([0, 0, 1], [0], [1])
    damaged.indptr = np.array([0, 9, 1])
    with pytest.raises(ShapeMismatch, match="indptr"):
        kernels.embed_rows(damaged, np.ones((2, 2), np.float32))
    with pytest.raises(ShapeMismatch, match="paired"):
        kernels.dots(row, word_rows([0, 0, 1], [0], [1]))


def test_dense_products_known_answer() -> None:
    rows = sp.csr_matrix(np.array([[2, 0, 3], [0, 0, 0]], np.float32))
    postings = sp.csr_matrix(np.array([[1, 0], [5, 5], [0, 10]], np.float32))
    np.testing.assert_array_equal(compiled.dense_products(rows, postings), [[2, 30], [0, 0]])


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), n_words=st.integers(1, 200), share=st.floats(0, 0.5))
def test_dense_products_are_those_of_scipy_bit_for_bit(seed: int, n_words: int, share: float) -> None:
    shapes = ((20, n_words), (n_words, 30))
    rng = np.random.default_rng(seed)
    rows, postings = (
        sp.csr_matrix(np.where(rng.random(shape) < share, rng.normal(size=shape), 0).astype(np.float32))
        for shape in shapes
    )
    np.testing.assert_array_equal(compiled.dense_products(rows, postings), (rows @ postings).toarray())


@pytest.mark.parametrize("ids", [[0, 3], [-1, 0]])
def test_dense_products_refuse_ids_outside_of_the_other_side(ids: list[int]) -> None:
    postings = sp.csr_matrix(np.ones((3, 2), np.float32))
    with pytest.raises(ShapeMismatch, match="do not fit 3 columns"):
        compiled.dense_products(word_rows([0, 2], ids, [1, 1]), postings)


@pytest.mark.parametrize(("n", "n_columns"), [(1, 5), (3, 3), (4, 2), (7, 40), (300, 1000)])
def test_the_highest_places_are_those_of_a_sort_by_value_and_then_by_place(n: int, n_columns: int) -> None:
    scores = seeded_rng().integers(-2, 6, (60, n_columns)).astype(np.float32)
    scores[scores == -2] = -np.inf
    order = np.lexsort((np.broadcast_to(np.arange(n_columns), scores.shape), -scores), axis=1)
    np.testing.assert_array_equal(compiled.highest_places(scores, n), np.sort(order[:, :n], axis=1))


def test_the_highest_places_of_nothing_are_none() -> None:
    assert compiled.highest_places(np.zeros((3, 0), np.float32), 5).shape == (3, 0)
    assert compiled.highest_places(np.zeros((0, 4), np.float32), 5).shape == (0, 4)
