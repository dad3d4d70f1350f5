"""Rows of a click log on their way from a reader to the files: plain columns, checked and made Arrow tables once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reranker.clicks.schema import TABLES
from reranker.errors import InputError, MissingExtra

Batch = Mapping[str, Mapping[str, Sequence[Any]]]
"""Table name → column name → values (lists or NumPy arrays of one length); columns of `reranker.clicks.schema`.

A batch may leave tables and columns out: missing text is empty, missing flags are false, missing numbers null.
"""

QUERY_TIME = "query_time"
"""Column added to the files of ``hits``: the time of their query, by which they are kept and expire."""

PEOPLE = "people"
"""Table kept beside those of the schema: which hashed ids were seen together as one person."""

_PEOPLE_COLUMNS = {"alias": "string", "user": "string", "time": "int64"}
STORED: dict[str, dict[str, str]] = {
    **{name: dict(columns) for name, columns in TABLES.items()},
    "hits": {**TABLES["hits"], QUERY_TIME: "int64"},
    PEOPLE: _PEOPLE_COLUMNS,
}
"""Columns of the files: those of `reranker.clicks.schema.TABLES` and what the log itself needs."""

TIME_COLUMN = {"queries": "time", "hits": QUERY_TIME, "events": "time", PEOPLE: "time"}


def arrow() -> Any:
    """Return the module pyarrow; raises `MissingExtra` where it is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "clicks") from error
    return pa


def arrow_schema(table: str) -> Any:
    """Return the Arrow schema of a table's files."""
    pa = arrow()
    types = {
        "string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_(),
    }  # fmt: skip
    return pa.schema([(name, types[kind]) for name, kind in STORED[table].items()])


def to_tables(batch: Batch) -> dict[str, Any]:
    """Return the Arrow tables of a batch, in the columns of `STORED`; empty tables are left out.

    Raises
    ------
    InputError
        For unknown tables or columns, columns of different lengths, or values of another type.
    """
    unknown = sorted(set(batch) - set(STORED))
    if unknown:
        raise InputError(f"a batch has the table {unknown[0]!r}: tables are {', '.join(STORED)}", table=unknown[0])
    tables = {name: _table(name, columns) for name, columns in batch.items()}
    if "hits" in tables and QUERY_TIME not in batch["hits"]:
        tables["hits"] = _with_query_time(tables["hits"], tables.get("queries"))
    return {name: table for name, table in tables.items() if table.num_rows}


def _table(name: str, columns: Mapping[str, Sequence[Any]]) -> Any:
    pa = arrow()
    schema = arrow_schema(name)
    unknown = sorted(set(columns) - set(schema.names))
    if unknown:
        raise InputError(f"the table {name!r} has no column {unknown[0]!r}: columns are {', '.join(schema.names)}")
    n_rows = len(next(iter(columns.values()))) if columns else 0
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            empty = "" if pa.types.is_string(field.type) else False if pa.types.is_boolean(field.type) else None
            arrays.append(pa.repeat(pa.scalar(empty, field.type), n_rows))
            continue
        try:
            array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, field.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"column {field.name!r} of {name!r} cannot be {field.type}: {str(error)[:200]}") from error
    if any(len(array) != n_rows for array in arrays):
        raise InputError(f"the columns of {name!r} have different lengths: give one value a row in each")
    return pa.table(arrays, schema=schema)


def _with_query_time(hits: Any, queries: Any) -> Any:
    """Return hits with the time of their query, where the batch holds it."""
    arrow()
    import pyarrow.compute as pc

    if queries is None or not queries.num_rows:
        return hits
    place = pc.index_in(hits["query_id"], value_set=queries["query_id"])
    column = hits.schema.get_field_index(QUERY_TIME)
    return hits.set_column(column, hits.schema.field(column), pc.take(queries["time"], place))
