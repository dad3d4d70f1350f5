"""Candidates → vectors → scores → blend → stable order → page."""

from __future__ import annotations

from reranker.rerank.candidates import lexical_scale
from reranker.rerank.ranking import (
    DEFAULT_ALPHA,
    ROUTES,
    Calibration,
    Contribution,
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
    "ROUTES",
    "Calibration",
    "Contribution",
    "Explanation",
    "RerankSettings",
    "RerankedPage",
    "Reranker",
    "blend",
    "body_hash",
    "default_template",
    "lexical_scale",
]
