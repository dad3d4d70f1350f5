"""Documents encoded once by one encoder, to be scored for many queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.baselines.corpus import stack_rows
from reranker.kernels import score_rows
from reranker.store import QueryVectors

if TYPE_CHECKING:
    from reranker.encoder import Encoder

BATCH = 512


class EncodedPool:
    """Vectors and words of documents by id; about 4 N bytes and 8 bytes a word each.

    Parameters
    ----------
    encoder : Encoder
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._row_of: dict[str, int] = {}
        self._waiting: list[Mapping[str, Any]] = []
        self._parts: list[tuple[npt.NDArray[np.float32], sp.csr_matrix, npt.NDArray[np.bool_]]] = []
        self._vectors = np.zeros((0, encoder.n_dims), np.float32)
        self._rows: sp.csr_matrix | None = None
        self._has_text = np.zeros(0, bool)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._row_of)

    def add(self, documents: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Take over (id, source) of documents; those known already are passed over."""
        for identifier, source in documents:
            if identifier not in self._row_of:
                self._row_of[identifier] = len(self._row_of)
                self._waiting.append(source)
        if len(self._waiting) >= BATCH:
            self._encode()

    def _encode(self) -> None:
        encoded = self._encoder.encode(self._waiting)
        self._parts.append((encoded.vectors, encoded.rows, encoded.has_text))
        self._waiting = []

    def finish(self) -> None:
        """Encode what waits and put all together; to be called before `score`."""
        if self._waiting:
            self._encode()
        if not self._parts:
            return
        before = [] if self._rows is None else [(self._vectors, self._rows, self._has_text)]
        parts = [*before, *self._parts]
        self._vectors = np.ascontiguousarray(np.concatenate([part[0] for part in parts]))
        self._rows = stack_rows([part[1] for part in parts])
        self._has_text = np.concatenate([part[2] for part in parts])
        self._parts = []

    def score(self, query: QueryVectors, documents: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return f(q, d) of some documents, (n,) float64; NaN for one without text."""
        scores = np.full(len(documents), np.nan)
        if self._rows is None:
            return scores
        places = np.array([self._row_of[one] for one in documents], dtype=np.int64)
        known = np.flatnonzero(self._has_text[places])
        head = (query.vector, query.ids, query.weights, query.identity)
        rows = self._rows
        scores[known] = score_rows(*head, places[known], self._vectors, rows.indptr, rows.indices, rows.data)
        scores[~np.isfinite(scores)] = np.nan
        return scores
