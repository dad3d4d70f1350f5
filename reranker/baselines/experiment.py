"""From files and a model to a comparison: documents encoded once, queries of every kind, baselines on their words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32
from reranker.artifacts import EncodedQueries, RankingModel
from reranker.baselines.lexical import LexicalCorpus, Remembered, Rows
from reranker.baselines.tuning import LexicalTask
from reranker.errors import ConfigError, InputError
from reranker.evaluation.protocols import Link, RankingTask, draw_keywords, link_task
from reranker.evaluation.ranking import InnerProducts
from reranker.formats import RejectSink, read_documents, read_qrels
from reranker.progress import Progress, no_progress
from reranker.records import Document
from reranker.text.rows import count_rows, field_counts, stack_rows

_BATCH = 2_048


@dataclass(frozen=True)
class EncodedCorpus:
    """All documents as the model and as the lexical baselines see them, in file order.

    ``vectors`` (n, N) float32 are Vd' and ``rows`` (n, 2**31 - 1) float32 the lexical rows d, rounded as they are
    stored beside an engine's documents; ``sources`` are those of the documents that are queries, by id.
    """

    ids: tuple[str, ...]
    row_of: Mapping[str, int]
    vectors: Float32
    rows: sp.csr_matrix
    lexical: LexicalCorpus
    sources: Mapping[str, Mapping[str, Any]]

    def rows_of(self, ids: Sequence[str]) -> Rows:
        """Return the row number of each id, (n,) int64."""
        return np.fromiter((self.row_of[document] for document in ids), dtype=np.int64, count=len(ids))


def read_corpus(
    path: Path,
    model: RankingModel,
    query_ids: Collection[str] = (),
    rejects: RejectSink | None = None,
    progress: Progress = no_progress,
) -> EncodedCorpus:
    """Return the documents of a file, encoded by the model, read as a stream.

    The model's view, analyzer and vocabulary serve model and baselines alike. Sources of the documents ``query_ids``
    are kept. Bad lines go to ``rejects``; without it the first one is an error. `InputError` is raised if the file
    cannot be read, or holds no document with a word.
    """
    encoder, wanted = model.encoder, set(query_ids)
    ids: list[str] = []
    sources: dict[str, Mapping[str, Any]] = {}
    parts: list[tuple[Float32, sp.csr_matrix, list[sp.csr_matrix]]] = []
    documents: Iterator[Document] = read_documents(path, rejects=rejects)
    while batch := list(islice(documents, _BATCH)):
        of_batch, asked = [document.id for document in batch], [document.source for document in batch]
        encoded = encoder.encode(asked, of_batch)
        counts = field_counts(encoder.document_vocabulary, encoder.view, encoder.analyzer, asked)
        parts.append((encoded.vectors, encoded.rows, counts))
        ids += of_batch
        sources.update((document.id, document.source) for document in batch if document.id in wanted)
        progress(len(ids), None)
    if not parts:
        raise InputError(f"{str(path)!r} holds no document: give JSON lines or Parquet with an id and text fields")
    vectors, rows, fields = zip(*parts, strict=True)
    return EncodedCorpus(
        tuple(ids),
        {document: row for row, document in enumerate(ids)},
        np.concatenate(vectors),
        stack_rows(rows),
        LexicalCorpus([stack_rows(field) for field in zip(*fields, strict=True)]),
        sources,
    )


def remembering(
    model: RankingModel,
    corpus: EncodedCorpus,
    relevant: Iterable[tuple[str, str, float]],
    texts: Mapping[str, str],
    rng: np.random.Generator,
) -> EncodedCorpus:
    """Return the corpus whose documents remember, for the baselines, what they are relevant to.

    ``relevant`` are (query id, document id, weight), ``texts`` those of the queries; ``rng`` is that of
    `LexicalCorpus.remembering`. Tasks are made with the corpus that is returned: its words are others.
    """
    remembered = Remembered.of(
        relevant, corpus.row_of, lambda ids: _text_counts(model, [texts[query] for query in ids])
    )
    return replace(corpus, lexical=corpus.lexical.remembering(remembered, rng))


class Experiment(NamedTuple):
    """The model's scores on a task, and the same task for the baselines."""

    model: InnerProducts
    evaluation: LexicalTask


def experiment_of(
    model: RankingModel,
    corpus: EncodedCorpus,
    task: RankingTask,
    texts: Mapping[str, str] | None = None,
    n_words: int | None = None,
    seed: int = 0,
) -> Experiment:
    """Return the experiment of a task, whose queries are texts (by query id), words of documents, or whole documents.

    Without ``texts`` queries are documents of the corpus, which has their sources: ``n_words`` random words of each,
    drawn by the seed (see `draw_keywords`), or all of it. `ConfigError` is raised for keyword queries to a model whose
    queries have a vocabulary of their own.
    """
    lexical = lexical_task(model, corpus, task, texts, n_words, seed)
    if texts is not None:
        encoded = _in_batches(model.encode_queries, [texts[query] for query in task.query_ids])
    elif n_words is None:
        encoded = _in_batches(model.encode_query_documents, [corpus.sources[query] for query in task.query_ids])
    else:
        encoded = model.encode_counts(_keyword_counts(model, corpus, task, n_words, seed))
    # Without the identity the rows do not count (nor share their ids).
    with_rows = model.identity != 0
    scorer = InnerProducts(
        query_vectors=encoded.vectors,
        document_vectors=corpus.vectors[lexical.documents],
        query_rows=encoded.rows if with_rows else None,
        document_rows=corpus.rows[lexical.documents] if with_rows else None,
        row_weight=model.identity,
    )
    return Experiment(scorer, lexical)


def lexical_task(
    model: RankingModel,
    corpus: EncodedCorpus,
    task: RankingTask,
    texts: Mapping[str, str] | None = None,
    n_words: int | None = None,
    seed: int = 0,
) -> LexicalTask:
    """Return a task for baselines; arguments as in `experiment_of`, no sources needed."""
    if texts is not None:
        queries = corpus.lexical.text_queries(_text_counts(model, [texts[query] for query in task.query_ids]))
    elif n_words is None:
        queries = corpus.lexical.document_queries(corpus.rows_of(task.query_ids))
    else:
        queries = corpus.lexical.text_queries(_keyword_counts(model, corpus, task, n_words, seed))
    return LexicalTask(task, queries, corpus.rows_of(task.document_ids))


def _text_counts(model: RankingModel, texts: Sequence[str]) -> sp.csr_matrix:
    return count_rows(model.encoder.document_vocabulary, model.encoder.analyzer.tokens(texts))


def tuning_task(
    tune: Iterable[Link], known: Iterable[Link], ids: Collection[str], pool: Collection[str]
) -> RankingTask:
    """Return the link task on which baselines are tuned.

    Its pool is that of `tuning_pool`. Links in ``tune`` are relevant, the other known links do not take part.
    """
    links = set(tune)
    chosen = tuning_pool([target for _, target in links], ids, pool)
    return link_task(links, set(known) - links, chosen, query_ids=ids)


def tuning_pool(judged: Sequence[str], ids: Collection[str], pool: Collection[str]) -> set[str]:
    """Return the documents that baselines rank while they are tuned.

    They are the evaluation's, unless most of the judged documents are not among these (a split by documents): then they
    are the rest.
    """
    inside = set(pool)
    return inside if 2 * sum(document in inside for document in judged) >= len(judged) else set(ids) - inside


def read_judgements(path: Path, rejects: RejectSink | None = None) -> dict[str, dict[str, float]]:
    """Return query id -> document id -> grade; of a pair judged twice the last grade counts."""
    qrels: dict[str, dict[str, float]] = {}
    for judgement in read_qrels(path, rejects=rejects):
        qrels.setdefault(judgement.query_id, {})[judgement.document_id] = judgement.grade
    return qrels


def _keyword_counts(
    model: RankingModel, corpus: EncodedCorpus, task: RankingTask, n_words: int, seed: int
) -> sp.csr_matrix:
    """Return the counts of the keywords of each query."""
    if not model.has_shared_vocabulary:
        raise ConfigError(
            "keyword queries are words of the documents, and this model's queries have a vocabulary of their own: "
            "use --queries document, or judgements with a query file"
        )
    counts = corpus.lexical.counts(corpus.rows_of(task.query_ids))
    return draw_keywords(counts, task.query_ids, n_words, seed, model.encoder.document_vocabulary)


def _in_batches(encode: Callable[[Sequence[Any]], EncodedQueries], inputs: Sequence[Any]) -> EncodedQueries:
    """Return the queries encoded a batch at a time."""
    parts = [encode(inputs[start : start + _BATCH]) for start in range(0, len(inputs), _BATCH)]
    rows = stack_rows([part.rows for part in parts])
    learned = rows if parts[0].learned_rows is parts[0].rows else stack_rows([part.learned_rows for part in parts])
    return EncodedQueries(np.concatenate([part.vectors for part in parts]), rows, learned)
