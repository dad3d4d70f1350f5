"""Checkpoints: durable, never of another file, and the reject file that goes with them."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path

import pytest

from indexer.checkpoint import (
    LoadCheckpoint,
    PrefixHash,
    RunRejects,
    check_unchanged,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
    state_dir,
)
from reranker.errors import InputError

DATA = b"".join(b'{"id": "d%d"}\n' % k for k in range(1000))


def test_round_trip_and_absence(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path / "new" / "folder", "a run")
    assert load_checkpoint(path, "a run") is None
    point = LoadCheckpoint("a run", 120, 4, "ab" * 32, {"indexed": 4})
    save_checkpoint(path, point)
    assert load_checkpoint(path, "a run") == point
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(InputError, match="another run"):
        load_checkpoint(path, "b run")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "offset": 3}', b"\xff"])
def test_a_damaged_checkpoint_is_told_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="--restart"):
        load_checkpoint(path, "run")


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.json"
    save_checkpoint(path, LoadCheckpoint("run", 1, 1, "x"))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(path, LoadCheckpoint("run", 2, 2, "y"))
    monkeypatch.undo()
    kept = load_checkpoint(path, "run")
    assert kept is not None
    assert kept.offset == 1
    assert os.listdir(tmp_path) == ["c.json"]


@pytest.mark.parametrize("packed", [False, True])
def test_prefix_hash_is_that_of_the_decompressed_prefix(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "docs"
    path.write_bytes(gzip.compress(DATA) if packed else DATA)
    prefix = PrefixHash(path)
    for offset in (0, 1, 500, len(DATA)):
        assert prefix.at(offset) == hashlib.sha256(DATA[:offset]).hexdigest()
    with pytest.raises(InputError, match="ends before byte"):
        prefix.at(len(DATA) + 1)
    prefix.file.close()


def test_a_changed_file_is_noticed_and_a_grown_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "docs"
    path.write_bytes(DATA)
    point = LoadCheckpoint("run", 100, 7, hashlib.sha256(DATA[:100]).hexdigest())
    path.write_bytes(DATA + b"more\n")
    check_unchanged(point, PrefixHash(path), path)
    path.write_bytes(b"x" + DATA[1:])
    with pytest.raises(InputError, match="has changed before byte 100"):
        check_unchanged(point, PrefixHash(path), path)
    path.write_bytes(DATA[:50])
    with pytest.raises(InputError, match="ends before byte 100"):
        check_unchanged(point, PrefixHash(path), path)


def test_state_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSI_STATE_DIR", "/a/b")
    assert state_dir() == Path("/a/b")
    monkeypatch.delenv("SSI_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert state_dir() == Path("/x/ssi")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_dir() == tmp_path / ".local" / "state" / "ssi"


@pytest.mark.parametrize("torn", [b'{"line": 3, "off', b'{"line": 3, "offset": 30}'])
def test_rejects_behind_a_checkpoint_are_kept_and_those_ahead_are_written_anew(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "rejects"
    first = RunRejects(path, 0)
    first.reject(1, 10, "reader", "x")
    first.reject_write(9, 90, "engine_error: no", "d9", "engine_error")
    first.reject_write(2, 20, "engine_error: no", "d2", "engine_error")
    assert first.before(20) == {"unreadable": 1, "rejected": 0}  # what stands at the checkpoint is still to be read
    assert first.before(50) == {"unreadable": 1, "rejected": 1}
    first.log.close()
    with path.open("ab") as file:
        file.write(torn)  # the line of a killed process
    second = RunRejects(path, 50, unreadable=1, rejected=1)
    second.reject(1, 10, "reader", "x")  # met again, not repeated
    second.reject(7, 70, "reader", "y")
    second.reject_write(9, 90, "engine_error: no", "d9", "engine_error")
    assert second.before(1000) == {"unreadable": 2, "rejected": 2}
    second.log.close()
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(entry["line"], entry["kind"]) for entry in entries] == [
        (1, "other"),
        (2, "engine_error"),
        (7, "other"),
        (9, "engine_error"),
    ]


def test_the_entry_of_the_very_line_where_a_run_goes_on_is_listed_once(tmp_path: Path) -> None:
    path = tmp_path / "rejects"
    for start, offsets in ((0, (0, 10, 20)), (10, (0, 10, 20))):
        rejects = RunRejects(path, start)
        for offset in offsets:
            rejects.reject(offset // 10 + 1, offset, "reader", "x")
        rejects.log.close()
    assert [json.loads(line)["offset"] for line in path.read_text().splitlines()] == [0, 10, 20]
    assert path.stat().st_mode & 0o077 == 0
