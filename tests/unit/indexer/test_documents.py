"""Loading a file: stopped and killed runs go on where they were, and the account covers the whole file."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.bulk import BulkLimits, RetryPolicy
from indexer.encoding import VersionEncoder
from indexer.load import LoadOptions, LoadReport, external_version, load_documents
from reranker.engines.protocol import Engine, WriteOp, WriteResult
from reranker.errors import EngineAuthError, EngineUnavailable, InputError
from reranker.models.ranking_model import RankingModel
from reranker.store import VectorStore
from tests.engines.memory import memory_engine
from tests.served import model_of, random_documents
from tests.unit.indexer.stand_ins import ScriptedEngine


class Killed(BaseException):
    """The process dies here."""


def lines_of(n: int) -> list[bytes]:
    """Every tenth line broken, every thirteenth refused by the engine, one id twice."""
    lines = []
    for k in range(n):
        if k % 10 == 4:
            lines.append(b'{"id": "broken')
        elif k % 13 == 5:
            lines.append(json.dumps({"id": f"d{k}", "n": "not a number"}).encode())
        else:
            lines.append(json.dumps({"id": "d0" if k == n - 2 else f"d{k}", "n": k}).encode())
    return lines


def new_engine(*scripts: Callable[..., list[WriteResult]]) -> ScriptedEngine:
    engine = ScriptedEngine(*scripts)
    engine.create_index("docs", {"properties": {"n": {"type": "long"}}})
    return engine


def load(engine: Engine, folder: Path, *, version: VersionEncoder | None = None, **changes: object) -> LoadReport:
    usual = {"limits": BulkLimits(7), "checkpoint_s": 0.0, "policy": RetryPolicy(max_calls=1)}
    options = LoadOptions(state_path=folder / "state", reject_path=folder / "rejects", **{**usual, **changes})  # type: ignore[arg-type]
    return load_documents(engine, "docs", folder / "docs.jsonl", version, options=options, sleep=lambda _: None)


def contents(engine: Engine) -> dict[str, object]:
    return {document.id: document.source for batch in engine.scan("docs") for document in batch}


def through(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
    return engine.bulk(index, ops)


def dying(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
    engine.bulk(index, ops)
    raise Killed


def unheard(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
    engine.bulk(index, ops)
    raise EngineUnavailable("no answer")


def refused(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
    raise EngineAuthError("no", status=403)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([dying, refused])), max_size=4), st.integers(30, 90))
def test_a_run_killed_anywhere_ends_like_one_that_was_not(
    tmp_path_factory: pytest.TempPathFactory, deaths: list[tuple[int, Callable[..., list[WriteResult]]]], n: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    lines = lines_of(n)
    (folder / "docs.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    engine = new_engine()
    for calls, death in deaths:
        engine.scripts = [through] * calls + [death]
        try:
            load(engine, folder)
        except Killed:
            pass
    engine.scripts = []
    report = load(engine, folder)

    clean_folder = tmp_path_factory.mktemp("clean")
    (clean_folder / "docs.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    clean = new_engine()
    expected = load(clean, clean_folder)
    assert contents(engine) == contents(clean)
    assert report.bulk.pending == 0
    assert report.bulk.read + report.unreadable == n
    assert (report.bulk.indexed, report.bulk.rejected, report.unreadable) == (
        expected.bulk.indexed,
        expected.bulk.rejected,
        expected.unreadable,
    )
    rejects = [sorted((f / "rejects").read_text().splitlines()) for f in (folder, clean_folder)]
    assert rejects[0] == rejects[1]
    assert list((folder / "state").glob("*")) == []


def test_the_checkpoint_is_never_ahead_of_the_engine(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_bytes(b"\n".join(lines_of(60)))

    def check(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        for path in (tmp_path / "state").glob("*.json"):
            done = (tmp_path / "docs.jsonl").read_bytes()[: json.loads(path.read_bytes())["offset"]]
            ids = {
                json.loads(line)["id"] for line in done.splitlines() if b"broken" not in line and b"not a" not in line
            }
            assert ids <= set(contents(engine))
        return engine.bulk(index, ops)

    engine = new_engine(*[check] * 20)
    assert load(engine, tmp_path).bulk.stopped is None
    assert engine.scripts != [check] * 20


def test_a_stopped_run_keeps_its_place_and_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(b"\n".join(lines_of(60)))
    engine = new_engine(through, through, refused)
    report = load(engine, tmp_path)
    assert isinstance(report.bulk.stopped, EngineAuthError)
    assert report.bulk.pending > 0
    path.write_bytes(path.read_bytes().replace(b'"n": 1}', b'"n": 2}', 1))
    with pytest.raises(InputError, match="has changed before byte"):
        load(engine, tmp_path)
    report = load(engine, tmp_path, restart=True)
    assert (report.resumed_at, report.bulk.stopped) == (0, None)
    assert contents(engine)["d1"] == {"n": 2}


def test_a_file_that_grew_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(b"\n".join(lines_of(40)) + b"\n")
    engine = new_engine(through, through, refused)
    load(engine, tmp_path)
    with path.open("ab") as file:
        file.write(b'{"id": "late", "n": 7}\n')
    report = load(engine, tmp_path)
    assert report.resumed_at > 0
    assert contents(engine)["late"] == {"n": 7}


def some_then_refused(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
    """Store the first three, and lose the right to write."""
    return [*engine.bulk(index, ops[:3]), *(WriteResult(op.id, 403, "security_exception", "no") for op in ops[3:])]


def test_a_chunk_stored_in_part_is_counted_once_when_it_goes_again(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"id": f"d{k}", "n": k}) + "\n" for k in range(20)))
    engine = new_engine(through, some_then_refused)
    assert load(engine, tmp_path).bulk.indexed == 10
    report = load(engine, tmp_path)
    assert report.resumed_at == 7
    assert (report.bulk.read, report.bulk.indexed, report.read_before) == (20, 20, 7)


def test_a_run_does_not_go_on_in_an_index_that_was_made_anew(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"id": f"d{k}", "n": k}) + "\n" for k in range(20)))
    engine = new_engine(through, refused)
    load(engine, tmp_path)
    engine.delete_index("docs")
    engine.create_index("docs", {"properties": {"n": {"type": "long"}}})
    report = load(engine, tmp_path)
    assert len(contents(engine)) == 20
    assert (report.resumed_at, report.bulk.indexed) == (0, 20)


@pytest.mark.parametrize("change", ["another folder", "the folder was removed"])
def test_a_run_does_not_go_on_into_an_empty_local_store(tmp_path: Path, change: str) -> None:
    documents = random_documents(20)
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"id": k, **one}) + "\n" for k, one in documents.items()))
    model = model_of(documents)
    engine = ScriptedEngine(through, through, refused)
    engine.create_index("docs", {})
    with VersionEncoder(model.encoder, ("fetch",), tmp_path / "store") as version:
        assert load(engine, tmp_path, version=version).bulk.indexed == 14
    shutil.rmtree(tmp_path / "store")
    store = tmp_path / ("other" if change == "another folder" else "store")
    with VersionEncoder(model.encoder, ("fetch",), store) as version:
        load(engine, tmp_path, version=version)
    assert len(VectorStore.open(store, model.encoder_id).get(list(documents)).places) == len(documents)


def check_store(engine: Engine, folder: Path, model: RankingModel) -> None:
    """Assert that the local store holds every document of the engine, with the vector of the text stored there."""
    documents = contents(engine)
    store = VectorStore.open(folder, model.encoder_id)
    found = store.get(list(documents))
    assert len(found.places) == len(documents)
    encoded = model.encoder.encode([cast("dict[str, object]", one) for one in documents.values()])
    assert found.source_hashes == encoded.source_hashes
    np.testing.assert_array_equal(found.vectors, encoded.vectors)


@pytest.mark.parametrize("max_ops", [1, 2, 7])
def test_the_local_store_holds_the_version_that_the_engine_kept(tmp_path: Path, max_ops: int) -> None:
    rows = [("a", 5, "word1"), ("a", 3, "word2"), ("b", 1, "word3"), ("b", 2, "word4"), ("c", 9, "word5")]
    lines = [json.dumps({"id": name, "v": number, "title": title}) for name, number, title in rows]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n")
    model = model_of(random_documents(20))
    engine = ScriptedEngine()
    engine.create_index("docs", {})
    with VersionEncoder(model.encoder, ("fetch",), tmp_path / "store") as version:
        report = load(engine, tmp_path, version=version, version_field="v", limits=BulkLimits(max_ops))
    assert (report.bulk.indexed, report.bulk.superseded) == (4, 1)
    check_store(engine, tmp_path / "store", model)


@pytest.mark.parametrize("cut", [dying, unheard], ids=["the process is killed", "the answer is lost"])
def test_what_goes_again_and_is_there_already_is_put_into_the_local_store(
    tmp_path: Path, cut: Callable[..., list[WriteResult]]
) -> None:
    documents = random_documents(20)
    lines = [json.dumps({"id": name, "v": 1, **one}) for name, one in documents.items()]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n")
    model = model_of(documents)
    engine = ScriptedEngine(through, cut)
    engine.create_index("docs", {})
    for _ in range(2 if cut is dying else 1):
        with VersionEncoder(model.encoder, ("fetch",), tmp_path / "store") as version, suppress(Killed):
            load(engine, tmp_path, version=version, version_field="v", policy=RetryPolicy(max_calls=3))
    check_store(engine, tmp_path / "store", model)


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (0, 0),
        (17, 17),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("2024-05-01", 1714521600000),
    ],
)
def test_external_versions(value: object, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as here:
        here.setenv("TZ", "Asia/Tokyo")  # what names no zone is UTC, wherever it is read
        time.tzset()
        assert external_version({"a": {"v": value}}, "a.v") == version
    time.tzset()


@pytest.mark.parametrize("value", [None, -1, True, 1.5, "soon", [], 2**63])
def test_values_that_are_no_version(value: object) -> None:
    with pytest.raises(InputError, match="ISO 8601"):
        external_version({"v": value}, "v")


def test_unreadable_files_are_told() -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_documents(memory_engine(), "docs", Path("/nowhere/docs.jsonl"))
