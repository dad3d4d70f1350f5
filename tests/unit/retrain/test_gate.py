"""The gate: values by hand, its checks one by one, and logs of known truth drawn from a live ranking."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reranker.clicks.schema import Impression, ShownDocument
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.retrain.gate import (
    GateVerdict,
    JudgedQueries,
    Measured,
    ShownLists,
    better,
    click_weights,
    decide,
    shown_lists,
)
from reranker.retrain.settings import GateConfig
from reranker.retrain.statistics import Interval
from tests.seeds import seeded_rng
from tests.unit.retrain.simulated import LOOKED_AT, Site, Values, log_of, ranks, site, true_ndcg

FEW = GateConfig(min_clusters=2, resamples=199)


def lists(*impressions: tuple[str, str, str, str]) -> ShownLists:
    """Return lists told as (query, user, shown documents in live order with clicked ones in capitals, new order)."""
    made: list[Impression] = []
    live: list[list[float]] = []
    new: list[list[float]] = []
    for query, user, shown, order in impressions:
        documents = tuple(ShownDocument(d.lower(), rank, d.isupper()) for rank, d in enumerate(shown, 1))
        made.append(Impression(f"{query}-{len(made)}", query, documents, user=user))
        live.append([float(-rank) for rank in range(len(shown))])
        new.append([float(-order.index(d)) for d in shown.lower()])
    return shown_lists(made, live, new)


def value(verdict: GateVerdict, name: str = "clicks nDCG") -> tuple[float, float, float]:
    found = next(one for one in verdict.measured if one.name == name)
    return found.live, found.candidate, found.difference.estimate


def run(
    shown: ShownLists | None, p: list[float] | None = None, config: GateConfig = FEW, **options: Any
) -> GateVerdict:
    return decide(shown, options.get("judged"), p, np.random.default_rng(0), config)


def test_values_by_hand() -> None:
    shown = lists(("one", "u", "aBc", "bac"), ("two", "v", "DeF", "edf"))
    verdict = run(shown, [1.0, 0.5, 0.25])
    # Weights: b 2; d 1, f 4. Discounts 1, 0.63093, 0.5.
    second = 1 / np.log2(3)
    ideal = 2 * 1 + (4 * 1 + 1 * second)
    live, new = 2 * second + (1 + 4 * 0.5), 2 * 1 + (second + 4 * 0.5)
    assert value(verdict) == pytest.approx((live / ideal, new / ideal, (new - live) / ideal))
    live_rr, new_rr = 2 / 2 + (1 + 4 / 3), 2 + (1 / 2 + 4 / 3)
    assert value(verdict, "clicks RR") == pytest.approx((live_rr / 7, new_rr / 7, (new_rr - live_rr) / 7))
    mean = (1 + second + 0.5) / 3
    assert value(verdict, "clicks nDCG, new over random")[0] == pytest.approx(7 * mean / ideal)
    assert value(verdict, "clicks nDCG, live over random") == pytest.approx(
        (7 * mean / ideal, live / ideal, (live - 7 * mean) / ideal)
    )
    assert [one.compared for one in verdict.measured] == [
        ("live", "new"),
        ("live", "new"),
        ("random", "new"),
        ("random", "live"),
    ]
    assert (verdict.n_impressions, verdict.n_clicks, verdict.n_gone) == (2, 3, 0)


def test_equal_scores_share_their_places() -> None:
    shown = lists(("q", "u", "aBc", "abc"), ("q", "v", "aBc", "abc"))
    flat = replace(shown, candidate=np.zeros(6))
    halves = replace(shown, candidate=np.array([1.0, 1.0, 0.0] * 2))
    second = 1 / np.log2(3)
    assert value(run(flat))[1] == pytest.approx((1 + second + 0.5) / 3)
    assert value(run(halves))[1] == pytest.approx((1 + second) / 2)
    # Neither side gains by being named first, or by the order of the rows.
    for tied in (flat, halves):
        swapped = replace(tied, live=tied.candidate, candidate=tied.live)
        assert value(run(swapped))[2] == pytest.approx(-value(run(tied))[2])


def test_an_order_is_on_the_ranks_that_were_shown() -> None:
    """The second page's documents change places among ranks 11 to 13."""
    page = Impression(
        "i", "q", (ShownDocument("a", 11), ShownDocument("b", 12, True), ShownDocument("c", 13)), user="u"
    )
    first = replace(page, query_id="j", user="v")
    shown = shown_lists([page, first], [[3.0, 2.0, 1.0]] * 2, [[1.0, 3.0, 2.0]] * 2)
    live, new, _ = value(run(shown, [1.0]), "clicks RR")
    assert (live, new) == pytest.approx((1 / 12, 1 / 11))


def test_lists_without_a_click_and_documents_that_are_gone_take_no_part() -> None:
    whole = lists(("q", "u", "aBc", "bca"), ("q", "v", "aBC", "bca"))
    with_others = lists(("q", "u", "aBc", "bca"), ("q", "w", "abc", "cba"), ("q", "v", "aBC", "bca"))
    assert value(run(with_others)) == value(run(whole))
    assert len(with_others.query) == 2
    # Without a document the others take their places on the ranks that are left.
    gone = replace(whole, live=whole.live.copy(), candidate=whole.candidate.copy())
    gone.live[0] = gone.candidate[0] = np.nan
    found = run(gone)
    assert found.n_gone == 1
    assert value(found, "clicks RR")[0] == pytest.approx((1 / 2 + 1 / 2 + 1 / 3) / 3)
    gone.live[1] = gone.candidate[1] = np.nan  # the only click of its list
    assert run(gone).n_impressions == 1


def test_weights_have_no_unit_and_are_clipped() -> None:
    rank = np.array([1, 2, 3, 9])
    np.testing.assert_allclose(click_weights(rank, [0.8, 0.4, 0.2], 10.0), [1, 2, 4, 4])
    np.testing.assert_allclose(click_weights(rank, [0.08, 0.04, 0.02], 10.0), [1, 2, 4, 4])
    np.testing.assert_allclose(click_weights(rank, [1.0, 0.5, 0.01], 5.0), [1, 2, 5, 5])
    np.testing.assert_allclose(click_weights(rank, None, 5.0), [1, 1, 1, 1])
    for wrong in ([], [1.0, 0.0], [1.0, -1.0], [np.nan], [np.inf, 1.0]):
        with pytest.raises(ConfigError, match="propensities are"):
            click_weights(rank, wrong, 10.0)


def test_people_are_users_else_sessions_else_alone() -> None:
    documents = (ShownDocument("a", 1), ShownDocument("b", 2, True))
    people = [("u", "s"), ("u", "t"), ("", "s"), ("", "s"), ("", ""), ("", "")]
    made = [Impression(str(i), "q", documents, session=s, user=u) for i, (u, s) in enumerate(people)]
    shown = shown_lists(made, [[2.0, 1.0]] * 6, [[1.0, 2.0]] * 6)
    assert shown.cluster == ("user u", "user u", "session s", "session s", "", "")
    assert run(shown).measured[0].difference.n_clusters == 4


def test_too_few_people_are_refused_with_the_number_needed() -> None:
    shown = lists(*[(f"q{i}", f"u{i}", "aB", "ba") for i in range(12)])
    verdict = run(shown, config=GateConfig(min_clusters=30))
    assert not verdict.promoted
    assert [one.name for one in verdict.checks] == ["enough"]
    assert "equivalent to 12.0 with equal weight" in verdict.reasons[0] and "about 30 like those" in verdict.reasons[0]
    # One person with nearly all clicks is not many people.
    heavy = lists(*[(f"q{i}", f"u{i}", "aB", "ba") for i in range(60)], *[("q", "busy", "aB", "ba")] * 600)
    verdict = run(heavy, config=GateConfig(min_clusters=30))
    assert not verdict.promoted
    assert "61 people" in verdict.reasons[0] and "equivalent to 1.2 " in verdict.reasons[0]


def test_a_model_that_gains_on_the_whole_and_moves_first_answers_down_is_refused() -> None:
    """Each loses a click at rank 1 to rank 2 and gains three from rank 10 to 4: more nDCG, less RR."""
    lost, gained = ("Abcdefghij", "bacdefghij"), ("abcdefghiJ", "abcjdefghi")
    shown = lists(*[(f"q{u}", f"u{u}", *each) for u in range(40) for each in (lost, gained, gained, gained)])
    verdict = run(shown)
    assert value(verdict)[2] > 0.01 and value(verdict, "clicks RR")[2] == pytest.approx((-0.5 + 3 * 0.15) / 4)
    assert [check.name for check in verdict.checks if not check.passed] == ["not worse"]
    assert not verdict.promoted and "allowed: a drop of at most 0.01" in verdict.reasons[0]
    assert run(shown, config=replace(FEW, tolerance=0.0126)).promoted


def test_a_model_that_is_better_and_below_a_random_order_is_refused() -> None:
    shown = lists(*[(f"q{u}", f"u{u}", "abcdE", "abced") for u in range(40)])
    verdict = run(shown, config=replace(FEW, measured_weights=True))
    checks = {check.name: check.passed for check in verdict.checks}
    assert list(checks) == ["enough", "better", "not worse", "above random", "believable"]
    assert checks["better"] and not checks["above random"] and not verdict.promoted
    at_random = replace(shown, candidate=np.zeros(len(shown.rank)))
    assert not run(at_random).checks[3].passed, "as good as random is not above it"


def test_one_person_cannot_carry_a_promotion() -> None:
    fair = [(f"q{i}", f"u{i}", "Ab", "ab") for i in range(200)]
    pushed = [(f"p{i}", "spammer", "aB", "ba") for i in range(60)]
    verdict = run(lists(*fair, *pushed), [1.0, 0.9], config=GateConfig(min_clusters=3, resamples=499))
    assert value(verdict)[2] > 0.05
    assert not verdict.promoted
    apart = run(lists(*fair, *[(q, f"u-{q}", s, o) for q, _, s, o in pushed]), [1.0, 0.9])
    assert apart.measured[0].difference.lower > 0, "as many people would have shown it"


def test_queries_that_lost_and_gained_most() -> None:
    shown = lists(
        *[("worse", f"a{i}", "Abc", "cba") for i in range(3)],
        *[("bad", f"b{i}", "Abc", "bac") for i in range(3)],
        *[("better", f"c{i}", "abC", "cab") for i in range(4)],
        ("same", "d", "Abc", "abc"),
    )
    verdict = run(shown)
    assert [(one.query, one.n_impressions) for one in verdict.losers] == [("worse", 3), ("bad", 3)]
    assert [one.query for one in verdict.winners] == ["better"]
    assert verdict.losers[0].live == pytest.approx(1.0) and verdict.losers[0].candidate == pytest.approx(0.5)
    total = sum(one.share for one in (*verdict.losers, *verdict.winners))
    assert total == pytest.approx(verdict.measured[0].difference.estimate)
    assert len(run(shown, config=replace(FEW, n_changes=1)).losers) == 1


def judged(rng: np.random.Generator, n: int, change: float, spread: float = 0.05) -> JudgedQueries:
    live = rng.uniform(0.3, 0.7, n)
    return JudgedQueries(tuple(f"j{i}" for i in range(n)), live, live + rng.normal(change, spread, n))


def test_judged_queries_may_not_fall_by_more_than_the_tolerance() -> None:
    rng = seeded_rng(5)
    there = site(rng, 400)
    shown = log_of(there, there.model(rng, 2.0), there.model(rng, 0.3), rng)
    for change, promoted in ((0.0, True), (-0.005, True), (-0.015, False)):
        on_list = judged(rng, 400, change, 0.02)
        verdict = decide(shown, on_list, LOOKED_AT.tolist(), rng, GateConfig(resamples=199))
        assert verdict.promoted == promoted
        assert {one.name for one in verdict.checks if not one.passed} == (set() if promoted else {"judgements"})
        (sentence,) = (one.sentence for one in verdict.checks if one.name == "judgements")
        shown_interval = re.search(r"\(difference ± ([.0-9]+), 95 % confidence\)", sentence)
        expected = 1.966 * np.std(on_list.candidate - on_list.live, ddof=1) / np.sqrt(400)
        assert shown_interval and float(shown_interval[1]) == pytest.approx(expected, rel=0.3), "a bootstrap's error"
        assert verdict.judged_losers[0].share <= verdict.judged_losers[-1].share < 0
        assert verdict.losers[0].query.startswith("query ")


@pytest.mark.parametrize(("change", "n", "promoted"), [(0.03, 100, True), (-0.03, 100, False), (0.03, 12, False)])
def test_judged_queries_alone_decide_by_their_lower_bound(change: float, n: int, promoted: bool) -> None:
    rng = seeded_rng(6)
    verdict = decide(None, judged(rng, n, change), None, rng, GateConfig(resamples=199))
    assert verdict.promoted == promoted
    assert verdict.checks[0].passed == (n >= 30)


def test_clicks_without_a_click_are_no_clicks() -> None:
    rng = seeded_rng(7)
    empty = ShownLists(
        np.array([0, 2]), np.array([1, 2]), np.array([False, False]), np.zeros(2), np.ones(2), ["q"], ["u"]
    )
    verdict = decide(empty, judged(rng, 60, 0.05), [1.0], rng)
    assert verdict.promoted and [one.name for one in verdict.measured] == ["judgements"]
    for clicks in (None, empty):
        verdict = decide(clicks, None, None, rng)
        assert not verdict.promoted and "neither clicks nor judged queries" in verdict.reasons[0]


def test_a_margin_must_be_passed_by_the_lower_bound() -> None:
    rng = seeded_rng(8)
    there = site(rng, 800)
    shown = log_of(there, there.model(rng, 1.5), there.model(rng, 0.5), rng)
    bound = run(shown, LOOKED_AT.tolist()).measured[0].difference.lower
    assert run(shown, LOOKED_AT.tolist(), replace(FEW, margin=bound * 0.9)).promoted
    refused = run(shown, LOOKED_AT.tolist(), replace(FEW, margin=bound * 1.1))
    assert not refused.promoted
    assert [one.name for one in refused.checks if not one.passed] == ["better"]
    assert "required: more than" in refused.reasons[0]


def test_equal_draws_give_equal_verdicts_and_json_holds_them() -> None:
    rng = seeded_rng(9)
    there = site(rng, 100)
    shown = log_of(there, there.model(rng, 1.0), there.model(rng, 1.0), rng)
    first, second = (run(shown, LOOKED_AT.tolist()) for _ in range(2))
    assert first == second
    told = json.loads(json.dumps(first.to_json()))
    assert told["promoted"] is False and told["reasons"] == list(first.reasons)
    assert told["measured"][0]["difference"]["lower"] == first.measured[0].difference.lower


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rank": np.array([1, 1])}, InputError, "two documents at rank 1"),
        ({"rank": np.array([0, 1])}, InputError, "ranks count from 1"),
        ({"live": np.array([1.0, np.nan])}, InputError, "finite score by only one of the models"),
        ({"candidate": np.array([1.0, np.inf])}, InputError, "finite score by only one of the models"),
        ({"live": np.array([1.0])}, ShapeMismatch, "do not fit"),
        ({"query": ()}, ShapeMismatch, "do not fit"),
    ],
)
def test_lists_that_cannot_be(change: dict[str, Any], error: type[Exception], message: str) -> None:
    good: dict[str, Any] = {
        "indptr": np.array([0, 2]),
        "rank": np.array([1, 2]),
        "clicked": np.array([True, False]),
        "live": np.array([2.0, 1.0]),
        "candidate": np.array([1.0, 2.0]),
        "query": ("q",),
        "cluster": ("u",),
    }
    with pytest.raises(error, match=message):
        run(ShownLists(**(good | change)))


def test_scores_that_do_not_fit_their_impressions() -> None:
    one = Impression("i", "q", (ShownDocument("a", 1, True),))
    for live, new in (([[1.0]], []), ([[1.0, 2.0]], [[1.0]])):
        with pytest.raises(ShapeMismatch):
            shown_lists([one], live, new)
    with pytest.raises(ShapeMismatch, match="judged queries have"):
        JudgedQueries(("a",), np.zeros(2), np.zeros(1))
    with pytest.raises(InputError, match="not finite"):
        JudgedQueries(("a",), np.array([np.nan]), np.zeros(1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"margin": -0.1},
        {"confidence": 1.0},
        {"tolerance": float("nan")},
        {"max_weight": 0.5},
        {"min_clusters": 1},
        {"resamples": 5},
        {"n_changes": -1},
    ],
)
def test_settings_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GateConfig(**wrong)


# Logs drawn from the live ranking, 200 each: 300 people, position-based clicks.

Models = Callable[[Site, np.random.Generator], tuple[Values, Values]]
N_LOGS = 200


def same(there: Site, rng: np.random.Generator) -> tuple[Values, Values]:
    model = there.model(rng, 1.0)
    return model, model


def models(live_error: float, error: float) -> Models:
    return lambda there, rng: (there.model(rng, live_error), there.model(rng, error))


def random_weights(there: Site, rng: np.random.Generator) -> tuple[Values, Values]:
    return there.model(rng, 1.0), rng.standard_normal(there.common.shape)


def shuffled(there: Site, rng: np.random.Generator) -> tuple[Values, Values]:
    live = there.model(rng, 1.0)
    return live, -rng.permuted(ranks(live), axis=1).astype(np.float64)


def promotions(
    make: Models, p: Values | None, n_logs: int = N_LOGS, looked_at: Values = LOOKED_AT, **settings: Any
) -> tuple[int, float]:
    """Return how many logs promote the candidate, and the true gain on average."""
    rng, promoted, gain = seeded_rng(20), 0, 0.0
    config = GateConfig(resamples=199, **settings)
    for _ in range(n_logs):
        there = site(rng, 300)
        live, candidate = make(there, rng)
        shown = log_of(there, live, candidate, rng, looked_at)
        promoted += decide(shown, None, None if p is None else p.tolist(), rng, config).promoted
        gain += (true_ndcg(there, candidate) - true_ndcg(there, live)) / n_logs
    return promoted, gain


def test_a_model_against_itself_or_its_equal_is_hardly_ever_promoted() -> None:
    assert promotions(same, LOOKED_AT)[0] == 0
    promoted, gain = promotions(models(1.0, 1.0), LOOKED_AT)
    assert abs(gain) < 0.005
    assert promoted <= 0.05 * N_LOGS


def test_a_better_model_is_promoted_and_a_worse_one_refused() -> None:
    promoted, gain = promotions(models(1.5, 0.5), LOOKED_AT, 60)
    assert gain > 0.07
    assert promoted >= 57
    promoted, gain = promotions(models(0.5, 1.5), LOOKED_AT, 60)
    assert gain < -0.07
    assert promoted == 0


@pytest.mark.parametrize("make", [random_weights, shuffled])
@pytest.mark.parametrize("weights", ["right", "too steep", "none"])
def test_random_weights_and_a_shuffled_live_order_are_never_promoted(make: Models, weights: str) -> None:
    p = {"right": LOOKED_AT, "too steep": LOOKED_AT**2, "none": None}[weights]
    promoted, gain = promotions(make, p)
    assert gain < -0.1
    assert promoted == 0


def test_without_weights_the_live_ranking_looks_better_than_a_better_model() -> None:
    """The trap: what is clicked on the live order is what it had on top."""
    promoted, gain = promotions(models(1.5, 0.5), None, 40)
    assert gain > 0.07
    assert promoted == 0


def test_click_rates_by_rank_as_propensities_are_not_believed() -> None:
    """They hide all that the live order is worth, so that a model that is only as good seems better."""
    rng = seeded_rng(21)
    seemed_better = promoted = 0
    for _ in range(40):
        there = site(rng, 600)
        shown = log_of(there, there.model(rng, 1.0), there.model(rng, 1.0), rng)
        clicks = np.bincount(shown.rank, shown.clicked, minlength=11)[1:]
        verdict = decide(shown, None, np.maximum(clicks, 1.0).tolist(), rng, GateConfig(resamples=199))
        seemed_better += verdict.checks[1].passed
        promoted += verdict.promoted
    assert seemed_better > 20, "the trap does not show"
    assert promoted <= 2


def test_measured_weights_may_say_that_the_live_order_is_as_good_as_random() -> None:
    """A live order that knows nothing is replaced where propensities are from randomised lists."""
    make: Models = lambda there, rng: (rng.standard_normal(there.common.shape), there.model(rng, 0.5))  # noqa: E731
    assert promotions(make, LOOKED_AT, 40, measured_weights=True)[0] >= 35
    assert promotions(make, LOOKED_AT, 40)[0] <= 4


def test_clicks_on_shuffled_lists_may_speak_for_a_model_whose_live_order_is_as_good_as_random() -> None:
    """With the live order no better than chance, weights prove nothing; on shuffled lists clicks need no weights."""
    rng = seeded_rng(8)
    n, k = 1500, 10
    attraction = rng.beta(0.8, 2.5, (n, k))
    rank = np.tile(np.arange(1, k + 1), n)
    clicked = (rng.random((n, k)) < attraction) & (rng.random((n, k)) < 1.0 / rank.reshape(n, k))
    shuffled = np.arange(n) % 2 == 0
    live = np.where(shuffled[:, None], rng.random((n, k)), -np.arange(k)).ravel()
    lists = ShownLists(
        np.arange(0, n * k + 1, k),
        rank,
        clicked.ravel(),
        live,
        attraction.ravel(),
        ["q"] * n,
        [f"u{one}" for one in range(n)],
        shuffled,
    )
    by_rank = tuple(1.0 / one for one in range(1, k + 1))
    verdict = decide(lists, None, by_rank, np.random.default_rng(1))
    assert verdict.promoted, verdict.reasons
    (unbiased,) = [one for one in verdict.measured if one.name == "clicks nDCG, shuffled lists"]
    assert unbiased.difference.lower > 0 and unbiased.difference.n_clusters <= n / 2
    without = decide(replace(lists, randomised=None), None, by_rank, np.random.default_rng(1))
    assert [check.name for check in without.checks if not check.passed] == ["believable"]
    worse = decide(replace(lists, candidate=-attraction.ravel()), None, by_rank, np.random.default_rng(1))
    assert not worse.promoted


def test_renewed_preferences_need_not_be_better_only_not_worse() -> None:
    rng = seeded_rng(9)
    n, k = 200, 5
    clicked = np.zeros((n, k), bool)
    clicked[np.arange(n), rng.integers(0, 2, n)] = True
    live = np.tile(-np.arange(k, dtype=float), n)
    indptr, rank, people = np.arange(0, n * k + 1, k), np.tile(np.arange(1, k + 1), n), [f"u{one}" for one in range(n)]
    same = ShownLists(indptr, rank, clicked.ravel(), live, live, ["q"] * n, people)
    assert not decide(same, None, None, np.random.default_rng(1)).promoted
    assert decide(same, None, None, np.random.default_rng(1), refreshes=True).promoted
    worse = replace(same, candidate=-live)
    assert not decide(worse, None, None, np.random.default_rng(1), refreshes=True).promoted


def test_a_refusal_says_which_gain_would_have_been_shown_and_how_long_a_log_would_show_this_one() -> None:
    change = Interval(0.01, -0.01, 0.03, 0.012, 100, 90.0, 60)
    check = better(Measured("clicks nDCG", 0.5, 0.51, change), GateConfig(), days=2.0)
    assert not check.passed
    assert "a gain of +0.0298 would be shown with probability 80%" in check.sentence
    assert "about 891 people or queries are needed to show it, the log has 100 (about 17.8 days like these 2.0)" in (
        check.sentence
    )
