"""Documents and pairs from Parquet: values as JSON has them, bad rows, damaged files, reading on."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from reranker.errors import InputError
from reranker.formats import RejectLog, read_documents
from reranker.records import Pair
from reranker.tables import read_links, read_pairs
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


DAY = pa.array([19_000, 10_000_000, -10_000_000, 19_001], pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    "column",
    [
        DAY,
        pa.array([[day] for day in DAY.cast(pa.int32()).to_pylist()], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
        pa.array([1, 2**62, -(2**62), 2]).cast(pa.timestamp("us")),
        pa.array([1, 2**40, -(2**40), 2]).cast(pa.timestamp("s", tz="Europe/Berlin")),
        pa.StructArray.from_arrays([DAY], names=["day"]),
    ],
    ids=["date", "list", "time", "zone", "struct"],
)
def test_dates_that_no_calendar_has_cost_their_row(tmp_path: Path, column: Any) -> None:
    path = written(tmp_path, {"id": ["1", "2", "3", "4"], "when": column})
    log = RejectLog(tmp_path / "rejects")
    assert [document.id for document in read_documents(path, rejects=log)] == ["1", "4"]
    assert log.kinds == {"out_of_range": 2} and (log.n_accepted, log.count) == (2, 2)
    reason = (tmp_path / "rejects").read_text()
    assert "a value of the column 'when', of type" in reason and "dates must be in the years 1 to 9999" in reason
    with pytest.raises(InputError, match=r"line 2 .*column 'when'"):
        list(read_documents(path))


def test_a_duration_that_is_too_long_costs_its_row(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": ["1"], "took": pa.array([2**60]).cast(pa.duration("s"))})
    sink = CollectingSink()
    assert list(read_documents(path, rejects=sink)) == []
    assert sink.kinds == ["out_of_range"]


@pytest.mark.parametrize("is_inner", [False, True])
def test_an_unknown_time_zone_is_named(tmp_path: Path, is_inner: bool) -> None:
    column = pa.array([1]).cast(pa.timestamp("us", tz="Mars/Base"))
    columns = {"id": ["1"], "at": pa.StructArray.from_arrays([column], names=["sent"]) if is_inner else column}
    name = "at.sent" if is_inner else "at"
    with pytest.raises(InputError, match=f"the column '{name}' .* time zone 'Mars/Base', .* convert the column to UTC"):
        list(read_documents(written(tmp_path, columns), rejects=RejectLog()))


@pytest.mark.parametrize("names", [["id", "id", "t"], ["id", "t", "t"]])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, names: list[str]) -> None:
    table = pa.Table.from_arrays([pa.array(["1"]), pa.array(["2"]), pa.array(["3"])], names=names)
    pq.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(InputError, match=f"has 2 columns '{names[1]}': rename or drop all but one"):
        list(read_documents(tmp_path / "twice.parquet", rejects=RejectLog()))


def test_two_inner_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    inner = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["x", "x"])
    with pytest.raises(InputError, match=r"has 2 columns 's\.x'"):
        list(read_documents(written(tmp_path, {"id": ["1"], "s": inner}), rejects=RejectLog()))


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


def test_a_changed_byte_of_a_page_with_a_checksum_is_told(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    table = pa.table({"id": [f"document {k}" for k in range(100)]})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[data.index(b"document 50")] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged or cut short"):
        list(read_documents(path))
