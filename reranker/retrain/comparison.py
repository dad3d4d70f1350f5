"""The new model beside the live one: the ranks that both would give to what was shown, and to judged queries.

Ranks are those of serving: blended, as `reranker.rerank` blends. Each distinct query is sent once, as the team's body
with a filter on the documents that were shown for it: the scores are those of the body alone, since a filter adds
nothing. Documents are encoded from their stored text, once a document and encoder, so a model is scored before its
vectors are in any index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Bool, Float32, Float64, Int64
from reranker.artifacts import Encoder, RankingModel
from reranker.clicks.doctor import Finding
from reranker.clicks.pairs import LogFiles
from reranker.clicks.schema import Impression
from reranker.engines.base import Engine, candidate_body, fill_template
from reranker.engines.vectors import QueryVectors
from reranker.errors import ConfigError, NothingToLearn
from reranker.evaluation import evaluate_run
from reranker.progress import Progress, no_progress
from reranker.records import Hit
from reranker.rerank.candidates import encode_query, score_vectors
from reranker.rerank.ranking import blend, default_template, final_order, kept_in_place, preference_of, why_not
from reranker.retrain.gate import (
    ClickedLists,
    GateConfig,
    Interval,
    JudgedQueries,
    Verdict,
    believable,
    decide,
    enough,
    merit_of_live,
    shown_lists,
)
from reranker.retrain.learning import History, RetrainSettings, read_history
from reranker.text.rows import stack_rows

MEASURE, DEPTH = "nDCG@10", 10
MAX_IDS = 1_000
"""Documents of one request; a query shown with more of them takes several."""
BATCH = 512
TOP = 3
LIVE, NEW = 0, 1
"""Places of the models in a `RankedList`."""


class ServedModel(NamedTuple):
    """What is or would be served: a model (None: the engine's own order), and its weight beside the engine's score."""

    model: RankingModel | None
    alpha: float = 0.0


@dataclass(frozen=True, slots=True)
class RankedList:
    """The documents of one query that the engine still finds, and their ranks.

    ``documents`` are in first-stage order; ``ranks``, (n_models, n) int64, are the 1-based ranks in each model's order
    of just these documents.
    """

    documents: tuple[str, ...]
    ranks: Int64

    def top(self, number: int, depth: int = TOP) -> list[str]:
        """Return the first documents of one model's order."""
        return [self.documents[place] for place in np.argsort(self.ranks[number])[:depth].tolist()]


@dataclass(frozen=True)
class Comparison:
    """What the comparison gives.

    ``lists`` hold the shown documents of each query of the newest slice, ranked by the live model, the new one and
    those of the study; ``differences`` are of nDCG, new - live, of every query whose value changed; ``study`` gives
    numbers of preferences learned from, with the difference in nDCG to the live model.

    ``changes`` say how the new order differs from the live one: of the ``queries`` with at least two documents, the
    share in which any document moves (``reordered``) and in which another one is first (``new_first``), and the mean
    share of the first three documents that stay among the first three (``mean_overlap``).
    """

    verdict: Verdict
    lists: Mapping[str, RankedList]
    differences: tuple[float, ...]
    changes: Mapping[str, float]
    study: Sequence[tuple[int, Interval]] = ()


def compare(
    scores: ServingScores,
    history: History,
    judged: Mapping[str, Mapping[str, float]],
    config: GateConfig,
    *,
    window: int,
    seed: int,
    study: Sequence[int] = (),
    progress: Progress = no_progress,
) -> Comparison:
    """Return the verdict on the second model of ``scores`` against the first.

    Its models are the live one, the new one, then one for each number of preferences in ``study``. ``judged`` gives
    query text → document id → grade, ``window`` the hits reranked for a judged query; ``seed`` draws the resamples.
    """
    shown: dict[str, dict[str, None]] = {}
    for impression in history.newest:
        shown.setdefault(impression.query, {}).update(dict.fromkeys(hit.document for hit in impression.shown))
    lists = scores.rank_shown(shown, progress)
    propensities = history.propensities
    by_rank = None if propensities is None else propensities.by_rank
    config = _weighing(config, history)
    on_judgements = _judged(scores.rank_window(judged, window), judged) if judged else None

    def verdict_on(number: int, judgements: JudgedQueries | None, settings: GateConfig) -> Verdict:
        served = [_shown_scores(history.newest, lists, which) for which in (LIVE, number)]
        rng = np.random.default_rng([seed, 2])
        return decide(shown_lists(history.newest, *served), judgements, by_rank, rng, settings)

    # All queries for the picture; the verdict keeps those that changed most.
    n = config.n_changes
    whole = verdict_on(NEW, on_judgements, replace(config, n_changes=len(shown) + len(judged)))
    points = []
    for place, preferences in enumerate(study):
        measured = verdict_on(NEW + 1 + place, None, config).measured
        if measured:
            points.append((preferences, measured[0].difference))
    verdict = replace(
        whole, losers=whole.losers[:n], winners=whole.winners[:n], judged_losers=whole.judged_losers[:n]
    )  # fmt: skip
    differences = tuple(change.candidate - change.live for change in (*whole.losers, *whole.winners))
    return Comparison(verdict, lists, differences, _changes(lists), points)


def _weighing(config: GateConfig, history: History) -> GateConfig:
    """Return the gate's settings with whether the propensities were measured."""
    propensities = history.propensities
    return replace(config, measured_weights=propensities is not None and propensities.method == "randomised")


def propensity_finding(log: LogFiles) -> Finding:
    """Return whether the gate will believe what a log says of how much each rank is looked at.

    The gate's own question on its own newest slice, with the lists as they were shown for the live order: no model is
    needed to answer it.
    """
    try:
        history = read_history(log, RetrainSettings(Path()))
    except NothingToLearn as error:
        return Finding("propensities", "warning", f"`ssi retrain` would learn nothing: {error.message}.")
    config = _weighing(GateConfig(), history)
    ranks = [[-float(hit.rank) for hit in impression.shown] for impression in history.newest]
    by_rank = None if history.propensities is None else history.propensities.by_rank
    lists = ClickedLists(shown_lists(history.newest, ranks, ranks), by_rank, config.max_weight)
    merit = merit_of_live(lists, np.random.default_rng([0, 2]), config)
    checks = (enough(merit.difference, "people (or sessions) with clicks", config), believable(merit, config))
    refused = [check.sentence for check in checks if not check.passed]
    numbers = {"live": merit.candidate, "random": merit.live, "people": float(merit.difference.n_clusters)}
    if refused:
        sentence = f"The gate of `ssi retrain` would refuse any model learned from this log: {refused[0]}."
        return Finding("propensities", "warning", sentence, numbers)
    return Finding("propensities", "ok", f"The gate believes the propensities: {checks[1].sentence}.", numbers)


def _shown_scores(newest: Sequence[Impression], lists: Mapping[str, RankedList], number: int) -> list[list[float]]:
    """Return a score for each shown document of each impression: its rank, negative; NaN where it is gone."""
    by_query = {
        query: dict(zip(ranked.documents, (-ranked.ranks[number]).tolist(), strict=True))
        for query, ranked in lists.items()
    }
    return [
        [float(by_query[impression.query].get(shown.document, np.nan)) for shown in impression.shown]
        for impression in newest
    ]


def _judged(lists: Mapping[str, RankedList], judged: Mapping[str, Mapping[str, float]]) -> JudgedQueries:
    """Return nDCG@10 of the judged queries by the live and by the new order."""
    names = {query: str(number) for number, query in enumerate(judged)}
    qrels = {names[query]: dict(grades) for query, grades in judged.items()}
    values = []
    for number in (LIVE, NEW):
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
    """Vectors and words of documents by id, encoded once; about 4 N bytes and 8 bytes a word each."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._row_of: dict[str, int] = {}
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._parts: list[tuple[Float32, sp.csr_matrix, Bool]] = []
        self._encoded: tuple[Float32, sp.csr_matrix, Bool] | None = None

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._row_of)

    def add(self, documents: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Take over (id, source) of documents; those known already are passed over."""
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
        """Encode what waits and put all together; to be called before `score`."""
        if self._waiting:
            self._encode()
        if self._parts:
            parts = self._parts if self._encoded is None else [self._encoded, *self._parts]
            vectors, rows, has_text = zip(*parts, strict=True)
            self._encoded = (np.ascontiguousarray(np.concatenate(vectors)), stack_rows(rows), np.concatenate(has_text))
            self._parts = []

    def score(self, query: QueryVectors, documents: Sequence[str]) -> Float64:
        """Return f(q, d) of some documents, (n,) float64; NaN for one without text."""
        scores = np.full(len(documents), np.nan)
        if self._encoded is None:
            return scores
        vectors, rows, has_text = self._encoded
        places = np.array([self._row_of[document] for document in documents], dtype=np.int64)
        known = np.flatnonzero(has_text[places])
        scores[known] = score_vectors(query, places[known], vectors, rows)
        scores[~np.isfinite(scores)] = np.nan
        return scores


@dataclass
class ServingScores:
    """Ranks documents as some models would be served, over one index.

    `ConfigError` if the body's hits are not reranked, or are found by other means than its ``query``.
    """

    engine: Engine
    index: str
    """Index or alias."""
    models: Sequence[ServedModel]
    """At least one is no engine's own order; all are searched by one body, so their text fields must be the same where
    none is given."""
    body: Mapping[str, Any] | None = None
    """The team's search body with ``{{query}}`` in it; None searches the models' own text fields."""
    pools: dict[str, EncodedPool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        models = [served.model for served in self.models if served.model is not None]
        self.template = dict(self.body) if self.body is not None else default_template(models[-1].encoder.view)
        check_body(self.template)
        for model in models:
            self.pools.setdefault(model.encoder_id, EncodedPool(model.encoder))
        self._fields = sorted({spec.path for model in models for spec in model.encoder.view.fields})

    def rank_shown(
        self, shown: Mapping[str, Iterable[str]], progress: Progress = no_progress
    ) -> dict[str, RankedList]:  # fmt: skip
        """Return, for each query, the documents shown for it that the body still finds, ranked by all models."""
        return self._ranked(shown, lambda query: self._search_among(query, list(dict.fromkeys(shown[query]))), progress)

    def rank_window(
        self, queries: Iterable[str], window: int, progress: Progress = no_progress
    ) -> dict[str, RankedList]:  # fmt: skip
        """Return, for each query, the engine's first ``window`` documents, ranked by all models."""
        return self._ranked(queries, lambda query: self._search(self.template, query, window), progress)

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
        return {
            query: RankedList(stage[0], np.stack([self._ranks(served, query, *stage) for served in self.models]))
            for query, stage in first_stages.items()
        }

    def _search_among(self, query: str, documents: list[str]) -> Sequence[Hit]:
        """Return what the body finds among some documents."""
        hits: list[Hit] = []
        for first in range(0, len(documents), MAX_IDS):
            part = documents[first : first + MAX_IDS]
            hits += self._search(among(self.template, part), query, len(part))
        if len(documents) > MAX_IDS:
            hits.sort(key=lambda hit: -(hit.score or 0.0))
        return hits

    def _search(self, template: Mapping[str, Any], query: str, size: int) -> Sequence[Hit]:
        body = candidate_body(fill_template(template, query), size, self._fields, answers=False)
        return self.engine.search(self.index, body, preference=preference_of(query)).hits

    def _first_stage(self, query: str, hits: Sequence[Hit]) -> tuple[tuple[str, ...], Float64, Bool]:
        """Return ids in the engine's order, its scores, and which must not move."""
        first = {hit.id: hit for hit in reversed(hits)}
        once = [hit for hit in hits if first[hit.id] is hit]
        for pool in self.pools.values():
            pool.add((hit.id, hit.source) for hit in once)
        lexical = np.array([np.nan if hit.score is None else hit.score for hit in once], dtype=np.float64)
        return tuple(hit.id for hit in once), lexical, kept_in_place(once, fill_template(self.template, query), 0)

    def _ranks(self, served: ServedModel, query: str, ids: tuple[str, ...], lexical: Float64, kept: Bool) -> Int64:
        """Return the 1-based rank of each document in one model's order."""
        n = len(ids)
        order = np.arange(n, dtype=np.int64)
        if served.model is not None and n:
            encoded = encode_query(served.model, query)
            if not encoded.is_empty:
                scores = self.pools[served.model.encoder_id].score(encoded.vectors, ids)
                order = final_order(blend(scores, lexical, served.alpha, encoded.scale), kept)
        ranks = np.empty(n, dtype=np.int64)
        ranks[order] = np.arange(1, n + 1)
        return ranks


def among(template: Mapping[str, Any], documents: Sequence[str]) -> dict[str, Any]:
    """Return the body restricted to some documents; the scores stay those of its query (pure)."""
    query = template.get("query") or {"match_all": {}}
    return {**template, "query": {"bool": {"must": [query], "filter": [{"ids": {"values": list(documents)}}]}}}


def check_body(template: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a body whose shown documents cannot be scored one by one."""
    reason = why_not(template)
    if reason:
        raise ConfigError(f"{reason}: such a search is not reranked, so there is no model to retrain for it")
    others = sorted({"knn", "retriever", "rank"} & set(template))
    if others:
        raise ConfigError(
            f"the body finds documents by {', '.join(others)}: retraining scores the shown documents by the body's "
            "`query` alone; give a body with a `query` only (--body)"
        )
