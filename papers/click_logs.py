"""Shown lists with clicks beside judgements: what a strategy states, how far judges agree, and pairs to learn from."""

from __future__ import annotations

import re
from collections.abc import Collection as Items
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from papers.click_simulator import EMPTY, LogPlan, PositionBased, attraction_of, simulate
from papers.judged import N_WORDS, SMALL_QUERIES, SMALL_WORDS, Collection, make_collection
from papers.judged_texts import judged_texts, titled_texts, usable_judgements
from papers.study import Preferences
from reranker.clicks.log import open_logs
from reranker.clicks.pair_config import PairConfig
from reranker.clicks.pairs import impressions as logged
from reranker.clicks.schema import Impression
from reranker.clicks.strategies import STRATEGIES
from reranker.formats import RejectLog, read_links

RESAMPLES = 1_000
PAGE, ETA, SEARCHES, QUERY_WORDS = 10, 1.0, 10, 30
MAX_QUERIES = 1_000
_QUERY_OF_TOPIC = re.compile(r"(t\d+)q\d+")
Stated = Mapping[tuple[str, str, str], int]
"""(query text, better, worse) -> in how many lists."""


class Agreement(NamedTuple):
    """Pairs of a strategy by what the judges say of them.

    ``share`` is agree / (agree + contradict), NaN without any; ``standard_error`` is that of drawing sessions anew.
    """

    agree: int
    contradict: int
    tie: int
    unjudged: int
    share: float
    standard_error: float


@dataclass(frozen=True, eq=False)
class Clicked:
    """A judged collection with the lists that were shown for its queries.

    Parameters
    ----------
    collection : Collection
    texts : tuple of str
        Text of each of its queries, white space made single.
    shown : tuple of Impression
    simulated : bool
        Clicks are those of position-based readers, who click what was judged relevant, and with probability .1 what
        was not; otherwise they are people's.
    """

    collection: Collection
    texts: tuple[str, ...]
    shown: tuple[Impression, ...]
    simulated: bool

    def query_rows(self) -> dict[str, int]:
        """Return the row of each query text; of a text asked in two topics, the first."""
        found: dict[str, int] = {}
        for row, text in enumerate(self.texts):
            found.setdefault(text, row)
        return found

    def grades(self) -> dict[str, dict[str, float]]:
        """Return query text -> document id -> grade."""
        made, found = self.collection, {}
        for text, row in self.query_rows().items():
            span = slice(made.grades.indptr[row], made.grades.indptr[row + 1])
            columns = made.grades.indices[span].tolist()
            judged = zip(columns, made.grades.data[span].tolist(), strict=True)
            found[text] = {made.document_ids[column]: grade for column, grade in judged}
        return found

    def preferences(self, stated: Stated, rows: npt.NDArray[np.int64]) -> Preferences:
        """Return stated pairs as rows: of the ``rows``-th queries and of documents; others are left out."""
        place = {int(row): number for number, row in enumerate(rows)}
        query_row = {text: place[row] for text, row in self.query_rows().items() if row in place}
        column = {one: number for number, one in enumerate(self.collection.document_ids)}
        kept = [
            (query_row[query], column[better], column[worse], times)
            for (query, better, worse), times in sorted(stated.items())
            if query in query_row and better in column and worse in column
        ]
        table = np.array(kept, dtype=np.int64).reshape(-1, 4)
        return Preferences(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.float64))


def agreement(
    shown: Sequence[Impression],
    grades: Mapping[str, Mapping[str, float]],
    strategy: str,
    rng: np.random.Generator,
) -> Agreement:
    """Return how far a strategy's pairs agree with judges; the error is that of drawing sessions anew.

    Parameters
    ----------
    shown : sequence of Impression
    grades : mapping of query text to mapping of document id to grade
        Texts with single spaces.
    strategy : str
        Of `reranker.clicks.strategies.STRATEGIES`.
    rng : Generator
    """
    counts: dict[str, list[int]] = {}
    for impression in shown:
        judged = grades.get(" ".join(impression.query.split()), {})
        tally = counts.setdefault(impression.session, [0, 0, 0, 0])
        for better, worse in STRATEGIES[strategy].function(impression):
            if better not in judged or worse not in judged:
                tally[3] += 1
            else:
                tally[int(np.sign(judged[worse] - judged[better])) + 1] += 1
    table = np.array(list(counts.values())).reshape(-1, 4)
    agree, tie, contradict, unjudged = (int(n) for n in table.sum(axis=0))
    if not agree + contradict:
        return Agreement(agree, contradict, tie, unjudged, float("nan"), float("nan"))
    # Drawn as how often each session comes: the same as drawing them one by one, without a table of all draws.
    times = rng.multinomial(len(table), np.full(len(table), 1 / len(table)), RESAMPLES)
    drawn = times @ table
    decided = drawn[:, 0] + drawn[:, 2]
    shares = drawn[decided > 0, 0] / decided[decided > 0]
    return Agreement(agree, contradict, tie, unjudged, agree / (agree + contradict), float(shares.std()))


def stated_pairs(shown: Sequence[Impression], strategy: str, sessions: Items[str] | None = None) -> Stated:
    """Return the pairs that the lists (of some sessions) state, and in how many lists each was stated."""
    found: dict[tuple[str, str, str], int] = {}
    for impression in shown:
        if sessions is None or impression.session in sessions:
            query = " ".join(impression.query.split())
            for pair in set(STRATEGIES[strategy].function(impression)):
                found[query, *pair] = found.get((query, *pair), 0) + 1
    return found


def read_clicked(folder: Path, *, small: bool = False, seed: int = 0) -> Clicked:
    """Return a judged collection with its clicks, or with simulated ones.

    A folder with clicks.jsonl.gz, docs, queries and qrels has people's clicks. One with qrels alone (judged
    searches), or with links_en.tsv.gz (documentation: a page's beginning asks for what it links to), has readers
    simulated on pages of ten in an arbitrary order that stays, who look at rank r with probability 1 / r.

    Parameters
    ----------
    folder : Path
        Or ``ir_datasets:NAME``, whose judged searches are clicked by simulated readers.
    small : bool
        A few queries and words.
    seed : int
        Of the simulation, and of the draw where there are more than 1,000 queries.
    """
    rng = np.random.default_rng(seed)
    if (folder / "links_en.tsv.gz").is_file():
        return _documentation(folder, small, rng)
    name, documents, queries, judged = judged_texts(folder)
    grades, dropped = usable_judgements(judged, queries, documents)
    has_clicks = (folder / "clicks.jsonl.gz").is_file()
    if not has_clicks:
        grades = _some(grades, SMALL_QUERIES if small else MAX_QUERIES, rng)
    if small:
        kept = {document for row in grades.values() for document in row}
        documents = {one: text for one, text in documents.items() if one in kept}
    groups = {query: _topic_of(query) for query in grades}
    n_words = SMALL_WORDS if small else N_WORDS
    made = make_collection(name, documents, queries, grades, group_of=groups, dropped=dropped, n_words=n_words)
    texts = tuple(" ".join(queries[one].split()) for one in made.query_ids)
    if has_clicks:
        log = open_logs([folder / "clicks.jsonl.gz"], rejects=RejectLog(None))
        return Clicked(made, texts, tuple(logged(log, PairConfig().unprotected())), False)
    pages = [rng.permutation(sorted(grades[one])).tolist()[:PAGE] for one in made.query_ids]
    return Clicked(made, texts, _simulated(texts, pages, [grades[one] for one in made.query_ids], rng), True)


def _topic_of(query: str) -> str:
    """Return ``t11`` of ``t11q2``, the second query of a session's topic; any other id is a topic of its own."""
    found = _QUERY_OF_TOPIC.fullmatch(query)
    return found[1] if found else query


def _documentation(folder: Path, small: bool, rng: np.random.Generator) -> Clicked:
    """Return documentation whose readers look for what pages link to, half of a page of results being others."""
    documents = titled_texts(folder / "docs_en.jsonl.gz", RejectLog(None))
    linked: dict[str, list[str]] = {}
    for source, target in read_links(folder / "links_en.tsv.gz"):
        if source != target and source in documents and target in documents:
            linked.setdefault(source, []).append(target)
    chosen = rng.permutation(sorted(linked)).tolist()[: SMALL_QUERIES if small else MAX_QUERIES]
    targets = sorted({one for many in linked.values() for one in many})
    grades: dict[str, dict[str, float]] = {}
    pages: dict[str, list[str]] = {}
    for query in chosen:
        wanted = rng.permutation(linked[query]).tolist()[: PAGE // 2]
        others = [targets[n] for n in rng.permutation(len(targets))[: 4 * PAGE].tolist()]
        others = [one for one in others if one not in linked[query] and one != query][: PAGE - len(wanted)]
        pages[query] = rng.permutation([*wanted, *others]).tolist()
        grades[query] = {**dict.fromkeys(others, 0.0), **dict.fromkeys(linked[query], 1.0)}
    queries = {one: f"{documents[one][0]} {' '.join(documents[one][1].split()[:QUERY_WORDS])}" for one in chosen}
    if small:
        kept = {document for row in grades.values() for document in row}
        documents = {one: documents[one] for one in kept}
    n_words = SMALL_WORDS if small else N_WORDS
    made = make_collection(folder.name, documents, queries, grades, n_words=n_words)
    texts = tuple(" ".join(queries[one].split()) for one in made.query_ids)
    by_row = [grades[one] for one in made.query_ids]
    return Clicked(made, texts, _simulated(texts, [pages[one] for one in made.query_ids], by_row, rng), True)


def _simulated(
    texts: Sequence[str],
    pages: Sequence[Sequence[str]],
    grades: Sequence[Mapping[str, float]],
    rng: np.random.Generator,
) -> tuple[Impression, ...]:
    """Return what position-based readers click, ten searches a query in the mean."""
    documents = sorted({one for page in pages for one in page})
    number = {one: n for n, one in enumerate(documents)}
    lists = np.full((len(pages), PAGE), EMPTY, dtype=np.int64)
    relevant = np.zeros(lists.shape, dtype=bool)
    for row, page in enumerate(pages):
        lists[row, : len(page)] = [number[one] for one in page]
        relevant[row, : len(page)] = [grades[row].get(one, 0.0) >= 1.0 for one in page]
    plan = LogPlan(SEARCHES * len(pages))
    log = simulate(lists, attraction_of(relevant), PositionBased.power(PAGE, ETA), plan, rng)
    return tuple(log.impressions(texts, documents))


def _some(grades: Mapping[str, Mapping[str, float]], n: int, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Return the judgements of n queries."""
    names = sorted(grades)
    kept = names if len(names) <= n else sorted(rng.choice(names, n, replace=False).tolist())
    return {name: dict(grades[name]) for name in kept}
