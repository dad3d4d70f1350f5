"""The pages of figures are those of the results, and the program of a result is a digest of what it depends on."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def provenance() -> ModuleType:
    spec = importlib.util.spec_from_file_location("provenance", ROOT / "benchmarks" / "provenance.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["provenance"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a project with two modules, one of which a benchmark imports by another benchmark."""
    files = {
        "benchmarks/bench.py": "import helper\n",
        "benchmarks/helper.py": "def work():\n    from reranker.used import one\n    return one\n",
        "benchmarks/command.py": 'import plan\nrun = ["-m", "reranker", *plan.words]\n',
        "benchmarks/plan.py": 'words = ["train"]\n',
        "benchmarks/papers_command.py": 'run = ["ssi", "reproduce"]\n',
        "benchmarks/public_name.py": "from reranker import model\n",
        "pyproject.toml": '[project.entry-points."ssi.commands"]\nreproduce = "papers.command:command"\n',
        "reranker/__init__.py": (
            "if TYPE_CHECKING:\n    from reranker.other import two\n"
            'TABLE = {"reranker.used": ("model",)}\n'
            "def open_all():\n    from reranker import other\n"
        ),
        "benchmarks/opens_all.py": "from reranker import open_all\n",
        "reranker/used.py": '"""One."""\n\none = 1\n',
        "reranker/other.py": "two = 2\n",
        "reranker/by_name.py": "three = 3\n",
        "reranker/cli/__init__.py": "",
        "reranker/cli/common.py": "from reranker import other\n",
        "reranker/cli/train.py": "from reranker.cli import common\n",
        "papers/__init__.py": "",
        "papers/command.py": "from papers import registry\nfrom reranker.used import one\n",
        "papers/registry.py": 'TASK = "reranker.by_name:three"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_program_of_a_result_changes_only_with_the_code_that_it_depends_on(
    provenance: ModuleType, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def program(script: str, **changed: str) -> str:
        """Return the digest after changes, in a copy of the project: files are read once."""
        root = tmp_path_factory.mktemp("copy")
        for path in (each for each in sorted(project.rglob("*")) if each.is_file()):
            target = root / path.relative_to(project)
            target.parent.mkdir(exist_ok=True, parents=True)
            target.write_text(changed.get(path.stem, path.read_text()))
        digest: str = provenance.program_of(root / "benchmarks" / script, root)
        return digest

    known = program("bench.py")
    assert program("bench.py", other="two = 3\n") == known
    assert program("bench.py", helper="def work():\n    from reranker.used import one\n    return one + 1\n") == known
    assert program("bench.py", used='"""Another text."""\none   =   1  # a comment\n') == known
    assert program("bench.py", used="one = 2\n") != known

    of_command = program("command.py")
    assert program("command.py", other="two = 3\n") == of_command, "only the plumbing of commands imports it"
    assert program("command.py", train="pass\n") != of_command
    assert program("papers_command.py", by_name="three = 4\n") != program("papers_command.py")
    assert program("papers_command.py", command="one = 2\n") != program("papers_command.py")
    assert program("papers_command.py", used="one = 2\n") != program("papers_command.py")
    assert program("papers_command.py", train="pass\n") == program("papers_command.py")
    assert program("public_name.py", used="one = 2\n") != program("public_name.py")
    assert program("public_name.py", other="two = 3\n") == program("public_name.py")
    assert program("opens_all.py", other="two = 3\n") != program("opens_all.py")


def test_links_of_the_pages_of_figures_lead_to_headings() -> None:
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((figures/\w+\.md)#([^)]*)\)", page)
    assert len(links) > 30
    for name, anchor in links:
        headings = re.findall(r"^## (.*)$", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.MULTILINE)
        anchors = [re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings]
        assert anchor in anchors, anchor


def test_each_run_of_the_papers_systems_names_its_command_and_its_program() -> None:
    page = (ROOT / "docs" / "figures" / "papers.md").read_text(encoding="utf-8")
    runs = json.loads((ROOT / "benchmarks" / "results" / "reproduced.json").read_text(encoding="utf-8"))["runs"]
    for name, run in runs.items():
        assert re.fullmatch("[0-9a-f]{12}", run["version"]), name
        assert f"**{name}.** `{run['command']}`, measured with program {run['version']}, {run['date']}" in page


def test_each_run_of_the_papers_systems_names_its_corpus_its_size_and_its_seeds() -> None:
    page = (ROOT / "docs" / "figures" / "papers.md").read_text(encoding="utf-8")
    content = json.loads((ROOT / "benchmarks" / "results" / "reproduced.json").read_text(encoding="utf-8"))
    for name, run in content["runs"].items():
        line = next(line for line in page.splitlines() if line.startswith(f"**{name}.** "))
        corpus = re.search(r"--corpus (\S+)", run["command"])
        seeds = re.search(r"--seeds (\d+)", run["command"])
        said = line.partition("`, measured with ")[2]
        assert (corpus[1] if corpus else "cppdocs") in said, name
        assert (f"{seeds[1]} seeds" if seeds else "one seed") in said, name
        assert re.search(r"[\d,]+ documents", said), name
        assert ("an earlier program" in said) == (run["version"] != content["about"]["program"]), name


def test_the_list_of_earlier_programs_and_the_page_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    figures = importlib.import_module("figures")
    page = (ROOT / "docs" / "figures" / "papers.md").read_text(encoding="utf-8").partition("earlier runs")[0]
    on_page = set(re.findall(r"measured with program ([0-9a-f]{12})", page))
    assert on_page == set(figures.programs_of(figures.load("reproduced")))
    listed = [line for line in figures.of_earlier_programs() if line.startswith("reproduced:")]
    earlier = on_page - {figures.program_of(ROOT / "benchmarks" / "reproduced.py")}
    assert bool(listed) == bool(earlier)
    if len(earlier) > 1:
        assert f"{len(earlier)} earlier programs" in listed[0]


def test_rows_of_earlier_runs_that_disagree_are_shown() -> None:
    page = (ROOT / "docs" / "figures" / "papers.md").read_text(encoding="utf-8")
    earlier = page.partition("## The papers' systems: earlier runs")[2]
    rows = {
        tuple(line.split(" | ")[:2]): line.split(" | ")[2] for line in earlier.splitlines() if line.startswith("| T1a")
    }
    four_million = "| T1a, N 100, 4,000,000 steps"
    tied, untied = (float(rows[four_million, name]) for name in ("utu-plus-i", "utv-plus-i"))
    assert tied > untied


def test_modules_that_the_product_loads_by_name_are_known(provenance: ModuleType) -> None:
    known = {
        *provenance.LOADED_BY_NAME,
        "reranker/__init__.py",  # the public names of a package: by the names that are imported
        "reranker/lazy.py",
        "reranker/cli/main.py",  # the commands: by the words of the benchmark
        "papers/corpora.py",  # libraries of others
        "reranker/text/analyzers.py",
    }
    modules = (path for package in provenance.PRODUCT for path in (ROOT / package).rglob("*.py"))
    loading = {path for path in modules if re.search(r"\b(import_module|resolve_name)\(", path.read_text("utf-8"))}
    assert {path.relative_to(ROOT).as_posix() for path in loading} <= known
