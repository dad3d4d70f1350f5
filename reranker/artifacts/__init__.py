"""Models, used and encoding (`RankingModel`, `Encoder`), written and read back with every byte verified."""

from __future__ import annotations

from reranker.artifacts.files import describe_model
from reranker.artifacts.model import EncodedDocuments, EncodedQueries, Encoder, RankingModel, load_model, save_model

__all__ = [
    "EncodedDocuments", "EncodedQueries", "Encoder", "RankingModel", "describe_model", "load_model", "save_model",
]  # fmt: skip
