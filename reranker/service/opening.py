"""A service from names: the source of models, the version that is served first, the state."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reranker.engines.base import Engine
from reranker.errors import ConfigError, RerankerError
from reranker.service.auth import ApiKeys
from reranker.service.serving import (
    GoldenQuery,
    ManyFolders,
    ModelSource,
    OneFolder,
    Opener,
    Serving,
    Verifier,
    Versions,
    Wanted,
    Watcher,
    drawn_queries,
)
from reranker.service.settings import ServiceSettings
from reranker.service.sink import RecordSink
from reranker.service.state import ServiceState

_log = logging.getLogger(__name__)
WARM_UP_MS = 5000.0


def open_state(
    engine: Engine,
    settings: ServiceSettings,
    *,
    model: Path | None = None,
    models: Path | None = None,
    store: Path | None = None,
    sink: RecordSink | None = None,
    golden: Sequence[GoldenQuery] | None = None,
) -> ServiceState:
    """Return the state of a service; without a usable model it answers in the engine's order, and says so.

    Parameters
    ----------
    engine : Engine
    settings : ServiceSettings
    model, models : Path or None
        One model folder, or a folder of model folders of which the control record names the live one.
    store : Path or None
        Store of route *beside*; None: where the indexer puts it.
    sink : RecordSink or None
    golden : sequence of GoldenQuery or None
        What a version must score before it is swapped in; None draws words of its own.

    Raises
    ------
    ConfigError
        If the key file cannot be used, or neither ``model`` nor ``models`` is given.
    """
    keys = None if settings.api_keys is None else ApiKeys.read(settings.api_keys)
    source = _source_of(engine, settings.index, model, models)
    opener = Opener(engine, settings, store)
    versions = Versions(source, opener, *first_serving(source, opener))
    state = ServiceState(settings, engine, versions, sink=sink, keys=keys)
    serving = state.serving
    state.metrics.note_version(serving.model_id, serving.encoder_id, serving.loaded)
    watcher = Watcher(versions, Verifier(engine, settings, golden), state.metrics, settings.poll_s)
    state.watcher = watcher
    warm_up(serving, settings)
    return state


def _source_of(engine: Engine, index: str, model: Path | None, models: Path | None) -> ModelSource:
    if model is not None:
        return OneFolder(engine, index, model)
    if models is None:
        raise ConfigError("neither a model folder nor a folder of model folders is given: give one of them")
    return ManyFolders(engine, index, models)


def warm_up(serving: Serving, settings: ServiceSettings) -> None:
    """Search once, so that the first caller does not wait for compiled code and cold files."""
    for golden in drawn_queries(serving)[:1]:
        try:
            serving.reranker.search(golden.query, settings.body, size=1, deadline_ms=WARM_UP_MS)
        except RerankerError as error:
            _log.warning("the engine does not answer yet", extra={"ssi": {"error": type(error).__name__}})


def first_serving(source: ModelSource, opener: Opener) -> tuple[Serving, Wanted | None]:
    """Return the version to begin with: whole, else without its store, else without a model.

    It is not put to the test: there is no older one that could answer better. What is not whole is looked at again.
    """
    try:
        wanted = source.wanted()
    except (RerankerError, OSError) as error:
        return _without_model(opener, error)
    try:
        stamped = opener.stamped(wanted)
        serving = opener.open(wanted)
    except (RerankerError, OSError) as error:
        return _without_store(opener, wanted, f"{type(error).__name__}: {error}")
    try:
        serving.reranker.check()
    except RerankerError as error:
        problem = f"{type(error).__name__}: {error}"
        _log.error("the index does not fit the version", extra={"ssi": {"problem": problem}})
        return replace(serving, problem=problem), None
    return serving, stamped


def _without_store(opener: Opener, wanted: Wanted, problem: str) -> tuple[Serving, None]:
    try:
        serving = opener.without_store(wanted, problem)
    except (RerankerError, OSError) as error:
        return _without_model(opener, error)
    _log.error("the vector store cannot be used", extra={"ssi": {"problem": problem}})
    return serving, None


def _without_model(opener: Opener, error: Exception) -> tuple[Serving, None]:
    problem = f"{type(error).__name__}: {error}"
    _log.error("no model can be loaded; searches come in the engine's order", extra={"ssi": {"problem": problem}})
    return opener.without_model(problem), None
