"""The demonstration's input: documents, links and their split, as files that `ssi train` reads too."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reranker.demo.collect import items_of, scopes_of
from reranker.demo.modules import library_folder, read_modules
from reranker.demo.references import Link, links_of
from reranker.errors import GateRefused
from reranker.records import Document

MARK = "made-by-ssi-demo.txt"
PARTS = ("train", "valid", "test")
_SHARES = (0.8, 0.9, 1.0)


@dataclass(frozen=True)
class Places:
    """The files of a demonstration below one folder."""

    folder: Path

    @property
    def documents(self) -> Path:
        """Documents as JSON lines: id, title, text."""
        return self.folder / "docs.jsonl"

    @property
    def model(self) -> Path:
        """Folder of the model."""
        return self.folder / "model"

    @property
    def index(self) -> Path:
        """Folder of the embedded engine."""
        return self.folder / "index"

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
    """Return the documented modules, classes and functions of a library, and the links between them.

    Parameters
    ----------
    library : Path or None
        Folder of source files; None for the running Python's standard library.
    """
    modules = {module.name: module for module in read_modules(library or library_folder())}
    items = [item for module in modules.values() for item in items_of(module)]
    documents = {item.name: item.document for item in items if item.document is not None}
    links = links_of(items, scopes_of(modules))
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
