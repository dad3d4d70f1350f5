"""The ``--store`` option of the commands that write the local store."""

from __future__ import annotations

from pathlib import Path

from reranker.engines.base import Engine
from reranker.releases import default_store


def store_path_of(option: str | None, model_path: Path | None, engine: Engine, index: str) -> Path | None:
    """Return the folder of ``--store``: None, the default place for this model and index, or the one named."""
    if option is None or model_path is None:
        return None
    return default_store(model_path, engine.spec, index) if option == "default" else Path(option)
