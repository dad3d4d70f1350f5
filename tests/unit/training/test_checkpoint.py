"""Checkpoints: found again by the same run alone, refused when damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reranker.arrays import AnyArray
from reranker.errors import ArtifactError
from reranker.training.trainer import TrainingCheckpoint, digest, remove_checkpoints

RUN = {"config": {"dim": 3}, "data": "abc"}
ARRAYS: dict[str, AnyArray] = {
    "U": np.arange(12, dtype=np.float32).reshape(4, 3),
    "states": np.array([2**63 + 5], np.uint64),
}
VALUES = {"epoch": 2, "best_map": 0.25, "history": [{"number": 1, "map": None}]}


@pytest.fixture
def kept(tmp_path: Path) -> TrainingCheckpoint:
    checkpoint = TrainingCheckpoint(tmp_path / "run", RUN)
    checkpoint.write(2, ARRAYS, VALUES)
    return checkpoint


def test_what_was_written_is_read(kept: TrainingCheckpoint) -> None:
    found = TrainingCheckpoint(kept.folder, dict(reversed(RUN.items()))).read()
    assert found is not None
    for name, array in ARRAYS.items():
        assert np.array_equal(found[0][name], array)
        assert found[0][name].dtype == array.dtype
    assert found[1] == VALUES


def test_none_at_first_and_none_when_removed(kept: TrainingCheckpoint, tmp_path: Path) -> None:
    assert TrainingCheckpoint(tmp_path / "other", RUN).read() is None
    remove_checkpoints(kept.folder)
    assert kept.read() is None
    assert not kept.folder.exists()
    remove_checkpoints(kept.folder)


def test_another_run_does_not_use_it(kept: TrainingCheckpoint) -> None:
    assert TrainingCheckpoint(kept.folder, {**RUN, "config": {"dim": 4}}).read() is None
    assert TrainingCheckpoint(kept.folder, {**RUN, "data": "abd"}).read() is None
    with_removed_settings = {"dim": 3, "queries": "mixed", "generalise": "auto"}
    assert TrainingCheckpoint(kept.folder, {**RUN, "config": with_removed_settings}).read() is None


def test_only_the_last_state_stays(kept: TrainingCheckpoint) -> None:
    kept.write(3, ARRAYS, {**VALUES, "epoch": 3})
    assert sorted(path.name for path in kept.folder.iterdir()) == ["epoch-3.safetensors", "state.json"]


def test_any_changed_byte_is_noticed(kept: TrainingCheckpoint) -> None:
    for path in kept.folder.iterdir():
        whole = path.read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 150)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(ArtifactError, match=r"damaged.*remove it, and train again"):
                kept.read()
        path.write_bytes(whole)
    assert kept.read() is not None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"a"', b"{}", b"\xff\xfe", b'{"seal": 1}'])
def test_a_hostile_state_file(kept: TrainingCheckpoint, content: bytes) -> None:
    (kept.folder / "state.json").write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged"):
        kept.read()


def test_missing_or_cut_arrays_are_noticed(kept: TrainingCheckpoint) -> None:
    path = kept.folder / "epoch-2.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ArtifactError):
        kept.read()
    path.unlink()
    with pytest.raises(ArtifactError):
        kept.read()


def test_arrays_written_but_not_yet_named_do_not_count(kept: TrainingCheckpoint) -> None:
    # Killed between the two files of the next state.
    (kept.folder / "epoch-3.safetensors").write_bytes(b"new")
    (kept.folder / ".state.json.1.tmp").write_bytes(b"half")
    found = kept.read()
    assert found is not None
    assert found[1]["epoch"] == 2


def test_the_state_is_json_with_a_seal(kept: TrainingCheckpoint) -> None:
    assert set(json.loads((kept.folder / "state.json").read_text())) == {
        "fingerprint",
        "file",
        "sha256",
        "values",
        "seal",
    }


def test_digests_tell_order_borders_and_types() -> None:
    a, b = np.array([1, 2], np.int64), np.array([2, 1], np.int64)
    assert digest([a]) == digest([a.copy()])
    different: list[list[AnyArray | str]] = [
        [a],
        [b],
        [a, b],
        [b, a],
        [np.array([1, 2], np.int32)],
        ["ab"],
        ["a", "b"],
        [],
        [np.array([])],
    ]
    assert len({digest(parts) for parts in different}) == len(different)
