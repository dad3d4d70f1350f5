"""Measures: hand-computed values, the specification's NDCG case, odd input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.errors import ConfigError, InputError
from reranker.evaluation import MEASURES, evaluate_ranking, evaluate_run, ndcg_gain, ndcg_gains, qrels_task
from tests.engines.policy import library

IR_MEASURES = library("ir_measures")


def test_gains_of_the_grades_of_the_specification() -> None:
    assert [ndcg_gain(grade) for grade in (5, 4, 3, 2, 0)] == [31, 15, 7, 3, 0]


@pytest.mark.parametrize(("cutoff", "expected"), [(1, 1.0), (2, 0.81), (3, 0.84), (4, 0.86)])
def test_ndcg_case_of_the_specification(cutoff: int, expected: float) -> None:
    """Grades 5, 2, 4, 4 in this order, and a third Excellent (4) further down the list."""
    qrels = {"q": {"a": 5.0, "b": 2.0, "c": 4.0, "d": 4.0, "e": 4.0}}
    values = evaluate_run(qrels, {"q": ["a", "b", "c", "d", "e"]}, [f"nDCG@{cutoff}"])
    assert values[f"nDCG@{cutoff}"]["q"] == pytest.approx(expected, abs=0.005)


def test_hand_computed_values() -> None:
    qrels = {"q": {"a": 1.0, "b": 1.0, "c": 1.0, "x": 0.0}}
    values = evaluate_run(qrels, {"q": ["x", "a", "y", "b"]})
    assert values["AP"]["q"] == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert values["P@10"]["q"] == pytest.approx(0.2)
    assert values["RR"]["q"] == pytest.approx(1 / 2)
    ideal = 1 + 1 / np.log2(3) + 1 / 2
    assert values["nDCG@10"]["q"] == pytest.approx((1 / np.log2(3) + 1 / np.log2(5)) / ideal)


def test_a_query_missing_from_the_run_counts_zero() -> None:
    qrels = {"q": {"a": 1.0}, "missing": {"a": 1.0}, "empty": {"a": 1.0}, "irrelevant": {"a": 0.0}}
    values = evaluate_run(qrels, {"q": ["a"], "empty": [], "irrelevant": ["a"], "unjudged": ["a"]})
    for name in MEASURES:
        expected = {"missing": 0.0, "empty": 0.0, "irrelevant": 0.0}
        assert {query: value for query, value in values[name].items() if query != "q"} == expected
        assert values[name]["q"] > 0


def test_fractional_grades_keep_their_order_and_their_threshold() -> None:
    qrels = {"q": {"a": 2.5, "b": 0.66, "c": 1.0}}
    values = evaluate_run(qrels, {"q": ["b", "a", "c"]}, ["P@1", "P@3", "nDCG@3"], relevant_from=1.0)
    assert values["P@1"]["q"] == 0.0  # .66 is below the grade that counts as relevant
    assert values["P@3"]["q"] == pytest.approx(2 / 3)
    assert evaluate_run(qrels, {"q": ["b", "a", "c"]}, ["P@1"])["P@1"]["q"] == 1.0
    gains = [ndcg_gain(0.66), ndcg_gain(2.5), ndcg_gain(1.0)]
    discounts = 1 / np.log2(np.arange(2, 5))
    expected = np.dot(gains, discounts) / np.dot(sorted(gains, reverse=True), discounts)
    assert values["nDCG@3"]["q"] == pytest.approx(expected, abs=2e-3)


def test_the_order_handed_in_is_the_order_measured() -> None:
    """Ids that a tool breaking ties by id would order the other way round."""
    qrels = {"q": {"a": 1.0}}
    for order in itertools.permutations(["a", "b", "c"]):
        assert evaluate_run(qrels, {"q": order}, ["RR"])["RR"]["q"] == pytest.approx(1 / (order.index("a") + 1))


@given(data=st.data())
@settings(max_examples=60)
def test_arrays_and_runs_agree(data: st.DataObject) -> None:
    n_documents = data.draw(st.integers(1, 30))
    order = data.draw(st.permutations(range(n_documents)))
    grades = data.draw(st.lists(st.integers(0, 3), min_size=n_documents, max_size=n_documents))
    judged = data.draw(st.lists(st.booleans(), min_size=n_documents, max_size=n_documents))
    columns = np.flatnonzero(judged)
    values = np.array([grades[column] for column in columns], dtype=np.float32)
    matrix = sp.csr_matrix((values, columns, [0, len(columns)]), shape=(1, n_documents))
    ranked = np.full((1, n_documents + 3), -1, dtype=np.int32)
    ranked[0, :n_documents] = order
    names = (*MEASURES, "R@5", "P@3")
    from_arrays = evaluate_ranking(ranked, matrix, names)
    qrels = {"q": {f"d{column}": float(grades[column]) for column in columns}}
    from_run = evaluate_run(qrels, {"q": [f"d{document}" for document in order]}, names)
    for name in names:
        assert from_arrays[name][0] == pytest.approx(from_run[name]["q"], abs=1e-12), name


def test_every_grade_above_0_is_relevant() -> None:
    """Quarters, tenths and the smallest number of a judgment count like whole grades; 0 and below do not."""
    whole = {"q": {"a": 3.0, "b": 1.0, "c": 0.0, "d": -1.0, "e": 2.0}}
    quarters = {"q": {document: grade / 4 for document, grade in whole["q"].items()}}
    run = {"q": ["c", "b", "d", "a", "x", "e"]}
    names = ["AP", "P@10", "RR", "R@5", "Rprec", "Success@2"]
    assert evaluate_run(quarters, run, names) == evaluate_run(whole, run, names)
    task = qrels_task(quarters, ["q"], list("abcdex"))
    assert task.relevant().toarray().tolist() == [[True, True, False, False, True, False]]
    assert qrels_task({"q": {"a": 1e-30}}, ["q"], ["a"]).relevant().nnz == 1


def ndcg(gains: dict[str, float], run: list[str]) -> float:
    discounts = 1 / np.log2(np.arange(2, 2 + len(run)))
    best = sorted(gains.values(), reverse=True)[: len(run)]
    return float(np.dot([gains.get(d, 0.0) for d in run], discounts) / np.dot(best, discounts[: len(best)]))


@pytest.mark.parametrize(
    "grades",
    [
        {"a": 0.75, "b": 0.5, "c": 0.25, "d": 0.0},
        {"a": 0.01, "b": 0.004, "c": 0.001},
        {"a": 21.0, "b": 20.0, "c": 19.0},
        {"a": 100.0, "b": 99.5, "c": 10.0, "d": 1.0},
        {"a": 19.5, "b": 19.0, "c": 1.25},
    ],
)
def test_ndcg_of_small_and_of_large_grades(grades: dict[str, float]) -> None:
    """The gain stays 2**grade - 1, but for a factor of all gains of the query."""
    run = [*"dcba"]
    expected = ndcg({document: 2.0**grade - 1.0 for document, grade in grades.items()}, run)
    judged = {"q": grades, "other": {"a": 1.0}}
    assert evaluate_run(judged, {"q": run, "other": ["a"]}, ["nDCG@10"])["nDCG@10"]["q"] == pytest.approx(
        expected, abs=1e-3
    )
    assert sum(value > 0 for value in ndcg_gains(grades).values()) == sum(grade > 0 for grade in grades.values())


def test_gains_of_grades_that_no_number_could_hold() -> None:
    gains = ndcg_gains({"a": 5_000.0, "b": 4_999.0, "c": 1.0, "d": -3.0})
    assert gains == {"a": 2.0**20, "b": 2.0**19, "c": 0.0, "d": 0.0}


@pytest.mark.parametrize("grade", [float("nan"), float("inf")])
def test_impossible_grades_are_refused(grade: float) -> None:
    with pytest.raises(InputError, match="grades are finite"):
        evaluate_run({"q": {"a": grade}}, {"q": ["a"]})


@pytest.mark.parametrize("name", ["nonsense", "ERR@10", "", "P@"])
def test_unknown_measures_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="measure"):
        evaluate_run({"q": {"a": 1.0}}, {"q": ["a"]}, [name])


def test_a_document_ranked_twice_is_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        evaluate_run({"q": {"a": 1.0}}, {"q": ["a", "b", "a"]})
