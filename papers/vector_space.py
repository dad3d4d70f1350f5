"""The vector space model through postings: the cosine, one query word at a time (spec B18, B01)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.inverted_file import InvertedFile, invert
from papers.study_rows import Floats, check_pairs, check_widths, pair_products
from reranker.errors import ShapeMismatch


def score_by_postings(q_rows: sp.csr_matrix, file: InvertedFile) -> Floats:
    """Return q . d of every query with every document of the file, (n_queries, n_documents) float32.

    Term at a time: the postings of each query word add q_w * d_w to the documents they name, so only documents that
    share a word with the query are ever touched. Sums are kept in float64.

    Parameters
    ----------
    q_rows : csr_matrix, (n_queries, n_words)
        Unit rows; the cosine then, if the file holds unit rows as well.

    Raises
    ------
    ShapeMismatch
        If the file has another number of words.
    """
    if q_rows.shape[1] != file.n_words:
        raise ShapeMismatch(
            f"queries are over {q_rows.shape[1]:,} words and the file over {file.n_words:,}: use one vocabulary"
        )
    out = np.zeros((q_rows.shape[0], file.n_documents), np.float32)
    for query in range(q_rows.shape[0]):
        total = np.zeros(file.n_documents)
        span = slice(q_rows.indptr[query], q_rows.indptr[query + 1])
        for word, weight in zip(q_rows.indices[span], q_rows.data[span], strict=True):
            documents, values = file.postings(int(word))
            total[documents] += np.float64(weight) * values  # a document stands once in a word's postings
        out[query] = total
    return out


@dataclass(frozen=True, slots=True)
class VectorSpace:
    """Scores q . d of unit rows: M01 = B01 = B18, computed over an inverted file of the documents.

    Source: spec B18 (COURSE's weights, see `tfidf_rows`).
    """

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return q . d of every query with every document, (n_queries, n_documents) float32."""
        check_widths(q_rows, d_rows)
        return score_by_postings(q_rows, invert(d_rows))

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return q . d of query r with document r, (n,) float32."""
        check_widths(q_rows, d_rows)
        check_pairs(q_rows, d_rows)
        return pair_products(q_rows.astype(np.float64), d_rows.astype(np.float64)).astype(np.float32)
