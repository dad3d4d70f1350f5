"""The documents to train on, read from the index itself: sorted by id, so that the same index gives the same file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from reranker.engines.base import Engine
from reranker.errors import NothingToLearn
from reranker.text.view import TextView

BATCH = 500


def export_documents(
    engine: Engine,
    index: str,
    view: TextView,
    path: Path,
    progress: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> int:
    """Write the text fields of all documents of an index as JSON lines and return their number.

    Engines scan in an order of their own, and training depends on the order of its documents: the lines are sorted by
    id (their places in a first, unsorted file are held in memory, about 150 bytes a document). An id that several
    indexes of an alias hold is written once, with the text that sorts first.

    Raises
    ------
    NothingToLearn
        If the index is empty.
    EngineError
        If it cannot be read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unsorted = path.with_name(f".{path.name}.unsorted")
    try:
        places = _scan(engine, index, [spec.path for spec in view.fields], unsorted, progress)
        if not places:
            raise NothingToLearn(f"index {index!r} on {engine.spec} holds no document: fill it with `ssi index`")
        return _sorted(unsorted, places, path)
    finally:
        unsorted.unlink(missing_ok=True)


def _scan(
    engine: Engine, index: str, fields: Sequence[str], path: Path, progress: Callable[[int, int | None], None]
) -> list[tuple[str, int, int]]:
    """Write the documents as they come; return (id, first byte, bytes) of each."""
    engine.refresh(index)
    total, places, at = engine.count(index), [], 0
    with path.open("wb") as file:
        for batch in engine.scan(index, source=list(fields), batch_size=BATCH):
            for document in batch:
                source = {name: value for name, value in document.source.items() if name not in ("id", "_id")}
                line = json.dumps({"id": document.id, **dict(sorted(source.items()))}).encode("ascii") + b"\n"
                file.write(line)
                places.append((document.id, at, len(line)))
                at += len(line)
            progress(len(places), total)
    return places


def _sorted(unsorted: Path, places: list[tuple[str, int, int]], path: Path) -> int:
    """Copy the lines in the order of their ids, one an id."""
    places.sort()
    written, begin = 0, 0
    temporary = path.with_name(f".{path.name}.tmp")
    with unsorted.open("rb") as source, temporary.open("wb") as target:
        while begin < len(places):
            end = begin + 1
            while end < len(places) and places[end][0] == places[begin][0]:
                end += 1
            lines = []
            for _, at, n_bytes in places[begin:end]:
                source.seek(at)
                lines.append(source.read(n_bytes))
            target.write(min(lines))
            written, begin = written + 1, end
    temporary.replace(path)
    return written
