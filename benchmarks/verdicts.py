"""How often a verdict is wrong where nothing differs, and what the choice of a query memory costs on simulated clicks.

    python benchmarks/verdicts.py noise [--splits 200] [--json FILE]
    python benchmarks/verdicts.py memory [--logs 20] [--json FILE]

``noise``: two scores of the queries of nfcorpus, BM25 plus noise of the same size, differ by chance only. Each split
draws new noise and 150 queries, and is judged as `ssi train` judges the form of a model.

``memory``: searches on cranfield, whose readers look at ranks with probability 1 / rank and click what is relevant (and
what is not with probability .1), on the first ten hits of BM25. `ssi train` learns from the pairs "clicked over
unclicked". A row has the held-out MAP of the best form with and without a memory, whether the memory was switched on,
and the MAP of both by the true judgments of queries that nobody asked.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from generalisation_data import read_corpus
from never_worse import files_of
from provenance import write_results

from reranker.baselines.comparison import experiment_of
from reranker.baselines.comparison import read_corpus as encoded_by
from reranker.evaluation import draw_tuples, evaluate, paired_test, qrels_task
from reranker.models.ranking_model import RankingModel
from reranker.records import Pair
from reranker.tables import read_judgements, read_queries
from reranker.training import DocumentSource, Listener, TrainConfig, from_judgements, from_pairs
from reranker.training.context import KnownScores
from reranker.training.form_choice import comparison_of, forms_of
from reranker.training.run import checked_run
from reranker.training.train import run_stages, written_model

DATA = Path(os.environ.get("SSI_DATA", "../shared/data"))
QUERIES_A_SPLIT = 150
SEARCHES, PAGE, CLICKED_OTHERS = 20, 10, 0.1


def lexical_scores(name: str, folder: Path) -> tuple[Any, Any]:
    """Return a task over all queries of a corpus and the scores of plain BM25."""
    from reranker.lexical.corpus import LexicalCorpus
    from reranker.lexical.tuning import tune_lexical
    from reranker.text.analyzers import make_analyzer, parse_analyzer
    from reranker.text.tfidf import TfIdf, count_rows
    from reranker.training.reading import counted, read_corpus_once, vocabulary_of

    corpus, source = read_corpus(DATA / name, folder, False), DocumentSource(files_of(name)[0])
    analyzer = make_analyzer(parse_analyzer("unicode,stem=english"))
    tokens = read_corpus_once(source, analyzer, Listener()).tokens
    data = counted(tokens, analyzer, TfIdf(vocabulary_of(source, tokens), "log"), set())
    lexical = LexicalCorpus(data.counts)
    settings = tune_lexical(lexical, [], np.random.default_rng(0))["bm25"].settings
    grades = {
        query: judged for split in ("learn", "test") for query, judged in vars(corpus.splits["whole"])[split].items()
    }
    task = qrels_task(grades, list(corpus.queries), data.ids, ())
    counts = count_rows(data.tfidf.vocabulary, analyzer.tokens([corpus.queries[query] for query in task.query_ids]))
    places = np.array([data.row_of[document] for document in task.document_ids])
    scorer = lexical.scorer(lexical.text_queries(counts), places, settings)
    return task, scorer.block(0, len(task.query_ids))


def noise(n_splits: int) -> dict[str, Any]:
    """Count the verdicts on two scores that differ by noise."""
    with tempfile.TemporaryDirectory() as folder:
        task, scores = lexical_scores("nfcorpus", Path(folder))
    rng = np.random.default_rng(0)
    size = 0.5 * np.median([row[row > 0].std() for row in scores if (row > 0).sum() > 1])

    def values(of_split: Any, plain: Any) -> Any:
        noisy = (plain + rng.normal(0, size, plain.shape)).astype(np.float32)
        no_tuples = draw_tuples(of_split, np.random.default_rng(0), 0)
        return evaluate(of_split, KnownScores(noisy), no_tuples, ("AP",)).values["AP"]

    verdicts = {"better": 0, "worse": 0, "no difference shown": 0}
    for _ in range(n_splits):
        chosen = rng.permutation(len(scores))[:QUERIES_A_SPLIT]
        of_split = task.rows(chosen)
        said = comparison_of(paired_test(*(values(of_split, scores[chosen]) for _ in range(2))), "other")
        verdicts[next(verdict for verdict in verdicts if verdict in said)] += 1
    return {"splits": n_splits, "queries": QUERIES_A_SPLIT, "verdicts": verdicts}


def pairs_of_clicks(scores: Any, task: Any, asked: Any, texts: dict[str, str], rng: np.random.Generator) -> list[Pair]:
    """Return the pairs of clicked and unclicked documents of simulated searches."""
    pairs: list[Pair] = []
    for row in asked:
        query = task.query_ids[row]
        shown = np.argsort(-scores[row], kind="stable")[:PAGE]
        relevant = np.asarray(task.grades[row, shown].todense()).ravel() > 0
        for _ in range(SEARCHES):
            looked = rng.random(PAGE) < 1 / np.arange(1, PAGE + 1)
            clicked = looked & (relevant | (rng.random(PAGE) < CLICKED_OTHERS))
            ids = [task.document_ids[place] for place in shown]
            pairs += [
                Pair(texts[query], ids[better], ids[worse], 1.0)
                for better in np.flatnonzero(clicked)
                for worse in np.flatnonzero(~clicked & (np.arange(PAGE) <= np.flatnonzero(clicked).max(initial=-1)))
            ]
    return pairs


def memory_row(seed: int) -> dict[str, Any]:
    """Train on one simulated log."""
    name, rng = "cranfield", np.random.default_rng([seed, 7])
    docs, query_file, qrels = files_of(name)
    texts = {query.id: query.text for query in read_queries(query_file)}
    with tempfile.TemporaryDirectory() as folder:
        task, scores = lexical_scores(name, Path(folder))
    order = rng.permutation(len(task.query_ids))
    asked, unasked = order[: len(order) // 2], order[len(order) // 2 :]
    evidence = from_pairs(pairs_of_clicks(scores, task, asked, texts, rng))
    run = checked_run(DocumentSource(docs), evidence, TrainConfig(seed=seed), None, None, None, Listener())
    stages = run_stages(run)
    grades = read_judgements(qrels)
    tested = from_judgements({task.query_ids[row]: grades[task.query_ids[row]] for row in unasked}, texts)

    def reached(model: RankingModel) -> float:
        corpus = encoded_by(docs, model)
        of_test = qrels_task(tested.grades, list(texts), set(corpus.ids), ())
        scorer = experiment_of(model, corpus, of_test, texts).model
        return evaluate(of_test, scorer, draw_tuples(of_test, rng, 0), ("AP",)).mean("AP")

    means = {form: of["AP"] for form, of in stages.choice.means.items()}
    best = {
        on: max((form for form in means if form.memory is on), key=means.__getitem__, default=None)
        for on in (True, False)
    }
    forms = forms_of(run, stages.learned, stages.memory, stages.encoder)
    return {
        "seed": seed,
        "pairs": len(evidence.preferences),
        "on": stages.choice.form.memory,
        "forms": len(forms),
        "held_out": {("with" if on else "without"): means[form] for on, form in best.items() if form is not None},
        "test": {
            ("with" if on else "without"): reached(written_model(run, stages, form))
            for on, form in best.items()
            if form is not None
        },
    }


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("noise", "memory"))
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--logs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kept: dict[str, Any] = {"noise": [], "memory": []}
    if options.json and options.json.is_file():
        kept |= json.loads(options.json.read_text(encoding="utf-8"))
    if options.what == "noise":
        kept["noise"] = [noise(options.splits)]
    done = {row["seed"] for row in kept["memory"]}
    for seed in range(options.logs if options.what == "memory" else 0):
        if seed not in done:
            kept["memory"].append(memory_row(seed))
            print(json.dumps(kept["memory"][-1]), flush=True)
            if options.json:
                write_results(options.json, kept)
    print(json.dumps(kept["noise"] if options.what == "noise" else {"logs": len(kept["memory"])}))
    if options.json:
        write_results(options.json, kept)


if __name__ == "__main__":
    main()
