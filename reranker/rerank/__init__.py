"""Candidates → vectors → scores → blend → stable order → page."""

from __future__ import annotations

from reranker.rerank.answer import RerankedPage
from reranker.rerank.calibration import DEFAULT_ALPHA, Calibration, body_hash
from reranker.rerank.explain import Explanation
from reranker.rerank.ranking import RerankSettings, blend, default_template
from reranker.rerank.search import Reranker

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
