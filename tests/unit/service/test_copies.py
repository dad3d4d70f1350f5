"""The service maps private copies, each checked against its sha256: damage is refused, and no ``cp`` can hurt it."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import logging
import mmap
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reranker.errors import ArtifactError, EngineUnavailable
from reranker.models.model_folder import load_model, save_model
from reranker.releases import default_store
from reranker.service import copies, serving
from reranker.service.copies import PREFIX, SHARED_FOLDER, WorkFolder, inherited_folder
from reranker.service.serving import Serving, Wanted, Watcher
from reranker.service.settings import ServiceSettings
from reranker.service.state import ServiceState, open_state
from reranker.store import MANIFEST, VectorStore, read_store_manifest, store_files
from tests.engines.memory import memory_engine
from tests.served import Served, random_documents, serve
from tests.services import PATIENT, Site, client_of, promote, service_over, sibling, small_index


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the system's temporary folder, one of this test."""
    folder = tmp_path / "tmpdir"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = small_index(tmp_path / "index", memory_engine())
    yield served
    served.engine.close()


@pytest.fixture
def work() -> Iterator[WorkFolder]:
    with WorkFolder() as work:
        yield work


def file_of(path: Path, content: bytes) -> tuple[Path, str]:
    path.write_bytes(content)
    return path, hashlib.sha256(content).hexdigest()


def copy(work: WorkFolder, path: Path, sha256: str) -> Any:
    with path.open("rb") as source:
        return work.copy(source, path, sha256)


def names(work: WorkFolder) -> list[str]:
    return sorted(entry.name for entry in work.path.iterdir())


def ask(state: ServiceState) -> Any:
    return client_of(state).post("/search", json={"query": "word3 word11"}).json()


def order(state: ServiceState) -> list[str]:
    return [hit["id"] for hit in ask(state)["hits"]]


def ready(state: ServiceState) -> tuple[int, Any]:
    answer = client_of(state).get("/ready")
    return answer.status_code, answer.json()


# --- the work folder


def test_a_copy_has_the_bytes_of_its_source_and_is_shared(work: WorkFolder, tmp_path: Path) -> None:
    content = os.urandom(100_000)
    path, sha256 = file_of(tmp_path / "a", content)
    with copy(work, path, sha256) as first, copy(work, path, sha256) as second:
        assert first.read() == second.read() == content
        assert os.path.samestat(os.fstat(first.fileno()), os.fstat(second.fileno()))
        assert not os.path.samestat(os.fstat(first.fileno()), path.stat())
        assert names(work) == [sha256]
    assert stat.S_IMODE(work.path.stat().st_mode) == 0o700


def test_a_copy_is_made_block_by_block(work: WorkFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "BLOCK_BYTES", 7)
    sizes: list[int] = []
    pread = os.pread

    def noted(descriptor: int, n_bytes: int, offset: int) -> bytes:
        sizes.append(n_bytes)
        return pread(descriptor, n_bytes, offset)

    monkeypatch.setattr(os, "pread", noted)
    path, sha256 = file_of(tmp_path / "a", b"0123456789" * 3)
    with copy(work, path, sha256) as made:
        assert made.read() == b"0123456789" * 3
    assert sizes == [7, 7, 7, 7, 2]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1] + b"?",
        lambda content: content[: len(content) // 2],
        lambda content: content + b"!",
        lambda content: b"",
    ],
)
def test_another_content_is_refused_and_leaves_nothing(
    work: WorkFolder, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path, sha256 = file_of(tmp_path / "a", b"content" * 100)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ArtifactError, match="differs from the sha256 in its manifest") as caught:
        copy(work, path, sha256)
    assert str(path) in str(caught.value) and names(work) == []


def test_a_file_truncated_while_it_is_copied_is_refused(
    work: WorkFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "BLOCK_BYTES", 10)
    path, sha256 = file_of(tmp_path / "a", b"0123456789" * 3)
    pread = os.pread

    def truncating(descriptor: int, n_bytes: int, offset: int) -> bytes:
        if offset == 20:
            os.truncate(path, 5)
        return pread(descriptor, n_bytes, offset)

    monkeypatch.setattr(os, "pread", truncating)
    with pytest.raises(ArtifactError, match="differs from the sha256 in its manifest"):
        copy(work, path, sha256)
    assert names(work) == []


@pytest.mark.parametrize("sha256", ["", "0" * 63, "../" + "0" * 61, "0" * 64 + ".part"])
def test_a_hash_that_is_none_names_no_file(work: WorkFolder, tmp_path: Path, sha256: str) -> None:
    path, _ = file_of(tmp_path / "a", b"x")
    with pytest.raises(ArtifactError, match="the manifest has no sha256"):
        copy(work, path, sha256)


def test_a_copy_stays_as_long_as_its_map(work: WorkFolder, tmp_path: Path) -> None:
    path, sha256 = file_of(tmp_path / "a", b"content")
    with copy(work, path, sha256) as made:
        mapped = mmap.mmap(made.fileno(), 7, access=mmap.ACCESS_READ)
    work.tidy()
    assert names(work) == [sha256] and mapped[:] == b"content"
    mapped.close()
    work.tidy()
    assert names(work) == []


def test_a_copy_that_another_process_has_mapped_stays(work: WorkFolder, tmp_path: Path) -> None:
    path, sha256 = file_of(tmp_path / "a", b"content")
    other = WorkFolder(work.path)
    with copy(other, path, sha256):
        work.tidy()
        assert names(work) == [sha256]
    other.close()
    assert work.path.is_dir(), "only who has made the folder removes it"


def test_a_half_made_copy_of_a_killed_process_is_made_again(work: WorkFolder, tmp_path: Path) -> None:
    path, sha256 = file_of(tmp_path / "a", b"content")
    (work.path / f"{sha256}.part").write_bytes(b"a longer beginning")
    with copy(work, path, sha256) as made:
        assert made.read() == b"content" and names(work) == [sha256]
    for kind in ("part", "lock"):
        (work.path / f"{'0' * 64}.{kind}").write_bytes(b"")
    (work.path / "figures").mkdir()
    work.tidy()
    assert names(work) == ["figures"]


def test_many_threads_make_one_copy(work: WorkFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "BLOCK_BYTES", 1000)
    path, sha256 = file_of(tmp_path / "a", os.urandom(100_000))
    read: list[int] = []
    pread = os.pread

    def slow(*args: Any) -> bytes:
        read.append(args[1])
        time.sleep(0.001)
        return pread(*args)

    monkeypatch.setattr(os, "pread", slow)
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.append(copy(work, path, sha256))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(read) == 100_000 and {one.read() for one in made} == {path.read_bytes()}
    assert len({os.fstat(one.fileno()).st_ino for one in made}) == 1
    for one in made:
        one.close()


def test_copies_that_are_removed_meanwhile_do_not_matter(work: WorkFolder, tmp_path: Path) -> None:
    path, sha256 = file_of(tmp_path / "a", b"content" * 1000)
    failed: list[Exception] = []
    end = time.monotonic() + 1.0

    def copying() -> None:
        while time.monotonic() < end:
            try:
                with copy(work, path, sha256) as made:
                    assert made.read() == b"content" * 1000
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=copying) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        work.tidy()
    assert not failed


def test_the_folder_is_removed_at_the_end(temporary: Path, tmp_path: Path) -> None:
    path, sha256 = file_of(tmp_path / "a", b"content")
    with WorkFolder() as work:
        assert list(temporary.iterdir()) == [], "made when it is first needed"
        made = copy(work, path, sha256)
        assert [entry.name.startswith(PREFIX) for entry in temporary.iterdir()] == [True]
    assert list(temporary.iterdir()) == [] and made.read() == b"content"
    made.close()
    work = WorkFolder()
    copy(work, path, sha256).close()
    del work
    gc.collect()
    assert list(temporary.iterdir()) == [], "also where nobody has closed it"


def test_copying_ends_when_the_service_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sha256 = file_of(tmp_path / "a", b"content")
    with WorkFolder() as work:
        work.close()
        with pytest.raises(ArtifactError):
            copy(work, path, sha256)


def test_what_a_killed_service_has_left_is_removed_at_the_next_start(
    temporary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    left_over, other = temporary / f"{PREFIX}dead", temporary / "somebody-elses"
    for folder in (left_over, other):
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_bytes(b"x")
    (temporary / f"{PREFIX}link").symlink_to(target)
    with WorkFolder() as living:
        _ = living.path
        assert not left_over.exists() and other.exists() and (target / "file").exists()
        with WorkFolder() as second, WorkFolder(living.path) as child:
            assert second.path != living.path and living.path.is_dir() and child.path == living.path
    assert "removed an abandoned work folder" in caplog.text


def test_a_folder_swept_as_it_was_made_is_made_again(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def swept(**options: Any) -> str:
        made.append(mkdtemp(**options))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with WorkFolder() as work:
        assert str(work.path) == made[1] and work.path.is_dir()


def test_a_folder_swept_before_it_is_locked_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[str] = []
    flock = fcntl.flock

    def sweeping(descriptor: int, kind: int) -> None:
        if not swept:
            swept.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            os.rmdir(swept[0])
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", sweeping)
    with WorkFolder() as work:
        assert work.path.is_dir() and [str(work.path)] != swept != []


def test_a_child_process_finds_the_folder_of_its_parent(work: WorkFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inherited_folder() is None
    monkeypatch.setenv(SHARED_FOLDER, str(work.path))
    child = inherited_folder()
    assert child is not None and child.path == work.path
    child.close()


# --- a service over damaged files


def flip_signs(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(1, len(content) // 2, 2):
        content[place] ^= 0x80
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def overwrite(path: Path) -> None:
    path.write_bytes(b"\x01" * path.stat().st_size)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "signs": flip_signs,
    "truncated": cut,
    "replaced": overwrite,
    "missing": Path.unlink,
}


def vectors_of(store: Path) -> Path:
    (file,) = store.glob("segment-*/vectors.*")
    return file


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_store_is_not_served(served: Served, tmp_path: Path, kind: str) -> None:
    file = vectors_of(served.store_path)
    DAMAGES[kind](file)
    state = service_over(served, tmp_path, route="beside")
    answer = ask(state)
    assert answer["fallback"] and "no vector store" in answer["reason"]
    assert [hit["first_stage_rank"] for hit in answer["hits"]] == list(range(1, 11))
    status, said = ready(state)
    assert status == 200 and str(file) in said["degraded"]
    assert not state.watcher.poll() and not state.watcher.poll()
    assert state.metrics.registry.get_sample_value("ssi_swaps_total", {"result": "refused"}) == 1


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", ["keys.u8", "rows.i8", "ids.bin", "indptr.i8", "indices.i4", "data.f4", "sources.u8"])
def test_every_file_of_a_store_is_verified(
    served: Served, tmp_path: Path, work: WorkFolder, kind: str, name: str
) -> None:
    (file,) = served.store_path.glob(f"*/{name}")
    DAMAGES[kind](file)
    with pytest.raises(ArtifactError, match=name):
        VectorStore.open(served.store_path, copy=work.copy)


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_model_is_not_served(served: Served, tmp_path: Path, work: WorkFolder, kind: str) -> None:
    save_model(served.model, tmp_path / "damaged")
    (file,) = (tmp_path / "damaged").glob("tensors-*")
    DAMAGES[kind](file)
    with pytest.raises(ArtifactError, match="damaged"):
        load_model(tmp_path / "damaged", copy=work.copy)
    state = open_state(
        served.engine, ServiceSettings(index="docs", rerank=PATIENT, body=TEMPLATE), model=tmp_path / "damaged"
    )
    answer = ask(state)
    assert answer["fallback"] and answer["reason"] == "no model is loaded"


def test_what_is_served_survives_its_files(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, route="beside")
    before = order(state)
    assert ask(state)["reranked"]
    for folder in (tmp_path / "model", served.store_path):
        for file in folder.rglob("*.*"):
            os.truncate(file, 0)
    assert order(state) == before and ask(state)["reranked"]
    assert not state.watcher.poll() and order(state) == before and ask(state)["reranked"]
    assert ready(state)[0] == 200 and not state.serving.problem


def test_nothing_that_is_mapped_lies_in_the_served_folders(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, route="beside")
    _ = state.serving
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    own = [str(tmp_path / "model"), str(served.store_path)]
    # The store that the test itself has open is mapped where it lies.
    mapped = [line for line in lines if any(folder in line for folder in own)]
    assert not mapped and any(PREFIX in line for line in lines)


def test_a_model_folder_that_is_read_only_is_served(served: Served, tmp_path: Path) -> None:
    save_model(served.model, tmp_path / "sealed")
    folders = [tmp_path / "sealed", served.store_path, *served.store_path.glob("*-*")]
    for folder in folders:
        folder.chmod(0o500)
    try:
        settings = ServiceSettings(index="docs", route="beside", rerank=PATIENT)
        state = open_state(served.engine, settings, model=tmp_path / "sealed", store=served.store_path)
        assert ask(state)["reranked"]
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_a_full_disk_gives_the_engines_order_with_the_remedy(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, block: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        state = service_over(served, tmp_path, route="beside")
    answer = ask(state)
    assert answer["fallback"] and [hit["first_stage_rank"] for hit in answer["hits"]] == list(range(1, 11))
    status, said = ready(state)
    assert status == 200 and "No space left" in said["degraded"] and "TMPDIR" in said["degraded"]
    assert names(state.work) == []
    assert state.watcher.poll() and ask(state)["reranked"], "there is room again"


def test_a_work_folder_that_cannot_be_made_gives_the_engines_order(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    state = service_over(served, tmp_path)
    assert ask(state)["fallback"]
    assert "TMPDIR" in ready(state)[1]["degraded"]


def test_no_verify_maps_files_where_they_lie(served: Served, tmp_path: Path, temporary: Path) -> None:
    flip_signs(vectors_of(served.store_path))
    state = service_over(served, tmp_path, route="beside", verify=False)
    assert ask(state)["reranked"] and list(temporary.iterdir()) == []
    state.watcher.poll()
    state.close()


def test_the_work_folder_is_removed_when_the_service_ends(served: Served, tmp_path: Path, temporary: Path) -> None:
    state = service_over(served, tmp_path, route="beside")
    assert len(list(temporary.iterdir())) == 1
    state.close()
    assert list(temporary.iterdir()) == []


# --- another version


def test_copies_of_versions_that_are_gone_are_removed(served: Served, tmp_path: Path) -> None:
    site = Site(served, tmp_path, route="beside")
    store = {
        file.sha256 for file in store_files(served.store_path, read_store_manifest(served.store_path)) if file.n_bytes
    }
    first, second = (model.manifest["files"] for model in (site.first, site.second))
    of_first, of_second = ({entry["sha256"] for entry in files.values()} for files in (first, second))
    assert set(names(site.state.work)) == store | of_first
    promote(served, site.second.model_id)
    assert site.watcher.poll()
    gc.collect()
    site.watcher.poll()
    assert set(names(site.state.work)) == store | of_second


def replace_store(served: Served, path: Path, seed: int) -> Path:
    """Return a store of the same ids and encoder with other vectors, of the same generation."""
    other = serve(memory_engine(), "docs", path, random_documents(80, seed=seed), served.model)
    other.engine.close()
    return other.store_path


def test_a_store_copied_over_the_served_one_is_taken_when_it_is_whole(served: Served, tmp_path: Path) -> None:
    other = replace_store(served, tmp_path / "other", 9)
    assert read_store_manifest(other).generation == read_store_manifest(served.store_path).generation
    state = service_over(served, tmp_path, route="beside")
    before = order(state)
    shutil.copy(other / MANIFEST, served.store_path / MANIFEST)
    files = [file.path for file in store_files(Path(), read_store_manifest(other)) if file.n_bytes]
    for number, name in enumerate(files):
        content = (other / name).read_bytes()
        target = served.store_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content[: len(content) // 2])
        assert not state.watcher.poll() and order(state) == before, number
        target.write_bytes(content)
        if number + 1 < len(files):
            assert not state.watcher.poll() and order(state) == before, number
    assert state.watcher.poll()
    service = service_over(served, tmp_path, route="beside")
    assert order(state) == order(service) != before and ask(state)["reranked"]


def test_a_model_copied_over_the_served_one_is_taken_when_it_is_whole(served: Served, tmp_path: Path) -> None:
    second = sibling(served, 7)
    save_model(second, tmp_path / "next")
    state = service_over(served, tmp_path)
    (tensors,) = (tmp_path / "next").glob("tensors-*")
    shutil.copy(tmp_path / "next" / "manifest.json", tmp_path / "model")
    assert not state.watcher.poll() and state.serving.model_id == served.model.model_id
    (tmp_path / "model" / tensors.name).write_bytes(tensors.read_bytes()[:-9])
    assert not state.watcher.poll() and state.serving.model_id == served.model.model_id
    shutil.copy2(tensors, tmp_path / "model")
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
        with pytest.raises(ArtifactError, match="sha256"):
            versions.get(name)
    file.write_bytes(content)
    assert versions.get(name).model_id == name


def test_a_version_by_name_that_cannot_be_renewed_is_copied_once(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(served, tmp_path, route="beside")
    challenger = site.state.versions.get(site.second.model_id)
    served.put({"new": {"title": "word3", "text": "word3 word11"}})
    flip_signs(max(served.store_path.glob("segment-*/vectors.*")))
    opened: list[Any] = []
    open_one = site.state.versions.open

    def noted(wanted: Wanted) -> Serving:
        opened.append(wanted)
        return open_one(wanted)

    monkeypatch.setattr(site.state.versions, "open", noted)
    for _ in range(3):
        site.watcher.poll()
    assert len(opened) == 2, "the live one and the challenger, once each"
    assert site.state.versions.get(site.second.model_id) is challenger


# --- a large store


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_COPIED_AT_ONCE", 1000)


def test_a_large_store_is_verified_in_the_background(served: Served, tmp_path: Path, large: None) -> None:
    state = service_over(served, tmp_path, route="beside", poll_s=1000.0)
    answer = ask(state)
    assert answer["fallback"] and "being verified" in answer["reason"] and answer["model_id"]
    assert [hit["first_stage_rank"] for hit in answer["hits"]] == list(range(1, 11))
    assert b'ssi_fallbacks_total{cause="no_store"}' in state.metrics.text()
    status, said = ready(state)
    assert status == 503 and said["error"]["type"] == "verifying"
    state.watcher.start()
    end = time.monotonic() + 30
    while state.serving.verifying and time.monotonic() < end:
        time.sleep(0.01)
    assert ready(state) == (200, {**ready(state)[1], "degraded": ""}) and ask(state)["reranked"]
    state.watcher.close()


def test_the_damage_of_a_large_store_is_told_when_it_is_found(served: Served, tmp_path: Path, large: None) -> None:
    file = vectors_of(served.store_path)
    good = file.read_bytes()
    flip_signs(file)
    state = service_over(served, tmp_path, route="beside")
    assert ready(state)[0] == 503
    assert not state.watcher.poll() and not state.watcher.poll()
    status, said = ready(state)
    assert status == 200 and str(file) in said["degraded"] and "copy it again" in said["degraded"]
    answer = ask(state)
    assert answer["fallback"] and answer["reason"] == "route beside has no vector store" and answer["model_id"]
    assert state.metrics.registry.get_sample_value("ssi_swaps_total", {"result": "refused"}) == 1
    file.write_bytes(good)
    assert state.watcher.poll() and ask(state)["reranked"]


def test_a_large_store_whose_manifest_goes_is_given_up(served: Served, tmp_path: Path, large: None) -> None:
    state = service_over(served, tmp_path, route="beside")
    (served.store_path / MANIFEST).rename(tmp_path / MANIFEST)
    assert not state.watcher.poll() and ready(state)[0] == 200 and "no vector store" in state.serving.problem
    (tmp_path / MANIFEST).rename(served.store_path / MANIFEST)
    assert state.watcher.poll() and ask(state)["reranked"]


def test_an_engine_that_is_down_leaves_a_large_store_to_be_verified(
    served: Served, tmp_path: Path, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(served, tmp_path, route="beside")

    def down(*arguments: Any, **options: Any) -> Any:
        raise EngineUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(type(served.engine), "get", down)
        assert not site.watcher.poll() and site.state.serving.verifying
    assert site.watcher.poll() and site.live == site.first.model_id


def test_a_large_store_that_another_process_has_copied_is_served_at_once(
    served: Served, tmp_path: Path, large: None
) -> None:
    first = service_over(served, tmp_path, route="beside")
    assert first.serving.verifying and first.watcher.poll()
    settings = first.settings
    second = open_state(
        served.engine, settings, model=tmp_path / "model", store=served.store_path, work=WorkFolder(first.work.path)
    )
    assert not second.serving.verifying and ask(second)["reranked"]
    second.close()
    assert first.work.path.is_dir()


def test_a_version_by_name_with_a_large_store_is_verified_in_the_background(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(served, tmp_path)
    for model in ("first", "second"):
        shutil.copytree(served.store_path, default_store(site.models / model, served.engine.spec, "docs"))
    settings = ServiceSettings(index="docs", route="beside", rerank=PATIENT)
    state = open_state(served.engine, settings, models=site.models)
    assert ask(state)["reranked"]
    store = default_store(site.models / "second", served.engine.spec, "docs")
    shutil.rmtree(store)
    shutil.copytree(replace_store(served, tmp_path / "other", 9), store)
    monkeypatch.setattr(serving, "MAX_COPIED_AT_ONCE", 1000)
    woken: list[int] = []
    state.versions.on_request = lambda: woken.append(1)
    body = {"query": "word3", "version": site.second.model_id}
    for _ in range(2):
        answer = client_of(state).post("/search", json=body)
        assert answer.status_code == 503 and answer.json()["error"]["type"] == "verifying"
    assert woken == [1, 1]
    state.watcher.poll()
    answer = client_of(state).post("/search", json=body)
    assert answer.status_code == 200 and answer.json()["reranked"]
    assert answer.json()["model_id"] == site.second.model_id


def test_a_request_for_a_version_wakes_the_watcher(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path)
    watcher = Watcher(state.versions, state.metrics)
    state.versions.on_request()
    assert watcher._wake.is_set()


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


def test_a_store_is_never_written_in_place(served: Served) -> None:
    generations = [held(served.store_path)]
    for number in range(4):
        served.put({f"new{number}": {"title": "word3", "text": "word3 word11"}, "d1": {"title": f"word{number}"}})
        generations.append(held(served.store_path))
    assert len(generations[0]) >= 9
    for old in generations:
        assert all(bytes(mapped) == content for mapped, content in old.values())
