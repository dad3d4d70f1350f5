"""Definitions of systems, tasks and their results, and all systems and tasks by name."""

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
"""Objective of tuning; smaller is better."""
Progress = Callable[[str, int, int | None], None]
"""Function that receives the current work, the amount done and the total."""


@dataclass(frozen=True)
class Budget:
    """Amount of work that a fit may do; the same for all systems of a run."""

    n_dims: int = 100
    """N of embeddings, factors and topics."""
    n_steps: int = 3_000_000
    """Largest number of SGD steps."""
    every: int = 200_000
    """Number of steps between validations."""
    patience: int = 5
    """Number of validations without improvement after which a fit stops."""
    n_iterations: int = 60
    """Number of iterations of EM and of L-BFGS."""
    rates: tuple[float, ...] = (0.1, 0.03)
    """Learning rates to try."""
    n_slots: int = 3_000_000
    """H, the number of weights of hash kernels."""
    grid: int = 11
    """Largest number of values tried for a tuned setting."""
    degree: int = 5
    """k of the polynomial model ``psi-k``, at least 2."""


KEPT_STEP, KEPT_ITERATION = "kept step", "iteration kept"
"""Settings that tell which step of SGD or iteration of L-BFGS was the best on validation; 0 is the untrained start."""


@dataclass(frozen=True)
class Fitted:
    """A system that is ready to score."""

    scorer: Scorer
    query_view: str = "rows"
    document_view: str = "rows"
    """The views of `Texts` that the scorer uses for queries and documents."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings chosen on validation, for the report."""

    def saying(self, more: Mapping[str, Any]) -> Fitted:
        """Return the same system with more settings to report."""
        return replace(self, settings={**self.settings, **more})

    def scores(self, study: Study, trial: StudyTrial) -> TrialScores:
        """Return the scores of a trial."""
        documents = study.documents.view(self.document_view)[trial.pool]
        return TrialScores(self.scorer, trial.queries.view(self.query_view), documents)


@dataclass(frozen=True)
class FitInput:
    """Input of a fit."""

    study: Study
    budget: Budget
    loss: Loss
    """Loss of the task's family: rank loss for links, 1 - MRR for mates, 1 - NDCG for grades."""
    rng: np.random.Generator
    """The only source of random numbers."""
    progress: Progress

    def validate(self, query_view: str = "rows", document_view: str = "rows") -> Callable[[Scorer], float]:
        """Return the validation loss as a function of a scorer over these views."""
        study = self.study
        return lambda scorer: self.loss(study, study.valid, Fitted(scorer, query_view, document_view))


@dataclass(frozen=True)
class System:
    """A ranker of the papers."""

    name: str
    """Name for ``--systems``: lower case, words joined by hyphens."""
    ids: tuple[str, ...]
    """Ids in the checklist: ``("M06",)``."""
    title: str
    """Title in tables."""
    fit: Callable[[FitInput], Fitted]
    """Function that fits the system."""
    needs: frozenset[str] = frozenset()
    """Data that the study must have, and ``scikit-learn`` if needed.

    Possible data: ``mates``, ``judged``, ``links``, ``preferences``, ``2-grams``, ``anchor texts``,
    ``translation``.
    """

    def lacks(self, study: Study) -> tuple[str, ...]:
        """Return the names of the data that this system needs and the study does not have, sorted."""
        has = {name for name in ("mates", "judged", "links", "preferences") if getattr(study, name) is not None}
        has |= {"scikit-learn", *study.documents.more, *study.queries.more}
        return tuple(sorted(self.needs - has))


@dataclass(frozen=True)
class Table:
    """Rows of text under column names; ``note`` explains how to read them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A chart with its alternative text."""

    name: str
    """File name without suffix."""
    title: str
    alt: str
    svg: bytes
    """SVG without scripts and without external resources."""


@dataclass(frozen=True)
class Section:
    """Results of one task."""

    task: str
    title: str
    sentences: tuple[str, ...] = ()
    """Findings in words; a claim is made only if a test supports it."""
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class TaskRequest:
    """Options of a run."""

    corpus: Path
    """Folder of the corpus."""
    out: Path
    """Folder of results, runs and the report; finished parts are reused."""
    systems: tuple[str, ...] = ()
    """Names of systems; empty for the task's own list."""
    small: bool = False
    """Whether to use fewer texts, steps and settings: minutes instead of hours, and meaningless figures."""
    seed: int = 0
    budget: Mapping[str, Any] = field(default_factory=dict)
    """Values of `Budget` that replace the task's own."""
    keep: Callable[[Any], None] | None = None
    """Called with the `papers.results.Results` of each comparison, for averages over several seeds."""


@dataclass(frozen=True)
class Task:
    """A task or study of the papers."""

    id: str
    """Id in the checklist: ``T3b``."""
    title: str
    corpora: tuple[str, ...]
    """Names of the folders that it can run on, the default first."""
    run: Callable[[TaskRequest, Progress], Section]
    """Function that runs the task."""
    systems: tuple[str, ...] = ()
    """Names of the default systems, in the order of the paper's table."""
    paper: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """System name -> measure -> figure printed in the paper (spec 5); a reference, on other data."""
    source: str = ""
    """Place in the paper."""


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
"""Modules with ``SYSTEMS``, ``TASKS``, or both; imported when they are first needed."""

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
        If there is no system of this name; the message lists the most similar names.
    """
    return _one("system", name, systems())


def task(name: str) -> Task:
    """Return a task; case is ignored.

    Raises
    ------
    ConfigError
        If there is no task with this id.
    """
    by_case = {id_.lower(): id_ for id_ in tasks()}
    return _one("task", by_case.get(name.lower(), name), tasks())


def chosen(asked: Sequence[str], default: Sequence[str]) -> tuple[System, ...]:
    """Return the systems asked for, or the task's own; ``all`` means every system."""
    names = list(dict.fromkeys(asked or default))
    if ALL in names:
        return tuple(systems().values())
    return tuple(system(name) for name in names)


def _joined(attribute: str, key: str) -> Mapping[str, Any]:
    """Return the entries of all modules by name; raises `ConfigError` if two entries have the same name."""
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
