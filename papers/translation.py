"""Translators of texts, and scorers of translated queries (spec B15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.study_rows import Doubles, Floats, check_counts, row_of, tfidf_rows
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.base import Scorer

Ids = npt.NDArray[np.int64]


class Translator(Protocol):
    """Anything that turns word counts of one language into word counts of another."""

    def translate(self, q_counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return the translated counts, (n_queries, D_d), from (n_queries, D_q)."""
        ...


@dataclass(frozen=True, eq=False)
class WordTable:
    """Translates word by word: every occurrence of f becomes t(e|f) occurrences of e.

    Parameters
    ----------
    probabilities : csr_matrix, (D_q, D_d) float64
        t(e|f) in row f; a row sums to 1, or is empty for a word without a translation, which is then left out.

    Raises
    ------
    InputError
        If a value is negative or a row sums to something else.

    Source: spec B15b (a dictionary).
    """

    probabilities: sp.csr_matrix

    def __post_init__(self) -> None:
        table = self.probabilities
        sums = np.asarray(table.sum(axis=1), dtype=np.float64).ravel()
        wrong = np.flatnonzero((np.abs(sums - 1.0) > 1e-6) & (np.diff(table.indptr) > 0))
        if len(wrong) or not (table.data >= 0).all():
            raise InputError(
                f"rows of a translation table are probabilities that sum to 1, or are empty; "
                f"{len(wrong):,} rows do not: divide each row by its sum"
            )

    def best(self) -> WordTable:
        """Return the table with the single most probable translation of each word; of equals, the lower number."""
        table = self.probabilities
        order = np.lexsort((table.indices, -table.data, row_of(table)))
        first = order[table.indptr[:-1][np.diff(table.indptr) > 0]]
        rows = row_of(table)[first]
        return WordTable(sp.csr_matrix((np.ones(len(first)), (rows, table.indices[first])), shape=table.shape))

    def translate(self, q_counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return the translated counts, (n_queries, D_d) float64.

        Raises
        ------
        ShapeMismatch
            If the queries are over another number of words than the table.
        """
        _check_table(self.probabilities, q_counts)
        out: sp.csr_matrix = (q_counts.astype(np.float64) @ self.probabilities).tocsr()
        out.sort_indices()
        return out


@dataclass(frozen=True, eq=False)
class TextTable:
    """Translates a text as a whole: the words it is most likely a translation of, given all its words together.

    theta maximises sum_f x_f log sum_e theta_e s(f|e), the likelihood of the text under a mixture of the words e; the
    translated counts are |q| theta. EM: r_fe = theta_e s(f|e) / sum_e' theta_e' s(f|e') and then
    theta_e = sum_f x_f r_fe / |q|. A word of several translations thus goes to the one that explains its neighbours
    as well. A stand-in for a translator of documents where none is at hand.

    Parameters
    ----------
    emissions : csr_matrix, (D_q, D_d) float64
        s(f|e), at least 0; columns need not sum to 1.
    n_iterations : int
        EM steps, at least 1, from equal theta.

    Raises
    ------
    ConfigError
        If there is no step.

    Source: spec B15a (document-wise translation; the sources use commercial translators).
    """

    emissions: sp.csr_matrix
    n_iterations: int = 5

    def __post_init__(self) -> None:
        if self.n_iterations < 1:
            raise ConfigError(f"n_iterations is {self.n_iterations}: a text is translated in at least 1 step")
        check_counts(self.emissions, "emissions")

    def translate(self, q_counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return the translated counts, (n_queries, D_d) float64.

        Raises
        ------
        ShapeMismatch
            If the queries are over another number of words than the table.
        """
        _check_table(self.emissions, q_counts)
        counts = check_counts(q_counts, "q_counts")
        texts = [self._text(counts, query) for query in range(counts.shape[0])]
        starts = np.concatenate(([0], np.cumsum([len(words) for words, _ in texts])))
        empty: list[npt.NDArray[np.float64]] = [np.empty(0)]
        data = np.concatenate([values for _, values in texts] or empty)
        indices = np.concatenate([words for words, _ in texts] or empty).astype(np.int32)
        return sp.csr_matrix((data, indices, starts), shape=(counts.shape[0], self.emissions.shape[1]))

    def _text(self, counts: sp.csr_matrix, query: int) -> tuple[Ids, Doubles]:
        """Return the words that a text is translated to, ascending, and their counts."""
        span = slice(counts.indptr[query], counts.indptr[query + 1])
        part = self.emissions[counts.indices[span]].tocsr()
        words, column = np.unique(part.indices, return_inverse=True)
        if not len(words):
            return words.astype(np.int64), np.empty(0)
        row, times = row_of(part), counts.data[span]
        theta: Doubles = np.ones(len(words))
        for _ in range(self.n_iterations):
            share = shares(theta[column] * part.data, row)
            theta = np.bincount(column, times[row] * share, minlength=len(words)).astype(np.float64)
        kept = theta > 0
        return words[kept].astype(np.int64), theta[kept]


@dataclass(frozen=True, eq=False)
class TranslatedQueries:
    """Scores translated queries with a scorer of the documents' language: f(tf-idf(translate(q)), d).

    With `VectorSpace` it is B15b (B15a for a translator of whole texts), with an LSI projection B15c, with
    PSI(EngEng) B15d. Without idf it is f(translate(q), d) over counts, for `JelinekMercer` or BM25: the likelihood of
    the translated query, sum_f x_f sum_e t(e|f) log p(e|d).

    Parameters
    ----------
    translator : Translator
        From the counts of the query's language.
    scorer : Scorer
        Over unit tf-idf rows of the documents' language, or over counts.
    idf : (D_d,) float64, optional
        Of the documents' language; without it the scorer is given counts.
    """

    translator: Translator
    scorer: Scorer
    idf: Doubles | None = None

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return f of every query with every document, (n_queries, n_documents) float32; queries are counts."""
        return self.scorer.score_matrix(self.translated(q_rows), d_rows)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return f of query r with document r, (n,) float32; queries are counts."""
        return self.scorer.score_pairs(self.translated(q_rows), d_rows)

    def translated(self, q_counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return the unit tf-idf rows of the translated queries, or their counts, (n_queries, D_d)."""
        counts = self.translator.translate(q_counts)
        return counts if self.idf is None else tfidf_rows(counts, self.idf)


def shares(weights: Doubles, group: Ids) -> Doubles:
    """Return each weight divided by the sum of its group; 0 in a group whose weights are all 0."""
    total = np.bincount(group, weights)[group]
    return np.divide(weights, total, out=np.zeros(len(weights)), where=total > 0)


def _check_table(table: sp.csr_matrix, q_counts: sp.csr_matrix) -> None:
    """Refuse queries over other words than the table's."""
    if q_counts.shape[1] != table.shape[0]:
        raise ShapeMismatch(
            f"queries are over {q_counts.shape[1]:,} words and the table over {table.shape[0]:,}: use the vocabulary "
            f"of the mates that the table was learned on"
        )
