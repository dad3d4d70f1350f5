"""Documents and links of a Python library: its definitions, and what their code calls and their text names.

The source files are parsed, never imported. Each public module, class and function with a docstring is a document.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reranker.errors import InputError
from reranker.evaluation import IdPair
from reranker.records import Document

SKIPPED = frozenset(
    (
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "turtledemo",
        "pydoc_data",
        "site-packages",
        "dist-packages",
        "encodings",
        "ensurepip",
        "distutils",
        "lib-dynload",
        "__pycache__",
        "__phello__",
        "_pyrepl",
        "ntpath",
        "nturl2path",
        "antigravity",
        "this",
        "__main__",
    )
)
"""Skipped folders and files: tests, programs, tables, and duplicates of other modules."""

MIN_WORDS = 3
"""Docstrings with fewer words are skipped, because they contain too little information."""
MAX_DEPTH = 6
"""Maximum number of aliases to follow (``json.JSONDecoder`` → ``json.decoder.JSONDecoder``) and of base classes."""
MAX_STEPS = 2
"""Maximum number of undocumented definitions (private helpers) on the path of a link."""
MAX_LINKS_TO_ONE = 60
"""Targets of more links are left out, because such definitions (``str``, ``open``) are related to everything."""
PYTHON = "Python " + ".".join(map(str, sys.version_info[:3]))
"""Name and version of the documented Python, such as ``Python 3.11.7``."""
_WORD_IN_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_NAME = re.compile(r"(?<![\w.])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?![\w])(\(?)")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A parsed source file."""

    name: str
    tree: ast.Module
    is_package: bool


def library_folder() -> Path:
    """Return the folder of the standard library. Raises `InputError` if it has no source files."""
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "os.py").is_file():
        raise InputError(
            f"this Python has no source files of its standard library in {str(folder)!r}: the "
            "demonstration reads them; use a Python that has them (most installations do)",
            path=str(folder),
        )
    return folder


def read_modules(folder: Path) -> Iterator[Module]:
    """Yield the modules of a library, sorted by name. Files that cannot be parsed are skipped."""
    for name, path in sorted(_files(folder)):
        tree = None
        with suppress(OSError, SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with tokenize.open(path) as file:
                tree = ast.parse(file.read())
        if tree is not None:
            yield Module(name, tree, path.name == "__init__.py")


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        names = parts[:-1] if parts[-1] == "__init__" else parts
        unwanted = (part in SKIPPED or part.startswith("_sysconfigdata") or not part.isidentifier() for part in parts)
        if names and not any(unwanted):
            yield ".".join(names), path


@dataclass(frozen=True)
class DemoEntry:
    """A module, class or function of the library."""

    name: str
    """Full name."""
    document: Document | None
    """None if it has no sufficient docstring; links can then only pass through it."""
    module: str
    """Full name of its module."""
    node: ast.Module | Definition
    owner: str = ""
    """Name of the class that it belongs to; "" if none."""


def entries_of(module: Module) -> Iterator[DemoEntry]:
    """Yield the module and its classes, methods and functions, in the order of the source."""
    title = f"module {module.name.replace('.', ' ')}"
    yield DemoEntry(module.name, _document(module.name, title, module.tree), module.name, module.tree)
    yield from _definitions(module, module.tree, "")


def _definitions(module: Module, parent: ast.Module | Definition, owner: str) -> Iterator[DemoEntry]:
    """Yield the definitions in a module or a class, and in its classes. Of equal names, only the first is yielded."""
    nodes: dict[str, Definition] = {}
    for node in _top_level(parent):
        nodes.setdefault(node.name, node)
    for node in nodes.values():
        name = f"{owner}.{node.name}" if owner else f"{module.name}.{node.name}"
        is_class = isinstance(node, ast.ClassDef)
        is_private = node.name.startswith("_") and not (node.name.startswith("__") and node.name.endswith("__"))
        # People search for "ordered dict", but the name in the code is OrderedDict.
        words = _WORD_IN_NAME.findall(node.name)
        spoken = f" - {' '.join(words).lower()}" if len(words) > 1 else ""
        title = f"{_signature(node)} in {(owner or module.name).replace('.', ' ')}{spoken}"
        document = None if is_private else _document(name, title, node)
        yield DemoEntry(name, document, module.name, node, name if is_class else owner)
        if is_class:
            yield from _definitions(module, node, name)


def _top_level(parent: ast.AST) -> Iterator[Definition]:
    """Yield the definitions of a body, including those inside ``if`` and ``try``."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Definition):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            yield from _top_level(node)


def _document(name: str, title: str, node: ast.Module | Definition) -> Document | None:
    """Return the document of a definition; None if its docstring has fewer than `MIN_WORDS` words."""
    text = ast.get_docstring(node) or ""
    return Document(name, {"title": title, "text": text}) if len(text.split()) >= MIN_WORDS else None


def _signature(node: Definition) -> str:
    """Return ``name(parameters)``, or ``class name(bases)``."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    arguments = node.args
    named = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    named += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    named += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return f"{node.name}({', '.join(name for name in named if name not in ('self', 'cls'))})"


class Resolver:
    """Resolves names in the source code to definitions."""

    def __init__(self, modules: Iterable[Module], items: Iterable[DemoEntry]) -> None:
        self._known = {item.name for item in items}
        # Full name → replacements: an import → its origin, a class → its bases, a module → the modules of its
        # ``import *``.
        self._meanings: dict[str, list[str]] = defaultdict(list)
        for module in modules:
            for name, meaning in _imports(module):
                self._meanings[name].append(meaning)
        for item in items:
            if isinstance(item.node, ast.ClassDef):
                self._meanings[item.name] += [f"{item.module}.{ast.unparse(base)}" for base in item.node.bases]

    def resolve(self, name: str, depth: int = 0) -> str | None:
        """Return the definition of a full name, or None. The longest known prefix is replaced, step by step."""
        if name in self._known:
            return name
        beginning, rest = name, ""
        while beginning and beginning not in self._known and beginning not in self._meanings:
            beginning, _, last = beginning.rpartition(".")
            rest = f".{last}{rest}"
        meanings = self._meanings.get(beginning, []) if depth < MAX_DEPTH else []
        return next(filter(None, (self.resolve(meaning + rest, depth + 1) for meaning in meanings)), None)


def _imports(module: Module) -> Iterator[tuple[str, str]]:
    """Yield (full name within the module, full name of the origin) for each import of a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield f"{module.name}.{alias.asname or first}", alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            parts = module.name.split(".")
            package = parts[: len(parts) - node.level + module.is_package] if node.level else []
            origin = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                if alias.name == "*":
                    yield module.name, origin
                else:
                    yield f"{module.name}.{alias.asname or alias.name}", f"{origin}.{alias.name}"


def links_of(items: Sequence[DemoEntry], resolver: Resolver) -> list[IdPair]:
    """Return the links between documents, also through undocumented definitions.

    Links from a document to itself, or to the module or class that contains it, are left out.
    """
    documents = {item.name for item in items if item.document is not None}
    direct = {item.name: set(filter(None, map(resolver.resolve, _references(item)))) for item in items}
    links: set[IdPair] = set()
    for source in documents:
        targets = _through_undocumented(source, direct, documents)
        links.update((source, target) for target in targets if not f"{source}.".startswith(f"{target}."))
    counts = Counter(target for _, target in links)
    return sorted(link for link in links if counts[link[1]] <= MAX_LINKS_TO_ONE)


def _through_undocumented(source: str, direct: Mapping[str, set[str]], documents: Collection[str]) -> set[str]:
    """Return the documents that a definition refers to, directly or through up to `MAX_STEPS` undocumented ones."""
    reached, edge = {source}, {source}
    targets: set[str] = set()
    for _ in range(MAX_STEPS + 1):
        edge = set().union(*(direct[name] for name in edge)) - reached
        reached |= edge
        targets |= {name for name in edge if name in documents}
        edge = {name for name in edge if name not in documents}
    return targets


def _references(item: DemoEntry) -> Iterator[str]:
    """Yield the full names in the code of an item, and those in its text that are not plain English words."""
    for node in _own_nodes(item.node):
        if (name := _dotted(node)) is not None:
            first, _, rest = name.partition(".")
            is_own = first in ("self", "cls") and item.owner
            yield f"{item.owner}.{rest.partition('.')[0]}" if is_own else f"{item.module}.{name}"
    text = str(item.document.source["text"]) if item.document else ""
    for match in _NAME.finditer(text):
        name, bracket = match.groups()
        if bracket or {".", "_"} & {*name} or name[1:] != name[1:].lower() or text[max(match.start() - 1, 0)] in "`'":
            yield from (f"{item.owner}.{name}", f"{item.module}.{name}", name if "." in name else "")


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the syntax nodes of a definition. For modules and classes, nodes of nested definitions are left out."""
    stack = list(ast.iter_child_nodes(node))
    inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    while stack:
        child = stack.pop()
        yield child
        if isinstance(child, ast.Attribute) and _dotted(child) is not None:
            continue
        if inside or not isinstance(child, Definition):
            stack.extend(ast.iter_child_nodes(child))


def _dotted(node: ast.AST) -> str | None:
    """Return ``a.b.c`` for a name, a chain of attributes that starts with a name, or an import; otherwise None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.alias):
        return node.asname or node.name
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None
