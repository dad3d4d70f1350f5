"""Fixtures of the tests of systems and tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.papers.bilingual_corpus import write_corpus


@pytest.fixture(scope="session")
def bilingual_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a made corpus of two languages."""
    return write_corpus(tmp_path_factory.mktemp("bilingual"))
