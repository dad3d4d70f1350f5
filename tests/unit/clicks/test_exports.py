"""Judgements and pairs in the forms of other tools."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from reranker.clicks.exports import (
    EXPORTS,
    ClickJudgement,
    grade,
    judgements_of_ratings,
    query_id,
    write_judgements,
    write_tsv,
)
from reranker.errors import ConfigError, InputError
from reranker.records import Pair
from reranker.tables import read_pairs, read_qrels, read_queries
from tests.ratings import rating

JUDGED = [
    ClickJudgement("red shoe", "a", 1.0),
    ClickJudgement("red shoe", "b", 0.5),
    ClickJudgement('say "鞋", ok', "d,1", 0.1),
]


def test_shares_of_clicks() -> None:
    ratings = [
        rating("q", "a", 10, 5),
        rating("q", "b", 10, 5, 2.5),
        rating("q", "c", 2, 1),
        rating("q", "d", 3, 0, 1.0),
        rating("q", "e", 1, 1, 0.0),
        rating("q", "f", 1, 0, 0.0),
    ]
    assert [one.value for one in judgements_of_ratings(ratings)] == [0.5, 1.0, 0.5, 0.0, 1.0, 0.0]
    assert [one.document for one in judgements_of_ratings(ratings, min_people=3)] == ["a", "b", "d"]


def test_grades_round_halves_up() -> None:
    assert [grade(value, 4) for value in (0.0, 0.124, 0.125, 0.375, 0.6, 0.875, 1.0)] == [0, 0, 1, 2, 2, 4, 4]


def test_trec(tmp_path: Path) -> None:
    target, queries = tmp_path / "clicks.qrels", tmp_path / "queries.tsv"
    assert write_judgements(JUDGED[:2], target, "trec", queries=queries) == 2
    name = query_id("red shoe")
    assert target.read_text() == f"{name} 0 a 4\n{name} 0 b 2\n"
    assert [(one.query_id, one.document_id, one.grade) for one in read_qrels(target)] == [
        (name, "a", 4),
        (name, "b", 2),
    ]
    assert list(read_queries(queries)) == [(name, "red shoe")]
    assert target.stat().st_mode & 0o077 == 0


def test_trec_cannot_hold_ids_with_blanks_and_then_writes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "clicks.qrels"
    target.write_text("before")
    with pytest.raises(InputError, match="'a b' contains white space"):
        write_judgements([*JUDGED, ClickJudgement("q", "a b", 1.0)], target, "trec")
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_letor(tmp_path: Path) -> None:
    target = tmp_path / "clicks.letor"
    write_judgements(JUDGED, target, "letor")
    assert target.read_text() == (
        '# qid:1: red shoe\n# qid:2: say "鞋", ok\n#\n4 qid:1 # a\n2 qid:1 # b\n0 qid:2 # d,1\n'
    )


@pytest.mark.parametrize("judged", [JUDGED, []])
def test_workbench_ratings_are_strings(tmp_path: Path, judged: list[ClickJudgement]) -> None:
    target = tmp_path / "judgements.json"
    assert write_judgements(judged, target, "srw") == len(judged)
    body = json.loads(target.read_text())
    assert body["type"] == "IMPORT_JUDGMENT"
    assert body["judgmentRatings"] == (
        [
            {"query": "red shoe", "ratings": [{"docId": "a", "rating": "3.000"}, {"docId": "b", "rating": "1.500"}]},
            {"query": 'say "鞋", ok', "ratings": [{"docId": "d,1", "rating": "0.300"}]},
        ]
        if judged
        else []
    )


def test_quepid(tmp_path: Path) -> None:
    target = tmp_path / "ratings.csv"
    write_judgements(JUDGED, target, "quepid")
    with target.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["query", "docid", "rating"],
        ["red shoe", "a", "3"],
        ["red shoe", "b", "2"],
        ['say "鞋", ok', "d,1", "0"],
    ]


def test_pairs_as_text_are_read_back(tmp_path: Path) -> None:
    pairs = [Pair("red shoe", "a", "b", 0.333333), Pair("weight", "b", "a", 1e-06)]
    assert write_tsv(pairs, tmp_path / "pairs.tsv") == 2
    assert list(read_pairs(tmp_path / "pairs.tsv")) == pairs


def test_an_unknown_form_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=", ".join(EXPORTS)):
        write_judgements(JUDGED, tmp_path / "out", "ranklib")
