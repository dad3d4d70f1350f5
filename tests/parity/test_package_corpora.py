"""Corpora of documentation packages: what of a page counts, which links are kept, and the files of a corpus."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import package_corpora
from generalisation_data import read_corpus
from package_corpora import Page, corpus_of, pages_of_dictionary, pages_of_html, write_corpus

from reranker.formats import read_ids

PAGE = """<html><head><title>Vacuum | Manual</title><style>body {}</style></head><body>
<div class="navheader"><div><a href="prev.html">Prev</a></div> navigation</div><nav><a href="home.html">Home</a></nav>
<h1>VACUUM<a class="headerlink" href="#x">¶</a></h1>
<p>Reclaims <a href="../sql/storage%20use.html#why">storage</a>; see <a href="http://elsewhere/sql/a.html">there</a>.
<div class="footer"><a href="next.html">Next</a></div></body></html>"""
DIGITS = package_corpora._DIGITS


def spelled(number: int) -> str:
    """Return a number in the digits of dictd."""
    return (spelled(number // 64) if number >= 64 else "") + DIGITS[number % 64]


def test_a_page_has_its_heading_its_words_and_its_links_without_navigation(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "vacuum.html").write_text(PAGE)
    (tmp_path / "sql" / "index.html").write_text(PAGE)  # a list of contents by its name
    (page,) = pages_of_html(tmp_path)
    assert page == Page("sql/vacuum.html", "VACUUM", "Reclaims storage ; see there .", ["sql/storage use.html"])


def test_links_of_a_page_with_a_base_are_relative_to_that(tmp_path: Path) -> None:
    (tmp_path / "en" / "text").mkdir(parents=True)
    page = '<html><head><base href="../../"><title>A</title></head><body><a href="en/text/b.html">b</a></body></html>'
    (tmp_path / "en" / "text" / "a.html").write_text(page)
    assert [page.targets for page in pages_of_html(tmp_path)] == [["en/text/b.html"]]


def test_names_of_one_entry_of_a_dictionary_are_one_document(tmp_path: Path) -> None:
    first, second = b"Hash\n   A {look\n   up} by key.\n", b"lookup\n   Finding, as by a {hashing}. See {nothing}.\n"
    (tmp_path / "d.dict.dz").write_bytes(gzip.compress(b"x" * 70 + first + second))
    spans = [("hash", 70, len(first)), ("hashing", 70, len(first)), ("look up", 70 + len(first), len(second))]
    lines = [f"{name}\t{spelled(start)}\t{spelled(length)}\n" for name, start, length in spans]
    (tmp_path / "d.index").write_text("00databaseinfo\tA\tB\n" + "".join(lines))
    assert list(pages_of_dictionary(tmp_path)) == [
        Page("hash", "Hash", "A look up by key.", ["look up"]),
        Page("look up", "lookup", "Finding, as by a hashing. See nothing.", ["hash", ""]),
    ]


def test_short_pages_lists_and_what_all_link_to_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_corpora, "MAX_LINKS", 30)
    text = "word " * package_corpora.MIN_WORDS
    names = [f"p{number}" for number in range(26)]
    pages = [Page(name, name, text, ["home", "p0", name]) for name in names]
    pages += [Page("home", "home", text, ["p1"]), Page("short", "short", "too short", ["p1"])]
    pages += [Page("list", "list", text, [*names, "home", *(f"q{number}" for number in range(9))])]
    pages += [Page(f"q{number}", "q", text, []) for number in range(9)]
    kept, links = corpus_of(pages)
    assert links == [("home", "p1")]  # home and p0 have more than 20 links; the list more than 30 targets
    assert [page.id for page in kept] == ["home", "p1"]


def test_the_files_are_those_of_a_linked_corpus(tmp_path: Path) -> None:
    pages = [Page(f"d{number}", "title", "text", []) for number in range(40)]
    links = [(f"d{number}", f"d{(number + step) % 40}") for number in range(40) for step in (1, 2, 3)]
    write_corpus(tmp_path / "qt", pages, links)
    corpus = read_corpus(tmp_path / "qt", tmp_path / "work", small=False)
    split = corpus.splits["links"]
    parts = [
        {(query, found) for query, of in grades.items() for found in of}
        for grades in (split.learn, split.stop, split.test)
    ]
    assert [len(part) for part in parts] == [84, 12, 24]
    assert set.union(*parts) == set(links)
    assert len(corpus.splits["unseen"].pool) == 12
    assert set(read_ids(tmp_path / "qt" / "docs_train_ids.txt.gz")) | corpus.splits["unseen"].pool == set(
        corpus.documents
    )
    with gzip.open(tmp_path / "qt" / "docs_en.jsonl.gz", "rt") as file:
        assert json.loads(next(file)) == {"id": "d0", "title": "title", "text": "text"}
