"""BM25 weights of postings, and the average precision of queries over them; reference: `tests.reference.lexical`.

Postings are laid out once and weighted again for every setting that is tried. Sums are computed in the order in which
they are written here, so results equal those of `reranker.text.rows` and `reranker.evaluation` bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from reranker.arrays import AnyArray, AnyInt, Float32, Float64, Int32, Int64

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "boundscheck": False}


class Postings(NamedTuple):
    """Inverted lists: the documents of each word, ascending."""

    offsets: Int64
    """Start of the list of each word, and the end of the last, (n_words + 1,) int64."""
    documents: Int32
    """Document number of each posting, (n,) int32."""
    parts: Float32
    """Count (or weight) of the word in each field of the document, (n_fields, n) float32; 0 if the field has it not."""


class Judged(NamedTuple):
    """Relevant and excluded documents of each query; rows as in CSR, documents ascending."""

    relevant_offsets: AnyInt
    relevant: Int32
    excluded_offsets: AnyInt
    excluded: Int32


@njit(**_OPTIONS)
def collect_postings(indptr: AnyInt, columns: AnyInt, values: Float32, asked: AnyArray, n_fields: int) -> Postings:
    """Return the postings of the words that are asked for.

    Parameters
    ----------
    indptr, columns, values : array
        Word counts of the documents as in CSR; column ``field * n_words + word`` is a word of a field.
    asked : array
        Whether the postings of each word are wanted, (n_words,) bool.
    n_fields : int
        Number of fields.
    """
    n_words, n_documents = len(asked), len(indptr) - 1
    latest = np.full(n_words, -1, np.int32)
    offsets = np.zeros(n_words + 1, np.int64)
    for document in range(n_documents):
        for column in columns[indptr[document] : indptr[document + 1]]:
            word = column % n_words
            offsets[word + 1] += asked[word] and latest[word] != document
            latest[word] = document
    for word in range(n_words):
        offsets[word + 1] += offsets[word]
    ends, latest[:] = offsets[:-1].copy(), -1
    documents = np.empty(offsets[-1], np.int32)
    parts = np.zeros((n_fields, offsets[-1]), np.float32)
    for document in range(n_documents):
        for entry in range(indptr[document], indptr[document + 1]):
            field, word = divmod(columns[entry], n_words)
            if asked[word]:
                if latest[word] != document:
                    documents[ends[word]] = document
                    ends[word] += 1
                parts[field, ends[word] - 1] = values[entry]
            latest[word] = document
    return Postings(offsets, documents, parts)


@njit(**_OPTIONS)
def posting_weights(
    postings: Postings,
    norms: Float64,
    covers: Float32,
    field_weights: Float64,
    idf: Float64,
    k1: float,
    first: int,
    last: int,
) -> Float32:
    """Return the weights of the postings of the words from ``first`` up to ``last``, excluded, (n,) float32.

    A weight is idf_i ((k1 + 1) tf / (k1 + tf) + cover), with tf = sum_k w_k parts_k / norms_k,d; cover is the sum of
    covers_k,d over the fields k that hold the word.

    Parameters
    ----------
    postings : Postings
        The postings to weight.
    norms : array
        Length norms B_k of the documents, (n_fields, n_documents).
    covers : array
        Coverage per unit of idf in each field, (n_fields, n_documents); (0, 0) for no coverage.
    field_weights : array
        w_k, (n_fields,).
    idf : array
        idf of each word, (n_words,).
    k1 : float
        Saturation.
    first, last : int
        Range of word numbers.
    """
    n_fields, start = len(field_weights), postings.offsets[first]
    weights = np.empty(postings.offsets[last] - start, np.float32)
    for word in range(first, last):
        scale = idf[word] * (k1 + 1.0)
        for place in range(postings.offsets[word], postings.offsets[word + 1]):
            document = postings.documents[place]
            total = 0.0
            for field in range(n_fields):
                if postings.parts[field, place]:
                    part = np.float32(postings.parts[field, place] / norms[field, document])
                    total += np.float64(part) * field_weights[field]
            tf = np.float64(np.float32(total))
            weight = scale * tf / (k1 + tf)
            if len(covers):
                total = 0.0
                for field in range(n_fields):
                    if postings.parts[field, place]:
                        total += np.float64(covers[field, document])
                weight += np.float64(np.float32(total)) * idf[word]
            weights[place - start] = np.float32(weight)
    return weights


@njit(**_OPTIONS)
def _ranks(scores: Float32, documents: Int32) -> Int64:
    """Return the ranks of the given documents, ascending; documents are ranked by (-score, number)."""
    ranks = np.empty(len(documents), np.int64)
    for number in range(len(documents)):
        document = documents[number]
        score = scores[document]
        ahead = 0
        for other in range(document):
            ahead += scores[other] >= score
        for other in range(document + 1, len(scores)):
            ahead += scores[other] > score
        ranks[number] = ahead + 1
    ranks.sort()
    return ranks


@njit(**_OPTIONS)
def _precision(scores: Float32, query: int, relevant: Int32, judged: Judged, depth: int) -> float:
    """Return a query's average precision to ``depth``; sets the scores of excluded documents to minus infinity."""
    for place in range(judged.excluded_offsets[query], judged.excluded_offsets[query + 1]):
        scores[judged.excluded[place]] = -np.inf
    ranks = _ranks(scores, relevant)
    total = 0.0
    for number in range(len(ranks)):
        if ranks[number] > depth:
            break
        total += (number + 1) / ranks[number]
    return total / len(ranks)


@njit(**_OPTIONS)
def average_precision(
    offsets: AnyInt,
    words: AnyInt,
    values: Float32,
    postings: Postings,
    weights: Float32,
    judged: Judged,
    n_documents: int,
    depth: int,
) -> Float64:
    """Return the average precision of each query over the first ``depth`` ranks, (n_queries,) float64.

    The score of a document is the sum, over the query's words in their order, of the query's value times the posting's
    weight. All documents except the excluded ones are ranked by (-score, number). Relevant documents below ``depth``,
    and queries without relevant documents, contribute 0.

    Parameters
    ----------
    offsets, words, values : array
        Query rows as in CSR, (n_queries + 1,), (m,) and (m,); words are word numbers of ``postings``.
    postings : Postings
        Inverted lists.
    weights : array
        Weight of each posting, (n,) float32.
    judged : Judged
        One row per query; no document is both relevant and excluded.
    n_documents : int
        Number of documents.
    depth : int
        Number of ranks that count.
    """
    n_queries = len(offsets) - 1
    result = np.zeros(n_queries, np.float64)
    scores = np.empty(n_documents, np.float32)
    for query in range(n_queries):
        relevant = judged.relevant[judged.relevant_offsets[query] : judged.relevant_offsets[query + 1]]
        if len(relevant) == 0:
            continue
        scores[:] = np.float32(0)
        for entry in range(offsets[query], offsets[query + 1]):
            value, begin, end = values[entry], postings.offsets[words[entry]], postings.offsets[words[entry] + 1]
            documents, of_documents = postings.documents[begin:end], weights[begin:end]
            for place in range(len(documents)):
                # An unsigned index skips the check for negative (from the end) indices: three times as fast.
                scores[np.uint32(documents[place])] += value * of_documents[place]
        result[query] = _precision(scores, query, relevant, judged, depth)
    return result


@njit(**_OPTIONS)
def blended_average_precision(
    learned: Float32, lexical: Float32, scale: np.float32, identity: np.float32, judged: Judged, depth: int
) -> Float64:
    """Return the average precision by scale * learned + identity * lexical scores, (n_queries,) float64.

    ``learned`` and ``lexical`` are (n_queries, n_documents) float32; the rest is as in `average_precision`.
    """
    n_queries, n_documents = learned.shape
    result = np.zeros(n_queries, np.float64)
    scores = np.empty(n_documents, np.float32)
    for query in range(n_queries):
        relevant = judged.relevant[judged.relevant_offsets[query] : judged.relevant_offsets[query + 1]]
        if len(relevant) == 0:
            continue
        for document in range(n_documents):
            scores[document] = scale * learned[query, document] + identity * lexical[query, document]
        result[query] = _precision(scores, query, relevant, judged, depth)
    return result
