"""The papers' plain SGD: one random tuple a step, a constant rate, early stopping on validation (spec 2.1)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.errors import ConfigError, InputError, TrainingError
from reranker.kernels.plain_sgd_types import Triples
from reranker.kernels.sgd_types import Rows
from reranker.models.base import Scorer
from reranker.models.composition import Mapped
from reranker.models.feature_map import identity_map
from reranker.training.plain_learners import Learner, start_learner
from reranker.training.plain_shapes import PlainShape
from reranker.training.plain_tuples import PlainData, Sampler, TripleSampler, cut_to_keywords

_CHUNK = 20_000
Validate = Callable[[Scorer], float]


class PlainReport(NamedTuple):
    """How training stands: ``violations`` is the share of the last steps that had a positive hinge.

    ``loss`` is their mean hinge, over all of the last steps; ``validation`` is NaN without a validation.
    """

    step: int
    n_steps: int
    violations: float
    loss: float
    validation: float


def fit_plain(  # noqa: PLR0913 - one keyword a setting of the papers
    shape: str | PlainShape,
    data: PlainData,
    *,
    n_dims: int = 100,
    rate: float = 0.1,
    n_steps: int = 1_000_000,
    init_std: float = 1.0,
    rng: np.random.Generator,
    validate: Validate | None = None,
    every: int = 100_000,
    patience: int = 5,
    progress: Callable[[PlainReport], None] | None = None,
    start: Scorer | None = None,
    sampler: Sampler | None = None,
) -> Scorer:
    """Return the scorer learned by plain SGD on max(0, 1 - f(q, d+) + f(q, d-)).

    Each step draws a tuple (a link, uniformly; a negative, uniformly among documents not related to the query) and,
    where the hinge is positive, moves all parameters by ``rate`` times the gradient, from their old values. No decay.

    Parameters
    ----------
    shape : str or PlainShape
        What to learn: a name of `reranker.training.plain_shapes.SHAPES`, or one with settings.
    data : PlainData
        Texts and links.
    n_dims : int
        N of embeddings.
    rate : float
        lambda > 0, constant.
    n_steps : int
        Most steps.
    init_std : float
        Embeddings start as N(0, init_std): 1 as printed; 1 / sqrt(N) or less keeps q.d audible at the start (A10).
    rng : Generator
        Draws the start and the tuples; the same generator state gives the same scorer.
    validate : callable, optional
        A value of a scorer to be made small (rank loss). With it the best scorer seen is returned, the start included;
        without it the last one.
    every : int
        Steps between two validations (or reports).
    patience : int
        Stop after so many validations in a row without a new best.
    progress : callable, optional
        Called after each ``every`` steps.
    start : Scorer, optional
        Parameters to start from, see `start_learner`.
    sampler : Sampler, optional
        Where tuples come from: a `PreferenceSampler` of judged or clicked pairs; the links of ``data`` if not given.

    Returns
    -------
    Scorer
        Over the rows of ``data``; a `Mapped` one where the data has feature maps.

    Raises
    ------
    ConfigError
        If a setting is not legal.
    TrainingError
        If no tuple can be drawn, or the parameters diverge.

    Notes
    -----
    Source: spec 2.1 to 2.5.
    """
    if not (rate > 0 and math.isfinite(rate)) or n_steps < 1 or every < 1 or patience < 1:
        raise ConfigError(
            f"rate {rate}, n_steps {n_steps}, every {every}, patience {patience} are not legal: all must be above 0"
        )
    chosen = PlainShape(shape) if isinstance(shape, str) else shape
    learner = start_learner(chosen, data.widths, n_dims, init_std, rng, start)
    run = _Run(data, learner, rate, rng, sampler or TripleSampler(data))
    best = _Best(run, validate)
    while run.step < n_steps and best.waited < patience:
        steps = min(every, n_steps - run.step)
        active, hinges = run.advance(steps)
        value = best.offer()
        if progress is not None:
            progress(PlainReport(run.step, n_steps, active / steps, hinges / steps, value))
    return best.scorer()


class _Run:
    """Steps of one learner over one data set."""

    def __init__(
        self, data: PlainData, learner: Learner, rate: float, rng: np.random.Generator, sampler: Sampler
    ) -> None:
        self.learner = learner
        self.step = 0
        self._data, self._rate, self._rng = data, rate, rng
        self._sampler = sampler
        self._documents = _kernel_rows(data.document_features())
        self._queries = None if data.keywords is not None else _kernel_rows(data.query_features(data.q_rows))

    def advance(self, n_steps: int) -> tuple[float, float]:
        """Make steps; return how many were active, and the sum of their hinges."""
        stats = np.zeros(2)
        for start in range(0, n_steps, _CHUNK):
            triples = self._sampler.draw(min(_CHUNK, n_steps - start), self._rng)
            queries = self._queries
            if queries is None:
                queries, triples = self._cut(triples)
            stats += self.learner.steps(queries, self._documents, triples, self._rate)
        self.step += n_steps
        if not np.isfinite(stats).all():
            raise TrainingError(
                f"training diverged within {self.step:,} steps at the rate {self._rate}: lower it, or init_std"
            )
        return float(stats[0]), float(stats[1])

    def scorer(self) -> Scorer:
        """Return the scorer of the parameters as they are, sharing their memory."""
        try:
            return self.learner.scorer()
        except InputError as error:
            raise TrainingError(f"training diverged at the rate {self._rate}: give a smaller one ({error})") from error

    def over_rows(self, scorer: Scorer) -> Scorer:
        """Return a scorer over the rows of the data, before their feature maps."""
        data = self._data
        if data.query_map is None and data.document_map is None:
            return scorer
        return Mapped(
            scorer,
            data.query_map or identity_map(data.q_rows.shape[1]),
            data.document_map or identity_map(data.d_rows.shape[1]),
        )

    def _cut(self, triples: Triples) -> tuple[Rows, Triples]:
        """Return the tuples' queries, each cut to keywords anew, and the tuples with their new row numbers."""
        rows = cut_to_keywords(self._data.q_rows[triples.query], self._data.keywords or 1, self._rng)
        numbered = triples._replace(query=np.arange(len(triples.query)))
        return _kernel_rows(self._data.query_features(rows)), numbered


class _Best:
    """The scorer of the smallest validation value so far, the start included; the last one without a validation."""

    def __init__(self, run: _Run, validate: Validate | None) -> None:
        self.waited = 0
        self._run, self._validate = run, validate
        self._scorer: Scorer | None = None
        self._value = math.inf
        self.offer()

    def offer(self) -> float:
        """Validate the parameters as they are, keep a copy if they are the best, and return the value (or NaN)."""
        if self._validate is None:
            return math.nan
        current = self._run.scorer()
        value = float(self._validate(self._run.over_rows(current)))
        self.waited += 1
        if self._scorer is None or value < self._value:
            self._scorer, self._value, self.waited = copy.deepcopy(current), value, 0
        return value

    def scorer(self) -> Scorer:
        """Return the best scorer."""
        return self._run.over_rows(self._run.scorer() if self._scorer is None else self._scorer)


def _kernel_rows(rows: sp.csr_matrix) -> Rows:
    """Return rows as the kernels take them: words ascend in each."""
    rows = rows if rows.has_sorted_indices else rows.sorted_indices()
    return Rows(
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.int32, copy=False),
        rows.data.astype(np.float32, copy=False),
    )
