"""Documents and pairs from Parquet: values as JSON has them, bad rows, damaged files, reading on."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from reranker.errors import InputError
from reranker.formats import RejectLog, read_documents, read_links, read_pairs
from reranker.records import Pair
from tests.engines.policy import library
from tests.unit.formats.collect import CollectingSink

pa = library("pyarrow")
pq = library("pyarrow.parquet")


def written(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_values_come_as_json_has_them(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "id": [1],
            "text": ["t"],
            "tags": [["a", "b"]],
            "nested": [{"x": 1.5, "y": None}],
            "day": [datetime.date(2024, 5, 6)],
            "at": [datetime.datetime(2024, 5, 6, 7, 8, 9)],
            "price": [Decimal("9.90")],
        },
    )
    (doc,) = read_documents(path)
    assert doc.id == "1"
    assert doc.source == {
        "text": "t",
        "tags": ["a", "b"],
        "nested": {"x": 1.5, "y": None},
        "day": "2024-05-06",
        "at": "2024-05-06T07:08:09",
        "price": "9.90",
    }
    assert (doc.line, doc.offset, doc.end_offset) == (1, 0, 1)


def test_bad_rows_are_rejected_and_the_others_read(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff", b"c", b"d", b"e", b"f", b"g"]).view(pa.utf8())
    numbers = [1.0, 1.0, float("nan"), float("inf"), None, 2.0, 3.0]
    path = written(tmp_path, {"id": ["1", "2", "3", "4", "5", "", "5"], "text": texts, "n": numbers})
    sink = CollectingSink()
    assert [doc.id for doc in read_documents(path, rejects=sink)] == ["1", "5"]
    assert [(entry.line, entry.kind) for entry in sink.entries] == [
        (2, "not_utf8"),
        (3, "not_finite"),
        (4, "not_finite"),
        (6, "id_empty"),
        (7, "duplicate_id"),
    ]


def test_a_column_of_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="drop or convert the column"):
        list(read_documents(written(tmp_path, {"id": ["1"], "blob": [b"\x00"]})))


def test_rows_of_several_groups_and_batches_come_in_order_with_their_places(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": list(range(2_000))}, row_group_size=700)
    places = [(doc.id, doc.line, doc.offset, doc.end_offset) for doc in read_documents(path)]
    assert places == [(str(i), i + 1, i, i + 1) for i in range(2_000)]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, {"key": [1], "better": ["a"]})
    with pytest.raises(InputError, match="no column 'id' or '_id'; its columns are key, better"):
        list(read_documents(path))
    with pytest.raises(InputError, match="no column 'query'"):
        list(read_pairs(path))


@pytest.mark.parametrize("damage", ["cut", "footer", "middle"])
def test_damaged_files_are_input_errors(tmp_path: Path, damage: str) -> None:
    path = written(tmp_path, {"id": [str(i) for i in range(5_000)], "text": [f"text {i}" for i in range(5_000)]})
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "footer":
        data[-20:-8] = b"\xff" * 12
    else:
        middle = len(data) // 3
        data[4:middle] = bytes(255 - byte for byte in data[4:middle])
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="damaged or cut short"):
        list(read_documents(path, rejects=RejectLog()))


def test_pairs(tmp_path: Path) -> None:
    columns = {
        "worse": ["b", "b", "a", "b"],
        "better": ["a", "a", "a", "a"],
        "query": ["q", "q", "q", None],
        "weight": [0.5, None, 1.0, 1.0],
    }
    sink = CollectingSink()
    assert list(read_pairs(written(tmp_path, columns), rejects=sink)) == [Pair("q", "a", "b", 0.5), Pair("q", "a", "b")]
    assert sink.kinds == ["same_document", "empty_query"]


def test_links_do_not_come_in_parquet(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give a text file here"):
        list(read_links(written(tmp_path, {"source": ["a"]})))
