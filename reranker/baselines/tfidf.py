"""TF-IDF: the cosine of tf-idf rows, with a weight for each field (spec B01)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from reranker.baselines.corpus import LexicalCorpus, LexicalQueries, Rows, unit_rows, weighted_sum
from reranker.errors import ConfigError
from reranker.evaluation.scorers import InnerProducts


@dataclass(frozen=True, slots=True)
class TfIdfSettings:
    """Weights of the fields, in field order.

    Parameters
    ----------
    document_weights : tuple of float
        beta_k of d = sum_k beta_k d_k, with d_k the unit row of field k; d is not made unit length again.
    query_weights : tuple of float
        The same for documents used as queries, where it is made unit length. Their best values are often others: a
        linking document names its targets' titles in its text, not in its own title.
    """

    document_weights: tuple[float, ...]
    query_weights: tuple[float, ...]


class TfIdfBaseline:
    """Scores q . d of tf-idf rows w_i = g(tf_i) ln(N_docs / df_i), df over all fields together.

    Parameters
    ----------
    corpus : LexicalCorpus
        All documents; idf is taken from them.
    tf : {"log", "raw"}
        g(tf) = 1 + ln tf, or tf.

    Raises
    ------
    ConfigError
        For another ``tf``.
    """

    def __init__(self, corpus: LexicalCorpus, tf: str = "log") -> None:
        if tf not in ("log", "raw"):
            raise ConfigError(f"tf is {tf!r}: choose log (1 + ln tf) or raw", value=tf)
        self.corpus = corpus
        self.tf = tf
        self.idf = np.log(corpus.n_documents / corpus.document_frequency).astype(np.float32)
        self._fields = tuple(unit_rows(self._weighted(field)) for field in corpus.fields)

    def document_rows(self, documents: Rows, weights: tuple[float, ...]) -> sp.csr_matrix:
        """Return d of some documents, (n, m) float32."""
        return weighted_sum([field[documents] for field in self._fields], weights)

    def query_rows(self, queries: LexicalQueries, weights: tuple[float, ...]) -> sp.csr_matrix:
        """Return q of some queries, (n, m) float32, unit length or empty."""
        parts = [unit_rows(self._weighted(field)) for field in queries.fields]
        rows = parts[0] if len(parts) == 1 else weighted_sum(parts, weights)
        return unit_rows(rows)

    def scorer(self, queries: LexicalQueries, documents: Rows, settings: TfIdfSettings) -> InnerProducts:
        """Return the scores of all queries against some documents of the corpus."""
        return InnerProducts(
            query_rows=self.query_rows(queries, settings.query_weights),
            document_rows=self.document_rows(documents, settings.document_weights),
        )

    def _weighted(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return g(tf) idf of the stored counts."""
        tf = counts.data if self.tf == "raw" else 1 + np.log(counts.data)
        return sp.csr_matrix((tf * self.idf[counts.indices], counts.indices, counts.indptr), shape=counts.shape)
