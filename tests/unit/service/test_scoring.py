"""Scores and orders of documents given as texts or ids."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.deadline import Deadline
from reranker.errors import EngineUnavailable
from reranker.models.ranking_model import RankingModel
from reranker.records import Reason, ReasonKind, SearchAnswer
from reranker.service.rerank_api import (
    BATCH,
    BATCH_CHARS,
    IndexedDocuments,
    Item,
    Scoring,
    batches,
    items_of,
    n_chars,
    relevance,
    score_items,
    text_field,
)
from reranker.text.view import TextView
from tests.engines.memory import memory_engine
from tests.served import Served, model_of, random_documents, serve
from tests.unit.small_models import DOCUMENTS, GIVEN, small_model, with_given_vectors

QUERY = "word1 word7 word12 word3"
VIEW = TextView.parse(["title^2", "text"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    documents = random_documents(120)
    return serve(memory_engine(), "docs", tmp_path_factory.mktemp("scoring"), documents, model_of(documents))


def search_of(served: Served) -> Any:
    return lambda body, timeout_s: served.engine.search(served.index, body, timeout_s=timeout_s)


def texts(*sources: Mapping[str, Any]) -> list[Item]:
    return [Item(source=source) for source in sources]


def dense_score(model: RankingModel, query: str, source: Mapping[str, Any]) -> float:
    """Return f(q, d) from full matrices, word by word: the formula, and none of the code under test."""
    q = model.encode_queries([query]).rows
    encoded = model.encoder.encode([source])
    words = len(model.U)
    q_known = np.asarray(q[:, :words].todense())[0]
    value = float((q_known @ model.U).astype(np.float64) @ encoded.vectors[0].astype(np.float64))
    return value + model.identity * float(q.multiply(encoded.rows).sum())


def test_a_text_scores_by_the_formula() -> None:
    model = small_model()
    query = "ash wood P-4711x zebra"
    found = score_items(model, query, texts(*(DOCUMENTS[:4] + DOCUMENTS[5:])))
    expected = [dense_score(model, query, source) for source in DOCUMENTS[:4] + DOCUMENTS[5:]]
    assert found.scores == pytest.approx(expected, abs=1e-5)
    assert list(found.order) == sorted(range(5), key=lambda place: -expected[place])
    assert (found.n_stored, found.n_encoded, found.n_unscored, found.reason) == (0, 5, 0, None)


@pytest.mark.parametrize("beside", [True, False])
def test_an_id_scores_as_its_document_does(served: Served, beside: bool) -> None:
    ids = [*list(served.documents)[::-3], "d0", "d0"]
    indexed = IndexedDocuments(served.store if beside else None, None if beside else search_of(served))
    by_id = score_items(served.model, QUERY, [Item(id=name) for name in ids], indexed=indexed)
    by_text = score_items(served.model, QUERY, texts(*(served.documents[name] for name in ids)))
    assert by_id.scores == pytest.approx(by_text.scores, abs=1e-6)
    assert by_id.n_stored == len(ids) and by_id.n_encoded == 0
    assert len(set(np.round(by_id.scores, 6))) > 20


def test_relevance_is_the_logistic_function_of_f() -> None:
    scores = np.array([0.0, np.log(3.0), -np.log(3.0), 800.0, -800.0, np.nan])
    assert list(relevance(scores)) == [0.5, 0.75, 0.25, 1.0, 0.0, 0.0]


@given(st.lists(st.floats(-20, 10, width=32), min_size=2, max_size=50, unique=True))
def test_relevance_keeps_scores_apart_and_short(values: list[float]) -> None:
    scores = np.sort(np.array(values))
    gaps = np.diff(scores) > 1e-4
    found = relevance(scores)
    # 12 decimals: further down the tail scores are told apart by their order in the answer alone.
    assert np.all(np.diff(found) >= 0) and np.all(np.diff(found)[gaps & (scores[:-1] > -10)] > 0)
    assert max(len(repr(value)) for value in found.tolist()) <= 18


@pytest.mark.parametrize(
    ("document", "are_ids", "rank_fields", "expected"),
    [
        ("some text", False, (), Item(source={"text": "some text"})),
        ("d1", True, (), Item(id="d1")),
        ({"id": "d1"}, False, (), Item(id="d1")),
        ({"_id": "d1"}, False, (), Item(id="d1")),
        ({"id": "d1", "text": None}, False, (), Item(id="d1")),
        ({"id": "d1", "text": "x"}, False, (), Item(source={"text": "x"})),
        ({"id": "d1", "text": "x"}, True, (), Item(id="d1", source={"text": "x"})),
        ({"title": "t", "text": "x", "n": 3}, False, (), Item(source={"title": "t", "text": "x", "n": 3})),
        ({"heading": "h", "author": "a"}, False, (), Item(source={"text": ["h", "a"]})),
        ({"id": 7, "heading": "h"}, False, (), Item(source={"text": ["h"]})),
        ({"id": 7}, False, (), Item(id="7")),
        ({"_id": 7, "text": "x"}, True, (), Item(id="7", source={"text": "x"})),
        ({"id": True, "text": "x"}, True, (), Item(source={"text": "x"})),
        ({"title": "t", "text": "x"}, False, ("title",), Item(source={"title": "t"})),
        (
            {"title": "t", "note": "n", "text": "x"},
            False,
            ("title", "note"),
            Item(source={"title": "t", "note": "n", "text": ["", "n"]}),
        ),
        ({"note": "n", "text": "x"}, False, ("note",), Item(source={"text": ["n"]})),
        ({}, False, (), Item(source={"text": []})),
    ],
)
def test_what_a_document_of_a_request_is(
    document: Any, are_ids: bool, rank_fields: tuple[str, ...], expected: Item
) -> None:
    assert items_of([document], VIEW, are_ids=are_ids, rank_fields=rank_fields) == [expected]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [(["title^2", "text"], "text"), (["body", "title"], "body"), (["name", "about"], "about"), (["one"], "one")],
)
def test_where_a_plain_text_belongs(fields: list[str], expected: str) -> None:
    assert text_field(TextView.parse(fields)) == expected


def test_a_text_has_no_given_vector_unless_the_object_has_it() -> None:
    model = with_given_vectors(small_model())
    assert model.encoder.vector_field is not None
    source = {"title": "ash tree", "text": "hard grey wood"}
    n_given = model.encoder.vector_field.n_dims
    query = "tall ash tree"
    plain, vector, bare = score_items(model, query, texts(source, {**source, "vector": GIVEN[0]}, source)).scores
    asked = model.encode_queries([query]).vectors[0]
    added = model.encoder.encode([{**source, "vector": GIVEN[0]}]).vectors[0, -n_given:]
    assert plain == bare and added.any()
    assert vector - plain == pytest.approx(float(asked[-n_given:] @ added), abs=1e-6)
    only = score_items(model, query, texts({"vector": GIVEN[0]}))
    assert only.scores[0] == pytest.approx(float(asked[-n_given:] @ added), abs=1e-6)


@pytest.mark.parametrize("vector", ["none", [1.0, 2.0], [1.0, 2.0, 3.0, float("nan")], {"x": 1}, [[1.0]]])
def test_a_vector_that_cannot_be_used_is_left_out_with_a_warning(vector: Any) -> None:
    model = with_given_vectors(small_model())
    source = {"title": "ash tree", "text": "hard grey wood"}
    expected = score_items(model, "tall ash tree", texts(source, source))
    found = score_items(model, "tall ash tree", texts(source, {**source, "vector": vector}))
    assert found.reason is None
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert found.warnings[0].startswith(
        "1 documents have a value in 'vector' that is not a vector like those of training"
    )


def test_a_vector_in_an_object_is_no_text() -> None:
    view = replace(VIEW, vector="vector")
    numbers = [1.0, 2.0]
    cases: list[tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = [
        ({"title": "a", "vector": numbers}, (), {"title": "a", "vector": numbers}),
        ({"name": "a", "vector": numbers}, (), {"text": ["a"], "vector": numbers}),
        ({"title": "a", "vector": numbers}, ("title",), {"title": "a"}),
        ({"title": "a", "vector": numbers}, ("title", "vector"), {"title": "a", "vector": numbers}),
        ({"title": "a", "b": "c", "vector": numbers}, ("title", "b", "vector"), {"text": ["", "c"]}),
    ]
    for document, rank_fields, expected in cases:
        (item,) = items_of([document], view, rank_fields=rank_fields)
        assert item.source is not None and expected.items() <= item.source.items()


def test_documents_of_which_nothing_is_known_come_last_in_the_order_given(served: Served) -> None:
    items = [Item(source={"text": ""}), *texts(*list(served.documents.values())[:8]), Item(id="nowhere")]
    items += [Item(id=name) for name in list(served.documents)[:5]]
    found = score_items(served.model, QUERY, items, indexed=IndexedDocuments(served.store))
    assert list(found.order[-2:]) == [0, 9] and found.n_unscored == 2 and not found.fallback
    assert list(found.relevance()[[0, 9]]) == [0.0, 0.0]
    assert "2 documents have neither" in found.warnings[-1]
    assert found.raw()[0] < min(0.0, np.nanmin(found.scores))


def test_too_many_unknown_ids_leave_the_order_given(served: Served) -> None:
    items = [Item(id=name) for name in ["d1", "d2", "nowhere", "d3"]]
    indexed = IndexedDocuments(served.store)
    found = score_items(served.model, QUERY, items, indexed=indexed)
    assert found.reason is not None and found.reason.kind is ReasonKind.UNSCORED
    assert found.reason.text.startswith("1 of 4 candidates have neither a vector")
    assert list(found.order) == [0, 1, 2, 3]
    assert not score_items(served.model, QUERY, items, indexed=indexed, max_unscored=0.25).fallback


def test_a_text_stands_in_for_an_id_that_is_not_indexed(served: Served) -> None:
    source = served.documents["d5"]
    asked: list[Any] = []
    indexed = IndexedDocuments(served.store, lambda body, timeout_s: asked.append(body))  # type: ignore[arg-type, return-value]
    found = score_items(served.model, QUERY, [Item(id="nowhere", source=source), Item(id="d5")], indexed=indexed)
    assert found.scores[0] == pytest.approx(found.scores[1], abs=1e-6)
    assert (found.n_stored, found.n_encoded) == (1, 1)
    assert asked == []


@pytest.mark.parametrize("beside", [True, False])
def test_an_indexed_document_without_vector_is_encoded_from_its_text(
    tmp_path: Path, served: Served, beside: bool
) -> None:
    mine = serve(memory_engine(), "docs", tmp_path, served.documents, served.model)
    mine.put({"new": {"title": "word1", "text": "word7 word7"}}, vectors=False)
    indexed = IndexedDocuments(mine.store if beside else None, search_of(mine))
    found = score_items(mine.model, QUERY, [Item(id="d1"), Item(id="new")], indexed=indexed)
    expected = dense_score(mine.model, QUERY, {"title": "word1", "text": "word7 word7"})
    assert found.scores[1] == pytest.approx(expected, abs=1e-5)
    assert not found.fallback


def test_an_alias_of_indexes_with_the_same_ids_gives_every_id(served: Served) -> None:
    names = [f"d{place}" for place in range(20)]

    def search(body: Mapping[str, Any], timeout_s: float | None) -> SearchAnswer:
        hits = served.engine.search("docs", {**body, "size": 1000}).hits
        twice = [hit for hit in hits for _ in range(2)]
        return SearchAnswer(tuple(twice[: body["size"]]), total=2 * len(hits))

    found = score_items(served.model, QUERY, [Item(id=name) for name in names], indexed=IndexedDocuments(None, search))
    assert found.n_stored == 20


def unreachable(body: Mapping[str, Any], timeout_s: float | None) -> SearchAnswer:
    raise EngineUnavailable("no engine")


def test_without_the_engine_ids_keep_their_order_and_texts_are_ranked(served: Served) -> None:
    indexed = IndexedDocuments(None, unreachable)
    found = score_items(served.model, QUERY, [Item(id="d1"), Item(id="d2")], indexed=indexed)
    assert found.fallback and "could not be read from the engine (EngineUnavailable)" in str(found.reason)
    given = score_items(served.model, QUERY, texts(served.documents["d1"]), indexed=indexed)
    assert not given.fallback
    both = [Item(id=name, source=served.documents[name]) for name in ("d1", "d2")]
    assert score_items(served.model, QUERY, both, indexed=indexed).n_encoded == 2


def test_the_deadline_leaves_the_order_given(served: Served) -> None:
    seconds = itertools.count(0.0, 0.4)
    deadline = Deadline(1.0, now=lambda: next(seconds))
    found = score_items(served.model, QUERY, texts(*list(served.documents.values()) * 20), deadline=deadline)
    assert found.reason is not None and found.reason.kind is ReasonKind.DEADLINE
    assert found.reason.text.startswith("the deadline of 1000 ms passed")
    assert list(found.order) == list(range(2400))


@pytest.mark.parametrize("query", ["", "   ", "!!!", "\u200d"])
def test_a_query_without_words_leaves_the_order_given(served: Served, query: str) -> None:
    found = score_items(served.model, query, texts({"text": "word1"}, {"text": "word2"}))
    assert found.reason is not None and found.reason.kind is ReasonKind.EMPTY_QUERY
    assert list(found.order) == [0, 1]


def test_without_a_model_the_order_given_comes_back() -> None:
    found = score_items(None, "x", [Item(), Item()])
    assert found.reason == Reason(ReasonKind.NO_MODEL, "no model is loaded") and list(found.order) == [0, 1]


def test_whatever_fails_the_order_given_comes_back_without_its_words(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("secret text")

    monkeypatch.setattr("reranker.rerank.candidates.CandidateVectors.add_texts", fails)
    found = score_items(served.model, QUERY, texts({"text": "word1"}, {"text": "word2"}))
    assert found.reason == Reason(ReasonKind.ERROR, "reranking failed: RuntimeError") and list(found.order) == [0, 1]


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_scores_of_a_fallback_fall_along_the_order_given(n: int) -> None:
    found = Scoring(np.full(n, np.nan), np.arange(n), reason=Reason(ReasonKind.ERROR, "why"))
    for values in (found.relevance(), found.raw()):
        assert len(values) == n and np.all(np.diff(values) < 0)
    assert np.all((found.relevance() > 0) & (found.relevance() <= 0.5))


odd_texts = st.text(st.characters(), max_size=30) | st.sampled_from(
    ["word1", "word2 word1", "é", "e\u0301", "\u202eword1", "\ud800", "a\u200db", "\x00"]
)


@settings(max_examples=int(os.environ.get("SSI_EXAMPLES", "200")))
@given(st.data())
def test_an_answer_is_a_permutation_and_the_same_again(served: Served, data: st.DataObject) -> None:
    ids = st.sampled_from(["d1", "d2", "d3", "nowhere", "\ud800", "x" * 600]) | odd_texts
    bodies = st.fixed_dictionaries({"text": odd_texts, "title": odd_texts})
    items = data.draw(st.lists(ids.map(Item) | bodies.map(lambda source: Item("", source)), max_size=12))
    query = data.draw(odd_texts)
    indexed = IndexedDocuments(served.store, search_of(served))
    first, second = (score_items(served.model, query, items, indexed=indexed) for _ in range(2))
    assert first.reason is None or first.reason.kind is not ReasonKind.ERROR
    assert sorted(first.order.tolist()) == list(range(len(items)))
    assert first.order.tolist() == second.order.tolist()
    for values in (first.relevance(), first.raw()):
        assert np.all(np.diff(values[first.order]) <= 0) and np.all(np.isfinite(values))
    equal = first.scores[:, None] == first.scores[None, :]
    position = np.argsort(first.order)
    for a, b in np.argwhere(np.triu(equal, 1)):
        assert position[a] < position[b]


def test_batches_are_bounded_by_number_and_by_characters() -> None:
    assert [len(one) for one in batches(range(250), [1] * 250)] == [BATCH, BATCH, 50]
    sizes = [BATCH_CHARS, 1, BATCH_CHARS - 1, 1, 2 * BATCH_CHARS, 5]
    assert list(batches("abcdef", sizes)) == ["a", "bc", "d", "e", "f"]
    assert list(batches([], [])) == []


def test_the_characters_of_a_value_are_those_of_its_texts() -> None:
    assert n_chars({"a": "xyz", "b": ["12", {"c": "3", "d": 4.5, "e": None}]}) == 6
