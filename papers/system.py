"""What a system is: a name, the ids of the papers' checklist it answers to, and a function that fits it.

Settings chosen on validation: try each, keep the one with the least loss.

What several systems of one study need and is dear to make, made once and forgotten with the study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from papers.study import Study, Trial, TrialScores
from reranker.errors import TrainingError
from reranker.models.base import Scorer

Loss = Callable[[Study, Trial, "Fitted"], float]
"""What is tuned: smaller is better."""
Progress = Callable[[str, int, int | None], None]
"""What is being done, how much of it, of how much."""


@dataclass(frozen=True)
class Budget:
    """How much work a fit may do; the same for all systems of a run.

    Parameters
    ----------
    n_dims : int
        N of embeddings, factors and topics.
    n_steps : int
        Steps of SGD at most.
    every : int
        Steps between looks at the validation queries.
    patience : int
        Looks without gain before a fit stops.
    n_iterations : int
        Of EM and of L-BFGS.
    rates : tuple of float
        Learning rates to try.
    n_slots : int
        H of hash kernels.
    grid : int
        How many values of a tuned setting are tried, at most.
    """

    n_dims: int = 100
    n_steps: int = 3_000_000
    every: int = 200_000
    patience: int = 5
    n_iterations: int = 60
    rates: tuple[float, ...] = (0.1, 0.03)
    n_slots: int = 3_000_000
    grid: int = 11


@dataclass(frozen=True)
class Fitted:
    """A system ready to score.

    Parameters
    ----------
    scorer : Scorer
    query_view, document_view : str
        The views of `Texts` that it scores.
    settings : mapping
        What was chosen on validation, for the report.
    """

    scorer: Scorer
    query_view: str = "rows"
    document_view: str = "rows"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def saying(self, more: Mapping[str, Any]) -> Fitted:
        """Return the same with more settings to report."""
        return replace(self, settings={**self.settings, **more})

    def scores(self, study: Study, trial: Trial) -> TrialScores:
        """Return the scores of a trial."""
        documents = study.documents.view(self.document_view)[trial.pool]
        return TrialScores(self.scorer, trial.queries.view(self.query_view), documents)


@dataclass(frozen=True)
class Job:
    """All that a fit is given.

    Parameters
    ----------
    study : Study
    budget : Budget
    loss : Loss
        Of the task's family: rank loss for links, 1 - MRR for mates, 1 - NDCG for grades.
    rng : Generator
        The only source of chance.
    progress : Progress
    """

    study: Study
    budget: Budget
    loss: Loss
    rng: np.random.Generator
    progress: Progress

    def validate(self, query_view: str = "rows", document_view: str = "rows") -> Callable[[Scorer], float]:
        """Return the validation loss of a bare scorer over these views."""
        study = self.study
        return lambda scorer: self.loss(study, study.valid, Fitted(scorer, query_view, document_view))


@dataclass(frozen=True)
class System:
    """A ranker of the papers.

    Parameters
    ----------
    name : str
        As ``--systems`` takes it: lower case, words joined by hyphens.
    ids : tuple of str
        Of the checklist: ``("M06",)``.
    title : str
        As tables show it.
    fit : callable
        Job -> Fitted.
    needs : frozenset of str
        Of ``mates``, ``judged``, ``links``, ``preferences``, ``2-grams``, ``translation``: what the study must
        hold; and ``scikit-learn``.
    """

    name: str
    ids: tuple[str, ...]
    title: str
    fit: Callable[[Job], Fitted]
    needs: frozenset[str] = frozenset()

    def lacks(self, study: Study) -> tuple[str, ...]:
        """Return what this system needs and the study does not hold, sorted."""
        has = {name for name in ("mates", "judged", "links", "preferences") if getattr(study, name) is not None}
        has |= {"scikit-learn", *study.documents.more, *study.queries.more}
        return tuple(sorted(self.needs - has))


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


T = TypeVar("T")

_kept: WeakKeyDictionary[Study, dict[Hashable, Any]] = WeakKeyDictionary()


def remembered(study: Study, key: Hashable, make: Callable[[], T]) -> T:
    """Return what ``make`` gives, of an earlier call with the same study and key if there was one.

    What is made must depend on the study and the key alone, so that it is the same whichever system asks first.
    """
    found = _kept.setdefault(study, {})
    if key not in found:
        found[key] = make()
    return cast(T, found[key])
