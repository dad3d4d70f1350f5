"""Vectors made ahead: those of the encoder, and the same index as by encoding on the way."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer import vectorizing
from indexer.vectorizing import with_vectors
from reranker.engines import open_engine
from reranker.errors import InputError
from reranker.formats import RejectLog
from reranker.kernels.packing import pack_rows, pack_vectors
from reranker.lexical.bm25 import LexicalSettings
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel
from reranker.releases import default_store
from reranker.store import VectorStore
from reranker.text.tfidf import text_counts
from tests.live.helpers import contents, write_lines
from tests.served import MEMORY_BM25, model_of, random_documents
from tests.unit.indexer.test_commands import ask, ssi, where

DOCUMENTS = {**random_documents(40), "blank": {"title": "", "text": ""}, "ß": {"title": "Straße", "text": None}}
MODEL = model_of(DOCUMENTS)
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "beside.md"
BAD_LINES = [b"{broken\n", b'{"title": "without an id"}\n', b'{"id": "d3", "title": "again", "text": "another text"}\n']


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))
    write_lines(tmp_path / "docs.jsonl", DOCUMENTS)
    save_model(MODEL, tmp_path / "model")
    return tmp_path


def vectorize(docs: str = "docs.jsonl", out: str = "vectors.parquet") -> tuple[Any, Any]:
    """Return the rows of the file written, and what was refused."""
    rejects = Path("rejects.jsonl")
    with RejectLog(rejects) as log:
        n_rows = vectorizing.vectorize(Path(docs), Path("model"), Path(out), rejects=log)
    rows = pq.read_table(out).to_pylist()
    assert n_rows == len(rows)
    return rows, [json.loads(line) for line in rejects.read_text().splitlines()]


def expected(model: RankingModel = MODEL) -> list[dict[str, Any]]:
    """Return the rows, by one call of the encoder."""
    encoded = model.encoder.encode(list(DOCUMENTS.values()), list(DOCUMENTS))
    quantisation = model.encoder.quantisation
    vectors, terms = pack_vectors(encoded.vectors, quantisation), pack_rows(encoded.rows, quantisation)
    known = [vector if has_text else None for vector, has_text in zip(vectors, encoded.has_text, strict=True)]
    columns = zip(DOCUMENTS, encoded.source_hashes, known, terms, strict=True)
    return [dict(zip(("id", "src", "vec", "terms"), row, strict=True)) for row in columns]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("batch", [1, 7, 256])
def test_the_rows_are_those_of_the_encoder_in_the_order_of_the_file(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectorizing, "ENCODE_BATCH", batch)
    monkeypatch.setattr(vectorizing, "_GROUP_BYTES", 100 * batch)
    assert vectorize() == (expected(), [])
    assert [row["id"] for row in expected() if row["vec"] is None] == ["blank"]


@pytest.mark.parametrize("quantisation", ["float16", "float32", "int8"])
@pytest.mark.parametrize("lexical", [None, MEMORY_BM25])
def test_what_is_read_from_the_file_is_what_was_encoded(
    folder: Path, quantisation: Any, lexical: LexicalSettings | None
) -> None:
    model = model_of(DOCUMENTS, quantisation=quantisation, lexical=lexical)
    save_model(model, folder / "model")
    vectorize()
    served, stored = with_vectors(model, folder / "vectors.parquet")
    ids, sources = list(reversed(DOCUMENTS)), list(reversed(DOCUMENTS.values()))
    found, made = served.encoder.encode(sources, ids), model.encoder.encode(sources, ids)
    assert stored.missing == 0
    assert served.encoder_id == model.encoder_id
    assert found.vectors.dtype == made.vectors.dtype
    assert found.vectors.tobytes() == made.vectors.tobytes()
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found.rows, part), getattr(made.rows, part))
    assert found.source_hashes == made.source_hashes
    assert found.has_text.tolist() == made.has_text.tolist()


@pytest.mark.usefixtures("folder")
def test_refused_lines_are_those_of_the_index(folder: Path) -> None:
    path = folder / "docs.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], BAD_LINES[0], *lines[5:], *BAD_LINES[1:]]))
    assert ask("vectorize", "--docs", path, "--model", "model", "--out", "vectors.parquet", code=8) == {
        "out": "vectors.parquet",
        "documents": 42,
        "rejects_by_kind": {"not_json": 1, "id_missing": 1, "duplicate_id": 1},
        "accounts": [
            {
                "kind": "documents",
                "given": 45,
                "used": 42,
                "left_out": [
                    {"reason": "duplicate_id", "count": 1, "samples": ["line 45"]},
                    {"reason": "id_missing", "count": 1, "samples": ["line 44"]},
                    {"reason": "not_json", "count": 1, "samples": ["line 6"]},
                ],
            }
        ],
    }
    rejects = folder / "docs.jsonl.rejects.jsonl"
    told = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert pq.read_table("vectors.parquet").to_pylist() == expected()
    ssi("index", path, *where(folder), "--model", "model", "--vectors", "vectors.parquet", code=8)
    of_index = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert told == of_index


def as_parquet(docs: Path) -> None:
    table = pa.Table.from_pylist([{"id": name, **source} for name, source in DOCUMENTS.items()] * 2)
    pq.write_table(table, docs, row_group_size=9)


def as_lines(docs: Path) -> None:
    lines = docs.read_bytes().splitlines(keepends=True)
    docs.write_bytes(b"".join(itertools.chain(lines[:9], BAD_LINES, lines[9:], BAD_LINES, lines[:2])))


@pytest.mark.parametrize("write", [as_lines, as_parquet])
def test_of_documents_with_one_id_the_first_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(vectorizing, "ENCODE_BATCH", 7)
    write(folder / "docs.jsonl")
    rows, refused = vectorize()
    assert sorted(row["id"] for row in rows) == sorted(DOCUMENTS)
    assert len(refused) > 3
    assert [one["line"] for one in refused] == sorted(one["line"] for one in refused)


def test_the_guide_joins_the_vectors_of_parts(folder: Path) -> None:
    blocks = re.findall(r"(?:^    .*\n)+", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    split, join = (
        next(textwrap.dedent(block) for block in blocks if word in block) for word in ("split --lines", "<<'END'")
    )
    subprocess.run(split.splitlines()[0].replace("1000000", "15"), shell=True, check=True)  # noqa: S602 - our own
    parts = sorted(folder.glob("part-*.jsonl"))
    assert len(parts) == 3
    for part in parts:
        vectorize(part.name, part.with_suffix(".parquet").name)
    script = f'python() {{ {shlex.quote(sys.executable)} "$@"; }}\n{join}'
    subprocess.run(["bash", "-euc", script], check=True)
    assert pq.read_table("vectors.parquet").to_pylist() == expected()
    assert with_vectors(MODEL, folder / "vectors.parquet")[1].find(["ß"], [expected()[-1]["src"]]) != [None]
    save_model(model_of(DOCUMENTS, seed=2), folder / "model")
    vectorize(parts[1].name, parts[1].with_suffix(".parquet").name)
    refused = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "part-ab.parquet is of another model" in refused.stderr


def stored(folder: Path, engine: str) -> tuple[Any, Any]:
    """Return what the engine and the local store hold."""
    store = VectorStore.open(default_store(folder / "model", f"tantivy:{folder / engine}", "docs"))
    found = store.get(list(DOCUMENTS))
    data = b"".join(part.tobytes() for part in (found.vectors, found.terms.indices, found.terms.data, found.sources))
    assert data
    return contents(open_engine(f"tantivy:{folder / engine}"), "docs"), (found.places.tolist(), data)


@pytest.mark.parametrize("order", ["same", "other", "half", "stale"])
def test_the_index_is_the_same_with_and_without(folder: Path, order: str) -> None:
    named = list(DOCUMENTS.items())
    kept = {"other": named[::-1], "half": named[::2], "stale": [(name, {**one, "text": "was"}) for name, one in named]}
    write_lines(folder / "before.jsonl", dict(kept.get(order, named)))
    ssi("vectorize", "--docs", "before.jsonl", "--model", "model", "--out", "vectors.parquet")
    with_model = ("index", "docs.jsonl", "--index", "docs", "--model", "model", "--write-store", "default")
    plain = ssi(*with_model, "--engine", f"tantivy:{folder / 'plain'}")
    ready = ssi(*with_model, "--engine", f"tantivy:{folder / 'ready'}", "--vectors", "vectors.parquet")
    assert stored(folder, "ready") == stored(folder, "plain")
    n_missing = {"half": len(named) // 2, "stale": len(named)}.get(order, 0)
    assert (f"{n_missing} documents had no current vector" in ready.stderr) == bool(n_missing)
    assert "no current vector" not in plain.stderr


def test_vectors_are_taken_not_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssi("vectorize", "--docs", "docs.jsonl", "--model", "model", "--out", "vectors.parquet")
    served, _ = with_vectors(MODEL, folder / "vectors.parquet")
    made: list[int] = []

    def counted(*arguments: Any) -> Any:
        made.append(len(arguments[2]))
        return text_counts(*arguments)

    monkeypatch.setattr("reranker.models.ranking_model.text_counts", counted)
    served.encoder.encode(list(DOCUMENTS.values()), list(DOCUMENTS))
    assert sum(made) == 0


def test_ids_of_one_hash_are_told_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectorize()
    monkeypatch.setattr(vectorizing, "id_key", lambda _: 7)
    served, stored = with_vectors(MODEL, folder / "vectors.parquet")
    found = served.encoder.encode(list(DOCUMENTS.values()), list(DOCUMENTS))
    assert found.vectors.tobytes() == MODEL.encoder.encode(list(DOCUMENTS.values())).vectors.tobytes()
    assert stored.missing == len(DOCUMENTS) - 1


def test_revectorize_takes_them(folder: Path) -> None:
    save_model(model_of(DOCUMENTS, n_dims=4), folder / "other")
    for engine in ("plain", "ready"):
        ssi(
            "index",
            "docs.jsonl",
            "--engine",
            f"tantivy:{folder / engine}",
            "--index",
            "docs",
            "--model",
            "model",
            "--write-store",
            "default",
        )
    ssi("vectorize", "--docs", "docs.jsonl", "--model", "other", "--out", "vectors.parquet")
    renew = ("revectorize", "--index", "docs", "--model", "other")
    assert ask(*renew, "--engine", f"tantivy:{folder / 'plain'}")["written"] == len(DOCUMENTS)
    ready = ssi(*renew, "--engine", f"tantivy:{folder / 'ready'}", "--vectors", "vectors.parquet")
    assert "no vector" not in ready.stderr
    assert stored(folder, "ready") == stored(folder, "plain")


def test_vectors_of_another_model_or_no_vectors_are_refused(folder: Path) -> None:
    save_model(model_of(DOCUMENTS, seed=2), folder / "other")
    index = ("index", "docs.jsonl", *where(folder), "--vectors", "vectors.parquet")
    ssi("vectorize", "--docs", "docs.jsonl", "--model", "other", "--out", "vectors.parquet")
    told = ssi(*index, "--model", "model", code=5).stderr
    assert MODEL.encoder_id[:12] in told
    assert "ssi vectorize" in told
    data = (folder / "vectors.parquet").read_bytes()
    (folder / "vectors.parquet").write_bytes(data[: len(data) // 2])
    assert "damaged or cut short" in ssi(*index, "--model", "other", code=3).stderr
    pq.write_table(pa.table({"id": ["a"]}), folder / "vectors.parquet")
    assert "not a file of vectors" in ssi(*index, "--model", "other", code=3).stderr
    (folder / "vectors.parquet").unlink()
    assert "does not exist" in ssi(*index, "--model", "other", code=3).stderr
    assert "--model" in ssi(*index, code=2).stderr
    assert not (folder / "engine").exists() or not open_engine(f"tantivy:{folder / 'engine'}").index_names("docs")


def test_a_changed_byte_is_refused(folder: Path) -> None:
    vectorize()
    data = bytearray((folder / "vectors.parquet").read_bytes())
    data[len(data) // 3] ^= 1
    (folder / "vectors.parquet").write_bytes(data)
    with pytest.raises(InputError, match="damaged or cut short"):
        with_vectors(MODEL, folder / "vectors.parquet")


def test_a_failure_leaves_the_file_that_was_there(folder: Path) -> None:
    vectorize()
    before = (folder / "vectors.parquet").read_bytes()
    packed = gzip.compress((folder / "docs.jsonl").read_bytes())
    (folder / "cut.jsonl.gz").write_bytes(packed[:-20])
    with pytest.raises(InputError, match="cut short"):
        vectorize("cut.jsonl.gz")
    write_lines(folder / "misspelt.jsonl", {"a": {"titel": "one", "body": "two"}})
    told = ssi("vectorize", "--docs", "misspelt.jsonl", "--model", "model", "--out", "vectors.parquet", code=3).stderr
    assert "'title'" in told
    assert (folder / "vectors.parquet").read_bytes() == before
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_model_that_does_not_exist_is_named(folder: Path) -> None:
    assert "nowhere" in ssi("vectorize", "--docs", "docs.jsonl", "--model", "nowhere", "--out", "v", code=5).stderr
    assert not (folder / "v").exists()


def test_no_documents_make_an_empty_file(folder: Path) -> None:
    (folder / "docs.jsonl").write_bytes(b"")
    assert vectorize() == ([], [])
    served, stored = with_vectors(MODEL, folder / "vectors.parquet")
    assert len(served.encoder.encode(list(DOCUMENTS.values()), list(DOCUMENTS)).vectors) == len(DOCUMENTS)
    assert stored.missing == len(DOCUMENTS)


@pytest.mark.slow
def test_a_document_of_fifty_megabytes_as_in_the_index(folder: Path) -> None:
    large = {"id": "large", "title": "large", "text": "word and another " * 3_000_000}
    with (folder / "docs.jsonl").open("a") as file:
        file.write(json.dumps(large) + "\n")
        file.write('{"id": "too large", "text": "' + "x" * 105_000_000 + '"}\n')
    rows, refused = vectorize()
    assert [row["id"] for row in rows] == [*DOCUMENTS, "large"]
    assert [one["kind"] for one in refused] == ["line_too_long"]
    ready = ask("index", "docs.jsonl", *where(folder), "--model", "model", "--vectors", "vectors.parquet", code=8)
    assert (ready["indexed"], ready["rejects_by_kind"]) == (len(rows), {"line_too_long": 1})
