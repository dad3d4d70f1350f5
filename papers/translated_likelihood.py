"""Mates found by how likely each text is as a translation of the other (spec B15b with B19, both ways)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.language_model import fit_language_model
from papers.study_rows import Floats
from papers.translation import TranslatedQueries
from papers.translation_tables import fit_ibm_table
from reranker.errors import ConfigError
from reranker.models.base import Scorer


@dataclass(frozen=True, eq=False)
class BothWays:
    """Scores share * f(q, d) + (1 - share) * g(d, q): the second scorer takes documents for queries.

    Parameters
    ----------
    forward, backward : Scorer
        f and g, of scores that compare between queries as well.
    share : float
        0 to 1.

    Raises
    ------
    ConfigError
        For a share outside of 0 to 1.
    """

    forward: Scorer
    backward: Scorer
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ConfigError(f"share is {self.share!r}: the forward scorer's part lies between 0 and 1")

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        forward = self.forward.score_matrix(q_rows, d_rows)
        backward = self.backward.score_matrix(d_rows, q_rows).T
        return self._mixed(forward, backward)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return the score of query r with document r, (n,) float32."""
        return self._mixed(self.forward.score_pairs(q_rows, d_rows), self.backward.score_pairs(d_rows, q_rows))

    def _mixed(self, forward: Floats, backward: Floats) -> Floats:
        """Return the weighted sum."""
        return np.asarray(self.share * forward + (1.0 - self.share) * backward, dtype=np.float32)


def fit_translated_likelihood(
    q_counts: sp.csr_matrix,
    d_counts: sp.csr_matrix,
    *,
    lam: float = 0.4,
    n_candidates: int = 40,
    n_iterations: int = 5,
) -> BothWays:
    """Return the mean of both texts' likelihoods per word, each as a translation of the other.

    f(q, d) = (1 / |q'|) sum_e q'_e log(p(e|d) / P_e), q' the word-by-word translation of q by model 1,
    p(e|d) = (1 - lam) x_e / |d| + lam P_e, and P the training collection; g the same from d to q. Rows are counts.
    A sum of logarithms lets every rare word that is missing count against a document, which a cosine does not.

    Parameters
    ----------
    q_counts, d_counts : csr_matrix, (n_pairs, D_q) and (n_pairs, D_d)
        Row r of both is a pair of mates.
    lam : float
        Above 0 and at most 1.
    n_candidates, n_iterations : int
        See `fit_ibm_table`.

    Raises
    ------
    ConfigError
        For settings outside of their ranges.
    TrainingError
        If there is no pair.

    Source: ours; parts from spec B15 (c) and B19.
    """
    if not 0.0 < lam <= 1.0:
        raise ConfigError(
            f"lam is {lam!r}: smoothing lies above 0, as likelihoods of -inf cannot be added, and up to 1"
        )
    forward, backward = (
        TranslatedQueries(
            fit_ibm_table(source, target, n_candidates, n_iterations), fit_language_model(target, lam, per_word=True)
        )
        for source, target in ((q_counts, d_counts), (d_counts, q_counts))
    )
    return BothWays(forward, backward)
