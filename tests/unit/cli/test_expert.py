"""Expert settings: few options in the help, all others by ``--set``, with misspellings answered."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from reranker.cli.common import option_key, options_of
from reranker.cli.expert import SHOWN, ExpertCommand
from reranker.cli.main import main

NAMES = sorted(SHOWN)
MOST_SHOWN = 16
"""Options that a command shows, --set and --help-expert not counted."""


MOST_OF_TRAIN = 22
"""Options of ``ssi train``, expert settings included. To add one, remove another: this number only falls."""


def command_of(name: str) -> ExpertCommand:
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, ExpertCommand)
    return command


@pytest.mark.parametrize("name", NAMES)
def test_a_command_shows_no_more_options_than_a_screen_holds(name: str) -> None:
    shown = [option for option in options_of(command_of(name)) if not option.hidden]
    assert len(shown) <= MOST_SHOWN + 2, [option_key(option) for option in shown]


def test_training_has_few_options() -> None:
    keys = {option_key(option) for option in options_of(command_of("train"))} - {"set", "help_expert"}
    assert len(keys) == MOST_OF_TRAIN, "a new option needs another to go; after a removal, lower the number"


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_shown_or_an_expert_setting(name: str) -> None:
    command = command_of(name)
    keys = {option_key(option) for option in options_of(command)} - {"set", "help_expert"}
    former = {option_key(option) for option in options_of(command) if (option.help or "").startswith("Former name")}
    assert keys == {*SHOWN[name], *command.expert_options, *former} and len(command.expert_options) > 5
    assert not former & {*SHOWN[name], *command.expert_options}, "a former name is no setting of its own"


@pytest.mark.parametrize("name", NAMES)
def test_expert_settings_are_listed_with_their_defaults(name: str) -> None:
    text = CliRunner().invoke(main, [name, "--help-expert"]).output
    assert f"Expert settings of ssi {name}" in text
    assert all(f"{key}=" in text for key in command_of(name).expert_options)
    assert "expert settings (--help-expert)" in CliRunner().invoke(main, [name, "--help"]).output


def test_a_setting_is_the_option_of_its_key() -> None:
    parsed = (
        command_of("train")
        .make_context(
            "train",
            [
                "--docs",
                "d",
                "--links",
                "l",
                "--model",
                "m",
                "--set=warm-start=base",
                "--set",
                "html=true",
                "--analyzer",
                "english",
            ],
        )
        .params
    )
    assert parsed["html"] is True
    assert parsed["warm_start"] == Path("base")
    assert parsed["analyzer"] == "english", "by its own name an expert setting is taken too"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("warm_strat=m", "did you mean warm_start?"),
        ("nothing_like_it=1", "`--help-expert` lists them"),
        ("docs=x", "write --docs"),
        ("html", "is not KEY=VALUE"),
        ("", "is not KEY=VALUE"),
        ("html=perhaps", "true or false"),
        ("html=abc", "it is true or false"),
    ],
)
def test_a_setting_that_cannot_be_is_answered(setting: str, message: str) -> None:
    result = CliRunner().invoke(main, ["train", "--set", setting])
    assert result.exit_code == 2 and message in result.output


def test_what_stands_behind_two_dashes_is_no_setting() -> None:
    result = CliRunner().invoke(main, ["train", "--model", "m", "--", "--set", "html=true"])
    assert result.exit_code == 2 and "unexpected extra argument" in result.output


def test_expert_settings_stand_in_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "ssi.toml").write_text("[train]\nwarm_strat = 3\n")
    result = CliRunner().invoke(main, ["--config", str(tmp_path / "ssi.toml"), "train", "--help"])
    assert result.exit_code == 2 and "'warm_strat'" in result.output and "warm_start" in result.output
