"""Drift of an index away from the data on which the encoder was built: unknown words, and changed word frequencies.

The encoder's vocabulary and idf are frozen. New words still count in q·d, as rare words, but they have no learned part.
So the first measure is the share of words in documents that are not in the vocabulary, and the second is how far the
current ln(N/df) of the documents is from the frozen idf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from reranker.engines.protocol import Engine
from reranker.errors import InputError
from reranker.models.ranking_model import Encoder
from reranker.text.analyzers import BETWEEN

MAX_UNKNOWN_SHARE = 0.05
"""Share of unknown words above which retraining is advised (a rule of thumb, not a theorem)."""
MAX_IDF_SHIFT = 0.5
"""Mean |change of idf| (natural log) above which retraining is advised: frequencies changed by a factor of about
1.6."""
MIN_DOCUMENT_FREQUENCY = 20
"""Minimum number of sampled documents with a word for comparing its idf. Below it, chance gives a shift of 0.2 or
more."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Distance between an index and an encoder. Shares are from 0 to 1."""

    documents: int
    """Number of sampled documents."""
    tokens: int
    """Number of words in them."""
    unknown_share: float
    """Share of these words that are not in the vocabulary."""
    without_learned_share: float
    """Share of these words without a learned row (unknown, or beyond the n words of a restricted model)."""
    documents_with_unknown: float
    """Share of documents with at least one unknown word."""
    idf_shift: float
    """Mean of |ln(N/df) now - idf|, weighted by document frequency, over words in at least 20 documents."""
    words_compared: int
    """Number of words in that mean."""
    unknown_words: tuple[tuple[str, int], ...]
    """The most frequent unknown words, with the number of documents."""
    shifted_words: tuple[tuple[str, float], ...]
    """Words with the largest change of idf (negative: more common now)."""

    @property
    def retrain(self) -> bool:
        """True if retraining is advised."""
        return self.unknown_share > MAX_UNKNOWN_SHARE or self.idf_shift > MAX_IDF_SHIFT

    @property
    def advice(self) -> str:
        """Return one sentence: whether to retrain, and why."""
        if self.unknown_share > MAX_UNKNOWN_SHARE:
            return (
                f"retrain: {self.unknown_share:.1%} of the words are unknown to the model "
                f"(more than {MAX_UNKNOWN_SHARE:.0%})"
            )
        if self.idf_shift > MAX_IDF_SHIFT:
            return f"retrain: idf changed by {self.idf_shift:.2f} on average (more than {MAX_IDF_SHIFT})"
        return (
            f"no need to retrain: {self.unknown_share:.1%} unknown words (limit {MAX_UNKNOWN_SHARE:.0%}), "
            f"idf changed by {self.idf_shift:.2f} (limit {MAX_IDF_SHIFT})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON-compatible values."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        values["unknown_words"] = [{"word": word, "documents": n} for word, n in self.unknown_words]
        values["shifted_words"] = [{"word": word, "shift": shift} for word, shift in self.shifted_words]
        return {**values, "retrain": self.retrain, "advice": self.advice}


def measure_drift(
    engine: Engine, index: str, encoder: Encoder, *, sample: int = 5000, rng: np.random.Generator
) -> Drift:
    """Return the drift of an index from an encoder, measured on ``sample`` random documents.

    Raises `InputError` if the fields contain no text.
    """
    share = min(1.0, 1.2 * sample / max(engine.count(index), 1))
    documents: Counter[str] = Counter()
    words: Counter[str] = Counter()
    n_documents = n_with_unknown = 0
    vocabulary = encoder.document_vocabulary
    for batch in _sampled(engine, index, encoder, share, sample, rng):
        for tokens in batch:
            n_documents += 1
            words.update(tokens)
            distinct = sorted(set(tokens))
            documents.update(distinct)
            n_with_unknown += bool(distinct) and bool((vocabulary.ids(distinct) >= len(vocabulary)).any())
    if not words:
        fields = ", ".join(spec.path for spec in encoder.view.fields)
        raise InputError(f"the fields {fields} of index {index!r} have no text: check the index, or the model's view")
    names = list(documents)
    ids = vocabulary.ids(names)
    times = np.array([words[name] for name in names], dtype=np.float64)
    df = np.array([documents[name] for name in names], dtype=np.float64)
    unknown = ids >= len(vocabulary)
    compared = ~unknown & (df >= MIN_DOCUMENT_FREQUENCY)
    shift = np.log(n_documents / df[compared]) - vocabulary.idf_of(ids[compared]).astype(np.float64)
    order = np.argsort(-np.abs(shift), kind="stable")[:10]
    compared_names = list(compress(names, compared))
    unknown_counts = Counter({name: documents[name] for name in sorted(compress(names, unknown))})
    return Drift(
        documents=n_documents,
        tokens=int(times.sum()),
        unknown_share=float(times[unknown].sum() / times.sum()),
        without_learned_share=float(times[ids >= len(encoder.V)].sum() / times.sum()),
        documents_with_unknown=n_with_unknown / n_documents,
        idf_shift=float(np.average(np.abs(shift), weights=df[compared])) if compared.any() else 0.0,
        words_compared=int(compared.sum()),
        unknown_words=tuple(unknown_counts.most_common(10)),
        shifted_words=tuple((compared_names[k], round(float(shift[k]), 4)) for k in order.tolist()),
    )


def _sampled(
    engine: Engine, index: str, encoder: Encoder, share: float, sample: int, rng: np.random.Generator
) -> Iterator[list[list[str]]]:
    """Yield the tokens of randomly chosen documents in batches."""
    left = sample
    paths = [spec.path for spec in encoder.view.fields]
    for batch in engine.scan(index, source=paths, batch_size=500):
        chosen = [document for document, u in zip(batch, rng.random(len(batch)), strict=True) if u < share][:left]
        left -= len(chosen)
        texts = ["\n".join(encoder.view.texts(document.source)) for document in chosen]
        yield [[word for word in tokens if BETWEEN not in word] for tokens in encoder.analyzer.tokens(texts)]
        if left <= 0:
            return
