"""Words with weights in the embedded engine: what is stored of a weight, what is refused, and how clauses add up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.engines import WriteOp, open_engine
from reranker.engines.impacts import impacts_clause, stored_words
from reranker.engines.language import DocumentRefusedError, FieldTable
from reranker.engines.protocol import Engine
from reranker.engines.weight_bits import LARGEST, LOWEST, scored_words, text_of_weights
from reranker.errors import EngineRejected, Unsupported
from tests.engines.memory import memory_engine
from tests.seeds import seeded_rng

MAPPING = {"properties": {"t": {"type": "text"}, "k": {"type": "keyword"}, "words": {"type": "rank_features"}}}
ODD_WORDS = (
    *(
        "new york",
        " ",
        "\t",
        "a\nb",
        "\x0b",
        "\x0c",
        "\x85",
        "\xa0",
        "\u2028",
        "a\\sb",
        "a b",
        "\\",
        "\\s",
        "a\0b",
        "\0",
    ),
    *(
        "emoji \U0001f600\u200d",
        "\U0001f600",
        "漢字",
        "a^2",
        "*",
        '"',
        "A",
        "a",
        "a0",
        "a_",
        "0",
        "x" * 4000,
        "é",
        "e\u0301",
    ),
)


def feature(name: str, boost: float = 1.0) -> dict[str, Any]:
    return {"rank_feature": {"field": name, "boost": boost, "linear": {}}}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = open_engine(f"tantivy:{tmp_path}")
    engine.create_index("docs", MAPPING)
    return engine


def write(engine: Engine, **documents: Mapping[str, Any]) -> list[int]:
    results = engine.bulk("docs", [WriteOp("index", name, source) for name, source in documents.items()])
    engine.refresh("docs")
    return [result.status for result in results]


def scores(engine: Engine, query: Mapping[str, Any]) -> dict[str, float]:
    return {hit.id: hit.score or 0.0 for hit in engine.search("docs", {"query": query, "size": 1000}).hits}


def kept(weight: float) -> float:
    """Return what the real engines keep of a weight: the highest 16 of the 32 bits of a float, without the sign."""
    bits = np.array([weight], np.float32).view(np.int32) & ~0x7FFF
    return float(bits.view(np.float32)[0])


def sum_of(word: str, weight: float) -> float:
    """Return the sum of the scores of those words of the text that a query asks for."""
    text = text_of_weights({word: weight}).split(" ")
    assert len(set(text)) == len(text) <= 9
    values = dict(scored_words(word))
    return math.fsum(values[token] for token in text)


def test_nine_bits_are_kept_as_in_the_real_engines() -> None:
    rng = seeded_rng(3)
    weights = [*np.exp2(rng.uniform(-20, 20, 2000)), *np.exp2(np.arange(-20, 20.0)), 0.1, 3.11, 511.0, 513.0, LARGEST]
    for weight in np.array(weights, np.float32).tolist():
        assert sum_of("word", weight) == kept(weight)
        assert weight * (1 - 2**-8) < sum_of("word", weight) <= weight


def test_a_rounded_weight_is_stored_as_it_was_sent() -> None:
    rng = seeded_rng(4)
    sent = stored_words(
        {f"w{n}": weight for n, weight in enumerate(np.exp2(rng.uniform(-19, 19, 500)))}, "rank_features"
    )
    for weight in sent.values():
        assert sum_of("word", weight) == kept(weight)


@pytest.mark.parametrize(
    ("weight", "stored"),
    [
        (2.0**-126, 2.0**LOWEST),
        (2.0**LOWEST * 2.9, 2.0**LOWEST * 2),
        (2.0**20, LARGEST),
        (3.4e38, LARGEST),
        (LARGEST * 1.0001, LARGEST),
    ],
)
def test_beyond_the_bits_a_weight_is_the_nearest_that_there_is(weight: float, stored: float) -> None:
    assert sum_of("word", weight) == stored


def test_the_engine_finds_each_word_with_its_weight_and_no_other(engine: Engine) -> None:
    words = {word: 0.5 + number * 0.25 for number, word in enumerate(ODD_WORDS)}
    assert write(engine, all={"words": words}, none={"words": []}, other={"words": {"other": 1.0}}) == [201] * 3
    for word, weight in words.items():
        assert scores(engine, feature(f"words.{word}")) == {"all": weight}, repr(word)
    for missing in ("", "b", "york", "s", "a ", "\ud83d", "A0"):
        assert scores(engine, feature(f"words.{missing}")) == {}


def test_the_score_is_the_boost_times_the_weight_within_the_last_bit(engine: Engine) -> None:
    rng = seeded_rng(5)
    weights = dict(zip("abcdefghij", np.exp(rng.uniform(np.log(1e-4), np.log(1e3), 10)).tolist(), strict=True))
    write(engine, one={"words": [weights]})
    for boost in (1.0, 0.37, 2.5e-3, 1e4):
        for word, weight in weights.items():
            assert scores(engine, feature(f"words.{word}", boost))["one"] == pytest.approx(boost * weight, rel=2**-8)
            assert scores(engine, feature(f"words.{word}", boost))["one"] == pytest.approx(
                boost * kept(weight), rel=1e-6
            )
        clause = impacts_clause("words", "rank_features", list(weights), boost)
        expected = boost * sum(map(kept, weights.values()))
        assert scores(engine, clause)["one"] == pytest.approx(expected, rel=1e-6)


def test_thousands_of_words(engine: Engine) -> None:
    words = {f"w{number}": 1.0 + number / 4096 for number in range(5000)}
    write(engine, one={"words": words})
    assert scores(engine, feature("words.w4999")) == {"one": kept(words["w4999"])}
    clause = impacts_clause("words", "rank_features", list(words)[:300])
    assert scores(engine, clause)["one"] == pytest.approx(sum(kept(words[f"w{n}"]) for n in range(300)), rel=1e-5)


def test_in_a_bool_it_is_a_clause_like_others(engine: Engine) -> None:
    write(
        engine,
        a={"t": "red", "k": "x", "words": {"p": 2.0, "q": 1.5}},
        b={"t": "red", "k": "y", "words": {"p": 1.0}},
        c={"t": "blue", "k": "x", "words": {"q": 4.0}},
        d={"t": "red"},
    )
    p, q, boosted = feature("words.p"), feature("words.q"), feature("words.q", 10.0)
    tag: dict[str, Any] = {"term": {"k": "x"}}
    everything: dict[str, Any] = {"match_all": {}}
    assert scores(engine, {"bool": {"must": [p, q]}}) == {"a": 3.5}
    assert scores(engine, {"bool": {"should": [p, boosted]}}) == {"a": 17.0, "b": 1.0, "c": 40.0}
    assert scores(engine, {"bool": {"should": [p, q], "boost": 2.0}}) == {"a": 7.0, "b": 2.0, "c": 8.0}
    assert scores(engine, {"bool": {"should": [p, p]}}) == {"a": 4.0, "b": 2.0}
    for least in (2, "100%"):
        assert scores(engine, {"bool": {"should": [p, q], "minimum_should_match": least}}) == {"a": 3.5}
    assert scores(engine, {"bool": {"should": [p, tag], "minimum_should_match": 2}}) == {"a": 3.0}
    assert scores(engine, {"bool": {"filter": [p]}}) == {"a": 0.0, "b": 0.0}
    assert scores(engine, {"bool": {"filter": [tag], "should": [p]}}) == {"a": 2.0, "c": 0.0}
    assert scores(engine, {"bool": {"must": [everything], "must_not": [p]}}) == {"c": 1.0, "d": 1.0}
    assert scores(engine, {"bool": {"must": [everything], "should": [q]}}) == {"a": 2.5, "b": 1.0, "c": 5.0, "d": 1.0}
    assert scores(engine, feature("words.p", 0.0)) == {"a": 0.0, "b": 0.0}
    assert engine.count("docs", p) == 2
    assert {d.id for batch in engine.scan("docs", query=q) for d in batch} == {"a", "c"}


@pytest.mark.parametrize(
    "weight", [0, 0.0, -0.0, -1.0, 1e-300, 1e39, 10**400, "x", "", "nan", "inf", True, [1.0], {"b": 1.0}]
)
def test_a_weight_that_is_not_one_is_refused_with_its_word_and_the_rule(engine: Engine, weight: Any) -> None:
    good, bad = engine.bulk(
        "docs",
        [
            WriteOp("index", "good", {"words": {"a": 1}}),
            WriteOp("index", "bad", {"words": {"b": 1.0, "apple": weight}}),
        ],
    )
    assert (good.status, bad.status) == (201, 400)
    assert all(part in bad.reason for part in ("'words'", "'apple'", repr(weight)[:80], "finite and above 0"))
    assert engine.get("docs", ["bad"]) == [None]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_weight_that_json_cannot_write_is_refused(engine: Engine, number: float) -> None:
    (refused,) = engine.bulk("docs", [WriteOp("index", "1", {"words": {"a": number}})])
    assert refused.status == 400
    assert "cannot be encoded as JSON" in refused.reason
    with pytest.raises(DocumentRefusedError, match=f"weight {number!r} for the word 'a': .* finite and above 0"):
        FieldTable(MAPPING).extract({"words": {"a": number}})


@pytest.mark.parametrize("value", ["apple", 1.0, True, None, ["apple"], [None], [{"a": 1.0}, 2.0]])
def test_a_value_that_is_no_map_is_refused(engine: Engine, value: Any) -> None:
    (refused,) = engine.bulk("docs", [WriteOp("index", "1", {"words": value})])
    assert refused.status == 400
    assert "map of words to weights" in refused.reason


def test_other_faults_of_a_document_are_refused(engine: Engine) -> None:
    faults: dict[str, dict[str, Any]] = {
        "two weights": {"words": [{"a": 1.0}, {"a": 2.0}]},
        "1 to 32,000 bytes": {"words": {"": 1.0}},
        "has the word 'xxx": {"words": {"x" * 32_001: 1.0}},
        "has the word 'ééé": {"words": {"é" * 16_001: 1.0}},
        "field 'words' holds a value": {"words.a": 1.0},
        "cannot be encoded as JSON": {"words": {"\ud83d": 1.0}},
    }
    for reason, source in faults.items():
        (refused,) = engine.bulk("docs", [WriteOp("index", "1", source)])
        assert refused.status == 400
        assert reason in refused.reason
    long = {"x" * 32_000: 1.0, " " * 32_000: 2.0}
    assert write(engine, long={"words": long}) == [201]
    assert [scores(engine, feature(f"words.{word}")) for word in long] == [{"long": 1.0}, {"long": 2.0}]


def test_what_the_real_engines_take_is_taken(engine: Engine) -> None:
    """A number in a string, a word whose weight is null, and a list of maps of different words."""
    assert write(engine, a={"words": {"p": "1.5", "q": None}}, b={"words": [{"p": 1}, {"q": 2}]}) == [201, 201]
    assert scores(engine, feature("words.p")) == {"a": 1.5, "b": 1.0}
    assert scores(engine, feature("words.q")) == {"b": 2.0}


def test_a_word_with_a_dot_is_stored_and_not_found_as_in_the_real_engines(engine: Engine) -> None:
    assert write(engine, a={"words": {"node.js": 1.0, "js": 2.0}}) == [201]
    assert scores(engine, feature("words.node.js")) == {}
    assert scores(engine, feature("words.js")) == {"a": 2.0}
    assert scores(engine, impacts_clause("words", "rank_features", ["node.js"])) == {}, "its dot is written differently"
    write(engine, a={"words": stored_words({"node.js": 1.0}, "rank_features")})
    assert scores(engine, impacts_clause("words", "rank_features", ["node.js"])) == {"a": 1.0}


def test_a_field_inside_of_an_object(tmp_path: Path) -> None:
    engine = open_engine(f"tantivy:{tmp_path}")
    engine.create_index("docs", {"properties": {"o": {"properties": {"words": {"type": "rank_features"}}}}})
    assert write(engine, a={"o": {"words": {"p": 1.0}}}, b={"o.words": {"p": 2.0}}) == [201, 201]
    assert scores(engine, feature("o.words.p")) == {"a": 1.0, "b": 2.0}
    with pytest.raises(Unsupported, match=r"exists on field 'o.words'"):
        engine.count("docs", {"exists": {"field": "o"}})


BOOSTED = {"field": "words.a", "boost": 1.0}
UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "saturation": ({"rank_feature": {**BOOSTED, "saturation": {}}}, "'saturation'"),
    "log": ({"rank_feature": {**BOOSTED, "log": {"scaling_factor": 1}}}, "'log'"),
    "sigmoid": ({"rank_feature": {**BOOSTED, "sigmoid": {"pivot": 1, "exponent": 1}}}, "'sigmoid'"),
    "two functions": ({"rank_feature": {**BOOSTED, "linear": {}, "log": {"scaling_factor": 1}}}, "'log'"),
    "no function": ({"rank_feature": BOOSTED}, "without a function.*linear"),
    "option of linear": ({"rank_feature": {**BOOSTED, "linear": {"pivot": 1}}}, "'pivot'"),
    "neural_sparse": ({"neural_sparse": {"words": {"query_tokens": {"a": 1.0}}}}, "'neural_sparse'.*rank_feature"),
    "term": ({"term": {"words": "a"}}, "term on field 'words' of type rank_features.*rank_feature"),
    "terms": ({"terms": {"words": ["a"]}}, "terms on field 'words'"),
    "match": ({"match": {"words": "a"}}, "match on field 'words'"),
    "multi_match": ({"multi_match": {"query": "a", "fields": ["t", "words^2"]}}, "match on field 'words'"),
    "exists": ({"exists": {"field": "words"}}, "exists on field 'words'"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_other_clauses_are_refused_by_name(engine: Engine, case: str) -> None:
    query, named = UNSUPPORTED[case]
    for wanted in (query, {"bool": {"must": [{"match": {"t": "x"}}], "should": [query]}}):
        with pytest.raises(Unsupported, match=named):
            engine.search("docs", {"query": wanted})


@pytest.mark.parametrize(
    "clause",
    [
        {"field": "words", "linear": {}},
        {"field": "t", "linear": {}},
        {"field": None, "linear": {}},
        {"linear": {}},
        {"field": "words.a", "linear": True},
        {"field": "words.a", "linear": {}, "boost": -1},
        {"field": "words.a", "linear": {}, "boost": "nan"},
    ],
)
def test_a_malformed_clause_is_refused(engine: Engine, clause: Any) -> None:
    with pytest.raises(EngineRejected) as refused:
        engine.search("docs", {"query": {"rank_feature": clause}})
    assert refused.value.status == 400


def test_a_word_of_no_such_field_finds_nothing_as_in_the_real_engines(engine: Engine) -> None:
    write(engine, a={"t": "x", "words": {"x": 1.0}})
    for name in ("absent.x", "t.x", "absent", "words.y"):
        assert scores(engine, feature(name)) == {}
        assert scores(engine, {"bool": {"should": [feature(name), {"match_all": {}}]}}) == {"a": 1.0}


@pytest.mark.parametrize(
    "definition",
    [
        {"type": "rank_features", "positive_score_impact": False},
        {"type": "rank_features", "index": False},
        {"type": "rank_features", "fields": {"raw": {"type": "keyword"}}},
        {"type": "keyword", "fields": {"words": {"type": "rank_features"}}},
        {"type": "sparse_vector"},
    ],
)
def test_other_mappings_are_refused(engine: Engine, definition: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        engine.put_properties("docs", {"more": definition})


def test_other_parts_of_the_engine_refuse_the_field(engine: Engine) -> None:
    with pytest.raises(EngineRejected, match="no field 'words' for analysis"):
        engine.analyze("docs", "words", ["a"])
    with pytest.raises(EngineRejected, match="no doc values"):
        engine.search("docs", {"docvalue_fields": ["words"]})
    with pytest.raises(EngineRejected, match="cannot become"):
        engine.put_properties("docs", {"words": {"type": "keyword"}})
    write(engine, a={"words": [{"p": 1.0}]})
    (hit,) = engine.search("docs", {"fields": ["words"], "_source": ["words"]}).hits
    assert (hit.source, hit.fields) == ({"words": [{"p": 1.0}]}, {"words": [{"p": 1.0}]})


def test_an_index_without_the_field_keeps_its_search_copy_when_the_field_is_added(tmp_path: Path) -> None:
    engine = open_engine(f"tantivy:{tmp_path}")
    engine.create_index("docs", {"properties": {"t": {"type": "text"}}})
    write(engine, a={"t": "apple"})
    copies = sorted(path.name for path in tmp_path.glob("docs.*/search-*/*.store"))
    engine.put_properties("docs", {"words": {"type": "rank_features"}})
    assert scores(engine, feature("words.p")) == {}
    assert write(engine, b={"words": {"p": 1.5}}) == [201]
    assert copies
    assert set(copies) <= {path.name for path in tmp_path.glob("docs.*/search-1/*.store")}
    other = open_engine(f"tantivy:{tmp_path}")
    for one in (engine, other):
        assert scores(one, feature("words.p")) == {"b": 1.5}
        assert set(scores(one, {"match": {"t": "apple"}})) == {"a"}


def test_more_fields_than_slots(engine: Engine) -> None:
    write(engine, old={"words": {"p": 3.0}})
    engine.put_properties("docs", {f"words{number}": {"type": "rank_features"} for number in range(40)})
    source = {f"words{number}": {"p": number + 1} for number in range(40)}
    assert write(engine, wide={"words": {"p": 0.5}, **source}) == [201]
    assert scores(engine, feature("words.p")) == {"old": 3.0, "wide": 0.5}
    for number in range(40):
        assert scores(engine, feature(f"words{number}.p")) == {"wide": number + 1.0}


def test_a_rebuilt_copy_has_the_weights(engine: Engine, tmp_path: Path) -> None:
    write(engine, a={"words": {"p": 1.5}})
    engine.close()
    (meta,) = tmp_path.glob("docs.*/search-1/meta.json")
    meta.write_text("{")
    assert scores(open_engine(f"tantivy:{tmp_path}"), feature("words.p")) == {"a": 1.5}


def test_an_engine_without_weighted_words_refuses_the_clause() -> None:
    engine = memory_engine()
    engine.create_index("docs", MAPPING)
    assert engine.capabilities().sparse_terms == ""
    with pytest.raises(Unsupported, match="no words with weights"):
        engine.search("docs", {"query": feature("words.a")})
