"""Calibrations: the weight of the model in the blend, the signals, and the probabilities, by query body and window.

The boost of impacts is fitted by query body and mode. `reranker.rerank.calibrate` fits them. A release stores them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from reranker.arrays import Float64
from reranker.config import IMPACT_BOOST, IMPACT_MODES, ImpactMode
from reranker.engines.bodies import candidate_body
from reranker.errors import ConfigError
from reranker.rerank.signals import Signal

PINNED_SCORE: Final = 1e30
"""A ``_score`` above this value is not a similarity: a pinned query gives its documents scores of 1.7e38 and above."""
DEFAULT_ALPHA: Final = 0.5
"""Weight of the model before `ssi calibrate` has fitted one. A page that uses it contains a notice."""


class ChosenAlpha(NamedTuple):
    """An alpha with its origin and the signals that were fitted with it."""

    value: float
    """Weight of the model, 0 to 1."""
    origin: str
    """``given``, ``calibrated`` (fitted to this body and window), ``nearest`` (to a similar one), or ``default``."""
    signals: tuple[Signal, ...] = ()
    """Signals fitted with this alpha; empty for a given alpha."""
    by_window: bool = False
    """The engine's scores are divided by the highest one of the window instead of c(q), see `window_scale`."""


DEFAULT: Final = ChosenAlpha(DEFAULT_ALPHA, "default")


def check_alpha(alpha: float) -> float:
    """Return ``alpha``. Raises `ConfigError` if it is not between 0 (only the engine) and 1 (only the model)."""
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha is {alpha}: it must be between 0 (the engine's order) and 1 (the model's order)")
    return float(alpha)


_SCORING = (
    "query",
    "knn",
    "retriever",
    "rescore",
    "rank",
    "sub_searches",
    "indices_boost",
    "runtime_mappings",
    "derived",
)
"""Parts of a body that determine the scores of its hits."""


_FILTERS = frozenset({"filter", "must_not", "minimum_should_match", "min_score"})


_ALL_MUST_MATCH = frozenset(
    {
        "bool",
        "must",
        "function_score",
        "script_score",
        "query",
        "boosting",
        "positive",
        "pinned",
        "organic",
        "knn",
        "retriever",
        "retrievers",
        "standard",
        "rrf",
        "linear",
        "text_similarity_reranker",
        "rescorer",
    }
)
"""Clauses in which a filter only removes hits. Under ``should`` it would also change the scores of other hits."""


def body_hash(template: Mapping[str, Any]) -> str:
    """Return the identifier of a body template, 16 hexadecimal digits, from the parts that determine scores.

    It ignores parts that only affect the display (``_source``, highlight, aggregations, page size) and filters. So
    alpha, and with it the order of the remaining hits, stays the same if a user clicks on a facet.
    """
    scoring = {name: _without_filters(template[name]) for name in _SCORING if name in template}
    content = json.dumps(candidate_body(scoring, 1), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(content.encode("ascii"), digest_size=8).hexdigest()


def _without_filters(node: Any) -> Any:
    """Return a query, knn or retriever clause without filters; a ``bool`` with one clause is replaced by the clause."""
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


def window_scale(lexical: Float64, otherwise: float) -> float:
    """Return the highest of the engine's scores in a window, (n,) float64, or ``otherwise`` if none is above 0.

    Scores of pinned hits (`PINNED_SCORE`) do not count. Divided by it, the engine's scores do not depend on the boosts
    of a body, so that an alpha that was fitted to one body can be used for a similar one.
    """
    usable = lexical[np.isfinite(lexical) & (lexical < PINNED_SCORE)]
    highest = float(usable.max(initial=0.0))
    return highest if highest > 0.0 else otherwise


LEAST_SIMILARITY: Final = 0.5
"""Similarity of two bodies from which the calibration of one is used for the other."""
_NESTING = _ALL_MUST_MATCH | {"should", "dis_max", "queries", "functions", "rescore", "rescore_query", "constant_score"}
"""Keys of a body that only contain other clauses."""


def signature_of(template: Mapping[str, Any]) -> frozenset[str]:
    """Return the clauses of a body that determine scores, as ``clause:field``, without boosts, values and filters."""
    scoring = [template[name] for name in _SCORING if name in template]
    return frozenset(_clauses(_without_filters(scoring)))


def _clauses(node: Any) -> Iterator[str]:
    if isinstance(node, (list, tuple)):
        for item in node:
            yield from _clauses(item)
    if not isinstance(node, Mapping):
        return
    for name, value in node.items():
        if name in _NESTING:
            yield from _clauses(value)
        elif isinstance(value, Mapping):
            listed = value.get("fields", [value["field"]] if "field" in value else [*value][:1])
            for path in listed if isinstance(listed, (list, tuple)) else [listed]:
                yield f"{name}:{str(path).partition('^')[0]}"


class ScoringParts(NamedTuple):
    """The parts of a search body that determine the scores of hits, by which a calibration is found."""

    hash: str
    """`body_hash` of the body."""
    clauses: frozenset[str]
    """`signature_of` the body."""

    @classmethod
    def of(cls, template: Mapping[str, Any]) -> ScoringParts:
        """Return these parts of a body template."""
        return cls(body_hash(template), signature_of(template))


def similarity(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the share of common clauses among all clauses of two bodies, 0 to 1."""
    return len(first & second) / len(first | second) if first or second else 0.0


class Probability(NamedTuple):
    """Probability that a candidate is relevant as a function of f: 1 / (1 + e^-(slope f + offset)), slope > 0.

    It is monotonic, so it keeps the order. `reranker.rerank.calibrate` fits it.
    """

    slope: float
    offset: float

    def of(self, model_scores: Float64) -> Float64:
        """Return the probabilities for f(q, d), (n,) float64; NaN for NaN."""
        with np.errstate(over="ignore"):
            values: Float64 = 1.0 / (1.0 + np.exp(-(self.slope * model_scores + self.offset)))
        return values

    @classmethod
    def from_json(cls, entry: Any) -> Probability:
        """Return the probability stored in a release as [slope, offset]. Raises `ConfigError` for anything else."""
        try:
            slope, offset = map(float, entry)
        except (TypeError, ValueError, OverflowError):
            slope, offset = math.nan, math.nan
        if not (math.isfinite(slope) and math.isfinite(offset) and slope > 0):
            raise ConfigError(
                f"probability {entry!r:.80} of the release is not [slope above 0, offset]: run `ssi calibrate` again"
            )
        return cls(slope, offset)


def _is_of_impacts(key: str) -> bool:
    return key.rpartition(":")[2] in IMPACT_MODES


def _boost_of(key: str, entry: Any) -> float:
    boost = entry.get("boost") if isinstance(entry, Mapping) else None
    if isinstance(boost, bool) or not isinstance(boost, (int, float)) or not 0.0 < boost < math.inf:
        raise ConfigError(
            f"calibration {key!r} of the release has no boost above 0: run `ssi calibrate --route impacts` again"
        )
    return float(boost)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fits stored in a release. Keys are ``<body hash>:<window>``, and ``<body hash>:<mode>`` for boosts."""

    alphas: Mapping[str, float] = field(default_factory=dict)
    """Fitted alphas, 0 to 1."""
    signals: Mapping[str, tuple[Signal, ...]] = field(default_factory=dict)
    """Signals fitted together with the alpha."""
    probabilities: Mapping[str, Probability] = field(default_factory=dict)
    """Probabilities of relevance as functions of f."""
    window_alphas: Mapping[str, float] = field(default_factory=dict)
    """Alphas fitted with the engine's scores divided by the highest one of the window, 0 to 1; for similar bodies."""
    signatures: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """`signature_of` of the bodies with a window alpha."""
    boosts: Mapping[str, float] = field(default_factory=dict)
    """Fitted boosts of impacts, above 0."""

    def __post_init__(self) -> None:
        for key, alpha in self.alphas.items():
            digits, _, window = key.partition(":")
            if len(digits) != 16 or not window.isdecimal():
                raise ConfigError(
                    f"the calibration key {key!r} is not <16 hex digits of the body>:<window>, or its alpha is not a "
                    "number: run `ssi calibrate` again"
                )
            check_alpha(alpha)
        for alpha in self.window_alphas.values():
            check_alpha(alpha)

    @classmethod
    def from_release(cls, entries: Mapping[str, Any]) -> Calibration:
        """Return the calibration stored in a release: ``{key: {"alpha": 0.7, "signals": [...], ...}}``.

        Signals and probability are optional. The entry of a mode is ``{"boost": 8.0, ...}``. Raises `ConfigError` if an
        entry has no alpha between 0 and 1, or no boost above 0, or if a value is invalid.
        """
        boosts = {key: _boost_of(key, entry) for key, entry in entries.items() if _is_of_impacts(key)}
        alphas: dict[str, float] = {}
        signals: dict[str, tuple[Signal, ...]] = {}
        probabilities: dict[str, Probability] = {}
        window_alphas: dict[str, float] = {}
        signatures: dict[str, frozenset[str]] = {}
        for key, entry in ((key, entry) for key, entry in entries.items() if key not in boosts):
            alpha = entry.get("alpha") if isinstance(entry, Mapping) else None
            if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
                raise ConfigError(f"calibration {key!r} of the release has no numeric alpha: run `ssi calibrate` again")
            alphas[key] = float(alpha)
            listed = entry.get("signals", [])
            if not isinstance(listed, list):
                raise ConfigError(f"the signals of calibration {key!r} are not a list: run `ssi calibrate` again")
            signals[key] = tuple(map(Signal.from_json, listed))
            if "probability" in entry:
                probabilities[key] = Probability.from_json(entry["probability"])
            window_alpha, clauses = entry.get("window_alpha"), entry.get("clauses")
            is_number = isinstance(window_alpha, (int, float)) and not isinstance(window_alpha, bool)
            if is_number and isinstance(clauses, list):
                window_alphas[key], signatures[key] = float(window_alpha), frozenset(map(str, clauses))
        return cls(alphas, signals, probabilities, window_alphas, signatures, boosts)

    @staticmethod
    def key(template_hash: str, kind: int | ImpactMode) -> str:
        """Return the key of a body and a window, or of a body and a mode of impacts."""
        return f"{template_hash}:{kind}"

    def boost(self, template: Mapping[str, Any], mode: ImpactMode, given: float | None = None) -> float:
        """Return the ``given`` boost of impacts, else that of the body and mode, else `IMPACT_BOOST`."""
        return given or self.boosts.get(self.key(body_hash(template), mode), IMPACT_BOOST)

    def choose(self, template: Mapping[str, Any], window: int, given: float | None = None) -> ChosenAlpha:
        """Return `choose_for` a body template."""
        return self.choose_for(ScoringParts.of(template), window, given)

    def choose_for(self, scoring: ScoringParts, window: int, given: float | None = None) -> ChosenAlpha:
        """Return the ``given`` alpha, else that of the body and window, of the nearest ones, or `DEFAULT_ALPHA`.

        The nearest calibration is the one of the most similar body, and among these of the nearest window. It is not
        used if the similarity of the bodies is below `LEAST_SIMILARITY`.
        """
        if given is not None:
            return ChosenAlpha(check_alpha(given), "given")
        if not self.alphas:
            return DEFAULT
        key = self.key(scoring.hash, window)
        fitted = self.alphas.get(key)
        if fitted is not None:
            return ChosenAlpha(fitted, "calibrated", self.signals.get(key, ()))
        return self._nearest(scoring.clauses, window)

    def _nearest(self, own: frozenset[str], window: int) -> ChosenAlpha:
        def nearness(key: str) -> tuple[float, float]:
            of_key = max(int(key.partition(":")[2]), 1)
            return similarity(own, self.signatures[key]), -abs(math.log(of_key / max(window, 1)))

        best = max(sorted(self.window_alphas), key=nearness, default=None)
        if best is None or nearness(best)[0] < LEAST_SIMILARITY:
            return DEFAULT
        return ChosenAlpha(self.window_alphas[best], "nearest", self.signals.get(best, ()), by_window=True)
