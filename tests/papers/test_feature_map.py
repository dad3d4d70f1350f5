# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""Feature maps, DICE neighbours and compositions, by hand and by the formulas of the papers."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.dice import ngrams
from papers.methods.rows import frequent_ngrams, ngram_counts
from papers.methods.word_pairs import (
    Bilinear,
    BlockPairs,
    DenseWordPairs,
    HashKernel,
    Mapped,
    Mix,
    correlated_map,
    dice_neighbours,
    identity_map,
    join_columns,
    ordered_map,
    top_n_map,
)
from reranker.errors import InputError, ShapeMismatch
from tests.reference.plain_sgd import pair_hash
from tests.seeds import seeded_rng

COUNTS = sp.csr_matrix(np.array([[1, 2, 0, 0], [3, 1, 1, 0], [0, 0, 1, 0], [1, 0, 0, 5]], np.float32))
"""Words 0 to 3 are in 3, 2, 2 and 1 documents; 0 and 1 share 2, 0 and 2 share 1, 1 and 2 share 1, 0 and 3 share 1."""
N_WORDS, N_FREQUENT = 12, 5


def random_rows(offset: int, n: int, width: int = N_WORDS) -> sp.csr_matrix:
    rng = seeded_rng(offset)
    return sp.csr_matrix((rng.random((n, width)) * (rng.random((n, width)) < 0.4)).astype(np.float32))


Q, D = random_rows(0, 4), random_rows(1, 7)
NEIGHBOURS = np.array([[i % N_FREQUENT, (i * 3 + 1) % N_FREQUENT] for i in range(N_WORDS)], np.int32)


def test_M11_dice_neighbours_by_hand() -> None:
    # DICE: 0-1 4/5, 0-2 2/5, 1-2 2/4, 3-0 2/4; each word with itself 1; 3 shares nothing with 1 and 2
    found = dice_neighbours(COUNTS, 3, 3)
    assert found.tolist() == [[0, 1, 2], [1, 0, 2], [2, 1, 0], [0, -1, -1]]
    assert found.dtype == np.int32
    assert dice_neighbours(COUNTS, 3, 1).tolist() == [[0], [1], [2], [0]]


def test_M11_ties_go_to_the_lower_word_and_every_frequent_word_is_its_own_first() -> None:
    counts = sp.csr_matrix(np.array([[1, 1, 1, 1], [0, 0, 0, 1]], np.float32))
    assert dice_neighbours(counts, 3, 2)[3].tolist() == [0, 1]
    dense = (seeded_rng().random((40, 9)) < 0.4).astype(np.float32)
    dense[0] = 1
    assert dice_neighbours(sp.csr_matrix(dense), 9, 1)[:, 0].tolist()[:1] == [0]
    both = (dense.T @ dense) * 2 / (dense.sum(0)[:, None] + dense.sum(0)[None, :])
    np.testing.assert_array_equal(dice_neighbours(sp.csr_matrix(dense), 9, 4), np.argsort(-both, 1, "stable")[:, :4])


def test_M11_a_frequent_word_is_its_own_first_also_beside_another_of_the_same_documents() -> None:
    # Words 0, 1 and 3 stand in the same two documents: their DICE is 1 throughout (A13).
    counts = sp.csr_matrix(np.array([[1, 1, 0, 1], [2, 1, 1, 1], [0, 0, 1, 0]], np.float32))
    assert dice_neighbours(counts, 3, 2).tolist() == [[0, 1], [1, 0], [2, 0], [0, 1]]
    whole = dice_neighbours(counts, 4, 1)
    np.testing.assert_array_equal(correlated_map(whole, 4).matrix.toarray(), np.eye(4))


def test_M11_stored_zeros_do_not_count_as_present() -> None:
    zeros = COUNTS.copy()
    zeros.data[zeros.data == 5] = 0
    assert dice_neighbours(zeros, 3, 1)[3].tolist() == [-1]


@pytest.mark.parametrize(("n_frequent", "k"), [(0, 1), (5, 1), (3, 0)])
def test_M11_refuses_what_is_out_of_reach(n_frequent: int, k: int) -> None:
    with pytest.raises(InputError, match="are not possible"):
        dice_neighbours(COUNTS, n_frequent, k)


def test_M11_refuses_other_documents_for_the_words() -> None:
    with pytest.raises(ShapeMismatch, match="4 and 3 documents"):
        dice_neighbours(COUNTS, 2, 1, frequent_rows=COUNTS[:3])


def test_correlated_rows_by_hand() -> None:
    neighbours = np.array([[0, 1], [1, 0], [1, -1]], np.int32)
    rows = sp.csr_matrix(np.array([[0, 2, 6]], np.float32))
    mapped = correlated_map(neighbours, 2).rows(rows)
    np.testing.assert_array_equal(mapped.toarray(), [[1, 4]])  # word 1: half to each; word 2: half to 1, half to none
    assert mapped.dtype == np.float32
    chosen = correlated_map(neighbours, 2, np.array([True, True, False])).rows(rows)
    np.testing.assert_array_equal(chosen.toarray(), [[1, 1]])


def test_M12_own_neighbours_are_the_model_itself() -> None:
    W = DenseWordPairs(seeded_rng(2).normal(size=(N_WORDS, N_WORDS)).astype(np.float32))
    own = correlated_map(np.arange(N_WORDS, dtype=np.int32)[:, None], N_WORDS)
    np.testing.assert_array_equal(Mapped(W, own).score_matrix(Q, D), W.score_matrix(Q, D))


def test_M12_one_neighbour_is_the_hash_of_the_neighbours() -> None:
    weights = seeded_rng(3).normal(size=(N_FREQUENT, N_FREQUENT)).astype(np.float32)
    one = correlated_map(NEIGHBOURS[:, :1], N_FREQUENT)
    found = Mapped(DenseWordPairs(weights), one).score_matrix(Q, D)
    expected = np.zeros((4, 7))
    for s, t in np.ndindex(N_WORDS, N_WORDS):  # h(s, t) = S_1(s) F + S_1(t), numbered from 0
        slot = NEIGHBOURS[s, 0] * N_FREQUENT + NEIGHBOURS[t, 0]
        expected += weights.ravel()[slot] * np.outer(Q.toarray()[:, s], D.toarray()[:, t])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    hashed = Mapped(HashKernel(weights.ravel(), N_FREQUENT), one)
    np.testing.assert_allclose(hashed.score_matrix(Q, D), expected, rtol=1e-4, atol=1e-6)


def test_M13_several_neighbours_are_the_average_over_all_pairs_of_neighbours() -> None:
    weights = seeded_rng(4).normal(size=(N_FREQUENT, N_FREQUENT)).astype(np.float32)
    both = correlated_map(NEIGHBOURS, N_FREQUENT)
    expected = np.zeros((4, 7))
    for s, t in np.ndindex(N_WORDS, N_WORDS):
        weight = np.mean([weights[a, b] for a in NEIGHBOURS[s] for b in NEIGHBOURS[t]])
        expected += weight * np.outer(Q.toarray()[:, s], D.toarray()[:, t])
    np.testing.assert_allclose(Mapped(DenseWordPairs(weights), both).score_matrix(Q, D), expected, rtol=1e-4, atol=1e-6)


def test_M08_top_n_map_with_exact_matching_is_the_restricted_model() -> None:
    rng = seeded_rng(6)
    U, V = (rng.normal(size=(N_WORDS, 3)).astype(np.float32) for _ in range(2))
    first = top_n_map(N_WORDS, 4)
    learned = Mapped(Bilinear(U[:4].copy(), V[:4].copy(), 0.0), first)
    mixed = Mix((learned, Bilinear.lexical()), (1.0, 1.0))
    expected = Bilinear(U, V).restricted(4)
    np.testing.assert_allclose(mixed.score_matrix(Q, D), expected.score_matrix(Q, D), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mixed.score_pairs(Q, D[:4]), expected.score_pairs(Q, D[:4]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        Bilinear(U, V).restricted(0).score_matrix(Q, D), (Q @ D.T).toarray(), rtol=1e-5, atol=1e-6
    )


def test_M10_mixture_ends_are_the_hash_kernel_and_tf_idf() -> None:
    kernel = HashKernel(seeded_rng(7).normal(size=31).astype(np.float32), 13)
    exact = Bilinear.lexical()
    for alpha, expected in ((1.0, kernel), (0.0, exact)):
        mixed = Mix((kernel, exact), (alpha, 1 - alpha))
        np.testing.assert_allclose(mixed.score_matrix(Q, D), expected.score_matrix(Q, D), rtol=1e-5, atol=1e-6)
    half = Mix((kernel, exact), (0.5, 0.5)).score_pairs(Q, D[:4])
    np.testing.assert_allclose(
        half, (kernel.score_pairs(Q, D[:4]) + exact.score_pairs(Q, D[:4])) / 2, rtol=1e-5, atol=1e-6
    )


def test_M13_as_printed_only_neighbours_of_the_same_order_meet() -> None:
    W = seeded_rng(3).normal(size=(N_FREQUENT, N_FREQUENT)).astype(np.float32)
    neighbours = NEIGHBOURS.copy()
    neighbours[7, 1] = -1
    q, d = Q.toarray(), D.toarray()
    expected = np.zeros((4, 7))
    for p in range(2):
        for s in range(N_WORDS):
            for t in range(N_WORDS):
                if neighbours[s, p] >= 0 and neighbours[t, p] >= 0:
                    expected += np.outer(q[:, s], d[:, t]) * W[neighbours[s, p], neighbours[t, p]] / 2
    scorer = Mapped(BlockPairs(W), ordered_map(neighbours, N_FREQUENT))
    np.testing.assert_allclose(scorer.score_matrix(Q, D), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scorer.score_pairs(Q, D[:4]), np.diag(expected), rtol=1e-4, atol=1e-5)


def test_M13_printed_and_preprocessed_forms_on_a_toy() -> None:
    # Words 0 and 1 are their own first neighbours and each other's second, q = word 0, d = word 1, W = I. As printed,
    # S_1 and S_2 never agree: 0. Pre-processed, both become (.5, .5): .5. With k = 1 the two forms are one.
    neighbours = np.array([[0, 1], [1, 0]], np.int32)
    q, d = (sp.csr_matrix(np.array([row], np.float32)) for row in ([1, 0], [0, 1]))
    eye = np.eye(2, dtype=np.float32)
    printed = Mapped(BlockPairs(eye), ordered_map(neighbours, 2))
    mapped = Mapped(DenseWordPairs(eye), correlated_map(neighbours, 2))
    assert printed.score_matrix(q, d).item() == 0 and printed.score_matrix(q, q).item() == pytest.approx(1)
    assert mapped.score_matrix(q, d).item() == pytest.approx(0.5)
    first = neighbours[:, :1]
    one, other = (Mapped(BlockPairs(eye), ordered_map(first, 2)), Mapped(DenseWordPairs(eye), correlated_map(first, 2)))
    np.testing.assert_allclose(one.score_matrix(q, d), other.score_matrix(q, d))


def test_M13_blocks_refuse_what_does_not_fit() -> None:
    with pytest.raises(ShapeMismatch, match="not square"):
        BlockPairs(np.zeros((2, 3), np.float32))
    with pytest.raises(ShapeMismatch, match="are not blocks of 5 features"):
        BlockPairs(np.eye(5, dtype=np.float32)).score_matrix(Q, D)
    with pytest.raises(InputError, match="not among 2 frequent words"):
        ordered_map(NEIGHBOURS, 2)


def test_M09_without_collisions_is_the_full_matrix() -> None:
    prime = 13
    weights = seeded_rng(8).normal(size=N_WORDS * prime + N_WORDS + 1).astype(np.float32)
    words = np.arange(N_WORDS)
    W = weights[pair_hash(words[:, None], words[None, :], prime, len(weights))]
    np.testing.assert_allclose(
        HashKernel(weights, prime).score_matrix(Q, D), DenseWordPairs(W).score_matrix(Q, D), rtol=1e-4, atol=1e-6
    )


def test_R05_ngrams_and_their_counts() -> None:
    texts = [["a", "b", "a", "b"], ["b", "a", "b"], ["a"], ["c", "a"]]
    assert ngrams(texts[0], 2) == ["a b", "b a", "a b"]
    assert ngrams(texts[2], 2) == []
    assert ngrams(texts[2], 1) == ["a"]
    assert frequent_ngrams(texts, 2) == ("a b", "b a")
    assert frequent_ngrams(texts, 2, min_documents=1, max_ngrams=3) == ("a b", "b a", "c a")
    counts = ngram_counts(texts, 2, ("b a", "a b"))
    assert counts.toarray().tolist() == [[1, 2], [1, 1], [0, 0], [0, 0]]
    with pytest.raises(InputError, match="0-grams"):
        ngrams(texts[0], 0)


def test_M15_two_grams_become_their_neighbour_words() -> None:
    pairs = sp.csr_matrix(np.array([[1], [1], [0], [0]], np.float32))  # in the documents of word 1
    neighbours = dice_neighbours(pairs, 4, 2, frequent_rows=COUNTS)
    assert neighbours.tolist() == [[1, 0]]  # DICE 1 with word 1, 4/5 with word 0
    joined = join_columns(COUNTS, pairs)
    assert joined.shape == (4, 5)
    assert joined.has_sorted_indices
    table = np.vstack([dice_neighbours(COUNTS, 4, 2), neighbours])
    only_pairs = correlated_map(table, 4, np.arange(5) >= 4)
    np.testing.assert_array_equal(only_pairs.rows(joined)[0].toarray(), [[0.5, 0.5, 0, 0]])
    with_words = correlated_map(table, 4, np.arange(5) >= 3)  # M16: the rare word 3 and the 2-gram
    np.testing.assert_array_equal(with_words.rows(joined)[3].toarray(), [[2.5, 0, 0, 2.5]])


def test_identity_map_changes_nothing_and_widths_are_checked() -> None:
    np.testing.assert_array_equal(identity_map(N_WORDS).rows(Q).toarray(), Q.toarray())
    with pytest.raises(ShapeMismatch, match="rows of 12 columns do not fit a map of 3"):
        identity_map(3).rows(Q)
    with pytest.raises(InputError, match="4 of 3 words"):
        top_n_map(3, 4)
    with pytest.raises(InputError, match="not among 2 frequent words"):
        correlated_map(NEIGHBOURS, 2)


@pytest.mark.parametrize("weights", [(1.0,), (1.0, float("nan"))])
def test_mixtures_refuse_weights_that_do_not_fit(weights: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="one finite weight per"):
        Mix((Bilinear.lexical(), Bilinear.lexical()), weights)
