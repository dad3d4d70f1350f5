# ruff: noqa: N802 - tests carry the ids of the papers' checklist

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.projection import Activation, Projection
from papers.methods.projections import Mates, fit_cl_lsi, fit_opca, fit_pca, mates_logistic, random_start
from papers.methods.s2net import (
    GradedPairs,
    S2NetObjective,
    S2NetSettings,
    fit_s2net,
    logistic,
)
from papers.rank_measures import mate_ranks
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError
from reranker.models.scorers import Scorer
from tests.papers.study_rows import random_rows, translated
from tests.seeds import seeded_rng

EXACT = S2NetSettings(dtype="float64", gamma=3.0, block=4)


def mates(n: int = 9, n_words: int = 8, seed: int = 0) -> Mates:
    rng = seeded_rng(seed)
    x = random_rows(rng, n, n_words)
    return Mates(x, translated(rng, x))


def judged() -> GradedPairs:
    rng = seeded_rng()
    query, document = np.repeat(np.arange(4), 5), np.tile(np.arange(5), 4) + np.repeat([0, 1, 2, 2], 5)
    grade = rng.integers(0, 3, 20).astype(np.float64)
    grade[:2] = 0, 2
    return GradedPairs(random_rows(rng, 4, 8), random_rows(rng, 7, 8), query, document, grade)


def siblings() -> Mates:
    """Return mates of one vocabulary, for one matrix."""
    rng = seeded_rng()
    return Mates(random_rows(rng, 9, 8), random_rows(rng, 9, 8))


def dense_loss(data: Mates, projection: Projection, gamma: float) -> float:
    """Return the mean loss by the definition: every mate against every other text, both ways."""
    C = projection.score_matrix(data.q_rows, data.d_rows).astype(np.float64)
    n = len(C)
    terms = [np.log1p(np.exp(-gamma * (C[i, i] - C[i, j]))) for i in range(n) for j in range(n) if i != j]
    terms += [np.log1p(np.exp(-gamma * (C[j, j] - C[i, j]))) for i in range(n) for j in range(n) if i != j]
    return float(np.mean(terms))


CASES: dict[str, tuple[Mates | GradedPairs, bool, Activation, S2NetSettings]] = {
    "M21 logistic, mates": (mates(), False, "linear", EXACT),
    "M21 logistic, one matrix": (siblings(), True, "linear", EXACT),
    "M21 logistic, grades": (judged(), True, "linear", EXACT),
    "M22 squared, mates": (mates(), False, "linear", replace(EXACT, loss="squared")),
    "M22 squared, grades": (judged(), True, "linear", replace(EXACT, loss="squared")),
    "M23 beta": (mates(), False, "linear", replace(EXACT, beta=0.3)),
    "M25 two matrices on grades": (judged(), False, "linear", EXACT),
    "M25 sigmoid, mates": (mates(), False, "sigmoid", EXACT),
    "M25 sigmoid, one matrix": (judged(), True, "sigmoid", replace(EXACT, loss="squared")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_M21_M22_M23_M25_gradients_equal_finite_differences(
    case: tuple[Mates | GradedPairs, bool, Activation, S2NetSettings],
) -> None:
    data, tied, activation, settings = case
    rng = seeded_rng(3)
    widths = (data.q_rows.shape[1], data.d_rows.shape[1])
    linear = random_start(widths, 3, rng=rng, tied=tied)
    start = Projection(linear.A, linear.B, activation)
    objective = S2NetObjective(data, start, settings)
    theta = objective.start + rng.normal(size=len(objective.start)) * 0.2
    _, gradient = objective(theta)
    assert len(gradient) == 3 * (widths[0] + (0 if tied else widths[1]))
    for place in rng.permutation(len(theta))[:12]:
        step = np.zeros(len(theta))
        step[place] = 1e-6
        numeric = (objective(theta + step)[0] - objective(theta - step)[0]) / 2e-6
        assert gradient[place] == pytest.approx(numeric, rel=1e-4, abs=1e-8)
    # Downhill is where the gradient points away from.
    assert objective(theta - 1e-3 * gradient)[0] < objective(theta)[0]


def test_M21_slope_has_the_sign_of_the_derivative_not_of_the_appendix() -> None:
    # A01: at Delta = 1 and gamma = 10 a well ordered pair hardly moves, at -1 it moves by all of gamma.
    loss, slope = logistic(np.array([0.0, 1.0, -1.0]), 10.0)
    np.testing.assert_allclose(loss, [np.log(2), 4.5399e-5, 10.0000454], rtol=1e-4)
    np.testing.assert_allclose(slope, [-5.0, -4.5398e-4, -9.99954602], rtol=1e-4)
    assert np.isfinite(logistic(np.array([-1e3, 1e3], np.float32), 1e3)).all()


@pytest.mark.parametrize("block", [1, 4, 100])
def test_M21_blocks_of_the_batch_form_equal_the_definition(block: int) -> None:
    data = mates()
    start = random_start((8, 11), 3, rng=seeded_rng())
    X, Z = start.embed_queries(data.q_rows), start.embed_documents(data.d_rows)
    loss, _, _ = mates_logistic(X.astype(np.float64), Z.astype(np.float64), 3.0, block)
    assert loss == pytest.approx(dense_loss(data, start, 3.0), rel=1e-5)


def test_M22_squared_loss_by_definition() -> None:
    data = mates()
    start = random_start((8, 11), 3, rng=seeded_rng())
    C = start.score_matrix(data.q_rows, data.d_rows).astype(np.float64)
    objective = S2NetObjective(data, start, replace(EXACT, loss="squared"))
    assert objective(objective.start)[0] == pytest.approx(np.mean((np.eye(9) - C) ** 2) / 2, rel=1e-5)
    graded = judged()
    tied = random_start((8, 8), 3, rng=seeded_rng(), tied=True)
    cosines = tied.score_pairs(graded.q_rows[graded.query], graded.d_rows[graded.document])
    objective = S2NetObjective(graded, tied, replace(EXACT, loss="squared"))
    assert objective(objective.start)[0] == pytest.approx(np.mean((graded.grade / 2 - cosines) ** 2) / 2, rel=1e-5)


def test_M21_preferences_are_all_pairs_of_different_grades_within_a_query() -> None:
    rows = sp.csr_matrix(np.eye(4, dtype=np.float32))
    data = GradedPairs(rows, rows, np.array([1, 0, 1, 0, 1]), np.array([0, 1, 2, 3, 3]), np.array([2.0, 1, 0, 1, 2]))
    assert set(zip(data.better.tolist(), data.worse.tolist(), strict=True)) == {(0, 2), (4, 2)}
    # Identity matrices: query 1 has cosines 0, 0, 0 with documents 0, 2 and 3, so every loss is ln 2.
    eye = np.eye(4, dtype=np.float32)
    objective = S2NetObjective(data, Projection(eye, eye), EXACT)
    assert objective(objective.start)[0] == pytest.approx(np.log(2))


def start_of(kind: str, data: Mates, n_dims: int) -> Projection:
    """Return a projection of the mates; that of each side's own PCA pairs nothing yet."""
    x, y, rng = data.q_rows, data.d_rows, seeded_rng()
    if kind == "random":
        return random_start((x.shape[1], y.shape[1]), n_dims, rng=rng)
    if kind == "pca":
        return Projection(fit_pca(x, n_dims, rng=rng).A, fit_pca(y, n_dims, rng=rng).A)
    return (fit_cl_lsi if kind == "cl-lsi" else fit_opca)(x, y, n_dims, rng=rng)


def test_M24_random_starts_have_unit_columns_in_the_mean() -> None:
    drawn = random_start((3_000, 2_000), 25, rng=seeded_rng())
    assert drawn.A.std() == pytest.approx(0.2, rel=0.02) and drawn.B.std() == pytest.approx(0.2, rel=0.02)
    assert abs(float(np.mean(drawn.A[:2_000] * drawn.B))) < 1e-3


@pytest.mark.parametrize("kind", ["random", "pca", "cl-lsi", "opca"])
def test_M24_every_start_learns_the_translations(kind: str) -> None:
    data, held = mates(60, 8), mates(40, 8, seed=1)
    start = start_of(kind, data, 6)
    settings = S2NetSettings(max_iterations=40)
    losses: list[float] = []
    learned = fit_s2net(data, start, settings, progress=lambda _, loss, value: losses.append(loss))
    assert losses[-1] < 0.9 * dense_loss(data, start, 10.0)
    assert losses[-1] == pytest.approx(dense_loss(data, learned, 10.0), rel=1e-3)
    before, after = mate_ranks(start, held.q_rows, held.d_rows).mrr, mate_ranks(learned, held.q_rows, held.d_rows).mrr
    assert after > max(before - 0.1, 0.7)


def test_M24_pca_of_all_texts_starts_one_matrix_on_grades() -> None:
    data = judged()
    start = fit_pca(sp.vstack([data.q_rows, data.d_rows], format="csr"), 4, rng=seeded_rng())
    learned = fit_s2net(data, start, S2NetSettings(max_iterations=30))
    assert learned.is_tied
    first, last = (one.score_pairs(data.q_rows[data.query], data.d_rows[data.document]) for one in (start, learned))
    in_order = [np.mean(c[data.better] > c[data.worse]) for c in (first, last)]
    assert in_order[1] > in_order[0] + 0.1


def test_M23_a_strong_pull_stays_at_the_start_and_a_weak_one_does_not() -> None:
    data = mates(30)
    start = start_of("opca", data, 4)
    away = [
        float(np.abs(fit_s2net(data, start, S2NetSettings(beta=beta, max_iterations=20)).A - start.A).max())
        for beta in (1e6, 0.1, 0.0)
    ]
    assert away[0] < 1e-5 < away[1] < away[2]


def test_M21_early_stopping_returns_the_best_and_asks_no_longer_than_patience() -> None:
    data = mates(30)
    start = random_start((8, 11), 4, rng=seeded_rng())
    seen: list[Projection] = []

    def worse_after_two(scorer: Scorer) -> float:
        assert isinstance(scorer, Projection)
        seen.append(scorer)
        return {1: 0.5, 2: 0.3}.get(len(seen), 0.4)

    settings = S2NetSettings(every=2, patience=2, max_iterations=50)
    steps: list[tuple[int, float | None]] = []
    learned = fit_s2net(
        data, start, settings, validate=worse_after_two, progress=lambda i, _, value: steps.append((i, value))
    )
    assert steps == [(1, None), (2, 0.3), (3, None), (4, 0.4), (5, None), (6, 0.4)]
    np.testing.assert_array_equal(seen[0].A, start.A)
    np.testing.assert_array_equal(learned.A, seen[1].A)
    unlearned = fit_s2net(data, start, settings, validate=lambda scorer: float(not np.array_equal(scorer.A, start.A)))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(unlearned.A, start.A)


def test_M21_the_last_iteration_is_validated_too_and_repeats_are_equal() -> None:
    data = mates(30)
    start = random_start((8, 11), 4, rng=seeded_rng())
    settings = S2NetSettings(every=100, max_iterations=5)
    held = mates(30, seed=1)
    one, two = (
        fit_s2net(data, start, settings, validate=lambda s: 1 - mate_ranks(s, held.q_rows, held.d_rows).mrr)
        for _ in range(2)
    )
    assert np.abs(one.A - start.A).max() > 0
    np.testing.assert_array_equal(one.A, two.A)
    np.testing.assert_array_equal(one.B, two.B)


def test_M25_one_matrix_stays_one_and_two_part() -> None:
    data = siblings()
    tied = random_start((8, 8), 3, rng=seeded_rng(), tied=True)
    assert fit_s2net(data, tied, S2NetSettings(max_iterations=3)).is_tied
    two = fit_s2net(data, Projection(tied.A, tied.B.copy()), S2NetSettings(max_iterations=3))
    assert np.abs(two.A - two.B).max() > 1e-3
    sigmoid = fit_s2net(data, Projection(tied.A, tied.B, "sigmoid"), S2NetSettings(max_iterations=30))
    assert sigmoid.activation == "sigmoid"
    assert dense_loss(data, sigmoid, 10.0) < dense_loss(data, Projection(tied.A, tied.B, "sigmoid"), 10.0)


def test_what_cannot_be_learned_is_refused() -> None:
    data = mates()
    x, y = data.q_rows, data.d_rows
    one, grades = np.zeros(1, np.int64), np.ones(1)
    with pytest.raises(ShapeMismatch, match="are not pairs"):
        Mates(x, y[:3])
    with pytest.raises(TrainingError, match="no negative"):
        Mates(x[:1], y[:1])
    with pytest.raises(TrainingError, match="no preference"):
        GradedPairs(x, y, one, one, grades)
    with pytest.raises(TrainingError, match="no preference"):
        GradedPairs(x, y, one[:0], one[:0], grades[:0])
    with pytest.raises(ShapeMismatch, match="1 grades"):
        GradedPairs(x, y, one, np.zeros(2, np.int64), grades)
    with pytest.raises(InputError, match="judged document"):
        GradedPairs(x, y, one, one + 99, grades)
    with pytest.raises(InputError, match="grade"):
        GradedPairs(x, y, one, one, -grades)
    with pytest.raises(ShapeMismatch, match="8 and 11"):
        fit_s2net(data, random_start((8, 8), 3, rng=seeded_rng()))
    with pytest.raises(ShapeMismatch, match="share a matrix"):
        random_start((8, 11), 3, rng=seeded_rng(), tied=True)
    for wrong in ({"loss": "hinge"}, {"gamma": 0.0}, {"beta": -1.0}, {"block": 0}):
        with pytest.raises(ConfigError):
            S2NetSettings(**wrong)
