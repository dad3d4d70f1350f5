"""Query expansion: the formula by hand, beta = 0 as TF-IDF, who gives feedback."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods import lexical
from papers.methods.inverted_file import VectorSpace
from papers.methods.lexical import QueryExpansion
from reranker.errors import ConfigError, ShapeMismatch

DOCUMENTS = sp.csr_matrix(np.array([[0.6, 0.8, 0], [0.8, 0, 0.6], [0, 1, 0], [0, 0, 1]], np.float32))
QUERIES = sp.csr_matrix(np.array([[1, 0, 0], [0, 0, 1]], np.float32))


def test_B02_the_best_documents_join_the_query() -> None:
    # First pass: query 0 finds documents 1 (.8) and 0 (.6); query 1 finds 3 (1) and 1 (.6).
    scorer = QueryExpansion(DOCUMENTS, beta=0.5, n_feedback=2)
    expected = [[1 + 0.25 * 1.4, 0.25 * 0.8, 0.25 * 0.6], [0.25 * 0.8, 0, 1 + 0.25 * 1.6]]
    np.testing.assert_allclose(scorer.expanded(QUERIES).toarray(), expected, rtol=1e-6)
    scores = np.array(expected) @ DOCUMENTS.toarray().T
    np.testing.assert_allclose(scorer.score_matrix(QUERIES, DOCUMENTS), scores, rtol=1e-6)
    np.testing.assert_allclose(scorer.score_pairs(QUERIES, DOCUMENTS[2:]), [scores[0, 2], scores[1, 3]], rtol=1e-6)


def test_B02_without_weight_it_is_tf_idf() -> None:
    scorer = QueryExpansion(DOCUMENTS, beta=0.0, n_feedback=3)
    expected = VectorSpace().score_matrix(QUERIES, DOCUMENTS)
    np.testing.assert_allclose(scorer.score_matrix(QUERIES, DOCUMENTS), expected, rtol=1e-6)


def test_documents_without_a_shared_word_give_no_feedback() -> None:
    # Only documents 0 and 1 share a word with query 0; the sum is still divided by E = 4.
    expanded = QueryExpansion(DOCUMENTS, beta=1.0, n_feedback=4).expanded(QUERIES[:1]).toarray()
    np.testing.assert_allclose(expanded, [[1 + 1.4 / 4, 0.8 / 4, 0.6 / 4]], rtol=1e-6)


def test_equal_scores_go_to_the_lower_number() -> None:
    pool = sp.csr_matrix(np.array([[1, 0], [0, 1], [0, 1]], np.float32))
    pool = sp.hstack([pool, sp.csr_matrix(np.eye(3, dtype=np.float32))], format="csr")
    query = sp.csr_matrix(np.array([[0, 1, 0, 0, 0]], np.float32))
    np.testing.assert_allclose(QueryExpansion(pool, 1.0, 1).expanded(query).toarray(), [[0, 2, 0, 1, 0]])


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = QueryExpansion(DOCUMENTS, beta=0.7, n_feedback=2)
    whole = scorer.expanded(QUERIES).toarray()
    monkeypatch.setattr(lexical, "_BLOCK_BYTES", 1)
    np.testing.assert_array_equal(scorer.expanded(QUERIES).toarray(), whole)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="beta is -1"):
        QueryExpansion(DOCUMENTS, beta=-1)
    with pytest.raises(ConfigError, match="at least 1 document"):
        QueryExpansion(DOCUMENTS, n_feedback=0)
    with pytest.raises(ShapeMismatch, match="one vocabulary"):
        QueryExpansion(DOCUMENTS).score_matrix(QUERIES[:, :2], DOCUMENTS[:, :2])
