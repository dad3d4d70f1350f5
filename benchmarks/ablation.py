"""What each part of a default training gains where it is used: test MAP with and without it, on corpora of SSI_DATA.

    python benchmarks/ablation.py --json FILE [--corpora NAME,...] [--parts NAME,...] [--seeds N,...]

Each row is one training with a part switched off, on the training queries or links of the corpus (the splits of
`generalisation_data`: ``whole`` where judged, ``links`` where linked), and its test MAP. The row without ``nothing`` is
the default. Parts: ``stems`` and ``bigrams`` (words as they stand; no bigrams), ``coverage`` (of the lexical score),
``memory``, ``word_weights`` (judged corpora), ``short`` (the second U, for short queries; linked corpora).
``identity_scale=8`` or the like gives a constant of `reranker.training.config` another value. A row that is in FILE is
not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from generalisation_data import JUDGED, LINKED, Corpus, read_corpus, together
from provenance import write_results

from reranker.baselines.comparison import experiment_of
from reranker.baselines.comparison import read_corpus as encoded_by
from reranker.evaluation import draw_tuples, evaluate
from reranker.lexical.tuning import tune_lexical
from reranker.training import DocumentSource, TrainConfig, from_judgements, from_links, lexical_choice, train_model
from reranker.training.config import schedule_of

DATA = Path(os.environ.get("SSI_DATA", "../shared/data"))
PARTS = ("all", "stems", "bigrams", "coverage", "memory", "word_weights", "short")
KINDS = {True: ("document", "keywords:5"), False: ("text",)}
"""Queries of the test, of linked corpora and others."""


@contextmanager
def without(part: str, seed: int) -> Iterator[TrainConfig]:
    """Yield the settings of a training without a part, which is switched off meanwhile."""
    off = {"memory": TrainConfig(memory="off", seed=seed), "word_weights": TrainConfig(word_weights="off", seed=seed)}
    if part in off:
        yield off[part]
        return
    if "=" in part:
        name, _, value = part.partition("=")
        with mock.patch(f"reranker.training.config.{name.upper()}", float(value)):
            yield TrainConfig(seed=seed)
        return
    better, tune, schedule = lexical_choice._better_reading, tune_lexical, schedule_of

    def kept(*args: Any, **more: Any) -> Any:
        return args[2] if args[4].way == part else better(*args, **more)

    def uncovered(*args: Any, **more: Any) -> Any:
        return tune(*args, **{**more, "with_coverage": False})

    def together(*args: Any, **more: Any) -> Any:
        found = schedule(*args, **more)
        return found if not found.short_apart else type(found)(**{**vars(found), "short_apart": False})

    changes = {
        "stems": ("reranker.training.lexical_choice._better_reading", kept),
        "bigrams": ("reranker.training.lexical_choice._better_reading", kept),
        "coverage": ("reranker.training.lexical_choice.tune_lexical", uncovered),
        "short": ("reranker.training.run.schedule_of", together),
    }
    if part not in changes:
        yield TrainConfig(seed=seed)
        return
    with mock.patch(*changes[part]):
        yield TrainConfig(seed=seed)


def row_of(corpus: Corpus, part: str, seed: int) -> dict[str, Any]:
    """Train once and measure the model on the test queries."""
    split = corpus.splits["links" if corpus.linked else "whole"]
    if corpus.linked:
        pairs = [(source, target) for source, targets in split.learn.items() for target in targets]
        evidence, valid = from_links(pairs), from_links([(s, t) for s, ts in split.stop.items() for t in ts])
    else:
        evidence, valid = from_judgements(split.learn, corpus.queries), None
    started = time.perf_counter()
    with without(part, seed) as config:
        model, report = train_model(DocumentSource(corpus.docs), evidence, config, valid=valid)
    seconds = time.perf_counter() - started
    encoded = encoded_by(corpus.docs, model, () if not corpus.linked else split.test)
    task = corpus.task(split.test, together(split.learn, split.stop) if corpus.linked else {}, split.pool)
    reached = {}
    for kind in KINDS[corpus.linked]:
        n_words = int(kind.partition(":")[2]) if kind.startswith("keywords") else None
        experiment = experiment_of(model, encoded, task, corpus.queries or None, n_words)
        values = evaluate(
            task, experiment.model, draw_tuples(task, np.random.default_rng(0), 0), ("AP", "nDCG@10")
        ).values
        reached[kind] = {measure: float(of.mean()) for measure, of in values.items()}
    form = report.form.form.name
    return {
        "corpus": corpus.name,
        "without": "nothing" if part == "all" else part,
        "seed": seed,
        "seconds": round(seconds, 1),
        "form": form,
        "test": reached,
        "notes": [*report.notes, report.memory.sentence],
    }


def main() -> None:
    """Measure the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", default=",".join((*JUDGED, *LINKED)))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"] if options.json.is_file() else []
    done = {(row["corpus"], row["without"], row["seed"]) for row in rows}
    for name in options.corpora.split(","):
        with tempfile.TemporaryDirectory() as folder:
            corpus = read_corpus(DATA / name, Path(folder), False)
            for seed, part in product(map(int, options.seeds.split(",")), options.parts.split(",")):
                named = (name, "nothing" if part == "all" else part, seed)
                if named in done or (part == "short") > corpus.linked:
                    continue
                if corpus.linked and part == "word_weights":
                    continue
                rows.append(row_of(corpus, part, seed))
                print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
                write_results(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
