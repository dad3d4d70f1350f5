"""Parquet rows as JSON-like objects, one row group's batch at a time (extra ``parquet``)."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from reranker.errors import InputError, MissingExtra
from reranker.formats.lines import RecordError, RejectSink, open_error, peek_bytes

PARQUET_MAGIC = b"PAR1"
_BATCH_ROWS = 512
_Row = dict[str, Any]
_Record = TypeVar("_Record")


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins with Parquet's magic bytes; raises `InputError` where it cannot be opened."""
    return peek_bytes(path, 4) == PARQUET_MAGIC


def read_rows(
    path: str | os.PathLike[str],
    required: Sequence[Sequence[str]],
    parse: Callable[[int, _Row], _Record],
    rejects: RejectSink,
) -> Iterator[_Record]:
    """Yield what ``parse`` makes of each row of a Parquet file; rows that it refuses by a `RecordError` are rejected.

    Dates and times become ISO 8601 strings, decimals strings. A row with a value that JSON cannot carry (NaN,
    Infinity, bytes, text that is not UTF-8) is rejected, its 1-based row as line and the 0-based one as offset; nulls
    are kept as None.

    `InputError` for a damaged file or a missing column; `MissingExtra` without pyarrow.

    Parameters
    ----------
    required : sequence of sequence of str
        For each needed column, its possible names; one of them must be there.
    parse : callable
        0-based row number, row as a JSON-like object -> record.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error
    with file:
        names = file.schema_arrow.names
        for choices in required:
            if not set(choices) & set(names):
                wanted = " or ".join(map(repr, choices))
                message = f"the Parquet file {os.fspath(path)!r} has no column {wanted}"
                remedy = f"its columns are {', '.join(names)[:500]}: rename one"
                raise InputError(f"{message}; {remedy}", path=os.fspath(path))
        first = 0
        for group in range(file.num_row_groups):
            batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], use_threads=False)
            while True:
                try:
                    batch = next(batches, None)
                except (OSError, pa.ArrowException) as error:
                    raise _damaged(path, error) from error
                if batch is None:
                    break
                yield from _batch_rows(batch, first, parse, rejects)
                first += batch.num_rows


def _batch_rows(
    batch: Any, first: int, parse: Callable[[int, _Row], _Record], rejects: RejectSink
) -> Iterator[_Record]:
    for row, values in enumerate(_python_rows(batch), start=first):
        value = None
        try:
            if isinstance(values, UnicodeDecodeError):
                raise RecordError("not_utf8", f"a text is not UTF-8 ({values})")
            value = {name: _plain(item) for name, item in values.items()}
            record = parse(row, value)
        except RecordError as error:
            rejects.reject(row + 1, row, error.message, "" if value is None else str(value)[:800], kind=error.kind)
            continue
        yield record


def _python_rows(batch: Any) -> list[_Row | UnicodeDecodeError]:
    """Return the rows of a batch as Python values, and the error of each row whose text is not UTF-8."""
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError as error:
        # One such text fails the whole conversion, so look for it in halves.
        if batch.num_rows == 1:
            return [error]
        half = batch.num_rows // 2
        return _python_rows(batch.slice(0, half)) + _python_rows(batch.slice(half))


def _plain(value: Any) -> Any:
    """Return a Parquet value as JSON has it."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecordError("not_finite", f"a value is {value}: JSON has no such number; write null")
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise RecordError(
        "not_json", f"a value is {type(value).__name__}: JSON cannot carry it; drop or convert the column"
    )


def _damaged(path: str | os.PathLike[str], error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
        return open_error(path, error)
    message = f"the Parquet file {os.fspath(path)!r} is damaged or cut short ({str(error)[:200]})"
    return InputError(f"{message}: write it again", path=os.fspath(path))
