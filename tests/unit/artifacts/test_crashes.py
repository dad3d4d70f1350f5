"""Saving is all or nothing: killed at any step or moment, out of disk, raced by readers and by other writers."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker import files
from reranker.errors import ArtifactError
from reranker.files import write_file
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.models.tensor_file import _open_regular
from reranker.text.vocabulary import Vocabulary
from tests.seeds import seeded_rng
from tests.unit.small_models import small_encoder, small_model

DIED_AS_PLANNED = 86


@pytest.fixture(scope="module")
def models() -> tuple[RankingModel, RankingModel]:
    """Return two models of 3 MB, so that a save takes some time, and the ids of both are known."""
    words = tuple(f"w{i:06}" for i in range(8000))
    vocabulary = Vocabulary(words, np.full(len(words), 3), 9)
    encoder = small_encoder()
    both = []
    for seed in (1, 2):
        U, V = seeded_rng(seed).normal(size=(2, len(words), 50)).astype(np.float32)
        parts: dict[str, Any] = {"document_vocabulary": vocabulary, "V": V}
        large = type(encoder)(**{**{name: getattr(encoder, name) for name in encoder.__dataclass_fields__}, **parts})
        both.append(RankingModel(large, vocabulary, U, training={"seed": seed}))
        assert both[-1].model_id
    return both[0], both[1]


def in_child(action: Callable[[], None]) -> int:
    """Run ``action`` in a copy of this process that writes files and nothing else; return its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        action()
        status = 0
    finally:
        os._exit(status)


def leftovers(folder: Path) -> list[str]:
    """Return the files that no model needs."""
    needed = {"manifest.json"}
    with contextlib.suppress(ArtifactError):
        needed |= set(load_model(folder).manifest["files"])
    return sorted({path.name for path in folder.iterdir()} - needed)


def die_at(step: int) -> None:
    """Make the ``step``-th file operation of this process its last one, before it is done."""
    count = [0]

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == step:
                os._exit(DIED_AS_PLANNED)
            return operation(*arguments, **named)

        return run

    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    Path.unlink = counted(Path.unlink)  # type: ignore[method-assign]
    files.open = counted(open)  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", [True, False], ids=["first save", "replacement"])
def test_a_death_before_any_step_leaves_the_old_model_or_the_new(first: bool, tmp_path: Path) -> None:
    old, new = small_model(seed=1), small_model(seed=2)
    expected = {None if first else old.model_id, new.model_id}
    seen = set()
    for step in range(1, 100):
        folder = tmp_path / str(step)
        if not first:
            save_model(old, folder)

        def killed(step: int = step, folder: Path = folder) -> None:
            die_at(step)
            save_model(new, folder)

        _, status = os.waitpid(in_child(killed), 0)
        found = None
        if (folder / "manifest.json").exists():
            found = load_model(folder).model_id
        seen.add(found)
        assert found in expected
        save_model(new, folder)
        assert load_model(folder).model_id == new.model_id
        assert leftovers(folder) == []
        if os.waitstatus_to_exitcode(status) == 0:
            assert step > 6  # two files written, made durable and renamed, and the folder made durable twice
            break
        assert os.waitstatus_to_exitcode(status) == DIED_AS_PLANNED
    assert seen == expected


@pytest.mark.slow
def test_kill_9_at_50_random_moments(models: tuple[RankingModel, RankingModel], tmp_path: Path) -> None:
    ids = {model.model_id for model in models}
    rng = seeded_rng()
    save_model(models[0], tmp_path)
    start = time.perf_counter()
    save_model(models[1], tmp_path)
    one_save = time.perf_counter() - start

    def save_for_ever() -> None:
        while True:
            for model in models:
                save_model(model, tmp_path)

    n_partial, seen = 0, set()
    for _ in range(50):
        child = in_child(save_for_ever)
        time.sleep(rng.uniform(0, 4 * one_save))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seen.add(load_model(tmp_path).model_id)
        n_partial += bool(leftovers(tmp_path))
    assert seen <= ids
    assert n_partial > 0, "no kill fell into a save: the delays do not fit this machine"
    save_model(models[0], tmp_path)
    assert leftovers(tmp_path) == []
    save_model(models[0], tmp_path / "never killed")
    for name in ("manifest.json", next(iter(models[0].manifest["files"]))):
        assert (tmp_path / name).read_bytes() == (tmp_path / "never killed" / name).read_bytes()


def test_what_a_crash_left_is_swept_by_the_next_save(tmp_path: Path) -> None:
    for name in (
        ".ssi-tmp-manifest.json",
        ".ssi-tmp-tensors-0123456789ab.safetensors",
        "tensors-0123456789ab.safetensors",
    ):
        (tmp_path / name).write_bytes(b"half")
    save_model(small_model(), tmp_path)
    assert leftovers(tmp_path) == []


@contextlib.contextmanager
def running(action: Callable[[], None]) -> Iterator[None]:
    """Run ``action`` in a child process while the block runs."""
    child = in_child(action)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_readers_always_find_a_whole_model_while_it_is_replaced(tmp_path: Path) -> None:
    both = small_model(seed=1), small_model(seed=2)
    save_model(both[0], tmp_path)
    mapped = load_model(tmp_path)
    before = mapped.U.copy()

    def save_for_ever() -> None:
        while True:
            for model in both:
                save_model(model, tmp_path)

    with running(save_for_ever):
        seen: set[str] = set()
        loads, deadline = 0, time.monotonic() + 60
        while (loads < 300 or len(seen) < 2) and time.monotonic() < deadline:
            seen.add(load_model(tmp_path).model_id)
            loads += 1
    assert loads >= 300 and seen == {model.model_id for model in both}
    np.testing.assert_array_equal(mapped.U, before)  # its file is long gone


def test_a_reader_that_is_slower_than_several_saves_finds_the_newest_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = small_model(seed=1), small_model(seed=2)
    save_model(both[0], tmp_path)
    others, open_file = [both[1], both[0]] * 5, _open_regular

    def replaced_before(path: Path) -> int:
        if others:
            save_model(others.pop(0), tmp_path)
        return open_file(path)

    monkeypatch.setattr("reranker.models.model_folder._open_regular", replaced_before)
    assert load_model(tmp_path).model_id == both[0].model_id
    assert not others


def test_two_writers_at_once_leave_one_whole_model(tmp_path: Path) -> None:
    both = small_model(seed=1), small_model(seed=2)
    assert all(model.model_id for model in both)

    def save_often(model: RankingModel) -> Callable[[], None]:
        def save() -> None:
            for _ in range(20):
                save_model(model, tmp_path)

        return save

    children = [in_child(save_often(model)) for model in both]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert load_model(tmp_path).model_id in {model.model_id for model in both}
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_one_clear_error_and_the_old_model_stays(
    models: tuple[RankingModel, RankingModel], tmp_path: Path
) -> None:
    save_model(models[0], tmp_path)

    def save_without_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        with pytest.raises(ArtifactError, match=r"cannot be written: File too large; its old content is unchanged"):
            save_model(models[1], tmp_path)

    assert os.waitstatus_to_exitcode(os.waitpid(in_child(save_without_room), 0)[1]) == 0
    assert load_model(tmp_path).model_id == models[0].model_id
    assert leftovers(tmp_path) == []
    save_model(models[1], tmp_path)
    assert load_model(tmp_path).model_id == models[1].model_id


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_failing_disk_is_one_clear_error(operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(small_model(seed=1), tmp_path)

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, operation, fail)
        with pytest.raises(ArtifactError, match="Input/output error"):
            save_model(small_model(seed=2), tmp_path)
    assert load_model(tmp_path).model_id == small_model(seed=1).model_id


def test_a_full_disk_is_told_with_the_file_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as refusal:
        write_file(tmp_path / "report.html", b"x")
    assert refusal.value.filename == str(tmp_path / "report.html")


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", deny)  # root may write anywhere, so the refusal itself is played
    with pytest.raises(ArtifactError, match="Permission denied"):
        save_model(small_model(), tmp_path / "x")


def test_data_is_durable_before_the_pointer_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        steps.append("sync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "sync file")
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> None:
        steps.append(f"rename {target.name.split('-')[0]}")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    save_model(small_model(), tmp_path)
    assert steps == [
        "sync file",
        "rename tensors",
        "sync folder",
        "sync file",
        "rename manifest.json",
        "sync folder",
    ]
