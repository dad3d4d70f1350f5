"""Private copies of the files that the service maps, each checked against its sha256 while it is copied.

A process that has mapped a file dies (SIGBUS) when somebody truncates that file, and ``cp`` over a folder that is being
served does so. The service therefore maps copies in a work folder of its own. A copy is named by its sha256: processes,
versions and generations that need the same bytes share one file, and its pages in memory.

Every holder of a copy has a shared lock (flock) on it. `mmap.mmap` keeps a duplicate of the descriptor, so that the
lock lasts exactly as long as the map, also if the process is killed; no process has to count references. A copy
that nobody has locked is removed by `WorkFolder.tidy`. In the same way every process of a service has a shared lock on
the folder itself. A folder that nobody has locked was left over by a service that was killed; the next service removes
it. (Programs that clean up temporary folders, such as systemd-tmpfiles, leave out a folder that is locked.)
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
"""Beginning of the names of work folders in the system's temporary folder."""
SHARED_FOLDER: Final = "SSI_SERVE_WORK"
"""Environment variable that names the work folder which a process shares with the one that started it."""
BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Bytes copied and hashed at a time."""
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_COPY = re.compile(r"[0-9a-f]{64}(\.part|\.lock)?", re.ASCII)
REMEDY: Final = (
    "set TMPDIR to a folder with room for the model and the vector store, or start with --no-verify to map them where "
    "they lie"
)


class WorkFolder:
    """A folder of private copies; a context manager that removes the folder if this object has made it.

    Parameters
    ----------
    path : Path, optional
        Work folder of the parent process. None: the object makes one in the system's temporary folder (TMPDIR) when it
        is first needed, for the owner only (mode 0700).
    """

    def __init__(self, path: Path | None = None) -> None:
        self._given = path
        self._lock = threading.Lock()
        self._opened: tuple[Path, int] | None = None
        self._closed = threading.Event()
        self._remove: weakref.finalize[[Path, int, bool], WorkFolder] | None = None

    @property
    def path(self) -> Path:
        """The folder. `ArtifactError` if it cannot be made or locked."""
        with self._lock:
            if self._opened is None:
                try:
                    self._opened = _locked_folder(self._given) if self._given else _new_folder()
                except OSError as error:
                    where = self._given or "the system's temporary folder"
                    raise ArtifactError(
                        f"no work folder can be made in {where} ({error.strerror or error}): {REMEDY}"
                    ) from error
                self._remove = weakref.finalize(self, _release, *self._opened, self._given is None)
            return self._opened[0]

    def copy(self, source: IO[bytes], path: Path, sha256: str) -> IO[bytes]:
        """Return a private copy of a file, open for reading, whose bytes have the given hash.

        The copy stays while the returned file or a map of it is open. Memory: one block.

        Parameters
        ----------
        source : IO[bytes]
            The file, open for reading.
        path : Path
            Its path, for messages.
        sha256 : str
            Hash that its manifest states, 64 hexadecimal digits.

        Raises
        ------
        ArtifactError
            If the content has another hash, or the copy cannot be written.
        """
        if not _SHA256.fullmatch(sha256):
            raise ArtifactError(f"the manifest states no sha256 of {path}: write it again", path=str(path))
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
                f"{path} cannot be copied into the work folder {str(target.parent)!r} "
                f"({error.strerror or error}): {REMEDY}",
                path=str(path),
            ) from error

    def missing_bytes(self, files: Iterable[tuple[str, int]]) -> int:
        """Return how many bytes of files, given as (sha256, bytes), have no copy yet."""
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
        """Stop copying; remove the folder if this object has made it."""
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
        """Return a new copy, open and locked; None if another process took it for a left-over before it was locked."""
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
        """Copy a file into a descriptor block by block; `ArtifactError` if its hash is another."""
        os.ftruncate(partial, 0)
        digest, offset, size = hashlib.sha256(), 0, os.fstat(source.fileno()).st_size
        while offset < size:
            if self._closed.is_set():
                raise ArtifactError(f"{path} is not copied: the service is stopping", path=str(path))
            block = memoryview(_read(source.fileno(), min(BLOCK_BYTES, size - offset), offset, path))
            if not block:
                break  # truncated since it was opened: the hash tells
            offset += len(block)
            digest.update(block)
            while block:
                block = block[os.write(partial, block) :]
        if digest.hexdigest() != sha256:
            raise ArtifactError(
                f"{path} has another content than its manifest states (sha256): it is damaged, or being replaced in "
                "place; copy it again, or write it again",
                path=str(path),
            )


def inherited_folder() -> WorkFolder | None:
    """Return the work folder of the parent process; None where this process was not started by `run_processes`."""
    path = os.environ.get(SHARED_FOLDER, "")
    return WorkFolder(Path(path)) if path else None


def _read(descriptor: int, n_bytes: int, offset: int, path: Path) -> bytes:
    """Return bytes of the source; its errors are not those of the work folder."""
    try:
        return os.pread(descriptor, n_bytes, offset)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error


def _existing(target: Path) -> IO[bytes] | None:
    """Return a copy that is there, open and locked, or None.

    Another process may remove the name just now; the content stays what it was.
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
    """Hold the only lock by which a copy may be made; yield False if another process had it meanwhile.

    The lock is a file of its own: the copy itself stays locked as long as it is mapped.
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
    """Return whether a path still names the open file or folder."""
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _remove_unused(path: Path) -> None:
    """Remove a copy unless somebody has it locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # another process was faster
    try:
        if _lock_at_once(descriptor):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock_at_once(descriptor: int) -> bool:
    """Take the only lock on an open file or folder and return True; False if another one holds a lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _locked_folder(path: Path) -> tuple[Path, int]:
    """Return a folder and its descriptor, which holds a shared lock on it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except BaseException:
        os.close(descriptor)
        raise
    return path, descriptor


def _new_folder() -> tuple[Path, int]:
    """Return a new folder and its descriptor, which holds a shared lock on it; remove those left over first."""
    _sweep(Path(tempfile.gettempdir()))
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            _, descriptor = _locked_folder(path)
        except FileNotFoundError:
            continue  # a service that starts at the same moment took it for a left-over
        if _is_same(path, descriptor):
            return path, descriptor
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove the work folders of services of this user that were killed."""
    for path in folder.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # removed by another service, another user's, or no folder
        try:
            if os.fstat(descriptor).st_uid == os.geteuid() and _lock_at_once(descriptor):
                shutil.rmtree(path, ignore_errors=True)
                _log.info("left-over removed", extra={"ssi": {"folder": str(path)}})
        finally:
            os.close(descriptor)


def _release(path: Path, descriptor: int, owned: bool) -> None:
    """Give up the lock on a work folder; remove it first if it is ``owned``."""
    if owned:
        shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)
