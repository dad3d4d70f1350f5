"""Private copies of the files that the service memory-maps, each verified by its sha256 while it is copied.

A process that has mapped a file dies (SIGBUS) when the file is truncated, and ``cp`` over a folder that is being served
truncates it. The service therefore maps copies in a work folder of its own. A copy is named by its sha256: processes,
versions and generations that need the same bytes share one file and its pages in memory.

Every user of a copy holds a shared lock (flock) on it. `mmap.mmap` keeps a duplicate of the descriptor, so the lock
lasts exactly as long as the map, even if the process is killed, and no process has to count references.
`WorkFolder.tidy` removes copies that nobody has locked. In the same way every process of a service holds a shared lock
on the folder itself. A folder without a lock was left behind by a service that was killed; the next service removes it.
(Programs that clean up temporary folders, such as systemd-tmpfiles, skip locked folders.)
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from reranker.errors import ArtifactError

_log = logging.getLogger(__name__)
PREFIX: Final = "ssi-work-"
"""Prefix of the names of work folders in the system's temporary folder."""
SHARED_FOLDER: Final = "SSI_SERVE_WORK"
"""Environment variable with the work folder that a process shares with its parent."""
BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Bytes copied and hashed at a time."""
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_COPY = re.compile(r"[0-9a-f]{64}(\.part|\.lock)?", re.ASCII)
REMEDY: Final = (
    "set TMPDIR to a folder with room for the model and the vector store, or start with --no-verify to map the "
    "original files"
)


class WorkFolder:
    """A folder of private copies; a context manager that removes the folder if this object created it.

    Parameters
    ----------
    path : Path, optional
        Work folder of the parent process. None: a folder readable by its owner only (mode 0700) is created in the
        system's temporary folder (TMPDIR) when it is first needed.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._given = path
        self._lock = threading.Lock()
        self._opened: tuple[Path, int] | None = None
        self._closed = threading.Event()
        self._remove: weakref.finalize[[Path, int, bool], WorkFolder] | None = None

    @property
    def path(self) -> Path:
        """The folder. Raises `ArtifactError` if it cannot be created or locked."""
        with self._lock:
            if self._opened is None:
                try:
                    self._opened = _locked_folder(self._given) if self._given else _new_folder()
                except OSError as error:
                    where = self._given or "the system's temporary folder"
                    raise ArtifactError(
                        f"cannot create a work folder in {where} ({error.strerror or error}): {REMEDY}"
                    ) from error
                self._remove = weakref.finalize(self, _release, *self._opened, self._given is None)
            return self._opened[0]

    def copy(self, source: IO[bytes], path: Path, sha256: str) -> IO[bytes]:
        """Return a private copy of a file, open for reading, whose bytes have the given hash.

        The copy exists as long as the returned file or a map of it is open. Memory needed: one block.

        Parameters
        ----------
        source : IO[bytes]
            The file, open for reading.
        path : Path
            Its path, for error messages.
        sha256 : str
            Hash stated by its manifest, 64 hexadecimal digits.

        Raises
        ------
        ArtifactError
            If the content has another hash, or the copy cannot be written.
        """
        if not _SHA256.fullmatch(sha256):
            raise ArtifactError(
                f"the manifest has no sha256 for {path}: write the model or store again", path=str(path)
            )
        target = self.path / sha256
        try:
            while True:
                copy = _existing(target)
                if copy is not None:
                    return copy
                with _turn(target) as is_own:
                    copy = self._made(target, source, path, sha256) if is_own else None
                if copy is not None:
                    return copy
        except OSError as error:
            raise ArtifactError(
                f"cannot copy {path} into the work folder {str(target.parent)!r} ({error.strerror or error}): {REMEDY}",
                path=str(path),
            ) from error

    def missing_bytes(self, files: Iterable[tuple[str, int]]) -> int:
        """Return the total size of those files, given as (sha256, bytes), that have no copy yet."""
        folder = self.path
        return sum(n_bytes for sha256, n_bytes in files if not (folder / sha256).exists())

    def tidy(self) -> None:
        """Remove copies that no process has open or mapped any more."""
        if self._opened is None:
            return
        for name in os.listdir(self._opened[0]):
            if _COPY.fullmatch(name):
                _remove_unused(self._opened[0] / name)

    def close(self) -> None:
        """Stop copying; remove the folder if this object created it."""
        self._closed.set()
        if self._remove is not None:
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _made(self, target: Path, source: IO[bytes], path: Path, sha256: str) -> IO[bytes] | None:
        """Return a new copy, open and locked, or None if another process removed it as unused before it was locked."""
        partial = Path(f"{target}.part")
        with ExitStack() as undo:
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not _is_same(partial, descriptor):
                return None
            undo.callback(partial.unlink, missing_ok=True)
            self._fill(descriptor, source, path, sha256)
            os.rename(partial, target)
            os.lseek(descriptor, 0, os.SEEK_SET)
            undo.pop_all()
            return os.fdopen(descriptor, "rb")

    def _fill(self, partial: int, source: IO[bytes], path: Path, sha256: str) -> None:
        """Copy a file into a descriptor block by block. Raises `ArtifactError` if the hash differs."""
        os.ftruncate(partial, 0)
        digest, offset, size = hashlib.sha256(), 0, os.fstat(source.fileno()).st_size
        while offset < size:
            if self._closed.is_set():
                raise ArtifactError(f"{path} was not copied: the service is stopping", path=str(path))
            block = memoryview(_read(source.fileno(), min(BLOCK_BYTES, size - offset), offset, path))
            if not block:
                break  # truncated since it was opened: the hash will differ
            offset += len(block)
            digest.update(block)
            while block:
                block = block[os.write(partial, block) :]
        if digest.hexdigest() != sha256:
            raise ArtifactError(
                f"the content of {path} differs from the sha256 in its manifest: it is damaged, or is being replaced "
                "in place; copy it again, or write it again",
                path=str(path),
            )


def inherited_folder() -> WorkFolder | None:
    """Return the work folder of the parent process, or None if `run_processes` did not start this process."""
    path = os.environ.get(SHARED_FOLDER, "")
    return WorkFolder(Path(path)) if path else None


def _read(descriptor: int, n_bytes: int, offset: int, path: Path) -> bytes:
    """Return bytes of the source file; a read error names the source, not the work folder."""
    try:
        return os.pread(descriptor, n_bytes, offset)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error


def _existing(target: Path) -> IO[bytes] | None:
    """Return an existing copy, open and locked, or None.

    Another process may unlink it at this moment; the open file keeps its content.
    """
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def _turn(target: Path) -> Iterator[bool]:
    """Hold the exclusive lock for creating a copy; yield False if another process has created it meanwhile.

    The lock is a separate file, because the copy itself stays locked as long as it is mapped.
    """
    path = Path(f"{target}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not _is_same(path, descriptor):
            yield False
            return
        try:
            yield not target.exists()
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _is_same(path: Path, descriptor: int) -> bool:
    """Return whether a path still refers to the open file or folder."""
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _remove_unused(path: Path) -> None:
    """Remove a copy unless a process has it locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # another process has removed it
    try:
        if _lock_at_once(descriptor):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock_at_once(descriptor: int) -> bool:
    """Take the exclusive lock of an open file or folder without waiting; return False if another lock exists."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _locked_folder(path: Path) -> tuple[Path, int]:
    """Return a folder and a descriptor that holds a shared lock on it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except BaseException:
        os.close(descriptor)
        raise
    return path, descriptor


def _new_folder() -> tuple[Path, int]:
    """Return a new folder and a descriptor that holds a shared lock on it. Removes abandoned folders first."""
    _sweep(Path(tempfile.gettempdir()))
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            _, descriptor = _locked_folder(path)
        except FileNotFoundError:
            continue  # a service that starts at the same moment removed it as abandoned
        if _is_same(path, descriptor):
            return path, descriptor
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove abandoned work folders: those of this user whose service was killed."""
    for path in folder.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # already removed, owned by another user, or not a folder
        try:
            if os.fstat(descriptor).st_uid == os.geteuid() and _lock_at_once(descriptor):
                shutil.rmtree(path, ignore_errors=True)
                _log.info("removed an abandoned work folder", extra={"ssi": {"folder": str(path)}})
        finally:
            os.close(descriptor)


def _release(path: Path, descriptor: int, owned: bool) -> None:
    """Release the lock on a work folder; remove the folder first if it is ``owned``."""
    if owned:
        shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)
