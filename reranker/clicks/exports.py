"""Export of clicks: judgments for TREC, LETOR, Search Relevance Workbench, and Quepid; preference pairs as TSV.

A judgment is a value from 0 to 1, scaled by the highest grade of the format: the share of clicks among examinations,
which is the number of people who clicked over the sum of the examination probabilities of the ranks where the document
stood. Each person counts once (`reranker.clicks.pairs.Rating`). Documents that were not shown stay unjudged.
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
from reranker.text.query_keys import query_key


@dataclass(frozen=True, slots=True)
class ClickJudgement:
    """A judgment of one document for one query text."""

    query: str
    document: str
    value: float
    """How well the document serves the query, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Export:
    """An export format for judgments."""

    lines: Callable[[Iterable[ClickJudgement], int], Iterator[str]]
    """Function of (judgments grouped by query, highest grade) that yields the lines of the file."""
    max_grade: int
    """The highest grade."""
    query_file: bool
    """Whether the format names queries by id, so that a second file with their texts is needed."""
    summary: str
    """One line for ``--help``."""


def judgements_of_ratings(ratings: Iterable[Rating], min_people: int = 1) -> Iterator[ClickJudgement]:
    """Yield click shares as judgments, for documents that were shown to at least ``min_people`` people."""
    return (
        ClickJudgement(rating.query, rating.document, rating.share) for rating in ratings if rating.people >= min_people
    )


def grade(value: float, max_grade: int) -> int:
    """Return the integer grade of a value: value * max_grade, rounded half up."""
    return math.floor(value * max_grade + 0.5)


def query_id(text: str) -> str:
    """Return the id of a query text: "q" and 16 hexadecimal digits, the same in every export and for every spelling."""
    return "q" + hashlib.blake2b(query_key(text).encode(), digest_size=8).hexdigest()


def trec_lines(judgements: Iterable[ClickJudgement], max_grade: int) -> Iterator[str]:
    """Yield TREC qrels: query id, 0, document id, and grade, separated by spaces.

    Raises `InputError` for a document id with white space.
    """
    for judgement in judgements:
        if judgement.document.split() != [judgement.document]:
            message = f"the document id {judgement.document!r} contains white space, which separates columns in qrels"
            raise InputError(f"{message}: choose another export format", document=judgement.document)
        yield f"{query_id(judgement.query)} 0 {judgement.document} {grade(judgement.value, max_grade)}\n"


def letor_lines(judgements: Iterable[ClickJudgement], max_grade: int) -> Iterator[str]:
    """Yield a LETOR judgment list: first the text of each query as a comment, then lines ``grade qid:n # document``."""
    known = list(judgements)
    texts = dict.fromkeys(judgement.query for judgement in known)
    numbers = {text: number for number, text in enumerate(texts, start=1)}
    for text, number in numbers.items():
        yield f"# qid:{number}: {text}\n"
    yield "#\n"
    for judgement in known:
        yield f"{grade(judgement.value, max_grade)} qid:{numbers[judgement.query]} # {judgement.document}\n"


def srw_lines(judgements: Iterable[ClickJudgement], max_grade: int) -> Iterator[str]:
    """Yield the body of OpenSearch's ``PUT …/judgments``.

    Ratings are written as strings, because a numeric rating makes the import fail (search-relevance#229).
    """
    yield '{"name": "clicks", "description": "made by ssi clicks export", "type": "IMPORT_JUDGMENT", '
    yield '"judgmentRatings": ['
    before = "\n"
    for text, group in groupby(judgements, key=lambda judgement: judgement.query):
        graded = [{"docId": each.document, "rating": f"{each.value * max_grade:.3f}"} for each in group]
        yield before + json.dumps({"query": text, "ratings": graded}, ensure_ascii=False)
        before = ",\n"
    yield "\n]}\n"


def quepid_lines(judgements: Iterable[ClickJudgement], max_grade: int) -> Iterator[str]:
    """Yield Quepid's CSV of ratings: query, docid, rating."""
    yield _csv_line("query", "docid", "rating")
    for judgement in judgements:
        yield _csv_line(judgement.query, judgement.document, str(grade(judgement.value, max_grade)))


EXPORTS: dict[str, Export] = {
    "trec": Export(trec_lines, 4, True, "TREC qrels, grades 0 to 4, and a second file with the query texts"),
    "letor": Export(letor_lines, 4, False, "LETOR judgement list, grades 0 to 4"),
    "srw": Export(srw_lines, 3, False, "Search Relevance Workbench judgments (JSON), ratings 0.000 to 3.000"),
    "quepid": Export(quepid_lines, 3, False, "Quepid ratings (CSV), 0 to 3"),
}
"""Export formats by name."""


def write_judgements(
    judgements: Iterable[ClickJudgement], path: Path, form: str, *, queries: Path | None = None
) -> int:
    """Write judgments to a file and return their number.

    Parameters
    ----------
    judgements
        Judgments, grouped by query.
    path
        The file, which only its owner can read.
    form
        A key of `EXPORTS`.
    queries
        A second file for lines of query id, tab, query text; None: not written.

    Raises
    ------
    ConfigError
        For an unknown format.
    InputError
        If a document id cannot be written in the format.
    """
    if form not in EXPORTS:
        raise ConfigError(f"the export format is {form!r}: it must be one of {', '.join(EXPORTS)}")
    seen: dict[str, None] = {}
    count = 0

    def counted() -> Iterator[ClickJudgement]:
        nonlocal count
        for judgement in judgements:
            seen[judgement.query] = None
            count += 1
            yield judgement

    with replacing(path, private=True) as file:
        for line in EXPORTS[form].lines(counted(), EXPORTS[form].max_grade):
            file.write(line.encode())
    if queries is not None:
        with replacing(queries, private=True) as file:
            for text in seen:
                file.write(f"{query_id(text)}\t{text}\n".encode())
    return count


def write_tsv(pairs: Iterable[Pair], path: Path) -> int:
    """Write pairs with a header line, as `reranker.tables.read_pairs` reads them, and return their number."""
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
