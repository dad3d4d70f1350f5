"""Queries of the embedded engines as a small frozen tree."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MatchAll:
    """Every document, scored ``boost``."""

    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class MatchNone:
    """No document."""


@dataclass(frozen=True, slots=True)
class Words:
    """BM25 over one text field: (word, times in the query), of which ``minimum`` times must match."""

    field: str
    words: tuple[tuple[str, int], ...]
    minimum: int = 1
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Exact:
    """Any of these whole values (of a text field: words), scored ``boost``."""

    field: str
    values: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Ids:
    """These documents, scored ``boost``."""

    ids: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Exists:
    """Documents with a value in a searchable field, scored ``boost``."""

    field: str
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class DisMax:
    """The best child's score plus ``tie`` times the others'."""

    children: tuple[Node, ...]
    tie: float = 0.0
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Bool:
    """All of ``must`` and ``filter``, ``minimum`` of ``should``, none of ``must_not``; must and should are summed."""

    must: tuple[Node, ...] = ()
    should: tuple[Node, ...] = ()
    filter: tuple[Node, ...] = ()
    must_not: tuple[Node, ...] = ()
    minimum: int = 0
    boost: float = 1.0


Node = MatchAll | MatchNone | Words | Exact | Ids | Exists | DisMax | Bool
