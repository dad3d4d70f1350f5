"""``python -m tests.docs.reference``: the reference of all commands as Markdown, kept in ``docs/cli.md``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator

import click

from reranker.cli import common
from reranker.cli.main import COMMANDS, main


def reference() -> str:
    """Return the Markdown text: what each command does, its options with their defaults, examples, exit statuses."""
    context = click.Context(main, info_name="ssi")
    lines = [
        "# Commands",
        "",
        "Made by `python -m tests.docs.reference > docs/cli.md`; `ssi COMMAND --help` shows the same.",
        "An option can also be set by a variable (`SSI_SEARCH_WINDOW=100`) or in a configuration file (`--config`).",
        "",
        *_table(("command", "what it does"), ((_link(name), summary) for name, summary in COMMANDS.items())),
    ]
    for name in COMMANDS:
        if command := main.get_command(context, name):
            lines += _sections(name, command, context)
    statuses = ((str(code), meaning) for code, meaning in common.EXIT_CODES.items())
    lines += ["", "## Exit status", "", *_table(("status", "meaning"), statuses)]
    return "\n".join(lines) + "\n"


def _sections(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    """Yield the lines of a command, or of a group and its commands."""
    context = click.Context(command, info_name=name, parent=parent)
    is_group = isinstance(command, common.CommandGroup)
    arguments = [part.name.upper() for part in command.params if isinstance(part, click.Argument) and part.name]
    rest = ["COMMAND", "..."] if is_group else [*arguments, "[OPTIONS]"]
    help_text = inspect.cleandoc(command.help or "").replace("\b", "").strip()
    yield from ("", f"## ssi {name}", "", f"`{' '.join(['ssi', name, *rest])}`", "", help_text, "")
    inner = command.commands if isinstance(command, common.CommandGroup) else {}
    if is_group:
        members = ((_link(f"{name} {part}"), member.get_short_help_str()) for part, member in inner.items())
        yield from _table(("command", "what it does"), members)
    else:
        options = (option for option in command.params if isinstance(option, click.Option) and not option.hidden)
        rows = ((f"`{_spelling(option)}`", option.help or "", _default(option)) for option in options)
        yield from _table(("option", "meaning", "default"), rows)
    examples = inspect.cleandoc((command.epilog or "").replace("\b", "")).strip()
    yield from ("", "```text", *examples.splitlines(), "```")
    for part, member in inner.items():
        yield from _sections(f"{name} {part}", member, context)


def _link(name: str) -> str:
    return f"[`ssi {name}`](#ssi-{name.replace(' ', '-')})"


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table; a bar within a cell is escaped, also in code."""
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for row in rows:
        yield f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in row)} |"


def _spelling(option: click.Option) -> str:
    """Return ``--name VALUE`` or ``--name/--no-name``."""
    names = "/".join([", ".join(option.opts), *option.secondary_opts])
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {'|'.join(str(choice) for choice in option.type.choices)}"
    number = option.type.name.startswith(("integer", "float"))
    return f"{names} {option.metavar or ('NUMBER' if number else option.type.name.upper())}"


def _default(option: click.Option) -> str:
    """Return the default as it is typed, where there is one."""
    if option.required:
        return "required"
    if option.is_flag and not option.secondary_opts:
        return ""
    value = option.default
    if value in (None, (), "") or callable(value) or "UNSET" in repr(value).upper():
        return ""
    if isinstance(value, bool):
        return f"`{(option.opts if value else option.secondary_opts)[0]}`"
    return f"`{', '.join(map(str, value)) if isinstance(value, tuple) else value}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
