"""The local vector store: an LMDB file that maps ids to vectors and lexical rows, for route *beside*.

A store is a folder with two files. ``data.mdb`` has all documents, and LMDB maps it into memory. ``lock.mdb`` lists the
readers, so that a writer never reuses a page that one of them still sees. The two belong together, so a store is
replaced by renaming its folder: write the new one next to it, then ``mv store old && mv new store``. A reader that is
open keeps the files that it opened. Only `StoreWriter` changes a file in place, in transactions.

A process that has mapped a file dies (SIGBUS) if the file is truncated or another one is copied over it. No command of
this program does that. A file that is already too short is refused before it is mapped. Damage inside a page is not
looked for. A store must be on a local disk: LMDB's locks do not work between machines.

Key of a document: its id in UTF-8. LMDB takes keys of 1 to 511 bytes. Longer ids (an engine's have up to 512 bytes) are
stored under 0xFF and their SHA-256. No UTF-8 has the byte 0xFF, so they cannot be taken for an id. Value, in
little-endian order, Vd filled up to 4 bytes::

    u64                      hash of the text that the row was computed from (`_src`)
    [f4]                     scale, for int8 only
    N * f4 | N * f2 | N * i1 Vd
    n * (i4, f4)             word ids and weights of the lexical row; n follows from the length

One more record has the encoder and the number of the published state (`StoreHeader`). There can be one writer and any
number of readers at the same time. A reader sees the state that it opened. The pages of that state are not reused
before the reader is dropped, so a file grows while readers keep old states. Deleted documents leave room for later
ones. The file never shrinks.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import lmdb
import msgspec
import numpy as np
import scipy.sparse as sp
from filelock import FileLock, Timeout

from reranker.arrays import Float32, Int64, UInt8, UInt64, offsets_of, term_rows
from reranker.errors import ArtifactError, EncoderMismatch, InputError, ShapeMismatch
from reranker.kernels.packing import Quantisation, check_finite, check_quantisation, stored_vectors
from reranker.records import MAX_ID_BYTES

DATA: Final = "data.mdb"
"""File of a store with all documents."""
FORMAT: Final = "ssi-store"
FORMAT_VERSION: Final = 2
OLD_MANIFEST: Final = "store.json"
"""File that only stores of format version 1 have."""
MAX_DIMS: Final = 65_536
MAP_BYTES: Final = 1 << 40
"""Address space that a store is mapped into, and its largest size. The file itself has only the pages in use."""
MAX_READERS: Final = 1024
"""Largest number of states that all processes together keep open."""
UNPUBLISHED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of documents after which a store that was never published writes them to the file, to bound its memory."""
REMEDY: Final = "write it again, in a new folder, with `ssi index --write-store` or `ssi revectorize --write-store`"

VECTOR_TYPES: Final[dict[str, str]] = {"float32": "<f4", "float16": "<f2", "int8": "<i1"}
"""Quantisation → dtype of the stored vectors."""
_MAX_KEY_BYTES: Final = 511
_HEADER_KEY: Final = b"\xff"
_SOURCE_BYTES: Final = 8
# Page header (flags), then magic number, version, page size, last page and transaction of LMDB's `MDB_meta`.
_META: Final = struct.Struct("<10xH4xII16xI92xQQ")
_META_FLAG, _META_MAGIC, _META_VERSION = 0x08, 0xBEEFC0DE, 1


class StoreHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record that makes a file a published store."""

    format: str
    """`FORMAT`."""
    format_version: int
    """`FORMAT_VERSION` of the program that wrote it."""
    encoder_id: str
    """Encoder that computed the vectors."""
    dims: int
    """Dimensions N of the vectors."""
    quantisation: str
    """Precision of the stored vectors, a key of `VECTOR_TYPES`."""
    generation: int
    """Number of the published state; grows by 1 with each `StoreWriter.publish`. 0: nothing is published yet."""


class StoreState(NamedTuple):
    """The identity of a published state: its file, and its number in that file."""

    device: int
    inode: int
    generation: int


class StoredRows(NamedTuple):
    """The documents of some ids that are in the store, in the order of the ids."""

    places: Int64
    """(n,) int64: Position of each document in the ids that were asked for."""
    vectors: Float32
    """Vd, (n, N) float32."""
    terms: sp.csr_matrix
    """Lexical rows, (n, 2**31 - 1) float32."""
    sources: UInt64
    """(n,) uint64: Hash of the text that each row was computed from; see `source_hashes`."""

    @property
    def source_hashes(self) -> list[str]:
        """The hash of each document's text (`_src`), 16 hexadecimal digits."""
        return [f"{value:016x}" for value in self.sources.tolist()]


# --- the file

_environments: WeakValueDictionary[tuple[int, int], lmdb.Environment] = WeakValueDictionary()
"""(device, inode) of a data file → its map. LMDB allows one map of a file per process."""
_opening = threading.Lock()


@contextmanager
def _as_artifact_errors(path: Path) -> Iterator[None]:
    """Raise an error of LMDB as an `ArtifactError` that names the store."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise ArtifactError(
            f"the vector store at {str(path)!r} has reached its largest size of {MAP_BYTES} bytes: {REMEDY}",
            path=str(path),
        ) from error
    except lmdb.Error as error:
        raise ArtifactError(
            f"the vector store at {str(path)!r} cannot be used ({error}); its published state is unchanged: make room "
            f"on the disk and run the command again, or {REMEDY}",
            path=str(path),
        ) from error


def _file_key(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _check_file(path: Path) -> None:
    """Raise `ArtifactError` unless a file is an LMDB file with all pages that it counts. LMDB itself would crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ArtifactError(f"{path} of the vector store is not a regular file: {REMEDY}", path=str(path))
        first = _meta_of(os.pread(descriptor, _META.size, 0), path)
        second = _meta_of(os.pread(descriptor, _META.size, first.page_bytes), path)
    finally:
        os.close(descriptor)
    needed = (max(first.last_page, second.last_page) + 1) * first.page_bytes
    if found.st_size < needed:
        raise ArtifactError(
            f"{path} has {found.st_size} bytes, and its pages need {needed}: the vector store was truncated, or is "
            f"still being copied; wait until it is complete, or {REMEDY}",
            path=str(path),
        )


class _Meta(NamedTuple):
    """One of the two pages at the start of an LMDB file."""

    page_bytes: int
    last_page: int


def _meta_of(content: bytes, path: Path) -> _Meta:
    if len(content) == _META.size:
        flags, magic, version, page_bytes, last_page, _ = _META.unpack(content)
        is_size = 512 <= page_bytes <= 65_536 and page_bytes & (page_bytes - 1) == 0
        if flags & _META_FLAG and (magic, version) == (_META_MAGIC, _META_VERSION) and is_size:
            return _Meta(page_bytes, last_page)
    raise ArtifactError(f"{path} is no vector store, or its start is damaged: {REMEDY}", path=str(path))


def _refuse_old(root: Path) -> None:
    """Raise `ArtifactError` for the folder of a store of format version 1."""
    if (root / OLD_MANIFEST).exists() and not (root / DATA).exists():
        raise ArtifactError(
            f"the vector store at {str(root)!r} has format version 1 ({OLD_MANIFEST}), which this program does not "
            f"read: remove the folder, or {REMEDY}",
            path=str(root),
        )


def _environment(root: Path, *, is_new: bool = False) -> tuple[lmdb.Environment, tuple[int, int]]:
    """Return the map of a store, and the key of its file. With ``is_new``, the file is created if it is missing."""
    path = root / DATA
    with _opening:
        _refuse_old(root)
        try:
            before = None if is_new and not path.exists() else _file_key(path)
            if before is not None and (known := _environments.get(before)) is not None:
                return known, before
            if before is not None and not (is_new and path.stat().st_size == 0):  # a writer was killed before it wrote
                _check_file(path)
        except FileNotFoundError as error:
            raise ArtifactError(
                f"there is no vector store at {str(root)!r} ({DATA} is missing): write one with "
                "`ssi index --write-store` or `ssi revectorize --write-store`, or use `--route fetch`",
                path=str(root),
            ) from error
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read ({error.strerror}): {REMEDY}", path=str(path)) from error
        try:
            environment = lmdb.open(
                str(root),
                map_size=MAP_BYTES,
                max_readers=MAX_READERS,
                readonly=before is not None and not os.access(path, os.W_OK),
                readahead=False,  # documents are read at random: neighbours would evict pages that are needed
                mode=0o666,  # what the umask allows
            )
        except lmdb.Error as error:
            raise ArtifactError(
                f"the vector store at {str(root)!r} cannot be mapped into memory ({error}): allow this process to read "
                f"{DATA} and to write lock.mdb; to replace a store, rename the whole folder, not only {DATA}",
                path=str(root),
            ) from error
        key = _file_key(path)
        if before not in (None, key):
            raise ArtifactError(f"the vector store at {str(root)!r} was replaced while it was opened: open it again")
        _environments[key] = environment
        return environment, key


def _header_of(root: Path, transaction: lmdb.Transaction) -> StoreHeader | None:
    """Return the header of a store, or None if nothing is published. Raises `ArtifactError` if it is of no use."""
    content = transaction.get(_HEADER_KEY)
    if content is None:
        return None
    try:
        header = msgspec.json.decode(content, type=StoreHeader)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"the header of the store at {str(root)!r} is damaged ({error}): {REMEDY}") from error
    if (header.format, header.format_version) != (FORMAT, FORMAT_VERSION):
        raise ArtifactError(
            f"the vector store at {str(root)!r} has format {header.format!r} version {header.format_version}; this "
            f"program reads {FORMAT!r} version {FORMAT_VERSION}: {REMEDY}, or upgrade",
            path=str(root),
        )
    if not 0 < header.dims <= MAX_DIMS or header.quantisation not in VECTOR_TYPES or header.generation < 1:
        raise ArtifactError(
            f"the vector store at {str(root)!r} states {header.dims} dimensions, quantisation {header.quantisation!r} "
            f"and generation {header.generation}, which no store has: {REMEDY}",
            path=str(root),
        )
    return header


def _key(identifier: str) -> bytes:
    """Return the key of an id. Lone surrogates are kept, because engines accept them in an id."""
    encoded = identifier.encode("utf-8", "surrogatepass")
    if 0 < len(encoded) <= _MAX_KEY_BYTES:
        return encoded
    return b"\xff" + hashlib.sha256(encoded).digest()


class _Record(NamedTuple):
    """How the value of a document is laid out."""

    dims: int
    quantisation: str

    @property
    def n_vector_bytes(self) -> int:
        """Bytes of Vd with its scale, filled up to a multiple of 4."""
        used = self.dims * np.dtype(VECTOR_TYPES[self.quantisation]).itemsize + 4 * (self.quantisation == "int8")
        return used + -used % 4

    def packed(self, vectors: Float32, rows: sp.csr_matrix, sources: UInt64) -> list[bytes]:
        """Return the value of each document."""
        n_bytes = self.n_vector_bytes
        heads = np.zeros((len(vectors), _SOURCE_BYTES + n_bytes), np.uint8)
        heads[:, :_SOURCE_BYTES] = sources.astype("<u8")[:, None].view(np.uint8)
        values, scales = stored_vectors(vectors, self.quantisation)
        start = _SOURCE_BYTES
        if scales is not None:
            heads[:, start : start + 4] = scales.astype("<f4")[:, None].view(np.uint8)
            start += 4
        stored = np.ascontiguousarray(values).view(np.uint8)
        heads[:, start : start + stored.shape[1]] = stored
        pairs = np.empty((rows.nnz, 2), "<i4")
        pairs[:, 0], pairs[:, 1] = rows.indices, rows.data.astype("<f4").view("<i4")
        head, tail, size, bounds = heads.tobytes(), pairs.tobytes(), heads.shape[1], (8 * rows.indptr).tolist()
        return [
            head[size * row : size * (row + 1)] + tail[first:end] for row, (first, end) in enumerate(pairwise(bounds))
        ]

    def unpacked(self, values: Sequence[bytes], places: Int64) -> StoredRows:
        """Return the documents of some values. Raises `ArtifactError` for a value of a length that none has."""
        size = _SOURCE_BYTES + self.n_vector_bytes
        lengths = np.fromiter(map(len, values), np.int64, len(values)) - size
        if (lengths % 8).any() or (lengths < 0).any():
            raise ArtifactError(f"a document of the vector store has a damaged length: {REMEDY}")
        heads = np.frombuffer(b"".join([value[:size] for value in values]), np.uint8).reshape(len(values), size)
        pairs = np.frombuffer(b"".join([value[size:] for value in values]), "<i4").reshape(-1, 2)
        indices, data = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]).view("<f4")
        terms = term_rows(data, indices, offsets_of(lengths // 8).astype(np.int32))
        sources = np.ascontiguousarray(heads[:, :_SOURCE_BYTES]).view("<u8")[:, 0]
        return StoredRows(places, self._vectors(np.ascontiguousarray(heads[:, _SOURCE_BYTES:])), terms, sources)

    def _vectors(self, stored: UInt8) -> Float32:
        """Return Vd of each row of stored vectors, (n, N) float32."""
        values = stored.view(VECTOR_TYPES[self.quantisation])
        if self.quantisation != "int8":
            return np.ascontiguousarray(values[:, : self.dims], np.float32)
        scaled: Float32 = values[:, 4 : 4 + self.dims].astype(np.float32) * stored[:, :4].copy().view("<f4")
        return scaled


# --- reading


class VectorStore:
    """A reader of a store. It always shows the state that it opened; `refreshed` returns the newest one.

    Several threads can use one object.
    """

    def __init__(self, root: Path) -> None:
        self.path = root
        self._environment, (device, inode) = _environment(root)
        with _as_artifact_errors(root):
            self._transaction = self._environment.begin()
            header = _header_of(root, self._transaction)
            self._n = self._transaction.stat()["entries"] - 1
        if header is None:
            raise ArtifactError(
                f"there is no vector store at {str(root)!r} yet: the command that writes it has not published it; "
                "run it again if it was interrupted",
                path=str(root),
            )
        self.encoder_id, self.dims, self.quantisation = header.encoder_id, header.dims, header.quantisation
        self.state = StoreState(device, inode, header.generation)
        self._record = _Record(header.dims, header.quantisation)
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: str | Path, encoder_id: str | None = None) -> VectorStore:
        """Open the store at ``path``.

        Raises `EncoderMismatch` if the vectors belong to another encoder than ``encoder_id`` (None accepts any encoder,
        for inspection only), and `ArtifactError` if the store is missing or damaged.
        """
        store = cls(Path(path))
        if encoder_id is not None and store.encoder_id != encoder_id:
            raise EncoderMismatch(
                f"the vector store at {str(path)!r} was made by encoder {store.encoder_id[:12]}, the model needs "
                f"{encoder_id[:12]}: their vectors cannot be compared; write a store with this model "
                "(`ssi revectorize --write-store`) or load the model that made it",
                store=store.encoder_id,
                model=encoder_id,
            )
        return store

    def __len__(self) -> int:
        return self._n

    def refreshed(self) -> VectorStore:
        """Return a reader of the newest published state: this object if it is current, otherwise a new one."""
        newest = VectorStore.open(self.path, self.encoder_id)
        return self if newest.state == self.state else newest

    def get(self, ids: Sequence[str]) -> StoredRows:
        """Return those of the documents with these ids that are in the store."""
        keys = [_key(identifier) for identifier in ids]
        with self._lock, _as_artifact_errors(self.path):  # LMDB reads a transaction from one thread at a time
            values = list(map(self._transaction.get, keys))
        places = [place for place, value in enumerate(values) if value is not None]
        found = [value for value in values if value is not None]
        return self._record.unpacked(found, np.array(places, np.int64))


# --- writing


class StoreWriter(AbstractContextManager["StoreWriter"]):
    """The only writer of a store. As a context manager, it publishes at the end of the block if there was no error.

    Changes become visible and durable with `publish`, in one transaction of LMDB. A kill at any moment leaves the state
    published last. Changed pages are in memory until then, up to 512 MB; LMDB writes further ones to the file. One
    thread must use the writer from one `publish` to the next.

    Parameters
    ----------
    path : path
        Folder of the store; created if it does not exist.
    encoder_id : str
        Encoder of the vectors.
    dims : int
        Dimensions N of the vectors.
    quantisation : str
        Precision of stored vectors. That of the encoder loses nothing. An existing store keeps its own.

    Raises
    ------
    EncoderMismatch
        If the store has vectors of another encoder or other dimensions.
    ArtifactError
        If another process is writing to the store, or the store is damaged or of format version 1.
    """

    def __init__(self, path: str | Path, encoder_id: str, dims: int, *, quantisation: Quantisation = "float32") -> None:
        check_quantisation(quantisation)
        if not 0 < dims <= MAX_DIMS:
            raise InputError(f"{dims} dimensions were given; a store takes 1 to {MAX_DIMS}")
        self.path = Path(path)
        _refuse_old(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise ArtifactError(
                f"another process is writing to the vector store at {str(path)!r}: wait until it ends", path=str(path)
            ) from error
        self._open_transaction: lmdb.Transaction | None = None
        try:
            self._environment, _ = _environment(self.path, is_new=True)
            with _as_artifact_errors(self.path):
                self._environment.reader_check()  # removes readers whose process was killed
                self._header = self._published_header(
                    StoreHeader(FORMAT, FORMAT_VERSION, encoder_id, dims, quantisation, 0)
                )
        except BaseException:
            self._lock.release()
            raise
        self._record = _Record(dims, self._header.quantisation)
        self._changed, self._n_unpublished = not self.is_published, 0

    def _published_header(self, wanted: StoreHeader) -> StoreHeader:
        """Return the header of the store; ``wanted`` for a new one, which removes what a killed writer left."""
        with self._environment.begin() as transaction:
            header = _header_of(self.path, transaction)
            n_left = transaction.stat()["entries"]
        if header is None:
            if n_left:
                with self._environment.begin(write=True) as transaction:
                    transaction.drop(self._environment.open_db(txn=transaction), delete=False)
            return wanted
        if (header.encoder_id, header.dims) != (wanted.encoder_id, wanted.dims):
            raise EncoderMismatch(
                f"the vector store at {str(self.path)!r} is of encoder {header.encoder_id[:12]} with {header.dims} "
                f"dimensions, the documents are of {wanted.encoder_id[:12]} with {wanted.dims}: write them to another "
                "folder, and rename it over this one if it shall replace it",
                store=header.encoder_id,
                model=wanted.encoder_id,
            )
        return header

    @property
    def is_published(self) -> bool:
        """Whether the store has been published at least once."""
        return self._header.generation > 0

    def add(self, ids: Sequence[str], vectors: Float32, rows: sp.csr_matrix, source_hashes: Sequence[str]) -> None:
        """Add documents. A document with the same id, even one of the same batch, is replaced.

        Parameters
        ----------
        ids : sequence of str
            Ids of n documents.
        vectors : (n, N) float32
            Vd as the encoder returns them (quantised and decoded).
        rows : (n, 2**31 - 1) float32
            Lexical rows; the indices of each row are sorted.
        source_hashes : sequence of str
            `_src` of each document, 16 hexadecimal digits, or "" if unknown.

        Raises
        ------
        ShapeMismatch
            If the arguments have different numbers of documents, or the vectors other dimensions than the store.
        InputError
            If an id is empty or too long, a value is not finite, or a hash is invalid.
        ArtifactError
            If the store cannot be written.
        """
        if not (len(ids) == len(vectors) == rows.shape[0] == len(source_hashes)) or (
            vectors.shape != (len(ids), self._header.dims)
        ):
            raise ShapeMismatch(
                f"{len(ids)} ids, vectors {vectors.shape}, {rows.shape[0]} rows and {len(source_hashes)} hashes: give "
                f"one of each per document, with {self._header.dims} dimensions"
            )
        if len(ids) == 0:
            return
        _check_ids(ids)
        check_finite(vectors, "vector")
        check_finite(rows.data, "term weight")
        try:
            sources = np.array([int(value, 16) if value else 0 for value in source_hashes], dtype=np.uint64)
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"a source hash is not 16 hexadecimal digits ({error}); take it from TextView.source_hash"
            ) from error
        values = self._record.packed(vectors, rows, sources)
        with _as_artifact_errors(self.path):
            self._changes().cursor().putmulti(list(zip(map(_key, ids), values, strict=True)))
            self._changed = True
            self._n_unpublished += sum(map(len, values))
            if not self.is_published and self._n_unpublished >= UNPUBLISHED_BYTES:
                self._commit()  # without a header, nobody sees these documents

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents. Return how many of the ids were in the store."""
        with _as_artifact_errors(self.path):
            changes = self._changes()
            removed = sum(changes.delete(_key(identifier)) for identifier in ids)
        self._changed |= removed > 0
        return removed

    def publish(self) -> int:
        """Publish all changes atomically and durably. Return the number of documents."""
        with _as_artifact_errors(self.path):
            if self._changed:
                header = msgspec.structs.replace(self._header, generation=self._header.generation + 1)
                self._changes().put(_HEADER_KEY, msgspec.json.encode(header))
                self._commit()
                self._header, self._changed = header, False
            return int(self._environment.stat()["entries"]) - 1

    def close(self) -> None:
        """Discard unpublished changes and release the lock on the store."""
        try:
            if self._open_transaction is not None:
                self._open_transaction.abort()
                self._open_transaction = None
        finally:
            self._lock.release()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self.publish()
        finally:
            self.close()

    def _changes(self) -> lmdb.Transaction:
        """Return the transaction with the changes since the last `publish`."""
        if self._open_transaction is None:
            self._open_transaction = self._environment.begin(write=True)
        return self._open_transaction

    def _commit(self) -> None:
        changes, self._open_transaction, self._n_unpublished = self._changes(), None, 0
        changes.commit()


def _check_ids(ids: Sequence[str]) -> None:
    """Raise `InputError` for an id that no engine accepts: an empty one, or one of more than 512 bytes."""
    for position, identifier in enumerate(ids):
        n_bytes = len(identifier.encode("utf-8", "surrogatepass"))
        if not 1 <= n_bytes <= MAX_ID_BYTES:
            raise InputError(
                f"id number {position} of the batch has {n_bytes} bytes: an id has 1 to {MAX_ID_BYTES} bytes of UTF-8: "
                "shorten it in the source",
                position=position,
            )
