"""Tables of the kept runs of the papers' systems, with what is known of their rows today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paper_verdicts import Table, title

from papers import registry
from papers.results import AT_START
from papers.retrieval_tasks import PRINTED_NOTES

OF_PAPER = ", paper"
"""End of the name of a column with the figures that a paper prints."""


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
