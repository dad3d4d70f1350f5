"""The types of arrays, named once for the whole project, and the offsets of runs laid end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]
AnyFloat = npt.NDArray[np.floating[Any]]
AnyInt = npt.NDArray[np.integer[Any]]
AnyArray = npt.NDArray[Any]


def offsets_of(lengths: AnyArray | list[int]) -> Int64:
    """Return where each of n runs laid end to end begins, and where the last one ends, (n + 1,) int64."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets
