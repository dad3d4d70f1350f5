"""Corpora of retrieval tasks from folders: documents with links, or documents with queries and judgements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from papers.library import library_name, read_library
from reranker.errors import InputError
from reranker.formats import RejectLog, read_documents, read_links, read_qrels, read_queries
from reranker.formats.tables import read_ids
from reranker.text.analyzers import make_analyzer, parse_analyzer

Pair = tuple[str, str]
Tokens = list[list[str]]

ANALYZER = "unicode,stop=english"
TITLE_TIMES = 3
"""Times the title counts in a document; in a query made of a document it counts once."""
SMALL_DOCUMENTS, SMALL_WORDS = 400, 60
_SHARES = (0.7, 0.1)

_DOCUMENTS = ("docs_en.jsonl.gz", "docs.jsonl.gz", "docs.jsonl", "docs.parquet")
NEEDED = """\
  docs.jsonl[.gz]                       {"id", "title", "text"} a line (or docs.parquet), and one of
  links_train.tsv[.gz], links_valid..., links_test...   source id TAB target id
  links.tsv[.gz] (or links_en...)       the same, to be split 70/10/20 at random
  queries.tsv[.gz] and qrels.tsv[.gz]   query id TAB text; query id TAB document id TAB grade"""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts as words, and which documents belong to which query.

    Parameters
    ----------
    name : str
    ids : tuple of str
        Of the documents, ascending.
    documents : list of lists of str
        Their words, the title's `TITLE_TIMES` times.
    plain : list of lists of str
        The same with the title once.
    query_ids : tuple of str
    queries : list of lists of str
        Words; of documents that are queries, with the title once.
    train, valid, test : tuple of (query id, document id)
        What belongs together.
    sides : (frozenset, frozenset) or None
        Ids of documents to train on and to test on, where the corpus says so.
    notes : tuple of str
        What was refused while reading.
    """

    name: str
    ids: tuple[str, ...]
    documents: Tokens
    plain: Tokens
    query_ids: tuple[str, ...]
    queries: Tokens
    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]
    sides: tuple[frozenset[str], frozenset[str]] | None = None
    notes: tuple[str, ...] = ()

    @property
    def documents_are_queries(self) -> bool:
        """Whether the queries are the documents themselves."""
        return self.query_ids == self.ids


def read_corpus(folder: Path, seed: int, small: bool = False) -> Corpus:
    """Return the corpus of a folder, or of ``ir_datasets:NAME``.

    Parameters
    ----------
    folder : Path
        See `NEEDED`.
    seed : int
        Splits what is not split.
    small : bool
        Keep the `SMALL_DOCUMENTS` documents with the most links or judgements, and their first `SMALL_WORDS` words.

    Raises
    ------
    InputError
        If a file is missing or cannot be used, or ir_datasets has no such data set.
    MissingExtra
        For ``ir_datasets:`` without that library.
    """
    if (name := library_name(folder)) is not None:
        return _library(name, seed, small)
    file = first_of(folder, _DOCUMENTS)
    if file is None:
        raise _missing(folder)
    notes: list[str] = []
    with RejectLog() as rejects:
        sources = [(one.id, dict(one.source)) for one in read_documents(file, rejects=rejects)]
        if rejects.count:
            notes.append(f"{file.name}: {rejects.summary()}")
    split = [_table(folder, f"links_{part}") for part in ("train", "valid", "test")]
    whole = _table(folder, "links") or _table(folder, "links_en")
    queries, qrels = _table(folder, "queries"), _table(folder, "qrels")
    if all(split) or whole:
        parts = [_pairs(one, notes) for one in split if one] if all(split) else _cut(_pairs(whole, notes), seed)
        corpus = _of_links(folder.name, sources, parts, small)
    elif queries and qrels:
        with RejectLog() as rejects:
            texts = dict(read_queries(queries, rejects=rejects))
            judged = [(q, d) for q, d, grade in read_qrels(qrels, rejects=rejects) if grade > 0]
            if rejects.count:
                notes.append(f"queries and judgements: {rejects.summary()}")
        corpus = _of_queries(folder.name, sources, texts, judged, seed, small)
    else:
        raise _missing(folder)
    return replace(corpus, sides=_sides(folder), notes=tuple(notes))


def _of_links(name: str, sources: list[tuple[str, dict[str, Any]]], parts: Sequence[list[Pair]], small: bool) -> Corpus:
    """Return a corpus whose documents are the queries."""
    sources = _most_used(sources, [one for part in parts for one in part], small)
    ids, documents, plain = _tokens(sources, small)
    known = set(ids)
    kept = [tuple(one for one in dict.fromkeys(part) if known.issuperset(one) and one[0] != one[1]) for part in parts]
    _check(name, kept, ids)
    return Corpus(name, ids, documents, plain, ids, plain, kept[0], kept[1], kept[2])


def _of_queries(
    name: str,
    sources: list[tuple[str, dict[str, Any]]],
    texts: dict[str, str],
    judged: list[Pair],
    seed: int,
    small: bool,
) -> Corpus:
    """Return a corpus of queries with judgements; the queries are split, not the judgements."""
    sources = _most_used(sources, judged, small)
    ids, documents, plain = _tokens(sources, small)
    known = set(ids)
    usable = [(q, d) for q, d in judged if q in texts and d in known]
    names = sorted({q for q, _ in usable})
    groups = _cut(names, seed)
    parts = [tuple(one for one in usable if one[0] in set(group)) for group in groups]
    _check(name, parts, ids)
    words = make_analyzer(parse_analyzer(ANALYZER)).tokens([texts[one] for one in names])
    return Corpus(name, ids, documents, plain, tuple(names), words, parts[0], parts[1], parts[2])


def _library(name: str, seed: int, small: bool) -> Corpus:
    """Return a data set of ir_datasets: its documents, queries and judgements."""
    data = read_library(name)
    sources = [(one, {"title": title, "text": text}) for one, (title, text) in data.documents.items()]
    judged = [(query, one) for query, row in data.grades.items() for one, grade in row.items() if grade > 0]
    return _of_queries(data.name, sources, dict(data.queries), judged, seed, small)


def _tokens(sources: list[tuple[str, dict[str, Any]]], small: bool) -> tuple[tuple[str, ...], Tokens, Tokens]:
    """Return ids, ascending, and the words of each document with the title several times and once."""
    sources = sorted(sources, key=lambda one: one[0])
    analyzer = make_analyzer(parse_analyzer(ANALYZER))
    titles = analyzer.tokens([str(source.get("title") or "") for _, source in sources])
    texts = analyzer.tokens([str(source.get("text") or "") for _, source in sources])
    if small:
        texts = [text[:SMALL_WORDS] for text in texts]
    documents = [title * TITLE_TIMES + text for title, text in zip(titles, texts, strict=True)]
    plain = [title + text for title, text in zip(titles, texts, strict=True)]
    return tuple(one for one, _ in sources), documents, plain


def _most_used(
    sources: list[tuple[str, dict[str, Any]]], pairs: Iterable[Pair], small: bool
) -> list[tuple[str, dict[str, Any]]]:
    """Return the documents, in small mode those in the most pairs."""
    if not small or len(sources) <= SMALL_DOCUMENTS:
        return sources
    times: dict[str, int] = {}
    for pair in pairs:
        for one in pair:
            times[one] = times.get(one, 0) + 1
    return sorted(sources, key=lambda one: (-times.get(one[0], 0), one[0]))[:SMALL_DOCUMENTS]


def _pairs(file: Path | None, notes: list[str]) -> list[Pair]:
    """Return the links of a file."""
    if file is None:
        return []
    with RejectLog() as rejects:
        found = [(link.source, link.target) for link in read_links(file, rejects=rejects)]
        if rejects.count:
            notes.append(f"{file.name}: {rejects.summary()}")
    return found


def _cut(things: list[Any], seed: int) -> list[list[Any]]:
    """Return 70, 10 and 20 % of the things at random, each in their order."""
    order = np.random.default_rng([seed, 1]).permutation(len(things))
    first, second = (round(len(things) * share) for share in (_SHARES[0], sum(_SHARES)))
    return [[things[place] for place in np.sort(part)] for part in np.split(order, [first, second])]


def _sides(folder: Path) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the ids of the documents to train and to test on, where the folder has them."""
    found = [first_of(folder, (f"docs_{part}_ids.txt.gz", f"docs_{part}_ids.txt")) for part in ("train", "test")]
    if found[0] is None or found[1] is None:
        return None
    return frozenset(read_ids(found[0])), frozenset(read_ids(found[1]))


def _check(name: str, parts: Sequence[Sequence[Pair]], ids: Sequence[str]) -> None:
    """Refuse a corpus of which nothing can be learned or measured."""
    empty = [part for part, pairs in zip(("training", "validation", "test"), parts, strict=True) if not pairs]
    if empty:
        raise InputError(
            f"the corpus {name!r} has no {' and no '.join(empty)} pair between its {len(ids):,} documents and its "
            f"queries: check that the ids of links or judgements are those of the documents"
        )


def _table(folder: Path, stem: str) -> Path | None:
    return first_of(folder, (f"{stem}.tsv.gz", f"{stem}.tsv"))


def first_of(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first of the files that is there."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _missing(folder: Path) -> InputError:
    """Return the error of a folder that is no corpus, with what it needs."""
    there = ", ".join(sorted(one.name for one in folder.iterdir())[:20]) if folder.is_dir() else "no such folder"
    return InputError(
        f"{str(folder)!r} holds no corpus for this task ({there}). It needs\n{NEEDED}\n"
        f"Name the folder with --corpus DIR, or set SSI_DATA to a folder that holds it.",
        folder=str(folder),
    )
