"""The local store: what goes in comes out, the newest wins, readers keep their state, a kill loses no published one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import lmdb
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.arrays import N_TERM_IDS
from reranker.engines.vectors import QueryVectors
from reranker.errors import ArtifactError, EncoderMismatch, InputError, ShapeMismatch
from reranker.kernels.packing import QUANTISATIONS, Quantisation, quantise_vectors
from reranker.records import MAX_ID_BYTES
from reranker.rerank.candidates import LocalStore
from reranker.store import DATA, StoreWriter, VectorStore

ENCODER = "ab" * 32
N = 5
ROOT = Path(__file__).parents[3]


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
    found = store.get(ids)
    values = found.vectors[:, 0].tolist()
    for place, value in enumerate(values):
        row = found.terms[place]
        assert found.vectors[place].tolist() == [value] * N
        assert dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) == {3: value, 2**30 + 7: 1.0}
    assert found.source_hashes == [f"{int(v):016x}" for v in values]
    return dict(zip([ids[place] for place in found.places.tolist()], values, strict=True))


def test_documents_come_back_by_id(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a", "b", "ü", "a\0b", "\ud800"], [1, 2, 3, 4, 5])
    store = VectorStore.open(tmp_path, ENCODER)
    assert len(store) == 5
    asked = ["ü", "a", "a\0b", "missing", "b", "", "\ud800", "a"]
    assert values_of(store, asked) == {"ü": 3, "a": 1, "a\0b": 4, "b": 2, "\ud800": 5}
    found = store.get(asked)
    assert found.places.tolist() == [0, 1, 2, 4, 6, 7]
    assert store.get([]).vectors.shape == store.get(["missing"]).vectors.shape == (0, N)


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f600"])
def test_ids_of_every_length_that_an_engine_takes(tmp_path: Path, letter: str) -> None:
    width = len(letter.encode())
    ids = [letter * (n // width) + "y" * (n % width) for n in (1, 500, 510, 511, MAX_ID_BYTES)]
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ids, range(1, 6))
        assert writer.delete([ids[1], ids[-1][:-1] + "z"]) == 1
    store = VectorStore.open(tmp_path, ENCODER)
    assert values_of(store, ids) == {ids[place]: place + 1 for place in (0, 2, 3, 4)} and len(store) == 4
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ids[-1:], [9])
        assert writer.publish() == 4
    assert values_of(store.refreshed(), ids[-1:]) == {ids[-1]: 9}


def test_score_is_the_formula(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, 2) as writer:
        vectors = np.array([[1, 2], [-1, 0.5]], dtype=np.float32)
        writer.add(["x", "y"], vectors, rows_of([{1: 0.5, 4: 0.25}, {9: 1.0}]), ["", ""])
    store = VectorStore.open(tmp_path, ENCODER)
    query = QueryVectors(
        np.array([3, 4], np.float32), np.array([4, 9], np.int32), np.array([2, 8], np.float32), identity=0.5
    )
    # (3, 4).(1, 2) + .5 * 2 * .25 = 11.25 and (3, 4).(-1, .5) + .5 * 8 * 1 = 3
    scores = LocalStore(store).vectors_of(["y", "nobody", "x"]).score(query)
    assert scores[[0, 2]].tolist() == [3.0, 11.25] and np.isnan(scores[1])


@pytest.mark.parametrize("dims", [1, 2, 3, 7])
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_a_quantised_store_gives_back_what_the_encoder_quantised(
    tmp_path: Path, quantisation: Quantisation, dims: int
) -> None:
    rng = np.random.default_rng(0)
    vectors = quantise_vectors(rng.standard_normal((300, dims)).astype(np.float32), quantisation)
    ids = [f"d{i}" for i in range(300)]
    words = rows_of([{j: float(j + i) for j in range(i % 4)} for i in range(300)])
    hashes = [f"{int(value):016x}" for value in rng.integers(0, 2**64, 300, dtype=np.uint64)]
    with StoreWriter(tmp_path, ENCODER, dims, quantisation=quantisation) as writer:
        for start in range(0, 300, 100):
            part = slice(start, start + 100)
            writer.add(ids[part], vectors[part], words[part], hashes[part])
            writer.publish()
    order = rng.permutation(300).tolist()
    found = VectorStore.open(tmp_path, ENCODER).get([ids[place] for place in order])
    np.testing.assert_array_equal(found.vectors, vectors[order])
    np.testing.assert_array_equal(found.terms.indptr, words[order].indptr)
    np.testing.assert_array_equal(found.terms.indices, words[order].indices)
    np.testing.assert_array_equal(found.terms.data, words[order].data)
    assert found.source_hashes == [hashes[place] for place in order]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5)),
        st.tuples(st.just("delete"), st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3)),
        st.tuples(st.just("publish"), st.just([])),
        st.tuples(st.just("abandon"), st.just([])),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(OPERATIONS)
def test_the_store_is_a_dictionary_of_published_states(
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
            readers.append((VectorStore.open(path, ENCODER), published))
        else:
            writer.close()
            writer = StoreWriter(path, ENCODER, N)
            expected = dict(published)
    for store, held in readers:
        assert values_of(store, list("abcdefgh")) == held
        assert len(store) == len(held)
    if readers:
        assert values_of(readers[0][0].refreshed(), list("abcdefgh")) == published
    writer.close()
    shutil.rmtree(path)


WRITER = """
import sys
from reranker.store import StoreWriter
from tests.unit.store.test_store import ENCODER, N, add
import reranker.store
reranker.store.UNPUBLISHED_BYTES = 10_000
writer = StoreWriter(sys.argv[1], ENCODER, N)
for number in range(int(sys.argv[2]), 10**9):
    for part in range(5):
        add(writer, [f"d{part}-{place}" for place in range(100)], [number] * 100)
    writer.delete([f"only {number - 1}"])
    add(writer, [f"only {number}"], [number])
    writer.publish()
    print(number, flush=True)
"""


@pytest.mark.live
def test_a_killed_writer_leaves_the_state_published_last(tmp_path: Path) -> None:
    ids, number, rng = [f"d{part}-{place}" for part in range(5) for place in range(100)], 1, random.Random(3)
    for _ in range(10):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "store"), str(number)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split()
        process.wait()
        store = VectorStore.open(tmp_path / "store", ENCODER)
        values = set(values_of(store, ids).values())
        assert len(values) == 1 and len(store) == 501, "a part of a state is visible"
        last = int(values.pop())
        assert last >= int(said[-1] if said else number)
        assert values_of(store, [f"only {last}", f"only {last - 1}"]) == {f"only {last}": last}
        number = last + 1


@pytest.mark.live
def test_a_writer_that_is_killed_before_its_first_publish_leaves_no_store(tmp_path: Path) -> None:
    code = WRITER.replace("    writer.publish()\n    print", "    print")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), "1"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    assert (tmp_path / DATA).stat().st_size > 20_000, "documents were written"
    with pytest.raises(ArtifactError, match="not published"):
        VectorStore.open(tmp_path)
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a"], [1])
    assert len(VectorStore.open(tmp_path)) == 1


def test_a_writer_that_was_killed_before_it_wrote_a_byte_is_followed_by_another(tmp_path: Path) -> None:
    (tmp_path / DATA).touch()
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a"], [1])
    assert values_of(VectorStore.open(tmp_path), ["a"]) == {"a": 1}


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


def test_a_full_disk_or_a_full_map_leaves_the_published_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.store.MAP_BYTES", 200_000)
    ids = [f"d{place}" for place in range(100)]
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ids, [1] * 100)

    def fill() -> None:
        with StoreWriter(tmp_path, ENCODER, N) as writer:
            add(writer, ids, [2] * 100)
            add(writer, [f"more{place}" for place in range(10_000)], [2] * 10_000)

    with pytest.raises(ArtifactError, match="largest size of 200000 bytes"):
        fill()
    assert set(values_of(VectorStore.open(tmp_path), ids).values()) == {1}
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ids, [3] * 100)
    assert set(values_of(VectorStore.open(tmp_path), ids).values()) == {3}


def test_readers_beside_a_writer_keep_their_state(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a"], [1])
        writer.publish()
        old = VectorStore.open(tmp_path, ENCODER)
        assert old.refreshed() is old, "nothing was published since"
        add(writer, ["a"], [2])
        assert old.refreshed() is old, "nothing was published since"
        writer.publish()
        assert writer.delete(["nobody"]) == 0 and writer.publish() == 1
        assert values_of(old, ["a"]) == {"a": 1}
        newest = old.refreshed()
        assert values_of(newest, ["a"]) == {"a": 2} and newest.state.generation == 2
        assert newest.refreshed() is newest, "nothing was published since"


def test_many_threads_read_while_states_are_published(tmp_path: Path) -> None:
    ids, wrong, done = [f"d{place}" for place in range(50)], list[object](), threading.Event()
    writer = StoreWriter(tmp_path, ENCODER, N)
    add(writer, ids, [1] * 50)
    writer.publish()
    shared = VectorStore.open(tmp_path, ENCODER)

    def read() -> None:
        while not done.is_set():
            for store, allowed in ((shared, {1}), (VectorStore.open(tmp_path), None)):
                values = set(values_of(store, ids).values())
                if len(values) != 1 or (allowed and values != allowed):
                    wrong.append(values)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(2, 60):
        add(writer, ids, [number] * 50)
        writer.publish()
    done.set()
    for thread in threads:
        thread.join()
    writer.close()
    assert not wrong


def test_a_store_that_is_replaced_by_renaming_is_seen_by_refreshed_alone(tmp_path: Path) -> None:
    for name, value in (("store", 1), ("next", 2)):
        with StoreWriter(tmp_path / name, ENCODER, N) as writer:
            add(writer, ["a"], [value])
    store = VectorStore.open(tmp_path / "store", ENCODER)
    (tmp_path / "store").rename(tmp_path / "old")
    assert values_of(store, ["a"]) == {"a": 1}
    with pytest.raises(ArtifactError, match="no vector store"):
        store.refreshed()
    (tmp_path / "next").rename(tmp_path / "store")
    newest = store.refreshed()
    assert values_of(newest, ["a"]) == {"a": 2} and newest.state.generation == store.state.generation
    shutil.rmtree(tmp_path / "old")
    assert values_of(store, ["a"]) == {"a": 1}, "an open reader keeps its file"
    with StoreWriter(tmp_path / "store", ENCODER, N) as writer:
        add(writer, ["b"], [3])
    assert values_of(newest, ["a", "b"]) == {"a": 2}


def test_a_data_file_without_its_lock_file_is_refused_while_the_old_one_is_read(tmp_path: Path) -> None:
    for name in ("store", "next"):
        with StoreWriter(tmp_path / name, ENCODER, N) as writer:
            add(writer, ["a"], [1])
    del writer  # with its map of the file
    store = VectorStore.open(tmp_path / "store", ENCODER)
    (tmp_path / "next" / DATA).rename(tmp_path / "store" / DATA)
    with pytest.raises(ArtifactError, match="rename the whole folder"):
        store.refreshed()
    assert values_of(store, ["a"]) == {"a": 1}


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


def test_a_large_first_build_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.store.UNPUBLISHED_BYTES", 1000)
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        for start in range(0, 1000, 50):
            add(writer, [f"d{place}" for place in range(start, start + 50)], range(start, start + 50))
        assert (tmp_path / DATA).stat().st_size > 50_000
        with pytest.raises(ArtifactError, match="not published"):
            VectorStore.open(tmp_path)
    assert values_of(VectorStore.open(tmp_path), ["d0", "d999"]) == {"d0": 0, "d999": 999}


def test_only_the_pages_in_use_are_on_the_disk(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, ENCODER, N) as writer:
        add(writer, ["a"], [1])
    assert (tmp_path / DATA).stat().st_size < 50_000
    assert lmdb.version()[0] == 0, "the format of LMDB 0.9, whose start `reranker.store` checks"
