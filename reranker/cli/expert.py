"""Expert settings: options that most users never need and that ``--help`` does not list.

They are given by ``--set KEY=VALUE``, as keys of the configuration file, or by their own option names.
``--help-expert`` and docs/cli.md list them. All options of an `ExpertCommand` that are not in `SHOWN` are expert
settings.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Final

import click

from reranker.cli.common import option_key, options_of
from reranker.cli.removed import refuse_removed

SHOWN: Final[dict[str, tuple[str, ...]]] = {
    "train": (
        "docs",
        "links",
        "qrels",
        "query_file",
        "pairs",
        "model",
        "fields",
        "vector_field",
        "valid",
        "engine",
        "index",
        "dim",
        "seed",
        "report",
        "json",
    ),
    "serve": (
        "engine",
        "index",
        "model",
        "models",
        "route",
        "body",
        "proxy",
        "forward",
        "window",
        "shadow",
        "percent",
        "sink",
        "host",
        "port",
        "api_keys",
        "new_key",
    ),
    "retrain": (
        "engine",
        "index",
        "clicks",
        "models",
        "warm_start",
        "links",
        "qrels",
        "query_file",
        "since",
        "body",
        "window",
        "report",
        "dry_run",
        "json",
    ),
}
"""Command → keys of the options in its help. A key has underscores, as in the configuration file."""


class ExpertCommand(click.Command):
    """A command whose help lists only the options of `SHOWN`. All others can also be given by ``--set KEY=VALUE``.

    ``expert_options`` maps the keys of the others to the options.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        shown = SHOWN[str(self.name)]
        # Options that are hidden already are former names of other options, not settings.
        self.expert_options = {option_key(one): one for one in options_of(self) if not one.hidden}
        for key in shown:
            del self.expert_options[key]
        for option in self.expert_options.values():
            option.hidden = True
        self.params.append(_set_option(len(self.expert_options)))
        self.params.append(
            click.Option(
                ["--help-expert"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_show_expert_settings,
                help="List the expert settings with their defaults and exit.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments after replacing each ``--set KEY=VALUE`` by the option of that key."""
        return super().parse_args(ctx, list(self._expanded(args)))

    def _expanded(self, args: list[str]) -> Iterator[str]:
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                yield arg
                yield from rest
            elif arg == "--set":
                yield from self._as_option(next(rest, ""))
            elif arg.startswith("--set="):
                yield from self._as_option(arg.removeprefix("--set="))
            else:
                yield arg

    def _as_option(self, setting: str) -> Iterator[str]:
        """Yield the command-line arguments that are equivalent to a setting KEY=VALUE."""
        name, equals, value = setting.partition("=")
        key, known = name.strip().replace("-", "_"), self.expert_options
        if not equals:
            raise click.UsageError(
                f"--set {setting!r} is not KEY=VALUE: write it as in --set {next(iter(known))}=VALUE"
            )
        option = known.get(key)
        if option is None:
            refuse_removed(str(self.name), [key])
            shown = [option_key(one) for one in options_of(self) if not one.hidden]
            if key in shown:
                raise click.UsageError(f"{key!r} is an option of its own: write --{key.replace('_', '-')}")
            near = difflib.get_close_matches(key, known, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`--help-expert` lists them"
            raise click.UsageError(f"{key!r} is not an expert setting of ssi {self.name}: {hint}")
        if not option.is_flag:
            yield from (option.opts[0], value)
            return
        names = {"true": option.opts, "false": option.secondary_opts}.get(value.lower())
        if names is None:
            raise click.UsageError(f"{key} is {value!r}; it is true or false")
        yield from names[:1]


def _set_option(n_settings: int) -> click.Option:
    return click.Option(
        ["--set"],
        multiple=True,
        metavar="KEY=VALUE",
        expose_value=False,
        help=f"One of {n_settings} expert settings (--help-expert); can be repeated.",
    )


def _show_expert_settings(context: click.Context, option: click.Parameter, value: bool) -> None:
    """Print the expert settings of a command and exit."""
    command = context.command
    if not value or context.resilient_parsing or not isinstance(command, ExpertCommand):
        return
    formatter = context.make_formatter()
    with formatter.section(f"Expert settings of ssi {command.name}, as --set KEY=VALUE"):
        formatter.write_dl(list(expert_rows(command, context)))
    click.echo(formatter.getvalue().rstrip("\n"))
    context.exit()


def expert_rows(command: ExpertCommand, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield (key with type of the value, help with default) for each expert setting of a command."""
    for key, option in command.expert_options.items():
        option.hidden = False
        try:
            record = option.get_help_record(context)
        finally:
            option.hidden = True
        spelling, meaning = record or ("", option.help or "")
        kind = "true|false" if option.is_flag else spelling.partition(" ")[2]
        yield f"{key}={kind}", meaning
