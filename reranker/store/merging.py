"""Which entry of the id index is the current one, and which segments are worth rewriting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from reranker.store.ids import IdBlock, Int64s, UInt64s, hash_ids, same_ids, take_ids
from reranker.store.layout import ROW_MASK, SEGMENT_SHIFT
from reranker.store.segment import Segment

if TYPE_CHECKING:
    from reranker.store.segment_files import SegmentFiles

COPY_ROWS = 4096
"""Rows copied at once by a merge."""


def _id_bytes(row: int, segments: Mapping[int, Segment]) -> bytes:
    ids, local = segments[row >> SEGMENT_SHIFT].ids, row & ROW_MASK
    return ids.buffer[int(ids.offsets[local]) : int(ids.offsets[local + 1])].tobytes()


def latest_entries(keys: UInt64s, rows: Int64s, segments: Mapping[int, Segment]) -> tuple[UInt64s, Int64s]:
    """Return the index sorted by key, with one entry an id: the last in the order given.

    Two ids may share a key; both stay.
    """
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    keep = np.ones(len(keys), dtype=bool)
    bounds = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]])
    for start, end in zip(bounds[:-1][np.diff(bounds) > 1], bounds[1:][np.diff(bounds) > 1], strict=True):
        seen: set[bytes] = set()
        for place in range(int(end) - 1, int(start) - 1, -1):
            name = _id_bytes(int(rows[place]), segments)
            keep[place] = name not in seen
            seen.add(name)
    return keys[keep], rows[keep]


def drop_rows(keys: UInt64s, rows: Int64s, segments: Mapping[int, Segment], ids: IdBlock) -> npt.NDArray[np.bool_]:
    """Return which entries of the index stay when ``ids`` are deleted, (n_entries,) bool."""
    keep = np.ones(len(keys), dtype=bool)
    wanted = hash_ids(ids)
    left, right = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
    for position in np.flatnonzero(right > left).tolist():
        one = np.array([position], dtype=np.int64)
        for place in range(int(left[position]), int(right[position])):
            row = int(rows[place])
            stored = segments[row >> SEGMENT_SHIFT].ids
            if same_ids(ids, one, stored, np.array([row & ROW_MASK], dtype=np.int64))[0]:
                keep[place] = False
    return keep


def plan_merge(sizes: Mapping[int, int], living: Mapping[int, int]) -> list[int]:
    """Return the numbers of the segments to rewrite as one, or an empty list.

    Segments whose rows are mostly dead are rewritten; from the smallest up, so are those not more than twice as large
    as all smaller ones together. Sizes thus grow geometrically: there are O(log n) segments, and a row is copied
    O(log n) times in its life (the rule of log-structured merging).
    """
    chosen = [number for number, n_rows in sizes.items() if living[number] * 2 < n_rows]
    total, run = sum(living[number] for number in chosen), list(chosen)
    for number in sorted((n for n in sizes if n not in chosen), key=lambda n: (living[n], n)):
        if run and living[number] > 2 * total:
            break
        run.append(number)
        total += living[number]
    chosen = run if len(run) > 1 else chosen
    return sorted(chosen)


def copy_rows(segments: Mapping[int, Segment], rows: Int64s, places: Int64s, target: SegmentFiles) -> None:
    """Append the rows at ``rows[places]`` to ``target`` and write their new numbers back into ``rows``."""
    places = places[np.argsort(rows[places], kind="stable")]
    for start in range(0, len(places), COPY_ROWS):
        batch = places[start : start + COPY_ROWS]
        numbers = rows[batch] >> SEGMENT_SHIFT
        for number in np.unique(numbers).tolist():
            chosen = batch[numbers == number]
            local = rows[chosen] & ROW_MASK
            segment = segments[number]
            first = (target.number << SEGMENT_SHIFT) + target.n_rows
            target.append(
                take_ids(segment.ids, local), segment.dense(local), segment.terms(local), segment.sources[local]
            )
            rows[chosen] = np.arange(first, first + len(local), dtype=np.int64)
