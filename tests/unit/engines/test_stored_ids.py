"""The look-up of ids at an engine: in batches, bounded, and with the reason if it is not possible."""

from __future__ import annotations

from typing import Any

import pytest

from reranker.engines import stored_ids as module
from reranker.engines.protocol import WriteOp
from reranker.engines.stored_ids import stored_ids
from reranker.errors import EngineAuthError, EngineError, EngineRejected, EngineUnavailable
from tests.engines.memory import memory_engine


class Counted:
    """An engine with 25 documents, which counts searches and can fail."""

    def __init__(self, error: EngineError | None = None) -> None:
        self._engine, self._error = memory_engine(), error
        self._engine.create_index("shop", {"properties": {"title": {"type": "text"}}})
        self._engine.bulk("shop", [WriteOp("index", f"d{number}", {"title": "x"}) for number in range(25)])
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def search(self, index: str, body: Any, **options: Any) -> Any:
        self.sizes.append(len(body["query"]["ids"]["values"]))
        if self._error is not None:
            raise self._error
        return self._engine.search(index, body, **options)


def look_up(engine: Any, n: int) -> module.StoredIds:
    return stored_ids(engine, "shop", [f"d{number}" for number in range(n)])


def test_batches_find_all_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDS_PER_REQUEST", 10)
    engine = Counted()
    assert look_up(engine, 32) == (frozenset(f"d{number}" for number in range(25)), "")
    assert engine.sizes == [10, 10, 10, 2]


def test_too_many_ids_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOOKED_UP", 30)
    engine = Counted()
    assert look_up(engine, 30).ids is not None
    assert look_up(engine, 31) == (None, "ids of documents were not checked, because there are 31 (at most 30)")
    assert len(engine.sizes) == 1


def test_an_engine_that_refuses_the_search_is_named_and_one_that_fails_raises() -> None:
    for error in (EngineRejected("no ids here", status=400), EngineAuthError("no ids here", status=403)):
        refused = look_up(Counted(error), 3)
        assert refused.ids is None and refused.note.endswith("because the engine refused the search: no ids here")
    for failure in (EngineUnavailable("gone"), EngineAuthError("wrong password", status=401)):
        with pytest.raises(type(failure)):
            look_up(Counted(failure), 3)
