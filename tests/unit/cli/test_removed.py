"""Removed options and values: each is refused with its successor, and no option accepts it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from reranker.cli.common import option_key, options_of
from reranker.cli.main import main
from reranker.cli.removed import REMOVED, REMOVED_COMMANDS, REMOVED_VALUES

TARGET = ("--engine", "tantivy:./index", "--index", "docs", "--model", "model")
COMMANDS = {
    "--retrieve": ("search", "serve"),
    "--route": ("search", "serve", "calibrate"),
    "--routes": ("index", "revectorize", "sync"),
    "--to": ("clicks export",),
}
ARGUMENTS = {
    "search": ("word", *TARGET),
    "index": ("docs.jsonl", *TARGET),
    "clicks export": ("clicks", "--out", "file"),
}
GIVEN = [(command, *removed) for removed in REMOVED_VALUES for command in COMMANDS[removed[0]]]


def command_of(name: str) -> click.Command:
    command: click.Command = main
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return command


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_option_is_refused_with_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for key, reason in REMOVED[name].items():
        assert key not in map(option_key, options_of(command_of(name)))
        option = f"--{key.replace('_', '-')}"
        said = f"{option} was removed in 0.2: {reason}"
        result = CliRunner().invoke(main, [*name.split(), option, "1"])
        assert (result.exit_code, " ".join(result.stderr.split())) == (2, f"error: {said}")
        variable = f"SSI_{name}_{key}".upper().replace(" ", "_")
        result = CliRunner().invoke(main, [*name.split(), "--help"], env={variable: "1"})
        said_of_variable = f"error: environment variable {variable}: {said}"
        assert (result.exit_code, " ".join(result.stderr.split())) == (2, said_of_variable)
        Path("ssi.toml").write_text(f"[{name.replace(' ', '.')}]\n{key} = 1\n")
        result = CliRunner().invoke(main, [*name.split(), "--help"])
        assert result.exit_code == 2 and said in " ".join(result.stderr.split())
        Path("ssi.toml").unlink()


@pytest.mark.parametrize("name", REMOVED_COMMANDS)
def test_a_removed_command_is_refused_with_its_successor(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--engine", "opensearch:http://localhost:9200"])
    said = f"error: ssi {name} was removed in 0.2: {REMOVED_COMMANDS[name]}"
    assert (result.exit_code, " ".join(result.stderr.split())) == (2, said)


def test_the_table_of_a_removed_command_is_refused_with_its_successor(tmp_path: Path) -> None:
    (tmp_path / "ssi.toml").write_text('[scripts.install]\nservice = "http://ssi:8080"\n')
    result = CliRunner().invoke(main, ["--config", str(tmp_path / "ssi.toml"), "versions", "--help"])
    assert result.exit_code == 2
    assert f"ssi scripts was removed in 0.2: {REMOVED_COMMANDS['scripts']}" in " ".join(result.stderr.split())


@pytest.mark.parametrize(("command", "option", "value"), GIVEN)
def test_a_removed_value_is_refused_with_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = f"error: {option} {value} was removed in 0.2: {REMOVED_VALUES[option, value]}"
    given = (*command.split(), *ARGUMENTS.get(command, TARGET))
    key = option.removeprefix("--")
    written = f'["{value}"]' if key == "routes" else f'"{value}"'
    (tmp_path / "ssi.toml").write_text(f"[{command.replace(' ', '.')}]\n{key} = {written}\n")
    variables = {f"SSI_{command}_{key}".upper().replace(" ", "_"): value}
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
        (found,) = (each for each in options_of(command_of(command)) if option in each.opts)
        assert isinstance(found.type, click.Choice)
        assert value not in found.type.choices
