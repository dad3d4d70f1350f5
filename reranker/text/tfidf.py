"""Rows of word counts from texts, and unit tf-idf rows from counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.arrays import offsets_of, term_rows
from reranker.errors import ConfigError
from reranker.text.analyzers import Analyzer
from reranker.text.rows import _ROW_SHIFT, combine, keep_values, row_of, rows_of_keys, stack_rows
from reranker.text.view import TextView
from reranker.text.vocabulary import _LEFT_OUT, Vocabulary

_BATCH = 2_048


TERM_FREQUENCIES = ("raw", "log")


class TfIdf:
    """Encoder of tokens as rows w_i = g(tf_i) ln(N_docs / df_i), divided by their length.

    g is the identity (``raw``, the papers' term frequency) or 1 + ln (``log``, which measures better). A word that
    occurs in every document has idf 0 and is left out. A text without any other word has an empty row and scores 0 with
    everything. `ConfigError` is raised for an unknown ``tf``.

    Source: spec 1.1; rows are sorted by id as in spec 1.8.
    """

    def __init__(self, vocabulary: Vocabulary, tf: str = "log") -> None:
        if tf not in TERM_FREQUENCIES:
            raise ConfigError(f"tf is {tf!r}: choose one of {', '.join(TERM_FREQUENCIES)}", value=tf)
        self.vocabulary = vocabulary
        self.tf = tf

    def rows(self, tokens: Sequence[Sequence[str]]) -> sp.csr_matrix[np.float32]:
        """Return one unit row per text, ``(n, N_TERM_IDS) float32``, ids ascending in each row."""
        return self.rows_of_counts(count_rows(self.vocabulary, tokens))

    def rows_of_counts(self, counts: sp.csr_matrix) -> sp.csr_matrix[np.float32]:
        """Return the unit rows of texts given as word counts (`count_rows`)."""
        tf = counts.data.astype(np.float64)
        weights = (tf if self.tf == "raw" else 1.0 + np.log(tf)) * self.vocabulary.idf_of(counts.indices)
        terms, row, indptr = counts.indices, row_of(counts), counts.indptr.astype(np.int32)
        if not weights.all():
            used = weights != 0
            terms, row, weights = terms[used], row[used], weights[used]
            indptr = offsets_of(used)[indptr].astype(np.int32)
        length = np.sqrt(np.bincount(row, weights * weights, minlength=counts.shape[0]))
        weights /= length[row]
        return term_rows(weights.astype(np.float32), terms, indptr)


def count_rows(vocabulary: Vocabulary, tokens: Sequence[Sequence[str]]) -> sp.csr_matrix[np.float32]:
    """Return the word counts of each text, (n, N_TERM_IDS) float32; bigrams that are not listed are left out."""
    if len(tokens) == 1:
        return _count_row(vocabulary, tokens[0])
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    keys = np.repeat(np.arange(len(tokens), dtype=np.int64) << _ROW_SHIFT, lengths)
    ids = vocabulary.ids(list(chain.from_iterable(tokens)))
    keys = (keys | ids)[ids != _LEFT_OUT]
    keys.sort()
    is_first = np.ones(len(keys) + 1, dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:-1])
    bounds = np.flatnonzero(is_first)  # the first key of each run, and the end; np.diff would take twice the time
    first, ends = bounds[:-1], bounds[1:]
    return rows_of_keys(keys[first], (ends - first).astype(np.float32), len(tokens))


def _count_row(vocabulary: Vocabulary, tokens: Sequence[str]) -> sp.csr_matrix[np.float32]:
    """Return `count_rows` of one text; for the few words of a query, arrays of keys would take most of the time."""
    counts = vocabulary.counts(tokens)
    ids = sorted(counts)
    data = np.array([counts[i] for i in ids], np.float32)
    return term_rows(data, np.array(ids, np.int32), np.array([0, len(ids)], np.int32))


def text_counts(
    vocabulary: Vocabulary, analyzer: Analyzer, texts: Sequence[Sequence[str]], n_fields: int
) -> list[sp.csr_matrix[np.float32]]:
    """Return the word counts of ``texts[document][field]``, (n, N_TERM_IDS) per field, then those of all bigrams."""
    flat = [text[field] for field in range(n_fields) for text in texts]
    counts, n = count_rows(vocabulary, analyzer.tokens(flat)), len(texts)
    fields = [counts[field * n : (field + 1) * n] for field in range(n_fields)]
    if not analyzer.config.bigrams:
        return fields
    is_bigram = [vocabulary.is_bigram(field.indices) for field in fields]
    bigrams = [keep_values(field, chosen) for field, chosen in zip(fields, is_bigram, strict=True)]
    words = [keep_values(field, ~chosen) for field, chosen in zip(fields, is_bigram, strict=True)]
    return [*words, combine(bigrams, [1.0] * n_fields)]


def field_counts(
    vocabulary: Vocabulary, view: TextView, analyzer: Analyzer, sources: Sequence[Mapping[str, Any]]
) -> list[sp.csr_matrix[np.float32]]:
    """Return the word counts of each field of the view, in field order, as `text_counts` does."""
    batches = []
    for start in range(0, max(len(sources), 1), _BATCH):
        texts = [view.texts(source) for source in sources[start : start + _BATCH]]
        batches.append(text_counts(vocabulary, analyzer, texts, len(view.fields)))
    return [stack_rows(part) for part in zip(*batches, strict=True)]


def learned_rows(tfidf: TfIdf, counts: Sequence[sp.csr_matrix], weights: Sequence[float]) -> sp.csr_matrix:
    """Return d', the weighted sum of the fields' unit rows, (n, N_TERM_IDS) float32; bigrams have the weight 1."""
    more = [1.0] * (len(counts) - len(weights))
    return combine([tfidf.rows_of_counts(field) for field in counts], [*weights, *more])
