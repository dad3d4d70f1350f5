"""Sites whose truth is known, to simulate clicks on: judged movie searches, and documentation whose links are wanted.

A site has queries that are asked (with a result page each, in the order of a poor live ranking), queries to test on
that are never asked, and for all of them the documents that are relevant.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from end_to_end_data import read_collection

from reranker.baselines.comparison import experiment_of, read_corpus
from reranker.clicks.log import ClickLog
from reranker.clicks.simulator import EMPTY, ClickModel, LogPlan, SimulatedLog, attraction_of, simulate, tables_of
from reranker.evaluation import evaluate_ranking, qrels_task
from reranker.models.ranking_model import RankingModel
from reranker.tables import read_links
from reranker.text.view import TextView
from reranker.training import DocumentSource, TrainingSet, from_judgements

Grades = Mapping[str, Mapping[str, float]]
QUERY_WORDS = 30
DEPTH = 1_000


@dataclasses.dataclass(frozen=True)
class Site:
    """What a simulation knows.

    Parameters
    ----------
    name : str
    docs : Path
    view : str
        Fields with their weights, as `TextView.parse` takes them: the same for every model, as in a retraining.
    texts : mapping of query id to text
    grades : mapping of query id to mapping of document id to grade
        The truth, of asked, validation and test queries.
    asked, valid, test : sequence of str
        Query ids; no text is in two of them.
    pages : mapping of query id to sequence of str
        What the live ranking shows for each asked query.
    """

    name: str
    docs: Path
    view: tuple[str, ...]
    texts: Mapping[str, str]
    grades: Grades
    asked: Sequence[str]
    valid: Sequence[str]
    test: Sequence[str]
    pages: Mapping[str, Sequence[str]]

    @property
    def corpus(self) -> DocumentSource:
        """What models are trained on."""
        return DocumentSource(self.docs, TextView.parse(list(self.view)))

    @property
    def documents(self) -> list[str]:
        """Ids of the documents that are shown, sorted."""
        return sorted({one for page in self.pages.values() for one in page})

    @property
    def queries(self) -> list[str]:
        """Texts of the asked queries, in their order."""
        return [self.texts[query] for query in self.asked]

    def lists(self) -> npt.NDArray[np.int64]:
        """Return the result pages as numbers of `documents`, (asked queries, longest page), -1 after the end."""
        number = {one: n for n, one in enumerate(self.documents)}
        found = np.full((len(self.asked), max(map(len, self.pages.values()))), EMPTY, dtype=np.int64)
        for row, query in enumerate(self.asked):
            page = self.pages[query]
            found[row, : len(page)] = [number[one] for one in page]
        return found

    def relevant(self) -> npt.NDArray[np.bool_]:
        """Return which documents of the result pages are relevant, of the shape of `lists`."""
        lists, documents = self.lists(), self.documents
        found = np.zeros(lists.shape, dtype=bool)
        for row, query in enumerate(self.asked):
            truth = self.grades[query]
            found[row] = [place != EMPTY and truth.get(documents[place], 0) > 0 for place in lists[row].tolist()]
        return found

    def clicks(
        self, model: ClickModel, plan: LogPlan, rng: np.random.Generator, *, of_others: float = 0.1
    ) -> SimulatedLog:
        """Return a log of readers who click relevant documents that they look at, and others by mistake."""
        attraction = attraction_of(self.relevant(), of_others=of_others)
        return simulate(self.lists(), attraction, model, plan, rng)

    def keep(self, log: SimulatedLog, folder: Path) -> ClickLog:
        """Write a log as `ssi clicks import` would keep it."""
        kept = ClickLog(folder, create=True)
        kept.add([tables_of(log, self.queries, self.documents, impressions=False)], "simulated")
        return kept

    def labels(self, queries: Sequence[str], *, shown_only: bool = False) -> TrainingSet:
        """Return the truth as evidence; ``shown_only`` leaves out what the result pages do not show."""
        grades = {query: dict(self.grades[query]) for query in queries}
        if shown_only:
            grades = {
                query: {one: judged.get(one, 0.0) for one in self.pages[query]} for query, judged in grades.items()
            }
        return from_judgements(grades, self.texts)

    def evaluate(self, model: RankingModel, queries: Sequence[str], measure: str = "AP") -> npt.NDArray[np.float64]:
        """Return a measure of the model's ranking of all documents, a value a query."""
        corpus = read_corpus(self.docs, model, set())
        task = qrels_task({one: self.grades[one] for one in queries}, list(queries), corpus.ids, ())
        experiment = experiment_of(model, corpus, task, self.texts)
        ranked = np.empty((len(task.query_ids), min(DEPTH, len(corpus.ids))), dtype=np.int32)
        for row in range(len(ranked)):
            scores = experiment.model.block(row, row + 1)[0]
            ranked[row] = np.argsort(-scores, kind="stable")[: ranked.shape[1]]
        return evaluate_ranking(ranked, task.grades, [measure])[measure]


def movie_site(folder: Path, work: Path, *, n_asked: int, page: int, seed: int, small: bool = False) -> Site:
    """Return the site of judged movie searches (msrd_movies), its result pages drawn at random from what was judged.

    The judged documents are BM25's best 24 of each query: a page is ten of them in an arbitrary order that stays.
    """
    data = read_collection(folder, work, small)
    rng = np.random.default_rng(seed)
    train, test = (rng.permutation(sorted(data.side(test=side))).tolist() for side in (False, True))
    n_valid = min(300, len(train) // 4)
    asked = _distinct(train[n_valid:], data.texts)[:n_asked]
    pages = {query: rng.permutation(sorted(data.grades[query])).tolist()[:page] for query in asked}
    return Site(
        data.name,
        data.docs,
        ("title^0.3", "text^1"),
        data.texts,
        data.grades,
        asked,
        train[:n_valid],
        test[:1_500],
        pages,
    )


def documentation_site(folder: Path, work: Path, *, n_asked: int, page: int, seed: int, small: bool = False) -> Site:
    """Return the site of linked documentation (cppdocs): what is asked is a page's beginning, wanted what it links to.

    A result page shows at most four of the links among documents that other pages link to, in an arbitrary order that
    stays; half of those are from the linked documents' own neighbours, so that they are about the same things.
    """
    rng = np.random.default_rng(seed)
    texts = {}
    with gzip.open(folder / "docs_en.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            texts[str(document["id"])] = f"{document['title']} {' '.join(document['text'].split()[:QUERY_WORDS])}"
    linked: dict[str, list[str]] = {}
    for source, target in read_links(folder / "links_en.tsv.gz"):
        if source != target and source in texts and target in texts:
            linked.setdefault(source, []).append(target)
    sources = _distinct(rng.permutation(sorted(linked)).tolist(), texts)
    n_valid, n_test = (60, 200) if small else (300, 1_500)
    valid, test, asked = sources[:n_valid], sources[n_valid : n_valid + n_test], sources[n_valid + n_test :][:n_asked]
    targets = sorted({one for many in linked.values() for one in many})
    pages = {query: _page_of(query, linked, targets, page, rng) for query in asked}
    grades = {query: dict.fromkeys(linked[query], 1.0) for query in [*asked, *valid, *test]}
    return Site(
        folder.name, folder / "docs_en.jsonl.gz", ("title^2", "text^1"), texts, grades, asked, valid, test, pages
    )


def _page_of(
    query: str, linked: Mapping[str, Sequence[str]], targets: Sequence[str], size: int, rng: np.random.Generator
) -> list[str]:
    wanted = rng.permutation(linked[query]).tolist()[:4]
    near = sorted({two for one in wanted for two in linked.get(one, ())} - {*linked[query], query})
    chosen = dict.fromkeys([*wanted, *rng.permutation(near).tolist()[: (size - len(wanted)) // 2]])
    for number in rng.permutation(len(targets))[: 4 * size].tolist():
        if len(chosen) < size and targets[number] not in linked[query] and targets[number] != query:
            chosen.setdefault(targets[number])
    return [str(one) for one in rng.permutation(list(chosen)).tolist()]


def _distinct(queries: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """Return the queries, only one of each text: pairs are by text."""
    first = {" ".join(texts[query].split()): query for query in reversed(queries)}
    kept = set(first.values())
    return [query for query in queries if query in kept]


SITES = {"msrd_movies": movie_site, "cppdocs": documentation_site}
