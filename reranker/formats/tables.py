"""Links, queries, judgements and pairs from tab-separated files (UTF-8, plain or gzipped); pairs also from Parquet.

All readers raise `InputError` where the file cannot be read, or at the first bad line if ``rejects`` is None.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from reranker.formats.documents import SeenIds, check_id
from reranker.formats.lines import RecordError, RejectSink, StrictSink, decoded, read_records
from reranker.formats.parquet import is_parquet, read_rows
from reranker.records import Pair

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
