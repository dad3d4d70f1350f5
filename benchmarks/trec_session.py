"""Real clicks: pairs of every strategy beside the judges, and models learned from them beside BM25 and TF-IDF.

    python benchmarks/trec_session.py DATA/trec_session_2013 [--repeats 5] [--strategies NAME ...] [--json FILE]

The folder holds clicks.jsonl.gz (sessions of real people), docs.jsonl.gz (title and snippet), queries.tsv.gz and
qrels.tsv.gz (a topic's grades, copied to its queries). Two tables:

1. Pairs a strategy, without and with its caps, and of those where the judges gave two different grades the share that
   agrees with them; the error is that of resampling sessions.
2. Models learned from the pairs of a part of the people and measured on the others': five folds over sessions (another
   session of the same topic may have been trained on) and over topics (none was). Every query ranks all documents
   (MAP, nDCG@10), and orders anew the list that was shown (nDCG@10). Baselines have their defaults. Values are averaged
   over repeats first; errors and p are over sessions or topics, not over queries, which are not independent.

Documents are the longest snippet shown, and snippets are chosen for a query's words: exact matching is flattered.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

from papers.click_tasks import agreement, stated_pairs
from reranker.baselines.comparison import MODEL, compare_systems, experiment_of, read_corpus
from reranker.baselines.fitted import fit_baselines
from reranker.clicks.importing import open_logs
from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import DEFAULT_STRATEGY, STRATEGIES, PairConfig, impressions, make_pairs
from reranker.clicks.schema import Impression
from reranker.errors import TrainingError
from reranker.evaluation import evaluate_run, paired_test, qrels_task, standard_error
from reranker.formats import RejectLog
from reranker.records import Pair
from reranker.tables import read_judgements, read_queries
from reranker.training import DocumentSource, TrainConfig, from_pairs, train_model

FOLDS = 5
MEASURES = ("AP", "nDCG@10")
LISTS = "nDCG@10 of lists"
SYSTEMS = (MODEL, "bm25", "tfidf")
SHOWN = "as shown"
Values = dict[str, dict[str, dict[str, list[float]]]]
"""System -> measure -> query -> values, one a repeat."""


@dataclass(frozen=True)
class Study:
    """The collection: log, judgements, texts, and who asked what."""

    folder: Path
    log: ClickLog
    shown: Sequence[Impression]
    texts: Mapping[str, str]
    grades: Mapping[str, Mapping[str, float]]

    @property
    def query_of(self) -> dict[str, str]:
        """Text -> query id; of a text asked in two topics, the first id."""
        found: dict[str, str] = {}
        for query, text in sorted(self.texts.items()):
            found.setdefault(" ".join(text.split()), query)
        return found


def read_study(folder: Path) -> Study:
    """Return the collection of a folder."""
    rejects = RejectLog(None)
    log = open_logs([folder / "clicks.jsonl.gz"], rejects=rejects)
    texts = {query.id: query.text for query in read_queries(folder / "queries.tsv.gz", rejects=rejects)}
    shown = list(impressions(log, PairConfig().unprotected()))
    return Study(folder, log, shown, texts, read_judgements(folder / "qrels.tsv.gz", rejects))


def pairs_table(study: Study, seed: int) -> dict[str, Any]:
    """Return pairs and agreement of every strategy."""
    found = {}
    by_text = {text: study.grades.get(query, {}) for text, query in study.query_of.items()}
    for name in STRATEGIES:
        config = PairConfig(strategy=name)
        agreed = agreement(study.shown, by_text, name, np.random.default_rng(seed))
        found[name] = {
            "pairs_uncapped": len(list(make_pairs(study.log, config.unprotected()).pairs())),
            "pairs": len(list(make_pairs(study.log, config).pairs())),
            **{key: None if np.isnan(value) else value for key, value in agreed._asdict().items()},
        }
        row = found[name]
        share = "-" if row["share"] is None else f"{row['share']:.3f} ± {row['standard_error']:.3f}"
        print(
            f"| {name} | {row['pairs_uncapped']:,} | {row['pairs']:,} | {row['agree']} | {row['contradict']} | "
            f"{row['tie']} | {share} |",
            flush=True,
        )
    return found


def folds_of(groups: Sequence[str], rng: np.random.Generator) -> dict[str, int]:
    """Return the fold of each group."""
    names = sorted(set(groups))
    places = rng.permutation(len(names))
    return {name: int(place) % FOLDS for name, place in zip(names, places, strict=True)}


def pairs_of(study: Study, strategy: str, sessions: set[str]) -> list[Pair]:
    """Return the pairs that these sessions say, each once a list."""
    stated = stated_pairs([one for one in study.shown if one.session in sessions], strategy)
    return [Pair(*one, weight=float(times)) for one, times in sorted(stated.items())]


def measure(study: Study, strategy: str, by: str, repeats: int, seed: int) -> tuple[Values, dict[str, str]]:
    """Return the values of all systems on queries whose group was not trained on, and the group of each query."""
    query_of = study.query_of
    group_of_session = {one.session: one.session for one in study.shown}
    if by == "topics":
        group_of_session = {one.session: query_of.get(one.query, "").partition("q")[0] for one in study.shown}
    values: Values = {}
    groups: dict[str, str] = {}
    for repeat in range(repeats):
        rng = np.random.default_rng([seed, repeat])
        fold_of = folds_of(list(group_of_session.values()), rng)
        for fold in range(FOLDS):
            held_out = {s for s, group in group_of_session.items() if fold_of[group] == fold}
            trained_on = set(group_of_session) - held_out
            known = {one.query for one in study.shown if one.session in trained_on}
            lists = [one for one in study.shown if one.session in held_out and one.query not in known]
            for one in lists:
                groups.setdefault(query_of.get(one.query, ""), group_of_session[one.session])
            _measure_fold(study, pairs_of(study, strategy, trained_on), lists, seed + repeat, values)
    return values, groups


def _measure_fold(study: Study, pairs: Sequence[Pair], lists: Sequence[Impression], seed: int, values: Values) -> None:
    """Add the values of one fold."""
    documents = study.folder / "docs.jsonl.gz"
    try:
        model, _ = train_model(DocumentSource(documents), from_pairs(pairs), TrainConfig(seed=seed))
    except TrainingError as error:
        print(f"a fold was left out: {error}")
        return
    corpus = read_corpus(documents, model)
    query_of = study.query_of
    asked = {query_of[one.query] for one in lists if one.query in query_of}
    grades = {query: study.grades[query] for query in asked if query in study.grades}
    task = qrels_task(grades, list(study.texts), corpus.ids, ())
    experiment = experiment_of(model, corpus, task, study.texts)
    rng = np.random.default_rng(seed)
    fitted = fit_baselines(("tfidf", "bm25"), corpus.lexical, None, rng)
    comparison = compare_systems(experiment.model, fitted, experiment.evaluation, rng)
    scores: dict[str, npt.NDArray[np.float32]] = {MODEL: experiment.model.block(0, len(task.query_ids))}
    for name, baseline in fitted.items():
        scorer = baseline.scorer(experiment.evaluation.queries, experiment.evaluation.documents)
        scores[name] = scorer.block(0, len(task.query_ids))
    for name in SYSTEMS:
        for measure_name in MEASURES:
            for query, value in zip(task.query_ids, comparison.systems[name].values[measure_name], strict=True):
                _add(values, name, measure_name, query, float(value))
    row = {query: number for number, query in enumerate(task.query_ids)}
    column = {document: number for number, document in enumerate(task.document_ids)}
    for one in lists:
        query = query_of.get(one.query, "")
        if query in row:
            shown = [document.document for document in one.shown if document.document in column]
            orders = {SHOWN: shown}
            for name in SYSTEMS:
                line = scores[name][row[query]]
                orders[name] = sorted(shown, key=lambda d, line=line: -line[column[d]])  # type: ignore[misc]
            judged = {query: {d: g for d, g in grades[query].items() if d in set(shown)}}
            for name, order in orders.items():
                found = evaluate_run(judged, {query: order}, ["nDCG@10"])["nDCG@10"][query]
                _add(values, name, LISTS, query, found)


def _add(values: Values, system: str, name: str, query: str, value: float) -> None:
    values.setdefault(system, {}).setdefault(name, {}).setdefault(query, []).append(value)


def grouped(values: Mapping[str, Sequence[float]], groups: Mapping[str, str]) -> dict[str, float]:
    """Return the mean of each group's queries, each query averaged over repeats first."""
    parts: dict[str, list[float]] = {}
    for query, found in values.items():
        parts.setdefault(groups[query], []).append(float(np.mean(found)))
    return {group: float(np.mean(found)) for group, found in parts.items()}


def summary(values: Values, groups: Mapping[str, str], strategy: str, by: str) -> list[dict[str, Any]]:
    """Return and print a row a measure: each system, and the model against each of the others."""
    rows = []
    for name in (*MEASURES, LISTS):
        means = {system: grouped(found[name], groups) for system, found in values.items() if name in found}
        order = sorted(means[MODEL])
        arrays = {system: np.array([found[group] for group in order]) for system, found in means.items()}
        row: dict[str, Any] = {"strategy": strategy, "folds": by, "measure": name, "groups": len(order)}
        for system, found in arrays.items():
            row[system] = {"mean": float(found.mean()), "standard_error": standard_error(found)}
            if system != MODEL:
                test = paired_test(arrays[MODEL], found)
                row[f"{MODEL} - {system}"] = {
                    "difference": test.difference,
                    "standard_error": test.standard_error,
                    "p": test.p_t_test,
                }
        rows.append(row)
        cells = [f"{s} {row[s]['mean']:.4f} ± {row[s]['standard_error']:.4f}" for s in arrays]
        best = row[f"{MODEL} - bm25"]
        print(
            f"| {strategy} | {by} | {name} ({len(order)}) | {' | '.join(cells)} | "
            f"{best['difference']:+.4f} ± {best['standard_error']:.4f}, p {best['p']:.3f} |",
            flush=True,
        )
    return rows


def main() -> None:
    """Print both tables, and write everything as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategies", nargs="+", default=[DEFAULT_STRATEGY], choices=list(STRATEGIES))
    parser.add_argument("--small", action="store_true", help="one repeat, to try the script")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    repeats = 1 if options.small else options.repeats
    study = read_study(options.folder)
    print("| strategy | pairs | after caps | agree | contradict | tie | agreement |\n|---|---|---|---|---|---|---|")
    results: dict[str, Any] = {"seed": options.seed, "repeats": repeats, "pairs": pairs_table(study, options.seed)}
    print("\n| strategy | folds over | measure (groups) | systems | model - bm25 |\n|---|---|---|---|---|")
    results["learned"] = []
    for strategy in options.strategies:
        for by in ("sessions", "topics"):
            values, groups = measure(study, strategy, by, repeats, options.seed)
            results["learned"] += summary(values, groups, strategy, by)
    if options.json:
        write_results(options.json, results)


if __name__ == "__main__":
    main()
