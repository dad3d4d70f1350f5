"""Synonym rules of `ssi words synonyms` in a real engine: nDCG@10 with the rules compared with none.

    python benchmarks/synonyms.py [--corpora NAME...] [--small] [--work FOLDER] [--out FILE]

For each corpus of SSI_DATA, `ssi train` learns a model from the training queries, and `ssi words synonyms` chooses
rules on the training and validation queries. The test queries are searched twice in one index of OpenSearch: with
an analyzer of lower case, stop words and stems, and with the same analyzer followed by the filter ``synonym_graph``
with the lines of the file of rules. Two bodies are measured: the field weights of the model, and equal weights.
``--work`` keeps the models for another run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from generalisation_data import JUDGED, Corpus, arguments, read_corpus
from provenance import ROOT, write_results

from reranker.engines import open_engine
from reranker.engines.bodies import fill_template
from reranker.engines.protocol import Engine, WriteOp
from reranker.evaluation import evaluate_run, paired_test
from reranker.models.model_folder import load_model
from reranker.models.ranking_model import RankingModel
from reranker.rerank.weighted_template import weighted_template
from tests.engines.launcher import start_opensearch

CORPORA = ("nfcorpus", "insuranceqa")
SPLIT, INDEX, MEASURE = "split", "bench-synonyms", "nDCG@10"
FILTERS = ["lowercase", "english_stop", "english_stems"]
BATCH = 500


def ssi(*words: str) -> str:
    """Run a command of the program and return its standard output."""
    done = subprocess.run([sys.executable, "-m", "reranker", *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def settings_of(analysis: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the index: one shard, and the two analyzers."""
    return {"index": {"number_of_shards": 1, "number_of_replicas": 0}, "analysis": analysis}


def fill(engine: Engine, corpus: Corpus, rules: list[str]) -> None:
    """Create the index with both analyzers and write the documents; ``rules`` are lines in Solr's format."""
    analysis = {
        "filter": {
            "english_stop": {"type": "stop", "stopwords": "_english_"},
            "english_stems": {"type": "stemmer", "language": "porter2"},
            "rules": {"type": "synonym_graph", "synonyms": rules},
        },
        "analyzer": {
            "plain": {"type": "custom", "tokenizer": "standard", "filter": FILTERS},
            "with_rules": {"type": "custom", "tokenizer": "standard", "filter": [*FILTERS, "rules"]},
        },
    }
    field = {"type": "text", "analyzer": "plain"}
    engine.create_index(INDEX, {"properties": {"title": field, "text": field}}, settings_of(analysis))
    names = list(corpus.documents)
    for start in range(0, len(names), BATCH):
        texts = {name: corpus.documents[name] for name in names[start : start + BATCH]}
        ops = [WriteOp("index", name, {"title": title, "text": text}) for name, (title, text) in texts.items()]
        bad = [result for result in engine.bulk(INDEX, ops) if result.status >= 300]
        assert not bad, bad[0]
    engine.refresh(INDEX)


def weighted_fields(model: RankingModel) -> list[str]:
    """Return the fields with the boosts by which ``most_fields`` comes nearest to the tuned lexical score."""
    template = weighted_template(model.encoder, kind="most_fields")
    assert template is not None
    query = template["query"]
    return list(query["multi_match"]["fields"] if "multi_match" in query else query["match"])  # match: one field


def values_of(engine: Engine, corpus: Corpus, fields: list[str], analyzer: str) -> np.ndarray:
    """Return nDCG@10 of each test query, in the order of their ids."""
    query = {"query": "{{query}}", "fields": fields, "type": "most_fields", "analyzer": analyzer}
    body = {"query": {"multi_match": query}, "_source": False, "size": 10}
    asked = sorted(corpus.splits[SPLIT].test)
    run = {
        name: [hit.id for hit in engine.search(INDEX, fill_template(body, corpus.queries[name])).hits] for name in asked
    }
    found = evaluate_run({name: corpus.splits[SPLIT].test[name] for name in asked}, run, [MEASURE])[MEASURE]
    return np.array([found[name] for name in asked])


def measure(engine: Engine, name: str, work: Path, small: bool) -> list[dict[str, Any]]:
    """Return one row for each body of a corpus."""
    corpus = read_corpus(Path(os.environ["SSI_DATA"]) / name, work, small)
    train, test = arguments(corpus, SPLIT, work)
    model = work / "model"
    # Without the query memory, which needs no synonyms; the stems are those of the engine's analyzer.
    settings = ("analyzer=english", "memory=off")
    if not model.exists():
        ssi("train", *train, *(word for each in settings for word in ("--set", each)), "--model", str(model))
    judged = test[test.index("--tune") + 1]
    texts = test[test.index("--query-file") + 1]
    given = ("--docs", str(corpus.docs), "--qrels", judged, "--query-file", texts)
    file = work / "synonyms.txt"
    found = json.loads(ssi("words", "synonyms", "--model", str(model), *given, "--out", str(file), "--json"))
    fill(engine, corpus, file.read_text(encoding="utf-8").splitlines())
    bodies = {"weights of the model": weighted_fields(load_model(model)), "equal weights": ["title", "text"]}
    rows = []
    for body, fields in bodies.items():
        without, with_rules = (values_of(engine, corpus, fields, analyzer) for analyzer in ("plain", "with_rules"))
        compared = paired_test(with_rules, without)
        rows.append(
            {
                "corpus": name,
                "body": body,
                "test_queries": len(without),
                "changed_queries": int(np.count_nonzero(with_rules != without)),
                "rules": len(found["rules"]),
                "candidates": found["candidates"],
                "cross_fitted_gain": found["held_out"]["difference"],
                "without": float(without.mean()),
                "with": float(with_rules.mean()),
                "gain": compared.difference,
                "interval": compared.interval,
                "p": compared.p_t_test,
            }
        )
        print(rows[-1], flush=True)
    engine.delete_index(INDEX)
    return rows


def main() -> None:
    """Measure the corpora and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", default=CORPORA, choices=JUDGED)
    parser.add_argument("--small", action="store_true", help="A few queries of each corpus")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "synonyms.json")
    parser.add_argument("--work", type=Path, help="Folder that keeps the models (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, start_opensearch(heap="1g") as started:
        folder = given.work or Path(temporary)
        engine = open_engine(f"opensearch:{started.url}")
        rows = [row for name in given.corpora for row in measure(engine, name, folder / name, given.small)]
        version = engine.capabilities().version
        engine.close()
    write_results(given.out, {"engine": f"OpenSearch {version}", "runs": rows})


if __name__ == "__main__":
    main()
