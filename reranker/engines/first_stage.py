"""The first stage by vectors: the body that finds the documents nearest to Uq, to be united with BM25's hits. Pure.

On Elasticsearch the vectors are [Vd/M, sqrt(1 - |Vd|²/M²)], all of length 1, so that nearest by angle is largest by
(Uq)·(Vd); on OpenSearch Lucene searches by inner product itself. Either graph (HNSW) finds most, not all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from reranker.arrays import Float32
from reranker.engines.base import Capabilities
from reranker.engines.fields import field_name
from reranker.engines.inside import MAX_CANDIDATES, json_numbers, unit_query

EXPLORED: Final = 2
"""Neighbours looked at, as a multiple of those wanted: more finds more and takes longer."""
_CONDITIONS = frozenset(
    {
        "term", "terms", "terms_set", "range", "exists", "ids", "prefix", "wildcard", "regexp", "geo_distance",
        "geo_bounding_box", "geo_shape",
    }
)  # fmt: skip
"""Clauses that are conditions wherever they stand: a hit that does not meet one is no hit."""
_INNER = {
    "function_score": "query", "script_score": "query", "constant_score": "filter", "boosting": "positive",
    "pinned": "organic", "rule": "organic",
}  # fmt: skip
"""Clauses that change scores or put documents on top of those of one clause inside them."""
_OTHER_SEARCHES = ("knn", "rank", "retriever", "sub_searches")
"""Parts of a body that find documents besides its ``query``, by conditions of their own."""
_ONLY_SCORES = frozenset({"functions", "negative"})
"""Parts of a clause whose conditions decide of scores, not of hits."""


@dataclass(frozen=True, slots=True)
class FirstStageFields:
    """The field that a first stage searches: its name, and whether it holds unit vectors of N + 1 numbers."""

    vector: str
    unit: bool


def first_stage_fields(
    properties: Mapping[str, Any], encoder_id: str, capabilities: Capabilities
) -> FirstStageFields | None:
    """Return the field of an encoder that can be searched by, or None where there is none."""
    unit, dense = field_name(encoder_id, "vec_unit"), field_name(encoder_id, "vec_dense")
    if unit in properties:
        return FirstStageFields(unit, unit=True)
    return FirstStageFields(dense, unit=False) if "method" in properties.get(dense, {}) else None


def knn_body(fields: FirstStageFields, vector: Float32, k: int, conditions: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the body that finds the ``k`` documents of largest (Uq)·(Vd); ``vector`` is Uq, (N,) float32, not 0.

    Every hit matches the query ``conditions`` (`conditions_of`).
    """
    shown = {"size": k, "_source": False, "track_total_hits": False}
    wanted = {"filter": copy.deepcopy(dict(conditions))} if conditions else {}
    if fields.unit:
        looked_at = min(EXPLORED * k, MAX_CANDIDATES)
        head = {"field": fields.vector, "query_vector": unit_query(vector), "k": k, "num_candidates": looked_at}
        return {"knn": {**head, **wanted}, **shown}
    # Lucene explores as many as it is asked for: ask for more, keep k.
    clause = {"vector": json_numbers(vector), "k": min(EXPLORED * k, MAX_CANDIDATES), **wanted}
    return {"query": {"knn": {fields.vector: clause}}, **shown}


class _Conditions(NamedTuple):
    """Queries that every hit of a clause must match, those that none may, and clauses with others that are not read."""

    always: list[Any]
    never: list[Any]
    unread: set[str]


def conditions_of(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the conditions of a body that every hit must meet, as one query; None where there are none.

    Taken over: ``filter`` and ``must_not`` of the outermost ``bool`` and of each one that stands in a ``must``, what is
    exact in ``must`` (``term``, ``range``, ``exists``, ..., and a ``bool`` of nothing else), and ``post_filter``; what
    only changes scores or puts documents on top (``function_score``, ``pinned``, ...) is looked into. The words of the
    query are no condition: finding documents without them is what this first stage is for. What is not taken over
    is told by `unread_conditions`.
    """
    read = _read(body.get("query"))
    clauses = {"filter": [*read.always, *_listed(body.get("post_filter"))], "must_not": read.never}
    kept = {name: copy.deepcopy(value) for name, value in clauses.items() if value}
    return {"bool": kept} if kept else None


def unread_conditions(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of a body that may rule documents out in ways that `conditions_of` does not take over.

    Such are searches besides the query (``knn``, ``retriever``, ...), and clauses with a ``filter`` or ``must_not``
    instead of which hits may meet another one (in a ``should`` that is needed), or which is not of the whole document
    (``nested``).
    """
    return tuple(sorted({name for name in _OTHER_SEARCHES if name in body} | _read(body.get("query")).unread))


def _holds_condition(value: Any) -> bool:
    """Return whether a ``filter`` or ``must_not`` stands anywhere in a clause, but where it decides of scores alone."""
    if isinstance(value, Mapping):
        if isinstance(inner := value.get("constant_score"), Mapping):
            return _holds_condition(inner.get("filter"))  # a query like any other, whatever its name here
        return any(
            name in ("filter", "must_not") or (name not in _ONLY_SCORES and _holds_condition(part))
            for name, part in value.items()
        )
    return isinstance(value, list | tuple) and any(map(_holds_condition, value))


def _is_exact(query: Any) -> bool:
    """Return whether a clause is a condition: exact by itself, or a ``bool`` of nothing else."""
    if not isinstance(query, Mapping) or len(query) != 1:
        return False
    name, inner = next(iter(query.items()))
    if name != "bool" or not isinstance(inner, Mapping):
        return name in _CONDITIONS
    return all(_is_exact(clause) for part in ("must", "should") for clause in _listed(inner.get(part)))


def _read(query: Any) -> _Conditions:
    read = _Conditions([], [], set())
    if not isinstance(query, Mapping) or len(query) != 1:
        return read
    name, inner = next(iter(query.items()))
    if name in _CONDITIONS:
        read.always.append(query)
        return read
    if name in _INNER and isinstance(inner, Mapping):
        return _read(inner.get(_INNER[name]))
    if name != "bool" or not isinstance(inner, Mapping):
        read.unread.update({str(name)} if _holds_condition(inner) else ())
        return read
    read.always.extend(_listed(inner.get("filter")))
    read.never.extend(_listed(inner.get("must_not")))
    if "minimum_should_match" in inner or not ("must" in inner or "filter" in inner):
        alternatives = [clause for clause in _listed(inner.get("should")) if clause]
        read.unread.update(str(next(iter(clause))) for clause in alternatives if _holds_condition(clause))
    for clause in _listed(inner.get("must")):
        more = _Conditions([clause], [], set()) if _is_exact(clause) else _read(clause)
        read.always.extend(more.always)
        read.never.extend(more.never)
        read.unread.update(more.unread)
    return read


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def lexical_body(body: Mapping[str, Any], ids: list[str], size: int, source: bool | list[str]) -> dict[str, Any]:
    """Return the body that scores documents with these ids by the team's own query; 0 where they do not match."""
    query = body.get("query")
    should = {"should": [copy.deepcopy(query)]} if query else {}
    kept = {name: copy.deepcopy(body[name]) for name in ("runtime_mappings", "derived") if name in body}
    wanted = {"bool": {"filter": [{"ids": {"values": ids}}], **should}}
    return {**kept, "query": wanted, "size": size, "_source": source, "track_total_hits": False}
