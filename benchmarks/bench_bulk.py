"""What a version's fields cost when documents are sent: documents a second without and with *fetch*.

    python benchmarks/bench_bulk.py DOCS.jsonl.gz --engine SPEC [--engine SPEC ...] [--repeats 3] [--json FILE]

The bulk loop alone: documents and fields are in memory, so the engine and the JSON of the requests are measured, not
the encoding, which is printed beside it (``encode``) and as the whole path from file to index (``file``). The three
kinds take turns, each into a new index. Rates are the best of all turns; costs are the median over the turns of the
ratio within one turn, since the machine may have other work.
V is random with N = 100 dimensions over the corpus's 30,000 most frequent words: what is in V does not change its size.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from indexer.build import index_mapping
from indexer.bulk import BulkItem, BulkWriter
from indexer.encoding import VersionEncoder
from indexer.load import LoadOptions, load_documents
from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.protocol import Engine
from reranker.errors import Unsupported
from reranker.models.ranking_model import Encoder
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.view import TextView
from reranker.text.vocabulary import VocabularyBuilder

N_DIMS, MAX_WORDS = 100, 30_000
ROUTES: dict[str, tuple[str, ...] | None] = {"without": None, "fetch": ("fetch",)}
Sources = list[dict[str, Any]]


def read_sources(path: Path, limit: int) -> tuple[list[str], Sources]:
    """Return ids and documents."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in itertools.islice(lines, limit)]
    return [str(one.pop("id")) for one in documents], documents


def make_encoder(sources: Sources) -> Encoder:
    """Return an encoder of the corpus with a random V."""
    view, analyzer = TextView.parse(["title^2", "text"]), make_analyzer(AnalyzerConfig())
    builder = VocabularyBuilder()
    builder.add(analyzer.tokens(["\n".join(view.texts(source)) for source in sources]))
    vocabulary = builder.build(MAX_WORDS, min_df=2)
    V = np.random.default_rng(0).normal(scale=0.1, size=(len(vocabulary), N_DIMS)).astype(np.float32)
    return Encoder(view, analyzer, vocabulary, "log", V)


def send(engine: Engine, ids: list[str], sources: Iterable[Mapping[str, Any]], properties: dict[str, Any]) -> float:
    """Return documents a second of sending everything into a new index."""
    index = f"bench-{uuid.uuid4().hex[:10]}"
    engine.create_index(index, index_mapping(["title", "text"], properties))
    writer = BulkWriter(engine, index, rng=np.random.default_rng(0))
    items = [BulkItem(WriteOp("index", name, source)) for name, source in zip(ids, sources, strict=True)]
    started = time.perf_counter()
    report = writer.write(items)
    seconds = time.perf_counter() - started
    assert report.indexed == len(ids), report
    engine.delete_index(index)
    return len(ids) / seconds


def send_file(engine: Engine, path: Path, encoder: Encoder | None) -> float:
    """Return documents a second of the whole path: read, encode, send."""
    index = f"bench-{uuid.uuid4().hex[:10]}"
    version = VersionEncoder(encoder) if encoder else None
    engine.create_index(
        index, index_mapping(["title", "text"], version.properties(engine.capabilities()) if version else {})
    )
    with tempfile.TemporaryDirectory() as state:
        report = load_documents(engine, index, path, version, options=LoadOptions(state_path=Path(state)))
    engine.delete_index(index)
    return report.documents_per_s


def measure(
    engine: Engine, path: Path, ids: list[str], sources: Sources, encoder: Encoder, repeats: int
) -> dict[str, Any]:
    """Return the best rate of each kind, and what it costs against none."""
    extra: dict[str, list[dict[str, Any]]] = {}
    properties: dict[str, dict[str, Any]] = {}
    for kind, routes in ROUTES.items():
        if routes is None:
            extra[kind], properties[kind] = [{}] * len(ids), {}
            continue
        try:
            version = VersionEncoder(encoder, routes, capabilities=engine.capabilities())
            properties[kind] = version.properties(engine.capabilities())
        except Unsupported:
            continue
        started = time.perf_counter()
        extra[kind] = version.fields(ids, sources)
        if kind == "fetch":
            encode_rate = len(ids) / (time.perf_counter() - started)
    rates: dict[str, list[float]] = {kind: [] for kind in extra}
    files: dict[str, list[float]] = {"file without": [], "file fetch": []}
    for _ in range(repeats):
        for kind, added in extra.items():
            merged = [{**source, **fields} for source, fields in zip(sources, added, strict=True)]
            rates[kind].append(send(engine, ids, merged, properties[kind]))
        files["file without"].append(send_file(engine, path, None))
        files["file fetch"].append(send_file(engine, path, encoder))
    best = {kind: max(values) for kind, values in {**rates, **files}.items() if values}
    result = {f"{kind} documents/s": round(rate, 1) for kind, rate in best.items()}
    result["encode documents/s"] = round(encode_rate, 1)
    every = {**rates, **files}
    for kind, base in (("fetch", "without"), ("file fetch", "file without")):
        if every.get(kind):
            # Rates of one turn share the machine's other load; those of different turns do not.
            ratios = [plain / rate for plain, rate in zip(every[base], every[kind], strict=True)]
            result[f"{kind} costs"] = round(float(np.median(ratios)), 3)
    return {"engine": engine.capabilities().kind, "version": engine.capabilities().version, **result}


def main() -> None:
    """Measure each engine and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("docs", type=Path)
    parser.add_argument("--engine", action="append", required=True, help="engine spec; may be given several times")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=int, default=10_000_000, help="documents used")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    ids, sources = read_sources(arguments.docs, arguments.limit)
    encoder = make_encoder(sources)
    VersionEncoder(encoder).fields(ids[:300], sources[:300])  # compiles the kernels
    results = []
    for spec in arguments.engine:
        engine = open_engine(spec, EngineSettings(read_timeout_s=120))
        results.append(measure(engine, arguments.docs, ids, sources, encoder, arguments.repeats))
        engine.close()
        print(json.dumps(results[-1], indent=2))
    if arguments.json:
        figures = {"corpus": arguments.docs.name, "documents": len(ids), "dims": N_DIMS, "engines": results}
        write_results(arguments.json, figures)


if __name__ == "__main__":
    main()
