"""Candidates that were changed after their vector was computed, at query time."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from reranker.engines.protocol import WriteOp
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


def test_only_whole_documents_with_a_hash_can_be_outdated(tmp_path: Path) -> None:
    documents = random_documents(10)
    model = model_of(documents)
    served = serve(memory_engine(), "docs", tmp_path, documents, model)
    hits = served.engine.search("docs", {"query": {"match_all": {}}, "size": 3}).hits
    changed = [structs.replace(hit, source={**hit.source, "text": "word99"}) for hit in hits]
    encoder = model.encoder
    assert outdated(encoder, changed) == []  # the source may have been filtered
    whole = [structs.replace(hit, is_whole=True) for hit in (changed[0], hits[1], changed[2])]
    assert outdated(encoder, whole) == [0, 2]
    without = {name: value for name, value in whole[0].source.items() if not name.startswith("ssi_")}
    assert outdated(encoder, [structs.replace(whole[0], source=without)]) == []


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
