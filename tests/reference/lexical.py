"""Average precision over postings in numpy: the definition that the compiled kernel must agree with."""

from __future__ import annotations

import numpy as np

from reranker.arrays import AnyInt, Float32, Float64
from reranker.lexical.kernel import Judged, Postings


def bm25_weights(
    postings: Postings, norms: Float64, covers: Float32, field_weights: Float64, idf: Float64, k1: float
) -> Float32:
    """Return the BM25 weight of every posting; arguments as the kernel's."""
    word = np.repeat(np.arange(len(idf)), np.diff(postings.offsets))
    parts = (postings.parts / norms[:, postings.documents]).astype(np.float32)
    total = np.zeros(len(word))
    for weight, part in zip(field_weights, parts, strict=True):
        total += part.astype(np.float64) * weight
    tf = total.astype(np.float32).astype(np.float64)
    weights = idf[word] * (k1 + 1) * tf / (k1 + tf)
    if len(covers):
        held = np.where(postings.parts > 0, covers[:, postings.documents], 0)
        weights += held.sum(axis=0, dtype=np.float64).astype(np.float32) * idf[word]
    return weights.astype(np.float32)


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
    """Return the average precision of each query; arguments as the kernel's."""
    result = []
    for query in range(len(offsets) - 1):
        scores = np.zeros(n_documents, np.float32)
        for entry in range(offsets[query], offsets[query + 1]):
            span = slice(postings.offsets[words[entry]], postings.offsets[words[entry] + 1])
            scores[postings.documents[span]] += values[entry] * weights[span]
        relevant = judged.relevant[judged.relevant_offsets[query] : judged.relevant_offsets[query + 1]]
        excluded = judged.excluded[judged.excluded_offsets[query] : judged.excluded_offsets[query + 1]]
        order = np.lexsort((np.arange(n_documents), -scores))
        order = order[~np.isin(order, excluded)]
        ranks = 1 + np.flatnonzero(np.isin(order[:depth], relevant))
        hits = np.arange(1, len(ranks) + 1)
        result.append(float((hits / ranks).sum()) / len(relevant) if len(relevant) else 0.0)
    return np.array(result)
