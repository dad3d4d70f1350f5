"""How many files of the project a command runs through: so many must a maintainer read to follow it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import seeded_rng
from tests.test_budgets import ROOT, within

pytestmark = pytest.mark.slow
ENGINE = "--engine tantivy:index --index shop"
JOURNEYS: dict[str, tuple[int, str]] = {
    "train": (86, "train --docs docs.jsonl --links links.tsv --model model"),
    "index": (56, f"index docs.jsonl {ENGINE} --model model"),
    "search": (59, f"search topic1word1 {ENGINE} --model model"),
    "clicks simulate": (
        71,
        f"clicks simulate {ENGINE} --model model --query-file queries.tsv --impressions 2000 --log clicks",
    ),
    "clicks doctor": (40, "clicks doctor clicks"),
    "retrain": (124, f"retrain {ENGINE} --clicks clicks --warm-start model --models models --dry-run"),
}
"""Name → files, at most, and the command; each needs what those before it have written."""


def write_site(folder: Path) -> None:
    """Write documents of ten topics, links within the topics, and queries."""
    rng = seeded_rng(0)
    lines, links = [], []
    for number in range(300):
        topic = number % 10
        words = [f"topic{topic}word{word}" for word in rng.integers(0, 20, 12)]
        words += [f"common{word}" for word in rng.integers(0, 50, 12)]
        lines.append(json.dumps({"id": f"d{number}", "title": " ".join(words[:3]), "text": " ".join(words)}))
        links += [f"d{number}\td{10 * other + topic}" for other in rng.integers(0, 30, 4)]
    queries = [f"q{number}\ttopic{number % 10}word{rng.integers(0, 20)}" for number in range(40)]
    for name, content in (("docs.jsonl", lines), ("links.tsv", links), ("queries.tsv", queries)):
        (folder / name).write_text("\n".join(content) + "\n", encoding="utf-8")


def test_commands_run_through_few_files(tmp_path: Path) -> None:
    write_site(tmp_path)
    found = {}
    for name, (_, command) in JOURNEYS.items():
        arguments = ["-m", "tests.journey", "files.txt", *command.split()]
        # The status of a retraining says whether its model is better.
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            check=False,
            env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode in ((0, 7) if name == "retrain" else (0,)), ended.stderr
        found[name] = len((tmp_path / "files.txt").read_text().splitlines())
    within(found, {name: most for name, (most, _) in JOURNEYS.items()})
