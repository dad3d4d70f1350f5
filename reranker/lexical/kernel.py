"""BM25 weights of postings, and the average precision of queries over them; reference: `tests.reference.lexical`.

Postings are laid out once and weighted again for every setting that is tried. Sums are computed in the order in which
they are written here, so results equal those of `reranker.text.rows` and `reranker.evaluation` bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from reranker.arrays import AnyArray, AnyInt, Bool, Float32, Float64, Int32, Int64, offsets_of

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
    words: tuple[int, int],
    weights: Float32,
) -> None:
    """Set the weights of the postings of some words.

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
    words : tuple of int
        The first of the words, and the one after the last.
    weights : array
        Weight of each posting, (n,) float32, changed in place.
    """
    n_fields = len(field_weights)
    for word in range(words[0], words[1]):
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
            weights[place] = np.float32(weight)


@njit(**_OPTIONS)
def _ranks(scores: Float32, documents: Int32) -> Int64:
    """Return the ranks of the given documents, ascending; documents are ranked by (-score, number)."""
    ranks = np.empty(len(documents), np.int64)
    for number in range(len(documents)):
        document = documents[number]
        score = scores[document]
        earlier, later = scores[:document], scores[document + 1 :]
        # Numbers of the width of a score are counted four times as fast as those of 64 bits.
        ahead = np.uint32(0)
        for other in range(len(earlier)):
            ahead += np.uint32(1) if earlier[other] >= score else np.uint32(0)
        for other in range(len(later)):
            ahead += np.uint32(1) if later[other] > score else np.uint32(0)
        ranks[number] = ahead + np.uint32(1)
    ranks.sort()
    return ranks


@njit(**_OPTIONS)
def _precision_of(ranks: Int64, depth: int) -> float:
    """Return the average precision to ``depth`` of relevant documents at these ranks, ascending."""
    total = 0.0
    for number in range(len(ranks)):
        if ranks[number] > depth:
            break
        total += (number + 1) / ranks[number]
    return float(total / len(ranks))


@njit(**_OPTIONS)
def _precision(scores: Float32, query: int, relevant: Int32, judged: Judged, depth: int) -> float:
    """Return a query's average precision to ``depth``; sets the scores of excluded documents to minus infinity."""
    for place in range(judged.excluded_offsets[query], judged.excluded_offsets[query + 1]):
        scores[judged.excluded[place]] = -np.inf
    precision: float = _precision_of(_ranks(scores, relevant), depth)
    return precision


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


class RankedPlaces(NamedTuple):
    """The documents that are ranked for each query, and the words that each shares with it.

    A place is a document of a query; the places of a query follow one another, its documents ascending.
    """

    queries: Int64
    """First place of each query, and the end of the last, (n_queries + 1,) int64."""
    relevant: Bool
    """Whether the document at a place is relevant, (n_places,) bool."""
    offsets: Int64
    """Start of the shared words of each place, and the end of the last, (n_places + 1,) int64."""
    words: Int32
    """Word numbers in the order of the query's words, (n,) int32."""
    postings: Int32
    """Number of the posting of each shared word, (n,) int32."""


@njit(**_OPTIONS)
def _count_shared(
    offsets: AnyInt, words: AnyInt, postings: Postings, queries: Int64, documents: Int64, n_documents: int
) -> Int64:
    """Return the number of words that the document of each place shares with its query, (n_places,) int64."""
    counts = np.zeros(len(documents), np.int64)
    place_of = np.full(n_documents, -1, np.int64)
    for query in range(len(queries) - 1):
        for place in range(queries[query], queries[query + 1]):
            place_of[documents[place]] = place
        for word in words[offsets[query] : offsets[query + 1]]:
            for document in postings.documents[postings.offsets[word] : postings.offsets[word + 1]]:
                place = place_of[np.uint32(document)]
                if place >= 0:
                    counts[np.uint64(place)] += 1
        for place in range(queries[query], queries[query + 1]):
            place_of[documents[place]] = -1
    return counts


@njit(**_OPTIONS)
def _fill_shared(
    offsets: AnyInt,
    words: AnyInt,
    postings: Postings,
    queries: Int64,
    documents: Int64,
    n_documents: int,
    starts: Int64,
    shared: Int32,
) -> None:
    """Set ``shared``, (2, n) int32, to the words and the numbers of the postings that `_count_shared` has counted.

    Those of a place begin at its ``starts``.
    """
    ends = starts.copy()
    place_of = np.full(n_documents, -1, np.int64)
    for query in range(len(queries) - 1):
        for place in range(queries[query], queries[query + 1]):
            place_of[documents[place]] = place
        for word in words[offsets[query] : offsets[query + 1]]:
            for number in range(postings.offsets[word], postings.offsets[word + 1]):
                place = place_of[np.uint32(postings.documents[number])]
                if place >= 0:
                    shared[0, ends[place]], shared[1, ends[place]] = word, number
                    ends[place] += 1
        for place in range(queries[query], queries[query + 1]):
            place_of[documents[place]] = -1


InParts = Callable[[Callable[[int, int], Any]], list[Any]]
"""Calls a function with the bounds (first, end) of several parts of the queries, and returns the results in order."""


def collect_places(
    offsets: AnyInt, words: AnyInt, postings: Postings, chosen: Bool, relevant: Bool, in_parts: InParts
) -> RankedPlaces:
    """Return the words that chosen documents share with their queries.

    Parameters
    ----------
    offsets, words : array
        Words of the queries as in CSR, (n_queries + 1,) and (m,).
    postings : Postings
        Inverted lists.
    chosen, relevant : array
        Which documents are ranked for each query and which are relevant to it, (n_queries, n_documents) bool.
    in_parts : callable
        Shares the work among the cores.
    """
    documents = np.nonzero(chosen)[1].astype(np.int64)
    queries = offsets_of(np.count_nonzero(chosen, axis=1))

    def of_part(first: int, last: int) -> tuple[AnyInt, AnyInt, Postings, Int64, Int64, int]:
        places = slice(queries[first], queries[last])
        numbers = queries[first : last + 1] - queries[first]
        return offsets[first : last + 1], words, postings, numbers, documents[places], chosen.shape[1]

    counts: list[Int64] = in_parts(lambda first, last: _count_shared(*of_part(first, last)))
    starts = offsets_of(np.concatenate(counts))
    shared = np.empty((2, starts[-1]), np.int32)

    def fill(first: int, last: int) -> None:
        own = starts[queries[first] : queries[last] + 1]
        _fill_shared(*of_part(first, last), own - own[0], shared[:, own[0] : own[-1]])

    in_parts(fill)
    return RankedPlaces(queries, relevant[chosen], starts, *shared)


@njit(**_OPTIONS)
def candidate_precision(
    offsets: AnyInt,
    words: AnyInt,
    values: Float32,
    candidates: RankedPlaces,
    weights: Float32,
    chosen: Int64,
    n_words: int,
    depth: int,
) -> Float64:
    """Return the average precision of the ``chosen`` queries, as `average_precision`, among their candidates only.

    ``offsets``, ``words`` and ``values`` are the rows of all queries.
    """
    result = np.zeros(len(chosen), np.float64)
    asked = np.zeros(n_words, np.float32)
    scores = np.empty(0, np.float32)
    for row in range(len(chosen)):
        query = chosen[row]
        first, last = candidates.queries[query], candidates.queries[query + 1]
        relevant = np.flatnonzero(candidates.relevant[first:last]).astype(np.int32)
        if len(relevant) == 0:
            continue
        for entry in range(offsets[query], offsets[query + 1]):
            asked[words[entry]] = values[entry]
        if len(scores) < last - first:
            scores = np.empty(last - first, np.float32)
        for place in range(first, last):
            total = np.float32(0)
            begin, end = candidates.offsets[place], candidates.offsets[place + 1]
            of_words, numbers = candidates.words[begin:end], candidates.postings[begin:end]
            for shared in range(end - begin):
                total += asked[np.uint32(of_words[shared])] * weights[np.uint32(numbers[shared])]
            scores[place - first] = total
        for entry in range(offsets[query], offsets[query + 1]):
            asked[words[entry]] = np.float32(0)
        result[row] = _precision_of(_ranks(scores[: last - first], relevant), depth)
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
