"""Which rows of a click log go: those of a person, and those that are too old."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reranker.clicks.batches import PEOPLE, TIME_COLUMN, arrow
from reranker.clicks.layout import Manifest, Part, read_part
from reranker.clicks.parts import days_of, times_of

if TYPE_CHECKING:
    from reranker.clicks.log import ClickLog
    from reranker.clicks.privacy import Pseudonymiser

_Mask = npt.NDArray[np.bool_]


@dataclass
class Forgotten:
    """Whose rows are kept out of a log.

    Parameters
    ----------
    people : dict
        Hash of a user or session → milliseconds until which their rows are kept out; undated rows are kept out too.
    queries : set of str
        Hashes (`query_hash`) of their query ids: rows of these queries that name nobody are kept out.
    """

    people: dict[str, int] = field(default_factory=dict)
    queries: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, manifest: Manifest) -> Forgotten:
        """Return what a log remembers."""
        return cls(dict(manifest.forgotten), set(manifest.forgotten_queries))

    def filter(self, tables: dict[str, Any]) -> dict[str, Any]:
        """Return the Arrow tables of a batch without the rows of the forgotten."""
        if not self.people:
            return tables
        pa = arrow()
        kept = dict(tables)
        for name in kept.keys() & {"queries", "events", PEOPLE}:
            gone = self._people(kept[name]) if name == PEOPLE else self._theirs(kept[name])
            kept[name] = kept[name].filter(pa.array(~gone))
        if "hits" in kept:
            before, after = (_all(one["queries"]) if "queries" in one else set() for one in (tables, kept))
            gone_ids = (before | self._known(kept["hits"])) - after
            kept["hits"] = kept["hits"].filter(pa.array(~_among(kept["hits"], "query_id", gone_ids)))
        return {name: table for name, table in kept.items() if table.num_rows}

    def _theirs(self, table: Any) -> _Mask:
        nameless = _nobody(table) & _among(table, "query_id", self._known(table))
        by_session = self._until(table, "session") & _among(table, "user", {""})
        return self._until(table, "user") | by_session | nameless

    def _people(self, table: Any) -> _Mask:
        # A client first met after its person was forgotten stays linked: forgetting them again must find its rows.
        return self._until(table, "user")

    def _known(self, table: Any) -> set[str]:
        """Return the query ids of a table that are of the forgotten."""
        return {one for one in _all(table) if query_hash(one) in self.queries}

    def _until(self, table: Any, column: str) -> _Mask:
        """Return which rows are of the forgotten, and not of later."""
        pa = arrow()
        import pyarrow.compute as pc

        names = pa.array(sorted(self.people), pa.string())
        limits = pa.array([self.people[one] for one in sorted(self.people)], pa.int64())
        limit = pc.fill_null(pc.take(limits, pc.index_in(table[column], value_set=names)), -1).to_numpy()
        found: _Mask = (limit >= 0) & (times_of(table, "time") <= limit)
        return found


def query_hash(query_id: str) -> str:
    """Return what is remembered of a forgotten query's id."""
    return blake2b(query_id.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def parts_without(
    log: ClickLog, user: str, privacy: Pseudonymiser, now_ms: int
) -> tuple[Forgotten, list[tuple[Part, Any]]]:
    """Return who is forgotten until now, and the parts that change, with the rows that remain (None for none)."""
    # An empty id has no hash, and rows that name nobody have none either.
    users, sessions = {privacy.of("user", user)} - {""}, {privacy.of("session", user)} - {""}
    aliases = frozenset(users)
    for _, table in _tables(log, PEOPLE):
        users |= _set_of(table, "user", _among(table, "alias", aliases))
    return _without(log, _Person(log, users, sessions), now_ms)


def clients_found_later(log: ClickLog, searched: Set[str]) -> dict[int, set[str]]:
    """Return the clients that a log links to forgotten people only since then: time of forgetting → clients.

    Parts (by path) that were ``searched`` before are not read again.
    """
    known = log.manifest.forgotten
    found: dict[int, set[str]] = {}
    for part in log.manifest.parts if known else ():
        if part.table != PEOPLE or not part.rows or part.path in searched:
            continue
        table = read_part(log.folder / part.path, part.table)
        linked = table.filter(arrow().array(_among(table, "alias", set(known))))
        for alias, client in zip(linked["alias"].to_pylist(), linked["user"].to_pylist(), strict=True):
            if client and client not in known:
                found.setdefault(known[alias], set()).add(client)
    return found


def parts_without_clients(log: ClickLog, clients: set[str], until_ms: int) -> tuple[Forgotten, list[tuple[Part, Any]]]:
    """Return the same as `parts_without` for clients (hashes), whose rows after a moment stay."""
    return _without(log, _Person(log, clients, set(), until_ms), until_ms)


def _without(log: ClickLog, person: _Person, until_ms: int) -> tuple[Forgotten, list[tuple[Part, Any]]]:
    changed: list[tuple[Part, Any]] = []
    for part, table in _tables(log):
        gone = person.gone(part.table, table)
        if gone.any():
            changed.append((part, None if gone.all() else table.filter(arrow().array(~gone))))
    hashes = {query_hash(one) for one in person.queries}
    return Forgotten(dict.fromkeys([*person.users, *person.sessions], until_ms), hashes), changed


class _Person:
    """The ids and the queries of one person in a log; holds one part of the log at a time.

    With ``until_ms`` rows of later times are not theirs to be removed.
    """

    def __init__(self, log: ClickLog, users: set[str], sessions: set[str], until_ms: int | None = None) -> None:
        self.users, self.sessions, self._until_ms = set(users), set(sessions), until_ms
        for _, table in _tables(log, "queries", "events"):
            self.sessions |= _set_of(table, "session", _among(table, "user", self.users) & self._in_time(table))
        self.queries = self._queries(log)
        self.whole = self._whole(log)

    def gone(self, name: str, table: Any) -> _Mask:
        """Return which rows of a table go, (n,) bool."""
        if name == "hits":
            return _among(table, "query_id", self.whole)
        if name == PEOPLE:
            linked = _among(table, "alias", self.users) | _among(table, "user", self.users)
            return linked & self._in_time(table)
        nameless = _nobody(table) & _among(table, "query_id", self.queries) & self._in_time(table)
        return self._named(table) | nameless

    def _named(self, table: Any) -> _Mask:
        """Return which rows name the person: by user, or by session where no user stands beside it."""
        by_session = _among(table, "session", self.sessions) & _among(table, "user", {""})
        return (_among(table, "user", self.users) | by_session) & self._in_time(table)

    def _in_time(self, table: Any) -> _Mask:
        """Return which rows are not of later times; those without a time are not."""
        if self._until_ms is None:
            return np.ones(table.num_rows, dtype=bool)
        early: _Mask = times_of(table, "time") <= self._until_ms
        return early

    def _queries(self, log: ClickLog) -> set[str]:
        """Return the ids of queries that are theirs and, as far as the log says, nobody else's."""
        theirs: set[str] = set()
        for _, table in _tables(log, "queries", "events"):
            theirs |= _set_of(table, "query_id", self._named(table))
        others: set[str] = set()
        for _, table in _tables(log, "queries", "events"):
            named_other = ~self._named(table) & ~_nobody(table)
            others |= _set_of(table, "query_id", named_other & _among(table, "query_id", theirs))
        return theirs - others

    def _whole(self, log: ClickLog) -> set[str]:
        """Return the ids of queries of which no row remains, so that their hits go too."""
        gone: set[str] = set()
        kept: set[str] = set()
        for _, table in _tables(log, "queries"):
            gone |= _set_of(table, "query_id", self.gone("queries", table))
        for _, table in _tables(log, "queries"):
            kept |= _set_of(table, "query_id", ~self.gone("queries", table) & _among(table, "query_id", gone))
        return gone - kept


def expired_parts(log: ClickLog, first_day: int) -> Iterator[tuple[Part, Any]]:
    """Yield the parts with rows older than a day (since 1970), and the rows that remain (None for none)."""
    for part in log.manifest.parts:
        if not part.rows:
            continue
        if part.imported < first_day or (part.last_day is not None and part.last_day < first_day):
            yield part, None
        elif part.first_day is not None and part.first_day < first_day:
            table = read_part(log.folder / part.path, part.table)
            kept = days_of(table, TIME_COLUMN[part.table]) >= first_day
            yield part, table.filter(arrow().array(kept))


def _tables(log: ClickLog, *names: str) -> Iterator[tuple[Part, Any]]:
    """Yield the parts that have rows, of some tables or of all, with the rows."""
    for part in log.manifest.parts:
        if part.rows and (not names or part.table in names):
            yield part, read_part(log.folder / part.path, part.table)


def _all(table: Any) -> set[str]:
    return _set_of(table, "query_id", np.ones(table.num_rows, dtype=bool))


def _among(table: Any, column: str, wanted: Set[str]) -> _Mask:
    """Return which rows have one of the values, (n,) bool."""
    pa = arrow()
    import pyarrow.compute as pc

    found: _Mask = pc.is_in(table[column], value_set=pa.array(sorted(wanted), pa.string())).to_numpy()
    return found


def _nobody(table: Any) -> _Mask:
    return _among(table, "user", {""}) & _among(table, "session", {""})


def _set_of(table: Any, column: str, rows: _Mask) -> set[str]:
    """Return the values, but the empty one, of some rows."""
    return set(table[column].filter(arrow().array(rows)).to_pylist()) - {""}
