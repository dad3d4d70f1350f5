"""Candidates that a first stage by impacts adds: its failures, and the bodies that it must not search for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from reranker.engines.dialects import OPENSEARCH
from reranker.engines.protocol import Capabilities, IndexInfo
from reranker.engines.vectors import version_fields
from reranker.errors import ConfigError, EncoderMismatch, EngineUnavailable
from reranker.records import SearchAnswer
from reranker.rerank import Reranker, RerankSettings
from tests.engines.memory import memory_engine
from tests.served import Served
from tests.services import small_index

BODY: dict[str, Any] = {"query": {"match": {"text": "{{query}}"}}, "_source": ["title"]}
QUERY = "word3 word0"
CAPABLE = OPENSEARCH.capabilities("2.19.1")


class Scripted:
    """The memory engine, said to be OpenSearch; searches by impacts are answered by a function.

    Parameters
    ----------
    served : Served
    routes : tuple of str
        Fields that the index is said to have.
    """

    in_process = False

    def __init__(self, served: Served, routes: tuple[str, ...] = ("fetch", "impacts")) -> None:
        self.real, self.served = served.engine, served
        self.properties = version_fields(served.model.encoder_id, CAPABLE, routes)
        self.by_impacts: Any = None

    @property
    def spec(self) -> str:
        return "opensearch:http://localhost:9200"

    def capabilities(self) -> Capabilities:
        return CAPABLE

    def index_info(self, index: str) -> IndexInfo:
        return IndexInfo(index, self.properties)

    def search(self, index: str, body: Mapping[str, Any], **_: Any) -> SearchAnswer:
        if "rank_feature" in json.dumps(body.get("query", {})) and self.by_impacts:
            answer: SearchAnswer = self.by_impacts(body)
            return answer
        return self.real.search(index, body)

    def __getattr__(self, name: str) -> Any:
        if name == "search_doc_values":
            raise AttributeError(name)
        return getattr(self.real, name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("memory"), memory_engine(), n=60)
    yield served
    served.engine.close()


def reranker_of(engine: Any) -> Reranker:
    settings = RerankSettings(window=30, deadline_ms=None, alpha=0.7, retrieve="impacts")
    return Reranker(engine, "docs", engine.served.model, settings=settings)


def fetched(served: Served) -> list[str]:
    settings = RerankSettings(window=30, deadline_ms=None, alpha=0.7)
    return [hit.id for hit in Reranker(served.engine, "docs", served.model, settings=settings).search(QUERY, BODY).hits]


def test_missing_fields_are_named_with_the_command(served: Served) -> None:
    with pytest.raises(EncoderMismatch, match="--routes impacts"):
        reranker_of(Scripted(served, ("fetch",))).check()


def test_a_first_stage_that_fails_leaves_words_alone(served: Served) -> None:
    engine = Scripted(served)

    def fail(*_: Any) -> SearchAnswer:
        raise EngineUnavailable("no impacts today")

    engine.by_impacts = fail
    page = reranker_of(engine).search(QUERY, BODY)
    assert page.reranked
    assert [hit.id for hit in page.hits] == fetched(served)
    assert any("no impacts today" in notice for notice in page.notices)


def test_a_body_whose_conditions_cannot_be_taken_over_is_searched_by_words_alone(served: Served) -> None:
    engine = Scripted(served)

    def never(*_: Any) -> SearchAnswer:
        raise AssertionError("documents were searched by impacts")

    engine.by_impacts = never
    tenants = [{"bool": {"must": BODY["query"], "filter": {"exists": {"field": name}}}} for name in ("title", "text")]
    page = reranker_of(engine).search(QUERY, {**BODY, "query": {"bool": {"should": tenants}}})
    assert page.reranked
    assert any("excludes documents by bool" in notice for notice in page.notices)


@pytest.mark.parametrize("bad", [{"retrieve": "vectors"}, {"window": 0}])
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RerankSettings(**bad)
