"""Values of the lines of a click log: times, ids, actions and people, checked, shortened and without personal data."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, TypeVar

from reranker.clicks.privacy import Kind, Pseudonymiser, redact
from reranker.clicks.schema import CART, CLICK, DAY_MS, IMPRESSION, PURCHASE
from reranker.config import instant
from reranker.formats import RecordError
from reranker.records import MAX_ID_BYTES

K = TypeVar("K")
V = TypeVar("V")
_MAX_KNOWN = 50_000
MAX_AGENT_CHARS = 512
_ESCAPED = re.compile(r"\\(.)")
_META = re.compile(r"\\.|[\\^$*+?{}\[\]|().]")


class ValueCache(dict[K, V]):
    """A bounded cache that computes the value of a missing key with ``make``. Logged values repeat very often."""

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        if len(self) >= _MAX_KNOWN:
            self.clear()
        self[key] = value
        return value


def robot_name(agent: str) -> str:
    """Return the name of the known robot with this user agent, or ""."""
    literals, patterns = _list()
    text = agent[:MAX_AGENT_CHARS]
    literal = next((robot.strip(" /") for robot in literals if robot in text), None)
    return next((name for pattern, name in patterns if pattern.search(text)), "") if literal is None else literal


@cache
def _list() -> tuple[tuple[str, ...], tuple[tuple[re.Pattern[str], str], ...]]:
    """Return the robot patterns: literal strings, which are matched much faster, and (regular expression, name)."""
    import crawleruseragents

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
"""2000-01-01 in milliseconds. Earlier times are rejected as impossible."""
AHEAD_MS = 2 * DAY_MS
"""Milliseconds by which a time may be ahead of the clock, because clients' clocks may be wrong."""
# Rows (smallest value that is an epoch time in this unit, factor, divisor): value * factor / divisor is milliseconds.
_UNITS = (
    (EARLIEST_MS, 1, 1),
    (EARLIEST_MS // 1000, 1000, 1),
    (EARLIEST_MS * 1000, 1, 1000),
    (EARLIEST_MS * 10**6, 1, 10**6),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?", re.ASCII)
_MINUTE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:", re.ASCII)

ACTIONS: dict[str, str] = {
    **dict.fromkeys(("click", "item_click", "product_click", "result_click", "click_through", "clickthrough"), CLICK),
    **dict.fromkeys(("select_item", "select_content"), CLICK),
    **dict.fromkeys(("add_to_cart", "addtocart", "add_cart", "cart", "add_to_basket", "addtobasket"), CART),
    **dict.fromkeys(("purchase", "buy", "purchased", "order"), PURCHASE),
    **dict.fromkeys(("impression", "impressions", "shown", "view_item_list"), IMPRESSION),
}
"""Spellings of actions → actions of the schema. Keys are lower case with underscores; other actions are unchanged."""

Id = str | int
Time = str | int | float


class Values:
    """Converts logged values to values of the schema.

    Parameters
    ----------
    privacy
        Hashes for ids of people.
    now_ms
        Current time in milliseconds since 1970. Times more than two days later are rejected as impossible.
    """

    def __init__(self, privacy: Pseudonymiser, now_ms: int) -> None:
        self.notes: Counter[str] = Counter()
        self._hash = privacy.of
        self._latest_ms = now_ms + AHEAD_MS
        self.robot = ValueCache(robot_name).__getitem__
        self.query, self.name = ValueCache(self._query).__getitem__, ValueCache(self._name).__getitem__
        self.action = ValueCache(self._action).__getitem__
        self.query_id, self.document = ValueCache(self._query_id).__getitem__, ValueCache(self._document).__getitem__
        self.user, self.session, self.network = (
            ValueCache(partial(self._person, kind)).__getitem__ for kind in ("user", "session", "network")
        )
        self._minute = ValueCache(_minute).__getitem__

    def time(self, value: Time | None) -> int | None:
        """Return milliseconds since 1970; None for a missing or impossible time (before 2000 or far in the future).

        Accepts ISO 8601 (UTC if no zone is given) or a number, also as text. The magnitude of a number decides whether
        it is seconds, milliseconds, microseconds or nanoseconds since 1970. Much smaller numbers are seconds since the
        beginning of a session.
        """
        if value is None:
            return None
        if isinstance(value, str):
            # Fast path for 2026-03-01T10:11:12.345Z: the minute is cached; seconds and milliseconds are added to it.
            part = value[17:19] + value[20:]
            minute = self._minute(value[:17]) if value[19:20] == "." else None
            if minute is not None and part[5:] == "Z" and part[:5].isdecimal() and part.isascii() and part < "6":
                milliseconds: int | None = minute + int(part[:5])
            else:
                milliseconds = self._parsed(value)
        else:
            milliseconds = self._number(value)
        if milliseconds is None:
            return None
        if EARLIEST_MS <= milliseconds <= self._latest_ms:
            return milliseconds
        self.notes["impossible_time" if milliseconds >= 0 else "relative_time"] += 1
        return None

    def _parsed(self, value: str) -> int | None:
        """Return the milliseconds of a time given as text; None, with a note, if it cannot be parsed."""
        # Eight digits are a date. ISO 8601 would read longer numbers such as 1715080380005 as a day of the year 1715.
        is_number = _NUMBER.fullmatch(value) is not None
        if is_number and len(value) != 8:
            return self._number(float(value) if "." in value else int(value))
        try:
            return (instant(value) - _EPOCH) // _MS
        except (ValueError, OverflowError):
            if is_number:
                return self._number(float(value))
            self.notes["unreadable_time"] += 1
            return None

    def _number(self, value: float) -> int:
        """Return the milliseconds of an epoch time; -1 for a number too small to be an epoch time."""
        if value < EARLIEST_MS // 1000:
            return -1
        self.notes["epoch_time"] += 1
        for first, factor, divisor in _UNITS:
            if first <= value < first * 10:
                return int(value * factor // divisor)
        return 0

    def _query(self, text: str | None) -> str:
        if text and len(text) > MAX_QUERY_CHARS:
            reason = f"the query text has {len(text)} characters: at most {MAX_QUERY_CHARS} are accepted"
            raise RecordError("query_too_long", reason)
        return redact(text) if text else ""

    def _action(self, text: str) -> str:
        """Return the action of the schema for an event's action name, or the redacted name if there is none."""
        name = self._name(text)
        return ACTIONS.get(name.lower().replace("-", "_").replace(" ", "_"), name)

    def _name(self, value: Id | None) -> str:
        """Return a short name (application, action), redacted; empty for None."""
        text = "" if value is None else str(value)
        if len(text) > MAX_QUERY_CHARS:
            raise RecordError("name_too_long", f"a name has {len(text)} characters: at most {MAX_NAME_CHARS} count")
        return redact(text)[:MAX_NAME_CHARS]

    def _query_id(self, value: Id | None) -> str:
        """Return a query id, empty if missing. An id that contains an e-mail address is hashed."""
        text = "" if value is None or value == "" else document_id(value, "query id")
        return self._hash("query", text) if "@" in text else text

    def _document(self, value: Id | None) -> str:
        return "" if value is None or value == "" else document_id(value)

    def _person(self, kind: Kind, value: Id | None) -> str:
        """Return the hash of a user, session, or network id; empty for None."""
        return "" if value is None else self._hash(kind, str(value))

    def ordinal(self, value: Any) -> int | None:
        """Return a position as logged; None if it is not an integer from 0 to a million (also as text)."""
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
        """Return a dwell time in seconds; None if it is missing or invalid."""
        try:
            seconds = float(value) if value is not None else -1.0
        except (ValueError, OverflowError):
            return None
        return seconds if 0 <= seconds < math.inf else None


def _minute(text: str) -> int | None:
    """Return the milliseconds of the beginning of a minute written as ``2026-03-01T10:11:``; None for other text."""
    try:
        return (instant(f"{text}00Z") - _EPOCH) // _MS if _MINUTE.fullmatch(text) else None
    except ValueError:
        return None


def document_id(value: Id | None, what: str = "document id") -> str:
    """Return an id as text.

    Raises `RecordError` for a missing or empty id, for one of more than 512 bytes, and for one with control characters
    or lone surrogates.
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
        raise RecordError("id_control", f"a {what} has control or invisible characters: remove them from the id")
    return text
