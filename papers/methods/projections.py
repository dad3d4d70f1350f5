"""Projections of texts: LSA, PCA, CL-LSI, OPCA, CCA, HDLR, and S2Net's losses over mates (B07-B10, B14, M21-M24).

Each fit takes tf-idf rows and returns a `Projection` whose columns are ordered by decreasing strength
(`Projection.first` keeps the first ones). OPCA and CCA are solved in the space of each side's first ``reduced``
singular vectors. The solution is exact if the rank of a side is at most that number, and otherwise the best
approximation of that rank. The dense problems thus have the order ``reduced`` for any number of words and pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from papers.methods.projection import Projection
from papers.methods.rows import check_pairs
from papers.methods.s2net import S2NetSettings, Terms, logistic
from papers.methods.singular_vectors import singular_vectors
from reranker.arrays import AnyFloat, Bool, Float64
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError

REDUCED = 1_000
"""Number of singular vectors per side in which OPCA and CCA are solved, or twice the dimensions if that is more."""
NOISE = 1e-4
"""OPCA's g; the noise of unit rows has at most trace 1, so it is a share of the total."""
RIDGE = 1e-3
"""CCA's r, on the same scale: the covariance of unit rows has trace 1."""

_BLOCK = 4_096


def fit_lsa(rows: sp.csr_matrix, n_dims: int, *, rng: np.random.Generator) -> Projection:
    """Return the projection on the first right singular vectors of the rows: X = P S Q^T, x -> Q^T x.

    Rows, (n_texts, n_words) float32, are those of queries and documents together, without labels. ``rng`` draws the
    start of the iteration if one is needed.

    Raises
    ------
    ConfigError
        If the rows do not allow ``n_dims`` dimensions.

    Source: spec B10 (LSA); A32 for the projection without singular values.
    """
    return _shared(singular_vectors(rows, n_dims, rng).words)


def fit_pca(rows: sp.csr_matrix, n_dims: int, *, rng: np.random.Generator) -> Projection:
    """Return the projection on the first eigenvectors of the covariance of the rows.

    C = X^T X / n - m m^T with the mean row m; x -> Q^T x. Texts are projected without centring, so that the map is
    linear and g = A^T f as in S2Net. Arguments and errors are as in `fit_lsa`.

    Source: spec B10 (PCA), A30.
    """
    return _shared(singular_vectors(rows, n_dims, rng, centred=True).words)


def fit_cl_lsi(x_rows: sp.csr_matrix, y_rows: sp.csr_matrix, n_dims: int, *, rng: np.random.Generator) -> Projection:
    """Return cross-lingual LSI: singular vectors of the pairs [x_l, y_l]; each side is projected by its own words.

    Row l of both sides, (n_pairs, n_words of the side) float32, is one pair; x is the query side of the result.

    Raises
    ------
    ShapeMismatch
        If the sides have different numbers of rows.
    ConfigError
        If the rows do not allow ``n_dims`` dimensions.

    Source: spec B07.
    """
    check_pairs(x_rows, y_rows)
    words = singular_vectors(sp.hstack([x_rows, y_rows], format="csr"), n_dims, rng).words
    n_x = x_rows.shape[1]
    return _sides(words[:n_x], words[n_x:])


def fit_opca(
    x_rows: sp.csr_matrix,
    y_rows: sp.csr_matrix,
    n_dims: int,
    *,
    rng: np.random.Generator,
    noise: float = NOISE,
    shared: bool = False,
    reduced: int | None = None,
) -> Projection:
    """Return oriented PCA: directions of large variance of the pairs' means and small variance within the pairs.

    S v = rho N v with S = (1/n) sum m m^T, N = (1/n) sum [(x - m)(x - m)^T + (y - m)(y - m)^T] + g I, m = (x + y) / 2.
    Vectors are scaled to v^T N v = 1, so that the noise is white in the space.

    Parameters
    ----------
    x_rows, y_rows : csr_matrix (n_pairs, n_words of the side) float32
        Row l of both is a pair. Two languages have separate words in one joint space, x = [x, 0], y = [0, y].
    noise : float
        g > 0.
    shared : bool
        Whether both sides have the same words (queries and ads) and thus one matrix.
    reduced : int, optional
        Number of singular vectors per side in which the problem is solved; default: 1,000 or 2 ``n_dims`` if more.

    Raises
    ------
    ShapeMismatch
        If the rows are not pairs, or have different words although ``shared``.
    ConfigError
        If the noise is not above 0, or the rows do not allow ``n_dims`` dimensions.

    Source: spec B08.
    """
    check_pairs(x_rows, y_rows)
    _check_ridge(noise, "noise")
    if shared and x_rows.shape[1] != y_rows.shape[1]:
        raise ShapeMismatch(f"sides of {x_rows.shape[1]} and {y_rows.shape[1]} words cannot share one matrix")
    size = reduced or max(REDUCED, 2 * n_dims)
    if shared:
        words_x = words_y = singular_vectors(sp.vstack([x_rows, y_rows], format="csr"), size, rng, fewer=True).words
    else:
        words_x = singular_vectors(x_rows, size, rng, fewer=True).words
        words_y = singular_vectors(y_rows, size, rng, fewer=True).words
    xx, xy, yy = _moments(x_rows @ words_x, y_rows @ words_y)
    if shared:
        signal, within = xx + yy + xy + xy.T, xx + yy - xy - xy.T
    else:
        signal, within = np.block([[xx, xy], [xy.T, yy]]), np.block([[xx, -xy], [-xy.T, yy]])
    order = len(signal)
    _check_dims(n_dims, order)
    _, vectors = scipy.linalg.eigh(
        signal / 4, within / 2 + noise * np.eye(order), subset_by_index=[order - n_dims, order - 1]
    )
    vectors = vectors[:, ::-1]
    if shared:
        return _shared(words_x @ vectors)
    n_x = words_x.shape[1]
    return _sides(words_x @ vectors[:n_x], words_y @ vectors[n_x:])


def fit_cca(
    x_rows: sp.csr_matrix,
    y_rows: sp.csr_matrix,
    n_dims: int,
    *,
    rng: np.random.Generator,
    ridge: float = RIDGE,
    reduced: int | None = None,
) -> Projection:
    """Return canonical correlation analysis: the projections of both sides that correlate most.

    Cxy (Cyy + rI)^-1 Cyx a = rho^2 (Cxx + rI) a and b = (Cyy + rI)^-1 Cyx a / rho.
    The C are second moments (1/n) X^T Y of the rows without centring, which would make them dense; tf-idf rows nearly
    have mean zero. Vectors are scaled to a^T (Cxx + rI) a = 1.

    Rows, ``rng`` and ``reduced`` are as in `fit_opca`; ``ridge`` is r > 0.

    Raises
    ------
    ShapeMismatch
        If the rows are not pairs.
    ConfigError
        If the ridge is not above 0, or the rows do not allow ``n_dims`` dimensions.

    Source: spec B09.
    """
    check_pairs(x_rows, y_rows)
    _check_ridge(ridge, "ridge")
    size = reduced or max(REDUCED, 2 * n_dims)
    x = singular_vectors(x_rows, size, rng, fewer=True)
    y = singular_vectors(y_rows, size, rng, fewer=True)
    _check_dims(n_dims, min(len(x.values), len(y.values)))
    # In its singular vectors the moments of each side are diagonal, Cxx = S^2 / n, so whitening is a division.
    n = x_rows.shape[0]
    white_x = x.words / np.sqrt(x.values**2 / n + ridge)
    white_y = y.words / np.sqrt(y.values**2 / n + ridge)
    _, between, _ = _moments(x_rows @ white_x, y_rows @ white_y, sides=False)
    left, _, right = scipy.linalg.svd(between, full_matrices=False)
    return _sides(white_x @ left[:, :n_dims], white_y @ right[:n_dims].T)


def _moments(x: Float64, y: Float64, sides: bool = True) -> tuple[Float64, Float64, Float64]:
    """Return (1/n) X^T X, (1/n) X^T Y and (1/n) Y^T Y, summed in blocks; without ``sides`` only the second."""
    n = max(1, len(x))
    xx, xy, yy = (np.zeros((a.shape[1], b.shape[1])) for a, b in ((x, x), (x, y), (y, y)))
    for start in range(0, len(x), _BLOCK):
        left, right = x[start : start + _BLOCK], y[start : start + _BLOCK]
        xy += left.T @ right
        if sides:
            xx += left.T @ left
            yy += right.T @ right
    return xx / n, xy / n, yy / n


def _shared(words: Float64) -> Projection:
    """Return the projection of both sides by one matrix."""
    matrix = np.ascontiguousarray(words, dtype=np.float32)
    return Projection(matrix, matrix)


def _sides(x_words: Float64, y_words: Float64) -> Projection:
    """Return the projection of each side by its own matrix."""
    return Projection(np.ascontiguousarray(x_words, dtype=np.float32), np.ascontiguousarray(y_words, dtype=np.float32))


def _check_ridge(value: float, name: str) -> None:
    if not (np.isfinite(value) and value > 0.0):
        raise ConfigError(f"{name} {value!r} is not usable; it must be above 0, or the problem has no unique solution")


def _check_dims(n_dims: int, limit: int) -> None:
    if not 1 <= n_dims <= limit:
        raise ConfigError(f"{n_dims} dimensions are not possible with sides reduced to {limit}; ask for 1 to {limit}")


@dataclass(frozen=True, slots=True)
class HdlrSettings:
    """Settings of information-theoretic metric learning."""

    slack: float = 1.0
    """g > 0: how strictly the bounds hold; with small values the metric stays near the start."""
    upper: float | None = None
    lower: float | None = None
    """Bounds of the squared distance of similar (``upper``) and of dissimilar pairs (``lower``).

    None: the 5th and the 95th percentile of the distances under the start.
    """
    n_sweeps: int = 5
    """Number of passes over all pairs, each in a new random order."""


def fit_hdlr(
    start: Projection,
    x_rows: sp.csr_matrix,
    y_rows: sp.csr_matrix,
    similar: Bool,
    settings: HdlrSettings | None = None,
    *,
    rng: np.random.Generator,
) -> Projection:
    """Return the start's space under the metric learned by ITML: A0 L and B0 L with M = L L^T.

    The squared distance of a pair is p = z^T M z with z = A0^T x - B0^T y; M starts as I. This is for samples of
    thousands of pairs, because a pass costs k^2 operations per pair.

    Row l of both sides, (n_pairs, n_words of the side), is a pair, and ``similar``, (n_pairs,), says whether its texts
    belong together. A0 and B0 are the matrices of the start, which must be linear.

    Raises
    ------
    ShapeMismatch
        If there are not equal numbers of rows on each side and of labels.
    InputError
        If no pair has a distance under the start.
    ConfigError
        If the start is not linear, or a setting is not above 0.

    Source: spec B14.
    """
    chosen = settings or HdlrSettings()
    if start.activation != "linear":
        raise ConfigError(f"a metric cannot be trained over a {start.activation} activation; start from a linear one")
    if not (x_rows.shape[0] == y_rows.shape[0] == len(similar)):
        raise ShapeMismatch(
            f"{x_rows.shape[0]} and {y_rows.shape[0]} rows with {len(similar)} labels are not pairs; give equal numbers"
        )
    differences = np.asarray(x_rows @ start.A - y_rows @ start.B, dtype=np.float64)
    distances = np.einsum("ij,ij->i", differences, differences)
    if not distances.any():
        raise InputError("no pair has a distance under the start, so no metric can be trained; give others")
    upper = float(np.percentile(distances, 5)) if chosen.upper is None else chosen.upper
    lower = float(np.percentile(distances, 95)) if chosen.lower is None else chosen.lower
    if min(upper, lower, chosen.slack) <= 0.0 or chosen.n_sweeps < 1:
        raise ConfigError(
            f"bounds {upper:g} and {lower:g}, slack {chosen.slack:g} and {chosen.n_sweeps} passes cannot be used; "
            "all must be above 0 (set upper if equal pairs make its percentile 0)"
        )
    metric = learn_metric(differences, similar, np.where(similar, upper, lower), chosen.slack, chosen.n_sweeps, rng)
    factor = np.linalg.cholesky(metric)
    A = np.ascontiguousarray(start.A @ factor, dtype=np.float32)
    B = A if start.is_tied else np.ascontiguousarray(start.B @ factor, dtype=np.float32)
    return Projection(A, B)


def learn_metric(
    differences: Float64, similar: Bool, bounds: Float64, slack: float, n_sweeps: int, rng: np.random.Generator
) -> Float64:
    """Return M, (k, k) float64, trained by cyclic Bregman projections onto the pairs' bounds.

    With s = +1 for similar pairs and -1 for others, p = z^T M z:
    al = min(l, s/2 (1/p - g/xi)), be = s al / (1 - s al p), xi = g xi / (g + s al xi), l = l - al,
    M += be M z z^T M; l starts at 0, and xi at the pair's bound.

    Source: spec B14 (the ITML algorithm).
    """
    n, k = differences.shape
    metric = np.eye(k)
    signs = np.where(similar, 1.0, -1.0)
    multipliers, targets = np.zeros(n), bounds.astype(np.float64)
    for _ in range(n_sweeps):
        for pair in rng.permutation(n):
            z, s = differences[pair], signs[pair]
            projected = metric @ z
            p = float(z @ projected)
            if p <= 0.0:
                continue  # equal texts have distance 0 under every metric
            al = min(multipliers[pair], s / 2 * (1 / p - slack / targets[pair]))
            be = s * al / (1 - s * al * p)
            targets[pair] *= slack / (slack + s * al * targets[pair])
            multipliers[pair] -= al
            metric += be * np.outer(projected, projected)
    return (metric + metric.T) / 2


def random_start(n_words: tuple[int, int], n_dims: int, *, rng: np.random.Generator, tied: bool = False) -> Projection:
    """Return matrices of independent N(0, 1/k) entries for k dimensions; ``tied``: one matrix for both sides.

    Raises
    ------
    ShapeMismatch
        If tied sides have different numbers of words.
    """
    if tied and n_words[0] != n_words[1]:
        raise ShapeMismatch(f"sides of {n_words[0]} and {n_words[1]} words cannot share a matrix; use two")
    A, B = (rng.normal(0.0, n_dims**-0.5, (n, n_dims)).astype(np.float32) for n in n_words)
    return Projection(A, A if tied else B)


@dataclass(frozen=True, eq=False)
class Mates:
    """Pairs of texts that belong together; all other pairs of rows are negatives.

    Raises
    ------
    ShapeMismatch
        If the sides have different numbers of rows.
    TrainingError
        If there are fewer than two pairs, so that there is no negative.
    """

    q_rows: sp.csr_matrix
    d_rows: sp.csr_matrix
    """Rows of each side, (n, n_words of the side) float32; row i of both is a pair."""

    def __post_init__(self) -> None:
        if self.q_rows.shape[0] != self.d_rows.shape[0]:
            raise ShapeMismatch(
                f"{self.q_rows.shape[0]} and {self.d_rows.shape[0]} rows are not pairs; give equal numbers of rows"
            )
        if self.q_rows.shape[0] < 2:
            raise TrainingError("one pair has no negative to train on; give two pairs or more")

    def terms(self, X: AnyFloat, Z: AnyFloat, settings: S2NetSettings) -> Terms:
        """Return (loss, dL/dX, dL/dZ) of the unit vectors of both sides, treating them as free variables."""
        if settings.loss == "squared":
            return mates_squared(X, Z)
        return mates_logistic(X, Z, settings.gamma, settings.block)


def mates_logistic(X: AnyFloat, Z: AnyFloat, gamma: float, block: int) -> Terms:
    """Return the mean logistic loss of each pair (i, i) against all (i, j) and all (j, i), j != i.

    With C = X Z^T, s_ij = -gamma / (1 + exp(gamma (C_ii - C_ij))) and t_ij the same with C_jj: dL/dC_ij = -(s + t)_ij
    off the diagonal, dL/dC_ii = sum_j s_ij + sum_j t_ji, over 2 n (n - 1) terms. C is computed in blocks of rows.
    """
    n = len(X)
    own = np.einsum("ij,ij->i", X, Z)
    own_slope = np.zeros(n)
    total = 0.0
    dX, dZ = np.empty_like(X), np.zeros_like(Z)
    for start in range(0, n, block):
        rows = np.arange(start, min(n, start + block))
        C = X[rows] @ Z.T
        slopes = np.zeros_like(C)
        for by_row in (True, False):
            loss, slope = logistic((own[rows, None] if by_row else own[None, :]) - C, gamma)
            loss[rows - start, rows] = 0
            slope[rows - start, rows] = 0
            total += float(loss.sum(dtype=np.float64))
            slopes -= slope
            if by_row:
                own_slope[rows] += slope.sum(axis=1, dtype=np.float64)
            else:
                own_slope += slope.sum(axis=0, dtype=np.float64)
        dX[rows] = slopes @ Z
        dZ += slopes.T @ X[rows]
    diagonal = own_slope.astype(X.dtype)[:, None]
    n_terms = 2.0 * n * (n - 1)
    scale = X.dtype.type(1.0 / n_terms)
    return total / n_terms, (dX + diagonal * Z) * scale, (dZ + diagonal * X) * scale


def mates_squared(X: AnyFloat, Z: AnyFloat) -> Terms:
    """Return the mean of 1/2 (y - C_ij)^2 over all n^2 pairs of rows, with y = 1 for mates and 0 for others.

    sum C_ij^2 = <X^T X, Z^T Z>, so C need not be computed and the cost is linear in the number of pairs.
    """
    n = len(X)
    gram_x, gram_z = X.T @ X, Z.T @ Z
    own = np.einsum("ij,ij->i", X, Z)
    loss = (float(np.sum(gram_x * gram_z)) - 2.0 * float(own.sum()) + n) / (2.0 * n * n)
    scale = X.dtype.type(1.0 / (n * n))
    return loss, (X @ gram_z - Z) * scale, (Z @ gram_x - X) * scale
