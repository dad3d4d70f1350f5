"""Where S2Net starts from: random, PCA, CL-LSI or OPCA matrices (spec 2.7, M24)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from papers.projections import fit_cl_lsi, fit_opca, fit_pca
from reranker.errors import ConfigError, ShapeMismatch
from reranker.models.projection import Projection
from reranker.training.s2net import Mates


def random_start(n_words: tuple[int, int], n_dims: int, *, rng: np.random.Generator, tied: bool = False) -> Projection:
    """Return matrices of independent N(0, 1/k) entries.

    Parameters
    ----------
    n_words : (int, int)
        Words of the query and of the document side.
    n_dims : int
        k.
    rng : Generator
    tied : bool
        One matrix for both sides, which then must have the same words.

    Raises
    ------
    ShapeMismatch
        If tied sides have different numbers of words.
    """
    if tied and n_words[0] != n_words[1]:
        raise ShapeMismatch(f"sides of {n_words[0]} and {n_words[1]} words cannot share a matrix; train two")
    A, B = (rng.normal(0.0, n_dims**-0.5, (n, n_dims)).astype(np.float32) for n in n_words)
    return Projection(A, A if tied else B)


def starting_projection(kind: str, data: Mates, n_dims: int, *, rng: np.random.Generator) -> Projection:
    """Return the start of one kind for mates of two languages (M24).

    Parameters
    ----------
    kind : "random", "pca", "cl_lsi" or "opca"
        pca decomposes each side alone: its spaces have nothing to do with each other until they are trained.
    data : Mates
    n_dims : int
    rng : Generator

    Raises
    ------
    ConfigError
        If the kind is not one of `STARTS`.

    Source
    ------
    spec 2.7: OPCA for comparable documents, PCA for ads (`fit_pca` of all texts gives the tied one).
    """
    if kind not in STARTS:
        raise ConfigError(f"start {kind!r} is not known; choose one of {', '.join(STARTS)}")
    return STARTS[kind](data.q_rows, data.d_rows, n_dims, rng)


def _from_random(x: sp.csr_matrix, y: sp.csr_matrix, n_dims: int, rng: np.random.Generator) -> Projection:
    return random_start((x.shape[1], y.shape[1]), n_dims, rng=rng)


def _from_pca(x: sp.csr_matrix, y: sp.csr_matrix, n_dims: int, rng: np.random.Generator) -> Projection:
    return Projection(fit_pca(x, n_dims, rng=rng).A, fit_pca(y, n_dims, rng=rng).A)


def _from_cl_lsi(x: sp.csr_matrix, y: sp.csr_matrix, n_dims: int, rng: np.random.Generator) -> Projection:
    return fit_cl_lsi(x, y, n_dims, rng=rng)


def _from_opca(x: sp.csr_matrix, y: sp.csr_matrix, n_dims: int, rng: np.random.Generator) -> Projection:
    return fit_opca(x, y, n_dims, rng=rng)


STARTS: dict[str, Callable[[sp.csr_matrix, sp.csr_matrix, int, np.random.Generator], Projection]] = {
    "random": _from_random,
    "pca": _from_pca,
    "cl_lsi": _from_cl_lsi,
    "opca": _from_opca,
}
"""Ways to start from mates, by name."""
