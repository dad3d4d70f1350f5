"""``ssi clicks pairs`` and ``ssi clicks export`` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.clicks.exports import EXPORTS
from reranker.clicks.pairs import STRATEGIES
from reranker.records import Pair
from reranker.tables import read_pairs, read_qrels, read_queries

DAY = "2026-11-0{}T08:00:00Z"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two searches of two people, a day apart: the third result clicked, then the second."""
    lines = [
        {
            "query_id": f"q{number}",
            "query": "red shoe",
            "session": f"s{number}",
            "user": f"u{number}",
            "time": DAY.format(number),
            "results": ["a", "b", "c", "d"],
            "clicks": [{"doc": document, "rank": rank, "time": DAY.format(number), "end_time": None}],
        }
        for number, document, rank in ((1, "c", 3), (2, "b", 2))
    ]
    path = tmp_path_factory.mktemp("clicks") / "clicks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ssi(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["clicks", *map(str, arguments)])


@pytest.mark.parametrize("suffix", ["parquet", "tsv"])
def test_pairs(log: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"pairs.{suffix}"
    result = ssi("pairs", log, "--out", target)
    assert result.exit_code == 0, result.output
    assert list(read_pairs(target)) == [
        Pair("red shoe", "b", "a", 1.0),
        Pair("red shoe", "c", "a", 1.0),
        Pair("red shoe", "c", "b", 1.0),
    ]
    assert "3 pairs of 2 impressions" in result.output


def test_options_reach_the_pairs(log: Path, tmp_path: Path) -> None:
    propensities = tmp_path / "propensities.json"
    propensities.write_text('{"by_rank": [1.0, 0.5, 0.25], "method": "given", "n": 0}')
    target = tmp_path / "pairs.tsv"
    result = ssi(
        "pairs",
        log,
        "--out",
        target,
        "--strategy",
        "clicked-over-previous",
        "--propensities",
        propensities,
        "--since",
        "2026-11-01",
        "--until",
        "2026-11-02T00:00:00+00:00",
        "--json",
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["counts"]["out_of_range"] == 1
    assert list(read_pairs(target)) == [Pair("red shoe", "c", "b", 4.0)]


@pytest.mark.parametrize("form", EXPORTS)
def test_every_export(log: Path, tmp_path: Path, form: str) -> None:
    target = tmp_path / "out"
    result = ssi("export", log, "--to", form, "--out", target, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == 4
    if form == "trec":
        ((name, text),) = read_queries(tmp_path / "out.queries.tsv")
        assert text == "red shoe"
        grades = {one.document_id: one.grade for one in read_qrels(target) if one.query_id == name}
        assert grades == {"a": 0, "b": 2, "c": 2, "d": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is not a time"),
        (("--since", "2026-11-02", "--until", "2026-11-01"), "the time range is empty"),
        (("--strategy", "best"), "clicked-over-unclicked"),
    ],
)
def test_what_cannot_be_meant_is_refused(log: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = ssi("pairs", log, "--out", tmp_path / "pairs.parquet", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert not list(tmp_path.iterdir())


def test_propensities_that_are_not_json(log: Path, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("0.5, 0.2")
    result = ssi("pairs", log, "--out", tmp_path / "pairs.parquet", "--propensities", tmp_path / "p.json")
    assert result.exit_code == 3
    assert "is not JSON" in result.output


def test_the_help_explains_every_strategy_and_form() -> None:
    pairs, export = ssi("pairs", "--help").output, ssi("export", "--help").output
    for name, summary in STRATEGIES.items():
        assert name in pairs
        assert summary in pairs
    for name, form in EXPORTS.items():
        assert f"{name}  " in export
        assert form.summary in export


@pytest.mark.parametrize(
    "command", [("pairs", "--out", "pairs.tsv"), ("export", "--to", "trec", "--out", "clicks.qrels")]
)
def test_a_rejected_line_is_accounted_for_and_sets_the_status(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = tmp_path / "bad.jsonl"
    bad.write_text(log.read_text() + "{broken\n")
    name, *options = command
    result = ssi(name, bad, *options)
    assert result.exit_code == 8, result.output
    assert "records: 3 given = 2 used + 1 left out: 1 not_json (line 3)" in result.stderr
    result = ssi(name, log, *options)
    assert result.exit_code == 0, result.output
    assert "records: 2 given, all used" in result.stderr
