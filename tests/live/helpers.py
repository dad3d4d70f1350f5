"""What the live tests of the indexer share."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reranker.engines.protocol import Engine
from reranker.engines.wire import json_bytes

ROOT = Path(__file__).resolve().parents[2]


def ask(url: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of one request past our own engine code."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    finally:
        connection.close()


def write_lines(path: Path, documents: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write documents as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for name, source in documents.items():
            file.write(json.dumps({"id": name, **source}) + "\n")
    return path


def digest(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return SHA-256 over sorted (id, source): two equal sets of documents, and no others, have equal ones."""
    total = hashlib.sha256()
    for name in sorted(documents):
        total.update(json_bytes([name, dict(sorted(documents[name].items()))]))
    return total.hexdigest()


def contents(engine: Engine, index: str) -> dict[str, dict[str, Any]]:
    """Return all documents; a document met twice is an error."""
    engine.refresh(index)
    found: dict[str, dict[str, Any]] = {}
    for batch in engine.scan(index):
        for document in batch:
            assert document.id not in found, f"{document.id} is there twice"
            found[document.id] = dict(document.source)
    return found


def child(action: str, spec: str, index: str, file: Path, state: Path) -> subprocess.Popen[str]:
    """Start `tests.live.indexing_child` and return when it is about to write."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.live.indexing_child", action, spec, index, str(file)],
        cwd=ROOT,
        env={**os.environ, "SSI_STATE_DIR": str(state), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def kill(process: subprocess.Popen[str]) -> bool:
    """Kill a child and its group by SIGKILL; return whether it was still at work."""
    at_work = process.poll() is None
    if at_work:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return at_work


def result_of(process: subprocess.Popen[str], timeout_s: float = 120) -> dict[str, Any]:
    """Return the account that a child prints at its end."""
    assert process.stdout is not None
    out = process.stdout.read()  # what came with the line "ready" is read already, and lost to `communicate`
    _, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, err
    value: dict[str, Any] = json.loads(out.splitlines()[-1])
    return value
