"""CITATION.cff, CONTRIBUTING.md and SECURITY.md state what the project's other files do."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from reranker.service.auth import ROLES
from tests.test_layering import LEVELS, MAY_IMPORT_INDEXER

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_citation_names_the_version_and_licence_of_the_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    about = PROJECT["project"]
    assert (cited["cff-version"], cited["title"]) == ("1.2.0", about["name"])
    assert (cited["version"], cited["license"]) == (about["version"], about["license"])
    assert cited["keywords"] == about["keywords"]
    assert " ".join(cited["abstract"].split()).rstrip(".") == about["description"]
    assert len(cited["references"]) == 3 and all(one["authors"] for one in cited["references"])
    held = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert f"by {cited['authors'][0]['name']}" in held or cited["authors"][0]["name"] in held


def test_the_package_has_no_classifier_of_a_licence_next_to_the_expression() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert [one for one in classifiers if one.startswith("License ::")] == [] and classifiers == sorted(classifiers)


def test_the_contributing_page_is_short_and_names_every_package_and_marker() -> None:
    assert len(CONTRIBUTING.splitlines()) <= 80
    assert [unit for level in LEVELS for unit in level if f"`{unit}`" not in CONTRIBUTING] == []
    assert [unit for unit in MAY_IMPORT_INDEXER if f"`{unit}`" not in CONTRIBUTING] == []
    markers = [one.partition(":")[0] for one in PROJECT["tool"]["pytest"]["ini_options"]["markers"]]
    assert [one for one in markers if f"`{one}`" not in CONTRIBUTING] == []


def test_the_contributing_page_lists_the_levels_in_their_order() -> None:
    items = re.findall(r"^\d+\. (.*(?:\n   .*)*)", CONTRIBUTING, re.MULTILINE)
    listed = [tuple(sorted(re.findall(r"`([\w.]+)`", item))) for item in items]
    assert listed == [tuple(sorted(level)) for level in LEVELS]


@pytest.mark.parametrize("text", [CONTRIBUTING, SECURITY], ids=["contributing", "security"])
def test_paths_and_commands_that_the_pages_name_exist(text: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [one for one in re.findall(r"`make ([a-z-]+)", text) if f"\n{one}:" not in makefile] == []
    named = re.findall(r"`((?:tests|benchmarks|docs|reranker|indexer|papers)/[\w./-]*)`", text)
    assert [one for one in named if not (ROOT / one).exists()] == []


def test_the_security_page_names_the_roles_and_options_that_there_are() -> None:
    options = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [one for one in ROLES if f"`{one}`" not in SECURITY] == []
    keys = {one: f"`{one[2:].replace('-', '_')}`" for one in re.findall(r"`(--[a-z-]+)", SECURITY)}
    assert [one for one, key in keys.items() if f"`{one}" not in options and key not in options] == []


def test_the_contributing_page_states_the_limits_of_the_linter() -> None:
    limits = PROJECT["tool"]["ruff"]
    assert f"{limits['line-length']} characters" in CONTRIBUTING
    assert f"complexity of at most {limits['lint']['mccabe']['max-complexity']}" in CONTRIBUTING
    assert f"at most {limits['lint']['pylint']['max-args']} arguments" in CONTRIBUTING
