"""The stage that judges: it chooses what is written, and says how good that is.

The forms are only the lexical score, or with memory, given vectors, or the learned part. Each is measured on queries
that neither it nor its settings were fitted to. The usual form of the kind of evidence is written unless these queries
show another one to be better: `usual_form`, `_best`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np

from reranker.arrays import Float32, Float64
from reranker.baselines.comparison import LEVEL
from reranker.errors import TrainingError
from reranker.evaluation import PairedTest, RankingTask, paired_test, standard_error
from reranker.lexical.memory import QueryMemory
from reranker.models.vector_field import WordEncoder
from reranker.training.concurrent_runs import GoOn, concurrent_runs, mb_of_run
from reranker.training.context import ShortRows, TrainedParameters, Validator, validators_of
from reranker.training.learning import LearnedPart, PreparedRows, trained_like
from reranker.training.lexical_choice import LexicalChoice, has_few_queries, retuned
from reranker.training.reading import Listener
from reranker.training.remembering import MemoryTrial, memory_of, retuned_memory, rows_with
from reranker.training.run import Division, TrainingRun
from reranker.training.training_set import N_FOLDS, Split, TrainingSet, asks_for_unseen, folds_of
from reranker.training.word_encoder import EncoderProblem

MEASURES: Final = ("AP", "nDCG@10")
"""Measures of the forms; the first one chooses."""
SURELY: Final = 1.5
"""Standard errors of the difference in MAP by which another form must be better than the usual one.

It is the best of several, so that one standard error would be chance too often.
"""
ENOUGH_QUERIES: Final = 500
"""Judging queries that are enough to choose by; with fewer, the queries of training take part by cross-fitting."""


class ScoreForm(NamedTuple):
    """Parts of the score besides the tuned lexical one."""

    memory: bool
    """Documents remember the training queries, or the pages that link to them."""
    learned: bool
    """U and V."""
    vectors: bool = False
    """The vectors that documents have already."""

    @property
    def name(self) -> str:
        """Words for reports."""
        lexical = "lexical score with memory" if self.memory else "lexical score"
        more = ["given vectors"] * self.vectors + ["learned part"] * self.learned
        return " and ".join([", ".join([lexical, *more[:-1]]), *more[-1:]])

    @property
    def is_lexical(self) -> bool:
        """True without given vectors and learned part."""
        return not (self.vectors or self.learned)


class VectorWeights(NamedTuple):
    """Weights of the parts of a form with given vectors."""

    given: float
    """s, the length of a query's vector (`WordEncoder.weight`)."""
    learned: float
    """Factor of the learned part, next to what the given vectors say already."""


GIVEN_WEIGHTS: Final = (2.0, 1.0, 4.0, 0.5, 8.0, 0.25)
"""Weights of the given vectors that are tried, in the ratio of spreads (`Validator.spread`).

2, the first one, is used if nothing can be measured. It was chosen on nfcorpus, cranfield and wikimedia_discernatron.
"""
LEARNED_FACTORS: Final = (1.0, 0.7, 0.5, 0.35, 0.25)
"""Factors of the learned part that are tried with given vectors."""


Values = Mapping[ScoreForm, Mapping[str, Float64]]
"""Value of each judging query by form and measure, (n,) float64."""


class MeasuredForms(NamedTuple):
    """The forms, measured on some queries."""

    values: Values
    """Values of the task's queries, in its order."""
    task: RankingTask


@dataclass(frozen=True)
class FormChoice:
    """The form that is written, and the measurements that chose it."""

    form: ScoreForm
    n_queries: int
    """Queries that the forms were measured on."""
    cross_fitted: bool
    """True if the queries of training took part, each scored by what the other folds were fitted to."""
    lexical: ScoreForm
    """The lexical form of the highest MAP."""
    means: Mapping[ScoreForm, Mapping[str, float]]
    """Mean by form and measure, the simplest form first.

    Lexical forms are measured even if they cannot be written.
    """
    tests: Mapping[ScoreForm, Mapping[str, PairedTest]]
    """Paired test against the best lexical form, by form and measure."""
    sentence: str
    """The form that was written, the reason, and its MAP next to that of a lexical form."""
    weights_of: Mapping[ScoreForm, VectorWeights] = field(default_factory=dict)
    """Weights of the parts of each form with given vectors."""
    values: Mapping[ScoreForm, Float64] = field(default_factory=dict, compare=False)
    """AP of each query by the form that is written and by the best lexical one, (n_queries,) float64."""
    tasks: tuple[RankingTask, ...] = field(default=(), compare=False)
    """The tasks with these queries, in the order of the values."""

    @property
    def valid_map(self) -> float:
        """MAP by the form that is written."""
        return self.means[self.form][MEASURES[0]]

    @property
    def lexical_map(self) -> float:
        """MAP by the best lexical form, which may be the form that is written."""
        return self.means[self.lexical][MEASURES[0]]

    @property
    def weights(self) -> VectorWeights | None:
        """Weights of the parts of the form that is written; None without given vectors."""
        return self.weights_of.get(self.form)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as the manifest keeps it."""
        return {
            "memory": self.form.memory,
            "learned": self.form.learned,
            **({} if self.weights is None else {"vectors": self.weights._asdict()}),
            "queries": self.n_queries,
            "cross_fitted": self.cross_fitted,
            "means": {form.name: dict(values) for form, values in self.means.items()},
            "tests": {
                form.name: {
                    measure: {"difference": test.difference, "standard_error": test.standard_error, "p": test.p_t_test}
                    for measure, test in tests.items()
                }
                for form, tests in self.tests.items()
            },
            "sentence": self.sentence,
        }


def chosen_form(
    run: TrainingRun,
    lexical: LexicalChoice,
    division: Division,
    rows: PreparedRows,
    learned: LearnedPart,
    memory: MemoryTrial,
    encoder: EncoderProblem | None = None,
) -> FormChoice:
    """Return the usual form, or the form of the highest mean AP if it is surely better (`SURELY`).

    The judging queries chose neither settings nor epoch nor weights. If there are fewer than `ENOUGH_QUERIES` of them
    and the queries are texts, all queries but those that choose take part: they are split into `N_FOLDS`, and each fold
    is scored by a memory, U and V that were fitted without it. They do not take part if validation was given and asks
    for documents that training does not know: these are not like those of training. Where there is one form only,
    nothing is fitted again: it is measured on the judging queries.
    """
    forms = forms_of(run, learned, memory, encoder)
    stages = _Stages(run, lexical, rows, learned, memory, encoder)
    train = division.split.train
    words = None if encoder is None else encoder.taught(rows.queries, lexical.data, train)
    fitted = _Fitted(train, learned.parameters, memory.memory, words)
    weights = _vector_weights(stages, forms, division.choosing, fitted)
    run.listener.say("comparing the forms of the score on held-out queries")
    measured = list(dict.fromkeys([*(ScoreForm(form.memory, learned=False) for form in forms), *forms]))
    parts = [*_cross_fitted(stages, division, measured, weights)] if len(forms) > 1 and _crosses(division) else []
    crosses = bool(parts)
    if not parts or division.split.kind == "given":
        parts.append(
            _measured_forms(stages, measured, replace(division.split, valid=division.judging), fitted, weights)
        )
    queries = f"{'cross-fitted' if crosses else 'held-out'} queries"
    queries += "" if crosses or division.judged_apart else ", which also chose its settings"
    choice = _best(_joined([part.values for part in parts]), usual_form(forms, train), queries, forms)
    return replace(choice, cross_fitted=crosses, weights_of=weights, tasks=tuple(part.task for part in parts))


@dataclass(frozen=True, eq=False)
class _Stages:
    """Results of the stages before."""

    run: TrainingRun
    lexical: LexicalChoice
    rows: PreparedRows
    learned: LearnedPart
    memory: MemoryTrial
    encoder: EncoderProblem | None
    is_retuned: bool = False
    """True if the settings of ``lexical`` are others than those of ``rows``."""

    @property
    def given(self) -> Float32 | None:
        """The given vectors of all documents."""
        return None if self.encoder is None else self.encoder.vectors


def _crosses(division: Division) -> bool:
    """Return whether the queries of training take part."""
    split = division.split
    if split.train.texts is None or len(division.judging.query_ids) >= ENOUGH_QUERIES:
        return False
    return split.kind == "queries" or not asks_for_unseen(split.train, split.valid)


class _Fitted(NamedTuple):
    """The parts of the score that were fitted to some evidence."""

    evidence: TrainingSet
    parameters: TrainedParameters
    memory: QueryMemory | None
    words: Float32 | None
    """Table of the word encoder."""


def forms_of(
    run: TrainingRun, learned: LearnedPart, memory: MemoryTrial, encoder: EncoderProblem | None = None
) -> list[ScoreForm]:
    """Return the forms that may be written, the simplest first.

    With the document side of a model to start from, its given vectors stay, as its memory does.
    """
    vectors = [False] if encoder is None else [True] if run.config.query_side_only else [False, True]
    kept = memory.is_kept
    if run.config.query_side_only or run.config.learned_part == "on":
        memories = [kept] if kept or memory.settings is None else [False, True]
        learns = [bool(learned.parameters.U.size) or encoder is None]  # a base may have only given vectors
    else:
        memories = [False] if memory.settings is None else [False, True]
        learns = [False, True] if learned.parameters.has_learned else [False]
    forms = product(learns, vectors, memories)
    return [ScoreForm(with_memory, with_learned, with_vectors) for with_learned, with_vectors, with_memory in forms]


def usual_form(forms: Sequence[ScoreForm], evidence: TrainingSet) -> ScoreForm:
    """Return the form that is written where the judging queries cannot tell forms apart.

    It has all parts that there are, except that texts as queries need evidence for the learned part: it gains where
    documents are the queries (on cppdocs, mdn, aws and rfc, unseen documents too), and seldom where there is a
    memory of queries.
    """
    has_learned = any(form.learned for form in forms) and evidence.texts is None
    return max(forms, key=lambda form: (form.learned is has_learned, form.vectors, form.memory))


def _vector_weights(
    stages: _Stages, forms: Sequence[ScoreForm], split: Split, fitted: _Fitted
) -> dict[ScoreForm, VectorWeights]:
    """Return the weights of the highest MAP on the queries that choose, of each form with given vectors."""
    weights: dict[ScoreForm, VectorWeights] = {}
    if fitted.words is None:
        return weights
    with_vectors = [form for form in forms if form.vectors]
    for with_memory in dict.fromkeys(form.memory for form in with_vectors):
        validators = _validators(stages, with_memory, split, fitted.memory)
        for form in (form for form in with_vectors if form.memory is with_memory):
            weights[form] = _best_weights(validators, fitted, form)
    return weights


def _best_weights(validators: Sequence[Validator], fitted: _Fitted, form: ScoreForm) -> VectorWeights:
    """Return the first weights, in the order of their tables, that are within a standard error of the best ones.

    With few queries that is the rule for none.
    """
    given = [_given_scores(validator, fitted.words) for validator in validators]
    learned = [_learned_scores(validator, fitted.parameters) if form.learned else None for validator in validators]
    spreads = [validator.spread(added, 1.0) for validator, added in zip(validators, given, strict=True)]
    unit = float(np.mean(spreads))
    tried: dict[VectorWeights, Float64] = {}
    for weight, factor in product(GIVEN_WEIGHTS, LEARNED_FACTORS if form.learned else (1.0,)):
        values = []
        for validator, of_given, of_learned in zip(validators, given, learned, strict=True):
            added = np.float32(weight * unit) * of_given
            if of_learned is not None:
                added += np.float32(factor) * of_learned
            values.append(validator.values_with(added, 1.0))
        tried[VectorWeights(float(f"{weight * unit:.4g}"), factor)] = np.mean(values, axis=0)
    best = max(tried.values(), key=lambda values: float(values.mean()))
    behind = {weights: best - values for weights, values in tried.items()}
    return next(weights for weights, lost in behind.items() if lost.mean() <= standard_error(lost))


def _given_scores(validator: Validator, words: Float32 | None) -> Float32:
    """Return the inner products of unit query vectors and given vectors, (n_queries, n_documents) float32."""
    if words is None or validator.given is None:
        raise ValueError("there are no given vectors")
    scores: Float32 = WordEncoder(words, 1.0).vectors(validator.queries) @ validator.given.T
    return scores


def _learned_scores(validator: Validator, parameters: TrainedParameters) -> Float32:
    """Return the learned part of the scores, (n_queries, n_documents) float32."""
    U = parameters.short.U if validator.is_short and parameters.short is not None else parameters.U
    return validator.learned_scores(U, parameters.V)


def _cross_fitted(
    stages: _Stages, division: Division, forms: Sequence[ScoreForm], weights: Mapping[ScoreForm, VectorWeights]
) -> Iterator[MeasuredForms]:
    """Yield the values of each fold's queries, by what was fitted to the evidence without them.

    If few queries tuned the lexical settings, those of each form are tuned again without the fold: settings that were
    tuned on the judging queries would flatter their form.
    """
    run, lexical, rows, learned, memory = stages.run, stages.lexical, stages.rows, stages.learned, stages.memory
    tunes = has_few_queries(run, lexical, division)
    choosing = set(division.choosing.valid.query_ids) if division.judged_apart else set()
    texts = run.evidence.texts or {}
    asked = {query: texts[query] for query in run.evidence.query_ids if query not in choosing}

    def of_fold(number: int, fold: Collection[str], go_on: GoOn) -> MeasuredForms | None:
        quiet = replace(run, listener=Listener(progress=go_on))
        kept = [query for query in run.evidence.query_ids if query not in fold]
        train = replace(run.evidence.restricted(kept), linked=run.evidence.linked)
        split = replace(division.split, train=train, valid=run.evidence.restricted(fold))
        if not split.valid.preferences:
            return None
        parameters, trial, of_words = learned.parameters, memory, lexical
        if tunes and memory.tuned is not None:
            of_words = retuned(quiet, lexical, division, train, afresh=True)
            trial = retuned_memory(quiet, of_words, division, memory, train)
        if any(form.learned for form in forms):
            suffix = f"-fold{number}"
            try:
                parameters = trained_like(quiet, lexical.data, division, rows, learned, train, suffix)
            except TrainingError:  # the evidence without the fold is too little to learn from
                return None
        remembered = memory_of(lexical.data, train) if any(form.memory for form in forms) else None
        encoder = stages.encoder
        words = None if encoder is None else encoder.taught(rows.queries, lexical.data, train)
        fitted = _Fitted(train, parameters, remembered, words)
        of_fold = replace(stages, run=quiet, lexical=of_words, memory=trial, is_retuned=of_words is not lexical)
        return _measured_forms(of_fold, forms, split, fitted, weights)

    folds = folds_of(asked, N_FOLDS, run.streams.named("form folds"))
    runs = [partial(of_fold, number, fold) for number, fold in enumerate(folds)]
    of_run = mb_of_run(len(lexical.data.ids), *learned.parameters.U.shape)
    for number, measured in enumerate(concurrent_runs(runs, of_run), 1):
        run.listener.progress("comparing forms", number, len(runs))
        if measured is not None:
            yield measured


def _measured_forms(
    stages: _Stages,
    forms: Sequence[ScoreForm],
    split: Split,
    fitted: _Fitted,
    weights: Mapping[ScoreForm, VectorWeights],
) -> MeasuredForms:
    """Return the values of the validation queries of a split by each form."""
    measured: dict[ScoreForm, Mapping[str, Float64]] = {}
    for with_memory in dict.fromkeys(form.memory for form in forms):
        validators = _validators(stages, with_memory, split, fitted.memory)
        task = validators[0].task  # the sample is the same for all
        for form in (form for form in forms if form.memory is with_memory):
            parts = [_measured(validator, fitted, form, weights.get(form)) for validator in validators]
            measured[form] = _of_kinds(parts)
    return MeasuredForms(measured, task)


def _validators(stages: _Stages, with_memory: bool, split: Split, memory: QueryMemory | None) -> list[Validator]:
    """Return validators of a split's queries by lexical rows with or without a memory."""
    run, data, trial = stages.run, stages.lexical.data, stages.memory
    documents, queries = stages.rows.documents, stages.rows.queries
    has_memory, short = with_memory and not trial.is_kept, None
    if has_memory or stages.is_retuned:
        settings, memory = (trial.settings, memory) if has_memory else (stages.lexical.settings, None)
        others = rows_with(run, data, settings, memory, split, stages.rows)
        if split.valid.texts is None:  # a memory of links is for short queries
            short = ShortRows(others.queries, others.documents, trial.page_weight / (trial.factor or 1.0))
        else:
            queries, documents = others.queries, others.documents
    rng = run.streams.named("validation")
    return validators_of(split, data, queries, documents, stages.learned.schedule, rng, stages.given, short)


def _measured(
    validator: Validator, fitted: _Fitted, form: ScoreForm, weights: VectorWeights | None
) -> dict[str, Float64]:
    """Return the values of a validator's queries by one form."""
    weights = weights or VectorWeights(0.0, 1.0)
    added = np.zeros((validator.queries.shape[0], validator.documents.shape[0]), np.float32)
    if form.learned:
        added += np.float32(weights.learned) * _learned_scores(validator, fitted.parameters)
    if form.vectors:
        added += np.float32(weights.given) * _given_scores(validator, fitted.words)
    return validator.measured(added, 1.0)


def _of_kinds(parts: Sequence[Mapping[str, Float64]]) -> dict[str, Float64]:
    """Return the mean over the kinds of queries, whole ones and short ones, of each query's values."""
    return {measure: np.mean([part[measure] for part in parts], axis=0) for measure in MEASURES}


def _joined(parts: Sequence[Values]) -> Values:
    forms = list(parts[0])
    return {
        form: {measure: np.concatenate([part[form][measure] for part in parts]) for measure in MEASURES}
        for form in forms
    }


def _best(values: Values, usual: ScoreForm, queries: str, forms: Sequence[ScoreForm]) -> FormChoice:
    """Return the choice of the usual form, or of that of ``forms`` with the highest MAP.

    The latter must be better by more than `SURELY` standard errors of the difference. Of equals, the form with fewer
    parts counts as higher. ``queries`` names the measured queries in the sentence.
    """
    headline = MEASURES[0]
    order = sorted(values, key=lambda form: (form.learned, form.vectors, form.memory))

    def mean(form: ScoreForm) -> float:
        return float(values[form][headline].mean())

    highest = max((form for form in order if form in forms), key=mean)
    gains = values[highest][headline] - values[usual][headline]
    best = highest if gains.mean() > SURELY * standard_error(gains) else usual
    lexical = max((form for form in order if form.is_lexical), key=mean)
    tests = {
        form: {measure: paired_test(values[form][measure], values[lexical][measure]) for measure in MEASURES}
        for form in order
        if form != lexical
    }
    means = {form: {measure: float(values[form][measure].mean()) for measure in MEASURES} for form in order}
    n = len(values[best][headline])
    kept = {form: values[form][headline] for form in (best, lexical)}
    choice = FormChoice(best, n, False, lexical, means, tests, "", values=kept)
    return replace(choice, sentence=_sentence(choice, forms, f"{n:,} {queries}"))


def _sentence(choice: FormChoice, forms: Sequence[ScoreForm], queries: str) -> str:
    """Return what is written, why, and its MAP next to that of the best lexical form, or of another one."""
    best, lexical, tests = choice.form, choice.lexical, choice.tests
    name = f"The model is the {best.name}" + (", the only form to choose" if len(forms) == 1 else "")
    value = f"MAP {choice.valid_map:.4f}"
    if not best.is_lexical:
        verdict = comparison_of(tests[best][MEASURES[0]], lexical.name)
        return (
            f"{name}, {verdict} on {queries}: {value} against {choice.lexical_map:.4f}, "
            f"differences {_differences(tests[best])}."
        )
    if others := [form for form in choice.means if form.is_lexical and form != best]:
        value += f", {choice.means[others[0]][MEASURES[0]]:.4f} by the {others[0].name}"
    more = [form for form in forms if not form.is_lexical]
    if not more:
        return f"{name}: {value} on {queries}."
    other = max(more, key=lambda form: tests[form][MEASURES[0]].difference)
    parts = ["the given vectors"] * any(form.vectors for form in more)
    parts += ["the learned part"] * any(form.learned for form in more)
    fails = "does not pay" if parts == ["the learned part"] else "do not pay"
    return (
        f"{name}: {' and '.join(parts)} {fails} on {queries}. It has {value}; the best score with more differs from "
        f"the {lexical.name} by {_differences(tests[other])}."
    )


def comparison_of(test: PairedTest, other: str) -> str:
    """Return the words that compare a model with another, by the two-sided p of their paired test."""
    if test.p_t_test >= LEVEL:
        return f"with no difference shown from the {other}"
    return f"{'better' if test.difference > 0 else 'worse'} than the {other}"


def _differences(tests: Mapping[str, PairedTest]) -> str:
    names = {"AP": "MAP"}
    return ", ".join(
        f"{names.get(measure, measure)} {test.difference:+.4f} ± {test.interval:.4f}" for measure, test in tests.items()
    )
