"""Settings chosen on validation: try each, keep the one with the least loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from papers.system import Fitted, Job
from reranker.errors import TrainingError
from reranker.models.base import Scorer

P = TypeVar("P")
S = TypeVar("S")
Option = tuple[Mapping[str, Any], Callable[[], Scorer]]
"""Settings, and what makes the scorer with them."""


def choose(job: Job, options: Iterable[Option], query_view: str = "rows", document_view: str = "rows") -> Fitted:
    """Return the option of the least validation loss, the first of equal ones, with what was tried in its settings.

    Options are made one after the other and forgotten, so that the memory of two is needed at most. One that cannot be
    trained, such as a rate at which it diverges, gives way to the others.

    Raises
    ------
    TrainingError
        If no option gives a loss that is a number; the first failure, where one failed.
    """
    loss = job.validate(query_view, document_view)
    best: tuple[float, Mapping[str, Any], Scorer] | None = None
    failures: list[TrainingError] = []
    numbered = list(enumerate(options, start=1))
    n_tried = len(numbered)

    def make(one: tuple[int, Option]) -> Scorer:
        number, (settings, build) = one
        job.progress(", ".join(f"{name} {value}" for name, value in settings.items()), number, None)
        return build()

    for (_, (settings, _)), scorer in trained(numbered, make, failures):
        value = loss(scorer)
        if not math.isnan(value) and (best is None or value < best[0]):
            best = value, settings, scorer
    if best is None and failures:
        raise failures[0]
    if best is None:
        raise TrainingError(f"none of {n_tried} settings gives a validation loss that is a number: check the scores")
    value, settings, scorer = best
    return Fitted(scorer, query_view, document_view, {**settings, "validation loss": value, "settings tried": n_tried})


def trained(points: Iterable[P], make: Callable[[P], S], failures: list[TrainingError]) -> Iterator[tuple[P, S]]:
    """Yield each point with what is made of it; one that cannot be trained gives way, its error to ``failures``."""
    for point in points:
        try:
            made = make(point)
        except TrainingError as error:
            failures.append(error)
        else:
            yield point, made


def some(values: Iterable[Any], n: int) -> tuple[Any, ...]:
    """Return at most ``n`` values, spread evenly over them; the one in the middle for n = 1."""
    listed = tuple(values)
    if len(listed) <= n:
        return listed
    if n <= 1:
        middle = (len(listed) - 1) // 2
        return listed[middle : middle + 1]
    return tuple(listed[round(place * (len(listed) - 1) / (n - 1))] for place in range(n))


def dimensions(n_dims: int, limit: int) -> tuple[int, ...]:
    """Return the numbers of dimensions to try: N, N/2 and N/4, none above what the texts have."""
    most = min(n_dims, limit)
    return tuple(dict.fromkeys(max(1, most // part) for part in (1, 2, 4)))
