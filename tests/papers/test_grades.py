# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""Measures of graded rankings: the course's worked example, pooled AUC, and what is tuned."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.measures import AUC, DCG, PAIR_GRADE, PAIR_SCORE, filter_loss, graded_measure, ideal_dcg, ranking_loss
from papers.methods.word_pairs import Bilinear
from papers.registry import Fitted
from papers.study import Study, StudyTrial, Texts
from reranker.evaluation import RankingTask, draw_tuples


def texts(values: list[list[float]]) -> Texts:
    rows = sp.csr_matrix(np.array(values, dtype=np.float32))
    return Texts(rows, rows, tuple(f"w{n}" for n in range(rows.shape[1])), np.ones(rows.shape[1]))


def study_of(scores: list[list[float]], grades: list[list[float]]) -> Study:
    """Return a study in which TF-IDF gives exactly these scores (query n is the n-th unit vector)."""
    n_queries = len(scores)
    documents = texts(np.array(scores).T.tolist())
    dense = np.array(grades)
    row, column = np.nonzero(dense >= 0)  # -1: not judged
    matrix = sp.csr_matrix((dense[row, column].astype(np.float32), (row, column)), shape=dense.shape)
    ids = tuple(f"d{n}" for n in range(dense.shape[1]))
    task = RankingTask(tuple(f"q{n}" for n in range(n_queries)), ids, matrix, sp.csr_matrix(dense < 0))
    queries = texts(np.eye(n_queries).tolist())
    trial = StudyTrial(queries, np.arange(len(ids)), task, draw_tuples(task, np.random.default_rng(0), 100))
    return Study(
        "one", 0, documents, queries, sp.csr_matrix(dense > 0).astype(np.float32), np.full(n_queries, -1), trial, trial
    )


LEXICAL = Fitted(Bilinear.lexical())


def test_E08_the_courses_worked_example() -> None:
    study = study_of([[9, 8, 7, 6, 5]], [[5, 2, 4, 4, 4]])  # ranked in this order; the last is the implied third 4
    found = graded_measure(study, study.test, LEXICAL)
    # Gains 31, 3, 15, 15, 15 over log2(2), log2(3), ...; spec prints DCG 31, 32.9, 40.4 and ideal 31, 40.5, 48.
    assert found["nDCG@1"][0] == pytest.approx(1.0)
    assert found["nDCG@3"][0] == pytest.approx(40.4 / 48, abs=2e-3)
    assert found[DCG][0] == pytest.approx(31 + 3 / np.log2(3) + 15 / 2 + 15 / np.log2(5) + 15 / np.log2(6))
    assert ideal_dcg(study.test.task, 4)[0] == pytest.approx(54.42, abs=5e-3)


def test_E09_auc_is_over_the_pairs_of_all_queries_together() -> None:
    # Within each query the order is right; pooled, the second query's relevant document scores below both others.
    study = study_of([[0.9, 0.8, 0], [0, 0.2, 0.1]], [[1, 0, -1], [-1, 1, 0]])
    found = graded_measure(study, study.test, LEXICAL)
    assert found["nDCG@10"].tolist() == [1, 1]
    assert found[AUC].tolist() == [0.75]  # of 4 pairs of a relevant and another one, 3 in order
    np.testing.assert_allclose(found[PAIR_SCORE], [0.9, 0.8, 0.2, 0.1], atol=1e-6)
    assert found[PAIR_GRADE].tolist() == [1, 0, 1, 0]
    assert filter_loss(study, study.test, LEXICAL) == pytest.approx(0.25)
    assert ranking_loss(study, study.test, LEXICAL) == pytest.approx(0.0)


def test_documents_that_were_not_judged_do_not_count_where_they_take_no_part() -> None:
    study = study_of([[0.5, 0.9, 0.1]], [[1, -1, 0]])
    found = graded_measure(study, study.test, LEXICAL)
    assert found["nDCG@1"].tolist() == [1]
    assert found["WTA"].tolist() == [1]
    assert found["rank loss"].tolist() == [0]


def test_fractions_are_grades_too() -> None:
    study = study_of([[0.9, 0.5]], [[0.5, 1.5]])
    gain = 2**0.5 - 1, 2**1.5 - 1
    ideal = gain[1] + gain[0] / np.log2(3)
    found = graded_measure(study, study.test, LEXICAL)
    assert found["nDCG@10"][0] == pytest.approx((gain[0] + gain[1] / np.log2(3)) / ideal, abs=1e-3)
    assert found["WTA"].tolist() == [1]  # every grade above 0 is relevant, unless the task says otherwise


def test_a_scorer_without_finite_scores_is_the_worst_choice() -> None:
    study = study_of([[0.5, 0.1]], [[1, 0]])

    class Nothing:
        def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> np.ndarray:
            return np.full((q_rows.shape[0], d_rows.shape[0]), np.nan, dtype=np.float32)

        def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> np.ndarray:
            return np.full(q_rows.shape[0], np.nan, dtype=np.float32)

    assert ranking_loss(study, study.test, Fitted(Nothing())) == float("inf")
    assert filter_loss(study, study.test, Fitted(Nothing())) == float("inf")
