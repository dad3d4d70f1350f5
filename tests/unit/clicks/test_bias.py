"""Propensities are recovered from logs whose truth is known, and pairs weigh what they should."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest

from reranker.clicks.pairs import UNIT, PairConfig
from reranker.clicks.propensities import (
    METHODS,
    ClickCounts,
    Propensities,
    estimate_propensities,
)
from reranker.clicks.schema import Impression, ShownDocument
from reranker.clicks.simulator import (
    Cascade,
    ClickModel,
    DynamicBayesian,
    LogPlan,
    PositionBased,
    SimulatedLog,
    attraction_of,
    simulate,
)
from reranker.errors import ConfigError, InputError
from tests.click_readers import counts_of
from tests.reference.click_steps import count_clicks
from tests.seeds import seeded_rng

K = 6


def joined(parts: list[ClickCounts]) -> ClickCounts:
    """Return counts of the same documents in one."""
    fields = ("item", "rank", "shown", "clicked", "randomised")
    return ClickCounts(*(np.concatenate([getattr(one, name) for one in parts]) for name in fields))


def log_of_rankers(
    model: ClickModel, rng: np.random.Generator, *, n: int, n_queries: int, n_rankers: int = 3, randomised: float = 0.0
) -> tuple[ClickCounts, SimulatedLog]:
    """Return the clicks on several rankings of the same documents, good but not the same, and the last log."""
    relevant = rng.random((n_queries, 20)) < 0.2
    quality = rng.random(relevant.shape) + 0.7 * relevant
    parts = []
    for _ in range(n_rankers):
        top = np.argsort(-(quality + 0.3 * rng.random(relevant.shape)), axis=1)[:, :K]
        attraction = attraction_of(np.take_along_axis(relevant, top, 1), of_relevant=0.8)
        log = simulate(top, attraction, model, LogPlan(n // n_rankers, randomised=randomised), rng)
        parts.append(counts_of(log))
    return joined(parts), log


def errors(found: Propensities, truth: npt.ArrayLike) -> npt.NDArray[np.float64]:
    relative: npt.NDArray[np.float64] = np.abs(np.array(found.by_rank) / np.asarray(truth) - 1)
    return relative


@pytest.mark.parametrize("eta", [0.5, 1.0, 2.0])
def test_a_position_based_log_gives_its_propensities_back_within_a_tenth(eta: float) -> None:
    model = PositionBased.power(K, eta)
    counts, _ = log_of_rankers(model, seeded_rng(), n=900_000, n_queries=60, randomised=0.4)
    for method in ("harvest", "em", "randomised"):
        found = METHODS[method](counts if method == "randomised" else counts.only(~counts.randomised))
        assert found.method == method
        assert errors(found, model.examination).max() < 0.1, method


def test_harvest_does_not_mind_documents_seen_a_few_times_and_em_does() -> None:
    model = PositionBased.power(K, 1.0)
    counts, _ = log_of_rankers(model, seeded_rng(), n=120_000, n_queries=20_000)
    assert counts.shown.sum() / len(np.unique(counts.item)) < 7
    assert errors(METHODS["harvest"](counts), model.examination).max() < 0.1
    assert errors(METHODS["em"](counts), model.examination).max() > 0.3


def test_click_rates_take_merit_for_bias() -> None:
    model = PositionBased.power(K, 1.0)
    counts, _ = log_of_rankers(model, seeded_rng(), n=200_000, n_queries=100)
    found = np.array(METHODS["rate"](counts).by_rank)
    assert (found[1:] < np.array(model.examination)[1:]).all()


@pytest.mark.parametrize(("model", "n_ranks"), [(Cascade(), 3), (DynamicBayesian(0.5, 0.9), K)])
def test_on_cascades_the_average_share_of_readers_comes_out_where_many_come(model: ClickModel, n_ranks: int) -> None:
    """A cascade's readers seldom come to rank 4, and then on the lists that the model fits least."""
    counts, log = log_of_rankers(model, seeded_rng(), n=600_000, n_queries=100)
    assert errors(METHODS["harvest"](counts), log.examination)[:n_ranks].max() < 0.15
    assert max(METHODS["harvest"](counts).by_rank[3:]) < 0.25


def test_without_bias_all_ranks_have_the_same_propensity() -> None:
    counts, _ = log_of_rankers(PositionBased((1.0,) * K), seeded_rng(), n=300_000, n_queries=100)
    assert min(METHODS["harvest"](counts).by_rank) > 0.95


def test_one_fixed_order_cannot_be_told_from_merit() -> None:
    counts, _ = log_of_rankers(PositionBased.power(K, 1.0), seeded_rng(), n=50_000, n_queries=50, n_rankers=1)
    for method in ("em", "harvest"):
        with pytest.raises(InputError, match="effects of document and rank"):
            METHODS[method](counts)
    with pytest.raises(InputError, match="randomised"):
        METHODS["randomised"](counts)
    assert estimate_propensities(counts).method == "rate"


def test_auto_takes_the_soundest_way_that_the_log_allows() -> None:
    model, rng = PositionBased.power(K, 1.0), seeded_rng()
    several, _ = log_of_rankers(model, rng, n=30_000, n_queries=50)
    few, _ = log_of_rankers(model, rng, n=30_000, n_queries=50, randomised=0.05, n_rankers=1)
    many, _ = log_of_rankers(model, rng, n=60_000, n_queries=50, randomised=0.7, n_rankers=1)
    assert [estimate_propensities(one).method for one in (several, few, many)] == ["harvest", "harvest", "randomised"]
    with pytest.raises(ConfigError, match="harvest"):
        estimate_propensities(several, "guess")


def test_a_few_shuffled_lists_say_more_together_with_the_others() -> None:
    model = PositionBased.power(K, 1.0)
    counts, _ = log_of_rankers(model, seeded_rng(), n=60_000, n_queries=200, randomised=0.05, n_rankers=1)
    together, alone = (errors(METHODS[name](counts), model.examination) for name in ("harvest", "randomised"))
    assert together.mean() < alone.mean()
    assert together.max() < 0.15


def test_ranks_shown_too_rarely_take_the_last_known_propensity() -> None:
    counts = ClickCounts(
        np.arange(4),
        np.array([1, 2, 3, 5]),
        np.array([1000, 100, 10, 1000]),
        np.array([500, 25, 9, 1]),
        np.zeros(4, dtype=bool),
    )
    found = METHODS["rate"](counts)
    assert found.by_rank == (1.0, 0.5)


def test_a_rank_without_a_click_counts_as_half_of_one() -> None:
    shown, clicked = np.array([1000, 100]), np.array([500, 0])
    counts = ClickCounts(np.arange(2), np.array([1, 2]), shown, clicked, np.zeros(2, dtype=bool))
    assert METHODS["rate"](counts).by_rank == (1.0, 0.01)


def test_ranks_of_documents_that_nobody_clicked_take_the_last_known_propensity() -> None:
    # Twenty documents at ranks 1 to 3, clicked by half as much from rank to rank; ten at 3 and 4, never clicked.
    item, rank = np.repeat(np.arange(30), [3] * 20 + [2] * 10), np.array([1, 2, 3] * 20 + [3, 4] * 10)
    clicked = np.where(item < 20, 160 // 2**rank, 0)
    counts = ClickCounts(item, rank, np.full(len(item), 100), clicked, np.zeros(len(item), dtype=bool))
    for method in ("auto", "harvest", "em"):
        np.testing.assert_allclose(estimate_propensities(counts, method).by_rank, [1, 1 / 2, 1 / 4], rtol=0.01)


def test_logs_without_clicks_or_lists_are_refused() -> None:
    nothing = count_clicks([])
    silent = count_clicks([Impression(str(n), "q", (ShownDocument("a", 1), ShownDocument("b", 2))) for n in range(100)])
    for counts in (nothing, silent):
        with pytest.raises(InputError, match="rank 1"):
            estimate_propensities(counts, "rate")


def test_pairs_weigh_one_over_the_propensity_of_the_click_up_to_the_clip() -> None:
    p = (1.0, 0.5, 0.25, 0.05)
    for clip, weights in ((10.0, [1, 2, 4, 10]), (100.0, [1, 2, 4, 20]), (3.0, [1, 2, 3, 3])):
        np.testing.assert_allclose(np.array(PairConfig(propensities=p, clip=clip).rank_units()) / UNIT, weights)
    for clip in (0.0, -1.0):
        with pytest.raises(ConfigError):
            PairConfig(propensities=p, clip=clip)


def test_weighted_clicks_are_unbiased() -> None:
    """In the mean, clicks / propensity of a document do not depend on its rank."""
    model = PositionBased.power(K, 1.0)
    log = simulate(np.arange(K)[None], np.full((1, K), 0.4), model, LogPlan(400_000), seeded_rng())
    weights = np.array(PairConfig(propensities=tuple(model.examination), clip=1e6).rank_units()) / UNIT
    value = (log.clicked * weights).mean(axis=0)
    np.testing.assert_allclose(value, 0.4, rtol=0.03)


def test_propensities_go_through_json() -> None:
    found = Propensities((1.0, 1 / 3), "em", 12)
    assert Propensities.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert Propensities.from_json([1, 0.5]).by_rank == (1.0, 0.5)


@pytest.mark.parametrize("value", [None, 3, {}, {"by_rank": "a"}, {"by_rank": []}, [0.0], [1.5], [float("nan")], [[1]]])
def test_what_is_no_propensities_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="propensities"):
        Propensities.from_json(value)
