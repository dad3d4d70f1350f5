"""Published clients against the service, as they are: `cohere`, `rerankers`, Haystack's rankers.

Each is skipped where it is not installed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from reranker.engines import open_engine
from reranker.service.auth import new_key
from reranker.service.rerank_api import Item, relevance, score_items
from reranker.text.rows import inner_products
from tests.engines.policy import library
from tests.live.service_process import ServiceProcess
from tests.served import Served, model_of, random_documents, serve

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

QUERY = "word1 word7 word12 word3"
TEXTS = ["word1 word2", "word7 word12 word3", "zzz", "word30", "word1"]


@dataclass(frozen=True)
class Live:
    """A running service: its address, a key, and what it serves."""

    url: str
    key: str
    served: Served

    def expected(self, items: list[Item]) -> tuple[list[int], list[float]]:
        """Return the places best first, and their scores."""
        found = score_items(self.served.model, QUERY, items)
        return found.order.tolist(), relevance(found.scores)[found.order].tolist()

    @property
    def of_texts(self) -> tuple[list[int], list[float]]:
        """What TEXTS should give."""
        return self.expected([Item(source={"text": text}) for text in TEXTS])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    from reranker.models.model_folder import save_model

    folder = tmp_path_factory.mktemp("clients")
    engine = open_engine(f"tantivy:{folder / 'engine'}")
    documents = random_documents(80)
    served = serve(engine, "docs", folder, documents, model_of(documents))
    engine.close()
    save_model(served.model, folder / "model")
    key, line = new_key("clients", "search")
    (folder / "keys.txt").write_text(line + "\n")
    options = [
        "--engine",
        engine.spec,
        "--index",
        "docs",
        "--model",
        str(folder / "model"),
        "--route",
        "beside",
        "--store",
        str(served.store_path),
        "--api-keys",
        str(folder / "keys.txt"),
        "--deadline-ms",
        "20000",
    ]
    with ServiceProcess(*options) as service:
        yield Live(f"http://127.0.0.1:{service.port}", key, served)


def assert_ranking(pairs: list[tuple[int, float]], expected: tuple[list[int], list[float]]) -> None:
    """Assert places and scores, best first."""
    assert [place for place, _ in pairs] == expected[0][: len(pairs)]
    assert [score for _, score in pairs] == pytest.approx(expected[1][: len(pairs)])


def test_cohere_v2(live: Live) -> None:
    cohere = library("cohere")
    client = cohere.ClientV2(api_key=live.key, base_url=live.url)
    answer = client.rerank(model="rerank-v4.0", query=QUERY, documents=TEXTS, top_n=3, max_tokens_per_doc=100)
    assert len(answer.results) == 3
    assert_ranking([(one.index, one.relevance_score) for one in answer.results], live.of_texts)
    assert answer.meta.api_version.version == "2"
    assert answer.meta.model_id == live.served.model.model_id


def test_cohere_v2_by_id(live: Live) -> None:
    cohere = library("cohere")
    client = cohere.ClientV2(api_key=live.key, base_url=live.url)
    ids = list(live.served.documents)
    expected = live.expected([Item(source=live.served.documents[name]) for name in ids])
    answer = client.rerank(model="ssi:ids", query=QUERY, documents=ids)
    assert [one.index for one in answer.results] == expected[0]
    assert [one.relevance_score for one in answer.results] == pytest.approx(expected[1], abs=1e-6)


def test_cohere_v1(live: Live) -> None:
    cohere = library("cohere")
    client = cohere.Client(api_key=live.key, base_url=live.url)
    documents = [{"title": "word1", "text": text} for text in TEXTS]
    answer = client.rerank(query=QUERY, documents=documents, rank_fields=["text"], return_documents=True)
    assert_ranking([(one.index, one.relevance_score) for one in answer.results], live.of_texts)
    assert answer.results[0].document.text == TEXTS[answer.results[0].index]
    assert answer.meta.api_version.version == "1"


def test_cohere_async(live: Live) -> None:
    cohere = library("cohere")

    async def ask() -> Any:
        async with cohere.AsyncClientV2(api_key=live.key, base_url=live.url) as client:
            return await asyncio.gather(*(client.rerank(model="x", query=QUERY, documents=TEXTS) for _ in range(8)))

    for answer in asyncio.run(ask()):
        assert_ranking([(one.index, one.relevance_score) for one in answer.results], live.of_texts)


def test_cohere_reads_the_errors(live: Live) -> None:
    cohere = library("cohere")
    client = cohere.ClientV2(api_key=live.key, base_url=live.url)
    with pytest.raises(cohere.UnprocessableEntityError) as invalid:
        client.rerank(model="x", query=QUERY, documents=[])
    assert "documents" in invalid.value.body["message"]
    with pytest.raises(cohere.UnauthorizedError) as unknown:
        cohere.ClientV2(api_key="wrong", base_url=live.url).rerank(model="x", query=QUERY, documents=TEXTS)
    assert "API key" in unknown.value.body["message"]


@pytest.mark.parametrize(
    ("provider", "path"),
    [
        ("cohere", "/v1/rerank"),
        ("cohere", "/v2/rerank"),
        ("jina", "/v1/rerank"),
        ("text-embeddings-inference", "/rerank"),
    ],
)
def test_rerankers(live: Live, provider: str, path: str) -> None:
    rerankers = library("rerankers.models.api_rankers")
    ranker = rerankers.APIRanker("any", live.key, provider, verbose=0, url=live.url + path)
    found = ranker.rank(query=QUERY, docs=TEXTS, doc_ids=[f"n{place}" for place in range(len(TEXTS))])
    pairs = [(int(one.document.doc_id[1:]), one.score) for one in found.results]
    assert_ranking(pairs, live.of_texts)


def test_haystack_cohere_ranker(live: Live) -> None:
    module = library("haystack_integrations.components.rankers.cohere")
    from haystack import Document  # type: ignore[import-not-found, unused-ignore]
    from haystack.utils import Secret  # type: ignore[import-not-found, unused-ignore]

    ranker = module.CohereRanker(api_key=Secret.from_token(live.key), api_base_url=live.url, top_k=4)
    documents = [Document(id=str(place), content=text) for place, text in enumerate(TEXTS)]
    found = ranker.run(query=QUERY, documents=documents)["documents"]
    assert len(found) == 4
    assert_ranking([(int(one.id), one.score) for one in found], live.of_texts)


def test_haystack_jina_ranker(live: Live) -> None:
    module = library("haystack_integrations.components.rankers.jina")
    from haystack import Document
    from haystack.utils import Secret

    documents = [Document(id=str(place), content=text) for place, text in enumerate(TEXTS)]
    ranker = module.JinaRanker(api_key=Secret.from_token(live.key), base_url=f"{live.url}/v1/rerank", top_k=2)
    answer = ranker.run(query=QUERY, documents=documents)
    assert_ranking([(int(one.id), one.score) for one in answer["documents"]], live.of_texts)
    assert answer["meta"]["model"] == "jina-reranker-v1-base-en"
    refused = module.JinaRanker(api_key=Secret.from_token("wrong"), base_url=f"{live.url}/v1/rerank")
    with pytest.raises(RuntimeError, match="API key"):
        refused.run(query=QUERY, documents=documents)


def test_raw_scores_are_f(live: Live) -> None:
    requests = library("requests")
    headers = {"X-API-Key": live.key}
    ids = list(live.served.documents)[:50]
    body = {"query": QUERY, "texts": [{"id": name} for name in ids], "raw_scores": True}
    found = requests.post(f"{live.url}/rerank", json=body, headers=headers, timeout=30).json()
    query = live.served.model.encode_queries([QUERY])
    encoded = live.served.model.encoder.encode([live.served.documents[name] for name in ids])
    expected = encoded.vectors @ query.vectors[0] + inner_products(encoded.rows, query.rows)[:, 0]
    scores = np.zeros(len(ids))
    scores[[one["index"] for one in found]] = [one["score"] for one in found]
    assert scores == pytest.approx(expected, abs=1e-5)
