"""The index that a rebuild fills."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from indexer.mapping import index_mapping, rebuilt_mapping, rebuilt_settings
from reranker.artifacts import RankingModel
from reranker.engines.base import Engine
from reranker.releases import ControlRecord, update_control
from reranker.text.view import TextView

_NUMBERED = re.compile(r"-(\d{6,})$")


def rebuild_target(
    engine: Engine,
    index: str,
    old: Sequence[str],
    properties: dict[str, Any],
    model: RankingModel | None,
    settings: Mapping[str, str] | None,
    goes_on: Callable[[str], bool],
) -> str:
    """Return the index to fill: that of an interrupted rebuild, or a new one, noted before it is made.

    An index is filled further only where the load goes on. One whose load would begin again is retired: it may hold
    documents that have left the file since.

    Parameters
    ----------
    engine, index : Engine, str
        Where the rebuild is of, and its alias.
    old : sequence of str
        Indexes behind the alias now.
    properties : dict
        Fields of the model's version, empty without a model.
    model : RankingModel or None
        Names the fields of text where there is no index to take them from.
    settings : mapping or None
        Settings that a new index needs.
    goes_on : callable
        True for an unfinished index whose load would continue.
    """

    def noted(record: ControlRecord) -> ControlRecord:
        # A rebuild killed after its swap is finished now.
        record = record.with_indexes_live(old)
        return record.with_building(_name_to_fill(engine, index, old, record, goes_on))

    (concrete,) = update_control(engine, index, noted).building
    if engine.index_names(concrete):
        if properties:
            engine.put_properties(concrete, properties)
    elif old:
        info = engine.index_info(old[-1])
        remote = engine.capabilities().kind in ("elasticsearch", "opensearch")
        kept = {**rebuilt_settings(info), **(settings or {})} if remote else None
        engine.create_index(concrete, rebuilt_mapping(info, properties), kept)
    else:
        view = model.encoder.view if model else TextView()
        engine.create_index(concrete, index_mapping([spec.path for spec in view.fields], properties), settings)
    return concrete


def _name_to_fill(
    engine: Engine, index: str, old: Sequence[str], record: ControlRecord, goes_on: Callable[[str], bool]
) -> str:
    """Return the last unfinished index whose load goes on, or else a name that no index has had."""
    unfinished = [name for name in record.building if goes_on(name)]
    if unfinished:
        return unfinished[-1]
    known = [*old, *record.building, *record.retired]
    numbers = [int(match.group(1)) for name in known if (match := _NUMBERED.search(name))]
    concrete = f"{index}-{max(numbers, default=0) + 1:06d}"
    while engine.index_names(concrete):
        concrete = f"{index}-{int(concrete[-6:]) + 1:06d}"
    return concrete
