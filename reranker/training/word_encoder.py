"""Word vectors that give a query the vector that a text encoder would give it, learned without the encoder.

A text encoder has computed a vector e of each document. With a_d the unit tf-idf row of a text of document d, and μ the
mean vector, the table U with one row a word is the ridge regression

    U = argmin  sum_d |a_d U - (e_d - μ)|² + w sum_q |a_q U - t_q|² + λ |U|²

Each document appears with its whole text and with its shortest field (its title). Training queries appear with t_q, the
weighted mean of (e - μ) of their relevant documents: their labels are part of the same equation, so no step size has to
be found. The equation is solved by conjugate gradients, preconditioned by its diagonal, for all columns at once.

If the text encoder can be called during training, training queries also appear with their own vectors e_q - μ.

Little is known about words of few documents: λ keeps their vectors short. With the text encoder's vectors E0 of single
words, λ |U - m E0|² takes the place of λ |U|², so that such words keep what is known of them. The factor m is fitted by
ridge regression of a_d E0 to e_d - μ. Held-out documents decide whether E0 is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Float64, Int64
from reranker.encoders import SentenceEncoder
from reranker.errors import InputError
from reranker.evaluation import standard_error
from reranker.kernels.rows import Rows, embed_rows
from reranker.models.vector_field import VectorField
from reranker.text.rows import combine, row_of
from reranker.training.given_vectors import GivenVectors
from reranker.training.problem import QuerySet
from reranker.training.reading import TrainingCorpus
from reranker.training.training_set import TrainingSet
from reranker.training.word_vectors import MAX_WORDS, PriorWords

RIDGES: Final = (10.0, 3.0, 1.0)
"""Values of λ that are tried, the largest first: each solution starts from the one before."""
LABEL_WEIGHT: Final = 2.0
"""w: a training query counts as much as two texts of documents.

Measured on nfcorpus, cranfield, cisi and wikimedia_discernatron, .5 to 4 are within .004 MAP of each other.
"""
QUERY_WEIGHT: Final = 1.0
"""Weight of a training query with its own vector: it counts as one text of a document."""
N_STEPS: Final = 10
"""Steps of conjugate gradients; more of them change MAP by less than .001."""
MAP_RIDGE: Final = 1.0
"""λ of the factor of the encoder's word vectors, whose mean squared length is 1."""
_HELD_OUT = 0.1  # of at least `MIN_VECTORS` documents: always one or more
_MAX_HELD_OUT = 2_000
_MAX_COMPARED = 20_000  # documents that λ is chosen on
_ROWS_A_PART = 2**12


class _Texts(NamedTuple):
    """Unit rows of texts and the vectors that they should have."""

    rows: Rows
    """(n, n_words)."""
    columns: Rows
    """The same, transposed."""
    targets: Float32
    """(n, K)."""


class TeacherVectors(NamedTuple):
    """Vectors of queries, in the space of documents' stored vectors."""

    row_of: Mapping[str, int]
    """Query id to row."""
    vectors: Float32
    """(n, K) float32."""


@dataclass(frozen=True, eq=False)
class EncoderProblem:
    """The documents of a corpus and their vectors, ready for word vectors to be learned."""

    field: VectorField
    vectors: Float32
    """The stored part of each document, (n_documents, K) float32; 0 for those without a vector."""
    has_vector: Int64
    """Row numbers of the documents that have one, ascending."""
    n_words: int
    """Words that have vectors."""
    ridge: float
    """λ."""
    texts: tuple[_Texts, ...]
    U: Float32
    """The solution without training queries, (n_words, K) float32."""
    likeness: Float32
    """Cosine of held-out documents' vectors and those of their shortest fields, (n_held_out,) float32."""
    prior: Float32 | None = None
    """Word vectors that the solution is pulled towards, (n_words, K) float32; None: 0."""
    notes: tuple[str, ...] = ()
    """Sentences about the prior, for people."""
    asked: TeacherVectors | None = None
    """Vectors of training queries by the text encoder; None if it is out of reach."""

    def taught(self, queries: QuerySet, data: TrainingCorpus, evidence: TrainingSet) -> Float32:
        """Return the solution with the queries of some evidence, (n_words, K) float32."""
        parts = (self._labels(queries, data, evidence), self._vectors_of(queries, evidence))
        texts = [part for part in parts if part is not None]
        return solved([*self.texts, *texts], self.ridge, self.U, self.prior) if texts else self.U

    def _vectors_of(self, queries: QuerySet, evidence: TrainingSet) -> _Texts | None:
        """Return the rows of the queries of some evidence that the text encoder was given, at their weight."""
        row_of = {} if self.asked is None else self.asked.row_of
        known = [query for query in evidence.query_ids if query in row_of and query in queries.row_of]
        if self.asked is None or not known:
            return None
        root = np.float32(np.sqrt(QUERY_WEIGHT))
        vectors = self.asked.vectors[[row_of[query] for query in known]]
        rows = queries.rows.learned[[queries.row_of[query] for query in known]]
        return _texts(rows * root, vectors * root, self.n_words)

    def _labels(self, queries: QuerySet, data: TrainingCorpus, evidence: TrainingSet) -> _Texts | None:
        """Return the rows of the queries that have a relevant document with a vector, at their weight."""
        stated = evidence.preferences
        query, document = stated.links.numbered(queries.row_of, data.row_of)
        known = np.zeros(len(self.vectors) + 1, bool)
        known[self.has_vector] = True
        used = (query >= 0) & known[document] & (stated.weight > 0) & np.isfinite(stated.weight)
        if not used.any():
            return None
        asked, place = np.unique(query[used], return_inverse=True)
        weights = np.asarray(stated.weight, np.float64)[used]
        shares = weights / np.bincount(place, weights)[place]
        mean = sp.csr_matrix((shares, (place, document[used])), shape=(len(asked), len(self.vectors)))
        root = np.float32(np.sqrt(LABEL_WEIGHT))
        return _texts(queries.rows.learned[asked] * root, (mean @ self.vectors).astype(np.float32) * root, self.n_words)


def encoder_problem(
    field: VectorField,
    given: GivenVectors,
    data: TrainingCorpus,
    rng: np.random.Generator,
    prior: PriorWords | None = None,
) -> EncoderProblem:
    """Return the problem of a corpus, with λ chosen on held-out documents, and its solution without queries.

    λ is the value of `RIDGES` by which the shortest fields of held-out documents have vectors most like those of their
    documents (mean cosine). The prior is used if these are more alike with it, by more than one standard error.
    """
    vectors = given.projected(field)
    n_words = min(len(data.tfidf.vocabulary), MAX_WORDS)
    views = _views(data)
    order = rng.permutation(given.documents)[:_MAX_COMPARED]
    n_held = min(int(_HELD_OUT * len(order)), _MAX_HELD_OUT)
    held, kept = np.sort(order[:n_held]), np.sort(order[n_held:])
    of_kept = [_texts(view[kept], vectors[kept], n_words) for view in views]
    asked = (views[-1][held], vectors[held])
    ridge, likeness = _best_ridge(of_kept, *asked, np.zeros((n_words, field.n_dims), np.float32))
    texts = tuple(_texts(view[given.documents], vectors[given.documents], n_words) for view in views)
    start, notes = None, tuple[str, ...]()
    if prior is not None:
        other, likeness_of_prior = _best_ridge(of_kept, *asked, mapped_prior(prior, of_kept, n_words, field))
        gains = np.asarray(likeness_of_prior - likeness, np.float64)
        is_used = bool(gains.mean() > standard_error(gains))
        notes = (
            f"the encoder's word vectors: {len(prior.rows):,} of {n_words:,} words have one; they are "
            f"{'used' if is_used else 'left out'}: the cosine of held-out documents and their titles is "
            f"{likeness_of_prior.mean():.4f} with them, {likeness.mean():.4f} without",
        )
        if is_used:
            ridge, likeness, start = other, likeness_of_prior, mapped_prior(prior, texts, n_words, field)
    U = solved(texts, ridge, np.zeros((n_words, field.n_dims), np.float32) if start is None else start, start)
    return EncoderProblem(field, vectors, given.documents, n_words, ridge, texts, U, likeness, start, notes)


def teacher_vectors(encoder: SentenceEncoder, field: VectorField, texts: Mapping[str, str]) -> TeacherVectors:
    """Return the vectors that a text encoder gives queries (id to text), as those of documents are stored."""
    vectors = encoder.encode(list(texts.values()))
    check_dims(field, vectors.shape[1])
    return TeacherVectors({query: row for row, query in enumerate(texts)}, field.project(vectors))


def check_dims(field: VectorField, n_dims: int) -> None:
    """Raise `InputError` unless a text encoder's vectors have as many numbers as the documents'."""
    if n_dims != field.n_given:
        raise InputError(
            f"the text encoder gives vectors of {n_dims} numbers, and those of the documents have {field.n_given}: "
            "name the encoder that computed them"
        )


def mapped_prior(prior: PriorWords, texts: Sequence[_Texts], n_words: int, field: VectorField) -> Float32:
    """Return the encoder's word vectors as documents' are stored, (n_words, K) float32; 0 for words without one.

    Their mean is removed, and their length is fitted.
    """
    centred = prior.vectors.astype(np.float64) - prior.vectors.mean(axis=0, dtype=np.float64)
    check_dims(field, centred.shape[1])
    centred = centred @ field.axes.astype(np.float64)
    size = np.sqrt(np.mean(np.sum(centred**2, axis=1)))
    if not size > 0:  # one word, or words that are all equal
        return np.zeros((n_words, field.n_dims), np.float32)
    table = np.zeros((n_words, centred.shape[1]), np.float32)
    table[prior.rows] = centred / size
    gram, towards = MAP_RIDGE * field.n_dims, 0.0
    for part in texts:
        found = embed_rows(part.rows, table)
        gram += float(np.einsum("ij,ij->", found, found, dtype=np.float64))
        towards += float(np.einsum("ij,ij->", found, part.targets, dtype=np.float64))
    return np.asarray(table * (towards / gram), np.float32)


def solved(texts: Sequence[_Texts], ridge: float, start: Float32, prior: Float32 | None = None) -> Float32:
    """Return U of the least sum of squares, (n_words, K) float32, from a start.

    Parameters
    ----------
    texts : sequence
        Rows a and vectors t, each weighed by the root of its weight.
    ridge : float
        λ > 0.
    start : array
        U to start from, (n_words, K) float32; it is not changed.
    prior : array, optional
        U that λ pulls towards, (n_words, K) float32; None: 0.
    """
    inverse = (1 / _diagonal(texts, len(start), ridge)).astype(np.float32)[:, None]
    U = start.copy()
    residual = -np.float32(ridge) * (U if prior is None else U - prior)
    for part in texts:
        residual += embed_rows(part.columns, part.targets - embed_rows(part.rows, U))
    step = inverse * residual
    size = _column_sums(residual, step)
    for _ in range(N_STEPS):
        if not size.any():
            break
        change = np.float32(ridge) * step
        for part in texts:
            change += embed_rows(part.columns, embed_rows(part.rows, step))
        curvature = _column_sums(step, change)
        length = np.divide(size, curvature, out=np.zeros_like(size), where=curvature > 0).astype(np.float32)
        U += length * step
        change *= length
        residual -= change
        np.multiply(inverse, residual, out=change)
        before, size = size, _column_sums(residual, change)
        step *= np.divide(size, before, out=np.zeros_like(size), where=before > 0).astype(np.float32)
        step += change
    return U


def _best_ridge(
    texts: Sequence[_Texts], asked: sp.csr_matrix, vectors: Float32, prior: Float32
) -> tuple[float, Float32]:
    """Return the λ by which held-out texts have vectors most like those of their documents, and their cosines."""
    tried: dict[float, Float32] = {}
    start = prior
    for ridge in RIDGES:
        start = solved(texts, ridge, start, prior)
        found = embed_rows(asked, start)
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(vectors, axis=1)
        tried[ridge] = np.divide(
            np.einsum("ij,ij->i", found, vectors), lengths, out=np.zeros(len(lengths), np.float32), where=lengths > 0
        )
    best = max(tried, key=lambda ridge: float(tried[ridge].mean()))
    return best, tried[best]


def _views(data: TrainingCorpus) -> list[sp.csr_matrix]:
    """Return the unit rows of the whole texts, then those of the field with the fewest words, if there are several."""
    n_words = [float(field.sum()) for field in data.counts]
    rows = [data.tfidf.rows_of_counts(combine(data.counts, [1.0] * len(data.counts)))]
    filled = [place for place, n in enumerate(n_words) if n > 0]
    if len(filled) > 1:
        rows.append(data.tfidf.rows_of_counts(data.counts[min(filled, key=n_words.__getitem__)]))
    return rows


def _texts(rows: sp.csr_matrix, targets: Float32, n_words: int) -> _Texts:
    kept = rows.indices < n_words
    parts = (rows.data[kept], (row_of(rows)[kept], rows.indices[kept]))
    narrow = sp.csr_matrix(parts, shape=(rows.shape[0], n_words))
    return _Texts(_kernel_rows(narrow), _kernel_rows(narrow.T.tocsr()), targets)


def _kernel_rows(rows: sp.csr_matrix) -> Rows:
    rows.sort_indices()
    return Rows(rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data.astype(np.float32, copy=False))


def _diagonal(texts: Sequence[_Texts], n_words: int, ridge: float) -> Float64:
    diagonal = np.full(n_words, ridge)
    for part in texts:
        squares = part.rows.data.astype(np.float64) ** 2
        diagonal += np.bincount(part.rows.indices, squares, minlength=n_words)
    return diagonal


def _column_sums(left: Float32, right: Float32) -> Float64:
    """Return the inner product of each pair of columns, (K,) float64."""
    total = np.zeros(left.shape[1])
    for start in range(0, len(left), _ROWS_A_PART):
        block = slice(start, start + _ROWS_A_PART)
        total += np.einsum("ij,ij->j", left[block], right[block], dtype=np.float64)
    return total
