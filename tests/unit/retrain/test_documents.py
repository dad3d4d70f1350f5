"""The documents of an index as a file: the same bytes whatever order the engine scans in."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from reranker.engines.protocol import WriteOp
from reranker.errors import ConfigError, EngineAuthError, EngineUnavailable, NothingToLearn
from reranker.formats import read_documents
from reranker.records import StoredDocument
from reranker.retrain import documents
from reranker.retrain.documents import export_documents, forget_documents
from reranker.text.view import TextView
from tests.engines.memory import memory_engine

VIEW_FIELDS = ("title", "meta.text")
VIEW = TextView.parse([*VIEW_FIELDS])
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
        for number, (name, value) in enumerate(self.documents):
            yield [StoredDocument(name, f"{index}-{number}", value, 0, 1)]


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
    with pytest.raises(NothingToLearn, match="contains no documents"):
        export_documents(Scanned([]), "docs", VIEW, tmp_path / "docs.jsonl")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


class Written(Scanned):
    """An engine that reads by writes: (id, text, number of the write, index), and fails after ``batches``."""

    spec = "elasticsearch:http://engine:9200"

    def __init__(self, writes: list[tuple[str, str, int, str]], *, batches: int = 10**6) -> None:
        self.writes, self.batches, self.began = writes, batches, list[int]()

    def index_uuids(self, index: str) -> dict[str, str]:
        return {name: f"uuid of {name}" for *_, name in self.writes}

    def count(self, index: str, query: dict[str, Any] | None = None) -> int:
        before = query["range"]["_seq_no"]["lt"] if query else 10**6
        return sum(seq_no < before for _, _, seq_no, _ in self.writes)

    def scan_writes(self, index: str, seq_no: int, *, source: Any, batch_size: int) -> Iterator[list[StoredDocument]]:
        self.began.append(seq_no)
        for number, (name, text, written, of) in enumerate(
            one for one in sorted(self.writes, key=itemgetter(2)) if one[2] >= seq_no
        ):
            if number == self.batches:
                raise EngineUnavailable("gone")
            yield [StoredDocument(name, of, {"title": text}, written, 1)]


WRITES = [(f"d{(7 * number) % 10}", f"t{number}", number // 2, "ab"[number % 2]) for number in range(10)]
"""Ten documents of two indexes, two for each number of a write."""


def export(engine: Scanned, path: Path, fields: TextView = VIEW) -> list[str]:
    said: list[str] = []
    export_documents(engine, "docs", fields, path, say=said.append)  # type: ignore[arg-type]
    return said


def stopped(path: Path, monkeypatch: pytest.MonkeyPatch, *, batches: int = 5, note_every_s: float = 0) -> None:
    """Leave what a reading that lost its engine leaves."""
    monkeypatch.setattr(documents, "NOTE_EVERY_S", note_every_s)
    with pytest.raises(EngineUnavailable):
        export(Written(WRITES, batches=batches), path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "docs.jsonl"


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    """Return what an unbroken reading writes."""
    path = tmp_path / "whole" / "docs.jsonl"
    assert export(Written(WRITES), path) == []
    return path.read_bytes()


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.parent.iterdir() if one.is_file())


def test_a_stopped_reading_goes_on(path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(path, monkeypatch)
    assert names(path) == [".docs.jsonl.reading.json", ".docs.jsonl.unsorted"]
    note = json.loads((path.parent / ".docs.jsonl.reading.json").read_text())
    unsorted = (path.parent / ".docs.jsonl.unsorted").read_bytes()
    assert note == {
        "of": {"engine": Written.spec, "indexes": {"a": "uuid of a", "b": "uuid of b"}, "fields": [*VIEW_FIELDS]},
        "seq_no": 2,
        "documents": 5,
        "bytes": len(unsorted),
        "sha256": hashlib.sha256(unsorted).hexdigest(),
    }
    assert unsorted.splitlines()[1] == b'b\t{"id": "d7", "title": "t1"}'
    engine = Written(WRITES)
    assert export(engine, path) == ["an interrupted export continues after 5 documents"]
    assert engine.began == [2], "from the last write that was read, which another shard may share"
    assert path.read_bytes() == whole
    assert names(path) == ["docs.jsonl"]


def test_a_reading_may_be_stopped_often(path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        stopped(path, monkeypatch, batches=3)
    engine = Written(WRITES)
    assert len(export(engine, path)) == 1
    assert engine.began == [4]
    assert path.read_bytes() == whole


def test_lines_after_the_note_are_read_again(path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(path, monkeypatch)
    with (path.parent / ".docs.jsonl.unsorted").open("ab") as file:
        file.write(b'a\t{"id": "half a li')
    export(Written(WRITES), path)
    assert path.read_bytes() == whole


def test_what_was_changed_or_added_meanwhile_is_read_as_it_is_now(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [*WRITES[1:], (WRITES[0][0], "changed", 9, WRITES[0][3]), ("new", "added", 9, "b")]
    stopped(path, monkeypatch)
    engine = Written(now)
    assert len(export(engine, path)) == 1
    assert engine.began == [2]
    assert stored(path) == {name: {"title": text} for name, text, *_ in now}


def test_after_a_deletion_all_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(path, monkeypatch)
    engine = Written(WRITES[1:])
    said = export(engine, path)
    assert engine.began == [2, 0] and "deleted" in said[-1]
    assert stored(path) == {name: {"title": text} for name, text, *_ in WRITES[1:]}


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", "line", "short", "number", "index", "fields", "null"])
def test_what_does_not_fit_is_not_used(damage: str, path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(path, monkeypatch)
    note, unsorted = (path.parent / f".docs.jsonl.{name}" for name in ("reading.json", "unsorted"))
    kept = json.loads(note.read_text())
    if damage == "line":
        unsorted.write_bytes(unsorted.read_bytes().replace(b"t1", b"t8"))
    elif damage == "short":
        unsorted.write_bytes(unsorted.read_bytes()[:-3])
    elif damage in ("number", "index", "fields", "null"):
        kept |= {"number": {"bytes": kept["bytes"] - 1}, "null": {"seq_no": None}}.get(damage, {})
        kept["of"] |= {"index": {"indexes": {"a": "new"}}, "fields": {"fields": ["title"]}}.get(damage, {})
        note.write_text(json.dumps(kept))
    else:
        note.write_text(damage)
    engine = Written(WRITES)
    (said,) = export(engine, path)
    assert said.endswith("all documents are read again")
    assert ("another engine, index or fields" in said) == (damage in ("index", "fields"))
    assert engine.began == [0]
    assert path.read_bytes() == whole
    assert names(path) == ["docs.jsonl"]


def test_a_reading_without_a_note_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(path, monkeypatch, note_every_s=100)
    assert names(path) == []


def test_an_engine_that_has_no_order_of_writes_begins_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "NOTE_EVERY_S", 0)
    assert export(Scanned([("d", {"title": "t"})]), path) == []
    assert names(path) == ["docs.jsonl"]


def test_a_role_that_may_not_ask_what_it_reads_begins_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: str) -> dict[str, str]:
        raise EngineAuthError("no", status=403)

    monkeypatch.setattr(documents, "NOTE_EVERY_S", 0)
    engine = Written([])
    monkeypatch.setattr(engine, "index_uuids", refuse)
    monkeypatch.setattr(engine, "scan", Scanned([("d", {"title": "t"})]).scan, raising=False)
    monkeypatch.setattr(engine, "count", lambda index: 1)
    assert export(engine, path) == []
    assert stored(path) == {"d": {"title": "t"}}


def test_two_processes_do_not_write_one_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(path, monkeypatch)
    with (path.parent / ".docs.jsonl.unsorted").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process"):
            export(Written(WRITES), path)


def test_what_is_kept_can_be_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(path, monkeypatch)
    path.touch()
    forget_documents(path)
    assert names(path) == []
