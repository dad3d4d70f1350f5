"""The report of a retraining: one HTML file without scripts, with figures as inline SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from reranker.engines.protocol import Engine
from reranker.figures import BLUE, LIGHT, RED, chart, stacked_tables, whole_numbers
from reranker.retrain.gate import LIVE, NEW, Measured
from reranker.retrain.history import History
from reranker.retrain.result import RetrainResult
from reranker.retrain.served_ranks import MAX_IDS, RankedList, ServedComparison
from reranker.text.view import TextView
from reranker.training import TrainingReport
from reranker.training.report import differences, intervals, learning_curve, page_environment, title_of

MAX_RANKS = 100
"""Maximum number of ranks drawn. A single event may state a position of a million, and deeper ranks share one
propensity."""


@chart("clicks")
def click_rates(axes: Any, shown: Sequence[int], clicked: Sequence[int], propensities: Sequence[float]) -> None:
    """Draw clicks / impressions of the first ranks as bars, and the propensities used as a line."""
    ranks = np.arange(1, min(len(shown), MAX_RANKS) + 1)
    rates = np.asarray(clicked[:MAX_RANKS], dtype=float) / np.maximum(np.asarray(shown[:MAX_RANKS], dtype=float), 1)
    axes.bar(ranks, rates, color=LIGHT, edgecolor=BLUE, linewidth=0.8)
    axes.set_xlabel("rank")
    axes.set_ylabel("click rate", color=BLUE)
    axes.grid(visible=False, axis="x")
    whole_numbers(axes)
    if len(propensities):
        filled = [propensities[min(place, len(propensities) - 1)] for place in range(len(ranks))]
        other = axes.twinx()
        other.grid(visible=False)
        other.plot(ranks, filled, color=RED, marker="o", markersize=3)
        other.set_ylabel("propensity used", color=RED)
        other.set_ylim(bottom=0)


MAX_LISTED = 12
"""Maximum number of queries listed in each table."""


def render_retraining(
    result: RetrainResult,
    training: TrainingReport,
    history: History,
    comparison: ServedComparison,
    examples: Mapping[str, Mapping[str, Sequence[str]]],
    **more: Any,
) -> str:
    """Return the report as HTML.

    Parameters
    ----------
    examples
        Query → side (``live``, ``new``) → titles of the top documents in that order.
    **more
        Further values that `Retraining` provides for the template.

    """
    environment = page_environment("reranker.retrain")
    environment.filters["moment"] = lambda ms: datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    verdict = comparison.verdict
    # Only comparisons of the live and the new model, without those with a random order.
    measured = [measure for measure in verdict.measured if "random" not in measure.compared]
    propensities = () if history.propensities is None else history.propensities.by_rank
    page: str = environment.get_template("report.html.j2").render(
        f={"training": training, "history": history, "comparison": comparison, **more},
        r=result,
        v=verdict,
        propensities=propensities,
        pictures=_pictures(training, history, comparison, measured, propensities),
        measured=measured,
        gains=[(change, examples.get(change.query)) for change in verdict.winners[:MAX_LISTED]],
        losses=[(change, examples.get(change.query)) for change in verdict.losers[:MAX_LISTED]],
    )
    return stacked_tables(page)


def _pictures(
    training: TrainingReport,
    history: History,
    comparison: ServedComparison,
    measured: Sequence[Measured],
    propensities: Sequence[float],
) -> dict[str, Any]:
    """Return the figures as unescaped markup. This is safe: their text consists of our own labels and numbers."""
    from markupsafe import Markup

    epochs, differing = training.result.history, comparison.differences
    bounds = [(of.name, of.difference.estimate, of.difference.lower, of.difference.upper) for of in measured]
    made = {
        "clicks": click_rates(history.shown, history.clicked, propensities),
        "learning": learning_curve(epochs) if epochs else "",
        "differences": differences("difference in nDCG", differing) if len(differing) else "",
        "intervals": intervals("new model - live model", bounds) if bounds else "",
    }
    return {name: Markup(svg) for name, svg in made.items()}  # noqa: S704


def examples_of(
    engine: Engine, index: str, view: TextView, lists: Mapping[str, RankedList]
) -> dict[str, dict[str, list[str]]]:
    """Return for some queries the titles of the top documents in both orders; with ids if titles are equal."""
    tops = {query: {"live": ranked.top(LIVE), "new": ranked.top(NEW)} for query, ranked in lists.items()}
    documents = sorted({document for sides in tops.values() for top in sides.values() for document in top})
    titles: dict[str, str] = {}
    for first in range(0, len(documents), MAX_IDS):
        part = documents[first : first + MAX_IDS]
        body = {"query": {"ids": {"values": part}}, "size": len(part), "_source": [spec.path for spec in view.fields]}
        for hit in engine.search(index, body).hits:
            titles[hit.id] = title_of(view, hit.source, hit.id)
    often = Counter(titles.values())

    def named(document: str) -> str:
        title = titles.get(document, document)
        return f"{title} ({document})" if often[title] > 1 else title

    return {query: {side: [*map(named, top)] for side, top in sides.items()} for query, sides in tops.items()}
