"""Ranges of settings: which ends belong to them, and what is told of a value outside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from reranker.config import check_ranges
from reranker.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    share: Any = 0.5
    count: int = 1
    limit: float | None = 1.0

    def check(self) -> None:
        check_ranges(self, share="[0, 1)", count="(0, 3]", limit="(0, inf)")


@pytest.mark.parametrize(
    "settings",
    [
        Settings(0),
        Settings(0.999),
        Settings(count=3),
        Settings(count=np.int64(2)),  # type: ignore[arg-type]
        Settings(limit=None),
    ],
)
def test_values_within_are_taken(settings: Settings) -> None:
    assert refusal(settings) == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(1.0), "share is 1.0: it must be a finite number of at least 0 and below 1"),
        (Settings(-0.1), "share is -0.1: it must be a finite number of at least 0 and below 1"),
        (Settings(math.nan), "share is nan: it must be a finite number of at least 0 and below 1"),
        (Settings(None), "share is None: it must be a finite number of at least 0 and below 1"),
        (Settings(True), "share is True: it must be a finite number of at least 0 and below 1"),
        (Settings("0"), "share is '0': it must be a finite number of at least 0 and below 1"),
        (Settings(count=0), "count is 0: it must be a whole number above 0 and at most 3"),
        (Settings(count=4), "count is 4: it must be a whole number above 0 and at most 3"),
        (Settings(count=1.5), "count is 1.5: it must be a whole number above 0 and at most 3"),  # type: ignore[arg-type]
        (Settings(limit=math.inf), "limit is inf: it must be a finite number above 0"),
        (Settings(limit=0.0), "limit is 0.0: it must be a finite number above 0"),
    ],
)
def test_values_outside_are_told_with_the_rule(settings: Settings, message: str) -> None:
    assert refusal(settings) == message


def refusal(settings: Settings) -> str:
    """Return why the settings are refused; empty if they are not."""
    try:
        settings.check()
    except ConfigError as error:
        return str(error)
    return ""
