"""The inverted file: for each word the documents that hold it, built in memory or block by block (spec R06, R07)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import ConfigError, InputError, ShapeMismatch

Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]
Pairs = npt.NDArray[np.void]

PAIR = np.dtype([("word", np.int32), ("document", np.int32), ("value", np.float32)])
"""One entry (word, document, how often or how heavy) as it stands in a block's file."""


@dataclass(frozen=True, eq=False)
class InvertedFile:
    """The postings of every word.

    Parameters
    ----------
    starts : (n_words + 1,) int64
        The postings of word w are entries ``starts[w]`` to ``starts[w + 1] - 1``.
    documents : (n_entries,) int32
        Document numbers, ascending within a word.
    values : (n_entries,) float32
        Count or weight of the word in the document.
    n_documents : int
        Documents in the collection, also those without words.

    Raises
    ------
    ShapeMismatch
        If the arrays do not fit each other.

    Source
    ------
    COURSE, indexing; spec 1.8.
    """

    starts: Offsets
    documents: Ids
    values: Values
    n_documents: int

    def __post_init__(self) -> None:
        if len(self.starts) < 1 or not len(self.documents) == len(self.values) == int(self.starts[-1]):
            raise ShapeMismatch(
                f"{len(self.documents):,} documents and {len(self.values):,} values: both must have as many entries "
                f"as the last start says"
            )

    @property
    def n_words(self) -> int:
        """Number of words, also those of no document."""
        return len(self.starts) - 1

    @property
    def document_frequency(self) -> Offsets:
        """Documents that hold each word, (n_words,) int64."""
        return np.diff(self.starts)

    def postings(self, word: int) -> tuple[Ids, Values]:
        """Return the documents that hold a word, ascending, and their values.

        Raises
        ------
        InputError
            For a word number outside the file.
        """
        if not 0 <= word < self.n_words:
            raise InputError(f"word number {word} is not in the file: it has words 0 to {self.n_words - 1}")
        span = slice(int(self.starts[word]), int(self.starts[word + 1]))
        return self.documents[span], self.values[span]

    def rows(self) -> sp.csr_matrix:
        """Return the documents' rows again, (n_documents, n_words) float32."""
        by_word = sp.csr_matrix((self.values, self.documents, self.starts), shape=(self.n_words, self.n_documents))
        rows = by_word.T.tocsr()
        rows.sort_indices()
        return rows


def invert(rows: sp.csr_matrix) -> InvertedFile:
    """Return the inverted file of documents' rows: (word, document) pairs sorted by word, then by document.

    Parameters
    ----------
    rows : csr_matrix, (n_documents, n_words)
        Counts or weights; stored zeros are left out.

    Source: spec 1.9.
    """
    documents = np.repeat(np.arange(rows.shape[0], dtype=np.int32), np.diff(rows.indptr))
    pairs = sorted_pairs(rows.indices, documents, rows.data)
    pairs = pairs[pairs["value"] != 0]
    return grouped(pairs, rows.shape[1], rows.shape[0])


def sorted_pairs(words: Sequence[int] | Ids, documents: Sequence[int] | Ids, values: Sequence[float] | Values) -> Pairs:
    """Return the entries sorted by word, then document; entries of the same word and document are added up.

    Raises
    ------
    ShapeMismatch
        If the three do not have the same length.
    """
    if not len(words) == len(documents) == len(values):
        raise ShapeMismatch(
            f"{len(words):,} words, {len(documents):,} documents and {len(values):,} values: give one of each an entry"
        )
    pairs = np.empty(len(words), PAIR)
    pairs["word"], pairs["document"], pairs["value"] = words, documents, values
    return _merged([pairs])


def grouped(pairs: Pairs, n_words: int, n_documents: int) -> InvertedFile:
    """Return the inverted file of entries as `sorted_pairs` returns them."""
    starts = np.searchsorted(pairs["word"], np.arange(n_words + 1)).astype(np.int64)
    documents, values = (np.ascontiguousarray(pairs[name]) for name in ("document", "value"))
    return InvertedFile(starts, documents, values, n_documents)


def build_in_blocks(
    entries: Iterable[tuple[int, int, float]],
    folder: Path,
    *,
    n_words: int,
    n_documents: int,
    block_entries: int = 1_000_000,
) -> InvertedFile:
    """Return the inverted file of a stream of entries too long for memory (blocked sort-based indexing).

    Blocks of at most ``block_entries`` entries are sorted, O(T log T) for T entries, and written to ``folder``; then
    all blocks are merged, a range of words at a time, into one file, which the result maps into memory.

    Parameters
    ----------
    entries : iterable of (word, document, value)
        In any order; entries of the same word and document are added up.
    folder : Path
        An existing folder with room for the entries twice, 12 bytes each. Blocks are removed, the result stays.
    n_words, n_documents : int
        Word and document numbers lie below.
    block_entries : int
        Entries in memory at once, at least 1. Only one word with more entries than that takes more.

    Raises
    ------
    ConfigError
        If ``block_entries`` is below 1.
    InputError
        For a word or document number outside of its range.

    Source
    ------
    COURSE, BSBI; spec 1.9.
    """
    if block_entries < 1:
        raise ConfigError(f"block_entries is {block_entries}: a block holds at least 1 entry")
    paths = []
    for number, block in enumerate(_blocks(entries, block_entries)):
        _check_range(block, n_words, n_documents)
        paths.append(folder / f"block-{number:06d}.npy")
        np.save(paths[-1], _merged([block]))
    merged = merge_blocks(paths, folder / "postings.bin", n_words, n_documents, block_entries)
    for path in paths:
        path.unlink()
    return merged


def merge_blocks(
    paths: Sequence[Path], target: Path, n_words: int, n_documents: int, block_entries: int
) -> InvertedFile:
    """Return one inverted file from sorted blocks, reading about ``block_entries`` entries of them at a time.

    Parameters
    ----------
    paths : sequence of Path
        ``.npy`` files of `PAIR` entries, each sorted by word, then document.
    target : Path
        Written with the merged entries, and mapped by the result.
    """
    blocks = [np.load(path, mmap_mode="r") for path in paths]
    counts = np.zeros(n_words, np.int64)
    # Where each word starts in each block: the words are sorted, so a search finds them without reading the block.
    places = [np.searchsorted(block["word"], np.arange(n_words + 1)) for block in blocks]
    for place in places:
        counts += np.diff(place)
    df = np.zeros(n_words, np.int64)
    with target.open("wb") as out:
        for first, last in _word_ranges(counts, block_entries):
            parts = [block[place[first] : place[last]] for block, place in zip(blocks, places, strict=True)]
            merged = _merged(parts)
            df += np.bincount(merged["word"], minlength=n_words)
            merged.tofile(out)
    starts = np.concatenate(([0], np.cumsum(df)))
    pairs = np.memmap(target, PAIR, mode="r") if starts[-1] else np.empty(0, PAIR)
    return InvertedFile(starts, pairs["document"], pairs["value"], n_documents)


def _blocks(entries: Iterable[tuple[int, int, float]], size: int) -> Iterator[Pairs]:
    """Yield the entries in blocks of at most ``size``."""
    block: list[tuple[int, int, float]] = []
    for entry in entries:
        block.append(entry)
        if len(block) == size:
            yield np.array(block, PAIR)
            block = []
    if block:
        yield np.array(block, PAIR)


def _merged(parts: Sequence[Pairs]) -> Pairs:
    """Return the entries of all parts, sorted by word and document, equal ones added up."""
    pairs = np.concatenate([np.empty(0, PAIR), *parts])
    pairs = pairs[np.lexsort((pairs["document"], pairs["word"]))]
    if not len(pairs):
        return pairs
    changed = (np.diff(pairs["word"]) != 0) | (np.diff(pairs["document"]) != 0)
    first = np.concatenate(([0], np.flatnonzero(changed) + 1))
    out = pairs[first].copy()
    out["value"] = np.add.reduceat(pairs["value"], first)
    return out


def _word_ranges(counts: Offsets, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of consecutive words with at most ``limit`` entries together, or of one word alone."""
    before = np.concatenate(([0], np.cumsum(counts)))
    first = 0
    while first < len(counts):
        last = max(first + 1, int(np.searchsorted(before, before[first] + limit, side="right")) - 1)
        yield first, last
        first = last


def _check_range(block: Pairs, n_words: int, n_documents: int) -> None:
    """Refuse numbers outside of the vocabulary or the collection."""
    for name, limit in (("word", n_words), ("document", n_documents)):
        wrong = block[name][(block[name] < 0) | (block[name] >= limit)]
        if len(wrong):
            raise InputError(f"{name} number {wrong[0]} is outside 0 to {limit - 1}: number them from 0 without gaps")
