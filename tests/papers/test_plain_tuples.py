# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""Tuples of the plain SGD: what is drawn, what never is (R09), keywords cut anew."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.product_sgd import Triples
from papers.plain_sgd import PlainData, PreferenceSampler, TripleSampler
from reranker.errors import ConfigError, ShapeMismatch, TrainingError
from reranker.training.problem import cut_to_keywords, two_rows
from tests.seeds import seeded_rng
from tests.unit.training.small_worlds import csr, unit_rows

N_DOCUMENTS = 6


def data(relevant: list[list[int]], own: list[int], known: list[list[int]] | None = None) -> PlainData:
    def links(rows: list[list[int]]) -> sp.csr_matrix:
        dense = np.zeros((len(rows), N_DOCUMENTS), np.float32)
        for row, listed in enumerate(rows):
            dense[row, listed] = 1
        return csr(dense.tolist())

    return PlainData(
        unit_rows([[0]] * len(relevant), 3),
        unit_rows([[1]] * N_DOCUMENTS, 3),
        links(relevant),
        np.array(own),
        None if known is None else links(known),
    )


def test_R09_positives_are_links_and_negatives_never_related_or_own() -> None:
    sampler = TripleSampler(data([[0, 1], [2]], own=[3, 1], known=[[4], []]))
    triples = sampler.draw(4_000, seeded_rng())
    drawn = {(q, p) for q, p in zip(triples.query, triples.positive, strict=True)}
    assert drawn == {(0, 0), (0, 1), (1, 2)}
    assert set(triples.negative[triples.query == 0]) == {2, 5}
    assert set(triples.negative[triples.query == 1]) == {0, 3, 4, 5}
    counts = np.bincount(triples.negative[triples.query == 1], minlength=6)[[0, 3, 4, 5]]
    assert counts.min() > 0.7 * counts.max()


def test_R09_training_is_uniform_over_links() -> None:
    sampler = TripleSampler(data([[0, 1, 2], [3]], own=[-1, -1]))
    assert sampler.n_links == 4
    assert np.mean(sampler.draw(8_000, seeded_rng()).query == 1) == pytest.approx(0.25, abs=0.03)


def test_R09_the_only_document_left_is_found() -> None:
    triples = TripleSampler(data([[0, 1, 2, 3]], own=[4])).draw(50, seeded_rng())
    assert set(triples.negative) == {5}


def test_R09_same_state_same_tuples() -> None:
    sampler = TripleSampler(data([[0, 1], [2]], own=[-1, -1]))
    for left, right in zip(sampler.draw(100, seeded_rng()), sampler.draw(100, seeded_rng()), strict=True):
        np.testing.assert_array_equal(left, right)


def test_R09_queries_without_any_other_document_are_never_drawn() -> None:
    sampler = TripleSampler(data([[0, 1, 2, 3, 4, 5], [2]], own=[-1, -1]))
    assert set(sampler.draw(100, seeded_rng()).query) == {1}
    with pytest.raises(TrainingError, match="no tuple can be drawn"):
        TripleSampler(data([[0, 1, 2, 3, 4, 5]], own=[-1]))
    with pytest.raises(TrainingError, match="no tuple can be drawn from 0 links"):
        TripleSampler(data([[]], own=[-1]))


def test_keywords_are_drawn_uniformly_without_replacement_at_unit_length() -> None:
    rows = csr([[3, 0, 4, 1, 0], [0, 0, 0, 0, 0], [0, 2, 0, 0, 0]])
    many = sp.csr_matrix(sp.vstack([rows] * 2_000, format="csr"))
    cut = cut_to_keywords(two_rows(many, None), 2, seeded_rng()).learned
    assert np.diff(cut.indptr).tolist()[:3] == [2, 0, 1]
    assert cut.has_sorted_indices
    length = np.sqrt(cut.multiply(cut).sum(axis=1))
    np.testing.assert_allclose(np.asarray(length).ravel()[:3], [1, 0, 1], rtol=1e-6)
    kept = np.bincount(cut[::3].indices, minlength=5)
    assert kept[[0, 2, 3]].min() > 1_230  # 2 of 3 words, 2,000 times
    ratio = cut[0].data[1] / cut[0].data[0]
    pair = rows[0].toarray()[0, cut[0].indices]
    assert ratio == pytest.approx(pair[1] / pair[0])


def test_sizes_that_do_not_fit_are_refused() -> None:
    good = data([[0], [1]], own=[-1, -1])
    with pytest.raises(ShapeMismatch, match="relevant has the shape"):
        PlainData(good.q_rows, good.d_rows, good.relevant[:1], good.own)
    with pytest.raises(ShapeMismatch, match="own texts"):
        PlainData(good.q_rows, good.d_rows, good.relevant, np.array([0, N_DOCUMENTS]))
    with pytest.raises(ConfigError, match="0 keywords"):
        PlainData(good.q_rows, good.d_rows, good.relevant, good.own, keywords=0)


def test_given_pairs_are_drawn_by_their_weights_and_never_those_of_weight_0() -> None:
    pairs = Triples(*(np.arange(3) + 10 * part for part in range(3)))
    sampler = PreferenceSampler(pairs, np.array([1.0, 3.0, 0.0]))
    drawn = sampler.draw(4_000, np.random.default_rng(0))
    assert set(drawn.query.tolist()) == {0, 1}
    np.testing.assert_array_equal(drawn.positive, drawn.query + 10)
    np.testing.assert_array_equal(drawn.negative, drawn.query + 20)
    assert abs((drawn.query == 1).mean() - 0.75) < 0.03  # 4 standard deviations


def test_pairs_without_a_weight_that_can_be_drawn_are_refused() -> None:
    pairs = Triples(*(np.arange(2) for _ in range(3)))
    with pytest.raises(TrainingError, match="above 0"):
        PreferenceSampler(pairs, np.zeros(2))
    with pytest.raises(ShapeMismatch, match="one per pair"):
        PreferenceSampler(pairs, np.ones(3))
