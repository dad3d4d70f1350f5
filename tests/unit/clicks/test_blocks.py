"""Lines in blocks are the lines that are read one at a time, wherever a block ends."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.clicks import importing
from reranker.clicks.importing import Block, Place, read_blocks, resume_place, whole_place
from reranker.errors import InputError
from reranker.formats import read_lines
from tests.unit.formats.collect import CollectingSink

CONTENT = st.lists(
    st.one_of(st.binary(max_size=12), st.sampled_from([b"", b" ", b"\r", b"x" * 30, b"\xef\xbb\xbf", b"{}\r"])),
    max_size=9,
).map(b"\n".join)


def place_of(block: Block, index: int) -> tuple[int, int]:
    """Return the number and the byte offset of one of the lines of a block."""
    return block.number + index, block.offset + sum(map(len, block.lines[:index])) + index


def lines_of(
    path: Path, start: Place | None = None, limit: int = 20
) -> tuple[list[tuple[int, int, bytes]], CollectingSink]:
    """Return (number, offset, content) of the lines in the blocks of a file that are not blank."""
    sink = CollectingSink()
    found = []
    for block in read_blocks(path, sink, start=start, max_line_bytes=limit):
        for index, line in enumerate(block.lines):
            number, offset = place_of(block, index)
            content = line.rstrip(b"\r")
            if len(content) > limit:
                sink.reject(number, offset, "long", kind="line_too_long")
            elif content and not content.isspace():
                found.append((number, offset, content))
    return found, sink


@given(CONTENT, st.booleans(), st.booleans(), st.integers(1, 40))
def test_blocks_hold_the_lines_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, ends: bool, packed: bool, size: int
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "file"
    content = b"#" + data + (b"\n" if ends else b"")
    path.write_bytes(gzip.compress(content) if packed else content)
    expected_sink = CollectingSink()
    expected = [
        (one.number, one.offset, one.data.rstrip(b"\r\n"))
        for one in read_lines(path, rejects=expected_sink, max_line_bytes=20)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importing, "BLOCK_BYTES", size)
        found, sink = lines_of(path)
    assert [one for one in found] == [
        (number, offset, data) for number, offset, data in expected if data and not data.isspace()
    ]
    assert sorted((one.line, one.offset) for one in sink.entries) == [
        (one.line, one.offset) for one in expected_sink.entries
    ]


@given(
    st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=9),
    st.integers(0, 8),
)
def test_reading_on_from_any_place_gives_the_rest(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], at: int
) -> None:
    path = tmp_path_factory.mktemp("places") / "file"
    path.write_bytes(b"#\n" + b"".join(line + b"\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importing, "BLOCK_BYTES", 1)
        places = [block.end for block in read_blocks(path, CollectingSink())]
    start = places[at % len(places)]
    assert lines_of(path, start)[0] == [one for one in lines_of(path)[0] if one[1] >= start.offset]
    assert places[-1] == whole_place(path)
    known = {place.offset: {place.digest} for place in places[: at % len(places) + 1]}
    assert resume_place(path, known) == (start, start == places[-1])
    # Places of other files, also one of the same length.
    foreign = {place.offset: {"of another file"} for place in places}
    assert resume_place(path, foreign | known) == (start, start == places[-1])
    assert resume_place(path, foreign) == (None, False)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    (block,) = read_blocks(tmp_path / "file", CollectingSink())
    assert [line.strip() for line in block.lines] == [b"one", b"two"]
    assert place_of(block, 1) == (2, 7)


def test_a_file_whose_beginning_has_changed_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    place = whole_place(path)
    for data in (b"ONE\ntwo\nthree\n", b"one\n"):
        path.write_bytes(data)
        with pytest.raises(InputError, match="its beginning has changed"):
            list(read_blocks(path, CollectingSink(), start=place))
        assert resume_place(path, {place.offset: {place.digest}}) == (None, False)


def test_a_huge_line_is_skipped_without_being_held(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"one\n" + b"\0" * 60_000_000 + b"\nthree\n", compresslevel=1))
    tracemalloc.start()
    found, sink = lines_of(path, limit=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(number, data) for number, _, data in found] == [(1, b"one"), (3, b"three")]
    assert [(one.line, one.offset, one.kind) for one in sink.entries] == [(2, 4, "line_too_long")]
    assert "60000001 bytes" in sink.entries[0].reason
    assert peak < 12_000_000
