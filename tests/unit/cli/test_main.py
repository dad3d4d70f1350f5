"""The command itself: names of variables, tables of the configuration, and commands whose extra is not installed."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from reranker import errors
from reranker.cli import common
from reranker.cli.common import CommandGroup, options_of
from reranker.cli.main import main
from reranker.errors import MissingExtra

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def fresh_main(monkeypatch: pytest.MonkeyPatch) -> click.Group:
    """Return the command as a new process has it: nothing is imported yet."""
    monkeypatch.setattr(main, "commands", {})
    return main


def test_variables_are_named_after_commands_and_options() -> None:
    context = click.Context(main)
    index, clicks = main.get_command(context, "index"), main.get_command(context, "clicks")
    assert index is not None and isinstance(clicks, CommandGroup)
    assert {"SSI_INDEX_MAX_DOCS", "SSI_INDEX_REJECTS"} <= {str(option.envvar) for option in options_of(index)}
    variables = {str(option.envvar) for option in options_of(clicks.commands["import"])}
    assert {"SSI_CLICKS_IMPORT_LOG", "SSI_CLICKS_IMPORT_FORMAT", "SSI_CLICKS_IMPORT_QUERIES_INDEX"} <= variables


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("serch", "Did you mean search or serve?"),
        ("clicks imprt", "Did you mean import?"),
        ("doctor", "Did you mean clicks doctor?"),
        ("pairs", "Did you mean clicks pairs or words pairs?"),
        ("xyzzy", "'xyzzy'.\n"),
    ],
)
def test_commands_spelt_nearly_like_an_unknown_one_are_named(typed: str, message: str) -> None:
    result = CliRunner().invoke(main, typed.split())
    assert result.exit_code == 2 and message in result.stderr


def test_the_table_of_a_group_holds_a_table_for_each_command(tmp_path: Path) -> None:
    file = tmp_path / "ssi.toml"
    file.write_text("[clicks.expire]\ndayz = 3\n")
    result = CliRunner().invoke(main, ["--config", str(file), "clicks", "expire", "--log", "x"])
    assert result.exit_code == 2 and "table [clicks.expire]: unknown key 'dayz'" in result.stderr
    file.write_text("[clicks.expire]\ndays = -3\n")
    result = CliRunner().invoke(main, ["--config", str(file), "clicks", "expire", "--log", "x"])
    assert result.exit_code == 2 and "-3" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "new"),
    [
        ("retrain --clicks log --engine tantivy:none --index docs --judgments qrels.tsv", "--qrels"),
        ("retrain --clicks log --engine tantivy:none --index docs --judgements qrels.tsv", "--qrels"),
        ("retrain --clicks log --engine tantivy:none --index docs --base model", "--warm-start"),
        ("index docs.jsonl --engine tantivy:none --index docs --store default", "--write-store"),
    ],
)
def test_a_former_name_of_an_option_is_the_new_one_with_a_note(
    arguments: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.jsonl").write_text("")
    *command, old, value = arguments.removesuffix(" --model m --fields title").split()
    note = f"note: {old} is now called {new}"
    by_option = CliRunner().invoke(main, arguments.split())
    rest = arguments.removesuffix(" --model m --fields title").removesuffix(f"{old} {value}").split()
    rest += ["--model", "m", "--fields", "title"] if "words" in rest else []
    renamed = CliRunner().invoke(main, [*rest, new, value])
    assert note in by_option.stderr and "note:" not in renamed.stderr
    assert by_option.stderr.splitlines()[1:] == renamed.stderr.splitlines() and renamed.exit_code == by_option.exit_code
    by_file = tmp_path / "ssi.toml"
    table = ".".join(command[:2] if command[0] == "words" else command[:1])
    by_file.write_text(f"[{table}]\n{old.lstrip('-')} = '{value}'\n")
    assert note in CliRunner().invoke(main, ["--config", str(by_file), *rest]).stderr


def test_reproduce_names_its_extra_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    result = CliRunner().invoke(main, ["reproduce", "T1a", "--small"])
    assert result.exit_code == 2
    assert "'sklearn' is not installed" in result.stderr
    assert f"{sys.executable} -m pip install '{ROOT}[papers]'" in result.stderr


def test_reproduce_is_refused_where_no_package_brings_it(
    fresh_main: click.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints())
    result = CliRunner().invoke(fresh_main, ["reproduce", "--list"])
    assert result.exit_code == 2 and "[papers]" in result.stderr
    assert CliRunner().invoke(fresh_main, ["--help"]).exit_code == 0


def test_reproduce_is_refused_where_its_package_cannot_be_imported(
    fresh_main: click.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = metadata.EntryPoint("reproduce", "no_such_library.command:command", "ssi.commands")
    monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints([entry]))
    result = CliRunner().invoke(fresh_main, ["reproduce", "--list"])
    assert result.exit_code == 2 and "'no_such_library' is not installed" in result.stderr


def test_the_command_for_a_missing_library_fits_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = str(MissingExtra("tokenizers", "encoder"))
    assert f"{sys.executable} -m pip install '{ROOT}[encoder]'" in checkout
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "reranker" / "errors.py"))
    installed = str(MissingExtra("tokenizers", "encoder"))
    assert f"{sys.executable} -m pip install 'ssi-reranker[encoder]'" in installed


def written_to_a_terminal(script: str) -> str:
    """Return the standard error of a Python script that runs in a terminal."""
    master, slave = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", script], stderr=slave, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    written = b""
    # The last read of a terminal whose other end is closed is an error on Linux.
    with contextlib.suppress(OSError):
        while block := os.read(master, 65_536):
            written += block
    os.close(master)
    assert child.wait(timeout=60) == 0
    return written.decode()


@pytest.mark.parametrize("bar", ["stage_progress() as update", "run_progress() as (update, run)"])
def test_messages_stand_above_the_progress_bar_of_a_terminal(bar: str) -> None:
    script = (
        "from reranker.cli import common\n"
        f"with common.{bar}:\n"
        "    update('training', 1, 3)\n"
        "    common.say('half [x] :smile: way')\n"
        "    common.warn('mind this')\n"
        "    update('training', 3, 3)\n"
        "common.say('at the end')\n"
    )
    text = written_to_a_terminal(script)
    for message in ("half [x] :smile: way", "mind this", "at the end"):
        assert re.search(rf"(?:\n|\x1b\[2K)(?:\x1b\[\d+m|\x1b\[\?25h)*{re.escape(message)}", text), (message, text)


def test_a_terminal_shows_one_bar_for_all_stages_of_a_run() -> None:
    script = (
        "import time\n"
        "from reranker.cli import common\n"
        "with common.run_progress() as (update, run):\n"
        "    run.expect({'reading': 1, 'learning': 3})\n"
        "    run.begin('reading')\n"
        "    run.begin('learning')\n"
        "    update('training', 0, None)\n"
        "    time.sleep(0.5)\n"
    )
    text = re.sub(r"\x1b\[[\d;]*m", "", written_to_a_terminal(script))
    assert re.search(r"learning: training .* (2[5-9]|[345]\d)%", text), text  # from 1/4, by the clock
    assert re.search(r"done .* 100%", text), text


def test_another_pass_is_numbered_instead_of_counted_backwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "LOG_INTERVAL_S", 0)
    with common.progress("sync shop", total=10) as update:
        for done in (5, 10, 0, 4):
            update(done, 10)
    lines = [line.partition(" of")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["sync shop: 5", "sync shop: 10", "sync shop (pass 2): 4"]
