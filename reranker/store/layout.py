"""The store's folder: which files there are, what each holds, and the manifest that names the current ones.

::

    store.json             the manifest, replaced in one rename: whatever it names is complete
    segment-000007/        rows written together; never changed once the manifest names it
        ids.bin  id_offsets.i8              ids laid end to end
        vectors.f4 | vectors.f2 | vectors.i1 + scales.f4     Vd, (n, N)
        indptr.i8  indices.i4  data.f4      lexical rows (CSR)
        sources.u8                          hash of the text each row was made from (`_src`)
    index-000012/          keys.u8 (sorted), rows.i8: where the current row of each id is

A row number is ``segment << 40 | row in the segment``: it stays the same while other segments come and go.

An id is looked up by a 64-bit key: the sum over its bytes of a pseudo-random number drawn for (position, byte), mixed
with the length. This additive Zobrist hashing is computed by numpy for all ids of a request at once (a Python loop
over a cryptographic hash takes longer than scoring the documents). A key only proposes a row: the stored id is always
compared byte by byte, so that a collision, by accident or by design, costs time and never gives another document's
vector.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from reranker.arrays import AnyArray, Bool, Int64, UInt8, UInt64, offsets_of
from reranker.errors import ArtifactError, InputError
from reranker.files import write_file
from reranker.records import MAX_ID_BYTES

FORMAT: Final = "ssi-store"
FORMAT_VERSION: Final = 1
MANIFEST: Final = "store.json"
MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
SEGMENT_SHIFT: Final = 40
ROW_MASK: Final = (1 << SEGMENT_SHIFT) - 1
MAX_SEGMENT: Final = (1 << 22) - 1
MAX_DIMS: Final = 65_536

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


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


def segment_path(root: Path, number: int) -> Path:
    """Return the folder of a segment."""
    return root / f"segment-{number:06d}"


def index_path(root: Path, number: int) -> Path:
    """Return the folder of an id index."""
    return root / f"index-{number:06d}"


def segment_files(record: SegmentRecord, dims: int, quantisation: str) -> dict[str, tuple[str, tuple[int, ...]]]:
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


def map_array(path: Path, dtype: str, shape: tuple[int, ...]) -> AnyArray:
    """Return a read-only memory map of a file that must have exactly the size of ``dtype`` and ``shape``.

    `ArtifactError` is raised if the file is missing or of another size.
    """
    n_bytes = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    try:
        size = path.stat().st_size
        if size != n_bytes:
            raise ArtifactError(
                f"{path} has {size} bytes, not the {n_bytes} its manifest states: the store is damaged; write it "
                "again with `ssi index` or `ssi revectorize`",
                path=str(path),
            )
        if n_bytes == 0:
            return np.empty(shape, dtype=dtype)
        return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=shape))
    except OSError as error:
        raise ArtifactError(
            f"{path} of the vector store cannot be read ({error.strerror}): write the store again with `ssi index` or "
            "`ssi revectorize`",
            path=str(path),
        ) from error


def _digest(manifest: Manifest) -> str:
    """Return the sha256 over the manifest without its own ``sha256``."""
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(manifest, sha256=""))).hexdigest()


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Replace the manifest: a reader sees the old one or the new one, also after a crash at any point."""
    content = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, sha256=_digest(manifest))))
    write_file(root / MANIFEST, content)


def read_manifest(root: Path) -> Manifest:
    """Return the checked manifest of a store.

    `ArtifactError` is raised if there is no store at ``root``, or its manifest is damaged, too large or of an unknown
    format.
    """
    path = root / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ArtifactError(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes: this is no vector store")
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"there is no vector store at {str(root)!r} ({MANIFEST} is missing): write one with `ssi index --store` or "
            "`ssi revectorize --store`, or use `--route fetch`",
            path=str(root),
        ) from error
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged ({error}): write the store again", path=str(path)) from error
    _check_manifest(path, manifest)
    return manifest


def _check_manifest(path: Path, manifest: Manifest) -> None:
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
def _table() -> UInt64:
    """Return the number of each (position, byte), (512 * 256,) uint64: fixed for the store's format version 1."""
    counter = np.arange(1, MAX_ID_BYTES * 256 + 1, dtype=np.uint64)
    return _mix(counter * np.uint64(0x9E3779B97F4A7C15))


def encode_ids(ids: Sequence[str]) -> IdBlock:
    """Return the ids as UTF-8 laid end to end; a lone surrogate is kept, since engines accept it in an id."""
    encoded = [value.encode("utf-8", "surrogatepass") for value in ids]
    return IdBlock(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets_of([len(data) for data in encoded]))


def check_ids(block: IdBlock) -> None:
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
    numbers = _table()[(position % MAX_ID_BYTES) * 256 + block.buffer]
    # Differences of a running sum, not `np.add.reduceat`: that one gives a wrong value for an empty id.
    running = np.zeros(len(numbers) + 1, dtype=np.uint64)
    np.cumsum(numbers, out=running[1:])
    return _mix(running[block.offsets[1:]] - running[block.offsets[:-1]] + lengths.astype(np.uint64))


def ranges(starts: Int64, lengths: Int64) -> Int64:
    """Return ``concatenate([arange(s, s + l) for s, l in zip(starts, lengths)])`` without the loop."""
    ends: Int64 = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Int64 = np.arange(total, dtype=np.int64)
    places += np.repeat(starts - (ends - lengths), lengths)
    return places


def take_ids(block: IdBlock, rows: Int64) -> IdBlock:
    """Return the ids at ``rows``, in that order, as a block of their own."""
    starts = block.offsets[rows]
    lengths = block.offsets[rows + 1] - starts
    return IdBlock(block.buffer[ranges(starts, lengths)], offsets_of(lengths))


def same_ids(a: IdBlock, a_rows: Int64, b: IdBlock, b_rows: Int64) -> Bool:
    """Return whether id ``a_rows[i]`` of ``a`` equals id ``b_rows[i]`` of ``b``, (n,) bool."""
    a_starts, b_starts = a.offsets[a_rows], b.offsets[b_rows]
    a_lengths, b_lengths = a.offsets[a_rows + 1] - a_starts, b.offsets[b_rows + 1] - b_starts
    same: Bool = a_lengths == b_lengths
    candidates = np.flatnonzero(same)
    lengths = a_lengths[candidates]
    differs = a.buffer[ranges(a_starts[candidates], lengths)] != b.buffer[ranges(b_starts[candidates], lengths)]
    running = offsets_of(differs)
    ends = np.cumsum(lengths)
    same[candidates] = running[ends] == running[ends - lengths]
    return same
