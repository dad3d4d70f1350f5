"""The engine's ``_search``, ``_msearch`` and ``_count`` as served by this service, so that its clients need no change.

A request is handled in one of three ways. A search for one text, ordered by score, is reranked. Another search or a
count of the service's index is forwarded, and answered with the engine's answer. Everything else is refused: other
indexes, and whatever `reranker.service.gate` does not allow, so that clients can only search.
`reranker.service.client_reads` has the other requests of clients. docs/guide/proxy.md has the table.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.background import BackgroundTask

from reranker.engines.bodies import PLACE, SCORING_PARTS, TEXT_CLAUSES, bounded
from reranker.engines.query_syntax import has_syntax
from reranker.engines.scripts import requests_of
from reranker.engines.vectors import FIELD_PREFIX
from reranker.engines.wire import copied
from reranker.errors import EngineError
from reranker.records import RankedHit, Reason, ReasonKind
from reranker.rerank.ranking import why_not
from reranker.service.gate import CheckedBody
from reranker.service.http import (
    CONTEXT_KEY,
    PlainRoute,
    RequestContext,
    ServiceError,
    decoded_json,
    of_error,
)
from reranker.service.modes import SearchCall, SearchOutcome
from reranker.service.search import MAX_QUERY_CHARS, Searched, carry_out_search, encode, keep
from reranker.service.state import ServiceState

IN_BODY: Mapping[str, Callable[[str], Any]] = {
    "from": int,
    "size": int,
    "timeout": str,
    "_source": lambda text: _flag(text) if text in ("true", "false") else text.split(","),
    "track_total_hits": lambda text: int(text) if text.isdigit() else _flag(text),
}
"""URL parameters that override a part of the body -> parser of the value."""
WITHOUT_EFFECT = frozenset(
    {
        "allow_no_indices",
        "allow_partial_search_results",
        "batched_reduce_size",
        "ccs_minimize_roundtrips",
        "error_trace",
        "expand_wildcards",
        "human",
        "ignore_throttled",
        "ignore_unavailable",
        "index",
        "max_concurrent_searches",
        "max_concurrent_shard_requests",
        "pre_filter_shard_size",
        "preference",
        "pretty",
        "request_cache",
        "rest_total_hits_as_int",
    }
)
"""URL parameters that are ignored: they have no effect on one existing index, or are handled elsewhere."""
PASSED_ON = frozenset(
    {
        "_source_excludes",
        "_source_includes",
        "analyze_wildcard",
        "analyzer",
        "default_operator",
        "df",
        "explain",
        "docvalue_fields",
        "filter_path",
        "lenient",
        "q",
        "routing",
        "search_type",
        "seq_no_primary_term",
        "sort",
        "stored_fields",
        "terminate_after",
        "track_scores",
        "typed_keys",
        "version",
    }
)
"""URL parameters that only the engine implements: a search with one of them is forwarded and keeps its order."""
_KNOWN_PARAMS = IN_BODY.keys() | WITHOUT_EFFECT | PASSED_ON
FORWARDED = "forwarded"
"""Label of `Metrics.searches` for searches that the engine answered itself."""
MAX_SEARCHES = 100
"""Searches in one ``_msearch`` request."""
T = TypeVar("T")
_PARAMETER = re.compile(r"[a-z_]{1,40}")
_INDEX = re.compile(r"[a-z0-9][a-z0-9._-]{0,80}")
AT_ONCE = 4
"""Searches of one ``_msearch`` that run concurrently; the remaining threads stay free for other requests."""

router = APIRouter(route_class=PlainRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class ClientSearch:
    """One validated search of a client of the engine."""

    body: CheckedBody
    """The client's body without ``ext.ubi``, for the engine."""
    params: Mapping[str, str]
    """URL parameters that are forwarded to the engine."""
    ubi: Mapping[str, Any]
    """``ext.ubi`` of the client's body."""
    template: CheckedBody
    """The body with ``{{query}}`` in place of the query text."""
    text: str
    """The query text; empty if none was found."""
    reason: Reason | None
    """Why the search is forwarded instead of reranked; None if ``template`` is reranked."""


def read_search(body: Any, params: Mapping[str, str], check: Callable[[Any], CheckedBody]) -> ClientSearch:
    """Return the search given by a client's body and URL parameters.

    Raises `ServiceError` 400 if it is not a valid search, and 403 or 422 if ``check`` refuses it.
    """
    if not isinstance(body, dict):
        raise ServiceError(400, "the search body is not a JSON object")
    params = {name: value for name, value in params.items() if (name, value) != ("search_type", "query_then_fetch")}
    check_params(params, _KNOWN_PARAMS)
    try:
        body = {**body, **{name: IN_BODY[name](params[name]) for name in params.keys() & IN_BODY.keys()}}
    except ValueError:
        raise ServiceError(400, f"a URL parameter among {', '.join(IN_BODY)} has an invalid value") from None
    check(body)
    ext = dict(body.pop("ext", {}))
    ubi = ext.pop("ubi", {})
    body |= {"ext": ext} if ext else {}
    passed = {name: value for name, value in params.items() if name in PASSED_ON}
    if not body.keys() & {"aggs", "aggregations", "suggest"}:
        passed.pop("typed_keys", None)  # without aggregations or suggesters it has no effect
    template = copied(body)
    text, why = take_text(template, ubi.get("user_query"))
    if passed:
        why = f"{', '.join(sorted(passed))} in the URL"
    elif body.get("sort") not in (None, [], "_score", ["_score"]) or "stored_fields" in body:
        # This includes sorting by the score first, since search_after continues in the engine's order. Stored fields
        # can hide the ids.
        why = "sort or stored_fields"
    reason = Reason(ReasonKind.NOT_RERANKABLE, why) if why else why_not(body)
    return ClientSearch(CheckedBody(body), passed, ubi, CheckedBody(template), text, reason)


def check_params(params: Mapping[str, str], allowed: Collection[str]) -> None:
    """Raise `ServiceError` 400 if a URL parameter is not allowed. The message names those that are plain words."""
    if unknown := sorted(name for name in params if name not in allowed):
        shown = ", ".join(name for name in unknown if _PARAMETER.fullmatch(name)) or f"{len(unknown)} of them"
        raise ServiceError(
            400,
            f"URL parameters that this service does not forward: {shown}; docs/guide/proxy.md has the list. "
            "Remove them, or send the request to the engine itself",
        )


def _flag(text: str) -> bool:
    if text not in ("true", "false", ""):
        raise ValueError
    return text != "false"


def take_text(body: dict[str, Any], user_query: Any = None) -> tuple[str, str]:
    """Replace the query text in a body by ``{{query}}``; return (query text, "") or ("", reason).

    The query text is ``user_query`` if given. Otherwise it is the text of all clauses that contribute to the score, if
    they agree apart from surrounding quotes and asterisks. If all of these clauses read it by a syntax, quotes and
    asterisks are part of the text. Clauses that only filter are ignored.
    """
    places = [*_places(body.get("query")), *_places(body.get("retriever"))]
    around = " \t" if all(reads_syntax for _, _, reads_syntax in places) else ' \t*"'
    texts = {node[key].strip(around) for node, key, _ in places} - {""}
    if isinstance(user_query, str) and user_query.strip():
        texts = {user_query.strip()}
    if not texts:
        return "", "no text"
    if len(texts) > 1:
        return "", "several texts: move filters to filter clauses, or send the query text in ext.ubi.user_query"
    text = texts.pop()
    if len(text) > MAX_QUERY_CHARS or _holds(body, PLACE):
        return "", f"a text of more than {MAX_QUERY_CHARS} characters, or {PLACE} in the body"
    for node, key, _ in places:
        node[key] = node[key].replace(text, PLACE)
    return (text, "") if _holds(body, PLACE) else ("", "no clause has the text of ext.ubi.user_query")


def _holds(node: Any, text: str) -> bool:
    if isinstance(node, str):
        return text in node
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return any(_holds(child, text) for child in inner)


def _places(query: Any) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Yield (object, key, whether it has a syntax) of every text by which a query scores documents."""
    for node in query if isinstance(query, list) else [query]:
        for name, part in node.items() if isinstance(node, dict) else ():
            if not isinstance(part, dict):
                continue
            if name in TEXT_CLAUSES:
                for key in ["query"] if isinstance(part.get("query"), str) else list(part):
                    if isinstance(value := part[key], str):
                        yield part, key, has_syntax(name, part)
                    elif isinstance(value, dict) and isinstance(value.get("query"), str):
                        yield value, "query", False
            for inner in SCORING_PARTS.get(name, ()):
                yield from _places(part.get(inner))


class Answer(NamedTuple):
    """An answer in the engine's format."""

    values: dict[str, Any]
    reranked: bool
    """False if the hits are in the engine's order."""
    searched: Searched | None = None
    """Argument for `keep`; None for a forwarded search."""


def answered(state: ServiceState, context: RequestContext, sent: ClientSearch) -> Answer:
    """Return the answer to a search. Runs in a worker thread."""
    if sent.reason:
        return Answer(with_shown_hits(passed_on(state, context, "_search", sent)), reranked=False)
    ids = {name: value for name, value in sent.ubi.items() if isinstance(value, str) and 0 < len(value) <= 100}
    visitor, query_id = ids.get("client_id"), ids.get("query_id", str(uuid.uuid4()))
    call = SearchCall(
        query=sent.text,
        body=sent.template,
        size=None,
        first=None,
        explain=False,
        version=None,
        off=False,
        session_id=ids.get("session_id", visitor),
        client_id=visitor,
        deadline=context.deadline,
    )
    searched = carry_out_search(state, context, call, query_id)
    answer = proxied_answer(searched.outcome, sent.body)
    if sent.ubi:
        answer["ext"] = {"ubi": {"query_id": query_id}}
    return Answer(answer, searched.outcome.page.reranked, searched)


def passed_on(state: ServiceState, context: RequestContext, api: str, sent: ClientSearch) -> dict[str, Any]:
    """Return the engine's own answer; the request to the engine is bounded by the deadline."""
    engine, deadline, path = requests_of(state.engine), context.deadline, f"/{state.settings.index}/{api}"
    body = sent.body if api == "_count" else bounded(sent.body, deadline)
    return state.ask_engine(lambda: engine.request("POST", path, body, sent.params or None, deadline.timeout_s()))


def proxied_answer(outcome: SearchOutcome, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a page in the engine's format: the engine's own answer if the page is in its order.

    In a reranked page, ``_score`` is the score that ordered the hit: the model's, or the engine's for hits beyond the
    window. ``max_score`` is the highest score of the window.
    """
    page = outcome.page
    if page.engine_answer is not None:
        return with_shown_hits(page.engine_answer)

    def hit_of(hit: RankedHit) -> dict[str, Any]:
        values = {"_index": hit.index, "_id": hit.id, **hit.raw, "_score": hit.score, "_source": hit.source}
        return shown({name: values[name] for name in values if name != "_source" or body.get(name) is not False})

    values: dict[str, Any] = {"max_score": page.max_score, "hits": [hit_of(hit) for hit in page.hits]}
    if body.get("track_total_hits") is not False:
        values["total"] = {"value": page.total, "relation": "eq" if page.total_is_exact else "gte"}
    return {**page.raw, "hits": values}


def with_shown_hits(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer of the engine whose hits are as `shown`."""
    hits = answer.get("hits")
    if not isinstance(hits, dict):
        return dict(answer)
    return {**answer, "hits": {**hits, "hits": [shown(hit) for hit in hits.get("hits", ())]}}


def shown(hit: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hit without the fields that this project adds to documents."""
    parts = {part: hit[part].items() for part in ("_source", "fields") if part in hit}
    return {**hit, **{p: {k: v for k, v in items if not k.startswith(FIELD_PREFIX)} for p, items in parts.items()}}


def error_shape(status: int, kind: str, message: str) -> dict[str, Any]:
    """Return the body of an error in the engine's format."""
    cause = {"type": kind, "reason": message}
    return {"error": {"root_cause": [cause], **cause}, "status": status}


def product_headers(state: ServiceState) -> dict[str, str]:
    """Return the header by which the engine's clients check the product; empty for OpenSearch."""
    product = state.engine.capabilities().product
    return {"X-Elastic-Product": product} if product else {}


def _response(state: ServiceState, content: bytes, answer: Answer | None = None) -> Response:
    """Return a response with the product header that the engine's clients check, and how it was reranked."""
    headers = product_headers(state)
    headers["X-SSI-Reranked"] = "true" if answer is not None and answer.reranked else "false"
    if answer is not None and answer.reranked and answer.searched is not None:
        headers["X-SSI-Alpha"] = answer.searched.outcome.page.alpha_origin
    return Response(content, media_type="application/json", headers=headers)


def check_index(state: ServiceState, context: RequestContext, index: Any) -> None:
    """Raise `ServiceError` 403 if the index is neither the service's nor the only one behind the service's alias.

    Hits contain the concrete name, so that clients come back with it. The request is nevertheless sent to the service's
    own index, so that a filter of the alias applies. Runs in a worker thread.
    """
    own, name = state.settings.index, index[0] if isinstance(index, list) and len(index) == 1 else index
    if name == own:
        return
    if isinstance(name, str) and name and not set(name) & set("*,"):
        deadline = context.deadline
        if state.ask_engine(lambda: state.index_names.read(deadline.timeout_s())) == (name,):
            return
    state.refuse("not_allowed")
    shown = f"index {name!r}" if isinstance(name, str) and _INDEX.fullmatch(name) else "this choice of indexes"
    raise ServiceError(
        403,
        f"{shown} is not allowed: this service answers for {own!r} and, if that is an alias of one index, for this "
        "index; start another `ssi serve --index NAME` for another index",
        kind="not_allowed",
    )


async def run_proxied(state: ServiceState, context: RequestContext, function: Callable[[], T]) -> T:
    """Return the result of ``function``, run in a worker thread.

    With ``engine_reasons`` of the settings, an error of the engine becomes a `ServiceError` with the engine's own type
    and reason.
    """
    try:
        return await state.run(context, function)
    except EngineError as error:
        known = of_error(error)
        if not state.settings.engine_reasons or not error.engine_reason:
            raise
        raise ServiceError(known.status_code, error.engine_reason, kind=error.error_type or known.kind) from error


def _as_asked(answer: dict[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
    """Return an answer, with ``hits.total`` as a number if ``rest_total_hits_as_int`` asks for it."""
    hits = answer.get("hits") or {}
    if params.get("rest_total_hits_as_int", "false") != "false" and isinstance(hits.get("total"), dict):
        answer["hits"] = {**hits, "total": hits["total"]["value"]}
    return answer


@router.api_route("/{index}/_search", methods=["GET", "POST"])
async def proxied_search(request: Request) -> Response:
    """Search with a body in the engine's format."""
    state, context, index = of_request(request)
    params, content = dict(request.query_params), await request.body()

    def work() -> tuple[bytes, Answer]:
        check_index(state, context, index)
        body = decoded_json(content, state.settings.limits) if content else {}
        answer = answered(state, context, read_search(body, params, state.checked))
        return encode(_as_asked(answer.values, params)), answer

    encoded, answer = await run_proxied(state, context, work)

    async def keep_sent() -> None:
        _keep(state, context, answer)

    response = _response(state, encoded, answer)
    # Counted and logged after the answer is sent, so that the client does not wait for that.
    response.background = BackgroundTask(keep_sent)
    return response


def _keep(state: ServiceState, context: RequestContext, answer: Answer) -> None:
    """Count an answer that was sent within the deadline, and log its search."""
    if answer.searched is not None:
        keep(state, context, answer.searched)
    else:
        state.answered += 1
        state.metrics.searches.labels(FORWARDED).inc()
        state.metrics.day.note_search(context.deadline.spent_s, fallback=False)


def of_request(request: Request) -> tuple[ServiceState, RequestContext, str]:
    """Return the service's state, the request's context, and the index named by the path ("" if none)."""
    return request.app.state.service, request.scope[CONTEXT_KEY], request.path_params.get("index", "")


@router.api_route("/_msearch", methods=["GET", "POST"])
@router.api_route("/{index}/_msearch", methods=["GET", "POST"])
async def searches(request: Request) -> Response:
    """Answer several searches, each sent as a header line and a body line; each answer has its own status."""
    state, context, index = of_request(request)
    params, started = dict(request.query_params), time.perf_counter()
    # As for the engines, an empty line in the place of a header is a header without options.
    lines = (await request.body()).rstrip().split(b"\n")
    if not lines or len(lines) % 2 or len(lines) > 2 * MAX_SEARCHES:
        raise ServiceError(400, f"_msearch needs 1 to {MAX_SEARCHES} searches of two lines each: a header and a body")
    limits = state.settings.limits
    if max(map(len, lines)) > limits.max_search_bytes:
        raise ServiceError(413, f"one of the searches has more than {limits.max_search_bytes} bytes", kind="too_large")
    turns = asyncio.Semaphore(AT_ONCE)

    def work(header_line: bytes, body_line: bytes) -> tuple[bytes, Answer]:
        header = decoded_json(header_line, limits) if header_line.strip() else {}
        body = decoded_json(body_line, limits)
        if not isinstance(header, dict):
            raise ServiceError(400, "the header line of a search is not a JSON object")
        check_index(state, context, header.pop("index", index))
        options = {name: v if isinstance(v, str) else str(v).lower() for name, v in header.items()}
        answer = answered(state, context, read_search(body, {**params, **options}, state.checked))
        return encode({**_as_asked(answer.values, params), "status": 200}), answer

    async def one(header_line: bytes, body_line: bytes) -> bytes:
        async with turns:
            try:
                encoded, answer = await run_proxied(state, context, lambda: work(header_line, body_line))
            except Exception as error:
                known = of_error(error)
                return encode(error_shape(known.status_code, known.kind, known.message))
            _keep(state, context, answer)
            return encoded

    answers = await asyncio.gather(*(one(*lines[at : at + 2]) for at in range(0, len(lines), 2)))
    took = round((time.perf_counter() - started) * 1000.0)
    return _response(state, b'{"took":%d,"responses":[%s]}' % (took, b",".join(answers)))


@router.api_route("/{index}/_count", methods=["GET", "POST"])
async def count(request: Request) -> Response:
    """Count the documents that a query matches."""
    state, context, index = of_request(request)
    params, content = dict(request.query_params), await request.body()

    def work() -> bytes:
        check_index(state, context, index)
        body = decoded_json(content, state.settings.limits) if content else {}
        return encode(passed_on(state, context, "_count", read_search(body, params, state.checked)))

    encoded = await run_proxied(state, context, work)
    state.answered += 1
    return _response(state, encoded)
