"""Options for fields of a dataclass of settings: default and legal values are said by the dataclass alone."""

from __future__ import annotations

import ast
import inspect
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import click
import pytest
from click.testing import CliRunner

from indexer.build import BuildOptions
from indexer.bulk import BulkLimits
from indexer.load import LoadOptions
from indexer.renewal import RenewOptions
from reranker.cli import common
from reranker.cli.main import main
from reranker.clicks.pairs import PairConfig, Resources
from reranker.config import default_of
from reranker.rerank.settings import RerankSettings
from reranker.retrain.settings import GateConfig, RetrainSettings
from reranker.service.settings import Limits, ServiceSettings
from reranker.training.config import TrainConfig

SETTINGS: dict[str, tuple[type, ...]] = {
    "train": (TrainConfig,),
    "serve": (RerankSettings, ServiceSettings, Limits),
    "search": (RerankSettings,),
    "calibrate": (RerankSettings,),
    "retrain": (RetrainSettings, GateConfig, TrainConfig),
    "index": (BulkLimits, LoadOptions, BuildOptions),
    "revectorize": (BulkLimits, RenewOptions, BuildOptions),
    "sync": (BulkLimits, RenewOptions, BuildOptions),
    "clicks pairs": (PairConfig, Resources),
}
"""The settings that the options of a command become."""

OTHER_NAMES = {
    "max_docs": "max_ops",
    "rate_limit": "max_docs_per_s",
}
"""Parameters of options that fields call otherwise."""

OWN_DEFAULTS = {
    ("retrain", "models"): "the folder of a site's models; Python callers name theirs",
}
"""Options whose default is another one than the field's, and why."""


def command_of(name: str) -> click.Command:
    """Return a command by its words."""
    command: click.Command | None = main
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(main), word)
    assert command is not None
    return command


@pytest.mark.parametrize("name", SETTINGS)
def test_an_option_has_the_default_of_its_field(name: str) -> None:
    found = {}
    for option in common.options_of(command_of(name)):
        field = OTHER_NAMES.get(str(option.name), str(option.name))
        owner = next((cls for cls in SETTINGS[name] if field in {each.name for each in fields(cls)}), None)
        if owner is None or (name, field) in OWN_DEFAULTS or option.required:
            continue
        default = option.get_default(click.Context(click.Command("x")), call=True)
        default = None if "UNSET" in repr(default).upper() else default
        stated = default_of(owner, field)
        found[field] = (default, stated)
    assert {field: values for field, values in found.items() if (values[0] or None) != (values[1] or None)} == {}
    assert found


def test_no_option_restates_the_default_of_a_field() -> None:
    """In the source: ``click.option(..., default=LITERAL)`` for a parameter that is a field with a default."""
    with_default = {
        each.name
        for classes in SETTINGS.values()
        for cls in classes
        for each in fields(cls)
        if each.default is not MISSING and each.default is not None
    }
    restated = []
    for path in sorted(Path(inspect.getfile(common)).parent.glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "click.option"):
                continue
            names = [str(arg.value) for arg in call.args if isinstance(arg, ast.Constant)] or ["--computed"]
            plain = next((name for name in names if not name.startswith("-")), "")
            parameter = plain or names[0].split("/")[0].lstrip("-").replace("-", "_")
            default = next((key.value for key in call.keywords if key.arg == "default"), None)
            field = OTHER_NAMES.get(parameter, parameter)
            if field in with_default and _is_literal(default) and (path.stem, field) not in OWN_DEFAULTS:
                restated.append(f"{path.name}:{call.lineno} {parameter}")
    assert [each for each in restated if each.split()[1] not in NOT_OF_SETTINGS] == []


NOT_OF_SETTINGS = {"seed", "threads"}
"""Parameters that other commands have too, for what is no setting of these classes (the seed of a resampling)."""


def _is_literal(node: ast.expr | None) -> bool:
    return node is not None and all(
        isinstance(part, ast.Constant | ast.Tuple | ast.List | ast.expr_context | ast.UnaryOp | ast.unaryop)
        for part in ast.walk(node)
    )


@dataclass(frozen=True)
class Example:
    RANGES: ClassVar[dict[str, str]] = {"share": "[0, 1)", "count": "(0, 7]", "rate": "(0, inf)"}

    share: float = 0.5
    count: int | None = 3
    rate: float | None = None
    name: str = "a"
    bare: int = 4
    flag: bool = False
    kept: bool = True


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Example()),
        (
            ["--share", "0.25", "--count", "7", "--rate", "2", "--name", "b", "--bare", "-1", "--flag", "--no-kept"],
            Example(0.25, 7, 2.0, "b", -1, flag=True, kept=False),
        ),
        (["--share", "1"], "0.0<=x<1.0"),
        (["--count", "0"], "0<x<=7"),
        (["--rate", "0"], "x>0.0"),
        (["--count", "2.5"], "not a valid integer"),
    ],
)
def test_type_default_and_range_are_those_of_the_field(arguments: list[str], expected: Any) -> None:
    made = []

    @click.command()
    @common.all_of(*(common.setting(Example, each.name) for each in fields(Example) if each.name != "kept"))
    @common.setting(Example, "kept", "--kept/--no-kept")
    def command(**options: Any) -> None:
        made.append(Example(**options))

    result = CliRunner().invoke(command, arguments)
    if isinstance(expected, str):
        assert result.exit_code == 2 and expected in result.output
    else:
        assert made == [expected], result.output


def test_a_default_is_shown_once() -> None:
    shown = []

    def collect(command: click.Command, context: click.Context) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                if (inner := command.get_command(context, name)) is not None:
                    collect(inner, click.Context(inner, info_name=name, parent=context))
            return
        for option in command.params:
            if isinstance(option, click.Option) and (record := option.get_help_record(context)) is not None:
                shown.append((context.command_path, *record))

    collect(main, click.Context(main, info_name="ssi"))
    assert len(shown) > 200
    assert [one for one in shown if one[2].count("default:") + one[2].count("(default") > 1] == []
