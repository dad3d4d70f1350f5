"""The text view: what a document's fields read like, weights, cuts, and the hash of the source texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.errors import ConfigError
from reranker.text.view import FieldSpec, TextView

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text()
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "b", "a.b", ""]), inner),
    max_leaves=20,
)


def read(source: dict[str, Any], *paths: str, **options: Any) -> tuple[str, ...]:
    return TextView.parse(paths, **options).texts(source)


def test_default_fields() -> None:
    assert [spec.path for spec in TextView().fields] == ["title", "text"]
    assert TextView().texts({"text": "b", "title": "a", "other": "c"}) == ("a", "b")


@pytest.mark.parametrize(
    ("source", "path", "expected"),
    [
        ({"a": {"b": {"c": "deep"}}}, "a.b.c", "deep"),
        ({"a": ["x", "y"]}, "a", "x\ny"),
        ({"a": [{"b": "x"}, {"b": ["y", "z"]}, {"c": 1}]}, "a.b", "x\ny\nz"),
        ({"a": [["x"], [["y"]]]}, "a", "x\ny"),
        ({"a.b": "dotted"}, "a.b", "dotted"),
        ({"a": {"b.c": "half"}}, "a.b.c", "half"),
        ({"a": 2022}, "a", "2022"),
        ({"a": 6.5}, "a", "6.5"),
        ({"a": True}, "a", "true"),
        ({"a": [False, None, 0]}, "a", "false\n0"),
        ({"a": None}, "a", ""),
        ({"a": float("nan")}, "a", ""),
        ({"a": {"y": 2, "x": "1"}}, "a", "1\n2"),
        ({"a": "text"}, "a.b", ""),
        ({}, "a", ""),
        ({"a": b"bytes"}, "a", ""),
        ({"a": 10**5000}, "a", ""),
    ],
)
def test_values_become_text(source: dict[str, Any], path: str, expected: str) -> None:
    assert read(source, path) == (expected,)


def test_a_cut_makes_no_half_word() -> None:
    assert read({"a": "alpha beta gamma"}, "a", max_chars=13) == ("alpha beta ",)
    assert read({"a": "alpha beta gamma"}, "a", max_chars=10) == ("alpha beta",)
    assert read({"a": "alpha beta gamma"}, "a", max_chars=11) == ("alpha beta ",)
    assert read({"a": "abcdefgh"}, "a", max_chars=3) == ("abc",)
    assert read({"a": "x" * 300 + " tail"}, "a", max_chars=299) == ("x" * 299,)


def test_html_is_stripped_before_the_cut() -> None:
    assert read({"a": "<p class='long attribute'>one</p>two"}, "a", strip_html=True, max_chars=4) == ("\none",)


def test_very_deep_sources_do_not_end_the_run() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    assert read({"a": deep}, "a") == ("",)


def test_weights() -> None:
    view = TextView.parse(["title^2.5", "text"])
    assert view.weights == (2.5, 1.0)
    assert view.fields[1].weight is None
    assert view.with_weights([3, 0.5]).weights == (3.0, 0.5)
    with pytest.raises(ConfigError, match="1 weights for 2 fields"):
        view.with_weights([1.0])


@pytest.mark.parametrize(
    "fields", [[], [""], ["a..b"], [".a"], ["a", "a^2"], ["a^x"], ["a^"], ["a^0"], ["a^-1"], ["a^nan"], ["a^inf"]]
)
def test_illegal_fields_are_refused(fields: list[str]) -> None:
    with pytest.raises(ConfigError):
        TextView.parse(fields)


@pytest.mark.parametrize("options", [{"max_chars": 0}, {"max_chars": True}, {"max_chars": 1.5}, {"strip_html": 1}])
def test_illegal_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TextView(**options)


def test_json_round_trip() -> None:
    view = TextView.parse(["title^2", "a.b"], strip_html=True, max_chars=7)
    assert TextView.from_json(json.loads(json.dumps(view.to_json()))) == view


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        None,
        {"fields": 3},
        {"fields": []},
        {"fields": [{"path": 1}]},
        {"fields": [{"path": "a", "weight": "2"}]},
        {"fields": [{"path": "a", "colour": "red"}]},
        {"fields": [{"path": "a"}], "colour": "red"},
        {"fields": ["title"]},
    ],
)
def test_hostile_json_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        TextView.from_json(value)


def test_the_source_hash_of_a_known_text() -> None:
    # 64 bits of BLAKE2b over <8 bytes length, little endian><UTF-8> of "a" and of "b": stored beside every vector,
    # so it may never change.
    assert TextView().source_hash({"title": "a", "text": "b"}) == "cfb9cbd0aeeea44e"


def test_the_source_hash_changes_with_the_texts_of_the_view_only() -> None:
    view = TextView()
    first = view.source_hash({"title": "a", "text": "bc"})
    assert view.source_hash({"title": "a", "text": "bc", "price": 3}) == first
    assert view.source_hash({"title": "ab", "text": "c"}) != first
    assert view.source_hash({"title": "a", "text": "bd"}) != first


@given(JSON, st.sampled_from(["a", "a.b", "a.b.a", "b.a"]))
def test_any_source_gives_a_text_and_a_hash(value: Any, path: str) -> None:
    view = TextView((FieldSpec(path),))
    assert isinstance(view.texts({"a": value})[0], str)
    assert len(view.source_hash({"a": value, "b": "\ud800"})) == 16
