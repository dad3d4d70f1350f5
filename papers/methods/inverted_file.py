"""The inverted file (spec R06, R07) and what is searched by it: vector space and Boolean retrieval (B17, B18)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.methods.rows import ProductScorer, all_products, binary, check_widths, pair_products
from reranker.arrays import Float32, Int32, Int64
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.text.rows import row_of

Pairs = npt.NDArray[np.void]

PAIR = np.dtype([("word", np.int32), ("document", np.int32), ("value", np.float32)])
"""One entry (word, document, how often or how heavy) as it stands in a block's file."""


@dataclass(frozen=True, eq=False)
class InvertedFile:
    """The postings of every word.

    Raises
    ------
    ShapeMismatch
        If the arrays do not fit each other.

    Source: COURSE, indexing; spec 1.8.
    """

    starts: Int64
    """(n_words + 1,) int64: The postings of word w are entries ``starts[w]`` to ``starts[w + 1] - 1``."""
    documents: Int32
    """(n_entries,) int32: Document numbers, ascending within a word."""
    values: Float32
    """(n_entries,) float32: Count or weight of the word in the document."""
    n_documents: int
    """Documents in the collection, also those without words."""

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
    def document_frequency(self) -> Int64:
        """Documents that hold each word, (n_words,) int64."""
        return np.diff(self.starts)

    def postings(self, word: int) -> tuple[Int32, Float32]:
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


def invert(rows: sp.csr_matrix) -> InvertedFile:
    """Return the inverted file of documents' rows, (n_documents, n_words); stored zeros are left out.

    Source: spec 1.9: (word, document) pairs sorted by word, then by document.
    """
    pairs = sorted_pairs(rows.indices, row_of(rows), rows.data)
    pairs = pairs[pairs["value"] != 0]
    starts = np.searchsorted(pairs["word"], np.arange(rows.shape[1] + 1)).astype(np.int64)
    documents, values = (np.ascontiguousarray(pairs[name]) for name in ("document", "value"))
    return InvertedFile(starts, documents, values, rows.shape[0])


def sorted_pairs(words: npt.ArrayLike, documents: npt.ArrayLike, values: npt.ArrayLike) -> Pairs:
    """Return the entries sorted by word, then document; entries of the same word and document are added up.

    Raises
    ------
    ShapeMismatch
        If the three do not have the same length.
    """
    sizes = [np.size(part) for part in (words, documents, values)]
    if len(set(sizes)) > 1:
        raise ShapeMismatch("{:,} words, {:,} documents and {:,} values: give one of each an entry".format(*sizes))
    pairs = np.empty(sizes[0], PAIR)
    pairs["word"], pairs["document"], pairs["value"] = words, documents, values
    return _merged([pairs])


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
    block_entries : int
        Entries in memory at once, at least 1. Only one word with more entries than that takes more.

    Raises
    ------
    ConfigError
        If ``block_entries`` is below 1.
    InputError
        For a word or document number outside of its range.

    Source: COURSE, BSBI; spec 1.9.
    """
    if block_entries < 1:
        raise ConfigError(f"block_entries is {block_entries}: a block holds at least 1 entry")
    paths: list[Path] = []
    stream = iter(entries)
    while len(block := np.array(list(islice(stream, block_entries)), PAIR)):
        for name, limit in (("word", n_words), ("document", n_documents)):
            wrong = block[name][(block[name] < 0) | (block[name] >= limit)]
            if len(wrong):
                raise InputError(
                    f"{name} number {wrong[0]} is outside 0 to {limit - 1}: number them from 0 without gaps"
                )
        paths.append(folder / f"block-{len(paths):06d}.npy")
        np.save(paths[-1], _merged([block]))
    merged = merge_blocks(paths, folder / "postings.bin", n_words, n_documents, block_entries)
    for path in paths:
        path.unlink()
    return merged


def merge_blocks(
    paths: Sequence[Path], target: Path, n_words: int, n_documents: int, block_entries: int
) -> InvertedFile:
    """Return one inverted file from sorted blocks, reading about ``block_entries`` entries of them at a time.

    The blocks are ``.npy`` files of `PAIR` entries, each sorted by word, then document; ``target`` is written with the
    merged entries, and mapped by the result.
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


def _word_ranges(counts: Int64, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of consecutive words with at most ``limit`` entries together, or of one word alone."""
    before = np.concatenate(([0], np.cumsum(counts)))
    first = 0
    while first < len(counts):
        last = max(first + 1, int(np.searchsorted(before, before[first] + limit, side="right")) - 1)
        yield first, last
        first = last


def score_by_postings(q_rows: sp.csr_matrix, file: InvertedFile) -> Float32:
    """Return q . d of every query with every document of the file, (n_queries, n_documents) float32.

    Term at a time: the postings of each query word add q_w * d_w to the documents they name, so only documents that
    share a word with the query are ever touched. Sums are kept in float64.

    With unit rows on both sides it is the cosine.

    Raises
    ------
    ShapeMismatch
        If the file has another number of words.
    """
    if q_rows.shape[1] != file.n_words:
        raise ShapeMismatch(
            f"queries are over {q_rows.shape[1]:,} words and the file over {file.n_words:,}: use one vocabulary"
        )
    out = np.zeros((q_rows.shape[0], file.n_documents), np.float32)
    for query in range(q_rows.shape[0]):
        total = np.zeros(file.n_documents)
        span = slice(q_rows.indptr[query], q_rows.indptr[query + 1])
        for word, weight in zip(q_rows.indices[span], q_rows.data[span], strict=True):
            documents, values = file.postings(int(word))
            total[documents] += np.float64(weight) * values  # a document stands once in a word's postings
        out[query] = total
    return out


@dataclass(frozen=True)
class VectorSpace(ProductScorer):
    """Scores q . d of unit rows: M01 = B01 = B18, computed over an inverted file of the documents.

    Source: spec B18 (COURSE's weights, see `tfidf_rows`).
    """

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return q . d of every query with every document, (n_queries, n_documents) float32."""
        check_widths(q_rows, d_rows)
        return score_by_postings(q_rows, invert(d_rows))

    def sides(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return both in float64."""
        return q_rows.astype(np.float64), d_rows.astype(np.float64)


@dataclass(frozen=True, slots=True)
class BooleanScorer:
    """Scores texts as Boolean queries: 1 if the document holds all (AND) or any (OR) of the query's words, else 0.

    A query without words has no condition: all documents satisfy AND, none satisfies OR.

    Raises
    ------
    ConfigError
        For another operator.

    The course has documents match that satisfy some conjunct of the query's disjunctive form: those that score 1 by AND
    for the words of one of them.

    Source: spec B17.
    """

    operator: Literal["AND", "OR"] = "AND"

    def __post_init__(self) -> None:
        if self.operator not in ("AND", "OR"):
            raise ConfigError(f"operator {self.operator!r} is not known: choose AND or OR")

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return 1 or 0 for every query with every document, (n_queries, n_documents) float32."""
        check_widths(q_rows, d_rows)
        words = binary(q_rows)
        needed = np.diff(words.indptr)[:, None] if self.operator == "AND" else 1
        return np.asarray(all_products(words, binary(d_rows)) >= needed, dtype=np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return 1 or 0 for query r with document r, (n,) float32."""
        check_widths(q_rows, d_rows)
        words = binary(q_rows)
        needed = np.diff(words.indptr) if self.operator == "AND" else 1
        return np.asarray(pair_products(words, binary(d_rows)) >= needed, dtype=np.float32)
