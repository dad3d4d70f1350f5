# ruff: noqa: N802 - tests carry the ids of the papers' checklist

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
import scipy.sparse as sp

from papers.methods.projection import Projection
from papers.methods.projections import fit_cca, fit_cl_lsi, fit_lsa, fit_opca, fit_pca
from papers.methods.singular_vectors import singular_vectors
from papers.rank_measures import mate_ranks
from reranker.errors import ConfigError, InputError, ShapeMismatch
from tests.papers.study_rows import random_rows, translated
from tests.seeds import seeded_rng

Matrix = npt.NDArray[np.float64]
Fit = Callable[..., Projection]
ONE = sp.csr_matrix(np.ones((1, 1), np.float32))


def same_directions(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating], atol: float = 1e-5) -> None:
    cosines = np.einsum("ij,ij->j", left, right) / np.linalg.norm(left, axis=0) / np.linalg.norm(right, axis=0)
    np.testing.assert_allclose(np.abs(cosines), 1.0, atol=atol)


def pairs(seed: int = 0) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = seeded_rng(seed)
    x = random_rows(rng, 40, 8, density=0.5)
    return x, translated(rng, x)


def moments(x: sp.csr_matrix, y: sp.csr_matrix) -> tuple[Matrix, Matrix, Matrix]:
    a, b = x.toarray().astype(np.float64), y.toarray().astype(np.float64)
    return a.T @ a / len(a), a.T @ b / len(a), b.T @ b / len(a)


@pytest.mark.parametrize("shape", [(80, 90), (90, 80)])
@pytest.mark.parametrize("n_dims", [3, 20])
def test_B10_lsa_and_pca_are_the_leading_singular_vectors(shape: tuple[int, int], n_dims: int) -> None:
    # 3 of 80 vectors come from ARPACK, 20 from the Gram matrix of the rows or of the words.
    rng = seeded_rng()
    rows = random_rows(rng, *shape)
    dense = rows.toarray().astype(np.float64)
    for fit, matrix in ((fit_lsa, dense), (fit_pca, dense - dense.mean(axis=0))):
        _, values, vectors = np.linalg.svd(matrix)
        assert (-np.diff(values[: n_dims + 1])).min() > 1e-4  # the directions are apart, so each can be compared
        projection = fit(rows, n_dims, rng=rng)
        assert projection.is_tied
        same_directions(projection.A, vectors[:n_dims].T)
        np.testing.assert_allclose(np.linalg.norm(projection.A, axis=0), 1.0, rtol=1e-5)


def test_singular_values_fall_and_signs_are_fixed() -> None:
    rng = seeded_rng()
    rows = random_rows(rng, 80, 90)
    for n_dims in (3, 20):
        found = singular_vectors(rows, n_dims, rng)
        np.testing.assert_allclose(found.values, np.linalg.svd(rows.toarray())[1][:n_dims], rtol=1e-5)
        assert (found.words[np.abs(found.words).argmax(axis=0), np.arange(n_dims)] > 0).all()


def test_dimensions_past_the_rank_are_refused_or_left_out() -> None:
    rows = sp.csr_matrix(np.array([[1, 0, 0], [0, 2, 0], [1, 2, 0]], np.float32))
    rng = seeded_rng()
    with pytest.raises(ConfigError, match="rank 2"):
        fit_lsa(rows, 3, rng=rng)
    assert singular_vectors(rows, 3, rng, fewer=True).words.shape == (3, 2)
    with pytest.raises(ConfigError, match="ask for 1 to 3"):
        fit_lsa(rows, 4, rng=rng)
    with pytest.raises(ConfigError, match="rank 0"):
        fit_pca(sp.csr_matrix(np.ones((4, 3), np.float32)), 1, rng=rng)
    with pytest.raises(ShapeMismatch, match="open vocabulary"):
        fit_lsa(sp.csr_matrix((np.ones(1), np.zeros(1, int), np.array([0, 1])), shape=(1, 2**31 - 1)), 1, rng=rng)
    with pytest.raises(InputError, match="NaN"):
        fit_lsa(rows * np.nan, 1, rng=rng)


def test_B07_cross_lingual_lsi() -> None:
    x, y = pairs()
    rng = seeded_rng()
    # Of a text beside itself, [x, x], both blocks are the singular vectors of x over sqrt 2.
    twice, once = fit_cl_lsi(x, x, 5, rng=rng), fit_lsa(x, 5, rng=rng)
    np.testing.assert_allclose(twice.A, once.A / np.sqrt(2), atol=1e-5)
    np.testing.assert_allclose(twice.B, twice.A, atol=1e-6)
    _, _, vectors = np.linalg.svd(np.hstack([x.toarray(), y.toarray()]))
    found = fit_cl_lsi(x, y, 5, rng=rng)
    same_directions(np.vstack([found.A, found.B]), vectors[:5].T, atol=1e-4)
    assert mate_ranks(found, x, y).mrr > 0.7 > 2 * mate_ranks(found, x, y[::-1]).mrr


@pytest.mark.parametrize("shared", [False, True])
def test_B08_opca_solves_its_eigenproblem(shared: bool) -> None:
    rng = seeded_rng()
    x, y = pairs()
    if shared:
        x, y = x[:20], x[20:]
    noise, n_dims = 0.05, 4
    if shared:
        left, right = x.toarray().astype(np.float64), y.toarray().astype(np.float64)
    else:
        left = np.hstack([x.toarray(), np.zeros(y.shape)])
        right = np.hstack([np.zeros(x.shape), y.toarray()])
    m = (left + right) / 2
    signal = m.T @ m / len(m)
    within = ((left - m).T @ (left - m) + (right - m).T @ (right - m)) / len(m) + noise * np.eye(m.shape[1])
    values, vectors = scipy.linalg.eigh(signal, within)
    found = fit_opca(x, y, n_dims, rng=rng, noise=noise, shared=shared)
    assert found.is_tied is shared
    V = found.A if shared else np.vstack([found.A, found.B])
    same_directions(V, vectors[:, ::-1][:, :n_dims], atol=1e-4)
    np.testing.assert_allclose(V.T @ within @ V, np.eye(n_dims), atol=1e-4)
    np.testing.assert_allclose(np.diag(V.T @ signal @ V), values[::-1][:n_dims], rtol=1e-4)


def test_B08_opca_of_one_pair_of_words_by_hand() -> None:
    # S = [[1, 1], [1, 1]] / 4, N = [[1, -1], [-1, 1]] / 2 + I / 2: v = (1, 1), with v^T N v = 1.
    found = fit_opca(ONE, ONE, 1, rng=seeded_rng(), noise=0.5)
    np.testing.assert_allclose(np.abs([found.A[0, 0], found.B[0, 0]]), 1.0, rtol=1e-6)
    assert found.A[0, 0] * found.B[0, 0] > 0


def test_B09_cca_solves_its_eigenproblem() -> None:
    x, y = pairs()
    ridge, n_dims = 0.02, 4
    found = fit_cca(x, y, n_dims, rng=seeded_rng(), ridge=ridge)
    xx, xy, yy = moments(x, y)
    xx += ridge * np.eye(len(xx))
    yy += ridge * np.eye(len(yy))
    values, vectors = scipy.linalg.eigh(xy @ np.linalg.solve(yy, xy.T), xx)
    rho = np.sqrt(values[::-1][:n_dims])
    same_directions(found.A, vectors[:, ::-1][:, :n_dims], atol=1e-4)
    np.testing.assert_allclose(found.B, np.linalg.solve(yy, xy.T @ found.A) / rho, atol=1e-4)
    np.testing.assert_allclose(found.A.T @ xx @ found.A, np.eye(n_dims), atol=1e-4)
    np.testing.assert_allclose(np.diag(found.A.T @ xy @ found.B), rho, rtol=1e-4)


@pytest.mark.parametrize("fit", [fit_opca, fit_cca, fit_cl_lsi])
def test_translations_find_each_other(fit: Fit) -> None:
    x, y = pairs()
    held_x, held_y = pairs(1)
    projection = fit(x, y, 8, rng=seeded_rng())
    assert mate_ranks(projection, held_x, held_y).mrr > 0.7 > 2 * mate_ranks(projection, held_x, held_y[::-1]).mrr


@pytest.mark.parametrize("fit", [fit_opca, fit_cca])
def test_the_reduction_is_exact_down_to_the_rank(fit: Fit) -> None:
    x, y = pairs()
    thin_x, thin_y = x[:6], y[:6]  # rank 6 of 8 and 11 words
    full, reduced = (fit(thin_x, thin_y, 3, rng=seeded_rng(), reduced=size) for size in (100, 6))
    np.testing.assert_allclose(full.score_matrix(x, y), reduced.score_matrix(x, y), atol=1e-4)


@pytest.mark.parametrize("fit", [fit_opca, fit_cca, fit_cl_lsi])
def test_what_does_not_fit_is_refused(fit: Fit) -> None:
    x, y = pairs()
    rng = seeded_rng()
    with pytest.raises(ShapeMismatch, match="not pairs"):
        fit(x[:3], y, 2, rng=rng)
    with pytest.raises(ConfigError, match="are not possible"):
        fit(x, y, 50, rng=rng)
    with pytest.raises(ConfigError, match="above 0"):
        fit_opca(x, y, 2, rng=rng, noise=0.0)
    with pytest.raises(ConfigError, match="above 0"):
        fit_cca(x, y, 2, rng=rng, ridge=float("nan"))
    with pytest.raises(ShapeMismatch, match="cannot share one matrix"):
        fit_opca(x, y, 2, rng=rng, shared=True)
