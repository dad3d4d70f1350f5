"""Documents, queries and judgements as files hold them: of a folder, or of a data set of ir_datasets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from reranker.experiment import read_judgements
from reranker.formats import RejectLog, read_documents, read_queries
from reranker.systems.corpora import LIBRARY, read_library


class JudgedTexts(NamedTuple):
    """What the files hold.

    Parameters
    ----------
    name : str
        Of the folder or the data set.
    documents : dict of id to (title, text)
    queries : dict of id to text
    grades : mapping of query id to mapping of document id to grade
    """

    name: str
    documents: dict[str, tuple[str, str]]
    queries: dict[str, str]
    grades: Mapping[str, Mapping[str, float]]


def read_judged(folder: Path, rejects: RejectLog) -> JudgedTexts:
    """Return the texts and judgements of a folder, or of ``ir_datasets:NAME``.

    Parameters
    ----------
    folder : Path
        With docs.jsonl[.gz] or docs.parquet, queries.tsv[.gz] and qrels.tsv[.gz].
    rejects : RejectLog
        Counts lines that cannot be used.

    Raises
    ------
    InputError
        If a file is missing or damaged, or ir_datasets has no such data set.
    MissingExtra
        For ``ir_datasets:`` without that library.
    """
    if str(folder).startswith(LIBRARY):
        name = str(folder).removeprefix(LIBRARY)
        sources, queries, judged = read_library(name)
        grades: dict[str, dict[str, float]] = {}
        for query, document, grade in judged:
            grades.setdefault(query, {})[document] = grade
        documents = {one: (source["title"], source["text"]) for one, source in sources}
        return JudgedTexts(name.replace("/", "-"), documents, queries, grades)
    found = read_judgements(_first(folder, "qrels.tsv.gz", "qrels.tsv"), rejects)
    texts = {one.id: one.text for one in read_queries(_first(folder, "queries.tsv.gz", "queries.tsv"), rejects=rejects)}
    pages = read_pages(_first(folder, "docs.jsonl.gz", "docs.jsonl", "docs.parquet"), rejects)
    return JudgedTexts(folder.name, pages, texts, found)


def read_pages(path: Path, rejects: RejectLog) -> dict[str, tuple[str, str]]:
    """Return id -> (title, text) of a file of documents; what a document lacks is empty."""
    return {
        one.id: (str(one.source.get("title") or ""), str(one.source.get("text") or ""))
        for one in read_documents(path, rejects=rejects)
    }


def _first(folder: Path, *names: str) -> Path:
    """Return the first of the files that is there; the first name where none is, for the message to tell."""
    paths = [folder / name for name in names]
    return next((path for path in paths if path.is_file()), paths[0])
