"""`ssi index`: writes a document file to an index, which is created if it is missing, or rebuilt behind its alias.

A rebuild fills a new concrete index and swaps the alias at the end, without downtime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer.checkpoint import checkpoint_path, state_dir
from indexer.encoding import VersionEncoder
from indexer.load import LoadOptions, LoadReport, load_documents, source_id
from indexer.preflight import has_text
from indexer.suitability import SAMPLE, TextSample, vocabulary_notes
from indexer.versions import register, with_version
from reranker.config import DEFAULT_ROUTE
from reranker.engines.given_field import given_field_mapping, given_field_problem, has_field
from reranker.engines.protocol import Engine, IndexInfo
from reranker.engines.vectors import FIELD_PREFIX
from reranker.errors import GateRefused, InputError, PreflightRefused
from reranker.formats import RejectLog, read_documents
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.progress import Progress, Say, no_progress, silent
from reranker.releases import ControlRecord, forget_control, read_control, update_control
from reranker.text.view import TextView, nearest_paths, paths_of

_KEPT_SETTINGS = (
    "index.analysis.",
    "index.mapping.",
    "index.number_of_shards",
    "index.number_of_replicas",
    "index.similarity.",
    "index.knn",
)


_MAX_PATHS = 10_000


_NUMBERED = re.compile(r"-(\d{6,})$")


def index_mapping(text_paths: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``mappings`` object of a new index.

    Fields of the text view are mapped as text (dots separate levels of objects), ``properties`` as given. All other
    fields are mapped dynamically by the engine, but without detecting dates and numbers in strings. With detection, one
    document whose ``code`` looks like a date would make the engine reject the next one whose ``code`` does not.
    """
    texts: dict[str, Any] = {}
    for path in text_paths:
        *objects, leaf = path.split(".")
        inner: dict[str, Any] | None = texts
        for name in objects:
            # None: a field above this path is mapped as text already.
            inner = None if inner is None else inner.setdefault(name, {"properties": {}}).get("properties")
        if inner is not None:
            inner.setdefault(leaf, {"type": "text"})
    return {"date_detection": False, "numeric_detection": False, "properties": {**texts, **properties}}


def rebuilt(old: IndexInfo, properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the mapping and the settings of a rebuild; the fields of old versions are replaced by the new one's."""
    kept = {name: value for name, value in old.properties.items() if not name.startswith(FIELD_PREFIX)}
    settings = {name: value for name, value in old.settings.items() if name.startswith(_KEPT_SETTINGS)}
    return {**old.mapping, "properties": {**kept, **properties}}, settings


@dataclass(frozen=True, slots=True)
class FileTexts:
    """Fields and texts of a document file, compared with those that a model reads."""

    path: Path
    missing: tuple[str, ...]
    """Fields of the model that no document of the file has; they are probably misspelt."""
    paths: frozenset[str]
    """Fields of the documents."""
    sample: TextSample
    """Texts of the first documents."""
    has_none: bool
    """True if the documents have none of the model's fields."""

    @classmethod
    def of(cls, path: Path, encoder: Encoder, id_field: str | None = None) -> FileTexts:
        """Read a file until all fields were seen, and at least `SAMPLE` documents."""
        view, paths = encoder.view, set[str]()
        missing, texts = [spec.path for spec in view.fields], list[tuple[str, ...]]()
        for document in read_documents(path, rejects=RejectLog(), duplicates="keep", id_field=id_field):
            if len(texts) < SAMPLE:
                texts.append(view.texts(document.source))
            elif not missing:
                break
            here = set(paths_of(document.source))
            missing = [name for name in missing if name not in here]
            paths |= here if len(paths) < _MAX_PATHS else set()
        has_none = bool(paths) and len(missing) == len(view.fields)
        # A document may have only some of the default fields.
        kept = missing if paths and (has_none or not view.is_default) else []
        return cls(path, tuple(kept), frozenset(paths), TextSample.of(encoder, texts), has_none)

    @property
    def problem(self) -> str:
        """Message about the first missing field, with its remedy; empty if no field is missing."""
        if not self.missing:
            return ""
        return (
            f"no document of {str(self.path)!r} has the field {self.missing[0]!r}, which the model reads. The most "
            f"similar field names in the documents are {nearest_paths(self.missing[0], self.paths)}. Rename the field "
            "in the documents, or train a model with --fields set to these names"
        )

    def check(self) -> None:
        """Raise `InputError` if a field is missing."""
        if self.problem:
            raise InputError(self.problem, field=self.missing[0])


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of a build, apart from the documents."""

    routes: tuple[str, ...] = (DEFAULT_ROUTE,)
    """Routes whose fields are written for the model, see `reranker.engines.vectors.version_fields`."""
    store_path: Path | None = None
    """Local store of route *beside*; None: not written."""
    rebuild: bool = False
    """Fill a new concrete index and swap the alias at the end."""
    load: LoadOptions = field(default_factory=LoadOptions)


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Result of `build_index`."""

    index: str
    """The name that users search."""
    concrete: str
    """The index to which documents were written."""
    retired: tuple[str, ...]
    """Indexes that a rebuild removed from the alias; `ssi gc` deletes them."""
    live: bool
    """True if the model's release is now live."""
    load: LoadReport

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values."""
        about = {"index": self.index, "concrete": self.concrete, "retired": self.retired, "live": self.live}
        return {**about, **self.load.to_json()}


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
    """Write a document file to an index (or alias), which is created if missing, and return a report.

    A new index is named ``<index>-000001`` with the alias ``<index>``, so that it can be rebuilt later without
    downtime. With a model, its vectors are stored with the documents, and its release is registered. The release
    becomes live if none was live and every document has its vector. An early stop is reported in ``load.bulk.stopped``.

    Raises
    ------
    InputError
        If the name stands for several indexes, the file cannot be read, or the documents do not have the model's
        fields: one of them, for an index that is new, empty or rebuilt; none of them, in the file and in the index, for
        an index that has documents.
    GateRefused
        If a rebuild is not possible or incomplete. The alias is not changed.
    PreflightRefused
        If the index requires routing, which a file does not contain.
    EngineError
        If a request to the engine fails.
    """
    build = _Build(engine, index, path, model, options or BuildOptions())
    return build.rebuild(progress, notice) if build.options.rebuild else build.fill(progress, notice)


class _Build:
    def __init__(
        self, engine: Engine, index: str, path: Path, model: RankingModel | None, options: BuildOptions
    ) -> None:
        self.engine, self.index, self.path, self.model, self.options = engine, index, path, model, options
        self.version: VersionEncoder | None = None
        self.properties: dict[str, Any] = {}
        if model is not None:
            capabilities = engine.capabilities()
            self.version = VersionEncoder.of_model(model, options.routes, options.store_path, capabilities)
            self.properties = self.version.properties(capabilities)

    def fill(self, progress: Progress, notice: Say) -> BuildReport:
        names = self.engine.index_names(self.index)
        self._check_fields([name for name in names if self.engine.count(name)], notice)
        concrete = self._ensure_index()
        load = self._load(concrete, progress, notice)
        live = False
        if self.model is not None and load.bulk.stopped is None:
            covered = with_version(self.engine, concrete, self.model.encoder_id)
            complete = 0 < self.engine.count(concrete) <= covered
            live = register(self.engine, self.index, self.model, promote=None if complete else False)
        return BuildReport(self.index, concrete, (), live, load)

    def rebuild(self, progress: Progress, notice: Say) -> BuildReport:
        engine, index = self.engine, self.index
        old = engine.index_names(index)
        if old == (index,):
            raise GateRefused(
                f"{index!r} is an index, not an alias, and an index cannot be swapped atomically. Build "
                f"under a new name ({index}-next) and let clients use that alias, or revectorize in place with "
                "`ssi revectorize`",
                index=index,
            )
        self._check_fields((), notice)
        concrete = self._rebuild_target(old)
        load = self._load(concrete, progress, notice)
        if load.bulk.stopped is not None:
            return BuildReport(index, concrete, (), False, load)
        self._check_complete(concrete, old, load)
        # The record is written before the swap, so that a process killed in between leaves no index without a record,
        # and a service on the alias never combines the new index with the old one's live version.
        before = read_control(engine, index)
        known = before.without_live() if self.model is None else before

        def succeeding(record: ControlRecord) -> ControlRecord:
            kept = known.with_retired(old).without_leftovers((record.key,))
            same = ("uuid", "key", "moved", "seq_no", "primary_term")
            return replace(kept, progress={}, **{name: getattr(record, name) for name in same})

        update_control(engine, concrete, succeeding)
        live = self.model is not None and register(engine, concrete, self.model, promote=True)
        engine.swap_alias(index, concrete, old)
        if before.key not in old:
            forget_control(engine, [before.key])
        return BuildReport(index, concrete, tuple(name for name in old if name != concrete), live, load)

    def _check_fields(self, filled: Sequence[str], notice: Say) -> None:
        """Raise `InputError` if the model does not fit the file; ``filled`` are the indexes that have documents."""
        if self.model is None or self.version is None:
            return
        encoder, version = self.model.encoder, self.version
        texts = FileTexts.of(self.path, encoder, self.options.load.id_field)
        if not filled or (texts.has_none and not any(has_text(self.engine, name, version) for name in filled)):
            texts.check()
        for message in (texts.problem, *vocabulary_notes(encoder, texts.sample)):
            if message:
                notice(message)

    def _new_index(self, concrete: str) -> None:
        view = self.model.encoder.view if self.model else TextView()
        mapping = index_mapping([spec.path for spec in view.fields], self.properties)
        self.engine.create_index(concrete, mapping)
        self._map_given_vectors(concrete)

    def _add_fields(self, concrete: str) -> str:
        if self.properties:
            self.engine.put_properties(concrete, self.properties)
        self._map_given_vectors(concrete)
        return concrete

    def _map_given_vectors(self, concrete: str) -> None:
        """Map the field of vectors that the model reads, unless the index or its template has mapped it."""
        path = self.version.vector_path if self.version else ""
        if not path or self.engine.in_process:
            return
        info = self.engine.index_info(concrete)
        if problem := given_field_problem(info, path):
            raise InputError(problem, field=path)
        if not has_field(info.properties, path):
            self.engine.put_properties(concrete, given_field_mapping(path))

    def _ensure_index(self) -> str:
        """Return the concrete index, created with its alias if missing, with the version's fields."""
        engine, index = self.engine, self.index
        names = engine.index_names(index)
        if len(names) > 1:
            raise InputError(
                f"{index!r} stands for {len(names)} indexes ({', '.join(names)}) on {engine.spec}: give one index or "
                "an alias of one index",
                index=index,
            )
        if names:
            return self._add_fields(names[0])
        concrete = f"{index}-000001"
        if not engine.index_names(concrete):
            self._new_index(concrete)
        elif engine.count(concrete):
            raise InputError(
                f"the index {concrete!r} exists and has documents, but no alias {index!r} points to it: create the "
                "alias or choose another --index",
                index=concrete,
            )
        else:
            self._add_fields(concrete)
        engine.swap_alias(index, concrete)
        return concrete

    def _rebuild_target(self, old: Sequence[str]) -> str:
        """Return the index to fill: that of an interrupted rebuild, or a new one, recorded before it is created."""
        engine = self.engine

        def noted(record: ControlRecord) -> ControlRecord:
            # Finish a rebuild that was killed after its swap.
            record = record.without_leftovers(old)
            name = self._name_to_fill(old, record)
            others = (other for other in record.building if other != name)
            return replace(record.with_retired(others), building=(name,))

        (concrete,) = update_control(engine, self.index, noted).building
        if engine.index_names(concrete):
            return self._add_fields(concrete)
        if old:
            mapping, settings = rebuilt(engine.index_info(old[-1]), self.properties)
            engine.create_index(concrete, mapping, None if engine.in_process else settings)
            self._map_given_vectors(concrete)
        else:
            self._new_index(concrete)
        return concrete

    def _name_to_fill(self, old: Sequence[str], record: ControlRecord) -> str:
        """Return the last unfinished index if its load can be resumed, else a new name."""
        engine, load = self.engine, self.options.load
        for name in reversed(() if load.restart else record.building):
            source = source_id(engine, name, self.path, self.version, load)
            if checkpoint_path(load.state_path or state_dir(), source).exists():
                return name
        known = [*old, *record.building, *record.retired]
        number = max((int(match.group(1)) for name in known if (match := _NUMBERED.search(name))), default=0) + 1
        while engine.index_names(f"{self.index}-{number:06d}"):
            number += 1
        return f"{self.index}-{number:06d}"

    def _load(self, concrete: str, progress: Progress, notice: Say) -> LoadReport:
        if (self.engine.index_info(concrete).mapping.get("_routing") or {}).get("required"):
            reason = (
                f"{concrete}: routing is required, but a document file does not contain it. Write the documents with "
                "your own program, then add vectors with `ssi revectorize`, which keeps each document's routing"
            )
            raise PreflightRefused(self.index, [reason])
        with self.version or nullcontext() as version:
            load = load_documents(
                self.engine, concrete, self.path, version, options=self.options.load, progress=progress, notice=notice
            )
        if load.bulk.stopped is None:
            self.engine.refresh(concrete)
        return load

    def _check_complete(self, concrete: str, old: Sequence[str], load: LoadReport) -> None:
        """Raise `GateRefused` if the new index lost documents, or is empty although the old one is not."""
        n_new = self.engine.count(concrete)
        n_old = sum(self.engine.count(name) for name in old)
        if n_new == 0 and n_old > 0:
            raise GateRefused(
                f"the rebuilt index {concrete!r} is empty, but the index to replace has {n_old} documents, so the "
                f"alias is unchanged. See the reject file ({load.bulk.rejected} rejected, "
                f"{load.unreadable} unreadable lines)"
            )
        # If a file may contain several versions of a document, the number of writes is not the number of documents.
        one_write_each = self.options.load.version_field is None and load.bulk.superseded == 0
        if one_write_each and n_new < load.bulk.indexed:
            raise GateRefused(
                f"the rebuilt index {concrete!r} has {n_new} documents, but {load.bulk.indexed} were acknowledged, so "
                "the alias is unchanged. Run the same command again with --restart"
            )
