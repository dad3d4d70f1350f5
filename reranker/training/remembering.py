"""The stage that tunes a lexical score whose documents remember the training queries that they are relevant to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from reranker.arrays import Float64
from reranker.evaluation import standard_error
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus, RememberedQueries
from reranker.lexical.memory import QueryMemory
from reranker.lexical.tuning import TunedLexical
from reranker.models.ranking_model import lexical_rows_of
from reranker.text.tfidf import count_rows
from reranker.training.context import validators_of, values_by
from reranker.training.learning import LearnedPart, PreparedRows, document_rows, kept_memory
from reranker.training.lexical_choice import LexicalChoice, searched, tuning_tasks, with_factor
from reranker.training.problem import query_set
from reranker.training.reading import AnalyzedDocuments
from reranker.training.run import Division, TrainingRun
from reranker.training.training_set import TrainingSet

FACTORS: Final = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0, 32.0)
"""Factors of rows with a memory that are tried with U and V learned without one: they need less of it."""
FEW_QUERIES: Final = 100
"""Validation queries below which the best factor on them is mostly chance."""


@dataclass(frozen=True, eq=False)
class MemoryTrial:
    """The lexical part with a memory of the training queries, tuned and ready to be compared with the one without."""

    why_not: str
    """Why no memory was tried; empty: it was."""
    settings: LexicalSettings | None = None
    """Settings of rows with a memory, multiplied by ``factor``; None: no memory was tried."""
    memory: QueryMemory | None = None
    """The memory of the training side, or the one kept with the document side of a model to start from."""
    factor: float | None = None
    """Factor of the rows with a memory; None: none was tried, or it came with the model to start from."""
    tuned: TunedLexical | None = None
    """The settings before the factor, as the baseline with a memory has them."""
    lexical_map: float = 0.0
    """Validation MAP by the lexical score with the memory."""
    valid_map: float = 0.0
    """Validation MAP by the model with the memory."""

    @property
    def is_kept(self) -> bool:
        """True if the memory comes with the document side of a model to start from: there is no choice."""
        return self.memory is not None and self.tuned is None


def tried_memory(
    run: TrainingRun, lexical: LexicalChoice, division: Division, rows: PreparedRows, learned: LearnedPart
) -> MemoryTrial:
    """Return the lexical part with a memory of the training queries.

    The settings are tuned on the training queries, each scored among documents whose memory excludes it. The rows are
    multiplied by the best of `FACTORS`: U and V were learned without a memory, stay as they are, and weigh less in a
    score with one. With fewer than `FEW_QUERIES` validation queries the factor is the `heaviest`.
    """
    why_not = _why_not(run, lexical, division)
    if why_not:
        return MemoryTrial(why_not, memory=kept_memory(run))
    run.listener.say("tuning the lexical score with the training queries remembered")
    reading, train = lexical.reading, division.split.train
    tuned = _tuned(run, lexical, division, train, "")
    if not tuned.settings.field_weights[-1]:
        return MemoryTrial("the tuned weight of the memory is 0")
    memory = memory_of(reading, train)
    lexical_rows = lexical_rows_of(tuned.settings, reading.data.tfidf.vocabulary, memory)
    documents = document_rows(run, reading, lexical_rows, memory)
    asked = query_set(reading.data, [division.split.valid], reading.analyzer, lexical_rows)
    queries, rng = asked.weighed(rows.word_weights), run.streams.named("validation")
    validators = validators_of(division.choosing, reading.data, queries, documents, learned.schedule, rng)
    parameters, scales = learned.parameters, [1 / factor for factor in FACTORS]
    parts = values_by(validators, parameters.U, parameters.V, scales, 1.0)
    values = np.concatenate(parts, axis=1)
    best = heaviest(values) if values.shape[1] < FEW_QUERIES else int(np.argmax(values.mean(axis=1)))
    factor = FACTORS[best]
    lexical_map = float(np.mean([validator.lexical.mean() for validator in validators]))
    settings = with_factor(tuned.settings, factor)
    return MemoryTrial("", settings, memory, factor, tuned, lexical_map, float(values[best].mean()))


def tuned_remembering_all(run: TrainingRun, lexical: LexicalChoice, division: Division) -> LexicalSettings:
    """Return the settings of rows with a memory, tuned again on all the queries."""
    return _tuned(run, lexical, division, run.evidence, " of all").settings


def retuned_memory(
    run: TrainingRun, lexical: LexicalChoice, division: Division, memory: MemoryTrial, evidence: TrainingSet
) -> MemoryTrial:
    """Return the lexical part with a memory, tuned again on other evidence, with the same factor."""
    tuned = _tuned(run, lexical, division, evidence, "")
    return replace(memory, settings=with_factor(tuned.settings, memory.factor), tuned=tuned)


def memory_of(reading: AnalyzedDocuments, evidence: TrainingSet) -> QueryMemory:
    """Return the memory of the queries of some evidence."""
    rows = _remembered(reading, evidence).rows(len(reading.data.ids))
    return QueryMemory.of(reading.data.ids, rows, reading.data.counts)


def heaviest(values: Float64) -> int:
    """Return the last of the `FACTORS` whose AP, (n_factors, n_queries), is within a standard error of the best.

    U and V are learned from the queries that are remembered: on these they repeat what the memory says already.
    """
    behind = values[np.argmax(values.mean(axis=1))] - values
    return max(place for place, lost in enumerate(behind) if lost.mean() <= standard_error(lost))


def _tuned(
    run: TrainingRun, lexical: LexicalChoice, division: Division, evidence: TrainingSet, which: str
) -> TunedLexical:
    """Return BM25 with a memory, tuned by folds on the queries of some evidence; ``which`` ends the streams' names."""
    reading = lexical.reading
    folds, rng = (run.streams.named(f"memory {what}{which}") for what in ("folds", "tuning"))
    corpus = LexicalCorpus(reading.data.counts).remembering(_remembered(reading, evidence), folds)
    tasks = tuning_tasks(run, reading, division, corpus, evidence)
    return searched(run, reading, corpus, tasks, rng, forms=("bm25",), start=lexical.bm25)["bm25"]


def _remembered(reading: AnalyzedDocuments, evidence: TrainingSet) -> RememberedQueries:
    texts, vocabulary = evidence.texts or {}, reading.data.tfidf.vocabulary
    return RememberedQueries.of(
        evidence.links(),
        evidence.preferences.remembered,
        reading.data.row_of,
        lambda ids: count_rows(vocabulary, reading.analyzer.tokens([texts[query] for query in ids])),
    )


def _why_not(run: TrainingRun, lexical: LexicalChoice, division: Division) -> str:
    """Return why no memory is tried; empty: it is."""
    if run.config.query_side_only:
        return "as in the model to start from"
    reasons = (
        (run.config.memory == "off", "as asked for"),
        (run.evidence.texts is None, "the queries are documents"),
        (lexical.settings is None, "the lexical part has no rows of its own for them"),
        (not division.split.train.preferences.remembered.any(), "all training queries have the weight 0 in a memory"),
        (lexical.bm25 is None, "no training query finds a document by its words"),
    )
    return next((why for holds, why in reasons if holds), "")
