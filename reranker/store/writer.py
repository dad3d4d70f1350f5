"""Writing a store: append, replace, delete, publish; readers keep the state they opened."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO

import numpy as np
import scipy.sparse as sp
from filelock import FileLock, Timeout

from reranker.arrays import AnyArray, Bool, Float32, Int64, UInt64
from reranker.errors import ArtifactError, EncoderMismatch, InputError, ShapeMismatch
from reranker.files import make_durable, sync_folder
from reranker.kernels.packing import Quantisation, check_finite, check_quantisation, to_float16, to_int8
from reranker.store.layout import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    MAX_DIMS,
    MAX_SEGMENT,
    ROW_MASK,
    SEGMENT_SHIFT,
    VECTOR_FILES,
    IdBlock,
    IndexRecord,
    Manifest,
    SegmentRecord,
    check_ids,
    encode_ids,
    hash_ids,
    index_path,
    read_manifest,
    segment_files,
    segment_path,
    take_ids,
    write_manifest,
)
from reranker.store.reader import Segment, VectorStore

COPY_ROWS = 4096
"""Rows copied at once by a merge."""


def _id_bytes(row: int, segments: Mapping[int, Segment]) -> bytes:
    ids, local = segments[row >> SEGMENT_SHIFT].ids, row & ROW_MASK
    return ids.buffer[int(ids.offsets[local]) : int(ids.offsets[local + 1])].tobytes()


def latest_entries(keys: UInt64, rows: Int64, segments: Mapping[int, Segment]) -> tuple[UInt64, Int64]:
    """Return the index sorted by key, with one entry an id: the last in the order given.

    Two ids may share a key; both stay.
    """
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


def drop_rows(keys: UInt64, rows: Int64, segments: Mapping[int, Segment], ids: IdBlock) -> Bool:
    """Return which entries of the index stay when ``ids`` are deleted, (n_entries,) bool."""
    keep = np.ones(len(keys), dtype=bool)
    wanted = hash_ids(ids)
    left, right = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
    for position in np.flatnonzero(right > left).tolist():
        wanted_id = ids.buffer[ids.offsets[position] : ids.offsets[position + 1]].tobytes()
        for place in range(int(left[position]), int(right[position])):
            if _id_bytes(int(rows[place]), segments) == wanted_id:
                keep[place] = False
    return keep


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


def copy_rows(segments: Mapping[int, Segment], rows: Int64, places: Int64, target: SegmentFiles) -> None:
    """Append the rows at ``rows[places]`` to ``target`` and write their new numbers back into ``rows``."""
    places = places[np.argsort(rows[places], kind="stable")]
    for start in range(0, len(places), COPY_ROWS):
        batch = places[start : start + COPY_ROWS]
        numbers = rows[batch] >> SEGMENT_SHIFT
        for number in np.unique(numbers).tolist():
            chosen = batch[numbers == number]
            local = rows[chosen] & ROW_MASK
            segment = segments[number]
            first = (target.number << SEGMENT_SHIFT) + target.n_rows
            target.append(
                take_ids(segment.ids, local), segment.dense(local), segment.terms(local), segment.sources[local]
            )
            rows[chosen] = np.arange(first, first + len(local), dtype=np.int64)


class SegmentFiles:
    """The files of a segment being written: appended to, hashed on the way, made durable when closed."""

    def __init__(self, root: Path, number: int, dims: int, quantisation: Quantisation) -> None:
        self.number, self.n_rows, self._n_terms, self._n_id_bytes = number, 0, 0, 0
        self._root, self._dims, self._quantisation = root, dims, quantisation
        folder = segment_path(root, number)
        folder.mkdir()
        names = segment_files(SegmentRecord(number, 0, 0, 0, {}), dims, quantisation)
        self._files: dict[str, IO[bytes]] = {name: (folder / name).open("wb") for name in names}
        self._hashes = {name: hashlib.sha256() for name in names}
        self._write("id_offsets.i8", np.zeros(1, "<i8"))
        self._write("indptr.i8", np.zeros(1, "<i8"))

    def _write(self, name: str, values: AnyArray) -> None:
        content = np.ascontiguousarray(values).data
        self._files[name].write(content)
        self._hashes[name].update(content)

    def append(self, ids: IdBlock, vectors: Float32, rows: sp.csr_matrix, sources: UInt64) -> None:
        """Add documents: ids, Vd, lexical rows and the hashes of their texts."""
        self._write("ids.bin", ids.buffer)
        self._write("id_offsets.i8", (ids.offsets[1:] + self._n_id_bytes).astype("<i8"))
        self._write("indptr.i8", (rows.indptr[1:].astype(np.int64) + self._n_terms).astype("<i8"))
        self._write("indices.i4", rows.indices.astype("<i4"))
        self._write("data.f4", rows.data.astype("<f4"))
        self._write("sources.u8", sources.astype("<u8"))
        name, dtype = VECTOR_FILES[self._quantisation]
        if self._quantisation == "int8":
            vectors, scales = to_int8(vectors)  # type: ignore[assignment]
            self._write("scales.f4", scales.astype("<f4"))
        elif self._quantisation == "float16":
            vectors = to_float16(vectors)  # type: ignore[assignment]
        self._write(name, vectors.astype(dtype))
        self.n_rows += len(sources)
        self._n_terms += int(rows.indptr[-1])
        self._n_id_bytes += len(ids.buffer)

    def close(self) -> SegmentRecord:
        """Make the files durable and return what the manifest says of them."""
        for file in self._files.values():
            make_durable(file)
            file.close()
        sync_folder(segment_path(self._root, self.number))
        digests = {name: digest.hexdigest() for name, digest in self._hashes.items()}
        return SegmentRecord(self.number, self.n_rows, self._n_terms, self._n_id_bytes, digests)

    def discard(self) -> None:
        """Close and remove the files."""
        for file in self._files.values():
            # On a full disk, closing fails to write what is about to be removed.
            with suppress(OSError):
                file.close()
        shutil.rmtree(segment_path(self._root, self.number))


class StoreWriter(AbstractContextManager["StoreWriter"]):
    """The one writer of a store; a context manager that publishes when its block ends without an error.

    Nothing that was added is visible, or survives a crash, before `publish`; what was published always is. Memory: the
    id index (16 bytes a document) and the batch at hand.

    The folder at ``path`` is made if absent; ``encoder_id`` names the encoder whose vectors are written, ``dims`` is N.
    The encoder's own ``quantisation`` loses nothing; an existing store keeps the one it has.

    Raises
    ------
    EncoderMismatch
        If the folder holds another encoder's vectors or other dimensions.
    ArtifactError
        If another process is writing to the store, or it is damaged.
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
            manifest = read_manifest(self.path)
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
            manifest = Manifest(
                FORMAT, FORMAT_VERSION, encoder_id, dims, quantisation, 0, [], IndexRecord(0, 0, {})
            )  # fmt: skip
            self._keys, self._rows = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._manifest, self._segments = manifest, list(manifest.segments)
        self._sweep(manifest)
        self._next_number = 1 + max([record.number for record in manifest.segments], default=0)
        self._added: list[tuple[UInt64, Int64]] = []
        self._current: SegmentFiles | None = None
        self._changed = manifest.generation == 0

    @property
    def encoder_id(self) -> str:
        """The encoder whose vectors the store holds."""
        return self._manifest.encoder_id

    def add(self, ids: Sequence[str], vectors: Float32, rows: sp.csr_matrix, source_hashes: Sequence[str]) -> None:
        """Add documents; one whose id is already there, also earlier in the same batch, is replaced.

        Parameters
        ----------
        ids : (n,) str
        vectors : (n, N) float32
            Vd, as the encoder gives them (quantised and decoded).
        rows : (n, 2**31 - 1) csr_matrix float32
            lexical rows, ids sorted in each row.
        source_hashes : (n,) str
            `_src` of each document, 16 hexadecimal digits, or "" where it is not known.

        Raises
        ------
        ShapeMismatch
            If the parts have different numbers of documents, or the vectors other dimensions than the store.
        InputError
            If an id is empty or too long, a value is not finite, or a hash is not one.
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
        check_ids(block)
        check_finite(vectors, "vector")
        check_finite(rows.data, "term weight")
        current = self._segment()
        first = (current.number << SEGMENT_SHIFT) + current.n_rows
        current.append(block, vectors, rows, _source_values(source_hashes))
        self._added.append((hash_ids(block), np.arange(first, first + len(ids), dtype=np.int64)))
        self._changed = True

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents and return how many of the ids were there."""
        self._settle()
        keep = drop_rows(self._keys, self._rows, self._open_segments(), encode_ids(ids))
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
            self._manifest = Manifest(
                FORMAT, FORMAT_VERSION, self._manifest.encoder_id, self._manifest.dims, self._manifest.quantisation,
                self._manifest.generation + 1, list(self._segments), index,
            )  # fmt: skip
            write_manifest(self.path, self._manifest)
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

    def _segment(self) -> SegmentFiles:
        if self._current is None:
            self._current = self._new_segment()
        return self._current

    def _new_segment(self) -> SegmentFiles:
        if self._next_number > MAX_SEGMENT:
            raise ArtifactError(f"{self.path}: the store has no segment numbers left; write it again in a new folder")
        number, self._next_number = self._next_number, self._next_number + 1
        quantisation: Quantisation = self._manifest.quantisation  # type: ignore[assignment]
        return SegmentFiles(self.path, number, self._manifest.dims, quantisation)

    def _open_segments(self) -> dict[int, Segment]:
        dims, quantisation = self._manifest.dims, self._manifest.quantisation
        return {record.number: Segment.open(self.path, record, dims, quantisation) for record in self._segments}

    def _settle(self) -> None:
        """Close the segment being written and bring its entries into the index in memory."""
        if self._current is None:
            return
        self._segments.append(self._current.close())
        self._current = None
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._added)])
        rows = np.concatenate([self._rows, *(rows for _, rows in self._added)])
        self._added = []
        self._keys, self._rows = latest_entries(keys, rows, self._open_segments())

    def _merge(self) -> None:
        """Copy the living rows of small or mostly dead segments to one new segment."""
        numbers = self._rows >> SEGMENT_SHIFT
        living = {record.number: int((numbers == record.number).sum()) for record in self._segments}
        chosen = plan_merge({record.number: record.n_rows for record in self._segments}, living)
        if not chosen:
            return
        opened = self._open_segments()
        target = self._new_segment()
        places = np.flatnonzero(np.isin(numbers, chosen))
        copy_rows({number: opened[number] for number in chosen}, self._rows, places, target)
        self._segments = [record for record in self._segments if record.number not in chosen]
        if target.n_rows:
            self._segments.append(target.close())
        else:
            target.discard()

    def _write_index(self) -> IndexRecord:
        number = self._manifest.index.number + 1
        folder = index_path(self.path, number)
        folder.mkdir()
        digests = {}
        for name, values in (("keys.u8", self._keys.astype("<u8")), ("rows.i8", self._rows.astype("<i8"))):
            with (folder / name).open("wb") as file:
                file.write(values.data)
                make_durable(file)
            digests[name] = hashlib.sha256(values.data).hexdigest()
        sync_folder(folder)
        return IndexRecord(number, len(self._keys), digests)

    def _sweep(self, manifest: Manifest) -> None:
        """Remove what no manifest names: older states, and leftovers of a writer that was killed."""
        named = {segment_path(self.path, record.number).name for record in manifest.segments}
        named.add(index_path(self.path, manifest.index.number).name)
        for entry in self.path.iterdir():
            if entry.name not in named and entry.name.startswith(("segment-", "index-")):
                shutil.rmtree(entry)
            elif entry.name.startswith(f".{MANIFEST}."):
                entry.unlink()


def _source_values(hashes: Sequence[str]) -> UInt64:
    """Return `_src` hashes as numbers; 0 for an unknown one."""
    try:
        return np.array([int(value, 16) if value else 0 for value in hashes], dtype=np.uint64)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"a source hash is not 16 hexadecimal digits ({error}); take it from TextView.source_hash"
        ) from error
