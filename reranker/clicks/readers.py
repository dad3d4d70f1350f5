"""Readers of the log formats: each logged line becomes rows, with checked values and without personal data.

**OpenSearch User Behavior Insights** 1.0 to 1.3: rows of ``ubi_queries`` and ``ubi_events`` in all their spellings.
The spellings come from the schema 1.3.0, from the mappings of its indices, and from what plugins, Data Prepper and
export tools write:

- Response: ``query_response_hit_ids``, ``query_response_objects_ids`` or ``query_response_object_ids``, also inside
  ``query_response``.
- camelCase names; ``position.ordinal`` as a number, as ``{"index": number}``, or as a flat key.
- Rows wrapped in ``{"_index", "_source"}``, in the hits of a search response, or after ``index-name TAB``.
- Action lines of the bulk API (``{"index": {"_index": …}}``) are skipped.
- ``query_attributes.ssi_first``, in which `ssi serve` logs the number of hits on the previous pages, and ``ssi_words``,
  in which it logs the words that a query with a syntax asks for: these are then the query.

**JSON lines**, this project's own format: one shown result list per line, with the clicks on it::

    {"query_id": "s1i1", "query": "civil war causes", "session": "2013-1", "user": null, "time": "99.396",
     "results": ["d1", "d2"], "clicks": [{"doc": "d1", "rank": 1, "time": "143.5", "end_time": "152.6"}],
     "add_to_cart": [], "purchases": [], "application": "shop", "randomised": false, "ip": "…", "user_agent": "…"}

Only ``query_id`` is required. ``query_attributes.randomised`` is read as in UBI. Ranks begin at 1. A time is ISO 8601,
seconds or milliseconds since 1970, or seconds since the beginning of the session. Times relative to the session give
the dwell time of a click (``end_time`` - ``time``), but no date.

**Metarank** 0.7 (``doc/event-schema.md``): rankings (a shown list) and interactions (actions on it). Items and users
are skipped. The query text is the ranking's field ``query``; a ranking without this field gets an empty text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import msgspec

from reranker.clicks.log import PEOPLE, STORED
from reranker.clicks.schema import CART, CLICK, PURCHASE
from reranker.clicks.values import EARLIEST_MS, Id, Time, Values, document_id
from reranker.config import instant
from reranker.formats import RecordError


class QueryRow(NamedTuple):
    """A row of the table ``queries`` of a click log, see `reranker.clicks.schema.TABLES`."""

    query_id: str
    query: str
    session: str
    user: str
    network: str
    time: int | None
    application: str
    agent: str
    randomised: bool


class EventRow(NamedTuple):
    """A row of the table ``events`` of a click log, see `reranker.clicks.schema.TABLES`."""

    query_id: str
    action: str
    document: str
    ordinal: int | None
    time: int | None
    dwell: float | None
    session: str
    user: str
    network: str
    query: str
    application: str
    agent: str


class HitRow(NamedTuple):
    """A returned document, with the time of its query."""

    query_id: str
    position: int
    document: str
    time: int | None


class LogRows:
    """Rows collected by a reader of any format; ``values`` converts the logged values."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.queries: list[QueryRow] = []
        self.hits: list[HitRow] = []
        self.events: list[EventRow] = []
        self._people: dict[tuple[str, str], int | None] = {}
        self.n_skipped = 0

    def __len__(self) -> int:
        return len(self.queries) + len(self.hits) + len(self.events)

    def add_hits(self, query_id: str, documents: list[str], time: int | None, first: int = 0) -> None:
        """Add a result list in the order in which it was returned; ``first`` hits of previous pages come before it."""
        placed = enumerate(documents, start=first + 1)
        self.hits += [HitRow(query_id, place, document, time) for place, document in placed]

    def user(self, client: Id | None, user: Id | None, time: int | None) -> str:
        """Return the hash of the client, or of the user if there is no client; the link between both is stored."""
        values = self.values
        if client is None or client == "":
            return values.user(user)
        hashed = values.user(client)
        if user is not None and user not in ("", client):
            pair = (values.user(user), hashed)
            known = self._people.get(pair)
            self._people[pair] = max(known or 0, time or 0) or None
        return hashed

    def take(self) -> tuple[dict[str, dict[str, list[Any]]], Counter[str]]:
        """Return the rows as a batch together with the notes about them, and start an empty batch."""
        tables: dict[str, list[Any]] = {
            "queries": self.queries,
            "hits": self.hits,
            "events": self.events,
            PEOPLE: [(*pair, time) for pair, time in self._people.items()],
        }
        batch = {
            name: dict(zip(STORED[name], map(list, zip(*rows, strict=True)), strict=True))
            for name, rows in tables.items()
            if rows
        }
        notes, self.values.notes = self.values.notes, Counter()
        self.queries, self.hits, self.events, self._people = [], [], [], {}
        return batch, notes


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ACTION_LINES = {"index", "create", "update", "delete"}
_CONTAINERS = ("event_attributes", "query_attributes", "query_response", "position", "object", "ordinal")
_MAX_LEVELS = 4


def unwrapped(value: Any) -> list[Any] | None:
    """Return the rows in a decoded line; None for bulk actions.

    Raises `RecordError` for a value that is not an object.
    """
    if not isinstance(value, dict):
        raise RecordError("not_object", f"a {type(value).__name__} at the top: each line must be one JSON object")
    source = value.get("_source")
    if isinstance(source, dict):
        return [source]
    hits = value.get("hits")
    if isinstance(hits, dict) and isinstance(hits.get("hits"), list):
        return [hit.get("_source") if isinstance(hit, dict) and "_source" in hit else hit for hit in hits["hits"]]
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key in _ACTION_LINES and isinstance(inner, dict):
            return None
    return [value]


def _not_readable(error: Exception) -> RecordError:
    """Return the error for a line that could not be decoded. Its message never repeats values of the line."""
    if isinstance(error, msgspec.ValidationError):
        return RecordError("wrong_type", f"a value has the wrong type: {error}")
    if isinstance(error, RecursionError):
        return RecordError("too_deep", "the JSON is nested too deeply to be read")
    if isinstance(error, UnicodeDecodeError):
        return RecordError("not_utf8", f"a text is not UTF-8 (byte 0x{error.object[error.start]:02x})")
    return RecordError("not_json", f"the line is not JSON: {error}")


def _snake(value: Any, level: int = 0) -> Any:
    """Return a row with its keys in snake_case and flat keys (``a.b``) expanded to nested objects."""
    if not isinstance(value, dict) or level > _MAX_LEVELS:
        return value
    renamed: dict[str, Any] = {}
    for key, item in value.items():
        name, rest = _plain_name(key)
        new = item
        if name in _CONTAINERS:
            new = _parsed(item) if isinstance(item, str) else item
            new = _snake({rest: new} if rest else new, level + 1)
        elif rest:
            name = f"{name}.{rest}"
        there = renamed.get(name)
        if isinstance(there, dict) and isinstance(new, dict):
            there.update(new)
        elif there is None:
            renamed[name] = new
    return renamed


@lru_cache(4096)
def _plain_name(key: str) -> tuple[str, str]:
    """Return (snake_case of the key up to its first dot, the rest of the key)."""
    name, _, rest = _HUMP.sub("_", key).lower().partition(".")
    return name, rest


def _parsed(text: str) -> Any:
    """Return the object that a text column contains as JSON, or the text itself."""
    if not text.startswith("{"):
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


class LineReader:
    """Converts the lines of one format to rows. Raises `RecordError` for a line that is not in this format."""

    form: ClassVar[type[Any]]

    def __init__(self, rows: LogRows) -> None:
        self.rows = rows
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(self.form).decode

    def take(self, line: bytes) -> None:
        """Read one line."""
        try:
            decoded = self._decode(line)
        except (ValueError, RecursionError) as error:
            raise _not_readable(error) from None
        self._take(decoded)

    def take_value(self, value: Any) -> None:
        """Read one line that is decoded already."""
        try:
            converted = msgspec.convert(value, self.form)
        except (ValueError, RecursionError) as error:
            raise _not_readable(error) from None
        self._take(converted)

    def _take(self, decoded: Any) -> None:
        raise NotImplementedError


class _Ordinal(msgspec.Struct, gc=False):
    """``position.ordinal`` in UBI 1.0."""

    index: int | float | str | None = None


class _Position(msgspec.Struct, gc=False):
    ordinal: int | float | str | _Ordinal | None = None


class _Object(msgspec.Struct, gc=False):
    object_id: Id | None = None
    internal_id: Id | None = None


class _Attributes(msgspec.Struct, gc=False):
    session_id: Id | None = None
    user_id: Id | None = None
    ip: str | None = None
    browser: str | None = None
    user_agent: str | None = None


class _EventAttributes(_Attributes, gc=False):
    object: _Object | None = None
    position: _Position | None = None
    dwell_time: int | float | str | None = None
    flat_ordinal: int | float | str | None = msgspec.field(default=None, name="position.ordinal")
    flat_object: Id | None = msgspec.field(default=None, name="object.object_id")


class _QueryAttributes(_Attributes, gc=False):
    application: Id | None = None
    randomised: bool | str | int | None = None
    randomized: bool | str | int | None = None
    ssi_first: int | str | None = None
    ssi_words: str | None = None

    @property
    def is_randomised(self) -> bool:
        return _is_true(self.randomised) or _is_true(self.randomized)


class _Response(msgspec.Struct, gc=False):
    query_response_hit_ids: list[str | int] | None = None
    query_response_objects_ids: list[str | int] | None = None
    query_response_object_ids: list[str | int] | None = None


class _Row(_Response, gc=False):
    """A row of either index, limited to the keys that are used; other keys are ignored."""

    action_name: str | None = None
    client_id: Id | None = None
    query_id: Id | None = None
    timestamp: Time | None = None
    event_attributes: _EventAttributes | None = None
    application: Id | None = None
    user_query: str | None = None
    session_id: Id | None = None
    user_id: Id | None = None
    query_attributes: _QueryAttributes | None = None
    query_response: _Response | None = None
    user_agent: str | None = None
    ip: str | None = None


def _response_ids(row: _Row) -> list[str | int] | None:
    """Return the ids of the response, which has several names; None if there is no response."""
    responses = [response for response in (row, row.query_response) if response is not None]
    named = (getattr(response, name) for response in responses for name in _Response.__struct_fields__)
    return next((ids for ids in named if ids is not None), None)


def _is_true(value: bool | str | int | None) -> bool:
    return value in (True, 1) or (isinstance(value, str) and value.lower() in ("true", "1", "yes"))


_NO_ATTRIBUTES = _EventAttributes()
_NO_QUERY_ATTRIBUTES = _QueryAttributes()
_INDEX_NAME = re.compile(rb"[^\s{\[\"]{1,255}\t(?=\{)")


class UbiReader(LineReader):
    """Converts the lines of a UBI log to rows."""

    form = _Row

    def take(self, line: bytes) -> None:
        """Read one line."""
        try:
            row = self._decode(line)
        except (ValueError, RecursionError) as error:
            prefix = _INDEX_NAME.match(line)
            if prefix is None:
                raise _not_readable(error) from None
            self.rows.values.notes["tab_separated"] += 1
            # The rest begins with a brace, so the recursion is one level deep.
            self.take(line[prefix.end() :])
            return
        if row.action_name is not None and row.event_attributes is not None:
            self._event(row, row.event_attributes)
        elif row.user_query is not None and row.action_name is None and b"esponse" not in line:
            self._query(row)
        else:
            self._other(row, line)

    def _other(self, row: _Row, line: bytes) -> None:
        """Read a row that is not in the plain form: with a response, without attributes, wrapped, or in camelCase."""
        if row.action_name is None:
            if _response_ids(row) is not None and row.query_id is not None:
                self._query(row)
                return
        elif b"eventAttr" not in line and b"_attributes." not in line:
            self._event(row, _NO_ATTRIBUTES)
            return
        try:
            value = msgspec.json.decode(line)
        except (ValueError, RecursionError) as error:
            raise _not_readable(error) from None
        self.take_value(value)

    def take_value(self, value: Any) -> None:
        """Read a row as decoded JSON: wrapped, camelCase, or flat."""
        inner = unwrapped(value)
        if inner is None:
            self.rows.n_skipped += 1
            return
        if len(inner) == 1:
            self.rows.values.notes["wrapped"] += inner[0] is not value
            self._take_plain(inner[0])
            return
        self.rows.values.notes["search_answer"] += 1
        errors: list[RecordError] = []
        for document in inner:
            try:
                self._take_plain(document)
            except RecordError as error:
                errors.append(error)
        if errors:
            raise RecordError(errors[0].kind, f"{len(errors)} of {len(inner)} rows failed; first: {errors[0].message}")

    def _take_plain(self, value: Any) -> None:
        try:
            plain = _snake(value)
            if isinstance(value, dict) and plain.keys() != value.keys():
                self.rows.values.notes["camel_case"] += any(map(_HUMP.search, value))
            row = msgspec.convert(plain, _Row, strict=True)
        except (ValueError, RecursionError) as error:
            raise _not_readable(error) from None
        if row.action_name is not None:
            self._event(row, row.event_attributes or _NO_ATTRIBUTES)
        elif row.user_query is not None or _response_ids(row) is not None:
            self._query(row)
        else:
            raise RecordError("not_ubi", "neither action_name (an event) nor user_query or a response (a query) is set")

    def _event(self, row: _Row, attributes: _EventAttributes) -> None:
        # Nearly all lines are events, so this path avoids expensive calls unless they are needed.
        rows, values = self.rows, self.rows.values
        position, thing = attributes.position, attributes.object
        ordinal: Any = position.ordinal if position is not None else attributes.flat_ordinal
        if type(ordinal) is not int or not 0 <= ordinal <= 1000:
            ordinal = self._ordinal(ordinal, attributes)
        document = thing.object_id if thing is not None else attributes.flat_object
        if document is None and thing is not None:
            document = thing.internal_id
        time = values.time(row.timestamp)
        session = row.session_id
        if session is None:
            session = attributes.session_id
        user, client, dwell = row.user_id or attributes.user_id, row.client_id, attributes.dwell_time
        agent, ip = attributes.browser or attributes.user_agent or row.user_agent, attributes.ip or row.ip
        rows.events.append(
            EventRow(
                query_id=values.query_id(row.query_id),
                action=values.action(row.action_name or ""),
                document=values.document(document),
                ordinal=ordinal,
                time=time,
                dwell=dwell if dwell is None else values.dwell(dwell),
                session=values.session(session),
                user=values.user(client) if client and not user else rows.user(client, user, time),
                network=values.network(ip) if ip else "",
                query=values.query(row.user_query) if row.user_query else "",
                application=values.name(row.application),
                agent=values.robot(agent) if agent else "",
            )
        )

    def _ordinal(self, ordinal: Any, attributes: _EventAttributes) -> int | None:
        if isinstance(ordinal, _Ordinal):
            self.rows.values.notes["ordinal_object"] += 1
            ordinal = ordinal.index
        return self.rows.values.ordinal(attributes.flat_ordinal if ordinal is None else ordinal)

    def _query(self, row: _Row) -> None:
        rows, values = self.rows, self.rows.values
        attributes = row.query_attributes or _NO_QUERY_ATTRIBUTES
        query_id = values.query_id(row.query_id)
        if not query_id:
            raise RecordError("no_query_id", "a query has no query_id: events cannot be joined to it")
        ids = _response_ids(row)
        documents = [document_id(id_, "hit id") for id_ in ids] if ids else []
        time = values.time(row.timestamp)
        agent = row.user_agent or attributes.user_agent or attributes.browser
        rows.queries.append(
            QueryRow(
                query_id=query_id,
                query=values.query(attributes.ssi_words or row.user_query),
                session=values.session(row.session_id if row.session_id is not None else attributes.session_id),
                user=rows.user(row.client_id, row.user_id if row.user_id is not None else attributes.user_id, time),
                network=values.network(row.ip or attributes.ip or ""),
                time=time,
                application=values.name(row.application if row.application is not None else attributes.application),
                agent=values.robot(agent) if agent else "",
                randomised=attributes.is_randomised,
            )
        )
        if documents:
            rows.add_hits(query_id, documents, time, values.ordinal(attributes.ssi_first) or 0)
        elif ids is not None:
            values.notes["empty_response"] += 1


class _Act(msgspec.Struct, gc=False):
    doc: str | int
    rank: int | float | None = None
    time: Time | None = None
    end_time: Time | None = None


class _Line(msgspec.Struct, gc=False):
    query_id: str | int
    query: str | None = None
    session: Id | None = None
    user: Id | None = None
    time: Time | None = None
    results: list[str | int] | None = None
    clicks: list[_Act] | None = None
    add_to_cart: list[_Act] | None = None
    purchases: list[_Act] | None = None
    application: Id | None = None
    randomised: bool | None = None
    query_attributes: _QueryAttributes | None = None
    ip: str | None = None
    user_agent: str | None = None


class JsonLinesReader(LineReader):
    """Converts the lines of a log in this project's own format to rows."""

    form = _Line

    def _take(self, line: _Line) -> None:
        rows, values = self.rows, self.rows.values
        query_id = values.query_id(line.query_id)
        if not query_id:
            raise RecordError("no_query_id", "the query_id is empty: it must identify the shown list")
        documents = [document_id(id_, "result") for id_ in line.results or ()]
        time = values.time(line.time)
        session, user, network = values.session(line.session), values.user(line.user), values.network(line.ip or "")
        application = values.name(line.application)
        agent = values.robot(line.user_agent) if line.user_agent else ""
        query = values.query(line.query)
        randomised = bool(line.randomised) or (line.query_attributes or _NO_QUERY_ATTRIBUTES).is_randomised
        acts: list[EventRow] = []
        for action, acts_of_kind in ((CLICK, line.clicks), (CART, line.add_to_cart), (PURCHASE, line.purchases)):
            acts += [
                EventRow(
                    query_id=query_id,
                    action=action,
                    document=document_id(act.doc),
                    ordinal=values.ordinal(act.rank),
                    time=values.time(act.time),
                    dwell=_dwell(act.time, act.end_time),
                    session=session,
                    user=user,
                    network=network,
                    query=query,
                    application=application,
                    agent=agent,
                )
                for act in acts_of_kind or ()
            ]
        rows.queries.append(QueryRow(query_id, query, session, user, network, time, application, agent, randomised))
        rows.add_hits(query_id, documents, time)
        rows.events += acts


def _dwell(start: Time | None, end: Time | None) -> float | None:
    first, last = _seconds(start), _seconds(end)
    return last - first if first is not None and last is not None and last >= first else None


def _seconds(value: Time | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        try:
            return instant(str(value)).timestamp()
        except (ValueError, OverflowError):
            return None
    if not number < float("inf"):
        return None
    return number / 1000 if number >= EARLIEST_MS else number


class _Field(msgspec.Struct, gc=False):
    name: str
    value: Any = None


class _Item(msgspec.Struct, gc=False):
    id: str | int


class _Event(msgspec.Struct, gc=False):
    event: str
    id: Id | None = None
    ranking: Id | None = None
    timestamp: Time | None = None
    user: Id | None = None
    session: Id | None = None
    type: str | None = None
    item: Id | None = None
    items: list[_Item] | None = None
    fields: list[_Field] | None = None


class MetarankReader(LineReader):
    """Converts Metarank events to rows."""

    form = _Event

    def _take(self, event: _Event) -> None:
        rows, values = self.rows, self.rows.values
        if event.event in ("item", "user"):
            rows.n_skipped += 1
            return
        if event.event not in ("ranking", "interaction"):
            raise RecordError("unknown_event", "the event is not one of ranking, interaction, item, user")
        texts = {field.name: field.value for field in event.fields or () if isinstance(field.value, str)}
        session, user = values.session(event.session), values.user(event.user)
        network = values.network(texts.get("ip", ""))
        agent = values.robot(texts.get("user_agent") or texts.get("ua") or "")
        if event.event == "interaction":
            rows.events.append(
                EventRow(
                    query_id=values.query_id(event.ranking),
                    action=values.action(event.type or ""),
                    document=document_id(event.item, "item"),
                    ordinal=None,
                    time=values.time(event.timestamp),
                    dwell=None,
                    session=session,
                    user=user,
                    network=network,
                    query="",
                    application="",
                    agent=agent,
                )
            )
            return
        query_id = values.query_id(event.id)
        if not query_id:
            raise RecordError("no_query_id", "a ranking has no id: interactions cannot be joined to it")
        documents = [document_id(item.id, "item id") for item in event.items or ()]
        time, query = values.time(event.timestamp), values.query(texts.get("query", ""))
        rows.queries.append(QueryRow(query_id, query, session, user, network, time, "", agent, False))
        rows.add_hits(query_id, documents, time)
