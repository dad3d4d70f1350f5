"""Queries without a text encoder over documents' vectors, beside the encoder and rivals, on judged corpora of SSI_DATA.

    python benchmarks/vectors.py --minilm FOLDER --json benchmarks/results/vectors.json
    python benchmarks/vectors.py --corpora cranfield,cisi
    python benchmarks/vectors.py --size 100000

The documents' vectors are those of all-MiniLM-L6-v2 in ``SSI_DATA/vectors``. Each row is one corpus and split (see
`generalisation_data`), and has on the test queries:

- ``words``: BM25 with usual settings, ``vectors``: the same with the documents' vectors, as `ssi train --vector-field`
  writes it without labels;
- ``vectors before``, of splits by documents: the same, learned from the documents without those that are tested;
- ``words, labels`` and ``vectors, labels``: `ssi train` with the training queries, without and with the vectors;
- ``joint-bm25``, ``lambdamart``, ``minilm`` and ``minilm+bm25``: rivals of `generalisation_peers`, tuned on training
  queries. The last two ask the encoder for the vector of every query.

A row that is in FILE is not measured again. ``--linked NAME=FILE`` measures a linked corpus whose documents have the
vectors in FILE (written by `ssi embed`): `ssi train` on its links, with and without the vectors, asked with whole
pages, 5 and 10 of their words. ``--size N`` measures what learning takes for N documents of random words
and vectors, and the time of a query's vector. ``--latency`` measures p50 of searches with and without the vectors of
nfcorpus's documents (384 numbers, of which 128 are stored), in turns, at a window of 100 on each route of each engine
(SSI_TEST_ELASTICSEARCH_URL, SSI_TEST_OPENSEARCH_URL, and the embedded one), and what the encoder takes for a query.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from generalisation_data import Corpus, Split, pairs, read_corpus, together
from generalisation_peers import Rivals
from provenance import write_results

from reranker.baselines.comparison import experiment_of
from reranker.baselines.comparison import read_corpus as encoded_by
from reranker.evaluation import draw_tuples, evaluate, paired_test, qrels_task
from reranker.models.ranking_model import RankingModel
from reranker.text.view import TextView
from reranker.training import (
    DocumentSource,
    TrainConfig,
    from_judgements,
    from_links,
    train_model,
    train_unlabelled,
)
from reranker.training.config import VECTOR_DIMS
from reranker.training.given_vectors import GivenVectors, field_of
from reranker.training.reading import Listener, counted, read_corpus_once, vocabulary_of
from reranker.training.word_encoder import encoder_problem

DATA = Path(os.environ.get("SSI_DATA", "../shared/data"))
ROWS = (
    ("nfcorpus", "unseen"),
    ("nfcorpus", "whole"),
    ("wikimedia_discernatron", "whole"),
    ("esci_sample", "whole"),
    ("cranfield", "whole"),
    ("cisi", "whole"),
)
RIVALS = ("joint-bm25", "minilm", "minilm+bm25", "lambdamart")
MEASURES = ("AP", "nDCG@10")
VIEW = TextView.parse(["title", "text"])
WITH_VECTOR = replace(VIEW, vector="vector")
N_KEPT = VECTOR_DIMS
Values = dict[str, Any]


def with_vectors(corpus: Corpus, folder: Path, kept: Callable[[str], bool] = lambda _: True) -> Path:
    """Write the documents with their vectors, of those that are kept, and return the file."""
    vectors = np.load(DATA / "vectors" / f"{corpus.name}.npy")
    path = folder / f"{corpus.name}.jsonl"
    with corpus.docs.open(encoding="utf-8") as lines, path.open("w", encoding="utf-8") as file:
        for line, vector in zip(lines, vectors, strict=True):
            document = json.loads(line)
            if kept(str(document["id"])):
                numbers = [round(float(value), 5) for value in vector]
                file.write(json.dumps({**document, "vector": numbers}) + "\n")
    return path


def values_of(model: RankingModel, path: Path, corpus: Corpus, split: Split) -> Values:
    """Return the value of each test query by measure."""
    encoded = encoded_by(path, model)
    task = qrels_task(split.test, list(corpus.queries), set(encoded.ids) & set(split.pool), ())
    scorer = experiment_of(model, encoded, task, corpus.queries).model
    return dict(evaluate(task, scorer, draw_tuples(task, np.random.default_rng(0), 0), MEASURES).values)


def own_systems(corpus: Corpus, name: str, folder: Path) -> tuple[dict[str, Values], dict[str, Any]]:
    """Return the values of our models, and notes about them."""
    split, path = corpus.splits[name], with_vectors(corpus, folder)
    config, notes = TrainConfig(), dict[str, Any]()
    started = time.perf_counter()
    model, report = train_unlabelled(DocumentSource(path, WITH_VECTOR), config)
    notes["vectors"] = {"seconds": round(time.perf_counter() - started, 1), "notes": report.notes}
    assert model.word_encoder is not None
    words = replace(model, word_encoder=replace(model.word_encoder, weight=0.0))
    found = {"words": values_of(words, path, corpus, split), "vectors": values_of(model, path, corpus, split)}
    if len(split.pool) < len(corpus.documents):
        (folder / "before").mkdir()
        before = with_vectors(corpus, folder / "before", lambda document: document not in split.pool)
        earlier, _ = train_unlabelled(DocumentSource(before, WITH_VECTOR), config)
        found["vectors before"] = values_of(earlier, path, corpus, split)
    evidence = from_judgements(split.learn, corpus.queries)
    valid = from_judgements(split.stop, corpus.queries) if split.stop else None
    for title, view in (("words, labels", VIEW), ("vectors, labels", WITH_VECTOR)):
        started = time.perf_counter()
        model, trained = train_model(DocumentSource(path, view), evidence, config, valid=valid)
        notes[title] = {
            "seconds": round(time.perf_counter() - started, 1),
            "form": trained.form.form.name,
            "sentence": trained.form.sentence,
        }
        found[title] = values_of(model, path, corpus, split)
    return found, notes


def rival_values(
    corpus: Corpus, name: str, folder: Path, minilm: Path | None, asked: Sequence[str]
) -> dict[str, Values]:
    """Return the values of rivals; the encoder's only with its weights."""
    cache = folder / "vectors"
    cache.mkdir()
    vectors = np.load(DATA / "vectors" / f"{corpus.name}.npy").astype(np.float32)
    np.save(cache / f"minilm-{corpus.name}-{len(corpus.documents)}.npy", vectors)
    rivals = Rivals(corpus, name, "text", "AP", False, minilm, cache)
    names = [each for each in asked if minilm is not None or "minilm" not in each]
    return {each: dict(rivals.values(each)[1]) for each in names}


def row_of(name: str, split: str, minilm: Path | None, rivals: Sequence[str]) -> dict[str, Any]:
    """Measure all systems on one corpus and split."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        corpus = read_corpus(DATA / name, folder / "corpus", False)
        found, notes = own_systems(corpus, split, folder)
        found |= rival_values(corpus, split, folder, minilm, rivals)
    systems = {title: {m: float(np.mean(values[m])) for m in MEASURES} for title, values in found.items()}
    tests = {}
    for own in ("vectors", "vectors, labels"):
        others = [title for title in found if title != own and title in (*RIVALS, "words, labels")]
        tests[own] = {other: paired_test(found[own]["AP"], found[other]["AP"]).p_t_test for other in others}
    n = len(next(iter(found.values()))["AP"])
    return {"corpus": name, "split": split, "queries": n, "systems": systems, "p": tests, "notes": notes}


def linked_rows(name: str, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the MAP of `ssi train` on the links of a corpus, with and without the vectors in a file."""
    with tempfile.TemporaryDirectory() as place:
        corpus = read_corpus(DATA / name, Path(place), False)
        for split_name, kinds in (("links", ("document", "keywords:5", "keywords:10")), ("unseen", ("document",))):
            split = corpus.splits[split_name]
            evidence = from_links(pairs(split.learn))
            valid = from_links(pairs(split.stop)) if split.stop else None
            found: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
            for title, view in (("without", VIEW), ("with", WITH_VECTOR)):
                source = DocumentSource(path, view)
                model, report = train_model(source, evidence, TrainConfig(), valid=valid)
                encoded = encoded_by(path, model, split.test)
                task = corpus.task(split.test, together(split.learn, split.stop), split.pool)
                for kind in kinds:
                    n_words = int(kind.partition(":")[2]) if kind != "document" else None
                    scorer = experiment_of(model, encoded, task, None, n_words).model
                    values = evaluate(task, scorer, draw_tuples(task, np.random.default_rng(0), 0), ("AP",)).values[
                        "AP"
                    ]
                    found[kind][title] = values
                    form = report.form.form.name
                    found[kind][f"form {title}"] = form
            for kind, systems in found.items():
                yield {
                    "corpus": name,
                    "split": split_name,
                    "asked": kind,
                    "without": float(systems["without"].mean()),
                    "with": float(systems["with"].mean()),
                    "p": paired_test(systems["with"], systems["without"]).p_t_test,
                    "form": systems["form with"],
                }


def size_row(n_documents: int, n_dims: int = 384) -> dict[str, Any]:
    """Return seconds and memory of learning word vectors for random documents, and the time of a query's vector."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(100_000)])
    chances = 1 / np.arange(1, len(words) + 1)
    chances /= chances.sum()
    topics = rng.normal(size=(200, n_dims)).astype(np.float32)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "docs.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for number in range(n_documents):
                drawn = rng.choice(len(words), 106, p=chances)
                title, text = " ".join(words[drawn[:6]]), " ".join(words[drawn[6:]])
                file.write(json.dumps({"id": str(number), "title": title, "text": text}) + "\n")
        corpus, listener = DocumentSource(path, VIEW), Listener()
        from reranker.text.analyzers import AnalyzerConfig, make_analyzer
        from reranker.text.tfidf import TfIdf

        analyzer = make_analyzer(AnalyzerConfig())
        tokens = read_corpus_once(corpus, analyzer, listener).tokens
        data = counted(tokens, analyzer, TfIdf(vocabulary_of(corpus, tokens), "log"), set())
    vectors = topics[rng.integers(0, len(topics), n_documents)] + rng.normal(size=(n_documents, n_dims)).astype(
        np.float32
    )
    given = GivenVectors(np.arange(n_documents), vectors, n_documents)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    problem = encoder_problem(field_of(given, N_KEPT, rng), given, data, rng)
    seconds = time.perf_counter() - started
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    from reranker.models.vector_field import WordEncoder

    encoder = WordEncoder(problem.U, 1.0)
    queries = [data.tfidf.rows_of_counts(data.counts[0][row : row + 1]) for row in range(2_000)]
    started = time.perf_counter()
    for query in queries:
        encoder.vectors(query)
    query_us = 1e6 * (time.perf_counter() - started) / len(queries)
    return {
        "documents": n_documents,
        "dimensions": n_dims,
        "seconds": round(seconds, 1),
        "more_mb": round(more),
        "query_us": round(query_us, 1),
    }


def latency_rows(spec: str, minilm: Path | None, calls: int = 200) -> Iterator[dict[str, Any]]:
    """Yield p50 of each route of an engine, with and without given vectors."""
    from bench_routes import measure, queries_of, ways_of
    from bench_search import random_model
    from routes_index import filled_index

    from reranker.engines import open_engine
    from reranker.models.vector_field import VectorField, WordEncoder
    from reranker.store import VectorStore

    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        corpus = read_corpus(DATA / "nfcorpus", folder / "corpus", False)
        lines = with_vectors(corpus, folder).read_text(encoding="utf-8").splitlines()
        sources = {str(one["id"]): {k: v for k, v in one.items() if k != "id"} for one in map(json.loads, lines)}
        plain, rng = random_model(sources), np.random.default_rng(0)
        field = VectorField(np.zeros(384, np.float32), np.eye(384, N_KEPT, dtype=np.float32), 2.0)
        encoder = replace(plain.encoder, view=replace(plain.encoder.view, vector="vector"), vector_field=field)
        words = WordEncoder(rng.normal(size=(len(plain.query_vocabulary), N_KEPT)).astype(np.float32), 1.0)
        shared = encoder.document_vocabulary
        model = replace(plain, encoder=encoder, query_vocabulary=shared, word_encoder=words)
        engine = stack.enter_context(closing(open_engine(f"tantivy:{folder}/index" if spec == "tantivy:" else spec)))
        ways: dict[str, Callable[[str], None]] = {}
        for title, each in (("with", model), ("without", plain)):
            index = stack.enter_context(filled_index(engine, sources, each, ("fetch",), folder / title))
            store = VectorStore.open(folder / title, each.encoder_id)
            found = ways_of(engine, index, each, store, 100)
            ways |= {f"{name} {title}": way for name, way in found.items()}
        times = measure(ways, list(queries_of(plain, calls)))
        for name in dict.fromkeys(key.rpartition(" ")[0] for key in times):
            if not name.startswith("bare"):
                both = [times[f"{name} {title}"]["p50_ms"] for title in ("with", "without")]
                kind = spec.partition(":")[0]
                yield {
                    "engine": kind,
                    "route": name,
                    "with_ms": both[0],
                    "without_ms": both[1],
                    "ratio": both[0] / both[1],
                }
        if minilm is not None and spec == "tantivy:":
            from minilm import BI_TOKENS, MiniLM, bi_encoder, published_weights

            network = MiniLM(bi_encoder(published_weights(minilm)), minilm / "tokenizer.json", BI_TOKENS, 1)
            spent = []
            for query in list(queries_of(plain, calls)):
                started = time.perf_counter()
                network.run([query])
                spent.append(1000 * (time.perf_counter() - started))
            yield {"engine": "", "route": "MiniLM for a query, one thread", "with_ms": float(np.median(spent))}


def main() -> None:
    """Measure the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", default="", help="corpora to measure  [default: all]")
    parser.add_argument("--minilm", type=Path, help="folder of the encoder's weights, see minilm.py")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="rivals to measure  [default: all]")
    parser.add_argument("--json", type=Path, help="file of results")
    parser.add_argument("--linked", metavar="NAME=FILE", help="measure a linked corpus with the vectors in FILE")
    parser.add_argument("--size", type=int, help="measure learning for so many made documents, and nothing else")
    parser.add_argument("--latency", action="store_true", help="measure searches with and without vectors")
    options = parser.parse_args()
    kept: dict[str, Any] = {"rows": [], "linked": [], "sizes": [], "latency": []}
    if options.json and options.json.is_file():
        kept |= json.loads(options.json.read_text(encoding="utf-8"))
    if options.latency:
        kept["latency"] = []
    for kind, row in measured(options, {(row["corpus"], row["split"]) for row in kept["rows"]}):
        kept[kind].append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
        if options.json:
            write_results(options.json, kept)


def measured(options: argparse.Namespace, done: set[tuple[str, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (table, row) of what is asked for, without the corpora and splits that are done."""
    if options.linked:
        name, _, file = options.linked.partition("=")
        yield from (("linked", row) for row in linked_rows(name, Path(file)))
    elif options.latency:
        from bench_search import default_engines

        for spec in default_engines():
            yield from (("latency", row) for row in latency_rows(spec, options.minilm))
    elif options.size:
        yield "sizes", size_row(options.size)
    else:
        asked = options.corpora.split(",") if options.corpora else [name for name, _ in ROWS]
        for name, split in ROWS:
            if name in asked and (name, split) not in done:
                yield "rows", row_of(name, split, options.minilm, options.rivals.split(","))


if __name__ == "__main__":
    main()
