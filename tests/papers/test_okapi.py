"""BM25 of count rows by hand, and against the baseline over fields."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.lexical import Okapi, fit_okapi
from reranker.errors import ConfigError, ShapeMismatch, TrainingError
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus

COUNTS = sp.csr_matrix(np.array([[3, 1, 0], [0, 2, 2], [0, 1, 0]], np.float32))
QUERIES = sp.csr_matrix(np.array([[2, 0, 0], [0, 1, 1], [1, 1, 0]], np.float32))


def test_B20_by_hand() -> None:
    # Mean length 3; document 0 has 4 tokens: norm = 1.2 * (.25 + .75 * 4 / 3) = 1.5; df of word 0 is 1 of 3.
    idf = np.log(1 + 2.5 / 1.5)
    scores = fit_okapi(COUNTS).score_matrix(QUERIES, COUNTS)
    assert scores[0].tolist() == pytest.approx([2 * idf * 3 * 2.2 / (3 + 1.5), 0, 0])
    # Word 1 stands in every document: ln(1 + .5 / 3.5); document 2 has 1 token: norm = 1.2 * .5 = .6.
    assert scores[1, 2] == pytest.approx(np.log(8 / 7) * 2.2 / 1.6)


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.1, 0.5), (8.0, 0.0)])
def test_B20_equals_the_baseline_over_one_field(k1: float, b: float) -> None:
    """Up to the word of all documents, which the baseline leaves out, and what a query is divided by."""
    rare, rare_queries = (sp.csr_matrix(rows.toarray() * np.array([1, 0, 1], np.float32)) for rows in (COUNTS, QUERIES))
    corpus = LexicalCorpus([rare])
    settings = LexicalSettings("bm25", (1.0,), (1.0,), k1, (b,), (float(rare.sum()) / 3,))
    texts = rare_queries
    corpus_scores = corpus.scorer(corpus.text_queries(texts), np.arange(3), settings).block(0, 3)
    scorer = fit_okapi(rare, k1, b)
    expected = scorer.score_matrix(texts, rare)
    lengths = np.sqrt(((texts.toarray() * scorer.idf) ** 2).sum(axis=1))
    np.testing.assert_allclose(corpus_scores * lengths[:, None], expected, rtol=1e-5)
    np.testing.assert_allclose(scorer.score_pairs(texts, rare), np.diag(expected), rtol=1e-5)
    np.testing.assert_allclose(scorer.score_matrix(texts, rare[1:2]), expected[:, 1:2], rtol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="k1 is -1"):
        fit_okapi(COUNTS, k1=-1)
    with pytest.raises(TrainingError, match="no word"):
        fit_okapi(sp.csr_matrix(np.zeros((2, 3))))
    with pytest.raises(ShapeMismatch, match="idf over 2"):
        Okapi(np.ones(2), 1.0).score_matrix(QUERIES, COUNTS)
