"""`ssi retrain`: click log → preferences → a new model → the gate → the index → live, or refused with the reason.

Nothing that searchers see changes before the last write, which makes the new version live. A process that is killed
anywhere leaves the live version live; started again with the same log it goes on from its checkpoint and comes to the
same model.

The new model beside the live one on the newest slice and on judged queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from reranker.artifacts import RankingModel, load_model, save_model
from reranker.clicks.log import ClickLog
from reranker.clicks.schema import Impression
from reranker.engines.base import Engine
from reranker.evaluation.measures import evaluate_run
from reranker.models.forms import LINEAR
from reranker.releases import read_control, utc_now
from reranker.rerank import body_hash, default_template
from reranker.retrain.gate import GateConfig, JudgedQueries, Verdict, decide, shown_lists
from reranker.retrain.history import History, check_log, read_history
from reranker.retrain.learning import Learner, Teaching, export_documents, remove_checkpoint
from reranker.retrain.publishing import (
    REFUSED,
    Placed,
    Publisher,
    base_model,
    folder_of,
    keep_registered,
    live_model,
    only_one,
    work_folder,
)
from reranker.retrain.report import (
    Data,
    Findings,
    RetrainResult,
    StudyPoint,
    examples_of,
    strongest_pairs,
    write_report,
)
from reranker.retrain.serving_scores import LIVE, NEW, Changes, Progress, RankedList, Ranker, ServingScores, changes_of
from reranker.retrain.settings import RetrainSettings
from reranker.training import Listener, TrainingReport
from reranker.training.linear import check_trainable

MEASURE = "nDCG@10"


@dataclass(frozen=True)
class Compared:
    """What the comparison gives.

    Parameters
    ----------
    verdict : Verdict
    lists : mapping of query to RankedList
        The shown documents of each query of the newest slice, ranked by the live model, the new one and others.
    differences : tuple of float
        Of nDCG, new - live, of every query whose value changed.
    changes : Changes
    study : tuple of StudyPoint
    """

    verdict: Verdict
    lists: Mapping[str, RankedList]
    differences: tuple[float, ...]
    changes: Changes
    study: tuple[StudyPoint, ...] = ()


def compare(
    scores: ServingScores,
    history: History,
    judged: Mapping[str, Mapping[str, float]],
    config: GateConfig,
    *,
    window: int,
    seed: int,
    study: Sequence[int] = (),
    progress: Progress = lambda _done, _total: None,
) -> Compared:
    """Return the verdict on the second ranker of ``scores`` against the first.

    Parameters
    ----------
    scores : ServingScores
        Rankers: live, new, then one for each number of preferences in ``study``.
    history : History
    judged : mapping of query text to mapping of document id to grade
    config : GateConfig
    window : int
        Hits reranked for a judged query.
    seed : int
        Draws the resamples.
    study : sequence of int
    progress : callable
        Receives (queries done, queries).

    Raises
    ------
    EngineError
        If the engine does not answer.
    """
    asked: dict[str, dict[str, None]] = {}
    for one in history.newest:
        asked.setdefault(one.query, {}).update((shown.document, None) for shown in one.shown)
    lists = scores.rank_shown(asked, progress)
    examined = history.propensities
    by_rank = None if examined is None else examined.by_rank
    config = replace(config, measured_weights=examined is not None and examined.method == "randomised")
    on_judgements = _judged(scores.rank_window(judged, window), judged) if judged else None
    # All queries for the picture; the verdict keeps those that changed most.
    whole = replace(config, n_changes=len(asked) + len(judged))

    def verdict_on(ranker: int, judgements: JudgedQueries | None, settings: GateConfig) -> Verdict:
        served = [_scores(history.newest, lists, number) for number in (LIVE, ranker)]
        rng = np.random.default_rng([seed, 2])
        return decide(shown_lists(history.newest, *served), judgements, by_rank, rng, settings)

    verdict = verdict_on(NEW, on_judgements, whole)
    every = (*verdict.losers, *verdict.winners)
    points = []
    for place, preferences in enumerate(study):
        measured = verdict_on(NEW + 1 + place, None, config).measured
        if measured:
            found = measured[0].difference
            points.append(StudyPoint(preferences, found.estimate, found.lower, found.upper))
    verdict = replace(
        verdict,
        losers=verdict.losers[: config.n_changes],
        winners=verdict.winners[: config.n_changes],
        judged_losers=verdict.judged_losers[: config.n_changes],
    )
    return Compared(
        verdict, lists, tuple(one.candidate - one.live for one in every), changes_of(lists), tuple(points)
    )  # fmt: skip


def _scores(newest: Sequence[Impression], lists: Mapping[str, RankedList], ranker: int) -> list[list[float]]:
    """Return a score for each shown document of each impression: its rank, negative; NaN where it is gone."""
    by_query = {
        query: dict(zip(one.documents, (-one.ranks[ranker]).tolist(), strict=True)) for query, one in lists.items()
    }
    return [[float(by_query[one.query].get(shown.document, np.nan)) for shown in one.shown] for one in newest]


def _judged(lists: Mapping[str, RankedList], judged: Mapping[str, Mapping[str, float]]) -> JudgedQueries:
    """Return nDCG@10 of the judged queries by the live and by the new order."""
    depth = int(MEASURE.partition("@")[2])
    names = {query: str(number) for number, query in enumerate(judged)}
    qrels = {names[query]: dict(grades) for query, grades in judged.items()}
    values = []
    for ranker in (LIVE, NEW):
        run = {
            names[query]: [one.documents[place] for place in np.argsort(one.ranks[ranker])[:depth].tolist()]
            for query, one in lists.items()
        }
        found = evaluate_run(qrels, run, [MEASURE])[MEASURE]
        values.append(np.array([found[names[query]] for query in judged]))
    return JudgedQueries(tuple(judged), values[0], values[1])


@dataclass
class Retraining:
    """One retraining of one index.

    Parameters
    ----------
    engine : Engine
    index : str
        Index or alias.
    log : ClickLog
    settings : RetrainSettings
    teaching : Teaching
        Links and judgements beside the clicks.
    listener : Listener
        Who is told.
    report : Path or None
        Where the HTML report goes.
    """

    engine: Engine
    index: str
    log: ClickLog
    settings: RetrainSettings
    teaching: Teaching = field(default_factory=Teaching)
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
            learner = Learner(base.model, documents, self.teaching, settings, listener)
            model, training = learner.model(history, checkpoint)
            study = learner.study(history) if settings.study else []
        with self._timed("compare"):
            scores = self._scores(publisher, live, model, [one for _, one in study])
            compared = compare(
                scores, history, self.teaching.judged, settings.gate, window=settings.window,
                seed=settings.train.seed, study=[n for n, _ in study],
                progress=lambda done, total: listener.progress("scoring shown documents", done, total),
            )  # fmt: skip
        placed = self._keep(model, base, compared)
        written = self._publish(publisher, placed, compared, work)
        result = self._result(publisher, base, placed, history, n_documents, compared, written)
        if self.report is not None:
            self._write_report(result, live, model, training, history, compared, warnings)
            result = replace(result, report=self.report)
        remove_checkpoint(checkpoint)
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
        self, publisher: Publisher, live: Placed | None, model: RankingModel, study: Sequence[RankingModel]
    ) -> ServingScores:
        """Return what ranks as the live model, the new one and those of the study would be served."""
        rankers = [
            Ranker(None) if live is None else self._ranker(publisher, live.model),
            *(self._ranker(publisher, one) for one in (model, *study)),
        ]
        return ServingScores(self.engine, self.index, rankers, self.settings.body)

    def _ranker(self, publisher: Publisher, model: RankingModel) -> Ranker:
        body = self.settings.body
        template = body_hash(body if body is not None else default_template(model.encoder.view))
        return Ranker(model, publisher.calibration(model).choose(template, self.settings.window).value)

    def _keep(self, model: RankingModel, base: Placed, compared: Compared) -> Placed:
        """Save the model: by its id where it may go live, else over the last one that was refused.

        Its base is kept beside it, so that the next retraining finds where to start.
        """
        models = self.settings.models
        if compared.verdict.promoted and base.path.resolve().parent != models.resolve():
            save_model(base.model, folder_of(models, base.model.model_id))
        if not compared.verdict.promoted:
            keep_registered(models, read_control(self.engine, self.index), self.engine)
        path = folder_of(models, model.model_id) if compared.verdict.promoted else models / REFUSED
        save_model(model, path)
        return Placed(load_model(path, self.engine), path)

    def _publish(self, publisher: Publisher, placed: Placed, compared: Compared, work: Path) -> int:
        if not compared.verdict.promoted or self.settings.dry_run:
            return 0
        with self._timed("publish"):
            progress = self.listener.progress
            return publisher.publish(
                placed,
                work / "rejects.jsonl",
                lambda done, total: progress("writing vectors", done, total),
                self.listener.say,
            )

    def _result(
        self,
        publisher: Publisher,
        base: Placed,
        placed: Placed,
        history: History,
        n_documents: int,
        compared: Compared,
        written: int,
    ) -> RetrainResult:
        verdict, before = compared.verdict, publisher.before.live
        promoted = verdict.promoted and not self.settings.dry_run
        data = Data(
            history.learned, verdict.n_impressions, history.undated, history.cutoff, history.first, history.last,
            history.people, len(history.pairs), self.teaching.preferences, n_documents, history.counts,
        )  # fmt: skip
        return RetrainResult(
            outcome="promoted" if promoted else "would promote" if verdict.promoted else "refused",
            reason=_reason_of(verdict),
            index=self.index,
            live_before=before,
            live_after=placed.model.model_id if promoted else before,
            base=base.model.model_id,
            candidate=placed.model.model_id,
            encoder=placed.model.encoder_id,
            model_path=placed.path,
            data=data,
            verdict=verdict.to_json(),
            documents_written=written,
            seconds=dict(self.seconds),
        )

    def _write_report(
        self,
        result: RetrainResult,
        live: Placed | None,
        model: RankingModel,
        training: TrainingReport,
        history: History,
        compared: Compared,
        warnings: Sequence[str],
    ) -> None:
        queries = [pair.query for pair in history.pairs]
        before = live.model if live is not None and live.model.encoder.form == LINEAR else None
        strongest, changed = strongest_pairs(model, before, queries)
        verdict = compared.verdict
        listed = [one.query for one in (*verdict.losers, *verdict.winners)]
        view = model.encoder.view
        findings = Findings(
            result=result,
            engine=self.engine.spec,
            finished=utc_now(),
            verdict=verdict,
            training=training,
            shown=history.shown,
            clicked=history.clicked,
            propensities=() if history.propensities is None else history.propensities.by_rank,
            propensity_method=history.method,
            differences=compared.differences,
            changes=compared.changes,
            examples=examples_of(self.engine, self.index, view, {one: compared.lists[one] for one in listed
                                                                 if one in compared.lists}),
            strongest=strongest,
            changed=changed,
            study=compared.study,
            warnings=warnings,
            settings=self.settings.shown(),
        )  # fmt: skip
        if self.report is not None:
            write_report(findings, self.report)


def _reason_of(verdict: Verdict) -> str:
    """Return the gain for a model that passed, and every check that failed for one that did not."""
    told = [one.sentence for one in verdict.checks if (one.name == "better" if verdict.promoted else not one.passed)]
    return " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in told)
