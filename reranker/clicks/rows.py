"""Rows of a click log: logged values checked and freed of personal data, gathered until they make a batch."""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeAlias, TypeVar

from reranker.clicks.log import DAY_MS, PEOPLE, STORED
from reranker.clicks.privacy import Pseudonymiser, redact
from reranker.clicks.schema import CART, CLICK, IMPRESSION, PURCHASE
from reranker.errors import MissingExtra
from reranker.formats.lines import RecordError, RejectSink
from reranker.records import MAX_ID_BYTES

_SHOWN = 200
_KEYS = re.compile(
    rb'"(action_name|actionName|query_id|queryId|timestamp|client_id|clientId|session_id|sessionId|user_id|userId|'
    rb"user_query|userQuery|application|event_attributes|eventAttributes|query_attributes|queryAttributes|"
    rb"query_response|queryResponse|query_response_id|query_response_hit_ids|query_response_objects_ids|"
    rb"query_response_object_ids|position|ordinal|index|object|object_id|objectId|_index|_id|_source|hits|"
    rb'query|session|user|time|results|clicks|doc|rank|event|ranking|type|item|items|fields|name|value)"\s*:'
)
_SPACES = bytes.maketrans(b"\t\r\n\v\f", b"     ")
_KEPT = b' {}[]:,"'
_HIDDEN = bytes(byte if byte in _KEPT else ord(" ") if byte in b"\t\r\n" else ord(".") for byte in range(256))


def shape(sample: str | bytes) -> str:
    """Return the beginning of a line with the names of known keys and its brackets; all else is a dot a byte."""
    data = (sample if isinstance(sample, bytes) else sample.encode("utf-8", "replace"))[:_SHOWN]
    shown = bytearray(data.translate(_HIDDEN))
    for key in _KEYS.finditer(data):
        shown[key.start() : key.end()] = key.group().translate(_SPACES)
    return shown.decode("ascii")


class PrivateSink:
    """Hands rejects on with the shape of the line in the place of its values, and counts them."""

    def __init__(self, sink: RejectSink) -> None:
        self._sink = sink
        self.count = 0

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Hand on one refused record."""
        self.count += 1
        self._sink.reject(line, offset, reason, shape(sample), kind=kind)


K = TypeVar("K")
V = TypeVar("V")
MAX_AGENT_CHARS = 512
_ESCAPED = re.compile(r"\\(.)")
_META = re.compile(r"\\.|[\\^$*+?{}\[\]|().]")


def remembered(known: dict[K, V], key: K, value: V) -> V:
    """Return the value, kept under its key among so many that were met lately."""
    if len(known) >= _MAX_KNOWN:
        known.clear()
    known[key] = value
    return value


class Robots:
    """Tells robots by their user agent, by the list of the package crawler-user-agents (else `MissingExtra`)."""

    def __init__(self) -> None:
        self._literals, self._patterns = _list()
        self.known: dict[str, str] = {"": ""}

    def name(self, agent: str) -> str:
        """Return the name of the robot that a user agent states, or an empty string for one that is not listed."""
        known = self.known.get(agent)
        if known is None:
            text = agent[:MAX_AGENT_CHARS]
            literal = next((robot.strip(" /") for robot in self._literals if robot in text), None)
            by_pattern = (name for pattern, name in self._patterns if pattern.search(text))
            known = remembered(self.known, agent, next(by_pattern, "") if literal is None else literal)
        return known


@cache
def _list() -> tuple[tuple[str, ...], tuple[tuple[re.Pattern[str], str], ...]]:
    """Return the list's patterns: those that are plain text, which is found far faster, and the others with a name."""
    try:
        import crawleruseragents
    except ImportError as error:
        raise MissingExtra("crawleruseragents", "clicks") from error
    literals, patterns = [], []
    for robot in crawleruseragents.CRAWLER_USER_AGENTS_DATA:
        pattern = str(robot["pattern"])
        plain = _ESCAPED.sub(lambda escaped: "" if escaped[1].isalnum() else escaped[1], pattern)
        if all(not meta[1:].isalnum() and len(meta) == 2 for meta in _META.findall(pattern)):
            literals.append(plain)
        else:
            name = re.sub(r"[^\w -]+", " ", _META.sub(" ", pattern)).strip()
            patterns.append((re.compile(pattern), " ".join(name.split()) or "robot"))
    return tuple(literals), tuple(patterns)


MAX_QUERY_CHARS = 2_000
MAX_NAME_CHARS = 100
MAX_ORDINAL = 1_000_000
EARLIEST_MS = 946_684_800_000
"""2000-01-01: no click log is older."""
AHEAD_MS = 2 * DAY_MS
"""How far a time may be ahead of the clock: clients' clocks are."""
# First value of a unit that is a time here, and what it is multiplied and divided by to be milliseconds.
_UNITS = (
    (EARLIEST_MS, 1, 1),
    (EARLIEST_MS // 1000, 1000, 1),
    (EARLIEST_MS * 1000, 1, 1000),
    (EARLIEST_MS * 10**6, 1, 10**6),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?", re.ASCII)
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_MAX_KNOWN = 50_000

ACTIONS: dict[str, str] = {
    **dict.fromkeys(("click", "item_click", "product_click", "result_click", "click_through", "clickthrough"), CLICK),
    **dict.fromkeys(("select_item", "select_content"), CLICK),
    **dict.fromkeys(("add_to_cart", "addtocart", "add_cart", "cart", "add_to_basket", "addtobasket"), CART),
    **dict.fromkeys(("purchase", "buy", "purchased", "order"), PURCHASE),
    **dict.fromkeys(("impression", "impressions", "shown", "view_item_list"), IMPRESSION),
}
"""Spellings of actions (lower case, blanks and hyphens as underscores) → actions of the schema; others stay."""

Id = str | int
Time = str | int | float


class Values:
    """Turns logged values into those of the schema; times more than two days after ``now_ms`` cannot be true."""

    def __init__(self, privacy: Pseudonymiser, now_ms: int) -> None:
        self.notes: Counter[str] = Counter()
        self.hash = privacy.of
        robots = Robots()
        self.robot, self.known_robots = robots.name, robots.known
        self.known_user = privacy.known["user"]
        self.known_session = privacy.known["session"]
        self.known_network = privacy.known["network"]
        self.known_documents: dict[Id, str] = {"": ""}
        self.known_queries: dict[Id, str] = {"": ""}
        self._latest_ms = now_ms + AHEAD_MS
        self.known_texts: dict[str, str] = {}
        self.known_names: dict[str, str] = {}
        self.known_actions: dict[str, str] = {}
        self._minutes: dict[str, int] = {}

    def time(self, value: Time | None) -> int | None:
        """Return milliseconds since 1970; None where there is no time or it cannot be true.

        ISO 8601 (UTC where no zone is given) or a number, also as text: seconds, milliseconds, microseconds or
        nanoseconds since 1970, told by its size. Times before 2000 or more than two days ahead cannot be true;
        numbers that are far smaller count from the beginning of a session and say nothing of the day.
        """
        if value is None:
            return None
        if isinstance(value, str):
            # Most times are 2026-03-01T10:11:12.345Z, and of a minute met before: seconds and thousandths are added.
            part = value[17:19] + value[20:]
            minute = self._minutes.get(value[:17]) if value[19:20] == "." else None
            if minute is not None and part[5:] == "Z" and part[:5].isdecimal() and part.isascii() and part < "6":
                milliseconds = minute + int(part[:5])
            else:
                parsed = self._parsed(value)
                if parsed is None:
                    return None
                milliseconds = parsed
        else:
            milliseconds = self._number(value)
        if EARLIEST_MS <= milliseconds <= self._latest_ms:
            return milliseconds
        self.notes["impossible_time" if milliseconds >= 0 else "relative_time"] += 1
        return None

    def _parsed(self, value: str) -> int | None:
        """Return the milliseconds of a time as text; None, with a note, for what is none."""
        # A day alone has eight digits; in 1715080380005 ISO 8601 would find a day of the year 1715.
        is_number = _NUMBER.fullmatch(value) is not None
        if is_number and len(value) != 8:
            return self._number(float(value) if "." in value else int(value))
        try:
            moment = datetime.fromisoformat(value)
            milliseconds = ((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH) // _MS
        except (ValueError, OverflowError):
            if is_number:
                return self._number(float(value))
            self.notes["unreadable_time"] += 1
            return None
        if _PLAIN_TIME.fullmatch(value):
            remembered(self._minutes, value[:17], milliseconds - milliseconds % 60_000)
        return milliseconds

    def _number(self, value: float) -> int:
        """Return the milliseconds of an epoch time; -1 for a number too small to be one."""
        if value < EARLIEST_MS // 1000:
            return -1
        self.notes["epoch_time"] += 1
        for first, factor, divisor in _UNITS:
            if first <= value < first * 10:
                return int(value * factor // divisor)
        return 0

    def query(self, text: str | None) -> str:
        """Return the text of a query, redacted."""
        if not text:
            return ""
        redacted = self.known_texts.get(text)
        if redacted is None:
            if len(text) > MAX_QUERY_CHARS:
                reason = f"the query has {len(text)} characters: at most {MAX_QUERY_CHARS} are accepted"
                raise RecordError("query_too_long", reason)
            redacted = remembered(self.known_texts, text, redact(text))
        return redacted

    def action(self, text: str) -> str:
        """Return the action of an event: of the schema where it has the meaning, else as it is, redacted."""
        action = self.known_actions.get(text)
        if action is None:
            name = self.name(text)
            plain = name.lower().replace("-", "_").replace(" ", "_")
            action = remembered(self.known_actions, text, ACTIONS.get(plain, name))
        return action

    def name(self, value: Id | None) -> str:
        """Return a short name (application, action), redacted; empty for None."""
        if value is None:
            return ""
        text = value if isinstance(value, str) else str(value)
        short = self.known_names.get(text)
        if short is None:
            if len(text) > MAX_QUERY_CHARS:
                raise RecordError("name_too_long", f"a name has {len(text)} characters: at most {MAX_NAME_CHARS} count")
            short = remembered(self.known_names, text, redact(text)[:MAX_NAME_CHARS])
        return short

    def query_id(self, value: Id | None) -> str:
        """Return a query's id; one that holds an e-mail address is hashed."""
        if value is None or value == "":
            return ""
        text = document_id(value, "query id")
        return remembered(self.known_queries, value, self.hash("query", text) if "@" in text else text)

    def document(self, value: Id | None) -> str:
        """Return a document's id; empty for none."""
        if value is None or value == "":
            return ""
        return remembered(self.known_documents, value, document_id(value))

    def person(self, kind: str, value: Id | None) -> str:
        """Return the hash of a user's, a session's or a network's id; empty for None."""
        if value is None:
            return ""
        return self.hash(kind, value if isinstance(value, str) else str(value))  # type: ignore[arg-type]

    def ordinal(self, value: Any) -> int | None:
        """Return a position as it was logged, None where it is none: a whole number of 0 to a million, also as text."""
        if isinstance(value, str):
            value = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None
        if isinstance(value, float):
            value = int(value) if value.is_integer() else None
        if value is None:
            return None
        if 0 <= value <= MAX_ORDINAL:
            return int(value)
        self.notes["impossible_ordinal"] += 1
        return None

    def dwell(self, value: Any) -> float | None:
        """Return a dwell time in seconds, None where it is none."""
        try:
            seconds = float(value) if value is not None else -1.0
        except (ValueError, OverflowError):
            return None
        return seconds if 0 <= seconds < math.inf else None


def document_id(value: Id | None, what: str = "document id") -> str:
    """Return an id as text, unchanged.

    `RecordError` for none, an empty one, one of more than 512 bytes, or one with control characters or half characters.
    """
    text = value if isinstance(value, str) else "" if value is None else str(value)
    if text.isascii() and text.isprintable() and 0 < len(text) <= MAX_ID_BYTES:
        return text
    if not text:
        raise RecordError("id_empty", f"a {what} is missing or empty: it must have 1 to {MAX_ID_BYTES} bytes")
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise RecordError("id_surrogate", f"a {what} has a lone surrogate: it must be valid Unicode") from None
    if n_bytes > MAX_ID_BYTES:
        raise RecordError("id_too_long", f"a {what} has {n_bytes} bytes of UTF-8: at most {MAX_ID_BYTES} are accepted")
    if not text.replace(" ", "").isprintable():
        raise RecordError("id_control", f"a {what} has control or invisible characters: remove them")
    return text


QueryRow: TypeAlias = tuple[str, str, str, str, str, int | None, str, str, bool]
"""The columns of ``queries`` in `reranker.clicks.schema.TABLES`."""
EventRow: TypeAlias = tuple[str, str, str, int | None, int | None, float | None, str, str, str, str, str, str]
"""The columns of ``events`` in `reranker.clicks.schema.TABLES`."""


class Rows:
    """The rows that readers of all forms fill, with the ``values`` they make them by."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.queries: list[QueryRow] = []
        self.hits: list[tuple[str, int, str, int | None]] = []
        self.events: list[EventRow] = []
        self._people: dict[tuple[str, str], int | None] = {}
        self.n_skipped = 0

    def __len__(self) -> int:
        return len(self.queries) + len(self.hits) + len(self.events)

    def add_hits(self, query_id: str, documents: list[str], time: int | None, first: int = 0) -> None:
        """Add a returned list of documents, in its order, after the ``first`` ones of earlier pages."""
        self.hits += [(query_id, place, document, time) for place, document in enumerate(documents, start=first + 1)]

    def user(self, client: str | int | None, user: str | int | None, time: int | None) -> str:
        """Return the hash of whom a row is of: the client where it is named, else the user.

        Queries of UBI name the client alone, and an impression must have one user; who is logged in is kept beside,
        so that all of a person's clients can be forgotten.
        """
        values = self.values
        if client is None or client == "":
            return values.person("user", user)
        hashed = values.person("user", client)
        if user is not None and user not in ("", client):
            pair = (values.person("user", user), hashed)
            known = self._people.get(pair)
            self._people[pair] = max(known or 0, time or 0) or None
        return hashed

    def take(self) -> tuple[dict[str, dict[str, list[Any]]], Counter[str]]:
        """Return the rows as a batch with the notes made of them, and begin anew."""
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
