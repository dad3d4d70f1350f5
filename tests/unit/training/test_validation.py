"""Validation of what is known: documents without a grade can be left out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.evaluation.protocols import qrels_task
from reranker.models.scorers import DocumentForm
from reranker.records import Pair
from reranker.training import from_judgements, from_pairs
from reranker.training.training_set import mix
from reranker.training.validation import Validator, map_by


def rows(values: list[list[float]]) -> sp.csr_matrix:
    return sp.csr_matrix(np.array(values, dtype=np.float32))


QUERIES = rows([[1, 0], [0, 1]])
DOCUMENTS = rows([[0.9, 0.1], [0.5, 0.6], [0.1, 0.9], [0.8, 0.8]])
TASK = qrels_task({"x": {"b": 1.0, "c": 0.0}, "y": {"a": 1.0, "c": 0.0, "b": 0.0}}, ["x", "y"], "abcd")
NOTHING = np.zeros((2, 1), np.float32)


def test_documents_without_a_grade_stand_last_or_take_part() -> None:
    """By q.d: x ranks a d b c, y ranks c d b a. Of the graded ones alone: b c, and c b a."""
    rng = np.random.default_rng(0)
    whole = Validator(TASK, QUERIES, DOCUMENTS, 1.0, rng)
    known = Validator(TASK, QUERIES, DOCUMENTS, 1.0, rng, judged_only=True)
    assert whole.lexical == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert known.lexical == pytest.approx((1 + 1 / 3) / 2)
    assert map_by([known], NOTHING, DocumentForm("linear", NOTHING)) == pytest.approx(known.lexical)
    assert known.lexical == pytest.approx((1 + 1 / 3) / 2)


def test_the_learned_part_moves_known_documents_among_themselves() -> None:
    known = Validator(TASK, QUERIES, DOCUMENTS, 1.0, np.random.default_rng(0), judged_only=True)
    U, V = np.array([[0.0], [5.0]], np.float32), np.array([[1.0], [0.0]], np.float32)
    assert map_by([known], U, DocumentForm("linear", V)) == pytest.approx(1.0)


def test_the_mark_of_clicks_stays_with_parts_and_mixtures() -> None:
    from dataclasses import replace

    clicks = replace(from_pairs([Pair("a", "1", "2"), Pair("b", "2", "1")]), judged_only=True)
    judged = from_judgements({"q": {"1": 1.0}}, {"q": "text"})
    assert not judged.judged_only
    assert clicks.restricted(["a"]).judged_only
    assert mix((judged, 1.0), (clicks, 1.0)).judged_only
    assert not mix((judged, 1.0), (judged, 1.0)).judged_only
