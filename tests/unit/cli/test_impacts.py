"""`ssi impacts` and `ssi search --route impacts` on the embedded engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from indexer.build import BuildOptions, build_index
from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from tests.contract.test_impacts import model_with_impacts
from tests.contract.test_indexer import write_file
from tests.served import random_documents

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("impacts")
    documents = random_documents(40)
    model = model_with_impacts(documents)
    save_model(model, folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSI_STATE_DIR", str(folder / "state"))
        engine = open_engine(f"tantivy:{folder / 'engine'}")
        path = write_file(folder / "docs.jsonl", documents)
        build_index(engine, "shop", path, model, BuildOptions(routes=("impacts",)))
        build_index(engine, "plain", path, model)
        engine.close()
    return folder


@pytest.fixture
def run(folder: Path) -> Run:
    def run(*arguments: str, index: str = "shop") -> Result:
        command, *others = arguments
        where = ["--engine", f"tantivy:{folder / 'engine'}", "--index", index, "--model", str(folder / "model")]
        return CliRunner().invoke(main, [command, *others, *where])

    return run


def test_a_query_is_printed_with_a_clause_for_each_word(run: Run) -> None:
    result = run("impacts", "word3 word8", "--boost", "2")
    assert result.exit_code == 0, result.output
    own, impacts = json.loads(result.stdout)["query"]["bool"]["should"]
    assert own["multi_match"]["query"] == "word3 word8"
    clauses = [one["rank_feature"] for one in impacts["bool"]["should"]]
    assert [clause["field"].partition(".")[2] for clause in clauses] == ["word3", "word8"]
    assert {clause["boost"] for clause in clauses} == {2.0}


def test_the_mode_and_the_body_are_those_of_the_user(run: Run, tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text('{"query": {"match": {"text": "{{query}}"}}, "size": 3}')
    result = run("impacts", "word3", "--mode", "reorder", "--body", str(tmp_path / "body.json"))
    body = json.loads(result.stdout)
    assert body["size"] == 3
    assert body["query"]["bool"]["must"] == [{"match": {"text": "word3"}}]
    assert len(body["query"]["bool"]["should"]) == 1


def test_a_template_is_refused_with_the_reason(run: Run) -> None:
    result = run("impacts")
    assert result.exit_code != 0
    assert "does not search a field of the type rank_features by a text" in result.stderr
    assert "give the query" in result.stderr


@pytest.mark.parametrize("arguments", [("impacts", "word3"), ("search", "word3", "--route", "impacts")])
def test_an_index_without_impacts_names_the_command_that_writes_them(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, index="plain")
    assert result.exit_code != 0
    assert "ssi revectorize" in result.stderr
    assert "--routes impacts" in result.stderr


def test_a_search_by_impacts_shows_hits(run: Run) -> None:
    result = run("search", "word3 word8", "--route", "impacts", "--json")
    assert result.exit_code == 0, result.output
    page = json.loads(result.stdout)
    assert page["reranked"]
    assert len(page["hits"]) == 10
    scores = [hit["score"] for hit in page["hits"]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(("option", "value"), [("--boost", "0"), ("--boost", "-1"), ("--mode", "boost")])
def test_values_out_of_range_are_refused(run: Run, option: str, value: str) -> None:
    assert run("impacts", "word3", option, value).exit_code == 2
