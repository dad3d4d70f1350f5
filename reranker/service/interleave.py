"""Two versions in one list: team-draft interleaving, and the mode of `/search` that does it.

Each version picks its best document that is not yet in the list, in rounds; who picks first in a round is decided by a
coin. A click counts for the version that put the document there: whichever ranks better is clicked more often,
whatever the position. Source: Radlinski, Kurup, Joachims: How does clickthrough data reflect retrieval quality?
(2008), algorithm 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from reranker.engines.bodies import window_of
from reranker.records import RankedHit
from reranker.rerank import RerankedPage
from reranker.rerank.explain import Explanation
from reranker.service.modes import SearchCall, SearchOutcome
from reranker.service.serving import Serving

if TYPE_CHECKING:
    from reranker.service.state import ServiceState

Key = TypeVar("Key")
LIVE, CHALLENGER = "A", "B"
MODE = "interleave"


def team_draft(
    first: Sequence[Key], second: Sequence[Key], size: int, rng: np.random.Generator
) -> list[tuple[Key, str]]:
    """Return at most ``size`` documents with the team that put each there.

    A team whose list is used up leaves the rest to the other; nothing of either list is lost before ``size`` is
    reached. One coin a round is drawn, whether it is needed or not, so that a longer list begins like a shorter one.

    Parameters
    ----------
    first, second : sequence of keys
        Rankings, best first, of teams `LIVE` and `CHALLENGER`.
    size : int
    rng : Generator
        Throws the coins.
    """
    rankings = {LIVE: first, CHALLENGER: second}
    places = {LIVE: 0, CHALLENGER: 0}
    chosen: dict[Key, str] = {}

    def pick(team: str) -> None:
        ranking = rankings[team]
        while places[team] < len(ranking) and ranking[places[team]] in chosen:
            places[team] += 1
        if places[team] < len(ranking) and len(chosen) < size:
            chosen[ranking[places[team]]] = team

    while len(chosen) < size:
        before = len(chosen)
        order = (LIVE, CHALLENGER) if rng.random() < 0.5 else (CHALLENGER, LIVE)
        for team in order:
            pick(team)
        if len(chosen) == before:
            break
    return list(chosen.items())


def coins(session: str, query: str) -> np.random.Generator:
    """Return the generator of one session's query: the same list each time it is asked, also for its next page."""
    text = f"{session}\n{query}".encode("utf-8", "surrogatepass")
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"))


@dataclass(frozen=True, slots=True)
class Interleaving:
    """The mode: the live version against another one.

    Both versions search, so a search costs the engine twice. Where either falls back, or both are one version, the
    live version's page is shown and nobody is credited.

    Parameters
    ----------
    challenger : str
        Model id of the other version, or the beginning of it.
    """

    challenger: str

    def __call__(self, state: ServiceState, call: SearchCall) -> SearchOutcome:
        """Return the interleaved page."""
        live, other = state.serving, state.version(self.challenger)
        first, size = _page_of(call)
        pages = [_search(one, call, first + size) for one in (live, other)]
        if live.model_id == other.model_id or not all(page.reranked for page in pages):
            return SearchOutcome(_cut(pages[0], first, size), live)
        hits = {LIVE: _by_key(pages[0]), CHALLENGER: _by_key(pages[1])}
        drafted = team_draft(
            list(hits[LIVE]), list(hits[CHALLENGER]), first + size, coins(call.session_id or "", call.query)
        )  # fmt: skip
        shown = [
            (replace(hits[team][key][0], rank=rank), hits[team][key][1], team)
            for rank, (key, team) in enumerate(drafted, 1)
        ][first:]
        page = replace(
            pages[0],
            hits=tuple(hit for hit, _, _ in shown),
            explanations=tuple(why for _, why, _ in shown if why is not None),
        )
        return SearchOutcome(page, live, tuple(team for _, _, team in shown), (live.model_id, other.model_id))


def _page_of(call: SearchCall) -> tuple[int, int]:
    first, size = window_of(call.body or {})
    return first if call.first is None else call.first, size if call.size is None else call.size


def _search(serving: Serving, call: SearchCall, size: int) -> RerankedPage:
    return serving.reranker.search(
        call.query, call.body, size=size, from_=0, explain=call.explain, deadline_ms=call.deadline.left_ms
    )


def _by_key(page: RerankedPage) -> dict[tuple[str, str], tuple[RankedHit, Explanation | None]]:
    whys: Sequence[Explanation | None] = page.explanations or (None,) * len(page.hits)
    return {(hit.index, hit.id): (hit, why) for hit, why in zip(page.hits, whys, strict=True)}


def _cut(page: RerankedPage, first: int, size: int) -> RerankedPage:
    return replace(page, hits=page.hits[first : first + size], explanations=page.explanations[first : first + size])
