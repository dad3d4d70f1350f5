"""Log files into a click log: each line once, whatever happens to the file and to the process."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from reranker.clicks.importing import ImportReport, import_files
from reranker.clicks.log import ClickLog
from reranker.errors import InputError
from tests.engines.policy import library
from tests.seeds import seeded_rng
from tests.unit.clicks.reading import NOW_MS, PRIVACY, event, query, write_lines
from tests.unit.clicks.test_log import ids, rows_of
from tests.unit.formats.collect import CollectingSink

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def log(tmp_path: Path) -> ClickLog:
    return ClickLog(tmp_path / "log", create=True)


def bring(log: ClickLog, *paths: Path, **options: Any) -> ImportReport:
    return import_files(log, paths, PRIVACY, now_ms=NOW_MS, **options)


def numbered(*numbers: int) -> list[dict[str, Any]]:
    return [event(query_id=f"q{number}") for number in numbers]


def test_the_same_content_is_taken_once_under_any_name_and_compression(log: ClickLog, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "one", [query(), *numbered(1, 2)])
    copy, packed = tmp_path / "copy", tmp_path / "packed.gz"
    copy.write_bytes(path.read_bytes())
    packed.write_bytes(gzip.compress(path.read_bytes()))
    report = bring(log, path)
    assert (report.rows["events"], report.read.good, report.known) == (2, 3, [])
    again = bring(log, path, copy, packed)
    assert again.known == [str(path), str(copy), str(packed)]
    assert (sum(again.rows.values()), again.read.total) == (0, 0)
    assert log.counts() == {"queries": 1, "hits": 2, "events": 2, "people": 0}


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_has_grown_is_read_from_where_it_ended(log: ClickLog, tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "log.gz" if packed else tmp_path / "log.ndjson"
    lines = [json.dumps(one).encode() + b"\n" for one in numbered(*range(10))]
    pack = gzip.compress if packed else bytes
    for end in (3, 3, 7, 10):
        path.write_bytes(pack(b"".join(lines[:end])))
        report = bring(log, path)
        assert ids(log, "events") == sorted(f"q{number}" for number in range(end))
    assert report.resumed == [str(path)]
    path.write_bytes(pack(b"".join(lines[:7])))
    assert bring(log, path).known == [str(path)]


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_as_long_as_another_is_read_on_after_a_kill(log: ClickLog, tmp_path: Path, packed: bool) -> None:
    # The place where the whole file ended is also the length of the other, of which only a part is kept.
    pack = gzip.compress if packed else bytes
    whole, part = tmp_path / "whole", tmp_path / "part"
    lines = [json.dumps(one).encode() + b"\n" for one in numbered(*range(10, 20))]
    whole.write_bytes(pack(b"".join(reversed(lines[:5]))))
    part.write_bytes(pack(b"".join(lines[5:7])))
    bring(log, whole, part)
    part.write_bytes(pack(b"".join(lines[5:])))
    report = bring(log, whole, part)
    assert (report.known, report.resumed) == ([str(whole)], [str(part)])
    assert ids(log, "events") == [f"q{number}" for number in range(10, 20)]


def test_rejects_of_a_resumed_file_have_its_line_numbers(log: ClickLog, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "raw", numbered(1, 2))
    bring(log, path)
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"\nbroken\n")
    sink = CollectingSink()
    bring(log, path, rejects=sink)
    assert [(one.line, one.offset) for one in sink.entries] == [(4, size + 1)]


def test_a_line_that_is_being_written_is_neither_lost_nor_doubled(log: ClickLog, tmp_path: Path) -> None:
    path = tmp_path / "raw"
    first, second = (json.dumps(one).encode() for one in numbered(1, 2))
    sink = CollectingSink()
    for end in (len(second) // 2, len(second)):
        path.write_bytes(first + b"\n" + second[:end])
        bring(log, path, rejects=sink)
    assert sink.kinds == ["cut_line"]
    assert ids(log, "events") == ["q1", "q2"]
    path.write_bytes(first + b"\n" + second + b"\nbroken\n")
    bring(log, path, rejects=sink)
    assert ids(log, "events") == ["q1", "q2"]
    assert (sink.entries[-1].line, sink.entries[-1].kind) == (3, "not_json")


def test_a_line_being_written_alone_is_read_when_it_is_whole(log: ClickLog, tmp_path: Path) -> None:
    # At the beginning of a file, and after a part that an earlier import took to its end.
    path = tmp_path / "raw"
    whole = b""
    for number in (1, 2, 3):
        before, whole = whole, whole + json.dumps(event(query_id=f"q{number}")).encode() + b"\n"
        for end in (len(before) + 20, len(whole) - 3, len(whole)):
            path.write_bytes(whole[:end])
            bring(log, path, rejects=CollectingSink())
        assert ids(log, "events") == [f"q{n}" for n in range(1, number + 1)]


def test_an_empty_file_is_no_part_of_all_others(log: ClickLog, tmp_path: Path) -> None:
    empty, path = tmp_path / "empty", write_lines(tmp_path / "raw", numbered(1, 2))
    empty.touch()
    report = bring(log, empty, path)
    assert (report.known, report.resumed, report.rows["events"]) == ([], [], 2)
    assert bring(log, empty).known == [str(empty)]


def test_a_file_read_in_the_wrong_form_can_be_brought_in_the_right_one(log: ClickLog, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "raw", numbered(1, 2))
    (tmp_path / "empty").touch()
    report = bring(log, tmp_path / "empty", path, format="metarank", rejects=CollectingSink())
    assert (report.read.good, report.read.bad) == (0, 2)
    report = bring(log, path)
    assert (report.known, report.rows["events"]) == ([], 2)
    assert bring(log, path).known == [str(path)]


def test_a_file_that_only_begins_alike_is_another(log: ClickLog, tmp_path: Path) -> None:
    bring(log, write_lines(tmp_path / "one", numbered(1, 2)))
    report = bring(log, write_lines(tmp_path / "two", numbered(1, 3)))
    assert (report.resumed, report.rows["events"]) == ([], 2)


def test_a_damaged_file_can_be_brought_again_when_it_is_whole(
    log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reranker.clicks.log.SPILL_ROWS", 1000)
    monkeypatch.setattr("reranker.clicks.importing.BATCH_ROWS", 1000)
    rng = seeded_rng()
    lines = [json.dumps(event(query_id=f"q{n}", message=rng.bytes(300).hex())).encode() for n in range(8000)]
    whole = gzip.compress(b"\n".join(lines) + b"\n", compresslevel=1)
    path = tmp_path / "raw.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged or cut short"):
        bring(log, path)
    n_first = log.counts()["events"]
    assert 1000 <= n_first < 8000
    path.write_bytes(whole)
    report = bring(log, path)
    assert report.rows["events"] == 8000 - n_first
    assert ids(log, "events") == sorted(f"q{number}" for number in range(8000))


def test_parquet_and_json_documents_are_taken_whole_and_once(log: ClickLog, tmp_path: Path) -> None:
    pa, pq = library("pyarrow"), library("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(numbered(1, 2)), tmp_path / "p")
    (tmp_path / "d").write_text(json.dumps(numbered(3, 4), indent=1))
    for known in ([], [str(tmp_path / "p"), str(tmp_path / "d")]):
        assert bring(log, tmp_path / "p", tmp_path / "d").known == known
        assert ids(log, "events") == ["q1", "q2", "q3", "q4"]


def test_without_a_sink_a_bad_line_leaves_nothing(log: ClickLog, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2"):
        bring(log, write_lines(tmp_path / "raw", [event(), b"{", event()]))
    assert log.counts()["events"] == 0


def test_a_pipe_and_a_folder_are_refused(log: ClickLog, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in ((tmp_path / "pipe", "a pipe or device"), (tmp_path, "a folder")):
        with pytest.raises(InputError, match=reason):
            bring(log, path)


def test_notes_add_up_over_imports(log: ClickLog, tmp_path: Path) -> None:
    for number in (1, 2):
        bring(log, write_lines(tmp_path / f"raw{number}", [{"_source": event(query_id=f"q{number}")}]))
    assert log.manifest.notes["wrapped"] == 2
    assert ClickLog(log.folder).manifest.notes == log.manifest.notes


def test_the_key_of_the_first_import_is_the_logs(log: ClickLog, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "raw", [event()])
    bring(log, path)
    with pytest.raises(InputError, match="another key"):
        import_files(log, [path], type(PRIVACY)(bytes(32)))


CHILD = """
import sys
from pathlib import Path
import reranker.clicks.importing, reranker.clicks.log
reranker.clicks.log.SPILL_ROWS = 700
reranker.clicks.importing.BATCH_ROWS = 300
reranker.clicks.importing.BLOCK_BYTES = 20_000
from reranker.clicks.importing import import_files
from reranker.clicks.log import ClickLog
from reranker.clicks.privacy import Pseudonymiser
from reranker.formats import RejectLog

def waiting(*given):
    write_manifest(*given)
    print("written", flush=True)
    sys.stdin.readline()

log = ClickLog(sys.argv[1], create=True)
write_manifest, reranker.clicks.log.write_log_manifest = reranker.clicks.log.write_log_manifest, waiting
with RejectLog(None) as sink:
    import_files(log, [Path(one) for one in sys.argv[2:]], Pseudonymiser(bytes(range(32))), rejects=sink)
"""


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_killed_at_any_moment_and_run_again_each_line_is_there_once(tmp_path: Path, packed: bool) -> None:
    rng = seeded_rng(packed)
    paths = []
    for name in ("a", "b"):
        lines = [query(f"{name}{n}") if n % 4 == 0 else event(query_id=f"{name}{n}") for n in range(6000)]
        path = write_lines(tmp_path / name, [*lines[:3000], b"broken", *lines[3000:]])
        if packed:
            path = path.with_suffix(".gz")
            path.write_bytes(gzip.compress((tmp_path / name).read_bytes(), compresslevel=1))
        paths.append(path)
    folder = tmp_path / "log"
    n_killed = 0
    for _ in range(200):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), *map(str, paths)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert child.stdout is not None and child.stdin is not None
        if n_killed < 10:
            # It waits at each manifest, so it is killed between the first and the second, however busy the machine.
            child.stdout.readline()
            child.stdin.write(b"\n")
            child.stdin.flush()
            time.sleep(float(rng.uniform(0, 0.1)))
            child.send_signal(signal.SIGKILL)
        child.communicate(timeout=120)
        n_killed += child.returncode == -signal.SIGKILL
        if child.returncode == 0:
            break
    log = ClickLog(folder)
    for table, expected in (
        ("queries", [f"{name}{n}" for name in "ab" for n in range(0, 6000, 4)]),
        ("events", [f"{name}{n}" for name in "ab" for n in range(6000) if n % 4]),
    ):
        assert ids(log, table) == sorted(expected)
    assert sum(rows_of(log, "hits").values()) == 2 * 3000
    assert n_killed == 10
    assert {path for path in folder.rglob("*.parquet")} == {
        path for t in ("queries", "hits", "events", "people") for path in log.files(t)
    }
