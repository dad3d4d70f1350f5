"""What the gate looks at: shown lists with their clicks and both models' scores, and judged queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reranker.clicks.schema import Impression
from reranker.errors import ConfigError, InputError, ShapeMismatch

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GateConfig:
    """What a model must show to go live.

    Parameters
    ----------
    margin : float
        The lower bound of the difference (candidate - live) in nDCG must be above it.
    confidence : float
        Of each one-sided bound.
    tolerance : float
        How far the reciprocal rank of the clicks (its lower bound) and the nDCG of judged queries (its mean) may fall.
    max_weight : float
        Most that a click may count, in clicks at the best examined rank.
    min_clusters : float
        Least effective number of people (or sessions), or of judged queries where there are no clicks.
    measured_weights : bool
        The propensities come from lists shown in random order. Only then may the live order be no better than random.
    resamples : int
    n_changes : int
        Queries listed that lost most, and that gained most.
    """

    margin: float = 0.0
    confidence: float = 0.95
    tolerance: float = 0.01
    max_weight: float = 10.0
    min_clusters: float = 30.0
    measured_weights: bool = False
    resamples: int = 1_999
    n_changes: int = 20

    def __post_init__(self) -> None:
        rules = (
            ("margin", 0 <= self.margin < 1, "at least 0 and below 1"),
            ("confidence", 0.5 <= self.confidence < 1, "at least 0.5 and below 1"),
            ("tolerance", 0 <= self.tolerance < 1, "at least 0 and below 1"),
            ("max_weight", 1 <= self.max_weight < np.inf, "at least 1"),
            ("min_clusters", 2 <= self.min_clusters < np.inf, "at least 2"),
            ("resamples", self.resamples >= 100, "at least 100"),
            ("n_changes", self.n_changes >= 0, "at least 0"),
        )
        for name, legal, rule in rules:
            if not legal:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be {rule}")


@dataclass(frozen=True)
class ShownLists:
    """Whole impressions, and how both models score what was shown.

    Rows are the shown documents of all impressions one after the other; those of impression i are
    ``indptr[i]:indptr[i + 1]``.

    Parameters
    ----------
    indptr : (n + 1,) int64
    rank : (n_rows,) int64
        1-based place at which the document was shown; none twice in an impression.
    clicked : (n_rows,) bool
    live, candidate : (n_rows,) float64
        Scores as they would be served, bigger is better. NaN in both: the document is gone, and is left out.
    query : sequence of n str
    cluster : sequence of n str
        Who searched: all impressions of a user (or session) carry the same value. Empty: nobody else's.
    """

    indptr: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    clicked: npt.NDArray[np.bool_]
    live: Values
    candidate: Values
    query: Sequence[str]
    cluster: Sequence[str]

    def __post_init__(self) -> None:
        n, rows = len(self.indptr) - 1, len(self.rank)
        lengths = {len(self.clicked), len(self.live), len(self.candidate)}
        if n < 0 or lengths != {rows} or self.indptr[-1] != rows or {len(self.query), len(self.cluster)} != {n}:
            raise ShapeMismatch(
                f"shown lists of {rows} ranks, {sorted(lengths)} clicks and scores, {len(self.query)} queries and "
                f"{len(self.cluster)} clusters do not fit an indptr of {n + 1}: one value a row, and one an impression"
            )
        if rows and self.rank.min() < 1:
            raise InputError(f"a document was shown at rank {self.rank.min()}: ranks count from 1")
        if np.any(np.isnan(self.live) != np.isnan(self.candidate)) or np.any(np.isinf([self.live, self.candidate])):
            raise InputError(
                "a shown document has a finite score by one model and none by the other: score the same documents "
                "with both, and give NaN in both for a document that is gone"
            )


@dataclass(frozen=True)
class JudgedQueries:
    """nDCG (or another measure) of judged queries by both models: ``query`` n str; ``live``, ``candidate`` (n,)."""

    query: Sequence[str]
    live: Values
    candidate: Values

    def __post_init__(self) -> None:
        if not len(self.query) == len(self.live) == len(self.candidate):
            raise ShapeMismatch(
                f"{len(self.query)} judged queries have {len(self.live)} live and {len(self.candidate)} new values: "
                f"give one each"
            )
        if not (np.isfinite(self.live).all() and np.isfinite(self.candidate).all()):
            raise InputError("a judged query has a value that is not finite: leave it out for both models")


def shown_lists(
    impressions: Sequence[Impression], live: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]
) -> ShownLists:
    """Return the arrays of impressions and of the scores of their shown documents, in the order shown.

    Impressions without a click are left out: they add 0 to numerators and denominators alike. An impression's cluster
    is its user, else its session.

    Raises
    ------
    ShapeMismatch
        If an impression and its scores differ in length.
    """
    if not len(impressions) == len(live) == len(candidate):
        raise ShapeMismatch(f"{len(impressions)} impressions, {len(live)} and {len(candidate)} lists of scores")
    rows: list[tuple[int, bool, float, float]] = []
    lengths, queries, clusters = [0], [], []
    for one, old, new in zip(impressions, live, candidate, strict=True):
        if not len(one.shown) == len(old) == len(new):
            raise ShapeMismatch(
                f"impression {one.query_id!r} has {len(one.shown)} documents, {len(old)} live and {len(new)} new "
                f"scores: give one score a shown document"
            )
        if not one.clicked:
            continue
        rows += [(d.rank, d.clicked, float(a), float(b)) for d, a, b in zip(one.shown, old, new, strict=True)]
        lengths.append(len(one.shown))
        queries.append(one.query)
        clusters.append(f"user {one.user}" if one.user else f"session {one.session}" if one.session else "")
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    return ShownLists(
        np.cumsum(lengths, dtype=np.int64),
        np.array(columns[0], dtype=np.int64),
        np.array(columns[1], dtype=np.bool_),
        np.array(columns[2], dtype=np.float64),
        np.array(columns[3], dtype=np.float64),
        tuple(queries),
        tuple(clusters),
    )
