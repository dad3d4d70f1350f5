"""Ranking quality on a linked corpus: the trained model beside lexical baselines with tuned field weights.

    python benchmarks/bench_quality.py DATA/cppdocs [--dim 100] [--seed 0] [--json FILE] [--models DIR]

The folder holds docs_en.jsonl.gz, links_train/valid/test.tsv.gz (a split at random by link), links_en.tsv.gz and
docs_train/test_ids.txt.gz (a split by documents: trained on links inside the first, tested on links inside the second
with the second as pool). Every query ranks the whole pool but itself and its known links. Baselines are tuned on the
training links. Prints Markdown: mean +- standard error over queries, difference from the best baseline with the p of
the paired t-test. With --models, trained models are kept there and read from there the next time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from reranker.baselines.comparison import (
    MODEL,
    RANK_LOSS,
    EncodedCorpus,
    SystemComparison,
    compare_systems,
    experiment_of,
    lexical_task,
    read_corpus,
    tuning_task,
)
from reranker.baselines.fitted import fit_baselines
from reranker.evaluation import IdPair, RankingTask, link_task, without_reverse
from reranker.formats import read_ids
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.tables import read_links
from reranker.training import DocumentSource, Listener, TrainConfig, from_links, train_model

KEYWORDS = (2, 3, 5, 10)
BASELINES = ("tfidf", "bm25", "lsi:200")


@dataclass(frozen=True)
class Split:
    """Links to learn from, to stop by (empty: chosen by training itself) and to find, and the documents to rank."""

    name: str
    train: Sequence[IdPair]
    valid: Sequence[IdPair]
    test: Sequence[IdPair]
    pool: Collection[str]

    @property
    def known(self) -> list[IdPair]:
        """All links that a system may have seen."""
        return [*self.train, *self.valid]


def random_split(folder: Path, ids: Collection[str]) -> Split:
    """Return the split at random by link."""
    train, valid, test = (list(read_links(folder / f"links_{part}.tsv.gz")) for part in ("train", "valid", "test"))
    return Split("random links", train, valid, test, ids)


def disjoint_split(folder: Path) -> Split:
    """Return the split by documents."""
    seen, unseen = (set(read_ids(folder / f"docs_{part}_ids.txt.gz")) for part in ("train", "test"))
    links = list(read_links(folder / "links_en.tsv.gz"))
    inside = [[link for link in links if set(link) <= part] for part in (seen, unseen)]
    return Split("unseen documents", inside[0], [], inside[1], unseen)


def trained(folder: Path, split: Split, options: argparse.Namespace) -> tuple[RankingModel, float]:
    """Return a model of the split and the seconds that training took (0 where it was kept)."""
    kind = f"{split.name.replace(' ', '-')}-{options.dim}-{options.seed}"
    kept = options.models / kind if options.models else None
    if kept is not None and kept.exists():
        return load_model(kept), 0.0
    started = time.perf_counter()
    model, _ = train_model(
        DocumentSource(folder / "docs_en.jsonl.gz"),
        from_links(split.train),
        TrainConfig(dim=options.dim, seed=options.seed),
        valid=from_links(split.valid) if split.valid else None,
        listener=Listener(say=lambda line: print(line, file=sys.stderr, flush=True)),
    )
    seconds = time.perf_counter() - started
    if kept is not None:
        save_model(model, kept)
    return model, seconds


def compared(
    model: RankingModel,
    corpus: EncodedCorpus,
    split: Split,
    tasks: dict[str, RankingTask],
    n_words: int | None,
    seed: int,
) -> dict[str, SystemComparison]:
    """Return the model beside tuned baselines on each task, by name; the baselines are tuned once."""
    tuned = tuning_task(split.known, corpus.ids, split.pool)
    tuning = lexical_task(model, corpus, tuned, None, n_words, seed)
    names = BASELINES if n_words is None else BASELINES[:2]
    fitted = fit_baselines(names, corpus.lexical, tuning, np.random.default_rng(seed))
    found = {}
    for name, task in tasks.items():
        experiment = experiment_of(model, corpus, task, None, n_words, seed)
        found[name] = compare_systems(experiment.model, fitted, experiment.evaluation, np.random.default_rng(seed))
    return found


def row_of(comparison: SystemComparison) -> str:
    """Return one line of Markdown: the model, the baselines, and the test against the best of them."""
    model, test = comparison.systems[MODEL], comparison.headline
    others = ", ".join(
        f"{name} {scores.mean('AP'):.4f}" for name, scores in comparison.systems.items() if name != MODEL
    )
    difference = "" if test is None else f"{test.difference:+.4f} ± {test.standard_error:.4f} (p {test.p_t_test:.2g})"
    return (
        f"{len(comparison.task.query_ids):,} | {model.mean('AP'):.4f} ± {model.standard_error('AP'):.4f} | "
        f"{model.mean('P@10'):.4f} | {model.mean('nDCG@10'):.4f} | {model.rank_loss():.3f} | {others} | {difference}"
    )


def report(
    folder: Path, split: Split, kinds: Sequence[int | None], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Train on a split, print a line for each kind of test query, and return everything as JSON."""
    model, seconds = trained(folder, split, options)
    corpus = read_corpus(folder / "docs_en.jsonl.gz", model, {source for source, _ in split.test})
    whole = link_task(split.test, split.known, split.pool, corpus.row_of)
    results = []
    for n_words in kinds:
        tasks = {"all": whole}
        if split.valid and n_words is None:
            tasks["reverse not in train"] = without_reverse(whole, split.train)
        for links, comparison in compared(model, corpus, split, tasks, n_words, options.seed).items():
            kind = "whole document" if n_words is None else f"{n_words} words"
            print(f"| {split.name} | {kind} | {links} | {row_of(comparison)} |", flush=True)
            results.append(
                {
                    "split": split.name,
                    "queries": kind,
                    "links": links,
                    "train_seconds": round(seconds, 1),
                    RANK_LOSS: comparison.systems[MODEL].rank_loss(),
                    "comparison": comparison.to_json(),
                }
            )
    return results


def main() -> None:
    """Print the table, and write everything as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, help="keep trained models there")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    ids = set(read_documents_ids(options.folder))
    at_random, disjoint = random_split(options.folder, ids), disjoint_split(options.folder)
    head = "split, test queries, test links, queries, MAP, P@10, nDCG@10, rank loss %, baselines' MAP"
    print(f"| {head.replace(', ', ' | ')} | difference from the best |")
    print("|" + "---|" * 10)
    cases: list[tuple[Split, list[int | None]]] = [(disjoint, [None]), (at_random, [None, *KEYWORDS])]
    results: list[dict[str, Any]] = []
    for split, kinds in cases:
        results += report(options.folder, split, kinds, options)
        if options.json:  # after every model, so that a run cut short leaves what it has
            summary = {"dim": options.dim, "seed": options.seed, "results": results}
            write_results(options.json, summary)


def read_documents_ids(folder: Path) -> list[str]:
    """Return the ids of the corpus."""
    from reranker.formats import read_documents

    return [document.id for document in read_documents(folder / "docs_en.jsonl.gz")]


if __name__ == "__main__":
    main()
