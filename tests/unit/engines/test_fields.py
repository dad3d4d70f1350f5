"""Fields that engines compute with: what is written, and that it says what the vectors and words say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.engines.protocol import Capabilities
from reranker.engines.vectors import (
    FieldWriter,
    field_name,
    version_fields,
)

ENCODER = "0123456789abcdef"


def test_ids_and_packed_values_have_doc_values_where_hits_can_be_read_from_them() -> None:
    able = Capabilities("elasticsearch", "9.2.0", doc_value_hits=True)
    src, own_id, vec, terms = (field_name(ENCODER, part) for part in ("src", "id", "vec", "terms"))
    packed = {"type": "binary", "doc_values": True}
    by_id = {src: {"type": "keyword"}, own_id: {"type": "keyword", "index": False}}
    assert version_fields(ENCODER, able, ("beside",)) == by_id
    assert version_fields(ENCODER, able, ("fetch",)) == {**by_id, vec: packed, terms: packed}
    plain = {src: {"type": "keyword"}, vec: {"type": "binary"}, terms: {"type": "binary"}}
    assert version_fields(ENCODER, replace(able, doc_value_hits=False), ("fetch",)) == plain


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_document_has_its_id_among_its_fields_even_without_text(with_ids: bool) -> None:
    writer = FieldWriter(ENCODER, with_ids=with_ids)
    matrix = sp.csr_matrix((np.array([0.5], np.float32), np.array([7], np.int32), [0, 1, 1]), shape=(2, 10))
    head = (["one", "two"], np.ones((2, 3), np.float32), matrix, ["a", "b"])
    fields = list(writer.fields(*head, np.array([True, False])))
    name = field_name(ENCODER, "id")
    assert [each.get(name) for each in fields] == (["one", "two"] if with_ids else [None, None])
    assert fields[0].keys() == {field_name(ENCODER, part) for part in writer.parts}
