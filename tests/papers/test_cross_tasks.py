"""Tasks across languages, small: every system has a row, what is finished is used again, and tests are the paper's."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from papers import registry
from papers.cross_tasks import T4, T5, T6, T12_T6, TASKS, accuracy_table, directions_table
from papers.rank_measures import unpaired_test
from papers.registry import Section, Task, TaskRequest
from papers.results import AT_START, Results
from tests.papers.bilingual_corpus import quiet


def run(task: Task, folder: Path, out: Path, systems: tuple[str, ...] = ()) -> Section:
    return task.run(TaskRequest(folder, out, systems, small=True), quiet)


def rows_of(section: Section) -> dict[str, tuple[str, ...]]:
    """Return the rows of the first table by system name."""
    # Titles are of a kind of system, which may be listed for judged corpora, too.
    own = {name: one for name, one in registry.systems().items() if not name.startswith("graded-")}
    names = {one.title: name for name, one in own.items()}
    return {names[row[0].removesuffix(f" ({AT_START})")]: row for row in section.tables[0].rows}


def test_T4_small(bilingual_folder: Path, tmp_path: Path) -> None:  # noqa: N802
    section = run(T4, bilingual_folder, tmp_path)
    rows = rows_of(section)
    assert tuple(rows) == T4.systems
    columns = section.tables[0].columns
    for name, row in rows.items():
        assert row[columns.index("AP")], f"{name}: {row[0]}"
        assert row[columns.index("AP, paper")] == T4.paper.get(name, {}).get("AP", "")
    assert (tmp_path / "T4" / "retrieval-0" / "psi-cross-psi.run.gz").exists()
    assert "25 queries" not in section.sentences[0] and "Small run" in section.sentences[0]


def test_T5_small_has_rank_loss_and_the_best_mates_are_found(bilingual_folder: Path, tmp_path: Path) -> None:  # noqa: N802
    section = run(T5, bilingual_folder, tmp_path, ("cl-lsi", "mates-opca"))
    columns = section.tables[0].columns
    assert columns[1] == "rank loss" and "rank loss, paper" in columns
    rows = rows_of(section)
    assert rows["cl-lsi"][columns.index("rank loss, paper")] == "0.81 %"
    assert float(rows["mates-opca"][columns.index("MRR")].split()[0]) > 0.5


def test_T6_small_has_a_row_for_every_system_and_uses_it_again(bilingual_folder: Path, tmp_path: Path) -> None:  # noqa: N802
    section = run(T6, bilingual_folder, tmp_path)
    rows = rows_of(section)
    assert tuple(rows) == T6.systems
    columns = section.tables[0].columns
    for name, row in rows.items():
        assert row[columns.index("MRR")], f"{name}: {row[0]}"
        assert row[columns.index("top-1, paper")] == T6.paper.get(name, {}).get("top-1", "")
    n = len(T6.systems)
    assert len(section.tables[2].rows) == n * (n - 1) // 2
    said: list[str] = []
    again = T6.run(TaskRequest(bilingual_folder, tmp_path, (), small=True), lambda what, *_: said.append(what))
    assert sum("used again" in one for one in said) == n
    assert again.tables[1:3] == section.tables[1:3]


def test_T12_small_has_a_curve_a_system(bilingual_folder: Path, tmp_path: Path) -> None:  # noqa: N802
    section = run(T12_T6, bilingual_folder, tmp_path, ("mates-opca", "cl-lsi"))
    (table,), (picture,) = section.tables, section.pictures
    assert table.columns == ("system", "N = 5", "N = 10")
    assert [row[0] for row in table.rows] == ["OPCA", "CL-LSI", "p against OPCA"]
    assert b"<svg" in picture.svg and "CL-LSI" in picture.alt


def made_results() -> Results:
    first = {"top-1 forward": np.array([1.0, 1, 1, 1]), "top-1 backward": np.array([1.0, 1, 1, 0])}
    second = {"top-1 forward": np.array([1.0, 0, 0, 0]), "top-1 backward": np.array([1.0, 0, 1, 0])}
    values = {}
    for name, found in (("a", first), ("b", second)):
        both = (found["top-1 forward"] + found["top-1 backward"]) / 2
        others = {"MRR forward": both, "MRR backward": both, "MRR": both, "top-1": both}
        values["mates-0", name] = {**found, **others}
    return Results("T6", {"a": "A", "b": "B"}, values)


def test_T6_tests_are_the_unpaired_one_of_hits_and_a_paired_one_by_pair() -> None:  # noqa: N802
    results = made_results()
    (row,) = accuracy_table(results).rows
    test = unpaired_test(np.array([1.0, 1, 1, 1, 1, 1, 1, 0]), np.array([1.0, 0, 0, 0, 1, 0, 1, 0]))
    assert row[:3] == ("A", "B", "+0.5000")
    assert row[3] == f"{test.p:.4f}".lstrip("0")
    assert row[5] == f"{results.paired('a', 'b', 'top-1').p_t_test:.4f}".lstrip("0")
    assert directions_table(results).rows[1][1].startswith("0.250")
    assert directions_table(results).rows[1][3].startswith("0.500")


def test_T12_table_says_why_a_figure_is_missing() -> None:  # noqa: N802
    both = replace(made_results(), failures={("N10", "a"): "needs mates"})
    rows = both.by_study("x", "MRR", {"mates-0": "N = 5", "N10": "N = 10"}).rows
    assert rows[0] == ("A", "0.875 ± 0.125", "needs mates")
    p = f"{made_results().paired('b', 'a', 'MRR').p_t_test:.4f}".lstrip("0")
    assert rows[2] == ("p against A", p, "")
    assert [row[0] for row in both.by_study("x", "MRR", {"mates-0": "N = 5"}, errors=False).rows] == ["A", "B"]


def test_every_system_of_the_tasks_is_known() -> None:
    for task in TASKS:
        for name in (*task.systems, *task.paper):
            assert registry.system(name).name == name
        assert registry.task(task.id) is task


@pytest.mark.skipif(find_spec("fugashi") is None, reason="needs the extra japanese")
def test_T6_small_on_the_cpp_documentation(ssi_data: Path, tmp_path: Path) -> None:  # noqa: N802
    section = run(T6, ssi_data / "cppdocs", tmp_path, ("cl-lsi", "mates-opca"))
    assert "'ja'" in section.sentences[0] and "without Latin words" in section.sentences[0]
    columns = section.tables[0].columns
    for row in section.tables[0].rows:
        assert float(row[columns.index("MRR")].split()[0]) > 0.3
