"""An index with a model's fields for benchmarks of the routes."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from indexer.build import index_mapping
from indexer.encoding import VersionEncoder
from reranker.engines.protocol import Engine, WriteOp
from reranker.models.ranking_model import RankingModel

BATCH = 500
Sources = dict[str, dict[str, Any]]


@contextlib.contextmanager
def filled_index(
    engine: Engine, sources: Sources, model: RankingModel, routes: Sequence[str], store: Path | None, n_shards: int = 1
) -> Iterator[str]:
    """Yield the name of an index with all documents and the fields of these routes; it is deleted afterwards."""
    able = engine.capabilities()
    index = f"bench-{uuid.uuid4().hex[:10]}"
    version = VersionEncoder(model.encoder, tuple(routes), store, able)
    shards = {"index.number_of_shards": str(n_shards), "index.number_of_replicas": "0"}
    settings = shards if able.kind in ("elasticsearch", "opensearch") else None
    engine.create_index(index, index_mapping(version.text_paths, version.properties(able)), settings)
    names = list(sources)
    try:
        with version:
            for start in range(0, len(names), BATCH):
                part = names[start : start + BATCH]
                fields = version.fields(part, [sources[name] for name in part])
                ops = [WriteOp("index", n, {**sources[n], **f}) for n, f in zip(part, fields, strict=True)]
                bad = [result for result in engine.bulk(index, ops) if result.status >= 300]
                assert not bad, bad[0]
                version.stored(part)
            version.publish()
        engine.refresh(index)
        yield index
    finally:
        engine.delete_index(index)
