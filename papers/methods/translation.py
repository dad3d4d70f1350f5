"""Translation of queries and mates (spec B15): word tables by DICE and IBM model 1, whole texts, and likelihoods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.methods.lexical import fit_language_model
from papers.methods.rows import ChangedRows, binary, check_counts, check_pairs, tfidf_rows
from papers.methods.word_pairs import Mix
from reranker.arrays import Float32, Float64, Int64
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError
from reranker.models.scorers import Scorer
from reranker.text.rows import row_of, with_data


@dataclass(frozen=True, eq=False)
class WordTable:
    """Translates word by word: every occurrence of f becomes t(e|f) occurrences of e.

    Raises
    ------
    If a value is negative, or a row has another sum than 1.
        If a value is negative or a row sums to something else.

    Source: spec B15b (a dictionary).
    """

    probabilities: sp.csr_matrix
    """t(e|f) in row f, (D_q, D_d) float64; rows sum to 1, or are empty for words without translation (left out)."""

    def __post_init__(self) -> None:
        table = self.probabilities
        sums = np.asarray(table.sum(axis=1), dtype=np.float64).ravel()
        wrong = np.flatnonzero((np.abs(sums - 1.0) > 1e-6) & (np.diff(table.indptr) > 0))
        if len(wrong) or not (table.data >= 0).all():
            raise InputError(
                f"rows of a translation table must be probabilities that sum to 1, or empty; "
                f"{len(wrong):,} rows are not: divide each row by its sum"
            )

    def translate(self, q_counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return the translated counts, (n_queries, D_d) float64."""
        _check_table(self.probabilities, q_counts)
        out: sp.csr_matrix = (q_counts.astype(np.float64) @ self.probabilities).tocsr()
        out.sort_indices()
        return out


@dataclass(frozen=True, eq=False)
class TextTable:
    """Translates whole texts: into the words of which the text is most likely a translation, given all of its words.

    theta maximises sum_f x_f log sum_e theta_e s(f|e), the likelihood of the text under a mixture of the words e; the
    translated counts are |q| theta. EM: r_fe = theta_e s(f|e) / sum_e' theta_e' s(f|e') and then
    theta_e = sum_f x_f r_fe / |q|. A word with several translations is thus assigned to the one that also explains its
    neighbours. This replaces a document translator where none is available.

    Raises
    ------
    ConfigError
        If ``n_iterations`` is below 1.

    Source: spec B15a (document-wise translation; the sources use commercial translators).
    """

    emissions: sp.csr_matrix
    """s(f|e), (D_q, D_d) float64, at least 0; columns need not sum to 1."""
    n_iterations: int = 5
    """Number of EM steps, at least 1; they start from equal theta."""

    def __post_init__(self) -> None:
        if self.n_iterations < 1:
            raise ConfigError(f"n_iterations is {self.n_iterations}: it must be at least 1")
        check_counts(self.emissions, "emissions")

    def translate(self, q_counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return the translated counts, (n_queries, D_d) float64."""
        _check_table(self.emissions, q_counts)
        counts = check_counts(q_counts, "q_counts")
        texts = [self._text(counts, query) for query in range(counts.shape[0])]
        starts = np.concatenate(([0], np.cumsum([len(words) for words, _ in texts])))
        empty: list[Float64] = [np.empty(0)]
        data = np.concatenate([values for _, values in texts] or empty)
        indices = np.concatenate([words for words, _ in texts] or empty).astype(np.int32)
        return sp.csr_matrix((data, indices, starts), shape=(counts.shape[0], self.emissions.shape[1]))

    def _text(self, counts: sp.csr_matrix, query: int) -> tuple[Int64, Float64]:
        """Return the words that a text is translated to, ascending, and their counts."""
        span = slice(counts.indptr[query], counts.indptr[query + 1])
        part = self.emissions[counts.indices[span]].tocsr()
        words, column = np.unique(part.indices, return_inverse=True)
        if not len(words):
            return words.astype(np.int64), np.empty(0)
        row, times = row_of(part), counts.data[span]
        theta: Float64 = np.ones(len(words))
        for _ in range(self.n_iterations):
            share = shares(theta[column] * part.data, row)
            theta = np.bincount(column, times[row] * share, minlength=len(words)).astype(np.float64)
        kept = theta > 0
        return words[kept].astype(np.int64), theta[kept]


@dataclass(frozen=True, eq=False)
class TranslatedQueries(ChangedRows):
    """Score f(tf-idf(translate(q)), d) of translated queries by a scorer of the documents' language.

    With `VectorSpace` this is B15b (B15a for a translator of whole texts), with an LSI projection B15c, with
    PSI(EngEng) B15d. Without idf it is f(translate(q), d) over counts, for `JelinekMercer` or BM25: the likelihood of
    the translated query, sum_f x_f sum_e t(e|f) log p(e|d).
    """

    translator: WordTable | TextTable
    """Translates counts of the query's language."""
    scorer: Scorer
    """Scores unit tf-idf rows of the documents' language, or counts."""
    idf: Float64 | None = None
    """idf of the documents' language, (D_d,) float64; None: the scorer gets counts."""

    def changed(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the translated queries and the unchanged documents."""
        return self.translated(q_rows), d_rows

    def translated(self, q_counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return the unit tf-idf rows of the translated queries, or their counts, (n_queries, D_d)."""
        counts = self.translator.translate(q_counts)
        return counts if self.idf is None else tfidf_rows(counts, self.idf)


def shares(weights: Float64, group: Int64) -> Float64:
    """Return each weight divided by the sum of its group; 0 in a group of zeros."""
    total = np.bincount(group, weights)[group]
    return np.divide(weights, total, out=np.zeros(len(weights)), where=total > 0)


def _check_table(table: sp.csr_matrix, q_counts: sp.csr_matrix) -> None:
    """Raise `ShapeMismatch` if the table and the queries are over different words."""
    if q_counts.shape[1] != table.shape[0]:
        raise ShapeMismatch(
            f"queries are over {q_counts.shape[1]:,} words and the table over {table.shape[0]:,}: use the vocabulary "
            f"of the mates that the table was trained on"
        )


_BLOCK_WORDS = 256
_BLOCK_ENTRIES = 2_000_000


def fit_dice_table(q_counts: sp.csr_matrix, d_counts: sp.csr_matrix, n_candidates: int = 10) -> WordTable:
    """Return the table of words that co-occur most regularly in mates.

    DICE(f, e) = 2 n_fe / (n_f + n_e), where n_fe is the number of pairs that hold f on one side and e on the other, and
    n_f and n_e are the numbers of pairs that hold f or e. The ``n_candidates`` largest values of each f are kept (ties
    go to the lower word number) and divided by their sum.

    Parameters
    ----------
    q_counts, d_counts : csr_matrix, (n_pairs, D_q) and (n_pairs, D_d)
        Row r of both is a pair of mates.
    n_candidates : int
        Number of translations kept for each word, at least 1.

    Raises
    ------
    ConfigError
        If ``n_candidates`` is below 1.
    TrainingError
        If there is no pair.
    """
    if n_candidates < 1:
        raise ConfigError(f"n_candidates is {n_candidates}: keep at least 1 translation per word")
    left, right = _mates(q_counts, d_counts)
    source, target = binary(left), binary(right)
    n_f = np.bincount(source.indices, minlength=source.shape[1])
    n_e = np.bincount(target.indices, minlength=target.shape[1])
    by_word = source.T.tocsr()
    blocks = []
    for start in range(0, by_word.shape[0], _BLOCK_WORDS):
        together = (by_word[start : start + _BLOCK_WORDS] @ target).tocsr()
        sizes = n_f[start + row_of(together)] + n_e[together.indices]
        blocks.append(_first_of_rows(with_data(together, 2.0 * together.data / sizes), n_candidates))
    table = sp.vstack(blocks, format="csr")
    return WordTable(with_data(table, shares(table.data, row_of(table))))


def fit_ibm_table(
    q_counts: sp.csr_matrix, d_counts: sp.csr_matrix, n_candidates: int = 20, n_iterations: int = 5
) -> WordTable:
    """Return t(e|f) of IBM model 1 by EM, among the DICE candidates of each word.

    Every word e of a document is a translation of one word f of its mate, with equal probability:
    r(f|e, pair) = x_f t(e|f) / sum_f' x_f' t(e|f'); t(e|f) prop. sum over pairs of y_e r(f|e, pair); rows sum to 1.
    Unlike with DICE, a word e that one word f explains well is not assigned to others. EM starts from equal t; nothing
    is random.

    Parameters
    ----------
    q_counts, d_counts, n_candidates
        As in `fit_dice_table`.
    n_iterations : int
        Number of EM steps, at least 1.

    Raises
    ------
    ConfigError
        If ``n_iterations`` or ``n_candidates`` is below 1.
    TrainingError
        If there is no pair.

    Source: Brown et al. 1993, model 1, without the empty word and over bags of words; spec B15 (c).
    """
    if n_iterations < 1:
        raise ConfigError(f"n_iterations is {n_iterations}: it must be at least 1")
    left, right = _mates(q_counts, d_counts)
    table = fit_dice_table(left, right, n_candidates).probabilities
    table.sort_indices()
    entry, word, times, seen = _co_occurrences(left, right, table)
    rows = row_of(table)
    t: Float64 = np.ones(table.nnz)
    for _ in range(n_iterations):
        weight = times * t[entry]
        t = np.bincount(entry, seen * shares(weight, word), minlength=table.nnz).astype(np.float64)
        t = shares(t, rows)
    return WordTable(with_data(table, t))


def _co_occurrences(
    left: sp.csr_matrix, right: sp.csr_matrix, table: sp.csr_matrix
) -> tuple[Int64, Int64, Float64, Float64]:
    """Return the co-occurrences of a word f and a candidate e of f in a pair, as four arrays with one entry each.

    The number of (f, e) in the table, the number of (pair, e) among the stored words on the right, x_f and y_e.
    """
    width = right.shape[1]
    keys = row_of(right) * width + right.indices
    sizes = np.diff(table.indptr)[left.indices]
    ends = np.cumsum(sizes)
    pair_of = row_of(left)
    parts = []
    start = 0
    while start < left.nnz:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _BLOCK_ENTRIES)))
        held = np.repeat(np.arange(start, stop), sizes[start:stop])
        offset = np.arange(len(held)) - (ends[held] - sizes[held] - before)
        entry = table.indptr[left.indices[held]].astype(np.int64) + offset
        wanted = pair_of[held] * width + table.indices[entry]
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        matched = keys[place] == wanted
        parts.append((entry[matched], place[matched], left.data[held[matched]], right.data[place[matched]]))
        start = stop
    entries, words, times, seen = (np.concatenate([part[k] for part in parts]) for k in range(4))
    return entries, words, times, seen


def _mates(q_counts: sp.csr_matrix, d_counts: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Return both sides after checking: equal numbers of rows, at least one pair with words, sorted ids."""
    check_pairs(q_counts, d_counts)
    left, right = check_counts(q_counts, "q_counts"), check_counts(d_counts, "d_counts")
    if not (np.diff(left.indptr).astype(bool) & np.diff(right.indptr).astype(bool)).any():
        raise TrainingError("there is no pair of mates with words on both sides: a table is trained on such pairs")
    left.sort_indices()
    right.sort_indices()
    return left, right


def _first_of_rows(rows: sp.csr_matrix, n: int) -> sp.csr_matrix:
    """Return the n largest values of each row, ties by lower column; columns are ascending."""
    row = row_of(rows)
    order = np.lexsort((rows.indices, -rows.data, row))
    rank = np.arange(rows.nnz) - rows.indptr[row]  # position within the row, because the order keeps rows together
    kept = np.sort(order[rank < n])
    out = sp.csr_matrix((rows.data[kept], (row[kept], rows.indices[kept])), shape=rows.shape)
    out.sort_indices()
    return out


@dataclass(frozen=True, eq=False)
class Turned:
    """Score f(d, q): queries and documents exchange their roles."""

    scorer: Scorer
    """f."""

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        return self.scorer.score_matrix(d_rows, q_rows).T

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of query r with document r, (n,) float32."""
        return self.scorer.score_pairs(d_rows, q_rows)


def fit_translated_likelihood(
    q_counts: sp.csr_matrix, d_counts: sp.csr_matrix, *, lam: float = 0.4, n_candidates: int = 40, n_iterations: int = 5
) -> Mix:
    """Return the mean of the likelihoods per word of both texts, each as a translation of the other.

    f(q, d) = (1 / |q'|) sum_e q'_e log(p(e|d) / P_e), with q' the word-by-word translation of q by model 1,
    p(e|d) = (1 - lam) x_e / |d| + lam P_e, and P the training collection; g is the same from d to q. Rows are counts.
    Unlike in a cosine, every missing rare word lowers the score of a document.

    Row r of both matrices is a pair of mates; lam is above 0 and at most 1. Other arguments and errors are as in
    `fit_ibm_table`.

    Source: ours; parts from spec B15 (c) and B19.
    """
    if not 0.0 < lam <= 1.0:
        raise ConfigError(
            f"lam is {lam!r}: it must be above 0, because likelihoods of -inf cannot be added, and at most 1"
        )
    forward, backward = (
        TranslatedQueries(
            fit_ibm_table(source, target, n_candidates, n_iterations), fit_language_model(target, lam, per_word=True)
        )
        for source, target in ((q_counts, d_counts), (d_counts, q_counts))
    )
    return Mix((forward, Turned(backward)), (0.5, 0.5))
