"""Word counts of documents and queries, from which every lexical baseline is made.

TF-IDF: the cosine of tf-idf rows, with a weight for each field (spec B01).

BM25 over the weighted sum of the fields (spec B20).

Latent semantic indexing, alone and mixed with TF-IDF (spec B03, B04).

The leading singular vectors of sparse rows, by the solver that suits their size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.evaluation.ranking import InnerProducts, select_columns, used_columns
from reranker.models.projection import unit
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


MAX_WORDS = 30_000
"""Words that the decomposition sees, the most frequent ones (spec B03)."""


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


Doubles = npt.NDArray[np.float64]

GRAM_LIMIT = 6_000
"""Shorter side up to which a dense Gram matrix (288 MB) is decomposed where many of its vectors are wanted."""
GRAM_SHARE = 0.1
"""Share of the shorter side from which on the dense solver is the faster one."""
MAX_GRAM_WORDS = 20_000_000
"""Columns that dense vectors over words may have."""
RANK_TOLERANCE = 1e-5
"""A singular value below this share of the largest counts as 0: the Gram matrix resolves squares, 1e-10 of them."""


@dataclass(frozen=True, eq=False)
class SingularVectors:
    """The first right singular vectors of X (less its column means where ``centred``): X = P S Q^T.

    Parameters
    ----------
    values : (k,) float64
        S, falling.
    words : (n_words, k) float64
        Q, orthonormal columns, each with its entry of largest magnitude positive.
    """

    values: Doubles
    words: Doubles


def singular_vectors(
    rows: sp.csr_matrix, n_dims: int, rng: np.random.Generator, *, centred: bool = False, fewer: bool = False
) -> SingularVectors:
    """Return the first ``n_dims`` right singular vectors of sparse rows.

    Either an exact eigen-decomposition of the Gram matrix of the shorter side (LAPACK), where that side is below
    6,000 and more than a tenth of its vectors are wanted; or ARPACK with a start drawn from ``rng``. Both give the
    same answer for the same seed.

    Parameters
    ----------
    rows : csr_matrix (n_rows, n_words)
    n_dims : int
    rng : Generator
    centred : bool
        Subtract the mean row first, without storing the dense result.
    fewer : bool
        Return fewer vectors where the rank is lower, instead of refusing.

    Raises
    ------
    ConfigError
        If ``n_dims`` is below 1 or above the rank (unless ``fewer``).
    InputError
        If a value is NaN or infinite.
    ShapeMismatch
        If the rows are as wide as an open vocabulary.
    """
    if rows.shape[1] > MAX_GRAM_WORDS:
        raise ShapeMismatch(
            f"rows {rows.shape[1]:,} columns wide are those of an open vocabulary; keep the columns of a vocabulary of "
            f"at most {MAX_GRAM_WORDS:,} words"
        )
    shorter = min(rows.shape)
    if n_dims < 1 or (n_dims > shorter and not fewer):
        raise ConfigError(f"{n_dims} dimensions of {rows.shape[0]} texts over {rows.shape[1]} words cannot be had; "
                          f"ask for 1 to {shorter}")  # fmt: skip
    if not np.isfinite(rows.data).all():
        raise InputError("a row holds NaN or infinity; make the tf-idf rows again")
    wanted = min(n_dims, shorter)
    exact = rows.astype(np.float64).tocsr()
    mean = np.asarray(exact.mean(axis=0)).ravel() if centred else np.zeros(rows.shape[1])
    if shorter <= GRAM_LIMIT and (wanted >= GRAM_SHARE * shorter or shorter <= 64):
        values, words = _by_gram(exact, mean, wanted)
    else:
        values, words = _by_arpack(exact, mean, wanted, rng)
    kept = values > RANK_TOLERANCE * values[0]
    if (not kept.all() and not fewer) or values[0] == 0.0:
        raise ConfigError(
            f"{n_dims} dimensions cannot be had: the rows have rank {int(kept.sum())}; ask for at most as many"
        )
    return SingularVectors(values[kept], _signed(words[:, kept]))


def _by_gram(rows: sp.csr_matrix, mean: Doubles, n_dims: int) -> tuple[Doubles, Doubles]:
    """Return values (falling) and vectors from the eigenvectors of X X^T or X^T X, whichever is smaller."""
    n, n_words = rows.shape
    by_words = n_words <= n
    gram = np.asarray((rows.T @ rows if by_words else rows @ rows.T).todense())
    if by_words:
        gram -= n * np.outer(mean, mean)
    else:
        across = rows @ mean
        gram += mean @ mean - across[:, None] - across[None, :]
    order = len(gram)
    squares, vectors = scipy.linalg.eigh(gram, subset_by_index=[order - n_dims, order - 1], overwrite_a=True)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    vectors = vectors[:, ::-1]
    if by_words:
        return values, vectors
    words = rows.T @ vectors - np.outer(mean, vectors.sum(axis=0))
    return values, np.divide(words, values, out=np.zeros_like(words), where=values > 0.0)


def _by_arpack(rows: sp.csr_matrix, mean: Doubles, n_dims: int, rng: np.random.Generator) -> tuple[Doubles, Doubles]:
    """Return values (falling) and vectors by the implicitly restarted Lanczos method."""
    ones = np.ones(rows.shape[0])
    centred = spla.LinearOperator(
        rows.shape,
        matvec=lambda v: rows @ v.ravel() - ones * (mean @ v.ravel()),
        rmatvec=lambda u: rows.T @ u.ravel() - mean * u.sum(),
        matmat=lambda v: rows @ v - np.outer(ones, mean @ v),
        rmatmat=lambda u: rows.T @ u - np.outer(mean, u.sum(axis=0)),
        dtype=np.float64,
    )
    operator = centred if mean.any() else rows
    _, values, words = spla.svds(operator, k=n_dims, v0=rng.standard_normal(min(rows.shape)))
    order = np.argsort(-values, kind="stable")
    return np.asarray(values, dtype=np.float64)[order], np.asarray(words).T[:, order]


def _signed(words: Doubles) -> Doubles:
    """Return the columns with the sign that makes their entry of largest magnitude positive."""
    largest = words[np.abs(words).argmax(axis=0), np.arange(words.shape[1])]
    return np.asarray(words * np.where(largest < 0.0, -1.0, 1.0), dtype=np.float64)
