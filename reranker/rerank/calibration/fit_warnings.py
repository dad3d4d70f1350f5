"""Warnings about a fit for its user: what may be wrong with it, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from reranker.engines.boosts import ScoreBoost, boosts_of
from reranker.rerank.calibration.alpha import Fit, FittedSignal
from reranker.rerank.calibration.boost import BoostFit
from reranker.rerank.calibration.cross_validation import SIGNAL_ERRORS, Gain

MAX_ZERO_SHARE: Final = 0.2
"""Share of candidates with q·d = 0 above which a warning is given."""
MAX_EQUAL_SCORES: Final = 0.5
"""Share of queries without different engine scores above which a warning is given."""
MAX_MISSING: Final = 0.5
"""Share of candidates without a number above which a warning is given."""
MAX_P: Final = 0.05
"""p value above which a gain is not significant."""
MAX_MODEL_WEIGHT: Final = 0.9
"""Alpha above which boosts in the body hardly change the order, because the engine's score has the weight 1 - alpha."""


def warnings_of(fit: Fit, body: Mapping[str, Any] | None = None) -> list[str]:
    """Return warnings about a fit for its user. ``body`` is the search body template; None: the default one."""
    warnings = []
    if boosts := lost_boosts(fit, body or {}):
        warnings.append(_warning_of_boosts(fit, boosts))
    if fit.zero_share > MAX_ZERO_SHARE:
        warnings.append(
            f"{fit.zero_share:.0%} of the engine's hits share no word with the query from the model's point of view "
            "(q·d = 0): the text view or the analyzer differs from what the body searches. Train with the same fields, "
            "or with `engine:INDEX/FIELD` as the analyzer"
        )
    doubtful = [one for one in fit.signals if not one.signal.weight or one.missing > MAX_MISSING]
    warnings += [_warning_of_signal(found) for found in doubtful]
    if fit.alpha == 0.0:
        order = "the order of engine and signals" if fit.weighted() else "the engine's order"
        warnings.append(
            f"no weight of the model gains more than a standard error over the engine's order on {fit.n_queries:,} "
            f"queries, so alpha is 0 ({order}). Calibrate on more queries, or train on more data"
        )
    else:
        warnings += _warnings_of_gain(fit.gain_over_engine())
    if fit.n_equal_scores > MAX_EQUAL_SCORES * fit.n_queries:
        warnings.append(
            f"the engine gave all candidates of {fit.n_equal_scores:,} of {fit.n_queries:,} queries the same score, or "
            "none that is a finite number, so its order there says nothing about relevance. Give a --body that scores "
            "by the query text"
        )
    if fit.n_fallbacks:
        warnings.append(f"{fit.n_fallbacks} of {fit.n_queries} queries could not be reranked")
    return warnings


def _warning_of_signal(found: FittedSignal) -> str:
    name = f"signal {found.signal.field!r}"
    if found.signal.weight:
        return f"{name}: {found.missing:.0%} of the candidates have no number in this field; they get the middle value"
    way, other = ("lower", "higher") if found.signal.lower else ("higher", "lower")
    return (
        f"{name}: no weight gains more than {SIGNAL_ERRORS:g} standard errors, so it is not used. Leave it out, "
        f"or try {found.signal.field}:{other} if {way} is not better"
    )


def lost_boosts(fit: Fit, body: Mapping[str, Any]) -> list[ScoreBoost]:
    """Return the boosts of a search body that hardly change the order, because the engine's score has a small weight.

    Boosts are left out if all their fields are signals with a weight.
    """
    if fit.alpha <= MAX_MODEL_WEIGHT:
        return []
    kept = {signal.field for signal in fit.weighted()}
    return [boost for boost in boosts_of(body) if not (boost.fields and kept.issuperset(boost.fields))]


def _warning_of_boosts(fit: Fit, boosts: Sequence[ScoreBoost]) -> str:
    names = ", ".join(
        f"{boost.clause} ({', '.join(boost.fields)})" if boost.fields else boost.clause for boost in boosts
    )
    known = {found.signal.field for found in fit.signals}
    fields = list(dict.fromkeys(field for boost in boosts for field in boost.fields if field not in known))
    signals = f"Fit numbers, dates and booleans as signals (--signals {','.join(fields)}), or set" if fields else "Set"
    return (
        f"the engine's score has a weight of only {1.0 - fit.alpha:.2g}, so these boosts of the body hardly change the "
        f"order: {names}. {signals} a minimum for the engine's score when you search or serve: --alpha "
        f"{MAX_MODEL_WEIGHT:g} gives it the weight {1.0 - MAX_MODEL_WEIGHT:g}"
    )


def warnings_of_boost(fit: BoostFit) -> list[str]:
    """Return warnings about a fitted boost for its user."""
    warnings = _warnings_of_gain(fit.gain)
    if fit.n_fallbacks:
        warnings.append(f"{fit.n_fallbacks} of {fit.n_queries} queries got the engine's own order, without impacts")
    return warnings


def _warnings_of_gain(gain: Gain) -> list[str]:
    if math.isnan(gain.p) or (gain.mean > 0 and gain.p <= MAX_P):
        return []
    return [
        f"the cross-validated gain ({gain.mean:+.4f}) is not significant (p = {gain.p:.2g}). Calibrate on more queries"
    ]
