"""Candidates that were changed after their vector was computed, at query time."""

from __future__ import annotations

from pathlib import Path

import pytest

from reranker.engines.protocol import WriteOp
from reranker.engines.vectors import field_name
from reranker.rerank import Reranker, RerankSettings
from reranker.rerank.candidates import outdated
from tests.engines.memory import memory_engine
from tests.served import model_of, random_documents, serve
from tests.unit.rerank.test_reranker import BODY, QUERY, Spy

SETTINGS = RerankSettings(deadline_ms=None)


def order(reranker: Reranker, body: dict[str, object] | None = None) -> list[tuple[str, float | None]]:
    return [(hit.id, hit.score) for hit in reranker.search(QUERY, body or BODY).hits]


@pytest.mark.parametrize("route", ["fetch", "beside"])
def test_a_changed_candidate_is_scored_by_its_new_text_where_that_came_with_it(
    tmp_path: Path, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Documents come with the candidates of a server if they are small; the embedded engine reads them by themselves.
    monkeypatch.setattr("reranker.engines.local.LocalEngine.in_process", False)
    documents = random_documents(60)
    model = model_of(documents)
    served = serve(memory_engine(), "docs", tmp_path, documents, model)
    store = served.store if route == "beside" else None
    spy = Spy(served.engine)
    reranker = Reranker(spy, "docs", model, route=route, store=store, settings=SETTINGS)  # type: ignore[arg-type]
    first = order(reranker)
    changed = first[-1][0]
    text = f"{QUERY} {QUERY} {QUERY}"
    served.engine.bulk("docs", [WriteOp("update", changed, {"text": text, "title": text})])
    page = reranker.search(QUERY, BODY)
    assert spy.bodies[-1]["_source"] is True
    assert page.n_encoded == 1 and any("one of an older text" in notice for notice in page.notices)
    # The scores are those after `ssi sync`.
    renewed = {**documents, changed: {**documents[changed], "title": text, "text": text}}
    fresh = serve(served.engine, "fresh", tmp_path / "fresh", renewed, model)
    expected = order(Reranker(served.engine, "fresh", model, settings=SETTINGS))
    found = [(hit.id, hit.score) for hit in page.hits]
    assert [name for name, _ in found] == [name for name, _ in expected] and fresh.index == "fresh"
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_only_documents_with_a_hash_can_be_outdated(tmp_path: Path) -> None:
    documents = random_documents(10)
    model = model_of(documents)
    served = serve(memory_engine(), "docs", tmp_path, documents, model)
    first, second, third = (
        hit.source for hit in served.engine.search("docs", {"query": {"match_all": {}}, "size": 3}).hits
    )
    encoder = model.encoder
    assert outdated(encoder, [{**first, "text": "word99"}, second, {**third, "text": "word99"}]) == [0, 2]
    without = {name: value for name, value in first.items() if not name.startswith("ssi_")}
    assert outdated(encoder, [{**without, "text": "word99"}]) == []


def test_candidates_whose_source_was_filtered_are_not_taken_for_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reranker.engines.local.LocalEngine.in_process", False)
    documents = random_documents(60)
    model = model_of(documents)
    served = serve(memory_engine(), "docs", tmp_path, documents, model)
    spy = Spy(served.engine)
    reranker = Reranker(spy, "docs", model, settings=SETTINGS)
    body: dict[str, object] = {**BODY, "_source": ["title", field_name(model.encoder_id, "src")]}
    order(reranker, body)  # until sizes are known, the page is read by a second request
    page = reranker.search(QUERY, body)
    assert isinstance(spy.bodies[-1]["_source"], list) and len(spy.bodies) == 3
    assert page.reranked and page.n_encoded == 0


@pytest.mark.parametrize("route", ["fetch", "beside"])
def test_a_changed_document_of_the_page_is_scored_by_the_text_that_the_page_shows(tmp_path: Path, route: str) -> None:
    documents = random_documents(60)
    model = model_of(documents)
    served = serve(memory_engine(), "docs", tmp_path, documents, model)
    store = served.store if route == "beside" else None
    settings = RerankSettings(deadline_ms=None, one_request_bytes=0, alpha=1.0)
    spy = Spy(served.engine)
    reranker = Reranker(spy, "docs", model, route=route, store=store, settings=settings)  # type: ignore[arg-type]
    top = [name for name, _ in order(reranker)[:2]]
    assert len(spy.bodies) == 2
    renewed = dict(documents)
    for name in top:
        renewed[name] = {**documents[name], "title": "word59", "text": f"word58 word57 {QUERY.split()[0]}"}
        served.engine.bulk("docs", [WriteOp("update", name, renewed[name])])
    page = reranker.search(QUERY, BODY, explain=True)
    assert page.n_encoded >= 2 and any("one of an older text" in notice for notice in page.notices)
    assert all(hit.source == renewed[hit.id] for hit in page.hits)
    serve(served.engine, "fresh", tmp_path / "fresh", renewed, model)
    expected = order(Reranker(served.engine, "fresh", model, settings=settings))
    assert [hit.id for hit in page.hits] == [name for name, _ in expected]
    assert [hit.score for hit in page.hits] == pytest.approx([score for _, score in expected], abs=1e-5)
    assert [each.id for each in page.explanations] == [hit.id for hit in page.hits]
    # The page of a body that shows a part of the documents cannot tell.
    assert reranker.search(QUERY, {**BODY, "_source": ["title"]}).n_encoded == 0
