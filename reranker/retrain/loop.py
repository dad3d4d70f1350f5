"""`ssi retrain`: click log → preferences → a new model → the gate → the index → live, or refused with the reason.

Nothing that searchers see changes before the last write, which makes the new version live. A process that is killed
anywhere leaves the live version live; started again with the same log it goes on from its checkpoint and comes to the
same model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from reranker.artifacts import RankingModel, load_model, save_model
from reranker.clicks.log import ClickLog
from reranker.engines.base import Engine
from reranker.models.scorers import LINEAR
from reranker.releases import read_control, utc_now
from reranker.rerank import body_hash, default_template
from reranker.retrain.comparison import Comparison, ServedModel, ServingScores, compare
from reranker.retrain.gate import Verdict
from reranker.retrain.history import History, check_log, read_history
from reranker.retrain.learning import Learner, LinksAndJudgements, export_documents
from reranker.retrain.publishing import (
    REFUSED,
    Publisher,
    StoredModel,
    base_model,
    folder_of,
    keep_registered,
    live_model,
    only_one,
    work_folder,
)  # fmt: skip
from reranker.retrain.report import Data, Findings, RetrainResult, examples_of, strongest_pairs, write_report
from reranker.retrain.settings import RetrainSettings
from reranker.training import Listener, TrainingReport
from reranker.training.linear import check_trainable
from reranker.training.trainer import remove_checkpoints


@dataclass
class Retraining:
    """One retraining of one index (or alias); ``report`` is where the HTML report goes."""

    engine: Engine
    index: str
    log: ClickLog
    settings: RetrainSettings
    beside_clicks: LinksAndJudgements = field(default_factory=LinksAndJudgements)
    listener: Listener = field(default_factory=Listener)
    report: Path | None = None
    seconds: dict[str, float] = field(init=False, default_factory=dict)

    def run(self) -> RetrainResult:
        """Retrain, and return how it ended.

        Raises
        ------
        NothingToLearn
            If the log or the index holds too little.
        GateRefused
            If another retraining of the index is at work, the log is unsound, the index cannot take new vectors, or
            another version went live meanwhile.
        ArtifactError
            If the live model or the base is not where it should be.
        EngineError
            If the engine does not do what is asked.
        """
        self.settings.models.mkdir(parents=True, exist_ok=True)
        work = work_folder(self.settings.models, self.engine.spec, self.index)
        with only_one(work, self.index):
            return self._run(work)

    def _run(self, work: Path) -> RetrainResult:
        settings, listener = self.settings, self.listener
        before = read_control(self.engine, self.index)
        live = live_model(settings.models, before, self.engine, settings.base)
        base = base_model(settings.models, live, self.engine, settings.base)
        check_trainable(base.model)
        publisher = Publisher(self.engine, self.index, settings, before)
        publisher.check(base.model)
        with self._timed("read the log"):
            warnings = check_log(
                self.log, self.engine, self.index, settings.pairs, allow_unsound=settings.allow_unsound
            )
            history = read_history(self.log, settings, listener.say)
        with self._timed("read the documents"):
            documents, n_documents = self._documents(base.model, work)
        checkpoint = work / "training"
        with self._timed("train"):
            learner = Learner(base.model, documents, self.beside_clicks, settings, listener)
            model, training = learner.model(history, checkpoint)
            study = learner.study(history) if settings.study else []
        with self._timed("compare"):
            scores = self._scores(publisher, live, model, [one for _, one in study])
            comparison = compare(
                scores, history, self.beside_clicks.judged, settings.gate, window=settings.window,
                seed=settings.train.seed, study=[n for n, _ in study],
                progress=lambda done, total: listener.progress("scoring shown documents", done, total),
            )  # fmt: skip
        stored = self._keep(model, base, comparison)
        written = self._publish(publisher, stored, comparison, work)
        result = self._result(publisher, base, stored, history, n_documents, comparison, written)
        if self.report is not None:
            findings = self._findings(result, live, model, training, history, comparison, warnings)
            write_report(findings, self.report)
            result = replace(result, report=self.report)
        remove_checkpoints(checkpoint)
        if settings.docs is None:
            documents.unlink(missing_ok=True)
        return result

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - started

    def _documents(self, base: RankingModel, work: Path) -> tuple[Path, int]:
        """Return the file to train on, and the documents of the index."""
        if self.settings.docs is not None:
            return self.settings.docs, self.engine.count(self.index)
        path = work / "documents.jsonl"
        progress = self.listener.progress
        n = export_documents(
            self.engine, self.index, base.encoder.view, path,
            lambda done, total: progress("reading documents of the index", done, total),
        )  # fmt: skip
        return path, n

    def _scores(
        self, publisher: Publisher, live: StoredModel | None, model: RankingModel, study: Sequence[RankingModel]
    ) -> ServingScores:
        """Return what ranks as the live model, the new one and those of the study would be served."""
        models = [
            ServedModel(None) if live is None else self._served(publisher, live.model),
            *(self._served(publisher, one) for one in (model, *study)),
        ]
        return ServingScores(self.engine, self.index, models, self.settings.body)

    def _served(self, publisher: Publisher, model: RankingModel) -> ServedModel:
        body = self.settings.body
        template = body_hash(body if body is not None else default_template(model.encoder.view))
        return ServedModel(model, publisher.calibration(model).choose(template, self.settings.window).value)

    def _keep(self, model: RankingModel, base: StoredModel, comparison: Comparison) -> StoredModel:
        """Save the model: by its id where it may go live, else over the last one that was refused.

        Its base is kept beside it, so that the next retraining finds where to start.
        """
        models = self.settings.models
        if comparison.verdict.promoted and base.path.resolve().parent != models.resolve():
            save_model(base.model, folder_of(models, base.model.model_id))
        if not comparison.verdict.promoted:
            keep_registered(models, read_control(self.engine, self.index), self.engine)
        path = folder_of(models, model.model_id) if comparison.verdict.promoted else models / REFUSED
        save_model(model, path)
        return StoredModel(load_model(path, self.engine), path)

    def _publish(self, publisher: Publisher, stored: StoredModel, comparison: Comparison, work: Path) -> int:
        if not comparison.verdict.promoted or self.settings.dry_run:
            return 0
        with self._timed("publish"):
            progress = self.listener.progress
            return publisher.publish(
                stored, work / "rejects.jsonl",
                lambda done, total: progress("writing vectors", done, total), self.listener.say,
            )  # fmt: skip

    def _result(
        self, publisher: Publisher, base: StoredModel, stored: StoredModel, history: History, n_documents: int,
        comparison: Comparison, written: int,
    ) -> RetrainResult:  # fmt: skip
        verdict, before = comparison.verdict, publisher.before.live
        promoted = verdict.promoted and not self.settings.dry_run
        data = Data(
            history.learned, verdict.n_impressions, history.undated, history.cutoff, history.first, history.last,
            history.people, len(history.pairs), self.beside_clicks.preferences, n_documents, history.counts,
        )  # fmt: skip
        return RetrainResult(
            outcome="promoted" if promoted else "would promote" if verdict.promoted else "refused",
            reason=_reason_of(verdict),
            index=self.index,
            live_before=before,
            live_after=stored.model.model_id if promoted else before,
            base=base.model.model_id,
            candidate=stored.model.model_id,
            encoder=stored.model.encoder_id,
            model_path=stored.path,
            data=data,
            verdict=verdict.to_json(),
            documents_written=written,
            seconds=dict(self.seconds),
        )

    def _findings(
        self, result: RetrainResult, live: StoredModel | None, model: RankingModel, training: TrainingReport,
        history: History, comparison: Comparison, warnings: Sequence[str],
    ) -> Findings:  # fmt: skip
        before = live.model if live is not None and live.model.encoder.form == LINEAR else None
        strongest, changed = strongest_pairs(model, before, [pair.query for pair in history.pairs])
        listed = [one.query for one in (*comparison.verdict.losers, *comparison.verdict.winners)]
        lists = {query: comparison.lists[query] for query in listed if query in comparison.lists}
        return Findings(
            result, self.engine.spec, utc_now(), training, history, comparison,
            examples_of(self.engine, self.index, model.encoder.view, lists), strongest, changed, warnings,
            self.settings.shown(),
        )  # fmt: skip


def _reason_of(verdict: Verdict) -> str:
    """Return the gain for a model that passed, and every check that failed for one that did not."""
    checks = [one for one in verdict.checks if (one.name == "better" if verdict.promoted else not one.passed)]
    return " ".join(f"{check.sentence[:1].upper()}{check.sentence[1:]}." for check in checks)
