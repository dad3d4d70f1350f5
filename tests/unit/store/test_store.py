"""The beside store: what goes in comes out, the newest wins, readers keep their state, damage is seen."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.arrays import N_TERM_IDS
from reranker.engines.vectors import QueryVectors
from reranker.errors import ArtifactError, EncoderMismatch, InputError, ShapeMismatch
from reranker.kernels.packing import QUANTISATIONS, Quantisation, quantise_vectors
from reranker.store import MANIFEST, StoreWriter, VectorStore, encode_ids, hash_ids, plan_merge

ENCODER = "ab" * 32
N = 5


def rows_of(weights: Sequence[dict[int, float]]) -> sp.csr_matrix:
    indptr = np.cumsum([0, *(len(row) for row in weights)])
    ids = np.array([i for row in weights for i in sorted(row)], dtype=np.int32)
    data = np.array([row[i] for row in weights for i in sorted(row)], dtype=np.float32)
    return sp.csr_matrix((data, ids, indptr), shape=(len(weights), N_TERM_IDS))


def add(writer: StoreWriter, ids: Sequence[str], values: Sequence[float]) -> None:
    """Add documents whose vector and single weight tell their value."""
    vectors = np.array([[v] * N for v in values], dtype=np.float32).reshape(len(ids), N)
    writer.add(ids, vectors, rows_of([{3: v, 2**30 + 7: 1.0} for v in values]), [f"{int(v):016x}" for v in values])


def values_of(store: VectorStore, ids: Sequence[str]) -> dict[str, float]:
    """Read the values back, and check that vector, words and hash tell the same one."""
    rows = store.rows_of(ids)
    there = rows >= 0
    vectors, terms = store.vectors(rows[there]), store.terms(rows[there])
    values = vectors[:, 0].tolist()
    for place, value in enumerate(values):
        row = terms[place]
        assert vectors[place].tolist() == [value] * N
        assert dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) == {3: value, 2**30 + 7: 1.0}
    assert store.source_hashes(rows[there]) == [f"{int(v):016x}" for v in values]
    return dict(zip(np.array(ids, dtype=object)[there].tolist(), values, strict=True))


def test_documents_come_back_by_id(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a", "b", "ü", "a\0b"], [1, 2, 3, 4])
    store = VectorStore.open(tmp_path, ENCODER, verify=True)
    assert len(store) == 4
    assert values_of(store, ["ü", "a", "a\0b", "missing", "b"]) == {"ü": 3, "a": 1, "a\0b": 4, "b": 2}
    assert store.rows_of(["missing", "a"])[0] == -1
    assert store.rows_of([]).tolist() == []


def test_score_is_the_formula(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, 2) as writer:
        vectors = np.array([[1, 2], [-1, 0.5]], dtype=np.float32)
        writer.add(["x", "y"], vectors, rows_of([{1: 0.5, 4: 0.25}, {9: 1.0}]), ["", ""])
    store = VectorStore.open(tmp_path, ENCODER)
    query = QueryVectors(
        np.array([3, 4], np.float32), np.array([4, 9], np.int32), np.array([2, 8], np.float32), identity=0.5
    )
    # (3, 4).(1, 2) + .5 * 2 * .25 = 11.25 and (3, 4).(-1, .5) + .5 * 8 * 1 = 3
    assert store.score(query, store.rows_of(["y", "x"])).tolist() == [3.0, 11.25]


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_a_quantised_store_gives_back_what_the_encoder_quantised(tmp_path: Path, quantisation: Quantisation) -> None:
    rng = np.random.default_rng(0)
    vectors = quantise_vectors(rng.standard_normal((300, N)).astype(np.float32), quantisation)
    ids = [f"d{i}" for i in range(300)]
    words = rows_of([{int(i): 1.0} for i in range(300)])
    with StoreWriter(tmp_path, ENCODER, N, quantisation=quantisation) as writer:
        for start in range(0, 300, 100):
            part = slice(start, start + 100)
            writer.add(ids[part], vectors[part], words[part], [""] * 100)
            writer.publish()
    store = VectorStore.open(tmp_path, ENCODER)
    rows = store.rows_of(ids)
    np.testing.assert_array_equal(store.vectors(rows), vectors)
    query = QueryVectors(
        rng.standard_normal(N).astype(np.float32), np.array([7], np.int32), np.array([2], np.float32), 1.0
    )
    expected = vectors @ query.vector + 2.0 * (np.arange(300) == 7)
    np.testing.assert_allclose(store.score(query, rows), expected, rtol=1e-5, atol=1e-6)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5)),
        st.tuples(st.just("delete"), st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3)),
        st.tuples(st.just("publish"), st.just([])),
        st.tuples(st.just("crash"), st.just([])),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS)
def test_the_store_is_a_dictionary_that_survives_crashes(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, list[str]]]
) -> None:
    path = tmp_path_factory.mktemp("store")
    writer = StoreWriter(path, ENCODER, N)
    published: dict[str, float] = {}
    expected: dict[str, float] = {}
    readers: list[tuple[VectorStore, dict[str, float]]] = []
    for step, (operation, ids) in enumerate(operations, 1):
        if operation == "add":
            add(writer, ids, [step * 10 + place for place in range(len(ids))])
            expected.update({name: step * 10 + place for place, name in enumerate(ids)})
        elif operation == "delete":
            assert writer.delete(ids) == len(set(ids) & expected.keys())
            expected = {name: value for name, value in expected.items() if name not in ids}
        elif operation == "publish":
            assert writer.publish() == len(expected)
            published = dict(expected)
            readers.append((VectorStore.open(path, ENCODER, verify=True), published))
        else:
            # What a killed process leaves: files no manifest names, and a lock the system frees.
            writer._lock.release()
            writer = StoreWriter(path, ENCODER, N)
            expected = dict(published)
    for store, held in readers:
        assert values_of(store, list("abcdefgh")) == held
        assert len(store) == len(held)
    if readers:
        assert values_of(readers[0][0].refreshed(), list("abcdefgh")) == published
    writer.close()
    shutil.rmtree(path)


def test_colliding_keys_never_give_another_documents_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.store.hash_ids", lambda block: np.zeros(len(block.lengths), np.uint64))
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a", "b", "c", "bb"], [1, 2, 3, 4])
        writer.publish()
        add(writer, ["b"], [5])
        assert writer.delete(["c", "zz"]) == 1
    store = VectorStore.open(tmp_path, ENCODER)
    assert values_of(store, ["x", "bb", "b", "c", "a"]) == {"a": 1, "b": 5, "bb": 4}


@given(st.lists(st.text(st.characters(), max_size=20), max_size=20))
def test_keys_depend_on_the_id_alone(ids: list[str]) -> None:
    together = hash_ids(encode_ids(ids)).tolist()
    assert together == [int(hash_ids(encode_ids([value]))[0]) for value in ids]
    assert len(set(together)) == len(set(ids))


def test_segments_stay_few_and_rows_are_copied_rarely(tmp_path: Path) -> None:
    copied = 0
    sizes: dict[int, int] = {}
    for number in range(1, 1001):
        sizes[number] = 1
        chosen = plan_merge(sizes, sizes)
        if chosen:
            merged = sum(sizes.pop(n) for n in chosen)
            copied += merged
            sizes[number + 10_000] = merged
    assert len(sizes) <= 8
    assert copied / 1000 < 12
    assert plan_merge({1: 1_000_000, 2: 10}, {1: 1_000_000, 2: 10}) == []
    assert plan_merge({1: 1_000_000, 2: 10}, {1: 1_000_000, 2: 4}) == [2]
    assert plan_merge({1: 100}, {1: 49}) == [1]
    assert plan_merge({}, {}) == []


def test_another_encoders_store_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a"], [1])
    with pytest.raises(EncoderMismatch, match="cannot be compared"):
        VectorStore.open(tmp_path, "cd" * 32)
    with pytest.raises(EncoderMismatch, match="another folder"):
        StoreWriter(tmp_path, "cd" * 32, N)
    with pytest.raises(EncoderMismatch):
        StoreWriter(tmp_path, ENCODER, N + 1)
    assert len(VectorStore.open(tmp_path)) == 1


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a"], [1])
        with pytest.raises(ArtifactError, match="another process is writing"):
            StoreWriter(tmp_path, ENCODER, N)
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["b"], [2])
    assert len(VectorStore.open(tmp_path, ENCODER)) == 2


def test_an_error_inside_the_block_publishes_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with StoreWriter(tmp_path, ENCODER, N) as writer:
            add(writer, ["a"], [1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ArtifactError, match="there is no vector store"):
        VectorStore.open(tmp_path, ENCODER)


def test_a_full_disk_leaves_no_lock_and_no_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill() -> None:
        with StoreWriter(tmp_path, ENCODER, N) as writer:
            add(writer, ["a"], [1])
            assert writer._current is not None
            files = writer._current._files
            monkeypatch.setitem(files, "ids.bin", SimpleNamespace(flush=full, close=full))
            full()

    with pytest.raises(OSError, match="No space"):
        fill()
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        assert not list(tmp_path.glob("segment-*"))
        add(writer, ["b"], [2])


def test_nothing_is_published_before_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replaced = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        done.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        fsync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        done.append(f"-> {target.name}")
        replaced(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a", "b"], [1, 2])
        writer.publish()
    assert done.count(f"-> {MANIFEST}") == 1
    published = done.index(f"-> {MANIFEST}")
    parts = [path for folder in (*tmp_path.glob("segment-*"), *tmp_path.glob("index-*")) for path in folder.iterdir()]
    wanted = {str(path.relative_to(tmp_path)) for part in parts for path in (part, part.parent)}
    assert len(wanted) > 4 and wanted <= set(done[:published])
    assert any(Path(path).name.startswith("ids.bin") for path in done[: published - 1])
    assert done[published - 1].startswith(f".{MANIFEST}.") and done[published + 1 :] == ["."]


def test_every_damaged_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with StoreWriter(path, ENCODER, N) as writer:
        add(writer, ["a", "b"], [1, 2])
    for number, file in enumerate(sorted(f for f in path.rglob("*") if f.is_file() and f.name != ".lock")):
        content = file.read_bytes()
        for damage, mode in ((content[:-1], "cut"), (content + b"\0", "longer"), (None, "gone")):
            copy = tmp_path / f"{number}-{mode}"
            shutil.copytree(path, copy)
            target = copy / file.relative_to(path)
            if damage is None:
                target.unlink()
            else:
                target.write_bytes(damage)
            with pytest.raises(ArtifactError):
                VectorStore.open(copy, ENCODER)
        for place in range(0, len(content), max(1, len(content) // 40)):
            file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            with pytest.raises(ArtifactError):
                VectorStore.open(path, ENCODER, verify=True)
        file.write_bytes(content)
    VectorStore.open(path, ENCODER, verify=True)


@pytest.mark.parametrize(
    "change", [{"format_version": 2}, {"dims": 0}, {"dims": 10**9}, {"quantisation": "pickle"}, {"generation": -1}]
)
def test_a_manifest_of_another_kind_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    from reranker.store import StoreManifest, read_store_manifest, write_store_manifest

    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a"], [1])
    write_store_manifest(tmp_path, msgspec.structs.replace(read_store_manifest(tmp_path), **change))
    with pytest.raises(ArtifactError):
        VectorStore.open(tmp_path)
    assert isinstance(change, dict)
    assert StoreManifest.__struct_config__.frozen


def test_a_reader_that_opens_while_a_writer_publishes_gets_a_whole_state(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a"], [1])
        writer.publish()
        old = VectorStore.open(tmp_path, ENCODER)
        stale = old._manifest
        add(writer, ["a"], [2])
        writer.publish()
        with pytest.raises(ArtifactError):  # its files are gone: `open` reads the manifest again in that case
            VectorStore(tmp_path, stale)
        assert values_of(old, ["a"]) == {"a": 1}
        newest = old.refreshed()
        assert values_of(newest, ["a"]) == {"a": 2}
        assert newest.refreshed() is newest, "nothing was published since"


@pytest.mark.parametrize(
    ("ids", "vectors", "hashes", "error"),
    [
        (["a"], np.zeros((1, N + 1), np.float32), [""], ShapeMismatch),
        (["a", "b"], np.zeros((1, N), np.float32), [""], ShapeMismatch),
        (["a"], np.zeros((1, N), np.float32), ["", ""], ShapeMismatch),
        ([""], np.zeros((1, N), np.float32), [""], InputError),
        (["x" * 513], np.zeros((1, N), np.float32), [""], InputError),
        (["a"], np.full((1, N), np.nan, np.float32), [""], InputError),
        (["a"], np.zeros((1, N), np.float32), ["not a hash"], InputError),
        (["a"], np.zeros((1, N), np.float32), ["f" * 17], InputError),
    ],
)
def test_bad_documents_are_refused(
    tmp_path: Path, ids: list[str], vectors: np.ndarray, hashes: list[str], error: type[Exception]
) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["good"], [1])
        with pytest.raises(error):
            writer.add(ids, vectors, rows_of([{1: 1.0}] * len(vectors)), hashes)
    assert values_of(VectorStore.open(tmp_path, ENCODER), ["good"]) == {"good": 1}


def test_a_row_of_no_segment_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a"], [1])
    store = VectorStore.open(tmp_path, ENCODER)
    with pytest.raises(InputError, match="not of this store"):
        store.vectors(np.array([-1]))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="says what Linux keeps of a map")
def test_a_reader_asks_for_no_pages_around_those_it_reads(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a", "b"], [1, 2])
    store = VectorStore.open(tmp_path)
    flags, name = dict[str, list[str]](), ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmFlags:"):
            flags[name] = line.split()[1:]
        elif "-" in line.split(" ")[0]:
            name = line[line.find("/") :]
    mapped = {name: of for name, of in flags.items() if str(tmp_path) in name}
    assert len(store) == 2 and len(mapped) == 9
    assert all("rr" in of for of in mapped.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MemTotal: 9 kB\nMemAvailable:   1000 kB\n", (mmap.MADV_RANDOM, mmap.MADV_WILLNEED)),
        ("MemTotal: 9 kB\nMemAvailable:   0 kB\n", (mmap.MADV_RANDOM,)),
        ("MemTotal: 9 kB\n", (mmap.MADV_RANDOM,)),
        (None, (mmap.MADV_RANDOM,)),
    ],
)
def test_a_store_is_read_ahead_where_memory_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, expected: tuple[int, ...]
) -> None:
    advice: list[int] = []

    class Map(mmap.mmap):
        def madvise(self, option: int, *span: int) -> None:
            advice.append(option)
            super().madvise(option, *span)

    with StoreWriter(tmp_path / "store", ENCODER, N) as writer:
        add(writer, ["a", "b"], [1, 2])
    if text is not None:
        (tmp_path / "meminfo").write_text(text, encoding="ascii")
    monkeypatch.setattr("reranker.store.MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr("reranker.store.mmap.mmap", Map)
    assert values_of(VectorStore.open(tmp_path / "store"), ["b"]) == {"b": 2}
    assert advice == list(expected) * 9


def test_a_system_that_takes_no_advice_reads_the_store_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Map(mmap.mmap):
        def madvise(self, option: int, *span: int) -> None:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a", "b"], [1, 2])
    monkeypatch.setattr("reranker.store.mmap.mmap", Map)
    assert values_of(VectorStore.open(tmp_path), ["a", "b"]) == {"a": 1, "b": 2}
