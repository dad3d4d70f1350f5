"""Files of a demonstration, and its documents, links and questions."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reranker.demo.library import Resolver, entries_of, library_folder, links_of, read_modules
from reranker.errors import GateRefused
from reranker.evaluation import IdPair
from reranker.records import Document
from reranker.rerank.calibration.topics import Topic, sample

MARK = "made-by-ssi-demo.txt"
PARTS = ("train", "valid", "test")
MAX_QUERY_WORDS = 12
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")


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
