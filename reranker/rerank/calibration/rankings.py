"""Rankings of topics: their candidates, which can be ranked with any alpha and weights, and the engine's own order.

The engine is asked only once per topic, however many alphas and weights are tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from reranker.arrays import Bool, Float64
from reranker.engines.vectors import QueryVectors
from reranker.evaluation import evaluate_run
from reranker.progress import Progress
from reranker.records import Reason, ReasonKind
from reranker.rerank.answer import RerankedPage
from reranker.rerank.calibration.topics import Topic
from reranker.rerank.ranking import blend, final_order
from reranker.rerank.search import Reranker
from reranker.rerank.signals import Signal

Point = tuple[float, ...]
"""Alpha, followed by the weight of each signal."""


class TopicWindow(NamedTuple):
    """The candidates of one topic with the components of their scores."""

    ids: list[str]
    model: Float64
    """(n,) float64: f(q, d)."""
    words: Float64
    """(n,) float64: q·d, the word matches; NaN if the candidate has no f(q, d)."""
    lexical: Float64
    """(n,) float64: the engine's score."""
    scale: float
    """c(q)."""
    kept: Bool
    """(n,) bool: candidates that must not move."""
    signals: Float64
    """(n_signals, n) float64: raw numbers, NaN if missing, until `Rankings.make_knots` replaces them by s(x)."""
    is_empty: bool
    """Whether the query is empty for the model."""
    excluded: frozenset[str]
    """Ids that are removed from the ranking."""

    def ranked(self, point: Point) -> list[str]:
        """Return the ids in final order, without duplicates."""
        added = np.array(point[1:]) @ self.signals
        scores = blend(self.model, self.lexical, point[0], self.scale, added)
        if self.is_empty:
            scores[:] = np.nan
        return self.answers([self.ids[place] for place in final_order(scores, self.kept).tolist()])

    def answers(self, ranked: Sequence[str]) -> list[str]:
        """Return the ids that are not excluded, without duplicates."""
        return list(dict.fromkeys(document for document in ranked if document not in self.excluded))


@dataclass(slots=True)
class Rankings:
    """The windows of all topics, which are named ``"0"``, ``"1"``, ... by their positions, with statistics."""

    signals: tuple[Signal, ...]
    missing: tuple[float, ...] = ()
    """Share of the candidates without a number, for each signal."""
    windows: list[TopicWindow] = field(default_factory=list)
    perfect: dict[str, list[str]] = field(default_factory=dict)
    n_zero: int = 0
    n_scored: int = 0
    n_fallbacks: int = 0
    n_equal_scores: int = 0
    """Number of topics with several candidates to which the engine gave no two different scores."""

    def run(self, point: Point) -> dict[str, list[str]]:
        """Return the ids of each topic, best first, with this alpha and these weights."""
        return {str(number): window.ranked(point) for number, window in enumerate(self.windows)}

    def run_of_words(self) -> dict[str, list[str]]:
        """Return the ids of each topic, best first, by the word matches q·d only."""
        point = (1.0, *(0.0 for _ in self.signals))
        return {
            str(number): window._replace(model=window.words).ranked(point) for number, window in enumerate(self.windows)
        }

    def make_knots(self) -> None:
        """Fit each signal's quantile knots on all candidates, then replace raw values by s(x)."""
        numbers = np.concatenate([window.signals for window in self.windows], axis=1)
        self.missing = tuple(np.isnan(numbers).mean(axis=1).tolist())
        self.signals = tuple(signal.with_knots(row) for signal, row in zip(self.signals, numbers, strict=True))
        self.windows = [
            window._replace(
                signals=np.array([one.shares(row) for one, row in zip(self.signals, window.signals, strict=True)])
            )
            for window in self.windows
        ]


def rank_topics(
    reranker: Reranker,
    topics: Sequence[Topic],
    body: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    signals: tuple[Signal, ...] = (),
) -> Rankings:
    """Ask the engine once per topic and return the candidates, which can then be ranked with any alpha and weights.

    ``signals`` must have their kinds set (`signals.typed`). Their knots are fitted here on all candidates. Raises
    `InputError` for a signal for which no candidate has a number.
    """
    rankings = Rankings(signals)
    for number, topic in enumerate(topics):
        _rank_topic(reranker, topic, body, rankings)
        if progress is not None:
            progress(number + 1, len(topics))
    if signals:
        rankings.make_knots()
    return rankings


def _rank_topic(reranker: Reranker, topic: Topic, body: Mapping[str, Any] | None, rankings: Rankings) -> None:
    """Add the candidates of a topic to the rankings."""
    window, query, kept = reranker.score_window(topic.query, body, rankings.signals)
    ids = [hit.id for hit in window.hits]
    numbers = np.array([signal.numbers(window.hits) for signal in rankings.signals]).reshape(
        len(rankings.signals), len(ids)
    )
    only_words = QueryVectors(np.zeros_like(query.vectors.vector), query.vectors.ids, query.vectors.weights, 1.0)
    same_words = window.vectors.score(only_words)
    candidates = TopicWindow(
        ids, window.model, same_words, window.lexical, query.scale, kept, numbers, query.is_empty, topic.excluded
    )
    best = sorted(ids, key=lambda document: -topic.grades.get(document, 0.0))
    rankings.perfect[str(len(rankings.windows))] = candidates.answers(best)
    rankings.windows.append(candidates)
    if query.is_empty or window.n_unscored > reranker.settings.max_unscored * max(len(ids), 1):
        rankings.n_fallbacks += 1
    scores = window.lexical[np.isfinite(window.lexical)]
    rankings.n_equal_scores += int(len(ids) > 1 and len(np.unique(scores)) < 2)
    rankings.n_zero += int((same_words == 0).sum())
    rankings.n_scored += int((~np.isnan(same_words)).sum())


def engine_run(
    reranker: Reranker, topics: Sequence[Topic], body: Mapping[str, Any], progress: Progress | None = None
) -> dict[str, list[str]]:
    """Return the ids of each topic in the engine's own order of a body template, down to the window of the reranker."""
    off = Reason(ReasonKind.SWITCHED_OFF, "the engine's order is measured")
    return run_of(pages_of(reranker, topics, body, progress, off), topics)


def pages_of(
    reranker: Reranker,
    topics: Sequence[Topic],
    body: Mapping[str, Any],
    progress: Progress | None,
    off: Reason | None = None,
) -> list[RerankedPage]:
    """Return a page of ids for each topic, down to the window of the reranker."""
    shown = {**body, "_source": False}
    pages = []
    for number, topic in enumerate(topics):
        pages.append(reranker.search(topic.query, shown, size=reranker.settings.window, from_=0, off=off))
        if progress is not None:
            progress(number + 1, len(topics))
    return pages


def run_of(pages: Sequence[RerankedPage], topics: Sequence[Topic]) -> dict[str, list[str]]:
    """Return the ids of each topic, best first, without duplicates and excluded ones."""
    ids = (dict.fromkeys(hit.id for hit in page.hits) for page in pages)
    return {
        str(number): [one for one in found if one not in topic.excluded]
        for number, (found, topic) in enumerate(zip(ids, topics, strict=True))
    }


def values_of_run(qrels: Mapping[str, Mapping[str, float]], run: Mapping[str, Sequence[str]], measure: str) -> Float64:
    """Return the measure of each topic, (n,) float64."""
    depth = int(measure.partition("@")[2]) if "@" in measure else None
    cut = {name: ids[:depth] for name, ids in run.items()}
    values = evaluate_run(qrels, cut, [measure])[measure]
    return np.array([values[str(number)] for number in range(len(qrels))])
