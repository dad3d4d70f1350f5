"""What each word of a query should count in the lexical score, learned from which documents queries are relevant to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize

from reranker.arrays import Float32, Float64, Int64
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus
from reranker.lexical.tuning import LexicalTask
from reranker.text.rows import row_of

PRIORS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""How strongly weights are held to 1, in queries: what is tried, the strongest first."""
MAX_QUERIES = 6_000
N_RELEVANT = 5
"""Relevant documents of a query at most; of more, a random part."""
N_OTHERS = 20
"""Documents that stand highest for a query by the lexical score, and are not relevant."""
_SHARPNESS = 10.0
"""What the highest score of a query, the median over queries, is made before the softmax."""
_MAX_STEPS = 40
_BLOCK = 256


class Choices(NamedTuple):
    """Queries with relevant documents among those that stand highest, one row a document, together by query.

    ``products`` (n, n_words) float64 are q_i d_i, ``starts`` (n_queries,) int64 the first row of each query, and
    ``target`` (n,) float64 is 1 over the number of relevant documents for each of them, 0 for the others.
    """

    products: sp.csr_matrix
    starts: Int64
    target: Float64


def choices_of(
    corpus: LexicalCorpus, task: LexicalTask, settings: LexicalSettings, rng: np.random.Generator
) -> Choices:
    """Return what weights are learned from: up to 6,000 queries with 5 + 20 documents at most."""
    asked, rows_of, n_words = task.sample(rng, MAX_QUERIES), corpus.rows(settings), len(corpus.columns)
    q = _narrow(rows_of.queries(asked.queries), n_words)
    d = _narrow(rows_of.documents([field[asked.documents] for field in corpus.fields]), n_words)
    relevant, excluded = asked.task.relevant(), asked.task.excluded
    products, sizes = [q[:0]], [0]
    targets = [np.empty(0)]
    for start in range(0, q.shape[0], _BLOCK):
        asking = q[start : start + _BLOCK]
        scores = (asking @ d.T).toarray()
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
    """Yield weights of all words, (n_words,) float32 above 0, for each of `PRIORS`.

    w = exp(t), t being what makes sum over queries of cross entropy(target, softmax(c sum_i w_i q_i d_i)) + prior / 2
    |t|^2 least, as far as 40 steps of L-BFGS go from the weights of the prior before. A word that decides nothing keeps
    the weight 1. c makes the highest score of a query 10, the median over the queries.

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
