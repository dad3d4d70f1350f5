# ruff: noqa: N802 - tests carry the ids of the papers' checklist

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from scipy import stats

from papers.rank_measures import MateRanks, mate_ranks, unpaired_test
from reranker.errors import InputError, ShapeMismatch
from tests.seeds import seeded_rng


class Table:
    """Scores looked up in a table by the number that a row holds."""

    def __init__(self, scores: npt.NDArray[np.number]) -> None:
        self.scores = scores.astype(np.float32)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> npt.NDArray[np.float32]:
        q, d = (rows.toarray().ravel().astype(int) for rows in (q_rows, d_rows))
        return np.asarray(self.scores[np.ix_(q, d)])


def numbered(n: int) -> sp.csr_matrix:
    return sp.csr_matrix(np.arange(n, dtype=np.float32)[:, None])


SCORES = np.array([[0.9, 0.1, 0.0], [0.95, 0.5, 0.5], [0.1, 0.7, 0.5]])


def ranks() -> MateRanks:
    return mate_ranks(Table(SCORES), numbered(3), numbered(3))


def test_E05_reciprocal_ranks_of_mates_by_hand() -> None:
    # Rows: .9 first; .5 after .95, before the equal one; .5 after .7. Columns: .9 after .95; .5 after .7; .5 = .5
    # of query 1, which comes first.
    np.testing.assert_array_equal(ranks().forward, [1, 2, 2])
    np.testing.assert_array_equal(ranks().backward, [2, 2, 2])
    assert ranks().mrr == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_E06_top_1_accuracy_of_mates_by_hand() -> None:
    np.testing.assert_array_equal(ranks().forward == 1, [True, False, False])
    np.testing.assert_array_equal(ranks().backward == 1, [False, False, False])


@pytest.mark.parametrize("cells", [1, 25, 60])
def test_blocks_change_nothing(cells: int) -> None:
    scores = seeded_rng().integers(0, 4, (12, 12))
    whole, cut = (mate_ranks(Table(scores), numbered(12), numbered(12), size) for size in (1_000, cells))
    np.testing.assert_array_equal(whole.forward, cut.forward)
    np.testing.assert_array_equal(whole.backward, cut.backward)
    expected = [1 + sum((scores[i, j], -j) > (scores[i, i], -i) for j in range(12)) for i in range(12)]
    np.testing.assert_array_equal(whole.forward, expected)


def test_E11_unpaired_t_test_with_bonferroni() -> None:
    first, second = np.array([1.0, 1, 1, 0, 1]), np.array([0.0, 1, 0, 0, 0])
    # Means .8 and .2, both variances .2: t = .6 / sqrt(.2 * 2 / 5) = 2.1213 on 8 degrees of freedom.
    result = unpaired_test(first, second, n_comparisons=3)
    assert result.difference == pytest.approx(0.6)
    assert result.p == pytest.approx(2 * stats.t.sf(0.6 / 0.08**0.5, 8))
    assert result.p_corrected == pytest.approx(3 * result.p)
    assert unpaired_test(second, first).difference == pytest.approx(-0.6)
    assert unpaired_test(first, second, 1_000).p_corrected == 1.0
    assert unpaired_test(np.ones(3), np.ones(3)).p == 1.0
    assert unpaired_test(np.ones(3), np.zeros(3)).p == 0.0


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(InputError, match="NaN"):
        mate_ranks(Table(np.full((2, 2), np.nan)), numbered(2), numbered(2))
    with pytest.raises(ShapeMismatch, match="not mates"):
        mate_ranks(Table(SCORES), numbered(3), numbered(2))
    with pytest.raises(InputError, match="two values"):
        unpaired_test(np.ones(1), np.ones(3))
