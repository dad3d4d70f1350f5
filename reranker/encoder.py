"""Documents to vectors: everything that decides what is stored beside a document, under one id.

The id covers the text view, the analyzer, the vocabulary with its idf, V (and Y, and the form they are joined in), and
the quantisation, and nothing of the query side: a new U gives a new model and leaves every stored vector valid.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyArray, Bool, Float32
from reranker.errors import ShapeMismatch
from reranker.kernels.packing import Quantisation, check_quantisation, quantise_rows, quantise_vectors
from reranker.models.scorers import LINEAR, DocumentForm
from reranker.text.analyzers import Analyzer
from reranker.text.tfidf import TfIdf, Vocabulary, combine
from reranker.text.view import TextView, texts_hash

ENCODING_VERSION: Final = 1
"""Raised when the same inputs would give other vectors: it is part of every encoder id."""
DEFAULT_QUANTISATION: Final[Quantisation] = "float16"


@dataclass(frozen=True, slots=True, eq=False)
class EncodedDocuments:
    """What a batch of documents becomes, in their order."""

    vectors: Float32
    """(n, N) float32: Vd (c(d), where the form is not linear), rounded as it is stored, so that every route scores the
    same numbers."""
    rows: sp.csr_matrix
    """csr_matrix, (n, 2**31 - 1) float32: d, its weights rounded as they are stored."""
    source_hashes: list[str]
    """`TextView.source_hash` of each document."""
    has_text: Bool
    """(n,) bool: False where the document has no word at all; it cannot be scored."""

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.source_hashes)


@dataclass(frozen=True, eq=False)
class Encoder:
    """The document side of a model.

    Raises
    ------
    ShapeMismatch
        If V is no C-contiguous float32 matrix or has more rows than the vocabulary has words, or Y does not fit it.
    InputError
        If V or Y holds NaN or infinity, or the quantisation is not known.
    ConfigError
        For an unknown ``tf`` or form.
    """

    view: TextView
    """Which fields are read, and their weights."""
    analyzer: Analyzer
    """Texts to words."""
    document_vocabulary: Vocabulary
    """Words to ids and idf."""
    tf: str
    """{'log', 'raw'}: Term frequency, as `TfIdf` has it."""
    V: Float32
    """(n_rows, N) float32: Document side of the learned part, C-contiguous, n_rows <= D; fewer rows are the restricted
    model (M08)."""
    quantisation: Quantisation = DEFAULT_QUANTISATION
    """{'float16', 'float32', 'int8'}: Precision of stored vectors and weights. Measured on 7,479 documents against
    float32 (`benchmarks/bench_quantisation.py`): float16, the default, moves a score by 1e-5 on average (1e-3 at most,
    of a spread of .14) and leaves the order of the first ten alone for 98.6 % of queries, at half the bytes of a
    vector; int8 halves them again, keeps 99 % of the first ten, and their order for 67 % of queries."""
    form: str = LINEAR
    """How V (and Y) make a document's vector c(d), a name of `reranker.models.scorers.FORMS`."""
    Y: Float32 | None = None
    """(n_rows, N or N / 2) float32, optional: The second table of the cubic forms."""

    def __post_init__(self) -> None:
        check_quantisation(self.quantisation)
        _ = self.documents
        check_word_rows(self.V, self.document_vocabulary, "V")
        _ = self.tfidf

    @property
    def n_dims(self) -> int:
        """N, the dimensions of a vector."""
        return int(self.V.shape[1])

    @cached_property
    def documents(self) -> DocumentForm:
        """What makes a vector of a row."""
        return DocumentForm(self.form, self.V, self.Y)

    @cached_property
    def norm_bound(self) -> float:
        """M: no document's vector is longer, whatever its text; above 0.

        d is a sum of unit rows with the fields' weights β, so |d| <= Σ|β|, and `DocumentForm.bound` says how long c(d)
        can be. 5 % are added for the rounding of stored vectors (int8's is the largest).
        """
        bound = 1.05 * self.documents.bound(sum(abs(weight) for weight in self.view.weights))
        return float(f"{bound:.4g}") if bound > 0 else 1.0

    @cached_property
    def tfidf(self) -> TfIdf:
        """Tokens to unit rows."""
        return TfIdf(self.document_vocabulary, self.tf)

    @cached_property
    def encoder_id(self) -> str:
        """64 hexadecimal digits: SHA-256 of all that decides a stored vector; the first 12 name the index fields."""
        view = self.view.with_weights(self.view.weights)  # a weight left out and the weight 1 give the same vectors
        parts: dict[str, Any] = {
            "version": ENCODING_VERSION,
            "view": view.to_json(),
            "analyzer": self.analyzer.config.to_json(),
            "tf": self.tf,
            "quantisation": self.quantisation,
            "V": array_sha256(self.V),
            **{name: array_sha256(array) for name, array in self.document_vocabulary.to_arrays().items()},
        }
        if self.form != LINEAR:  # ids of linear encoders are as they were before there were other forms
            parts |= {"form": self.form, "Y": None if self.Y is None else array_sha256(self.Y)}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("ascii")).hexdigest()

    def rows(self, documents: Sequence[Mapping[str, Any]]) -> sp.csr_matrix:
        """Return d of each document at full precision, (n, 2**31 - 1) float32: what training and evaluation use."""
        return self._rows_of_texts([self.view.texts(source) for source in documents])

    def encode(self, documents: Sequence[Mapping[str, Any]]) -> EncodedDocuments:
        """Return vectors, rows and hashes of documents (their sources, without ids).

        Raises
        ------
        InputError
            If a vector is too large for float16; the message names what to choose.
        """
        texts = [self.view.texts(source) for source in documents]
        rows = self._rows_of_texts(texts)
        vectors = self.documents.vectors(rows)
        return EncodedDocuments(
            vectors=quantise_vectors(vectors, self.quantisation),
            rows=quantise_rows(rows, self.quantisation),
            source_hashes=[texts_hash(text) for text in texts],
            has_text=np.diff(rows.indptr) > 0,
        )

    def _rows_of_texts(self, texts: Sequence[Sequence[str]]) -> sp.csr_matrix:
        fields = self.tfidf.rows_of_texts(texts, len(self.view.fields), self.analyzer)
        return combine(fields, self.view.weights)


def check_word_rows(E: Float32, vocabulary: Vocabulary, name: str) -> None:
    """Raise `ShapeMismatch` where an embedding table has more rows than its vocabulary has words."""
    if len(E) > len(vocabulary):
        raise ShapeMismatch(
            f"{name} has {len(E)} rows for a vocabulary of {len(vocabulary)} words; there may be one row a word: "
            f"the table belongs to another vocabulary"
        )


def array_sha256(array: AnyArray) -> str:
    """Return SHA-256 over an array's type, shape and little-endian bytes, in hexadecimal."""
    stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    digest = hashlib.sha256(f"{stored.dtype.str}{stored.shape}".encode("ascii"))
    digest.update(stored.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
