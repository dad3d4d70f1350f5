"""Documents from JSON lines (plain or gzipped) or Parquet, the rule for ids, and a compact memory of those seen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from reranker.arrays import UInt64
from reranker.errors import ConfigError
from reranker.formats.lines import RecordError, RejectSink, StrictSink, parse_json, read_records
from reranker.formats.parquet import is_parquet, read_rows
from reranker.records import MAX_ID_BYTES, Document

MAX_DOCUMENT_BYTES = 100 * 1024 * 1024
"""Longest line of a document file: what both engines accept at most as one request."""
ID_FIELDS = ("id", "_id")
_MAX_RECENT = 2**17


def check_id(value: object, what: str = "id") -> str:
    """Return an id as str: a string of 1 to 512 bytes of UTF-8, or a whole number.

    Raises
    ------
    RecordError
        For anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 1024:
        return str(value)
    if not isinstance(value, str):
        raise RecordError("id_type", f"the {what} is {type(value).__name__}: it must be a string or a whole number")
    try:
        n_bytes = len(value.encode())
    except UnicodeEncodeError:
        reason = f"the {what} {value!r} has a lone surrogate: it must be valid Unicode"
        raise RecordError("id_surrogate", reason) from None
    if n_bytes == 0:
        raise RecordError("id_empty", f"the {what} is empty: it must have 1 to {MAX_ID_BYTES} bytes")
    if n_bytes > MAX_ID_BYTES:
        reason = f"the {what} has {n_bytes} bytes of UTF-8: at most {MAX_ID_BYTES} are accepted by the search engines"
        raise RecordError("id_too_long", f"{reason}; use a hash of it")
    return value


class SeenIds:
    """Which ids have been seen, in 8 bytes each.

    Ids are kept as 64-bit BLAKE2b hashes in sorted arrays that double in size, so two different ids are taken for one
    with probability n²/2⁶⁵: 3 in a million for ten million ids.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._runs: list[UInt64] = []

    def add(self, id_: str) -> bool:
        """Remember an id; return whether it is new."""
        key = int.from_bytes(blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
        if key in self._recent:
            return False
        for run in self._runs:
            place = int(run.searchsorted(np.uint64(key)))
            if place < len(run) and run[place] == key:
                return False
        self._recent.add(key)
        if len(self._recent) >= _MAX_RECENT:
            self._flush()
        return True

    def __len__(self) -> int:
        """Return the number of different ids seen."""
        return len(self._recent) + sum(map(len, self._runs))

    def _flush(self) -> None:
        run = np.sort(np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent)))
        while self._runs and len(self._runs[-1]) <= len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)
        self._recent = set()


@dataclass(frozen=True, slots=True)
class DocumentLine(Document):
    """A document and its place in the file it was read from."""

    line: int = 0
    """1-based line, or row of a Parquet file."""
    offset: int = 0
    end_offset: int = 0
    """Bytes of the decompressed stream where the line begins and where the next one does; for Parquet the 0-based row
    and the next one."""


def read_documents(
    path: str | os.PathLike[str],
    *,
    rejects: RejectSink | None = None,
    duplicates: Literal["reject", "keep"] = "reject",
    max_line_bytes: int = MAX_DOCUMENT_BYTES,
) -> Iterator[DocumentLine]:
    """Yield the documents of a file in order, holding one at a time (one batch of rows for Parquet).

    A document is a JSON object with its id under ``id`` or ``_id`` (a string of 1 to 512 bytes or a whole number,
    taken as its decimal digits); the id is taken out of the source. Documents without any text are kept: they are in
    the index, only without words. The file's kind, JSON lines (plain or gzipped) or Parquet, is told by its content.

    Parameters
    ----------
    rejects : RejectSink or None
        Gets every line that is no legal document; None raises at the first.
    duplicates : {'reject', 'keep'}
        ``reject``: the first document of an id counts, later ones go to ``rejects`` (kind ``duplicate_id``); takes
        8 bytes a document. ``keep``: all are yielded, for a destination that keeps one of each id by itself.

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
        yield from read_rows(path, [ID_FIELDS], lambda row, value: _document(value, seen, row + 1, row, row + 1), sink)
        return
    yield from read_records(
        path, lambda line: _document(parse_json(line.data), seen, line.number, line.offset, line.end_offset),
        rejects=sink, max_line_bytes=max_line_bytes,
    )  # fmt: skip


def _document(value: dict[str, Any], seen: SeenIds | None, line: int, offset: int, end_offset: int) -> DocumentLine:
    ids = [check_id(value.pop(name)) for name in ID_FIELDS if value.get(name) is not None]
    if not ids:
        keys = ", ".join(repr(str(name)[:40]) for name in list(value)[:5]) or "none"
        raise RecordError(
            "id_missing", f"no id: a document needs the key 'id' or '_id', and this one's keys are {keys}"
        )
    if len(set(ids)) > 1:
        raise RecordError("id_ambiguous", f"'id' is {ids[0]!r} and '_id' is {ids[1]!r}: keep one of them")
    if seen is not None and not seen.add(ids[0]):
        raise RecordError("duplicate_id", f"the id {ids[0]!r} was given before: the first document counts")
    for name in ID_FIELDS:
        value.pop(name, None)
    return DocumentLine(ids[0], value, line, offset, end_offset)
