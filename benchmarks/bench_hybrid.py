"""What a first stage by vectors adds: recall of linked documents among 100 candidates, against BM25's, on cppdocs.

    python benchmarks/bench_hybrid.py DATA/cppdocs [--model DIR] [--engine SPEC]... [--topics 600] [--json FILE]

A query is K random words of a document, the answers are the documents it links to by test links, which no training
has seen; the document itself and those it links to by training links are taken out of every list. Lists of the same
index, engine and conditions:

- ``bm25``: the engine's own first 100 (multi_match over title and text, the model's field weights)
- ``near``: the 100 documents of nearest vectors (HNSW)
- ``half``: both lists in turns, each document once, the first 100: as many candidates as BM25 has
- ``ranked``: the union of both as the model alone orders it (alpha 1), its first 100
- ``union``: all of both, up to 200; beside it BM25's first 200

Printed: mean recall, the difference from BM25 of the same length and the p of a paired t-test, and how much of the
exact list of nearest vectors the graph finds. --model takes a model trained on ``links_train.tsv.gz`` (``ssi train``);
without it one is trained first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from hybrid_index import Sources, filled_index

from reranker.baselines.comparison import EncodedCorpus, read_corpus
from reranker.deadline import Deadline
from reranker.engines import open_engine
from reranker.engines.protocol import Engine
from reranker.evaluation import paired_test
from reranker.formats import read_documents
from reranker.models.model_folder import load_model
from reranker.models.ranking_model import RankingModel
from reranker.rerank import Calibration, Reranker, RerankSettings, default_template
from reranker.rerank.calibrate import Topic, sample, topics_of_links
from reranker.rerank.candidates import encode_query
from reranker.rerank.ranking import Request
from reranker.rerank.search import NearestDocuments
from reranker.tables import read_links
from reranker.training import DocumentSource, from_links, train_model

DEPTH = 100
N_WORDS = (2, 3, 5, 10)


@dataclass
class Recalls:
    """Recall of each query by list, the shares of exact neighbours found, and milliseconds."""

    of: dict[str, list[float]] = field(default_factory=dict)
    exact: list[float] = field(default_factory=list)
    knn_ms: list[float] = field(default_factory=list)

    def add(self, name: str, ids: Sequence[str], topic: Topic) -> None:
        """Note the share of a topic's answers that a list holds."""
        found = sum(one in topic.grades for one in ids)
        self.of.setdefault(name, []).append(found / len(topic.grades))


def known_links(folder: Path) -> dict[str, set[str]]:
    """Return document → the documents it links to by training or validation links."""
    known: dict[str, set[str]] = {}
    for part in ("train", "valid"):
        for link in read_links(folder / f"links_{part}.tsv.gz"):
            known.setdefault(link.source, set()).add(link.target)
    return known


def kept(ids: Sequence[str], excluded: set[str], depth: int) -> list[str]:
    """Return the first ``depth`` ids that are not excluded, each once."""
    return [one for one in dict.fromkeys(ids) if one not in excluded][:depth]


def measure(
    engine: Engine,
    index: str,
    model: RankingModel,
    corpus: EncodedCorpus,
    topics: Sequence[Topic],
    known: Mapping[str, set[str]],
) -> Recalls:
    """Return the recalls of all lists over the topics."""
    found = Recalls()
    template = default_template(model.encoder.view)
    settings = RerankSettings(window=DEPTH, deadline_ms=None, alpha=1.0, retrieve="hybrid", neighbours=DEPTH)
    reranker = Reranker(engine, index, model, route="fetch", calibration=Calibration(), settings=settings)
    nearest = NearestDocuments(engine, index, model.encoder_id, 2 * DEPTH)
    for topic in topics:
        excluded = set(topic.excluded) | set(chain.from_iterable(known.get(one, ()) for one in topic.excluded))
        excluded -= topic.grades.keys()
        query = encode_query(model, topic.query)
        body = {**json.loads(json.dumps(template).replace("{{query}}", topic.query)), "size": 4 * DEPTH}
        bm25 = [hit.id for hit in engine.search(index, {**body, "_source": False}).hits]
        request = Request(topic.query, body, template, 0, DEPTH, "bench", Deadline())
        started = time.perf_counter()
        near = [hit.id for hit in nearest.found(request, query)]
        found.knn_ms.append((time.perf_counter() - started) * 1000)
        exact = np.argsort(-(corpus.vectors @ query.vectors.vector), kind="stable")[: len(near)]
        found.exact.append(len({corpus.ids[row] for row in exact.tolist()} & set(near)) / max(len(near), 1))
        turns = [one for one in chain.from_iterable(zip_longest(bm25, near)) if one is not None]
        found.add("bm25", kept(bm25, excluded, DEPTH), topic)
        found.add("bm25 200", kept(bm25, excluded, 2 * DEPTH), topic)
        found.add("near", kept(near, excluded, DEPTH), topic)
        found.add("half", kept(turns, excluded, DEPTH), topic)
        both = [*kept(bm25, excluded, DEPTH), *kept(near, excluded, DEPTH)]
        found.add("union", list(dict.fromkeys(both)), topic)
        page = reranker.search(topic.query, {**template, "_source": False}, size=2 * DEPTH)
        found.add("ranked", kept([hit.id for hit in page.hits], excluded, DEPTH), topic)
    return found


def figures_of(found: Recalls) -> dict[str, Any]:
    """Return means and tests against BM25 of the same length."""
    result: dict[str, Any] = {}
    for name, values in found.of.items():
        rival = "bm25 200" if name == "union" else "bm25"
        test = paired_test(np.array(values), np.array(found.of[rival]))
        result[name] = {
            "recall": round(float(np.mean(values)), 4),
            "against": rival,
            "difference": round(test.difference, 4),
            "standard_error": round(test.standard_error, 4),
            "p": test.p_t_test if name != rival else None,
        }
    result["queries"] = len(found.exact)
    result["exact neighbours found"] = round(float(np.mean(found.exact)), 4)
    result["knn_p50_ms"] = round(float(np.median(found.knn_ms)), 2)
    return result


def trained(folder: Path, path: Path | None) -> RankingModel:
    """Return the model of --model, or a new one of the training links."""
    if path is not None:
        return load_model(path)
    links = from_links(list(read_links(folder / "links_train.tsv.gz")))
    valid = from_links(list(read_links(folder / "links_valid.tsv.gz")))
    return train_model(DocumentSource(folder / "docs_en.jsonl.gz"), links, valid=valid)[0]


def main() -> None:
    """Run all engines and print one table each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, help="model trained on links_train.tsv.gz")
    parser.add_argument("--engine", action="append", help="engine spec; may be given several times")
    parser.add_argument("--topics", type=int, default=600, help="queries of each length")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "hybrid.json")
    options = parser.parse_args()
    docs = options.folder / "docs_en.jsonl.gz"
    sources: Sources = {document.id: dict(document.source) for document in read_documents(docs)}
    model = trained(options.folder, options.model)
    corpus, known = read_corpus(docs, model), known_links(options.folder)
    result: dict[str, Any] = {
        "documents": len(sources),
        "dims": model.encoder.n_dims,
        "shards": options.shards,
        "depth": DEPTH,
        "norm_bound": model.encoder.norm_bound,
        "longest_vector": round(float(np.linalg.norm(corpus.vectors, axis=1).max()), 4),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "engines": {},
    }
    specs = options.engine or [
        f"{kind}:{os.environ[f'SSI_TEST_{kind.upper()}_URL']}"
        for kind in ("elasticsearch", "opensearch")
        if f"SSI_TEST_{kind.upper()}_URL" in os.environ
    ]
    for spec in specs:
        engine = open_engine(spec)
        kind = engine.capabilities().kind
        with filled_index(engine, sources, model, ("fetch", "first-stage"), None, options.shards) as index:
            for n_words in N_WORDS:
                topics = topics_of_links(
                    options.folder / "links_test.tsv.gz", docs, model.encoder, f"keywords:{n_words}", 0
                )
                found = measure(engine, index, model, corpus, sample(topics, options.topics, 0), known)
                figures = figures_of(found)
                result["engines"].setdefault(kind, {})[n_words] = figures
                show(kind, n_words, len(found.exact), figures)
                # After every length, so that a run cut short leaves what it has.
                options.json.parent.mkdir(exist_ok=True)
                write_results(options.json, result)
        engine.close()


def show(kind: str, n_words: int, n_topics: int, figures: Mapping[str, Any]) -> None:
    """Print the figures of one engine and length of query."""
    print(
        f"\n{kind}, {n_words} words, {n_topics:,} queries; nearest vectors found: "
        f"{figures['exact neighbours found']:.1%}, p50 {figures['knn_p50_ms']} ms"
    )
    for name, row in figures.items():
        if isinstance(row, dict):
            p = "" if row["p"] is None else f"{row['difference']:+.4f} ± {row['standard_error']:.4f}  p {row['p']:.2g}"
            print(f"  {name:9} {row['recall']:.4f}  {p}", flush=True)


if __name__ == "__main__":
    main()
