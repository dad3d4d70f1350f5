"""Which model is live and which one a retraining starts from; one retraining of an index at a time; a model goes live.

Two processes on one machine are kept apart by a file lock, which the system takes back from a process that is killed.
Processes on two machines are kept apart where it counts: a promotion is one write to the control record, refused
where the live version is no longer the one that the gate compared with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from indexer.builds import register
from indexer.encoding import VersionEncoder, present_routes
from indexer.preflight import preflight
from indexer.renewal import RenewOptions, Target, revectorize
from indexer.versions import promote, with_version
from reranker.artifacts import RankingModel, describe_model, load_model, save_model
from reranker.engines.base import Engine
from reranker.errors import ArtifactError, ConfigError, GateRefused
from reranker.progress import Progress, Say
from reranker.releases import ControlRecord, default_store, read_control, update_control
from reranker.rerank.blend import Calibration
from reranker.retrain.settings import RetrainSettings

NAME_DIGITS = 12
FOLDER = ".retrain"
REFUSED = "refused"
"""Folder of the last model that the gate refused."""
MARK = "retrain"
"""Key of a model's training record that says it was made by a retraining, and from what."""


class StoredModel(NamedTuple):
    """A model and its folder."""

    model: RankingModel
    path: Path


def folder_of(models: Path, model_id: str) -> Path:
    """Return where a model of this id lies."""
    return models / model_id[:NAME_DIGITS]


def find_model(models: Path, model_id: str, engine: Engine, others: tuple[Path, ...] = ()) -> StoredModel:
    """Return the model of an id: in its folder, in one of some others, or in any folder under ``models``.

    `ArtifactError` if no folder holds it.
    """
    under = sorted(path for path in models.iterdir() if path.is_dir()) if models.is_dir() else []
    for path in dict.fromkeys((folder_of(models, model_id), *others, *under)):
        if _id_of(path) == model_id:
            return StoredModel(load_model(path, engine), path)
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


def live_model(models: Path, record: ControlRecord, engine: Engine, base: Path | None) -> StoredModel | None:
    """Return the model that is live, None where no version is; `ArtifactError` if its folder is not there."""
    if record.live is None:
        return None
    return find_model(models, record.live, engine, (base,) if base else ())


def base_model(models: Path, live: StoredModel | None, engine: Engine, base: Path | None) -> StoredModel:
    """Return the model to start from: the one named, else the one that the live model was started from.

    A live model that no retraining made is itself the base. So one that learned from last night's clicks never is.

    `ConfigError` if none is named and none is live; `ArtifactError` if its folder is not there.
    """
    if base is not None:
        return StoredModel(load_model(base, engine), base)
    if live is None:
        raise ConfigError(
            "no version is live, so there is no model to start from: name one trained on links or judgements by --base"
        )
    made = live.model.training.get(MARK)
    if made is None:
        return live
    return find_model(models, str(made["base"]), engine)


def work_folder(models: Path, engine_spec: str, index: str) -> Path:
    """Return where a retraining of an index keeps its lock, documents and checkpoint: ``<models>/.retrain/<key>``."""
    return models.resolve() / FOLDER / default_store(models / FOLDER, engine_spec, index).name


@contextlib.contextmanager
def only_one(folder: Path, index: str) -> Iterator[None]:
    """Hold the lock of a work folder, made where it is missing; `GateRefused` where another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise GateRefused(
            f"another `ssi retrain` of index {index!r} is at work with these models (lock {str(folder / 'lock')!r}): "
            "wait until it has ended",
            index=index,
        ) from error
    try:
        yield
    finally:
        lock.release()


def still_live(expected: str | None) -> Callable[[ControlRecord], None]:
    """Return a check for `indexer.versions.promote`: the live version is still the one compared with (None: none)."""

    def check(record: ControlRecord) -> None:
        if record.live != expected:
            raise GateRefused(
                f"the live version of {record.index!r} is {_name(record.live)} by now, and the new model was compared "
                f"with {_name(expected)}: nothing was promoted; run `ssi retrain` again",
                index=record.index,
                live=record.live,
            )

    return check


def _name(model_id: str | None) -> str:
    return model_id[:NAME_DIGITS] if model_id else "none"


@dataclass(frozen=True)
class Publisher:
    """Writes to one index and its record (``before``: as it was read at the start), and nowhere else."""

    engine: Engine
    index: str
    settings: RetrainSettings
    before: ControlRecord

    def check(self, base: RankingModel) -> None:
        """Raise `PreflightRefused` where the index could not take vectors of a new encoder."""
        if not (self.settings.query_side_only and self.is_complete(base)):
            version = VersionEncoder(base.encoder, self.routes(base), None)
            preflight(self.engine, self.index, version).check()

    def is_complete(self, model: RankingModel) -> bool:
        """Return whether every document has the vector of a model's encoder already."""
        self.engine.refresh(self.index)
        documents = self.engine.count(self.index)
        return with_version(self.engine, self.index, model.encoder_id) >= documents

    def routes(self, model: RankingModel) -> tuple[str, ...]:
        """Return the routes asked for and those that the index has for the live version."""
        live = self.before.live_release
        encoder_id = model.encoder_id if live is None else live.encoder_id
        present: list[str] = []
        for name in self.engine.index_names(self.index):
            present += present_routes(self.engine.index_info(name).properties, encoder_id)
        return tuple(dict.fromkeys((*self.settings.routes, *present)))

    def calibration(self, model: RankingModel) -> Calibration:
        """Return the calibration that a model will be served with: its own, else that of the live release."""
        for release in self.before.releases:
            if release.model_id == model.model_id and release.calibration:
                return Calibration.from_release(release.calibration)
        live = self.before.live_release
        return Calibration() if live is None else Calibration.from_release(live.calibration)

    def publish(self, stored: StoredModel, rejects: Path, progress: Progress, say: Say) -> int:
        """Make a model live and return how many documents were written.

        Raises
        ------
        GateRefused
            If another version went live meanwhile, or a document lacks the vector: the live version stays.
        EngineError
            If the engine stops on the way; run again, what is written is skipped.
        """
        model = stored.model
        written = 0
        still_live(self.before.live)(read_control(self.engine, self.index))  # before hours of writing, too
        if self.settings.store is not None or not self.is_complete(model):
            written = self._write_vectors(stored, rejects, progress, say)
        register(self.engine, self.index, model, promote=False)
        update_control(self.engine, self.index, lambda record: self._calibrated(record, model.model_id))
        promote(self.engine, self.index, model.model_id, check=still_live(self.before.live))
        return written

    def _write_vectors(self, stored: StoredModel, rejects: Path, progress: Progress, say: Say) -> int:
        store = self.settings.store
        path = default_store(stored.path, self.engine.spec, self.index) if store == "default" else store
        target = Target(
            self.engine, self.index, stored.model, self.routes(stored.model), None if path is None else Path(path)
        )
        options = RenewOptions(max_docs_per_s=self.settings.max_docs_per_s, reject_path=rejects)
        report = revectorize(target, options, progress=progress, notice=say)
        if report.stopped is not None:
            raise report.stopped
        if report.rejected:
            raise GateRefused(
                f"the engine refused the vectors of {report.rejected:,} documents (see {str(rejects)!r}): the "
                "live version stays; mend these documents and run again",
                rejected=report.rejected,
            )
        rejects.unlink(missing_ok=True)
        return report.written

    def _calibrated(self, record: ControlRecord, model_id: str) -> ControlRecord:
        """Return the record with the live release's calibration taken over where the model has none."""
        release, live = record.release(model_id), self.before.live_release
        if release.calibration or live is None or not live.calibration:
            return record
        return record.with_release(replace(release, calibration=dict(live.calibration)))
