"""Documents from JSON lines (plain or gzipped) or Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from reranker.errors import ConfigError
from reranker.formats.ids import SeenIds, check_id
from reranker.formats.jsonl import parse_json
from reranker.formats.lines import read_lines
from reranker.formats.parquet import is_parquet, read_rows
from reranker.formats.rejects import RecordError, RejectSink, StrictSink
from reranker.records import Document

MAX_DOCUMENT_BYTES = 100 * 1024 * 1024
"""Longest line of a document file: what both engines accept at most as one request."""

ID_FIELDS = ("id", "_id")


@dataclass(frozen=True, slots=True)
class DocumentLine(Document):
    """A document and its place in the file it was read from.

    Parameters
    ----------
    line : int
        1-based line, or row of a Parquet file.
    offset, end_offset : int
        Bytes of the decompressed stream where the line begins and where the next one does; for Parquet the 0-based
        row and the next one. ``start_offset=end_offset, start_line=line`` reads on after this document.
    """

    line: int = 0
    offset: int = 0
    end_offset: int = 0


def read_documents(
    path: str | os.PathLike[str],
    *,
    rejects: RejectSink | None = None,
    duplicates: Literal["reject", "keep"] = "reject",
    max_line_bytes: int = MAX_DOCUMENT_BYTES,
    start_offset: int = 0,
    start_line: int = 0,
) -> Iterator[DocumentLine]:
    """Yield the documents of a file in order, holding one at a time (one batch of rows for Parquet).

    A document is a JSON object with its id under ``id`` or ``_id`` (a string of 1 to 512 bytes or a whole number,
    taken as its decimal digits); the id is taken out of the source. Documents without any text are kept: they are in
    the index, only without words. The file's kind is told by its content.

    Parameters
    ----------
    path : path-like
        JSON lines, gzipped JSON lines, or Parquet with an ``id`` or ``_id`` column.
    rejects : RejectSink or None
        Gets every line that is no legal document; None raises at the first.
    duplicates : {'reject', 'keep'}
        ``reject``: the first document of an id counts, later ones go to ``rejects`` (kind ``duplicate_id``); takes
        8 bytes a document. ``keep``: all are yielded, for a destination that keeps one of each id by itself.
        Where reading starts in the middle, only ids from there on are known.
    max_line_bytes : int
        Longest JSON line accepted.
    start_offset, start_line : int
        ``end_offset`` and ``line`` of the last document dealt with; 0 for the beginning.

    Raises
    ------
    InputError
        Where the file cannot be opened, is damaged, or is of another kind.
    """
    if duplicates not in ("reject", "keep"):
        raise ConfigError(f"duplicates is {duplicates!r}: choose one of reject, keep", value=duplicates)
    sink = rejects or StrictSink(path)
    seen = SeenIds() if duplicates == "reject" else None
    if is_parquet(path):
        for row, value in read_rows(path, [ID_FIELDS], sink, start_row=start_offset):
            try:
                yield _document(value, seen, row + 1, row, row + 1)
            except RecordError as error:
                sink.reject(row + 1, row, error.message, str(value)[:800], kind=error.kind)
        return
    lines = read_lines(
        path, rejects=sink, max_line_bytes=max_line_bytes, start_offset=start_offset, start_line=start_line
    )
    for line in lines:
        try:
            document = _document(parse_json(line.data), seen, line.number, line.offset, line.end_offset)
        except RecordError as error:
            sink.reject(line.number, line.offset, error.message, line.data[:800], kind=error.kind)
            continue
        del line  # a document of 100 MB is not held twice while it is dealt with
        yield document


def _document(value: dict[str, Any], seen: SeenIds | None, line: int, offset: int, end_offset: int) -> DocumentLine:
    found = [check_id(value.pop(name)) for name in ID_FIELDS if value.get(name) is not None]
    if not found:
        raise RecordError("id_missing", "no id: a document needs the key 'id' or '_id'")
    if len(set(found)) > 1:
        raise RecordError("id_ambiguous", f"'id' is {found[0]!r} and '_id' is {found[1]!r}: keep one of them")
    if seen is not None and not seen.add(found[0]):
        raise RecordError("duplicate_id", f"the id {found[0]!r} was given before: the first document counts")
    for name in ID_FIELDS:
        value.pop(name, None)
    return DocumentLine(found[0], value, line, offset, end_offset)
