"""The page docs/systems.md: every id of the papers' checklist with its systems, tasks and tests.

``python -m tests.papers.catalogue`` prints it; a test checks that the page in docs is what it prints.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from papers import registry

TESTS = Path(__file__).resolve().parents[1]
_NAME = re.compile(r"def (test_((?:[RMBTE]\d+[a-e]?_(?:and_)?)+)\w*)\(")
_ID = re.compile(r"[RMBTE]\d+[a-e]?")

REPRESENTATION = {
    "R01": "tf-idf at unit length: `papers.methods.rows.tfidf_rows`",
    "R02": "vocabulary by frequency: `papers.study.study_vocabulary`",
    "R03": "keyword queries: `reranker.training.problem.cut_to_keywords`",
    "R04": "pseudo-document queries: `papers.corpora`",
    "R05": "n-grams: `papers.methods.rows`",
    "R06": "inverted file: `papers.methods.inverted_file`",
    "R07": "BSBI: `papers.methods.inverted_file`",
    "R08": "two vocabularies: query and document rows of different widths",
    "R09": "tuples: `papers.plain_sgd`, `reranker.evaluation.draw_tuples`",
    "R10": "cached document vectors: `embed_documents` of every low-rank model",
}
MEASURES = {
    "E01": "rank loss: `reranker.evaluation.evaluate`",
    "E02": "MAP: `reranker.evaluation`",
    "E03": "P@n: `reranker.evaluation`",
    "E04": "1,000 queries and 10,000 random documents: `papers.retrieval_studies`",
    "E05": "MRR: `reranker.evaluation`, `papers.rank_measures`",
    "E06": "top-1 accuracy: `papers.rank_measures`",
    "E07": "WTA: `reranker.evaluation`, `papers.measures`",
    "E08": "NDCG@k: `reranker.evaluation`, `papers.rank_measures`",
    "E09": "ROC and AUC: `papers.rank_measures`",
    "E10": "Kendall's tau: `papers.rank_measures`, a column of T7b and T7b-judged",
    "E11": "standard errors and tests: `reranker.evaluation`, `papers.rank_measures`",
}
MODELS = tuple(f"M{number:02d}" for number in range(1, 27))
BASELINES = (
    *(f"B{number:02d}" for number in range(1, 15)),
    "B15a",
    "B15b",
    "B15c",
    "B15d",
    "B16a",
    "B16b",
    "B16c",
    *(f"B{number:02d}" for number in range(17, 27)),
)
TASKS = (
    "T1a",
    "T1b",
    "T2",
    "T3a",
    "T3b",
    "T3c",
    "T3d",
    "T4",
    "T5",
    "T6",
    "T7a",
    "T7b",
    "T8",
    "T9",
    "T10",
    "T11",
    "T12",
    "T13",
    "T14a",
    "T14b",
    "T14c",
    "T14d",
    "T14e",
)
REASONS = {
    "B26": "ListNet; the papers only name listwise learning",
    "M17": "with 20 words only: a weight for each three words does not fit larger vocabularies",
    "M11": "the table itself is task T11; the systems here learn over it",
}
"""What must be known of a row."""
WITHOUT = "no entry yet"

INTRODUCTION = """\
# The papers' systems, tasks and measures

Every id of the papers' checklist, the name it has here, and the files of the tests that carry its id in their name.
`ssi reproduce TASK --systems NAME,...` runs them; `ssi reproduce --list` prints names and titles.
This page is written by `python -m tests.papers.catalogue > docs/systems.md`.
"""


def catalogue(tests: Path = TESTS) -> str:
    """Return the page."""
    tested = named_tests(tests)
    systems: dict[str, list[str]] = {}
    for system in registry.systems().values():
        for id_ in system.ids:
            systems.setdefault(id_, []).append(f"`{system.name}`")
    tasks: dict[str, list[str]] = {}
    for task in registry.tasks().values():
        for id_ in ids_of_task(task.id):
            tasks.setdefault(id_, []).append(f"`{task.id}` {task.title}")
    parts = [
        _table("Models", "systems", {id_: _entry(id_, systems) for id_ in MODELS}, tested),
        _table("Baselines", "systems", {id_: _entry(id_, systems) for id_ in BASELINES}, tested),
        _table("Tasks", "task", {id_: _entry(id_, tasks) for id_ in TASKS}, tested),
        _table("Measures", "where", MEASURES, tested),
        _table("Representation", "where", REPRESENTATION, tested),
    ]
    return INTRODUCTION + "".join(parts)


def ids_of_task(name: str) -> tuple[str, ...]:
    """Return the checklist's ids of a task: its own, and all of T14 or T7 for a task of the whole.

    A study in parts has a task a part, ``T12-T6`` for that of T6; all of them answer to its id.
    """
    name = name.split("-", maxsplit=1)[0]
    whole = [id_ for id_ in TASKS if id_.startswith(name) and id_[len(name) :] in ("a", "b", "c", "d", "e")]
    return (name, *whole)


def named_tests(folder: Path) -> Mapping[str, list[str]]:
    """Return the tests of each id, as ``file::name``, sorted."""
    tests: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for name, ids in _NAME.findall(path.read_text(encoding="utf-8")):
            for id_ in _ID.findall(ids):
                tests.setdefault(id_, []).append(f"{path.relative_to(folder).as_posix()}::{name}")
    return {id_: sorted(names) for id_, names in tests.items()}


def _entry(id_: str, entries: Mapping[str, list[str]]) -> str:
    """Return the names of an id, with what must be known of it."""
    text = ", ".join(entries.get(id_, ())) or WITHOUT
    return f"{text} ({REASONS[id_]})" if id_ in REASONS else text


def _table(title: str, column: str, entries: Mapping[str, str], tests: Mapping[str, list[str]]) -> str:
    rows = "".join(f"| {id_} | {entry} | {_tests(tests.get(id_, []))} |\n" for id_, entry in entries.items())
    return f"\n## {title}\n\n| id | {column} | tests |\n|---|---|---|\n{rows}"


def _tests(names: list[str]) -> str:
    """Return the files of the tests."""
    return ", ".join(f"`{file}`" for file in sorted({name.split("::")[0] for name in names}))


if __name__ == "__main__":
    sys.stdout.write(catalogue())
