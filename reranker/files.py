"""Atomic writing of files and folders: at any moment, even after a crash, either the old or the new content is there.

A file is written under a temporary name in the same folder, synced and renamed. The data files of a folder are named
after their hashes. One small file, the pointer, names the files in use, and is replaced last.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from reranker.errors import ArtifactError

PRIVATE_MODE = 0o600
Content = bytes | Iterable[bytes | memoryview]


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces ``path`` as soon as it is completely on disk. After an error, nothing changes.

    With ``private``, only its owner can read it. Without ``overwrite``, `FileExistsError` is raised if the file exists.
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
            error.filename = str(path)  # the error of a full disk has no file name
        raise
    sync_folder(path.parent)


def write_file(path: Path, content: Content, *, private: bool = False) -> None:
    """Write or replace a file atomically. Missing folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, private=private) as file:
        file.writelines((content,) if isinstance(content, bytes) else content)


def make_durable(file: IO[bytes]) -> None:
    """Sync to disk everything that was written to a file."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_files(folder: Path, *, data: Mapping[str, Content], pointer: tuple[str, bytes], stale: str) -> None:
    """Write the data files, and then the ``pointer`` (name and content), which makes them valid.

    The folder is created if it is missing. After the pointer is replaced, files that match the pattern ``stale`` and
    are not in ``data`` are removed. A writer holds a lock on the folder. The lock and the temporary files of a killed
    writer do not remain. Raises `ArtifactError` if a file cannot be written; the pointer and the old data are then
    unchanged.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            # Version 0.1 named its temporary files .ssi-tmp-*.
            left_over = (".ssi-tmp-*", f".{stale}.*.tmp", f".{pointer[0]}.*.tmp")
            for path in [path for pattern in left_over for path in folder.glob(pattern)]:
                path.unlink(missing_ok=True)
            for name, content in (*data.items(), pointer):
                write_file(folder / name, content)
            for path in [path for path in folder.glob(stale) if path.name not in data]:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"{str(folder)!r} cannot be written: {error.strerror or error}; its old content is unchanged: "
            f"free space or change the permissions, and save again",
            path=str(folder),
        ) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder. The system releases it when this process ends in any way."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
