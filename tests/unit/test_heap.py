"""Tests of the setting of the C library's heap."""

from __future__ import annotations

import pytest

from reranker.heap import share_arenas


def test_threads_share_their_arenas_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, int]]()

    class Library:
        def __init__(self, _: None) -> None:
            self.mallopt = self.keep

        def keep(self, name: int, value: int) -> int:
            asked.append((name, value))
            return 1

    monkeypatch.setattr("reranker.heap.ctypes.CDLL", Library)
    assert share_arenas(3) and asked == [(-8, 3)]
    monkeypatch.setattr("reranker.heap.ctypes.CDLL", lambda _: object())
    assert not share_arenas(3), "another C library has no such setting"
