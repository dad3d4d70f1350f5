"""Immutable records that several modules use. Ids are always ``str``.

Hits are msgspec structs, because a search creates hundreds of them, and creating a frozen dataclass takes four times as
long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

MAX_ID_BYTES = 512
"""Longest id in UTF-8: the limit of Elasticsearch and OpenSearch, where one longer id fails a whole bulk request."""
RELEVANT_FROM = 2.0**-126
"""Least grade of a relevant document: the smallest normal float32, so that every grade above 0 is relevant."""


def is_relevant(grade: float) -> bool:
    """Return whether a document of this grade is relevant: its grade is above 0. This rule holds everywhere."""
    return grade >= RELEVANT_FROM


class ReasonKind(StrEnum):
    """Kinds of reasons for keeping the engine's order. They are labels of metrics, logs and impressions."""

    DEADLINE = "deadline"
    """The deadline passed."""
    NO_MODEL = "no_model"
    """No model is loaded."""
    NO_STORE = "no_store"
    """Route *beside* has no usable vector store, or the store is still being verified."""
    EMPTY_QUERY = "empty_query"
    """The query has no word that discriminates between documents."""
    UNSCORED = "unscored"
    """More candidates than allowed have neither a vector nor a text."""
    DOCUMENTS = "documents"
    """The engine answered the search, but did not answer a later request for it."""
    PAST_WINDOW = "past_window"
    """The page begins after the window."""
    SWITCHED_OFF = "switched_off"
    """The request asked for the engine's order."""
    CONTROL = "control"
    """The session is in the control group."""
    SHADOW = "shadow"
    """Shadow mode: the model scores, but its order is not shown."""
    ERROR = "error"
    """Reranking failed with an unexpected error."""
    NOT_RERANKABLE = "not_rerankable"
    """The search itself cannot be reranked: it sorts, collapses, pages by ``search_after``, and so on."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a page or a list of documents is not reranked.

    Code must depend only on ``kind``. The texts are for people and can change.
    """

    kind: ReasonKind
    text: str
    detail: str = ""
    """Message of an error. It can contain a query or a document, so it is not sent to clients of the service."""

    def __str__(self) -> str:
        return f"{self.text}: {self.detail}" if self.detail else self.text


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the user's source."""

    id: str
    """Unique in the corpus; 1 to 512 bytes of UTF-8."""
    source: Mapping[str, Any]
    """The JSON object without its id. Fields can be nested and can be arrays."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A preference: for a query, one document should be ranked above another."""

    query: str
    """Text of the query."""
    better: str
    """Id of the preferred document."""
    worse: str
    """Id of the other document."""
    weight: float = 1.0
    """Weight in training; above 0."""


class Hit(msgspec.Struct, frozen=True):
    """One hit of the first stage."""

    id: str
    """``_id`` of the document."""
    index: str
    """Concrete index that holds it."""
    score: float | None
    """``_score``; None if the engine returned none (because of another sort order)."""
    source: Mapping[str, Any] = {}
    """Requested part of ``_source``."""
    fields: Mapping[str, Any] = {}
    """Values of the requested ``fields``."""
    raw: Mapping[str, Any] = {}
    """The unchanged hit of the engine's response (with highlights, inner hits, sort values)."""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The response of a search engine."""

    hits: tuple[Hit, ...]
    """Hits in first-stage order."""
    total: int
    """Number of matching documents."""
    total_is_exact: bool = True
    """False if ``total`` is a lower bound."""
    timed_out: bool = False
    """True if the engine reports that the response is partial."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The whole body of the response."""
    ids_are_values: bool = False
    """True if the ids of hits are values of a field, which a client that writes documents can set."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document that was read from an index."""

    id: str
    index: str
    """Concrete index of the document."""
    source: Mapping[str, Any]
    seq_no: int
    """Together with ``primary_term``, the version of the document."""
    primary_term: int
    routing: str | None = None
    """Routing value; None if the document was indexed without one."""


class RankedHit(msgspec.Struct, frozen=True):
    """One hit after reranking."""

    id: str
    index: str
    """As in `Hit`."""
    rank: int
    """1-based place in the final order."""
    score: float
    """Score by which the hits were sorted."""
    first_stage_rank: int
    """1-based rank in the engine's own order."""
    first_stage_score: float | None = None
    """The engine's ``_score``."""
    model_score: float | None = None
    """Model score f(q, d); None for a hit that could not be scored."""
    unscored: bool = False
    """True if the hit kept its place because it has neither a vector nor a text."""
    kept: bool = False
    """True if the hit kept its place because it is pinned."""
    source: Mapping[str, Any] = {}
    raw: Mapping[str, Any] = {}
    """As in `Hit`, for the page's hits."""
