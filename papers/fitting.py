"""How systems are fitted: plain SGD with rate and start chosen on validation, and small sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from papers.choosing import trained
from papers.plain_sgd import LOW_RANK, PlainData, PlainReport, PlainShape, fit_plain
from papers.system import Fitted, Job
from reranker.errors import ConfigError, TrainingError
from reranker.models.base import Scorer

STARTS = (0.1, 1.0)
"""Standard deviations of the embeddings' start: a small one, and the papers' (A10)."""
PROBE_SHARE = 10
"""Rate and start are chosen by fits of a tenth of the steps."""


@dataclass(frozen=True)
class PlainSystem:
    """Plain SGD of one shape, as a system fits it.

    Parameters
    ----------
    shape : callable
        Job -> what to learn.
    data : callable
        Job -> training links, mapped or not.
    view : str
        The view of queries and documents that it scores.
    starts : tuple of float
        Deviations of the start to try; of no effect on shapes without embeddings.
    finish : callable
        Job, scorer -> the system's scorer, and what was chosen for it.
    """

    shape: Callable[[Job], PlainShape]
    data: Callable[[Job], PlainData] = lambda job: job.study.plain_data()
    view: str = "rows"
    starts: tuple[float, ...] = STARTS
    finish: Callable[[Job, Scorer], tuple[Scorer, dict[str, Any]]] = lambda _, scorer: (scorer, {})

    def __call__(self, job: Job) -> Fitted:
        """Return the fitted system."""
        shape, data = self.shape(job), self.data(job)
        scorer, settings = tuned_plain(job, shape, data, view=self.view, starts=self.starts)
        finished, more = self.finish(job, scorer)
        return Fitted(finished, self.view, self.view, {**settings, **more})


def tuned_plain(
    job: Job,
    shape: PlainShape,
    data: PlainData,
    *,
    view: str = "rows",
    starts: Sequence[float] = STARTS,
    rates: Sequence[float] = (),
    steps: int | None = None,
) -> tuple[Scorer, dict[str, Any]]:
    """Return the scorer that plain SGD learns with the rate and the start that are best on validation.

    All pairs of them are tried with a tenth of the steps and the same tuples; the best is fitted with all steps, and
    stops early by the budget's patience. Where it diverges, the next best is.

    Parameters
    ----------
    job : Job
    shape : PlainShape
    data : PlainData
    view : str
        That the data's rows are of.
    starts, rates : sequence of float
        To try; the rates of the budget if none are given.
    steps : int, optional
        Most steps, if fewer than the budget's.
    """
    budget = job.budget
    n_steps = min(budget.n_steps, steps or budget.n_steps)
    tried = list(product(rates or budget.rates, starts if shape.name in LOW_RANK else (1.0,)))[: max(1, budget.grid)]
    seed = int(job.rng.integers(2**62))
    validate = job.validate(view, view)

    def fit(rate: float, start: float, n: int, what: str) -> tuple[Scorer, int]:
        seen = [0]

        def report(state: PlainReport) -> None:
            seen[0] = state.step
            job.progress(what, state.step, n)

        scorer = fit_plain(
            shape,
            data,
            n_dims=budget.n_dims,
            rate=rate,
            n_steps=n,
            init_std=start,
            rng=np.random.default_rng(seed),
            validate=validate,
            every=min(budget.every, n),
            patience=budget.patience,
            progress=report,
        )
        return scorer, seen[0]

    def probe(rate: float, start: float) -> float:
        try:
            return validate(
                fit(rate, start, max(1, n_steps // PROBE_SHARE), f"trying rate {rate:g}, start {start:g}")[0]
            )
        except TrainingError:  # it diverged: others may not
            return math.inf

    losses = [probe(*one) if len(tried) > 1 else 0.0 for one in tried]
    failures: list[TrainingError] = []
    order = [tried[place] for place in np.argsort(losses, kind="stable")]
    found = next(trained(order, lambda one: fit(one[0], one[1], n_steps, ""), failures), None)
    if found is None:
        raise failures[0]
    (rate, start), (scorer, done) = found
    settings: dict[str, Any] = {"rate": rate, "steps": done, "most_steps": n_steps}
    if shape.name in LOW_RANK:
        settings |= {"dims": budget.n_dims, "start": start}
    settings["validation"] = validate(scorer)
    return scorer, settings


def best_of(
    candidates: Iterable[tuple[dict[str, Any], Scorer]], loss: Callable[[Scorer], float]
) -> tuple[Scorer, dict[str, Any]]:
    """Return the scorer with the least loss and its settings; of equals the first.

    Raises
    ------
    ConfigError
        If there is none.
    """
    best: tuple[float, Scorer, dict[str, Any]] | None = None
    for settings, scorer in candidates:
        value = loss(scorer)
        if best is None or value < best[0]:
            best = value, scorer, settings
    if best is None:
        raise ConfigError("there is no setting to try: give a grid of at least 1")
    return best[1], {**best[2], "validation": best[0]}


def spread(low: float, high: float, n: int) -> tuple[float, ...]:
    """Return at most ``n`` values from low to high, both of them among them, evenly spaced and rounded."""
    return tuple(round(float(value), 4) for value in np.linspace(low, high, max(2, n)))
