"""What a system is: a name, the ids of the papers' checklist it answers to, and a function that fits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from papers.study import Study, Trial, TrialScores
from reranker.models.scorers import Scorer

Loss = Callable[[Study, Trial, "Fitted"], float]
"""What is tuned: smaller is better."""
Progress = Callable[[str, int, int | None], None]
"""What is being done, how much of it, of how much."""


@dataclass(frozen=True)
class Budget:
    """How much work a fit may do; the same for all systems of a run."""

    n_dims: int = 100
    """N of embeddings, factors and topics."""
    n_steps: int = 3_000_000
    """Steps of SGD at most."""
    every: int = 200_000
    """Steps between looks at the validation queries."""
    patience: int = 5
    """Looks without gain before a fit stops."""
    n_iterations: int = 60
    """Of EM and of L-BFGS."""
    rates: tuple[float, ...] = (0.1, 0.03)
    """Learning rates to try."""
    n_slots: int = 3_000_000
    """H of hash kernels."""
    grid: int = 11
    """How many values of a tuned setting are tried, at most."""


@dataclass(frozen=True)
class Fitted:
    """A system ready to score."""

    scorer: Scorer
    query_view: str = "rows"
    document_view: str = "rows"
    """The views of `Texts` that it scores."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What was chosen on validation, for the report."""

    def saying(self, more: Mapping[str, Any]) -> Fitted:
        """Return the same with more settings to report."""
        return replace(self, settings={**self.settings, **more})

    def scores(self, study: Study, trial: Trial) -> TrialScores:
        """Return the scores of a trial."""
        documents = study.documents.view(self.document_view)[trial.pool]
        return TrialScores(self.scorer, trial.queries.view(self.query_view), documents)


@dataclass(frozen=True)
class Job:
    """All that a fit is given."""

    study: Study
    budget: Budget
    loss: Loss
    """Of the task's family: rank loss for links, 1 - MRR for mates, 1 - NDCG for grades."""
    rng: np.random.Generator
    """The only source of chance."""
    progress: Progress

    def validate(self, query_view: str = "rows", document_view: str = "rows") -> Callable[[Scorer], float]:
        """Return the validation loss of a bare scorer over these views."""
        study = self.study
        return lambda scorer: self.loss(study, study.valid, Fitted(scorer, query_view, document_view))


@dataclass(frozen=True)
class System:
    """A ranker of the papers."""

    name: str
    """As ``--systems`` takes it: lower case, words joined by hyphens."""
    ids: tuple[str, ...]
    """Of the checklist: ``("M06",)``."""
    title: str
    """As tables show it."""
    fit: Callable[[Job], Fitted]
    """Job -> Fitted."""
    needs: frozenset[str] = frozenset()
    """Of ``mates``, ``judged``, ``links``, ``preferences``, ``2-grams``, ``translation``: what the study must hold; and
    ``scikit-learn``."""

    def lacks(self, study: Study) -> tuple[str, ...]:
        """Return what this system needs and the study does not hold, sorted."""
        has = {name for name in ("mates", "judged", "links", "preferences") if getattr(study, name) is not None}
        has |= {"scikit-learn", *study.documents.more, *study.queries.more}
        return tuple(sorted(self.needs - has))
