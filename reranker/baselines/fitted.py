"""Fitted lexical baselines: TF-IDF (spec B01), BM25 (B20), BM25 with a query memory, and LSI (B03, B04)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from reranker.arrays import Float32
from reranker.errors import ConfigError
from reranker.evaluation import InnerProducts
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus, LexicalQueries, RowNumbers
from reranker.lexical.tuning import TENTHS, LexicalTask, TunedLexical, tune_lexical
from reranker.models.scorers import unit
from reranker.progress import Say, silent
from reranker.text.rows import select_columns, unit_rows

MAX_WORDS = 30_000
"""Number of words, the most frequent ones, that the decomposition uses (spec B03)."""


class LsiBaseline:
    """Scores alpha * cosine + (1 - alpha) * TF-IDF, with the cosine in the space of the first singular vectors.

    X = P S Q^T, and x -> Q^T x for queries and documents (Q: the words' vectors). The rows of X are the tf-idf rows of
    all documents by ``settings`` (of the form tfidf), at unit length. The decomposition is scipy's ARPACK with a start
    vector drawn from ``rng``, so equal seeds give equal results.

    Raises
    ------
    ConfigError
        If ``n_dimensions`` is below 1, or not below the numbers of documents and words.
    """

    def __init__(
        self, corpus: LexicalCorpus, settings: LexicalSettings, n_dimensions: int, rng: np.random.Generator
    ) -> None:
        self.corpus = corpus
        self.settings = settings
        frequency = corpus.document_frequency
        # A word of only one document would need a dimension for itself; nothing can be learned about it.
        frequent = np.lexsort((np.arange(len(frequency)), -frequency))[:MAX_WORDS]
        self._words = np.sort(frequent[frequency[frequent] >= min(2, corpus.n_documents)])
        limit = min(corpus.n_documents, len(self._words)) - 1
        if not 1 <= n_dimensions <= limit:
            raise ConfigError(
                f"lsi:{n_dimensions} is not possible: the corpus of {corpus.n_documents:,} documents and "
                f"{len(self._words):,} words in two or more of them allows 1 to {max(limit, 0)} dimensions"
            )
        rows = select_columns(unit_rows(corpus.rows(settings).documents(corpus.fields)), self._words)
        start = rng.standard_normal(min(rows.shape)).astype(np.float32)
        _, _, vectors = svds(rows, k=n_dimensions, v0=start)
        self.word_vectors: Float32 = np.ascontiguousarray(vectors.T, dtype=np.float32)

    def project(self, rows: sp.csr_matrix) -> Float32:
        """Return the unit vectors of tf-idf rows, (n, n_dimensions) float32; 0 for a row without known words."""
        return unit(np.asarray(select_columns(rows, self._words) @ self.word_vectors, dtype=np.float32))

    def scorer(self, queries: LexicalQueries, documents: RowNumbers, alpha: float) -> InnerProducts:
        """Return the scores of all queries against the given documents of the corpus."""
        rows = self.corpus.rows(self.settings)
        query_rows = rows.queries(queries)
        document_rows = rows.documents([field[documents] for field in self.corpus.fields])
        mixed = alpha < 1.0
        return InnerProducts(
            query_vectors=self.project(query_rows) * np.float32(alpha),
            document_vectors=self.project(document_rows),
            query_rows=query_rows if mixed else None,
            document_rows=document_rows if mixed else None,
            row_weight=1.0 - alpha,
        )


REMEMBERING = "bm25+queries"
"""Name of the baseline that is bm25 with a query memory."""


BASELINES: dict[str, str] = {
    "tfidf": "tf-idf cosine",
    "bm25": "BM25 over the weighted fields",
    REMEMBERING: "BM25 over the fields and the tuning queries that a document is relevant to",
    "lsi:K": "latent semantic indexing with K dimensions, mixed with tf-idf",
}
"""Baselines that `--baselines` accepts, with their descriptions."""
_FORM_OF = {"tfidf": "tfidf", "bm25": "bm25", REMEMBERING: "bm25", "lsi": "tfidf"}
"""Kind of a baseline → the form of the lexical score that it needs."""


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline that is ready to score queries against documents of the corpus."""

    settings: Mapping[str, Any]
    """Tuned settings, for the report."""
    tuned_ap: float | None
    """MAP of ``settings`` on the tuning queries; None if nothing was tuned."""
    scorer: Callable[[LexicalQueries, RowNumbers], InnerProducts]
    """Returns the scores of queries against documents, given by row number."""
    notes: tuple[str, ...] = ()
    """Messages for the user."""


def parse_baselines(text: str) -> tuple[str, ...]:
    """Return the distinct names of a comma-separated list; raises `ConfigError` for a name not in `BASELINES`."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        kind, colon, dimensions = name.partition(":")
        is_lsi = kind == "lsi" and colon and dimensions.isdecimal() and int(dimensions) > 0
        if not is_lsi and name not in ("tfidf", "bm25", REMEMBERING):
            raise ConfigError(f"baseline {name!r} is not known: choose from {', '.join(BASELINES)} with K a number > 0")
    return names


def fit_baselines(
    names: Sequence[str],
    corpus: LexicalCorpus,
    tuning: LexicalTask | None,
    rng: np.random.Generator,
    progress: Say = silent,
) -> dict[str, FittedBaseline]:
    """Return the named baselines, tuned on the tuning queries (see `tune_lexical`).

    Without tuning queries every field has weight 1, k1 = 1.2, b = .75, and LSI's alpha is 1/2; otherwise alpha is the
    best multiple of 1/10.

    Parameters
    ----------
    names : sequence of str
        Baselines, as `parse_baselines` returns them.
    corpus : LexicalCorpus
        The corpus. `REMEMBERING` needs one with a memory; the other baselines use only its texts.
    tuning : LexicalTask or None
        Tuning queries.
    rng : numpy.random.Generator
        Draws the tuning sample, which is the same for every baseline, and the start vector of LSI.
    progress : callable
        Receives the names of baselines before they are fitted.
    """
    seed = int(rng.integers(2**63))
    texts, tasks = corpus.texts, [] if tuning is None else [tuning]
    forms = dict.fromkeys(_FORM_OF[name.partition(":")[0]] for name in names)
    if forms:
        progress(" and ".join(forms))
    tuned = tune_lexical(texts, tasks, np.random.default_rng(seed), list(forms))

    def lexical_of(name: str) -> TunedLexical:
        form = _FORM_OF[name]
        if name != REMEMBERING:
            return tuned[form]
        start = tuned[form].settings
        return tune_lexical(corpus, tasks, np.random.default_rng(seed), (form,), start=start)[form]

    def fitted(name: str) -> FittedBaseline:
        kind, _, n_dimensions = name.partition(":")
        if kind != "lsi":
            lexical = lexical_of(kind)
            scorer = partial((corpus if kind == REMEMBERING else texts).scorer, settings=lexical.settings)
            reached = float(np.mean(lexical.values)) if lexical.values else None
            return FittedBaseline(lexical.settings.to_json(), reached, scorer, lexical.notes)
        lexical = lexical_of(kind)
        lsi = LsiBaseline(texts, lexical.settings, int(n_dimensions), rng)
        alpha, value = 0.5, None
        if tuning is not None:
            data = tuning.sample(np.random.default_rng(seed))
            scorers = [lsi.scorer(data.queries, data.documents, alpha) for alpha in TENTHS]
            values = [data.mean_ap(scorer) for scorer in scorers]
            alpha, value = TENTHS[int(np.argmax(values))], max(values)
        report = {"n_dimensions": int(n_dimensions), "alpha": alpha, **lexical.settings.to_json()}
        return FittedBaseline(report, value, partial(lsi.scorer, alpha=alpha), lexical.notes)

    baselines = {}
    for name in names:
        if name not in forms:
            progress(name)
        baselines[name] = fitted(name)
    return baselines
