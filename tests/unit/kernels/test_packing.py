"""Packing: layout, exact round trips, stated errors, hostile bytes."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reranker.arrays import N_TERM_IDS
from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.packing import (
    QUANTISATIONS,
    Quantisation,
    pack_rows,
    pack_vectors,
    quantise_rows,
    quantise_vectors,
    to_text,
    unpack_terms,
    unpack_vectors,
)
from tests.seeds import seeded_rng

HASHED = 2**30
EACH = pytest.mark.parametrize("quantisation", QUANTISATIONS)
HOSTILE_TERMS = (
    b"\x20" + struct.pack("<II", 2**32 - 1, 2**32 - 1) + b"\0" * 20,
    b"\x20" + struct.pack("<IIHHff", 2, 0, 5, 5, 1, 1),
    b"\x20" + struct.pack("<IIIf", 0, 1, 2**32 - 1, 1),
    b"\x20" + struct.pack("<IIIf", 0, 1, N_TERM_IDS, 1),
    b"\x20" + struct.pack("<IIHf", 1, 0, 1, float("nan")),
    b"\x21" + struct.pack("<IIHe", 1, 0, 1, float("-inf")),
    b"\x22" + struct.pack("<IIHfb", 1, 0, 1, float("inf"), 0),
    b"\x23" + struct.pack("<II", 0, 0),
    b"\x10" + struct.pack("<II", 0, 0),
    b"\x20" + struct.pack("<I", 0),
    b"",
)
"""Bytes that are no packed words: wrong counts, ids that do not rise, values that are not finite, wrong first bytes."""


def pack_vector(vector: np.ndarray, quantisation: Quantisation) -> bytes:
    return pack_vectors(vector[None, :], quantisation)[0]


def pack_terms(ids: np.ndarray, weights: np.ndarray, quantisation: Quantisation) -> bytes:
    return pack_rows(sp.csr_matrix((weights, ids, [0, len(ids)]), shape=(1, N_TERM_IDS)), quantisation)[0]


def terms(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n short, long and hashed ids with weights of a unit row."""
    rng = np.random.default_rng(seed)
    ids = np.unique(np.concatenate([rng.integers(0, 70_000, n), HASHED + rng.integers(0, HASHED - 1, 3)]))
    weights = rng.random(len(ids)).astype(np.float32) + np.float32(0.01)
    return ids.astype(np.int32), weights / np.float32(np.linalg.norm(weights))


def test_layout_of_a_vector() -> None:
    vector = np.array([1, -2], np.float32)
    assert pack_vector(vector, "float32") == b"\x10" + struct.pack("<ff", 1, -2)
    assert pack_vector(vector, "float16") == b"\x11" + struct.pack("<ee", 1, -2)
    packed = pack_vector(vector, "int8")
    assert packed[:1] == b"\x12"
    assert struct.unpack("<f", packed[1:5])[0] == pytest.approx(2 / 127, rel=1e-4)
    assert struct.unpack("<bb", packed[5:]) == (63, -127)


def test_layout_of_terms() -> None:
    packed = pack_terms(np.array([3, 65_535, 65_536, HASHED], np.int32), np.array([1, 2, 3, 4], np.float32), "float32")
    assert packed == b"\x20" + struct.pack("<IIHHII", 2, 2, 3, 65_535, 65_536, HASHED) + struct.pack("<4f", 1, 2, 3, 4)


@EACH
@settings(max_examples=150)
@given(
    vectors=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8),
        elements=st.floats(-60000, 60000, width=32),
    )
)
def test_what_was_unpacked_packs_to_the_same_bytes(quantisation: Quantisation, vectors: np.ndarray) -> None:
    decoded = quantise_vectors(vectors, quantisation)
    packed = pack_vectors(vectors, quantisation)
    np.testing.assert_array_equal(unpack_vectors(packed), decoded)
    assert pack_vectors(decoded, quantisation) == packed
    np.testing.assert_array_equal(quantise_vectors(decoded, quantisation), decoded)


@EACH
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(0, 200))
def test_terms_round_trip(quantisation: Quantisation, seed: int, n: int) -> None:
    ids, weights = terms(seed, n)
    rows = sp.csr_matrix(
        (np.append(weights, weights), np.append(ids, ids), [0, len(ids), len(ids), 2 * len(ids)]), shape=(3, N_TERM_IDS)
    )
    decoded = quantise_rows(rows, quantisation)
    packed = pack_rows(rows, quantisation)
    back = unpack_terms(packed)
    np.testing.assert_array_equal(back.indptr, rows.indptr)
    np.testing.assert_array_equal(back.indices, rows.indices)
    np.testing.assert_array_equal(back.data, decoded.data)
    assert back.shape == rows.shape
    assert back.indices.dtype == np.int32
    assert pack_rows(decoded, quantisation) == packed
    assert packed[0] == pack_terms(ids, weights, quantisation) == packed[2]


def test_values_keep_the_stated_precision() -> None:
    vectors = seeded_rng().normal(size=(50, 100)).astype(np.float32)
    np.testing.assert_array_equal(quantise_vectors(vectors, "float32"), vectors)
    np.testing.assert_allclose(quantise_vectors(vectors, "float16"), vectors, rtol=2**-11, atol=3e-8)
    steps = np.abs(vectors).max(axis=1, keepdims=True) / 253
    assert (np.abs(quantise_vectors(vectors, "int8") - vectors) <= steps).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@EACH
def test_values_that_are_not_finite_are_refused(quantisation: Quantisation, value: float) -> None:
    bad = np.array([[0, value]], np.float32)
    row = sp.csr_matrix((bad[0], np.array([1, 2]), [0, 2]), shape=(1, N_TERM_IDS))
    for refused in (
        lambda: pack_vector(bad[0], quantisation),
        lambda: quantise_vectors(bad, quantisation),
        lambda: quantise_rows(row, quantisation),
        lambda: pack_rows(row, quantisation),
    ):
        with pytest.raises(InputError, match="NaN or infinite"):
            refused()


def test_a_zero_vector_is_a_value_as_any_other() -> None:
    zero = np.zeros((2, 5), np.float32)
    for quantisation in QUANTISATIONS:
        np.testing.assert_array_equal(unpack_vectors(pack_vectors(zero, quantisation)), zero)


def test_float16_refuses_what_would_become_infinite() -> None:
    with pytest.raises(InputError, match=r"7e\+04 does not fit float16.*int8"):
        pack_vector(np.array([70_000], np.float32), "float16")


def test_unknown_quantisation_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"'int4'.*float32, float16, int8"):
        pack_vector(np.zeros(1, np.float32), "int4")  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [[2, 1], [1, 1], [-1, 1], [1, N_TERM_IDS]])
def test_ids_out_of_order_or_range_are_refused(ids: list[int]) -> None:
    with pytest.raises(InputError, match="strictly increasing"):
        pack_terms(np.array(ids, np.int64), np.ones(2, np.float32), "float32")


def test_shapes_that_do_not_fit_are_refused() -> None:
    packed = pack_vectors(np.ones((1, 3), np.float32), "float16")
    with pytest.raises(ShapeMismatch, match=r"3 dimensions where 4.*revectorize"):
        unpack_vectors(packed, 4)
    with pytest.raises(ShapeMismatch, match="another encoder"):
        unpack_vectors([*packed, pack_vector(np.ones(2, np.float32), "float16")])
    with pytest.raises(ShapeMismatch, match=r"several quantisations \(float32, float16\).*revectorize"):
        unpack_vectors([*packed, pack_vector(np.ones(3, np.float32), "float32")])
    ids, weights = terms(0, 3)
    with pytest.raises(ShapeMismatch, match=r"term rows of several quantisations \(float32, int8\)"):
        unpack_terms([pack_terms(ids, weights, quantisation) for quantisation in ("int8", "float32")])


@EACH
def test_a_row_among_others_is_refused_by_its_own_length(quantisation: Quantisation) -> None:
    rows = [pack_terms(*terms(seed, 30), quantisation) for seed in range(3)]
    alone = [unpack_terms([row]) for row in rows]
    together = unpack_terms(rows)
    np.testing.assert_array_equal(together.indices, np.concatenate([row.indices for row in alone]))
    np.testing.assert_array_equal(together.data, np.concatenate([row.data for row in alone]))
    with pytest.raises(InputError, match=f"its {len(rows[1]) - 1} bytes do not hold"):
        unpack_terms([rows[0], rows[1][:-1], rows[2] + b"\0"])


def test_nothing_packed_is_an_empty_matrix() -> None:
    assert unpack_vectors([], 7).shape == (0, 7)
    assert unpack_terms([]).shape == (0, N_TERM_IDS)


@EACH
def test_every_cut_and_every_longer_string_is_refused_or_another_vector_length(quantisation: Quantisation) -> None:
    ids, weights = terms(1, 5)
    row = pack_terms(ids, weights, quantisation)
    for length in range(len(row)):
        with pytest.raises(InputError):
            unpack_terms([row[:length]])
    with pytest.raises(InputError, match="do not hold the terms that its header states"):
        unpack_terms([row + b"\0"])
    vector = pack_vector(np.ones(4, np.float32), quantisation)
    for length in range(len(vector)):
        with pytest.raises(InputError):
            unpack_vectors([vector[:length]], 4)


@pytest.mark.parametrize(
    "packed",
    [
        b"\x13\0\0\0\0",
        b"\x00\0\0\0\0",
        b"\x20\0\0\0\0",
        b"\x10" + struct.pack("<f", float("nan")),
        b"\x12" + struct.pack("<f", float("inf")) + b"\x01",
    ],
)
def test_hostile_vectors_are_refused(packed: bytes) -> None:
    with pytest.raises(InputError):
        unpack_vectors([packed])


@pytest.mark.parametrize("packed", HOSTILE_TERMS)
def test_hostile_terms_are_refused(packed: bytes) -> None:
    with pytest.raises(InputError):
        unpack_terms([packed])


@settings(max_examples=300)
@given(st.binary(max_size=64))
def test_any_bytes_give_a_result_or_an_input_error(packed: bytes) -> None:
    for unpack in (unpack_vectors, unpack_terms):
        with contextlib.suppress(InputError):
            assert unpack([packed]).shape[0] == 1


def test_text_is_base64() -> None:
    assert to_text(b"\0\xff\x10") == "AP8Q"


@EACH
def test_error_of_scores_stays_within_the_stated_tolerance(quantisation: Quantisation) -> None:
    """Scores f = Uq.Vd + q.d of random vectors (entries of size .1, N = 100) and unit rows, against float32."""
    rng = seeded_rng()
    vectors = rng.normal(scale=0.1, size=(500, 100)).astype(np.float32)
    queries = rng.normal(scale=0.1, size=(40, 100)).astype(np.float32)
    exact = queries @ vectors.T
    error = np.abs(queries @ quantise_vectors(vectors, quantisation).T - exact).max()
    ids, weights = terms(3, 120)
    row = sp.csr_matrix((weights, ids, [0, len(ids)]), shape=(1, N_TERM_IDS))
    row_error = abs(float(weights @ (quantise_rows(row, quantisation).data - weights)))
    limits = {"float32": (0, 0), "float16": (5e-4, 2e-4), "int8": (1.5e-2, 5e-3)}
    assert error <= limits[quantisation][0]
    assert row_error <= limits[quantisation][1]
