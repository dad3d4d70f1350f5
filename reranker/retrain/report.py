"""The report of a retraining: one HTML file that needs neither network nor scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reranker.errors import MissingExtra
from reranker.retrain import charts
from reranker.retrain.changes import Changes
from reranker.retrain.result import RetrainResult
from reranker.retrain.word_pairs import WordPair

if TYPE_CHECKING:
    from reranker.retrain.gate import Measured, QueryChange, Verdict
    from reranker.training import TrainingReport

MAX_LISTED = 12
"""Queries listed on either side."""
MAX_QUERY = 120
"""Characters shown of a query."""


@dataclass(frozen=True, slots=True)
class StudyPoint:
    """What a part of the preferences reaches: their number, and the difference in nDCG to the live model."""

    preferences: int
    difference: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Example:
    """A query with the documents at the top of the live and of the new order, by title or id."""

    live: Sequence[str]
    new: Sequence[str]


@dataclass(frozen=True)
class Findings:
    """All that the report shows.

    Parameters
    ----------
    result : RetrainResult
    engine : str
        Spec of the engine, without credentials.
    finished : str
        UTC time, ISO 8601.
    verdict : Verdict
    training : TrainingReport
    shown, clicked : sequence of int
        By rank, over the impressions learned from.
    propensities : sequence of float
        By rank; and how they were found.
    propensity_method : str
    differences : sequence of float
        Of nDCG by query.
    changes : Changes
    examples : mapping of query to Example
    strongest, changed : sequence of WordPair
    study : sequence of StudyPoint
    warnings : sequence of str
        Of the doctor, and of this run.
    settings : mapping
    """

    result: RetrainResult
    engine: str
    finished: str
    verdict: Verdict
    training: TrainingReport
    shown: Sequence[int]
    clicked: Sequence[int]
    propensities: Sequence[float]
    propensity_method: str
    differences: Sequence[float]
    changes: Changes
    examples: Mapping[str, Example] = field(default_factory=dict)
    strongest: Sequence[WordPair] = ()
    changed: Sequence[WordPair] = ()
    study: Sequence[StudyPoint] = ()
    warnings: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def write_report(findings: Findings, path: Path) -> None:
    """Write the report over whatever is there, whole or not at all.

    Raises
    ------
    MissingExtra
        Where jinja2 or matplotlib is not installed.
    """
    text = render(findings)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def render(findings: Findings) -> str:
    """Return the report as HTML."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", "clicks") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reranker.retrain"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "moment": _moment, "short": _short, "signed": _signed, "number": _number, "percent": _percent,
    }  # fmt: skip
    page: str = environment.get_template("report.html.j2").render(
        f=findings,
        r=findings.result,
        v=findings.verdict,
        pictures=_pictures(findings),
        measured=_of_both(findings.verdict),
        gains=[_row(findings, one) for one in findings.verdict.winners[:MAX_LISTED]],
        losses=[_row(findings, one) for one in findings.verdict.losers[:MAX_LISTED]],
    )
    return page


def _of_both(verdict: Verdict) -> list[Measured]:
    """Return the measures of the live and the new model, without those of a random order."""
    return [one for one in verdict.measured if "random" not in one.name]


def _row(findings: Findings, change: QueryChange) -> tuple[QueryChange, Example | None]:
    return change, findings.examples.get(change.query)


def _pictures(findings: Findings) -> dict[str, Any]:
    """Return the pictures as markup that is not escaped: their texts are ours or numbers."""
    from markupsafe import Markup

    history = findings.training.result.history
    measured = [
        (one.name, one.difference.estimate, one.difference.lower, one.difference.upper)
        for one in _of_both(findings.verdict)
    ]
    made = {
        "clicks": charts.click_rates(findings.shown, findings.clicked, findings.propensities),
        "learning": charts.learning_curve(
            [line.number for line in history], [line.map for line in history], [line.violating for line in history]
        ) if history else "",
        "differences": charts.differences(findings.differences) if len(findings.differences) else "",
        "intervals": charts.intervals(measured, 0.0) if measured else "",
        "study": charts.size_study(
            [point.preferences for point in findings.study],
            [point.difference for point in findings.study],
            [(point.lower, point.upper) for point in findings.study],
        ) if findings.study else "",
    }  # fmt: skip
    return {name: Markup(svg) for name, svg in made.items()}  # noqa: S704


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _short(text: str | None) -> str:
    if not text:
        return "none"
    return text if len(text) <= MAX_QUERY else f"{text[: MAX_QUERY - 1]}…"


def _signed(value: float, digits: int = 4) -> str:
    # U+2212 is as wide as the plus sign.
    return f"{value:+.{digits}f}".replace("-", "\u2212")


def _number(value: float) -> str:
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
