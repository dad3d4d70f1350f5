"""``ssi clicks import``, ``forget`` and ``expire`` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.clicks.log import ClickLog
from reranker.models.model_folder import save_model
from reranker.models.training_queries import TrainingQueries
from tests.unit.clicks.reading import event, query, write_lines
from tests.unit.small_models import MEMORY_BM25, small_encoder, small_memory, small_model


def ssi(*words: object) -> Result:
    return CliRunner().invoke(main, ["clicks", *map(str, words)])


def flat(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "raw.ndjson", [query(), event(), event(client_id="other", query_id="q2")])


def test_import_and_import_again(tmp_path: Path, raw: Path) -> None:
    log = tmp_path / "log"
    first = ssi("import", raw, "--log", log)
    assert first.exit_code == 0, first.output
    assert "imported 1 queries, 2 hits, 2 events, 0 links of a user to a client" in flat(first)
    again = ssi("import", raw, "--log", log)
    assert again.exit_code == 0
    assert "imported nothing" in flat(again) and "already in the log" in flat(again)
    assert ClickLog(log).counts()["events"] == 2


def test_import_as_json(tmp_path: Path, raw: Path) -> None:
    result = ssi("import", raw, "--log", tmp_path / "log", "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["rows"] == found["log"] == {"queries": 1, "hits": 2, "events": 2, "people": 0}
    assert found["records"] == {"good": 3, "skipped": 0, "bad": 0}


def test_bad_lines_are_kept_and_told_by_the_exit_status(tmp_path: Path) -> None:
    raw = write_lines(tmp_path / "raw", [event(), b'{"client_id": "alice"', event()])
    rejects = tmp_path / "rejects.jsonl"
    result = ssi("import", raw, "--log", tmp_path / "log", "--rejects", rejects)
    assert result.exit_code == 8
    (entry,) = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert (entry["line"], entry["kind"]) == (2, "not_json")
    assert "alice" not in rejects.read_text() + result.output


def test_forget_a_person(tmp_path: Path, raw: Path) -> None:
    log = tmp_path / "log"
    ssi("import", raw, "--log", log)
    result = ssi("forget", "client", "--log", log, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["removed"] == {"queries": 1, "hits": 2, "events": 1, "people": 0}
    models = tmp_path / "models"
    encoder = small_encoder(lexical=MEMORY_BM25, memory=small_memory())
    made = {"retrain": {"cutoff": 0}}
    remembering = save_model(small_model(encoder=encoder, training=made), models / "nightly")
    save_model(small_model(encoder=encoder), models / "judged")
    save_model(small_model(training=made), models / "forgetful")
    hashed = TrainingQueries.of("0" * 32, ["a query"], [])
    hashing = save_model(small_model(training=made, training_queries=hashed), models / "hashing")
    (models / ".retrain").mkdir()
    again = ssi("forget", "client", "--log", log, "--models", models)
    assert again.exit_code == 0 and "removed 0 queries" in flat(again)
    named = sorted([remembering, hashing])
    short = ", ".join(model_id[:12] for model_id in named)
    assert f"the models {short} may still remember removed queries: run `ssi retrain`" in flat(again)
    listed = ssi("forget", "client", "--log", log, "--models", models, "--json")
    assert json.loads(listed.stdout)["remembering"] == named
    for nobody in ("clietn", ""):
        unknown = ssi("forget", nobody, "--log", log)
        assert unknown.exit_code == 9
        assert f"the click log {str(log)!r} has no row of the given user, client or session id" in flat(unknown)
        assert "as the site logs it" in flat(unknown)
        assert not nobody or nobody not in unknown.output


def test_expire(tmp_path: Path, raw: Path) -> None:
    log = tmp_path / "log"
    ssi("import", raw, "--log", log)
    assert "removed 0 queries" in flat(ssi("expire", "--days", 100_000, "--log", log, "--yes"))
    n_queries = json.loads(ssi("expire", "--days", 100_000, "--log", log, "--json", "--yes").stdout)["log"]["queries"]
    refused = ssi("expire", "--days", 0, "--log", log)
    assert refused.exit_code == 2 and "older than 0 days" in flat(refused) and "--yes" in flat(refused)
    again = json.loads(ssi("expire", "--days", 100_000, "--log", log, "--json", "--yes").stdout)
    assert again["log"]["queries"] == n_queries > 0
    result = ssi("expire", "--days", 0, "--log", log, "--json", "--yes")
    assert json.loads(result.stdout)["log"]["queries"] == 0


def test_a_key_of_ones_own(tmp_path: Path, raw: Path) -> None:
    log, key = tmp_path / "log", tmp_path / "my.key"
    assert ssi("import", raw, "--log", log, "--key", key).exit_code == 0
    assert not (log / "key").exists()
    missing = ssi("forget", "client", "--log", log)
    assert missing.exit_code == 3 and "--key" in flat(missing)
    assert "removed 1 queries" in flat(ssi("forget", "client", "--log", log, "--key", key))
    key.chmod(0o644)
    assert "chmod 600" in flat(ssi("forget", "client", "--log", log, "--key", key))


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ("import --log {log}", 2, "give either LOG... files, or --engine"),
        ("import {raw} --engine tantivy:{raw} --log {log}", 2, "give either LOG... files, or --engine"),
        ("import {raw} --since 2026-01-01 --log {log}", 2, "give --engine, or leave them out"),
        ("import --engine tantivy:{raw} --since yesterday --log {log}", 2, "--since 'yesterday' is not a time"),
        ("import --engine tantivy:{raw} --since 2026-02-01 --until 2026-01-01 --log {log}", 2, "is not before"),
        ("import {raw} --log {raw}", 3, ""),
        ("import absent.ndjson --log {log}", 3, "does not exist"),
        ("import {raw} --format csv --log {log}", 2, "'csv'"),
        ("forget client --log {log}", 3, "is not a click log"),
        ("expire --days -1 --log {log}", 2, "-1"),
        ("expire --days 3 --log {log}", 3, "ssi clicks import LOG --log DIR"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, raw: Path, words: str, status: int, text: str) -> None:
    result = ssi(*words.format(log=tmp_path / "log", raw=raw).split())
    assert (result.exit_code, text in flat(result)) == (status, True), result.output
    assert "Traceback" not in result.output


def test_a_configuration_file_has_a_table_a_command(tmp_path: Path, raw: Path) -> None:
    config = tmp_path / "ssi.toml"
    config.write_text(f'[clicks.import]\nlog = "{tmp_path / "log"}"\nformat = "ubi"\n')
    result = CliRunner().invoke(main, ["--config", str(config), "clicks", "import", str(raw)])
    assert result.exit_code == 0, result.output
    config.write_text("[clicks.import]\nlogs = 3\n")
    result = CliRunner().invoke(main, ["--config", str(config), "clicks", "import", str(raw)])
    assert result.exit_code == 2 and "[clicks.import]" in flat(result)


def test_variables_are_named_after_the_options(tmp_path: Path, raw: Path) -> None:
    variables = {"SSI_CLICKS_IMPORT_LOG": str(tmp_path / "log")}
    result = CliRunner().invoke(main, ["clicks", "import", str(raw)], env=variables)
    assert result.exit_code == 0, result.output
