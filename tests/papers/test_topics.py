# ruff: noqa: N802 - tests carry the ids of the papers' checklist

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.topics import (
    TopicModel,
    TopicSettings,
    TopicState,
    couple,
    em_step,
    fit_topic_model,
    tilted_mixtures,
    token_shares,
    topic_gap,
)
from papers.rank_measures import mate_ranks
from reranker.errors import ConfigError, InputError, ShapeMismatch
from tests.papers.study_rows import random_counts
from tests.seeds import seeded_rng

PLAIN = TopicSettings(n_topics=2, topic_prior=1.0, word_prior=1.0)
SMALL = TopicSettings(n_topics=3, n_iterations=15)


def two_sides(n: int = 12) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = seeded_rng()
    return random_counts(rng, n, 7), random_counts(rng, n, 5)


def log_posterior(counts: Sequence[sp.csr_matrix], state: TopicState, settings: TopicSettings) -> float:
    """Return sum n ln p + (a - 1) sum ln theta + (b - 1) sum ln phi: what EM raises (without multipliers)."""
    total = 0.0
    for side, phi in zip(counts, state.phis, strict=True):
        p = side.data / np.maximum(token_shares(side, state.theta, phi).data, 1e-300)
        total += float(side.data @ np.log(np.maximum(p, 1e-300)))
        if settings.word_prior > 1.0:
            total += (settings.word_prior - 1.0) * float(np.log(phi).sum())
    if settings.topic_prior > 1.0:
        total += (settings.topic_prior - 1.0) * float(np.log(state.theta).sum())
    return total


def clustered(rng: np.random.Generator, n: int, words_each: int) -> sp.csr_matrix:
    """Return counts of texts i whose words all belong to cluster i mod 3."""
    counts = np.zeros((n, 3 * words_each), np.float32)
    for i in range(n):
        counts[i, (i % 3) * words_each : (i % 3 + 1) * words_each] = 1 + rng.poisson(2, words_each)
    return sp.csr_matrix(counts)


@pytest.mark.parametrize(
    ("a", "b", "theta", "phi"),
    # Tokens of (3, 1): topic 0 gets 3 * .75 and 1 * .25, topic 1 the rest; the priors add a - 1 and b - 1.
    [
        (1.0, 1.0, [0.625, 0.375], [[0.9, 0.1], [0.5, 0.5]]),
        (1.5, 2.0, [0.6, 0.4], [[3.25 / 4.5, 1.25 / 4.5], [0.5, 0.5]]),
    ],
)
def test_B11_one_step_of_em_by_hand(a: float, b: float, theta: list[float], phi: list[list[float]]) -> None:
    counts = (sp.csr_matrix(np.array([[3.0, 1.0]])),)
    start = TopicState(np.array([[0.5, 0.5]]), (np.array([[0.75, 0.25], [0.25, 0.75]]),), np.zeros((1, 2)))
    state = em_step(counts, start, replace(PLAIN, topic_prior=a, word_prior=b))
    np.testing.assert_allclose(state.theta, [theta], rtol=1e-12)
    np.testing.assert_allclose(state.phis[0], phi, rtol=1e-12)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (1.4, 1.2)])
def test_B11_and_B12_em_never_lowers_the_posterior(a: float, b: float) -> None:
    settings = replace(SMALL, topic_prior=a, word_prior=b)
    for sides in (two_sides(), two_sides()[:1]):
        counts = [side.astype(np.float64) for side in sides]
        values: list[float] = []
        fit_topic_model(
            sides,
            settings,
            rng=seeded_rng(),
            progress=lambda _, state, counts=counts, values=values: values.append(  # type: ignore[misc]
                log_posterior(counts, state, settings)
            ),
        )
        assert len(values) == 15
        assert (np.diff(values) > -1e-9).all() and values[-1] > values[0] + 1


def test_B11_finds_clusters_of_words() -> None:
    rng = np.random.default_rng(1)  # EM ends in a local optimum; from this start it is the best one
    texts = clustered(rng, 15, 4)
    model = fit_topic_model([texts], replace(SMALL, n_iterations=60), rng=rng)
    assert isinstance(model, TopicModel) and model.phi_q is model.phi_d
    scores = model.score_matrix(texts, texts)
    alike = np.arange(15)[:, None] % 3 == np.arange(15)[None, :] % 3
    assert scores[alike].min() > scores[~alike].max() + 0.5


def test_B12_a_text_beside_itself_is_plsa() -> None:
    x, _ = two_sides()
    # Both sides start and stay alike, so each token counts twice, which changes nothing where a = b = 1.
    settings = replace(SMALL, topic_prior=1.0, word_prior=1.0)
    joint, alone = (fit_topic_model(sides, settings, rng=seeded_rng()) for sides in ((x, x), (x,)))
    np.testing.assert_allclose(joint.phi_q, alone.phi_q, atol=1e-9)
    np.testing.assert_allclose(joint.phi_d, joint.phi_q, atol=1e-9)


def test_B12_finds_the_language_of_the_other_side() -> None:
    rng = np.random.default_rng(1)
    x, y = clustered(rng, 15, 4), clustered(rng, 15, 3)
    for coupled in (False, True):
        settings = replace(SMALL, n_iterations=60)
        model = fit_topic_model((x, y), settings, rng=np.random.default_rng(1), coupled=coupled)
        scores = model.score_matrix(x, y)
        alike = np.arange(15)[:, None] % 3 == np.arange(15)[None, :] % 3
        assert scores[alike].min() > scores[~alike].max() + 0.5
        assert (mate_ranks(model, x[:3], y[:3]).forward == 1).all()


def test_B13_multipliers_follow_the_gradient_of_the_dual() -> None:
    counts = [side.astype(np.float64) for side in two_sides(2)]
    rng = seeded_rng()
    phis = tuple(rng.dirichlet(np.ones(side.shape[1]), 3) for side in counts)
    state = TopicState(rng.dirichlet(np.ones(3), 2), phis, rng.normal(size=(2, 3)))

    def minus_log_z(multipliers: np.ndarray) -> float:
        tilted = tilted_mixtures(counts, replace(state, multipliers=multipliers))
        return -sum(
            float((side.toarray() * np.log(one @ phi)).sum())
            for side, one, phi in zip(counts, tilted, state.phis, strict=True)
        )

    gap, numeric = topic_gap(counts, state), np.zeros((2, 3))
    for place in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[place] = 1e-6
        up, down = minus_log_z(state.multipliers + step), minus_log_z(state.multipliers - step)
        numeric[place] = (up - down) / 2e-6
    np.testing.assert_allclose(gap, numeric, atol=1e-7)


def test_B13_the_optimum_of_the_dual_keeps_the_slack() -> None:
    counts = [side.astype(np.float64) for side in two_sides()]
    rng = seeded_rng()
    phis = tuple(rng.dirichlet(np.full(side.shape[1], 0.5), 3) for side in counts)
    state = TopicState(rng.dirichlet(np.ones(3), 12), phis, np.zeros((12, 3)))
    before = topic_gap(counts, state)
    settings = replace(SMALL, slack=0.03, n_dual_steps=1_000)
    coupled = couple(counts, state, settings)
    gap = topic_gap(counts, coupled)
    assert np.abs(before).max() > 0.1
    assert np.abs(gap).max() < 0.03 + 1e-4
    # Complementary slackness: a multiplier works only at its bound, and pushes the gap down from above.
    working = coupled.multipliers != 0
    np.testing.assert_allclose(gap[working], 0.03 * np.sign(coupled.multipliers[working]), atol=1e-4)


def test_B13_without_a_bound_is_jplsa_and_with_one_sides_come_closer() -> None:
    x, y = two_sides()
    loose = fit_topic_model((x, y), replace(SMALL, slack=1.0), rng=seeded_rng(), coupled=True)
    joint = fit_topic_model((x, y), SMALL, rng=seeded_rng())
    np.testing.assert_array_equal(loose.phi_q, joint.phi_q)
    tight = fit_topic_model((x, y), replace(SMALL, slack=0.0), rng=seeded_rng(), coupled=True)
    assert np.abs(tight.phi_q - joint.phi_q).max() > 0.01


def test_a_pair_with_an_empty_side_is_not_coupled() -> None:
    x, y = (side.tolil() for side in two_sides())
    y[0] = 0
    counts = [sp.csr_matrix(x, dtype=np.float64), sp.csr_matrix(y, dtype=np.float64)]
    states: list[TopicState] = []
    fit_topic_model(counts, SMALL, rng=seeded_rng(), coupled=True, progress=lambda _, state: states.append(state))
    assert not states[-1].multipliers[0].any() and np.isfinite(states[-1].theta).all()


def test_what_cannot_be_learned_is_refused() -> None:
    x, y = two_sides()
    with pytest.raises(ShapeMismatch, match="texts are not pairs"):
        fit_topic_model((x, y[:3]), SMALL, rng=seeded_rng())
    with pytest.raises(InputError, match="a side has no word"):
        fit_topic_model((x, y * 0), SMALL, rng=seeded_rng())
    with pytest.raises(InputError, match="negative"):
        fit_topic_model([-x], SMALL, rng=seeded_rng())
    for wrong in ({"n_topics": 0}, {"topic_prior": 0.9}, {"slack": -0.1}):
        with pytest.raises(ConfigError):
            replace(SMALL, **wrong)
