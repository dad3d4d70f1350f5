"""The page docs/systems.md is what the registry says; every id of retrieval has a system or a task, and a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers import registry
from tests.papers import catalogue
from tests.papers.catalogue import TESTS, named_tests

RETRIEVAL = (
    *(f"M{number:02d}" for number in range(1, 21)),
    "B01",
    "B02",
    "B03",
    "B04",
    "B05",
    "B06",
    "B10",
    "B11",
    "B17",
    "B18",
    "B19",
    "B20",
    "B21",
)
TASKS = ("T1a", "T1b", "T2", "T3a", "T3b", "T3c", "T3d", "T9", "T12", "T13")


def test_the_page_is_current() -> None:
    page = TESTS.parent / "docs" / "systems.md"
    assert page.read_text(encoding="utf-8") == catalogue.catalogue(), (
        "run  python -m tests.papers.catalogue > docs/systems.md"
    )


@pytest.mark.parametrize("id_", RETRIEVAL)
def test_every_retrieval_id_has_a_system_and_a_test(id_: str) -> None:
    assert any(id_ in system.ids for system in registry.systems().values())
    assert named_tests(TESTS).get(id_), f"no test is named test_{id_}_..."


@pytest.mark.parametrize("id_", TASKS)
def test_every_retrieval_task_is_there(id_: str) -> None:
    assert registry.task(id_).id == id_


def test_ids_of_systems_and_tasks_are_those_of_the_checklist() -> None:
    known = {*catalogue.MODELS, *catalogue.BASELINES}
    for system in registry.systems().values():
        assert system.ids and known.issuperset(system.ids), system.name
    for task in registry.tasks().values():
        assert set(catalogue.ids_of_task(task.id)) & set(catalogue.TASKS), task.id


def test_tests_are_found_by_all_ids_in_their_names(tmp_path: Path) -> None:
    names = ("test_M05_M06_both", "test_T7a_and_T7b_ads", "test_m01_small")
    (tmp_path / "test_x.py").write_text("".join(f"def {name}() -> None: ...\n" for name in names))
    found = named_tests(tmp_path)
    assert set(found) == {"M05", "M06", "T7a", "T7b"}
    assert found["M05"] == ["test_x.py::test_M05_M06_both"]


def test_a_task_of_the_whole_answers_to_its_parts() -> None:
    assert catalogue.ids_of_task("T14")[1:] == ("T14a", "T14b", "T14c", "T14d", "T14e")
    assert catalogue.ids_of_task("T1a") == ("T1a",)
    assert catalogue.ids_of_task("T12-T6") == ("T12",)
    assert catalogue.ids_of_task("T12-T7") == ("T12",)
