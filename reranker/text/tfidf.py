"""tf-idf rows of unit length over the open vocabulary, a batch of texts at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from reranker.arrays import N_TERM_IDS, Int32, Int64, term_rows
from reranker.errors import ConfigError, ShapeMismatch
from reranker.text.analyzers import Analyzer
from reranker.text.rows import ROW_SHIFT, row_of
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary

TERM_FREQUENCIES = ("raw", "log")


class TfIdf:
    """Turns tokens into rows w_i = g(tf_i) ln(N_docs / df_i), divided by their length.

    g is the identity (``raw``, the papers' term frequency) or 1 + ln (``log``, which measures better). A word that
    stands in every document has idf 0 and is left out. A text without words, or with no other words than those, has an
    empty row: its score is 0 with everything. `ConfigError` is raised for another ``tf``.

    Source: spec 1.1; rows are sorted by id as in spec 1.8.
    """

    def __init__(self, vocabulary: Vocabulary, tf: str = "log") -> None:
        if tf not in TERM_FREQUENCIES:
            raise ConfigError(f"tf is {tf!r}: choose one of {', '.join(TERM_FREQUENCIES)}", value=tf)
        self.vocabulary = vocabulary
        self.tf = tf

    def rows(self, tokens: Sequence[Sequence[str]]) -> csr_matrix[np.float32]:
        """Return one unit row a text, ``(n, N_TERM_IDS) float32``, ids ascending in each row."""
        lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        ids = self.vocabulary.ids(list(chain.from_iterable(tokens)))
        return self.rows_of_ids(ids, lengths)

    def rows_of_ids(self, ids: Int32, lengths: Int64) -> csr_matrix[np.float32]:
        """Return `rows` of n texts whose words are numbered, given all ids in order and the texts' lengths."""
        n = len(lengths)
        keys = np.repeat(np.arange(n, dtype=np.int64) << ROW_SHIFT, lengths)
        keys |= ids
        keys.sort()
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        counts = np.diff(first, append=len(keys)).astype(np.float64)
        keys = keys[first]
        terms, row = (keys & N_TERM_IDS).astype(np.int32), keys >> ROW_SHIFT
        weights = (counts if self.tf == "raw" else 1.0 + np.log(counts)) * self.vocabulary.exact_idf_of(terms)
        if not weights.all():
            used = weights != 0
            terms, row, weights = terms[used], row[used], weights[used]
        length = np.sqrt(np.bincount(row, weights * weights, minlength=n))
        weights /= length[row]
        indptr = np.zeros(n + 1, dtype=np.int32)
        np.cumsum(np.bincount(row, minlength=n), out=indptr[1:])
        return term_rows(weights.astype(np.float32), terms, indptr)

    def query_rows(
        self, view: TextView, analyzer: Analyzer, sources: Sequence[Mapping[str, Any]]
    ) -> csr_matrix[np.float32]:
        """Return whole documents as queries: one unit row of all fields read as one text, ``(n, N_TERM_IDS)``.

        Unlike d, the fields are not weighted: their lengths are. A query that repeats its own title's weight looks for
        its title again, which is seldom what it refers to (MAP .27 in place of .38 on a linked documentation).
        """
        return self.rows(analyzer.tokens(["\n".join(view.texts(source)) for source in sources]))

    def rows_of_texts(
        self, texts: Sequence[Sequence[str]], n_fields: int, analyzer: Analyzer
    ) -> list[csr_matrix[np.float32]]:
        """Return the unit rows of ``texts[document][field]``: one ``(n, N_TERM_IDS)`` matrix a field."""
        flat = [text[field] for field in range(n_fields) for text in texts]
        rows, n = self.rows(analyzer.tokens(flat)), len(texts)
        return [rows[field * n : (field + 1) * n] for field in range(n_fields)]


def combine(rows: Sequence[csr_matrix[np.float32]], weights: Sequence[float]) -> csr_matrix[np.float32]:
    """Return d = Σ_k weight_k · row_k, ``(n, N_TERM_IDS) float32``, not normalised again.

    ``rows`` are the unit rows of each field, of that shape, and the weights finite, one a field.

    Raises
    ------
    ShapeMismatch
        Where numbers of fields, weights or rows differ.
    """
    if not rows or len(rows) != len(weights) or len({field.shape for field in rows}) != 1:
        shapes = [field.shape for field in rows]
        raise ShapeMismatch(
            f"fields of shapes {shapes} with {len(weights)} weights: give equal shapes, one weight each"
        )
    n = rows[0].shape[0]
    if len(rows) == 1:
        return term_rows(rows[0].data * np.float32(weights[0]), rows[0].indices, rows[0].indptr)
    keys = np.concatenate([row_of(field) << ROW_SHIFT | field.indices for field in rows])
    scaled = [field.data.astype(np.float64) * weight for field, weight in zip(rows, weights, strict=True)]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(np.concatenate(scaled)[order], first) if len(first) else np.zeros(0)
    keys = keys[first]
    indptr = np.searchsorted(keys, np.arange(n + 1, dtype=np.int64) << ROW_SHIFT).astype(np.int32)
    return term_rows(sums.astype(np.float32), (keys & N_TERM_IDS).astype(np.int32), indptr)
