"""Fields that engines compute with: what is written, and that it says what the vectors and words say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reranker.engines import dialects
from reranker.engines.protocol import Capabilities
from reranker.engines.vectors import (
    FieldWriter,
    field_name,
    native_parts,
    norm_of,
    packed_terms,
    sparse_value,
    unit_vector,
    unpacked_terms,
    version_fields,
)
from reranker.errors import InputError, Unsupported
from tests.unit.small_models import small_encoder

ENCODER = "0123456789abcdef"
FULL_ES = dialects.ELASTICSEARCH.capabilities("9.2.0")
BARE_ES = dialects.ELASTICSEARCH.capabilities("8.19.2", set())
OPENSEARCH = dialects.OPENSEARCH.capabilities("2.19.1")
EMBEDDED = Capabilities("tantivy")

ids = st.lists(st.integers(0, 2**31 - 2), unique=True, max_size=30).map(lambda x: np.array(sorted(x), dtype=np.int32))


@st.composite
def rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    some = draw(ids)
    weights = draw(hnp.arrays(np.float32, len(some), elements=st.floats(2**-20, 4.0, width=32)))
    return some, weights


@pytest.mark.parametrize(
    ("capabilities", "routes", "parts"),
    [
        (FULL_ES, ("inside",), ("vec_dense", "terms_long")),
        (BARE_ES, ("inside",), ("vec_unit", "terms_sparse")),
        (OPENSEARCH, ("inside",), ("vec_dense", "terms_long")),
        (OPENSEARCH, ("beside", "fetch"), ()),
    ],
)
def test_each_engine_gets_what_it_can_compute_with(
    capabilities: Capabilities, routes: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    assert native_parts(routes, capabilities) == parts
    mapped = version_fields(ENCODER, 4, capabilities, routes, norm=2.0)
    assert {field_name(ENCODER, part) for part in parts} <= mapped.keys()


@pytest.mark.parametrize(
    "capabilities",
    [
        EMBEDDED,
        Capabilities("opensearch", "2.19.1", "knn_vector"),
        Capabilities("opensearch", "2.19.1", "", painless=True),
        Capabilities("elasticsearch", "8.14.0", "dense_vector", "sparse_vector"),
    ],
)
def test_what_an_engine_cannot_carry_is_refused_with_the_way_out(capabilities: Capabilities) -> None:
    with pytest.raises(Unsupported, match="--routes fetch or beside"):
        native_parts(("inside",), capabilities)


def test_mappings() -> None:
    unit, words = (field_name(ENCODER, part) for part in ("vec_unit", "terms_sparse"))
    mapped = version_fields(ENCODER, 4, BARE_ES, ("inside",), norm=2.5)
    assert (mapped[unit]["dims"], mapped[unit]["similarity"]) == (5, "dot_product")
    assert mapped[unit]["index_options"] == {"type": "flat"}
    assert norm_of(mapped[unit]) == 2.5
    assert mapped[words] == {"type": "sparse_vector"}
    dense = field_name(ENCODER, "vec_dense")
    assert version_fields(ENCODER, 4, FULL_ES, ("inside",))[dense]["index"] is False
    assert "method" not in version_fields(ENCODER, 4, OPENSEARCH, ("inside",))[dense]


def test_ids_and_packed_values_have_doc_values_where_hits_can_be_read_from_them() -> None:
    able = replace(FULL_ES, doc_value_hits=True)
    src, own_id, vec, terms = (field_name(ENCODER, part) for part in ("src", "id", "vec", "terms"))
    packed = {"type": "binary", "doc_values": True}
    by_id = {src: {"type": "keyword"}, own_id: {"type": "keyword", "index": False}}
    assert version_fields(ENCODER, 4, able, ("beside",)) == by_id
    assert version_fields(ENCODER, 4, able, ("fetch",)) == {**by_id, vec: packed, terms: packed}
    plain = {src: {"type": "keyword"}, vec: {"type": "binary"}, terms: {"type": "binary"}}
    assert version_fields(ENCODER, 4, replace(able, doc_value_hits=False), ("fetch",)) == plain


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_document_has_its_id_among_its_fields_even_without_text(with_ids: bool) -> None:
    writer = FieldWriter(ENCODER, with_ids=with_ids)
    matrix = sp.csr_matrix((np.array([0.5], np.float32), np.array([7], np.int32), [0, 1, 1]), shape=(2, 10))
    head = (["one", "two"], np.ones((2, 3), np.float32), matrix, ["a", "b"])
    fields = list(writer.fields(*head, np.array([True, False])))
    name = field_name(ENCODER, "id")
    assert [each.get(name) for each in fields] == (["one", "two"] if with_ids else [None, None])
    assert fields[0].keys() == {field_name(ENCODER, part) for part in writer.parts}


def test_vectors_with_too_many_numbers_are_refused() -> None:
    version_fields(ENCODER, 4095, BARE_ES, ("inside",))
    with pytest.raises(Unsupported, match="4097 numbers"):
        version_fields(ENCODER, 4096, BARE_ES, ("inside",))


@settings(deadline=None)
@given(hnp.arrays(np.float32, 5, elements=st.floats(-3, 3, width=32)), st.floats(1e-3, 1e3))
def test_unit_vectors_keep_products_and_have_length_one(vector: np.ndarray, slack: float) -> None:
    norm = float(np.linalg.norm(vector.astype(np.float64))) * (1 + slack) + 1e-3
    unit = unit_vector(vector, norm)
    assert np.linalg.norm(unit.astype(np.float64)) == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(unit[:-1] * norm, vector, atol=1e-6 * norm)


def test_a_vector_above_the_bound_is_refused() -> None:
    with pytest.raises(InputError, match="exceeds the bound"):
        unit_vector(np.array([3, 4], dtype=np.float32), 4.9)


def test_a_mapping_without_the_bound_is_refused() -> None:
    with pytest.raises(InputError, match=r"meta\.norm"):
        norm_of({"type": "dense_vector"})


@settings(deadline=None)
@given(rows())
def test_packed_words_come_back_exactly(row: tuple[np.ndarray, np.ndarray]) -> None:
    values = packed_terms(*row)
    assert values == sorted(values)
    assert all(0 < value < 2**63 for value in values)
    back = unpacked_terms(values)
    np.testing.assert_array_equal(back[0], row[0])
    np.testing.assert_array_equal(back[1], row[1])


def as_stored(value: float) -> float:
    """Return a weight as ``sparse_vector`` keeps it: the upper 17 bits of a float32."""
    return float((np.array(value, dtype=np.float32).view(np.int32) & ~0x7FFF).view(np.float32))


@settings(deadline=None)
@given(rows())
def test_sparse_words_lose_little_in_the_engine(row: tuple[np.ndarray, np.ndarray]) -> None:
    values = sparse_value(*row)
    kept = unpacked_terms({name: as_stored(value) for name, value in values.items()})
    np.testing.assert_array_equal(kept[0], row[0])
    assert np.abs(kept[1] - row[1]).max(initial=0.0) <= 5e-4
    assert all(value > 0 for value in values.values())
    np.testing.assert_allclose(unpacked_terms(values)[1], kept[1], atol=5e-4)


def test_words_of_weight_0_are_left_out() -> None:
    row = np.array([1, 2], dtype=np.int32), np.array([0.0, 0.5], dtype=np.float32)
    assert sparse_value(*row) == {"t2": 0.5}
    assert len(packed_terms(*row)) == 1


@pytest.mark.parametrize("bad", ["text", {"t": 1.0}, {"x1": "a"}, [None], [1.5e300, "a"]])
def test_stored_words_of_others_are_refused(bad: object) -> None:
    with pytest.raises(InputError, match="not written by this project"):
        unpacked_terms(bad)


def test_a_document_gets_the_native_parts_and_one_without_text_does_not() -> None:
    writer = FieldWriter(ENCODER, "float32", ("inside",), ("vec_unit", "terms_sparse"), 2.0)
    matrix = sp.csr_matrix((np.array([0.5], np.float32), [7], [0, 1, 1]), shape=(2, 2**31 - 1))
    one, none = writer.fields(["1", "2"], np.ones((2, 3), np.float32), matrix, ["a", "b"], np.array([True, False]))
    assert one[field_name(ENCODER, "terms_sparse")] == [{"t7": 0.5}]
    assert len(one[field_name(ENCODER, "vec_unit")]) == 4
    assert none == {field_name(ENCODER, "src"): "b"}


@pytest.mark.parametrize("quantisation", ["float32", "float16", "int8"])
def test_no_document_is_longer_than_the_bound(quantisation: str) -> None:
    encoder = small_encoder(quantisation, n_dims=4)  # type: ignore[arg-type]
    words = list(encoder.document_vocabulary.words)
    texts = [{"title": word, "text": word} for word in words] + [{"title": " ".join(words), "text": " ".join(words)}]
    lengths = np.linalg.norm(encoder.encode(texts).vectors, axis=1)
    assert 0 < lengths.max() <= encoder.norm_bound
