"""`ssi uninstall` also removes the scripts that earlier releases stored in an engine."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from indexer.renewal import Target, sync
from reranker.cli.main import main
from reranker.engines.protocol import WriteOp
from reranker.errors import EngineRejected
from tests.engines.memory import memory_engine
from tests.served import TEXT_FIELDS, model_of, random_documents


class WithScripts:
    """The memory engine, with an API that has no script."""

    def __init__(self) -> None:
        self._engine, self.sent = memory_engine(), list[tuple[str, str]]()

    def request(self, method: str, path: str, *_: Any) -> dict[str, Any]:
        self.sent.append((method, path))
        raise EngineRejected("no such script", status=404)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def test_stored_scripts_of_every_version_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = WithScripts()
    monkeypatch.setattr("reranker.cli.common.open_engine_of", lambda *_, **__: engine)
    documents = random_documents(5)
    engine.create_index("docs", {"properties": TEXT_FIELDS})
    engine.bulk("docs", [WriteOp("index", key, source) for key, source in documents.items()])
    model = model_of(documents)
    sync(Target(engine, "docs", model))
    result = CliRunner().invoke(main, ["uninstall", "--engine", "opensearch:http://localhost:9200", "--index", "docs"])
    assert result.exit_code == 0, result.output
    prefix = f"/_scripts/ssi_{model.encoder_id[:12]}_"
    assert engine.sent == [("DELETE", f"{prefix}model"), ("DELETE", f"{prefix}blend")]
