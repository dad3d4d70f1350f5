"""Rerank the results of a search engine with a model trained on a site's own links, judgments or clicks.

Public names are imported on first use, so that ``import reranker`` loads no library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reranker.engines import EngineSettings, open_engine
    from reranker.errors import RerankerError
    from reranker.formats import read_documents
    from reranker.models.model_folder import load_model, save_model
    from reranker.models.ranking_model import RankingModel
    from reranker.quickstart import index, search, train
    from reranker.records import Document, Hit, RankedHit
    from reranker.rerank import RerankedPage, Reranker, RerankSettings
    from reranker.tables import read_links, read_pairs, read_qrels, read_queries
    from reranker.training import (
        DocumentSource,
        Listener,
        TrainConfig,
        TrainingReport,
        from_judgements,
        from_links,
        from_pairs,
        train_model,
    )

_NAMES = {
    "reranker.engines": ("EngineSettings", "open_engine"),
    "reranker.errors": ("RerankerError",),
    "reranker.formats": ("read_documents",),
    "reranker.models.model_folder": ("load_model", "save_model"),
    "reranker.models.ranking_model": ("RankingModel",),
    "reranker.quickstart": ("index", "search", "train"),
    "reranker.records": ("Document", "Hit", "RankedHit"),
    "reranker.rerank": ("RerankSettings", "RerankedPage", "Reranker"),
    "reranker.tables": ("read_links", "read_pairs", "read_qrels", "read_queries"),
    "reranker.training": (
        "DocumentSource",
        "Listener",
        "TrainConfig",
        "TrainingReport",
        "from_judgements",
        "from_links",
        "from_pairs",
        "train_model",
    ),
}
"""Module → the public names that it defines."""

__all__ = [
    "Document",
    "DocumentSource",
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
    "index",
    "load_model",
    "open_engine",
    "read_documents",
    "read_links",
    "read_pairs",
    "read_qrels",
    "read_queries",
    "save_model",
    "search",
    "train",
    "train_model",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module 'reranker' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
