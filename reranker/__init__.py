"""Teach a search engine, from a site's own links and clicks, which words of a query and a document belong together.

The names below are imported when they are first used: ``import reranker`` alone loads no library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel, load_model, save_model
    from reranker.engines import EngineSettings, open_engine
    from reranker.errors import RerankerError
    from reranker.formats import read_documents, read_links, read_pairs, read_qrels, read_queries
    from reranker.records import Document, Hit, RankedHit
    from reranker.rerank import RerankedPage, Reranker, RerankSettings
    from reranker.training import (
        Corpus,
        Listener,
        TrainConfig,
        TrainingReport,
        from_judgements,
        from_links,
        from_pairs,
        train_model,
    )

_HOME = {
    "Corpus": "reranker.training",
    "Document": "reranker.records",
    "EngineSettings": "reranker.engines",
    "Hit": "reranker.records",
    "Listener": "reranker.training",
    "RankedHit": "reranker.records",
    "RankingModel": "reranker.artifacts",
    "RerankSettings": "reranker.rerank",
    "RerankedPage": "reranker.rerank",
    "Reranker": "reranker.rerank",
    "RerankerError": "reranker.errors",
    "TrainConfig": "reranker.training",
    "TrainingReport": "reranker.training",
    "from_judgements": "reranker.training",
    "from_links": "reranker.training",
    "from_pairs": "reranker.training",
    "load_model": "reranker.artifacts",
    "open_engine": "reranker.engines",
    "read_documents": "reranker.formats",
    "read_links": "reranker.formats",
    "read_pairs": "reranker.formats",
    "read_qrels": "reranker.formats",
    "read_queries": "reranker.formats",
    "save_model": "reranker.artifacts",
    "train_model": "reranker.training",
}
"""Public name → the module that defines it."""

__all__ = [
    "Corpus",
    "Document",
    "EngineSettings",
    "Hit",
    "Listener",
    "RankedHit",
    "RankingModel",
    "RerankSettings",
    "RerankedPage",
    "Reranker",
    "RerankerError",
    "TrainConfig",
    "TrainingReport",
    "from_judgements",
    "from_links",
    "from_pairs",
    "load_model",
    "open_engine",
    "read_documents",
    "read_links",
    "read_pairs",
    "read_qrels",
    "read_queries",
    "save_model",
    "train_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'reranker' has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
