"""Fitting of systems: grid search on validation, plain SGD with a tuned rate and start, and parts shared by systems."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from papers.methods.projection import Projection
from papers.methods.projections import Mates
from papers.methods.s2net import GradedPairs, S2NetSettings, fit_s2net
from papers.methods.word_pairs import Mix
from papers.plain_sgd import LOW_RANK, PlainData, PlainShape, TripleSampler, fit_plain
from papers.registry import KEPT_ITERATION, KEPT_STEP, FitInput, Fitted
from papers.study import Study
from reranker.errors import ConfigError, TrainingError
from reranker.models.scorers import Scorer
from reranker.training.problem import cut_to_keywords, two_rows

P = TypeVar("P")
S = TypeVar("S")
T = TypeVar("T")
Option = tuple[Mapping[str, Any], Callable[[], Scorer]]
"""Settings, and the function that builds the scorer with them."""

STARTS = (0.1, 1.0)
"""Standard deviations of the initial embeddings: a small one, and the papers' (A10)."""
PROBE_SHARE = 10
"""Rate and start are chosen by fits with a tenth of the steps."""

_MIX_CHUNK = 5_000

_kept: WeakKeyDictionary[Study, dict[Hashable, Any]] = WeakKeyDictionary()


def best_of(points: Iterable[P], build: Callable[[P], S], loss: Callable[[S], float]) -> tuple[P, S, float]:
    """Return the point with the smallest validation loss (the first on ties), what is built from it, and its loss.

    Points are built one after the other and discarded, so at most two are in memory. A point is skipped if training
    fails, for instance because it diverges at that rate, or if its loss is NaN.

    Raises
    ------
    ConfigError
        If there is no point.
    TrainingError
        If no point gives a number as loss; the first failure if there was one.
    """
    best: tuple[P, S, float] | None = None
    failures: list[TrainingError] = []
    n_tried = 0
    for point in points:
        n_tried += 1
        try:
            built = build(point)
        except TrainingError as error:
            failures.append(error)
            continue
        value = loss(built)
        if not math.isnan(value) and (best is None or value < best[2]):
            best = point, built, value
    if best is not None:
        return best
    if failures:
        raise failures[0]
    if not n_tried:
        raise ConfigError("there is no setting to try: give a grid of at least 1")
    raise TrainingError(f"none of {n_tried} settings gives a validation loss that is a number: check the scores")


def tuned(
    job: FitInput,
    options: Iterable[Option],
    query_view: str = "rows",
    document_view: str = "rows",
    *,
    counted: bool = False,
) -> Fitted:
    """Return the option with the smallest validation loss, which is added to its settings as ``validation``.

    With ``counted`` it is added as ``validation loss``, together with the number of options tried.
    """
    n_tried = 0

    def build(option: Option) -> Scorer:
        nonlocal n_tried
        n_tried += 1
        job.progress(", ".join(f"{name} {value}" for name, value in option[0].items()), n_tried, None)
        return option[1]()

    (settings, _), scorer, value = best_of(options, build, job.validate(query_view, document_view))
    said = {"validation loss": value, "settings tried": n_tried} if counted else {"validation": value}
    return Fitted(scorer, query_view, document_view, {**settings, **said})


def s2net_option(
    job: FitInput,
    data: Mates | GradedPairs,
    start: Projection,
    settings: S2NetSettings,
    said: Mapping[str, Any],
    query_view: str = "rows",
) -> Option:
    """Return S2Net from a start as an option, with early stopping on validation.

    Its settings are ``said`` and, after the fit, ``iteration kept`` (0 is the untrained start).
    """
    reported = dict(said)
    validate = job.validate(query_view)

    def fit() -> Projection:
        values: list[float] = []
        iterations, last = [0], 0

        def judge(scorer: Scorer) -> float:
            values.append(validate(scorer))
            return values[-1]

        def note(iteration: int, _: float, value: float | None) -> None:
            nonlocal last
            last = iteration
            if value is not None:
                iterations.append(iteration)
            job.progress("iterations", iteration, settings.max_iterations)

        projection = fit_s2net(data, start, settings, validate=judge, progress=note)
        best = min(range(len(values)), key=values.__getitem__, default=0)
        reported[KEPT_ITERATION] = [*iterations, last][best]
        return projection

    return reported, fit


def some(values: Iterable[Any], n: int) -> tuple[Any, ...]:
    """Return at most ``n`` of the values, evenly spaced; the middle one for n = 1."""
    listed = tuple(values)
    if len(listed) <= n:
        return listed
    if n <= 1:
        middle = (len(listed) - 1) // 2
        return listed[middle : middle + 1]
    return tuple(listed[round(place * (len(listed) - 1) / (n - 1))] for place in range(n))


def values_between(low: float, high: float, n: int) -> tuple[float, ...]:
    """Return at most ``n`` evenly spaced values from low to high, including both, rounded."""
    return tuple(round(float(value), 4) for value in np.linspace(low, high, max(2, n)))


def dimensions(n_dims: int, limit: int | None = None) -> tuple[int, ...]:
    """Return the numbers of dimensions to try: N, N/2 and N/4, limited by what the texts allow."""
    most = n_dims if limit is None else min(n_dims, limit)
    return tuple(dict.fromkeys(max(1, most // part) for part in (1, 2, 4)))


def remembered(study: Study, key: Hashable, make: Callable[[], T]) -> T:
    """Return the result of ``make``, cached by study and key.

    The result must depend only on the study and the key, so that it is the same for every system that requests it.
    """
    made = _kept.setdefault(study, {})
    if key not in made:
        made[key] = make()
    return cast(T, made[key])


def fit_sgd(  # noqa: PLR0913 - one keyword per setting of the papers
    job: FitInput,
    shape: str | PlainShape,
    data: PlainData,
    *,
    rate: float,
    init_std: float,
    rng: np.random.Generator,
    n_dims: int | None = None,
    n_steps: int | None = None,
    view: str = "rows",
    document_view: str = "rows",
    what: str = "steps",
    **settings: Any,
) -> tuple[Scorer, int, int]:
    """Return the scorer trained by plain SGD within the job's budget, the step that was kept, and the number of steps.

    The kept step is the one with the best validation, 0 for the untrained start. Training goes on after it until the
    budget's patience ends.
    """
    budget = job.budget
    steps = n_steps or budget.n_steps
    validate = job.validate(view, document_view)
    values: list[float] = []
    made = [0]

    def judge(scorer: Scorer) -> float:
        values.append(validate(scorer))
        return values[-1]

    def report(step: int) -> None:
        made.append(step)
        job.progress(what, step, steps)

    scorer = fit_plain(
        shape,
        data,
        n_dims=n_dims or budget.n_dims,
        rate=rate,
        n_steps=steps,
        init_std=init_std,
        rng=rng,
        validate=judge,
        every=min(budget.every, steps),
        patience=budget.patience,
        progress=report,
        **settings,
    )
    best = min(range(len(values)), key=values.__getitem__, default=0)
    return scorer, made[best], made[-1]


def sgd_option(
    job: FitInput, shape: str | PlainShape, data: PlainData, said: Mapping[str, Any], **settings: Any
) -> Option:
    """Return plain SGD with the settings of `fit_sgd` as an option.

    Its settings are ``said`` and, after the fit, ``kept step`` (0 is the untrained start).
    """
    reported = dict(said)

    def fit() -> Scorer:
        scorer, reported[KEPT_STEP], _ = fit_sgd(job, shape, data, **settings)
        return scorer

    return reported, fit


def tuned_plain(
    job: FitInput,
    shape: PlainShape,
    data: PlainData,
    *,
    view: str = "rows",
    rates: Sequence[float] = (),
    steps: int | None = None,
) -> tuple[Scorer, dict[str, Any]]:
    """Return the scorer trained by plain SGD with the rate and start that are best on validation, and its settings.

    All pairs of rate and start are tried with a tenth of the steps and the same tuples. The best pair is fitted with
    all steps and early stopping by the budget's patience. If it diverges, the next best is fitted.

    The rows of ``data`` must be those of ``view``. ``rates``, and ``steps`` if smaller, replace the budget's values.
    """
    budget = job.budget
    n_steps = min(budget.n_steps, steps or budget.n_steps)
    low_rank = shape.name in LOW_RANK
    points = list(product(rates or budget.rates, STARTS if low_rank else (1.0,)))[: max(1, budget.grid)]
    seed = int(job.rng.integers(2**62))
    validate = job.validate(view, view)

    def fit(point: tuple[float, float], n: int, what: str) -> tuple[Scorer, int, int]:
        rate, start = point
        rng = np.random.default_rng(seed)
        return fit_sgd(
            job, shape, data, rate=rate, init_std=start, rng=rng, n_steps=n, view=view, document_view=view, what=what
        )

    def probe(point: tuple[float, float]) -> float:
        try:
            what = f"trying rate {point[0]:g}, start {point[1]:g}"
            return validate(fit(point, max(1, n_steps // PROBE_SHARE), what)[0])
        except TrainingError:  # diverged; other points may not
            return math.inf

    losses = [probe(point) for point in points] if len(points) > 1 else [0.0]
    order = [points[place] for place in np.argsort(losses, kind="stable")]
    failures: list[TrainingError] = []
    for rate, start in order:
        try:
            scorer, kept, made = fit((rate, start), n_steps, "")
            break
        except TrainingError as error:
            failures.append(error)
    else:
        raise failures[0]
    settings: dict[str, Any] = {"rate": rate, KEPT_STEP: kept, "steps": made, "most_steps": n_steps}
    if low_rank:
        settings |= {"dims": budget.n_dims, "start": start}
    return scorer, {**settings, "validation": validate(scorer)}


def learn_mix(
    a: Scorer, b: Scorer, data: PlainData, *, rng: np.random.Generator, n_steps: int = 20_000, rate: float = 0.01
) -> Mix:
    """Return f_A + mu f_B, with mu trained by SGD on the hinge of f; A and B stay unchanged.

    While 1 - f(q, d+) + f(q, d-) > 0, mu += rate (f_B(q, d+) - f_B(q, d-)), from 0. The result is the mean of mu over
    the second half of the steps, because single steps fluctuate.

    Raises
    ------
    ConfigError
        If ``n_steps`` is below 2 or ``rate`` is not above 0.

    Source: spec 2.4 (7), M14, A14.
    """
    if n_steps < 2 or not rate > 0:
        raise ConfigError(f"{n_steps} steps of rate {rate} cannot train a mixture: give 2 or more, and a rate above 0")
    sampler = TripleSampler(data)
    mu = total = 0.0
    step = 0
    while step < n_steps:
        triples = sampler.draw(min(_MIX_CHUNK, n_steps - step), rng)
        q_rows = data.q_rows[triples.query]
        if data.keywords is not None:
            q_rows = cut_to_keywords(two_rows(q_rows, None), data.keywords, rng).learned
        better, worse = data.d_rows[triples.positive], data.d_rows[triples.negative]
        a_gain, b_gain = (f.score_pairs(q_rows, better) - f.score_pairs(q_rows, worse) for f in (a, b))
        for gain, other in zip(a_gain.tolist(), b_gain.tolist(), strict=True):
            if 1.0 - gain - mu * other > 0:
                mu += rate * other
            if step >= n_steps // 2:
                total += mu
            step += 1
    return Mix((a, b), (1.0, total / (n_steps - n_steps // 2)))
