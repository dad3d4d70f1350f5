"""The ranks that models give to shown lists and to judged documents, as in serving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Bool, Float32, Float64, Int64
from reranker.clicks.propensities import Propensities
from reranker.clicks.schema import DAY_MS, Impression
from reranker.engines.bodies import candidate_body, fill_template
from reranker.engines.protocol import Engine
from reranker.engines.vectors import QueryVectors
from reranker.errors import ConfigError
from reranker.evaluation import evaluate_run
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.models.repeated import preferences_of
from reranker.progress import Progress, no_progress
from reranker.records import Hit
from reranker.rerank.calibration.kept import window_scale
from reranker.rerank.candidates import encode_query, score_vectors
from reranker.rerank.ranking import blend, default_template, final_order, kept_in_place, preference_of, why_not
from reranker.rerank.signals import Signal, added
from reranker.retrain.gate import (
    DEPTH,
    LIVE,
    MEASURE,
    NEW,
    GateVerdict,
    JudgedQueries,
    decide,
    newest_within_tolerance,
    shown_lists,
    weighing,
)
from reranker.retrain.settings import GateConfig
from reranker.text.rows import stack_rows

MAX_IDS = 1_000
"""Maximum number of documents in one request; a query with more shown documents needs several requests."""


BATCH = 512


TOP = 3


class ServedModel(NamedTuple):
    """A model as it is or would be served."""

    model: RankingModel | None
    """The model; None: the engine's own order."""
    alpha: float = 0.0
    """Weight of the model in the blend with the engine's score."""
    signals: tuple[Signal, ...] = ()
    """Signals that are added to the blend."""
    by_window: bool = False
    """The engine's scores are divided by the highest one of the window, see `ChosenAlpha`."""


@dataclass(frozen=True, slots=True)
class RankedList:
    """The documents of one query that still exist, and their ranks by each model."""

    documents: tuple[str, ...]
    """Document ids in first-stage order."""
    scores: Float64
    """(n_models, n) float64: Scores by each model as served; NaN where there is none, and for the engine's order."""
    ranks: Int64
    """(n_models, n) int64: Ranks, from 1, in each model's order of only these documents."""

    def top(self, number: int, depth: int = TOP) -> list[str]:
        """Return the first documents in one model's order."""
        return [self.documents[place] for place in np.argsort(self.ranks[number])[:depth].tolist()]


@dataclass(frozen=True)
class ServedComparison:
    """Result of comparing the new model with the live one."""

    verdict: GateVerdict
    chosen: int
    """Number of the candidate that the verdict is about, from 0."""
    lists: Mapping[str, RankedList]
    """Shown documents of each query of the newest slice, ranked by the live model and by that candidate."""
    differences: tuple[float, ...]
    """nDCG, new - live, of every query for which it differs."""
    changes: Mapping[str, float]
    """Differences between both orders: the number of ``queries`` with at least two documents; the share of them in
    which any document moves (``reordered``), and in which another document is first (``new_first``); and the mean share
    of the first three documents that stay among the first three (``mean_overlap``)."""


class EarlierClicks(NamedTuple):
    """Impressions before the newest slice with scores of their documents, one list for each impression."""

    impressions: list[Impression]
    live: list[list[float]]
    """Scores by the live model, such as minus the rank; NaN for a deleted document."""
    candidate: list[list[float]]
    """Scores by a candidate that learned only from what came before."""

    @property
    def days(self) -> float:
        """Time between the first and the last of them."""
        times = [one.time for one in self.impressions if one.time is not None]
        return (max(times) - min(times)) / DAY_MS if times else 0.0


@dataclass(frozen=True)
class NewestClicks:
    """The newest slice of a click log."""

    impressions: Sequence[Impression]
    propensities: Propensities | None
    """Examination propensities by rank; None: equal weights."""
    days: float | None = None
    """Length of the slice; None: unknown."""
    earlier: EarlierClicks | None = None
    """Earlier lists, on which the second candidate is judged, too; None: there are none."""


def compare(
    scores: ServingScores,
    clicks: NewestClicks,
    judged: Mapping[str, Mapping[str, float]],
    config: GateConfig,
    *,
    window: int,
    seed: int,
    refreshes: bool = False,
) -> ServedComparison:
    """Return the verdict on the candidate that is chosen, compared with the live model.

    There are one or two candidates: the trained model, and a model that has only learned what users prefer for repeated
    queries. The second is judged on the newest slice and on the lists before it, with preferences that were learned
    before them. With both, each is compared with the live model, with half the error that the confidence allows. The
    trained one is chosen if it is surely better than the other one, or if only it is promoted.

    Parameters
    ----------
    scores
        Its models are the live one and the candidates.
    clicks
        The newest slice.
    judged
        Query text → document id → grade.
    config
        Settings of the gate.
    window
        Number of hits reranked for a judged query.
    seed
        Seed of the resamples.
    refreshes
        Whether the second candidate renews the preferences that the live model has. Then it need not be better, only
        not worse.
    """
    newest, propensities, days = clicks.impressions, clicks.propensities, clicks.days
    shown: dict[str, dict[str, None]] = {}
    for impression in newest:
        shown.setdefault(impression.query, {}).update(dict.fromkeys(hit.document for hit in impression.shown))
    lists = scores.rank_shown(shown)
    by_rank = None if propensities is None else propensities.by_rank
    config = weighing(config, propensities)
    windows = scores.rank_window(judged, window) if judged else {}
    n_candidates = len(scores.models) - 1
    # The figure needs all queries; the verdict contains only those that changed most.
    config = replace(config, confidence=1 - (1 - config.confidence) / n_candidates)
    every_change = replace(config, n_changes=len(shown) + len(judged))

    def verdict_on(
        number: int,
        settings: GateConfig,
        before: int = LIVE,
        earlier: EarlierClicks | None = None,
        **more: Any,
    ) -> GateVerdict:
        served: list[Sequence[Sequence[float]]] = [_shown_scores(newest, lists, which) for which in (before, number)]
        whole = newest
        if earlier is not None:
            whole = [*earlier.impressions, *newest]
            served = [[*earlier.live, *served[0]], [*earlier.candidate, *served[1]]]
        rng = np.random.default_rng([seed, 2])
        return decide(shown_lists(whole, *served), more.pop("judged", None), by_rank, rng, settings, **more)

    def judgements(number: int) -> JudgedQueries | None:
        return _judged_queries(windows, judged, number) if judged else None

    first = verdict_on(NEW, every_change, judged=judgements(NEW), days=days)
    whole, chosen = first, 0
    if n_candidates == 2:
        earlier, whole_days = clicks.earlier, days
        if earlier is not None and days is not None:
            whole_days = days + earlier.days
        terms: dict[str, Any] = {"judged": judgements(NEW + 1), "days": whole_days, "refreshes": refreshes}
        second = verdict_on(NEW + 1, every_change, earlier=earlier, **terms)
        if earlier is not None:
            second = second.with_check(newest_within_tolerance(verdict_on(NEW + 1, config).measured, config))
        between = verdict_on(NEW, config, before=NEW + 1).measured
        is_surely_better = bool(between) and between[0].difference.lower > config.margin
        if not is_surely_better and (second.promoted or not first.promoted):
            whole, chosen = second, 1
    n = config.n_changes
    verdict = replace(whole, losers=whole.losers[:n], winners=whole.winners[:n], judged_losers=whole.judged_losers[:n])
    differences = tuple(change.candidate - change.live for change in (*whole.losers, *whole.winners))
    both = [LIVE, NEW + chosen]
    lists = {query: RankedList(one.documents, one.scores[both], one.ranks[both]) for query, one in lists.items()}
    return ServedComparison(verdict, chosen, lists, differences, _changes(lists))


def _shown_scores(newest: Sequence[Impression], lists: Mapping[str, RankedList], number: int) -> list[list[float]]:
    """Return a score for each shown document of each impression: its negative rank; NaN if it was deleted."""
    by_query = {
        query: dict(zip(ranked.documents, (-ranked.ranks[number]).tolist(), strict=True))
        for query, ranked in lists.items()
    }
    return [
        [float(by_query[impression.query].get(shown.document, np.nan)) for shown in impression.shown]
        for impression in newest
    ]


def _judged_queries(
    lists: Mapping[str, RankedList], judged: Mapping[str, Mapping[str, float]], new: int
) -> JudgedQueries:
    """Return nDCG@10 of the judged queries in the live order and in that of the model with the number ``new``."""
    names = {query: str(number) for number, query in enumerate(judged)}
    qrels = {names[query]: dict(grades) for query, grades in judged.items()}
    values = []
    for number in (LIVE, new):
        run = {names[query]: ranked.top(number, DEPTH) for query, ranked in lists.items()}
        by_name = evaluate_run(qrels, run, [MEASURE])[MEASURE]
        values.append(np.array([by_name[names[query]] for query in judged]))
    return JudgedQueries(tuple(judged), values[0], values[1])


def _changes(lists: Mapping[str, RankedList]) -> dict[str, float]:
    compared = [ranked for ranked in lists.values() if len(ranked.documents) > 1]
    if not compared:
        return {"queries": 0, "reordered": 0.0, "new_first": 0.0, "mean_overlap": 1.0}
    reordered = [bool((ranked.ranks[LIVE] != ranked.ranks[NEW]).any()) for ranked in compared]
    first = [ranked.top(LIVE, 1) != ranked.top(NEW, 1) for ranked in compared]
    overlap = []
    for ranked in compared:
        depth = min(TOP, len(ranked.documents))
        overlap.append(len({*ranked.top(LIVE, depth)} & {*ranked.top(NEW, depth)}) / depth)
    shares: dict[str, list[Any]] = {"reordered": reordered, "new_first": first, "mean_overlap": overlap}
    return {"queries": len(compared), **{name: float(np.mean(values)) for name, values in shares.items()}}


class EncodedPool:
    """Vectors and words of documents by id, each encoded once; uses about 4 N bytes and 8 bytes a word per document."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._row_of: dict[str, int] = {}
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._parts: list[tuple[Float32, sp.csr_matrix, Bool]] = []

    def __len__(self) -> int:
        return len(self._row_of)

    def add(self, documents: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Add (id, source) of documents; known ids are skipped."""
        for identifier, source in documents:
            if identifier not in self._row_of:
                self._row_of[identifier] = len(self._row_of)
                self._waiting[identifier] = source
        if len(self._waiting) >= BATCH:
            self._encode()

    def _encode(self) -> None:
        encoded = self._encoder.encode(list(self._waiting.values()), list(self._waiting))
        self._parts.append((encoded.vectors, encoded.rows, encoded.has_text))
        self._waiting = {}

    def finish(self) -> None:
        """Encode the pending documents and merge all batches. Must be called before `score`."""
        if self._waiting:
            self._encode()
        if self._parts:
            vectors, rows, has_text = zip(*self._parts, strict=True)
            self._parts = [(np.ascontiguousarray(np.concatenate(vectors)), stack_rows(rows), np.concatenate(has_text))]

    def score(self, query: QueryVectors, documents: Sequence[str]) -> Float64:
        """Return f(q, d) of some documents, (n,) float64; NaN for a document without text."""
        scores = np.full(len(documents), np.nan)
        if not self._parts:
            return scores
        ((vectors, rows, has_text),) = self._parts
        places = np.array([self._row_of[document] for document in documents], dtype=np.int64)
        known = np.flatnonzero(has_text[places])
        scores[known] = score_vectors(query, places[known], vectors, rows)
        scores[~np.isfinite(scores)] = np.nan
        return scores


@dataclass
class ServingScores:
    """Ranks documents of one index with several models, as they would be served.

    Raises `ConfigError` if hits of the body are not reranked, or are found by other means than its ``query``.
    """

    engine: Engine
    index: str
    """Index or alias."""
    models: Sequence[ServedModel]
    """At least one has a model. All use the same body, so without a body their text fields must be equal."""
    body: Mapping[str, Any] | None = None
    """The team's search body with the placeholder ``{{query}}``; None: search the models' own text fields."""
    progress: Progress = no_progress
    """Called with the number of queries that `rank_shown` has scored."""
    pools: dict[str, EncodedPool] = field(default_factory=dict)
    """Encoded documents by encoder, which another comparison may have filled."""

    def __post_init__(self) -> None:
        models = [served.model for served in self.models if served.model is not None]
        self.template = dict(self.body) if self.body is not None else default_template(models[-1].encoder.view)
        check_template_body(self.template)
        for model in models:
            self.pools.setdefault(model.encoder_id, EncodedPool(model.encoder))
        self._fields = sorted({path for model in models for path in model.encoder.view.source_fields})
        requests = [signal.request() for served in self.models for signal in served.signals]
        self._doc_values = list({request["field"]: request for request in requests}.values())

    def rank_shown(self, shown: Mapping[str, Iterable[str]]) -> dict[str, RankedList]:
        """Return for each query the documents shown for it that the body still finds, ranked by all models."""
        return self._ranked(
            shown, lambda query: self._search_among(query, list(dict.fromkeys(shown[query]))), self.progress
        )

    def rank_window(self, queries: Iterable[str], window: int) -> dict[str, RankedList]:
        """Return for each query the engine's first ``window`` documents, ranked by all models."""
        return self._ranked(queries, lambda query: self._search(self.template, query, window), no_progress)

    def _ranked(
        self, queries: Iterable[str], search: Callable[[str], Sequence[Hit]], progress: Progress
    ) -> dict[str, RankedList]:
        texts = list(dict.fromkeys(queries))
        first_stages = {}
        for number, query in enumerate(texts):
            first_stages[query] = self._first_stage(query, search(query))
            progress(number + 1, len(texts))
        for pool in self.pools.values():
            pool.finish()
        return {query: self._ranked_list(query, *stage) for query, stage in first_stages.items()}

    def _ranked_list(
        self, query: str, ids: tuple[str, ...], lexical: Float64, kept: Bool, signals: Float64
    ) -> RankedList:
        """Return the documents of a query with their scores and ranks by all models."""
        n, n_models = len(ids), len(self.models)
        scores, ranks = np.full((n_models, n), np.nan), np.tile(np.arange(1, n + 1, dtype=np.int64), (n_models, 1))
        for number in range(n_models):
            of_model = self._scores(number, query, ids, lexical, signals)
            if of_model is not None:
                scores[number] = of_model
                ranks[number, final_order(of_model, kept)] = np.arange(1, n + 1)
        return RankedList(ids, scores, ranks)

    def _search_among(self, query: str, documents: list[str]) -> Sequence[Hit]:
        hits: list[Hit] = []
        for first in range(0, len(documents), MAX_IDS):
            part = documents[first : first + MAX_IDS]
            hits += self._search(among(self.template, part), query, len(part))
        if len(documents) > MAX_IDS:
            hits.sort(key=lambda hit: -(hit.score or 0.0))
        return hits

    def _search(self, template: Mapping[str, Any], query: str, size: int) -> Sequence[Hit]:
        body = candidate_body(fill_template(template, query), size, self._fields, answers=False)
        if self._doc_values:
            body["docvalue_fields"] = self._doc_values
        return self.engine.search(self.index, body, preference=preference_of(query)).hits

    def _first_stage(self, query: str, hits: Sequence[Hit]) -> tuple[tuple[str, ...], Float64, Bool, Float64]:
        """Return ids in the engine's order, its scores, which hits must not move, and the signals' contributions."""
        first = {hit.id: hit for hit in reversed(hits)}
        once = [hit for hit in hits if first[hit.id] is hit]
        for pool in self.pools.values():
            pool.add((hit.id, hit.source) for hit in once)
        lexical = np.array([np.nan if hit.score is None else hit.score for hit in once], dtype=np.float64)
        kept = kept_in_place(once, fill_template(self.template, query))
        signals = np.array([added(served.signals, once) for served in self.models])
        return tuple(hit.id for hit in once), lexical, kept, signals

    def _scores(
        self, number: int, query: str, ids: tuple[str, ...], lexical: Float64, signals: Float64
    ) -> Float64 | None:
        """Return the scores of documents by one of the models; None if the engine's order is served."""
        served = self.models[number]
        if served.model is None or not ids:
            return None
        encoded = encode_query(served.model, query)
        if encoded.is_empty:
            return None
        pool = self.pools[served.model.encoder_id]
        scores = pool.score(encoded.vectors, ids) + preferences_of(encoded.preferred, ids)
        scale = window_scale(lexical, encoded.scale) if served.by_window else encoded.scale
        return blend(scores, lexical, served.alpha, scale, signals[number])


def among(template: Mapping[str, Any], documents: Sequence[str]) -> dict[str, Any]:
    """Return the body restricted to some documents; their scores by its query are unchanged (pure)."""
    query = template.get("query") or {"match_all": {}}
    return {**template, "query": {"bool": {"must": [query], "filter": [{"ids": {"values": list(documents)}}]}}}


def check_template_body(template: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a body whose shown documents cannot be scored individually."""
    reason = why_not(template)
    if reason:
        raise ConfigError(f"{reason}: such a search is not reranked, so no model can be retrained for it")
    others = sorted({"knn", "retriever", "rank"} & set(template))
    if others:
        raise ConfigError(
            f"the body finds documents by {', '.join(others)}, but retraining scores the shown documents by the body's "
            "`query`: give a body with only a `query` (--body)"
        )
