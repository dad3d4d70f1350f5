"""Documents as training needs them: one pass for the vocabulary, one for the rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import scipy.sparse as sp

from reranker.baselines.corpus import stack_rows
from reranker.errors import TrainingError
from reranker.formats import RejectSink, read_documents
from reranker.records import Document
from reranker.text.analyzers import Analyzer
from reranker.text.tfidf import TfIdf
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder

_BATCH = 512
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class TrainingCorpus:
    """All documents of a training run.

    Parameters
    ----------
    ids : tuple of str
        In file order.
    row_of : mapping of id to row number
    tfidf : TfIdf
        The vocabulary and weighting.
    fields : tuple of csr_matrix, (n, N_TERM_IDS) float32
        Unit rows of each field of the view.
    query_row_of : mapping of id to row number of ``query_rows``
    query_rows : csr_matrix, (m, N_TERM_IDS) float32
        The documents that are queries, all fields read as one text.
    """

    ids: tuple[str, ...]
    row_of: Mapping[str, int]
    tfidf: TfIdf
    fields: tuple[sp.csr_matrix, ...]
    query_row_of: Mapping[str, int]
    query_rows: sp.csr_matrix


def read_vocabulary(
    path: Path,
    view: TextView,
    analyzer: Analyzer,
    max_words: int | None,
    min_df: int,
    rejects: RejectSink | None = None,
    progress: Progress | None = None,
) -> Vocabulary:
    """Return the words of a file's documents by decreasing document frequency, reading it as a stream."""
    builder, done = VocabularyBuilder(), 0
    for batch in _batches(path, rejects):
        builder.add(_joined(tokens) for tokens in _tokens(batch, view, analyzer))
        done += len(batch)
        if progress is not None:
            progress(done, None)
    if not done:
        raise TrainingError(f"{str(path)!r} holds no usable document: give JSON lines or Parquet with an id and text")
    vocabulary = builder.build(max_words, min_df)
    if not len(vocabulary):
        names = ", ".join(field.path for field in view.fields)
        raise TrainingError(
            f"no word of {str(path)!r} stands in at least {min_df} of its {done} documents: check the fields ({names}) "
            f"and the floor (--min-df)"
        )
    return vocabulary


def read_training_corpus(
    path: Path,
    view: TextView,
    analyzer: Analyzer,
    tfidf: TfIdf,
    query_ids: Collection[str],
    progress: Progress | None = None,
) -> TrainingCorpus:
    """Return the rows of all documents of a file, and of those that are queries as queries.

    Lines that cannot be used are passed over: `read_vocabulary` has reported them.
    """
    wanted = set(query_ids)
    ids: list[str] = []
    queries: list[str] = []
    parts: list[tuple[list[sp.csr_matrix], sp.csr_matrix]] = []
    n_fields = len(view.fields)
    for batch in _batches(path, _Silent()):
        tokens = _tokens(batch, view, analyzer)
        rows = tfidf.rows([texts[field] for field in range(n_fields) for texts in tokens])
        chosen = [number for number, document in enumerate(batch) if document.id in wanted]
        n = len(batch)
        fields = [rows[field * n : (field + 1) * n] for field in range(n_fields)]
        parts.append((fields, tfidf.rows([_joined(tokens[number]) for number in chosen])))
        ids.extend(document.id for document in batch)
        queries.extend(batch[number].id for number in chosen)
        if progress is not None:
            progress(len(ids), None)
    return TrainingCorpus(
        tuple(ids),
        {one: row for row, one in enumerate(ids)},
        tfidf,
        tuple(stack_rows([part[0][field] for part in parts]) for field in range(n_fields)),
        {one: row for row, one in enumerate(queries)},
        stack_rows([part[1] for part in parts]),
    )


class _Silent:
    """A reject sink that forgets: the lines were reported by the first pass."""

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Do nothing."""


def _batches(path: Path, rejects: RejectSink | None) -> Iterator[list[Document]]:
    documents: Iterator[Document] = read_documents(path, rejects=rejects)
    while batch := list(islice(documents, _BATCH)):
        yield batch


def _tokens(batch: Sequence[Document], view: TextView, analyzer: Analyzer) -> list[list[list[str]]]:
    """Return the words of each field of each document: ``tokens[document][field]``."""
    n = len(view.fields)
    flat = analyzer.tokens([text for document in batch for text in view.texts(document.source)])
    return [flat[number * n : (number + 1) * n] for number in range(len(batch))]


def _joined(fields: Sequence[Sequence[str]]) -> list[str]:
    return list(chain.from_iterable(fields))
