"""The course's and S2Net's measures of graded rankings: MRR, top-1 accuracy, WTA, NDCG@k (spec E05 to E08)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import ConfigError, InputError
from reranker.evaluation.measures import evaluate_ranking, ndcg_gain

Values = npt.NDArray[np.float64]
Ranked = npt.NDArray[np.int32]

COURSE_GRADES: Mapping[str, int] = {"Perfect": 5, "Excellent": 4, "Good": 3, "Correct": 2, "Bad": 0}
"""COURSE's grades, with the gains 31, 15, 7, 3 and 0 (spec A25)."""

AD_GRADES: Mapping[str, int] = {"same": 2, "subset": 1, "superset": 1, "disjoint": 0}
"""S2Net's labels of query and ad; the gains are ours, 3, 1, 1 and 0 (spec A25)."""


def reciprocal_ranks(ranked: Ranked, grades: sp.csr_matrix, relevant_from: float = 1.0) -> Values:
    """Return 1 / rank of the first relevant document, 0 without one, (n_queries,) float64; its mean is the MRR.

    Parameters
    ----------
    ranked : (n_queries, depth) int32
        Document numbers, best first; -1 after the end.
    grades : csr_matrix, (n_queries, n_documents)
        Judgements; what is not stored is not relevant.
    relevant_from : float
        Least grade that counts as relevant.

    Source: spec 4.2, E05; A24 (the mean of 1/rank, not of the rank).
    """
    return evaluate_ranking(ranked, grades, ["RR"], relevant_from)["RR"]


def winners(ranked: Ranked, grades: sp.csr_matrix, relevant_from: float = 1.0) -> Values:
    """Return 1 where the top document is relevant and 0 elsewhere, (n_queries,) float64.

    The mean is WTA (winner takes all). With one relevant document a query, such as its mate, it is top-1 accuracy.
    Parameters as in `reciprocal_ranks`.

    Source: spec 4.2, E06 and E07.
    """
    return evaluate_ranking(ranked, grades, ["P@1"], relevant_from)["P@1"]


def ndcg(ranked: Ranked, grades: sp.csr_matrix, k: int) -> Values:
    """Return NDCG@k: Z_k sum_{j=1..k} (2**grade_j - 1) / log2(j + 1), Z_k making the ideal order 1; (n_queries,).

    A query without any grade above 0 has the value 0. Parameters as in `reciprocal_ranks`.

    Raises
    ------
    ConfigError
        If k is below 1.

    Source: spec 4.2, E08.
    """
    name = f"nDCG@{_depth(k)}"
    return evaluate_ranking(ranked, grades, [name])[name]


def dcg(grades: Sequence[float], k: int) -> float:
    """Return sum_{j=1..k} (2**grade_j - 1) / log2(j + 1) of the grades of one ranking, best first.

    Per-query values of it are what S2Net's paired t-test of NDCG compares (with `paired_test`).

    Raises
    ------
    ConfigError
        If k is below 1.
    InputError
        If a grade is not finite.

    Source: spec 4.2, E08 and E11.
    """
    kept = list(grades)[: _depth(k)]
    if not np.isfinite(kept).all():
        raise InputError(f"grades {kept} are not all finite: give unjudged documents the grade 0")
    gains = np.array([ndcg_gain(grade) for grade in kept])
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


def _depth(k: int) -> int:
    """Return k, at least 1."""
    if k < 1:
        raise ConfigError(f"k is {k}: a cut keeps at least 1 document")
    return k
