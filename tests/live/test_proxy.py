"""`ssi serve --proxy` before real engines: their own clients work unchanged, and answers have the engines' form."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from typing import Any, NamedTuple

import pytest

from reranker.engines import open_engine
from reranker.engines.scripts import requests_of
from reranker.models.model_folder import save_model
from tests.live.service_process import ServiceProcess
from tests.served import Served, model_of, random_documents, serve
from tests.unit.service.replayed import RECORDED, replayed
from tests.unit.service.test_proxy import ADAPTER, BODY, TEXT


class Proxied(NamedTuple):
    """The same client twice, of the engine itself and of the service, and what both serve."""

    engine: Any
    service: Any
    served: Served
    process: ServiceProcess


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    url = request.getfixturevalue(f"{request.param}_url")
    engine = open_engine(f"{request.param}:{url}")
    folder, index = tmp_path_factory.mktemp("proxy"), f"proxy-{uuid.uuid4().hex[:10]}"
    documents = random_documents(80)
    try:
        served = serve(engine, index, folder, documents, model_of(documents))
        save_model(served.model, folder / "model")
        options = [
            "--engine",
            engine.spec,
            "--index",
            index,
            "--model",
            str(folder / "model"),
            "--proxy",
            "--deadline-ms",
            "20000",
            "--sink",
            str(folder / "sink.ndjson"),
        ]
        with ServiceProcess(*options) as process:
            there = f"http://127.0.0.1:{process.port}"
            yield Proxied(_client(request.param, url), _client(request.param, there), served, process)
    finally:
        engine.delete_index(index)
        engine.close()


def _client(kind: str, url: str) -> Any:
    if kind == "elasticsearch":
        from elasticsearch import Elasticsearch

        return Elasticsearch(url, retry_on_timeout=False, max_retries=0)
    from opensearchpy import OpenSearch

    return OpenSearch(url, max_retries=0)


def plain(answer: Any) -> dict[str, Any]:
    """Return an answer without what differs between two searches, and without this project's fields."""
    values: dict[str, Any] = json.loads(json.dumps(answer if isinstance(answer, dict) else answer.body))
    del values["took"]
    for hit in values["hits"]["hits"]:
        hit["_source"] = {name: v for name, v in hit.get("_source", {}).items() if not name.startswith("ssi_")}
    return values


def without_scores(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plain answer with its hits by id and without their scores."""
    hits = {hit["_id"]: {name: v for name, v in hit.items() if name != "_score"} for hit in answer["hits"]["hits"]}
    return {**answer, "hits": {**answer["hits"], "hits": hits, "max_score": None}}


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"_source": ["title"]},
        {"_source": {"excludes": ["text"]}},
        {"_source": False, "fields": ["tag"]},
        {"highlight": {"fields": {"text": {}, "title": {}}}},
        {"version": True, "seq_no_primary_term": True},
        {"aggs": {"tags": {"terms": {"field": "tag"}, "aggs": {"n": {"value_count": {"field": "tag"}}}}}},
        {"post_filter": {"term": {"tag": "x"}}},
        {"track_total_hits": False},
        {"track_total_hits": 3},
        {"suggest": {"words": {"text": "wrod3", "term": {"field": "text"}}}},
        {"query": ADAPTER["query"]},
        {"query": {"bool": {"must": [{"match": {"text": {"query": TEXT, "_name": "words"}}}]}}},
        {"timeout": "10s"},
        {"docvalue_fields": ["tag"]},
    ],
)
def test_a_reranked_answer_differs_from_the_engines_by_order_and_scores_alone(
    proxied: Proxied, parts: dict[str, Any]
) -> None:
    body = {**BODY, **parts, "size": 80}
    own, ours = (plain(client.search(index=proxied.served.index, body=body)) for client in proxied[:2])
    assert without_scores(ours) == without_scores(own)
    scores = [hit["_score"] for hit in ours["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True) and ours["hits"]["max_score"] == scores[0]
    reranked, hit = (
        proxied.process.ask(
            "POST", "/search", {"query": TEXT, "body": json.loads(json.dumps(body).replace(TEXT, "{{query}}"))}
        )[1],
        ours["hits"]["hits"][0],
    )
    assert [one["_id"] for one in ours["hits"]["hits"]] == [one["id"] for one in reranked["hits"]]
    assert hit["_score"] == reranked["hits"][0]["score"]


@pytest.mark.parametrize(
    ("body", "params"),
    [
        ({"query": {"match_all": {}}, "sort": [{"tag": "asc"}, "_doc"], "size": 5}, {}),
        ({**BODY, "sort": [{"_score": "desc"}, {"tag": "asc"}], "search_after": [1.0, "x"]}, {}),
        ({**BODY, "collapse": {"field": "tag", "inner_hits": {"name": "more", "size": 2}}}, {}),
        ({**BODY, "size": 0, "aggs": {"tags": {"terms": {"field": "tag"}}}}, {}),
        ({**BODY, "aggs": {"tags": {"terms": {"field": "tag"}}}}, {"typed_keys": "true"}),
        ({"query": {"bool": {"filter": [{"term": {"tag": "x"}}]}}}, {}),
        ({}, {}),
        ({**BODY, "stored_fields": ["_none_"]}, {}),
        (BODY, {"search_type": "dfs_query_then_fetch"}),
        ({}, {"q": f"text:({TEXT})"}),
        (BODY, {"routing": "a"}),
    ],
)
def test_other_searches_are_answered_as_the_engine_answers_them(
    proxied: Proxied, body: dict[str, Any], params: dict[str, str]
) -> None:
    own, ours = (plain(_search(client, proxied.served.index, body, params)) for client in proxied[:2])
    assert ours == own


def _search(client: Any, index: str, body: dict[str, Any], params: dict[str, str]) -> Any:
    if hasattr(client, "perform_request"):  # Elasticsearch's
        named = {"body": body, "headers": {"accept": "application/json", "content-type": "application/json"}}
        return client.perform_request("POST", f"/{index}/_search", params=params, **named)
    return client.search(index=index, body=body, params=params)


def test_several_searches_in_one_request(proxied: Proxied) -> None:
    index = proxied.served.index
    counts = {"size": 0, "aggs": {"t": {"terms": {"field": "tag"}}}}
    lines = [
        {"index": index},
        {**ADAPTER, "size": 5},
        {"index": index},
        counts,
        {"index": index, "preference": "a"},
        {**BODY, "_source": False},
    ]
    own, ours = (client.msearch(body=lines)["responses"] for client in proxied[:2])
    assert [one["status"] for one in ours] == [200, 200, 200] == [one["status"] for one in own]
    assert ours[1]["aggregations"] == own[1]["aggregations"] and ours[0]["hits"]["total"] == own[0]["hits"]["total"]
    alone = proxied.service.search(index=index, body={**ADAPTER, "size": 5})
    assert [hit["_id"] for hit in ours[0]["hits"]["hits"]] == [hit["_id"] for hit in alone["hits"]["hits"]]


def test_counts_and_pings(proxied: Proxied) -> None:
    assert proxied.service.ping()
    query = {"query": {"match": {"text": "word3"}}}
    own, ours = (client.count(index=proxied.served.index, body=query)["count"] for client in proxied[:2])
    assert ours == own > 0


def test_writes_and_apis_of_the_cluster_are_refused(proxied: Proxied) -> None:
    index, service = proxied.served.index, proxied.service
    for refused in (
        lambda: service.index(index=index, id="new", body={"text": "x"}),
        lambda: service.delete(index=index, id="d1"),
        lambda: service.indices.delete(index=index),
        service.cluster.get_settings,
        lambda: service.search(index="*", body=BODY),
        lambda: service.search(index=index, body={"query": {"script": {"script": "true"}}}),
    ):
        with pytest.raises(Exception, match=r"40[345]"):
            refused()
    assert proxied.engine.count(index=index)["count"] == len(proxied.served.documents)


def test_errors_have_the_engines_form(proxied: Proxied) -> None:
    # A clause that the gate knows, with an option of another kind than the engine takes.
    body: dict[str, Any] = {"query": {"match": {"text": {"query": "a", "operator": "perhaps"}}}}
    with pytest.raises(Exception, match=r"parsing_exception|illegal_argument|body_refused") as error:
        proxied.service.search(index=proxied.served.index, body=body)
    assert getattr(error.value, "status_code", None) == 400


@pytest.mark.parametrize("recorded", RECORDED)
def test_the_requests_of_real_clients_are_answered(proxied: Proxied, recorded: str) -> None:
    n_reranked = 0
    for sent in replayed(recorded, proxied.served.index):
        connection = HTTPConnection("127.0.0.1", proxied.process.port, timeout=30)
        connection.request(sent.method, sent.path, sent.body or None, dict(sent.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        assert answer.status == 200, (sent, content)
        if sent.method == "HEAD" or "/_cat/" in sent.path:
            continue
        values = json.loads(content)
        n_reranked += answer.getheader("x-ssi-reranked") == "true"
        if "_msearch" in sent.path:
            assert all(one["status"] == 200 for one in values["responses"]), content
        elif "_mget" in sent.path:
            assert all(one["found"] for one in values["docs"])
    assert n_reranked or recorded.startswith("searchkit"), "of _msearch only the parts are reranked"


def test_single_documents_are_answered_as_the_engine_answers_them(proxied: Proxied) -> None:
    index = proxied.served.index

    def read(client: Any, source: list[str] | None = None) -> list[Any]:
        filtered = {} if source is None else {"_source_includes": source}
        one = client.get(index=index, id="d3", **filtered)
        asked = {"ids": ["d5", "none", "d3"]}
        documents = client.mget(index=index, body=asked, **filtered)["docs"]
        return [dict(one), *documents]

    def without_own(document: dict[str, Any]) -> dict[str, Any]:
        source = {name: value for name, value in document.get("_source", {}).items() if not name.startswith("ssi_")}
        return {**document, "_source": source}

    for source in (None, ["title"]):
        own, ours = ([without_own(one) for one in read(client, source)] for client in proxied[:2])
        assert ours == own
    for client in proxied[:2]:
        assert client.exists(index=index, id="d3") and not client.exists(index=index, id="none")
        assert client.indices.exists(index=index)
        assert client.cluster.health()["status"] in ("green", "yellow")
    assert proxied.service.ping() and proxied.service.info()["version"]["number"]


def test_an_alias_keeps_its_filter_for_the_index_behind_it(proxied: Proxied) -> None:
    served, alias = proxied.served, f"{proxied.served.index}-x"
    hidden = next(name for name, source in served.documents.items() if source["tag"] == "y")
    actions = [{"add": {"index": served.index, "alias": alias, "filter": {"term": {"tag": "x"}}}}]
    requests_of(served.engine).request("POST", "/_aliases", {"actions": actions})
    there = proxied.process.options
    with ServiceProcess(*(alias if one == served.index else one for one in there)) as process:
        for index in (alias, served.index):
            status, values = process.ask("GET", f"/{index}/_doc/{hidden}")
            assert status == 404 and values["found"] is False
            status, values = process.ask("POST", f"/{index}/_search", {"size": 100})
            assert status == 200 and {hit["_source"]["tag"] for hit in values["hits"]["hits"]} == {"x"}
        assert process.ask("GET", f"/{served.index}-other/_doc/{hidden}")[0] == 403
