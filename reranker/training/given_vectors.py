"""Vectors that documents have already: collected while the documents are read, checked, and turned onto their axes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final

import numpy as np

from reranker.arrays import Float32, Float64, Int64
from reranker.errors import InputError, TrainingError
from reranker.models.vector_field import VectorField
from reranker.progress import Say, silent
from reranker.records import Document
from reranker.text.view import TextView, nearest_paths

MIN_VECTORS: Final = 10
"""Documents with a vector that are needed to learn word vectors from."""
SAMPLE: Final = 50_000
"""Documents that the mean and the axes are computed from."""
MARGIN: Final = 1.05
"""Factor above the longest vector of training up to which later documents' vectors keep their length."""
_BLOCK: Final = 2**14
_TWO_GROUPS: Final = 5.0
"""Distance of two groups, in their mean standard deviation, above which vectors seem to be of two encoders.

A normal distribution cut into halves has 2.6.
"""
_UNLIKE_LENGTHS: Final = 2.0
"""Ratio of the 95th to the 5th percentile of lengths above which vectors seem to be of two encoders."""


@dataclass(frozen=True, eq=False)
class GivenVectors:
    """The vectors of the documents of a corpus."""

    documents: Int64
    """Row numbers of the documents that have one, (m,) int64, ascending."""
    vectors: Float32
    """(m, E) float32, usually mapped from a temporary file."""
    n_documents: int
    """Number of documents of the corpus."""

    @property
    def share(self) -> float:
        """Share of the documents that have a vector."""
        return len(self.documents) / max(self.n_documents, 1)

    def projected(self, field: VectorField) -> Float32:
        """Return what a field stores of each document, (n_documents, K) float32; 0 for those without a vector."""
        projected = np.zeros((self.n_documents, field.n_dims), np.float32)
        for start in range(0, len(self.documents), _BLOCK):
            block = slice(start, start + _BLOCK)
            projected[self.documents[block]] = field.project(self.vectors[block])
        return projected


class VectorCollector:
    """Collects the vectors of documents in a temporary file, so that memory does not grow with their number.

    Parameters
    ----------
    view : TextView
        Names the field of the vectors.
    """

    def __init__(self, view: TextView) -> None:
        self._view = view
        self._rows: list[int] = []
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="ssi-vectors-")
        self._n_documents, self._dims = 0, 0

    def add(self, documents: Sequence[Document]) -> None:
        """Add the next documents; `InputError` names the document of a value that is no vector, or of another length.

        A document without a vector is left out.
        """
        for document in documents:
            try:
                vector = self._view.given_vector(document.source)
            except InputError as error:
                raise InputError(f"document {document.id!r}: {error.message}", **error.data) from error
            if vector is not None:
                self._add(document.id, vector)
            self._n_documents += 1

    def _add(self, document: str, vector: Float32) -> None:
        self._dims = self._dims or len(vector)
        if len(vector) != self._dims:
            raise InputError(
                f"document {document!r} has a vector of {len(vector)} numbers in {self._view.vector!r}, and those "
                f"before it have {self._dims}: all vectors must be of one text encoder",
                document=document,
            )
        self._rows.append(self._n_documents)
        self._file.write(np.ascontiguousarray(vector, "<f4").data)

    def collected(self, paths: Sequence[str]) -> GivenVectors:
        """Return the vectors of all documents; ``paths`` are fields of the documents, for the message.

        `TrainingError` is raised if fewer than `MIN_VECTORS` documents have one.
        """
        name = self._view.vector
        if len(self._rows) < MIN_VECTORS:
            known = f": the nearest of their fields are {nearest_paths(name, paths)}" if paths else ""
            raise TrainingError(
                f"{len(self._rows)} of {self._n_documents:,} documents have a vector in the field {name!r}, and at "
                f"least {MIN_VECTORS} are needed{known}; name the field of the vectors in --vector-field"
            )
        self._file.flush()
        vectors = np.memmap(self._file, "<f4", "r", shape=(len(self._rows), self._dims))
        self._file.close()  # the file has no name and lives as long as it is mapped
        return GivenVectors(np.array(self._rows, np.int64), vectors, self._n_documents)


def field_of(given: GivenVectors, n_dims: int, rng: np.random.Generator, say: Say = silent) -> VectorField:
    """Return the mean of the vectors and the ``n_dims`` axes on which they differ most (at most E).

    Vectors that seem to be of two encoders are reported. `TrainingError` is raised if all vectors are equal.
    """
    rows = np.sort(rng.permutation(len(given.vectors))[:SAMPLE])
    sample = np.asarray(given.vectors[rows], np.float64)
    lengths, mean = np.linalg.norm(sample, axis=1), sample.mean(axis=0)
    sample -= mean
    variances, axes = np.linalg.eigh(sample.T @ sample / len(sample))
    if not variances[-1] > 0:
        raise TrainingError("all vectors of documents are equal: they say nothing about the documents")
    order = np.argsort(-variances, kind="stable")[:n_dims]
    kept = axes[:, order]
    # The sign of an axis is arbitrary: its largest value is above 0, on every machine.
    kept *= np.sign(kept[np.abs(kept).argmax(axis=0), np.arange(kept.shape[1])])
    turned = sample @ kept
    for note in group_notes(turned[:, 0], lengths):
        say(note)
    longest = MARGIN * float(np.linalg.norm(turned, axis=1).max())
    return VectorField(
        mean.astype(np.float32),
        np.ascontiguousarray(kept, np.float32),
        float(f"{longest:.4g}"),
        given.share,
    )


def group_notes(places: Float64, lengths: Float64) -> list[str]:
    """Return notes about vectors that seem to be of two text encoders.

    ``places`` are the places of the vectors on the first axis, ``lengths`` their lengths, both (n,) float64.
    """
    notes = []
    low, high = np.percentile(lengths, [5, 95])
    if high > _UNLIKE_LENGTHS * low:
        notes.append(
            f"the lengths of the vectors differ widely (5 % are below {low:.3g}, 5 % above {high:.3g}): check that "
            "one text encoder computed all of them"
        )
    cut = float(places.mean())
    for _ in range(20):  # two means on a line
        left, right = places[places <= cut], places[places > cut]
        if not (len(left) and len(right)):
            return notes
        cut = float(left.mean() + right.mean()) / 2
    spread = np.sqrt((left.var() + right.var()) / 2)
    if right.mean() - left.mean() > _TWO_GROUPS * spread and min(len(left), len(right)) > 0.02 * len(places):
        notes.append(
            f"the vectors form two groups, of {len(left):,} and {len(right):,} documents, which are far apart: check "
            "that one text encoder computed all of them, and that none of them are of empty texts"
        )
    return notes
