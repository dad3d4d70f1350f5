"""Training, the whole of `ssi train` without its command line: documents and preferences to a model and a report.

The stages run in this order; each is a function from the results before it to one frozen result:

    read            `reading`          the words and given vectors of all documents, read once
    divide          `run`              training side and validation side
    tune            `lexical_choice`   settings of the lexical score, reading of the words
    prepare         `learning`         rows of documents and queries, weights of words
    train           `learning`         U and V
    encode words    `word_encoder`     word vectors for the vectors that documents have already
    remember        `remembering`      lexical score with a memory of the training queries
    choose          `form_choice`      which of these parts are written, and how good they are
    refit           `refit` below      the same on all the evidence
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from reranker.accounts import InputAccount, LeftOut
from reranker.arrays import Float32
from reranker.cores import meanwhile
from reranker.errors import InputError
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.memory import QueryMemory
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.models.training_queries import KEY_DIGITS, TrainingQueries
from reranker.models.vector_field import VectorField, WordEncoder
from reranker.progress import RunProgress
from reranker.training.concurrent_runs import one_core_a_product
from reranker.training.config import VECTOR_DIMS, TrainConfig, kept_settings
from reranker.training.context import TrainedParameters
from reranker.training.form_choice import FormChoice, ScoreForm, VectorWeights, chosen_form
from reranker.training.given_vectors import GivenVectors, field_of
from reranker.training.learning import (
    LearnedPart,
    PreparedRows,
    learned_part,
    mean_vector,
    prepared_rows,
    refitted,
)
from reranker.training.lexical_choice import (
    LexicalChoice,
    has_few_queries,
    read_by,
    retuned,
    tuned_lexical,
    with_factor,
)
from reranker.training.linear import words_only
from reranker.training.problem import query_set
from reranker.training.reading import (
    DocumentSource,
    Listener,
    TrainingCorpus,
    read_corpus_once,
    spellings_of,
)
from reranker.training.remembering import MemoryTrial, memory_of, tried_memory, tuned_memory, tuned_remembering_all
from reranker.training.run import Division, RandomStreams, TrainingRun, check_known, checked_run, divided
from reranker.training.trainer import TrainResult
from reranker.training.training_set import Split, TrainingSet
from reranker.training.word_encoder import EncoderProblem, encoder_problem, teacher_vectors
from reranker.training.word_vectors import PriorWords, WantedWords, encoded_words

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_BYTES_A_UNIT = 1 if sys.platform == "darwin" else 1024
"""Unit of the peak memory that the system gives."""


class StageCost(NamedTuple):
    """Time and memory of a stage."""

    stage: str
    seconds: float
    """Wall time."""
    peak_mb: float
    """Peak resident memory of the process until the end of the stage, MiB."""


class StageClock:
    """Times the stages of a run, and reports to its progress that they begin.

    Attributes
    ----------
    costs : list of StageCost
        The stages that have ended, in order.
    """

    def __init__(self, progress: RunProgress | None = None) -> None:
        self.costs: list[StageCost] = []
        self._progress = progress or RunProgress()

    def timed(
        self, stage: str, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        """Return the result of ``work`` with these arguments, and keep its cost under the name of the stage."""
        started = time.monotonic()
        self._progress.begin(stage)
        result = work(*args, **kwargs)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_A_UNIT / 2**20
        self.costs.append(StageCost(stage, time.monotonic() - started, peak_mb))
        return result


def expected_seconds(run: TrainingRun) -> dict[str, float]:
    """Return the stages of a run, and how long each takes relative to the others.

    The numbers are seconds of training on corpora of some ten thousand documents, measured with two cores.
    """
    seconds = {"reading": 0.5, "counting": 0.2, "lexical score": 8.0, "rows": 1.0, "learning": 16.0}
    seconds |= {"query memory": 1.0, "form": 5.0 if run.evidence.texts is not None else 2.0}
    if run.corpus.view.vector:
        seconds["word vectors"] = 5.0
    return seconds | {"refit": 15.0 if run.valid is None else 1.0}


class MemoryChoice(NamedTuple):
    """Whether documents remember queries, or links to them, and the sentence that says why."""

    is_on: bool
    sentence: str

    @classmethod
    def of(cls, is_on: bool, why: str, what: str) -> MemoryChoice:
        """Return a choice whose sentence says why; ``what`` is remembered: queries or links."""
        return cls(is_on, f"{what} remembered: {'on' if is_on else 'off'}, {why}")


@dataclass(frozen=True)
class TrainingReport:
    """How a model came about."""

    split: str
    """Contents of the validation side: ``documents`` (unseen ones), ``links``, ``queries`` or ``given``."""
    scale: float
    """Weight of the learned part that validation chose; 0: nothing was learned."""
    result: TrainResult
    """The learning curve."""
    left_out: tuple[LeftOut, ...]
    """Preferences, or pairs, that were not used, by reason."""
    evidence: Split
    """The training side and the validation side."""
    form: FormChoice
    """Which parts of the score are written, why, and how good they are."""
    n_given: int = 0
    """Number of preferences, or pairs, that were given."""
    judged_apart: bool = True
    """True if the forms were measured on queries that chose no settings; False: there were too few, and all did."""
    notes: tuple[str, ...] = ()
    """Notes about the lexical score."""
    memory: MemoryChoice = field(default_factory=lambda: MemoryChoice(False, ""))
    """Whether documents remember queries."""
    costs: tuple[StageCost, ...] = ()
    """Time and memory of each stage, in order."""

    @property
    def lexical_map(self) -> float:
        """MAP by the best lexical score, with or without a memory, on the queries that chose the form."""
        return self.form.lexical_map

    @property
    def valid_map(self) -> float:
        """MAP by the model on the same queries."""
        return self.form.valid_map

    @property
    def account(self) -> InputAccount:
        """Account of the preferences, or pairs, that were given."""
        n_used = self.n_given - sum(part.count for part in self.left_out)
        return InputAccount(self.evidence.train.unit, n_used, self.left_out)

    @property
    def dropped(self) -> dict[str, int]:
        """Number of preferences, or pairs, that were not used, by reason."""
        return {part.reason: part.count for part in self.left_out}


@dataclass(frozen=True, eq=False)
class TrainingStages:
    """The results of the stages of one run."""

    division: Division
    lexical: LexicalChoice
    rows: PreparedRows
    learned: LearnedPart
    memory: MemoryTrial
    encoder: EncoderProblem | None
    """The given vectors and what gives queries such vectors; None if the view reads none."""
    choice: FormChoice


@dataclass(frozen=True, eq=False)
class GivenPart:
    """The part of a score by the vectors that documents have already."""

    field: VectorField
    vectors: Float32
    """The stored part of each document, (n_documents, K) float32."""
    words: Float32
    """Word vectors of the query side, (n_words, K) float32."""
    weights: VectorWeights


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The parts of the model of the form that is written."""

    lexical: LexicalSettings | None
    short: LexicalSettings | None
    """Settings of the rows for short queries; None: they use the others."""
    short_row_weight: float
    """Weight of these rows in the score of other queries."""
    memory: QueryMemory | None
    factor: float | None
    """Factor of the rows with a memory next to what was learned without one; None: 1."""
    parameters: TrainedParameters
    given: GivenPart | None = None
    """The part of the given vectors."""


@one_core_a_product()
def train_model(
    corpus: DocumentSource,
    evidence: TrainingSet,
    config: TrainConfig | None = None,
    *,
    valid: TrainingSet | None = None,
    base: RankingModel | None = None,
    checkpoint: Path | None = None,
    listener: Listener | None = None,
) -> tuple[RankingModel, TrainingReport]:
    """Return the model learned from documents and evidence, and the report of how it came about.

    The evidence is split for validation (see `split_training_set`). The lexical score is tuned on the training side,
    and U and V are trained until validation stops improving. Validation also chooses the weight of the learned part,
    and held-out queries choose which parts of the score are written. Unless validation evidence was given, the model is
    then trained again on all the evidence, for the number of epochs that was best.

    Parameters
    ----------
    corpus : DocumentSource
        The documents and how they are read.
    evidence : TrainingSet
        Links, judgments or preference pairs.
    config : TrainConfig, optional
        Settings; None: the defaults.
    valid : TrainingSet, optional
        Evidence to stop by, which is never trained on.
    base : RankingModel, optional
        A linear model to start from: its vocabulary, view, weights, U and V. ``dim`` is then the model's.
        With ``config.query_side_only`` the result has its encoder, unchanged.
    checkpoint : path, optional
        Folder for the state of the run. A run of the same settings and data continues from it.
    listener : Listener, optional
        Callbacks for messages, progress and lines that are no documents.

    Raises
    ------
    TrainingError
        If there is nothing to learn from, or the run diverges.
    InputError
        If the share of preferences with unknown ids is above ``max_unknown`` of the corpus.
    ConfigError
        If the base does not fit the settings.
    ArtifactError
        If the checkpoint is damaged.
    """
    run = checked_run(corpus, evidence, config or TrainConfig(), valid, base, checkpoint, listener or Listener())
    run.listener.run.expect(expected_seconds(run))
    clock = StageClock(run.listener.run)
    stages = run_stages(run, clock)
    chosen = _chosen(run, stages, stages.choice.form)
    memory = _memory_choice(stages)
    run.listener.say(memory.sentence)
    report = _report(stages, chosen, memory, evidence.n_given)
    model = clock.timed("refit", written_model, run, stages, stages.choice.form, _metrics(report))
    return model, replace(report, costs=tuple(clock.costs))


def run_stages(run: TrainingRun, clock: StageClock | None = None) -> TrainingStages:
    """Return the results of all stages up to the choice of the form that is written."""
    timed = (clock or StageClock()).timed
    tokens, given = timed(
        "reading", read_corpus_once, run.corpus, run.analyzer, run.listener, check_fields=run.base is None
    )
    check_known(run, tokens.ids)
    data = timed("counting", read_by, run, tokens)
    division = divided(run, data)
    lexical = timed("lexical score", tuned_lexical, run, tokens, data, division)
    spellings = spellings_of(run.corpus, tokens)
    del tokens, data  # the later stages need the memory
    rows = timed("rows", prepared_rows, run, lexical, division)
    with meanwhile(partial(tuned_memory, run, lexical, division)) as tuning:  # it needs neither U nor V
        learned = timed("learning", learned_part, run, lexical.data, division, rows)
        memory = timed("query memory", tried_memory, run, lexical, division, rows, learned, tuning.result)
    encoder = None
    if given is not None:
        base = None if run.base is None else run.base.encoder.vector_field
        best, teacher, texts = lexical.data, run.corpus.encoder, run.evidence.texts
        prior = encoded_words(teacher, WantedWords(best.tfidf.vocabulary, best.analyzer, spellings))
        run.listener.say("learning word vectors")
        encoder = timed("word vectors", learned_words, run.streams, run.listener, best, given, base, prior)
        if teacher is not None and texts is not None:
            asked = {query: texts[query] for query in run.evidence.query_ids if query in texts}
            run.listener.say(f"computing the vectors of {len(asked):,} training queries")
            encoder = replace(encoder, asked=teacher_vectors(teacher, encoder.field, asked))
    choice = timed("form", chosen_form, run, lexical, division, rows, learned, memory, encoder)
    return TrainingStages(division, lexical, rows, learned, memory, encoder, choice)


def learned_words(
    streams: RandomStreams,
    listener: Listener,
    data: TrainingCorpus,
    given: GivenVectors,
    field: VectorField | None,
    prior: PriorWords | None = None,
) -> EncoderProblem:
    """Return the word vectors of a corpus, for the vectors that its documents have already.

    ``field`` is that of a model to start from, which stays; None: mean and axes are those of the corpus. ``prior`` are
    the text encoder's vectors of single words, which are used if held-out documents are found better with them. Raises
    `InputError` if the vectors do not have the field's number of values.
    """
    if field is None:
        field = field_of(given, VECTOR_DIMS, streams.named("axes"), listener.say)
    elif given.vectors.shape[1] != field.n_given:
        raise InputError(
            f"the documents have vectors of {given.vectors.shape[1]} numbers, and the model to start from was trained "
            f"with {field.n_given}: they are of another text encoder. Train a new model without one to start from",
            dims=given.vectors.shape[1],
        )
    problem = encoder_problem(field, given, data, streams.named("word vectors"), prior)
    for note in problem.notes:
        listener.say(note)
    return problem


def written_model(
    run: TrainingRun, stages: TrainingStages, form: ScoreForm, metrics: dict[str, Any] | None = None
) -> RankingModel:
    """Return the model of a form, fitted again to all the evidence, with the hashes of its training queries."""
    model = _assembled(run, stages, refit(run, stages, _chosen(run, stages, form)), metrics or {})
    return replace(model, training_queries=hashed_queries(run, model.encoder_id))


def hashed_queries(run: TrainingRun, encoder_id: str) -> TrainingQueries | None:
    """Return the queries of the evidence, and those of the model that the run started from.

    None if the queries of that model are unknown, or if there are too many. Validation evidence that was given is not
    included, because nothing was fitted to it except a few settings. The key is a part of ``encoder_id``.
    """
    earlier = run.base.training_queries if run.base is not None else None
    if run.base is not None and earlier is None:
        return None
    texts = run.evidence.texts
    asked = [] if texts is None else [texts[query] for query in run.evidence.query_ids]
    return TrainingQueries.of(encoder_id[:KEY_DIGITS], asked, run.evidence.document_queries, earlier)


def refit(run: TrainingRun, stages: TrainingStages, chosen: _Chosen) -> _Chosen:
    """Return the chosen parts, each fitted again to all the evidence where that changes it."""
    lexical, division = stages.lexical, stages.division
    parameters, memory, settings = chosen.parameters, chosen.memory, chosen.lexical
    if run.valid is None and parameters.has_learned:
        parameters = refitted(run, lexical.data, division, stages.rows, stages.learned)
    if run.valid is None and memory is not None and not stages.memory.is_kept:
        memory = memory_of(lexical.data, run.evidence)
    if settings is not None and has_few_queries(run, lexical, division):
        run.listener.say("tuning the lexical score on all the queries")
        if memory is not None and chosen.short is None:
            settings = with_factor(tuned_remembering_all(run, lexical, division), chosen.factor)
        else:
            settings = retuned(run, lexical, division, run.evidence).settings
    given, encoder = chosen.given, stages.encoder
    if run.valid is None and given is not None and encoder is not None:
        queries = query_set(lexical.data, [run.evidence], None)
        given = replace(given, words=encoder.taught(queries, lexical.data, run.evidence))
    return replace(chosen, parameters=parameters, memory=memory, lexical=settings, given=given)


def _chosen(run: TrainingRun, stages: TrainingStages, form: ScoreForm) -> _Chosen:
    """Return the parts of a form, as they were fitted to the training side."""
    lexical, memory = stages.lexical, stages.memory
    parameters = stages.learned.parameters if form.learned else words_only()
    given = _given_part(stages, form)
    if not form.memory or memory.is_kept or memory.tuned is None:
        kept = memory.memory if memory.is_kept else None
        short = None if run.base is None else run.base.encoder.short_lexical
        weight = 0.0 if short is None or run.base is None else run.base.short_row_weight
        return _Chosen(lexical.settings, short, weight, kept, None, parameters, given)
    # The factor is for U and V, which repeat a part of the memory; given vectors are weighed next to the same rows.
    factor = None if form.is_lexical else memory.factor
    settings = memory.tuned.settings if form.is_lexical else memory.settings
    if run.evidence.texts is None:
        weight = memory.page_weight / (factor or 1.0)
        return _Chosen(lexical.settings, settings, weight, memory.memory, factor, parameters, given)
    return _Chosen(settings, None, 0.0, memory.memory, factor, parameters, given)


def _given_part(stages: TrainingStages, form: ScoreForm) -> GivenPart | None:
    """Return the part of the given vectors in a form, with the queries of the training side; None without it."""
    encoder, weights = stages.encoder, stages.choice.weights_of.get(form)
    if encoder is None or weights is None:
        return None
    queries, train = stages.rows.queries, stages.division.split.train
    words = encoder.taught(queries, stages.lexical.data, train)
    return GivenPart(encoder.field, encoder.vectors, words, weights)


def _memory_choice(stages: TrainingStages) -> MemoryChoice:
    memory, choice = stages.memory, stages.choice
    what = "links" if stages.division.split.train.texts is None else "queries"
    if memory.why_not:
        return MemoryChoice.of(memory.is_kept, memory.why_not, what)
    if len({form.memory for form in choice.means}) == 1:
        return MemoryChoice.of(choice.form.memory, "there is no other form", what)
    reached = [
        max(means["AP"] for form, means in choice.means.items() if form.memory is with_memory)
        for with_memory in (True, False)
    ]
    return MemoryChoice.of(
        choice.form.memory,
        f"held-out MAP {reached[0] - reached[1]:+.4f} with them, over {choice.n_queries:,} queries",
        what,
    )


def _report(stages: TrainingStages, chosen: _Chosen, memory: MemoryChoice, n_given: int) -> TrainingReport:
    form, trial, learned = stages.choice, stages.memory, stages.learned
    notes = trial.tuned.notes if form.form.memory and trial.tuned is not None else ()
    return TrainingReport(
        split=stages.division.split.kind,
        scale=chosen.parameters.scale / (chosen.factor if chosen.factor and chosen.short is None else 1.0),
        result=learned.parameters.result,
        left_out=learned.left_out,
        n_given=n_given,
        evidence=stages.division.split,
        judged_apart=stages.division.judged_apart or form.cross_fitted,
        notes=(*stages.lexical.notes, *stages.rows.notes, *notes),
        memory=memory,
        form=form,
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
        "form": report.form.to_json(),
    }


def _assembled(run: TrainingRun, stages: TrainingStages, parts: _Chosen, metrics: dict[str, Any]) -> RankingModel:
    """Return the model of some parts; with the query side only, the encoder of the model to start from stays."""
    data, learned, parameters = stages.lexical.data, stages.learned, parts.parameters
    vocabulary = data.tfidf.vocabulary
    given = parts.given
    factor = np.float32(1.0 if given is None else given.weights.learned)
    mean = None
    if run.base is not None and run.config.query_side_only:
        encoder, mean = run.base.encoder, run.base.mean_vector
    else:
        view = run.corpus.view.with_weights(run.learned_weights)
        encoder = Encoder(
            view if given is not None else replace(view, vector=""),
            data.analyzer,
            vocabulary,
            run.corpus.tf,
            parameters.V,
            run.corpus.quantisation,
            lexical=parts.lexical,
            memory=parts.memory,
            vector_field=None if given is None else given.field,
            short_lexical=parts.short,
        )
    if mean is None:
        mean = mean_vector(stages.rows.documents.learned, encoder.V, None if given is None else given.vectors)
    training = {
        "config": kept_settings(run.config),
        "schedule": kept_settings(learned.schedule),
        "preferences": run.evidence.n_preferences,
        "documents": len(data.ids),
        "base": run.base.model_id if run.base else None,
        **({} if parts.factor is None else {"memory_factor": parts.factor}),
    }
    return RankingModel(
        encoder,
        vocabulary,
        parameters.U * factor,
        training=training,
        metrics=metrics,
        U_short=parameters.short.U * factor if parameters.short else None,
        word_weights=stages.rows.word_weights,
        word_encoder=None if given is None else WordEncoder(given.words, given.weights.given),
        short_row_weight=parts.short_row_weight,
        mean_vector=mean,
    )
