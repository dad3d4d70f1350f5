"""The allow list of search bodies: what passes, what is refused, and that no route is without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

from reranker.service.app import OWN_PARTS, all_parts
from reranker.service.gate import AGGREGATIONS, BODY_OPTIONS, MAX_CLAUSES, QUERIES, RETRIEVERS, check_body
from reranker.service.http import JsonRoute, PlainRoute, ServiceError
from tests.engines.memory import memory_engine
from tests.hostile_bodies import hostile_bodies
from tests.served import Served
from tests.services import TEMPLATE, client_of, service_over, small_index
from tests.unit.service.test_proxy import Remote

HOSTILE = list(hostile_bodies())
TEXT = {"match": {"text": "red shoes"}}


def refused(body: Any) -> ServiceError:
    with pytest.raises(ServiceError) as error:
        check_body(body, "docs")
    return error.value


# --- what is refused


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: json.dumps(body)[:90])
def test_hostile_bodies_are_refused(body: dict[str, Any]) -> None:
    error = refused(body)
    assert (error.status_code, error.kind) in ((403, "not_allowed"), (422, "invalid"))
    assert "{{query}}" not in error.message and "users" not in error.message


@given(st.text(min_size=1, max_size=30))
def test_a_name_on_no_list_is_refused_wherever_it_stands(name: str) -> None:
    places: list[tuple[Mapping[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]] = [
        (BODY_OPTIONS, lambda part: part),
        (QUERIES, lambda part: {"query": part}),
        (QUERIES, lambda part: {"query": {"bool": {"filter": [part]}}}),
        (dict.fromkeys((*AGGREGATIONS, "aggs", "aggregations", "meta")), lambda part: {"aggs": {"a": part}}),
        (RETRIEVERS, lambda part: {"retriever": part}),
    ]
    for known, body in places:
        if name not in known:
            assert refused(body({name: {}})).status_code == 403


def test_a_refusal_names_the_part_the_place_and_the_remedy() -> None:
    message = refused({"query": {"bool": {"filter": [{"script": {}}]}}}).message
    assert "'script'" in message and "filter" in message and "docs/reference.md" in message and "--body" in message
    assert "secret text" not in refused({"query": {"secret text": {}}}).message
    assert "10025" in refused({"from": 9_000, "size": 1_025}).message
    assert f"{MAX_CLAUSES} query clauses" in refused({"query": {"bool": {"must": [TEXT] * MAX_CLAUSES}}}).message


NAMES = [*QUERIES, *BODY_OPTIONS, *AGGREGATIONS, "filter", "boost", "x"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        max_leaves=25,
    )
)
def test_any_json_is_taken_or_refused(value: Any) -> None:
    for body in (value, {"query": value}, {"aggs": {"a": value}}, {"sort": value, "rescore": value}):
        with suppress(ServiceError):  # any other error is one of the gate's own
            assert check_body(body, "docs") is body


# --- what passes

TAKEN: list[dict[str, Any]] = [
    {},
    {"query": TEXT, "from": 9_990, "size": 10},
    {"query": {"multi_match": {"query": "a", "fields": ["title^2", "text"], "operator": "and"}}},
    {"query": {"query_string": {"query": "a AND b", "default_field": "text", "analyze_wildcard": True}}},
    {
        "query": {
            "bool": {
                "must": [TEXT],
                "filter": {"range": {"price": {"gte": 1, "lt": 9.5}}},
                "boost": 2,
                "minimum_should_match": "75%",
            }
        }
    },
    {
        "query": {
            "function_score": {
                "query": TEXT,
                "functions": [
                    {"filter": {"term": {"a": "b"}}, "weight": 3},
                    {"gauss": {"at": {"origin": "now", "scale": "10d"}}},
                    {"random_score": {"seed": 3, "field": "_seq_no"}},
                    {"field_value_factor": {"field": "n", "factor": 1.2}},
                ],
                "boost_mode": "sum",
            }
        }
    },
    {"query": {"terms": {"tag": ["a", "b"], "boost": 1.0}}},
    {"query": {"terms": {"tag": {"index": "docs", "id": "1", "path": "tags"}}}},
    {"query": {"more_like_this": {"fields": ["text"], "like": ["a", {"_index": "docs", "_id": "1"}, {"_id": "2"}]}}},
    {"query": {"geo_distance": {"distance": "3km", "place": {"lat": 1, "lon": 2}}}},
    {
        "query": {
            "geo_shape": {
                "place": {"shape": {"type": "polygon", "coordinates": [[[1, 2], [3, 4]]]}, "relation": "within"}
            }
        }
    },
    {"query": {"nested": {"path": "offers", "query": {"term": {"offers.a": "b"}}, "inner_hits": {"size": 3}}}},
    {"query": {"pinned": {"ids": ["1"], "organic": TEXT}}},
    {
        "query": {
            "intervals": {"text": {"all_of": {"intervals": [{"match": {"query": "a"}}, {"prefix": {"prefix": "b"}}]}}}
        }
    },
    {"query": {"span_near": {"clauses": [{"span_term": {"a": "b"}}], "slop": 2}}},
    {"query": {"hybrid": {"queries": [TEXT, {"neural": {"v": {"query_text": "a", "model_id": "m", "k": 5}}}]}}},
    {"query": {"knn": {"v": {"vector": [1.0, 2], "k": 3}}}},
    {"knn": [{"field": "v", "query_vector": [1, 2.5], "k": 3, "num_candidates": 10, "boost": 0.5}], "query": TEXT},
    {
        "retriever": {
            "rrf": {
                "retrievers": [
                    {"standard": {"query": TEXT}},
                    {"knn": {"field": "v", "query_vector": [1], "k": 2, "num_candidates": 5}},
                ],
                "rank_window_size": 50,
            }
        }
    },
    {
        "sort": [
            "_score",
            {"price": "asc"},
            {"date": {"order": "desc", "missing": "_last"}},
            {"_geo_distance": {"place": [1, 2], "order": "asc", "unit": "km"}},
        ],
        "search_after": [1, "x"],
    },
    {
        "_source": {"includes": ["a"], "excludes": "b"},
        "fields": ["a", {"field": "b", "format": "epoch_millis"}],
        "docvalue_fields": ["a"],
        "stored_fields": "_none_",
        "explain": True,
        "version": True,
        "track_total_hits": 100,
    },
    {"highlight": {"pre_tags": ["<b>"], "fields": {"text": {"number_of_fragments": 2}}}},
    {"highlight": {"fields": [{"text": {}}], "highlight_query": TEXT}},
    {
        "suggest": {
            "text": "a",
            "one": {"term": {"field": "text", "suggest_mode": "always"}},
            "two": {
                "prefix": "a",
                "completion": {"field": "s", "fuzzy": {"fuzziness": 2}, "contexts": {"place": [{"lat": 1, "lon": 2}]}},
            },
        }
    },
    {"collapse": {"field": "tag", "inner_hits": [{"name": "a", "size": 5, "sort": [{"n": "asc"}]}]}},
    {"rescore": [{"window_size": 50, "query": {"rescore_query": TEXT, "query_weight": 0.7}}], "min_score": 0.1},
    {"post_filter": {"term": {"a": "b"}}, "timeout": "500ms", "terminate_after": 1000},
    {"ext": {"ubi": {"user_query": "a", "client_id": "b", "query_attributes": {"x": "y"}}}},
    {
        "aggs": {
            "tags": {
                "terms": {"field": "tag", "size": 100, "order": {"_count": "desc"}, "include": "a.*"},
                "aggs": {"n": {"avg": {"field": "n"}}, "best": {"top_hits": {"size": 3, "_source": ["a"]}}},
            },
            "price": {"range": {"field": "price", "ranges": [{"to": 10}, {"from": 10, "key": "more"}]}},
            "when": {
                "date_histogram": {
                    "field": "d",
                    "calendar_interval": "month",
                    "min_doc_count": 0,
                    "extended_bounds": {"min": "now-1y", "max": "now"},
                }
            },
            "some": {"filter": {"term": {"a": "b"}}, "meta": {"x": 1}},
            "all": {"global": {}},
            "each": {"filters": {"filters": {"x": TEXT}, "other_bucket_key": "rest"}},
            "pages": {
                "composite": {
                    "size": 100,
                    "sources": [{"a": {"terms": {"field": "tag", "order": "asc"}}}],
                    "after": {"a": "x"},
                }
            },
            "mid": {"percentiles": {"field": "n", "percents": [50, 95], "tdigest": {"compression": 200}}},
            "n": {"cardinality": {"field": "a", "precision_threshold": 3000}},
            "in": {"nested": {"path": "offers"}, "aggs": {"back": {"reverse_nested": {}}}},
            "top": {
                "terms": {"field": "tag"},
                "aggs": {
                    "s": {"sum": {"field": "n"}},
                    "keep": {"bucket_sort": {"sort": [{"s": {"order": "desc"}}], "size": 3}},
                },
            },
        }
    },
]
"""Bodies of ordinary search pages."""


@pytest.mark.parametrize("body", TAKEN, ids=lambda body: json.dumps(body)[:90])
def test_ordinary_bodies_pass_unchanged(body: dict[str, Any]) -> None:
    before = json.dumps(body)
    assert check_body(body, "docs") == json.loads(before) and json.dumps(body) == before


@pytest.mark.parametrize(
    "body",
    [
        {"query": {"bool": {"must": [TEXT] * (MAX_CLAUSES - 1)}}},
        {"aggs": {"a": {"terms": {"field": "a", "size": 5_000}, "aggs": {"b": {"terms": {"field": "b"}}}}}},
        {"aggs": {str(n): {"max": {"field": "n"}} for n in range(200)}},
    ],
    ids=["clauses", "buckets", "aggregations"],
)
def test_limits_hold_up_to_their_value(body: dict[str, Any]) -> None:
    before = json.dumps(body)
    assert check_body(body, "docs") == json.loads(before)


# --- no route without it

BODIES: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "/search": lambda client, body: client.post("/search", json={"query": "word3", "body": body}),
    "/{index}/_search": lambda client, body: client.post("/docs/_search", json=filled(body)),
    "/{index}/_count": lambda client, body: client.post("/docs/_count", json=filled(body)),
    "/{index}/_msearch": lambda client, body: client.post(
        "/docs/_msearch", content=f"{{}}\n{json.dumps(filled(body))}\n"
    ),
    "/_msearch": lambda client, body: client.post(
        "/_msearch", content=f'{{"index": "docs"}}\n{json.dumps(filled(body))}\n'
    ),
}
"""Routes that take a search body, and how one is sent there."""
WITHOUT = {
    "/events",
    "/_mget",
    "/{index}/_mget",
    "/_{api:path}",
    "/{index}/_{api:path}",
    "/{index}",
    "/",
    "/rerank",
    "/embed",
    "/v1/rerank",
    "/v2/rerank",
    "/admin/reload",
    "/admin/promote",
    "/admin/rollback",
    "/admin/drift",
}
"""Routes that take no search body: documents, ids, events, what an operator wants, or what the proxy refuses."""


def filled(body: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(body).replace("{{query}}", "word3"))
    return value


def taking_bodies() -> Iterator[APIRoute]:
    for part in (*OWN_PARTS, *all_parts("1" * 12, with_proxy=True)):
        for route in part.router.routes:
            if isinstance(route, APIRoute) and (route.methods or set()) - {"GET", "HEAD"}:
                yield route


def test_every_route_that_takes_a_body_is_known_and_reads_it_by_our_own_hands() -> None:
    routes = list(taking_bodies())
    assert {route.path for route in routes} == {*BODIES, *WITHOUT}, "say of a new route whether it takes search bodies"
    assert all(isinstance(route, JsonRoute) and route.body_field is None for route in routes)
    plain = {route.path for route in routes if isinstance(route, PlainRoute)}
    assert plain == {*BODIES} - {"/search"} | {path for path in WITHOUT if "_mget" in path or "{" in path}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("index"), memory_engine(), n=20)
    yield served
    served.engine.close()


@pytest.mark.parametrize("proxy", [False, True])
def test_no_route_sends_a_hostile_body_to_the_engine(index: Served, tmp_path: Path, proxy: bool) -> None:
    engine: Any = Remote(index.engine)
    served = Served(engine, index.index, index.model, index.documents, index.store_path)
    state = service_over(served, tmp_path, proxy=proxy)
    client = client_of(state, *all_parts(with_proxy=proxy))
    engine.bodies.clear()
    for path in BODIES if proxy else ["/search"]:
        for body in HOSTILE:
            answer = BODIES[path](client, body)
            status = answer.json()["responses"][0]["status"] if path.endswith("_msearch") else answer.status_code
            assert status in (403, 422), (path, body, answer.text)
    assert not engine.requests and not engine.bodies
    refused = state.metrics.counts(state.metrics.refused)
    assert refused["not_allowed"] + refused["invalid"] == len(HOSTILE) * (len(BODIES) if proxy else 1)


def test_the_operators_own_body_may_ask_for_anything(index: Served, tmp_path: Path) -> None:
    engine: Any = Remote(index.engine)
    served = Served(engine, index.index, index.model, index.documents, index.store_path)
    own = {**TEMPLATE, "profile": True}
    state = service_over(served, tmp_path, body=own, bodies={"other": own})
    for named in ({}, {"body": "other"}):
        assert client_of(state).post("/search", json={"query": "word3", **named}).status_code == 200
    assert client_of(state).post("/search", json={"query": "word3", "body": own}).status_code == 403


def test_a_lookup_in_the_services_own_index_is_taken() -> None:
    own = {"terms": {"a": {"index": "docs", "id": "1", "path": "b", "routing": "c"}}}
    assert check_body({"query": own}, "docs")
    with pytest.raises(ServiceError, match="another index"):
        check_body({"query": own}, "shop")
