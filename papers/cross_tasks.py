"""Tasks across languages: retrieval (T4), finding mates (T5), comparable documents (T6), and dimensions (T12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from papers import mates_systems, registry, report
from papers.bilingual import (
    LINK_WORDS,
    MATE_WORDS,
    OTHER_SCRIPTS,
    Bilingual,
    bilingual_study,
    mates_study,
    read_bilingual,
)
from papers.claims import ACROSS_LANGUAGES, CLAIMS
from papers.mates_systems import fitted_once
from papers.measures import (
    BACKWARD,
    BOTH_WAYS,
    COLUMNS,
    FORWARD,
    ONE_DIRECTION,
    RANK_LOSS,
    RECIPROCAL,
    TOP,
    hits,
    links_loss,
    links_measure,
    mates_loss,
    mates_measure,
    one_way_measure,
    valid_measure,
)
from papers.rank_measures import unpaired_test
from papers.registry import Budget, Progress, Section, Table, Task, TaskRequest
from papers.results import Results, orderings, p_value, settings_table
from papers.runner import Measure, run_ranking, sizes, with_budget
from papers.study import Study
from reranker.arrays import Float64


def directions_table(results: Results) -> Table:
    """Return accuracy and MRR of each direction."""
    columns = [measure + way for way in (FORWARD, BACKWARD) for measure in BOTH_WAYS]
    rows = [
        (results.titles[name], *(results.figure(name, column) for column in columns))
        for name in _measured(results, columns[0])
    ]
    note = "Forward: a query's mate among the documents; backward: a document's among the queries."
    return Table("Each direction", ("system", *columns), tuple(rows), results.noted(note))


def accuracy_table(results: Results) -> Table:
    """Return tests of top-1 accuracy for all pairs of systems: the paper's unpaired test, and a paired test by pair."""
    names = _measured(results, TOP)
    couples = list(combinations(names, 2))
    rows = []
    for first, second in couples:
        unpaired = unpaired_test(_hits(results, first), _hits(results, second), len(couples))
        paired = results.paired(first, second, TOP)
        rows.append(
            (
                results.titles[first],
                results.titles[second],
                f"{unpaired.difference:+.4f}",
                p_value(unpaired.p),
                p_value(unpaired.p_corrected),
                p_value(paired.p_t_test),
                p_value(min(1.0, paired.p_t_test * len(couples))),
            )
        )
    columns = ("first", "second", "difference", "unpaired p", "corrected", "paired p", "corrected ")
    note = f"Corrected: times {len(couples)} comparisons (Bonferroni), at most 1. The paper asks for p < .01."
    return Table("Differences of top-1 accuracy", columns, tuple(rows), results.noted(note))


def _measured(results: Results, measure: str) -> list[str]:
    return [name for name in results.systems if results.has(name, measure)]


def _hits(results: Results, name: str) -> Float64:
    return np.concatenate([hits(found) for (_, system), found in results.values.items() if system == name])


RETRIEVAL_BUDGET = Budget(n_dims=100, n_steps=1_500_000, every=150_000, patience=3, rates=(0.1,))
MATES_BUDGET = Budget(n_dims=500, n_steps=600_000, every=50_000, patience=3, n_iterations=60, rates=(0.1, 0.03), grid=3)
RETRIEVAL_REFERENCE, MATES_REFERENCE = "translated-tfidf-ibm", "cl-lsi"
SIZES = (50, 100, 200, 500)
"""Numbers of dimensions of the study by dimensions."""
SMALL_SIZES = (5, 10)
SMALL_MATES = 160
SMALL_STUDY = 800, (1_000, 5_000)
"""Number of words per language, and numbers of tuples."""

PSI_TABLE_6: Mapping[str, Mapping[str, str]] = {
    "translated-tfidf-ibm": {"rank loss": "4.83 %", "AP": ".290", "P@10": ".243"},
    "translated-tfidf-dice": {"rank loss": "4.78 %", "AP": ".319", "P@10": ".259"},
    "word-translated-tfidf-ibm": {"rank loss": "8.27 %", "AP": ".115", "P@10": ".103"},
    "translated-lsi": {"rank loss": "7.54 %", "AP": ".169", "P@10": ".150"},
    "translated-lsi-tfidf": {"rank loss": "3.71 %", "AP": ".300", "P@10": ".253"},
    "cl-lsi": {"rank loss": "9.29 %", "AP": ".190", "P@10": ".161"},
    "cl-lsi-tfidf": {"rank loss": "3.31 %", "AP": ".275", "P@10": ".212"},
    "translated-psi": {"rank loss": "1.72 %", "AP": ".399", "P@10": ".325"},
    "psi-cross": {"rank loss": "0.96 %", "AP": ".438", "P@10": ".351"},
    "psi-cross-tfidf": {"rank loss": "0.75 %", "AP": ".493", "P@10": ".377"},
    "psi-cross-psi": {"rank loss": "0.63 %", "AP": ".524", "P@10": ".386"},
}
S2NET_TABLE_1: Mapping[str, Mapping[str, str]] = {
    "mates-s2net": {TOP: ".7447", RECIPROCAL: ".7973"},
    "mates-opca": {TOP: ".7255", RECIPROCAL: ".7734"},
    "mates-cca": {TOP: ".6894", RECIPROCAL: ".7378"},
    "mates-cplsa": {TOP: ".6329", RECIPROCAL: ".6842"},
    "mates-jplsa": {TOP: ".6079", RECIPROCAL: ".6604"},
    "cl-lsi": {TOP: ".5302", RECIPROCAL: ".6130"},
}
MATE_FINDING: Mapping[str, Mapping[str, str]] = {
    "psi-cross": {"rank loss": "0.53 %"},
    "cl-lsi": {"rank loss": "0.81 %"},
}


def run_retrieval(request: TaskRequest, progress: Progress) -> Section:
    """Return T4: pages of one language as queries for the documents that their mates in the other language link to."""
    corpus = read_bilingual(request.corpus, progress, 2 * SMALL_MATES if request.small else None)
    study = bilingual_study(corpus, request.seed, *(SMALL_STUDY if request.small else (LINK_WORDS,)))
    budget = with_budget(RETRIEVAL_BUDGET, request)
    systems = [fitted_once(system) for system in registry.chosen(request.systems, T4.systems)]
    parts = (systems, links_loss, links_measure, request, budget, progress)
    results = run_ranking("T4", [study], *parts, reference=RETRIEVAL_REFERENCE)
    table = results.table(T4.title, T4.paper, COLUMNS, RETRIEVAL_REFERENCE)
    verdicts = orderings(results, ACROSS_LANGUAGES, "AP", RANK_LOSS)
    sentences = (_said(corpus, study, request), TRANSLATORS, *verdicts)
    return Section("T4", T4.title, sentences, (table, settings_table(results)))


def run_finding(request: TaskRequest, progress: Progress) -> Section:
    """Return T5: the mate of each test page, among the mates of all test pages."""
    sentence, results = _on_mates(T5, request, one_way_measure, progress)
    table = results.table(T5.title, T5.paper, ONE_DIRECTION, MATES_REFERENCE)
    verdicts = orderings(results, CLAIMS["T5"], *ONE_DIRECTION)
    return Section("T5", T5.title, (sentence, *verdicts), (table, settings_table(results)))


def run_comparable(request: TaskRequest, progress: Progress) -> Section:
    """Return T6: finding mates in both directions, with the paper's unpaired test and a paired one."""
    sentence, results = _on_mates(T6, request, mates_measure, progress)
    table = results.table(T6.title, T6.paper, BOTH_WAYS, MATES_REFERENCE)
    tables = (table, directions_table(results), accuracy_table(results), settings_table(results))
    verdicts = orderings(results, CLAIMS["T6"], *BOTH_WAYS)
    return Section("T6", T6.title, (sentence, UNPAIRED, *verdicts), tables)


def run_sizes(request: TaskRequest, progress: Progress) -> Section:
    """Return T6's part of T12: MRR on validation by the number of dimensions."""
    corpus, study = comparable(request, progress)
    budget = with_budget(MATES_BUDGET, request)
    systems = registry.chosen(request.systems, T12_T6.systems)
    dims = {f"{study.name}-N{size}": size for size in sizes(request, SMALL_SIZES, SIZES)}
    studies = (replace(study, name=name, n_dims=size) for name, size in dims.items())
    results = run_ranking("T12-T6", studies, systems, mates_loss, valid_measure, request, budget, progress)
    note = "MRR of the validation pairs, the mean of both directions ± standard error over pairs."
    columns = {name: f"N = {size}" for name, size in dims.items()}
    table = results.by_study(T12_T6.title, RECIPROCAL, columns, note)
    labels = ("dimensions", "MRR on validation")
    picture = report.lines("comparable-by-dimension", T12_T6.title, labels, results, dims, RECIPROCAL)
    return Section("T12-T6", T12_T6.title, (_said(corpus, study, request), AT_MOST), (table,), (picture,))


def comparable(request: TaskRequest, progress: Progress) -> tuple[Bilingual, Study]:
    """Return the corpus and study of T5 and T6, which also serve T10 (words across languages)."""
    corpus = read_bilingual(request.corpus, progress, SMALL_MATES if request.small else None)
    return corpus, mates_study(corpus, request.seed, *(SMALL_STUDY if request.small else (MATE_WORDS,)))


def _on_mates(task: Task, request: TaskRequest, measure: Measure, progress: Progress) -> tuple[str, Results]:
    """Return the description of the study, and the results of the systems of a task on it."""
    corpus, study = comparable(request, progress)
    budget = with_budget(MATES_BUDGET, request)
    systems = registry.chosen(request.systems, task.systems)
    results = run_ranking(
        task.id, [study], systems, mates_loss, measure, request, budget, progress, reference=MATES_REFERENCE
    )
    return _said(corpus, study, request), results


def _said(corpus: Bilingual, study: Study, request: TaskRequest) -> str:
    """Return a description of the data."""
    left, right = corpus.queries.language, corpus.documents.language
    n_mates = len(study.mates[0]) if study.mates else 0
    without = f", without Latin words in the texts of {left!r}" if left in OTHER_SCRIPTS else ""
    small = "Small run: the figures mean nothing. " if request.small else ""
    return (
        f"{small}Queries in {left!r}, documents in {right!r}{without}: {n_mates:,} training pairs, "
        f"{len(study.valid.queries):,} validation queries, {len(study.test.queries):,} test queries, each against "
        f"{len(study.test.pool):,} documents; {len(study.queries.words):,} and {len(study.documents.words):,} words."
    )


TRANSLATORS = (
    "Queries are translated by tables trained on the training mates. IBM model 1 and DICE translate whole texts (each "
    "text becomes the words that explain all of its words together), and also word by word. The paper used commercial "
    "translators; the figures of its second one are shown next to DICE. The mates of test queries were not used for "
    "training."
)
UNPAIRED = (
    "The paper tests accuracies by the unpaired t-test with Bonferroni's correction. The paired test on the same pairs "
    "has more power and is shown as well."
)
AT_MOST = "CL-LSI, OPCA and CCA use N dimensions at most, the best of N, N/2 and N/4 on validation."

T4 = Task(
    id="T4",
    title="Cross-language query retrieval",
    corpora=("cppdocs",),
    run=run_retrieval,
    systems=(
        "translated-tfidf-dice",
        "word-translated-tfidf-ibm",
        "word-translated-tfidf-dice",
        "translated-tfidf-ibm",
        "translated-lsi",
        "translated-lsi-tfidf",
        "cl-lsi",
        "cl-lsi-tfidf",
        "translated-psi",
        "psi-cross",
        "psi-cross-tfidf",
        "psi-cross-psi",
    ),
    paper=PSI_TABLE_6,
    source="Polynomial Semantic Indexing, table 6",
)
T5 = Task(
    id="T5",
    title="Finding the mate",
    corpora=("cppdocs",),
    run=run_finding,
    systems=("cl-lsi", "mates-opca", "mates-cca", "mates-s2net-cl-lsi", "psi-cross", "psi-cross-cl-lsi"),
    paper=MATE_FINDING,
    source="Polynomial Semantic Indexing, section 4.2",
)
T6 = Task(
    id="T6",
    title="Comparable documents, both directions",
    corpora=("cppdocs",),
    run=run_comparable,
    systems=tuple(one.name for one in mates_systems.MATES_SYSTEMS),
    paper=S2NET_TABLE_1,
    source="S2Net, table 1",
)
T12_T6 = Task(
    id="T12-T6",
    title="Comparable documents by dimension",
    corpora=("cppdocs",),
    run=run_sizes,
    systems=("mates-s2net", "mates-opca", "mates-cca", "cl-lsi"),
    source="S2Net, figure 2",
)

TASKS: tuple[Task, ...] = (T4, T5, T6, T12_T6)
