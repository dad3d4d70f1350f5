"""The course's nine features of one pair by hand, and of all pairs alike."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.lexical import fit_language_model
from papers.methods.ranking_svm import fit_features, with_pagerank
from reranker.errors import ConfigError, ShapeMismatch

# Word 0 stands in every document, word 3 in none.
COUNTS = sp.csr_matrix(np.array([[1, 4, 0, 0], [2, 0, 1, 0], [1, 0, 3, 0]], np.float32))
RANKS = np.array([0.5, 0.3, 0.2])
QUERIES = sp.csr_matrix(np.array([[1, 2, 0, 1], [0, 1, 1, 0]], np.float32))
DOCUMENTS = with_pagerank(COUNTS, RANKS)
SIZE = 12.0


@pytest.mark.parametrize("literal", [False, True])
def test_B23_the_features_by_hand(literal: bool) -> None:
    features = fit_features(COUNTS, lam=0.5, literal=literal)
    values = features.pairs(QUERIES[:1], DOCUMENTS[:1])[0]
    length = SIZE if literal else 5.0
    idf = np.log(3.0)  # of word 1; word 0 has ln(3/3) = 0 and adds nothing to f3 and f5
    expected = {
        "log_tf": np.log(4),
        "log_share": np.log(1 + 1 / length) + np.log(1 + 4 / length),
        "log_idf": np.log(idf),
        "log_rarity": np.log(SIZE / 4) + np.log(SIZE / 4),
        "log_share_idf": np.log(1 + 4 / length * idf),
        "log_share_rarity": np.log(1 + 1 / length * SIZE / 4) + np.log(1 + 4 / length * SIZE / 4),
        "cosine": 1.0,  # both have word 1 alone among the words with an idf
        "pagerank": 0.5,
        "language_model": np.log(0.5 * 1 / 5 + 0.5 * 4 / 12) + 2 * np.log(0.5 * 4 / 5 + 0.5 * 4 / 12),
    }
    assert values.tolist() == pytest.approx([*expected.values()], rel=1e-5)


def test_B23_matrices_and_pairs_agree() -> None:
    features = fit_features(COUNTS, lam=0.3)
    matrices = list(features.matrices(QUERIES, DOCUMENTS))
    assert len(matrices) == 9
    for query, document in ((0, 2), (1, 1), (1, 0)):
        pair = features.pairs(QUERIES[query], DOCUMENTS[document])[0]
        np.testing.assert_allclose([one[query, document] for one in matrices], pair, rtol=1e-6, atol=1e-9)


def test_B23_the_page_rank_stays_with_its_document() -> None:
    chosen = DOCUMENTS[[2, 0]]
    assert fit_features(COUNTS).pairs(QUERIES, chosen)[:, 7].tolist() == [0.2, 0.5]


def test_what_does_not_fit_is_refused() -> None:
    features = fit_features(COUNTS)
    with pytest.raises(ShapeMismatch, match="one more column for documents"):
        features.pairs(QUERIES[:1], COUNTS[:1])
    with pytest.raises(ShapeMismatch, match="one per document"):
        with_pagerank(COUNTS, RANKS[:2])
    with pytest.raises(ConfigError, match="lam above 0"):
        fit_features(COUNTS, lam=0.0)
    assert fit_features(COUNTS, lam=0.4).language_model.lam == fit_language_model(COUNTS, 0.4).lam
