"""Models and stores of a running service: damage is refused, what is replaced by renaming is taken."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reranker.errors import ArtifactError
from reranker.models.model_folder import load_model, save_model
from reranker.service.serving import Serving, Wanted
from reranker.service.settings import ServiceSettings
from reranker.service.state import ServiceState, open_state
from reranker.store import DATA, VectorStore
from tests.engines.memory import memory_engine
from tests.served import Served, random_documents, serve
from tests.services import PATIENT, TEMPLATE, Site, client_of, service_over, sibling, small_index


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = small_index(tmp_path / "index", memory_engine())
    yield served
    served.engine.close()


def ask(state: ServiceState) -> Any:
    return client_of(state).post("/search", json={"query": "word3"}).json()


def order(state: ServiceState) -> list[str]:
    return [hit["id"] for hit in ask(state)["hits"]]


def ready(state: ServiceState) -> tuple[int, Any]:
    answer = client_of(state).get("/ready")
    return answer.status_code, answer.json()


def flip_signs(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(1, len(content) // 2, 2):
        content[place] ^= 0x80
    replace_file(path, bytes(content))


def cut(path: Path) -> None:
    replace_file(path, path.read_bytes()[:-1])


def overwrite(path: Path) -> None:
    replace_file(path, b"\x01" * path.stat().st_size)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by renaming, because others may have mapped the old one."""
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").rename(path)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "signs": flip_signs,
    "truncated": cut,
    "replaced": overwrite,
    "missing": Path.unlink,
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_store_is_not_served(served: Served, tmp_path: Path, kind: str) -> None:
    file = served.store_path / DATA
    DAMAGES[kind](file)
    state = service_over(served, tmp_path, route="beside")
    answer = ask(state)
    assert answer["fallback"] and "no vector store" in answer["reason"]
    assert [hit["first_stage_rank"] for hit in answer["hits"]] == list(range(1, 11))
    status, said = ready(state)
    assert status == 200 and str(served.store_path) in said["degraded"] and "ssi index" in said["degraded"]
    assert not state.watcher.poll() and not state.watcher.poll()


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_model_is_not_served(served: Served, tmp_path: Path, kind: str) -> None:
    save_model(served.model, tmp_path / "damaged")
    (file,) = (tmp_path / "damaged").glob("tensors-*")
    DAMAGES[kind](file)
    with pytest.raises(ArtifactError, match="damaged"):
        load_model(tmp_path / "damaged")
    state = open_state(
        served.engine, ServiceSettings(index="docs", rerank=PATIENT, body=TEMPLATE), model=tmp_path / "damaged"
    )
    answer = ask(state)
    assert answer["fallback"] and answer["reason"] == "no model is loaded"


def test_a_service_that_began_without_a_store_gets_one(served: Served, tmp_path: Path) -> None:
    served.store_path.rename(tmp_path / "away")
    state = service_over(served, tmp_path, route="beside")
    assert not state.watcher.poll() and "no vector store" in ready(state)[1]["degraded"]
    (tmp_path / "away").rename(served.store_path)
    assert state.watcher.poll() and ask(state)["reranked"] and not state.serving.problem


def test_a_model_folder_that_is_read_only_is_served(served: Served, tmp_path: Path) -> None:
    save_model(served.model, tmp_path / "sealed")
    folders = [tmp_path / "sealed", served.store_path]
    for folder in folders:
        folder.chmod(0o500)
    try:
        settings = ServiceSettings(index="docs", route="beside", rerank=PATIENT)
        state = open_state(served.engine, settings, model=tmp_path / "sealed", store=served.store_path)
        assert ask(state)["reranked"]
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_what_is_served_survives_the_removal_of_its_files(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, route="beside")
    before = order(state)
    for folder in (tmp_path / "model", served.store_path):
        shutil.rmtree(folder)
    assert order(state) == before and ask(state)["reranked"]
    assert not state.watcher.poll() and order(state) == before and ask(state)["reranked"]
    assert ready(state)[0] == 200 and not state.serving.problem


def other_store(served: Served, path: Path, seed: int) -> Path:
    """Return a store of the same ids and encoder with other vectors, of the same generation."""
    other = serve(memory_engine(), "docs", path, random_documents(80, seed=seed), served.model)
    other.engine.close()
    return other.store_path


def test_a_store_that_is_renamed_over_the_served_one_is_taken(served: Served, tmp_path: Path) -> None:
    other = other_store(served, tmp_path / "other", 9)
    state = service_over(served, tmp_path, route="beside")
    before, old = order(state), state.serving.reranker.store
    served.store_path.rename(tmp_path / "old")
    assert not state.watcher.poll() and order(state) == before
    other.rename(served.store_path)
    assert state.watcher.poll() and not state.watcher.poll()
    new = state.serving.reranker.store
    assert old and new and old.state.generation == new.state.generation
    after = order(state)
    assert after == order(service_over(served, tmp_path, route="beside")) != before and ask(state)["reranked"]
    for name in ("back", "forth"):
        served.store_path.rename(tmp_path / name)
        (tmp_path / ("old" if name == "back" else "back")).rename(served.store_path)
        assert state.watcher.poll() and order(state) == (before if name == "back" else after)


def test_a_store_that_is_still_being_copied_is_taken_when_it_is_whole(served: Served, tmp_path: Path) -> None:
    content = (other_store(served, tmp_path / "other", 9) / DATA).read_bytes()
    state = service_over(served, tmp_path, route="beside")
    before = order(state)
    served.store_path.rename(tmp_path / "old")
    served.store_path.mkdir()
    for part in (content[: len(content) // 2], content[:-1]):
        replace_file(served.store_path / DATA, part)
        assert not state.watcher.poll() and order(state) == before
    replace_file(served.store_path / DATA, content)
    assert state.watcher.poll() and order(state) != before and ask(state)["reranked"]


def test_a_model_copied_over_the_served_one_is_taken_when_it_is_whole(served: Served, tmp_path: Path) -> None:
    second = sibling(served, 7)
    save_model(second, tmp_path / "next")
    state = service_over(served, tmp_path)
    (tensors,) = (tmp_path / "next").glob("tensors-*")
    replace_file(tmp_path / "model" / "manifest.json", (tmp_path / "next" / "manifest.json").read_bytes())
    assert not state.watcher.poll() and state.serving.model_id == served.model.model_id
    (tmp_path / "model" / tensors.name).write_bytes(tensors.read_bytes()[:-9])
    assert not state.watcher.poll() and state.serving.model_id == served.model.model_id
    replace_file(tmp_path / "model" / tensors.name, tensors.read_bytes())
    assert state.watcher.poll() and state.serving.model_id == second.model_id
    assert state.metrics.registry.get_sample_value("ssi_swaps_total", {"result": "refused"}) == 2


def test_a_version_by_name_that_failed_is_tried_again_when_its_files_change(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(served, tmp_path)
    (file,) = (site.models / "second").glob("tensors-*")
    content = file.read_bytes()
    flip_signs(file)
    name, versions = site.second.model_id, site.state.versions
    with pytest.raises(ArtifactError):
        versions.get(name)
    with monkeypatch.context() as patch:
        patch.setattr(versions, "open", lambda wanted: pytest.fail("opened again"))
        with pytest.raises(ArtifactError, match="damaged"):
            versions.get(name)
    with file.open("r+b") as written:  # neither its inode nor its size changes
        written.write(content)
    assert versions.get(name).model_id == name


def test_a_version_by_name_that_cannot_be_renewed_is_opened_once(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(served, tmp_path, route="beside")
    challenger = site.state.versions.get(site.second.model_id)
    served.put({"new": {"title": "word3", "text": "word3 word11"}})
    opened: list[Any] = []

    def failing(wanted: Wanted) -> Serving:
        opened.append(wanted)
        raise ArtifactError("damaged")

    monkeypatch.setattr(site.state.versions, "open", failing)
    for _ in range(3):
        site.watcher.poll()
    assert len(opened) == 2, "the live one and the challenger, once each"
    assert site.state.versions.get(site.second.model_id) is challenger


# --- our own commands


def held(folder: Path) -> dict[Path, tuple[mmap.mmap, bytes]]:
    """Return a map of each file of a folder, and the bytes that it has now."""
    maps = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            maps[path] = (mapped, bytes(mapped))
    return maps


def test_a_model_is_never_saved_in_place(served: Served, tmp_path: Path) -> None:
    save_model(served.model, tmp_path / "model")
    old = held(tmp_path / "model")
    for seed in range(3):
        save_model(sibling(served, seed), tmp_path / "model")
    save_model(served.model, tmp_path / "model")
    save_model(served.model, tmp_path / "model")
    assert len(old) == 2 and all(bytes(mapped) == content for mapped, content in old.values())


def test_a_store_that_is_written_while_it_is_read_keeps_its_states_and_its_file(served: Served) -> None:
    states: list[tuple[VectorStore, bytes]] = []
    ids, inode = [*served.documents, "new0", "new3"], os.stat(served.store_path / DATA).st_ino
    for number in range(4):
        store = served.store
        states.append((store, store.get(ids).vectors.tobytes()))
        served.put({f"new{number}": {"title": "word3", "text": "word3 word11"}, "d1": {"title": f"word{number}"}})
    assert os.stat(served.store_path / DATA).st_ino == inode and len(set(content for _, content in states)) == 4
    assert all(store.get(ids).vectors.tobytes() == content for store, content in states)
