"""The documents of an index as a file: the same bytes whatever order the engine scans in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reranker.engines.base import WriteOp
from reranker.errors import NothingToLearn
from reranker.formats import read_documents
from reranker.records import StoredDocument
from reranker.retrain.learning import export_documents
from reranker.text.view import TextView
from tests.engines.memory import memory_engine

VIEW = TextView.parse(["title", "meta.text"])
DOCUMENTS: dict[str, dict[str, Any]] = {
    "b": {"title": "B", "meta": {"text": "two\nlines", "other": 1}, "secret": "x"},
    "a": {"title": ["A", "A2"], "meta": {"text": "ü ☃ \u2028"}},
    "c": {"secret": "only"},
}


class Scanned:
    """An engine whose scan has an order of its own."""

    spec = "tantivy:index"

    def __init__(self, documents: list[tuple[str, dict[str, Any]]]) -> None:
        self.documents = documents

    def refresh(self, index: str) -> None: ...

    def count(self, index: str) -> int:
        return len(self.documents)

    def scan(self, index: str, *, source: Any, batch_size: int) -> Iterator[list[StoredDocument]]:
        for name, value in self.documents:
            yield [StoredDocument(name, index, value, 0, 1)]


def stored(path: Path) -> dict[str, Any]:
    return {one.id: dict(one.source) for one in read_documents(path)}


def test_text_fields_alone_are_written_sorted_by_id(tmp_path: Path) -> None:
    engine = memory_engine()
    engine.create_index("docs", {"properties": {"title": {"type": "text"}}})
    engine.bulk("docs", [WriteOp("index", name, source) for name, source in DOCUMENTS.items()])
    path = tmp_path / "work" / "documents.jsonl"
    assert export_documents(engine, "docs", VIEW, path) == 3
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["a", "b", "c"]
    read = stored(path)
    assert {name: VIEW.texts(source) for name, source in read.items()} == {
        name: VIEW.texts(source) for name, source in DOCUMENTS.items()
    }
    assert "secret" not in path.read_text()
    assert [one.name for one in path.parent.iterdir()] == ["documents.jsonl"]


def test_the_order_of_the_scan_does_not_show(tmp_path: Path) -> None:
    several = [(f"d{number}", {"title": f"t{number}"}) for number in range(30)]
    files = []
    for number, order in enumerate((several, several[::-1])):
        path = tmp_path / f"{number}.jsonl"
        export_documents(Scanned(order), "docs", VIEW, path)  # type: ignore[arg-type]
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_an_id_of_two_indexes_is_written_once(tmp_path: Path) -> None:
    both = [("d", {"title": "second"}), ("d", {"title": "first"}), ("e", {"title": "e"})]
    for number, order in enumerate((both, both[::-1])):
        path = tmp_path / f"{number}.jsonl"
        assert export_documents(Scanned(order), "docs", VIEW, path) == 2  # type: ignore[arg-type]
        assert stored(path) == {"d": {"title": "first"}, "e": {"title": "e"}}


def test_a_field_called_id_does_not_take_the_place_of_the_id(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    export_documents(Scanned([("d", {"id": "other", "title": "t"})]), "docs", VIEW, path)  # type: ignore[arg-type]
    assert stored(path) == {"d": {"title": "t"}}


def test_an_empty_index_is_told(tmp_path: Path) -> None:
    with pytest.raises(NothingToLearn, match="holds no document"):
        export_documents(Scanned([]), "docs", VIEW, tmp_path / "docs.jsonl")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
