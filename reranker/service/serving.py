"""The version that answers: one immutable object that a request takes once, and how it is made from a model folder."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

from reranker.artifacts import RankingModel, describe_model, load_model
from reranker.engines.base import Engine
from reranker.errors import ArtifactError, EngineError, InputError
from reranker.releases import ControlRecord, default_store, read_control
from reranker.rerank import Calibration, Reranker
from reranker.rerank.page import RouteName
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
