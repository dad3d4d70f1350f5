"""Candidates → vectors → scores → blend → stable order → page."""

from __future__ import annotations

from reranker.rerank.ranking import (
    DEFAULT_ALPHA,
    Calibration,
    Explanation,
    RerankedPage,
    RerankSettings,
    blend,
    body_hash,
    default_template,
)
from reranker.rerank.reranker import Reranker

__all__ = [
    "DEFAULT_ALPHA",
    "Calibration",
    "Explanation",
    "RerankSettings",
    "RerankedPage",
    "Reranker",
    "blend",
    "body_hash",
    "default_template",
]
