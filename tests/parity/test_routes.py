"""One score whatever the route and whatever the engine: beside = fetch = the definition; open vocabulary everywhere."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.engines import open_engine
from reranker.engines.base import Engine
from reranker.kernels.quantisation import QUANTISATIONS, Quantisation
from reranker.rerank import RerankedPage, Reranker, RerankSettings
from tests.served import Served, model_of, random_documents, serve

ENGINES = ("memory", "tantivy", "elasticsearch", "opensearch")
BODY = {
    "query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"], "type": "most_fields"}},
    "_source": ["title"],
}
QUERIES = ("word3 word11 word0", "word1", "word59 word2 word2", "word0 neverseen9", "WORD4, word5!")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    kind = str(request.param)
    place = {"memory": "", "tantivy": str(tmp_path_factory.mktemp("tantivy"))}
    opened = open_engine(f"{kind}:{place[kind] if kind in place else request.getfixturevalue(f'{kind}_url')}")
    yield opened
    opened.close()


def serve_on(engine: Engine, path: Path, quantisation: Quantisation, n_shards: int = 2) -> Iterator[Served]:
    documents = random_documents(120)
    model = model_of(documents, quantisation=quantisation)
    remote = engine.capabilities().kind in ("elasticsearch", "opensearch")
    settings: dict[str, Any] = {"index.number_of_shards": n_shards, "index.number_of_replicas": 0} if remote else {}
    index = f"parity-{uuid.uuid4().hex[:10]}"
    try:
        yield serve(engine, index, path, documents, model, **settings)
    finally:
        engine.delete_index(index)


@pytest.fixture(scope="module", params=QUANTISATIONS)
def served(
    request: pytest.FixtureRequest, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    yield from serve_on(engine, tmp_path_factory.mktemp("store"), request.param)


def pages(served: Served, query: str, **options: Any) -> tuple[RerankedPage, RerankedPage]:
    settings = RerankSettings(window=50, deadline_ms=None, alpha=options.pop("alpha", 0.6))
    beside = Reranker(served.engine, served.index, served.model, route="beside", store=served.store, settings=settings)
    fetch = Reranker(served.engine, served.index, served.model, route="fetch", settings=settings)
    return beside.search(query, BODY, **options), fetch.search(query, BODY, **options)


@pytest.mark.parametrize("query", QUERIES)
def test_both_routes_give_one_order_and_one_score(served: Served, query: str) -> None:
    beside, fetch = pages(served, query, size=80)
    assert beside.reranked
    assert fetch.reranked
    assert beside.n_encoded == fetch.n_encoded == 0
    assert [hit.id for hit in beside.hits] == [hit.id for hit in fetch.hits]
    scores = np.array([[a.score, b.score] for a, b in zip(beside.hits, fetch.hits, strict=True)])
    np.testing.assert_allclose(scores[:, 0], scores[:, 1], rtol=0, atol=1e-5)
    assert all(hit.source.keys() == {"title"} for hit in [*beside.hits, *fetch.hits])


@pytest.mark.parametrize("query", QUERIES)
def test_scores_are_those_of_the_definition(served: Served, query: str) -> None:
    """(Uq).(Vd) + q.d in double precision, from the encoder's own output alone."""
    _, fetch = pages(served, query, size=50)
    q = served.model.encode_queries([query])
    weights = dict(zip(q.rows.indices.tolist(), q.rows.data.astype(float).tolist(), strict=True))
    for hit in fetch.hits:
        d = served.model.encoder.encode([served.documents[hit.id]])
        learned = float(q.vectors[0].astype(float) @ d.vectors[0].astype(float))
        same = sum(weights.get(i, 0.0) * w for i, w in zip(d.rows.indices.tolist(), d.rows.data.tolist(), strict=True))
        assert hit.model_score == pytest.approx(learned + same, abs=1e-5)


def test_pages_are_one_permutation(served: Served) -> None:
    whole = pages(served, QUERIES[0], size=120)[1]
    assert len(whole.hits) == whole.total > 60
    joined = [
        hit.id for first in range(0, whole.total, 9) for hit in pages(served, QUERIES[0], size=9, from_=first)[1].hits
    ]
    assert joined == [hit.id for hit in whole.hits]
    assert len(set(joined)) == whole.total


def test_a_part_number_nobody_has_seen_is_first_without_retraining(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for served in serve_on(engine, tmp_path_factory.mktemp("open"), "float16", n_shards=1):
        # The word stands once, deep in a long text; its rivals have the query's other words in their titles.
        new = {"title": "word1", "text": " ".join(["word1 word2 word3"] * 10) + " zx81q7"}
        served.put({"new": new})
        assert "zx81q7" not in served.model.query_vocabulary
        for page in pages(served, "word0 word4 zx81q7", alpha=1.0):
            assert page.reranked
            assert page.hits[0].id == "new"


def test_explanations_sum_to_the_score(served: Served) -> None:
    for page in pages(served, QUERIES[3], size=60, explain=True):
        assert len(page.explanations) == len(page.hits)
        for hit, explanation in zip(page.hits[:50], page.explanations, strict=False):
            assert explanation.id == hit.id
            assert sum(row.value for row in explanation.contributions) == pytest.approx(hit.score, abs=1e-6)
