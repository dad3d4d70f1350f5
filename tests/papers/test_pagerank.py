"""PageRank against the linear system, and graphs whose ranks are known."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.methods.pagerank import pagerank
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError


def test_B21_two_documents_of_which_one_links_nowhere() -> None:
    # 0 -> 1, 1 links nowhere. P = [[.075, .925], [.5, .5]]; pi_0 = .075 pi_0 + .5 pi_1.
    links = sp.csr_matrix(np.array([[0, 1], [0, 0]], np.float32))
    np.testing.assert_allclose(pagerank(links), [0.5 / 1.425, 0.925 / 1.425], rtol=1e-10)


def test_B21_a_ring_ranks_all_alike_and_a_star_its_centre() -> None:
    ring = sp.csr_matrix(np.roll(np.eye(5), 1, axis=1))
    np.testing.assert_allclose(pagerank(ring), 0.2)
    star = sp.csr_matrix(np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]], np.float32))
    ranks = pagerank(star)
    assert ranks.argmax() == 0
    # c = .0375 + .85 * 3 l and l = .0375 + .85 c / 3.
    assert ranks[0] == pytest.approx((0.0375 + 2.55 * 0.0375) / (1 - 0.85**2))


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 0.85]))
def test_B21_is_stationary_and_sums_to_one(seed: int, damping: float) -> None:
    rng = np.random.default_rng(seed)
    n = 8
    dense = rng.poisson(0.3, (n, n)).astype(np.float64)
    degree = dense.sum(axis=1, keepdims=True)
    P = np.where(degree > 0, damping * dense / np.maximum(degree, 1) + (1 - damping) / n, 1 / n)
    system = np.vstack([P.T - np.eye(n), np.ones(n)])
    expected = np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0]
    ranks = pagerank(sp.csr_matrix(dense), damping)
    np.testing.assert_allclose(ranks, expected, atol=1e-9)
    assert ranks.sum() == pytest.approx(1.0)


def test_what_has_no_rank_is_refused() -> None:
    square = sp.csr_matrix(np.array([[0, 1], [0, 0]], np.float32))
    with pytest.raises(ShapeMismatch, match="not square"):
        pagerank(sp.csr_matrix(np.zeros((2, 3))))
    with pytest.raises(InputError, match="not negative"):
        pagerank(-square)
    with pytest.raises(InputError, match="at least one document"):
        pagerank(sp.csr_matrix(np.zeros((0, 0))))
    with pytest.raises(ConfigError, match="damping is 1"):
        pagerank(square, damping=1.0)
    with pytest.raises(TrainingError, match="after 2 steps"):
        pagerank(square, max_iterations=2)
