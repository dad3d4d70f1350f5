"""Random click logs with every oddity that the steps have a rule for, small enough for collisions of all kinds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from reranker.clicks.pairs import STRATEGIES, PairConfig, RobotRules

Rows = list[dict[str, Any]]
Range = tuple[int | None, int | None]
_MINUTE = 60_000
_DOCUMENTS = ["", *"abcdefg", "é", "𝄞 x", "it's"]
_LISTED = "abcdefg"
_POOLS: dict[str, list[Any]] = {
    "query_id": ["", *(f"q{n}" for n in range(30))],
    "query": ["", "l", "la", "lap", "LAP ", "shoé", "SHOÉ", '"鞋" 𝄞', '"鞋"\u3000 𝄞', "'; --", "$x"],
    "session": [*[""] * 9, "s1", "s2", "s3", "s4"],
    "user": [*[""] * 6, "u1", "u2", "u3", "u4"],
    "network": ["", "n1", "n2"],
    "time": [None, *(1_790_000_000_000 + n * 15 * _MINUTE for n in range(40))],
    "application": ["", "shop", "intranet"],
    "agent": [""] * 300 + ["crawler"],
    "randomised": [False, False, True],
    "position": [None, *range(10)],
    "document": _DOCUMENTS,
    "action": ["click"] * 5 + ["impression"] * 3 + ["add_to_cart", "purchase", "watch"],
    "ordinal": [None, *range(-1, 14)],
    "dwell": [None, 0.0, 1.5, 30.0, 31.0],
}
_QUERY = ("query_id", "query", "session", "user", "network", "time", "application", "agent", "randomised")
_HIT = ("query_id", "position", "document")
_EVENT = (
    "query_id",
    "action",
    "document",
    "ordinal",
    "time",
    "dwell",
    "session",
    "user",
    "network",
    "query",
    "application",
    "agent",
)
_CAPS = [0, 1, 2, 3]
_RULES: dict[str, list[Any]] = {
    "session_clicks": [2, 8, 99],
    "day_clicks": [3, 99],
    "speed_clicks": [2, 3],
    "min_gap_s": [0.0, 900.0, 9000.0],
    "repeat_clicks": [2, 3, 4],
    "min_entropy_bits": [0.0, 0.5, 1.0, 1.5],
}
_CONFIG: dict[str, list[Any]] = {
    "strategy": list(STRATEGIES),
    "min_dwell_s": [0.0, 2.0, 30.5],
    "session_gap_s": [0.0, 900.0, 1800.0],
    "once_a_session": [False, True],
    "user_cap": _CAPS,
    "document_cap": _CAPS,
    "person_cap": _CAPS,
    "network_cap": _CAPS,
    "min_users": [1, 1, 2],
    "clip": [1.0, 3.0, 10.0],
    "propensities": [None, (1.0, 0.7, 0.3), (0.9, 1 / 3, 0.07, 0.05, 0.01)],
}


@dataclass(frozen=True)
class Tables:
    """The rows of a log."""

    queries: Rows
    hits: Rows
    events: Rows


def tables(choice: Callable[[list[Any]], Any], most: int = 30, n_lists: int = 12) -> Tables:
    """Return a log: whole lists with clicks, so that strategies have enough to work on, and odd rows of all kinds."""

    def row(names: tuple[str, ...], **given: Any) -> dict[str, Any]:
        return {name: given.get(name, choice(_POOLS[name]) if name not in given else None) for name in names}

    numbers = list(range(n_lists))
    queries = [row(_QUERY, query_id=f"q{number}") for number in numbers if choice([True, True, False])]
    hits, events = [], []
    for number in numbers:
        start = choice(list(range(7)))
        order = _LISTED[start:] + _LISTED[:start]
        hits += [{"query_id": f"q{number}", "position": n, "document": name} for n, name in enumerate(order, start=1)]
        if choice([True, True, False]):
            rank = choice(list(range(1, 8)))
            clicked = {"query_id": f"q{number}", "document": order[rank - 1], "ordinal": rank + choice([0, 0, 10])}
            events.append(row(_EVENT, action="click", **clicked))
    for names, target in ((_QUERY, queries), (_HIT, hits), (_EVENT, events)):
        target += [row(names) for _ in range(choice(list(range(most))))]
    return Tables(queries, hits, events)


def config(choice: Callable[[list[Any]], Any], **given: Any) -> PairConfig:
    """Return a configuration in which every number is small enough to matter."""
    values = {name: choice(pool) for name, pool in _CONFIG.items()}
    rules = RobotRules(**{name: choice(pool) for name, pool in _RULES.items()}) if choice([True, True, False]) else None
    return PairConfig(**{**values, "robots": rules, **given})


def time_range(choice: Callable[[list[Any]], Any]) -> Range:
    """Return since and until, mostly without limit."""
    return choice([None, None, *_POOLS["time"][1::5]]), choice([None, None, *_POOLS["time"][1::5]])


def of_seed(seed: int) -> Callable[[list[Any]], Any]:
    """Return a way to choose from a pool that is fixed by a number."""
    return random.Random(seed).choice


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Tables, PairConfig, Range]:
    """Draw a log, a configuration and a range of time."""

    def choice(pool: list[Any]) -> Any:
        return draw(st.sampled_from(pool))

    return tables(choice, most=8, n_lists=5), config(choice), time_range(choice)
