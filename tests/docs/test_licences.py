"""The page of licences names every pinned package with the licence that it states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.licences import DEVELOPMENT, EXTRAS, PROGRAM, licence, needed, page, pins, users

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")


def lines_of(text: str) -> dict[str, str]:
    """Return name → line of the table."""
    return {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}


def test_the_page_names_the_pinned_packages() -> None:
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    listed = {name: line.split(" | ")[1] for name, line in lines_of(PAGE).items() if name != "package"}
    assert listed == pinned, "run  python -m tests.docs.licences > docs/licences.md"
    assert not any("| ? |" in line or "|  |" in line for line in lines_of(PAGE).values())


def test_the_page_is_current_for_the_packages_that_are_installed() -> None:
    kept, now = lines_of(PAGE), lines_of(page())
    here = {name: line for name, line in now.items() if "| ? |" not in line}
    assert here == {name: kept[name] for name in here}, "run  python -m tests.docs.licences > docs/licences.md"


def test_packages_are_those_of_the_program_of_its_extras_or_of_development() -> None:
    who = users()
    assert {who[name] for name in ("numpy", "llvmlite", "starlette")} == {PROGRAM}
    assert {who[name] for name in ("onnxruntime", "tokenizers", "opentelemetry-sdk")} == {EXTRAS}
    assert all(f"{DEVELOPMENT} |" in lines_of(PAGE)[name] for name in ("pytest", "schemathesis", "cyclonedx-bom"))


def test_markers_and_extras_of_requirements_count() -> None:
    assert needed(["numpy ; python_version < '3'"]) == set()
    assert "requests" in needed(["opensearch-py"])
    assert "aiohttp" not in needed(["opensearch-py"]) and "aiohttp" in needed(["opensearch-py[async]"])


@pytest.mark.parametrize(("name", "stated"), [("click", "BSD-3-Clause"), ("scipy", "BSD License"), ("rich", "MIT")])
def test_the_licence_of_a_package(name: str, stated: str) -> None:
    assert licence(name) == stated
