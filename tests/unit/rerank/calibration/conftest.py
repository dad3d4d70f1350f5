"""An index whose model shares words with the engine, for fits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.memory import memory_engine
from tests.served import Served, model_of, random_documents, serve


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    documents = random_documents(200)
    engine = memory_engine()
    yield serve(engine, "docs", tmp_path_factory.mktemp("m"), documents, model_of(documents, scale=0.8))
    engine.close()
