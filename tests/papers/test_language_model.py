"""Query likelihood: the course's dice, a collection by hand, the ends of lambda, the sweep."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.fitting import best_of
from papers.methods.lexical import JelinekMercer, fit_language_model
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError
from reranker.lexical.tuning import TENTHS

COUNTS = sp.csr_matrix(np.array([[3, 1, 0], [0, 2, 2], [0, 0, 0]], np.float32))
QUERIES = sp.csr_matrix(np.array([[1, 2, 0], [0, 0, 1], [0, 0, 0]], np.float32))


def test_B19_the_dice_of_the_course() -> None:
    # Faces 1..6; D1 shows odd faces with 1/3 - e and even ones with e, D2 the reverse; e = 1/12 in 24 throws.
    e = 1 / 12
    throws = np.array([[6, 2, 6, 2, 6, 2], [2, 6, 2, 6, 2, 6]], np.float32)
    model = fit_language_model(sp.csr_matrix(throws), lam=0.0)
    sequence = sp.csr_matrix(np.array([[1, 1, 2, 0, 0, 0]], np.float32))  # 1, 3, 3, 2
    expected = [[(1 / 3 - e) ** 3 * e, (1 / 3 - e) * e**3]]
    np.testing.assert_allclose(np.exp(model.score_matrix(sequence, sp.csr_matrix(throws))), expected, rtol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.2, 1.0])
def test_B19_scores_per_word_compare_with_the_collection(lam: float) -> None:
    plain, per_word = fit_language_model(COUNTS, lam), fit_language_model(COUNTS, lam, per_word=True)
    chance = np.array([3 * np.log(3 / 8), np.log(2 / 8), 0.0])
    expected = (plain.score_matrix(QUERIES, COUNTS) - chance[:, None]) / np.array([[3], [1], [1]])
    np.testing.assert_allclose(per_word.score_matrix(QUERIES, COUNTS), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(per_word.score_pairs(QUERIES, COUNTS), np.diag(expected), rtol=1e-5, atol=1e-6)
    if lam == 1.0:
        np.testing.assert_allclose(expected, 0.0, atol=1e-6)  # the collection's own likelihood


@pytest.mark.parametrize("lam", [0.2, 0.5, 1.0])
def test_B19_scores_are_the_logs_of_the_formula(lam: float) -> None:
    collection = np.array([3, 3, 2]) / 8
    shares = np.array([[0.75, 0.25, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0]])
    expected = QUERIES.toarray() @ np.log((1 - lam) * shares + lam * collection).T
    model = fit_language_model(COUNTS, lam)
    np.testing.assert_allclose(model.collection, collection)
    np.testing.assert_allclose(model.score_matrix(QUERIES, COUNTS), expected, rtol=1e-6)
    np.testing.assert_allclose(model.score_pairs(QUERIES, COUNTS), np.diag(expected), rtol=1e-6)


def test_B19_without_smoothing_a_missing_word_is_impossible() -> None:
    model = fit_language_model(COUNTS, lam=0.0)
    expected = np.array([[np.log(0.75) + 2 * np.log(0.25), -np.inf, -np.inf], [-np.inf, np.log(0.5), -np.inf], [0] * 3])
    np.testing.assert_allclose(model.score_matrix(QUERIES, COUNTS), expected, rtol=1e-6)
    np.testing.assert_allclose(model.score_pairs(QUERIES, COUNTS), np.diag(expected), rtol=1e-6)


def test_B19_all_smoothing_scores_all_documents_alike() -> None:
    scores = fit_language_model(COUNTS, lam=1.0).score_matrix(QUERIES, COUNTS)
    np.testing.assert_array_equal(scores, scores[:, :1].repeat(3, axis=1))


def test_words_outside_of_the_collection_are_left_out() -> None:
    wide = sp.csr_matrix((COUNTS.data, COUNTS.indices, COUNTS.indptr), shape=(3, 4))
    queries = sp.csr_matrix(np.array([[1, 2, 0, 5]], np.float32))
    other = sp.csr_matrix(np.array([[3, 1, 0, 0]], np.float32))
    for lam in (0.0, 0.3):
        model = fit_language_model(wide, lam)
        plain = fit_language_model(COUNTS, lam)
        np.testing.assert_allclose(model.score_matrix(queries, other), plain.score_matrix(QUERIES[:1], COUNTS[:1]))


def test_B19_the_sweep_keeps_the_best_lambda() -> None:
    # Wrong order costs 1: query 0 wants document 1, which lacks its first word, so only lambda = 1 ties the two.
    def loss(model: JelinekMercer) -> float:
        scores = model.score_matrix(QUERIES[:1], COUNTS)[0]
        return float(scores[0] > scores[1]) + 0.5 * float(scores[0] == scores[1])

    lam, model, value = best_of(TENTHS, lambda lam: fit_language_model(COUNTS, lam), loss)
    assert lam == model.lam == 1.0 and value == 0.5
    assert pytest.approx([step / 10 for step in range(11)]) == TENTHS
    assert loss(fit_language_model(COUNTS, 0.5)) == 1.0


def test_settings_and_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        fit_language_model(COUNTS, 1.5)
    with pytest.raises(TrainingError, match="no word"):
        fit_language_model(COUNTS[2:])
    with pytest.raises(InputError, match="sum to 1"):
        JelinekMercer(np.array([0.5, 0.2]))
    with pytest.raises(ShapeMismatch, match="use one vocabulary"):
        fit_language_model(COUNTS).score_matrix(QUERIES[:, :2], COUNTS[:, :2])
    with pytest.raises(InputError, match="d_rows holds negative"):
        fit_language_model(COUNTS).score_matrix(QUERIES, -COUNTS)
