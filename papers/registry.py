"""All systems and tasks by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

from papers.system import System
from papers.task import Task
from reranker.errors import ConfigError

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
