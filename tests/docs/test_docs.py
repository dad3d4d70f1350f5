"""The documentation says what the code does: commands, options, keys, exit statuses, links, and the Python example."""

from __future__ import annotations

import gzip
import importlib
import json
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import reranker
from reranker.cli.common import EXIT_CODES, CommandGroup
from reranker.cli.main import COMMANDS, ENTRY_POINTS, EXTRAS, main
from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.errors import RerankerError
from reranker.models.model_folder import save_model
from reranker.service.http import KINDS
from reranker.service.telemetry import _AT_START
from tests.docs.reference import reference
from tests.services import TEMPLATE
from tests.unit.clicks.reading import event, query
from tests.unit.retrain.shop import N_DOCUMENTS, Shop, is_answer

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
GUIDES = sorted({ROOT / "README.md", ROOT / "docs" / "reference.md", *(ROOT / "docs" / "guide").glob("*.md")})
TEXTS = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})


def section(title: str) -> str:
    return REFERENCE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the first table of a text, without its heading."""
    table = re.search(r"((?:^\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.group(1).splitlines()[2:]]


def subclasses(cls: type[RerankerError]) -> set[type[RerankerError]]:
    return {cls, *(found for one in cls.__subclasses__() for found in subclasses(one))}


def every_command() -> dict[str, click.Command]:
    """Return all commands by name, those of groups as ``group command``."""
    found: dict[str, click.Command] = {}
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, CommandGroup):
            found |= {f"{name} {inner}": member for inner, member in command.commands.items()}
    return found


@pytest.mark.parametrize("name", every_command())
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    assert f"ssi {name}" in result.output.partition("Examples:")[2]


@pytest.mark.parametrize("name", every_command())
def test_every_option_has_help(name: str) -> None:
    command = every_command()[name]
    assert command.help
    without = [
        one.opts
        for one in command.params
        if isinstance(one, click.Option) and not one.help and "--seed" not in one.opts
    ]
    assert without == []


def test_the_command_line_lists_the_commands() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    assert all(re.search(rf"^  {name} ", output, re.MULTILINE) for name in COMMANDS)
    listed = {name.split()[-1] for name in every_command()}
    for path in (ROOT / "reranker" / "cli").glob("*.py"):
        module = importlib.import_module(f"reranker.cli.{path.stem}")
        commands = [value for value in vars(module).values() if isinstance(value, click.Command) and value is not main]
        assert {command.name for command in commands} <= listed, path.name
    brought = metadata.entry_points(group=ENTRY_POINTS).names
    assert brought == set(EXTRAS) <= set(COMMANDS)


def test_the_reference_lists_the_commands() -> None:
    assert rows(section("Commands")) == [[f"`ssi {name}`", text] for name, text in COMMANDS.items()]


def test_the_reference_is_current() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == reference(), (
        "docs/cli.md is not what the commands say: run  python -m tests.docs.reference > docs/cli.md"
    )


def test_every_table_of_the_reference_has_whole_rows() -> None:
    """A bar within a cell is escaped: unescaped, it would cut the row into another number of cells."""
    widths = []
    for line in reference().splitlines():
        if line.startswith("|"):
            widths.append(len(re.findall(r"(?<!\\)\|", line)) - 1)
        else:
            assert len(set(widths)) <= 1, widths
            widths = []
    assert "engine\\|FILE\\|none" in reference()


def test_the_reference_lists_the_exit_statuses() -> None:
    assert rows(section("Exit status")) == [[str(code), meaning] for code, meaning in EXIT_CODES.items()]


def test_every_error_has_a_documented_exit_status() -> None:
    assert {cls.exit_code for cls in subclasses(RerankerError)} <= set(EXIT_CODES)


def test_the_reference_lists_the_settings_of_the_engine() -> None:
    table = rows(section("Engines").split("configuration file:")[1])
    assert tuple(row[0].strip("`") for row in table) == EngineSettings.keys()
    for key, variable, default, _ in table:
        value = getattr(EngineSettings(), key.strip("`"))
        shown = {None: "", True: "true"}.get(value, str(value).removesuffix(".0")) if value != {} else ""
        assert default == shown
        if variable:
            legal = {"verify": "no", "connect_timeout_s": "3", "read_timeout_s": "3", "ca_file": __file__}
            legal |= {"headers": '{"X-Tenant": "x"}', "proxy": "http://x", "aws_service": "aoss"}
            environ = {variable.strip("`"): legal.get(key.strip("`"), "x")}
            environ |= {"SSI_ENGINE_USER": "x", "SSI_ENGINE_PASSWORD": "x"} if key in ("`user`", "`password`") else {}
            assert getattr(EngineSettings.from_environment(environ), key.strip("`")) != value


def test_the_configuration_of_the_reference_is_legal(tmp_path: Path) -> None:
    file = tmp_path / "ssi.toml"
    file.write_text(re.search(r"```toml\n(.*?)```", REFERENCE, re.DOTALL)[1])  # type: ignore[index]
    assert CliRunner().invoke(main, ["--config", str(file), "search", "--help"]).exit_code == 0
    file.write_text(file.read_text().replace("window", "windw"))
    result = CliRunner().invoke(main, ["--config", str(file), "search", "x"])
    assert result.exit_code == 2
    assert "'windw'" in result.stderr
    assert "window" in result.stderr


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [one for one in targets if one and not (path.parent / one).exists()] == []


def test_paths_named_in_the_readme_and_the_reference_exist() -> None:
    named = re.findall(r"`((?:tests|benchmarks|docs|reranker|indexer)/[\w./-]*)`", README + REFERENCE)
    assert [one for one in named if not (ROOT / one).exists()] == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_every_command_in_the_guides_is_one(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"(?:^|&& |`)ssi ([a-z][^`\n&]*)", re.sub(r"^    ", "", text, flags=re.MULTILINE), re.MULTILINE)
    known = every_command()
    for line in lines:
        words = line.split()
        name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
        assert name in known or name in COMMANDS or words[0].isupper(), f"ssi {line}"
        if name in known:
            options = {name for one in known[name].params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
            assert {word for word in words if word.startswith("--") and len(word) > 2} <= options, f"ssi {line}"


STAND_INS = dict.fromkeys(("...", "SPEC"), "tantivy:index")
"""What stands for a value in the guides, and a legal one."""
DEFAULTS = {"engine_spec": "tantivy:index", "index": "shop", "model_path": "model", "body_path": "body.json"}


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_every_whole_command_in_the_guides_is_taken_as_it_is_written(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    known = every_command()
    for line in re.findall(r"^    ssi (.*)$", text, re.MULTILINE):
        for each in line.split("&& ssi"):
            words = shlex.split(each, comments=True)
            name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
            arguments = [STAND_INS.get(word, word) for word in words[len(name.split()) :]]
            if name in known and "--help" not in arguments:
                parent = click.Context(main)
                # What `ssi init` writes, which such a guide begins with.
                parent.default_map = {name: DEFAULTS} if "ssi init" in text else {}
                with suppress(click.exceptions.Exit):  # --new-key prints one and ends
                    known[name].make_context(name, arguments, parent=parent)


NEEDS_A_SERVER = {"serve", "reproduce", "--since"}
"""Commands, routes and options of the guides that the embedded engine cannot carry, or that end when they are told."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "beside.md", "reference.md", "retraining.md", "watching.md"])
def test_the_commands_of_a_guide_run_one_after_the_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (path for path in GUIDES if path.name == name)
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^    ssi (.*)$", text, re.MULTILINE)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))
    engine = open_engine("tantivy:./index")
    shop = Shop(tmp_path, engine, "shop").fill()
    ids = list(shop.documents)
    if not any(words[0] == "train" for words in lines):
        save_model(shop.base, tmp_path / "model")
        shop.log(tmp_path / "clicks")
    links = "".join(f"{ids[k]}\t{ids[(k + step) % N_DOCUMENTS]}\n" for k in range(N_DOCUMENTS) for step in (6, 12))
    (tmp_path / "links.tsv").write_text(links)
    for file in ("queries.tsv", "other-queries.tsv"):
        (tmp_path / file).write_text("".join(f"q{k}\t{text}\n" for k, text in enumerate(shop.queries)))
    answers = [(k, one) for k, text in enumerate(shop.queries) for one in ids if is_answer(text, shop.documents[one])]
    for file in ("qrels.tsv", "other-qrels.tsv"):
        (tmp_path / file).write_text("".join(f"q{k}\t{one}\t1\n" for k, one in answers))
    (tmp_path / "part-aa.jsonl").write_bytes((tmp_path / "docs.jsonl").read_bytes())
    if "ssi init" not in text:  # which writes one
        (tmp_path / "body.json").write_text(json.dumps(TEMPLATE))
    rows = {"ubi_queries": [query()], "ubi_events": [event(session_id="3f2a77c0-9a41"), event(user_id="3f2a77c0-9a41")]}
    for table, found in rows.items():
        lines_of_rows = "".join(json.dumps(row) + "\n" for row in found)
        (tmp_path / f"{table}.ndjson").write_text(lines_of_rows)
        (tmp_path / f"{table}.ndjson.gz").write_bytes(gzip.compress(lines_of_rows.encode()))
        engine.create_index(table, {"properties": {"timestamp": {"type": "date"}}})
        engine.bulk(table, [WriteOp("index", str(place), row) for place, row in enumerate(found)])
        engine.refresh(table)
    engine.close()
    ran = 0
    for words in lines:
        if NEEDS_A_SERVER.isdisjoint(words) or "--new-key" in words:
            # The clicks are of no recent date.
            here = [re.sub(r"^(elastic|open)search:.*", "tantivy:./index", re.sub("^90$", "36500", w)) for w in words]
            result = CliRunner().invoke(main, here)
            assert result.exit_code == 0, (here, result.output)
            ran += 1
    assert ran >= 3


@pytest.mark.slow
def test_the_python_example_runs(tmp_path: Path) -> None:
    words = ["ordered", "dictionary", "list", "set", "queue", "tree", "graph", "hash"]
    documents = [
        {"id": f"d{i}", "title": words[i % 8], "text": f"about {words[i % 8]} and {words[(i // 8) % 8]} number {i}"}
        for i in range(120)
    ]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (tmp_path / "links.tsv").write_text("".join(f"d{i}\td{(i * 7 + k) % 120}\n" for i in range(120) for k in (1, 9)))
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\['d\d+', ", done.stdout)


def test_the_figures_are_those_of_the_results() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "figures.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_result_says_how_it_came_about() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        about = json.loads(path.read_text(encoding="utf-8"))["about"]
        assert {"command", "seed", "version", "program", "date", "machine"} <= set(about), path.name


def test_the_pages_of_figures_show_every_result() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "figures").glob("*.md"))
    kept = [json.loads(path.read_text("utf-8"))["about"] for path in (ROOT / "benchmarks" / "results").glob("*.json")]
    assert [about["command"] for about in kept if about["command"] not in pages] == []


def test_the_readme_is_short_and_has_a_row_of_figures_for_each_case() -> None:
    assert len(README.splitlines()) <= 150
    figures = README.partition("<!-- figures")[2].partition("<!-- end of figures")[0]
    assert 10 <= len(rows(figures)) <= 16


def test_every_public_name_is_there() -> None:
    assert [name for name in reranker.__all__ if getattr(reranker, name, None) is None] == []
    assert set(dir(reranker)) == set(reranker.__all__)
    with pytest.raises(AttributeError, match="public names"):
        _ = reranker.Nonsense


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, reranker; print(sorted({'numpy', 'scipy', 'numba', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ALL_HELP = """
import sys
from click.testing import CliRunner
from reranker.cli.main import main

def ask(command, *names):
    assert CliRunner().invoke(main, [*names, "--help"]).exit_code == 0, names
    loaded = sorted({"numpy", "scipy", "numba", "tantivy", "elasticsearch", "fastapi"} & set(sys.modules))
    assert not loaded, (names, loaded)
    for name in getattr(command, "list_commands", lambda context: ())(None):
        ask(command.get_command(None, name), *names, name)
    print(*names)

ask(main)
"""


def test_no_help_loads_a_heavy_library() -> None:
    done = subprocess.run([sys.executable, "-c", ALL_HELP], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"evaluate", "reproduce", "clicks pairs"} <= set(done.stdout.splitlines())


def test_tracked_files_name_no_machine_and_no_registry() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: nothing is tracked")
    # Spelt in parts, so that this file does not find itself.
    forbidden = re.compile(
        "|".join(["/" + "work/", "/" + "root/", "/home" + r"/[a-z]+/", "pypi" + r"\.org", "pythonhosted" + r"\.org"])
    )
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path.stat().st_size < 2_000_000:
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                if forbidden.search(line):
                    found.append(f"{name}:{number}: {line.strip()[:120]}")
    assert found == []


def test_the_reference_lists_what_requests_are_refused_with() -> None:
    table = rows(section("Search bodies and errors").split("Errors:")[1])
    listed = {(int(status), kind) for status, kinds, _ in table for kind in re.findall(r"`(\w+)`", kinds)}
    assert {status for status, _ in listed} <= set(KINDS)
    service = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "reranker" / "service").glob("*.py"))
    for status, kind in listed:
        assert KINDS[status] == kind or f'kind="{kind}"' in service, kind
    http = (ROOT / "reranker" / "service" / "http.py").read_text(encoding="utf-8")
    for status, kind in re.findall(r'ServiceError\(\s*(\d+), [^\n]*?kind="(\w+)"', http):
        assert (int(status), kind) in listed, kind


def test_the_guide_lists_the_causes_of_refusals() -> None:
    guide = (ROOT / "docs" / "guide" / "watching.md").read_text(encoding="utf-8")
    table = rows(guide[guide.index("| cause in `ssi_refused_total`") :])
    assert {cause for names, _ in table for cause in re.findall(r"`(\w+)`", names)} == set(_AT_START["refused"])
