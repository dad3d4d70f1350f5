"""The engine's own API: which searches are reranked, what passes through unchanged, and whose rights a request has."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from reranker.cli.serve import _check_rights
from reranker.engines import open_engine
from reranker.engines.connections import HttpConnections
from reranker.engines.language import BODY_KEYS
from reranker.engines.protocol import Capabilities
from reranker.engines.settings import EngineSettings
from reranker.errors import ConfigError, EngineRejected, EngineUnavailable, IndexMissing, Unsupported
from reranker.rerank import Reranker
from reranker.service import operate
from reranker.service.app import all_parts
from reranker.service.auth import new_key, presented_key
from reranker.service.forward import api_of, is_reading
from reranker.service.proxy import MOST_READ, ClientSearch, read_search, take_text
from reranker.service.settings import ServiceSettings
from tests.engines.memory import memory_engine
from tests.served import Served
from tests.services import PATIENT, client_of, service_over, small_index
from tests.unit.rerank.test_reranker import Spy
from tests.unit.service.replayed import RECORDED, replayed
from tests.unit.service.test_search import ListSink
from tests.unit.service.upstream import Reply, Upstream, running_upstream

TEXT = "word3 word11"
FIELDS = ["title^2", "text"]
BODY: dict[str, Any] = {"query": {"multi_match": {"query": TEXT, "fields": FIELDS}}}
TEMPLATE = {"query": {"multi_match": {"query": "{{query}}", "fields": FIELDS}}}
ADAPTER = {
    "query": {
        "bool": {
            "filter": [{"term": {"tag": "x"}}],
            "must": {
                "bool": {
                    "should": [
                        {
                            "bool": {
                                "should": [
                                    {"multi_match": {"query": TEXT, "fields": FIELDS, "fuzziness": "AUTO:4,8"}},
                                    {"multi_match": {"query": TEXT, "fields": FIELDS, "type": "phrase"}},
                                ]
                            }
                        },
                        {"multi_match": {"query": TEXT, "type": "phrase_prefix", "fields": FIELDS}},
                    ]
                }
            },
        }
    }
}
"""A body as adapters of InstantSearch build it."""


class Remote(Spy):
    """The memory engine for searches that are reranked, at the address of a server for all other requests."""

    def __init__(self, engine: Any, upstream: Upstream) -> None:
        super().__init__(engine)
        self.connections = HttpConnections(upstream.url, EngineSettings(read_timeout_s=10.0))
        self.is_awaitable = True
        self.error: Exception | None = None
        self.behind: tuple[str, ...] = ("docs",)
        """Concrete indexes behind the index that is served."""
        self.alias: dict[str, Any] = {}
        """Options of the alias that is served."""

    def request(self, method: str, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        assert path == "/docs/_alias"
        return {name: {"aliases": {} if name == "docs" else {"docs": self.alias}} for name in self.behind}

    def search(self, index: str, body: Mapping[str, Any], **options: Any) -> Any:
        """Search for the parts of a body that the memory engine knows."""
        if self.error is not None:
            raise self.error
        known = {name: value for name, value in body.items() if name in BODY_KEYS and (name, value) != ("sort", [])}
        return super().search(index, known, **options)

    def capabilities(self) -> Capabilities:
        return Capabilities("elasticsearch", version="8.19.3", product="Elasticsearch")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("index"), memory_engine())
    yield served
    served.engine.close()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with running_upstream() as running:
        yield running


@pytest.fixture
def engine(index: Served, upstream: Upstream) -> Any:
    return Remote(index.engine, upstream)


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


def proxy_over(engine: Any, index: Served, path: Path, **settings: Any) -> Any:
    """Return a client, to be entered, of a proxy in front of an engine."""
    served = Served(engine, index.index, index.model, index.documents, index.store_path)
    return client_of(service_over(served, path, proxy=True, **settings), *all_parts())


@pytest.fixture
def client(index: Served, engine: Any, sink: ListSink, tmp_path: Path) -> Iterator[Any]:
    with proxy_over(engine, index, tmp_path, sink=sink) as client:
        yield client


def hits_of(answer: Any) -> list[tuple[str, float]]:
    return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]


# --- the text that was typed


@pytest.mark.parametrize(
    "query",
    [
        {"match": {"text": TEXT}},
        {"match": {"text": {"query": TEXT, "operator": "and"}}},
        {"query_string": {"query": TEXT}},
        {"simple_query_string": {"query": TEXT, "fields": ["text"]}},
        {"bool": {"should": [{"query_string": {"query": f"*{TEXT}*"}}, {"match": {"text": TEXT}}]}},
        {"bool": {"must": [{"match": {"text": TEXT}}], "filter": [{"match": {"tag": "x"}}]}},
        {"bool": {"should": {"match_phrase": {"title": TEXT}}, "must_not": [{"match": {"text": "other"}}]}},
        {"dis_max": {"queries": [{"match": {"title": TEXT}}, {"match": {"text": TEXT}}]}},
        {"function_score": {"query": {"match": {"text": TEXT}}, "field_value_factor": {"field": "price"}}},
        {"nested": {"path": "a", "query": {"match": {"a.text": TEXT}}}},
        {"pinned": {"ids": ["d1"], "organic": {"match": {"text": TEXT}}}},
        {"match": {"query": TEXT}},
        ADAPTER["query"],
    ],
)
def test_the_text_of_all_scoring_clauses_is_what_was_typed(query: dict[str, Any]) -> None:
    body = {"query": json.loads(json.dumps(query))}
    assert take_text(body) == (TEXT, "")
    assert json.loads(json.dumps(body).replace("{{query}}", TEXT)) == {"query": query}


def test_quotes_and_asterisks_are_part_of_a_text_with_a_syntax() -> None:
    for text in (f'"{TEXT}"', f"*{TEXT}*", "red -boot", "boo*"):
        assert take_text({"query": {"query_string": {"query": text}}}) == (text, "")
    assert take_text({"query": {"query_string": {"query": "boo*", "escape": True}}}) == ("boo", "")


def test_the_text_of_a_retriever_is_found() -> None:
    standard = {"standard": {"query": {"match": {"text": TEXT}}}}
    assert take_text({"retriever": {"rrf": {"retrievers": [standard, {"knn": {"field": "v"}}]}}})[0] == TEXT


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"query": {"match_all": {}}}, "no text"),
        ({}, "no text"),
        ({"query": {"bool": {"filter": [{"match": {"text": TEXT}}]}}}, "no text"),
        ({"query": {"bool": {"must": [{"match": {"text": TEXT}}, {"match": {"brand": "acme"}}]}}}, "several texts"),
        ({"query": {"match": {"text": "{{query}}"}}}, "in the body"),
        ({"query": {"match": {"text": "x" * 10_001}}}, "more than 10000"),
    ],
)
def test_without_one_text_nothing_is_taken(body: dict[str, Any], reason: str) -> None:
    text, why = take_text(body)
    assert text == "" and reason in why


def test_the_text_can_be_named() -> None:
    body = {"query": {"bool": {"must": [{"match": {"text": TEXT}}, {"match": {"brand": "acme"}}]}}}
    assert take_text(body, TEXT) == (TEXT, "")
    assert body["query"]["bool"]["must"][0] == {"match": {"text": "{{query}}"}}
    assert "no clause" in take_text({"query": {"match": {"text": "else"}}}, TEXT)[1]


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["bool", "must", "match", "query", "text", "retriever", "rrf"]), inner, max_size=3
            )
        ),
        max_leaves=20,
    )
)
def test_any_query_is_read(query: Any) -> None:
    text, reason = take_text({"query": query})
    assert bool(text) != bool(reason)


# --- which searches are reranked


def test_an_embedded_engine_has_no_clients(index: Served, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no clients of its own"):
        client_of(service_over(index, tmp_path, proxy=True), *all_parts())


def test_a_search_comes_in_the_order_of_the_model(client: Any, upstream: Upstream, index: Served) -> None:
    page = Reranker(index.engine, "docs", index.model, settings=PATIENT).search(TEXT, TEMPLATE, size=7, from_=2)
    answer = client.post("/docs/_search", json={**BODY, "size": 7, "from": 2})
    assert answer.headers["x-ssi-reranked"] == "true" and answer.headers["x-elastic-product"] == "Elasticsearch"
    assert answer.headers["x-ssi-alpha"] == "default"
    values = answer.json()
    assert hits_of(values) == [(hit.id, hit.score) for hit in page.hits]
    first = client.post("/docs/_search", json={**BODY, "size": 7}).json()
    assert values["hits"]["max_score"] == page.max_score == first["hits"]["hits"][0]["_score"]
    assert values["hits"]["total"] == {"value": page.total, "relation": "eq"}
    assert values["hits"]["hits"][0]["_source"] == index.documents[page.hits[0].id]
    assert values["hits"]["hits"][0]["_index"] == "docs" and "ext" not in values
    assert not upstream.requests


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_page_and_the_form_can_be_in_the_url(client: Any, method: str) -> None:
    path = "/docs/_search?size=3&from=1&_source=title&track_total_hits=true&rest_total_hits_as_int=true&typed_keys=true"
    answer = client.request(method, path, json={**BODY, "size": 9})
    values = answer.json()
    assert answer.headers["x-ssi-reranked"] == "true" and len(values["hits"]["hits"]) == 3
    assert isinstance(values["hits"]["total"], int)
    assert set(values["hits"]["hits"][0]["_source"]) == {"title"}


def test_what_the_body_does_not_show_is_not_shown(client: Any) -> None:
    values = client.post("/docs/_search", json={**BODY, "_source": False, "track_total_hits": False}).json()
    assert values["hits"]["hits"] and all("_source" not in hit for hit in values["hits"]["hits"])
    assert "total" not in values["hits"]


OTHERS: list[tuple[Any, dict[str, str]]] = [
    ({"query": {"match_all": {}}}, {}),
    ({}, {}),
    ([], {}),
    ({**BODY, "sort": [{"_score": "desc"}, {"tag": "asc"}]}, {}),
    ({**BODY, "sort": "tag"}, {}),
    ({**BODY, "size": 0, "aggs": {"tags": {"terms": {"field": "tag"}}}}, {}),
    ({**BODY, "search_after": [1]}, {}),
    ({**BODY, "collapse": {"field": "tag"}}, {}),
    ({**BODY, "stored_fields": []}, {}),
    ({**BODY, "pit": {"id": "a"}}, {}),
    ({**BODY, "slice": {"id": 0, "max": 2}}, {}),
    ({**BODY, "search_pipeline": "a"}, {}),
    ({**BODY, "new_part": 1}, {}),
    ({**BODY, "from": 9_995}, {}),
    ({**BODY, "from": "1"}, {}),
    ({**BODY, "size": True}, {}),
    ({**BODY, "ext": 1}, {}),
    ({**BODY, "ext": {"ubi": 1}}, {}),
    ({"query": {"script_score": {"query": {"match": {"text": "a"}}, "script": "1"}}}, {}),
    (BODY, {"routing": "a"}),
    (BODY, {"scroll": "1m"}),
    (BODY, {"size": "x"}),
    ({**BODY, "aggs": {}}, {"typed_keys": "true"}),
]


@pytest.mark.parametrize(("body", "params"), OTHERS)
def test_other_searches_pass_through_as_they_came(
    client: Any, upstream: Upstream, body: Any, params: dict[str, str]
) -> None:
    assert isinstance(read_search(body, params), str)
    upstream.answer(201, {"any": "thing", "_source": {"ssi_a": 1}}, Warning="299 a", Etag="b")
    content = json.dumps(body, indent=1).encode()
    answer = client.post("/docs/_search", params=params, content=content, headers={"content-type": "a/b"})
    assert (answer.status_code, answer.json()) == (201, {"any": "thing", "_source": {"ssi_a": 1}})
    assert (answer.headers["warning"], answer.headers["etag"]) == ("299 a", "b")
    assert answer.headers["x-ssi-reranked"] == "false"
    (sent,) = upstream.requests
    assert (sent.body, sent.headers["content-type"]) == (content, "a/b")


@pytest.mark.parametrize("content", [b"", b"[", b"{} {}", b"3", b'{"query": 1}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_search_is_the_engines(client: Any, upstream: Upstream, content: bytes) -> None:
    upstream.answer(400, {"error": "mine"})
    answer = client.post("/docs/_search", content=content)
    assert (answer.status_code, answer.json()) == (400, {"error": "mine"})
    assert upstream.requests[0].body == content


def test_a_long_body_passes_through_without_being_read(client: Any, upstream: Upstream) -> None:
    content = json.dumps({**BODY, "stats": ["x" * MOST_READ]}).encode()
    assert client.post("/docs/_search", content=content).headers["x-ssi-reranked"] == "false"
    pieces = client.post("/docs/_search", content=iter([content[:1000], content[1000:]]))
    assert pieces.headers["x-ssi-reranked"] == "false"
    assert [request.body for request in upstream.requests] == [content] * 2
    assert client.app.state.service.buffered_bytes == 0


def test_a_fault_of_ours_gives_the_engines_own_answer(
    client: Any, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a fault")

    monkeypatch.setattr("reranker.service.proxy.answered", broken)
    assert client.post("/docs/_search", json=BODY).headers["x-ssi-reranked"] == "false"
    assert len(upstream.requests) == 1


def test_a_search_that_the_engine_refuses_gets_the_engines_own_answer(
    client: Any, engine: Remote, upstream: Upstream
) -> None:
    cause = {"type": "security_exception", "reason": "not for you"}
    upstream.answer(403, {"error": {"root_cause": [cause], **cause}, "status": 403})
    engine.error = EngineRejected("no", status=403)
    answer = client.post("/docs/_search", json=BODY)
    assert answer.status_code == 403 and answer.json()["error"]["reason"] == "not for you"
    assert upstream.requests[0].body == answer.request.content
    upstream.answer(404, {"error": "no such index [shapes]"})
    engine.error = IndexMissing("that of a lookup", status=404)
    assert client.post("/docs/_search", json=BODY).status_code == 404
    upstream.answer(500, {"error": "a fault of mine"})
    engine.error = EngineUnavailable("no", status=500, error_type="illegal_state_exception")
    answer = client.post("/docs/_search", json=BODY)
    assert (answer.status_code, answer.json()) == (500, {"error": "a fault of mine"})
    upstream.answer(200, {"responses": [{"status": 500, "error": "mine"}]})
    several = client.post("/docs/_msearch", content=f"{{}}\n{json.dumps(BODY)}\n")
    assert several.json()["responses"] == [{"status": 500, "error": "mine"}]
    engine.error = EngineUnavailable("gone")
    answer = client.post("/docs/_search", json=BODY)
    assert answer.status_code == answer.json()["status"] == 503 and int(answer.headers["retry-after"]) > 0


def test_several_searches_have_their_own_statuses(client: Any, upstream: Upstream) -> None:
    told = [
        {"status": 200, "hits": {"hits": []}},
        {"status": 404, "error": "no index"},
        {"status": 400},
        {"status": 400},
    ]
    upstream.answer(200, {"took": 1, "responses": told})
    lines: list[Any] = [
        {"index": "docs"},
        BODY,
        {"index": ["docs"], "preference": "a"},
        {"query": {"match_all": {}}},
        {"index": "other"},
        BODY,
        {"index": "docs"},
        3,
        [],
        BODY,
        {"index": "docs"},
        BODY,
    ]
    pairs = [json.dumps(line) for line in lines]
    answer = client.post("/_msearch?rest_total_hits_as_int=true", content="\n".join(pairs) + "\n")
    values = answer.json()["responses"]
    assert [one["status"] for one in values] == [200, 200, 404, 400, 400, 200]
    assert hits_of(values[0]) == hits_of(values[5]) == hits_of(client.post("/docs/_search", json=BODY).json())
    assert values[1:5] == told
    (sent,) = upstream.requests
    assert sent.body.decode().splitlines() == pairs[2:10] and sent.target == "/_msearch?rest_total_hits_as_int=true"
    within = client.post("/docs/_msearch", content="\n".join(["{}", json.dumps(BODY)])).json()["responses"]
    assert [one["status"] for one in within] == [200] and len(upstream.requests) == 1


def test_several_searches_of_which_none_is_reranked_pass_through(client: Any, upstream: Upstream) -> None:
    upstream.answer(200, {"anything": 1})
    for content in (b"{}\n{}\n", b"{}\n", b"\n", b"{}\n{}\n" * 101):
        assert client.post("/docs/_msearch", content=content).json() == {"anything": 1}
        assert upstream.requests[-1].body == content


def test_the_rest_of_several_searches_can_be_refused(client: Any, upstream: Upstream) -> None:
    upstream.answer(401, {"error": "not for you"}, **{"WWW-Authenticate": "Basic"})
    content = f"{{}}\n{json.dumps(BODY)}\n{{}}\n{{}}\n"
    answer = client.post("/docs/_msearch", content=content)
    assert (answer.status_code, answer.json()) == (401, {"error": "not for you"})
    assert answer.headers["www-authenticate"] == "Basic"
    upstream.reply = lambda request: Reply(200, b"x" * 1_000, cut=True)
    assert client.post("/docs/_msearch", content=content).status_code == 502


def test_an_empty_line_is_a_header_without_options(client: Any) -> None:
    body = json.dumps(BODY)
    expected = client.post("/docs/_msearch", content=f"{{}}\n{body}\n{{}}\n{body}\n").json()["responses"]
    for content in (f"\n{body}\n{{}}\n{body}\n", f"{{}}\n{body}\n\n{body}", f"\n{body}\n \n{body}\n\n"):
        assert client.post("/docs/_msearch", content=content).json()["responses"] == expected


def test_half_an_emoji_is_searched_as_by_the_engine(client: Any) -> None:
    content = json.dumps({"query": {"match": {"text": TEXT + " \ud83d"}}})
    assert "\\ud83d" in content
    answer = client.post("/docs/_search", content=content)
    plain = client.post("/docs/_search", json={"query": {"match": {"text": TEXT}}})
    assert answer.status_code == 200 and hits_of(answer.json()) == hits_of(plain.json())
    several = client.post("/docs/_msearch", content=f"{{}}\n{content}\n").json()["responses"]
    assert several[0]["status"] == 200 and hits_of(several[0]) == hits_of(plain.json())
    sent = json.dumps({"query": TEXT + " \ud83d"})
    page = client.post("/search", content=sent, headers={"content-type": "application/json"})
    assert page.status_code == 200 and page.json()["reranked"]
    wrong = client.post("/search", content=sent + "}", headers={"content-type": "application/json"})
    assert wrong.status_code == 400


def test_the_operators_see_reranked_and_forwarded_searches(client: Any) -> None:
    state = client.app.state.service
    client.post("/docs/_search", json=BODY)
    client.post("/docs/_search", json={**BODY, "sort": "tag"})
    lines: tuple[dict[str, Any], ...] = ({}, BODY, {}, BODY)
    client.post("/docs/_msearch", content="".join(json.dumps(line) + "\n" for line in lines))
    shown = operate._searches(state)
    assert (shown["searches"], shown["forwarded"]) == (4, 1)
    n_of = {one["stage"]: one["n"] for one in shown["latency"]}
    assert (n_of["/{index}/_search"], n_of["/{index}/_msearch"]) == (2, 1)
    assert sum(quarter["searches"] for quarter in shown["day"]) == 4


def test_an_impression_is_logged_under_the_id_that_the_visitor_gets(client: Any, sink: ListSink) -> None:
    ubi = {"user_query": TEXT, "client_id": "visitor"}
    several = {"query": {"bool": {"must": [BODY["query"], {"match": {"text": "word1"}}]}}}
    answer = client.post("/docs/_search", json={**several, "ext": {"ubi": ubi}}).json()
    (row,) = sink.rows
    assert answer["ext"] == {"ubi": {"query_id": row["query_id"]}}
    assert row["user_query"] == TEXT and row["client_id"] == row["session_id"] == "visitor"
    assert row["query_response_hit_ids"] == [name for name, _ in hits_of(answer)]
    given = client.post("/docs/_search", json={**BODY, "ext": {"ubi": {"query_id": "mine"}}}).json()
    assert given["ext"]["ubi"]["query_id"] == sink.rows[-1]["query_id"] == "mine"
    other = {"rerank": {"query_context": {"query_text": TEXT}}}
    read = read_search({**BODY, "ext": {"ubi": {}, **other}}, {})
    assert isinstance(read, ClientSearch) and read.body["ext"] == other


def test_the_index_behind_an_alias_is_the_same_if_it_is_the_only_one(client: Any, engine: Remote) -> None:
    engine.behind = ("docs-2", "docs-1")
    assert client.post("/docs-1/_search", json=BODY).headers["x-ssi-reranked"] == "false"
    engine.behind = ("docs-1",)
    client.app.state.service.index_names._known = (-math.inf, ())
    assert client.post("/docs-1/_search", json=BODY).headers["x-ssi-reranked"] == "true"
    for alias in ({"filter": {"term": {"tag": "x"}}}, {"index_routing": "1", "search_routing": "1"}):
        engine.alias = alias
        client.app.state.service.index_names._known = (-math.inf, ())
        assert client.post("/docs-1/_search", json=BODY).headers["x-ssi-reranked"] == "false", "it shows more"
    for path in ("/docs-1,docs/_search", "/*/_search", "/_all/_search", "/_search", "/docs*/_search"):
        assert client.post(path, json=BODY).headers["x-ssi-reranked"] == "false", path


# --- what passes through


PATHS = [
    (b"/docs/_search", "docs", "_search"),
    (b"/_search", "", "_search"),
    (b"/_all/_search", "_all", "_search"),
    (b"/_all/_bulk", "_all", "_bulk"),
    (b"/a,b/_search/template", "a,b", "_search/template"),
    (b"/docs/_doc/a%2Fb", "docs", ""),
    (b"/docs%2F_bulk", "docs%2F_bulk", ""),
    (b"/docs/%5Fbulk", "docs", "_bulk"),
    (b"/docs/_bulk%2F", "docs", ""),
    (b"/docs", "docs", ""),
    (b"/", "", ""),
    (b"/docs/type/_search", "docs", ""),
]


@pytest.mark.parametrize(("path", "name", "api"), PATHS)
def test_the_api_of_a_path_is_read_part_by_part(path: bytes, name: str, api: str) -> None:
    assert api_of(path) == (name.encode(), api)


READS = {
    "GET": ["/docs", "/docs/_doc/1", "/_cluster/health", "/docs/_mapping", "/_cat/indices", "/docs/_doc/a%2Fb", "/"],
    "HEAD": ["/docs", "/"],
    "POST": [
        *("/docs/_search", "/_msearch", "/docs/_count", "/docs/_mget", "/docs/_pit", "/_search/scroll", "/_pit"),
        *("/docs/_field_caps", "/docs/_explain/1", "/docs/_termvectors", "/docs/_termvectors/1", "/docs/_analyze"),
        *("/docs/_validate/query", "/docs/_terms_enum", "/docs/_async_search", "/docs/_search/template"),
        *("/docs/_search/point_in_time", "/_sql", "/_query", "/docs/_eql/search", "/docs/_rank_eval"),
    ],
    "DELETE": ["/_pit", "/_search/scroll", "/_search/scroll/abc", "/_async_search/abc", "/_search/point_in_time"],
}
WRITES = {
    "POST": [
        *("/docs/_doc", "/docs/_doc/1", "/docs/_update/1", "/_bulk", "/docs/_bulk", "/docs/_update_by_query"),
        *("/docs/_delete_by_query", "/_reindex", "/docs/_close", "/_aliases", "/docs/_search/x", "/docs/_bulk/_search"),
        *("/docs/%5Fbulk", "/docs%2F_search", "/_plugins/_sql", "/_scripts/painless/_execute", "/other"),
        *("/docs/_explain", "/docs/_doc/_search"),
    ],
    "PUT": ["/other", "/docs/_doc/1", "/docs/_mapping", "/_cluster/settings", "/docs/_search"],
    "DELETE": ["/other", "/docs/_doc/1", "/_async_search", "/docs/_search", "/_search/template", "/*"],
    "PATCH": ["/docs/_search"],
}


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, paths in READS.items() for path in paths])
def test_requests_that_read_pass_through(client: Any, upstream: Upstream, method: str, path: str) -> None:
    assert is_reading(method, path.encode())
    answer = client.request(method, path + "?a=%2F&b", headers={"accept": "application/json", "x-opaque-id": "7"})
    assert answer.status_code == 200
    (sent,) = upstream.requests
    assert (sent.method, sent.target, sent.headers["x-opaque-id"]) == (method, path + "?a=%2F&b", "7")


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, paths in WRITES.items() for path in paths])
def test_other_requests_are_refused(client: Any, upstream: Upstream, method: str, path: str) -> None:
    assert not is_reading(method, path.encode())
    answer = client.request(method, path)
    assert answer.status_code == answer.json()["status"] == 403 and not upstream.requests
    assert answer.json()["error"]["type"] == "not_forwarded" and "--forward all" in answer.json()["error"]["reason"]
    assert (
        client.app.state.service.metrics.registry.get_sample_value("ssi_refused_total", {"cause": "not_forwarded"}) == 1
    )


def test_all_requests_pass_through_if_the_operator_says_so(
    index: Served, engine: Any, upstream: Upstream, tmp_path: Path
) -> None:
    with proxy_over(engine, index, tmp_path, forward="all") as client:
        for method, paths in WRITES.items():
            for path in paths:
                if method != "PATCH":
                    assert client.request(method, path, content=b"{}").status_code == 200
    assert len(upstream.requests) == sum(len(paths) for method, paths in WRITES.items() if method != "PATCH")


def test_a_browser_gets_the_page_and_a_client_the_engine(client: Any, upstream: Upstream) -> None:
    upstream.answer(200, {"version": {"number": "8.19.3"}}, **{"X-Elastic-Product": "Elasticsearch"})
    for path in ("/", "/docs"):
        assert "<html" in client.get(path, headers={"accept": "text/html,*/*"}).text
    assert not upstream.requests
    assert client.head("/").status_code == 200
    answer = client.get("/")
    assert answer.json() == {"version": {"number": "8.19.3"}} and answer.headers["x-elastic-product"] == "Elasticsearch"
    assert client.get("/health").json() == {"status": "ok"} and len(upstream.requests) == 2


@pytest.mark.parametrize("recorded", RECORDED)
def test_the_requests_of_real_clients_are_answered(client: Any, upstream: Upstream, recorded: str) -> None:
    for sent in replayed(recorded, "docs"):
        answer = client.request(sent.method, sent.path, content=sent.body, headers=sent.headers)
        assert answer.status_code == 200, sent
        if sent.path.startswith("/docs/_search") and b"word3 word11" in sent.body and b'"size":5' in sent.body:
            assert answer.headers["x-ssi-reranked"] == "true"


def test_compressed_bodies_are_read_or_passed_on_as_they_are(client: Any, upstream: Upstream) -> None:
    plain = json.dumps(BODY).encode()
    whole = gzip.compress(plain, mtime=0)
    headers = {"content-encoding": "gzip"}
    assert client.post("/docs/_search", content=whole, headers=headers).headers["x-ssi-reranked"] == "true"
    others = [gzip.compress(b" " * 10**8 + b"{}", mtime=0), whole[:-3], whole * 2, b"\x1f\x8b00000000"]
    for content in others:
        assert client.post("/docs/_search", content=content, headers=headers).headers["x-ssi-reranked"] == "false"
        assert (upstream.requests[-1].body, upstream.requests[-1].headers["content-encoding"]) == (content, "gzip")
    client.post("/docs/_search", content=b"any", headers={"content-encoding": "br"})
    assert (upstream.requests[-1].body, upstream.requests[-1].headers["content-encoding"]) == (b"any", "br")
    state = client.app.state.service
    assert state.buffered_bytes == 0
    assert client.post("/search", content=whole, headers=headers).status_code == 415


def test_answers_of_every_form_come_back_unchanged(client: Any, upstream: Upstream) -> None:
    for reply in (
        Reply(404, b"<html>no</html>", {"Content-Type": "text/html"}),
        Reply(200, gzip.compress(b'{"a": 1}', mtime=0), {"Content-Type": "a/b", "Content-Encoding": "gzip"}),
        Reply(302, b"", {"Location": "http://elsewhere.example/"}),
        Reply(200, b"x" * 3_000_000, {"Content-Type": "text/plain"}),
        Reply(429, b"{}", {"Retry-After": "7"}),
    ):
        upstream.reply = lambda request, reply=reply: reply  # type: ignore[misc]
        with client.stream("GET", "/docs/_mapping", follow_redirects=False) as answer:
            raw = b"".join(answer.iter_raw())
        assert (answer.status_code, raw) == (reply.status, reply.content)
        assert reply.headers.items() <= {name.title(): value for name, value in answer.headers.items()}.items()


def test_an_engine_that_is_away_is_said_to_be(client: Any, engine: Remote, index: Served, tmp_path: Path) -> None:
    engine.connections = HttpConnections("http://127.0.0.1:9", EngineSettings(connect_timeout_s=1.0))
    with proxy_over(engine, index, tmp_path / "other") as away:
        answer = away.get("/docs/_mapping")
    assert answer.status_code == answer.json()["status"] == 503 and int(answer.headers["retry-after"]) > 0
    assert away.app.state.service.doubt._event.is_set(), "its health is looked at"


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(client: Any, upstream: Upstream) -> None:
    upstream.reply = lambda request: Reply(200, b"x" * 1_000_000, cut=True)
    strict = TestClient(client.app, base_url="http://127.0.0.1")
    with pytest.raises(aiohttp.ClientPayloadError):
        strict.get("/docs/_mapping")


# --- whose rights


MINE = {"authorization": "Basic bWluZTpwYXNz", "es-security-runas-user": "other"}


def test_requests_for_a_caller_have_the_callers_credentials_and_no_others(
    upstream: Upstream, index: Served, tmp_path: Path
) -> None:
    nothing = {"took": 1, "hits": {"total": {"value": 0, "relation": "eq"}, "hits": []}}
    own = EngineSettings(user="service", password="secret", headers={"X-Gateway": "token"})
    several = f"{{}}\n{json.dumps(BODY)}\n{{}}\n{{}}\n"
    for kind, product in (("elasticsearch", {"X-Elastic-Product": "Elasticsearch"}), ("opensearch", {})):
        upstream.answer(200, nothing, **product)
        engine = open_engine(f"{kind}:{upstream.url}", own)
        with proxy_over(engine, index, tmp_path / kind) as client:
            engine.capabilities()  # a job of the service's own, done once
            for credentials in (MINE, {}):
                upstream.requests.clear()
                client.post("/docs/_search", json=BODY, headers=credentials)
                client.post("/docs/_search", json={"query": {"match_all": {}}}, headers=credentials)
                client.post("/docs/_msearch", content=several, headers=credentials)
                client.get("/docs/_mapping", headers=credentials)
                client.get("/", headers=credentials)
                assert len(upstream.requests) >= 6
                for request in upstream.requests:
                    sent = {name: request.headers[name] for name in (*MINE, "x-gateway") if name in request.headers}
                    assert sent == credentials, request
            upstream.requests.clear()
            client.post("/search", json={"query": TEXT}, headers=MINE)
            used = {request.headers["authorization"] for request in upstream.requests}
            assert used == {"Basic c2VydmljZTpzZWNyZXQ="}, "the service's own door has the service's rights"
        engine.close()


def test_a_public_address_needs_an_engine_that_asks_for_credentials(upstream: Upstream) -> None:
    settings = ServiceSettings(index="docs", proxy=True, host="0.0.0.0", without_keys=True)

    def check(url: str, settings: ServiceSettings, *, is_open: bool = False) -> None:
        with closing(open_engine(f"opensearch:{url}", EngineSettings(user="service", password="secret"))) as engine:
            _check_rights(engine, settings, is_open=is_open)

    with pytest.raises(ConfigError, match="asks nobody for credentials"):
        check(upstream.url, settings)
    assert "authorization" not in upstream.requests[0].headers
    check(upstream.url, settings, is_open=True)
    check(upstream.url, replace(settings, host="127.0.0.1"))
    with pytest.raises(ConfigError, match="does not answer"):
        check("http://127.0.0.1:9", settings)
    upstream.answer(401, {"error": "who are you?"})
    check(upstream.url, settings)


def test_headers_by_which_proxies_name_their_clients_are_left_out(
    index: Served, engine: Any, upstream: Upstream, tmp_path: Path
) -> None:
    claimed = {"x-proxy-user": "admin", "x-proxy-roles": "all", "x-forwarded-for": "10.0.0.1", "forwarded": "for=a"}
    hop = {"connection": "close, x-hop", "x-hop": "1", "te": "trailers", "proxy-authorization": "Basic a"}
    with proxy_over(engine, index, tmp_path, caller_headers=("X-Proxy-User",)) as client:
        client.get("/docs/_mapping", headers={**claimed, **hop, "x-other": "2"})
    (sent,) = upstream.requests
    assert sent.headers["x-proxy-user"] == "admin" and sent.headers["x-other"] == "2"
    assert not sent.headers.keys() & {
        "x-proxy-roles",
        "x-forwarded-for",
        "forwarded",
        "x-hop",
        "te",
        "proxy-authorization",
    }


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        (b"Bearer KEY", "KEY"),
        (b"ApiKey KEY", "KEY"),
        (b"Basic YW55Ym9keTpLRVk=", "KEY"),
        (b"Basic KEY!", None),
        (b"Basic YW55Ym9keQ==", None),
        (b"Digest KEY", None),
    ],
)
def test_keys_are_shown_as_to_the_engine(header: bytes, shown: str | None) -> None:
    assert presented_key({b"authorization": header}) == shown


def test_keys_of_the_service_are_for_its_own_paths(
    index: Served, engine: Any, upstream: Upstream, tmp_path: Path
) -> None:
    key, line = new_key("shop", "search")
    (tmp_path / "keys").write_text(line + "\n")
    with proxy_over(engine, index, tmp_path, api_keys=tmp_path / "keys") as client:
        assert client.post("/search", json={"query": TEXT}).status_code == 401
        assert client.post("/search", json={"query": TEXT}, headers={"X-API-Key": key}).status_code == 200
        upstream.answer(401, {"error": "who are you?"}, **{"WWW-Authenticate": "Basic"})
        answer = client.get("/docs/_mapping")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Basic"), "the engine asks"
