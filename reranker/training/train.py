"""Documents and preferences to a model, and how it came about: the whole of `ssi train`, without its command line."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from reranker.arrays import Float32, Float64, Int64
from reranker.baselines.comparison import (
    SystemComparison,
    compare_systems,
    experiment_of,
    lexical_task,
    read_corpus,
    remembering,
    tuning_task,
)
from reranker.baselines.fitted import REMEMBERING, fit_baselines
from reranker.errors import ConfigError, InputError, TrainingError
from reranker.evaluation import standard_error
from reranker.formats import RejectLog, RejectSink
from reranker.kernels.packing import Quantisation
from reranker.lexical.bm25 import LexicalRows, LexicalSettings
from reranker.lexical.corpus import LexicalCorpus, RememberedQueries
from reranker.lexical.memory import QueryMemory
from reranker.lexical.tuning import (
    COVERING,
    MAX_QUERIES,
    FoldedMeasure,
    LexicalMeasure,
    LexicalTask,
    TunedLexical,
    best_lexical,
    tune_lexical,
)
from reranker.models.model_classes import AUTO, DEFAULT_CLASS, MODEL_CLASSES
from reranker.models.ranking_model import DEFAULT_QUANTISATION, Encoder, RankingModel, lexical_counts, lexical_rows_of
from reranker.progress import Say, TitledProgress, no_titled_progress, silent
from reranker.text.analyzers import Analyzer, AnalyzerConfig, make_analyzer
from reranker.text.tfidf import TfIdf, count_rows, learned_rows
from reranker.text.view import TextView
from reranker.training.config import Schedule, TrainConfig, kept_settings, schedule_of
from reranker.training.context import (
    TrainedParameters,
    TrainingContext,
    Validator,
    choose,
    keywords_of,
    validators_of,
    values_by,
)
from reranker.training.linear import config_from, warm_start
from reranker.training.problem import (
    Problem,
    QuerySet,
    TrainingCorpus,
    TwoRows,
    build_problem,
    in_blocks,
    query_set,
    read_training_corpus,
    read_vocabulary,
    two_rows,
    usable_part,
)
from reranker.training.race import TIE, Trial, race, schedule_like, trials_best
from reranker.training.trainer import NegativeMiner, TrainResult, digest, remove_checkpoints, start_parameters
from reranker.training.training_set import Split, TrainingSet, asks_for_unseen, part_to_judge_by, split_training_set
from reranker.training.word_weights import choices_of, word_weights

STEMS = ("English stems", "taken as they stand", "stems")
BIGRAMS = ("read with their bigrams", "read one by one", "bigrams")
"""What is said of words that are read so, of those that are not, and the way to read them."""
BIGRAM_GAIN = 0.03
"""Share by which bigrams must raise MAP: rows and tables become about twice as large, and what is learned noisier."""
KEPT_OF_PAGES = 0.95
"""Share of the MAP of whole pages by a lexical score of their own that one for pages and keywords must have."""
BASELINES = ("tfidf", "bm25")
"""What a model is compared with; one with a memory also with `REMEMBERING`."""
_FACTORS = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0, 32.0)
"""What rows with a memory are multiplied by beside what was learned without one: they need less of it."""


FEW_QUERIES = 100
"""Queries of validation below which what is best on them is mostly chance."""


def _heaviest(values: Float64) -> int:
    """Return the last of the `_FACTORS` whose AP, (n_factors, n_queries), is within a standard error of the best's.

    U and V are learned from the queries that are remembered: they say little beside a memory that it does not.
    """
    behind = values[np.argmax(values.mean(axis=1))] - values
    return max(place for place, lost in enumerate(behind) if lost.mean() <= standard_error(lost))


class MemoryChoice(NamedTuple):
    """Whether documents remember the queries that they are relevant to, and the sentence that says why."""

    is_on: bool
    sentence: str

    @classmethod
    def of(cls, is_on: bool, why: str) -> MemoryChoice:
        """Return a choice whose sentence says why."""
        return cls(is_on, f"queries remembered: {'on' if is_on else 'off'}, {why}")


@dataclass(frozen=True)
class TrainingReport:
    """How a model came about.

    ``split`` says what validation was made of: ``documents`` (unseen ones), ``links``, ``queries`` or ``given``.
    ``lexical_map`` and ``valid_map`` are validation MAP of q.d alone and of the model, ``scale`` the weight of the
    learned part that validation chose, ``comparison`` the model beside tuned lexical baselines on the validation
    queries that chose neither settings nor epoch nor scale (``judged_apart``; where there are too few, on all), and
    ``dropped`` evidence that could not be used, by reason. ``evidence`` is what was learned from and what was held out,
    ``trials`` are the settings that were tried, ``notes`` what the user should know of the lexical score, and
    ``memory`` whether documents remember queries.
    """

    split: str
    lexical_map: float
    valid_map: float
    scale: float
    comparison: SystemComparison | None
    result: TrainResult
    dropped: dict[str, int]
    evidence: Split
    model_class: str = DEFAULT_CLASS
    judged_apart: bool = True
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
    memory: MemoryChoice = field(default_factory=lambda: MemoryChoice(False, ""))


@dataclass(frozen=True)
class Corpus:
    """What is read and how: the documents' file, the view, the analyzer, and the limits of the vocabulary.

    ``id_field`` is that of `read_documents`.

    Without an analyzer words are as they stand (``unicode``), or their English stems, and with their bigrams, where the
    lexical score finds more of what the training queries ask for by them.
    """

    path: Path
    view: TextView = field(default_factory=lambda: TextView.parse(["title", "text"]))
    analyzer: Analyzer | None = None
    tf: str = "log"
    max_words: int | None = None
    min_df: int = 1
    quantisation: Quantisation = DEFAULT_QUANTISATION
    id_field: str | None = None


@dataclass
class Listener:
    """Callbacks of a run: ``say`` (line), ``progress`` (title, done, total), ``rejects`` for bad lines of documents."""

    say: Say = silent
    progress: TitledProgress = no_titled_progress
    rejects: RejectSink | None = None


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
    """Return the model learned from a corpus and evidence, and how it came about.

    The evidence is split for validation (see `split_training_set`), the lexical score is tuned on the training side, a
    race of trial runs finds how to train, the class asked for (U and V, by default) is trained until validation stops
    to improve, the learned part is weighed there, a memory of the training queries (`QueryMemory`) is taken where that
    is better, the result is compared with tuned lexical baselines, and, unless validation evidence was given, the class
    is trained once more on everything for the epochs that were best.

    ``valid`` is to stop by and never trained on. ``base`` is a linear model to start from: its vocabulary, view,
    weights, U and V; ``dim``, ``model_class``, ``tied`` and ``max_rows`` are then the model's, and with
    ``config.query_side_only`` the result has its encoder, unchanged. ``checkpoint`` is a folder for the state of the
    run; a run of the same settings and data goes on from it. To ``compare`` needs the time of ranking all validation
    queries a few times. `TrainingError` is raised if there is nothing to learn from, or the run diverges, `ConfigError`
    if the base does not fit the settings, `ArtifactError` if the checkpoint is damaged.
    """
    run = _Run(corpus, evidence, config or TrainConfig(), valid, base, checkpoint, listener or Listener())
    return run.model(compare)


@dataclass(eq=False)
class _Run:
    """One call of `train_model`: what its steps share."""

    corpus: Corpus
    evidence: TrainingSet
    config: TrainConfig
    valid: TrainingSet | None
    base: RankingModel | None
    checkpoint: Path | None
    listener: Listener

    def __post_init__(self) -> None:
        corpus, evidence, config, valid, base = self.corpus, self.evidence, self.config, self.valid, self.base
        if not evidence.preferences:
            raise TrainingError("there is nothing to learn from: the links, judgements or pairs are empty")
        if valid is not None and (valid.texts is None) != (evidence.texts is None):
            raise TrainingError(
                "training and validation evidence are of two kinds, one with documents as queries and one with texts: "
                "give both as links, or both as judgements or pairs"
            )
        self.analyzer = corpus.analyzer or make_analyzer(AnalyzerConfig())
        if base is not None:
            self.analyzer = base.encoder.analyzer
            self.corpus = replace(corpus, view=base.encoder.view, analyzer=self.analyzer, tf=base.encoder.tf)
            self.config = config_from(base, config)
        elif config.query_side_only:
            raise ConfigError("query_side_only needs a model to start from, whose document side it keeps: give a base")
        # Where the lexical part has weights of its own, those of the rows that V reads are 1.
        view, has_own = self.corpus.view, base is None and self._may_tune
        self.view = view.with_weights((1.0,) * len(view.fields) if has_own else view.weights)
        self.tuned: Mapping[str, TunedLexical] | None = None
        self.bm25: LexicalSettings | None = None
        self.word_weights = None if base is None else base.word_weights
        # With the document side its memory is kept: U is learned beside the rows that it will be served with.
        self.memory = base.encoder.memory if base is not None and config.query_side_only else None
        self.memory_factor: float | None = None
        self.notes: tuple[str, ...] = ()
        seeds = np.random.default_rng(config.seed).spawn(10)
        self.split_rng, self.lexical_rng, self.kernel_rng, self.valid_rng = seeds[:4]
        self.compare_rng, self.refit_rng, self.judge_rng, self.nearest_rng, self.memory_rng = seeds[4:9]
        self.words_rng = seeds[9]
        self.query_ids = evidence.document_queries | (valid.document_queries if valid else set())
        self.data = self._read(self.listener.rejects, self.listener.say)
        self.split = split_training_set(evidence, valid, self.data.ids, config.generalise, self.split_rng)
        choosing, self.judging, self.judged_apart = part_to_judge_by(self.split.valid, self.data.row_of, self.judge_rng)
        self.choosing = replace(self.split, valid=choosing)
        self.schedule = schedule_of(
            self.config,
            queries_are_texts=evidence.texts is not None,
            unseen_documents=self.split.unseen_documents,
            links_beside=bool(evidence.linked),
        )
        if base is None and self.analyzer.config.bigrams and evidence.texts is None and self.schedule.keyword_share:
            raise ConfigError(
                "words drawn from a document at random are no bigrams: with the analyzer option bigrams give --queries "
                "document, or leave the option out"
            )

    def _read(self, rejects: RejectSink | None, say: Say) -> TrainingCorpus:
        corpus, listener = self.corpus, self.listener
        if self.base is not None:
            vocabulary = self.base.encoder.document_vocabulary
        else:
            vocabulary = read_vocabulary(
                corpus.path,
                corpus.view,
                self.analyzer,
                corpus.max_words,
                corpus.min_df,
                rejects,
                partial(listener.progress, "reading words"),
                say,
                corpus.id_field,
            )
        return read_training_corpus(
            corpus.path,
            corpus.view,
            self.analyzer,
            TfIdf(vocabulary, corpus.tf),
            self.query_ids,
            partial(listener.progress, "reading documents"),
            corpus.id_field,
        )

    def model(self, compare: bool) -> tuple[RankingModel, TrainingReport]:
        """Run all steps."""
        lexical = self._lexical_settings()
        rows = lexical_rows_of(lexical, self.data.tfidf.vocabulary, self.memory)
        documents = self._document_rows(rows, self.memory)
        valid_rng = copy.deepcopy(self.valid_rng)
        asked = query_set(self.data, [self.split.train, self.split.valid], self.analyzer, rows)
        if self.base is None:
            self.word_weights = self._weights_of_words(lexical, asked, documents)
        queries = asked.weighed(self.word_weights)
        problem = self._problem(queries, documents, self.split.train, self.split.held_out)
        dropped = usable_part(self.data, queries, self.evidence)[1]
        for reason, count in sorted(dropped.items()):
            self.listener.say(f"{count:,} of {self.evidence.n_preferences:,} preferences not used: {reason}")
        validators = validators_of(self.choosing, self.data, queries, documents, self.schedule, self.valid_rng)
        short = []
        if self.schedule.short_apart:
            keywords = replace(self.schedule, keyword_share=1.0)
            short = validators_of(self.choosing, self.data, queries, documents, keywords, self.valid_rng)
        context = self._context(problem, validators, short, self.kernel_rng, self.checkpoint)
        trials = race(context)
        name = self.config.learned_class
        learned, choice = choose(context) if name == AUTO else (context.learn(name), None)
        if (
            trials
            and choice is None
            and self.config.epochs is None
            and MODEL_CLASSES[name].can_continue
            and (1 - TIE) * trials_best(trials).map > (learned.result.best_map or 0.0)
        ):
            learned = self._shorter(context, name, trials_best(trials))
        self.schedule = context.schedule
        words_alone = float(np.mean([validator.lexical.mean() for validator in validators]))
        valid_map = float(np.mean([learned.values_by([validator]).mean() for validator in validators]))
        memory = self._why_no_memory(lexical)
        if memory is None:
            words = np.concatenate([validator.lexical for validator in validators])
            tuned = cast(LexicalSettings, lexical)  # without settings there is a reason against a memory
            memory, remembering, maps = self._remember(learned, tuned, words, valid_rng)
            if memory.is_on:
                lexical, (words_alone, valid_map) = remembering, maps
        self.listener.say(memory.sentence)
        del context, validators, short, problem, queries, asked  # the comparison and the second run need their memory
        comparison = self._compared(self._assemble(lexical, learned, choice, {})) if compare else None
        report = TrainingReport(
            self.split.kind,
            words_alone,
            valid_map,
            learned.scale / (self.memory_factor or 1.0),
            comparison,
            learned.result,
            dropped,
            self.split,
            learned.name,
            self.judged_apart,
            tuple(trials),
            self.notes,
            memory,
        )
        if self.valid is None and learned.has_learned:
            learned = self._refit(documents, rows, learned)
        if self.valid is None and memory.is_on and not self.config.query_side_only:
            self.memory = self._memory_of(self.evidence)
        if lexical is not None and self._has_few_queries:
            lexical = self._tuned_on_all()
        metrics = {
            "validation": {
                "split": report.split,
                "map": valid_map,
                "lexical_map": words_alone,
                "scale": report.scale,
                "best_epoch": report.result.best_epoch,
                # No times, so that equal runs give equal bytes.
                "curve": [{k: v for k, v in asdict(line).items() if k != "seconds"} for line in report.result.history],
            },
            "memory": memory._asdict(),
            "comparison": comparison.to_json() if comparison else None,
        }
        return self._assemble(lexical, learned, choice, metrics), report

    def _shorter(self, context: TrainingContext, name: str, best: Trial) -> TrainedParameters:
        """Return the class learned as in the best short run: the long one was not better."""
        self.listener.say(f"the long run was not better: {best.epochs} epochs, as in the short one")
        context.schedule = schedule_like(context, best)
        if self.checkpoint is not None:
            remove_checkpoints(self.checkpoint)
        context.done.clear()
        return context.learn(name)

    def _compared(self, model: RankingModel) -> SystemComparison:
        """Return the model beside tuned lexical baselines on the validation queries to judge by.

        Queries of links are whole documents, or keywords where only those were trained on. The baselines are tuned on
        the training side, but for the forms of a lexical part that was tuned on such queries alone.
        """
        self.listener.say("comparing with the lexical baselines")
        side, train, pool, rng = self.judging, self.split.train, self.split.pool, self.compare_rng
        names: tuple[str, ...] = BASELINES
        n_words, asked = None, () if side.texts is not None else side.query_ids
        corpus = read_corpus(self.corpus.path, model, asked, RejectLog(), id_field=self.corpus.id_field)
        if side.texts is not None:
            task, tuning = side.task(pool, [], ()), train.task(pool, [], ())
            if model.encoder.memory is not None:
                learned = train.preferences
                corpus = remembering(model, corpus, learned.links, learned.remembered, train.texts or {}, rng)
                names = (*BASELINES, REMEMBERING)
        else:
            links = train.links()
            task, tuning = side.task(pool, links, set(corpus.sources)), tuning_task(links, corpus.ids, pool)
            n_words = keywords_of(self.schedule) if self.schedule.keyword_share == 1 else None
        experiment = experiment_of(model, corpus, task, side.texts, n_words, self.config.seed)
        tuned_on = lexical_task(model, corpus, tuning, train.texts, n_words, self.config.seed)
        baselines = fit_baselines(names, corpus.lexical, tuned_on, rng, known=self.tuned)
        return compare_systems(experiment.model, baselines, experiment.evaluation, rng)

    def _document_rows(self, rows: LexicalRows | None, memory: QueryMemory | None) -> TwoRows:
        """Return the rows of all documents, those of the lexical part with a memory if there is one."""
        data = self.data
        fields = lexical_counts(memory, data.counts, data.ids)

        def rows_of(block: slice) -> TwoRows:
            counts = [field[block] for field in fields]
            learned = learned_rows(data.tfidf, counts[: len(data.counts)], self.view.weights)
            return two_rows(learned, None if rows is None else rows.documents(counts))

        return in_blocks(len(data.ids), rows_of)

    def _why_no_memory(self, lexical: LexicalSettings | None) -> MemoryChoice | None:
        """Return why no memory is tried; None: it is."""
        if self.config.query_side_only:
            return MemoryChoice.of(self.memory is not None, "as in the model to start from")
        reasons = (
            (self.config.memory == "off", "as asked for"),
            (self.evidence.texts is None, "the queries are documents"),
            (lexical is None, "the score has no lexical row of its own to remember them in"),
            (not self.split.train.preferences.remembered.any(), "nothing that was learned from may be"),
            (self.bm25 is None, "no training query finds a document by its words"),
        )
        return next((MemoryChoice.of(False, why) for holds, why in reasons if holds), None)

    def _remembered(self, evidence: TrainingSet) -> RememberedQueries:
        texts, vocabulary = evidence.texts or {}, self.data.tfidf.vocabulary
        return RememberedQueries.of(
            evidence.links(),
            evidence.preferences.remembered,
            self.data.row_of,
            lambda ids: count_rows(vocabulary, self.analyzer.tokens([texts[query] for query in ids])),
        )

    def _memory_of(self, evidence: TrainingSet) -> QueryMemory:
        rows = self._remembered(evidence).rows(len(self.data.ids))
        return QueryMemory.of(self.data.ids, rows, self.data.counts)

    def _remember(
        self,
        learned: TrainedParameters,
        lexical: LexicalSettings,
        words: Float64,
        valid_rng: np.random.Generator,
    ) -> tuple[MemoryChoice, LexicalSettings, tuple[float, float]]:
        """Take a memory of the training queries where it is better on validation; return whether it is.

        Beside it the settings of the lexical rows with a memory, and MAP on validation of these rows and of the model.

        Tuning asks queries that no document remembers, but of documents that nearly all remember some, as new ones do
        not: validation says whether that helps. It does where it gains more than a standard error of the difference
        from AP of each query by the model without memory. Rows with a memory are heavier beside what was learned by the
        best of `_FACTORS`: U and V stay as they are, and can be gone on from beside rows without memory.

        Of `FEW_QUERIES` the model without memory was chosen by chance: there words alone must gain so much, ``words``
        being AP without memory (`_gains_of_words`), and the model not lose two standard errors. The factor is then
        the `_heaviest`.
        """
        self.listener.say("tuning the lexical score with the training queries remembered")
        train, valid, vocabulary = self.split.train, self.split.valid, self.data.tfidf.vocabulary
        fold_rng, tune_rng = self.memory_rng.spawn(2)
        sample_rng = copy.deepcopy(tune_rng)
        corpus, tuned = self._tuned_remembering(train, fold_rng, tune_rng)
        memory = self._memory_of(train)
        rows = lexical_rows_of(tuned.settings, vocabulary, memory)
        documents = self._document_rows(rows, memory)
        queries = query_set(self.data, [train, valid], self.analyzer, rows).weighed(self.word_weights)
        validators = validators_of(self.choosing, self.data, queries, documents, self.schedule, valid_rng)
        scales = [1 / factor for factor in _FACTORS]
        parts = values_by(validators, learned.U, learned.documents, scales, learned.identity)
        values = np.concatenate(parts, axis=1)
        few = values.shape[1] < FEW_QUERIES
        best = _heaviest(values) if few else int(np.argmax(values.mean(axis=1)))
        value, gains = float(values[best].mean()), values[best] - learned.values
        remembering = np.concatenate([validator.lexical for validator in validators])
        why = f"validation MAP {value:.4f} beside {learned.values.mean():.4f}"
        is_better = bool(gains.mean() > standard_error(gains))
        if few:
            of_words = self._gains_of_words(corpus, lexical, tuned.settings, sample_rng, remembering - words)
            gain, error = float(of_words.mean()), standard_error(of_words)
            is_better = gain > error and float(gains.mean()) >= -2 * standard_error(gains)
            why = f"{why}, of words alone {gain:+.4f} ± {error:.4f} over {len(of_words):,} queries"
        if is_better:
            self.memory, self.memory_factor = memory, _FACTORS[best]
            self.notes += tuned.notes
            if self.tuned is not None:
                self.tuned = {**self.tuned, REMEMBERING: tuned}
        settings = replace(tuned.settings, factor=_FACTORS[best] * tuned.settings.factor)
        choice = MemoryChoice.of(is_better, why)
        return choice, settings, (float(np.mean([validator.lexical.mean() for validator in validators])), value)

    def _gains_of_words(
        self,
        corpus: LexicalCorpus,
        without: LexicalSettings,
        remembering: LexicalSettings,
        rng: np.random.Generator,
        of_validation: Float64,
    ) -> Float64:
        """Return what AP by words alone gains from a memory, (n,), for queries of validation and of training.

        Those of training ask documents that do not remember their fold. They do not count where validation was given
        and asks for documents that training does not know: these remember nothing.
        """
        if self.split.kind != "queries" and asks_for_unseen(self.split.train, self.split.valid):
            return of_validation
        sample = self._tuning_tasks(corpus)[0].sample(rng, 2 * MAX_QUERIES)
        folded = FoldedMeasure(corpus, sample, remembering.form).values(remembering)
        alone = LexicalMeasure(corpus.texts, sample, without.form).values(without)
        return np.concatenate([of_validation, folded - alone])

    def _tuned_remembering(
        self, evidence: TrainingSet, fold_rng: np.random.Generator, rng: np.random.Generator
    ) -> tuple[LexicalCorpus, TunedLexical]:
        """Return the corpus that remembers the queries of the evidence, and BM25 over it tuned on them by folds."""
        corpus = LexicalCorpus(self.data.counts).remembering(self._remembered(evidence), fold_rng)
        tasks = self._tuning_tasks(corpus, evidence)
        return corpus, tune_lexical(corpus, tasks, rng, ("bm25",), stated=self._stated, start=self.bm25)["bm25"]

    @property
    def _has_few_queries(self) -> bool:
        """Whether what is tuned on the training side could be tuned on more: beyond `MAX_QUERIES` it is a sample."""
        is_ours = self.base is None and self.valid is None and not self.split.unseen_documents
        return is_ours and self.bm25 is not None and len(self.split.train.query_ids) < MAX_QUERIES

    def _tuned_on_all(self) -> LexicalSettings:
        """Return the settings of the lexical part, tuned once more on all the queries."""
        self.listener.say("tuning the lexical score on all the queries")
        if self.memory is not None:
            tuned = self._tuned_remembering(self.evidence, *self.memory_rng.spawn(2))[1]
        else:
            tuned = best_lexical(self._tuned(self.evidence)[1])
        return replace(tuned.settings, factor=(self.memory_factor or 1.0) * tuned.settings.factor)

    @property
    def _stated(self) -> list[float | None]:
        """Weights of fields that the user has stated; the view of a model to start from has those of V's rows."""
        of_fields = [spec.weight if self.base is None else None for spec in self.corpus.view.fields]
        return [*of_fields, *[None] * self.analyzer.config.bigrams]

    def _lexical_settings(self) -> LexicalSettings | None:
        """Return the settings of the lexical part, tuned on the training side; None: its rows are those of V.

        A model to start from has decided them, but where they are of rows with a memory: what is learned is learned
        beside rows without.
        """
        if self.base is not None and (self.base.encoder.memory is None or self.config.query_side_only):
            lexical = self.base.encoder.lexical
            self.bm25 = lexical if lexical is not None and lexical.form == "bm25" else None
            return lexical
        if not self._may_tune:
            return None
        self.listener.say("tuning the lexical score")
        tasks, forms = self._tuned(self.split.train)
        if self.corpus.analyzer is None and tasks:
            forms = self._read_better(AnalyzerConfig(stemmer="english"), forms, STEMS)
            if self.split.train.texts is not None:
                bigrams = replace(self.analyzer.config, bigrams=True)
                forms = self._read_better(bigrams, forms, BIGRAMS, own_settings=True, least=BIGRAM_GAIN)
        tuned = best_lexical(forms)
        self.bm25 = forms["bm25"].settings if tasks else None
        if len(tasks) == 1 and not any(self._stated):  # as the baselines would be tuned
            self.tuned = forms
        self.notes += tuned.notes
        for note in tuned.notes:
            self.listener.say(note)
        names = [spec.path for spec in self.corpus.view.fields] + ["bigrams"] * self.analyzer.config.bigrams
        weights = zip(names, tuned.settings.field_weights, strict=True)
        named = ", ".join(f"{name} {weight:.3g}" for name, weight in weights)
        value = "" if tuned.value is None else f": MAP {tuned.value:.4f} on the training queries"
        form = COVERING if tuned.settings.coverage else tuned.settings.form
        self.listener.say(f"the best lexical score found is {form} (weights of fields {named}){value}")
        return tuned.settings

    def _tuned(self, evidence: TrainingSet) -> tuple[list[LexicalTask], dict[str, TunedLexical]]:
        """Return what the lexical score is tuned on, and its forms tuned; nothing of the former: they are not.

        Whole pages keep `KEPT_OF_PAGES` of what a score of their own has on the training links: what they lose to
        keywords is hardly learned back.
        """
        corpus = LexicalCorpus(self.data.counts)
        try:
            tasks = self._tuning_tasks(corpus, evidence)
        except InputError:  # no training query finds anything here: what is wrong is said of all the preferences
            tasks = []
        if len(tasks) < 2:
            return tasks, self._searched(corpus, tasks)
        # Pages and keywords share a document's row, and may want two of them: titles that count for all or for nothing.
        pages, both = best_lexical(self._searched(corpus, tasks[:1])), self._searched(corpus, tasks)
        floor = KEPT_OF_PAGES * pages.values[0]
        if best_lexical(both).values[0] < floor:
            both = self._searched(corpus, tasks, start=pages.settings, floor=floor)
        return tasks, both

    def _searched(self, corpus: LexicalCorpus, tasks: list[LexicalTask], **more: Any) -> dict[str, TunedLexical]:
        rng = copy.deepcopy(self.lexical_rng)
        return tune_lexical(corpus, tasks, rng, stated=self._stated, with_coverage=True, **more)

    def _read_better(
        self,
        config: AnalyzerConfig,
        forms: dict[str, TunedLexical],
        said: tuple[str, str, str],
        own_settings: bool = False,
        least: float = 0.0,
    ) -> dict[str, TunedLexical]:
        """Read the documents by another analyzer if words alone are better so; return the forms tuned for what is read.

        With the settings that were tuned for the words as they are, or with ``own_settings`` each with its own, MAP on
        the training queries must rise by more than a standard error, and by the share ``least``, for one kind of
        queries, and fall by no more than one for the other. ``said`` is what to say of words that are, and are not,
        read so, and of the way to read them.
        """
        words, values = (self.analyzer, self.data), self._values(best_lexical(forms).settings)
        self.analyzer = make_analyzer(config)
        self.data = self._read(RejectLog(), silent)  # the first reading has said what is wrong
        anew = self._tuned(self.split.train)[1] if own_settings else forms
        changed = self._values(best_lexical(anew).settings)
        gains = [after - before for after, before in zip(changed, values, strict=True)]
        in_errors = [float(gain.mean()) / (standard_error(gain) or 1.0) for gain in gains]
        share = max(gain.mean() / (before.mean() or 1.0) for gain, before in zip(gains, values, strict=True))
        is_better = max(in_errors) > 1 and min(in_errors) >= -1 and share > least
        taken, left, way = said
        maps = "; ".join(f"{a.mean():.4f} beside {b.mean():.4f}" for a, b in zip(changed, values, strict=True))
        note = f"words are {taken if is_better else left}: by {way} training MAP is {maps}"
        self.notes += (note,)
        self.listener.say(note)
        if not is_better:
            self.analyzer, self.data = words
            return forms
        return anew if own_settings else self._tuned(self.split.train)[1]

    def _values(self, settings: LexicalSettings) -> list[Float64]:
        """Return the average precision of up to 5,000 training queries of each task by lexical settings."""
        corpus, rng = LexicalCorpus(self.data.counts), copy.deepcopy(self.lexical_rng)
        samples = [task.sample(rng, 10 * MAX_QUERIES) for task in self._tuning_tasks(corpus)]
        return [LexicalMeasure(corpus, sample, settings.form).values(settings) for sample in samples]

    def _tuning_tasks(self, corpus: LexicalCorpus, evidence: TrainingSet | None = None) -> list[LexicalTask]:
        """Return the training queries that the lexical score is tuned on: texts, whole documents, keywords of them."""
        train, data = evidence or self.split.train, self.data
        vocabulary = data.tfidf.vocabulary

        def rows_of(ids: Sequence[str]) -> Int64:
            return np.array([data.row_of[id_] for id_ in ids], np.int64)

        if train.texts is not None:
            task = train.task(self.split.pool, [], ())
            tokens = self.analyzer.tokens([train.texts[query] for query in task.query_ids])
            counts = count_rows(vocabulary, tokens)
            return [LexicalTask(task, corpus.text_queries(counts), rows_of(task.document_ids))]
        links = train.links()
        task = tuning_task(links, data.ids, self.split.pool)
        asked, pool = rows_of(task.query_ids), rows_of(task.document_ids)
        tasks = []
        if self.schedule.keyword_share < 1:
            tasks.append(LexicalTask(task, corpus.document_queries(asked), pool))
        if self.schedule.keyword_share > 0 or self.schedule.short_apart:
            n_words, seed = keywords_of(self.schedule), self.config.seed
            words = corpus.keyword_queries(asked, task.query_ids, n_words, seed, vocabulary)
            tasks.append(LexicalTask(task, words, pool))
        return tasks

    @property
    def _may_tune(self) -> bool:
        return self.config.recipe != "paper" and self.config.identity

    def _weights_of_words(self, lexical: LexicalSettings | None, asked: QuerySet, documents: TwoRows) -> Float32 | None:
        """Return what the words of texts count as queries, (n_words,) float32, by `word_weights`; None: 1 each.

        Of the weights that are tried, the ones of highest MAP by words alone on validation are taken where they gain
        more than two standard errors. Where documents ask, U and V learn what weights would say, and the model is worse
        for them.
        """
        if lexical is None or self.bm25 is None or self.evidence.texts is None or self.config.word_weights == "off":
            return None
        self.listener.say("weighing the words of queries")
        corpus, n_words = LexicalCorpus(self.data.counts), len(self.data.tfidf.vocabulary)
        known = np.flatnonzero(corpus.columns < n_words)

        def values(weights: Float32) -> Float64:
            queries, rng = asked.weighed(weights), copy.deepcopy(self.valid_rng)
            validators = validators_of(self.choosing, self.data, queries, documents, self.schedule, rng)
            return np.concatenate([validator.lexical for validator in validators])

        chosen = np.ones(n_words, np.float32)
        before = best = values(chosen)
        for learned in word_weights(choices_of(corpus, self._tuning_tasks(corpus)[0], lexical, self.words_rng)):
            tried = np.ones_like(chosen)
            tried[corpus.columns[known]] = learned[known]
            after = values(tried)
            if after.mean() > best.mean():
                best, chosen = after, tried
        gains = best - before
        is_better = bool(gains.mean() > 2 * standard_error(gains))  # the best of several
        maps = f"validation MAP of words alone is {best.mean():.4f} beside {before.mean():.4f}"
        note = f"words of queries {'are weighed' if is_better else 'count alike'}: by weights {maps}"
        self.notes += (note,)
        self.listener.say(note)
        return chosen if is_better else None

    def _problem(
        self, queries: QuerySet, documents: TwoRows, evidence: TrainingSet, held_out: Collection[str]
    ) -> Problem:
        """Return the arrays of a run; where new documents are asked for, what no preference names is no negative."""
        known = evidence.texts is not None or self.split.unseen_documents
        return build_problem(self.data, queries, documents, evidence, held_out, known_negatives=known)

    def _context(
        self,
        problem: Problem,
        validators: list[Validator],
        short_validators: list[Validator],
        rng: np.random.Generator,
        checkpoint: Path | None,
    ) -> TrainingContext:
        nearest = None
        if self.schedule.nearest_share:
            nearest = NegativeMiner(problem, copy.deepcopy(self.nearest_rng))
        fingerprint = self._fingerprint(problem) if checkpoint is not None else {}
        return TrainingContext(
            self.config,
            self.schedule,
            problem,
            nearest,
            validators,
            rng,
            self._start,
            len(self.data.tfidf.vocabulary),
            fingerprint,
            checkpoint,
            self.listener.say,
            self.listener.progress,
            short_validators,
        )

    def _start(self, tied: bool, schedule: Schedule) -> tuple[Float32, Float32]:
        if self.base is not None:
            return warm_start(self.base, schedule, self.evidence.texts is not None)
        n_words = len(self.data.tfidf.vocabulary)
        n_rows = n_words if self.config.max_rows is None else min(self.config.max_rows, n_words)
        # A generator of its own: the second run on all the evidence starts from the same U.
        rng = np.random.default_rng(self.config.seed + 1)
        return start_parameters(schedule, n_rows, self.config.dim, tied, rng)

    def _fingerprint(self, problem: Problem) -> dict[str, Any]:
        arrays = (*problem.queries, *problem.documents, *problem.lexical, *problem.tuples, *problem.negatives)
        valid = self.split.valid
        judged = (f"{query}\t{better}\t{valid.grades.get(query)}" for query, better in valid.links())
        return {
            "config": kept_settings(self.config),
            "base": self.base.model_id if self.base else None,
            "words": problem.n_columns,
            "data": digest(arrays),
            "validation": digest(chain(judged, sorted(self.split.pool))),
            "judged_only": valid.judged_only,
        }

    def _refit(self, documents: TwoRows, rows: LexicalRows | None, first: TrainedParameters) -> TrainedParameters:
        """Train on everything for the epochs that validation found best."""
        self.listener.say(f"training once more on everything for {first.result.best_epoch + first.more_epochs} epochs")
        queries = query_set(self.data, [self.evidence], self.analyzer, rows)
        problem = self._problem(queries.weighed(self.word_weights), documents, self.evidence, ())
        checkpoint = self.checkpoint.with_name(self.checkpoint.name + "-all") if self.checkpoint else None
        return self._context(problem, [], [], self.refit_rng, checkpoint).learn(first.name, first)

    def _assemble(
        self,
        lexical: LexicalSettings | None,
        learned: TrainedParameters,
        choice: dict[str, Any] | None,
        metrics: dict[str, Any],
    ) -> RankingModel:
        vocabulary = self.data.tfidf.vocabulary
        if self.base is not None and self.config.query_side_only:
            encoder = self.base.encoder
        else:
            encoder = Encoder(
                self.view,
                self.analyzer,
                vocabulary,
                self.corpus.tf,
                learned.V,
                self.corpus.quantisation,
                learned.documents.name,
                learned.Y,
                lexical,
                self.memory,
            )
        training = {
            "config": kept_settings(self.config),
            "schedule": kept_settings(self.schedule),
            "preferences": self.evidence.n_preferences,
            "documents": len(self.data.ids),
            "base": self.base.model_id if self.base else None,
            "class": learned.name,
            **({} if choice is None else {"choice": choice}),
            **({} if self.memory_factor is None else {"memory_factor": self.memory_factor}),
        }
        return RankingModel(
            encoder,
            vocabulary,
            learned.U,
            learned.identity,
            training=training,
            metrics=metrics,
            U_short=learned.short.U if learned.short else None,
            word_weights=self.word_weights,
        )
