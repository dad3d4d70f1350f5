"""The served version: opened from a model folder, verified against the index, and replaced while the service runs.

A `Serving` is immutable, and a request reads it once, so that every answer comes from a single version. `Versions`
opens versions. `Watcher` polls for a newer one and starts serving it once it has proved to score the index's documents.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
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
from reranker.models.model_folder import changed_analyzer, load_model
from reranker.models.ranking_model import RankingModel
from reranker.releases import default_store, read_control
from reranker.rerank import Calibration, Reranker
from reranker.service.settings import ServiceSettings
from reranker.service.telemetry import Metrics
from reranker.store import DATA, StoreState, VectorStore

_log = logging.getLogger(__name__)
KEPT_VERSIONS = 3
"""Versions kept loaded in addition to the live one, for requests that name one."""
LEAST_DIGITS = 6
"""Least number of hexadecimal digits of an id prefix that identifies a version."""
CHANGING_S = 5.0
"""Longest time, in seconds, that the start waits for a model or store that is being written."""
UNCHANGED_S = 0.1
"""Files that stay the same for this time, in seconds, are not being written."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A loaded version."""

    reranker: Reranker
    """Its ``model`` is None if none could be loaded: searches are then answered in the engine's order."""
    path: Path | None = None
    """The model's folder."""
    problem: str = ""
    """Why there is no usable model or store; empty if there is no problem."""
    loaded: float = field(default_factory=time.time)
    """Unix time."""

    @property
    def model(self) -> RankingModel | None:
        """The model of this version."""
        return self.reranker.model

    @property
    def model_id(self) -> str:
        """Id of the version; empty if there is no model."""
        return self.model.model_id if self.model else ""

    @property
    def encoder_id(self) -> str:
        """Id of the encoder whose vectors it scores; empty if there is no model."""
        return self.model.encoder_id if self.model else ""

    @property
    def is_calibrated(self) -> bool:
        """Whether the weight of the model (with route *impacts*, the boost) was given, or fitted for at least one body.

        Without a model, False.
        """
        settings, calibration = self.reranker.settings, self.reranker.calibration
        if self.reranker.route == "impacts":
            return self.model is not None and (settings.boost is not None or bool(calibration.boosts))
        return self.model is not None and (settings.alpha is not None or bool(calibration.alphas))


class Wanted(NamedTuple):
    """The version that should be served. If it equals the one served, no reload is needed."""

    model_id: str
    path: Path
    calibration: Mapping[str, Any]
    store: StoreState | None = None
    """State of the vector store; None on routes other than *beside*."""


class FileState(NamedTuple):
    """State of a file without its content. Every write changes ``changed_ns``, the time of the last status change."""

    path: Path
    inode: int = 0
    n_bytes: int = -1
    changed_ns: int = 0

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Return the state of a file, which may be missing or hidden from this process."""
        try:
            found = os.stat(path)
        except OSError:
            return cls(path)
        return cls(path, found.st_ino, found.st_size, found.st_ctime_ns)


class Attempt(NamedTuple):
    """A version and the state of its files. If opening it failed once, an equal attempt would fail as well."""

    wanted: Wanted
    files: tuple[FileState, ...]


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """The model folders that a service can serve from."""

    engine: Engine
    index: str
    path: Path
    """A model folder if ``single``, else the folder of the model folders."""
    single: bool
    """True (``--model``): the one folder is served, and reloaded if it is replaced.

    False (``--models``): the control record of the index names the live version.
    """
    _last_calibrations: dict[str, Mapping[str, Any]] = field(init=False, default_factory=dict)

    def wanted(self) -> Wanted:
        """Return the version that should be served now.

        Raises `ArtifactError` if no version is live, or its folder is missing here.
        """
        if self.single:
            model_id = _model_id(self.path)
            # The engine's role may not be allowed to read the control index: the default alpha is used then. If the
            # engine is busy, the last known calibration stays.
            with suppress(EngineError):
                self._last_calibrations[model_id] = self.calibration_of(model_id)
            return Wanted(model_id, self.path, self._last_calibrations.get(model_id, {}))
        record = read_control(self.engine, self.index)
        if record.live is None:
            raise ArtifactError(f"no version of index {self.index!r} is live: run `ssi promote`")
        return Wanted(record.live, self.folder_of(record.live), record.calibration(record.live))

    def calibration_of(self, model_id: str) -> Mapping[str, Any]:
        """Return the calibration of a version from the control record."""
        return read_control(self.engine, self.index).calibration(model_id)

    def known(self) -> dict[str, Path]:
        """Return id -> folder of all versions that a request can name."""
        if self.single:
            return {_model_id(self.path): self.path}
        folders: dict[str, Path] = {}
        for folder in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            if (folder / "manifest.json").is_file():
                # A damaged folder is skipped so that it does not hide the other versions.
                with suppress(ArtifactError):
                    folders[_model_id(folder)] = folder
        return folders

    def folder_of(self, model_id: str) -> Path:
        """Return the folder of a version identified by its id or a prefix of it."""
        folders = [path for name, path in self.known().items() if _names(model_id, name)]
        if self.single and not folders:
            raise InputError("this version is not the one in the service's model folder")
        if len(folders) != 1:
            raise ArtifactError(
                f"{len(folders)} folders in {str(self.path)!r} hold version {model_id[:12]!r}; exactly one must: "
                "copy the model there, or remove duplicates"
            )
        return folders[0]


def _model_id(folder: Path) -> str:
    return str(describe_model(folder)["model_id"])


def _names(beginning: str, model_id: str) -> bool:
    return len(beginning) >= LEAST_DIGITS and model_id.startswith(beginning)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _check_analyzer(model: RankingModel, engine: Engine) -> None:
    """Log a warning if the analysis chain in the engine is not the one of the model's training, or is missing."""
    try:
        problem = changed_analyzer(model, engine)
    except EngineError as error:
        problem = f"the analyzer of the model could not be checked: {_described(error)}"
    if problem:
        _log.warning("analyzer", extra={"ssi": {"model": model.model_id[:12], "reason": problem}})


class Versions:
    """The served version, and a few others that requests have named.

    The first version is served even if it is incomplete: without its store, or without a model. While its files are
    being written, the start waits for it, for at most `CHANGING_S`. It is not verified with queries, because there is
    no older version to keep instead. While it is incomplete, the watcher tries to complete it.

    Parameters
    ----------
    settings : ServiceSettings
        Index, route and verification.
    folders : ModelFolders
        Model folders with the versions.
    store_path : Path, optional
        Vector store of route *beside*. None: the indexer's default location.
    """

    def __init__(self, settings: ServiceSettings, folders: ModelFolders, store_path: Path | None = None) -> None:
        self.settings, self.folders, self._store_path = settings, folders, store_path
        self.engine = folders.engine
        self._others: OrderedDict[str, tuple[Wanted, Serving]] = OrderedDict()
        self._failed: dict[str, tuple[Attempt, Exception]] = {}
        """Id -> last failed attempt, for versions named by requests."""
        self._lock = threading.Lock()
        self.served: Wanted | None = None
        """The version that ``current`` was opened from; None while ``current`` is incomplete."""
        self.current = self._first()
        """The version that answers requests; read it once per request."""

    def _first(self) -> Serving:
        end = time.monotonic() + CHANGING_S
        while True:
            files = self._file_states()
            wanted = None
            try:
                wanted = self.folders.wanted()
                return self._take_first(self.stamped(wanted))
            except (RerankerError, OSError) as error:
                time.sleep(UNCHANGED_S)
                if files == self._file_states() or time.monotonic() > end:
                    return self._without_model(error) if wanted is None else self._without_store(wanted, error)

    def _file_states(self) -> list[FileState]:
        """Return the states of all files of the model folders and of the vector store."""
        paths = list(self.folders.path.rglob("*"))
        if self.settings.route == "beside":
            paths.append(self._store_folder(self.folders.path) / DATA)
        return sorted(map(FileState.of, paths))

    def _take_first(self, wanted: Wanted) -> Serving:
        """Open the first version; its ``problem`` is set if the index does not fit it."""
        serving = self.open(wanted)
        try:
            serving.reranker.check(self.settings.default_body)
        except RerankerError as error:
            _log.error("the index does not fit the version", extra={"ssi": {"problem": _described(error)}})
            return replace(serving, problem=_described(error))
        self.served = wanted
        return serving

    def _without_store(self, wanted: Wanted, reason: Exception) -> Serving:
        """Return a version without a vector store: it scores texts sent with a request, but no hits."""
        problem = _described(reason)
        try:
            serving = self._serving(load_model(wanted.path, self.engine), None, wanted, problem)
        except (RerankerError, OSError) as error:
            return self._without_model(error)
        _log.error("the vector store cannot be used", extra={"ssi": {"problem": problem}})
        return serving

    def _without_model(self, error: Exception) -> Serving:
        """Return a version that answers in the engine's order."""
        problem = _described(error)
        _log.error(
            "no model can be loaded; searches are answered in the engine's order", extra={"ssi": {"problem": problem}}
        )
        return self._serving(None, None, None, problem)

    def _serving(
        self,
        model: RankingModel | None,
        store: VectorStore | None,
        wanted: Wanted | None,
        problem: str = "",
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
        )
        if model is not None:
            _check_analyzer(model, self.engine)
        return Serving(reranker, wanted.path if wanted else None, problem)

    def _store_folder(self, model_path: Path) -> Path:
        return self._store_path or default_store(model_path, self.engine.spec, self.settings.index)

    def stamped(self, wanted: Wanted) -> Wanted:
        """Add the state of the store, so that one that was published or replaced since is noticed."""
        if self.settings.route != "beside":
            return wanted
        return wanted._replace(store=VectorStore.open(self._store_folder(wanted.path)).state)

    def attempt(self, wanted: Wanted) -> Attempt:
        """Return the attempt to open a version now; it differs from earlier ones if any of the files changed."""
        paths = [wanted.path / name for name in (MODEL_MANIFEST, *describe_model(wanted.path)["files"])]
        if self.settings.route == "beside":
            paths.append(self._store_folder(wanted.path) / DATA)
        return Attempt(wanted, tuple(map(FileState.of, paths)))

    def open(self, wanted: Wanted) -> Serving:
        """Open a version. Every byte of the model is verified.

        Raises `ArtifactError` if model or store cannot be used, or the folder now holds another version.
        """
        model = load_model(wanted.path, self.engine)
        if model.model_id != wanted.model_id:
            raise ArtifactError(
                f"{str(wanted.path)!r} holds version {model.model_id[:12]}, but {wanted.model_id[:12]} was expected: "
                "the folder has just been replaced"
            )
        store = None
        if self.settings.route == "beside":
            store = VectorStore.open(self._store_folder(wanted.path), model.encoder_id)
        return self._serving(model, store, wanted)

    def get(self, model_id: str) -> Serving:
        """Return a version by its id or a prefix of at least 6 digits; load it if necessary.

        Raises `ArtifactError` or `InputError` if there is no such version or it cannot be used.
        """
        current = self.current
        if _names(model_id, current.model_id):
            return current
        with self._lock:
            full = _model_id(self.folders.folder_of(model_id))
            if full not in self._others:
                wanted = self._wanted(full)
                self._check_failed(full, wanted)
                self._others[full] = (wanted, self._open_other(full, wanted))
                while len(self._others) > KEPT_VERSIONS:
                    self._others.popitem(last=False)
            self._others.move_to_end(full)
            return self._others[full][1]

    def renew_others(self) -> None:
        """Reload the versions named by requests whose calibration or store has changed.

        If a reload fails, the old version is kept and the error is raised. It is retried once one of its files changes.
        """
        for full, (made_of, _) in list(self._others.items()):
            wanted = self._wanted(full)
            if wanted != made_of and not self._has_failed(full, wanted):
                serving = self._open_other(full, wanted)
                with self._lock:
                    if full in self._others:
                        self._others[full] = (wanted, serving)

    def _open_other(self, full: str, wanted: Wanted) -> Serving:
        """Open a version that a request has named; remember a failure."""
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
        """Raise the error of the last attempt to open a version if a new attempt would fail as well."""
        if self._has_failed(full, wanted):
            error = self._failed[full][1]
            raise ArtifactError(str(error)) from error

    def _wanted(self, full: str) -> Wanted:
        return self.stamped(Wanted(full, self.folders.folder_of(full), self.folders.calibration_of(full)))


MAX_GOLDEN = 1000
MAX_GOLDEN_BYTES = 1_000_000
N_DRAWN = 5
"""Number of queries drawn from the model's vocabulary if no golden set is given."""
PATIENCE_MS = 30_000.0
"""Deadline of a golden query, milliseconds."""
MAX_ENCODED = 0.5
"""Largest share of candidates that may be encoded from their text; above it the index was built for another version."""


class GoldenQuery(NamedTuple):
    """A query, and the id of a document that must be on its first page ("" for no such requirement)."""

    query: str
    expect: str = ""


def read_golden(path: Path) -> tuple[GoldenQuery, ...]:
    """Read a golden set: a file of JSON lines ``{"query": ..., "expect": "document id"}`` (``expect`` is optional).

    Raises `InputError` if the file cannot be read, or a line is not such an object.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the golden set {str(path)!r} cannot be read: {error.strerror}") from error
    lines = [line for line in content.splitlines() if line.strip()]
    if len(content) > MAX_GOLDEN_BYTES or not 1 <= len(lines) <= MAX_GOLDEN:
        raise InputError(
            f"the golden set {str(path)!r} has {len(lines)} lines and {len(content)} bytes; it must have 1 to "
            f"{MAX_GOLDEN} lines and at most {MAX_GOLDEN_BYTES} bytes"
        )
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
    """Return queries of one word each, from the most frequent tenth of the model's vocabulary."""
    if serving.model is None:
        return ()
    words = serving.model.query_vocabulary.words
    reach = max(len(words) // 10, min(len(words), N_DRAWN))
    places = np.unique(np.linspace(0, reach - 1, N_DRAWN).astype(int)) if reach else ()
    return tuple(GoldenQuery(words[place]) for place in places)


def verify(serving: Serving, settings: ServiceSettings, golden: Sequence[GoldenQuery] | None = None) -> None:
    """Check that a version may go live: it must score the documents of the index.

    Without a ``golden`` set, words of the model's vocabulary are the queries. Raises `GateRefused` with the reason, or
    `EngineUnavailable` if the engine does not answer and the check is inconclusive.
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
        # The role may search but not read mappings. The golden queries reveal missing vectors as well.
        return
    if without:
        raise GateRefused(
            f"index {without[0]!r} has no vectors of encoder {serving.encoder_id[:12]}: run `ssi revectorize`"
        )


def _check_query(serving: Serving, settings: ServiceSettings, golden: GoldenQuery) -> int:
    """Return the number of hits of a golden query; raise `GateRefused` if its candidates are not scored."""
    own = serving.reranker
    # A longer deadline than requests have, because a busy engine does not disqualify a model.
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
        # The engine's message is left out, because it may quote the query.
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
        raise GateRefused("the first page of a golden query does not have the expected document")
    return n


class Watcher:
    """A thread that polls for the version that should be live and starts serving it.

    If a version cannot be loaded or fails `verify`, the old version keeps answering. The new one is retried when its
    files change or a reload is requested.
    """

    def __init__(self, versions: Versions, metrics: Metrics, golden: Sequence[GoldenQuery] | None = None) -> None:
        self._versions, self._metrics, self._golden = versions, metrics, golden
        self._refused: Attempt | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ssi-watch", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def reload(self) -> None:
        """Poll now, and retry a version that was refused before. Safe to call in a signal handler."""
        self._refused = None
        self._wake.set()

    def close(self) -> None:
        """Stop polling."""
        self._stop.set()
        self._wake.set()

    def poll(self) -> bool:
        """Poll once and return whether another version went live; also reload changed versions named by requests."""
        swapped = self._poll_live()
        try:
            self._versions.renew_others()
        except (RerankerError, OSError) as error:
            self._warn("not renewed", error)
        return swapped

    def _poll_live(self) -> bool:
        versions = self._versions
        try:
            wanted = versions.stamped(versions.folders.wanted())
            attempt = None if wanted == versions.served else versions.attempt(wanted)
        except (RerankerError, OSError) as error:
            self._warn("not known", error)
            return False
        if attempt is None or attempt == self._refused:
            return False
        try:
            serving = versions.open(wanted)
            verify(serving, versions.settings, self._golden)
        except EngineUnavailable as error:
            self._warn("put off", error)
            return False
        except (RerankerError, OSError) as error:
            self._refused = attempt
            self._metrics.swaps.labels("refused").inc()
            self._warn("refused", error, wanted.model_id)
            return False
        self._refused = None
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
                self.poll()
            except Exception:
                # The thread must survive any content of a model folder.
                _log.exception("polling for another version failed")
