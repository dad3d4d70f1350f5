"""Reads by which the engine's clients start, and read single documents: product check, index, documents, health.

Each of them is answered from one request that this module builds itself, so that nothing of a client's request reaches
the engine except checked values. Documents are read by a search for their ids: like every search it obeys the filter of
an alias, which the engine's own get requests ignore, and finds what the last refresh has made visible. All other
requests of the engine's API end here too, and are refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from reranker.engines.bodies import bounded
from reranker.engines.scripts import requests_of
from reranker.engines.vectors import FIELD_PREFIX
from reranker.engines.wire import quoted
from reranker.errors import EngineAuthError, EngineRejected, IndexMissing
from reranker.service.http import PathFamily, PlainRoute, RequestContext, ServiceError, decoded_json
from reranker.service.proxy import (
    WITHOUT_EFFECT,
    check_index,
    check_params,
    error_shape,
    of_request,
    product_headers,
    run_proxied,
    shown,
)
from reranker.service.search import encode
from reranker.service.state import ServiceState

MAX_DOCUMENTS = 1000
"""Documents in one ``_mget`` request."""
MAX_SELECTIONS = 10
"""Different ``_source`` and ``routing`` options in one ``_mget`` request: each of them needs a search of its own."""
MAX_ID_BYTES = 512
"""Longest id of a document that an engine accepts."""
SETTINGS_SHOWN = ("creation_date", "number_of_replicas", "number_of_shards", "provided_name", "uuid", "version")
"""Settings of the index that clients can read. Others, such as synonyms, are for the operator."""
STATUSES = ("green", "yellow", "red")
"""Values of a cluster's health, best first."""
_READING = ("GET", "HEAD")
_WRITING = ("POST", "PUT", "DELETE", "PATCH")
_SOURCE_PARAMETERS = ("_source", "_source_includes", "_source_excludes")
_WITHOUT_EFFECT = WITHOUT_EFFECT | {"cluster_manager_timeout", "local", "master_timeout", "realtime"}
_API = re.compile(r"_[a-z_]{1,40}")

router = APIRouter(route_class=PlainRoute, include_in_schema=False)


def _is_engine_path(path: str) -> bool:
    """Return whether a path has the form ``/_api``, ``/index`` or ``/index/_api``."""
    first, *more = path[1:].split("/")
    return first.startswith("_") or (bool(first) and (not more or more[0].startswith("_")))


ENGINE_PATHS = PathFamily(_is_engine_path, error_shape, large="_msearch")
"""Paths of the engine's API."""


def _answer(state: ServiceState, values: Any, status: int = 200) -> Response:
    """Return a JSON response that the engine's clients accept."""
    return Response(encode(values), status, product_headers(state), "application/json")


def _asked(
    state: ServiceState,
    context: RequestContext,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the engine's answer within the deadline. Runs in a worker thread."""
    engine, deadline = requests_of(state.engine), context.deadline
    content = None if body is None else bounded(body, deadline)
    return state.ask_engine(lambda: engine.request(method, path, content, params, deadline.timeout_s()))


# --- the product check and probes


@router.api_route("/", methods=["GET", "HEAD"])
async def engine_description(request: Request) -> Response:
    """Answer a ping, and describe the engine: name and version of the cluster, as clients check them."""
    state, context, _ = of_request(request)
    if request.method == "HEAD":
        return _answer(state, {})
    return _answer(state, await run_proxied(state, context, lambda: _description(state, context)))


def _description(state: ServiceState, context: RequestContext) -> dict[str, Any]:
    try:
        return _asked(state, context, "GET", "/")
    except (EngineRejected, EngineAuthError):
        # A role without the right to read it, or a build of the engine without this request.
        capabilities = state.engine.capabilities()
        version = {"number": capabilities.version}
        if not capabilities.product:
            version["distribution"] = capabilities.kind
        return {"name": "ssi", "cluster_name": "unknown", "cluster_uuid": "_na_", "version": version, "tagline": ""}


@router.get("/_cluster/health")
@router.get("/_cluster/health/{index}")
async def cluster_health(request: Request) -> Response:
    """Return the health of the cluster, or of the index. ``wait_for_status`` is compared, but never waited for."""
    state, context, index = of_request(request)
    params = dict(request.query_params)
    check_params(params, _WITHOUT_EFFECT | {"timeout", "wait_for_status"})
    wanted = params.get("wait_for_status", STATUSES[-1])
    if wanted not in STATUSES:
        raise ServiceError(400, f"wait_for_status must be one of {', '.join(STATUSES)}")

    def work() -> dict[str, Any]:
        if index:
            check_index(state, context, index)
        return _asked(state, context, "GET", f"/_cluster/health/{quoted(state.settings.index)}" if index else _HEALTH)

    values = await run_proxied(state, context, work)
    late = STATUSES.index(values.get("status", STATUSES[-1])) > STATUSES.index(wanted)
    return _answer(state, {**values, "timed_out": True} if late else values, 408 if late else 200)


_HEALTH = "/_cluster/health"
_COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "epoch": lambda health: str(int(time.time())),
    "timestamp": lambda health: time.strftime("%H:%M:%S", time.gmtime()),
    "cluster": lambda health: str(health.get("cluster_name", "-")),
    "status": lambda health: str(health.get("status", "-")),
    "node.total": lambda health: str(health.get("number_of_nodes", "-")),
    "node.data": lambda health: str(health.get("number_of_data_nodes", "-")),
    "shards": lambda health: str(health.get("active_shards", "-")),
    "pri": lambda health: str(health.get("active_primary_shards", "-")),
    "relo": lambda health: str(health.get("relocating_shards", "-")),
    "init": lambda health: str(health.get("initializing_shards", "-")),
    "unassign": lambda health: str(health.get("unassigned_shards", "-")),
    "pending_tasks": lambda health: str(health.get("number_of_pending_tasks", "-")),
    "max_task_wait_time": lambda health: f"{health.get('task_max_waiting_in_queue_millis', 0)}ms",
    "active_shards_percent": lambda health: f"{health.get('active_shards_percent_as_number', 0):.1f}%",
}
"""Column of ``_cat/health`` -> its value from ``_cluster/health``."""


@router.get("/_cat/health")
async def health_table(request: Request) -> Response:
    """Return the health of the cluster as one line of text, or as JSON."""
    state, context, _ = of_request(request)
    params = dict(request.query_params)
    check_params(params, _WITHOUT_EFFECT | {"format", "h", "v"})
    columns = params["h"].split(",") if params.get("h") else list(_COLUMNS)
    if not set(columns) <= _COLUMNS.keys():
        raise ServiceError(400, f"h must name columns of _cat/health: {', '.join(_COLUMNS)}")
    accepted = request.headers.get("accept", "")
    as_json = "json" in accepted and "text/plain" not in accepted
    values = await run_proxied(state, context, lambda: _asked(state, context, "GET", _HEALTH))
    row = {name: _COLUMNS[name](values) for name in columns}
    if params.get("format", "json" if as_json else "text") == "json":
        return _answer(state, [row])
    lines = [" ".join(row), " ".join(row.values())] if params.get("v", "false") != "false" else [" ".join(row.values())]
    return Response("".join(f"{line}\n" for line in lines), 200, product_headers(state), "text/plain")


# --- documents


def _source_option(params: Mapping[str, str]) -> Any:
    """Return the ``_source`` option of a search for the URL parameters of a get request."""
    source = params.get("_source", "true")
    if source in ("true", "false", ""):
        chosen: Any = source != "false"
    else:
        chosen = source.split(",")
    filters = {
        name: params[f"_source_{name}"].split(",") for name in ("includes", "excludes") if params.get(f"_source_{name}")
    }
    return filters if filters and chosen is True else chosen


def _found(
    state: ServiceState, context: RequestContext, ids: list[str], source: Any, routing: str | None
) -> dict[str, dict[str, Any]]:
    """Return id -> document, in the form of a get answer, for the ids that exist. Runs in a worker thread."""
    if not all(isinstance(name, str) and 0 < len(name.encode()) <= MAX_ID_BYTES for name in ids):
        raise ServiceError(400, f"an id must be a text of 1 to {MAX_ID_BYTES} bytes")
    # The same check as for a client's search: it bounds the values of ``source``.
    body = state.checked(
        {"query": {"ids": {"values": ids}}, "size": len(ids), "_source": source, "version": True}
        | {"seq_no_primary_term": True, "track_total_hits": False}
    )
    params = {"allow_partial_search_results": "false", **({} if routing is None else {"routing": routing})}
    answer = _asked(state, context, "POST", f"/{quoted(state.settings.index)}/_search", body, params)
    if answer.get("timed_out"):
        raise ServiceError(
            503, "the search engine did not read the documents in time", kind="deadline", retry_after_s=1
        )
    documents: dict[str, dict[str, Any]] = {}
    # An alias of several indexes can have the same id in each: the first index by name wins.
    for hit in sorted(answer["hits"]["hits"], key=lambda hit: str(hit["_index"])):
        visible = shown(hit)
        kept = {name: value for name, value in visible.items() if name not in ("_score", "sort", "_source")}
        content = {} if source is False else {"_source": visible.get("_source", {})}
        documents.setdefault(hit["_id"], {**kept, "found": True, **content})
    return documents


def _read_one(request: Request) -> tuple[ServiceState, RequestContext, Callable[[], dict[str, Any] | None]]:
    """Return the state, the context, and a function that reads the document of a request; None if it is missing."""
    state, context, index = of_request(request)
    params = dict(request.query_params)
    check_params(params, {*_WITHOUT_EFFECT, *_SOURCE_PARAMETERS, "routing"})
    name = request.path_params["id"]

    def work() -> dict[str, Any] | None:
        check_index(state, context, index)
        return _found(state, context, [name], _source_option(params), params.get("routing")).get(name)

    return state, context, work


@router.api_route("/{index}/_doc/{id:path}", methods=["GET", "HEAD"])
async def stored_document(request: Request) -> Response:
    """Return one document."""
    state, context, work = _read_one(request)
    values = await run_proxied(state, context, work)
    state.answered += 1
    missing = {"_index": state.settings.index, "_id": request.path_params["id"], "found": False}
    return _answer(state, missing if values is None else values, 404 if values is None else 200)


@router.api_route("/{index}/_source/{id:path}", methods=["GET", "HEAD"])
async def stored_source(request: Request) -> Response:
    """Return the source of one document."""
    state, context, work = _read_one(request)
    values = await run_proxied(state, context, work)
    state.answered += 1
    if values is None:
        missing = error_shape(404, "resource_not_found_exception", "the index has no document with this id")
        return _answer(state, missing, 404)
    return _answer(state, values.get("_source", {}))


@router.api_route("/_mget", methods=["GET", "POST"])
@router.api_route("/{index}/_mget", methods=["GET", "POST"])
async def stored_documents(request: Request) -> Response:
    """Return several documents by their ids."""
    state, context, index = of_request(request)
    params, content = dict(request.query_params), await request.body()
    check_params(params, {*_WITHOUT_EFFECT, *_SOURCE_PARAMETERS, "routing"})

    def work() -> dict[str, Any]:
        wanted = _wanted(decoded_json(content, state.settings.limits), index, params)
        for name in {name for name, *_ in wanted}:
            check_index(state, context, name)
        selections: dict[bytes, tuple[list[str], Any, str | None]] = {}
        for _, document_id, source, routing in wanted:
            chosen = selections.setdefault(_selection(source, routing), ([], source, routing))
            if document_id not in chosen[0]:
                chosen[0].append(document_id)
        if len(selections) > MAX_SELECTIONS:
            raise ServiceError(
                422,
                f"_mget has more than {MAX_SELECTIONS} different _source and routing options: send several requests",
            )
        found = {key: _found(state, context, *selection) for key, selection in selections.items()}
        missing = {"_index": state.settings.index, "found": False}
        return {
            "docs": [
                found[_selection(source, routing)].get(document_id, {**missing, "_id": document_id})
                for _, document_id, source, routing in wanted
            ]
        }

    values = await run_proxied(state, context, work)
    state.answered += 1
    return _answer(state, values)


def _selection(source: Any, routing: str | None) -> bytes:
    """Return a key for documents that one search can read."""
    return encode({"_source": source, "routing": routing})


def _wanted(body: Any, index: str, params: Mapping[str, str]) -> list[tuple[str, str, Any, str | None]]:
    """Return (index, id, ``_source`` option, routing) of each document of an ``_mget`` body."""
    documents = body.get("docs", body.get("ids")) if isinstance(body, dict) and len(body) == 1 else None
    if not isinstance(documents, list) or not 0 < len(documents) <= MAX_DOCUMENTS:
        raise ServiceError(
            400, f'_mget needs a body {{"ids": [...]}} or {{"docs": [...]}} of 1 to {MAX_DOCUMENTS} documents'
        )
    wanted = []
    for one in documents:
        options = one if isinstance(one, dict) and "docs" in body else {"_id": one}
        if not isinstance(options.get("_id"), str) or not options.keys() <= {"_index", "_id", "_source", "routing"}:
            raise ServiceError(
                400, "a document of _mget has other parts than _index, _id (a text), _source and routing"
            )
        if not isinstance(options.get("_index", index), str):
            raise ServiceError(400, "_index must be a text")
        routing = options.get("routing", params.get("routing"))
        if not isinstance(routing, str | None):
            raise ServiceError(400, "routing must be a text")
        source = options.get("_source", _source_option(params))
        wanted.append((options.get("_index", index), options["_id"], source, routing))
    return wanted


# --- the index, and everything else


def _refusal(state: ServiceState, method: str, api: str) -> ServiceError:
    """Return the refusal of a request that is not on the list, and count it."""
    state.refuse("not_allowed")
    return ServiceError(
        403,
        f"{method} {api} is not allowed: this service forwards searches and the reads that docs/guide/proxy.md lists; "
        "send other requests to the engine itself",
        kind="not_allowed",
    )


@router.api_route("/_{api:path}", methods=[*_READING, *_WRITING])
@router.api_route("/{index}/_{api:path}", methods=[*_READING, *_WRITING])
@router.api_route("/{index}", methods=list(_WRITING))
async def refused_request(request: Request) -> Response:
    """Refuse every other request of the engine's API."""
    state, path = of_request(request)[0], request.url.path
    if path in state.own:
        raise StarletteHTTPException(405)
    raise _refusal(state, request.method, next(filter(_API.fullmatch, path.split("/")), "of an index"))


@router.api_route("/{index}", methods=list(_READING))
async def index_description(request: Request) -> Response:
    """Return mapping, aliases and a few settings of the index, without the fields that this project adds."""
    state, context, index = of_request(request)
    params = dict(request.query_params)
    check_params(params, _WITHOUT_EFFECT)

    def work() -> dict[str, Any]:
        check_index(state, context, index)
        try:
            return _asked(state, context, "GET", f"/{quoted(state.settings.index)}")
        except IndexMissing:
            return {}

    described = await run_proxied(state, context, work)
    if not described:
        missing = error_shape(404, "index_not_found_exception", f"no such index [{state.settings.index}]")
        return _answer(state, missing, 404)
    return _answer(state, {name: _described(values, state.settings.index) for name, values in described.items()})


def _described(values: Mapping[str, Any], alias: str) -> dict[str, Any]:
    """Return what clients see of one concrete index."""
    mapping = {name: part for name, part in values.get("mappings", {}).items() if name in ("properties", "dynamic")}
    if "properties" in mapping:
        mapping["properties"] = _without_own(mapping["properties"])
    settings = values.get("settings", {}).get("index", {})
    return {
        "aliases": {name: {} for name in values.get("aliases", {}) if name == alias},
        "mappings": mapping,
        "settings": {"index": {name: settings[name] for name in SETTINGS_SHOWN if name in settings}},
    }


def _without_own(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in properties.items() if not name.startswith(FIELD_PREFIX)}
