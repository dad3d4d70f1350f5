"""Validation of what is known: documents without a grade can be left out."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.evaluation import DEPTH, InnerProducts, RankingTask, draw_tuples, evaluate, qrels_task
from reranker.lexical.kernel import Judged, blended_average_precision
from reranker.progress import silent
from reranker.records import Pair
from reranker.training import TrainConfig, from_judgements, from_pairs
from reranker.training.config import schedule_of
from reranker.training.context import (
    KnownScores,
    ShortQueries,
    TrainedParameters,
    TrainingContext,
    Validator,
    values_by,
)
from reranker.training.problem import Problem, TwoRows, two_rows
from reranker.training.trainer import NegativeMiner, TrainResult
from reranker.training.training_set import mix
from tests.seeds import seeded_rng


def rows(values: list[list[float]]) -> TwoRows:
    return two_rows(sp.csr_matrix(np.array(values, dtype=np.float32)), None)


QUERIES = rows([[1, 0], [0, 1]])
DOCUMENTS = rows([[0.9, 0.1], [0.5, 0.6], [0.1, 0.9], [0.8, 0.8]])
TASK = qrels_task({"x": {"b": 1.0, "c": 0.0}, "y": {"a": 1.0, "c": 0.0, "b": 0.0}}, ["x", "y"], "abcd")
NOTHING = np.zeros((2, 1), np.float32)


def test_documents_without_a_grade_stand_last_or_take_part() -> None:
    """By q.d: x ranks a d b c, y ranks c d b a. Of the graded ones alone: b c, and c b a."""
    rng = np.random.default_rng(0)
    whole = Validator(TASK, QUERIES, DOCUMENTS, 1.0, rng)
    known = Validator(TASK, QUERIES, DOCUMENTS, 1.0, rng, judged_only=True)
    assert whole.lexical.mean() == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert known.lexical.mean() == pytest.approx((1 + 1 / 3) / 2)
    alone = values_by([known], NOTHING, NOTHING)
    np.testing.assert_allclose(np.concatenate(alone, axis=1)[0], known.lexical)


def test_the_learned_part_moves_known_documents_among_themselves() -> None:
    known = Validator(TASK, QUERIES, DOCUMENTS, 1.0, np.random.default_rng(0), judged_only=True)
    U, V = np.array([[0.0], [5.0]], np.float32), np.array([[1.0], [0.0]], np.float32)
    assert np.mean(values_by([known], U, V)) == pytest.approx(1.0)


def test_the_mark_of_clicks_stays_with_parts_and_mixtures() -> None:
    clicks = replace(from_pairs([Pair("a", "1", "2"), Pair("b", "2", "1")]), judged_only=True)
    judged = from_judgements({"q": {"1": 1.0}}, {"q": "text"})
    assert not judged.judged_only
    assert not judged.shown_only
    assert clicks.restricted(["a"]).shown_only
    assert mix((judged, 1.0), (clicks, 1.0)).shown_only
    assert clicks.restricted(["a"]).judged_only
    assert mix((judged, 1.0), (clicks, 1.0)).judged_only
    assert not mix((judged, 1.0), (judged, 1.0)).judged_only


@pytest.mark.parametrize("depth", [1_000, 7])
def test_the_precision_of_blended_scores_is_that_of_ranking(depth: int) -> None:
    """With many ties, pairs that do not take part, and queries with one or many relevant documents."""
    rng = seeded_rng()
    n, m = 40, 90
    learned, lexical = (rng.integers(-3, 4, (n, m)).astype(np.float32) for _ in range(2))
    grades = (rng.random((n, m)) < rng.choice([0.02, 0.3], (n, 1))).astype(np.float32)
    grades[np.arange(n), rng.integers(0, m, n)] = 1.0
    excluded = (rng.random((n, m)) < 0.2) & (grades == 0)
    names = tuple(f"{number:03}" for number in range(m))
    task = RankingTask(names[:n], names, sp.csr_matrix(grades), sp.csr_matrix(excluded))
    relevant = task.relevant()
    judged = Judged(relevant.indptr, relevant.indices, task.excluded.indptr, task.excluded.indices)
    for scale, identity in ((1.0, 1.0), (0.5, 2.0), (0.0, 1.0), (1.0, 0.0)):
        found = blended_average_precision(learned, lexical, np.float32(scale), np.float32(identity), judged, depth)
        scorer = InnerProducts(scale * learned + identity * lexical, np.eye(m, dtype=np.float32))
        tuples = draw_tuples(task, rng, 0)
        if depth == DEPTH:
            np.testing.assert_allclose(found, evaluate(task, scorer, tuples, ("AP",)).values["AP"], rtol=1e-12)
        scores = np.where(excluded, -np.inf, scorer.block(0, n))
        order = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
        hits = np.take_along_axis(grades, order, axis=1)
        precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
        np.testing.assert_allclose(found, (precision * hits).sum(axis=1) / grades.sum(axis=1), rtol=1e-12)


def test_measures_of_a_form_are_those_of_the_library() -> None:
    """AP comes from the kernel that training stops by, nDCG@10 from rankings that end at rank 10."""
    rng, (n_queries, n_documents) = seeded_rng(), (20, 60)
    grades = np.where(rng.random((n_queries, n_documents)) < 0.2, rng.integers(1, 3, (n_queries, n_documents)), 0)
    task = qrels_task(
        {
            str(query): {str(document): float(grades[query, document]) for document in np.flatnonzero(grades[query])}
            for query in range(n_queries)
        },
        [str(query) for query in range(n_queries)],
        [str(document) for document in range(n_documents)],
    )
    queries, documents = (rows(rng.random((n, 3)).round(1).tolist()) for n in (n_queries, n_documents))
    validator = Validator(task, queries, documents, 1.0, rng)
    added = rng.random((len(validator.task.query_ids), n_documents)).astype(np.float32).round(1)
    found = validator.measured(added, 0.5)
    lexical = (validator.queries @ validator.documents.T).toarray()
    scores = KnownScores(added + np.float32(0.5) * lexical)
    expected = evaluate(validator.task, scores, draw_tuples(validator.task, rng, n_tuples=0), tuple(found)).values
    assert found.keys() == {"AP", "nDCG@10"}
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-9, err_msg=name)
        assert 0 < values.mean() < 1


def test_both_rows_are_read_where_they_belong() -> None:
    """The lexical rows make q.d, the learned ones go through U and V."""
    learned = rows([[0, 1], [1, 0]]).learned
    both = two_rows(learned, QUERIES.lexical)
    validator = Validator(TASK, both, DOCUMENTS, 1.0, np.random.default_rng(0))
    alone = Validator(TASK, QUERIES, DOCUMENTS, 1.0, np.random.default_rng(0)).lexical
    np.testing.assert_array_equal(validator.lexical, alone)
    np.testing.assert_array_equal(validator.queries[:, :2].toarray(), learned.toarray()[:, :2])
    U, V = np.array([[0.0], [5.0]], np.float32), np.array([[1.0], [0.0]], np.float32)
    # x asks word 1 of U, y word 0, which says nothing: x ranks a d b c by V, y c d b a by q.d.
    values = validator.values(validator.queries[:, :2] @ U, validator.documents[:, :2] @ V)
    np.testing.assert_allclose(values, [[1 / 3, 1 / 4]])


def test_where_short_queries_get_a_scale_of_their_own_the_scale_is_that_of_whole_ones() -> None:
    """What is learned puts b before c for everybody: wrong for x, by which q.d is right, and right for y."""
    documents = rows([[0.0, 0.0], [0.5, 0.0], [0.6, 0.0], [0.1, 0.0]])
    asked = rows([[1, 0]])
    rng = np.random.default_rng(0)
    whole = Validator(qrels_task({"x": {"c": 1.0}}, ["x"], "abcd"), asked, documents, 1.0, rng)
    short = Validator(qrels_task({"y": {"b": 1.0}}, ["y"], "abcd"), asked, documents, 1.0, rng, is_short=True)
    U, V = np.array([[1.0], [0.0]], np.float32), np.array([[2.0], [0.0]], np.float32)
    learned = two_rows(sp.csr_matrix(np.array([[0, 0], [1, 0], [0, 0], [0, 0]], np.float32)), documents.lexical)
    for validator in (whole, short):
        validator.documents = learned.learned
    config = TrainConfig()
    schedule = schedule_of(config, queries_are_texts=False, unseen_documents=False)
    assert schedule.short_apart
    context = TrainingContext(
        config,
        schedule,
        cast(Problem, None),
        cast(NegativeMiner, None),
        [whole, short],
        rng,
        lambda _: (U, V),
        {},
        None,
        silent,
        lambda *_: None,
    )
    assert context.best_scale(U, V, 1.0) == (1.0, 0.0)
    context.schedule = replace(schedule, short_apart=False)
    value, scale = context.best_scale(U, V, 1.0)
    assert (value, scale) == (0.75, 1.0)
    by_own_U = TrainedParameters(np.zeros_like(U), V, TrainResult(U, V, 1, None), short=ShortQueries(U, 1.0))
    np.testing.assert_array_equal(by_own_U.values_by([whole, short]), [1.0, 1.0])
    np.testing.assert_array_equal(replace(by_own_U, short=None).values_by([whole, short]), [1.0, 0.5])
