"""Judged collections from every kind of file that corpora of `ssi reproduce` may have, and from ir_datasets."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from reranker.errors import InputError
from reranker.formats import RejectLog
from reranker.systems.bilingual import read_bilingual
from reranker.systems.click_logs import read_clicked
from reranker.systems.judged import read_collection
from reranker.systems.judged_files import read_judged
from tests.unit.systems.made_collections import write_collection


def unpacked(folder: Path) -> Path:
    """Write a collection without compression."""
    write_collection(folder)
    for path in list(folder.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    return folder


def test_files_may_be_compressed_or_not(tmp_path: Path) -> None:
    packed, plain = write_collection(tmp_path / "one"), unpacked(tmp_path / "two")
    first, second = (read_collection(folder) for folder in (packed, plain))
    assert first.query_ids == second.query_ids and first.document_ids == second.document_ids
    np.testing.assert_array_equal(first.grades.toarray(), second.grades.toarray())
    assert read_clicked(plain).simulated and len(read_clicked(plain).texts) == len(first.query_ids)


def test_a_title_that_is_missing_or_null_adds_no_word(tmp_path: Path) -> None:
    lines = ['{"id": "a", "text": "sun"}', '{"id": "b", "title": null, "text": "rain"}', '{"id": "c", "title": null}']
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "docs.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "queries.tsv").write_text("q\tsun\n")
    (folder / "qrels.tsv").write_text("q\ta\t1\n")
    assert read_judged(folder, RejectLog(None)).documents == {"a": ("", "sun"), "b": ("", "rain"), "c": ("", "")}
    for language in ("de", "en"):
        (folder / f"docs_{language}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[:2]).encode()))
    both = read_bilingual(folder, lambda *_: None)
    assert both.documents.titles == ([], []) and both.documents.texts == (["sun"], ["rain"])


def test_clicks_on_documentation_need_no_titles(tmp_path: Path) -> None:
    lines = [f'{{"id": "d{n}", "text": "word{n} word{n % 5}"}}' for n in range(40)]
    links = [f"d{n}\td{(n + step) % 40}" for n in range(40) for step in (1, 5)]
    (tmp_path / "docs_en.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "links_en.tsv.gz").write_bytes(gzip.compress("\n".join(links).encode()))
    found = read_clicked(tmp_path)
    assert found.simulated and len(found.texts) == 40


def test_topics_are_those_of_session_ids_and_of_no_others(tmp_path: Path) -> None:
    ids = ["t1q1", "t1q2", "t12q1", "faq-1", "faq-2", "q3"]
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "title": "sun"}\n{"id": "b", "title": "rain"}\n')
    (tmp_path / "queries.tsv").write_text("".join(f"{one}\tsun\n" for one in ids))
    (tmp_path / "qrels.tsv").write_text("".join(f"{one}\ta\t1\n{one}\tb\t0\n" for one in ids))
    made = read_clicked(tmp_path).collection
    topics = dict(zip(made.query_ids, made.group_of().tolist(), strict=True))
    assert topics == {**dict(zip(ids, ids, strict=True)), "t1q1": "t1", "t1q2": "t1", "t12q1": "t12"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (unpacked(tmp_path / "made") / "queries.tsv").unlink()
    with pytest.raises(InputError, match=r"queries\.tsv"):
        read_collection(tmp_path / "made")


def test_data_sets_of_ir_datasets_keep_their_grades(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SimpleNamespace(
        docs_iter=lambda: [SimpleNamespace(doc_id=f"d{i}", title="sun", text=f"w{i}") for i in range(3)],
        queries_iter=lambda: [SimpleNamespace(query_id="q", default_text=lambda: "sun w1")],
        qrels_iter=lambda: [SimpleNamespace(query_id="q", doc_id=f"d{i}", relevance=2 * i - 2) for i in range(3)],
    )
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=lambda _: data))
    found = read_judged(Path("ir_datasets:some/set"), RejectLog(None))
    assert found.name == "some-set" and found.documents["d1"] == ("sun", "w1") and found.queries == {"q": "sun w1"}
    assert found.grades == {"q": {"d0": 0.0, "d1": 0.0, "d2": 2.0}}, "below 0 is not relevant"
    collection = read_collection(Path("ir_datasets:some/set"))
    assert collection.name == "some-set" and collection.grades.toarray().tolist() == [[0.0, 0.0, 2.0]]
