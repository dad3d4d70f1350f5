"""Mixtures of two scorers, and scorers of another view of the query (spec B04, B15, B16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.composition import Mix
from papers.study_rows import Doubles, Floats
from reranker.baselines.tuning import TENTHS, Sweep, sweep
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.base import Scorer


@dataclass(frozen=True, eq=False)
class Standardised:
    """Scores (f(q, d) - m_q) / s_q, so that scorers of unlike scales (PSI, S2Net) can be mixed.

    m_q and s_q are the mean and the standard deviation (over n) of f's own scores of query q over a pool of documents.
    A scorer that gives the whole pool one score counts 0 for that query.

    Parameters
    ----------
    scorer : Scorer
        f.
    pool : csr_matrix
        Documents that set mean and deviation.

    Raises
    ------
    ConfigError
        For a pool without documents.

    Source
    ------
    Spec B16. The standardisation is ours: the papers print none.
    """

    scorer: Scorer
    pool: sp.csr_matrix

    def __post_init__(self) -> None:
        if not self.pool.shape[0]:
            raise ConfigError("the pool has no document: give the documents that set mean and deviation, or no pool")

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return the standardised score of every query with every document, (n_queries, n_documents) float32."""
        mean, deviation = self._scale(q_rows)
        scores = self.scorer.score_matrix(q_rows, d_rows).astype(np.float64)
        return np.asarray((scores - mean[:, None]) / deviation[:, None], dtype=np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return the standardised score of query r with document r, (n,) float32."""
        mean, deviation = self._scale(q_rows)
        scores = self.scorer.score_pairs(q_rows, d_rows).astype(np.float64)
        return np.asarray((scores - mean) / deviation, dtype=np.float32)

    def _scale(self, q_rows: sp.csr_matrix) -> tuple[Doubles, Doubles]:
        """Return mean and deviation of each query's scores over the pool."""
        scores = self.scorer.score_matrix(q_rows, self.pool).astype(np.float64)
        if not np.isfinite(scores).all():
            raise InputError("a scorer gives NaN or infinity: such scores have no mean; smooth it (lambda above 0)")
        deviation = scores.std(axis=1)
        # Rounding leaves a constant row a deviation of some 1e-16 of its size; that is not a spread to divide by.
        flat = deviation <= 1e-9 * np.abs(scores).max(axis=1, initial=0.0)
        return scores.mean(axis=1), np.where(flat, np.inf, deviation)


def mixture(first: Scorer, second: Scorer, alpha: float, pool: sp.csr_matrix | None = None) -> Mix:
    """Return alpha * f(q, d) + (1 - alpha) * g(q, d).

    Cosines (LSI, CL-LSI, TF-IDF) are mixed as they are: they share a scale. Others are first `Standardised`, where a
    pool is given.

    Parameters
    ----------
    first, second : Scorer
        f and g, over the same rows; `OnView` gives each its own part of the query.
    alpha : float
        0 (g alone) to 1 (f alone).
    pool : csr_matrix, optional
        Documents that set mean and deviation; without it nothing is standardised.

    Raises
    ------
    ConfigError
        For alpha outside of 0 to 1, or a pool without documents.

    Source
    ------
    PSI, Tables 1, 2 and 6; spec B04, B16.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha is {alpha!r}: the first scorer's share lies between 0 and 1")
    parts = (first, second) if pool is None else (Standardised(first, pool), Standardised(second, pool))
    return Mix(parts, (alpha, 1.0 - alpha))


def sweep_alpha(
    first: Scorer,
    second: Scorer,
    loss: Callable[[Mix], float],
    alphas: Sequence[float] = TENTHS,
    pool: sp.csr_matrix | None = None,
) -> Sweep[float, Mix]:
    """Return the mixture with the least loss on validation, and what every alpha reached.

    Source: spec B04, B16.
    """
    return sweep(lambda alpha: mixture(first, second, alpha, pool), loss, alphas)


@dataclass(frozen=True, eq=False)
class OnView:
    """Scores with a part of the query's columns: one row can hold a query in several languages side by side.

    ``side_by_side([japanese, translated])`` makes such rows; PSI(JapEng) then reads columns 0 to D_J - 1 and
    TFIDF(EngEng) the others, and `mixture` joins them (B16). Texts translated document by document elsewhere come in
    by the same way (B15a).

    Parameters
    ----------
    scorer : Scorer
        Of the part.
    start, stop : int
        The part's first column, and the column after its last.

    Raises
    ------
    ConfigError
        If the part is empty or starts below 0.
    """

    scorer: Scorer
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ConfigError(f"columns {self.start} to {self.stop} are not a part: start is at least 0 and below stop")

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return f of every query's part with every document, (n_queries, n_documents) float32."""
        return self.scorer.score_matrix(self._part(q_rows), d_rows)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return f of the part of query r with document r, (n,) float32."""
        return self.scorer.score_pairs(self._part(q_rows), d_rows)

    def _part(self, q_rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return the columns of the part."""
        if self.stop > q_rows.shape[1]:
            raise ShapeMismatch(
                f"columns {self.start} to {self.stop - 1} of a query of {q_rows.shape[1]:,}: make the rows with "
                f"side_by_side, in the order that the parts were numbered"
            )
        return q_rows[:, self.start : self.stop].tocsr()


def side_by_side(views: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
    """Return rows that hold several views of the same queries, one after the other, (n_queries, sum of widths).

    Raises
    ------
    ShapeMismatch
        If the views have different numbers of queries, or there is none.
    """
    if len({view.shape[0] for view in views}) != 1:
        raise ShapeMismatch(
            f"views of {[view.shape[0] for view in views]} queries do not go together: each needs a row a query"
        )
    rows: sp.csr_matrix = sp.hstack(views, format="csr")
    return rows
