"""The seed of random tests: fixed, printed, and settable by the environment variable SEED."""

from __future__ import annotations

import os

import numpy as np


def seeded_rng(offset: int = 0) -> np.random.Generator:
    """Return a generator seeded by SEED (default 20,100) plus ``offset``, and print the seed for a failure's report."""
    seed = int(os.environ.get("SEED", "20100")) + offset
    print(f"SEED={seed - offset}")  # noqa: T201 - pytest shows it with a failure
    return np.random.default_rng(seed)
