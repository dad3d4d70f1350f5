"""The local vector store: it maps ids to rows and scores rows. It loads only the pages that a request needs.

There can be one writer and any number of readers at the same time. Files of a store::

    store.json             the manifest, replaced by one rename; every file that it names is complete
    segment-000007/        rows written together; never changed once the manifest names it
        ids.bin  id_offsets.i8              concatenated ids
        vectors.f4 | vectors.f2 | vectors.i1 + scales.f4     Vd, (n, N)
        indptr.i8  indices.i4  data.f4      lexical rows (CSR)
        sources.u8                          hash of the text that each row was computed from (`_src`)
    index-000012/          keys.u8 (sorted), rows.i8: the current row of each id

A row number is ``segment << 40 | row in the segment``. It stays valid while other segments are added and removed. The
writer appends, replaces, deletes and publishes. A reader keeps the state that it opened.

An id is looked up by a 64-bit key. The key is the sum over the bytes of the id of a pseudo-random number for (position,
byte), mixed with the length. numpy computes this additive Zobrist hash for all ids of a request at once; a Python loop
over a cryptographic hash would take longer than scoring the documents. The key only proposes a row: the stored id is
always compared byte by byte. An accidental or malicious collision therefore costs time, but never returns the vector of
another document.
"""

from __future__ import annotations

import functools
import hashlib
import math
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

import msgspec
import numpy as np
import scipy.sparse as sp
from filelock import FileLock, Timeout

from reranker.arrays import N_TERM_IDS, AnyArray, Bool, Float32, Int32, Int64, UInt8, UInt64, offsets_of
from reranker.engines.vectors import QueryVectors
from reranker.errors import ArtifactError, EncoderMismatch, InputError, ShapeMismatch
from reranker.files import CopyFile, make_durable, sync_folder, write_file
from reranker.kernels.packing import Quantisation, check_finite, check_quantisation, stored_vectors
from reranker.kernels.rows import score_rows
from reranker.records import MAX_ID_BYTES
from reranker.text.rows import stack_rows

FORMAT: Final = "ssi-store"
FORMAT_VERSION: Final = 1
MANIFEST: Final = "store.json"
MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
SEGMENT_SHIFT: Final = 40
ROW_MASK: Final = (1 << SEGMENT_SHIFT) - 1
MAX_SEGMENT: Final = (1 << 22) - 1
MAX_DIMS: Final = 65_536
MEMORY: Final = Path("/proc/meminfo")
"""File in which Linux reports the available memory."""
AHEAD_BYTES: Final = 128 * 1024
"""Bytes per read-ahead request. The system does not read beyond its own window, which has at least this size."""
Reading = Literal["in order", "at random", "ahead"]

VECTOR_FILES: Final[dict[str, tuple[str, str]]] = {
    "float32": ("vectors.f4", "<f4"),
    "float16": ("vectors.f2", "<f2"),
    "int8": ("vectors.i1", "<i1"),
}
"""Quantisation → file name and dtype of the vectors."""


class SegmentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of the manifest for one segment."""

    number: int
    """Number in the folder's name."""
    n_rows: int
    """Number of rows, including replaced and deleted ones."""
    n_terms: int
    """Number of stored values of all lexical rows."""
    n_id_bytes: int
    """Total length of the ids in UTF-8."""
    sha256: dict[str, str]
    """File name → hash of the content, 64 hexadecimal digits."""


class IndexRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of the manifest for the id index."""

    number: int
    """Number in the folder's name."""
    n_entries: int
    """Number of ids."""
    sha256: dict[str, str]
    """File name → hash of the content, 64 hexadecimal digits."""


class StoreManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The published state of a store, with everything that a reader needs to map it."""

    format: str
    """`FORMAT`."""
    format_version: int
    """`FORMAT_VERSION` of the program that wrote it."""
    encoder_id: str
    """Encoder that computed the vectors."""
    dims: int
    """Dimensions N of the vectors."""
    quantisation: str
    """Precision of the stored vectors, a key of `VECTOR_FILES`."""
    generation: int
    """Number of the published state; grows by 1 with each `StoreWriter.publish`."""
    segments: list[SegmentRecord]
    index: IndexRecord
    sha256: str = ""
    """Hash over the manifest without this field."""


def _folder(root: Path, kind: Literal["segment", "index"], number: int) -> Path:
    return root / f"{kind}-{number:06d}"


def _segment_files(record: SegmentRecord, dims: int, quantisation: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return file name → (dtype, shape) of a segment."""
    vectors, dtype = VECTOR_FILES[quantisation]
    files: dict[str, tuple[str, tuple[int, ...]]] = {
        "ids.bin": ("<u1", (record.n_id_bytes,)),
        "id_offsets.i8": ("<i8", (record.n_rows + 1,)),
        "indptr.i8": ("<i8", (record.n_rows + 1,)),
        "indices.i4": ("<i4", (record.n_terms,)),
        "data.f4": ("<f4", (record.n_terms,)),
        "sources.u8": ("<u8", (record.n_rows,)),
        vectors: (dtype, (record.n_rows, dims)),
    }
    if quantisation == "int8":
        files["scales.f4"] = ("<f4", (record.n_rows,))
    return files


class StoredFile(NamedTuple):
    """A file of a store, with the values of its manifest."""

    path: Path
    sha256: str
    """64 hexadecimal digits; empty if the manifest has none."""
    n_bytes: int


def store_files(root: Path, manifest: StoreManifest) -> list[StoredFile]:
    """Return all files that a manifest names, those of the id index first."""
    folder, digests = _folder(root, "index", manifest.index.number), manifest.index.sha256
    names = ("keys.u8", "rows.i8")
    files = [StoredFile(folder / name, digests.get(name, ""), 8 * manifest.index.n_entries) for name in names]
    for record in manifest.segments:
        folder = _folder(root, "segment", record.number)
        for name, (dtype, shape) in _segment_files(record, manifest.dims, manifest.quantisation).items():
            n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            files.append(StoredFile(folder / name, record.sha256.get(name, ""), n_bytes))
    return files


def _fits_in_memory(manifest: StoreManifest) -> bool:
    """Return whether all files of a store fit into available memory; False if the system does not report it."""
    try:
        lines = dict(line.split(":") for line in MEMORY.read_text(encoding="ascii").splitlines())
        available = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return False
    return sum(file.n_bytes for file in store_files(Path(), manifest)) < available


def _open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. Raises `ArtifactError` for a pipe or a device, which could be read without end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(
            f"{path} of the vector store is not a regular file: write the store again with `ssi index` or "
            "`ssi revectorize`",
            path=str(path),
        )
    return os.fdopen(descriptor, "rb")


def _map_array(
    path: Path,
    dtype: str,
    shape: tuple[int, ...],
    reading: Reading = "in order",
    copy: CopyFile | None = None,
    sha256: str = "",
) -> AnyArray:
    """Return a read-only memory map of a file. Raises `ArtifactError` unless its size fits ``dtype`` and ``shape``.

    With ``copy``, a private copy of the file is mapped, whose content is checked against ``sha256``.

    ``reading`` is the advice for the system. ``in order`` is its default: it also reads neighbouring pages. With ``at
    random``, it reads only the requested pages. Otherwise, if memory is short, the neighbours would evict pages that
    the next request needs. ``ahead`` is the same, and all pages are read now.
    """
    n_bytes = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    try:
        with _open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != n_bytes:
                raise ArtifactError(
                    f"{path} has {size} bytes, not the {n_bytes} its manifest states: the store is damaged; write it "
                    "again with `ssi index` or `ssi revectorize`",
                    path=str(path),
                )
            if n_bytes == 0:
                return np.empty(shape, dtype=dtype)
            with file if copy is None else copy(file, path, sha256) as own:
                mapped = mmap.mmap(own.fileno(), n_bytes, access=mmap.ACCESS_READ)
        if reading != "in order" and hasattr(mmap, "MADV_RANDOM"):
            with suppress(OSError):  # a system that ignores the advice gives the same result
                mapped.madvise(mmap.MADV_RANDOM)
                for start in range(0, n_bytes if reading == "ahead" else 0, AHEAD_BYTES):
                    mapped.madvise(mmap.MADV_WILLNEED, start, min(AHEAD_BYTES, n_bytes - start))
        return np.frombuffer(mapped, dtype=dtype).reshape(shape)
    except OSError as error:
        raise ArtifactError(
            f"{path} of the vector store cannot be read ({error.strerror}): write the store again with `ssi index` or "
            "`ssi revectorize`",
            path=str(path),
        ) from error


def _digest(manifest: StoreManifest) -> str:
    """Return the sha256 over the manifest without its own ``sha256``."""
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(manifest, sha256=""))).hexdigest()


def write_store_manifest(root: Path, manifest: StoreManifest) -> None:
    """Replace the manifest atomically: a reader sees the old one or the new one, even after a crash."""
    content = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, sha256=_digest(manifest))))
    write_file(root / MANIFEST, content)


def read_store_manifest(root: Path) -> StoreManifest:
    """Read and check the manifest of a store. Raises `ArtifactError` if it is missing, damaged or of another format."""
    path = root / MANIFEST
    try:
        with _open_regular(path) as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
        if len(content) > MAX_MANIFEST_BYTES:
            raise ArtifactError(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes: this is no vector store")
        manifest = msgspec.json.decode(content, type=StoreManifest)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"there is no vector store at {str(root)!r} ({MANIFEST} is missing): write one with "
            "`ssi index --write-store` or `ssi revectorize --write-store`, or use `--route fetch`",
            path=str(root),
        ) from error
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged ({error}): write the store again", path=str(path)) from error
    _check_manifest(path, manifest)
    return manifest


def _check_manifest(path: Path, manifest: StoreManifest) -> None:
    """Raise `ArtifactError` unless the manifest is complete, of this format, and within its limits."""
    if (manifest.format, manifest.format_version) != (FORMAT, FORMAT_VERSION):
        raise ArtifactError(
            f"{path} has format {manifest.format!r} version {manifest.format_version}; this program reads {FORMAT!r} "
            f"version {FORMAT_VERSION}: write the store again, or upgrade",
            path=str(path),
        )
    if manifest.sha256 != _digest(manifest):
        raise ArtifactError(f"{path} does not match its own sha256: it was changed; write the store again")
    counts = [manifest.index.n_entries, manifest.index.number, manifest.generation]
    for record in manifest.segments:
        counts += [record.number, record.n_rows, record.n_terms, record.n_id_bytes]
        if record.number > MAX_SEGMENT or record.n_rows > ROW_MASK:
            raise ArtifactError(f"{path}: segment {record.number} is out of the format's range; write the store again")
    if min(counts) < 0 or not 0 < manifest.dims <= MAX_DIMS or manifest.quantisation not in VECTOR_FILES:
        raise ArtifactError(f"{path} states impossible sizes or an unknown quantisation; write the store again")


# --- ids


class IdBlock(NamedTuple):
    """Concatenated ids in UTF-8, (n_bytes,) uint8. Id i is ``buffer[offsets[i]:offsets[i + 1]]``."""

    buffer: UInt8
    offsets: Int64

    @property
    def lengths(self) -> Int64:
        """Length of each id in bytes, (n,) int64."""
        return self.offsets[1:] - self.offsets[:-1]

    def encoded(self, row: int) -> bytes:
        """Return one id in UTF-8."""
        return self.buffer[int(self.offsets[row]) : int(self.offsets[row + 1])].tobytes()


def _mix(values: UInt64) -> UInt64:
    """Apply the finaliser of splitmix64 to each value (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.cache
def _numbers_of_bytes() -> UInt64:
    """Return the pseudo-random number of each (position, byte), (512 * 256,) uint64. Fixed by format version 1."""
    counter = np.arange(1, MAX_ID_BYTES * 256 + 1, dtype=np.uint64)
    return _mix(counter * np.uint64(0x9E3779B97F4A7C15))


def encode_ids(ids: Sequence[str]) -> IdBlock:
    """Return the concatenated ids in UTF-8. Lone surrogates are kept, because engines accept them in an id."""
    if (joined := "".join(ids)).isascii():
        return IdBlock(np.frombuffer(joined.encode("ascii"), dtype=np.uint8), offsets_of(list(map(len, ids))))
    encoded = [value.encode("utf-8", "surrogatepass") for value in ids]
    return IdBlock(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets_of([len(data) for data in encoded]))


def _check_ids(block: IdBlock) -> None:
    """Raise `InputError` for an id that no engine accepts: an empty one, or one of more than 512 bytes."""
    lengths = block.lengths
    bad = np.flatnonzero((lengths == 0) | (lengths > MAX_ID_BYTES))
    if len(bad):
        first = int(bad[0])
        raise InputError(
            f"id number {first} of the batch has {int(lengths[first])} bytes: an id has 1 to {MAX_ID_BYTES} bytes "
            "of UTF-8: shorten it in the source",
            position=first,
        )


def hash_ids(block: IdBlock) -> UInt64:
    """Return the key of each id, (n,) uint64."""
    lengths = block.lengths
    position = np.arange(len(block.buffer), dtype=np.int64) - np.repeat(block.offsets[:-1], lengths)
    # The remainder of a division by a power of two, which takes a tenth of the time.
    numbers = _numbers_of_bytes()[(position & (MAX_ID_BYTES - 1)) * 256 + block.buffer]
    # Differences of a running sum instead of `np.add.reduceat`, which gives a wrong value for an empty id.
    running = np.zeros(len(numbers) + 1, dtype=np.uint64)
    np.cumsum(numbers, out=running[1:])
    return _mix(running[block.offsets[1:]] - running[block.offsets[:-1]] + lengths.astype(np.uint64))


def _ranges(starts: Int64, lengths: Int64) -> Int64:
    """Return ``concatenate([arange(s, s + l) for s, l in zip(starts, lengths)])``, computed without a loop."""
    ends: Int64 = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Int64 = np.arange(total, dtype=np.int64)
    places += np.repeat(starts - (ends - lengths), lengths)
    return places


def _take_ids(block: IdBlock, rows: Int64) -> IdBlock:
    """Return a new block with the ids at ``rows``, in that order."""
    starts = block.offsets[rows]
    lengths = block.offsets[rows + 1] - starts
    return IdBlock(block.buffer[_ranges(starts, lengths)], offsets_of(lengths))


def _same_ids(a: IdBlock, a_rows: Int64, b: IdBlock, b_rows: Int64) -> Bool:
    """Return whether id ``a_rows[i]`` of ``a`` equals id ``b_rows[i]`` of ``b``, (n,) bool."""
    a_starts, b_starts = a.offsets[a_rows], b.offsets[b_rows]
    a_lengths, b_lengths = a.offsets[a_rows + 1] - a_starts, b.offsets[b_rows + 1] - b_starts
    same: Bool = a_lengths == b_lengths
    candidates = np.flatnonzero(same)
    lengths = a_lengths[candidates]
    differs = a.buffer[_ranges(a_starts[candidates], lengths)] != b.buffer[_ranges(b_starts[candidates], lengths)]
    running = offsets_of(differs)
    ends = np.cumsum(lengths)
    same[candidates] = running[ends] == running[ends - lengths]
    return same


# --- reading

OPEN_ATTEMPTS = 5


class Segment:
    """The mapped arrays of a segment.

    The constructor raises `ArtifactError` if a file is missing or has another size, or if offsets do not fit the data.
    """

    def __init__(
        self,
        root: Path,
        record: SegmentRecord,
        dims: int,
        quantisation: str,
        reading: Reading = "in order",
        copy: CopyFile | None = None,
    ) -> None:
        folder = _folder(root, "segment", record.number)
        files = _segment_files(record, dims, quantisation)
        arrays = {
            name: _map_array(folder / name, *of, reading, copy, record.sha256.get(name, ""))
            for name, of in files.items()
        }
        self.record = record
        self.ids = IdBlock(arrays["ids.bin"], arrays["id_offsets.i8"])
        self.vectors: AnyArray = arrays[VECTOR_FILES[quantisation][0]]
        self.scales: Float32 | None = arrays.get("scales.f4")
        self.indptr: Int64 = arrays["indptr.i8"]
        self.indices: Int32 = arrays["indices.i4"]
        self.data: Float32 = arrays["data.f4"]
        self.sources: UInt64 = arrays["sources.u8"]
        ends = [int(offsets[place]) for offsets in (self.ids.offsets, self.indptr) for place in (0, -1)]
        if ends != [0, record.n_id_bytes, 0, record.n_terms]:
            raise ArtifactError(f"{folder}: its offsets do not fit its data; write the store again", path=str(folder))

    def dense(self, rows: Int64) -> Float32:
        """Return Vd at ``rows``, (n, N) float32."""
        vectors: Float32 = self.vectors[rows].astype(np.float32)
        return vectors if self.scales is None else vectors * self.scales[rows][:, None]

    def has_words(self, rows: Int64) -> Bool:
        """Return whether each row has a word or a vector that is not 0, (n,) bool."""
        has_row = self.indptr[rows + 1] > self.indptr[rows]
        if not has_row.all():
            has_row[~has_row] = self.dense(rows[~has_row]).any(axis=1)
        return has_row

    def terms(self, rows: Int64) -> sp.csr_matrix:
        """Return the lexical rows at ``rows``, (n, 2**31 - 1) float32; see `csr`."""
        indptr, indices, data = self.csr(rows)
        return sp.csr_matrix((data, indices, indptr), shape=(len(rows), N_TERM_IDS))

    def csr(self, rows: Int64) -> tuple[Int64, Int32, Float32]:
        """Return indptr, indices and data of the rows at ``rows``. Raises `ArtifactError` if they are damaged."""
        starts, ends = self.indptr[rows], self.indptr[rows + 1]
        lengths = ends - starts
        if len(rows) and (int(lengths.min()) < 0 or int(starts.min()) < 0 or int(ends.max()) > len(self.indices)):
            raise ArtifactError(f"segment {self.record.number}: its row pointers are damaged; write the store again")
        taken = _ranges(starts, lengths)
        return offsets_of(lengths), self.indices[taken], self.data[taken]

    def score(self, query: QueryVectors, rows: Int64) -> Float32:
        """Return f(q, d) of the documents at ``rows``, (n,) float32."""
        head = (query.vector, query.ids, query.weights, query.identity)
        if self.vectors.dtype == np.float32:
            return score_rows(*head, rows, self.vectors, self.indptr, self.indices, self.data)
        places = np.arange(len(rows), dtype=np.int64)
        return score_rows(*head, places, self.dense(rows), *self.csr(rows))


class VectorStore:
    """A reader of a store: memory-mapped vectors and lexical rows of documents by id (route *beside*).

    An instance always shows the state that it opened; `refreshed` returns the newest one. Row numbers are opaque int64.
    """

    def __init__(
        self, root: Path, manifest: StoreManifest, reading: Reading = "in order", copy: CopyFile | None = None
    ) -> None:
        self.path = root
        self.encoder_id = manifest.encoder_id
        self.dims = manifest.dims
        self.quantisation = manifest.quantisation
        self.generation = manifest.generation
        self._manifest = manifest
        self._segments = {
            record.number: Segment(root, record, manifest.dims, manifest.quantisation, reading, copy)
            for record in manifest.segments
        }
        folder, n = _folder(root, "index", manifest.index.number), manifest.index.n_entries
        digests = manifest.index.sha256
        self._keys: UInt64 = _map_array(folder / "keys.u8", "<u8", (n,), reading, copy, digests.get("keys.u8", ""))
        self._rows: Int64 = _map_array(folder / "rows.i8", "<i8", (n,), reading, copy, digests.get("rows.i8", ""))

    @classmethod
    def open(
        cls, path: str | Path, encoder_id: str | None = None, *, verify: bool = False, copy: CopyFile | None = None
    ) -> VectorStore:
        """Open the store at ``path``.

        With ``verify``, the sha256 of every file is checked first. With ``copy``, private copies of the files are
        mapped, and each is checked against its sha256 while it is copied. Without copies, overwriting a file in place
        changes the open store, and truncating a file crashes the process.

        Raises `EncoderMismatch` if the vectors belong to another encoder than ``encoder_id`` (None accepts any encoder,
        for inspection only), and `ArtifactError` if the store is missing or damaged.
        """
        root = Path(path)
        for attempt in range(OPEN_ATTEMPTS):
            manifest = read_store_manifest(root)
            if encoder_id is not None and manifest.encoder_id != encoder_id:
                raise EncoderMismatch(
                    f"the vector store at {str(root)!r} was made by encoder {manifest.encoder_id[:12]}, the model "
                    f"needs {encoder_id[:12]}: their vectors cannot be compared; write a store with this model "
                    "(`ssi revectorize --write-store`) or load the model that made it",
                    store=manifest.encoder_id,
                    model=encoder_id,
                )
            try:
                store = cls(root, manifest, "ahead" if _fits_in_memory(manifest) else "at random", copy)
            except ArtifactError:
                # Since the manifest was read, a writer may have published and removed the files that it names.
                if attempt + 1 == OPEN_ATTEMPTS or read_store_manifest(root).sha256 == manifest.sha256:
                    raise
                continue
            if verify:
                store.verify()
            return store
        raise ArtifactError(f"the vector store at {str(root)!r} is replaced faster than it can be opened; try again")

    def __len__(self) -> int:
        return len(self._keys)

    def verify(self) -> None:
        """Read all files. Raises `ArtifactError` for the first one whose sha256 differs from the manifest."""
        for path, digest, _ in store_files(self.path, self._manifest):
            with _open_regular(path) as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            if actual != digest:
                raise ArtifactError(f"{path} was changed since it was written (sha256); write the store again")

    def refreshed(self) -> VectorStore:
        """Return a reader of the newest published state: this object if it is current, otherwise a new one."""
        if read_store_manifest(self.path).generation == self.generation:
            return self
        return VectorStore.open(self.path, self.encoder_id)

    def rows_of(self, ids: Sequence[str]) -> Int64:
        """Return the row of each id, (n,) int64; -1 for ids that are not in the store."""
        block = encode_ids(ids)
        wanted = hash_ids(block)
        stored_rows = np.full(len(wanted), -1, dtype=np.int64)
        open_places = np.arange(len(wanted), dtype=np.int64)
        at = np.searchsorted(self._keys, wanted)
        # Entries of equal keys stand together; almost always the first one is the id looked for.
        while len(open_places):
            inside = at < len(self._keys)
            open_places, at = open_places[inside], at[inside]
            equal = self._keys[at] == wanted[open_places]
            open_places, at = open_places[equal], at[equal]
            rows = self._rows[at]
            same = np.zeros(len(rows), dtype=bool)
            for segment, places, local in self._by_segment(rows):
                same[places] = _same_ids(block, open_places[places], segment.ids, local)
            stored_rows[open_places[same]] = rows[same]
            open_places, at = open_places[~same], at[~same] + 1
        return stored_rows

    def score(self, query: QueryVectors, rows: Int64) -> Float32:
        """Return f(q, d) of each row, (n,) float32.

        Raises `InputError` for a row of no segment, and `ShapeMismatch` for a query of other dimensions.
        """
        return self._read(rows, np.empty(len(rows), np.float32), lambda segment, local: segment.score(query, local))

    def vectors(self, rows: Int64) -> Float32:
        """Return Vd of each row, (n, N) float32."""
        return self._read(rows, np.empty((len(rows), self.dims), np.float32), Segment.dense)

    def terms(self, rows: Int64) -> sp.csr_matrix:
        """Return the lexical row of each row, (n, 2**31 - 1) float32."""
        parts = [(segment.terms(local), places) for segment, places, local in self._by_segment(rows)]
        if len(parts) == 1:
            return parts[0][0]
        stacked = stack_rows([part for part, _ in parts])
        return stacked[np.argsort(np.concatenate([places for _, places in parts]))] if parts else stacked

    def has_words(self, rows: Int64) -> Bool:
        """Return whether the text of each row has words, (n,) bool. Vd' counts words of lexical weight 0."""
        return self._read(rows, np.empty(len(rows), bool), Segment.has_words)

    def source_hashes(self, rows: Int64) -> list[str]:
        """Return for each row the hash of the text that it was computed from (`_src`), 16 hexadecimal digits."""
        values = self._read(rows, np.empty(len(rows), np.uint64), lambda segment, local: segment.sources[local])
        return [f"{value:016x}" for value in values.tolist()]

    def _read(self, rows: Int64, values: AnyArray, read: Callable[[Segment, Int64], AnyArray]) -> AnyArray:
        """Fill ``values`` with the result of ``read`` for the rows of each segment, and return it."""
        for segment, places, local in self._by_segment(rows):
            values[places] = read(segment, local)
        return values

    def _by_segment(self, rows: Int64) -> Iterator[tuple[Segment, Int64, Int64]]:
        """Yield (segment, positions in ``rows``, row numbers within the segment) for each segment of ``rows``.

        Raises `InputError` for a row that is in no segment.
        """
        numbers = rows >> SEGMENT_SHIFT
        # Most stores have one segment with nearly all rows.
        is_one = len(rows) > 0 and bool((numbers == numbers[0]).all())
        for number in (numbers[:1] if is_one else np.unique(numbers)).tolist():
            segment = self._segments.get(number)
            if segment is None:
                raise InputError(
                    f"the row {int(rows[numbers == number][0])} is not of this store (generation {self.generation}); "
                    "leave out ids that `rows_of` answered with -1, and use rows only with the store that gave them"
                )
            places = np.arange(len(rows), dtype=np.int64)
            if not is_one:
                places = np.flatnonzero(numbers == number).astype(np.int64)
            local = rows[places] & ROW_MASK
            if int(local.max()) >= segment.record.n_rows:
                raise ArtifactError(f"{self.path}: the id index points past segment {number}; write the store again")
            yield segment, places, local


# --- writing

COPY_ROWS = 4096
"""Number of rows that a merge copies at a time."""


def _id_bytes(row: int, segments: Mapping[int, Segment]) -> bytes:
    return segments[row >> SEGMENT_SHIFT].ids.encoded(row & ROW_MASK)


def _latest_entries(keys: UInt64, rows: Int64, segments: Mapping[int, Segment]) -> tuple[UInt64, Int64]:
    """Return the index entries sorted by key, only the last one of each id. Ids with equal keys all stay."""
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    keep = np.ones(len(keys), dtype=bool)
    bounds = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]])
    for start, end in zip(bounds[:-1][np.diff(bounds) > 1], bounds[1:][np.diff(bounds) > 1], strict=True):
        seen: set[bytes] = set()
        for place in range(int(end) - 1, int(start) - 1, -1):
            name = _id_bytes(int(rows[place]), segments)
            keep[place] = name not in seen
            seen.add(name)
    return keys[keep], rows[keep]


def plan_merge(sizes: Mapping[int, int], living: Mapping[int, int]) -> list[int]:
    """Return the numbers of the segments to merge into one, or an empty list.

    Segments whose rows are mostly dead are merged. Segments are also merged, from the smallest up, if they are at most
    twice as large as all smaller ones together. The sizes therefore grow geometrically: there are O(log n) segments,
    and a row is copied O(log n) times (log-structured merging).
    """
    chosen = [number for number, n_rows in sizes.items() if living[number] * 2 < n_rows]
    total, run = sum(living[number] for number in chosen), list(chosen)
    for number in sorted((n for n in sizes if n not in chosen), key=lambda n: (living[n], n)):
        if run and living[number] > 2 * total:
            break
        run.append(number)
        total += living[number]
    chosen = run if len(run) > 1 else chosen
    return sorted(chosen)


class SegmentFiles:
    """The files of a segment that is being written. Data is hashed while it is appended, and synced by `close`."""

    def __init__(self, root: Path, number: int, dims: int, quantisation: Quantisation) -> None:
        self.number, self.n_rows, self._n_terms, self._n_id_bytes = number, 0, 0, 0
        self._quantisation = quantisation
        self._folder = _folder(root, "segment", number)
        self._folder.mkdir()
        names = _segment_files(SegmentRecord(number, 0, 0, 0, {}), dims, quantisation)
        self._files: dict[str, IO[bytes]] = {name: (self._folder / name).open("wb") for name in names}
        self._hashes = {name: hashlib.sha256() for name in names}
        self._write("id_offsets.i8", np.zeros(1, "<i8"))
        self._write("indptr.i8", np.zeros(1, "<i8"))

    def _write(self, name: str, values: AnyArray) -> None:
        content = np.ascontiguousarray(values).data
        self._files[name].write(content)
        self._hashes[name].update(content)

    def append(self, ids: IdBlock, vectors: Float32, rows: sp.csr_matrix, sources: UInt64) -> Int64:
        """Append documents: ids, Vd, lexical rows and the hashes of their texts. Return their rows, (n,) int64."""
        self._write("ids.bin", ids.buffer)
        self._write("id_offsets.i8", (ids.offsets[1:] + self._n_id_bytes).astype("<i8"))
        self._write("indptr.i8", (rows.indptr[1:].astype(np.int64) + self._n_terms).astype("<i8"))
        self._write("indices.i4", rows.indices.astype("<i4"))
        self._write("data.f4", rows.data.astype("<f4"))
        self._write("sources.u8", sources.astype("<u8"))
        values, scales = stored_vectors(vectors, self._quantisation)
        self._write(VECTOR_FILES[self._quantisation][0], values)
        if scales is not None:
            self._write("scales.f4", scales.astype("<f4"))
        first = (self.number << SEGMENT_SHIFT) + self.n_rows
        self.n_rows += len(sources)
        self._n_terms += int(rows.indptr[-1])
        self._n_id_bytes += len(ids.buffer)
        return np.arange(first, first + len(sources), dtype=np.int64)

    def close(self) -> SegmentRecord:
        """Sync the files to disk and return their entry for the manifest."""
        for file in self._files.values():
            make_durable(file)
            file.close()
        sync_folder(self._folder)
        digests = {name: digest.hexdigest() for name, digest in self._hashes.items()}
        return SegmentRecord(self.number, self.n_rows, self._n_terms, self._n_id_bytes, digests)

    def discard(self) -> None:
        """Close and remove the files."""
        for file in self._files.values():
            # On a full disk, closing fails to write buffered data, which is not needed any more.
            with suppress(OSError):
                file.close()
        shutil.rmtree(self._folder)


class StoreWriter(AbstractContextManager["StoreWriter"]):
    """The only writer of a store. As a context manager, it publishes at the end of the block if there was no error.

    Changes become visible and durable with `publish`. The writer holds in memory the id index (16 bytes per document)
    and the current batch.

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
        If another process is writing to the store, or the store is damaged.
    """

    def __init__(self, path: str | Path, encoder_id: str, dims: int, *, quantisation: Quantisation = "float32") -> None:
        check_quantisation(quantisation)
        if not 0 < dims <= MAX_DIMS:
            raise InputError(f"{dims} dimensions were given; a store takes 1 to {MAX_DIMS}")
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise ArtifactError(
                f"another process is writing to the vector store at {str(path)!r}: wait until it ends", path=str(path)
            ) from error
        try:
            self._open_state(encoder_id, dims, quantisation)
        except BaseException:
            self._lock.release()
            raise

    def _open_state(self, encoder_id: str, dims: int, quantisation: Quantisation) -> None:
        if (self.path / MANIFEST).exists():
            manifest = read_store_manifest(self.path)
            if (manifest.encoder_id, manifest.dims) != (encoder_id, dims):
                raise EncoderMismatch(
                    f"the vector store at {str(self.path)!r} is of encoder {manifest.encoder_id[:12]} with "
                    f"{manifest.dims} dimensions, the documents are of {encoder_id[:12]} with {dims}: "
                    "write them to another folder",
                    store=manifest.encoder_id,
                    model=encoder_id,
                )
            store = VectorStore(self.path, manifest)
            self._keys, self._rows = np.array(store._keys), np.array(store._rows)
        else:
            no_index = IndexRecord(0, 0, {})
            manifest = StoreManifest(FORMAT, FORMAT_VERSION, encoder_id, dims, quantisation, 0, [], no_index)
            self._keys, self._rows = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._manifest, self._segments = manifest, list(manifest.segments)
        self._sweep(manifest)
        self._next_number = 1 + max([record.number for record in manifest.segments], default=0)
        self._added: list[tuple[UInt64, Int64]] = []
        self._current: SegmentFiles | None = None
        self._changed = manifest.generation == 0

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
        """
        if not (len(ids) == len(vectors) == rows.shape[0] == len(source_hashes)) or (
            vectors.shape != (len(ids), self._manifest.dims)
        ):
            raise ShapeMismatch(
                f"{len(ids)} ids, vectors {vectors.shape}, {rows.shape[0]} rows and {len(source_hashes)} hashes: give "
                f"one of each per document, with {self._manifest.dims} dimensions"
            )
        if len(ids) == 0:
            return
        block = encode_ids(ids)
        _check_ids(block)
        check_finite(vectors, "vector")
        check_finite(rows.data, "term weight")
        try:
            sources = np.array([int(value, 16) if value else 0 for value in source_hashes], dtype=np.uint64)
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"a source hash is not 16 hexadecimal digits ({error}); take it from TextView.source_hash"
            ) from error
        if self._current is None:
            self._current = self._new_segment()
        added = self._current.append(block, vectors, rows, sources)
        self._added.append((hash_ids(block), added))
        self._changed = True

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents. Return how many of the ids were in the store."""
        self._settle()
        block, segments, keep = encode_ids(ids), self._open_segments(), np.ones(len(self._keys), dtype=bool)
        wanted = hash_ids(block)
        left, right = np.searchsorted(self._keys, wanted, "left"), np.searchsorted(self._keys, wanted, "right")
        for position in np.flatnonzero(right > left).tolist():
            for place in range(int(left[position]), int(right[position])):
                if _id_bytes(int(self._rows[place]), segments) == block.encoded(position):
                    keep[place] = False
        removed = len(keep) - int(keep.sum())
        self._keys, self._rows = self._keys[keep], self._rows[keep]
        self._changed |= removed > 0
        return removed

    def publish(self) -> int:
        """Publish all changes atomically and durably. Return the number of documents."""
        self._settle()
        if self._changed:
            self._merge()
            index = self._write_index()
            generation = self._manifest.generation + 1
            self._manifest = msgspec.structs.replace(
                self._manifest, generation=generation, segments=list(self._segments), index=index
            )
            write_store_manifest(self.path, self._manifest)
            self._sweep(self._manifest)
            self._changed = False
        return len(self._keys)

    def close(self) -> None:
        """Discard unpublished changes and release the lock on the store."""
        try:
            if self._current is not None:
                self._current.discard()
                self._current = None
        finally:
            self._lock.release()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self.publish()
        finally:
            self.close()

    def _new_segment(self) -> SegmentFiles:
        if self._next_number > MAX_SEGMENT:
            raise ArtifactError(f"{self.path}: the store has no segment numbers left; write it again in a new folder")
        number, self._next_number = self._next_number, self._next_number + 1
        quantisation: Quantisation = self._manifest.quantisation  # type: ignore[assignment]
        return SegmentFiles(self.path, number, self._manifest.dims, quantisation)

    def _open_segments(self) -> dict[int, Segment]:
        dims, quantisation = self._manifest.dims, self._manifest.quantisation
        return {record.number: Segment(self.path, record, dims, quantisation) for record in self._segments}

    def _settle(self) -> None:
        """Close the segment that is being written, and add its entries to the index in memory."""
        if self._current is None:
            return
        self._segments.append(self._current.close())
        self._current = None
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._added)])
        rows = np.concatenate([self._rows, *(rows for _, rows in self._added)])
        self._added = []
        self._keys, self._rows = _latest_entries(keys, rows, self._open_segments())

    def _merge(self) -> None:
        """Copy the live rows of the segments chosen by `plan_merge` to a new segment."""
        numbers = self._rows >> SEGMENT_SHIFT
        living = {record.number: int((numbers == record.number).sum()) for record in self._segments}
        chosen = plan_merge({record.number: record.n_rows for record in self._segments}, living)
        if not chosen:
            return
        segments, target, rows = self._open_segments(), self._new_segment(), self._rows
        places = np.flatnonzero(np.isin(numbers, chosen))
        places = places[np.argsort(rows[places], kind="stable")]
        for start in range(0, len(places), COPY_ROWS):
            batch = places[start : start + COPY_ROWS]
            for number in np.unique(numbers[batch]).tolist():
                copied, segment = batch[numbers[batch] == number], segments[number]
                local = rows[copied] & ROW_MASK
                ids, sources = _take_ids(segment.ids, local), segment.sources[local]
                rows[copied] = target.append(ids, segment.dense(local), segment.terms(local), sources)
        self._segments = [record for record in self._segments if record.number not in chosen]
        if target.n_rows:
            self._segments.append(target.close())
        else:
            target.discard()

    def _write_index(self) -> IndexRecord:
        number = self._manifest.index.number + 1
        folder = _folder(self.path, "index", number)
        folder.mkdir()
        digests = {}
        for name, values in (("keys.u8", self._keys.astype("<u8")), ("rows.i8", self._rows.astype("<i8"))):
            with (folder / name).open("wb") as file:
                file.write(values.data)
                make_durable(file)
            digests[name] = hashlib.sha256(values.data).hexdigest()
        sync_folder(folder)
        return IndexRecord(number, len(self._keys), digests)

    def _sweep(self, manifest: StoreManifest) -> None:
        """Remove files that the manifest does not name: older states, and leftovers of a killed writer."""
        named = {_folder(self.path, "segment", record.number).name for record in manifest.segments}
        named.add(_folder(self.path, "index", manifest.index.number).name)
        for entry in self.path.iterdir():
            if entry.name not in named and entry.name.startswith(("segment-", "index-")):
                shutil.rmtree(entry)
            elif entry.name.startswith(f".{MANIFEST}."):
                entry.unlink()
