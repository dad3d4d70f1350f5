"""Impacts in requests: what is sent of a document, the clauses, and which analyzers a ``match`` may split by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines.analysis import stacking_part
from reranker.engines.impacts import (
    DOT,
    MAX_KEY_BYTES,
    digest_of_words,
    field_value,
    impacts_clause,
    key_of,
    match_clause,
    stored_words,
    with_impacts,
)
from reranker.errors import ConfigError, InputError

BODY: dict[str, Any] = {
    "query": {"bool": {"must": [{"match": {"text": "shoes"}}], "filter": [{"term": {"in_stock": True}}]}},
    "size": 5,
    "aggs": {"brands": {"terms": {"field": "brand"}}},
}
CLAUSE = {"term": {"impacts": {"value": "shoes", "boost": 2.0}}}


def kept_by_an_engine(value: float) -> float:
    """Return a weight as engines keep it: 9 bits of the float32, the others cut off."""
    bits = np.array([value], np.float32).view(np.int32) & ~0x7FFF
    return float(bits.view(np.float32)[0])


@given(st.floats(2.0**-19, 2.0**29, width=32))
def test_the_engine_cuts_a_sent_weight_to_the_nearest_value_that_it_can_keep(weight: float) -> None:
    (sent,) = stored_words({"a": weight}, "sparse_vector").values()
    assert len(f"{sent:.17g}".replace(".", "").split("e")[0].strip("0")) <= 17
    assert float(f"{sent:.4g}") == sent, "4 digits"
    kept = kept_by_an_engine(sent)
    assert abs(kept - weight) <= weight * 2**-9 * 1.001
    assert stored_words({"a": kept}, "sparse_vector") == {"a": sent}, "nothing changes when it is stored again"


def test_words_that_engines_refuse_are_left_out() -> None:
    words = {"a": 0.0, "b": -1.0, "c": float("nan"), "d": float("inf"), "e" * (MAX_KEY_BYTES + 1): 1.0, "\ud800": 1.0}
    assert stored_words({**words, "f": 1.0, "": 1.0}, "sparse_vector") == {"f": 1.0}
    assert stored_words({}, "sparse_vector") == {}
    assert field_value({}) == []
    assert field_value({"f": 1.0}) == [{"f": 1.0}]


def test_a_dot_is_written_in_another_way_where_it_would_find_nothing() -> None:
    assert key_of("node.js", "sparse_vector") == "node.js"
    assert key_of("node.js", "rank_features") == f"node{DOT}js"
    assert stored_words({"a.b": 1.0, f"a{DOT}b": 2.0}, "rank_features") == {f"a{DOT}b": 3.0}
    (clause,) = impacts_clause("impacts", "rank_features", ["node.js"])["bool"]["should"]
    assert clause == {"rank_feature": {"field": f"impacts.node{DOT}js", "boost": 1.0, "linear": {}}}


def test_a_clause_asks_for_each_word_once() -> None:
    clause = impacts_clause("impacts", "sparse_vector", ["a", "b", "a"], 2.5)
    assert [one["term"]["impacts"] for one in clause["bool"]["should"]] == [
        {"value": "a", "boost": 2.5},
        {"value": "b", "boost": 2.5},
    ]
    with pytest.raises(InputError, match="no word that the model counts"):
        impacts_clause("impacts", "sparse_vector", [])
    for boost in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="boost of impacts"):
            impacts_clause("impacts", "sparse_vector", ["a"], boost)
        with pytest.raises(ConfigError, match="boost of impacts"):
            match_clause("impacts", "a", "standard", boost)


def test_the_digest_tells_whether_anything_stored_differs() -> None:
    digests = {
        digest_of_words(words)
        for words in ({}, {"a": 1.0}, {"a": 1.001}, {"b": 1.0}, {"a": 1.0, "b": 1.0}, {"b": 1.0, "a": 1.0})
    }
    assert len(digests) == 6
    assert digest_of_words({"a": 1.0}) == digest_of_words({"a": 1.0})


def test_reordering_keeps_the_query_as_the_condition() -> None:
    body = with_impacts(BODY, CLAUSE, "reorder")
    assert body["query"] == {"bool": {"must": [BODY["query"]], "should": [CLAUSE]}}
    assert {name: body[name] for name in ("size", "aggs")} == {name: BODY[name] for name in ("size", "aggs")}


def test_finding_keeps_the_filters() -> None:
    body = with_impacts(BODY, CLAUSE, "find")
    assert body["query"]["bool"]["should"] == [BODY["query"], CLAUSE]
    assert body["query"]["bool"]["minimum_should_match"] == 1
    assert body["query"]["bool"]["filter"] == [{"bool": {"filter": [{"term": {"in_stock": True}}]}}]
    plain = with_impacts({"query": {"match": {"text": "shoes"}}}, CLAUSE, "find")
    assert "filter" not in plain["query"]["bool"]


@pytest.mark.parametrize(
    "body", [{}, {"query": None}, {"query": {"match_all": {}}, "knn": {}}, {"retriever": {}}, {"sub_searches": []}]
)
def test_a_body_that_searches_otherwise_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="add the clause by hand"):
        with_impacts(body, CLAUSE, "find")


def chain(**settings: Any) -> dict[str, Any]:
    return {"analyzer": "mine", **{f"index.analysis.{name}": value for name, value in settings.items()}}


CUSTOM = {"analyzer.mine.type": "custom", "analyzer.mine.tokenizer": "standard"}


@pytest.mark.parametrize(
    ("definition", "part"),
    [
        ({"analyzer": "standard"}, ""),
        ({"analyzer": "default"}, ""),
        ({"analyzer": "german"}, ""),
        ({"analyzer": "kuromoji"}, "kuromoji"),
        (chain(**CUSTOM, **{"analyzer.mine.filter": "['lowercase', 'stop']"}), ""),
        (chain(**CUSTOM, **{"analyzer.mine.filter": ["lowercase", "shingle"]}), "shingle"),
        (
            chain(**CUSTOM, **{"analyzer.mine.filter": ["lowercase", "ours"], "filter.ours.type": "synonym_graph"}),
            "ours",
        ),
        (chain(**CUSTOM, **{"analyzer.mine.filter": ["ours"], "filter.ours.type": "stemmer"}), ""),
        (
            chain(
                **CUSTOM,
                **{
                    "analyzer.mine.filter": ["ours"],
                    "filter.ours.type": "asciifolding",
                    "filter.ours.preserve_original": "true",
                },
            ),
            "ours",
        ),
        (chain(**{"analyzer.mine.type": "custom", "analyzer.mine.tokenizer": "edge_ngram"}), "edge_ngram"),
        (chain(**{"analyzer.mine.type": "english", "analyzer.mine.stopwords": "_none_"}), ""),
        (chain(**{"analyzer.mine.type": "nori"}), "mine"),
    ],
)
def test_parts_that_put_several_words_at_one_place_are_noticed(definition: dict[str, Any], part: str) -> None:
    assert stacking_part(definition) == part
