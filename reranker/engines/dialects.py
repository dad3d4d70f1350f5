"""Differences between Elasticsearch and OpenSearch, and the capabilities of their versions, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from reranker.engines.protocol import Capabilities, SourceFilter, version_numbers


@dataclass(frozen=True, slots=True)
class Dialect:
    """One of the two engines with the same HTTP API. In its fields, the version ``()`` means all versions."""

    least: Capabilities
    """Capabilities of every version; used if a role may not query the engine's version."""
    shard_doc_pit: bool
    """Whether a point in time can be read in the order of ``_shard_doc``; otherwise scans use a scroll."""
    whole_source: SourceFilter
    """The ``_source`` option that returns complete documents."""
    vector_type: str
    """Mapping type of a stored vector."""
    vector_module: str
    """Module or plugin that provides it; "" if it is built in."""
    sparse_types: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Mapping types for words with weights, best first: (type, required module, first version)."""
    max_dims: tuple[tuple[tuple[int, ...], int], ...]
    """(first version, largest number of vector dimensions), newest version first."""
    words_beside_source: tuple[int, ...] | None
    """First version that keeps words with weights out of ``_source``; None if no version does."""
    rescore_script: tuple[int, ...] | None
    """First version whose ``rescore`` accepts a script; None if no version does."""

    def capabilities(
        self, version: str, modules: set[str] | None = None, max_bulk_bytes: int | None = None
    ) -> Capabilities:
        """Return the capabilities of a version with these modules and plugins; None means the full distribution."""
        numbers = version_numbers(version)

        def has(module: str) -> bool:
            return not module or modules is None or module in modules

        sparse = [name for name, module, since in self.sparse_types if has(module) and numbers >= since]
        return replace(
            self.least,
            version=version,
            dense_vector=self.vector_type if has(self.vector_module) else "",
            sparse_terms=sparse[0] if sparse else "",
            words_in_source=self.words_beside_source is None or numbers < self.words_beside_source,
            painless=has("lang-painless"),
            rescore_script=self.rescore_script is not None and numbers >= self.rescore_script,
            max_bulk_bytes=max_bulk_bytes or self.least.max_bulk_bytes,
            max_dims=next(dims for since, dims in self.max_dims if numbers >= since),
            modules=None if modules is None else frozenset(modules),
        )


ELASTICSEARCH = Dialect(
    least=Capabilities(
        "elasticsearch",
        vector_product="dotProduct(params.u, '@VECTOR@')",
        doc_value_hits=True,
        product="Elasticsearch",
    ),
    shard_doc_pit=True,
    # Since 9.2, true omits vectors: a document read and written back would lose them.
    whole_source=("*",),
    vector_type="dense_vector",
    vector_module="",
    sparse_types=(("sparse_vector", "", (8, 11)), ("rank_features", "mapper-extras", ())),
    max_dims=(((8, 11), 4096), ((), 2048)),
    words_beside_source=(9, 2),
    rescore_script=(9, 2),
)
OPENSEARCH = Dialect(
    least=Capabilities("opensearch", vector_product="innerProduct(params.u, doc['@VECTOR@'])", doc_value_hits=True),
    shard_doc_pit=False,
    whole_source=True,
    vector_type="knn_vector",
    vector_module="opensearch-knn",
    sparse_types=(("rank_features", "mapper-extras", ()),),
    max_dims=(((), 16000),),
    words_beside_source=None,
    rescore_script=None,
)


def scripts_allowed(settings: Mapping[str, Any]) -> bool:
    """Return whether a node's ``script.*`` settings allow scoring scripts in searches; missing settings allow all."""
    types, contexts = (_listed(settings.get(name)) for name in ("allowed_types", "allowed_contexts"))
    return (not types or bool({"both", "inline"} & types)) and (not contexts or "score" in contexts)


def _listed(value: Any) -> set[str]:
    items = value if isinstance(value, list) else str(value or "").strip("[]").split(",")
    return {str(item).strip() for item in items} - {""}
