"""Data sets of ir_datasets: read by the library itself from files of a few lines."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ir_datasets
import pytest
from click.testing import CliRunner

from papers import corpora
from papers.click_tasks import read_clicked
from papers.corpora import read_collection, read_library, read_paper_corpus
from reranker.cli.main import main
from reranker.errors import InputError, MissingExtra

NAME = "ssi-test/places"
CORPUS = Path(f"ir_datasets:{NAME}")
N_DOCUMENTS, N_QUERIES = 40, 20


@pytest.fixture(autouse=True)
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a data set: query i has document i judged 2, the next one 0 and the one after it -1."""
    (tmp_path / "docs").write_text("".join(f"d{i}\tword{i} both{i % 4}\n" for i in range(N_DOCUMENTS)))
    (tmp_path / "queries").write_text("".join(f"q{i}\tword{i}\n" for i in range(N_QUERIES)))
    judged = [(i, i + more, grade) for i in range(N_QUERIES) for more, grade in enumerate((2, 0, -1))]
    (tmp_path / "qrels").write_text("".join(f"q{query} 0 d{document} {grade}\n" for query, document, grade in judged))
    made = ir_datasets.create_dataset(
        docs_tsv=str(tmp_path / "docs"), queries_tsv=str(tmp_path / "queries"), qrels_trec=str(tmp_path / "qrels")
    )
    monkeypatch.setitem(ir_datasets.registry._registered, NAME, made)
    monkeypatch.setitem(ir_datasets.registry._registered, "ssi-test", ir_datasets.Dataset())


def test_texts_and_grades_are_the_librarys() -> None:
    data = read_library(NAME)
    assert data.documents["d5"] == ("", "word5 both1") and data.queries["q5"] == "word5"
    assert data.grades["q5"] == {"d5": 2.0, "d6": 0.0, "d7": 0.0}


def test_every_kind_of_task_reads_them() -> None:
    corpus = read_paper_corpus(CORPUS, seed=0)
    assert corpus.name == "ssi-test-places" and len(corpus.ids) == N_DOCUMENTS
    assert {*corpus.train, *corpus.valid, *corpus.test} == {(f"q{i}", f"d{i}") for i in range(N_QUERIES)}
    judged = read_collection(CORPUS)
    assert judged.grades.shape == (N_QUERIES, N_DOCUMENTS) and judged.grades.nnz == 3 * N_QUERIES
    assert sorted(set(judged.grades.data.tolist())) == [0.0, 2.0] and not judged.whole
    clicked = read_clicked(CORPUS)
    assert clicked.simulated and {one.query for one in clicked.shown} <= set(read_library(NAME).queries.values())


def test_a_task_runs_on_one(tmp_path: Path) -> None:
    arguments = ["T7b-judged", "--small", "--corpus", str(CORPUS), "--systems", "graded-tfidf,graded-bm25"]
    result = CliRunner().invoke(main, ["reproduce", *arguments, "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    assert "ssi-test-places: 20 queries" in result.stdout


def test_titles_are_not_said_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    titled = SimpleNamespace(doc_id="a", title="Blue whale", default_text=lambda: "Blue whale\nlives in the sea")
    fielded = SimpleNamespace(doc_id="b", title=None, text="sea", default_text=lambda: "None sea")
    monkeypatch.setattr(ir_datasets.load(NAME), "docs_iter", lambda: iter((titled, fielded)))
    assert read_library(NAME).documents == {"a": ("Blue whale", "lives in the sea"), "b": ("", "sea")}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ssi-test/place", "knows no data set 'ssi-test/place': did you mean ssi-test/places"),
        ("?", "ir-datasets.com, lists the names"),
        ("ssi-test", "no docs and no queries and no qrels: its parts are ssi-test/places"),
    ],
)
def test_an_unusable_name_gets_a_clear_error(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        read_library(name)


def test_a_data_set_that_cannot_be_fetched_gets_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise RuntimeError("All download sources failed", ["…"])

    monkeypatch.setattr(ir_datasets.load(NAME), "docs_iter", fail)
    message = r"could not be downloaded or read \(RuntimeError: All download sources failed\)"
    with pytest.raises(InputError, match=message):
        read_library(NAME)


def test_more_documents_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "MAX_DOCUMENTS", N_DOCUMENTS)
    assert len(read_library(NAME).documents) == N_DOCUMENTS
    monkeypatch.setattr(corpora, "MAX_DOCUMENTS", N_DOCUMENTS - 1)
    with pytest.raises(InputError, match="more than 39 documents"):
        read_library(NAME)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(MissingExtra, match="ir_datasets"):
        read_library(NAME)
