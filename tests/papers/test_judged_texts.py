"""Judged collections from every kind of file that corpora of `ssi reproduce` may have."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from papers.bilingual import read_bilingual
from papers.click_tasks import read_clicked
from papers.corpora import judged_texts, read_collection
from reranker.errors import InputError
from tests.papers.made_collections import write_collection


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
    assert judged_texts(folder)[1] == {"a": ("", "sun"), "b": ("", "rain"), "c": ("", "")}
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
