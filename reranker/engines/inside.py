"""Route *inside*: request bodies by which the engine computes f(q, d), and how to read what it answers. Pure.

Two ways to compute, of which the index's fields decide:

- ``script``: painless, exact to about 1e-6. Scores may not be negative, so a script returns g(x) = 1 + x, and
  1 / (1 - x) below 0: it keeps the order, can be undone, and is most precise where scores differ least.
- ``unit``: no scripts (Elasticsearch). With the unit vectors a = [Vd/M, sqrt(1 - |Vd|²/M²)] and q' = [Uq/|Uq|, 0],
  a ``knn`` clause with boost 2 M |Uq| scores M |Uq| (1 + q'·a) = M |Uq| + (Uq)·(Vd), linear also below zero; a
  ``sparse_vector`` clause adds q·d, whose weights are rounded (`reranker.engines.fields.sparse_value`).

And two ways to ask:

- `score_body`: f of the documents with these ids, whatever shard they lie on; the caller blends and orders.
- `rescore_body`: the engine itself blends and orders (scripts alone). Its window is counted on every shard, so with
  several shards more documents would be rescored than one window has: ``floor``, the score of the window's last hit
  (`floor_body`), keeps the rest behind. Hits that tie with the last one count as inside.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final, Literal

import numpy as np

from reranker.arrays import AnyFloat, Float32, Float64, Int32
from reranker.engines.base import Capabilities, candidate_body
from reranker.engines.fields import field_name, norm_of

Method = Literal["script", "unit"]
LOST: Final = 1e30
"""What `rescore_body` lets a document without a vector score: it comes first, where it is seen."""
MAX_CANDIDATES: Final = 10_000
"""Largest answer of both engines, and largest ``num_candidates`` and rescore window."""
_RESCORABLE = frozenset(
    {
        "query", "post_filter", "min_score", "aggs", "aggregations", "suggest", "track_total_hits", "timeout",
        "runtime_mappings", "derived", "_source", "fields", "docvalue_fields", "stored_fields", "highlight", "version",
        "seq_no_primary_term", "from", "size", "track_scores", "ext",
    }
)  # fmt: skip
_ROUNDING = 1.0 - 1e-6
"""A score computed twice may differ in its last digit."""


@dataclass(frozen=True, slots=True)
class InsideFields:
    """The fields of a version that the engine computes with."""

    method: Method
    """See the top of this module."""
    vector: str
    terms: str
    """Names of the fields of Vd and d."""
    product: str = ""
    """The engine's `Capabilities.vector_product`, for ``script``."""
    norm: float = 1.0
    """M, for ``unit``."""
    rescore_script: bool = False
    """As in `Capabilities`."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryVectors:
    """An encoded query: the query's side of f, as kernels and request bodies take it."""

    vector: Float32
    """Uq, (N,) float32."""
    ids: Int32
    """Word ids of q, (n_terms,) int32, strictly increasing."""
    weights: Float32
    """Weights of q, (n_terms,) float32."""
    identity: float
    """a of f = (Uq).(Vd) + a q.d."""

    @property
    def length(self) -> float:
        """|Uq|."""
        return float(np.linalg.norm(self.vector.astype(np.float64)))

    @property
    def word_weights(self) -> Float64:
        """Weights of the words of q, multiplied by a, (n,) float64."""
        return self.identity * self.weights.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Blending:
    """The blend alpha f + lexical * BM25, lexical = (1 - alpha) / c(q), over a window of hits."""

    alpha: float
    lexical: float
    window: int


def inside_fields(properties: Mapping[str, Any], encoder_id: str, capabilities: Capabilities) -> InsideFields | None:
    """Return what an index has of an encoder for route *inside*, or None where something is missing.

    `InputError` if the bound of the vectors is not in their mapping.
    """
    scripted = script_fields(encoder_id, capabilities)
    # A role that may not ask what the engine can do is told nothing: then the fields, made for it, tell.
    if (capabilities.painless or not capabilities.version) and {scripted.vector, scripted.terms} <= set(properties):
        return scripted
    vector, terms = field_name(encoder_id, "vec_unit"), field_name(encoder_id, "terms_sparse")
    if {vector, terms} <= set(properties):
        return InsideFields("unit", vector, terms, norm=norm_of(properties[vector]))
    return None


def script_fields(encoder_id: str, capabilities: Capabilities) -> InsideFields:
    """Return the fields that an encoder's scripts read, whether an index has them or not."""
    vector, terms = field_name(encoder_id, "vec_dense"), field_name(encoder_id, "terms_long")
    product, rescore = capabilities.vector_product, capabilities.rescore_script
    return InsideFields("script", vector, terms, product, rescore_script=rescore)


@lru_cache
def _file(name: str) -> str:
    lines = resources.files("plugin_scripts").joinpath(f"painless/{name}.painless").read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("//"))


@lru_cache
def script_source(name: Literal["model", "blend"], fields: InsideFields) -> str:
    """Return the painless source that scores by f alone (``model``), or by the blend with ``_score``.

    The names of the fields are part of the source.
    """
    source = _file(name).replace("@PRODUCT@", fields.product).replace("@WORDS@", _file("words"))
    return source.replace("@VECTOR@", fields.vector).replace("@TERMS@", fields.terms)


def _script(name: Literal["model", "blend"], fields: InsideFields, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"lang": "painless", "source": script_source(name, fields), "params": dict(params)}


def query_params(query: QueryVectors) -> dict[str, Any]:
    """Return the query's part of the scripts' parameters."""
    weights = query.word_weights
    kept = np.flatnonzero(weights)
    return {
        "u": json_numbers(query.vector),
        "ids": query.ids[kept].tolist(),
        "weights": [float(f"{weight:.9g}") for weight in weights[kept].tolist()],
    }


def json_numbers(vector: AnyFloat) -> list[float]:
    """Return a vector as JSON numbers that are the same float32 when read back."""
    return [float(f"{value:.9g}") for value in vector.tolist()]


def score_body(fields: InsideFields, query: QueryVectors, ids: Sequence[str], size: int) -> dict[str, Any]:
    """Return the body that scores the documents with these ids by f; those without a vector do not come back.

    ``size`` is the most hits, at most 10,000: more than ids where an alias holds several documents of one id.
    """
    conditions: dict[str, Any] = {"filter": [{"ids": {"values": list(ids)}}, {"exists": {"field": fields.vector}}]}
    scored: dict[str, Any] = {"bool": conditions}
    if fields.method == "script":
        scored = {"script_score": {"query": scored, "script": _script("model", fields, query_params(query))}}
    else:
        conditions["should"] = _unit_clauses(fields, query, ids, size)
    return {"query": scored, "size": size, "_source": False, "track_total_hits": False}


def _unit_clauses(fields: InsideFields, query: QueryVectors, ids: Sequence[str], size: int) -> list[dict[str, Any]]:
    clauses: list[dict[str, Any]] = []
    if query.length > 0:
        # As many neighbours as ids: the engine then looks at each of them, and the answer is exact.
        knn = {
            "field": fields.vector,
            "query_vector": unit_query(query.vector),
            "num_candidates": min(max(size, len(ids)), MAX_CANDIDATES),
            "filter": {"ids": {"values": list(ids)}},
            "boost": 2.0 * fields.norm * query.length,
        }
        clauses.append({"knn": knn})
    words = sparse_query(query)
    if words:
        # Pruning, the default since 8.19, would leave out frequent words: right for a search, wrong for a score.
        clauses.append({"sparse_vector": {"field": fields.terms, "query_vector": words, "prune": False}})
    return clauses


def unit_query(vector: Float32) -> list[float]:
    """Return [v / |v|, 0] as JSON numbers."""
    wide = vector.astype(np.float64)
    return json_numbers(np.append(wide / np.linalg.norm(wide), 0.0))


def sparse_query(query: QueryVectors) -> dict[str, float]:
    """Return the words of q, weighted by a, by the names they have in the index."""
    pairs = zip(query.ids.tolist(), query.word_weights.tolist(), strict=True)
    return {f"{part}{term}": float(f"{weight:.9g}") for term, weight in pairs if weight for part in "tr"}


def model_scores(fields: InsideFields, query: QueryVectors, scores: Sequence[float]) -> Float64:
    """Return f from the scores that answer `score_body`, (n,) float64."""
    values = np.asarray(scores, dtype=np.float64)
    return unmapped(values) if fields.method == "script" else values - fields.norm * query.length


def unmapped(scores: Float64) -> Float64:
    """Return x from g(x) = 1 + x, and 1 / (1 - x) below 0; -inf from 0 and NaN from what g never is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scores >= 1.0, scores - 1.0, np.where(scores >= 0, 1.0 - 1.0 / scores, np.nan))


def why_not_rescored(body: Mapping[str, Any], fields: InsideFields) -> str:
    """Return why the engine cannot order the hits of a body by itself, or an empty string.

    A script sees one first-stage score, that of ``query``: a body that scores by more (``knn``, ``retriever``, its own
    ``rescore``) or sorts otherwise is scored by ids.
    """
    if fields.method != "script":
        return "rescoring takes painless scripts"
    if "query" not in body:
        return "the body has no query"
    other = sorted(set(body) - _RESCORABLE)
    return f"the body has {other[0]!r}" if other else ""


def rescore_body(
    body: Mapping[str, Any],
    fields: InsideFields,
    query: QueryVectors,
    blending: Blending,
    floor: float | None = None,
    *,
    stored: str | None = None,
) -> dict[str, Any]:
    """Return the team's body with a ``rescore`` that orders its window by the blend; read scores with `unmapped`.

    ``body`` is one that `why_not_rescored` lets pass, with the query's text in its place. ``floor`` is the score of the
    window's last hit, None where one shard has the whole index, or the window all hits; ``stored`` the id of the stored
    script, None sends its source.
    """
    params = query_params(query) | {
        "alpha": float(blending.alpha), "lexical": float(blending.lexical), "lost": LOST,
        "floor": 0.0 if floor is None else floor * _ROUNDING,
    }  # fmt: skip
    script = {"id": stored, "params": params} if stored else _script("blend", fields, params)
    if fields.rescore_script:
        rescorer: dict[str, Any] = {"script": {"script": script}}
    else:
        again = {"script_score": {"query": copy.deepcopy(body["query"]), "script": script}}
        rescorer = {"query": {"rescore_query": again, "query_weight": 0.0, "rescore_query_weight": 1.0}}
    return {**copy.deepcopy(dict(body)), "rescore": {"window_size": blending.window, **rescorer}}


def floor_body(body: Mapping[str, Any], window: int) -> dict[str, Any]:
    """Return the body whose only hit is the last one of the window; none where fewer documents match."""
    last = candidate_body(body, 1, answers=False)
    return {**last, "from": window - 1, "track_total_hits": False}
