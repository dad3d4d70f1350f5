"""Hot swap: what is promoted answers if it is sound; what is not leaves the old version answering."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reranker.errors import ArtifactError, EngineOverloaded, EngineUnavailable, GateRefused, InputError
from reranker.models.model_folder import save_model
from reranker.releases import Release, update_control
from reranker.rerank import Calibration, Reranker, body_hash
from reranker.service.serving import UNCHANGED_S, GoldenQuery, drawn_queries, read_golden, verify
from reranker.service.settings import ServiceSettings
from reranker.service.state import open_state
from tests.engines.memory import memory_engine
from tests.served import Served, model_of
from tests.services import PATIENT, TEMPLATE, Site, client_of, promote, service_over, sibling, small_index


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = small_index(tmp_path / "index", memory_engine())
    yield served
    served.engine.close()


def test_what_is_promoted_answers_after_the_next_look(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path)
    assert site.live == site.first.model_id and not site.watcher.poll()
    old = site.state.serving
    promote(served, site.second.model_id)
    assert site.watcher.poll() and site.live == site.second.model_id
    assert old.model_id == site.first.model_id and old.reranker.search("word3", TEMPLATE).model_id == old.model_id
    assert not site.watcher.poll() and site.swaps("done") == 1
    figures = site.state.metrics.text().decode()
    shown = [re.search(rf'model="{site_id[:12]}"}} (.*)', figures) for site_id in (old.model_id, site.live)]
    assert [found and float(found[1]) for found in shown] == [0.0, 1.0]


def test_a_new_calibration_is_taken_too(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path)
    key = Calibration.key(body_hash(TEMPLATE), 200)
    promote(served, site.first.model_id, {key: {"alpha": 0.25}})
    assert site.watcher.poll()
    answer = client_of(site.state).post("/search", json={"query": "word3"}).json()
    assert (answer["alpha"], answer["alpha_origin"]) == (0.25, "calibrated")


def test_a_damaged_model_is_refused_once_and_the_old_one_answers(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path)
    (file,) = (site.models / "second").glob("tensors-*")
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(content)
    promote(served, site.second.model_id)
    assert not site.watcher.poll() and not site.watcher.poll()
    assert site.live == site.first.model_id and site.swaps("refused") == 1
    site.watcher.reload()
    assert not site.watcher.poll() and site.swaps("refused") == 2
    content[-7] ^= 1
    file.write_bytes(content)
    assert site.watcher.poll() and site.live == site.second.model_id


def test_a_model_whose_folder_is_missing_leaves_the_old_one(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path)
    shutil.rmtree(site.models / "second")
    promote(served, site.second.model_id)
    assert not site.watcher.poll() and site.live == site.first.model_id
    save_model(site.second, site.models / "again")
    assert site.watcher.poll() and site.live == site.second.model_id


@pytest.mark.parametrize("route", ["fetch", "beside"])
def test_a_model_made_for_other_vectors_is_refused(served: Served, tmp_path: Path, route: str) -> None:
    site = Site(served, tmp_path, route=route)
    other = model_of(served.documents, seed=5, n_dims=6)
    save_model(other, site.models / "other")
    promote(served, other.model_id)
    assert not site.watcher.poll()
    assert site.live == site.first.model_id and site.swaps("refused") == 1


def test_an_engine_that_is_down_puts_a_swap_off(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(served, tmp_path)
    promote(served, site.second.model_id)

    def down(*arguments: Any, **options: Any) -> Any:
        raise EngineUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(type(served.engine), "search", down)
        assert not site.watcher.poll()
    assert site.swaps("refused") == 0
    assert site.watcher.poll() and site.live == site.second.model_id


def test_a_golden_query_must_find_its_document(served: Served, tmp_path: Path) -> None:
    hit = client_of(service_over(served, tmp_path)).post("/search", json={"query": "word3"}).json()["hits"][0]["id"]
    good = Site(served, tmp_path / "good", [GoldenQuery("word3", hit)])
    promote(served, good.second.model_id)
    bad = Site(served, tmp_path / "bad", [GoldenQuery("word3", "no such document")])
    promote(served, bad.second.model_id)
    assert not bad.watcher.poll() and bad.swaps("refused") == 1


def test_a_golden_query_that_is_answered_in_the_engines_order_proves_nothing(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = service_over(served, tmp_path)
    hit = client_of(state).post("/search", json={"query": "word3"}).json()["hits"][0]["id"]
    golden = [GoldenQuery("word3", hit)]
    verify(state.serving, state.settings, golden)
    search = Reranker.search

    def without_the_model(self: Reranker, *arguments: Any, **options: Any) -> Any:
        return replace(search(self, *arguments, **options), fallback=True)

    monkeypatch.setattr(Reranker, "search", without_the_model)
    with pytest.raises(GateRefused, match="golden query does not have the expected document"):
        verify(state.serving, state.settings, golden)


def test_a_golden_set_that_finds_nothing_is_no_proof(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path)
    with pytest.raises(GateRefused, match="no query of the golden set"):
        verify(state.serving, state.settings, [GoldenQuery("qqqq")])


def test_an_index_whose_vectors_are_mostly_missing_is_refused(served: Served, tmp_path: Path) -> None:
    served.put({f"new{k}": {"title": "word0 word1", "text": "word2 word3"} for k in range(300)}, vectors=False)
    state = service_over(served, tmp_path)
    with pytest.raises(GateRefused, match="ssi revectorize"):
        verify(state.serving, state.settings, [GoldenQuery("word0 word1")])


def test_golden_queries_are_drawn_from_the_models_words(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path)
    drawn = drawn_queries(state.serving)
    assert 1 <= len(drawn) <= 5 and all(one.query.startswith("word") for one in drawn)
    verify(state.serving, state.settings)


@pytest.mark.parametrize("line", ["", "x", '{"expect": "a"}', '{"query": 3}', "[" * 100_000])
def test_a_bad_golden_set_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "golden").write_text(line + "\n")
    with pytest.raises(InputError):
        read_golden(tmp_path / "golden")
    (tmp_path / "golden").write_text('{"query": "a"}\n\n{"query": "b", "expect": "d1"}\n')
    assert read_golden(tmp_path / "golden") == (GoldenQuery("a"), GoldenQuery("b", "d1"))


def test_a_store_written_since_is_taken(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path, route="beside")
    assert not site.watcher.poll()
    served.put({"new": {"title": "word3", "text": "word3 word11"}})
    assert site.watcher.poll()
    store = site.state.serving.reranker.store
    assert store is not None and len(store.get(["new"]).places) == 1


def test_one_model_folder_is_watched_for_its_replacement(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path)
    second = sibling(served, 9)
    save_model(second, tmp_path / "model")
    assert state.watcher is not None and state.watcher.poll()
    assert state.serving.model_id == second.model_id
    with pytest.raises(InputError):
        state.versions.get("abcdef123456")


def test_a_service_that_began_without_a_model_gets_one(served: Served, tmp_path: Path) -> None:
    state = open_state(served.engine, ServiceSettings(index="docs"), model=tmp_path / "model")
    assert state.serving.model is None and state.watcher is not None and not state.watcher.poll()
    save_model(served.model, tmp_path / "model")
    assert state.watcher.poll() and state.serving.model_id == served.model.model_id


@pytest.mark.parametrize("part", ["model", "store"])
def test_a_service_that_starts_while_its_files_are_written_begins_with_all_of_them(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    save_model(served.model, tmp_path / "model")
    files = (tmp_path / "model").glob("tensors-*") if part == "model" else served.store_path.glob("data.mdb")
    file = next(files)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    pauses = []

    def write_a_part(seconds: float) -> None:
        pauses.append(seconds)
        file.write_bytes(content[: len(content) - 1] if len(pauses) == 1 else content)

    monkeypatch.setattr("reranker.service.serving.time.sleep", write_a_part)
    settings = ServiceSettings(index=served.index, route="beside", rerank=PATIENT)
    state = open_state(served.engine, settings, model=tmp_path / "model", store=served.store_path)
    assert len(pauses) == 2 and not state.serving.problem and state.versions.served is not None


def test_a_service_starts_without_a_model_that_stays_damaged_or_changes_without_end(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(served.model, tmp_path / "model")
    (file,) = (tmp_path / "model").glob("tensors-*")
    file.write_bytes(b"torn")
    settings, pauses, sleep = ServiceSettings(index=served.index), [], time.sleep

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) < 20, "the start never ends"
        sleep(seconds)
        if len(pauses) > 1:
            file.write_bytes(b"t" * len(pauses))

    monkeypatch.setattr("reranker.service.serving.time.sleep", pause)
    monkeypatch.setattr("reranker.service.serving.CHANGING_S", 3.5 * UNCHANGED_S)
    assert open_state(served.engine, settings, model=tmp_path / "model").serving.problem
    assert pauses == [UNCHANGED_S]
    assert open_state(served.engine, settings, model=tmp_path / "model").serving.problem
    assert 2 <= len(pauses) - 1 <= 4


def test_versions_asked_for_by_name_are_loaded_and_a_few_kept(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path)
    models = [sibling(served, seed) for seed in range(20, 25)]
    for number, model in enumerate(models):
        save_model(model, site.models / f"m{number}")
    client = client_of(site.state)
    for model in models:
        answer = client.post("/search", json={"query": "word3", "version": model.model_id[:10]}).json()
        assert answer["model_id"] == model.model_id
    assert len(site.state.versions._others) == 3
    listed = client.get("/versions").json()["versions"]
    assert {one["model_id"] for one in listed} == {m.model_id for m in (*models, site.first, site.second)}
    assert [one["model_id"] for one in listed if one["live"]] == [site.first.model_id]
    with pytest.raises(ArtifactError):
        site.state.versions.get("00000000")


def test_a_version_asked_for_by_name_takes_its_new_calibration_and_store(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path, route="beside")
    name = site.second.model_id
    assert not site.state.versions.get(name).reranker.calibration.alphas
    key = Calibration.key(body_hash(TEMPLATE), 200)
    release = Release(name, site.second.encoder_id, {key: {"alpha": 0.25}})
    update_control(served.engine, served.index, lambda record: record.with_release(release))
    served.put({"new": {"title": "word3", "text": "word3 word11"}})
    site.watcher.poll()
    challenger = site.state.versions.get(name)
    assert challenger.reranker.calibration.alphas == {key: 0.25}
    store = challenger.reranker.store
    assert store is not None and len(store.get(["new"]).places) == 1
    site.watcher.poll()
    assert site.state.versions.get(name) is challenger


def test_a_version_asked_for_by_name_stays_where_it_cannot_be_renewed(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path)
    challenger = site.state.versions.get(site.second.model_id)
    shutil.rmtree(site.models / "second")
    assert not site.watcher.poll()
    assert next(iter(site.state.versions._others.values()))[1] is challenger


def test_an_engine_too_busy_to_tell_the_calibration_changes_nothing(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id, key = served.model.model_id, Calibration.key(body_hash(TEMPLATE), 200)
    promote(served, model_id, {key: {"alpha": 0.25}})
    state = service_over(served, tmp_path)
    assert state.watcher is not None and not state.watcher.poll()
    assert state.serving.reranker.calibration.alphas == {key: 0.25}

    def busy(*arguments: Any, **options: Any) -> Any:
        raise EngineOverloaded("busy", status=429)

    monkeypatch.setattr(type(served.engine), "get", busy)
    assert not state.watcher.poll()
    assert state.serving.reranker.calibration.alphas == {key: 0.25}


def test_the_thread_looks_by_itself_and_at_once_when_told(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path, poll_s=60.0)
    site.watcher.start()
    promote(served, site.second.model_id)
    site.state.watcher.reload()
    end = time.monotonic() + 5
    while site.state.serving.model_id != site.second.model_id and time.monotonic() < end:
        time.sleep(0.01)
    assert site.state.serving.model_id == site.second.model_id
    site.state.watcher.close()
    end = time.monotonic() + 5
    while any(thread.name == "ssi-watch" for thread in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(thread.name == "ssi-watch" for thread in threading.enumerate())


def test_the_thread_survives_what_nobody_expected(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(served, tmp_path, poll_s=0.02)
    calls: list[int] = []

    def broken() -> bool:
        calls.append(1)
        raise ZeroDivisionError("canary")

    monkeypatch.setattr(site.watcher, "poll", broken)
    site.watcher.start()
    end = time.monotonic() + 5
    while len(calls) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    site.watcher.close()
    assert len(calls) >= 3 and "polling for another version failed" in caplog.text
