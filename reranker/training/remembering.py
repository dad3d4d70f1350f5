"""The stage that decides whether documents remember the training queries that they are relevant to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from reranker.arrays import Float64
from reranker.baselines.fitted import REMEMBERING
from reranker.evaluation import standard_error
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus, RememberedQueries
from reranker.lexical.memory import QueryMemory
from reranker.lexical.tuning import MAX_QUERIES, FoldedMeasure, LexicalMeasure, TunedLexical
from reranker.models.ranking_model import lexical_rows_of
from reranker.text.tfidf import count_rows
from reranker.training.context import validators_of, values_by
from reranker.training.learning import LearnedPart, PreparedRows, document_rows, kept_memory
from reranker.training.lexical_choice import LexicalChoice, searched, tuning_tasks, with_factor
from reranker.training.problem import query_set
from reranker.training.reading import AnalyzedDocuments
from reranker.training.run import Division, TrainingRun
from reranker.training.training_set import TrainingSet, asks_for_unseen

FACTORS: Final = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0, 32.0)
"""Factors of rows with a memory that are tried with U and V learned without one: they need less of it."""
FEW_QUERIES: Final = 100
"""Validation queries below which what is best on them is mostly chance."""


class MemoryChoice(NamedTuple):
    """Whether documents remember the queries that they are relevant to, and the sentence that says why."""

    is_on: bool
    sentence: str

    @classmethod
    def of(cls, is_on: bool, why: str) -> MemoryChoice:
        """Return a choice whose sentence says why."""
        return cls(is_on, f"queries remembered: {'on' if is_on else 'off'}, {why}")


@dataclass(frozen=True, eq=False)
class MemoryStage:
    """The lexical part after the decision about the memory."""

    choice: MemoryChoice
    settings: LexicalSettings | None
    """Those of rows with a memory, multiplied by ``factor``, if it is on; otherwise those from before."""
    memory: QueryMemory | None
    factor: float | None
    """Factor of the rows with a memory; None: there is none, or it came with the model to start from."""
    forms: Mapping[str, TunedLexical] | None
    """Tuned forms for the baselines, see `LexicalChoice.forms`."""
    notes: tuple[str, ...]
    lexical_map: float
    """Validation MAP by the lexical score only."""
    valid_map: float
    """Validation MAP by the model."""


def remembered_queries(
    run: TrainingRun, lexical: LexicalChoice, division: Division, rows: PreparedRows, learned: LearnedPart
) -> MemoryStage:
    """Return the lexical part with a memory of the training queries if it is better on validation, else without.

    Tuning scores queries that no document remembers, among documents that nearly all remember some; new queries and
    documents are different, and validation says whether the memory helps them. It is used if AP of the validation
    queries gains more than a standard error of the difference over the model without memory. Rows with a memory are
    multiplied by the best of `FACTORS`: U and V stay as they are, and a later training can start from them with rows
    without memory.

    The model without memory was chosen on the validation queries, by chance if they are fewer than `FEW_QUERIES`. Then
    the lexical score only must gain more than a standard error, over more queries (`_gains_of_words`), and the model
    must not lose two standard errors; the factor is the `heaviest`.
    """
    why_not = _why_not(run, lexical, division)
    settings, forms = lexical.settings, lexical.forms
    if why_not is not None or settings is None:
        choice = why_not or MemoryChoice.of(False, "the score has no lexical row of its own")
        run.listener.say(choice.sentence)
        maps = (learned.lexical_map, learned.valid_map)
        return MemoryStage(choice, settings, kept_memory(run), None, forms, (), *maps)
    run.listener.say("tuning the lexical score with the training queries remembered")
    reading, train = lexical.reading, division.split.train
    tried = _tuned(run, lexical, division, train, "")
    memory = memory_of(run, reading, train)
    lexical_rows = lexical_rows_of(tried.tuned.settings, reading.data.tfidf.vocabulary, memory)
    documents = document_rows(run, reading, lexical_rows, memory)
    asked = query_set(reading.data, [train, division.split.valid], reading.analyzer, lexical_rows)
    queries, rng = asked.weighed(rows.word_weights), run.streams.named("validation")
    validators = validators_of(division.choosing, reading.data, queries, documents, learned.schedule, rng)
    parameters, scales = learned.parameters, [1 / factor for factor in FACTORS]
    parts = values_by(validators, parameters.U, parameters.documents, scales, parameters.identity)
    values = np.concatenate(parts, axis=1)
    few = values.shape[1] < FEW_QUERIES
    best = heaviest(values) if few else int(np.argmax(values.mean(axis=1)))
    value, gains = float(values[best].mean()), values[best] - parameters.values
    by_words = [validator.lexical for validator in validators]
    why = f"validation MAP {value:.4f} beside {parameters.values.mean():.4f}"
    is_better = bool(gains.mean() > standard_error(gains))
    if few:
        of_validation = np.concatenate(by_words) - learned.lexical_values
        of_words = _gains_of_words(run, lexical, division, tried, of_validation)
        gain, error = float(of_words.mean()), standard_error(of_words)
        is_better = gain > error and float(gains.mean()) >= -2 * standard_error(gains)
        why = f"{why}, of words alone {gain:+.4f} ± {error:.4f} over {len(of_words):,} queries"
    choice = MemoryChoice.of(is_better, why)
    run.listener.say(choice.sentence)
    if not is_better:
        return MemoryStage(choice, settings, None, None, forms, (), learned.lexical_map, learned.valid_map)
    return MemoryStage(
        choice,
        with_factor(tried.tuned.settings, FACTORS[best]),
        memory,
        FACTORS[best],
        None if forms is None else {**forms, REMEMBERING: tried.tuned},
        tried.tuned.notes,
        float(np.mean([values.mean() for values in by_words])),
        value,
    )


def tuned_remembering_all(run: TrainingRun, lexical: LexicalChoice, division: Division) -> LexicalSettings:
    """Return the settings of rows with a memory, tuned again on all the queries."""
    return _tuned(run, lexical, division, run.evidence, " of all").tuned.settings


def memory_of(run: TrainingRun, reading: AnalyzedDocuments, evidence: TrainingSet) -> QueryMemory:
    """Return the memory of the queries of some evidence."""
    rows = _remembered(reading, evidence).rows(len(reading.data.ids))
    return QueryMemory.of(reading.data.ids, rows, reading.data.counts)


def heaviest(values: Float64) -> int:
    """Return the last of the `FACTORS` whose AP, (n_factors, n_queries), is within a standard error of the best.

    U and V are learned from the queries that are remembered: on these they repeat what the memory says already.
    """
    behind = values[np.argmax(values.mean(axis=1))] - values
    return max(place for place, lost in enumerate(behind) if lost.mean() <= standard_error(lost))


class _Tuned(NamedTuple):
    """BM25 over documents with a memory, tuned by folds of the queries."""

    corpus: LexicalCorpus
    tuned: TunedLexical


def _tuned(run: TrainingRun, lexical: LexicalChoice, division: Division, evidence: TrainingSet, which: str) -> _Tuned:
    """Return BM25 tuned on the queries of some evidence; ``which`` ends the names of the random streams."""
    reading = lexical.reading
    folds, rng = (run.streams.named(f"memory {what}{which}") for what in ("folds", "tuning"))
    corpus = LexicalCorpus(reading.data.counts).remembering(_remembered(reading, evidence), folds)
    tasks = tuning_tasks(run, reading, division, corpus, evidence)
    return _Tuned(corpus, searched(run, reading, corpus, tasks, rng, forms=("bm25",), start=lexical.bm25)["bm25"])


def _remembered(reading: AnalyzedDocuments, evidence: TrainingSet) -> RememberedQueries:
    texts, vocabulary = evidence.texts or {}, reading.data.tfidf.vocabulary
    return RememberedQueries.of(
        evidence.links(),
        evidence.preferences.remembered,
        reading.data.row_of,
        lambda ids: count_rows(vocabulary, reading.analyzer.tokens([texts[query] for query in ids])),
    )


def _why_not(run: TrainingRun, lexical: LexicalChoice, division: Division) -> MemoryChoice | None:
    """Return why no memory is tried; None: it is."""
    if run.config.query_side_only:
        return MemoryChoice.of(kept_memory(run) is not None, "as in the model to start from")
    reasons = (
        (run.config.memory == "off", "as asked for"),
        (run.evidence.texts is None, "the queries are documents"),
        (lexical.settings is None, "the score has no lexical row of its own to remember them in"),
        (not division.split.train.preferences.remembered.any(), "nothing that was learned from may be"),
        (lexical.bm25 is None, "no training query finds a document by its words"),
    )
    return next((MemoryChoice.of(False, why) for holds, why in reasons if holds), None)


def _gains_of_words(
    run: TrainingRun, lexical: LexicalChoice, division: Division, tried: _Tuned, of_validation: Float64
) -> Float64:
    """Return what AP by the lexical score only gains from a memory, (n,), for queries of validation and of training.

    Those of training are scored among documents whose memory excludes the query's fold. They do not count where
    validation was given and asks for documents that training does not know: these remember nothing.
    """
    split = division.split
    if split.kind != "queries" and asks_for_unseen(split.train, split.valid):
        return of_validation
    without, remembering = lexical.settings, tried.tuned.settings
    if without is None:
        raise ValueError("a memory is compared with lexical settings: there are none")
    rng = run.streams.named("memory tuning")
    task = tuning_tasks(run, lexical.reading, division, tried.corpus, split.train)[0].sample(rng, 2 * MAX_QUERIES)
    folded = FoldedMeasure(tried.corpus, task, remembering.form).values(remembering)
    alone = LexicalMeasure(tried.corpus.texts, task, without.form).values(without)
    return np.concatenate([of_validation, folded - alone])
