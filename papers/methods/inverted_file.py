"""The inverted file (spec R06, R07), and retrieval with it: vector space and Boolean (B17, B18)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.methods.rows import ProductScorer, all_products, binary, check_counts, check_widths, pair_products
from reranker.arrays import Float32, Float64, Int32, Int64
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.text.rows import row_of

Pairs = npt.NDArray[np.void]

PAIR = np.dtype([("word", np.int32), ("document", np.int32), ("value", np.float32)])
"""One entry of a block file: (word, document, count or weight)."""


@dataclass(frozen=True, eq=False)
class InvertedFile:
    """Inverted lists of all words.

    Raises
    ------
    ShapeMismatch
        If the arrays do not fit each other.

    Source: COURSE, indexing; spec 1.8.
    """

    starts: Int64
    """Start of each list, (n_words + 1,) int64; the entries of word w are ``starts[w]`` to ``starts[w + 1] - 1``."""
    documents: Int32
    """Document numbers, (n_entries,) int32, ascending within a word."""
    values: Float32
    """Count or weight of the word in the document, (n_entries,) float32."""
    n_documents: int
    """Number of documents, including those without words."""

    def __post_init__(self) -> None:
        if len(self.starts) < 1 or not len(self.documents) == len(self.values) == int(self.starts[-1]):
            raise ShapeMismatch(
                f"{len(self.documents):,} documents and {len(self.values):,} values: both must have as many entries "
                f"as the last start says"
            )

    @property
    def n_words(self) -> int:
        """Number of words, including those that no document holds."""
        return len(self.starts) - 1

    @property
    def document_frequency(self) -> Int64:
        """Number of documents that hold each word, (n_words,) int64."""
        return np.diff(self.starts)

    def postings(self, word: int) -> tuple[Int32, Float32]:
        """Return the documents that hold a word, ascending, and their values.

        Raises
        ------
        InputError
            If the word number is not in the file.
        """
        if not 0 <= word < self.n_words:
            raise InputError(f"word number {word} is not in the file: it has words 0 to {self.n_words - 1}")
        span = slice(int(self.starts[word]), int(self.starts[word + 1]))
        return self.documents[span], self.values[span]


def invert(rows: sp.csr_matrix) -> InvertedFile:
    """Return the inverted file of documents' rows, (n_documents, n_words), without stored zeros.

    Source: spec 1.9: (word, document) pairs sorted by word, then by document.
    """
    pairs = sorted_pairs(rows.indices, row_of(rows), rows.data)
    pairs = pairs[pairs["value"] != 0]
    starts = np.searchsorted(pairs["word"], np.arange(rows.shape[1] + 1)).astype(np.int64)
    documents, values = (np.ascontiguousarray(pairs[name]) for name in ("document", "value"))
    return InvertedFile(starts, documents, values, rows.shape[0])


def sorted_pairs(words: npt.ArrayLike, documents: npt.ArrayLike, values: npt.ArrayLike) -> Pairs:
    """Return the entries sorted by word, then document; values of equal word and document are summed.

    Raises
    ------
    ShapeMismatch
        If the three arrays do not have the same length.
    """
    sizes = [np.size(part) for part in (words, documents, values)]
    if len(set(sizes)) > 1:
        raise ShapeMismatch("{:,} words, {:,} documents and {:,} values: give one of each per entry".format(*sizes))
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

    Blocks of at most ``block_entries`` entries are sorted, O(T log T) for T entries, and written to ``folder``. Then
    all blocks are merged, one range of words after the other, into one file, which the result memory-maps.

    Parameters
    ----------
    entries : iterable of (word, document, value)
        In any order; values of equal word and document are summed.
    folder : Path
        An existing folder with space for all entries twice, 12 bytes each. Blocks are removed afterwards.
    block_entries : int
        Number of entries in memory, at least 1. Only a single word with more entries needs more memory.

    Raises
    ------
    ConfigError
        If ``block_entries`` is below 1.
    InputError
        If a word or document number is out of range.

    Source: COURSE, BSBI; spec 1.9.
    """
    if block_entries < 1:
        raise ConfigError(f"block_entries is {block_entries}: it must be at least 1")
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

    The blocks are ``.npy`` files of `PAIR` entries, each sorted by word, then document. The merged entries are written
    to ``target``, which the result memory-maps.
    """
    blocks = [np.load(path, mmap_mode="r") for path in paths]
    counts = np.zeros(n_words, np.int64)
    # Start of each word in each block: words are sorted, so a binary search finds it without reading the block.
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
    """Return the entries of all parts, sorted by word and document; values of equal entries are summed."""
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
    """Yield (first, last + 1) of ranges of words with at most ``limit`` entries in total, or of a single word."""
    before = np.concatenate(([0], np.cumsum(counts)))
    first = 0
    while first < len(counts):
        last = max(first + 1, int(np.searchsorted(before, before[first] + limit, side="right")) - 1)
        yield first, last
        first = last


def score_by_postings(q_rows: sp.csr_matrix, file: InvertedFile) -> Float32:
    """Return q . d of every query with every document of the file, (n_queries, n_documents) float32.

    Scoring is term at a time: the postings of each query word add q_w * d_w to their documents, so documents that share
    no word with the query are not touched. Sums are in float64.

    With unit rows on both sides the score is the cosine.

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
            total[documents] += np.float64(weight) * values  # a document occurs once in a word's postings
        out[query] = total
    return out


@dataclass(frozen=True)
class VectorSpace(ProductScorer):
    """Score q . d of unit rows (M01 = B01 = B18), computed with an inverted file of the documents.

    Source: spec B18 (COURSE's weights, see `tfidf_rows`).
    """

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return q . d of every query with every document, (n_queries, n_documents) float32."""
        check_widths(q_rows, d_rows)
        return score_by_postings(q_rows, invert(d_rows))

    def sides(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return both in float64."""
        return q_rows.astype(np.float64), d_rows.astype(np.float64)


Weighting = Literal["presence", "occurrences", "share", "share-idf"]


@dataclass(frozen=True, eq=False)
class CourseWeights(ProductScorer):
    """Score by the course's weights of words; rows are counts.

    =============  ==============================
    weights        w_i of a text
    =============  ==============================
    presence       1 if the word occurs
    occurrences    tf_i
    share          tf_i / sum tf
    share-idf      tf_i / sum tf * ln(N / df_i)
    =============  ==============================

    The score is the inner product of both sides, or their cosine. By the cosine, shares equal occurrences, and
    share-idf is TF-IDF (B01), because the length of a text cancels.

    Raises
    ------
    ConfigError
        If the weights are unknown, or idf is missing for share-idf.

    Source: COURSE, vector space representation; spec 1.1.
    """

    weights: Weighting
    cosine: bool = False
    idf: Float64 | None = None
    """ln(N / df) of each word, (D,) float64, for share-idf."""

    def __post_init__(self) -> None:
        if self.weights not in get_args(Weighting):
            raise ConfigError(f"weights {self.weights!r} are not known: choose one of {', '.join(get_args(Weighting))}")
        if self.weights == "share-idf" and self.idf is None:
            raise ConfigError("share-idf needs the idf of each word: give idf_of(counts)")

    def sides(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the weights of both sides in float64."""
        return self._weighted(q_rows), self._weighted(d_rows)

    def _weighted(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        rows = binary(counts) if self.weights == "presence" else check_counts(counts, "counts")
        if self.weights in ("share", "share-idf"):
            rows.data /= np.asarray(rows.sum(axis=1), dtype=np.float64).ravel()[row_of(rows)]
        if self.weights == "share-idf" and self.idf is not None:
            rows.data *= self.idf[rows.indices]
        if not self.cosine:
            return rows
        lengths = np.sqrt(np.bincount(row_of(rows), rows.data**2, minlength=rows.shape[0]))
        rows.data /= np.where(lengths > 0, lengths, 1.0)[row_of(rows)]
        return rows


@dataclass(frozen=True, slots=True)
class BooleanScorer:
    """Score of Boolean queries: 1 if the document holds all (AND) or any (OR) of the query's words, else 0.

    A query without words has no condition: all documents satisfy AND, and none satisfies OR.

    Raises
    ------
    ConfigError
        If the operator is unknown.

    In the course, a document matches if it satisfies a conjunct of the query's disjunctive normal form: it scores 1 by
    AND for the words of a conjunct.

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
