"""Parts of a document file, read one after the other, are the whole: the same documents, places and refusals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reranker.errors import InputError
from reranker.formats import WHOLE, DocumentLine, FilePart, document_parts, read_documents
from tests.unit.formats.collect import CollectingSink

LINES = [
    b"\xef\xbb\xbf" + b'{"id": "first", "text": "after a byte order mark"}\n',
    b'{"id": 2, "text": "crlf"}\r\n',
    b"\n",
    b"{broken\n",
    b'{"id": "long", "text": "' + b"word " * 40 + b'"}\n',
    b'{"id": "too long", "text": "' + b"word " * 60 + b'"}\n',
    '{"id": "ß", "text": "two bytes \u2028 and no line\'s end"}\n'.encode(),
    b'{"id": 2, "text": "again"}\n',
    b"   \n",
    b'{"id": "last", "text": "without an end"}',
]


def read(path: Path, parts: list[FilePart]) -> tuple[list[DocumentLine], list[Any]]:
    sink = CollectingSink()
    documents = [
        document
        for part in parts
        for document in read_documents(path, rejects=sink, duplicates="keep", max_line_bytes=256, part=part)
    ]
    return documents, sink.entries


@pytest.mark.parametrize("n_bytes", [1, 7, 60, 300, 10_000])
def test_parts_of_lines_are_the_whole(tmp_path: Path, n_bytes: int) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(b"".join(LINES))
    whole = read(path, [WHOLE])
    assert [one.line for one in whole[0]] == [1, 2, 5, 7, 8, 10]
    parts = document_parts(path, n_bytes)
    assert len(parts) == {1: 10, 10_000: 1}.get(n_bytes, len(parts))
    assert parts[0].start == 0
    assert [part.end for part in parts] == [*(part.start for part in parts[1:]), path.stat().st_size]
    assert read(path, parts) == whole


@pytest.mark.parametrize("n_bytes", [1, 150, 10**6])
def test_parts_of_parquet_are_the_whole(tmp_path: Path, n_bytes: int) -> None:
    path = tmp_path / "docs.parquet"
    rows = [{"id": f"d{k}" if k % 5 else "", "text": "word " * k} for k in range(23)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=4)
    parts = document_parts(path, n_bytes)
    assert len(parts) == {1: 6, 10**6: 1}.get(n_bytes, len(parts))
    assert read(path, parts) == read(path, [WHOLE])


def test_a_gzipped_file_and_an_empty_one_are_one_part(tmp_path: Path) -> None:
    packed, empty = tmp_path / "docs.jsonl.gz", tmp_path / "empty.jsonl"
    packed.write_bytes(gzip.compress(b"".join(json.dumps({"id": k}).encode() + b"\n" for k in range(100))))
    empty.write_bytes(b"")
    assert document_parts(packed, 10) == document_parts(empty, 10) == [WHOLE]
    with pytest.raises(InputError, match="does not exist"):
        document_parts(tmp_path / "nowhere.jsonl", 10)


def test_a_changed_byte_of_a_page_with_a_checksum_is_told(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    table = pa.table({"id": [f"document {k}" for k in range(100)]})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[data.index(b"document 50")] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged or cut short"):
        list(read_documents(path))
