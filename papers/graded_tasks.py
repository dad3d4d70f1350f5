"""T7 and all rankers on judged corpora: repeated splits or cross-validation over queries; NDCG, DCG and AUC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from papers import registry, report
from papers.claims import ADS_ORDER
from papers.corpora import Collection, folds, read_collection, repeated_splits, studies_of
from papers.graded_systems import BY_NAME
from papers.measures import AUC, DCG, PAIR_GRADE, PAIR_SCORE, TAU, filter_loss, graded_measure, ranking_loss
from papers.rank_measures import N_SUBSETS, Roc, auc_paired_test, roc_curve
from papers.registry import Budget, Loss, Progress, Section, System, Table, Task, TaskRequest
from papers.results import LEVEL, Results, averaged, orderings, p_value, significance_groups, spread_over_studies
from papers.runner import run_ranking, sizes, with_budget
from papers.study import Study
from reranker.evaluation import PairedTest

QUERY_WORDS = (
    "S2Net reads a query as a pseudo-document of search results in all systems; here only the row with "
    "“pseudo-document queries” does so, and the others read the query's own words."
)
DIMENSIONS = (100, 300, 500, 750, 1_000)
REFERENCE = "graded-tfidf"

PAPER_T7 = {
    "graded-s2net": ("0.892", "0.855", "0.883", "0.901"),
    "graded-tfidf": ("0.861", "0.825", "0.854", "0.876"),
    "graded-hdlr": ("0.855", "0.826", "0.856", "0.877"),
    "graded-cplsa": ("0.853", "0.845", "0.872", "0.890"),
    "graded-pca": ("0.848", "0.815", "0.847", "0.870"),
    "graded-opca": ("0.844", "0.817", "0.850", "0.872"),
    "graded-jplsa": ("0.840", "0.838", "0.864", "0.883"),
    "graded-cca": ("0.836", "0.820", "0.852", "0.874"),
    "graded-plsa": ("0.835", "0.831", "0.860", "0.879"),
}
"""S2Net, Table 2: AUC, NDCG@1, 3 and 5, with 1,000 dimensions (spec 5.9)."""
PAPER_T12 = {
    "AUC": ("0.855", "0.879", "0.880", "0.888", "0.892"),
    "nDCG@1": ("0.843", "0.852", "0.856", "0.860", "0.855"),
    "nDCG@3": ("0.871", "0.879", "0.881", "0.884", "0.883"),
    "nDCG@5": ("0.890", "0.897", "0.899", "0.902", "0.901"),
}
"""S2Net, Table 3: the same measures of S2Net at `DIMENSIONS` (spec 5.10)."""
PAPER = {
    name: dict(zip(("AUC", "nDCG@1", "nDCG@3", "nDCG@5"), figures, strict=True)) for name, figures in PAPER_T7.items()
}


def dcg_table(per_query: Results, reference: str) -> Table:
    """Return paired t-tests of the DCG@5 of each query, against the reference and against S2Net."""
    against = [name for name in dict.fromkeys((reference, "graded-s2net")) if per_query.has(name, DCG)]
    columns = ["system", DCG]
    for name in against:
        columns += [f"minus {per_query.titles[name]}", "p"]
    rows = []
    for system in per_query.systems:
        if per_query.has(system, DCG):
            cells = [per_query.title(system), f"{per_query.mean(system, DCG):.3f}"]
            for name in against:
                test = per_query.paired(system, name, DCG)
                same = system == name
                cells += (
                    ["", ""]
                    if same
                    else [f"{test.difference:+.3f} ± {test.standard_error:.3f}", p_value(test.p_t_test)]
                )
            rows.append(tuple(cells))
    note = (
        f"Paired t-tests over queries of DCG@5, level {LEVEL}. S2Net compares DCG per query in the same way, on one "
        f"split; here a query that several splits test on has the mean of its values."
    )
    return Table("DCG@5 of each query, paired", tuple(columns), tuple(rows), per_query.noted(note))


def order_sentences(per_query: Results, reference: str) -> Iterator[str]:
    """Yield sentences on which systems differ from the reference in nDCG@10, at `LEVEL`."""
    for kind, titles in significance_groups(per_query, reference, "nDCG@10").items():
        if titles:
            yield (
                f"nDCG@10 {kind} {per_query.titles[reference]} (p {'≥' if 'not' in kind else '<'} {LEVEL}, paired "
                f"t-test over queries): {', '.join(titles)}."
            )


def auc_table(results: Results, seed: int) -> Table:
    """Return AUC over splits, and paired t-tests against the reference over disjoint subsets."""
    reference = REFERENCE if REFERENCE in results.systems else results.systems[0]
    rows = []
    for name in results.systems:
        values = results.pooled(name, AUC)
        if not len(values):
            reason = results.failure(name) or "all judged pairs are relevant, or none is"
            rows.append((f"{results.titles[name]} ({reason})", "", "", "", "", ""))
            continue
        error = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        tests = [] if name == reference else _subset_tests(results, name, reference, seed)
        above = sum(test.difference > 0 and test.p_t_test < LEVEL for test in tests)
        below = sum(test.difference < 0 and test.p_t_test < LEVEL for test in tests)
        mean = f"{np.mean([test.difference for test in tests]):+.3f}" if tests else ""
        verdict = f"{above} above, {below} below, of {len(tests)}" if tests else ""
        rows.append(
            (
                results.title(name),
                f"{values.mean():.3f}",
                f"{error:.3f}",
                mean,
                verdict,
                PAPER.get(name, {}).get(AUC, ""),
            )
        )
    title = results.titles[reference]
    columns = ("system", AUC, "deviation over splits", f"minus {title}", f"splits with p < {LEVEL}", "AUC, paper")
    note = (
        f"p is of the paired t-test over {N_SUBSETS} disjoint random subsets of a split's test pairs. S2Net tests in "
        f"this way on one split; these splits overlap, so their tests are not independent. {QUERY_WORDS} The paper's "
        f"figures are on other data."
    )
    return Table("AUC of all test pairs pooled", columns, tuple(rows), results.noted(note))


def _subset_tests(results: Results, name: str, reference: str, seed: int) -> list[PairedTest]:
    """Return the tests on the splits where both systems have values, and with two relevant pairs and two others."""
    tests = []
    for number, study in enumerate(results.studies):
        one, other = (results.values.get((study, system), {}) for system in (name, reference))
        if PAIR_SCORE in one and PAIR_SCORE in other:
            positive = one[PAIR_GRADE] >= 1.0
            if min(positive.sum(), (~positive).sum()) < 2:
                continue
            rng = np.random.default_rng([seed, number])
            tests.append(auc_paired_test(one[PAIR_SCORE], other[PAIR_SCORE], positive, rng=rng))
    return tests


def auc_sentences(results: Results) -> Iterator[str]:
    """Yield a sentence on the best system and the spread of its values."""
    means = {name: results.mean(name, AUC) for name in results.systems if results.has(name, AUC)}
    if means:
        best = max(means, key=lambda name: means[name])
        yield f"The greatest mean AUC is {results.titles[best]}'s, {means[best]:.3f}; its spread is over splits."


def rocs(results: Results) -> dict[str, Roc]:
    """Return the ROC curves of the paper's systems on the first split."""
    rocs = {}
    for name in ("graded-s2net", "graded-tfidf", "graded-bm25", "graded-pca", "graded-cplsa", "graded-combination"):
        found = results.values.get((results.studies[0], name), {}) if results.studies else {}
        if PAIR_SCORE in found:
            rocs[results.titles[name]] = roc_curve(found[PAIR_SCORE], found[PAIR_GRADE] >= 1.0)
    return rocs


def dimension_table(measure: str, results: Results, dims: Mapping[str, int]) -> Table:
    """Return one measure by dimensions (study -> N), one row per system, and the paper's row for S2Net."""
    note = "The paper's figures are on other data: a reference, not something to reach."
    columns = {name: str(n) for name, n in dims.items()}
    table = results.by_study(f"{measure} by dimensions", measure, columns, note, errors=False)
    by_size = dict(zip(DIMENSIONS, PAPER_T12[measure], strict=True))
    return replace(table, rows=(*table.rows, ("S2Net, paper", *(by_size.get(n, "") for n in dims.values()))))


BUDGET = Budget(
    n_dims=100, n_steps=200_000, every=20_000, patience=3, n_iterations=30, rates=(0.1, 0.02), n_slots=1_000_000
)
N_SPLITS, N_FOLDS, N_SMALL = 10, 5, 2
MAX_QUERIES = 1_000
"""Largest number of queries used of a corpus."""
SMALL_DIMENSIONS = (4, 8)
SMALL = "Small mode: few queries, texts and steps. The figures mean nothing; they show that everything works."

AD_LABELS = {3.0: 2.0, 2.0: 1.0, 1.0: 1.0, 0.0: 0.0}
"""Grades of esci_sample's exact, substitute, complement and irrelevant.

S2Net's labels are others: same, subset, superset and disjoint. The assignment is ours, the gains are those of A25.
"""
LABELS = {"esci_sample": AD_LABELS}

T7_SYSTEMS = (
    *PAPER_T7,
    "graded-bm25",
    "graded-likelihood",
    "graded-expansion",
    "graded-lsi",
    "graded-lsi-tfidf",
    "graded-diagonal",
    "graded-ssi",
    "graded-ssi-pca",
    "graded-s2net-squared",
    "graded-s2net-pull",
    "graded-s2net-random",
    "graded-s2net-tfidf",
    "graded-s2net-pseudo",
    "graded-pointwise-svm",
    "graded-ranking-svm",
    "graded-rsvm-ir",
    "graded-listnet",
    "graded-combination",
)
JUDGED_SYSTEMS = ("graded-tfidf", *(name for name in T7_SYSTEMS if name not in ("graded-tfidf", "graded-s2net-pseudo")))
DIMENSION_SYSTEMS = ("graded-s2net", "graded-pca", "graded-opca", "graded-cca")


def _studies(collection: Collection, request: TaskRequest) -> Iterator[Study]:
    """Yield the studies of a collection: folds if every query ranks the whole collection, otherwise repeated splits."""
    cut, n = (folds, N_FOLDS) if collection.whole else (repeated_splits, N_SPLITS)
    return studies_of(collection, cut(collection, N_SMALL if request.small else n, request.seed), request.seed)


def _split_sentence(made: Collection, n_studies: int) -> str:
    """Return a sentence on the data and how it was split."""
    how = (
        f"cross-validated over queries in {n_studies} folds, each query ranking all documents"
        if made.whole
        else f"{n_studies} random splits of 60 to 40 by query, each query ranking what was judged for it"
    )
    return (
        f"{made.name}: {len(made.query_ids):,} queries with a relevant document, {made.grades.nnz:,} judgements, "
        f"{len(made.document_ids):,} documents over {len(made.documents.words):,} words; {how}. A quarter of the "
        f"training queries is for tuning."
    )


def named_systems(request: TaskRequest, default: Sequence[str]) -> list[System]:
    """Return the systems that were asked for, or the task's own; systems of graded judgments take precedence.

    ``all`` stands for every system of graded judgments.

    Raises
    ------
    ConfigError
        For an unknown name.
    """
    names = dict.fromkeys(BY_NAME if registry.ALL in request.systems else request.systems or default)
    return [BY_NAME[name] if name in BY_NAME else registry.system(name) for name in names]


def small_sentence(request: TaskRequest) -> tuple[str, ...]:
    """Return the warning for small runs."""
    return (SMALL,) if request.small else ()


def run_filter(request: TaskRequest, progress: Progress) -> Section:
    """Return T7a: which (query, ad) pairs to accept; ROC and AUC of all test pairs pooled."""
    collection = _read(request, ads=True)
    results = _run("T7a", collection, request, T7_SYSTEMS, filter_loss, progress)
    tables = (auc_table(results, request.seed),)
    curves = rocs(results)
    title = "ROC of the test pairs of the first split, pooled over queries"
    pictures = (report.roc("T7a-roc", title, curves),) if curves else ()
    split = _split_sentence(collection, len(results.studies))
    sentences = (*small_sentence(request), split, *auc_sentences(results))
    return Section("T7a", "Filtering of query and ad pairs", sentences, tables, pictures)


def run_order(request: TaskRequest, progress: Progress, *, ads: bool) -> Section:
    """Return T7b, the ranking of a query's ads, or all rankers on a judged corpus with its own grades.

    NDCG has one value per query, averaged over the splits that tested on the query; DCG has paired tests over queries.
    """
    made = _read(request, ads=ads)
    task, systems, paper = ("T7b", T7_SYSTEMS, PAPER) if ads else ("T7b-judged", JUDGED_SYSTEMS, {})
    title = "Ranking of a query's ads" if ads else f"Rankers on {made.name}"
    results = _run(task, made, request, systems, ranking_loss, progress)
    per_query = averaged(results)
    reference = REFERENCE if REFERENCE in results.systems else results.systems[0]
    measures = ["nDCG@1", "nDCG@3", "nDCG@5", "nDCG@10", "WTA", "AP", TAU]
    names = "folds" if made.whole else "splits"
    tables = (
        per_query.table(f"{title}: mean over queries", paper, measures, reference),
        spread_over_studies(results, "nDCG@10", f"{title}: nDCG@10 over {names}"),
        dcg_table(per_query, reference),
    )
    split = _split_sentence(made, len(results.studies))
    of_paper = (QUERY_WORDS, *orderings(per_query, ADS_ORDER, DCG)) if ads else ()
    sentences = (*small_sentence(request), split, *of_paper, *order_sentences(per_query, reference))
    return Section(task, title, sentences, tables)


def run_dimensions(request: TaskRequest, progress: Progress) -> Section:
    """Return T7's part of T12: the measures by the number of dimensions, on the first split."""
    collection = _read(request, ads=True)
    budget = with_budget(BUDGET, request)
    systems = named_systems(request, DIMENSION_SYSTEMS)
    study = next(_studies(collection, request))
    most = min(len(study.documents.words), len(study.documents) + len(study.queries)) - 1
    wanted = sizes(request, SMALL_DIMENSIONS, DIMENSIONS)
    dims = {f"N{n}": n for n in (min(n, most) for n in wanted)}
    studies = (replace(study, name=name, n_dims=n) for name, n in dims.items())
    parts = (systems, ranking_loss, graded_measure, request, budget, progress)
    results = run_ranking(f"T12-T7 {collection.name}", studies, *parts)
    tables = tuple(dimension_table(measure, results, dims) for measure in PAPER_T12)
    sentences = (
        *small_sentence(request),
        _split_sentence(collection, 1),
        f"Texts and words carry at most {most:,} dimensions. One split: no intervals.",
        "PCA, OPCA and CCA use N dimensions at most, the best of N, N/2 and N/4 on validation.",
    )
    return Section("T12-T7", "Dimensions of spaces for ads", sentences, tables)


def _read(request: TaskRequest, *, ads: bool) -> Collection:
    """Return the collection of a request; for an ad task, the labels of a known corpus are mapped to grades."""
    collection = read_collection(
        Path(request.corpus), small=request.small, max_queries=MAX_QUERIES, seed=request.seed, pseudo_documents=ads
    )
    return collection.regraded(LABELS[collection.name]) if ads and collection.name in LABELS else collection


def _run(
    task: str, made: Collection, request: TaskRequest, default: Sequence[str], loss: Loss, progress: Progress
) -> Results:
    """Return the results of the systems on the studies of a collection."""
    parts = (named_systems(request, default), loss, graded_measure, request, with_budget(BUDGET, request), progress)
    return run_ranking(f"{task} {made.name}", _studies(made, request), *parts, reference=REFERENCE)


SOURCE = "S2Net, advertisements, Tables 2 and 3"
TASKS: tuple[Task, ...] = (
    Task(
        "T7a",
        "Filtering of query and ad pairs",
        ("esci_sample", "wikimedia_discernatron", "msrd_movies"),
        run_filter,
        T7_SYSTEMS,
        PAPER,
        SOURCE,
    ),
    Task(
        "T7b",
        "Ranking of a query's ads",
        ("esci_sample", "wikimedia_discernatron", "msrd_movies"),
        partial(run_order, ads=True),
        T7_SYSTEMS,
        PAPER,
        SOURCE,
    ),
    Task("T12-T7", "Dimensions of spaces for ads", ("esci_sample",), run_dimensions, DIMENSION_SYSTEMS, {}, SOURCE),
    Task(
        "T7b-judged",
        "Rankers on a judged corpus",
        ("cranfield", "cisi", "esci_sample", "msrd_movies", "wikimedia_discernatron"),
        partial(run_order, ads=False),
        JUDGED_SYSTEMS,
        {},
        "ours: all rankers in one comparison",
    ),
)
