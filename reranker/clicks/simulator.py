"""Logs of simulated users whose behaviour is known, so that what is learned from logs can be compared with the truth.

A document is clicked if it is examined and attracts: P(click | examined) is its attraction. Users are

- `PositionBased`: examine rank k with probability p_k, for any document there (Richardson, Dominowska, Ragno 2007).
- `Cascade`: go down the list and stop at the first click (Craswell, Zoeter, Taylor, Ramsey 2008).
- `DynamicBayesian`: go down the list, may be satisfied by a click, and may give up at any rank (Chapelle, Zhang 2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from reranker.arrays import Bool, Float64, Int64
from reranker.clicks.schema import CLICK, DAY_MS, IMPRESSION, TABLES, Impression, ShownDocument
from reranker.errors import ConfigError, InputError, ShapeMismatch


class ClickModel(Protocol):
    """Model of the examination and clicks of a result list."""

    def examine(self, attraction: Float64, rng: np.random.Generator) -> tuple[Bool, Bool]:
        """Return (examined, clicked), (n, k) each, for n lists of k documents; attraction is P(click | examined)."""


@dataclass(frozen=True)
class PositionBased:
    """Examines rank k with probability ``examination[k - 1]``, independently of everything else.

    Raises
    ------
    ConfigError
        For a probability outside of (0, 1].
    """

    examination: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.examination or not all(0 < p <= 1 for p in self.examination):
            raise ConfigError(f"examination is {self.examination}: give one probability in (0, 1] per rank")

    @classmethod
    def power(cls, n_ranks: int, eta: float) -> PositionBased:
        """Return p_k = k**-eta (Joachims, Swaminathan, Schnabel 2017); eta = 0 means no bias, 2 a strong one."""
        return cls(tuple(float(rank) ** -eta for rank in range(1, n_ranks + 1)))

    def examine(self, attraction: Float64, rng: np.random.Generator) -> tuple[Bool, Bool]:
        """Return (examined, clicked), (n, k) each."""
        n, k = attraction.shape
        if k > len(self.examination):
            raise ShapeMismatch(f"lists of {k} documents and examination for {len(self.examination)} ranks: give {k}")
        looked = rng.random((n, k)) < np.array(self.examination[:k])
        return looked, looked & (rng.random((n, k)) < attraction)


@dataclass(frozen=True)
class Cascade:
    """Looks at one document after the other and stops at the first click."""

    def examine(self, attraction: Float64, rng: np.random.Generator) -> tuple[Bool, Bool]:
        """Return (looked at, clicked), both (n, k); at most one click a list."""
        return DynamicBayesian(satisfaction=1.0, continuation=1.0).examine(attraction, rng)


@dataclass(frozen=True)
class DynamicBayesian:
    """Goes down the list: after a click stops with ``satisfaction``, else goes on with ``continuation``.

    Satisfaction 1 and continuation 1 make it the cascade.

    Raises
    ------
    ConfigError
        For a probability outside of 0 to 1.
    """

    satisfaction: float = 0.5
    continuation: float = 0.9

    def __post_init__(self) -> None:
        for name in ("satisfaction", "continuation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be a probability from 0 to 1")

    def examine(self, attraction: Float64, rng: np.random.Generator) -> tuple[Bool, Bool]:
        """Return (looked at, clicked), both (n, k)."""
        n, k = attraction.shape
        looked, clicked = np.zeros((n, k), dtype=bool), np.zeros((n, k), dtype=bool)
        going = np.ones(n, dtype=bool)
        for rank in range(k):
            looked[:, rank] = going
            clicked[:, rank] = going & (rng.random(n) < attraction[:, rank])
            satisfied = clicked[:, rank] & (rng.random(n) < self.satisfaction)
            going = going & ~satisfied & (rng.random(n) < self.continuation)
        return looked, clicked


EMPTY = -1
"""Marks the end of a list that is shorter than the longest."""

START_MS = 1_767_225_600_000
"""2026-01-01 00:00 UTC, the start of simulated logs."""


@dataclass(frozen=True)
class LogPlan:
    """Size, users and period of a simulated log."""

    impressions: int
    users: int | None = None
    """Number of users, drawn uniformly and with one session each; None: a new user for each impression."""
    popularity: float = 0.0
    """The probability of query i is proportional to (i + 1)**-popularity; 0: uniform."""
    randomised: float = 0.0
    """Share of impressions whose order is shuffled; they are marked as randomised."""
    days: float = 30.0
    """Length of the log in days; times are uniform."""

    def __post_init__(self) -> None:
        if self.impressions < 1 or (self.users is not None and self.users < 1):
            raise ConfigError(f"{self.impressions} impressions of {self.users} users: give at least 1 of each")
        if not 0 <= self.randomised <= 1 or self.popularity < 0 or self.days <= 0:
            raise ConfigError(
                f"randomised is {self.randomised}, popularity {self.popularity}, days {self.days}: randomised is a "
                f"share from 0 to 1, popularity at least 0, days above 0"
            )


@dataclass(frozen=True)
class SimulatedLog:
    """A log with its truth, as arrays over n impressions of lists of at most k documents; ordered by time."""

    query: Int64
    """Number of the query, (n,) int64."""
    shown: Int64
    """Numbers of the documents by rank, (n, k) int64; -1 after the end of a shorter list."""
    looked: Bool
    clicked: Bool
    """Which documents were examined (the truth, which real logs do not have) and which were clicked, (n, k) bool."""
    user: Int64
    time: Int64
    """Number of the user, and milliseconds since 1970, (n,) int64 each."""
    randomised: Bool

    def __len__(self) -> int:
        """Return the number of impressions."""
        return len(self.query)

    @property
    def examination(self) -> Float64:
        """Share of the documents at each rank that were examined, divided by that of rank 1; (k,)."""
        there = self.shown != EMPTY
        share = (self.looked & there).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        truth: Float64 = share / share[0]
        return truth

    @property
    def click_rates(self) -> Float64:
        """Share of the documents at each rank that were clicked, (k,)."""
        rates: Float64 = self.clicked.sum(axis=0) / np.maximum((self.shown != EMPTY).sum(axis=0), 1)
        return rates

    def impressions(self, queries: Sequence[str], documents: Sequence[str]) -> Iterator[Impression]:
        """Yield the log as `Impression` in its order; ``queries`` are texts and ``documents`` ids, by number."""
        for row in range(len(self)):
            length = int((self.shown[row] != EMPTY).sum())
            time = int(self.time[row])
            shown = tuple(
                ShownDocument(documents[document], rank, clicked, time=time + 1000 * rank if clicked else None)
                for rank, document, clicked in zip(
                    range(1, length + 1), self.shown[row].tolist(), self.clicked[row].tolist(), strict=False
                )
            )
            user = f"u{int(self.user[row])}"
            yield Impression(
                f"q{row}",
                queries[int(self.query[row])],
                shown,
                session=f"s{user}",
                user=user,
                time=time,
                randomised=bool(self.randomised[row]),
            )


def simulate(
    rankings: npt.ArrayLike,
    attraction: npt.ArrayLike,
    model: ClickModel,
    plan: LogPlan,
    rng: np.random.Generator,
) -> SimulatedLog:
    """Return a log of users who behave according to a click model.

    Parameters
    ----------
    rankings : (n_queries, k) integers
        Ranking of each query in production: document numbers by rank, -1 after the end of a shorter list.
    attraction : (n_queries, k) floats
        P(click | examined) of those documents, from 0 to 1. See `attraction_of`.
    rng : Generator
        The only source of random numbers: equal seeds give equal logs.

    Raises
    ------
    ShapeMismatch
        If the two arrays differ in shape.
    InputError
        For an attraction outside of 0 to 1, or a document after the end of its list.
    """
    shown = np.asarray(rankings, dtype=np.int64)
    attracts = np.asarray(attraction, dtype=np.float64)
    _check(shown, attracts)
    n_queries, n = len(shown), plan.impressions
    chances = np.arange(1, n_queries + 1, dtype=np.float64) ** -plan.popularity
    query = rng.choice(n_queries, size=n, p=chances / chances.sum())
    shuffled = rng.random(n) < plan.randomised
    lists, attracts = shown[query], np.where(shown == EMPTY, 0.0, attracts)[query]
    if shuffled.any():
        # Documents stay in front, so that the end of a list stays its end.
        keys = np.where(lists[shuffled] == EMPTY, 2.0, rng.random((int(shuffled.sum()), shown.shape[1])))
        order = np.argsort(keys, axis=1)
        lists[shuffled] = np.take_along_axis(lists[shuffled], order, axis=1)
        attracts[shuffled] = np.take_along_axis(attracts[shuffled], order, axis=1)
    looked, clicked = model.examine(attracts, rng)
    user = np.arange(n, dtype=np.int64) if plan.users is None else rng.integers(plan.users, size=n)
    time = np.sort(START_MS + (rng.random(n) * plan.days * DAY_MS).astype(np.int64))
    return SimulatedLog(query.astype(np.int64), lists, looked & (lists != EMPTY), clicked, user, time, shuffled)


def attraction_of(relevant: npt.ArrayLike, *, of_relevant: float = 1.0, of_others: float = 0.1) -> Float64:
    """Return P(click | examined): ``of_relevant`` for relevant documents, ``of_others`` for others (accidental clicks).

    Source: Joachims, Swaminathan, Schnabel 2017, section 6, where they are 1 and 0.1.
    """
    return np.where(np.asarray(relevant, dtype=bool), of_relevant, of_others)


STEEPNESS = 0.8
"""Exponent of the examination of position-based users in a simulated week."""
SHUFFLED = 0.1
"""Share of the pages of a simulated week in random order: enough to estimate the propensities."""
DAYS = 7
POPULARITY = 0.8
"""Query number i (from 0) is asked in proportion to (i + 1)**-0.8."""
LEAST_ATTRACTION, MOST_ATTRACTION = 0.05, 0.8
"""Attraction of documents without a grade above 0, and of those with the highest grade."""
APPEAL = (0.8, 2.5)
"""Parameters of the beta distribution from which appeals are drawn."""
DISCOUNTED = 10
"""Number of ranks that count for `ResultPages.true_ndcg`."""


def week_of(impressions: int, people: int) -> LogPlan:
    """Return the plan of a simulated week."""
    return LogPlan(impressions, people, POPULARITY, SHUFFLED, DAYS)


@dataclass(frozen=True)
class ResultPages:
    """The result list of each query, in the order in which a site shows it."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    """Ids of the documents, by number."""
    rankings: Int64
    """Numbers of the documents by rank, (n_queries, k) int64; -1 after the end of a shorter list."""

    @classmethod
    def of(cls, lists: Mapping[str, Sequence[str]]) -> ResultPages:
        """Return the lists of query text -> document ids, best first."""
        numbers: dict[str, int] = {}
        rankings = np.full((len(lists), max(map(len, lists.values()), default=0)), EMPTY, dtype=np.int64)
        for row, shown in enumerate(lists.values()):
            rankings[row, : len(shown)] = [numbers.setdefault(one, len(numbers)) for one in shown]
        return cls(tuple(lists), tuple(numbers), rankings)

    def attraction_of_grades(self, grades: Mapping[str, Mapping[str, float]]) -> Float64:
        """Return the attraction by judgments (query text -> document id -> grade), (n_queries, k).

        It is 0.05 without a grade above 0, 0.8 with the highest grade of all, and linear in the grade between them.

        Raises `InputError` if no shown document has a grade above 0.
        """
        found = np.zeros(self.rankings.shape)
        for row, query in enumerate(self.queries):
            judged = grades.get(query, {})
            for rank, document in enumerate(self.list_of(row)):
                found[row, rank] = max(judged.get(document, 0.0), 0.0)
        highest = max((grade for of_query in grades.values() for grade in of_query.values()), default=0.0)
        if not found.any():
            raise InputError(
                "no judgment with a grade above 0 is of a shown document, so all documents would attract equally: "
                "give judgments of documents that these queries find, or none"
            )
        return LEAST_ATTRACTION + (MOST_ATTRACTION - LEAST_ATTRACTION) * found / highest

    def drawn_attraction(self, rng: np.random.Generator) -> Float64:
        """Return an appeal for each document of each list, (n_queries, k), drawn from Beta(0.8, 2.5)."""
        return rng.beta(*APPEAL, size=self.rankings.shape)

    def list_of(self, row: int) -> list[str]:
        """Return the ids of the list of a query, best first."""
        return [self.documents[one] for one in self.rankings[row].tolist() if one != EMPTY]

    def ndcg_of_each(self, attraction: Float64) -> Float64:
        """Return nDCG@10 of each list, (n_queries,), where the gain of a document is its attraction.

        The best order is that of the shown documents. A list without documents has NaN.
        """
        gains = np.where(self.rankings == EMPTY, 0.0, attraction)
        best = -np.sort(-gains, axis=1)[:, :DISCOUNTED]
        discount = 1.0 / np.log2(np.arange(2, best.shape[1] + 2))
        highest = best @ discount
        values: Float64 = gains[:, :DISCOUNTED] @ discount / np.where(highest > 0, highest, np.nan)
        return values

    def true_ndcg(self, attraction: Float64, asked: npt.ArrayLike) -> float:
        """Return the mean of `ndcg_of_each`, where a query counts as often as it was asked, ``asked`` (n_queries,)."""
        values = self.ndcg_of_each(attraction)
        weights = np.where(np.isnan(values), 0.0, np.asarray(asked, dtype=np.float64))
        return float(np.nan_to_num(values) @ weights / weights.sum())

    def judgements(self, attraction: Float64) -> Iterator[tuple[int, str, float]]:
        """Yield (number of the query, document id, attraction rounded to two digits) of each shown document."""
        for row in range(len(self.queries)):
            for document, grade in zip(self.list_of(row), attraction[row].tolist(), strict=False):
                yield row, document, round(grade, 2)


def tables_of(
    log: SimulatedLog, queries: Sequence[str], documents: Sequence[str], *, impressions: bool = True
) -> dict[str, dict[str, list[Any]]]:
    """Return the log as the tables of `reranker.clicks.schema`, table -> column -> values.

    Hits stand in ``hits``; events are the clicks and, unless ``impressions`` is False, one ``impression`` a shown
    document (ordinal = rank).
    """
    rows, ranks = np.nonzero(log.shown != EMPTY)
    names = [documents[one] for one in log.shown[rows, ranks].tolist()]
    ids = [f"q{row}" for row in range(len(log))]
    of_hit = [ids[row] for row in rows.tolist()]
    users = [f"u{one}" for one in log.user.tolist()]
    texts = [queries[one] for one in log.query.tolist()]
    there: dict[str, list[Any]] = {
        "query_id": ids,
        "query": texts,
        "session": [f"s{one}" for one in users],
        "user": users,
        "time": log.time.tolist(),
        "randomised": log.randomised.tolist(),
    }
    clicks = np.flatnonzero(log.clicked[rows, ranks])
    seen = np.arange(len(rows)) if impressions else np.arange(0)
    chosen = np.concatenate([seen, clicks])
    owner, ordinal = rows[chosen], ranks[chosen] + 1
    is_click = np.arange(len(chosen)) >= len(seen)
    who = [users[row] for row in owner.tolist()]
    events: dict[str, list[Any]] = {
        "query_id": [ids[row] for row in owner.tolist()],
        "action": [CLICK if one else IMPRESSION for one in is_click.tolist()],
        "document": [names[one] for one in chosen.tolist()],
        "ordinal": ordinal.tolist(),
        "time": (log.time[owner] + np.where(is_click, 1000 * ordinal, 0)).tolist(),
        "session": [f"s{one}" for one in who],
        "user": who,
        "query": [texts[row] for row in owner.tolist()],
    }
    hits: dict[str, list[Any]] = {"query_id": of_hit, "position": (ranks + 1).tolist(), "document": names}
    return {
        "queries": _filled("queries", there, len(log)),
        "hits": _filled("hits", hits, len(rows)),
        "events": _filled("events", events, len(chosen)),
    }


def _filled(table: str, columns: dict[str, list[Any]], n: int) -> dict[str, list[Any]]:
    """Return all columns of a table in order, those not given being empty."""
    empty = {"string": "", "bool": False}
    return {name: columns.get(name, [empty.get(kind)] * n) for name, kind in TABLES[table].items()}


def _check(shown: Int64, attraction: Float64) -> None:
    if shown.ndim != 2 or shown.shape != attraction.shape or not shown.size:
        raise ShapeMismatch(
            f"rankings of shape {shown.shape} and attraction of shape {attraction.shape}: give both as (queries, ranks)"
        )
    if not (np.isfinite(attraction) & (attraction >= 0) & (attraction <= 1)).all():
        raise InputError("attraction holds a value that is not a probability: give values from 0 to 1")
    empty = shown == EMPTY
    if (empty[:, :-1] & ~empty[:, 1:]).any():
        raise InputError("a ranking has a document after its end: put -1 only behind the last document")
