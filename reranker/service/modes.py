"""Search modes (rerank, explore, off, control, shadow, interleave) and the evaluation of interleaved clicks.

Team-draft interleaving combines the rankings of two versions in one list, and the clicks on it show which version is
better. In each round both versions pick their best document that is not yet in the list; a coin decides which one picks
first. A click counts for the version that picked the document, so that the better ranking gets more clicks regardless
of position. The verdict counts sessions, since clicks of one visitor are not independent. A session is won by the
version with more clicked documents (a document clicked twice in one list counts once); otherwise it is a tie.

Source: Radlinski, Kurup, Joachims: How does clickthrough data reflect retrieval quality? (2008), algorithm 2 and
section 5.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from reranker.deadline import Deadline
from reranker.engines.bodies import window_of
from reranker.engines.event_loop import in_thread
from reranker.errors import ArtifactError, InputError, RerankerError
from reranker.records import RankedHit, Reason, ReasonKind
from reranker.rerank import RerankedPage
from reranker.rerank.explain import Explanation
from reranker.service.http import ServiceError
from reranker.service.serving import Serving, Versions
from reranker.service.settings import ServiceSettings
from reranker.service.telemetry import Metrics
from reranker.text.query_keys import query_key

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SearchCall:
    """One validated search request."""

    query: str
    body: Mapping[str, Any] | None
    """Template to fill: the operator's own body, or that of a client of the engine. None searches the text fields."""
    size: int | None
    """Hits on the page; None uses the body's value."""
    first: int | None
    """Hits to skip; None uses the body's value."""
    explain: bool
    session_id: str | None
    client_id: str | None
    version: str | None
    """Version that the request names; None is the live one."""
    off: bool
    """Whether the request asks for no reranking."""
    deadline: Deadline

    @property
    def page(self) -> tuple[int, int]:
        """Hits to skip, and hits on the page."""
        first, size = window_of(self.body or {})
        return first if self.first is None else self.first, size if self.size is None else self.size


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """Result of a search in one of the modes."""

    page: RerankedPage
    serving: Serving
    """The version that ranked the page."""
    teams: tuple[str, ...] = ()
    """Team that picked each hit; empty if the page was not interleaved."""
    versions: tuple[str, ...] = ()
    """Model ids of the teams; empty if the page was not interleaved."""
    randomised: bool = False
    """Whether the page was shuffled."""


SearchMode = Callable[[Versions, SearchCall], SearchOutcome]
"""Runs a search within its deadline. Raises `EngineError` if the first stage fails."""


def _version_of(versions: Versions, model_id: str | None) -> Serving:
    """Return the live version, or the named one, whose files may have to be read.

    Raises `ServiceError` 404 if the named version is unknown or cannot be loaded.
    """
    if model_id is None:
        return versions.current
    try:
        return in_thread(lambda: versions.get(model_id))
    except (ArtifactError, InputError, OSError) as error:
        _log.warning("version", extra={"ssi": {"result": "not served", "reason": type(error).__name__}})
        raise ServiceError(404, "the service has no loadable version with this id", kind="no_version") from error


def rerank(versions: Versions, call: SearchCall, off: Reason | None = None) -> SearchOutcome:
    """Return the page in the model's order, or in the engine's order if ``off`` gives a reason for it."""
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
"""Largest page, in hits, that is shuffled."""


def explore(versions: Versions, call: SearchCall) -> SearchOutcome:
    """Return the reranked page with its hits shuffled; the order is fixed for each pair of session and query.

    On a first page every hit is then equally likely at every rank, so that clicks by rank measure how often each rank
    is examined. Some pages are returned unshuffled: later pages, pages of more than `MAX_SHUFFLED` hits, pages with a
    hit that must keep its place, and pages that were not reranked.
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
    "control": partial(rerank, off=Reason(ReasonKind.CONTROL, "this session is in the control group")),
    "shadow": partial(rerank, off=Reason(ReasonKind.SHADOW, "the service runs in shadow mode")),
}
"""Modes of every service; service parts add theirs to ``ServiceState.modes``."""
INTERLEAVE = "interleave"
"""Mode of a service with a challenger."""


def mode_of(settings: ServiceSettings, modes: Container[str], call: SearchCall) -> str:
    """Return the mode of a search.

    Precedence: the request's own options, the session's group, the options that the service was started with. Searches
    without a session are never shuffled, since all of them would get the same order for a query.
    """
    if call.off:
        return "off"
    if call.version is not None:
        return "rerank"
    if settings.shadow:
        return "shadow"
    if not in_share(call.session_id or query_key(call.query), settings.percent):
        return "control"
    if call.session_id and in_share(call.session_id, settings.explore, EXPLORE_SALT):
        return "explore"
    return INTERLEAVE if INTERLEAVE in modes else "rerank"


EXPLORE_SALT: Final = "\nexplore"
"""Salt by which sessions are drawn for shuffled pages, so that they are others than those of ``percent``."""


def in_share(session: str, percent: float, salt: str = "") -> bool:
    """Return whether a session belongs to the ``percent`` share of sessions; deterministic for each session."""
    digest = hashlib.blake2b(f"{salt}\n{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < percent / 100.0 * 2.0**64


MAX_WAITING = 32
"""Searches that may wait to be scored in shadow mode; further ones are counted and logged only as shown."""


class Shadow:
    """Reranks searches answered in the engine's order, one after the other, to log what reranking would change.

    Parameters
    ----------
    search : Callable
        Runs a search in the model's order, with the rights of the context in which `submit` is called.
    deadline_s : float
        Seconds allowed for each of these searches.
    metrics : Metrics
        Counts the results.
    log : Callable
        Receives the row for ``ubi_queries``. If the search could be scored, the row has ``ssi_shadow_order``: the
        displayed ranks in the model's order, 0 for a document that was not shown.
    """

    def __init__(
        self,
        search: Callable[[SearchCall], Awaitable[RerankedPage]],
        deadline_s: float,
        metrics: Metrics,
        log: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._search, self._deadline_s, self._metrics, self._log = search, deadline_s, metrics, log
        self._turn = asyncio.Semaphore(1)
        self._unlogged: dict[asyncio.Task[Mapping[str, Any]], Mapping[str, Any]] = {}

    def submit(self, call: SearchCall, row: Mapping[str, Any]) -> None:
        """Queue a search for scoring, or log it unscored if too many are waiting."""
        if len(self._unlogged) >= MAX_WAITING:
            self._metrics.shadows.labels("skipped").inc()
            self._log(row)
            return
        task = asyncio.get_running_loop().create_task(self._score(call, row))
        self._unlogged[task] = row
        task.add_done_callback(self._ended)

    async def _score(self, call: SearchCall, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row with the order by the model; unchanged if the search cannot be scored."""
        async with self._turn:
            result, query_id = "failed", row["query_id"]
            try:
                page = await self._search(replace(call, deadline=Deadline(self._deadline_s), explain=False))
                result = "fallback" if page.fallback else "scored"
                shown, ids = row["query_response_hit_ids"], [hit.id for hit in page.hits]
                places = {name: place for place, name in enumerate(shown, 1)}
                if ids:
                    order = " ".join(str(places.get(name, 0)) for name in ids)
                    row = {**row, "query_attributes": {**row["query_attributes"], "ssi_shadow_order": order}}
                moved = sum(one != other for one, other in zip(shown, ids, strict=False))
                entry = {"query_id": query_id, "moved": moved, "of": len(shown), "result": result}
                _log.info("shadow", extra={"ssi": entry})
            except (RerankerError, ServiceError) as error:
                _log.warning("shadow", extra={"ssi": {"query_id": query_id, "error": type(error).__name__}})
            self._metrics.shadows.labels(result).inc()
            return row

    def _ended(self, task: asyncio.Task[Mapping[str, Any]]) -> None:
        """Log the row of a search, as shown if its scoring failed."""
        row = self._unlogged.pop(task, None)
        if row is None:  # `close` has logged it
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("shadow", extra={"ssi": {"error": type(error).__name__}}, exc_info=error)
        self._log(row if task.cancelled() or error is not None else task.result())

    def close(self) -> None:
        """Stop; log the waiting searches unscored."""
        for task in list(self._unlogged):
            task.cancel()
            self._log(self._unlogged.pop(task))


Key = TypeVar("Key")
LIVE, CHALLENGER = "A", "B"


def team_draft(
    first: Sequence[Key], second: Sequence[Key], size: int, rng: np.random.Generator
) -> list[tuple[Key, str]]:
    """Return at most ``size`` documents, each with the team that picked it.

    ``first`` and ``second`` are the rankings, best first, of the teams `LIVE` and `CHALLENGER`. When a team's ranking
    is exhausted, the other team picks the remaining documents. One coin is drawn per round even if it is not needed, so
    that a longer list starts like a shorter one.
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
    """Return the random generator of a session and query: every page of the same search draws the same coins.

    Upper or lower case and white space of the query do not matter, because clicks are counted without them.
    """
    text = f"{session}\n{query_key(query)}".encode("utf-8", "surrogatepass")
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"))


@dataclass(frozen=True, slots=True)
class Interleaving:
    """Search mode that interleaves the live version with a challenger.

    Both versions search, so each request costs two searches of the engine. If either version falls back, or both are
    the same version, the live version's page is returned and clicks on it count for neither.
    """

    challenger: str
    """Model id of the challenger, or a prefix of it."""

    def __call__(self, versions: Versions, call: SearchCall) -> SearchOutcome:
        """Return the interleaved page."""
        live, other = versions.current, _version_of(versions, self.challenger)
        first, size = call.page
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
            return SearchOutcome(pages[0].part(first, first + size), live)
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
"""z_.975 + z_.8: normal quantiles for a two-sided test at `LEVEL` with power .8."""


class TeamList(NamedTuple):
    """One displayed list of an interleaving experiment."""

    session: str
    """Empty if unknown: the list then counts as a session of its own."""
    versions: tuple[str, ...]
    """Model ids of the teams `LIVE` and `CHALLENGER`."""
    teams: Mapping[str, str]
    """Document id -> team that picked it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of an interleaving experiment between two versions."""

    live: str
    """Model id."""
    challenger: str
    """Model id."""
    lists: int
    """Interleaved lists displayed."""
    clicked_lists: int
    """Lists with at least one credited click."""
    sessions: int
    """Sessions with at least one credited click."""
    clicks_live: int
    """Clicks credited to the live version."""
    clicks_challenger: int
    """Clicks credited to the challenger."""
    wins_live: int
    """Sessions won by the live version."""
    wins_challenger: int
    """Sessions won by the challenger."""
    ties: int
    """Sessions with equally many clicks for both."""
    preference: float
    """Share of sessions that the challenger wins, ties counted half; .5 is no preference."""
    low: float
    """Lower end of the 95 % bootstrap interval of ``preference``, resampling sessions."""
    high: float
    """Upper end of that interval."""
    p: float
    """Two-sided p-value of the exact sign test over the sessions that are not ties."""

    @property
    def winner(self) -> str:
        """``challenger``, ``live``, or ``undecided`` if p is not below .05."""
        if self.p >= LEVEL:
            return "undecided"
        return "challenger" if self.wins_challenger > self.wins_live else "live"

    @property
    def sessions_needed(self) -> int | None:
        """Clicked sessions needed to detect a preference of this size (p < .05) with power .8; None if decided or zero.

        n (z_.975 + z_.8)² / (4 m (P - 1/2)²), the usual normal approximation of the sign test, where P is the winner's
        share of those m of the n sessions that are not ties.
        """
        decided, margin = self.wins_live + self.wins_challenger, abs(self.wins_challenger - self.wins_live)
        if self.winner != "undecided" or not margin:
            return None
        # 4 (P - 1/2)² = (margin / decided)²
        return math.ceil(_Z_OF_POWER**2 * decided / margin**2 * self.sessions)

    def sentence(self) -> str:
        """Return the verdict in one sentence; if undecided, with the number of sessions needed."""
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
    """Return the interleaved lists among rows of ``ubi_queries`` by query id; other rows are ignored."""
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
    """Return the distinct (query id, document id) pairs of the clicks among rows of ``ubi_events``."""
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
    """Return the verdict of every pair of interleaved versions, most sessions first.

    Parameters
    ----------
    lists : Mapping[str, TeamList]
        Query id -> displayed list.
    clicks : Iterable[tuple[str, str]]
        (query id, document id). Clicks on other lists, or on documents that were not displayed, are not credited.
    rng : numpy.random.Generator
        Resamples the sessions for the intervals.
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
        # A session is worth 0, 1/2 or 1, so the counts of these three values determine a resample.
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
