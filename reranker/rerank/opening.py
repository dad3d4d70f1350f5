"""A reranker from names: the model's release and the store, looked up where the indexer put them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reranker.engines.base import Engine
from reranker.errors import EngineError, InputError
from reranker.releases import default_store, read_control
from reranker.rerank.calibration import Calibration
from reranker.rerank.page import RerankSettings, RouteName
from reranker.rerank.reranker import Reranker
from reranker.store import VectorStore

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel

MAX_BODY_BYTES = 1_000_000


def calibration_of(engine: Engine, index: str, model_id: str) -> Calibration:
    """Return the calibration that the release of a model keeps for an index; an empty one where there is none.

    Raises
    ------
    EngineError
        If the engine does not answer.
    """
    record = read_control(engine, index)
    for release in record.releases:
        if release.model_id == model_id:
            return Calibration.from_release(release.calibration)
    return Calibration()


def open_reranker(
    engine: Engine,
    index: str,
    model: RankingModel,
    model_path: Path,
    *,
    route: RouteName = "fetch",
    store_path: Path | None = None,
    settings: RerankSettings | None = None,
) -> Reranker:
    """Return a reranker with the release's calibration and, for route *beside*, the store.

    A role that may not read the control index still searches: with the default alpha, which the answer states.

    Parameters
    ----------
    engine, index, model
        As `Reranker` takes them.
    model_path : Path
        Folder of the model, beside which its stores lie.
    route : {'beside', 'fetch', 'inside'}
    store_path : Path or None
        Folder of the store; None: where the indexer puts it.
    settings : RerankSettings or None

    Raises
    ------
    ArtifactError
        If route is *beside* and there is no store.
    EncoderMismatch
        If the store is another encoder's, or the index lacks the fields that the route or the first stage needs.
    Unsupported
        If the engine cannot carry them.
    """
    store = None
    if route == "beside":
        store = VectorStore.open(store_path or default_store(model_path, engine.spec, index), model.encoder_id)
    try:
        calibration = calibration_of(engine, index, model.model_id)
    except EngineError:
        calibration = Calibration()
    reranker = Reranker(engine, index, model, route=route, store=store, calibration=calibration, settings=settings)
    reranker.check()
    return reranker


def read_body(path: Path) -> Mapping[str, Any]:
    """Return the search body of a JSON file.

    Raises
    ------
    InputError
        If the file cannot be read, is too large, or holds no JSON object.
    """
    try:
        content = path.read_bytes()
        if len(content) > MAX_BODY_BYTES:
            raise InputError(f"{str(path)!r} has {len(content)} bytes; a search body has at most {MAX_BODY_BYTES}")
        body = json.loads(content)
    except OSError as error:
        raise InputError(f"the search body {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"the search body {str(path)!r} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InputError(f"the search body {str(path)!r} is a {type(body).__name__}; it must be a JSON object")
    return body
