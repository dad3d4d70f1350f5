"""Word counts of documents and queries, from which every lexical baseline is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import InputError, ShapeMismatch
from reranker.evaluation.compact import select_columns, used_columns
from reranker.text.analyzers import Analyzer
from reranker.text.view import TextView
from reranker.text.vocabulary import N_TERM_IDS, Vocabulary

_ID_BITS = 31
_BATCH = 2_048

Rows = npt.NDArray[np.int64]


def count_rows(vocabulary: Vocabulary, tokens: Sequence[Sequence[str]]) -> sp.csr_matrix:
    """Return how often each word stands in each text, (n, N_TERM_IDS) float32, ids ascending in each row.

    Parameters
    ----------
    vocabulary : Vocabulary
        Numbers the words; those it does not list have hashed ids and are counted, too.
    tokens : sequence of n sequences of str
        The words of each text.
    """
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    keys = np.repeat(np.arange(len(tokens), dtype=np.int64) << _ID_BITS, lengths)
    keys |= vocabulary.ids(list(chain.from_iterable(tokens)))
    distinct, counts = np.unique(keys, return_counts=True)
    indptr = np.searchsorted(distinct, np.arange(len(tokens) + 1, dtype=np.int64) << _ID_BITS)
    indices = (distinct & N_TERM_IDS).astype(np.int32)
    return sp.csr_matrix((counts.astype(np.float32), indices, indptr), shape=(len(tokens), N_TERM_IDS))


def field_counts(
    vocabulary: Vocabulary, view: TextView, analyzer: Analyzer, sources: Sequence[Mapping[str, Any]]
) -> list[sp.csr_matrix]:
    """Return the word counts of each field of the view: one (n, N_TERM_IDS) matrix a field, in field order."""
    parts: list[list[sp.csr_matrix]] = [[] for _ in view.fields]
    for start in range(0, len(sources), _BATCH):
        texts = [view.texts(source) for source in sources[start : start + _BATCH]]
        for field, part in enumerate(parts):
            part.append(count_rows(vocabulary, analyzer.tokens([text[field] for text in texts])))
    return [stack_rows(part) for part in parts]


def stack_rows(parts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
    """Return the matrices one below the other, without the wide work space that scipy's ``vstack`` may need."""
    if not parts:
        empty = np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int32)
        return sp.csr_matrix((*empty, np.zeros(1, dtype=np.int64)), shape=(0, N_TERM_IDS))
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    data, indices = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices"))
    return sp.csr_matrix((data, indices, indptr), shape=(len(lengths), parts[0].shape[1]))


@dataclass(frozen=True)
class LexicalQueries:
    """Queries as word counts in the corpus's columns.

    Parameters
    ----------
    fields : tuple of csr_matrix, (n_queries, m) float32
        One matrix: texts (field weights do not apply). As many as the corpus has fields: documents used as queries.
    """

    fields: tuple[sp.csr_matrix, ...]

    def __len__(self) -> int:
        """Return the number of queries."""
        return int(self.fields[0].shape[0])

    def rows(self, rows: Rows) -> LexicalQueries:
        """Return some of the queries."""
        return LexicalQueries(tuple(field[rows] for field in self.fields))


class LexicalCorpus:
    """The word counts of all documents by field, over the words in use.

    Parameters
    ----------
    fields : sequence of csr_matrix, (n_documents, any width) float32
        Word counts of each field, from `field_counts`.

    Attributes
    ----------
    fields : tuple of csr_matrix, (n_documents, m) float32
        The same over the m words that occur.
    columns : (m,) int64
        Term id of each column.
    document_frequency : (m,) int64
        Documents that hold the word in any field.

    Raises
    ------
    InputError
        If there is no document or no word.
    ShapeMismatch
        If the fields have different numbers of documents.
    """

    def __init__(self, fields: Sequence[sp.csr_matrix]) -> None:
        if not fields or len({field.shape[0] for field in fields}) != 1:
            raise ShapeMismatch(
                f"fields of {[field.shape[0] for field in fields]} documents: give one row a document in each field"
            )
        self.columns = used_columns(fields)
        self.fields = tuple(select_columns(field, self.columns) for field in fields)
        self.n_documents = int(fields[0].shape[0])
        if self.n_documents == 0 or len(self.columns) == 0:
            raise InputError(
                f"{self.n_documents} documents with {len(self.columns)} words: a lexical baseline needs at least one "
                f"document with a word; check the field names of the text view"
            )
        together = sum(self.fields[1:], start=self.fields[0]).tocsr()
        self.document_frequency = np.bincount(together.indices, minlength=len(self.columns)).astype(np.int64)

    @property
    def main_field(self) -> int:
        """Number of the field with the most words, whose weight is 1 in every setting."""
        return int(np.argmax([field.data.sum() for field in self.fields]))

    def text_queries(self, counts: sp.csr_matrix) -> LexicalQueries:
        """Return queries from the word counts of their texts; words of no document are left out (they match none)."""
        return LexicalQueries((select_columns(counts, self.columns),))

    def document_queries(self, rows: Rows) -> LexicalQueries:
        """Return documents of the corpus, by row number, as queries."""
        return LexicalQueries(tuple(field[rows] for field in self.fields))

    def counts(self, rows: Rows) -> sp.csr_matrix:
        """Return the word counts of whole documents, all fields together, (n, N_TERM_IDS) float32 by term id."""
        total = weighted_sum([field[rows] for field in self.fields], [1.0] * len(self.fields))
        total.sort_indices()
        indices = self.columns[total.indices].astype(np.int32)
        return sp.csr_matrix((total.data, indices, total.indptr), shape=(len(rows), N_TERM_IDS))


def weighted_sum(fields: Sequence[sp.csr_matrix], weights: Sequence[float]) -> sp.csr_matrix:
    """Return sum over k of weight_k * field_k, without the words whose sum is 0.

    Raises
    ------
    ShapeMismatch
        If the numbers of fields and weights differ.
    """
    if len(fields) != len(weights):
        raise ShapeMismatch(f"{len(weights)} weights for {len(fields)} fields: give one a field, in their order")
    parts = [np.float32(weight) * field for field, weight in zip(fields, weights, strict=True) if weight]
    total = sum(parts[1:], start=parts[0]).tocsr() if parts else fields[0] * np.float32(0)
    total.eliminate_zeros()
    return total


def unit_rows(rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows divided by their Euclidean lengths; an empty row stays empty."""
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    length = np.sqrt(np.bincount(row, rows.data.astype(np.float64) ** 2, minlength=rows.shape[0]))
    length[length == 0] = 1.0
    return sp.csr_matrix(((rows.data / length[row]).astype(np.float32), rows.indices, rows.indptr), shape=rows.shape)
