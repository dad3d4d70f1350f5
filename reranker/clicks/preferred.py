"""Preferences of users among the documents shown for a repeated query, from clicks over expected clicks.

For one query q, the attraction of document d is estimated from three numbers: c, the people who clicked it; e, the
people who are expected to have examined it; and s, its score as served. The people of older lists count less in c
and e (`reranker.clicks.pairs.Rating`). With a Poisson model ::

    c ~ Poisson(e a),   a = m g,   m = exp(u_q + b (s - mean s)),   g ~ Gamma with mean 1 and variance 1 / k

m is the attraction that the score predicts, and g what the document has beyond it. The slope b is the same for all
queries and fitted by the likelihood given each query's number of clicks, which does not depend on u_q; u_q then makes
the expected clicks of a query equal to its clicks. k is the one of `PRIOR_CLICKS` with the highest likelihood. The
posterior mean of g is a ratio of clicks over expected clicks, shrunken by k clicks ::

    g = (c + k) / (m e + k)

A document that attracts g times as much as its score predicts deserves a score that is ln(g) / b higher: that is its
preference. If the clicks vary no more than chance would let them, the best k is infinite, and there is no preference.

Sources: Zhang, Jones 2007 (clicks over expected clicks); Efron, Morris 1973 (empirical Bayes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from reranker.arrays import Float64, Int64
from reranker.errors import ShapeMismatch

PRIOR_CLICKS: Final = tuple(2.0 ** (step / 2) for step in range(-6, 17))
"""Values of k that are tried, besides infinity."""
LEAST_SLOPE: Final = 0.05
"""Least b, per standard deviation of the scores of a query. A score that says nothing about clicks has the slope 0."""
N_STEPS: Final = 50
"""Largest number of Newton steps for b."""


@dataclass(frozen=True, slots=True)
class FoundPreferences:
    """Preferences of documents, and the parameters that they follow from."""

    values: Float64
    """Preference of each row in units of the score, (n,) float64; 0 for all rows if ``prior_clicks`` is infinite."""
    slope: float
    """b, per unit of the score, at least `LEAST_SLOPE` per standard deviation."""
    prior_clicks: float
    """k; infinite if the clicks are as the scores predict."""


def preferences(query: Int64, clicks: Float64, examined: Float64, score: Float64) -> FoundPreferences:
    """Return the preferences of the documents that were shown for queries.

    Parameters
    ----------
    query
        (n,) int64: number of the query of each row, from 0. A row is a document that was shown for a query.
    clicks
        (n,) float64: number of people who clicked the document.
    examined
        (n,) float64, at least 0: expected number of people who examined it.
    score
        (n,) float64: score of the document for the query, as served. Rows without a finite score get no preference.

    Raises
    ------
    ShapeMismatch
        If the arrays differ in length.
    """
    if not query.shape == clicks.shape == examined.shape == score.shape or query.ndim != 1:
        raise ShapeMismatch(
            f"queries, clicks, examinations and scores have shapes {query.shape}, {clicks.shape}, {examined.shape} and "
            f"{score.shape}: give one value per row in each"
        )
    values = np.zeros(len(query))
    used = np.flatnonzero(np.isfinite(score) & (examined > 0))
    q = np.unique(query[used], return_inverse=True)[1]
    # A query without a click, or with a single document, says nothing about which of its documents is better.
    informs = (np.bincount(q, clicks[used]) > 0) & (np.bincount(q) > 1)
    used, q = used[informs[q]], np.unique(q[informs[q]], return_inverse=True)[1]
    if not len(used):
        return FoundPreferences(values, 0.0, np.inf)
    c, e, s = clicks[used], examined[used], score[used]
    z = s - (np.bincount(q, s) / np.bincount(q))[q]
    unit = float(np.sqrt(np.mean(z * z))) or 1.0
    slope = max(_slope(q, c, e, z / unit), LEAST_SLOPE)
    weight = e * np.exp(np.clip(slope * z / unit, -30.0, 30.0))
    expected = weight * (np.bincount(q, c) / np.bincount(q, weight))[q]
    prior = _prior_clicks(c, expected)
    if np.isfinite(prior):
        values[used] = np.log((c + prior) / (expected + prior)) * unit / slope
    return FoundPreferences(values, slope / unit, prior)


def _slope(q: Int64, c: Float64, e: Float64, z: Float64) -> float:
    """Return the b of the highest likelihood of the clicks, given the number of clicks of each query.

    Given it, a query's clicks are multinomial with chances proportional to e exp(b z). The logarithm of this likelihood
    is concave in b. The result is between -10 and 10.
    """
    total, b = np.bincount(q, c), 0.0
    for _ in range(N_STEPS):
        share = e * np.exp(np.clip(b * z, -30.0, 30.0))
        share /= np.bincount(q, share)[q]
        mean = np.bincount(q, share * z)
        variance = np.bincount(q, share * z * z) - mean**2
        curvature = float(total @ variance)
        if curvature <= 0:
            break
        step = float(c @ z - total @ mean) / curvature
        b = float(np.clip(b + np.clip(step, -1.0, 1.0), -10.0, 10.0))
        if abs(step) < 1e-9:
            break
    return b


def _prior_clicks(c: Float64, expected: Float64) -> float:
    """Return the k of the highest likelihood; infinity if that of a Poisson distribution is as high.

    c is negative binomial with the mean m e and the variance m e + (m e)² / k.
    """
    from scipy.special import gammaln

    m = np.maximum(expected, 1e-12)
    best, prior = float(np.sum(c * np.log(m) - m)), np.inf
    for k in PRIOR_CLICKS:
        parts = gammaln(c + k) - gammaln(k) - (c + k) * np.log1p(m / k) + c * np.log(m / k)
        if (value := float(np.sum(parts))) > best + 1e-9:
            best, prior = value, k
    return prior
