"""`revectorize` and `sync` under kills, faults and a busy writer: at the end every vector is that of the present text.

``SSI_RENEWAL_KILLS`` sets how often a process is killed per engine (default 4; 20 for a long run), ``SEED`` the seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from indexer.encoding import VersionEncoder
from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.protocol import Engine
from reranker.engines.vectors import field_prefix
from reranker.engines.wire import json_bytes
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel
from reranker.releases import forget_control, read_control
from tests.live.faulty_http import FaultyHttp
from tests.live.helpers import ROOT, contents
from tests.seeds import seeded_rng
from tests.served import model_of, random_documents

KILLS = int(os.environ.get("SSI_RENEWAL_KILLS", "4"))
N_DOCUMENTS = 800
FAULT_SHARE = 0.12
MAPPING = {
    "properties": {
        "title": {"type": "text"},
        "text": {"type": "text"},
        "tag": {"type": "keyword"},
        "n": {"type": "long"},
        "updated": {"type": "date"},
    }
}


@pytest.fixture(params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    url = str(request.getfixturevalue(f"{request.param}_url"))
    opened = open_engine(f"{request.param}:{url}", EngineSettings(read_timeout_s=60))
    yield opened
    opened.close()


@pytest.fixture
def index(engine: Engine) -> Iterator[str]:
    """Give an index of three shards, so that numbers of writes are not unique."""
    name = f"renewal-{uuid.uuid4().hex[:10]}"
    engine.create_index(name, MAPPING, {"index.number_of_shards": "3", "index.number_of_replicas": "0"})
    yield name
    engine.delete_index(name)
    forget_control(engine, [name])


@pytest.fixture(scope="module")
def model() -> RankingModel:
    return model_of(random_documents(200))


@pytest.fixture(scope="module")
def model_path(model: RankingModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("renewal") / "model"
    save_model(model, path)
    return path


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Writer:
    """The team that owns the index: creates, changes and deletes documents, and knows what each must be."""

    def __init__(self, engine: Engine, index: str, rng: np.random.Generator) -> None:
        self.expected: dict[str, dict[str, Any]] = {}
        self.deleted: set[str] = set()
        self.done: Counter[str] = Counter()
        self.error: Exception | None = None
        self._engine, self._index, self._rng = engine, index, rng
        self._texts = iter(random_documents(40_000, seed=int(rng.integers(1000))).values())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def fill(self, n: int) -> None:
        self._send([self._whole(f"d{k}") for k in range(n)])

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _work(self) -> None:
        try:
            while not self._stop.wait(0.1):
                # One change a document: a change that is sent again must not overtake a later one.
                ops = [self._change() for _ in range(int(self._rng.integers(1, 12)))]
                for part in _without_repeated_ids(ops):
                    self._send(part)
        except Exception as error:
            self.error = error

    def _change(self) -> WriteOp:
        ids = list(self.expected)
        chosen = ids[int(self._rng.integers(len(ids)))]
        kind = str(self._rng.choice(["new", "new", "text", "tag", "whole", "delete", "delete", "again", "empty"]))
        self.done[kind] += 1
        if kind == "new":
            return self._whole(f"new{len(self.expected) + len(self.deleted)}-{self.done['new']}")
        if kind == "again":  # a document that was deleted comes again with another text
            return self._whole(min(self.deleted)) if self.deleted else self._whole(chosen)
        if kind == "whole":  # a write that knows nothing of our fields takes them away
            return self._whole(chosen)
        if kind == "delete":
            del self.expected[chosen]
            self.deleted.add(chosen)
            return WriteOp("delete", chosen)
        parts = {"text": {"text": next(self._texts)["text"]}, "empty": {"title": "", "text": ""}}
        change = {**parts.get(kind, {"tag": "z"}), "updated": now(), "n": self.done.total()}
        self.expected[chosen] = {**self.expected[chosen], **change}
        return WriteOp("update", chosen, change)

    def _whole(self, name: str) -> WriteOp:
        self.deleted.discard(name)
        self.expected[name] = {**next(self._texts), "updated": now(), "n": self.done.total()}
        return WriteOp("index", name, self.expected[name])

    def _send(self, ops: list[WriteOp]) -> None:
        while ops:
            results = self._engine.bulk(self._index, ops)
            assert {result.status for result in results} <= {200, 201, 409}, results
            # An update without a guard conflicts if ours comes between its reading and its writing inside the engine.
            ops = [op for op, result in zip(ops, results, strict=True) if result.status == 409]


def _without_repeated_ids(ops: list[WriteOp]) -> Iterator[list[WriteOp]]:
    """Yield runs of operations, in order, each with one operation a document."""
    part: dict[str, WriteOp] = {}
    for op in ops:
        if op.id in part:
            yield list(part.values())
            part = {}
        part[op.id] = op
    yield list(part.values())


@dataclass
class Runs:
    """What child processes did."""

    kills: int = 0
    retries: int = 0
    stopped: int = 0
    reports: list[dict[str, Any]] = field(default_factory=list)


def start(action: str, spec: str, index: str, model_path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.live.renewing_child", action, spec, index, str(model_path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def end(process: subprocess.Popen[str], runs: Runs) -> dict[str, Any]:
    """Return the report of a process that is left alone."""
    assert process.stdout is not None
    out, err = process.stdout.read(), ""
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    lines = out.splitlines()
    runs.retries += lines.count("retry")
    report: dict[str, Any] = json.loads(lines[-1])
    runs.reports.append(report)
    return report


def run_until_done(
    action: str, spec: str, index: str, model_path: Path, kills: int, rng: np.random.Generator, runs: Runs
) -> None:
    """Kill a command at random moments and start it again, until it ends by itself."""
    killed = 0
    while killed < kills:
        process = start(action, spec, index, model_path)
        time.sleep(float(rng.uniform(0.0, 1.2)))
        at_work = process.poll() is None
        if at_work:
            os.killpg(process.pid, 9)
        out = process.communicate()[0]
        runs.retries += out.count("retry\n")
        killed += at_work
    runs.kills += killed
    while end(start(action, spec, index, model_path), runs)["stopped"] is not None:
        runs.stopped += 1
        assert runs.stopped < 20, runs.reports


def check_all(engine: Engine, index: str, model: RankingModel, expected: dict[str, dict[str, Any]]) -> int:
    """Compare every document with what the writer wrote last and what encoding that gives; return how many."""
    prefix = field_prefix(model.encoder_id)
    found = contents(engine, index)
    ours = {key: {name: doc.pop(name) for name in list(doc) if name.startswith(prefix)} for key, doc in found.items()}
    assert sorted(found) == sorted(expected), "a document is missing, or came back"
    version = VersionEncoder(model.encoder, ("fetch",), capabilities=engine.capabilities())
    ids = sorted(found)
    wrong = [key for key in ids if found[key] != expected[key]]
    assert wrong == [], "the team's own fields are not what it wrote last"
    for key, values in zip(ids, version.fields(ids, [expected[key] for key in ids]), strict=True):
        # null: a field that a document without text has lost
        kept = {name: value for name, value in ours[key].items() if value is not None}
        if json_bytes(dict(sorted(kept.items()))) != json_bytes(dict(sorted(values.items()))):
            wrong.append(key)
    assert wrong == [], f"{len(wrong)} documents have vectors of another text"
    return len(ids)


def test_killed_renewals_end_with_the_vectors_of_the_present_texts(
    engine: Engine, index: str, model: RankingModel, model_path: Path
) -> None:
    rng = seeded_rng(7)
    parts = urlsplit(engine.spec.partition(":")[2])
    runs = Runs()
    writer = Writer(engine, index, np.random.default_rng(rng.integers(2**32)))
    writer.fill(N_DOCUMENTS)
    faults = np.random.default_rng(rng.integers(2**32))
    with FaultyHttp(str(parts.hostname), parts.port or 0, faults, FAULT_SHARE) as proxy:
        spec = f"{engine.capabilities().kind}:{proxy.url}"
        with writer:
            run_until_done("revectorize", spec, index, model_path, KILLS - KILLS // 2, rng, runs)
            run_until_done("sync", spec, index, model_path, KILLS // 2, rng, runs)
        assert writer.error is None
        report = end(start("sync", spec, index, model_path), runs)
    assert report["stopped"] is None
    compared = check_all(engine, index, model, writer.expected)
    assert runs.kills == KILLS
    assert sum(proxy.injected.values()) > 0 and runs.retries > 0
    assert [release.model_id for release in read_control(engine, index).releases] == [model.model_id]
    figures = {
        "documents compared": compared,
        "kills": runs.kills,
        "requests": proxy.requests,
        "faults": dict(proxy.injected),
        "retries of requests": runs.retries,
        "runs that stopped": runs.stopped,
        "writes of the team": dict(writer.done),
    }
    print(json.dumps(figures))  # noqa: T201 - the figures of a long run (pytest -s)


def test_two_syncs_at_once_end_with_all_documents_right(
    engine: Engine, index: str, model: RankingModel, model_path: Path
) -> None:
    parts = urlsplit(engine.spec.partition(":")[2])
    runs = Runs()
    writer = Writer(engine, index, seeded_rng(8))
    writer.fill(N_DOCUMENTS)
    with FaultyHttp(str(parts.hostname), parts.port or 0, seeded_rng(9), 0.0) as proxy, writer:
        # The slow one has read before the quick one writes, and writes after it: its first bulk request conflicts.
        proxy.held_path = f"/{index}/_bulk"
        slow = start("revectorize", f"{engine.capabilities().kind}:{proxy.url}", index, model_path)
        assert proxy.held.wait(60)
        quick = end(start("revectorize", engine.spec, index, model_path), runs)
        proxy.released.set()
        late = end(slow, runs)
    assert writer.error is None
    assert [quick["stopped"], late["stopped"]] == [None, None]
    assert late["conflicts"] > 0
    # What was written after a pass had read it is left to the next sync.
    end(start("revectorize", engine.spec, index, model_path), runs)
    check_all(engine, index, model, writer.expected)
