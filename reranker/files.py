"""Replacing the content of a folder so that a reader or a crash sees all of the old or all of the new.

Data files have names of their own (of their hash) and one small file, the pointer, says which are in use. New data
are written beside the old, made durable, and then the pointer is renamed into place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from reranker.errors import ArtifactError

TEMPORARY_PREFIX = ".ssi-tmp-"
Content = bytes | Iterable[bytes | memoryview]


def replace_files(folder: Path, *, data: Mapping[str, Content], pointer: tuple[str, bytes], stale: str) -> None:
    """Write data files and then the pointer file that makes them count.

    One writer at a time holds a lock on the folder; a killed one's lock and temporary files do not stay.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    data : mapping of str to bytes or iterable of bytes
        New files by name.
    pointer : (str, bytes)
        Name and content of the file renamed last.
    stale : str
        Pattern of data files; those not in ``data`` are removed after the pointer is in place.

    Raises
    ------
    ArtifactError
        If anything cannot be written; pointer and old data are then as they were.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder) as directory:
            _remove(folder.glob(TEMPORARY_PREFIX + "*"))
            for name, content in data.items():
                _write(folder, name, content)
            os.fsync(directory)  # the data's names are on disk before the pointer that needs them
            _write(folder, *pointer)
            os.fsync(directory)
            _remove(path for path in folder.glob(stale) if path.name not in data)
    except OSError as error:
        raise ArtifactError(
            f"{str(folder)!r} cannot be written: {error.strerror or error}; what was there before is untouched: "
            f"free space or change the permission, and save again",
            path=str(folder),
        ) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Yield a descriptor of the folder on which this process holds the only lock; the system frees it on any end."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _write(folder: Path, name: str, content: Content) -> None:
    """Write one file whole: under a temporary name, made durable, renamed."""
    temporary = folder / f"{TEMPORARY_PREFIX}{name}"
    try:
        with open(temporary, "wb") as file:
            for chunk in (content,) if isinstance(content, bytes) else content:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        path.unlink(missing_ok=True)
