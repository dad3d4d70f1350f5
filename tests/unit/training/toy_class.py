"""A model class for tests: the strongest directions of the products of words that belong together."""

from __future__ import annotations

import numpy as np

from reranker.training.context import TrainedParameters, TrainingContext
from reranker.training.problem import csr_of
from reranker.training.trainer import TrainResult


def fit(context: TrainingContext, first: TrainedParameters | None) -> TrainedParameters:
    """Return U and V of the singular vectors of the sum of q dᵀ, at a length that tells in the score."""
    queries, documents = (csr_of(rows, context.n_rows) for rows in (context.problem.queries, context.problem.documents))
    tuples = context.problem.tuples
    left, values, right = np.linalg.svd((queries[tuples.query].T @ documents[tuples.document]).toarray())
    roots = np.sqrt(values / values[0])[: context.config.dim]
    U, V = (np.ascontiguousarray(side[:, : len(roots)] * roots, np.float32) for side in (left, right.T))
    return TrainedParameters("toy", U, V, TrainResult(U, V, 1, None))
