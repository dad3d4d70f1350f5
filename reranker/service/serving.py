"""The version that answers: opened from a model folder, tested against the index, replaced while the service runs.

A `Serving` never changes and a request takes it once, so that one answer comes from one version. `Versions` opens them
and `Watcher` lets another one answer, once it is shown to score what the index holds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from reranker.config import RouteName
from reranker.engines.protocol import Engine
from reranker.engines.vectors import field_name
from reranker.errors import (
    ArtifactError,
    EngineAuthError,
    EngineError,
    EngineUnavailable,
    FallbackError,
    GateRefused,
    InputError,
    RerankerError,
)
from reranker.models.manifest import MANIFEST as MODEL_MANIFEST
from reranker.models.manifest import describe_model
from reranker.models.model_folder import load_model
from reranker.models.ranking_model import RankingModel
from reranker.releases import default_store, read_control
from reranker.rerank import Calibration, Reranker
from reranker.rerank.search import NO_STORE
from reranker.service.copies import WorkFolder
from reranker.service.http import ServiceError
from reranker.service.settings import MIB, ServiceSettings
from reranker.service.telemetry import Metrics
from reranker.store import MANIFEST as STORE_MANIFEST
from reranker.store import VectorStore, read_manifest, store_files

_log = logging.getLogger(__name__)
KEPT_VERSIONS = 3
"""Versions kept loaded besides the live one, for whoever asks for one by name."""
LEAST_DIGITS = 6
"""Digits of a version's id that name it."""
MAX_COPIED_AT_ONCE = 256 * MIB
"""Bytes of a store that are verified while the service starts or a request waits; more, in the background."""
NO_STORE_YET = "route beside has no vector store yet: it is being verified"


@dataclass(frozen=True, slots=True)
class Serving:
    """A version as it serves.

    The reranker's ``model`` is None where none could be loaded: searches come back in the engine's order. ``path`` is
    the model's folder; ``problem`` says why there is no model or no store, empty where all is well; ``loaded`` is Unix
    time; ``verifying`` is True while the store of the first version is being verified.
    """

    reranker: Reranker
    path: Path | None = None
    problem: str = ""
    loaded: float = field(default_factory=time.time)
    verifying: bool = False

    @property
    def model(self) -> RankingModel | None:
        """The model of this version."""
        return self.reranker.model

    @property
    def model_id(self) -> str:
        """Id of the version; empty without a model."""
        return self.model.model_id if self.model else ""

    @property
    def encoder_id(self) -> str:
        """Id of the vectors that it scores; empty without a model."""
        return self.model.encoder_id if self.model else ""


class Wanted(NamedTuple):
    """The version that should be served; two equal ones need no reload."""

    model_id: str
    path: Path
    calibration: Mapping[str, Any]
    store: str = ""
    """SHA-256 of the store's manifest; empty on other routes than *beside*."""


class FileState(NamedTuple):
    """What a file system tells of a file without reading it; any write changes the time of change."""

    path: Path
    inode: int = 0
    n_bytes: int = -1
    changed_ns: int = 0

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Return the state of a file, also of one that is missing."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return cls(path)
        return cls(path, found.st_ino, found.st_size, found.st_ctime_ns)


class Attempt(NamedTuple):
    """A version to open and the files to open it from: if one attempt failed, an equal one fails as well."""

    wanted: Wanted
    files: tuple[FileState, ...]


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """The model folders of a service.

    ``path`` is a ``single`` model folder (``--model``), of which a replacement is noticed, or a folder of them
    (``--models``), where the control record of the index says which version is live.
    """

    engine: Engine
    index: str
    path: Path
    single: bool
    _last_calibrations: dict[str, Mapping[str, Any]] = field(init=False, default_factory=dict)

    def wanted(self) -> Wanted:
        """Return the version that should be served now.

        `ArtifactError` if no release is live, or its folder is not here.
        """
        if self.single:
            model_id = _model_id(self.path)
            # A role that may not read the control index serves with the default alpha; a busy engine changes nothing.
            with suppress(EngineError):
                self._last_calibrations[model_id] = self.calibration_of(model_id)
            return Wanted(model_id, self.path, self._last_calibrations.get(model_id, {}))
        record = read_control(self.engine, self.index)
        if record.live is None:
            raise ArtifactError(f"no version of index {self.index!r} is live: run `ssi promote`")
        return Wanted(record.live, self.folder_of(record.live), record.calibration(record.live))

    def calibration_of(self, model_id: str) -> Mapping[str, Any]:
        """Return the calibration that the control record keeps for a version."""
        return read_control(self.engine, self.index).calibration(model_id)

    def known(self) -> dict[str, Path]:
        """Return the folders of the versions that can be asked for, by id."""
        if self.single:
            return {_model_id(self.path): self.path}
        folders: dict[str, Path] = {}
        for folder in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            if (folder / "manifest.json").is_file():
                # A damaged neighbour is no version; it must not hide the others.
                with suppress(ArtifactError):
                    folders[_model_id(folder)] = folder
        return folders

    def folder_of(self, model_id: str) -> Path:
        """Return the folder of a version named by its id or the beginning of it."""
        folders = [path for name, path in self.known().items() if _names(model_id, name)]
        if self.single and not folders:
            raise InputError("this version is not the one that the service can load")
        if len(folders) != 1:
            raise ArtifactError(
                f"{len(folders)} folders in {str(self.path)!r} hold version {model_id[:12]!r}: copy the model there"
            )
        return folders[0]


def _model_id(folder: Path) -> str:
    return str(describe_model(folder)["model_id"])


def _names(beginning: str, model_id: str) -> bool:
    return len(beginning) >= LEAST_DIGITS and model_id.startswith(beginning)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class Versions:
    """The version that is served, and a few others that were asked for by name.

    The first one is whole, else without its store, else without a model. It is not put to the test: there is no older
    one that could answer better. What is not whole is looked at again.

    ``store_path`` is that of route *beside*; None: where the indexer puts it. ``work`` is the folder for private copies
    of model and store; None: they are mapped where they lie.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        folders: ModelFolders,
        store_path: Path | None = None,
        work: WorkFolder | None = None,
    ) -> None:
        self.settings, self.folders, self._store_path, self._work = settings, folders, store_path, work
        self._copy = None if work is None else work.copy
        self.engine = folders.engine
        self._others: OrderedDict[str, tuple[Wanted, Serving]] = OrderedDict()
        self._failed: dict[str, tuple[Attempt, Exception]] = {}
        """Versions asked for by name that could not be opened, by id."""
        self._requested: set[str] = set()
        """Versions asked for by name that are opened in the background, by id."""
        self._lock = threading.Lock()
        self.on_request: Callable[[], object] = lambda: None
        """Called when a version is to be opened in the background."""
        self.served: Wanted | None = None
        """What ``current`` was made of, where it is whole."""
        self.current = self._first()
        """The version that answers; take it once a request."""

    def _first(self) -> Serving:
        try:
            wanted = self.folders.wanted()
        except (RerankerError, OSError) as error:
            return self._without_model(error)
        try:
            stamped = self.stamped(wanted)
            if (n_bytes := self._bytes_to_copy(wanted)) > MAX_COPIED_AT_ONCE:
                return self._without_store_yet(wanted, n_bytes)
            serving = self.open(wanted)
        except (RerankerError, OSError) as error:
            return self._without_store(wanted, _described(error))
        return self.take_first(stamped, serving)

    def take_first(self, wanted: Wanted, serving: Serving) -> Serving:
        """Return the first whole version, with the problem if the index does not fit it."""
        try:
            serving.reranker.check(self.settings.default_body)
        except RerankerError as error:
            _log.error("the index does not fit the version", extra={"ssi": {"problem": _described(error)}})
            return replace(serving, problem=_described(error))
        self.served = wanted
        return serving

    def give_up_store(self, error: Exception) -> None:
        """Say why the store of the first version cannot be used, where it was being verified."""
        if not self.current.verifying:
            return
        own = self.current.reranker
        reranker = Reranker(
            self.engine, own.index, own.model, route=own.route, calibration=own.calibration, settings=own.settings
        )
        _log.error("the vector store cannot be used", extra={"ssi": {"problem": _described(error)}})
        self.current = replace(self.current, reranker=reranker, problem=_described(error), verifying=False)

    def _without_store_yet(self, wanted: Wanted, n_bytes: int) -> Serving:
        """Return a version that answers until the watcher has verified the store."""
        _log.info("the vector store is being verified", extra={"ssi": {"bytes": n_bytes}})
        model = load_model(wanted.path, self.engine, self._copy)
        return replace(self._serving(model, None, wanted, NO_STORE_YET, NO_STORE_YET), verifying=True)

    def _without_store(self, wanted: Wanted, problem: str) -> Serving:
        """Return a version without a vector store: it scores texts that come with a request, and no hits."""
        try:
            serving = self._serving(load_model(wanted.path, self.engine, self._copy), None, wanted, problem)
        except (RerankerError, OSError) as error:
            return self._without_model(error)
        _log.error("the vector store cannot be used", extra={"ssi": {"problem": problem}})
        return serving

    def _without_model(self, error: Exception) -> Serving:
        """Return what answers in the engine's order."""
        problem = _described(error)
        _log.error("no model can be loaded; searches come in the engine's order", extra={"ssi": {"problem": problem}})
        return self._serving(None, None, None, problem)

    def _serving(
        self,
        model: RankingModel | None,
        store: VectorStore | None,
        wanted: Wanted | None,
        problem: str = "",
        no_store: str = NO_STORE,
    ) -> Serving:
        settings = self.settings
        reranker = Reranker(
            self.engine,
            settings.index,
            model,
            route=cast("RouteName", settings.route),
            store=store,
            calibration=Calibration.from_release(wanted.calibration) if wanted else None,
            settings=settings.rerank,
            no_store=no_store,
        )
        return Serving(reranker, wanted.path if wanted else None, problem)

    def _store_folder(self, model_path: Path) -> Path:
        return self._store_path or default_store(model_path, self.engine.spec, self.settings.index)

    def stamped(self, wanted: Wanted) -> Wanted:
        """Return the wish with the state of its store, so that a store written since is noticed."""
        if self.settings.route != "beside":
            return wanted
        return wanted._replace(store=read_manifest(self._store_folder(wanted.path)).sha256)

    def attempt(self, wanted: Wanted) -> Attempt:
        """Return what opening a version would depend on; a copy over its files that goes on makes another attempt."""
        paths = [wanted.path / name for name in (MODEL_MANIFEST, *describe_model(wanted.path)["files"])]
        if self.settings.route == "beside":
            folder = self._store_folder(wanted.path)
            paths += [folder / STORE_MANIFEST, *(file.path for file in store_files(folder, read_manifest(folder)))]
        return Attempt(wanted, tuple(map(FileState.of, paths)))

    def _bytes_to_copy(self, wanted: Wanted) -> int:
        """Return how many bytes of a version's store have no private copy yet; 0 where none is to be made."""
        if self._work is None or self.settings.route != "beside":
            return 0
        folder = self._store_folder(wanted.path)
        files = store_files(folder, read_manifest(folder))
        return self._work.missing_bytes((file.sha256, file.n_bytes) for file in files)

    def tidy(self) -> None:
        """Remove private copies that no process needs any more."""
        if self._work is not None:
            self._work.tidy()

    def open(self, wanted: Wanted) -> Serving:
        """Return the version, every byte of it verified unless the files are mapped where they lie.

        `ArtifactError` if model or store cannot be used, or the folder holds another version by now.
        """
        model = load_model(wanted.path, self.engine, self._copy)
        if model.model_id != wanted.model_id:
            raise ArtifactError(
                f"{str(wanted.path)!r} holds version {model.model_id[:12]} where {wanted.model_id[:12]} is wanted"
            )
        beside = self.settings.route == "beside"
        store = None
        if beside:
            store = VectorStore.open(self._store_folder(wanted.path), model.encoder_id, copy=self._copy)
        return self._serving(model, store, wanted)

    def get(self, model_id: str) -> Serving:
        """Return a version by its id, or a beginning of it of 6 digits or more; loads it where it is not loaded.

        `ArtifactError` or `InputError` if there is no such version, or it cannot be used. `ServiceError` 503 if its
        store is so large that it is verified in the background first.
        """
        current = self.current
        if _names(model_id, current.model_id):
            return current
        with self._lock:
            full = _model_id(self.folders.folder_of(model_id))
            if full not in self._others:
                wanted = self._wanted(full)
                self._check_failed(full, wanted)
                if full in self._requested or self._bytes_to_copy(wanted) > MAX_COPIED_AT_ONCE:
                    self._requested.add(full)
                    self.on_request()
                    raise ServiceError(503, "this version is being verified", kind="verifying", retry_after_s=5.0)
                self._keep(full, wanted, self._open_other(full, wanted))
            self._others.move_to_end(full)
            return self._others[full][1]

    def _keep(self, full: str, wanted: Wanted, serving: Serving) -> None:
        """Keep a version that was asked for by name, in place of the one that was longest not asked for."""
        self._others[full] = (wanted, serving)
        while len(self._others) > KEPT_VERSIONS:
            self._others.popitem(last=False)

    def renew_others(self) -> None:
        """Open versions that were requested, and reload those whose calibration or store has changed.

        If one cannot be opened, the error is raised; an older one of it goes on answering. It is not tried again until
        something about it changes.
        """
        for full in list(self._requested):
            try:
                wanted = self._wanted(full)
                serving = self._open_other(full, wanted)
                with self._lock:
                    self._keep(full, wanted, serving)
            finally:
                self._requested.discard(full)
        for full, (made_of, _) in list(self._others.items()):
            wanted = self._wanted(full)
            if wanted != made_of and not self._has_failed(full, wanted):
                serving = self._open_other(full, wanted)
                with self._lock:
                    if full in self._others:
                        self._others[full] = (wanted, serving)

    def _open_other(self, full: str, wanted: Wanted) -> Serving:
        """Return a version asked for by name; if it cannot be used, remember that."""
        attempt = self.attempt(wanted)
        try:
            serving = self.open(wanted)
        except (ArtifactError, OSError) as error:
            self._failed[full] = (attempt, error)
            raise
        self._failed.pop(full, None)
        return serving

    def _has_failed(self, full: str, wanted: Wanted) -> bool:
        return full in self._failed and self._failed[full][0] == self.attempt(wanted)

    def _check_failed(self, full: str, wanted: Wanted) -> None:
        """Raise the error of the last attempt to open a version if another one would fail as well."""
        if self._has_failed(full, wanted):
            error = self._failed[full][1]
            raise ArtifactError(str(error)) from error

    def _wanted(self, full: str) -> Wanted:
        return self.stamped(Wanted(full, self.folders.folder_of(full), self.folders.calibration_of(full)))


MAX_GOLDEN = 1000
MAX_GOLDEN_BYTES = 1_000_000
N_DRAWN = 5
"""Queries drawn from the model's vocabulary where no golden set is given."""
PATIENCE_MS = 30_000.0
MAX_ENCODED = 0.5
"""Share of candidates that may have to be encoded from their text: more, and the index is another version's."""


class GoldenQuery(NamedTuple):
    """A query, and the id of a document that must be on its first page ("" for any)."""

    query: str
    expect: str = ""


def read_golden(path: Path) -> tuple[GoldenQuery, ...]:
    """Return the golden set of a file of JSON lines ``{"query": ..., "expect": "document id"}`` (``expect`` optional).

    `InputError` if the file cannot be read, or a line is no such object.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the golden set {str(path)!r} cannot be read: {error.strerror}") from error
    lines = [line for line in content.splitlines() if line.strip()]
    if len(content) > MAX_GOLDEN_BYTES or not 1 <= len(lines) <= MAX_GOLDEN:
        raise InputError(f"the golden set {str(path)!r} has {len(lines)} lines; it has 1 to {MAX_GOLDEN}")
    queries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = msgspec.json.decode(line, type=dict[str, str])
            queries.append(GoldenQuery(entry["query"], entry.get("expect", "")))
        except (msgspec.MsgspecError, KeyError, RecursionError) as error:
            raise InputError(
                f'line {number} of the golden set {str(path)!r} is not {{"query": ..., "expect": ...}}'
            ) from error
    return tuple(queries)


def drawn_queries(serving: Serving) -> tuple[GoldenQuery, ...]:
    """Return queries of one word each from the more frequent tenth of the model's words."""
    if serving.model is None:
        return ()
    words = serving.model.query_vocabulary.words
    reach = max(len(words) // 10, min(len(words), N_DRAWN))
    places = np.unique(np.linspace(0, reach - 1, N_DRAWN).astype(int)) if reach else ()
    return tuple(GoldenQuery(words[place]) for place in places)


def verify(serving: Serving, settings: ServiceSettings, golden: Sequence[GoldenQuery] | None = None) -> None:
    """Return if a version may answer: it scores what the index holds; no ``golden`` set: some of its own words.

    `GateRefused` with the reason; `EngineUnavailable` if the engine does not answer, so that nothing can be said.
    """
    try:
        serving.reranker.check(settings.default_body)
    except EngineUnavailable:
        raise
    except RerankerError as error:
        raise GateRefused(f"the index does not fit this version: {error}") from error
    if settings.route == "fetch":
        _check_fields(serving, settings.index)
    queries = drawn_queries(serving) if golden is None else golden
    n_hits = sum(_check_query(serving, settings, query) for query in queries)
    if golden is not None and not n_hits:
        raise GateRefused("no query of the golden set finds a document")


def _check_fields(serving: Serving, index: str) -> None:
    engine, field = serving.reranker.engine, field_name(serving.encoder_id, "vec")
    try:
        without = [name for name in engine.index_names(index) if field not in engine.index_info(name).properties]
    except EngineAuthError:
        # A role that may search and not look at mappings: the golden queries show as much.
        return
    if without:
        raise GateRefused(
            f"index {without[0]!r} has no vectors of encoder {serving.encoder_id[:12]}: run `ssi revectorize`"
        )


def _check_query(serving: Serving, settings: ServiceSettings, golden: GoldenQuery) -> int:
    """Return the number of hits of a query whose candidates are scored as they must be."""
    own = serving.reranker
    # More time than a request has: a busy engine is no fault of a model.
    patient = Reranker(
        own.engine,
        own.index,
        own.model,
        route=own.route,
        store=own.store,
        calibration=own.calibration,
        settings=replace(own.settings, deadline_ms=PATIENCE_MS),
    )
    try:
        window, encoded, _ = patient.score_window(golden.query, settings.default_body)
        page = patient.search(golden.query, settings.default_body, size=10) if golden.expect else None
    except EngineUnavailable:
        raise
    except FallbackError as error:
        raise GateRefused(f"a golden query cannot be scored: {error}") from error
    except EngineError as error:
        # Without the engine's words, which may repeat the query.
        raise GateRefused(f"a golden query cannot be scored: {type(error).__name__} {error.error_type}") from error
    n = len(window.hits)
    if encoded.is_empty or not n:
        return n
    if window.n_unscored > settings.rerank.max_unscored * n:
        raise GateRefused(f"{window.n_unscored} of {n} candidates of a golden query have no score")
    if window.n_encoded > MAX_ENCODED * n:
        raise GateRefused(
            f"{window.n_encoded} of {n} candidates of a golden query have no vector of encoder "
            f"{serving.encoder_id[:12]}: run `ssi revectorize`"
        )
    if page is not None and (page.fallback or golden.expect not in {hit.id for hit in page.hits}):
        raise GateRefused("a golden query does not find the document it must have on its first page")
    return n


class Watcher:
    """A thread that keeps the served version the one that is wanted.

    A version that cannot be loaded, or does not pass `verify`, leaves the old one answering; it is not tried again
    until something about it changes or a reload is asked for.
    """

    def __init__(self, versions: Versions, metrics: Metrics, golden: Sequence[GoldenQuery] | None = None) -> None:
        self._versions, self._metrics, self._golden = versions, metrics, golden
        self._refused: Attempt | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ssi-watch", daemon=True)
        versions.on_request = self._wake.set

    def start(self) -> None:
        """Begin to look, at once if the store of the first version is still to be verified."""
        if self._versions.current.verifying:
            self._wake.set()
        self._thread.start()

    def reload(self) -> None:
        """Look now, also at a version that was refused before; safe in a signal handler."""
        self._refused = None
        self._wake.set()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._wake.set()

    def look(self) -> bool:
        """Return whether another version answers after one look; versions asked for by name are renewed besides."""
        swapped = self._look_for_another()
        try:
            self._versions.renew_others()
        except (RerankerError, OSError) as error:
            self._warn("not renewed", error)
        try:
            self._versions.tidy()
        except (RerankerError, OSError) as error:
            self._warn("copies not removed", error)
        return swapped

    def _look_for_another(self) -> bool:
        versions = self._versions
        try:
            wanted = versions.stamped(versions.folders.wanted())
            attempt = None if wanted == versions.served else versions.attempt(wanted)
        except (RerankerError, OSError) as error:
            self._warn("not known", error)
            if not isinstance(error, EngineError):
                versions.give_up_store(error)
            return False
        if attempt is None or attempt == self._refused:
            return False
        is_first = versions.current.verifying
        try:
            serving = versions.open(wanted)
            if not is_first:
                verify(serving, versions.settings, self._golden)
        except EngineUnavailable as error:
            self._warn("put off", error)
            return False
        except (RerankerError, OSError) as error:
            self._refused = attempt
            self._metrics.swaps.labels("refused").inc()
            self._warn("refused", error, wanted.model_id)
            versions.give_up_store(error)
            return False
        self._refused = None
        if is_first:
            versions.current = versions.take_first(wanted, serving)
        else:
            versions.current, versions.served = serving, wanted
        self._metrics.swaps.labels("done").inc()
        self._metrics.note_version(serving.model_id, serving.encoder_id, serving.loaded)
        _log.info("version", extra={"ssi": {"result": "live", "model": serving.model_id[:12]}})
        return True

    def _warn(self, result: str, error: Exception, model_id: str = "") -> None:
        entry = {"result": result, "model": model_id[:12], "reason": _described(error)}
        _log.warning("version", extra={"ssi": entry})

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._versions.settings.poll_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                self.look()
            except Exception:
                # The watcher must outlive whatever a model folder does to it.
                _log.exception("looking for another version failed")
