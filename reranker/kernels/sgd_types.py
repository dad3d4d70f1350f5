"""Arguments of the training kernels: named tuples of plain arrays and scalars, the same for both implementations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Sparse rows: ``indptr`` (n + 1,) int64, ``indices`` (nnz,) int32, ascending in a row, ``data`` (nnz,) float32."""

    indptr: Int64
    indices: Int32
    data: Float32


class Tuples(NamedTuple):
    """What is learned from: document ``document[t]`` should stand above others for query ``query[t]``.

    ``query``, ``document`` (n,) int64 row numbers; ``weight`` (n,) float32 > 0, a factor of the step; ``worse`` int64
    rows of documents stated to be worse, those of tuple t at ``worse_indptr[t]:worse_indptr[t + 1]``. ``keep`` (n,)
    float32 and ``alias`` (n,) int64 make some tuples more frequent (`alias_table`): of a tuple drawn uniformly,
    ``alias[t]`` takes the place with probability 1 - ``keep[t]``. Empty: all tuples are equally frequent.
    """

    query: Int64
    document: Int64
    weight: Float32
    worse_indptr: Int64
    worse: Int64
    keep: Float32 = np.empty(0, np.float32)
    alias: Int64 = np.empty(0, np.int64)


class Candidates(NamedTuple):
    """Where negatives come from: ``pool`` int64 document rows; per query, the sorted rows never taken as negative."""

    pool: Int64
    known_indptr: Int64
    known: Int64


class Parameters(NamedTuple):
    """What is learned, changed in place.

    ``U``, ``V`` (n_rows, N) float32, the same array for the tied model; ``cache`` (n_documents, N) float32, a nearly
    current Vd of every document.
    """

    U: Float32
    V: Float32
    cache: Float32


class StepConfig(NamedTuple):
    """Scalars of the SGD loop; see `reranker.training.config.TrainConfig` for their meaning.

    Queries from row ``whole_from`` on are never cut to keywords. ``freeze_documents`` leaves V as it is; the cache is
    then taken to be exact.
    """

    rate_start: np.float32
    rate_end: np.float32
    n_total: int
    identity: np.float32
    max_norm: np.float32
    max_trials: int
    screened: bool
    keyword_share: np.float32
    keyword_min: int
    keyword_max: int
    query_dropout: np.float32
    document_dropout: np.float32
    worse_share: np.float32
    n_columns: int
    whole_from: int
    freeze_documents: bool


MAX_DROPPED_QUERY = 10
"""Queries of at most so many words are not thinned by dropout: little would be left of them."""
