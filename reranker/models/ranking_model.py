"""The ranking model: how documents and queries become vectors and lexical rows, and the ids of both.

A model is an `Encoder`, which decides everything that is stored with a document, and a query side. The encoder's id
covers the text view, the analyzer, the vocabulary with its idf, V (and Y, and the form they are joined in), the memory
of queries and the quantisation, and nothing of the query side: a new U leaves every stored vector valid.
"""

from __future__ import annotations

import hashlib
import json
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
from reranker.lexical.bm25 import LexicalRows, LexicalSettings, weigh_words
from reranker.lexical.memory import QueryMemory
from reranker.models.manifest import MANIFEST, manifest_bytes, sealed
from reranker.models.scorers import LINEAR, DocumentForm, FormScorer, query_vectors, weights_in
from reranker.models.tensor_file import chunks_of, digest_of, tensor_file_name
from reranker.text.analyzers import Analyzer
from reranker.text.rows import combine
from reranker.text.tfidf import TfIdf, count_rows, learned_rows, text_counts
from reranker.text.view import TextView, texts_hash
from reranker.text.vocabulary import Vocabulary

ENCODING_VERSION: Final = 1
"""Raised when the same inputs would give other vectors: it is part of every encoder id."""


DEFAULT_QUANTISATION: Final[Quantisation] = "float16"


SHORT_QUERY: Final = 10
"""Different words of a short query at most."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedDocuments:
    """What a batch of documents becomes, in their order."""

    vectors: Float32
    """(n, N) float32: Vd' (c(d'), where the form is not linear) of the learned row d', rounded as it is stored."""
    rows: sp.csr_matrix
    """csr_matrix, (n, 2**31 - 1) float32: d, the lexical row, its weights rounded as they are stored."""
    source_hashes: list[str]
    """`TextView.source_hash` of each document."""
    has_text: Bool
    """(n,) bool: False where the document has no word at all, nor a memory; it cannot be scored."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """The document side of a model.

    `ShapeMismatch` is raised if V is no C-contiguous float32 matrix or has more rows than the vocabulary has words, or
    Y does not fit it; `InputError` if V or Y holds NaN or infinity, or the quantisation is not known; `ConfigError` for
    an unknown ``tf`` or form, lexical settings that do not fit the fields, or a memory without those of BM25.
    """

    view: TextView
    """Which fields are read, and their weights in the learned row."""
    analyzer: Analyzer
    """Texts to words."""
    document_vocabulary: Vocabulary
    """Words to ids and idf."""
    tf: str
    """{'log', 'raw'}: Term frequency, as `TfIdf` has it."""
    V: Float32
    """(n_rows, N) float32: Document side of the learned part, C-contiguous, n_rows <= D, fewer if restricted (M08)."""
    quantisation: Quantisation = DEFAULT_QUANTISATION
    """{'float16', 'float32', 'int8'}: Precision of stored vectors and weights. Measured on 7,479 documents against
    float32 (`benchmarks/bench_quantisation.py`): float16, the default, moves a score by 1e-5 on average (1e-3 at most,
    of a spread of .14) and leaves the order of the first ten alone for 98.6 % of queries, at half the bytes of a
    vector; int8 halves them again, keeps 99 % of the first ten, and their order for 67 % of queries."""
    form: str = LINEAR
    """How V (and Y) make a document's vector c(d), a name of `reranker.models.scorers.FORMS`."""
    Y: Float32 | None = None
    """(n_rows, N or N / 2) float32, optional: The second table of the cubic forms."""
    lexical: LexicalSettings | None = None
    """The lexical row d; None where it is the learned row d', as in models of version 0.1."""
    memory: QueryMemory | None = None
    """What documents were relevant for: one more field of d, the last of the lexical settings; None: there is none."""

    def __post_init__(self) -> None:
        if self.memory is not None and (self.lexical is None or self.lexical.form != "bm25"):
            form = None if self.lexical is None else self.lexical.form
            raise ConfigError(f"a memory of queries is a field of the lexical form 'bm25', and this one is {form!r}")
        self.check_lexical_fields(self.view, "text view")
        check_quantisation(self.quantisation)
        _ = self.documents
        _check_word_rows(self.V, self.document_vocabulary, "V")
        _ = self.tfidf

    @property
    def n_dims(self) -> int:
        """N, the dimensions of a vector."""
        return int(self.V.shape[1])

    @cached_property
    def documents(self) -> DocumentForm:
        """What makes a vector of a row."""
        return DocumentForm(self.form, self.V, self.Y)

    @cached_property
    def norm_bound(self) -> float:
        """M: no document's vector is longer, whatever its text; above 0.

        d' is a sum of unit rows with the fields' weights β (of bigrams 1), so |d'| <= Σ|β|, and `DocumentForm.bound`
        says how long c(d') can be. 5 % are added for the rounding of stored vectors (int8's is the largest).
        """
        longest = sum(abs(weight) for weight in self.view.weights) + self.analyzer.config.bigrams
        bound = 1.05 * self.documents.bound(longest)
        return float(f"{bound:.4g}") if bound > 0 else 1.0

    @cached_property
    def tfidf(self) -> TfIdf:
        """Tokens to unit rows."""
        return TfIdf(self.document_vocabulary, self.tf)

    @cached_property
    def lexical_rows(self) -> LexicalRows | None:
        """Word counts to lexical rows; None where these are the learned rows."""
        return lexical_rows_of(self.lexical, self.document_vocabulary, self.memory)

    def check_lexical_fields(self, view: TextView, name: str) -> None:
        """Raise `ConfigError` where a view has another number of fields than the lexical settings have for one."""
        n_fields = len(view.fields) + self.analyzer.config.bigrams + (self.memory is not None)
        if self.lexical is not None and n_fields != len(self.lexical.field_weights):
            raise ConfigError(
                f"the {name} has {len(view.fields)} fields ({', '.join(spec.path for spec in view.fields)}"
                f"{', and bigrams' if self.analyzer.config.bigrams else ''}"
                f"{'' if self.memory is None else ', and the memory of queries'}) and the lexical settings have "
                f"weights of {len(self.lexical.field_weights)}: give one weight a field"
            )

    @cached_property
    def encoder_id(self) -> str:
        """64 hexadecimal digits: SHA-256 of all that decides a stored vector; the first 12 name the index fields."""
        view = self.view.with_weights(self.view.weights)  # a weight left out and the weight 1 give the same vectors
        parts: dict[str, Any] = {
            "version": ENCODING_VERSION,
            "view": view.to_json(),
            "analyzer": self.analyzer.config.to_json(),
            "tf": self.tf,
            "quantisation": self.quantisation,
            "V": _array_sha256(self.V),
            **{name: _array_sha256(array) for name, array in self.document_vocabulary.to_arrays().items()},
        }
        if self.form != LINEAR:  # ids of linear encoders are as they were before there were other forms
            parts |= {"form": self.form, "Y": None if self.Y is None else _array_sha256(self.Y)}
        if self.lexical is not None:
            parts["lexical"] = self.lexical.to_json()
        if self.memory is not None:
            parts["memory"] = {name: _array_sha256(array) for name, array in self.memory.to_arrays().items()}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("ascii")).hexdigest()

    def rows(self, documents: Sequence[Mapping[str, Any]], ids: Sequence[str] | None = None) -> sp.csr_matrix:
        """Return d of each document, its lexical row, at full precision, (n, 2**31 - 1) float32; ids as in `encode`."""
        counts = self._counts([self.view.texts(source) for source in documents])
        return self._rows(counts, learned_rows(self.tfidf, counts, self.view.weights), ids)

    def learned_rows(self, documents: Sequence[Mapping[str, Any]]) -> sp.csr_matrix:
        """Return d' of each document, the row that V reads, (n, 2**31 - 1) float32."""
        counts = self._counts([self.view.texts(source) for source in documents])
        return learned_rows(self.tfidf, counts, self.view.weights)

    def encode(self, documents: Sequence[Mapping[str, Any]], ids: Sequence[str] | None = None) -> EncodedDocuments:
        """Return vectors, rows and hashes of documents, given their sources.

        ``ids`` are those of the documents, by which they have a memory; None: none has any. `InputError` is raised if a
        vector is too large for float16; the message names what to choose.
        """
        texts = [self.view.texts(source) for source in documents]
        vectors, rows, has_text = self.encode_counts(self._counts(texts), ids)
        return EncodedDocuments(vectors, rows, [texts_hash(text) for text in texts], has_text)

    def encode_counts(
        self, counts: Sequence[sp.csr_matrix], ids: Sequence[str] | None = None
    ) -> tuple[Float32, sp.csr_matrix, Bool]:
        """Return ``vectors``, ``rows`` and ``has_text`` of `EncodedDocuments`, given the word counts of each field.

        ``counts`` are those of `text_counts`, a matrix a field of the view, then that of bigrams; ids as in `encode`.
        """
        learned = learned_rows(self.tfidf, counts, self.view.weights)
        rows = self._rows(counts, learned, ids)
        has_text = (np.diff(rows.indptr) > 0) | (np.diff(learned.indptr) > 0)
        vectors = quantise_vectors(self.documents.vectors(learned), self.quantisation)
        return vectors, quantise_rows(rows, self.quantisation), has_text

    def _counts(self, texts: Sequence[Sequence[str]]) -> list[sp.csr_matrix]:
        return text_counts(self.document_vocabulary, self.analyzer, texts, len(self.view.fields))

    def _rows(
        self, counts: Sequence[sp.csr_matrix], learned: sp.csr_matrix, ids: Sequence[str] | None
    ) -> sp.csr_matrix:
        if self.lexical_rows is None:
            return learned
        return self.lexical_rows.documents(lexical_counts(self.memory, counts, ids))


@dataclass(frozen=True, slots=True, eq=False)
class EncodedQueries:
    """What queries become, in their order; rows are csr_matrix, (n, 2**31 - 1) float32."""

    vectors: Float32
    """(n, N) float32: Uq' of the learned row (of length 1 in the form ``unit``)."""
    rows: sp.csr_matrix
    """q, the lexical row."""
    learned_rows: sp.csr_matrix
    """q', the unit row that U reads: the very same matrix where the model has no lexical settings."""

    def part(self, places: Sequence[int]) -> EncodedQueries:
        """Return the queries of some row numbers."""
        rows = self.rows[places]
        learned = rows if self.learned_rows is self.rows else self.learned_rows[places]
        return EncodedQueries(self.vectors[places], rows, learned)

    @property
    def has_text(self) -> Bool:
        """(n,) bool: False for a query without any word, which scores 0 with every document."""
        return (np.diff(self.rows.indptr) > 0) | (np.diff(self.learned_rows.indptr) > 0)


@dataclass(frozen=True, eq=False)
class RankingModel:
    """Everything that is needed to encode documents and queries and to score them.

    `ShapeMismatch` is raised if U does not fit V or the query vocabulary; `InputError` if U is not finite, or the
    identity's weight is not usable; `ConfigError` if ``query_view`` has another number of fields than the lexical
    settings, or the encoder has a memory and queries another vocabulary.
    """

    encoder: Encoder
    query_vocabulary: Vocabulary
    """Words of the query side; the encoder's own, unless the two sides have different vocabularies."""
    U: Float32
    """Query side of the learned part, (n_rows, N) float32, at most a row a query word; ``encoder.V`` itself if tied."""
    identity: float = 1.0
    """a >= 0, the weight of q.d. Must be 0 where the vocabularies differ: one id then means two words."""
    query_view: TextView | None = None
    """Fields of a document that is used as a query (their weights play no part); None for those of the encoder."""
    training: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What made the model and what it reached, kept in the manifest as JSON."""
    U_short: Float32 | None = None
    """Query side for queries of at most `SHORT_QUERY` different words, of U's shape: whole documents and a few words
    ask the same vectors in two ways. None: U is for all."""
    word_weights: Float32 | None = None
    """(words of ``query_vocabulary``,) float32 above 0: what each word of a query counts in q. None: 1 each."""

    def __post_init__(self) -> None:
        _ = self.scorer
        _check_word_rows(self.U, self.query_vocabulary, "U")
        if self.U_short is not None:
            FormScorer(self.U_short, self.encoder.documents, self.identity)  # raises what is said above
            if self.U_short.shape != self.U.shape:
                raise ShapeMismatch(
                    f"U_short is {self.U_short.shape} where U is {self.U.shape}: give rows of one shape"
                )
        if self.word_weights is not None:
            self._check_word_weights(self.word_weights)
        if self.query_view is not None:
            self.encoder.check_lexical_fields(self.query_view, "view of queries")
        if self.encoder.memory is not None and not self.has_shared_vocabulary:
            raise ConfigError("a memory holds words of queries, and here those are no words of documents: leave it out")
        if self.identity and not self.has_shared_vocabulary:
            raise InputError(
                f"the identity has weight {self.identity} while queries and documents have different vocabularies, "
                f"in which one id means two words; set it to 0 or use one vocabulary"
            )

    def _check_word_weights(self, weights: Float32) -> None:
        if self.encoder.lexical is None:
            raise ConfigError("word_weights are of the lexical settings' q, and there are none: leave them out")
        if weights.shape != (len(self.query_vocabulary),):
            raise ShapeMismatch(f"word_weights are {weights.shape}: give {len(self.query_vocabulary)}, one a word")
        if not (np.isfinite(weights).all() and (weights > 0).all()):
            raise InputError("word_weights hold a value that is not finite and above 0: leave none out")

    @property
    def has_shared_vocabulary(self) -> bool:
        """True where queries and documents use one vocabulary."""
        return self.query_vocabulary is self.encoder.document_vocabulary

    @cached_property
    def scorer(self) -> FormScorer:
        """f(q, d) over rows, where the lexical rows are the learned ones; its vectors are of the learned rows."""
        return FormScorer(self.U, self.encoder.documents, self.identity)

    def query_side(self, n_words: int) -> Float32:
        """Return the table that maps queries of so many different words, U or U_short."""
        return self.U if self.U_short is None or n_words > SHORT_QUERY else self.U_short

    def embed_queries(self, learned_rows: sp.csr_matrix) -> Float32:
        """Return the vectors of queries, (n, N) float32, each by the table for its number of words."""
        vectors = self.scorer.embed_queries(learned_rows)
        if self.U_short is not None:
            short = np.flatnonzero(np.diff(learned_rows.indptr) <= SHORT_QUERY)
            vectors[short] = query_vectors(self.encoder.form, self.U_short, learned_rows[short])
        return vectors

    def pair_weights(self, query: sp.csr_matrix, document: sp.csr_matrix) -> Float64:
        """Return W_ij of each word of a query's row with each of a document's, see `weights_in`; without q.d's a."""
        return weights_in(self.encoder.documents, self.query_side(query.nnz), query, document)

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """What `save_model` writes into ``manifest.json``; reads U and V once for their hash."""
        sha256, n_bytes = digest_of(tensors_of(self))
        encoder = self.encoder
        # A linear model with one row a document has none of these: its manifest is of format version 1, byte for byte.
        more: dict[str, Any] = {} if encoder.form == LINEAR else {"document_form": encoder.form}
        if encoder.lexical is not None:
            more["lexical"] = encoder.lexical.to_json()
        if encoder.memory is not None:
            more["n_memory_documents"] = len(encoder.memory)
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
            "n_dims": encoder.n_dims,
            "n_document_words": len(encoder.document_vocabulary),
            "n_document_rows": len(encoder.V),
            "n_query_words": len(self.query_vocabulary),
            "n_query_rows": len(self.U),
            **({} if self.U_short is None else {"short_query": SHORT_QUERY}),
            **({} if self.word_weights is None else {"n_word_weights": len(self.word_weights)}),
            "training": self.training,
            "metrics": self.metrics,
            "files": {tensor_file_name(sha256): {"sha256": sha256, "bytes": n_bytes}},
        }
        return sealed(content)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the model into a folder, in place of the one that is there, and return its model id.

        Equal models give equal bytes. Whatever happens on the way, the folder holds the old model or the new one,
        whole. `ArtifactError` if the folder cannot be written (permission, disk full); what was there is untouched.
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
        """64 hexadecimal digits: SHA-256 over the whole model, training and measures included."""
        return str(self.manifest["model_id"])

    @property
    def encoder_id(self) -> str:
        """The id of the document side; unchanged by another U."""
        return self.encoder.encoder_id

    @cached_property
    def _query_lexical(self) -> LexicalRows | None:
        return lexical_rows_of(self.encoder.lexical, self.query_vocabulary, self.encoder.memory)

    def encode_queries(self, texts: Sequence[str]) -> EncodedQueries:
        """Return vectors and rows of query strings."""
        return self.encode_counts(count_rows(self.query_vocabulary, self.encoder.analyzer.tokens(texts)))

    def encode_counts(self, counts: sp.csr_matrix) -> EncodedQueries:
        """Return vectors and rows of queries that are word counts, (n, 2**31 - 1), see `count_rows`."""
        return self._encoded(counts, [counts])

    def encode_query_documents(self, sources: Sequence[Mapping[str, Any]]) -> EncodedQueries:
        """Return vectors and rows of documents used as queries.

        q' is of all fields read as one text, at unit length: unlike in d', the fields are not weighted, their lengths
        are. A query that repeats its own title's weight looks for its title again, which is seldom what it refers to
        (MAP .27 in place of .38 on a linked documentation). The lexical settings have weights of their own for q.
        """
        view = self.query_view or self.encoder.view
        texts = [view.texts(source) for source in sources]
        if self._query_lexical is None:
            return self.encode_queries(["\n".join(fields) for fields in texts])
        return self.encode_query_counts(
            text_counts(self.query_vocabulary, self.encoder.analyzer, texts, len(view.fields))
        )

    def encode_query_counts(self, counts: Sequence[sp.csr_matrix]) -> EncodedQueries:
        """Return `encode_query_documents` of documents whose words are counted by field (`text_counts`)."""
        together = combine(counts, [1.0] * len(counts))
        if self._query_lexical is None:
            return self.encode_counts(together)
        return self._encoded(together, lexical_counts(self.encoder.memory, counts))

    def _encoded(self, counts: sp.csr_matrix, fields: Sequence[sp.csr_matrix]) -> EncodedQueries:
        """Return queries by the counts of all their words, and of those of each field."""
        learned = TfIdf(self.query_vocabulary, self.encoder.tf).rows_of_counts(counts)
        rows = learned if self._query_lexical is None else self._query_lexical.queries(fields)
        if self.word_weights is not None:
            rows = weigh_words(rows, self.word_weights)
        return EncodedQueries(self.embed_queries(learned), rows, learned)


def lexical_rows_of(
    settings: LexicalSettings | None, vocabulary: Vocabulary, memory: QueryMemory | None = None
) -> LexicalRows | None:
    """Return what makes lexical rows over a vocabulary (and a memory), None without settings."""
    if settings is None:
        return None
    if memory is None:
        return LexicalRows(settings, vocabulary.frequency_of, vocabulary.n_documents)
    added = memory.frequency_of
    return LexicalRows(settings, lambda ids: vocabulary.frequency_of(ids) + added(ids), vocabulary.n_documents)


def lexical_counts(
    memory: QueryMemory | None, counts: Sequence[sp.csr_matrix], ids: Sequence[str] | None = None
) -> Sequence[sp.csr_matrix]:
    """Return the counts of all fields of lexical rows, given those of the view: the memory's come last."""
    return counts if memory is None else [*counts, memory.counts(ids, counts[0].shape[0])]


def _check_word_rows(E: Float32, vocabulary: Vocabulary, name: str) -> None:
    """Raise `ShapeMismatch` where an embedding table has more rows than its vocabulary has words."""
    if len(E) > len(vocabulary):
        raise ShapeMismatch(
            f"{name} has {len(E)} rows for a vocabulary of {len(vocabulary)} words; there may be one row a word: "
            f"the table belongs to another vocabulary"
        )


def _array_sha256(array: AnyArray) -> str:
    """Return SHA-256 over an array's type, shape and little-endian bytes, in hexadecimal."""
    stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    digest = hashlib.sha256(f"{stored.dtype.str}{stored.shape}".encode("ascii"))
    digest.update(stored.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def tensors_of(model: RankingModel) -> dict[str, AnyArray]:
    """Return the arrays of a model by their names in its file; a tied U and a shared vocabulary are held once."""
    own_U = None if model.scorer.is_tied else model.U
    tables = {"V": model.encoder.V, "Y": model.encoder.Y, "U": own_U, "U_short": model.U_short}
    tensors: dict[str, AnyArray] = {name: table for name, table in tables.items() if table is not None}
    if model.word_weights is not None:
        tensors["word_weights"] = model.word_weights
    sides = {"document": model.encoder.document_vocabulary}
    if not model.has_shared_vocabulary:
        sides["query"] = model.query_vocabulary
    for side, vocabulary in sides.items():
        tensors |= {f"{side}.{name}": array for name, array in vocabulary.to_arrays().items()}
    if model.encoder.memory is not None:
        tensors |= {f"memory.{name}": array for name, array in model.encoder.memory.to_arrays().items()}
    return tensors
