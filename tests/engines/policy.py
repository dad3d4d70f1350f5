"""Decides where a test's engine comes from, and whether what a machine lacks skips a test or fails it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NoReturn

import pytest

REQUIRABLE = (
    "elasticsearch",
    "opensearch",
    "data",
    "chromium",
    "docker-compose",
    "docker",
    "openssl",
    "clients",
    "mount",
    "libraries",
    "helm",
)
"""What a machine may lack; SSI_REQUIRE makes a failure of each skip for want of it."""
LACKING = "without "
"""How the reason of such a skip begins."""

Source = Literal["url", "docker", "launcher", "nowhere"]


@dataclass(frozen=True)
class Means:
    """What this machine offers for one engine.

    Parameters
    ----------
    url : str
        Address of an engine that runs already; empty if none is named.
    docker_ready : bool
        Whether a Docker engine answers that has the image, or can pull it.
    missing_tools : sequence of str
        What the launcher lacks; empty when it can run.
    """

    url: str = ""
    docker_ready: bool = False
    missing_tools: Sequence[str] = ()


def choose_source(means: Means) -> Source:
    """Return where the engine comes from: a named address before Docker, Docker before the launcher."""
    if means.url:
        return "url"
    if means.docker_ready:
        return "docker"
    return "nowhere" if means.missing_tools else "launcher"


def parse_required(text: str) -> frozenset[str]:
    """Return the names in a comma list, the value of SSI_REQUIRE.

    Raises
    ------
    ValueError
        If a name is not one of `REQUIRABLE`.
    """
    names = frozenset(part.strip() for part in text.split(",") if part.strip())
    if unknown := sorted(names.difference(REQUIRABLE)):
        raise ValueError(f"SSI_REQUIRE names {', '.join(unknown)}; it may name {', '.join(REQUIRABLE)}")
    return names


def what_to_do_without(name: str, required: frozenset[str]) -> Literal["skip", "fail"]:
    """Return whether a test that lacks ``name`` is skipped or failed."""
    return "fail" if name in required else "skip"


def do_without(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail it if SSI_REQUIRE names what it lacks."""
    if what_to_do_without(name, parse_required(os.environ.get("SSI_REQUIRE", ""))) == "fail":
        pytest.fail(f"SSI_REQUIRE asks for {name}: {reason}")
    pytest.skip(f"{LACKING}{name}: {reason}", allow_module_level=True)


def library(name: str) -> Any:
    """Return a module of an optional library; without it, do without "libraries" (`do_without`)."""
    try:
        return import_module(name)
    except ImportError:
        do_without("libraries", f"{name.partition('.')[0]} is not installed: pip install -e '.[all,dev]'")


def lacking(reasons: Iterable[str]) -> list[str]:
    """Return a line for each thing that tests were skipped for want of: what, how many tests, and how to get it."""
    counted = Counter(reason.removeprefix(LACKING) for reason in reasons if reason.startswith(LACKING))
    return [f"{count} skipped without {reason}" for reason, count in sorted(counted.items())]


def engine_reason(kind: str, missing_tools: Sequence[str]) -> str:
    """Return why there is no engine, and every way to get one."""
    return (
        f"no {kind} here: install {' and '.join(missing_tools)}, or start a Docker engine, "
        f"or set SSI_TEST_{kind.upper()}_URL to a running {kind}"
    )
