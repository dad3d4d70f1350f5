"""The version that answers: one immutable object that a request takes once, and how it is made from a model folder.

What a version must show before it may answer: that it scores what the index holds.

Hot swap: looks for another live version, makes it ready beside the old one, and lets it answer if it is sound.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import numpy as np

from reranker.artifacts import RankingModel, describe_model, load_model
from reranker.engines.base import Engine
from reranker.engines.fields import field_name
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
from reranker.releases import ControlRecord, default_store, read_control
from reranker.rerank import Calibration, Reranker
from reranker.rerank.request import RouteName
from reranker.service.metrics import Metrics
from reranker.service.settings import ServiceSettings
from reranker.store import VectorStore

KEPT_VERSIONS = 3
"""Versions kept loaded besides the live one, for whoever asks for one by name."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A version as it serves: nothing in it changes, so that one answer comes from one version.

    Parameters
    ----------
    reranker : Reranker
        Searches; its ``model`` is the one below.
    model : RankingModel or None
        None: no model could be loaded, searches come back in the engine's order.
    model_id, encoder_id : str
        Empty without a model.
    path : Path or None
        Folder of the model.
    problem : str
        Why there is no model or no store; empty where all is well.
    loaded : float
        Unix time.
    """

    reranker: Reranker
    model: RankingModel | None = None
    model_id: str = ""
    encoder_id: str = ""
    path: Path | None = None
    problem: str = ""
    loaded: float = field(default_factory=time.time)

    @property
    def store(self) -> VectorStore | None:
        """The vectors beside the service, where the route has them."""
        return self.reranker.store


@dataclass(frozen=True, slots=True)
class Wanted:
    """The version that should be served: its id, folder, calibration, and the state of its store.

    Two equal ones need no reload.
    """

    model_id: str
    path: Path
    calibration: Mapping[str, Any]
    store_generation: int = -1


class ModelSource(Protocol):
    """Says which version should be served, and where a version's folder is."""

    def wanted(self) -> Wanted:
        """Return the version that should be served now."""
        ...

    def folder_of(self, model_id: str) -> Path:
        """Return the folder of a version named by its id or the beginning of it."""
        ...

    def known(self) -> tuple[str, ...]:
        """Return the ids of all versions that can be asked for."""
        ...


def _calibration(record: ControlRecord, model_id: str) -> Mapping[str, Any]:
    return next((one.calibration for one in record.releases if one.model_id == model_id), {})


@dataclass(frozen=True, slots=True)
class OneFolder:
    """One model folder (``--model``): what lies in it is served; replacing it is noticed."""

    engine: Engine
    index: str
    path: Path
    _told: dict[str, Mapping[str, Any]] = field(init=False, default_factory=dict)

    def wanted(self) -> Wanted:
        """Return the model that the folder holds now."""
        model_id = str(describe_model(self.path)["model_id"])
        with suppress(EngineError):
            self._told[model_id] = _calibration(read_control(self.engine, self.index), model_id)
        # A role that may not read the control index serves with the default alpha; a busy engine changes nothing.
        return Wanted(model_id, self.path, self._told.get(model_id, {}))

    def folder_of(self, model_id: str) -> Path:
        """Return the folder if it holds this version."""
        if len(model_id) < 6 or not str(describe_model(self.path)["model_id"]).startswith(model_id):
            raise InputError("this version is not one of those that the service can load")
        return self.path

    def known(self) -> tuple[str, ...]:
        """Return the one version."""
        return (str(describe_model(self.path)["model_id"]),)


@dataclass(frozen=True, slots=True)
class ManyFolders:
    """A folder of model folders (``--models``): the control record of the index says which one is live."""

    engine: Engine
    index: str
    path: Path

    def wanted(self) -> Wanted:
        """Return the live release.

        Raises
        ------
        ArtifactError
            If no release is live, or its folder is not here.
        """
        record = read_control(self.engine, self.index)
        if record.live is None:
            raise ArtifactError(f"no version of index {self.index!r} is live: run `ssi promote`")
        return Wanted(record.live, self.folder_of(record.live), _calibration(record, record.live))

    def folder_of(self, model_id: str) -> Path:
        """Return the folder that holds a version."""
        found = [path for name, path in self._folders().items() if len(model_id) >= 6 and name.startswith(model_id)]
        if len(found) != 1:
            raise ArtifactError(
                f"{len(found)} folders in {str(self.path)!r} hold version {model_id[:12]!r}: copy the model there"
            )
        return found[0]

    def known(self) -> tuple[str, ...]:
        """Return the versions whose folders are here."""
        return tuple(self._folders())

    def _folders(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            if (folder / "manifest.json").is_file():
                try:
                    found[str(describe_model(folder)["model_id"])] = folder
                except ArtifactError:
                    # A damaged neighbour is no version; it must not hide the others.
                    continue
        return found


class Opener:
    """Makes a `Serving` of a model folder.

    Parameters
    ----------
    engine : Engine
    settings : ServiceSettings
    store_path : Path or None
        Store of route *beside*; None: where the indexer puts it.
    """

    def __init__(self, engine: Engine, settings: ServiceSettings, store_path: Path | None = None) -> None:
        self._engine, self._settings, self._store_path = engine, settings, store_path

    def store_place(self, model_path: Path) -> Path:
        """Return the folder of a model's store."""
        return self._store_path or default_store(model_path, self._engine.spec, self._settings.index)

    def stamped(self, wanted: Wanted) -> Wanted:
        """Return the wish with the state of its store, so that a store written since is noticed."""
        if self._settings.route != "beside":
            return wanted
        return replace(wanted, store_generation=VectorStore.open(self.store_place(wanted.path)).generation)

    def calibration_of(self, model_id: str) -> Mapping[str, Any]:
        """Return the calibration that the control record keeps for a version."""
        return _calibration(read_control(self._engine, self._settings.index), model_id)

    def open(self, wanted: Wanted) -> Serving:
        """Return the version, every byte of it verified.

        Raises
        ------
        ArtifactError
            If model or store cannot be used, or the folder holds another version by now.
        """
        model = load_model(wanted.path, self._engine)
        if model.model_id != wanted.model_id:
            raise ArtifactError(
                f"{str(wanted.path)!r} holds version {model.model_id[:12]} where {wanted.model_id[:12]} is wanted"
            )
        store = None
        if self._settings.route == "beside":
            store = VectorStore.open(self.store_place(wanted.path), model.encoder_id)
        return self._serving(model, wanted, store)

    def without_store(self, wanted: Wanted, problem: str) -> Serving:
        """Return a version that can score texts and, for want of a store, no hits."""
        return self._serving(load_model(wanted.path, self._engine), wanted, None, problem)

    def without_model(self, problem: str) -> Serving:
        """Return what answers in the engine's order."""
        return Serving(self._reranker(None, None, Calibration()), problem=problem)

    def _serving(self, model: RankingModel, wanted: Wanted, store: VectorStore | None, problem: str = "") -> Serving:
        reranker = self._reranker(model, store, Calibration.from_release(wanted.calibration))
        return Serving(reranker, model, model.model_id, model.encoder_id, wanted.path, problem)

    def _reranker(self, model: RankingModel | None, store: VectorStore | None, calibration: Calibration) -> Reranker:
        settings = self._settings
        return Reranker(
            self._engine, settings.index, model,
            route=cast("RouteName", settings.route), store=store, calibration=calibration, settings=settings.rerank,
        )  # fmt: skip


class Versions:
    """The version that is served, and a few others that were asked for by name.

    Parameters
    ----------
    source : ModelSource
    opener : Opener
    current : Serving
    served : Wanted or None
        What ``current`` was made of, where it is whole.
    """

    def __init__(self, source: ModelSource, opener: Opener, current: Serving, served: Wanted | None = None) -> None:
        self.source, self.opener, self.served = source, opener, served
        self._current = current
        self._others: OrderedDict[str, tuple[Wanted, Serving]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def current(self) -> Serving:
        """The version that answers; take it once a request."""
        return self._current

    def set_current(self, serving: Serving, served: Wanted) -> None:
        """Let another version answer from now on; requests that took the old one end with it."""
        self._current, self.served = serving, served

    def get(self, model_id: str) -> Serving:
        """Return a version by its id, or a beginning of it of 6 digits or more; loads it where it is not loaded.

        Raises
        ------
        ArtifactError, InputError
            If there is no such version, or it cannot be used.
        """
        current = self._current
        if current.model_id and len(model_id) >= 6 and current.model_id.startswith(model_id):
            return current
        with self._lock:
            folder = self.source.folder_of(model_id)
            full = str(describe_model(folder)["model_id"])
            if full not in self._others:
                wanted = self._wanted(full)
                self._others[full] = (wanted, self.opener.open(wanted))
            self._others.move_to_end(full)
            while len(self._others) > KEPT_VERSIONS:
                self._others.popitem(last=False)
            return self._others[full][1]

    def renew_others(self) -> None:
        """Make those anew whose calibration or store has changed; raises where one cannot be made, which stays."""
        for full, (made_of, _) in list(self._others.items()):
            wanted = self._wanted(full)
            if wanted != made_of:
                serving = self.opener.open(wanted)
                with self._lock:
                    if full in self._others:
                        self._others[full] = (wanted, serving)

    def _wanted(self, full: str) -> Wanted:
        folder, calibration = self.source.folder_of(full), self.opener.calibration_of(full)
        return self.opener.stamped(Wanted(full, folder, calibration))


MAX_GOLDEN = 1000
MAX_GOLDEN_BYTES = 1_000_000
N_DRAWN = 5
"""Queries drawn from the model's vocabulary where no golden set is given."""
PATIENCE_MS = 30_000.0
MAX_ENCODED = 0.5
"""Share of candidates that may have to be encoded from their text: more, and the index is another version's."""


@dataclass(frozen=True, slots=True)
class GoldenQuery:
    """A query, and the id of a document that must be on its first page ("" for any)."""

    query: str
    expect: str = ""


def read_golden(path: Path) -> tuple[GoldenQuery, ...]:
    """Return the golden set of a file of JSON lines ``{"query": ..., "expect": "document id"}`` (``expect`` optional).

    Raises
    ------
    InputError
        If the file cannot be read, or a line is no such object.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the golden set {str(path)!r} cannot be read: {error.strerror}") from error
    lines = [line for line in content.splitlines() if line.strip()]
    if len(content) > MAX_GOLDEN_BYTES or not 1 <= len(lines) <= MAX_GOLDEN:
        raise InputError(f"the golden set {str(path)!r} has {len(lines)} lines; it has 1 to {MAX_GOLDEN}")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = msgspec.json.decode(line, type=dict[str, str])
            found.append(GoldenQuery(entry["query"], entry.get("expect", "")))
        except (msgspec.MsgspecError, KeyError, RecursionError) as error:
            raise InputError(
                f'line {number} of the golden set {str(path)!r} is not {{"query": ..., "expect": ...}}'
            ) from error
    return tuple(found)


def drawn_queries(serving: Serving) -> tuple[GoldenQuery, ...]:
    """Return queries of one word each from the more frequent tenth of the model's words."""
    if serving.model is None:
        return ()
    words = serving.model.query_vocabulary.words
    reach = max(len(words) // 10, min(len(words), N_DRAWN))
    places = np.unique(np.linspace(0, reach - 1, N_DRAWN).astype(int)) if reach else ()
    return tuple(GoldenQuery(words[place]) for place in places)


class Verifier:
    """Checks a version against the index that it is to serve.

    Parameters
    ----------
    engine : Engine
    settings : ServiceSettings
    golden : sequence of GoldenQuery or None
        None draws some of the model's own words.
    """

    def __init__(self, engine: Engine, settings: ServiceSettings, golden: Sequence[GoldenQuery] | None = None) -> None:
        self._engine, self._settings, self._golden = engine, settings, golden

    def check(self, serving: Serving) -> None:
        """Return if the version may answer.

        Raises
        ------
        GateRefused
            With the reason.
        EngineUnavailable
            If the engine does not answer, so that nothing can be said.
        """
        try:
            serving.reranker.check()
        except EngineUnavailable:
            raise
        except RerankerError as error:
            raise GateRefused(f"the index does not fit this version: {error}") from error
        if self._settings.route == "fetch":
            self._check_fields(serving)
        queries = drawn_queries(serving) if self._golden is None else self._golden
        n_hits = sum(self._check_query(serving, one) for one in queries)
        if self._golden is not None and not n_hits:
            raise GateRefused("no query of the golden set finds a document")

    def _check_fields(self, serving: Serving) -> None:
        field = field_name(serving.encoder_id, "vec")
        try:
            names = self._engine.index_names(self._settings.index)
            without = [name for name in names if field not in self._engine.index_info(name).properties]
        except EngineAuthError:
            # A role that may search and not look at mappings: the golden queries show as much.
            return
        if without:
            raise GateRefused(
                f"index {without[0]!r} has no vectors of encoder {serving.encoder_id[:12]}: run `ssi revectorize`"
            )

    def _patient(self, serving: Serving) -> Reranker:
        """Return the version's reranker with more time than a request has: a busy engine is no fault of a model."""
        own = serving.reranker
        return Reranker(
            own.engine, own.index, own.model, route=own.route, store=own.store, calibration=own.calibration,
            settings=replace(own.settings, deadline_ms=PATIENCE_MS),
        )  # fmt: skip

    def _check_query(self, serving: Serving, golden: GoldenQuery) -> int:
        """Return the number of hits of a query whose candidates are scored as they must be."""
        reranker, body = self._patient(serving), self._settings.body
        try:
            window, encoded, _ = reranker.score_window(golden.query, body)
            page = reranker.search(golden.query, body, size=10) if golden.expect else None
        except EngineUnavailable:
            raise
        except (FallbackError, EngineError) as error:
            raise GateRefused(f"a golden query cannot be scored: {error}") from error
        n = len(window.hits)
        if encoded.is_empty or not n:
            return n
        if window.n_unscored > self._settings.rerank.max_unscored * n:
            raise GateRefused(f"{window.n_unscored} of {n} candidates of a golden query have no score")
        if window.n_encoded > MAX_ENCODED * n:
            raise GateRefused(
                f"{window.n_encoded} of {n} candidates of a golden query have no vector of encoder "
                f"{serving.encoder_id[:12]}: run `ssi revectorize`"
            )
        if page is not None and (page.fallback or golden.expect not in {hit.id for hit in page.hits}):
            raise GateRefused("a golden query does not find the document it must have on its first page")
        return n


_log = logging.getLogger(__name__)


class Watcher:
    """A thread that keeps the served version the one that is wanted.

    A version that cannot be loaded, or is refused by the verifier, leaves the old one answering; it is not tried again
    until something about it changes or a reload is asked for.

    Parameters
    ----------
    versions : Versions
    verifier : Verifier
    metrics : Metrics
    poll_s : float
        Seconds between two looks.
    """

    def __init__(self, versions: Versions, verifier: Verifier, metrics: Metrics, poll_s: float) -> None:
        self._versions, self._verifier, self._metrics, self._poll_s = versions, verifier, metrics, poll_s
        self._served: Wanted | None = versions.served
        self._refused: Wanted | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ssi-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
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
            self._tell("not renewed", error)
        return swapped

    def _look_for_another(self) -> bool:
        versions = self._versions
        try:
            wanted = versions.opener.stamped(versions.source.wanted())
        except (RerankerError, OSError) as error:
            self._tell("not known", error)
            return False
        if wanted in (self._served, self._refused):
            return False
        try:
            serving = versions.opener.open(wanted)
            self._verifier.check(serving)
        except EngineUnavailable as error:
            self._tell("put off", error)
            return False
        except (RerankerError, OSError) as error:
            self._refused = wanted
            self._metrics.swaps.labels("refused").inc()
            self._tell("refused", error, wanted.model_id)
            return False
        versions.set_current(serving, wanted)
        self._served, self._refused = wanted, None
        self._metrics.swaps.labels("done").inc()
        self._metrics.note_version(serving.model_id, serving.encoder_id, serving.loaded)
        _log.info("version", extra={"ssi": {"result": "live", "model": serving.model_id[:12]}})
        return True

    def _tell(self, result: str, error: Exception, model_id: str = "") -> None:
        entry = {"result": result, "model": model_id[:12], "reason": f"{type(error).__name__}: {error}"}
        _log.warning("version", extra={"ssi": entry})

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._poll_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                self.look()
            except Exception:
                # The watcher must outlive whatever a model folder does to it.
                _log.exception("looking for another version failed")
