"""What impacts cost in an engine by the number of documents: index, size, and time of ten hits.

    python benchmarks/scale_impacts.py --json FILE [--engine elasticsearch] [--sizes 10000,100000] [--work FOLDER]

Documents and links are those of `scale_data`, two links a document; the model is trained on the links with the
defaults. `ssi index` sends the documents twice, each time into a new index with one shard: ``texts``, and ``impacts``,
with 128 learned words a document. After a refresh, each query (words drawn at random from the text of a document) asks
in turns for ten hits with their titles: ``body before`` asks the index of the texts; ``body`` the index with impacts;
``find`` and ``reorder`` are the body with the clause of impacts in these modes; ``impacts`` is the clause only; ``ids
before`` and ``ids`` are the body without ``_source``, which Elasticsearch 8 and OpenSearch keep impacts in.
``clause`` is the processor time in which the clause is made. Printed and written: p50 in milliseconds, and relative to
``body before``. A row that FILE has already, by the same program, is not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from provenance import program_of, write_results
from scale import ssi
from scale_data import make
from scale_index import ASKED_FROM, deleted, size_of
from served import started

from reranker.config import IMPACT_BOOST
from reranker.engines.bodies import fill_template
from reranker.engines.impacts import with_impacts
from reranker.engines.protocol import Engine
from reranker.formats import read_documents
from reranker.models.model_folder import load_model
from reranker.rerank import default_template
from reranker.rerank.impacts import ServedImpacts
from reranker.text.analyzers import AnalyzerConfig, make_analyzer

N_WARM_UP: Final = 100
LINKS_OF: Final = 2
N_WORDS: Final = (3, 8)
"""Words of a query."""


def queries_of(docs: Path, n: int, n_words: int) -> Iterator[str]:
    """Yield queries of different random words of a document."""
    rng, analyzer = np.random.default_rng(1), make_analyzer(AnalyzerConfig())
    texts = [str(one.source["text"]) for one in itertools.islice(read_documents(docs), ASKED_FROM)]
    while n:
        words = sorted(set(analyzer.tokens([texts[rng.integers(len(texts))]])[0]))
        if len(words) >= n_words:
            n -= 1
            yield " ".join(rng.choice(words, n_words, replace=False))


def timed(engine: Engine, plain: str, served: str, impacts: ServedImpacts, queries: list[str]) -> dict[str, float]:
    """Return p50 of each way to ask, in milliseconds."""
    spent: dict[str, list[float]] = {}
    template, shown = default_template(impacts.model.encoder.view), {"size": 10, "_source": ["title"]}
    for number, text in enumerate(queries):
        if number == N_WARM_UP:
            spent = {}
        body, began = fill_template(template, text), time.process_time()
        clause = impacts.clause(text, IMPACT_BOOST)
        spent.setdefault("clause", []).append(1000 * (time.process_time() - began))
        without = {**body, "_source": False}
        ways: dict[str, tuple[str, Mapping[str, Any]]] = {
            "body before": (plain, body),
            "body": (served, body),
            "ids before": (plain, without),
            "ids": (served, without),
            "find": (served, with_impacts(body, clause, "find")),
            "reorder": (served, with_impacts(body, clause, "reorder")),
            "impacts": (served, {"query": clause}),
        }
        for name, (index, asked) in ways.items():
            start = time.perf_counter()
            engine.search(index, {**shown, **asked})
            spent.setdefault(name, []).append(1000 * (time.perf_counter() - start))
    return {name: round(float(np.median(times)), 3) for name, times in spent.items()}


def trained(folder: Path, n: int) -> tuple[Path, Path]:
    """Return the documents and the model of a size; what is there is not made again."""
    docs, model = folder / "docs.jsonl", folder / "model"
    if not (model / "manifest.json").is_file():
        make(folder, n, LINKS_OF * n, 0)
        links = ("--links", str(folder / "links_train.tsv"), "--valid", str(folder / "links_valid.tsv"))
        spent = ssi("train", "--docs", str(docs), *links, "--model", str(model))
        print(f"{n:,} documents: trained in {spent['seconds']:.0f} s", flush=True)
    return docs, model


def rows_of(engine: Engine, docs: Path, model: Path, n_queries: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of words of a query; the indexes are deleted."""
    indexes = {"texts": "scale-texts", "impacts": "scale-impacts"}
    with_model = ["--model", str(model), "--routes", "impacts"]
    try:
        sent: dict[str, Any] = {}
        for way, more in (("texts", []), ("impacts", with_model)):
            deleted(engine, indexes[way])
            spent = ssi("index", str(docs), "--engine", engine.spec, "--index", indexes[way], "--restart", *more)
            engine.refresh(indexes[way])
            sent |= {f"{way}_s": round(spent["seconds"], 1), f"{way}_bytes": size_of(engine, indexes[way])}
        impacts = ServedImpacts.of_index(engine, indexes["impacts"], load_model(model))
        for n_words in N_WORDS:
            queries = list(queries_of(docs, N_WARM_UP + n_queries, n_words))
            p50 = timed(engine, indexes["texts"], indexes["impacts"], impacts, queries)
            ratios = {name: round(time_of / p50["body before"], 2) for name, time_of in p50.items()}
            yield {"words": n_words, **sent, "p50_ms": p50, "to body before": ratios}
    finally:
        for index in indexes.values():
            deleted(engine, index)


def main() -> None:
    """Measure the sizes that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--engine", choices=("elasticsearch", "opensearch"), default="elasticsearch")
    parser.add_argument("--sizes", default="10000,100000", metavar="LIST", help="documents")
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep documents and models there")
    options = parser.parse_args()
    kept: dict[str, Any] = {"rows": []}
    if options.json.is_file():
        kept |= json.loads(options.json.read_text(encoding="utf-8"))
    program = program_of(Path(__file__))
    done = {(row["engine"], row["documents"]) for row in kept["rows"] if row["version"] == program}
    missing = [n for n in map(int, options.sizes.split(",")) if (options.engine, n) not in done]
    with contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = {n: trained(work / f"documents-{n}", n) for n in missing}
        engine = stack.enter_context(started(options.engine))
        able = engine.capabilities()
        named = {"engine": able.kind, "engine version": able.version, "version": program}
        for n in missing:
            rows = [{**named, "documents": n, **row} for row in rows_of(engine, *made[n], options.queries)]
            kept["rows"] = [row for row in kept["rows"] if (row["engine"], row["documents"]) != (able.kind, n)] + rows
            for row in rows:
                print(json.dumps(row), flush=True)
            write_results(options.json, kept)


if __name__ == "__main__":
    main()
