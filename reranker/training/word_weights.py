"""Weights of query words in the lexical score, learned from the documents that queries are relevant to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize

from reranker.arrays import Float32, Float64, Int64
from reranker.kernels.rows import dense_products
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus
from reranker.lexical.tuning import LexicalTask
from reranker.text.rows import row_of

PRIORS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""Strengths of the prior that holds weights to 1, in queries; tried from the strongest to the weakest."""
MAX_QUERIES = 6_000
"""Largest number of queries that weights are learned from."""
N_RELEVANT = 5
"""Largest number of relevant documents of a query; of more, a random sample is used."""
N_OTHERS = 20
"""Number of documents with the highest lexical scores for a query that are not relevant to it."""
_SHARPNESS = 10.0
"""Factor of scores before the softmax: the median over queries of their highest score becomes this number."""
_MAX_STEPS = 40  # of L-BFGS, for each prior
_BLOCK = 256  # queries scored at a time


class Choices(NamedTuple):
    """Queries with relevant documents and the other documents of highest score; one row per document, by query."""

    products: sp.csr_matrix
    """q_i d_i for each word i, (n, n_words) float64."""
    starts: Int64
    """First row of each query, (n_queries,) int64."""
    target: Float64
    """1 / (number of relevant documents of the query) for relevant documents, 0 for others, (n,) float64."""


def choices_of(
    corpus: LexicalCorpus, task: LexicalTask, settings: LexicalSettings, rng: np.random.Generator
) -> Choices:
    """Return the training data: up to 6,000 queries, each with up to 5 relevant and 20 other documents."""
    asked, rows_of, n_words = task.sample(rng, MAX_QUERIES), corpus.rows(settings), len(corpus.columns)
    q = _narrow(rows_of.queries(asked.queries), n_words)
    d = _narrow(rows_of.documents([field[asked.documents] for field in corpus.fields]), n_words)
    postings = d.T.tocsr()
    relevant, excluded = asked.task.relevant(), asked.task.excluded
    products, sizes = [q[:0]], [0]
    targets = [np.empty(0)]
    for start in range(0, q.shape[0], _BLOCK):
        asking = q[start : start + _BLOCK]
        scores = dense_products(asking, postings)
        for part in (relevant, excluded):
            block = part[start : start + _BLOCK]
            scores[row_of(block), block.indices] = -np.inf
        n = min(N_OTHERS, scores.shape[1])
        highest = np.argpartition(-scores, n - 1, axis=1)[:, :n]
        queries: list[int] = []
        rows: list[int] = []
        for number, (columns, values) in enumerate(zip(highest, scores, strict=True)):
            good = relevant.indices[relevant.indptr[start + number] : relevant.indptr[start + number + 1]]
            others = np.sort(columns[values[columns] > 0])
            if len(good) and len(others):
                good = np.sort(rng.choice(good, min(len(good), N_RELEVANT), replace=False))
                rows += [*good.tolist(), *others.tolist()]
                sizes.append(len(good) + len(others))
                queries += [number] * sizes[-1]
                targets.append(np.repeat([1 / len(good), 0.0], [len(good), len(others)]))
        products.append(asking[queries].multiply(d[rows]).tocsr())
    starts = np.cumsum(sizes, dtype=np.int64)[:-1]
    return Choices(sp.vstack(products, format="csr").astype(np.float64), starts, np.concatenate(targets))


def word_weights(choices: Choices) -> Iterator[Float32]:
    """Yield the weights of all words for each of `PRIORS`, (n_words,) float32, above 0.

    w = exp(t), where t minimizes the sum over queries of cross entropy(target, softmax(c sum_i w_i q_i d_i)), plus
    prior / 2 |t|^2. Up to 40 steps of L-BFGS start from the weights of the previous prior. A word without influence
    keeps the weight 1. c is chosen such that the median over queries of their highest score is 10.

    Source: the conditional logit of McFadden 1974 (ListNet's top-1 loss, Cao et al. 2007), for spec M02's diagonal.
    """
    X, starts, target = choices
    if not len(starts):
        return
    XT = X.T.tocsr()
    sizes = np.diff(starts, append=len(target))
    c = _SHARPNESS / float(np.median(np.maximum.reduceat(np.asarray(X.sum(axis=1)).ravel(), starts)))

    def loss(t: Float64, prior: float) -> tuple[float, Float64]:
        w = np.exp(t)
        scores = c * (X @ w)
        scores -= np.repeat(np.maximum.reduceat(scores, starts), sizes)
        shares = np.exp(scores)
        sums = np.repeat(np.add.reduceat(shares, starts), sizes)
        value = float(np.sum(target * (np.log(sums) - scores)) + prior / 2 * np.sum(t * t))
        return value, c * (XT @ (shares / sums - target)) * w + prior * t

    t = np.zeros(X.shape[1])
    for prior in PRIORS:
        t = minimize(loss, t, args=(prior,), jac=True, method="L-BFGS-B", options={"maxiter": _MAX_STEPS}).x
        yield np.exp(t).astype(np.float32)


def _narrow(rows: sp.csr_matrix, n_columns: int) -> sp.csr_matrix:
    return sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(rows.shape[0], n_columns))
