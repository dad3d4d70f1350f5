"""One retraining of an index at a time, and none over a live version that it has not compared itself with.

Two processes on one machine are kept apart by a file lock, which the system takes back from a process that is killed.
Processes on two machines are kept apart where it counts: a promotion is one write to the control record, refused
where the live version is no longer the one that the gate compared with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from reranker.errors import GateRefused
from reranker.releases import ControlRecord, default_store

FOLDER = ".retrain"


def work_folder(models: Path, engine_spec: str, index: str) -> Path:
    """Return where a retraining of an index keeps its lock, documents and checkpoint: ``<models>/.retrain/<key>``."""
    return models.resolve() / FOLDER / default_store(models / FOLDER, engine_spec, index).name


@contextlib.contextmanager
def only_one(folder: Path, index: str) -> Iterator[None]:
    """Hold the lock of a work folder, made where it is missing.

    Raises
    ------
    GateRefused
        Where another process holds it: nothing was begun.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise GateRefused(
            f"another `ssi retrain` of index {index!r} is at work with these models (lock {str(folder / 'lock')!r}): "
            "wait until it has ended",
            index=index,
        ) from error
    try:
        yield
    finally:
        lock.release()


def still_live(expected: str | None) -> Callable[[ControlRecord], None]:
    """Return a check for `indexer.versions.promote`: the live version is still the one compared with.

    Parameters
    ----------
    expected : str or None
        Model id that was live when the retraining began; None where none was.
    """

    def check(record: ControlRecord) -> None:
        if record.live != expected:
            raise GateRefused(
                f"the live version of {record.index!r} is {_name(record.live)} by now, and the new model was compared "
                f"with {_name(expected)}: nothing was promoted; run `ssi retrain` again",
                index=record.index,
                live=record.live,
            )

    return check


def _name(model_id: str | None) -> str:
    return model_id[:12] if model_id else "none"
