"""T8, content matching from clicks at rank 1; T14, what click strategies state and what is learned from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from papers import registry
from papers.averaging import averaged
from papers.click_logs import Agreement, Clicked, agreement, read_clicked, stated_pairs
from papers.click_studies import matching_studies, preference_studies, topics_of
from papers.graded_systems import BY_NAME
from papers.graded_tasks import named_systems, small_sentence
from papers.grades import graded_measure, ranking_loss
from papers.links import RANK_LOSS, links_loss, links_measure
from papers.results import Results
from papers.runner import run_ranking, with_budget
from papers.study import Study
from papers.system import Budget, Progress
from papers.tables import figure, p_value
from papers.task import Request, Section, Table, Task

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
"""Click strategies by their ids: the course's (1) to (4), and SSI's rule."""
RANDOM_SYSTEMS = ("tf-idf", "hash-kernels-3m", "hash-kernels-joint-3m", "utv", "utv-plus-i")
SKIPPED_SYSTEMS = ("graded-tfidf", "graded-diagonal", "graded-hash", "graded-ssi", "graded-ssi-pca")
LEARNERS = ("graded-tfidf", "graded-bm25", "graded-ranking-svm", "graded-diagonal", "graded-ssi", "graded-ssi-pca")
MEASURE = "nDCG@10"


def run_matching(request: Request, progress: Progress) -> Section:
    """Return T8: documents clicked at rank 1 against random ones, and against those skipped at rank 1 (A16)."""
    data, n_folds, budget = _prepared(request)
    name = data.collection.name
    groups: dict[str, tuple[str, ...]] = {}
    tables = []
    settings = (("random", RANDOM_SYSTEMS, "random documents"), ("skipped", SKIPPED_SYSTEMS, "documents passed over"))
    for kind, default, said in settings:
        names = asked(request, kind)
        if request.systems and not names:
            continue
        systems = named_systems(replace(request, systems=names), default)
        studies = _noted(matching_studies(data, kind, n_folds, request.seed), data, groups)
        results = run_ranking(f"T8 {name}", studies, systems, links_loss, links_measure, request, budget, progress)
        per_group = averaged(results, groups)
        tables.append(per_group.table(f"Rank loss against {said}", {}, [RANK_LOSS], systems[0].name))
    sentences = (
        *small_sentence(request),
        _about(data, n_folds),
        "Positives are documents clicked at rank 1; lists without a click are dropped. Passed over: documents at rank "
        "1 while a lower one was clicked, or those under a clicked first one. No query of the test was trained on.",
    )
    return Section("T8", "Content matching from clicks", sentences, tuple(tables))


def asked(request: Request, kind: str) -> tuple[str, ...]:
    """Return the systems asked for that learn as a setting has it: from links, or (graded ones) from preferences."""
    names = registry.systems() if registry.ALL in request.systems else request.systems
    return tuple(one for one in names if (one in BY_NAME) == (kind == "skipped"))


def run_strategies(request: Request, progress: Progress, *, task: str = "T14") -> Section:
    """Return T14: pairs of each strategy, their agreement with judges, and rankers learned from them."""
    data, n_folds, budget = _prepared(request)
    name = data.collection.name
    chosen = [STRATEGY_OF[task]] if task in STRATEGY_OF else list(STRATEGY_OF.values())
    systems = named_systems(request, LEARNERS)
    reference = systems[0].name
    grades = data.grades()
    learned: dict[str, Results] = {}
    agreed: dict[str, Agreement] = {}
    for strategy in chosen:
        groups: dict[str, tuple[str, ...]] = {}
        agreed[strategy] = agreement(data.shown, grades, strategy, np.random.default_rng(request.seed))
        studies = _noted(preference_studies(data, strategy, n_folds, request.seed), data, groups)
        results = run_ranking(f"T14 {name}", studies, systems, ranking_loss, graded_measure, request, budget, progress)
        learned[strategy] = averaged(results, groups)
    sentences = (
        *small_sentence(request),
        _about(data, n_folds),
        "Rankers are learned from the pairs of the training topics and measured on the other topics' judgements, each "
        "query ranking what was judged for it; settings are chosen on judged queries of a quarter of the training "
        "topics, the same for all strategies. Standard errors are over topics.",
        *_strategy_sentences(learned, reference),
    )
    tables = (_agreement_table(data, agreed), _learned_table(learned, reference))
    return Section(task, "Preferences from clicks", sentences, tables)


def _prepared(request: Request) -> tuple[Clicked, int, Budget]:
    data = read_clicked(Path(request.corpus), small=request.small, seed=request.seed)
    return data, N_SMALL if request.small else N_FOLDS, with_budget(BUDGET, request)


def _noted(studies: Iterator[Study], data: Clicked, groups: dict[str, tuple[str, ...]]) -> Iterator[Study]:
    """Yield the studies, noting the topics of their test queries."""
    topic_of = topics_of(data)
    for study in studies:
        groups[study.name] = tuple(topic_of[query] for query in study.test.task.query_ids)
        yield study


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
    """Return how many pairs each strategy states, and what the judges say of them."""
    rows = []
    for strategy, one in agreed.items():
        share = "" if np.isnan(one.share) else f"{one.share:.3f} ± {one.standard_error:.3f}"
        n_pairs = len(stated_pairs(data.shown, strategy))
        counts = (n_pairs, one.agree, one.contradict, one.tie, one.unjudged)
        rows.append((strategy, STRATEGIES_SOURCE[strategy], *(f"{count:,}" for count in counts), share))
    columns = ("strategy", "id", "distinct pairs", "agree", "contradict", "tie", "not judged", "share that agrees")
    note = "Share: agree / (agree + contradict), pairs counted in every list; ± is the error of drawing sessions anew."
    return Table("Pairs and judges", columns, tuple(rows), note)


def _learned_table(learned: dict[str, Results], reference: str) -> Table:
    """Return the quality of each ranker learned from each strategy's pairs."""
    first = next(iter(learned.values()))
    names = [name for name in first.systems if name != reference]
    columns = ["strategy", first.titles[reference]]
    for name in names:
        columns += [first.titles[name], "p"]
    rows = []
    for strategy, results in learned.items():
        cells = [
            strategy,
            figure(MEASURE, results.mean(reference, MEASURE), results.standard_error(reference, MEASURE)),
        ]
        for name in names:
            if results.has(name, MEASURE):
                mean, error = results.mean(name, MEASURE), results.standard_error(name, MEASURE)
                cells += [figure(MEASURE, mean, error), p_value(results.paired(name, reference, MEASURE).p_t_test)]
            else:
                cells += [results.failure(name), ""]
        rows.append(tuple(cells))
    note = f"{MEASURE}, mean ± standard error over topics; p of the paired t-test against {first.titles[reference]}."
    return Table("What is learned from the pairs", tuple(columns), tuple(rows), note)


def _strategy_sentences(learned: dict[str, Results], reference: str, level: float = 0.01) -> Iterator[str]:
    """Yield which rankers learned from clicks differ from the reference."""
    for strategy, results in learned.items():
        said: dict[str, list[str]] = {"above": [], "below": []}
        for name in results.systems:
            if name != reference and results.has(name, MEASURE):
                test = results.paired(name, reference, MEASURE)
                if test.p_t_test < level:
                    said["above" if test.difference > 0 else "below"].append(results.titles[name])
        parts = [f"{kind}: {', '.join(titles)}" for kind, titles in said.items() if titles]
        found = "; ".join(parts) or "no ranker is told apart"
        yield f"{strategy}, against {results.titles[reference]} at p < {level}: {found}."


STRATEGIES_SOURCE = {strategy: task for task, strategy in STRATEGY_OF.items()}
_CORPORA = ("trec_session_2013", "msrd_movies", "cppdocs")


def _strategy_task(task: str, strategies: Sequence[str]) -> Task:
    title = f"Preferences from clicks: {', '.join(strategies)}"
    return Task(task, title, _CORPORA, partial(run_strategies, task=task), LEARNERS, {}, "COURSE, clicks; SSI")


TASKS: tuple[Task, ...] = (
    Task("T8", "Content matching from clicks", _CORPORA, run_matching, (*RANDOM_SYSTEMS, *SKIPPED_SYSTEMS), {},
         "SSI, section on content matching; its figures are lost"),
    *(_strategy_task(task, [strategy]) for task, strategy in STRATEGY_OF.items()),
    _strategy_task("T14", list(STRATEGY_OF.values())),
)  # fmt: skip
