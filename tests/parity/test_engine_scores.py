"""The same documents score alike on all engines: BM25 is one formula, and the words are the same."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.protocol import Engine, version_numbers
from tests.engines.memory import memory_engine
from tests.seeds import seeded_rng

MAPPING = {"properties": {"title": {"type": "text"}, "text": {"type": "text"}, "tag": {"type": "keyword"}}}
N_DOCUMENTS = 200


def _documents() -> dict[str, dict[str, Any]]:
    """Return documents of random words, of very different lengths; every one has both fields."""
    rng = seeded_rng()
    words = [f"w{number}" for number in range(50)]
    documents = {}
    for number in range(N_DOCUMENTS):
        title, text = (" ".join(rng.choice(words, size=size)) for size in (rng.integers(1, 8), rng.integers(1, 300)))
        documents[f"d{number}"] = {"title": title, "text": text, "tag": f"t{number % 3}"}
    return documents


QUERIES: list[dict[str, Any]] = [
    {"match": {"text": "w1 w2 w3 w3"}},
    {"match": {"text": {"query": "w1 w2 w3 w4", "minimum_should_match": 3}}},
    {"multi_match": {"query": "w5 w6", "fields": ["title^3", "text"]}},
    {"multi_match": {"query": "w5 w6", "fields": ["title^3", "text"], "type": "most_fields"}},
    {
        "bool": {
            "must": [{"match": {"text": "w7 w8"}}],
            "should": [{"match": {"title": "w7"}}, {"ids": {"values": ["d1", "d2"]}}],
            "filter": [{"terms": {"tag": ["t0", "t1"]}}],
            "must_not": [{"match": {"title": "w9"}}],
            "boost": 1.5,
        }
    },
]


def _scores(engine: Engine, **settings: str) -> list[dict[str, float]]:
    name = f"parity-{uuid.uuid4().hex[:12]}"
    engine.create_index(name, MAPPING, {"number_of_shards": 1, "number_of_replicas": 0, **settings})
    engine.bulk(name, [WriteOp("index", one, source) for one, source in _documents().items()])
    engine.refresh(name)
    answers = [engine.search(name, {"query": query, "size": N_DOCUMENTS}) for query in QUERIES]
    engine.delete_index(name)
    engine.close()
    return [{hit.id: hit.score or 0.0 for hit in answer.hits} for answer in answers]


@pytest.fixture(scope="module")
def expected() -> list[dict[str, float]]:
    return _scores(memory_engine())


def _leaves_a_factor_out(engine: Engine) -> bool:
    """Return whether an engine's BM25 lacks the factor k1 + 1: OpenSearch's since 3.0."""
    able = engine.capabilities()
    return able.kind == "opensearch" and version_numbers(able.version) >= (3,)


@pytest.mark.parametrize("kind", ["tantivy", "elasticsearch", "opensearch"])
def test_scores_are_those_of_the_engine_in_memory(
    kind: str, expected: list[dict[str, float]], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = tmp_path if kind == "tantivy" else request.getfixturevalue(f"{kind}_url")
    engine = open_engine(f"{kind}:{place}", EngineSettings())
    legacy = {"index.similarity.default.type": "LegacyBM25"} if _leaves_a_factor_out(engine) else {}
    for query, told, wanted in zip(QUERIES, _scores(engine, **legacy), expected, strict=True):
        assert len(wanted) > 5
        assert told == pytest.approx(wanted, rel=1e-5), query


def test_opensearch_leaves_a_factor_out_since_3_that_alpha_has_to_make_up_for(
    expected: list[dict[str, float]], opensearch_url: str
) -> None:
    engine = open_engine(f"opensearch:{opensearch_url}", EngineSettings())
    factor = 2.2 if _leaves_a_factor_out(engine) else 1.0
    for told, wanted in zip(_scores(engine)[:4], expected[:4], strict=True):
        assert told == pytest.approx({name: score / factor for name, score in wanted.items()}, rel=1e-5)
