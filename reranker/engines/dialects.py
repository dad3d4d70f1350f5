"""What differs between Elasticsearch and OpenSearch, and what a version of either can do, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from reranker.engines.protocol import Capabilities, SourceFilter, version_numbers


@dataclass(frozen=True, slots=True)
class Dialect:
    """One of the engines that speak the same wire; a version ``()`` stands for all versions."""

    least: Capabilities
    """What every version can do: all that is known where a role may not ask."""
    shard_doc_pit: bool
    """A point in time can be read in the order of ``_shard_doc``; otherwise scans use a scroll."""
    whole_source: SourceFilter
    """The ``_source`` option that brings whole documents."""
    vector_type: str
    vector_module: str
    """Type of a stored vector, and the module or plugin that brings it ("": always there)."""
    sparse_types: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Types for words with weights, best first, with the module each needs and its first version."""
    max_dims: tuple[tuple[tuple[int, ...], int], ...]
    """First version → most numbers of a vector, newest first."""
    rescore_script: tuple[int, ...] | None
    """First version whose ``rescore`` may be a script itself; None: none."""

    def capabilities(
        self, version: str, modules: set[str] | None = None, max_bulk_bytes: int | None = None
    ) -> Capabilities:
        """Return what a version with these modules and plugins can do; None counts as the full distribution's."""
        numbers = version_numbers(version)

        def has(module: str) -> bool:
            return not module or modules is None or module in modules

        sparse = [name for name, module, since in self.sparse_types if has(module) and numbers >= since]
        return replace(
            self.least,
            version=version,
            dense_vector=self.vector_type if has(self.vector_module) else "",
            sparse_terms=sparse[0] if sparse else "",
            painless=has("lang-painless"),
            rescore_script=self.rescore_script is not None and numbers >= self.rescore_script,
            max_bulk_bytes=max_bulk_bytes or self.least.max_bulk_bytes,
            max_dims=next(dims for since, dims in self.max_dims if numbers >= since),
            modules=None if modules is None else frozenset(modules),
        )


ELASTICSEARCH = Dialect(
    least=Capabilities(
        "elasticsearch", vector_product="dotProduct(params.u, '@VECTOR@')", hnsw=True, product="Elasticsearch"
    ),
    shard_doc_pit=True,
    # Since 9.2, true leaves vectors out: a document read and written back would lose them.
    whole_source=("*",),
    vector_type="dense_vector",
    vector_module="",
    sparse_types=(("sparse_vector", "", (8, 11)), ("rank_features", "mapper-extras", ())),
    max_dims=(((8, 11), 4096), ((), 2048)),
    rescore_script=(9, 2),
)
OPENSEARCH = Dialect(
    least=Capabilities("opensearch", vector_product="innerProduct(params.u, doc['@VECTOR@'])", hnsw=True),
    shard_doc_pit=False,
    whole_source=True,
    vector_type="knn_vector",
    vector_module="opensearch-knn",
    sparse_types=(("rank_features", "mapper-extras", ()),),
    max_dims=(((), 16000),),
    rescore_script=None,
)


def scripts_allowed(settings: Mapping[str, Any]) -> bool:
    """Return True where a node's ``script.*`` settings let a search carry a scoring script; absent, all is allowed."""
    types, contexts = (_listed(settings.get(name)) for name in ("allowed_types", "allowed_contexts"))
    return (not types or bool({"both", "inline"} & types)) and (not contexts or "score" in contexts)


def _listed(value: Any) -> set[str]:
    items = value if isinstance(value, list) else str(value or "").strip("[]").split(",")
    return {str(item).strip() for item in items} - {""}
