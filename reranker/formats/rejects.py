"""What happens to input that breaks a rule: it is counted, kept with its place and reason, and never stops a run."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from reranker.errors import InputError

MAX_SAMPLE_CHARS = 200


class RecordError(InputError):
    """A line or row that breaks a rule; raised by parsers and caught by readers, which know its place.

    ``kind`` is one word for counting, the same for all records of this fault (``duplicate_id``).
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason, kind=kind)

    @property
    def kind(self) -> str:
        """One word for counting."""
        return str(self.data["kind"])


class RejectSink(Protocol):
    """Whatever takes refused records."""

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Take one refused record, with a word for counting.

        ``line`` is the 1-based line or row, ``offset`` the byte of the decompressed stream where it begins, or the
        0-based row of Parquet. Of ``sample``, the beginning of the record, `MAX_SAMPLE_CHARS` characters are kept.
        """
        ...


class RejectLog(AbstractContextManager["RejectLog"]):
    """Counts refused records and, with a path, writes each to a file of JSON lines.

    A record is ``{"line", "offset", "kind", "reason", "sample"}`` and is handed to the operating system at once, so
    that it outlives the process. Use it as a context manager, or call `close`.

    Parameters
    ----------
    path : path-like or None
        The reject file, readable by its owner only, made or emptied when the log is; None only counts.
    keep_bytes : int
        With a run that resumes: how much of an existing file is kept (its `n_bytes` at the checkpoint).

    Raises
    ------
    InputError
        Where the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, keep_bytes: int = 0) -> None:
        self.path = None if path is None else Path(path)
        self.kinds: Counter[str] = Counter()
        self._first = ""
        self.n_bytes = 0
        self._fd: int | None = None
        if self.path is not None:
            try:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                os.ftruncate(self._fd, min(keep_bytes, os.fstat(self._fd).st_size))
                self.n_bytes = os.lseek(self._fd, 0, os.SEEK_END)
            except (OSError, ValueError) as error:
                self.close()
                raise self._unwritable(error) from error

    @property
    def count(self) -> int:
        """Number of refused records of this run."""
        return self.kinds.total()

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Count one refused record and write it.

        Raises
        ------
        InputError
            Where the file cannot be written (a full disk).
        """
        self.kinds[kind] += 1
        self._first = self._first or f"; first: line {line}: {reason}"
        if self._fd is None:
            return
        record = {"line": line, "offset": offset, "kind": kind, "reason": reason, "sample": _printable(sample)}
        data = json.dumps(record).encode("ascii") + b"\n"
        try:
            while data:
                n_written = os.write(self._fd, data)
                self.n_bytes += n_written
                data = data[n_written:]
        except OSError as error:
            raise self._unwritable(error) from error

    def summary(self) -> str:
        """Return one line for people: how many records were refused, of which kinds, where they are, and the first."""
        if not self.count:
            return "no record was refused"
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in self.kinds.most_common())
        place = f"; see {self.path}" if self.path else ""
        return f"{self.count:,} records were refused ({kinds}){place}{self._first}"

    def close(self) -> None:
        """Close the file; the counts stay readable."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def _unwritable(self, error: Exception) -> InputError:
        message = f"the reject file {self.path} cannot be written ({error})"
        return InputError(f"{message}: free the disk or name another file", path=str(self.path))


class StrictSink:
    """Raises at the first refused record: what readers use where no sink is given.

    ``path`` is the file being read, for the message.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Raise `InputError` with the record's place and reason."""
        message = f"{self._path}, line {line} (byte {offset}): {reason}"
        data = {"path": self._path, "line": line, "offset": offset, "kind": kind, "sample": _printable(sample)}
        raise InputError(message, **data) from None


class IgnoringSink:
    """Ignores refused records: what readers use that go through a file for the second time."""

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Do nothing."""


def _printable(sample: str | bytes) -> str:
    if isinstance(sample, bytes):
        sample = sample[: 4 * MAX_SAMPLE_CHARS].decode("utf-8", "replace")
    return sample[:MAX_SAMPLE_CHARS]
