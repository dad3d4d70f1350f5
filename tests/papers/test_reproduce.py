"""``ssi reproduce``: every task in small mode on a small corpus, what is used again, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from papers import registry
from papers.results import Results, over_seeds
from reranker.cli.main import main
from tests.papers.corpus import write_corpus
from tests.papers.made_collections import write_collection

RETRIEVAL = ("T1a", "T1b", "T2", "T3a", "T3b", "T3c", "T3d", "T9", "T12", "T13")
FAST = ("--small", "--steps", "2000", "--every", "1000", "--grid", "2", "--slots", "3000", "--iterations", "2")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpora") / "made")


def ssi(*arguments: object, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(main, ["reproduce", *map(str, arguments)], env=env or {"SSI_DATA": None})


@pytest.mark.parametrize("task", RETRIEVAL)
def test_every_task_runs_in_small_mode(task: str, corpus: Path, tmp_path: Path) -> None:
    systems = ("--systems", "tf-idf,utv-plus-i") if task in ("T2", "T9", "T12") else ()
    result = ssi(task, *FAST, *systems, "--corpus", corpus, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    section = json.loads(result.stdout)["sections"][0]
    assert section["task"] == task and section["tables"][0]["rows"]
    assert section["sentences"][0].startswith("Small mode")
    assert (tmp_path / "report.html").stat().st_size > 1_000
    for picture in section["pictures"]:
        assert (tmp_path / task / f"{picture['name']}.svg").read_bytes().startswith(b"<svg")
    assert bool(section["pictures"]) == (task in ("T9", "T12", "T13"))


def test_tasks_of_the_registry_are_those_run_here_or_elsewhere() -> None:
    assert set(RETRIEVAL) <= set(registry.tasks())


def test_a_table_shows_the_papers_figures_beside_ours_and_says_so(corpus: Path, tmp_path: Path) -> None:
    result = ssi("T3b", *FAST, "--systems", "tf-idf,utv-plus-i", "--corpus", corpus, "--out", tmp_path, "--json")
    table = json.loads(result.stdout)["sections"][0]["tables"][0]
    assert [column for column in table["columns"] if column.endswith("paper")] == [
        "rank loss, paper",
        "AP, paper",
        "P@10, paper",
    ]
    row = next(one for one in table["rows"] if one[0].startswith("UᵀV + I"))
    assert "2.93 %" in row and "0.235" in row
    assert "on other data" in table["note"]


def test_a_second_run_uses_the_first_and_says_so(corpus: Path, tmp_path: Path) -> None:
    arguments = ("T1a", *FAST, "--systems", "tf-idf,utv-plus-i", "--corpus", corpus, "--out", tmp_path)
    first = ssi(*arguments)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    second = ssi(*arguments)
    assert first.exit_code == second.exit_code == 0 and len(kept) == 2
    assert "are from an earlier run" not in first.stdout
    assert "2 of 2 results are from an earlier run" in second.stdout.replace("\n", " ")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    changed = ssi(*arguments, "--seed", "1")
    assert "are from an earlier run" not in changed.stdout


def test_several_seeds_are_averaged(corpus: Path, tmp_path: Path) -> None:
    arguments = ("T3b", *FAST, "--systems", "tf-idf,utv-plus-i", "--corpus", corpus, "--json")
    both = json.loads(ssi(*arguments, "--seed", 3, "--seeds", 2, "--out", tmp_path / "both").stdout)["sections"][0]
    table = next(one for one in both["tables"] if one["title"] == "AP over seeds, test")
    assert table["columns"] == ["system", "mean", "deviation", "seed 3", "seed 4"]
    alone = {}
    for seed in (3, 4):
        ssi(*arguments, "--seed", seed, "--out", tmp_path / "alone")
        for name in ("tf-idf", "utv-plus-i"):
            report = json.loads((tmp_path / "alone" / "T3b" / "test" / f"{name}.json").read_text())
            alone[name, seed] = report["means"]["AP"]["mean"]
    for row, name in zip(table["rows"], ("tf-idf", "utv-plus-i"), strict=True):
        means = [alone[name, seed] for seed in (3, 4)]
        assert [float(cell) for cell in row[3:]] == pytest.approx(means, abs=5e-5)
        assert float(row[1]) == pytest.approx(sum(means) / 2, abs=5e-5)
        assert float(row[2]) == pytest.approx(abs(means[0] - means[1]) / 2**0.5, abs=5e-5)
    assert alone["utv-plus-i", 3] != alone["utv-plus-i", 4]
    assert both["sentences"][0] == "Tables over seeds are of the seeds 3, 4; all others are of seed 3."
    assert "3, 4" in (tmp_path / "both" / "report.html").read_text(encoding="utf-8").split("<table", maxsplit=1)[0]


def test_the_terminal_shows_tables_and_claims(corpus: Path, tmp_path: Path) -> None:
    result = ssi("T1a", *FAST, "--systems", "tf-idf,diagonal", "--corpus", corpus, "--out", tmp_path)
    flat = " ".join(result.stdout.split())
    assert "T1a: Document-document retrieval" in flat and "diag(w)" in flat
    assert "Claimed by the paper (SSI): diag(w) above TF-IDF:" in flat
    assert "report:" in result.stderr


def test_corpora_are_found_in_the_folder_of_corpora(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cppdocs").symlink_to(corpus)
    arguments = ("T1a", *FAST, "--systems", "tf-idf", "--out", tmp_path / "out")
    assert ssi(*arguments, env={"SSI_DATA": str(tmp_path / "data")}).exit_code == 0
    assert ssi(*arguments, "--corpus", tmp_path / "data").exit_code == 0


def test_the_list_names_tasks_and_systems_with_their_ids() -> None:
    found = json.loads(ssi("--list", "--json").stdout)
    assert {one["id"] for one in found["tasks"]} == set(registry.tasks())
    systems = {one["name"]: one["ids"] for one in found["systems"]}
    assert systems["psi-3"] == ["M18"] and systems["bm25-pagerank"] == ["B20", "B21"]
    shown = ssi("--list").stdout
    assert "T12" in shown and "margin-ranking-perceptron" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "no task is given"),
        (("T1x",), 2, "did you mean T1"),
        (("T1a", "--systems", "utv-plus"), 2, "did you mean utv"),
        (("T1a",), 2, "--corpus DIR, or set SSI_DATA"),
        (("T1a", "--corpus", "/nowhere"), 3, "docs.jsonl"),
        (("T1a", "--rates", "fast"), 2, "--rates 'fast'"),
        (("T1a", "--rates", "0"), 2, "above 0"),
    ],
)
def test_what_cannot_be_done_says_why(arguments: tuple[Any, ...], code: int, said: str, tmp_path: Path) -> None:
    result = ssi(*arguments, "--out", tmp_path)
    assert result.exit_code == code and said in result.output and "Traceback" not in result.output


def test_a_task_that_fails_leaves_the_others_their_results(corpus: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "docs.jsonl").write_text('{"id": "a", "text": "b"}\n')
    broken = ssi("T1a", *FAST, "--systems", "tf-idf", "--corpus", data, "--out", tmp_path / "out")
    assert broken.exit_code == 3 and "This task failed" in broken.stdout and "links_train.tsv" in broken.output
    assert "This task failed" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", ["T7a", "T7b", "T7b-judged"])
def test_a_corpus_of_links_has_no_judgments_for_tasks_that_need_them(task: str, corpus: Path, tmp_path: Path) -> None:
    result = ssi(task, "--small", "--corpus", corpus, "--out", tmp_path)
    assert result.exit_code == 3
    assert "has no queries.tsv[.gz] and no qrels.tsv[.gz]" in " ".join(result.stderr.split())


def test_a_system_without_the_links_that_it_needs_says_so(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made")
    arguments = ("T1a", *FAST, "--systems", "tf-idf,bm25-anchors,pagerank", "--corpus", folder, "--out", tmp_path)
    rows = json.loads(ssi(*arguments, "--json").stdout)["sections"][0]["tables"][0]["rows"]
    assert [row[0] for row in rows[1:]] == [
        "BM25, anchor texts (needs anchor texts, links, which this corpus does not have)",
        "PageRank only (needs links, prior, which this corpus does not have)",
    ]
    assert rows[0][1] and not rows[1][1] and not rows[2][1]


def test_a_task_named_twice_runs_once(corpus: Path, tmp_path: Path) -> None:
    result = ssi("T1a", "t1A", *FAST, "--systems", "tf-idf", "--corpus", corpus, "--out", tmp_path, "--json")
    assert [one["task"] for one in json.loads(result.stdout)["sections"]] == ["T1a"]


def test_help_has_examples() -> None:
    text = ssi("--help").stdout
    assert "ssi reproduce T1a --small" in text and "docs.jsonl" in text


def test_small_mode_runs_on_real_documents(ssi_data: Path, tmp_path: Path) -> None:
    result = ssi("T3b", "--small", "--systems", "tf-idf,utv-plus-i", "--out", tmp_path, env={"SSI_DATA": str(ssi_data)})
    assert result.exit_code == 0, result.output
    assert "Corpus cppdocs: 400 documents" in result.stdout


def test_a_seed_with_which_a_system_failed_is_left_out_of_its_mean() -> None:
    titles = {"a": "A", "b": "B"}

    def found(seed: int, values: dict[str, list[float]]) -> Results:
        return Results("T5", titles, {(f"mates-{seed}", name): {"MRR": np.array(one)} for name, one in values.items()})

    by_seed = {0: found(0, {"a": [0.0, 1.0], "b": [1.0, 1.0]}), 7: found(7, {"a": [1.0, np.nan]})}
    (table,) = over_seeds(by_seed)
    assert table.title == "MRR over seeds, mates"
    assert table.rows == (("A", "0.7500", "0.3536", "0.5000", "1.0000"), ("B", "1.0000", "", "1.0000", ""))
    assert table.note.endswith("The order of the systems is the same with all seeds.")


def test_a_split_whose_number_is_that_of_a_seed_stays_a_split() -> None:
    def found(shift: float) -> Results:
        splits = {(f"split-{number}", "a"): {"AUC": np.array([number / 10 + shift])} for number in range(2)}
        return Results("T7a", {"a": "A"}, splits)

    tables = over_seeds({0: found(0.0), 1: found(0.5)})
    assert [table.title for table in tables] == ["AUC over seeds, split-0", "AUC over seeds, split-1"]
    assert [table.rows[0][3:] for table in tables] == [("0.0000", "0.5000"), ("0.1000", "0.6000")]


def test_a_table_over_seeds_names_the_pairs_whose_order_reverses() -> None:
    titles = {"tied": "UᵀU + I", "untied": "UᵀV + I", "low": "TF-IDF"}

    def found(*means: float) -> Results:
        return Results(
            "T1a", titles, {("test", name): {"AP": np.array([mean])} for name, mean in zip(titles, means, strict=True)}
        )

    (table,) = over_seeds({0: found(0.4, 0.3, 0.1), 1: found(0.3, 0.4, 0.1), 2: found(0.35, 0.4, 0.1)})
    assert table.note.endswith(
        "Pairs whose order reverses with the seed (number of seeds with the first one higher, and with it lower): "
        "UᵀU + I and UᵀV + I (1 to 2)."
    )
