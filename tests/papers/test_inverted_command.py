"""`ssi inverted`: BSBI and Boolean queries by the command, on the course's example."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from papers.inverted_command import command
from papers.methods.inverted_folder import POSTINGS, InvertedFolder

TEXTS = {"d1": "Prog lang C", "d2": "lang prog prog", "d3": "java", "d4": ""}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [json.dumps({"id": id_, "text": text}) for id_, text in TEXTS.items()]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def build(folder: Path, *more: str) -> Path:
    result = run("build", "--docs", str(folder / "docs.jsonl"), "--out", str(folder / "inverted"), *more)
    assert result.exit_code == 0, result.output
    return folder / "inverted"


@pytest.mark.parametrize("block_entries", ["1", "2", "1000"])
def test_R07_the_command_builds_the_same_file_in_blocks_of_any_size(folder: Path, block_entries: str) -> None:
    built = build(folder, "--block-entries", block_entries)
    opened = InvertedFolder.open(built)
    assert list(opened.words) == ["c", "java", "lang", "prog"] and opened.ids == list(TEXTS)
    lists = {word: opened.file.postings(number) for word, number in opened.words.items()}
    assert {word: documents.tolist() for word, (documents, _) in lists.items()} == {
        "c": [0],
        "java": [2],
        "lang": [0, 1],
        "prog": [0, 1],
    }
    assert lists["prog"][1].tolist() == [1, 2], "values are counts"
    assert sorted(one.name for one in built.iterdir()) == ["inverted.json", "postings.bin", "starts.npy"]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("prog AND lang AND (C OR java)", ["d1"]),
        ("NOT prog", ["d3", "d4"]),
        ("prog not c", ["d2"]),
        ("java OR nowhere", ["d3"]),
    ],
)
def test_B17_the_command_lists_the_documents_that_match(folder: Path, query: str, ids: list[str]) -> None:
    result = run("search", query, "--file", str(build(folder)), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["documents"] == ids


def test_B17_a_query_of_unknown_words_matches_nothing_and_says_so(folder: Path) -> None:
    built = str(build(folder))
    for query in ("nowhere OR never", "NOT (nowhere AND never)"):
        result = run("search", query, "--file", built)
        assert result.exit_code == 0 and result.stdout == ""
        assert "no document holds a word of the query: nowhere, never" in result.stderr
        assert "0 documents match" in result.stderr
    some = run("search", "java OR never", "--file", built)
    assert some.stdout == "d3\n" and "no document holds: never" in some.stderr


def test_B17_unbalanced_parentheses_are_refused_with_their_place(folder: Path) -> None:
    result = run("search", "prog AND (lang", "--file", str(build(folder)))
    assert result.exit_code != 0
    assert "'(' at character 10 is not closed" in str(result.exception)


def test_damaged_and_foreign_folders_are_refused(folder: Path) -> None:
    assert "no complete inverted file" in str(run("search", "c", "--file", str(folder)).exception)
    (folder / "other").mkdir()
    (folder / "other" / "letter.txt").write_text("mine")
    result = run("build", "--docs", str(folder / "docs.jsonl"), "--out", str(folder / "other"))
    assert "holds other files (letter.txt)" in str(result.exception)
    built = build(folder)
    (built / POSTINGS).write_bytes(b"short")
    assert "no complete inverted file" in str(run("search", "c", "--file", str(built)).exception)


def test_documents_without_words_are_refused(folder: Path) -> None:
    result = run("build", "--docs", str(folder / "docs.jsonl"), "--out", str(folder / "x"), "--fields", "headline")
    assert "has a word in the fields headline" in str(result.exception)
