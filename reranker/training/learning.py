"""The stages that learn U and V: the rows of a run, the training, and the second run on all the evidence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.accounts import LeftOut
from reranker.arrays import Float32
from reranker.lexical.bm25 import LexicalRows
from reranker.lexical.memory import QueryMemory
from reranker.models.ranking_model import lexical_counts, lexical_rows_of
from reranker.text.tfidf import learned_rows
from reranker.training.config import Schedule, kept_settings
from reranker.training.context import TrainedParameters, TrainingContext, Validator, validators_of
from reranker.training.lexical_choice import LexicalChoice, chosen_word_weights
from reranker.training.linear import fit_low_rank, warm_start
from reranker.training.problem import (
    Problem,
    QuerySet,
    TwoRows,
    build_problem,
    in_blocks,
    query_set,
    two_rows,
    unusable_part,
)
from reranker.training.reading import TrainingCorpus
from reranker.training.run import Division, TrainingRun
from reranker.training.trainer import NegativeMiner, digest, start_parameters
from reranker.training.training_set import TrainingSet


@dataclass(frozen=True, eq=False)
class PreparedRows:
    """The rows of all documents and queries of a run."""

    lexical: LexicalRows | None
    """Word counts to lexical rows; None: the lexical rows are those that U and V read."""
    documents: TwoRows
    queries: QuerySet
    """With the words of their lexical rows weighed."""
    word_weights: Float32 | None
    """(n_words,) float32: what the words of queries count; None: 1 each."""
    notes: tuple[str, ...]
    """Notes for the user."""


@dataclass(frozen=True, eq=False)
class LearnedPart:
    """Results of the training."""

    parameters: TrainedParameters
    schedule: Schedule
    left_out: tuple[LeftOut, ...]
    """Preferences that could not be used, by reason."""


def document_rows(
    run: TrainingRun, data: TrainingCorpus, rows: LexicalRows | None, memory: QueryMemory | None
) -> TwoRows:
    """Return the rows of all documents; the lexical ones with a memory if there is one."""
    weights = run.learned_weights
    fields = lexical_counts(memory, data.counts, data.ids)

    def rows_of(block: slice) -> TwoRows:
        counts: list[sp.csr_matrix] = [field[block] for field in fields]
        learned = learned_rows(data.tfidf, counts[: len(data.counts)], weights)
        return two_rows(learned, None if rows is None else rows.documents(counts))

    return in_blocks(len(data.ids), rows_of)


def mean_vector(learned: sp.csr_matrix, V: Float32, given: Float32 | None) -> Float32:
    """Return the mean of the stored vectors of documents, (N,) float32.

    ``learned`` are the documents' learned rows d', and ``given`` the stored part of their given vectors, (n, K).
    """
    known = learned.indices < len(V)
    sums = np.bincount(learned.indices[known], learned.data[known].astype(np.float64), minlength=len(V))
    parts = [sums @ V.astype(np.float64) / max(learned.shape[0], 1)]
    if given is not None:
        parts.append(given.mean(axis=0, dtype=np.float64))
    return np.concatenate(parts).astype(np.float32)


def prepared_rows(run: TrainingRun, lexical: LexicalChoice, division: Division) -> PreparedRows:
    """Return the rows that training and validation work on.

    With the document side of a model to start from its memory is kept: U is learned with the rows that it is served
    with.
    """
    data, split = lexical.data, division.split
    memory, settings = kept_memory(run), lexical.settings
    if run.base is not None and run.base.encoder.short_lexical is not None:
        is_short = run.evidence.texts is not None
        memory, settings = (memory, run.base.encoder.short_lexical) if is_short else (None, settings)
    rows = lexical_rows_of(settings, data.tfidf.vocabulary, memory)
    documents = document_rows(run, data, rows, memory)
    asked = query_set(data, [split.train, split.valid], rows)
    if run.base is not None:
        weights, notes = run.base.word_weights, tuple[str, ...]()
    else:
        weights, notes = chosen_word_weights(run, lexical, division, asked, documents)
    return PreparedRows(rows, documents, asked.weighed(weights), weights, notes)


def kept_memory(run: TrainingRun) -> QueryMemory | None:
    """Return the memory that stays with the document side of a model to start from; None: there is none.

    A memory of links stays as well if both sides are trained: later evidence need not contain these links.
    """
    if run.base is None:
        return None
    stays = run.config.query_side_only or run.base.encoder.short_lexical is not None
    return run.base.encoder.memory if stays else None


def learned_part(run: TrainingRun, data: TrainingCorpus, division: Division, rows: PreparedRows) -> LearnedPart:
    """Return U and V, trained on the training side until validation stops improving."""
    split, schedule, say = division.split, division.schedule, run.listener.say
    problem = _problem(run, data, division, rows.queries, rows.documents, split.train, split.held_out)
    left_out = unusable_part(data, rows.queries, run.evidence)
    for part in left_out:
        say(f"{part.count:,} of {run.evidence.n_given:,} {run.evidence.unit} not used: {part.reason}")
    rng = run.streams.named("validation")
    on = (division.choosing, data, rows.queries, rows.documents)
    validators = validators_of(*on, schedule, rng)
    short = validators_of(*on, replace(schedule, keyword_share=1.0), rng) if schedule.short_apart else []
    context = _context(run, data, division, problem, "training", validators=validators, short_validators=short)
    return LearnedPart(fit_low_rank(context), schedule, left_out)


def refitted(
    run: TrainingRun, data: TrainingCorpus, division: Division, rows: PreparedRows, first: LearnedPart
) -> TrainedParameters:
    """Return U and V trained again, on all the evidence, for the epochs that validation found best."""
    n_epochs = first.parameters.result.best_epoch
    run.listener.say(f"training once more on everything, for {n_epochs} {'epoch' if n_epochs == 1 else 'epochs'}")
    return trained_like(run, data, division, rows, first, run.evidence, "-all")


def trained_like(
    run: TrainingRun,
    data: TrainingCorpus,
    division: Division,
    rows: PreparedRows,
    first: LearnedPart,
    evidence: TrainingSet,
    suffix: str,
) -> TrainedParameters:
    """Return U and V trained on other evidence, with the settings, epochs and weights of the ``first`` run.

    ``suffix`` ends the name of the folder that keeps the state.
    """
    asked = query_set(data, [evidence], rows.lexical).weighed(rows.word_weights)
    problem = _problem(run, data, division, asked, rows.documents, evidence, ())
    again = replace(division, schedule=first.schedule)
    context = _context(run, data, again, problem, "refit", suffix=suffix)
    return fit_low_rank(context, first.parameters)


def _problem(
    run: TrainingRun,
    data: TrainingCorpus,
    division: Division,
    queries: QuerySet,
    documents: TwoRows,
    evidence: TrainingSet,
    held_out: Collection[str],
) -> Problem:
    """Return the arrays of a run; where new documents are asked for, what no preference names is no negative."""
    known = run.evidence.texts is not None or division.split.unseen_documents
    return build_problem(data, queries, documents, evidence, held_out, known_negatives=known)


def _context(
    run: TrainingRun,
    data: TrainingCorpus,
    division: Division,
    problem: Problem,
    stream: str,
    *,
    suffix: str = "",
    validators: Sequence[Validator] = (),
    short_validators: Sequence[Validator] = (),
) -> TrainingContext:
    """Return what a training run learns from; the folder of its state is the run's, with a ``suffix``."""
    checkpoint, fingerprint = None, {}
    if run.checkpoint is not None:
        checkpoint = run.checkpoint.with_name(run.checkpoint.name + suffix)
        fingerprint = _fingerprint(run, division, problem)
    n_words = len(data.tfidf.vocabulary)

    def start(schedule: Schedule) -> tuple[Float32, Float32]:
        return _start(run, n_words, schedule)

    return TrainingContext(
        run.config,
        division.schedule,
        problem,
        NegativeMiner(problem, run.streams.named("nearest")),
        list(validators),
        run.streams.named(stream),
        start,
        fingerprint,
        checkpoint,
        run.listener.say,
        run.listener.progress,
        short_validators,
    )


def _start(run: TrainingRun, n_words: int, schedule: Schedule) -> tuple[Float32, Float32]:
    """Return U and V before the first step; the second run on all the evidence starts from the same U."""
    if run.base is not None:
        return warm_start(run.base, schedule, run.evidence.texts is not None)
    rng = np.random.default_rng(run.config.seed + 1)
    return start_parameters(schedule, n_words, run.config.dim, rng)


def _fingerprint(run: TrainingRun, division: Division, problem: Problem) -> dict[str, Any]:
    """Return what a state of the run must agree in: settings, data and validation, as JSON."""
    arrays = (*problem.queries, *problem.documents, *problem.lexical, *problem.tuples, *problem.negatives)
    valid = division.split.valid
    judged = (f"{query}\t{better}\t{valid.grades.get(query)}" for query, better in valid.links())
    return {
        "config": kept_settings(run.config),
        "base": run.base.model_id if run.base else None,
        "words": problem.n_columns,
        "data": digest(arrays),
        "validation": digest(chain(judged, sorted(division.split.pool))),
        "judged_only": valid.judged_only,
    }
