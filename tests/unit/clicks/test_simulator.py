"""Simulated logs follow their click model, and say the same in every form."""

from __future__ import annotations

import numpy as np
import pytest

from reranker.clicks.schema import TABLES
from reranker.clicks.simulator import (
    EMPTY,
    Cascade,
    DynamicBayesian,
    LogPlan,
    PositionBased,
    ResultPages,
    attraction_of,
    simulate,
    tables_of,
)
from reranker.errors import ConfigError, InputError, RerankerError, ShapeMismatch
from tests.click_readers import counts_of
from tests.reference.click_steps import count_clicks
from tests.seeds import seeded_rng

N = 40_000


def test_a_position_based_reader_clicks_with_examination_times_attraction() -> None:
    attraction = np.array([[0.9, 0.5, 0.1, 0.8]])
    model = PositionBased((1.0, 0.6, 0.3, 0.1))
    log = simulate([[7, 8, 9, 10]], attraction, model, LogPlan(N), seeded_rng())
    np.testing.assert_allclose(log.clicked.mean(axis=0), attraction[0] * model.examination, atol=0.01)
    np.testing.assert_allclose(log.examination, model.examination, atol=0.01)


def test_a_cascade_ends_at_the_first_click() -> None:
    a = np.array([0.3, 0.5, 0.2])
    log = simulate([[0, 1, 2]], [a], Cascade(), LogPlan(N), seeded_rng())
    assert log.clicked.sum(axis=1).max() == 1
    reached = np.array([1.0, 0.7, 0.7 * 0.5])
    np.testing.assert_allclose(log.looked.mean(axis=0), reached, atol=0.01)
    np.testing.assert_allclose(log.clicked.mean(axis=0), reached * a, atol=0.01)


def test_a_dynamic_bayesian_reader_goes_on_as_its_two_numbers_say() -> None:
    a, s, g = np.array([0.4, 0.6, 0.5]), 0.5, 0.8
    log = simulate([[0, 1, 2]], [a], DynamicBayesian(s, g), LogPlan(N), seeded_rng())
    second = (1 - a[0] * s) * g
    np.testing.assert_allclose(log.looked.mean(axis=0), [1, second, second * (1 - a[1] * s) * g], atol=0.01)
    np.testing.assert_allclose(log.clicked.mean(axis=0), log.looked.mean(axis=0) * a, atol=0.01)


def test_nobody_clicks_what_is_not_looked_at_or_not_there() -> None:
    rng = seeded_rng()
    shown = np.array([[0, 1, 2], [3, 4, EMPTY], [5, EMPTY, EMPTY]])
    for model in (PositionBased.power(3, 1), Cascade(), DynamicBayesian()):
        log = simulate(shown, np.full((3, 3), 0.7), model, LogPlan(3_000, randomised=0.5), rng)
        assert not (log.clicked & ~log.looked).any()
        assert not (log.looked & (log.shown == EMPTY)).any()
        assert ((log.shown != EMPTY).sum(axis=1) == np.array([3, 2, 1])[log.query]).all()


def test_a_randomised_share_is_shuffled_uniformly_and_marked() -> None:
    log = simulate([[0, 1, 2, 3]], np.full((1, 4), 0.5), Cascade(), LogPlan(N, randomised=0.25), seeded_rng())
    assert log.randomised.mean() == pytest.approx(0.25, abs=0.01)
    assert (log.shown[~log.randomised] == [0, 1, 2, 3]).all()
    for document in range(4):
        np.testing.assert_allclose((log.shown[log.randomised] == document).mean(axis=0), 0.25, atol=0.02)


def test_queries_are_asked_by_popularity_and_equal_seeds_give_equal_logs() -> None:
    plan = LogPlan(N, popularity=1.0, users=50)
    logs = [
        simulate(np.arange(6).reshape(3, 2), np.full((3, 2), 0.3), Cascade(), plan, np.random.default_rng(5))
        for _ in range(2)
    ]
    np.testing.assert_allclose(np.bincount(logs[0].query) / N, np.array([6, 3, 2]) / 11, atol=0.01)
    assert len(np.unique(logs[0].user)) == 50
    assert (np.diff(logs[0].time) >= 0).all()
    for name in ("query", "shown", "clicked", "user", "time", "randomised"):
        np.testing.assert_array_equal(getattr(logs[0], name), getattr(logs[1], name))


def test_arrays_impressions_counts_and_tables_say_the_same() -> None:
    shown = np.array([[0, 1, 2], [3, 1, EMPTY]])
    log = simulate(shown, np.full((2, 3), 0.5), PositionBased.power(3, 0.5), LogPlan(400, randomised=0.3), seeded_rng())
    queries, documents = ["red shoes", "boots"], ["a", "b", "c", "d"]
    impressions = list(log.impressions(queries, documents))
    assert [len(one.shown) for one in impressions] == (log.shown != EMPTY).sum(axis=1).tolist()
    assert sum(len(one.clicked) for one in impressions) == log.clicked.sum()

    counted = count_clicks(impressions)
    for one, other in zip(counts_of(log).by_rank(), counted.by_rank(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert sorted(zip(counts_of(log).shown, counts_of(log).clicked, counts_of(log).randomised, strict=True)) == sorted(
        zip(counted.shown, counted.clicked, counted.randomised, strict=True)
    )

    tables = tables_of(log, queries, documents)
    assert {name: tuple(columns) for name, columns in tables.items()} == {n: tuple(c) for n, c in TABLES.items()}
    assert all(len({len(values) for values in columns.values()}) == 1 for columns in tables.values())
    hits, events = tables["hits"], tables["events"]
    told = {(one.query_id, place.document, place.rank, place.clicked) for one in impressions for place in one.shown}
    clicks = {
        (q, d) for q, d, a in zip(events["query_id"], events["document"], events["action"], strict=True) if a == "click"
    }
    rows = zip(hits["query_id"], hits["document"], hits["position"], strict=True)
    assert {(q, d, p, (q, d) in clicks) for q, d, p in rows} == told


def test_attraction_is_one_number_for_relevant_and_one_for_other_documents() -> None:
    np.testing.assert_array_equal(attraction_of([[1, 0]], of_relevant=0.9, of_others=0.2), [[0.9, 0.2]])


@pytest.mark.parametrize(
    ("rankings", "attraction", "error"),
    [
        ([[0, 1]], [[0.1]], ShapeMismatch),
        ([[0, 1]], [[0.1, 1.5]], InputError),
        ([[0, 1]], [[0.1, np.nan]], InputError),
        ([[EMPTY, 1]], [[0.1, 0.2]], InputError),
        (np.zeros((0, 3)), np.zeros((0, 3)), ShapeMismatch),
    ],
)
def test_impossible_lists_are_refused(rankings: object, attraction: object, error: type[RerankerError]) -> None:
    with pytest.raises(error):
        simulate(rankings, attraction, Cascade(), LogPlan(5), seeded_rng())  # type: ignore[arg-type]


def test_impossible_settings_are_refused() -> None:
    for make in (
        lambda: PositionBased(()),
        lambda: PositionBased((1.2,)),
        lambda: DynamicBayesian(satisfaction=2),
        lambda: DynamicBayesian(continuation=-0.1),
        lambda: LogPlan(0),
        lambda: LogPlan(5, users=0),
        lambda: LogPlan(5, randomised=1.1),
        lambda: LogPlan(5, days=0),
    ):
        with pytest.raises(ConfigError):
            make()
    with pytest.raises(ShapeMismatch, match="3 documents"):
        simulate([[0, 1, 2]], [[0.1] * 3], PositionBased((1.0, 0.5)), LogPlan(5), seeded_rng())


def lists_of(**shown: str) -> ResultPages:
    return ResultPages.of({query: list(documents) for query, documents in shown.items()})


def test_lists_are_numbered_and_shorter_ones_end() -> None:
    lists = lists_of(red="abc", none="", blue="ca")
    assert lists.rankings.tolist() == [[0, 1, 2], [EMPTY] * 3, [2, 0, EMPTY]]
    assert [lists.list_of(row) for row in range(3)] == [["a", "b", "c"], [], ["c", "a"]]


def test_judged_grades_decide_what_attracts() -> None:
    lists = lists_of(red="abc", blue="ca")
    attraction = lists.attraction_of_grades({"red": {"a": 4.0, "b": 1.0, "c": -1.0}, "blue": {"unseen": 2.0}})
    np.testing.assert_allclose(attraction, [[0.8, 0.05 + 0.75 / 4, 0.05], [0.05, 0.05, 0.05]])
    assert list(lists.judgements(attraction)) == [
        (0, "a", 0.8),
        (0, "b", 0.24),
        (0, "c", 0.05),
        (1, "c", 0.05),
        (1, "a", 0.05),
    ]


@pytest.mark.parametrize("grades", [{}, {"red": {"a": 0.0}}, {"red": {"unseen": 3.0}}, {"green": {"a": 1.0}}])
def test_judgments_of_no_shown_document_are_refused(grades: dict[str, dict[str, float]]) -> None:
    with pytest.raises(InputError, match="give judgments of documents that these queries find"):
        lists_of(red="abc").attraction_of_grades(grades)


def test_drawn_appeals_have_the_mean_of_their_distribution() -> None:
    appeal = lists_of(**{f"q{number}": "abcdefghij" for number in range(2_000)}).drawn_attraction(seeded_rng())
    assert appeal.shape == (2_000, 10) and (appeal >= 0).all() and (appeal <= 1).all()
    assert appeal.mean() == pytest.approx(0.8 / 3.3, abs=0.01)


def test_the_true_ndcg_counts_each_query_as_often_as_it_was_asked() -> None:
    lists = lists_of(good="ab", bad="ab", none="")
    attraction = np.array([[0.8, 0.2], [0.2, 0.8], [0.5, 0.5]])
    bad = (0.2 + 0.8 / np.log2(3)) / (0.8 + 0.2 / np.log2(3))
    assert lists.true_ndcg(attraction, [1, 0, 9]) == pytest.approx(1.0)
    assert lists.true_ndcg(attraction, [3, 1, 9]) == pytest.approx((3 + bad) / 4)
