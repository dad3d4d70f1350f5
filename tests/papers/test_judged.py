# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""Judged collections: what is read, how queries are split, which documents are ranked, pseudo-document queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from papers.corpora import PSEUDO, Collection, folds, make_collection, read_collection, repeated_splits, studies_of
from papers.graded_systems import judged_pairs, training_preferences
from reranker.errors import InputError
from tests.papers.made_collections import write_collection

DOCUMENTS = {"a": ("sun", "warm day"), "b": ("rain", "wet day rain"), "c": ("snow", "cold")}
QUERIES = {"q1": "sun day", "q2": "rain", "q3": "cold snow"}
GRADES = {"q1": {"a": 3.0, "b": 0.0}, "q2": {"b": 2.0, "a": 1.0}, "q3": {"c": 3.0, "b": 1.0}}


def small() -> Collection:
    return make_collection("made", DOCUMENTS, QUERIES, GRADES)


def test_titles_count_three_times() -> None:
    made = small()
    counts = dict(zip(made.documents.words, made.documents.counts[1].toarray()[0].tolist(), strict=True))
    assert counts == {"day": 1, "rain": 4, "wet": 1, "cold": 0, "snow": 0, "sun": 0, "warm": 0}


def test_a_query_ranks_what_was_judged_for_it_alone() -> None:
    trial = small().trial(np.array([0, 1]), 0)
    assert trial.task.document_ids == ("a", "b")
    assert trial.task.grades.toarray().tolist() == [[3, 0], [1, 2]]
    assert trial.task.grades.nnz == 4, "a judged 0 is stored"
    assert trial.task.excluded.nnz == 0
    other = small().trial(np.array([0, 2]), 0)
    assert other.task.excluded.toarray().tolist() == [[False, False, True], [True, False, False]]


def test_where_only_relevant_documents_are_listed_every_document_is_ranked() -> None:
    made = make_collection("made", DOCUMENTS, QUERIES, {"q1": {"a": 1.0}, "q2": {"b": 1.0}, "q3": {"c": 1.0}})
    trial = made.trial(np.array([1]), 0)
    assert made.whole
    assert trial.task.document_ids == ("a", "b", "c")
    assert trial.task.excluded.nnz == 0


def test_A25_labels_take_the_place_of_grades_and_zeros_stay() -> None:
    made = small().regraded({3.0: 2.0, 2.0: 1.0})
    assert made.grades.toarray().tolist() == [[2, 0, 0], [1, 1, 0], [0, 1, 2]]
    assert made.grades.nnz == 6


def test_splits_are_by_group_and_cover_every_query(tmp_path: Path) -> None:
    made = read_collection(write_collection(tmp_path / "made"))
    n = len(made.query_ids)
    for _, split in repeated_splits(made, 3, 0):
        parts = [set(part.tolist()) for part in (split.train, split.valid, split.test)]
        assert sum(map(len, parts)) == n and len(set.union(*parts)) == n
        assert len(parts[2]) == round(0.4 * n)
    tested = np.concatenate([split.test for _, split in folds(made, 4, 0)])
    assert sorted(tested.tolist()) == list(range(n))


def test_queries_of_a_topic_stay_on_one_side() -> None:
    grades = {f"q{number}": {"a": 1.0, "b": 0.0} for number in range(12)}
    topics = {query: f"t{int(query[1:]) % 4}" for query in grades}
    made = make_collection("made", DOCUMENTS, dict.fromkeys(grades, "sun"), grades, group_of=topics)
    for _, split in folds(made, 4, 1):
        groups = made.group_of()
        sides = [set(groups[part].tolist()) for part in (split.train, split.valid, split.test)]
        assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])


def test_training_sees_no_judgement_of_the_test(tmp_path: Path) -> None:
    made = read_collection(write_collection(tmp_path / "made"))
    study = next(studies_of(made, repeated_splits(made, 1, 0), 0))
    assert study.judged is not None
    (_, split) = next(repeated_splits(made, 1, 0))
    np.testing.assert_array_equal(study.judged.toarray(), made.grades[split.train].toarray())
    assert study.relevant.nnz == (made.grades[split.train].data >= 1).sum()
    assert study.test.task.query_ids == tuple(made.query_ids[row] for row in split.test)


def test_random_documents_stand_for_what_was_not_judged(tmp_path: Path) -> None:
    made = read_collection(write_collection(tmp_path / "made", only_relevant=True))
    study = next(studies_of(made, folds(made, 4, 0), 0))
    judged = judged_pairs(study, np.random.default_rng(0), negatives=2)
    assert study.judged is not None
    listed = study.judged.toarray()[judged.query, judged.document]
    np.testing.assert_array_equal(judged.grade, listed)
    assert (judged.grade == 0).sum() == 2 * study.judged.nnz
    assert len(set(zip(judged.query.tolist(), judged.document.tolist(), strict=True))) == len(judged)


def test_every_preference_is_of_a_greater_grade_and_every_query_weighs_the_same(tmp_path: Path) -> None:
    made = read_collection(write_collection(tmp_path / "made"))
    study = next(studies_of(made, repeated_splits(made, 1, 0), 0))
    pairs = training_preferences(study, np.random.default_rng(0))
    assert study.judged is not None
    grades = study.judged.toarray()
    assert (grades[pairs.query, pairs.better] > grades[pairs.query, pairs.worse]).all()
    np.testing.assert_allclose(np.bincount(pairs.query, pairs.weight), 1.0)


def test_R04_pseudo_documents_are_the_snippets_of_what_is_found() -> None:
    made = make_collection("made", DOCUMENTS, QUERIES, GRADES, pseudo_documents=True)
    words = np.array(made.documents.words)
    rows = made.queries.view(PSEUDO)
    # "rain" finds document b alone, whose words all fit in a snippet; idf is the documents'.
    assert set(words[rows[1].indices].tolist()) == {"rain", "wet", "day"}
    np.testing.assert_allclose(rows[1].toarray(), made.documents.rows[1].toarray(), atol=1e-6)
    # "sun day" finds a and b.
    assert set(words[rows[0].indices].tolist()) == {"sun", "warm", "day", "rain", "wet"}


def test_queries_that_cannot_be_measured_are_counted(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made")
    import gzip

    with gzip.open(folder / "qrels.tsv.gz", "at", encoding="utf-8") as file:
        file.write("nobody\td000\t1\n")
    assert read_collection(folder).dropped == {"query without a text": 1}


def test_a_collection_without_a_usable_query_is_refused() -> None:
    with pytest.raises(InputError, match="no query with a relevant document"):
        make_collection("made", DOCUMENTS, QUERIES, {})


@pytest.mark.parametrize("name", ["esci_sample", "cranfield", "cisi", "msrd_movies", "wikimedia_discernatron"])
def test_the_real_collections_are_read_small(ssi_data: Path, name: str) -> None:
    made = read_collection(ssi_data / name, small=True)
    assert len(made.query_ids) == 24
    assert made.whole == (name in ("cranfield", "cisi"))
    assert len(made.documents) <= 24 * 15
