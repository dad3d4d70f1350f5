"""Vectors of a text encoder for documents: formats, runs that were killed, and documents that cannot be used."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from indexer.embedding import EmbeddingJob, embed_documents
from reranker.arrays import Float32
from reranker.cli.common import EXIT_REJECTS
from reranker.cli.main import main
from reranker.errors import ConfigError, InputError
from reranker.formats import RejectLog, read_documents
from reranker.text.view import TextView
from tests.unit.small_encoders import FakeEncoder, write_static, write_transformer

VIEW = replace(TextView.parse(["title", "text"]), vector="vector")
DOCUMENTS = [{"id": f"d{n}", "title": f"title {n}", "text": "red green " * n, "price": n} for n in range(23)]


def write(path: Path, documents: Sequence[dict[str, Any]] = DOCUMENTS) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
    return path


def job_of(folder: Path, out: str = "out.jsonl", max_words: int = 160) -> EmbeddingJob:
    return EmbeddingJob(write(folder / "docs.jsonl"), folder / out, VIEW, max_words, batch=5)


def written(path: Path) -> list[dict[str, Any]]:
    return [{"id": one.id, **one.source} for one in read_documents(path)]


class Killed(Exception):
    """Takes the place of a kill."""


class DyingEncoder(FakeEncoder):
    """Dies at a call."""

    def __init__(self, n_calls: int) -> None:
        super().__init__()
        self.n_calls = n_calls

    def encode(self, texts: Sequence[str]) -> Float32:
        self.n_calls -= 1
        if self.n_calls < 0:
            raise Killed
        return super().encode(texts)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
def test_documents_are_written_again_with_their_vectors(tmp_path: Path, name: str) -> None:
    job, encoder = job_of(tmp_path, name), FakeEncoder()
    result = embed_documents(job, encoder)
    assert (result.n_documents, result.n_without_text, result.n_earlier) == (23, 0, 0)
    found = written(job.out)
    assert [{k: v for k, v in one.items() if k != "vector"} for one in found] == DOCUMENTS
    vectors = encoder.encode([f"{one['title']} {one['text']}" for one in DOCUMENTS])
    np.testing.assert_allclose([one["vector"] for one in found], vectors, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs.jsonl", name]
    if name.endswith(".gz"):
        assert gzip.decompress(job.out.read_bytes()).count(b"\n") == 23


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
def test_a_run_that_was_killed_continues(tmp_path: Path, name: str) -> None:
    whole = job_of(tmp_path, f"whole-{name}")
    embed_documents(whole, FakeEncoder())
    job = job_of(tmp_path, name)
    with pytest.raises(Killed):
        embed_documents(job, DyingEncoder(3))
    assert not job.out.exists()
    with open(job.partial, "ab") as file:
        file.write(b"half a line")
    said: list[str] = []
    encoder = FakeEncoder()
    result = embed_documents(job, encoder, say=said.append)
    assert result.n_earlier == 15 and encoder.n_texts == 8 and "continuing after 15 documents" in said[0]
    assert job.out.read_bytes() == whole.out.read_bytes()


def test_other_settings_or_a_damaged_state_are_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with pytest.raises(Killed):
        embed_documents(job, DyingEncoder(2))
    for other, encoder, name in (
        (replace(job, max_words=3), FakeEncoder(), "words: 160, now 3"),
        (replace(job, view=replace(VIEW, vector="v")), FakeEncoder(), "view"),
        (job, FakeEncoder(fingerprint="other"), "encoder: 0123, now other"),
    ):
        with pytest.raises(ConfigError, match=f"{name}.*give the same settings, or remove this file and "):
            embed_documents(other, encoder)
    for content in (b"{", b"[]", b'{"settings": {}, "n_bytes": 99999999}'):
        job.state.write_bytes(content)
        with pytest.raises(InputError, match="is damaged: remove it"):
            embed_documents(job, FakeEncoder())
    job.state.unlink()
    job.partial.unlink()
    assert embed_documents(job, FakeEncoder()).n_earlier == 0


def test_words_are_cut_and_documents_without_text_have_no_vector(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path, max_words=2), docs=tmp_path / "some.jsonl")
    write(job.docs, [{"id": "a", "title": "red green", "text": "blue"}, {"id": "b", "text": " "}, {"id": "c"}])
    result = embed_documents(job, FakeEncoder())
    assert (result.n_documents, result.n_without_text) == (3, 2)
    a, b, c = written(job.out)
    np.testing.assert_allclose(a["vector"], FakeEncoder().encode(["red green"])[0], atol=1e-5)
    assert "vector" not in b and c == {"id": "c"}


def test_bad_lines_are_rejected_and_useless_files_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with open(job.docs, "ab") as file:
        file.write(b"{broken\n")
    with RejectLog() as log:
        assert embed_documents(job, FakeEncoder(), rejects=log).n_documents == 23
    assert log.count == 1
    write(job.docs, [{**DOCUMENTS[0], "vector": [1.0]}])
    with pytest.raises(InputError, match="document 'd0' has the field 'vector' already: name another with --vector-f"):
        embed_documents(job, FakeEncoder())
    write(job.docs, [{"id": "a", "name": "red"}])
    with pytest.raises(InputError, match="has text in the fields title, text: name others with --fields"):
        embed_documents(job, FakeEncoder())
    write(job.docs, [])
    job.state.unlink()
    job.partial.unlink()
    with pytest.raises(InputError, match="holds no usable document"):
        embed_documents(job, FakeEncoder())
    job.docs.unlink()
    with pytest.raises(InputError, match="does not exist"):
        embed_documents(job, FakeEncoder())


def test_documents_that_do_not_fit_columns_are_refused_as_parquet(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path, "out.parquet"), docs=tmp_path / "mixed.jsonl", batch=1)
    write(job.docs, [{"id": "a", "title": "red", "price": "1"}, {"id": "b", "title": "red", "price": {"eur": 1}}])
    with pytest.raises(ConfigError, match=r"do not fit the columns of Parquet .*name an --out that ends in .jsonl.gz"):
        embed_documents(job, FakeEncoder())
    write(job.docs, [{"id": "a", "title": "red"}, {"id": "b", "title": "red", "price": 2}])
    job.state.unlink()
    job.partial.unlink()
    embed_documents(job, FakeEncoder())
    assert pq.read_table(job.out).column("price").to_pylist() == [None, 2]


def test_ids_stay_in_their_field(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path), docs=tmp_path / "skus.jsonl", id_field="sku")
    write(job.docs, [{"sku": "x", "title": "red"}])
    embed_documents(job, FakeEncoder())
    (line,) = job.out.read_text().splitlines()
    assert set(json.loads(line)) == {"sku", "title", "vector"}


@pytest.mark.parametrize("write_encoder", [write_transformer, write_static])
def test_the_command_writes_documents_that_can_be_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_encoder: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["red green", "red blue", "green blue", "red", "green", "blue"]
    write(tmp_path / "docs.jsonl", [{"id": f"d{n}", "title": words[n % 6], "text": words[n % 5]} for n in range(60)])
    write_encoder(tmp_path / "encoder")
    options = ["embed", "--docs", "docs.jsonl", "--encoder", "encoder", "--out", "out.jsonl.gz", "--vector-field", "v"]
    result = CliRunner().invoke(main, [*options, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["documents"] == 60
    result = CliRunner().invoke(main, ["train", "--docs", "out.jsonl.gz", "--vector-field", "v", "--model", "model"])
    assert result.exit_code == 0, result.output
    with open("docs.jsonl", "a") as file:
        file.write("{broken\n" + json.dumps({"id": "empty"}) + "\n")
    result = CliRunner().invoke(main, options)
    assert result.exit_code == EXIT_REJECTS and "1 of them have no text" in result.output, result.output
    result = CliRunner().invoke(main, [*options, "--encoder", "missing"])
    assert result.exit_code == 3 and "is no folder" in result.output
