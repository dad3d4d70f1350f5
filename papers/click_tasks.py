"""T8, content matching from clicks at rank 1, and T14, rankers trained on preferences derived from clicks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import scipy.sparse as sp

from papers import registry
from papers.claims import MATCHING
from papers.corpora import (
    SMALL_QUERIES,
    Collection,
    QueryRows,
    folds,
    judged_texts,
    make_collection,
    some_queries,
    titled_texts,
    usable_judgements,
)
from papers.graded_systems import BY_NAME
from papers.graded_tasks import named_systems, small_sentence
from papers.measures import RANK_LOSS, graded_measure, links_loss, links_measure, ranking_loss
from papers.registry import Budget, Progress, Section, Table, Task, TaskRequest
from papers.results import LEVEL, Results, averaged, orderings, p_value, significance_groups
from papers.runner import run_ranking, with_budget
from papers.study import StatedPairs, Study, link_matrix
from reranker.arrays import Int64
from reranker.clicks.importing import open_logs
from reranker.clicks.pairs import PairConfig, sql_text
from reranker.clicks.pairs import impressions as logged
from reranker.clicks.schema import Impression, pyarrow_module
from reranker.clicks.simulator import EMPTY, LogPlan, PositionBased, attraction_of, simulate
from reranker.evaluation import TestTuples
from reranker.formats import RejectLog
from reranker.tables import read_links

RESAMPLES = 1_000
PAGE, ETA, SEARCHES, QUERY_WORDS = 10, 1.0, 10, 30
MAX_QUERIES = 1_000
_QUERY_OF_TOPIC = re.compile(r"(t\d+)q\d+")
Stated = Mapping[tuple[str, str, str], int]
"""Number of lists that state each (query text, better document, worse document)."""


class Agreement(NamedTuple):
    """Agreement of a strategy's pairs with judgments."""

    agree: int
    contradict: int
    tie: int
    unjudged: int
    share: float
    """agree / (agree + contradict); NaN if both are 0."""
    standard_error: float
    """Bootstrap error of ``share`` over sessions."""


@dataclass(frozen=True, eq=False)
class Clicked:
    """A judged collection, and the result lists that were shown for its queries."""

    collection: Collection
    texts: tuple[str, ...]
    """Text of each query, with white space normalised."""
    shown: tuple[Impression, ...]
    simulated: bool
    """Whether clicks are simulated by position-based users; otherwise they are real.

    The users click relevant documents that they examine, and others with probability .1.
    """

    def query_rows(self) -> dict[str, int]:
        """Return the row of each query text; the first if a text occurs in two topics."""
        found: dict[str, int] = {}
        for row, text in enumerate(self.texts):
            found.setdefault(text, row)
        return found

    def column_of(self) -> dict[str, int]:
        """Return the column of each document id."""
        return {document: column for column, document in enumerate(self.collection.document_ids)}

    def links(self, pairs: Iterable[tuple[str, str]]) -> sp.csr_matrix:
        """Return 1 for each pair of a known query text and document, (n_queries, n_documents) float32."""
        row_of, column_of = self.query_rows(), self.column_of()
        known = [(query, document) for query, document in pairs if query in row_of and document in column_of]
        return link_matrix(known, row_of, column_of, len(self.texts))

    def grades(self) -> dict[str, dict[str, float]]:
        """Return query text -> document id -> grade."""
        made, found = self.collection, {}
        for text, row in self.query_rows().items():
            span = slice(made.grades.indptr[row], made.grades.indptr[row + 1])
            columns = made.grades.indices[span].tolist()
            judged = zip(columns, made.grades.data[span].tolist(), strict=True)
            found[text] = {made.document_ids[column]: grade for column, grade in judged}
        return found

    def preferences(self, stated: Stated, rows: Int64) -> StatedPairs:
        """Return the pairs of the queries ``rows`` as row numbers, without pairs of other queries or documents."""
        place = {int(row): number for number, row in enumerate(rows)}
        query_row = {text: place[row] for text, row in self.query_rows().items() if row in place}
        column = self.column_of()
        kept = [
            (query_row[query], column[better], column[worse], times)
            for (query, better, worse), times in sorted(stated.items())
            if query in query_row and better in column and worse in column
        ]
        table = np.array(kept, dtype=np.int64).reshape(-1, 4)
        return StatedPairs(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.float64))


def agreement(
    shown: Sequence[Impression],
    grades: Mapping[str, Mapping[str, float]],
    strategy: str,
    rng: np.random.Generator,
) -> Agreement:
    """Return the agreement of a strategy's pairs with judgments, with a bootstrap error over sessions.

    ``grades`` is query text -> document id -> grade; ``strategy`` is one of `reranker.clicks.pairs.STRATEGIES`.
    """
    counts: dict[str, list[int]] = {}
    for impression, stated in stated_by(shown, strategy):
        judged = grades.get(impression.query, {})
        tally = counts.setdefault(impression.session, [0, 0, 0, 0])
        for better, worse in stated:
            if better not in judged or worse not in judged:
                tally[3] += 1
            else:
                tally[int(np.sign(judged[worse] - judged[better])) + 1] += 1
    table = np.array(list(counts.values())).reshape(-1, 4)
    agree, tie, contradict, unjudged = (int(n) for n in table.sum(axis=0))
    if not agree + contradict:
        return Agreement(agree, contradict, tie, unjudged, float("nan"), float("nan"))
    # The draws are counts per session: equivalent to drawing sessions one by one, without a table of all draws.
    drawn = rng.multinomial(len(table), np.full(len(table), 1 / len(table)), RESAMPLES) @ table
    decided = drawn[:, 0] + drawn[:, 2]
    shares = drawn[decided > 0, 0] / decided[decided > 0]
    return Agreement(agree, contradict, tie, unjudged, agree / (agree + contradict), float(shares.std()))


def stated_pairs(shown: Sequence[Impression], strategy: str) -> Stated:
    """Return the pairs that the lists state, with the number of lists for each."""
    return Counter((one.query, *pair) for one, stated in stated_by(shown, strategy) for pair in stated)


def stated_by(shown: Sequence[Impression], strategy: str) -> list[tuple[Impression, list[tuple[str, str]]]]:
    """Return each list with its (better, worse) documents, by the SQL that the product uses for the strategy."""
    rows = [{"query_id": place, **asdict(one)} for place, listed in enumerate(shown) for one in listed.shown]
    text = sql_text(strategy.replace("-", "_"))
    found: list[tuple[Impression, list[tuple[str, str]]]] = [(one, []) for one in shown]
    with duckdb.connect() as database:
        database.register("clicked_impressions", pyarrow_module().Table.from_pylist(rows))
        for place, better, worse, _ in database.execute(text).fetchall():
            found[place][1].append((better, worse))
    return found


def read_clicked(folder: Path, *, small: bool = False, seed: int = 0) -> Clicked:
    """Return a judged collection with its clicks, or with simulated ones.

    A folder with clicks.jsonl.gz, docs, queries and qrels has real clicks. For a folder with only qrels (judged
    searches), or with links_en.tsv.gz (documentation: the beginning of a page is a query for the pages it links to),
    users are simulated. They see pages of ten in a fixed arbitrary order, and examine rank r with probability 1 / r.

    Parameters
    ----------
    folder : Path
        Or ``ir_datasets:NAME``, for whose judged searches users are simulated.
    seed : int
        Seed of the simulation, and of the sample if there are more than 1,000 queries.
    """
    rng = np.random.default_rng(seed)
    if (folder / "links_en.tsv.gz").is_file():
        return _documentation(folder, small, rng)
    name, documents, queries, judged, _ = judged_texts(folder)
    grades, dropped = usable_judgements(judged, queries, documents)
    has_clicks = (folder / "clicks.jsonl.gz").is_file()
    if not has_clicks:
        grades = some_queries(grades, SMALL_QUERIES if small else MAX_QUERIES, rng)
    topics = {query: _topic_of(query) for query in grades}
    made = make_collection(name, documents, queries, grades, small=small, group_of=topics, dropped=dropped)
    if has_clicks:
        log = open_logs([folder / "clicks.jsonl.gz"], rejects=RejectLog(None))
        return Clicked(made, _texts(made, queries), tuple(logged(log, PairConfig().unprotected())), False)
    pages = {query: rng.permutation(sorted(grades[query])).tolist()[:PAGE] for query in made.query_ids}
    return _simulated(made, queries, pages, grades, rng)


def _topic_of(query: str) -> str:
    """Return ``t11`` for ``t11q2``, the second query of a session's topic; any other id is a topic of its own."""
    found = _QUERY_OF_TOPIC.fullmatch(query)
    return found[1] if found else query


def _documentation(folder: Path, small: bool, rng: np.random.Generator) -> Clicked:
    """Return documentation with simulated users who search for linked pages; half of each result list are others."""
    documents = titled_texts(folder / "docs_en.jsonl.gz", [])
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
    made = make_collection(folder.name, documents, queries, grades, small=small)
    return _simulated(made, queries, pages, grades, rng)


def _texts(made: Collection, queries: Mapping[str, str]) -> tuple[str, ...]:
    """Return the text of each query of a collection, with white space normalised."""
    return tuple(" ".join(queries[query].split()) for query in made.query_ids)


def _simulated(
    made: Collection,
    queries: Mapping[str, str],
    pages: Mapping[str, Sequence[str]],
    grades: Mapping[str, Mapping[str, float]],
    rng: np.random.Generator,
) -> Clicked:
    """Return the clicks of position-based users, on average ten searches per query."""
    documents = sorted({document for page in pages.values() for document in page})
    number = {document: n for n, document in enumerate(documents)}
    lists = np.full((len(pages), PAGE), EMPTY, dtype=np.int64)
    relevant = np.zeros(lists.shape, dtype=bool)
    for row, query in enumerate(made.query_ids):
        page = pages[query]
        lists[row, : len(page)] = [number[document] for document in page]
        relevant[row, : len(page)] = [grades[query].get(document, 0.0) >= 1.0 for document in page]
    plan = LogPlan(SEARCHES * len(pages))
    log = simulate(lists, attraction_of(relevant), PositionBased.power(PAGE, ETA), plan, rng)
    texts = _texts(made, queries)
    return Clicked(made, texts, tuple(log.impressions(texts, documents)), True)


POSITION_ONE = "ssi-position-one"


def preference_studies(data: Clicked, strategy: str, n_folds: int, seed: int) -> Iterator[Study]:
    """Yield one study per fold over topics: pairs from clicks for training, judgments for validation and test."""
    stated = stated_pairs(data.shown, strategy)
    for name, split in folds(data.collection, n_folds, seed):
        study = data.collection.study(f"{strategy}, {name}", seed, split)
        preferences = data.preferences(stated, split.train)
        nothing = sp.csr_matrix(study.relevant.shape, dtype=np.float32)  # type: ignore[arg-type]
        yield replace(study, relevant=nothing, judged=None, preferences=preferences)


def matching_studies(data: Clicked, kind: str, n_folds: int, seed: int) -> Iterator[Study]:
    """Yield one study of T8 per fold over topics.

    ``random``: a document clicked at rank 1 is relevant to its query, and negatives are any others. ``skipped``:
    training and test tuples are the pairs of SSI's rule, which prefer the document at rank 1 to others of its list, or
    others to it.
    """
    stated = stated_pairs(data.shown, POSITION_ONE) if kind == "skipped" else None
    belongs = _clicked_first(data) if stated is None else _stated_better(data, stated)
    clicked = replace(data.collection, grades=belongs, whole=True)
    has = np.flatnonzero(np.diff(belongs.indptr) > 0)
    for name, split in folds(clicked, n_folds, seed):
        parts = QueryRows(*(np.intersect1d(part, has) for part in (split.train, split.valid, split.test)))
        if min(map(len, (parts.train, parts.valid, parts.test))) == 0:
            continue
        study = replace(clicked.study(f"{kind}, {name}", seed, parts), judged=None)
        if stated is not None:
            valid, test = (
                replace(trial, tuples=_tuples(data.preferences(stated, rows)))
                for trial, rows in ((study.valid, parts.valid), (study.test, parts.test))
            )
            study = replace(study, valid=valid, test=test, preferences=data.preferences(stated, parts.train))
        yield study


def _tuples(pairs: StatedPairs) -> TestTuples:
    """Return each pair once, by query."""
    order = np.argsort(pairs.query, kind="stable")
    return TestTuples(pairs.query[order], pairs.better[order], pairs.worse[order])


def _clicked_first(data: Clicked) -> sp.csr_matrix:
    """Return 1 where a document was clicked at rank 1 for a query, (n_queries, n_documents) float32."""
    first = [(shown.query, shown.shown[0]) for shown in data.shown if shown.shown]
    return data.links([(query, top.document) for query, top in first if top.rank == 1 and top.clicked])


def _stated_better(data: Clicked, stated: Stated) -> sp.csr_matrix:
    """Return 1 where a document is preferred to some other document for a query."""
    known = set(data.collection.document_ids)
    return data.links([(query, better) for query, better, worse in stated if worse in known])


BUDGET = Budget(
    n_dims=50, n_steps=200_000, every=20_000, patience=3, n_iterations=30, rates=(0.1, 0.02), n_slots=1_000_000, grid=5
)
N_FOLDS, N_SMALL = 5, 2

STRATEGY_OF = {
    "T14a": "clicked-over-unclicked",
    "T14b": "last-clicked-above-skipped",
    "T14c": "clicked-over-previous",
    "T14d": "clicked-over-next",
    "T14e": "ssi-position-one",
}
"""Click strategies by id: the course's (1) to (4), and SSI's rule."""
RANDOM_SYSTEMS = ("tf-idf", "hash-kernels-3m", "hash-kernels-joint-3m", "utv", "utv-plus-i")
SKIPPED_SYSTEMS = ("graded-tfidf", "graded-diagonal", "graded-hash", "graded-ssi", "graded-ssi-pca")
LEARNERS = ("graded-tfidf", "graded-bm25", "graded-ranking-svm", "graded-diagonal", "graded-ssi", "graded-ssi-pca")
MEASURE = "nDCG@10"


def run_matching(request: TaskRequest, progress: Progress) -> Section:
    """Return T8: documents clicked at rank 1 against random ones, and against those skipped at rank 1 (A16)."""
    data, n_folds, budget = _prepared(request)
    name = data.collection.name
    tables = []
    verdicts: list[str] = []
    settings = (("random", RANDOM_SYSTEMS, "random documents"), ("skipped", SKIPPED_SYSTEMS, "skipped documents"))
    for kind, default, said in settings:
        names = asked(request, kind)
        if request.systems and not names:
            continue
        systems = named_systems(replace(request, systems=names), default)
        studies = matching_studies(data, kind, n_folds, request.seed)
        results = run_ranking(f"T8 {name}", studies, systems, links_loss, links_measure, request, budget, progress)
        per_query = averaged(results)
        tables.append(per_query.table(f"Rank loss against {said}", {}, [RANK_LOSS], systems[0].name))
        verdicts += orderings(per_query, MATCHING, RANK_LOSS)
    sentences = (
        *small_sentence(request),
        _about(data, n_folds),
        "Positives are documents clicked at rank 1; lists without a click are dropped. Skipped documents are those at "
        "rank 1 if a lower one was clicked, or those below a clicked first one. Test queries were not used for "
        "training.",
        *verdicts,
    )
    return Section("T8", "Content matching from clicks", sentences, tuple(tables))


def asked(request: TaskRequest, kind: str) -> tuple[str, ...]:
    """Return the requested systems that fit a setting: those trained on links, or (graded) on preferences."""
    names = registry.systems() if registry.ALL in request.systems else request.systems
    return tuple(one for one in names if (one in BY_NAME) == (kind == "skipped"))


def run_strategies(request: TaskRequest, progress: Progress, *, task: str = "T14") -> Section:
    """Return T14: the pairs of each strategy, their agreement with judgments, and rankers trained on them."""
    data, n_folds, budget = _prepared(request)
    name = data.collection.name
    chosen = [STRATEGY_OF[task]] if task in STRATEGY_OF else list(STRATEGY_OF.values())
    systems = named_systems(request, LEARNERS)
    reference = systems[0].name
    grades = data.grades()
    learned: dict[str, Results] = {}
    agreed: dict[str, Agreement] = {}
    for strategy in chosen:
        agreed[strategy] = agreement(data.shown, grades, strategy, np.random.default_rng(request.seed))
        studies = preference_studies(data, strategy, n_folds, request.seed)
        results = run_ranking(f"T14 {name}", studies, systems, ranking_loss, graded_measure, request, budget, progress)
        learned[strategy] = averaged(results)
    sentences = (
        *small_sentence(request),
        _about(data, n_folds),
        "Rankers are trained on the pairs of the training topics and measured on the judgments of the other topics; "
        "each query ranks its judged documents. Settings are chosen on judged queries of a quarter of the training "
        "topics, the same for all strategies. Standard errors are over topics.",
        *_strategy_sentences(learned, reference),
    )
    tables = (_agreement_table(data, agreed), _learned_table(learned, reference))
    return Section(task, "Preferences from clicks", sentences, tables)


def _prepared(request: TaskRequest) -> tuple[Clicked, int, Budget]:
    data = read_clicked(Path(request.corpus), small=request.small, seed=request.seed)
    return data, N_SMALL if request.small else N_FOLDS, with_budget(BUDGET, request)


def _about(data: Clicked, n_folds: int) -> str:
    made = data.collection
    clicks = sum(len(one.clicked) for one in data.shown)
    return (
        f"{made.name}: {len(data.shown):,} shown lists with {clicks:,} clicks of "
        f"{'simulated readers' if data.simulated else 'people'}, {len(made.query_ids):,} judged queries of "
        f"{len(set(made.group_of().tolist())):,} topics, {len(made.document_ids):,} documents; {n_folds} folds over "
        f"topics."
    )


def _agreement_table(data: Clicked, agreed: dict[str, Agreement]) -> Table:
    """Return the number of pairs of each strategy, and their agreement with judgments."""
    rows = []
    for strategy, one in agreed.items():
        share = "" if np.isnan(one.share) else f"{one.share:.3f} ± {one.standard_error:.3f}"
        n_pairs = len(stated_pairs(data.shown, strategy))
        counts = (n_pairs, one.agree, one.contradict, one.tie, one.unjudged)
        rows.append((strategy, STRATEGIES_SOURCE[strategy], *(f"{count:,}" for count in counts), share))
    columns = ("strategy", "id", "distinct pairs", "agree", "contradict", "tie", "not judged", "share that agrees")
    note = "Share: agree / (agree + contradict), pairs counted in every list; ± is the bootstrap error over sessions."
    return Table("Pairs and judges", columns, tuple(rows), note)


def _learned_table(learned: dict[str, Results], reference: str) -> Table:
    """Return the quality of each ranker trained on each strategy's pairs."""
    first = next(iter(learned.values()))
    names = [name for name in first.systems if name != reference]
    columns = ["strategy", first.titles[reference]]
    for name in names:
        columns += [first.titles[name], "p"]
    rows = []
    for strategy, results in learned.items():
        cells = [strategy, results.figure(reference, MEASURE)]
        for name in names:
            if results.has(name, MEASURE):
                p = results.paired(name, reference, MEASURE).p_t_test
                cells += [results.figure(name, MEASURE), p_value(p)]
            else:
                cells += [results.failure(name), ""]
        rows.append(tuple(cells))
    note = f"{MEASURE}, mean ± standard error over topics; p of the paired t-test against {first.titles[reference]}."
    return Table("What is learned from the pairs", tuple(columns), tuple(rows), note)


def _strategy_sentences(learned: dict[str, Results], reference: str) -> Iterator[str]:
    """Yield sentences on the rankers trained on clicks that differ from the reference."""
    for strategy, results in learned.items():
        groups = significance_groups(results, reference, MEASURE)
        parts = [f"{kind}: {', '.join(groups[kind])}" for kind in ("above", "below") if groups[kind]]
        found = "; ".join(parts) or "no ranker differs significantly"
        yield f"{strategy}, against {results.titles[reference]} at p < {LEVEL}: {found}."


STRATEGIES_SOURCE = {strategy: task for task, strategy in STRATEGY_OF.items()}
_CORPORA = ("trec_session_2013", "msrd_movies", "cppdocs")


def _strategy_task(task: str, strategies: Sequence[str]) -> Task:
    title = f"Preferences from clicks: {', '.join(strategies)}"
    return Task(task, title, _CORPORA, partial(run_strategies, task=task), LEARNERS, {}, "COURSE, clicks; SSI")


TASKS: tuple[Task, ...] = (
    Task(
        "T8",
        "Content matching from clicks",
        _CORPORA,
        run_matching,
        (*RANDOM_SYSTEMS, *SKIPPED_SYSTEMS),
        {},
        "SSI, section on content matching; its figures are lost",
    ),
    *(_strategy_task(task, [strategy]) for task, strategy in STRATEGY_OF.items()),
    _strategy_task("T14", list(STRATEGY_OF.values())),
)
