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
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("reranker", "indexer", "papers")
"""Packages whose code counts. Of benchmarks and tests, only the code counts that they import."""
PROGRAMS = ("reranker", "ssi")
"""Words by which a benchmark starts the program. The commands that it names then count, with their imports."""
WITHOUT_EFFECT = (
    "reranker/cli/main.py",
    "reranker/cli/common.py",
    "reranker/training/report.py",
    "papers/report.py",
)
"""Files that read options or write pages. No figure depends on them, so that they and their imports do not count."""
LOADED_BY_NAME = {
    "papers/registry.py": "papers/registry.py",
}
"""A file that loads modules by name → the file that names them, such as ``"papers.graded_tasks:TASKS"``."""
MODULE = re.compile(r"(?:reranker|indexer|papers)(?:\.\w+)+(?=:\w+$|$)")
"""A module's name in a text."""


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
    """Return the project's files that a script imports, directly or by others, with the script itself.

    Modules that the product loads by name count, too. If the script starts the program, the commands count that are
    named in it or in a benchmark that it imports.
    """
    reached = _reached_from([script], root)
    words = [word for path in reached if _is_of_benchmark(path, root) for word in _texts_of(path)]
    return reached | _reached_from(_files_of_commands(words, root), root) if set(words) & set(PROGRAMS) else reached


def _reached_from(files: Iterable[Path], root: Path) -> set[Path]:
    reached: set[Path] = set()
    waiting = list(files)
    while waiting:
        path = waiting.pop()
        if path not in reached and path.relative_to(root).as_posix() not in WITHOUT_EFFECT:
            reached.add(path)
            waiting += _imported(path, root)
    return reached


def _files_of_commands(words: Iterable[str], root: Path) -> Iterator[Path]:
    """Yield the files of the commands among some words: modules of `reranker.cli`, and entry points."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry_points = project.get("entry-points", {}).get("ssi.commands", {})
    for word in set(words):
        if word in entry_points:
            yield from _files_of(entry_points[word].partition(":")[0], root / "pyproject.toml", root)
        elif word.isidentifier():
            yield from _files_of(f"reranker.cli.{word}", root / "pyproject.toml", root)


def _is_of_benchmark(path: Path, root: Path) -> bool:
    """Return whether a file belongs to a benchmark or test: its own code does not count, its imports do."""
    return path.relative_to(root).parts[0] not in PRODUCT and path.name != "provenance.py"


@cache
def _texts_of(path: Path) -> tuple[str, ...]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@cache
def _imported(path: Path, root: Path) -> frozenset[Path]:
    """Return the project's files that a file imports anywhere in it."""
    return frozenset(_files_named(path, root)) if path.name != "provenance.py" else frozenset()


def _files_named(path: Path, root: Path) -> Iterator[Path]:
    """Yield the project's files that a file names; of a package, those that are loaded with any of its modules."""
    yield from _files_imported(path, root, with_functions=path.name != "__init__.py")
    if names := LOADED_BY_NAME.get(path.relative_to(root).as_posix()):
        for text in _texts_of(root / names):
            if named := MODULE.match(text):
                yield from _files_of(named[0], path, root)


def _files_imported(path: Path, root: Path, with_functions: bool) -> Iterator[Path]:
    for node in _nodes_that_run(ast.parse(path.read_text(encoding="utf-8")), with_functions):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name, path, root)
                if alias.name == "reranker":  # its public names are attributes
                    yield from (root / "reranker").rglob("*.py")
        elif isinstance(node, ast.ImportFrom) and node.module:
            package = root.joinpath(*node.module.split("."), "__init__.py")
            loaded = _loaded_by_name(package)
            yield from _files_of(node.module, path, root)
            for alias in node.names:
                yield from _files_of(loaded.get(alias.name, f"{node.module}.{alias.name}"), path, root)
                if alias.name in _functions_of(package):
                    yield from _files_imported(package, root, with_functions=True)


def _nodes_that_run(tree: ast.AST, with_functions: bool) -> Iterator[ast.AST]:
    """Yield the nodes that are executed: none that only type checkers read, and those of functions if asked for."""
    for node in ast.iter_child_nodes(tree):
        is_for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        if not is_for_types and (with_functions or not isinstance(node, ast.FunctionDef)):
            yield node
            yield from _nodes_that_run(node, with_functions)


@cache
def _functions_of(package: Path) -> frozenset[str]:
    """Return the functions that the ``__init__`` of a package defines; none if there is no such file."""
    if not package.is_file():
        return frozenset()
    body = ast.parse(package.read_text(encoding="utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef))


@cache
def _loaded_by_name(package: Path) -> dict[str, str]:
    """Return the public names that a package loads on first use: name → module.

    The package's ``__init__`` has a table of them: module → names.
    """
    if not package.is_file():
        return {}
    tables = (node for node in ast.walk(ast.parse(package.read_text(encoding="utf-8"))) if isinstance(node, ast.Dict))
    return {
        name.value: key.value
        for table in tables
        for key, names in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and MODULE.fullmatch(key.value)
        for name in ast.walk(names)
        if isinstance(name, ast.Constant) and isinstance(name.value, str)
    }


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
