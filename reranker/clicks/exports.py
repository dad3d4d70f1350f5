"""Clicks in the forms of other tools: judgements of TREC, LETOR, Search Relevance Workbench and Quepid; pairs as TSV.

A judgement is a number from 0 to 1, times the highest grade. By clicks it is the share of those who clicked among those
who looked: clicks over the sum of the examination probabilities of the ranks where the document stood, each person
once (`reranker.clicks.pairs.Rating`). By pairs it is the share of the weight, of all pairs of the query that name the
document, in which it is the better one. Both compare documents that were shown; the rest stays unjudged.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from reranker.clicks.pairs import Rating
from reranker.errors import ConfigError, InputError
from reranker.files import replacing
from reranker.records import Pair


@dataclass(frozen=True, slots=True)
class Judgement:
    """How well a document serves a query text: ``value`` from 0 to 1."""

    query: str
    document: str
    value: float


@dataclass(frozen=True, slots=True)
class Export:
    """A form of judgements; ``lines(judgements by query, max_grade)``, ``query_file`` where queries go by id."""

    lines: Callable[[Iterable[Judgement], int], Iterator[str]]
    max_grade: int
    query_file: bool
    summary: str


def judgements_of_ratings(ratings: Iterable[Rating], min_people: int = 1) -> Iterator[Judgement]:
    """Yield click shares as judgements, of documents that were shown to ``min_people`` people at least."""
    return (Judgement(rating.query, rating.document, rating.share) for rating in ratings if rating.people >= min_people)


def judgements_of_pairs(pairs: Iterable[Pair]) -> Iterator[Judgement]:
    """Yield the share of the weight that each document won; pairs must come by query."""
    for query, group in groupby(pairs, key=lambda pair: pair.query):
        won: dict[str, float] = {}
        total: dict[str, float] = {}
        for pair in group:
            won[pair.better] = won.get(pair.better, 0.0) + pair.weight
            for document in (pair.better, pair.worse):
                total[document] = total.get(document, 0.0) + pair.weight
        for document in sorted(total):
            yield Judgement(query, document, won.get(document, 0.0) / total[document])


def grade(value: float, max_grade: int) -> int:
    """Return the whole grade of a value: value * max_grade, halves up."""
    return math.floor(value * max_grade + 0.5)


def query_id(text: str) -> str:
    """Return an id of a query text: the same in every export, 16 hexadecimal digits after a q."""
    return "q" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def trec_lines(judgements: Iterable[Judgement], max_grade: int) -> Iterator[str]:
    """Yield TREC qrels: query id, 0, document id and grade, by blanks; `InputError` for an id with white space."""
    for judgement in judgements:
        if judgement.document.split() != [judgement.document]:
            message = f"the document id {judgement.document!r} has white space, which ends a column in TREC's form"
            raise InputError(f"{message}: export to another form", document=judgement.document)
        yield f"{query_id(judgement.query)} 0 {judgement.document} {grade(judgement.value, max_grade)}\n"


def letor_lines(judgements: Iterable[Judgement], max_grade: int) -> Iterator[str]:
    """Yield a LETOR judgement list: ``grade qid:n # document``, with the texts of all queries before it."""
    known = list(judgements)
    texts = dict.fromkeys(judgement.query for judgement in known)
    numbers = {text: number for number, text in enumerate(texts, start=1)}
    for text, number in numbers.items():
        yield f"# qid:{number}: {text}\n"
    yield "#\n"
    for judgement in known:
        yield f"{grade(judgement.value, max_grade)} qid:{numbers[judgement.query]} # {judgement.document}\n"


def srw_lines(judgements: Iterable[Judgement], max_grade: int) -> Iterator[str]:
    """Yield the body of OpenSearch's ``PUT …/judgments``; a rating that is a number stops it (search-relevance#229)."""
    yield '{"name": "clicks", "description": "made by ssi clicks export", "type": "IMPORT_JUDGMENT", '
    yield '"judgmentRatings": ['
    before = "\n"
    for text, group in groupby(judgements, key=lambda judgement: judgement.query):
        graded = [{"docId": each.document, "rating": f"{each.value * max_grade:.3f}"} for each in group]
        yield before + json.dumps({"query": text, "ratings": graded}, ensure_ascii=False)
        before = ",\n"
    yield "\n]}\n"


def quepid_lines(judgements: Iterable[Judgement], max_grade: int) -> Iterator[str]:
    """Yield Quepid's CSV of ratings: query, docid, rating."""
    yield _csv_line("query", "docid", "rating")
    for judgement in judgements:
        yield _csv_line(judgement.query, judgement.document, str(grade(judgement.value, max_grade)))


EXPORTS: dict[str, Export] = {
    "trec": Export(trec_lines, 4, True, "TREC qrels, grades 0 to 4, and the queries' texts beside them"),
    "letor": Export(letor_lines, 4, False, "LETOR judgement list, grades 0 to 4"),
    "srw": Export(srw_lines, 3, False, "Search Relevance Workbench judgements (JSON), ratings 0.000 to 3.000"),
    "quepid": Export(quepid_lines, 3, False, "Quepid ratings (CSV), 0 to 3"),
}
"""The forms of judgements by name."""


def write_judgements(
    judgements: Iterable[Judgement], path: Path, form: str, *, max_grade: int | None = None, queries: Path | None = None
) -> int:
    """Write judgements, by query, in a form; return their number; `ConfigError` or `InputError` if it cannot be."""
    if form not in EXPORTS:
        raise ConfigError(f"the form is {form!r}: it must be one of {', '.join(EXPORTS)}")
    highest = EXPORTS[form].max_grade if max_grade is None else max_grade
    if highest < 1:
        raise ConfigError(f"the highest grade is {highest}: it must be at least 1")
    seen: dict[str, None] = {}
    count = 0

    def counted() -> Iterator[Judgement]:
        nonlocal count
        for judgement in judgements:
            seen[judgement.query] = None
            count += 1
            yield judgement

    with replacing(path, private=True) as file:
        for line in EXPORTS[form].lines(counted(), highest):
            file.write(line.encode())
    if queries is not None:
        with replacing(queries, private=True) as file:
            for text in seen:
                file.write(f"{query_id(text)}\t{text}\n".encode())
    return count


def write_tsv(pairs: Iterable[Pair], path: Path) -> int:
    """Write pairs as `reranker.formats.read_pairs` takes them, with a header, and return their number."""
    count = 0
    with replacing(path, private=True) as file:
        file.write(b"query\tbetter\tworse\tweight\n")
        for pair in pairs:
            file.write(f"{pair.query}\t{pair.better}\t{pair.worse}\t{pair.weight!r}\n".encode())
            count += 1
    return count


def _csv_line(*cells: str) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
