"""Keyword queries made of document rows: some of their words at unit length (spec A21)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

VALIDATION_WORDS = 5
"""Words of a validation query where training mixes documents and 1 to 10 words."""


def keyword_rows(rows: sp.csr_matrix, n_words: int, rng: np.random.Generator) -> sp.csr_matrix:
    """Return rows of ``n_words`` random distinct words of each row (all, if fewer), at unit length.

    The words keep their tf-idf before the row is divided by its new length.
    """
    places: list[np.ndarray] = []
    lengths = np.zeros(rows.shape[0], dtype=np.int64)
    for number in range(rows.shape[0]):
        start, stop = int(rows.indptr[number]), int(rows.indptr[number + 1])
        chosen = np.sort(rng.permutation(stop - start)[:n_words]) + start
        places.append(chosen)
        lengths[number] = len(chosen)
    flat = np.concatenate(places) if places else np.empty(0, dtype=np.int64)
    data = rows.data[flat].astype(np.float64)
    row = np.repeat(np.arange(rows.shape[0]), lengths)
    norm = np.sqrt(np.bincount(row, data * data, minlength=rows.shape[0]))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    values = (data / norm[row]).astype(np.float32) if len(flat) else data.astype(np.float32)
    return sp.csr_matrix((values, rows.indices[flat], indptr), shape=rows.shape)
