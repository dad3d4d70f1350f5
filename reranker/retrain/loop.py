"""`ssi retrain`: click log → preferences → new model → gate → index → live, or refused with the reason.

Nothing that users see changes before the last write, which makes the new version live. If the process is killed at any
point, the live version stays live. Started again with the same log, it resumes from its checkpoint and gets the same
model.

A file lock prevents two processes on one machine from running at the same time; the operating system releases it if a
process is killed. For processes on two machines, the promotion is a conditional write to the control record, which is
refused if the live version is no longer the one that the gate compared with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from indexer.encoding import VersionEncoder, present_routes
from indexer.preflight import preflight
from indexer.renewal import RenewOptions, Target, sync
from indexer.versions import promote, register, stale_documents, with_version
from reranker.clicks.log import ClickLog
from reranker.clicks.schema import DAY_MS
from reranker.engines.protocol import Engine, refresh_if_allowed
from reranker.errors import ArtifactError, ConfigError, GateRefused
from reranker.files import write_file
from reranker.models.manifest import describe_model
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.progress import timed
from reranker.releases import (
    RETRAIN_FOLDER,
    ControlRecord,
    carried_over,
    default_store,
    read_control,
    update_control,
    utc_now,
)
from reranker.rerank import default_template
from reranker.rerank.calibration.kept import Calibration
from reranker.retrain.documents import export_documents
from reranker.retrain.gate import GateVerdict
from reranker.retrain.history import REMEMBERED_BY, History, check_log, read_history
from reranker.retrain.learner import MARK, Learner, LinksAndJudgements
from reranker.retrain.repeated import judged_periods, repeated_queries, with_preferences
from reranker.retrain.report import examples_of, render_retraining
from reranker.retrain.result import RetrainResult
from reranker.retrain.served_ranks import (
    EarlierClicks,
    EncodedPool,
    NewestClicks,
    ServedComparison,
    ServedModel,
    ServingScores,
    compare,
)
from reranker.retrain.settings import RetrainSettings
from reranker.training import Listener, TrainingReport
from reranker.training.trainer import remove_checkpoints
from reranker.words import strongest_pairs

NAME_DIGITS = 12
REFUSED = "refused"
"""Name of the folder for the last model that the gate refused."""


class StoredModel(NamedTuple):
    """A model with its folder."""

    model: RankingModel
    path: Path


def folder_of(models: Path, model_id: str) -> Path:
    """Return the folder of the model with this id."""
    return models / model_id[:NAME_DIGITS]


def find_model(models: Path, model_id: str, engine: Engine, others: tuple[Path, ...] = ()) -> StoredModel:
    """Return the model with an id, from its own folder, from one of ``others``, or from any folder under ``models``.

    Raises `ArtifactError` if no folder contains it.
    """
    under = sorted(path for path in models.iterdir() if path.is_dir()) if models.is_dir() else []
    for path in dict.fromkeys((folder_of(models, model_id), *others, *under)):
        if _manifest_of(path).get("model_id") == model_id:
            return StoredModel(load_model(path, engine), path)
    raise ArtifactError(
        f"model {model_id[:NAME_DIGITS]} is not in any folder under {str(models)!r}: copy its folder there (with any "
        "name), or give the folder of the models with --models",
        model=model_id,
    )


def keep_registered(models: Path, record: ControlRecord, engine: Engine) -> None:
    """Copy the last refused model to a folder named by its id if it was promoted by hand."""
    refused = _manifest_of(models / REFUSED).get("model_id")
    if any(release.model_id == refused for release in record.releases):
        save_model(load_model(models / REFUSED, engine), folder_of(models, str(refused)))


def _manifest_of(path: Path) -> dict[str, Any]:
    """Return the manifest of a model folder; empty if the folder contains no complete model."""
    try:
        return describe_model(path)
    except ArtifactError:
        return {}


def models_that_remember(models: Path) -> list[str]:
    """Return the sorted ids of the models under a folder that contain queries from click logs.

    These are models with a `QueryMemory`, with hashes of their training queries, or with `RepeatedQueries`.
    """
    manifests = map(_manifest_of, models.iterdir() if models.is_dir() else ())
    contents = ("n_memory_documents", "training_queries", "repeated_queries")
    holding = [manifest for manifest in manifests if any(name in manifest for name in contents)]
    return sorted({manifest["model_id"] for manifest in holding if MARK in manifest["training"]})


def may_remember_the_forgotten(model: RankingModel, log: ClickLog) -> bool:
    """Return whether a model may remember queries of people who were forgotten after it was trained on clicks.

    It does not if they were forgotten before its newest slice began, and so before it was trained.
    """
    made = model.training.get(MARK)
    parts = (model.encoder.memory, model.training_queries, model.repeated)
    if made is None or all(part is None for part in parts):
        return False
    return max(log.manifest.forgotten.values(), default=-1) >= int(made["cutoff"])


def base_model(models: Path, live: StoredModel | None, engine: Engine, base: Path | None) -> StoredModel:
    """Return the model to start from: the given one, else the one from which the live model was trained.

    A live model that is not the result of a retraining is itself the base. So a model that has learned from clicks is
    never the base.

    Raises `ConfigError` if no base is given and no model is live, `ArtifactError` if the model's folder is missing.
    """
    if base is not None:
        return StoredModel(load_model(base, engine), base)
    if live is None:
        raise ConfigError(
            "no version is live, so there is no model to start from: give one trained on links or judgments with "
            "--warm-start"
        )
    made = live.model.training.get(MARK)
    if made is None:
        return live
    return find_model(models, str(made["base"]), engine)


def work_folder(models: Path, engine_spec: str, index: str) -> Path:
    """Return the folder for the lock, documents and checkpoint of an index: ``<models>/.retrain/<key>``."""
    return models.resolve() / RETRAIN_FOLDER / default_store(models / RETRAIN_FOLDER, engine_spec, index).name


@contextlib.contextmanager
def only_one(folder: Path, index: str) -> Iterator[None]:
    """Hold the lock of a work folder, which is created if missing. Raises `GateRefused` if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(folder / "lock").acquire(timeout=0)
    except Timeout as error:
        raise GateRefused(
            f"another `ssi retrain` of index {index!r} is running with these models (lock {str(folder / 'lock')!r}): "
            "wait until it has finished",
            index=index,
        ) from error
    with held:
        yield


def still_live(expected: str | None) -> Callable[[ControlRecord], None]:
    """Return a check for `indexer.versions.promote` that the live version is still ``expected`` (None: no version)."""

    def check(record: ControlRecord) -> None:
        if record.live != expected:
            raise GateRefused(
                f"the live version of {record.index!r} is now {_name(record.live)}, but the new model was compared "
                f"with {_name(expected)}: nothing was promoted; run `ssi retrain` again",
                index=record.index,
                live=record.live,
            )

    return check


def _name(model_id: str | None) -> str:
    return model_id[:NAME_DIGITS] if model_id else "none"


@dataclass
class Retraining:
    """One retraining of one index (or alias).

    It writes only to this index and its control record.
    """

    engine: Engine
    index: str
    log: ClickLog
    settings: RetrainSettings
    other_evidence: LinksAndJudgements = field(default_factory=LinksAndJudgements)
    """Links and judgments, used in addition to the clicks."""
    listener: Listener = field(default_factory=Listener)
    report: Path | None = None
    """File for the HTML report; None: not written."""
    before: ControlRecord = field(init=False)
    """The control record as read at the start."""
    seconds: dict[str, float] = field(init=False, default_factory=dict)
    """Duration of each step in seconds."""

    def run(self) -> RetrainResult:
        """Retrain and return the result.

        Raises
        ------
        NothingToLearn
            If the log or the index contains too little.
        GateRefused
            If another retraining of the index is running, the log is unsound, the index cannot take new vectors,
            another version went live in the meantime, or a document has no vector. The live version stays.
        ArtifactError
            If the live model or the base is not in its folder.
        EngineError
            If a request to the engine fails. Run again: vectors that are written already are skipped.
        """
        self.settings.models.mkdir(parents=True, exist_ok=True)
        work = work_folder(self.settings.models, self.engine.spec, self.index)
        with only_one(work, self.index):
            return self._run(work)

    def _run(self, work: Path) -> RetrainResult:
        settings, listener = self.settings, self.listener
        before = self.before = read_control(self.engine, self.index)
        others = (settings.base,) if settings.base else ()
        live = find_model(settings.models, before.live, self.engine, others) if before.live else None
        base = base_model(settings.models, live, self.engine, settings.base)
        if settings.query_side_only and may_remember_the_forgotten(base.model, self.log):
            listener.say("the document side is trained too, because the base may remember queries of forgotten people")
            settings = self.settings = replace(settings, query_side_only=False)
        if not settings.dry_run:
            self.engine.refresh(self.index)  # fail now if the role may not write, not after hours of training
        if not (settings.query_side_only and self._is_complete(base.model)):
            version = VersionEncoder.of_model(base.model, self._routes(base.model), None, self.engine.capabilities())
            preflight(self.engine, self.index, version).check()
        with timed(self.seconds, "read the log"):
            warnings = check_log(self.log, self.engine, self.index, settings.pairs)
            history = read_history(self.log, settings, listener.say)
        with timed(self.seconds, "read the documents"):
            documents, n_documents = self._documents(base.model, work)
        checkpoint = work / "training"
        with timed(self.seconds, "train"):
            learner = Learner(base.model, documents, self.other_evidence, settings, listener)
            model, training = learner.model(history, checkpoint)
        with timed(self.seconds, "compare"):
            candidates, pools, earlier = self._candidates(model, live, base, learner, history)
            models = [self._served(None if live is None else live.model), *map(self._served, candidates)]
            progress = partial(self.listener.progress, "scoring shown documents")
            scores = ServingScores(self.engine, self.index, models, settings.body, progress, pools)
            comparison = compare(
                scores,
                NewestClicks(
                    history.newest, history.propensities, (history.last - history.cutoff + 1) / DAY_MS, earlier
                ),
                self.other_evidence.judged,
                settings.gate,
                window=settings.window,
                seed=settings.train.seed,
                refreshes=live is not None and live.model.repeated is not None,
            )
        model = candidates[comparison.chosen]
        stored = self._keep(model, base, comparison)
        promoted, written = comparison.verdict.promoted and not settings.dry_run, 0
        if promoted:
            with timed(self.seconds, "publish"):
                written = self._publish(stored, work / "rejects.jsonl")
        result = RetrainResult(
            outcome="promoted" if promoted else "would promote" if comparison.verdict.promoted else "refused",
            reason=_reason_of(comparison.verdict),
            index=self.index,
            live_before=before.live,
            live_after=stored.model.model_id if promoted else before.live,
            base=base.model.model_id,
            candidate=stored.model.model_id,
            encoder=stored.model.encoder_id,
            model_path=stored.path,
            data={
                "learned": history.learned,
                "judged": comparison.verdict.n_impressions,
                "undated": history.undated,
                "cutoff": history.cutoff,
                "first": history.first,
                "last": history.last,
                "people": len({one.user or one.session or one.query_id for one in history.newest}),
                "pairs": len(history.pairs),
                "other": self.other_evidence.preferences,
                "documents": n_documents,
                "dropped": history.counts,
            },
            verdict=comparison.verdict.to_json(),
            documents_written=written,
            seconds=dict(self.seconds),
        )
        if result.live_after == before.live and live is not None and may_remember_the_forgotten(live.model, self.log):
            said = "The live model stays. It may remember queries of people who were forgotten after it was trained."
            result = replace(result, reason=f"{result.reason} {said}")
        if self.report is not None:
            page = self._page(result, live, model, training, history, comparison, warnings)
            write_file(self.report, page.encode("utf-8"))
            result = replace(result, report=self.report)
        remove_checkpoints(checkpoint)
        documents.unlink(missing_ok=True)
        return result

    def _candidates(
        self,
        model: RankingModel,
        live: StoredModel | None,
        base: StoredModel,
        learner: Learner,
        history: History,
    ) -> tuple[list[RankingModel], dict[str, EncodedPool], EarlierClicks | None]:
        """Return the trained model, and the live one, each with the preferences of users for repeated queries.

        The second is left out if it has none, or may remember queries of forgotten people. With them come the documents
        that were encoded, and the lists of earlier periods, ranked by preferences that were learned before each. These
        are left out if the live model has preferences already, which may be made of the same clicks.
        """
        if self.settings.words_only:
            return [model], {}, None
        models, rated = [model], history.repeated
        stays = base.model if live is None else live.model
        if not may_remember_the_forgotten(stays, self.log):
            models.append(learner.marked(replace(stays, repeated=None), history))
        served = [self._served(None if live is None else live.model), *map(self._served, models)]
        progress = partial(self.listener.progress, "scoring repeated queries")
        scores = ServingScores(self.engine, self.index, served, self.settings.body, progress)
        lists = scores.rank_shown({query: [rating.document for rating in of] for query, of in rated.items()})
        found = [
            repeated_queries(rated, lists, number, one, REMEMBERED_BY) for number, one in enumerate(served) if number
        ]
        self.listener.say(found[-1].sentence)
        remembering = [with_preferences(one, of.queries, rated) for one, of in zip(models, found, strict=True)]
        candidates = [remembering[0], *(one for one in remembering[1:] if one.repeated is not None)]
        earlier = None
        if len(candidates) > 1 and live is not None and live.model.repeated is None and history.periods:
            earlier = judged_periods(history.periods, lists, len(served) - 1, served[-1], REMEMBERED_BY)
        return candidates, scores.pools, earlier

    def _documents(self, base: RankingModel, work: Path) -> tuple[Path, int]:
        """Return the file of training documents, and the number of documents of the index."""
        path = work / "documents.jsonl"
        progress = partial(self.listener.progress, "reading documents of the index")
        return path, export_documents(self.engine, self.index, base.encoder.view, path, progress, self.listener.say)

    def _is_complete(self, model: RankingModel) -> bool:
        """Return whether every document has a vector of a model's encoder that was computed from its current text."""
        refresh_if_allowed(self.engine, self.index)
        if with_version(self.engine, self.index, model.encoder_id) < self.engine.count(self.index):
            return False
        views = {model.encoder_id: model.encoder.view}
        return not any(stale_documents(self.engine, self.index, views).values())

    def _routes(self, model: RankingModel) -> tuple[str, ...]:
        """Return the requested routes and those that the index has for the live version."""
        live = self.before.live_release
        encoder_id = model.encoder_id if live is None else live.encoder_id
        present: list[str] = []
        for name in self.engine.index_names(self.index):
            present += present_routes(self.engine.index_info(name).properties, encoder_id)
        return tuple(dict.fromkeys((*self.settings.routes, *present)))

    def _served(self, model: RankingModel | None) -> ServedModel:
        """Return the model as served, with its own calibration, else the live one's; None: the engine's order."""
        if model is None:
            return ServedModel(None)
        body, live = self.settings.body, self.before.live_release
        calibrated = [r for r in self.before.releases if r.model_id == model.model_id and r.calibration]
        release = calibrated[0] if calibrated else live
        calibration = Calibration() if release is None else Calibration.from_release(release.calibration)
        template = body if body is not None else default_template(model.encoder.view)
        alpha = calibration.choose(template, self.settings.window)
        return ServedModel(model, alpha.value, alpha.signals, alpha.by_window)

    def _keep(self, model: RankingModel, base: StoredModel, comparison: ServedComparison) -> StoredModel:
        """Save the model in a folder named by its id if it may go live, else over the last refused one.

        Its base is copied to the same folder, so that the next retraining finds it.
        """
        models = self.settings.models
        if comparison.verdict.promoted and base.path.resolve().parent != models.resolve():
            save_model(base.model, folder_of(models, base.model.model_id))
        if not comparison.verdict.promoted:
            keep_registered(models, read_control(self.engine, self.index), self.engine)
        path = folder_of(models, model.model_id) if comparison.verdict.promoted else models / REFUSED
        save_model(model, path)
        return StoredModel(load_model(path, self.engine), path)

    def _publish(self, stored: StoredModel, rejects: Path) -> int:
        """Promote a model and return how many documents were written."""
        model, check = stored.model, still_live(self.before.live)
        written = 0
        check(read_control(self.engine, self.index))  # also before hours of writing
        # Impacts change with the query side too.
        has_impacts = "impacts" in self._routes(model)
        if self.settings.store is not None or has_impacts or not self._is_complete(model):
            written = self._write_vectors(stored, rejects)
        register(self.engine, self.index, model, promote=False)
        update_control(self.engine, self.index, lambda record: self._calibrated(record, model.model_id))
        promote(self.engine, self.index, model.model_id, renewed=True, check=check)
        return written

    def _write_vectors(self, stored: StoredModel, rejects: Path) -> int:
        store = self.settings.store
        path = default_store(stored.path, self.engine.spec, self.index) if store == "default" else store
        target = Target(
            self.engine, self.index, stored.model, self._routes(stored.model), None if path is None else Path(path)
        )
        options = RenewOptions(max_docs_per_s=self.settings.max_docs_per_s, reject_path=rejects)
        progress = partial(self.listener.progress, "writing vectors")
        report = sync(target, options, progress=progress, notice=self.listener.say, advise=self.listener.say)
        if report.stopped is not None:
            raise report.stopped
        if report.rejected:
            raise GateRefused(
                f"the engine rejected the vectors of {report.rejected:,} documents (see {str(rejects)!r}): the "
                "live version stays; fix these documents and run again",
                rejected=report.rejected,
            )
        rejects.unlink(missing_ok=True)
        return report.written

    def _calibrated(self, record: ControlRecord, model_id: str) -> ControlRecord:
        """Return the record in which a model without a calibration gets the calibration of the live release."""
        release, live = record.release(model_id), self.before.live_release
        if release.calibration or live is None or not live.calibration:
            return record
        return record.with_calibration(model_id, carried_over(live.calibration, f"model {live.model_id[:NAME_DIGITS]}"))

    def _page(
        self,
        result: RetrainResult,
        live: StoredModel | None,
        model: RankingModel,
        training: TrainingReport,
        history: History,
        comparison: ServedComparison,
        warnings: Sequence[str],
    ) -> str:
        before = None if live is None else live.model
        strongest, changed = strongest_pairs(model, before, [pair.query for pair in history.pairs])
        listed = [change.query for change in (*comparison.verdict.losers, *comparison.verdict.winners)]
        lists = {query: comparison.lists[query] for query in listed if query in comparison.lists}
        return render_retraining(
            result,
            training,
            history,
            comparison,
            examples_of(self.engine, self.index, model.encoder.view, lists),
            engine=self.engine.spec,
            finished=utc_now(),
            strongest=strongest,
            changed=changed,
            warnings=warnings,
            settings=self.settings.shown(),
        )


def _reason_of(verdict: GateVerdict) -> str:
    """Return the gain if the model passed, else all failed checks."""
    checks = [check for check in verdict.checks if (check.name == "better" if verdict.promoted else not check.passed)]
    return " ".join(f"{check.sentence[:1].upper()}{check.sentence[1:]}." for check in checks)
