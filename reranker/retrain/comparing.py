"""The new model beside the live one on the newest slice and on judged queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reranker.clicks.schema import Impression
from reranker.evaluation.measures import evaluate_run
from reranker.retrain.changes import LIVE, NEW, Changes, changes_of
from reranker.retrain.gate import JudgedQueries, Verdict, decide, shown_lists
from reranker.retrain.gate_input import GateConfig
from reranker.retrain.history import History
from reranker.retrain.report import StudyPoint
from reranker.retrain.serving_scores import Progress, RankedList, ServingScores

MEASURE = "nDCG@10"


@dataclass(frozen=True)
class Compared:
    """What the comparison gives.

    Parameters
    ----------
    verdict : Verdict
    lists : mapping of query to RankedList
        The shown documents of each query of the newest slice, ranked by the live model, the new one and others.
    differences : tuple of float
        Of nDCG, new - live, of every query whose value changed.
    changes : Changes
    study : tuple of StudyPoint
    """

    verdict: Verdict
    lists: Mapping[str, RankedList]
    differences: tuple[float, ...]
    changes: Changes
    study: tuple[StudyPoint, ...] = ()


def compare(
    scores: ServingScores,
    history: History,
    judged: Mapping[str, Mapping[str, float]],
    config: GateConfig,
    *,
    window: int,
    seed: int,
    study: Sequence[int] = (),
    progress: Progress = lambda _done, _total: None,
) -> Compared:
    """Return the verdict on the second ranker of ``scores`` against the first.

    Parameters
    ----------
    scores : ServingScores
        Rankers: live, new, then one for each number of preferences in ``study``.
    history : History
    judged : mapping of query text to mapping of document id to grade
    config : GateConfig
    window : int
        Hits reranked for a judged query.
    seed : int
        Draws the resamples.
    study : sequence of int
    progress : callable
        Receives (queries done, queries).

    Raises
    ------
    EngineError
        If the engine does not answer.
    """
    asked: dict[str, dict[str, None]] = {}
    for one in history.newest:
        asked.setdefault(one.query, {}).update((shown.document, None) for shown in one.shown)
    lists = scores.rank_shown(asked, progress)
    examined = history.propensities
    by_rank = None if examined is None else examined.by_rank
    config = replace(config, measured_weights=examined is not None and examined.method == "randomised")
    on_judgements = _judged(scores.rank_window(judged, window), judged) if judged else None
    # All queries for the picture; the verdict keeps those that changed most.
    whole = replace(config, n_changes=len(asked) + len(judged))

    def verdict_on(ranker: int, judgements: JudgedQueries | None, settings: GateConfig) -> Verdict:
        served = [_scores(history.newest, lists, number) for number in (LIVE, ranker)]
        rng = np.random.default_rng([seed, 2])
        return decide(shown_lists(history.newest, *served), judgements, by_rank, rng, settings)

    verdict = verdict_on(NEW, on_judgements, whole)
    every = (*verdict.losers, *verdict.winners)
    points = []
    for place, preferences in enumerate(study):
        measured = verdict_on(NEW + 1 + place, None, config).measured
        if measured:
            found = measured[0].difference
            points.append(StudyPoint(preferences, found.estimate, found.lower, found.upper))
    verdict = replace(
        verdict,
        losers=verdict.losers[: config.n_changes],
        winners=verdict.winners[: config.n_changes],
        judged_losers=verdict.judged_losers[: config.n_changes],
    )
    return Compared(
        verdict, lists, tuple(one.candidate - one.live for one in every), changes_of(lists), tuple(points)
    )  # fmt: skip


def _scores(newest: Sequence[Impression], lists: Mapping[str, RankedList], ranker: int) -> list[list[float]]:
    """Return a score for each shown document of each impression: its rank, negative; NaN where it is gone."""
    by_query = {
        query: dict(zip(one.documents, (-one.ranks[ranker]).tolist(), strict=True)) for query, one in lists.items()
    }
    return [[float(by_query[one.query].get(shown.document, np.nan)) for shown in one.shown] for one in newest]


def _judged(lists: Mapping[str, RankedList], judged: Mapping[str, Mapping[str, float]]) -> JudgedQueries:
    """Return nDCG@10 of the judged queries by the live and by the new order."""
    depth = int(MEASURE.partition("@")[2])
    names = {query: str(number) for number, query in enumerate(judged)}
    qrels = {names[query]: dict(grades) for query, grades in judged.items()}
    values = []
    for ranker in (LIVE, NEW):
        run = {
            names[query]: [one.documents[place] for place in np.argsort(one.ranks[ranker])[:depth].tolist()]
            for query, one in lists.items()
        }
        found = evaluate_run(qrels, run, [MEASURE])[MEASURE]
        values.append(np.array([found[names[query]] for query in judged]))
    return JudgedQueries(tuple(judged), values[0], values[1])
