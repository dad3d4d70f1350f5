"""The stage that chooses what is written: the lexical score with or without memory, with or without the learned part.

Each form is measured on queries that neither it nor its settings were fitted to, and the best one is written, so that a
model is never written that these queries show to be worse than a tuned lexical ranking.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from reranker.arrays import Float64
from reranker.baselines.comparison import LEVEL
from reranker.errors import TrainingError
from reranker.evaluation import PairedTest, paired_test
from reranker.lexical.memory import QueryMemory
from reranker.models.ranking_model import lexical_rows_of
from reranker.models.scorers import query_vectors
from reranker.training.context import TrainedParameters, Validator, validators_of
from reranker.training.cores import GoOn, mb_of_run, on_cores
from reranker.training.learning import LearnedPart, PreparedRows, document_rows, trained_like
from reranker.training.lexical_choice import LexicalChoice, has_few_queries
from reranker.training.problem import query_set
from reranker.training.reading import Listener
from reranker.training.remembering import MemoryTrial, memory_of, retuned_memory
from reranker.training.run import Division, TrainingRun
from reranker.training.training_set import N_FOLDS, Split, TrainingSet, asks_for_unseen, folds_of

MEASURES: Final = ("AP", "nDCG@10")
"""Measures of the forms; the first one chooses."""
LEAST_GAIN: Final = 0.002
"""MAP by which a form must be better than a simpler one."""
ENOUGH_QUERIES: Final = 500
"""Judging queries that are enough to choose by; with fewer, the queries of training take part by cross-fitting."""


class ScoreForm(NamedTuple):
    """Parts of the score besides the tuned lexical one."""

    memory: bool
    """Documents remember the training queries."""
    learned: bool
    """U and V."""

    @property
    def name(self) -> str:
        """Words for reports."""
        lexical = "lexical score with query memory" if self.memory else "lexical score"
        return f"{lexical} and learned part" if self.learned else lexical


Values = Mapping[ScoreForm, Mapping[str, Float64]]
"""Value of each judging query by form and measure, (n,) float64."""


@dataclass(frozen=True)
class FormChoice:
    """The form that is written, and the measurements that chose it."""

    form: ScoreForm
    n_queries: int
    """Queries that the forms were measured on; 0: there was nothing to choose between."""
    cross_fitted: bool
    """True if the queries of training took part, each scored by what the other folds were fitted to."""
    means: Mapping[ScoreForm, Mapping[str, float]]
    """Mean by form and measure, the simplest form first."""
    tests: Mapping[ScoreForm, Mapping[str, PairedTest]]
    """Paired test against the best lexical form, by form and measure."""
    sentence: str
    """The form that was written, and the reason."""

    def to_json(self) -> dict[str, Any]:
        """Return the choice as the manifest keeps it."""
        return {
            "memory": self.form.memory,
            "learned": self.form.learned,
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
) -> FormChoice:
    """Return the form of the highest mean AP on the judging queries, or a simpler one that is as good (`LEAST_GAIN`).

    The judging queries chose neither settings nor epoch nor weights. If there are fewer than `ENOUGH_QUERIES` of them
    and the queries are texts, all queries but those that choose take part: they are split into `N_FOLDS`, and each fold
    is scored by a memory, U and V that were fitted without it. They do not take part if validation was given and asks
    for documents that training does not know: these are not like those of training.
    """
    forms = forms_of(run, learned, memory)
    if len(forms) == 1:
        return FormChoice(forms[0], 0, False, {}, {}, "")
    run.listener.say("comparing the forms of the score on held-out queries")
    crosses = _crosses(division)
    parts = [*_cross_fitted(run, lexical, division, rows, learned, memory, forms)] if crosses else []
    if not parts or division.split.kind == "given":
        split = replace(division.split, valid=division.judging)
        fitted = _Fitted(division.split.train, learned.parameters, memory.memory)
        parts.append(_values(run, lexical, rows, learned, memory, forms, split, fitted))
    choice = _best(_joined(parts), crosses)
    run.listener.say(choice.sentence)
    return choice


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


def forms_of(run: TrainingRun, learned: LearnedPart, memory: MemoryTrial) -> list[ScoreForm]:
    """Return the forms that may be written, the simplest first."""
    kept = memory.is_kept
    if run.config.query_side_only or not run.tunes_lexical or run.config.learned_part == "on":
        memories = [kept] if kept or memory.settings is None else [False, True]
        return [ScoreForm(each, True) for each in memories]
    memories = [False] if memory.settings is None else [False, True]
    learns = [False, True] if learned.parameters.has_learned else [False]
    return [ScoreForm(with_memory, with_learned) for with_learned in learns for with_memory in memories]


def _cross_fitted(
    run: TrainingRun,
    lexical: LexicalChoice,
    division: Division,
    rows: PreparedRows,
    learned: LearnedPart,
    memory: MemoryTrial,
    forms: Sequence[ScoreForm],
) -> Iterator[Values]:
    """Yield the values of each fold's queries, by what was fitted to the evidence without them.

    If few queries tuned the settings of the rows with a memory, these are tuned again without the fold: with the
    parameters that a memory adds, it would often be best by chance. The settings of the rows without one stay: if they
    are flattered by the queries that tuned them, the simpler form is preferred.
    """
    tunes = has_few_queries(run, lexical, division)
    choosing = set(division.choosing.valid.query_ids) if division.judged_apart else set()
    texts = run.evidence.texts or {}
    asked = {query: texts[query] for query in run.evidence.query_ids if query not in choosing}

    def of_fold(number: int, fold: Collection[str], go_on: GoOn) -> Values | None:
        quiet = replace(run, listener=Listener(progress=go_on))
        kept = [query for query in run.evidence.query_ids if query not in fold]
        train = replace(run.evidence.restricted(kept), linked=run.evidence.linked)
        split = replace(division.split, train=train, valid=run.evidence.restricted(fold))
        if not split.valid.preferences:
            return None
        parameters, trial = learned.parameters, memory
        if tunes and memory.tuned is not None:
            trial = retuned_memory(quiet, lexical, division, memory, train)
        if any(form.learned for form in forms):
            suffix = f"-fold{number}"
            try:
                parameters = trained_like(quiet, lexical.reading, division, rows, learned, train, suffix)
            except TrainingError:  # the evidence without the fold is too little to learn from
                return None
        remembered = memory_of(lexical.reading, train) if any(form.memory for form in forms) else None
        fitted = _Fitted(train, parameters, remembered)
        return _values(quiet, lexical, rows, learned, trial, forms, split, fitted)

    folds = folds_of(asked, N_FOLDS, run.streams.named("form folds"))
    runs = [partial(of_fold, number, fold) for number, fold in enumerate(folds)]
    of_run = mb_of_run(len(lexical.reading.data.ids), *learned.parameters.U.shape)
    for number, values in enumerate(on_cores(runs, of_run), 1):
        run.listener.progress("comparing forms", number, len(runs))
        if values is not None:
            yield values


def _values(
    run: TrainingRun,
    lexical: LexicalChoice,
    rows: PreparedRows,
    learned: LearnedPart,
    memory: MemoryTrial,
    forms: Sequence[ScoreForm],
    split: Split,
    fitted: _Fitted,
) -> Values:
    """Return the values of the validation queries of a split by each form."""
    data, reading = lexical.reading.data, lexical.reading
    measured: dict[ScoreForm, Mapping[str, Float64]] = {}
    for with_memory in dict.fromkeys(form.memory for form in forms):
        documents, queries = rows.documents, rows.queries
        if with_memory and not memory.is_kept:
            lexical_rows = lexical_rows_of(memory.settings, data.tfidf.vocabulary, fitted.memory)
            documents = document_rows(run, reading, lexical_rows, fitted.memory)
            queries = query_set(data, [split.valid], reading.analyzer, lexical_rows).weighed(rows.word_weights)
        rng = run.streams.named("validation")
        validators = validators_of(split, data, queries, documents, learned.schedule, rng)
        for form in (form for form in forms if form.memory is with_memory):
            measured[form] = _of_kinds([_measured(validator, fitted.parameters, form) for validator in validators])
    return measured


def _measured(validator: Validator, parameters: TrainedParameters, form: ScoreForm) -> dict[str, Float64]:
    """Return the values of a validator's queries by one form."""
    if form.learned:
        U = parameters.short.U if validator.is_short and parameters.short is not None else parameters.U
        q_vectors = query_vectors(parameters.documents.name, U, validator.queries)
        return validator.measured(
            q_vectors, parameters.documents.vectors(validator.documents), parameters.identity, MEASURES
        )
    n_queries, n_documents = validator.queries.shape[0], validator.documents.shape[0]
    nothing = np.zeros((n_queries, 1), np.float32), np.zeros((n_documents, 1), np.float32)
    return validator.measured(*nothing, 1.0, MEASURES)


def _of_kinds(parts: Sequence[Mapping[str, Float64]]) -> dict[str, Float64]:
    """Return the mean over the kinds of queries, whole ones and short ones, of each query's values."""
    return {measure: np.mean([part[measure] for part in parts], axis=0) for measure in MEASURES}


def _joined(parts: Sequence[Values]) -> Values:
    forms = list(parts[0])
    return {
        form: {measure: np.concatenate([part[form][measure] for part in parts]) for measure in MEASURES}
        for form in forms
    }


def _best(values: Values, cross_fitted: bool) -> FormChoice:
    """Return the choice of the simplest form whose MAP is less than `LEAST_GAIN` below the highest one."""
    headline = MEASURES[0]
    values = {form: values[form] for form in sorted(values, key=lambda form: (form.learned, form.memory))}

    def mean(form: ScoreForm) -> float:
        return float(values[form][headline].mean())

    highest = max(map(mean, values))
    best = next(form for form in values if mean(form) > highest - LEAST_GAIN)
    lexical = max((form for form in values if not form.learned), key=mean, default=None)
    tests = {}
    if lexical is not None:
        tests = {
            form: {measure: paired_test(values[form][measure], values[lexical][measure]) for measure in MEASURES}
            for form in values
            if form != lexical
        }
    means = {form: {measure: float(of[measure].mean()) for measure in MEASURES} for form, of in values.items()}
    n = len(values[best][headline])
    sentence = _sentence(best, lexical, [*values], tests, n, cross_fitted)
    return FormChoice(best, n, cross_fitted, means, tests, sentence)


def _sentence(
    best: ScoreForm,
    lexical: ScoreForm | None,
    forms: Sequence[ScoreForm],
    tests: Mapping[ScoreForm, Mapping[str, PairedTest]],
    n: int,
    cross_fitted: bool,
) -> str:
    """Return what is written and how it compares with the best lexical form, or the learned part with it."""
    how = f"{n:,} {'cross-fitted' if cross_fitted else 'held-out'} queries"
    if lexical is None:
        return f"The model is the {best.name}, the best form on {how}."
    if best.learned:
        test = tests[best]
        verdict = comparison_of(test[MEASURES[0]], lexical.name)
        return f"The model is the {best.name}, {verdict} on {how}: {_differences(test)}."
    others = [form for form in forms if form.learned]
    if not others:
        return f"The model is the {best.name}, the best form on {how}."
    learned = max(others, key=lambda form: tests[form][MEASURES[0]].difference)
    return (
        f"The model is the {best.name}: the learned part does not pay on {how} and is left out: "
        f"{_differences(tests[learned])}."
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
