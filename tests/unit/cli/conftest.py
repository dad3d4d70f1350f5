"""Trainings of command tests are short."""

from __future__ import annotations

import pytest

from reranker.training import config


@pytest.fixture(autouse=True)
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainings without a number of epochs stop after two: these tests are about commands, not about models."""
    monkeypatch.setattr(config, "EPOCHS", 2)
