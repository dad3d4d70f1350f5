"""The encoding of one query text, against a computation with dictionaries and against the same text in a batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.arrays import N_TERM_IDS
from reranker.lexical.bm25 import LexicalSettings
from reranker.models.ranking_model import SHORT_QUERY, RankingModel
from reranker.rerank.candidates import encode_query
from reranker.text.vocabulary import hashed_id
from tests.seeds import seeded_rng
from tests.served import BM25, MEMORY_BM25, model_of, random_documents

DOCUMENTS = {**random_documents(40), "all": {"title": "", "text": "common"}}
for each in DOCUMENTS.values():
    each["text"] += " common"  # a word of all documents has idf 0
GRAMS: Mapping[str, Callable[[float], float]] = {
    "sqrt": math.sqrt,
    "log": lambda tf: math.log2(1 + tf),
    "raw": float,
    "once": lambda tf: 1.0,
}
queries = st.lists(st.sampled_from([*(f"word{i}" for i in range(30)), "common", "Unknown", "café", "x_1"]), max_size=25)


def full_model(settings: LexicalSettings = MEMORY_BM25) -> RankingModel:
    """Return a model with everything that a query's encoding depends on: memory, short rows, tables, word weights."""
    model = model_of(DOCUMENTS, lexical=settings)
    encoder = replace(model.encoder, lexical=BM25, short_lexical=settings)
    rng = seeded_rng(4)
    return replace(
        model,
        encoder=encoder,
        U_short=rng.normal(size=model.U.shape).astype(np.float32),
        word_weights=rng.uniform(0.5, 2.0, len(model.query_vocabulary)).astype(np.float32),
        short_row_weight=0.3,
    )


LEARNED = model_of(DOCUMENTS)
MODELS = {
    "learned": LEARNED,
    "raw": replace(LEARNED, encoder=replace(LEARNED.encoder, tf="raw")),
    "bm25": model_of(DOCUMENTS, lexical=BM25),
    "memory": model_of(DOCUMENTS, lexical=MEMORY_BM25),
    "short": full_model(),
    "once": full_model(replace(MEMORY_BM25, query_tf="once")),
}


def bm25_words(model: RankingModel, counts: dict[int, int], *, is_short: bool) -> dict[int, float]:
    """Return the lexical weights of a query by the formulas of `LexicalRows`."""
    settings = model.encoder.short_lexical if is_short else model.encoder.lexical
    vocabulary, n = model.query_vocabulary, model.query_vocabulary.n_documents
    assert settings is not None
    memory = model.encoder.memory if is_short or model.encoder.short_lexical is None else None
    words = {}
    for word, tf in counts.items():
        df = int(vocabulary.frequency_of(np.array([word]))[0])
        if memory is not None:
            df += dict(zip(memory.added_words.tolist(), memory.added_frequency.tolist(), strict=True)).get(word, 0)
        idf = 0.0 if df >= n else math.log(1 + (n - df + 0.5) / (df + 0.5))
        words[word] = (GRAMS[settings.query_tf](tf), idf)
    length = math.sqrt(sum((g * idf) ** 2 for g, idf in words.values())) or 1.0
    return {word: g / length for word, (g, idf) in words.items() if idf > 0}


def reference(model: RankingModel, text: str) -> tuple[Any, dict[int, float]]:
    """Return the vector and the lexical weights of a query by its definition."""
    number_of = {word: i for i, word in enumerate(model.query_vocabulary.words)}
    counts = Counter(number_of.get(word, hashed_id(word)) for word in model.encoder.analyzer.tokens([text])[0])
    learned = {}
    for word, tf in counts.items():
        idf = float(model.query_vocabulary.idf_of(np.array([word]))[0])
        learned[word] = (tf if model.encoder.tf == "raw" else 1 + math.log(tf)) * idf
    learned = {word: weight for word, weight in learned.items() if weight}
    length = math.sqrt(sum(weight**2 for weight in learned.values())) or 1.0
    learned = {word: weight / length for word, weight in learned.items()}
    is_short = len(learned) <= SHORT_QUERY
    table = model.U_short if is_short and model.U_short is not None else model.U
    vector = sum((table[word] * weight for word, weight in learned.items() if word < len(table)), np.zeros(8))
    if model.encoder.lexical is None:
        return vector, learned
    mirror = N_TERM_IDS - 1
    if is_short and model.encoder.short_lexical is not None:
        return vector, {mirror - word: weight for word, weight in bm25_words(model, counts, is_short=True).items()}
    row = bm25_words(model, counts, is_short=False)
    if (weights := model.word_weights) is not None:
        row = {word: weight * (float(weights[word]) if word < len(weights) else 1.0) for word, weight in row.items()}
    added = {mirror - word: model.short_row_weight * weight for word, weight in row.items()}
    return vector, row | added if model.short_row_weight else row


@pytest.mark.parametrize("name", MODELS)
@given(words=queries)
def test_a_query_has_the_vector_and_the_weights_of_the_formulas(name: str, words: list[str]) -> None:
    model, text = MODELS[name], " ".join(words)
    encoded = encode_query(model, text).vectors
    vector, weights = reference(model, text)
    np.testing.assert_allclose(encoded.vector, vector, rtol=1e-5, atol=1e-6)
    assert encoded.ids.tolist() == sorted(weights)
    np.testing.assert_allclose(encoded.weights, [weights[word] for word in sorted(weights)], rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@given(batch=st.lists(queries, min_size=2, max_size=6))
def test_a_query_alone_has_the_bits_that_it_has_in_a_batch(name: str, batch: list[list[str]]) -> None:
    model, texts = MODELS[name], [" ".join(words) for words in batch]
    together = model.encode_queries(texts)
    for place, text in enumerate(texts):
        single, same = model.encode_queries([text]), together.part([place])
        assert single.vectors.tobytes() == same.vectors.tobytes()
        for own, other in ((single.rows, same.rows), (single.learned_rows, same.learned_rows)):
            assert own.shape == other.shape
            assert own.dtype == np.float32
            assert own.indices.tolist() == other.indices.tolist()
            assert own.data.tobytes() == other.data.tobytes()
