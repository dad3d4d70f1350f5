"""Groups of commands that are imported when they are asked for, so that ``--help`` needs no heavy library."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import click

from reranker.cli.common import ErrorHandlingGroup

ENTRY_POINTS = "ssi.commands"
"""Group of entry points by which packages above this one bring commands: ``reproduce`` of `papers`."""


class LazyGroup(ErrorHandlingGroup):
    """A group whose commands live in a file each, as ``command``.

    Parameters
    ----------
    summaries : mapping
        Command names, in order, with the line that ``--help`` shows.
    prefix : str
        What stands before the name in the file's name: ``clicks_`` → ``reranker/cli/clicks_<name>.py``.
    **attributes
        As for `click.Group`.
    """

    def __init__(self, *, summaries: Mapping[str, str], prefix: str = "", **attributes: Any) -> None:
        super().__init__(**attributes)
        self.summaries = dict(summaries)
        self.prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in order."""
        return list(self.summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, imported now; None where there is none."""
        if cmd_name not in self.summaries:
            return None
        name = f"{self.prefix}{cmd_name}".replace("-", "_")
        command = self._from_package(cmd_name) or importlib.import_module(f"reranker.cli.{name}").command
        for option in options_of(command):
            # Named after the option, not after the variable that the code keeps it in.
            option.envvar = option.envvar or f"SSI_{name}_{option_key(option)}".upper()
        return command

    def _from_package(self, name: str) -> click.Command | None:
        """Return the command that another installed package brings under this name, None where none does."""
        found = metadata.entry_points(group=ENTRY_POINTS, name=f"{self.prefix}{name}")
        command: click.Command | None = next((entry.load() for entry in found), None)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options of a command."""
    return [one for one in command.params if isinstance(one, click.Option) and one.name]


def option_key(option: click.Option) -> str:
    """Return the configuration key of an option: ``--max-docs`` → ``max_docs``."""
    return option.opts[0].lstrip("-").replace("-", "_")
