"""Rounding of vectors and tf-idf weights to the precision they are stored with.

int8 keeps one scale a vector (style principle 4: dropped scales keep the order of U'V but wreck U'V + I). Scales have
17 significant bits, so that every value ``level * scale`` is exact in float32 and rounding twice is rounding once:
every route of serving sees the same numbers.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.arrays import Float32
from reranker.errors import InputError

Quantisation = Literal["float32", "float16", "int8"]
QUANTISATIONS: Final[tuple[Quantisation, ...]] = ("float32", "float16", "int8")

_SCALE_BITS = np.uint32(0xFFFFFF80)
_SMALLEST_SCALE = np.float32(np.finfo(np.float32).tiny) * np.float32(256)


def quantise_vectors(vectors: Float32, quantisation: Quantisation) -> Float32:
    """Return ``vectors`` as they come back from packing: rounded to the quantisation, (n, N) float32 again.

    float16 has a relative error of at most 2**-11 above 6e-5; int8 an error of at most max|v| / 253 in each row.

    Raises
    ------
    InputError
        If a value is NaN or infinite, or too large for float16, or the quantisation is not known.
    """
    check_quantisation(quantisation)
    check_finite(vectors, "vector")
    if quantisation == "float32":
        return np.ascontiguousarray(vectors, dtype=np.float32)
    if quantisation == "float16":
        return to_float16(vectors).astype(np.float32)
    levels, scales = to_int8(vectors)
    return levels.astype(np.float32) * scales[:, None]


def quantise_rows(rows: sp.csr_matrix, quantisation: Quantisation) -> sp.csr_matrix:
    """Return tf-idf rows with their weights as they come back from packing; ids and structure are unchanged.

    Raises
    ------
    InputError
        As `quantise_vectors`.
    """
    check_quantisation(quantisation)
    check_finite(rows.data, "term weight")
    if quantisation == "float32":
        return rows
    if quantisation == "float16":
        data = to_float16(rows.data).astype(np.float32)
    else:
        lengths = np.diff(rows.indptr)
        scales = np.repeat(int8_scales(row_maxima(rows)), lengths)
        data = int8_levels(rows.data, scales).astype(np.float32) * scales
    return sp.csr_matrix((data, rows.indices, rows.indptr), shape=rows.shape)


def check_quantisation(quantisation: str) -> None:
    """Raise `InputError` for a quantisation that does not exist."""
    if quantisation not in QUANTISATIONS:
        raise InputError(f"quantisation {quantisation!r} does not exist; choose one of {', '.join(QUANTISATIONS)}")


def check_finite(values: Float32, name: str) -> None:
    """Raise `InputError` if a value is NaN or infinite; ``name`` says what the values are."""
    if not np.isfinite(values).all():
        raise InputError(
            f"a {name} is NaN or infinite; vectors and weights must be finite: the model that made it is "
            f"damaged or diverged"
        )


def to_float16(values: Float32) -> npt.NDArray[np.float16]:
    """Return ``values`` as little-endian float16, or raise `InputError` where one would become infinite."""
    largest = float(np.abs(values).max(initial=0))
    if largest > float(np.finfo(np.float16).max):
        raise InputError(f"the value {largest:.4g} does not fit float16 (<= 65504); choose float32 or int8")
    return values.astype("<f2")


def int8_scales(maxima: Float32) -> Float32:
    """Return maxima / 127 rounded up to 17 significant bits; 0 for rows too small to be told from zero."""
    exact = (maxima.astype(np.float64) / 127).astype(np.float32)
    cut = (exact.view(np.uint32) & _SCALE_BITS).view(np.float32)
    up = ((exact.view(np.uint32) & _SCALE_BITS) + np.uint32(0x80)).view(np.float32)
    scales = np.where(cut.astype(np.float64) * 127 >= maxima, cut, up)
    return np.where(exact < _SMALLEST_SCALE, np.float32(0), scales).astype(np.float32)


def int8_levels(values: Float32, scales: Float32 | np.float32) -> npt.NDArray[np.int8]:
    """Return round(values / scales) as int8, 0 where the scale is 0."""
    divisor = np.where(scales > 0, scales, np.float32(np.inf))
    return np.rint(values / divisor).astype(np.int8)


def to_int8(vectors: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """Return (levels, scales) of each row of (n, N) vectors: v = level * scale, levels in -127..127."""
    maxima = np.abs(vectors).max(axis=1, initial=0).astype(np.float32)
    scales = int8_scales(maxima)
    return int8_levels(vectors, scales[:, None]), scales


def row_maxima(rows: sp.csr_matrix) -> Float32:
    """Return max |weight| of each row, 0 for empty rows."""
    maxima = np.zeros(rows.shape[0], np.float32)
    filled = np.flatnonzero(np.diff(rows.indptr))
    if len(filled):
        maxima[filled] = np.maximum.reduceat(np.abs(rows.data), rows.indptr[:-1][filled])
    return maxima
