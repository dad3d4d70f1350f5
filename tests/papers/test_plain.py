# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""The papers' plain SGD as a whole: each shape learns a world whose answer is known, and stops when told."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.product_sgd import Triples
from papers.methods.word_pairs import (
    Bilinear,
    DenseWordPairs,
    Diagonal,
    HashKernel,
    Mapped,
    Polynomial,
    QueryPolynomial,
    SeparateCubic,
    correlated_map,
    ordered_map,
    top_n_map,
)
from papers.plain_sgd import PlainData, PlainShape, PreferenceSampler, fit_plain
from reranker.arrays import Float64
from reranker.errors import ConfigError, ShapeMismatch, TrainingError
from reranker.models.scorers import Scorer
from tests.seeds import seeded_rng
from tests.unit.training.small_worlds import csr, rank_loss, translated, unit_rows

LEARNERS = {
    "M03": (PlainShape("full"), DenseWordPairs),
    "M04": (PlainShape("zero_diagonal"), DenseWordPairs),
    "M05": (PlainShape("tied"), Bilinear),
    "M06": (PlainShape("low_rank"), Bilinear),
    "M07": (PlainShape("no_identity"), Bilinear),
    "M09": (PlainShape("hash", n_slots=3_000), HashKernel),
    "M10": (PlainShape("hash", n_slots=3_000, identity=1.0), HashKernel),
    "M18": (PlainShape("cubic"), Polynomial),
    "M19": (PlainShape("cubic_separate"), SeparateCubic),
    "M20": (PlainShape("polynomial", degree=4), Polynomial),
    "query pairs": (PlainShape("query_polynomial", degree=3), QueryPolynomial),
}


def misleading(rng: np.random.Generator, n: int = 40) -> PlainData:
    """Return texts in which word 0 is shared by unrelated ones and the other shared word tells the relevant one."""
    q_words = [[0, 1 + i] if i % 2 else [1 + i] for i in range(n)]
    d_words = [[1 + i, 1 + n + i] if i % 2 else [0, 1 + i] for i in range(n)]
    return PlainData(
        unit_rows(q_words, 1 + 2 * n),
        unit_rows(d_words, 1 + 2 * n),
        sp.csr_matrix(sp.eye_array(n, format="csr")),
        np.full(n, -1),
    )


@pytest.mark.parametrize(("shape", "kind"), LEARNERS.values(), ids=LEARNERS)
def test_every_shape_learns_which_words_belong_together(shape: PlainShape, kind: type) -> None:
    rng = seeded_rng()
    data = translated(rng)
    before = rank_loss(Bilinear.lexical(), data)
    tied = shape.name == "tied"  # a symmetric W cannot hold any translation, but gets closer
    scorer = fit_plain(shape, data, n_dims=12, rate=0.2, n_steps=40_000, init_std=0.3, rng=rng)
    assert isinstance(scorer, kind)
    assert 0.3 < before < 0.7
    assert rank_loss(scorer, data) < (0.2 if tied else 0.03)


def test_M02_learns_to_distrust_a_word() -> None:
    data = misleading(seeded_rng())
    scorer = fit_plain("diagonal", data, rate=0.05, n_steps=5_000, rng=seeded_rng())
    assert isinstance(scorer, Diagonal)
    assert scorer.w[0] < 0.2
    assert scorer.w[1 : len(data.own) + 1].min() > 1
    np.testing.assert_array_equal(scorer.w[len(data.own) + 1 :], 1)  # words that no query holds


def test_M04_keeps_its_diagonal_at_zero() -> None:
    data = translated(seeded_rng())
    scorer = fit_plain("zero_diagonal", data, rate=0.2, n_steps=5_000, rng=seeded_rng())
    assert isinstance(scorer, DenseWordPairs)
    assert not np.diag(scorer.W).any()
    assert scorer.W.any()


def test_M09_without_collisions_learns_what_M04_start_learns_with_a_diagonal() -> None:
    data = translated(seeded_rng(), n_query=20, n_document=20)
    prime, n_slots = 23, 20 * 23 + 21
    hashed = fit_plain(
        PlainShape("hash", n_slots=n_slots, prime=prime), data, rate=0.2, n_steps=3_000, rng=seeded_rng()
    )
    zeros = DenseWordPairs(np.zeros((20, 20), np.float32))
    full = fit_plain("full", data, rate=0.2, n_steps=3_000, rng=seeded_rng(), start=zeros)
    q_rows, d_rows = data.q_rows, data.d_rows
    np.testing.assert_allclose(
        hashed.score_matrix(q_rows, d_rows), full.score_matrix(q_rows, d_rows), rtol=1e-3, atol=1e-4
    )


NEAREST = np.array([[0, 1], [1, 0], [1, 2], [0, 2], [2, -1]], np.int32)
"""S_1 and S_2 of five words among three frequent ones; the last word has one neighbour."""
TRAINED = {
    "M09 hash": (PlainShape("hash", n_slots=7, prime=3), None),
    "M10 hash": (PlainShape("hash", n_slots=7, prime=3, identity=1.0), None),
    "M12 k = 1": (PlainShape("full"), correlated_map(NEAREST[:, :1], 3)),
    "M13 k = 2": (PlainShape("full"), correlated_map(NEAREST, 3)),
    "M13 printed": (PlainShape("blocks", n_blocks=2), ordered_map(NEAREST, 3)),
}


@pytest.mark.parametrize("name", TRAINED)
def test_M09_M10_M12_M13_trained_weights_are_sums_of_the_steps_by_their_formulas(name: str) -> None:
    shape, feature_map = TRAINED[name]
    q, d = np.array([1.0, 0, 2, 0, 0.5]) / 4, np.array([[0, 1, 0, 2, 1], [1, 0, 1.0, 0, 1]]) / 4
    # One query, one relevant document and one other: every step is this tuple, and is active as long as f is below 1.
    data = PlainData(
        q_rows=sp.csr_matrix(q[None, :].astype(np.float32)),
        d_rows=sp.csr_matrix(d.astype(np.float32)),
        relevant=sp.csr_matrix(np.array([[1.0, 0.0]])),
        own=np.array([-1]),
        feature_map=feature_map,
    )
    scorer = fit_plain(shape, data, rate=0.1, n_steps=3, rng=seeded_rng())
    delta, expected = d[0] - d[1], np.zeros((5, 5))
    for s, t in product(range(5), range(5)):  # f = sum_st q_s d_t weight(s, t)
        pairs = [(p, r) for p in range(2) for r in range(2) if NEAREST[s, p] >= 0 and NEAREST[t, r] >= 0]
        if "hash" in name:
            same = [(i, j) for i, j in product(range(5), range(5)) if (3 * i + j) % 7 == (3 * s + t) % 7]
            expected[s, t] = (s == t) * shape.exact_weight + 0.3 * sum(q[i] * delta[j] for i, j in same)
            continue
        if name == "M12 k = 1":
            pairs = [(0, 0)]
        elif name == "M13 printed":
            pairs = [(p, r) for p, r in pairs if p == r]
        k = {"M12 k = 1": 1, "M13 k = 2": 4, "M13 printed": 2}[name]
        W = np.eye(3) + 0.3 * learned(name, q, delta)
        expected[s, t] = sum(W[NEAREST[s, p], NEAREST[t, r]] for p, r in pairs) / k
    eye = sp.csr_matrix(np.eye(5, dtype=np.float32))
    np.testing.assert_allclose(scorer.score_matrix(eye, eye), expected, rtol=1e-4, atol=1e-6)


def learned(name: str, q: Float64, delta: Float64) -> Float64:
    """Return q' delta'^T over the three features: of first neighbours, of all, or of neighbours of the same order."""
    images = [np.zeros((5, 3)) for _ in range(2)]
    for p, image in enumerate(images):
        rows = np.flatnonzero(NEAREST[:, p] >= 0)
        image[rows, NEAREST[rows, p]] = 1.0
    if name == "M12 k = 1":
        return np.outer(q @ images[0], delta @ images[0])
    if name == "M13 k = 2":
        both = sum(images) / 2
        return np.outer(q @ both, delta @ both)
    outers = [np.outer(q @ image, delta @ image) for image in images]
    return np.asarray(sum(outers) / 2)


@pytest.mark.parametrize("n_words", [0, 7, 20])
def test_M08_restricts_the_learned_part(n_words: int) -> None:
    data = translated(seeded_rng())
    shape = PlainShape("low_rank", n_words=n_words)
    scorer = fit_plain(shape, data, n_dims=5, rate=0.1, n_steps=2_000, init_std=0.2, rng=seeded_rng())
    assert isinstance(scorer, Bilinear)
    assert scorer.U.shape == scorer.V.shape == (n_words, 5)
    if n_words == 0:
        expected: Scorer = Bilinear.lexical()
    else:
        expected = scorer.restricted(n_words)
    np.testing.assert_array_equal(
        scorer.score_matrix(data.q_rows, data.d_rows), expected.score_matrix(data.q_rows, data.d_rows)
    )
    if n_words == 20:
        same = fit_plain("low_rank", data, n_dims=5, rate=0.1, n_steps=2_000, init_std=0.2, rng=seeded_rng())
        assert isinstance(same, Bilinear)
        np.testing.assert_array_equal(same.U, scorer.U)


def test_M26_R08_two_vocabularies() -> None:
    data = translated(seeded_rng(), n_query=15, n_document=25)
    scorer = fit_plain("no_identity", data, n_dims=15, rate=0.2, n_steps=40_000, init_std=0.3, rng=seeded_rng())
    assert isinstance(scorer, Bilinear)
    assert (scorer.U.shape, scorer.V.shape, scorer.identity) == ((15, 15), (25, 15), 0.0)
    assert rank_loss(scorer, data) < 0.03
    for shape in ("low_rank", "tied", "diagonal", "zero_diagonal"):
        with pytest.raises(ConfigError, match="queries have 15 words and documents 25"):
            fit_plain(shape, data, rng=seeded_rng())


def test_M17_learns_words_that_count_in_pairs_only() -> None:
    # Document words 0 and 1 together, or 2 and 3 together, are what query word 0 asks for; apart they say nothing.
    q_rows = unit_rows([[0]], 5)
    d_rows = unit_rows([[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]], 5)
    data = PlainData(q_rows, d_rows, csr([[1, 1, 0, 0, 0, 0]]), np.array([-1]))
    cubic = fit_plain("full_cubic", data, rate=0.2, n_steps=500, rng=seeded_rng())
    full = fit_plain("full", data, rate=0.2, n_steps=500, rng=seeded_rng())
    assert rank_loss(cubic, data) == 0
    assert rank_loss(full, data) >= 0.25  # no weights of single words order them all
    for shape in ("cubic", "cubic_separate"):
        low_rank = fit_plain(shape, data, n_dims=8, rate=0.1, n_steps=20_000, init_std=0.5, rng=seeded_rng())
        assert rank_loss(low_rank, data) == 0


@pytest.mark.parametrize("shape", ["full", "no_identity"])
def test_M12_M13_learn_over_neighbours(shape: str) -> None:
    rng = seeded_rng()
    data = translated(rng)
    k = 2 if shape == "full" else 1
    twins = np.stack([np.arange(20) // 2 * 2] * k, axis=1).astype(np.int32)  # two words are one feature
    both = correlated_map(twins, 20)
    scorer = fit_plain(shape, data.mapped(both), n_dims=10, rate=0.2, n_steps=30_000, init_std=0.3, rng=rng)
    assert isinstance(scorer, Mapped)
    scores = scorer.score_matrix(data.q_rows, data.d_rows)
    one, twin = (csr([[float(word == chosen) for word in range(20)]]) for chosen in (4, 5))
    np.testing.assert_array_equal(scorer.score_matrix(one, data.d_rows), scorer.score_matrix(twin, data.d_rows))
    assert scores.shape == (60, 60)
    assert rank_loss(scorer, data) < 0.25


def test_keywords_are_cut_before_the_map() -> None:
    data = replace(translated(seeded_rng()), keywords=1)
    first = top_n_map(20, 20)
    plain = fit_plain("no_identity", data, n_dims=10, rate=0.2, n_steps=30_000, init_std=0.3, rng=seeded_rng())
    mapped = fit_plain(
        "no_identity", data.mapped(first), n_dims=10, rate=0.2, n_steps=30_000, init_std=0.3, rng=seeded_rng()
    )
    np.testing.assert_array_equal(
        mapped.score_matrix(data.q_rows, data.d_rows), plain.score_matrix(data.q_rows, data.d_rows)
    )
    assert rank_loss(plain, data) < 0.05


def test_stops_early_and_returns_the_best() -> None:
    data = translated(seeded_rng())
    values = iter([5.0, 4.0, 1.0, 3.0, 1.0, 2.0, 0.5])
    seen: list[Bilinear] = []
    reports: list[int] = []

    def validate(scorer: Scorer) -> float:
        assert isinstance(scorer, Bilinear)
        seen.append(Bilinear(scorer.U.copy(), scorer.V.copy(), scorer.identity))
        return next(values)

    best = fit_plain(
        "low_rank",
        data,
        n_dims=4,
        n_steps=10_000,
        every=100,
        patience=3,
        rng=seeded_rng(),
        validate=validate,
        progress=reports.append,
    )
    assert len(seen) == 6  # the start, and five times 100 steps; the last three are no better than the third
    assert isinstance(best, Bilinear)
    np.testing.assert_array_equal(best.U, seen[2].U)
    assert reports == [100, 200, 300, 400, 500]


def test_the_start_is_kept_where_training_only_harms() -> None:
    data = translated(seeded_rng())
    best = fit_plain("full", data, n_steps=300, every=100, rng=seeded_rng(), validate=lambda s: float(s.W.any(0).sum()))  # type: ignore[attr-defined]
    assert isinstance(best, DenseWordPairs)
    np.testing.assert_array_equal(best.W, np.eye(20))


def test_tied_tables_stay_tied_in_the_best_copy() -> None:
    scorer = fit_plain("tied", translated(seeded_rng()), n_dims=3, n_steps=50, rng=seeded_rng(), validate=lambda _: 0.0)
    assert isinstance(scorer, Bilinear)
    assert scorer.is_tied


def test_training_goes_on_from_a_start() -> None:
    data = translated(seeded_rng())
    first = fit_plain("no_identity", data, n_dims=12, rate=0.2, n_steps=20_000, init_std=0.3, rng=seeded_rng())
    assert isinstance(first, Bilinear)
    kept = first.U.copy()
    cubic = fit_plain("cubic", data, n_dims=12, rate=1e-6, n_steps=1, init_std=0.0, rng=seeded_rng(), start=first)
    np.testing.assert_array_equal(first.U, kept)
    assert rank_loss(cubic, data) == pytest.approx(rank_loss(first, data), abs=0.02)
    with pytest.raises(ShapeMismatch, match="same words and dimensions"):
        fit_plain("low_rank", data, n_dims=11, rng=seeded_rng(), start=first)
    with pytest.raises(ConfigError, match="a Bilinear cannot start a DenseWordPairs"):
        fit_plain("full", data, rng=seeded_rng(), start=first)


def test_same_generator_state_same_scorer() -> None:
    data = translated(seeded_rng())
    left, right = (fit_plain("cubic", data, n_dims=4, n_steps=500, rng=seeded_rng(3)) for _ in range(2))
    assert isinstance(left, Polynomial) and isinstance(right, Polynomial)
    np.testing.assert_array_equal(left.U, right.U)


def test_the_order_of_words_in_a_row_does_not_matter() -> None:
    data = translated(seeded_rng())
    rows = data.q_rows
    turned = sp.csr_matrix((rows.data[::-1], rows.indices[::-1], rows.indptr), shape=rows.shape)[::-1]  # 3 words each
    assert not turned.has_sorted_indices
    shape = PlainShape("low_rank", n_words=10)
    left, right = (
        fit_plain(shape, replace(data, q_rows=queries), n_dims=4, n_steps=500, rng=seeded_rng())
        for queries in (rows, turned)
    )
    assert isinstance(left, Bilinear) and isinstance(right, Bilinear)
    np.testing.assert_allclose(left.U, right.U, rtol=1e-5)


def test_divergence_is_an_error() -> None:
    with pytest.raises(TrainingError, match="diverged"):
        fit_plain("cubic", translated(seeded_rng()), n_dims=4, rate=1e6, n_steps=2_000, rng=seeded_rng())


@pytest.mark.parametrize(
    "setting", [{"rate": 0.0}, {"rate": float("nan")}, {"n_steps": 0}, {"every": 0}, {"n_dims": 0}]
)
def test_settings_that_are_not_legal_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        fit_plain("low_rank", translated(seeded_rng()), rng=seeded_rng(), **setting)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "setting"),
    [("quadratic", {}), ("full", {"n_words": 3}), ("hash", {"n_slots": 0}), ("polynomial", {"degree": 1})],
)
def test_shapes_that_do_not_exist_are_refused(name: str, setting: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        PlainShape(name, **setting)


def test_one_step_over_a_judged_pair_moves_the_shared_words_of_query_and_documents() -> None:
    rows = unit_rows([[0], [0, 1], [0, 2]], 3)
    one = np.zeros(1, dtype=np.int64)
    sampler = PreferenceSampler(Triples(one, one + 2, one + 1))
    data = PlainData(rows[:1], rows, csr([[0, 0, 0]]), np.array([-1]))
    scorer = fit_plain("full", data, rate=0.5, n_steps=1, rng=seeded_rng(), sampler=sampler)
    assert isinstance(scorer, DenseWordPairs)
    # W = I + rate q (d+ - d-)^T with q = e0, d+ - d- = (e2 - e1) / sqrt(2); both documents hold e0 alike.
    expected = np.eye(3)
    expected[0] += 0.5 * np.array([0, -1, 1]) / np.sqrt(2)
    np.testing.assert_allclose(scorer.W, expected, atol=1e-6)
