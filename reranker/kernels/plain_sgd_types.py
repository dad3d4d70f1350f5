"""Arguments of the plain SGD kernels, and the hash of word pairs: the same for both implementations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

PRIME = 2**31 - 1
"""P of the pair hash (s P + t) mod H; products of word numbers below 2**31 stay inside 64 bits."""


class Triples(NamedTuple):
    """Steps to make, in this order: rows of the query, of the document to rank higher and of the one to rank lower.

    All (n,) int64.
    """

    query: Int64
    positive: Int64
    negative: Int64


class Combination(NamedTuple):
    """How the document's embeddings make the vector c(d) that meets Uq: f(q, d) = (Uq).c(d) + a q.d.

    The document table T holds ``n_factors`` embeddings E1, E2, ... side by side, one row a word.

    ==========================  ==============================================  ================
    Spec                        c(d)                                            columns of T
    ==========================  ==============================================  ================
    M05, M06, M07, M08          E1 d                                            N
    M18                         E1 d o (1 + E2 d)                               2 N
    M20                         E1 d o (1 + E2 d o (1 + E3 d o (...)))          ``n_factors`` N
    M19 (``separate``)          [E1 d o E2 d, F d], T = [E1, F, E2]             3 N, and U 2 N
    ==========================  ==============================================  ================
    """

    n_factors: int = 1
    separate: bool = False

    def document_columns(self, n_dims: int) -> int:
        """Return the columns of T for N dimensions."""
        return 3 * n_dims if self.separate else self.n_factors * n_dims

    def query_columns(self, n_dims: int) -> int:
        """Return the columns of U for N dimensions."""
        return 2 * n_dims if self.separate else n_dims


def pair_hash(s: Int64, t: Int64, prime: int, n_slots: int) -> Int64:
    """Return the slot of word pairs, h(s, t) = (s P + t) mod H.

    With P > D and H >= D P + D + 1 no two pairs of words 0..D-1 share a slot.

    Parameters
    ----------
    s, t : int64
        Words of the query and of the document; broadcast against each other.
    prime : int
        P.
    n_slots : int
        H.

    Returns
    -------
    int64, the broadcast shape

    Notes
    -----
    Source: spec 2.3, M09.
    """
    slots: Int64 = (np.asarray(s, np.int64) * np.int64(prime) + np.asarray(t, np.int64)) % np.int64(n_slots)
    return slots
