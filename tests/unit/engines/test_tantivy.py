"""The embedded engine on disk: it survives being killed, shares its folder, and never confuses copy and truth."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from reranker.engines import WriteOp, open_engine, tantivy
from reranker.engines.language import Stored
from reranker.engines.protocol import Engine
from reranker.errors import EngineError, EngineOverloaded, EngineRejected, EngineUnavailable

MAPPING = {"properties": {"t": {"type": "text"}}}
APPLE = {"query": {"match": {"t": "apple"}}}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give the folder of an engine with one index of three documents, searchable and closed."""
    engine = _open(tmp_path)
    engine.create_index("docs", MAPPING)
    engine.bulk("docs", [WriteOp("index", name, {"t": f"{name} apple"}) for name in "abc"])
    engine.refresh("docs")
    engine.close()
    return tmp_path


def _open(place: Path) -> Engine:
    return open_engine(f"tantivy:{place}")


def _found(engine: Engine) -> set[str]:
    return {hit.id for hit in engine.search("docs", APPLE).hits}


def _index_folder(place: Path) -> Path:
    return next(place.glob("docs.*"))


def test_everything_is_there_after_reopening(place: Path) -> None:
    engine = _open(place)
    engine.swap_alias("live", "docs")
    engine.close()
    engine = _open(place)
    assert engine.index_names("live") == ("docs",)
    assert _found(engine) == {"a", "b", "c"}
    assert engine.index_info("docs").properties == MAPPING["properties"]
    (result,) = engine.bulk("docs", [WriteOp("index", "d", {"t": "apple"})])
    assert result.seq_no == 3


def test_writes_show_after_a_refresh_and_not_before(place: Path) -> None:
    engine = _open(place)
    engine.bulk("docs", [WriteOp("index", "d", {"t": "apple"}), WriteOp("index", "a", {"t": "pear"})])
    assert _found(engine) == {"a", "b", "c"}
    (document,) = engine.get("docs", ["d"])
    assert document is not None
    engine.refresh("docs")
    assert _found(engine) == {"b", "c", "d"}


def test_a_copy_that_fell_behind_is_mended_on_opening(place: Path) -> None:
    engine = _open(place)
    engine.bulk("docs", [WriteOp("index", "d", {"t": "apple"}), WriteOp("delete", "a")])
    engine.close()  # as a kill between the two: no refresh
    assert _found(_open(place)) == {"b", "c", "d"}


@pytest.mark.parametrize("damage", ["gone", "emptied", "garbage"])
def test_a_copy_that_was_lost_is_made_again(damage: str, place: Path) -> None:
    folder = _index_folder(place) / "search-1"
    if damage == "garbage":
        (folder / "meta.json").write_text("{")
    else:
        shutil.rmtree(folder)
        if damage == "emptied":
            folder.mkdir()
    assert _found(_open(place)) == {"a", "b", "c"}


def test_a_damaged_copy_is_made_again_while_a_reader_loads_it(place: Path) -> None:
    """A reader writes a lock file into the folder, which may come between the deletion of its files and its own."""
    folder = _index_folder(place) / "search-1"
    reader = tantivy._SearchIndex(folder, tantivy.FIRST_CAPACITY)
    done = threading.Event()

    def load() -> None:
        while not done.is_set():
            with suppress(ValueError):  # the commit is damaged, or its files are gone
                reader.reload()

    with ThreadPoolExecutor() as threads:
        loading = threads.submit(load)
        try:
            for _ in range(100):
                (folder / "meta.json").write_text("{")
                assert tantivy._SearchIndex(folder, tantivy.FIRST_CAPACITY).n_documents() == 0
        finally:
            done.set()
        loading.result()
    assert _found(_open(place)) == {"a", "b", "c"}
    assert not list(folder.parent.glob("removed-*"))


def test_more_text_fields_than_slots(place: Path) -> None:
    engine = _open(place)
    words = {f"field{number}": f"word{number}" for number in range(40)}
    engine.bulk("docs", [WriteOp("index", "wide", {"t": "apple", **words})])
    assert _found(engine) == {"a", "b", "c"}
    engine.refresh("docs")
    assert _found(engine) == {"a", "b", "c", "wide"}
    for number in range(40):
        query = {"match": {f"field{number}": f"word{number}"}}
        assert [hit.id for hit in engine.search("docs", {"query": query}).hits] == ["wide"]
    engine.close()
    assert _found(_open(place)) == {"a", "b", "c", "wide"}


def test_two_engines_on_one_folder_see_each_other(place: Path) -> None:
    one, two = _open(place), _open(place)
    assert _found(two) == {"a", "b", "c"}
    one.bulk("docs", [WriteOp("index", "d", {"t": "apple", "new": "field"})])
    one.refresh("docs")
    assert _found(two) == {"a", "b", "c", "d"}
    assert [hit.id for hit in two.search("docs", {"query": {"match": {"new": "field"}}}).hits] == ["d"]
    one.delete_index("docs")
    assert two.index_names("docs") == ()
    one.create_index("docs", MAPPING)
    assert two.count("docs") == 0


def test_a_field_that_comes_while_the_copy_is_made_is_searchable_after_the_next_refresh(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = _open(place), _open(place)
    writer.bulk("docs", [WriteOp("index", "d", {"t": "apple"})])
    since = tantivy.TantivyIndex.since

    def interrupted(store: tantivy.TantivyIndex, *arguments: int) -> Iterator[list[Stored]]:
        monkeypatch.setattr(tantivy.TantivyIndex, "since", since)
        writer.bulk("docs", [WriteOp("index", "e", {"fresh": "apple"})])
        yield from since(store, *arguments)

    monkeypatch.setattr(tantivy.TantivyIndex, "since", interrupted)
    reader.refresh("docs")
    reader.refresh("docs")
    assert [hit.id for hit in reader.search("docs", {"query": {"match": {"fresh": "apple"}}}).hits] == ["e"]
    assert _found(reader) == {"a", "b", "c", "d"}


def test_writers_take_turns(place: Path) -> None:
    engines = [_open(place) for _ in range(3)]

    def write(engine: Engine, letter: str) -> None:
        for number in range(10):
            engine.bulk("docs", [WriteOp("index", f"{letter}{number}", {"t": "apple"})])

    threads = [threading.Thread(target=write, args=pair) for pair in zip(engines, "xyz", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engines[0].refresh("docs")
    documents = [document for batch in engines[1].scan("docs") for document in batch]
    assert len(documents) == 33
    assert sorted(document.seq_no for document in documents) == list(range(33))


def test_a_writer_that_waits_too_long_says_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tantivy, "BUSY_S", 0.2)
    engine = _open(place)
    other = sqlite3.connect(_index_folder(place) / "documents.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(EngineOverloaded, match="another process"):
        engine.bulk("docs", [WriteOp("index", "d", {"t": "apple"})])
    assert _found(engine) == {"a", "b", "c"}
    other.execute("ROLLBACK")
    assert engine.bulk("docs", [WriteOp("index", "d", {"t": "apple"})])[0].status == 201


def test_a_later_format_is_not_touched(place: Path) -> None:
    database = sqlite3.connect(_index_folder(place) / "documents.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.commit()
    database.close()
    with pytest.raises(EngineRejected, match="format 99"):
        _open(place).search("docs", APPLE)


def test_a_damaged_database_is_said(place: Path) -> None:
    for file in _index_folder(place).glob("documents.sqlite*"):
        file.write_bytes(b"no database" * 1000)
    with pytest.raises(EngineError, match=r"damaged|restore"):
        _open(place).search("docs", APPLE)


def test_a_bulk_is_stored_whole_or_not_at_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _open(place)
    save = tantivy.TantivyIndex.save

    def fail(self: tantivy.TantivyIndex, *arguments: object) -> None:
        save(self, *arguments)  # type: ignore[arg-type]
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(tantivy.TantivyIndex, "save", fail)
    with pytest.raises(EngineError, match="full"):
        engine.bulk("docs", [WriteOp("index", "d", {"t": "apple", "new": 1}), WriteOp("delete", "a")])
    monkeypatch.undo()
    assert [document and document.id for document in engine.get("docs", ["a", "d"])] == ["a", None]
    assert "new" not in engine.index_info("docs").properties


WRITER = """
import sys
from reranker.engines import WriteOp, open_engine
engine = open_engine(f"tantivy:{sys.argv[1]}")
for number in range(100000):
    engine.bulk("docs", [WriteOp("index", f"k{number}-{part}", {"t": "apple"}) for part in range(5)])
    print(number, flush=True)
    if number % 3 == 2:
        engine.refresh("docs")
"""


@pytest.mark.parametrize("acknowledged", [1, 4, 9])
def test_killed_while_writing(acknowledged: int, place: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(place)], stdout=subprocess.PIPE, cwd=root)
    assert process.stdout is not None
    last = -1
    while last < acknowledged:
        last = int(process.stdout.readline())
    time.sleep(0.013)
    process.send_signal(signal.SIGKILL)
    last = max([last, *(int(line) for line in process.stdout.read().split())])
    process.stdout.close()
    process.wait()
    engine = _open(place)
    stored = {document.id for batch in engine.scan("docs") for document in batch} - {"a", "b", "c"}
    assert {f"k{number}-{part}" for number in range(last + 1) for part in range(5)} <= stored
    assert len(stored) % 5 == 0
    hits = engine.search("docs", {**APPLE, "size": 10_000}).hits
    assert {hit.id for hit in hits} - {"a", "b", "c"} == stored
    assert len(hits) == len(stored) + 3


def test_equal_scores_by_age_whatever_the_segments(place: Path) -> None:
    engine = _open(place)
    for start in range(0, 60, 20):
        engine.bulk("docs", [WriteOp("index", f"n{number:02}", {"t": "same"}) for number in range(start, start + 20)])
        engine.refresh("docs")
    engine.bulk("docs", [WriteOp("index", "n00", {"t": "same"})])
    engine.refresh("docs")
    expected = [f"n{number:02}" for number in [*range(1, 60), 0]]
    for size in (1, 7, 60):
        hits = engine.search("docs", {"query": {"match": {"t": "same"}}, "size": size}).hits
        assert [hit.id for hit in hits] == expected[:size]


def test_a_folder_without_a_name_is_swept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = place / "gone.12345678"
    shutil.copytree(_index_folder(place), orphan)
    monkeypatch.setattr("reranker.engines.tantivy._ORPHAN_S", -1)
    engine = _open(place)
    engine.create_index("new", MAPPING)
    assert not orphan.exists()
    assert _found(engine) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "error",
    [
        ValueError("An IO error occurred: 'No space left'"),
        ValueError("An error occurred in a thread: 'No space left: encountered an error (io::Error most likely)'"),
        ValueError('Failed to acquire Lockfile: IoError(Os { code: 28, message: "No space left" }). None'),
        OSError(28, "No space left"),
    ],
)
def test_a_full_disk_is_told_by_searches_and_refreshes_and_loses_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The library says ValueError for it; a search after a restart copies what a killed process had not."""

    def full(*_: object) -> None:
        raise error

    engine = _open(place)
    engine.bulk("docs", [WriteOp("index", "d", {"t": "late apple"})])
    with monkeypatch.context() as patch:
        patch.setattr("reranker.engines.tantivy._SearchIndex.writer", full)
        with pytest.raises(EngineUnavailable, match=r"No space left.*free disk space"):
            engine.refresh("docs")
        engine.close()
        engine = _open(place)
        with pytest.raises(EngineUnavailable, match=r"No space left.*free disk space"):
            _found(engine)
        patch.setattr("reranker.engines.tantivy._SearchIndex._open", full)
        with pytest.raises(EngineUnavailable, match=r"No space left.*free disk space"):
            _found(engine)
        engine.close()
    assert _found(_open(place)) == set("abcd")


def test_a_fault_that_is_not_of_the_disk_is_not_said_to_be(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("invalid literal for int() with base 10: 'x'")

    engine = _open(place)
    engine.bulk("docs", [WriteOp("index", "d", {"t": "late apple"})])
    with monkeypatch.context() as patch:
        patch.setattr("reranker.engines.tantivy._document", fail)
        with pytest.raises(ValueError, match="invalid literal"):
            engine.refresh("docs")
    engine.refresh("docs")
    assert _found(engine) == set("abcd")
