"""Standard errors and paired tests over queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reranker.errors import ShapeMismatch

Values = npt.NDArray[np.float64]

RESAMPLES = 1_999
_BATCH_BYTES = 2**25


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The difference of two systems on the same queries.

    Parameters
    ----------
    difference : float
        Mean of first minus second.
    standard_error : float
        Of that mean, over queries.
    p_t_test : float
        Two-sided p of the paired t-test.
    p_randomisation : float or None
        Two-sided p of Fisher's randomisation test: twice the share of random exchanges of the two systems, query by
        query, whose mean difference is at least as far out (1,999 exchanges and the one observed: never below
        .001). None where it was not asked for.
    n : int
        Queries compared.
    """

    difference: float
    standard_error: float
    p_t_test: float
    p_randomisation: float | None
    n: int


def standard_error(values: Values) -> float:
    """Return the standard error of the mean, s / sqrt(n) with s over n - 1; 0 for fewer than two values.

    Source: spec A04 (the papers' +- values are standard errors over queries).
    """
    return 0.0 if len(values) < 2 else float(np.std(values, ddof=1) / np.sqrt(len(values)))


def paired_test(first: Values, second: Values, rng: np.random.Generator | None = None) -> PairedTest:
    """Return mean difference and p of two paired tests (scipy's): t-test and Fisher randomisation.

    Parameters
    ----------
    first, second : (n,) float64
        One value per query, in the same order of queries.
    rng : Generator, optional
        Draws the exchanges of the randomisation test; without it only the t-test is made (it costs nothing, the
        other about a quarter of a second a thousand queries).

    Raises
    ------
    ShapeMismatch
        If the lengths differ.
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ShapeMismatch(f"paired values have shapes {first.shape} and {second.shape}: one value per query in each")
    difference = first - second
    mean = float(difference.mean()) if len(difference) else 0.0
    if len(difference) < 2 or not np.any(difference):
        # Identical systems (or nothing to compare): no test can tell them apart.
        return PairedTest(mean, 0.0, 1.0, None if rng is None else 1.0, len(difference))
    return PairedTest(
        difference=mean,
        standard_error=standard_error(difference),
        p_t_test=_t_test(difference),
        p_randomisation=None if rng is None else _randomisation(difference, rng),
        n=len(difference),
    )


def _t_test(difference: Values) -> float:
    """Return the two-sided p of the paired t-test.

    For a constant difference t is infinite, however few the queries; the p given is then that of all exchanges of
    the systems being equally likely, 2**(1 - n).
    """
    from scipy import stats

    if np.ptp(difference) == 0.0:
        return float(2.0 ** (1 - len(difference)))
    return float(stats.ttest_1samp(difference, 0.0).pvalue)


def _randomisation(difference: Values, rng: np.random.Generator) -> float:
    """Return the two-sided p of random sign flips."""
    from scipy import stats

    # Exchanging the systems of a query flips the sign of its difference; queries with equal values change nothing.
    moved = difference[difference != 0.0]
    if len(moved) < 2:
        return 1.0  # exchanging one query gives a mean just as far out
    result = stats.permutation_test(
        (moved,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH_BYTES // (8 * len(moved))),
        rng=rng,
    )
    return float(result.pvalue)
