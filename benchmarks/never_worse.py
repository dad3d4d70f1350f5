"""Whether the form that training writes is the best of its candidates on queries of a test set.

    python benchmarks/never_worse.py --out FOLDER [--corpora NAME,...] [--queries 60,150,all] [--seeds 0,1,2]
        [--json FILE]

For each corpus of SSI_DATA with judged queries, number of training queries and seed: half of the queries (at most 500)
are the test set, and of the others so many are trained on with the defaults. Each form (lexical score, with or without
query memory, with or without the learned part) is refitted on all training queries and measured on the test set. A row
is kept as a line of ``never_worse.jsonl`` as soon as it is measured; a row that is there is not measured again. FILE
gets all rows of the folder, and their means over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from provenance import program_of, write_results

from reranker.baselines.comparison import experiment_of, read_corpus
from reranker.evaluation import draw_tuples, evaluate, paired_test, qrels_task
from reranker.tables import read_judgements, read_queries
from reranker.training import DocumentSource, Listener, TrainConfig, from_judgements
from reranker.training.form_choice import forms_of
from reranker.training.run import checked_run
from reranker.training.train import run_stages, written_model

DATA = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[1] / "../shared/data"))
CORPORA = ("cranfield", "cisi", "nfcorpus", "insuranceqa", "msrd_movies", "esci_sample", "wikimedia_discernatron")
MAX_TEST = 500
MEASURES = ("AP", "nDCG@10")


def files_of(name: str) -> tuple[Path, Path, Path]:
    """Return the files of documents, queries and judgments of a corpus."""
    folder = DATA / name
    docs = next(path for path in sorted(folder.iterdir()) if path.name.startswith("docs.jsonl"))
    queries = next(path for path in sorted(folder.iterdir()) if path.name.startswith("queries"))
    qrels = next(path for path in sorted(folder.iterdir()) if path.name.startswith("qrels"))
    return docs, queries, qrels


def row_of(name: str, n: int | None, seed: int) -> dict[str, Any]:
    """Train once and measure every form on the test queries."""
    docs, query_file, qrels_file = files_of(name)
    texts = {query.id: query.text for query in read_queries(query_file)}
    grades = {query: judged for query, judged in read_judgements(qrels_file).items() if query in texts}
    ids = sorted(grades)
    order = np.random.default_rng([seed, 41]).permutation(len(ids))
    n_test = min(len(ids) // 2, MAX_TEST)
    test, train = ([ids[place] for place in part] for part in (order[:n_test], order[n_test:]))
    chosen = train if n is None else train[:n]
    evidence = from_judgements({query: grades[query] for query in chosen}, texts)
    started = time.monotonic()
    run = checked_run(DocumentSource(docs), evidence, TrainConfig(seed=seed), None, None, None, Listener())
    stages = run_stages(run)
    seconds = time.monotonic() - started
    measured: dict[str, Any] = {}
    values = {}
    for form in forms_of(run, stages.learned, stages.memory):
        model = written_model(run, stages, form)
        corpus = read_corpus(docs, model)
        task = qrels_task({query: grades[query] for query in test}, list(texts), set(corpus.ids), ())
        experiment = experiment_of(model, corpus, task, texts)
        tuples = draw_tuples(task, np.random.default_rng(0), 0)
        values[form] = evaluate(task, experiment.model, tuples, MEASURES).values
        measured[form.name] = {measure: float(of.mean()) for measure, of in values[form].items()}
    written = stages.choice.form
    best = max(values, key=lambda form: float(values[form]["AP"].mean()))
    test_of = paired_test(values[written]["AP"], values[best]["AP"])
    return {
        "version": program_of(Path(__file__).resolve()),
        "corpus": name,
        "queries": len(chosen),
        "asked": "all" if n is None else n,
        "seed": seed,
        "seconds": round(seconds, 1),
        "test_queries": len(values[best]["AP"]),
        "written": written.name,
        "best": best.name,
        "difference": test_of.difference,
        "p": test_of.p_t_test,
        "forms": measured,
        "held_out": {form.name: dict(of) for form, of in stages.choice.means.items()},
        "judged": stages.choice.n_queries,
        "cross_fitted": stages.choice.cross_fitted,
        "sentence": stages.choice.sentence,
    }


def means_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean difference over the seeds of each corpus and number of queries."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["corpus"], str(row["asked"])), []).append(row)
    return [
        {
            "corpus": corpus,
            "asked": asked,
            "seeds": len(group),
            "difference": float(np.mean([row["difference"] for row in group])),
            "least_p": min(row["p"] for row in group),
        }
        for (corpus, asked), group in groups.items()
    ]


def main() -> None:
    """Measure the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--corpora", default=",".join(CORPORA))
    parser.add_argument("--queries", default="60,150,all")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows to a result file")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "never_worse.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["corpus"], str(row["asked"]), row["seed"]) for row in rows}
    for seed in map(int, filter(None, options.seeds.split(","))):
        for name in options.corpora.split(","):
            for asked in options.queries.split(","):
                if (name, asked, seed) in done:
                    continue
                row = row_of(name, None if asked == "all" else int(asked), seed)
                rows.append(row)
                with path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{name:24} {asked:>5} {seed}  {row['difference']:+.4f}  p {row['p']:.3f}  {row['sentence']}")
    if options.json is not None:
        write_results(options.json, {"means": means_of(rows), "rows": rows})


if __name__ == "__main__":
    main()
