"""The files of a segment while it is written."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.kernels.quantisation import Quantisation, to_float16, to_int8
from reranker.store.ids import IdBlock, UInt64s
from reranker.store.layout import VECTOR_FILES, SegmentRecord, segment_files, segment_path, sync_folder
from reranker.store.segment import Float32s


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
            file.flush()
            os.fsync(file.fileno())
            file.close()
        sync_folder(segment_path(self._root, self.number))
        digests = {name: digest.hexdigest() for name, digest in self._hashes.items()}
        return SegmentRecord(self.number, self.n_rows, self._n_terms, self._n_id_bytes, digests)

    def discard(self) -> None:
        """Close and remove the files."""
        for file in self._files.values():
            file.close()
        shutil.rmtree(segment_path(self._root, self.number))
