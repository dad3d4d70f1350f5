"""Steps of margin ranking SGD: both kernels against each other, against numerical gradients and against hand sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.arrays import Float32, Float64, Int64
from reranker.kernels import sgd as sgd_compiled
from reranker.kernels.rows import Rows
from reranker.kernels.sgd import (
    LexicalValues,
    NegativePool,
    Parameters,
    StepConfig,
    Tuples,
    average_changed,
    sgd_steps,
)
from reranker.training.problem import alias_table
from tests.reference import sgd as sgd_reference
from tests.seeds import seeded_rng

KERNELS = pytest.mark.parametrize("kernel", [sgd_reference, sgd_compiled], ids=["reference", "compiled"])
N_COLUMNS = 60
N_ROWS = 40
N_DIMS = 6


def settings(**changes: Any) -> StepConfig:
    """Return scalars of the plain recipe: one uniform candidate, constant rate, nothing dropped or capped."""
    plain: dict[str, Any] = {
        "rate_start": 0.1,
        "rate_end": 0.1,
        "n_total": 2_000,
        "identity": 1.0,
        "max_norm": 0.0,
        "max_trials": 1,
        "hard_negatives": False,
        "keyword_share": 0.0,
        "keyword_min": 1,
        "keyword_max": 1,
        "query_dropout": 0.0,
        "stated_negative_ratio": 0.0,
        "n_columns": N_COLUMNS,
        "whole_from": 1_000_000,
        "freeze_documents": False,
    }
    return StepConfig.of(**plain | changes)


SCREENED = {"hard_negatives": True, "max_trials": 20, "rate_end": 0.0}


def rows_of(*rows: dict[int, float]) -> Rows:
    """Return sparse rows of {id: weight}."""
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    indices = np.array([i for row in rows for i in sorted(row)], dtype=np.int32)
    return Rows(indptr, indices, np.array([row[i] for row in rows for i in sorted(row)], dtype=np.float32))


def lists_of(*lists: Sequence[int]) -> tuple[Int64, Int64]:
    indptr = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return indptr, np.array([number for one in lists for number in one], dtype=np.int64)


@dataclass(frozen=True)
class Case:
    """Arguments of the kernels; `run` works on copies."""

    queries: Rows
    documents: Rows
    tuples: Tuples
    negatives: NegativePool
    U: Float32
    V: Float32
    lexical: LexicalValues | None = None
    """None: q and d are q' and d'."""

    def same_values(self) -> LexicalValues:
        """Return the lexical part whose rows are those that U and V read."""
        return LexicalValues(self.queries.data, self.queries.data**2, self.documents.data)

    def run(
        self, kernel: ModuleType, config: StepConfig, n_steps: int = 1, first: int = 0, seed: int = 12_345
    ) -> tuple[Float64, Parameters, int]:
        """Return (statistics, U V and cache afterwards, state of the random numbers)."""
        U = self.U.copy()
        V = U if self.U is self.V else self.V.copy()
        parameters = Parameters(U, V, dense(self.documents, len(V)).astype(np.float32) @ V)
        state = np.array([seed], np.uint64)
        lexical = self.lexical or self.same_values()
        stats = kernel.sgd_steps(
            self.queries,
            self.documents,
            lexical,
            self.tuples,
            self.negatives,
            parameters,
            config,
            state,
            first,
            n_steps,
        )
        return stats, parameters, int(state[0])


def dense(rows: Rows, n_columns: int) -> Float64:
    """Return the first columns of sparse rows."""
    matrix = sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(len(rows.indptr) - 1, N_COLUMNS))
    return np.asarray(matrix[:, :n_columns].todense(), dtype=np.float64)


def random_rows(rng: np.random.Generator, n: int, n_words: int) -> Rows:
    chosen = [np.sort(rng.permutation(N_COLUMNS)[:n_words]) for _ in range(n)]
    return rows_of(*({int(i): float(rng.random() + 0.1) / 3 for i in row} for row in chosen))


def random_case(
    n_rows: int = N_ROWS, tied: bool = False, by_weight: bool = False, own: bool = False, near: bool = False
) -> Case:
    """Return 50 queries and documents, 150 tuples of which most have documents stated to be worse."""
    rng = seeded_rng()
    n, n_tuples = 50, 150
    query, document = rng.integers(0, n, (2, n_tuples))
    worse = [rng.integers(0, n, rng.integers(0, 4)).tolist() for _ in range(n_tuples)]
    known = [sorted({i, *document[query == i].tolist()}) for i in range(n)]
    U, V = rng.normal(scale=0.4, size=(2, n_rows, N_DIMS)).astype(np.float32)
    weight = rng.uniform(0.5, 2, n_tuples).astype(np.float32)
    tuples = Tuples(query, document, weight, *lists_of(*worse))
    if by_weight:
        tuples = Tuples(*tuples[:5], *alias_table(weight.astype(float) ** 3))
    negatives = NegativePool(np.arange(n), *lists_of(*known))
    if near:  # of a third of the queries none were looked up
        nearest = np.stack([rng.permutation(np.setdiff1d(np.arange(n), own_ones))[:8] for own_ones in known])
        nearest[1, 0] = -1
        list_of = rng.permutation(n).astype(np.int32)
        nearest[list_of] = nearest.copy()
        list_of[::3] = -1
        negatives = negatives._replace(nearest=nearest.astype(np.int32), list_of=list_of)
    queries, documents = random_rows(rng, n, 12), random_rows(rng, n, 14)
    lexical = None
    if own:
        lexical = LexicalValues(
            *((rng.random(len(r.data)) / 3).astype(np.float32) for r in (queries, queries, documents))
        )
    return Case(queries, documents, tuples, negatives, U, U if tied else V, lexical)


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "hard_negatives": ({}, SCREENED),
    "tied": ({"tied": True}, SCREENED),
    "restricted": ({"n_rows": 15}, SCREENED),
    "no learned row": ({"n_rows": 0}, SCREENED),
    "every row learned": ({"n_rows": N_COLUMNS}, {}),
    "no identity": ({}, {**SCREENED, "identity": 0.0}),
    "lexical rows of their own": ({"own": True}, SCREENED),
    "keywords, lexical rows of their own": ({"own": True}, {**SCREENED, "keyword_share": 0.7, "keyword_max": 14}),
    "nearest": ({"near": True}, {**SCREENED, "nearest_share": 0.6, "stated_negative_ratio": 0.3}),
    "keywords": ({}, {**SCREENED, "keyword_share": 0.7, "keyword_min": 2, "keyword_max": 14}),
    "dropout": ({}, {**SCREENED, "query_dropout": 0.3}),
    "dropout, one candidate": ({}, {"query_dropout": 0.5}),
    "stated worse": ({}, {**SCREENED, "stated_negative_ratio": 0.6}),
    "only stated worse": ({}, {"stated_negative_ratio": 1.0, "max_trials": 3}),
    "by weight": ({"by_weight": True}, SCREENED),
    "half of the queries are texts": ({}, {**SCREENED, "keyword_share": 0.7, "keyword_max": 5, "whole_from": 25}),
    "frozen": ({}, {**SCREENED, "stated_negative_ratio": 0.4, "freeze_documents": True}),
    "frozen, one candidate": ({}, {"freeze_documents": True}),
    "capped": ({}, {**SCREENED, "max_norm": 0.8}),
    "all": (
        {"tied": True, "n_rows": 30},
        {
            **SCREENED,
            "keyword_share": 0.5,
            "keyword_max": 9,
            "query_dropout": 0.2,
            "stated_negative_ratio": 0.4,
            "max_norm": 1.0,
            "identity": 3.0,
        },
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_compiled_steps_are_those_of_the_definition(name: str) -> None:
    of_case, of_config = VARIANTS[name]
    case, config = random_case(**of_case), settings(**of_config)
    expected = case.run(sgd_reference, config, 400, first=100)
    found = case.run(sgd_compiled, config, 400, first=100)
    assert found[2] == expected[2], "another draw"
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    assert expected[0][0] > 20, "the sequence hardly learns"
    for ours, theirs in zip(found[1], expected[1], strict=True):
        scale = float(np.abs(theirs).max(initial=1.0))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * scale)


def test_the_kernel_used_is_the_compiled_one() -> None:
    assert sgd_steps is sgd_compiled.sgd_steps


def one_tuple(n_rows: int = N_COLUMNS, tied: bool = False, scale: float = 0.3) -> Case:
    """Return one query, document 0 preferred, document 1 the only negative; 20 words are in none of the three."""
    rng = seeded_rng(1)
    q, positive, negative = (
        {int(i): float(rng.random() + 0.2) / 3 for i in words}
        for words in (range(0, 20, 2), range(0, 30, 3), range(5, 40, 3))
    )
    U, V = rng.normal(scale=scale, size=(2, n_rows, 4)).astype(np.float32)
    tuples = Tuples(np.array([0]), np.array([0]), np.ones(1, np.float32), *lists_of([]))
    negatives = NegativePool(np.array([1, 1]), *lists_of([0]))
    return Case(rows_of(q), rows_of(positive, negative), tuples, negatives, U, U if tied else V)


def hinge(case: Case, U: Float64, V: Float64, identity: float) -> float:
    """Return the margin ranking loss of `one_tuple` from dense matrices."""
    q = dense(case.queries, N_COLUMNS)[0]
    positive, negative = dense(case.documents, N_COLUMNS)
    n = len(U)
    f_positive = (q[:n] @ U) @ (positive[:n] @ V) + identity * q @ positive
    f_negative = (q[:n] @ U) @ (negative[:n] @ V) + identity * q @ negative
    return max(0.0, float(1 - f_positive + f_negative))


def gradient(case: Case, identity: float) -> tuple[Float64, Float64]:
    """Return the central differences of the loss by U and by V (both are the same array's where tied)."""
    U = case.U.astype(np.float64)
    V = U if case.U is case.V else case.V.astype(np.float64)
    found = []
    for E in (U, V):
        slopes = np.zeros_like(E)
        for place in np.ndindex(E.shape):
            kept = E[place]
            E[place] = kept + 1e-5
            above = hinge(case, U, V, identity)
            E[place] = kept - 1e-5
            slopes[place] = (above - hinge(case, U, V, identity)) / 2e-5
            E[place] = kept
        found.append(slopes)
    return found[0], found[1]


@KERNELS
@pytest.mark.parametrize(
    ("n_rows", "tied", "identity"),
    [(N_COLUMNS, False, 1.0), (N_COLUMNS, True, 1.0), (N_COLUMNS, False, 0.0), (12, False, 1.0), (12, True, 0.5)],
    ids=["M06", "M05", "M07", "M08", "M05 restricted"],
)
def test_a_step_goes_down_the_numerical_gradient(kernel: ModuleType, n_rows: int, tied: bool, identity: float) -> None:
    case = one_tuple(n_rows, tied)
    by_u, by_v = gradient(case, identity)
    assert min(np.abs(by_u).max(), np.abs(by_v).max()) > 0.05, "no slope to compare with"
    # A small rate: in the tied model the two halves of a step must both be of the old values.
    stats, after, _ = case.run(kernel, settings(rate_start=0.01, rate_end=0.01, identity=identity))
    assert stats[0] == 1
    assert stats[2] == pytest.approx(hinge(case, case.U.astype(float), case.V.astype(float), identity), rel=1e-5)
    np.testing.assert_allclose(after.U, case.U - 0.01 * by_u, atol=2e-6)
    np.testing.assert_allclose(after.V, case.V - 0.01 * by_v, atol=2e-6)


@KERNELS
def test_frozen_documents_leave_v_and_cache_as_they_are_and_u_goes_down_its_gradient(kernel: ModuleType) -> None:
    case = one_tuple()
    by_u, _ = gradient(case, 1.0)
    config = settings(rate_start=0.01, rate_end=0.01, freeze_documents=True)
    _, after, _ = case.run(kernel, config)
    np.testing.assert_allclose(after.U, case.U - 0.01 * by_u, atol=2e-6)
    stats, after, _ = case.run(kernel, config, 200)
    assert stats[0] > 50
    assert after.V.tobytes() == case.V.tobytes()
    np.testing.assert_array_equal(after.cache, dense(case.documents, N_COLUMNS).astype(np.float32) @ case.V)


@KERNELS
def test_steps_on_frozen_documents_are_the_query_half_of_whole_steps(kernel: ModuleType) -> None:
    """One step from the same state moves U by the same, V frozen or not."""
    case = random_case()
    moved = 0
    for seed in range(1, 60):
        free, frozen = (
            case.run(kernel, settings(**SCREENED, freeze_documents=flag), seed=seed)[1] for flag in (False, True)
        )
        np.testing.assert_allclose(frozen.U, free.U, atol=1e-6)
        moved += int((frozen.U != case.U).any())
    assert moved > 20


@KERNELS
def test_tuples_are_drawn_by_weight_and_steps_keep_their_length(kernel: ModuleType) -> None:
    # Each tuple's query has a word of its own, whose row of U moves whenever the tuple is drawn.
    weights = np.array([1.0, 2.0, 5.0, 0.5])
    queries = rows_of(*({i: 1.0} for i in range(4)))
    documents = rows_of({10: 1.0}, {11: 1.0})
    tuples = Tuples(np.arange(4), np.zeros(4, np.int64), np.ones(4, np.float32), *lists_of([], [], [], []))
    keep, alias = alias_table(weights)
    tuples = tuples._replace(keep=keep, alias=alias)
    V = np.zeros((N_COLUMNS, 1), np.float32)
    V[10], V[11] = 0.5, 0.25
    U = np.zeros((N_COLUMNS, 1), np.float32)
    case = Case(queries, documents, tuples, NegativePool(np.array([1]), *lists_of([0], [0], [0], [0])), U, V)
    n = 4_000
    _, after, _ = case.run(kernel, settings(rate_start=1e-4, rate_end=1e-4, freeze_documents=True), n)
    draws = after.U[:4, 0] / (1e-4 * 0.25)
    assert draws.sum() == pytest.approx(n, rel=1e-3)
    np.testing.assert_allclose(draws / n, weights / weights.sum(), atol=4 * 0.5 / math.sqrt(n))


@KERNELS
def test_queries_that_are_texts_are_never_cut(kernel: ModuleType) -> None:
    case = replace(one_tuple(), V=np.full((N_COLUMNS, 4), 0.05, np.float32))
    words = set()
    for whole_from in (0, 1):
        config = settings(keyword_share=1.0, keyword_min=2, keyword_max=2, whole_from=whole_from)
        _, after, _ = case.run(kernel, config)
        words.add(len(np.flatnonzero((after.U != case.U).any(axis=1))))
    assert words == {10, 2}


@KERNELS
@pytest.mark.parametrize("n_stated", [1, 4])
def test_a_stated_worse_document_that_violates_at_once_makes_a_full_step(kernel: ModuleType, n_stated: int) -> None:
    """However few are stated and however large the pool: 1 of 1 is as bad as 4 of 4."""
    case = one_tuple()
    pool = case.negatives._replace(pool=np.ones(10_000, np.int64))
    indptr, worse = lists_of([1] * n_stated)
    stated = replace(case, tuples=case.tuples._replace(worse_indptr=indptr, worse=worse), negatives=pool)
    config = settings(hard_negatives=True, max_trials=50, stated_negative_ratio=1.0)
    assert step_length(kernel, stated, config) == pytest.approx(0.1, rel=1e-4)


@KERNELS
@pytest.mark.parametrize("screened", [False, True])
def test_a_step_touches_only_rows_of_its_words(kernel: ModuleType, screened: bool) -> None:
    case = one_tuple()
    _, after, _ = case.run(kernel, settings(hard_negatives=screened, max_norm=0.1))  # a cap that every row is above
    q, positive, negative = (
        set(case.queries.indices),
        set(case.documents.indices[:10]),
        set(case.documents.indices[10:]),
    )
    changed_u = set(np.flatnonzero((after.U != case.U).any(axis=1)))
    changed_v = set(np.flatnonzero((after.V != case.V).any(axis=1)))
    assert changed_u == q
    assert changed_v == positive | negative


@KERNELS
@pytest.mark.parametrize("screened", [False, True])
def test_without_a_violation_nothing_changes(kernel: ModuleType, screened: bool) -> None:
    case = replace(one_tuple(), documents=rows_of({0: 3.0, 2: 3.0, 4: 3.0}, {50: 1.0}), V=np.zeros((60, 4), np.float32))
    stats, after, _ = case.run(kernel, settings(hard_negatives=screened, max_trials=5, identity=9.0), 20)
    assert stats.tolist() == [0.0, 100.0, 0.0]
    assert np.array_equal(after.U, case.U)
    assert np.array_equal(after.V, case.V)


@KERNELS
@pytest.mark.parametrize("screened", [False, True])
def test_known_documents_are_never_negatives(kernel: ModuleType, screened: bool) -> None:
    # Document 1 is known to the query and scores far above document 0; it alone holds word 9.
    documents = rows_of({1: 1.0}, {0: 1.0, 9: 1.0}, {2: 1.0})
    tuples = Tuples(np.array([0]), np.array([0]), np.ones(1, np.float32), *lists_of([]))
    U = np.full((N_COLUMNS, 2), 0.1, np.float32)
    case = Case(rows_of({0: 1.0}), documents, tuples, NegativePool(np.arange(3), *lists_of([0, 1])), U, U.copy())
    config = settings(hard_negatives=screened, max_trials=4)
    stats, after, _ = case.run(kernel, config, 200)
    assert stats[0] > 5
    assert np.array_equal(after.V[9], case.V[9])
    free = replace(case, negatives=NegativePool(np.arange(3), *lists_of([0])))
    assert not np.array_equal(free.run(kernel, config, 200)[1].V[9], case.V[9]), "the problem does not show it"


@KERNELS
def test_stated_worse_documents_are_taken_even_where_known(kernel: ModuleType) -> None:
    # Grades 2 and 1: both documents are relevant to the query, and the first is to stand above the second.
    documents = rows_of({1: 1.0}, {2: 1.0}, {3: 1.0})
    tuples = Tuples(np.array([0]), np.array([0]), np.ones(1, np.float32), *lists_of([1]))
    U = np.full((N_COLUMNS, 2), 0.1, np.float32)
    case = Case(rows_of({0: 1.0}), documents, tuples, NegativePool(np.arange(3), *lists_of([0, 1])), U, U.copy())
    _, after, _ = case.run(kernel, settings(stated_negative_ratio=1.0), 5)
    assert (after.V[2] < case.V[2]).all()
    assert np.array_equal(after.V[3], case.V[3])


@KERNELS
def test_a_pool_of_known_documents_alone_ends(kernel: ModuleType) -> None:
    case = replace(one_tuple(), negatives=NegativePool(np.array([0, 1]), *lists_of([0, 1])))
    stats, after, _ = case.run(kernel, settings(max_trials=10), 10)
    assert stats.tolist() == [0, 0, 0]
    assert np.array_equal(after.U, case.U)


def step_length(kernel: ModuleType, case: Case, config: StepConfig, first: int = 0) -> float:
    """Return by how much a step moved U, as a multiple of the move at rate 1."""
    _, after, _ = case.run(kernel, config, first=first)
    full = settings(identity=config.identity, rate_start=1.0, rate_end=1.0)
    _, whole, _ = replace(case, tuples=case.tuples._replace(weight=np.ones(1, np.float32))).run(kernel, full)
    return float(np.linalg.norm(after.U - case.U) / np.linalg.norm(whole.U - case.U))


@KERNELS
def test_the_rate_falls_linearly_and_weights_count(kernel: ModuleType) -> None:
    case = one_tuple()
    falling = settings(rate_start=0.4, rate_end=0.0, n_total=200)
    assert step_length(kernel, case, falling, 0) == pytest.approx(0.4, rel=1e-4)
    assert step_length(kernel, case, falling, 50) == pytest.approx(0.3, rel=1e-4)
    assert step_length(kernel, case, falling, 199) == pytest.approx(0.002, rel=1e-3)
    assert step_length(kernel, case, settings(), 1_999) == pytest.approx(0.1, rel=1e-4)
    heavy = replace(case, tuples=case.tuples._replace(weight=np.array([2.5], np.float32)))
    assert step_length(kernel, heavy, settings()) == pytest.approx(0.25, rel=1e-4)


@KERNELS
def test_screened_steps_weigh_by_the_estimated_rank(kernel: ModuleType) -> None:
    case = one_tuple()
    config = settings(hard_negatives=True, max_trials=50)
    # The pool is document 1 twice: it violates at the first trial, log(1 + 2/1) / log(1 + 2).
    assert case.run(kernel, config)[0][1] == 1
    assert step_length(kernel, case, config) == pytest.approx(0.1, rel=1e-4)
    # One of 64 documents violates; found after n trials the step weighs log(1 + 64 / n) / log(1 + 64).
    violating = replace(
        case,
        documents=rows_of({0: 0.01}, {2: 40.0}, *[{0: -40.0}] * 63),
        negatives=case.negatives._replace(pool=np.arange(1, 65)),
        U=np.full_like(case.U, 0.01),
        V=np.full_like(case.V, 0.01),
    )
    trials = [violating.run(kernel, config, seed=seed) for seed in range(1, 60)]
    hit = [(int(stats[1]), after) for stats, after, _ in trials if stats[0]]
    assert len({n for n, _ in hit}) > 3
    start = np.linalg.norm(hit[0][1].U - violating.U) / math.log(1 + 64 / hit[0][0])
    for n, after in hit:
        assert np.linalg.norm(after.U - violating.U) / math.log(1 + 64 / n) == pytest.approx(start, rel=1e-3)
    single = violating.run(kernel, settings(), seed=seed_of_first_hit(violating, kernel))[1]
    assert start * math.log(65) == pytest.approx(np.linalg.norm(single.U - violating.U), rel=1e-3)


def seed_of_first_hit(case: Case, kernel: ModuleType) -> int:
    """Return a seed whose first candidate violates."""
    return next(seed for seed in range(1, 5_000) if case.run(kernel, settings(), seed=seed)[0][0])


@KERNELS
def test_rows_are_shortened_to_the_cap(kernel: ModuleType) -> None:
    case = random_case()
    _, after, _ = case.run(kernel, settings(max_norm=0.7, rate_start=0.5), 300)
    moved_u = (after.U != case.U).any(axis=1)
    moved_v = (after.V != case.V).any(axis=1)
    assert np.linalg.norm(after.U[moved_u], axis=1).max() <= 0.7 * (1 + 1e-5)
    assert np.linalg.norm(after.V[moved_v], axis=1).max() <= 0.7 * (1 + 1e-5)
    free = case.run(kernel, settings(rate_start=0.5), 300)[1]
    assert np.linalg.norm(free.U, axis=1).max() > 1, "nothing to shorten"


@KERNELS
def test_keyword_queries_are_distinct_words_at_unit_length(kernel: ModuleType) -> None:
    # One step per seed; the rows of U that moved are the words of the drawn query, by weight / length.
    case = replace(one_tuple(), V=np.full((N_COLUMNS, 4), 0.05, np.float32))
    config = settings(keyword_share=1.0, keyword_min=2, keyword_max=4, rate_start=1e-2, rate_end=1e-2)
    sizes = set()
    for seed in range(1, 60):
        stats, after, _ = case.run(kernel, config, seed=seed)
        assert stats[0] == 1
        step = (after.U - case.U)[:, 0].astype(np.float64)
        words = np.flatnonzero(step)
        sizes.add(len(words))
        stated = np.array([case.queries.data[list(case.queries.indices).index(word)] for word in words])
        expected = stated / np.linalg.norm(stated)
        np.testing.assert_allclose(np.abs(step[words] / np.linalg.norm(step[words])), expected, rtol=2e-3)
        length = abs(0.05 * float(case.documents.data[:10].sum() - case.documents.data[10:].sum())) * 0.01
        assert np.linalg.norm(step[words]) == pytest.approx(length, rel=2e-2)
    assert sizes == {2, 3, 4}


@KERNELS
def test_dropout_leaves_short_queries_whole_and_keeps_the_mean(kernel: ModuleType) -> None:
    case = one_tuple()  # its query has 10 words: not more than may be thinned
    _, plain, _ = case.run(kernel, settings())
    _, short, _ = case.run(kernel, settings(query_dropout=0.5))
    np.testing.assert_allclose(short.U, plain.U, rtol=1e-6)
    long = replace(case, queries=rows_of({i: 0.3 for i in range(40)}), V=np.full_like(case.V, 0.01))
    kept, moves = [], []
    _, whole, _ = long.run(kernel, settings(identity=0.0))
    for seed in range(1, 200):
        _, after, _ = long.run(kernel, settings(query_dropout=0.4, identity=0.0), seed=seed)
        kept.append(np.count_nonzero((after.U != long.U).any(axis=1)))
        moves.append(after.U - long.U)
    assert np.mean(kept) == pytest.approx(24, abs=1)
    mean = np.mean(moves, axis=0)[:40]
    np.testing.assert_allclose(mean.mean(), (whole.U - long.U)[:40].mean(), rtol=0.05)


@KERNELS
def test_the_cache_is_renewed_where_a_vector_was_computed(kernel: ModuleType) -> None:
    case = one_tuple()
    U, V = case.U.copy(), case.V.copy()
    cache = np.full((2, 4), 7.0, np.float32)
    state = np.array([3], np.uint64)
    kernel.sgd_steps(
        case.queries,
        case.documents,
        case.same_values(),
        case.tuples,
        case.negatives,
        Parameters(U, V, cache),
        settings(),
        state,
        0,
        1,
    )
    np.testing.assert_allclose(cache, dense(case.documents, N_COLUMNS) @ case.V, rtol=1e-5)


def test_two_tables_become_the_mean_of_what_both_changed_and_keep_what_one_changed() -> None:
    before = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
    first = np.array([[1, 2], [3, 0], [5, 6], [9, 8]], np.float32)
    second = np.array([[1, 2], [3, 4], [5, 1], [7, 4]], np.float32)
    average_changed(first, second, before)
    assert before.tolist() == [[1, 2], [3, 0], [5, 1], [8, 6]]
    assert np.array_equal(first, before)
    assert np.array_equal(second, before)
