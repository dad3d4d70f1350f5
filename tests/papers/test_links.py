"""Measures of links: those whose reverse was trained on are told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from papers.corpora import read_paper_corpus
from papers.measures import ONE_WAY, links_measure, retrieval_measure, without_pairs
from papers.methods.word_pairs import Bilinear
from papers.registry import Fitted
from papers.retrieval_studies import Variant, retrieval_study
from reranker.evaluation import RankingTask
from tests.papers.corpus import write_corpus


def test_pairs_left_out_are_neither_judged_nor_ranked() -> None:
    grades = sp.csr_matrix((np.array([1.0, 0.0, 2.0, 1.0], np.float32), ([0, 0, 0, 1], [0, 1, 3, 2])), shape=(2, 4))
    excluded = sp.csr_matrix((np.array([True]), ([1], [1])), shape=(2, 4))
    pairs = sp.csr_matrix((np.array([True, True, True]), ([0, 0, 1], [2, 3, 2])), shape=(2, 4))
    left = without_pairs(RankingTask(("q", "r"), ("a", "b", "c", "d"), grades, excluded), pairs)
    assert [(row, column, grade) for row, column, grade in entries(left.grades)] == [(0, 0, 1.0), (0, 1, 0.0)]
    assert [one[:2] for one in entries(left.excluded)] == [(0, 2), (0, 3), (1, 1), (1, 2)]
    assert np.diff(left.relevant().indptr).tolist() == [1, 0]


def entries(matrix: sp.csr_matrix) -> list[tuple[int, int, float]]:
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return list(zip(rows.tolist(), matrix.indices.tolist(), matrix.data.tolist(), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("links") / "made")


def test_one_way_AP_is_that_of_links_whose_reverse_was_not_trained_on(folder: Path) -> None:  # noqa: N802
    corpus = read_paper_corpus(folder, seed=0)
    back = [(target, source) for source, target in corpus.test[::3]]
    with open(folder / "links_train.tsv", "a") as file:
        file.writelines(f"{source}\t{target}\n" for source, target in back)
    corpus = read_paper_corpus(folder, seed=0)
    trained = set(corpus.train)
    study = retrieval_study(corpus, Variant("test"))
    fitted = Fitted(Bilinear.lexical())
    values = retrieval_measure(study, study.test, fitted)
    for name, whole in links_measure(study, study.test, fitted).items():
        np.testing.assert_array_equal(values[name], whole)
    scores = fitted.scores(study, study.test).block(0, len(study.test.queries))
    task = study.test.task
    n_none = 0
    for row, query in enumerate(task.query_ids):
        skipped = set(task.excluded[row].indices.tolist())
        found = {column for column in task.grades[row].indices.tolist()}
        known = {column for column in found if (task.document_ids[column], query) in trained}
        order = [c for c in np.lexsort((np.arange(scores.shape[1]), -scores[row])).tolist() if c not in skipped | known]
        hits = [rank for rank, column in enumerate(order, start=1) if column in found]
        expected = np.mean([n / rank for n, rank in enumerate(hits, start=1)]) if hits else np.nan
        n_none += not hits
        assert values[ONE_WAY][row] == pytest.approx(expected, nan_ok=True)
    assert 0 < n_none < len(task.query_ids)
    assert study.valid.reversed is None
