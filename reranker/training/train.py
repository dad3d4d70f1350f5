"""Training, the whole of `ssi train` without its command line: documents and preferences to a model and a report.

The stages run in this order; each is a function from the results before it to one frozen result:

    read            `reading`          the words of all documents, cut once
    divide          `run`              training side and validation side
    tune            `lexical_choice`   settings of the lexical score, reading of the words
    prepare         `learning`         rows of documents and queries, weights of words
    race and train  `learning`         U and V
    remember        `remembering`      memory of the training queries
    judge           `judging`          comparison with lexical baselines
    refit           `refit` below      the same on all the evidence
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reranker.baselines.comparison import SystemComparison
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.memory import QueryMemory
from reranker.models.model_classes import DEFAULT_CLASS
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.training.config import TrainConfig, kept_settings
from reranker.training.context import TrainedParameters
from reranker.training.judging import compared
from reranker.training.learning import LearnedPart, PreparedRows, learned_part, prepared_rows, refitted
from reranker.training.lexical_choice import (
    LexicalChoice,
    has_few_queries,
    read_by,
    tuned_lexical,
    tuned_on_all,
    with_factor,
)
from reranker.training.race import Trial
from reranker.training.reading import Corpus, Listener, read_tokens
from reranker.training.remembering import (
    MemoryChoice,
    MemoryStage,
    memory_of,
    remembered_queries,
    tuned_remembering_all,
)
from reranker.training.run import Division, TrainingRun, checked_run, divided
from reranker.training.trainer import TrainResult
from reranker.training.training_set import Split, TrainingSet


@dataclass(frozen=True)
class TrainingReport:
    """How a model came about."""

    split: str
    """What validation was made of: ``documents`` (unseen ones), ``links``, ``queries`` or ``given``."""
    lexical_map: float
    """Validation MAP by the lexical score only."""
    valid_map: float
    """Validation MAP by the model."""
    scale: float
    """Weight of the learned part that validation chose; 0: nothing was learned."""
    comparison: SystemComparison | None
    """The model compared with tuned lexical baselines; None: not asked for."""
    result: TrainResult
    """The learning curve."""
    dropped: dict[str, int]
    """Preferences that could not be used, by reason."""
    evidence: Split
    """What was learned from, and what was held out."""
    model_class: str = DEFAULT_CLASS
    judged_apart: bool = True
    """True if the comparison is on validation queries that chose nothing; False: there were too few, and all did."""
    trials: tuple[Trial, ...] = ()
    """Settings that were tried."""
    notes: tuple[str, ...] = ()
    """What the user should know of the lexical score."""
    memory: MemoryChoice = field(default_factory=lambda: MemoryChoice(False, ""))
    """Whether documents remember queries."""


@dataclass(frozen=True, eq=False)
class _Finished:
    """The parts of the model that is written."""

    lexical: LexicalSettings | None
    memory: QueryMemory | None
    parameters: TrainedParameters


def train_model(
    corpus: Corpus,
    evidence: TrainingSet,
    config: TrainConfig | None = None,
    *,
    valid: TrainingSet | None = None,
    base: RankingModel | None = None,
    checkpoint: Path | None = None,
    compare: bool = True,
    listener: Listener | None = None,
) -> tuple[RankingModel, TrainingReport]:
    """Return the model learned from documents and evidence, and the report of how it came about.

    The evidence is split for validation (see `split_training_set`). The lexical score is tuned on the training side. A
    race of trial runs finds the settings of training, and the class asked for (U and V, by default) is trained until
    validation stops improving. Validation also chooses the weight of the learned part, and whether documents remember
    the training queries. The result is compared with tuned lexical baselines. Unless validation evidence was given, the
    class is then trained again on all the evidence, for the number of epochs that was best.

    Parameters
    ----------
    corpus : Corpus
        The documents and how they are read.
    evidence : TrainingSet
        Links, judgments or preference pairs.
    config : TrainConfig, optional
        Settings; None: the defaults.
    valid : TrainingSet, optional
        Evidence to stop by, which is never trained on.
    base : RankingModel, optional
        A linear model to start from: its vocabulary, view, weights, U and V. ``dim``, ``model_class``, ``tied`` and
        ``max_rows`` are then the model's. With ``config.query_side_only`` the result has its encoder, unchanged.
    checkpoint : path, optional
        Folder for the state of the run. A run of the same settings and data continues from it.
    compare : bool
        Whether to compare with the baselines, which ranks all validation queries a few times.
    listener : Listener, optional
        Callbacks for messages, progress and lines that are no documents.

    Raises
    ------
    TrainingError
        If there is nothing to learn from, or the run diverges.
    ConfigError
        If the base does not fit the settings.
    ArtifactError
        If the checkpoint is damaged.
    """
    run = checked_run(corpus, evidence, config or TrainConfig(), valid, base, checkpoint, listener or Listener())
    tokens = read_tokens(run.corpus, run.analyzer, run.listener, check_fields=run.base is None)
    reading = read_by(run, tokens)
    division = divided(run, reading.data)
    lexical = tuned_lexical(run, tokens, reading, division)
    del tokens, reading  # the later stages need the memory
    rows = prepared_rows(run, lexical, division)
    learned = learned_part(run, lexical.reading, division, rows)
    remembered = remembered_queries(run, lexical, division, rows, learned)
    comparison = None
    if compare:
        tried = _Finished(remembered.settings, remembered.memory, learned.parameters)
        model = _assembled(run, lexical, rows, learned, remembered, tried, {})
        comparison = compared(run, lexical, division, learned, remembered, model)
    report = _report(division, lexical, rows, learned, remembered, comparison)
    final = refit(run, lexical, division, rows, learned, remembered)
    return _assembled(run, lexical, rows, learned, remembered, final, _metrics(report)), report


def refit(
    run: TrainingRun,
    lexical: LexicalChoice,
    division: Division,
    rows: PreparedRows,
    learned: LearnedPart,
    remembered: MemoryStage,
) -> _Finished:
    """Return the parts of the model, each fitted again to all the evidence where that changes it."""
    parameters, memory, settings = learned.parameters, remembered.memory, remembered.settings
    if run.valid is None and parameters.has_learned:
        parameters = refitted(run, lexical.reading, division, rows, learned)
    if run.valid is None and remembered.choice.is_on and not run.config.query_side_only:
        memory = memory_of(run, lexical.reading, run.evidence)
    if settings is not None and has_few_queries(run, lexical, division):
        run.listener.say("tuning the lexical score on all the queries")
        if memory is not None:
            settings = with_factor(tuned_remembering_all(run, lexical, division), remembered.factor)
        else:
            settings = tuned_on_all(run, lexical.reading, division)
    return _Finished(settings, memory, parameters)


def _report(
    division: Division,
    lexical: LexicalChoice,
    rows: PreparedRows,
    learned: LearnedPart,
    remembered: MemoryStage,
    comparison: SystemComparison | None,
) -> TrainingReport:
    parameters = learned.parameters
    return TrainingReport(
        split=division.split.kind,
        lexical_map=remembered.lexical_map,
        valid_map=remembered.valid_map,
        scale=parameters.scale / (remembered.factor or 1.0),
        comparison=comparison,
        result=parameters.result,
        dropped=learned.dropped,
        evidence=division.split,
        model_class=parameters.name,
        judged_apart=division.judged_apart,
        trials=learned.trials,
        notes=(*lexical.notes, *rows.notes, *remembered.notes),
        memory=remembered.choice,
    )


def _metrics(report: TrainingReport) -> dict[str, Any]:
    """Return what the manifest keeps of a report; no times, so that equal runs give equal bytes."""
    return {
        "validation": {
            "split": report.split,
            "map": report.valid_map,
            "lexical_map": report.lexical_map,
            "scale": report.scale,
            "best_epoch": report.result.best_epoch,
            "curve": [{k: v for k, v in asdict(line).items() if k != "seconds"} for line in report.result.history],
        },
        "memory": report.memory._asdict(),
        "comparison": report.comparison.to_json() if report.comparison else None,
    }


def _assembled(
    run: TrainingRun,
    lexical: LexicalChoice,
    rows: PreparedRows,
    learned: LearnedPart,
    remembered: MemoryStage,
    parts: _Finished,
    metrics: dict[str, Any],
) -> RankingModel:
    """Return the model of some parts; with the query side only, the encoder of the model to start from stays."""
    data, parameters = lexical.reading.data, parts.parameters
    vocabulary = data.tfidf.vocabulary
    if run.base is not None and run.config.query_side_only:
        encoder = run.base.encoder
    else:
        encoder = Encoder(
            run.corpus.view.with_weights(run.learned_weights),
            lexical.reading.analyzer,
            vocabulary,
            run.corpus.tf,
            parameters.V,
            run.corpus.quantisation,
            parameters.documents.name,
            parameters.Y,
            parts.lexical,
            parts.memory,
        )
    training = {
        "config": kept_settings(run.config),
        "schedule": kept_settings(learned.schedule),
        "preferences": run.evidence.n_preferences,
        "documents": len(data.ids),
        "base": run.base.model_id if run.base else None,
        "class": parameters.name,
        **({} if learned.choice is None else {"choice": learned.choice}),
        **({} if remembered.factor is None else {"memory_factor": remembered.factor}),
    }
    return RankingModel(
        encoder,
        vocabulary,
        parameters.U,
        parameters.identity,
        training=training,
        metrics=metrics,
        U_short=parameters.short.U if parameters.short else None,
        word_weights=rows.word_weights,
    )
