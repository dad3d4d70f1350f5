"""Vocabularies: order, limits, the open end, streaming with bounded memory, and the array form."""

from __future__ import annotations

import math
from collections import Counter
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.arrays import N_TERM_IDS
from reranker.errors import InputError
from reranker.text import vocabulary as module
from reranker.text.analyzers import BETWEEN
from reranker.text.tfidf import count_rows
from reranker.text.vocabulary import (
    HASH_BASE,
    HASH_SPAN,
    MIN_BIGRAM_DOCUMENTS,
    Vocabulary,
    VocabularyBuilder,
    hashed_id,
)
from tests.seeds import seeded_rng

DOCUMENTS = [["b", "a", "a"], ["a", "c"], ["c", "b", "a"], []]
CORPUS = st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters=BETWEEN), max_size=3)), max_size=20)


def built(documents: list[list[str]], **options: Any) -> Vocabulary:
    builder = VocabularyBuilder()
    builder.add(documents)
    return builder.build(**options)


def small() -> Vocabulary:
    return Vocabulary(("a", "b", "c"), np.array([3, 2, 2]), 4)


def test_words_come_by_decreasing_document_frequency_and_ties_by_word() -> None:
    vocabulary = built(DOCUMENTS)
    assert vocabulary.words == ("a", "b", "c")
    assert vocabulary.document_frequency.tolist() == [3, 2, 2]
    assert vocabulary.n_documents == 4
    assert len(vocabulary) == 3
    assert "a" in vocabulary
    assert "d" not in vocabulary


def test_limits() -> None:
    assert built(DOCUMENTS, max_words=2).words == ("a", "b")
    assert built(DOCUMENTS, min_df=3).words == ("a",)
    assert built(DOCUMENTS, min_df=9).words == ()
    for options in ({"max_words": 0}, {"min_df": 0}):
        with pytest.raises(InputError, match="at least 1"):
            built(DOCUMENTS, **options)


def test_an_unknown_word_has_the_same_hashed_id_everywhere() -> None:
    digest = int.from_bytes(blake2b(b"zx-81", digest_size=8).digest(), "little")
    assert hashed_id("zx-81") == 2**30 + digest % (2**30 - 1)
    # Stored in indexes: a number that may never change.
    assert hashed_id("word") == 2114634671
    other = Vocabulary(("zx-81",), np.array([1]), 1)
    assert small().ids(["zx-81", "word"]).tolist() == [hashed_id("zx-81"), hashed_id("word")]
    assert other.ids(["zx-81", "word"]).tolist() == [0, hashed_id("word")]


@given(st.text())
def test_hashed_ids_stay_in_their_range(word: str) -> None:
    assert HASH_BASE <= hashed_id(word) < HASH_BASE + HASH_SPAN
    assert HASH_BASE + HASH_SPAN <= N_TERM_IDS <= np.iinfo(np.int32).max


def test_ids() -> None:
    ids = small().ids(["c", "a", "c", "unseen"])
    assert ids.dtype == np.int32
    assert ids.tolist() == [2, 0, 2, hashed_id("unseen")]
    assert small().ids([]).shape == (0,)


def test_the_memory_of_unknown_words_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED", 10)
    vocabulary = small()
    words = [f"w{i}" for i in range(100)] * 2
    assert vocabulary.ids(words).tolist() == [hashed_id(word) for word in words]
    assert len(vocabulary._index) <= 3 + 10
    assert vocabulary.ids(["a", "b", "c"]).tolist() == [0, 1, 2]


def test_idf() -> None:
    ids = small().ids(["a", "b", "unseen"])
    idf = small().idf_of(ids)
    assert idf.dtype == np.float64
    np.testing.assert_allclose(idf, [math.log(4 / 3), math.log(2), math.log(2)], rtol=1e-6)


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [
        (Vocabulary((), np.array([]), 0), 1.0),
        (Vocabulary((), np.array([]), 8), math.log(8)),
        (Vocabulary(("a",), np.array([5]), 5), 1.0),
    ],
)
def test_idf_of_unseen_words_where_no_listed_word_tells_documents_apart(
    vocabulary: Vocabulary, expected: float
) -> None:
    assert vocabulary.idf_of(vocabulary.ids(["unseen"]))[0] == pytest.approx(expected)


@given(CORPUS)
def test_counts_equal_the_definition_in_any_order_and_any_batches(documents: list[list[str]]) -> None:
    expected = Counter(word for tokens in documents for word in set(tokens))
    builder = VocabularyBuilder()
    for tokens in reversed(documents):
        builder.add([tokens])
    vocabulary = builder.build()
    assert dict(zip(vocabulary.words, vocabulary.document_frequency.tolist(), strict=True)) == expected
    assert vocabulary.words == built(documents).words
    assert builder.n_documents == len(documents)
    assert builder.n_tokens == sum(map(len, documents))
    assert builder.max_undercount == 0


def test_a_stream_with_more_words_than_fit_keeps_the_frequent_ones_within_the_stated_error() -> None:
    rng = seeded_rng()
    documents = [[f"w{rank}" for rank in rng.zipf(1.3, 30).tolist()] for _ in range(3_000)]
    exact = Counter(word for tokens in documents for word in set(tokens))
    builder = VocabularyBuilder(max_entries=500)
    for start in range(0, len(documents), 7):
        builder.add(documents[start : start + 7])
        assert len(builder._counts) <= 500
    vocabulary = builder.build()
    assert 0 < builder.max_undercount <= 2 * sum(exact.values()) / 500
    assert 20 < len(vocabulary) <= 500
    for word, count in zip(vocabulary.words, vocabulary.document_frequency.tolist(), strict=True):
        assert exact[word] - builder.max_undercount <= count <= exact[word]
    for word, count in exact.items():
        assert word in vocabulary or count <= builder.max_undercount


def test_one_document_with_more_words_than_fit() -> None:
    builder = VocabularyBuilder(max_entries=10)
    builder.add([[f"w{i}" for i in range(1_000)]])
    assert builder.max_undercount == 1
    assert builder.build().words == ()
    with pytest.raises(InputError, match="max_entries"):
        VocabularyBuilder(max_entries=0)


@given(CORPUS)
def test_array_round_trip(documents: list[list[str]]) -> None:
    vocabulary = built(documents)
    arrays = vocabulary.to_arrays()
    assert {name: array.dtype.name for name, array in arrays.items()} == {
        "words": "uint8",
        "offsets": "int64",
        "document_frequency": "int64",
        "n_documents": "int64",
    }
    again = Vocabulary.from_arrays(arrays)
    assert again.words == vocabulary.words
    assert again.n_documents == vocabulary.n_documents
    np.testing.assert_array_equal(again.document_frequency, vocabulary.document_frequency)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("words", np.array([0xFF, 0xFE, 0x61], dtype=np.uint8)),
        ("words", np.array([97, 98], dtype=np.uint8)),
        ("words", np.array([97, 97, 98], dtype=np.uint8)),
        ("words", np.array([97, 98, 99], dtype=np.int8)),
        ("offsets", np.array([0, 2, 1, 3])),
        ("offsets", np.array([0, 1, 2])),
        ("offsets", np.array([1, 1, 2, 3])),
        ("offsets", np.array([0, 1, 2, 9])),
        ("offsets", np.array([], dtype=np.int64)),
        ("offsets", np.array([[0, 1, 2, 3]])),
        ("document_frequency", np.array([3, 2])),
        ("document_frequency", np.array([3, 2, 0])),
        ("document_frequency", np.array([2, 3, 2])),
        ("document_frequency", np.array([5, 2, 2])),
        ("document_frequency", np.array([3.0, 2.0, 2.0])),
        ("n_documents", np.array([2])),
        ("n_documents", np.array([-1])),
        ("n_documents", np.array([4, 4])),
    ],
)
def test_damaged_arrays_are_refused(name: str, array: Any) -> None:
    with pytest.raises(InputError):
        Vocabulary.from_arrays({**small().to_arrays(), name: array})


def test_a_missing_array_is_refused() -> None:
    arrays = small().to_arrays()
    del arrays["offsets"]
    with pytest.raises(InputError, match="'offsets' is missing"):
        Vocabulary.from_arrays(arrays)


@pytest.mark.parametrize(
    ("words", "frequency", "n_documents"),
    [
        (("a", "a"), [1, 1], 1),
        (("a",), [1, 1], 1),
        (("a",), [0], 1),
        (("a", "b"), [1, 2], 2),
        (["a"], [1], 1),
        ((1,), [1], 1),
        (("a",), [1], True),
        (("a",), [1], 1.5),
        ((), [], -1),
    ],
)
def test_illegal_vocabularies_are_refused(words: Any, frequency: list[int], n_documents: Any) -> None:
    with pytest.raises(InputError):
        Vocabulary(words, np.array(frequency), n_documents)


def test_a_vocabulary_does_not_change_with_the_arrays_it_was_made_from() -> None:
    vocabulary = small()
    with pytest.raises(ValueError, match="read-only"):
        vocabulary.document_frequency[0] = 9


def test_a_bigram_is_listed_from_five_documents_on_and_else_in_no_row() -> None:
    often, seldom = [["a", "b", "a␣b"]] * MIN_BIGRAM_DOCUMENTS, [["a", "c", "a␣c"]] * (MIN_BIGRAM_DOCUMENTS - 1)
    vocabulary = built([*often, *seldom])
    assert vocabulary.words == ("a", "a␣b", "b", "c")
    assert "a␣b" in vocabulary and "a␣c" not in vocabulary
    assert vocabulary.ids(["a␣b", "a␣c", "d"]).tolist() == [1, -1, hashed_id("d")]
    rows = count_rows(vocabulary, [["a␣c", "a", "a␣b", "a␣b", "d"], ["a␣c"], []])
    assert rows.indptr.tolist() == [0, 3, 3, 3]
    assert rows.indices.tolist() == [0, 1, hashed_id("d")] and rows.data.tolist() == [1, 2, 1]
    assert "a␣c" not in vocabulary  # also after it was asked for
    assert built([*often, *seldom], min_df=6).words == ("a",)
