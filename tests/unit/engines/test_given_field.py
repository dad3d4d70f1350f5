"""Which fields of vectors can be read from an index, and how a new index maps them."""

from __future__ import annotations

from typing import Any

import pytest

from reranker.engines.given_field import check_given_field, given_field_mapping, given_field_problem, has_field
from reranker.engines.protocol import Engine, IndexInfo
from reranker.errors import ConfigError, EngineAuthError
from tests.engines.memory import memory_engine


def problem(properties: dict[str, Any], path: str = "e", **mapping: Any) -> str:
    return given_field_problem(IndexInfo("shop", properties, {**mapping, "properties": properties}), path)


@pytest.mark.parametrize(
    "definition",
    [
        {"type": "dense_vector"},
        {"type": "dense_vector", "element_type": "bfloat16", "index_options": {"type": "bbq_hnsw"}},
        {"type": "knn_vector", "dimension": 3},
        {"type": "float"},
        {"type": "object", "enabled": False},
        {"type": "object", "enabled": "false"},
    ],
)
def test_vectors_and_numbers_can_be_read(definition: dict[str, Any]) -> None:
    assert problem({"e": definition}) == ""
    assert problem({"a": {"properties": {"e": definition}}}, "a.e") == ""
    assert problem({}) == problem({"a": {"type": "object"}}, "a.e") == ""
    assert problem({"a": {"type": "object", "enabled": False}}, "a.e") == ""


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"type": "dense_vector", "element_type": "byte"}, "of byte elements"),
        ({"type": "dense_vector", "element_type": "bit"}, "of bit elements"),
        ({"type": "knn_vector", "data_type": "BYTE"}, "of byte elements"),
        ({"type": "alias", "path": "other"}, "alias of 'other': name that field"),
        ({"type": "semantic_text"}, "semantic_text, whose vectors are of parts of the text"),
        ({"type": "keyword"}, "has the type keyword, which is not that of vectors"),
        ({"properties": {"x": {"type": "float"}}}, "has the type object"),
    ],
)
def test_other_types_are_refused_with_a_remedy(definition: dict[str, Any], message: str) -> None:
    found = problem({"e": definition})
    assert "the field 'e' of index 'shop'" in found and message in found and "--vector-field" in found


@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        ({"enabled": False}, "e", "disables _source"),
        ({"mode": "disabled"}, "e", "disables _source"),
        ({"excludes": ["x", "a"]}, "a.e", "excludes the field from _source (x, a)"),
        ({"excludes": ["a.*"]}, "a.e", "excludes"),
        ({"includes": ["title"]}, "e", "only other fields in _source (title)"),
    ],
)
def test_a_field_that_is_not_returned_is_refused(source: dict[str, Any], path: str, message: str) -> None:
    found = problem({}, path, _source=source)
    assert f"index 'shop' does not return the field {path!r}" in found and message in found and "--docs" in found
    assert problem({}, "other", _source={"excludes": ["e"]}) == problem({}, "e", _source={"includes": ["e*"]}) == ""


def test_a_field_is_mapped_at_its_place() -> None:
    leaf = {"type": "float", "index": False, "doc_values": False}
    assert given_field_mapping("e") == {"e": leaf}
    assert given_field_mapping("a.e") == {"a": {"properties": {"e": leaf}}}
    assert has_field(given_field_mapping("a.e"), "a.e") and not has_field(given_field_mapping("a.e"), "a.f")
    assert has_field({"a": {"type": "keyword"}}, "a.e")


def test_the_check_of_an_index_names_it_and_passes_where_mappings_may_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine: Engine = memory_engine()
    engine.create_index("shop", {"properties": {"e": {"type": "keyword"}}})
    check_given_field(engine, "shop", "")
    check_given_field(engine, "nowhere", "e")
    with pytest.raises(ConfigError, match="the field 'e' of index 'shop'"):
        check_given_field(engine, "shop", "e")

    def forbidden(index: str) -> IndexInfo:
        raise EngineAuthError("the role may not read mappings", status=403)

    monkeypatch.setattr(engine, "index_info", forbidden)
    check_given_field(engine, "shop", "e")
