"""Whether a new model goes live: both models on what people clicked, and on what judges said.

The clicks were made on the live model's order, which puts its own favourites where people look: counted plainly, a
click log finds every other model worse. A click at shown rank r therefore counts 1/p(r), p(r) the chance that a person
looks there (Joachims, Swaminathan, Schnabel 2017), and is asked at which rank either model would have put the document
among those shown. With w the weights and λ the discount, a model's value is ::

    RR   = sum w / rank       / sum w                      over clicks
    nDCG = sum w / log2(1 + rank) / sum of the same in the order of w, the best that is possible

Both are additive over clicks, so that weighting makes them unbiased (the reciprocal rank of the *first* click is not),
and both are divided once, over all impressions. Dividing within each impression would cancel the weights wherever there
is one click, and bring the bias back; not dividing would leave a figure in units of p(1), which no click log tells.

Documents never shown are unknown, and both models rank the shown ones only, on the ranks at which they were shown.
Documents of equal score share their places' mean discount, which is what a random order of them has in the long run.

Weights that are too steep favour any change whatever. Click rates by rank, taken for propensities, are the worst case:
they credit all of the live order's merit to where people look, so that it seems no better than a random order, and a
worse model with a little merit seems better. Two comparisons with a random order of each list (exact, by its mean)
guard against that: the new model must beat it, and so must the live one, or the weights are not believed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reranker.retrain.gate_input import GateConfig, JudgedQueries, ShownLists, shown_lists
from reranker.retrain.gate_lists import ClickedLists, click_weights
from reranker.retrain.gate_verdict import (
    Check,
    Measured,
    QueryChange,
    Verdict,
    above_random,
    believable,
    better,
    enough,
    kept,
    not_worse,
    query_changes,
)
from reranker.retrain.resampling import Values, ratio_interval


def decide(
    clicks: ShownLists | None,
    judged: JudgedQueries | None,
    propensities: Sequence[float] | None,
    rng: np.random.Generator,
    config: GateConfig | None = None,
) -> Verdict:
    """Return whether the candidate goes live in place of the live model.

    With clicks: enough people; the lower bound of the difference in nDCG above the margin, that in RR above
    - tolerance; the random-order checks; and judged queries, where given, not worse by more than the tolerance on
    average (they are the queries that the team chose to protect, not a sample). Without a single click: the lower
    bound of the judged difference above the margin.

    Parameters
    ----------
    clicks : ShownLists or None
        Of the newest slice, which neither model was trained on.
    judged : JudgedQueries or None
    propensities : sequence of float or None
        p(1), p(2), ..., up to a factor; the last one holds for deeper ranks. None: all clicks count alike, which
        favours the live model.
    rng : Generator
        Draws the resamples: people for the clicks, queries for the judgements.
    config : GateConfig, optional

    Raises
    ------
    ConfigError
        If propensities are not finite and positive.
    InputError
        If an impression shows two documents at one rank.

    Notes
    -----
    Source: Joachims, Swaminathan, Schnabel 2017 (weights); Agarwal et al. 2019 (additive measures); Swaminathan,
    Joachims 2015 (dividing by the sum of the weights).
    """
    settings = config or GateConfig()
    lists = ClickedLists(clicks, propensities, settings.max_weight) if clicks is not None else None
    if lists is None or not lists.n_clicks:
        return _by_judgements(judged, rng, settings)
    return _by_clicks(lists, judged, rng, settings)


def _by_clicks(
    lists: ClickedLists, judged: JudgedQueries | None, rng: np.random.Generator, config: GateConfig
) -> Verdict:
    ideal, weight = lists.ideal, lists.per_impression(lists.weight)
    gains = {name: lists.gains(getattr(lists, name), lists.discount) for name in ("live", "candidate")}
    # The mean over all orders of a list: equal scores share all its places.
    gains["random"] = lists.gains(np.zeros(len(lists.rank)), lists.discount)
    live_rr, new_rr = (lists.gains(scores, lists.reciprocal) for scores in (lists.live, lists.candidate))

    def compare(name: str, new: Values, old: Values, denominator: Values) -> Measured:
        interval = ratio_interval(
            new - old, denominator, lists.cluster, rng, confidence=config.confidence, resamples=config.resamples
        )
        total = denominator.sum()
        return Measured(name, float(old.sum() / total), float(new.sum() / total), interval)

    ndcg = compare("clicks nDCG", gains["candidate"], gains["live"], ideal)
    rr = compare("clicks RR", new_rr, live_rr, weight)
    new_over_random = compare("clicks nDCG, new over random", gains["candidate"], gains["random"], ideal)
    live_over_random = compare("clicks nDCG, live over random", *_unclipped(lists))
    checks = [enough(ndcg.difference, "people (or sessions) with clicks", config)]
    if checks[0].passed:
        checks += [better(ndcg, config), not_worse(rr, config)]
        checks += [above_random(new_over_random), believable(live_over_random, config)]
    measured = [ndcg, rr, new_over_random, live_over_random]
    losers, winners = query_changes(lists.query, gains["live"], gains["candidate"], ideal, config.n_changes)
    judged_losers: tuple[QueryChange, ...] = ()
    if judged is not None and len(judged.query):
        on_list, judged_losers, _ = _judged(judged, rng, config)
        measured.append(on_list)
        checks.append(kept(on_list, config))
    return Verdict(
        all(one.passed for one in checks), tuple(checks), tuple(measured), losers, winners, judged_losers,
        lists.n, lists.n_clicks, lists.n_gone,
    )  # fmt: skip


def _unclipped(lists: ClickedLists) -> tuple[Values, Values, Values]:
    """Return gains of the live and of a random order, and of the best, by the weights as they were given.

    Clipped, weights that are too steep by far may seem to leave the live order some merit.
    """
    whole = lists.whole_weight
    orders = (lists.live, np.zeros(len(lists.rank)), whole)
    live, random, ideal = (lists.gains(scores, lists.discount, whole) for scores in orders)
    return live, random, ideal


def _by_judgements(judged: JudgedQueries | None, rng: np.random.Generator, config: GateConfig) -> Verdict:
    if judged is None or not len(judged.query):
        nothing = Check("enough", False, "there is neither a click nor a judged query to compare the models on")
        return Verdict(False, (nothing,), ())
    on_list, losers, winners = _judged(judged, rng, config)
    checks = [enough(on_list.difference, "judged queries", config)]
    if checks[0].passed:
        checks.append(better(on_list, config))
    return Verdict(all(one.passed for one in checks), tuple(checks), (on_list,), losers, winners, losers)


def _judged(
    judged: JudgedQueries, rng: np.random.Generator, config: GateConfig
) -> tuple[Measured, tuple[QueryChange, ...], tuple[QueryChange, ...]]:
    n = len(judged.query)
    one = np.ones(n)
    interval = ratio_interval(
        judged.candidate - judged.live, one, np.arange(n), rng, confidence=config.confidence, resamples=config.resamples
    )
    changes = query_changes(judged.query, judged.live, judged.candidate, one, config.n_changes)
    measured = Measured("judgements", float(judged.live.mean()), float(judged.candidate.mean()), interval)
    return measured, *changes


__all__ = ["Check", "GateConfig", "JudgedQueries", "Measured", "QueryChange", "ShownLists", "Verdict", "click_weights",
           "decide", "shown_lists"]  # fmt: skip
