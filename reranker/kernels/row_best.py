"""The best columns of sparse rows: compiled where numba can be imported, else the readable definition."""

from __future__ import annotations

try:
    from reranker.kernels.row_best_compiled import best_columns
except ImportError:  # numba has no build for this Python or platform: slower, same results
    from reranker.kernels.row_best_reference import best_columns

__all__ = ["best_columns"]
