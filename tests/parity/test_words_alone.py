"""Words alone in a model are the best lexical baseline: equal settings, equal rows, equal rankings, on real data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.baselines.fitted import REMEMBERING, fit_baselines
from reranker.evaluation import InnerProducts, Links, RankingTask, draw_tuples, evaluate, link_task, qrels_task
from reranker.formats import read_documents
from reranker.lexical.bm25 import LexicalRows, LexicalSettings
from reranker.lexical.corpus import LexicalCorpus, RememberedQueries
from reranker.lexical.memory import QueryMemory
from reranker.lexical.tuning import COVERING, LexicalTask, best_lexical, tune_lexical
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.tables import read_links, read_qrels, read_queries
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.tfidf import count_rows, field_counts
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder
from tests.seeds import seeded_rng

N_DOCUMENTS, N_QUERIES = 800, 60
pytestmark = pytest.mark.slow
VIEW = TextView.parse(["title", "text"])
ANALYZER = make_analyzer(AnalyzerConfig())


def documents_of(folder: Path, name: str) -> dict[str, Mapping[str, Any]]:
    """Return the first documents of a file, by id."""
    return {one.id: one.source for one in islice(read_documents(folder / name), N_DOCUMENTS)}


def vocabulary_of(sources: Sequence[Mapping[str, Any]]) -> Vocabulary:
    builder = VocabularyBuilder()
    builder.add(ANALYZER.tokens(["\n".join(VIEW.texts(source)) for source in sources]))
    return builder.build()


def check(task: RankingTask, documents: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str] | None) -> None:
    """Compare a model's own rows, over its vocabulary, with the best of the tuned baselines."""
    task, _, _ = task.sample(seeded_rng(), N_QUERIES, len(documents))
    sources = list(documents.values())
    vocabulary = vocabulary_of(sources)
    counts = field_counts(vocabulary, VIEW, ANALYZER, sources)
    row_of = {document: row for row, document in enumerate(documents)}
    pool = np.array([row_of[document] for document in task.document_ids])
    corpus = LexicalCorpus(counts)
    if texts is None:
        asked = [field[[row_of[query] for query in task.query_ids]] for field in counts]
        queries = corpus.document_queries(np.array([row_of[query] for query in task.query_ids]))
    else:
        asked = [count_rows(vocabulary, ANALYZER.tokens([texts[query] for query in task.query_ids]))]
        queries = corpus.text_queries(asked[0])
    data = LexicalTask(task, queries, pool)
    drawn = np.random.default_rng(int(seeded_rng(1).integers(2**63)))  # what `fit_baselines` draws by
    known = tune_lexical(corpus, [data], drawn)
    best = best_lexical(known)

    rows = LexicalRows(best.settings, vocabulary.frequency_of, vocabulary.n_documents)
    words_alone = InnerProducts(
        query_rows=rows.queries(asked), document_rows=rows.documents([field[pool] for field in counts])
    )
    value = evaluate(task, words_alone, draw_tuples(task, seeded_rng(), 0)).mean("AP")
    fitted = fit_baselines(("bm25", "tfidf"), corpus, data, seeded_rng(1))
    assert value == pytest.approx(max(one.tuned_ap or 0.0 for one in fitted.values()), abs=1e-6)
    assert np.mean(best.values) == max(one.tuned_ap or 0.0 for one in fitted.values())
    plain = best_lexical(tune_lexical(corpus, [], seeded_rng())).settings
    # Few queries keep the settings near the usual ones, whose title counts twice.
    assert value > 0.99 * data.mean_ap(corpus.scorer(queries, pool, plain))


def check_remembering(
    qrels: Mapping[str, Mapping[str, float]], documents: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str]
) -> None:
    """Compare the rows of an encoder with a memory with the baseline that remembers the same queries."""
    sources, ids = list(documents.values()), list(documents)
    vocabulary = vocabulary_of(sources)
    counts = field_counts(vocabulary, VIEW, ANALYZER, sources)
    row_of = {document: row for row, document in enumerate(ids)}
    # Half of the queries are remembered, the others ask.
    known = {query: judged for number, (query, judged) in enumerate(sorted(qrels.items())) if number % 2}
    relevant = Links.of((query, document) for query, judged in known.items() for document in judged)
    remembered = RememberedQueries.of(
        relevant,
        np.ones(len(relevant)),
        row_of,
        lambda asked: count_rows(vocabulary, ANALYZER.tokens([texts[query] for query in asked])),
    )
    corpus = LexicalCorpus(counts).remembering(remembered, seeded_rng(2))

    def data_of(grades: Mapping[str, Mapping[str, float]]) -> LexicalTask:
        task = qrels_task(grades, texts, documents)
        asked = count_rows(vocabulary, ANALYZER.tokens([texts[query] for query in task.query_ids]))
        return LexicalTask(task, corpus.text_queries(asked), np.array([row_of[each] for each in task.document_ids]))

    data = data_of({query: judged for query, judged in qrels.items() if query not in known})
    fitted = fit_baselines((REMEMBERING, "bm25"), corpus, data_of(known), seeded_rng(1))
    settings = LexicalSettings.from_json(fitted[REMEMBERING].settings)
    memory = QueryMemory.of(ids, remembered.rows(len(ids)), counts)
    encoder = Encoder(
        VIEW, ANALYZER, vocabulary, "log", np.zeros((0, 1), np.float32), "float32", lexical=settings, memory=memory
    )
    model = RankingModel(encoder, vocabulary, np.zeros((0, 1), np.float32))
    asked = model.encode_queries([texts[query] for query in data.task.query_ids]).rows
    offered = encoder.encode([documents[each] for each in data.task.document_ids], data.task.document_ids).rows
    values = []
    for scorer in (
        InnerProducts(query_rows=asked, document_rows=offered),
        *(fitted[name].scorer(data.queries, data.documents) for name in (REMEMBERING, "bm25")),
    ):
        values.append(evaluate(data.task, scorer, draw_tuples(data.task, seeded_rng(), 0)).mean("AP"))
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    assert values[0] > values[2] + 0.03


def linked(folder: Path, part: str) -> tuple[RankingTask, dict[str, Mapping[str, Any]]]:
    """Return the first documents of a linked corpus, and the links of a file among them as a task."""
    documents = documents_of(folder, "docs_en.jsonl.gz")
    links = [link for link in read_links(folder / f"links_{part}.tsv.gz") if set(link) <= set(documents)]
    return link_task(links, [], documents), documents


def test_linked_documents(ssi_data: Path) -> None:
    task, documents = linked(ssi_data / "cppdocs", "train")
    check(task, documents, None)


def test_coverage_is_found_where_bm25_alone_counts_words_in_another_way(ssi_data: Path) -> None:
    task, documents = linked(ssi_data / "aws", "en")
    sources = list(documents.values())
    corpus = LexicalCorpus(field_counts(vocabulary_of(sources), VIEW, ANALYZER, sources))
    row_of = {document: row for row, document in enumerate(documents)}
    asked, pool = (np.array([row_of[id_] for id_ in ids]) for ids in (task.query_ids, task.document_ids))
    data = LexicalTask(task, corpus.document_queries(asked), pool)
    tuned = tune_lexical(corpus, [data], np.random.default_rng(0), ("bm25",), with_coverage=True)
    bm25, covering = tuned["bm25"], tuned[COVERING]
    assert (bm25.settings.query_tf, covering.settings.query_tf) == ("sqrt", "once")
    assert covering.value is not None and bm25.value is not None
    assert covering.value > bm25.value + 0.03  # measured .048; .0001 where only the best way of bm25 is tried


def test_judged_queries(ssi_data: Path) -> None:
    folder = ssi_data / "nfcorpus"
    documents = documents_of(folder, "docs.jsonl.gz")
    texts = {query.id: query.text for query in islice(read_queries(folder / "queries.tsv.gz"), 400)}
    qrels: dict[str, dict[str, float]] = {}
    for judgement in read_qrels(folder / "qrels.tsv.gz"):
        if judgement.query_id in texts and judgement.document_id in documents:
            qrels.setdefault(judgement.query_id, {})[judgement.document_id] = judgement.grade
    check(qrels_task(qrels, texts, documents), documents, texts)
    check_remembering(qrels, documents, texts)
