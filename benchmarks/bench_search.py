"""Time of a reranked search against the engine's own request, each engine, in one run with alternating order.

    python benchmarks/bench_search.py [--engine SPEC]... [--docs FILE] [--window 100] [--calls 300] [--json FILE]

The same documents are indexed twice: as they are, for the bare requests, and with the fields of route *fetch*. Every
query (three words of a document's text) is asked in four ways, in an order that turns from query to query:

- ``bare``: the engine's answer of the whole window, with ``_source``, as it would be shown
- ``bare 10``: its answer of ten hits
- ``beside`` and ``fetch``: `Reranker.search`, ten hits shown out of the same window

Figures are milliseconds, p50 and p99, and their ratio to ``bare``. Target: both routes at most 1.25 times ``bare``.
The model is random: latency does not depend on what it has learned.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from reranker.engines import open_engine
from reranker.engines.bodies import fill_template
from reranker.engines.protocol import Engine, WriteOp
from reranker.engines.vectors import FieldWriter, version_fields
from reranker.formats import read_documents
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.rerank import Reranker, RerankSettings
from reranker.store import StoreWriter, VectorStore
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.view import TextView
from reranker.text.vocabulary import VocabularyBuilder

N_DIMS, BATCH, WARM_UP = 100, 500, 30
BODY: dict[str, Any] = {
    "query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"], "type": "most_fields"}}
}
TEXTS = {"title": {"type": "text"}, "text": {"type": "text"}}
Sources = dict[str, dict[str, Any]]
Laps = Mapping[str, float]
Ways = dict[str, Callable[[str], Laps]]


def random_model(sources: Sources) -> RankingModel:
    """Return a model of the documents' 30,000 most frequent words with small random U and V."""
    analyzer, view = make_analyzer(AnalyzerConfig()), TextView.parse(["title^2", "text"])
    builder = VocabularyBuilder()
    for source in sources.values():
        builder.add(analyzer.tokens(list(view.texts(source))))
    vocabulary = builder.build(30_000)
    U, V = np.random.default_rng(0).normal(scale=0.05, size=(2, len(vocabulary), N_DIMS)).astype(np.float32)
    return RankingModel(
        encoder=Encoder(view, analyzer, vocabulary, "log", np.ascontiguousarray(V)),
        query_vocabulary=vocabulary,
        U=np.ascontiguousarray(U),
        identity=1.0,
        training={},
        metrics={},
    )


def fill(engine: Engine, plain: str, full: str, sources: Sources, model: RankingModel, store: Path) -> None:
    """Index the documents as they are and with the fields of a version, and write the store."""
    encoder = model.encoder
    fields = version_fields(model.encoder_id, engine.capabilities(), ("fetch",))
    engine.create_index(plain, {"properties": TEXTS})
    engine.create_index(full, {"properties": {**TEXTS, **fields}})
    with_ids = engine.capabilities().doc_value_hits
    writer = FieldWriter(model.encoder_id, encoder.quantisation, with_ids=with_ids)
    names = list(sources)
    with StoreWriter(store, model.encoder_id, encoder.n_dims, quantisation=encoder.quantisation) as rows:
        for start in range(0, len(names), BATCH):
            part = names[start : start + BATCH]
            encoded = encoder.encode([sources[name] for name in part], part)
            values = writer.fields(part, encoded.vectors, encoded.rows, encoded.source_hashes, encoded.has_text)
            rows.add(part, encoded.vectors, encoded.rows, encoded.source_hashes)
            engine.bulk(plain, [WriteOp("index", name, sources[name]) for name in part])
            engine.bulk(full, [WriteOp("index", n, {**sources[n], **v}) for n, v in zip(part, values, strict=True)])
    for index in (plain, full):
        engine.refresh(index)


def queries_of(sources: Sources, n: int) -> Iterator[str]:
    """Yield queries of three random words of random documents."""
    rng = np.random.default_rng(1)
    analyzer, names = make_analyzer(AnalyzerConfig()), list(sources)
    while n:
        words = sorted(set(analyzer.tokens([str(sources[names[rng.integers(len(names))]].get("text", ""))])[0]))
        if len(words) > 3:
            n -= 1
            yield " ".join(rng.choice(words, 3, replace=False))


def ways_of(engine: Engine, plain: str, full: str, model: RankingModel, store: Path, window: int) -> Ways:
    """Return name → a function of the query, one a way to ask it."""
    settings = RerankSettings(window=window, deadline_ms=None, alpha=0.5)
    opened = VectorStore.open(store, model.encoder_id)
    beside = Reranker(engine, full, model, route="beside", store=opened, settings=settings)
    fetch = Reranker(engine, full, model, route="fetch", settings=settings)

    # Each way lets go of its answer before it returns: freeing a hundred hits is part of its own time.
    def bare(size: int) -> Callable[[str], Laps]:
        def ask(query: str) -> Laps:
            engine.search(plain, {**fill_template(BODY, query), "size": size})
            return {}

        return ask

    def reranked(reranker: Reranker) -> Callable[[str], Laps]:
        def ask(query: str) -> Laps:
            page = reranker.search(query, BODY)
            assert page.reranked, page.reason
            return page.timings_ms

        return ask

    return {"bare": bare(window), "bare 10": bare(10), "beside": reranked(beside), "fetch": reranked(fetch)}


def measure(ways: Ways, queries: list[str]) -> dict[str, Any]:
    """Return p50 and p99 of each way, the ratio to ``bare``, and where the reranked searches spent their time."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    laps: dict[str, dict[str, list[float]]] = {"beside": {}, "fetch": {}}
    names = list(ways)
    # The model and the documents, which no server would hold as Python objects, are kept from the garbage collector.
    gc.collect()
    gc.freeze()
    for number, query in enumerate(queries):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            started = time.perf_counter()
            lapped = ways[name](query)
            elapsed = (time.perf_counter() - started) * 1000
            if number >= WARM_UP:
                times[name].append(elapsed)
                for lap, value in lapped.items():
                    laps[name].setdefault(lap, []).append(value)
    figures: dict[str, Any] = {}
    for name, values in times.items():
        p50, p99 = np.percentile(values, [50, 99])
        figures[name] = {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}
        figures[name]["p50_to_bare"] = round(p50 / np.percentile(times["bare"], 50), 2)
        figures[name]["p99_to_bare"] = round(p99 / np.percentile(times["bare"], 99), 2)
    for name, parts in laps.items():
        figures[name]["p50_laps_ms"] = {lap: round(float(np.median(values)), 2) for lap, values in parts.items()}
    return figures


def run(spec: str, sources: Sources, model: RankingModel, window: int, n_calls: int) -> dict[str, Any]:
    """Return the figures of one engine; what was made in it is removed."""
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(f"tantivy:{folder}/index" if spec == "tantivy:" else spec)
        stem = f"bench-{uuid.uuid4().hex[:8]}"
        plain, full, store = f"{stem}-plain", f"{stem}-full", Path(folder) / "store"
        try:
            fill(engine, plain, full, sources, model, store)
            ways = ways_of(engine, plain, full, model, store, window)
            return measure(ways, list(queries_of(sources, n_calls + WARM_UP)))
        finally:
            for index in (plain, full):
                if engine.index_names(index):
                    engine.delete_index(index)
            engine.close()


def default_engines() -> list[str]:
    """Return the embedded engine and those named in the environment."""
    found = ["tantivy:"]
    for kind in ("elasticsearch", "opensearch"):
        if url := os.environ.get(f"SSI_TEST_{kind.upper()}_URL"):
            found.append(f"{kind}:{url}")
    return found


def main() -> None:
    """Run all engines and print one table each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    data = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--engine", action="append", help="engine spec; may be given several times")
    parser.add_argument("--docs", type=Path, default=data / "cppdocs" / "docs_en.jsonl.gz")
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "search.json")
    options = parser.parse_args()
    sources: Sources = {document.id: dict(document.source) for document in read_documents(options.docs)}
    model = random_model(sources)
    result: dict[str, Any] = {
        "documents": len(sources),
        "window": options.window,
        "calls": options.calls,
        "dims": N_DIMS,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "engines": {},
    }
    for spec in options.engine or default_engines():
        figures = run(spec, sources, model, options.window, options.calls)
        result["engines"][spec.partition(":")[0]] = figures
        print(f"\n{spec.partition(':')[0]}, {len(sources):,} documents, window {options.window}")
        print(f"{'':10}{'p50 ms':>9}{'p99 ms':>9}{'p50/bare':>10}{'p99/bare':>10}")
        for name, row in figures.items():
            print(
                f"{name:10}{row['p50_ms']:9.2f}{row['p99_ms']:9.2f}{row['p50_to_bare']:10.2f}{row['p99_to_bare']:10.2f}"
                f"  {row.get('p50_laps_ms', '')}"
            )
    options.json.parent.mkdir(exist_ok=True)
    write_results(options.json, result)


if __name__ == "__main__":
    main()
