"""Impacts: the worth of each query word for a document, which an inverted index can add up without the model.

f is nearly a sum over the words of the query (`docs/model.md`, section Impacts):

    impact(d, w) = a omega_w d_w + lambda max(0, z_w . (x_d - m))     the second term for K words of each document

d_w is the lexical weight of the word, omega_w its weight as a query word, x_d the stored vector and m the mean of all
documents' vectors: z_w . m is the same for all documents. z_w is the contribution of a word to a query's vector: idf_w
U_w and, for given vectors, s idf_w W_w / r, where r is the typical length of W_w.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, Float32, offsets_of, term_rows
from reranker.errors import ConfigError
from reranker.lexical.bm25 import weigh_words
from reranker.models.ranking_model import EncodedDocuments, RankingModel
from reranker.text.rows import combine, keep_values, mirrored, stack_rows, with_data
from reranker.text.vocabulary import HASH_BASE, hashed_id

LEARNED_WEIGHT: Final = 0.5
"""lambda, below 1: only the largest learned values are kept, and their sum is larger than the sum of all values."""
DF_POWER: Final = 0.25
"""The words of the largest value times df to this power are kept: queries contain frequent words more often."""
N_LEARNED_WORDS: Final = 128
"""K unless another number is given."""
MAX_QUERY_WORDS: Final = 200
"""Words of a query whose impacts are added up. Engines refuse a query of more than about a thousand clauses."""
_VALUES_A_BLOCK: Final = 2**24


@dataclass(frozen=True, eq=False)
class Impacts:
    """Impacts of documents by a model.

    Raises
    ------
    ConfigError
        If queries and documents have different vocabularies, the model has no mean vector, or ``n_words`` is below 0.
    """

    model: RankingModel
    n_words: int = N_LEARNED_WORDS
    """K, the largest number of learned words of a document."""

    def __post_init__(self) -> None:
        if not self.model.has_shared_vocabulary:
            raise ConfigError("impacts need one vocabulary for queries and documents, and this model has two")
        if self.n_words < 0:
            raise ConfigError(f"the number of learned words is {self.n_words}: give 0 or more")
        if self.model.mean_vector is None:
            raise ConfigError(
                "impacts need the mean of the documents' vectors, which models of earlier versions do not have: train "
                "again"
            )

    @cached_property
    def words(self) -> Float32:
        """Lambda z_w of each word, (n_rows, N) float32; words with higher numbers have no learned part."""
        model, vocabulary = self.model, self.model.encoder.document_vocabulary
        parts = [model.query_side(1)]
        if (given := model.word_encoder) is not None:
            typical = float(np.sqrt(np.mean(given.lengths.astype(np.float64) ** 2))) if len(given.U) else 0.0
            parts.append(given.U * np.float32(given.weight / typical if typical > 0 else 0.0))
        n_rows = max(map(len, parts))
        table = np.hstack([np.pad(part, ((0, n_rows - len(part)), (0, 0))) for part in parts])
        idf = vocabulary.idf_of(np.arange(n_rows)).astype(np.float32)
        return np.asarray(table * (np.float32(LEARNED_WEIGHT) * idf)[:, None], np.float32)

    @cached_property
    def _importance(self) -> Float32:
        """Factor of each word's value by which the kept words are chosen, (n_rows,) float32."""
        frequency = self.model.encoder.document_vocabulary.frequency_of(np.arange(len(self.words)))
        return np.asarray(frequency.astype(np.float64) ** DF_POWER, np.float32)

    def of_documents(self, vectors: Float32, rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return the impacts of documents, (n, 2**31 - 1) float32, each above 0.

        Parameters
        ----------
        vectors : array
            Stored vectors, (n, N) float32; a document without any has zeros.
        rows : csr_matrix
            Stored lexical rows, (n, 2**31 - 1) float32.
        """
        model = self.model
        # The row for short queries, if there is one: people type few words.
        lexical = self._short_rows(rows) if model.uses_short_rows(1) else rows
        if model.word_weights is not None:
            lexical = weigh_words(lexical, model.word_weights)
        lexical = with_data(lexical, lexical.data * np.float32(model.identity))
        size = max(_VALUES_A_BLOCK // max(len(self.words), 1), 1)
        learned = [self._learned(vectors[start : start + size]) for start in range(0, len(vectors), size)]
        return _above_zero(combine([lexical, stack_rows(learned)], [1.0, 1.0]))

    def by_word(self, encoded: EncodedDocuments, sources: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
        """Return the impacts of each document by word, by ascending numbers; ``sources`` are those of ``encoded``.

        A word that the vocabulary does not list is named by the text. If it only occurs in the memory, it is named by
        `numbered`.
        """
        impacts, encoder = self.of_documents(encoded.vectors, encoded.rows), self.model.encoder
        listed, n_words = encoder.document_vocabulary.words, len(encoder.document_vocabulary)
        bounds, found = impacts.indptr.tolist(), []
        for document, source in enumerate(sources):
            part = slice(bounds[document], bounds[document + 1])
            ids = impacts.indices[part].tolist()
            names: list[str] = [listed[word] for word in ids if word < n_words]
            if len(names) < len(ids):
                in_text = chain.from_iterable(encoder.analyzer.tokens(encoder.view.texts(source)))
                spelled = {hashed_id(word): word for word in set(in_text) if word not in encoder.document_vocabulary}
                names += [spelled.get(word) or numbered(word) for word in ids[len(names) :]]
            found.append(dict(zip(names, impacts.data[part].tolist(), strict=True)))
        return found

    def _short_rows(self, rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return the rows for short queries without those for others, which are stored with them (`mirrored`)."""
        both, n_words = mirrored(rows), len(self.model.encoder.document_vocabulary)
        is_hashed = (both.indices >= HASH_BASE) & (both.indices < N_TERM_IDS - n_words)
        return keep_values(both, (both.indices < n_words) | is_hashed)

    def _learned(self, vectors: Float32) -> sp.csr_matrix:
        """Return the learned impacts that documents keep, (n, 2**31 - 1) float32."""
        n = min(self.n_words, len(self.words))
        mean = self.model.mean_vector
        if not n or mean is None:
            return term_rows(np.empty(0, np.float32), np.empty(0, np.int32), np.zeros(len(vectors) + 1, np.int32))
        values = _rounded(np.asarray((vectors - mean) @ self.words.T, np.float32))
        values[~vectors.any(axis=1)] = 0
        keys = values * self._importance
        least = np.maximum(np.partition(keys, -n, axis=1)[:, -n], np.finfo(np.float32).tiny)
        document, word = np.nonzero(keys >= least[:, None])
        lengths = np.bincount(document, minlength=len(keys))
        if lengths.max(initial=0) > n:  # of equal keys at the limit, the words with the lowest numbers are kept
            order = np.lexsort((word, -keys[document, word], document))
            kept = np.sort(order[np.arange(len(order)) - offsets_of(lengths)[document[order]] < n])
            document, word = document[kept], word[kept]
            lengths = np.minimum(lengths, n)
        return term_rows(values[document, word], word.astype(np.int32), offsets_of(lengths).astype(np.int32))


def query_words(model: RankingModel, text: str) -> list[str]:
    """Return the different words of a query whose impacts are added up, in order of first use.

    A word that the vocabulary does not list is followed by its `numbered` name. Only the first `MAX_QUERY_WORDS` words
    count.
    """
    return list(chain.from_iterable(names_of_words(model, text).values()))


def names_of_words(model: RankingModel, text: str) -> dict[str, list[str]]:
    """Return the names under which each of the `query_words` of a text may have impacts."""
    tokens = list(dict.fromkeys(model.encoder.analyzer.tokens([text])[0]))[:MAX_QUERY_WORDS]
    return {
        word: [word] * (number >= 0) + [numbered(number)] * (number >= HASH_BASE)
        for word, number in zip(tokens, model.query_vocabulary.ids(tokens).tolist(), strict=True)
    }


def numbered(word: int) -> str:
    """Return the name of a word of which only the number is known."""
    return f"#{word}"


def different_words(learned_rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows of queries whose impacts an engine adds up, (n, 2**31 - 1) float32: 1 for each different word."""
    return with_data(learned_rows, np.ones(learned_rows.nnz, np.float32))


def _rounded(values: Float32) -> Float32:
    """Return values with 11 significant bits, as float16 has: a product computed in another order gives the same."""
    bits = values.view(np.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(np.float32)


def _above_zero(rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows without values that are 0 or below, which no engine stores."""
    kept = rows.data > 0
    return rows if kept.all() else keep_values(rows, kept)
