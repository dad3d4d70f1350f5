"""Removed values of options: each is refused with its successor, and no option accepts it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from reranker.cli.common import options_of
from reranker.cli.main import main
from reranker.cli.removed import REMOVED_VALUES

TARGET = ("--engine", "tantivy:./index", "--index", "docs", "--model", "model")
COMMANDS = {"--retrieve": ("search", "serve"), "--routes": ("index", "revectorize", "sync")}
ARGUMENTS = {"search": ("word",), "index": ("docs.jsonl",)}
GIVEN = [(command, *removed) for removed in REMOVED_VALUES for command in COMMANDS[removed[0]]]


@pytest.mark.parametrize(("command", "option", "value"), GIVEN)
def test_a_removed_value_is_refused_with_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = f"error: {option} {value} was removed in 0.2: {REMOVED_VALUES[option, value]}"
    given = (command, *ARGUMENTS.get(command, ()), *TARGET)
    key = option.removeprefix("--")
    written = f'["{value}"]' if key == "routes" else f'"{value}"'
    (tmp_path / "ssi.toml").write_text(f"[{command}]\n{key} = {written}\n")
    variables = {f"SSI_{command}_{key}".upper(): value}
    for result in (
        CliRunner().invoke(main, [*given, option, value]),
        CliRunner().invoke(main, ["--config", "ssi.toml", *given]),
        CliRunner().invoke(main, given, env=variables),
    ):
        assert (result.exit_code, " ".join(result.stderr.split())) == (2, said)


def test_among_others_it_is_refused_too() -> None:
    result = CliRunner().invoke(main, ["sync", *TARGET, "--routes", "fetch,first-stage"])
    assert result.exit_code == 2
    assert "--routes first-stage was removed in 0.2" in " ".join(result.stderr.split())


def test_no_removed_value_is_offered() -> None:
    for command, option, value in GIVEN:
        (found,) = (each for each in options_of(main.commands[command]) if option in each.opts)
        assert isinstance(found.type, click.Choice)
        assert value not in found.type.choices
