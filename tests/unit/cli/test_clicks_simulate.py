"""``ssi clicks simulate`` as it is typed, on a small shop in the embedded engine."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import impressions
from reranker.engines import open_engine
from reranker.rerank.calibration.kept import DEFAULT
from reranker.tables import read_qrels
from tests.unit.retrain.shop import N_KINDS, Shop, is_answer


class SmallShop:
    """A shop with a live model, a file of its queries and judgments, and the command."""

    def __init__(self, path: Path) -> None:
        self.path, self.spec = path, f"tantivy:{path / 'index'}"
        self.shop = Shop(path, open_engine(self.spec)).fill()
        self.by_model = self.shop.shown(self.shop.base, DEFAULT.value)
        self.shop.engine.close()
        queries = self.shop.queries
        (path / "queries.tsv").write_text("".join(f"q{n}\t{query}\n" for n, query in enumerate(queries)))
        judged = [
            f"q{n}\t{name}\t{int(is_answer(query, document))}\n"
            for n, query in enumerate(queries)
            for name, document in self.shop.documents.items()
        ]
        (path / "qrels.tsv").write_text("".join(judged))

    def ssi(self, *words: object) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.path)
            return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)

    def simulate(self, log: Path, *options: object, queries: str = "queries.tsv", index: str = "shop") -> Result:
        common = ("--engine", self.spec, "--index", index, "--query-file", queries, "--log", log)
        return self.ssi("clicks", "simulate", *common, *options)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SmallShop:
    return SmallShop(tmp_path_factory.mktemp("site"))


def rows_of(log: Path) -> dict[str, str]:
    """Return a digest of each file of a click log."""
    files = (path for path in log.rglob("*") if path.is_file())
    return {str(path.relative_to(log)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_log_has_what_was_asked_for(site: SmallShop, tmp_path: Path) -> None:
    truth = tmp_path / "truth.tsv"
    result = site.simulate(tmp_path / "log", "--impressions", 600, "--people", 50, "--truth", truth, "--json")
    assert result.exit_code == 0, result.stderr
    told: dict[str, Any] = json.loads(result.stdout)
    log = ClickLog(tmp_path / "log")
    counts = log.counts()
    assert counts["queries"] == told["impressions"] == 600
    assert counts["events"] == counts["hits"] + told["clicks"]
    assert told["people"] == 50 and told["days"] == 7
    assert 0.05 < told["shuffled"] / 600 < 0.16
    assert told["queries"]["given"] == len(site.shop.queries) and told["queries"]["without_documents"] == 0
    assert len(told["click_rate_by_rank"]) == 10 and told["click_rate_by_rank"][0] == max(told["click_rate_by_rank"])
    assert 0.3 < told["nDCG@10"] < 1
    grades = list(read_qrels(truth))
    assert len(grades) == 10 * len(site.shop.queries)
    assert all(0 <= judgement.grade <= 1 for judgement in grades)


def test_equal_seeds_give_equal_bytes(site: SmallShop, tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert site.simulate(tmp_path / name, "--impressions", 300, "--seed", seed).exit_code == 0
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b") != rows_of(tmp_path / "c")


def test_the_shown_order_is_that_of_the_model(site: SmallShop, tmp_path: Path) -> None:
    options = ("--model", site.shop.base_path, "--qrels", "qrels.tsv")
    assert site.simulate(tmp_path / "log", "--impressions", 300, *options).exit_code == 0
    by_model = dict(zip(site.shop.queries, site.by_model, strict=True))
    for impression in impressions(ClickLog(tmp_path / "log")):
        shown = [hit.document for hit in impression.shown]
        expected = by_model[impression.query]
        assert shown == expected or (impression.randomised and sorted(shown) == sorted(expected))


def test_the_printed_commands_run(site: SmallShop, tmp_path: Path) -> None:
    """The doctor finds no fault, and the retraining ends with a verdict."""
    log = tmp_path / "log"
    options = ("--model", site.shop.base_path, "--qrels", "qrels.tsv", "--impressions", 1500)
    result = site.simulate(log, *options)
    assert result.exit_code == 0, result.stderr
    assert "nDCG@10 of the shown order by the true attraction: 0." in result.stdout
    doctor, retrain = (shlex.split(line)[1:] for line in result.stdout.splitlines() if line.startswith("  ssi "))
    assert doctor == ["clicks", "doctor", str(log)] and retrain[-1] == "--dry-run"
    assert site.ssi(*doctor).exit_code == 0
    done = site.ssi(*retrain, "--models", site.path / "models")
    assert done.exit_code in (0, 7), done.stderr
    assert "of the clicks" in done.stdout or "Clicks nDCG" in done.stdout


@pytest.mark.parametrize(
    ("queries", "options", "code", "message"),
    [
        ("", [], 3, "holds no query: write at least one line, query id TAB text"),
        (
            "q1\tnowhere\n",
            [],
            3,
            "none of the 1 queries finds a document of index 'shop' by a search in",
        ),
        ("q1\tcommon\n", ["--index", "sohp"], 3, "there is no index 'sohp'"),
        ("q1\tcommon\n", ["--qrels", "others.tsv"], 3, "no judgment of 'others.tsv' is of a query of --query-file"),
        ("q1\tcommon\n", ["--qrels", "useless.tsv"], 3, "give judgments of documents that these queries find"),
        ("q1\tcommon\n", ["--model", "absent"], 5, "absent"),
        ("q1\tcommon\n", ["--impressions", "0"], 2, "0 is not in the range"),
    ],
)
def test_bad_input_leaves_no_log(
    site: SmallShop, tmp_path: Path, queries: str, options: list[str], code: int, message: str
) -> None:
    (site.path / "others.tsv").write_text("q9\td001\t1\n")
    (site.path / "useless.tsv").write_text("q1\tabsent\t1\n")
    (tmp_path / "queries.tsv").write_text(queries)
    index = options[1] if options[:1] == ["--index"] else "shop"
    more = [] if options[:1] == ["--index"] else options
    result = site.simulate(tmp_path / "log", *more, queries=str(tmp_path / "queries.tsv"), index=index)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "log").exists()


def test_a_log_with_rows_is_refused(site: SmallShop, tmp_path: Path) -> None:
    ClickLog(tmp_path / "log", create=True)
    assert site.simulate(tmp_path / "log", "--impressions", 50).exit_code == 0, "an empty log is filled"
    before = rows_of(tmp_path / "log")
    result = site.simulate(tmp_path / "log", "--impressions", 50)
    assert result.exit_code == 7
    assert "simulated clicks must not be mixed with others; give a new folder with --log" in result.stderr
    assert rows_of(tmp_path / "log") == before


def test_queries_that_find_nothing_and_rejected_lines_are_reported(site: SmallShop, tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("q1\tcommon\nq2\tnowhere\nq3\tcommon\nq4\t\n")
    result = site.simulate(tmp_path / "log", "--impressions", 200, queries=str(tmp_path / "queries.tsv"))
    assert result.exit_code == 8
    assert "2 of 2 queries were asked, 1 of which find nothing" in result.stdout


def test_a_body_decides_what_is_found(site: SmallShop, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"query": {"match": {"text": "{{query}}"}}}))
    (tmp_path / "queries.tsv").write_text("".join(f"k{kind}\tthing{kind}\n" for kind in range(N_KINDS)))
    result = site.simulate(tmp_path / "log", "--body", body, "--impressions", 60, queries=str(tmp_path / "queries.tsv"))
    assert result.exit_code == 0
    assert f"--body {body} --dry-run" in result.stdout
    for impression in impressions(ClickLog(tmp_path / "log")):
        kind = int(impression.query.removeprefix("thing"))
        assert {int(hit.document[1:]) % N_KINDS for hit in impression.shown} == {kind}
