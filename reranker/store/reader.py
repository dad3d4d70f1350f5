"""Reading a store: ids to rows, rows to scores; nothing is loaded but what a request touches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, AnyArray, Bool, Float32, Int32, Int64, UInt64, offsets_of
from reranker.engines.inside import QueryVectors
from reranker.errors import ArtifactError, EncoderMismatch, InputError
from reranker.kernels.rows import score_rows
from reranker.store.layout import (
    ROW_MASK,
    SEGMENT_SHIFT,
    VECTOR_FILES,
    IdBlock,
    Manifest,
    SegmentRecord,
    decode_ids,
    encode_ids,
    hash_ids,
    index_path,
    map_array,
    ranges,
    read_manifest,
    same_ids,
    segment_files,
    segment_path,
    take_ids,
)
from reranker.text.tfidf import stack_rows

OPEN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Segment:
    """The mapped arrays of a segment; see `reranker.store.layout` for the files."""

    record: SegmentRecord
    ids: IdBlock
    vectors: AnyArray
    scales: Float32 | None
    indptr: Int64
    indices: Int32
    data: Float32
    sources: UInt64

    @classmethod
    def open(cls, root: Path, record: SegmentRecord, dims: int, quantisation: str) -> Segment:
        """Return the segment's arrays, mapped, not read.

        Raises
        ------
        ArtifactError
            If a file is missing, of another size, or its offsets do not end where its data does.
        """
        folder = segment_path(root, record.number)
        files = segment_files(record, dims, quantisation)
        arrays = {name: map_array(folder / name, dtype, shape) for name, (dtype, shape) in files.items()}
        offsets, indptr = arrays["id_offsets.i8"], arrays["indptr.i8"]
        ends = (int(offsets[0]), int(offsets[-1]), int(indptr[0]), int(indptr[-1]))
        if ends != (0, record.n_id_bytes, 0, record.n_terms):
            raise ArtifactError(f"{folder}: its offsets do not fit its data; write the store again", path=str(folder))
        return cls(
            record=record, ids=IdBlock(arrays["ids.bin"], offsets), vectors=arrays[VECTOR_FILES[quantisation][0]],
            scales=arrays.get("scales.f4"), indptr=indptr, indices=arrays["indices.i4"], data=arrays["data.f4"],
            sources=arrays["sources.u8"],
        )  # fmt: skip

    def dense(self, rows: Int64) -> Float32:
        """Return Vd at ``rows``, (n, N) float32."""
        vectors: Float32 = self.vectors[rows].astype(np.float32)
        return vectors if self.scales is None else vectors * self.scales[rows][:, None]

    def terms(self, rows: Int64) -> sp.csr_matrix:
        """Return the lexical rows at ``rows``, (n, 2**31 - 1) float32; see `csr`."""
        indptr, indices, data = self.csr(rows)
        return sp.csr_matrix((data, indices, indptr), shape=(len(rows), N_TERM_IDS))

    def csr(self, rows: Int64) -> tuple[Int64, Int32, Float32]:
        """Return indptr, indices and data of the lexical rows at ``rows``.

        Raises
        ------
        ArtifactError
            If the row pointers are damaged.
        """
        starts, ends = self.indptr[rows], self.indptr[rows + 1]
        lengths = ends - starts
        if len(rows) and (int(lengths.min()) < 0 or int(starts.min()) < 0 or int(ends.max()) > len(self.indices)):
            raise ArtifactError(f"segment {self.record.number}: its row pointers are damaged; write the store again")
        taken = ranges(starts, lengths)
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

    A store keeps what it showed when it was opened: a writer that publishes meanwhile does not disturb it. `refreshed`
    gives the newest one. Row numbers are opaque int64.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.path = root
        self.encoder_id = manifest.encoder_id
        self.dims = manifest.dims
        self.quantisation = manifest.quantisation
        self.generation = manifest.generation
        self._manifest = manifest
        self._segments = {
            record.number: Segment.open(root, record, manifest.dims, manifest.quantisation)
            for record in manifest.segments
        }
        folder, n = index_path(root, manifest.index.number), manifest.index.n_entries
        self._keys: UInt64 = map_array(folder / "keys.u8", "<u8", (n,))
        self._rows: Int64 = map_array(folder / "rows.i8", "<i8", (n,))

    @classmethod
    def open(cls, path: str | Path, encoder_id: str | None = None, *, verify: bool = False) -> VectorStore:
        """Return the store at ``path``, with ``verify`` after comparing the sha256 of every file.

        ``encoder_id`` names the encoder whose vectors are wanted; None takes any (to look, not to score).

        Raises
        ------
        ArtifactError
            If there is no store, or it is damaged.
        EncoderMismatch
            If it holds another encoder's vectors.
        """
        root = Path(path)
        for attempt in range(OPEN_ATTEMPTS):
            manifest = read_manifest(root)
            _check_encoder(root, manifest, encoder_id)
            try:
                store = cls(root, manifest)
            except ArtifactError:
                # A writer may have published, and removed what this manifest named, since it was read.
                if attempt + 1 == OPEN_ATTEMPTS or read_manifest(root).generation == manifest.generation:
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
        expected = {
            index_path(self.path, self._manifest.index.number) / name: digest
            for name, digest in self._manifest.index.sha256.items()
        }
        for record in self._manifest.segments:
            for name in segment_files(record, self.dims, self.quantisation):
                expected[segment_path(self.path, record.number) / name] = record.sha256.get(name, "")
        for path, digest in expected.items():
            with path.open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            if actual != digest:
                raise ArtifactError(f"{path} was changed since it was written (sha256); write the store again")

    def refreshed(self) -> VectorStore:
        """Return the newest published state: this object if nothing was published since, else a newly opened one."""
        if read_manifest(self.path).generation == self.generation:
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
            for segment, places in self._by_segment(rows):
                same[places] = same_ids(block, open_places[places], segment.ids, rows[places] & ROW_MASK)
            stored_rows[open_places[same]] = rows[same]
            open_places, at = open_places[~same], at[~same] + 1
        return stored_rows

    def score(self, query: QueryVectors, rows: Int64) -> Float32:
        """Return f(q, d) = (Uq).(Vd) + a q.d of each row, (n,) float32.

        Raises
        ------
        InputError
            If a row is -1 or of no segment of this store.
        ShapeMismatch
            If the query has another number of dimensions.
        """
        scores = np.empty(len(rows), dtype=np.float32)
        for segment, places in self._by_segment(rows):
            scores[places] = segment.score(query, rows[places] & ROW_MASK)
        return scores

    def vectors(self, rows: Int64) -> Float32:
        """Return Vd of each row, (n, N) float32."""
        vectors = np.empty((len(rows), self.dims), dtype=np.float32)
        for segment, places in self._by_segment(rows):
            vectors[places] = segment.dense(rows[places] & ROW_MASK)
        return vectors

    def terms(self, rows: Int64) -> sp.csr_matrix:
        """Return the lexical row of each row, (n, 2**31 - 1) float32."""
        parts: list[sp.csr_matrix] = []
        order: list[Int64] = []
        for segment, places in self._by_segment(rows):
            parts.append(segment.terms(rows[places] & ROW_MASK))
            order.append(places)
        stacked = parts[0] if len(parts) == 1 else stack_rows(parts)
        return stacked[np.argsort(np.concatenate(order))] if len(parts) > 1 else stacked

    def has_words(self, rows: Int64) -> Bool:
        """Return whether each row is of a text with words, (n,) bool; one whose words have lexical weight 0 has Vd'."""
        filled = np.empty(len(rows), dtype=bool)
        for segment, places in self._by_segment(rows):
            local = rows[places] & ROW_MASK
            has_row = segment.indptr[local + 1] > segment.indptr[local]
            if not has_row.all():
                has_row[~has_row] = segment.dense(local[~has_row]).any(axis=1)
            filled[places] = has_row
        return filled

    def source_hashes(self, rows: Int64) -> list[str]:
        """Return the hash of the text each row was made from (`_src`), 16 hexadecimal digits."""
        values = np.empty(len(rows), dtype=np.uint64)
        for segment, places in self._by_segment(rows):
            values[places] = segment.sources[rows[places] & ROW_MASK]
        return [f"{value:016x}" for value in values.tolist()]

    def ids(self, batch_size: int = 10_000) -> Iterator[list[str]]:
        """Yield the ids the store holds, in batches, in no particular order."""
        for start in range(0, len(self._rows), batch_size):
            rows = self._rows[start : start + batch_size]
            for segment, places in self._by_segment(rows):
                yield decode_ids(take_ids(segment.ids, rows[places] & ROW_MASK))

    def _by_segment(self, rows: Int64) -> Iterator[tuple[Segment, Int64]]:
        """Yield each segment that ``rows`` touch with the places of its rows, after checking their bounds."""
        numbers = rows >> SEGMENT_SHIFT
        for number in np.unique(numbers).tolist():
            segment = self._segments.get(number)
            if segment is None:
                raise InputError(
                    f"the row {int(rows[numbers == number][0])} is not of this store (generation {self.generation}); "
                    "leave out ids that `rows_of` answered with -1, and use rows only with the store that gave them"
                )
            places = np.flatnonzero(numbers == number).astype(np.int64)
            if int((rows[places] & ROW_MASK).max()) >= segment.record.n_rows:
                raise ArtifactError(f"{self.path}: the id index points past segment {number}; write the store again")
            yield segment, places


def _check_encoder(root: Path, manifest: Manifest, encoder_id: str | None) -> None:
    """Raise `EncoderMismatch` if the store is not the wanted encoder's."""
    if encoder_id is not None and manifest.encoder_id != encoder_id:
        raise EncoderMismatch(
            f"the vector store at {str(root)!r} was made by encoder {manifest.encoder_id[:12]}, the model needs "
            f"{encoder_id[:12]}: their vectors cannot be compared; write a store with this model "
            "(`ssi revectorize --store`) or load the model that made it",
            store=manifest.encoder_id,
            model=encoder_id,
        )
