"""The inverted file, in memory and in blocks, on the course's own example."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.methods.inverted_file import InvertedFile, build_in_blocks, invert, merge_blocks, sorted_pairs
from reranker.errors import ConfigError, InputError, ShapeMismatch

# COURSE, BSBI: three blocks of (term, document), and what they merge to.
BLOCKS = [[(1, 1), (3, 10), (5, 5)], [(2, 4), (1, 3), (2, 2)], [(2, 1), (4, 8), (1, 7)]]
MERGED = {1: [1, 3, 7], 2: [1, 2, 4], 3: [10], 4: [8], 5: [5]}


def listing(file: InvertedFile) -> dict[int, list[int]]:
    return {word: file.postings(word)[0].tolist() for word in range(file.n_words) if len(file.postings(word)[0])}


def test_R07_blocks_of_the_course_merge_to_its_postings(tmp_path: Path) -> None:
    paths = []
    for number, block in enumerate(BLOCKS):
        paths.append(tmp_path / f"{number}.npy")
        np.save(paths[-1], sorted_pairs([t for t, _ in block], [d for _, d in block], [1.0] * len(block)))
    file = merge_blocks(paths, tmp_path / "out.bin", n_words=6, n_documents=11, block_entries=3)
    assert listing(file) == MERGED
    assert file.document_frequency.tolist() == [0, 3, 3, 1, 1, 1]


@pytest.mark.parametrize("block_entries", [1, 2, 3, 4, 100])
def test_R07_the_size_of_blocks_changes_nothing(tmp_path: Path, block_entries: int) -> None:
    entries = [(t, d, 1.0) for block in BLOCKS for t, d in block]
    file = build_in_blocks(entries, tmp_path, n_words=6, n_documents=11, block_entries=block_entries)
    assert listing(file) == MERGED
    assert [path.name for path in tmp_path.iterdir()] == ["postings.bin"]


def test_R06_inverting_rows_lists_documents_of_each_word() -> None:
    rows = sp.csr_matrix(np.array([[2, 0, 1], [0, 0, 3], [4, 0, 0]], np.float32))
    file = invert(rows)
    assert [part.tolist() for part in file.postings(0)] == [[0, 2], [2.0, 4.0]]
    assert [part.tolist() for part in file.postings(1)] == [[], []]
    assert [part.tolist() for part in file.postings(2)] == [[0, 1], [1.0, 3.0]]


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_R07_blocks_give_what_memory_gives(seed: int, block_entries: int) -> None:
    import tempfile

    rng = np.random.default_rng(seed)
    dense = rng.random((12, 9), dtype=np.float32) * (rng.random((12, 9)) < 0.3)
    rows = sp.csr_matrix(dense)
    coordinates = rows.tocoo()
    entries = list(zip(coordinates.col.tolist(), coordinates.row.tolist(), coordinates.data.tolist(), strict=True))
    entries = [entries[place] for place in rng.permutation(len(entries))]
    with tempfile.TemporaryDirectory() as folder:
        file = build_in_blocks(entries, Path(folder), n_words=9, n_documents=12, block_entries=block_entries)
        for left, right in ((file.starts, invert(rows).starts), (file.documents, invert(rows).documents)):
            np.testing.assert_array_equal(left, right)
        np.testing.assert_array_equal(file.values, invert(rows).values)


def test_the_same_entry_in_several_blocks_is_added_up(tmp_path: Path) -> None:
    entries = [(0, 1, 1.0), (1, 0, 1.0), (0, 1, 2.0), (0, 1, 4.0)]
    file = build_in_blocks(entries, tmp_path, n_words=2, n_documents=2, block_entries=1)
    assert [part.tolist() for part in file.postings(0)] == [[1], [7.0]]


def test_nothing_makes_an_empty_file(tmp_path: Path) -> None:
    file = build_in_blocks([], tmp_path, n_words=3, n_documents=0)
    assert file.document_frequency.tolist() == [0, 0, 0]


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="word number 3 is outside 0 to 2"):
        build_in_blocks([(3, 0, 1.0)], tmp_path, n_words=3, n_documents=1)
    with pytest.raises(InputError, match="document number -1"):
        build_in_blocks([(0, -1, 1.0)], tmp_path, n_words=3, n_documents=1)
    with pytest.raises(ConfigError, match="block_entries is 0: it must be at least 1"):
        build_in_blocks([], tmp_path, n_words=3, n_documents=1, block_entries=0)
    file = invert(sp.csr_matrix(np.zeros((2, 3), np.float32)))
    with pytest.raises(InputError, match="word number 3"):
        file.postings(3)
    with pytest.raises(ShapeMismatch, match="one of each"):
        sorted_pairs([1], [2, 3], [1.0])
    with pytest.raises(ShapeMismatch, match="as many entries"):
        InvertedFile(np.array([0, 2]), np.zeros(1, np.int32), np.zeros(1, np.float32), 3)
