"""How much less the lower ranks are looked at, and what a click there therefore weighs.

A click says that a document was looked at *and* liked. The examination propensity p_k is the probability that rank k
is looked at, relative to the rank looked at most; a click at rank k stands for 1 / p_k likings (inverse propensity
scoring, Joachims, Swaminathan, Schnabel 2017). Four ways to find p_k, by what the log holds:

- ``randomised``: some lists were shuffled and marked so. Every document is at every rank equally often, so click rates
  by rank show examination alone. The only way that assumes nothing of the readers.
- ``em``: the position-based model, P(click) = p_rank * liking(query, document), by expectation maximisation (Wang,
  Golbandi, Bendersky, Metzler, Najork 2018, with a liking of its own for each query and document in the place of their
  regression). It needs documents that were seen often, at several ranks for the same query.
- ``harvest``: the same model, from an equation that holds however rarely each document was seen (Agarwal, Zaitsev,
  Wang, Li, Najork, Joachims 2019): of a document's clicks, the share at rank k is in proportion to its showings there
  times p_k.
- ``rate``: the click rate by rank itself. Better documents stand higher, so it takes part of their merit for bias: it
  gives too much to clicks on low ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reranker.clicks.click_counts import (
    MIN_SHOWN,
    ClickCounts,
    click_rate_by_rank,
    comparable_ranks,
    count_clicks,
    ranks_with_enough,
)
from reranker.clicks.position_model import fit_expectation_maximisation, fit_harvest
from reranker.errors import ConfigError, InputError

Floats = npt.NDArray[np.float64]

MIN_RANDOMISED_CLICKS = 400
"""Clicks at each rank of shuffled lists from which ``auto`` trusts them alone: a standard error of 5 %."""
DEFAULT_CLIP = 10.0


@dataclass(frozen=True)
class Propensities:
    """Examination by rank, relative to the rank that is looked at most (the first, as a rule).

    Parameters
    ----------
    by_rank : tuple of float
        p_1, p_2, ...; above 0, at most 1. Deeper ranks have the last one.
    method : str
        How it was found, a key of `METHODS`, or ``given``.
    n : int
        Result lists it rests on.

    Raises
    ------
    InputError
        For an empty list or a value outside of (0, 1].
    """

    by_rank: tuple[float, ...]
    method: str = "given"
    n: int = 0

    def __post_init__(self) -> None:
        if not self.by_rank or not all(0 < p <= 1 for p in self.by_rank):
            raise InputError(f"propensities {self.by_rank}: give at least one, each a number above 0 and at most 1")

    def at(self, ranks: npt.ArrayLike) -> Floats:
        """Return p of ranks (from 1), of their shape."""
        numbers = np.asarray(ranks, dtype=np.int64)
        if (numbers < 1).any():
            raise InputError(f"rank {int(numbers.min())}: ranks count from 1")
        chosen: Floats = np.array(self.by_rank)[np.minimum(numbers, len(self.by_rank)) - 1]
        return chosen

    def to_json(self) -> dict[str, Any]:
        """Return the propensities as JSON has them."""
        return {"by_rank": list(self.by_rank), "method": self.method, "n": self.n}

    @classmethod
    def from_json(cls, value: Any) -> Propensities:
        """Return the propensities that `to_json` wrote; a bare list of numbers is taken as ``by_rank``.

        Raises
        ------
        InputError
            If it is neither.
        """
        table: dict[str, Any] = {"by_rank": value} if isinstance(value, list) else value
        try:
            return cls(tuple(float(p) for p in table["by_rank"]), str(table.get("method", "given")),
                       int(table.get("n", 0)))  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{str(value)[:80]!r} are no propensities: give a JSON object with by_rank, a list of numbers, as "
                f"`ssi clicks propensities --out` writes it"
            ) from error


def pair_weights(
    rank_better: npt.ArrayLike, propensities: Propensities | Sequence[float], clip: float | None = DEFAULT_CLIP
) -> Floats:
    """Return min(1 / p(rank of the click), clip): the weight of a pair whose better document was clicked at a rank.

    Parameters
    ----------
    rank_better : array of int
        Rank of the clicked document, from 1.
    propensities : Propensities or sequence of float
    clip : float or None
        Largest weight: a little bias for much less variance, since few clicks at rarely seen ranks would otherwise
        decide. None: no limit.

    Raises
    ------
    ConfigError
        For a clip that is not above 0.

    Notes
    -----
    Source: Joachims, Swaminathan, Schnabel 2017, sections 4 and 5.1 (clipping).
    """
    if clip is not None and not clip > 0:
        raise ConfigError(f"clip is {clip}: the largest weight must be above 0")
    known = propensities if isinstance(propensities, Propensities) else Propensities(tuple(propensities))
    weights = 1.0 / known.at(rank_better)
    return weights if clip is None else np.minimum(weights, clip)


def propensities_by_rate(counts: ClickCounts) -> Propensities:
    """Return click rates by rank, divided by the highest; all lists count.

    A rank without a click counts as half a click, so that its propensity stays above 0.

    Raises
    ------
    InputError
        If rank 1 was shown too rarely or never clicked.
    """
    return _by_rate(counts, "rate")


def propensities_from_randomised(counts: ClickCounts) -> Propensities:
    """Return click rates by rank in the lists marked as shuffled, divided by the highest.

    Raises
    ------
    InputError
        If no list is marked, or rank 1 was shown too rarely or never clicked in them.
    """
    if not counts.randomised.any():
        raise InputError(
            "no result list is marked as randomised: shuffle the results of a small share of searches and log "
            "randomised = true with them, or use --method harvest, em or rate"
        )
    return _by_rate(counts.only(counts.randomised), "randomised")


def propensities_by_em(counts: ClickCounts) -> Propensities:
    """Return p of the position-based model P(click) = p_rank * liking(query, document), by expectation maximisation.

    Each query and document has a liking of its own, under a prior too weak to matter. Where documents were seen only a
    few times each, so many likings to find bend the propensities: `propensities_by_harvest` does not mind. Ranks are
    comparable only through documents seen at several of them: propensities end before the first rank without such a
    link to rank 1.

    Raises
    ------
    InputError
        If the order of results never changed, so that merit and rank cannot be told apart.

    Notes
    -----
    On clicks that follow a cascade, p_k is about the share of the readers who come as far as rank k, averaged over
    lists: where that depends much on what stands above, no number for a rank is right.

    Source: Wang et al. 2018, section 4; Chuklin, Markov, de Rijke 2015, section 4.2.2 (EM of the position-based model).
    """
    return _by_model(counts, "em", fit_expectation_maximisation)


def propensities_by_harvest(counts: ClickCounts) -> Propensities:
    """Return p of the same model, from documents that were shown at several ranks; sparse logs do no harm.

    Solves, for every rank k over documents i shown N_ik times and clicked C_ik times there, ::

        sum_i C_ik = sum_i (sum_k' C_ik') N_ik p_k / (sum_k' N_ik' p_k')

    Its two sides have equal means at the true p whatever the likings are, which need not be estimated.

    Raises
    ------
    InputError
        If the order of results never changed, so that merit and rank cannot be told apart.

    Notes
    -----
    Source: Agarwal et al. 2019 (intervention harvesting); the equation is the conditional likelihood of Poisson counts.
    """
    return _by_model(counts, "harvest", fit_harvest)


METHODS: dict[str, Callable[[ClickCounts], Propensities]] = {
    "randomised": propensities_from_randomised,
    "harvest": propensities_by_harvest,
    "em": propensities_by_em,
    "rate": propensities_by_rate,
}
"""Ways to find propensities, by name."""


def estimate_propensities(counts: ClickCounts, method: str = "auto") -> Propensities:
    """Return propensities by a method of `METHODS`, or by the soundest that the log allows (``auto``).

    ``auto`` takes randomised lists where each of their ranks has at least 400 clicks. Fewer say more together with the
    lists that were not shuffled: then, and wherever else the order of results has changed, it takes what
    `propensities_by_harvest` finds, else click rates.

    Raises
    ------
    ConfigError
        For an unknown method.
    InputError
        If the log does not hold what the method needs.
    """
    if method in METHODS:
        return METHODS[method](counts)
    if method != "auto":
        raise ConfigError(f"method is {method!r}: choose auto, {', '.join(METHODS)}", value=method)
    shown, clicked = counts.only(counts.randomised).by_rank()
    n_ranks = ranks_with_enough(shown)
    if n_ranks and int(clicked[:n_ranks].min()) >= MIN_RANDOMISED_CLICKS:
        return propensities_from_randomised(counts)
    if comparable_ranks(counts) >= 2:
        return propensities_by_harvest(counts)
    return propensities_by_rate(counts)


def _by_rate(counts: ClickCounts, method: str) -> Propensities:
    shown, clicked = counts.by_rank()
    n_ranks = ranks_with_enough(shown)
    if n_ranks == 0 or clicked[0] == 0:
        seen, taken = (int(shown[0]), int(clicked[0])) if len(shown) else (0, 0)
        raise InputError(
            f"rank 1 was shown {seen} times and clicked {taken} times: propensities need at least {MIN_SHOWN} "
            f"showings and a click there; give a longer log"
        )
    rate = np.maximum(clicked[:n_ranks], 0.5) / shown[:n_ranks]
    return Propensities(tuple((rate / rate.max()).tolist()), method, int(shown[0]))


def _by_model(counts: ClickCounts, method: str, fit: Callable[[ClickCounts, int], Floats]) -> Propensities:
    n_ranks = comparable_ranks(counts)
    if n_ranks < 2:
        raise InputError(
            f"documents were not seen at several ranks for the same query (or rank 1 was shown fewer than {MIN_SHOWN} "
            f"times), so that a document's merit and its rank cannot be told apart: use --method randomised (shuffle "
            f"a share of the results), or --method rate"
        )
    kept = counts.only(counts.rank <= n_ranks)
    theta = fit(kept, n_ranks)
    return Propensities(tuple((theta / theta.max()).tolist()), method, int(kept.shown[kept.rank == 1].sum()))


__all__ = [
    "DEFAULT_CLIP",
    "METHODS",
    "ClickCounts",
    "Propensities",
    "click_rate_by_rank",
    "count_clicks",
    "estimate_propensities",
    "pair_weights",
    "propensities_by_em",
    "propensities_by_harvest",
    "propensities_by_rate",
    "propensities_from_randomised",
]
