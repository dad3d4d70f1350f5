"""The training kernel: compiled where numba can be imported, else the readable definition."""

from __future__ import annotations

try:
    from reranker.kernels.sgd_compiled import sgd_steps
except ImportError:  # numba has no build for this Python or platform: slower, same results
    from reranker.kernels.sgd_reference import sgd_steps

__all__ = ["sgd_steps"]
