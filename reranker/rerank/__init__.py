"""Candidates → vectors → scores → blend → stable order → page.

The names are imported when they are asked for, so that settings can be read without numerical libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reranker.rerank.answer import RerankedPage
    from reranker.rerank.calibration import DEFAULT_ALPHA, Calibration, body_hash
    from reranker.rerank.explain import Explanation
    from reranker.rerank.ranking import blend, default_template
    from reranker.rerank.search import Reranker
    from reranker.rerank.settings import RerankSettings

_NAMES = {
    "reranker.rerank.answer": ("RerankedPage",),
    "reranker.rerank.calibration": (
        "DEFAULT_ALPHA",
        "Calibration",
        "body_hash",
    ),
    "reranker.rerank.explain": ("Explanation",),
    "reranker.rerank.ranking": (
        "blend",
        "default_template",
    ),
    "reranker.rerank.search": ("Reranker",),
    "reranker.rerank.settings": ("RerankSettings",),
}
"""The modules that define the public names."""

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


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
