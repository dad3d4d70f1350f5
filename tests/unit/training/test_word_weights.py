"""Weights of query words: known answers, the loss they are the least of, and what they are learned from."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.evaluation import qrels_task
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus
from reranker.lexical.tuning import LexicalTask
from reranker.training.word_weights import N_OTHERS, N_RELEVANT, PRIORS, Choices, choices_of, word_weights
from tests.seeds import seeded_rng


def choices(products: list[list[float]], sizes: list[int]) -> Choices:
    """Return choices of dense products, the first document of each query being the relevant one."""
    starts = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64)
    target = np.zeros(len(products))
    target[starts] = 1
    return Choices(sp.csr_matrix(np.array(products, np.float64)), starts, target)


def test_a_word_that_leads_to_what_is_relevant_counts_more_and_one_that_leads_astray_less() -> None:
    learned = list(word_weights(choices([[1, 0, 1, 0], [0, 2, 1, 0]] * 40, [2] * 40)))
    assert len(learned) == len(PRIORS)
    for weights in learned:
        assert weights.dtype == np.float32
        assert weights[0] > 1 > weights[1] > 0
        np.testing.assert_array_equal(weights[2:], 1)  # it is in both, or in none: it decides nothing
    assert np.all(np.diff([weights[0] / weights[1] for weights in learned]) > 0)  # the weaker the prior, the further


@pytest.mark.parametrize("prior", range(len(PRIORS)))
def test_the_weights_are_where_the_loss_is_least(prior: int) -> None:
    rng = seeded_rng(3)
    sizes = [3, 4, 2, 5]
    data = choices((rng.random((sum(sizes), 3)) * (rng.random((sum(sizes), 3)) < 0.8)).tolist(), sizes)
    X, starts, target = data
    ends = [*starts[1:], len(target)]
    c = 10 / np.median([X[a:b].sum(axis=1).max() for a, b in zip(starts, ends, strict=True)])

    def loss(t: np.ndarray) -> float:
        value = PRIORS[prior] / 2 * float(t @ t)
        for a, b in zip(starts, ends, strict=True):
            scores = c * (X[a:b] @ np.exp(t))
            value -= float(target[a:b] @ (scores - np.log(np.exp(scores).sum())))
        return value

    t = np.log(list(word_weights(data))[prior].astype(np.float64))
    for step in np.vstack([np.eye(3), -np.eye(3)]) * 0.01:
        assert loss(t) < loss(t + step)


def test_without_a_query_there_is_nothing_to_weigh() -> None:
    assert list(word_weights(Choices(sp.csr_matrix((0, 4)), np.empty(0, np.int64), np.empty(0)))) == []


def test_relevant_documents_stand_among_those_that_stand_highest() -> None:
    """A query's documents: at most 5 relevant ones, then the 20 of highest score that are not."""
    rng = seeded_rng(5)
    counts = sp.csr_matrix((rng.random((60, 12)) < 0.4).astype(np.float32))
    corpus = LexicalCorpus([counts])
    settings = LexicalSettings("bm25", (1.0,), (1.0,), 1.2, (0.5,), corpus.mean_lengths)
    ids = [f"d{i:02}" for i in range(60)]
    grades = {"many": dict.fromkeys(ids[:9], 1.0), "one": {"d30": 1.0, "d31": 0.0}, "nothing": {"d03": 1.0}}
    task = qrels_task(grades, list(grades), ids)
    asked = sp.csr_matrix(np.vstack([np.ones(12), np.arange(12) < 4, np.zeros(12)]).astype(np.float32))
    queries = (asked[[("many", "one", "nothing").index(query) for query in task.query_ids]][:, : len(corpus.columns)],)
    lexical = LexicalTask(task, queries, np.arange(60))
    products, starts, target = choices_of(corpus, lexical, settings, seeded_rng(1))
    scores = corpus.scorer(queries, np.arange(60), settings).block(0, 3)
    assert len(starts) == 2  # the query without words has nothing to choose among
    for start, end, name in zip(starts, [*starts[1:], len(target)], ["many", "one"], strict=True):
        row = scores[list(task.query_ids).index(name)]
        relevant = {"many": range(9), "one": [30]}[name]
        shares = target[start:end]
        n = min(N_RELEVANT, len(relevant))
        np.testing.assert_allclose(shares, [1 / n] * n + [0] * (end - start - n))
        found = np.asarray(products[start:end].sum(axis=1)).ravel()
        others = np.sort([row[d] for d in range(60) if d not in relevant and row[d] > 0])[::-1][:N_OTHERS]
        np.testing.assert_allclose(np.sort(found[n:])[::-1], others, rtol=1e-5)
