"""Texts as mixtures of topics, p(w | d) = sum_k theta_dk phi_kw: PLSA, joint PLSA and coupled PLSA (spec B11-B13).

One EM with Dirichlet priors serves all three models: a text has one topic mixture and one or two sides, and each side
has its own words and topics. PLSA has one side and JPLSA has two. CPLSA has two, with the additional constraint that
both use their topics in similar proportions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy.sparse as sp
from scipy.special import entr

from papers.methods.rows import check_counts, check_pairs
from reranker.arrays import Float32, Float64
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.scorers import unit
from reranker.text.rows import row_of

Similarity = Literal["cosine", "jensen_shannon"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "jensen_shannon")

_CELLS = 1 << 22


@dataclass(frozen=True, eq=False)
class TopicModel:
    """Score of the similarity of the topic mixtures of q and d, folded in by EM with fixed topics.

    cosine: theta_q.theta_d / (|theta_q| |theta_d|); jensen_shannon: 1 - JSD(theta_q, theta_d) / ln 2, where
    JSD(p, r) = H((p + r) / 2) - (H(p) + H(r)) / 2. Both are 1 for equal mixtures and 0 for disjoint ones. A text
    without known words has no mixture and scores 0.

    Raises
    ------
    ShapeMismatch
        If the two sides have different numbers of topics.
    InputError
        If a row is not a distribution.
    ConfigError
        If the similarity is unknown, the prior is below 1, or ``n_fold_in`` is below 1.

    Source: spec B11-B13, A33; 10 fold-in iterations as in B12.
    """

    phi_q: Float64
    phi_d: Float64
    """Word distributions of each side, (n_topics, n_words of that side) float64; each row sums to 1.

    The same array serves both sides if they share a vocabulary.
    """
    similarity: Similarity = "jensen_shannon"
    topic_prior: float = 1.0
    """Dirichlet parameter of the mixtures, at least 1."""
    n_fold_in: int = 10
    """Number of EM iterations for a new text, from the uniform mixture."""

    def __post_init__(self) -> None:
        if self.similarity not in SIMILARITIES:
            raise ConfigError(f"similarity {self.similarity!r} is not one of {', '.join(SIMILARITIES)}; choose one")
        if self.topic_prior < 1.0 or self.n_fold_in < 1:
            raise ConfigError(
                f"a topic prior of {self.topic_prior} with {self.n_fold_in} iterations cannot be used; "
                "both must be at least 1 (spec B11)"
            )
        if self.phi_q.ndim != 2 or self.phi_d.ndim != 2 or len(self.phi_q) != len(self.phi_d):
            raise ShapeMismatch(
                f"word distributions of shapes {self.phi_q.shape} and {self.phi_d.shape} do not share their topics; "
                "give one row per topic on both sides"
            )
        for phi in (self.phi_q, self.phi_d):
            if not (np.all(phi >= 0.0) and np.allclose(phi.sum(axis=1), 1.0, atol=1e-6)):
                raise InputError("a topic's word probabilities are negative or do not sum to 1; normalise every row")

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return theta of each count row, (n, K) float32; 0 for a row without known words."""
        return fold_in(q_rows, self.phi_q, self.topic_prior, self.n_fold_in)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return theta of each count row, (n, K) float32; 0 for a row without known words."""
        return fold_in(d_rows, self.phi_d, self.topic_prior, self.n_fold_in)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the similarity of every query and every document, (n_queries, n_documents) float32.

        Rows are word counts (any weights of at least 0), as wide as the vocabulary of their side.
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

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the similarity of query r and document r, (n_pairs,) float32."""
        check_pairs(q_rows, d_rows)
        queries, documents = self.embed_queries(q_rows), self.embed_documents(d_rows)
        if self.similarity == "cosine":
            return np.asarray(np.einsum("ij,ij->i", unit(queries), unit(documents)), dtype=np.float32)
        return _jensen_shannon(queries, documents)


def _jensen_shannon(left: Float32, right: Float32) -> Float32:
    """Return 1 - JSD / ln 2 over the last axis; 0 if either mixture is all 0."""
    apart = entr((left + right) / 2).sum(-1) - (entr(left).sum(-1) + entr(right).sum(-1)) / 2
    known = left.any(-1) & right.any(-1)
    alike = np.clip(1.0 - apart / np.log(2.0), 0.0, 1.0)
    return np.asarray(np.where(known, alike, 0.0), dtype=np.float32)


def token_shares(counts: sp.csr_matrix, theta: Float64, phi: Float64) -> sp.csr_matrix:
    """Return n_dw / sum_k theta_dk phi_kw at the stored counts, csr (n_texts, n_words) float64.

    With S the result, the expected numbers of tokens are theta o (S phi^T) by text and topic, and phi o (theta^T S) by
    topic and word, so the responsibilities need not be stored.
    """
    by_word = np.ascontiguousarray(phi.T)
    texts = row_of(counts)
    shares = np.empty(counts.nnz)
    step = max(1, _CELLS // max(1, len(phi)))
    for start in range(0, counts.nnz, step):
        block = slice(start, start + step)
        p = np.einsum("ek,ek->e", theta[texts[block]], by_word[counts.indices[block]])
        # A word that no topic can produce gives no information about the mixture and is left out.
        shares[block] = np.divide(counts.data[block], p, out=np.zeros_like(p), where=p > 0.0)
    return sp.csr_matrix((shares, counts.indices, counts.indptr), shape=counts.shape)


def fold_in(counts: sp.csr_matrix, phi: Float64, topic_prior: float, n_iterations: int) -> Float32:
    """Return the mixtures of new texts by EM on theta only: theta_dk prop. sum_w n_dw r_dwk + a - 1.

    Counts are (n_texts, n_words), phi is (K, n_words) float64 and ``topic_prior`` a. Rows of the result, (n_texts, K)
    float32, sum to 1; 0 for a text without known words.

    Raises
    ------
    InputError
        If a count is negative or not finite.
    ShapeMismatch
        If the counts and the topics have different numbers of words.
    """
    if counts.shape[1] != phi.shape[1]:
        raise ShapeMismatch(
            f"rows of {counts.shape[1]} words do not fit topics over {phi.shape[1]}; count the same words"
        )
    rows = check_counts(counts, "counts")
    theta = np.full((rows.shape[0], len(phi)), 1.0 / len(phi))
    known = rows @ phi.sum(axis=0) > 0.0
    for _ in range(n_iterations):
        theta *= token_shares(rows, theta, phi) @ phi.T
        theta += topic_prior - 1.0
        total = theta.sum(axis=1, keepdims=True)
        np.divide(theta, total, out=theta, where=total > 0.0)
    theta[~known] = 0.0
    return theta.astype(np.float32)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of the EM and of the resulting scorer.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    n_topics: int = 100
    """K."""
    n_iterations: int = 50
    topic_prior: float = 1.1
    word_prior: float = 1.01
    """a and b, the Dirichlet parameters of mixtures and of topics, at least 1 (1 is plain PLSA)."""
    slack: float = 0.02
    """eps >= 0 of CPLSA: the largest difference of a topic's shares between the two sides."""
    n_dual_steps: int = 5
    """Number of steps of CPLSA's dual in each EM iteration; it continues from the last iteration."""
    similarity: Similarity = "jensen_shannon"
    """Similarity of the scorer: "jensen_shannon" for comparable documents, "cosine" for ads (spec A33)."""
    n_fold_in: int = 10
    """Number of EM iterations for a new text."""

    def __post_init__(self) -> None:
        if min(self.n_topics, self.n_iterations, self.n_dual_steps, self.n_fold_in) < 1:
            raise ConfigError(f"{self} has no topic or no iteration; each number must be at least 1")
        if min(self.topic_prior, self.word_prior) < 1.0:
            raise ConfigError(f"priors {self.topic_prior} and {self.word_prior} must be at least 1 (MAP estimates)")
        if self.slack < 0.0:
            raise ConfigError(f"slack is {self.slack}: it must be at least 0 (0 requires equal shares)")


@dataclass(frozen=True, eq=False)
class TopicState:
    """State of the EM."""

    theta: Float64
    """Topic mixtures, (n_texts, K) float64."""
    phis: tuple[Float64, ...]
    """Topics, one array per side."""
    multipliers: Float64
    """l of CPLSA, (n_texts, K) float64; 0 for other models."""


Progress = Callable[[int, TopicState], None]


def fit_topic_model(
    sides: Sequence[sp.csr_matrix],
    settings: TopicSettings,
    *,
    rng: np.random.Generator,
    coupled: bool = False,
    progress: Progress | None = None,
) -> TopicModel:
    """Return the topics of texts by EM: theta_dk prop. sum_w n_dw r_dwk + a - 1, phi_kw likewise with b.

    One side gives PLSA, which is LDA by MAP (B11). Two sides give JPLSA: the texts of a pair, row l of both, share one
    mixture, and each side has its own words (B12). ``coupled`` gives CPLSA: JPLSA whose pairs must, in expectation,
    have similar shares of their tokens in each topic (B13, posterior regularisation; see `couple`).

    Parameters
    ----------
    sides : sequence of csr_matrix (n_texts, n_words of the side)
        Word counts of queries and documents together, without labels; or of both sides, queries first.
    settings : TopicSettings
        ``slack`` is the largest difference of shares between coupled sides.
    rng : Generator
        Draws the initial mixtures.
    progress : callable, optional
        Called with the iteration (from 1) and the state after it.

    Raises
    ------
    InputError
        If a side has no word, or a count is negative or not finite.
    ShapeMismatch
        If two sides have different numbers of rows.

    Source: spec B11 to B13.
    """
    n_texts = sides[0].shape[0]
    if any(side.shape[0] != n_texts for side in sides):
        raise ShapeMismatch(f"sides of {[side.shape[0] for side in sides]} texts are not pairs; give equal numbers")
    counts = tuple(check_counts(side, "sides") for side in sides)
    if any(side.sum() == 0.0 for side in counts):
        raise InputError("a side has no word, so no topic can be trained; give texts with known words")
    theta = rng.dirichlet(np.ones(settings.n_topics), size=n_texts)
    phis = tuple(rows_to_one((side.T @ theta).T + (settings.word_prior - 1.0)) for side in counts)
    state = TopicState(theta, phis, np.zeros_like(theta))
    for iteration in range(1, settings.n_iterations + 1):
        if coupled:
            state = couple(counts, state, settings)
        state = em_step(counts, state, settings)
        if progress is not None:
            progress(iteration, state)
    return TopicModel(state.phis[0], state.phis[-1], settings.similarity, settings.topic_prior, settings.n_fold_in)


def em_step(counts: Sequence[sp.csr_matrix], state: TopicState, settings: TopicSettings) -> TopicState:
    """Return the state after one iteration: responsibilities under the multipliers, then both distributions."""
    tokens = np.zeros_like(state.theta)
    phis = []
    for side, tilted, phi in zip(counts, tilted_mixtures(counts, state), state.phis, strict=True):
        shares = token_shares(side, tilted, phi)
        tokens += tilted * (shares @ phi.T)
        phis.append(rows_to_one(phi * (shares.T @ tilted).T + (settings.word_prior - 1.0)))
    return replace(state, theta=rows_to_one(tokens + (settings.topic_prior - 1.0)), phis=tuple(phis))


def tilted_mixtures(counts: Sequence[sp.csr_matrix], state: TopicState) -> tuple[Float64, ...]:
    """Return the mixtures that give each side's responsibilities: theta exp(-l / n1) and theta exp(+l / n2)."""
    if not state.multipliers.any():
        return tuple(state.theta for _ in counts)
    signs = (-1.0, 1.0)
    return tuple(
        state.theta * np.exp(sign * state.multipliers / np.maximum(_lengths(side), 1e-12))
        for side, sign in zip(counts, signs, strict=True)
    )


def topic_gap(counts: Sequence[sp.csr_matrix], state: TopicState) -> Float64:
    """Return the expected share of each topic in the first text less that in the second, (n_pairs, K)."""
    fractions = [
        tilted * (token_shares(side, tilted, phi) @ phi.T) / np.maximum(_lengths(side), 1e-12)
        for side, tilted, phi in zip(counts, tilted_mixtures(counts, state), state.phis, strict=True)
    ]
    both = np.logical_and(*(_lengths(side) > 0.0 for side in counts))
    return np.where(both, fractions[0] - fractions[1], 0.0)


def couple(counts: Sequence[sp.csr_matrix], state: TopicState, settings: TopicSettings) -> TopicState:
    """Return the state with multipliers closer to the optimum of the dual: max_l -ln Z(l) - eps |l|_1.

    The gradient of -ln Z is the gap between the topic shares of the two sides. Z's curvature is at most (1/n1 + 1/n2) /
    2, so proximal steps of 2 / (1/n1 + 1/n2) never overshoot: l = soft(l + step gap, step eps).
    """
    n1, n2 = (np.maximum(_lengths(side), 1e-12) for side in counts)
    step = 2.0 / (1.0 / n1 + 1.0 / n2)
    for _ in range(settings.n_dual_steps):
        moved = state.multipliers + step * topic_gap(counts, state)
        multipliers = np.sign(moved) * np.maximum(np.abs(moved) - step * settings.slack, 0.0)
        state = replace(state, multipliers=multipliers)
    return state


def rows_to_one(rows: Float64) -> Float64:
    """Return rows divided by their sums; rows of zeros become uniform."""
    total = rows.sum(axis=1, keepdims=True)
    return np.where(total > 0.0, rows / np.where(total > 0.0, total, 1.0), 1.0 / rows.shape[1])


def _lengths(side: sp.csr_matrix) -> Float64:
    """Return the number of tokens of each text, (n, 1)."""
    return np.asarray(side.sum(axis=1), dtype=np.float64).reshape(-1, 1)
