"""Top documents, rank loss, full evaluation against a slow formula."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reranker.arrays import Float32, Int32
from reranker.errors import InputError, ShapeMismatch
from reranker.evaluation import InnerProducts, RankingTask, TestTuples, draw_tuples, evaluate, top_documents
from tests.seeds import seeded_rng

Floats = npt.NDArray[np.float32]


def task_of(grades: npt.ArrayLike, excluded: npt.ArrayLike) -> RankingTask:
    g, e = np.asarray(grades, dtype=np.float32), np.asarray(excluded, dtype=bool)
    return RankingTask(
        tuple(f"q{i}" for i in range(len(g))),
        tuple(f"d{i:04d}" for i in range(g.shape[1])),
        sp.csr_matrix(g),
        sp.csr_matrix(e),
    )


def scorer_of(scores: npt.ArrayLike) -> InnerProducts:
    matrix = np.asarray(scores, dtype=np.float32)
    return InnerProducts(query_vectors=np.eye(len(matrix), dtype=np.float32), document_vectors=matrix.T.copy())


@given(
    scores=hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=st.integers(-3, 3)),
    depth=st.integers(1, 45),
)
@settings(max_examples=150)
def test_top_documents_equals_a_full_sort(scores: Floats, depth: int) -> None:
    scores[scores == -3] = -np.inf
    documents, best = top_documents(scores, depth)
    for row, line in enumerate(scores):
        taking_part = [number for number in range(len(line)) if line[number] > -np.inf]
        expected = sorted(taking_part, key=lambda number: (-line[number], number))[:depth]
        assert documents[row, : len(expected)].tolist() == expected
        assert (documents[row, len(expected) :] == -1).all()
        assert best[row, : len(expected)].tolist() == [line[number] for number in expected]
        assert (best[row, len(expected) :] == -np.inf).all()


def test_rank_loss_counts_ties_half() -> None:
    task = task_of([[1, 0, 0, 0]], [[0, 0, 0, 0]])
    tuples = TestTuples(np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64), np.array([1, 2, 3, 3]))
    result = evaluate(task, scorer_of([[0.5, 0.5, 0.1, 0.9]]), tuples)
    assert result.rank_loss() == pytest.approx(100 * (0.5 + 0 + 1 + 1) / 4)
    assert result.query_rank_losses().tolist() == [pytest.approx(62.5)]


def test_rank_loss_of_no_information_is_one_half() -> None:
    rng = seeded_rng()
    task = task_of(np.eye(30), np.zeros((30, 30)))
    result = evaluate(task, scorer_of(np.zeros((30, 30))), draw_tuples(task, rng, 1000))
    assert result.rank_loss() == 50.0
    assert result.rank_loss_standard_error() == 0.0


def test_standard_error_of_rank_loss_covers_its_spread() -> None:
    """Over repeated worlds of clustered queries, the stated error matches the spread of the estimate."""
    rng = seeded_rng(1)
    estimates, errors = [], []
    for _ in range(60):
        strength = rng.normal(0.6, 1.5, size=(80, 1))
        scores = rng.normal(size=(80, 50))
        scores[:, :1] += strength
        grades = np.zeros((80, 50))
        grades[:, 0] = 1
        task = task_of(grades, np.zeros((80, 50)))
        result = evaluate(task, scorer_of(scores), draw_tuples(task, rng, 2000))
        estimates.append(result.rank_loss())
        errors.append(result.rank_loss_standard_error())
    assert np.mean(errors) == pytest.approx(np.std(estimates), rel=0.35)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeded_rng(2)
    task = task_of(rng.random((23, 40)) < 0.1, rng.random((23, 40)) < 0.05)
    clean = task.grades.toarray() * ~task.excluded.toarray()
    task = task_of(clean, task.excluded.toarray())
    scorer = scorer_of(rng.normal(size=(23, 40)).round(1))
    tuples = draw_tuples(task, rng, 500)
    whole = evaluate(task, scorer, tuples)
    seen: list[tuple[int, Int32, Float32]] = []
    monkeypatch.setattr("reranker.evaluation._BLOCK_BYTES", 4 * 40 * 5)
    parts = evaluate(task, scorer, tuples, on_block=lambda *block: seen.append(block))
    assert [first for first, _, _ in seen] == [0, 5, 10, 15, 20]
    for name, values in whole.values.items():
        assert np.array_equal(values, parts.values[name])
    assert np.array_equal(whole.tuple_losses, parts.tuple_losses)


def test_excluded_documents_do_not_rank() -> None:
    task = task_of([[0, 1, 0]], [[1, 0, 0]])
    seen: list[tuple[int, Int32, Float32]] = []
    tuples = draw_tuples(task, np.random.default_rng(0), 10)
    result = evaluate(task, scorer_of([[9.0, 1.0, 0.5]]), tuples, on_block=lambda *block: seen.append(block))
    assert seen[0][1][0, :3].tolist() == [1, 2, -1]
    assert result.mean("AP") == 1.0


def test_cutting_the_ranking_costs_little() -> None:
    """AP of a ranking cut at k loses at most (relevant documents below k) / (m k) * m: here one document of two."""
    grades = np.zeros((1, 50))
    grades[0, [0, 49]] = 1
    task = task_of(grades, np.zeros((1, 50)))
    scorer = scorer_of(-np.arange(50.0)[None])
    tuples = draw_tuples(task, np.random.default_rng(0), 10)
    full = evaluate(task, scorer, tuples, depth=50).mean("AP")
    cut = evaluate(task, scorer, tuples, depth=10).mean("AP")
    assert full == pytest.approx((1 + 2 / 50) / 2)
    assert cut == pytest.approx(1 / 2)


def test_scores_that_are_not_finite_are_refused_by_name() -> None:
    class Broken:
        shape = (1, 2)

        def block(self, start: int, stop: int) -> Floats:
            return np.array([[0.0, np.nan]], dtype=np.float32)

    task = task_of([[1, 0]], [[0, 0]])
    with pytest.raises(InputError, match=r"'q0'.*'d0001'.*nan"):
        evaluate(task, Broken(), draw_tuples(task, np.random.default_rng(0), 1))


def test_a_scorer_of_another_task_is_refused() -> None:
    task = task_of([[1, 0]], [[0, 0]])
    with pytest.raises(ShapeMismatch, match="queries, documents"):
        evaluate(task, scorer_of(np.zeros((1, 3))), draw_tuples(task, np.random.default_rng(0), 1))
