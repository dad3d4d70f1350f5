"""The papers' measures and protocol by their ids: rank loss, MAP, P@n, and pools of random documents."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from papers.retrieval_studies import sample_pools
from reranker.errors import ConfigError
from reranker.evaluation import InnerProducts, RankingTask, TestTuples, draw_tuples, evaluate, evaluate_ranking


def task_of(grades: npt.ArrayLike, excluded: npt.ArrayLike) -> RankingTask:
    g, e = np.asarray(grades, dtype=np.float32), np.asarray(excluded, dtype=bool)
    queries, documents = (tuple(f"{letter}{i:03d}" for i in range(n)) for letter, n in zip("qd", g.shape, strict=True))
    return RankingTask(queries, documents, sp.csr_matrix(g), sp.csr_matrix(e))


def big_task() -> RankingTask:
    """30 queries over 50 documents: query i wants documents i and i + 1, and documents 49 - i and 40 are left out."""
    grades, excluded = np.zeros((32, 50)), np.zeros((32, 50))
    for i in range(30):
        grades[i, [i, i + 1]] = 1
        excluded[i, [column for column in (49 - i, 40) if not grades[i, column]]] = 1
    return task_of(grades, excluded)


def scorer_of(scores: npt.ArrayLike) -> InnerProducts:
    matrix = np.asarray(scores, dtype=np.float32)
    return InnerProducts(query_vectors=np.eye(len(matrix), dtype=np.float32), document_vectors=matrix.T.copy())


def test_E01_rank_loss_by_hand() -> None:
    task = task_of([[1, 0, 0, 0], [0, 0, 1, 0]], np.zeros((2, 4)))
    tuples = TestTuples(np.array([0, 0, 1, 1]), np.array([0, 0, 2, 2]), np.array([1, 2, 0, 3]))
    # Query 0: one wrong, one right; query 1: one tie, one right.
    result = evaluate(task, scorer_of([[0.5, 0.9, 0.1, 0], [0.3, 0, 0.3, 0.1]]), tuples)
    assert result.rank_loss() == pytest.approx(100 * 1.5 / 4)


def test_E01_one_hundred_thousand_tuples_are_drawn() -> None:
    task = big_task()
    tuples = draw_tuples(task, np.random.default_rng(0))
    assert len(tuples.query) == 100_000
    grades, excluded = task.grades.toarray(), task.excluded.toarray()
    assert (grades[tuples.query, tuples.positive] == 1).all()
    assert not (grades[tuples.query, tuples.negative] + excluded[tuples.query, tuples.negative]).any()


def test_E02_E03_average_precision_and_precision_at_n_by_hand() -> None:
    # Relevant documents at ranks 1, 3 and 6 of one ranking, and a fourth one that is not found.
    grades = sp.csr_matrix(np.array([[1, 0, 1, 0, 0, 1, 1]], np.float32))
    values = evaluate_ranking(np.array([[0, 1, 2, 3, 4, 5]], np.int32), grades, ["AP", "P@1", "P@5", "P@10"])
    assert values["AP"][0] == pytest.approx((1 / 1 + 2 / 3 + 3 / 6) / 4)
    assert [values[name][0] for name in ("P@1", "P@5", "P@10")] == pytest.approx([1, 2 / 5, 3 / 10])


def test_E03_few_relevant_documents_cap_the_precision() -> None:
    grades = sp.csr_matrix(np.array([[1, 1, 1] + [0] * 17], np.float32))
    assert evaluate_ranking(np.arange(20, dtype=np.int32)[None], grades, ["P@10"])["P@10"][0] == pytest.approx(0.3)


def test_E04_each_query_ranks_its_own_and_random_documents() -> None:
    task = big_task()
    sampled = sample_pools(task, np.random.default_rng(1), n_queries=20, n_random=7)
    assert len(sampled.query_ids) == 20 and sorted(sampled.query_ids) == list(sampled.query_ids)
    rows = [task.query_ids.index(query) for query in sampled.query_ids]
    grades, excluded = sampled.grades.toarray(), sampled.excluded.toarray()
    np.testing.assert_array_equal(grades, task.grades.toarray()[rows])
    assert (excluded >= task.excluded.toarray()[rows]).all()  # the query itself and its training links stay out
    assert not (excluded & (grades > 0)).any()
    assert (~excluded).sum(axis=1).tolist() == [2 + 7] * 20


def test_E04_the_random_documents_are_drawn_evenly() -> None:
    task = task_of([[1] + [0] * 20], [[0] * 20 + [1]])
    rng = np.random.default_rng(2)
    times = sum((~sample_pools(task, rng, 1, 5).excluded.toarray()).astype(int)[0] for _ in range(600))
    assert times[0] == 600 and times[20] == 0
    # 600 draws of 5 out of 19: 158 each, deviation sqrt(600 * 5/19 * 14/19) = 10.8.
    assert np.abs(times[1:20] - 600 * 5 / 19).max() < 5 * 10.8


def test_E04_small_pools_are_taken_whole_and_queries_without_links_left_out() -> None:
    task = big_task()
    sampled = sample_pools(task, np.random.default_rng(3))
    assert len(sampled.query_ids) == 30
    np.testing.assert_array_equal(sampled.excluded.toarray(), task.excluded.toarray()[:30])
    same = sample_pools(task, np.random.default_rng(9), 5, 5), sample_pools(task, np.random.default_rng(9), 5, 5)
    assert same[0].query_ids == same[1].query_ids
    np.testing.assert_array_equal(same[0].excluded.toarray(), same[1].excluded.toarray())


def test_E04_ranks_only_the_pool_of_the_query() -> None:
    # Document 2 beats all, but is drawn for no query: the relevant document 0 comes first of what takes part.
    task = task_of([[1, 0, 0]], [[0, 0, 1]])
    sampled = sample_pools(task, np.random.default_rng(0), 1, 0)
    result = evaluate(sampled, scorer_of([[0.1, 0.5, 0.9]]), draw_tuples(task, np.random.default_rng(0), 10))
    assert result.mean("AP") == 1.0


def test_numbers_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 query"):
        sample_pools(big_task(), np.random.default_rng(0), n_queries=0)
    with pytest.raises(ConfigError, match="-1 random documents"):
        sample_pools(big_task(), np.random.default_rng(0), n_random=-1)
