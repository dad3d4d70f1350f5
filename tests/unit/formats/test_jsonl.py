"""Strict JSON: the list of hostile lines, each refused with its own reason, and what is taken."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.formats import MAX_DEPTH, RecordError, parse_json, read_records
from tests.unit.formats.collect import CollectingSink

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
OBJECTS = st.dictionaries(
    TEXT, st.recursive(SCALARS | TEXT, lambda x: st.lists(x) | st.dictionaries(TEXT, x), max_leaves=8), max_size=5
)


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


HOSTILE: list[tuple[bytes, str]] = [
    (b'{"a": NaN}', "not_finite"),
    (b'{"a": [Infinity]}', "not_finite"),
    (b'{"a": -Infinity}', "not_finite"),
    (b'{"a": 1e999}', "not_finite"),
    (b'{"a": -1.5e400}', "not_finite"),
    (b'{"a": 1, "a": 1}', "duplicate_key"),
    (b'{"b": {"a": 1, "\\u0061": 2}}', "duplicate_key"),
    (b'{"a": "\xff"}', "not_utf8"),
    (b'{"a": "\xc3"}', "not_utf8"),
    (b'{"a": "\xed\xa0\x80"}', "not_utf8"),  # a surrogate in UTF-8
    (b'{"a": "\xc0\xaf"}', "not_utf8"),  # overlong
    (b'{"a": "\\ud800"}', "lone_surrogate"),
    (b'{"\\uDFFF": 1}', "lone_surrogate"),
    (b'{"a": ["x\\udead\\ud83d"]}', "lone_surrogate"),
    (b"[" * 100_000, "too_deep"),
    (b'{"a":' * 100_000, "too_deep"),
    (nested(MAX_DEPTH + 1), "too_deep"),
    (nested(2_000), "too_deep"),
    (b'{"a": ' + b"9" * 5_000 + b"}", "number_too_long"),
    (b'{"a": "raw\x00nul"}', "not_json"),
    (b'{"a": "raw\ttab"}', "not_json"),
    (b"\x00", "not_json"),
    (b"\xef\xbb\xbf{}", "not_json"),  # a byte order mark inside a file
    (b"{'a': 1}", "not_json"),
    (b'{"a": 1,}', "not_json"),
    (b'{"a": 1} x', "not_json"),
    (b'{"a": 1', "not_json"),
    (b'{"a": 01}', "not_json"),
    (b'{"a": .5}', "not_json"),
    (b'{"a": "\\x41"}', "not_json"),
    (b"{1: 2}", "not_json"),
    (b"", "not_json"),
    (b"[]", "not_object"),
    (b"null", "not_object"),
    (b'"text"', "not_object"),
    (b"3", "not_object"),
]


@pytest.mark.parametrize(("line", "kind"), HOSTILE, ids=lambda value: str(value)[:30])
def test_hostile_lines_are_refused_with_their_reason(line: bytes, kind: str) -> None:
    with pytest.raises(RecordError) as caught:
        parse_json(line)
    assert caught.value.kind == kind
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"a": "x"}', {"a": "x"}),
        (b' {"a" :\t1.5e3 } ', {"a": 1500.0}),
        (b'{"a": "\\u0000\\n"}', {"a": "\0\n"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"a": "\\\\ud800"}', {"a": "\\ud800"}),
        (b'{"a": 1e-400, "b": -0.0}', {"a": 0.0, "b": 0.0}),
        (b'{"a": ' + b"9" * 4_000 + b"}", {"a": int("9" * 4_000)}),
        (b'{"": {}}', {"": {}}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_legal_lines_are_taken(line: bytes, expected: dict[str, Any]) -> None:
    assert parse_json(line) == expected


def test_the_deepest_nesting_and_the_widest_object_are_taken() -> None:
    parse_json(nested(MAX_DEPTH))
    wide: dict[str, Any] = {f"f{i}": [{}] for i in range(2_000)}
    assert parse_json(json.dumps(wide).encode()) == wide


@given(OBJECTS)
def test_whatever_json_writes_is_read_back(value: dict[str, Any]) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_record_error(data: bytes) -> None:
    with contextlib.suppress(RecordError):
        assert isinstance(parse_json(data), dict)


def test_bad_lines_between_good_ones_keep_their_places(tmp_path: Path) -> None:
    lines = [
        line for pair in zip([b'{"n": %d}' % i for i in range(len(HOSTILE))], HOSTILE, strict=True) for line in pair
    ]
    data = [line if isinstance(line, bytes) else line[0] or b"{" for line in lines]
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"\n".join(data))
    sink = CollectingSink()
    found = list(read_records(path, lambda line: (line.number, parse_json(line.data)), rejects=sink))
    assert [value["n"] for _, value in found] == list(range(len(HOSTILE)))
    assert [number for number, _ in found] == list(range(1, 2 * len(HOSTILE), 2))
    assert sink.kinds == [kind for _, kind in HOSTILE]
    for entry in sink.entries:
        assert data[entry.line - 1][:20] == path.read_bytes()[entry.offset :][: len(data[entry.line - 1][:20])]
