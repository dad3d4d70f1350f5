"""The reject file of a run that may be interrupted: no refusal is listed twice or forgotten, whenever the process dies.

Refusals are written as they happen, some of them for lines further on than the last checkpoint. A resumed run meets
those lines again, so it first takes their entries out of the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from reranker.formats import RejectLog


class RunRejects:
    """Writes refusals, and knows how many lie before a place in the input.

    Parameters
    ----------
    path : Path or None
        Reject file; None only counts.
    start_offset : int
        Where the run goes on: entries from there on are removed, and the reader's refusals before it are not repeated.
    unreadable, rejected : int
        Refusals before ``start_offset``, from the checkpoint.
    """

    def __init__(self, path: Path | None, start_offset: int, unreadable: int = 0, rejected: int = 0) -> None:
        kept = _drop_entries(path, start_offset) if path is not None else 0
        self.log = RejectLog(path, keep_bytes=kept)
        self._start_offset = start_offset
        self._before = {"unreadable": unreadable, "rejected": rejected}
        self._ahead: list[tuple[int, str]] = []

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Take a refusal of the reader (a `reranker.formats.RejectSink`)."""
        if offset >= self._start_offset:
            self._ahead.append((offset, "unreadable"))
            self.log.reject(line, offset, reason, sample, kind=kind)

    def reject_write(self, line: int, offset: int, reason: str, identifier: str) -> None:
        """Take a refusal of a document that could be read."""
        head = reason.split(":", 1)[0]
        self._ahead.append((offset, "rejected"))
        self.log.reject(line, offset, reason, identifier, kind=head if head.isidentifier() else "not_acceptable")

    def before(self, offset: int) -> dict[str, int]:
        """Return the refusals of lines before ``offset`` by class; ``offset`` never moves back."""
        ahead = self._ahead
        self._ahead = []
        for place, name in ahead:
            if place < offset:
                self._before[name] += 1
            else:
                self._ahead.append((place, name))
        return dict(self._before)

    @property
    def unreadable(self) -> int:
        """Lines refused by the reader so far."""
        return self._before["unreadable"] + sum(name == "unreadable" for _, name in self._ahead)

    def close(self) -> None:
        """Close the file."""
        self.log.close()


def _drop_entries(path: Path, start_offset: int) -> int:
    """Remove the entries from ``start_offset`` on, and a torn last line; return the length of what remains."""
    if start_offset == 0 or not path.exists():
        return 0
    kept: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
            before = line.endswith(b"\n") and int(entry["offset"]) < start_offset
        except (ValueError, KeyError, TypeError):
            before = False
        if before:
            kept.append(line)
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return sum(map(len, kept))
