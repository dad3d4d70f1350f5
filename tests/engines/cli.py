"""The command line of the launcher: one engine in the foreground."""

from __future__ import annotations

import time
from typing import get_args

import click

from tests.engines.assembly import EngineUnavailableError, ensure_distribution
from tests.engines.launcher import EngineProcess, EngineStartError
from tests.engines.options import EngineOptions
from tests.engines.recipes import EngineKind


@click.command()
@click.argument("kind", type=click.Choice(get_args(EngineKind)))
@click.option("--port", type=int, help="HTTP port on 127.0.0.1 (default: a free one).")
@click.option("--heap", default="1g", show_default=True, help="Java heap.")
@click.option("--setting", "settings", multiple=True, metavar="NAME=VALUE", help="An engine setting; may be repeated.")
@click.option("--assemble-only", is_flag=True, help="Only put the engine into the cache, and print its folder.")
def main(kind: EngineKind, port: int | None, heap: str, settings: tuple[str, ...], assemble_only: bool) -> None:
    """Run one engine until Ctrl-C; its data are removed at the end."""
    try:
        if assemble_only:
            click.echo(ensure_distribution(kind))
        else:
            _run(kind, port, heap, settings)
    except (EngineUnavailableError, EngineStartError) as error:
        raise click.ClickException(str(error)) from error


def _run(kind: EngineKind, port: int | None, heap: str, settings: tuple[str, ...]) -> None:
    options = EngineOptions(heap=heap, settings=_parse_settings(settings))
    if port is not None:
        options["port"] = port
    began = time.monotonic()
    with EngineProcess(kind, **options) as engine:
        click.echo(f"{engine.url}  ({kind}, up in {time.monotonic() - began:.1f} s; Ctrl-C ends it)")
        status = engine.wait()
        raise EngineStartError(f"{kind} ended by itself with status {status}:\n{engine.log_tail()}")


def _parse_settings(pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--setting")
    return dict(pair.split("=", 1) for pair in pairs)


if __name__ == "__main__":
    main(prog_name="python -m tests.engines.launcher")
