"""Tables in text files: links, queries, judgments and pairs, with or without a header.

The columns are separated by tabs, or by commas (CSV, where cells can be quoted and can contain line breaks). Judgments
can also be separated by blanks, as TREC's. If the first line names the columns, they are read by their names, in any
order, and other columns are ignored. A header without a column that is needed is refused. Lines that begin with ``#``
are comments: they are skipped and counted.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Literal, TypeVar

from reranker.errors import InputError
from reranker.formats import (
    COMMENT,
    JUDGED_AGAIN,
    NUMBER,
    Judgement,
    Line,
    Link,
    Query,
    RecordError,
    RejectLog,
    RejectSink,
    SeenIds,
    StrictSink,
    check_id,
    decoded,
    is_parquet,
    parse_grade,
    parse_number,
    read_lines,
    read_rows,
)
from reranker.judgment_lists import is_json, read_json_judgements, read_json_queries
from reranker.records import Pair

_Path = str | os.PathLike[str]
_Record = TypeVar("_Record")
_Records = TypeVar("_Records", bound=Sized)
MAX_WEIGHT = 1e12
"""Largest weight of a pair; the least one is its reciprocal. Sums of weights stay exact enough and never overflow."""
_PAIR_COLUMNS = ("query", "better", "worse", "weight")
_Separator = Literal["tabs", "commas", "blanks"]
_N_CHECKED = 10  # first lines that are examined
_MAX_QUOTED_LINES = 100  # lines of one record of a CSV file
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]")
_ITERATIONS = ("0", "Q0")  # what TREC's second column can be


@dataclass(frozen=True)
class TableFormat:
    """The columns of one kind of table."""

    kind: str
    """Name of the records, in the plural."""
    names: Mapping[str, Sequence[str]]
    """Column -> its possible names, the best one first, in lower case without signs (``docid`` for ``doc-id``)."""
    orders: Sequence[Sequence[str]]
    """Orders of the columns without a header, each with another number of columns; "" is a column that is ignored."""
    optional: frozenset[str] = frozenset()
    """Columns that can be missing."""
    number: str = ""
    """Column that is always a number, so that a first line without one is a header."""
    trec: bool = False
    """Whether blanks can separate the columns."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that cannot be missing."""
        return tuple(name for name in self.names if name not in self.optional)

    def order_of(self, n_columns: int) -> Sequence[str] | None:
        """Return the order of the columns of a line without a header; None for another number of columns."""
        return next((order for order in self.orders if len(order) == n_columns), None)


_QUERY_ID = ("queryid", "qid", "topicid", "topic", "querynumber")
_DOCUMENT_ID = ("documentid", "docid", "corpusid", "productid", "itemid", "docno", "document", "doc", "product", "item")
LINKS = TableFormat(
    "links",
    {
        "source": ("source", "sourceid", "src", "from", "fromid"),
        "target": ("target", "targetid", "dst", "to", "toid"),
    },
    [("source", "target")],
)
QUERIES = TableFormat(
    "queries",
    {"query id": (*_QUERY_ID, "id"), "text": ("text", "querytext", "query", "querystring", "title")},
    [("query id", "text")],
)
JUDGMENTS = TableFormat(
    "judgments",
    {
        "query id": (*_QUERY_ID, "query"),
        "document id": _DOCUMENT_ID,
        "grade": ("grade", "relevance", "rating", "label", "score", "judgment", "judgement", "rel", "relevancy"),
    },
    [("query id", "document id", "grade"), ("query id", "", "document id", "grade")],
    number="grade",
    trec=True,
)
PAIRS = TableFormat(
    "pairs",
    {
        "query": ("query", "querytext", "text"),
        "better": ("better", "betterid", "positive", "preferred"),
        "worse": ("worse", "worseid", "negative"),
        "weight": ("weight",),
    },
    [("query", "better", "worse"), ("query", "better", "worse", "weight")],
    optional=frozenset({"weight"}),
)
_NAMES = {name for table in (LINKS, QUERIES, JUDGMENTS, PAIRS) for names in table.names.values() for name in names}
_SURE_NAMES = frozenset(name for name in _NAMES if name.endswith("id") and name != "id")
"""Names that occur only in a header: no query and no document is called ``query_id``."""


@dataclass
class _Layout:
    """How the lines of one file are split into columns."""

    path: _Path
    table: TableFormat
    separator: _Separator = "tabs"
    header: Sequence[str] = field(default_factory=tuple)
    """The column of each cell, "" for one that is ignored; empty without a header."""

    def cells(self, text: str) -> list[str]:
        """Return the cells of a line."""
        if self.separator == "commas":
            return _csv_cells(text)
        if self.separator == "blanks" or (self.table.trec and "\t" not in text):
            return text.split()
        return text.split("\t")

    def is_comment(self, text: str) -> bool:
        """Return whether a line is a comment: ``# text``, or ``#`` with another number of columns than a record."""
        if not text.startswith("#"):
            return False
        n_columns = len(self.cells(text))
        fits = n_columns == len(self.header) if self.header else self.table.order_of(n_columns) is not None
        return text[1:2] in ("", " ", "#") or not fits

    def values(self, text: str) -> dict[str, str]:
        """Return column -> cell of a record. Raises `RecordError` for another number of columns."""
        cells = self.cells(text)
        if not cells:
            raise RecordError(
                "quotes", "a quoted cell is not closed, or text follows its closing quote: quote it again"
            )
        order = self.header or self.table.order_of(len(cells))
        if order is None or len(cells) != len(order):
            raise RecordError("columns", f"{len(cells)} columns: {self._rule()}")
        if not self.header and "" in order and cells[order.index("")].upper() not in _ITERATIONS:
            second = cells[order.index("")]
            raise RecordError(
                "columns",
                f"the second of four columns is {second[:40]!r}: in TREC's judgments it is 0 or Q0. Give three columns "
                f"({', '.join(self.table.needed)}), or name the columns in a header",
            )
        return {name: cell for name, cell in zip(order, cells, strict=True) if name}

    def _rule(self) -> str:
        if self.header:
            return f"the header has {len(self.header)}, separated by {self.separator}"
        wanted = " or ".join(str(len(order)) for order in self.table.orders)
        separators = "tabs" if self.separator == "blanks" else self.separator
        names = ", ".join(self.table.needed)
        return f"there must be {wanted}, separated by {separators} ({names}); with more columns, name them in a header"


def read_table(
    path: _Path, table: TableFormat, parse: Callable[[Mapping[str, str]], _Record], rejects: RejectSink | None
) -> Iterator[tuple[Line, _Record]]:
    """Yield the line and the result of ``parse`` for each record of a table. ``parse`` receives column -> cell.

    A line is rejected if ``parse`` raises `RecordError`. Raises `InputError` if the header cannot be mapped to the
    columns, or if the file is of another format.
    """
    sink = rejects or StrictSink(path)
    lines = read_lines(path, rejects=sink)
    head, error = _head(lines)
    layout = _layout(path, table, [_text(line) for line in head])

    def all_lines() -> Iterator[Line]:
        yield from head
        if error is not None:
            raise error
        yield from lines

    has_header = bool(layout.header)
    records = _quoted(all_lines()) if layout.separator == "commas" else all_lines()
    for line in records:
        try:
            text = decoded(line.data)
            if layout.is_comment(text):
                skip_comment(sink, line)
                continue
            if has_header:
                has_header = False
                continue
            record = parse(layout.values(text))
        except RecordError as fault:
            sink.reject(line.number, line.offset, fault.message, line.data[:800], kind=fault.kind)
            continue
        if isinstance(sink, RejectLog):
            sink.accept()
        yield line, record


def skip_comment(sink: RejectSink, line: Line) -> None:
    """Count a comment line. It is no fault, so a `StrictSink` does not receive it."""
    if not isinstance(sink, StrictSink):
        sink.reject(line.number, line.offset, "a comment", line.data[:800], kind=COMMENT)


def _head(lines: Iterable[Line]) -> tuple[list[Line], InputError | None]:
    """Return the first lines, up to `_N_CHECKED` that are no comments, and the error that ended them early."""
    head: list[Line] = []
    n_records = 0
    try:
        for line in islice(lines, 1_000):
            head.append(line)
            n_records += not line.data.startswith(b"#")
            if n_records == _N_CHECKED:
                break
    except InputError as error:
        return head, error  # It is raised again after the records before it.
    return head, None


def _text(line: Line) -> str:
    return line.data.decode("utf-8", "replace")


def _layout(path: _Path, table: TableFormat, texts: Sequence[str]) -> _Layout:
    """Return the layout of a file with these first lines. Raises `InputError` for a file of another format."""
    records = [text for text in texts if not text.startswith("#")] or list(texts)
    layout = _Layout(path, table)
    if not records:
        return layout
    _refuse_other_formats(path, table, records)
    layout.separator = _separator(path, table, records)
    layout.header = _header(path, table, [layout.cells(text) for text in records])
    return layout


def _separator(path: _Path, table: TableFormat, texts: Sequence[str]) -> _Separator:
    if table.trec and all(map(_is_trec, texts)):
        return "blanks"
    if any("\t" in text for text in texts):
        return "tabs"
    has_blanks = table.trec and any(table.order_of(len(text.split())) and _ends_with_number(text) for text in texts)
    cells = [_csv_cells(text) for text in texts]
    if _mapped(table, cells[0]) or _is_unknown_header(table, cells):
        return "commas"
    if table.trec and not has_blanks and all(table.order_of(len(row)) for row in cells):
        return "commas"
    if not has_blanks and all("," in text for text in texts):
        name = os.fspath(path)
        raise InputError(
            f"no tabs found in {name!r}, but commas, and no header: columns must be separated by tabs, or the first "
            f"line must name them ({', '.join(table.needed)}). Add a header, or convert the file to tab-separated text",
            path=name,
        )
    return "tabs"


def _is_trec(text: str) -> bool:
    cells = text.split()
    return len(cells) == 4 and cells[1].upper() in _ITERATIONS and _ends_with_number(text)


def _ends_with_number(text: str) -> bool:
    return NUMBER.fullmatch(text.rsplit(maxsplit=1)[-1]) is not None


def _normal(name: str) -> str:
    return _NOT_IN_NAMES.sub("", name.lower())


def _known(table: TableFormat, cells: Sequence[str]) -> list[str]:
    """Return the columns of the table that these cells name."""
    names = {_normal(cell) for cell in cells}
    return [column for column, wanted in table.names.items() if names.intersection(wanted)]


def _mapped(table: TableFormat, cells: Sequence[str]) -> dict[str, str]:
    """Return column -> its name in a header; empty if a needed column is missing."""
    names = {_normal(cell) for cell in cells}
    found = {column: next(name for name in table.names[column] if name in names) for column in _known(table, cells)}
    return found if all(column in found for column in table.needed) else {}


def _header(path: _Path, table: TableFormat, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the column of each cell of the first line, "" for other cells; empty if that line is no header."""
    first = rows[0]
    names = [_normal(cell) for cell in first]
    found = _mapped(table, first)
    if found and len(set(found.values())) == len(found):
        twice = next((name for name in found.values() if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(
                f"the header of {os.fspath(path)!r} has two columns {first[names.index(twice)]!r} "
                f"({', '.join(first)[:500]}): rename or remove one",
                path=os.fspath(path),
            )
        column_of = {name: column for column, name in found.items()}
        return [column_of.get(name, "") for name in names]
    if _is_unknown_header(table, rows):
        missing = [column for column in table.needed if column not in _known(table, first)] or list(table.needed)
        wanted = "; ".join(f"{column}: {', '.join(table.names[column][:6])}" for column in missing)
        raise InputError(
            f"the first line of {os.fspath(path)!r} names columns ({', '.join(map(repr, first))[:500]}), but none for "
            f"{' and '.join(missing)}: rename them (possible names of {wanted}), or remove the header",
            path=os.fspath(path),
        )
    return []


def _is_unknown_header(table: TableFormat, rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first line names columns, but not all that are needed."""
    first = rows[0]
    if len(first) > 1 and any(_normal(cell) in _SURE_NAMES for cell in first):
        return True
    if len(_known(table, first)) > 1 and len(table.needed) > 2:
        return True
    ends = [bool(row) and NUMBER.fullmatch(row[-1].strip()) is not None for row in rows]
    has_names = len(first) > 2 and not any(map(str.isdigit, "".join(first)))
    return bool(table.number) and has_names and len(rows) > 1 and all(ends[1:])


def _csv_cells(text: str) -> list[str]:
    """Return the cells of one record of comma-separated values; none if it is malformed."""
    try:
        return [
            cell.strip()
            for cell in next(csv.reader(text.splitlines(keepends=True), skipinitialspace=True, strict=True), [])
        ]
    except csv.Error:
        return []


_QUOTED_CELL = re.compile(r'(?:^|(?<=,))\s*"(?:[^"]|"")*"')
_OPEN_QUOTE = re.compile(r'(?:^|,)\s*"')


def _is_open(data: bytes) -> bool:
    """Return whether a quoted cell is not closed at the end of the data."""
    return b'"' in data and _OPEN_QUOTE.search(_QUOTED_CELL.sub("", data.decode("utf-8", "replace"))) is not None


def _quoted(lines: Iterator[Line]) -> Iterator[Line]:
    """Join the lines of a record whose quoted cell contains line breaks. An unclosed quote is not joined."""
    while (line := next(lines, None)) is not None:
        joined, read = line, list[Line]()
        while _is_open(joined.data) and len(read) < _MAX_QUOTED_LINES and (more := next(lines, None)) is not None:
            read.append(more)
            joined = Line(line.number, line.offset, more.end_offset, joined.data + b"\n" + more.data)
        if read and not _csv_cells(_text(joined)):
            lines = chain(read, lines)
            joined = line
        yield joined


def _refuse_other_formats(path: _Path, table: TableFormat, texts: Sequence[str]) -> None:
    """Raise `InputError`, with a remedy, for the first lines of a run, a learning-to-rank list, or JSON."""
    found = next((remedy for matches, remedy in _OTHER_FORMATS if all(map(matches, texts))), None)
    if found is not None:
        name = os.fspath(path)
        raise InputError(f"the file {name!r} is {found[0]}, not {table.kind}: {found[1]}", path=name)


def _is_run(text: str) -> bool:
    cells = text.split()
    return len(cells) == 6 and cells[1].upper() in _ITERATIONS and all(map(NUMBER.fullmatch, cells[3:5]))


def _is_letor(text: str) -> bool:
    cells = text.split(maxsplit=2)
    return len(cells) > 1 and NUMBER.fullmatch(cells[0]) is not None and cells[1].startswith("qid:")


def _is_json_line(text: str) -> bool:
    return text.startswith('{"') and text.rstrip().endswith("}")


_OTHER_FORMATS: Sequence[tuple[Callable[[str], bool], tuple[str, str]]] = (
    (
        _is_run,
        (
            "a run, the ranking of a search system in six columns (query id, Q0, document id, rank, score, tag)",
            "give the judgments (qrels) that the run is measured by",
        ),
    ),
    (
        _is_letor,
        (
            "a learning-to-rank list (grade qid:number features)",
            "give one line for each judgment: query id TAB document id TAB grade",
        ),
    ),
    (_is_json_line, ("JSON lines", "convert it to tab-separated text, one record a line")),
)


def read_links(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[Link]:
    """Yield the links of a file (source id TAB target id, or a header), including duplicates and links to itself."""

    def parse(values: Mapping[str, str]) -> Link:
        return Link(check_id(values["source"], "source id"), check_id(values["target"], "target id"))

    return (link for _, link in read_table(path, LINKS, parse, rejects))


def read_queries(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[Query]:
    """Yield the queries of a file (query id TAB text, or a header). Later queries with the same id are rejected.

    Of the Search Relevance Workbench's judgments (JSON), the query texts are the ids too.
    """
    seen = SeenIds()

    def parse(values: Mapping[str, str]) -> Query:
        query = Query(check_id(values["query id"], "query id"), values["text"].strip())
        if not query.text:
            raise RecordError("empty_query", f"the query {query.id!r} has no text")
        if not seen.add(query.id):
            raise RecordError("duplicate_id", f"the query id {query.id!r} was given before: the first query counts")
        return query

    if is_json(path):
        return read_json_queries(path, rejects)
    return (query for _, query in read_table(path, QUERIES, parse, rejects))


def read_qrels(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[Judgement]:
    """Yield the judgments of a file: query TAB document TAB grade, or TREC's four columns (query, 0, document, grade).

    TREC's columns are separated by any white space; the second one is ignored. Grades are decimal numbers from
    -1,000,000 to 1,000,000. The columns can also be separated by commas (CSV), or be named in a header. JSON of the
    Search Relevance Workbench and of ranx is read too.
    """
    return (judgement for _, judgement in _numbered_judgements(path, rejects))


def _numbered_judgements(path: _Path, rejects: RejectSink | None) -> Iterator[tuple[Line, Judgement]]:
    """Yield each judgment of a file with its line."""

    def parse(values: Mapping[str, str]) -> Judgement:
        ids = check_id(values["query id"], "query id"), check_id(values["document id"], "document id")
        return Judgement(*ids, parse_grade(values["grade"]))

    return read_json_judgements(path, rejects) if is_json(path) else read_table(path, JUDGMENTS, parse, rejects)


def read_judgements(path: _Path, rejects: RejectSink | None = None) -> dict[str, dict[str, float]]:
    """Return query id -> document id -> grade.

    If a pair is judged again with another grade, the last grade counts. The former judgment is reported to ``rejects``
    (kind ``judged_again``), which is no fault of the file.
    """
    qrels: dict[str, dict[str, float]] = {}
    for line, (query, document, grade) in _numbered_judgements(path, rejects):
        before = qrels.setdefault(query, {}).get(document, grade)
        if before != grade and rejects is not None:
            pair = f"document {document!r} of query {query!r}"
            reason = f"{pair} was judged {before:g} before: the last grade, {grade:g}, counts"
            rejects.reject(line.number, line.offset, reason, line.data[:800], kind=JUDGED_AGAIN)
            if isinstance(rejects, RejectLog):
                rejects.accept(-1)  # the former judgment, which was counted as used
        qrels[query][document] = grade
    return qrels


def at_least_one(kind: str, path: _Path, rejects: RejectSink | None, read: Callable[[], _Records]) -> _Records:
    """Return the records that ``read`` reads of a file. Raises `InputError`, with a reason, if all were rejected."""
    before = rejects.count if isinstance(rejects, RejectLog) else 0
    records = read()
    if isinstance(rejects, RejectLog) and not len(records) and (n_rejected := rejects.count - before):
        name = os.fspath(path)
        raise InputError(
            f"none of the {kind} of {name!r} can be used: all {n_rejected:,} were refused, the last one at "
            f"{rejects.last}. Correct the file",
            path=name,
        )
    return records


def read_pairs(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[Pair]:
    """Yield the preference pairs of a tab-separated or Parquet file: query text, better id, worse id and weight.

    A file with tabs or commas can have a header that names the columns in any order. Without a header, the columns are
    in the order above, separated by tabs. The weight is optional (default 1) and must be a number from 1e-12 to 1e12.
    The two ids must differ. A Parquet file needs columns with these names.
    """
    if is_parquet(path):
        return read_rows(path, [(name,) for name in _PAIR_COLUMNS[:3]], _pair_of_row, rejects or StrictSink(path))

    def parse(values: Mapping[str, str]) -> Pair:
        return _pair(
            values["query"], values["better"], values["worse"], parse_number(values.get("weight", "1"), "weight")
        )

    return (pair for _, pair in read_table(path, PAIRS, parse, rejects))


def _pair(query: object, better: object, worse: object, weight: object) -> Pair:
    if not isinstance(query, str) or not query.strip():
        raise RecordError("empty_query", f"the query is {query!r}: it must be a text")
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        limits = f"from {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}"
        raise RecordError("weight", f"the weight is {weight!r}: it must be a finite number above 0, {limits}")
    better, worse = check_id(better, "better id"), check_id(worse, "worse id")
    if better == worse:
        raise RecordError("same_document", f"better and worse are both {better!r}: a pair needs two documents")
    return Pair(query, better, worse, float(weight))


def _pair_of_row(row: int, value: Mapping[str, Any]) -> Pair:
    weight = value.get("weight")
    return _pair(value["query"], value["better"], value["worse"], 1.0 if weight is None else weight)
