"""Logs that are one JSON document: an array of rows, or the answer to a search as it was printed."""

from __future__ import annotations

import os
from contextlib import closing

import msgspec

from reranker.formats.lines import READ_ERRORS, open_content, read_error

MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
_BLOCK = 4 * 1024 * 1024


class _Hits(msgspec.Struct):
    hits: list[msgspec.Raw]


class _Answer(msgspec.Struct):
    hits: _Hits


def looks_whole(head: bytes) -> bool:
    """Return whether a file may be one JSON document: its first line opens an array or an answer."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    line, _, rest = start.partition(b"\n")
    if start.startswith(b"["):
        return line.strip() == b"[" or line[1:].lstrip()[:1] == b"{"
    return start.startswith(b"{") and (line.strip() == b"{" or (not rest and b'"hits"' in line[:4000]))


def read_whole(path: str | os.PathLike[str]) -> list[msgspec.Raw] | None:
    """Return the rows of a JSON document, each as it stands; None where the file is none.

    A document of more than 256 MiB is taken for lines.

    Raises
    ------
    InputError
        Where the file cannot be read.
    """
    pieces: list[bytes] = []
    left = MAX_DOCUMENT_BYTES
    with closing(open_content(path)) as stream:
        try:
            while data := stream.read(_BLOCK):
                left -= len(data)
                if left < 0:
                    return None
                pieces.append(data)
        except READ_ERRORS as error:
            raise read_error(path, error, 0) from error
    content = b"".join(pieces).removeprefix(b"\xef\xbb\xbf")
    del pieces
    try:
        if content.lstrip()[:1] == b"[":
            return msgspec.json.decode(content, type=list[msgspec.Raw])
        return msgspec.json.decode(content, type=_Answer).hits.hits
    except (ValueError, RecursionError):
        return None
