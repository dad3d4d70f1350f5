"""Boolean retrieval: the course's example, and texts as queries for all or any of their words."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.inverted_file import BooleanScorer
from reranker.errors import ConfigError, ShapeMismatch

# d1 (prog, lang, C), d2 (prog, lang), d3 (java) over (prog, lang, C, java): COURSE's example.
ROWS = sp.csr_matrix(np.array([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]], np.float32))


def test_B17_the_example_of_the_course_matches_d1_alone() -> None:
    # prog AND lang AND (C OR java): a document matches that satisfies one of the two conjuncts.
    conjuncts = sp.csr_matrix(np.array([[1, 1, 1, 0], [1, 1, 0, 1]], np.float32))
    assert BooleanScorer("AND").score_matrix(conjuncts, ROWS).max(axis=0).tolist() == [1, 0, 0]


def test_B17_scorers_of_texts_ask_for_all_or_any_word() -> None:
    queries = sp.csr_matrix(np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1]], np.float32))
    np.testing.assert_array_equal(BooleanScorer("AND").score_matrix(queries, ROWS), [[1, 0, 0], [1, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(BooleanScorer("OR").score_matrix(queries, ROWS), [[1, 1, 0], [0, 0, 0], [1, 1, 1]])
    for scorer in (BooleanScorer("AND"), BooleanScorer("OR")):
        np.testing.assert_array_equal(scorer.score_pairs(queries, ROWS), np.diag(scorer.score_matrix(queries, ROWS)))


def test_scorers_refuse_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="choose AND or OR"):
        BooleanScorer("XOR")  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="use one vocabulary"):
        BooleanScorer().score_matrix(ROWS[:, :2], ROWS)
    with pytest.raises(ShapeMismatch, match="not pairs"):
        BooleanScorer().score_pairs(ROWS[:2], ROWS)
