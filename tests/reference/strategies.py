"""The readable definition of the click strategies: (better, worse) document ids of one shown list.

The SQL text of the same name (`reranker.clicks.pairs.STRATEGIES`) must state the same of whole logs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from reranker.clicks.schema import Impression

Preferences: TypeAlias = list[tuple[str, str]]
"""(better, worse) document ids of one shown list, no pair twice, in no particular order."""


def clicked_over_unclicked(impression: Impression) -> Preferences:
    """Return every clicked document over every unclicked one: d_i in C, d_j not in C gives d_i > d_j.

    Documents that nobody looked at count as refused.

    Source: spec T14 (1), A28.
    """
    return [
        (better.document, worse.document)
        for better in impression.shown
        for worse in impression.shown
        if better.clicked and not worse.clicked
    ]


def last_clicked_above_skipped(impression: Impression) -> Preferences:
    """Return the last clicked document over the unclicked ones above it: d_i last in C, j < i, d_j not in C.

    Whoever clicked d_i has most likely looked at what stands above it, and after the last click looked no further.
    "Last" is the lowest in the list even where times are known: they come from clocks that nobody sets, and a log must
    give the same pairs whatever these show.

    Source: spec T14 (2); A28 takes the latest click.
    """
    clicked = impression.clicked
    if not clicked:
        return []
    last = clicked[-1]
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


FUNCTIONS: dict[str, Callable[..., Preferences]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        last_clicked_above_skipped,
        clicked_over_unclicked,
        clicked_over_previous,
        clicked_over_next,
        ssi_position_one,
        purchase_over_click,
    )
}
"""The functions by the names of `reranker.clicks.pairs.STRATEGIES`; each takes the options named there."""
