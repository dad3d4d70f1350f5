"""One segment: rows that were written together, memory-mapped."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import ArtifactError
from reranker.kernels import score_rows
from reranker.kernels.packing import N_TERM_IDS
from reranker.store.ids import IdBlock, Int64s, ranges
from reranker.store.layout import VECTOR_FILES, SegmentRecord, map_array, segment_files, segment_path

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
