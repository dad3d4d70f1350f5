"""Search bodies: the parts that determine scores, by which a calibration is found for a body or a similar one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from reranker.engines.bodies import candidate_body

_SCORING = (
    "query",
    "knn",
    "retriever",
    "rescore",
    "rank",
    "sub_searches",
    "indices_boost",
    "runtime_mappings",
    "derived",
)
"""Parts of a body that determine the scores of its hits."""
_FILTERS = frozenset({"filter", "must_not", "minimum_should_match", "min_score"})
"""Keys that only remove hits."""
_ALL_MUST_MATCH = frozenset(
    {
        "bool",
        "must",
        "function_score",
        "script_score",
        "query",
        "boosting",
        "positive",
        "pinned",
        "organic",
        "knn",
        "retriever",
        "retrievers",
        "standard",
        "rrf",
        "linear",
        "text_similarity_reranker",
        "rescorer",
    }
)
"""Clauses in which a filter only removes hits. Under ``should`` it would also change the scores of other hits."""
_NESTING = _ALL_MUST_MATCH | {"should", "dis_max", "queries", "functions", "rescore", "rescore_query", "constant_score"}
"""Keys of a body that only contain other clauses."""


class ScoringParts(NamedTuple):
    """The parts of a search body that determine the scores of hits, by which a calibration is found."""

    hash: str
    """`body_hash` of the body."""
    clauses: frozenset[str]
    """`signature_of` the body."""

    @classmethod
    def of(cls, template: Mapping[str, Any]) -> ScoringParts:
        """Return these parts of a body template."""
        return cls(body_hash(template), signature_of(template))


def body_hash(template: Mapping[str, Any]) -> str:
    """Return the identifier of a body template, 16 hexadecimal digits, from the parts that determine scores.

    It ignores parts that only affect the display (``_source``, highlight, aggregations, page size) and filters. So
    alpha, and with it the order of the remaining hits, stays the same if a user clicks on a facet.
    """
    scoring = {name: _without_filters(template[name]) for name in _SCORING if name in template}
    content = json.dumps(candidate_body(scoring, 1), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(content.encode("ascii"), digest_size=8).hexdigest()


def signature_of(template: Mapping[str, Any]) -> frozenset[str]:
    """Return the clauses of a body that determine scores, as ``clause:field``, without boosts, values and filters."""
    scoring = [template[name] for name in _SCORING if name in template]
    return frozenset(_clauses(_without_filters(scoring)))


def similarity(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the share of common clauses among all clauses of two bodies, 0 to 1."""
    return len(first & second) / len(first | second) if first or second else 0.0


def _without_filters(node: Any) -> Any:
    """Return a query, knn or retriever clause without filters; a ``bool`` with one clause is replaced by the clause."""
    if isinstance(node, (list, tuple)):
        return [_without_filters(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    kept = {
        name: _without_filters(value) if name in _ALL_MUST_MATCH else value
        for name, value in node.items()
        if name not in _FILTERS
    }
    clauses = kept.get("bool")
    if isinstance(clauses, Mapping):
        parts = {name: part if isinstance(part, list) else [part] for name, part in clauses.items()}
        if len(parts) == 1 and parts.keys() <= {"must", "should"} and len(*parts.values()) == 1:
            (kept,) = next(iter(parts.values()))
        else:
            kept["bool"] = parts
    return kept


def _clauses(node: Any) -> Iterator[str]:
    if isinstance(node, (list, tuple)):
        for item in node:
            yield from _clauses(item)
    if not isinstance(node, Mapping):
        return
    for name, value in node.items():
        if name in _NESTING:
            yield from _clauses(value)
        elif isinstance(value, Mapping):
            listed = value.get("fields", [value["field"]] if "field" in value else [*value][:1])
            for path in listed if isinstance(listed, (list, tuple)) else [listed]:
                yield f"{name}:{str(path).partition('^')[0]}"
