"""A service from names: the source of models, the version that is served first, the state."""

from __future__ import annotations

import logging
from pathlib import Path

from reranker.engines.base import Engine
from reranker.errors import RerankerError
from reranker.service.auth import ApiKeys
from reranker.service.records import RecordSink
from reranker.service.serving import ManyFolders, ModelSource, OneFolder, Opener, Serving, Versions
from reranker.service.settings import ServiceSettings
from reranker.service.state import ServiceState

_log = logging.getLogger(__name__)


def open_state(
    engine: Engine,
    settings: ServiceSettings,
    *,
    model: Path | None = None,
    models: Path | None = None,
    store: Path | None = None,
    sink: RecordSink | None = None,
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

    Raises
    ------
    ConfigError
        If the key file cannot be used.
    """
    keys = None if settings.api_keys is None else ApiKeys.read(settings.api_keys)
    source: ModelSource
    if model is not None:
        source = OneFolder(engine, settings.index, model)
    else:
        source = ManyFolders(engine, settings.index, models or Path("models"))
    opener = Opener(engine, settings, store)
    state = ServiceState(settings, engine, Versions(source, opener, first_serving(source, opener)),
                         sink=sink, keys=keys)  # fmt: skip
    serving = state.serving
    state.metrics.note_version(serving.model_id, serving.encoder_id, serving.loaded)
    return state


def first_serving(source: ModelSource, opener: Opener) -> Serving:
    """Return the version to begin with: whole, else without its store, else without a model."""
    try:
        wanted = source.wanted()
    except (RerankerError, OSError) as error:
        return _without_model(opener, error)
    try:
        return opener.open(wanted)
    except (RerankerError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"
    try:
        serving = opener.without_store(wanted, problem)
    except (RerankerError, OSError) as error:
        return _without_model(opener, error)
    _log.error("the vector store cannot be used", extra={"ssi": {"problem": problem}})
    return serving


def _without_model(opener: Opener, error: Exception) -> Serving:
    problem = f"{type(error).__name__}: {error}"
    _log.error("no model can be loaded; searches come in the engine's order", extra={"ssi": {"problem": problem}})
    return opener.without_model(problem)
