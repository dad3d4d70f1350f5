# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""Correlated feature hashing in training: mixtures with a learned or tuned weight (M10, M13 to M16)."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.fitting import best_of, learn_mix
from papers.methods.lexical import mixture
from papers.methods.word_pairs import (
    Bilinear,
    DenseWordPairs,
    Diagonal,
    Mapped,
    Mix,
    correlated_map,
    dice_neighbours,
    join_columns,
    top_n_map,
)
from papers.plain_sgd import PlainData, PlainShape, fit_plain
from reranker.errors import ConfigError
from reranker.lexical.tuning import TENTHS
from tests.seeds import seeded_rng
from tests.unit.training.small_worlds import csr, rank_loss, translated

N_FREQUENT = 8


def with_rare_words(rng: np.random.Generator, n: int = 120) -> PlainData:
    """Return texts with topics: query topic t asks for documents of topic (t + 1) mod 8.

    The frequent word t tells the topic of half of the texts; of the others, only rare words and 2-grams (columns 8 to
    31 and 32 to 39) do, which stand beside word t in the half that has both.
    """
    q, d = (np.zeros((n, 40), np.float32) for _ in range(2))
    topic = rng.integers(N_FREQUENT, size=n)
    for row, t in enumerate(topic):
        for side, word in ((q, t), (d, (t + 1) % N_FREQUENT)):
            side[row, 8 + 3 * word + rng.integers(3)] = 1
            side[row, 32 + word] = 1
            side[row, word] = rng.random() < 0.6
    relevant = csr((topic[:, None] == topic[None, :]).astype(np.float32).tolist())
    return PlainData(csr(q.tolist()), csr(d.tolist()), relevant, np.full(n, -1))


def only_columns(data: PlainData, kept: np.ndarray) -> PlainData:
    keep = sp.diags_array(kept.astype(np.float32), format="csr")
    return PlainData(sp.csr_matrix(data.q_rows @ keep), sp.csr_matrix(data.d_rows @ keep), data.relevant, data.own)


@pytest.mark.parametrize(
    ("first", "last"), [(8, 32), (32, 40), (8, 40)], ids=["M14 1-grams", "M15 2-grams", "M16 both"]
)
def test_M14_M15_M16_rare_features_help_through_their_neighbours(first: int, last: int) -> None:
    rng = seeded_rng()
    columns = np.arange(40)
    replaced = (columns >= first) & (columns < last)
    data = only_columns(with_rare_words(rng), (columns < 8) | replaced)
    texts = sp.csr_matrix(sp.vstack([data.q_rows, data.d_rows], format="csr"))
    neighbours = dice_neighbours(texts, N_FREQUENT, 1)
    words, others = top_n_map(40, 32), correlated_map(neighbours, N_FREQUENT, replaced)
    frequent, rare = (
        fit_plain(shape, data.mapped(kept), rng=rng, n_dims=8, rate=0.1, n_steps=10_000, init_std=0.3)
        for shape, kept in ((PlainShape("low_rank", n_words=N_FREQUENT), words), (PlainShape("no_identity"), others))
    )
    mix = learn_mix(frequent, rare, data, rng=rng, n_steps=5_000)
    assert isinstance(frequent, Mapped) and isinstance(rare, Mapped)
    assert isinstance(frequent.scorer, Bilinear) and isinstance(rare.scorer, Bilinear)
    assert (frequent.scorer.U.shape, frequent.scorer.identity) == ((8, 8), 1.0)
    assert (rare.scorer.U.shape, rare.scorer.identity) == ((8, 8), 0.0)
    assert mix.weights[0] == 1.0 and mix.weights[1] > 0.1
    assert rank_loss(mix, data) < rank_loss(frequent, data) - 0.05
    assert rank_loss(mix, data) < 0.1


def test_M13_exact_form_pairs_equal_ranks_only() -> None:
    rng = seeded_rng()
    neighbours = rng.integers(4, size=(9, 3)).astype(np.int32)
    W = rng.normal(size=(4, 4)).astype(np.float32)
    q, d = (csr(rng.random((3, 9)).tolist()) for _ in range(2))
    expected = np.zeros((3, 3))
    for s, t in np.ndindex(9, 9):
        weight = np.mean([W[neighbours[s, p], neighbours[t, p]] for p in range(3)])
        expected += weight * np.outer(q.toarray()[:, s], d.toarray()[:, t])
    # Equations 6 and 7: each p has a map of its own, without the cross terms of a map by all of them (A12).
    maps = [correlated_map(neighbours[:, [p]], 4) for p in range(3)]
    exact = Mix(tuple(Mapped(DenseWordPairs(W), map_) for map_ in maps), (1 / 3,) * 3)
    found = exact.score_matrix(q, d)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_M14_the_weight_of_a_mixture_is_learned_by_the_hinge() -> None:
    # f_A is 0; f_B is 0.5 above for every tuple: mu rises by 0.1 * 0.5 while mu * 0.5 < 1, so to 2
    data = PlainData(csr([[1, 0]]), csr([[0.5, 0], [0, 1]]), csr([[1, 0]]), np.array([-1]))
    nothing, exact = Diagonal(np.zeros(2, np.float32)), Bilinear.lexical()
    mix = learn_mix(nothing, exact, data, rng=seeded_rng(), n_steps=200, rate=0.1)
    assert mix.weights == pytest.approx((1.0, 2.0), rel=1e-6)
    harmful = Diagonal(np.array([-1, 0], np.float32))
    assert learn_mix(nothing, harmful, data, rng=seeded_rng(), n_steps=200, rate=0.1).weights[1] == pytest.approx(-2.0)
    enough = Diagonal(np.array([2, 0], np.float32))  # A alone keeps the margin
    assert learn_mix(enough, exact, data, rng=seeded_rng(), n_steps=200).weights == (1.0, 0.0)
    with pytest.raises(ConfigError, match="cannot train a mixture"):
        learn_mix(nothing, exact, data, rng=seeded_rng(), n_steps=1)


def test_M10_the_weight_of_a_mixture_is_tuned_on_validation() -> None:
    data = translated(seeded_rng())
    a, b = Diagonal(np.zeros(20, np.float32)), Bilinear.lexical()
    assert TENTHS[0] == 0.0 and TENTHS[-1] == 1.0 and len(TENTHS) == 11
    _, chosen, _ = best_of(TENTHS, lambda alpha: mixture(a, b, alpha), lambda mix: abs(mix.weights[0] - 0.3))
    assert chosen.weights == pytest.approx((0.3, 0.7))
    alpha, _, _ = best_of([1.0, 0.5], lambda alpha: mixture(a, b, alpha), lambda mix: rank_loss(mix, data))
    assert alpha == (1.0 if rank_loss(b, data) >= 0.5 else 0.5)
    with pytest.raises(ConfigError, match="at least 1"):
        best_of([], lambda alpha: mixture(a, b, alpha), lambda _: 0.0)


def test_words_and_ngrams_stand_side_by_side() -> None:
    joined = join_columns(csr([[1, 0], [0, 2]]), csr([[3], [0]]))
    assert joined.toarray().tolist() == [[1, 0, 3], [0, 2, 0]]
    assert joined.dtype == np.float32
