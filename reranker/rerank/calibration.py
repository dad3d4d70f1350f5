"""Calibrations: the weight of the model in the blend, the signals and probabilities, by query body and window.

`reranker.rerank.calibrate` fits them; a release keeps them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from reranker.arrays import Float64
from reranker.engines.bodies import candidate_body
from reranker.errors import ConfigError
from reranker.rerank.signals import Signal

DEFAULT_ALPHA: Final = 0.5
"""Weight of the model before `ssi calibrate` has fitted one; the answer says that it was used."""


class ChosenAlpha(NamedTuple):
    """An alpha and where it comes from: ``given``, ``calibrated`` or ``default``; the signals that were fitted with it.

    An alpha that is given stands alone.
    """

    value: float
    origin: str
    signals: tuple[Signal, ...] = ()


DEFAULT: Final = ChosenAlpha(DEFAULT_ALPHA, "default")


def check_alpha(alpha: float) -> float:
    """Return ``alpha``, or raise `ConfigError` where it is not between 0 (the engine alone) and 1 (the model alone)."""
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha is {alpha}; it lies between 0 (the engine's order) and 1 (the model's order)")
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
"""Parts of a body that decide the scores of its hits."""


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
