"""What all routes share of HTTP: context, strict JSON, and errors that repeat nothing of the request."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response

from reranker.engines.base import Deadline
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
from reranker.formats import is_deeper
from reranker.service.settings import Limits

_log = logging.getLogger(__name__)
CONTEXT_KEY = "ssi.context"
LIMITS_KEY = "ssi.limits"
"""Where admission control puts the request's context, and the limits, into the ASGI scope."""

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
"""Every status that an error can have, and its kind where nothing else was said."""

ErrorShape = Callable[[int, str, str], Mapping[str, Any]]
"""``shape(status, kind, message)`` returns the JSON body of an error."""


class StrictRequest(BaseModel):
    """A request body. Fields that are not named are ignored: other clients of a family send more."""

    model_config = ConfigDict(strict=True, extra="ignore")


class ErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class ErrorBody(BaseModel):
    """The body of every error, except on paths that speak another family's language."""

    error: ErrorDetail


def error_responses(body: type[BaseModel], *more: int) -> dict[int | str, dict[str, Any]]:
    """Return what a route may answer besides success, for its OpenAPI description."""
    statuses = sorted((400, 401, 403, 408, 413, 415, 422, 429, 431, 500, 502, 503, *more))
    return {status: {"model": body, "description": KINDS[status].replace("_", " ")} for status in statuses}


COMMON_RESPONSES = error_responses(ErrorBody, 404)
"""What any route may answer besides success: pass to routers as ``responses=``."""


class ServiceError(HTTPException):
    """A request that is answered with an error.

    ``status`` is one of `KINDS`; ``message`` names limits and rules, never a query, a document or a key; ``kind`` is a
    bounded name of the error, by default that of the status; ``retry_after_s`` is sent as ``Retry-After``.
    """

    def __init__(self, status: int, message: str, *, kind: str = "", retry_after_s: float | None = None) -> None:
        headers = None if retry_after_s is None else {"Retry-After": retry_after(retry_after_s)}
        super().__init__(status, message, headers)
        self.message = message
        self.kind = kind or KINDS[status]


def retry_after(seconds: float) -> str:
    """Return the value of a ``Retry-After`` header: whole seconds, at least 1."""
    return str(max(1, math.ceil(seconds)))


def error_response(
    shapes: Mapping[str, ErrorShape], path: str, status: int, kind: str, message: str,
    headers: Mapping[str, str] | None = None,
) -> Response:  # fmt: skip
    """Return the answer to an error in the shape of its path; ``{"error": {"type", "message"}}`` where it has none."""
    shape = shapes.get(path)
    body = {"error": {"type": kind, "message": message}} if shape is None else shape(status, kind, message)
    return Response(msgspec.json.encode(body), status, dict(headers or {}), "application/json")


def of_engine(error: EngineError) -> ServiceError:
    """Return the answer to an engine that failed, without the engine's own words: they can repeat the query."""
    if isinstance(error, EngineUnavailable | EngineOverloaded):
        message = "the search engine is not available now; try again"
        return ServiceError(503, message, kind="engine_unavailable", retry_after_s=error.retry_after_s or 1.0)
    if isinstance(error, IndexMissing):
        return ServiceError(503, "the index does not exist in the search engine", kind="index_missing", retry_after_s=5)
    if isinstance(error, EngineAuthError):
        return ServiceError(502, "the search engine refuses the service's credentials", kind="engine_credentials")
    if isinstance(error, EngineRejected | RequestTooLarge):
        name = error.error_type if error.error_type.replace("_", "").isalnum() else "no name given"
        return ServiceError(400, f"the search engine does not take this search body ({name:.80})", kind="body_refused")
    return ServiceError(502, "the search engine failed", kind="engine_error")


def of_error(error: Exception) -> ServiceError:
    """Return the answer to any error; one that nobody expected is logged by its class and place."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, EngineError):
        return of_engine(error)
    if isinstance(error, InputError | ConfigError):
        return ServiceError(422, "the request cannot be used: see the limits and rules of its fields", kind="invalid")
    if isinstance(error, ArtifactError):
        return ServiceError(503, "no usable model is loaded", kind="model_unavailable", retry_after_s=5)
    _log.error("unexpected %s", type(error).__name__, extra={"ssi": {"error": type(error).__name__}}, exc_info=error)
    return ServiceError(500, "internal error")


def install_handlers(app: FastAPI, shapes: Mapping[str, ErrorShape]) -> None:
    """Answer every error in the shape of its path."""

    async def answer(request: Request, error: Exception) -> Response:
        path = request.url.path
        if isinstance(error, RequestValidationError):
            return error_response(shapes, path, 422, KINDS[422], describe_invalid(error))
        if isinstance(error, StarletteHTTPException) and not isinstance(error, ServiceError):
            kind = KINDS.get(error.status_code, "error")
            return error_response(shapes, path, error.status_code, kind, kind.replace("_", " "), error.headers)
        known = of_error(error)
        return error_response(shapes, path, known.status_code, known.kind, known.message, known.headers)

    own = (EngineError, InputError, ConfigError, ArtifactError)
    for kind in (StarletteHTTPException, RequestValidationError, Exception, *own):
        app.add_exception_handler(kind, answer)


def describe_invalid(error: RequestValidationError) -> str:
    """Return the first faults of a request by place and rule, without the values that were sent."""
    faults = []
    for fault in error.errors()[:5]:
        place = ".".join(str(part) for part in fault["loc"] if part != "body")[:200]
        faults.append(f"{place or 'body'}: {fault['msg']}")
    return "; ".join(faults)[:1000]


@dataclass(slots=True)
class RequestContext:
    """One request, as admission control saw it; ``notes`` of a bounded kind go into the access log."""

    request_id: str
    deadline: Deadline
    key_name: str = ""
    notes: dict[str, str | int | float | bool] = field(default_factory=dict)


async def context_of(request: Request) -> RequestContext:
    """Return the context of a request (a FastAPI dependency; `async` spares it a thread)."""
    return cast("RequestContext", request.scope[CONTEXT_KEY])


Context = Annotated[RequestContext, Depends(context_of)]
_decoder = msgspec.json.Decoder()


AS_WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
"""Makes ``3.0`` an integer in a strict model, too; limits stand before it, to be in the OpenAPI description."""


def decoded(body: bytes, limits: Limits) -> Any:
    """Return the value of a JSON text; `ServiceError` 400 for none, 422 for one too deep or of too many values."""
    limit = limits.max_json_depth
    if body.count(b",") >= limits.max_json_values:
        raise ServiceError(422, f"the JSON has more than {limits.max_json_values} values", kind="too_many")
    too_deep = ServiceError(422, f"the JSON is nested deeper than {limit} levels", kind="too_deep")
    try:
        value = _decoder.decode(body)
    except RecursionError:
        raise too_deep from None
    except (msgspec.DecodeError, ValueError):
        raise ServiceError(400, "the body is no whole JSON text in UTF-8", kind="not_json") from None
    if is_deeper(value, limit):
        raise too_deep
    return value


class JsonRequest(Request):
    """A request whose JSON is strict (no NaN, whole UTF-8) and of bounded depth."""

    async def json(self) -> Any:
        """Return the body's value; errors as `decoded`."""
        if not hasattr(self, "_json"):
            self._json = decoded(await self.body(), self.scope.get(LIMITS_KEY) or Limits())
        return self._json


class JsonRoute(APIRoute):
    """A route that reads bodies by `JsonRequest`: give it to every ``APIRouter(route_class=JsonRoute)``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler around FastAPI's own."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return handle


class PlainRoute(JsonRoute):
    """A route whose function takes the request alone and returns the response.

    FastAPI's reading of parameters, at every request, costs as much as the rest of such a function.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function itself."""

        async def handle(request: Request) -> Response:
            return cast("Response", await self.endpoint(JsonRequest(request.scope, request.receive)))

        return handle
