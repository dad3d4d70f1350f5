"""Impacts: known answers by their definition, the words that are kept, and input that is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.arrays import Float32
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.impacts import DF_POWER, LEARNED_WEIGHT, Impacts, different_words
from reranker.models.ranking_model import RankingModel
from reranker.text.rows import inner_products
from tests.unit.models.test_short_rows import TEXTS, made_model
from tests.unit.small_models import BM25, DOCUMENTS, documents_with_vectors, small_encoder, small_model
from tests.unit.small_models import with_given_vectors as with_vectors

ALL = 10**6


def with_mean(model: RankingModel, vectors: Float32) -> RankingModel:
    """Return a model with the mean of some documents' vectors."""
    return replace(model, mean_vector=np.asarray(vectors.mean(axis=0), np.float32))


def impacts_of(model: RankingModel, n_words: int, documents: object = DOCUMENTS) -> tuple[Impacts, sp.csr_matrix]:
    """Return the impacts of a model over some documents, and their rows."""
    encoded = model.encoder.encode(list(documents))  # type: ignore[call-overload]
    impacts = Impacts(with_mean(model, encoded.vectors), n_words)
    return impacts, impacts.of_documents(encoded.vectors, encoded.rows)


def of_words(rows: sp.csr_matrix, document: int) -> dict[int, float]:
    row = rows[document]
    return dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))


def by_definition(model: RankingModel, documents: list[dict[str, object]], document: int) -> dict[int, float]:
    """Return the impacts of all words for one document, by plain loops."""
    encoded = model.encoder.encode(documents)
    found = {word: model.identity * weight for word, weight in of_words(encoded.rows, document).items()}
    if model.word_weights is not None:
        found = {w: x * (float(model.word_weights[w]) if w < len(model.word_weights) else 1) for w, x in found.items()}
    x = encoded.vectors[document].astype(float)
    difference = x - encoded.vectors.mean(axis=0)
    n_dims = model.U.shape[1]
    for word in range(len(model.query_vocabulary)):
        idf = float(model.query_vocabulary.idf_of(np.array([word]))[0])
        value = idf * float(model.U[word] @ difference[:n_dims]) if word < len(model.U) else 0.0
        if model.word_encoder is not None and word < len(model.word_encoder.U):
            typical = np.sqrt(np.mean(np.sum(model.word_encoder.U.astype(float) ** 2, axis=1)))
            of_word = model.word_encoder.U[word] @ difference[n_dims:]
            value += model.word_encoder.weight * idf * float(of_word) / typical
        if x.any() and value > 0:
            found[word] = found.get(word, 0.0) + LEARNED_WEIGHT * value
    return found


def some_models() -> dict[str, RankingModel]:
    plain = small_model(encoder=small_encoder(lexical=BM25))
    weights = np.linspace(0.5, 2, len(plain.query_vocabulary)).astype(np.float32)
    return {
        "plain": small_model(),
        "lexical rows": plain,
        "identity": replace(plain, identity=0.4),
        "word weights": replace(plain, word_weights=weights),
        "given vectors": with_vectors(plain),
    }


@pytest.mark.parametrize("name", some_models())
def test_all_impacts_are_those_of_the_definition(name: str) -> None:
    model, documents = some_models()[name], documents_with_vectors()
    _, rows = impacts_of(model, ALL, documents)
    for document in range(len(documents)):
        expected = by_definition(model, documents, document)
        found = of_words(rows, document)
        assert found.keys() == expected.keys()
        assert [found[word] for word in expected] == pytest.approx([*expected.values()], rel=2e-3, abs=1e-6)
        assert all(value > 0 for value in found.values())


@pytest.mark.parametrize("n_words", [0, 1, 3])
def test_the_words_of_the_largest_values_are_kept(n_words: int) -> None:
    model = small_model(encoder=small_encoder(lexical=BM25))
    _, every = impacts_of(model, ALL)
    _, cut = impacts_of(model, n_words)
    lexical = model.encoder.encode(DOCUMENTS).rows
    frequency = model.query_vocabulary.frequency_of(np.arange(len(model.U)))
    for document in range(len(DOCUMENTS)):
        of_all, of_text, kept = (of_words(rows, document) for rows in (every, lexical, cut))
        learned = {word: value - of_text.get(word, 0.0) for word, value in of_all.items() if word < len(model.U)}
        keys = {word: value * float(frequency[word]) ** DF_POWER for word, value in learned.items() if value > 1e-6}
        best = sorted(keys, key=lambda word: -keys[word])[:n_words]
        assert set(kept) == {*of_text, *best}
        assert all(kept[word] == pytest.approx(of_all[word], rel=1e-5) for word in best)
        others = {word: value for word, value in of_text.items() if word not in best}
        assert all(kept[word] == pytest.approx(value) for word, value in others.items())


def test_of_equal_words_those_with_the_lowest_numbers_are_kept() -> None:
    vocabulary = small_model().query_vocabulary
    n = len(vocabulary)
    same = replace(vocabulary, document_frequency=np.full(n, 2))
    encoder = replace(small_encoder(), document_vocabulary=same)
    U = np.tile(np.array([1, 2, 3], np.float32), (n, 1))
    model = RankingModel(encoder, same, U, mean_vector=np.zeros(3, np.float32))
    vectors = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    nothing = encoder.encode([{}, {}]).rows
    rows = Impacts(model, 4).of_documents(vectors, nothing)
    assert [rows[document].indices.tolist() for document in (0, 1)] == [[0, 1, 2, 3]] * 2


def test_a_document_has_the_same_impacts_in_any_company() -> None:
    model = small_model(encoder=small_encoder(lexical=BM25))
    encoded = model.encoder.encode(DOCUMENTS)
    impacts = Impacts(with_mean(model, encoded.vectors), 5)
    together = impacts.of_documents(encoded.vectors, encoded.rows)
    for document in range(len(DOCUMENTS)):
        single = impacts.of_documents(encoded.vectors[[document]], encoded.rows[[document]])
        assert of_words(single, 0) == of_words(together, document)
    none = impacts.of_documents(encoded.vectors[:0], encoded.rows[:0])
    assert none.shape == (0, 2**31 - 1) and not none.nnz


def test_short_queries_have_the_row_of_their_own_and_nothing_of_the_other() -> None:
    model = made_model()
    encoded = model.encoder.encode([{"text": text} for text in [*TEXTS.values(), "unseen boat"]], [*TEXTS, "e"])
    rows = Impacts(with_mean(model, encoded.vectors), 0).of_documents(encoded.vectors, encoded.rows)
    asked = model.encode_queries(["gift", "boat", "unseen"])
    expected = inner_products(asked.rows, encoded.rows)
    lengths = np.array([row.data[0] for row in asked.rows])
    found = inner_products(different_words(asked.learned_rows), rows)
    np.testing.assert_allclose(found * lengths[:, None], expected, rtol=1e-5)
    assert expected[0, 1] > 0, "document b remembers the gift"
    words = {word for document in range(5) for word in of_words(rows, document)}
    assert len(words) == len(model.query_vocabulary) + 1, "the words of the texts and the memory, and the unseen one"


def test_a_lexical_model_has_the_impacts_of_its_words() -> None:
    encoder = replace(small_encoder(lexical=BM25), V=np.zeros((0, 1), np.float32))
    model = RankingModel(encoder, encoder.document_vocabulary, np.zeros((0, 1), np.float32))
    _, rows = impacts_of(model, 8)
    expected = encoder.encode(DOCUMENTS).rows
    assert [of_words(rows, n) for n in range(6)] == [of_words(expected, n) for n in range(6)]


def test_what_cannot_be_is_refused() -> None:
    model = small_model(mean_vector=np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="learned words is -1: give 0 or more"):
        Impacts(model, -1)
    with pytest.raises(ConfigError, match="models of earlier versions do not have: train again"):
        Impacts(replace(model, mean_vector=None))
    with pytest.raises(ShapeMismatch, match=r"shape \(2,\): give \(3,\)"):
        replace(model, mean_vector=np.zeros(2, np.float32))
    with pytest.raises(InputError, match="not finite"):
        replace(model, mean_vector=np.full(3, np.nan, np.float32))
    two = replace(model, identity=0.0, query_vocabulary=replace(model.query_vocabulary))
    with pytest.raises(ConfigError, match="this model has two"):
        Impacts(two, 4)
