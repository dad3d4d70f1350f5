"""The strongest pairs and the largest changes are those of the dense table, looked up by words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reranker.models.ranking_model import RankingModel
from reranker.words import strongest_pairs
from tests.served import model_of, random_documents

DOCUMENTS = random_documents(150, n_words=40)
QUERIES = [f"word{i} word{(i * 7 + 1) % 40} word{(i * 3 + 1) % 40}" for i in range(40)]
"""Each word stands in at least two of them."""


def dense(model: RankingModel) -> dict[tuple[str, str], float]:
    """Return U_i . V_j of all pairs of two different words, those of documents in at least three of them."""
    vocabulary = model.encoder.document_vocabulary
    table = model.U.astype(np.float64) @ model.encoder.V.astype(np.float64).T
    return {
        (a, b): float(table[i, j])
        for i, a in enumerate(vocabulary.words)
        for j, b in enumerate(vocabulary.words)
        if i != j and vocabulary.document_frequency[j] >= 3
    }


def test_pairs_are_those_of_the_dense_table() -> None:
    new, old = model_of(DOCUMENTS, seed=1), model_of(DOCUMENTS, seed=2)
    weights, before = dense(new), dense(old)
    queried = {word for query in QUERIES for word in query.split()}
    known = {pair: value for pair, value in weights.items() if pair[0] in queried}
    strongest, changed = strongest_pairs(new, old, QUERIES, 15)
    expected = sorted(known, key=lambda pair: -known[pair])[:15]
    assert [(one.query_word, one.document_word) for one in strongest] == expected
    by_change = sorted(known, key=lambda pair: -abs(known[pair] - before[pair]))[:15]
    assert [(one.query_word, one.document_word) for one in changed] == by_change
    for one in (*strongest, *changed):
        assert one.weight == pytest.approx(weights[one.query_word, one.document_word])
        assert one.before == pytest.approx(before[one.query_word, one.document_word])


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = model_of(DOCUMENTS, seed=1), model_of(DOCUMENTS, seed=2)
    whole = strongest_pairs(new, old, QUERIES, 10)
    monkeypatch.setattr("reranker.words._BLOCK", 3)
    parts = strongest_pairs(new, old, QUERIES, 10)
    for first, second in zip(whole, parts, strict=True):
        assert [(one.query_word, one.document_word) for one in first] == [
            (one.query_word, one.document_word) for one in second
        ]
        assert [one.weight for one in first] == pytest.approx([one.weight for one in second])


def test_another_vocabulary_is_met_by_words() -> None:
    """A model with fewer words knows nothing of the others: their weight before was 0."""
    new, old = model_of(DOCUMENTS, seed=1), model_of(DOCUMENTS, max_words=10, seed=2)
    strongest, _ = strongest_pairs(new, old, QUERIES, 30)
    words = set(old.encoder.document_vocabulary.words)
    before = dense(old)
    assert {one.query_word in words and one.document_word in words for one in strongest} == {True, False}
    for one in strongest:
        expected = before.get((one.query_word, one.document_word), 0.0)
        assert one.before == pytest.approx(expected)


def test_a_word_with_itself_is_left_out_and_only_words_of_queries_are_shown() -> None:
    model = model_of(DOCUMENTS)
    strongest, changed = strongest_pairs(model, None, ["word1 word2", "word2 word1", "word3"], 50)
    assert {one.query_word for one in strongest} == {"word1", "word2"}
    assert all(one.query_word != one.document_word for one in (*strongest, *changed))
    assert all(one.before == 0 for one in strongest)


def test_the_same_model_has_changed_nothing() -> None:
    model = model_of(DOCUMENTS)
    assert strongest_pairs(model, replace(model), QUERIES, 5)[1] == []


def test_words_that_nobody_knows() -> None:
    assert strongest_pairs(model_of(DOCUMENTS), None, ["nosuchword"], 5) == ([], [])
    assert strongest_pairs(model_of(DOCUMENTS), None, [], 5) == ([], [])
