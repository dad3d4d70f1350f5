"""Bodies by which engines score: their documented shape, and the arithmetic that undoes what engines do to scores."""

from __future__ import annotations

import copy
import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines.protocol import Capabilities
from reranker.engines.vectors import (
    LOST,
    InsideFields,
    QueryVectors,
    conditions_of,
    field_name,
    floor_body,
    inside_fields,
    lexical_body,
    model_scores,
    rescore_body,
    score_body,
    script_source,
    unmapped,
    unread_conditions,
    version_fields,
    why_not_rescored,
)
from reranker.errors import InputError
from tests.unit.engines.test_fields import BARE_ES, ENCODER, FULL_ES, OPENSEARCH

QUERY = QueryVectors(
    np.array([3.0, 4.0], np.float32), np.array([2, 9], np.int32), np.array([0.5, 0.25], np.float32), 1.0
)
SCRIPT = InsideFields("script", "v", "w", OPENSEARCH.vector_product)
UNIT = InsideFields("unit", "v", "w", norm=2.0)
TEAM: dict[str, Any] = {
    "query": {"bool": {"must": [{"match": {"title": "shoe"}}], "filter": [{"term": {"live": True}}]}},
    "aggs": {"b": {"terms": {"field": "brand"}}},
    "size": 10,
}
blended_body = partial(rescore_body, blend={"alpha": 0.6, "lexical": 0.4 / 7.0}, window=100)


def mapping(capabilities: Capabilities, *routes: str) -> dict[str, Any]:
    return version_fields(ENCODER, 2, capabilities, routes, norm=2.0)


def test_the_fields_of_an_index_decide_how_it_is_scored() -> None:
    script = inside_fields(mapping(OPENSEARCH, "inside"), ENCODER, OPENSEARCH)
    vector, terms = field_name(ENCODER, "vec_dense"), field_name(ENCODER, "terms_long")
    assert script == InsideFields("script", vector, terms, OPENSEARCH.vector_product)
    unit = inside_fields(mapping(BARE_ES, "inside"), ENCODER, BARE_ES)
    assert unit is not None
    assert (unit.method, unit.norm) == ("unit", 2.0)
    newest = inside_fields(mapping(FULL_ES, "inside"), ENCODER, FULL_ES)
    assert newest is not None
    assert newest.rescore_script
    assert inside_fields(mapping(OPENSEARCH, "fetch"), ENCODER, OPENSEARCH) is None
    assert inside_fields(mapping(OPENSEARCH, "inside"), "f" * 12, OPENSEARCH) is None


def test_a_role_that_may_not_ask_goes_by_the_fields() -> None:
    found = inside_fields(mapping(FULL_ES, "inside"), ENCODER, Capabilities("elasticsearch"))
    assert found is not None
    assert found.method == "script"
    # Where scripts are known to be forbidden, their fields are no use.
    forbidden = Capabilities("elasticsearch", "9.2.0", "dense_vector", "sparse_vector", painless=False)
    assert inside_fields(mapping(FULL_ES, "inside"), ENCODER, forbidden) is None


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
@pytest.mark.parametrize("name", ["model", "blend"])
def test_scripts_are_whole(name: Any, kind: str) -> None:
    """As both references document: dotProduct(vector, 'field'), innerProduct(vector, doc['field'])."""
    product = {"elasticsearch": FULL_ES, "opensearch": OPENSEARCH}[kind].vector_product
    source = script_source(name, InsideFields("script", "ssi_v", "ssi_w", product))
    wanted = {"elasticsearch": "dotProduct(params.u, 'ssi_v')", "opensearch": "innerProduct(params.u, doc['ssi_v'])"}
    assert source.count(wanted[kind]) == 1
    assert "doc['ssi_w']" in source
    assert not re.search(r"@|//", source)
    assert source.count("{") == source.count("}")
    assert source.count("(") == source.count(")")
    used = set(re.findall(r"params\.(\w+)", source))
    given_params = {"u", "ids", "weights"} | (
        {"floor", "lost", "alpha", "lexical", "signals"} if name == "blend" else set()
    )
    assert used == given_params


def test_scoring_by_script() -> None:
    body = score_body(SCRIPT, QUERY, ["a", "b"], 2)
    asked = body["query"]["script_score"]
    assert asked["query"] == {"bool": {"filter": [{"ids": {"values": ["a", "b"]}}, {"exists": {"field": "v"}}]}}
    assert asked["script"]["lang"] == "painless"
    assert asked["script"]["params"] == {"u": [3.0, 4.0], "ids": [2, 9], "weights": [0.5, 0.25]}
    assert (body["size"], body["_source"]) == (2, False)


def test_scoring_without_scripts() -> None:
    should = score_body(UNIT, QUERY, ["a", "b"], 3)["query"]["bool"]["should"]
    knn, words = should[0]["knn"], should[1]["sparse_vector"]
    np.testing.assert_allclose(knn["query_vector"], [0.6, 0.8, 0.0])
    assert knn["boost"] == pytest.approx(2 * 2.0 * 5.0)
    assert (knn["num_candidates"], knn["filter"]) == (3, {"ids": {"values": ["a", "b"]}})
    assert words["query_vector"] == {"t2": 0.5, "r2": 0.5, "t9": 0.25, "r9": 0.25}
    assert words["prune"] is False


def test_a_query_without_learned_words_asks_for_words_alone() -> None:
    alone = QueryVectors(np.zeros(2, np.float32), QUERY.ids, QUERY.weights, 1.0)
    body = score_body(UNIT, alone, ["a"], 1)
    assert [list(clause) for clause in body["query"]["bool"]["should"]] == [["sparse_vector"]]
    assert model_scores(UNIT, alone, [0.25])[0] == 0.25
    learned = QueryVectors(QUERY.vector, QUERY.ids, QUERY.weights, 0.0)
    body = score_body(UNIT, learned, ["a"], 1)
    assert [list(clause) for clause in body["query"]["bool"]["should"]] == [["knn"]]


@given(st.floats(-1e6, 1e6))
def test_what_the_script_does_to_a_score_can_be_undone(x: float) -> None:
    mapped = 1 + x if x >= 0 else 1 / (1 - x)
    assert mapped > 0
    assert unmapped(np.array([mapped]))[0] == pytest.approx(x, rel=1e-9, abs=1e-9)


@given(st.floats(-50, 50), st.floats(-50, 50))
def test_mapping_keeps_the_order_in_the_engines_precision(x: float, y: float) -> None:
    a, b = (float(np.float32(1 + v if v >= 0 else 1 / (1 - v))) for v in (x, y))
    if x < y - 1e-4:
        assert a < b
    assert unmapped(np.array([a]))[0] == pytest.approx(x, abs=3e-6 * max(1.0, abs(x)))


def test_scores_that_no_script_gives_are_no_scores() -> None:
    told = unmapped(np.array([-1.0, 0.0, np.nan]))
    assert math.isnan(told[0])
    assert told[1] == -math.inf
    assert math.isnan(told[2])


@given(st.floats(-1, 1))
def test_unit_scores_are_linear_also_below_zero(cosine: float) -> None:
    """Elasticsearch scores dot_product as (1 + x) / 2, times the boost."""
    boost = 2 * UNIT.norm * 5.0
    score = boost * (1 + cosine) / 2
    assert model_scores(UNIT, QUERY, [score])[0] == pytest.approx(UNIT.norm * 5.0 * cosine, abs=1e-9)


def test_rescoring_before_and_since_elasticsearch_9_2() -> None:
    before = copy.deepcopy(TEAM)
    body = blended_body(TEAM, SCRIPT, QUERY, 2.0)
    assert before == TEAM
    assert {name: body[name] for name in TEAM} == TEAM
    rescore = body["rescore"]
    assert rescore["window_size"] == 100
    assert (rescore["query"]["query_weight"], rescore["query"]["rescore_query_weight"]) == (0.0, 1.0)
    again = rescore["query"]["rescore_query"]["script_score"]
    assert again["query"] == TEAM["query"]
    params = again["script"]["params"]
    assert (params["alpha"], params["lexical"], params["lost"]) == (0.6, 0.4 / 7.0, LOST)
    assert params["floor"] == pytest.approx(2.0, rel=1e-5)
    assert params["floor"] < 2.0
    newest = InsideFields("script", "v", "w", FULL_ES.vector_product, rescore_script=True)
    rescore = blended_body(TEAM, newest, QUERY)["rescore"]
    assert set(rescore) == {"window_size", "script"}
    assert rescore["script"]["script"]["params"]["floor"] == 0.0
    stored = blended_body(TEAM, newest, QUERY, stored="ssi_x_blend")["rescore"]["script"]["script"]
    assert stored["id"] == "ssi_x_blend"
    assert "source" not in stored


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"knn": {"field": "v"}}, "knn"),
        ({"rescore": {}}, "rescore"),
        ({"sort": ["_score", "price"]}, "sort"),
        ({"collapse": {"field": "brand"}}, "collapse"),
        ({"retriever": {}}, "retriever"),
    ],
)
def test_bodies_that_score_by_more_than_a_query_are_not_rescored(extra: dict[str, Any], reason: str) -> None:
    assert reason in why_not_rescored({**TEAM, **extra}, SCRIPT)
    assert why_not_rescored(TEAM, SCRIPT) == ""
    assert "scripts" in why_not_rescored(TEAM, UNIT)
    assert why_not_rescored({"size": 3}, SCRIPT)


def test_the_end_of_the_window() -> None:
    body = floor_body(TEAM, 100)
    assert (body["from"], body["size"], body["query"]) == (99, 1, TEAM["query"])
    assert "aggs" not in body


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


def test_the_bound_must_be_in_the_mapping() -> None:
    broken = mapping(BARE_ES, "inside")
    del broken[field_name(ENCODER, "vec_unit")]["meta"]
    with pytest.raises(InputError):
        inside_fields(broken, ENCODER, BARE_ES)
