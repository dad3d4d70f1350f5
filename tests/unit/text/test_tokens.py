"""Documents cut once: the vocabularies and counts of every reading equal those of the analyzer of that reading."""

from __future__ import annotations

from itertools import chain
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.errors import ConfigError
from reranker.text import tokens as module
from reranker.text.analyzers import BETWEEN, AnalyzerConfig, make_analyzer
from reranker.text.tfidf import text_counts
from reranker.text.tokens import DocumentTokens, TokenReader
from reranker.text.vocabulary import MIN_BIGRAM_DOCUMENTS, Vocabulary, VocabularyBuilder

Texts = list[tuple[str, str]]

TITLES = ["running runs", "The Runner's run", "", "life insurance", "life insurance life insurance", "東京 life"]
DOCUMENTS: Texts = [(title, f"{title} insurance claims claim {n % 3}") for n, title in enumerate(TITLES * 4)]
WORDS = st.text(st.sampled_from("ab cs-é京"), max_size=12)


def cut(texts: Texts, config: AnalyzerConfig, batch: int = 4) -> DocumentTokens:
    ids = [str(number) for number in range(len(texts))]
    reader = TokenReader(make_analyzer(config), 2)
    for at in range(0, len(texts), batch):
        reader.add(ids[at : at + batch], texts[at : at + batch])
    return reader.tokens()


def built(texts: Texts, config: AnalyzerConfig, max_words: int | None = None) -> Vocabulary:
    """Return the vocabulary that a stream of the texts gives."""
    analyzer, builder = make_analyzer(config), VocabularyBuilder()
    builder.add(list(chain.from_iterable(analyzer.tokens(text))) for text in texts)
    return builder.build(max_words)


def check(tokens: DocumentTokens, texts: Texts, config: AnalyzerConfig) -> None:
    assert tokens.config == config
    for limit in (None, 5):
        expected, vocabulary = built(texts, config, limit), tokens.vocabulary(limit)
        assert vocabulary.words == expected.words and vocabulary.n_documents == len(texts)
        assert vocabulary.document_frequency.tolist() == expected.document_frequency.tolist()
        fields, counted = text_counts(expected, make_analyzer(config), texts, 2), tokens.counts(vocabulary)
        assert len(counted) == len(fields) == 2 + config.bigrams
        for ours, theirs in zip(counted, fields, strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype == np.float32
            for name in ("indptr", "indices", "data"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.fixture(params=[2**14, 3], ids=["one-block", "blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(module, "_BLOCK", request.param)
    return module


@pytest.mark.usefixtures("blocks")
def test_words_stems_and_bigrams_are_those_of_their_analyzers() -> None:
    plain, stems = AnalyzerConfig(), AnalyzerConfig(stemmer="english")
    tokens = cut(DOCUMENTS, plain)
    check(tokens, DOCUMENTS, plain)
    check(tokens.stemmed("english"), DOCUMENTS, stems)
    check(tokens.with_bigrams(), DOCUMENTS, AnalyzerConfig(bigrams=True))
    check(tokens.stemmed("english").with_bigrams(), DOCUMENTS, AnalyzerConfig(stemmer="english", bigrams=True))
    words = set(tokens.stemmed("english").with_bigrams().vocabulary().words)
    assert f"life{BETWEEN}insur" in words and "run" in words


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=12))
def test_any_texts_are_counted_as_their_analyzer_counts_them(texts: Texts) -> None:
    tokens = cut(texts, AnalyzerConfig())
    check(tokens, texts, AnalyzerConfig())
    check(tokens.stemmed("english"), texts, AnalyzerConfig(stemmer="english"))
    many = texts * MIN_BIGRAM_DOCUMENTS
    check(cut(many, AnalyzerConfig(bigrams=True)), many, AnalyzerConfig(bigrams=True))


def test_counts_by_another_vocabulary_have_hashed_words_and_no_unlisted_bigrams() -> None:
    other = Vocabulary(("life", f"life{BETWEEN}insurance", "nothing"), np.array([5, 4, 1]), 9)
    config = AnalyzerConfig(bigrams=True)
    counted = cut(DOCUMENTS, config).counts(other)
    for ours, theirs in zip(counted, text_counts(other, make_analyzer(config), DOCUMENTS, 2), strict=True):
        np.testing.assert_array_equal(ours.indices, theirs.indices)
        np.testing.assert_array_equal(ours.data, theirs.data)
    assert set(counted[2].indices) == {1}


def test_rare_bigrams_are_dropped_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    config = AnalyzerConfig(bigrams=True)
    every, counts = cut(DOCUMENTS, config)._bigram_frequency
    monkeypatch.setattr(module, "_MAX_BIGRAMS", 4)
    kept, of_kept = cut(DOCUMENTS, config)._bigram_frequency
    assert 0 < len(kept) < len(every) and set(kept) < set(every)
    assert of_kept.min() > np.median(counts), "the rarer half is dropped"
    assert f"life{BETWEEN}insurance" in cut(DOCUMENTS, config).vocabulary().words


def test_words_of_other_analyzers_are_not_stemmed() -> None:
    with pytest.raises(ConfigError, match="cannot be stemmed"):
        cut(DOCUMENTS, AnalyzerConfig(stemmer="english")).stemmed("english")
