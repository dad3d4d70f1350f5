"""Request bodies read once, by a parser that can be trusted with anything."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BeforeValidator

from reranker.service.errors import ServiceError
from reranker.service.settings import Limits

_decoder = msgspec.json.Decoder()
LIMITS_KEY = "ssi.limits"
"""Where the guard puts the limits into the ASGI scope."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


AS_WHOLE = BeforeValidator(_whole)
"""Makes an integer what JSON means by it, ``3`` and ``3.0``, in a strict model too: ``Annotated[int, Field(ge=1),
AS_WHOLE]``. Limits stand before it, or they are missing from the OpenAPI description."""


def check_depth(value: Any, limit: int) -> None:
    """Raise `ServiceError` 422 if arrays and objects are nested deeper than ``limit``."""
    level = [value] if isinstance(value, list | dict) else []
    depth = 0
    while level:
        depth += 1
        if depth > limit:
            raise ServiceError(422, f"the JSON is nested deeper than {limit} levels", kind="too_deep")
        below: list[Any] = []
        for node in level:
            below.extend(
                one for one in (node.values() if isinstance(node, dict) else node) if isinstance(one, list | dict)
            )
        level = below


class JsonRequest(Request):
    """A request whose JSON is strict (no NaN, whole UTF-8) and of bounded depth."""

    async def json(self) -> Any:
        """Return the body's value.

        Raises
        ------
        ServiceError
            400 for what is no JSON, 422 for what is nested too deep or has too many values.
        """
        if not hasattr(self, "_json"):
            limits: Limits = self.scope.get(LIMITS_KEY) or Limits()
            limit, body = limits.max_json_depth, await self.body()
            if body.count(b",") >= limits.max_json_values:
                raise ServiceError(422, f"the JSON has more than {limits.max_json_values} values", kind="too_many")
            try:
                value = _decoder.decode(body)
            except RecursionError:
                raise ServiceError(422, f"the JSON is nested deeper than {limit} levels", kind="too_deep") from None
            except (msgspec.DecodeError, ValueError):
                raise ServiceError(400, "the body is no whole JSON text in UTF-8", kind="not_json") from None
            check_depth(value, limit)
            self._json = value
        return self._json


class JsonRoute(APIRoute):
    """A route that reads bodies by `JsonRequest`: give it to every ``APIRouter(route_class=JsonRoute)``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler around FastAPI's own."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return handle
