"""Vectors and lexical rows at the precision with which they are stored, and as compact bytes for an engine.

int8 stores one scale per vector: without scales the order of U'V would be kept, but not that of U'V + I. A scale has 17
significant bits, so that every value ``level * scale`` is exact in float32 and rounding twice equals rounding once.
Every serving route therefore sees the same numbers, and packing unpacked values gives the same bytes.

Bytes are stored in unindexed binary fields of the engine. The first byte describes the content, so that a field can be
read without its model::

    byte 0        high nibble: 1 vector, 2 terms; low nibble: 0 float32, 1 float16, 2 int8
    vector        [float32 scale, int8 only] N values
    terms         uint32 n_short, uint32 n_long, n_short uint16 ids, n_long uint32 ids, [float32 scale] n values

All numbers are little-endian. Ids below 65,536 take two bytes; in a vocabulary of 30,000 words these are all ids except
the hashed ones. With float16 values, rows are then a third smaller than with four bytes per id, without the slow
decoding of a variable-length code.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, AnyArray, AnyInt, Float32, offsets_of, term_rows
from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.rows import split_packed

Quantisation = Literal["float32", "float16", "int8"]
QUANTISATIONS: Final[tuple[Quantisation, ...]] = ("float32", "float16", "int8")

_SCALE_BITS = np.uint32(0xFFFFFF80)
_SMALLEST_SCALE = np.float32(np.finfo(np.float32).tiny) * np.float32(256)
_VECTOR, _TERMS = 0x10, 0x20
_SHORT_IDS = 1 << 16
_VALUE_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "int8": np.dtype("i1"),
}


def quantise_vectors(vectors: Float32, quantisation: Quantisation) -> Float32:
    """Return ``vectors`` rounded to the quantisation, as unpacking would return them, (n, N) float32.

    The relative error of float16 is at most 2**-11 above 6e-5; the error of int8 is at most max|v| / 253 in each row.
    `InputError` is raised if a value is NaN, infinite or too large for float16, or the quantisation is unknown.
    """
    check_quantisation(quantisation)
    check_finite(vectors, "vector")
    if quantisation == "float32":
        return np.ascontiguousarray(vectors, dtype=np.float32)
    values, scales = stored_vectors(vectors, quantisation)
    decoded = values.astype(np.float32)
    return decoded if scales is None else decoded * scales[:, None]


def quantise_rows(rows: sp.csr_matrix, quantisation: Quantisation) -> sp.csr_matrix:
    """Return lexical rows with weights as unpacking would return them; errors as in `quantise_vectors`."""
    check_quantisation(quantisation)
    check_finite(rows.data, "term weight")
    if quantisation == "float32":
        return rows
    values, scales = _stored_weights(rows, quantisation)
    data = values.astype(np.float32)
    if quantisation == "int8":
        data *= np.repeat(scales, np.diff(rows.indptr))
    return sp.csr_matrix((data, rows.indices, rows.indptr), shape=rows.shape)


def check_quantisation(quantisation: str) -> None:
    """Raise `InputError` for an unknown quantisation."""
    if quantisation not in QUANTISATIONS:
        raise InputError(f"quantisation {quantisation!r} does not exist; choose one of {', '.join(QUANTISATIONS)}")


def check_finite(values: Float32, name: str) -> None:
    """Raise `InputError` if a value is NaN or infinite; ``name`` is the kind of value for the message."""
    if not np.isfinite(values).all():
        raise InputError(
            f"a {name} is NaN or infinite; vectors and weights must be finite: the model that made it is "
            f"damaged or diverged"
        )


def to_float16(values: Float32) -> npt.NDArray[np.float16]:
    """Return ``values`` as little-endian float16; raises `InputError` if one is too large."""
    largest = float(np.abs(values).max(initial=0))
    if largest > float(np.finfo(np.float16).max):
        raise InputError(f"the value {largest:.4g} does not fit float16 (<= 65504); choose float32 or int8")
    return values.astype("<f2")


def int8_scales(maxima: Float32) -> Float32:
    """Return maxima / 127 rounded up to 17 significant bits; 0 for rows that are too small to represent."""
    exact = (maxima.astype(np.float64) / 127).astype(np.float32)
    cut = (exact.view(np.uint32) & _SCALE_BITS).view(np.float32)
    up = ((exact.view(np.uint32) & _SCALE_BITS) + np.uint32(0x80)).view(np.float32)
    scales = np.where(cut.astype(np.float64) * 127 >= maxima, cut, up)
    return np.where(exact < _SMALLEST_SCALE, np.float32(0), scales).astype(np.float32)


def int8_levels(values: Float32, scales: Float32 | np.float32) -> npt.NDArray[np.int8]:
    """Return round(values / scales) as int8, from -127 to 127; 0 if the scale is 0."""
    divisor = np.where(scales > 0, scales, np.float32(np.inf))
    return np.rint(values / divisor).astype(np.int8)


def stored_vectors(vectors: Float32, quantisation: str) -> tuple[AnyArray, Float32 | None]:
    """Return the stored values of (n, N) vectors and, for int8, the scale of each row: v = level * scale."""
    if quantisation == "int8":
        scales = int8_scales(np.abs(vectors).max(axis=1, initial=0).astype(np.float32))
        return int8_levels(vectors, scales[:, None]), scales
    return vectors.astype("<f4") if quantisation == "float32" else to_float16(vectors), None


def pack_vectors(vectors: Float32, quantisation: Quantisation) -> list[bytes]:
    """Return each row of an (n, N) matrix as bytes; raises `InputError` for a value not finite or too large."""
    check_quantisation(quantisation)
    check_finite(vectors, "vector")
    header = bytes([_VECTOR | QUANTISATIONS.index(quantisation)])
    values, scales = stored_vectors(vectors, quantisation)
    heads = [header] * len(values) if scales is None else [header + struct.pack("<f", scale) for scale in scales]
    return [head + row.tobytes() for head, row in zip(heads, values, strict=True)]


def unpack_vectors(packed: Sequence[bytes], n_dims: int | None = None) -> Float32:
    """Return packed vectors, all of one quantisation and number of dimensions, as one (n, N) float32 matrix.

    ``n_dims`` is the number of dimensions of the caller's model. `InputError` is raised for bytes that are not a packed
    vector, are truncated, or hold values that are not finite; `ShapeMismatch` if quantisations or dimensions differ.
    """
    if not packed:
        return np.zeros((0, n_dims or 0), np.float32)
    quantisation = _quantisation_of(packed, _VECTOR, "vector")
    start, kind = 5 if quantisation == "int8" else 1, _VALUE_TYPES[quantisation]
    dims = n_dims if n_dims is not None else max(0, len(packed[0]) - start) // kind.itemsize
    for length in sorted(set(map(len, packed)) - {start + dims * kind.itemsize}):
        if length < start or (length - start) % kind.itemsize:
            raise _damaged("vector", f"{length} bytes do not hold whole {quantisation} values")
        raise ShapeMismatch(
            f"a stored vector has {(length - start) // kind.itemsize} dimensions where {dims} are expected: it was "
            f"encoded by another encoder; run `ssi revectorize` with this model"
        )
    table = np.frombuffer(b"".join(packed), np.uint8).reshape(len(packed), -1)
    vectors: Float32 = np.ascontiguousarray(table[:, start:]).view(kind).astype(np.float32)
    if quantisation == "int8":
        with np.errstate(invalid="ignore", over="ignore"):  # a manipulated scale; rejected below
            vectors *= np.ascontiguousarray(table[:, 1:5]).view("<f4")
    check_finite(vectors, "stored vector")
    return vectors


def pack_rows(rows: sp.csr_matrix, quantisation: Quantisation) -> list[bytes]:
    """Return each lexical row as bytes.

    `InputError` is raised if ids are not ascending, or a weight is not finite or too large.
    """
    check_quantisation(quantisation)
    check_finite(rows.data, "term weight")
    _check_ids(rows.indices, rows.indptr)
    header, kind = bytes([_TERMS | QUANTISATIONS.index(quantisation)]), _VALUE_TYPES[quantisation]
    values, scales = _stored_weights(rows, quantisation)
    # Everything is converted once for all rows; a row is then four slices of bytes.
    n_short = np.diff(offsets_of(rows.indices < _SHORT_IDS)[rows.indptr])
    middles = rows.indptr[:-1] + n_short
    packed_scales = [struct.pack("<f", scale) for scale in scales] or [b""] * rows.shape[0]
    bounds = zip(rows.indptr[:-1].tolist(), middles.tolist(), rows.indptr[1:].tolist(), packed_scales, strict=True)
    short, long, stored = rows.indices.astype("<u2").tobytes(), rows.indices.astype("<u4").tobytes(), values.tobytes()
    width = kind.itemsize
    return [
        b"".join(
            (
                header,
                struct.pack("<II", middle - start, end - middle),
                short[2 * start : 2 * middle],
                long[4 * middle : 4 * end],
                scale,
                stored[width * start : width * end],
            )
        )
        for start, middle, end, scale in bounds
    ]


def unpack_terms(packed: Sequence[bytes]) -> sp.csr_matrix:
    """Return packed lexical rows as one CSR matrix of shape (n, 2**31 - 1), float32.

    `InputError` is raised if bytes are not a packed row or are truncated, ids are not ascending or out of range, or a
    weight is not finite; `ShapeMismatch` if quantisations differ, since all rows of one encoder have the same.
    """
    if not packed:
        return term_rows(np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int32))
    quantisation = _quantisation_of(packed, _TERMS, "term row")
    kind, scale_bytes = _VALUE_TYPES[quantisation], 4 if quantisation == "int8" else 0
    starts = offsets_of(list(map(len, packed)))
    ids = np.empty(starts[-1] // (2 + kind.itemsize), np.uint32)
    stored, scales = np.empty(len(ids) * kind.itemsize, np.uint8), np.empty(len(packed) * scale_bytes, np.uint8)
    data, indptr = np.frombuffer(b"".join(packed), np.uint8), np.empty(len(starts), np.int64)
    row = split_packed(data, starts, kind.itemsize, scale_bytes, ids, stored, scales, indptr)
    if row < len(packed):
        raise _damaged("term row", f"its {len(packed[row])} bytes do not hold the terms that its header states")
    ids = ids[: indptr[-1]]
    weights: Float32 = stored.view(kind)[: len(ids)].astype(np.float32)
    if scale_bytes:
        with np.errstate(invalid="ignore", over="ignore"):  # a manipulated scale; rejected below
            weights *= np.repeat(scales.view("<f4"), np.diff(indptr))
    check_finite(weights, "stored term weight")
    _check_ids(ids, indptr)
    return term_rows(weights, ids.view(np.int32), indptr.astype(np.int32))


def to_text(packed: bytes) -> str:
    """Return bytes as base64, the JSON form of a binary field."""
    return base64.b64encode(packed).decode("ascii")


def _quantisation_of(packed: Sequence[bytes], kind: int, name: str) -> Quantisation:
    """Return the quantisation of packed rows; raises an error if they are damaged or have several."""
    heads = {row[:1] for row in packed}
    for head in sorted(heads):
        if not head or head[0] & 0xF0 != kind or head[0] & 0x0F >= len(QUANTISATIONS):
            raise _damaged(name, f"first byte {head.hex() or 'missing'}")
    if len(heads) > 1:
        kinds = ", ".join(QUANTISATIONS[head[0] & 0x0F] for head in sorted(heads))
        raise ShapeMismatch(
            f"stored {name}s of several quantisations ({kinds}) were read together: some come from another encoder; "
            f"run `ssi revectorize` with this model"
        )
    return QUANTISATIONS[heads.pop()[0] & 0x0F]


def _stored_weights(rows: sp.csr_matrix, quantisation: Quantisation) -> tuple[AnyArray, Float32]:
    """Return all weights as they are stored, and the scale of each row for int8."""
    if quantisation == "int8":
        maxima, filled = np.zeros(rows.shape[0], np.float32), np.flatnonzero(np.diff(rows.indptr))
        if len(filled):
            maxima[filled] = np.maximum.reduceat(np.abs(rows.data), rows.indptr[:-1][filled])
        scales = int8_scales(maxima)
        return int8_levels(rows.data, np.repeat(scales, np.diff(rows.indptr))), scales
    return rows.data.astype("<f4") if quantisation == "float32" else to_float16(rows.data), np.zeros(0, np.float32)


def _damaged(name: str, why: str) -> InputError:
    return InputError(f"a stored {name} cannot be read: {why}; run `ssi sync --verify` to write it again")


def _check_ids(ids: AnyInt, indptr: AnyInt) -> None:
    """Raise `InputError` if ids are not strictly increasing in each row or are out of range."""
    rising = np.ones(max(len(ids), 1), bool)
    rising[1:] = ids[1:] > ids[:-1]
    rising[indptr[:-1][indptr[:-1] < len(ids)]] = True
    if len(ids) and not (rising.all() and int(ids.min()) >= 0 and int(ids.max()) < N_TERM_IDS):
        raise InputError(
            f"term ids must be strictly increasing within a row and lie in 0..{N_TERM_IDS - 1}; "
            f"sort the row (csr.sort_indices())"
        )
