"""The search page: BM25 and the reranked order side by side, with what moved and why. Works offline, sets no cookie."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, Request, Response

from reranker.service.app import Part
from reranker.service.errors import COMMON_RESPONSES
from reranker.service.json_route import JsonRoute

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/page/rows.js": ("rows.js", "text/javascript; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
}
"""Path -> (file in ``static``, its type)."""
HEADERS = {
    # Nothing but our own files, and nobody may frame them: what a document's text holds can never run.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(route_class=JsonRoute, tags=["page"])


async def file(request: Request) -> Response:
    """Return one of the page's files."""
    name, kind = FILES[request.url.path]
    content = resources.files("reranker.service").joinpath("static", name).read_bytes()
    return Response(content, media_type=kind, headers=HEADERS)


for _path in FILES:
    router.add_api_route(_path, file, include_in_schema=False, responses=COMMON_RESPONSES)

PART = Part(router, public=tuple(FILES))
