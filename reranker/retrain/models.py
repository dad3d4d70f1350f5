"""Which model is live, which one a retraining starts from, and where their folders are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reranker.artifacts import RankingModel, describe_model, load_model, save_model
from reranker.engines.base import Engine
from reranker.errors import ArtifactError, ConfigError
from reranker.releases import ControlRecord

NAME_DIGITS = 12
REFUSED = "refused"
"""Folder of the last model that the gate refused."""
MARK = "retrain"
"""Key of a model's training record that says it was made by a retraining, and from what."""


@dataclass(frozen=True)
class Placed:
    """A model and its folder."""

    model: RankingModel
    path: Path


def folder_of(models: Path, model_id: str) -> Path:
    """Return where a model of this id lies."""
    return models / model_id[:NAME_DIGITS]


def find_model(models: Path, model_id: str, engine: Engine, others: tuple[Path, ...] = ()) -> Placed:
    """Return the model of an id: in its folder, in one of some others, or in any folder under ``models``.

    Raises
    ------
    ArtifactError
        If no folder holds it.
    """
    under = sorted(path for path in models.iterdir() if path.is_dir()) if models.is_dir() else []
    for path in dict.fromkeys((folder_of(models, model_id), *others, *under)):
        if _id_of(path) == model_id:
            return Placed(load_model(path, engine), path)
    raise ArtifactError(
        f"model {model_id[:NAME_DIGITS]} is not in a folder under {str(models)!r}: copy its folder there (any name), "
        "or name the folder where the models are with --models",
        model=model_id,
    )


def keep_registered(models: Path, record: ControlRecord, engine: Engine) -> None:
    """Copy the last refused model to a folder of its id where the index knows it: somebody put it live by hand."""
    found = _id_of(models / REFUSED)
    if any(release.model_id == found for release in record.releases):
        save_model(load_model(models / REFUSED, engine), folder_of(models, str(found)))


def _id_of(path: Path) -> str | None:
    """Return the model id of a folder; None where it holds no whole model."""
    if not (path / "manifest.json").is_file():
        return None
    try:
        return str(describe_model(path)["model_id"])
    except ArtifactError:
        return None


def live_model(models: Path, record: ControlRecord, engine: Engine, base: Path | None) -> Placed | None:
    """Return the model that is live; None where no version is.

    Raises
    ------
    ArtifactError
        If its folder is not there.
    """
    if record.live is None:
        return None
    return find_model(models, record.live, engine, (base,) if base else ())


def base_model(models: Path, live: Placed | None, engine: Engine, base: Path | None) -> Placed:
    """Return the model to start from: the one named, else the one that the live model was started from.

    A live model that no retraining made is itself the base. So one that learned from last night's clicks never is.

    Raises
    ------
    ConfigError
        If none is named and none is live.
    ArtifactError
        If its folder is not there.
    """
    if base is not None:
        return Placed(load_model(base, engine), base)
    if live is None:
        raise ConfigError(
            "no version is live, so there is no model to start from: name one trained on links or judgements by --base"
        )
    made = live.model.training.get(MARK)
    if made is None:
        return live
    return find_model(models, str(made["base"]), engine)
