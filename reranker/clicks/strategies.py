"""How clicks on one shown list become preferences: pure functions, one a strategy, in one table.

Every function takes an `Impression` and returns (better, worse) document ids; the SQL text of the same name in
``reranker/clicks/sql`` does the same with whole logs, and a test holds the two together. Clicks too short to count
(`PairConfig.min_dwell_s`) are taken out of the list before, with their documents.

Nobody clicks what was not seen, so a click says most about the results above it, and strategies that compare with
results further down repeat the order in which they were shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from reranker.clicks.schema import Impression, ShownDocument

Preferences: TypeAlias = list[tuple[str, str]]
"""(better, worse) document ids of one shown list, no pair twice, in no particular order."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to read preferences from clicks: ``function(impression, **options)``, with a line for ``--help``.

    ``source`` is where the rule comes from; ``options`` are the `PairConfig` fields that the function takes, and
    default to the source's reading.
    """

    function: Callable[..., Preferences]
    source: str
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
    "Last" is the lowest in the list, which needs no clock; with ``last_by_time`` it is the latest click (the lower
    one of two at the same time; a click without a time is earlier than all others).

    Source: spec T14 (2), A28.
    """
    clicked = impression.clicked
    if not clicked:
        return []
    last = max(clicked, key=_by_time) if last_by_time else clicked[-1]
    return [(last.document, one.document) for one in impression.shown if one.rank < last.rank and not one.clicked]


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
    first = next((one for one in impression.shown if one.rank == 1), None)
    if first is None:
        return []
    others = [one.document for one in impression.shown if one.clicked != first.clicked]
    return [(first.document, other) if first.clicked else (other, first.document) for other in others]


def purchase_over_click(impression: Impression) -> Preferences:
    """Return bought documents over those put into the cart, and both over those only clicked.

    Both documents were looked at, so position says little here.

    Source: the grades of engagement of OpenSearch UBI's actions; peers.md section 5.3.
    """
    level = {one.document: 1 + one.carted + 2 * one.purchased for one in impression.clicked}
    grade = {document: min(value, 3) for document, value in level.items()}
    return [(better, worse) for better in grade for worse in grade if grade[better] > grade[worse]]


def _by_time(one: ShownDocument) -> tuple[int, int]:
    return (-1 if one.time is None else one.time, one.rank)


def _neighbours(impression: Impression, step: int) -> Preferences:
    by_rank = {one.rank: one for one in impression.shown}
    pairs = []
    for one in impression.clicked:
        other = by_rank.get(one.rank + step)
        if other is not None and not other.clicked:
            pairs.append((one.document, other.document))
    return pairs


DEFAULT_STRATEGY = "last-clicked-above-skipped"

STRATEGIES: dict[str, Strategy] = {
    DEFAULT_STRATEGY: Strategy(
        last_clicked_above_skipped, "spec T14 (2), A28", "the last clicked document over the unclicked ones above it",
        ("last_by_time",),
    ),
    "clicked-over-unclicked": Strategy(
        clicked_over_unclicked, "spec T14 (1), A28",
        "every clicked document over every unclicked one (--above-only: those above it)", ("above_only",),
    ),
    "clicked-over-previous": Strategy(
        clicked_over_previous, "spec T14 (3)", "each clicked document over the unclicked one directly above it"
    ),
    "clicked-over-next": Strategy(
        clicked_over_next, "spec T14 (4)", "each clicked document over the unclicked one directly below it"
    ),
    "ssi-position-one": Strategy(
        ssi_position_one, "spec T8, T14 (SSI's rule), A16",
        "the document at rank 1: over the unclicked ones if clicked, under the clicked ones if skipped",
    ),
    "purchase-over-click": Strategy(
        purchase_over_click, "peers.md section 5.3",
        "bought documents over those in the cart, both over those only clicked",
    ),
}  # fmt: skip
"""The strategies by name: what the command line, the configuration and the documentation offer."""
