"""HTTP parts shared by all routes: request context, strict JSON, and errors that never quote the request."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

import msgspec
import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response
from starlette.types import Receive

from reranker.deadline import Deadline
from reranker.errors import (
    ArtifactError,
    ConfigError,
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    InputError,
    RequestTooLarge,
)
from reranker.service.settings import Limits

_log = logging.getLogger(__name__)
CONTEXT_KEY = "ssi.context"
"""Key of the request's context in the ASGI scope, set by admission control."""
LIMITS_KEY = "ssi.limits"
"""Key of the service's limits in the ASGI scope, set by admission control."""

KINDS: dict[int, str] = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    409: "conflict",
    413: "too_large",
    415: "unsupported_encoding",
    422: "invalid",
    429: "overloaded",
    431: "headers_too_large",
    500: "internal",
    502: "engine_error",
    503: "unavailable",
}
"""Every HTTP status that an error can have -> default kind of the error."""

READING = frozenset({"GET", "HEAD"})
"""Methods that only read: for them public paths need no key. ``GET /`` is the search page, ``POST /`` ranks."""

ErrorShape = Callable[[int, str, str], Mapping[str, Any]]
"""``shape(status, kind, message)`` returns the JSON body of an error answer."""


class RequestBody(msgspec.Struct):
    """Base class of request bodies. They are decoded and validated in one pass; unknown fields are ignored."""


class ErrorDetail(BaseModel):
    """Kind and message of an error."""

    type: str
    message: str


class ErrorBody(BaseModel):
    """Body of error answers, except on paths that use the error format of another API."""

    error: ErrorDetail


def error_responses(body: type[BaseModel], *more: int) -> dict[int | str, dict[str, Any]]:
    """Return the error answers of a route for its OpenAPI description; ``more`` are further status codes."""
    statuses = sorted((400, 401, 403, 408, 413, 415, 422, 429, 431, 500, 502, 503, *more))
    return {status: {"model": body, "description": KINDS[status].replace("_", " ")} for status in statuses}


COMMON_RESPONSES = error_responses(ErrorBody, 404)
"""Error answers that any route may give: pass it to routers as ``responses=``."""


class ServiceError(HTTPException):
    """A request that is answered with an error.

    Parameters
    ----------
    status : int
        HTTP status, one of `KINDS`.
    message : str
        Names limits and rules, never a query, a document or a key.
    kind : str
        Name of the error from a bounded set, by default the one of the status.
    retry_after_s : float, optional
        Seconds, sent as ``Retry-After``.
    """

    def __init__(self, status: int, message: str, *, kind: str = "", retry_after_s: float | None = None) -> None:
        headers = None if retry_after_s is None else {"Retry-After": retry_after(retry_after_s)}
        super().__init__(status, message, headers)
        self.message = message
        self.kind = kind or KINDS[status]


def retry_after(seconds: float) -> str:
    """Return the value of a ``Retry-After`` header: whole seconds, rounded up, at least 1."""
    return str(max(1, math.ceil(seconds)))


def asks_for_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a browser asks for a page. Clients of an engine do not accept HTML."""
    return any(name == b"accept" and b"text/html" in value.lower() for name, value in headers)


def error_response(
    shape: ErrorShape | None,
    status: int,
    kind: str,
    message: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error answer in the format of its path, by default (None) ``{"error": {"type", "message"}}``."""
    body = {"error": {"type": kind, "message": message}} if shape is None else shape(status, kind, message)
    return Response(msgspec.json.encode(body), status, dict(headers or {}), "application/json")


def of_engine(error: EngineError) -> ServiceError:
    """Return the answer for an engine error. It does not contain the engine's message, which can quote the query."""
    if isinstance(error, EngineUnavailable):
        return _of_unavailable(error)
    if isinstance(error, EngineOverloaded):
        message = "the search engine is overloaded: send a smaller request, or try again later"
        return ServiceError(429, message, kind="engine_overloaded", retry_after_s=error.retry_after_s or 1.0)
    if isinstance(error, IndexMissing):
        return ServiceError(503, "the index does not exist in the search engine", kind="index_missing", retry_after_s=5)
    if isinstance(error, EngineAuthError):
        return ServiceError(502, "the search engine rejects the service's credentials", kind="engine_credentials")
    if isinstance(error, EngineRejected | RequestTooLarge):
        message = f"the search engine rejects this search body ({_shown(error)})"
        return ServiceError(400, message, kind="body_refused")
    return ServiceError(502, "the search engine failed", kind="engine_error")


def _of_unavailable(error: EngineUnavailable) -> ServiceError:
    """Return 502 if the engine answered but failed on this request, 503 if it cannot be reached."""
    if error.error_type and error.status not in (None, 200, 503):
        message = f"the search engine fails on this request ({_shown(error)}): simplify it, or send another one"
        return ServiceError(502, message, kind="engine_failed")
    message = "the search engine is unavailable: try again later"
    return ServiceError(503, message, kind="engine_unavailable", retry_after_s=error.retry_after_s or 1.0)


def _shown(error: EngineError) -> str:
    """Return the engine's name of an error if it is a plain identifier; anything else could quote the query."""
    return f"{error.error_type:.80}" if error.error_type.replace("_", "").isalnum() else "no name given"


def of_error(error: Exception) -> ServiceError:
    """Return the answer for any error; an unexpected error is logged with its class and traceback."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, EngineError):
        return of_engine(error)
    if isinstance(error, InputError | ConfigError):
        return ServiceError(422, "the request is invalid: see the limits and rules of its fields", kind="invalid")
    if isinstance(error, ArtifactError):
        return ServiceError(503, "no usable model is loaded", kind="model_unavailable", retry_after_s=5)
    _log.error("unexpected %s", type(error).__name__, extra={"ssi": {"error": type(error).__name__}}, exc_info=error)
    return ServiceError(500, "internal error")


def install_handlers(app: FastAPI, shape_of: Callable[[str], ErrorShape | None]) -> None:
    """Register handlers that answer every error in the format of its path, which ``shape_of`` returns."""

    async def answer(request: Request, error: Exception) -> Response:
        return response_to(error, shape_of(request.url.path))

    own = (EngineError, InputError, ConfigError, ArtifactError)
    for kind in (StarletteHTTPException, RequestValidationError, Exception, *own):
        app.add_exception_handler(kind, answer)


def response_to(error: Exception, shape: ErrorShape | None) -> Response:
    """Return the answer to a request that ended with an error, in the format of its path."""
    if isinstance(error, RequestValidationError):
        return error_response(shape, 422, KINDS[422], describe_invalid(error))
    if isinstance(error, StarletteHTTPException) and not isinstance(error, ServiceError):
        kind = KINDS.get(error.status_code, "error")
        return error_response(shape, error.status_code, kind, kind.replace("_", " "), error.headers)
    known = of_error(error)
    return error_response(shape, known.status_code, known.kind, known.message, known.headers)


def describe_invalid(error: RequestValidationError) -> str:
    """Return the first faults of a request by field and rule, without the values that were sent."""
    faults = []
    for fault in error.errors()[:5]:
        place = ".".join(str(part) for part in fault["loc"] if part != "body")[:200]
        faults.append(f"{place or 'body'}: {fault['msg']}")
    return "; ".join(faults)[:1000]


@dataclass(slots=True)
class RequestContext:
    """State of one request, created by admission control."""

    request_id: str
    deadline: Deadline
    key_name: str = ""
    """Name of the API key; empty without one."""
    notes: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Entries for the access log. Values must come from bounded sets, never from the request's content."""


async def context_of(request: Request) -> RequestContext:
    """Return the context of a request. A FastAPI dependency; `async`, because FastAPI runs others in a thread."""
    return cast("RequestContext", request.scope[CONTEXT_KEY])


Context = Annotated[RequestContext, Depends(context_of)]
B = TypeVar("B", bound=RequestBody)
DECODED_AT_ONCE = 64 * 1024
"""Largest body, in bytes, that is decoded on the event loop; larger ones are decoded in a thread."""
_any = msgspec.json.Decoder()
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A JSON string, terminated or not. Possessive quantifiers, and it always matches: time is linear in the bytes."""
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))


async def next_piece(receive: Receive) -> tuple[bytes, bool]:
    """Return the next piece of a body, and whether more may come; `ServiceError` 400 if it breaks off."""
    message = await receive()
    if message["type"] == "http.disconnect":
        # The server reports this both for a malformed (chunked) body and for a client that hung up. The former gets
        # this answer; the latter never sees it.
        raise ServiceError(400, "the body is incomplete or badly chunked", kind="broken_body")
    return message.get("body", b""), message.get("more_body", False)


def too_slow(limit_s: float) -> ServiceError:
    """Return the error for a body, or a piece of one, that does not arrive within a number of seconds."""
    return ServiceError(408, f"the body did not arrive within {limit_s:g} s")


def check_size(body: bytes, limits: Limits) -> None:
    """Raise `ServiceError` 422 for JSON with too many values or too many levels, before it is decoded.

    Values are counted by commas, lists and objects outside of strings. Compiled functions count the bytes; no Python
    code runs per value.
    """
    most = limits.max_json_values
    n_open = body.count(b"[") + body.count(b"{")
    if body.count(b",") < most and n_open <= min(most, limits.max_json_depth):
        return
    outside = _STRINGS.sub(b"", body)
    if outside.count(b",") >= most or outside.count(b"[") + outside.count(b"{") > most:
        raise ServiceError(422, f"the JSON has more than {most} values", kind="too_many")
    brackets = outside.translate(_BRACKETS, _NO_BRACKETS)
    steps = np.where(np.frombuffer(brackets, dtype=np.uint8) == ord("["), 1, -1)
    if len(steps) and int(np.cumsum(steps).max()) > limits.max_json_depth:
        raise _too_deep(limits)


def _too_deep(limits: Limits) -> ServiceError:
    return ServiceError(422, f"the JSON is nested deeper than {limits.max_json_depth} levels", kind="too_deep")


def decoded_json(body: bytes, limits: Limits, *decoders: msgspec.json.Decoder[Any]) -> Any:
    """Return the value of a JSON text.

    The first of the ``decoders`` whose type fits decodes it; without decoders any JSON value is accepted. Lone
    surrogates are accepted as by the engines. Raises `ServiceError` 400 if the text is not JSON, and 422 if it fits no
    type, is nested too deeply or has too many values.
    """
    check_size(body, limits)
    first: msgspec.ValidationError | None = None
    for decoder in decoders or (_any,):
        try:
            return _decoded(body, decoder)
        except msgspec.ValidationError as error:
            first = first or error
        except RecursionError:
            raise _too_deep(limits) from None
        except ValueError:
            raise ServiceError(400, "the body is not a complete JSON text in UTF-8", kind="not_json") from None
    # The message of msgspec names the position and the rule; with the types used here it never quotes a value.
    raise ServiceError(422, f"{first!s:.1000}", kind="invalid")


def _decoded(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Return the value of a JSON text; msgspec's decoder does not accept lone surrogates, Python's does."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse)
    try:
        return msgspec.convert(value, decoder.type)
    except UnicodeEncodeError:  # msgspec cannot compare such a text with another type
        raise msgspec.ValidationError("a text with half a character is in the place of another type") from None


def _refuse(name: str) -> None:
    """Raise `ValueError` for NaN and Infinity, which are not JSON, though Python's decoder knows them."""
    raise ValueError(f"{name} is not JSON")


async def receive(request: Request, *decoders: msgspec.json.Decoder[Any]) -> Any:
    """Return the decoded body of a request; raise the errors of `decoded_json`, or 415 for another Content-Type."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent != "application/json" and not sent.endswith("+json"):
        raise ServiceError(
            415, "the body is not declared as JSON: send Content-Type: application/json", kind="not_json"
        )
    body, limits = await request.body(), request.scope.get(LIMITS_KEY) or Limits()
    if len(body) <= DECODED_AT_ONCE:
        return decoded_json(body, limits, *decoders)
    return await asyncio.to_thread(decoded_json, body, limits, *decoders)


def body_of(kind: type[B], *other_forms: type[B]) -> Any:
    """Return the FastAPI dependency that gives a route its decoded body.

    ``kind`` is the type described in OpenAPI; bodies of the types ``other_forms`` are accepted too. Every body of the
    service is read through this function, and what is for the engine by `reranker.service.proxy`.
    """
    decoders = [msgspec.json.Decoder(form) for form in (kind, *other_forms)]

    async def read(request: Request) -> Any:
        return await receive(request, *decoders)

    read.kind = kind  # type: ignore[attr-defined]
    return Depends(read)


class JsonRoute(APIRoute):
    """A route whose body, if it has one, is decoded by `body_of`. Use it as ``APIRouter(route_class=JsonRoute)``.

    ``body_kind`` is the type of the body, or None for a route without one.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        kinds = [getattr(inner.call, "kind", None) for inner in self.dependant.dependencies]
        self.body_kind: type[RequestBody] | None = next((kind for kind in kinds if kind is not None), None)
        if self.body_field is not None:
            raise ConfigError(f"route {self.path!r} lets FastAPI read its body: use body_of()")
        if self.body_kind is not None:
            schema = {"$ref": f"#/components/schemas/{self.body_kind.__name__}"}
            content = {"application/json": {"schema": schema}}
            self.openapi_extra = {"requestBody": {"content": content, "required": True}}


def body_schemas(kinds: Iterable[type[RequestBody]]) -> dict[str, Any]:
    """Return the JSON schemas of request bodies and their nested types by name, for ``components/schemas``."""
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    return schemas
