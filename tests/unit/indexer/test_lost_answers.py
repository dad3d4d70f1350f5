"""Commands over an engine with retries: who asks for them, and what is not done twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from indexer.versions import rollback
from reranker.cli.main import main
from reranker.engines import EngineSettings
from reranker.engines.retry import Retries
from reranker.errors import EngineUnavailable
from reranker.releases import ControlRecord, Release, update_control
from tests.unit.test_releases import losing

MODELS = [Release(letter * 64, letter * 64) for letter in "abc"]


def all_three_lived(record: ControlRecord) -> ControlRecord:
    for release in MODELS:
        record = record.with_release(release).with_live(release.model_id)
    return record


def test_a_rollback_whose_answer_was_lost_goes_back_once_even_if_somebody_wrote_after_it() -> None:
    def rival() -> None:
        update_control(watched.real, "shop", lambda record: record.with_retired(["old"]))

    watched, engine = losing(between=rival)
    engine.create_index("shop", {})
    update_control(engine, "shop", all_three_lived)
    watched.carried_out = [True]
    assert rollback(engine, "shop", force=True).live == MODELS[1].model_id
    assert rollback(engine, "shop", force=True).live == MODELS[0].model_id


SPEC = ["--engine", "elasticsearch:http://127.0.0.1:1", "--index", "shop"]
LONG = {
    "index": ["docs.jsonl"],
    "revectorize": ["--model", "model"],
    "sync": ["--model", "model"],
    "gc": [],
    "uninstall": [],
    "promote": ["aaaaaa"],
    "versions": [],
    "drift": ["--model", "model"],
    "calibrate": ["--model", "model", "--queries", "docs.jsonl", "--qrels", "docs.jsonl"],
}
SHORT = {"search": ["query", "--model", "model"], "serve": ["--model", "model"]}


@pytest.mark.parametrize(("command", "retry"), [*((name, True) for name in LONG), *((name, False) for name in SHORT)])
def test_long_commands_retry_and_the_service_does_not(
    command: str, retry: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "docs.jsonl").write_text('{"id": "a"}\n')
    seen: list[Retries | None] = []

    def opening(spec: str, settings: EngineSettings | None = None, retries: Retries | None = None) -> Any:
        seen.append(retries)
        raise EngineUnavailable("opened")

    monkeypatch.setattr("reranker.cli.common.open_engine", opening)
    result = CliRunner().invoke(main, [command, *(LONG | SHORT)[command], *SPEC])
    assert len(seen) == 1, result.output
    assert isinstance(seen[0], Retries) == retry
