"""Conditions of a body that another first stage applies too, and the body by which its documents are scored."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from reranker.engines.vectors import conditions_of, lexical_body, unread_conditions

TEAM: dict[str, Any] = {
    "query": {"bool": {"must": [{"match": {"title": "shoe"}}], "filter": [{"term": {"live": True}}]}},
    "aggs": {"b": {"terms": {"field": "brand"}}},
    "size": 10,
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"query": {"match": {"t": "x"}}}, None),
        (TEAM, {"bool": {"filter": [{"term": {"live": True}}]}}),
        (
            {
                "query": {
                    "bool": {
                        "must": [{"match": {"t": "x"}}, {"range": {"p": {"gte": 1}}}],
                        "must_not": {"term": {"a": 1}},
                    }
                }
            },
            {"bool": {"filter": [{"range": {"p": {"gte": 1}}}], "must_not": [{"term": {"a": 1}}]}},
        ),
        (
            {
                "query": {"function_score": {"query": {"bool": {"filter": {"term": {"a": 1}}}}}},
                "post_filter": {"term": {"b": 2}},
            },
            {"bool": {"filter": [{"term": {"a": 1}}, {"term": {"b": 2}}]}},
        ),
        ({"query": {"term": {"a": 1}}}, {"bool": {"filter": [{"term": {"a": 1}}]}}),
        (
            {
                "query": {
                    "bool": {
                        "must": [
                            {
                                "bool": {
                                    "must": {"match": {"t": "x"}},
                                    "filter": {"term": {"team": 1}},
                                    "must_not": {"term": {"hidden": True}},
                                }
                            }
                        ],
                        "must_not": [{"term": {"a": 1}}],
                    }
                }
            },
            {"bool": {"filter": [{"term": {"team": 1}}], "must_not": [{"term": {"a": 1}}, {"term": {"hidden": True}}]}},
        ),
        (
            {"query": {"pinned": {"ids": ["d"], "organic": {"bool": {"filter": {"term": {"team": 1}}}}}}},
            {"bool": {"filter": [{"term": {"team": 1}}]}},
        ),
        (
            {
                "query": {
                    "boosting": {
                        "positive": {"constant_score": {"filter": {"term": {"a": 1}}}},
                        "negative": {"term": {"b": 2}},
                        "negative_boost": 0.5,
                    }
                }
            },
            {"bool": {"filter": [{"term": {"a": 1}}]}},
        ),
        ({"query": {"bool": {"should": [{"bool": {"filter": {"term": {"a": 1}}}}, {"match": {"t": "x"}}]}}}, None),
        (
            {
                "query": {
                    "bool": {
                        "must": [{"match": {"t": "x"}}, {"bool": {"should": [{"term": {"a": 1}}, {"term": {"a": 2}}]}}]
                    }
                }
            },
            {"bool": {"filter": [{"bool": {"should": [{"term": {"a": 1}}, {"term": {"a": 2}}]}}]}},
        ),
        ({}, None),
    ],
)
def test_conditions_of_a_body(body: dict[str, Any], expected: dict[str, Any] | None) -> None:
    before = copy.deepcopy(body)
    assert conditions_of(body) == expected
    assert before == body


WORDS = {"match": {"t": "x"}}
TENANT = {"bool": {"filter": {"term": {"tenant": 1}}, "must": WORDS}}
SAME = {"constant_score": {"filter": WORDS}}
BOOSTS = [{"filter": {"term": {"a": 1}}, "weight": 2}]


@pytest.mark.parametrize(
    ("body", "unread"),
    [
        ({"query": TENANT, "post_filter": {"nested": {"path": "p", "query": TENANT}}}, ()),
        ({"query": {"bool": {"must": [WORDS, TENANT]}}}, ()),
        ({"query": {"bool": {"must": WORDS, "should": [TENANT]}}}, ()),
        ({"query": {"function_score": {"query": TENANT, "functions": BOOSTS}}}, ()),
        ({"query": {"dis_max": {"queries": [WORDS, SAME]}}}, ()),
        ({"query": {"bool": {"should": [TENANT, {"match": {"t": "y"}}]}}}, ("bool",)),
        ({"query": {"bool": {"must": WORDS, "should": [TENANT], "minimum_should_match": 1}}}, ("bool",)),
        ({"query": {"dis_max": {"queries": [TENANT, TENANT]}}}, ("dis_max",)),
        ({"query": {"bool": {"must": [{"nested": {"path": "p", "query": TENANT}}]}}}, ("nested",)),
        ({"query": {"hybrid": {"queries": [TENANT]}}}, ("hybrid",)),
        ({"query": {"knn": {"v": {"vector": [1.0], "k": 5, "filter": {"term": {"a": 1}}}}}}, ("knn",)),
        ({"query": WORDS, "knn": {"field": "v", "filter": {"term": {"a": 1}}}}, ("knn",)),
        ({"retriever": {"standard": {"query": TENANT}}}, ("retriever",)),
    ],
)
def test_conditions_that_are_not_taken_over_are_told(body: dict[str, Any], unread: tuple[str, ...]) -> None:
    assert unread_conditions(body) == unread


def test_what_another_first_stage_found_is_scored_by_the_teams_own_query() -> None:
    body = lexical_body(TEAM, ["a"], 1, ["title"])
    assert body["query"]["bool"]["should"] == [TEAM["query"]]
    assert body["query"]["bool"]["filter"] == [{"ids": {"values": ["a"]}}]
    assert body["_source"] == ["title"]
