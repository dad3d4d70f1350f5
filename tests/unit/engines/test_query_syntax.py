"""What a query with a syntax asks for, as both engines read it; what is uncertain is not guessed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines.query_syntax import UnreadableQueryError, asked_text

SIMPLE = {
    "red boot": "red boot",
    "red -boot": "red",
    "red - boot": "red boot",
    "red --boot": "red boot",
    "red-boot": "red-boot",
    "red +boot | shoe": "red boot shoe",
    "red -(boot | shoe) hat": "red hat",
    "red -(boot hat": "red boot hat",
    '"red boot"~2 -"blue hat" shoe': "red boot shoe",
    'red "boot': "red boot",
    "red boo*": "red",
    "boo* *": "*",
    "boot~1 hat~": "boot hat",
    "-boot~1 hat": "hat",
    "\\-boot": "-boot",
    "boot\\*": "boot*",
    "()) red": "red",
    "(red (blue -green)) -(x)": "red blue",
    "-boot": "",
    "NOT boot title:red^2": "NOT boot title:red^2",
    "": "",
}
CLASSIC = {
    "red boot": "red boot",
    "red -boot": "red",
    "red - boot": "red boot",
    "red NOT boot": "red",
    "NOTHING AND ORDER": "NOTHING ORDER",
    "red !boot": "red",
    "red AND boot OR shoe": "red boot shoe",
    "red && boot || shoe": "red boot shoe",
    "title:red body:(blue -green) NOT (x y (z))": "red blue",
    'red^2 boot~1 "blue hat"~3^4': "red boot blue hat",
    "price:[1 TO 5] red": "red",
    "price:{* TO 5} price:>10 red": "red",
    "red boo* b?ot /bo[ot]+/": "red",
    "_exists_:title red": "red",
    "wi-fi c++ red\\-boot \\(x\\)": "wi-fi c++ red-boot (x)",
    'title:"red boot" -title:blue': "red boot",
    "+red +(boot hat)": "red boot hat",
    "-_exists_:title red": "red",
    "*:* red": "red",
}
UNCERTAIN = (
    'red "boot',
    "red (boot",
    "red boot)",
    "red AND",
    "red -",
    "a/b",
    "[1 TO",
    "red^x",
    "()",
    ":red",
    "red\\",
    "x:",
)


def template(kind: str, text: str = "{{query}}", **options: Any) -> dict[str, Any]:
    return {"query": {"bool": {"must": [{kind: {"query": text, "fields": ["title"], **options}}]}}}


@pytest.mark.parametrize("query", SIMPLE)
def test_simple_query_string(query: str) -> None:
    assert asked_text(template("simple_query_string"), query, "{{query}}") == SIMPLE[query]


@pytest.mark.parametrize("query", CLASSIC)
def test_query_string(query: str) -> None:
    assert asked_text(template("query_string"), query, "{{query}}") == CLASSIC[query]


@pytest.mark.parametrize("query", UNCERTAIN)
def test_what_query_string_refuses_is_not_guessed(query: str) -> None:
    with pytest.raises(UnreadableQueryError):
        asked_text(template("query_string"), query, "{{query}}")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"flags": "NONE"}, "red -boot (x)"),
        ({"flags": "OR|AND"}, "red -boot (x)"),
        ({"flags": "NOT|WHITESPACE"}, "red (x)"),
        ({"flags": "ALL"}, "red x"),
        ({"flags": -1}, "red x"),
        ({"flags": 0}, "red -boot (x)"),
    ],
)
def test_flags_enable_operators(options: dict[str, Any], expected: str) -> None:
    assert asked_text(template("simple_query_string", **options), "red -boot (x)", "{{query}}") == expected


def test_other_clauses_have_no_syntax() -> None:
    body = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title"]}}}
    assert asked_text(body, "red -boot", "{{query}}") == "red -boot"
    fixed = {"query": {"bool": {"must": [body["query"]], "filter": [{"query_string": {"query": "-tag:old"}}]}}}
    assert asked_text(fixed, "red -boot", "{{query}}") == "red -boot"
    assert asked_text(template("query_string", escape=True), "red -boot", "{{query}}") == "red -boot"


def test_a_clause_anywhere_in_the_body_decides() -> None:
    filtering = {"query": {"bool": {"filter": [{"simple_query_string": {"query": "{{query}}"}}]}}}
    assert asked_text({**filtering, "size": 3}, "red -boot", "{{query}}") == "red"
    both = {"query": {"bool": {"should": [{"match": {"title": "{{query}}"}}, *filtering["query"]["bool"]["filter"]]}}}
    assert asked_text(both, "red -boot", "{{query}}") == "red"


@pytest.mark.parametrize("text", ["-{{query}}", "x NOT ({{query}})", '-"{{query}}"', "/{{query}}/", "[{{query}} TO *]"])
def test_a_template_that_negates_the_query_is_not_guessed(text: str) -> None:
    with pytest.raises(UnreadableQueryError):
        asked_text(template("query_string", text), "red", "{{query}}")
    assert asked_text(template("query_string", "title:({{query}})^2"), "red -boot", "{{query}}") == "red"


def test_two_syntaxes_with_different_words_are_not_guessed() -> None:
    clauses = [{"simple_query_string": {"query": "{{query}}"}}, {"query_string": {"query": "{{query}}"}}]
    body = {"query": {"bool": {"should": clauses}}}
    assert asked_text(body, "red -boot", "{{query}}") == "red"
    with pytest.raises(UnreadableQueryError):
        asked_text(body, "red NOT boot", "{{query}}")


def test_deep_nesting_is_not_read() -> None:
    for kind in ("simple_query_string", "query_string"):
        with pytest.raises(UnreadableQueryError):
            asked_text(template(kind), "(" * 5000 + "red" + ")" * 5000, "{{query}}")


@given(st.text(st.sampled_from('ab -+|"()*~\\^:!/[]{}?&<>\ud83d'), max_size=30))
def test_any_text_is_read_or_refused(query: str) -> None:
    for kind in ("simple_query_string", "query_string"):
        try:
            asked = asked_text(template(kind), query, "{{query}}")
        except UnreadableQueryError:
            continue
        assert set(re.findall(r"[ab]", asked)) <= set(query)
