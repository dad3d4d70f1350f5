"""Lines with their places, from plain, gzipped, damaged and foreign files."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from reranker.errors import InputError
from reranker.formats import Line, read_lines
from tests.unit.formats.collect import CollectingSink


def written(folder: Path, data: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_lines_and_their_places(tmp_path: Path) -> None:
    path = written(tmp_path, b"one\r\n\n  \ntwo\nlast")
    found = [(line.number, line.offset, line.end_offset, line.data) for line in read_lines(path)]
    assert found == [(1, 0, 5, b"one"), (4, 9, 13, b"two"), (5, 13, 17, b"last")]


def test_gzip_is_told_by_its_content_and_offsets_are_of_the_content(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert [(line.offset, line.data) for line in read_lines(path)] == [(0, b"one"), (4, b"two")]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    assert [(line.offset, line.data) for line in read_lines(path)] == [(0, b"one"), (7, b"\xef\xbb\xbftwo")]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_empty_files_have_no_lines(tmp_path: Path, data: bytes) -> None:
    assert list(read_lines(written(tmp_path, data))) == []


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("is_last", [True, False])
def test_the_length_limit_to_the_byte(tmp_path: Path, end: bytes, is_last: bool) -> None:
    exact, over = b"a" * 10, b"b" * 11
    rest = b"" if is_last else end + b"next" + end
    for data, n_good, n_bad in ((exact, 1, 0), (over, 0, 1)):
        sink = CollectingSink()
        lines = list(read_lines(written(tmp_path, data + rest), rejects=sink, max_line_bytes=10))
        assert len(lines) == n_good + (not is_last)
        assert len(sink.entries) == n_bad
        if not is_last:
            assert lines[-1].data == b"next"
            assert lines[-1].offset == len(data + end)


def test_a_huge_line_is_skipped_without_being_held(tmp_path: Path) -> None:
    bomb = gzip.compress(b"one\n" + b"\0" * 20_000_000 + b"\nthree\n", compresslevel=1)
    sink = CollectingSink()
    lines = list(read_lines(written(tmp_path, bomb), rejects=sink, max_line_bytes=1_000))
    assert [(line.number, line.data) for line in lines] == [(1, b"one"), (3, b"three")]
    assert lines[1].offset == 4 + 20_000_001
    (entry,) = sink.entries
    assert (entry.line, entry.offset, entry.kind) == (2, 4, "line_too_long")
    assert "20000001 bytes: at most 1000" in entry.reason


def test_without_a_sink_the_first_bad_line_raises(tmp_path: Path) -> None:
    path = written(tmp_path, b"ok\n" + b"x" * 50)
    with pytest.raises(InputError, match=r"line 2 \(byte 3\)") as caught:
        list(read_lines(path, max_line_bytes=10))
    assert caught.value.data["line"] == 2


def test_a_gzip_stream_cut_short_yields_what_is_whole_and_then_raises(tmp_path: Path) -> None:
    content = b"".join(b"line %d of some length %d\n" % (i, i * 7919) for i in range(50_000))
    packed = gzip.compress(content)
    path = written(tmp_path, packed[: len(packed) // 2])
    found: list[Line] = []
    with pytest.raises(InputError, match="damaged or cut short after line") as caught:
        found.extend(read_lines(path))
    assert 100 < len(found) < 50_000
    assert b"".join(line.data + b"\n" for line in found) == content[: found[-1].end_offset]
    assert caught.value.data["line"] == found[-1].number


@pytest.mark.parametrize("where", ["header", "body", "checksum", "garbage"])
def test_damaged_gzip_streams_are_input_errors(tmp_path: Path, where: str) -> None:
    packed = bytearray(gzip.compress(b"some text\n" * 1000))
    if where == "garbage":
        packed += b"trailing garbage"
    else:
        packed[{"header": 2, "body": len(packed) // 2, "checksum": -6}[where]] ^= 0xFF
    with pytest.raises(InputError, match="gzip stream"):
        list(read_lines(written(tmp_path, bytes(packed))))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl.gz", b'{"id": 1}\n', "named .gz but begins with 7b 22"),
        ("a", b"PK\x03\x04....", "zip archive"),
        ("a", b"\x28\xb5\x2f\xfd...", "zstd"),
        ("a", b"BZh91AY", "bzip2"),
        ("a", b"\xfd7zXZ\x00", "xz"),
        ("a", b"PAR1....PAR1", "Parquet"),
        ("a", "über".encode("utf-16"), "UTF-16"),
        ("a", b"\xfe\xff\x00a", "UTF-16"),
    ],
)
def test_foreign_files_are_refused_with_the_remedy(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_lines(written(tmp_path, data, name)))


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist: check the spelling"):
        list(read_lines(tmp_path / "missing"))
    with pytest.raises(InputError, match="is a directory"):
        list(read_lines(tmp_path))
    with pytest.raises(InputError, match="cannot be read"):
        list(read_lines("a\0b"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = written(tmp_path, b"x")
    path.chmod(0)
    with pytest.raises(InputError, match="permissions"):
        list(read_lines(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(gzip.compress(b"one\ntwo\n")))
    writer.start()
    assert [line.data for line in read_lines(pipe)] == [b"one", b"two"]
    writer.join()


def test_a_reader_that_is_left_early_closes_its_file(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(b"one\ntwo\n"))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(50):
        lines = read_lines(path)
        next(lines)
        del lines
    after = len(os.listdir("/proc/self/fd")) if before else 0
    assert after <= before + 2
