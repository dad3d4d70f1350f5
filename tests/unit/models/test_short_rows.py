"""Lexical rows of their own for short queries: what is stored, which query reads which row, and the model's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from reranker.arrays import N_TERM_IDS, term_rows
from reranker.errors import ConfigError
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import RememberedQueries
from reranker.lexical.memory import QueryMemory, WordRarity, largest_words, memory_rows
from reranker.models.manifest import describe_model
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import SHORT_QUERY, Encoder, RankingModel
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import inner_products, keys_of, mirrored
from reranker.text.tfidf import count_rows, text_counts
from reranker.text.view import TextView
from reranker.text.vocabulary import VocabularyBuilder
from reranker.words import related_words

TEXTS = {"a": "red shoe leather", "b": "blue boat", "c": "red boat sail", "d": "green tent"}
PAGES = LexicalSettings("bm25", (1.0,), (1.0,), k1=8.0, b=(0.0,), mean_lengths=(2.5,), factor=0.1)
SHORT = LexicalSettings("bm25", (1.0, 3.0), (1.0, 0.0), k1=1.2, b=(0.5, 0.0), mean_lengths=(2.5, 1.0), factor=2.0)


def made_model(short: LexicalSettings | None = SHORT) -> RankingModel:
    """Return a model whose document b is linked by a page about gifts."""
    analyzer = make_analyzer(AnalyzerConfig())
    builder = VocabularyBuilder()
    builder.add(analyzer.tokens([*TEXTS.values(), "gift"]))
    vocabulary = builder.build()
    counts = text_counts(vocabulary, analyzer, [[text] for text in TEXTS.values()], 1)
    asked = count_rows(vocabulary, analyzer.tokens(["gift gift boat"]))
    memory = QueryMemory.of([*TEXTS], memory_rows(asked, (np.array([0]), np.array([1])), len(TEXTS)), counts)
    V = np.random.default_rng(3).normal(size=(len(vocabulary), 4)).astype(np.float32)
    encoder = Encoder(
        TextView.parse(["text"]),
        analyzer,
        vocabulary,
        "log",
        V,
        "float32",
        PAGES,
        None if short is None else memory,
        short_lexical=short,
    )
    return RankingModel(encoder, vocabulary, V[::-1].copy())


def are_equal(first: sp.csr_matrix, second: sp.csr_matrix) -> bool:
    """Return whether two matrices of one row or more hold the same values."""
    return bool(np.array_equal(keys_of(first), keys_of(second)) and np.array_equal(first.data, second.data))


def stored_rows(model: RankingModel) -> sp.csr_matrix:
    sources = [{"text": text} for text in TEXTS.values()]
    return model.encoder.encode(sources, [*TEXTS]).rows


@given(st.lists(st.sets(st.integers(0, N_TERM_IDS - 1), max_size=6), max_size=5))
def test_mirrored_rows_ascend_and_mirror_back(rows: list[set[int]]) -> None:
    ids = [sorted(row) for row in rows]
    indices = np.array([word for row in ids for word in row], np.int32)
    indptr = np.cumsum([0, *map(len, ids)]).astype(np.int32)
    given = term_rows(np.arange(len(indices)).astype(np.float32), indices, indptr)
    there = mirrored(given)
    for row, start, stop in zip(ids, there.indptr[:-1], there.indptr[1:], strict=True):
        assert there.indices[start:stop].tolist() == sorted(N_TERM_IDS - 1 - word for word in row)
    back = mirrored(there)
    assert back.indices.tolist() == indices.tolist()
    assert back.data.tolist() == given.data.tolist()


def test_short_queries_are_scored_by_their_own_rows() -> None:
    """The score of a short query is that of a model with only the rows for short queries; other queries' as before."""
    model, rows = made_model(), stored_rows(made_model())
    only_short = replace(model, encoder=replace(model.encoder, lexical=SHORT, short_lexical=None))
    pages = made_model(short=None)
    texts = ["gift", "red boat", "boat boat sail unheard"]
    long = " ".join([*TEXTS.values(), "gift unheard never"])
    for text in texts:
        scores = inner_products(model.encode_queries([text]).rows, rows)
        expected = inner_products(only_short.encode_queries([text]).rows, stored_rows(only_short))
        np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert len(set(long.split())) > SHORT_QUERY
    scores = inner_products(model.encode_queries([long]).rows, rows)
    np.testing.assert_allclose(scores, inner_products(pages.encode_queries([long]).rows, stored_rows(pages)), rtol=1e-6)
    together = model.encode_queries([texts[0], long, texts[1]])
    for place, text in enumerate((texts[0], long, texts[1])):
        assert are_equal(together.rows[place], model.encode_queries([text]).rows)


def test_other_queries_add_the_rows_for_short_queries_with_their_weight() -> None:
    model, rows = made_model(), stored_rows(made_model())
    weighted = replace(model, short_row_weight=0.5)
    only_short = replace(model, encoder=replace(model.encoder, lexical=SHORT, short_lexical=None))
    long = " ".join([*TEXTS.values(), "gift unheard never"])
    asked, plain = weighted.encode_queries([long]), model.encode_queries([long])
    of_memory = inner_products(plain.rows, stored_rows(only_short))
    assert of_memory[0, 1] > 0
    expected = inner_products(plain.rows, rows) + 0.5 * of_memory
    np.testing.assert_allclose(inner_products(asked.rows, rows), expected, rtol=1e-6)
    assert are_equal(weighted.asked_words(asked), plain.rows)
    by_word = weighted.by_word(asked, rows)
    np.testing.assert_allclose(inner_products(plain.rows, by_word), expected, rtol=1e-6)
    assert are_equal(weighted.encode_queries(["gift"]).rows, model.encode_queries(["gift"]).rows)


def test_a_folder_keeps_the_weight_of_the_rows_for_short_queries(tmp_path: Path) -> None:
    model = replace(made_model(), short_row_weight=0.25)
    save_model(model, tmp_path / "model")
    assert describe_model(tmp_path / "model")["format_version"] == 9
    loaded = load_model(tmp_path / "model")
    assert loaded.short_row_weight == 0.25
    assert loaded.encoder_id == made_model().encoder_id


def test_a_weight_of_rows_for_short_queries_needs_them_and_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="this model has none"):
        replace(made_model(short=None), short_row_weight=0.5)
    for weight in (-0.5, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="at least 0"):
            replace(made_model(), short_row_weight=weight)


def test_a_document_as_a_query_is_short_if_it_has_few_words() -> None:
    model = made_model()
    encoded = model.encode_query_documents([{"text": "red boat"}])
    assert are_equal(encoded.rows, model.encode_queries(["red boat"]).rows)


def test_related_words_of_a_short_query_count_its_own_word_once() -> None:
    pairs = related_words(made_model(), "boat", min_documents=1)
    assert [(pair.query_word, pair.document_word) for pair in pairs if pair.same] == [("boat", "boat")]


def test_a_folder_keeps_the_rows_for_short_queries(tmp_path: Path) -> None:
    model = made_model()
    save_model(model, tmp_path / "model")
    assert describe_model(tmp_path / "model")["format_version"] == 8
    loaded = load_model(tmp_path / "model")
    assert loaded.encoder.short_lexical == SHORT
    assert loaded.encoder_id == model.encoder_id != made_model(short=None).encoder_id
    assert are_equal(stored_rows(loaded), stored_rows(model))


def test_settings_for_short_queries_need_those_of_others_and_one_weight_a_field() -> None:
    encoder = made_model().encoder
    with pytest.raises(ConfigError, match="give both"):
        replace(encoder, lexical=None)
    with pytest.raises(ConfigError, match="and the memory"):
        replace(encoder, short_lexical=PAGES)


def test_a_memory_keeps_its_largest_words() -> None:
    queries = term_rows(np.ones(4, np.float32), np.array([1, 2, 2, 3], np.int32), np.array([0, 2, 4], np.int32))
    words, offsets = np.array([1, 2, 3, 2], np.int32), np.array([0, 3, 4], np.int32)
    rows = term_rows(np.array([1, 1, 1, 5], np.float32), words, offsets)
    rarity = WordRarity.of(queries)
    kept = largest_words(rows, rarity, 2)
    assert kept.indices.tolist() == [1, 3, 2]  # 2 is in every query
    assert kept.indptr.tolist() == [0, 2, 3]
    assert largest_words(rows, rarity, 1).indices.tolist() == [1, 2]  # of equals the lower number


def test_memories_that_are_made_block_by_block_are_those_of_all_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    counts = sp.csr_matrix(rng.poisson(0.6, (7, 12)).astype(np.float32))
    queries = term_rows(counts.data, counts.indices, counts.indptr)
    links = rng.permutation(7 * 9)[:30]
    pairs = (links // 9).astype(np.int64), (links % 9).astype(np.int64)
    remembered = RememberedQueries(tuple("abcdefg"), queries, pairs, np.ones(30), most_words=4)
    expected = largest_words(memory_rows(queries, pairs, 9), WordRarity.of(queries), 4)
    assert 4 == np.diff(expected.indptr).max() < np.diff(memory_rows(queries, pairs, 9).indptr).max()
    for size in (1, 2, 9, 2**11):
        monkeypatch.setattr("reranker.lexical.corpus._REMEMBERED_BLOCK", size)
        assert are_equal(remembered.rows(9), expected)
