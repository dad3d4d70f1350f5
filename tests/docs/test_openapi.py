"""The OpenAPI description in the documentation is that of the service."""

from __future__ import annotations

import json
from pathlib import Path

from tests.docs.openapi import description

ROOT = Path(__file__).resolve().parents[2]


def test_the_description_of_the_routes_is_current() -> None:
    kept = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert kept == description(), (
        "docs/openapi.json is not what the routes are: run  python -m tests.docs.openapi > docs/openapi.json"
    )


def test_the_description_names_the_routes_that_the_guide_documents() -> None:
    guide = (ROOT / "docs" / "guide" / "api.md").read_text(encoding="utf-8")
    described = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    assert [path for path in described["paths"] if f"{path}`" not in guide] == []
    assert described["security"] == [{"key": []}]
