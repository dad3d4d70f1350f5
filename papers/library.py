"""Data sets of ir_datasets: documents, queries and judgements by name (``ir_datasets:NAME``)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from reranker.errors import InputError, MissingExtra

LIBRARY = "ir_datasets:"
MAX_DOCUMENTS = 2_000_000
"""Of a data set: studies hold all texts in memory."""
PARTS = ("docs", "queries", "qrels")


@dataclass(frozen=True)
class LibrarySet:
    """A data set in memory.

    Parameters
    ----------
    name : str
        With ``-`` in the place of ``/``, as folders may be called.
    documents : mapping of id to (title, text)
    queries : mapping of id to text
    grades : mapping of query id to mapping of document id to grade
        Judgements as they are; grades below 0 (junk, spam) count as 0.
    """

    name: str
    documents: Mapping[str, tuple[str, str]]
    queries: Mapping[str, str]
    grades: Mapping[str, Mapping[str, float]]


def library_name(corpus: Path) -> str | None:
    """Return the name after ``ir_datasets:``, or None of a folder."""
    text = str(corpus)
    return text.removeprefix(LIBRARY) if text.startswith(LIBRARY) else None


def read_library(name: str) -> LibrarySet:
    """Return a data set of ir_datasets, which fetches it the first time.

    Raises
    ------
    MissingExtra
        Without that library.
    InputError
        For a name that it does not know, a data set without documents, queries or judgements, one with more than
        `MAX_DOCUMENTS`, and one that cannot be fetched.
    """
    try:
        ir_datasets = import_module("ir_datasets")
    except ImportError as error:
        raise MissingExtra("ir_datasets", "ir-datasets") from error
    data = _data_set(ir_datasets, name)
    try:
        documents = {str(one.doc_id): _title_and_text(one) for one in islice(data.docs_iter(), MAX_DOCUMENTS + 1)}
        if len(documents) > MAX_DOCUMENTS:
            raise InputError(
                f"{LIBRARY}{name} has more than {MAX_DOCUMENTS:,} documents, and studies hold all texts in memory: "
                f"name a smaller data set, or write a part of it to a folder",
                value=name,
            )
        queries = {str(one.query_id): str(one.default_text()) for one in data.queries_iter()}
        grades: dict[str, dict[str, float]] = {}
        for one in data.qrels_iter():
            grades.setdefault(str(one.query_id), {})[str(one.doc_id)] = max(float(one.relevance), 0.0)
    except (OSError, RuntimeError) as error:  # the library gives up fetching with a RuntimeError of all attempts
        raise InputError(
            f"{LIBRARY}{name} could not be fetched or read ({_first_line(error)}): check the network, and what "
            f"ir_datasets says of licences and manual downloads of this data set",
            value=name,
        ) from error
    return LibrarySet(name.replace("/", "-"), documents, queries, grades)


def _data_set(ir_datasets: Any, name: str) -> Any:
    """Return the library's handle of a data set that has all parts."""
    try:
        data = ir_datasets.load(name)
    except KeyError:
        known = sorted(str(one) for one in ir_datasets.registry)
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "its site, ir-datasets.com, lists the names"
        raise InputError(f"ir_datasets knows no data set {name!r}: {hint}", value=name) from None
    lacking = [part for part in PARTS if not getattr(data, f"has_{part}")()]
    if lacking:
        more = sorted(one for one in map(str, ir_datasets.registry) if one.startswith(f"{name}/"))
        hint = f"its parts are {', '.join(more[:8])}" if more else "name one that has them"
        raise InputError(f"{LIBRARY}{name} has no {' and no '.join(lacking)}: {hint}", value=name)
    return data


def _title_and_text(document: Any) -> tuple[str, str]:
    """Return title and text; where the text has no field of its own, all text without the title."""
    title = str(getattr(document, "title", "") or "")
    text = getattr(document, "text", None)
    if text is None:
        text = str(document.default_text())
        text = text.removeprefix(title).lstrip() if title else text
    return title, str(text)


def _first_line(error: Exception) -> str:
    """Return what an error says, without its attempts."""
    return f"{type(error).__name__}: {str(error.args[0] if error.args else error).splitlines()[0][:200]}"
