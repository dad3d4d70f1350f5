"""The model as it is used: encode documents and queries, score, and say who it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyArray, Bool, Float32, Float64
from reranker.artifacts.manifest import sealed
from reranker.artifacts.tensors import digest_of
from reranker.encoder import Encoder, check_word_rows
from reranker.errors import InputError
from reranker.models.bilinear import Bilinear
from reranker.models.forms import LINEAR, FormScorer, weights_in
from reranker.text.tfidf import TfIdf
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class EncodedQueries:
    """What queries become, in their order: Uq (of length 1 in the form ``unit``), (n, N) float32, and q, unit rows."""

    vectors: Float32
    rows: sp.csr_matrix

    @property
    def has_text(self) -> Bool:
        """(n,) bool: False for a query without any word, which scores 0 with every document."""
        return np.diff(self.rows.indptr) > 0

    def __len__(self) -> int:
        """Return the number of queries."""
        return int(self.rows.shape[0])


@dataclass(frozen=True, eq=False)
class RankingModel:
    """Everything that is needed to encode documents and queries and to score them.

    Raises
    ------
    ShapeMismatch
        If U does not fit V or the query vocabulary.
    InputError
        If U is not finite, or the identity's weight is not usable.
    """

    encoder: Encoder
    query_vocabulary: Vocabulary
    """Words of the query side; the encoder's own, unless the two sides have different vocabularies."""
    U: Float32
    """Query side of the learned part, (n_rows, N) float32, one row a word of ``query_vocabulary`` at most;
    ``encoder.V`` itself for a tied model."""
    identity: float = 1.0
    """a >= 0, the weight of q.d. Must be 0 where the vocabularies differ: one id then means two words."""
    query_view: TextView | None = None
    """Fields of a document that is used as a query (their weights play no part); None for those of the encoder."""
    training: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What made the model and what it reached, kept in the manifest as JSON."""

    def __post_init__(self) -> None:
        _ = self.scorer
        check_word_rows(self.U, self.query_vocabulary, "U")
        if self.identity and not self.has_shared_vocabulary:
            raise InputError(
                f"the identity has weight {self.identity} while queries and documents have different vocabularies, "
                f"in which one id means two words; set it to 0 or use one vocabulary"
            )

    @property
    def has_shared_vocabulary(self) -> bool:
        """True where queries and documents use one vocabulary."""
        return self.query_vocabulary is self.encoder.document_vocabulary

    @cached_property
    def scorer(self) -> Bilinear | FormScorer:
        """f(q, d) over rows."""
        if self.encoder.form == LINEAR:
            return Bilinear(self.U, self.encoder.V, self.identity)
        return FormScorer(self.U, self.encoder.documents, self.identity)

    def pair_weights(self, query: sp.csr_matrix, document: sp.csr_matrix) -> Float64:
        """Return W_ij of each word of a query's row with each of a document's, see `weights_in`; without q.d's a."""
        return weights_in(self.encoder.documents, self.U, query, document)

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """What `save_model` writes into ``manifest.json``; reads U and V once for their hash."""
        return sealed(_manifest_content(self))

    @property
    def model_id(self) -> str:
        """64 hexadecimal digits: SHA-256 over the whole model, training and measures included."""
        return str(self.manifest["model_id"])

    @property
    def encoder_id(self) -> str:
        """The id of the document side; unchanged by another U."""
        return self.encoder.encoder_id

    @cached_property
    def _query_tfidf(self) -> TfIdf:
        return TfIdf(self.query_vocabulary, self.encoder.tf)

    def encode_queries(self, texts: Sequence[str]) -> EncodedQueries:
        """Return vectors and rows of query strings."""
        return self._encoded(self._query_tfidf.rows(self.encoder.analyzer.tokens(texts)))

    def encode_query_documents(self, sources: Sequence[Mapping[str, Any]]) -> EncodedQueries:
        """Return vectors and rows of documents used as queries: all fields read as one text, at unit length."""
        view = self.query_view or self.encoder.view
        return self._encoded(self._query_tfidf.query_rows(view, self.encoder.analyzer, sources))

    def _encoded(self, rows: sp.csr_matrix) -> EncodedQueries:
        return EncodedQueries(self.scorer.embed_queries(rows), rows)


def tensors_of(model: RankingModel) -> dict[str, AnyArray]:
    """Return the arrays of a model by their names in its file; a tied U and a shared vocabulary are held once."""
    tensors: dict[str, AnyArray] = {"V": model.encoder.V}
    if model.encoder.Y is not None:
        tensors["Y"] = model.encoder.Y
    if not model.scorer.is_tied:
        tensors["U"] = model.U
    sides = {"document": model.encoder.document_vocabulary}
    if not model.has_shared_vocabulary:
        sides["query"] = model.query_vocabulary
    for side, vocabulary in sides.items():
        tensors |= {f"{side}.{name}": array for name, array in vocabulary.to_arrays().items()}
    return tensors


def _manifest_content(model: RankingModel) -> dict[str, Any]:
    sha256, n_bytes = digest_of(tensors_of(model))
    encoder = model.encoder
    # A linear model has no such entry: its manifest is that of format version 1, byte for byte.
    form = {} if encoder.form == LINEAR else {"document_form": encoder.form}
    return {
        **form,
        "encoder_id": encoder.encoder_id,
        "text_view": encoder.view.to_json(),
        "query_view": model.query_view.to_json() if model.query_view else None,
        "analyzer": encoder.analyzer.config.to_json(),
        "tf": encoder.tf,
        "quantisation": encoder.quantisation,
        "identity": float(model.identity),
        "tied": model.scorer.is_tied,
        "shared_vocabulary": model.has_shared_vocabulary,
        "n_dims": encoder.n_dims,
        "n_document_words": len(encoder.document_vocabulary),
        "n_document_rows": len(encoder.V),
        "n_query_words": len(model.query_vocabulary),
        "n_query_rows": len(model.U),
        "training": model.training,
        "metrics": model.metrics,
        "files": {tensor_file_name(sha256): {"sha256": sha256, "bytes": n_bytes}},
    }


def tensor_file_name(sha256: str) -> str:
    """Return the name of the file of arrays that has this hash."""
    return f"tensors-{sha256[:12]}.safetensors"
