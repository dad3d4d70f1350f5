"""A model that passed the gate goes live: vectors where they are missing, the calibration, and one write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from indexer.builds import register
from indexer.encoding import VersionEncoder, present_routes
from indexer.preflight import preflight
from indexer.renewal import Target, revectorize
from indexer.revectorize import RenewOptions
from indexer.versions import promote, with_version
from reranker.artifacts import RankingModel
from reranker.engines.base import Engine
from reranker.errors import GateRefused
from reranker.releases import ControlRecord, default_store, read_control, update_control
from reranker.rerank.calibration import Calibration
from reranker.retrain.lock import still_live
from reranker.retrain.models import Placed
from reranker.retrain.settings import RetrainSettings

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Publisher:
    """Writes to one index and its record, and nowhere else.

    Parameters
    ----------
    engine : Engine
    index : str
    settings : RetrainSettings
    before : ControlRecord
        As it was read at the start.
    """

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

    def publish(self, placed: Placed, rejects: Path, progress: Progress, say: Callable[[str], None]) -> int:
        """Make a model live and return how many documents were written.

        Raises
        ------
        GateRefused
            If another version went live meanwhile, or a document lacks the vector: the live version stays.
        EngineError
            If the engine stops on the way; run again, what is written is skipped.
        """
        model = placed.model
        written = 0
        still_live(self.before.live)(read_control(self.engine, self.index))  # before hours of writing, too
        if self.settings.store is not None or not self.is_complete(model):
            written = self._write_vectors(placed, rejects, progress, say)
        register(self.engine, self.index, model, promote=False)
        update_control(self.engine, self.index, lambda record: self._calibrated(record, model.model_id))
        promote(self.engine, self.index, model.model_id, check=still_live(self.before.live))
        return written

    def _write_vectors(
        self, placed: Placed, rejects: Path, progress: Progress, say: Callable[[str], None]
    ) -> int:  # fmt: skip
        store = self.settings.store
        path = default_store(placed.path, self.engine.spec, self.index) if store == "default" else store
        target = Target(
            self.engine, self.index, placed.model, self.routes(placed.model), None if path is None else Path(path)
        )
        options = RenewOptions(max_docs_per_s=self.settings.max_docs_per_s, reject_path=rejects)
        outcome = revectorize(target, options, progress=progress, notice=say)
        if outcome.error is not None:
            raise outcome.error
        if outcome.report.rejected:
            raise GateRefused(
                f"the engine refused the vectors of {outcome.report.rejected:,} documents (see {str(rejects)!r}): the "
                "live version stays; mend these documents and run again",
                rejected=outcome.report.rejected,
            )
        rejects.unlink(missing_ok=True)
        return outcome.report.written

    def _calibrated(self, record: ControlRecord, model_id: str) -> ControlRecord:
        """Return the record with the live release's calibration taken over where the model has none."""
        release, live = record.release(model_id), self.before.live_release
        if release.calibration or live is None or not live.calibration:
            return record
        return record.with_release(replace(release, calibration=dict(live.calibration)))
