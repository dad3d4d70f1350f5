"""Numbers as tables show them, and sentences that say whether a paper's ordering is seen here."""

from __future__ import annotations

import math

PER_CENT = ("rank loss",)
"""Measures in per cent."""
LOWER = ("rank loss",)
"""Measures of which less is better; of all others more is."""


def figure(measure: str, mean: float, error: float) -> str:
    """Return mean ± standard error, as the papers print it; empty if there is no mean."""
    if math.isnan(mean):
        return ""
    if measure in PER_CENT:
        return f"{mean:.3f} ± {error:.3f} %"
    return f"{mean:.3f} ± {error:.3f}"


def p_value(p: float) -> str:
    """Return a p-value, never as 0."""
    return "< .0001" if p < 0.0001 else f"{p:.4f}".lstrip("0") if p < 1 else "1"


def seconds(spent: float) -> str:
    """Return a time in seconds, with a decimal where it matters."""
    return f"{spent:.1f}" if spent < 100 else f"{spent:,.0f}"
