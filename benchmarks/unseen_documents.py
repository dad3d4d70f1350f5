"""Which size of the model does best on documents that training has not seen.

    python benchmarks/unseen_documents.py [--full] [--only NAME;NAME] [--split documents|links] [--out FILE]

On data/cppdocs (SSI_DATA): trained on links inside docs_train_ids, tested on links inside docs_test_ids with the
second as pool (``--split links``: on links_train and links_valid, tested on links_test over all documents, as a check
that nothing is lost there). By default each part is 900 documents; ``--full`` takes all. Each variant is trained as
`ssi train` does: a first run that validation stops, a second on everything. The lexical part is that of
`tune_lexical`, the same for all. Printed are MAP over the test queries (whole documents) and the paired test
against the first variant, ``low_rank`` of 100 dimensions, the default; ``lexical`` learns nothing. Results of version
0.1 in ``results/`` also hold other classes of models, which that version could train.
"""

from __future__ import annotations

import os

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import gzip
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.fitting import learn_mix
from papers.methods.word_pairs import correlated_map, dice_neighbours, top_n_map
from papers.plain_sgd import PlainData, PlainShape, fit_plain
from reranker.baselines.comparison import tuning_task
from reranker.errors import ConfigError
from reranker.evaluation import link_task, paired_test, standard_error
from reranker.lexical.bm25 import LexicalRows
from reranker.lexical.corpus import LexicalCorpus
from reranker.lexical.tuning import LexicalTask, best_lexical, tune_lexical
from reranker.tables import read_links
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.tfidf import TfIdf
from reranker.text.view import TextView
from reranker.training import TrainConfig, from_links
from reranker.training.config import Schedule, schedule_of
from reranker.training.context import MAX_QUERIES, TrainingContext, Validator
from reranker.training.linear import fit_low_rank, words_only
from reranker.training.problem import QuerySet, TwoRows, build_problem, csr_of, query_set, two_rows
from reranker.training.reading import DocumentSource, Listener, TrainingCorpus, counted, read_corpus_once
from reranker.training.trainer import NegativeMiner, start_parameters
from reranker.training.training_set import Split, split_training_set

Floats = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]
SMALL = 900
CFH_WORDS, CFH_NEIGHBOURS, CFH_RESTRICTED, CFH_STEPS = 2_000, 5, 5_000, 300_000


@dataclass(frozen=True)
class Data:
    """What all variants share: texts as rows, the links to learn from, and the test."""

    corpus: TrainingCorpus
    queries: QuerySet
    documents: TwoRows
    links: Sequence[tuple[str, str]]
    split: Split
    test: list[Validator]
    is_unseen: bool


def read_ids(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().split()


def read_data(folder: Path, full: bool, by_documents: bool, seed: int) -> Data:
    """Return the corpus and the split."""
    rng = np.random.default_rng(seed)
    sides = [sorted(read_ids(folder / f"docs_{side}_ids.txt.gz")) for side in ("train", "test")]
    if not full:
        sides = [[ids[i] for i in np.sort(rng.choice(len(ids), SMALL, replace=False))] for ids in sides]
    train_ids, test_ids = (set(ids) for ids in sides)
    if by_documents:
        links = list(read_links(folder / "links_en.tsv.gz"))
        learned = [link for link in links if train_ids.issuperset(link)]
        asked = [link for link in links if test_ids.issuperset(link)]
        pool = test_ids
        split = split_training_set(from_links(learned), None, train_ids, rng)
    else:
        pool = train_ids | test_ids
        train, valid, asked = (
            [link for link in read_links(folder / f"links_{side}.tsv.gz") if pool.issuperset(link)]
            for side in ("train", "valid", "test")
        )
        learned = [*train, *valid]
        split = split_training_set(from_links(train), from_links(valid), pool, rng)
    view, analyzer = TextView.parse(["title", "text"]), make_analyzer(AnalyzerConfig())
    path = folder / "docs_en.jsonl.gz"
    tokens = read_corpus_once(DocumentSource(path, view, analyzer), analyzer, Listener()).tokens
    vocabulary = tokens.vocabulary()
    wanted = {source for source, _ in [*learned, *asked]}
    corpus = counted(tokens, analyzer, TfIdf(vocabulary, "log"), wanted)
    lexical = tuned_rows(corpus, split, rng)
    queries = query_set(corpus, [from_links(learned)], lexical)
    documents = two_rows(corpus.learned_rows((1.0, 1.0)), lexical.documents(corpus.counts))
    known = [] if by_documents else learned
    task = link_task(asked, known, pool, query_ids=sorted({source for source, _ in asked}))
    q_rows = queries.rows.part(np.array([corpus.query_row_of[one] for one in task.query_ids]))
    d_rows = documents.part(np.array([corpus.row_of[one] for one in task.document_ids]))
    parts = np.array_split(np.arange(len(task.query_ids)), len(task.query_ids) // MAX_QUERIES + 1)
    test = [Validator(task.rows(part), q_rows.part(part), d_rows, 1.0, rng) for part in parts]
    return Data(corpus, queries, documents, learned, split, test, by_documents)


def tuned_rows(corpus: TrainingCorpus, split: Split, rng: np.random.Generator) -> LexicalRows:
    """Return the rows of the best lexical score for whole documents as queries."""
    links, counted = split.train.links(), LexicalCorpus(corpus.counts)
    task = tuning_task(links, corpus.ids, split.pool)
    asked, pool = (np.array([corpus.row_of[one] for one in ids]) for ids in (task.query_ids, task.document_ids))
    tuned = tune_lexical(counted, [LexicalTask(task, counted.document_queries(asked), pool)], rng)
    vocabulary = corpus.tfidf.vocabulary
    return LexicalRows(best_lexical(tuned).settings, vocabulary.frequency_of, vocabulary.n_documents)


def context_of(data: Data, config: TrainConfig, final: bool) -> TrainingContext:
    """Return what a model learns from: the first run with validation, or the second on everything."""
    corpus, evidence = data.corpus, from_links(data.links) if final else data.split.train
    schedule = schedule_of(config, queries_are_texts=False, unseen_documents=data.is_unseen, only_whole=True)
    used = {d for link in data.links for d in link} if data.is_unseen else set(corpus.ids)
    held_out = set(corpus.ids) - used | (set() if final else set(data.split.held_out))
    problem = build_problem(corpus, data.queries, data.documents, evidence, held_out)
    rng = np.random.default_rng(config.seed)
    validators = [] if final else [validator(data, schedule.identity_scale, rng)]
    n_words = len(corpus.tfidf.vocabulary)

    def start(schedule: Schedule) -> tuple[Floats, Floats]:
        return start_parameters(schedule, n_words, config.dim, np.random.default_rng(config.seed + 1))

    return TrainingContext(
        config,
        schedule,
        problem,
        NegativeMiner(problem, np.random.default_rng(config.seed)),
        validators,
        rng,
        start,
        {},
        None,
        lambda _: None,
        lambda *_: None,
    )


def validator(data: Data, identity: float, rng: np.random.Generator) -> Validator:
    """Return the validation of the first run."""
    corpus, split = data.corpus, data.split
    known = split.train.links() if not data.is_unseen else ()
    task = split.valid.task(split.pool, known, set(corpus.query_row_of))
    queries = data.queries.rows.part(np.array([corpus.query_row_of[one] for one in task.query_ids]))
    pool = data.documents.part(np.array([corpus.row_of[one] for one in task.document_ids]))
    return Validator(task, queries, pool, identity, rng)


def by_product(**changes: Any) -> Callable[[Data, int], tuple[Values, int, str]]:
    """Return a variant that the product learns."""

    def run(data: Data, seed: int) -> tuple[Values, int, str]:
        config = TrainConfig(seed=seed, **changes)
        validated, everything = (context_of(data, config, final) for final in (False, True))
        first = fit_low_rank(validated)
        final = fit_low_rank(everything, first) if first.has_learned else first
        note = f"epochs {first.result.best_epoch}, scale {first.scale:g}"
        return final.values_by(data.test), final.U.size + final.V.size, note

    return run


def lexical(data: Data, seed: int) -> tuple[Values, int, str]:
    """Return the lexical score."""
    return words_only().values_by(data.test), 0, ""


def correlated(data: Data, seed: int) -> tuple[Values, int, str]:
    """Return restricted U^T V + I mixed with correlated feature hashing of all other words (M14), by the plain SGD.

    As the paper prints it: the margin against q.d of weight 1, uniform negatives, no dropout and no validation.
    """
    config = TrainConfig(seed=seed)
    last = context_of(data, config, True)
    problem, n = last.problem, last.problem.n_columns
    pool = problem.negatives.pool
    q_rows, d_rows = csr_of(problem.queries, n), csr_of(problem.documents, n)[pool]
    place = np.full(d_rows.shape[0] + int(pool.max()) + 1, -1)
    place[pool] = np.arange(len(pool))
    tuples, shape = problem.tuples, (q_rows.shape[0], len(pool))
    relevant = sp.csr_matrix((np.ones(len(tuples.query)), (tuples.query, place[tuples.document])), shape=shape)
    own = np.full(shape[0], -1, dtype=np.int64)
    for one, row in data.corpus.query_row_of.items():
        at = data.corpus.row_of[one]
        own[row] = place[at] if at < len(place) else -1
    neighbours = dice_neighbours(csr_of(problem.documents, n), CFH_WORDS, CFH_NEIGHBOURS)
    links, rng = PlainData(q_rows, d_rows, relevant, own), last.fresh_rng()
    words, others = top_n_map(n, n), correlated_map(neighbours, CFH_WORDS, np.arange(n) >= CFH_RESTRICTED)
    frequent, rare = (
        fit_plain(shape, links.mapped(kept), rng=rng, n_dims=50, rate=0.03, init_std=0.01, n_steps=CFH_STEPS)
        for shape, kept in ((PlainShape("low_rank", n_words=CFH_RESTRICTED), words), ("no_identity", others))
    )
    mix = learn_mix(frequent, rare, links, rng=rng)
    values = []
    for test in data.test:
        queries, pages = (
            sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(rows.shape[0], n))
            for rows in (test.queries, test.documents)
        )
        scores = mix.score_matrix(queries, pages)
        values.append(test.values(scores, np.eye(scores.shape[1], dtype=np.float32), identity=0.0))
    n_parameters = 2 * 50 * (CFH_RESTRICTED + CFH_WORDS)
    return np.concatenate(values), n_parameters, f"mu {mix.weights[1]:.3g}"


VARIANTS: dict[str, Callable[[Data, int], tuple[Values, int, str]]] = {
    "low_rank 100": by_product(),
    "lexical": lexical,
    "low_rank 25": by_product(dim=25),
    "low_rank 50": by_product(dim=50),
    "low_rank 300": by_product(dim=300),
    "CFH": correlated,
}
FIRST = "low_rank 100"


def main() -> None:
    """Run the variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--split", choices=["documents", "links"], default="documents")
    parser.add_argument("--only", help="variants, split by a semicolon", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    names = [name.strip() for name in asked.only.split(";") if name.strip()] or list(VARIANTS)
    if unknown := [name for name in names if name not in VARIANTS]:
        raise ConfigError(f"{unknown[0]!r} is not one of {'; '.join(VARIANTS)}")
    folder = Path(os.environ.get("SSI_DATA", "../shared/data")) / "cppdocs"
    data = read_data(folder, asked.full, asked.split == "documents", asked.seed)
    n_queries = sum(len(one.task.query_ids) for one in data.test)
    print(f"{len(data.links):,} links; test: {n_queries:,} queries over {len(data.test[0].task.document_ids):,}")
    print(f"{'variant':<28} {'MAP':>6} {'±':>5} {'- first':>8} {'p':>8} {'numbers':>11} {'s':>6}")
    rows: list[dict[str, Any]] = []
    first: Values | None = None
    for name in dict.fromkeys([FIRST, *names]):
        started = time.perf_counter()
        values, n_parameters, note = VARIANTS[name](data, asked.seed)
        first = values if first is None else first
        test = paired_test(values, first)
        row = {
            "variant": name,
            "map": values.mean(),
            "standard_error": standard_error(values),
            "difference": test.difference,
            "p": test.p_t_test,
            "parameters": n_parameters,
            "seconds": time.perf_counter() - started,
            "note": note,
        }
        rows.append({key: value.item() if isinstance(value, np.generic) else value for key, value in row.items()})
        print(
            f"{name:<28} {row['map']:6.4f} {row['standard_error']:5.3f} {test.difference:+8.4f} {test.p_t_test:8.2g} "
            f"{n_parameters:11,} {row['seconds']:6.1f} {note}",
            flush=True,
        )
    if asked.out:
        head = {"split": asked.split, "full": asked.full, "seed": asked.seed, "queries": n_queries}
        write_results(asked.out, {**head, "variants": rows})


if __name__ == "__main__":
    main()
