"""The first stage of training: the file of documents is read and cut into words once.

Everything later (vocabulary, rows, other readings of the same words, the comparison) comes from these words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Int64
from reranker.encoders import SentenceEncoder
from reranker.errors import TrainingError
from reranker.formats import RejectLog, RejectSink, read_documents
from reranker.kernels.packing import Quantisation
from reranker.models.ranking_model import DEFAULT_QUANTISATION
from reranker.progress import RunProgress, Say, TitledProgress, no_titled_progress, silent
from reranker.records import Document
from reranker.text.analyzers import Analyzer
from reranker.text.tfidf import TfIdf, learned_rows
from reranker.text.tokens import DocumentTokens, TokenReader
from reranker.text.view import TextView, nearest_paths, paths_of
from reranker.text.vocabulary import Vocabulary
from reranker.training.given_vectors import GivenVectors, VectorCollector
from reranker.training.word_vectors import MAX_WORDS

_BATCH = 512
_MAX_PATHS = 10_000


@dataclass(frozen=True)
class DocumentSource:
    """A file of documents and how it is read."""

    path: Path
    """JSON lines (gzip too) or Parquet."""
    view: TextView = field(default_factory=lambda: TextView.parse(["title", "text"]))
    """Fields that are read; a weight that is given is not tuned."""
    analyzer: Analyzer | None = None
    """Texts to words. None: by the kind ``unicode``. English texts are read as stems unless training queries are ranked
    worse by them, and bigrams are used if these queries are ranked better."""
    tf: str = "log"
    """{'log', 'raw'}: term frequency of the learned rows, see `TfIdf`; ``raw`` only for a model to start from."""
    max_words: int | None = None
    """Words of the vocabulary at most, the most frequent first; None: no limit."""
    quantisation: Quantisation = DEFAULT_QUANTISATION
    """{'float16', 'float32', 'int8'}: precision of stored vectors."""
    id_field: str | None = None
    """Field that holds the document id, a path such as ``product.sku``; None: ``id`` or ``_id``."""
    max_unknown: float | None = None
    """Largest share of preferences whose query or document is unknown, from 0 to 1; None: no limit."""
    encoder: SentenceEncoder | None = None
    """Text encoder that computed the vectors in ``view.vector``, if it can be called while the model is trained: its
    vectors of single words and of training queries teach those that are learned."""


@dataclass
class Listener:
    """Callbacks of a training run."""

    say: Say = silent
    """Receives one line of text at a time."""
    progress: TitledProgress = no_titled_progress
    """Receives (title, done, total)."""
    rejects: RejectSink | None = None
    """Receives lines of the file that are no legal documents; None: the first one is an error."""
    run: RunProgress = field(default_factory=RunProgress)
    """Receives the stages of the run as they begin."""


@dataclass(frozen=True, eq=False)
class TrainingCorpus:
    """All documents of a training run, as word counts."""

    ids: tuple[str, ...]
    """Document ids in file order."""
    row_of: Mapping[str, int]
    """Document id to row number."""
    analyzer: Analyzer
    """Analyzer of documents and queries."""
    tfidf: TfIdf
    """Counts to unit rows, with the vocabulary of the documents."""
    counts: tuple[sp.csr_matrix, ...]
    """(n, N_TERM_IDS) float32 a field: how often each word stands in it. Bigrams, if there are any, come last."""
    query_row_of: Mapping[str, int]
    """Id to place in ``query_documents``, of the documents that are queries."""
    query_documents: Int64
    """(m,) int64: row numbers of the documents that are queries."""

    def learned_rows(self, weights: Sequence[float]) -> sp.csr_matrix:
        """Return d', which V reads, (n, N_TERM_IDS) float32."""
        return learned_rows(self.tfidf, self.counts, weights)


class ReadDocuments(NamedTuple):
    """The words and the vectors of a file of documents."""

    tokens: DocumentTokens
    """The words of each field."""
    given: GivenVectors | None
    """The vectors that the documents have already; None if the view reads none."""


def read_corpus_once(
    corpus: DocumentSource, analyzer: Analyzer, listener: Listener, *, check_fields: bool = True
) -> ReadDocuments:
    """Return the words and vectors of all documents of a file, which is read once, as a stream.

    A field with words in fewer than one document in a hundred is reported. `TrainingError` is raised if the file holds
    no usable document, or, unless the view is the default one or ``check_fields`` is off, if no document has a field.
    It is also raised if the view has a field of vectors, and hardly a document has one.
    """
    path, view = corpus.path, corpus.view
    reader, paths = TokenReader(analyzer, len(view.fields)), set[str]()
    collector = VectorCollector(view) if view.vector else None
    progress = partial(listener.progress, "reading documents")
    for batch in _batches(path, listener.rejects, corpus.id_field):
        reader.add([document.id for document in batch], [view.texts(document.source) for document in batch])
        if collector is not None:
            collector.add(batch)
        is_first = not paths
        if len(paths) < _MAX_PATHS:
            paths.update(chain.from_iterable(paths_of(document.source) for document in batch))
        if is_first and check_fields:
            _say_missing(view, len(batch), paths, listener.say)
        progress(len(reader.ids), None)
    if not reader.ids:
        rejects = listener.rejects
        why = f": {rejects.summary()}" if isinstance(rejects, RejectLog) and rejects.count else ""
        raise TrainingError(
            f"{str(path)!r} holds no usable document{why}. Give JSON lines or Parquet with an id (id or _id) and text"
        )
    if check_fields:
        _check_fields(path, view, reader.n_with_words.tolist(), len(reader.ids), paths, listener.say)
    return ReadDocuments(reader.tokens(), None if collector is None else collector.collected(sorted(paths)))


def vocabulary_of(corpus: DocumentSource, tokens: DocumentTokens) -> Vocabulary:
    """Return the words of the documents by decreasing document frequency; `TrainingError` if there is none."""
    vocabulary = tokens.vocabulary(corpus.max_words)
    if not len(vocabulary):
        names = ", ".join(spec.path for spec in corpus.view.fields)
        raise TrainingError(
            f"no word of {str(corpus.path)!r} stands in its {len(tokens.ids)} documents: check the fields ({names})"
        )
    return vocabulary


def spellings_of(corpus: DocumentSource, tokens: DocumentTokens) -> Vocabulary:
    """Return the most frequent words of documents that are not stemmed yet; none without a text encoder."""
    if corpus.encoder is None:
        return Vocabulary((), np.zeros(0, np.int64), 0)
    return tokens.vocabulary(MAX_WORDS)


def counted(tokens: DocumentTokens, analyzer: Analyzer, tfidf: TfIdf, query_ids: Set[str]) -> TrainingCorpus:
    """Return the documents as word counts.

    ``analyzer`` is the one that produced the words. ``query_ids`` are the ids of the documents that are queries.
    """
    row_of = {id_: row for row, id_ in enumerate(tokens.ids)}
    queries = [row for id_, row in row_of.items() if id_ in query_ids]
    return TrainingCorpus(
        tokens.ids,
        row_of,
        analyzer,
        tfidf,
        tuple(tokens.counts(tfidf.vocabulary)),
        {tokens.ids[row]: number for number, row in enumerate(queries)},
        np.array(queries, dtype=np.int64),
    )


def _say_missing(view: TextView, n_documents: int, paths: Collection[str], say: Say) -> None:
    """Report the fields that none of the first documents has, so that a misspelt one is noticed at once."""
    for spec in view.fields:
        if spec.path not in paths and not view.is_default:
            say(
                f"none of the first {n_documents:,} documents has the field {spec.path!r}: did you mean "
                f"{nearest_paths(spec.path, paths)}? If no later one has it either, the training stops after reading"
            )


def _check_fields(
    path: Path, view: TextView, n_with_words: Sequence[int], n_documents: int, paths: Collection[str], say: Say
) -> None:
    """Raise `TrainingError` for a field that no document has, most likely misspelt; report those with hardly a word."""
    for spec, n in zip(view.fields, n_with_words, strict=True):
        if not n and spec.path not in paths and not view.is_default:
            raise TrainingError(
                f"no document of {str(path)!r} has the field {spec.path!r}: the nearest of their fields are "
                f"{nearest_paths(spec.path, paths)}; name those to be read in --fields"
            )
        if 100 * n < n_documents:
            say(f"the field {spec.path!r} has words in {n:,} of {n_documents:,} documents")


def _batches(path: Path, rejects: RejectSink | None, id_field: str | None) -> Iterator[list[Document]]:
    documents: Iterator[Document] = read_documents(path, rejects=rejects, id_field=id_field)
    while batch := list(islice(documents, _BATCH)):
        yield batch
