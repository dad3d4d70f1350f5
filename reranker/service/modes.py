"""What is done with a search: reranked, left in the engine's order, scored in the shadow, shuffled, or interleaved.

Team-draft interleaving puts two versions in one list, and the clicks on it say which is better. Each version picks its
best document that is not yet in the list, in rounds; who picks first in a round is decided by a coin. A click counts
for the version that put the document there: whichever ranks better is clicked more often, whatever the position. The
verdict counts sessions, since clicks of one visitor are not independent: the winner of one is the team with more
clicked documents (a document clicked twice in one list counts once); the others are ties.

Source: Radlinski, Kurup, Joachims: How does clickthrough data reflect retrieval quality? (2008), algorithm 2 and
section 5.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from reranker.deadline import Deadline
from reranker.engines.bodies import window_of
from reranker.errors import ArtifactError, InputError, RerankerError
from reranker.records import RankedHit, Reason, ReasonKind
from reranker.rerank import RerankedPage
from reranker.rerank.explain import Explanation
from reranker.service.gate import CheckedBody
from reranker.service.http import ServiceError
from reranker.service.serving import Serving, Versions
from reranker.service.settings import ServiceSettings
from reranker.service.telemetry import Metrics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SearchCall:
    """One search, checked.

    ``body`` is the template to fill, the operator's own or one that the gate has let pass; None searches the model's
    text fields; ``size`` and ``first`` are the page, None
    takes the body's; ``version`` was asked for by name, None is the live one; ``off`` asks not to be reranked.
    """

    query: str
    body: CheckedBody | None
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

    ``serving`` is the version that made the page; ``teams`` say whose version put each hit there, ``versions`` are the
    model ids of the teams: both empty where there are none. ``randomised``: the page was shuffled.
    """

    page: RerankedPage
    serving: Serving
    teams: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    randomised: bool = False


SearchMode = Callable[[Versions, SearchCall], SearchOutcome]
"""Carries out a search in a thread, in time; raises `EngineError` where the engine's first answer is missing."""


def _version_of(versions: Versions, model_id: str | None) -> Serving:
    """Return the served version, or the one named; may read files: call it in a thread.

    `ServiceError` 404 if the named version is not known or cannot be used.
    """
    if model_id is None:
        return versions.current
    try:
        return versions.get(model_id)
    except (ArtifactError, InputError, OSError) as error:
        _log.warning("version", extra={"ssi": {"result": "not served", "reason": type(error).__name__}})
        raise ServiceError(404, "this version is not one that the service can load", kind="no_version") from error


def rerank(versions: Versions, call: SearchCall, off: Reason | None = None) -> SearchOutcome:
    """Return the page in the model's order, or in the engine's order for the reason ``off``."""
    serving = _version_of(versions, call.version)
    page = serving.reranker.search(
        call.query,
        call.body,
        size=call.size,
        from_=call.first,
        explain=call.explain and not off,
        deadline_ms=call.deadline.left_ms,
        off=off,
    )
    return SearchOutcome(page, serving)


MAX_SHUFFLED = 50
"""Hits of the longest page that is shuffled."""


def explore(versions: Versions, call: SearchCall) -> SearchOutcome:
    """Return the reranked page with its hits shuffled, the same way whenever the session asks this query again.

    Every hit of a first page is then as often at one rank as at another, and the clicks by rank say how often each rank
    is looked at. A later page, one of more than `MAX_SHUFFLED` hits, one with a hit that must not move and one that is
    not reranked come as they are.
    """
    outcome = rerank(versions, call)
    page = outcome.page
    later = not page.hits or page.hits[0].rank != 1
    if later or not page.reranked or len(page.hits) > MAX_SHUFFLED or any(hit.kept for hit in page.hits):
        return outcome
    order = coins(call.session_id or "", call.query).permutation(len(page.hits))
    hits = tuple(structs.replace(page.hits[place], rank=rank) for rank, place in enumerate(order, 1))
    whys = tuple(page.explanations[place] for place in order) if page.explanations else ()
    return replace(outcome, page=replace(page, hits=hits, explanations=whys), randomised=True)


MODES: Mapping[str, SearchMode] = {
    "rerank": rerank,
    "explore": explore,
    "off": partial(rerank, off=Reason(ReasonKind.SWITCHED_OFF, "reranking is switched off for this request")),
    "control": partial(rerank, off=Reason(ReasonKind.CONTROL, "this session is of the control group")),
    "shadow": partial(rerank, off=Reason(ReasonKind.SHADOW, "the model is scored in the shadow")),
}
"""Modes of every service; routers add theirs to ``ServiceState.modes``."""
INTERLEAVE = "interleave"
"""The mode of a service with a challenger."""


def mode_of(settings: ServiceSettings, modes: Container[str], call: SearchCall) -> str:
    """Return the mode of a search: the request's wish, then the session's group, then how the service was started.

    Without a session nobody's lists are shuffled: the order of a query would be one and the same for all.
    """
    if call.off:
        return "off"
    if call.version is not None:
        return "rerank"
    if settings.shadow:
        return "shadow"
    if not in_share(call.session_id or call.query, settings.percent, settings.salt):
        return "control"
    if call.session_id and in_share(call.session_id, settings.explore, f"{settings.salt}\nexplore"):
        return "explore"
    return INTERLEAVE if INTERLEAVE in modes else "rerank"


def in_share(session: str, percent: float, salt: str) -> bool:
    """Return whether a session is among the ``percent`` of all sessions: the same answer for it every time."""
    digest = hashlib.blake2b(f"{salt}\n{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < percent / 100.0 * 2.0**64


MAX_WAITING = 32
"""Searches that may wait to be scored; the rest are counted and only logged as shown."""


class Shadow:
    """One thread that reranks what was answered in the engine's order, to see what reranking would have done.

    ``search`` carries out a search in the model's order, each within ``deadline_s`` seconds; ``log`` takes the row of
    ``ubi_queries``, with ``ssi_shadow_order`` where it could be scored: the shown places in the model's order, 0 for
    a document that was not shown.
    """

    def __init__(
        self,
        search: Callable[[SearchCall], RerankedPage],
        deadline_s: float,
        metrics: Metrics,
        log: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._search, self._deadline_s, self._metrics, self._log = search, deadline_s, metrics, log
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._waiting = 0

    def submit(self, call: SearchCall, row: Mapping[str, Any]) -> None:
        """Score a search later, or log it without where too many wait."""
        with self._lock:
            full = self._waiting >= MAX_WAITING
            if not full:
                self._waiting += 1
                self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="ssi-shadow")
        if full or self._pool is None:
            self._metrics.shadows.labels("skipped").inc()
            self._log(row)
            return
        scoring = self._pool.submit(self._score, call, row)
        scoring.add_done_callback(lambda scoring: self._log(row) if scoring.cancelled() else None)

    def _score(self, call: SearchCall, row: Mapping[str, Any]) -> None:
        result, query_id = "failed", row["query_id"]
        try:
            page = self._search(replace(call, deadline=Deadline(self._deadline_s), explain=False))
            result = "fallback" if page.fallback else "scored"
            shown, ids = row["query_response_hit_ids"], [hit.id for hit in page.hits]
            places = {name: place for place, name in enumerate(shown, 1)}
            if ids:
                order = " ".join(str(places.get(name, 0)) for name in ids)
                row = {**row, "query_attributes": {**row["query_attributes"], "ssi_shadow_order": order}}
            moved = sum(one != other for one, other in zip(shown, ids, strict=False))
            entry = {"query_id": query_id, "moved": moved, "of": len(shown), "result": result}
            _log.info("shadow", extra={"ssi": entry})
        except RerankerError as error:
            _log.warning("shadow", extra={"ssi": {"query_id": query_id, "error": type(error).__name__}})
        finally:
            with self._lock:
                self._waiting -= 1
            self._metrics.shadows.labels(result).inc()
            self._log(row)

    def close(self) -> None:
        """Log what waits only as shown."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


Key = TypeVar("Key")
LIVE, CHALLENGER = "A", "B"


def team_draft(
    first: Sequence[Key], second: Sequence[Key], size: int, rng: np.random.Generator
) -> list[tuple[Key, str]]:
    """Return at most ``size`` documents with the team that put each there.

    A team whose list is used up leaves the rest to the other; nothing of either list is lost before ``size`` is
    reached. One coin a round is drawn, whether it is needed or not, so that a longer list begins like a shorter one.

    ``first`` and ``second`` are the rankings, best first, of teams `LIVE` and `CHALLENGER`.
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
    """The mode: the live version against another one, named by its model id or the beginning of it.

    Both versions search, so a search costs the engine twice. Where either falls back, or both are one version, the
    live version's page is shown and nobody is credited.
    """

    challenger: str

    def __call__(self, versions: Versions, call: SearchCall) -> SearchOutcome:
        """Return the interleaved page."""
        live, other = versions.current, _version_of(versions, self.challenger)
        first, size = window_of(call.body or {})
        first, size = first if call.first is None else call.first, size if call.size is None else call.size
        pages = [
            serving.reranker.search(
                call.query,
                call.body,
                size=first + size,
                from_=0,
                explain=call.explain,
                deadline_ms=call.deadline.left_ms,
            )
            for serving in (live, other)
        ]
        if live.model_id == other.model_id or not all(page.reranked for page in pages):
            page, part = pages[0], slice(first, first + size)
            return SearchOutcome(replace(page, hits=page.hits[part], explanations=page.explanations[part]), live)
        hits = {LIVE: _by_key(pages[0]), CHALLENGER: _by_key(pages[1])}
        drafted = team_draft(
            list(hits[LIVE]), list(hits[CHALLENGER]), first + size, coins(call.session_id or "", call.query)
        )
        shown = [
            (structs.replace(hits[team][key][0], rank=rank), hits[team][key][1], team)
            for rank, (key, team) in enumerate(drafted, 1)
        ][first:]
        page = replace(
            pages[0],
            hits=tuple(hit for hit, _, _ in shown),
            explanations=tuple(why for _, why, _ in shown if why is not None),
        )
        return SearchOutcome(page, live, tuple(team for _, _, team in shown), (live.model_id, other.model_id))


def _by_key(page: RerankedPage) -> dict[tuple[str, str], tuple[RankedHit, Explanation | None]]:
    whys: Sequence[Explanation | None] = page.explanations or (None,) * len(page.hits)
    return {(hit.index, hit.id): (hit, why) for hit, why in zip(page.hits, whys, strict=True)}


RESAMPLES = 2_000
LEVEL = 0.05
_Z_OF_POWER = 1.959964 + 0.841621
"""Quantiles of the normal distribution: two-sided at `LEVEL`, and a power of .8."""


class TeamList(NamedTuple):
    """One shown list of an interleaving: model ids of teams `LIVE` and `CHALLENGER`, and the team of each document id.

    ``session`` is empty where it is not known: the list is then a session of its own.
    """

    session: str
    versions: tuple[str, ...]
    teams: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the clicks say of two versions.

    ``live`` and ``challenger`` are model ids; ``lists`` were shown, ``clicked_lists`` and ``sessions`` have a click;
    clicks are the credited ones, wins and ties are counted in sessions. ``preference`` is the share of sessions that
    the challenger wins, ties counted half (.5 is none), ``low`` to ``high`` its 95 % interval, resampling sessions,
    ``p`` the two-sided p of the exact sign test over sessions that are no ties.
    """

    live: str
    challenger: str
    lists: int
    clicked_lists: int
    sessions: int
    clicks_live: int
    clicks_challenger: int
    wins_live: int
    wins_challenger: int
    ties: int
    preference: float
    low: float
    high: float
    p: float

    @property
    def winner(self) -> str:
        """``challenger``, ``live``, or ``undecided`` where p is not below .05."""
        if self.p >= LEVEL:
            return "undecided"
        return "challenger" if self.wins_challenger > self.wins_live else "live"

    @property
    def sessions_needed(self) -> int | None:
        """Sessions with a click that show a preference as large as this one (p < .05) four times of five if it is real.

        n (z_.975 + z_.8)² / (4 m (P - 1/2)²), P the winner's share of the m of n sessions that are no ties, the usual
        normal approximation of the sign test; None where there is no preference, or a verdict.
        """
        decided, margin = self.wins_live + self.wins_challenger, abs(self.wins_challenger - self.wins_live)
        if self.winner != "undecided" or not margin:
            return None
        # 4 (P - 1/2)² = (margin / decided)²
        return math.ceil(_Z_OF_POWER**2 * decided / margin**2 * self.sessions)

    def sentence(self) -> str:
        """Return the verdict in one sentence, and of an undecided one how much more it needs."""
        numbers = (
            f"{self.wins_challenger} of {self.sessions} sessions for {self.challenger[:12]}, {self.wins_live} for "
            f"{self.live[:12]}, {self.ties} ties; preference {self.preference:.3f} [{self.low:.3f}, {self.high:.3f}], "
            f"p {'< .0001' if self.p < 0.0001 else f'= {self.p:.4f}'}"
        )
        if self.winner == "undecided":
            needed = self.sessions_needed
            more = "" if needed is None else f" A preference of this size needs about {needed:,} sessions with a click."
            return f"Undecided: {numbers}.{more}"
        better = self.challenger if self.winner == "challenger" else self.live
        return f"Version {better[:12]} ({self.winner}) is preferred: {numbers}."

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {**asdict(self), "winner": self.winner, "sessions_needed": self.sessions_needed}


def team_lists(rows: Iterable[Mapping[str, Any]]) -> dict[str, TeamList]:
    """Return the interleaved lists among rows of ``ubi_queries``, by query id; other rows are passed over."""
    lists: dict[str, TeamList] = {}
    for row in rows:
        attributes, ids = row.get("query_attributes"), row.get("query_response_hit_ids")
        if not isinstance(attributes, Mapping) or not isinstance(ids, list):
            continue
        teams, versions = (str(attributes.get(name, "")).split() for name in ("ssi_teams", "ssi_versions"))
        if len(versions) == 2 and len(teams) == len(ids):
            session = row.get("session_id") or attributes.get("session_id") or ""
            by_document = dict(zip(map(str, ids), teams, strict=True))
            lists[str(row.get("query_id"))] = TeamList(str(session), tuple(versions), by_document)
    return lists


def clicks_of(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return (query id, document id) of the clicks among rows of ``ubi_events``, each once."""
    clicks: set[tuple[str, str]] = set()
    for row in rows:
        attributes = row.get("event_attributes")
        shown = attributes.get("object") if isinstance(attributes, Mapping) else None
        if row.get("action_name") == "click" and isinstance(shown, Mapping) and shown.get("object_id") is not None:
            clicks.add((str(row.get("query_id")), str(shown["object_id"])))
    return clicks


def verdicts(
    lists: Mapping[str, TeamList], clicks: Iterable[tuple[str, str]], rng: np.random.Generator
) -> list[Verdict]:
    """Return the verdict of every pair of versions that were interleaved, the most clicked first.

    ``lists`` are by query id. ``clicks`` are (query id, document id); those of other lists, or of documents that were
    not shown, count for nobody. ``rng`` draws the sessions of the intervals.
    """
    credited: dict[tuple[str, ...], dict[str, list[int]]] = {}
    clicked: dict[tuple[str, ...], set[str]] = {}
    for query_id, document in sorted(set(clicks)):
        shown = lists.get(query_id)
        team = shown.teams.get(document) if shown else None
        if shown is None or team not in (LIVE, CHALLENGER):
            continue
        session = shown.session or f"list {query_id}"
        counts = credited.setdefault(shown.versions, {}).setdefault(session, [0, 0])
        counts[team == CHALLENGER] += 1
        clicked.setdefault(shown.versions, set()).add(query_id)
    n_lists = Counter(shown.versions for shown in lists.values())
    unsorted = [
        _verdict(versions, number, len(clicked.get(versions, ())), list(credited.get(versions, {}).values()), rng)
        for versions, number in sorted(n_lists.items())
    ]
    return sorted(unsorted, key=lambda verdict: -verdict.sessions)


def _verdict(
    versions: tuple[str, ...], n_lists: int, n_clicked: int, counts: Sequence[Sequence[int]], rng: np.random.Generator
) -> Verdict:
    from scipy import stats

    table = np.array(counts, dtype=np.int64).reshape(-1, 2)
    sign = np.sign(table[:, 1] - table[:, 0])
    wins, losses, n = int((sign > 0).sum()), int((sign < 0).sum()), len(sign)
    p = float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    shares = (sign + 1) / 2.0
    low, high = 0.0, 1.0
    if n:
        # A session is worth 0, one half or 1: how often each is drawn is all that a resample needs.
        drawn = rng.multinomial(n, np.array([losses, n - wins - losses, wins]) / n, RESAMPLES)
        low, high = (float(x) for x in np.quantile(drawn @ [0.0, 0.5, 1.0] / n, [0.025, 0.975]))
    return Verdict(
        live=versions[0],
        challenger=versions[1],
        lists=n_lists,
        clicked_lists=n_clicked,
        sessions=n,
        clicks_live=int(table[:, 0].sum()),
        clicks_challenger=int(table[:, 1].sum()),
        wins_live=losses,
        wins_challenger=wins,
        ties=n - wins - losses,
        preference=float(shares.mean()) if n else 0.5,
        low=low,
        high=high,
        p=p,
    )
