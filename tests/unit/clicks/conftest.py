"""The readable definition of the click steps, in place of DuckDB."""

from __future__ import annotations

import pytest

from tests.reference.click_steps import write_result


@pytest.fixture(params=["duckdb", "plain"])
def by_both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test by DuckDB, and again by the definition."""
    if request.param == "plain":
        monkeypatch.setattr("reranker.clicks.pairs._write_result", write_result)
