"""What a task is, and what it shows: tables and pictures for the terminal and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from papers.system import Progress


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
class Request:
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
    run: Callable[[Request, Progress], Section]
    """Request, progress -> Section."""
    systems: tuple[str, ...] = ()
    """Names it runs by default, in the order of the paper's table."""
    paper: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """System name -> measure -> figure as the paper prints it (spec 5): a reference, on other data."""
    source: str = ""
    """Where the paper has it."""
