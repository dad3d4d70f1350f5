"""The page of versions names the public Python names, the formats that the program reads, and the engines."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import reranker
from reranker import releases, store
from reranker.clicks import log
from reranker.engines import tantivy
from reranker.models import manifest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text under a heading, up to the next one."""
    return re.split(r"\n#+ ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1)[0]


def test_the_public_python_names_are_documented() -> None:
    table = [line.split("|")[1] for line in section("Python names").splitlines() if line.startswith("| `")]
    named = re.findall(r"`(\w+)`", " ".join(table))
    assert sorted(named) == sorted(reranker.__all__)


@pytest.mark.parametrize("name", reranker.__all__)
def test_a_public_name_can_be_imported_and_is_described(name: str) -> None:
    value = getattr(reranker, name)
    assert (value.__doc__ or "").strip()
    assert not (value.__doc__ or "").startswith(f"{name}("), "the docstring is the one that dataclass writes"


@pytest.mark.parametrize("package", ["indexer", "papers", "plugin_scripts"])
def test_packages_without_stable_names_have_no_list_of_them(package: str) -> None:
    assert not hasattr(importlib.import_module(package), "__all__")


def test_the_formats_are_those_that_the_program_reads() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section("Formats").splitlines() if "|" in line
    ]
    written = {cells[0]: (cells[1], cells[3]) for cells in rows[2:]}
    assert written["vector store"] == (f"`{store.FORMAT}`", str(store.FORMAT_VERSION))
    assert written["click log"] == (f"`{log.FORMAT}`", str(log.FORMAT_VERSION))
    assert written["releases in `ssi-control`"][1] == str(releases.FORMAT_VERSION)
    assert written["embedded index"][1] == str(tantivy.FORMAT)
    name, versions = written["model folder"]
    first, last = manifest.FORMAT_VERSIONS[0], manifest.FORMAT_VERSIONS[-1]
    assert name == f"`{manifest.FORMAT}`" and versions.startswith(f"{first} to {last},")
    assert tuple(range(first, last + 1)) == manifest.FORMAT_VERSIONS


def test_the_engines_and_the_version_of_python_are_those_of_the_reference() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    text = section("Supported engines and Python")
    for engine, lines in re.findall(r"(Elasticsearch|OpenSearch) (\d+ and \d+)", text):
        assert f"| {engine} {lines} |" in reference
    needed = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert needed is not None and f"Python {needed[1]} or later" in text
