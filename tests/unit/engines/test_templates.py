"""Variables of body templates: values by type, defaults, clauses that go where there is none, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines.bodies import fill_template, fill_variables, variables_of
from reranker.errors import ConfigError, InputError, RerankerError
from reranker.rerank.search import read_body

TEMPLATE: dict[str, Any] = {
    "query": {
        "bool": {
            "must": {"match": {"title": "{{query}}"}},
            "filter": [
                {"terms": {"brand": "{{brands?}}"}},
                {"range": {"price": {"lte": "{{most=100}}"}}},
                {"term": {"in_stock": "{{stock=true}}"}},
                {"prefix": {"path": "/{{lang=en}}/{{most=100}}/"}},
            ],
        }
    },
    "size": "{{size=10}}",
    "post_filter": {"term": {"colour": "{{colour?}}"}},
}


def test_defaults_and_what_is_absent() -> None:
    defaults = {"brands": None, "most": 100, "stock": True, "lang": "en", "size": 10, "colour": None}
    assert variables_of(TEMPLATE) == defaults
    filled = fill_variables(TEMPLATE, {})
    assert filled["query"]["bool"]["filter"] == [
        {"range": {"price": {"lte": 100}}},
        {"term": {"in_stock": True}},
        {"prefix": {"path": "/en/100/"}},
    ]
    assert filled["size"] == 10 and "post_filter" not in filled
    assert fill_template(filled, "shoes")["query"]["bool"]["must"] == {"match": {"title": "shoes"}}


def test_values_keep_their_types_and_the_template_stays() -> None:
    before = json.dumps(TEMPLATE)
    values = {"brands": ["a", "b"], "most": 2.5, "stock": False, "lang": "{{query}}", "size": 3, "colour": "red"}
    filled = fill_variables(TEMPLATE, values)
    assert filled["query"]["bool"]["filter"] == [
        {"terms": {"brand": ["a", "b"]}},
        {"range": {"price": {"lte": 2.5}}},
        {"term": {"in_stock": False}},
        {"prefix": {"path": "/{{query}}/2.5/"}},
    ]
    assert (filled["size"], filled["post_filter"]) == (3, {"term": {"colour": "red"}})
    assert json.dumps(TEMPLATE) == before


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"brand": "a"}, ("'brand'", "brands, colour, lang, most, size, stock")),
        ({"most": "100"}, ("'most'", "has type text; it must be a number")),
        ({"stock": 1}, ("has type number; it must be a boolean",)),
        ({"size": True}, ("has type boolean; it must be a number",)),
        ({"lang": ["en"]}, ("has type list; it must be a text",)),
        ({"brands": None}, ("has type null; it must be",)),
        ({"brands": {"match_all": {}}}, ("has type object; it must be",)),
        ({"brands": [{"match_all": {}}]}, ("has type list; it must be",)),
    ],
)
def test_values_that_do_not_fit_are_refused_without_being_repeated(values: Any, said: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        fill_variables(TEMPLATE, values)
    assert all(part in str(error.value) for part in said) and "match_all" not in str(error.value)


@pytest.mark.parametrize("text", ["{{brand}}", "{{a=1}} {{a=2}}", "{{a?}} {{a=1}}", '{{a={"b": 1}}}', "{{a b?}}"])
def test_a_body_whose_variables_could_not_be_filled_is_refused_when_it_is_read(text: str, tmp_path: Path) -> None:
    body = {"query": {"match": {"title": "{{query}}"}}, "post_filter": {"term": {"x": text}}}
    (tmp_path / "body.json").write_text(json.dumps(body))
    with pytest.raises(ConfigError, match=r"default|variable"):
        read_body(tmp_path / "body.json")


def test_a_body_without_variables_stays_as_it_is(tmp_path: Path) -> None:
    body = {"query": {"match": {"title": "{{query}}"}}, "size": 3, "highlight": {"fields": {"title": {}}}, "sort": []}
    (tmp_path / "body.json").write_text(json.dumps(body))
    assert read_body(tmp_path / "body.json") == body == fill_variables(body, {})
    (tmp_path / "body.json").write_text(json.dumps(TEMPLATE))
    assert read_body(tmp_path / "body.json", as_template=True) == TEMPLATE
    assert read_body(tmp_path / "body.json")["size"] == 10


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab{}?=q"1', max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab{}", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("ab", max_size=3), JSON_VALUES, max_size=3), st.dictionaries(st.text("ab"), JSON_VALUES))
def test_whatever_is_given_is_filled_or_refused(template: dict[str, Any], values: dict[str, Any]) -> None:
    try:
        filled = fill_variables(template, values)
    except RerankerError:
        return
    json.dumps(filled)
    assert filled.keys() <= template.keys()


RULED = {
    "query": {"match": {"title": "{{query}}"}},
    "size": "{{size=10 in 1..100}}",
    "sort": ['{{order=price in ["price", "date"]}}'],
    "post_filter": {"bool": {"filter": [{"terms": {"brand": '{{brands? in ["a", "b"]}}'}}]}},
    "min_score": "{{least=-0.5 in -1.5..1}}",
}


def test_variables_have_ranges_and_lists_of_values() -> None:
    assert variables_of(RULED) == {"size": 10, "order": "price", "brands": None, "least": -0.5}
    filled = fill_variables(RULED, {"size": 100, "brands": ["b", "a"], "least": 1})
    assert (filled["size"], filled["min_score"]) == (100, 1)
    assert filled["post_filter"]["bool"]["filter"] == [{"terms": {"brand": ["b", "a"]}}]
    assert fill_variables(RULED, {})["size"] == 10


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 101}, "from 1 to 100"),
        ({"size": 0}, "from 1 to 100"),
        ({"size": True}, "type boolean"),
        ({"least": -1.6}, "from -1.5 to 1"),
        ({"brands": ["a", "c"]}, "one of a, b"),
        ({"brands": "c"}, "one of a, b"),
        ({"brands": {"a": 1}}, "type object"),
    ],
)
def test_values_that_a_rule_does_not_allow_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fill_variables(RULED, values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{size=200 in 1..100}}", "the default of the variable 'size'"),
        ("{{size=x in [1, }}", "the rule of 'size'"),
        ("{{size=1 in [1, x]}}", "not JSON"),
        ("{{a=1 in 1..2}} {{a=1}}", "two defaults or rules"),
    ],
)
def test_rules_that_contradict_themselves_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variables_of({"query": text})
