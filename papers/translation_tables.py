"""Word translation tables learned on mates: DICE and IBM model 1 (spec B15b)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.study_rows import Doubles, binary, check_counts, check_pairs, row_of, with_data
from papers.translation import WordTable, shares
from reranker.errors import ConfigError, TrainingError

Ids = npt.NDArray[np.int64]

_BLOCK_WORDS = 256
_BLOCK_ENTRIES = 2_000_000


def fit_dice_table(q_counts: sp.csr_matrix, d_counts: sp.csr_matrix, n_candidates: int = 10) -> WordTable:
    """Return the table of the words that stand in the same mates most regularly.

    DICE(f, e) = 2 n_fe / (n_f + n_e), with n_fe the pairs that hold f on one side and e on the other, n_f and n_e the
    pairs that hold f or e; the ``n_candidates`` greatest of each f (equal ones by lower number), divided by their sum.

    Parameters
    ----------
    q_counts, d_counts : csr_matrix, (n_pairs, D_q) and (n_pairs, D_d)
        Row r of both is a pair of mates.
    n_candidates : int
        Translations kept of each word, at least 1.

    Raises
    ------
    ConfigError
        If no translation is to be kept.
    TrainingError
        If there is no pair.
    """
    if n_candidates < 1:
        raise ConfigError(f"n_candidates is {n_candidates}: keep at least 1 translation of each word")
    left, right = _mates(q_counts, d_counts)
    source, target = binary(left), binary(right)
    n_f = np.bincount(source.indices, minlength=source.shape[1])
    n_e = np.bincount(target.indices, minlength=target.shape[1])
    by_word = source.T.tocsr()
    blocks = []
    for start in range(0, by_word.shape[0], _BLOCK_WORDS):
        together = (by_word[start : start + _BLOCK_WORDS] @ target).tocsr()
        sizes = n_f[start + row_of(together)] + n_e[together.indices]
        blocks.append(_first_of_rows(with_data(together, 2.0 * together.data / sizes), n_candidates))
    return WordTable(_rows_to_one(sp.vstack(blocks, format="csr")))


def fit_ibm_table(
    q_counts: sp.csr_matrix, d_counts: sp.csr_matrix, n_candidates: int = 20, n_iterations: int = 5
) -> WordTable:
    """Return t(e|f) of IBM model 1 by EM, among the DICE candidates of each word.

    Every word e of a document is a translation of one word f of its mate, drawn evenly:
    r(f|e, pair) = x_f t(e|f) / sum_f' x_f' t(e|f'); t(e|f) prop. sum over pairs of y_e r(f|e, pair); rows sum to 1.
    Unlike DICE, a word e that one word f explains well is taken from the others. Start: equal t. Nothing is random.

    Parameters
    ----------
    q_counts, d_counts, n_candidates
        As in `fit_dice_table`.
    n_iterations : int
        EM steps, at least 1.

    Raises
    ------
    ConfigError
        If there is no step or no candidate.
    TrainingError
        If there is no pair.

    Source
    ------
    Brown et al. 1993, model 1, without the empty word and over bags of words; spec B15 (c) asks for any dictionary.
    """
    if n_iterations < 1:
        raise ConfigError(f"n_iterations is {n_iterations}: model 1 is trained in at least 1 step")
    left, right = _mates(q_counts, d_counts)
    table = fit_dice_table(left, right, n_candidates).probabilities
    table.sort_indices()
    entry, word, times, seen = _co_occurrences(left, right, table)
    rows = row_of(table)
    t: Doubles = np.ones(table.nnz)
    for _ in range(n_iterations):
        weight = times * t[entry]
        t = np.bincount(entry, seen * shares(weight, word), minlength=table.nnz).astype(np.float64)
        t = shares(t, rows)
    return WordTable(with_data(table, t))


def _co_occurrences(
    left: sp.csr_matrix, right: sp.csr_matrix, table: sp.csr_matrix
) -> tuple[Ids, Ids, Doubles, Doubles]:
    """Return, for every pair, word f and candidate e of f that stand in it: four arrays of one entry each.

    The number of (f, e) in the table, the number of (pair, e) among the stored words on the right, x_f and y_e.
    """
    width = right.shape[1]
    keys = row_of(right) * width + right.indices
    sizes = np.diff(table.indptr)[left.indices]
    ends = np.cumsum(sizes)
    pair_of = row_of(left)
    parts = []
    start = 0
    while start < left.nnz:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _BLOCK_ENTRIES)))
        held = np.repeat(np.arange(start, stop), sizes[start:stop])
        offset = np.arange(len(held)) - (ends[held] - sizes[held] - before)
        entry = table.indptr[left.indices[held]].astype(np.int64) + offset
        wanted = pair_of[held] * width + table.indices[entry]
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found = keys[place] == wanted
        parts.append((entry[found], place[found], left.data[held[found]], right.data[place[found]]))
        start = stop
    entries, words, times, seen = (np.concatenate([part[k] for part in parts]) for k in range(4))
    return entries, words, times, seen


def _mates(q_counts: sp.csr_matrix, d_counts: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Return both sides checked: as many on either side, at least one pair with words, ids sorted."""
    check_pairs(q_counts, d_counts)
    left, right = check_counts(q_counts, "q_counts"), check_counts(d_counts, "d_counts")
    if not (np.diff(left.indptr).astype(bool) & np.diff(right.indptr).astype(bool)).any():
        raise TrainingError("there is no pair of mates with words on both sides: a table is learned from such pairs")
    left.sort_indices()
    right.sort_indices()
    return left, right


def _first_of_rows(rows: sp.csr_matrix, n: int) -> sp.csr_matrix:
    """Return the n greatest values of each row, equal ones by lower column; columns ascending."""
    row = row_of(rows)
    order = np.lexsort((rows.indices, -rows.data, row))
    rank = np.arange(rows.nnz) - rows.indptr[row]  # within the row, as the order keeps rows together
    kept = np.sort(order[rank < n])
    out = sp.csr_matrix((rows.data[kept], (row[kept], rows.indices[kept])), shape=rows.shape)
    out.sort_indices()
    return out


def _rows_to_one(rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows divided by their sums."""
    sums = np.asarray(rows.sum(axis=1), dtype=np.float64).ravel()
    return with_data(rows, rows.data / sums[row_of(rows)])
