"""Documents: ids, duplicates, resuming, and one file with every fault among thousands of good lines."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reranker import formats as ids_module
from reranker.errors import ConfigError, InputError
from reranker.formats import RejectLog, SeenIds, read_documents
from tests.unit.formats.collect import CollectingSink
from tests.unit.formats.test_jsonl import HOSTILE


def written(folder: Path, *lines: dict[str, Any] | bytes) -> Path:
    path = folder / "docs.jsonl"
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return path


def test_documents_and_their_places(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": "a", "title": "T"}, {"_id": 12, "n": {"id": 3}}, {"id": "c", "_id": "c"})
    found = list(read_documents(path))
    assert [(doc.id, doc.source) for doc in found] == [("a", {"title": "T"}), ("12", {"n": {"id": 3}}), ("c", {})]
    assert [(doc.line, doc.offset, doc.end_offset) for doc in found] == [(1, 0, 26), (2, 26, 54), (3, 54, 78)]


def test_an_id_field_names_the_documents_and_stays_in_the_source(tmp_path: Path) -> None:
    nested = {"product": {"sku": "b"}, "id": "other", "_id": "gone"}
    path = written(tmp_path, {"product": {"sku": 7}, "title": "T"}, nested, {"product.sku": "c", "product": "x"})
    found = [(document.id, document.source) for document in read_documents(path, id_field="product.sku")]
    assert found == [
        ("7", {"product": {"sku": 7}, "title": "T"}),
        ("b", {"product": {"sku": "b"}, "id": "other"}),
        ("c", {"product.sku": "c", "product": "x"}),
    ]


def test_documents_without_a_usable_id_field_are_refused_and_counted(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"sku": "a"},
        {"id": "b"},
        {"sku": None},
        {"sku": ""},
        {"sku": ["c"]},
        {"sku": "a"},
        {"sku": {"sku": 1}},
    ]
    with RejectLog() as log:
        found = [document.id for document in read_documents(written(tmp_path, *rows), rejects=log, id_field="sku")]
    assert found == ["a"]
    assert log.kinds == {"id_missing": 2, "id_empty": 1, "id_type": 2, "duplicate_id": 1}
    with pytest.raises(InputError, match="needs the key 'sku', and this one's keys are 'id'"):
        list(read_documents(written(tmp_path, {"id": "b"}), id_field="sku"))


def test_an_id_field_of_parquet_is_a_column(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    pq.write_table(pa.table({"sku": [3, 4], "product": [{"code": "x"}, {"code": "y"}], "title": ["T", "S"]}), path)
    assert [document.id for document in read_documents(path, id_field="sku")] == ["3", "4"]
    assert [document.id for document in read_documents(path, id_field="product.code")] == ["x", "y"]
    with pytest.raises(InputError, match="'ean'"):
        list(read_documents(path, id_field="ean"))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"title": "no id"}', "id_missing"),
        (b'{"id": null}', "id_missing"),
        (b'{"id": ""}', "id_empty"),
        (b'{"id": "' + b"x" * 513 + b'"}', "id_too_long"),
        (b'{"id": "' + "é".encode() * 257 + b'"}', "id_too_long"),
        (b'{"id": 1.0}', "id_type"),
        (b'{"id": true}', "id_type"),
        (b'{"id": ["a"]}', "id_type"),
        (b'{"id": ' + b"9" * 1000 + b"}", "id_type"),
        (b'{"id": "a", "_id": "b"}', "id_ambiguous"),
        (b'{"id": "\\ud800"}', "lone_surrogate"),
        (b'{"id": "first"}', "duplicate_id"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_ids(tmp_path: Path, line: bytes, kind: str) -> None:
    sink = CollectingSink()
    found = list(read_documents(written(tmp_path, {"id": "first"}, line, {"id": "last"}), rejects=sink))
    assert [doc.id for doc in found] == ["first", "last"]
    assert sink.kinds == [kind]
    assert (sink.entries[0].line, sink.entries[0].offset) == (2, 16)


@pytest.mark.parametrize("value", ["x" * 512, "é" * 256, "../../_search", "a\0b", "white space\t", -7, 2**70])
def test_legal_ids(tmp_path: Path, value: str | int) -> None:
    assert [doc.id for doc in read_documents(written(tmp_path, {"id": value}))] == [str(value)]


def test_duplicates_may_be_kept(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": "1", "v": 1}, {"id": 1, "v": 2})
    assert [doc.source["v"] for doc in read_documents(path, duplicates="keep")] == [1, 2]
    with pytest.raises(InputError, match="given before: the first document counts"):
        list(read_documents(path))
    with pytest.raises(ConfigError, match="reject, keep"):
        list(read_documents(path, duplicates="merge"))  # type: ignore[arg-type]


def test_documents_without_text_are_kept(tmp_path: Path) -> None:
    assert [doc.source for doc in read_documents(written(tmp_path, {"id": "1"}, {"id": "2", "text": ""}))] == [
        {},
        {"text": ""},
    ]


def test_without_a_sink_the_first_bad_line_raises(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"docs\.jsonl, line 2 \(byte 12\): not JSON"):
        list(read_documents(written(tmp_path, {"id": "a"}, b"{oops")))


def test_every_fault_among_ten_thousand_good_documents(tmp_path: Path) -> None:
    poison = [line for line, _ in HOSTILE if line]
    lines: list[dict[str, Any] | bytes] = [{"id": str(i), "text": f"text {i}"} for i in range(10_000)]
    for i, line in enumerate(poison):
        lines.insert(i * 100 + 50, line)
    log = RejectLog(tmp_path / "rejects.jsonl")
    with log:
        found = list(read_documents(written(tmp_path, *lines), rejects=log))
    assert len(found) == 10_000
    assert len(found) + log.count == len(lines)
    entries = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in entries] == [i * 100 + 51 for i in range(len(poison))]
    data = (tmp_path / "docs.jsonl").read_bytes()
    for entry, line in zip(entries, poison, strict=True):
        assert data[entry["offset"] : entry["offset"] + len(line)] == line
        assert entry["reason"]
        assert len(entry["sample"]) <= 200


def test_a_document_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": "a", "text": "x" * 5_000}, {"id": "b"})
    sink = CollectingSink()
    assert [doc.id for doc in read_documents(path, rejects=sink, max_line_bytes=4_000)] == ["b"]
    assert sink.kinds == ["line_too_long"]


def test_a_large_document_is_held_at_most_three_times(tmp_path: Path) -> None:
    n_bytes = 8_000_000
    path = written(tmp_path, {"id": "a", "text": "word " * (n_bytes // 5)}, {"id": "b"})
    tracemalloc.start()
    try:
        documents = read_documents(path)
        first = next(documents)
        held, peak = tracemalloc.get_traced_memory()
        assert held < 1.2 * n_bytes + 2_000_000
        assert peak < 3.2 * n_bytes + 2_000_000
    finally:
        tracemalloc.stop()
    assert len(first.source["text"]) == n_bytes


def test_seen_ids_over_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids_module, "_MAX_RECENT", 8)
    seen = SeenIds()
    assert all(seen.add(f"id {i}") for i in range(1_000))
    assert not any(seen.add(f"id {i}") for i in range(1_000))
    assert len(seen._recent) + sum(map(len, seen._runs)) == 1_000
    assert sum(map(len, seen._runs)) >= 992
    assert len(seen._runs) <= 8  # doubling sizes: a look-up stays logarithmic
