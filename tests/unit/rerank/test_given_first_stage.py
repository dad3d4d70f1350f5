"""A first stage over the field of vectors that an index has already: when it is searched, and by which vector."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reranker.deadline import Deadline
from reranker.engines.given_field import is_searchable
from reranker.engines.vectors import given_knn_body
from reranker.errors import EncoderMismatch
from reranker.rerank.candidates import encode_query
from reranker.rerank.ranking import Request
from reranker.rerank.search import NearestDocuments
from tests.unit.small_models import small_model, with_given_vectors

DENSE = {"type": "dense_vector", "dims": 4}
KNN = {"type": "knn_vector", "dimension": 4, "method": {"name": "hnsw"}}


class OneIndex:
    """An engine with one index, which keeps the bodies that it is asked."""

    spec = "elasticsearch:http://stand-in"

    def __init__(self, mapping: dict[str, Any]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._properties = {"vector": mapping}

    def capabilities(self) -> Any:
        return SimpleNamespace(kind="elasticsearch", hnsw=True, dense_vector="dense_vector", vector_product=True)

    def index_names(self, _: str) -> list[str]:
        return ["one"]

    def index_info(self, _: str) -> Any:
        return SimpleNamespace(properties=self._properties)

    def search(self, _: str, body: dict[str, Any], **__: Any) -> Any:
        self.bodies.append(body)
        return SimpleNamespace(hits=())


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        (DENSE, True),
        ({**DENSE, "index": False}, False),
        ({**DENSE, "dims": 5}, False),
        ({"type": "dense_vector"}, True),
        (KNN, True),
        ({"type": "knn_vector", "dimension": 4}, False),
        ({**KNN, "dimension": 5}, False),
        ({"type": "float"}, False),
    ],
)
def test_a_field_is_searched_if_the_engine_indexes_vectors_of_that_length(
    mapping: dict[str, Any], expected: bool
) -> None:
    assert is_searchable({"vector": mapping}, "vector", 4) is expected
    assert not is_searchable({"vector": mapping}, "other", 4)


def test_the_vector_is_turned_back_into_the_space_of_the_field() -> None:
    model, engine = with_given_vectors(small_model()), OneIndex(DENSE)
    field, words = model.encoder.vector_field, model.word_encoder
    assert field is not None and words is not None
    nearest = NearestDocuments(engine, "docs", model.encoder_id, 5, model.encoder)  # type: ignore[arg-type]
    condition = {"term": {"tag": "x"}}
    body = {"query": {"bool": {"must": {"match": {"text": "hard wood"}}, "filter": condition}}}
    request = Request("hard wood", body, body, 0, 5, "", Deadline())
    assert nearest.found(request, encode_query(model, "hard wood")) == []
    (sent,) = engine.bodies
    expected = field.axes @ words.vectors(model.encode_queries(["hard wood"]).learned_rows)[0]
    np.testing.assert_allclose(sent["knn"]["query_vector"], expected / np.linalg.norm(expected), atol=1e-6)
    assert sent["knn"]["field"] == "vector" and sent["knn"]["k"] == 5 and sent["knn"]["filter"] and sent["size"] == 5
    assert nearest.found(request, encode_query(model, "unknownword")) == [] and len(engine.bodies) == 1


def test_without_an_indexed_field_the_missing_fields_are_named() -> None:
    model, engine = with_given_vectors(small_model()), OneIndex({**DENSE, "index": False})
    with pytest.raises(EncoderMismatch, match="--routes first-stage"):
        NearestDocuments(engine, "docs", model.encoder_id, 5, model.encoder).field_searched()  # type: ignore[arg-type]
    plain = small_model()
    with pytest.raises(EncoderMismatch):
        NearestDocuments(OneIndex(DENSE), "docs", plain.encoder_id, 5, plain.encoder).field_searched()  # type: ignore[arg-type]


def test_bodies_of_both_engines() -> None:
    vector = np.array([3.0, 4.0])
    dense = given_knn_body("dense_vector", "v", vector, 2, None)
    assert dense["knn"] == {"field": "v", "query_vector": pytest.approx([0.6, 0.8]), "k": 2, "num_candidates": 4}
    knn = given_knn_body("knn_vector", "v", vector, 2, {"match_all": {}})
    assert knn["query"]["knn"]["v"] == {"vector": pytest.approx([0.6, 0.8]), "k": 4, "filter": {"match_all": {}}}
