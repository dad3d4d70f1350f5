"""The reject log: counts, the file's form, resuming, and disks that are full."""

from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path

import pytest

from reranker.errors import InputError
from reranker.formats import RecordError, RejectLog


def test_without_a_file_it_counts() -> None:
    with RejectLog() as log:
        assert log.summary() == "no record was refused"
        log.reject(3, 17, "not JSON", b"{oops", kind="not_json")
        log.reject(4, 23, "no id", kind="id_missing")
        log.reject(9, 99, "not JSON", kind="not_json")
    assert log.count == 3
    assert log.kinds == {"not_json": 2, "id_missing": 1}
    assert log.summary() == "3 records were refused (2 not_json, 1 id_missing); first: line 3: not JSON"


def test_the_file_holds_one_json_object_a_record(tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    with RejectLog(path) as log:
        log.reject(3, 17, "not JSON: é", b"\xff{\nline \x00\x1b[2J" + b"x" * 1000, kind="not_json")
        log.reject(5, 40, "no id", "y" * 1000)
        assert len(path.read_bytes().splitlines()) == 2  # there before the log is closed
    first, second = map(json.loads, path.read_text("ascii").splitlines())
    assert first == {
        "line": 3,
        "offset": 17,
        "kind": "not_json",
        "reason": "not JSON: é",
        "sample": "\ufffd{\nline \x00\x1b[2J" + "x" * 187,
    }
    assert (second["kind"], len(second["sample"])) == ("other", 200)
    assert log.n_bytes == path.stat().st_size
    assert str(path) in log.summary()


def test_the_file_is_its_owners_only(tmp_path: Path) -> None:
    RejectLog(tmp_path / "rejects.jsonl").close()
    assert stat.S_IMODE((tmp_path / "rejects.jsonl").stat().st_mode) == 0o600


def test_a_new_run_begins_anew_and_a_resumed_one_keeps_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    with RejectLog(path) as log:
        log.reject(1, 0, "first")
        checkpoint = log.n_bytes
        log.reject(2, 9, "after the checkpoint")
    with RejectLog(path, keep_bytes=checkpoint) as log:
        log.reject(2, 9, "again")
    assert [json.loads(line)["reason"] for line in path.read_text().splitlines()] == ["first", "again"]
    with RejectLog(path) as log:
        assert log.n_bytes == 0
    assert path.read_bytes() == b""
    with RejectLog(path, keep_bytes=10**6) as log:
        assert log.n_bytes == 0


def test_a_file_that_cannot_be_made_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="free the disk or name another file"):
        RejectLog(tmp_path / "missing" / "rejects.jsonl")
    with pytest.raises(InputError, match="cannot be written"):
        RejectLog(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full (Linux)")
def test_a_full_disk_is_an_input_error(tmp_path: Path) -> None:
    log = RejectLog(tmp_path / "rejects.jsonl")
    full = os.open("/dev/full", os.O_WRONLY)
    assert log._fd is not None
    os.dup2(full, log._fd)
    os.close(full)
    with log, pytest.raises(InputError, match="No space left"):
        log.reject(1, 0, "reason")


def test_a_record_error_survives_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(RecordError("not_json", "not JSON at all")))  # noqa: S301 - our own bytes
    assert (error.kind, str(error)) == ("not_json", "not JSON at all")
