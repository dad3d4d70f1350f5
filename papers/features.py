"""The course's features of a (query, document) pair (spec B23)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.language_model import JelinekMercer, fit_language_model
from papers.study_rows import (
    Doubles,
    all_products,
    binary,
    check_counts,
    check_pairs,
    idf_of,
    pair_products,
    row_of,
    tfidf_rows,
    with_data,
)
from reranker.errors import ConfigError, ShapeMismatch

FEATURES: tuple[str, ...] = (
    "log_tf",
    "log_share",
    "log_idf",
    "log_rarity",
    "log_share_idf",
    "log_share_rarity",
    "cosine",
    "pagerank",
    "language_model",
)
"""f1 to f9, in this order."""


@dataclass(frozen=True, eq=False)
class CourseFeatures:
    """Nine numbers of a query and a document, both as word counts.

    ====  =================================================  =================
    f     formula, t over the distinct words of the query    name
    ====  =================================================  =================
    f1    sum over t in both of log t^d                      log_tf
    f2    sum of log(1 + t^d / L)                            log_share
    f3    sum over t in both of log idf(t)                   log_idf
    f4    sum over t in both of log(|C| / t^c)               log_rarity
    f5    sum of log(1 + (t^d / L) idf(t))                   log_share_idf
    f6    sum of log(1 + (t^d / L) (|C| / t^c))              log_share_rarity
    f7    cosine of tf-idf rows                              cosine
    f8    PageRank of d                                      pagerank
    f9    log P(q|d), Jelinek-Mercer                         language_model
    ====  =================================================  =================

    t^d and t^c are counts of t in the document and in the collection, |C| the collection's length in tokens, and L the
    document's own length |d| (with ``literal``: |C|, as the slides print). Words whose logarithm would be that of 0
    (idf(t) = 0 in f3: a word of every document; t^c = 0: a word outside of the collection) add nothing.

    Documents have one column more than queries: the last holds the PageRank, so that f8 stays with its document in
    every selection of rows. `with_pagerank` adds it.

    Parameters
    ----------
    idf : (D,) float64
        ln(N_docs / df).
    collection_counts : (D,) float64
        t^c.
    language_model : JelinekMercer
        Of f9, with lam above 0.
    literal : bool
        Divide t^d by |C| in f2, f5 and f6.

    Raises
    ------
    ConfigError
        For a language model with lam = 0, whose scores are not finite.

    Source
    ------
    COURSE, features for learning to rank; spec B23, A27.
    """

    idf: Doubles
    collection_counts: Doubles
    language_model: JelinekMercer
    literal: bool = False

    def __post_init__(self) -> None:
        if self.language_model.lam == 0.0:
            raise ConfigError("the language model has lam = 0 and scores of -inf: use a lam above 0 for features")

    def pairs(self, q_counts: sp.csr_matrix, d_counts: sp.csr_matrix) -> Doubles:
        """Return the features of query r with document r, (n, 9) float64.

        Parameters
        ----------
        q_counts : csr_matrix, (n, D)
        d_counts : csr_matrix, (n, D + 1)
        """
        check_pairs(q_counts, d_counts)
        queries, documents, prior = self._sides(q_counts, d_counts)
        words = binary(queries)
        columns = [pair_products(words, part) for part in self._word_parts(documents)]
        columns.append(pair_products(*(tfidf_rows(side, self.idf).astype(np.float64) for side in (queries, documents))))
        columns += [prior, self.language_model.score_pairs(queries, documents).astype(np.float64)]
        return np.column_stack(columns)

    def matrices(self, q_counts: sp.csr_matrix, d_counts: sp.csr_matrix) -> Iterator[Doubles]:
        """Yield each feature of every query with every document, f1 to f9: (n_queries, n_documents) float64.

        Parameters
        ----------
        q_counts : csr_matrix, (n_queries, D)
        d_counts : csr_matrix, (n_documents, D + 1)
        """
        queries, documents, prior = self._sides(q_counts, d_counts)
        words = binary(queries)
        for part in self._word_parts(documents):
            yield all_products(words, part)
        yield all_products(*(tfidf_rows(side, self.idf).astype(np.float64) for side in (queries, documents)))
        yield np.repeat(prior[None, :], queries.shape[0], axis=0)
        yield self.language_model.score_matrix(queries, documents).astype(np.float64)

    def _word_parts(self, documents: sp.csr_matrix) -> Iterator[sp.csr_matrix]:
        """Yield what each word of a document adds to f1 .. f6, (n_documents, D) float64."""
        size = self.collection_counts.sum()
        words, tf = documents.indices, documents.data
        lengths = np.asarray(documents.sum(axis=1), dtype=np.float64).ravel()
        share = tf / (size if self.literal else lengths[row_of(documents)])
        idf, known = self.idf[words], self.collection_counts[words] > 0
        rarity = np.divide(size, self.collection_counts[words], out=np.ones(len(words)), where=known)
        yield with_data(documents, np.log(tf))
        yield with_data(documents, np.log1p(share))
        yield with_data(documents, np.log(idf, out=np.zeros(len(words)), where=idf > 0))
        yield with_data(documents, np.log(rarity))
        yield with_data(documents, np.log1p(share * idf))
        yield with_data(documents, np.log1p(np.where(known, share * rarity, 0.0)))

    def _sides(self, q_counts: sp.csr_matrix, d_counts: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix, Doubles]:
        """Return query counts, document counts and PageRanks."""
        n_words = len(self.idf)
        if q_counts.shape[1] != n_words or d_counts.shape[1] != n_words + 1:
            raise ShapeMismatch(
                f"queries have {q_counts.shape[1]:,} columns and documents {d_counts.shape[1]:,}: features need "
                f"{n_words:,} words, and one column more in documents (add it with with_pagerank)"
            )
        documents = check_counts(d_counts[:, :n_words].tocsr(), "d_counts")
        prior: Doubles = d_counts[:, n_words].toarray().ravel().astype(np.float64)
        return check_counts(q_counts, "q_counts"), documents, prior


def fit_features(d_counts: sp.csr_matrix, lam: float = 0.5, literal: bool = False) -> CourseFeatures:
    """Return the features over a collection.

    Parameters
    ----------
    d_counts : csr_matrix, (n_documents, D)
        Word counts of all documents, without the column of PageRank.
    lam : float
        Of the language model, above 0.
    literal : bool
        See `CourseFeatures`.

    Raises
    ------
    TrainingError
        If the collection has no word.
    """
    counts = check_counts(d_counts, "d_counts")
    per_word = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel()
    return CourseFeatures(idf_of(counts), per_word, fit_language_model(counts, lam), literal)


def with_pagerank(d_counts: sp.csr_matrix, ranks: Doubles) -> sp.csr_matrix:
    """Return the documents' counts with their PageRanks in one more column, (n_documents, D + 1) float64.

    Raises
    ------
    ShapeMismatch
        If there is not one PageRank a document.
    """
    if ranks.shape != (d_counts.shape[0],):
        raise ShapeMismatch(f"{ranks.shape} PageRanks for {d_counts.shape[0]:,} documents: give one a document")
    rows: sp.csr_matrix = sp.hstack([d_counts.astype(np.float64), sp.csr_matrix(ranks[:, None])], format="csr")
    return rows
