"""Models: encode documents and queries, score, and say who they are; saved into a folder and read back, byte for byte.

A model is an `Encoder`, which decides everything that is stored beside a document, and a query side. The encoder's id
covers the text view, the analyzer, the vocabulary with its idf, V (and Y, and the form they are joined in), the memory
of queries and the quantisation, and nothing of the query side: a new U leaves every stored vector valid.

A folder holds ::

    manifest.json                        who the model is: ids, text view, analyzer, training, measures, files
    tensors-<12 hex>.safetensors         U, V (Y), the words and their document frequencies, the memory

The file of arrays is named after its hash, and the manifest alone says which one belongs to it. So a model is
replaced by writing the new arrays beside the old ones and renaming one manifest over the other: a reader, or a crash
at any point, sees the old model or the new one and nothing between. What a crash leaves is swept by the next save.

``manifest.json`` is accepted only if writing what was read gives the same bytes; its ``model_id`` is the SHA-256 of all
the rest. So a changed byte is noticed wherever it stands, white space and order of keys included.

The arrays lie in one safetensors file: written as a stream, hashed, and read back as a memory map. The layout is
safetensors' own (a test reads each file with that library, byte for byte what it would write itself). It is spelt out
here because the library neither maps arrays without a copy, nor writes without one, nor bounds what an untrusted header
may cost: measured, a 33 MB header takes it 10 s and 1.2 GB.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyArray, Bool, Float32, Float64
from reranker.engines.protocol import Engine
from reranker.errors import ArtifactError, ConfigError, InputError, ShapeMismatch
from reranker.files import CopyFile, replace_files
from reranker.kernels.packing import Quantisation, check_quantisation, quantise_rows, quantise_vectors
from reranker.models.scorers import LINEAR, DocumentForm, FormScorer, form_of, query_vectors, weights_in
from reranker.text.analyzers import Analyzer, AnalyzerConfig, make_analyzer
from reranker.text.rows import (
    MEMORY_TYPES,
    LexicalRows,
    LexicalSettings,
    QueryMemory,
    TfIdf,
    Vocabulary,
    combine,
    count_rows,
    learned_rows,
    text_counts,
    weigh_words,
)
from reranker.text.view import TextView, texts_hash

ENCODING_VERSION: Final = 1
"""Raised when the same inputs would give other vectors: it is part of every encoder id."""
DEFAULT_QUANTISATION: Final[Quantisation] = "float16"
_VOCABULARY_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "words": np.dtype("u1"),
    "offsets": np.dtype("<i8"),
    "document_frequency": np.dtype("<i8"),
    "n_documents": np.dtype("<i8"),
}
_LOAD_ATTEMPTS = 3
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
        counts = self._counts(texts)
        learned = learned_rows(self.tfidf, counts, self.view.weights)
        rows = self._rows(counts, learned, ids)
        return EncodedDocuments(
            vectors=quantise_vectors(self.documents.vectors(learned), self.quantisation),
            rows=quantise_rows(rows, self.quantisation),
            source_hashes=[texts_hash(text) for text in texts],
            has_text=(np.diff(rows.indptr) > 0) | (np.diff(learned.indptr) > 0),
        )

    def _counts(self, texts: Sequence[Sequence[str]]) -> list[sp.csr_matrix]:
        return text_counts(self.document_vocabulary, self.analyzer, texts, len(self.view.fields))

    def _rows(self, counts: list[sp.csr_matrix], learned: sp.csr_matrix, ids: Sequence[str] | None) -> sp.csr_matrix:
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
        counts = text_counts(self.query_vocabulary, self.encoder.analyzer, texts, len(view.fields))
        return self._encoded(combine(counts, [1.0] * len(counts)), lexical_counts(self.encoder.memory, counts))

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


# --- saved and loaded


def save_model(model: RankingModel, path: str | os.PathLike[str]) -> str:
    """Write a model into a folder, in place of the one that is there, and return its model id.

    Equal models give equal bytes. Whatever happens on the way, the folder holds the old model or the new one, whole.
    `ArtifactError` is raised if the folder cannot be written (permission, disk full); what was there is untouched.
    """
    content = model.manifest
    (name,) = content["files"]
    replace_files(
        Path(path),
        data={name: chunks_of(tensors_of(model))},
        pointer=(MANIFEST, manifest_bytes(content)),
        stale="tensors-*.safetensors",
    )
    return model.model_id


def load_model(
    path: str | os.PathLike[str], engine: Engine | None = None, copy: CopyFile | None = None
) -> RankingModel:
    """Return the model of a folder that `save_model` wrote, every byte verified, U and V mapped into memory.

    The file of arrays is hashed as it is read in pieces, and then mapped: a large model costs one read of it, no copy.
    With ``copy``, a private copy of it is mapped, which is hashed while it is written.

    The engine runs the analysis chain of a model with an ``engine:`` analyzer. `ArtifactError` is raised if there is no
    model, or a byte of it is not as written, or it breaks a rule of the format; `ConfigError` if the model's analyzer
    needs an engine and none is given, `MissingExtra` if it needs a library that is not installed.
    """
    folder = Path(path)
    try:
        return _load(folder, engine, copy)
    except ArtifactError as error:
        if str(folder) in error.message:
            raise
        raise type(error)(f"model folder {str(folder)!r}: {error.message}", **error.data) from error


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


def tensor_file_name(sha256: str) -> str:
    """Return the name of the file of arrays that has this hash."""
    return f"tensors-{sha256[:12]}.safetensors"


def _load(folder: Path, engine: Engine | None, copy: CopyFile | None) -> RankingModel:
    """Return the model of a folder; errors about its content do not name it."""
    for attempt in range(_LOAD_ATTEMPTS):
        content = describe_model(folder)
        name, sha256, n_bytes = _file_of(content)
        try:
            descriptor = _open_regular(folder / name)
        except FileNotFoundError as error:
            if attempt + 1 < _LOAD_ATTEMPTS:
                continue  # the model was replaced between the two reads: read the new manifest
            raise ArtifactError(f"{str(folder / name)!r} is missing; {REMEDY}", path=str(folder)) from error
        try:
            if copy is None:
                arrays = _checked_tensors(descriptor, content, n_bytes, sha256)
            else:
                _check_size(descriptor, n_bytes)
                with (
                    open(descriptor, "rb", buffering=0, closefd=False) as file,
                    copy(file, folder / name, sha256) as own,
                ):
                    arrays = _checked_tensors(own.fileno(), content, n_bytes)
        except OSError as error:
            raise ArtifactError(f"{str(folder / name)!r} cannot be read: {error.strerror}; {REMEDY}") from error
        finally:
            os.close(descriptor)
        return _model_of(content, arrays, _analyzer(content, engine))
    raise ArtifactError(f"{str(folder)!r} is replaced faster than it can be read; load it again", path=str(folder))


def _file_of(content: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return name, hash and size of the one file of arrays; its name follows from its hash: it is no path."""
    files = _entry(content, "files", dict)
    if len(files) != 1:
        raise ArtifactError(f"the manifest names {len(files)} files where one is expected; {REMEDY}")
    ((name, file),) = files.items()
    sha256 = _entry(file, "sha256", str) if isinstance(file, dict) else ""
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef") or name != tensor_file_name(sha256):
        raise ArtifactError(f"the file name {name[:80]!r} is not that of its hash; {REMEDY}")
    return name, sha256, _entry(file, "bytes", int)


def _check_size(descriptor: int, n_bytes: int) -> None:
    size = os.fstat(descriptor).st_size
    if size != n_bytes:
        raise ArtifactError(f"the file of arrays has {size} bytes where the manifest says {n_bytes}; {REMEDY}")


def _checked_tensors(
    descriptor: int, content: Mapping[str, Any], n_bytes: int, sha256: str = ""
) -> dict[str, AnyArray]:
    """Return the mapped arrays of a file; its hash is compared unless ``sha256`` is empty.

    The cheap checks come before the file is read.
    """
    _check_size(descriptor, n_bytes)
    specs = _read_header(descriptor, n_bytes)
    stored = {name: (spec.dtype, spec.shape) for name, spec in specs.items()}
    for name, (dtype, shape) in _expected(content).items():
        actual = stored.pop(name, None)
        fits = actual is not None and actual[0] == dtype and len(actual[1]) == len(shape)
        if actual is None or not fits or any(n not in (None, m) for n, m in zip(shape, actual[1], strict=True)):
            raise ArtifactError(f"the array {name!r} is {actual} where {dtype} {shape} is expected; {REMEDY}")
    if stored:
        raise ArtifactError(f"the file of arrays holds {sorted(stored)[:3]} too, which no model has; {REMEDY}")
    if sha256:
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            actual_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if actual_sha256 != sha256:
            raise ArtifactError(f"the file of arrays has another content than the manifest's hash; {REMEDY}")
    return _map_tensors(descriptor, specs, n_bytes)


def _expected(content: Mapping[str, Any]) -> dict[str, tuple[np.dtype[Any], tuple[int | None, ...]]]:
    """Return type and shape of each array as the manifest tells them; None where any length may be."""
    n_dims, float32 = _entry(content, "n_dims", int), np.dtype("<f4")
    expected: dict[str, tuple[np.dtype[Any], tuple[int | None, ...]]] = {
        "V": (float32, (_entry(content, "n_document_rows", int), n_dims))
    }
    if share := form_of(_form(content)).factor_share:
        expected["Y"] = (float32, (_entry(content, "n_document_rows", int), n_dims // share))
    if not _entry(content, "tied", bool):
        expected["U"] = (float32, (_entry(content, "n_query_rows", int), n_dims))
    if content.get("short_query") is not None:
        if _entry(content, "short_query", int) != SHORT_QUERY:
            raise ArtifactError(f"short_query is {content['short_query']!r} and not {SHORT_QUERY}; {REMEDY}")
        expected["U_short"] = (float32, (_entry(content, "n_query_rows", int), n_dims))
    if "n_word_weights" in content:
        expected["word_weights"] = (float32, (_entry(content, "n_word_weights", int),))
    for side in ("document",) if _entry(content, "shared_vocabulary", bool) else ("document", "query"):
        n_words = _entry(content, f"n_{side}_words", int)
        lengths = (None, n_words + 1, n_words, 1)
        for (name, kind), length in zip(_VOCABULARY_TYPES.items(), lengths, strict=True):
            expected[f"{side}.{name}"] = (kind, (length,))
    if "n_memory_documents" in content:
        n_offsets = _entry(content, "n_memory_documents", int) + 1
        for name, kind in MEMORY_TYPES.items():
            expected[f"memory.{name}"] = (kind, (n_offsets if name.endswith("offsets") else None,))
    return expected


def _form(content: Mapping[str, Any]) -> str:
    """Return the name of the model's document form; one that is not known here is refused."""
    name = _entry(content, "document_form", str) if "document_form" in content else LINEAR
    try:
        form_of(name)
    except ConfigError as error:
        raise ArtifactError(error.message, **error.data) from error
    return name


def _analyzer(content: Mapping[str, Any], engine: Engine | None) -> Analyzer:
    try:
        config = AnalyzerConfig.from_json(_entry(content, "analyzer", dict))
    except (ConfigError, TypeError) as error:
        raise ArtifactError(f"the manifest's analyzer is not legal ({error}); {REMEDY}") from error
    if config.kind != "engine":
        return make_analyzer(config)
    if engine is None:
        raise ConfigError(
            f"the model's words are cut by engine:{config.engine_field}, and no engine was given; pass the engine "
            f"(--engine) whose index {config.engine_field} it was trained with"
        )
    index, _, path = str(config.engine_field).partition("/")
    return make_analyzer(config, lambda texts: engine.analyze(index, path, texts))


def _model_of(content: dict[str, Any], arrays: Mapping[str, AnyArray], analyzer: Analyzer) -> RankingModel:
    """Return the model of verified parts; parts that do not fit each other are the artifact's fault."""
    query_view = content.get("query_view")
    try:
        documents = Vocabulary.from_arrays(_named(arrays, "document", _VOCABULARY_TYPES))
        shared = _entry(content, "shared_vocabulary", bool)
        encoder = Encoder(
            TextView.from_json(_entry(content, "text_view", dict)),
            analyzer,
            documents,
            _entry(content, "tf", str),
            arrays["V"],
            cast(Quantisation, _entry(content, "quantisation", str)),
            _form(content),
            arrays.get("Y"),
            LexicalSettings.from_json(_entry(content, "lexical", dict)) if "lexical" in content else None,
            QueryMemory.from_arrays(_named(arrays, "memory", MEMORY_TYPES)) if "memory.ids" in arrays else None,
        )
        model = RankingModel(
            encoder,
            documents if shared else Vocabulary.from_arrays(_named(arrays, "query", _VOCABULARY_TYPES)),
            encoder.V if _entry(content, "tied", bool) else arrays["U"],
            _entry(content, "identity", float),
            None if query_view is None else TextView.from_json(query_view),
            _entry(content, "training", dict),
            _entry(content, "metrics", dict),
            arrays.get("U_short"),
            arrays.get("word_weights"),
        )
    except (InputError, ConfigError, TypeError, OverflowError) as error:
        raise ArtifactError(f"the parts of the model do not fit each other: {error}; {REMEDY}") from error
    if encoder.encoder_id != content.get("encoder_id"):
        raise ArtifactError(f"the model's encoder id is not that of its parts; {REMEDY}")
    model.__dict__["manifest"] = content  # known and verified: no need to hash the arrays again
    return model


def _named(arrays: Mapping[str, AnyArray], prefix: str, names: Iterable[str]) -> dict[str, AnyArray]:
    return {name: arrays[f"{prefix}.{name}"] for name in names}


# --- manifest and arrays

FORMAT: Final = "ssi-model"
FORMAT_VERSIONS: Final = (1, 2, 3, 4, 5)
"""1: Vd, what every program reads. 2: another ``document_form``. 3: ``lexical`` settings, of any form, or a
``short_query`` with a U of its own. 4: a memory of queries, of ``n_memory_documents``. 5: ``n_word_weights`` weights of
query words. A program that does not know a version refuses it."""
MANIFEST: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 1 << 20
REMEDY: Final = "the model is damaged or not ours: copy it again from where it was trained"
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_TENSORS: Final = 64
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}

_CHUNK_BYTES = 1 << 20
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}

T = TypeVar("T")
Tensors = Mapping[str, AnyArray]


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` with its ``model_id``.

    Values that JSON does not know are written as what they are closest to: numpy scalars and arrays as numbers and
    lists, tuples as lists, paths as text, NaN and infinities as null. `ArtifactError` is raised if a value has no such
    form, or the manifest would be larger than `MAX_MANIFEST_BYTES`.
    """
    version = _version_of(content)
    plain: dict[str, Any] = _plain({**content, "format": FORMAT, "format_version": version})
    plain.pop("model_id", None)
    manifest = {**plain, "model_id": hashlib.sha256(manifest_bytes(plain)).hexdigest()}
    size = len(manifest_bytes(manifest))
    if size > MAX_MANIFEST_BYTES:
        raise ArtifactError(
            f"the manifest would have {size} bytes, at most {MAX_MANIFEST_BYTES} can be read; keep less in training "
            f"and metrics"
        )
    return manifest


def manifest_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the one spelling of a manifest: indented, keys sorted, ASCII."""
    return (json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def describe_model(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of a model folder after checking every byte of it, and its format version, not the arrays.

    `ArtifactError` if there is none, or it is too large, damaged, of another format or of a later version.
    """
    folder = Path(path)
    data = _read_capped(folder / MANIFEST)
    try:
        content = json.loads(data)
        canonical = isinstance(content, dict) and manifest_bytes(content) == data
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{MANIFEST} cannot be read ({type(error).__name__}); {REMEDY}") from error
    if not canonical:
        raise ArtifactError(f"{MANIFEST} is not as it was written (it was edited, or a byte has changed); {REMEDY}")
    rest = {key: value for key, value in content.items() if key != "model_id"}
    if content.get("model_id") != hashlib.sha256(manifest_bytes(rest)).hexdigest():
        raise ArtifactError(f"{MANIFEST} has another content than its model id says; {REMEDY}")
    if content.get("format") != FORMAT:
        raise ArtifactError(
            f"{str(folder)!r} is of format {str(content.get('format'))[:40]!r}, not {FORMAT!r}; {REMEDY}"
        )
    version = content.get("format_version")
    if version not in FORMAT_VERSIONS or type(version) is not int:
        raise ArtifactError(
            f"{str(folder)!r} has format version {repr(version)[:40]}; this program reads "
            f"{' and '.join(map(str, FORMAT_VERSIONS))}: install the version of the program that wrote it, or a later "
            f"one",
            version=str(version)[:40],
        )
    if version != _version_of(content):
        entries = [name for name in ("document_form", "lexical", "n_memory_documents") if name in content]
        raise ArtifactError(
            f"{str(folder)!r} has format version {version} and the entries {', '.join(entries) or 'of version 1'}, "
            f"which make it version {_version_of(content)}; {REMEDY}"
        )
    return dict(content)


def _version_of(content: Mapping[str, Any]) -> int:
    if "n_word_weights" in content:
        return 5
    if "n_memory_documents" in content:
        return 4
    return 3 if "lexical" in content or "short_query" in content else 2 if "document_form" in content else 1


def _entry(manifest: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return ``manifest[key]``; `ArtifactError` unless it is there and of exactly the type ``kind``."""
    value = manifest.get(key)
    if type(value) is not kind:
        raise ArtifactError(f"{MANIFEST}: {key!r} is {str(value)[:40]!r} where {kind.__name__} is expected; {REMEDY}")
    return value


@dataclass(frozen=True, slots=True)
class _TensorSpec:
    """Where one array lies in a file: its type, shape and byte range."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def chunks_of(tensors: Tensors) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the file that holds ``tensors``: the header, then each array in pieces, without a copy.

    Equal arrays give equal bytes: the order is that of safetensors (wider types first, floats before integers, then by
    name). `ArtifactError` is raised if an array has a type that the format does not hold.
    """
    stored: dict[str, AnyArray] = {}
    for name, array in tensors.items():
        stored[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if stored[name].dtype not in _NAMES:
            kinds = ", ".join(map(str, _NAMES))
            raise ArtifactError(f"the array {name!r} is {array.dtype}; a model file holds {kinds}")
    order = sorted(stored, key=lambda name: (-stored[name].itemsize, stored[name].dtype.kind, name))
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        start, end = end, end + stored[name].nbytes
        header[name] = {
            "dtype": _NAMES[stored[name].dtype],
            "shape": list(stored[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        flat = stored[name].reshape(-1).view(np.uint8)
        for start in range(0, len(flat), _CHUNK_BYTES):
            yield flat[start : start + _CHUNK_BYTES].data


def digest_of(tensors: Tensors) -> tuple[str, int]:
    """Return (SHA-256 in hexadecimal, size in bytes) of the file that would hold ``tensors``."""
    digest, n_bytes = hashlib.sha256(), 0
    for chunk in chunks_of(tensors):
        digest.update(chunk)
        n_bytes += len(chunk)
    return digest.hexdigest(), n_bytes


def _open_regular(path: Path) -> int:
    """Return a descriptor of a regular file; `FileNotFoundError` for none, `ArtifactError` for links and devices."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        message = f"{str(path)!r} cannot be opened as a plain file ({error.strerror}); links are not followed: {REMEDY}"
        raise ArtifactError(message, path=str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(f"{str(path)!r} is not a regular file; {REMEDY}", path=str(path))
    return descriptor


def _read_header(descriptor: int, n_bytes: int) -> dict[str, _TensorSpec]:
    """Return where each array of an open file of ``n_bytes`` lies, after checking that all of it fits together.

    `ArtifactError` is raised if the header is larger than `MAX_HEADER_BYTES`, is not JSON of the format, names more
    than `MAX_TENSORS` arrays, or its shapes and ranges do not tile the file exactly.
    """
    prefix = os.pread(descriptor, 8, 0)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > MAX_HEADER_BYTES or 8 + length > n_bytes:
        raise ArtifactError(
            f"a tensor file of {n_bytes} bytes announces a header of {length}; at most {MAX_HEADER_BYTES} are read: "
            f"{REMEDY}"
        )
    try:
        header = json.loads(os.pread(descriptor, length, 8))
        specs = {name: _spec(part) for name, part in header.items()} if len(header) <= MAX_TENSORS else {}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ArtifactError(f"a tensor file's header cannot be read ({type(error).__name__}); {REMEDY}") from error
    if len(specs) != len(header):
        raise ArtifactError(f"a tensor file names {len(header)} arrays; at most {MAX_TENSORS} are read: {REMEDY}")
    end = 0
    for spec in sorted(specs.values(), key=lambda spec: (spec.start, spec.stop)):
        if spec.start != end or spec.stop - spec.start != math.prod(spec.shape) * spec.dtype.itemsize:
            message = f"an array of shape {spec.shape} does not fit its {spec.stop - spec.start} bytes"
            raise ArtifactError(f"{message}; {REMEDY}")
        end = spec.stop
    if 8 + length + end != n_bytes:
        raise ArtifactError(f"a tensor file has {n_bytes} bytes where its header tells of {8 + length + end}; {REMEDY}")
    return specs


def _map_tensors(descriptor: int, specs: Mapping[str, _TensorSpec], n_bytes: int) -> dict[str, AnyArray]:
    """Return the arrays of a checked file as read-only views of one memory map, which outlives descriptor and name."""
    mapped = mmap.mmap(descriptor, n_bytes, access=mmap.ACCESS_READ)
    data = n_bytes - max((spec.stop for spec in specs.values()), default=0)
    return {
        name: np.frombuffer(mapped, spec.dtype, math.prod(spec.shape), data + spec.start).reshape(spec.shape)
        if spec.stop > spec.start
        else np.zeros(spec.shape, spec.dtype)
        for name, spec in specs.items()
    }


def _read_capped(path: Path) -> bytes:
    try:
        descriptor = _open_regular(path)
    except FileNotFoundError as error:
        message = f"{str(path.parent)!r} holds no model (no {MANIFEST}); give a folder that `ssi train --model` wrote"
        raise ArtifactError(message, path=str(path.parent)) from error
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_MANIFEST_BYTES:
            raise ArtifactError(f"{str(path)!r} has {size} bytes, at most {MAX_MANIFEST_BYTES} are read; {REMEDY}")
        return os.pread(descriptor, MAX_MANIFEST_BYTES + 1, 0)
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error.strerror}; {REMEDY}", path=str(path)) from error
    finally:
        os.close(descriptor)


def _plain(value: object) -> Any:
    """Return ``value`` as JSON has it; see `sealed`."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise ArtifactError(
        f"a value of type {type(value).__name__} cannot be kept in {MANIFEST}; give numbers, text, lists"
    )


def _spec(entry: Mapping[str, Any]) -> _TensorSpec:
    """Return one header entry; raises any of the errors of a malformed one, which `_read_header` names."""
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    numbers = (start, stop, *shape)
    if set(entry) != {"dtype", "shape", "data_offsets"} or len(shape) > 4:
        raise ValueError("entry")
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise ValueError("number")
    return _TensorSpec(DTYPES[entry["dtype"]], shape, start, stop)
