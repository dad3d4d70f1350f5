"""What a system is: a name, the ids of the papers' checklist it answers to, and a function that fits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from papers.study import Study, Trial, TrialScores
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
    loss : Loss
        Of the task's family: rank loss for links, 1 - MRR for mates, 1 - NDCG for grades.
    rng : Generator
        The only source of chance.
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
