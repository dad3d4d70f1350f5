"""Stores that are damaged, or made to hurt: refused with a clear error, soon, and never read without an end."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reranker import store as stores
from reranker.errors import ArtifactError, RerankerError
from reranker.store import MANIFEST, StoreWriter, VectorStore, read_store_manifest, write_store_manifest
from tests.unit.store.test_store import ENCODER, N, add, values_of


def write_store(path: Path, ids: tuple[str, ...] = ("a", "b"), value: int = 1) -> Path:
    with StoreWriter(path, ENCODER, N) as writer:
        add(writer, list(ids), [value] * len(ids))
    return path


def refused(path: Path) -> str:
    """Return why a store is refused; fails if that takes long."""
    found: list[BaseException | None] = []

    def attempt() -> None:
        try:
            VectorStore.open(path, ENCODER, verify=True)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(20.0)
    assert not thread.is_alive(), "it is read without an end"
    assert len(found) == 1 and isinstance(found[0], ArtifactError), found
    return str(found[0])


@pytest.mark.parametrize("name", [MANIFEST, "index-*/keys.u8", "segment-*/ids.bin", "segment-*/vectors.f4"])
@pytest.mark.parametrize("kind", ["pipe", "device", "endless device", "folder", "dangling", "loop"])
def test_files_that_are_none(tmp_path: Path, name: str, kind: str) -> None:
    (path,) = write_store(tmp_path / "store").glob(name)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        target = {"device": "/dev/null", "endless device": "/dev/zero", "dangling": "nowhere", "loop": path.name}[kind]
        path.symlink_to(target)
    message = refused(tmp_path / "store")
    assert "ssi index" in message or "cannot be read" in message


def test_a_store_behind_a_link_is_opened(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    (tmp_path / "current").symlink_to("store")
    assert len(VectorStore.open(tmp_path / "current", ENCODER, verify=True)) == 2


def test_a_link_that_is_changed_while_a_store_is_opened_gives_one_store_or_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write_store(tmp_path / "first"), write_store(tmp_path / "second", ("a", "b", "c"), 2)
    link, opened = tmp_path / "current", 0
    files = len(stores.store_files(first, read_store_manifest(first))) + 1
    plain: Any = stores._open_regular
    for turn in range(files):
        link.unlink(missing_ok=True)
        link.symlink_to(first)
        opened = 0

        def swapping(path: Path, turn: int = turn) -> Any:
            nonlocal opened
            if opened == turn:
                link.unlink()
                link.symlink_to(second)
            opened += 1
            return plain(path)

        monkeypatch.setattr(stores, "_open_regular", swapping)
        with suppress(ArtifactError):
            store = VectorStore.open(link, ENCODER, verify=True)
            assert values_of(store, ["a", "b", "c"]) in ({"a": 1, "b": 1}, {"a": 2, "b": 2, "c": 2})
        monkeypatch.setattr(stores, "_open_regular", plain)
        assert len(VectorStore.open(link, ENCODER, verify=True)) == 3


MANIFESTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "cut": lambda good: good[: len(good) // 2],
    "deep": lambda good: b"[" * 100_000,
    "no object": lambda good: b"[]",
    "not UTF-8": lambda good: good.replace(b"ssi-store", b"ssi-stor\xff"),
    "unknown key": lambda good: good.replace(b"{\n", b'{\n"more": 1,\n', 1),
    "negative number": lambda good: good.replace(b'"generation": ', b'"generation": -'),
    "long number": lambda good: good.replace(b'"generation": ', b'"generation": ' + b"9" * 5000),
    "number of 2**63": lambda good: good.replace(b'"generation": ', b'"generation": 922337203685477580'),
    "text for a number": lambda good: good.replace(b'"dims": 5', b'"dims": "5"'),
    "NaN": lambda good: good.replace(b'"generation": ', b'"generation": NaN, "x": '),
    "17 MB": lambda good: good + b" " * 17 * 2**20,
}


@pytest.mark.parametrize("name", list(MANIFESTS))
def test_bytes_that_are_no_manifest(tmp_path: Path, name: str) -> None:
    path = write_store(tmp_path / "store") / MANIFEST
    good = path.read_bytes()
    changed = MANIFESTS[name](good)
    path.write_bytes(changed)
    if changed == good:
        pytest.fail("this case changes nothing")
    refused(tmp_path / "store")


@pytest.mark.parametrize(
    "change",
    [
        {"n_rows": 2**40},
        {"n_rows": 2**62},
        {"n_rows": 3},
        {"n_terms": 2**62},
        {"n_terms": -1},
        {"n_id_bytes": 2**62},
        {"number": 2**40},
        {"number": -1},
        {"number": 7},
        {"sha256": {}},
        {"sha256": {"../../x": "0" * 64}},
        {"n_rows": 0, "n_id_bytes": 0, "n_terms": 0},
    ],
    ids=str,
)
def test_segments_that_do_not_fit_their_files(tmp_path: Path, change: dict[str, Any]) -> None:
    """Also where the manifest has a hash of its own that is right: whoever writes one can compute it."""
    store = write_store(tmp_path / "store")
    manifest = read_store_manifest(store)
    segments = [msgspec.structs.replace(manifest.segments[0], **change)]
    write_store_manifest(store, msgspec.structs.replace(manifest, segments=segments))
    refused(store)


@pytest.mark.parametrize("change", [{"n_entries": 2**62}, {"n_entries": 1}, {"number": 9}, {"sha256": {}}], ids=str)
def test_an_index_that_does_not_fit_its_files(tmp_path: Path, change: dict[str, Any]) -> None:
    store = write_store(tmp_path / "store")
    manifest = read_store_manifest(store)
    write_store_manifest(
        store, msgspec.structs.replace(manifest, index=msgspec.structs.replace(manifest.index, **change))
    )
    refused(store)


def test_one_segment_twice_and_none_at_all_are_refused_or_harmless(tmp_path: Path) -> None:
    for segments in (2, 0):
        store = write_store(tmp_path / f"store-{segments}")
        manifest = read_store_manifest(store)
        write_store_manifest(store, msgspec.structs.replace(manifest, segments=list(manifest.segments) * segments))
        with suppress(RerankerError):  # any other error is one of the store's own
            opened = VectorStore.open(store, ENCODER, verify=True)
            assert len(opened.rows_of(["a", "nobody"])) == 2


def test_a_store_is_not_written_through_a_link(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store")
    target = tmp_path / "target"
    shutil.copy(store / MANIFEST, target)
    before = target.read_bytes()
    (store / MANIFEST).unlink()
    (store / MANIFEST).symlink_to(target)
    with StoreWriter(store, ENCODER, N) as writer:
        add(writer, ["c"], [3])
    assert target.read_bytes() == before and not (store / MANIFEST).is_symlink()
    assert len(VectorStore.open(store, ENCODER, verify=True)) == 3
