"""Texts of the engine's fields: the same numbers as from decoded bytes, and the same documents refused."""

from __future__ import annotations

import base64

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.arrays import N_TERM_IDS, term_rows
from reranker.errors import InputError
from reranker.kernels.packing import QUANTISATIONS, Quantisation, pack_rows, pack_vectors, unpack_terms, unpack_vectors
from reranker.kernels.texts import unpack_texts
from tests.unit.kernels.test_packing import HOSTILE_TERMS

N_DIMS = 4
NO_WORDS = "IAAAAAAAAAAA"
"""Text of a document without words."""
VALUES = st.floats(-60000, 60000, width=16)


def decoded(text: str) -> bytes:
    """Return the bytes of a base64 text with or without padding."""
    try:
        return msgspec.convert(text + ("", "===", "==", "=")[len(text) % 4], bytes)
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError("not base64") from error


def is_whole(vector: str, terms: str) -> bool:
    """Return whether the reference accepts both texts of a document."""
    try:
        unpack_vectors([decoded(vector)], N_DIMS)
        unpack_terms([decoded(terms)])
    except InputError:
        return False
    return True


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, str]:
    """Draw the texts of a document, its vector and its words, of any quantisations."""
    kind_of_vector: Quantisation = draw(st.sampled_from(QUANTISATIONS))
    kind_of_terms: Quantisation = draw(st.sampled_from(QUANTISATIONS))
    vector = np.array([draw(st.lists(VALUES, min_size=N_DIMS, max_size=N_DIMS))], np.float32)
    ids = np.array(sorted(draw(st.sets(st.integers(0, 70_000) | st.integers(0, N_TERM_IDS - 1), max_size=6))), np.int32)
    weights = np.array(draw(st.lists(VALUES, min_size=len(ids), max_size=len(ids))), np.float32)
    rows = term_rows(weights, ids, np.array([0, len(ids)], np.int32))
    packed = pack_vectors(vector, kind_of_vector)[0], pack_rows(rows, kind_of_terms)[0]
    texts = [base64.b64encode(one).decode() for one in packed]
    if draw(st.booleans()):  # OpenSearch returns doc values without padding
        texts = [text.rstrip("=") for text in texts]
    return texts[0], texts[1]


def changed(text: str, place: int, other: str) -> str:
    """Return the text with one character replaced, from the beginning or, for a negative place, from the end."""
    if not text:
        return other
    place %= len(text)
    return text[:place] + other + text[place + 1 :]


@settings(max_examples=200)
@given(st.lists(documents(), max_size=5))
def test_numbers_are_those_of_the_bytes(texts: list[tuple[str, str]]) -> None:
    vectors, rows, are_whole = unpack_texts([v for v, _ in texts], [t for _, t in texts], N_DIMS)
    assert are_whole.shape == (len(texts),) and are_whole.all()
    assert vectors.shape == (len(texts), N_DIMS) and vectors.dtype == rows.data.dtype == np.float32
    for place, (vector, terms) in enumerate(texts):
        expected = unpack_terms([decoded(terms)])
        # Bits are compared, so that -0 differs from 0.
        assert vectors[place].tobytes() == unpack_vectors([decoded(vector)], N_DIMS)[0].tobytes()
        assert rows[place].data.tobytes() == expected.data.tobytes()
        np.testing.assert_array_equal(rows[place].indices, expected.indices)


@settings(max_examples=400)
@given(
    documents(),
    documents(),
    st.sampled_from([0, 1]),
    st.integers(-4, 40),
    st.sampled_from(["", "=", "A", "/", "\n", "é", "\ud800", "AA", "IA"]),
)
def test_a_changed_text_is_refused_as_its_bytes_are(
    first: tuple[str, str], second: tuple[str, str], which: int, place: int, other: str
) -> None:
    spoilt = list(first)
    spoilt[which] = changed(spoilt[which], place, other)
    texts = [second, (spoilt[0], spoilt[1]), second]
    vectors, rows, are_whole = unpack_texts([v for v, _ in texts], [t for _, t in texts], N_DIMS)
    assert are_whole.tolist() == [True, is_whole(*spoilt), True]
    assert rows.has_canonical_format and rows.indptr[0] == 0 and (np.diff(rows.indptr) >= 0).all()
    for whole in (0, 2):
        np.testing.assert_array_equal(vectors[whole], unpack_vectors([decoded(second[0])], N_DIMS)[0])
        np.testing.assert_array_equal(rows[whole].data, unpack_terms([decoded(second[1])]).data)


@pytest.mark.parametrize("terms", HOSTILE_TERMS)
def test_texts_of_hostile_terms_are_refused(terms: bytes) -> None:
    vector = base64.b64encode(pack_vectors(np.ones((1, N_DIMS), np.float32), "float16")[0]).decode()
    texts = [base64.b64encode(terms).decode(), NO_WORDS]
    assert unpack_texts([vector, vector], texts, N_DIMS).are_whole.tolist() == [False, True]
    assert not is_whole(vector, texts[0])


@pytest.mark.parametrize("padding", ["=", "==", "==="])
def test_padding_where_none_belongs_is_refused(padding: str) -> None:
    """Nine bytes are twelve characters, which need none."""
    vector = base64.b64encode(pack_vectors(np.ones((1, N_DIMS), np.float32), "float16")[0]).decode()
    assert len(vector) == 12
    texts = [vector, vector + padding]
    assert unpack_texts(texts, [NO_WORDS] * 2, N_DIMS).are_whole.tolist() == [True, False]
    assert not is_whole(texts[1], NO_WORDS)


def test_every_float16_is_exact() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]
    text = base64.b64encode(b"\x11" + finite.astype("<f2").tobytes()).decode()
    vectors, _, are_whole = unpack_texts([text], [NO_WORDS], len(finite))
    assert are_whole.all()
    assert vectors[0].tobytes() == finite.astype(np.float32).tobytes()


def test_no_documents() -> None:
    vectors, rows, are_whole = unpack_texts([], [], 7)
    assert vectors.shape == (0, 7) and rows.shape == (0, N_TERM_IDS) and are_whole.shape == (0,)


@pytest.mark.parametrize("place", [0, 1, 2, 3, 10, 11])
def test_every_character_is_read_as_base64_reads_it(place: int) -> None:
    vector = base64.b64encode(pack_vectors(np.ones((1, N_DIMS), np.float32), "float16")[0]).decode()
    assert len(vector) == 12
    for code in range(128):
        text = changed(vector, place, chr(code))
        vectors, _, are_whole = unpack_texts([text], [NO_WORDS], N_DIMS)
        assert are_whole.tolist() == [is_whole(text, NO_WORDS)], (code, text)
        if are_whole[0]:
            assert vectors[0].tobytes() == unpack_vectors([decoded(text)], N_DIMS)[0].tobytes()
