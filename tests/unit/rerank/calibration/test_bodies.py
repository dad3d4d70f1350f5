"""Which parts of a body decide which calibration it gets."""

from __future__ import annotations

from typing import Any

import pytest

from reranker.rerank.calibration.bodies import body_hash, signature_of, similarity
from tests.unit.rerank.calibration.test_kept import FIELDS, body
from tests.unit.rerank.test_reranker import BODY

MATCH: dict[str, Any] = BODY["query"]
OTHER: dict[str, Any] = {"match": {"brand": "{{query}}"}}
FACET: dict[str, Any] = {"term": {"tag": "x"}}


@pytest.mark.parametrize(
    "change",
    [
        {"_source": ["x"], "size": 3, "from": 5, "highlight": {}, "aggs": {"t": {}}},
        {"post_filter": FACET, "min_score": 1, "timeout": "100ms", "track_total_hits": True, "terminate_after": 9},
        {"query": {"bool": {"must": MATCH, "filter": [FACET]}}},
        {"query": {"bool": {"must": [MATCH], "must_not": FACET}}},
        {"query": {"bool": {"should": [MATCH], "filter": FACET, "minimum_should_match": 1}}},
        {"query": {"bool": {"must": {"bool": {"must": [MATCH], "filter": FACET}}, "filter": FACET}}},
    ],
)
def test_what_is_shown_and_what_filters_leave_a_bodys_alpha(change: dict[str, Any]) -> None:
    assert body_hash({**BODY, **change}) == body_hash(BODY)


@pytest.mark.parametrize(
    "query",
    [
        {"bool": {"must": [MATCH], "should": [OTHER]}},
        {"function_score": {"query": MATCH, "functions": [{"filter": FACET, "weight": 2}]}},
        {"script_score": {"query": MATCH, "script": {"source": "_score"}}},
    ],
)
def test_a_facet_leaves_the_alpha_of_a_larger_query(query: dict[str, Any]) -> None:
    ((name, inner),) = query.items()
    narrower = {name: inner | {"query": {"bool": {"must": MATCH, "filter": FACET}}}}
    if name == "bool":
        narrower = {name: {**inner, "filter": FACET}}
    assert body_hash({"query": narrower}) == body_hash({"query": query}) != body_hash(BODY)


def test_filters_of_knn_and_retrievers_leave_the_alpha() -> None:
    knn: dict[str, Any] = {"field": "v", "query_vector": [1.0], "k": 10}
    assert body_hash({**BODY, "knn": {**knn, "filter": FACET}}) == body_hash({**BODY, "knn": knn}) != body_hash(BODY)
    retriever = {"rrf": {"retrievers": [{"standard": {"query": MATCH}}, {"knn": knn}]}}
    filtered = {"rrf": {"retrievers": [{"standard": {"query": MATCH, "filter": FACET}}, {"knn": knn}], "filter": FACET}}
    assert body_hash({"retriever": filtered}) == body_hash({"retriever": retriever})


@pytest.mark.parametrize(
    "query",
    [
        {"match_all": {}},
        {"bool": {"must": [MATCH, OTHER]}},
        {"bool": {"must": MATCH, "boost": 2}},
        {"constant_score": {"filter": MATCH}},
        {"bool": {"should": [MATCH, {"bool": {"must": OTHER, "filter": FACET}}]}},
    ],
)
def test_another_way_to_score_has_another_alpha(query: dict[str, Any]) -> None:
    # The last one: a filter under should decides whose score the clause adds to.
    others = [BODY["query"], {"bool": {"should": [MATCH, OTHER]}}]
    assert body_hash({"query": query}) not in {body_hash({"query": other}) for other in others}


def test_clauses_are_read_without_boosts_values_and_filters() -> None:
    filtered = {"query": {"bool": {**body(FIELDS)["query"]["bool"], "filter": [{"term": {"brand": "x"}}]}}}
    assert signature_of(filtered) == signature_of(body(FIELDS)) == {"multi_match:title", "multi_match:text"}
    scored = {"query": {"function_score": {"query": {"match": {"title": {"query": "{{query}}", "boost": 2}}}}}}
    assert signature_of(scored) == {"match:title"}
    assert similarity(frozenset(), frozenset()) == 0.0
