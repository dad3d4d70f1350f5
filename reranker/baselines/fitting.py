"""Baselines by name: fitted to a corpus, tuned where there is something to tune on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from reranker.baselines.bm25 import Bm25Baseline, Bm25Settings
from reranker.baselines.corpus import LexicalCorpus, LexicalQueries, Rows
from reranker.baselines.lsi import LsiBaseline, LsiSettings
from reranker.baselines.sweeping import TENTHS
from reranker.baselines.tfidf import TfIdfBaseline, TfIdfSettings
from reranker.baselines.tuning import BM25_GRID, LexicalTask, coordinate_search, tune_settings
from reranker.errors import ConfigError
from reranker.evaluation.scorers import InnerProducts

BASELINES: dict[str, str] = {
    "tfidf": "tf-idf cosine",
    "bm25": "BM25 over the weighted fields",
    "lsi:K": "latent semantic indexing with K dimensions, mixed with tf-idf",
}
"""Names that `--baselines` knows."""


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline ready to score.

    Parameters
    ----------
    name : str
        As asked for: ``tfidf``, ``bm25``, ``lsi:200``.
    settings : mapping
        What it was set to, for the report.
    tuned_ap : float or None
        Mean average precision of these settings on the tuning queries; None where nothing was tuned.
    scorer : callable
        Queries, rows of the pool's documents in the corpus -> scores.
    """

    name: str
    settings: Mapping[str, Any]
    tuned_ap: float | None
    scorer: Callable[[LexicalQueries, Rows], InnerProducts]


def parse_baselines(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, each once.

    Raises
    ------
    ConfigError
        For a name that is not one of `BASELINES`.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        kind, colon, dimensions = name.partition(":")
        good = name in ("tfidf", "bm25") or (kind == "lsi" and colon and dimensions.isdecimal() and int(dimensions) > 0)
        if not good:
            raise ConfigError(f"baseline {name!r} is not known: choose of {', '.join(BASELINES)} with K a number > 0")
    return names


def fit_baselines(
    names: Sequence[str],
    corpus: LexicalCorpus,
    tuning: LexicalTask | None,
    rng: np.random.Generator,
    field_weights: Sequence[float] | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, FittedBaseline]:
    """Return the named baselines, tuned on the tuning queries.

    Parameters
    ----------
    names : sequence of str
        From `parse_baselines`.
    corpus : LexicalCorpus
        All documents.
    tuning : LexicalTask or None
        Queries to tune field weights, k1, b and mixtures on (a sample of at most 500 is used). None: field weights
        as given, k1 = 1.2, b = .75, alpha = 1/2.
    rng : Generator
        Draws the tuning sample and the start of LSI.
    field_weights : sequence of float, optional
        Where the search begins; 1 for every field if not given.
    progress : callable, optional
        Receives the name of each baseline before it is fitted.
    """
    data = None if tuning is None else tuning.sample(rng)
    start = tuple(1.0 for _ in corpus.fields) if field_weights is None else tuple(map(float, field_weights))
    fitter = _Fitter(corpus, data, start, rng)
    fitted = {}
    for name in names:
        if progress is not None:
            progress(name)
        fitted[name] = fitter.fit(name)
    return fitted


class _Fitter:
    """Fits baselines one after the other; TF-IDF is tuned once, for itself and for LSI."""

    def __init__(
        self, corpus: LexicalCorpus, data: LexicalTask | None, start: tuple[float, ...], rng: np.random.Generator
    ) -> None:
        self.corpus, self.data, self.start, self.rng = corpus, data, start, rng
        self._tfidf: tuple[TfIdfBaseline, TfIdfSettings, float | None] | None = None

    def fit(self, name: str) -> FittedBaseline:
        """Return the baseline of a name."""
        if name == "tfidf":
            return self._fit_tfidf(name)
        return self._fit_bm25(name) if name == "bm25" else self._fit_lsi(name)

    def _fit_tfidf(self, name: str) -> FittedBaseline:
        baseline, settings, value = self._tuned_tfidf()
        return FittedBaseline(name, asdict(settings), value, lambda q, d: baseline.scorer(q, d, settings))

    def _tuned_tfidf(self) -> tuple[TfIdfBaseline, TfIdfSettings, float | None]:
        if self._tfidf is None:
            baseline = TfIdfBaseline(self.corpus)
            settings, value = TfIdfSettings(self.start, self.start), None
            if self.data is not None:
                settings, value = tune_settings(baseline.scorer, self.corpus, self.data, settings, {})
            self._tfidf = baseline, settings, value
        return self._tfidf

    def _fit_bm25(self, name: str) -> FittedBaseline:
        baseline, value = Bm25Baseline(self.corpus), None
        settings = Bm25Settings(self.start, self.start)
        if self.data is not None:
            settings, value = tune_settings(baseline.scorer, self.corpus, self.data, settings, BM25_GRID)
        return FittedBaseline(name, asdict(settings), value, lambda q, d: baseline.scorer(q, d, settings))

    def _fit_lsi(self, name: str) -> FittedBaseline:
        tfidf, weights, _ = self._tuned_tfidf()
        n_dimensions = int(name.partition(":")[2])
        baseline = LsiBaseline(tfidf, weights.document_weights, n_dimensions, self.rng)
        settings, value = LsiSettings(weights), None
        data = self.data
        if data is not None:

            def objective(point: Mapping[str, Any]) -> float:
                return data.mean_ap(baseline.scorer(data.queries, data.documents, replace(settings, **point)))

            best, value = coordinate_search(objective, {"alpha": TENTHS}, {"alpha": settings.alpha}, max_passes=1)
            settings = replace(settings, **best)
        report = {"n_dimensions": n_dimensions, **asdict(settings)}
        return FittedBaseline(name, report, value, lambda q, d: baseline.scorer(q, d, settings))
