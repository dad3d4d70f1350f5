"""Checkpoints of a load: the position up to which a file was sent, so that an interrupted run can be resumed.

A checkpoint is written after the engine's acknowledgement, never before it. It identifies the input by the SHA-256 of
all bytes before the offset, so that a resumed run detects a changed file, but accepts one that has only grown. Rejects
are written immediately, some of them for lines after the last checkpoint. A resumed run reads those lines again, so it
first removes their entries from the reject file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reranker.errors import InputError
from reranker.files import write_file
from reranker.formats import RejectLog, open_content, open_error

_BLOCK = 1 << 20


FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class LoadCheckpoint:
    """A position in the input. Everything before ``offset`` is settled."""

    source_id: str
    """Identifies what the run reads and where it writes, see `source_id`."""
    offset: int
    """Byte of the decompressed input at which the run continues; for Parquet the row."""
    line: int
    """Number of lines (rows) before it."""
    prefix_sha256: str
    """SHA-256 of the input before the offset, see `PrefixHash`."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of documents settled so far, by outcome."""


def state_dir() -> Path:
    """Return the folder of checkpoints: ``$SSI_STATE_DIR``, ``$XDG_STATE_HOME/ssi`` or ``~/.local/state/ssi``."""
    if own := os.environ.get("SSI_STATE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "ssi"


def checkpoint_path(folder: Path, source_id: str) -> Path:
    """Return the path of a run's checkpoint file."""
    return folder / f"checkpoint-{hashlib.sha256(source_id.encode()).hexdigest()[:24]}.json"


def save_checkpoint(path: Path, checkpoint: LoadCheckpoint) -> None:
    """Write a checkpoint atomically. After a crash or an `OSError` the old one is still there."""
    write_file(path, json.dumps({"format": FORMAT_VERSION, **asdict(checkpoint)}).encode(), private=True)


def load_checkpoint(path: Path, source_id: str) -> LoadCheckpoint | None:
    """Return the checkpoint of a run; None if there is none. Raises `InputError` if it is damaged or of another run."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
        if value.pop("format") != FORMAT_VERSION:
            raise ValueError("unknown format")
        checkpoint = LoadCheckpoint(**value)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"checkpoint {str(path)!r} cannot be read ({error}): delete it, or use --restart, to begin again"
        raise InputError(message, path=str(path)) from error
    if checkpoint.source_id != source_id:
        raise InputError(f"checkpoint {str(path)!r} belongs to another run: delete it, or use --restart")
    return checkpoint


class PrefixHash:
    """SHA-256 of the first bytes of a file, decompressed, or, if ``whole`` (for Parquet), of the whole file."""

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self._path, self._whole = path, whole
        self._hash, self._at = hashlib.sha256(), 0
        try:
            self.file = path.open("rb") if whole else open_content(path)
            while whole and (block := self.file.read(_BLOCK)):
                self._hash.update(block)
        except OSError as error:
            raise open_error(path, error) from error

    def at(self, offset: int) -> str:
        """Return the digest of the bytes before ``offset``, which must not decrease.

        Raises `InputError` if the file is shorter.
        """
        if self._whole:
            return self._hash.hexdigest()
        while self._at < offset:
            try:
                block = self.file.read(min(_BLOCK, offset - self._at))
            except (OSError, EOFError) as error:
                raise open_error(self._path, error) from error
            if not block:
                raise InputError(
                    f"the file {str(self._path)!r} ends before byte {offset}, at which this run would continue. It has "
                    "changed: start from the beginning with --restart",
                    path=str(self._path),
                )
            self._hash.update(block)
            self._at += len(block)
        return self._hash.hexdigest()


def check_unchanged(checkpoint: LoadCheckpoint, prefix: PrefixHash, path: Path) -> None:
    """Raise `InputError` if the file's content before the checkpoint has changed."""
    if prefix.at(checkpoint.offset) != checkpoint.prefix_sha256:
        message = (
            f"the file {str(path)!r} has changed before byte {checkpoint.offset} (line {checkpoint.line}) since the "
            "interrupted run: start from the beginning with --restart"
        )
        raise InputError(message, path=str(path), offset=checkpoint.offset)


class RunRejects:
    """Records rejects, each once even if a run is killed, and counts those before a position in the input.

    The run continues at ``start_offset``: entries from there on are removed from the reject file (None: rejects are
    only counted), and rejects of the reader before it are not repeated. ``unreadable`` and ``rejected`` are the counts
    in the checkpoint.
    """

    def __init__(self, path: Path | None, start_offset: int, unreadable: int = 0, rejected: int = 0) -> None:
        kept = _drop_entries(path, start_offset) if path is not None else 0
        self.log = RejectLog(path, keep_bytes=kept)
        self._start_offset = start_offset
        self._before = {"unreadable": unreadable, "rejected": rejected}
        self._ahead: list[tuple[int, str]] = []

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Record a line rejected by the reader (as a `reranker.formats.RejectSink`)."""
        if offset >= self._start_offset:
            self._ahead.append((offset, "unreadable"))
            self.log.reject(line, offset, reason, sample, kind=kind)

    def reject_write(self, line: int, offset: int, reason: str, identifier: str, error_type: str) -> None:
        """Record a readable document that was rejected; ``error_type`` is the engine's name for the error, or ""."""
        self._ahead.append((offset, "rejected"))
        self.log.reject(line, offset, reason, identifier, kind=error_type or "not_acceptable")

    def before(self, offset: int) -> dict[str, int]:
        """Return the counts of rejects before ``offset`` by class; ``offset`` must not decrease."""
        for place, name in self._ahead:
            self._before[name] += place < offset
        self._ahead = [(place, name) for place, name in self._ahead if place >= offset]
        return dict(self._before)

    @property
    def unreadable(self) -> int:
        """Number of lines rejected by the reader so far."""
        return self._before["unreadable"] + sum(name == "unreadable" for _, name in self._ahead)


def _drop_entries(path: Path, start_offset: int) -> int:
    """Remove the entries from ``start_offset`` on, and an incomplete last line; return the remaining length."""
    if start_offset == 0 or not path.exists():
        return 0
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if _offset_of(line) < start_offset]
    write_file(path, kept, private=True)
    return sum(map(len, kept))


def _offset_of(line: bytes) -> float:
    """Return the input position to which an entry of a reject file refers; infinite for an incomplete line."""
    try:
        return int(json.loads(line)["offset"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf
