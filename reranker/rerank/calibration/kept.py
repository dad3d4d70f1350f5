"""The calibrations that a release keeps: alpha, signals and probability by body and window, boosts by body and mode.

A search reads them. `fit_alpha` and `fit_boost` of this package fit them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from reranker.arrays import Float64
from reranker.config import IMPACT_BOOST, IMPACT_MODES, ImpactMode
from reranker.engines.protocol import Engine
from reranker.errors import ConfigError
from reranker.releases import ControlRecord, update_control, utc_now
from reranker.rerank.calibration.bodies import ScoringParts, body_hash, similarity
from reranker.rerank.signals import Signal

PINNED_SCORE: Final = 1e30
"""A ``_score`` above this value is not a similarity: a pinned query gives its documents scores of 1.7e38 and above."""
DEFAULT_ALPHA: Final = 0.5
"""Weight of the model before `ssi calibrate` has fitted one. A page that uses it contains a notice."""
LEAST_SIMILARITY: Final = 0.5
"""Similarity of two bodies from which the calibration of one is used for the other."""


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


def window_scale(lexical: Float64, otherwise: float) -> float:
    """Return the highest of the engine's scores in a window, (n,) float64, or ``otherwise`` if none is above 0.

    Scores of pinned hits (`PINNED_SCORE`) do not count. Divided by it, the engine's scores do not depend on the boosts
    of a body, so that an alpha that was fitted to one body can be used for a similar one.
    """
    usable = lexical[np.isfinite(lexical) & (lexical < PINNED_SCORE)]
    highest = float(usable.max(initial=0.0))
    return highest if highest > 0.0 else otherwise


class Probability(NamedTuple):
    """Probability that a candidate is relevant as a function of f: 1 / (1 + e^-(slope f + offset)), slope > 0.

    It is monotonic, so it keeps the order. `fit_probability` fits it.
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


def _is_of_impacts(key: str) -> bool:
    return key.rpartition(":")[2] in IMPACT_MODES


def _boost_of(key: str, entry: Any) -> float:
    boost = entry.get("boost") if isinstance(entry, Mapping) else None
    if isinstance(boost, bool) or not isinstance(boost, (int, float)) or not 0.0 < boost < math.inf:
        raise ConfigError(
            f"calibration {key!r} of the release has no boost above 0: run `ssi calibrate --route impacts` again"
        )
    return float(boost)


def keep_entry(
    engine: Engine,
    index: str,
    model_id: str,
    template: Mapping[str, Any],
    kind: int | ImpactMode,
    entry: Mapping[str, Any],
) -> ControlRecord:
    """Store the entry of a body and a window, or of a body and a mode, in the model's release, with the time.

    Returns the stored record. Raises `InputError` if the model has no release for the index; `EngineError` if the
    record cannot be written.
    """
    key, entry = Calibration.key(body_hash(template), kind), {**entry, "fitted": utc_now()}

    def change(record: ControlRecord) -> ControlRecord:
        release = record.release(model_id)
        return record.with_release(replace(release, calibration={**release.calibration, key: entry}))

    return update_control(engine, index, change)
