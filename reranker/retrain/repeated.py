"""The preferences that a model keeps for repeated queries: estimated from the clicks, in units of the model's score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from reranker.clicks.pairs import Rating
from reranker.clicks.preferred import preferences
from reranker.clicks.schema import Impression
from reranker.models.ranking_model import RankingModel
from reranker.models.repeated import RepeatedQueries, preferences_of
from reranker.models.training_queries import KEY_DIGITS, TrainingQueries
from reranker.rerank.ranking import final_order
from reranker.retrain.served_ranks import EarlierClicks, RankedList, ServedModel

MOST_DOCUMENTS: Final = 50
"""Documents of a query that have a preference at most, those with the largest ones."""


class Remembered(NamedTuple):
    """The preferences of a model for repeated queries, and how they came about."""

    queries: RepeatedQueries | None
    """None: there is nothing to prefer."""
    sentence: str


def with_preferences(model: RankingModel, kept: RepeatedQueries | None, texts: Iterable[str]) -> RankingModel:
    """Return a model with the preferences of users for the queries of some texts.

    These become training queries of the model, if it knows its own: a calibration must leave them out.
    """
    known = model.training_queries
    if kept is not None and known is not None:
        known = TrainingQueries.of(known.key, texts, (), known)
    return replace(model, repeated=kept, training_queries=known)


def judged_periods(
    periods: Iterable[tuple[Sequence[Impression], Mapping[str, Sequence[Rating]]]],
    lists: Mapping[str, RankedList],
    number: int,
    served: ServedModel,
    people: int,
) -> EarlierClicks:
    """Return the impressions of some periods, ranked by preferences that were learned before each.

    ``periods`` are given by their impressions and the ratings from before. ``lists`` and ``number`` are as in
    `repeated_queries`; model 0 is the live one, whose words are those of the model. Other queries keep their order.
    """
    judged = EarlierClicks([], [], [])
    for impressions, rated in periods:
        found = repeated_queries(rated, lists, number, served, people).queries
        orders: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
        for impression in impressions:
            query = impression.query
            if query not in orders:
                orders[query] = _both_orders(lists.get(query), number, served, found, query)
            shown = [hit.document for hit in impression.shown]
            if query in lists:
                live, new = ([order.get(document, np.nan) for document in shown] for order in orders[query])
            else:
                live = new = [-float(hit.rank) for hit in impression.shown]
            judged.impressions.append(impression)
            judged.live.append(live)
            judged.candidate.append(new)
    return judged


def _both_orders(
    ranked: RankedList | None, number: int, served: ServedModel, found: RepeatedQueries | None, query: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Return minus the rank of each document of a query, in the live order and with preferences."""
    if ranked is None:
        return {}, {}
    live = dict(zip(ranked.documents, (-ranked.ranks[0].astype(float)).tolist(), strict=True))
    preferred = {} if found is None else found.of_query(query)
    if not preferred:
        return live, live
    scores = ranked.scores[number] + served.alpha * preferences_of(preferred, ranked.documents)
    order = final_order(scores, np.zeros(len(scores), dtype=bool))
    return live, {ranked.documents[place]: -float(rank) for rank, place in enumerate(order.tolist(), 1)}


def repeated_queries(
    rated: Mapping[str, Sequence[Rating]],
    lists: Mapping[str, RankedList],
    number: int,
    served: ServedModel,
    people: int,
) -> Remembered:
    """Return the preferences of users for the queries of some ratings.

    A document is preferred only if at least ``people`` people clicked it, and another one is put back only if it was
    shown to as many: so no single person changes a result page.

    Parameters
    ----------
    rated
        Query text → click statistics of the documents that were shown for it.
    lists
        Query text → these documents with their scores by several models.
    number
        The model's number among them.
    served
        The model as it is served: preferences are in units of f, which has the weight alpha in a score.
    people
        Least number of people.
    """
    if served.model is None or served.alpha <= 0:
        return Remembered(None, "no preference is kept for repeated queries: the model has no weight in the score")
    rows: list[tuple[int, Rating, float]] = []
    for place, (query, ratings) in enumerate(rated.items()):
        of_list = lists[query]
        score_of = dict(zip(of_list.documents, of_list.scores[number].tolist(), strict=True))
        rows += [(place, rating, score_of.get(rating.document, np.nan)) for rating in ratings]

    def column(value: Callable[[Rating], float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([value(rating) for _, rating, _ in rows], dtype=np.float64)

    found = preferences(
        np.array([place for place, _, _ in rows], dtype=np.int64),
        column(lambda rating: rating.recent_clicks),
        column(lambda rating: rating.recent_examined),
        np.array([score for _, _, score in rows], dtype=np.float64),
    )
    by_query: dict[str, dict[str, float]] = {}
    for (_, rating, _), value in zip(rows, (found.values / served.alpha).tolist(), strict=True):
        if (rating.clicks if value > 0 else rating.people) >= people and value:
            by_query.setdefault(rating.query, {})[rating.document] = value
    for query, of_query in by_query.items():
        largest = sorted(of_query.items(), key=lambda item: (-abs(item[1]), item[0]))[:MOST_DOCUMENTS]
        by_query[query] = dict(largest)
    if not by_query:
        return Remembered(None, "no preference is kept for repeated queries: clicks are as the scores predict")
    kept = RepeatedQueries.of(served.model.encoder_id[:KEY_DIGITS], by_query)
    return Remembered(
        kept,
        f"preferences for {len(kept):,} repeated queries and {len(kept.documents):,} of their documents, each weighed "
        f"against {found.prior_clicks:.3g} clicks as the score predicts them",
    )
