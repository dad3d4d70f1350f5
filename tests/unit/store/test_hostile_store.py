"""Stores that are damaged, or made to hurt: refused with a clear error, soon, and never read without an end."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
import pytest

from reranker.errors import ArtifactError
from reranker.store import DATA, FORMAT, StoreHeader, StoreWriter, VectorStore
from tests.unit.store.test_store import ENCODER, N, add, values_of


def write_store(path: Path, ids: tuple[str, ...] = ("a", "b"), value: int = 1) -> Path:
    with StoreWriter(path, ENCODER, N) as writer:
        add(writer, list(ids), [value] * len(ids))
    return path


def refused(path: Path, opened: Callable[[Path], Any] = lambda path: VectorStore.open(path, ENCODER)) -> str:
    """Return why a store is refused; fails if that takes long."""
    found: list[BaseException | None] = []

    def attempt() -> None:
        try:
            opened(path)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(20.0)
    assert not thread.is_alive(), "it is read without an end"
    assert len(found) == 1 and isinstance(found[0], ArtifactError), found
    return str(found[0])


@pytest.mark.parametrize("kind", ["pipe", "device", "endless device", "folder", "dangling", "loop"])
def test_files_that_are_none(tmp_path: Path, kind: str) -> None:
    path = write_store(tmp_path / "store") / DATA
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        target = {"device": "/dev/null", "endless device": "/dev/zero", "dangling": "nowhere", "loop": path.name}[kind]
        path.symlink_to(target)
    assert "ssi index" in refused(tmp_path / "store")


def test_a_store_behind_a_link_is_opened(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    (tmp_path / "current").symlink_to("store")
    assert len(VectorStore.open(tmp_path / "current", ENCODER)) == 2


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "a byte missing": lambda good: good[:-1],
    "a page missing": lambda good: good[:-4096],
    "half": lambda good: good[: len(good) // 2],
    "one page": lambda good: good[:4096],
    "a few bytes": lambda good: good[:100],
    "zeros": lambda good: bytes(len(good)),
    "random": lambda good: np.random.default_rng(0).bytes(len(good)),
    "text": lambda good: b'{"format": "ssi-store"}' * 1000,
    "second start damaged": lambda good: good[:4096] + bytes(4096) + good[8192:],
    "page size 0": lambda good: good[:40] + bytes(4) + good[44:],
    "page size of gigabytes": lambda good: good[:40] + b"\0\0\0\x40" + good[44:],
    "more pages than bytes": lambda good: good[:136] + b"\xff" * 7 + b"\0" + good[144:],
}


@pytest.mark.parametrize("kind", list(DAMAGES))
def test_damaged_files_are_refused_before_they_are_mapped(tmp_path: Path, kind: str) -> None:
    path = write_store(tmp_path / "store") / DATA
    good = path.read_bytes()
    path.unlink()
    path.write_bytes(DAMAGES[kind](good))
    assert path.read_bytes() != good
    assert "ssi index" in refused(tmp_path / "store")
    if kind != "empty":  # which a writer takes for new
        refused(tmp_path / "store", lambda path: StoreWriter(path, ENCODER, N))
    path.unlink()
    path.write_bytes(good)
    assert values_of(VectorStore.open(tmp_path / "store"), ["a", "b"]) == {"a": 1, "b": 1}


def change_record(path: Path, key: bytes, value: bytes) -> None:
    """Put a record into a store, as a foreign program can."""
    with lmdb.open(str(path), map_size=1 << 30) as environment, environment.begin(write=True) as transaction:
        transaction.put(key, value)


HEADER = StoreHeader(FORMAT, 2, ENCODER, N, "float32", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"format_version": 3},
        {"dims": 0},
        {"dims": 10**9},
        {"quantisation": "pickle"},
        {"generation": -1},
        {"generation": 2**62, "dims": -(2**62)},
    ],
    ids=str,
)
def test_a_header_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write_store(tmp_path / "store")
    change_record(path, b"\xff", msgspec.json.encode(msgspec.structs.replace(HEADER, **change)))
    refused(path)
    refused(path, lambda path: StoreWriter(path, ENCODER, N))


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"[]", b"\xff\xfe", b'{"format": "ssi-store"}'])
def test_bytes_that_are_no_header(tmp_path: Path, content: bytes) -> None:
    path = write_store(tmp_path / "store")
    change_record(path, b"\xff", content)
    refused(path)


@pytest.mark.parametrize("length", [0, 7, 8, 8 + 4 * N - 4, 8 + 4 * N + 4, 8 + 4 * N + 9])
def test_a_document_of_a_length_that_none_has(tmp_path: Path, length: int) -> None:
    path = write_store(tmp_path / "store")
    change_record(path, b"a", bytes(length))
    store = VectorStore.open(path)
    assert values_of(store, ["b"]) == {"b": 1}
    with pytest.raises(ArtifactError, match="damaged length"):
        store.get(["a", "b"])


def test_an_lmdb_file_of_another_program_is_no_store(tmp_path: Path) -> None:
    change_record(tmp_path / "store", b"key", b"value")
    assert "not published" in refused(tmp_path / "store")


def test_a_store_of_the_version_before_names_the_commands_that_build_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    (path / "segment-000001").mkdir(parents=True)
    (path / "store.json").write_text('{"format": "ssi-store", "format_version": 1}')
    for opened in (VectorStore.open, lambda path: StoreWriter(path, ENCODER, N)):
        message = refused(path, opened)
        assert "format version 1" in message and "ssi index --write-store" in message
    assert sorted(entry.name for entry in path.iterdir()) == ["segment-000001", "store.json"]
    shutil.rmtree(path)
    assert len(VectorStore.open(write_store(path))) == 2
