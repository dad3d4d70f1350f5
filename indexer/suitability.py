"""Checks whether a model fits the texts that it will encode: their fields, and the words of its vocabulary.

All functions are pure: the caller reads a sample of documents, from an index (`indexer.preflight`) or from a file
(`indexer.build`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reranker.engines.protocol import Capabilities
from reranker.models.ranking_model import Encoder
from reranker.text.analyzers import BETWEEN
from reranker.text.view import nearest_paths

SAMPLE = 100
"""Number of documents that are sampled."""


MIN_KNOWN_SHARE = 0.40
"""Smallest share of words in the model's vocabulary that is not noted.

It was chosen between the shares of texts in another language, which are lower, and those of texts of the model's own
corpus, which are higher, for models with a vocabulary of 1,000 words or more. English texts of another subject are not
noted by a model with a full vocabulary of English texts.
"""


MIN_WORDS = 100
"""Smallest number of sampled words from which the share is judged."""


@dataclass(frozen=True, slots=True)
class TextSample:
    """Texts of sampled documents, counted as a model reads them."""

    n_documents: int
    n_with_text: tuple[int, ...]
    """Number of documents with text in each field of the model's view, in field order."""
    n_words: int
    """Number of words by the model's analyzer, repeated words included and bigrams left out."""
    n_known: int
    """Number of these words that are in the model's vocabulary."""

    @classmethod
    def of(cls, encoder: Encoder, texts: Sequence[Sequence[str]]) -> TextSample:
        """Return the counts of documents; ``texts`` are those of `TextView.texts`, one sequence a document."""
        n_with_text = tuple(sum(bool(each[k].strip()) for each in texts) for k in range(len(encoder.view.fields)))
        tokens = encoder.analyzer.tokens([text for each in texts for text in each if text])
        words = [word for one in tokens for word in one if BETWEEN not in word]
        n_known = sum(word in encoder.document_vocabulary for word in words)
        return cls(len(texts), n_with_text, len(words), n_known)

    @property
    def has_text(self) -> bool:
        """True if a document has text in a field of the model."""
        return any(self.n_with_text)


def document_has_text(encoder: Encoder, source: Mapping[str, Any]) -> bool:
    """Return whether a document has text in a field of the model."""
    return any(text.strip() for text in encoder.view.texts(source))


def text_reasons(encoder: Encoder, sample: TextSample, paths: Collection[str]) -> list[str]:
    """Return a reason to refuse the model if no sampled document has text in any of its fields.

    ``paths`` are the fields that the documents have.
    """
    if sample.has_text or not sample.n_documents:
        return []
    fields = [spec.path for spec in encoder.view.fields]
    similar = dict.fromkeys(name for field in fields for name in nearest_paths(field, paths).split(", ") if name)
    return [
        f"none of {sample.n_documents:,} sampled documents has text in a field that the model reads "
        f"({', '.join(fields)}). The most similar field names in the documents are {', '.join(similar) or 'none'}. "
        "Train a model with --fields set to the fields of these documents, or rename the fields in the documents"
    ]


def text_notes(encoder: Encoder, sample: TextSample) -> list[str]:
    """Return notes on fields of the model that no sampled document has, and on a vocabulary of other texts."""
    return [*_field_notes(encoder, sample), *vocabulary_notes(encoder, sample)]


def _field_notes(encoder: Encoder, sample: TextSample) -> list[str]:
    if not sample.has_text:
        return []
    empty = [spec.path for spec, n in zip(encoder.view.fields, sample.n_with_text, strict=True) if not n]
    return [
        f"none of {sample.n_documents:,} sampled documents has text in the field {name!r}, which the model reads: if "
        "the documents have it under another name, rename it there or train a model with --fields"
        for name in empty
    ]


def vector_notes(encoder: Encoder, sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note if the model reads vectors of documents, and none of the sampled ones has one.

    `InputError` is raised for a value that is no vector, and for vectors of another length than those of training.
    """
    if encoder.vector_field is None or not sources:
        return []
    if encoder.vector_field.vectors([encoder.view.given_vector(source) for source in sources]).any():
        return []
    return [
        f"none of {len(sources):,} sampled documents has a vector in the field {encoder.view.vector!r}, which the "
        "model reads: they are ranked without that part of the score. Write the vectors of the same text encoder to it"
    ]


def impacts_note(capabilities: Capabilities, routes: Collection[str]) -> list[str]:
    """Return a note if the engine keeps impacts in ``_source``, which makes fetching hits slower."""
    if "impacts" not in routes or not capabilities.words_in_source:
        return []
    return [
        "the impacts stand in _source, so that fetching whole documents takes longer: let searches ask for the fields "
        'that they show ("_source": ["title"]); if _source excludes them, a partial update of another field removes '
        "them, until `ssi sync` writes them again"
    ]


def vocabulary_notes(encoder: Encoder, sample: TextSample) -> list[str]:
    """Return a note if the share of the sample's words in the model's vocabulary is below `MIN_KNOWN_SHARE`."""
    if sample.n_words < MIN_WORDS or sample.n_known >= MIN_KNOWN_SHARE * sample.n_words:
        return []
    return [
        f"only {sample.n_known / sample.n_words:.0%} of the words of {sample.n_documents:,} sampled documents are in "
        f"the model's vocabulary (at least {MIN_KNOWN_SHARE:.0%} are expected). The model was probably trained on "
        f"texts of another language or subject, or its analyzer ({encoder.analyzer.config.kind}) does not fit these "
        "texts. Train a model on these documents, with an --analyzer for their language"
    ]
