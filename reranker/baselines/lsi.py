"""Latent semantic indexing, alone and mixed with TF-IDF (spec B03, B04)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.baselines.corpus import LexicalQueries, Rows, unit_rows
from reranker.baselines.tfidf import TfIdfBaseline, TfIdfSettings
from reranker.errors import ConfigError
from reranker.evaluation.scorers import InnerProducts
from reranker.models.projection import unit

MAX_WORDS = 30_000
"""Words that the decomposition sees, the most frequent ones (spec B03)."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LsiSettings:
    """Weights of a mixture alpha * LSI + (1 - alpha) * TF-IDF.

    Parameters
    ----------
    tfidf : TfIdfSettings
        Of the rows that are decomposed, projected, and used by the TF-IDF part.
    alpha : float
        1 is LSI alone, 0 TF-IDF alone.
    """

    tfidf: TfIdfSettings
    alpha: float = 0.5


class LsiBaseline:
    """Scores by the cosine in the space of the first singular vectors of the tf-idf rows of all documents.

    X = P S Q^T, x -> Q^T x for queries and documents alike (Q: the words' vectors). The decomposition is scipy's
    ARPACK with a start drawn from ``rng``, so it is the same for the same seed.

    Parameters
    ----------
    tfidf : TfIdfBaseline
        Rows of the corpus.
    document_weights : tuple of float
        Field weights of the decomposed rows, each made unit length.
    n_dimensions : int
        At least 1, and below the numbers of documents and words.
    rng : Generator
        Draws the start of the iteration.

    Raises
    ------
    ConfigError
        If so many dimensions cannot be had.
    """

    def __init__(
        self, tfidf: TfIdfBaseline, document_weights: tuple[float, ...], n_dimensions: int, rng: np.random.Generator
    ) -> None:
        from scipy.sparse.linalg import svds

        self.tfidf = tfidf
        corpus = tfidf.corpus
        frequency = corpus.document_frequency
        # Words of one document only would each ask for a dimension of their own; nothing can be learned about them.
        frequent = np.lexsort((np.arange(len(frequency)), -frequency))[:MAX_WORDS]
        self._words = np.sort(frequent[frequency[frequent] >= min(2, corpus.n_documents)])
        limit = min(corpus.n_documents, len(self._words)) - 1
        if not 1 <= n_dimensions <= limit:
            raise ConfigError(
                f"lsi:{n_dimensions} cannot be had: the corpus of {corpus.n_documents:,} documents and "
                f"{len(self._words):,} words in two or more of them allows 1 to {max(limit, 0)} dimensions"
            )
        rows = unit_rows(tfidf.document_rows(np.arange(corpus.n_documents), document_weights))[:, self._words]
        start = rng.standard_normal(min(rows.shape)).astype(np.float32)
        _, _, vectors = svds(rows.tocsr(), k=n_dimensions, v0=start)
        self.word_vectors: Floats = np.ascontiguousarray(vectors.T, dtype=np.float32)

    def project(self, rows: sp.csr_matrix) -> Floats:
        """Return the unit vectors of tf-idf rows, (n, n_dimensions) float32; 0 for a row without known words."""
        return unit(np.asarray(rows[:, self._words] @ self.word_vectors, dtype=np.float32))

    def scorer(self, queries: LexicalQueries, documents: Rows, settings: LsiSettings) -> InnerProducts:
        """Return the scores of all queries against some documents of the corpus."""
        query_rows = self.tfidf.query_rows(queries, settings.tfidf.query_weights)
        document_rows = self.tfidf.document_rows(documents, settings.tfidf.document_weights)
        mixed = settings.alpha < 1.0
        return InnerProducts(
            query_vectors=self.project(query_rows) * np.float32(settings.alpha),
            document_vectors=self.project(document_rows),
            query_rows=query_rows if mixed else None,
            document_rows=document_rows if mixed else None,
            row_weight=1.0 - settings.alpha,
        )
