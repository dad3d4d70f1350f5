"""A store of vectors: ids to rows, rows to scores, loading only what a request touches; one writer beside readers.

::

    store.json             the manifest, replaced in one rename: whatever it names is complete
    segment-000007/        rows written together; never changed once the manifest names it
        ids.bin  id_offsets.i8              ids laid end to end
        vectors.f4 | vectors.f2 | vectors.i1 + scales.f4     Vd, (n, N)
        indptr.i8  indices.i4  data.f4      lexical rows (CSR)
        sources.u8                          hash of the text each row was made from (`_src`)
    index-000012/          keys.u8 (sorted), rows.i8: where the current row of each id is

A row number is ``segment << 40 | row in the segment``: it stays the same while other segments come and go. The writer
appends, replaces, deletes and publishes; readers keep the state they opened.

An id is looked up by a 64-bit key: the sum over its bytes of a pseudo-random number drawn for (position, byte), mixed
with the length. This additive Zobrist hashing is computed by numpy for all ids of a request at once (a Python loop
over a cryptographic hash takes longer than scoring the documents). A key only proposes a row: the stored id is always
compared byte by byte, so that a collision, by accident or by design, costs time and never gives another document's
vector.
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
"""Where Linux says how much memory can be had."""
AHEAD_BYTES: Final = 128 * 1024
"""Read ahead at a time: the system reads no further than its window, of at least so many bytes."""
Reading = Literal["in order", "at random", "ahead"]

VECTOR_FILES: Final[dict[str, tuple[str, str]]] = {
    "float32": ("vectors.f4", "<f4"),
    "float16": ("vectors.f2", "<f2"),
    "int8": ("vectors.i1", "<i1"),
}
"""Quantisation → file name and dtype of the vectors."""


class SegmentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the manifest says of one segment: its number, its rows, and the sha256 of each file."""

    number: int
    n_rows: int
    n_terms: int
    n_id_bytes: int
    sha256: dict[str, str]


class IndexRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the manifest says of the id index: its number, its entries, and the sha256 of each file."""

    number: int
    n_entries: int
    sha256: dict[str, str]


class StoreManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a store: everything a reader needs to map it."""

    format: str
    format_version: int
    encoder_id: str
    dims: int
    quantisation: str
    generation: int
    segments: list[SegmentRecord]
    index: IndexRecord
    sha256: str = ""


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
    """A file of a store as its manifest states it."""

    path: Path
    sha256: str
    """64 hexadecimal digits; empty if the manifest has none."""
    n_bytes: int


def store_files(root: Path, manifest: StoreManifest) -> list[StoredFile]:
    """Return every file that a manifest names, those of the id index first."""
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
    """Return whether the system has memory for all the files of a store; False where it does not say."""
    try:
        lines = dict(line.split(":") for line in MEMORY.read_text(encoding="ascii").splitlines())
        available = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return False
    return sum(file.n_bytes for file in store_files(Path(), manifest)) < available


def _open_regular(path: Path) -> BufferedReader:
    """Return a file open for reading; `ArtifactError` for a pipe or a device, which would be read without an end."""
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
    """Return a read-only memory map of a file; `ArtifactError` unless it has the size of ``dtype`` and ``shape``.

    With ``copy``, the map is of a private copy, whose content has the hash ``sha256``.

    Read ``at random``, only the pages asked for are read from the disk: the system's own way, those around each as
    well, pushes out what the next request needs where memory is short. ``ahead``: so, and every page now.
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
            with suppress(OSError):  # advice that a system does not take changes no result
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
    """Replace the manifest: a reader sees the old one or the new one, also after a crash at any point."""
    content = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, sha256=_digest(manifest))))
    write_file(root / MANIFEST, content)


def read_store_manifest(root: Path) -> StoreManifest:
    """Return the checked manifest of a store; `ArtifactError` if there is none, or it is damaged or unknown."""
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
    """Raise `ArtifactError` unless the manifest is whole, of this format, and within its limits."""
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
    """Ids laid end to end: UTF-8 of all, (n_bytes,) uint8; id i is ``buffer[offsets[i]:offsets[i + 1]]``."""

    buffer: UInt8
    offsets: Int64

    @property
    def lengths(self) -> Int64:
        """Bytes of each id, (n,) int64."""
        return self.offsets[1:] - self.offsets[:-1]

    def encoded(self, row: int) -> bytes:
        """Return one id in UTF-8."""
        return self.buffer[int(self.offsets[row]) : int(self.offsets[row + 1])].tobytes()


def _mix(values: UInt64) -> UInt64:
    """Return splitmix64's finaliser of each value (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.cache
def _numbers_of_bytes() -> UInt64:
    """Return the number of each (position, byte), (512 * 256,) uint64: fixed for the store's format version 1."""
    counter = np.arange(1, MAX_ID_BYTES * 256 + 1, dtype=np.uint64)
    return _mix(counter * np.uint64(0x9E3779B97F4A7C15))


def encode_ids(ids: Sequence[str]) -> IdBlock:
    """Return the ids as UTF-8 laid end to end; a lone surrogate is kept, since engines accept it in an id."""
    encoded = [value.encode("utf-8", "surrogatepass") for value in ids]
    return IdBlock(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets_of([len(data) for data in encoded]))


def _check_ids(block: IdBlock) -> None:
    """Raise `InputError` for an id that no engine could have given: empty, or over 512 bytes."""
    lengths = block.lengths
    bad = np.flatnonzero((lengths == 0) | (lengths > MAX_ID_BYTES))
    if len(bad):
        first = int(bad[0])
        raise InputError(
            f"the id number {first} of the batch has {int(lengths[first])} bytes; an id has 1 to {MAX_ID_BYTES} bytes "
            "of UTF-8: shorten it in the source",
            position=first,
        )


def hash_ids(block: IdBlock) -> UInt64:
    """Return the key of each id, (n,) uint64."""
    lengths = block.lengths
    position = np.arange(len(block.buffer), dtype=np.int64) - np.repeat(block.offsets[:-1], lengths)
    numbers = _numbers_of_bytes()[(position % MAX_ID_BYTES) * 256 + block.buffer]
    # Differences of a running sum, not `np.add.reduceat`: that one gives a wrong value for an empty id.
    running = np.zeros(len(numbers) + 1, dtype=np.uint64)
    np.cumsum(numbers, out=running[1:])
    return _mix(running[block.offsets[1:]] - running[block.offsets[:-1]] + lengths.astype(np.uint64))


def _ranges(starts: Int64, lengths: Int64) -> Int64:
    """Return ``concatenate([arange(s, s + l) for s, l in zip(starts, lengths)])`` without the loop."""
    ends: Int64 = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Int64 = np.arange(total, dtype=np.int64)
    places += np.repeat(starts - (ends - lengths), lengths)
    return places


def _take_ids(block: IdBlock, rows: Int64) -> IdBlock:
    """Return the ids at ``rows``, in that order, as a block of their own."""
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
    """The mapped arrays of a segment; `ArtifactError` if one is missing, of another size, or misfits its offsets."""

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
        """Return indptr, indices and data of the lexical rows at ``rows``; `ArtifactError` for damaged pointers."""
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
    """Vectors and lexical rows of documents by id, memory-mapped (route *beside*).

    It keeps what it showed when it was opened; `refreshed` gives the newest one. Row numbers are opaque int64.
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
        """Return the store at ``path``, with ``verify`` after comparing the sha256 of every file.

        With ``copy``, private copies of the files are mapped, each compared with its sha256 on the way. Without, a file
        that is overwritten in place changes the store that is open, and one that is truncated ends the process.

        `EncoderMismatch` if its vectors are not of the encoder ``encoder_id`` (None: any, to look, not to score),
        `ArtifactError` if there is no store, or it is damaged.
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
                # A writer may have published, and removed what this manifest named, since it was read.
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
        """Read every byte and raise `ArtifactError` for the first file whose sha256 is not the manifest's."""
        for path, digest, _ in store_files(self.path, self._manifest):
            with _open_regular(path) as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            if actual != digest:
                raise ArtifactError(f"{path} was changed since it was written (sha256); write the store again")

    def refreshed(self) -> VectorStore:
        """Return the newest published state: this object if nothing was published since, else a newly opened one."""
        if read_store_manifest(self.path).generation == self.generation:
            return self
        return VectorStore.open(self.path, self.encoder_id)

    def rows_of(self, ids: Sequence[str]) -> Int64:
        """Return the row of each id, (n,) int64; -1 where the store does not hold it."""
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
        """Return f(q, d) of each row, (n,) float32; `InputError`: of no segment, `ShapeMismatch`: other dimensions."""
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
        """Return whether each row is of a text with words, (n,) bool; one whose words have lexical weight 0 has Vd'."""
        return self._read(rows, np.empty(len(rows), bool), Segment.has_words)

    def source_hashes(self, rows: Int64) -> list[str]:
        """Return the hash of the text each row was made from (`_src`), 16 hexadecimal digits."""
        values = self._read(rows, np.empty(len(rows), np.uint64), lambda segment, local: segment.sources[local])
        return [f"{value:016x}" for value in values.tolist()]

    def _read(self, rows: Int64, values: AnyArray, read: Callable[[Segment, Int64], AnyArray]) -> AnyArray:
        """Return ``values`` filled with what is read of each segment at some of its rows."""
        for segment, places, local in self._by_segment(rows):
            values[places] = read(segment, local)
        return values

    def _by_segment(self, rows: Int64) -> Iterator[tuple[Segment, Int64, Int64]]:
        """Yield each segment that ``rows`` touch, the places of its rows, and these by its own count, in its bounds."""
        numbers = rows >> SEGMENT_SHIFT
        for number in np.unique(numbers).tolist():
            segment = self._segments.get(number)
            if segment is None:
                raise InputError(
                    f"the row {int(rows[numbers == number][0])} is not of this store (generation {self.generation}); "
                    "leave out ids that `rows_of` answered with -1, and use rows only with the store that gave them"
                )
            places = np.flatnonzero(numbers == number).astype(np.int64)
            local = rows[places] & ROW_MASK
            if int(local.max()) >= segment.record.n_rows:
                raise ArtifactError(f"{self.path}: the id index points past segment {number}; write the store again")
            yield segment, places, local


# --- writing

COPY_ROWS = 4096
"""Rows copied at once by a merge."""


def _id_bytes(row: int, segments: Mapping[int, Segment]) -> bytes:
    return segments[row >> SEGMENT_SHIFT].ids.encoded(row & ROW_MASK)


def _latest_entries(keys: UInt64, rows: Int64, segments: Mapping[int, Segment]) -> tuple[UInt64, Int64]:
    """Return the index sorted by key, with the last entry of each id; two ids may share a key, and both stay."""
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
    """Return the numbers of the segments to rewrite as one, or an empty list.

    Segments whose rows are mostly dead are rewritten; from the smallest up, so are those not more than twice as large
    as all smaller ones together. Sizes thus grow geometrically: there are O(log n) segments, and a row is copied
    O(log n) times in its life (the rule of log-structured merging).
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
    """The files of a segment being written: appended to, hashed on the way, made durable when closed."""

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
        """Add documents: ids, Vd, lexical rows and the hashes of their texts; return their row numbers, (n,) int64."""
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
        """Make the files durable and return what the manifest says of them."""
        for file in self._files.values():
            make_durable(file)
            file.close()
        sync_folder(self._folder)
        digests = {name: digest.hexdigest() for name, digest in self._hashes.items()}
        return SegmentRecord(self.number, self.n_rows, self._n_terms, self._n_id_bytes, digests)

    def discard(self) -> None:
        """Close and remove the files."""
        for file in self._files.values():
            # On a full disk, closing fails to write what is about to be removed.
            with suppress(OSError):
                file.close()
        shutil.rmtree(self._folder)


class StoreWriter(AbstractContextManager["StoreWriter"]):
    """The one writer of a store; a context manager that publishes when its block ends without an error.

    What was added is visible, and survives a crash, from `publish` on. Memory: the id index (16 bytes a document) and
    the batch at hand. The folder is made if absent; ``encoder_id`` names the encoder of the vectors, ``dims`` is N. The
    encoder's own ``quantisation`` loses nothing; an existing store keeps the one it has.

    `EncoderMismatch` if the folder holds another encoder's vectors or other dimensions. `ArtifactError` if another
    process is writing to the store, or it is damaged.
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
        """Add documents; one whose id is already there, also earlier in the same batch, is replaced.

        `ShapeMismatch` if the parts have different numbers of documents, or the vectors other dimensions than the
        store. `InputError` if an id is empty or too long, a value is not finite, or a hash is not one.

        ``vectors``, (n, N) float32, are Vd as the encoder gives them (quantised and decoded); ``rows``, (n, 2**31 - 1)
        float32, lexical rows, ids sorted in each row; ``source_hashes`` the `_src` of each document, 16 hexadecimal
        digits, or "" where it is not known.
        """
        if not (len(ids) == len(vectors) == rows.shape[0] == len(source_hashes)) or (
            vectors.shape != (len(ids), self._manifest.dims)
        ):
            raise ShapeMismatch(
                f"{len(ids)} ids, vectors {vectors.shape}, {rows.shape[0]} rows and {len(source_hashes)} hashes: give "
                f"one of each a document, with {self._manifest.dims} dimensions"
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
        """Remove documents and return how many of the ids were there."""
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
        """Make everything added and deleted visible in one step, durably, and return the number of documents."""
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
        """Discard what was not published and let another process write."""
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
        """Close the segment being written and bring its entries into the index in memory."""
        if self._current is None:
            return
        self._segments.append(self._current.close())
        self._current = None
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._added)])
        rows = np.concatenate([self._rows, *(rows for _, rows in self._added)])
        self._added = []
        self._keys, self._rows = _latest_entries(keys, rows, self._open_segments())

    def _merge(self) -> None:
        """Copy the living rows of small or mostly dead segments to one new segment."""
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
        """Remove what no manifest names: older states, and leftovers of a writer that was killed."""
        named = {_folder(self.path, "segment", record.number).name for record in manifest.segments}
        named.add(_folder(self.path, "index", manifest.index.number).name)
        for entry in self.path.iterdir():
            if entry.name not in named and entry.name.startswith(("segment-", "index-")):
                shutil.rmtree(entry)
            elif entry.name.startswith(f".{MANIFEST}."):
                entry.unlink()
