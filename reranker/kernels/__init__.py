"""Inner loops over flat arrays: a readable definition in `reference` and the same, compiled, in `compiled`.

The names of the serving kernels here are the compiled ones wherever numba can be imported; ``KERNELS`` says which.
"""

from __future__ import annotations

from typing import Final

try:
    from reranker.kernels.compiled import embed, row_dots, score_rows
except ImportError:  # numba has no build for this Python or platform: slower, same results
    from reranker.kernels.reference import embed, row_dots, score_rows

KERNELS: Final = "compiled" if embed.__module__.endswith("compiled") else "reference"

__all__ = ["KERNELS", "embed", "row_dots", "score_rows"]
