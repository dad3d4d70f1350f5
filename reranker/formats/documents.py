"""Documents from JSON lines or Parquet; links, queries, judgements and pairs from tab-separated files (or Parquet).

Text files are UTF-8, plain or gzipped. All readers raise `InputError` where the file cannot be read, or at the first
bad line if ``rejects`` is None. Here are also the rule for ids, and a compact memory of those seen.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from reranker.arrays import UInt64
from reranker.errors import ConfigError
from reranker.formats.lines import RecordError, RejectSink, StrictSink, decoded, parse_json, read_records
from reranker.formats.parquet import is_parquet, read_rows
from reranker.records import MAX_ID_BYTES, Document, Pair

MAX_DOCUMENT_BYTES = 100 * 1024 * 1024
"""Longest line of a document file: what both engines accept at most as one request."""
ID_FIELDS = ("id", "_id")
_MAX_RECENT = 2**17


def check_id(value: object, what: str = "id") -> str:
    """Return an id as str: a string of 1 to 512 bytes of UTF-8, or a whole number.

    `RecordError` for anything else.
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

    `InputError` where the file cannot be opened, is damaged, or is of another kind.

    Parameters
    ----------
    rejects : RejectSink or None
        Gets every line that is no legal document; None raises at the first.
    duplicates : {'reject', 'keep'}
        ``reject``: the first document of an id counts, later ones go to ``rejects`` (kind ``duplicate_id``); takes
        8 bytes a document. ``keep``: all are yielded, for a destination that keeps one of each id by itself.
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


_Record = TypeVar("_Record")
_Path = str | os.PathLike[str]
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_PAIR_COLUMNS = ("query", "better", "worse", "weight")


class Link(NamedTuple):
    """Document ``source`` refers to document ``target``."""

    source: str
    target: str


class Query(NamedTuple):
    """A query's id and its text, which is not empty."""

    id: str
    text: str


class Judgement(NamedTuple):
    """How well a document serves a query: ``grade`` is finite, and bigger is better."""

    query_id: str
    document_id: str
    grade: float


def read_links(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[Link]:
    """Yield the links of a file without header: source id TAB target id.

    Links of a document to itself and repeated links are yielded as they stand.
    """
    return _records(path, _link, rejects)


def read_queries(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[Query]:
    """Yield the queries of a file without header: query id TAB text; the first of two equal ids counts."""
    seen = SeenIds()

    def parse(text: str) -> Query:
        columns = _columns(text.split("\t", 1), (2,))
        query = Query(check_id(columns[0], "query id"), columns[1].strip())
        if not query.text:
            raise RecordError("empty_query", f"the query {query.id!r} has no text")
        if not seen.add(query.id):
            raise RecordError("duplicate_id", f"the query id {query.id!r} was given before: the first query counts")
        return query

    return _records(path, parse, rejects)


def read_qrels(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[Judgement]:
    """Yield the judgements of a file: query TAB document TAB grade, or TREC's four columns (query, 0, document, grade).

    TREC columns may be separated by blanks instead of tabs; the second one is not used. Grades are decimal numbers,
    negative ones included.
    """
    return _records(path, _judgement, rejects)


def read_ids(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[str]:
    """Yield the ids of a file that has one a line."""
    return _records(path, check_id, rejects)


def read_pairs(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[Pair]:
    """Yield the preferences of a tab-separated or Parquet file: query text, better id, worse id and weight.

    A tab-separated file may begin with a header that names the columns in any order; without one they stand in this
    order. The weight may be left out (1) and must else be a finite number above 0; better and worse must differ.
    Parquet needs the columns by name.
    """
    if is_parquet(path):
        return read_rows(path, [(name,) for name in _PAIR_COLUMNS[:3]], _pair_of_row, rejects or StrictSink(path))
    order = list(_PAIR_COLUMNS)

    def parse(text: str) -> Pair | None:
        columns = _columns(text.split("\t"), (3, 4))
        if set(columns) in (set(_PAIR_COLUMNS), set(_PAIR_COLUMNS[:3])):
            order[:] = columns
            return None
        values = dict(zip(order, columns, strict=False))
        missing = next((name for name in _PAIR_COLUMNS[:3] if name not in values), None)
        if missing is not None or len(columns) > len(order):
            raise RecordError("columns", f"{len(columns)} columns under the header {', '.join(order)}")
        return _pair(values["query"], values["better"], values["worse"], _number(values.get("weight", "1"), "weight"))

    return (pair for pair in _records(path, parse, rejects) if pair is not None)


def _records(path: _Path, parse: Callable[[str], _Record], rejects: RejectSink | None) -> Iterator[_Record]:
    return read_records(path, lambda line: parse(decoded(line.data)), rejects=rejects)


def _columns(columns: Sequence[str], legal: Sequence[int]) -> Sequence[str]:
    if len(columns) not in legal:
        wanted = " or ".join(map(str, legal))
        raise RecordError("columns", f"{len(columns)} columns: there must be {wanted}, separated by tabs")
    return columns


def _link(text: str) -> Link:
    source, target = _columns(text.split("\t"), (2,))
    return Link(check_id(source, "source id"), check_id(target, "target id"))


def _judgement(text: str) -> Judgement:
    columns = text.split("\t") if "\t" in text else text.split()
    columns = list(_columns(columns, (3, 4)))
    grade = _number(columns[-1], "grade")
    return Judgement(check_id(columns[0], "query id"), check_id(columns[-2], "document id"), grade)


def _number(text: str, what: str) -> float:
    # `float` alone would take "nan", "1_000" and digits of other scripts.
    value = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
    if not math.isfinite(value):
        raise RecordError("number", f"the {what} is {text[:40]!r}: it must be a finite decimal number")
    return value


def _pair(query: object, better: object, worse: object, weight: object) -> Pair:
    if not isinstance(query, str) or not query.strip():
        raise RecordError("empty_query", f"the query is {query!r}: it must be a text")
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not math.isfinite(weight) or weight <= 0:
        raise RecordError("weight", f"the weight is {weight!r}: it must be a finite number above 0")
    better, worse = check_id(better, "better id"), check_id(worse, "worse id")
    if better == worse:
        raise RecordError("same_document", f"better and worse are both {better!r}: a pair needs two documents")
    return Pair(query, better, worse, float(weight))


def _pair_of_row(row: int, value: Mapping[str, Any]) -> Pair:
    weight = value.get("weight")
    return _pair(value["query"], value["better"], value["worse"], 1.0 if weight is None else weight)
