"""Who may import whom: only lower levels or the own unit, few the indexer, and no modules each other in a circle."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[1]

LEVELS: tuple[tuple[str, ...], ...] = (
    (
        "reranker.accounts",
        "reranker.arrays",
        "reranker.config",
        "reranker.cores",
        "reranker.deadline",
        "reranker.errors",
        "reranker.heap",
        "reranker.lazy",
        "reranker.progress",
        "reranker.records",
        "reranker.tracing",
    ),
    (
        "reranker.kernels",
        "reranker.text",
        "reranker.formats",
        "reranker.figures",
        "reranker.files",
        "reranker.encoders",
    ),
    ("reranker.judgment_lists",),
    ("reranker.tables",),
    ("reranker.evaluation", "reranker.engines"),
    ("reranker.lexical",),
    ("reranker.models",),
    ("reranker.releases", "reranker.store", "reranker.clicks"),
    ("reranker.baselines", "reranker.rerank", "reranker.words", "indexer"),
    ("reranker.training",),
    ("reranker.demo", "reranker.retrain", "reranker.service", "reranker.quickstart"),
    ("reranker.cli",),
    ("papers",),
    ("reranker.__main__",),
)
"""Units (a package or a top module), lowest level first. ``reranker`` itself only hands out names, lazily."""

FROM_ANYWHERE = {"reranker.arrays", "reranker.errors", "reranker.records", "reranker.tracing"}
MAY_IMPORT_INDEXER = {"reranker.retrain", "reranker.service", "reranker.cli", "reranker.quickstart"}
LEVEL_OF = {unit: level for level, units in enumerate(LEVELS) for unit in units}


def unit_of(module: str) -> str:
    """Return the unit that a module belongs to: ``reranker.text.view`` → ``reranker.text``."""
    parts = module.split(".")
    return parts[0] if parts[0] in ("indexer", "papers") else ".".join(parts[:2])


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    for package in ("reranker", "indexer", "papers"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module) of every import of the project, wherever in the file it stands."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{origin}.{alias.name}" for alias in node.names] if origin == "reranker" else [origin]
        for name in names:
            if isinstance(node, ast.stmt) and name.split(".")[0] in ("reranker", "indexer", "papers"):
                yield node.lineno, name


def problem(importer: str, target: str) -> str:
    """Return why a module of unit ``importer`` may not import a module of unit ``target``, or an empty string."""
    if importer not in LEVEL_OF:
        return f"{importer} has no level: add it to LEVELS"
    if importer == target or target in FROM_ANYWHERE:
        return ""
    if target not in LEVEL_OF:
        return f"{target} has no level: import from where a thing is defined"
    if target == "indexer" and importer not in MAY_IMPORT_INDEXER:
        return f"only {', '.join(sorted(MAY_IMPORT_INDEXER))} import indexer"
    if LEVEL_OF[target] >= LEVEL_OF[importer]:
        return f"{target} (level {LEVEL_OF[target]}) is not below {importer} (level {LEVEL_OF[importer]})"
    return ""


def violations(root: Path) -> list[str]:
    found = []
    for module, path in modules(root):
        if module == "reranker":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, target in imported(tree, module, path.name == "__init__.py"):
            if reason := problem(unit_of(module), unit_of(target)):
                found.append(f"{path.relative_to(root)}:{line}: {reason}")
    return found


def import_circles(root: Path) -> list[list[str]]:
    """Return the circles as their imports, ``file:line imports module``, those of one group of modules together.

    Late imports and those under ``TYPE_CHECKING`` count like all others.
    """
    names = [module for module, _ in modules(root)]
    number_of = {name: number for number, name in enumerate(names)}
    edges: list[tuple[int, int, str]] = []
    for module, path in modules(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for line, target in imported(node, module, path.name == "__init__.py"):
                parts = [f"{target}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
                for name in {part if part in number_of else target for part in parts} or {target}:
                    if name in number_of:
                        text = f"{path.relative_to(root)}:{line} imports {name}"
                        edges.append((number_of[module], number_of[name], text))
    starts, ends, texts = zip(*edges, strict=True)
    graph = coo_array(([1] * len(edges), (starts, ends)), shape=(len(names), len(names)))
    _, group_of = connected_components(graph, connection="strong")
    groups = defaultdict(list)
    for start, end, text in zip(starts, ends, texts, strict=True):
        if group_of[start] == group_of[end]:
            groups[group_of[start]].append(text)
    return list(groups.values())


def test_every_import_goes_down() -> None:
    assert violations(ROOT) == []


def test_no_modules_import_each_other() -> None:
    assert import_circles(ROOT) == []


@pytest.mark.parametrize(
    "back",
    [
        "import reranker.text.view\n",
        "from reranker.text import view\n",
        "def f():\n    from .view import TextView\n",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from reranker.text.view import TextView\n",
    ],
    ids=["plainly", "from its package", "late", "for types alone"],
)
def test_a_planted_circle_is_found(tmp_path: Path, back: str) -> None:
    folder = tmp_path / "reranker" / "text"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "view.py").write_text("from reranker.text import markup\n")
    (folder / "markup.py").write_text("from reranker.text.words import cut\n")
    (folder / "words.py").write_text("import re\n")
    assert import_circles(tmp_path) == []
    (folder / "words.py").write_text(back)
    (circle,) = import_circles(tmp_path)
    assert len(circle) == 3 and "reranker/text/view.py:1 imports reranker.text.markup" in circle


def test_every_unit_has_a_level() -> None:
    units = {unit_of(module) for module, _ in modules(ROOT)} - {"reranker"}
    assert units <= set(LEVEL_OF), f"without a level: {sorted(units - set(LEVEL_OF))}"
    assert len(units) > 10


def test_the_package_itself_imports_nothing_of_the_project_when_it_is_imported() -> None:
    tree = ast.parse((ROOT / "reranker" / "__init__.py").read_text(encoding="utf-8"))
    typing_only = [
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    ]
    eager = [
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in typing_only
        for line, _ in imported(node, "reranker", True)
    ]
    assert eager == []


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (
            "reranker/text/view.py",
            "from reranker.engines import open_engine\n",
            "view.py:1: reranker.engines (level 4)",
        ),
        ("reranker/text/view.py", "import reranker.cli.main\n", "view.py:1: reranker.cli (level 11)"),
        (
            "reranker/text/view.py",
            "def f():\n    from ..engines.protocol import Engine\n",
            "view.py:2: reranker.engines",
        ),
        ("reranker/text/__init__.py", "from ..cli import main\n", "__init__.py:1: reranker.cli"),
        ("reranker/models/scorers.py", "from reranker.store import VectorStore\n", "is not below reranker.models"),
        ("reranker/demo/run.py", "from indexer.build import build_index\n", "import indexer"),
        ("indexer/bulk.py", "from reranker import RankingModel\n", "reranker.RankingModel has no level"),
        ("reranker/novelty.py", "from reranker.text import view\n", "reranker.novelty has no level"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, path: str, text: str, expected: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    found = violations(tmp_path)
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("reranker/text/view.py", "from reranker.text.analyzers import split\nfrom .words import split\n"),
        ("reranker/config.py", "from reranker.errors import ConfigError\nfrom reranker import errors\n"),
        ("reranker/cli/index.py", "import numpy\nfrom indexer.build import build_index\n"),
    ],
)
def test_what_is_allowed_is_not_reported(tmp_path: Path, path: str, text: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert violations(tmp_path) == []


def public_names(root: Path) -> dict[str, set[str]]:
    """Return each public function and class that modules define, with the files that define it."""
    defined: dict[str, set[str]] = {}
    for module, path in modules(root):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if not node.name.startswith("_"):
                defined.setdefault(node.name, set()).add(module)
    return defined


# The click command of each module of reranker.cli, and of the papers, which the group finds there.
COMMAND = "command"


def test_a_public_name_stands_for_one_thing() -> None:
    shared = {name: sorted(found) for name, found in public_names(ROOT).items() if len(found) > 1 and name != COMMAND}
    assert shared == {}, "tell them apart by their names, or merge them"


def test_a_planted_second_meaning_is_found(tmp_path: Path) -> None:
    (tmp_path / "reranker").mkdir()
    for name in ("first", "second"):
        (tmp_path / "reranker" / f"{name}.py").write_text("def f():\n    pass\n\ndef _g():\n    pass\n")
    assert {name: len(found) for name, found in public_names(tmp_path).items()} == {"f": 2}
