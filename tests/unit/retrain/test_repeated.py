"""Preferences of a model for repeated queries: units of the score, and periods judged by what came before them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reranker.clicks.pairs import Rating
from reranker.clicks.schema import Impression, ShownDocument
from reranker.models.repeated import RepeatedQueries
from reranker.models.training_queries import TrainingQueries
from reranker.retrain.repeated import MOST_DOCUMENTS, judged_periods, repeated_queries, with_preferences
from reranker.retrain.served_ranks import RankedList, ServedModel
from tests.ratings import rating
from tests.seeds import seeded_rng
from tests.unit.small_models import small_model

MODEL = small_model()
DOCUMENTS = tuple(f"d{number}" for number in range(6))


def lists_of(queries: list[str]) -> dict[str, RankedList]:
    """Return lists of six documents, in the order of their numbers by both models."""
    scores = np.tile(-np.arange(6.0), (2, 1))
    return {query: RankedList(DOCUMENTS, scores, np.tile(np.arange(1, 7), (2, 1))) for query in queries}


def ratings_of(queries: list[str], liked: int, people: int = 40) -> dict[str, list[Rating]]:
    """Return ratings of lists on which nearly everybody clicked one document, and few the others."""
    rng = seeded_rng(5)
    return {
        query: [
            rating(query, document, people, int(rng.integers(0, 4)) if place != liked else people - 5)
            for place, document in enumerate(DOCUMENTS)
        ]
        for query in queries
    }


QUERIES = [f"query {number}" for number in range(30)]


def test_preferences_are_in_units_of_the_model_s_part_of_the_score() -> None:
    lists, rated = lists_of(QUERIES), ratings_of(QUERIES, liked=4)
    whole, half = (repeated_queries(rated, lists, 1, ServedModel(MODEL, alpha), 2).queries for alpha in (1.0, 0.5))
    assert whole is not None and half is not None and len(whole) == len(QUERIES)
    one = whole.of_query("QUERY 3")
    assert max(one, key=lambda document: one[document]) == "d4" and one["d4"] > 4
    assert {document: value / 2 for document, value in half.of_query("query 3").items()} == pytest.approx(one, rel=1e-5)


def test_repeated_queries_are_training_queries_of_a_model_that_knows_its_own() -> None:
    kept = RepeatedQueries.of("0" * 32, {"red shoe": {"d1": 1.0}})
    known = TrainingQueries.of("0" * 32, ["earlier"], ["d1"])
    model = with_preferences(small_model(training_queries=known), kept, ["Red shoe"])
    assert model.repeated is kept and model.training_queries is not None
    assert model.training_queries.have_texts(["red  shoe", "earlier", "another"]).tolist() == [True, True, False]
    assert model.training_queries.have_documents(["d1"]).all()
    assert with_preferences(MODEL, kept, ["red shoe"]).training_queries is None
    assert with_preferences(small_model(training_queries=known), None, ["red shoe"]).training_queries is known


def test_recent_clicks_decide_between_documents_that_were_liked_at_different_times() -> None:
    lists, rated = lists_of(QUERIES), ratings_of(QUERIES, liked=4)
    for query, of_query in rated.items():
        of_query[4] = rating(query, "d4", 40, 35, freshness=0.1)
        of_query[5] = rating(query, "d5", 40, 30)
    kept = repeated_queries(rated, lists, 1, ServedModel(MODEL, 1.0), 2).queries
    assert kept is not None
    one = kept.of_query("query 3")
    # The share of clicks is nearly the same; that of d4 is less certain, and its people still count as people.
    assert 0 < one["d4"] < one["d5"]


def test_nothing_is_preferred_for_a_single_person_or_without_a_weight() -> None:
    lists, rated = lists_of(QUERIES), ratings_of(QUERIES, liked=4)
    few = {query: [rating(query, one.document, 1, min(one.clicks, 1)) for one in of] for query, of in rated.items()}
    for case, served in ((few, ServedModel(MODEL, 1.0)), (rated, ServedModel(MODEL, 0.0)), (rated, ServedModel(None))):
        found = repeated_queries(case, lists, 1, served, 2)
        assert found.queries is None and "no preference is kept" in found.sentence
    assert repeated_queries({}, {}, 1, ServedModel(MODEL, 1.0), 2).queries is None


def test_a_query_keeps_the_largest_preferences() -> None:
    documents = tuple(f"d{number:03}" for number in range(MOST_DOCUMENTS + 20))
    clicks = [2 + (number * 7) % 40 for number in range(len(documents))]
    rated = {"q": [rating("q", document, 50, n) for document, n in zip(documents, clicks, strict=True)]}
    scores = np.tile(seeded_rng(3).normal(size=len(documents)), (2, 1))
    lists = {"q": RankedList(documents, scores, np.tile(np.arange(1, len(documents) + 1), (2, 1)))}
    kept = repeated_queries(rated, lists, 1, ServedModel(MODEL, 1.0), 2).queries
    assert kept is not None and len(kept.of_query("q")) == MOST_DOCUMENTS
    many = repeated_queries(rated, lists, 1, ServedModel(MODEL, 1.0), 51)
    assert many.queries is None, "no document was shown to so many people"


def test_a_period_is_judged_by_what_came_before_it() -> None:
    lists = lists_of(QUERIES)

    def impression(query: str, *documents: str) -> Impression:
        return Impression("q", query, tuple(ShownDocument(one, rank) for rank, one in enumerate(documents, 1)))

    first = [impression("query 1", "d0", "d4", "gone"), impression("another", "x", "y")]
    second = [impression("query 1", "d0", "d4", "d5")]
    periods = [(first, {}), (second, ratings_of(QUERIES, liked=4))]
    judged = judged_periods(periods, lists, 1, ServedModel(MODEL, 1.0), 2)
    assert judged.impressions == [*first, *second]
    assert judged.live[1] == judged.candidate[1] == [-1.0, -2.0]
    assert judged.live[0][:2] == judged.candidate[0][:2] == [-1.0, -5.0]
    assert math.isnan(judged.live[0][2]) and math.isnan(judged.candidate[0][2])
    assert judged.live[2] == [-1.0, -5.0, -6.0] and judged.candidate[2][1] == -1.0
