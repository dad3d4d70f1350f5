"""What engines can do is asked of them: outside of `reranker.engines`, no code goes by an engine's name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from reranker.engines.dialects import ELASTICSEARCH, OPENSEARCH, Dialect

ROOT = Path(__file__).parents[3]
NAMES = {"elasticsearch", "opensearch", "tantivy"}


def _names_in(path: Path) -> Iterator[str]:
    """Yield where a module has an engine's name as a text of its own, which only a comparison or a table needs.

    Parts of longer texts, such as the specs that open an engine, are no such texts.
    """
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in parts:
            continue
        if {node.value.lower(), node.value.lower().removesuffix(":")} & NAMES:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.value!r}"


def test_no_branch_on_the_name_of_an_engine() -> None:
    paths = [path for package in ("reranker", "indexer", "papers") for path in (ROOT / package).rglob("*.py")]
    outside = [path for path in paths if not path.is_relative_to(ROOT / "reranker" / "engines")]
    assert len(outside) > 100
    assert [place for path in outside for place in _names_in(path)] == []


@pytest.mark.parametrize("dialect", [ELASTICSEARCH, OPENSEARCH])
def test_a_version_can_do_what_every_version_can(dialect: Dialect) -> None:
    able = dialect.capabilities("9.9.9")
    for name in ("kind", "doc_value_hits", "max_bulk_bytes", "product"):
        assert getattr(able, name) == getattr(dialect.least, name)
    assert not dialect.least.sparse_terms
    assert able.sparse_terms
