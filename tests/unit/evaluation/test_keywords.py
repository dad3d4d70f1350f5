"""Keyword queries: which words, and that nobody's vocabulary has a say."""

from __future__ import annotations

import numpy as np
import pytest

from reranker.config import parse_keywords
from reranker.errors import ConfigError, ShapeMismatch
from reranker.evaluation import draw_keywords
from reranker.text.tfidf import count_rows
from reranker.text.vocabulary import Vocabulary

TEXTS = [["a", "b", "b", "c", "d", "e"], ["a"], []]


def vocabulary(words: str) -> Vocabulary:
    return Vocabulary(tuple(words), np.full(len(words), 2, dtype=np.int64), 3)


def words_of(
    names: Vocabulary, seed: int = 0, n_words: int = 2, ids: tuple[str, ...] = ("x", "y", "z")
) -> list[set[str]]:
    rows = draw_keywords(count_rows(names, TEXTS), ids, n_words, seed, names)
    found = []
    for row in range(rows.shape[0]):
        present = set(rows.indices[rows.indptr[row] : rows.indptr[row + 1]].tolist())
        found.append({word for word in "abcde" if int(names.ids([word])[0]) in present})
    return found


def test_k_distinct_words_or_all_there_are() -> None:
    drawn = words_of(vocabulary("abcde"))
    assert [len(words) for words in drawn] == [2, 1, 0]
    assert [len(words) for words in words_of(vocabulary("abcde"), n_words=9)] == [5, 1, 0]


def test_bigrams_are_not_drawn() -> None:
    names = Vocabulary(("a", "a␣b", "b␣c"), np.full(3, 2, dtype=np.int64), 3)
    rows = draw_keywords(count_rows(names, [["a", "b", "c", "a␣b", "b␣c"], ["a␣b"]]), ("x", "y"), 3, 0, names)
    assert rows.indptr.tolist() == [0, 3, 3]
    assert set(rows.indices.tolist()) == set(names.ids(["a", "b", "c"]).tolist())


def test_counts_are_kept() -> None:
    names = vocabulary("abcde")
    rows = draw_keywords(count_rows(names, TEXTS), ("x", "y", "z"), 5, 0, names)
    assert rows[0].data.tolist() == [1, 2, 1, 1, 1]


@pytest.mark.parametrize("other", ["edcba", "cb", "a"])
def test_other_vocabularies_and_other_queries_change_nothing(other: str) -> None:
    for seed in range(20):
        assert words_of(vocabulary("abcde"), seed) == words_of(vocabulary(other), seed)
    names = vocabulary("abcde")
    alone = draw_keywords(count_rows(names, TEXTS[:1]), ("x",), 2, 3, names)
    assert (
        alone.indices.tolist()
        == draw_keywords(count_rows(names, TEXTS), ("x", "y", "z"), 2, 3, names)[0].indices.tolist()
    )


def test_every_word_has_its_chance() -> None:
    counts = dict.fromkeys("abcde", 0)
    for seed in range(400):
        for word in words_of(vocabulary("abcde"), seed)[0]:
            counts[word] += 1
    assert all(count == pytest.approx(160, abs=45) for count in counts.values())


def test_kinds_of_queries() -> None:
    assert parse_keywords("document", ("document",)) is None
    assert parse_keywords("keywords:10", ("document",)) == 10
    for bad in ("keywords", "keywords:0", "keywords:x", "words:3", "", "keywords:1001", "keywords:" + 5000 * "9"):
        with pytest.raises(ConfigError, match="keywords:K"):
            parse_keywords(bad, ("document",))


def test_one_id_a_row() -> None:
    names = vocabulary("abcde")
    with pytest.raises(ShapeMismatch, match="one id a row"):
        draw_keywords(count_rows(names, TEXTS), ("x",), 2, 0, names)
