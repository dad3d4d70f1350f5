"""Vectors that documents have already: read from indexes of every mapping, and written to new ones."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from indexer.build import BuildOptions, build_index
from indexer.load import LoadOptions
from indexer.renewal import Target, sync
from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.engines.protocol import Engine, WriteOp
from reranker.errors import ConfigError, PreflightRefused
from reranker.models.model_folder import load_model
from reranker.rerank import Reranker, RerankSettings
from reranker.retrain.documents import export_documents
from reranker.text.view import FieldSpec, TextView
from tests.live.helpers import write_lines
from tests.served import N_GIVEN, TEXT_FIELDS, model_of, random_documents, reading_vectors, with_vectors

VIEW = TextView((FieldSpec("title"), FieldSpec("text")), vector="embedding")
N = 40
READABLE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "float": {"embedding": {"type": "float"}},
    "not indexed": {"embedding": {"type": "object", "enabled": False}},
}
OF_KIND: dict[str, dict[str, dict[str, Any]]] = {
    "elasticsearch": {
        "stored": {"embedding": {"type": "dense_vector", "dims": N_GIVEN, "index": False}},
        "default": {"embedding": {"type": "dense_vector", "dims": N_GIVEN}},
        "int8_hnsw": {
            "embedding": {
                "type": "dense_vector",
                "dims": N_GIVEN,
                "similarity": "l2_norm",
                "index_options": {"type": "int8_hnsw"},
            }
        },
    },
    "opensearch": {
        "stored": {"embedding": {"type": "knn_vector", "dimension": N_GIVEN}},
        "lucene": {
            "embedding": {
                "type": "knn_vector",
                "dimension": N_GIVEN,
                "method": {"name": "hnsw", "engine": "lucene", "space_type": "l2"},
            }
        },
    },
}
COARSE: dict[str, list[dict[str, Any]]] = {
    "elasticsearch": [
        {"type": "dense_vector", "dims": 8, "element_type": "byte"},
        {"type": "dense_vector", "dims": 8, "element_type": "bit"},
    ],
    "opensearch": [
        {
            "type": "knn_vector",
            "dimension": 8,
            "data_type": "byte",
            "method": {"name": "hnsw", "engine": "lucene", "space_type": "l2"},
        }
    ],
}


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    opened = open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")
    yield opened
    opened.close()


@pytest.fixture
def index(engine: Engine) -> Iterator[str]:
    name = f"given-{uuid.uuid4().hex[:10]}"
    yield name
    for concrete in {*engine.index_names(name), *engine.index_names(f"{name}-000001")}:
        engine.delete_index(concrete)


def filled(engine: Engine, index: str, documents: Mapping[str, Mapping[str, Any]], mapping: dict[str, Any]) -> None:
    knn = {"index.knn": "true"} if "method" in json.dumps(mapping) else {}
    engine.create_index(index, mapping, {"number_of_shards": 1, "number_of_replicas": 0, **knn})
    results = engine.bulk(index, [WriteOp("index", name, source) for name, source in documents.items()])
    assert {result.status for result in results} == {201}
    engine.refresh(index)


@pytest.mark.parametrize("case", [*READABLE, *OF_KIND["elasticsearch"], *OF_KIND["opensearch"]])
def test_vectors_of_every_mapping_are_read_as_they_were_sent(
    engine: Engine, index: str, tmp_path: Path, case: str
) -> None:
    kind = engine.capabilities().kind
    properties = READABLE.get(case, OF_KIND[kind].get(case))
    if properties is None:
        pytest.skip(f"{kind} has no such mapping")
    documents = with_vectors(random_documents(N))
    filled(engine, index, documents, {"properties": {**TEXT_FIELDS, **properties}})
    assert export_documents(engine, index, VIEW, tmp_path / "docs.jsonl") == N
    read = {one.pop("id"): one for one in map(json.loads, (tmp_path / "docs.jsonl").read_text().splitlines())}
    for name, source in documents.items():
        sent, found = VIEW.given_vector(source), VIEW.given_vector(read[name])
        assert (sent is None) == (found is None)
        if sent is not None and found is not None:
            np.testing.assert_allclose(found, sent, rtol=1e-6)
    model = reading_vectors(model_of(documents))
    # Elasticsearch 9.2 normalises what it writes again: a vector may change in its last bit, and is written twice.
    assert sync(Target(engine, index, model)).written >= N
    assert sync(Target(engine, index, model)).written == 0
    changed = {"embedding": [1.0, 2.0, 3.0, 4.0, 5.0]}
    engine.bulk(index, [WriteOp("update", "d1", changed), WriteOp("update", "d2", {"tag": "z"})])
    engine.refresh(index)
    assert 1 <= sync(Target(engine, index, model)).written <= 3
    assert sync(Target(engine, index, model)).written == 0


def test_vectors_of_bytes_and_bits_are_refused(engine: Engine, index: str, tmp_path: Path) -> None:
    for number, definition in enumerate(COARSE[engine.capabilities().kind]):
        name = f"{index}-{number}"
        filled(engine, name, random_documents(3), {"properties": {**TEXT_FIELDS, "embedding": definition}})
        element = definition.get("element_type") or definition["data_type"]
        try:
            with pytest.raises(ConfigError, match=rf"is a \w+ of {element} elements.*Add a field of float elements"):
                export_documents(engine, name, VIEW, tmp_path / "docs.jsonl")
            with pytest.raises(PreflightRefused, match=f"{element} elements"):
                sync(Target(engine, name, reading_vectors(model_of(random_documents(3)))))
        finally:
            engine.delete_index(name)


@pytest.mark.parametrize("source", [{"excludes": ["emb*"]}, {"includes": ["title", "text"]}, {"enabled": False}])
def test_a_field_that_the_index_does_not_return_is_named(
    engine: Engine, index: str, tmp_path: Path, source: dict[str, Any]
) -> None:
    documents = with_vectors(random_documents(20))
    filled(engine, index, documents, {"properties": TEXT_FIELDS, "_source": source})
    options = ["--engine", engine.spec, "--index", index, "--vector-field", "embedding"]
    result = CliRunner().invoke(main, ["train", *options, "--model", str(tmp_path / "model")])
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert "does not return the field 'embedding'" in message and "train with --docs" in message
    assert "0 of" not in message


def test_a_new_index_keeps_vectors_only_in_its_documents(engine: Engine, index: str, tmp_path: Path) -> None:
    documents = with_vectors(random_documents(N))
    model = reading_vectors(model_of(documents))
    path = write_lines(tmp_path / "docs.jsonl", documents)
    load = LoadOptions(state_path=tmp_path / "state")
    report = build_index(engine, index, path, model, BuildOptions(load=load))
    assert (report.load.bulk.indexed, report.live) == (N, True)
    mapped = engine.index_info(index).properties["embedding"]
    assert mapped == {"type": "float", "index": False, "doc_values": False}
    assert sync(Target(engine, index, model)).written == 0
    assert export_documents(engine, index, VIEW, tmp_path / "read.jsonl") == N


def test_an_index_that_maps_the_field_keeps_its_mapping(engine: Engine, index: str, tmp_path: Path) -> None:
    documents = with_vectors(random_documents(N))
    model = reading_vectors(model_of(documents))
    (definition,) = OF_KIND[engine.capabilities().kind]["stored"].values()
    engine.create_index(index, {"properties": {**TEXT_FIELDS, "embedding": definition}})
    path = write_lines(tmp_path / "docs.jsonl", documents)
    build_index(engine, index, path, model, BuildOptions(load=LoadOptions(state_path=tmp_path / "state")))
    assert engine.index_info(index).properties["embedding"]["type"] == definition["type"]
    assert sync(Target(engine, index, model)).written == 0


def test_a_model_is_trained_on_an_index_without_labels_and_serves_it(
    engine: Engine, index: str, tmp_path: Path
) -> None:
    documents = with_vectors(random_documents(N))
    properties = OF_KIND[engine.capabilities().kind]["stored"]
    filled(engine, index, documents, {"properties": {**TEXT_FIELDS, **properties}})
    target = ["--engine", engine.spec, "--index", index, "--model", str(tmp_path / "model")]

    def ran(*arguments: str) -> str:
        result = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    ran("train", *target, "--vector-field", "embedding")
    ran("revectorize", *target)
    assert "the vector near" in ran("search", "word1 word3", *target, "--explain", "--alpha", "1")
    model = load_model(tmp_path / "model")
    assert model.word_encoder is not None and model.word_encoder.U.any()
    page = Reranker(engine, index, model, settings=RerankSettings(alpha=1.0, deadline_ms=None)).search("word1 word3")
    assert page.reranked and page.n_encoded == 0
