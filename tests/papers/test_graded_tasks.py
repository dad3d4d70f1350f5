# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""T7 and judged corpora: tables, what is said and on what, averages over splits, ROC."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from papers.graded_systems import BY_NAME
from papers.graded_tasks import DIMENSION_SYSTEMS, JUDGED_SYSTEMS, PAPER, PAPER_T12, T7_SYSTEMS, TASKS
from papers.measures import TAU, grade_agreement
from papers.registry import Section, TaskRequest
from papers.results import ALL, Results, averaged, spread_over_studies
from reranker.errors import ConfigError, ShapeMismatch
from reranker.evaluation import RankingTask
from tests.papers.made_collections import write_collection

BY_ID = {task.id: task for task in TASKS}
FAST = ("graded-tfidf", "graded-s2net", "graded-bm25")


def run(task: str, folder: Path, out: Path, systems: tuple[str, ...] = FAST) -> Section:
    return BY_ID[task].run(TaskRequest(folder, out, systems, small=True), lambda *_: None)


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_collection(tmp_path_factory.mktemp("graded") / "made")


def test_T7a_prints_auc_and_draws_the_roc(graded: Path, tmp_path: Path) -> None:
    section = run("T7a", graded, tmp_path)
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["TF-IDF", "S2Net", "BM25, tuned"]
    assert table.rows[1][-1] == "0.892"  # the paper's, beside ours
    assert all(0 <= float(row[1]) <= 1 for row in table.rows)
    assert "of 2" in table.rows[1][4]
    assert "50 disjoint random subsets" in table.note and "on one split" in table.note
    assert "only the row with “pseudo-document queries” does so" in table.note
    (picture,) = section.pictures
    assert b"<svg" in picture.svg and b"<script" not in picture.svg
    assert "TF-IDF" in picture.alt


def test_T7b_prints_ndcg_of_each_query_once(graded: Path, tmp_path: Path) -> None:
    section = run("T7b", graded, tmp_path)
    per_query, over_splits, paired = section.tables
    assert per_query.columns[:3] == ("system", "nDCG@1", "p")
    assert "nDCG@1, paper" in per_query.columns
    assert [row[-1] for row in over_splits.rows] == ["2"] * 3
    assert paired.columns == ("system", "DCG@5", "minus TF-IDF", "p", "minus S2Net", "p")
    assert "2 random splits of 60 to 40 by query" in section.sentences[1]
    assert "on one split; here a query that several splits test on has the mean" in paired.note


def test_E10_T7b_prints_kendalls_tau_of_scores_and_grades(graded: Path, tmp_path: Path) -> None:
    table = run("T7b", graded, tmp_path).tables[0]
    column = table.columns.index(TAU)
    values = {row[0]: float(row[column].split(" ± ", maxsplit=1)[0]) for row in table.rows}
    # Documents name the subject by another word than queries: only the learned system finds the order of the grades.
    assert values["S2Net"] > 0.3 > values["BM25, tuned"] > 0


def test_E10_tau_of_each_query_by_hand() -> None:
    judged = (np.array([2, 1, 3, 1, 1, 1, 1, 1, 0], np.float32), np.array([0, 1, 3, 0, 1, 0, 1, 2, 3]), [0, 3, 5, 9])
    grades = sp.csr_matrix(judged, shape=(3, 4))
    ids = ("a", "b", "c", "d")
    task = RankingTask(ids[:3], ids, grades, sp.csr_matrix(np.zeros((3, 4), bool)), {}, 1.0)
    # Query 1: 2 > 1 and 3 > 1 are right, 3 > 2 is wrong: (2 - 1) / 3. Query 2: one grade. Query 3: of 6 pairs, 3 have
    # different grades; 2 of them are right and 1 has equal scores.
    scores = np.array([0.9, 0.1, 0.5, 0.3, 0.2, 0.4, 0.5, 0.2, 0.2])
    np.testing.assert_allclose(grade_agreement(task, scores), [1 / 3, np.nan, 2 / 6])


def test_results_are_used_again(graded: Path, tmp_path: Path) -> None:
    first = run("T7b", graded, tmp_path)
    said: list[str] = []
    again = BY_ID["T7b"].run(TaskRequest(graded, tmp_path, FAST, small=True), lambda what, *_: said.append(what))
    assert sum("used again" in one for one in said) == 6
    assert again == first


def test_T12_T7_has_a_column_a_dimension(graded: Path, tmp_path: Path) -> None:
    section = run("T12-T7", graded, tmp_path, ("graded-pca", "graded-s2net"))
    assert [table.title for table in section.tables] == [f"{name} by dimensions" for name in PAPER_T12]
    assert section.tables[0].columns == ("system", "4", "8")
    assert section.tables[0].rows[-1][0] == "S2Net, paper"
    assert "best of N, N/2 and N/4" in section.sentences[-1]


def test_a_collection_of_relevant_documents_alone_is_cross_validated(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made", only_relevant=True)
    section = run("T7b-judged", folder, tmp_path / "out", ("graded-tfidf", "graded-ssi", "graded-ranking-svm"))
    assert "cross-validated over queries in 2 folds" in section.sentences[1]
    assert len(section.tables[0].rows) == 3
    assert all(row[1] for row in section.tables[0].rows)


def test_T7a_says_why_there_is_no_auc_of_relevant_pairs_alone(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made", only_relevant=True)
    section = run("T7a", folder, tmp_path / "out", ("graded-tfidf", "graded-bm25"))
    titles = [row[0] for row in section.tables[0].rows]
    assert titles[0] == "TF-IDF (all judged pairs are relevant, or none is)"
    assert titles[1].startswith("BM25, tuned (") and "pairs are relevant" in titles[1]


def test_grades_may_be_fractions(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made", fractions=True)
    section = run("T7b-judged", folder, tmp_path / "out", ("graded-tfidf", "graded-s2net"))
    assert all(row[1] for row in section.tables[0].rows)


def test_a_system_that_cannot_be_fitted_has_its_reason(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made")
    section = run("T7b-judged", folder, tmp_path / "out", ("graded-tfidf", "graded-s2net-pseudo"))
    assert "needs pseudo-documents" in section.tables[0].rows[1][0]


def test_unknown_systems_are_named(graded: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no system 'grated-tfidf'"):
        run("T7b", graded, tmp_path, ("grated-tfidf",))


def test_every_named_system_is_there_and_every_paper_figure_has_one() -> None:
    names = {*T7_SYSTEMS, *JUDGED_SYSTEMS, *DIMENSION_SYSTEMS, *PAPER}
    assert names <= set(BY_NAME)
    assert PAPER["graded-s2net"] == {"AUC": "0.892", "nDCG@1": "0.855", "nDCG@3": "0.883", "nDCG@5": "0.901"}


def made_results(values: dict[tuple[str, str], list[float]]) -> Results:
    titles = {system: system for _, system in values}
    return Results("x", titles, {place: {"nDCG@10": np.array(one)} for place, one in values.items()})


def test_E11_a_query_that_is_tested_twice_counts_once() -> None:
    results = made_results({("s1", "a"): [0.0, 1.0], ("s2", "a"): [0.5, 0.8], ("s1", "b"): [1, 1], ("s2", "b"): [1, 1]})
    found = averaged(replace(results, groups={"s1": ("q1", "q2"), "s2": ("q2", "q3")}))
    np.testing.assert_allclose(found.values[ALL, "a"]["nDCG@10"], [0.0, 0.75, 0.8])
    assert found.paired("b", "a", "nDCG@10").n == 3
    rows = spread_over_studies(results, "nDCG@10", "title").rows
    assert rows[0] == ("a", "0.575", "0.106", "0.500", "0.650", "2")
    with pytest.raises(ShapeMismatch, match="s2"):
        averaged(replace(results, groups={"s1": ("q1", "q2")}))


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("T7a", "esci_sample"),
        ("T7b", "esci_sample"),
        ("T7b-judged", "cranfield"),
        ("T7b-judged", "cisi"),
        ("T7b-judged", "wikimedia_discernatron"),
    ],
)
def test_small_runs_on_the_real_collections(ssi_data: Path, tmp_path: Path, task: str, name: str) -> None:
    systems = ("graded-tfidf", "graded-s2net", "graded-ssi", "graded-pca", "graded-ranking-svm")
    section = run(task, ssi_data / name, tmp_path, systems)
    assert len(section.tables[0].rows) == len(systems)
    assert all(row[1] for row in section.tables[0].rows)
