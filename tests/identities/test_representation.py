"""The papers' texts as rows, and the lexical baselines on them, each with numbers worked out by hand."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.inverted_file import VectorSpace
from papers.methods.rows import idf_of, tfidf_rows
from papers.methods.word_pairs import Bilinear
from reranker.arrays import N_TERM_IDS
from reranker.baselines.fitted import LsiBaseline
from reranker.evaluation import draw_keywords
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus
from reranker.text.tfidf import TfIdf
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder

DOCUMENTS = [["car", "auto", "car"], ["auto", "car"], ["flower", "petal"], ["petal", "flower", "flower"]]
ONE = LexicalSettings("tfidf", (1.0,), (1.0,))


def counts_of(texts: list[list[str]], words: tuple[str, ...]) -> sp.csr_matrix:
    return sp.csr_matrix(np.array([[text.count(word) for word in words] for text in texts], np.float32))


WORDS = ("car", "auto", "flower", "petal")
COUNTS = counts_of(DOCUMENTS, WORDS)


def test_R01_tf_times_idf_of_unit_length() -> None:
    # 4 documents; "a" in 2 of them, "b" in 1: weights 3 ln 2 and 1 ln 4, over their length.
    vocabulary = Vocabulary(("a", "b"), np.array([2, 1], np.int64), 4)
    row = TfIdf(vocabulary, "raw").rows([["a", "b", "a", "a"]])
    weights = np.array([3 * np.log(2), np.log(4)])
    np.testing.assert_allclose(row.data, weights / np.linalg.norm(weights), rtol=1e-6)
    logarithmic = np.array([(1 + np.log(3)) * np.log(2), np.log(4)])
    np.testing.assert_allclose(
        TfIdf(vocabulary, "log").rows([["a", "b", "a", "a"]]).data,
        logarithmic / np.linalg.norm(logarithmic),
        rtol=1e-6,
    )


def test_R02_words_are_numbered_by_frequency_and_cut_at_a_limit() -> None:
    builder = VocabularyBuilder()
    builder.add([["rare", "often"], ["often", "some"], ["often", "some", "also"]])
    whole, limited = builder.build(), builder.build(max_words=2)
    assert whole.words == ("often", "some", "also", "rare")
    assert whole.document_frequency.tolist() == [3, 2, 1, 1]
    assert limited.words == ("often", "some")
    assert whole.ids(["rare"])[0] == 3 and limited.ids(["rare"])[0] >= 2**30


@pytest.mark.parametrize("k", [5, 10, 20])
def test_R03_k_words_of_a_document(k: int) -> None:
    counts = sp.csr_matrix((np.full(30, 2.0, np.float32), np.arange(30), [0, 12, 30]), shape=(2, N_TERM_IDS))
    vocabulary = Vocabulary(tuple(f"w{n}" for n in range(30)), np.ones(30, np.int64), 30)
    drawn = draw_keywords(counts, ["a", "b"], k, 1, vocabulary)
    assert np.diff(drawn.indptr).tolist() == [min(k, 12), min(k, 18)]
    assert set(drawn[0].indices) <= set(range(12)) and (drawn.data == 2.0).all()


def test_R08_two_vocabularies_meet_in_one_space() -> None:
    # 3 query words, 2 document words: W = U V^T is 3 x 2, and no word is shared.
    U = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    V = np.array([[2, 0], [0, 3]], np.float32)
    rows = [sp.csr_matrix(np.array([values], np.float32)) for values in ([0.5, 0, 1], [1, 2])]
    q_row, d_row = (sp.csr_matrix((one.data, one.indices, one.indptr), shape=(1, N_TERM_IDS)) for one in rows)
    # Uq = (1.5, 1), Vd = (2, 6).
    assert Bilinear(U, V, identity=0.0).score_matrix(q_row, d_row)[0, 0] == pytest.approx(1.5 * 2 + 1 * 6)


def test_R10_cached_document_vectors_give_the_same_scores() -> None:
    rng = np.random.default_rng(4)
    U, V = rng.normal(size=(2, 4, 3)).astype(np.float32)
    rows = tfidf_rows(COUNTS, idf_of(COUNTS))
    wide = sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(4, N_TERM_IDS))
    model = Bilinear(U, V)
    vectors = model.embed_documents(wide)
    np.testing.assert_allclose(vectors, rows.toarray() @ V, rtol=1e-5, atol=1e-6)
    chosen = [2, 0]  # re-ranking two candidates of the second query
    cached = model.embed_queries(wide[1]) @ vectors[chosen].T + (rows[1] @ rows[chosen].T).toarray()
    np.testing.assert_allclose(cached, model.score_matrix(wide[1], wide)[:, chosen], rtol=1e-5, atol=1e-6)


def test_B01_tf_idf_is_the_cosine() -> None:
    # All four words have idf ln 2, which cancels: (2, 1) and (1, 1) have the cosine 3 / sqrt(10).
    rows = tfidf_rows(COUNTS, idf_of(COUNTS))
    expected = np.eye(4)
    expected[0, 1] = expected[1, 0] = expected[2, 3] = expected[3, 2] = 3 / np.sqrt(10)
    wide = sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(4, N_TERM_IDS))
    for scores in (
        VectorSpace().score_matrix(rows, rows),
        Bilinear.lexical().score_matrix(wide, wide),
    ):
        np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_B03_B04_latent_dimensions_join_words_that_go_together() -> None:
    # Two documents (car, auto) and two (flower, petal), unit rows: the singular vectors are (1, 1, 0, 0) / sqrt(2) and
    # (0, 0, 1, 1) / sqrt(2), so "car" alone has the cosine 1 with the first two, and 1 / sqrt(2) by words.
    corpus = LexicalCorpus([counts_of([["car", "auto"]] * 2 + [["flower", "petal"]] * 2, WORDS)])
    lsi = LsiBaseline(corpus, ONE, 2, np.random.default_rng(0))
    queries = corpus.text_queries(counts_of([["car"]], WORDS))
    for alpha, same in ((1.0, 1.0), (0.0, np.sqrt(0.5)), (0.5, (1 + np.sqrt(0.5)) / 2)):
        scores = lsi.scorer(queries, np.arange(4), alpha).block(0, 1)
        np.testing.assert_allclose(scores, [[same, same, 0, 0]], atol=1e-6)
