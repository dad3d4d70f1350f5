"""Documents, queries and judgements as they are read: of a folder, or of ir_datasets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from papers.corpora import first_of
from papers.library import library_name, read_library
from reranker.baselines.experiment import read_judgements
from reranker.formats import RejectLog, RejectSink, read_documents, read_queries

TitledTexts = Mapping[str, tuple[str, str]]
"""Document id -> title and text."""
Grades = Mapping[str, Mapping[str, float]]
"""Query id -> document id -> grade."""


def judged_texts(folder: Path) -> tuple[str, TitledTexts, Mapping[str, str], Grades]:
    """Return name, documents, queries and judgements of a folder, or of ``ir_datasets:NAME``.

    Lines that cannot be read are left out.

    Parameters
    ----------
    folder : Path
        With docs.jsonl[.gz] or docs.parquet, queries.tsv[.gz] and qrels.tsv[.gz].

    Raises
    ------
    InputError
        If a file or a data set is missing or damaged.
    MissingExtra
        For ``ir_datasets:`` without that library.
    """
    if (name := library_name(folder)) is not None:
        data = read_library(name)
        return data.name, data.documents, data.queries, data.grades
    with RejectLog() as rejects:
        judged = read_judgements(_first(folder, "qrels.tsv.gz", "qrels.tsv"), rejects)
        read = read_queries(_first(folder, "queries.tsv.gz", "queries.tsv"), rejects=rejects)
        queries = {query.id: query.text for query in read}
        documents = titled_texts(_first(folder, "docs.jsonl.gz", "docs.jsonl", "docs.parquet"), rejects)
    return folder.name, documents, queries, judged


def titled_texts(file: Path, rejects: RejectSink | None = None) -> TitledTexts:
    """Return titles and texts of a file of documents, empty where a document lacks one; None raises at a bad line."""
    read = read_documents(file, rejects=rejects)
    return {one.id: (str(one.source.get("title") or ""), str(one.source.get("text") or "")) for one in read}


def _first(folder: Path, *names: str) -> Path:
    """Return the first of the files that is there; the first name where none is, for the message to tell."""
    return first_of(folder, names) or folder / names[0]


def usable_judgements(
    judged: Grades, queries: Mapping[str, object], documents: Mapping[str, object]
) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Return the judgements of queries and documents with a text, and how many queries were left out why."""
    kept, counts = {}, {"query without a text": 0, "query without a relevant document": 0}
    for query, row in judged.items():
        known = {document: grade for document, grade in row.items() if document in documents}
        if query not in queries:
            counts["query without a text"] += 1
        elif max(known.values(), default=0.0) < 1.0:
            counts["query without a relevant document"] += 1
        else:
            kept[query] = known
    return kept, {reason: number for reason, number in counts.items() if number}
