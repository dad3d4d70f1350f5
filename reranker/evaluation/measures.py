"""Measures of rankings. All of them are computed by ir_measures; this module only carries data there and back.

What each name means:

- relevant: a document whose grade is at least ``relevant_from`` (1 unless said otherwise); unjudged is not relevant.
- ``AP``: (1 / number of relevant documents) * sum over relevant ranks r of precision at r. The rankings handed in are
  at most 1,000 deep; a relevant document further down counts 0. It would have added less than
  (number of relevant documents) / 1000 to its own precision, so for a query with one such document among m relevant
  ones the cut costs less than 1/1000.
- ``P@10``, ``RR`` (1 / rank of the first relevant document), ``nDCG@10`` with the gain 2**grade - 1 and the discount
  log2(1 + rank).
- A query for which the ranking is missing or empty has the measure's own default, 0.
- Order is the order handed in: ranks, not scores, reach ir_measures, so its rule for ties never applies.
- Standard errors and paired tests are over queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float64, Int32
from reranker.errors import ConfigError, InputError, ShapeMismatch

if TYPE_CHECKING:
    from ir_measures import Measure


MEASURES: tuple[str, ...] = ("AP", "P@10", "RR", "nDCG@10")
"""What `ssi evaluate` prints."""

_FAMILIES = frozenset({"AP", "P", "RR", "nDCG", "R", "Rprec", "Success"})
# Fractional grades (means of several judges) become integers by this factor; nDCG does not change by a factor.
_GAIN_SCALE = 1000
_MAX_GRADE = 20.0
RESAMPLES = 1_999
_BATCH_BYTES = 2**25


def ndcg_gain(grade: float) -> float:
    """Return the gain 2**grade - 1 of a grade; 0 for grades at or below 0."""
    return float(2.0 ** max(grade, 0.0) - 1.0)


def evaluate_run(
    qrels: Mapping[str, Mapping[str, float]],
    run: Mapping[str, Sequence[str]],
    measures: Iterable[str] = MEASURES,
    relevant_from: float = 1.0,
) -> dict[str, dict[str, float]]:
    """Return measure -> query -> value, for every query of the judgements.

    `ConfigError` for a measure that is not known, or not of these families; `InputError` for a grade that is not finite
    or above 20 (its gain would not fit).

    Parameters
    ----------
    qrels : mapping of query id to mapping of document id to grade
        Judgements; bigger is better, unjudged documents count as not relevant.
    run : mapping of query id to document ids
        Best first, each at most once. Queries without judgements are ignored.
    measures : iterable of str
        Names of ir_measures, of the families AP, P, RR, nDCG, R, Rprec, Success (``P@5``, ``R@100``).
    relevant_from : float
        Least grade that counts as relevant.
    """
    names = tuple(measures)
    binary, graded = _judgements(qrels, relevant_from)
    scored = {query: _as_scores(run.get(query, ())) for query in qrels}
    scored = {query: ranking for query, ranking in scored.items() if ranking}
    values: dict[str, dict[str, float]] = {name: {} for name in names}
    gains = [name for name in names if _parsed(name).NAME == "nDCG"]
    others = [name for name in names if name not in gains]
    for chosen, judged in ((others, binary), (gains, graded)):
        parsed = {_parsed(name): name for name in chosen}
        for metric in _library().iter_calc(list(parsed), judged, scored) if chosen else ():
            values[parsed[metric.measure]][metric.query_id] = float(metric.value)
        for name in chosen:
            for query in judged:
                # ir_measures leaves out judged queries without any entry; their value is its default as well.
                values[name].setdefault(query, float(_parsed(name).DEFAULT))
    return values


def evaluate_ranking(
    ranked: Int32, grades: sp.csr_matrix, measures: Iterable[str] = MEASURES, relevant_from: float = 1.0
) -> dict[str, Float64]:
    """Return measure -> (n_queries,) float64 values, for rankings and judgements held as arrays.

    Documents after the last judged one of a ranking are left out before the measures are computed: none of the
    families allowed here looks at them, and most of a 1,000-deep ranking is spared.

    Parameters
    ----------
    ranked : (n_queries, depth) int32
        Document numbers, best first; -1 after the end of a shorter ranking.
    grades : csr_matrix, (n_queries, n_documents)
        Stored values are judgements (also 0); what is not stored is unjudged.
    measures, relevant_from
        As in `evaluate_run`.
    """
    names = tuple(measures)
    qrels: dict[str, dict[str, float]] = {}
    run: dict[str, list[str]] = {}
    for query in range(grades.shape[0]):
        span = slice(grades.indptr[query], grades.indptr[query + 1])
        documents = grades.indices[span]
        qrels[str(query)] = {str(d): float(g) for d, g in zip(documents, grades.data[span], strict=True)}
        judged = np.flatnonzero(np.isin(ranked[query], documents))
        run[str(query)] = [str(d) for d in ranked[query, : judged[-1] + 1]] if len(judged) else []
    values = evaluate_run(qrels, run, names, relevant_from)
    return {
        name: np.array([values[name][str(query)] for query in range(grades.shape[0])], dtype=np.float64)
        for name in names
    }


def _judgements(
    qrels: Mapping[str, Mapping[str, float]], relevant_from: float
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Return the judgements as 0/1 and as integer gains."""
    grades = {grade for judged in qrels.values() for grade in judged.values()}
    for grade in grades:
        if not np.isfinite(grade) or grade > _MAX_GRADE:
            raise InputError(
                f"grade {grade!r} cannot be used: grades are finite and at most {_MAX_GRADE:g} (gain 2**grade - 1); "
                f"map the labels to small steps such as 0, 1, 2, 3",
                grade=grade,
            )
    scale = 1 if all(float(grade).is_integer() for grade in grades) else _GAIN_SCALE
    gain_of = {grade: round(scale * ndcg_gain(grade)) for grade in grades}
    binary = {q: {d: int(grade >= relevant_from) for d, grade in judged.items()} for q, judged in qrels.items()}
    graded = {q: {d: gain_of[grade] for d, grade in judged.items()} for q, judged in qrels.items()}
    return binary, graded


def _as_scores(ranking: Sequence[str]) -> dict[str, float]:
    """Return document -> descending score, so that any tool sees exactly this order."""
    scores = {document: float(len(ranking) - place) for place, document in enumerate(ranking)}
    if len(scores) != len(ranking):
        raise InputError("a ranking names a document twice: a run lists each document once; remove the repetition")
    return scores


@lru_cache(maxsize=64)
def _parsed(name: str) -> Measure:
    """Return ir_measures' object of a measure's name."""
    try:
        measure: Measure = _library().parse_measure(name)
    except (ValueError, NameError, SyntaxError, KeyError) as error:
        raise ConfigError(f"measure {name!r} is not known: use names such as {', '.join(MEASURES)}, R@100") from error
    if measure.NAME not in _FAMILIES:
        raise ConfigError(f"measure {name!r} is not offered: use one of {', '.join(sorted(_FAMILIES))}, with @k")
    return measure


def _library() -> ModuleType:
    """Import ir_measures when it is first needed: it takes a second."""
    import ir_measures

    return cast(ModuleType, ir_measures)


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The difference of two systems on the same queries."""

    difference: float
    """Mean of first minus second."""
    standard_error: float
    """Of that mean, over queries."""
    p_t_test: float
    """Two-sided p of the paired t-test."""
    p_randomisation: float | None
    """Two-sided p of Fisher's randomisation test: twice the share of random exchanges of the two systems, query by
    query, whose mean difference is at least as far out (1,999 exchanges and the one observed: never below .001). None
    where it was not asked for."""
    n: int
    """Queries compared."""


def standard_error(values: Float64) -> float:
    """Return the standard error of the mean, s / sqrt(n) with s over n - 1; 0 for fewer than two values.

    Source: spec A04 (the papers' +- values are standard errors over queries).
    """
    return 0.0 if len(values) < 2 else float(np.std(values, ddof=1) / np.sqrt(len(values)))


def paired_test(first: Float64, second: Float64, rng: np.random.Generator | None = None) -> PairedTest:
    """Return mean difference and p of two paired tests (scipy's): t-test and Fisher randomisation.

    ``first`` and ``second``, (n,) float64, hold one value per query, in the same order. ``rng`` draws the exchanges of
    the randomisation test; without it only the t-test is made (it costs nothing, the other about a quarter of a second
    a thousand queries).

    `ShapeMismatch` if the lengths differ.
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ShapeMismatch(f"paired values have shapes {first.shape} and {second.shape}: one value per query in each")
    difference = first - second
    mean = float(difference.mean()) if len(difference) else 0.0
    if len(difference) < 2 or not np.any(difference):
        # Identical systems (or nothing to compare): no test can tell them apart.
        return PairedTest(mean, 0.0, 1.0, None if rng is None else 1.0, len(difference))
    from scipy import stats

    # For a constant difference t is infinite, however few the queries: the p given is then that of all exchanges of the
    # systems being equally likely.
    constant = np.ptp(difference) == 0.0
    p = 2.0 ** (1 - len(difference)) if constant else stats.ttest_1samp(difference, 0.0).pvalue
    p_randomisation = None if rng is None else _randomisation(difference, rng)
    return PairedTest(mean, standard_error(difference), float(p), p_randomisation, len(difference))


def _randomisation(difference: Float64, rng: np.random.Generator) -> float:
    """Return the two-sided p of random sign flips."""
    from scipy import stats

    # Exchanging the systems of a query flips the sign of its difference; queries with equal values change nothing.
    moved = difference[difference != 0.0]
    if len(moved) < 2:
        return 1.0  # exchanging one query gives a mean just as far out
    result = stats.permutation_test(
        (moved,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH_BYTES // (8 * len(moved))),
        rng=rng,
    )
    return float(result.pvalue)
