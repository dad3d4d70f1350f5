"""The kernels of the papers' plain SGD: compiled where numba can be imported, else the readable definition."""

from __future__ import annotations

try:
    from reranker.kernels.plain_sgd_compiled import (
        dense_pairs,
        dense_steps,
        diagonal_steps,
        hash_expand,
        hash_pairs,
        hash_steps,
        low_rank_steps,
    )
except ImportError:  # numba has no build for this Python or platform: slower, same results
    from reranker.kernels.plain_sgd_reference import (
        dense_pairs,
        dense_steps,
        diagonal_steps,
        hash_expand,
        hash_pairs,
        hash_steps,
        low_rank_steps,
    )

__all__ = [
    "dense_pairs",
    "dense_steps",
    "diagonal_steps",
    "hash_expand",
    "hash_pairs",
    "hash_steps",
    "low_rank_steps",
]
