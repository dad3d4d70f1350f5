"""The `about` of every kept result: command, seed, version, program, date and machine; and how results are written.

The *program* of a result is a digest of the product's code that its benchmark depends on, by imports. Results of one
program can be compared; a result of an earlier program may no longer hold.
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("reranker", "indexer", "papers")
"""Packages whose code counts. Benchmarks and tests are only followed to the code that they import."""
COMMANDS = ("reranker", "ssi")
"""Names by which a benchmark runs the program's commands. These load their modules by name, so all of them count."""


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write results as JSON, with how they came about under ``about``; a ``seed`` among them stands there (else 0)."""
    arguments = [Path(sys.argv[0]).name, *sys.argv[1:]]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    about = {
        "command": f"python benchmarks/{shlex.join(arguments)}",
        "seed": results.get("seed", 0),
        "version": metadata.version("ssi-reranker"),
        "program": program_of(ROOT / "benchmarks" / arguments[0]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": results.get("machine", machine),
    }
    rest = {name: value for name, value in results.items() if name not in ("about", "machine", "seed")}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, **rest}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def program_of(script: Path, root: Path = ROOT) -> str:
    """Return the digest of the product's code that a script depends on, 12 hex digits.

    Docstrings, comments and layout do not count. SQL counts with the package that contains it.
    """
    total = hashlib.sha256()
    modules = sorted(path for path in reached_from(script, root) if path.relative_to(root).parts[0] in PRODUCT)
    for path in modules:
        total.update(f"{path.relative_to(root).as_posix()}\n{_code_of(path)}\n".encode())
    for folder in sorted({path.parent for path in modules}):
        for query in sorted(folder.rglob("*.sql")):
            total.update(f"{query.relative_to(root).as_posix()}\n".encode() + query.read_bytes())
    return total.hexdigest()[:12]


def reached_from(script: Path, root: Path = ROOT) -> set[Path]:
    """Return the project's files that a script imports, directly or by others, with the script itself."""
    reached: set[Path] = set()
    waiting = [script]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += _imported(path, root)
    return reached


@cache
def _imported(path: Path, root: Path) -> frozenset[Path]:
    """Return the project's files that a file imports anywhere in it."""
    return frozenset(_files_named(path, root)) if path.name != "provenance.py" else frozenset()


def _files_named(path: Path, root: Path) -> Iterator[Path]:
    is_product = path.relative_to(root).parts[0] in PRODUCT
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name, path, root)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "reranker" and not is_product:  # its public names are loaded by name
                yield from (root / "reranker").rglob("*.py")
            yield from _files_of(node.module, path, root)
            for alias in node.names:
                yield from _files_of(f"{node.module}.{alias.name}", path, root)
        elif not is_product and isinstance(node, ast.Constant) and node.value in COMMANDS:
            for package in ("reranker", "indexer"):
                yield from (root / package).rglob("*.py")


def _files_of(module: str, importer: Path, root: Path) -> Iterator[Path]:
    """Yield the file of a module, and the ``__init__`` files of its packages; nothing for modules of others."""
    parts = module.split(".")
    beside = importer.parent / f"{parts[0]}.py"  # benchmarks import each other without a package
    if len(parts) == 1 and beside.is_file():
        yield beside
    for n in range(1, len(parts) + 1):
        folder = root.joinpath(*parts[:n])
        for path in (folder / "__init__.py", folder.with_suffix(".py")):
            if path.is_file():
                yield path


@cache
def _code_of(path: Path) -> str:
    """Return the code of a file without docstrings, comments and layout."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            lines = getattr(node, name, None)
            if isinstance(lines, list):
                setattr(node, name, [line for line in lines if not _is_text(line)])
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is only a text: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
