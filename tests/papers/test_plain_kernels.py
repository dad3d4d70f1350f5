# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""The plain SGD kernels: steps worked out by hand, and the compiled ones against the definition."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from papers import plain_kernels
from papers.methods.product_sgd import Combination, Triples, low_rank_steps
from papers.plain_kernels import PRIME
from papers.plain_sgd import full_polynomial_steps
from reranker.kernels.rows import Rows
from tests.reference import plain_sgd as plain_sgd_reference
from tests.reference.plain_sgd import pair_hash
from tests.seeds import seeded_rng

Floats = npt.NDArray[np.float32]
plain_sgd_compiled = SimpleNamespace(**vars(plain_kernels), low_rank_steps=low_rank_steps)
BOTH = pytest.mark.parametrize("kernels", [plain_sgd_reference, plain_sgd_compiled], ids=["reference", "compiled"])
STEP = Triples(np.array([0]), np.array([0]), np.array([1]))


def kernel_rows(dense: Any) -> Rows:
    matrix = sp.csr_matrix(np.asarray(dense, np.float32))
    return Rows(matrix.indptr.astype(np.int64), matrix.indices, matrix.data)


def floats(*values: object) -> Floats:
    return np.array(values, np.float32)


QUERY = kernel_rows([[1, 1, 0]])
DOCUMENTS = kernel_rows([[0, 1, 1], [1, 0, 1]])  # delta = (-1, 1, 0); q.d = 1 for both


@BOTH
def test_M02_step_by_hand(kernels: ModuleType) -> None:
    w = floats(1, 1, 1)
    stats = kernels.diagonal_steps(w, QUERY, DOCUMENTS, STEP, 0.5)
    np.testing.assert_array_equal(w, floats(0.5, 1.5, 1))
    assert stats.tolist() == [1, 1]


@BOTH
def test_M03_step_by_hand(kernels: ModuleType) -> None:
    W = np.eye(3, dtype=np.float32)
    stats = kernels.dense_steps(W, QUERY, DOCUMENTS, STEP, 0.5, True)
    np.testing.assert_array_equal(W, floats([0.5, 0.5, 0], [-0.5, 1.5, 0], [0, 0, 1]))
    assert stats.tolist() == [1, 1]


@BOTH
def test_M04_step_by_hand(kernels: ModuleType) -> None:
    W = np.zeros((3, 3), np.float32)
    kernels.dense_steps(W, QUERY, DOCUMENTS, STEP, 0.5, False)
    np.testing.assert_array_equal(W, floats([0, 0.5, 0], [-0.5, 0, 0], [0, 0, 0]))


@BOTH
def test_M13_step_of_blocks_by_hand(kernels: ModuleType) -> None:
    # Two blocks of two features. q = (1, 0 | 0, 1) and delta = (-1, 1 | 2, 0), so that
    # W += .5 ((1, 0) (-1, 1)^T + (0, 1) (2, 0)^T).
    queries, documents = kernel_rows([[1, 0, 0, 1]]), kernel_rows([[0, 1, 2, 0], [1, 0, 0, 0]])
    W = floats([1, 1], [2, 4])
    stats = kernels.block_steps(W, queries, documents, STEP, 0.5)
    assert stats.tolist() == [0, 0]  # f(q, d+) = 1 + 2 * 2 = 5, f(q, d-) = 1: satisfied
    W = np.eye(2, dtype=np.float32)
    stats = kernels.block_steps(W, queries, documents, STEP, 0.5)
    assert stats.tolist() == [1, 2]  # 1 - 0 + 1
    np.testing.assert_array_equal(W, floats([0.5, 0.5], [1, 1]))


@BOTH
@pytest.mark.parametrize(
    ("n_slots", "expected"),
    [(5, [-0.5, 0.5, -0.5, 0.5, 0]), (3, [-0.5, 0, 0.5])],  # h = 0, 1, 7, 8: apart in 5 slots, two together in 3
)
def test_M09_step_by_hand(kernels: ModuleType, n_slots: int, expected: list[float]) -> None:
    w = np.zeros(n_slots, np.float32)
    kernels.hash_steps(w, QUERY, DOCUMENTS, STEP, 0.5, 7, 0.0)
    np.testing.assert_array_equal(w, floats(*expected))


@BOTH
def test_M10_identity_counts_in_the_hinge(kernels: ModuleType) -> None:
    documents = kernel_rows([[0.5, 0, 0], [0, 0, 1]])  # q.d = 0.5 and 0
    stats = kernels.hash_steps(np.zeros(9, np.float32), QUERY, documents, STEP, 0.5, 7, 1.0)
    assert stats.tolist() == [1, 0.5]
    stats = kernels.hash_steps(np.zeros(9, np.float32), QUERY, documents, STEP, 0.5, 7, 2.0)
    assert stats.tolist() == [0, 0]  # the hinge is 0: nothing to learn


@BOTH
def test_M05_step_by_hand(kernels: ModuleType) -> None:
    U = floats([1], [0.5], [1])
    stats = kernels.low_rank_steps(U, U, QUERY, DOCUMENTS, STEP, 0.5, Combination(), 1.0)
    np.testing.assert_array_equal(U, floats([0], [1], [1]))  # both parts from the old U
    assert stats.tolist() == [1, 1.75]


@BOTH
@pytest.mark.parametrize("identity", [0.0, 1.0], ids=["M07", "M06"])
def test_M06_M07_step_by_hand(kernels: ModuleType, identity: float) -> None:
    U, V = floats([1], [1], [0]), floats([1], [0.5], [1])
    stats = kernels.low_rank_steps(U, V, QUERY, DOCUMENTS, STEP, 0.5, Combination(), identity)
    np.testing.assert_array_equal(U, floats([0.75], [0.75], [0]))
    np.testing.assert_array_equal(V, floats([0], [1.5], [1]))
    assert stats.tolist() == [1, 2]


@BOTH
def test_M06_identity_counts_in_the_hinge(kernels: ModuleType) -> None:
    documents = kernel_rows([[0.5, 0, 0], [0, 0, 1]])
    zero = np.zeros((3, 1), np.float32)
    for identity, hinge in ((0.0, 1.0), (1.0, 0.5), (1.5, 0.25)):
        stats = kernels.low_rank_steps(zero.copy(), zero.copy(), QUERY, documents, STEP, 1.0, Combination(), identity)
        assert stats.tolist() == [1, hinge]


@BOTH
def test_M08_words_past_the_tables_are_matched_exactly_and_have_no_row(kernels: ModuleType) -> None:
    U, V = floats([1]), floats([1])  # word 0 alone
    stats = kernels.low_rank_steps(U, V, QUERY, DOCUMENTS, STEP, 0.5, Combination(), 1.0)
    assert stats.tolist() == [1, 2]  # f(q, d+) = 0 + 1, f(q, d-) = 1 + 1
    np.testing.assert_array_equal(U, floats([0.5]))
    np.testing.assert_array_equal(V, floats([0.5]))


@BOTH
def test_M18_step_by_hand(kernels: ModuleType) -> None:
    U, T = floats([1], [1], [0]), floats([1, 0.5], [0.5, 0], [1, -1])  # T = [V, Y]
    stats = kernels.low_rank_steps(U, T, QUERY, DOCUMENTS, STEP, 0.5, Combination(2), 1.0)
    np.testing.assert_array_equal(U, floats([0.5], [0.5], [0]))
    np.testing.assert_array_equal(T[:, 0], floats(0.5, 0.5, 0.5))
    np.testing.assert_array_equal(T[:, 1], floats(-1.5, 1.5, -1.5))
    assert stats.tolist() == [1, 3]


@BOTH
def test_M18_step_over_pairs_of_query_words_by_hand(kernels: ModuleType) -> None:
    T, V = floats([1, 0.5], [1, 0.5], [9, 9]), floats([1], [0.5], [1])  # T = [U, Y]
    # U q = 2, Y q = 1, e = 2 (1 + 1) = 4; V delta = -1 + .5 = -.5; f(q, d+) - f(q, d-) = -2, q.delta = 0.
    stats = kernels.query_polynomial_steps(T, V, QUERY, DOCUMENTS, STEP, 0.5, 2, 1.0)
    assert stats.tolist() == [1, 3]
    np.testing.assert_array_equal(V, floats([-1], [2.5], [1]))  # V += .5 * 4 delta
    np.testing.assert_array_equal(T[:, 0], floats(0.5, 0.5, 9))  # U += .5 (-.5) (1 + 1) q
    np.testing.assert_array_equal(T[:, 1], floats(0, 0, 9))  # Y += .5 (-.5) 2 q


@BOTH
def test_M19_step_by_hand(kernels: ModuleType) -> None:
    U = floats([1, 1], [1, 1], [0, 0])  # [U, U2]
    T = floats([1, 1, 0.5], [0.5, 0.5, 0], [1, 1, -1])  # [V, V2, Y]
    # Vd+ = 1.5, Yd+ = -1; Vd- = 2, Yd- = -0.5: cubic -1.5 and -1, quadratic 1.5 and 2, Uq = U2 q = 2
    stats = kernels.low_rank_steps(U, T, QUERY, DOCUMENTS, STEP, 0.5, Combination(1, True), 1.0)
    assert stats.tolist() == [1, 3]  # 1 - (-3 + 3 + 1) + (-2 + 4 + 1)
    np.testing.assert_array_equal(U, floats([0.75, 0.75], [0.75, 0.75], [0, 0]))
    np.testing.assert_array_equal(T[:, 0], floats(1.5, -0.5, 0.5))  # V += 0.5 (2 (-1) d+ - 2 (-0.5) d-)
    np.testing.assert_array_equal(T[:, 1], floats(0, 1.5, 1))  # V2 += 0.5 (2 d+ - 2 d-)
    np.testing.assert_array_equal(T[:, 2], floats(-1.5, 1.5, -1.5))  # Y += 0.5 (2 (1.5) d+ - 2 (2) d-)


def test_M17_step_by_hand() -> None:
    W2, W3 = np.eye(3, dtype=np.float32), np.zeros((3, 3, 3), np.float32)
    stats = full_polynomial_steps(W2, W3, QUERY, DOCUMENTS, STEP, 0.5)
    assert stats.tolist() == [1, 1]
    np.testing.assert_array_equal(W2, floats([0.5, 0.5, 0], [-0.5, 1.5, 0], [0, 0, 1]))
    pairs = 0.5 * floats([-1, 0, -1], [0, 1, 1], [-1, 1, 0])  # d+ d+^T - d- d-^T
    np.testing.assert_array_equal(W3, np.stack([pairs, pairs, 0 * pairs]))


@BOTH
def test_satisfied_tuples_change_nothing(kernels: ModuleType) -> None:
    documents = kernel_rows([[1, 1, 0], [0, 0, 1]])  # f(q, d+) = 2 already
    w, W = floats(1, 1, 1), np.eye(3, dtype=np.float32)
    assert kernels.diagonal_steps(w, QUERY, documents, STEP, 0.5).tolist() == [0, 0]
    assert kernels.dense_steps(W, QUERY, documents, STEP, 0.5, True).tolist() == [0, 0]
    np.testing.assert_array_equal(w, floats(1, 1, 1))
    np.testing.assert_array_equal(W, np.eye(3))


def sparse_case(n_words: int = 25) -> tuple[Rows, Rows, Triples]:
    rng = seeded_rng()
    shape = (2, 12, n_words)
    queries, documents = (kernel_rows(dense) for dense in rng.random(shape) * (rng.random(shape) < 0.2))
    return queries, documents, Triples(*(rng.integers(12, size=80) for _ in range(3)))


def steps_of(kernels: ModuleType | SimpleNamespace, name: str) -> list[Floats]:
    """Return statistics and parameters after 80 random steps."""
    rng = seeded_rng(1)
    queries, documents, triples = sparse_case()

    def normal(*shape: int) -> Floats:
        return (0.5 * rng.normal(size=shape)).astype(np.float32)

    if name == "diagonal":
        w = normal(25)
        return [kernels.diagonal_steps(w, queries, documents, triples, 0.1), w]
    if name in ("full", "zero diagonal", "blocks"):
        W = normal(5, 5) if name == "blocks" else normal(25, 25)
        arguments = (W, queries, documents, triples, 0.1)
        stats = kernels.block_steps(*arguments) if name == "blocks" else kernels.dense_steps(*arguments, name == "full")
        return [stats, W]
    if name.startswith("hash"):
        w, identity = normal(97), 0.7 if "identity" in name else 0.0
        return [kernels.hash_steps(w, queries, documents, triples, 0.1, PRIME, identity), w]
    if name == "tied":
        U = normal(25, 4)
        return [kernels.low_rank_steps(U, U, queries, documents, triples, 0.1, Combination(), 1.0), U]
    if name.startswith("query polynomial"):
        n_factors = 3 if "4" in name else 2
        T, V = normal(25, 4 * n_factors), normal(25, 4)
        return [kernels.query_polynomial_steps(T, V, queries, documents, triples, 0.1, n_factors, 0.7), T, V]
    n_words = 18 if name == "restricted" else 25
    combination = {"cubic": Combination(2), "degree 4": Combination(3), "separate": Combination(1, True)}.get(
        name, Combination()
    )
    U, T = (normal(n_words, 4 * n) for n in ((2, 3) if combination.separate else (1, combination.n_factors)))
    identity = 0.0 if name == "no identity" else 1.0
    lexical = rng.normal(size=len(triples.query)).astype(np.float32) if "lexical" in name else None
    return [kernels.low_rank_steps(U, T, queries, documents, triples, 0.1, combination, identity, lexical), U, T]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "diagonal",
            "full",
            "zero diagonal",
            "blocks",
            "query polynomial",
            "query polynomial 4",
            "hash",
            "hash with identity",
            "tied",
        ),
        *("low rank", "no identity", "restricted", "cubic", "degree 4", "separate", "lexical part of its own"),
    ],
)
def test_compiled_steps_are_those_of_the_definition(name: str) -> None:
    expected, found = steps_of(plain_sgd_reference, name), steps_of(plain_sgd_compiled, name)
    assert expected[0][0] > 20  # most steps were active
    for left, right in zip(expected, found, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-4, atol=2e-5)


@BOTH
def test_one_step_touches_no_word_outside_the_three_texts(kernels: ModuleType) -> None:
    queries, documents, _ = sparse_case()
    rng = seeded_rng(2)
    U, T = (rng.normal(size=(25, n)).astype(np.float32) * 0.1 for n in (3, 6))
    before = U.copy(), T.copy()
    stats = kernels.low_rank_steps(
        U, T, queries, documents, Triples(*np.array([[2], [3], [4]])), 0.5, Combination(2), 0.0
    )
    assert stats[0] == 1

    def words(rows: Rows, *chosen: int) -> set[int]:
        return {int(i) for row in chosen for i in rows.indices[rows.indptr[row] : rows.indptr[row + 1]]}

    assert set(np.flatnonzero((U != before[0]).any(axis=1))) == words(queries, 2)
    assert set(np.flatnonzero((T != before[1]).any(axis=1))) <= words(documents, 3, 4)


def test_pair_hash_by_hand_and_without_collisions() -> None:
    assert pair_hash(np.array([3]), np.array([4]), 11, 10).tolist() == [7]
    assert pair_hash(np.array([2_500_000]), np.array([7]), PRIME, 10**6).tolist() == [(2_500_000 * PRIME + 7) % 10**6]
    words = np.arange(10)
    slots = pair_hash(words[:, None], words[None, :], 11, 10 * 11 + 10 + 1)
    assert len(np.unique(slots)) == 100


@BOTH
def test_scores_of_pairs_by_hand(kernels: ModuleType) -> None:
    queries, documents = kernel_rows([[0, 2, 3], [1, 0, 0]]), kernel_rows([[1, 0, 4], [0, 0, 5]])
    w = np.arange(50, dtype=np.float32)  # h(1, 0) = 7, h(1, 2) = 9, h(2, 0) = 14, h(2, 2) = 16, h(0, 2) = 2
    hashed = kernels.hash_pairs(w, queries, documents, 7)
    np.testing.assert_array_equal(hashed, floats(2 * (7 + 4 * 9) + 3 * (14 + 4 * 16), 5 * 2))
    W = np.arange(9, dtype=np.float32).reshape(3, 3)
    dense = kernels.dense_pairs(W, queries, documents)
    np.testing.assert_array_equal(dense, floats(2 * (3 + 4 * 5) + 3 * (6 + 4 * 8), 5 * 2))
    # Blocks (0, 1) and (2): only word 2 of both sides is in the second block.
    blocks = kernels.block_pairs(floats([1, 2], [3, 4]), queries, documents)
    np.testing.assert_array_equal(blocks, floats(2 * 3 + 3 * 4 * 1, 0))


@BOTH
def test_hash_expand_is_the_sum_over_the_query_words(kernels: ModuleType) -> None:
    w = np.arange(50, dtype=np.float32)
    expanded = kernels.hash_expand(kernel_rows([[0, 2, 3], [0, 0, 0]]), np.array([0, 4]), w, 7)
    np.testing.assert_array_equal(expanded, floats([2 * 7 + 3 * 14, 2 * 11 + 3 * 18], [0, 0]))
