"""Frozen records that cross module borders. Ids are ``str`` everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_ID_BYTES = 512
"""Longest id in UTF-8: the limit of Elasticsearch and OpenSearch, where one longer id fails a whole bulk request."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as the user's source has it.

    Parameters
    ----------
    id : str
        Unique in its corpus; 1 to 512 bytes of UTF-8.
    source : mapping
        The JSON object, without its id; fields may be nested and may be arrays.
    """

    id: str
    source: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One preference: for ``query``, the document ``better`` should stand above ``worse``.

    ``query`` is the query's text; ``better`` and ``worse`` are document ids; ``weight`` > 0.
    """

    query: str
    better: str
    worse: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Hit:
    """One hit of the first stage.

    Parameters
    ----------
    id : str
        ``_id`` of the document.
    index : str
        Concrete index that holds it.
    score : float or None
        ``_score``; None where the engine gave none (another sort order).
    source : mapping
        ``_source`` as far as it was asked for.
    fields : mapping of str to list
        Values asked for by ``fields``.
    raw : mapping
        The hit as the engine sent it (highlight, inner hits, sort values), untouched.
    """

    id: str
    index: str
    score: float | None
    source: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)


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
    """A document read back from an engine, with what a safe write-back needs.

    ``seq_no`` and ``primary_term`` state the version read; ``routing`` is None where none was used.
    """

    id: str
    index: str
    source: Mapping[str, Any]
    seq_no: int
    primary_term: int
    routing: str | None = None


@dataclass(frozen=True, slots=True)
class RankedHit:
    """One hit after reranking.

    Parameters
    ----------
    id, index : str
        As in `Hit`.
    rank : int
        1-based place in the final order.
    score : float
        What the hits were ordered by.
    first_stage_rank : int
        1-based place in the engine's own order; 0 where the engine ordered the window itself and does not tell.
    first_stage_score : float or None
        The engine's ``_score``.
    model_score : float or None
        f(q, d); None for a hit that could not be scored.
    unscored : bool
        True where the hit kept its place for want of a vector and a text.
    kept : bool
        True where the hit kept its place because it must not move (pinned, or kept on top).
    source, raw : mapping
        As in `Hit`, for the page's hits.
    """

    id: str
    index: str
    rank: int
    score: float
    first_stage_rank: int
    first_stage_score: float | None = None
    model_score: float | None = None
    unscored: bool = False
    kept: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)
