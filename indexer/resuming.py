"""Whether a load goes on where an earlier one was interrupted, or begins: the place alone does not tell."""

from __future__ import annotations

from pathlib import Path

from indexer.checkpoint import Checkpoint
from indexer.encoding import VersionEncoder
from reranker.engines.base import Engine


def source_id(engine: Engine, index: str, path: Path, version: VersionEncoder | None, version_field: str | None) -> str:
    """Return what a load reads and what it writes where: another one never goes on from its checkpoint.

    Parameters
    ----------
    engine, index : Engine, str
        Where to.
    path : Path
        The file.
    version : VersionEncoder or None
        The version whose fields are written, and into which local store.
    version_field : str or None
        Field of the external versions.
    """
    written: list[str] = []
    if version is not None:
        store = version.store_path
        written = [*version.routes, "" if store is None else str(store.resolve())]
    encoder_id = version.encoder_id if version else ""
    return "\n".join([str(path.resolve()), engine.spec, index, encoder_id, version_field or "", *written])


def still_there(engine: Engine, index: str, version: VersionEncoder | None, checkpoint: Checkpoint) -> bool:
    """Return False where what an earlier run stored is gone: the index, or the local store, was made anew since.

    Raises
    ------
    EngineError
        Where the engine does not tell.
    """
    if not checkpoint.counts.get("indexed") and not checkpoint.counts.get("superseded"):
        return True
    engine.refresh(index)
    return engine.count(index) > 0 and (version is None or not version.has_store or version.store_exists)
