"""The ranking model: how documents and queries become vectors and lexical rows, and the ids of both sides.

A model consists of an `Encoder`, which determines everything that is stored with a document, and a query side. The
encoder id covers the text view, the analyzer, the vocabulary with its idf, V, the query memory and the
quantisation. It covers nothing of the query side: all stored vectors stay valid with a new U.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyArray, Bool, Float32, Float64
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.files import replace_files
from reranker.kernels.packing import Quantisation, check_quantisation, quantise_rows, quantise_vectors
from reranker.kernels.rows import check_embedding, check_finite_rows, embed_rows
from reranker.lexical.bm25 import LexicalRows, LexicalSettings, weigh_words
from reranker.lexical.memory import QueryMemory
from reranker.models.manifest import MANIFEST, manifest_bytes, sealed
from reranker.models.repeated import RepeatedQueries
from reranker.models.scorers import LinearScorer, pair_weights
from reranker.models.tensor_file import chunks_of, digest_of, tensor_file_name
from reranker.models.training_queries import TrainingQueries
from reranker.models.vector_field import VectorField, WordEncoder, has_vectors
from reranker.text.analyzers import Analyzer, EngineAnalyzer
from reranker.text.rows import combine, keep_values, mirrored, stack_rows
from reranker.text.tfidf import TfIdf, count_rows, learned_rows, text_counts
from reranker.text.view import TextView, source_hash
from reranker.text.vocabulary import Vocabulary

ENCODING_VERSION: Final = 1
"""Increased when the same inputs would give other vectors; part of every encoder id."""


DEFAULT_QUANTISATION: Final[Quantisation] = "float16"


ENGINE_ANALYZER: Final = "engine_analyzer"
"""Key of a manifest with the definition of the analysis chain in the engine (`reranker.engines.analysis`)."""


SHORT_QUERY: Final = 10
"""Largest number of different words of a short query."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedDocuments:
    """A batch of encoded documents, in their order."""

    vectors: Float32
    """Document vectors, (n, N) float32, rounded as stored: Vd' of the learned row d'.

    With a vector field, the K numbers of the given vector follow (`VectorField.project`).
    """
    rows: sp.csr_matrix
    """Lexical rows d, (n, 2**31 - 1) float32, weights rounded as stored."""
    source_hashes: list[str]
    """`TextView.source_hash` of each document."""
    has_text: Bool
    """False for a document without any word, memory and given vector, (n,) bool; it cannot be scored."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """Document side of a model.

    Raises
    ------
    ShapeMismatch
        If V is not a C-contiguous float32 matrix or has more rows than the vocabulary has words.
    InputError
        If V holds NaN or infinity, or the quantisation is unknown.
    ConfigError
        If ``tf`` is unknown, the lexical settings do not fit the fields, or there is a memory without settings of BM25.
    """

    view: TextView
    """Fields that are read, and their weights in the learned row."""
    analyzer: Analyzer
    """Splits texts into words."""
    document_vocabulary: Vocabulary
    """Word ids and idf."""
    tf: str
    """Term frequency, ``log`` or ``raw``, as in `TfIdf`."""
    V: Float32
    """Document side of the learned part, (n_rows, N) float32, C-contiguous.

    n_rows is the number of words D, or less if V is restricted (M08).
    """
    quantisation: Quantisation = DEFAULT_QUANTISATION
    """Precision of stored vectors and weights: ``float16``, ``float32`` or ``int8``.

    Measured on 7,479 documents against float32 (`benchmarks/bench_quantisation.py`): float16, the default, changes a
    score by 1e-5 on average (1e-3 at most, with a standard deviation of scores of .14), keeps the order of the first
    ten hits for 98.6 % of queries, and halves the bytes of a vector. int8 halves them again and keeps 99 % of the first
    ten hits, and their order for 67 % of queries.
    """
    lexical: LexicalSettings | None = None
    """Settings of the lexical row d; None if it is the learned row d', as in models of version 0.1."""
    memory: QueryMemory | None = None
    """Queries for which documents were relevant, or pages that link to them: the last field of the settings.

    With ``short_lexical`` it is a field of the row for short queries only. None: no memory.
    """
    vector_field: VectorField | None = None
    """How the vectors of the view's ``vector`` follow V d' in a document's vector; None exactly if there are none."""
    short_lexical: LexicalSettings | None = None
    """Settings of a second lexical row of each document, for short queries. None: one row serves all queries.

    Whole documents as queries find titles and common words that mislead a query of a few words. Both rows are stored as
    one, the second `mirrored`.
    """

    def __post_init__(self) -> None:
        if self.short_lexical is not None and self.lexical is None:
            raise ConfigError("settings for short queries need lexical settings for the others: give both")
        of_memory = self.lexical_of_short
        if self.memory is not None and (of_memory is None or of_memory.form != "bm25"):
            form = None if of_memory is None else of_memory.form
            raise ConfigError(f"a query memory needs the lexical form 'bm25', and this model's form is {form!r}")
        self.check_lexical_fields(self.view, "text view")
        if bool(self.view.vector) != (self.vector_field is not None):
            raise ConfigError("a view with a field of vectors needs a vector field, and no other view has one")
        check_quantisation(self.quantisation)
        check_embedding(self.V)
        check_finite_rows(self.V, "V")
        _check_word_rows(self.V, self.document_vocabulary, "V")
        _ = self.tfidf

    @property
    def n_dims(self) -> int:
        """N, the number of dimensions of a vector: those of V, and those of the given vectors if there are any."""
        return int(self.V.shape[1]) + (0 if self.vector_field is None else self.vector_field.n_dims)

    @cached_property
    def tfidf(self) -> TfIdf:
        """Encoder of tokens as unit rows."""
        return TfIdf(self.document_vocabulary, self.tf)

    @property
    def lexical_of_short(self) -> LexicalSettings | None:
        """Settings of the lexical rows that short queries use."""
        return self.lexical if self.short_lexical is None else self.short_lexical

    @cached_property
    def lexical_rows(self) -> LexicalRows | None:
        """Encoder of word counts as lexical rows; None if the learned rows are used."""
        return self.lexical_rows_by(self.document_vocabulary)

    @cached_property
    def short_rows(self) -> LexicalRows | None:
        """Encoder of word counts as the lexical rows for short queries; None if they use those of all queries."""
        return self.lexical_rows_by(self.document_vocabulary, is_short=True)

    def lexical_rows_by(self, vocabulary: Vocabulary, *, is_short: bool = False) -> LexicalRows | None:
        """Return `lexical_rows`, or with ``is_short`` `short_rows`, over the words of a vocabulary."""
        if is_short:
            return lexical_rows_of(self.short_lexical, vocabulary, self.memory)
        return lexical_rows_of(self.lexical, vocabulary, None if self.short_lexical is not None else self.memory)

    def check_lexical_fields(self, view: TextView, name: str) -> None:
        """Raise `ConfigError` if the lexical settings do not have one weight for each field of the view."""
        for settings, with_memory in (
            (self.lexical, self.memory is not None and self.short_lexical is None),
            (self.short_lexical, self.memory is not None),
        ):
            n_fields = len(view.fields) + self.analyzer.config.bigrams + with_memory
            if settings is not None and n_fields != len(settings.field_weights):
                raise ConfigError(
                    f"the {name} has {len(view.fields)} fields ({', '.join(spec.path for spec in view.fields)}"
                    f"{', and bigrams' if self.analyzer.config.bigrams else ''}"
                    f"{', and the memory' if with_memory else ''}) and the lexical settings have "
                    f"weights of {len(settings.field_weights)}: give one weight per field"
                )

    @cached_property
    def encoder_id(self) -> str:
        """SHA-256, in hexadecimal, of all that determines a stored vector; index fields are named by 12 digits."""
        view = self.view.with_weights(self.view.weights)  # an omitted weight equals the weight 1
        parts: dict[str, Any] = {
            "version": ENCODING_VERSION,
            "view": view.to_json(),
            "analyzer": self.analyzer.config.to_json(),
            "tf": self.tf,
            "quantisation": self.quantisation,
            "V": _array_sha256(self.V),
            **{name: _array_sha256(array) for name, array in self.document_vocabulary.to_arrays().items()},
        }
        if self.lexical is not None:
            parts["lexical"] = self.lexical.to_json()
        if self.short_lexical is not None:
            parts["short_lexical"] = self.short_lexical.to_json()
        if self.memory is not None:
            parts["memory"] = {name: _array_sha256(array) for name, array in self.memory.to_arrays().items()}
        if (given := self.vector_field) is not None:
            parts["vector_field"] = [given.longest, _array_sha256(given.mean), _array_sha256(given.axes)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("ascii")).hexdigest()

    def rows(self, documents: Sequence[Mapping[str, Any]], ids: Sequence[str] | None = None) -> sp.csr_matrix:
        """Return the lexical row d of each document at full precision, (n, 2**31 - 1) float32; ids as in `encode`."""
        counts = self._counts([self.view.texts(source) for source in documents])
        return self._rows(counts, learned_rows(self.tfidf, counts, self.view.weights), ids)

    def learned_rows(self, documents: Sequence[Mapping[str, Any]]) -> sp.csr_matrix:
        """Return the learned row d' of each document, the input of V, (n, 2**31 - 1) float32."""
        counts = self._counts([self.view.texts(source) for source in documents])
        return learned_rows(self.tfidf, counts, self.view.weights)

    def encode(self, documents: Sequence[Mapping[str, Any]], ids: Sequence[str] | None = None) -> EncodedDocuments:
        """Return vectors, rows and hashes of documents, given their sources.

        ``ids`` are the document ids, by which the query memory is found; without them no document has a memory.
        `InputError` is raised if a vector is too large for float16; the message names the alternatives. `InputError` is
        also raised if the given vector of a document cannot be used; the message names the document if there are ids.
        """
        texts = [self.view.texts(source) for source in documents]
        given: list[Float32 | None] = [None] * len(texts)
        projected = None
        if self.vector_field is not None:
            given = [
                self._given_vector(self.vector_field, source, "" if ids is None else ids[place])
                for place, source in enumerate(documents)
            ]
            projected = self.vector_field.vectors(given)
        vectors, rows, has_text = self.encode_counts(self._counts(texts), ids, projected)
        hashes = [source_hash(self.view, text, vector) for text, vector in zip(texts, given, strict=True)]
        return EncodedDocuments(vectors, rows, hashes, has_text)

    def _given_vector(self, field: VectorField, source: Mapping[str, Any], name: str) -> Float32 | None:
        """Return the vector that a document has, None without one; `InputError` if it cannot be used."""
        try:
            vector = self.view.given_vector(source)
            field.check(vector)
        except InputError as error:
            message = f"document {name!r}: {error.message}" if name else error.message
            raise InputError(message, **error.data) from error
        return vector

    def encode_counts(
        self, counts: Sequence[sp.csr_matrix], ids: Sequence[str] | None = None, given: Float32 | None = None
    ) -> tuple[Float32, sp.csr_matrix, Bool]:
        """Return ``vectors``, ``rows`` and ``has_text`` of `EncodedDocuments` from the word counts of each field.

        ``counts`` are those of `text_counts`: one matrix per field of the view, then that of bigrams. ids as in
        `encode`. ``given`` are the projected given vectors, (n, K), of an encoder with a vector field; without them,
        the documents have none.
        """
        learned = learned_rows(self.tfidf, counts, self.view.weights)
        rows = self._rows(counts, learned, ids)
        has_text = (np.diff(rows.indptr) > 0) | (np.diff(learned.indptr) > 0)
        vectors = embed_rows(learned, self.V)
        if self.vector_field is not None:
            if given is None:
                given = np.zeros((len(vectors), self.vector_field.n_dims), np.float32)
            vectors = np.hstack([vectors, given])
            has_text |= has_vectors(given)
        return quantise_vectors(vectors, self.quantisation), quantise_rows(rows, self.quantisation), has_text

    def _counts(self, texts: Sequence[Sequence[str]]) -> list[sp.csr_matrix]:
        return text_counts(self.document_vocabulary, self.analyzer, texts, len(self.view.fields))

    def _rows(
        self, counts: Sequence[sp.csr_matrix], learned: sp.csr_matrix, ids: Sequence[str] | None
    ) -> sp.csr_matrix:
        if self.lexical_rows is None:
            return learned
        if self.short_rows is None:
            return self.lexical_rows.documents(lexical_counts(self.memory, counts, ids))
        short = self.short_rows.documents(lexical_counts(self.memory, counts, ids))
        return combine([self.lexical_rows.documents(counts), mirrored(short)], [1.0, 1.0])


@dataclass(frozen=True, slots=True, eq=False)
class EncodedQueries:
    """A batch of encoded queries, in their order; rows are csr_matrix, (n, 2**31 - 1) float32."""

    vectors: Float32
    """Query vectors Uq' of the learned rows, (n, N) float32."""
    rows: sp.csr_matrix
    """Lexical rows q."""
    learned_rows: sp.csr_matrix
    """Learned rows q' of unit length, the input of U; the same matrix as ``rows`` without lexical settings."""

    def part(self, places: Sequence[int]) -> EncodedQueries:
        """Return the queries with the given row numbers."""
        rows = self.rows[places]
        learned = rows if self.learned_rows is self.rows else self.learned_rows[places]
        return EncodedQueries(self.vectors[places], rows, learned)

    @property
    def has_text(self) -> Bool:
        """False for a query without any word, which scores 0 with every document, (n,) bool."""
        return (np.diff(self.rows.indptr) > 0) | (np.diff(self.learned_rows.indptr) > 0)


@dataclass(frozen=True, eq=False)
class RankingModel:
    """Everything needed to encode documents and queries and to score them.

    Raises
    ------
    ShapeMismatch
        If U does not fit V or the query vocabulary.
    InputError
        If U is not finite, or ``identity`` is not usable.
    ConfigError
        If ``query_view`` does not have the number of fields of the lexical settings, or the encoder has a memory and
        queries have another vocabulary.
    """

    encoder: Encoder
    query_vocabulary: Vocabulary
    """Words of the query side; the same object as the encoder's vocabulary, unless the two sides differ."""
    U: Float32
    """Query side of the learned part, (n_rows, N) float32, at most one row per query word; ``encoder.V`` if tied."""
    identity: float = 1.0
    """a >= 0, the weight of q.d. It must be 0 if the vocabularies differ, because one id then means two words."""
    query_view: TextView | None = None
    """Fields of a document used as a query (their weights are ignored); None for the encoder's view."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """How the model was trained, stored in the manifest as JSON."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Measures that the model reached, stored in the manifest as JSON."""
    U_short: Float32 | None = None
    """Query side for queries of at most `SHORT_QUERY` different words, of U's shape; None: U serves all queries.

    Whole documents and short queries search the same document vectors in two different ways.
    """
    word_weights: Float32 | None = None
    """Weight of each query word in q, (words of ``query_vocabulary``,) float32, above 0. None: 1 each."""
    training_queries: TrainingQueries | None = None
    """Hashes of the queries that the model has learned from. None: unknown, as in models of earlier versions."""
    word_encoder: WordEncoder | None = None
    """Query side of the encoder's vector field; None exactly if the encoder has none."""
    short_row_weight: float = 0.0
    """Weight, at least 0, of the rows for short queries in the score of other queries.

    Longer queries gain from the memory in these rows too, but with less weight than short ones.
    """
    mean_vector: Float32 | None = None
    """Mean of the stored vectors of the documents it was trained on, (N,) float32. None: unknown, as in models of
    earlier versions, which have no impacts (`reranker.models.impacts`)."""
    repeated: RepeatedQueries | None = None
    """Preferences of users for repeated queries, which are added to the score; None: there are none."""

    def __post_init__(self) -> None:
        _ = self.scorer
        self._check_word_encoder()
        _check_word_rows(self.U, self.query_vocabulary, "U")
        if self.U_short is not None:
            check_embedding(self.U_short)
            check_finite_rows(self.U_short, "U_short")
            if self.U_short.shape != self.U.shape:
                raise ShapeMismatch(
                    f"U_short has shape {self.U_short.shape} and U {self.U.shape}: give tables of one shape"
                )
        if self.word_weights is not None:
            self._check_word_weights(self.word_weights)
        if not (math.isfinite(self.short_row_weight) and self.short_row_weight >= 0):
            raise ConfigError(f"short_row_weight is {self.short_row_weight!r}: it must be finite and at least 0")
        if self.short_row_weight and self.encoder.short_lexical is None:
            raise ConfigError("short_row_weight is the weight of rows for short queries, and this model has none")
        self._check_mean_vector()
        if self.query_view is not None:
            self.encoder.check_lexical_fields(self.query_view, "view of queries")
        if self.encoder.memory is not None and not self.has_shared_vocabulary:
            raise ConfigError(
                "a query memory needs one vocabulary for queries and documents, and this model has two: leave it out"
            )
        if self.identity and not self.has_shared_vocabulary:
            raise InputError(
                f"the identity has weight {self.identity} while queries and documents have different vocabularies, "
                f"in which one id means two words; set it to 0 or use one vocabulary"
            )

    def _check_mean_vector(self) -> None:
        mean = self.mean_vector
        if mean is None:
            return
        if mean.shape != (self.encoder.n_dims,):
            raise ShapeMismatch(f"the mean vector has the shape {mean.shape}: give ({self.encoder.n_dims},)")
        if not np.isfinite(mean).all():
            raise InputError("the mean vector holds a value that is not finite: correct it")

    def _check_word_encoder(self) -> None:
        words, field = self.word_encoder, self.encoder.vector_field
        if (words is None) != (field is None):
            raise ConfigError("a vector field needs a word encoder, and a word encoder a vector field: give both")
        if words is not None and field is not None:
            _check_word_rows(words.U, self.query_vocabulary, "the table of the word encoder")
            if words.U.shape[1] != field.n_dims:
                raise ShapeMismatch(
                    f"the word encoder has {words.U.shape[1]} dimensions and the vector field {field.n_dims}"
                )

    def _check_word_weights(self, weights: Float32) -> None:
        if self.encoder.lexical is None:
            raise ConfigError("word_weights need lexical settings, and this model has none: leave them out")
        if weights.shape != (len(self.query_vocabulary),):
            raise ShapeMismatch(
                f"word_weights have shape {weights.shape}: give {len(self.query_vocabulary)}, one per word"
            )
        if not (np.isfinite(weights).all() and (weights > 0).all()):
            raise InputError("word_weights hold a value that is not finite and above 0: correct it")

    @property
    def has_shared_vocabulary(self) -> bool:
        """Whether queries and documents use one vocabulary."""
        return self.query_vocabulary is self.encoder.document_vocabulary

    @cached_property
    def scorer(self) -> LinearScorer:
        """f(q, d) over learned rows; equal to the model's score only if these are also the lexical rows."""
        return LinearScorer(self.U, self.encoder.V, self.identity)

    def preferred(self, query: str) -> dict[str, float]:
        """Return document id → p(q, d), the preferences of users for a query; empty unless it is a repeated one."""
        return {} if self.repeated is None else self.repeated.of_query(query)

    def query_side(self, n_words: int) -> Float32:
        """Return the table, U or U_short, for a query of ``n_words`` different words."""
        return self.U if self.U_short is None or n_words > SHORT_QUERY else self.U_short

    def embed_queries(self, learned_rows: sp.csr_matrix) -> Float32:
        """Return the vectors of queries, (n, N) float32, each by the table for its number of words."""
        is_short = np.diff(learned_rows.indptr) <= SHORT_QUERY
        if self.U_short is None or not is_short.any():
            vectors = self.scorer.embed_queries(learned_rows)
        elif is_short.all():
            vectors = embed_rows(learned_rows, self.U_short)
        else:
            vectors, short = self.scorer.embed_queries(learned_rows), np.flatnonzero(is_short)
            vectors[short] = embed_rows(learned_rows[short], self.U_short)
        if self.word_encoder is not None:
            vectors = np.hstack([vectors, self.word_encoder.vectors(learned_rows)])
        return vectors

    def uses_short_rows(self, n_words: int) -> bool:
        """Return whether a query of ``n_words`` different words uses the lexical rows for short queries."""
        return self.encoder.short_lexical is not None and n_words <= SHORT_QUERY

    def uses_memory(self, n_words: int) -> bool:
        """Return whether a query of ``n_words`` different words reads rows with the memory, if there is one."""
        return self.encoder.short_lexical is None or self.uses_short_rows(n_words) or self.short_row_weight > 0

    def by_word(self, query: EncodedQueries, rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return what the words of one query find in stored lexical rows of documents, by word numbers.

        Its inner product with `asked_words` of the query equals that of the stored rows with the query's rows.
        """
        return mirrored(rows) if self.uses_short_rows(query.learned_rows.nnz) else self._with_short_rows(rows)

    def _with_short_rows(self, rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return lexical rows plus the same rows `mirrored`, with the weight of the rows for short queries."""
        return combine([rows, mirrored(rows)], [1.0, self.short_row_weight]) if self.short_row_weight else rows

    def asked_words(self, query: EncodedQueries) -> sp.csr_matrix:
        """Return the lexical row of one query by word numbers, (1, 2**31 - 1) float32."""
        if self.uses_short_rows(query.learned_rows.nnz):
            return mirrored(query.rows)
        if not self.short_row_weight:
            return query.rows
        return keep_values(query.rows, np.isin(query.rows.indices, query.learned_rows.indices))

    def pair_weights(self, query: sp.csr_matrix, document: sp.csr_matrix) -> Float64:
        """Return W_ij of each query word and document word, (n_q, n_d); the weight a of q.d is not included."""
        return pair_weights(self.query_side(query.nnz), self.encoder.V, query.indices, document.indices)

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The content of ``manifest.json``; computing it reads U and V once for their hash."""
        sha256, n_bytes = digest_of(tensors_of(self))
        encoder = self.encoder
        # A model without lexical settings has none of these entries: its manifest stays at format version 1.
        more: dict[str, Any] = {}
        if encoder.lexical is not None:
            more["lexical"] = encoder.lexical.to_json()
        if encoder.short_lexical is not None:
            more["short_lexical"] = encoder.short_lexical.to_json()
        if encoder.memory is not None:
            more["n_memory_documents"] = len(encoder.memory)
        if encoder.vector_field is not None and self.word_encoder is not None:
            words = {"n_word_rows": len(self.word_encoder.U), "weight": float(self.word_encoder.weight)}
            more["vector_field"] = {**encoder.vector_field.to_json(), **words}
        if isinstance(encoder.analyzer, EngineAnalyzer) and encoder.analyzer.definition:
            more[ENGINE_ANALYZER] = encoder.analyzer.definition
        content = {
            **more,
            "encoder_id": encoder.encoder_id,
            "text_view": encoder.view.to_json(),
            "query_view": self.query_view.to_json() if self.query_view else None,
            "analyzer": encoder.analyzer.config.to_json(),
            "tf": encoder.tf,
            "quantisation": encoder.quantisation,
            "identity": float(self.identity),
            "tied": self.scorer.is_tied,
            "shared_vocabulary": self.has_shared_vocabulary,
            "n_dims": int(encoder.V.shape[1]),
            "n_document_words": len(encoder.document_vocabulary),
            "n_document_rows": len(encoder.V),
            "n_query_words": len(self.query_vocabulary),
            "n_query_rows": len(self.U),
            **({} if self.U_short is None else {"short_query": SHORT_QUERY}),
            **({} if not self.short_row_weight else {"short_row_weight": float(self.short_row_weight)}),
            **({} if self.word_weights is None else {"n_word_weights": len(self.word_weights)}),
            **({} if (known := self.training_queries) is None else {"training_queries": known.to_json()}),
            **({} if self.mean_vector is None else {"mean_vector": len(self.mean_vector)}),
            **({} if self.repeated is None else {"repeated_queries": self.repeated.to_json()}),
            "training": self.training,
            "metrics": self.metrics,
            "files": {tensor_file_name(sha256): {"sha256": sha256, "bytes": n_bytes}},
        }
        return sealed(content)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the model into a folder, replacing the model in it, and return the model id.

        Equal models give equal bytes. If writing fails at any point, the folder holds the complete old model or the
        complete new one. Raises `ArtifactError`, and changes nothing, if the folder cannot be written (permission, disk
        full).
        """
        content = self.manifest
        (name,) = content["files"]
        replace_files(
            Path(path),
            data={name: chunks_of(tensors_of(self))},
            pointer=(MANIFEST, manifest_bytes(content)),
            stale="tensors-*.safetensors",
        )
        return self.model_id

    @property
    def model_id(self) -> str:
        """SHA-256 of the whole model, including training and metrics, in hexadecimal."""
        return str(self.manifest["model_id"])

    @property
    def encoder_id(self) -> str:
        """The id of the document side; it does not depend on U."""
        return self.encoder.encoder_id

    @cached_property
    def _query_lexical(self) -> LexicalRows | None:
        return self.encoder.lexical_rows_by(self.query_vocabulary)

    @cached_property
    def _query_short(self) -> LexicalRows | None:
        return self.encoder.lexical_rows_by(self.query_vocabulary, is_short=True)

    def encode_queries(self, texts: Sequence[str]) -> EncodedQueries:
        """Return vectors and rows of query strings."""
        return self.encode_counts(count_rows(self.query_vocabulary, self.encoder.analyzer.tokens(texts)))

    def encode_counts(self, counts: sp.csr_matrix) -> EncodedQueries:
        """Return vectors and rows of queries given as word counts, (n, 2**31 - 1), see `count_rows`."""
        return self._encoded(counts, [counts])

    def encode_query_documents(self, sources: Sequence[Mapping[str, Any]]) -> EncodedQueries:
        """Return vectors and rows of documents used as queries.

        q' is computed from all fields read as one text, at unit length: unlike in d', fields are weighted by their
        length and not by the view's weights. A query that gives its title the weight of a document's title finds its
        own title, which is seldom what the document refers to. For q
        the lexical settings have weights of their own.
        """
        view = self.query_view or self.encoder.view
        texts = [view.texts(source) for source in sources]
        if self._query_lexical is None:
            return self.encode_queries(["\n".join(fields) for fields in texts])
        return self.encode_query_counts(
            text_counts(self.query_vocabulary, self.encoder.analyzer, texts, len(view.fields))
        )

    def encode_query_counts(self, counts: Sequence[sp.csr_matrix]) -> EncodedQueries:
        """Return `encode_query_documents` of documents given as word counts by field (`text_counts`)."""
        together = combine(counts, [1.0] * len(counts))
        if self._query_lexical is None:
            return self.encode_counts(together)
        memory = None if self.encoder.short_lexical is not None else self.encoder.memory
        return self._encoded(together, lexical_counts(memory, counts))

    def _encoded(self, counts: sp.csr_matrix, fields: Sequence[sp.csr_matrix]) -> EncodedQueries:
        """Return queries from the counts of all their words, and of the words of each field."""
        learned = TfIdf(self.query_vocabulary, self.encoder.tf).rows_of_counts(counts)
        is_short = np.diff(learned.indptr) <= SHORT_QUERY
        if self._query_short is None or not is_short.any():
            rows = self._whole_rows(fields, learned)
        elif is_short.all():
            rows = mirrored(self._query_short.queries([counts]))
        else:
            short, others = np.flatnonzero(is_short), np.flatnonzero(~is_short)
            whole = self._whole_rows([field[others] for field in fields], learned[others])
            rows = stack_rows([mirrored(self._query_short.queries([counts[short]])), whole])
            rows = rows[np.argsort(np.concatenate([short, others]))]
        return EncodedQueries(self.embed_queries(learned), rows, learned)

    def _whole_rows(self, fields: Sequence[sp.csr_matrix], learned: sp.csr_matrix) -> sp.csr_matrix:
        """Return the lexical rows of queries that do not use the rows for short queries."""
        rows = learned if self._query_lexical is None else self._query_lexical.queries(fields)
        return self._with_short_rows(rows if self.word_weights is None else weigh_words(rows, self.word_weights))


def lexical_rows_of(
    settings: LexicalSettings | None, vocabulary: Vocabulary, memory: QueryMemory | None = None
) -> LexicalRows | None:
    """Return the encoder of lexical rows over a vocabulary (and a memory); None without settings."""
    if settings is None:
        return None
    if memory is None:
        return LexicalRows(settings, vocabulary.frequency_of, vocabulary.n_documents)
    added = memory.frequency_of
    return LexicalRows(settings, lambda ids: vocabulary.frequency_of(ids) + added(ids), vocabulary.n_documents)


def lexical_counts(
    memory: QueryMemory | None, counts: Sequence[sp.csr_matrix], ids: Sequence[str] | None = None
) -> Sequence[sp.csr_matrix]:
    """Return the counts of all fields of lexical rows: those of the view, then the memory's."""
    return counts if memory is None else [*counts, memory.counts(ids, counts[0].shape[0])]


def _check_word_rows(E: Float32, vocabulary: Vocabulary, name: str) -> None:
    """Raise `ShapeMismatch` if an embedding table has more rows than its vocabulary has words."""
    if len(E) > len(vocabulary):
        raise ShapeMismatch(
            f"{name} has {len(E)} rows for a vocabulary of {len(vocabulary)} words; at most one row per word is "
            f"possible: the table belongs to another vocabulary"
        )


def _array_sha256(array: AnyArray) -> str:
    """Return the SHA-256 of an array's type, shape and little-endian bytes, in hexadecimal."""
    stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    digest = hashlib.sha256(f"{stored.dtype.str}{stored.shape}".encode("ascii"))
    digest.update(stored.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def tensors_of(model: RankingModel) -> dict[str, AnyArray]:
    """Return the arrays of a model by their names in its file; a tied U and a shared vocabulary occur once."""
    own_U = None if model.scorer.is_tied else model.U
    tables = {"V": model.encoder.V, "U": own_U, "U_short": model.U_short}
    tensors: dict[str, AnyArray] = {name: table for name, table in tables.items() if table is not None}
    if model.word_weights is not None:
        tensors["word_weights"] = model.word_weights
    if model.training_queries is not None:
        tensors["training_queries"] = model.training_queries.hashes
    if model.mean_vector is not None:
        tensors["mean_vector"] = model.mean_vector
    if model.repeated is not None:
        tensors |= {f"repeated.{name}": array for name, array in model.repeated.to_arrays().items()}
    sides = {"document": model.encoder.document_vocabulary}
    if not model.has_shared_vocabulary:
        sides["query"] = model.query_vocabulary
    for side, vocabulary in sides.items():
        tensors |= {f"{side}.{name}": array for name, array in vocabulary.to_arrays().items()}
    if model.encoder.memory is not None:
        tensors |= {f"memory.{name}": array for name, array in model.encoder.memory.to_arrays().items()}
    if (given := model.encoder.vector_field) is not None and model.word_encoder is not None:
        tensors |= {"given.mean": given.mean, "given.axes": given.axes, "given.U": model.word_encoder.U}
    return tensors
