"""Models: used (`RankingModel`), written (`save_model`), read back with every byte verified (`load_model`)."""

from __future__ import annotations

from reranker.artifacts.model import EncodedQueries, RankingModel, describe_model, load_model, save_model

__all__ = ["EncodedQueries", "RankingModel", "describe_model", "load_model", "save_model"]
