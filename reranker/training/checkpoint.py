"""The state of a training run on disk, so that it goes on where it was stopped."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reranker.errors import ArtifactError

_STATE = "state.json"


class Checkpoint:
    """A folder with the arrays of the last finished epoch and what describes them.

    The arrays are written to a file named after their epoch first, then ``state.json`` is renamed into place: a run
    killed at any moment leaves the one or the other state, whole. A state is used only by a run of the same
    fingerprint (settings, data and seed).

    Parameters
    ----------
    folder : Path
        Made when the first state is written.
    fingerprint : mapping
        What the run is; JSON.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, Any]) -> None:
        self.folder = folder
        text = json.dumps(fingerprint, sort_keys=True, default=str)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()

    def write(self, epoch: int, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> None:
        """Keep the state after ``epoch`` epochs."""
        from safetensors.numpy import save

        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"epoch-{epoch}.safetensors"
        data = save({key: np.ascontiguousarray(array) for key, array in arrays.items()})
        _write_durably(self.folder / name, data)
        state = {
            "fingerprint": self.fingerprint,
            "file": name,
            "sha256": hashlib.sha256(data).hexdigest(),
            "values": dict(values),
        }
        _write_durably(self.folder / _STATE, json.dumps({**state, "seal": _seal(state)}).encode())
        for old in self.folder.glob("epoch-*.safetensors"):
            if old.name != name:
                old.unlink(missing_ok=True)

    def read(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]] | None:
        """Return (arrays, values) of the last state, or None where there is none of this run.

        Raises
        ------
        ArtifactError
            If the state is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        if not (self.folder / _STATE).exists():
            return None
        try:
            state = json.loads((self.folder / _STATE).read_bytes())
            if state.pop("seal") != _seal(state):
                raise ValueError(f"{_STATE} is not as it was written")
            if state["fingerprint"] != self.fingerprint:
                return None
            data = (self.folder / Path(str(state["file"])).name).read_bytes()
            if hashlib.sha256(data).hexdigest() != state["sha256"]:
                raise ValueError("its bytes are not those that were written")
            return load(data), dict(state["values"])
        except (ValueError, KeyError, TypeError, AttributeError, SafetensorError, FileNotFoundError) as error:
            raise ArtifactError(
                f"the checkpoint {str(self.folder)!r} is damaged ({error}): remove it, or train with --fresh",
                path=str(self.folder),
            ) from error

    def remove(self) -> None:
        """Delete the folder: the run is done."""
        shutil.rmtree(self.folder, ignore_errors=True)


def digest(parts: Iterable[npt.NDArray[Any] | str]) -> str:
    """Return a hash over arrays and texts, for a fingerprint."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        total.update(f"{len(data)} ".encode())
        total.update(data)
    return total.hexdigest()


def _seal(state: Mapping[str, Any]) -> str:
    """Return a hash over everything else in the state file."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _write_durably(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def remove_checkpoints(folder: Path) -> None:
    """Forget every state of a run: of its first and its second part, of each class that keeps one."""
    for part in ("", "-all"):
        for name in ("", "-tied"):
            shutil.rmtree(folder.with_name(folder.name + part + name), ignore_errors=True)
