"""Correlated feature hashing on top of other models: mixtures with a learned weight (spec 2.4, M10, M14, M15, M16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from papers.methods.lexical import sweep
from papers.methods.word_pairs import Mapped, Mix, correlated_map, top_n_map
from papers.plain_sgd import PlainData, PlainShape, TripleSampler, fit_plain
from reranker.baselines.tuning import TENTHS
from reranker.errors import ConfigError
from reranker.models.base import Scorer
from reranker.training.keywords import cut_to_keywords

_CHUNK = 5_000


def fit_correlated_mix(  # noqa: PLR0913 - one keyword a choice of the paper
    data: PlainData,
    neighbours: npt.NDArray[np.int32],
    *,
    n_frequent: int,
    n_words: int,
    n_restricted: int,
    replaced: npt.NDArray[np.bool_],
    rng: np.random.Generator,
    mix_steps: int = 20_000,
    mix_rate: float = 0.01,
    **settings: Any,
) -> Mix:
    """Return f = f_A + mu f_B, the paper's best system: A restricted to frequent words, B on neighbours of others.

    A is (U^T V)_n + I over words (M08); B is U^T V without identity over the map of `correlated_map`, both by
    `fit_plain` and apart; then mu by the same hinge with A and B as they are (A14).

    Parameters
    ----------
    data : PlainData
        Rows whose columns are the words 0 .. ``n_words`` - 1, then any n-grams (`join_columns`). No maps.
    neighbours : (n_columns, k) int32
        From `dice_neighbours`, of each column.
    n_frequent : int
        F.
    n_words : int
        D: columns that A sees.
    n_restricted : int
        n: words that A has embeddings of.
    replaced : (n_columns,) bool
        Columns that B sees: words from n on (M14), n-grams (M15), or both (M16).
    rng : Generator
        For everything random.
    mix_steps, mix_rate : int, float
        See `learn_mix`.
    **settings
        Of `fit_plain`, for both models.

    Returns
    -------
    Mix of (A, B) with weights (1, mu)

    Raises
    ------
    ConfigError, TrainingError
        As `fit_plain`.

    Notes
    -----
    Source: spec 2.4 (7).
    """
    words = top_n_map(data.q_rows.shape[1], n_words)
    others = correlated_map(neighbours, n_frequent, replaced)
    frequent = fit_plain(PlainShape("low_rank", n_words=n_restricted), data.mapped(words, words), rng=rng, **settings)
    rare = fit_plain("no_identity", data.mapped(others, others), rng=rng, **settings)
    return learn_mix(frequent, rare, data, rng=rng, n_steps=mix_steps, rate=mix_rate)


def correlated_exact(inner: Scorer, neighbours: npt.NDArray[np.int32], n_frequent: int) -> Mix:
    """Return the printed form of top-k correlated hashing, which pairs p-th neighbours with p-th neighbours alone.

    f(q, d) = (1/k) sum_p sum_st q_s d_t W[S_p(s), S_p(t)], without the cross terms of `correlated_map` (A12). k times
    its cost.

    Parameters
    ----------
    inner : Scorer
        q^T W d over the F frequent words.
    neighbours : (D, k) int32
        From `dice_neighbours`.
    n_frequent : int
        F.

    Notes
    -----
    Source: spec 2.4 (4), equations 6 and 7.
    """
    k = neighbours.shape[1]
    maps = [correlated_map(neighbours[:, [p]], n_frequent) for p in range(k)]
    return Mix(tuple(Mapped(inner, one, one) for one in maps), (1.0 / k,) * k)


def learn_mix(
    a: Scorer, b: Scorer, data: PlainData, *, rng: np.random.Generator, n_steps: int = 20_000, rate: float = 0.01
) -> Mix:
    """Return f_A + mu f_B with mu learned by SGD on the hinge of f, A and B as they are.

    Where 1 - f(q, d+) + f(q, d-) > 0, mu += rate (f_B(q, d+) - f_B(q, d-)), from 0. The mean of the second half of the
    steps is taken, for the last step alone wanders.

    Parameters
    ----------
    a, b : Scorer
        Over the rows of ``data``.
    data : PlainData
        Tuples.
    rng : Generator
        Draws them.
    n_steps : int
        At least 2.
    rate : float
        lambda > 0.

    Returns
    -------
    Mix of (a, b) with weights (1, mu)

    Raises
    ------
    ConfigError
        If the steps or the rate are not legal.

    Notes
    -----
    Source: spec 2.4 (7), M14, A14.
    """
    if n_steps < 2 or not rate > 0:
        raise ConfigError(f"{n_steps} steps of the rate {rate} learn no mixture: give 2 or more, and a rate above 0")
    sampler = TripleSampler(data)
    mu = total = 0.0
    step = 0
    while step < n_steps:
        triples = sampler.draw(min(_CHUNK, n_steps - step), rng)
        q_rows = data.q_rows[triples.query]
        if data.keywords is not None:
            q_rows = cut_to_keywords(q_rows, data.keywords, rng)
        better, worse = data.d_rows[triples.positive], data.d_rows[triples.negative]
        a_gain, b_gain = (f.score_pairs(q_rows, better) - f.score_pairs(q_rows, worse) for f in (a, b))
        for gain, other in zip(a_gain.tolist(), b_gain.tolist(), strict=True):
            if 1.0 - gain - mu * other > 0:
                mu += rate * other
            if step >= n_steps // 2:
                total += mu
            step += 1
    return Mix((a, b), (1.0, total / (n_steps - n_steps // 2)))


def tune_mix(a: Scorer, b: Scorer, weights: Sequence[tuple[float, float]], validate: Callable[[Scorer], float]) -> Mix:
    """Return the mixture of two scorers with the smallest validation value; of equal ones the first.

    Parameters
    ----------
    a, b : Scorer
        Parts.
    weights : sequence of (float, float)
        Weights to try: (alpha, 1 - alpha) for M10 and B04, (1, mu) for M14.
    validate : callable
        A value to be made small.

    Raises
    ------
    ConfigError
        If there is nothing to try.
    InputError
        If a value is NaN.
    """
    return sweep(lambda pair: Mix((a, b), pair), validate, weights).scorer


ALPHAS: tuple[tuple[float, float], ...] = tuple((alpha, 1 - alpha) for alpha in TENTHS)
"""(alpha, 1 - alpha) in steps of a tenth."""
