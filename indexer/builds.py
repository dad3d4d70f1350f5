"""`ssi index`: makes the index where it is missing, fills it, and rebuilds it behind its alias without downtime.

The mapping of an index that this project creates. Pure.

Text fields of the model's view are mapped as text; all other fields are left to the engine, with guessing of dates
and numbers in strings switched off: with it, one document whose ``code`` looks like a date makes the engine refuse the
next one whose ``code`` does not.

The index that a rebuild fills.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexer.documents import LoadOptions, LoadReport, load_documents, load_was_interrupted
from indexer.encoding import VersionEncoder
from reranker.artifacts import RankingModel
from reranker.engines.base import Engine, IndexInfo
from reranker.errors import GateRefused, InputError
from reranker.progress import Progress, Say, no_progress, silent
from reranker.releases import ControlRecord, Release, update_control, utc_now
from reranker.text.view import TextView

SSI_PREFIX = "ssi_"
_KEPT_SETTINGS = (
    "index.analysis.", "index.number_of_shards", "index.number_of_replicas", "index.similarity.", "index.knn",
)  # fmt: skip


def index_mapping(text_paths: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``mappings`` object of a new index.

    Parameters
    ----------
    text_paths : sequence of str
        Fields of the text view; dots lead into objects.
    properties : mapping
        Fields of the version (and of anything else wanted), by name.
    """
    result: dict[str, Any] = {}
    for path in text_paths:
        _put(result, path.split("."))
    return {"date_detection": False, "numeric_detection": False, "properties": {**result, **properties}}


def _put(properties: dict[str, Any], parts: list[str]) -> None:
    for name in parts[:-1]:
        inner = properties.setdefault(name, {"properties": {}})
        if "properties" not in inner:
            return  # a text field is above this path already: the engine sees its text there
        properties = inner["properties"]
    properties.setdefault(parts[-1], {"type": "text"})


def rebuilt_mapping(old: IndexInfo, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping of a rebuild: the old one's, without fields of any version, with those of the new one."""
    kept = {name: value for name, value in old.properties.items() if not name.startswith(SSI_PREFIX)}
    return {**old.mapping, "properties": {**kept, **properties}}


def rebuilt_settings(old: IndexInfo) -> dict[str, str]:
    """Return the settings a rebuild carries over: shards, replicas, analysis, similarity, vector search."""
    return {name: value for name, value in old.settings.items() if name.startswith(_KEPT_SETTINGS)}


def n_fields(properties: Mapping[str, Any]) -> int:
    """Return how many fields a mapping counts against ``index.mapping.total_fields.limit``: leaves, objects, copies."""
    total = 0
    for definition in properties.values():
        total += 1
        for inner in ("properties", "fields"):
            children = definition.get(inner)
            if isinstance(children, Mapping):
                total += n_fields(children)
    return total


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
        kept = None if engine.in_process else {**rebuilt_settings(info), **(settings or {})}
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


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What is built, besides the documents.

    Parameters
    ----------
    routes : tuple of str
        Fields written for the model, see `reranker.engines.fields.version_fields`.
    store_path : Path or None
        Local store of route *beside*.
    rebuild : bool
        Fill a new concrete index and swap the alias at the end.
    load : LoadOptions
        How the file is loaded.
    """

    routes: tuple[str, ...] = ("fetch",)
    store_path: Path | None = None
    rebuild: bool = False
    load: LoadOptions = field(default_factory=LoadOptions)


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What `build_index` did.

    Parameters
    ----------
    index : str
        Name users search.
    concrete : str
        The index written to.
    retired : tuple of str
        Indexes taken from the alias by a rebuild; `ssi gc` deletes them.
    live : bool
        True where the model's release is now the live one.
    load : LoadReport
        The account of the documents.
    """

    index: str
    concrete: str
    retired: tuple[str, ...]
    live: bool
    load: LoadReport

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "index": self.index,
            "concrete": self.concrete,
            "retired": list(self.retired),
            "live": self.live,
            **self.load.to_json(),
        }


def build_index(
    engine: Engine,
    index: str,
    path: Path,
    model: RankingModel | None,
    options: BuildOptions | None = None,
    *,
    progress: Progress = no_progress,
    notice: Say = silent,
) -> BuildReport:
    """Return the report of sending a document file to an index, made where it is missing.

    A new index is called ``<index>-000001`` and reached by the alias ``<index>``, so that it can be rebuilt later
    without downtime. With a model, its release is registered, and made live where none was.

    Parameters
    ----------
    engine, index : Engine, str
        Where to; ``index`` is an alias or an index.
    path : Path
        The documents.
    model : RankingModel or None
        Whose vectors are stored beside the documents; None stores the documents alone.
    options, progress, notice
        See `BuildOptions` and `indexer.documents.load_documents`.

    Raises
    ------
    InputError
        For a name behind which several indexes stand, or an unreadable file.
    GateRefused
        Where a rebuild is not possible or its result incomplete: the alias stays where it was.
    EngineError
        Where the engine refuses. A load that stopped half-way is told by ``load.bulk.stopped`` instead.
    """
    options = options or BuildOptions()
    version = None
    if model is not None:
        version = VersionEncoder(model.encoder, options.routes, options.store_path, engine.capabilities())
    view = model.encoder.view if model else TextView()
    if options.rebuild:
        return _rebuild(engine, index, path, model, version, options, progress, notice)
    concrete = _ensure_index(engine, index, [spec.path for spec in view.fields], version)
    load = _load(engine, concrete, path, version, options.load, progress, notice)
    live = model is not None and load.bulk.stopped is None and register(engine, index, model)
    return BuildReport(index, concrete, (), live, load)


def register(engine: Engine, index: str, model: RankingModel, *, promote: bool | None = None) -> bool:
    """Register the model's release and return whether it is the live one now; a calibration found is kept.

    Parameters
    ----------
    engine, index : Engine, str
        The served index.
    model : RankingModel
        The model.
    promote : bool or None
        Make it live; None only where no release is.
    """
    model_id, encoder_id = model.model_id, model.encoder_id

    def change(record: ControlRecord) -> ControlRecord:
        if all(r.model_id != model_id for r in record.releases):
            record = record.with_release(Release(model_id, encoder_id, {}, utc_now()))
        wanted = record.live is None if promote is None else promote
        return record.with_live(model_id) if wanted else record

    return update_control(engine, index, change).live == model_id


def concrete_index(engine: Engine, index: str) -> str:
    """Return the one concrete index behind a name.

    Raises
    ------
    InputError
        Where there is none or several.
    """
    names = engine.index_names(index)
    if len(names) != 1:
        found = f"stands for {len(names)} indexes ({', '.join(names)})" if names else "does not exist"
        raise InputError(f"{index!r} {found} on {engine.spec}: name one index or an alias of one", index=index)
    return names[0]


def _ensure_index(engine: Engine, index: str, text_paths: Sequence[str], version: VersionEncoder | None) -> str:
    """Return the concrete index to write to, made with its alias where it is missing, with the version's fields."""
    properties = version.properties(engine.capabilities()) if version else {}
    if engine.index_names(index):
        concrete = concrete_index(engine, index)
        if properties:
            engine.put_properties(concrete, properties)
        return concrete
    concrete = f"{index}-000001"
    if not engine.index_names(concrete):
        engine.create_index(concrete, index_mapping(text_paths, properties), _settings(version))
    elif engine.count(concrete):
        raise InputError(
            f"the index {concrete!r} exists with documents, but no alias {index!r} points to it: point the alias to it "
            "or choose another --index",
            index=concrete,
        )
    elif properties:
        engine.put_properties(concrete, properties)
    engine.swap_alias(index, concrete)
    return concrete


def _load(
    engine: Engine,
    concrete: str,
    path: Path,
    version: VersionEncoder | None,
    options: LoadOptions,
    progress: Progress,
    notice: Say,
) -> LoadReport:
    if version is None:
        load = load_documents(engine, concrete, path, options=options, progress=progress, notice=notice)
    else:
        with version:
            load = load_documents(engine, concrete, path, version, options=options, progress=progress, notice=notice)
    if load.bulk.stopped is None:
        engine.refresh(concrete)
    return load


def _rebuild(
    engine: Engine,
    index: str,
    path: Path,
    model: RankingModel | None,
    version: VersionEncoder | None,
    options: BuildOptions,
    progress: Progress,
    notice: Say,
) -> BuildReport:
    old = engine.index_names(index)
    if old == (index,):
        raise GateRefused(
            f"{index!r} is an index, not an alias, and an index cannot be swapped for another in one step: build under "
            f"a new name ({index}-next), let readers use that alias, or re-vectorise in place with `ssi revectorize`",
            index=index,
        )
    properties = version.properties(engine.capabilities()) if version else {}

    def goes_on(concrete: str) -> bool:
        return load_was_interrupted(engine, concrete, path, version, options.load)

    concrete = rebuild_target(engine, index, old, properties, model, _settings(version), goes_on)
    load = _load(engine, concrete, path, version, options.load, progress, notice)
    if load.bulk.stopped is not None:
        return BuildReport(index, concrete, (), False, load)
    _check_complete(engine, concrete, old, load, one_write_each=options.load.version_field is None)
    # What goes is noted before it goes: a process killed after the swap would leave an index that nobody knows of.
    update_control(engine, index, lambda r: r.with_retired(old))
    engine.swap_alias(index, concrete, old)
    update_control(engine, index, lambda r: r.with_indexes_live((concrete,)))
    live = model is not None and register(engine, index, model, promote=True)
    return BuildReport(index, concrete, tuple(name for name in old if name != concrete), live, load)


def _settings(version: VersionEncoder | None) -> dict[str, str] | None:
    """Return the settings that an index needs from the start, None where there are none."""
    return (version.settings or None) if version else None


def _check_complete(
    engine: Engine, concrete: str, old: Sequence[str], load: LoadReport, *, one_write_each: bool
) -> None:
    """Raise `GateRefused` unless the new index holds what was loaded, and anything at all if the old one did.

    Where a file may hold several versions of a document, writes do not count documents.
    """
    n_new = engine.count(concrete)
    n_old = sum(engine.count(name) for name in old)
    if n_new == 0 and n_old > 0:
        raise GateRefused(
            f"the rebuild {concrete!r} is empty and the index it would replace has {n_old} documents: the alias stays; "
            f"look into the reject file ({load.bulk.rejected} rejected, {load.unreadable} unreadable lines)"
        )
    if one_write_each and n_new < load.bulk.indexed and load.bulk.superseded == 0:
        raise GateRefused(
            f"the rebuild {concrete!r} holds {n_new} documents of {load.bulk.indexed} acknowledged ones: the alias "
            "stays; run the same command again with --restart"
        )
