"""Events of Metarank: rankings (a shown list) and interactions (what was done in it); items and users are passed over.

Source: the event schema of Metarank 0.7 (``doc/event-schema.md``). The text of a query is a ranking's field ``query``;
a ranking without it, of a recommendation, keeps an empty text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reranker.clicks.readers.rows import Rows, not_readable
from reranker.clicks.readers.values import document_id
from reranker.formats.rejects import RecordError

_Id = str | int | None


class _Field(msgspec.Struct, gc=False):
    name: str
    value: Any = None


class _Item(msgspec.Struct, gc=False):
    id: str | int


class _Event(msgspec.Struct, gc=False):
    event: str
    id: _Id = None
    ranking: _Id = None
    timestamp: str | int | float | None = None
    user: _Id = None
    session: _Id = None
    type: str | None = None
    item: _Id = None
    items: list[_Item] | None = None
    fields: list[_Field] | None = None


class MetarankReader:
    """Makes rows of Metarank events.

    Parameters
    ----------
    rows : Rows
        What is filled.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._decode = msgspec.json.Decoder(_Event).decode

    def take(self, line: bytes) -> None:
        """Take one line.

        Raises
        ------
        RecordError
            For a line that is no event.
        """
        try:
            found = self._decode(line)
        except (ValueError, RecursionError) as error:
            raise not_readable(error) from None
        self._take(found)

    def take_value(self, value: object) -> None:
        """Take an event as decoded JSON.

        Raises
        ------
        RecordError
            As `take`.
        """
        try:
            found = msgspec.convert(value, _Event)
        except (ValueError, RecursionError) as error:
            raise not_readable(error) from None
        self._take(found)

    def _take(self, found: _Event) -> None:
        if found.event == "ranking":
            self._ranking(found)
        elif found.event == "interaction":
            self._interaction(found)
        elif found.event in ("item", "user"):
            self.rows.n_skipped += 1
        else:
            raise RecordError("unknown_event", "the event is none of ranking, interaction, item, user")

    def _ranking(self, found: _Event) -> None:
        rows, values = self.rows, self.rows.values
        query_id = values.query_id(found.id)
        if not query_id:
            raise RecordError("no_query_id", "a ranking without id: no interaction can be joined to it")
        documents = [document_id(one.id, "item id") for one in found.items or ()]
        fields = _texts(found.fields)
        time = values.time(found.timestamp)
        agent = fields.get("user_agent") or fields.get("ua") or ""
        rows.queries.append((
            query_id, values.query(fields.get("query", "")), values.person("session", found.session),
            values.person("user", found.user), values.person("network", fields.get("ip", "")), time, "",
            values.robot(agent), False,
        ))  # fmt: skip
        rows.add_hits(query_id, documents, time)

    def _interaction(self, found: _Event) -> None:
        values = self.rows.values
        fields = _texts(found.fields)
        agent = fields.get("user_agent") or fields.get("ua") or ""
        self.rows.events.append((
            values.query_id(found.ranking), values.action(found.type or ""), document_id(found.item, "item"),
            None, values.time(found.timestamp), None, values.person("session", found.session),
            values.person("user", found.user), values.person("network", fields.get("ip", "")), "", "",
            values.robot(agent),
        ))  # fmt: skip


def _texts(fields: list[_Field] | None) -> dict[str, str]:
    """Return the fields with a text."""
    return {one.name: one.value for one in fields or () if isinstance(one.value, str)}
