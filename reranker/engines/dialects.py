"""Differences between Elasticsearch and OpenSearch, and the capabilities of their versions, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    sparse_types: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Mapping types for words with weights, best first: (type, required module, first version)."""
    words_beside_source: tuple[int, ...] | None
    """First version that keeps words with weights out of ``_source``; None if no version does."""

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
            sparse_terms=sparse[0] if sparse else "",
            words_in_source=self.words_beside_source is None or numbers < self.words_beside_source,
            max_bulk_bytes=max_bulk_bytes or self.least.max_bulk_bytes,
        )


ELASTICSEARCH = Dialect(
    least=Capabilities(
        "elasticsearch",
        doc_value_hits=True,
        product="Elasticsearch",
    ),
    shard_doc_pit=True,
    # Since 9.2, true omits vectors: a document read and written back would lose them.
    whole_source=("*",),
    sparse_types=(("sparse_vector", "", (8, 11)), ("rank_features", "mapper-extras", ())),
    words_beside_source=(9, 2),
)
OPENSEARCH = Dialect(
    least=Capabilities("opensearch", doc_value_hits=True),
    shard_doc_pit=False,
    whole_source=True,
    sparse_types=(("rank_features", "mapper-extras", ()),),
    words_beside_source=None,
)
