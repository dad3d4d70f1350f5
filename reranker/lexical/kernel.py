"""BM25 weights on postings, and the average precision of queries over them; defined in `tests.reference.lexical`.

Postings are laid out once and weighed anew for every setting that is tried. Sums are made in the order in which they
are written, so the results are those of `reranker.text.rows` and `reranker.evaluation`, bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from reranker.arrays import AnyInt, Float32, Float64, Int32, Int64

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "boundscheck": False}


class Postings(NamedTuple):
    """Where words stand: documents ascend within a word.

    ``offsets`` (n_words + 1,) int64, ``documents`` (n,) int32, and ``parts`` (n_fields, n) float32: what each field
    says of the word in the document (how often it stands there, or its weight), 0 where it says nothing.
    """

    offsets: Int64
    documents: Int32
    parts: Float32


class Judged(NamedTuple):
    """For each query the documents to find, and those that take no part; rows as in CSR, documents ascending."""

    relevant_offsets: AnyInt
    relevant: Int32
    excluded_offsets: AnyInt
    excluded: Int32


@njit(**_OPTIONS)
def posting_weights(
    postings: Postings, norms: Float64, covers: Float32, field_weights: Float64, idf: Float64, k1: float
) -> Float32:
    """Return idf_i ((k1 + 1) tf / (k1 + tf) + cover) of every posting, (n,) float32.

    tf = sum_k w_k parts_k / norms_k,d, and cover is the sum of covers_k,d over the fields that hold the word.
    ``norms`` (n_fields, n_documents) are B_k of the documents, ``covers`` (n_fields, n_documents) what each idf counts
    in a covered field, (0, 0) for none; ``field_weights`` (n_fields,) are w_k, ``idf`` (n_words,).
    """
    n_fields = len(field_weights)
    weights = np.empty(len(postings.documents), np.float32)
    for word in range(len(postings.offsets) - 1):
        scale = idf[word] * (k1 + 1.0)
        for place in range(postings.offsets[word], postings.offsets[word + 1]):
            document = postings.documents[place]
            total = 0.0
            for field in range(n_fields):
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
            weights[place] = np.float32(weight)
    return weights


@njit(**_OPTIONS)
def _ranks(scores: Float32, documents: Int32) -> Int64:
    """Return the ranks of some documents by (-score, number), ascending."""
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
    """Return a query's average precision, relevant documents below ``depth`` adding 0; changes excluded scores."""
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

    A document's score is the sum over the query's words, in their order, of the query's value times the posting's
    weight. Ranked are all but the excluded by (-score, number); deeper relevant ones, and queries without any, add 0.

    ``offsets`` (n_queries + 1,), ``words`` and ``values`` (m,) are the queries' rows, words numbering ``postings``;
    ``weights`` (n,) are of each posting; ``judged`` has one row a query, no document both relevant and excluded.
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
                # Without a sign no index is looked at for counting from the end: three times as fast.
                scores[np.uint32(documents[place])] += value * of_documents[place]
        result[query] = _precision(scores, query, relevant, judged, depth)
    return result


@njit(**_OPTIONS)
def blended_average_precision(
    learned: Float32, lexical: Float32, scale: np.float32, identity: np.float32, judged: Judged, depth: int
) -> Float64:
    """Return `average_precision`, (n_queries,), by scale * learned + identity * lexical, (n_queries, n_documents)."""
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
