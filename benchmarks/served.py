"""What a user gets through a real engine: its own search, the model behind a window, and impacts in its index.

    python benchmarks/served.py --json benchmarks/results/served.json [--corpora NAME,...] [--engine opensearch]

A model is trained with the defaults on each corpus of SSI_DATA (`served_data`). An engine of its own is started, and an
index filled with the texts and one field of impacts for each number of learned words. Each test query is then answered
by these systems, as a list of at most 1,000 documents, none of which has the score 0:

- ``body``: the engine's own search of the model's fields, with the model's field weights;
- ``lexical``: the model's lexical score of all documents, computed here;
- ``body, first 100 reranked`` (and 200): the first hits of ``body``, ordered by f; the others keep their places;
- ``body and nearest, reranked``: the first 100 of ``body`` with the 100 documents of the largest (Uq)·(Vd), ordered by
  f, before the others of ``body``. The nearest are computed here: the graph of an engine finds most of them, not all;
- ``impacts K``: only the clause of impacts, with K learned words a document;
- ``body + impacts 128``: both clauses, documents that only one of them finds included;
- ``body + learned 128``: the same with the learned words only, without impacts of the document's own words;
- ``impacts 128, first 100 reranked`` (and 200): its first hits, ordered by f;
- ``impacts 128, computed``: the sums of impacts over all documents without an engine, which the engine's should equal;
- ``f``: the model's score of all documents, which nothing that is served can exceed by much.

The boosts of the sums of two clauses are those of the highest value (the corpus's measure) on at most 200 validation
queries. Where a model with labels has learned from these queries, a model that has not is trained for the choice.
At most ``--queries`` test queries are asked, drawn with seed 0. Linked corpora are asked with 5 and with 10 random
words of a page, each once, in the order of the vocabulary; the page itself and those it is known to link to are left
out of every list.

Costs are measured with two more indexes, one of the texts and one of the texts and ``impacts 128``: their sizes (one
segment), the seconds of the bulk requests, and p50 of 200 queries with one client, in turns, for ten hits with their
titles. ``body before`` asks the index of the texts, everything else that with impacts, which ``_source`` contains too
where the engine does not leave them out by itself. Computing impacts is measured in processor time.

A corpus that is in FILE with the same program and engine is not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from provenance import program_of, write_results
from served_data import CASES, DEPTH, Case, Queries, Subject, held_out_subject, ranked_by, reordered, subject_of, united

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from indexer.build import index_mapping
from reranker.arrays import Int32
from reranker.engines import EngineSettings, open_engine
from reranker.engines.bodies import fill_template
from reranker.engines.impacts import field_value, impacts_clause, stored_words, with_impacts
from reranker.engines.protocol import Engine, ReportsDisk, SearchesDocValues, TakesRequests, WriteOp
from reranker.engines.vectors import impacts_mapping
from reranker.models.impacts import Impacts, query_words
from reranker.rerank import default_template
from tests.engines.launcher import EngineProcess
from tests.engines.recipes import EngineKind

K: Final = 128
"""Learned words of the systems that exist with one number only."""
WORDS: Final = (32, 64, 128, 256)
BOOSTS: Final = {"impacts": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0), "learned": tuple(2.0**power for power in range(-3, 9))}
"""Boosts to choose from, by what stands beside the body."""
BATCH: Final = 500
ID_FIELD: Final = "served_id"
"""Field with the id, from which long lists of hits are read much faster than from the stored fields."""
N_TIMED, N_WARM_UP = 200, 50
HITS_SHOWN: Final = 10
Body = Mapping[str, Any]
BodyOf = Callable[[str], Body | None]
"""Body of a query text; None if it has no word to search for."""


@dataclass
class Words:
    """A field of weighted words of a subject's documents."""

    subject: Subject
    n_words: int
    with_lexical: bool = True
    n_bytes: int = 0
    """Length of the field's JSON in all documents sent so far."""
    seconds: float = 0.0
    """Processor time of computing them."""
    impacts: Impacts = field(init=False)

    def __post_init__(self) -> None:
        self.impacts = Impacts(self.subject.model, self.n_words)
        _ = self.impacts.words  # computed once a model, not once a document

    @property
    def name(self) -> str:
        """Name of the field."""
        return f"{'impacts' if self.with_lexical else 'learned'}_{self.n_words}"

    def values(self, part: slice, field_type: str) -> list[list[dict[str, float]]]:
        """Return the field's value in some of the documents."""
        encoded = self.subject.rows(part, self.with_lexical)
        sources = [self.subject.sources[identifier] for identifier in self.subject.ids[part]]
        started = time.process_time()
        stored = [field_value(stored_words(words, field_type)) for words in self.impacts.by_word(encoded, sources)]
        self.seconds += time.process_time() - started
        self.n_bytes += sum(len(json.dumps(value, ensure_ascii=False, separators=(",", ":"))) for value in stored)
        return stored


@dataclass(frozen=True)
class Filled:
    """An index with all documents of a subject."""

    engine: Engine
    name: str
    subject: Subject
    bulk_s: float
    """Seconds of the bulk requests."""

    @property
    def field_type(self) -> str:
        """Type of the fields of weighted words."""
        return self.engine.capabilities().sparse_terms

    def body(self, text: str) -> Body:
        """Return the engine's own search."""
        return fill_template(default_template(self.subject.model.encoder.view), text)

    def clause(self, field_name: str, text: str, boost: float) -> Body | None:
        """Return the clause of impacts; None if the query has no word that the model counts."""
        words = query_words(self.subject.model, text)
        return impacts_clause(field_name, self.field_type, words, boost) if words else None

    def only(self, field_name: str) -> BodyOf:
        """Return the search by nothing but a field of weighted words."""

        def body_of(text: str) -> Body | None:
            clause = self.clause(field_name, text, 1.0)
            return None if clause is None else {"query": clause}

        return body_of

    def both(self, field_name: str, boost: float) -> BodyOf:
        """Return the engine's own search with a field of weighted words beside it."""

        def body_of(text: str) -> Body | None:
            clause = self.clause(field_name, text, boost)
            return self.body(text) if clause is None else with_impacts(self.body(text), clause, "find")

        return body_of

    def bytes_on_disk(self) -> int | None:
        """Return the size of the index, merged into one segment; None if the engine does not tell."""
        if not isinstance(self.engine, ReportsDisk) or not isinstance(self.engine, TakesRequests):
            return None
        self.engine.request("POST", f"/{self.name}/_forcemerge", params={"max_num_segments": "1"}, timeout_s=600)
        self.engine.request("POST", f"/{self.name}/_flush", params={"force": "true"}, timeout_s=60)
        self.engine.refresh(self.name)
        return self.engine.disk_usage(self.name).index_bytes


@contextlib.contextmanager
def filled(engine: Engine, subject: Subject, fields: Sequence[Words]) -> Iterator[Filled]:
    """Yield an index of a subject's documents with fields of weighted words; it is deleted afterwards."""
    name = f"served-{uuid.uuid4().hex[:10]}"
    mapping = impacts_mapping(engine.capabilities())
    paths = [spec.path for spec in subject.model.encoder.view.fields]
    settings = {"index.number_of_shards": "1", "index.number_of_replicas": "0"}
    properties = {ID_FIELD: {"type": "keyword"}, **{each.name: mapping for each in fields}}
    engine.create_index(name, index_mapping(paths, properties), settings)
    seconds = 0.0
    try:
        for start in range(0, len(subject.ids), BATCH):
            part = slice(start, start + BATCH)
            values = [each.values(part, mapping["type"]) for each in fields]
            names = [ID_FIELD, *(each.name for each in fields)]
            ops = [
                WriteOp("index", of[0], {**subject.sources[of[0]], **dict(zip(names, of, strict=True))})
                for of in zip(subject.ids[part], *values, strict=True)
            ]
            started = time.perf_counter()
            bad = [result for result in engine.bulk(name, ops) if result.status >= 300]
            seconds += time.perf_counter() - started
            assert not bad, bad[0]
        engine.refresh(name)
        yield Filled(engine, name, subject, seconds)
    finally:
        engine.delete_index(name)


def found(index: Filled, queries: Queries, body_of: BodyOf, depth: int = DEPTH) -> Int32:
    """Return the documents that the engine finds for each query, as column numbers with -1 at the end."""
    place = {identifier: column for column, identifier in enumerate(queries.task.document_ids)}
    assert isinstance(index.engine, SearchesDocValues)
    ranked = np.full((len(queries.task.query_ids), depth), -1, np.int32)
    for row, text in enumerate(queries.in_order):
        excluded = set(queries.task.excluded[row].indices.tolist())
        body = body_of(text)
        if body is None:
            continue
        asked = {**body, "size": min(depth + len(excluded), 10_000), "track_total_hits": False}
        columns = [place[hit.id] for hit in index.engine.search_doc_values(index.name, asked, ID_FIELD).hits]
        kept = [column for column in columns if column not in excluded][:depth]
        ranked[row, : len(kept)] = kept
    return ranked


def chosen_boosts(engine: Engine, subject: Subject) -> dict[str, float]:
    """Return the boost of each field beside the body that is best on validation queries."""
    fields = [Words(subject, K), Words(subject, K, with_lexical=False)]
    best: dict[str, float] = {}
    with filled(engine, subject, fields) as index:
        for each in fields:
            kind = each.name.partition("_")[0]
            for queries in subject.validation:
                values = {
                    boost: queries.values_of(found(index, queries, index.both(each.name, boost), 200))[subject.measure]
                    for boost in BOOSTS[kind]
                }
                best[f"{kind}, {queries.kind}"] = max(values, key=lambda boost: values[boost])
    return best


def system_values(
    index: Filled, queries: Queries, n_words: Sequence[int], boosts: Mapping[str, float]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each system with its values on test queries."""
    scorers = index.subject.scorers(queries, K)
    body = found(index, queries, index.body)
    yield "body", queries.values_of(body)
    if "lexical" in scorers:
        yield "lexical", queries.values_of(ranked_by(scorers["lexical"], queries.task))
    for window in (100, 200):
        yield f"body, first {window} reranked", queries.values_of(reordered(body, scorers["f"], window))
    nearest = ranked_by(scorers["vectors"], queries.task)
    yield "body and nearest, reranked", queries.values_of(united(body, nearest, scorers["f"], 100))
    for number in n_words:
        ranked = found(index, queries, index.only(f"impacts_{number}"))
        yield f"impacts {number}", queries.values_of(ranked)
        if number == K:
            for window in (100, 200):
                first = reordered(ranked, scorers["f"], window)
                yield f"impacts {K}, first {window} reranked", queries.values_of(first)
    for kind in BOOSTS:
        boost = boosts[f"{kind}, {queries.kind}"]
        ranked = found(index, queries, index.both(f"{kind}_{K}", boost))
        yield f"body + {kind} {K}", {**queries.values_of(ranked), "boost": boost}
    yield f"impacts {K}, computed", queries.values_of(ranked_by(scorers["impacts"], queries.task))
    yield "f", queries.values_of(ranked_by(scorers["f"], queries.task))


def timed(plain: Filled, served: Filled, queries: Queries, boost: float) -> dict[str, float]:
    """Return p50 in milliseconds of searches that show titles, asked in turns."""
    shown = {"size": HITS_SHOWN, "_source": ["title"]}
    ways: dict[str, tuple[Filled, BodyOf, Mapping[str, Any]]] = {
        "body before": (plain, plain.body, shown),
        "body": (served, served.body, shown),
        "impacts": (served, served.only(f"impacts_{K}"), shown),
        "both": (served, served.both(f"impacts_{K}", boost), shown),
        "body, 100 hits": (served, served.body, {**shown, "size": 100}),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    texts = itertools.islice(itertools.cycle(queries.in_order), N_WARM_UP + N_TIMED)
    for number, text in enumerate(texts):
        for name, (index, body_of, more) in ways.items():
            body = body_of(text)
            started = time.perf_counter()
            if body is not None:
                index.engine.search(index.name, {**body, **more})
                spent[name].append(1000 * (time.perf_counter() - started))
        if number == N_WARM_UP - 1:
            spent = {name: [] for name in ways}
    return {name: round(float(np.median(times)), 2) for name, times in spent.items()}


def cost_rows(engine: Engine, subject: Subject, boosts: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Yield the costs of impacts, a row for each kind of query."""
    words, n_documents = Words(subject, K), len(subject.ids)
    with filled(engine, subject, []) as plain, filled(engine, subject, [words]) as served:
        sizes = {"texts": plain.bytes_on_disk(), "with impacts": served.bytes_on_disk()}
        for queries in subject.tests:
            yield {
                "asked with": queries.kind,
                "documents": n_documents,
                "bytes of impacts": round(words.n_bytes / n_documents),
                "documents/s": round(n_documents / words.seconds),
                "bulk_s": {"texts": round(plain.bulk_s, 2), "with impacts": round(served.bulk_s, 2)},
                "index_bytes": sizes,
                "index": None if not sizes["texts"] else (sizes["with impacts"] or 0) / sizes["texts"],
                "p50_ms": timed(plain, served, queries, boosts[f"impacts, {queries.kind}"]),
                "train_s": round(subject.train_s, 1),
            }


def measured(
    engine: Engine, case: Case, n_words: Sequence[int], n_queries: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (table, row) of a corpus."""
    able = engine.capabilities()
    named = {"corpus": case.corpus, "learned from": case.learned_from, "engine": able.kind}
    versions = {"engine version": able.version, "version": program_of(Path(__file__))}
    with tempfile.TemporaryDirectory() as work:
        subject = subject_of(case, Path(work), n_queries)
        boosts = chosen_boosts(engine, held_out_subject(case, subject, Path(work)))
        fields = [Words(subject, number) for number in n_words]
        with filled(engine, subject, [*fields, Words(subject, K, with_lexical=False)]) as index:
            n_bytes = {f"impacts {each.n_words}": round(each.n_bytes / len(subject.ids)) for each in fields}
            for queries in subject.tests:
                more = {"asked with": queries.kind, "queries": len(queries.task.query_ids), "form": subject.form}
                for system, values in system_values(index, queries, n_words, boosts):
                    held = {"bytes": n_bytes[system]} if system in n_bytes else {}
                    yield "rows", {**named, **more, "system": system, **values, **held, **versions}
        for row in cost_rows(engine, subject, boosts):
            yield "costs", {**named, **row, **versions}


@contextlib.contextmanager
def started(kind: EngineKind) -> Iterator[Engine]:
    """Yield an engine: that of SSI_TEST_<KIND>_URL, or one that is started and stopped."""
    with ExitStack() as stack:
        url = os.environ.get(f"SSI_TEST_{kind.upper()}_URL")
        if url is None:
            url = stack.enter_context(EngineProcess(kind, heap="2g")).url
        settings = EngineSettings(read_timeout_s=120)
        yield stack.enter_context(closing(open_engine(f"{kind}:{url}", settings)))


def main() -> None:
    """Measure the corpora that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--corpora", default="", help="corpora to measure  [default: all]")
    parser.add_argument("--engine", choices=("elasticsearch", "opensearch"), default="elasticsearch")
    parser.add_argument("--words", default=",".join(map(str, WORDS)), help="numbers of learned words a document")
    parser.add_argument("--queries", type=int, default=1_000, help="most test queries of a kind")
    options = parser.parse_args()
    n_words = sorted({K, *map(int, options.words.split(","))})
    wanted = set(options.corpora.split(",")) if options.corpora else {case.corpus for case in CASES}
    kept: dict[str, Any] = {"rows": [], "costs": []}
    if options.json.is_file():
        kept |= json.loads(options.json.read_text(encoding="utf-8"))
    program = program_of(Path(__file__))
    done = {(row["corpus"], row["learned from"], row["engine"]) for row in kept["costs"] if row["version"] == program}
    missing = [case for case in CASES if case.corpus in wanted and (*case, options.engine) not in done]
    with started(options.engine) as engine:
        for case in missing:
            rows = list(measured(engine, case, n_words, options.queries))
            replaced = (*case, options.engine)
            for name in ("rows", "costs"):
                others = [r for r in kept[name] if (r["corpus"], r["learned from"], r["engine"]) != replaced]
                kept[name] = [*others, *(row for table, row in rows if table == name)]
            for _, row in rows:
                print(json.dumps(row, ensure_ascii=False), flush=True)
            write_results(options.json, kept)


if __name__ == "__main__":
    main()
