"""Each engine of the fixtures is real: it indexes a document and finds it by BM25; and engines obey the launcher."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.engines.launcher import QUICK_START, EngineProcess
from tests.engines.processes import answers, basic_authorization
from tests.engines.recipes import EngineKind
from tests.engines.security import FileUser, Security

Json = dict[str, Any]


def ask(
    url: str, method: str, path: str, body: Json | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Json]:
    """Return the status and the JSON of one request."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    finally:
        connection.close()


@pytest.fixture(params=["elasticsearch", "opensearch"])
def url(request: pytest.FixtureRequest) -> str:
    """Give the address of each engine in turn."""
    address: str = request.getfixturevalue(f"{request.param}_url")
    return address


@pytest.fixture
def index(url: str) -> Iterator[str]:
    """Give the name of an index that is removed afterwards."""
    name = f"start-{uuid.uuid4().hex[:8]}"
    yield name
    ask(url, "DELETE", f"/{name}")


def test_engine_finds_an_indexed_document_by_bm25(url: str, index: str) -> None:
    for number, text in enumerate(["the cat sat on the mat", "dogs bark at night"]):
        status, _ = ask(url, "PUT", f"/{index}/_doc/{number}?refresh=true", {"text": text})
        assert status == 201
    status, found = ask(url, "POST", f"/{index}/_search", {"query": {"match": {"text": "cat"}}})
    assert status == 200
    assert [hit["_id"] for hit in found["hits"]["hits"]] == ["0"]
    assert found["hits"]["hits"][0]["_score"] > 0


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def own_engine(request: pytest.FixtureRequest, launchable: Callable[[EngineKind], None]) -> Iterator[EngineProcess]:
    """Give an engine that a test may kill; only from the launcher, so it needs Maven and Java."""
    kind: EngineKind = request.param
    launchable(kind)
    settings = {"indexing_pressure.memory.limit": "20kb"}
    with EngineProcess(kind, heap="512m", java_options=QUICK_START, settings=settings) as engine:
        yield engine


def test_a_killed_engine_comes_back_with_its_data(own_engine: EngineProcess) -> None:
    status, _ = ask(own_engine.url, "PUT", "/kept/_doc/1", {"text": "acknowledged"})
    assert status == 201
    own_engine.kill()
    assert not own_engine.is_running
    assert not answers(own_engine.url)
    own_engine.start()
    assert ask(own_engine.url, "GET", "/kept/_doc/1")[1]["_source"] == {"text": "acknowledged"}


def test_a_paused_engine_answers_only_when_resumed(own_engine: EngineProcess) -> None:
    own_engine.pause()
    try:
        assert own_engine.is_running
        assert not answers(own_engine.url, limit_s=1.0)
    finally:
        own_engine.resume()
    assert answers(own_engine.url)


def test_an_extra_setting_takes_effect(own_engine: EngineProcess) -> None:
    status, body = ask(own_engine.url, "PUT", "/large/_doc/1", {"text": "x" * 40_000})
    assert status == 429
    assert "rejected_execution_exception" in body["error"]["type"]


def test_elasticsearch_security_knows_users_and_roles(launchable: Callable[[EngineKind], None]) -> None:
    launchable("elasticsearch")
    readable = {"indices": [{"names": ["shop"], "privileges": ["read"]}]}
    security = Security(users={"reader": FileUser("reader-password", ("read_shop",))}, roles={"read_shop": readable})
    with EngineProcess("elasticsearch", heap="512m", java_options=QUICK_START, security=security) as engine:
        admin = basic_authorization("elastic", security.password)
        reader = basic_authorization("reader", "reader-password")
        document = {"text": "a shoe"}
        assert ask(engine.url, "PUT", "/shop/_doc/1?refresh=true", document)[0] == 401
        assert ask(engine.url, "PUT", "/shop/_doc/1?refresh=true", document, reader)[0] == 403
        assert ask(engine.url, "PUT", "/shop/_doc/1?refresh=true", document, admin)[0] == 201
        assert ask(engine.url, "GET", "/shop/_search", headers=reader)[1]["hits"]["total"]["value"] == 1
        assert ask(engine.url, "GET", "/shop/_search", headers=basic_authorization("reader", "wrong"))[0] == 401
