"""The names by which a service may be called, and how large bodies of which routes may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reranker.service.auth import new_key
from reranker.service.settings import Limits, ServiceSettings
from reranker.service.state import ServiceState
from tests.engines.memory import memory_engine
from tests.served import Served
from tests.services import client_of, service_over, small_index
from tests.unit.service.test_guard import run

SENT = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("index"), memory_engine(), n=20)
    yield served
    served.engine.close()


def status(state: ServiceState, **headers: str) -> int:
    """Return the status of a request with these headers; ``origin`` and ``host`` among them."""
    return run(state, "/json", [b"{}"], {**SENT, **headers}).status


HERE = ["localhost", "LocalHost", "localhost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8080", " localhost "]
ELSEWHERE = [
    "",
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "10.0.0.1",
    "[::2]",
    "[::1]evil",
    "::1",
    "localhost.",
    "null",
    "0.0.0.0",
    "xlocalhost",
    "[localhost.evil]",
    "evil@localhost",
    "localhost@evil",
    "localhost:80@evil.example",
    "localhost:80:90",
    "localhost/",
    "evil.example/localhost",
]


@pytest.mark.parametrize("host", HERE)
def test_a_service_without_keys_is_called_by_the_names_of_this_machine(
    served: Served, tmp_path: Path, host: str
) -> None:
    state = service_over(served, tmp_path)
    assert status(state, host=host) == 200
    assert status(state, host=host, origin=f"http://{host.strip()}") == 200


@pytest.mark.parametrize("host", ELSEWHERE)
def test_and_by_no_other(served: Served, tmp_path: Path, host: str) -> None:
    state = service_over(served, tmp_path)
    sent = run(state, "/json", [b"{}"], {**SENT, "host": host})
    assert sent.status == 403 and b"bad_host" in sent.body and b"--allowed-host" in sent.body
    assert status(state, host="localhost", origin=f"https://{host}") == 403
    assert state.metrics.registry.get_sample_value("ssi_refused_total", {"cause": "bad_host"}) == 2.0


def test_pages_of_other_sites_are_refused_whatever_they_ask(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path)
    for origin in ("null", "https://evil.example", "http://evil.example:80", "", "file://", "chrome-extension://abc"):
        assert status(state, host="localhost", origin=origin) == 403, origin
    client = client_of(state)
    for path in ("/", "/search", "/health", "/metrics", "/docs"):
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 403
        assert client.get(path, headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.get("/health").status_code == 200
    assert status(state) == 200, "without a Host, as no browser asks"


def test_names_can_be_added(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, allowed_hosts=("Search.Shop.example", "fd00::7"))
    for host in ("search.shop.example", "SEARCH.shop.example:443", "[fd00::7]:80", "localhost"):
        assert status(state, host=host) == 200, host
        assert status(state, host=host, origin=f"https://{host}") == 200, host
    assert status(state, host="shop.example") == status(state, host="fd00::7") == 403


def test_a_service_with_keys_is_called_by_any_name_unless_it_has_some(served: Served, tmp_path: Path) -> None:
    key, line = new_key("shop", "search")
    (tmp_path / "keys").write_text(f"{line}\n")
    shown = {"authorization": f"Bearer {key}"}
    by_any = service_over(served, tmp_path, api_keys=tmp_path / "keys")
    for host in ("evil.example", "localhost", "null"):
        assert status(by_any, host=host, **shown) == 200
        assert status(by_any, host=host, origin="https://evil.example", **shown) == 200
        assert status(by_any, host=host) == 401
    by_one = service_over(served, tmp_path, api_keys=tmp_path / "keys", allowed_hosts=("shop.example",))
    assert status(by_one, host="shop.example", **shown) == 200
    assert status(by_one, host="localhost", **shown) == 403, "the name counts first, and loopback is not among them"
    assert status(by_one, host="localhost") == 403


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, {"localhost", "127.0.0.1", "::1"}),
        ({"host": "127.0.0.9"}, {"localhost", "127.0.0.1", "::1", "127.0.0.9"}),
        ({"host": "::1", "allowed_hosts": ("A.b",)}, {"localhost", "127.0.0.1", "::1", "a.b"}),
        ({"host": "0.0.0.0", "without_keys": True}, None),
        ({"host": "0.0.0.0", "without_keys": True, "allowed_hosts": ("A.b",)}, {"a.b"}),
        ({"api_keys": Path("keys")}, None),
        ({"api_keys": Path("keys"), "allowed_hosts": ("A.b", "c")}, {"a.b", "c"}),
    ],
)
def test_the_names_of_a_service(change: dict[str, Any], names: set[str] | None) -> None:
    assert ServiceSettings(index="docs", **change).hosts == names


# --- how large bodies may be


def test_bodies_are_limited_by_route(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, limits=Limits(max_search_bytes=2_000, max_body_bytes=50_000))
    client = client_of(state)
    search = {"query": "word3"}
    for path, body in (("/search", search), ("/embed", {"inputs": "a"}), ("/rerank", {"query": "a", "texts": ["b"]})):
        text = client.build_request("POST", path, json=body).read()
        for size, expected in ((2_000, True), (2_001, path != "/search"), (50_000, path != "/search"), (50_001, False)):
            answer = client.post(path, content=text + b" " * (size - len(text)), headers=SENT)
            assert (answer.status_code == 200) == expected, (path, size, answer.text)
            assert expected or answer.status_code == 413
            assert expected or str(2_000 if path == "/search" else 50_000) in answer.text


@pytest.mark.parametrize(("path", "most"), [("/search", 2_000), ("/events", 2_000), ("/rerank", 5_000), ("/", 5_000)])
def test_bodies_that_do_not_say_their_length_are_limited_as_well(
    served: Served, tmp_path: Path, path: str, most: int
) -> None:
    state = service_over(served, tmp_path, limits=Limits(max_search_bytes=2_000, max_body_bytes=5_000))
    assert run(state, path, [b" " * 1_000] * (most // 1_000), SENT).status != 413
    assert run(state, path, [*[b" " * 1_000] * (most // 1_000), b" "], SENT).status == 413
    assert state.buffered_bytes == 0


def test_a_search_body_is_never_larger_than_any_body(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, limits=Limits(max_search_bytes=10_000, max_body_bytes=100))
    assert state.body_limit("/search") == state.body_limit("/rerank") == 100


def test_bodies_that_break_off_are_counted(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path)
    sent = run(state, "/json", [b'{"a": ', None], SENT)
    assert sent.status == 400 and b"broken_body" in sent.body and sent.headers["connection"] == "close"
    assert state.metrics.registry.get_sample_value("ssi_refused_total", {"cause": "broken_body"}) == 1.0
    assert state.buffered_bytes == state.admitted == 0
