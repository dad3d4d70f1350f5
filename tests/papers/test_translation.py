"""Word tables learned on mates: DICE and model 1 by hand, and rankings of translated queries."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from papers.methods import translation
from papers.methods.inverted_file import VectorSpace
from papers.methods.lexical import fit_language_model
from papers.methods.rows import idf_of, tfidf_rows
from papers.methods.translation import TextTable, TranslatedQueries, WordTable, fit_dice_table, fit_ibm_table
from papers.methods.word_pairs import Bilinear
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError

# das Haus / the house, das Buch / the book, ein Buch / a book: the textbook example of model 1.
DAS, HAUS, BUCH, EIN = range(4)
THE, HOUSE, BOOK, A = range(4)
GERMAN = sp.csr_matrix(np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], np.float32))
ENGLISH = sp.csr_matrix(np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], np.float32))


def test_B15b_dice_by_hand() -> None:
    table = fit_dice_table(GERMAN, ENGLISH, n_candidates=2).probabilities.toarray()
    # das: the 2*2/4 = 1; house 2*1/3, book 2*1/4: the best two are the and house.
    np.testing.assert_allclose(table[DAS], np.array([1, 2 / 3, 0, 0]) / (5 / 3))
    # Haus: the 2*1/3, house 1.
    np.testing.assert_allclose(table[HAUS], np.array([2 / 3, 1, 0, 0]) / (5 / 3))


def test_equal_candidates_go_to_the_lower_number() -> None:
    ones = sp.csr_matrix(np.ones((2, 4), np.float32))
    table = fit_dice_table(ones, ones, n_candidates=2).probabilities.toarray()
    np.testing.assert_allclose(table, [[0.5, 0.5, 0, 0]] * 4)


def dense_model_1(
    source: npt.NDArray[np.float64], target: npt.NDArray[np.float64], steps: int
) -> npt.NDArray[np.float64]:
    """Model 1 over bags of words, written as its definition: a loop over pairs and words."""
    n_f, n_e = source.shape[1], target.shape[1]
    t = ((source.T @ target) > 0).astype(np.float64)
    for _ in range(steps):
        count = np.zeros((n_f, n_e))
        for x, y in zip(source, target, strict=True):
            for e in range(n_e):
                total = sum(x[f] * t[f, e] for f in range(n_f))
                for f in range(n_f):
                    if total:
                        count[f, e] += y[e] * x[f] * t[f, e] / total
        t = count / np.maximum(count.sum(axis=1, keepdims=True), 1e-300)
    return t


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_B15b_model_1_is_its_definition(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "_BLOCK_ENTRIES", 3)
    monkeypatch.setattr(translation, "_BLOCK_WORDS", 2)
    rng = np.random.default_rng(3)
    source, target = rng.poisson(0.7, (6, 5)).astype(float), rng.poisson(0.7, (6, 4)).astype(float)
    source[:, 0] += 1
    target[:, 0] += 1
    table = fit_ibm_table(sp.csr_matrix(source), sp.csr_matrix(target), n_candidates=4, n_iterations=steps)
    np.testing.assert_allclose(table.probabilities.toarray(), dense_model_1(source, target, steps), atol=1e-12)


def test_B15b_model_1_finds_the_translations() -> None:
    table = fit_ibm_table(GERMAN, ENGLISH, n_iterations=30)
    best = table.probabilities.toarray().argmax(axis=1)
    assert best.tolist() == [THE, HOUSE, BOOK, A]
    counts = sp.csr_matrix(np.array([[0, 2, 1, 0]], np.float32))
    np.testing.assert_array_equal(WordTable(sp.csr_matrix(np.eye(4)[best])).translate(counts).toarray(), [[0, 2, 1, 0]])


def test_B15a_a_text_is_translated_as_a_whole() -> None:
    # Word 0 means 0 or 1 alike, word 1 means 1 alone: in one text, both are explained best by 1.
    emissions = sp.csr_matrix(np.array([[0.5, 0.5], [0.0, 0.5]]))
    counts = sp.csr_matrix(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
    np.testing.assert_allclose(
        TextTable(emissions, 1).translate(counts).toarray(), [[0.5, 0.5], [0.5, 1.5], [0.0, 0.0]]
    )
    np.testing.assert_allclose(
        TextTable(emissions, 2).translate(counts).toarray(), [[0.5, 0.5], [0.25, 1.75], [0.0, 0.0]]
    )
    assert TextTable(emissions, 40).translate(counts).toarray()[1, 1] == pytest.approx(2.0)


@pytest.mark.parametrize("translator", ["words", "text"])
def test_B15b_B15a_translated_queries_find_their_mates(translator: str) -> None:
    table = fit_ibm_table(GERMAN, ENGLISH, n_iterations=30)
    idf = idf_of(ENGLISH)
    chosen = table if translator == "words" else TextTable(table.probabilities)
    scorer = TranslatedQueries(chosen, VectorSpace(), idf)
    documents = tfidf_rows(ENGLISH, idf)
    scores = scorer.score_matrix(GERMAN, documents)
    assert scores.argmax(axis=1).tolist() == [0, 1, 2]
    expected = tfidf_rows(chosen.translate(GERMAN), idf).toarray() @ documents.toarray().T
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(scorer.score_pairs(GERMAN, documents), np.diag(expected), rtol=1e-5, atol=1e-7)


def test_B15c_projections_take_translated_queries() -> None:
    check_translated(identity=0.0)  # LSI projects both sides and knows no identity


def test_B15d_psi_takes_translated_queries() -> None:
    check_translated(identity=1.0)


def check_translated(identity: float) -> None:
    """Compare the scores of translated queries with q'^T (U^T V + a I) d, written out."""
    rng = np.random.default_rng(5)
    U, V = rng.normal(size=(2, 4, 3)).astype(np.float32)
    idf = idf_of(ENGLISH)
    dictionary = WordTable(sp.csr_matrix(np.eye(4)[[1, 0, 3, 2]]))
    documents = tfidf_rows(ENGLISH, idf)
    scores = TranslatedQueries(dictionary, Bilinear(U, V, identity), idf).score_matrix(GERMAN, documents)
    swapped = tfidf_rows(GERMAN[:, [1, 0, 3, 2]].tocsr(), idf).toarray().astype(np.float64)
    expected = swapped @ (U @ V.T + identity * np.eye(4)) @ documents.toarray().T
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_B15b_B19_the_likelihood_of_a_translated_query() -> None:
    table = WordTable(sp.csr_matrix(np.array([[1.0, 0, 0, 0], [0.25, 0.75, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])))
    model = fit_language_model(ENGLISH, lam=0.4)
    scores = TranslatedQueries(table, model).score_matrix(GERMAN, ENGLISH)
    log_p = np.log(0.6 * ENGLISH.toarray() / 2 + 0.4 * np.array([2, 1, 2, 1]) / 6)
    np.testing.assert_allclose(scores, GERMAN.toarray() @ table.probabilities.toarray() @ log_p.T, rtol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="sum to 1"):
        WordTable(sp.csr_matrix(np.array([[0.5, 0.2]])))
    with pytest.raises(ShapeMismatch, match="not pairs"):
        fit_dice_table(GERMAN, ENGLISH[:2])
    with pytest.raises(TrainingError, match="no pair of mates"):
        fit_ibm_table(GERMAN[:0], ENGLISH[:0])
    with pytest.raises(ConfigError, match="at least 1 translation"):
        fit_dice_table(GERMAN, ENGLISH, n_candidates=0)
    with pytest.raises(ConfigError, match="n_iterations is 0: it must be at least 1"):
        fit_ibm_table(GERMAN, ENGLISH, n_iterations=0)
    with pytest.raises(ConfigError, match="n_iterations is 0: it must be at least 1"):
        TextTable(sp.csr_matrix(np.eye(2)), 0)
    with pytest.raises(ShapeMismatch, match="the table over 4"):
        fit_dice_table(GERMAN, ENGLISH).translate(GERMAN[:, :3])
