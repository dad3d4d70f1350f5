"""The heap of the C library: how many arenas the threads of a process share."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's malloc.h."""


def share_arenas(n_arenas: int) -> bool:
    """Make all threads allocate from ``n_arenas`` memory arenas; return False if the C library has no such setting.

    By default glibc gives each thread its own arena, and the threads of other arenas cannot use memory that is freed in
    it. A process then grows to the number of its threads times what one of them needs.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_ARENA_MAX, n_arenas))
