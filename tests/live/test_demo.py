"""The demonstration on a real engine: made, made again over an earlier one, and searchable by the command it prints."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.demo import run
from reranker.engines import open_engine
from reranker.releases import forget_control
from tests.unit.demo.test_demo import library_of_things


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_the_demonstration_on_an_engine(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = f"{kind}:{request.getfixturevalue(f'{kind}_url')}"
    source = library_of_things(tmp_path / "lib")
    monkeypatch.setattr("reranker.demo.corpus.library_folder", lambda: source)
    monkeypatch.setattr(run, "N_EXAMPLES", 0)
    monkeypatch.chdir(tmp_path)
    with closing(open_engine(spec)) as engine:
        try:
            for dim in ("8", "6"):
                arguments = ["demo", "--dim", dim, "--engine", spec, "--json"]
                result = CliRunner().invoke(main, arguments, catch_exceptions=False)
                assert result.exit_code == 0, result.stderr
                report = json.loads(result.stdout)
                assert engine.count(run.INDEX) == report["documents"] == 120
            again = CliRunner().invoke(main, [*arguments, "--once", "--wait-s", "5"], catch_exceptions=False)
            assert again.exit_code == 0
            assert "holds an earlier demonstration" in again.stderr
            names = engine.index_names(run.INDEX)
            assert names == ("demo-000002",)
            search = shlex.split(report["commands"][0])
            found = CliRunner().invoke(main, [*search[1:], "--json"], catch_exceptions=False)
            assert found.exit_code == 0, found.stderr
            assert json.loads(found.stdout)["alpha_origin"] == "calibrated"
        finally:
            for name in ("demo-000001", "demo-000002"):
                engine.delete_index(name)
                forget_control(engine, [name])
