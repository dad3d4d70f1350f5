"""Vectors that documents have already: how they are read, stored and scored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.vector_field import VectorField, WordEncoder
from reranker.text.view import TextView
from tests.unit.small_models import (
    DOCUMENTS,
    IDS,
    documents_with_vectors,
    small_encoder,
    small_model,
    small_table,
    with_given_vectors,
)

VIEW = TextView.parse(["title", "text"])
WITH_VECTOR = replace(VIEW, vector="content.vector")


def test_a_vector_is_centred_turned_and_shortened() -> None:
    axes = np.array([[0.0, 2.0], [1.0, 0.0]], np.float32)
    field = VectorField(np.array([1.0, 1.0], np.float32), axes, 5.0)
    # (3, 1) - (1, 1) = (2, 0), times the axes (0, 4); (1, 13) gives (12, 0), longer than 5.
    found = field.vectors([np.array([3.0, 1.0], np.float32), None, np.array([1.0, 13.0], np.float32)])
    np.testing.assert_allclose(found, [[0, 4], [0, 0], [5, 0]], atol=1e-6)
    assert field.n_given == field.n_dims == 2


def test_a_query_is_the_sum_of_its_words_at_the_length_of_the_weight() -> None:
    words = WordEncoder(np.array([[3.0, 0.0], [0.0, 4.0]], np.float32), 2.0)
    rows = sp.csr_matrix(np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 9.0], [0.0, 0.0, 1.0]], np.float32))
    # The third word has no row: a query of only this word has the vector 0.
    np.testing.assert_allclose(words.vectors(rows), [[2.0, 0.0], [1.2, 1.6], [0.0, 0.0]], atol=1e-6)


def test_a_score_is_the_sum_of_its_parts() -> None:
    plain, model = small_model(), with_given_vectors(small_model())
    documents, asked = documents_with_vectors(), model.encode_queries(["hard wood", "water pump", "unknown"])
    encoded, before = model.encoder.encode(documents, IDS), plain.encoder.encode(documents, IDS)
    assert encoded.vectors.shape == (len(documents), model.encoder.n_dims) == (6, 5)
    field, words = model.encoder.vector_field, model.word_encoder
    assert field is not None and words is not None
    given = field.vectors([model.encoder.view.given_vector(source) for source in documents])
    expected = plain.encode_queries(["hard wood", "water pump", "unknown"]).vectors @ before.vectors.T
    expected += words.vectors(asked.learned_rows) @ given.astype(np.float16).astype(np.float32).T
    np.testing.assert_allclose(asked.vectors @ encoded.vectors.T, expected, atol=1e-6)
    assert not encoded.vectors[3:5, 3:].any() and encoded.vectors[5, 3:].any()


def test_a_document_with_a_vector_and_no_word_can_be_scored() -> None:
    model = with_given_vectors(small_model())
    encoded = model.encoder.encode([{"vector": [1.0, 0.0, 0.0, 0.0]}, {"title": ""}])
    assert encoded.has_text.tolist() == [True, False]


def test_no_stored_vector_is_longer_than_the_bound() -> None:
    model = with_given_vectors(small_model())
    far = [{**source, "vector": [1e4 * (row - 2), 5.0, 3e3, 1.0]} for row, source in enumerate(DOCUMENTS)]
    lengths = np.linalg.norm(model.encoder.encode(far).vectors, axis=1)
    learned = np.linalg.norm(small_model().encoder.encode(far).vectors, axis=1)
    field = model.encoder.vector_field
    assert field is not None and (lengths <= 1.01 * np.hypot(learned, field.longest)).all()


def test_hash_and_encoder_id_change_with_the_vector_and_not_without() -> None:
    model, source = with_given_vectors(small_model()), documents_with_vectors()[0]
    view = model.encoder.view
    assert view.source_hash(source) != view.source_hash({**source, "vector": [1.0, 0.0, 0.5, 1e-3]})
    assert view.source_hash({**source, "vector": None}) == view.source_hash({**source, "vector": [0.0] * 4})
    assert model.encoder.encode([source]).source_hashes == [view.source_hash(source)]
    without = small_model()
    assert without.encoder.view.source_hash(source) == without.encoder.view.source_hash(DOCUMENTS[0])
    field = model.encoder.vector_field
    assert field is not None
    moved = replace(field, mean=field.mean + np.float32(0.5))
    assert replace(model.encoder, vector_field=moved).encoder_id != model.encoder_id != without.encoder_id
    assert replace(model, word_encoder=WordEncoder(small_table(3, 2), 1.0)).encoder_id == model.encoder_id


def test_the_view_names_what_is_read() -> None:
    assert VIEW.source_fields == ["title", "text"] and WITH_VECTOR.source_fields == ["title", "text", "content.vector"]
    assert TextView.from_json(WITH_VECTOR.to_json()) == WITH_VECTOR
    assert "vector" not in VIEW.to_json()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"content": {"vector": [1, 2.5]}}, [1.0, 2.5]),
        ({"content.vector": (0.0, 3)}, [0.0, 3.0]),
        ({"content": {"vector": None}}, None),
        ({"content": {"vector": [0, 0.0]}}, None),
        ({"content": "text"}, None),
        ({}, None),
    ],
)
def test_a_vector_is_found_by_its_path(source: dict[str, Any], expected: list[float] | None) -> None:
    found = WITH_VECTOR.given_vector(source)
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize(
    "value",
    ["[1, 2]", [], [1, "2"], [1, True], [float("nan"), 1.0], [1.0, 1e39], [[1.0]], 3, {"a": 1}, [1.0] * 16_385, [None]],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_vector_is_refused_with_its_field(value: Any) -> None:
    with pytest.raises(InputError, match=r"the field 'content.vector' is .*: a vector is a list of 1 to 16,384 finite"):
        WITH_VECTOR.given_vector({"content": {"vector": value}})


def test_vectors_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match="a vector of 3 numbers, and the model was trained with 4"):
        with_given_vectors(small_model()).encoder.encode([{"title": "ash", "vector": [1.0, 2.0, 3.0]}])


def test_parts_that_do_not_fit_are_refused() -> None:
    model = with_given_vectors(small_model())
    field, ones = model.encoder.vector_field, np.ones(4, np.float32)
    assert field is not None
    for changes, error in (
        ({"mean": ones[:3]}, ShapeMismatch),
        ({"axes": np.ones((4, 5), np.float32)}, ShapeMismatch),
        ({"mean": ones * np.nan}, InputError),
        ({"longest": 0.0}, InputError),
        ({"share": 1.5}, InputError),
    ):
        with pytest.raises(error):
            replace(field, **changes)
    wrong: list[tuple[Any, float]] = [
        (small_table(3, 2), -1.0),
        (small_table(3, 2) * np.nan, 1.0),
        (np.ones((2, 2)), 1.0),
    ]
    for table, weight in wrong:
        with pytest.raises((InputError, ShapeMismatch)):
            WordEncoder(table, weight)
    with pytest.raises(ShapeMismatch, match="3 dimensions and the vector field 2"):
        replace(model, word_encoder=WordEncoder(small_table(3, 3), 1.0))
    with pytest.raises(ConfigError, match="give both"):
        replace(model, word_encoder=None)
    with pytest.raises(ConfigError, match="needs a vector field"):
        replace(small_encoder(), view=WITH_VECTOR)
    with pytest.raises(ConfigError, match="read as text and as a vector"):
        replace(VIEW, vector="title")
