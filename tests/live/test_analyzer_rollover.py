"""A model whose analyzer runs in the engine, through a rollover to an index with another analyzer, on each engine."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.engines import Engine, WriteOp, open_engine
from reranker.releases import forget_control
from tests.served import random_documents

pytestmark = [pytest.mark.live, pytest.mark.slow]

DOCUMENTS = random_documents(100)
ALIAS = "analyzed"
PROPERTIES = {name: {"type": "text", "analyzer": "mine"} for name in ("title", "text")}


@pytest.fixture(params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    url = request.getfixturevalue(f"{request.param}_url")
    with closing(open_engine(f"{request.param}:{url}")) as engine:
        roll_over(engine, 1, ["lowercase"])
        try:
            yield engine
        finally:
            for name in engine.index_names(ALIAS):
                engine.delete_index(name)
            forget_control(engine, [f"{ALIAS}-1", f"{ALIAS}-2", f"{ALIAS}-3"])


def roll_over(engine: Engine, number: int, filters: list[str]) -> None:
    """Fill a new index, point the alias to it, and delete the one before."""
    before, concrete = engine.index_names(ALIAS), f"{ALIAS}-{number}"
    chain = {"type": "custom", "tokenizer": "standard", "filter": filters}
    settings = {"number_of_shards": 1, "analysis": {"analyzer": {"mine": chain}}}
    engine.create_index(concrete, {"properties": PROPERTIES}, settings)
    engine.bulk(concrete, [WriteOp("index", name, source) for name, source in DOCUMENTS.items()])
    engine.refresh(concrete)
    engine.swap_alias(ALIAS, concrete, before)
    for name in before:
        engine.delete_index(name)


def test_the_alias_answers_after_a_rollover_and_a_changed_analyzer_is_noticed(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))

    def run(line: str) -> Result:
        result = CliRunner().invoke(main, shlex.split(line)[1:], catch_exceptions=False)
        assert result.exit_code == 0, (line, result.output, result.stderr)
        return result

    note = json.loads(run(f"ssi init --engine {engine.spec} --index {ALIAS} --json").stdout)["note"]
    analyzer = next(word for word in note.split() if word.startswith("engine:"))
    assert analyzer.startswith(f"engine:{ALIAS}/")
    Path("links.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in itertools.pairwise(DOCUMENTS)), encoding="utf-8")
    run(f"ssi train --links links.tsv --analyzer {analyzer} --dim 4")
    roll_over(engine, 2, ["lowercase"])
    assert "was changed after the training" not in run("ssi revectorize").stderr
    roll_over(engine, 3, ["lowercase", "stop"])
    for command in ("ssi drift", "ssi sync"):
        told = " ".join(run(command).stderr.split())
        assert f"the analyzer {analyzer} was changed after the training" in told, command
        assert "analyzer.mine.filter was" in told and "stop" in told
