"""What a reranked search is asked, the order of its hits by one score, and the page that answers, with its reasons.

The score is alpha f + (1 - alpha) BM25 / c(q), and what the signals add, where there are any: numbers of the document
(`reranker.rerank.signals`). BM25 grows with the number and the rarity of the query's words, f (unit
rows) does not: c(q) takes that growth out, so that one alpha serves short and long queries. c depends on the query
alone, so the blend is linear in BM25 and every route, also one inside the engine, can compute it. ::

    c(q) = sum over the distinct words i of q of idf_i

is BM25's own upper bound of one field, up to a constant factor that differs between engines (OpenSearch leaves k1 + 1
out since 3.0, the others keep it) and that alpha absorbs: tf / (tf + k1 (...)) is below 1. It was chosen over the
highest BM25 of the answer, which depends on the documents: adding one document would reorder the others, and pages
would not fit.

An alpha, and the signals beside it, belong to a query body and a window; `reranker.rerank.calibrate` fits them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from msgspec import structs

from reranker.arrays import Bool, Float64, Int64
from reranker.config import check_ranges
from reranker.deadline import Deadline
from reranker.engines.bodies import candidate_body, default_query_body, not_rerankable
from reranker.errors import ConfigError, FallbackError
from reranker.kernels.packing import quantise_rows
from reranker.models.ranking_model import EncodedQueries, RankingModel
from reranker.records import Hit, RankedHit
from reranker.rerank.candidates import EncodedQuery, Window
from reranker.rerank.signals import Signal, added
from reranker.text.rows import combine, with_data
from reranker.text.view import TextView
from reranker.text.vocabulary import HASH_BASE, Vocabulary

RouteName = Literal["beside", "fetch", "inside"]
ROUTES: tuple[RouteName, ...] = ("beside", "fetch", "inside")
"""Routes this package serves: vectors in a store beside the reranker, in the engine's answer, or used inside of it."""
RETRIEVALS = ("bm25", "hybrid")
"""First stages: the body's own hits, or these united with the documents whose vectors are nearest to the query's."""
DEFAULT_ALPHA: Final = 0.5
"""Weight of the model before `ssi calibrate` has fitted one; the answer says that it was used."""

PINNED_SCORE: Final = 1e30
"""A ``_score`` above this is no similarity: a pinned query puts its documents at 1.7e38 and above."""


@dataclass(frozen=True, slots=True)
class RerankSettings:
    """How a search is reranked.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    window: int = 200
    """Candidates that are reranked; past it the engine's order goes on."""
    deadline_ms: float | None = 1000.0
    """Time for a whole search; past it the engine's order comes back. None: no limit."""
    max_unscored: float = 0.2
    """Share of candidates, 0 to 1, that may have neither a vector nor a text; past it the engine's order comes back."""
    keep_top: int = 0
    """First hits of the engine that never move (a team that puts its own on top)."""
    alpha: float | None = None
    """Weight of the model, 0 to 1; None takes the calibrated one."""
    one_request_bytes: int = 512 * 1024
    """Where a body shows nothing but ``_source`` and the window's documents are expected to have no more bytes than
    this together, they come with the candidates and the second request is spared: its round trip costs more (see
    benchmarks/bench_search.py), unless the engine is in this process and the route wants no field. 0: always two
    requests."""
    retrieve: str = "bm25"
    """{'bm25', 'hybrid'}: The first stage: the body's own hits, or these and the ``neighbours`` documents of nearest
    vectors."""
    neighbours: int = 100
    """Documents that ``hybrid`` asks for."""
    rescore_from: int | None = 500
    """Route *inside* with scripts: from this window on, the engine orders the hits itself and sends the page alone (see
    benchmarks/bench_routes.py); below, or with None, it sends the candidates' ids and scores, and with them their
    first-stage ranks."""

    def __post_init__(self) -> None:
        check_ranges(
            self, window="[1, 10000]", deadline_ms="(0, inf)", max_unscored="[0, 1]", keep_top="[0, inf)",
            one_request_bytes="[0, inf)", neighbours="[1, 10000]", rescore_from="[1, 10000]",
        )  # fmt: skip
        if self.alpha is not None:
            check_alpha(self.alpha)
        if self.retrieve not in RETRIEVALS:
            raise ConfigError(f"retrieve is {self.retrieve!r}; it is one of {', '.join(RETRIEVALS)}")


class ChosenAlpha(NamedTuple):
    """An alpha and where it comes from: ``given``, ``calibrated`` or ``default``; the signals that were fitted with it.

    An alpha that is given stands alone.
    """

    value: float
    origin: str
    signals: tuple[Signal, ...] = ()


DEFAULT: Final = ChosenAlpha(DEFAULT_ALPHA, "default")


@dataclass(frozen=True, slots=True)
class Request:
    """One search, as all its steps need it.

    ``body`` is the search body with the query's text in its place, ``template`` without; ``first`` and ``size`` are the
    page; ``preference`` says which shard copies answer; by ``alpha`` the scores are blended.
    """

    query: str
    body: Mapping[str, Any]
    template: Mapping[str, Any]
    first: int
    size: int
    preference: str
    deadline: Deadline
    alpha: ChosenAlpha = DEFAULT

    @property
    def doc_values(self) -> list[dict[str, str]]:
        """What candidates come with for the signals: ``docvalue_fields`` of a body."""
        return [signal.request() for signal in self.alpha.signals]


def preference_of(query: str) -> str:
    """Return the preference of a query's requests: one copy of each shard, since scores of copies differ."""
    return f"ssi-{hashlib.blake2b(query.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def check_alpha(alpha: float) -> float:
    """Return ``alpha``, or raise `ConfigError` where it is not between 0 (the engine alone) and 1 (the model alone)."""
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha is {alpha}; it lies between 0 (the engine's order) and 1 (the model's order)")
    return float(alpha)


def blend(
    model_scores: Float64, lexical_scores: Float64, alpha: float, scale: float, signals: Float64 | None = None
) -> Float64:
    """Return alpha f + (1 - alpha) BM25 / c(q) + signals, (n,) float64; NaN where a part that counts is not finite.

    Both scores, f(q, d) and the engine's ``_score``, are (n,) float64; one of weight 0 may be anything. ``scale`` is
    c(q) > 0; ``signals``, (n,) float64, are what they add together, None for nothing.
    """
    scores = np.zeros(len(model_scores)) if signals is None else signals.copy()
    if alpha > 0.0:
        scores += alpha * model_scores
    if alpha < 1.0:
        scores += (1.0 - alpha) * (lexical_scores / scale)
    scores[~np.isfinite(scores)] = np.nan
    return scores


def final_order(scores: Float64, kept: Bool) -> Int64:
    """Return the candidates' places in final order: by (-score, first-stage rank), kept ones where they were.

    The first-stage rank settles every tie, so ids never have to. ``scores``, (n,) float64, are in first-stage order;
    NaN keeps a candidate in place, as ``kept``, (n,) bool, does.

    Returns
    -------
    (n,) int64
        A permutation: element r is the first-stage place of the candidate at final place r.
    """
    order = np.arange(len(scores), dtype=np.int64)
    free = np.flatnonzero(~(kept | np.isnan(scores)))
    order[free] = free[np.argsort(-scores[free], kind="stable")]
    return order


def why_not(body: Mapping[str, Any]) -> str:
    """Return why the hits of a body all keep the engine's order, or an empty string.

    Besides what `not_rerankable` names: ``collapse``, where a hit stands for a group that the engine chose and ranked.
    """
    if body.get("collapse") is not None:
        return "the body collapses hits into groups, which keep the engine's order"
    return not_rerankable(body)


def pinned_ids(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids that a ``pinned`` query anywhere in the body puts on top (``ids``, ``docs`` or ``documents``)."""
    return frozenset(_pinned(body.get("query")) | _pinned(body.get("retriever")))


def _pinned(node: Any) -> set[str]:
    ids: set[str] = set()
    unnamed = (("", item) for item in node) if isinstance(node, (list, tuple)) else ()
    for name, value in node.items() if isinstance(node, Mapping) else unnamed:
        if name == "pinned" and isinstance(value, Mapping):
            ids |= {str(document_id) for document_id in value.get("ids") or ()}
            documents = [*(value.get("docs") or ()), *(value.get("documents") or ())]
            ids |= {
                str(document["_id"]) for document in documents if isinstance(document, Mapping) and "_id" in document
            }
        ids |= _pinned(value)
    return ids


def kept_in_place(hits: Sequence[Hit], body: Mapping[str, Any], keep_top: int) -> Bool:
    """Return which hits must not move, (n,) bool.

    Recognised: the documents of a ``pinned`` query, any hit with a pinned query's score (also when a rule of the
    engine applied it), and the first ``keep_top`` hits, for teams that keep their own on top.
    """
    pinned = pinned_ids(body)
    kept = [
        place < keep_top or hit.id in pinned or (hit.score is not None and hit.score >= PINNED_SCORE)
        for place, hit in enumerate(hits)
    ]
    return np.array(kept, dtype=bool)


_SCORING = (
    "query", "knn", "retriever", "rescore", "rank", "sub_searches", "indices_boost", "runtime_mappings", "derived",
)  # fmt: skip
"""Parts of a body that decide the scores of its hits."""
_FILTERS = frozenset({"filter", "must_not", "minimum_should_match", "min_score"})
_ALL_MUST_MATCH = frozenset(
    {
        "bool", "must", "function_score", "script_score", "query", "boosting", "positive", "pinned", "organic", "knn",
        "retriever", "retrievers", "standard", "rrf", "linear", "text_similarity_reranker", "rescorer",
    }
)  # fmt: skip
"""Where a filter only takes hits away; under ``should`` it would also change the scores of others."""


def body_hash(template: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that name a body template by what decides the scores of its hits.

    Neither what is only shown (``_source``, highlight, aggregations, page size) counts nor what only filters: a click
    on a facet leaves alpha and with it the order of what remains as it is.
    """
    scoring = {name: _without_filters(template[name]) for name in _SCORING if name in template}
    content = json.dumps(candidate_body(scoring, 1), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(content.encode("ascii"), digest_size=8).hexdigest()


def _without_filters(node: Any) -> Any:
    """Return a query, knn or retriever clause without what only filters, and a ``bool`` of one clause as this one."""
    if isinstance(node, (list, tuple)):
        return [_without_filters(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    kept = {
        name: _without_filters(value) if name in _ALL_MUST_MATCH else value
        for name, value in node.items()
        if name not in _FILTERS
    }
    clauses = kept.get("bool")
    if isinstance(clauses, Mapping):
        parts = {name: part if isinstance(part, list) else [part] for name, part in clauses.items()}
        if len(parts) == 1 and parts.keys() <= {"must", "should"} and len(*parts.values()) == 1:
            (kept,) = next(iter(parts.values()))
        else:
            kept["bool"] = parts
    return kept


class Probability(NamedTuple):
    """What turns f into the probability that a candidate is relevant: 1 / (1 + e^-(slope f + offset)), slope > 0.

    So it keeps the order. `reranker.rerank.calibrate` fits it.
    """

    slope: float
    offset: float

    def of(self, model_scores: Float64) -> Float64:
        """Return the probabilities of f(q, d), (n,) float64; NaN for NaN."""
        with np.errstate(over="ignore"):
            values: Float64 = 1.0 / (1.0 + np.exp(-(self.slope * model_scores + self.offset)))
        return values

    @classmethod
    def from_json(cls, entry: Any) -> Probability:
        """Return the probability kept in a release as [slope, offset]; `ConfigError` for anything else."""
        try:
            slope, offset = map(float, entry)
        except (TypeError, ValueError, OverflowError):
            slope, offset = math.nan, math.nan
        if not (math.isfinite(slope) and math.isfinite(offset) and slope > 0):
            raise ConfigError(
                f"probability {entry!r:.80} of the release is not [slope above 0, offset]: run `ssi calibrate` again"
            )
        return cls(slope, offset)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a release keeps of its fits, by ``<body hash>:<window>``.

    The ``alphas``, 0 to 1, the ``signals`` fitted with them, and the ``probabilities`` of relevance by f.
    """

    alphas: Mapping[str, float] = field(default_factory=dict)
    signals: Mapping[str, tuple[Signal, ...]] = field(default_factory=dict)
    probabilities: Mapping[str, Probability] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, alpha in self.alphas.items():
            digits, _, window = key.partition(":")
            if len(digits) != 16 or not window.isdecimal():
                raise ConfigError(
                    f"calibration {key!r} is not <16 hex digits of the body>:<window> with a number; "
                    "run `ssi calibrate` again"
                )
            check_alpha(alpha)

    @classmethod
    def from_release(cls, entries: Mapping[str, Any]) -> Calibration:
        """Return the calibration kept in a release: ``{key: {"alpha": 0.7, "signals": [...], ...}}``.

        Signals and probability may be absent. `ConfigError` if an entry has no alpha between 0 and 1, or one of these
        is damaged.
        """
        alphas: dict[str, float] = {}
        signals: dict[str, tuple[Signal, ...]] = {}
        probabilities: dict[str, Probability] = {}
        for key, entry in entries.items():
            alpha = entry.get("alpha") if isinstance(entry, Mapping) else None
            if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
                raise ConfigError(f"calibration {key!r} of the release has no number alpha; run `ssi calibrate` again")
            alphas[key] = float(alpha)
            listed = entry.get("signals", [])
            if not isinstance(listed, list):
                raise ConfigError(f"the signals of calibration {key!r} are no list; run `ssi calibrate` again")
            signals[key] = tuple(map(Signal.from_json, listed))
            if "probability" in entry:
                probabilities[key] = Probability.from_json(entry["probability"])
        return cls(alphas, signals, probabilities)

    @staticmethod
    def key(template_hash: str, window: int) -> str:
        """Return the key of a body and a window."""
        return f"{template_hash}:{window}"

    def choose(self, template_hash: str, window: int, given: float | None = None) -> ChosenAlpha:
        """Return the alpha given by the caller, else the fitted one with its signals, else `DEFAULT_ALPHA`."""
        if given is not None:
            return ChosenAlpha(check_alpha(given), "given")
        key = self.key(template_hash, window)
        fitted = self.alphas.get(key)
        if fitted is None:
            return DEFAULT
        return ChosenAlpha(fitted, "calibrated", self.signals.get(key, ()))


def default_template(view: TextView) -> dict[str, Any]:
    """Return the body template used where the team gives none: BM25 over the model's text fields with its weights."""
    weights = view.weights
    fields = [
        spec.path if weight == 1.0 else f"{spec.path}^{weight:g}"
        for spec, weight in zip(view.fields, weights, strict=True)
        if weight > 0
    ]
    return default_query_body("{{query}}", fields or [spec.path for spec in view.fields])


@dataclass(frozen=True, slots=True)
class Scored:
    """What the order of a window was made of.

    ``scores``, (n,) float64, are blended, in first-stage order, NaN where there is none; ``kept``, (n,) bool, must not
    move; element r of ``order``, (n,) int64, is the first-stage place of the hit at final place r.
    """

    window: Window
    query: EncodedQuery
    alpha: ChosenAlpha
    scores: Float64
    kept: Bool
    order: Int64

    def hit(self, rank: int) -> RankedHit:
        """Return the hit at a 1-based place of the final order; without a blended score it shows the engine's part."""
        place = int(self.order[rank - 1])
        hit, score, model_score = self.window.hits[place], float(self.scores[place]), float(self.window.model[place])
        unscored = math.isnan(score)
        if unscored:
            score = engine_part(float(self.window.lexical[place]), self.alpha.value, self.query.scale)
        return RankedHit(
            id=hit.id, index=hit.index, rank=rank, score=score,
            first_stage_rank=place + 1 if self.window.ranks_known else 0, first_stage_score=hit.score,
            model_score=None if math.isnan(model_score) else model_score,
            unscored=unscored, kept=bool(self.kept[place]), source=hit.source, raw=hit.raw,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ranking:
    """The engine's hits with the final order of their window; ranked hits are made for the page alone.

    ``hits`` are in first-stage order, and those past the window stay in it; ``scored`` is None where all do. ``offset``
    hits of the engine stand before these.
    """

    hits: Sequence[Hit]
    scored: Scored | None = None
    offset: int = 0
    notices: list[str] = field(default_factory=list)

    def page(self, first: int, last: int) -> tuple[RankedHit, ...]:
        """Return the hits at the 0-based places first, ..., last - 1 of the final order, as far as there are any."""
        return tuple(self._hit(place) for place in range(first, min(last, len(self.hits))))

    def _hit(self, place: int) -> RankedHit:
        if self.scored is not None and place < len(self.scored.order):
            return self.scored.hit(place + 1)
        hit, rank = self.hits[place], place + 1 + self.offset
        score = hit.score if hit.score is not None and math.isfinite(hit.score) else 0.0  # what JSON can hold
        return RankedHit(
            id=hit.id, index=hit.index, rank=rank, score=score, first_stage_rank=rank, first_stage_score=hit.score,
            source=hit.source, raw=hit.raw,
        )  # fmt: skip


def engine_part(lexical: float, alpha: float, scale: float) -> float:
    """Return (1 - alpha) BM25 / c(q), 0 where the engine gave no score or it does not count."""
    return 0.0 if alpha == 1.0 or not math.isfinite(lexical) else (1.0 - alpha) * (lexical / scale)


def notices_of(query: EncodedQuery, alpha: ChosenAlpha, n_encoded: int, n: int) -> list[str]:
    """Return what the reader of a reranked page should know about how its scores came to be."""
    notices = []
    if alpha.origin == "default":
        notices.append(
            f"alpha = {alpha.value:g} is the default, not fitted to this index, body and window: run `ssi calibrate`"
        )
    if query.n_listed == 0:
        notices.append("no word of the query is in the model's vocabulary: it ranks by exact words alone")
    if n_encoded:
        notices.append(
            f"{n_encoded} of {n} candidates had no vector of this model and were encoded from their text: "
            "run `ssi sync`"
        )
    return notices


# --- the answer


@dataclass(frozen=True, slots=True)
class Contribution:
    """One row of an explanation.

    ``identity`` is a word of the query that is also in the document, ``memory`` one of queries that the document was
    relevant for in training, with what that adds to the word's weight in the text; ``learned`` is a pair of words the
    model has learned to relate. ``signal`` is a number of the document: ``document_word`` is its field, ``weight`` its
    w. ``others``, all pairs not shown, and ``engine``, its own score, have no words and weight 0. So has ``learned``
    where the text that was encoded is not at hand: then it is the whole learned part, (Uq').(Vd'), and what the memory
    adds is in ``identity``.

    ``weight`` of a pair is W_ij: a for identity and memory, U_i . V_j for learned; in the cubic forms and in ``unit``
    the learned W_ij is that of this document (and query): U_i . (V_j o t(d)), see `reranker.models.scorers`. ``value``
    is what the row adds to the score: alpha q_i W_ij d_j, of the learned rows for learned and of the lexical rows for
    identity and memory; w s(x) for ``signal``, and for ``engine`` (1 - alpha) BM25 / c(q).
    """

    kind: Literal["identity", "memory", "learned", "others", "signal", "engine"]
    query_word: str
    document_word: str
    weight: float
    value: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The contributions to the score of one hit, largest first, then ``others``, the signals and ``engine``.

    Their values sum to ``score`` within 1e-6. ``others`` also holds what rounding of the stored vector adds or takes.
    """

    id: str
    score: float
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class RerankedPage:
    """The answer to a search: the hits of the page, in final order.

    ``total`` documents match, by the engine's count; a lower bound where not ``total_is_exact``. ``reranked`` is True
    where the model took part in the order of this page, ``fallback`` where it should have and the page is in the
    engine's order instead; ``reason`` says why a page is not reranked. ``notices`` are what the reader should know: the
    default alpha was used, words are unknown, vectors are missing. ``alpha`` is the weight of the model in the scores,
    its ``alpha_origin`` is ``calibrated``, ``default`` or ``given``. Of ``n_candidates`` in the window, ``n_encoded``
    were encoded from their text for want of a vector, and ``n_unscored`` had neither. ``timings_ms`` are by step.
    ``explanations`` are one a hit where asked for, else none; ``raw`` is the engine's first answer (aggregations,
    suggestions), hits aside.
    """

    query: str
    hits: tuple[RankedHit, ...]
    total: int
    total_is_exact: bool
    reranked: bool
    fallback: bool = False
    reason: str = ""
    notices: tuple[str, ...] = ()
    alpha: float | None = None
    alpha_origin: str = ""
    model_id: str = ""
    n_candidates: int = 0
    n_encoded: int = 0
    n_unscored: int = 0
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values; ``null`` stands for a score that is absent or not finite."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("hits", "explanations", "raw")}
        values["notices"] = list(self.notices)
        values["timings_ms"] = {name: round(value, 3) for name, value in self.timings_ms.items()}
        values["hits"] = [_hit_json(hit) for hit in self.hits]
        for hit, explanation in zip(values["hits"], self.explanations, strict=False):
            hit["explanation"] = asdict(explanation)["contributions"]
        values |= {name: self.raw[name] for name in ("aggregations", "suggest") if name in self.raw}
        return values


def _hit_json(hit: RankedHit) -> dict[str, Any]:
    values = {name: value for name, value in structs.asdict(hit).items() if name not in ("raw", "source")}
    for name in ("first_stage_score", "model_score"):
        if values[name] is not None and not math.isfinite(values[name]):
            values[name] = None
    shown = {name: hit.raw[name] for name in ("highlight", "inner_hits", "fields") if name in hit.raw}
    return {**values, **shown, "source": hit.source}


# --- explanations

DocumentRows: TypeAlias = tuple[sp.csr_matrix, sp.csr_matrix | None, sp.csr_matrix | None]
"""A hit's lexical row, what of it the memory of queries adds (None: not told apart), and the row that V read (None: not
known), of one row each."""
DEFAULT_PAIRS = 8
MAX_PAIRS = 1_000_000
"""Pairs of words of one hit whose learned weights are computed: some 50 ms."""
RESERVED = 0.1
"""Share of the deadline that explaining leaves to sending the page."""
_SAME_WEIGHT = 2e-3
"""Relative difference of weights of one text: above the rounding of a sparse field, below that of another text."""


def explanations_of(
    model: RankingModel, text: str, ranking: Ranking, page: Sequence[RankedHit], deadline: Deadline
) -> tuple[Explanation, ...]:
    """Return why each hit of the page has its score; ``text`` is the query's.

    `FallbackError` if less than `RESERVED` of the deadline is left before all hits are explained: the page is worth
    more in time, without explanations.
    """
    if ranking.scored is None:
        return ()
    scored = ranking.scored
    window, query, alpha = scored.window, scored.query, scored.alpha
    name = WordNames(model, text)
    words = model.encode_queries([text])
    places = [int(scored.order[hit.rank - 1]) for hit in page if hit.rank <= len(scored.order)]
    terms = dict(zip(places, window.vectors.terms(places), strict=True))
    explanations: list[Explanation] = []
    for hit in page:
        if deadline.left_s < RESERVED * (deadline.limit_s or 0.0):
            raise FallbackError(f"explanations were left out: {len(explanations)} of {len(page)} hits took too long")
        if hit.rank > len(scored.order):
            explanations.append(Explanation(hit.id, hit.score, ()))
            continue
        place = int(scored.order[hit.rank - 1])
        name.read(list(model.encoder.view.texts(hit.source)), model.encoder.document_vocabulary)
        lexical = engine_part(float(window.lexical[place]), alpha.value, query.scale)
        stored = None if hit.unscored or hit.model_score is None else terms[place]
        document = None if stored is None else _rows(model, stored, hit)
        signals = () if hit.unscored else alpha.signals  # without a blended score it shows the engine's part alone
        numbers = [(signal, float(added([signal], [window.hits[place]])[0])) for signal in signals]
        beside = [Contribution("signal", "", signal.field, signal.weight, value) for signal, value in numbers]
        beside.append(Contribution("engine", "", "", 0.0, lexical))
        explanations.append(explain_hit(model, words, document, alpha.value, name, hit, beside))
    return tuple(explanations)


def _rows(model: RankingModel, stored: sp.csr_matrix, hit: RankedHit) -> DocumentRows:
    """Return the rows of a hit whose lexical row is stored; None for what is not known of them.

    With lexical settings d' is not stored (only Vd' is): it is that of the text that came with the hit, unless this is
    another text than was encoded, in part or since changed, so that it gives another lexical row than the stored one.
    What the memory of queries adds is the stored row without that of the text alone, in the words of the memory.
    """
    encoder = model.encoder
    if encoder.lexical is None:
        return stored, None, stored
    encoded = quantise_rows(encoder.rows([hit.source], [hit.id]), encoder.quantisation)
    (ids, weights), (stored_ids, stored_weights) = (
        (row.indices[row.data != 0], row.data[row.data != 0]) for row in (encoded, stored)
    )
    same = np.array_equal(ids, stored_ids) and np.allclose(weights, stored_weights, rtol=_SAME_WEIGHT, atol=0)
    if not same:
        return stored, None, None
    learned = encoder.learned_rows([hit.source])
    if encoder.memory is None:
        return stored, None, learned
    remembered = encoder.memory.counts([hit.id], 1).indices
    of_text = quantise_rows(encoder.rows([hit.source]), encoder.quantisation)
    with_memory, without = (
        with_data(row, np.where(np.isin(row.indices, remembered), row.data, 0)) for row in (stored, of_text)
    )
    added = combine([with_memory, without], [1.0, -1.0])
    return combine([stored, added], [1.0, -1.0]), added, learned


def explain_hit(
    model: RankingModel, query: EncodedQueries, document: DocumentRows | None, alpha: float,
    name: Callable[[int, bool], str], hit: RankedHit, beside: Sequence[Contribution], n_pairs: int = DEFAULT_PAIRS,
) -> Explanation:  # fmt: skip
    """Return the explanation of one hit.

    ``query`` is the query alone; ``document`` the hit's rows, None for a hit without a score of the model;
    ``name(word id, True for the query's side)`` returns the word; ``beside`` are the rows of the signals and of the
    engine, as they were added to the score; ``n_pairs`` are shown.

    Without the row that V read no pair of words can be told from another, and the weights of more than `MAX_PAIRS`
    pairs take too long to compute. (Uq').(Vd') is then one row of kind ``learned``, without words, so that the rows
    still add up to the score.
    """
    rows, whole = [], []
    if document is not None:
        lexical, memory, learned = document
        rows = _same_words(model, query.rows, lexical, alpha, name, "identity")
        if memory is not None:
            rows += _same_words(model, query.rows, memory, alpha, name, "memory")
        if learned is not None and query.learned_rows.nnz * learned.nnz <= MAX_PAIRS:
            rows += _learned_pairs(model, query.learned_rows, learned, alpha, name, n_pairs)
        elif hit.model_score is not None:
            value = alpha * hit.model_score - math.fsum(row.value for row in rows)
            whole = [Contribution("learned", "", "", 0.0, value)]
    shown = sorted(rows, key=lambda row: -abs(row.value))[:n_pairs]
    rows = sorted([*shown, *whole], key=lambda row: -abs(row.value))
    others = hit.score - math.fsum(row.value for row in (*rows, *beside))
    rows += [Contribution("others", "", "", 0.0, others), *beside]
    return Explanation(hit.id, hit.score, tuple(rows))


def _learned_pairs(
    model: RankingModel, query: sp.csr_matrix, document: sp.csr_matrix, alpha: float,
    name: Callable[[int, bool], str], n_pairs: int,
) -> list[Contribution]:  # fmt: skip
    """Return the ``n_pairs`` non-zero contributions of pairs of words of largest magnitude, largest first."""
    pairs: list[Contribution] = []
    # In this document: where the model's form is not linear, a pair's weight depends on the words beside it.
    learned = model.pair_weights(query, document)
    values = alpha * query.data.astype(np.float64)[:, None] * learned * document.data.astype(np.float64)[None, :]
    # Naming a word costs more than computing its pair: name only what can be shown.
    for at in np.argsort(-np.abs(values), axis=None, kind="stable")[:n_pairs].tolist():
        i, j = divmod(at, len(document.indices))
        if values[i, j] != 0.0:
            words = name(int(query.indices[i]), True), name(int(document.indices[j]), False)
            pairs.append(Contribution("learned", *words, float(learned[i, j]), float(values[i, j])))
    return pairs


def _same_words(
    model: RankingModel, query: sp.csr_matrix, document: sp.csr_matrix, alpha: float,
    name: Callable[[int, bool], str], kind: Literal["identity", "memory"],
) -> list[Contribution]:  # fmt: skip
    """Return the non-zero contributions of the words that both lexical rows have."""
    pairs: list[Contribution] = []
    ids, in_query, in_document = np.intersect1d(
        query.indices, document.indices, assume_unique=True, return_indices=True
    )
    for word, i, j in zip(ids.tolist(), in_query.tolist(), in_document.tolist(), strict=True):
        value = alpha * model.identity * float(query.data[i]) * float(document.data[j])
        if value != 0.0:
            pairs.append(Contribution(kind, name(word, True), name(word, False), float(model.identity), value))
    return pairs


class WordNames:
    """The words behind ids: from the vocabularies, and for unlisted words from the texts at hand."""

    def __init__(self, model: RankingModel, query: str) -> None:
        self._model = model
        self._unlisted: dict[int, str] = {}
        self.read([query], model.query_vocabulary)

    def read(self, texts: list[str], vocabulary: Vocabulary) -> None:
        """Remember the unlisted words of some texts."""
        for tokens in self._model.encoder.analyzer.tokens(texts):
            ids = vocabulary.ids(tokens).tolist()
            self._unlisted.update({i: word for i, word in zip(ids, tokens, strict=True) if i >= HASH_BASE})

    def __call__(self, word_id: int, of_query: bool) -> str:
        """Return the word, or a stand-in where no text at hand has it."""
        vocabulary = self._model.query_vocabulary if of_query else self._model.encoder.document_vocabulary
        if word_id < len(vocabulary.words):
            return vocabulary.words[word_id]
        return self._unlisted.get(word_id, f"(unlisted word {word_id - HASH_BASE})")
