"""Bodies of searches in which fields have the weights of a model's lexical score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from reranker.engines.bodies import default_query_body
from reranker.models.ranking_model import Encoder

WeightedKind = Literal["combined_fields", "cross_fields", "most_fields"]
WEIGHTED_KINDS: Final[tuple[WeightedKind, ...]] = get_args(WeightedKind)
"""Kinds of queries over several fields, the closest to the lexical score first. Not every engine has all of them."""


def weighted_template(
    encoder: Encoder, like: Mapping[str, Any] | None = None, kind: WeightedKind = "cross_fields"
) -> dict[str, Any] | None:
    """Return a body template with the field weights of the tuned lexical score; None if the model has no such score.

    The smallest boost is 1. The query language has no counterpart of the query memory and the coverage, and k1 and b
    are settings of an index, so that the body does not contain these.

    Parameters
    ----------
    encoder
        The encoder of the model.
    like
        A body template. ``filter`` and ``must_not`` of its ``bool`` query are kept.
    kind
        ``combined_fields`` (Elasticsearch) saturates the weighted frequencies of all fields together, as bm25 of the
        model does. ``cross_fields`` shares the idf of a word among the fields. ``most_fields`` adds up the scores of
        the fields; there, a boost is the weight of a word that its field contains once: (k1 + 1) w / (k1 + w) for bm25.
    """
    lexical = encoder.lexical_of_short
    if lexical is None:
        return None
    weights = dict(zip((spec.path for spec in encoder.view.fields), lexical.field_weights, strict=False))
    if lexical.form == "bm25" and kind == "most_fields":
        weights = {path: (lexical.k1 + 1.0) * w / (lexical.k1 + w) for path, w in weights.items()}
    smallest = min((weight for weight in weights.values() if weight > 0), default=0.0)
    if not smallest:
        return None  # only the query memory has a weight
    boosts = {path: f"{weight / smallest:.3g}" for path, weight in weights.items() if weight > 0}
    fields = [path if boost == "1" else f"{path}^{boost}" for path, boost in boosts.items()]
    query = default_query_body("{{query}}", fields)["query"]
    if kind == "combined_fields" and len(fields) > 1:
        query = {kind: {"query": "{{query}}", "fields": fields}}
    elif kind == "cross_fields" and len(fields) > 1:
        query["multi_match"]["type"] = kind
    clauses = ((like or {}).get("query") or {}).get("bool") or {}
    kept = {name: clauses[name] for name in ("filter", "must_not") if name in clauses}
    return {"query": {"bool": {"must": [query], **kept}} if kept else query}
