"""Quality of what `/v2/rerank` answers, beside BM25 and a general bi-encoder, over the same candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_quality import Split
from end_to_end_data import Collection

from reranker.engines.bodies import default_query_body
from reranker.engines.protocol import Engine
from reranker.evaluation import evaluate_run, paired_test, standard_error
from reranker.models.ranking_model import RankingModel

MEASURES = ("nDCG@10", "AP")
FIELDS = ("title^2", "text")
DEPTH = 50
Rank = Callable[[str, Sequence[str]], Sequence[int]]
"""``rank(query, ids)`` returns places, best first."""


@dataclass(frozen=True)
class Topics:
    """Queries with the candidates that every system orders, in BM25's order, and what is relevant."""

    name: str
    texts: Mapping[str, str]
    candidates: Mapping[str, Sequence[str]]
    grades: Mapping[str, Mapping[str, float]]


def judged_topics(data: Collection, engine: Engine, index: str) -> Topics:
    """Return the test queries of a judged set; candidates are the judged documents."""
    chosen, candidates = sorted(data.side(test=True)), {}
    for name in chosen:
        judged = sorted(data.grades[name])
        match = default_query_body(data.texts[name], FIELDS)["query"]
        body = {"query": {"bool": {"must": [match], "filter": [{"ids": {"values": judged}}]}}, "_source": False}
        found = [hit.id for hit in engine.search(index, {**body, "size": len(judged)}).hits]
        candidates[name] = [*found, *sorted(set(judged) - set(found))]
    kind = f"{data.name}: judged documents of unseen queries"
    return Topics(kind, {q: data.texts[q] for q in chosen}, candidates, {q: data.grades[q] for q in chosen})


def link_topics(
    split: Split,
    texts: Mapping[str, str],
    model: RankingModel,
    engine: Engine,
    index: str,
    n_words: int | None,
    n_topics: int,
) -> Topics:
    """Return queries made of documents: what they link to is relevant, BM25's best documents are the candidates.

    A query is ``n_words`` random words of the document, or all of it.
    """
    targets: dict[str, set[str]] = {}
    for source, target in split.test:
        targets.setdefault(source, set()).add(target)
    known: dict[str, set[str]] = {}
    for source, target in split.known:
        known.setdefault(source, set()).add(target)
    rng = np.random.default_rng(0)
    queries, candidates = {}, {}
    for source in rng.permutation(sorted(targets))[:n_topics].tolist():
        words = list(dict.fromkeys(model.encoder.analyzer.tokens([texts[source]])[0]))
        drawn = words if n_words is None else rng.permutation(words)[:n_words].tolist()
        queries[source] = texts[source][:10_000] if n_words is None else " ".join(drawn)
        body = {**default_query_body(" ".join(drawn), FIELDS), "size": 2 * DEPTH, "_source": False}
        passed = {source, *known.get(source, ())}
        candidates[source] = [hit.id for hit in engine.search(index, body).hits if hit.id not in passed][:DEPTH]
    kind = "the whole document" if n_words is None else f"{n_words} words of a document"
    grades = {q: dict.fromkeys(targets[q], 1.0) for q in queries}
    return Topics(f"cppdocs: {kind}, BM25's first {DEPTH}", queries, candidates, grades)


def compare(topics: Topics, systems: Mapping[str, Rank]) -> list[dict[str, Any]]:
    """Return one row a system and measure: mean, error, and the difference from the last system with its p."""
    runs: dict[str, dict[str, list[str]]] = {"BM25": {q: list(ids) for q, ids in topics.candidates.items()}}
    for name, rank in systems.items():
        runs[name] = {q: [ids[p] for p in rank(topics.texts[q], ids)] for q, ids in topics.candidates.items() if ids}
    values: dict[str, Any] = {}
    for name, run in runs.items():
        found = evaluate_run(topics.grades, run, list(MEASURES))
        values[name] = {m: np.array([found[m].get(q, 0.0) for q in topics.texts]) for m in MEASURES}
    last = list(runs)[-1]
    rows = []
    for name, by_measure in values.items():
        for measure, scores in by_measure.items():
            row = {
                "queries": len(topics.texts),
                "candidates": topics.name,
                "system": name,
                "measure": measure,
                "mean": float(scores.mean()),
                "error": standard_error(scores),
            }
            if name != last:
                test = paired_test(scores, values[last][measure])
                row |= {"over": last, "difference": test.difference, "p": test.p_t_test}
            rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as Markdown: one line a system."""
    lines = ["| candidates | queries | system | nDCG@10 | AP | p against the bi-encoder (nDCG@10) |", "|" + "---|" * 6]
    for row in rows:
        if row["measure"] != MEASURES[0]:
            continue
        other = next(
            one
            for one in rows
            if (one["candidates"], one["system"], one["measure"]) == (row["candidates"], row["system"], MEASURES[1])
        )
        p = f"{row['p']:.2g}" if "p" in row else ""
        lines.append(
            f"| {row['candidates']} | {row['queries']} | {row['system']} | {row['mean']:.4f} ± {row['error']:.4f} | "
            f"{other['mean']:.4f} | {p} |"
        )
    return "\n".join(lines)


def texts_of(path: Path) -> dict[str, str]:
    """Return id → title and text of each document."""
    from reranker.formats import read_documents

    return {
        one.id: f"{one.source.get('title', '')}\n{one.source.get('text', '')}".strip() for one in read_documents(path)
    }
