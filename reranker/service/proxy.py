"""The engine's own API as served by this service, so that its clients need no change.

A search of the service's index for one text, ordered by score, is reranked. Everything else passes through unchanged
(`reranker.service.forward`): other searches, other indexes, other APIs, and a search that the engine refuses. All
requests that are made for a caller carry the caller's own credentials, so that the engine decides who may ask what.
docs/guide/proxy.md has the table.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl, unquote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reranker.deadline import Deadline
from reranker.engines.bodies import PLACE, text_clauses, window_of
from reranker.engines.query_syntax import has_syntax
from reranker.engines.vectors import FIELD_PREFIX
from reranker.engines.wire import caller_rights, copied, json_value
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineRejected,
    IndexMissing,
    RequestTooLarge,
    VersionConflict,
)
from reranker.records import RankedHit
from reranker.rerank.ranking import why_not
from reranker.service.forward import EngineAnswer, Forwarder, api_of, is_engine_path, is_reading, raw_path
from reranker.service.http import (
    CONTEXT_KEY,
    READING,
    RequestContext,
    ServiceError,
    asks_for_page,
    decoded_json,
    error_response,
    next_piece,
    of_error,
    too_slow,
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
"""URL parameters that do not keep a search from being reranked: they have no effect on one existing index."""
RERANKED_PARTS = frozenset(
    {
        "_source",
        "aggregations",
        "aggs",
        "docvalue_fields",
        "explain",
        "ext",
        "fields",
        "from",
        "highlight",
        "indices_boost",
        "knn",
        "min_score",
        "post_filter",
        "profile",
        "query",
        "rescore",
        "retriever",
        "runtime_mappings",
        "script_fields",
        "seq_no_primary_term",
        "size",
        "sort",
        "stats",
        "suggest",
        "terminate_after",
        "timeout",
        "track_scores",
        "track_total_hits",
        "version",
    }
)
"""Parts of a body with which a search can be reranked; one with any other part is the engine's."""
FORWARDED = "forwarded"
"""Label of `Metrics.searches` for searches that the engine answered itself."""
MOST_READ: Final = 256 * 1024
"""Longest body, in bytes, that is read; a longer one, which no search box sends, passes through."""
MAX_HITS = 10_000
"""Hits of a search that an engine returns."""
MAX_SEARCHES = 100
"""Searches in one ``_msearch`` request that is read."""
AT_ONCE = 4
"""Searches of one ``_msearch`` that run concurrently."""
READ_APIS: Final = ("_search", "_msearch")
"""APIs whose requests may be reranked."""
REFUSALS: Final = (EngineAuthError, EngineRejected, IndexMissing, RequestTooLarge, VersionConflict)
"""The engine's refusals of a request: the caller then gets the engine's answer to its own request."""
FAILED: Final = "engine_failed"
"""Kind of the error for a search on which the engine fails, though it answers others; treated as a refusal."""
_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,254}")


class Route(NamedTuple):
    """Name of a group of requests in metrics, spans and the access log."""

    path: str


ROUTES: Final = {api: Route(f"/{{index}}/{api}") for api in READ_APIS}
OTHER_ROUTE: Final = Route("engine")


@dataclass(frozen=True, slots=True)
class ClientSearch:
    """A search of a client of the engine that can be reranked."""

    body: Mapping[str, Any]
    """The client's body without ``ext.ubi``, for the engine."""
    ubi: Mapping[str, Any]
    """``ext.ubi`` of the client's body."""
    template: Mapping[str, Any]
    """The body with ``{{query}}`` in place of the query text."""
    text: str
    """The query text."""


def read_search(body: Any, params: Mapping[str, str]) -> ClientSearch | str:
    """Return the search given by a client's body and URL parameters, or why it cannot be reranked."""
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    params = {name: value for name, value in params.items() if (name, value) != ("search_type", "query_then_fetch")}
    if not body.keys() & {"aggs", "aggregations", "suggest"}:
        params.pop("typed_keys", None)  # without aggregations or suggesters it has no effect
    try:
        body = {**body, **{name: IN_BODY[name](params[name]) for name in params.keys() & IN_BODY.keys()}}
    except ValueError:
        return "a parameter in the URL that is no valid value"
    ext = body.get("ext", {})
    ubi: Any = ext.get("ubi", {}) if isinstance(ext, dict) else None
    reasons = (
        (params.keys() - IN_BODY.keys() - WITHOUT_EFFECT, "a parameter in the URL that only the engine knows"),
        (body.keys() - RERANKED_PARTS, "a part of the body that only the engine knows"),
        # This includes sorting by the score first, since search_after continues in the engine's order.
        (body.get("sort") not in (None, [], "_score", ["_score"]), "another order than by the score"),
        (
            not _is_first_page(body.get("from", 0), body.get("size", 10)),
            f"hits that are not among the first {MAX_HITS}",
        ),
        (not isinstance(ubi, dict), "an ext.ubi that is not an object"),
    )
    if why := next((why for holds, why in reasons if holds), ""):
        return why
    others = {name: value for name, value in ext.items() if name != "ubi"}
    body = {**{name: part for name, part in body.items() if name != "ext"}, **({"ext": others} if others else {})}
    template = copied(body)
    text, why = take_text(template, ubi.get("user_query"))
    reason = why or why_not(body)
    return str(reason) if reason else ClientSearch(body, dict(ubi), template, text)


def _is_first_page(first: Any, size: Any) -> bool:
    numbers = all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in (first, size))
    return numbers and first + size <= MAX_HITS


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
    for name, part in text_clauses(query):
        for key in ["query"] if isinstance(part.get("query"), str) else list(part):
            if isinstance(value := part[key], str):
                yield part, key, has_syntax(name, part)
            elif isinstance(value, dict) and isinstance(value.get("query"), str):
                yield value, "query", False


class Answer(NamedTuple):
    """An answer in the engine's format."""

    values: dict[str, Any]
    searched: Searched
    """Argument for `keep`."""


def answered(state: ServiceState, context: RequestContext, sent: ClientSearch) -> Answer:
    """Return the answer to a search."""
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
    return Answer(answer, searched)


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
    page = None if answer is None else answer.searched.outcome.page
    if page is not None:
        headers["X-SSI-Reranked"] = "true" if page.reranked else "false"
    if page is not None and page.reranked:
        headers["X-SSI-Alpha"] = page.alpha_origin
    return Response(content, media_type="application/json", headers=headers)


def _as_asked(answer: dict[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
    """Return an answer, with ``hits.total`` as a number if ``rest_total_hits_as_int`` asks for it."""
    hits = answer.get("hits") or {}
    if params.get("rest_total_hits_as_int", "false") != "false" and isinstance(hits.get("total"), dict):
        answer["hits"] = {**hits, "total": hits["total"]["value"]}
    return answer


class EngineProxy:
    """ASGI application for the paths of the engine.

    Parameters
    ----------
    state : ServiceState
        The service.
    forwarder : Forwarder
        Passes requests on to the engine.
    """

    def __init__(self, state: ServiceState, forwarder: Forwarder) -> None:
        self._state, self._forwarder = state, forwarder
        self._forwards_all = state.settings.forward == "all"

    def takes(self, scope: Scope) -> bool:
        """Return whether a request is for the engine.

        ``GET /`` is the search page for a browser, and the engine's description for a client. An index may be named
        "docs", like the page of the API. All other paths of the service come before the engine's.
        """
        path, state = scope["path"], self._state
        if path in state.own:
            of_both = path in ("/", f"/{state.settings.index}")
            return of_both and scope["method"] in READING and not asks_for_page(scope["headers"])
        return is_engine_path(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; an answer that breaks off ends the connection, so that no part is taken for the whole."""
        begun = False

        async def sending(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._answer(scope, receive, sending)
        except Exception as error:
            if begun and isinstance(error, ServiceError):
                raise ConnectionAbortedError("the answer breaks off") from error  # no second answer after the first
            if begun:
                raise
            known = of_error(error)
            self._state.refuse(known.kind)
            headers = {**product_headers(self._state), **(known.headers or {})}
            response = error_response(error_shape, known.status_code, known.kind, known.message, headers)
            await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], raw_path(scope)
        if not self._forwards_all and not is_reading(method, path):
            raise ServiceError(
                403,
                "this service passes on only requests that read, and this one does not: send it to the engine itself, "
                "or start the service with --forward all",
                kind="not_forwarded",
            )
        index, api = api_of(path)
        scope["route"] = ROUTES.get(api, OTHER_ROUTE)
        headers = dict(scope["headers"])
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        if api not in READ_APIS or method not in ("GET", "POST"):
            await self._pass_on(scope, receive, send, b"", is_whole=not has_body)
            return
        context: RequestContext = scope[CONTEXT_KEY]
        begun, is_whole = b"", True
        if has_body:
            begun, is_whole = await self._state.read_body(receive, MOST_READ)
        try:
            plain = _plain(begun, headers.get(b"content-encoding", b"")) if is_whole else None
            params = _params(scope.get("query_string", b""))
            response = None
            if plain is not None and params is not None:
                caller_rights.set(self._forwarder.rights_of(scope["headers"]))
                context.deadline = Deadline(self._state.settings.deadline_s)
                name = unquote(index.decode("latin-1"))
                answer = self._search if api == "_search" else self._searches
                response = await answer(scope, context, name, plain, params)
            if response is None:
                await self._pass_on(scope, receive, send, begun, is_whole=is_whole, note=api == "_search")
            else:
                await response.response(scope, receive, send)
                # Counted and logged after the answer is sent, so that the client does not wait for that.
                for searched in response.searched:
                    keep(self._state, context, searched)
        finally:
            self._state.hold(-len(begun))

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, begun: bytes, *, is_whole: bool, note: bool = False
    ) -> None:
        """Pass a request on whose body begins with ``begun``, as long as the client is there."""
        state, read = self._state, asyncio.Event()
        body = begun if is_whole else self._pieces(begun, receive, read)
        if is_whole:
            read.set()
        try:
            async with _while_connected(receive, read) as gone:
                extra = {b"x-ssi-reranked": b"false"} if note else None
                await self._forwarder.pass_on(scope, body, send, extra=extra)
        except ServiceError as error:
            if error.kind == "engine_unavailable":
                state.doubt.set()
            raise
        if gone.is_set():
            return
        if note:
            state.answered += 1
            state.metrics.searches.labels(FORWARDED).inc()
            state.metrics.day.note_search(scope[CONTEXT_KEY].deadline.spent_s, fallback=False)

    async def _pieces(self, begun: bytes, receive: Receive, read: asyncio.Event) -> AsyncIterator[bytes]:
        """Yield a body whose beginning has been read; `ServiceError` 408 if its next piece does not come in time.

        ``read`` is set when there is no more to read.
        """
        if begun:
            yield begun
        more = True
        limit_s = self._state.settings.limits.receive_timeout_s
        while more:
            try:
                async with asyncio.timeout(limit_s):
                    piece, more = await next_piece(receive)
            except TimeoutError:
                raise too_slow(limit_s) from None
            if not more:
                read.set()
            if piece:
                yield piece

    async def _search(
        self, scope: Scope, context: RequestContext, index: str, content: bytes, params: Mapping[str, str]
    ) -> Reranked | None:
        """Return the answer to a search; None if the engine answers it."""
        try:
            found = await self._ranked(context, index, content, params)
        except REFUSALS:
            return None
        except (ServiceError, EngineError) as error:
            if of_error(error).kind == FAILED:
                return None
            raise
        except Exception as error:
            of_error(error)  # logs it; the engine's own answer is better than none
            return None
        if found is None:
            return None
        encoded, answer = found
        return Reranked(_response(self._state, encoded, answer), (answer.searched,))

    async def _ranked(
        self, context: RequestContext, index: str, content: bytes, params: Mapping[str, str], **more: Any
    ) -> tuple[bytes, Answer] | None:
        """Return the encoded answer to a search, with ``more`` values; None if the engine answers it.

        It is counted as a request.
        """
        state = self._state
        state.check_queue()
        state.admitted += 1
        try:
            if not await self._is_served(context, index):
                return None
            try:
                body = decoded_json(content, state.settings.limits) if content else {}
            except ServiceError:
                return None
            sent = read_search(body, params)
            if isinstance(sent, str):
                context.notes["passed_on"] = True
                return None

            def work() -> tuple[bytes, Answer]:
                answer = answered(state, context, sent)
                return encode({**_as_asked(answer.values, params), **more}), answer

            return await state.run(context.deadline, work, state.depth(*window_of(sent.body)))
        finally:
            state.admitted -= 1

    async def _is_served(self, context: RequestContext, name: str) -> bool:
        """Return whether a name is that of the service's index, or of the only index behind the service's alias.

        Hits contain the concrete name, so that clients come back with it.
        """
        state = self._state
        if name == state.settings.index:
            return True
        if _PLAIN_NAME.fullmatch(name) is None:
            return False
        timeout_s = context.deadline.timeout_s()
        names = await state.run(context.deadline, lambda: state.ask_engine(lambda: state.index_names.read(timeout_s)))
        return names == (name,)

    async def _searches(
        self, scope: Scope, context: RequestContext, index: str, content: bytes, params: Mapping[str, str]
    ) -> Reranked | None:
        """Return the answer to several searches, each sent as a header line and a body line; None as `_search`.

        Those that are not reranked are sent to the engine in one request; each search has its own status.
        """
        started = time.perf_counter()
        # As for the engines, an empty line in the place of a header is a header without options.
        lines = content.rstrip().split(b"\n")
        if len(lines) % 2 or len(lines) > 2 * MAX_SEARCHES:
            return None
        pairs = [(lines[place], lines[place + 1]) for place in range(0, len(lines), 2)]
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(header_line: bytes, body_line: bytes) -> tuple[bytes, Answer | None] | None:
            async with turns:
                header = _header(header_line, index, params)
                if header is None:
                    return None
                try:
                    return await self._ranked(context, header[0], body_line, header[1], status=200)
                except REFUSALS:
                    return None
                except Exception as error:
                    known = of_error(error)
                    if known.kind == FAILED:
                        return None
                    return encode(error_shape(known.status_code, known.kind, known.message)), None

        found = await asyncio.gather(*(one(*pair) for pair in pairs))
        if not any(found):
            return None
        rest = [pair for pair, answer in zip(pairs, found, strict=True) if answer is None]
        others: Iterator[Mapping[str, Any]] = iter(())
        if rest:
            told = await self._forwarder.ask(scope, b"".join(part + b"\n" for pair in rest for part in pair))
            parts = _responses(told, len(rest))
            if parts is None:
                return Reranked(_own_answer(told), ())
            others = iter(parts)
        answers = [encode(next(others)) if answer is None else answer[0] for answer in found]
        took = round((time.perf_counter() - started) * 1000.0)
        encoded = b'{"took":%d,"responses":[%s]}' % (took, b",".join(answers))
        searched = tuple(answer[1].searched for answer in found if answer is not None and answer[1] is not None)
        return Reranked(_response(self._state, encoded), searched)


class Reranked(NamedTuple):
    """A response, and the searches that it answers."""

    response: Response
    searched: Sequence[Searched]


def _header(line: bytes, index: str, params: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """Return index and parameters of one search of ``_msearch``; None if its header is not of the usual form."""
    try:
        header = json_value(line) if line.strip() else {}
    except ValueError:
        return None
    if not isinstance(header, dict):
        return None
    name = header.pop("index", index)
    name = name[0] if isinstance(name, list) and len(name) == 1 else name
    if not isinstance(name, str):
        return None
    options = {key: value if isinstance(value, str) else str(value).lower() for key, value in header.items()}
    return name, {**params, **options}


def _own_answer(told: EngineAnswer) -> Response:
    """Return an answer of the engine as it is."""
    response = Response(told.content, told.status)
    own = [(name, value) for name, value in told.headers if name != b"content-length"]
    response.raw_headers = [*own, (b"content-length", b"%d" % len(told.content))]
    return response


def _responses(told: EngineAnswer, n: int) -> list[Mapping[str, Any]] | None:
    """Return the answers in the engine's answer to ``_msearch``; None if they are not as many as were asked."""
    try:
        value = json_value(told.content)
    except ValueError:
        return None
    parts = value.get("responses") if told.status == 200 and isinstance(value, dict) else None
    return parts if isinstance(parts, list) and len(parts) == n else None


@asynccontextmanager
async def _while_connected(receive: Receive, read: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Cancel the block when the client hangs up, so that the engine does not go on with its request.

    ``read`` is set once the client's body is read. The event that is yielded is set once the client has gone.
    """
    task, gone = cast("asyncio.Task[Any]", asyncio.current_task()), asyncio.Event()

    async def watch() -> None:
        await read.wait()
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield gone
    except asyncio.CancelledError:
        if not gone.is_set() or task.uncancel() > 0:
            raise
    finally:
        watching.cancel()


def _plain(body: bytes, encoding: bytes) -> bytes | None:
    """Return the content of a body; None if it is longer than `MOST_READ`, or of an encoding that is not read."""
    encoding = encoding.strip().lower()
    if encoding in (b"", b"identity"):
        return body if len(body) <= MOST_READ else None
    if encoding != b"gzip":
        return None
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(body, MOST_READ + 1)
    except zlib.error:
        return None
    return plain if len(plain) <= MOST_READ and inflater.eof and not inflater.unused_data else None


def _params(query: bytes) -> dict[str, str] | None:
    """Return the parameters of a URL by name; None if one is given twice."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return dict(pairs) if len(dict(pairs)) == len(pairs) else None
