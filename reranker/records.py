"""Frozen records that cross module borders. Ids are ``str`` everywhere.

Hits, made by the hundred for each search, are msgspec's: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_ID_BYTES = 512
"""Longest id in UTF-8: the limit of Elasticsearch and OpenSearch, where one longer id fails a whole bulk request."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as the user's source has it."""

    id: str
    """Unique in its corpus; 1 to 512 bytes of UTF-8."""
    source: Mapping[str, Any]
    """The JSON object, without its id; fields may be nested and may be arrays."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One preference: for the text ``query``, the document (id) ``better`` should stand above ``worse``; weight > 0."""

    query: str
    better: str
    worse: str
    weight: float = 1.0


class Hit(msgspec.Struct, frozen=True):
    """One hit of the first stage."""

    id: str
    """``_id`` of the document."""
    index: str
    """Concrete index that holds it."""
    score: float | None
    """``_score``; None where the engine gave none (another sort order)."""
    source: Mapping[str, Any] = {}
    """``_source`` as far as it was asked for."""
    fields: Mapping[str, Any] = {}
    """Values asked for by ``fields``."""
    raw: Mapping[str, Any] = {}
    """The hit as the engine sent it (highlight, inner hits, sort values), untouched."""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """A search engine's answer: hits in first-stage order and the whole body they came in.

    ``total`` is the number of matching documents and ``total_is_exact`` False where it is a lower bound.
    ``timed_out`` is True where the engine says that the answer is partial.
    """

    hits: tuple[Hit, ...]
    total: int
    total_is_exact: bool = True
    timed_out: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document read back, its version in ``seq_no`` and ``primary_term``; no ``routing`` where none was used."""

    id: str
    index: str
    source: Mapping[str, Any]
    seq_no: int
    primary_term: int
    routing: str | None = None


class RankedHit(msgspec.Struct, frozen=True):
    """One hit after reranking."""

    id: str
    index: str
    """As in `Hit`."""
    rank: int
    """1-based place in the final order."""
    score: float
    """What the hits were ordered by."""
    first_stage_rank: int
    """1-based place in the engine's own order; 0 where the engine ordered the window itself and does not tell."""
    first_stage_score: float | None = None
    """The engine's ``_score``."""
    model_score: float | None = None
    """f(q, d); None for a hit that could not be scored."""
    unscored: bool = False
    """True where the hit kept its place for want of a vector and a text."""
    kept: bool = False
    """True where the hit kept its place because it must not move (pinned, or kept on top)."""
    source: Mapping[str, Any] = {}
    raw: Mapping[str, Any] = {}
    """As in `Hit`, for the page's hits."""
