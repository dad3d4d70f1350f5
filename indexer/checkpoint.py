"""How far a run has come, durably: written after the engine's acknowledgement, never ahead of it.

A checkpoint names the input by the SHA-256 of all its bytes before the offset, so that a resumed run notices a file
that was changed behind its back; one that only grew goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reranker.errors import InputError
from reranker.formats.lines import open_error

_BLOCK = 1 << 20
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything before ``offset`` is settled.

    Parameters
    ----------
    source_id : str
        What the run reads and where it writes (file, engine, index, encoder), as one string.
    offset : int
        Byte of the decompressed input where the run goes on; the row for Parquet.
    line : int
        Lines (rows) before it.
    prefix_sha256 : str
        SHA-256 of the input before the offset, see `PrefixHash`.
    counts : mapping of str to int
        Documents settled so far, by outcome.
    """

    source_id: str
    offset: int
    line: int
    prefix_sha256: str
    counts: Mapping[str, int] = field(default_factory=dict)


def state_dir() -> Path:
    """Return the folder of checkpoints: ``$SSI_STATE_DIR``, ``$XDG_STATE_HOME/ssi`` or ``~/.local/state/ssi``."""
    own = os.environ.get("SSI_STATE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "ssi"


def checkpoint_path(folder: Path, source_id: str) -> Path:
    """Return the file of a run's checkpoint."""
    return folder / f"checkpoint-{hashlib.sha256(source_id.encode()).hexdigest()[:24]}.json"


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that a crash at any moment leaves the old or the new one: temp file, fsync, rename.

    Raises
    ------
    OSError
        Where it cannot be written (a full disk); the old one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps({"format": FORMAT_VERSION, **asdict(checkpoint)}).encode()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_checkpoint(path: Path, source_id: str) -> Checkpoint | None:
    """Return the checkpoint of a run, None where there is none.

    Raises
    ------
    InputError
        If the file is damaged or of another run.
    """
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
        if value.pop("format") != FORMAT_VERSION:
            raise ValueError("unknown format")
        checkpoint = Checkpoint(**value)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"checkpoint {str(path)!r} cannot be read ({error}): delete it, or run with --restart, to begin again",
            path=str(path),
        ) from error
    if checkpoint.source_id != source_id:
        raise InputError(f"checkpoint {str(path)!r} belongs to another run: delete it, or run with --restart")
    return checkpoint


class PrefixHash:
    """SHA-256 over the first bytes of a file (decompressed, as the readers count), extended as a run goes on.

    For Parquet, which cannot be appended to, the hash is that of the whole file whatever the row.

    Parameters
    ----------
    path : Path
        The input.
    whole : bool
        True for Parquet.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self._path = path
        self._whole = whole
        self._hash = hashlib.sha256()
        self._at = 0
        try:
            self._file = _open_bytes(path)
            if whole:
                while block := self._file.read(_BLOCK):
                    self._hash.update(block)
        except OSError as error:
            raise open_error(path, error) from error

    def at(self, offset: int) -> str:
        """Return the digest of the bytes before ``offset``, which never moves back.

        Raises
        ------
        InputError
            If the file ends before the offset: it was cut meanwhile.
        """
        if self._whole:
            return self._hash.hexdigest()
        while self._at < offset:
            try:
                block = self._file.read(min(_BLOCK, offset - self._at))
            except (OSError, EOFError) as error:
                raise open_error(self._path, error) from error
            if not block:
                raise InputError(
                    f"the file {str(self._path)!r} ends before byte {offset}, where this run should go on: it was "
                    "changed since; begin again with --restart",
                    path=str(self._path),
                )
            self._hash.update(block)
            self._at += len(block)
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open_bytes(path: Path) -> Any:
    import gzip

    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")


def check_unchanged(checkpoint: Checkpoint, prefix: PrefixHash, path: Path) -> None:
    """Raise `InputError` unless the file still begins as it did when the checkpoint was written."""
    if prefix.at(checkpoint.offset) != checkpoint.prefix_sha256:
        raise InputError(
            f"the file {str(path)!r} was changed before byte {checkpoint.offset} (line {checkpoint.line}) since the "
            "interrupted run: begin again with --restart",
            path=str(path),
            offset=checkpoint.offset,
        )
