"""The readable definition of the click steps as one more backend."""

from __future__ import annotations

import pytest

from reranker.clicks.pairs import BACKENDS
from tests.reference.click_steps import PLAIN


@pytest.fixture(autouse=True)
def plain_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "plain", PLAIN)
