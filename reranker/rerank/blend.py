"""How the model's score and the engine's become one: score = alpha f + (1 - alpha) BM25 / c(q).

BM25 grows with the number and the rarity of the query's words, f (unit rows) does not: c(q) takes that growth out, so
that one alpha serves short and long queries. c depends on the query alone, so the blend is linear in BM25 and every
route, also one inside the engine, can compute it. ::

    c(q) = sum over the distinct words i of q of idf_i

is BM25's own upper bound of one field, up to a constant factor that differs between engines (Lucene leaves k1 + 1
out, tantivy keeps it) and that alpha absorbs: tf / (tf + k1 (...)) is below 1. It was chosen over the highest BM25
of the answer, which depends on the documents: adding one document would reorder the others, and pages would not fit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from reranker.errors import ConfigError

DEFAULT_ALPHA: Final = 0.5
"""Weight of the model before `ssi calibrate` has fitted one; the answer says that it was used."""

Float64s = npt.NDArray[np.float64]


def lexical_scale(idf: npt.NDArray[np.floating]) -> float:
    """Return c(q), the sum of the idf of the query's distinct words; 1 where it would be 0 (no word tells apart).

    Parameters
    ----------
    idf : (n_words,) float
        ln(N / df) of each distinct word of the query.
    """
    total = float(np.sum(idf, dtype=np.float64))
    return total if total > 0 else 1.0


def check_alpha(alpha: float) -> float:
    """Return ``alpha``, or raise `ConfigError` where it is not between 0 (the engine alone) and 1 (the model alone)."""
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha is {alpha}; it lies between 0 (the engine's order) and 1 (the model's order)")
    return float(alpha)


def blend(model_scores: Float64s, lexical_scores: Float64s, alpha: float, scale: float) -> Float64s:
    """Return alpha f + (1 - alpha) BM25 / c(q), (n,) float64; NaN where a part that counts is not finite.

    Parameters
    ----------
    model_scores : (n,) float64
        f(q, d).
    lexical_scores : (n,) float64
        The engine's ``_score``.
    alpha : float
        0 leaves f out of it, 1 leaves the engine's score out: the part of weight 0 may then be anything.
    scale : float
        c(q) > 0.
    """
    scores = np.zeros(len(model_scores))
    if alpha > 0.0:
        scores += alpha * model_scores
    if alpha < 1.0:
        scores += (1.0 - alpha) * (lexical_scores / scale)
    scores[~np.isfinite(scores)] = np.nan
    return scores
