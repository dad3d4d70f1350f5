"""Measures: hand-computed values, the specification's NDCG case, odd input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.errors import ConfigError, InputError
from reranker.evaluation import MEASURES, evaluate_ranking, evaluate_run, ndcg_gain
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
    values = evaluate_run(qrels, {"q": ["b", "a", "c"]}, ["P@1", "P@3", "nDCG@3"])
    assert values["P@1"]["q"] == 0.0  # .66 is below the grade that counts as relevant
    assert values["P@3"]["q"] == pytest.approx(2 / 3)
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
@settings(max_examples=60, deadline=None)
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


@pytest.mark.parametrize("grade", [float("nan"), float("inf"), 21.0])
def test_impossible_grades_are_refused(grade: float) -> None:
    with pytest.raises(InputError, match="grades are finite and at most 20"):
        evaluate_run({"q": {"a": grade}}, {"q": ["a"]})


@pytest.mark.parametrize("name", ["nonsense", "ERR@10", "", "P@"])
def test_unknown_measures_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="measure"):
        evaluate_run({"q": {"a": 1.0}}, {"q": ["a"]}, [name])


def test_a_document_ranked_twice_is_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        evaluate_run({"q": {"a": 1.0}}, {"q": ["a", "b", "a"]})
