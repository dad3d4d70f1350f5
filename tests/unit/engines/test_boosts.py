"""Boosts of search bodies that do not depend on the query text."""

from __future__ import annotations

from typing import Any

import pytest

from reranker.engines.boosts import ScoreBoost, boosts_of

MATCH: dict[str, Any] = {"match": {"title": "{{query}}"}}
POPULAR: dict[str, Any] = {"field_value_factor": {"field": "popularity", "modifier": "log1p"}}
BY_POPULARITY = {"function_score": {"query": MATCH, **POPULAR}}
FEATURE = {"rank_feature": {"field": "pagerank", "saturation": {"pivot": 8}}}
RECENT = {"distance_feature": {"field": "released", "origin": "now", "pivot": "7d"}}
IN_STOCK: dict[str, Any] = {"term": {"in_stock": {"value": True, "boost": 3}}}


def boost(clause: str, *fields: str) -> ScoreBoost:
    return ScoreBoost(clause, fields)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (MATCH, []),
        (BY_POPULARITY, [boost("function_score", "popularity")]),
        (
            {
                "function_score": {
                    "query": MATCH,
                    "functions": [
                        POPULAR,
                        {"gauss": {"released": {"origin": "now", "scale": "10d"}, "multi_value_mode": "avg"}},
                        {"filter": {"term": {"brand": "own"}}, "weight": 2},
                        {"script_score": {"script": {"source": "doc['stock'].value + doc[\"price\"].value"}}},
                        {"random_score": {}},
                        POPULAR,
                    ],
                }
            },
            [boost("function_score", "popularity", "released", "brand", "stock", "price")],
        ),
        ({"function_score": {"query": MATCH, "boost": 2}}, []),
        ({"function_score": {"query": BY_POPULARITY, "boost": 2}}, [boost("function_score", "popularity")]),
        ({"script_score": {"query": MATCH, "script": "_score * doc['votes'].value"}}, [boost("script_score", "votes")]),
        (
            {"script_score": {"query": FEATURE, "script": {"id": "x"}}},
            [boost("script_score"), boost("rank_feature", "pagerank")],
        ),
        (
            {"boosting": {"positive": MATCH, "negative": {"term": {"old": True}}, "negative_boost": 0.2}},
            [boost("boosting", "old")],
        ),
        (
            {"bool": {"must": MATCH, "should": [FEATURE, RECENT, FEATURE, IN_STOCK]}},
            [boost("rank_feature", "pagerank"), boost("distance_feature", "released"), boost("term", "in_stock")],
        ),
        (
            {"bool": {"must": MATCH, "should": {"constant_score": {"filter": {"exists": {"field": "image"}}}}}},
            [boost("constant_score", "image")],
        ),
        ({"bool": {"must": [MATCH, {"constant_score": {"filter": IN_STOCK}}]}}, []),
        ({"bool": {"must": [MATCH, IN_STOCK], "filter": [IN_STOCK, FEATURE], "must_not": BY_POPULARITY}}, []),
        ({"bool": {"should": [{"term": {"sku": "{{query}}"}}, {"constant_score": {"filter": MATCH}}]}}, []),
        (
            {"dis_max": {"queries": [MATCH, {"nested": {"path": "a", "query": FEATURE}}]}},
            [boost("rank_feature", "pagerank")],
        ),
        ({"pinned": {"ids": ["a"], "organic": BY_POPULARITY}}, [boost("function_score", "popularity")]),
        # Fields may have the names of clauses.
        ({"match": {"function_score": "{{query}}"}}, []),
        ({"multi_match": {"query": "{{query}}", "fields": ["boosting", "rank_feature"]}}, []),
    ],
)
def test_boosts_of_a_query(query: dict[str, Any], expected: list[ScoreBoost]) -> None:
    assert boosts_of({"query": query}) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"retriever": {"standard": {"query": BY_POPULARITY}}}, [boost("function_score", "popularity")]),
        (
            {"retriever": {"rrf": {"retrievers": [{"standard": {"query": MATCH}}, {"standard": {"query": FEATURE}}]}}},
            [boost("rank_feature", "pagerank")],
        ),
        (
            {"retriever": {"linear": {"retrievers": [{"retriever": {"standard": {"query": RECENT}}, "weight": 2}]}}},
            [boost("distance_feature", "released")],
        ),
        (
            {"query": MATCH, "rescore": {"window_size": 50, "query": {"rescore_query": FEATURE}}},
            [boost("rank_feature", "pagerank")],
        ),
        (
            {"query": MATCH, "rescore": [{"script": {"script": {"source": "doc['votes'].value"}}}]},
            [boost("rescore", "votes")],
        ),
        ({"sub_searches": [{"query": MATCH}, {"query": BY_POPULARITY}]}, [boost("function_score", "popularity")]),
        ({"query": MATCH, "indices_boost": [{"new": 2.0}]}, [boost("indices_boost")]),
        ({"query": MATCH, "post_filter": FEATURE, "aggs": {"boosting": {"filter": FEATURE}}}, []),
        ({}, []),
    ],
)
def test_boosts_outside_of_the_query(body: dict[str, Any], expected: list[ScoreBoost]) -> None:
    assert boosts_of(body) == expected


@pytest.mark.parametrize(
    "query",
    [
        None,
        [],
        "text",
        {"bool": None},
        {"bool": {"should": ["text", None, 3]}},
        {"function_score": {"functions": ["text", None], "query": 3}},
        {"function_score": {"gauss": "text", "field_value_factor": "text", "script_score": []}},
        {"script_score": {"script": 3}},
        {"rank_feature": {"field": ["a"]}},
        {"boosting": {"negative": {"term": "text"}}},
    ],
)
def test_a_body_of_any_shape_is_read(query: Any) -> None:
    assert all(boost.fields == () for boost in boosts_of({"query": query, "rescore": query, "retriever": query}))
