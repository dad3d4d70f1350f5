"""``ssi train`` as it is typed."""

from __future__ import annotations

import html
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.cli.removed import REMOVED
from reranker.engines import WriteOp, open_engine
from reranker.models.model_folder import load_model
from tests.unit.training.synthetic import synonyms, write_documents, write_links

SEARCHED = "was removed in 0.2: its value is fixed: a search for it gained nothing (docs/figures/learning.md)"
NEVER = "was removed in 0.2: it never improved a corpus (docs/figures/learning.md)"
ONE_JUDGE = (
    "was removed in 0.2: training compares the forms of the score, of which the tuned lexical score is one, and "
    "`ssi evaluate` compares a written model with tuned baselines"
)
QUICK = (
    "--dim",
    "10",
    "--fields",
    "title^1,text^1",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    documents, links = synonyms()
    write_documents(folder / "docs.jsonl", documents)
    write_links(folder / "links.tsv", links)
    write_links(folder / "valid.tsv", links[::9])
    write_links(folder / "train.tsv", [link for number, link in enumerate(links) if number % 9])
    topics = sorted({document["topic"] for document in documents})
    french = [d for d in documents if d["id"].startswith("fr")]
    write_links(folder / "queries.tsv", [(f"q{t}-{w}", f"en{t}x{w}") for t in topics for w in range(4)])
    judged = [
        (f"q{t}-{w}", d["id"], str(int(d["topic"] == t))) for t in topics for w in range(4) for d in french[t % 3 :: 3]
    ]
    write_links(folder / "qrels.tsv", judged)
    write_links(
        folder / "pairs.tsv",
        [
            (f"en{t}x{w}", better["id"], worse["id"], "1")
            for t in topics
            for w in range(4)
            for better, worse in zip([d for d in french if d["topic"] == t], french[t : t + 5], strict=False)
            if better["id"] != worse["id"]
        ],
    )
    return folder


def train(folder: Path, model: Path, *options: str) -> Result:
    paths = [str(folder / option) if (folder / option).is_file() else option for option in options]
    start = ["train", "--docs", str(folder / "docs.jsonl"), "--model", str(model)]
    return CliRunner().invoke(main, [*start, *paths])


def report_of(result: Result, code: int = 0) -> dict[str, Any]:
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout))


def flat(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("evidence", "split"),
    [
        (("--links", "links.tsv"), "links"),
        (("--links", "train.tsv", "--valid", "valid.tsv"), "given"),
        (("--qrels", "qrels.tsv", "--query-file", "queries.tsv"), "queries"),
        (("--pairs", "pairs.tsv"), "queries"),
    ],
    ids=["links", "valid", "qrels", "pairs"],
)
def test_a_model_is_written(folder: Path, tmp_path: Path, evidence: tuple[str, ...], split: str) -> None:
    report = report_of(train(folder, tmp_path / "model", *evidence, *QUICK, "--json"))
    model = load_model(tmp_path / "model")
    assert report["model_id"] == model.model_id
    assert report["encoder_id"] == model.encoder_id
    assert report["split"] == split == model.metrics["validation"]["split"]
    assert report["valid_map"] >= report["lexical_map"]
    assert f"MAP {report['valid_map']:.4f}" in report["form"]["sentence"] and "comparison" not in report
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "a checkpoint was left behind"


def test_the_command_that_compares_with_the_own_search_body_is_printed_for_an_index(
    folder: Path, tmp_path: Path
) -> None:
    model, spec = tmp_path / "a model", f"tantivy:{tmp_path / 'index'}"
    of_index = ("--engine", spec, "--index", "shop")
    result = train(folder, model, "--links", "links.tsv", *QUICK, *of_index)
    assert result.exit_code == 0, result.output
    assert (
        f"\nssi calibrate --engine {spec} --index shop --model '{model}' --body body.json --qrels other-qrels.tsv "
        "--query-file other-queries.tsv\n"
    ) in result.stdout, "on one line, to be pasted"
    assert "with the engine's order" in result.stdout
    assert "ssi calibrate" not in train(folder, tmp_path / "other", "--links", "links.tsv", *QUICK).stdout
    report_of(train(folder, model, "--links", "links.tsv", *QUICK, *of_index, "--json"))


def test_bm25_in_the_engine_is_compared_on_the_held_out_queries(folder: Path, tmp_path: Path) -> None:
    spec = f"tantivy:{tmp_path / 'index'}"
    documents = {json.loads(line)["id"]: json.loads(line) for line in (folder / "docs.jsonl").read_text().splitlines()}
    with closing(open_engine(spec)) as engine:
        engine.create_index("shop", {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}})
        engine.bulk("shop", [WriteOp("index", name, source) for name, source in documents.items()])
        engine.refresh("shop")
    judged = ("--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--dim", "4")
    of_index = ("--engine", spec, "--index", "shop")
    report = report_of(train(folder, tmp_path / "model", *judged, *of_index, "--json"))
    found = report["own_search"]
    assert found["n_queries"] == report["form"]["queries"]
    assert found["model"] == pytest.approx(report["valid_map"])
    printed = train(folder, tmp_path / "printed", *judged, *of_index).stdout
    assert f"BM25 over the model's text fields in the engine has MAP {found['engine']:.4f}" in " ".join(printed.split())
    missing = train(folder, tmp_path / "missing", *judged, "--engine", spec, "--index", "other", "--json")
    assert report_of(missing)["own_search"] is None and "was not compared" in missing.stderr


def test_quarters_of_grades_train_the_same_model_as_whole_ones(folder: Path, tmp_path: Path) -> None:
    """Relevant is every grade above 0; before, judgments of .25 and .5 were said to be empty."""
    lines = (folder / "qrels.tsv").read_text()
    (tmp_path / "quarters.tsv").write_text(lines.replace("\t1\n", "\t.25\n"))
    queries = ("--query-file", "queries.tsv", *QUICK, "--json")
    whole = report_of(train(folder, tmp_path / "whole", "--qrels", "qrels.tsv", *queries))
    result = train(folder, tmp_path / "quarters", "--qrels", str(tmp_path / "quarters.tsv"), *queries)
    quarters = report_of(result)
    assert (quarters["valid_map"], quarters["best_epoch"]) == (whole["valid_map"], whole["best_epoch"])
    assert f"{lines.count(chr(9) + '1' + chr(10))} of {lines.count(chr(10))} judgments" in flat(result).replace(",", "")


def test_judgments_of_which_none_is_relevant_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none.tsv").write_text("q0-0\tfr012\t0\nq0-1\tfr013\t-1\n")
    result = train(folder, tmp_path / "model", "--qrels", str(tmp_path / "none.tsv"), "--query-file", "queries.tsv")
    assert result.exit_code == 6
    assert "none of the 2 judgments has a grade above 0" in flat(result)


def test_the_comparison_is_said(folder: Path, tmp_path: Path) -> None:
    result = train(folder, tmp_path / "model", "--links", "links.tsv", *QUICK)
    assert result.exit_code == 0, result.output
    assert "better than the lexical score" in flat(result)
    assert result.stdout.count("MAP 0") == 1, "the model has one figure"
    assert "training once more on everything" in result.stderr


def test_the_report_and_the_summary_say_the_same(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    report = report_of(train(folder, tmp_path / "m", "--links", "links.tsv", *QUICK, "--report", str(path), "--json"))
    assert report["summary"].startswith("Trained on 360 links over 240 documents")
    assert html.escape(report["summary"]) in path.read_text()


def test_equal_commands_give_equal_models(folder: Path, tmp_path: Path) -> None:
    ids = [
        report_of(train(folder, tmp_path / name, "--links", "links.tsv", *QUICK, "--json"))["model_id"] for name in "ab"
    ]
    assert ids[0] == ids[1]


def test_a_warm_start(folder: Path, tmp_path: Path) -> None:
    base = report_of(train(folder, tmp_path / "base", "--links", "train.tsv", *QUICK, "--fields", "text", "--json"))
    options = ("--links", "valid.tsv", "--warm-start", str(tmp_path / "base"))
    report = report_of(train(folder, tmp_path / "model", *options, "--json"))
    assert report["model_id"] != base["model_id"]
    models = [load_model(tmp_path / name) for name in ("base", "model")]
    assert models[0].encoder.document_vocabulary.words == models[1].encoder.document_vocabulary.words
    assert [spec.path for spec in models[1].encoder.view.fields] == ["text"], "the fields are those of the base"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (
            (),
            2,
            "--links, --qrels or --pairs to learn from, or only --vector-field; given: none of them",
        ),
        (("--links", "links.tsv", "--pairs", "pairs.tsv"), 2, "given: --links and --pairs"),
        (("--qrels", "qrels.tsv"), 2, "give the texts with --query-file"),
        (("--links", "links.tsv", "--query-file", "queries.tsv"), 2, "--query-file contains the queries of --qrels"),
        (("--links", "links.tsv", "--dim", "0"), 2, "'--dim': 0 is not in the range x>=1"),
        (("--links", "links.tsv", "--seed", "-1"), 2, "'--seed': -1 is not in the range x>=0"),
        (("--links", "links.tsv", "--analyzer", "engine:i/f"), 2, "name the engine with --engine"),
        (("--links", "links.tsv", "--fields", ""), 2, "at least one field"),
        (
            ("--links", "links.tsv", "--warm-start", "m", "--dim", "5", "--html"),
            2,
            "--html, --dim cannot be given with --warm-start",
        ),
        (("--links", "links.tsv", "--warm-start", "m"), 5, "m"),
        (("--links", "links.tsv", "--report", "nowhere/report.html"), 2, "'nowhere/report.html' does not exist"),
        (("--links", "nowhere.tsv"), 3, "nowhere.tsv"),
        (("--links", "queries.tsv"), 3, "100% of the 48 preferences cannot be used: 48 unknown query id (q0-0, q0-1"),
    ],
)
def test_what_cannot_be_done_is_said(
    folder: Path, tmp_path: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    result = train(folder, tmp_path / "model", *options)
    assert (result.exit_code, message in flat(result)) == (code, True), result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "model").exists()


def test_bad_lines_are_counted_and_kept(folder: Path, tmp_path: Path) -> None:
    docs, links = tmp_path / "docs.jsonl", tmp_path / "links.tsv"
    docs.write_text((folder / "docs.jsonl").read_text() + "{broken\n")
    links.write_text((folder / "links.tsv").read_text() + "only one column\n")
    rejects = tmp_path / "rejects.jsonl"
    result = train(tmp_path, tmp_path / "model", "--links", str(links), *QUICK, "--rejects", str(rejects), "--json")
    report = report_of(result, code=8)
    assert report["rejected_lines"] == 2
    lines, preferences = report["accounts"]
    assert lines["given"] == lines["used"] + 2 == 602
    assert {part["reason"]: part["samples"] for part in lines["left_out"]} == {
        "columns": ["line 361"],
        "not_json": ["line 241"],
    }
    assert (preferences["given"], preferences["used"], preferences["left_out"]) == (360, 360, [])
    assert "602 given = 600 used + 2 left out: 1 columns (line 361); 1 not_json (line 241)" in flat(result)
    assert len(rejects.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("n_unknown", "code", "words"), [(36, 8, ""), (80, 8, "warning: 18% of the 440 "), (400, 3, "")]
)
def test_preferences_with_unknown_ids_are_counted_reported_or_refused(
    folder: Path, tmp_path: Path, n_unknown: int, code: int, words: str
) -> None:
    links = tmp_path / "links.tsv"
    rows = [f"en000\tgone{number}\n" for number in range(n_unknown)]
    links.write_text((folder / "links.tsv").read_text() + "".join(rows))
    result = train(folder, tmp_path / "model", "--links", str(links), *QUICK, "--json")
    assert result.exit_code == code, result.output
    assert words in flat(result)
    assert ("warning:" in result.stderr) == bool(words)
    assert f"{n_unknown} unknown document id (gone0, gone1, gone2, ...)" in flat(result)
    assert (tmp_path / "model").exists() == (code == 8)
    if code == 3:
        assert "At most 50% are accepted" in flat(result) and "remove the lines with other ids" in flat(result)


def test_pairs_are_accounted_for(folder: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    given = (folder / "pairs.tsv").read_text().splitlines()
    query, better, worse, weight = given[1].split("\t") if given[0].startswith("query") else given[0].split("\t")
    pairs.write_text("\n".join([*given, "\t".join((query, worse, better, weight))]) + "\n")
    result = train(folder, tmp_path / "model", "--pairs", str(pairs), *QUICK)
    assert result.exit_code == 0, result.output
    n = len(given) + 1
    assert f"pairs: {n} given = {n - 2} used + 2 left out: 2 an opposite pair has the same weight" in flat(result)
    pairs.write_text("\n".join([*given, f"{query}\tgone\t{worse}\t1"]) + "\n")
    result = train(folder, tmp_path / "model", "--pairs", str(pairs), *QUICK)
    assert result.exit_code == 8, result.output
    assert f"pairs: {n} given = {n - 1} used + 1 left out: 1 unknown document id (gone)" in flat(result)


def test_judged_queries_without_a_text_are_counted(folder: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.tsv"
    lines = (folder / "queries.tsv").read_text().splitlines(keepends=True)
    queries.write_text("".join(lines[2:]))
    missing = [line.split("\t")[0] for line in lines[:2]]
    result = train(folder, tmp_path / "model", "--qrels", "qrels.tsv", "--query-file", str(queries), *QUICK, "--json")
    (left_out,) = json.loads(result.stdout)["accounts"][1]["left_out"]
    assert (result.exit_code, left_out["reason"], left_out["samples"]) == (8, "unknown query id", missing)


def test_a_damaged_checkpoint_is_refused_and_can_be_forgotten(folder: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.checkpoint"
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text("{")
    options = ("--links", "links.tsv", *QUICK)
    refused = train(folder, tmp_path / "model", *options)
    assert refused.exit_code == 5
    assert "model.checkpoint' is damaged" in flat(refused)
    shutil.rmtree(tmp_path / "model.checkpoint")
    assert train(folder, tmp_path / "model", *options).exit_code == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--model-class", "cubic"),
            f"--model-class {NEVER}",
        ),
        (
            ("--model-class=low_rank",),
            f"--model-class {NEVER}",
        ),
        (("--tied",), f"--tied {NEVER}"),
        (("--rate", ".1"), f"--rate {SEARCHED}"),
        (("--margin-identity", "6"), f"--margin-identity {SEARCHED}"),
        (("--set", "html=true"), "--set was removed in 0.2: every setting is an option of its own: write --KEY VALUE"),
        (("--set=html=true",), "--set was removed in 0.2: every setting is an option of its own: write --KEY VALUE"),
        (("--max-rows", "9"), "--max-rows was removed in 0.2: the vocabulary has every word of the documents"),
        (("--recipe", "paper"), "--recipe was removed in 0.2: `ssi reproduce` trains as the papers do"),
        (("--no-compare",), f"--no-compare {ONE_JUDGE}"),
        (("--compare",), f"--compare {ONE_JUDGE}"),
        (("--allow-worse",), f"--allow-worse {ONE_JUDGE}"),
        (("--no-identity",), "--no-identity was removed in 0.2: every model has the word match q.d in its score"),
    ],
)
def test_removed_options_say_so(folder: Path, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    result = train(folder, tmp_path / "m", "--links", "links.tsv", *options)
    assert result.exit_code == 2
    assert flat(result) == f"error: {told}"
    assert not (tmp_path / "m").exists()


def test_removed_keys_of_the_configuration_file_say_so(tmp_path: Path) -> None:
    (tmp_path / "ssi.toml").write_text('[train]\nmodel_class = "cubic"\n')
    result = CliRunner().invoke(main, ["--config", str(tmp_path / "ssi.toml"), "train", "--model", "m"])
    assert result.exit_code == 2
    assert f"table [train]: --model-class {NEVER}" in flat(result)


@pytest.mark.parametrize(("key", "reason"), REMOVED["train"].items())
def test_every_removed_option_is_refused_in_both_forms(tmp_path: Path, key: str, reason: str) -> None:
    name = f"--{key.replace('_', '-')}"
    for options in ((name, "1"), (f"{name}=1",)):
        result = train(tmp_path, tmp_path / "m", *options)
        assert (result.exit_code, flat(result)) == (2, f"error: {name} was removed in 0.2: {reason}")
