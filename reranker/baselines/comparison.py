"""Comparison of a model with lexical baselines on the same queries: which is better, on what, and by how much.

Documents are encoded once. The model encodes the queries of every kind; the baselines score their words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Float64, are_among, pair_keys
from reranker.baselines.fitted import FittedBaseline
from reranker.errors import ConfigError, InputError
from reranker.evaluation import (
    MEASURES,
    N_TUPLES,
    BlockScorer,
    IdPair,
    InnerProducts,
    Links,
    PairedTest,
    RankingTask,
    RunWriter,
    SystemScores,
    draw_tuples,
    evaluate,
    link_task,
    paired_test,
    write_qrels,
)
from reranker.formats import RejectSink, read_documents
from reranker.lexical.corpus import LexicalCorpus, RememberedQueries, RowNumbers
from reranker.lexical.tuning import LexicalTask
from reranker.models.impacts import Impacts, different_words
from reranker.models.ranking_model import EncodedQueries, RankingModel
from reranker.progress import Progress, Say, no_progress, silent
from reranker.records import Document
from reranker.text.rows import stack_rows
from reranker.text.tfidf import count_rows, field_counts

_BATCH = 2_048


@dataclass(frozen=True)
class EncodedCorpus:
    """All documents in file order, encoded for the model and for the lexical baselines."""

    ids: tuple[str, ...]
    row_of: Mapping[str, int]
    """Row number by document id."""
    vectors: Float32
    """Document vectors Vd', (n, N) float32, rounded as stored in an index."""
    rows: sp.csr_matrix
    """Lexical rows d, (n, 2**31 - 1) float32, rounded as stored in an index."""
    lexical: LexicalCorpus
    """Word counts, for the baselines."""
    queries: EncodedQueries
    """The documents that are used as queries, encoded by the model; rows as in ``query_row_of``."""
    query_row_of: Mapping[str, int]
    """Row in ``queries`` by document id."""

    def rows_of(self, ids: Sequence[str]) -> RowNumbers:
        """Return the row number of each id, (n,) int64."""
        return np.fromiter((self.row_of[document] for document in ids), dtype=np.int64, count=len(ids))


def read_corpus(
    path: Path,
    model: RankingModel,
    query_ids: Collection[str] = (),
    rejects: RejectSink | None = None,
    progress: Progress = no_progress,
    id_field: str | None = None,
) -> EncodedCorpus:
    """Return the documents of a file, encoded by the model. The file is read as a stream.

    Model and baselines use the model's view, analyzer and vocabulary. The documents ``query_ids`` are also encoded as
    queries. Invalid lines go to ``rejects``; without it, the first one raises its error.

    Raises
    ------
    InputError
        If the file cannot be read, or holds no document with a word.
    """
    encoder, wanted = model.encoder, set(query_ids)
    ids: list[str] = []
    asked: list[str] = []
    queries: list[EncodedQueries] = []
    parts: list[tuple[Float32, sp.csr_matrix]] = []
    fields: list[list[sp.csr_matrix]] = []
    documents: Iterator[Document] = read_documents(path, rejects=rejects, id_field=id_field)
    while batch := list(islice(documents, _BATCH)):
        of_batch, sources = [document.id for document in batch], [document.source for document in batch]
        counts = field_counts(encoder.document_vocabulary, encoder.view, encoder.analyzer, sources)
        given = None
        if encoder.vector_field is not None:
            given = encoder.vector_field.vectors([encoder.view.given_vector(source) for source in sources])
        vectors, rows, _ = encoder.encode_counts(counts, of_batch, given)
        parts.append((vectors, rows))
        fields.append(counts)
        ids += of_batch
        if asking := [document for document in batch if document.id in wanted]:
            asked += [document.id for document in asking]
            queries.append(model.encode_query_documents([document.source for document in asking]))
        progress(len(ids), None)
    if not parts:
        raise InputError(f"{str(path)!r} holds no document: give JSON lines or Parquet with an id and text fields")
    lexical = LexicalCorpus([stack_rows(field) for field in zip(*fields, strict=True)])
    del fields  # stacking the vectors and rows needs the memory
    return _corpus_of(model, ids, parts, lexical, asked, queries)


def _corpus_of(
    model: RankingModel,
    ids: Sequence[str],
    parts: Sequence[tuple[Float32, sp.csr_matrix]],
    lexical: LexicalCorpus,
    asked: Sequence[str],
    queries: Sequence[EncodedQueries],
) -> EncodedCorpus:
    vectors, rows = zip(*parts, strict=True)
    return EncodedCorpus(
        tuple(ids),
        {document: row for row, document in enumerate(ids)},
        np.concatenate(vectors),
        stack_rows(rows),
        lexical,
        _joined(queries or [model.encode_queries([])]),
        {document: row for row, document in enumerate(asked)},
    )


def remembering(
    model: RankingModel,
    corpus: EncodedCorpus,
    relevant: Links,
    weights: Float64,
    texts: Mapping[str, str],
    rng: np.random.Generator,
) -> EncodedCorpus:
    """Return the corpus with a query memory for the baselines.

    The returned corpus has other word columns, so tasks must be made from it and not from ``corpus``.

    Parameters
    ----------
    model : RankingModel
        Provides vocabulary and analyzer.
    corpus : EncodedCorpus
        The documents.
    relevant : Links
        Pairs (query id, document id).
    weights : array
        Weight of each pair, (m,) float64.
    texts : mapping
        Query texts by id.
    rng : numpy.random.Generator
        Draws the folds, see `LexicalCorpus.remembering`.
    """
    remembered = RememberedQueries.of(
        relevant, weights, corpus.row_of, lambda ids: _text_counts(model, [texts[query] for query in ids])
    )
    return replace(corpus, lexical=corpus.lexical.remembering(remembered, rng))


class Experiment(NamedTuple):
    """The model's scores on a task, and the same task for the baselines."""

    model: InnerProducts
    evaluation: LexicalTask
    impacts: InnerProducts | None = None
    """Sums of impacts, as an engine adds them up; None if they were not requested."""


def experiment_of(
    model: RankingModel,
    corpus: EncodedCorpus,
    task: RankingTask,
    texts: Mapping[str, str] | None = None,
    n_words: int | None = None,
    seed: int = 0,
    n_impacts: int | None = None,
) -> Experiment:
    """Return a task for the model and for the baselines.

    Queries are texts if ``texts`` (by query id) is given. Otherwise they are documents of the corpus: ``n_words``
    random words of each, drawn by the seed (see `draw_keywords`), or the whole document, which must then be among the
    corpus's ``queries``. ``n_impacts`` is the number of learned words in the impacts of a document (`Impacts`).

    Raises
    ------
    ConfigError
        For keyword queries or impacts if the model's queries have a vocabulary of their own.
    """
    lexical = lexical_task(model, corpus, task, texts, n_words, seed)
    if texts is not None:
        encoded = _in_batches(model.encode_queries, [texts[query] for query in task.query_ids])
    elif n_words is None:
        encoded = corpus.queries.part([corpus.query_row_of[query] for query in task.query_ids])
    else:
        encoded = model.encode_counts(corpus.lexical.by_term(lexical.queries[0]))
    # With identity 0 the rows do not count; their ids may even be of different vocabularies.
    with_rows = model.identity != 0
    scorer = InnerProducts(
        query_vectors=encoded.vectors,
        document_vectors=corpus.vectors[lexical.documents],
        query_rows=encoded.rows if with_rows else None,
        document_rows=corpus.rows[lexical.documents] if with_rows else None,
        row_weight=model.identity,
    )
    sums = None if n_impacts is None else _sums_of_impacts(model, corpus, lexical, encoded, n_impacts)
    return Experiment(scorer, lexical, sums)


def _sums_of_impacts(
    model: RankingModel, corpus: EncodedCorpus, task: LexicalTask, queries: EncodedQueries, n_words: int
) -> InnerProducts:
    """Return the sums of the impacts of the queries' words, with ``n_words`` learned words a document."""
    rows = Impacts(model, n_words).of_documents(corpus.vectors[task.documents], corpus.rows[task.documents])
    return InnerProducts(query_rows=different_words(queries.learned_rows), document_rows=rows)


def lexical_task(
    model: RankingModel,
    corpus: EncodedCorpus,
    task: RankingTask,
    texts: Mapping[str, str] | None = None,
    n_words: int | None = None,
    seed: int = 0,
) -> LexicalTask:
    """Return a task for the baselines; arguments as in `experiment_of`. The model does not encode the queries."""
    lexical, vocabulary = corpus.lexical, model.encoder.document_vocabulary
    if texts is not None:
        queries = lexical.text_queries(_text_counts(model, [texts[query] for query in task.query_ids]))
    elif n_words is None:
        queries = lexical.document_queries(corpus.rows_of(task.query_ids))
    elif model.has_shared_vocabulary:
        queries = lexical.keyword_queries(corpus.rows_of(task.query_ids), task.query_ids, n_words, seed, vocabulary)
    else:
        raise ConfigError(
            "keyword queries are words of the documents, and this model's queries have a vocabulary of their own: "
            "use --queries document, or judgements with a query file"
        )
    return LexicalTask(task, queries, corpus.rows_of(task.document_ids))


def _text_counts(model: RankingModel, texts: Sequence[str]) -> sp.csr_matrix:
    return count_rows(model.encoder.document_vocabulary, model.encoder.analyzer.tokens(texts))


def tuning_task(
    tune: Iterable[IdPair], ids: Collection[str], pool: Collection[str], known: Iterable[IdPair] = ()
) -> RankingTask:
    """Return the task of finding the links ``tune`` in the `tuning_pool`; other known links are excluded."""
    links = Links.of(tune).distinct()
    number_of = {id_: number for number, id_ in enumerate(links.ids)}
    others = Links.of(known)
    source, target = others.numbered(number_of, number_of)
    tuned = pair_keys(links.source, links.target, len(number_of))
    others = others.part((source < 0) | (target < 0) | ~are_among(pair_keys(source, target, len(number_of)), tuned))
    judged = dict(zip(links.ids, np.bincount(links.target, minlength=len(links.ids)).tolist(), strict=True))
    return link_task(links, others, tuning_pool(judged, ids, pool), query_ids=ids)


def tuning_pool(judged: Mapping[str, int], ids: Collection[str], pool: Collection[str]) -> set[str]:
    """Return the documents that baselines rank while they are tuned.

    These are the documents of the evaluation's pool if it holds at least half of the judgments, and otherwise all other
    documents. ``judged`` is the number of judgments of each document.
    """
    inside = set(pool)
    n_inside = sum(n for document, n in judged.items() if document in inside)
    return inside if 2 * n_inside >= sum(judged.values()) else set(ids) - inside


def _in_batches(encode: Callable[[Sequence[Any]], EncodedQueries], inputs: Sequence[Any]) -> EncodedQueries:
    return _joined([encode(inputs[start : start + _BATCH]) for start in range(0, max(len(inputs), 1), _BATCH)])


def _joined(parts: Sequence[EncodedQueries]) -> EncodedQueries:
    """Return batches of encoded queries as one."""
    rows = stack_rows([part.rows for part in parts])
    learned = rows if parts[0].learned_rows is parts[0].rows else stack_rows([part.learned_rows for part in parts])
    return EncodedQueries(np.concatenate([part.vectors for part in parts]), rows, learned)


MODEL = "model"
IMPACTS = "impacts"
HEADLINE = "AP"
RANK_LOSS = "rank_loss"
LEVEL = 0.05
"""Two-sided p below which the model is called better or worse than a baseline."""


@dataclass(frozen=True)
class SystemComparison:
    """Scores of several systems on one task, and tests of the model against each baseline."""

    task: RankingTask
    systems: Mapping[str, SystemScores]
    """Scores by name of the system; `MODEL` is the model."""
    tests: Mapping[str, Mapping[str, PairedTest]]
    """Paired tests over queries of the model minus each other system, by the system's name and measure.

    Smaller is better for the rank loss (per cent of a query's test tuples), larger for all other measures. Only AP has
    a randomization test.
    """
    baselines: Mapping[str, FittedBaseline]

    @property
    def best_baseline(self) -> str | None:
        """The baseline with the highest MAP; None without baselines."""
        return max(self.baselines, key=lambda name: self.systems[name].mean(HEADLINE), default=None)

    @property
    def headline(self) -> PairedTest | None:
        """The test of the model's AP against the best baseline; None without baselines."""
        best = self.best_baseline
        return None if best is None else self.tests[best][HEADLINE]

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``no difference`` (paired t-test of AP at `LEVEL`); ``alone`` without baselines."""
        test = self.headline
        if test is None:
            return "alone"
        if test.p_t_test >= LEVEL:
            return "no difference"
        return "better" if test.difference > 0 else "worse"

    def sentence(self) -> str:
        """Return one sentence: which system is better, on what, by how much."""
        best, test = self.best_baseline, self.headline
        where = f"on {len(self.task.query_ids):,} queries over {len(self.task.document_ids):,} documents"
        value = self.systems[MODEL].mean(HEADLINE)
        if best is None or test is None:
            return f"The model reaches MAP {value:.4f} {where}; it was not compared with a baseline."
        against = self.systems[best].mean(HEADLINE)
        p = "< .0001" if test.p_t_test < 0.0001 else f"= {test.p_t_test:.4f}"
        difference = f"{test.difference:+.4f} ± {test.interval:.4f}"
        numbers = f"MAP {value:.4f} against {against:.4f}, difference {difference}, p {p}"
        if self.verdict == "no difference":
            return (
                f"No difference is shown between the model and the best lexical baseline ({best}) {where}: {numbers}."
            )
        return f"The model is {self.verdict} than the best lexical baseline ({best}) {where}: {numbers}."

    def to_json(self) -> dict[str, Any]:
        """Return everything except the values of single queries, as JSON."""
        return {
            "queries": len(self.task.query_ids),
            "documents": len(self.task.document_ids),
            "relevant": int(self.task.relevant().nnz),
            "dropped": dict(self.task.dropped),
            "systems": {name: _summary(scores) for name, scores in self.systems.items()},
            "settings": {
                name: {**baseline.settings, "tuned_ap": baseline.tuned_ap} for name, baseline in self.baselines.items()
            },
            "tests": {
                name: {
                    measure: {"queries" if key == "n" else key: value for key, value in asdict(test).items()}
                    for measure, test in tests.items()
                }
                for name, tests in self.tests.items()
            },
            "best_baseline": self.best_baseline,
            "verdict": self.verdict,
            "sentence": self.sentence(),
        }


def compare_systems(
    model: BlockScorer,
    fitted: Mapping[str, FittedBaseline],
    evaluation: LexicalTask,
    rng: np.random.Generator,
    run_dir: Path | None = None,
    progress: Say = silent,
    n_tuples: int = N_TUPLES,
    impacts: BlockScorer | None = None,
) -> SystemComparison:
    """Compare the model with fitted baselines on the same queries, documents and judgments.

    The queries must not have been used to fit the baselines. ``<system>.run`` and ``qrels.txt`` are written to
    ``run_dir``.

    Parameters
    ----------
    model : BlockScorer
        Scores of ``evaluation.task``, for instance `InnerProducts` of Uq, Vd and the tf-idf rows.
    fitted : mapping
        Fitted baselines by name.
    evaluation : LexicalTask
        The evaluation task.
    rng : numpy.random.Generator
        Draws the test tuples and the permutations of the randomisation test.
    run_dir : Path, optional
        Folder for runs and qrels.
    progress : callable
        Receives the name of each system before it is evaluated.
    n_tuples : int
        Number of test tuples of the rank loss.
    impacts : BlockScorer, optional
        Sums of impacts. They are one more system, and never the best baseline.
    """
    if taken := {MODEL, IMPACTS} & set(fitted):
        raise ConfigError(f"a baseline cannot have the name {min(taken)!r}: rename it")
    task = evaluation.task
    tuples = draw_tuples(task, rng, n_tuples)
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_qrels(run_dir / "qrels.txt", task)
    systems: dict[str, SystemScores] = {}
    own = {MODEL: model} if impacts is None else {MODEL: model, IMPACTS: impacts}
    for name in (*own, *fitted):
        progress(name)
        scorer = own[name] if name in own else fitted[name].scorer(evaluation.queries, evaluation.documents)
        # Some file systems do not allow a colon in file names.
        run = nullcontext() if run_dir is None else RunWriter(run_dir / f"{name.replace(':', '-')}.run", task, name)
        with run as writer:
            systems[name] = evaluate(task, scorer, tuples, on_block=None if writer is None else writer.write)
    tests: dict[str, dict[str, PairedTest]] = {}
    ours, drawn = systems[MODEL], systems[MODEL].tuple_counts > 0
    for name, others in systems.items():
        if name == MODEL:
            continue
        tests[name] = {
            measure: paired_test(ours.values[measure], others.values[measure], rng if measure == HEADLINE else None)
            for measure in MEASURES
        }
        tests[name][RANK_LOSS] = paired_test(ours.query_rank_losses()[drawn], others.query_rank_losses()[drawn])
    return SystemComparison(task, systems, tests, fitted)


def _summary(scores: SystemScores) -> dict[str, dict[str, float]]:
    summary = {
        measure: {"mean": scores.mean(measure), "standard_error": scores.standard_error(measure)}
        for measure in scores.values
    }
    summary[RANK_LOSS] = {"mean": scores.rank_loss(), "standard_error": scores.rank_loss_standard_error()}
    return summary
