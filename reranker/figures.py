"""Plots drawn by matplotlib. The files contain no dates and no random ids, so that equal data gives equal bytes."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reranker.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = {
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
"""matplotlib settings of plots in reports: light lines, a grid, and text elements instead of glyph outlines."""
BLUE, RED, GREY, LIGHT = "#2a5d9f", "#b3452c", "#667080", "#c9d2de"
ON_PAGES = {
    BLUE: "--link",
    RED: "--down",
    GREY: "--soft",
    LIGHT: "--bar",
    "#9aa4b2": "--soft",
    "#3d4653": "--text",
    "#e8ecf1": "--grid",
    "#1d2530": "--text",
    "#000000": "--text",
}
"""Colour of a plot → variable of ``style.css`` that replaces it within a page, so that it follows the dark theme."""
_WIDTH, _HEIGHT = 5.4, 2.7


def picture_kind(path: Path, kinds: Sequence[str]) -> str:
    """Return the suffix of a plot's file name, such as ``.png``. Raises `ConfigError` if it is not in ``kinds``."""
    kind = path.suffix.lower()
    if kind not in kinds:
        raise ConfigError(f"the format of the plot {str(path)!r} is not supported: name a file {', '.join(kinds)}")
    return kind


@contextmanager
def new_figure(
    width: float, height: float, *, style: Mapping[str, Any] | None = None, salt: str = "ssi"
) -> Iterator[Figure]:
    """Yield an empty figure. Draw it and save it before the block ends.

    Parameters
    ----------
    width, height : float
        Size in inches of 72 points.
    style : mapping, optional
        matplotlib settings within the block.
    salt : str
        Salt of the ids in an SVG.

    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**(style or {}), "svg.hashsalt": salt}):
        yield Figure(figsize=(width, height), layout="constrained")


def picture_bytes(figure: Figure, kind: str, **options: Any) -> bytes:
    """Return a figure as a file of ``kind`` (``png`` or ``svg``), without a date. ``options`` go to ``savefig``."""
    target = io.BytesIO()
    figure.savefig(target, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None}, **options)
    return target.getvalue()


def page_style() -> str:
    """Return the style sheet of all pages and reports."""
    return resources.files("reranker").joinpath("style.css").read_text(encoding="utf-8")


def report_head(title: str) -> str:
    """Return the start of a report's HTML, up to its body. The page needs neither network nor scripts."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{html.escape(title)}</title>
<style>
{page_style()}</style>
</head>
"""


_TABLE = re.compile(r"<table>(.*?)</table>", re.DOTALL)
_ROW = re.compile(r"(<tr\b[^>]*)(>.*?</tr>)", re.DOTALL)
_CELL = re.compile(r"<t[hd]\b")
LEAST_STACKED = 3
"""Columns from which a table is stacked in a narrow window."""


def stacked_tables(page: str) -> str:
    """Return a report whose tables can be stacked: each cell under the name of its column, where columns do not fit.

    ``style.css`` does that. It needs the class ``stack`` of the table, the class ``heads`` of its first row, and the
    name of the column in ``data-label`` of each cell. Tables with fewer columns than `LEAST_STACKED`, and those whose
    first row is not all headers, are not changed. The text of cells must be escaped.
    """

    def stacked(found: re.Match[str]) -> str:
        rows = _ROW.findall(found[1])
        heads = re.findall(r"<th\b[^>]*>(.*?)</th>", rows[0][1], re.DOTALL) if rows else []
        if len(heads) < LEAST_STACKED or "<td" in rows[0][1]:
            return found[0]
        names = [re.sub(r"<[^>]*>", "", head).strip() for head in heads]

        def labelled(row: re.Match[str]) -> str:
            labels = iter(names)
            return row[1] + _CELL.sub(lambda cell: f'{cell[0]} data-label="{next(labels, "")}"', row[2])

        head_end = found[1].index("</tr>") + len("</tr>")
        first, others = found[1][:head_end], found[1][head_end:]
        first = first.replace("<tr", '<tr class="heads"', 1)
        return f'<table class="stack">{first}{_ROW.sub(labelled, others)}</table>'

    return _TABLE.sub(stacked, page)


def inline_svg(figure: Figure, name: str) -> str:
    """Return a figure as an SVG element for HTML. It fills its container; ids start with ``name``; see `ON_PAGES`."""
    text = picture_bytes(figure, "svg", transparent=True).decode("utf-8")
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    head, end, rest = text.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", head + end + rest).strip()
    return re.sub("|".join(ON_PAGES), lambda colour: f"var({ON_PAGES[colour[0]]})", text)


def chart(
    name: str, height: Callable[..., float] = lambda *_: _HEIGHT
) -> Callable[[Callable[..., None]], Callable[..., str]]:
    """Decorate a function that draws on axes. The decorated function takes its other arguments and returns an SVG.

    ``name`` is the name of the plot, which must be unique on a page. ``height`` computes the height in inches from the
    other arguments.
    """

    def decorated(draw: Callable[..., None]) -> Callable[..., str]:
        @wraps(draw)
        def picture(*values: Any) -> str:
            with new_figure(_WIDTH, height(*values), style=STYLE, salt=name) as figure:
                draw(figure.subplots(), *values)
                return inline_svg(figure, name)

        return picture

    return decorated


def whole_numbers(axes: Any) -> None:
    """Put ticks of the lower axis only at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
