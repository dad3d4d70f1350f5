"""MRR, top-1 accuracy, WTA and NDCG on rankings whose values are known."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.rank_measures import dcg
from reranker.arrays import Float64, Int32
from reranker.errors import ConfigError, InputError
from reranker.evaluation import evaluate_ranking, ndcg_gain

COURSE_GRADES = {"Perfect": 5, "Excellent": 4, "Good": 3, "Correct": 2, "Bad": 0}
"""COURSE's grades, with the gains 31, 15, 7, 3 and 0 (spec A25)."""
AD_GRADES = {"same": 2, "subset": 1, "superset": 1, "disjoint": 0}
"""S2Net's labels of query and ad; the gains are ours, 3, 1, 1 and 0 (spec A25)."""

# The course's ranking: Perfect, Correct, Excellent, Excellent, and a third Excellent further down.
GRADES = sp.csr_matrix(np.array([[5, 2, 4, 4, 0, 4]], np.float32))
RANKED = np.array([[0, 1, 2, 3, 4, 5]], np.int32)


def value(measure: str, ranked: Int32, grades: sp.csr_matrix, relevant_from: float = 1.0) -> Float64:
    return evaluate_ranking(ranked, grades, [measure], relevant_from)[measure]


def test_E08_the_example_of_the_course() -> None:
    assert [ndcg_gain(COURSE_GRADES[name]) for name in COURSE_GRADES] == [31, 15, 7, 3, 0]
    assert [dcg([5, 2, 4, 4], k) for k in (1, 2, 3, 4)] == pytest.approx([31, 32.9, 40.4, 46.9], abs=0.06)
    assert [dcg([5, 4, 4, 4], k) for k in (1, 2, 3, 4)] == pytest.approx([31, 40.46, 47.96, 54.42], abs=0.01)
    values = [value(f"nDCG@{k}", RANKED, GRADES)[0] for k in (1, 2, 3, 4)]
    assert values == pytest.approx([1, 0.81, 0.84, 0.86], abs=0.005)
    assert values == pytest.approx([dcg([5, 2, 4, 4], k) / dcg([5, 4, 4, 4], k) for k in (1, 2, 3, 4)])


def test_E08_the_labels_of_ads() -> None:
    grades = sp.csr_matrix(np.array([[AD_GRADES[name] for name in ("disjoint", "same", "superset")]], np.float32))
    discount = 1 / np.log2(3)
    expected = (1 + 3 * discount) / (3 + discount)
    assert value("nDCG@2", np.array([[2, 1, 0]], np.int32), grades)[0] == pytest.approx(expected)


def test_E05_E06_E07_first_places() -> None:
    grades = sp.csr_matrix(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]], np.float32))
    ranked = np.array([[0, 1, 2], [0, 2, 1], [0, 1, 2], [0, 1, 2]], np.int32)
    np.testing.assert_allclose(value("RR", ranked, grades), [1 / 2, 1, 1 / 3, 0])
    np.testing.assert_allclose(value("P@1", ranked, grades), [0, 1, 0, 0])
    assert value("RR", ranked, grades).mean() == pytest.approx(11 / 24)


def test_E07_relevance_starts_at_the_grade_asked_for() -> None:
    assert value("P@1", RANKED[:, 1:], GRADES, relevant_from=3.0)[0] == 0.0
    assert value("P@1", RANKED[:, 1:], GRADES, relevant_from=2.0)[0] == 1.0
    assert value("RR", RANKED[:, 1:], GRADES, relevant_from=3.0)[0] == 0.5


def test_no_cut_below_one_and_no_grade_without_value() -> None:
    with pytest.raises(ConfigError, match="k is 0: it must be at least 1"):
        dcg([1.0], 0)
    with pytest.raises(InputError, match="not all finite"):
        dcg([np.nan], 1)
