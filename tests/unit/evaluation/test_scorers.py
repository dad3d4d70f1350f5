"""Compact columns and inner products against dense formulas."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.errors import InputError, ShapeMismatch
from reranker.evaluation import InnerProducts
from reranker.text.rows import NARROW, compact_columns, select_columns, used_columns

WIDE = 2**31 - 1


def wide_rows(rng: np.random.Generator, n: int, ids: np.ndarray) -> sp.csr_matrix:
    dense = sp.random(n, len(ids), density=0.4, random_state=rng, dtype=np.float32).tocsr()
    dense.sort_indices()
    return sp.csr_matrix((dense.data, ids[dense.indices].astype(np.int32), dense.indptr), shape=(n, WIDE))


@given(seed=st.integers(0, 2**32 - 1), n_queries=st.integers(1, 6), n_documents=st.integers(1, 8))
@settings(max_examples=60)
def test_inner_products_over_the_open_vocabulary(seed: int, n_queries: int, n_documents: int) -> None:
    rng = np.random.default_rng(seed)
    ids = np.unique(np.concatenate([rng.integers(0, 50, 8), rng.integers(2**30, WIDE, 6), [WIDE - 1]]))
    q, d = wide_rows(rng, n_queries, ids), wide_rows(rng, n_documents, ids)
    u, v = (rng.normal(size=(n, 3)).astype(np.float32) for n in (n_queries, n_documents))
    compact_q, compact_d = compact_columns(q, d)
    assert compact_q.shape[1] == len(used_columns([q, d]))
    expected = u @ v.T + 0.7 * (compact_q.toarray() @ compact_d.toarray().T)
    by_ids = np.zeros((n_queries, n_documents))
    for i in range(n_queries):
        words = dict(zip(q[i].indices.tolist(), q[i].data.tolist(), strict=True))
        for j in range(n_documents):
            by_ids[i, j] = sum(
                words.get(w, 0.0) * x for w, x in zip(d[j].indices.tolist(), d[j].data.tolist(), strict=True)
            )
    both = InnerProducts(u, v, q, d, row_weight=0.7)
    assert both.block(0, n_queries) == pytest.approx(expected, abs=1e-5)
    assert InnerProducts(query_rows=q, document_rows=d).block(0, n_queries) == pytest.approx(by_ids, abs=1e-5)
    assert InnerProducts(query_rows=q, document_rows=d, row_weight=-2.0).block(0, n_queries) == pytest.approx(
        -2 * by_ids, abs=1e-5
    )
    assert InnerProducts(u, v).block(0, n_queries) == pytest.approx(u @ v.T, abs=1e-5)


def test_select_columns_drops_others_and_keeps_empty_rows() -> None:
    matrix = sp.csr_matrix(np.array([[0, 1, 2, 3], [0, 0, 0, 0], [4, 0, 0, 5]], dtype=np.float32))
    assert select_columns(matrix, np.array([1, 3])).toarray().tolist() == [[1, 3], [0, 0], [0, 5]]
    assert select_columns(matrix, np.array([], dtype=np.int64)).shape == (3, 0)
    all_of_it = select_columns(matrix, np.array([0, 1, 2, 3]))
    for name in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(all_of_it, name), getattr(matrix, name))
        assert not np.shares_memory(getattr(all_of_it, name), getattr(matrix, name))
    assert used_columns([]).tolist() == []


@given(data=st.data())
@settings(max_examples=100)
def test_columns_are_selected_on_both_sides_of_the_narrow_ones(data: st.DataObject) -> None:
    ids = st.sampled_from([0, 1, 7, NARROW - 1, NARROW, NARROW + 1, 2**30, WIDE - 1])
    stored = data.draw(st.lists(ids, max_size=8, unique=True))
    columns = np.array(sorted(data.draw(st.sets(ids, min_size=1))), np.int64)
    values = np.arange(1, len(stored) + 1, dtype=np.float32)
    row = sp.csr_matrix((values, np.array(sorted(stored), np.int32), np.array([0, len(stored)])), shape=(1, WIDE))
    chosen = select_columns(row, columns)
    of_id = dict(zip(sorted(stored), values.tolist(), strict=True))
    assert chosen.toarray().tolist() == [[of_id.get(column, 0.0) for column in columns.tolist()]]
    assert used_columns([row]).tolist() == sorted(stored)


def test_values_that_cannot_be_ranked_are_refused() -> None:
    good = np.ones((2, 3), dtype=np.float32)
    bad = good.copy()
    bad[1, 1] = np.nan
    with pytest.raises(InputError, match="document_vectors holds NaN"):
        InnerProducts(good, bad)
    rows = sp.csr_matrix(np.array([[1.0, np.inf]], dtype=np.float32))
    with pytest.raises(InputError, match="query_rows holds NaN or infinity"):
        InnerProducts(query_rows=rows, document_rows=rows)


def test_parts_must_fit() -> None:
    ones = np.ones((2, 3), dtype=np.float32)
    rows = sp.csr_matrix(np.ones((4, 3), dtype=np.float32))
    with pytest.raises(ShapeMismatch, match="same queries and documents"):
        InnerProducts(ones, ones, rows, rows)
    with pytest.raises(ShapeMismatch, match="nothing"):
        InnerProducts()
    with pytest.raises(ShapeMismatch, match="dimensions"):
        InnerProducts(ones, np.ones((2, 4), dtype=np.float32))
