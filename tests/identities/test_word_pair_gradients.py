"""Every step of the plain SGD is rate times the gradient of f(q, d+) - f(q, d-), by finite differences of scorers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.product_sgd import Triples
from papers.plain_sgd import LearnedTables, PlainShape, start_learner
from reranker.arrays import Float32, Float64
from reranker.kernels.rows import Rows
from tests.seeds import seeded_rng

N_WORDS = 6
CASES = {
    "M02": PlainShape("diagonal"),
    "M03": PlainShape("full"),
    "M04": PlainShape("zero_diagonal"),
    "M05": PlainShape("tied"),
    "M06": PlainShape("low_rank"),
    "M07": PlainShape("no_identity"),
    "M08": PlainShape("low_rank", n_words=4),
    "M09": PlainShape("hash", n_slots=11, prime=7),
    "M10": PlainShape("hash", n_slots=11, prime=7, identity=1.0),
    "M17": PlainShape("full_cubic"),
    "M18": PlainShape("cubic"),
    "M19": PlainShape("cubic_separate"),
    "M20": PlainShape("polynomial", degree=5),
}
SMALL = 0.3
EPSILON = 0.25  # every score is linear or quadratic in each number, so central differences are exact


def row(*weights: float) -> sp.csr_matrix:
    return sp.csr_matrix(np.array([weights], np.float32))


Q, POSITIVE, NEGATIVE = row(0.6, 0, -0.3, 0.2, 0, 0.5), row(0, 0.5, 0.4, 0, 0.1, 0.3), row(0.2, 0, 0.7, 0.3, 0, 0)


def kernel_rows(matrix: sp.csr_matrix) -> Rows:
    return Rows(matrix.indptr.astype(np.int64), matrix.indices, matrix.data)


def tables(learner: LearnedTables) -> list[Float32]:
    """Return the arrays that a learner changes, each once."""
    return list({id(table): table for table in learner.tables}.values())


def gain(learner: LearnedTables) -> float:
    """Return f(q, d+) - f(q, d-) of the learner's scorer."""
    scorer = learner.scorer_of(*learner.tables)
    return float(scorer.score_pairs(Q, POSITIVE)[0]) - float(scorer.score_pairs(Q, NEGATIVE)[0])


def differences(learner: LearnedTables, table: Float32) -> Float64:
    slope = np.zeros(table.shape)
    for place in np.ndindex(*table.shape):
        old = table[place]
        values: list[float] = []
        for change in (EPSILON, -EPSILON):
            table[place] = old + np.float32(change)
            values.append(gain(learner))
        table[place] = old
        slope[place] = (values[0] - values[1]) / (2 * EPSILON)
    return slope


def changes(learner: LearnedTables, rate: float, hinge: float) -> Sequence[Float64]:
    documents = sp.vstack([POSITIVE, NEGATIVE], format="csr")
    triples = Triples(np.array([0]), np.array([0]), np.array([1]))
    before = [table.astype(np.float64) for table in tables(learner)]
    stats = learner.kernel(*learner.tables, kernel_rows(Q), kernel_rows(documents), triples, rate, *learner.settings)
    assert stats[0] == 1
    assert stats[1] == pytest.approx(hinge, rel=1e-4)
    return [table - old for table, old in zip(tables(learner), before, strict=True)]


@pytest.mark.parametrize("shape", CASES.values(), ids=CASES)
def test_step_is_the_gradient(shape: PlainShape) -> None:
    rng = seeded_rng()
    learner = start_learner(shape, (N_WORDS, N_WORDS), 3, SMALL, rng)
    for table in tables(learner):
        np.add(table, SMALL * rng.normal(size=table.shape), out=table, casting="same_kind")
    expected = [differences(learner, table) for table in tables(learner)]
    if shape.name == "zero_diagonal":
        np.fill_diagonal(expected[0], 0.0)
    hinge = 1.0 - gain(learner)
    assert hinge > 0
    found = changes(learner, 0.5, hinge)
    assert max(np.abs(one).max() for one in expected) > 0.05
    for left, right in zip(expected, found, strict=True):
        np.testing.assert_allclose(right, 0.5 * left, atol=5e-6)
