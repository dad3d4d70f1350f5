"""The project's own form: one shown result list a line, with what was clicked in it.

::

    {"query_id": "s1i1", "query": "civil war causes", "session": "2013-1", "user": null, "time": "99.396",
     "results": ["d1", "d2"], "clicks": [{"doc": "d1", "rank": 1, "time": "143.5", "end_time": "152.6"}],
     "add_to_cart": [], "purchases": [], "application": "shop", "randomised": false, "ip": "…", "user_agent": "…"}

Only ``query_id`` is needed. Ranks begin at 1. A time is ISO 8601, seconds or milliseconds since 1970, or seconds from
the beginning of the session: those tell how long a click lasted (``end_time`` - ``time``), but no day.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from reranker.clicks.readers.rows import EventRow, Rows, not_readable
from reranker.clicks.readers.values import EARLIEST_MS, document_id
from reranker.clicks.schema import CART, CLICK, PURCHASE
from reranker.formats.rejects import RecordError

_Id = str | int | None
_Time = str | int | float | None


class _Act(msgspec.Struct, gc=False):
    doc: str | int
    rank: int | float | None = None
    time: _Time = None
    end_time: _Time = None


class _Line(msgspec.Struct, gc=False):
    query_id: str | int
    query: str | None = None
    session: _Id = None
    user: _Id = None
    time: _Time = None
    results: list[str | int] | None = None
    clicks: list[_Act] | None = None
    add_to_cart: list[_Act] | None = None
    purchases: list[_Act] | None = None
    application: _Id = None
    randomised: bool | None = None
    ip: str | None = None
    user_agent: str | None = None


class JsonLinesReader:
    """Makes rows of the lines of a log in this project's form.

    Parameters
    ----------
    rows : Rows
        What is filled.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._decode = msgspec.json.Decoder(_Line).decode

    def take(self, line: bytes) -> None:
        """Take one line.

        Raises
        ------
        RecordError
            For a line of another form.
        """
        try:
            found = self._decode(line)
        except (ValueError, RecursionError) as error:
            raise not_readable(error) from None
        self._take(found)

    def take_value(self, value: object) -> None:
        """Take a line as decoded JSON.

        Raises
        ------
        RecordError
            As `take`.
        """
        try:
            found = msgspec.convert(value, _Line)
        except (ValueError, RecursionError) as error:
            raise not_readable(error) from None
        self._take(found)

    def _take(self, found: _Line) -> None:
        rows, values = self.rows, self.rows.values
        query_id = values.query_id(found.query_id)
        if not query_id:
            raise RecordError("no_query_id", "the query_id is empty: it must name the shown list")
        documents = [document_id(one, "result") for one in found.results or ()]
        time = values.time(found.time)
        session, user = values.person("session", found.session), values.person("user", found.user)
        network = values.person("network", found.ip or "")
        application = values.name(found.application)
        agent = values.robot(found.user_agent) if found.user_agent else ""
        query = values.query(found.query)
        acts: list[EventRow] = []
        for action, ones in ((CLICK, found.clicks), (CART, found.add_to_cart), (PURCHASE, found.purchases)):
            acts += [
                (query_id, action, document_id(one.doc), values.ordinal(one.rank), values.time(one.time),
                 _dwell(one.time, one.end_time), session, user, network, query, application, agent)
                for one in ones or ()
            ]  # fmt: skip
        rows.queries.append((query_id, query, session, user, network, time, application, agent, bool(found.randomised)))
        rows.add_hits(query_id, documents, time)
        rows.events += acts


def _dwell(start: _Time, end: _Time) -> float | None:
    """Return the seconds from one time to another, None where they do not say."""
    first, last = _seconds(start), _seconds(end)
    return last - first if first is not None and last is not None and last >= first else None


def _seconds(value: _Time) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        try:
            found = datetime.fromisoformat(str(value))
            return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    if not number < float("inf"):
        return None
    return number / 1000 if number >= EARLIEST_MS else number
