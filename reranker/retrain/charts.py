"""Pictures of the report: inline SVG made by matplotlib, the same bytes for the same numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reranker.figures import new_figure, picture_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED, GREY, LIGHT = "#2a5d9f", "#b3452c", "#667080", "#c9d2de"
_WIDTH, _HEIGHT = 5.4, 2.7
MAX_RANKS = 100
"""Ranks drawn: one event may state a position of a million, and deeper ranks have no propensity of their own."""
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa4b2",
    "axes.labelcolor": "#3d4653",
    "xtick.color": "#3d4653",
    "ytick.color": "#3d4653",
    "axes.grid": True,
    "grid.color": "#e8ecf1",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


class Chart:
    """One picture: ``with Chart("name") as axes: ...``, then ``svg``.

    Parameters
    ----------
    name : str
        Makes the ids inside the picture differ from those of other pictures of the page.
    width, height : float
        Inches of 72 points.

    Raises
    ------
    MissingExtra
        Where matplotlib is not installed.
    """

    def __init__(self, name: str, width: float = _WIDTH, height: float = _HEIGHT) -> None:
        self._name = name
        self._opened = new_figure(width, height, extra="clicks", style=_STYLE, salt=name)
        self.svg = ""

    def __enter__(self) -> Axes:
        self._figure = self._opened.__enter__()
        axes: Axes = self._figure.subplots()
        return axes

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                self.svg = _svg(self._figure, self._name)
        finally:
            self._opened.__exit__(kind, error, trace)


def _svg(figure: Any, name: str) -> str:
    """Return the picture as an element for HTML: no prologue, no metadata, as wide as its place, ids of its own."""
    text = picture_bytes(figure, "svg", transparent=True).decode("utf-8")
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    head, end, rest = text.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", head + end + rest).strip()


def _whole_numbers(axes: Axes) -> None:
    """Put marks of the lower axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def learning_curve(epochs: Sequence[int], values: Sequence[float | None], violating: Sequence[float]) -> str:
    """Return validation MAP and the share of violating steps by epoch."""
    chart = Chart("learning")
    with chart as axes:
        known = [(e, v) for e, v in zip(epochs, values, strict=True) if v is not None]
        if known:
            axes.plot(*zip(*known, strict=True), color=BLUE, marker="o", markersize=4, label="validation MAP")
        axes.set_xlabel("epoch")
        axes.set_ylabel("validation MAP", color=BLUE)
        _whole_numbers(axes)
        other = axes.twinx()
        other.grid(visible=False)
        other.spines["top"].set_visible(False)
        other.plot(epochs, violating, color=RED, marker="s", markersize=3, linestyle="--")
        other.set_ylabel("steps that change the model", color=RED)
        other.set_ylim(bottom=0)
    return chart.svg


def click_rates(shown: Sequence[int], clicked: Sequence[int], propensities: Sequence[float]) -> str:
    """Return clicks / showings of the first ranks as bars, and the propensities used as a line."""
    chart = Chart("clicks")
    with chart as axes:
        ranks = np.arange(1, min(len(shown), MAX_RANKS) + 1)
        rates = np.asarray(clicked[:MAX_RANKS], dtype=float) / np.maximum(np.asarray(shown[:MAX_RANKS], dtype=float), 1)
        axes.bar(ranks, rates, color=LIGHT, edgecolor=BLUE, linewidth=0.8)
        axes.set_xlabel("rank")
        axes.set_ylabel("click rate", color=BLUE)
        axes.grid(visible=False, axis="x")
        _whole_numbers(axes)
        if len(propensities):
            filled = [propensities[min(place, len(propensities) - 1)] for place in range(len(ranks))]
            other = axes.twinx()
            other.grid(visible=False)
            other.plot(ranks, filled, color=RED, marker="o", markersize=3)
            other.set_ylabel("propensity used", color=RED)
            other.set_ylim(bottom=0)
    return chart.svg


def size_study(sizes: Sequence[int], values: Sequence[float], bounds: Sequence[tuple[float, float]]) -> str:
    """Return the difference to the live model, with its bounds, by the number of preferences learned from."""
    chart = Chart("sizes")
    with chart as axes:
        reach = np.array([[v - low, high - v] for v, (low, high) in zip(values, bounds, strict=True)]).T
        axes.errorbar(sizes, values, yerr=reach, color=BLUE, marker="o", markersize=4, capsize=3, linewidth=1.2)
        axes.axhline(0, color=RED, linestyle="--", linewidth=1)
        axes.annotate("live model", (0.99, 0), xycoords=("axes fraction", "data"), color=RED, ha="right", va="bottom")
        axes.set_xlabel("preferences learned from")
        axes.set_ylabel("difference in nDCG")
        axes.set_xlim(left=0)
    return chart.svg


def differences(values: Sequence[float]) -> str:
    """Return the differences of all queries, largest loss first, as one profile."""
    chart = Chart("differences")
    with chart as axes:
        ordered = np.sort(np.asarray(values, dtype=float))
        places = np.arange(len(ordered))
        axes.fill_between(places, ordered, where=ordered <= 0, color=RED, alpha=0.75, step="mid", linewidth=0)
        axes.fill_between(places, ordered, where=ordered >= 0, color=BLUE, alpha=0.75, step="mid", linewidth=0)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set_xlabel("queries, from the largest loss to the largest gain")
        axes.set_ylabel("difference in nDCG")
        axes.grid(visible=False, axis="x")
    return chart.svg


def intervals(rows: Sequence[tuple[str, float, float, float]], margin: float) -> str:
    """Return differences (name, estimate, lower, upper) with their bounds, one below the other."""
    chart = Chart("intervals", height=0.9 + 0.42 * len(rows))
    with chart as axes:
        for place, (_, estimate, lower, upper) in enumerate(rows):
            colour = BLUE if lower > 0 else RED if upper < 0 else GREY
            axes.plot([lower, upper], [place, place], color=colour, linewidth=3, solid_capstyle="butt", alpha=0.5)
            axes.plot([estimate], [place], color=colour, marker="o", markersize=6)
        axes.axvline(0, color=GREY, linewidth=0.8)
        if margin:
            axes.axvline(margin, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("new model - live model")
        axes.grid(visible=False, axis="y")
    return chart.svg
