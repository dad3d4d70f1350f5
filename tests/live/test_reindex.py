"""A team copies its index into a new one after `ssi revectorize`, on each engine: docs/guide/reindexing.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from indexer.renewal import Target, sync
from indexer.versions import promote
from reranker.cli.main import main
from reranker.engines import Engine, WriteOp, open_engine
from reranker.models.model_folder import save_model
from reranker.releases import forget_control
from tests.served import model_of, random_documents

pytestmark = [pytest.mark.live, pytest.mark.slow]

DOCUMENTS = random_documents(60)
MODEL = model_of(DOCUMENTS)
OWN = {"title": {"type": "text"}, "text": {"type": "text"}, "tag": {"type": "keyword"}}
OLD, NEW, ALIAS = "reindexed-1", "reindexed-2", "reindexed"


@pytest.fixture(params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.chdir(tmp_path)
    save_model(MODEL, tmp_path / "model")
    url = request.getfixturevalue(f"{request.param}_url")
    with closing(open_engine(f"{request.param}:{url}")) as engine:
        engine.create_index(OLD, {"dynamic": "strict", "properties": OWN})
        engine.bulk(OLD, [WriteOp("index", name, source) for name, source in DOCUMENTS.items()])
        engine.swap_alias(ALIAS, OLD)
        sync(Target(engine, ALIAS, MODEL))
        promote(engine, ALIAS, MODEL.model_id)
        engine.refresh(OLD)
        try:
            yield engine
        finally:
            for name in (OLD, NEW):
                for concrete in engine.index_names(name):
                    engine.delete_index(concrete)
            forget_control(engine, [OLD, NEW])


def copy(engine: Engine, *, excludes: str = "") -> set[int]:
    """Copy the documents as `_reindex` does, which the engines here lack; return the statuses of the writes."""
    ops = []
    for document in (document for batch in engine.scan(OLD) for document in batch):
        kept = {name: v for name, v in document.source.items() if not (excludes and name.startswith(excludes))}
        ops.append(WriteOp("index", document.id, kept))
    statuses = {result.status for result in engine.bulk(NEW, ops)}
    engine.refresh(NEW)
    engine.swap_alias(ALIAS, NEW, [OLD])
    return statuses


def ssi(engine: Engine, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--engine", engine.spec, "--index", ALIAS], catch_exceptions=False)


def test_a_strict_index_with_the_printed_fields_takes_the_vectors(engine: Engine) -> None:
    printed = json.loads(ssi(engine, "versions", "--mapping").stdout)
    assert printed["properties"] and all(name.startswith("ssi_") for name in printed["properties"])
    engine.create_index(NEW, {"dynamic": "strict", "properties": {**OWN, **printed["properties"]}})
    assert copy(engine) == {201}
    report = json.loads(ssi(engine, "sync", "--model", "model", "--json").stdout)
    assert (report["documents"], report["written"]) == (60, 0), "the vectors came with the documents"
    assert ssi(engine, "promote", "--model", "model").exit_code == 0


def test_a_copy_without_the_fields_gets_them_by_sync(engine: Engine) -> None:
    engine.create_index(NEW, {"dynamic": "strict", "properties": OWN})
    assert copy(engine, excludes="ssi_") == {201}
    assert json.loads(ssi(engine, "sync", "--model", "model", "--json").stdout)["written"] == 60
    assert ssi(engine, "promote", "--model", "model").exit_code == 0


def test_a_strict_index_without_the_fields_refuses_the_documents(engine: Engine) -> None:
    engine.create_index(NEW, {"dynamic": "strict", "properties": OWN})
    assert copy(engine) == {400}


@pytest.mark.parametrize("command", ["sync", "revectorize"])
def test_fields_that_became_text_are_refused_with_both_remedies(engine: Engine, command: str) -> None:
    engine.create_index(NEW, {"properties": OWN})
    assert copy(engine) == {201}
    result = ssi(engine, command, "--model", "model")
    told = " ".join(result.stderr.split())
    assert result.exit_code == 7 and "exists as 'text'" in told
    assert "ssi versions --mapping" in told and "_source.excludes" in told
