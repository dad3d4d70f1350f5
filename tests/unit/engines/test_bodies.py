"""Request bodies: what each of the two requests keeps, and that nobody's body is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines.bodies import (
    candidate_body,
    default_query_body,
    fill_template,
    not_rerankable,
    page_body,
    window_of,
)
from reranker.engines.wire import copied
from reranker.errors import ConfigError, InputError
from reranker.records import ReasonKind

TEAM: dict[str, Any] = {
    "query": {"bool": {"must": [{"match": {"title": "apple"}}], "filter": [{"term": {"live": True}}]}},
    "post_filter": {"term": {"shop": 3}},
    "min_score": 0.5,
    "rescore": {"window_size": 50, "query": {"rescore_query": {"match_phrase": {"title": "apple"}}}},
    "knn": {"field": "v", "query_vector": [1.0], "k": 10, "num_candidates": 50},
    "aggs": {"shops": {"terms": {"field": "shop"}}},
    "suggest": {"s": {"text": "aple", "term": {"field": "title"}}},
    "track_total_hits": True,
    "from": 10,
    "size": 20,
    "_source": ["title", "price"],
    "fields": ["year"],
    "highlight": {"fields": {"title": {}}},
    "explain": True,
    "timeout": "2s",
}


def test_candidates_keep_what_decides_the_hits() -> None:
    before = copy.deepcopy(TEAM)
    body = candidate_body(TEAM, 100, ["ssi_x_vec"])
    assert before == TEAM
    shown = {"_source", "fields", "highlight", "explain", "from", "size"}
    assert {name: value for name, value in body.items() if name not in shown} == {
        name: value for name, value in TEAM.items() if name not in shown
    }
    assert (body["from"], body["size"], body["_source"]) == (0, 100, ["ssi_x_vec"])
    assert not {"fields", "highlight", "explain"} & set(body)


def test_candidates_without_fields_and_answers() -> None:
    body = candidate_body(TEAM, 5, answers=False)
    assert body["_source"] is False
    assert not {"aggs", "suggest"} & set(body)


def test_candidates_collapse_without_inner_hits() -> None:
    team = {"collapse": {"field": "brand", "inner_hits": {"name": "more", "size": 3}}}
    assert candidate_body(team, 5)["collapse"] == {"field": "brand"}
    assert "inner_hits" in team["collapse"]


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_has_a_size(window: int) -> None:
    with pytest.raises(InputError, match="window"):
        candidate_body(TEAM, window)


def test_the_page_shows_what_the_team_shows() -> None:
    before = copy.deepcopy(TEAM)
    body = page_body(TEAM, ["b", "a"])
    assert before == TEAM
    assert body["query"] == {"bool": {"filter": [{"ids": {"values": ["b", "a"]}}], "should": [TEAM["query"]]}}
    assert (body["from"], body["size"], body["track_total_hits"]) == (0, 2, False)
    for name in ("_source", "fields", "highlight", "explain", "timeout"):
        assert body[name] == TEAM[name]
    assert not {"aggs", "suggest", "rescore", "post_filter", "min_score", "knn", "sort"} & set(body)


def test_the_page_of_a_body_without_query() -> None:
    assert page_body({}, ["a"])["query"] == {"bool": {"filter": [{"ids": {"values": ["a"]}}]}}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"sort": []},
        {"sort": "_score"},
        {"sort": ["_score", {"date": "desc"}]},
        {"sort": [{"_score": "desc"}]},
        {"sort": {"_score": {"order": "desc"}}},
        {"size": 3},
    ],
)
def test_rerankable(body: dict[str, Any]) -> None:
    assert not_rerankable(body) is None


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"size": 0}, "size"),
        ({"profile": True}, "profile"),
        ({"search_after": [1]}, "search_after"),
        ({"sort": ["date"]}, "date"),
        ({"sort": [{"price": {"order": "asc"}}, "_score"]}, "price"),
        ({"sort": [{"_score": "asc"}]}, "_score"),
        ({"sort": {"_score": {"order": "asc"}}}, "_score"),
    ],
)
def test_not_rerankable(body: dict[str, Any], named: str) -> None:
    reason = not_rerankable(body)
    assert reason is not None and reason.kind is ReasonKind.NOT_RERANKABLE and named in reason.text


def test_windows() -> None:
    assert window_of({}) == (0, 10)
    assert window_of({"from": 5, "size": 7}) == (5, 7)


def test_default_bodies() -> None:
    assert default_query_body("q", ["title"]) == {"query": {"match": {"title": {"query": "q"}}}}
    multi = default_query_body("q", ["title^2", "text"])["query"]["multi_match"]
    assert multi == {"query": "q", "fields": ["title^2", "text"], "type": "most_fields"}
    with pytest.raises(InputError):
        default_query_body("q", [])


def test_a_template_is_filled_everywhere() -> None:
    template = {"query": {"bool": {"must": [{"match": {"t": "{{query}}"}}], "boost": 2}}, "n": ["a {{query}} b"]}
    before = copy.deepcopy(template)
    filled = fill_template(template, 'say "hi" {{query}}')
    assert filled["query"]["bool"] == {"must": [{"match": {"t": 'say "hi" {{query}}'}}], "boost": 2}
    assert filled["n"] == ['a say "hi" {{query}} b']
    assert template == before


def test_a_template_without_a_place() -> None:
    with pytest.raises(ConfigError, match=r"\{\{query\}\}"):
        fill_template({"query": {"match_all": {}}, "{{query}}": 1}, "q")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), _json, max_size=4), st.text(alphabet="abc"))
def test_filling_changes_nothing_but_places(body: dict[str, Any], query: str) -> None:
    filled = fill_template({"place": "{{query}}", "rest": body}, query)
    assert filled["place"] == query
    if "{{query}}" not in repr(body):
        assert filled["rest"] == body


def test_a_copy_of_a_json_value_shares_no_object_or_list_with_it() -> None:
    value: dict[str, Any] = {
        "query": {"bool": {"must": [{"match": {"title": "red"}}, {"match": {"text": "red"}}]}},
        "size": 3,
    }
    again = copied(value)
    assert again == value
    again["query"]["bool"]["must"][0]["match"]["title"] = "{{query}}"
    again["query"]["bool"]["must"].pop()
    assert value["query"] == {"bool": {"must": [{"match": {"title": "red"}}, {"match": {"text": "red"}}]}}
