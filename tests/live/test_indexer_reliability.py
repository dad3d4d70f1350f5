"""The indexer against real engines: killed, misled, blocked, in company; no document lost, doubled or unaccounted.

``SSI_KILLS`` sets how often a process is killed per engine (default 6; 50 for a long run), ``SSI_SEEDS`` how many
sequences of network faults are tried (default 6), ``SEED`` their start.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from indexer.build import BuildOptions, build_index
from indexer.bulk import BulkItem, BulkLimits, BulkWriter, RetryPolicy
from indexer.garbage import collect, plan_collection
from indexer.load import LoadOptions, load_documents
from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.protocol import Engine
from reranker.errors import EngineRejected, VersionConflict
from reranker.releases import ControlRecord, Release, forget_control, read_control, update_control
from tests.live.faulty_proxy import FaultyProxy
from tests.live.helpers import ask, child, contents, digest, kill, result_of, write_lines
from tests.seeds import seeded_rng

KILLS = int(os.environ.get("SSI_KILLS", "6"))
SEEDS = int(os.environ.get("SSI_SEEDS", "6"))
MAPPING = {"properties": {"text": {"type": "text"}, "n": {"type": "long"}}}


@pytest.fixture(params=["elasticsearch", "opensearch"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def engine(request: pytest.FixtureRequest, url: str) -> Iterator[Engine]:
    kind = request.node.callspec.params["url"]
    opened = open_engine(f"{kind}:{url}", EngineSettings(read_timeout_s=60))
    yield opened
    opened.close()


@pytest.fixture
def name(engine: Engine) -> Iterator[str]:
    """Give a name of our own, and remove the indexes made under it."""
    stem = f"reliability-{uuid.uuid4().hex[:10]}"
    yield stem
    for candidate in [stem, *(f"{stem}-{k:06d}" for k in range(1, 60))]:
        for concrete in engine.index_names(candidate):
            engine.delete_index(concrete)
            forget_control(engine, [concrete])


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def many(n: int) -> dict[str, dict[str, Any]]:
    return {f"d{k}": {"n": k, "text": f"text of document {k} " * 5} for k in range(n)}


def test_killing_the_indexer_loses_and_doubles_nothing(engine: Engine, name: str, tmp_path: Path, state: Path) -> None:
    rng = seeded_rng(1)
    documents = many(2000 + 500 * KILLS)
    path = write_lines(tmp_path / "docs.jsonl", documents)
    engine.create_index(name, MAPPING)
    killed = 0
    for _ in range(KILLS):
        process = child("load", engine.spec, name, path, state)
        time.sleep(float(rng.uniform(0.05, 0.6)))
        killed += kill(process)
        for file in state.glob("*.json"):
            done = path.read_bytes()[: json.loads(file.read_bytes())["offset"]].splitlines()
            engine.refresh(name)
            assert engine.count(name) >= len(done), "the checkpoint is ahead of the engine"
    report = result_of(child("load", engine.spec, name, path, state))
    assert killed > 0
    assert report["read"] == report["indexed"] == len(documents)
    assert digest(contents(engine, name)) == digest(documents)
    assert list(state.glob("*.json")) == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_faulty_network_changes_nothing(engine: Engine, name: str, url: str, seed: int) -> None:
    parts = urlsplit(url)
    documents = many(500)
    engine.create_index(name, MAPPING)
    with FaultyProxy(str(parts.hostname), parts.port or 0, seeded_rng(seed)) as proxy:
        kind = engine.capabilities().kind
        # Six calls in a row can all meet a fault here: the proxy is worse than any network.
        policy = RetryPolicy(max_calls=HEALTHY_CALLS, base_s=0.01, cap_s=0.05, max_outage_s=30, deadline_s=60)
        through = open_engine(f"{kind}:{proxy.url}", EngineSettings(read_timeout_s=2, connect_timeout_s=2))
        writer = _writer_when_reachable(through, name, policy)
        report = writer.write(BulkItem(WriteOp("index", key, source)) for key, source in documents.items())
        through.close()
    assert report.stopped is None, proxy.drawn
    assert report.read == report.indexed == 500
    assert digest(contents(engine, name)) == digest(documents)


HEALTHY_CALLS = 20


def _writer_when_reachable(through: Engine, name: str, policy: RetryPolicy) -> BulkWriter:
    for _ in range(20):
        try:
            return BulkWriter(through, name, rng=np.random.default_rng(0), limits=BulkLimits(50), policy=policy)
        except Exception:  # noqa: S112 - the proxy spoils the question about capabilities too
            continue
    raise AssertionError("the proxy never let one question through")


@pytest.mark.parametrize("block", ["read_only_allow_delete", "write", "read_only"])
def test_index_blocks(engine: Engine, name: str, url: str, block: str, tmp_path: Path) -> None:
    """A full disk (429) is waited for; a block set by somebody (403) stops the run; no document is rejected."""
    documents = many(600)
    path = write_lines(tmp_path / "docs.jsonl", documents)
    engine.create_index(name, MAPPING)
    batches = 0

    def block_index(on: bool) -> None:
        status, _ = ask(url, "PUT", f"/{name}/_settings", {f"index.blocks.{block}": on or None})
        assert status == 200

    def progress(done: int, total: int | None) -> None:
        nonlocal batches
        batches += 1
        if batches == 2:
            block_index(on=True)

    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            block_index(on=False)

    notices: list[str] = []
    options = LoadOptions(limits=BulkLimits(100), reject_path=tmp_path / "rejects")
    report = load_documents(engine, name, path, options=options, progress=progress, notice=notices.append, sleep=sleep)
    assert report.bulk.rejected == 0
    if block == "read_only_allow_delete":
        assert report.bulk.stopped is None
        assert "blocked for writing" in notices[0]
    else:
        assert isinstance(report.bulk.stopped, EngineRejected)
        assert report.bulk.stopped.exit_code != 0
        assert "block" in str(report.bulk.stopped)
        assert (report.bulk.indexed, naps) == (200, [])
        block_index(on=False)
        report = load_documents(engine, name, path, options=options)
        assert report.resumed_at == 200
    assert report.bulk.indexed == 600
    assert digest(contents(engine, name)) == digest(documents)


def poison_lines() -> dict[str, bytes]:
    """Return kinds of documents that must be refused, by name."""
    deep = b'{"a":' * 30 + b"1" + b"}" * 30
    wide = json.dumps({f"w{k}": k for k in range(1200)}).encode()
    return {
        "NaN": b'{"id":"p","n":NaN}',
        "infinity": b'{"id":"p","n":Infinity}',
        "minus infinity": b'{"id":"p","text":[-Infinity]}',
        "too large for a double": b'{"id":"p","x":1e999}',
        "too large for a float field": b'{"id":"p","f":1e39}',
        "no number": b'{"id":"p","n":"seven"}',
        "whole number too large": b'{"id":"p","n":9223372036854775808}',
        "object for a number": b'{"id":"p","n":{"a":1}}',
        "object for a text": b'{"id":"p","text":{"a":1}}',
        "text for an object": b'{"id":"p","o":"flat"}',
        "no boolean": b'{"id":"p","b":"maybe"}',
        "no date": b'{"id":"p","d":"yesterday"}',
        "a word of 40 KB": b'{"id":"p","k":"' + b"x" * 40_000 + b'"}',
        "not base64": b'{"id":"p","v":"%%%"}',
        "duplicate keys": b'{"id":"p","n":1,"n":2}',
        "duplicate ids": b'{"id":"d0","n":1}',
        "bad UTF-8": b'{"id":"p","text":"\xff\xfe"}',
        "lone surrogate": b'{"id":"p","text":"\\ud800"}',
        "lone surrogate in the id": b'{"id":"\\udfff"}',
        "id of 513 bytes": b'{"id":"' + b"x" * 513 + b'"}',
        "empty id": b'{"id":""}',
        "no id": b'{"n":1}',
        "id of another type": b'{"id":[1]}',
        "two ids": b'{"id":"p","_id":"q"}',
        "depth 30": b'{"id":"p","deep":' + deep + b"}",
        "depth 2,000": b'{"id":"p","deep":' + b"[" * 2000 + b"]" * 2000 + b"}",
        "1,200 new fields": b'{"id":"p","wide":' + wide + b"}",
        "not JSON": b'{"id":"p",',
        "not an object": b"[1,2]",
        "a digit too many": b'{"id":"p","n":' + b"1" * 5000 + b"}",
        "an engine's own field": b'{"id":"p","_source":{"a":1}}',
    }


HARMLESS = {
    "null": b'{"id":"h0","n":null,"text":null}',
    "empty": b'{"id":"h1"}',
    "number as text": b'{"id":"h2","n":"7"}',
    "tiny": b'{"id":"h3","f":1e-30}',
    "large": b'{"id":"h4","f":3e38}',
    "NUL": b'{"id":"h5","text":"a\\u0000b"}',
    "id with dots and slashes": b'{"id":"../../_search"}',
    "id of 512 bytes": b'{"id":"' + b"y" * 512 + b'"}',
    "depth 15": b'{"id":"h8","deep15":' + b'{"a":' * 15 + b"1" + b"}" * 15 + b"}",
    "text NaN": b'{"id":"h9","text":"NaN"}',
    "emoji": '{"id":"🦆","text":"🦆 e\u0301"}'.encode(),
}
POISON_MAPPING = {
    "date_detection": False,
    "properties": {
        "n": {"type": "long"},
        "f": {"type": "float"},
        "text": {"type": "text"},
        "b": {"type": "boolean"},
        "d": {"type": "date"},
        "k": {"type": "keyword"},
        "v": {"type": "binary"},
        "o": {"properties": {"a": {"type": "long"}}},
    },
}


def test_exactly_the_poisoned_documents_are_rejected(engine: Engine, name: str, tmp_path: Path) -> None:
    poison = poison_lines()
    lines = [json.dumps({"id": key, **source}).encode() for key, source in many(3000).items()]
    expected: dict[int, str] = {}
    good = list(HARMLESS.values())
    mixed: list[bytes] = []
    kinds = iter(poison.items())
    for number, line in enumerate(lines):
        mixed.append(line)
        if number % 90 == 45:
            kind = next(kinds, None)
            if kind is not None:
                expected[len(mixed) + 1] = kind[0]
                mixed.append(kind[1])
        if number % 250 == 100 and good:
            mixed.append(good.pop())
    assert not good
    assert next(kinds, None) is None
    path = tmp_path / "docs.jsonl"
    path.write_bytes(b"\n".join(mixed) + b"\n")
    engine.create_index(name, POISON_MAPPING)
    rejects = tmp_path / "rejects"
    report = load_documents(engine, name, path, options=LoadOptions(reject_path=rejects))
    assert report.bulk.stopped is None
    entries = [json.loads(line) for line in rejects.read_text().splitlines()]
    found = {entry["line"]: expected.get(entry["line"], f"unexpected: {entry}") for entry in entries}
    assert found == expected
    for entry in entries:
        assert path.read_bytes()[entry["offset"] :].startswith(mixed[entry["line"] - 1][:50])
        assert entry["reason"]
    assert report.bulk.read + report.unreadable == len(mixed)
    engine.refresh(name)
    assert engine.count(name) == len(mixed) - len(expected) == report.bulk.indexed


def test_sizes_from_one_byte_to_past_the_limit(engine: Engine, name: str, tmp_path: Path, state: Path) -> None:
    sizes = [1, 10, 1_000, 100_000, 1_000_000, 5_000_000, 105_000_000, 20, 2_000_000, 3]
    path = tmp_path / "docs.jsonl"
    with path.open("w") as file:
        for k, size in enumerate(sizes):
            file.write(json.dumps({"id": f"s{k}", "blob": "x" * size}) + "\n")
    engine.create_index(name, {"properties": {"blob": {"type": "keyword", "index": False, "doc_values": False}}})
    report = result_of(child("load", engine.spec, name, path, state))
    assert (report["indexed"], report["rejected"] + report["unreadable"]) == (9, 1)
    found = contents(engine, name)
    assert {key: len(source["blob"]) for key, source in found.items()} == {
        f"s{k}": size for k, size in enumerate(sizes) if size < 100_000_000
    }
    assert report["grown_bytes"] <= 3 * 105_000_000


def test_readers_never_see_an_incomplete_index_during_rebuilds(engine: Engine, name: str, tmp_path: Path) -> None:
    """Four readers, several rebuilds: every answer is whole and of one generation."""
    path = tmp_path / "docs.jsonl"
    wrong: list[str] = []
    answers = 0
    stop = threading.Event()

    def write_generation(number: int) -> None:
        write_lines(path, {f"d{k}": {"n": number, "text": "word"} for k in range(60)})

    def read() -> None:
        nonlocal answers
        reader = open_engine(engine.spec)
        while not stop.is_set():
            try:
                answer = reader.search(name, {"size": 60, "query": {"match": {"text": "word"}}})
            except Exception as error:
                wrong.append(repr(error))
                continue
            answers += 1
            generations = {hit.source["n"] for hit in answer.hits}
            if len(answer.hits) != 60 or len(generations) != 1:
                wrong.append(f"{len(answer.hits)} hits of generations {generations}")
        reader.close()

    write_generation(0)
    build_index(engine, name, path, None)
    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 5):
            write_generation(number)
            assert build_index(engine, name, path, None, BuildOptions(rebuild=True)).concrete.endswith(f"{number + 1}")
    finally:
        stop.set()
        for reader in readers:
            reader.join(30)
    assert wrong == []
    assert answers > 100
    assert len(read_control(engine, name).retired) == 4


def test_killing_a_rebuild_leaves_the_alias_on_one_complete_index(
    engine: Engine, name: str, tmp_path: Path, state: Path
) -> None:
    rng = seeded_rng(2)
    documents = many(300)
    path = write_lines(tmp_path / "docs.jsonl", documents)
    build_index(engine, name, path, None)
    for _ in range(max(2, KILLS // 2)):
        process = child("rebuild", engine.spec, name, path, state)
        time.sleep(float(rng.uniform(0.0, 1.2)))
        kill(process)
        assert len(engine.index_names(name)) == 1
        assert digest(contents(engine, name)) == digest(documents)
    result_of(child("rebuild", engine.spec, name, path, state))
    assert digest(contents(engine, name)) == digest(documents)
    record = read_control(engine, name)
    assert record.building == ()
    # Nothing is lost sight of: what is not live is listed, and removed.
    update_control(engine, name, lambda r: r.with_release(Release("a" * 64, "b" * 64)).with_live("a" * 64))
    plan = plan_collection(engine, name, unfinished=True)
    collect(engine, plan, rng=rng)
    left = [c for k in range(1, 30) for c in engine.index_names(f"{name}-{k:06d}")]
    assert left == list(engine.index_names(name)), f"recorded were {record}, to be deleted {plan}"


def test_of_two_indexers_the_newer_version_wins_everywhere(engine: Engine, name: str, tmp_path: Path) -> None:
    n = 1000
    rng = seeded_rng(3)
    engine.create_index(name, MAPPING)
    reports: dict[int, Any] = {}

    def run(version: int) -> None:
        order = np.random.default_rng(version).permutation(n)
        path = tmp_path / f"v{version}.jsonl"
        write_lines(path, {f"d{k}": {"n": version, "text": f"{rng.integers(9)}"} for k in order.tolist()})
        own = open_engine(engine.spec)
        options = LoadOptions(version_field="n", limits=BulkLimits(50), reject_path=tmp_path / f"r{version}")
        reports[version] = load_documents(own, name, path, options=options)
        own.close()

    threads = [threading.Thread(target=run, args=(version,)) for version in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    found = contents(engine, name)
    assert len(found) == n
    assert {source["n"] for source in found.values()} == {2}
    for report in reports.values():
        assert report.bulk.stopped is None
        assert (report.bulk.rejected, report.bulk.indexed + report.bulk.superseded) == (0, n)
    assert reports[2].bulk.superseded == 0


def test_guarded_changes_by_four_at_once_all_count(engine: Engine, name: str) -> None:
    conflicts = 0

    def adding(name: str) -> Callable[[ControlRecord], ControlRecord]:
        return lambda record: record.with_release(Release(name, "e"))

    def add(who: str) -> None:
        nonlocal conflicts
        own = open_engine(engine.spec)
        for k in range(10):
            while True:
                try:
                    update_control(own, name, adding(f"{who}-{k}"))
                    break
                except VersionConflict:
                    conflicts += 1
        own.close()

    threads = [threading.Thread(target=add, args=(who,)) for who in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(read_control(engine, name).releases) == 40
