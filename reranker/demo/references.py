"""Documents to links: what their code calls and what their texts name, as far as that is documented itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from reranker.demo.collect import FUNCTIONS, Item, Scope

Link = tuple[str, str]

MAX_DEPTH = 6
"""Aliases followed (``json.JSONDecoder`` → ``json.decoder.JSONDecoder``), and steps up a class's bases."""

MAX_STEPS = 2
"""Undocumented definitions (private helpers) that a link may lead through."""

MAX_LINKS_TO_ONE = 60
"""What more documents than this refer to (``str``, ``open``) tells nothing about any of them: no link leads there."""

_NAME = re.compile(r"(?<![\w.])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?![\w])(\(?)")


class Resolver:
    """Written names to ids of documents.

    Parameters
    ----------
    scopes : mapping of module to Scope
    ids : collection of str
        Ids of the documents.
    """

    def __init__(self, scopes: Mapping[str, Scope], ids: Collection[str]) -> None:
        self._scopes = scopes
        self._ids = set(ids)
        self._bases = {name: (module, bases) for module, scope in scopes.items() for name, bases in scope.bases.items()}

    def resolve(self, name: str, module: str, owner: str = "") -> str | None:
        """Return the id that a dotted name stands for in a module (and class), or None."""
        first, _, rest = name.partition(".")
        if first in ("self", "cls"):
            return self._member(owner, rest.split(".")[0], 0) if owner and rest else None
        scope = self._scopes[module]
        target = scope.names.get(first)
        if target is None:
            target = next((f"{star}.{first}" for star in scope.stars if self._known(f"{star}.{first}")), None)
        if target is None:
            return None
        return self._documented(f"{target}.{rest}" if rest else target, 0)

    def imports(self, module: str) -> Iterator[str]:
        """Yield the ids of what a module imports."""
        for target in self._scopes[module].names.values():
            if not target.startswith(f"{module}.") and (found := self._documented(target, 0)) is not None:
                yield found

    def absolute(self, name: str) -> str | None:
        """Return the id that a full name such as ``os.path.join`` stands for, or None."""
        return self._documented(name, 0) if name.partition(".")[0] in self._scopes else None

    def member(self, owner: str, name: str) -> str | None:
        """Return the id of a class's method, its own or a base's, or None."""
        return self._member(owner, name, 0)

    def _known(self, name: str) -> bool:
        module, _, last = name.rpartition(".")
        return name in self._ids or (module in self._scopes and last in self._scopes[module].names)

    def _documented(self, name: str, depth: int) -> str | None:
        """Return the id of an absolute name, following aliases and, for members, base classes."""
        if name in self._ids:
            return name
        if depth >= MAX_DEPTH:
            return None
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:cut])
            if module in self._scopes:
                return self._in_module(module, parts[cut:], depth)
        return None

    def _in_module(self, module: str, rest: Sequence[str], depth: int) -> str | None:
        scope, first = self._scopes[module], rest[0]
        alias = scope.names.get(first)
        own = f"{module}.{first}"
        if alias is not None and alias != own:
            return self._documented(".".join([alias, *rest[1:]]), depth + 1)
        if own in self._bases and len(rest) > 1:
            return self._member(own, rest[1], depth + 1) or (own if own in self._ids else None)
        if alias is None:
            found = (self._documented(".".join([star, *rest]), depth + 1) for star in scope.stars)
            return next((one for one in found if one), None)
        return None

    def _member(self, owner: str, name: str, depth: int) -> str | None:
        if f"{owner}.{name}" in self._ids:
            return f"{owner}.{name}"
        if depth >= MAX_DEPTH or owner not in self._bases:
            return None
        module, bases = self._bases[owner]
        for base in bases:
            dotted = self._scopes[module].names.get(base.partition(".")[0])
            if dotted is None:
                continue
            rest = base.partition(".")[2]
            found = self._member(f"{dotted}.{rest}" if rest else dotted, name, depth + 1)
            if found:
                return found
        return None


def links_of(items: Sequence[Item], scopes: Mapping[str, Scope]) -> list[Link]:
    """Return the links between documents, sorted, each once, none from a document to itself or to what it is part of.

    Parameters
    ----------
    items : sequence of Item
        All definitions: references to those without a document count as references to what these refer to in turn.
    scopes : mapping of module to Scope
    """
    resolver = Resolver(scopes, [item.name for item in items])
    documents = {item.name for item in items if item.document is not None}
    direct = {item.name: {*_of_code(item, resolver), *_of_text(item, resolver)} for item in items}
    links: set[Link] = set()
    for source in documents:
        targets = _through_undocumented(source, direct, documents)
        links.update((source, target) for target in targets if not f"{source}.".startswith(f"{target}."))
    return _without_hubs(links)


def _through_undocumented(source: str, direct: Mapping[str, set[str]], documents: Collection[str]) -> set[str]:
    """Return the documents that a definition refers to, directly or by way of `MAX_STEPS` undocumented ones."""
    reached, edge = {source}, {source}
    found: set[str] = set()
    for _ in range(MAX_STEPS + 1):
        edge = set().union(*(direct[name] for name in edge)) - reached
        reached |= edge
        found |= {name for name in edge if name in documents}
        edge = {name for name in edge if name not in documents}
    return found


def _without_hubs(links: Iterable[Link]) -> list[Link]:
    counts: dict[str, int] = {}
    for _, target in links:
        counts[target] = counts.get(target, 0) + 1
    return sorted(link for link in links if counts[link[1]] <= MAX_LINKS_TO_ONE)


def _of_code(item: Item, resolver: Resolver) -> Iterator[str]:
    """Yield what the code of an item refers to: names, attributes of imported modules, methods of ``self``."""
    if isinstance(item.node, ast.Module):
        yield from resolver.imports(item.module)
    for node in _own_nodes(item.node):
        name = _dotted(node)
        if name is not None and (found := resolver.resolve(name, item.module, item.owner)) is not None:
            yield found


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a definition; of modules and classes only what is outside of definitions of their own."""
    stack = list(ast.iter_child_nodes(node))
    inside = isinstance(node, FUNCTIONS)
    while stack:
        one = stack.pop()
        yield one
        if isinstance(one, ast.Attribute) and _dotted(one) is not None:
            continue
        if inside or not isinstance(one, (ast.ClassDef, *FUNCTIONS)):
            stack.extend(ast.iter_child_nodes(one))


def _dotted(node: ast.AST) -> str | None:
    """Return ``a.b.c`` for a name or a chain of attributes that starts with one."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def _of_text(item: Item, resolver: Resolver) -> Iterator[str]:
    """Yield what the text of an item names: full names, and names that cannot be plain English words."""
    if item.document is None:
        return
    text = str(item.document.source["text"])
    for match in _NAME.finditer(text):
        name, bracket = match.groups()
        if "." in name:
            found = resolver.absolute(name) or resolver.resolve(name, item.module, item.owner)
        elif bracket or "_" in name or name[1:] != name[1:].lower() or text[max(match.start() - 1, 0)] in "`'":
            found = (resolver.member(item.owner, name) if item.owner else None) or resolver.resolve(name, item.module)
        else:
            found = None
        if found is not None:
            yield found
