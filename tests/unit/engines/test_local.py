"""The parts of the embedded engines: queries parsed, sources filtered, writes decided, BM25 by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines import WriteOp
from reranker.engines.language import (
    MAX_NESTING,
    Bool,
    DisMax,
    FieldTable,
    MatchNone,
    Selection,
    Stored,
    Words,
    apply_write,
    merge_documents,
    parse_body,
    parse_query,
    standard_tokens,
    values_at,
)
from reranker.errors import EngineRejected, Unsupported
from tests.engines.memory import memory_engine, stored_length

TABLE = FieldTable({"properties": {"t": {"type": "text"}, "u": {"type": "text"}, "k": {"type": "keyword"}}})


def test_a_query_becomes_a_tree() -> None:
    query = {
        "bool": {
            "must": [{"multi_match": {"query": "Big big", "fields": ["t^2", "u"], "tie_breaker": 0.5}}],
            "must_not": {"match": {"t": {"query": "x y", "operator": "AND"}}},
        }
    }
    words = (("big", 2),)
    assert parse_query(query, TABLE) == Bool(
        must=(DisMax((Words("t", words, 1, boost=2.0), Words("u", words, 1, boost=1.0)), 0.5),),
        must_not=(Words("t", (("x", 1), ("y", 1)), 2),),
    )
    assert parse_query({"match": {"t": " "}}, TABLE) == MatchNone()


@pytest.mark.parametrize(
    ("rule", "least"),
    [(2, 2), ("2", 2), (-1, 3), ("75%", 3), ("-25%", 3), ("60%", 2), ("3<50%", 2), ("4<50%", 4), ("9", 9), ("0", 1)],
)
def test_minimum_should_match(rule: Any, least: int) -> None:
    node = parse_query({"match": {"t": {"query": "a b c d", "minimum_should_match": rule}}}, TABLE)
    assert isinstance(node, Words)
    assert node.minimum == least


@pytest.mark.parametrize(
    "body",
    [
        {"fields": 5},
        {"fields": [{"name": "t"}]},
        {"docvalue_fields": 5},
        {"docvalue_fields": ["t"]},
        {"docvalue_fields": [{"name": "t"}]},
        {"_source": {"includes": 5}},
        {"query": {"ids": {"values": 5}}},
        {"query": {"ids": {"values": None}}},
        {"query": {"multi_match": {"query": "x", "fields": 5}}},
        {"query": {"multi_match": {"query": "x", "fields": ["t", "u"], "tie_breaker": "often"}}},
        {"query": {"multi_match": {"query": "x", "fields": ["t", "u"], "tie_breaker": [1]}}},
    ],
)
def test_a_malformed_body_is_refused_not_a_crash(body: dict[str, Any]) -> None:
    with pytest.raises(EngineRejected):
        parse_body(body, TABLE)


@pytest.mark.parametrize("field", ["n", "unmapped"])
def test_a_number_of_400_digits_is_refused_by_itself(field: str) -> None:
    engine = memory_engine()
    engine.create_index("docs", {"properties": {"n": {"type": "double"}}})
    results = engine.bulk("docs", [WriteOp("index", "a", {field: 10**400}), WriteOp("index", "b", {field: 5})])
    assert [result.status for result in results] == [400, 201]
    with pytest.raises(EngineRejected):
        engine.search("docs", {"query": {"term": {field: 10**400}}})


def test_nesting_has_an_end() -> None:
    query: dict[str, Any] = {"match_all": {}}
    for _ in range(MAX_NESTING):
        query = {"bool": {"must": [query]}}
    parse_query(query, TABLE)
    with pytest.raises(EngineRejected, match="deeper"):
        parse_query({"bool": {"must": [query]}}, TABLE)


@pytest.mark.parametrize(
    ("mapping", "named"),
    [
        ({"properties": {"v": {"type": "dense_vector"}}}, "dense_vector"),
        ({"properties": {"t": {"type": "text", "analyzer": "english"}}}, "english"),
        ({"properties": {"t": {"type": "text", "copy_to": "u"}}}, "copy_to"),
        ({"properties": {"a": {"properties": {"n": {"type": "nested"}}}}}, "nested"),
        ({"_source": {"enabled": False}}, "_source"),
        ({"runtime": {}}, "runtime"),
        ({"dynamic": "runtime"}, "runtime"),
    ],
)
def test_mappings_are_not_half_understood(mapping: dict[str, Any], named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        memory_engine().create_index("docs", mapping)


def test_settings_are_not_half_understood() -> None:
    with pytest.raises(Unsupported, match="analysis"):
        memory_engine().create_index("docs", {}, {"analysis": {"analyzer": {"a": {"type": "standard"}}}})


def test_fields_are_limited() -> None:
    engine = memory_engine()
    engine.create_index("docs", {}, {"index.mapping.total_fields.limit": 10})
    (good, bad) = engine.bulk(
        "docs", [WriteOp("index", "a", {"x": 1}), WriteOp("index", "b", {f"f{n}": 1 for n in range(10)})]
    )
    assert (good.status, bad.status) == (201, 400)
    assert list(engine.index_info("docs").properties) == ["x"]


SOURCE = {"a": {"b": 1, "c": [{"d": 2, "e": 3}, {"d": 4}]}, "ab": 5, "f.g": 6}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("a.b", {"a": {"b": 1}}),
        (["a.c.d"], {"a": {"c": [{"d": 2}, {"d": 4}]}}),
        (["a*"], {"a": SOURCE["a"], "ab": 5}),
        ({"excludes": ["a.c"]}, {"a": {"b": 1}, "ab": 5, "f.g": 6}),
        ({"includes": ["a"], "excludes": ["*.e", "a.b"]}, {"a": {"c": [{"d": 2}, {"d": 4}]}}),
        (["f.g"], {"f.g": 6}),
        (["[a]", "?b"], {}),
    ],
)
def test_sources_are_filtered(option: Any, expected: Any) -> None:
    assert Selection.parse(option).apply(SOURCE) == expected


def test_values_at_a_path() -> None:
    assert list(values_at(SOURCE, "a.c.d")) == [2, 4]
    assert list(values_at(SOURCE, "f.g")) == [6]
    assert list(values_at(SOURCE, "a.x")) == []
    assert list(values_at({"a": None, "b": [[1], [2]]}, "b")) == [1, 2]


_objects = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6),
    max_size=3,
)


@given(_objects, _objects)
def test_merging_twice_is_merging_once(old: dict[str, Any], new: dict[str, Any]) -> None:
    merged = merge_documents(old, new)
    assert merge_documents(merged, new) == merged
    assert set(merged) == set(old) | set(new)
    assert merge_documents(old, {}) == old
    assert merge_documents({}, new) == new


def test_an_update_by_another_type_is_a_change() -> None:
    current = Stored("a", {"n": 1}, 0, 1)
    state, result = apply_write(WriteOp("update", "a", {"n": True}), current, 1)
    assert state is not None
    assert (state.source, result.seq_no) == ({"n": True}, 1)
    assert apply_write(WriteOp("update", "a", {"n": 1}), current, 1)[0] is None


def test_a_write_shares_nothing_with_its_caller() -> None:
    engine = memory_engine()
    engine.create_index("docs", {})
    source = {"list": ["a"]}
    engine.bulk("docs", [WriteOp("index", "a", source)])
    source["list"].append("b")
    (document,) = engine.get("docs", ["a"])
    assert document is not None
    assert document.source == {"list": ["a"]}


@pytest.mark.parametrize(("length", "kept"), [(0, 0), (39, 39), (40, 40), (41, 40), (42, 42), (100, 96), (1000, 984)])
def test_lengths_are_kept_in_one_byte(length: int, kept: int) -> None:
    assert stored_length(length) == kept


def test_stored_lengths_are_a_few_and_grow() -> None:
    kept = [stored_length(length) for length in range(20_000)]
    assert kept == sorted(kept)
    assert all(0 <= length - value <= length / 8 for length, value in enumerate(kept))
    assert len(set(kept)) < 256


def test_bm25_by_hand() -> None:
    texts = {"a": "x x y", "b": "x", "c": "y z z z", "d": ""}
    engine = memory_engine()
    engine.create_index("docs", {"properties": {"t": {"type": "text"}}})
    engine.bulk("docs", [WriteOp("index", name, {"t": text}) for name, text in texts.items()])
    # "d" has no word, so it does not count as having the field.
    counts = {name: Counter(text.split()) for name, text in texts.items() if text}
    mean = sum(sum(count.values()) for count in counts.values()) / len(counts)

    def score(name: str, words: str) -> float:
        total = 0.0
        for word in words.split():
            df = sum(word in count for count in counts.values())
            idf = math.log(1 + (len(counts) - df + 0.5) / (df + 0.5))
            tf = counts[name][word]
            total += idf * 2.2 * tf / (tf + 1.2 * (0.25 + 0.75 * sum(counts[name].values()) / mean))
        return total

    hits = engine.search("docs", {"query": {"match": {"t": "x z"}}}).hits
    assert {hit.id: hit.score for hit in hits} == pytest.approx({name: score(name, "x z") for name in "abc"})


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["x y", "x", "y y z", ""])), max_size=30))
def test_rewritten_documents_leave_no_trace(writes: list[tuple[str, str]]) -> None:
    """An index after any writes scores like a new index that got the last ones only."""
    mapping = {"properties": {"t": {"type": "text"}}}
    old, new = memory_engine(), memory_engine()
    for engine in (old, new):
        engine.create_index("docs", mapping)
    for name, text in writes:
        old.bulk("docs", [WriteOp("index", name, {"t": text}) if text else WriteOp("delete", name)])
    last = {name: text for name, text in writes if text}
    kept = {name: text for name, text in last.items() if dict(writes)[name]}
    new.bulk("docs", [WriteOp("index", name, {"t": text}) for name, text in kept.items()])
    body = {"query": {"match": {"t": "x z"}}}
    before = {hit.id: hit.score for hit in old.search("docs", body).hits}
    assert before == pytest.approx({hit.id: hit.score for hit in new.search("docs", body).hits})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's U.S.A. 3.14, wi-fi foo_bar", ["it's", "u.s.a", "3.14", "wi", "fi", "foo_bar"]),
        ("a:b 1:2 1,000.5 x1.5 _ __ _a", ["a:b", "1", "2", "1,000.5", "x1.5", "_a"]),
        ("日本語テスト ひらがな", ["日", "本", "語", "テスト", "ひ", "ら", "が", "な"]),
        ("नमस्ते e\u0301t\u00e9 x² ①", ["नमस्ते", "e\u0301t\u00e9", "x"]),
        ("สวัสดีab", ["สวัสดี", "ab"]),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert standard_tokens(text) == words


def test_long_words_are_cut() -> None:
    assert [len(word) for word in standard_tokens("x" * 600)] == [255, 255, 90]


@given(st.text(alphabet="aZ09_.:,'-é日\u0301 \n", max_size=40))
def test_words_do_not_depend_on_what_stands_past_a_space(text: str) -> None:
    assert standard_tokens(f"ascii {text} é日") == ["ascii", *standard_tokens(text), "é", "日"]
