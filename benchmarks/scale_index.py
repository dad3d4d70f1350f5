"""What a million documents cost in an engine: sending, bytes, going on after a kill, and searching (see `scale`).

    python benchmarks/scale_index.py --engine elasticsearch:http://localhost:9200 --sizes 10000,100000,1000000
                                     [--window 200] [--calls 200] [--work FOLDER] [--json FILE]

Documents are those of `scale_data`, the model is random over all their words, its vectors are made ahead by
`ssi vectorize`. For each engine and size `ssi index` sends the documents three times, each into a new index: ``plain``;
``fetch``, with the fields of that route; and ``resumed``, the same with a local store, killed (SIGKILL) when three
fifths of the time of ``fetch`` have passed and started again. Its time is that of both runs, and it must end with all
documents, else status 1. Then `bench_search`'s turns of ``bare``, ``beside`` and ``fetch`` at the window. Bytes are the
index's, after a refresh. Laws are those of `scale`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench_search import WARM_UP, measure, queries_of, ways_of
from bench_vectorize import save_random_model
from provenance import write_results
from scale import ROOT, law, ssi
from scale_data import World, write_documents

from reranker.engines import open_engine
from reranker.engines.protocol import Engine, ReportsDisk
from reranker.formats import read_documents
from reranker.models.model_folder import load_model

KILLED_AT = 0.6
ASKED_FROM = 20_000
"""Documents that the words of queries are drawn from."""


@contextlib.contextmanager
def made(folder: Path, n: int) -> Iterator[tuple[Path, Path, list[str]]]:
    """Yield the document file, the model, and what `ssi index` is told of both; what is there is not made again."""
    docs, model, vectors = folder / "docs.jsonl", folder / "model", folder / "vectors.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    if not vectors.is_file():
        write_documents(World(n, 0), folder)
        save_random_model(docs, model, 100)
        spent = ssi("vectorize", "--docs", str(docs), "--model", str(model), "--out", str(vectors))
        print(f"{n:,} documents: vectors in {spent['seconds']:.0f} s", flush=True)
    yield docs, model, ["--model", str(model), "--vectors", str(vectors)]


def sent(engine: Engine, spec: str, index: str, docs: Path, options: list[str]) -> dict[str, Any]:
    """Return what `ssi index` costs: seconds, and the line at which it went on."""
    spent = ssi("index", str(docs), "--engine", spec, "--index", index, *options)
    engine.refresh(index)
    return {"seconds": spent["seconds"], "resumed_at": spent["resumed_at_line"]}


def killed(spec: str, index: str, docs: Path, options: list[str], after_s: float) -> None:
    """Start `ssi index` and kill it."""
    command = [sys.executable, "-m", "reranker", "index", str(docs), "--engine", spec, "--index", index, *options]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        process.wait(after_s)
        raise SystemExit(f"`ssi index` into {index} ended before it could be killed, with status {process.returncode}")
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def size_of(engine: Engine, index: str) -> float:
    """Return the bytes of an index; NaN where the engine does not tell."""
    return engine.disk_usage(index).index_bytes if isinstance(engine, ReportsDisk) else math.nan


def deleted(engine: Engine, alias: str) -> None:
    """Delete what stands behind a name, if anything does."""
    for index in engine.index_names(alias):
        engine.delete_index(index)


def run(spec: str, n: int, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of an engine and a size; the indexes are deleted."""
    engine, row = open_engine(spec), dict[str, Any](documents=n)
    indexes = {way: f"scale-{n}-{way}" for way in ("plain", "fetch", "resumed")}
    store = work / f"store-{engine.capabilities().kind}"
    try:
        with made(work, n) as (docs, model, with_model):
            for way, told in (("plain", []), ("fetch", with_model)):
                spent = sent(engine, spec, indexes[way], docs, told)
                row |= {f"{way}_s": spent["seconds"], f"{way} documents/s": n / spent["seconds"]}
                row[f"{way} bytes a document"] = size_of(engine, indexes[way]) / n
            row["fetch to plain"] = row["fetch_s"] / row["plain_s"]
            after_s = KILLED_AT * row["fetch_s"]
            with_store = [*with_model, "--write-store", str(store)]
            killed(spec, indexes["resumed"], docs, with_store, after_s)
            spent = sent(engine, spec, indexes["resumed"], docs, with_store)
            row |= {"resumed_s": after_s + spent["seconds"], "resumed_at": spent["resumed_at"]}
            row["documents after the kill"] = engine.count(indexes["resumed"])
            deleted(engine, indexes["resumed"])
            row["search"] = searched(engine, indexes, docs, model, store, options)
            return row
    finally:
        for index in indexes.values():
            deleted(engine, index)
        engine.close()


def searched(
    engine: Engine, indexes: Mapping[str, str], docs: Path, model: Path, store: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the times of searches, see `bench_search`."""
    sources = {one.id: dict(one.source) for one in itertools.islice(read_documents(docs), ASKED_FROM)}
    queries = list(queries_of(sources, options.calls + WARM_UP))
    ways = ways_of(engine, indexes["plain"], indexes["fetch"], load_model(model), store, options.window)
    return measure(ways, queries)


def main() -> int:
    """Measure each engine and size; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", required=True, help="engine spec; may be given several times")
    parser.add_argument("--sizes", default="10000,100000,1000000", metavar="LIST", help="documents")
    parser.add_argument("--window", type=int, default=200)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep documents, models and vectors there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    figures: dict[str, Any] = {"window": options.window, "dims": 100, "engines": {}}
    whole = True
    with tempfile.TemporaryDirectory() as scratch:
        for spec, size in itertools.product(options.engine, options.sizes.split(",")):
            n, began = int(size), time.monotonic()
            of = figures["engines"].setdefault(spec.partition(":")[0], {"rows": [], "laws": {}})
            of["rows"].append(run(spec, n, (options.work or Path(scratch)) / f"documents-{n}", options))
            whole &= of["rows"][-1]["documents after the kill"] == n
            print(f"{spec}: {json.dumps(of['rows'][-1])} in {time.monotonic() - began:.0f} s", flush=True)
            if len(of["rows"]) > 2:
                of["laws"] = {name: law(of["rows"], name) for name in ("plain_s", "fetch_s", "resumed_s")}
            if options.json is not None:
                write_results(options.json, figures)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
