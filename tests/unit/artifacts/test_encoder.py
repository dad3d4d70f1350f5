"""The encoder: what it stores, and what its id depends on."""

from __future__ import annotations

import inspect
import json
import os
import random
import re
import string
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from papers.methods.word_pairs import Bilinear
from reranker.arrays import N_TERM_IDS
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.kernels.packing import (
    QUANTISATIONS,
    Quantisation,
    pack_rows,
    pack_vectors,
    quantise_rows,
    unpack_terms,
    unpack_vectors,
)
from reranker.models.ranking_model import Encoder
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import unit_rows
from reranker.text.tfidf import field_counts
from reranker.text.view import TextView
from reranker.text.vocabulary import HASH_BASE, HASH_SPAN, Vocabulary, VocabularyBuilder, hashed_id
from tests.unit.small_models import BM25, DOCUMENTS, small_encoder, small_model, small_table


def test_rows_are_the_weighted_sum_of_unit_rows_of_fields() -> None:
    encoder = small_encoder("float32")
    encoded = encoder.encode(DOCUMENTS)
    counts = field_counts(encoder.document_vocabulary, encoder.view, encoder.analyzer, DOCUMENTS)
    title, text = (encoder.tfidf.rows_of_counts(field) for field in counts)
    for place in range(len(DOCUMENTS)):
        expected: dict[int, float] = {}
        for weight, field in ((2.0, title[place]), (1.0, text[place])):
            for word, value in zip(field.indices.tolist(), field.data.tolist(), strict=True):
                expected[word] = expected.get(word, 0.0) + weight * value
        row = encoded.rows[place]
        assert row.indices.tolist() == sorted(expected)
        np.testing.assert_allclose(row.data, [expected[word] for word in sorted(expected)], rtol=1e-6)
        learned = sum((value * encoder.V[word] for word, value in expected.items() if word < 20), np.zeros(3))
        np.testing.assert_allclose(encoded.vectors[place], learned, rtol=1e-5, atol=1e-6)


def test_a_document_without_words_says_so() -> None:
    encoded = small_encoder().encode([*DOCUMENTS, {}, {"title": None, "text": "... !"}])
    assert encoded.has_text.tolist() == [True, True, True, True, False, True, False, False]
    assert not encoded.vectors[4].any()
    assert len(encoded.vectors) == 8
    assert len(set(encoded.source_hashes)) == 7  # two documents have no text in either field


def test_a_word_never_seen_has_a_place_in_the_row_and_none_in_the_vector() -> None:
    encoder = small_encoder()
    encoded = encoder.encode([{"text": "zyx9000"}])
    assert encoded.rows.indices.tolist() == [hashed_id("zyx9000")]
    assert encoded.rows.data.tolist() == [1.0]
    assert not encoded.vectors.any()
    assert encoded.has_text.all()


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_what_is_returned_is_what_comes_back_from_storage(quantisation: Quantisation) -> None:
    encoded = small_encoder(quantisation).encode(DOCUMENTS)
    np.testing.assert_array_equal(unpack_vectors(pack_vectors(encoded.vectors, quantisation)), encoded.vectors)
    back = unpack_terms(pack_rows(encoded.rows, quantisation))
    np.testing.assert_array_equal(back.data, encoded.rows.data)
    np.testing.assert_array_equal(back.indices, encoded.rows.indices)
    np.testing.assert_array_equal(back.indptr, encoded.rows.indptr)


def test_a_batch_gives_the_same_bits_as_one_by_one() -> None:
    encoder = small_encoder()
    together = encoder.encode(DOCUMENTS)
    for place, document in enumerate(DOCUMENTS):
        alone = encoder.encode([document])
        np.testing.assert_array_equal(alone.vectors[0], together.vectors[place])
        np.testing.assert_array_equal(alone.rows.data, together.rows[place].data)
        assert alone.source_hashes[0] == together.source_hashes[place] == encoder.view.source_hash(document)
    assert len(encoder.encode([]).vectors) == 0


def changed_vocabulary(encoder: Encoder) -> Vocabulary:
    """Return the encoder's vocabulary with two words exchanged."""
    old = encoder.document_vocabulary
    words = (*old.words[:-2], old.words[-1], old.words[-2])
    return Vocabulary(words, old.document_frequency, old.n_documents)


def changed_frequency(encoder: Encoder) -> Vocabulary:
    """Return the encoder's vocabulary with another count of its most frequent word."""
    old = encoder.document_vocabulary
    frequency = old.document_frequency.copy()
    frequency[0] += 1
    return Vocabulary(old.words, frequency, old.n_documents)


def one_value_changed(V: np.ndarray) -> np.ndarray:
    """Return V with one value moved to the next float."""
    changed = V.copy()
    changed[7, 1] = np.nextafter(changed[7, 1], np.float32(np.inf))
    return changed


CHANGES: dict[str, Callable[[Encoder], Encoder]] = {
    "field path": lambda e: replace(e, view=TextView.parse(["name^2", "text"])),
    "field weight": lambda e: replace(e, view=TextView.parse(["title^3", "text"])),
    "field order": lambda e: replace(e, view=TextView.parse(["text", "title^2"])),
    "html": lambda e: replace(e, view=replace(e.view, strip_html=True)),
    "length cap": lambda e: replace(e, view=replace(e.view, max_chars=100)),
    "stop words": lambda e: replace(e, analyzer=make_analyzer(AnalyzerConfig(stop_words="english"))),
    "case": lambda e: replace(e, analyzer=make_analyzer(AnalyzerConfig(lowercase=False))),
    "tf": lambda e: replace(e, tf="raw"),
    "quantisation": lambda e: replace(e, quantisation="int8"),
    "words": lambda e: replace(e, document_vocabulary=changed_vocabulary(e)),
    "document frequency": lambda e: replace(e, document_vocabulary=changed_frequency(e)),
    "number of documents": lambda e: replace(
        e, document_vocabulary=replace(e.document_vocabulary, n_documents=e.document_vocabulary.n_documents + 1)
    ),
    "one value of V": lambda e: replace(e, V=one_value_changed(e.V)),
    "rows of V": lambda e: replace(e, V=e.V[:-1]),
    "shape of V": lambda e: replace(e, V=e.V.reshape(-1, 1)[: len(e.V)]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_each_input_changes_the_id(change: Callable[[Encoder], Encoder]) -> None:
    encoder = small_encoder()
    assert change(encoder).encoder_id != encoder.encoder_id


def test_the_id_is_that_of_the_content() -> None:
    assert small_encoder().encoder_id == small_encoder().encoder_id
    assert len(bytes.fromhex(small_encoder().encoder_id)) == 32
    unweighted = replace(small_encoder(), view=TextView.parse(["title", "text^1"]))
    weighted = replace(small_encoder(), view=TextView.parse(["title^1", "text"]))
    assert unweighted.encoder_id == weighted.encoder_id


def test_the_id_of_a_fixed_encoder_never_changes() -> None:
    """Every index and store out there carries ids; a change here orphans them: raise ENCODING_VERSION knowingly."""
    V = np.arange(60, dtype=np.float32).reshape(20, 3)
    for lexical, encoder_id, model_id in (
        (None, "b5e43a273274", "7e4ca35697ef"),
        (BM25, "fef27f769f62", "7f8fe46f9a13"),
    ):
        encoder = replace(small_encoder(lexical=lexical), V=V)
        assert encoder.encoder_id[:12] == encoder_id
        assert small_model(encoder=encoder, U=V * 2).model_id[:12] == model_id


@pytest.mark.parametrize(("quantisation", "limit"), [("float32", 0.0), ("float16", 2e-3), ("int8", 4e-2)])
def test_scores_of_real_texts_keep_the_stated_precision(quantisation: Quantisation, limit: float) -> None:
    """Texts are docstrings; f = (Uq).(Vd) + q.d with V of rows of length 1, against float32."""
    documents = [
        {"title": name, "text": inspect.getdoc(value) or ""}
        for module in (inspect, json, os, random, re, string)
        for name, value in sorted(vars(module).items())
        if callable(value)
    ]
    builder = VocabularyBuilder()
    analyzer = make_analyzer(AnalyzerConfig())
    builder.add(analyzer.tokens([f"{one['title']} {one['text']}" for one in documents]))
    words = builder.build()
    V = small_table(len(words), 100)
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    exact = Encoder(TextView.parse(["title^2", "text"]), analyzer, words, "log", V, "float32")
    stored = replace(exact, quantisation=quantisation)
    true, rounded = exact.encode(documents), stored.encode(documents)
    queries = unit_rows(true.rows)
    model = Bilinear(V, V)
    scores = model.score_matrix(queries, true.rows, true.vectors)
    error = np.abs(model.score_matrix(queries, rounded.rows, rounded.vectors) - scores).max()
    assert len(documents) > 300
    assert 0.1 < scores.std() < 1
    assert limit / 100 <= error <= limit  # and the limit says something


def test_impossible_parts_are_refused() -> None:
    encoder = small_encoder()
    with pytest.raises(ShapeMismatch, match="21 rows for a vocabulary of 20 words"):
        replace(encoder, V=small_table(21))
    with pytest.raises(ShapeMismatch, match="C-contiguous float32"):
        replace(encoder, V=encoder.V.astype(np.float64))
    with pytest.raises(InputError, match="V holds NaN"):
        replace(encoder, V=np.full_like(encoder.V, np.nan))
    with pytest.raises(InputError, match="'int4'"):
        replace(encoder, quantisation="int4")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tf is 'bm25'"):
        replace(encoder, tf="bm25")
    with pytest.raises(InputError, match="does not fit float16"):
        replace(encoder, V=encoder.V * np.float32(1e6)).encode(DOCUMENTS)


def test_rows_are_as_wide_as_term_ids_go() -> None:
    assert small_encoder().encode(DOCUMENTS).rows.shape[1] == N_TERM_IDS == HASH_BASE + HASH_SPAN


def test_the_lexical_settings_are_part_of_the_id_whatever_the_type_of_their_numbers() -> None:
    encoders = [small_encoder(), small_encoder(lexical=BM25)]
    changes: dict[str, Any] = {
        "k1": 2.0,
        "b": (0.3, 0.7),
        "field_weights": (1.0, 2.0),
        "query_weights": (1.0, 1.0),
        "factor": 2.0,
    }
    changes |= {"form": "tfidf", "mean_lengths": (2.0, 8.0), "query_tf": "raw"}
    encoders += [small_encoder(lexical=replace(BM25, **{name: value})) for name, value in changes.items()]
    assert len({one.encoder_id for one in encoders}) == len(encoders)
    whole = replace(BM25, field_weights=(float(np.float32(2)), 1), factor=np.float64(0.5))
    assert small_encoder(lexical=whole).encoder_id == encoders[1].encoder_id
    message = r"text view has 1 fields \(title\) .* weights of 2: give one weight per field"
    with pytest.raises(ConfigError, match=message):
        replace(encoders[1], view=TextView.parse(["title"]))


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_lexical_rows_are_stored_and_vectors_are_of_the_learned_rows(quantisation: Quantisation) -> None:
    plain, encoder = small_encoder(quantisation), small_encoder(quantisation, lexical=BM25)
    old, new = plain.encode(DOCUMENTS), encoder.encode(DOCUMENTS)
    np.testing.assert_array_equal(new.vectors, old.vectors)
    assert (new.source_hashes, new.has_text.tolist()) == (old.source_hashes, old.has_text.tolist())
    counts = field_counts(encoder.document_vocabulary, encoder.view, encoder.analyzer, DOCUMENTS)
    assert encoder.lexical_rows is not None
    exact = encoder.lexical_rows.documents(counts)
    for rows, expected in (
        (encoder.rows(DOCUMENTS), exact),
        (encoder.learned_rows(DOCUMENTS), plain.rows(DOCUMENTS)),
        (new.rows, quantise_rows(exact, quantisation)),
        (unpack_terms(pack_rows(new.rows, quantisation)), new.rows),
    ):
        for name in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(rows, name), getattr(expected, name))


def test_a_document_whose_only_words_have_no_lexical_weight_is_scored_by_its_vector() -> None:
    encoder = small_encoder(lexical=replace(BM25, field_weights=(1.0, 0.0)))
    encoded = encoder.encode([{"text": "grey wood"}, {"title": "grey wood"}, {}])
    assert np.diff(encoded.rows.indptr).tolist() == [0, 2, 0]
    assert encoded.has_text.tolist() == [True, True, False]
    assert encoded.vectors[0].any()
