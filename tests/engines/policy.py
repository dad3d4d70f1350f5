"""Decides where a test's engine comes from, and whether a missing one skips the test or fails it. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

REQUIRABLE = ("elasticsearch", "opensearch", "data")

Source = Literal["url", "docker", "launcher", "nowhere"]


@dataclass(frozen=True)
class Means:
    """What this machine offers for one engine.

    Parameters
    ----------
    url : str
        Address of an engine that runs already; empty if none is named.
    docker_ready : bool
        Whether a Docker engine answers.
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


def engine_reason(kind: str, missing_tools: Sequence[str]) -> str:
    """Return why there is no engine, and every way to get one."""
    return (
        f"no {kind} here: install {' and '.join(missing_tools)}, or start a Docker engine, "
        f"or set SSI_TEST_{kind.upper()}_URL to a running {kind}"
    )
