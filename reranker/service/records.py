"""What is logged of a search, and who takes it: the interface between `/search` and the sink of impressions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ShownHit:
    """One hit of a shown page: its id, 1-based rank, the engine's rank, and whose version put it there (or "")."""

    id: str
    index: str
    rank: int
    first_stage_rank: int
    team: str = ""


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """One answered search, as it is logged.

    Parameters
    ----------
    query_id : str
        As in the answer; clicks refer to it.
    query : str
        What was typed.
    time : datetime
        UTC.
    session_id, client_id : str or None
        As the request gave them.
    application : str
    index : str
    model_id, encoder_id : str
        The version that answered; empty where none was loaded.
    route : str
    mode : str
        ``rerank``, ``shadow``, ``control``, ``off``, ``interleave``.
    reranked, fallback : bool
        As in the answer.
    reason : str
        Class of the reason why the page is not reranked (`reranker.service.metrics.cause_of`), never free text.
    hits : tuple of ShownHit
        The page in shown order.
    total : int
    first : int
        Hits skipped before the page.
    shadow_ids : tuple of str
        The page as the model would have ordered it, in mode ``shadow``.
    versions : tuple of str
        Model ids of the two teams in mode ``interleave``.
    took_ms : float
    """

    query_id: str
    query: str
    time: datetime
    session_id: str | None
    client_id: str | None
    application: str
    index: str
    model_id: str
    encoder_id: str
    route: str
    mode: str
    reranked: bool
    fallback: bool
    reason: str
    hits: tuple[ShownHit, ...]
    total: int
    first: int
    shadow_ids: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    took_ms: float = 0.0


class RecordSink(Protocol):
    """Takes impressions. Nothing here blocks or raises: a full sink drops and counts."""

    def record(self, search: SearchRecord) -> None:
        """Take one search, or drop it."""
        ...

    @property
    def waiting(self) -> int:
        """Records taken and not yet written."""
        ...

    @property
    def dropped(self) -> int:
        """Records dropped since the start."""
        ...

    def close(self, timeout_s: float) -> None:
        """Write what waits, for this long at most, and stop."""
        ...
