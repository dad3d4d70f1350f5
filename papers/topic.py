"""Texts as mixtures of topics: p(w | d) = sum_k theta_dk phi_kw, scored by how alike the mixtures are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import entr

from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.projection import unit

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Similarity = Literal["cosine", "jensen_shannon"]
SIMILARITIES: tuple[str, ...] = ("cosine", "jensen_shannon")

_CELLS = 1 << 22


@dataclass(frozen=True, eq=False)
class TopicModel:
    """Scores the likeness of the topic mixtures of q and d, folded in by EM with the topics held fixed.

    cosine: theta_q.theta_d / (|theta_q| |theta_d|); jensen_shannon: 1 - JSD(theta_q, theta_d) / ln 2, where
    JSD(p, r) = H((p + r) / 2) - (H(p) + H(r)) / 2. Both are 1 for equal mixtures and 0 for disjoint ones. A text
    of which no word is known has no mixture and scores 0.

    Parameters
    ----------
    phi_q, phi_d : (n_topics, n_words of that side) float64
        Word distributions, each row of sum 1; the very same array where both sides share a vocabulary.
    similarity : "cosine" or "jensen_shannon"
    topic_prior : float
        Dirichlet parameter of the mixtures, at least 1.
    n_fold_in : int
        EM iterations for a new text, from the uniform mixture.

    Raises
    ------
    ShapeMismatch
        If the two sides have not the same number of topics.
    InputError
        If a row is not a distribution.
    ConfigError
        If the similarity is unknown, the prior below 1 or there is no iteration.

    Source
    ------
    spec B11-B13, A33; 10 fold-in iterations as in B12.
    """

    phi_q: Doubles
    phi_d: Doubles
    similarity: Similarity = "jensen_shannon"
    topic_prior: float = 1.0
    n_fold_in: int = 10

    def __post_init__(self) -> None:
        if self.similarity not in SIMILARITIES:
            raise ConfigError(f"similarity {self.similarity!r} is not one of {', '.join(SIMILARITIES)}; choose one")
        if self.topic_prior < 1.0 or self.n_fold_in < 1:
            raise ConfigError(
                f"a topic prior of {self.topic_prior} with {self.n_fold_in} iterations cannot be used; "
                "the prior must be at least 1 (spec B11) and one iteration or more is needed"
            )
        if self.phi_q.ndim != 2 or self.phi_d.ndim != 2 or len(self.phi_q) != len(self.phi_d):
            raise ShapeMismatch(
                f"word distributions of shapes {self.phi_q.shape} and {self.phi_d.shape} do not share their topics; "
                "give one row a topic on both sides"
            )
        for phi in (self.phi_q, self.phi_d):
            if not (np.all(phi >= 0.0) and np.allclose(phi.sum(axis=1), 1.0, atol=1e-6)):
                raise InputError("a topic's word probabilities are negative or do not sum to 1; normalise every row")

    @property
    def n_topics(self) -> int:
        """K."""
        return len(self.phi_q)

    def embed_queries(self, q_rows: sp.csr_matrix) -> Floats:
        """Return theta of each count row, (n, K) float32; 0 for a row without known words."""
        return fold_in(q_rows, self.phi_q, self.topic_prior, self.n_fold_in)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Floats:
        """Return theta of each count row, (n, K) float32; 0 for a row without known words."""
        return fold_in(d_rows, self.phi_d, self.topic_prior, self.n_fold_in)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return the likeness of every query and every document, (n_queries, n_documents) float32.

        Parameters
        ----------
        q_rows, d_rows : csr_matrix
            Word counts (any weights of at least 0), as wide as the vocabulary of their side.
        """
        queries, documents = self.embed_queries(q_rows), self.embed_documents(d_rows)
        if self.similarity == "cosine":
            return np.asarray(unit(queries) @ unit(documents).T, dtype=np.float32)
        scores = np.empty((len(queries), len(documents)), np.float32)
        step = max(1, _CELLS // max(1, documents.size))
        for start in range(0, len(queries), step):
            block = slice(start, start + step)
            scores[block] = _jensen_shannon(queries[block, None, :], documents[None, :, :])
        return scores

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return the likeness of query r and document r, (n_pairs,) float32.

        Raises
        ------
        ShapeMismatch
            If there are not as many documents as queries.
        """
        if q_rows.shape[0] != d_rows.shape[0]:
            raise ShapeMismatch(f"{q_rows.shape[0]} queries cannot be paired with {d_rows.shape[0]} documents")
        queries, documents = self.embed_queries(q_rows), self.embed_documents(d_rows)
        if self.similarity == "cosine":
            return np.asarray(np.einsum("ij,ij->i", unit(queries), unit(documents)), dtype=np.float32)
        return _jensen_shannon(queries, documents)


def _jensen_shannon(left: Floats, right: Floats) -> Floats:
    """Return 1 - JSD / ln 2 over the last axis; 0 where either mixture is all 0."""
    apart = entr((left + right) / 2).sum(-1) - (entr(left).sum(-1) + entr(right).sum(-1)) / 2
    known = left.any(-1) & right.any(-1)
    alike = np.clip(1.0 - apart / np.log(2.0), 0.0, 1.0)
    return np.asarray(np.where(known, alike, 0.0), dtype=np.float32)


def token_shares(counts: sp.csr_matrix, theta: Doubles, phi: Doubles) -> sp.csr_matrix:
    """Return n_dw / sum_k theta_dk phi_kw at the stored counts, csr (n_texts, n_words) float64.

    With S the result, the expected numbers of tokens are theta o (S phi^T) by text and topic and phi o (theta^T S)
    by topic and word: the responsibilities themselves are never stored.

    Parameters
    ----------
    counts : csr_matrix (n_texts, n_words)
        n_dw.
    theta : (n_texts, K) float64
    phi : (K, n_words) float64
    """
    by_word = np.ascontiguousarray(phi.T)
    texts = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    shares = np.empty(counts.nnz)
    step = max(1, _CELLS // max(1, len(phi)))
    for start in range(0, counts.nnz, step):
        block = slice(start, start + step)
        p = np.einsum("ek,ek->e", theta[texts[block]], by_word[counts.indices[block]])
        # A word that no topic can produce says nothing about the mixture: it is left out.
        shares[block] = np.divide(counts.data[block], p, out=np.zeros_like(p), where=p > 0.0)
    return sp.csr_matrix((shares, counts.indices, counts.indptr), shape=counts.shape)


def fold_in(counts: sp.csr_matrix, phi: Doubles, topic_prior: float, n_iterations: int) -> Floats:
    """Return the mixtures of new texts: EM on theta alone, theta_dk prop. sum_w n_dw r_dwk + a - 1.

    Parameters
    ----------
    counts : csr_matrix (n_texts, n_words)
    phi : (K, n_words) float64
    topic_prior : float
        a.
    n_iterations : int

    Returns
    -------
    (n_texts, K) float32
        Rows sum to 1; 0 for a text without known words.

    Raises
    ------
    InputError
        If a count is negative or not finite.
    ShapeMismatch
        If the counts are not as wide as the topics.
    """
    rows = checked_counts(counts, phi.shape[1])
    theta = np.full((rows.shape[0], len(phi)), 1.0 / len(phi))
    known = rows @ phi.sum(axis=0) > 0.0
    for _ in range(n_iterations):
        theta *= token_shares(rows, theta, phi) @ phi.T
        theta += topic_prior - 1.0
        total = theta.sum(axis=1, keepdims=True)
        np.divide(theta, total, out=theta, where=total > 0.0)
    theta[~known] = 0.0
    return theta.astype(np.float32)


def checked_counts(counts: sp.csr_matrix, n_words: int) -> sp.csr_matrix:
    """Return the counts in float64.

    Raises
    ------
    ShapeMismatch
        If they are not ``n_words`` wide.
    InputError
        If one is negative, NaN or infinite.
    """
    if counts.shape[1] != n_words:
        raise ShapeMismatch(f"rows of {counts.shape[1]} words do not fit topics over {n_words}; count the same words")
    rows = sp.csr_matrix(counts, dtype=np.float64)
    if not (np.isfinite(rows.data).all() and bool((rows.data >= 0.0).all())):
        raise InputError("a word count is negative, NaN or infinite; topics need counts (or weights) of at least 0")
    return rows
