"""`ssi serve --proxy` before real engines: reranked answers differ in order and scores, all others in nothing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from reranker.engines import open_engine
from reranker.engines.protocol import WriteOp, requests_of
from reranker.models.model_folder import save_model
from reranker.rerank import Reranker
from tests.live.callers import Site, lines, unordered
from tests.live.service_process import ServiceProcess
from tests.served import Served, model_of, random_documents, serve
from tests.services import PATIENT
from tests.unit.service.replayed import RECORDED, replayed
from tests.unit.service.test_proxy import ADAPTER, BODY, TEXT

OTHER_IDS = ("a/b", "ä ö", "50%")
"""Ids of documents of the other index that are encoded in a path."""


class Proxied(NamedTuple):
    """The same client twice, of the engine itself and of the service, raw requests to both, and what both serve."""

    engine: Any
    service: Any
    own: Site
    ours: Site
    served: Served
    process: ServiceProcess

    @property
    def other(self) -> str:
        """Name of an index that is not served."""
        return f"{self.served.index}-other"


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    url = request.getfixturevalue(f"{request.param}_url")
    engine = open_engine(f"{request.param}:{url}")
    folder, index = tmp_path_factory.mktemp("proxy"), f"proxy-{uuid.uuid4().hex[:10]}"
    documents = random_documents(80)
    try:
        served = serve(engine, index, folder, documents, model_of(documents))
        engine.create_index(f"{index}-other", {"properties": {"tag": {"type": "keyword"}}})
        engine.bulk(f"{index}-other", [WriteOp("index", name, {"text": TEXT, "tag": "x"}) for name in OTHER_IDS])
        engine.refresh(f"{index}-other")
        save_model(served.model, folder / "model")
        options = ["--engine", engine.spec, "--index", index, "--model", str(folder / "model"), "--proxy"]
        options += ["--deadline-ms", "20000", "--sink", str(folder / "sink.ndjson")]
        with ServiceProcess(*options) as process:
            there = f"http://127.0.0.1:{process.port}"
            clients = _client(request.param, url), _client(request.param, there)
            yield Proxied(*clients, Site(url), Site(there), served, process)
    finally:
        engine.delete_index(index)
        engine.delete_index(f"{index}-other")
        engine.close()


def _client(kind: str, url: str) -> Any:
    if kind == "elasticsearch":
        from elasticsearch import Elasticsearch

        return Elasticsearch(url, retry_on_timeout=False, max_retries=0)
    from opensearchpy import OpenSearch

    return OpenSearch(url, max_retries=0)


def values_of(answer: Any) -> dict[str, Any]:
    """Return the answer of either client as a dictionary."""
    return dict(answer if isinstance(answer, dict) else answer.body)


# --- reranked


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
        {"stats": ["a"]},
        {"query": {"bool": {"must": BODY["query"], "filter": {"terms": {"tag": ["x"]}}}}},
    ],
)
def test_a_reranked_answer_differs_from_the_engines_by_order_and_scores_alone(
    proxied: Proxied, parts: dict[str, Any]
) -> None:
    served, body = proxied.served, {**BODY, **parts, "size": 80}
    own, ours = (values_of(client.search(index=served.index, body=body)) for client in proxied[:2])
    assert unordered(ours) == unordered(own)
    scores = [hit["_score"] for hit in ours["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True) and ours["hits"]["max_score"] == scores[0]
    template = json.loads(json.dumps(body).replace(TEXT, "{{query}}"))
    page = Reranker(served.engine, served.index, served.model, settings=PATIENT).search(TEXT, template)
    assert page.reranked and [one["_id"] for one in ours["hits"]["hits"]] == [hit.id for hit in page.hits]
    assert scores[0] == pytest.approx(page.hits[0].score)


def test_several_searches_in_one_request(proxied: Proxied) -> None:
    index = proxied.served.index
    counts = {"size": 0, "aggs": {"t": {"terms": {"field": "tag"}}}}
    parts = [
        {"index": index},
        {**ADAPTER, "size": 5},
        {"index": index},
        counts,
        {"index": index, "preference": "a"},
        {**BODY, "_source": False},
        {"index": proxied.other},
        BODY,
        {"index": f"{index}-none"},
        BODY,
    ]
    own, ours = (client.msearch(body=parts)["responses"] for client in proxied[:2])
    assert [one["status"] for one in ours] == [200, 200, 200, 200, 404] == [one["status"] for one in own]
    assert ours[1]["aggregations"] == own[1]["aggregations"] and ours[0]["hits"]["total"] == own[0]["hits"]["total"]
    assert ours[3]["hits"] == own[3]["hits"] and ours[4] == own[4]
    alone = proxied.service.search(index=index, body={**ADAPTER, "size": 5})
    assert [hit["_id"] for hit in ours[0]["hits"]["hits"]] == [hit["_id"] for hit in alone["hits"]["hits"]]


# --- passed on


class Call(NamedTuple):
    """A request; ``@`` in path and body stands for the name of the served index."""

    method: str
    path: str
    body: Any = None


def searched(body: Any, params: str = "") -> Call:
    return Call("POST", f"/@/_search{params}", body)


SORTED = {**BODY, "sort": [{"_score": "desc"}, {"tag": "asc"}]}
LONG = {"query": {"bool": {"must": BODY["query"], "filter": {"terms": {"tag": [f"tag{n}" for n in range(30_000)]}}}}}
"""More bytes than are read."""
SAME = {
    "all documents": searched({"query": {"match_all": {}}, "sort": [{"tag": "asc"}, "_doc"], "size": 5}),
    "after a hit": searched({**SORTED, "search_after": [1.0, "x"]}),
    "collapsed": searched({**BODY, "collapse": {"field": "tag", "inner_hits": {"name": "more", "size": 2}}}),
    "only facets": searched({**BODY, "size": 0, "aggs": {"tags": {"terms": {"field": "tag"}}}}),
    "typed facets": searched({**BODY, "aggs": {"tags": {"terms": {"field": "tag"}}}}, "?typed_keys=true"),
    "only a filter": searched({"query": {"bool": {"filter": [{"term": {"tag": "x"}}]}}}),
    "an empty body": searched({}),
    "no body": Call("GET", "/@/_search"),
    "no stored fields": searched({**BODY, "stored_fields": ["_none_"]}),
    "another search type": searched(BODY, "?search_type=dfs_query_then_fetch"),
    "the text in the URL": Call("GET", f"/@/_search?q=text:({quote(TEXT)})"),
    "a body in the URL": Call(
        "GET", f"/@/_search?source_content_type=application/json&source={quote(json.dumps(SORTED))}"
    ),
    "a routing": searched(BODY, "?routing=a"),
    "a filter of the answer": searched(BODY, "?filter_path=hits.hits._id,hits.total"),
    "an answer as YAML": searched(SORTED, "?format=yaml&filter_path=hits"),
    "a pretty answer": searched({**SORTED, "size": 2}, "?pretty&filter_path=hits"),
    "only suggestions": searched({"size": 0, "suggest": {"a": {"text": "wrod3", "term": {"field": "text"}}}}),
    "too deep a page": searched({**BODY, "from": 9_995}),
    "a long body": searched(LONG),
    "two texts": searched({"query": {"bool": {"must": [{"match": {"text": "word1"}}, {"match": {"title": "word2"}}]}}}),
    "a script field": searched({"size": 1, "sort": "_doc", "script_fields": {"a": {"script": "1"}}}),
    "a runtime field": searched(
        {"runtime_mappings": {"a": {"type": "long", "script": "emit(1)"}}, "size": 1, "sort": "_doc"}
    ),
    "a slice": searched({"slice": {"id": 0, "max": 2}}),
    "a lookup": searched(
        {"query": {"terms": {"tag": {"index": "@-other", "id": "50%", "path": "tag"}}}, "sort": "_doc"}
    ),
    "a body that is no JSON": searched("{"),
    "a body that is no object": searched("[1]"),
    "an unknown clause": searched({"query": {"no_such_clause": {}}}),
    "an option of another kind": searched({"query": {"match": {"text": {"query": "a", "operator": "perhaps"}}}}),
    "a template": Call("POST", "/@/_search/template", {"source": {"query": {"match": {"text": "{{a}}"}}}}),
    "another index": Call("POST", "/@-other/_search", BODY),
    "two indexes": Call("POST", "/@,@-other/_search", {**BODY, "sort": ["_index", "_doc"]}),
    "a pattern": Call("POST", "/@*/_search", {**BODY, "sort": ["_index", "_doc"]}),
    "an index that is not there": Call("POST", "/@-none/_search", BODY),
    "an index that may not be there": Call("POST", "/@-none/_search?ignore_unavailable=true", BODY),
    "several searches": Call("POST", "/_msearch", lines({"index": "@"}, SORTED, {"index": "@-other"}, {})),
    "several searches, one wrong": Call("POST", "/@/_msearch", lines({}, SORTED, {}, {"query": {"none": {}}})),
    "several searches that end too early": Call("POST", "/@/_msearch", "{}\n"),
    "count": Call("POST", "/@/_count", {"query": {"match": {"text": "word3"}}}),
    "count by GET": Call("GET", "/@/_count?q=word3"),
    "document": Call("GET", "/@/_doc/d3"),
    "some of a document": Call("GET", "/@/_doc/d3?_source_includes=title"),
    "no document": Call("GET", "/@/_doc/none"),
    "a document with a slash": Call("GET", "/@-other/_doc/a%2Fb"),
    "a document with umlauts": Call("GET", f"/@-other/_doc/{quote(OTHER_IDS[1])}"),
    "a document with a percent sign": Call("GET", "/@-other/_doc/50%25"),
    "a source": Call("GET", "/@/_source/d3"),
    "no source": Call("GET", "/@/_source/none"),
    "whether a document is there": Call("HEAD", "/@/_doc/d3"),
    "whether no document is there": Call("HEAD", "/@/_doc/none"),
    "documents": Call("POST", "/@/_mget", {"ids": ["d5", "none", "d3"]}),
    "documents of two indexes": Call(
        "POST",
        "/_mget",
        {"docs": [{"_index": "@", "_id": "d1", "_source": ["tag"]}, {"_index": "@-other", "_id": "d1"}]},
    ),
    "mapping": Call("GET", "/@/_mapping"),
    "mapping of a field": Call("GET", "/@/_mapping/field/text"),
    "settings": Call("GET", "/@/_settings"),
    "index": Call("GET", "/@"),
    "whether the index is there": Call("HEAD", "/@"),
    "whether no index is there": Call("HEAD", "/@-none"),
    "aliases": Call("GET", "/@/_alias"),
    "health": Call("GET", "/_cluster/health/@?filter_path=status,number_of_nodes"),
    "health as text": Call("GET", "/_cat/health?h=cluster,status"),
    "indexes as text": Call("GET", "/_cat/indices/@*?v&h=index,docs.count&s=index"),
    "explanation": Call("POST", "/@/_explain/d3", {"query": {"match": {"text": TEXT}}}),
    "field capabilities": Call("GET", "/@/_field_caps?fields=*"),
    "validation": Call("POST", "/@/_validate/query?explain=true", {"query": {"match": {"text": TEXT}}}),
    "term vectors": Call("POST", "/@/_termvectors/d3", {"fields": ["text"], "term_statistics": True}),
    "words of a text": Call("POST", "/@/_analyze", {"field": "text", "text": "Word1, word2!"}),
    "shards": Call("GET", "/@/_search_shards?filter_path=indices,shards.state"),
    "figures of the index": Call("GET", "/@/_stats/docs?filter_path=indices.*.primaries.docs.count"),
    "evaluation": Call(
        "POST",
        "/@/_rank_eval",
        {
            "requests": [{"id": "a", "request": SORTED, "ratings": [{"_index": "@", "_id": "d1", "rating": 1}]}],
            "metric": {"precision": {"k": 5}},
        },
    ),
    "version": Call("GET", "/_nodes/_local?filter_path=nodes.*.version"),
    "settings of the cluster": Call("GET", "/_cluster/settings"),
    "an API that is not there": Call("GET", "/_no_such_api"),
    "a method that is not there": Call("GET", "/_bulk"),
    "a parameter that is not there": searched(SORTED, "?no_such_parameter=1"),
}
"""Requests whose answers are the engine's own, byte by byte but for the time they took."""


def filled(call: Call, index: str) -> Call:
    """Return a call with the name of the index."""
    return Call(call.method, call.path.replace("@", index), json.loads(json.dumps(call.body).replace("@", index)))


@pytest.mark.parametrize("name", SAME)
def test_other_requests_get_the_engines_own_answer(proxied: Proxied, name: str) -> None:
    call = filled(SAME[name], proxied.served.index)
    own, ours = (site.ask(*call) for site in (proxied.own, proxied.ours))
    assert ours.same == own.same
    passing = own.headers.keys() - {"transfer-encoding", "connection", "date"}
    # The length of the time that a search took is part of the content.
    passing -= {"content-length"} if len(own.content) != len(ours.content) else set()
    assert {header: ours.headers.get(header) for header in passing} == {
        header: own.headers[header] for header in passing
    }


def test_many_requests_were_compared() -> None:
    assert len(SAME) >= 45


def test_counts_and_pings(proxied: Proxied) -> None:
    own, ours = proxied.engine.ping(), proxied.service.ping()
    assert ours == own
    query = {"query": {"match": {"text": "word3"}}}
    own, ours = (client.count(index=proxied.served.index, body=query)["count"] for client in proxied[:2])
    assert ours == own > 0


def test_the_clients_own_ways_to_read_everything(proxied: Proxied) -> None:
    index = proxied.served.index
    if proxied.served.engine.capabilities().kind == "elasticsearch":
        from elasticsearch import helpers
    else:
        from opensearchpy import helpers  # type: ignore[no-redef]
    for client in proxied[:2]:
        found = {hit["_id"] for hit in helpers.scan(client, index=index, size=7, query={"query": {"match_all": {}}})}
        assert found == set(proxied.served.documents)


def test_a_point_in_time(proxied: Proxied) -> None:
    index, elastic = proxied.served.index, proxied.served.engine.capabilities().kind == "elasticsearch"
    path, key = ("_pit", "id") if elastic else ("_search/point_in_time", "pit_id")
    opened = proxied.ours.ask("POST", f"/{index}/{path}?keep_alive=1m")
    assert opened.status == 200
    pit = opened.value[key]
    body = {**BODY, "pit": {"id": pit, "keep_alive": "1m"}, "size": 80}
    own, ours = (site.ask("POST", "/_search", body) for site in (proxied.own, proxied.ours))
    assert ours.same == own.same and ours.value["hits"]["hits"]
    closed = proxied.ours.ask("DELETE", f"/{path}", {key: pit if elastic else [pit]})
    assert closed.status == 200


WRITES = [
    Call("PUT", "/@/_doc/new", {"text": "x"}),
    Call("POST", "/@/_doc", {"text": "x"}),
    Call("POST", "/@/_update/d1", {"doc": {"text": "x"}}),
    Call("DELETE", "/@/_doc/d1"),
    Call("POST", "/_bulk", lines({"delete": {"_index": "@", "_id": "d1"}})),
    Call("POST", "/@/_bulk", lines({"delete": {"_id": "d1"}})),
    Call("POST", "/@/%5Fbulk", lines({"delete": {"_id": "d1"}})),
    Call("POST", "/@/_delete_by_query", {"query": {"match_all": {}}}),
    Call("POST", "/@/_update_by_query"),
    Call("POST", "/_reindex", {"source": {"index": "@"}, "dest": {"index": "@-new"}}),
    Call("PUT", "/@/_mapping", {"properties": {"new": {"type": "keyword"}}}),
    Call("PUT", "/@-new"),
    Call("DELETE", "/@"),
    Call("DELETE", "/@/_async_search/.."),
    Call("DELETE", "/@-none/..;/@"),
    Call("POST", "/_aliases", {"actions": [{"add": {"index": "@", "alias": "@-new"}}]}),
    Call("POST", "/@/_close"),
    Call("PUT", "/_cluster/settings", {"transient": {}}),
    Call("POST", "/@/_refresh"),
    Call("POST", "/@/_forcemerge"),
]


@pytest.mark.parametrize("call", WRITES, ids=lambda call: f"{call.method} {call.path}")
def test_writes_are_refused(proxied: Proxied, call: Call) -> None:
    index = proxied.served.index
    before = [proxied.own.ask("GET", path).content for path in (f"/{index}", f"/{index}/_count")]
    answer = proxied.ours.ask(*filled(call, index))
    if "_async_search" in call.path:  # it is passed on as it is, and the engine knows no such path
        assert answer.status >= 400
    elif answer.status != 404:
        assert answer.status == answer.value["status"] == 403, answer
        assert answer.value["error"]["type"] == "not_forwarded" and "--forward all" in answer.value["error"]["reason"]
    assert [proxied.own.ask("GET", path).content for path in (f"/{index}", f"/{index}/_count")] == before
    assert proxied.own.ask("HEAD", f"/{index}-new").status == 404


def test_writes_pass_where_the_operator_says_so(proxied: Proxied) -> None:
    index = f"{proxied.served.index}-written"
    with ServiceProcess(*proxied.process.options, "--forward", "all") as process:
        ours = Site(f"http://127.0.0.1:{process.port}")
        try:
            told = [
                ours.ask("PUT", f"/{index}", {"mappings": {"properties": {"tag": {"type": "keyword"}}}}),
                ours.ask("PUT", f"/{index}/_doc/a?refresh=true", {"tag": "x"}),
                ours.ask("POST", "/_bulk?refresh=true", lines({"index": {"_index": index, "_id": "b"}}, {"tag": "y"})),
                ours.ask("POST", f"/{index}/_update/a?refresh=true", {"doc": {"tag": "z"}}),
                ours.ask("DELETE", f"/{index}/_doc/none"),
                ours.ask("PUT", f"/{index}/_doc/a?op_type=create", {"tag": "x"}),
            ]
            assert [one.status for one in told] == [200, 201, 200, 200, 404, 409], told
            found = proxied.own.ask("POST", f"/{index}/_search", {"sort": "tag"}).value["hits"]["hits"]
            assert [(hit["_id"], hit["_source"]) for hit in found] == [("b", {"tag": "y"}), ("a", {"tag": "z"})]
            search = ours.ask("POST", f"/{proxied.served.index}/_search", BODY)
            assert search.headers["x-ssi-reranked"] == "true"
            assert ours.ask("DELETE", f"/{index}").status == 200
            assert proxied.own.ask("HEAD", f"/{index}").status == 404
        finally:
            proxied.own.ask("DELETE", f"/{index}")


@pytest.mark.parametrize("recorded", RECORDED)
def test_the_requests_of_real_clients_are_answered(proxied: Proxied, recorded: str) -> None:
    n_reranked = 0
    for sent in replayed(recorded, proxied.served.index):
        told = []
        for site in (proxied.own, proxied.ours):
            connection = HTTPConnection(site.url.removeprefix("http://"), timeout=30)
            connection.request(sent.method, sent.path, sent.body or None, dict(sent.headers))
            answer = connection.getresponse()
            told.append((answer.status, answer.getheader("content-type"), answer.getheader("content-encoding")))
            content = answer.read()
            connection.close()
        n_reranked += answer.getheader("x-ssi-reranked") == "true"
        if answer.getheader("x-ssi-reranked") == "true" or "_msearch" in sent.path:
            # What is reranked is answered in JSON to a client of any generation, also to one that the engine refuses.
            assert answer.status == 200 and told[0][0] in (200, 400, 406), (sent, content)
        else:
            assert told[0] == told[1], sent
    assert n_reranked or recorded.startswith("searchkit"), "of _msearch only the parts are reranked"


def test_an_index_behind_an_alias_with_a_filter_is_another_one(proxied: Proxied) -> None:
    served, alias = proxied.served, f"{proxied.served.index}-x"
    actions: list[Mapping[str, Any]] = [
        {"add": {"index": served.index, "alias": alias, "filter": {"term": {"tag": "x"}}}}
    ]
    requests_of(served.engine).request("POST", "/_aliases", {"actions": actions})
    there = proxied.process.options
    try:
        with ServiceProcess(*(alias if one == served.index else one for one in there)) as process:
            ours = Site(f"http://127.0.0.1:{process.port}")
            for index in (alias, served.index):
                path, body = f"/{index}/_search", {**BODY, "size": 80}
                own, told = proxied.own.ask("POST", path, body), ours.ask("POST", path, body)
                assert unordered(told.value) == unordered(own.value)
                assert told.headers["x-ssi-reranked"] == ("true" if index == alias else "false")
    finally:
        requests_of(served.engine).request("DELETE", f"/{served.index}/_alias/{alias}")
