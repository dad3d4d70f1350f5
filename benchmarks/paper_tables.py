"""Tables of the kept runs of the papers' systems, with what is known of their rows today."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from paper_verdicts import Table, title

from papers import registry
from papers.registry import KEPT_ITERATION, KEPT_STEP
from papers.results import AT_START
from papers.retrieval_tasks import PRINTED_NOTES

OF_PAPER = ", paper"
"""End of the name of a column with the figures that a paper prints."""

CHOSEN = "Chosen on validation"
STARTS = {"opca": "OPCA", "pca": "PCA", "cl-lsi": "CL-LSI", "cca": "CCA"}
"""Titles of the projections that models start from, by their name in the settings."""
_AT_START = re.compile(rf"\b(?:{KEPT_STEP}|{KEPT_ITERATION}) 0\b")
_START, _DIMENSIONS = re.compile(r"\bstart ([a-z-]+)"), re.compile(r"\bdimensions (\d+)")


def untrained(run: Mapping[str, Any]) -> dict[str, str]:
    """Return a note on each system of a run that is its untrained start, by its title, as the settings of the run say.

    The note names the start and its number of dimensions if the settings have them.
    """
    notes = {}
    for shown in (shown for section in run["sections"] for shown in section["tables"] if shown["title"] == CHOSEN):
        for name, settings in shown["rows"]:
            if _AT_START.search(settings):
                start, n_dims = _START.search(settings), _DIMENSIONS.search(settings)
                named = STARTS.get(start[1], "") if start else ""
                which = f": {named} at {n_dims[1]} dimensions" if named and n_dims else ""
                notes[name] = f"{AT_START}{which}"
    return notes


def marked(kept: Table, notes: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a table whose untrained systems have their notes.

    Tables over seeds stay, since the notes are of one seed; the table of settings has the same in its cells.
    """
    if "over seeds" in kept["title"] or kept["title"] == CHOSEN or not notes:
        return kept
    width = 2 if kept["columns"][:2] == ["first", "second"] else 1
    rows = [
        [f"{text} ({notes[text]})" if at < width and text in notes else text for at, text in enumerate(row)]
        for row in kept["rows"]
    ]
    return {**kept, "rows": rows}


def equal_columns(run: Mapping[str, Any], name: str, other: str) -> list[str]:
    """Return the names of the columns in which two systems have the same figures in all tables of a run."""
    found: list[set[str]] = []
    for shown in (shown for section in run["sections"] for shown in section["tables"]):
        rows = {row[0]: row for row in shown["rows"]}
        if name in rows and other in rows:
            columns = enumerate(shown["columns"])
            found.append({column for at, column in columns if at and rows[name][at] == rows[other][at]})
    columns = run["sections"][0]["tables"][0]["columns"]
    return [column for column in columns if found and column in set.intersection(*found)]


def notes_of(task: str, run: Mapping[str, Any]) -> dict[str, str]:
    """Return the notes on the rows of a run, by title: systems that are their untrained start, in all of their rows."""
    notes = untrained(run)
    if task == "T12-T7":
        model, start = title(task, "graded-s2net"), title(task, "graded-pca")
        if columns := equal_columns(run, model, start):
            notes[model] = f"equal to {start}, its untrained start, at {' and '.join(columns)} dimensions"
    return notes


def as_known(task: str, kept: Table) -> Mapping[str, Any]:
    """Return a kept table with the papers' figures from the registry, which may have been corrected since the run."""
    paper = registry.task(task).paper
    columns: Sequence[str] = kept["columns"]
    measures = {at: name.removesuffix(OF_PAPER) for at, name in enumerate(columns) if name.endswith(OF_PAPER)}
    if not paper or not measures:
        return kept
    by_title = {title(task, name): figures for name, figures in paper.items()}
    rows = []
    for row in kept["rows"]:
        figures = by_title.get(row[0].removesuffix(f" ({AT_START})"), {})
        rows.append([figures.get(measures[at], "") if at in measures else text for at, text in enumerate(row)])
    note = PRINTED_NOTES.get(task, "")
    return {**kept, "rows": rows, "note": kept["note"] if note in kept["note"] else f"{kept['note']} {note}"}
