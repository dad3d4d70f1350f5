"""`ssi impacts` and `ssi search --route impacts` on the embedded engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from indexer.build import BuildOptions, build_index
from reranker.cli.main import main
from reranker.config import IMPACT_BOOST
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
    judged = {
        number: [name for name, one in documents.items() if f"word{number}" in one["text"]] for number in range(12)
    }
    (folder / "queries.tsv").write_text("".join(f"{number}\tword{number} word3\n" for number in judged))
    (folder / "qrels.tsv").write_text(
        "".join(f"{number}\t{name}\t1\n" for number, names in judged.items() for name in names[:5])
    )
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


def test_an_explained_search_shows_words_with_their_impacts(run: Run) -> None:
    asked = ("search", "word3 word8", "--route", "impacts", "--boost", "2", "--size", "3", "--explain")
    page = json.loads(run(*asked, "--json").stdout)
    shown = run(*asked)
    assert shown.exit_code == 0, shown.output
    lines = {" ".join(line.split()) for line in shown.stdout.splitlines()}
    for hit in page["hits"]:
        *words, _, own = hit["explanation"]
        assert {row["query_word"] for row in words} <= {"word3", "word8"}
        assert f"{hit['id']}: {hit['score']:.4f}" in lines
        assert f"{own['value']:+.4f} the engine's score" in lines
        for row in words:
            line = f"{row['value']:+.4f} {row['query_word']} its impact, times 2 {row['weight']:.3f}"
            assert line in lines


def test_explanations_that_take_too_long_are_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("search", "word3 word8", "--route", "impacts", "--explain", "--json")
    monkeypatch.setattr("reranker.rerank.search.RESERVED", 2.0)
    page = json.loads(run(*asked).stdout)
    assert page["reranked"] and len(page["hits"]) == 10
    assert all("explanation" not in hit for hit in page["hits"])
    assert page["notices"] == ["explanations were omitted: explaining 0 of 2 words took too long"]


def boosts_of(result: Result) -> set[float]:
    """Return the boosts of the clauses that `ssi impacts` prints."""
    (clause,) = (one for one in json.loads(result.stdout)["query"]["bool"]["should"] if "bool" in one)
    return {one["rank_feature"]["boost"] for one in clause["bool"]["should"]}


def test_a_fitted_boost_is_stored_and_used_for_its_body_and_mode(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reranker.rerank.calibration.boost.best_row", lambda values: 2)
    judged = ["--qrels", str(folder / "qrels.tsv"), "--query-file", str(folder / "queries.tsv"), "--route", "impacts"]
    dry = json.loads(run("calibrate", *judged, "--dry-run", "--json").stdout)
    assert (dry["boost"], dry["mode"], dry["kept"], dry["n_queries"]) == (1.0, "find", False, 12)
    assert [boost for boost, _ in dry["curve"]] == [0.5, 1, 2, 4, 8, 16, 32]
    assert boosts_of(run("impacts", "word3")) == {IMPACT_BOOST}
    shown = run("calibrate", *judged)
    assert shown.exit_code == 0, shown.output
    lines = {" ".join(line.split()) for line in shown.stdout.splitlines()}
    assert f"engine only (no impacts) {dry['engine']:.4f}" in lines
    assert f"boost 8 (default) {dry['default']:.4f}" in lines
    assert f"boost 1, on the queries used for fitting {dry['fitted']:.4f}" in lines
    assert "boost 1 for the mode find was stored in the release" in lines
    assert boosts_of(run("impacts", "word3")) == {1.0}
    assert boosts_of(run("impacts", "word3", "--boost", "8")) == {8.0}, "a given boost wins"
    assert boosts_of(run("impacts", "word3", "--mode", "reorder")) == {IMPACT_BOOST}, "fitted for another mode"
    (tmp_path / "body.json").write_text('{"query": {"match": {"text": "{{query}}"}}}')
    assert boosts_of(run("impacts", "word3", "--body", str(tmp_path / "body.json"))) == {IMPACT_BOOST}
    by_default, by_one, by_eight = (
        [
            hit["score"]
            for hit in json.loads(run("search", "word3", "--route", "impacts", "--json", *given).stdout)["hits"]
        ]
        for given in ((), ("--boost", "1"), ("--boost", "8"))
    )
    assert by_default == by_one != by_eight
    promoted = run("promote")
    assert "boost of the impacts: 1.0 (mode find, body " in promoted.stdout


@pytest.mark.parametrize("option", [("--signals", "price"), ("--probability",)])
def test_nothing_else_is_fitted_with_the_boost(run: Run, folder: Path, option: tuple[str, ...]) -> None:
    judged = ["--qrels", str(folder / "qrels.tsv"), "--query-file", str(folder / "queries.tsv"), "--route", "impacts"]
    result = run("calibrate", *judged, *option)
    assert result.exit_code == 2
    assert "fits only the boost of the impacts" in result.stderr


def test_a_boost_is_not_fitted_to_searches_without_impacts(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("".join(f"{number}\t...\n" for number in range(12)))
    judged = ["--qrels", str(folder / "qrels.tsv"), "--query-file", str(tmp_path / "queries.tsv"), "--route", "impacts"]
    result = run("calibrate", *judged)
    assert result.exit_code == 3
    assert "impacts cannot be added to the search of any query: the query has no word" in " ".join(
        result.stderr.split()
    )


@pytest.mark.parametrize(("option", "value"), [("--boost", "0"), ("--boost", "-1"), ("--mode", "boost")])
def test_values_out_of_range_are_refused(run: Run, option: str, value: str) -> None:
    assert run("impacts", "word3", option, value).exit_code == 2
