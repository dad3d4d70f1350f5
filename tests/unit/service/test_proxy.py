"""The engine's own search API: what is taken for the typed text, what is refused, and the form of what comes back."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastapi.routing
import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines.language import BODY_KEYS
from reranker.engines.protocol import Capabilities
from reranker.errors import EngineRejected, EngineUnavailable
from reranker.rerank import Reranker
from reranker.service import operate
from reranker.service.app import all_parts
from reranker.service.auth import new_key, presented_key
from reranker.service.gate import CheckedBody, check_body
from reranker.service.http import ServiceError
from reranker.service.proxy import read_search, take_text
from tests.engines.memory import memory_engine
from tests.served import Served
from tests.services import PATIENT, client_of, service_over, small_index
from tests.unit.rerank.test_reranker import Spy
from tests.unit.service.replayed import RECORDED, replayed
from tests.unit.service.test_search import ListSink

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
    """The memory engine, with searches and counts over its own API as well."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.requests: list[tuple[str, Mapping[str, Any] | None, Mapping[str, str] | None]] = []
        self.error: Exception | None = None
        self.behind: tuple[str, ...] = ("docs",)
        """Concrete indexes behind the index that is served."""

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        self.requests.append((path, body, params))
        assert timeout_s is not None
        if self.error is not None:
            raise self.error
        if path.endswith("/_settings/index.uuid"):
            return {name: {} for name in self.behind}
        if path == "/docs":
            return {name: DESCRIBED for name in self.behind}
        if path.startswith("/_cluster/health"):
            return HEALTH
        if path == "/":
            raise EngineRejected("no such request", status=405)
        if path.endswith("_count"):
            return {"count": self.count("docs", (body or {}).get("query"))}
        assert path == "/docs/_search"
        answer = self.search("docs", body or {})
        hits = [
            {"_index": hit.index, "_id": hit.id, "_score": hit.score, "_source": dict(hit.source)}
            for hit in answer.hits
        ]
        total = {"value": answer.total, "relation": "eq"}
        return {"took": 1, "timed_out": False, "hits": {"total": total, "max_score": None, "hits": hits}}

    def search(self, index: str, body: Mapping[str, Any], **options: Any) -> Any:
        """Search for the parts of a body that the memory engine knows."""
        known = {name: value for name, value in body.items() if name in BODY_KEYS and (name, value) != ("sort", [])}
        try:
            return super().search(index, known, **options)
        except EngineRejected:  # a clause that only a real engine knows
            return super().search(index, {"query": {"match_none": {}}})

    def capabilities(self) -> Capabilities:
        return Capabilities("elasticsearch", version="8.19.3", product="Elasticsearch")


GZIPPED = gzip.compress(json.dumps(BODY).encode(), mtime=0)
HEALTH = {"cluster_name": "shop", "status": "yellow", "timed_out": False, "number_of_nodes": 1}
DESCRIBED = {
    "aliases": {"docs": {"filter": {"term": {"tag": "x"}}}, "secret": {}},
    "mappings": {"_meta": {"ssi": 1}, "properties": {"title": {"type": "text"}, "ssi_ab_v": {"type": "binary"}}},
    "settings": {"index": {"number_of_shards": "1", "uuid": "u", "analysis": {"filter": {"synonyms": []}}}},
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("index"), memory_engine())
    yield served
    served.engine.close()


@pytest.fixture
def engine(index: Served) -> Any:
    return Remote(index.engine)


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


@pytest.fixture
def client(index: Served, engine: Any, sink: ListSink, tmp_path: Path) -> Any:
    served = Served(engine, index.index, index.model, index.documents, index.store_path)
    return client_of(service_over(served, tmp_path, sink=sink, proxy=True), *all_parts(with_proxy=True))


def checked(body: Any) -> CheckedBody:
    return check_body(body, "docs")


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


# --- what is refused


@pytest.mark.parametrize(
    "body",
    [
        {"query": {"script_score": {"query": {"match_all": {}}, "script": {"source": "1"}}}},
        {"query": {"bool": {"filter": [{"script": {"script": "true"}}]}}},
        {"query": {"function_score": {"functions": [{"script_score": {}}]}}},
        {"query": {"terms_set": {"a": {"terms": ["b"], "minimum_should_match_script": {}}}}},
        {"aggs": {"a": {"terms": {"field": "b"}, "aggs": {"c": {"bucket_script": {}}}}}},
        {"aggs": {"a": {"scripted_metric": {"map_script": "x"}}}},
        {"sort": [{"_script": {}}]},
        {"script_fields": {"a": {}}},
        {"runtime_mappings": {}},
        {"derived": {}},
        {"slice": {}},
        {"suggest": {"a": {"phrase": {"collate": {}}}}},
        {"search_pipeline": "x"},
        {"pit": {"id": "x"}},
        {"query": {"wrapper": {"query": "e30="}}},
        {"query": {"terms": {"a": {"index": "users", "id": "1", "path": "b"}}}},
        {"query": {"terms": {"a": {"index": "users", "path": "b", "query": {"match_all": {}}}}}},
        {"query": {"terms": {"a": {"index": ["docs", "users"], "id": "1", "path": "b"}}}},
        {"query": {"more_like_this": {"like": [{"_index": "users", "_id": "1"}]}}},
    ],
)
def test_scripts_and_other_indexes_are_refused(client: Any, engine: Remote, body: dict[str, Any]) -> None:
    answer = client.post("/docs/_search", json=body)
    assert answer.status_code == 403 and answer.json()["status"] == 403
    error = answer.json()["error"]
    assert error["type"] == "not_allowed" and error["root_cause"] == [
        {"type": error["type"], "reason": error["reason"]}
    ]
    several = client.post("/_msearch", content=f'{{"index":"docs"}}\n{json.dumps(body)}\n').json()["responses"]
    assert [one["status"] for one in several] == [403]
    assert not engine.requests


@pytest.mark.parametrize(
    ("method", "path", "named", "remedy"),
    [
        ("POST", "/docs/_bulk", "POST _bulk", "to the engine itself"),
        ("PUT", "/shop", "PUT of an index", "to the engine itself"),
        ("POST", "/shop/_search", "index 'shop'", "ssi serve --index"),
        ("POST", "/docs/_search?scroll=1m", "scroll", "Remove"),
    ],
)
def test_a_refusal_names_what_was_refused_the_rule_and_the_remedy(
    client: Any, method: str, path: str, named: str, remedy: str
) -> None:
    reason = client.request(method, path, json={}).json()["error"]["reason"]
    assert named in reason and remedy in reason and ("docs/guide/proxy.md" in reason or "'docs'" in reason)


def test_names_that_only_look_like_scripts_are_not_refused() -> None:
    own = {"terms": {"a": {"index": "docs", "id": "1", "path": "b"}}}
    field = {"term": {"index": "x"}}
    body = {"query": {"bool": {"must": [{"match": {"description": "x"}}, own, field]}}}
    assert check_body(body, "docs") == body


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/docs/_doc/1", 403),
        ("DELETE", "/docs/_doc/1", 403),
        ("POST", "/docs/_doc", 403),
        ("POST", "/docs/_bulk", 403),
        ("POST", "/_bulk", 403),
        ("POST", "/_search", 403),
        ("DELETE", "/shop", 403),
        ("PUT", "/shop", 403),
        ("DELETE", "/docs", 405),
        ("PUT", "/search", 405),
        ("POST", "/docs/_delete_by_query", 403),
        ("POST", "/_cluster/health", 403),
        ("GET", "/_cluster/settings", 403),
        ("GET", "/_cluster/health?level=indices", 400),
        ("GET", "/_cluster/health?wait_for_status=blue", 400),
        ("GET", "/_cat/indices", 403),
        ("GET", "/_cat/health?h=master", 400),
        ("GET", "/docs/_mapping", 403),
        ("GET", "/docs/_doc/d1?refresh=true", 400),
        ("GET", "/docs/_doc/" + "x" * 513, 400),
        ("GET", "/shop/_doc/d1", 403),
        ("GET", "/docs,shop/_doc/d1", 403),
        ("HEAD", "/shop", 403),
        ("GET", "/shop", 403),
        ("GET", "/*", 403),
        ("POST", "/other/_search", 403),
        ("POST", "/docs,other/_search", 403),
        ("POST", "/*/_search", 403),
        ("POST", "/_all/_search", 403),
        ("POST", "/other/_count", 403),
        ("POST", "/docs/_search?scroll=1m", 400),
        ("DELETE", "/docs/_search", 403),
        ("POST", "/docs/_search?search_pipeline=x", 400),
        ("POST", "/docs/_search?size=many", 400),
        ("POST", "/_search/scroll", 403),
    ],
)
def test_other_requests_are_refused(client: Any, engine: Remote, method: str, path: str, status: int) -> None:
    answer = client.request(method, path, json={} if method != "GET" else None)
    assert answer.status_code == status
    assert all(path.endswith("/_settings/index.uuid") for path, *_ in engine.requests)
    if status in (400, 403) and method != "HEAD":
        values = answer.json()
        assert values["status"] == status and values["error"]["root_cause"][0]["reason"] == values["error"]["reason"]


@pytest.mark.parametrize("content", [b"{", b"[]", b'"x"', b'{"a":' * 100 + b"1" + b"}" * 100])
def test_what_is_no_search_body_is_refused(client: Any, content: bytes) -> None:
    answer = client.post("/docs/_search", content=content)
    assert answer.status_code in (400, 422) and answer.json()["error"]["reason"]


@pytest.mark.parametrize("content", [b"", b"{}\n", b"{}\n" * 3, b"{}\n" * 202])
def test_what_is_no_list_of_searches_is_refused(client: Any, content: bytes) -> None:
    assert client.post("/docs/_msearch", content=content).status_code == 400


def test_an_embedded_engine_has_no_clients(index: Served, tmp_path: Path) -> None:
    client = client_of(service_over(index, tmp_path, proxy=True), *all_parts(with_proxy=True))
    assert client.post("/docs/_search", json={}).status_code == 400


def test_a_proxy_can_close_search_to_bodies_from_outside(index: Served, engine: Any, tmp_path: Path) -> None:
    served = Served(engine, index.index, index.model, index.documents, index.store_path)
    state = service_over(served, tmp_path, proxy=True, fixed_body=True, body=TEMPLATE)
    client = client_of(state, *all_parts(with_proxy=True))
    assert client.post("/search", json={"query": TEXT, "body": TEMPLATE}).status_code == 403
    assert client.post("/search", json={"query": TEXT}).status_code == 200
    assert client.post("/docs/_search", json=BODY).status_code == 200


# --- what comes back


def test_a_search_comes_in_the_order_of_the_model(client: Any, engine: Remote, index: Served) -> None:
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
    assert not engine.requests


def test_a_search_is_read_by_nothing_but_its_function(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    matches = APIRoute.matches

    def noted(route: APIRoute, scope: Any) -> Any:
        tried.append(route.path)
        return matches(route, scope)

    client.post("/docs/_search", json=BODY)  # builds the application
    monkeypatch.setattr(APIRoute, "matches", noted)
    monkeypatch.setattr(fastapi.routing, "solve_dependencies", None)
    assert client.post("/docs/_search", json=BODY).headers["x-ssi-reranked"] == "true"
    assert not tried
    assert client.post("/search", json={"query": TEXT}).status_code == 500, "which FastAPI reads"


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


@pytest.mark.parametrize(
    ("body", "query"),
    [
        ({"query": {"match_all": {}}}, ""),
        ({}, ""),
        ({**BODY, "sort": [{"_score": "desc"}, {"tag": "asc"}]}, ""),
        ({**BODY, "sort": "tag"}, ""),
        ({**BODY, "size": 0, "aggs": {"tags": {"terms": {"field": "tag"}}}}, ""),
        (BODY, "?routing=a"),
        ({**BODY, "aggs": {}}, "?typed_keys=true"),
    ],
)
def test_other_searches_are_passed_on_as_they_are(
    client: Any, engine: Remote, body: dict[str, Any], query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "search", lambda *_, **__: engine._engine.search("docs", BODY))
    answer = client.post(f"/docs/_search{query}", json=body)
    assert answer.status_code == 200 and answer.headers["x-ssi-reranked"] == "false"
    path, sent, params = engine.requests[-1]
    assert path == "/docs/_search" and sent is not None and bool(params) == bool(query)
    assert {name: value for name, value in sent.items() if name != "timeout"} == body
    assert 0 < int(sent["timeout"].removesuffix("ms")) <= 20_000, "the engine stops when nobody waits"
    hits = answer.json()["hits"]["hits"]
    assert hits and not any(name.startswith("ssi_") for hit in hits for name in hit["_source"])


def test_several_searches_have_their_own_statuses(client: Any, engine: Remote) -> None:
    lines = [
        {"index": "docs"},
        BODY,
        {},
        BODY,
        {"index": ["docs"], "preference": "a"},
        {"query": {"match_all": {}}},
        {"index": "other"},
        BODY,
        {"index": "docs"},
        3,
        [],
        BODY,
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    values = client.post("/_msearch?rest_total_hits_as_int=true", content=content).json()
    assert [one["status"] for one in values["responses"]] == [200, 403, 200, 403, 400, 400]
    assert hits_of(values["responses"][0]) == hits_of(client.post("/docs/_search", json=BODY).json())
    assert isinstance(values["responses"][2]["hits"]["total"], int)
    within = client.post("/docs/_msearch", content=content).json()["responses"]
    assert [one["status"] for one in within] == [200, 200, 200, 403, 400, 400]


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
    sent = json.dumps({"query": TEXT + " \ud83d", "body": TEMPLATE})
    page = client.post("/search", content=sent, headers={"content-type": "application/json"})
    assert page.status_code == 200 and page.json()["reranked"]
    wrong = client.post("/search", content=sent + "}", headers={"content-type": "application/json"})
    assert wrong.status_code == 400


def test_the_operators_see_reranked_and_forwarded_searches(client: Any, engine: Remote) -> None:
    state = client.app.state.service
    client.post("/docs/_search", json=BODY)
    client.post("/docs/_search", json={**BODY, "sort": "tag"})
    lines: tuple[dict[str, Any], ...] = ({}, BODY, {}, {**BODY, "sort": "tag"})
    client.post("/docs/_msearch", content="".join(json.dumps(line) + "\n" for line in lines))
    shown = operate._searches(state)
    assert (shown["searches"], shown["forwarded"]) == (4, 2)
    n_of = {one["stage"]: one["n"] for one in shown["latency"]}
    assert (n_of["/{index}/_search"], n_of["/{index}/_msearch"]) == (2, 1)
    assert sum(quarter["searches"] for quarter in shown["day"]) == 4


def test_documents_are_counted(client: Any, engine: Remote, index: Served) -> None:
    assert client.get("/docs/_count").json() == {"count": len(index.documents)}
    assert client.post("/docs/_count", json={"query": {"script": {}}}).status_code == 403
    assert len(engine.requests) == 1


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
    assert read_search({**BODY, "ext": {"ubi": {}, **other}}, {}, checked).body["ext"] == other


@pytest.mark.parametrize(
    ("error", "status"),
    [(EngineRejected("no", status=400, error_type="parsing_exception"), 400), (EngineUnavailable("gone"), 503)],
)
def test_errors_of_the_engine_have_its_form(client: Any, engine: Remote, error: Exception, status: int) -> None:
    engine.error = error
    answer = client.post("/docs/_search", json={"query": {"match_all": {}}})
    assert answer.status_code == answer.json()["status"] == status and TEXT not in answer.text


def test_a_browser_gets_the_page_and_a_client_the_description(client: Any) -> None:
    assert client.head("/").status_code == 200
    for path in ("/", "/docs"):
        assert "<html" in client.get(path, headers={"accept": "text/html,*/*"}).text
    values = client.get("/")
    assert values.json()["version"] == {"number": "8.19.3"} and values.headers["x-elastic-product"] == "Elasticsearch"


@pytest.mark.parametrize("recorded", RECORDED)
def test_the_requests_of_real_clients_are_answered(client: Any, recorded: str) -> None:
    for sent in replayed(recorded, "docs"):
        answer = client.request(sent.method, sent.path, content=sent.body, headers=sent.headers)
        assert answer.status_code == 200 and answer.headers["x-elastic-product"] == "Elasticsearch", sent
        if (
            sent.path.startswith("/docs/_search")
            and b"word3 word11" in sent.body
            and b'"size":5' in answer.request.content
        ):
            assert answer.headers["x-ssi-reranked"] == "true"


def test_documents_come_in_the_form_of_the_engine(client: Any, engine: Remote, index: Served) -> None:
    answer = client.get("/docs/_doc/d3?_source_includes=title")
    assert answer.json() == {
        "_index": "docs",
        "_id": "d3",
        "found": True,
        "_source": {"title": index.documents["d3"]["title"]},
    }
    path, sent, params = engine.requests[-1]
    assert path == "/docs/_search" and params == {"allow_partial_search_results": "false"}
    assert sent is not None and sent["query"] == {"ids": {"values": ["d3"]}}, "a search obeys the filter of an alias"
    assert client.get("/docs/_source/d3").json() == index.documents["d3"]
    assert "_source" not in client.get("/docs/_doc/d3?_source=false").json()
    for path in ("/docs/_doc/none", "/docs/_source/none"):
        assert client.get(path).status_code == client.head(path).status_code == 404
    assert client.get("/docs/_doc/none").json() == {"_index": "docs", "_id": "none", "found": False}


def test_of_several_indexes_with_an_id_the_first_by_name_is_read(
    client: Any, engine: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = engine.request

    def request(method: str, path: str, *options: Any) -> dict[str, Any]:
        answer = asked(method, path, *options)
        if path.endswith("/_search"):
            (hit,) = answer["hits"]["hits"]
            answer["hits"]["hits"] = [{**hit, "_index": name, "_source": {"of": name}} for name in ("docs-2", "docs-1")]
        return answer

    monkeypatch.setattr(engine, "request", request)
    assert client.get("/docs/_doc/d3").json()["_source"] == {"of": "docs-1"}


def test_documents_that_were_not_read_in_time_are_not_called_missing(
    client: Any, engine: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = engine.request
    monkeypatch.setattr(engine, "request", lambda *options: {**asked(*options), "timed_out": True})
    answer = client.get("/docs/_doc/d3")
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert client.post("/docs/_mget", json={"ids": ["d3", "d5"]}).status_code == 503


def test_several_documents_are_read_in_the_order_asked(client: Any, index: Served) -> None:
    docs = [{"_id": "d5", "_source": False}, {"_id": "none"}, {"_id": "d3"}, {"_id": "d5", "_index": "docs"}]
    found = client.post("/docs/_mget?_source_includes=title", json={"docs": docs}).json()["docs"]
    assert [one["_id"] for one in found] == ["d5", "none", "d3", "d5"]
    assert [one["found"] for one in found] == [True, False, True, True]
    assert [set(one.get("_source", ())) for one in found] == [set(), set(), {"title"}, {"title"}]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ([], 400),
        ({"ids": []}, 400),
        ({"ids": ["a"] * 1001}, 400),
        ({"ids": [3]}, 400),
        ({"ids": ["a"], "docs": []}, 400),
        ({"docs": [{"_id": "a", "_source": {"script": 1}}]}, 403),
        ({"docs": [{"_id": "a", "stored_fields": "x"}]}, 400),
        ({"docs": [{"_id": "d3"}, {"_id": "a", "_index": "shop"}]}, 403),
        ({"docs": [{"_id": "d3"}, {"_id": "a", "_index": {}}]}, 400),
        ({"docs": [{"_id": "a", "_source": [f"f{n}"]} for n in range(11)]}, 422),
    ],
)
def test_what_is_no_list_of_allowed_documents_is_refused(client: Any, engine: Remote, body: Any, status: int) -> None:
    assert client.post("/docs/_mget", json=body).status_code == status
    assert all(not path.endswith("_search") for path, *_ in engine.requests)


def test_the_index_is_described_without_what_is_for_the_operator(client: Any) -> None:
    assert client.get("/docs").json() == {
        "docs": {
            "aliases": {"docs": {}},
            "mappings": {"properties": {"title": {"type": "text"}}},
            "settings": {"index": {"number_of_shards": "1", "uuid": "u"}},
        }
    }


def test_the_index_behind_an_alias_is_allowed_if_it_is_the_only_one(client: Any, engine: Remote) -> None:
    engine.behind = ("docs-2", "docs-1")
    assert client.get("/docs-1/_doc/d3").status_code == 403
    engine.behind = ("docs-1",)
    client.app.state.service.index_names._known = (-math.inf, ())
    paths = ["/docs-1/_search", "/docs-1/_count", "/docs-1/_mget", "/docs-1/_msearch", "/_msearch"]
    lines = b'{"index": "docs-1"}\n{"query": {"match_all": {}}}\n'
    for path in paths:
        content = lines if "_msearch" in path else b'{"ids": ["d3"]}' if "_mget" in path else b"{}"
        assert client.post(path, content=content).status_code == 200
    assert client.get("/docs-1/_doc/d3").json()["found"] and client.head("/docs-1").status_code == 200
    assert all(not path.startswith("/docs-1") for path, *_ in engine.requests), "a filter of the alias would be lost"


def test_health_is_shown_as_the_engine_shows_it(client: Any) -> None:
    assert client.get("/_cluster/health/docs?wait_for_status=yellow").json() == HEALTH
    late = client.get("/_cluster/health?wait_for_status=green&timeout=5s")
    assert late.status_code == 408 and late.json() == {**HEALTH, "timed_out": True}
    assert client.get("/_cat/health?h=cluster,status&v").text == "cluster status\nshop yellow\n"
    assert client.get("/_cat/health?h=status&format=json").json() == [{"status": "yellow"}]
    assert len(client.get("/_cat/health").text.split()) == 14


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        (GZIPPED, 200, ""),
        (gzip.compress(b" " * 10**8 + b"{}", mtime=0), 413, "too_large"),
        (GZIPPED[:-3], 400, "broken_body"),
        (GZIPPED * 2, 400, "broken_body"),
        (b"\x1f\x8b00000000", 400, "broken_body"),
    ],
    ids=["whole", "bomb", "cut", "two members", "damaged"],
)
def test_compressed_bodies_are_bounded(client: Any, content: bytes, status: int, kind: str) -> None:
    answer = client.post("/docs/_search", content=content, headers={"content-encoding": "gzip"})
    assert answer.status_code == status and (not kind or answer.json()["error"]["type"] == kind)
    state = client.app.state.service
    assert state.buffered_bytes == 0 and not state.buffered_of
    assert client.post("/search", content=content, headers={"content-encoding": "gzip"}).status_code == 415
    assert client.post("/docs/_search", content=content, headers={"content-encoding": "br"}).status_code == 415


def test_reasons_of_the_engine_are_an_option(index: Served, engine: Remote, tmp_path: Path) -> None:
    engine.error = EngineRejected("no", status=400, error_type="parsing_exception", engine_reason="unknown field [x]")
    served = Served(engine, index.index, index.model, index.documents, index.store_path)
    for shown, cause in (
        (True, {"type": "parsing_exception", "reason": "unknown field [x]"}),
        (
            False,
            {"type": "body_refused", "reason": "the search engine rejects this search body (parsing_exception)"},
        ),
    ):
        state = service_over(served, tmp_path / str(shown), proxy=True, engine_reasons=shown)
        client = client_of(state, *all_parts(with_proxy=True))
        answer = client.post("/docs/_search", json={"query": {"match_all": {}}})
        assert answer.json() == {"error": {"root_cause": [cause], **cause}, "status": 400}
        several = client.post("/docs/_msearch", content=b"{}\n{}\n").json()["responses"]
        assert several == [answer.json()]


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


def test_a_key_is_asked_for(index: Served, engine: Any, tmp_path: Path) -> None:
    key, line = new_key("shop", "search")
    (tmp_path / "keys").write_text(line + "\n")
    served = Served(engine, index.index, index.model, index.documents, index.store_path)
    state = service_over(served, tmp_path, proxy=True, api_keys=tmp_path / "keys")
    client = client_of(state, *all_parts(with_proxy=True))
    refused = client.post("/docs/_search", json=BODY)
    assert refused.status_code == 401 and refused.json()["error"]["type"] == "unauthorized"
    assert client.post("/docs/_search", json=BODY, headers={"Authorization": f"ApiKey {key}"}).status_code == 200
    for path in ("/", "/docs", "/docs/_doc/d3", "/_cluster/health", "/_cat/health"):
        assert client.get(path).status_code == 401 and client.get(path, headers={"X-API-Key": key}).status_code == 200
    assert client.head("/").status_code == client.head("/docs").status_code == 401
    assert client.get("/", headers={"accept": "text/html"}).status_code == 200, "the page needs no key"


def test_a_body_that_is_no_object_is_an_error_of_the_request() -> None:
    with pytest.raises(ServiceError, match="not a JSON object"):
        read_search([], {}, checked)
