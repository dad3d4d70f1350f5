"""Numbers as tables show them, and sentences that say whether a paper's ordering is seen here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from papers.task import Table

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


class _Settled(Protocol):
    """What `settings_table` reads of results."""

    @property
    def titles(self) -> Mapping[str, str]: ...

    @property
    def settings(self) -> Mapping[tuple[str, str], Mapping[str, Any]]: ...

    @property
    def failures(self) -> Mapping[tuple[str, str], str]: ...


def settings_table(results: _Settled) -> Table:
    """Return what was chosen on validation for each system and study, or why it has no row."""
    several = len({study for study, _ in (*results.settings, *results.failures)}) > 1
    rows = []
    for (study, name), settings in results.settings.items():
        title = f"{results.titles[name]}, {study}" if several else results.titles[name]
        said = ", ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in settings.items())
        rows.append((title, results.failures.get((study, name), said)))
    return Table("Chosen on validation", ("system", "settings"), tuple(rows))


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
