"""What is done with a search: reranked, in the shadow, as control, or by whatever a router adds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from reranker.rerank import RerankedPage
from reranker.service.context import Deadline
from reranker.service.serving import Serving

if TYPE_CHECKING:
    from reranker.service.state import ServiceState


@dataclass(frozen=True, slots=True)
class SearchCall:
    """One search, checked.

    Parameters
    ----------
    query : str
    body : mapping or None
        The template to fill; None searches the model's text fields.
    size, first : int or None
        The page; None takes the body's.
    explain : bool
    session_id, client_id : str or None
    version : str or None
        Version asked for by name; None: the live one.
    off : bool
        This request asked not to be reranked.
    deadline : Deadline
    """

    query: str
    body: Mapping[str, Any] | None
    size: int | None
    first: int | None
    explain: bool
    session_id: str | None
    client_id: str | None
    version: str | None
    off: bool
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a mode made of a search.

    Parameters
    ----------
    page : RerankedPage
    serving : Serving
        The version that made it.
    teams : tuple of str
        Whose version put each hit of the page there; empty where there are no teams.
    versions : tuple of str
        Model ids of the teams.
    """

    page: RerankedPage
    serving: Serving
    teams: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()


class SearchMode(Protocol):
    """Carries out a search in a thread, in time; raises `EngineError` where the engine's first answer is missing."""

    def __call__(self, state: ServiceState, call: SearchCall) -> SearchOutcome:
        """Return the page."""
        ...


def rerank(state: ServiceState, call: SearchCall) -> SearchOutcome:
    """Return the page in the model's order."""
    serving = state.version(call.version)
    page = serving.reranker.search(
        call.query, call.body, size=call.size, from_=call.first, explain=call.explain,
        deadline_ms=call.deadline.left_ms,
    )  # fmt: skip
    return SearchOutcome(page, serving)


def _engine_order(reason: str) -> SearchMode:
    def mode(state: ServiceState, call: SearchCall) -> SearchOutcome:
        serving = state.version(call.version)
        page = serving.reranker.search(
            call.query, call.body, size=call.size, from_=call.first, deadline_ms=call.deadline.left_ms, off=reason
        )
        return SearchOutcome(page, serving)

    return mode


MODES: Mapping[str, SearchMode] = {
    "rerank": rerank,
    "off": _engine_order("reranking is switched off for this request"),
    "control": _engine_order("this session is of the control group"),
    "shadow": _engine_order("the model is scored in the shadow"),
}
"""Modes of every service; routers add theirs to ``ServiceState.modes``."""


def mode_of(state: ServiceState, call: SearchCall) -> str:
    """Return the mode of a search: the request's wish, then the control group, then how the service was started."""
    if call.off:
        return "off"
    if call.version is not None:
        return "rerank"
    if state.settings.shadow:
        return "shadow"
    if not in_share(call.session_id or call.query, state.settings.percent, state.settings.salt):
        return "control"
    return "interleave" if "interleave" in state.modes else "rerank"


def in_share(session: str, percent: float, salt: str) -> bool:
    """Return whether a session is among the ``percent`` of all sessions: the same answer for it every time."""
    digest = hashlib.blake2b(f"{salt}\n{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < percent / 100.0 * 2.0**64
