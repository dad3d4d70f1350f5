"""Inner loops over flat arrays, compiled by numba; their readable definitions are in ``tests/reference``."""
