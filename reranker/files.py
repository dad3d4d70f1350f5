"""Files and folders written whole or not at all: a reader, or a crash at any moment, sees the old or the new content.

A file is written under a temporary name beside its place, made durable and renamed. The data files of a folder have
names of their own (of their hash), and one small file, the pointer, says which are in use: it is replaced last.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from reranker.errors import ArtifactError

PRIVATE_MODE = 0o600
Content = bytes | Iterable[bytes | memoryview]
CopyFile = Callable[[IO[bytes], Path, str], IO[bytes]]
"""Takes a file open for reading, its path and the sha256 that its manifest states (64 hexadecimal digits). Returns a
private copy of it, open for reading, which nobody changes; raises `ArtifactError` if the content has another hash."""


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """Yield a new file that takes the place of ``path`` when all of it is on disk; on an error nothing changes.

    ``private``: for its owner alone. Without ``overwrite``, ``FileExistsError`` where there is a file by now.
    """
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.tmp")
    mode = PRIVATE_MODE if private else 0o666
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            make_durable(file)
        if overwrite:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
            temporary.unlink()
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say whose
        raise
    sync_folder(path.parent)


def write_file(path: Path, content: Content, *, private: bool = False) -> None:
    """Write a file whole or not at all, in place of the one that is there; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, private=private) as file:
        file.writelines((content,) if isinstance(content, bytes) else content)


def make_durable(file: IO[bytes]) -> None:
    """Bring everything written to a file so far onto the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_files(folder: Path, *, data: Mapping[str, Content], pointer: tuple[str, bytes], stale: str) -> None:
    """Write data files by name, and then the ``pointer``, the name and content of the file that makes them count.

    The folder is made if it is missing. Files of the pattern ``stale`` that are not in ``data`` are removed once the
    pointer is in place. One writer at a time holds a lock on the folder; a killed one's lock and temporary files do not
    stay. `ArtifactError` if anything cannot be written; pointer and old data are then as they were.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            # .ssi-tmp-* are the temporary files of version 0.1
            left_over = (".ssi-tmp-*", f".{stale}.*.tmp", f".{pointer[0]}.*.tmp")
            for path in [path for pattern in left_over for path in folder.glob(pattern)]:
                path.unlink(missing_ok=True)
            for name, content in (*data.items(), pointer):
                write_file(folder / name, content)
            for path in [path for path in folder.glob(stale) if path.name not in data]:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"{str(folder)!r} cannot be written: {error.strerror or error}; what was there before is untouched: "
            f"free space or change the permission, and save again",
            path=str(folder),
        ) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the only lock on a folder; the system frees it on any end of this process."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
