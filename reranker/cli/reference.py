"""``python -m reranker.cli.reference``: the reference of all commands as Markdown, kept in ``docs/cli.md``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from reranker.cli.common import EXIT_CODES
from reranker.cli.groups import LazyGroup
from reranker.cli.main import COMMANDS, main


def reference() -> str:
    """Return the Markdown text: what each command does, its options with their defaults, examples, exit statuses."""
    lines = [
        "# Commands",
        "",
        "Made by `python -m reranker.cli.reference > docs/cli.md`; `ssi COMMAND --help` shows the same.",
        "An option can also be set by a variable (`SSI_SEARCH_WINDOW=100`) or in a configuration file (`--config`).",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`ssi {name}`](#ssi-{name}) | {summary} |" for name, summary in COMMANDS.items()),
    ]
    context = click.Context(main, info_name="ssi")
    for name in COMMANDS:
        command = main.get_command(context, name)
        if command is not None:
            lines += _sections(name, command, context)
    lines += ["", "## Exit status", "", "| status | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(lines) + "\n"


def _sections(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    """Yield the lines of a command, or of a group and its commands."""
    yield from ("", *_section(name, command, parent))
    if isinstance(command, LazyGroup):
        context = click.Context(command, info_name=name, parent=parent)
        for inner in command.summaries:
            found = command.get_command(context, inner)
            if found is not None:
                yield from _sections(f"{name} {inner}", found, context)


def _section(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    """Yield the lines of one command."""
    arguments = [one.name.upper() for one in command.params if isinstance(one, click.Argument) and one.name]
    yield f"## ssi {name}"
    yield ""
    rest = ["COMMAND", "..."] if isinstance(command, LazyGroup) else [*arguments, "[OPTIONS]"]
    yield f"`{' '.join(['ssi', name, *rest])}`"
    yield ""
    yield inspect.cleandoc(command.help or "").replace("\b", "").strip()
    yield ""
    if isinstance(command, LazyGroup):
        yield from ("| command | what it does |", "|---|---|")
        yield from (
            f"| [`ssi {name} {inner}`](#ssi-{name}-{inner}) | {text} |" for inner, text in command.summaries.items()
        )
    else:
        yield from ("| option | meaning | default |", "|---|---|---|")
        context = click.Context(command, info_name=name, parent=parent)
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                yield f"| `{_spelling(option, context)}` | {_cell(option.help or '')} | {_default(option)} |"
    yield ""
    yield "```text"
    yield from inspect.cleandoc((command.epilog or "").replace("\b", "")).strip().splitlines()
    yield "```"


def _spelling(option: click.Option, context: click.Context) -> str:
    """Return ``--name VALUE`` or ``--name/--no-name``."""
    names = "/".join([", ".join(option.opts), *option.secondary_opts])
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {_cell('|'.join(str(choice) for choice in option.type.choices))}"
    number = option.type.name.startswith(("integer", "float"))
    return f"{names} {option.metavar or ('NUMBER' if number else option.type.name.upper())}"


def _default(option: click.Option) -> str:
    """Return the default as it is typed, where there is one."""
    if option.required:
        return "required"
    if option.is_flag and not option.secondary_opts:
        return ""
    value = option.default
    if value is None or callable(value) or value == () or "UNSET" in repr(value).upper():
        return ""
    if isinstance(value, bool):
        return f"`{(option.opts if value else option.secondary_opts)[0]}`"
    return f"`{', '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def _cell(text: str) -> str:
    """Return text that can stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
