"""Documents, queries and judgements as they are read: of a folder, or of ir_datasets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reranker.experiment import read_judgements
from reranker.formats import RejectLog, read_documents, read_queries
from reranker.systems.library import library_name, read_library

TitledTexts = Mapping[str, tuple[str, str]]
"""Document id -> title and text."""
Grades = Mapping[str, Mapping[str, float]]
"""Query id -> document id -> grade."""


def judged_texts(folder: Path) -> tuple[str, TitledTexts, Mapping[str, str], Grades]:
    """Return name, documents, queries and judgements of a folder, or of ``ir_datasets:NAME``.

    Parameters
    ----------
    folder : Path
        With docs.jsonl.gz, queries.tsv.gz and qrels.tsv.gz.

    Raises
    ------
    InputError
        If a file or a data set is missing or damaged.
    """
    if (name := library_name(folder)) is not None:
        data = read_library(name)
        return name.replace("/", "-"), data.documents, data.queries, data.grades
    with RejectLog() as rejects:
        judged = read_judgements(folder / "qrels.tsv.gz", rejects)
        queries = {query.id: query.text for query in read_queries(folder / "queries.tsv.gz", rejects=rejects)}
    return folder.name, titled_texts(folder / "docs.jsonl.gz"), queries, judged


def titled_texts(file: Path) -> TitledTexts:
    """Return titles and texts of a file of documents, lines that cannot be read left out."""
    with RejectLog() as rejects:
        read = read_documents(file, rejects=rejects)
        return {one.id: (str(one.source.get("title") or ""), str(one.source.get("text") or "")) for one in read}


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
