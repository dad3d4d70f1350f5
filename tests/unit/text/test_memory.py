"""The memory of queries: its sums, what it adds to document frequencies, its arrays, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.lexical.memory import QueryMemory, memory_rows
from reranker.text.rows import inner_products, stack_rows
from reranker.text.tfidf import count_rows
from reranker.text.vocabulary import Vocabulary, hashed_id
from tests.unit.small_models import BM25, DOCUMENTS, IDS, MEMORY_BM25, small_encoder, small_memory, small_model

VOCABULARY = Vocabulary(("red", "shoes", "hat"), np.array([3, 2, 1]), 4)


def counts_of(*texts: str) -> sp.csr_matrix:
    return count_rows(VOCABULARY, [text.split() for text in texts])


def as_dicts(rows: sp.csr_matrix) -> list[dict[int, float]]:
    return [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in rows]


def test_a_memory_is_the_sum_of_the_different_pairs_each_at_most_once() -> None:
    queries = counts_of("red red shoes cap", "shoes", "")
    q, d = np.array([0, 1, 1, 1, 0, 2]), np.array([2, 2, 2, 0, 1, 1])
    rows = memory_rows(queries, (q, d), 4, np.array([1.0, 0.75, 0.75, 0.25, 0.5, 1.0]))
    cap = hashed_id("cap")
    assert as_dicts(rows) == [{1: 0.25}, {0: 0.5, 1: 0.25, cap: 0.25}, {0: 1.0, 1: 1.5, cap: 0.5}, {}]
    nothing = memory_rows(queries, (q, d), 4, np.zeros(6))
    assert nothing.nnz == 0
    judged = memory_rows(queries, (q, d), 4)
    assert as_dicts(judged)[0] == {1: 1.0}
    assert as_dicts(judged)[2] == as_dicts(rows)[2]
    assert as_dicts(memory_rows(queries, (q[:0], d[:0]), 2)) == [{}, {}]
    assert rows.dtype == np.float32
    assert rows.shape == (4, N_TERM_IDS)


def test_words_that_stand_in_the_memory_alone_count_as_standing_in_the_document() -> None:
    rows = memory_rows(counts_of("red shoes cap", "cap"), (np.array([0, 0, 1]), np.array([1, 0, 0])), 2)
    memory = QueryMemory.of(("b", "a"), rows, [counts_of("red", ""), counts_of("", "red shoes")])
    assert memory.ids == ("a", "b")
    cap = hashed_id("cap")
    assert dict(zip(memory.added_words.tolist(), memory.added_frequency.tolist(), strict=True)) == {1: 1, cap: 2}
    assert memory.frequency_of(np.array([0, 1, 2, cap, 5])).tolist() == [0, 1, 0, 2, 0]


def test_counts_are_looked_up_by_id() -> None:
    memory = small_memory()
    assert memory.ids == ("d0", "d1", "d2", "d5")
    counts = memory.counts(["d5", "x", "d1", "d5"], 4)
    for place, identifier in ((0, "d5"), (2, "d1"), (3, "d5")):
        assert as_dicts(counts)[place] == as_dicts(memory.rows)[memory.ids.index(identifier)]
    assert counts[1].nnz == memory.counts(None, 3).nnz == 0
    assert memory.counts(None, 3).shape == (3, N_TERM_IDS)
    empty = QueryMemory.of((), stack_rows([]), [stack_rows([])])
    assert empty.counts(["a"], 1).nnz == empty.frequency_of(np.array([3]))[0] == 0


def test_a_memory_comes_back_from_its_arrays() -> None:
    memory = small_memory()
    again = QueryMemory.from_arrays(memory.to_arrays())
    assert again.ids == memory.ids
    assert as_dicts(again.rows) == as_dicts(memory.rows)
    for name, array in memory.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)


def changed(name: str, place: int, value: Any) -> dict[str, np.ndarray]:
    arrays = small_memory().to_arrays()
    arrays[name][place] = value
    return arrays


DAMAGE = {
    "an id of no UTF-8": changed("ids", 1, 0xFF),
    "ids that do not ascend": changed("ids", 1, ord("9")),
    "an id twice": changed("ids", 3, ord("0")),
    "id offsets that fall": changed("id_offsets", 1, 9),
    "id offsets that end early": changed("id_offsets", -1, 7),
    "row offsets that begin late": changed("row_offsets", 0, 1),
    "an empty row": changed("row_offsets", 1, 0),
    "words that do not ascend": changed("words", 2, 0),
    "a word below 0": changed("words", 0, -1),
    "a word past the last": changed("words", -1, N_TERM_IDS),
    "a value of 0": changed("values", 0, 0.0),
    "a value that is no number": changed("values", 0, np.nan),
    "a value without end": changed("values", 0, np.inf),
    "an added word of no row": changed("added_words", 0, 3),
    "an added word in no document": changed("added_frequency", 0, 0),
    "an added word in too many documents": changed("added_frequency", 0, 5),
    "fewer row offsets": small_memory().to_arrays() | {"row_offsets": np.zeros(1, np.int64)},
    "fewer values": small_memory().to_arrays() | {"values": np.ones(2, np.float32)},
    "fewer counts": small_memory().to_arrays() | {"added_frequency": np.ones(1, np.int64)},
}


@pytest.mark.parametrize("arrays", DAMAGE.values(), ids=list(DAMAGE))
def test_damaged_arrays_are_refused(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(InputError):
        QueryMemory.from_arrays(arrays)


def test_a_memory_of_other_documents_than_its_rows_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="one row per id"):
        QueryMemory.of(("a",), counts_of("red", "hat"), [counts_of("red")])


def test_the_memory_is_the_last_field_of_the_row_and_counted_in_its_idf() -> None:
    encoder = small_encoder("float32", lexical=MEMORY_BM25, memory=small_memory())
    encoded = encoder.encode(DOCUMENTS, IDS)
    (row,) = (as_dicts(encoded.rows)[place] for place in (1,))
    vocabulary, lumber = encoder.document_vocabulary, hashed_id("lumber")
    assert as_dicts(encoder.rows(DOCUMENTS, IDS))[1] == row

    def weight(word: int, title: int, text: int, memory: float, added: int) -> float:
        df = int(vocabulary.frequency_of(np.array([word]))[0]) + added
        idf = math.log(1 + (6 - df + 0.5) / (df + 0.5))
        length = 3 / math.sqrt(3) + 1
        tf = 2 * title / (0.7 + 0.3 * 2 / 2) + text / (0.2 + 0.8 * 10 / 7) + 4 * memory / (0.9 + 0.1 * length / 3)
        return 0.5 * idf * 9 * tf / (8 + tf)

    hard = vocabulary.ids(["hard"]).item()
    assert row[lumber] == pytest.approx(weight(lumber, 0, 0, 1 + 1 / math.sqrt(3), 2))
    assert row[hard] == pytest.approx(weight(hard, 0, 1, 1 / math.sqrt(3), 0))
    plain = small_encoder("float32", lexical=BM25)
    np.testing.assert_array_equal(encoded.vectors, plain.encode(DOCUMENTS).vectors)
    without = encoder.encode(DOCUMENTS)
    assert lumber not in without.rows.indices
    assert without.source_hashes == encoded.source_hashes
    query = small_model(encoder=encoder).encode_queries(["lumber"])
    assert inner_products(query.rows, encoded.rows)[0].astype(bool).tolist() == [True, True, *[False] * 4]


def test_a_document_as_a_query_has_no_memory() -> None:
    model = small_model(encoder=small_encoder(lexical=MEMORY_BM25, memory=small_memory()))
    plain = small_model(encoder=small_encoder(lexical=BM25))
    rows, expected = (each.encode_query_documents(DOCUMENTS).rows for each in (model, plain))
    np.testing.assert_array_equal(rows.indices, expected.indices)


def test_a_memory_needs_a_field_of_bm25_and_one_vocabulary() -> None:
    encoder = small_encoder(lexical=MEMORY_BM25, memory=small_memory())
    assert (
        encoder.encoder_id
        != replace(encoder, memory=replace(small_memory(), added_frequency=np.array([1, 1, 1, 1]))).encoder_id
    )
    with pytest.raises(ConfigError, match=r"2 fields \(title, text, and the memory\) .* weights of 2"):
        small_encoder(lexical=BM25, memory=small_memory())
    with pytest.raises(ConfigError, match=r"2 fields \(title, text\) .* weights of 3"):
        small_encoder(lexical=MEMORY_BM25)
    for lexical in (None, replace(MEMORY_BM25, form="tfidf")):
        with pytest.raises(ConfigError, match="needs the lexical form 'bm25'"):
            small_encoder(lexical=lexical, memory=small_memory())
    with pytest.raises(ConfigError, match="this model has two"):
        small_model(encoder=encoder, query_vocabulary=VOCABULARY, U=encoder.V[:3].copy(), identity=0.0)
