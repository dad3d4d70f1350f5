"""PageRank: the probability that a random surfer is at a document."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float64
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError


def pagerank(
    links: sp.csr_matrix, damping: float = 0.85, tolerance: float = 1e-12, max_iterations: int = 10_000
) -> Float64:
    """Return the stationary probability of each document, (N,) float64, summing to 1.

    pi = pi P with P_ij = damping A_ij / outdeg(i) + (1 - damping) / N if i has links, and 1/N otherwise. The power
    iteration starts from 1/N and ends when the sum of absolute changes is at most ``tolerance``; the error is then at
    most damping / (1 - damping) times that.

    Parameters
    ----------
    links : csr_matrix, (N, N)
        A_ij >= 0: number of links from document i to document j; outdeg(i) = sum_j A_ij.
    damping : float
        Lambda, at least 0 and below 1: the probability of following a link. The course gives no value.
    tolerance : float
        Above 0.

    Raises
    ------
    ShapeMismatch
        If the links are not square.
    InputError
        For a negative or non-finite link, or no document.
    ConfigError
        If damping or tolerance is out of range.
    TrainingError
        If it has not converged after ``max_iterations``.

    Source: COURSE, PageRank; spec B21, A29 (rows without links are 1/N).
    """
    n = links.shape[0]
    if links.shape != (n, n):
        raise ShapeMismatch(f"links of shape {links.shape} are not square: rows and columns must be the same documents")
    if not (0.0 <= damping < 1.0 and tolerance > 0.0):
        raise ConfigError(f"damping is {damping!r} and tolerance {tolerance!r}: 0 <= damping < 1, tolerance above 0")
    if n == 0 or not (np.isfinite(links.data).all() and (links.data >= 0).all()):
        raise InputError("PageRank needs at least one document, and links that are finite and not negative")
    out_degree = np.asarray(links.sum(axis=1), dtype=np.float64).ravel()
    linked = out_degree > 0
    share = np.divide(damping, out_degree, out=np.zeros(n), where=linked)
    follow = (sp.diags(share) @ links.astype(np.float64)).T.tocsr()
    rank: Float64 = np.full(n, 1.0 / n)
    for _ in range(max_iterations):
        # Probability that does not follow a link is spread evenly: (1 - damping) of linked documents, all of the
        # others.
        jump = 1.0 - damping * rank[linked].sum()
        new: Float64 = follow @ rank + jump / n
        new /= new.sum()
        change = np.abs(new - rank).sum()
        rank = new
        if change <= tolerance:
            return rank
    raise TrainingError(
        f"PageRank still changes by {change:.2e} after {max_iterations:,} steps: raise the limit, or the tolerance "
        f"of {tolerance:g}"
    )
