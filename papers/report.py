"""The report of reproduced tasks: one HTML file that needs neither network nor scripts."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from papers.keeping import version
from papers.tables import LOWER
from papers.task import Request, Section, Table
from reranker.errors import MissingExtra
from reranker.files import write_file

LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn", "ir-measures", "matplotlib")
MAX_SORTED = 16
"""Columns by which a table can be sorted."""
_NUMBER = re.compile(r"[-+−]?\d[\d,]*\.?\d*|\.\d+")


@dataclass(frozen=True)
class Sorted:
    """A table with the place of each row when it is sorted by each column.

    Parameters
    ----------
    table : Table
    orders : tuple of tuples of int
        One a row: its place by each column.
    """

    table: Table
    orders: tuple[tuple[int, ...], ...]

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns that the table can be sorted by."""
        return self.table.columns[:MAX_SORTED]


def write_report(
    sections: Sequence[Section], path: Path, requests: Sequence[Request], command: str = "", finished: str = ""
) -> None:
    """Write all sections as one page, whole or not at all.

    Parameters
    ----------
    sections : sequence of Section
    path : Path
    requests : sequence of Request
        What was asked for; they differ in their corpora only.
    command : str
        The command line, to be shown.
    finished : str
        When, to be shown; nothing is read from the clock here.

    Raises
    ------
    MissingExtra
        Where jinja2 is not installed.
    """
    write_file(path, render(sections, requests, command, finished).encode("utf-8"))


def render(sections: Sequence[Section], requests: Sequence[Request], command: str = "", finished: str = "") -> str:
    """Return the page."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtra("jinja2", "papers") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("papers"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["numeric"] = lambda text: bool(text) and not text[0].isalpha() and bool(_NUMBER.match(text))
    shown = [
        (section, [sortable(table) for table in section.tables],
         [(picture, Markup(picture.svg.decode("utf-8"))) for picture in section.pictures])  # noqa: S704 - ours
        for section in sections
    ]  # fmt: skip
    page: str = environment.get_template("systems.html.j2").render(
        sections=shown, facts=facts(requests), command=command, finished=finished, small=requests[0].small
    )
    return page


def facts(requests: Sequence[Request]) -> Mapping[str, str]:
    """Return what was run, as the report's head shows it; there must be a request."""
    request = requests[0]
    own = "small" if request.small else "each task's own"
    budget = f"{own}, with {_listed(request.budget)}" if request.budget else own
    found = {name: _version(name) for name in LIBRARIES}
    return {
        "corpus": ", ".join(dict.fromkeys(one.corpus.name or str(one.corpus) for one in requests)),
        "seed": str(request.seed),
        "budget": budget,
        "program": f"ssi-reranker {version()}, Python {platform.python_version()}",
        "libraries": ", ".join(f"{name} {number}" for name, number in found.items() if number),
    }


def sortable(table: Table) -> Sorted:
    """Return a table with its orders: measures and names best first, times and p-values smallest first."""
    columns = []
    for place, name in enumerate(table.columns[:MAX_SORTED]):
        keys = [_key(row[place] if place < len(row) else "", _ascends(name)) for row in table.rows]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        places = [0] * len(keys)
        for new, row in enumerate(order):
            places[row] = new
        columns.append(places)
    return Sorted(table, tuple(zip(*columns, strict=True)) if columns and table.rows else ())


def _ascends(column: str) -> bool:
    """Return whether small numbers of a column come first."""
    return column in ("p", "seconds") or column.split(",", maxsplit=1)[0].startswith(LOWER)


def _key(text: str, ascends: bool) -> tuple[int, float, str]:
    """Return what a cell is sorted by: numbers, then words, then nothing."""
    if not text:
        return 2, 0.0, ""
    match = _NUMBER.search(text) if not text[0].isalpha() else None
    if match is None:
        return 1, 0.0, text.lower()
    number = float(match.group().replace(",", "").replace("−", "-"))
    return 0, number if ascends else -number, text


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
