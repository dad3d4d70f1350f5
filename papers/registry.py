"""What a system is, what a task is and what it shows, and all systems and tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from papers.study import Study, StudyTrial, TrialScores
from reranker.errors import ConfigError
from reranker.models.scorers import Scorer

Loss = Callable[[Study, StudyTrial, "Fitted"], float]
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

    def scores(self, study: Study, trial: StudyTrial) -> TrialScores:
        """Return the scores of a trial."""
        documents = study.documents.view(self.document_view)[trial.pool]
        return TrialScores(self.scorer, trial.queries.view(self.query_view), documents)


@dataclass(frozen=True)
class FitInput:
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
    fit: Callable[[FitInput], Fitted]
    """Job -> Fitted."""
    needs: frozenset[str] = frozenset()
    """Of ``mates``, ``judged``, ``links``, ``preferences``, ``2-grams``, ``translation``: what the study must hold; and
    ``scikit-learn``."""

    def lacks(self, study: Study) -> tuple[str, ...]:
        """Return what this system needs and the study does not hold, sorted."""
        has = {name for name in ("mates", "judged", "links", "preferences") if getattr(study, name) is not None}
        has |= {"scikit-learn", *study.documents.more, *study.queries.more}
        return tuple(sorted(self.needs - has))


@dataclass(frozen=True)
class Table:
    """Rows of text under column names; ``note`` says what the reader must know of them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture with its alternative text."""

    name: str
    """File name without suffix."""
    title: str
    alt: str
    svg: bytes
    """bytes: Without scripts and without anything loaded from elsewhere."""


@dataclass(frozen=True)
class Section:
    """What one task shows."""

    task: str
    title: str
    sentences: tuple[str, ...] = ()
    """What was seen, in words; claims only where a test supports them."""
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class TaskRequest:
    """What was asked for."""

    corpus: Path
    """Folder of the corpus."""
    out: Path
    """Where results, runs and the report are kept; finished parts are used again."""
    systems: tuple[str, ...] = ()
    """Names; empty for the task's own list."""
    small: bool = False
    """Minutes instead of hours: fewer texts, steps and settings, figures that mean nothing."""
    seed: int = 0
    budget: Mapping[str, Any] = field(default_factory=dict)
    """Values of `Budget` to take in the place of the task's own."""


@dataclass(frozen=True)
class Task:
    """A task or study of the papers."""

    id: str
    """Of the checklist: ``T3b``."""
    title: str
    corpora: tuple[str, ...]
    """Folder names it can run on, the default first."""
    run: Callable[[TaskRequest, Progress], Section]
    """Request, progress -> Section."""
    systems: tuple[str, ...] = ()
    """Names it runs by default, in the order of the paper's table."""
    paper: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """System name -> measure -> figure as the paper prints it (spec 5): a reference, on other data."""
    source: str = ""
    """Where the paper has it."""


MODULES: tuple[str, ...] = (
    "papers.retrieval_systems",
    "papers.mates_systems",
    "papers.retrieval_tasks",
    "papers.cross_tasks",
    "papers.word_tasks",
    "papers.graded_systems",
    "papers.graded_tasks",
    "papers.click_tasks",
)
"""Modules with ``SYSTEMS``, ``TASKS``, or both; imported when first asked for."""

ALL = "all"
T = TypeVar("T")


@lru_cache(maxsize=1)
def systems() -> Mapping[str, System]:
    """Return every system by name, in the order of the papers' checklist."""
    return _joined("SYSTEMS", "name")


@lru_cache(maxsize=1)
def tasks() -> Mapping[str, Task]:
    """Return every task by id."""
    return _joined("TASKS", "id")


def system(name: str) -> System:
    """Return a system.

    Raises
    ------
    ConfigError
        If there is none of this name; the message has the nearest ones.
    """
    return _one("system", name, systems())


def task(name: str) -> Task:
    """Return a task; ids are told apart without regard to case.

    Raises
    ------
    ConfigError
        If there is none of this id.
    """
    by_case = {id_.lower(): id_ for id_ in tasks()}
    return _one("task", by_case.get(name.lower(), name), tasks())


def chosen(asked: Sequence[str], default: Sequence[str]) -> tuple[System, ...]:
    """Return the systems asked for, or the task's own; ``all`` stands for every system."""
    names = list(dict.fromkeys(asked or default))
    if ALL in names:
        return tuple(systems().values())
    return tuple(system(name) for name in names)


def _joined(attribute: str, key: str) -> Mapping[str, Any]:
    """Return the entries of all modules by name; a name that two modules give is a mistake."""
    entries: dict[str, Any] = {}
    for module in MODULES:
        for entry in getattr(import_module(module), attribute, ()):
            name = getattr(entry, key)
            if name in entries:
                raise ConfigError(f"{name!r} is listed twice, the second time in {module}: rename one")
            entries[name] = entry
    return MappingProxyType(entries)


def _one(what: str, name: str, known: Mapping[str, T]) -> T:
    if name in known:
        return known[name]
    written = {known_name.lower(): known_name for known_name in known}
    near = [written[match] for match in get_close_matches(name.lower(), written, 3, 0.5)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ConfigError(f"there is no {what} {name!r}: {hint}All: {', '.join(known)}")
