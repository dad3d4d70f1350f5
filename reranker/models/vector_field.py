"""Vectors that documents already have in one of their fields, and the table that gives queries vectors like them.

A text encoder computed the vectors when the documents were indexed. A query does not need it: the vector of a query is
a sum of word vectors, which were learned from the documents and their vectors (`reranker.training.word_encoder`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Bool, Float32
from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.rows import embed_rows
from reranker.text.view import MAX_VECTOR_DIMS


@dataclass(frozen=True, eq=False)
class VectorField:
    """Mean of the given vectors, and the axes on which their difference from the mean is stored.

    A document's vector e becomes (e - mean) axes. If that is longer than ``longest``, it is shortened to that length,
    so that no document has a score beyond those that were seen in training. A document without a vector, or with one
    that is all zeros, has the vector 0: its score then has no such part.

    Raises
    ------
    ShapeMismatch
        If ``mean`` and ``axes`` do not fit each other.
    InputError
        If a value is not finite or out of range.
    """

    mean: Float32
    """Mean of the given vectors, (E,) float32."""
    axes: Float32
    """Directions that are kept, (E, K) float32, K at most E."""
    longest: float
    """Largest length of (e - mean) axes, above 0."""
    share: float = 1.0
    """Share of the training documents that had a vector, from 0 to 1."""

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.axes.ndim != 2 or len(self.axes) != len(self.mean):
            raise ShapeMismatch(f"axes of shape {self.axes.shape} do not fit a mean of shape {self.mean.shape}")
        if not (1 <= self.axes.shape[1] <= self.axes.shape[0] <= MAX_VECTOR_DIMS):
            raise ShapeMismatch(
                f"axes have shape {self.axes.shape}: give 1 to E columns for vectors of E <= {MAX_VECTOR_DIMS} values"
            )
        if not (np.isfinite(self.mean).all() and np.isfinite(self.axes).all()):
            raise InputError("mean and axes of the given vectors must be finite")
        if not (math.isfinite(self.longest) and self.longest > 0 and 0 <= self.share <= 1):
            raise InputError(
                f"longest is {self.longest!r} and share {self.share!r}: they must be above 0, and from 0 to 1"
            )

    @property
    def n_given(self) -> int:
        """E, the number of values of a given vector."""
        return len(self.mean)

    @property
    def n_dims(self) -> int:
        """K, the number of values that are stored."""
        return int(self.axes.shape[1])

    def project(self, given: Float32) -> Float32:
        """Return (e - mean) axes of given vectors, (n, E) -> (n, K) float32, at most ``longest`` long."""
        # In float64, so that rounding hides in which order a batch of another size is summed.
        vectors = (given.astype(np.float64) - self.mean) @ self.axes.astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors * (self.longest / np.maximum(lengths, self.longest)), np.float32)

    def check(self, vector: Float32 | None) -> None:
        """Raise `InputError` for a given vector of another number of values than those of training."""
        if vector is not None and len(vector) != self.n_given:
            raise InputError(
                f"a document has a vector of {len(vector)} numbers, and the model was trained with {self.n_given}: "
                "index documents with the vectors of one text encoder",
                dims=len(vector),
            )

    def vectors(self, given: Sequence[Float32 | None]) -> Float32:
        """Return the stored part of documents, (n, K) float32; 0 for those without a given vector.

        `InputError` is raised for a vector of another number of values.
        """
        vectors = np.zeros((len(given), self.n_dims), np.float32)
        rows = [row for row, vector in enumerate(given) if vector is not None]
        known = [vector for vector in given if vector is not None]
        for vector in known:
            self.check(vector)
        if rows:
            vectors[rows] = self.project(np.stack(known))
        return vectors

    def to_json(self) -> dict[str, Any]:
        """Return what the manifest keeps of the field; mean and axes are in the tensor file."""
        return {
            "n_given": self.n_given,
            "n_dims": self.n_dims,
            "longest": float(self.longest),
            "share": float(self.share),
        }


@dataclass(frozen=True, eq=False)
class WordEncoder:
    """Query side of given vectors: s unit(sum_i q_i U_i), with one row U_i a word.

    Raises
    ------
    ShapeMismatch
        If the table is not a C-contiguous float32 matrix.
    InputError
        If a value is not finite, or the weight is below 0.
    """

    U: Float32
    """Vectors of the words, (n_rows, K) float32; a word with a higher number has the vector 0."""
    weight: float
    """s, the length of a query's vector."""

    def __post_init__(self) -> None:
        if self.U.ndim != 2 or self.U.dtype != np.float32 or not self.U.flags.c_contiguous:
            raise ShapeMismatch(f"the word vectors are {self.U.dtype} of shape {self.U.shape}: give a float32 matrix")
        if not (np.isfinite(self.U).all() and math.isfinite(self.weight) and self.weight >= 0):
            raise InputError(f"word vectors must be finite, and their weight {self.weight!r} finite and at least 0")

    @cached_property
    def lengths(self) -> Float32:
        """Length of the vector of each word, (n_rows,) float32."""
        return np.asarray(np.linalg.norm(self.U, axis=1), np.float32)

    def vectors(self, learned_rows: sp.csr_matrix) -> Float32:
        """Return the vectors of queries, (n, K) float32: 0, or of the length s."""
        vectors = embed_rows(learned_rows, self.U)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        result: Float32 = vectors * np.divide(
            np.float32(self.weight), lengths, out=np.zeros_like(lengths), where=lengths > 0
        )
        return result


def has_vectors(vectors: Float32) -> Bool:
    """Return which rows of projected vectors are not 0, (n,) bool."""
    return np.asarray(vectors.any(axis=1), dtype=bool)
