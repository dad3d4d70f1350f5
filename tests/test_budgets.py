"""Budgets for lines of code, options, routes and classes of errors. They may only fall.

A change that raises a number edits it here, so that it is seen. A number that has fallen is lowered here too, so that
what was gained is kept: each must be within `SLACK` of its budget.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import click

from reranker import errors
from reranker.cli.main import COMMANDS, main
from reranker.service.app import OWN_PARTS, all_parts
from tests.engines.policy import library

ROOT = Path(__file__).resolve().parents[1]
SLACK = 0.05
"""Share by which a number may be below its budget."""
LINES: dict[str, int] = {
    "reranker": 3580,
    "reranker/baselines": 420,
    "reranker/cli": 4640,
    "reranker/clicks": 3490,
    "reranker/demo": 645,
    "reranker/engines": 4330,
    "reranker/kernels": 1010,
    "reranker/lexical": 1175,
    "reranker/models": 1350,
    "reranker/rerank": 2940,
    "reranker/retrain": 1830,
    "reranker/service": 4480,
    "reranker/text": 1000,
    "reranker/training": 3730,
    "indexer": 2580,
}
"""Unit → lines of code, without docstrings, comments and blank lines."""
OPTIONS: dict[str, int] = {
    "demo": 8,
    "init": 5,
    "train": 21,
    "index": 15,
    "search": 15,
    "serve": 37,
    "calibrate": 20,
    "revectorize": 11,
    "sync": 14,
    "embed": 10,
    "vectorize": 6,
    "impacts": 6,
    "versions": 5,
    "promote": 5,
    "rollback": 4,
    "gc": 6,
    "uninstall": 4,
    "clicks": 55,
    "retrain": 22,
    "interleave": 5,
    "evaluate": 19,
    "drift": 6,
    "words": 12,
    "reproduce": 17,
}
"""Command → options, without ``--help``."""
ROUTES = 25
"""HTTP routes of the service, with those of its pages."""
ERRORS = 22
"""Classes of errors."""


def code_lines(path: Path) -> int:
    """Return the number of lines with code: no docstrings, comments and blank lines."""
    text = path.read_text(encoding="utf-8")
    strings = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    told = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = (token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in layout)
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - told)


def lines_by_unit() -> dict[str, int]:
    """Return the lines of code of each package and of the modules beside them."""
    found: dict[str, int] = {}
    for package in ("reranker", "indexer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            unit = "/".join(parts[:2]) if len(parts) > 2 else package
            found[unit] = found.get(unit, 0) + code_lines(path)
    return found


def options_by_command() -> dict[str, int]:
    """Return the number of options of each command; those of a group are added up."""
    context = click.Context(main, info_name="ssi")

    def count(command: click.Command) -> int:
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        own = sum(isinstance(one, click.Option) and not one.hidden for one in command.params)
        return own + sum(map(count, inner))

    return {name: count(command) for name in COMMANDS if (command := main.get_command(context, name)) is not None}


def within(found: dict[str, int], budget: dict[str, int]) -> None:
    """Assert that each number is at most its budget, and not much lower."""
    assert found.keys() == budget.keys()
    above = {name: (number, budget[name]) for name, number in found.items() if number > budget[name]}
    assert not above, "more than the budget: remove something, or raise the number here and say why"
    below = {name: number for name, number in found.items() if number < (1 - SLACK) * budget[name] - 1}
    assert not below, "less than the budget: lower the number here"


def test_lines_of_code() -> None:
    within(lines_by_unit(), LINES)


def test_commands_and_options() -> None:
    library("sklearn")  # for `ssi reproduce`
    within(options_by_command(), OPTIONS)


def test_routes_and_errors() -> None:
    routes = sum(len(part.router.routes) for part in (*OWN_PARTS, *all_parts()))
    kinds = sum(isinstance(one, type) and issubclass(one, Exception) for one in vars(errors).values())
    within({"routes": routes, "errors": kinds}, {"routes": ROUTES, "errors": ERRORS})
