"""Readers of click logs: each form to the tables of `reranker.clicks.schema`, without personal data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from reranker.clicks.privacy import Pseudonymiser
from reranker.clicks.readers.files import FORMATS, FileBatch, ReadCounts, read_file
from reranker.clicks.storage import Batch
from reranker.formats.rejects import RejectSink

__all__ = ["FORMATS", "FileBatch", "ReadCounts", "read_file", "read_log"]


def read_log(
    paths: Sequence[str | os.PathLike[str]],
    privacy: Pseudonymiser,
    *,
    format: str = "auto",
    rejects: RejectSink | None = None,
    counts: ReadCounts | None = None,
    now_ms: int | None = None,
) -> Iterator[Batch]:
    """Yield the rows of log files in batches of table → column → values.

    Parameters
    ----------
    paths : sequence of path-like
        Files of any form; see `reranker.clicks.readers.files.read_file` for this and the other parameters.

    Raises
    ------
    InputError
        Where a file cannot be read, or at the first bad line if ``rejects`` is None.
    """
    for path in paths:
        batches = read_file(path, privacy, format=format, rejects=rejects, counts=counts, hashed=False, now_ms=now_ms)
        for batch in batches:
            if batch.tables:
                yield batch.tables
