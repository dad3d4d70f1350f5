"""Judgment lists in JSON: those of OpenSearch's Search Relevance Workbench, and ranx's.

- Workbench: ``{"judgmentRatings": [{"query": "red shoes", "ratings": [{"docId": "d1", "rating": "2.000"}]}]}``, as
  `ssi clicks export --to srw` writes it, or a search response of the index that stores it. Its queries are texts, which
  are the query ids too, so that the same file is also the query file.
- ranx: ``{"q1": {"d1": 2}}``. Its query ids need a query file.

Such a file is one value, so it is read into memory. Records are numbered, because it has no lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NoReturn, TypeVar

from reranker.errors import InputError
from reranker.formats import (
    READ_ERRORS,
    Judgement,
    Line,
    Query,
    RecordError,
    RejectLog,
    RejectSink,
    StrictSink,
    check_id,
    open_content,
    parse_grade,
    parse_json,
    read_error,
)

_Path = str | os.PathLike[str]
_Record = TypeVar("_Record")
MAX_BYTES = 256 * 2**20
"""Most bytes of a file."""
_RATINGS = "judgmentRatings"
_Row = tuple[object, object, object]
"""Query, document and grade."""


def is_json(path: _Path) -> bool:
    """Return whether a regular file is one JSON value: it begins with a bracket, and its first line is not complete."""
    if not os.path.isfile(path):
        return False
    with closing(open_content(path)) as stream:
        try:
            head = stream.readline(2**16).removeprefix(b"\xef\xbb\xbf").lstrip()
            rest = stream.read(2**10).strip()
        except READ_ERRORS:
            return False  # The reader reports the same error after the records before it.
    is_one_line = b"\t" in head or (head.rstrip().endswith(b"}") and bool(rest))
    return head.startswith((b"{", b"[")) and not is_one_line


def read_json_judgements(path: _Path, rejects: RejectSink | None) -> Iterator[tuple[Line, Judgement]]:
    """Yield the number and the judgment of each record of a JSON file. Raises `InputError` for JSON of another kind."""
    value = _value(path)
    rows = _ratings(value) if _lists(value) is not None else _ranx_rows(path, value)

    def parse(row: _Row) -> Judgement:
        query, document, grade = row
        ids = check_id(query, "query id"), check_id(document, "document id")
        return Judgement(*ids, parse_grade(str(grade)))

    return _records(rows, parse, rejects or StrictSink(path))


def read_json_queries(path: _Path, rejects: RejectSink | None) -> Iterator[Query]:
    """Yield the queries of the Workbench's judgments: each text once, which is its id too."""
    value = _value(path)
    lists = _lists(value)
    if lists is None:
        _refuse(path, "JSON without the texts of queries", "give them as tab-separated text: query id TAB text")
    texts = dict.fromkeys(each.get("query") if isinstance(each, dict) else None for each in lists)

    def parse(row: _Row) -> Query:
        text = check_id(row[0], "query")
        if not text.strip():
            raise RecordError("empty_query", f"the query {text!r} has no text")
        return Query(text, text.strip())

    return (query for _, query in _records(((text, None, None) for text in texts), parse, rejects or StrictSink(path)))


def _records(
    rows: Iterable[_Row], parse: Callable[[_Row], _Record], sink: RejectSink
) -> Iterator[tuple[Line, _Record]]:
    for number, row in enumerate(rows, 1):
        sample = json.dumps(row, ensure_ascii=False)[:800].encode("utf-8", "surrogatepass")
        try:
            record = parse(row)
        except RecordError as error:
            sink.reject(number, 0, f"record {number}: {error.message}", sample, kind=error.kind)
            continue
        if isinstance(sink, RejectLog):
            sink.accept()
        yield Line(number, 0, 0, sample), record


def _value(path: _Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises `InputError` for another value, or damaged JSON."""
    with closing(open_content(path)) as stream:
        try:
            data = stream.read(MAX_BYTES + 1)
        except READ_ERRORS as error:
            raise read_error(path, error, 0) from error
    if len(data) > MAX_BYTES:
        _refuse(path, f"JSON of more than {MAX_BYTES:,} bytes", "split it, or convert it to tab-separated text")
    try:
        return parse_json(data.removeprefix(b"\xef\xbb\xbf"))
    except RecordError as error:
        _refuse(path, f"damaged, or JSON of another kind ({error.message})", _REMEDY)


_REMEDY = (
    'give judgments as {"judgmentRatings": [...]} (Search Relevance Workbench), as {"query id": {"document id": grade}}'
    " (ranx), or as tab-separated text: query id TAB document id TAB grade"
)


def _lists(value: Mapping[str, Any]) -> list[Any] | None:
    """Return the entries of the Workbench's judgments, also within a search response; None for other JSON."""
    if isinstance(value.get(_RATINGS), list):
        return list(value[_RATINGS])
    hits = value.get("hits")
    hits = hits.get("hits") if isinstance(hits, dict) else None
    if not isinstance(hits, list):
        return None
    sources = [hit["_source"] for hit in hits if isinstance(hit, dict) and isinstance(hit.get("_source"), dict)]
    lists = [source[_RATINGS] for source in sources if isinstance(source.get(_RATINGS), list)]
    return [entry for entries in lists for entry in entries] if lists else None


def _ratings(value: Mapping[str, Any]) -> Iterator[_Row]:
    for given in _lists(value) or ():
        entry = given if isinstance(given, dict) else {}
        ratings = entry.get("ratings")
        for each in ratings if isinstance(ratings, list) else [None]:
            rated = each if isinstance(each, dict) else {}
            yield entry.get("query"), rated.get("docId"), rated.get("rating")


def _ranx_rows(path: _Path, value: Mapping[str, Any]) -> Iterator[_Row]:
    if not all(isinstance(judged, dict) for judged in value.values()):
        kind = "a rated ranking evaluator list (RRE)" if "topics" in value or "queries" in value else "JSON"
        keys = ", ".join(map(repr, list(value)[:5]))
        _refuse(path, f"{kind} with the keys {keys}, not a judgment list that is read here", _REMEDY)
    return ((query, document, grade) for query, judged in value.items() for document, grade in judged.items())


def _refuse(path: _Path, what: str, remedy: str) -> NoReturn:
    raise InputError(f"the file {os.fspath(path)!r} is {what}: {remedy}", path=os.fspath(path))
