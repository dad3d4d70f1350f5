"""The report of reproduced tasks: one HTML file without scripts, with SVG charts; equal results give equal bytes."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from papers.rank_measures import Roc
from papers.registry import Picture, Section, Table, TaskRequest
from papers.results import LOWER, Results, version
from reranker.arrays import Float64
from reranker.figures import BLUE, GREY, RED, STYLE, inline_svg
from reranker.files import write_file
from reranker.training.report import page_environment

LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn", "ir-measures", "matplotlib")
MAX_SORTED = 16
"""Number of columns by which a table can be sorted."""
_NUMBER = re.compile(r"[-+−]?\d[\d,]*\.?\d*|\.\d+")


def write_report(
    sections: Sequence[Section], path: Path, requests: Sequence[TaskRequest], command: str = "", finished: str = ""
) -> None:
    """Write all sections as one page, atomically.

    Requests differ only in their corpora and seeds. Command line and time are shown as given.

    Raises
    ------
    MissingExtra
        If jinja2 is not installed.
    """
    write_file(path, render_systems(sections, requests, command, finished).encode("utf-8"))


def render_systems(
    sections: Sequence[Section], requests: Sequence[TaskRequest], command: str = "", finished: str = ""
) -> str:
    """Return the page as HTML."""
    from markupsafe import Markup

    environment = page_environment("papers")
    environment.filters["numeric"] = lambda text: bool(text) and not text[0].isalpha() and bool(_NUMBER.match(text))
    shown = [
        (
            section,
            [(table, orders_of(table)) for table in section.tables],
            [(picture, Markup(picture.svg.decode("utf-8"))) for picture in section.pictures],  # noqa: S704 - ours
        )
        for section in sections
    ]
    page: str = environment.get_template("systems.html.j2").render(
        sections=shown, facts=facts(requests), command=command, finished=finished, small=requests[0].small
    )
    return page


def facts(requests: Sequence[TaskRequest]) -> Mapping[str, str]:
    """Return the parameters of the run, as shown at the top of the report; there must be at least one request."""
    request = requests[0]
    own = "small" if request.small else "each task's own"
    budget = f"{own}, with {_listed(request.budget)}" if request.budget else own
    found = {name: version(name, "") for name in LIBRARIES}
    return {
        "corpus": ", ".join(dict.fromkeys(one.corpus.name or str(one.corpus) for one in requests)),
        "seed": ", ".join(dict.fromkeys(str(one.seed) for one in requests)),
        "budget": budget,
        "program": f"ssi-reranker {version()}, Python {platform.python_version()}",
        "libraries": ", ".join(f"{name} {number}" for name, number in found.items() if number),
    }


def orders_of(table: Table) -> tuple[tuple[int, ...], ...]:
    """Return the rank of each row by each of the first columns: best first, times and p-values ascending."""
    columns = []
    for place, name in enumerate(table.columns[:MAX_SORTED]):
        keys = [_key(row[place] if place < len(row) else "", _ascends(name)) for row in table.rows]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        places = [0] * len(keys)
        for new, row in enumerate(order):
            places[row] = new
        columns.append(places)
    return tuple(zip(*columns, strict=True)) if columns and table.rows else ()


def _ascends(column: str) -> bool:
    """Return whether a column is sorted from small to large."""
    return column in ("p", "seconds") or column.split(",", maxsplit=1)[0].startswith(LOWER)


def _key(text: str, ascends: bool) -> tuple[int, float, str]:
    """Return the sort key of a cell: numbers first, then words, then empty cells."""
    if not text:
        return 2, 0.0, ""
    match = _NUMBER.search(text) if not text[0].isalpha() else None
    if match is None:
        return 1, 0.0, text.lower()
    number = float(match.group().replace(",", "").replace("−", "-"))
    return 0, number if ascends else -number, text


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


COLOURS = (BLUE, RED, "#2d7a4a", "#8a5a9e", "#b5862c", "#3f8f9b", GREY, "#1d2530")
MARKS = "osD^vPX*"
LOW_RATE = 0.2
"""Upper end of the region of low false-positive rates, which is drawn next to the whole ROC."""


class Chart:
    """One SVG chart: ``with chart as axes: ...``, then ``chart.svg``.

    Parameters
    ----------
    name : str
        Makes the ids inside this chart differ from those in other charts of a page.
    width, height : float
        In inches of 72 points.
    n : int
        Number of axes, side by side; more than one are yielded as an array.

    """

    def __init__(self, name: str, width: float = 5.4, height: float = 3.2, n: int = 1) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        self._name = name
        self._rc = mpl.rc_context({**STYLE, "svg.hashsalt": name})
        self._figure = Figure(figsize=(width, height), layout="constrained")
        self._n = n
        self.svg = b""

    def __enter__(self) -> Any:
        self._rc.__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        return self._figure.subplots(1, self._n)

    def __exit__(self, kind: Any, *rest: object) -> None:
        try:
            if kind is None:
                self.svg = inline_svg(self._figure, self._name).encode("utf-8")
        finally:
            self._rc.__exit__(None, None, None)  # type: ignore[no-untyped-call, unused-ignore]


def lines(
    name: str, title: str, labels: tuple[str, str], results: Results, xs: Mapping[str, float], measure: str
) -> Picture:
    """Return means with standard errors against a setting, as in the studies of dimensions and training sizes.

    Parameters
    ----------
    labels : (str, str)
        Labels of the axes.
    xs : mapping of study to float
        The setting of each study, on a logarithmic axis; NaN is drawn if a system has no value.
    """
    parts = [results.of_study(study) for study in xs]
    series = {
        shown: [(part.mean(system, measure), part.standard_error(system, measure)) for part in parts]
        for system, shown in results.titles.items()
        if results.has(system, measure)
    }
    chart = Chart(name)
    with chart as axes:
        for number, (label, points) in enumerate(series.items()):
            means, errors = (np.array([point[part] for point in points]) for part in (0, 1))
            style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)]}
            axes.errorbar(
                list(xs.values()), means, yerr=errors, label=label, markersize=4, linewidth=1.4, capsize=2, **style
            )
        axes.set_xscale("log")
        axes.set_xticks(list(xs.values()), [f"{x:g}" for x in xs.values()])
        axes.minorticks_off()
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.legend(fontsize=8)
    said = "; ".join(
        f"{label}: {', '.join(f'{x:g}: {mean:.3f}' for x, (mean, _) in zip(xs.values(), points, strict=True))}"
        for label, points in series.items()
    )
    return Picture(name, title, f"{labels[1]} by {labels[0]}. {said}", chart.svg)


def scatter_plot(name: str, title: str, labels: tuple[str, str], xs: Float64, ys: Float64) -> Picture:
    """Return a scatter plot of two systems with one point per query, and the number of points on each side.

    Source: SSI Figure 1 (T13).
    """
    above, below = int((ys > xs).sum()), int((ys < xs).sum())
    equal = len(xs) - above - below
    chart = Chart(name, 4.2, 4.0)
    with chart as axes:
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
        axes.scatter(xs, ys, s=7, color=BLUE, alpha=0.45, linewidths=0)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_aspect("equal")
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.text(0.03, 0.95, f"above: {above:,}", color="#3d4653")
        axes.text(0.97, 0.03, f"below: {below:,}", color="#3d4653", ha="right")
    alt = f"{labels[1]} against {labels[0]}: {above} queries above the diagonal, {below} below, {equal} on it"
    return Picture(name, title, alt, chart.svg)


def roc(name: str, title: str, curves: Mapping[str, Roc]) -> Picture:
    """Return ROC curves of systems by title, whole and in the region of low false-positive rates.

    Source: S2Net, Figure 3 (T7a).
    """
    chart = Chart(name, 8.4, 3.6, n=2)
    with chart as both:
        for axes, end in zip(both, (1.0, LOW_RATE), strict=True):
            for number, (label, curve) in enumerate(curves.items()):
                colour = COLOURS[number % len(COLOURS)]
                named = f"{label} ({curve.area:.3f})"
                axes.plot(curve.false_positive_rate, curve.true_positive_rate, color=colour, label=named, linewidth=1.3)
            axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.6, linestyle=":")
            axes.set_xlim(0, end)
            axes.set_ylim(0, 1.0)
            axes.set_xlabel("false positive rate")
        both[0].set_ylabel("true positive rate")
        both[0].legend(fontsize=8, loc="lower right")
    said = "; ".join(f"{label}: area {curve.area:.3f}" for label, curve in curves.items())
    return Picture(name, title, f"ROC curves. {said}", chart.svg)
