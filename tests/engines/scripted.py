"""A small HTTP server that answers a `_bulk` (or any other path) with a script: the faults real engines show.

Usage::

    with ScriptedServer("elasticsearch") as server:
        server.script("_bulk", item_statuses([429, 200]), whole(503), OK)
        engine = open_engine(server.spec)
        ...
        assert server.stored == {...}

Each answer is a function of the request, so that a bulk answer fits what was sent. Once a script is used up, the
server behaves: every item is stored. `stored` holds what the server acknowledged with 200/201 *and* what it stored
without the client hearing of it (`applied`), so that a test can account for every document.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """One request as the server received it."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def ops(self) -> list[tuple[str, dict[str, Any], dict[str, Any] | None]]:
        """Return (action, metadata, source) of each operation of a bulk body."""
        lines = iter([json.loads(line) for line in self.body.split(b"\n") if line.strip()])
        parsed = []
        for line in lines:
            ((action, meta),) = line.items()
            parsed.append((action, meta, None if action == "delete" else next(lines)))
        return parsed


@dataclass(frozen=True)
class Answer:
    """What goes back: status, body and how the connection is treated.

    ``mode``: ``normal``; ``cut`` (Content-Length promises more than is sent, then an orderly close); ``reset``
    (RST after ``body``, which may be empty); ``hang`` (nothing for ``seconds``, then a close); ``drip`` (one byte
    of the body every ``seconds``), ``drip_headers`` (of the headers).
    """

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    mode: str = "normal"
    seconds: float = 0.0
    product: bool = True


Script = Callable[["ScriptedServer", Request], Answer]


def json_answer(status: int, value: Any, **headers: str) -> Answer:
    """Return a JSON answer; header names are written with underscores."""
    return Answer(status, json.dumps(value).encode(), {name.replace("_", "-"): text for name, text in headers.items()})


def error_body(status: int, kind: str, reason: str = "scripted") -> dict[str, Any]:
    """Return an engine's error body."""
    cause = {"type": kind, "reason": reason}
    return {"error": {"root_cause": [cause], **cause}, "status": status}


ERROR_TYPES = {
    400: "document_parsing_exception",
    403: "security_exception",
    404: "document_missing_exception",
    409: "version_conflict_engine_exception",
    429: "es_rejected_execution_exception",
    503: "unavailable_shards_exception",
}


def _item(action: str, identifier: str, status: int, kind: str | None = None) -> dict[str, Any]:
    item: dict[str, Any] = {"_index": "docs", "_id": identifier, "status": status}
    if status < 300:
        item.update({"_version": 1, "result": "created", "_seq_no": 0, "_primary_term": 1})
    else:
        item["error"] = {"type": kind or ERROR_TYPES.get(status, "exception"), "reason": f"scripted {status}"}
    return {action: item}


def _bulk(server: ScriptedServer, request: Request, statuses: Sequence[int], kind: str | None = None) -> list[Any]:
    """Apply the operations whose status (cycled) is good and return the items of the answer."""
    items = []
    for place, (action, meta, source) in enumerate(request.ops()):
        status = statuses[place % len(statuses)]
        if status < 300:
            server.apply(action, meta, source)
        items.append(_item(action, meta["_id"], status, kind))
    return items


def _bulk_body(items: list[Any]) -> dict[str, Any]:
    bad = any(value["status"] >= 300 for item in items for value in item.values())
    return {"took": 1, "errors": bad, "items": items}


def item_statuses(statuses: Sequence[int], kind: str | None = None) -> Script:
    """Return a 200 whose items carry ``statuses``, repeated over the operations; the good ones are stored."""

    def answer(server: ScriptedServer, request: Request) -> Answer:
        return json_answer(200, _bulk_body(_bulk(server, request, statuses, kind)))

    return answer


OK: Script = item_statuses([201])


def whole(status: int, kind: str | None = None, retry_after: str | None = None, text: bytes | None = None) -> Script:
    """Return an answer of ``status`` to the whole request; nothing is stored; ``text`` replaces the JSON."""
    kinds = {401: "security_exception", 413: "", 404: "index_not_found_exception", **ERROR_TYPES}
    headers = {} if retry_after is None else {"Retry-After": retry_after}

    def answer(server: ScriptedServer, request: Request) -> Answer:
        if text is not None:
            return Answer(status, text, {**headers, "Content-Type": "text/html"}, product=False)
        body = error_body(status, kind or kinds.get(status, "exception"))
        return Answer(status, json.dumps(body).encode(), headers)

    return answer


def _after_apply(change: Callable[[bytes], Answer]) -> Script:
    """Store every operation, then spoil the answer."""

    def answer(server: ScriptedServer, request: Request) -> Answer:
        return change(json.dumps(_bulk_body(_bulk(server, request, [201]))).encode())

    return answer


def missing_items(keep: float = 0.5) -> Script:
    """Return a 200 that names only the first part of the items, although all were stored."""

    def change(body: bytes) -> Answer:
        value = json.loads(body)
        value["items"] = value["items"][: int(len(value["items"]) * keep)]
        return json_answer(200, value)

    return _after_apply(change)


def wrong_order() -> Script:
    """Return a 200 whose items come in reverse."""

    def change(body: bytes) -> Answer:
        value = json.loads(body)
        value["items"].reverse()
        return json_answer(200, value)

    return _after_apply(change)


def _half(body: bytes, mode: str) -> Answer:
    """Return half a body under a Content-Length that promises all of it."""
    return Answer(200, body[: len(body) // 2], {"Content-Length": str(len(body))}, mode)


FAULTS: dict[str, Script] = {
    "item_429": item_statuses([429, 201, 201]),
    "item_503": item_statuses([201, 503]),
    "item_400": item_statuses([201, 201, 400]),
    "item_mix": item_statuses([201, 429, 503, 201]),
    "item_409": item_statuses([409, 201]),
    "item_403": item_statuses([201, 403]),
    "item_block_429": item_statuses([429], "cluster_block_exception"),
    "all_429_retry_after": whole(429, retry_after="1"),
    "all_429_block": whole(429, "cluster_block_exception"),
    "all_400": whole(400, "illegal_argument_exception"),
    "all_401": whole(401),
    "all_403": whole(403),
    "all_404": whole(404, "index_not_found_exception"),
    "all_408": whole(408),
    "all_413": whole(413),
    "all_500": whole(500, "exception"),
    "all_502_html": whole(502, text=b"<html><body><h1>502 Bad Gateway</h1></body></html>"),
    "all_503": whole(503),
    "all_504": whole(504),
    "ok_html": whole(200, text=b"<html>maintenance</html>"),
    "cut_json": _after_apply(lambda body: Answer(200, body[: len(body) // 2])),
    "half_closed_body": _after_apply(lambda body: _half(body, "cut")),
    "reset_after_half": _after_apply(lambda body: _half(body, "reset")),
    "reset_at_once": lambda server, request: Answer(mode="reset", body=b"", status=0),
    "hang": lambda server, request: Answer(mode="hang", seconds=server.hang_s),
    "hang_after_apply": _after_apply(lambda body: Answer(mode="hang", seconds=2.0)),
    "drip": _after_apply(lambda body: Answer(200, body, mode="drip", seconds=0.05)),
    "missing_items": missing_items(),
    "wrong_order": wrong_order(),
    "json_array": whole(200, text=b"[]"),
    "json_null_items": _after_apply(lambda body: json_answer(200, {"took": 1, "errors": False, "items": None})),
    "missing_product": _after_apply(lambda body: Answer(200, body, product=False)),
}
"""Name of a fault → script. Those made by `_after_apply` store the documents although the answer is unusable."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up, which is what these tests are about."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class ScriptedServer:
    """A threaded HTTP server on the loopback that plays scripts, then behaves like a small engine.

    Parameters
    ----------
    product : {'elasticsearch', 'opensearch'}
        Whose headers it sends.
    hang_s : float
        How long the ``hang`` fault lasts.
    """

    def __init__(self, product: str = "elasticsearch", hang_s: float = 3.0) -> None:
        self.product = product
        self.hang_s: float = hang_s
        self.requests: list[Request] = []
        self.stored: dict[str, dict[str, Any] | None] = {}
        self._scripts: dict[str, list[Script]] = {}
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def spec(self) -> str:
        """Engine spec for `reranker.engines.open_engine`."""
        return f"{self.product}:{self.url}"

    def script(self, path_end: str, *answers: Script) -> None:
        """Queue answers for requests whose path ends with ``path_end``."""
        with self._lock:
            self._scripts.setdefault(path_end, []).extend(answers)

    def calls(self, path_end: str = "_bulk") -> int:
        """Return how many requests ended with ``path_end``."""
        return sum(request.path.endswith(path_end) for request in self.requests)

    def apply(self, action: str, meta: dict[str, Any], source: dict[str, Any] | None) -> None:
        """Store one operation of a bulk."""
        with self._lock:
            if action == "delete":
                self.stored.pop(meta["_id"], None)
            elif action == "update" and source is not None:
                self.stored[meta["_id"]] = {**(self.stored.get(meta["_id"]) or {}), **source["doc"]}
            else:
                self.stored[meta["_id"]] = source

    def answer(self, request: Request) -> Answer:
        """Return the scripted answer of a request, or the well-behaved one."""
        with self._lock:
            self.requests.append(request)
            queue = next((q for end, q in self._scripts.items() if request.path.endswith(end) and q), None)
            script = queue.pop(0) if queue else None
        return script(self, request) if script else self._behave(request)

    def _behave(self, request: Request) -> Answer:
        if request.path.endswith("/_bulk"):
            return OK(self, request)
        if request.path.endswith("/_count"):
            return json_answer(200, {"count": len(self.stored), "_shards": {"total": 1, "successful": 1, "failed": 0}})
        if request.path.endswith("/_refresh"):
            return json_answer(200, {"_shards": {"total": 1, "successful": 1, "failed": 0}})
        if request.path.startswith("/_nodes"):
            version = "8.19.0" if self.product == "elasticsearch" else "2.19.1"
            return json_answer(200, {"nodes": {"n": {"version": version, "modules": [], "plugins": []}}})
        name = request.path.strip("/").split("/")[0]
        if request.path.count("/") == 1 or any(part in request.path for part in ("/_alias", "/_settings", "/_mapping")):
            return json_answer(200, {name: {"aliases": {}, "mappings": {"properties": {}}, "settings": {}}})
        return json_answer(400, error_body(400, "illegal_argument_exception", f"not scripted: {request.path}"))

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - a class, not a decision
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One segment an answer: without this, Nagle and delayed ACKs cost 40 ms a request.
        wbufsize = 1 << 16

        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            split = urlsplit(self.path)
            params = {name: values[-1] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, unquote(split.path), params, headers, body)
            self._send(server.answer(request))

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _handle  # noqa: N815

        def _send(self, answer: Answer) -> None:
            if answer.mode == "hang":
                time.sleep(answer.seconds)
                self._drop()
                return
            if answer.status:
                self._head(answer)
            try:
                self._body(answer)
            except OSError:  # the client gave up, as it should
                self.close_connection = True
                return
            if answer.mode in ("cut", "reset"):
                self._drop(reset=answer.mode == "reset")

        def _head(self, answer: Answer) -> None:
            self.send_response(answer.status)
            headers = {"Content-Type": "application/json", "Content-Length": str(len(answer.body)), **answer.headers}
            if answer.product and server.product == "elasticsearch":
                headers["X-Elastic-Product"] = "Elasticsearch"
            if answer.mode == "drip_headers":
                self.flush_headers()
                self._drip("".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode(), answer.seconds)
                headers = {}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def _drip(self, data: bytes, pause_s: float) -> None:
            for place in range(len(data)):
                self.wfile.write(data[place : place + 1])
                self.wfile.flush()
                time.sleep(pause_s)

        def _body(self, answer: Answer) -> None:
            if self.command == "HEAD":
                return
            if answer.mode == "drip":
                self._drip(answer.body, answer.seconds)
            else:
                self.wfile.write(answer.body)
            self.wfile.flush()

        def _drop(self, reset: bool = False) -> None:
            self.close_connection = True
            if reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

        def log_message(self, format: str, *args: object) -> None:
            """Be silent."""

    return Handler
