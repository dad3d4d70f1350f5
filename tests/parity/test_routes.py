"""One score whatever the route and whatever the engine, within the route's stated tolerance.

beside = fetch = the definition; the command and the service.
"""

from __future__ import annotations

import itertools
import json
import math
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.config import RouteName
from reranker.deadline import Deadline
from reranker.engines import open_engine
from reranker.engines.bodies import fill_template
from reranker.engines.protocol import Engine
from reranker.kernels.packing import QUANTISATIONS, Quantisation
from reranker.lexical.bm25 import LexicalSettings
from reranker.models.model_folder import save_model
from reranker.rerank import Calibration, Explanation, RerankedPage, Reranker, RerankSettings, blend, body_hash
from reranker.rerank.candidates import Candidates, encode_query, route_of
from reranker.rerank.signals import Signal
from reranker.text.rows import inner_products
from tests.engines.memory import memory_engine
from tests.engines.policy import library
from tests.served import (
    BM25,
    MEMORY_BM25,
    SIGNAL_FIELDS,
    Served,
    model_of,
    random_documents,
    reading_vectors,
    serve,
    with_numbers,
    with_vectors,
)

ENGINES = ("memory", "tantivy", "elasticsearch", "opensearch")
BODY = {
    "query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"], "type": "most_fields"}},
    "_source": ["title"],
}
LEXICAL = {BM25: "bm25", MEMORY_BM25: "bm25 with a memory"}
QUERIES = ("word3 word11 word0", "word1", "word59 word2 word2", "word0 neverseen9", "WORD4, word5!")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    kind = str(request.param)
    if kind == "memory":
        opened: Engine = memory_engine()
    elif kind == "tantivy":
        opened = open_engine(f"tantivy:{tmp_path_factory.mktemp('tantivy')}")
    else:
        opened = open_engine(f"{kind}:{request.getfixturevalue(f'{kind}_url')}")
    yield opened
    opened.close()


def serve_on(
    engine: Engine,
    path: Path,
    quantisation: Quantisation,
    n_shards: int = 2,
    lexical: LexicalSettings | None = None,
    given: bool = False,
) -> Iterator[Served]:
    documents = random_documents(120)
    model = model_of(documents, quantisation=quantisation, lexical=lexical)
    if given:
        documents, model = with_vectors(documents), reading_vectors(model)
    remote = engine.capabilities().kind in ("elasticsearch", "opensearch")
    settings: dict[str, Any] = {"index.number_of_shards": n_shards, "index.number_of_replicas": 0} if remote else {}
    index = f"parity-{uuid.uuid4().hex[:10]}"
    try:
        yield serve(engine, index, path, documents, model, **settings)
    finally:
        engine.delete_index(index)


@pytest.fixture(
    scope="module",
    params=[
        *((quantisation, None, False) for quantisation in QUANTISATIONS),
        ("float16", BM25, False),
        ("int8", BM25, False),
        ("float16", MEMORY_BM25, False),
        ("int8", MEMORY_BM25, False),
        ("float16", None, True),
        ("float16", BM25, True),
        ("int8", MEMORY_BM25, True),
    ],
    ids=lambda case: case[0] + (f", {LEXICAL[case[1]]}" if case[1] else "") + ", given vectors" * case[2],
)
def served(
    request: pytest.FixtureRequest, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    quantisation, lexical, given = request.param
    yield from serve_on(engine, tmp_path_factory.mktemp("store"), quantisation, lexical=lexical, given=given)


def pages(served: Served, query: str, **options: Any) -> tuple[RerankedPage, RerankedPage]:
    settings = RerankSettings(window=50, deadline_ms=None, alpha=options.pop("alpha", 0.6))
    beside = Reranker(served.engine, served.index, served.model, route="beside", store=served.store, settings=settings)
    fetch = Reranker(served.engine, served.index, served.model, route="fetch", settings=settings)
    return beside.search(query, BODY, **options), fetch.search(query, BODY, **options)


@pytest.mark.parametrize("query", QUERIES)
def test_both_routes_give_one_order_and_one_score(served: Served, query: str) -> None:
    beside, fetch = pages(served, query, size=80)
    assert beside.reranked
    assert fetch.reranked
    assert beside.n_encoded == fetch.n_encoded == 0
    assert [hit.id for hit in beside.hits] == [hit.id for hit in fetch.hits]
    scores = np.array([[a.score, b.score] for a, b in zip(beside.hits, fetch.hits, strict=True)])
    np.testing.assert_allclose(scores[:, 0], scores[:, 1], rtol=0, atol=1e-5)
    assert all(hit.source.keys() == {"title"} for hit in [*beside.hits, *fetch.hits])


@pytest.mark.parametrize("query", QUERIES)
def test_scores_are_those_of_the_definition(served: Served, query: str) -> None:
    """(Uq).(Vd) + q.d in double precision, from the encoder's own output alone."""
    _, fetch = pages(served, query, size=50)
    q = served.model.encode_queries([query])
    weights = dict(zip(q.rows.indices.tolist(), q.rows.data.astype(float).tolist(), strict=True))
    for hit in fetch.hits:
        d = served.model.encoder.encode([served.documents[hit.id]], [hit.id])
        learned = float(q.vectors[0].astype(float) @ d.vectors[0].astype(float))
        same = sum(weights.get(i, 0.0) * w for i, w in zip(d.rows.indices.tolist(), d.rows.data.tolist(), strict=True))
        assert hit.model_score == pytest.approx(learned + same, abs=1e-5)


def test_a_document_of_words_without_lexical_weight_is_scored_by_its_stored_vector(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lexical = replace(BM25, field_weights=(1.0, 0.0))
    for served in serve_on(engine, tmp_path_factory.mktemp("bare"), "float16", n_shards=1, lexical=lexical):
        served.put({"bare": {"text": "word3 word11 word11"}})
        for page in pages(served, "word3 word11", size=200):
            assert page.reranked and page.n_encoded == page.n_unscored == 0
            score = next(hit.model_score for hit in page.hits if hit.id == "bare")
            d = served.model.encoder.encode([{"text": "word3 word11 word11"}])
            assert d.rows.nnz == 0
            assert score == pytest.approx(
                float(served.model.encode_queries(["word3 word11"]).vectors[0] @ d.vectors[0])
            )


def test_a_query_whose_word_stands_in_no_text_finds_what_is_remembered_for_it(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for served in serve_on(engine, tmp_path_factory.mktemp("memory"), "float16", 1, lexical=MEMORY_BM25):
        served.put({"d8": served.documents["d8"]}, vectors=False)  # of a document without a vector the text is encoded
        query = "word0 neverseen9"
        assert "neverseen9" not in served.model.query_vocabulary
        q = served.model.encode_queries([query])
        for reranker, tolerance in ways(served, 1.0, 120).values():
            model_scores = {hit.id: hit.model_score for hit in reranker.search(query, BODY, size=120).hits}
            for name in ("d1", "d5", "d8"):
                d = served.model.encoder.encode([served.documents[name]], [name])
                remembered = inner_products(q.rows, d.rows)[0, 0]
                assert model_scores[name] == pytest.approx(q.vectors[0] @ d.vectors[0] + remembered, abs=tolerance)
                assert remembered > inner_products(q.rows, served.model.encoder.rows([served.documents[name]]))[0, 0]


def test_pages_are_one_permutation(served: Served) -> None:
    whole = pages(served, QUERIES[0], size=120)[1]
    assert len(whole.hits) == whole.total > 60
    joined = [
        hit.id for first in range(0, whole.total, 9) for hit in pages(served, QUERIES[0], size=9, from_=first)[1].hits
    ]
    assert joined == [hit.id for hit in whole.hits]
    assert len(set(joined)) == whole.total


def test_a_part_number_nobody_has_seen_is_first_without_retraining(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for served in serve_on(engine, tmp_path_factory.mktemp("open"), "float16", n_shards=1):
        # The word stands once, deep in a long text; its rivals have the query's other words in their titles.
        new = {"title": "word1", "text": " ".join(["word1 word2 word3"] * 10) + " zx81q7"}
        served.put({"new": new})
        assert "zx81q7" not in served.model.query_vocabulary
        for page in pages(served, "word0 word4 zx81q7", alpha=1.0):
            assert page.reranked
            assert page.hits[0].id == "new"


def test_explanations_sum_to_the_score(served: Served) -> None:
    for page in pages(served, QUERIES[3], size=60, explain=True):
        assert len(page.explanations) == len(page.hits)
        for hit, explanation in zip(page.hits[:50], page.explanations, strict=False):
            assert explanation.id == hit.id
            assert sum(row.value for row in explanation.contributions) == pytest.approx(hit.score, abs=1e-6)


# All routes that score candidates.

CASES = (
    (1, None, False),
    (3, None, False),
    (1, BM25, False),
    (1, MEMORY_BM25, False),
    (3, MEMORY_BM25, True),
    (1, None, True),
)
"""Shards, the model's lexical settings, and whether it reads vectors of the documents."""
EXACT = 1e-5
"""Tolerance of beside and fetch."""


@pytest.fixture(
    scope="module",
    params=CASES,
    ids=lambda case: f"{case[0]} shards" + (f", {LEXICAL[case[1]]}" if case[1] else "") + ", given vectors" * case[2],
)
def sharded(
    request: pytest.FixtureRequest, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    n_shards, lexical, given = request.param
    kind = engine.capabilities().kind
    if kind in ("memory", "tantivy") and n_shards > 1:
        if not given:
            pytest.skip(f"{kind} has no shards")
        n_shards = 1
    path = tmp_path_factory.mktemp("routes")
    yield from serve_on(engine, path, "float16", n_shards, lexical=lexical, given=given)


ROUTES: tuple[RouteName, ...] = ("beside", "fetch")


def check_order(scores: np.ndarray, order: np.ndarray, tolerance: float) -> None:
    """Check that no document stands behind one whose reference score is lower by more than twice the tolerance."""
    placed = scores[order]
    best_behind = np.maximum.accumulate(placed[::-1])[::-1]
    assert (best_behind - placed).max() <= 2 * tolerance


@pytest.mark.parametrize("query", QUERIES)
def test_every_route_scores_the_same_candidates_alike(sharded: Served, query: str) -> None:
    """BM25 comes from one request, so that nothing but the route differs."""
    body = {**fill_template(BODY, query), "size": 80, "_source": True}
    hits = sharded.engine.search(sharded.index, body).hits
    encoded = encode_query(sharded.model, query)
    scores = {}
    for name in ROUTES:
        route = route_of(name, sharded.model, sharded.store)
        window = Candidates(sharded.engine, sharded.index, route).score(sharded.model, encoded, hits, Deadline())
        assert window.n_encoded == window.n_unscored == 0
        scores[name] = blend(window.model, window.lexical, 0.6, encoded.scale)
        assert np.isfinite(window.model).all()
    np.testing.assert_allclose(scores["fetch"], scores["beside"], rtol=0, atol=EXACT)
    check_order(scores["beside"], np.argsort(-scores["fetch"], kind="stable"), EXACT)


def ways(served: Served, alpha: float, window: int) -> dict[str, tuple[Reranker, float]]:
    """Return route → reranker and tolerance."""
    settings, found = RerankSettings(window=window, deadline_ms=None, alpha=alpha), {}
    for route in ROUTES:
        store = served.store if route == "beside" else None
        reranker = Reranker(served.engine, served.index, served.model, route=route, store=store, settings=settings)
        found[str(route)] = (reranker, EXACT)
    return found


@pytest.mark.parametrize("alpha", [1.0, 0.6])
@pytest.mark.parametrize("query", QUERIES)
def test_every_route_gives_one_page(sharded: Served, query: str, alpha: float) -> None:
    pages = {}
    for name, (reranker, tolerance) in ways(sharded, alpha, 200).items():
        pages[name] = reranker.search(query, BODY, size=60, explain=True), tolerance
    truth = pages["beside"][0]
    expected = {hit.id: hit for hit in truth.hits}
    lowest = truth.hits[-1].score
    of_vectors = {one.id: vector_rows(one) for one in truth.explanations}
    assert any(of_vectors.values()) == (sharded.model.word_encoder is not None)
    for name, (page, tolerance) in pages.items():
        assert page.reranked, (name, page.reason)
        assert (page.total, page.n_candidates, page.alpha) == (truth.total, truth.n_candidates, alpha)
        for hit in page.hits:
            # Another document may stand at the page's end only for one that scores as much.
            assert hit.id in expected or abs(hit.score - lowest) <= 2 * tolerance, (name, hit.id)
            same = expected.get(hit.id)
            if same is None:
                continue
            assert hit.score == pytest.approx(same.score, abs=tolerance), name
            assert hit.model_score == pytest.approx(same.model_score, abs=tolerance), name
            assert hit.source == same.source
            assert (hit.first_stage_rank, hit.first_stage_score) == (same.first_stage_rank, same.first_stage_score)
        scores = np.array([expected[hit.id].score for hit in page.hits if hit.id in expected])
        check_order(scores, np.arange(len(scores)), tolerance)
        for hit, explanation in zip(page.hits, page.explanations, strict=True):
            assert math.fsum(row.value for row in explanation.contributions) == pytest.approx(hit.score, abs=1e-6)
            rows, same_rows = vector_rows(explanation), of_vectors.get(hit.id, {})
            assert bool(rows) == bool(same_rows) or hit.id not in of_vectors
            for key in rows.keys() & same_rows.keys():
                assert rows[key] == pytest.approx(same_rows[key], abs=tolerance), (name, hit.id)


def vector_rows(explanation: Explanation) -> dict[tuple[str, str], float]:
    """Return what the words of the query add by the given vector of a document."""
    rows = (row for row in explanation.contributions if row.kind == "vector")
    return {(row.query_word, row.document_word): row.value for row in rows}


@pytest.mark.parametrize("query", QUERIES[:3])
def test_a_window_is_counted_over_all_shards(sharded: Served, query: str) -> None:
    """The documents past the whole window must not come in."""
    pages = {
        name: (reranker.search(query, BODY, size=20), tolerance)
        for name, (reranker, tolerance) in ways(sharded, 0.6, 20).items()
    }
    truth = pages["beside"][0]
    floor = min(hit.first_stage_score or 0.0 for hit in truth.hits)
    expected = {hit.id: hit.score for hit in truth.hits}
    for name, (page, tolerance) in pages.items():
        for hit in page.hits:
            if hit.id in expected:
                assert hit.score == pytest.approx(expected[hit.id], abs=tolerance), name
            else:
                # Another document may stand at the window's end only for one that scores as much.
                assert hit.first_stage_score == pytest.approx(floor, rel=1e-4), name


def test_pages_of_every_route_are_one_permutation(sharded: Served) -> None:
    for name, (reranker, _) in ways(sharded, 0.6, 50).items():
        whole = [hit.id for hit in reranker.search(QUERIES[0], BODY, size=50).hits]
        joined = [
            hit.id for first in range(0, 50, 10) for hit in reranker.search(QUERIES[0], BODY, size=10, from_=first).hits
        ]
        assert joined == whole, name
        straddling = [hit.id for hit in reranker.search(QUERIES[0], BODY, size=30, from_=40).hits]
        assert straddling[:10] == whole[40:], name
        assert not set(straddling[10:]) & set(whole), name


def test_a_document_without_a_vector_is_encoded_whatever_the_route(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for served in serve_on(engine, tmp_path_factory.mktemp("new"), "float16", 1):
        served.put({"new": {"title": "word3 word11", "text": "word0"}}, vectors=False)
        found = {}
        for name, (reranker, _) in ways(served, 0.6, 50).items():
            page = reranker.search(QUERIES[0], BODY, size=50)
            assert page.n_encoded == 1, name
            found[name] = next(hit.score for hit in page.hits if hit.id == "new")
        assert max(found.values()) - min(found.values()) <= 1e-5, found


@pytest.mark.parametrize("n_shards", [1, 3])
def test_signals_count_alike_on_every_route(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory, n_shards: int
) -> None:
    kind = engine.capabilities().kind
    if kind in ("memory", "tantivy") and n_shards > 1:
        pytest.skip(f"{kind} has no shards")
    plain = random_documents(120)
    index, model = f"signals-{uuid.uuid4().hex[:10]}", model_of(plain)
    remote = kind in ("elasticsearch", "opensearch")
    settings: dict[str, Any] = {"index.number_of_shards": n_shards, "index.number_of_replicas": 0} if remote else {}
    served = serve(
        engine,
        index,
        tmp_path_factory.mktemp("signals"),
        with_numbers(plain),
        model,
        properties=SIGNAL_FIELDS,
        **settings,
    )
    knots = ((-40.0, 0.1), (0.0, 0.45), (1.0, 0.5), (2.0, 0.6), (90.0, 0.95))
    dates = ((9.5e11, 0.1), (1.2e12, 0.5), (1.7e12, 0.9))
    signals = (
        Signal("votes", weight=0.25, knots=knots),
        Signal("price", lower=True, weight=0.4, knots=knots),
        Signal("released", "date", weight=0.3, knots=dates),
        Signal("shop.stock", "boolean", weight=0.2, knots=((0.0, 0.2), (1.0, 0.7))),
        Signal("nowhere", weight=0.1, knots=knots),
    )
    try:
        for body in (BODY, {**BODY, "_source": True, "size": 5}):
            key = Calibration.key(body_hash(body), 60)
            calibration = Calibration({key: 0.6}, {key: signals})
            found, order = {}, {}
            for name, (reranker, tolerance) in ways(served, 0.6, 60).items():
                reranker.settings = replace(reranker.settings, alpha=None)
                reranker.calibration = calibration
                page = reranker.search(QUERIES[0], body, size=60, explain=True)
                assert page.reranked and page.alpha_origin == "calibrated", (name, page.reason)
                found[name] = {hit.id: hit.score for hit in page.hits}, tolerance
                order[name] = [hit.id for hit in page.hits]
                for hit, explanation in zip(page.hits, page.explanations, strict=True):
                    assert "fields" not in hit.raw
                    rows = {row.document_word: row.value for row in explanation.contributions if row.kind == "signal"}
                    expected = counted(served.documents[hit.id])
                    assert rows == pytest.approx(expected, abs=1e-6), (name, hit.id)
                    lexical = 0.4 * (hit.first_stage_score or 0.0) / encode_query(model, QUERIES[0]).scale
                    total = 0.6 * (hit.model_score or 0.0) + lexical + sum(expected.values())
                    assert hit.score == pytest.approx(total, abs=2 * tolerance)
                    assert math.fsum(row.value for row in explanation.contributions) == pytest.approx(
                        hit.score, abs=1e-6
                    )
            truth = found["beside"][0]
            for name, (scores, tolerance) in found.items():
                assert {one: scores[one] for one in truth} == pytest.approx(truth, abs=tolerance), name
                check_order(np.array([truth[one] for one in order[name]]), np.arange(len(truth)), tolerance)
    finally:
        engine.delete_index(index)


def counted(source: dict[str, Any]) -> dict[str, float]:
    """Return what each signal of the test above adds for a document, by its formula written again."""

    def share(x: float, table: list[tuple[float, float]]) -> float:
        if x <= table[0][0] or x >= table[-1][0]:
            return table[0 if x <= table[0][0] else -1][1]
        (a, low), (b, high) = next(pair for pair in itertools.pairwise(table) if pair[0][0] <= x <= pair[1][0])
        return low + (high - low) * (x - a) / (b - a)

    numbers = [(-40.0, 0.1), (0.0, 0.45), (1.0, 0.5), (2.0, 0.6), (90.0, 0.95)]
    price = np.min(source["price"]) if "price" in source else None
    day = datetime.fromisoformat(source["released"]).timestamp() * 1000 if "released" in source else None
    return {
        "votes": 0.25 * share(source["votes"], numbers),
        "price": 0.4 * (0.5 if price is None else 1 - share(float(price), numbers)),
        "released": 0.3 * (0.5 if day is None else share(day, [(9.5e11, 0.1), (1.2e12, 0.5), (1.7e12, 0.9)])),
        "shop.stock": 0.2 * (0.7 if source["shop"]["stock"] else 0.2) if "shop" in source else 0.1,
        "nowhere": 0.05,
    }


def test_the_service_answers_with_the_same_page(sharded: Served, tmp_path: Path) -> None:
    library("fastapi")
    from tests.services import client_of, service_over

    for name, (reranker, tolerance) in ways(sharded, 0.6, 50).items():
        page = reranker.search(QUERIES[0], BODY, size=10)
        settings = replace(reranker.settings, deadline_ms=60_000)
        state = service_over(sharded, tmp_path / name, rerank=settings, route=reranker.route, body=BODY)
        answer = client_of(state).post("/search", json={"query": QUERIES[0], "size": 10}).json()
        assert answer["reranked"], answer["reason"]
        assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in page.hits], name
        told = [hit["score"] for hit in answer["hits"]]
        np.testing.assert_allclose(told, [hit.score for hit in page.hits], rtol=0, atol=tolerance)


def test_the_command_prints_the_same_page(sharded: Served, tmp_path: Path) -> None:
    save_model(sharded.model, tmp_path / "model")
    (tmp_path / "body.json").write_text(json.dumps(BODY))
    if sharded.engine.spec.startswith("memory"):
        pytest.skip("the memory engine lives in one process")
    for name, (reranker, tolerance) in ways(sharded, 0.6, 50).items():
        page = reranker.search(QUERIES[0], BODY, size=10)
        given = [
            "search",
            QUERIES[0],
            "--engine",
            sharded.engine.spec,
            "--index",
            sharded.index,
            "--json",
            "--size",
            "10",
            "--model",
            str(tmp_path / "model"),
            "--body",
            str(tmp_path / "body.json"),
            "--route",
            name,
            "--window",
            "50",
            "--alpha",
            "0.6",
            "--store",
            str(sharded.store_path),
        ]
        result = CliRunner().invoke(main, given, catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        printed = json.loads(result.stdout)["hits"]
        assert [hit["id"] for hit in printed] == [hit.id for hit in page.hits]
        np.testing.assert_allclose([h["score"] for h in printed], [h.score for h in page.hits], rtol=0, atol=tolerance)
