"""The door: size, pace, key, encoding, depth, queue; what is refused never reaches a route."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse

from reranker.deadline import Deadline
from reranker.errors import ConfigError
from reranker.rerank import RerankSettings
from reranker.service.app import (
    ServicePart,
    create_app,
)
from reranker.service.auth import ApiKeys, new_key
from reranker.service.http import JsonRoute, RequestBody, RequestContext, ServiceError, body_of, context_of
from reranker.service.settings import LARGE_BODY, Limits, ServiceSettings
from reranker.service.state import ServiceState
from tests.engines.memory import memory_engine
from tests.served import Served
from tests.services import client_of, service_over, small_index

SMALL = Limits(
    max_body_bytes=1000, max_buffered_bytes=2500, receive_timeout_s=0.2, max_header_bytes=500, at_once=1, max_waiting=1
)
seen: list[int] = []
router = APIRouter(route_class=JsonRoute)


@router.post("/echo")
async def echo(request: Request) -> JSONResponse:
    body = await request.body()
    seen.append(len(body))
    return JSONResponse({"bytes": len(body)})


@router.post("/spent")
async def spent(context: Annotated[RequestContext, Depends(context_of)]) -> JSONResponse:
    return JSONResponse({"started": context.deadline.started})


class AnyValue(RequestBody):
    """A body whose part ``a`` may be anything."""

    a: Any = None


@router.post("/json")
async def read_json(request: Request, value: Annotated[AnyValue, body_of(AnyValue)]) -> JSONResponse:
    seen.append(1)
    return JSONResponse({"a": type(value.a).__name__})


@router.get("/boom")
async def boom() -> JSONResponse:
    raise ZeroDivisionError("canary")


@router.get("/teapot")
async def teapot() -> JSONResponse:
    raise ServiceError(409, "somebody else was first", kind="conflict")


PART = ServicePart(
    router,
    shapes={"/echo": lambda status, kind, message: {"detail": kind, "code": status}},
    public=("/teapot", "/open/"),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("index"), memory_engine(), n=20)
    yield served
    served.engine.close()


@pytest.fixture
def state(served: Served, tmp_path: Path) -> ServiceState:
    seen.clear()
    return service_over(served, tmp_path, limits=SMALL)


class Sent:
    """An answer put together from its messages."""

    def __init__(self, messages: list[Any]) -> None:
        self.status: int = messages[0]["status"] if messages else 0
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]} if messages else {}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])


async def ask(app: Any, path: str, left: list[Any], headers: dict[str, str] | None = None, client: str = "x") -> Sent:
    """Send a request chunk by chunk, each taken from ``left`` as it goes.

    A number among them is a pause in seconds, None hangs up, a function is called.
    """
    messages: list[Any] = []

    async def receive() -> Any:
        while left and (isinstance(left[0], float) or callable(left[0])):
            step = left.pop(0)
            if callable(step):
                step()
            else:
                await asyncio.sleep(step)
        if not left:
            await asyncio.sleep(30)
        chunk = left.pop(0)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "client": (client, 1),
        "server": ("x", 1),
        "headers": [(n.lower().encode(), v.encode()) for n, v in (headers or {}).items()],
    }
    await app(scope, receive, send)
    return Sent(messages)


def run(
    state: ServiceState, path: str, left: list[Any], headers: dict[str, str] | None = None, client: str = "x"
) -> Sent:
    return asyncio.run(ask(create_app(state.settings, state, [PART]), path, left, headers, client))


@pytest.mark.parametrize("sizes", [[1000], [400, 600], [1] * 1000])
def test_a_body_at_the_limit_passes_however_it_comes(state: ServiceState, sizes: list[int]) -> None:
    for headers in ({}, {"Content-Length": "1000"}):
        sent = run(state, "/echo", [b"x" * size for size in sizes], headers)
        assert sent.status == 200 and json.loads(sent.body) == {"bytes": 1000}


@pytest.mark.parametrize(
    ("chunks", "headers"),
    [
        ([b"x" * 1001], {}),
        ([b"x" * 600, b"x" * 600, b"x" * 10**6], {}),
        ([b""], {"Content-Length": "1001"}),
        ([b""], {"Content-Length": "9" * 4000}),
    ],
)
def test_a_body_above_the_limit_is_refused(state: ServiceState, chunks: list[bytes], headers: dict[str, str]) -> None:
    sent = run(state, "/echo", chunks, headers)
    assert sent.status in (413, 431)
    assert (sent.status == 431) == ("9" * 4000 in headers.values())
    assert seen == []


def test_a_refused_large_body_is_not_read_to_its_end(state: ServiceState) -> None:
    left: list[Any] = [b"x" * 600, b"x" * 600, *[b"y"] * 100]
    sent = run(state, "/echo", left)
    assert sent.status == 413 and sent.headers["connection"] == "close"
    assert left == [b"y"] * 100


def test_a_queue_that_filled_while_a_body_came_is_full(state: ServiceState) -> None:
    def fill() -> None:
        state.admitted = SMALL.at_once + SMALL.max_waiting

    sent = run(state, "/echo", [b"x", fill, b"x"])
    assert sent.status == 503 and seen == []
    assert "ssi_buffered_bytes 0.0" in state.metrics.text().decode()


def test_a_slow_body_is_given_up(state: ServiceState) -> None:
    sent = run(state, "/echo", [b"x", 0.15, b"x", 0.15, b"x"])
    assert sent.status == 408 and json.loads(sent.body) == {"detail": "too_slow", "code": 408}
    assert seen == []


def test_the_deadline_begins_with_the_last_byte(state: ServiceState) -> None:
    last: list[float] = []
    sent = run(state, "/spent", [b"x", 0.02, lambda: last.append(time.perf_counter()), b"x"])
    assert sent.status == 200 and json.loads(sent.body)["started"] >= last[0]


def test_bodies_in_memory_are_bounded_together_and_given_back(state: ServiceState) -> None:
    async def scenario() -> list[int]:
        app = create_app(state.settings, state, [PART])
        slow = [asyncio.create_task(ask(app, "/echo", [b"x" * 900, 0.1, b"x"])) for _ in range(4)]
        statuses = sorted([(await one).status for one in slow])
        again = await ask(app, "/echo", [b"x" * 1000])
        return [*statuses, again.status]

    assert asyncio.run(scenario()) == [200, 200, 503, 503, 200]
    assert "ssi_buffered_bytes 0.0" in state.metrics.text().decode()


def test_a_client_that_hangs_up_costs_nothing(state: ServiceState) -> None:
    assert run(state, "/echo", [b"x", None]).status == 400
    assert seen == [] and "ssi_buffered_bytes 0.0" in state.metrics.text().decode()


@pytest.mark.parametrize("name", ["Content-Encoding", "content-encoding"])
@pytest.mark.parametrize("value", ["gzip", "br", "gzip, identity", "deflate"])
def test_compressed_bodies_are_refused(state: ServiceState, name: str, value: str) -> None:
    sent = run(state, "/json", [b"{}"], {name: value, "content-type": "application/json"})
    assert sent.status == 415 and seen == []


def test_headers_are_bounded(state: ServiceState) -> None:
    assert run(state, "/echo", [b""], {"x-a": "a" * 600}).status == 431
    assert run(state, "/echo", [b""], {f"x-{k}": "a" * 10 for k in range(40)}).status == 431
    assert run(state, "/echo", [b""], {"x-a": "a" * 100}).status == 200


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"[" * 500 + b"]" * 500, 422, "too_deep"),
        (b"[" * 900, 422, "too_deep"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, 422, "too_deep"),
        (b'{"a":' * 64 + b"1" + b"}" * 64, 200, ""),
        (b'{"a": NaN}', 400, "not_json"),
        (b'{"a": 1', 400, "not_json"),
        (b'{"a": "\xff"}', 400, "not_json"),
        (b'{"a": "\\ud800"}', 200, ""),
        (b'{"a": "\\ud800", "b": NaN}', 400, "not_json"),
        (b'{"a": "\\ud800"', 400, "not_json"),
        (b'{"a": ' + b"9" * 900 + b"}", 200, ""),
        (b"\xef\xbb\xbf{}", 400, "not_json"),
        (b"", 400, "not_json"),
        (b"[]", 422, "invalid"),
    ],
)
def test_bodies_that_are_no_json_object(state: ServiceState, body: bytes, status: int, kind: str) -> None:
    sent = run(state, "/json", [body], {"content-type": "application/json"})
    assert sent.status == status
    assert status == 200 or json.loads(sent.body)["error"]["type"] == kind


def test_the_values_of_a_body_are_bounded(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, limits=Limits(max_json_values=100))
    type_json = {"content-type": "application/json"}
    assert run(state, "/json", [json.dumps({"a": [1] * 100}).encode()], type_json).status == 200
    assert run(state, "/json", [json.dumps({"a": [1] * 101}).encode()], type_json).status == 422


def test_too_many_at_once_are_told_to_come_later(state: ServiceState) -> None:
    async def scenario() -> list[Sent]:
        app = create_app(state.settings, state, [PART])
        state.admitted = 2
        refused = await ask(app, "/echo", [b""])
        health = await ask(app, "/health", [b""])
        state.admitted = 1
        return [refused, health, await ask(app, "/echo", [b""])]

    refused, health, taken = asyncio.run(scenario())
    assert refused.status == 503 and refused.headers["retry-after"] == "1"
    assert "connection" not in refused.headers, "a new connection would cost more"
    assert health.status == 405 and taken.status == 200


def test_few_large_bodies_are_in_work_at_once(served: Served, tmp_path: Path) -> None:
    limits, large = Limits(large_at_once=1), b"x" * (LARGE_BODY + 1)
    state = service_over(served, tmp_path, limits=limits, rerank=RerankSettings(deadline_ms=200.0))

    async def scenario() -> list[int]:
        app = create_app(state.settings, state, [PART])
        async with state.large_bodies.place(Deadline(0.2)):
            statuses = [(await ask(app, "/echo", [body])).status for body in (large, large[1:])]
        return [*statuses, (await ask(app, "/echo", [large])).status]

    state.large.add("/echo")
    assert asyncio.run(scenario()) == [503, 200, 200]
    assert state.large_bodies.busy == state.admitted == state.buffered_bytes == 0


def test_while_stopping_only_health_answers(state: ServiceState) -> None:
    state.draining = True
    assert run(state, "/echo", [b""]).status == 503
    client = client_of(state, PART)
    assert client.get("/health").status_code == 200
    ready = client.get("/ready")
    assert ready.status_code == 503 and ready.json()["error"]["type"] == "stopping"


def test_keys_are_asked_for_except_where_all_may_enter(served: Served, tmp_path: Path) -> None:
    (search, line), (admin, second), (events, third) = (
        new_key("shop", "search"),
        new_key("ops", "admin"),
        new_key("site", "events"),
    )
    (tmp_path / "keys").write_text(f"{line}\n{second}\n{third}\n")
    state = service_over(served, tmp_path, api_keys=tmp_path / "keys")
    client = client_of(state, PART)
    expected = {
        ("POST", "/json", None): 401,
        ("POST", "/json", "wrong"): 401,
        ("POST", "/json", search): 200,
        ("POST", "/json", events): 403,
        ("POST", "/json", admin): 200,
        ("GET", "/teapot", None): 409,
        ("GET", "/teapot", "wrong"): 409,
        ("HEAD", "/teapot", None): 405,
        ("GET", "/teapotx", None): 401,
        ("GET", "/open/page", None): 404,
        ("GET", "/open", None): 401,
        ("POST", "/teapot", None): 401,
        ("POST", "/teapot", search): 405,
        ("POST", "/open/page", None): 401,
        ("POST", "/admin/reload", search): 403,
        ("POST", "/admin/reload", admin): 202,
        ("POST", "/admin/reload", None): 401,
    }
    for (method, path, key), status in expected.items():
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        answer = client.request(method, path, json={}, headers=headers)
        assert answer.status_code == status, (method, path, answer.text)
        if status == 401:
            assert ("an API key is needed" in answer.text) == (key is None)
            assert answer.headers["www-authenticate"] == "Bearer"
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"X-API-Key": search}).status_code == 200
    assert state.keys is not None and isinstance(state.keys, ApiKeys)


def test_without_keys_admin_is_closed(state: ServiceState) -> None:
    assert run(state, "/admin/reload", [b""]).status == 403


def test_an_unexpected_error_says_nothing_of_itself(state: ServiceState) -> None:
    answer = client_of(state, PART).get("/boom")
    assert answer.status_code == 500 and answer.json()["error"] == {"type": "internal", "message": "internal error"}


def test_errors_have_the_shape_of_their_path(state: ServiceState) -> None:
    client = client_of(state, PART)
    assert client.get("/teapot").json() == {"error": {"type": "conflict", "message": "somebody else was first"}}
    assert client.get("/echo").json() == {"detail": "method_not_allowed", "code": 405}
    assert client.get("/nowhere").json()["error"]["type"] == "not_found"


def test_a_request_keeps_the_id_it_came_with(state: ServiceState) -> None:
    client = client_of(state, PART)
    assert client.get("/health", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {
        client.get("/health", headers={"X-Request-Id": bad}).headers["x-request-id"] for bad in ("a b", "", "x" * 101)
    }
    assert len(made) == 3 and not made & {"a b", "", "x" * 101}


def test_a_route_that_parses_by_itself_is_refused(state: ServiceState) -> None:
    careless = APIRouter()
    careless.add_api_route("/careless", echo, methods=["POST"])
    with pytest.raises(ConfigError, match="/careless"):
        create_app(state.settings, state, [ServicePart(careless)])


def test_websockets_are_closed(state: ServiceState) -> None:
    sent: list[Any] = []

    async def scenario() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        app = create_app(state.settings, state)
        await app({"type": "websocket", "path": "/search", "headers": [], "query_string": b""}, receive, send)

    asyncio.run(scenario())
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_the_openapi_description_asks_for_a_key_where_one_is_needed(served: Served, tmp_path: Path) -> None:
    open_state = service_over(served, tmp_path)
    assert "security" not in client_of(open_state).get("/openapi.json").json()
    key, line = new_key("shop", "search")
    (tmp_path / "keys").write_text(line + "\n")
    state = service_over(served, tmp_path, api_keys=tmp_path / "keys")
    told = client_of(state).get("/openapi.json", headers={"Authorization": f"Bearer {key}"}).json()
    assert told["security"] == [{"key": []}]
    assert isinstance(ServiceSettings(index="x").limits, Limits)
