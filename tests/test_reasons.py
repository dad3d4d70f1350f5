"""Nothing in the product decides by the words of a message: errors and reasons carry data for that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS_OF_TEXT = {
    "startswith",
    "endswith",
    "match",
    "search",
    "fullmatch",
    "find",
    "index",
    "split",
    "partition",
    "rpartition",
}
WORDS = ("message", "reason")
"""Attributes and variables that hold a message for people."""
JUSTIFIED = {
    ("indexer/bulk.py", "reason"): "engines give the byte counts of indexing pressure in the words of the error alone",
    ("reranker/clicks/pairs.py", "str(error)"): "DuckDB has one class for all faults of files, without an errno",
    ("reranker/engines/tantivy.py", "str(error)"): "tantivy raises ValueError for all it does, without a code",
}
"""Messages of engines and libraries that state a cause by nothing else."""


def messages(node: ast.expr, caught: set[str]) -> Iterator[str]:
    """Yield the parts of an expression that are a message: ``x.message``, ``x.reason``, ``str(error)``."""
    if isinstance(node, ast.Name) and node.id in WORDS:
        yield node.id
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part.attr in WORDS:
            yield ast.unparse(part)
        if isinstance(part, ast.Call) and ast.unparse(part.func) in ("str", "repr") and part.args:
            if isinstance(part.args[0], ast.Name) and part.args[0].id in caught | {"error"}:
                yield ast.unparse(part)


def decisions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, message) wherever the words of a message are compared, searched or cut."""
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare) and not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TESTS_OF_TEXT:
            parts = [node.func.value, *node.args]
        elif isinstance(node, ast.Match):
            parts = [node.subject]
        for part in parts:
            if not (isinstance(part, ast.Attribute) and part.attr == "kind"):
                for message in messages(part, caught):
                    yield part.lineno, message


def found(root: Path) -> dict[tuple[str, str], int]:
    return {
        (path.relative_to(root).as_posix(), message): line
        for package in ("reranker", "indexer", "papers")
        for path in sorted((root / package).rglob("*.py"))
        for line, message in decisions(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_nothing_decides_by_the_words_of_a_message() -> None:
    assert found(ROOT).keys() == JUSTIFIED.keys()


@pytest.mark.parametrize(
    "line",
    [
        'if "no model" in page.reason: ...',
        'if error.message.startswith("the deadline"): ...',
        'known = re.search("^no", str(error))',
        'kind = page.reason.text.split(":")[0]',
        'same = error.message == "x"',
        'gone = reason.startswith("document_missing")',
    ],
)
def test_a_planted_decision_is_found(line: str) -> None:
    assert list(decisions(ast.parse(line)))


@pytest.mark.parametrize("line", ["if reason.kind is kind: ...", "if page.reason is None: ...", "say(error.message)"])
def test_data_and_shown_messages_are_not_reported(line: str) -> None:
    assert not list(decisions(ast.parse(line)))
