"""What the indexer promises on every engine: no document lost, every vector that of its text, nothing else touched."""

from __future__ import annotations

import gzip
import json
import threading
import time
import uuid
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.build import BuildOptions, build_index
from indexer.bulk import BulkLimits
from indexer.drift import measure_drift
from indexer.garbage import collect, former_indexes, plan_collection, remaining_note, uninstall
from indexer.load import LoadOptions
from indexer.preflight import preflight
from indexer.renewal import RenewOptions, Target, sync
from indexer.versions import list_versions, promote, rollback, stale_documents
from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.language import METADATA_FIELDS
from reranker.engines.protocol import Engine, WriteResult, requests_of
from reranker.engines.vectors import PACKED_PARTS, field_name, field_prefix
from reranker.errors import EngineRejected, GateRefused, InputError, PreflightRefused
from reranker.kernels.packing import unpack_terms, unpack_vectors
from reranker.models.ranking_model import RankingModel
from reranker.releases import CONTROL_INDEX, forget_control, read_control, records_over, update_control
from reranker.store import VectorStore
from reranker.text.vocabulary import hashed_id
from tests.engines.memory import memory_engine
from tests.served import MEMORY_BM25, Documents, model_of, random_documents, reading_vectors, with_vectors

KINDS = ("memory", "tantivy", "elasticsearch", "opensearch")
PLAIN = {"properties": {"title": {"type": "text"}, "text": {"type": "text"}, "tag": {"type": "keyword"}}}


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "memory":
        opened: Engine = memory_engine()
    elif request.param == "tantivy":
        opened = open_engine(f"tantivy:{tmp_path / 'engine'}")
    else:
        url = request.getfixturevalue(request.param + "_url")
        opened = open_engine(f"{request.param}:{url}", EngineSettings(read_timeout_s=60))
    yield opened
    opened.close()


@pytest.fixture
def name(engine: Engine) -> Iterator[str]:
    """Give a name that nobody else uses, and remove all indexes made under it."""
    stem = f"indexer-{uuid.uuid4().hex[:12]}"
    yield stem
    for candidate in [stem, *(f"{stem}-{k:06d}" for k in range(1, 9))]:
        for concrete in engine.index_names(candidate):
            engine.delete_index(concrete)
    if engine.index_names(CONTROL_INDEX):
        keys = [d.id for batch in engine.scan(CONTROL_INDEX, source=False) for d in batch if d.id.startswith(stem)]
        forget_control(engine, keys)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))


def write_file(path: Path, documents: Mapping[str, Mapping[str, Any]]) -> Path:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        for identifier, source in documents.items():
            file.write(json.dumps({"id": identifier, **source}) + "\n")
    return path


def stored(engine: Engine, name: str) -> Documents:
    engine.refresh(name)
    return {document.id: dict(document.source) for batch in engine.scan(name) for document in batch}


def without_ours(source: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in source.items() if not key.startswith("ssi_")}


def check_vectors(engine: Engine, name: str, model: RankingModel) -> int:
    """Assert that each stored vector and hash is that of the stored text; return how many documents there are."""
    documents = stored(engine, name)
    encoded = model.encoder.encode(list(documents.values()))
    for row, source in enumerate(documents.values()):
        assert source.get(field_name(model.encoder_id, "src")) == encoded.source_hashes[row]
        packed = source.get(field_name(model.encoder_id, "vec"))
        if not encoded.has_text[row]:
            assert packed is None
            continue
        assert packed is not None
        np.testing.assert_array_equal(unpack_vectors([b64decode(packed)])[0], encoded.vectors[row])
    return len(documents)


def filled(engine: Engine, name: str, documents: Documents) -> None:
    """Make an index as a team would, without us."""
    engine.create_index(name, PLAIN)
    for start in range(0, len(documents), 500):
        part = list(documents.items())[start : start + 500]
        results = engine.bulk(name, [WriteOp("index", key, source) for key, source in part])
        assert {result.status for result in results} == {201}
    engine.refresh(name)


def test_index_stores_every_document_with_its_vector(engine: Engine, name: str, tmp_path: Path) -> None:
    documents = random_documents(300)
    model = model_of(documents)
    path = write_file(tmp_path / "docs.jsonl.gz", documents)
    options = BuildOptions(store_path=tmp_path / "store", load=LoadOptions(limits=BulkLimits(70)))
    report = build_index(engine, name, path, model, options)
    assert (report.load.bulk.indexed, report.load.bulk.rejected, report.load.unreadable) == (300, 0, 0)
    assert report.concrete == f"{name}-000001"
    assert report.live
    assert {key: without_ours(source) for key, source in stored(engine, name).items()} == documents
    assert check_vectors(engine, name, model) == 300
    store = VectorStore.open(tmp_path / "store", model.encoder_id)
    encoded = model.encoder.encode(list(documents.values()))
    np.testing.assert_array_equal(store.get(list(documents)).vectors, encoded.vectors)
    assert read_control(engine, name).live == model.model_id


def test_every_way_into_an_index_writes_what_a_document_is_remembered_for(
    engine: Engine, name: str, tmp_path: Path
) -> None:
    documents = random_documents(20)
    model = model_of(documents, lexical=MEMORY_BM25)
    expected = model.encoder.encode(list(documents.values()), list(documents)).rows
    assert expected.nnz > model.encoder.encode(list(documents.values())).rows.nnz
    path = write_file(tmp_path / "docs.jsonl", documents)
    build_index(engine, name, path, model, BuildOptions(store_path=tmp_path / "store"))
    bare = f"{name}-000002"
    filled(engine, bare, documents)
    sync(Target(engine, bare, model, store_path=tmp_path / "second"))
    for index, store in ((name, "store"), (bare, "second")):
        packed = [stored(engine, index)[key][field_name(model.encoder_id, "terms")] for key in documents]
        opened = VectorStore.open(tmp_path / store, model.encoder_id)
        for rows in (unpack_terms([b64decode(text) for text in packed]), opened.get(list(documents)).terms):
            np.testing.assert_array_equal(rows.indices, expected.indices)
            np.testing.assert_array_equal(rows.data, expected.data)
    engine.bulk(bare, [WriteOp("index", "d3", documents["d3"] | {"text": "another text"})])
    engine.refresh(bare)
    assert sync(Target(engine, bare, model, store_path=tmp_path / "second")).written == 1
    (row,) = unpack_terms([b64decode(stored(engine, bare)["d3"][field_name(model.encoder_id, "terms")])])
    assert hashed_id("lumber") in row.indices


def test_bad_lines_are_kept_apart_with_line_and_offset(engine: Engine, name: str, tmp_path: Path) -> None:
    lines = [
        b'{"id": "a", "title": "good"}',
        b"{broken",
        b'{"id": "", "title": "x"}',
        b'{"id": "b", "title": "good"}',
        b'{"id": "c", "n": NaN}',
        b'{"id": "a", "title": "again"}',
        b'{"title": "no id"}',
        b'{"id": "d", "title": {"an": "object where text belongs"}}',
    ]
    path = tmp_path / "docs.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    rejects = tmp_path / "rejects"
    report = build_index(engine, name, path, None, BuildOptions(load=LoadOptions(reject_path=rejects)))
    assert (report.load.bulk.indexed, report.load.bulk.rejected, report.load.unreadable) == (2, 1, 5)
    entries = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert {entry["line"] for entry in entries} == {2, 3, 5, 6, 7, 8}
    for entry in entries:
        assert path.read_bytes()[entry["offset"] :].split(b"\n")[0] == lines[entry["line"] - 1]
        assert entry["reason"]
    assert stored(engine, name) == {"a": {"title": "good"}, "b": {"title": "good"}}


def test_an_older_version_never_overwrites_a_newer_one(engine: Engine, name: str, tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    rows = [
        ("a", 5, "new"),
        ("a", 3, "old"),
        ("b", 1, "first"),
        ("b", 2, "x"),
    ]
    lines = [json.dumps({"id": key, "v": version, "title": title}) for key, version, title in rows]
    lines.append(json.dumps({"id": "c", "v": -1, "title": "no version"}))
    path.write_text("\n".join(lines))
    report = build_index(engine, name, path, None, BuildOptions(load=LoadOptions(version_field="v")))
    bulk = report.load.bulk
    assert (bulk.indexed, bulk.superseded, report.load.unreadable) == (3, 1, 1)
    assert {key: source["title"] for key, source in stored(engine, name).items()} == {"a": "new", "b": "x"}


def test_a_rebuild_from_a_log_of_changes_is_complete(engine: Engine, name: str, tmp_path: Path) -> None:
    """Each version replaces the one before, so there are fewer documents than stored writes."""
    rows = [("a", 1, "old"), ("a", 2, "new"), ("b", 1, "x")]
    lines = [json.dumps({"id": key, "v": version, "title": title}) for key, version, title in rows]
    path = tmp_path / "docs.jsonl"
    path.write_text("\n".join(lines))
    options = BuildOptions(rebuild=True, load=LoadOptions(version_field="v"))
    report = build_index(engine, name, path, None, options)
    assert report.load.bulk.indexed == 3
    assert {key: source["title"] for key, source in stored(engine, name).items()} == {"a": "new", "b": "x"}


def test_rebuild_swaps_the_alias_and_gc_deletes_what_was_replaced(engine: Engine, name: str, tmp_path: Path) -> None:
    documents = random_documents(60)
    old, new = model_of(documents), model_of(documents, n_dims=4)
    path = write_file(tmp_path / "docs.jsonl", documents)
    build_index(engine, name, path, old)
    write_file(path, dict(list(documents.items())[:50]))
    report = build_index(engine, name, path, new, BuildOptions(rebuild=True))
    assert engine.index_names(name) == (f"{name}-000002",)
    assert report.retired == (f"{name}-000001",)
    assert check_vectors(engine, name, new) == 50
    assert not [
        key for key in engine.index_info(f"{name}-000002").properties if key.startswith(field_prefix(old.encoder_id))
    ]
    assert read_control(engine, name).live == new.model_id
    plan = plan_collection(engine, name)
    assert plan.indexes == (f"{name}-000001",)
    # What an alias leads to is served, also where it came to it after the plan was made.
    engine.swap_alias(f"{name}-000008", f"{name}-000001")
    assert plan_collection(engine, name).indexes == ()
    assert collect(engine, plan, rng=np.random.default_rng(0)).deleted == ()
    engine.swap_alias(f"{name}-000008", f"{name}-000002", [f"{name}-000001"])
    assert collect(engine, plan, rng=np.random.default_rng(0)).deleted == (f"{name}-000001",)
    assert engine.index_names(f"{name}-000001") == ()
    assert read_control(engine, name).retired == ()


@pytest.mark.parametrize("done", [False, True], ids=["before the swap", "after the swap"])
def test_a_rebuild_that_stops_at_the_swap_loses_sight_of_nothing(
    engine: Engine, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    path = write_file(tmp_path / "docs.jsonl", random_documents(5))
    build_index(engine, name, path, None)
    swap = engine.swap_alias

    def stop(*arguments: Any) -> None:
        if done:
            swap(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "swap_alias", stop)
        with pytest.raises(KeyboardInterrupt):
            build_index(engine, name, path, None, BuildOptions(rebuild=True))
    write_file(path, random_documents(3))
    report = build_index(engine, name, path, None, BuildOptions(rebuild=True))
    # A load that was complete is not gone on with: its index may hold documents that have left the file since.
    assert report.concrete == f"{name}-000003"
    assert len(stored(engine, name)) == 3
    record = read_control(engine, name)
    assert record.building == ()
    assert sorted(record.retired) == [f"{name}-000001", f"{name}-000002"]


def test_an_empty_rebuild_leaves_the_alias_where_it_was(engine: Engine, name: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "docs.jsonl", random_documents(5))
    build_index(engine, name, path, None)
    path.write_text("{broken\n")
    with pytest.raises(GateRefused, match="alias is unchanged"):
        build_index(engine, name, path, None, BuildOptions(rebuild=True, load=LoadOptions(reject_path=tmp_path / "r")))
    assert engine.index_names(name) == (f"{name}-000001",)
    assert len(stored(engine, name)) == 5


def test_a_rebuild_that_lost_a_document_leaves_the_alias_where_it_was(
    engine: Engine, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(tmp_path / "docs.jsonl", random_documents(5))
    build_index(engine, name, path, None)
    bulk = engine.bulk

    def forgetful(index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        results = bulk(index, ops)
        bulk(index, [WriteOp("delete", "d3")] if index == f"{name}-000002" else [])
        return results

    monkeypatch.setattr(engine, "bulk", forgetful)
    with pytest.raises(GateRefused, match="has 4 documents, but 5 were acknowledged"):
        build_index(engine, name, path, None, BuildOptions(rebuild=True))
    assert engine.index_names(name) == (f"{name}-000001",)


def test_a_rebuild_of_a_plain_index_is_refused(engine: Engine, name: str, tmp_path: Path) -> None:
    engine.create_index(name, PLAIN)
    path = write_file(tmp_path / "docs.jsonl", random_documents(3))
    with pytest.raises(GateRefused, match="not an alias"):
        build_index(engine, name, path, None, BuildOptions(rebuild=True))


def test_revectorize_while_a_writer_edits_a_tenth_of_the_texts(engine: Engine, name: str, tmp_path: Path) -> None:
    """At the end every stored vector is that of the stored text, and the writer's last word stands."""
    documents = random_documents(800, seed=3)
    model = model_of(documents)
    filled(engine, name, documents)
    edits = {f"d{k}": f"edited {k} word{k % 50}" for k in range(0, 800, 10)}
    running = threading.Event()

    def write_one(operation: WriteOp) -> None:
        # The renewal may write the same document between an update's read and its write: a writer then asks once more.
        statuses = (engine.bulk(name, [operation])[0].status for _ in range(20))
        assert next((status for status in statuses if status != 409), 409) == 200

    def write() -> None:
        running.wait(30)
        for number, (key, text) in enumerate(edits.items()):
            write_one(WriteOp("update", key, {"text": text}))
            if number == 20:
                write_one(WriteOp("delete", "d7"))
            time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    target = Target(engine, name, model, store_path=tmp_path / "store")
    options = RenewOptions(max_docs_per_s=2000, limits=BulkLimits(50))
    report = sync(target, options, progress=lambda done, total: running.set())
    writer.join(60)
    assert report.stopped is None
    assert report.rejected == 0
    # Edits that came after the last pass belong to the next sync; none may be left after it.
    last = sync(target)
    assert last.stopped is None
    assert last.stale == 0
    assert check_vectors(engine, name, model) == 799
    expected = {
        key: {**source, "text": edits.get(key, source["text"])} for key, source in documents.items() if key != "d7"
    }
    assert {key: without_ours(source) for key, source in stored(engine, name).items()} == expected
    store = VectorStore.open(tmp_path / "store", model.encoder_id)
    np.testing.assert_array_equal(
        store.get(list(expected)).vectors, model.encoder.encode(list(expected.values())).vectors
    )


def test_revectorize_touches_nothing_but_its_own_fields(engine: Engine, name: str) -> None:
    documents = random_documents(40)
    filled(engine, name, documents)
    before = engine.index_info(name)
    model = model_of(documents)
    assert sync(Target(engine, name, model)).written == 40
    after = engine.index_info(name)
    ours = {key for key in after.properties if key.startswith(field_prefix(model.encoder_id))}
    assert {key: value for key, value in after.properties.items() if key not in ours} == before.properties
    assert {k: v for k, v in after.mapping.items() if k != "properties"} == {
        k: v for k, v in before.mapping.items() if k != "properties"
    }
    assert after.settings == before.settings
    assert {key: without_ours(source) for key, source in stored(engine, name).items()} == documents
    # Not live before somebody says so.
    assert read_control(engine, name).live is None


def test_a_new_query_side_touches_no_document(engine: Engine, name: str) -> None:
    documents = random_documents(30)
    filled(engine, name, documents)
    model = model_of(documents)
    sync(Target(engine, name, model))
    sequence = [d.seq_no for d in engine.get(name, list(documents)) if d]
    other = RankingModel(model.encoder, model.query_vocabulary, model.U * 2, 1.0)
    assert other.model_id != model.model_id
    assert sync(Target(engine, name, other)).written == 0
    assert [d.seq_no for d in engine.get(name, list(documents)) if d] == sequence
    assert {r.model_id for r in read_control(engine, name).releases} == {model.model_id, other.model_id}


def test_sync_finds_new_changed_emptied_and_stripped_documents(engine: Engine, name: str, tmp_path: Path) -> None:
    documents = random_documents(50)
    filled(engine, name, documents)
    model = model_of(documents)
    target = Target(engine, name, model, store_path=tmp_path / "store")
    sync(target)
    engine.bulk(
        name,
        [
            WriteOp("index", "new", {"title": "word1", "text": "word2 never seen before"}),
            WriteOp("update", "d1", {"text": "word3 changed"}),
            WriteOp("update", "d2", {"text": "", "title": ""}),
            WriteOp("index", "d3", documents["d3"]),
            WriteOp("update", "d4", {"tag": "z"}),
        ],
    )
    assert sync(target).written == 4
    assert check_vectors(engine, name, model) == 51
    assert sync(target).written == 0
    store = VectorStore.open(tmp_path / "store", model.encoder_id)
    changed = stored(engine, name)
    keys = [key for key in changed if key != "d2"]
    expected = model.encoder.encode([changed[key] for key in keys]).vectors
    np.testing.assert_array_equal(store.get(keys).vectors, expected)


def test_an_index_is_made_of_documents_with_vectors_of_their_own(engine: Engine, name: str, tmp_path: Path) -> None:
    documents = with_vectors(random_documents(60))
    model = reading_vectors(model_of(documents))
    path = write_file(tmp_path / "docs.jsonl", documents)
    report = build_index(engine, name, path, model, BuildOptions(store_path=tmp_path / "store"))
    assert (report.load.bulk.indexed, report.load.bulk.rejected, report.live) == (60, 0, True)
    assert {key: without_ours(source) for key, source in stored(engine, name).items()} == documents
    assert check_vectors(engine, name, model) == 60
    assert sync(Target(engine, name, model, store_path=tmp_path / "store")).written == 0
    assert stale_documents(engine, name, {model.encoder_id: model.encoder.view}) == {model.encoder_id: 0}


def test_sync_finds_documents_of_which_only_the_given_vector_changed(engine: Engine, name: str, tmp_path: Path) -> None:
    documents = with_vectors(random_documents(30))
    filled(engine, name, documents)
    model = reading_vectors(model_of(documents))
    target = Target(engine, name, model, store_path=tmp_path / "store")
    assert sync(target).written == 30
    assert check_vectors(engine, name, model) == 30
    assert "embedding" not in documents["d6"]
    without = {key: value for key, value in documents["d2"].items() if key != "embedding"}
    changes = [
        WriteOp("update", "d1", {"embedding": [3.0, 0.0, -2.0, 0.25, 1.0]}),
        WriteOp("index", "d2", {**without, **{k: v for k, v in stored(engine, name)["d2"].items() if k[:4] == "ssi_"}}),
        WriteOp("update", "d3", {"embedding": None}),
        WriteOp("update", "d6", {"embedding": [1.0, 1.0, 1.0, 1.0, 1.0]}),
        WriteOp("update", "d4", {"tag": "z"}),
    ]
    assert {result.status for result in engine.bulk(name, changes)} <= {200, 201}
    engine.refresh(name)
    assert stale_documents(engine, name, {model.encoder_id: model.encoder.view}) == {model.encoder_id: 4}
    before = {key: source[field_name(model.encoder_id, "vec")] for key, source in stored(engine, name).items()}
    assert sync(target).written == 4
    after = {key: source[field_name(model.encoder_id, "vec")] for key, source in stored(engine, name).items()}
    assert {key for key in after if after[key] != before[key]} == {"d1", "d2", "d3", "d6"}
    assert check_vectors(engine, name, model) == 30
    n_given = model.encoder.vector_field.n_dims if model.encoder.vector_field else 0
    store = VectorStore.open(tmp_path / "store", model.encoder_id)
    parts = store.get(["d1", "d2", "d3", "d6"]).vectors[:, -n_given:]
    assert parts.any(axis=1).tolist() == [True, False, False, True]
    assert sync(target).written == 0


@pytest.mark.parametrize(("value", "message"), [([], r"is '\[\]'"), ([1.0, 2.0], "a vector of 2 numbers")])
def test_a_vector_that_cannot_be_used_is_refused_by_the_name_of_its_document(
    name: str, tmp_path: Path, value: Any, message: str
) -> None:
    engine = memory_engine()
    documents = with_vectors(random_documents(20))
    model = reading_vectors(model_of(documents))
    filled(engine, name, documents)
    assert sync(Target(engine, name, model)).written == 20
    engine.bulk(name, [WriteOp("update", "d3", {"embedding": value})])
    engine.refresh(name)
    assert stale_documents(engine, name, {model.encoder_id: model.encoder.view}) == {model.encoder_id: 1}
    with pytest.raises(InputError, match=f"document 'd3': .*{message}"):
        sync(Target(engine, name, model))
    path = write_file(tmp_path / "docs.jsonl", {**documents, "d3": {**documents["d3"], "embedding": value}})
    with pytest.raises(InputError, match=f"document 'd3': .*{message}"):
        build_index(engine, f"{name}-built", path, model)
    engine.close()


def test_a_new_local_store_is_filled_without_writing_to_the_engine(engine: Engine, name: str, tmp_path: Path) -> None:
    documents = random_documents(30)
    filled(engine, name, documents)
    model = model_of(documents)
    sync(Target(engine, name, model))
    target = Target(engine, name, model, store_path=tmp_path / "elsewhere")
    report = sync(target)
    assert (report.written, report.stored_only) == (0, 30)
    assert len(VectorStore.open(tmp_path / "elsewhere", model.encoder_id).get(list(documents)).places) == len(documents)
    # Renewed meanwhile by a run that writes no store, a document waits there with the text it had.
    engine.bulk(name, [WriteOp("update", "d1", {"text": "word3 changed"})])
    assert sync(Target(engine, name, model)).written == 1
    report = sync(target)
    assert (report.written, report.stored_only) == (0, 1)


def test_documents_keep_their_routing(engine: Engine, name: str) -> None:
    documents = random_documents(20)
    engine.create_index(name, {**PLAIN, "_routing": {"required": True}})
    engine.bulk(name, [WriteOp("index", key, source, routing=f"r{key[-1]}") for key, source in documents.items()])
    engine.refresh(name)
    model = model_of(documents)
    assert sync(Target(engine, name, model)).written == 20
    assert check_vectors(engine, name, model) == 20
    found = [document for batch in engine.scan(name) for document in batch]
    assert all(document.routing == f"r{document.id[-1]}" for document in found)


def test_promote_and_rollback_are_guarded_by_coverage(engine: Engine, name: str) -> None:
    documents = random_documents(20)
    filled(engine, name, documents)
    first, second = model_of(documents), model_of(documents, n_dims=4)
    sync(Target(engine, name, first))
    promote(engine, name, first.model_id[:8])
    sync(Target(engine, name, second))
    assert read_control(engine, name).live == first.model_id
    engine.bulk(name, [WriteOp("index", "late", {"title": "word1"})])
    with pytest.raises(GateRefused, match="1 of 21 documents"):
        promote(engine, name, second.model_id)
    sync(Target(engine, name, second))
    assert promote(engine, name, second.model_id).live == second.model_id
    with pytest.raises(GateRefused, match="1 of 21 documents"):
        rollback(engine, name)
    assert rollback(engine, name, force=True).live == first.model_id
    with pytest.raises(GateRefused, match="no earlier live version"):
        rollback(engine, name)
    with pytest.raises(InputError, match="is no version"):
        promote(engine, name, "0123456789ab")
    states = {state.model_id: state for state in list_versions(engine, name)}
    assert states[first.model_id].live
    assert (states[first.model_id].with_vector, states[first.model_id].stale) == (20, 0)
    assert (states[second.model_id].with_vector, states[second.model_id].stale) == (21, 0)


def test_a_version_whose_texts_changed_is_neither_promoted_nor_rolled_back_to(engine: Engine, name: str) -> None:
    """`sync` keeps one version; the others say what they miss."""
    documents = random_documents(20)
    filled(engine, name, documents)
    first, second = model_of(documents), model_of(documents, n_dims=4)
    for model in (first, second):
        sync(Target(engine, name, model))
        promote(engine, name, model.model_id)
    engine.bulk(name, [WriteOp("update", f"d{k}", {"text": f"word{k} edited"}) for k in range(7)])
    engine.bulk(name, [WriteOp("update", "d9", {"tag": "z"})])
    engine.refresh(name)
    assert [state.stale for state in list_versions(engine, name)] == [7, 7]
    sync(Target(engine, name, second))
    assert [state.stale for state in list_versions(engine, name)] == [7, 0]
    assert [state.stale for state in list_versions(engine, name, count_stale=False)] == [None, None]
    with pytest.raises(
        GateRefused, match=r"7 documents .* have changed since their vectors were computed for version"
    ) as refusal:
        rollback(engine, name)
    assert refusal.value.data["stale"] == 7
    with pytest.raises(GateRefused, match="ssi sync"):
        promote(engine, name, first.model_id)
    assert read_control(engine, name).live == second.model_id
    views = {first.encoder_id: first.encoder.view}
    assert stale_documents(engine, name, views) == {first.encoder_id: 7}
    sync(Target(engine, name, first))
    assert stale_documents(engine, name, views) == {first.encoder_id: 0}
    seen: list[int] = []
    assert rollback(engine, name, progress=lambda done, _: seen.append(done)).live == first.model_id
    assert seen[-1] == 20
    # Registered by an older program: it is not known which fields it reads, until it is renewed.
    update_control(engine, name, lambda r: replace(r, releases=tuple(replace(one, view={}) for one in r.releases)))
    assert [state.stale for state in list_versions(engine, name)] == [None, None]
    sync(Target(engine, name, second))
    assert [state.stale for state in list_versions(engine, name)] == [None, 0]


def test_an_index_that_routes_is_not_filled_from_a_file(engine: Engine, name: str, tmp_path: Path) -> None:
    documents = random_documents(20)
    engine.create_index(f"{name}-000001", {**PLAIN, "_routing": {"required": True}})
    engine.swap_alias(name, f"{name}-000001")
    path = write_file(tmp_path / "docs.jsonl", documents)
    for rebuild in (False, True):
        with pytest.raises(PreflightRefused, match="routing is required"):
            build_index(engine, name, path, model_of(documents), BuildOptions(rebuild=rebuild))
    assert read_control(engine, name).live is None


def test_a_model_of_whose_vectors_most_documents_have_none_is_not_live(
    engine: Engine, name: str, tmp_path: Path
) -> None:
    documents = random_documents(20)
    filled(engine, name, documents)
    model = model_of(documents)
    path = write_file(tmp_path / "more.jsonl", {"new": {"title": "word1"}})
    report = build_index(engine, name, path, model)
    assert (report.load.bulk.indexed, report.live) == (1, False)
    sync(Target(engine, name, model))
    promote(engine, name, model.model_id)
    assert build_index(engine, name, path, model).live


def three_promoted(engine: Engine, name: str, documents: Documents) -> list[RankingModel]:
    """Fill an index and make three versions live one after the other."""
    filled(engine, name, documents)
    models = [model_of(documents, n_dims=dims) for dims in (2, 3, 4)]
    for model in models:
        sync(Target(engine, name, model))
        promote(engine, name, model.model_id)
    return models


def test_gc_empties_old_versions_and_nothing_else(engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = random_documents(30)
    models = three_promoted(engine, name, documents)
    plan = plan_collection(engine, name, keep=1)
    assert plan.drop == (models[0].encoder_id[:12],)
    assert plan.documents == 30
    assert "--rebuild" in remaining_note(plan)
    bulk = engine.bulk

    def edited_first(index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        if index == name and documents["d3"]["tag"] != "edited":
            documents["d3"] = {**documents["d3"], "tag": "edited"}
            bulk(name, [WriteOp("update", "d3", {"tag": "edited"})])
        return bulk(index, ops)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "bulk", edited_first)
        report = collect(engine, plan, rng=np.random.default_rng(0))
    assert (report.emptied, report.error) == (30, None)
    after = stored(engine, name)
    assert not [
        key for source in after.values() for key in source if key.startswith(field_prefix(models[0].encoder_id))
    ]
    assert {key: without_ours(source) for key, source in after.items()} == documents
    for model in models[1:]:
        assert check_vectors(engine, name, model) == 30
    assert plan_collection(engine, name, keep=1).drop == ()
    assert rollback(engine, name).live == models[1].model_id


def test_uninstall_leaves_what_the_team_wrote(engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = random_documents(30)
    models = three_promoted(engine, name, documents)
    plan = plan_collection(engine, name, everything=True)
    assert set(plan.drop) == {model.encoder_id[:12] for model in models}
    assert plan.documents == 30 and "stay in the mapping" in remaining_note(plan)
    bulk = engine.bulk

    def stopped(index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        if index == name:
            raise EngineRejected("no more space", error_type="cluster_block_exception")
        return bulk(index, ops)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "bulk", stopped)
        assert uninstall(engine, plan, rng=np.random.default_rng(0)).error is not None
    assert read_control(engine, name).live is None, "nobody may load a version whose fields are going"
    again = plan_collection(engine, name, everything=True)
    assert again.drop == plan.drop
    report = uninstall(engine, again, rng=np.random.default_rng(0))
    assert (report.emptied, report.error) == (30, None)
    assert stored(engine, name) == documents
    assert not [r for r in records_over(engine, engine.index_names(name)) if r.index == name]
    assert plan_collection(engine, name, everything=True).drop == ()


def test_uninstall_is_visible_at_once_and_names_the_index_before_a_rollover(engine: Engine, name: str) -> None:
    documents = random_documents(10)
    model = model_of(documents)
    first, second = f"{name}-000001", f"{name}-000002"
    for concrete, before in ((first, ()), (second, (first,))):
        engine.create_index(concrete, PLAIN)
        engine.bulk(concrete, [WriteOp("index", key, source) for key, source in documents.items()])
        engine.refresh(concrete)
        engine.swap_alias(name, concrete, before)
        sync(Target(engine, name, model))
    plan = plan_collection(engine, name, everything=True)
    uninstall(engine, plan, rng=np.random.default_rng(0))
    assert engine.count(name, {"exists": {"field": field_name(model.encoder_id, "src")}}) == 0  # without a refresh
    assert former_indexes(engine, name) == (first,)
    assert engine.index_names(CONTROL_INDEX)
    uninstall(engine, plan_collection(engine, first, everything=True), rng=np.random.default_rng(0))
    # Other tests may have records in the same engine.
    assert not engine.index_names(CONTROL_INDEX) or engine.count(CONTROL_INDEX) > 0
    again = uninstall(engine, plan_collection(engine, name, everything=True), rng=np.random.default_rng(0))
    assert (again.emptied, again.error) == (0, None)


@pytest.mark.parametrize("field", sorted(METADATA_FIELDS))
def test_names_that_the_engine_keeps_for_itself_are_refused(engine: Engine, name: str, field: str) -> None:
    engine.create_index(name, PLAIN)
    (result,) = engine.bulk(name, [WriteOp("index", "d", {"title": "word1", field: "x"})])
    assert result.status == 400 and result.error_type in ("document_parsing_exception", "mapper_parsing_exception")
    (inside,) = engine.bulk(name, [WriteOp("index", "d", {"title": "word1", "maker": {field: "x"}})])
    assert inside.status == 201


def test_a_closed_index_says_that_it_must_be_opened(engine: Engine, name: str) -> None:
    if engine.in_process:
        pytest.skip("the embedded engine closes no index")
    engine.create_index(name, PLAIN)
    requests_of(engine).request("POST", f"/{name}/_close")
    with pytest.raises(EngineRejected, match="index is closed: open it") as caught:
        engine.count(name)
    assert caught.value.error_type == "index_closed_exception"


GRAPH = {"name": "hnsw", "engine": "lucene"}
"""Method of a field of vectors that OpenSearch searches."""


def own_vectors(engine: Engine, n_dims: int, *, searched: bool = False) -> dict[str, Any]:
    """Return the mapping of a field of vectors; skip the test for an engine that has no such field."""
    kind = engine.capabilities().kind
    if kind == "elasticsearch":
        return {"type": "dense_vector", "dims": n_dims, "index": searched}
    if kind == "opensearch":
        return {"type": "knn_vector", "dimension": n_dims, **({"method": GRAPH} if searched else {})}
    pytest.skip(f"{kind} keeps no vectors of its own")


@pytest.mark.parametrize("searched", [True, False])
def test_gc_keeps_vectors_of_the_teams_own_and_of_kept_versions(engine: Engine, name: str, searched: bool) -> None:
    """An engine may leave vectors out of what it shows of a document; what is written anew must hold them."""
    documents, own = random_documents(12), own_vectors(engine, 2, searched=searched)
    settings = {"index.knn": "true"} if "method" in own else None
    engine.create_index(name, {"properties": {**PLAIN["properties"], "own": own}}, settings)
    ops = [WriteOp("index", key, {**source, "own": [0.5, 0.25]}) for key, source in documents.items()]
    assert {result.status for result in engine.bulk(name, ops)} == {201}
    models = [model_of(documents, n_dims=dims, seed=dims) for dims in (2, 3, 4)]
    for model in models:
        assert sync(Target(engine, name, model)).written == 12
        promote(engine, name, model.model_id)
    before = stored(engine, name)
    report = collect(engine, plan_collection(engine, name, keep=1), rng=np.random.default_rng(0))
    assert (report.emptied, report.error) == (12, None)
    gone = field_prefix(models[0].encoder_id)
    kept = {
        key: {path: value for path, value in source.items() if not path.startswith(gone)}
        for key, source in before.items()
    }
    assert stored(engine, name) == kept
    packed = {field_name(models[1].encoder_id, part) for part in PACKED_PARTS}
    assert all(packed <= source.keys() for source in kept.values())
    assert all(source["own"] == pytest.approx([0.5, 0.25]) for source in kept.values())


def test_gc_leaves_a_newer_version_when_the_live_one_was_calibrated_meanwhile(engine: Engine, name: str) -> None:
    documents = random_documents(10)
    filled(engine, name, documents)
    live, newer = (model_of(documents, n_dims=dims) for dims in (2, 3))
    sync(Target(engine, name, live))
    promote(engine, name, live.model_id)
    sync(Target(engine, name, newer))
    record = read_control(engine, name)
    calibrated = replace(record.release(live.model_id), calibration={"0123456789abcdef:200": {"alpha": 0.3}})
    update_control(engine, name, lambda record: record.with_release(calibrated))
    assert plan_collection(engine, name).drop == ()
    assert [one.model_id for one in list_versions(engine, name)] == [live.model_id, newer.model_id]


def test_gc_keeps_as_many_earlier_versions_as_it_is_told(engine: Engine, name: str) -> None:
    models = three_promoted(engine, name, random_documents(10))
    for k in (1, 2):
        promote(engine, name, models[k].model_id)
    assert plan_collection(engine, name, keep=2).drop == ()
    assert plan_collection(engine, name, keep=1).drop == (models[0].encoder_id[:12],)
    assert rollback(engine, name).live == models[1].model_id


def test_gc_keeps_what_is_live_under_another_name(engine: Engine, name: str) -> None:
    """An alias and its index are one thing; an alias of several keeps a live version of its own."""
    models = three_promoted(engine, f"{name}-000001", random_documents(10))
    engine.swap_alias(name, f"{name}-000001")
    assert read_control(engine, name).live == models[2].model_id
    promote(engine, name, models[0].model_id)
    assert read_control(engine, f"{name}-000001").live == models[0].model_id
    for either in (name, f"{name}-000001"):
        assert plan_collection(engine, either, keep=0).keep == (models[0].encoder_id[:12],)
    both = f"{name}-000008"
    filled(engine, f"{name}-000002", random_documents(5))
    engine.swap_alias(both, f"{name}-000001")
    engine.swap_alias(both, f"{name}-000002")
    sync(Target(engine, both, models[1]))
    promote(engine, both, models[1].model_id)
    assert read_control(engine, name).live == models[0].model_id
    promote(engine, name, models[2].model_id)
    plan = plan_collection(engine, name, keep=0)
    assert set(plan.keep) >= {model.encoder_id[:12] for model in models[1:]}
    engine.bulk(CONTROL_INDEX, [WriteOp("delete", both)])


def test_gc_refuses_a_plan_whose_version_went_live_since(engine: Engine, name: str) -> None:
    models = three_promoted(engine, name, random_documents(10))
    plan = plan_collection(engine, name, keep=1)
    promote(engine, name, models[0].model_id)
    with pytest.raises(GateRefused, match="became live after"):
        collect(engine, plan, rng=np.random.default_rng(0))
    assert check_vectors(engine, name, models[0]) == 10
    assert len(read_control(engine, name).releases) == 3


def test_gc_empties_the_index_that_was_planned_wherever_the_alias_points_by_then(engine: Engine, name: str) -> None:
    documents = random_documents(10)
    models = three_promoted(engine, f"{name}-000001", documents)
    engine.swap_alias(name, f"{name}-000001")
    plan = plan_collection(engine, name, keep=1)
    filled(engine, f"{name}-000002", documents)
    sync(Target(engine, f"{name}-000002", models[0]))
    engine.swap_alias(name, f"{name}-000002", [f"{name}-000001"])
    collect(engine, plan, rng=np.random.default_rng(0))
    assert check_vectors(engine, f"{name}-000002", models[0]) == 10


def test_gc_leaves_a_version_that_is_being_written(engine: Engine, name: str) -> None:
    documents = random_documents(10)
    filled(engine, name, documents)
    live, coming = model_of(documents), model_of(documents, n_dims=4)
    sync(Target(engine, name, live))
    promote(engine, name, live.model_id)
    target = Target(engine, name, coming)
    seen: list[tuple[str, ...]] = []
    sync(target, progress=lambda *_: seen.append(plan_collection(engine, name).drop))
    assert seen and set(seen) == {()}
    target.note(state="running")  # as a killed one leaves it, before it is registered
    update_control(engine, name, lambda record: replace(record, releases=record.releases[:1]))
    plan = plan_collection(engine, name)
    assert (plan.drop, plan.unfinished) == ((), (coming.encoder_id[:12],))
    assert plan_collection(engine, name, unfinished=True).drop == (coming.encoder_id[:12],)


def test_an_index_made_anew_has_no_live_version(engine: Engine, name: str) -> None:
    """A record is of one index, not of its name: nothing of it is claimed of another, and nothing is lost."""
    documents = random_documents(10)
    filled(engine, name, documents)
    model = model_of(documents)
    sync(Target(engine, name, model))
    promote(engine, name, model.model_id)
    engine.delete_index(name)
    filled(engine, name, documents)
    record = read_control(engine, name)
    assert (record.live, record.previous, record.progress) == (None, (model.model_id,), {})
    with pytest.raises(PreflightRefused, match="no version is live"):
        plan_collection(engine, name)
    with pytest.raises(GateRefused, match="10 of 10 documents"):
        rollback(engine, name)
    sync(Target(engine, name, model))
    assert promote(engine, name, model.model_id).live == model.model_id


def test_a_rebuilt_index_is_live_with_its_new_model_at_the_moment_of_the_swap(
    engine: Engine, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = random_documents(10)
    path = write_file(tmp_path / "docs.jsonl", documents)
    first, second = model_of(documents), model_of(documents, n_dims=4)
    build_index(engine, name, path, first, BuildOptions())
    swap, at_swap = engine.swap_alias, []

    def watched(alias: str, add: str, remove: Sequence[str] = ()) -> None:
        at_swap.append(read_control(engine, alias).live)
        swap(alias, add, remove)
        at_swap.append(read_control(engine, alias).live)

    monkeypatch.setattr(engine, "swap_alias", watched)
    build_index(engine, name, path, second, BuildOptions(rebuild=True))
    assert at_swap == [first.model_id, second.model_id]
    assert read_control(engine, name).previous == (first.model_id,)
    # Pointed back by hand, the old index is served with the vectors that it has.
    swap(name, f"{name}-000001", [f"{name}-000002"])
    assert read_control(engine, name).live == first.model_id


def test_gc_without_a_live_version_is_refused(engine: Engine, name: str) -> None:
    filled(engine, name, random_documents(3))
    with pytest.raises(PreflightRefused, match="no version is live"):
        plan_collection(engine, name)


def test_drift_sees_new_words_and_shifted_frequencies(engine: Engine, name: str) -> None:
    documents = random_documents(200)
    model = model_of(documents)
    filled(engine, name, documents)
    calm = measure_drift(engine, name, model.encoder, rng=np.random.default_rng(0))
    assert (calm.documents, calm.unknown_share) == (200, 0.0)
    assert calm.idf_shift == pytest.approx(0.0, abs=1e-6)
    assert not calm.retrain
    engine.bulk(name, [WriteOp("index", f"n{k}", {"title": "word1 quasar", "text": "pulsar"}) for k in range(400)])
    engine.refresh(name)
    moved = measure_drift(engine, name, model.encoder, sample=5000, rng=np.random.default_rng(0))
    assert moved.unknown_words == (("pulsar", 400), ("quasar", 400))
    assert moved.documents_with_unknown == pytest.approx(400 / 600)
    assert moved.retrain
    assert "retrain:" in moved.advice


def test_dry_run_writes_nothing(engine: Engine, name: str) -> None:
    documents = random_documents(10)
    filled(engine, name, documents)
    plan = preflight(engine, name, Target(engine, name, model_of(documents)).version())
    assert (plan.documents, plan.reasons) == (10, ())
    assert plan.added_bytes > 0
    assert engine.index_info(name).properties == PLAIN["properties"]
    assert stored(engine, name) == documents


FORMER = {
    "scripts": {"terms_long": [4294967298, 8589934595], "vec_dense": [0.5, 0.25]},
    "no scripts": {"terms_sparse": [{"t1": 0.5, "r1": 0.25}], "vec_unit": [0.6, 0.8]},
}
"""Parts of a version that earlier releases wrote for a route *inside*, with values."""


@pytest.mark.parametrize("kind", FORMER)
@pytest.mark.parametrize("command", ["gc", "uninstall"])
def test_fields_of_the_former_route_inside_are_removed_with_their_version(
    engine: Engine, name: str, kind: str, command: str
) -> None:
    vectors = own_vectors(engine, 2)
    if kind == "no scripts" and engine.capabilities().sparse_terms != "sparse_vector":
        pytest.skip("they were written only to Elasticsearch")
    documents = random_documents(12)
    former, live = (model_of(documents, n_dims=dims) for dims in (2, 3))
    types: dict[str, dict[str, Any]] = {"terms_long": {"type": "long"}, "terms_sparse": {"type": "sparse_vector"}}
    prefix = field_prefix(former.encoder_id)
    values = {f"{prefix}{part}": value for part, value in FORMER[kind].items()}
    fields = {f"{prefix}{part}": types.get(part, vectors) for part in FORMER[kind]}
    engine.create_index(name, {"properties": {**PLAIN["properties"], **fields}})
    engine.bulk(name, [WriteOp("index", key, source) for key, source in documents.items()])
    engine.refresh(name)
    for model in (former, live):
        assert sync(Target(engine, name, model)).written == 12
        promote(engine, name, model.model_id)
    results = engine.bulk(name, [WriteOp("update", key, values) for key in documents])
    assert {result.status for result in results} == {200}
    engine.refresh(name)
    assert [each.with_vector for each in list_versions(engine, name)] == [12, 12]
    plan = plan_collection(engine, name, keep=0, everything=command == "uninstall")
    assert former.encoder_id[:12] in plan.drop and fields.keys() <= set(plan.mapping_entries)
    remove = uninstall if command == "uninstall" else collect
    assert remove(engine, plan, rng=np.random.default_rng(0)).emptied == 12
    assert not any(key.startswith(prefix) for source in stored(engine, name).values() for key in source)


def test_documents_with_external_versions_are_left_alone(engine: Engine, name: str) -> None:
    """A partial update would raise their version, and their owner's next write would be refused as stale."""
    if engine.capabilities().kind not in ("elasticsearch", "opensearch"):
        pytest.skip("an embedded engine does not tell the versions of its documents")
    documents = random_documents(10)
    engine.create_index(name, PLAIN)
    engine.bulk(name, [WriteOp("index", key, source, version=1_700_000_000) for key, source in documents.items()])
    engine.refresh(name)
    with pytest.raises(PreflightRefused, match="external versions"):
        sync(Target(engine, name, model_of(documents)))
    assert stored(engine, name) == documents
    assert engine.index_info(name).properties == PLAIN["properties"]


def dated_index(engine: Engine, name: str) -> Target:
    """Return an index of 20 documents with the dates 2020-01-01 to 2020-01-20 in `modified`, and a model for it."""
    if engine.capabilities().kind not in ("elasticsearch", "opensearch"):
        pytest.skip("the embedded engines know no range queries")
    documents = random_documents(20)
    engine.create_index(name, {"properties": {**PLAIN["properties"], "modified": {"type": "date"}}})
    dated = [{**source, "modified": f"2020-01-{day:02}T00:00:00Z"} for day, source in enumerate(documents.values(), 1)]
    engine.bulk(name, [WriteOp("index", key, source) for key, source in zip(documents, dated, strict=True)])
    engine.refresh(name)
    return Target(engine, name, model_of(documents))


def test_sync_reads_only_what_changed_where_a_date_tells(engine: Engine, name: str) -> None:
    target = dated_index(engine, name)
    # Nothing is known yet, so everything is read.
    assert sync(target, updated_field="modified").written == 20
    # The date is long before now: the largest date seen counts, not the clock of the machine that runs sync.
    engine.bulk(name, [WriteOp("update", "d1", {"text": "word1", "modified": "2020-02-01T00:00:00Z"})])
    engine.bulk(name, [WriteOp("update", "d2", {"text": "word1"})])  # its owner forgot to change the date
    report = sync(target, updated_field="modified")
    assert (report.written, report.documents) == (1, 2)  # d1, and the one with the largest date before
    assert sync(target, updated_field="modified", verify=True).written == 1
    assert check_vectors(engine, name, target.model) == 20


def test_a_wrong_date_in_the_future_hides_no_change(engine: Engine, name: str) -> None:
    target = dated_index(engine, name)
    engine.bulk(name, [WriteOp("update", "d3", {"modified": "2100-01-01T00:00:00Z"})])
    sync(target, updated_field="modified")
    engine.bulk(name, [WriteOp("update", "d1", {"text": "word1", "modified": "2020-02-01T00:00:00Z"})])
    assert sync(target, updated_field="modified").written == 1
    assert check_vectors(engine, name, target.model) == 20


def test_documents_without_a_date_are_read_every_time(engine: Engine, name: str) -> None:
    target = dated_index(engine, name)
    engine.bulk(name, [WriteOp("update", "d4", {"modified": None})])
    sync(target, updated_field="modified")
    engine.bulk(name, [WriteOp("update", "d4", {"text": "word1"})])
    assert sync(target, updated_field="modified").written == 1
    engine.bulk(name, [WriteOp("update", f"d{k}", {"modified": None}) for k in range(20)])
    said: list[str] = []
    sync(target, updated_field="modified", advise=said.append)
    assert f"no document of {name!r} has a past date in 'modified', so every text is read" in said
    assert check_vectors(engine, name, target.model) == 20


@pytest.mark.parametrize(
    ("field", "fault"), [("modifed", "is not in the mapping"), ("title", "has the type 'text'"), ("by", "has the type")]
)
def test_sync_refuses_a_field_that_tells_no_date(engine: Engine, name: str, field: str, fault: str) -> None:
    target = dated_index(engine, name)
    engine.put_properties(name, {"by": {"type": "alias", "path": "tag"}, "at": {"type": "alias", "path": "modified"}})
    with pytest.raises(InputError, match=f"{field}' {fault}.*date fields: at, modified.*or omit --updated-field"):
        sync(target, updated_field=field)
    assert field_name(target.model.encoder_id, "src") not in engine.index_info(name).properties
    assert sync(target, updated_field="at").written == 20


def test_a_document_that_the_engine_refused_is_read_again(
    engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = dated_index(engine, name)
    sync(target, updated_field="modified")
    engine.bulk(name, [WriteOp("update", "d1", {"text": "word1", "modified": "2020-02-01T00:00:00Z"})])
    engine.bulk(name, [WriteOp("update", "d2", {"text": "word2", "modified": "2020-03-01T00:00:00Z"})])
    send = engine.bulk

    def refusing(index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        refused = {op.id: WriteResult(op.id, 400, "document_parsing_exception", "no") for op in ops if op.id == "d1"}
        sent = iter(send(index, kept) if (kept := [op for op in ops if op.id not in refused]) else [])
        return [refused[op.id] if op.id in refused else next(sent) for op in ops]

    with monkeypatch.context() as patch:
        patch.setattr(engine, "bulk", refusing)
        report = sync(target, updated_field="modified")
        assert (report.written, report.rejected) == (1, 1)
    assert sync(target, updated_field="modified").written == 1
    assert check_vectors(engine, name, target.model) == 20
