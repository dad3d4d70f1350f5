"""BM25 over the weighted sum of the fields (spec B20)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.baselines.corpus import LexicalCorpus, LexicalQueries, Rows, weighted_sum
from reranker.errors import ConfigError
from reranker.evaluation.scorers import InnerProducts

Floats = npt.NDArray[np.float32]

_QUERY_TF: dict[str, Callable[[Floats], Floats]] = {
    "raw": lambda tf: tf,
    "log": lambda tf: np.log2(1 + tf),
    "once": np.ones_like,
}
QUERY_TF = tuple(_QUERY_TF)
"""How often a word counts that a query holds tf times: tf (as in Lucene), log2(1 + tf), or once."""


@dataclass(frozen=True, slots=True)
class Bm25Settings:
    """Parameters of BM25.

    Parameters
    ----------
    document_weights : tuple of float
        beta_k of the fields: tf = sum_k beta_k tf_k and len = sum_k beta_k len_k.
    query_weights : tuple of float
        The same for documents used as queries.
    k1 : float
        Where the counting of a word levels off, >= 0.
    b : float
        How much length counts, 0 to 1.
    query_tf : {"raw", "log", "once"}
        See `QUERY_TF`.

    Raises
    ------
    ConfigError
        For values outside of these ranges.
    """

    document_weights: tuple[float, ...]
    query_weights: tuple[float, ...]
    k1: float = 1.2
    b: float = 0.75
    query_tf: str = "raw"

    def __post_init__(self) -> None:
        if not (self.k1 >= 0 and 0 <= self.b <= 1):
            raise ConfigError(f"k1 is {self.k1!r} and b {self.b!r}: k1 must be at least 0 and b from 0 to 1")
        if self.query_tf not in QUERY_TF:
            raise ConfigError(f"query_tf is {self.query_tf!r}: choose one of {', '.join(QUERY_TF)}")


class Bm25Baseline:
    """Scores sum over words of qtf * idf * tf (k1 + 1) / (tf + k1 (1 - b + b len / mean len)).

    idf = ln(1 + (N_docs - df + 1/2) / (df + 1/2)), df over all fields together: Lucene's formula (which leaves out the
    constant factor k1 + 1), with exact lengths in place of Lucene's one-byte ones.

    Parameters
    ----------
    corpus : LexicalCorpus
        All documents; idf and mean length are taken from them.
    """

    def __init__(self, corpus: LexicalCorpus) -> None:
        self.corpus = corpus
        df = corpus.document_frequency.astype(np.float64)
        self.idf = np.log1p((corpus.n_documents - df + 0.5) / (df + 0.5)).astype(np.float32)
        self._lengths = [np.asarray(field.sum(axis=1), dtype=np.float64).ravel() for field in corpus.fields]

    def document_rows(self, documents: Rows, settings: Bm25Settings) -> sp.csr_matrix:
        """Return the weight of each word in some documents, (n, m) float32."""
        weights = settings.document_weights
        counts = weighted_sum([field[documents] for field in self.corpus.fields], weights)
        lengths = np.sum([w * length for w, length in zip(weights, self._lengths, strict=True)], axis=0)
        mean = float(lengths.mean()) or 1.0
        norm = settings.k1 * (1 - settings.b + settings.b * lengths[documents] / mean)
        row = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
        tf = counts.data.astype(np.float64)
        data = self.idf[counts.indices] * (settings.k1 + 1) * tf / (tf + norm[row])
        return sp.csr_matrix((data.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape)

    def query_rows(self, queries: LexicalQueries, settings: Bm25Settings) -> sp.csr_matrix:
        """Return how often each word of a query counts, (n, m) float32."""
        fields = queries.fields
        counts = fields[0] if len(fields) == 1 else weighted_sum(fields, settings.query_weights)
        data = _QUERY_TF[settings.query_tf](counts.data)
        return sp.csr_matrix((data.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape)

    def scorer(self, queries: LexicalQueries, documents: Rows, settings: Bm25Settings) -> InnerProducts:
        """Return the scores of all queries against some documents of the corpus."""
        return InnerProducts(
            query_rows=self.query_rows(queries, settings),
            document_rows=self.document_rows(documents, settings),
        )
