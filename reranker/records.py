"""Frozen records that cross module borders. Ids are ``str`` everywhere.

Hits, made by the hundred for each search, are msgspec's: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

MAX_ID_BYTES = 512
"""Longest id in UTF-8: the limit of Elasticsearch and OpenSearch, where one longer id fails a whole bulk request."""


class ReasonKind(StrEnum):
    """The kinds of reasons why something keeps the engine's order: labels of metrics, logs and impressions."""

    DEADLINE = "deadline"
    """The deadline passed."""
    NO_MODEL = "no_model"
    """No model is loaded."""
    NO_STORE = "no_store"
    """Route *beside* has no vector store that can be used, or it is still being verified."""
    EMPTY_QUERY = "empty_query"
    """The query has no word that tells documents apart."""
    UNSCORED = "unscored"
    """More candidates than allowed have neither a vector nor a text."""
    DOCUMENTS = "documents"
    """The engine did not answer a request after its first answer."""
    PAST_WINDOW = "past_window"
    """The page begins past the window."""
    SWITCHED_OFF = "switched_off"
    """The request asked for the engine's order."""
    CONTROL = "control"
    """The session is of the control group."""
    SHADOW = "shadow"
    """The model only scores, and its order is not shown."""
    ERROR = "error"
    """Reranking failed by an error that nobody expected."""
    NOT_RERANKABLE = "not_rerankable"
    """The search itself cannot be reranked: it sorts, collapses, pages by ``search_after``, and so on."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a page, or a list of documents, is not reranked.

    Code decides by ``kind``; the texts are for people, and may be reworded.
    """

    kind: ReasonKind
    text: str
    detail: str = ""
    """The words of an error, which may repeat a query or a document: not sent to clients of the service."""

    def __str__(self) -> str:
        return f"{self.text}: {self.detail}" if self.detail else self.text


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
    """True if the hit kept its place because it has neither a vector nor a text."""
    kept: bool = False
    """True where the hit kept its place because it must not move (pinned, or kept on top)."""
    source: Mapping[str, Any] = {}
    raw: Mapping[str, Any] = {}
    """As in `Hit`, for the page's hits."""
