"""From impressions to weighted pairs in plain Python: the definition of the SQL steps after ``lists``."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from reranker.clicks.joining import Search
from reranker.clicks.pair_config import UNIT, PairConfig
from reranker.clicks.schema import Impression
from reranker.clicks.strategies import STRATEGIES

Key = tuple[str, str, str]
"""Query, better and worse document."""


@dataclass(slots=True)
class _Said:
    """How often, with which weights, in which visits and from which network a person stated a pair."""

    units: int = 0
    times: int = 0
    visits: set[str] = field(default_factory=set)
    network: str = ""


@dataclass(frozen=True, slots=True)
class Votes:
    """Weights in millionths by pair and person, each person's network, and the number of stated preferences."""

    units: dict[tuple[Key, str], int]
    networks: dict[tuple[Key, str], str]
    preferences: int


def preferences_of(impression: Impression, config: PairConfig) -> list[tuple[str, str]]:
    """Return what the configured strategy reads from one list."""
    strategy = STRATEGIES[config.strategy]
    return strategy.function(impression, **{name: getattr(config, name) for name in strategy.options})


def count_votes(lists: Iterable[Impression], searches: Mapping[str, Search], config: PairConfig) -> Votes:
    """Return each person's word on each pair.

    The weight is the mean over the impressions that state it, times the number of sessions with one, of which
    `PairConfig.user_cap` count at most.
    """
    said: dict[tuple[Key, str], _Said] = defaultdict(_Said)
    by_rank = config.rank_units()
    n_preferences = 0
    for one in lists:
        search = searches[one.query_id]
        ranks = {shown.document: shown.rank for shown in one.shown}
        for better, worse in preferences_of(one, config):
            vote = said[(one.query, better, worse), search.person]
            vote.units += by_rank[min(ranks[better], len(by_rank)) - 1]
            vote.times += 1
            vote.visits.add(search.visit)
            vote.network = max(vote.network, search.network)
            n_preferences += 1
    cap = float(config.user_cap or math.inf)
    units = {}
    for key, vote in said.items():
        sessions = len(vote.visits) if config.once_a_session else vote.times
        units[key] = math.floor(vote.units * min(float(sessions), cap) / vote.times)
    return Votes(units, {key: vote.network for key, vote in said.items()}, n_preferences)


def cap_votes(votes: Votes, config: PairConfig) -> dict[tuple[Key, str], int]:
    """Return the votes after the caps: above a cap, votes share its weight."""
    for_better = Counter((person, query, better) for (query, better, _), person in votes.units)
    for_worse = Counter((person, query, worse) for (query, _, worse), person in votes.units)
    of_person = Counter(person for _, person in votes.units)
    people: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for ((query, better, _), person), network in votes.networks.items():
        people[query, better, network].add(person)
    capped = {}
    for ((query, better, worse), person), units in votes.units.items():
        network = votes.networks[(query, better, worse), person]
        most = max(for_better[person, query, better], for_worse[person, query, worse])
        weight = units * _factor(config.document_cap, most) * _factor(config.person_cap, of_person[person])
        if network:
            weight *= _factor(config.network_cap, len(people[query, better, network]))
        capped[(query, better, worse), person] = math.floor(weight + 0.5)
    return capped


def sum_votes(capped: Mapping[tuple[Key, str], int]) -> dict[Key, tuple[int, int]]:
    """Return (people, weight in millionths) of each pair."""
    sums: dict[Key, tuple[int, int]] = {}
    for (key, _), units in capped.items():
        people, total = sums.get(key, (0, 0))
        sums[key] = (people + 1, total + units)
    return sums


def rate_lists(lists: Iterable[Impression], searches: Mapping[str, Search], config: PairConfig) -> dict[
    tuple[str, str], tuple[int, int, int]
]:  # fmt: skip
    """Return (people, clicks, examinations in millionths) of each query and document; each person counts once."""
    chances = [math.floor(one * UNIT + 0.5) for one in config.propensities or (1.0,)]
    seen: dict[tuple[str, str, str], tuple[bool, int]] = {}
    for one in lists:
        for shown in one.shown:
            key = (one.query, shown.document, searches[one.query_id].person)
            clicked, units = seen.get(key, (False, 0))
            seen[key] = (clicked or shown.clicked, max(units, chances[min(shown.rank, len(chances)) - 1]))
    rated: dict[tuple[str, str], tuple[int, int, int]] = {}
    for (query, document, _), (clicked, units) in seen.items():
        people, clicks, examined = rated.get((query, document), (0, 0, 0))
        rated[query, document] = (people + 1, clicks + clicked, examined + units)
    return rated


def _factor(cap: int, n: int) -> float:
    return min(1.0, float(cap) / n) if cap else 1.0
