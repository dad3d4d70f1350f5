"""A sink that remembers what was refused."""

from __future__ import annotations

from typing import NamedTuple


class Reject(NamedTuple):
    """One refused record."""

    line: int
    offset: int
    reason: str
    sample: str
    kind: str


class CollectingSink:
    """Keeps every refused record in ``entries``."""

    def __init__(self) -> None:
        self.entries: list[Reject] = []

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        text = sample.decode("utf-8", "replace") if isinstance(sample, bytes) else sample
        self.entries.append(Reject(line, offset, reason, text, kind))

    @property
    def kinds(self) -> list[str]:
        """The kinds in the order they came."""
        return [entry.kind for entry in self.entries]
