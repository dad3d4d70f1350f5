"""Vectors and lexical rows of documents, read from the base64 texts in which an engine returns them.

`unpack_texts` gives the numbers that `reranker.kernels.packing` would give for the decoded bytes, in one pass over all
texts: for the hundred candidates of a search, objects and arrays in between took most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba as nb
import numpy as np
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, AnyArray, Bool, Float32, offsets_of, term_rows
from reranker.kernels.rows import compiled

_BYTES = nb.types.Array(nb.uint8, 1, "C", readonly=True)
_LONGS = nb.types.Array(nb.int64, 1, "C", readonly=True)
_NO_DIGIT = np.int32(255)
"""Value of a character that is not base64, from 64 on as no other is."""
_LEAST_TERM_BYTES = 3
"""Bytes of a word with an id of two bytes and a weight of one."""
_INFINITY = np.uint32(0x7F800000)
"""Bits of an infinite float32; NaN has the same exponent."""
_EXPONENT_OFFSET = np.uint32((127 - 15) << 23)
"""Difference between the exponent's offsets in float32 and float16, in its place in a float32."""
_SMALLEST_HALF = np.float32(2.0**-24)
"""Smallest positive float16, of which the subnormal ones are multiples."""


class UnpackedTexts(NamedTuple):
    """Vectors and lexical rows of n documents; damaged documents have unspecified vectors and empty rows."""

    vectors: Float32
    """(n, N) float32."""
    rows: sp.csr_matrix
    """(n, 2**31 - 1) float32."""
    are_whole: Bool
    """(n,) bool: False for damaged documents."""


@nb.njit(nogil=True, inline="always")
def _digit(char: int) -> np.uint8:
    """Return the value of a character of base64, or `_NO_DIGIT`; choices without branches, in the order of ASCII."""
    code = np.int32(char)
    value = np.int32(code - np.int32(65))
    value = _NO_DIGIT if code > np.int32(90) else value
    value = np.int32(code - np.int32(71)) if code > np.int32(96) else value
    value = _NO_DIGIT if code > np.int32(122) else value
    value = _NO_DIGIT if code < np.int32(65) else value
    value = np.int32(code + np.int32(4)) if code < np.int32(58) else value
    value = _NO_DIGIT if code < np.int32(48) else value
    value = np.int32(62) if code == np.int32(43) else value
    value = np.int32(63) if code == np.int32(47) else value
    return np.uint8(value)


@compiled([nb.int64(_BYTES, nb.int64, nb.int64, nb.uint8[::1], nb.uint8[::1])])
def _decode(texts: AnyArray, at: int, end: int, digits: AnyArray, out: AnyArray) -> int:
    """Decode a base64 text, with or without padding, and return the number of bytes; -1 if it is not base64.

    ``digits`` receives the value of each character. The three loops are separate, because only then the compiler uses
    vector instructions. In one loop with a table of the values, decoding takes about three times as long.
    """
    padding = 0
    while padding < 2 and end > at and texts[end - 1] == ord("="):
        end -= 1
        padding += 1
    n, rest = end - at, (end - at) % 4
    if rest == 1 or padding > (4 - rest) % 4:
        return -1
    for k in range(n):
        # Unsigned indexes skip the check for negative ones (from the end).
        digits[np.uint64(k)] = _digit(texts[np.uint64(at + k)])
    seen = np.uint8(0)
    for k in range(n):
        seen |= digits[np.uint64(k)]
    for k in range(n, n + (4 - rest) % 4):
        digits[k] = 0
    for group in range((n + 3) // 4):
        a, b = digits[np.uint64(4 * group)], digits[np.uint64(4 * group + 1)]
        c, d = digits[np.uint64(4 * group + 2)], digits[np.uint64(4 * group + 3)]
        out[np.uint64(3 * group)] = np.uint8(a << np.uint8(2)) | np.uint8(b >> np.uint8(4))
        out[np.uint64(3 * group + 1)] = np.uint8(b << np.uint8(4)) | np.uint8(c >> np.uint8(2))
        out[np.uint64(3 * group + 2)] = np.uint8(c << np.uint8(6)) | d
    return n * 3 // 4 if seen < 64 else -1


@compiled([nb.uint32(nb.uint8[::1], nb.int64)])
def _two(packed: AnyArray, at: int) -> np.uint32:
    return np.uint32(np.uint32(packed[np.uint64(at)]) | np.uint32(packed[np.uint64(at + 1)]) << np.uint32(8))


@compiled([nb.uint32(nb.uint8[::1], nb.int64)])
def _four(packed: AnyArray, at: int) -> np.uint32:
    return np.uint32(_two(packed, at) | _two(packed, at + 2) << np.uint32(16))


@compiled([nb.boolean(nb.uint8[::1], nb.int64, nb.int64, nb.uint32[::1])], fastmath=())
def _read_values(packed: AnyArray, at: int, kind: int, out: AnyArray) -> bool:
    """Write the bits of all values as float32, and return whether they are finite.

    ``at`` is the position of the first value, and ``kind`` the low nibble of the first byte (see
    `reranker.kernels.packing`): 0 float32, 1 float16, 2 int8, whose scale comes directly before its values.
    """
    values, n = out.view(np.float32), len(out)
    if kind == 0:
        for k in range(n):
            out[k] = _four(packed, at + 4 * k)
    elif kind == 1:
        for k in range(n):
            half = _two(packed, at + 2 * k)
            exponent = half & np.uint32(0x7C00)
            if exponent == np.uint32(0):
                values[k] = np.float32(half & np.uint32(0x03FF)) * _SMALLEST_HALF
            elif exponent == np.uint32(0x7C00):
                out[k] = _INFINITY
            else:
                out[k] = ((half & np.uint32(0x7FFF)) << np.uint32(13)) + _EXPONENT_OFFSET
            out[k] |= (half & np.uint32(0x8000)) << np.uint32(16)
    else:
        scale = np.array([_four(packed, at - 4)]).view(np.float32)[0]
        for k in range(n):
            values[k] = np.float32(np.int8(packed[at + k])) * scale
    are_finite = True
    for k in range(n):
        are_finite &= out[k] & _INFINITY != _INFINITY
    return are_finite


@compiled([nb.boolean(nb.uint8[::1], nb.int64, nb.uint32[::1])])
def _read_vector(packed: AnyArray, size: int, out: AnyArray) -> bool:
    """Write the bits of a packed vector, and return False if it is damaged; ``size`` is the number of its bytes."""
    kind = np.int64(packed[0] & 15)
    if size < 1 or packed[0] >> 4 != 1 or kind > 2:
        return False
    at, width = 5 if kind == 2 else 1, 4 >> kind
    return size == at + width * len(out) and bool(_read_values(packed, at, kind, out))


@compiled([nb.int64(nb.uint8[::1], nb.int64, nb.uint32[::1], nb.uint32[::1])])
def _read_terms(packed: AnyArray, size: int, ids: AnyArray, weights: AnyArray) -> np.int64:
    """Write the ids of packed words and the bits of their weights; return the number of words, -1 if damaged."""
    kind = np.int64(packed[0] & 15)
    if size < 9 or packed[0] >> 4 != 2 or kind > 2:
        return np.int64(-1)
    n_short, n_long = np.int64(_four(packed, 1)), np.int64(_four(packed, 5))
    n_terms, at = n_short + n_long, np.int64(9)
    if size != at + 2 * n_short + 4 * n_long + (4 if kind == 2 else 0) + (4 >> kind) * n_terms:
        return np.int64(-1)
    for k in range(n_short):
        ids[k] = _two(packed, at + 2 * k)
    at += 2 * n_short
    for k in range(n_long):
        ids[n_short + k] = _four(packed, at + 4 * k)
    at += 4 * n_long + (4 if kind == 2 else 0)
    is_good = n_terms == 0 or ids[n_terms - 1] < np.uint32(N_TERM_IDS)
    for k in range(1, n_terms):
        is_good &= ids[k] > ids[k - 1]
    is_good &= _read_values(packed, at, kind, weights[:n_terms])
    return n_terms if is_good else np.int64(-1)


@compiled([nb.void(_BYTES, _LONGS, nb.uint32[:, ::1], nb.uint32[::1], nb.uint32[::1], nb.int32[::1], nb.bool_[::1])])
def _unpack(
    texts: AnyArray,
    starts: AnyArray,
    vectors: AnyArray,
    ids: AnyArray,
    weights: AnyArray,
    indptr: AnyArray,
    are_whole: AnyArray,
) -> None:
    """Fill the arrays; text i is the vector of document i, and text n + i its words."""
    n, longest = len(vectors), np.int64(0)
    for text in range(2 * n):
        longest = max(longest, starts[text + 1] - starts[text])
    digits, packed = np.zeros(longest + 4, np.uint8), np.zeros(longest + 4, np.uint8)
    indptr[0] = 0
    for document in range(n):
        first, n_terms = indptr[document], np.int64(-1)
        size = _decode(texts, starts[document], starts[document + 1], digits, packed)
        if _read_vector(packed, size, vectors[document]):
            size = _decode(texts, starts[n + document], starts[n + document + 1], digits, packed)
            n_terms = _read_terms(packed, size, ids[first:], weights[first:])
        are_whole[document] = n_terms >= 0
        indptr[document + 1] = first + max(n_terms, 0)


def unpack_texts(vectors: Sequence[str], terms: Sequence[str], n_dims: int) -> UnpackedTexts:
    """Return the vectors and lexical rows of documents, of which damaged ones are marked.

    A document is damaged if one of its texts is not base64, or `reranker.kernels.packing` would refuse its bytes.
    Documents may have different quantisations.

    Parameters
    ----------
    vectors, terms : Sequence[str]
        Packed vector and packed words of each document. The padding (``=``) may be missing, as in OpenSearch's doc
        values of binary fields.
    n_dims : int
        Number of dimensions of the vectors.
    """
    n, texts = len(vectors), [*vectors, *terms]
    starts = offsets_of(np.fromiter(map(len, texts), np.int64, len(texts)))
    # A character outside of ASCII becomes "?", which is no base64 either, and keeps the length.
    data = np.frombuffer("".join(texts).encode("ascii", "replace"), np.uint8)
    n_terms = int(starts[-1] - starts[n]) * 3 // 4 // _LEAST_TERM_BYTES
    ids, weights = np.empty((2, n_terms), np.uint32)
    found, indptr, are_whole = np.empty((n, n_dims), np.uint32), np.empty(n + 1, np.int32), np.empty(n, np.bool_)
    _unpack(data, starts, found, ids, weights, indptr, are_whole)
    n_terms = int(indptr[-1])
    rows = term_rows(weights[:n_terms].view(np.float32), ids[:n_terms].view(np.int32), indptr)
    return UnpackedTexts(found.view(np.float32), rows, are_whole)
