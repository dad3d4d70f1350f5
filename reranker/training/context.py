"""The problem and validation that all model classes of a run share, what a class ends with, and the choice of ``auto``.

Training stops when the mean average precision of the validation queries stops improving.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Float64
from reranker.evaluation import DEPTH, InnerProducts, RankingTask, draw_tuples, evaluate, paired_test
from reranker.lexical.kernel import Judged, blended_average_precision
from reranker.models.model_classes import AUTO, MODEL_CLASSES
from reranker.models.scorers import DocumentForm, query_vectors
from reranker.progress import Progress, Say, TitledProgress
from reranker.text.rows import row_of
from reranker.training.config import Schedule, TrainConfig, kept_settings
from reranker.training.cores import mb_of_run
from reranker.training.problem import Problem, QuerySet, TwoRows, cut_to_keywords
from reranker.training.reading import TrainingCorpus
from reranker.training.trainer import SHORT, NegativeMiner, TrainingCheckpoint, TrainResult, checkpoint_of
from reranker.training.training_set import Split

MAX_QUERIES = 1_000
MAX_DOCUMENTS = 20_000
N_BEST = 100
"""Documents of the highest lexical score among which scores are compared."""
VALIDATION_WORDS = 5
"""Words of a validation query where training mixes documents and 1 to 10 words."""


class Validator:
    """Average precision of any model on a ranking task. The lexical part of the scores is computed once.

    At most 1,000 queries are sampled. A pool of more than 20,000 documents is reduced to the judged ones and a random
    sample of the others, so that the lexical scores take at most 80 MB.

    Parameters
    ----------
    task : RankingTask
        Queries, pool and grades.
    queries, documents : TwoRows
        Rows of the task's queries and documents, in its order.
    identity : float
        a, the weight of q.d.
    rng : numpy.random.Generator
        Draws the samples.
    judged_only : bool
        Rank only the documents that have a grade for the query.
    is_short : bool
        The queries are short: they use the U of short queries, if the model has one.
    given : array, optional
        What the vector field stores of each document, (n_documents, K) float32, in the task's order.

    Attributes
    ----------
    queries, documents : scipy.sparse.csr_matrix
        The rows of the sampled queries and documents that U and V read.
    given : array or None
        The given vectors of the sampled documents.
    """

    def __init__(
        self,
        task: RankingTask,
        queries: TwoRows,
        documents: TwoRows,
        identity: float,
        rng: np.random.Generator,
        judged_only: bool = False,
        is_short: bool = False,
        given: Float32 | None = None,
    ) -> None:
        self.is_short = is_short
        self.task, rows, columns = task.sample(rng, MAX_QUERIES, MAX_DOCUMENTS)
        task, self.queries, self.documents = self.task, queries.learned[rows], documents.learned[columns]
        self.given = None if given is None else given[columns]
        self._identity = np.float32(identity)
        lexical = InnerProducts(query_rows=queries.lexical[rows], document_rows=documents.lexical[columns])
        self._lexical = lexical.block(0, len(task.query_ids))
        relevant = task.relevant()
        left_out = task.excluded
        if judged_only:
            unknown = np.ones(task.grades.shape, dtype=bool)
            unknown[row_of(task.grades), task.grades.indices] = False
            left_out = sp.csr_matrix(unknown)
            self.task = replace(task, excluded=left_out)
        self._judged = Judged(relevant.indptr, relevant.indices, left_out.indptr, left_out.indices)

    def values(
        self, q_vectors: Float32, d_vectors: Float32, scales: Sequence[float] = (1.0,), identity: float | None = None
    ) -> Float64:
        """Return the AP of each query by scale * (query vector).(document vector) + a q.d.

        The result is (n_scales, n_queries) float64. The vectors, (n, N) float32, are of ``queries`` and ``documents``;
        ``identity`` replaces a.
        """
        a = self._identity if identity is None else np.float32(identity)
        learned = q_vectors @ d_vectors.T
        return np.stack(
            [
                blended_average_precision(learned, self._lexical, np.float32(scale), a, self._judged, DEPTH)
                for scale in scales
            ]
        )

    def values_with(self, added: Float32, identity: float) -> Float64:
        """Return the AP of each query, (n_queries,) float64, by ``added``, (n_queries, n_documents), + identity q.d."""
        one, a = np.float32(1), np.float32(identity)
        values: Float64 = blended_average_precision(added, self._lexical, one, a, self._judged, DEPTH)
        return values

    def spread(self, added: Float32, identity: float) -> float:
        """Return `spread_of` of identity q.d and ``added``, (n_queries, n_documents)."""
        return identity * spread_of(self._lexical, added)

    def measured(self, added: Float32, identity: float) -> dict[str, Float64]:
        """Return AP and nDCG@10 of each query, both (n_queries,) float64, by scores as in `values_with`."""
        scores = added + np.float32(identity) * self._lexical
        no_tuples = draw_tuples(self.task, np.random.default_rng(0), n_tuples=0)
        gains = evaluate(self.task, KnownScores(scores), no_tuples, ("nDCG@10",), depth=10)
        return {"AP": self.values_with(added, identity), **gains.values}

    @property
    def lexical(self) -> Float64:
        """AP of each query by q.d only, (n_queries,) float64."""
        nothing = np.zeros_like(self._lexical)
        one = np.float32(1)
        values: Float64 = blended_average_precision(nothing, self._lexical, one, one, self._judged, DEPTH)
        return values


def spread_of(lexical: Float32, added: Float32) -> float:
    """Return the ratio of two standard deviations among the best documents of a query, the median of the queries.

    They are those of ``lexical`` and of ``added``, both (n_queries, n_documents), over the `N_BEST` documents of the
    highest lexical score above 0. The ratio is 0 if no query has such documents.
    """
    ratios = []
    for first, other in zip(lexical, added, strict=True):
        best = np.argpartition(-first, min(N_BEST, len(first) - 1))[:N_BEST]
        best = best[first[best] > 0]
        if len(best) > 1 and other[best].std() > 0:
            ratios.append(float(first[best].std() / other[best].std()))
    return float(np.median(ratios)) if ratios else 0.0


class KnownScores(NamedTuple):
    """Scores that are there already, as `evaluate` asks for them."""

    values: Float32

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of queries and documents."""
        return self.values.shape[0], self.values.shape[1]

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of the queries from ``start`` to ``stop``, (n, n_documents) float32."""
        return self.values[start:stop]


def values_by(
    validators: Sequence[Validator],
    U: Float32,
    documents: DocumentForm,
    scales: Sequence[float] = (1.0,),
    identity: float | None = None,
) -> list[Float64]:
    """Return the AP of each query of each validator by a model's tables; arguments as in `Validator.values`."""
    return [
        validator.values(
            query_vectors(documents.name, U, validator.queries),
            documents.vectors(validator.documents),
            scales,
            identity,
        )
        for validator in validators
    ]


def validators_of(
    split: Split,
    data: TrainingCorpus,
    queries: QuerySet,
    documents: TwoRows,
    schedule: Schedule,
    rng: np.random.Generator,
    given: Float32 | None = None,
) -> list[Validator]:
    """Return one validator for each kind of query that the model is trained on: whole queries, keyword queries.

    ``given`` is what the vector field stores of each document of the corpus, (n_documents, K) float32.
    """
    are_links = split.valid.texts is None
    known = split.train.links() if are_links else ()
    task = split.valid.task(split.pool, known, set(data.query_row_of) if are_links else ())
    rows = queries.rows.part(np.array([queries.row_of[query] for query in task.query_ids], np.int64))
    places = np.array([data.row_of[document] for document in task.document_ids], np.int64)
    pool, of_pool = documents.part(places), None if given is None else given[places]
    share = schedule.keyword_share if are_links else 0.0
    kinds = []
    if share < 1:
        kinds.append((rows, False))
    if share > 0:
        kinds.append((cut_to_keywords(rows, keywords_of(schedule), rng), share < 1))
    return [
        Validator(task, asked, pool, schedule.identity_scale, rng, split.valid.judged_only, is_short, of_pool)
        for asked, is_short in kinds
    ]


def keywords_of(schedule: Schedule) -> int:
    """Return how many words a keyword query of validation has."""
    return VALIDATION_WORDS if schedule.keyword_share < 1 else (schedule.keyword_min + schedule.keyword_max) // 2


SCALES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.125, 1.4, 2.0, 2.8, 0.0)
"""Weights of the learned part that are tried on validation; with 0 only the lexical score counts."""
LEVEL: Final = 0.01
RULE: Final = f"the fewest parameters among those not worse than the best at p < {LEVEL:g} (paired t-test of AP)"


class ShortQueries(NamedTuple):
    """The query side for short queries."""

    U: Float32
    """(n_rows, N) float32, as it is served."""
    scale: float
    """Weight of the learned part that validation chose."""


@dataclass(frozen=True, eq=False)
class TrainedParameters:
    """A trained model class."""

    name: str
    """Name of the class."""
    U: Float32
    """(n_rows, N) float32: query side, as it is served."""
    V: Float32
    """(n_rows, N) float32: document side, as it is served; the same array as U where they are tied."""
    result: TrainResult
    """The learning curve; its U and V are in the scale of the margin."""
    Y: Float32 | None = None
    """(n_rows, N) float32: the second table of document forms that have one."""
    identity: float = 1.0
    """a, the weight of q.d in the model that is served."""
    scale: float = 1.0
    """Weight of the learned part that validation chose."""
    more_epochs: int = 0
    """Epochs of a second part of training that starts where ``result`` ended."""
    values: Float64 = field(default_factory=lambda: np.empty(0))
    """(n,) float64: AP of each validation query, validator after validator; empty without validation."""
    seconds: float = 0.0
    """Time that the training took."""
    short: ShortQueries | None = None
    """The query side for short queries, if there is one."""

    @property
    def documents(self) -> DocumentForm:
        """The document side, in the form of its class."""
        return DocumentForm(MODEL_CLASSES[self.name].form, self.V, self.Y)

    @property
    def n_parameters(self) -> int:
        """Number of learned parameters."""
        tables = (self.U, *(() if self.U is self.V else (self.V,)), *(() if self.Y is None else (self.Y,)))
        return sum(int(table.size) for table in tables)

    @property
    def has_learned(self) -> bool:
        """False if validation preferred q.d only: another run on everything would change nothing."""
        return self.scale > 0 and (self.result.best_epoch > 0 or self.more_epochs > 0)

    def values_by(self, validators: Sequence[Validator]) -> Float64:
        """Return AP of each query of all validators, (n,) float64."""
        parts = [np.empty(0)]
        for validator in validators:
            U = self.short.U if validator.is_short and self.short is not None else self.U
            parts.append(values_by([validator], U, self.documents, identity=self.identity)[0][0])
        return np.concatenate(parts)


@dataclass(eq=False)
class TrainingContext:
    """One problem, ready to be learned by any class."""

    config: TrainConfig
    schedule: Schedule
    problem: Problem
    nearest: NegativeMiner | None
    """Finds hard negatives; None: they are not used."""
    validators: list[Validator]
    """Validation that a class stops by; empty when all the preferences are trained on."""
    rng: np.random.Generator
    """Never drawn from: each class works with a copy, so that it does not depend on the classes tried before."""
    start: Callable[[bool, Schedule], tuple[Float32, Float32]]
    """Returns U and V before the first step, given whether they are tied, and the schedule."""
    n_words: int
    """D, the size of the vocabulary; the most frequent words come first."""
    fingerprint: Mapping[str, Any]
    """Settings and data, except the schedule, that a checkpoint must agree with."""
    checkpoint: Path | None
    """Folder for the state of the run; None: the state is not kept."""
    say: Say
    progress: TitledProgress
    short_validators: Sequence[Validator] = ()
    """Validation of the U of short queries, where it is learned separately."""
    done: dict[str, TrainedParameters] = field(default_factory=dict)
    """Classes that have been learned."""
    finished: TrainResult | None = None
    """End of the run of the race that is the training of U and V itself; None: they are still to be trained."""

    def learn(self, name: str, first: TrainedParameters | None = None) -> TrainedParameters:
        """Return a class with its validation values and time; it is trained at the first call only.

        Given the ``first`` run, the class is trained for as many epochs, on all the preferences, with its weights.
        """
        if name not in self.done:
            started = time.perf_counter()
            learned = MODEL_CLASSES[name].load_fit()(self, first)
            values, seconds = learned.values_by(self.validators), time.perf_counter() - started
            self.done[name] = replace(learned, values=values, seconds=seconds)
        return self.done[name]

    @property
    def n_rows(self) -> int:
        """Number of words with learned rows."""
        return self.n_words if self.config.max_rows is None else min(self.config.max_rows, self.n_words)

    @property
    def mb_of_run(self) -> float:
        """Memory of the tables of a run, MiB."""
        return mb_of_run(len(self.problem.documents.indptr) - 1, self.n_rows, self.config.dim)

    def fresh_rng(self) -> np.random.Generator:
        """Return a copy of the generator, in its first state."""
        return copy.deepcopy(self.rng)

    def best_scale(
        self, U: Float32, documents: DocumentForm, identity: float, validators: Sequence[Validator] | None = None
    ) -> tuple[float, float]:
        """Return the highest validation MAP over `SCALES` of the learned part, and its scale.

        Among equals the first scale is returned. ``validators`` replace the context's. Without q.d (``identity`` 0) the
        scale is 1. If short queries have a U of their own, they have a scale of their own as well: MAP is then the mean
        over the kinds of queries, each at its best scale, and the scale is that of the first kind, the whole queries.
        """
        scales = SCALES if identity else (1.0,)
        values = values_by(self.validators if validators is None else validators, U, documents, scales, identity)
        maps = np.stack([of_queries.mean(axis=1) for of_queries in values])
        if not self.schedule.short_apart:
            maps = maps.mean(axis=0, keepdims=True)
        return float(maps.max(axis=1).mean()), scales[int(np.argmax(maps[0]))]

    def checkpoint_of(self, name: str) -> TrainingCheckpoint | None:
        """Return the checkpoint of a class; None: the state is not kept."""
        if self.checkpoint is None:
            return None
        # An earlier version wrote states of short queries with one stream of random numbers, not one for each half.
        settings = {"schedule": kept_settings(self.schedule), "class": name, "halves": name == SHORT}
        return TrainingCheckpoint(checkpoint_of(self.checkpoint, name), {**self.fingerprint, **settings})

    def progress_of(self, name: str) -> Progress:
        """Return the progress callback of a class."""
        title = "training" if name == self.config.learned_class else f"training {name}"
        return partial(self.progress, title)


def choose(context: TrainingContext) -> tuple[TrainedParameters, dict[str, Any]]:
    """Return the class that ``auto`` chooses, and the record of the choice for the manifest, as JSON.

    The record holds no times, so that equal runs give equal bytes. Each class makes at most as many passes over the
    preferences as the schedule has epochs. ``cubic`` starts from the end of ``low_rank``; ``s2net`` reads as many pairs
    of a query and a document.
    """
    tried = [context.learn(name) for name in MODEL_CLASSES]
    chosen, why = simplest(tried)
    first = tried[0]
    context.say(f"{'class':<10} {'MAP':>6} {'parameters':>12} {'seconds':>8} {'- ' + first.name:>9} {'p':>8}")
    rows = []
    for each in tried:
        test = paired_test(each.values, first.values)
        row = {
            "class": each.name,
            "map": float(each.values.mean()),
            "parameters": each.n_parameters,
            "difference": test.difference,
            "p": test.p_t_test,
        }
        rows.append(row)
        against_first = f"{row['difference']:>+9.4f} {row['p']:>8.2g}" if each is not first else ""
        line = f"{each.name:<10} {row['map']:>6.4f} {each.n_parameters:>12,} {each.seconds:>8.1f} {against_first}"
        context.say(line.rstrip())
    context.say(why)
    return chosen, {"tried": rows, "chosen": chosen.name, "why": why, "rule": RULE}


def simplest(tried: Sequence[TrainedParameters]) -> tuple[TrainedParameters, str]:
    """Return the class of the fewest parameters that is not significantly worse than the best, and why."""
    best = max(tried, key=lambda each: each.values.mean())
    for each in sorted(tried, key=lambda each: each.n_parameters):
        test = paired_test(each.values, best.values)
        if each is best:
            break
        if test.p_t_test >= LEVEL:
            return each, (
                f"{AUTO} takes {each.name}: {test.difference:+.4f} MAP against the best, {best.name}, is not "
                f"significant (p = {test.p_t_test:.3f}), and it has fewer parameters. Rule: {RULE}."
            )
    return best, (f"{AUTO} takes {best.name}: the best, and every class with fewer parameters is worse. Rule: {RULE}.")
