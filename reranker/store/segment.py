"""One segment: rows that were written together, memory-mapped.

The files of a segment while it is written.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import ArtifactError
from reranker.files import make_durable, sync_folder
from reranker.kernels.packing import N_TERM_IDS
from reranker.kernels.quantisation import Quantisation, to_float16, to_int8
from reranker.kernels.serving import score_rows
from reranker.store.layout import (
    VECTOR_FILES,
    IdBlock,
    Int64s,
    SegmentRecord,
    UInt64s,
    map_array,
    ranges,
    segment_files,
    segment_path,
)

Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """An encoded query, as the scoring kernel takes it.

    Parameters
    ----------
    vector : (N,) float32
        Uq.
    ids : (n_terms,) int32
        Word ids of q, strictly increasing.
    weights : (n_terms,) float32
        Weights of q.
    identity : float
        a of f = (Uq).(Vd) + a q.d.
    """

    vector: Float32s
    ids: npt.NDArray[np.int32]
    weights: Float32s
    identity: float


@dataclass(frozen=True, slots=True)
class Segment:
    """The mapped arrays of a segment; see `reranker.store.layout` for the files."""

    record: SegmentRecord
    ids: IdBlock
    vectors: npt.NDArray[Any]
    scales: Float32s | None
    indptr: Int64s
    indices: npt.NDArray[np.int32]
    data: Float32s
    sources: npt.NDArray[np.uint64]

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
            record=record,
            ids=IdBlock(arrays["ids.bin"], offsets),
            vectors=arrays[VECTOR_FILES[quantisation][0]],
            scales=arrays.get("scales.f4"),
            indptr=indptr,
            indices=arrays["indices.i4"],
            data=arrays["data.f4"],
            sources=arrays["sources.u8"],
        )

    def dense(self, rows: Int64s) -> Float32s:
        """Return Vd at ``rows``, (n, N) float32."""
        vectors: Float32s = self.vectors[rows].astype(np.float32)
        return vectors if self.scales is None else vectors * self.scales[rows][:, None]

    def terms(self, rows: Int64s) -> sp.csr_matrix:
        """Return the tf-idf rows at ``rows``, (n, 2**31 - 1) float32; see `csr`."""
        indptr, indices, data = self.csr(rows)
        return sp.csr_matrix((data, indices, indptr), shape=(len(rows), N_TERM_IDS))

    def csr(self, rows: Int64s) -> tuple[Int64s, npt.NDArray[np.int32], Float32s]:
        """Return indptr, indices and data of the tf-idf rows at ``rows``.

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
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=indptr[1:])
        return indptr, self.indices[taken], self.data[taken]

    def score(self, query: QueryVectors, rows: Int64s) -> Float32s:
        """Return f(q, d) of the documents at ``rows``, (n,) float32."""
        head = (query.vector, query.ids, query.weights, query.identity)
        if self.vectors.dtype == np.float32:
            return score_rows(*head, rows, self.vectors, self.indptr, self.indices, self.data)
        places = np.arange(len(rows), dtype=np.int64)
        return score_rows(*head, places, self.dense(rows), *self.csr(rows))


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


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

    def _write(self, name: str, values: npt.NDArray[Any]) -> None:
        content = np.ascontiguousarray(values).data
        self._files[name].write(content)
        self._hashes[name].update(content)

    def append(self, ids: IdBlock, vectors: Float32s, rows: sp.csr_matrix, sources: UInt64s) -> None:
        """Add documents: ids, Vd, tf-idf rows and the hashes of their texts."""
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
            file.close()
        shutil.rmtree(segment_path(self._root, self.number))
