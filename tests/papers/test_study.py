"""What systems see: texts as study rows, trials, and what a study lacks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.word_pairs import Bilinear
from papers.registry import Fitted, System
from papers.study import Study, StudyTrial, Texts, study_texts, study_vocabulary
from reranker.errors import ShapeMismatch
from reranker.evaluation import draw_tuples, link_task

TOKENS = [["cat", "dog", "cat"], ["dog"], ["dog", "eel"], ["dog", "cat"]]


def small_study() -> Study:
    vocabulary = study_vocabulary(TOKENS, 2)
    texts = study_texts(TOKENS, vocabulary)
    task = link_task([("0", "2"), ("3", "0")], [("0", "1")], pool=["0", "1", "2", "3"])
    trial = StudyTrial(
        texts.take(np.array([0, 3])), np.arange(4), task, draw_tuples(task, np.random.default_rng(0), 10)
    )
    relevant = sp.csr_matrix((np.ones(1, np.float32), (np.array([0]), np.array([1]))), shape=(4, 4))
    return Study("small", 0, texts, texts, relevant, np.arange(4), trial, trial)


def test_rows_are_tfidf_of_the_most_frequent_words_alone() -> None:
    texts = small_study().documents
    assert texts.words == ("dog", "cat")
    assert texts.counts.toarray().tolist() == [[1, 2], [1, 0], [1, 0], [1, 1]]
    # "dog" is in every text, so its idf is 0 and "cat" alone is left.
    assert texts.rows.toarray().tolist() == [[0, 1], [0, 0], [0, 0], [0, 1]]


def test_queries_take_the_idf_of_the_documents() -> None:
    texts = small_study().documents
    query = study_texts([["cat", "dog"]], study_vocabulary(TOKENS, 2), texts.idf)
    assert query.rows.toarray().tolist() == [[0, 1]]
    assert query.counts.toarray().tolist() == [[1, 1]]


def test_a_trial_is_scored_on_its_pool_in_the_order_of_the_task() -> None:
    study = small_study()
    scores = Fitted(Bilinear.lexical()).scores(study, study.test)
    assert scores.shape == (2, 4)
    assert scores.block(0, 2).tolist() == [[1, 0, 0, 1], [1, 0, 0, 1]]


def test_plain_data_holds_links_and_the_queries_own_texts() -> None:
    data = small_study().plain_data()
    assert (data.q_rows.shape[1], data.d_rows.shape[1]) == (2, 2)
    assert data.relevant.nnz == 1
    assert data.own.tolist() == [0, 1, 2, 3]


def test_a_system_says_what_the_study_lacks() -> None:
    study = small_study()
    system = System("x", ("M01",), "x", lambda job: Fitted(Bilinear.lexical()), frozenset({"mates", "2-grams"}))
    assert system.lacks(study) == ("2-grams", "mates")


@pytest.mark.parametrize("name", ["2-grams", ""])
def test_a_view_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ShapeMismatch, match=f"no view '{name}'"):
        small_study().documents.view(name)


def test_sizes_that_do_not_fit_are_refused() -> None:
    study = small_study()
    with pytest.raises(ShapeMismatch, match="3 words"):
        Texts(study.documents.counts, study.documents.rows, ("a", "b", "c"), study.documents.idf)
    with pytest.raises(ShapeMismatch, match="1 queries"):
        StudyTrial(study.queries.take(np.array([0])), study.test.pool, study.test.task, study.test.tuples)
