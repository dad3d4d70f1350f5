"""Modules to documents: one for each documented module, class and function that is public."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from reranker.demo.modules import Module
from reranker.records import Document

MIN_WORDS = 3
"""Docstrings of fewer words say nothing."""

Node = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_WORD_IN_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Scope:
    """What is known of one module for resolving names.

    Parameters
    ----------
    names : dict of str to str
        Names of the module to what they stand for: imports and top-level definitions.
    stars : list of str
        Modules whose names were imported all.
    bases : dict of str to list of str
        Class (dotted) to the written names of its bases.
    """

    names: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    bases: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """A definition: its document, and the syntax tree that its references are found in.

    Parameters
    ----------
    name : str
        Dotted.
    document : Document or None
        None for what is private or has no docstring: it is only passed through on the way to what has one.
    module : str
    node : ast node
    owner : str
        The class that a method belongs to, or the class itself; else empty.
    """

    name: str
    document: Document | None
    module: str
    node: Node
    owner: str = ""


def items_of(module: Module) -> Iterator[Item]:
    """Yield the module, its classes, methods and functions, in the order of the source."""
    text = _docstring(module.tree)
    document = None if text is None else _document(module.name, f"module {module.name.replace('.', ' ')}", text)
    yield Item(module.name, document, module.name, module.tree)
    yield from _definitions(module, module.tree, "")


def _definitions(module: Module, parent: Node, owner: str) -> Iterator[Item]:
    """Yield the definitions directly below a module or a class, and below its classes."""
    for node in _top_level(parent):
        name = f"{owner}.{node.name}" if owner else f"{module.name}.{node.name}"
        is_class = isinstance(node, ast.ClassDef)
        document = None
        if not _is_private(node.name) and (text := _docstring(node)) is not None:
            title = f"{_signature(node)} in {(owner or module.name).replace('.', ' ')}{_spoken(node.name)}"
            document = _document(name, title, text)
        yield Item(name, document, module.name, node, name if is_class else owner)
        if is_class:
            yield from _definitions(module, node, name)


def _top_level(parent: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the definitions of a body, also those inside ``if`` and ``try``; the first of a name counts."""
    seen: set[str] = set()
    stack: list[ast.AST] = list(reversed(list(ast.iter_child_nodes(parent))))
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            if node.name not in seen:
                seen.add(node.name)
                yield node
        elif isinstance(node, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _docstring(node: Node) -> str | None:
    text = ast.get_docstring(node, clean=True)
    return text if text is not None and len(text.split()) >= MIN_WORDS else None


def _signature(node: ast.AST) -> str:
    """Return ``name(parameters)``, or ``class name(bases)``."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    if isinstance(node, FUNCTIONS):
        arguments = node.args
        named = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        named += [f"*{one.arg}" for one in (arguments.vararg,) if one] + [
            f"**{one.arg}" for one in (arguments.kwarg,) if one
        ]
        return f"{node.name}({', '.join(name for name in named if name not in ('self', 'cls'))})"
    return ""


def _spoken(name: str) -> str:
    """Return the words of a compound name after a dash: people ask for "ordered dict", the code says OrderedDict."""
    words = _WORD_IN_NAME.findall(name)
    return f" - {' '.join(words).lower()}" if len(words) > 1 else ""


def _document(name: str, title: str, text: str) -> Document:
    return Document(name, {"title": title, "text": inspect.cleandoc(text)})


def scope_of(module: Module) -> Scope:
    """Return what the names of a module stand for; of two imports of one name the first counts."""
    scope = Scope()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                scope.names.setdefault(alias.asname or alias.name.split(".")[0],
                                       alias.name if alias.asname else alias.name.split(".")[0])  # fmt: skip
        elif isinstance(node, ast.ImportFrom):
            _add_from(scope, module, node)
    _add_definitions(scope, module.tree, module.name)
    return scope


def _add_from(scope: Scope, module: Module, node: ast.ImportFrom) -> None:
    """Add the names of a ``from ... import``."""
    origin = node.module or ""
    if node.level:
        parts = module.name.split(".")
        base = parts[: len(parts) - node.level + module.is_package]
        origin = ".".join([*base, *([node.module] if node.module else [])])
    for alias in node.names:
        if alias.name == "*":
            scope.stars.append(origin)
        else:
            scope.names.setdefault(alias.asname or alias.name, f"{origin}.{alias.name}")


def _add_definitions(scope: Scope, parent: Node, name: str) -> None:
    """Add top-level definitions, and the bases of all classes."""
    for node in _top_level(parent):
        dotted = f"{name}.{node.name}"
        if isinstance(parent, ast.Module):
            scope.names.setdefault(node.name, dotted)
        if isinstance(node, ast.ClassDef):
            scope.bases[dotted] = [ast.unparse(base) for base in node.bases]
            _add_definitions(scope, node, dotted)


def scopes_of(modules: Mapping[str, Module]) -> dict[str, Scope]:
    """Return module name → scope."""
    return {name: scope_of(module) for name, module in modules.items()}
