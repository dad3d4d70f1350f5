"""The stage that tunes a lexical score whose documents remember what they are relevant to.

Where queries are texts, documents remember the training queries, in the lexical row of all queries. Where documents are
the queries, they remember the pages that link to them, in a lexical row for short queries, which other queries read
with less weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float64, numbers_of
from reranker.cores import on_cores
from reranker.evaluation import standard_error
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus, RememberedQueries
from reranker.lexical.memory import QueryMemory
from reranker.lexical.tuning import MAX_QUERIES, LexicalTask, TunedLexical
from reranker.models.ranking_model import lexical_rows_of
from reranker.text.rows import combine, with_data
from reranker.text.tfidf import count_rows
from reranker.training.context import Validator, validators_of, values_by
from reranker.training.learning import LearnedPart, PreparedRows, document_rows, kept_memory
from reranker.training.lexical_choice import LexicalChoice, searched, tuning_tasks, with_factor
from reranker.training.problem import TwoRows, query_set
from reranker.training.reading import TrainingCorpus
from reranker.training.run import Division, TrainingRun
from reranker.training.training_set import Split, TrainingSet

FACTORS: Final = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0, 32.0, 64.0)
"""Factors of rows with a memory that are tried with U and V learned without one: they need less of it."""
MOST_WORDS: Final = 512
"""Words of the linking pages that a document remembers at most.

With all of them (350 on average), 5 words of a page find 4 % more on cppdocs, and 10 words 5 % less.
"""
PAGE_WEIGHTS: Final = (0.1, 0.0, 0.05, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Weights of the memory of links that are tried for whole pages, relative to short queries.

The first one is used with fewer than `FEW_QUERIES` validation queries.
"""
FEW_QUERIES: Final = 100
"""Validation queries below which the best factor on them is mostly chance."""


@dataclass(frozen=True, eq=False)
class MemoryTrial:
    """The lexical part with a memory of the training queries, tuned and ready to be compared with the one without."""

    why_not: str
    """Why no memory was tried; empty: it was."""
    settings: LexicalSettings | None = None
    """Settings of rows with a memory, multiplied by ``factor``; None: no memory was tried.

    Where documents are the queries, these are the rows for short queries.
    """
    memory: QueryMemory | None = None
    """The memory of the training side, or the one kept with the document side of a model to start from."""
    factor: float | None = None
    """Factor of the rows with a memory; None: none was tried, or it came with the model to start from."""
    tuned: TunedLexical | None = None
    """The settings before the factor."""
    page_weight: float = 0.0
    """Weight of the memory for queries that are not short, before the factor; 0 where queries are texts."""

    @property
    def is_kept(self) -> bool:
        """True if the memory comes with the document side of a model to start from: there is no choice."""
        return self.memory is not None and self.tuned is None


class TunedMemory(NamedTuple):
    """The lexical score with a memory of the training side."""

    tuned: TunedLexical
    memory: QueryMemory


def tuned_memory(run: TrainingRun, lexical: LexicalChoice, division: Division) -> TunedMemory | str:
    """Return the lexical score with a memory of the training queries, or the reason why there is none.

    The settings are tuned on the training queries, each scored among documents whose memory excludes it. Where
    documents are the queries, the queries are a few words of each.
    """
    why_not = _why_not(run, lexical, division)
    if why_not:
        return why_not
    train = division.split.train
    tuned = _tuned(run, lexical, division, train, "")
    if not tuned.settings.field_weights[-1]:
        return "the tuned weight of the memory is 0"
    return TunedMemory(tuned, memory_of(lexical.data, train))


def tried_memory(
    run: TrainingRun,
    lexical: LexicalChoice,
    division: Division,
    rows: PreparedRows,
    learned: LearnedPart,
    tuning: Callable[[], TunedMemory | str],
) -> MemoryTrial:
    """Return the lexical part with a memory, given what returns the result of `tuned_memory`.

    The rows are multiplied by the best of `FACTORS`: U and V were learned without a memory, stay as they are, and weigh
    less in a score with one. With fewer than `FEW_QUERIES` validation queries the factor is the `heaviest`. Where
    documents are the queries, the learned part is that of short queries.
    """
    known = tuning()
    if isinstance(known, str):
        return MemoryTrial(known, memory=kept_memory(run))
    data, train, (tuned, memory) = lexical.data, division.split.train, known
    others = rows_with(run, data, tuned.settings, memory, division.split, rows)
    parameters, schedule, U = learned.parameters, learned.schedule, learned.parameters.U
    if train.texts is None:
        schedule = replace(schedule, keyword_share=1.0)
        U = U if parameters.short is None else parameters.short.U
    on, rng = (division.choosing, data, others.queries, others.documents), run.streams.named("validation")
    validators = validators_of(*on, schedule, rng)
    scales = [1 / factor for factor in FACTORS]
    parts = values_by(validators, U, parameters.V, scales, 1.0)
    values = np.concatenate(parts, axis=1)
    best = heaviest(values) if values.shape[1] < FEW_QUERIES else int(np.argmax(values.mean(axis=1)))
    settings = with_factor(tuned.settings, FACTORS[best])
    page_weight = 0.0 if train.texts is not None else _page_weight(run, division, lexical, rows, learned, others)
    return MemoryTrial("", settings, memory, FACTORS[best], tuned, page_weight)


def _page_weight(
    run: TrainingRun,
    division: Division,
    lexical: LexicalChoice,
    rows: PreparedRows,
    learned: LearnedPart,
    others: PreparedRows,
) -> float:
    """Return the weight of `PAGE_WEIGHTS` of the highest validation MAP of whole pages.

    Their rows and the learned part stay as they are; ``others`` are the rows of documents with the memory.
    """
    schedule, parameters, data = replace(learned.schedule, keyword_share=0.0), learned.parameters, lexical.data

    def pages(documents: TwoRows) -> Validator:
        on = (division.choosing, data, rows.queries, documents)
        return validators_of(*on, schedule, run.streams.named("validation"))[0]

    of_pages, of_memory = pages(rows.documents), pages(others.documents)
    if len(of_pages.lexical_scores) < FEW_QUERIES:
        return PAGE_WEIGHTS[0]
    known = of_pages.lexical_scores + of_pages.learned_scores(parameters.U, parameters.V)
    values = on_cores([partial(of_memory.values_with, known, weight) for weight in PAGE_WEIGHTS])
    return PAGE_WEIGHTS[int(np.argmax([float(each.mean()) for each in values]))]


def rows_with(
    run: TrainingRun,
    data: TrainingCorpus,
    settings: LexicalSettings | None,
    memory: QueryMemory | None,
    split: Split,
    rows: PreparedRows,
) -> PreparedRows:
    """Return the rows of all documents, and of the validation queries of a split, by other lexical settings."""
    lexical_rows = lexical_rows_of(settings, data.tfidf.vocabulary, memory)
    documents = document_rows(run, data, lexical_rows, memory)
    asked = query_set(data, [split.valid], lexical_rows)
    return replace(rows, lexical=lexical_rows, documents=documents, queries=asked.weighed(rows.word_weights))


def tuned_remembering_all(run: TrainingRun, lexical: LexicalChoice, division: Division) -> LexicalSettings:
    """Return the settings of rows with a memory, tuned again on all the queries."""
    return _tuned(run, lexical, division, run.evidence, " of all").settings


def retuned_memory(
    run: TrainingRun, lexical: LexicalChoice, division: Division, memory: MemoryTrial, evidence: TrainingSet
) -> MemoryTrial:
    """Return the lexical part with a memory, tuned again on other evidence, with the same factor."""
    tuned = _tuned(run, lexical, division, evidence, "")
    return replace(memory, settings=with_factor(tuned.settings, memory.factor), tuned=tuned)


def memory_of(data: TrainingCorpus, evidence: TrainingSet) -> QueryMemory:
    """Return the memory of the queries of some evidence."""
    rows = _remembered(data, evidence).rows(len(data.ids))
    return QueryMemory.of(data.ids, rows, data.counts)


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
    data, remembered = lexical.data, _remembered(lexical.data, evidence)
    folds, rng = (run.streams.named(f"memory {what}{which}") for what in ("folds", "tuning"))
    corpus = LexicalCorpus(data.counts)

    def tasks_of(corpus: LexicalCorpus) -> list[LexicalTask]:
        tasks = tuning_tasks(run, data, division, corpus, evidence)
        if evidence.texts is not None:
            return tasks
        # Only short queries. The memory is made only of the documents that these are ranked over.
        return [tasks[-1].sample(run.streams.named("memory sample"), 2 * MAX_QUERIES)]

    if evidence.texts is None:
        remembered = remembered.of_documents(tasks_of(corpus)[0].documents)
    corpus = corpus.remembering(remembered, folds)
    tasks = tasks_of(corpus)
    return searched(run, data, corpus, tasks, rng, forms=("bm25",), start=lexical.bm25)["bm25"]


def _remembered(data: TrainingCorpus, evidence: TrainingSet) -> RememberedQueries:
    texts = evidence.texts

    def counts_of(ids: Sequence[str]) -> sp.csr_matrix:
        if texts is not None:
            return count_rows(data.tfidf.vocabulary, data.analyzer.tokens([texts[query] for query in ids]))
        rows = numbers_of(ids, data.row_of)
        pages = combine([field[rows] for field in data.counts], [1.0] * len(data.counts))
        return with_data(pages, np.log2(1 + pages.data))  # else a long page counts for its frequent words only

    links, weights = evidence.links(), evidence.preferences.remembered
    if texts is not None:
        return RememberedQueries.of(links, weights, data.row_of, counts_of)
    known = (numbers_of(links.ids, data.row_of) >= 0)[links.source]
    remembered = RememberedQueries.of(links.part(known), weights[known], data.row_of, counts_of)
    return remembered._replace(most_words=MOST_WORDS)


def _why_not(run: TrainingRun, lexical: LexicalChoice, division: Division) -> str:
    """Return why no memory is tried; empty: it is."""
    if run.config.query_side_only or kept_memory(run) is not None:
        return "as in the model to start from"
    reasons = (
        (run.config.memory == "off", "as asked for"),
        (run.evidence.texts is None and not division.schedule.short_apart, "whole documents are the queries"),
        (run.evidence.texts is None and division.split.unseen_documents, "no page is known to link to new documents"),
        (lexical.settings is None, "the lexical part has no rows of its own for them"),
        (not division.split.train.preferences.remembered.any(), "all training queries have the weight 0 in a memory"),
        (lexical.bm25 is None, "no training query finds a document by its words"),
    )
    return next((why for holds, why in reasons if holds), "")
