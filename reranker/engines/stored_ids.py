"""Look-up of ids at an engine: which ids of judgments and links belong to documents of an index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace
from typing import NamedTuple

from reranker.accounts import InputAccount, account_of_ids
from reranker.engines.protocol import MAX_HITS, Engine, id_fault
from reranker.errors import EngineAuthError, EngineRejected

IDS_PER_REQUEST = 1000
MAX_LOOKED_UP = 1_000_000
"""Largest number of ids that are looked up. They take as many requests as the searches of a calibration."""


class StoredIds(NamedTuple):
    """Result of a look-up of ids."""

    ids: frozenset[str] | None
    """Those of the ids that belong to a document; None if they could not be looked up."""
    note: str = ""
    """Reason why they could not be looked up."""


FindIds = Callable[[Collection[str]], StoredIds]
"""Function that looks up ids."""


def no_look_up(ids: Collection[str]) -> StoredIds:
    """Return that the ids are not known here."""
    return StoredIds(None)


class IdCheck(NamedTuple):
    """Check of the ids of judgments or links."""

    receive: Callable[[InputAccount], None] = lambda account: None
    """Receives the account. It may raise an error if too many ids are unknown."""
    find: FindIds = no_look_up
    """Looks up ids of documents."""

    def known(
        self, kind: str, grades: Mapping[str, Mapping[str, float]], queries: Container[str]
    ) -> dict[str, dict[str, float]]:
        """Return the grades (query id → document id → grade) of known queries and documents."""
        found = self.find({document for query, judged in grades.items() if query in queries for document in judged})
        pairs = ((query, document) for query, judged in grades.items() for document in judged)
        self.receive(replace(account_of_ids(kind, pairs, queries, found.ids), note=found.note))
        return {
            query: {document: grade for document, grade in judged.items() if found.ids is None or document in found.ids}
            for query, judged in grades.items()
            if query in queries
        }


NO_CHECK = IdCheck()
"""A check that knows no document, and so accepts all of them."""


def stored_ids(engine: Engine, index: str, ids: Collection[str]) -> StoredIds:
    """Return which of the ids belong to a document that searches of an index (or alias) can find.

    Documents with any routing are found, and only those that the filter of an alias lets through. Raises `EngineError`
    if the engine does not answer; if it refuses the search, this is in ``note``.
    """
    wanted = sorted(id_ for id_ in set(ids) if id_fault(id_) is None)
    if len(wanted) > MAX_LOOKED_UP:
        return StoredIds(
            None, f"ids of documents were not checked, because there are {len(wanted):,} (at most {MAX_LOOKED_UP:,})"
        )
    found: set[str] = set()
    try:
        # Several indexes behind an alias may have a document with the same id.
        n_copies = max(1, len(engine.index_names(index)))
        batch = max(1, min(IDS_PER_REQUEST, MAX_HITS // n_copies))
        for start in range(0, len(wanted), batch):
            part = wanted[start : start + batch]
            size = min(MAX_HITS, len(part) * n_copies)
            body = {"query": {"ids": {"values": part}}, "size": size, "_source": False}
            found.update(hit.id for hit in engine.search(index, body).hits)
    except (EngineRejected, EngineAuthError) as error:
        if error.status == 401:
            raise
        return StoredIds(None, f"ids of documents were not checked, because the engine refused the search: {error}")
    return StoredIds(frozenset(found))
