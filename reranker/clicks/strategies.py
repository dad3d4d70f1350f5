"""How clicks on shown lists become preferences: the strategies, who is believed, and how much one person can say.

A strategy is a pure function that takes an `Impression` and returns (better, worse) document ids; the SQL text of the
same name in ``reranker/clicks/sql`` does the same with whole logs, and a test holds the two together. Clicks too short
to count (`PairConfig.min_dwell_s`) are taken out of the list before, with their documents.

Nobody clicks what was not seen, so a click says most about the results above it, and strategies that compare with
results further down repeat the order in which they were shown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from reranker.clicks.schema import Impression
from reranker.config import from_mapping
from reranker.errors import ConfigError

UNIT = 1_000_000
"""Weights are counted in millionths, as integers: sums are then the same in every order of adding."""
Preferences: TypeAlias = list[tuple[str, str]]
"""(better, worse) document ids of one shown list, no pair twice, in no particular order."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to read preferences from clicks: ``function(impression, **options)``, with a line for ``--help``.

    ``options`` are the `PairConfig` fields that the function takes.
    """

    function: Callable[..., Preferences]
    summary: str
    options: tuple[str, ...] = ()

    @property
    def sql(self) -> str:
        """Name of the SQL text in ``reranker/clicks/sql``, which is that of the function."""
        return self.function.__name__


def clicked_over_unclicked(impression: Impression, *, above_only: bool = False) -> Preferences:
    """Return every clicked document over every unclicked one: d_i in C, d_j not in C gives d_i > d_j.

    ``above_only`` keeps the pairs with j < i, as the click study that the course cites does; without it, documents
    that nobody looked at count as refused.

    Source: spec T14 (1), A28.
    """
    return [
        (better.document, worse.document)
        for better in impression.shown
        for worse in impression.shown
        if better.clicked and not worse.clicked and (worse.rank < better.rank or not above_only)
    ]


def last_clicked_above_skipped(impression: Impression, *, last_by_time: bool = False) -> Preferences:
    """Return the last clicked document over the unclicked ones above it: d_i last in C, j < i, d_j not in C.

    Whoever clicked d_i has most likely looked at what stands above it, and after the last click looked no further.
    With ``last_by_time``, "last" is the latest click, cart or purchase (the lower one of two at the same time; one
    without a time is earlier than all others), and the lowest in the list where no time is known, as A28 has it. The
    default is the lowest even where times are known: they come from clocks that nobody sets, and a log must give the
    same pairs whatever these show.

    Source: spec T14 (2), A28; the default differs from A28.
    """
    clicked = impression.clicked
    if not clicked:
        return []
    last = clicked[-1]
    if last_by_time:
        last = max(clicked, key=lambda shown: (-1 if shown.time is None else shown.time, shown.rank))
    above = (shown for shown in impression.shown if shown.rank < last.rank)
    return [(last.document, skipped.document) for skipped in above if not skipped.clicked]


def clicked_over_previous(impression: Impression) -> Preferences:
    """Return each clicked document over the unclicked one directly above: i >= 2, d_i in C, d_{i-1} not in C.

    Source: spec T14 (3).
    """
    return _neighbours(impression, -1)


def clicked_over_next(impression: Impression) -> Preferences:
    """Return each clicked document over the unclicked one directly below: d_i in C, d_{i+1} not in C.

    Source: spec T14 (4).
    """
    return _neighbours(impression, 1)


def ssi_position_one(impression: Impression) -> Preferences:
    """Return what is said of the document at rank 1, which everybody sees; lists without a click say nothing.

    Clicked, it is a positive and stands over the unclicked documents of the list, whatever else was clicked. Skipped
    while a lower one was clicked, it is a negative and stands under those that were clicked. All other clicks are
    discarded. The source draws the other document of a pair at random from all; here it is one of the same list,
    which was at least retrieved for the query.

    Source: spec T8, T14 (SSI's rule), A16.
    """
    first = next((shown for shown in impression.shown if shown.rank == 1), None)
    if first is None:
        return []
    others = [shown.document for shown in impression.shown if shown.clicked != first.clicked]
    return [(first.document, other) if first.clicked else (other, first.document) for other in others]


def purchase_over_click(impression: Impression) -> Preferences:
    """Return bought documents over those put into the cart, and both over those only clicked.

    Both documents were looked at, so position says little here.

    Source: the grades of engagement of OpenSearch UBI's actions; peers.md section 5.3.
    """
    grade = {shown.document: min(1 + shown.carted + 2 * shown.purchased, 3) for shown in impression.clicked}
    return [(better, worse) for better in grade for worse in grade if grade[better] > grade[worse]]


def _neighbours(impression: Impression, step: int) -> Preferences:
    by_rank = {shown.rank: shown for shown in impression.shown}
    pairs = []
    for better in impression.clicked:
        other = by_rank.get(better.rank + step)
        if other is not None and not other.clicked:
            pairs.append((better.document, other.document))
    return pairs


DEFAULT_STRATEGY = "last-clicked-above-skipped"

STRATEGIES: dict[str, Strategy] = {
    DEFAULT_STRATEGY: Strategy(
        last_clicked_above_skipped, "the last clicked document over the unclicked ones above it", ("last_by_time",)
    ),
    "clicked-over-unclicked": Strategy(
        clicked_over_unclicked, "every clicked document over every unclicked one (--above-only: those above it)",
        ("above_only",),
    ),
    "clicked-over-previous": Strategy(
        clicked_over_previous, "each clicked document over the unclicked one directly above it"
    ),
    "clicked-over-next": Strategy(clicked_over_next, "each clicked document over the unclicked one directly below it"),
    "ssi-position-one": Strategy(
        ssi_position_one,
        "the document at rank 1: over the unclicked ones if clicked, under the clicked ones if skipped",
    ),
    "purchase-over-click": Strategy(
        purchase_over_click, "bought documents over those in the cart, both over those only clicked"
    ),
}  # fmt: skip
"""The strategies by name: what the command line, the configuration and the documentation offer."""


@dataclass(frozen=True, slots=True)
class RobotRules:
    """Who is taken for a robot; all of their impressions are left out."""

    session_clicks: int = 100
    """Clicks in one session at most (on different results; repeated clicks on a result count once)."""
    day_clicks: int = 200
    """Clicks of one person in one day of UTC at most."""
    speed_clicks: int = 10
    """From so many clicks with a time in a session on, their mean distance is looked at."""
    min_gap_s: float = 1.5
    """Least mean distance of clicks in seconds."""
    repeat_clicks: int = 20
    """From so many clicks of a person on, their entropy is looked at."""
    min_entropy_bits: float = 1.0
    """Least entropy (of order 2, in bits) of the documents that a person clicked, over all queries; 1 is that of two
    documents clicked equally often."""

    def __post_init__(self) -> None:
        for name in ("session_clicks", "day_clicks", "speed_clicks", "repeat_clicks"):
            _check_whole(name, getattr(self, name), 1)
        for name in ("min_gap_s", "min_entropy_bits"):
            _check_number(name, getattr(self, name), 0.0)


@dataclass(frozen=True, slots=True)
class PairConfig:
    """How a click log becomes pairs.

    A *person* is the user where known, else the session, else the impression alone. Caps of 0 are off.
    """

    strategy: str = DEFAULT_STRATEGY
    """A name of `reranker.clicks.strategies.STRATEGIES`."""
    above_only: bool = False
    """Of clicked-over-unclicked: compare with documents further up only."""
    last_by_time: bool = False
    """Of last-clicked-above-skipped: the last click, cart or purchase by the clock instead of the lowest click in
    the list."""
    min_dwell_s: float = 0.0
    """Clicks known to be shorter, in seconds, do not count, and neither does skipping their documents."""
    session_gap_s: float = 1800.0
    """Impressions of a user without session ids belong to one session until there is a pause this long, in seconds."""
    once_a_session: bool = True
    """A session says a pair once, however often it was shown."""
    user_cap: int = 1
    """How often one person can say a pair at most, in sessions."""
    document_cap: int = 10
    """Pairs of one person for one document of a query (as the better or as the worse one) that count in full; more
    share that weight."""
    person_cap: int = 1000
    """Pairs of one person over all queries that count in full; more share that weight."""
    network_cap: int = 5
    """People of one network who prefer one document of a query that count in full; more share that weight."""
    min_users: int = 1
    """People who must have said a pair."""
    propensities: tuple[float, ...] | None = None
    """Probability, in (0, 1], that rank 1, 2, ... is examined; the last one holds for all further ranks. A pair weighs
    1 / propensity of the rank of its better document (inverse propensity scoring); None: 1."""
    clip: float = 10.0
    """The most that one pair of one person may weigh for its propensity."""
    robots: RobotRules | None = field(default_factory=RobotRules)
    """None: everybody is believed."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy is {self.strategy!r}: it must be one of {', '.join(STRATEGIES)}")
        for name in ("user_cap", "document_cap", "person_cap", "network_cap"):
            _check_whole(name, getattr(self, name), 0)
        _check_whole("min_users", self.min_users, 1)
        _check_number("min_dwell_s", self.min_dwell_s, 0.0)
        _check_number("session_gap_s", self.session_gap_s, 0.0)
        _check_number("clip", self.clip, 1.0)
        if self.propensities is not None:
            object.__setattr__(self, "propensities", tuple(map(float, self.propensities)))
            if not self.propensities or not all(0 < chance <= 1 for chance in self.propensities):
                message = f"propensities are {list(self.propensities)[:5]}: they must be one or more numbers in (0, 1]"
                raise ConfigError(message)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PairConfig:
        """Return the configuration of a table of its fields; raises `ConfigError` for an unknown or illegal one."""
        rules = values.get("robots", RobotRules())
        if isinstance(rules, Mapping):
            rules = from_mapping(RobotRules, rules, "robots")
        return from_mapping(cls, {**values, "robots": rules}, "pairs")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return dataclasses.asdict(self)

    def unprotected(self) -> PairConfig:
        """Return the same strategy believing everybody, as often as they click: what caps and rules are measured by."""
        return dataclasses.replace(
            self, once_a_session=False, user_cap=0, document_cap=0, person_cap=0, network_cap=0, min_users=1,
            robots=None,
        )  # fmt: skip

    def rank_units(self) -> tuple[int, ...]:
        """Return the weight in millionths of a pair whose better document stood at rank 1, 2, ...; the last holds on.

        min(1 / propensity, clip).
        """
        chances = self.propensities or (1.0,)
        return tuple(math.floor(min(1.0 / chance, self.clip) * UNIT + 0.5) for chance in chances)


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number of at least {least}", key=name)


def _check_number(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= least):  # type: ignore[arg-type,operator]
        raise ConfigError(f"{name} is {value!r}: it must be a finite number of at least {least:g}", key=name)
