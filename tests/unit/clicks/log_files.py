"""Click logs as Parquet files, written from rows in which only what matters is given."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reranker.clicks.schema import TABLES, Impression, ShownDocument

Row = Mapping[str, Any]
_numbers = itertools.count()


@dataclass(frozen=True)
class Log:
    """The files of a log, as `reranker.clicks.pairs.LogFiles` has them."""

    paths: Mapping[str, list[Path]]

    def files(self, table: str) -> list[Path]:
        return self.paths[table]


def write_log(
    folder: Path, queries: Iterable[Row] = (), hits: Iterable[Row] = (), events: Iterable[Row] = (), n_files: int = 1
) -> Log:
    """Write the tables, each in ``n_files`` files; strings left out are empty, numbers null, flags False."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "string": pa.string(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
    }
    defaults: dict[str, Any] = {"string": "", "bool": False}
    paths: dict[str, list[Path]] = {}
    for table, rows in (("queries", queries), ("hits", hits), ("events", events)):
        columns = TABLES[table]
        full = [{name: row.get(name, defaults.get(kind)) for name, kind in columns.items()} for row in rows]
        schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
        paths[table] = []
        for part in range(n_files):
            path = folder / f"{table}-{next(_numbers)}.parquet"
            pq.write_table(pa.Table.from_pylist(full[part::n_files], schema=schema), path)
            paths[table].append(path)
    return Log(paths)


def hits_of(query_id: str, *documents: str) -> list[Row]:
    """Return the hit rows of a returned list."""
    return [{"query_id": query_id, "position": n, "document": name} for n, name in enumerate(documents, start=1)]


def click(query_id: str, document: str, **more: Any) -> Row:
    """Return the row of a click."""
    return {"query_id": query_id, "action": "click", "document": document, **more}


def shown_as(marks: str, *, query_id: str = "q") -> Impression:
    """Return a list with documents named a, b, c, ... by rank: ``-`` skipped, ``c`` clicked, ``k`` cart, ``p`` bought.

    A blank leaves a rank out. Clicks further up are later, except that every third list has no times.
    """
    is_timed = len(query_id) % 3 == 2
    shown = tuple(
        ShownDocument(
            chr(ord("a") + n), n + 1, mark in "ckp", mark == "k", mark == "p", time=99 - n if is_timed else None
        )
        for n, mark in enumerate(marks)
        if mark != " "
    )
    return Impression(query_id, "text", shown)
