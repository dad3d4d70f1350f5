"""Linked corpora out of documentation packages of Debian, most of them unused for any constant: for `generalisation`.

    python benchmarks/package_corpora.py FOLDER [--corpora foldoc,postgresql,qt,kernel,libreoffice]
    SSI_DATA=FOLDER python benchmarks/generalisation.py --corpora foldoc,... --json FILE

Each package is downloaded by `apt-get download` and unpacked by `dpkg-deb`; nothing is installed. A page is a document:
its title, the first 400 words of what it says, and its links to other pages, without those of navigation, of contents
and to pages that more than 3 % of all link to. Pages of fewer than 20 words, or without a link, are left out. foldoc,
a dictionary of computing, has an entry a document, and its cross references as links. The files are those of the linked
corpora of SSI_DATA: links split at random 70/10/20, documents 70/30.

Which packages, and these rules, were written down before a model was trained on any of them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np

PACKAGES = {
    "foldoc": "dict-foldoc",
    "postgresql": "postgresql-doc-15",
    "qt": "qtbase5-doc-html",
    "kernel": "linux-doc-6.1",
    "libreoffice": "libreoffice-help-en-us",
}
MAX_WORDS, MIN_WORDS = 400, 20
MAX_SHARE = 0.03
"""Share of the documents that may link to one, unless these are fewer than 20."""
MAX_LINKS = 150
"""A page with more links is a list of contents: left out."""
SKIPPED_TAGS = frozenset({"script", "style", "nav", "aside", "header", "footer"})
SKIPPED_CLASSES = frozenset(
    "navheader navfooter sidebar footer navigationbar toc sphinxsidebar related wy-nav-side wy-breadcrumbs "
    "headerlink toctree-wrapper contents".split()
)
CONTENTS = re.compile(r"(^|/)(index|genindex|search|py-modindex|bookindex)\.html$")
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


class Page(NamedTuple):
    """A document; the targets of its links as they are written."""

    id: str
    title: str
    text: str
    targets: list[str]


class _Reader(HTMLParser):
    """Takes title, words and links from a page, without its navigation."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.heading: list[str] = []
        self.words: list[str] = []
        self.targets: list[str] = []
        self.base = ""
        self._inside: str | None = None
        self._skipping: tuple[str, int] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "title" or (tag == "h1" and not self.heading):
            self._inside = tag
        if self._skipping is not None:
            if tag == self._skipping[0]:
                self._skipping = (tag, self._skipping[1] + 1)
        elif tag in SKIPPED_TAGS or SKIPPED_CLASSES & set((values.get("class") or "").split()):
            self._skipping = (tag, 1)
        elif tag == "base":
            self.base = values.get("href") or ""
        elif tag == "a" and values.get("href"):
            self.targets.append(str(values["href"]))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None
        if self._skipping is not None and tag == self._skipping[0]:
            depth = self._skipping[1] - 1
            self._skipping = (tag, depth) if depth else None

    def handle_data(self, data: str) -> None:
        if self._inside == "title":
            self.title += data.split()
        elif self._inside == "h1" and self._skipping is None:
            self.heading += data.split()
        elif self._skipping is None:
            self.words += data.split()


def pages_of_html(folder: Path) -> Iterator[Page]:
    """Yield the pages below a folder; targets are resolved to paths below it."""
    for path in sorted(folder.rglob("*.html")):
        name = path.relative_to(folder).as_posix()
        if CONTENTS.search(name) or path.is_symlink():
            continue
        reader = _Reader()
        reader.feed(path.read_text(encoding="utf-8", errors="replace"))
        title = re.split(r" [—|] ", " ".join(reader.title))[0]
        targets = [_resolved(name, reader.base + target) for target in reader.targets if not urlsplit(target).scheme]
        heading = " ".join(reader.heading).replace("¶", "").strip()
        yield Page(name, heading or title, " ".join(reader.words[:MAX_WORDS]), targets)


def _resolved(name: str, target: str) -> str:
    parts: list[str] = []
    for part in PurePosixPath(PurePosixPath(name).parent, unquote(urlsplit(target).path)).parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
    return "/".join(parts)


def pages_of_dictionary(folder: Path) -> Iterator[Page]:
    """Yield the entries of a dictd dictionary; names that stand for the same entry are one document."""
    (index,) = folder.rglob("*.index")
    (data,) = folder.rglob("*.dict.dz")
    content = gzip.decompress(data.read_bytes())
    names: dict[tuple[int, int], list[str]] = {}
    for line in index.read_text(encoding="utf-8").splitlines():
        name, *span = line.split("\t")[:3]
        if not name.startswith("00database"):
            names.setdefault((_number(span[0]), _number(span[1])), []).append(name)
    first = {name.lower(): of[0] for of in names.values() for name in of}
    for (start, length), of in names.items():
        text = content[start : start + length].decode("utf-8", "replace")
        title, _, body = text.partition("\n")
        targets = [first.get(" ".join(found.split()).lower(), "") for found in re.findall(r"\{([^{}]*)\}", body)]
        words = re.sub(r"[{}]", "", body).split()
        yield Page(of[0], title.strip(), " ".join(words[:MAX_WORDS]), targets)


def _number(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * 64 + _DIGITS.index(digit)
    return number


def corpus_of(pages: Iterable[Page]) -> tuple[list[Page], list[tuple[str, str]]]:
    """Return the documents and the links that are kept of pages."""
    by_id = {page.id: page for page in pages if len(page.text.split()) >= MIN_WORDS}
    linked = {page.id: set(page.targets) & by_id.keys() - {page.id} for page in by_id.values()}
    known = {id_: targets for id_, targets in linked.items() if len(targets) <= MAX_LINKS}
    links = [(id_, target) for id_, targets in known.items() for target in sorted(targets & known.keys())]
    often = Counter(target for _, target in links)
    most = max(20, MAX_SHARE * len(known))
    links = [(source, target) for source, target in links if often[target] <= most]
    ends = {id_ for link in links for id_ in link}
    return [by_id[id_] for id_ in sorted(ends)], links


def write_corpus(folder: Path, pages: list[Page], links: list[tuple[str, str]]) -> None:
    """Write documents, links and splits as the linked corpora of SSI_DATA have them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    shuffled = [links[number] for number in rng.permutation(len(links)).tolist()]
    ids = [pages[number].id for number in rng.permutation(len(pages)).tolist()]
    borders, border = [0, round(0.7 * len(links)), round(0.8 * len(links)), len(links)], round(0.7 * len(ids))
    files = {"links_en.tsv": ["\t".join(link) for link in links]}
    for number, part in enumerate(("train", "valid", "test")):
        files[f"links_{part}.tsv"] = ["\t".join(link) for link in shuffled[borders[number] : borders[number + 1]]]
    files["docs_train_ids.txt"], files["docs_test_ids.txt"] = sorted(ids[:border]), sorted(ids[border:])
    documents = ({"id": page.id, "title": page.title, "text": page.text} for page in pages)
    files["docs_en.jsonl"] = [json.dumps(document, ensure_ascii=False) for document in documents]
    for name, lines in files.items():
        with gzip.open(folder / f"{name}.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def main() -> int:
    """Make the corpora that are not there yet; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpora", default=",".join(PACKAGES))
    options = parser.parse_args()
    for name in options.corpora.split(","):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["apt-get", "download", PACKAGES[name]], cwd=folder, check=True)
            (package,) = Path(folder).glob("*.deb")
            unpacked = Path(folder) / "package"
            subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True)
            read = pages_of_dictionary if name == "foldoc" else pages_of_html
            pages, links = corpus_of(read(unpacked))
        write_corpus(options.folder / name, pages, links)
        print(f"{name}: {len(pages):,} documents, {len(links):,} links of {package.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
