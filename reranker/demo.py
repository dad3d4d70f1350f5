"""The demonstration: collect documents, train, index, search. The caller prints the results.

The source files of the standard library are parsed, never imported. Each public module, class and function with a
docstring is a document. It has links to the definitions that its code calls and its text names. The orders of BM25 and
of the model are compared on links that were not used for training.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shlex
import shutil
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reranker.clicks.log import ClickLog
from reranker.clicks.simulator import STEEPNESS, PositionBased, ResultPages, simulate, tables_of, week_of
from reranker.engines import Engine, EngineSettings, open_engine
from reranker.errors import GateRefused, InputError
from reranker.evaluation import IdPair, PairedTest, evaluate_run, paired_test, standard_error
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.progress import Progress, Say, timed
from reranker.records import Document
from reranker.releases import read_control
from reranker.rerank import Reranker, RerankSettings, default_template
from reranker.rerank.calibration.alpha import Fit, fit_alpha, keep_in_release
from reranker.rerank.calibration.rankings import pages_of, rank_topics, run_of
from reranker.rerank.calibration.topics import Topic, qrels_of, sample
from reranker.rerank.search import open_reranker
from reranker.text.view import TextView
from reranker.training import DocumentSource, Listener, TrainConfig, from_links, train_model

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
MARK = "made-by-ssi-demo.txt"
PARTS = ("train", "valid", "test")
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


class DemoFiles:
    """Paths of a demonstration: documents (JSON lines), links, folders of the model, the index and the click log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.documents, self.model, self.index = folder / "docs.jsonl", folder / "model", folder / "index"
        self.clicks = folder / "clicks"

    def links(self, part: str) -> Path:
        """Return the path of the links of a part of the split: source TAB target."""
        return self.folder / f"links.{part}.tsv"


@dataclass(frozen=True)
class DemoCorpus:
    """Documents and links of the demonstration."""

    documents: Mapping[str, Document]
    """Id → document."""
    links: Mapping[str, Sequence[IdPair]]
    """Part of the split (train, valid, test) → links."""


def prepare_folder(folder: Path) -> DemoFiles:
    """Empty the folder of an earlier demonstration and return its paths.

    Raises `GateRefused` if the folder contains other files.
    """
    mark = folder / MARK
    if folder.exists() and not folder.is_dir():
        raise GateRefused(f"{str(folder)!r} is a file: give a folder with --dir")
    if folder.is_dir() and any(folder.iterdir()) and not mark.is_file():
        raise GateRefused(
            f"the folder {str(folder)!r} holds files that are not the demonstration's, which would be deleted: "
            "give an empty or a new folder with --dir"
        )
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text("This folder was made by `ssi demo` and is emptied when it runs again.\n", encoding="utf-8")
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != mark:
            path.unlink()
    return DemoFiles(folder)


def collect_corpus(library: Path | None = None) -> DemoCorpus:
    """Return the documents of a library and the links between them. None is the standard library of this Python."""
    modules = list(read_modules(library or library_folder()))
    items = [item for module in modules for item in entries_of(module)]
    documents = {item.name: item.document for item in items if item.document is not None}
    return DemoCorpus(documents, split_links(links_of(items, Resolver(modules, items))))


def split_links(links: Iterable[IdPair]) -> dict[str, list[IdPair]]:
    """Split the links into train (80 %), valid (10 %) and test (10 %) by a hash, so that all machines agree."""
    parts: dict[str, list[IdPair]] = {part: [] for part in PARTS}
    for source, target in links:
        digest = hashlib.blake2b(f"{source}\t{target}".encode(), digest_size=8).digest()
        share = int.from_bytes(digest, "big") / 2**64
        parts["train" if share < 0.8 else "valid" if share < 0.9 else "test"].append((source, target))
    return parts


INDEX = "demo"
VIEW = TextView.parse(["title^1", "text^1"])
"""Equal field weights, which are not tuned. BM25 uses the same weights, with which it is best on this data."""
WINDOW = RerankSettings().window
N_FITTED = 250
N_MEASURED = 500
N_EXAMPLES = 3
FIRST_QUERY = "read a configuration file"
MEASURES = ("AP", "nDCG@10", "RR")
TOUR: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("remove a file of the operating system", ("os", "shutil", "pathlib")),
    ("find files by wildcards", ("glob", "fnmatch", "pathlib")),
    ("parse command line arguments", ("argparse", "getopt", "optparse", "sys")),
    ("redirect error output", ("sys", "contextlib")),
    ("match a pattern in a string", ("re", "fnmatch")),
    ("choose a random element", ("random", "secrets")),
    ("fetch data from a URL", ("urllib", "http")),
    ("send an email message", ("smtplib", "email")),
    ("difference between two dates", ("datetime",)),
    ("compress data", ("zlib", "gzip", "bz2", "lzma", "zipfile", "tarfile")),
    ("measure how long code takes", ("timeit", "time", "cProfile", "profile")),
    ("test examples in docstrings", ("doctest", "unittest")),
)
"""Questions that are always asked: the tasks of the tour of the standard library in Python's tutorial, in its order.

Each has the packages that the tour, or their own documentation, names for the task.
"""
MAX_QUERY_WORDS = 12
N_SHOWN = 3
N_PAIRS = 4
N_ASKED, N_CHANGES = 100, 3
"""Number of questions that simulated people ask, and of those that are shown as changed."""
WEEK = week_of(3_000, people=750)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")

Indexing = Callable[[Engine, str, DemoFiles, RankingModel, Progress], None]
"""Function that sends the documents with a model's vectors to an index and a local store."""


@dataclass(frozen=True)
class MeasuredOrders:
    """Rankings and measures of the systems on the same questions: ``bm25``, ``reranked`` and ``impacts``.

    ``impacts`` is the engine's own order with impacts; it is missing if the engine cannot store them.
    """

    questions: Mapping[str, Topic]
    """Id of the document that a question comes from → question with its relevant documents."""
    rankings: Mapping[str, Mapping[str, Sequence[str]]]
    """System → number of the question (as text) → document ids, best first."""
    values: Mapping[str, Mapping[str, np.ndarray]]
    """System → measure → values, (n_questions,) float64."""

    def test(self, measure: str, system: str = "reranked") -> PairedTest:
        """Return the paired test of the difference of a system minus BM25."""
        return paired_test(self.values[system][measure], self.values["bm25"][measure])

    def ranks(self, number: int, document: str) -> tuple[int, int]:
        """Return the 1-based ranks of a document in the orders of BM25 and of the model."""
        before, after = (list(self.rankings[system][str(number)]) for system in ("bm25", "reranked"))
        return before.index(document) + 1, after.index(document) + 1

    def to_json(self) -> dict[str, Any]:
        """Return means, standard errors and tests."""
        systems = {
            system: {name: {"mean": float(v.mean()), "standard_error": standard_error(v)} for name, v in values.items()}
            for system, values in self.values.items()
        }
        tests = self._tests("reranked")
        of_impacts = {"tests_of_impacts": self._tests("impacts")} if "impacts" in self.values else {}
        return {"queries": len(self.questions), "systems": systems, "tests": tests, **of_impacts}

    def _tests(self, system: str) -> dict[str, dict[str, float]]:
        return {
            name: {"difference": test.difference, "standard_error": test.standard_error, "p_t_test": test.p_t_test}
            for name, test in ((name, self.test(name, system)) for name in MEASURES)
        }


@dataclass(frozen=True)
class ShownWordPair:
    """Contribution of a pair of words to the score."""

    query_word: str
    document_word: str
    adds: float
    """Term of the score."""


@dataclass(frozen=True)
class TourAnswer:
    """A question of `TOUR` with the first answers, and the places of the first answer from a package of the task."""

    query: str
    packages: tuple[str, ...]
    """Packages of the task."""
    before: str
    """Id of the first hit of BM25; "" if nothing was found."""
    after: str
    """Id of the first hit after reranking."""
    rank_before: int | None
    """1-based rank of the first hit of BM25 that is in one of the packages; None: not among the first `WINDOW`."""
    rank_after: int | None
    """The same after reranking."""


@dataclass(frozen=True)
class Example:
    """A question with its results before and after reranking."""

    query: str
    asked_by: str
    """Id of the document that the question comes from."""
    found: str
    """Id of a relevant document, one that ``asked_by`` links to."""
    rank_before: int
    """1-based rank of ``found`` in the order of BM25."""
    rank_after: int
    """1-based rank of ``found`` after reranking."""
    before: tuple[str, ...]
    """First hits of BM25."""
    after: tuple[str, ...]
    """First hits after reranking."""
    pairs: tuple[ShownWordPair, ...]
    """Pairs of words with the largest contributions to the score of ``found``."""


@dataclass(frozen=True)
class RelearnedOrders:
    """Result of a retraining on a week of clicks."""

    outcome: str
    reason: str
    before: Mapping[str, Sequence[str]]
    """Query → shown documents, best first, as the live model ranks them."""
    after: Mapping[str, Sequence[str]]
    """The same by the new model."""


Relearning = Callable[[Engine, DemoFiles, ClickLog, Mapping[str, Sequence[str]]], RelearnedOrders]
"""Function that retrains the model on a click log without a change of the index, and ranks the shown lists again."""


@dataclass(frozen=True)
class ChangedAnswer:
    """A question whose first answer the clicks have changed."""

    query: str
    before: str
    """Title of the first document before."""
    after: str
    """Title of the first document after the retraining."""


@dataclass(frozen=True)
class WeekOfClicks:
    """Result of a simulated week of clicks on held-out questions."""

    questions: int
    impressions: int
    clicks: int
    people: int
    outcome: str
    """``would promote`` or ``refused``."""
    reason: str
    before: float
    """nDCG@10 by the true attraction of the questions that were asked more than once, in the live order."""
    after: float
    """The same in the order of the new model."""
    changed: tuple[ChangedAnswer, ...]
    """The questions with another first answer whose nDCG@10 changed most."""


class Demo:
    """A run of the demonstration, step by step. The folder keeps documents, links and the model.

    Parameters
    ----------
    folder : path
        Folder for all files.
    index : callable
        Function that indexes the documents.
    dim : int
        Dimensions N of the model.
    seed : int
        Seed of all random choices.
    engine : str
        Spec of the engine for the index ``demo``; "" is the embedded one in the folder.
    connection : EngineSettings, optional
        Connection settings of the engine.
    """

    corpus: DemoCorpus
    """Documents and links; set by `collect`."""
    model: RankingModel
    """The trained model; set by `train`."""
    trained: str
    """Sentence that compares the model with its lexical score; set by `train`."""
    fit: Fit
    """Weight of the model, fitted to validation links; set by `search`."""
    measured: MeasuredOrders
    """The orders on test links; set by `search`."""
    tour: list[TourAnswer]
    """The answers to the questions of `TOUR`; set by `search`."""
    examples: list[Example]
    """Held-out questions that show the largest effects of reranking; set by `search`."""
    week: WeekOfClicks | None
    """Result of a week of clicks, set by `click`; None if another model is live, or no question finds what attracts."""

    def __init__(
        self, folder: Path, index: Indexing, dim: int, seed: int, engine: str, connection: EngineSettings | None
    ) -> None:
        self.places = prepare_folder(folder)
        self.engine_spec = engine or f"tantivy:{self.places.index}"
        self.seconds: dict[str, float] = {}
        self._index, self._dim, self._seed, self._connection = index, dim, seed, connection

    def collect(self) -> None:
        """Collect documents and links, and write them to the folder."""
        with timed(self.seconds, "collect"):
            self.corpus = collect_corpus()
            with self.places.documents.open("w", encoding="utf-8") as file:
                for document in self.corpus.documents.values():
                    # json.dumps escapes lone surrogates in a docstring, so that the JSON is valid.
                    file.write(json.dumps({"id": document.id, **document.source}) + "\n")
            for part, links in self.corpus.links.items():
                text = "".join(f"{source}\t{target}\n" for source, target in links)
                self.places.links(part).write_text(text, encoding="utf-8")

    def train(self, say: Say, progress: Progress) -> None:
        """Train on the training links with early stopping on the validation links, and save the model."""
        with timed(self.seconds, "train"):
            model, report = train_model(
                DocumentSource(self.places.documents, VIEW),
                from_links(self.corpus.links["train"]),
                TrainConfig(dim=self._dim, seed=self._seed),
                valid=from_links(self.corpus.links["valid"]),
                listener=Listener(say=say, progress=lambda _, done, total: progress(done, total)),
            )
            save_model(model, self.places.model)
        self.trained = report.form.sentence
        self.model = load_model(self.places.model)

    def index(self, progress: Progress) -> None:
        """Index the documents with the model's vectors."""
        with timed(self.seconds, "index"), closing(open_engine(self.engine_spec, self._connection)) as engine:
            self._index(engine, INDEX, self.places, self.model, progress)

    def search(self, progress: Progress) -> None:
        """Fit the model's weight on validation links, measure all orders on test links, and choose examples."""
        with timed(self.seconds, "search"), closing(open_engine(self.engine_spec, self._connection)) as engine:
            topics = questions_of(self.corpus, "valid", ("train",), N_FITTED, self._seed).values()
            self.fit = fit_alpha(self._reranker(engine), list(topics), "AP", seed=self._seed, progress=progress)
            body = default_template(self.model.encoder.view)
            keep_in_release(engine, INDEX, self.model.model_id, body, WINDOW, self.fit)
            reranker = self._reranker(engine)
            questions = questions_of(self.corpus, "test", ("train", "valid"), N_MEASURED, self._seed)
            self.measured = measure(reranker, questions, self.fit.alpha, progress, self._by_impacts(engine))
            self.tour = toured(self._reranker(engine, 0.0), reranker)
            self.examples = best_examples(self.measured, reranker, N_EXAMPLES)

    def click(self, relearn: Relearning) -> None:
        """Simulate a week of clicks on held-out questions, and learn from them without a change of the index.

        A document attracts if the document that the question comes from links to it, or is it.
        """
        with timed(self.seconds, "click"), closing(open_engine(self.engine_spec, self._connection)) as engine:
            # An index that holds another demonstration, too, may have its model live.
            is_live = read_control(engine, INDEX).live == self.model.model_id
            grades = attracting(self.corpus, self.measured.questions)
            pages = asked_pages(self._reranker(engine), grades) if is_live else {}
            self.week = self._week(engine, relearn, pages, grades) if pages else None

    def _week(
        self,
        engine: Engine,
        relearn: Relearning,
        pages: Mapping[str, Sequence[str]],
        grades: Mapping[str, Mapping[str, float]],
    ) -> WeekOfClicks:
        shown = ResultPages.of(pages)
        users = PositionBased.power(shown.rankings.shape[1], STEEPNESS)
        rng = np.random.default_rng(self._seed)
        week = simulate(shown.rankings, shown.attraction_of_grades(grades), users, WEEK, rng)
        log = ClickLog(self.places.clicks, create=True)
        log.add([tables_of(week, shown.queries, shown.documents)], "simulated")
        learned = relearn(engine, self.places, log, pages)
        asked = np.bincount(week.query, minlength=len(pages))
        orders = [ResultPages.of(order) for order in (learned.before, learned.after)]
        attractions = [order.attraction_of_grades(grades) for order in orders]
        each = [order.ndcg_of_each(values) for order, values in zip(orders, attractions, strict=True)]
        before, after = (
            order.true_ndcg(values, np.where(asked > 1, asked, 0))
            for order, values in zip(orders, attractions, strict=True)
        )
        changed = [
            ChangedAnswer(query, *(self._title(order[query][0]) for order in (learned.before, learned.after)))
            for query in (shown.queries[row] for row in np.argsort(-np.abs(each[1] - each[0]), kind="stable").tolist())
            if learned.before[query][0] != learned.after[query][0]
        ]
        return WeekOfClicks(
            questions=len(pages),
            impressions=len(week),
            clicks=int(week.clicked.sum()),
            people=len(np.unique(week.user)),
            outcome=learned.outcome,
            reason=learned.reason,
            before=before,
            after=after,
            changed=tuple(changed[:N_CHANGES]),
        )

    def _title(self, document: str) -> str:
        return str(self.corpus.documents[document].source["title"])

    def to_json(self) -> dict[str, Any]:
        """Return the results of all steps as JSON values."""
        return {
            "python": PYTHON,
            "documents": len(self.corpus.documents),
            "links": {part: len(links) for part, links in self.corpus.links.items()},
            "trained": self.trained,
            "model_id": self.model.model_id,
            "alpha": self.fit.alpha,
            "window": WINDOW,
            "perfect_order_of_the_window": self.fit.ceiling,
            **self.measured.to_json(),
            "tour": [asdict(answer) for answer in self.tour],
            "examples": [asdict(example) for example in self.examples],
            "week": None if self.week is None else asdict(self.week),
            "commands": self.commands(),
            "seconds": {step: round(value, 1) for step, value in self.seconds.items()},
        }

    def commands(self) -> list[str]:
        """Return shell commands to try next: a search, the training, and the retraining on the simulated clicks."""
        places, query = self.places, self.examples[0].query if self.examples else FIRST_QUERY
        search = ["ssi", "search", query, "--engine", self.engine_spec, "--index", INDEX, "--model", str(places.model)]
        train = [
            "ssi",
            "train",
            "--docs",
            str(places.documents),
            "--links",
            str(places.links("train")),
            "--valid",
            str(places.links("valid")),
            "--fields",
            "title^1,text^1",
            "--model",
            str(places.folder / "my-model"),
        ]
        retrain = ["ssi", "retrain", "--engine", self.engine_spec, "--index", INDEX, "--models", str(places.folder)]
        relearned = [] if self.week is None else [[*retrain, "--clicks", str(places.clicks), "--dry-run"]]
        return [shlex.join(command) for command in ([*search, "--explain"], train, *relearned)]

    def _by_impacts(self, engine: Engine) -> Reranker | None:
        """Return the search by impacts; None if the engine cannot store them."""
        if not engine.capabilities().sparse_terms:
            return None
        settings = RerankSettings(window=WINDOW, deadline_ms=None)
        return open_reranker(engine, INDEX, self.model, self.places.model, route="impacts", settings=settings)

    def _reranker(self, engine: Engine, alpha: float | None = None) -> Reranker:
        settings = RerankSettings(window=WINDOW, deadline_ms=None, alpha=alpha)
        return open_reranker(engine, INDEX, self.model, self.places.model, route="beside", settings=settings)


def questions_of(corpus: DemoCorpus, part: str, known: Iterable[str], limit: int, seed: int) -> dict[str, Topic]:
    """Return at most ``limit`` topics. A query is the first sentence of a document, and its links are relevant.

    Only links of ``part`` count. Targets of links of the parts ``known`` are excluded.
    """
    targets: dict[str, dict[str, float]] = {}
    for source, target in corpus.links[part]:
        targets.setdefault(source, {})[target] = 1.0
    excluded: dict[str, set[str]] = {source: {source} for source in targets}
    for other in known:
        for source, target in corpus.links[other]:
            if source in excluded:
                excluded[source].add(target)
    sources = sample(sorted(targets), limit, seed)
    queries = {source: first_sentence(str(corpus.documents[source].source["text"])) for source in sources}
    return {name: Topic(queries[name], targets[name], frozenset(excluded[name])) for name in sources}


def first_sentence(text: str) -> str:
    """Return the first sentence of a text on one line, cut after `MAX_QUERY_WORDS` words."""
    paragraph = text.strip().partition("\n\n")[0]
    sentence = _SENTENCE_END.split(" ".join(paragraph.split()), maxsplit=1)[0]
    return " ".join(sentence.split()[:MAX_QUERY_WORDS])


def measure(
    reranker: Reranker,
    questions: Mapping[str, Topic],
    alpha: float,
    progress: Progress,
    by_impacts: Reranker | None = None,
) -> MeasuredOrders:
    """Return both orders of the engine's window for each question, and its own order ``by_impacts``.

    ``alpha`` is the weight of the model.
    """
    topics = list(questions.values())
    ranked = rank_topics(reranker, topics, progress=progress)
    rankings = {"bm25": ranked.run((0.0,)), "reranked": ranked.run((alpha,))}
    if by_impacts is not None and by_impacts.model is not None:
        template = default_template(by_impacts.model.encoder.view)
        rankings["impacts"] = run_of(pages_of(by_impacts, topics, template, progress), topics)
    qrels = qrels_of(topics)
    values = {
        system: {
            name: np.array([by_query[str(number)] for number in range(len(questions))])
            for name, by_query in evaluate_run(qrels, run, MEASURES).items()
        }
        for system, run in rankings.items()
    }
    return MeasuredOrders(questions, rankings, values)


def attracting(corpus: DemoCorpus, questions: Mapping[str, Topic]) -> dict[str, dict[str, float]]:
    """Return question → documents that attract people who ask it, with grade 1: the source and those it links to."""
    grades: dict[str, dict[str, float]] = {}
    for source, topic in questions.items():
        grades.setdefault(topic.query, {})[source] = 1.0
    for links in corpus.links.values():
        for source, target in links:
            if source in questions:
                grades[questions[source].query][target] = 1.0
    return grades


def asked_pages(reranker: Reranker, grades: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """Return the first ten hits of the first `N_ASKED` questions that find a document which attracts."""
    pages: dict[str, list[str]] = {}
    for query, attracts in grades.items():
        hits = [hit.id for hit in reranker.search(query, size=10).hits]
        if attracts.keys() & set(hits):
            pages[query] = hits
        if len(pages) == N_ASKED:
            break
    return pages


def toured(bm25: Reranker, reranker: Reranker) -> list[TourAnswer]:
    """Return the answers to the questions of `TOUR` by both orders."""

    def rank(ids: Sequence[str], packages: Collection[str]) -> int | None:
        return next((place for place, id_ in enumerate(ids, 1) if id_.partition(".")[0] in packages), None)

    answers = []
    for query, packages in TOUR:
        before, after = ([hit.id for hit in each.search(query, size=WINDOW).hits] for each in (bm25, reranker))
        first_before, first_after = (ids[0] if ids else "" for ids in (before, after))
        ranks = rank(before, packages), rank(after, packages)
        answers.append(TourAnswer(query, packages, first_before, first_after, *ranks))
    return answers


def best_examples(measured: MeasuredOrders, reranker: Reranker, n: int) -> list[Example]:
    """Return the ``n`` questions with the largest gain for a relevant document that reaches the first ten hits.

    All of them come from different modules.
    """
    rises: list[tuple[float, int, str]] = []  # (minus the gain in 1 / rank, question number, document)
    for number, topic in enumerate(measured.questions.values()):
        for document in topic.grades:
            if document in measured.rankings["reranked"][str(number)]:
                before, after = measured.ranks(number, document)
                rises.append((1 / before - 1 / after, number, document))
    examples: list[Example] = []
    seen: set[str] = set()
    asking = list(measured.questions)
    for rise, number, document in sorted(rises):
        modules = {asking[number].partition(".")[0], document.partition(".")[0]}
        if rise >= 0 or modules & seen:
            continue
        example = _example(measured, number, document, reranker)
        if example.pairs:
            seen |= modules
            examples.append(example)
        if len(examples) == n:
            break
    return examples


def _example(measured: MeasuredOrders, number: int, document: str, reranker: Reranker) -> Example:
    source, topic = list(measured.questions.items())[number]
    page = reranker.search(topic.query, size=reranker.settings.window, explain=True)
    rows = next((row.contributions for row in page.explanations if row.id == document), ())
    pairs = [ShownWordPair(row.query_word, row.document_word, row.value) for row in rows if row.kind == "learned"]
    helpful = [pair for pair in pairs if pair.adds > 0 and pair.query_word != pair.document_word]
    first = {system: tuple(ranking[str(number)][:N_SHOWN]) for system, ranking in measured.rankings.items()}
    return Example(
        topic.query,
        source,
        document,
        *measured.ranks(number, document),
        first["bm25"],
        first["reranked"],
        tuple(helpful[:N_PAIRS]),
    )
