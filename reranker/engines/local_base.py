"""What an embedded engine is made of: a catalogue of names, and one object an index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from reranker.engines.mapping import Extracted, FieldTable
from reranker.engines.query_tree import Node
from reranker.engines.writes import Stored


@dataclass(frozen=True, slots=True)
class Found:
    """One match: id, score and the place (a number, smaller first) that orders equal scores."""

    id: str
    score: float
    place: int


@dataclass(frozen=True, slots=True)
class Change:
    """A state to store, with what of it is searchable (None for a deletion)."""

    state: Stored
    extracted: Extracted | None


class Batch(ABC):
    """One bulk request's exclusive hold on an index."""

    @abstractmethod
    def load(self, ids: Sequence[str]) -> dict[str, Stored]:
        """Return the states of the ids that have one, traces of deletions included."""

    @abstractmethod
    def next_seq_no(self) -> int:
        """Return the number of the next write."""

    @abstractmethod
    def save(self, changes: Sequence[Change], mapping: Mapping[str, Any] | None) -> None:
        """Store the changes, and a new mapping if there is one, all or nothing."""


class LocalIndex(ABC):
    """One index of an embedded engine."""

    name: str
    settings: dict[str, str]

    @abstractmethod
    def mapping(self) -> dict[str, Any]:
        """Return the ``mappings`` object."""

    @abstractmethod
    def table(self) -> FieldTable:
        """Return the fields of the mapping."""

    @abstractmethod
    def set_mapping(self, mapping: Mapping[str, Any]) -> None:
        """Store a changed mapping."""

    @abstractmethod
    def batch(self) -> AbstractContextManager[Batch]:
        """Return an exclusive hold for writing."""

    @abstractmethod
    def read(self, ids: Sequence[str]) -> dict[str, Stored]:
        """Return the states of ids, newest (realtime)."""

    @abstractmethod
    def find(self, node: Node, limit: int | None) -> tuple[list[Found], int]:
        """Return the best ``limit`` matches (None: all), best first, and the number of all matches."""

    @abstractmethod
    def stream(self, ids: Sequence[str] | None, batch_size: int) -> Iterator[list[Stored]]:
        """Yield live documents over one consistent view; those of ``ids`` in their order, or all."""

    @abstractmethod
    def refresh(self) -> None:
        """Make acknowledged writes visible to search."""


class Catalogue(ABC):
    """Which indexes and aliases an engine has."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return all concrete indexes."""

    @abstractmethod
    def aliases(self) -> dict[str, set[str]]:
        """Return alias → indexes."""

    @abstractmethod
    def open(self, name: str) -> LocalIndex:
        """Return a concrete index that exists."""

    @abstractmethod
    def create(self, name: str, mapping: Mapping[str, Any], settings: dict[str, str]) -> None:
        """Create an index whose name is free."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an index and take it from its aliases."""

    @abstractmethod
    def swap(self, alias: str, add: str, remove: Sequence[str]) -> None:
        """Change one alias in one step."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""
