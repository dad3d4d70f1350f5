"""The demonstration's input, as files that `ssi train` reads too: documents, links and their split.

The standard library's source files are parsed, never imported. Each documented module, class and function that is
public is a document, and links to what its code calls and its text names, as far as that is documented itself.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import shutil
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reranker.errors import GateRefused, InputError
from reranker.records import Document

SKIPPED = frozenset(
    ("test", "tests", "idlelib", "lib2to3", "turtledemo", "pydoc_data", "site-packages", "dist-packages", "encodings",
     "ensurepip", "distutils", "lib-dynload", "__pycache__", "__phello__", "_pyrepl", "ntpath.py", "nturl2path.py",
     "antigravity.py", "this.py")
)  # fmt: skip
"""Folders and files left out: tests, programs, tables, and doubles of other modules."""

MAX_FILE_BYTES = 1_000_000
MIN_WORDS = 3
"""Docstrings of fewer words say nothing."""
MAX_DEPTH = 6
"""Aliases followed (``json.JSONDecoder`` → ``json.decoder.JSONDecoder``), and steps up a class's bases."""
MAX_STEPS = 2
"""Undocumented definitions (private helpers) that a link may lead through."""
MAX_LINKS_TO_ONE = 60
"""What more documents than this refer to (``str``, ``open``) tells nothing about any of them: no link leads there."""
MARK = "made-by-ssi-demo.txt"
PARTS = ("train", "valid", "test")
_SHARES = (0.8, 0.9, 1.0)
_WORD_IN_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_NAME = re.compile(r"(?<![\w.])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?![\w])(\(?)")

Node = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Link = tuple[str, str]


@dataclass(frozen=True)
class Module:
    """A parsed source file."""

    name: str
    tree: ast.Module
    is_package: bool


def library_folder() -> Path:
    """Return the folder of the running Python's standard library.

    Raises
    ------
    InputError
        If it has no source files (some installations carry compiled files alone).
    """
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "os.py").is_file():
        raise InputError(
            f"the Python running this has no source files of its standard library in {str(folder)!r}: the "
            "demonstration reads them; use a Python that has them (most installations do)",
            path=str(folder),
        )
    return folder


def read_modules(folder: Path) -> Iterator[Module]:
    """Yield the modules of a library in the order of their names; files that do not parse are passed over."""
    for name, path in sorted(_files(folder)):
        tree = _parsed(path)
        if tree is not None:
            yield Module(name, tree, path.name == "__init__.py")


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (module name, file) of every file worth reading."""
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        wanted = not any(part in SKIPPED or part.startswith(("config-", "_sysconfigdata")) for part in parts)
        if wanted and all(part.removesuffix(".py").isidentifier() for part in parts):
            names = [*parts[:-1], *([] if parts[-1] == "__init__.py" else [parts[-1].removesuffix(".py")])]
            if names and names[-1] != "__main__":
                yield ".".join(names), path


def _parsed(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file, or None where it cannot be read as Python."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


@dataclass
class Scope:
    """What is known of one module for resolving names.

    ``names`` are its imports and top-level definitions with what they stand for, ``stars`` the modules whose names
    were imported all, ``bases`` the written names of the bases of each class (dotted).
    """

    names: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    bases: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """A definition: its document, and the syntax tree that its references are found in.

    ``document`` is None for what is private or has no docstring: it is only passed through on the way to what has one.
    ``owner`` is the class that a method belongs to, or the class itself.
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
        is_private = node.name.startswith("_") and not (node.name.startswith("__") and node.name.endswith("__"))
        if not is_private and (text := _docstring(node)) is not None:
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
        named = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        named += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
        named += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
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


class Resolver:
    """Written names to ids of documents."""

    def __init__(self, scopes: Mapping[str, Scope], ids: Collection[str]) -> None:
        self._scopes = scopes
        self._ids = set(ids)
        self._bases = {name: (module, bases) for module, scope in scopes.items() for name, bases in scope.bases.items()}

    def resolve(self, name: str, module: str, owner: str = "") -> str | None:
        """Return the id that a dotted name stands for in a module (and class), or None."""
        first, _, rest = name.partition(".")
        if first in ("self", "cls"):
            return self.member(owner, rest.split(".")[0]) if owner and rest else None
        scope = self._scopes[module]
        target = scope.names.get(first)
        if target is None:
            target = next((f"{star}.{first}" for star in scope.stars if self._known(f"{star}.{first}")), None)
        if target is None:
            return None
        return self._documented(f"{target}.{rest}" if rest else target)

    def imports(self, module: str) -> Iterator[str]:
        """Yield the ids of what a module imports."""
        for target in self._scopes[module].names.values():
            if not target.startswith(f"{module}.") and (named := self._documented(target)) is not None:
                yield named

    def absolute(self, name: str) -> str | None:
        """Return the id that a full name such as ``os.path.join`` stands for, or None."""
        return self._documented(name) if name.partition(".")[0] in self._scopes else None

    def _known(self, name: str) -> bool:
        module, _, last = name.rpartition(".")
        return name in self._ids or (module in self._scopes and last in self._scopes[module].names)

    def _documented(self, name: str, depth: int = 0) -> str | None:
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
            return self.member(own, rest[1], depth + 1) or (own if own in self._ids else None)
        if alias is None:
            names = (self._documented(".".join([star, *rest]), depth + 1) for star in scope.stars)
            return next(filter(None, names), None)
        return None

    def member(self, owner: str, name: str, depth: int = 0) -> str | None:
        """Return the id of a class's method, its own or a base's, or None."""
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
            if inherited := self.member(f"{dotted}.{rest}" if rest else dotted, name, depth + 1):
                return inherited
        return None


def links_of(items: Sequence[Item], scopes: Mapping[str, Scope]) -> list[Link]:
    """Return the links between documents, sorted, each once, none from a document to itself or to what it is part of.

    ``items`` are all definitions: references to those without a document count as references to what these refer to.
    """
    resolver = Resolver(scopes, [item.name for item in items])
    documents = {item.name for item in items if item.document is not None}
    direct = {item.name: {*_of_code(item, resolver), *_of_text(item, resolver)} for item in items}
    links: set[Link] = set()
    for source in documents:
        targets = _through_undocumented(source, direct, documents)
        links.update((source, target) for target in targets if not f"{source}.".startswith(f"{target}."))
    counts = Counter(target for _, target in links)
    return sorted(link for link in links if counts[link[1]] <= MAX_LINKS_TO_ONE)


def _through_undocumented(source: str, direct: Mapping[str, set[str]], documents: Collection[str]) -> set[str]:
    """Return the documents that a definition refers to, directly or by way of `MAX_STEPS` undocumented ones."""
    reached, edge = {source}, {source}
    targets: set[str] = set()
    for _ in range(MAX_STEPS + 1):
        edge = set().union(*(direct[name] for name in edge)) - reached
        reached |= edge
        targets |= {name for name in edge if name in documents}
        edge = {name for name in edge if name not in documents}
    return targets


def _of_code(item: Item, resolver: Resolver) -> Iterator[str]:
    """Yield what the code of an item refers to: names, attributes of imported modules, methods of ``self``."""
    if isinstance(item.node, ast.Module):
        yield from resolver.imports(item.module)
    for node in _own_nodes(item.node):
        name = _dotted(node)
        if name is not None and (documented := resolver.resolve(name, item.module, item.owner)) is not None:
            yield documented


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a definition; of modules and classes only what is outside of definitions of their own."""
    stack = list(ast.iter_child_nodes(node))
    inside = isinstance(node, FUNCTIONS)
    while stack:
        child = stack.pop()
        yield child
        if isinstance(child, ast.Attribute) and _dotted(child) is not None:
            continue
        if inside or not isinstance(child, (ast.ClassDef, *FUNCTIONS)):
            stack.extend(ast.iter_child_nodes(child))


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
            target = resolver.absolute(name) or resolver.resolve(name, item.module, item.owner)
        elif bracket or "_" in name or name[1:] != name[1:].lower() or text[max(match.start() - 1, 0)] in "`'":
            target = (resolver.member(item.owner, name) if item.owner else None) or resolver.resolve(name, item.module)
        else:
            target = None
        if target is not None:
            yield target


class Places:
    """The files of a demonstration below one folder.

    ``documents`` are JSON lines (id, title, text); ``model`` and ``index`` (the embedded engine's) are folders.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.documents, self.model, self.index = folder / "docs.jsonl", folder / "model", folder / "index"

    def links(self, part: str) -> Path:
        """Links of a part of the split: source TAB target."""
        return self.folder / f"links.{part}.tsv"


@dataclass(frozen=True)
class DemoCorpus:
    """Documents by id, and links by part of the split."""

    documents: Mapping[str, Document]
    links: Mapping[str, Sequence[Link]]


def prepare_folder(folder: Path) -> Places:
    """Return the places of a demonstration in an empty folder; what an earlier one left there is removed.

    Raises
    ------
    GateRefused
        If the folder holds anything and was not made by the demonstration.
    """
    mark = folder / MARK
    if folder.exists() and not folder.is_dir():
        raise GateRefused(f"{str(folder)!r} is a file: give a folder with --dir")
    if folder.is_dir() and any(folder.iterdir()) and not mark.is_file():
        raise GateRefused(
            f"the folder {str(folder)!r} holds files that are not the demonstration's, and it empties its folder: "
            "give an empty or a new one with --dir"
        )
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text("This folder was made by `ssi demo` and is emptied when it runs again.\n", encoding="utf-8")
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != mark:
            path.unlink()
    return Places(folder)


def collect_corpus(library: Path | None = None) -> DemoCorpus:
    """Return the documents of a library (None: the running Python's standard library) and the links between them."""
    modules = {module.name: module for module in read_modules(library or library_folder())}
    items = [item for module in modules.values() for item in items_of(module)]
    documents = {item.name: item.document for item in items if item.document is not None}
    links = links_of(items, {name: scope_of(module) for name, module in modules.items()})
    return DemoCorpus(documents, split_links(links))


def split_links(links: Iterable[Link]) -> dict[str, list[Link]]:
    """Return the links as train (80 %), valid (10 %) and test (10 %), chosen by a hash: the same on every machine."""
    parts: dict[str, list[Link]] = {part: [] for part in PARTS}
    for source, target in links:
        digest = hashlib.blake2b(f"{source}\t{target}".encode(), digest_size=8).digest()
        share = int.from_bytes(digest, "big") / 2**64
        parts[next(part for part, end in zip(PARTS, _SHARES, strict=True) if share < end)].append((source, target))
    return parts


def write_corpus(corpus: DemoCorpus, places: Places) -> None:
    """Write documents and links into the demonstration's folder."""
    with places.documents.open("w", encoding="utf-8") as file:
        for document in corpus.documents.values():
            # Escaped, so that lone surrogates in a docstring stay legal JSON.
            file.write(json.dumps({"id": document.id, **document.source}) + "\n")
    for part, links in corpus.links.items():
        text = "".join(f"{source}\t{target}\n" for source, target in links)
        places.links(part).write_text(text, encoding="utf-8")


def python_name() -> str:
    """Return the name of the Python whose documentation is used, such as ``Python 3.11.7``."""
    return "Python " + ".".join(str(number) for number in sys.version_info[:3])
