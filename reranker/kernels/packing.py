"""Vectors and term rows as short byte strings, for an engine's unindexed binary fields.

The first byte says what follows, so that a field can be read without its model::

    byte 0        high nibble: 1 vector, 2 terms; low nibble: 0 float32, 1 float16, 2 int8
    vector        [float32 scale, int8 only] N values
    terms         uint32 n_short, uint32 n_long, n_short uint16 ids, n_long uint32 ids, [float32 scale] n values

All numbers are little-endian. Ids below 65,536 take two bytes: with 30,000 words that is all but the hashed ones, and
measured a third smaller than four bytes for each, without the slow decoding of a variable-length code.

Packing what was unpacked gives the same bytes, whatever the quantisation (see `reranker.kernels.quantisation`).
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.checks import Float32Array, IndexArray
from reranker.kernels.quantisation import (
    QUANTISATIONS,
    Quantisation,
    check_finite,
    check_quantisation,
    int8_levels,
    int8_scales,
    row_maxima,
    to_float16,
    to_int8,
)

N_TERM_IDS: Final = 2**31 - 1
"""Columns of every row matrix: known words from 0, hashed words from 2**30."""

_VECTOR, _TERMS = 0x10, 0x20
_SHORT_IDS = 1 << 16
_VALUE_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "int8": np.dtype("i1"),
}


def pack_vector(vector: Float32Array, quantisation: Quantisation) -> bytes:
    """Return one vector as bytes; see the module for the layout.

    Raises
    ------
    InputError
        If a value is NaN, infinite or too large for the quantisation.
    """
    if vector.ndim != 1:
        raise ShapeMismatch(f"a vector of shape {vector.shape} cannot be packed; give one vector of shape (N,)")
    return pack_vectors(vector[None, :], quantisation)[0]


def pack_vectors(vectors: Float32Array, quantisation: Quantisation) -> list[bytes]:
    """Return each row of an (n, N) matrix as bytes (`pack_vector` for many)."""
    check_quantisation(quantisation)
    check_finite(vectors, "vector")
    header = bytes([_VECTOR | QUANTISATIONS.index(quantisation)])
    if quantisation == "int8":
        levels, scales = to_int8(vectors)
        return [header + struct.pack("<f", scale) + row.tobytes() for scale, row in zip(scales, levels, strict=True)]
    values = vectors.astype("<f4") if quantisation == "float32" else to_float16(vectors)
    return [header + row.tobytes() for row in values]


def unpack_vectors(packed: Sequence[bytes], n_dims: int | None = None) -> Float32Array:
    """Return packed vectors as one matrix.

    Parameters
    ----------
    packed : sequence of bytes
        All of the same number of dimensions; quantisations may differ.
    n_dims : int, optional
        Dimensions that the caller's model has.

    Returns
    -------
    (n, N) float32

    Raises
    ------
    InputError
        If a byte string is not a packed vector, is cut, or holds a value that is not finite.
    ShapeMismatch
        If one has another number of dimensions.
    """
    vectors = [_unpack_vector(one) for one in packed]
    dims = n_dims if n_dims is not None else (len(vectors[0]) if vectors else 0)
    for vector in vectors:
        if len(vector) != dims:
            raise ShapeMismatch(
                f"a stored vector has {len(vector)} dimensions where {dims} are expected: it was made by another "
                f"encoder; run `ssi revectorize` with this model"
            )
    matrix = np.array(vectors, dtype=np.float32).reshape(len(vectors), dims)
    check_finite(matrix, "stored vector")
    return matrix


def pack_terms(ids: IndexArray, weights: Float32Array, quantisation: Quantisation) -> bytes:
    """Return one tf-idf row as bytes; see the module for the layout.

    Parameters
    ----------
    ids : (n,) int32
        Term ids, strictly increasing, in 0..2**31-2.
    weights : (n,) float32

    Raises
    ------
    InputError
        If ids are not strictly increasing or out of range, or a weight is not finite or too large.
    ShapeMismatch
        If there is not one weight an id.
    """
    if ids.ndim != 1 or ids.shape != weights.shape:
        raise ShapeMismatch(f"{ids.shape} term ids with {weights.shape} weights: give one weight for each id")
    row = sp.csr_matrix((weights, ids, [0, len(ids)]), shape=(1, N_TERM_IDS))
    return pack_rows(row, quantisation)[0]


def pack_rows(rows: sp.csr_matrix, quantisation: Quantisation) -> list[bytes]:
    """Return each tf-idf row of a CSR matrix as bytes (`pack_terms` for many)."""
    check_quantisation(quantisation)
    check_finite(rows.data, "term weight")
    header = bytes([_TERMS | QUANTISATIONS.index(quantisation)])
    maxima = int8_scales(row_maxima(rows)) if quantisation == "int8" else np.zeros(rows.shape[0], np.float32)
    packed = []
    for place, (start, end) in enumerate(zip(rows.indptr[:-1], rows.indptr[1:], strict=True)):
        ids, weights = rows.indices[start:end], rows.data[start:end]
        _check_ids(ids)
        n_short = int(np.searchsorted(ids, _SHORT_IDS))
        parts = [header, struct.pack("<II", n_short, len(ids) - n_short)]
        parts += [ids[:n_short].astype("<u2").tobytes(), ids[n_short:].astype("<u4").tobytes()]
        if quantisation == "int8":
            parts += [struct.pack("<f", maxima[place]), int8_levels(weights, maxima[place]).tobytes()]
        else:
            parts.append((weights.astype("<f4") if quantisation == "float32" else to_float16(weights)).tobytes())
        packed.append(b"".join(parts))
    return packed


def unpack_terms(packed: Sequence[bytes]) -> sp.csr_matrix:
    """Return packed tf-idf rows as one CSR matrix of shape (n, 2**31 - 1), float32.

    Raises
    ------
    InputError
        If a byte string is not a packed row, is cut, has ids out of order or range, or a weight that is not finite.
    """
    rows = [_unpack_row(one) for one in packed]
    indptr = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(ids) for ids, _ in rows], out=indptr[1:])
    ids = np.concatenate([ids for ids, _ in rows] or [np.zeros(0, np.int32)])
    weights = np.concatenate([weights for _, weights in rows] or [np.zeros(0, np.float32)])
    check_finite(weights, "stored term weight")
    _check_ids(ids, indptr)
    return sp.csr_matrix((weights, ids.astype(np.int32), indptr), shape=(len(rows), N_TERM_IDS))


def to_text(packed: bytes) -> str:
    """Return bytes as base64, the form of a binary field in JSON."""
    return base64.b64encode(packed).decode("ascii")


def from_text(text: str) -> bytes:
    """Return the bytes of a base64 text.

    Raises
    ------
    InputError
        If ``text`` is not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        message = f"a stored field is not base64 ({error}); run `ssi sync --verify` to write it again"
        raise InputError(message) from error


def _unpack_vector(packed: bytes) -> Float32Array:
    quantisation = _quantisation_of(packed, _VECTOR, "vector")
    width = _VALUE_TYPES[quantisation].itemsize
    start = 5 if quantisation == "int8" else 1
    if len(packed) < start or (len(packed) - start) % width:
        raise _damaged("vector", f"{len(packed)} bytes do not hold whole {quantisation} values")
    values: Float32Array = np.frombuffer(packed, _VALUE_TYPES[quantisation], offset=start).astype(np.float32)
    return values * np.frombuffer(packed, "<f4", 1, 1) if quantisation == "int8" else values


def _unpack_row(packed: bytes) -> tuple[npt.NDArray[np.uint32], Float32Array]:
    quantisation = _quantisation_of(packed, _TERMS, "term row")
    if len(packed) < 9:
        raise _damaged("term row", f"{len(packed)} bytes end inside the counts")
    n_short, n_long = struct.unpack_from("<II", packed, 1)
    value_type, scaled = _VALUE_TYPES[quantisation], quantisation == "int8"
    at_long = 9 + 2 * n_short
    at_values = at_long + 4 * n_long + (4 if scaled else 0)
    if len(packed) != at_values + value_type.itemsize * (n_short + n_long):
        raise _damaged("term row", f"{len(packed)} bytes do not hold the {n_short} + {n_long} terms they announce")
    ids = np.empty(n_short + n_long, np.uint32)
    ids[:n_short] = np.frombuffer(packed, "<u2", n_short, 9)
    ids[n_short:] = np.frombuffer(packed, "<u4", n_long, at_long)
    weights: Float32Array = np.frombuffer(packed, value_type, offset=at_values).astype(np.float32)
    return ids, weights * np.frombuffer(packed, "<f4", 1, at_values - 4) if scaled else weights


def _quantisation_of(packed: bytes, kind: int, name: str) -> Quantisation:
    if not packed or packed[0] & 0xF0 != kind or packed[0] & 0x0F >= len(QUANTISATIONS):
        raise _damaged(name, f"first byte {packed[:1].hex() or 'missing'}")
    return QUANTISATIONS[packed[0] & 0x0F]


def _damaged(name: str, why: str) -> InputError:
    return InputError(f"a stored {name} cannot be read: {why}; run `ssi sync --verify` to write it again")


def _check_ids(ids: IndexArray, indptr: IndexArray | None = None) -> None:
    """Refuse ids that are not strictly increasing (in each row) or are out of range."""
    rising = np.ones(max(len(ids), 1), bool)
    rising[1:] = ids[1:] > ids[:-1]
    if indptr is not None:
        rising[indptr[:-1][indptr[:-1] < len(ids)]] = True
    if len(ids) and not (rising.all() and int(ids.min()) >= 0 and int(ids.max()) < N_TERM_IDS):
        raise InputError(
            f"term ids must be strictly increasing within a row and lie in 0..{N_TERM_IDS - 1}; "
            f"sort the row (csr.sort_indices())"
        )
