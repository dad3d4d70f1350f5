"""Keyword queries: a few random words of a document (spec T3, A21)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import ConfigError, ShapeMismatch
from reranker.text.vocabulary import Vocabulary, hashed_id


def parse_queries(text: str) -> int | None:
    """Return None for ``document``, K for ``keywords:K``.

    Raises
    ------
    ConfigError
        For anything else.
    """
    if text == "document":
        return None
    kind, _, number = text.partition(":")
    if kind == "keywords" and number.isdecimal() and int(number) > 0:
        return int(number)
    raise ConfigError(f"--queries {text!r} is not legal: write document, or keywords:K with K a number above 0")


def draw_keywords(
    counts: sp.csr_matrix, query_ids: Sequence[str], n_words: int, seed: int, vocabulary: Vocabulary
) -> sp.csr_matrix:
    """Return the counts with only ``n_words`` random distinct words left in each row, all if there are fewer.

    The words keep their counts, so that their tf-idf is that in the document, up to the length of the row (A21). The
    draw depends on the seed, the query's id and the words alone: other queries, another vocabulary or another model
    change nothing, and every system gets the same words.

    Parameters
    ----------
    counts : csr_matrix, (n, N_TERM_IDS) float32
        Word counts of documents.
    query_ids : sequence of n str
        Names of the rows.
    n_words : int
        K.
    seed : int
        At least 0.
    vocabulary : Vocabulary
        What numbered the words.
    """
    if counts.shape[0] != len(query_ids):
        raise ShapeMismatch(f"{len(query_ids)} query ids for {counts.shape[0]} rows: give one id a row")
    keys = np.array([hashed_id(word) for word in vocabulary.words], dtype=np.int64)
    kept: list[npt.NDArray[np.int64]] = []
    for row, query in enumerate(query_ids):
        places = np.arange(counts.indptr[row], counts.indptr[row + 1], dtype=np.int64)
        if len(places) > n_words:
            # An order of the words that no vocabulary has a say in; unlisted words are numbered by it already.
            order = np.argsort(_keys_of(counts.indices[places], keys), kind="stable")
            places = places[np.sort(order[_rng(seed, query).choice(len(places), n_words, replace=False)])]
        kept.append(places)
    chosen = np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)
    indptr = np.concatenate([[0], np.cumsum([len(places) for places in kept], dtype=np.int64)])
    return sp.csr_matrix((counts.data[chosen], counts.indices[chosen], indptr), shape=counts.shape)


def _keys_of(ids: npt.NDArray[np.int32], keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    listed = ids < len(keys)
    found = ids.astype(np.int64)
    found[listed] = keys[ids[listed]]
    return found


def _rng(seed: int, query: str) -> np.random.Generator:
    digest = blake2b(query.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "little")])
