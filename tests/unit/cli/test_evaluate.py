"""``ssi evaluate`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.engines import WriteOp, open_engine
from reranker.evaluation import evaluate_run
from reranker.models.model_folder import save_model
from tests.unit.evaluation.read_run import read_run
from tests.unit.small_models import DOCUMENTS, small_model

IDS = ["ash", "oak", "powder", "fire", "empty", "pump"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(small_model(mean_vector=np.zeros(3, np.float32)), tmp_path / "model")
    lines = (json.dumps({"id": i, **d}) + "\n" for i, d in zip(IDS, DOCUMENTS, strict=True))
    (tmp_path / "docs.jsonl").write_text("".join(lines))
    (tmp_path / "test.tsv").write_text("ash\toak\nash\tpowder\nfire\tash\n")
    (tmp_path / "known.tsv").write_text("ash\tfire\noak\tash\npowder\tfire\n")
    (tmp_path / "qrels.tsv").write_text("q1\tpowder\t2\nq1\tash\t0\nq2\tpump\t1\n")
    (tmp_path / "queries.tsv").write_text("q1\tgrey powder\nq2\tp-4711x\n")
    return tmp_path


def evaluate(folder: Path, *options: str) -> Result:
    paths = [str(folder / option) if option and (folder / option).exists() else option for option in options]
    start = ["evaluate", "--docs", str(folder / "docs.jsonl"), "--model", str(folder / "model")]
    return CliRunner().invoke(main, [*start, *paths])


def report_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


LINKS = ("--links-test", "test.tsv", "--known", "known.tsv")


def test_links_as_json(folder: Path) -> None:
    report = report_of(evaluate(folder, *LINKS, "--json", "--run-dir", str(folder / "runs")))
    assert (report["queries"], report["documents"], report["relevant"]) == (2, 6, 3)
    assert report["dropped"] == {}
    assert set(report["systems"]) == {"model", "tfidf", "bm25"}
    assert set(report["systems"]["model"]) == {"AP", "P@10", "RR", "nDCG@10", "rank_loss"}
    run = read_run(folder / "runs" / "model.run")
    assert len(run["ash"]) == 4  # not itself, not the known link to fire
    lines = (folder / "runs" / "qrels.txt").read_text().split("\n")[:-1]
    qrels: dict[str, dict[str, float]] = {}
    for query, _, document, grade in (line.split() for line in lines):
        qrels.setdefault(query, {})[document] = float(grade)
    ap = evaluate_run(qrels, run, ["AP"])["AP"]
    assert report["systems"]["model"]["AP"]["mean"] == pytest.approx(sum(ap.values()) / len(ap))


def test_the_documents_of_an_index_are_those_of_the_file(folder: Path) -> None:
    engine = open_engine(f"tantivy:{folder / 'index'}")
    engine.create_index("trees", {"dynamic": False, "properties": {}})
    engine.bulk("trees", [WriteOp("index", i, dict(d)) for i, d in zip(IDS, DOCUMENTS, strict=True)])
    engine.refresh("trees")
    engine.close()
    of_file = report_of(evaluate(folder, *LINKS, "--json"))
    live = ["evaluate", "--engine", f"tantivy:{folder / 'index'}", "--model", str(folder / "model"), "--json"]
    files = ["--links-test", str(folder / "test.tsv"), "--known", str(folder / "known.tsv")]
    of_index = report_of(CliRunner().invoke(main, [*live, "--index", "trees", *files]))
    assert of_index["systems"] == of_file["systems"] and of_index["documents"] == 6
    neither = CliRunner().invoke(main, [*live, *files])
    assert neither.exit_code == 2 and "--docs FILE" in neither.stderr and "--index" in neither.stderr


def test_the_table_says_which_is_better(folder: Path) -> None:
    result = evaluate(folder, *LINKS, "--baselines", "tfidf")
    assert result.exit_code == 0, result.output
    assert "rank loss" in result.stdout
    assert "best lexical baseline (tfidf)" in " ".join(result.stdout.split())
    assert "test links: 3 given, all used" in result.stderr


def test_equal_seeds_give_equal_reports(folder: Path) -> None:
    options = (*LINKS, "--queries", "keywords:3", "--json", "--seed")
    assert evaluate(folder, *options, "5").stdout == evaluate(folder, *options, "5").stdout


def test_impacts_are_a_system_but_no_baseline(folder: Path) -> None:
    refused = evaluate(folder, *LINKS, "--impacts", "8")
    assert refused.exit_code == 2 and "--queries keywords:K" in refused.stderr
    found = report_of(evaluate(folder, *LINKS, "--queries", "keywords:3", "--impacts", "8", "--json"))
    assert set(found["systems"]) == {"model", "impacts", "tfidf", "bm25"} and "impacts" in found["tests"]
    assert found["best_baseline"] in {"tfidf", "bm25"}
    judged = ("--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--baselines", "", "--impacts", "0")
    report = report_of(evaluate(folder, *judged, "--json"))
    assert set(report["systems"]) == {"model", "impacts"} and report["verdict"] == "alone"
    assert "impacts" in evaluate(folder, *judged).stdout


def test_without_reverse_links(folder: Path) -> None:
    report = report_of(evaluate(folder, *LINKS, "--without-reverse", "known.tsv", "--json"))
    assert report["relevant"] == 3
    assert report["without_reverse"]["relevant"] == 1
    assert report["without_reverse"]["dropped"]["reverse is a known link"] == 2


def test_a_pool(folder: Path) -> None:
    (folder / "pool.txt").write_text("oak\npump\nunknown\n")
    result = evaluate(folder, *LINKS, "--pool", "pool.txt", "--json", "--baselines", "")
    assert result.exit_code == 8, result.output
    told = "ids of the pool: 3 given = 2 used + 1 left out: 1 unknown document id (unknown)"
    assert told in " ".join(result.stderr.split())
    report = json.loads(result.stdout)
    assert (report["documents"], report["relevant"], report["verdict"]) == (2, 1, "alone")


def test_judged_queries(folder: Path) -> None:
    options = ("--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--json")
    untuned = evaluate(folder, *options)
    assert "not tuned" in untuned.stderr
    report = report_of(untuned)
    assert (report["queries"], report["relevant"]) == (2, 2)
    assert report["settings"]["bm25"]["tuned_ap"] is None
    tuned = report_of(evaluate(folder, *options, "--tune", "qrels.tsv"))
    assert tuned["settings"]["bm25"]["tuned_ap"] is not None
    assert set(tuned["systems"]) == {"model", "tfidf", "bm25"}
    remembering = report_of(evaluate(folder, *options, "--tune", "qrels.tsv", "--baselines", "bm25,bm25+queries"))
    assert set(remembering["systems"]) == {"model", "bm25", "bm25+queries"}
    assert len(remembering["settings"]["bm25+queries"]["field_weights"]) == 1 + len(
        remembering["settings"]["bm25"]["field_weights"]
    )
    assert remembering["systems"]["bm25"] == tuned["systems"]["bm25"]


def test_baselines_are_tuned_on_judgements_of_documents_outside_the_pool(folder: Path) -> None:
    (folder / "pool.txt").write_text("pump\noak\n")
    (folder / "tune.tsv").write_text("q1\tpowder\t2\n")
    judged = ("--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--json")
    report = report_of(evaluate(folder, *judged, "--pool", "pool.txt", "--tune", "tune.tsv"))
    assert report["documents"] == 2
    assert report["settings"]["bm25"]["tuned_ap"] == 1.0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 2, "give either --links-test"),
        (("--links-test", "test.tsv", "--qrels", "qrels.tsv"), 2, "give either --links-test"),
        (("--qrels", "qrels.tsv"), 2, "give both, or neither"),
        (
            ("--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--queries", "keywords:3"),
            2,
            "apply to --links-test",
        ),
        ((*LINKS, "--queries", "words"), 2, "keywords:K"),
        ((*LINKS, "--baselines", "bm52"), 2, "'bm52' is not known"),
        ((*LINKS, "--baselines", "bm25+queries"), 2, "give --tune in addition to --qrels"),
        ((*LINKS, "--baselines", "lsi:900"), 2, "lsi:900 is not possible"),
        (("--links-test", "missing.tsv"), 3, "missing.tsv"),
        (("--links-test", "queries.tsv"), 3, "100% of the 2 test links cannot be used: 2 unknown query id (q1, q2)"),
        (("--links-test", "queries.tsv", "--allow-partial"), 3, "no query is left"),
    ],
)
def test_wrong_usage_is_explained(folder: Path, options: tuple[str, ...], code: int, message: str) -> None:
    result = evaluate(folder, *options)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_unknown_ids_are_counted_reported_or_refused(folder: Path) -> None:
    (folder / "test.tsv").write_text("ash\toak\nash\tpowder\nfire\tash\nash\tnowhere\nnobody\tash\n")
    result = evaluate(folder, *LINKS, "--json")
    assert result.exit_code == 8, result.output
    _, links, known = json.loads(result.stdout)["accounts"]
    assert (known["kind"], known["given"], known["used"]) == ("known links", 3, 3)
    assert (links["kind"], links["given"], links["used"]) == ("test links", 5, 3)
    assert {part["reason"]: part["samples"] for part in links["left_out"]} == {
        "unknown document id": ["nowhere"],
        "unknown query id": ["nobody"],
    }
    assert "warning: 40% of the 5 test links cannot be used" in " ".join(result.stderr.split())
    (folder / "qrels.tsv").write_text("q1\tpowder\t2\nq1\tgone\t1\nq3\tash\t1\n")
    judged = ("--qrels", "qrels.tsv", "--query-file", "queries.tsv")
    refused = evaluate(folder, *judged)
    assert refused.exit_code == 3
    assert "67% of the 3 judgments cannot be used" in " ".join(refused.stderr.split())
    partial = evaluate(folder, *judged, "--allow-partial")
    assert partial.exit_code == 8, partial.output
    assert "judgments: 3 given = 1 used + 2 left out" in " ".join(partial.stderr.split())


JUDGED = ("--qrels", "qrels.tsv", "--query-file", "queries.tsv")


@pytest.mark.parametrize(
    ("options", "option", "kind", "sound", "line", "reason"),
    [
        (LINKS[:2], "--known", "known links", "known.tsv", "none{}\tash", "unknown query id"),
        (LINKS, "--tune", "tuning links", "known.tsv", "none{}\tash", "unknown query id"),
        (LINKS, "--without-reverse", "links of --without-reverse", "known.tsv", "none{}\tash", "unknown query id"),
        (JUDGED, "--tune", "tuning judgments", "qrels.tsv", "none{}\tash\t1", "unknown query id"),
        (JUDGED, "--known", "known links", "known.tsv", "another query\tnone{}", "unknown document id"),
    ],
)
def test_unknown_ids_of_the_other_files_are_counted_reported_or_refused(
    folder: Path, options: tuple[str, ...], option: str, kind: str, sound: str, line: str, reason: str
) -> None:
    def messages(n_unknown: int, code: int, *more: str) -> str:
        lines = (folder / sound).read_text() + "".join(f"{line.format(number)}\n" for number in range(n_unknown))
        (folder / "more.tsv").write_text(lines)
        result = evaluate(folder, *options, option, "more.tsv", *more)
        assert result.exit_code == code, result.output
        return " ".join(result.stderr.split())

    assert f"{kind}: 3 given, all used" in messages(0, 0)
    told = messages(1, 8)
    assert f"{kind}: 4 given = 3 used + 1 left out: 1 {reason} (none0)" in told
    assert f"warning: 25% of the 4 {kind} cannot be used" in told
    refused = messages(9, 3)
    assert f"75% of the 12 {kind} cannot be used" in refused and "--allow-partial" in refused
    assert f"= 3 used + 9 left out: 9 {reason} (none0, none1, none2, ...)" in messages(9, 8, "--allow-partial")


def test_one_query_shows_no_difference(folder: Path) -> None:
    (folder / "qrels.tsv").write_text("q2\tpump\t1\nq2\tash\t0\n")
    (folder / "tune.tsv").write_text("q1\tpowder\t2\n")
    result = evaluate(folder, *JUDGED, "--tune", "tune.tsv", "--json")
    report = report_of(result)
    assert (report["queries"], report["verdict"]) == (1, "no difference")
    assert {test["AP"]["p_t_test"] for test in report["tests"].values()} == {1.0}
    assert "warning: one query has no confidence interval" in result.stderr
    assert "one query" not in evaluate(folder, *LINKS).stderr


def test_judgments_of_one_grade(folder: Path) -> None:
    (folder / "qrels.tsv").write_text("".join(f"{query}\t{id_}\t3\n" for query in ("q1", "q2") for id_ in IDS))
    report = report_of(evaluate(folder, *JUDGED, "--json"))
    assert report["verdict"] == "no difference"
    assert {(one["AP"]["mean"], one["nDCG@10"]["mean"]) for one in report["systems"].values()} == {(1.0, 1.0)}
    (folder / "qrels.tsv").write_text("q1\tpowder\t0\nq2\tash\t0\n")
    refused = evaluate(folder, *JUDGED)
    assert refused.exit_code == 3
    assert "has a grade above 0, so no document is relevant" in " ".join(refused.stderr.split())


def test_quarters_of_grades_are_as_relevant_as_whole_ones(folder: Path) -> None:
    (folder / "qrels.tsv").write_text("q1\tpowder\t2\nq1\tash\t1\nq2\tpump\t0\nq2\toak\t1\n")
    whole = report_of(evaluate(folder, *JUDGED, "--tune", "qrels.tsv", "--baselines", "bm25,bm25+queries", "--json"))
    (folder / "qrels.tsv").write_text("q1\tpowder\t.5\nq1\tash\t.25\nq2\tpump\t0\nq2\toak\t.25\n")
    result = evaluate(folder, *JUDGED, "--tune", "qrels.tsv", "--baselines", "bm25,bm25+queries", "--json")
    assert "relevant by a grade above 0: 3 of 4 judgments" in result.stderr
    quarters = report_of(result)
    assert quarters["relevant"] == whole["relevant"] == 3
    for name, system in whole["systems"].items():
        for measure in ("AP", "P@10", "RR"):
            assert quarters["systems"][name][measure] == system[measure], name


@pytest.mark.parametrize(
    ("name", "lines", "kind"),
    [
        ("qrels.tsv", "q1\tpowder\tgood\nq2\tpump\tbad\n", "judgments"),
        ("queries.tsv", "q1\tgrey\tpowder\nq2\tp\t4711x\n", "queries"),
        ("tune.tsv", "q1\tpowder\tgood\nq2\tpump\tbad\n", "tuning judgments"),
        ("test.tsv", "ash oak\nash powder\n", "test links"),
    ],
)
def test_the_reason_of_a_rejection_is_said_if_nothing_is_left(folder: Path, name: str, lines: str, kind: str) -> None:
    (folder / "tune.tsv").write_text("q1\tpowder\t1\n")
    (folder / name).write_text(lines)
    options = LINKS if name == "test.tsv" else (*JUDGED, "--tune", "tune.tsv")
    result = evaluate(folder, *options)
    said = " ".join(result.stderr.split())
    assert result.exit_code == 3
    assert f"none of the {kind} of" in said and "all 2 were refused, the last one at line 2: " in said
    assert "input is empty" not in said


def test_bad_lines_are_counted(folder: Path) -> None:
    (folder / "test.tsv").write_text("ash\toak\nonly one column\nfire\tash\n")
    result = evaluate(folder, *LINKS, "--json")
    assert result.exit_code == 8
    report = json.loads(result.stdout)
    assert report["relevant"] == 2
    assert "account" not in report
    records = report["accounts"][0]
    assert records["left_out"] == [{"reason": "columns", "count": 1, "samples": ["line 2"]}]
    assert records["given"] == records["used"] + 1
    assert "1 left out: 1 columns (line 2)" in " ".join(result.stderr.split())


def test_a_model_that_is_none(folder: Path) -> None:
    result = CliRunner().invoke(
        main,
        [
            "evaluate",
            "--docs",
            str(folder / "docs.jsonl"),
            "--links-test",
            str(folder / "test.tsv"),
            "--model",
            str(folder / "nothing"),
        ],
    )
    assert result.exit_code == 5
    assert "holds no model" in " ".join(result.stderr.split())


def test_help_has_examples() -> None:
    result = CliRunner().invoke(main, ["evaluate", "--help"])
    assert result.exit_code == 0
    assert "keywords:10" in result.output
    assert "Examples:" in result.output
