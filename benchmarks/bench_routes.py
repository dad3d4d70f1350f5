"""Time of a page of ten by each route at windows of 100, 1,000 and 10,000, each engine, in one run in turns.

    python benchmarks/bench_routes.py [--engine SPEC]... [--docs FILE] [--shards 1] [--calls 20] [--json FILE]

The same index serves all: ``bare`` is the engine's own page of ten, ``bare window`` its answer of the whole window
without ``_source``; then `Reranker.search` by *beside* and *fetch*. Queries are three words, of which at least one is
frequent, so that windows fill. Printed: p50 and p95 in milliseconds, and which route is fastest at each window. The
model is random: latency does not depend on what it has learned.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from bench_search import BODY, default_engines, random_model
from routes_index import Sources, filled_index

from reranker.engines import open_engine
from reranker.engines.bodies import fill_template
from reranker.engines.protocol import Engine
from reranker.formats import read_documents
from reranker.models.ranking_model import RankingModel
from reranker.rerank import Reranker, RerankSettings
from reranker.store import VectorStore

WINDOWS = (100, 1_000, 10_000)
WARM_UP = 4
N_FREQUENT = 60
Ways = dict[str, Callable[[str], None]]


def queries_of(model: RankingModel, n: int) -> Iterator[str]:
    """Yield queries of one of the most frequent words and two of the next thousand."""
    rng = np.random.default_rng(1)
    words = model.query_vocabulary.words
    for _ in range(n):
        rare = rng.choice(min(1_000, len(words) - N_FREQUENT), 2, replace=False) + N_FREQUENT
        yield " ".join([words[int(rng.integers(N_FREQUENT))], *(words[place] for place in rare.tolist())])


def ways_of(engine: Engine, index: str, model: RankingModel, store: VectorStore, window: int) -> Ways:
    """Return name → a function of the query, one a way to ask for its page."""

    def bare(size: int) -> Callable[[str], None]:
        def ask(query: str) -> None:
            engine.search(index, {**fill_template(BODY, query), "size": size, "_source": size == 10 and ["title"]})

        return ask

    def reranked(route: Any) -> Callable[[str], None]:
        settings = RerankSettings(window=window, deadline_ms=None, alpha=0.5)
        beside = store if route == "beside" else None
        reranker = Reranker(engine, index, model, route=route, store=beside, settings=settings)

        def ask(query: str) -> None:
            page = reranker.search(query, {**BODY, "_source": ["title"]})
            assert page.reranked, page.reason

        return ask

    return {"bare": bare(10), "bare window": bare(window), "beside": reranked("beside"), "fetch": reranked("fetch")}


def measure(ways: Ways, queries: list[str]) -> dict[str, dict[str, float]]:
    """Return p50 and p95 of each way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    gc.collect()
    gc.freeze()
    for number, query in enumerate(queries):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            started = time.perf_counter()
            ways[name](query)
            if number >= WARM_UP:
                times[name].append((time.perf_counter() - started) * 1000)
    return {
        name: {"p50_ms": round(float(np.percentile(v, 50)), 2), "p95_ms": round(float(np.percentile(v, 95)), 2)}
        for name, v in times.items()
    }


def run(
    spec: str,
    sources: Sources,
    model: RankingModel,
    options: argparse.Namespace,
    save: Callable[[dict[str, Any]], None],
) -> None:
    """Measure one engine and save its figures after every window; what was made in it is removed."""
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(f"tantivy:{folder}/index" if spec == "tantivy:" else spec)
        path = Path(folder) / "store"
        figures: dict[str, Any] = {}
        try:
            with filled_index(engine, sources, model, ("fetch",), path, options.shards) as index:
                store = VectorStore.open(path, model.encoder_id)
                for window in WINDOWS:
                    ways = ways_of(engine, index, model, store, window)
                    figures[str(window)] = measure(ways, list(queries_of(model, options.calls + WARM_UP)))
                    save(figures)
                    show(spec.partition(":")[0], window, figures[str(window)])
        finally:
            engine.close()


def show(kind: str, window: int, figures: dict[str, dict[str, float]]) -> None:
    """Print the figures of one engine and window."""
    routes = {name: row for name, row in figures.items() if not name.startswith("bare")}
    fastest = min(routes, key=lambda name: routes[name]["p50_ms"])
    row = ", ".join(f"{name} {one['p50_ms']:.1f} ({one['p95_ms']:.1f})" for name, one in figures.items())
    print(f"{kind}, window {window:,}: {row}; fastest: {fastest}", flush=True)


def main() -> None:
    """Run all engines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--engine", action="append", help="engine spec; may be given several times")
    parser.add_argument("--docs", type=Path, default=data / "msrd_movies" / "docs.jsonl.gz")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "routes.json")
    options = parser.parse_args()
    sources: Sources = {document.id: dict(document.source) for document in read_documents(options.docs)}
    model = random_model(sources)
    result: dict[str, Any] = {
        "documents": len(sources),
        "dims": model.encoder.n_dims,
        "shards": options.shards,
        "calls": options.calls,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "engines": {},
    }
    options.json.parent.mkdir(exist_ok=True)
    for spec in options.engine or default_engines():

        def save(figures: dict[str, Any], kind: str = spec.partition(":")[0]) -> None:
            result["engines"][kind] = figures
            write_results(options.json, result)

        run(spec, sources, model, options, save)


if __name__ == "__main__":
    main()
