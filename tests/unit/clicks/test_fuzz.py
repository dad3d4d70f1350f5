"""Fuzzed log lines: none stops a run, and each is accounted for.

``SSI_FUZZ_LINES`` sets how many lines are fuzzed (100,000).
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.clicks.importing import FORMATS, ReadCounts
from reranker.clicks.privacy import Pseudonymiser
from tests.seeds import seeded_rng
from tests.unit.clicks.reading import event, query, read_log
from tests.unit.clicks.test_other_readers import INTERACTION, OWN, RANKING
from tests.unit.formats.collect import CollectingSink

ROOT = Path(__file__).resolve().parents[3]
N_LINES = int(os.environ.get("SSI_FUZZ_LINES", "100000"))
MAX_LINE = 2 * 1024 * 1024

WORST: list[bytes] = [
    b"[" * 100_000,
    b'{"action_name":"click","event_attributes":' + b'{"object":' * 100_000,
    b'{"query_id":' + b"7" * 5_000 + b"}",
    b'{"action_name":"click","timestamp":1e99999,"event_attributes":{}}',
    b'\xef\xbb\xbf{"action_name":"click","event_attributes":{}}',
    b'{"action_name":"cl\x00ick"}',
    b'{"action_name":"click","query_id":"\\u0000","event_attributes":{}}',
    b'{"user_query":"' + b"x" * MAX_LINE + b'"}',
    b'{"user_query":"' + b"x" * (MAX_LINE - 18) + b'"}',
    b'{"action_name":"\\ud800","event_attributes":{}}',
    b'{"action_name":"\xc3\x28","event_attributes":{}}',
    b'{"action_name":NaN,"event_attributes":{}}',
    b'{"action_name":"click","event_attributes":{"object":{"object_id":[]}}}',
    b'{"query_id":"q","user_query":"x","query_response_hit_ids":[' + b"1," * 50_000 + b"null]}",
    b'{"hits":{"hits":[' + b"[]," * 1_000 + b"{}]}}",
    b"\t" * 1_000,
    b"ubi_events\t" * 20 + b"{",
    b"\x1f\x8b\x08\x00" + b"\xff" * 500,
]

MUST_BE_REFUSED = {
    one for one in WORST if one.strip() and len(one) < MAX_LINE - 100 and not one.startswith(b"\xef\xbb\xbf")
}

CHILD = """
import json, sys, time
from reranker.clicks.privacy import Pseudonymiser
from reranker.clicks.importing import ReadCounts, read_file
from reranker.formats import RejectLog
counts, started = ReadCounts(), time.process_time()
with RejectLog(sys.argv[2]) as sink:
    rows = sum(len(next(iter(columns.values()))) for batch in read_file(sys.argv[1], Pseudonymiser(bytes(32)),
               rejects=sink, counts=counts) for columns in batch.tables.values())
seconds = time.process_time() - started
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([counts.good, counts.skipped, counts.bad, rows, seconds, peak]))
"""


DAMAGES: list[Callable[[bytes, int, Random], bytes]] = [
    lambda line, place, rng: line[:place],
    lambda line, place, rng: line[:place] + rng.randbytes(1) + line[place + 1 :],
    lambda line, place, rng: line[:place] + line[place + rng.randrange(1, 9) :],
    lambda line, place, rng: line[:place] + line[max(0, place - 20) :],
    lambda line, place, rng: line[:place] + rng.randbytes(5) + line[place:],
    lambda line, place, rng: line.replace(b'"', b"", rng.randrange(1, 4)),
    lambda line, place, rng: rng.randbytes(rng.randrange(1, 80)),
]


def fuzzed(n_lines: int, rng: Random) -> list[bytes]:
    """Return lines of which half are damaged, with the worst cases among them."""
    seeds: list[Any] = [
        event(),
        query(),
        event("purchase", user_id="u"),
        {"_source": event()},
        {"index": {"_id": "1"}},
        {"actionName": "click", "eventAttributes": {"position": {"ordinal": 1}}},
    ]
    plain = [json.dumps(one).encode() for one in seeds]
    lines = []
    for number in range(n_lines):
        line = plain[number % len(plain)]
        if rng.random() < 0.5:
            line = rng.choice(DAMAGES)(line, rng.randrange(len(line)), rng).replace(b"\n", b" ")
        lines.append(line)
    for worst in WORST:
        lines.insert(rng.randrange(n_lines), worst)
    return lines


@pytest.mark.parametrize("packed", [False, True])
def test_every_fuzzed_line_is_good_or_refused_with_its_number_and_reason(tmp_path: Path, packed: bool) -> None:
    lines = fuzzed(N_LINES, Random(int(seeded_rng(packed).integers(2**32))))
    path, rejects = tmp_path / "log", tmp_path / "rejects"
    data = b"\n".join(lines) + b"\n"
    path.write_bytes(gzip.compress(data, compresslevel=1) if packed else data)
    del data
    command = [sys.executable, "-c", CHILD, str(path), str(rejects)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)
    good, skipped, bad, rows, seconds, peak_kib = json.loads(child.stdout)
    blank = sum(not line or line.isspace() for line in lines)
    assert good + skipped + bad == len(lines) - blank
    assert min(good, skipped, bad, rows) > len(lines) // 100
    with open(rejects, encoding="ascii") as file:
        entries = [json.loads(line) for line in file]
    assert len(entries) == bad
    numbers = [entry["line"] for entry in entries]
    assert numbers == sorted(set(numbers))
    assert all(entry["reason"] and entry["kind"] for entry in entries)
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)])
    assert all(entry["offset"] == starts[entry["line"] - 1] for entry in entries)
    refused = set(numbers)
    assert all(n in refused for n, line in enumerate(lines, start=1) if line in MUST_BE_REFUSED)
    assert peak_kib <= 200 * 1024
    assert seconds <= 60 * max(1.0, N_LINES / 1e6) * 2


@pytest.mark.parametrize("number", range(len(WORST)))
@pytest.mark.parametrize("form", FORMATS)
def test_each_worst_case_alone(tmp_path: Path, number: int, form: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"#\n" + WORST[number] + b"\n")
    sink, counts, started = CollectingSink(), ReadCounts(), time.process_time()
    list(read_log([path], Pseudonymiser(bytes(32)), rejects=sink, counts=counts, format=form))
    assert time.process_time() - started < 5
    assert counts.total == (1 if WORST[number].isspace() else 2)
    assert len(sink.entries) == counts.bad


@settings(max_examples=150)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from([json.dumps(one).encode() for one in (event(), query(), OWN, RANKING, INTERACTION)]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(
                        st.sampled_from(
                            [
                                "action_name",
                                "event_attributes",
                                "position",
                                "ordinal",
                                "object",
                                "object_id",
                                "query_id",
                                "user_query",
                                "hits",
                                "_source",
                                "queryResponse",
                                "event",
                                "clicks",
                                "doc",
                                "timestamp",
                            ]
                        ),
                        inner,
                        max_size=4,
                    )
                ),
                max_leaves=12,
            ).map(lambda value: json.dumps(value).encode()),
        ),
        max_size=6,
    ),
    st.sampled_from(FORMATS),
)
def test_any_lines_in_any_form(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], form: str) -> None:
    lines = [line.replace(b"\n", b" ") for line in lines]
    # A first byte that no other kind of file begins with.
    data = b"".join(line + b"\n" for line in [b"#", *lines])
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_bytes(data)
    sink, counts = CollectingSink(), ReadCounts()
    for batch in read_log([path], Pseudonymiser(bytes(32)), rejects=sink, counts=counts, format=form):
        for columns in batch.values():
            assert len({len(values) for values in columns.values()}) == 1
    assert counts.total == 1 + sum(not line.isspace() and line != b"" for line in lines)
    assert len(sink.entries) == counts.bad
