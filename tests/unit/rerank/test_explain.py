"""Explanations: known rows for a model small enough to compute by hand, and sums that are the score."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.deadline import Deadline
from reranker.kernels.packing import QUANTISATIONS, Quantisation
from reranker.models.scorers import pair_weights
from reranker.records import RankedHit
from reranker.rerank import Explanation, Reranker, RerankSettings
from reranker.rerank import explain as explaining
from reranker.rerank import search as rerankers
from reranker.rerank.explain import N_NEAREST, RESERVED, Contribution, DocumentRows, explain_hit, nearest_words
from reranker.text.rows import inner_products
from tests.engines.memory import memory_engine
from tests.served import (
    BM25,
    MEMORY_BM25,
    Served,
    model_of,
    random_documents,
    reading_vectors,
    serve,
    with_vectors,
)
from tests.unit.rerank.test_reranker import BODY


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    documents = random_documents(60)
    engine = memory_engine()
    yield serve(
        engine, "docs", tmp_path_factory.mktemp("m"), documents, model_of(documents, scale=0.8, quantisation="float32")
    )
    engine.close()


def explain(served: Served, query: str, alpha: float, size: int = 10) -> list[tuple[Explanation, float]]:
    options = RerankSettings(alpha=alpha, deadline_ms=None)
    reranker = Reranker(served.engine, served.index, served.model, settings=options)
    page = reranker.search(query, BODY, size=size, explain=True)
    return [(explanation, hit.score) for explanation, hit in zip(page.explanations, page.hits, strict=True)]


@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_the_rows_of_a_tiny_model_are_those_computed_by_hand(
    tmp_path_factory: pytest.TempPathFactory, alpha: float
) -> None:
    """Two documents, one word each side: q_i = 1, so every row can be written down."""
    documents = {"a": {"title": "", "text": "cat dog"}, "b": {"title": "", "text": "dog owl"}}
    model = model_of(documents, n_dims=2, quantisation="float32")
    words = model.query_vocabulary.words
    U, V = np.zeros((2, len(words), 2), np.float32)
    U[words.index("cat")], V[words.index("dog")], V[words.index("cat")] = (3.0, 0.0), (0.5, 9.0), (-1.0, 0.0)
    model = dataclasses.replace(model, U=U, identity=2.0, encoder=dataclasses.replace(model.encoder, V=V))
    engine = memory_engine()
    served = serve(engine, "docs", tmp_path_factory.mktemp("m"), documents, model)
    ((explanation, score),) = explain(served, "cat xyzzy", alpha=alpha)
    d_row = model.encoder.rows([documents["a"]])
    d = dict(zip(d_row.indices.tolist(), d_row.data.tolist(), strict=True))
    q_row = model.encode_queries(["cat xyzzy"]).rows
    q = dict(zip(q_row.indices.tolist(), q_row.data.tolist(), strict=True))
    cat, dog = words.index("cat"), words.index("dog")
    assert d[cat] > 0
    rows = {(str(x.kind), x.query_word, x.document_word): (x.weight, x.value) for x in explanation.contributions}
    expected: dict[tuple[str, str, str], tuple[float, float]] = {
        ("identity", "cat", "cat"): (2.0, alpha * 2.0 * q[cat] * d[cat]),
        ("learned", "cat", "cat"): (-3.0, alpha * -3.0 * q[cat] * d[cat]),
    }
    # "dog" is in both documents: its idf is 0, and so is its weight.
    assert d.get(dog, 0.0) == 0.0
    for key, (weight, value) in expected.items():
        assert rows[key] == pytest.approx((weight, value), abs=1e-6)
    assert rows["others", "", ""][1] == pytest.approx(0.0, abs=1e-6)
    engine_part = rows["engine", "", ""][1]
    assert (engine_part == 0.0) == (alpha == 1.0)
    assert score == pytest.approx(engine_part - alpha * q[cat] * d[cat], abs=1e-6)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([*(f"word{i}" for i in range(12)), "unseen"]), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_rows_sum_to_the_score_and_others_is_what_is_left(served: Served, words: list[str], alpha: float) -> None:
    query = " ".join(words)
    encoded = served.model.encode_queries([query]).rows
    for explanation, score in explain(served, query, alpha):
        values = {row.kind: 0.0 for row in explanation.contributions}
        for row in explanation.contributions:
            values[row.kind] += row.value
        assert math.fsum(values.values()) == pytest.approx(score, abs=1e-6)
        pairs = [abs(row.value) for row in explanation.contributions if row.kind in ("identity", "learned")]
        assert pairs == sorted(pairs, reverse=True)
        assert len(pairs) <= 8
        # All pairs, computed apart: what is not shown is "others".
        d = served.model.encoder.encode([served.documents[explanation.id]]).rows
        weights = pair_weights(served.model.U, served.model.encoder.V, encoded.indices, d.indices)
        learned = encoded.data.astype(float) @ weights @ d.data.astype(float)
        same = sum(
            float(w) * float(d.data[d.indices == i][0])
            for i, w in zip(encoded.indices, encoded.data, strict=True)
            if i in d.indices
        )
        shown = values.get("identity", 0.0) + values.get("learned", 0.0)
        assert values["others"] == pytest.approx(alpha * (learned + same) - shown, abs=2e-5)


def test_unlisted_words_are_named_from_the_texts(served: Served) -> None:
    served.put({"part": {"title": "word1", "text": "QX-77 pump"}})
    found = {e.id: e for e, _ in explain(served, "qx pump word1", alpha=0.5, size=60)}
    words = {row.query_word for row in found["part"].contributions if row.kind == "identity"}
    assert {"qx", "pump"} <= words
    assert all("unlisted" not in row.query_word for e in found.values() for row in e.contributions)


@pytest.mark.parametrize("body", [BODY | {"_source": True}, BODY | {"_source": ["title"]}], ids=["text", "title only"])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_a_lexical_model_is_explained_by_both_rows(
    tmp_path_factory: pytest.TempPathFactory, body: dict[str, Any], alpha: float
) -> None:
    """Same words by the lexical rows, learned pairs by the learned rows where the text is there, else as one row."""
    documents = random_documents(40)
    model = model_of(documents, scale=0.8, lexical=BM25)
    engine = memory_engine()
    served = serve(engine, "docs", tmp_path_factory.mktemp("m"), documents, model)
    reranker = Reranker(engine, "docs", served.model, settings=RerankSettings(alpha=alpha, deadline_ms=None))
    query = model.encode_queries(["word1 word3 word3 unseen"])
    page = reranker.search("word1 word3 word3 unseen", body, size=10, explain=True)
    assert len(page.hits) == 10
    for hit, explanation in zip(page.hits, page.explanations, strict=True):
        rows = explanation.contributions
        assert math.fsum(row.value for row in rows) == pytest.approx(hit.score, abs=1e-9)
        encoded = model.encoder.encode([documents[hit.id]])
        by_word = dict(zip(encoded.rows.indices.tolist(), encoded.rows.data.tolist(), strict=True))
        same = {
            model.query_vocabulary.words[i]: alpha * weight * by_word[i]
            for i, weight in zip(query.rows.indices.tolist(), query.rows.data.tolist(), strict=True)
            if i in by_word
        }
        for row in rows:
            if row.kind == "identity":
                assert row.value == pytest.approx(same.pop(row.query_word), abs=1e-7)
        hidden = math.fsum(same.values())  # of smaller magnitude than the eight rows shown
        learned = alpha * float(query.vectors[0].astype(float) @ encoded.vectors[0].astype(float))
        pairs = [row for row in rows if row.kind == "learned"]
        rest = next(row.value for row in rows if row.kind == "others")
        if body["_source"] is True:
            d = model.encoder.learned_rows([documents[hit.id]])
            weights = alpha * model.pair_weights(query.learned_rows, d) * d.data * query.learned_rows.data[:, None]
            largest = sorted(np.abs(weights).ravel(), reverse=True)[: len(pairs)]
            assert sorted((abs(row.value) for row in pairs), reverse=True) == pytest.approx(largest)
            assert all(row.query_word and row.document_word for row in pairs)
            assert math.fsum(row.value for row in pairs) + rest == pytest.approx(learned + hidden, abs=1e-3)
        else:
            assert [(row.query_word, row.document_word, row.weight) for row in pairs] == [("", "", 0.0)]
            assert pairs[0].value == pytest.approx(learned, abs=1e-5)
            assert hidden == 0.0
            assert rest == pytest.approx(0.0, abs=1e-6)
    engine.close()


LONG = " ".join(["word0 neverseen9", *(f"absent{i}" for i in range(10))])


@pytest.mark.parametrize(
    ("query", "short_row_weight"),
    [("word0 neverseen9", None), ("word0 neverseen9", 0.0), ("word0 neverseen9", 0.5), (LONG, 4.0)],
    ids=["one row", "short rows", "short query", "long query"],
)
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_what_the_memory_adds_has_rows_of_its_own(
    quantisation: Quantisation, query: str, short_row_weight: float | None, tmp_path: Path
) -> None:
    documents = random_documents(40)
    model = model_of(documents, scale=0.8, lexical=MEMORY_BM25, quantisation=quantisation)
    if short_row_weight is not None:
        encoder = replace(model.encoder, lexical=BM25, short_lexical=MEMORY_BM25)
        model = replace(model, encoder=encoder, short_row_weight=short_row_weight)
    engine = memory_engine()
    served = serve(engine, "docs", tmp_path, documents, model)
    reranker = Reranker(engine, "docs", served.model, settings=RerankSettings(alpha=1.0, deadline_ms=None))
    q = model.encode_queries([query]).rows
    found = {}
    for source in (True, ["title"]):
        page = reranker.search(query, BODY | {"_source": source}, size=40, explain=True)
        for hit, explanation in zip(page.hits, page.explanations, strict=True):
            rows = explanation.contributions
            assert math.fsum(row.value for row in rows) == pytest.approx(hit.score, abs=1e-6)
            if source is True:
                found[hit.id] = {row.query_word: row.value for row in rows if row.kind == "memory"}
                same = inner_products(q, model.encoder.rows([documents[hit.id]]))[0, 0]
                assert math.fsum(row.value for row in rows if row.kind == "identity") == pytest.approx(same, abs=2e-2)
            else:
                assert "memory" not in {row.kind for row in rows}
    assert {name for name, words in found.items() if words} == {"d1", "d5", "d8"}
    assert [words for words in found.values() if words and set(words) != {"word0", "neverseen9"}] == []
    assert min(value for words in found.values() for value in words.values()) > 0
    engine.close()


@pytest.mark.parametrize("source", [True, ["title"]], ids=["text", "title only"])
@pytest.mark.parametrize("route", ["beside", "fetch"])
@pytest.mark.parametrize("lexical", [None, BM25], ids=["learned rows", "bm25"])
def test_the_part_of_given_vectors_has_rows_of_the_querys_words(
    tmp_path: Path, lexical: Any, route: Any, source: Any
) -> None:
    documents = with_vectors(random_documents(40))
    model = reading_vectors(model_of(documents, n_dims=2, scale=0.1, lexical=lexical))
    assert model.word_encoder is not None and model.encoder.vector_field is not None
    engine = memory_engine()
    served = serve(engine, "docs", tmp_path, documents, model)
    options = RerankSettings(alpha=0.5, deadline_ms=None)
    store = served.store if route == "beside" else None
    reranker = Reranker(engine, "docs", model, route=route, store=store, settings=options)
    text = "word1 word3 word3 unseen word59"
    query = model.encode_queries([text]).learned_rows
    table, names = model.word_encoder.U, model.query_vocabulary.words
    q = {names[i]: w for i, w in zip(query.indices, query.data, strict=True) if i < len(table)}
    U = {word: table[names.index(word)] for word in q}
    assert set(U) >= {"word1", "word3"}
    length = np.linalg.norm(sum(q[word] * row for word, row in U.items()))
    page = reranker.search(text, BODY | {"_source": source}, size=40, explain=True)
    assert page.reranked and len(page.hits) > 20
    for hit, explanation in zip(page.hits, page.explanations, strict=True):
        assert math.fsum(row.value for row in explanation.contributions) == pytest.approx(hit.score, abs=1e-6)
        rows = [row for row in explanation.contributions if row.kind == "vector"]
        if "embedding" not in documents[hit.id]:
            assert not rows
            continue
        v = model.encoder.encode([documents[hit.id]]).vectors[0, -model.encoder.vector_field.n_dims :]
        described = ", ".join(nearest_words(model, v[None])[0])
        for row in rows:
            weight = model.word_encoder.weight * float(U[row.query_word] @ v) / length
            assert row.weight == pytest.approx(weight, abs=1e-5)
            assert row.value == pytest.approx(0.5 * q[row.query_word] * weight, abs=1e-5)
            assert row.document_word == described
        if rows and len(explanation.contributions) < 10:
            assert {row.query_word for row in rows} == set(U)
    engine.close()


def test_the_nearest_words_of_a_vector_are_frequent_ones() -> None:
    documents = random_documents(40)
    model = reading_vectors(model_of(documents))
    assert model.word_encoder is not None
    U = model.word_encoder.U.copy()
    rare = int(np.flatnonzero(model.query_vocabulary.document_frequency[: len(U)] < 3)[0])
    U[5], U[rare], U[7] = (2.0, 0.0, 0.0, 0.0), (9.0, 0.0, 0.0, 0.0), (5.0, 0.1, 0.0, 0.0)
    model = dataclasses.replace(model, word_encoder=dataclasses.replace(model.word_encoder, U=U))
    (words,) = nearest_words(model, np.array([[0.5, 0.0, 0.0, 0.0]], np.float32))
    assert len(words) == N_NEAREST
    assert words[:2] == [model.query_vocabulary.words[5], model.query_vocabulary.words[7]]
    assert model.query_vocabulary.words[rare] not in words


def test_a_text_that_has_changed_since_it_was_encoded_names_no_learned_pairs(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    documents = random_documents(40)
    engine = memory_engine()
    model = model_of(documents, scale=0.8, lexical=BM25)
    served = serve(engine, "docs", tmp_path_factory.mktemp("m"), documents, model)
    store = served.store
    changed = {"d0": documents["d0"] | {"text": documents["d0"]["text"] + " word1 word1"}}
    served.put(changed, vectors=False)
    reranker = Reranker(
        engine, "docs", model, route="beside", store=store, settings=RerankSettings(alpha=1.0, deadline_ms=None)
    )
    page = reranker.search("word1 word3", BODY | {"_source": True}, size=40, explain=True)
    kinds = {
        explanation.id: {bool(row.query_word) for row in explanation.contributions if row.kind == "learned"}
        for explanation in page.explanations
    }
    assert kinds.pop("d0") == {False}
    assert len(kinds) > 10 and all(named == {True} for named in kinds.values())
    engine.close()


def test_all_pairs_of_a_document_make_the_whole_score() -> None:
    """With every pair shown nothing is left for "others" but rounding; weights are those of this document."""
    documents = random_documents(12)
    model = model_of(documents, scale=0.8, quantisation="float32")
    query = model.encode_queries(["word1 word3 word3 unseen"])
    rows = model.encoder.encode(list(documents.values())).rows
    for number, identifier in enumerate(documents):
        score = float(model.scorer.score_pairs(query.rows, rows[number])[0])
        told = explain_hit(
            model,
            query,
            DocumentRows(rows[number], None, rows[number]),
            1.0,
            lambda word, _: str(word),
            RankedHit(identifier, "", 1, score, 1, None, score),
            [Contribution("engine", "", "", 0.0, 0.0)],
            10_000,
        )
        values = {row.kind: row.value for row in told.contributions if row.kind in ("others", "engine")}
        assert values["others"] == pytest.approx(0.0, abs=1e-5)
        assert math.fsum(row.value for row in told.contributions) == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize(("seconds", "explained"), [(0.089, 10), (0.101, 9)])
def test_past_the_deadline_explanations_are_left_out_and_the_page_comes_as_it_is(
    served: Served, monkeypatch: pytest.MonkeyPatch, seconds: float, explained: int
) -> None:
    """A tenth of the deadline is left to sending the page; ten hits of the given time each have the rest."""
    now, counted = [100.0], list[int]()
    assert RESERVED == 0.1

    def slow(*arguments: Any) -> Explanation:
        now[0] += seconds
        counted.append(1)
        return explain_hit(*arguments)

    monkeypatch.setattr(explaining, "explain_hit", slow)
    monkeypatch.setattr(rerankers, "Deadline", lambda limit_s: Deadline(limit_s, lambda: now[0]))
    reranker = Reranker(served.engine, served.index, served.model, settings=RerankSettings(deadline_ms=1000.0))
    plain = reranker.search("word3 word11", BODY)
    page = reranker.search("word3 word11", BODY, explain=True)
    assert len(page.hits) == 10 and [hit.id for hit in page.hits] == [hit.id for hit in plain.hits]
    assert page.reranked and not page.fallback
    assert len(counted) == explained
    if explained == 10:
        assert len(page.explanations) == 10 and not any("explanations" in notice for notice in page.notices)
    else:
        assert page.explanations == ()
        assert f"explanations were omitted: explaining {explained} of 10 hits took too long" in page.notices


@pytest.mark.parametrize("lexical", [None, BM25], ids=["one row", "two rows"])
def test_hits_of_too_many_pairs_have_one_row_for_them_that_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lexical: Any
) -> None:
    documents = random_documents(40)
    engine = memory_engine()
    served = serve(engine, "docs", tmp_path, documents, model_of(documents, scale=0.8, lexical=lexical))
    query = "word1 word3 word4"
    whole = {explanation.id: explanation for explanation, _ in explain(served, query, 0.5)}
    n_words = served.model.encode_queries([query]).learned_rows.nnz
    sizes = {
        identifier: n_words * served.model.encoder.learned_rows([documents[identifier]]).nnz for identifier in whole
    }
    limit = sorted(sizes.values())[len(sizes) // 2]
    monkeypatch.setattr(explaining, "MAX_PAIRS", limit)
    found = explain(served, query, 0.5)
    assert len(found) == 10 and min(sizes.values()) <= limit < max(sizes.values())
    for explanation, score in found:
        assert math.fsum(row.value for row in explanation.contributions) == pytest.approx(score, abs=1e-6)
        learned = [row for row in explanation.contributions if row.kind == "learned"]
        if sizes[explanation.id] <= limit:
            assert explanation == whole[explanation.id], "at the limit every pair is computed"
        else:
            assert [(row.query_word, row.document_word) for row in learned] == [("", "")]
            same = [row for row in explanation.contributions if row.kind == "identity"]
            assert {
                (row.query_word, row.value) for row in whole[explanation.id].contributions if row.kind == "identity"
            } <= {(row.query_word, row.value) for row in same}
    engine.close()
