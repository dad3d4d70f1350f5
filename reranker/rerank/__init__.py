"""Reranking of a search: candidates → vectors → scores → blend → stable order → page.

Names are imported lazily, so that settings can be read without numerical libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reranker.lazy import names_of

if TYPE_CHECKING:
    from reranker.rerank.answer import RerankedPage
    from reranker.rerank.calibration.bodies import body_hash
    from reranker.rerank.calibration.kept import DEFAULT_ALPHA, Calibration
    from reranker.rerank.explain import Explanation
    from reranker.rerank.ranking import blend, default_template
    from reranker.rerank.search import Reranker
    from reranker.rerank.settings import RerankSettings

_NAMES = {
    "reranker.rerank.answer": ("RerankedPage",),
    "reranker.rerank.calibration.bodies": ("body_hash",),
    "reranker.rerank.calibration.kept": ("DEFAULT_ALPHA", "Calibration"),
    "reranker.rerank.explain": ("Explanation",),
    "reranker.rerank.ranking": (
        "blend",
        "default_template",
    ),
    "reranker.rerank.search": ("Reranker",),
    "reranker.rerank.settings": ("RerankSettings",),
}
"""Modules that define the public names."""

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

__getattr__ = names_of(__name__, _NAMES)
