"""`ssi retrain` as a person types it: exit statuses, messages, the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.cli.retrain import commands_of_a_vote
from reranker.clicks.log import ClickLog
from reranker.engines import open_engine
from reranker.releases import read_control
from tests.unit.retrain.shop import Shop


class Site:
    """A shop with logs, and the command typed beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = f"tantivy:{path / 'index'}"
        self.shop = Shop(path, open_engine(self.spec)).fill()
        self.shop.log(path / "useful")
        self.shop.log(path / "turning", turning=True)
        ClickLog(path / "empty", create=True)
        self.shop.engine.close()
        (path / "queries.tsv").write_text("".join(f"q{n}\t{q}\n" for n, q in enumerate(self.shop.queries)))
        (path / "qrels.tsv").write_text("".join(f"q{n}\td{n:03}\t1\n" for n in range(len(self.shop.queries))))
        (path / "links.tsv").write_text("".join(f"d{n:03}\td{n + 6:03}\n" for n in range(50)))

    def run(self, *arguments: str, log: str | None = "useful") -> Result:
        clicks = ["--clicks", str(self.path / log)] if log else []
        common = ["--engine", self.spec, "--index", "shop", "--models", str(self.path / "models")]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.path)
            return CliRunner().invoke(main, ["retrain", *common, *clicks, *arguments], catch_exceptions=False)

    @property
    def live(self) -> str | None:
        engine = open_engine(self.spec)
        try:
            return read_control(engine, "shop").live
        finally:
            engine.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def unchanged(site: Site) -> Iterator[None]:
    before = site.live
    yield
    assert site.live == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("log", "arguments", "code", "message"),
    [
        (None, [], 2, "Missing option '--clicks'"),
        ("useful", ["--since", "yesterday"], 2, "--since"),
        ("useful", ["--margin", "1.5"], 2, "margin"),
        ("useful", ["--qrels", "qrels.tsv"], 2, "--query-file"),
        ("useful", ["--propensities", "links.tsv"], 3, "is not JSON"),
        ("useful", ["--links", "absent.tsv"], 3, "absent.tsv"),
        ("useful", ["--warm-start", "absent"], 5, "absent"),
        ("useful", ["--since", "2030-01-01"], 9, "no shown list"),
        ("empty", [], 9, "no click"),
        ("absent", [], 3, "absent"),
    ],
)
def test_bad_input_has_a_message_and_an_exit_status(
    site: Site, log: str | None, arguments: list[str], code: int, message: str
) -> None:
    result = site.run(*arguments, log=log)
    assert message in result.stderr
    assert result.exit_code == code, result.stderr


@pytest.mark.usefixtures("unchanged")
def test_a_refusal_says_why(site: Site) -> None:
    result = site.run(log="turning")
    assert result.exit_code == 7
    assert result.stdout.startswith("refused")
    assert "clicks nDCG" in result.stdout
    assert "lost most: 'wish" in result.stdout
    assert "0 given" not in result.stderr and "none given" not in result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    start = lines.index(["live", "new", "random", "difference", "at", "least"])
    (live, new, *_), *_ = [row[2:] for row in lines[start:] if row[:2] == ["clicks", "nDCG"]]
    (new_again, random, _, _), (live_again, random_again, difference, _) = (
        row[5:] for row in lines[start:] if row[:2] == ["clicks", "nDCG,"] and "over" in row
    )
    assert (new_again, live_again, random_again) == (new, live, random)
    assert float(difference) == pytest.approx(float(live) - float(random), abs=2e-4)


def test_a_refused_gain_is_offered_to_the_vote_of_people() -> None:
    def refused(estimate: float, outcome: str = "refused") -> Any:
        measured = [{"name": "clicks nDCG", "difference": {"estimate": estimate}}]
        return SimpleNamespace(
            outcome=outcome,
            index="shop",
            candidate="0123456789abcdef",
            model_path=Path("models/refused"),
            verdict={"measured": measured},
        )

    _, *commands = commands_of_a_vote(refused(0.01), "opensearch:http://localhost:9200")
    assert [command.split()[1] for command in commands] == ["revectorize", "serve", "interleave"]
    assert "--models models --interleave 0123456789ab --sink engine" in commands[1]
    for command in commands:
        names, options = command.split()[1:3], {word for word in command.split() if word.startswith("--")}
        found = cast(Any, main.get_command(click.Context(main), names[0]))
        found = found.commands[names[1]] if names[0] == "interleave" else found
        assert options <= {name for parameter in found.params for name in parameter.opts}, command
    assert commands_of_a_vote(refused(-0.01), "x") == commands_of_a_vote(refused(0.01, "promoted"), "x") == []


@pytest.mark.slow
@pytest.mark.usefixtures("unchanged")
def test_a_dry_run_with_everything_beside_the_clicks(site: Site) -> None:
    report = site.path / "report.html"
    result = site.run(
        "--dry-run",
        "--json",
        "--links",
        "links.tsv",
        "--qrels",
        "qrels.tsv",
        "--query-file",
        "queries.tsv",
        "--report",
        str(report),
    )
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["outcome"] in ("would promote", "refused")
    assert result.exit_code == (0 if answer["outcome"] == "would promote" else 7)
    assert answer["data"]["other"] > 50
    assert [one["name"] for one in answer["verdict"]["measured"]][-1] == "judgements"
    assert answer["report"] == str(report)
    html = report.read_text(encoding="utf-8")
    assert html.count("<svg") == 4


def test_a_rejected_line_sets_the_status_of_a_retraining_that_succeeds(site: Site) -> None:
    (site.path / "bad.tsv").write_text((site.path / "links.tsv").read_text() + "one column\n")
    given = ["--query-side-only", "--propensities", str(_propensities(site.path)), "--links", "bad.tsv", "--dry-run"]
    result = site.run(*given)
    assert result.exit_code == 8, result.stderr
    assert "1 left out: 1 columns (line 51)" in result.stderr


def test_links_and_judgments_of_unknown_documents_set_the_status_or_are_refused(site: Site) -> None:
    given = ["--query-side-only", "--propensities", str(_propensities(site.path)), "--dry-run"]
    judgments, links = (site.path / "qrels.tsv").read_text(), (site.path / "links.tsv").read_text()
    (site.path / "qrels-more.tsv").write_text(judgments + "q1\tgone\t1\n")
    (site.path / "links-more.tsv").write_text(links + "d001\tgone\nnowhere\td001\n")
    files = ["--links", "links-more.tsv", "--qrels", "qrels-more.tsv", "--query-file", "queries.tsv"]
    result = site.run(*given, *files, "--json")
    assert result.exit_code in (7, 8), result.stderr
    unknown = "1 unknown document id (gone)"
    assert f"links: 52 given = 50 used + 2 left out: {unknown}; 1 unknown query id (nowhere)" in result.stderr
    n = len(site.shop.queries)
    assert f"judgments: {n + 1} given = {n} used + 1 left out: {unknown}" in result.stderr
    kinds = {one["kind"]: one["used"] for one in json.loads(result.stdout)["accounts"]}
    assert (kinds["links"], kinds["judgments"]) == (50, n)
    (site.path / "links-more.tsv").write_text(links + "".join(f"none{n}\td001\n" for n in range(60)))
    refused = site.run(*given, "--links", "links-more.tsv")
    assert refused.exit_code == 3
    assert "55% of the 110 links cannot be used" in refused.stderr and "--allow-partial" in refused.stderr
    partial = site.run(*given, "--links", "links-more.tsv", "--allow-partial")
    assert "links: 110 given = 50 used + 60 left out" in partial.stderr
    assert partial.exit_code in (7, 8), partial.stderr


def test_judgments_without_a_query_text_set_the_status_or_are_refused(site: Site) -> None:
    given = ["--query-side-only", "--propensities", str(_propensities(site.path)), "--dry-run", "--qrels", "qrels.tsv"]
    queries = (site.path / "queries.tsv").read_text().splitlines(keepends=True)
    (site.path / "fewer.tsv").write_text("".join(queries[1:]))
    result = site.run(*given, "--query-file", "fewer.tsv")
    assert result.exit_code in (7, 8), result.stderr
    n = len(queries)
    assert f"judgments: {n} given = {n - 1} used + 1 left out: 1 unknown query id (q0)" in result.stderr
    (site.path / "few.tsv").write_text("".join(queries[:2]))
    refused = site.run(*given, "--query-file", "few.tsv")
    assert refused.exit_code == 3
    assert "--allow-partial" in refused.stderr


def test_a_better_model_goes_live(site: Site) -> None:
    before = site.live
    result = site.run("--query-side-only", "--propensities", str(_propensities(site.path)))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("promoted")
    assert "0 documents written" in result.stdout
    assert site.live != before


def _propensities(path: Path) -> Path:
    file = path / "propensities.json"
    file.write_text(json.dumps({"by_rank": [1 / rank for rank in range(1, 11)]}))
    return file
