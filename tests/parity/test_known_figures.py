"""Baselines on real data reach the figures that others measured for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reranker.baselines.fitted import LsiBaseline
from reranker.evaluation import InnerProducts, SystemScores, draw_keywords, draw_tuples, evaluate, link_task
from reranker.formats import read_documents, read_ids
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus
from reranker.lexical.tuning import LexicalTask
from reranker.tables import read_links
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.tfidf import field_counts
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder

WHOLE, BY_FIELD = TextView.parse(["whole"]), TextView.parse(["title", "text"])


class CppDocs:
    """English data/cppdocs: counts of title and text apart, and of both as one text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cppdocs"
        documents = list(read_documents(self.folder / "docs_en.jsonl.gz"))
        sources = [{**one.source, "whole": f"{one.source['title']}\n{one.source['text']}"} for one in documents]
        analyzer = make_analyzer(AnalyzerConfig())
        builder = VocabularyBuilder()
        builder.add(analyzer.tokens([str(source["whole"]) for source in sources]))
        self.vocabulary: Vocabulary = builder.build(30_000)
        self.row_of = {one.id: row for row, one in enumerate(documents)}
        self.whole, self.by_field = (
            LexicalCorpus(field_counts(self.vocabulary, view, analyzer, sources)) for view in (WHOLE, BY_FIELD)
        )

    def rows(self, ids: tuple[str, ...]) -> np.ndarray:
        return np.array([self.row_of[one] for one in ids], dtype=np.int64)

    def random_split(self, corpus: LexicalCorpus) -> LexicalTask:
        links, train, valid = (
            list(read_links(self.folder / f"links_{part}.tsv.gz")) for part in ("test", "train", "valid")
        )
        task = link_task(links, train + valid, self.row_of)
        assert len(task.query_ids) == 4_058
        return LexicalTask(task, corpus.document_queries(self.rows(task.query_ids)), self.rows(task.document_ids))

    def disjoint_split(self, corpus: LexicalCorpus) -> LexicalTask:
        pool = set(read_ids(self.folder / "docs_test_ids.txt.gz"))
        links = [link for link in read_links(self.folder / "links_en.tsv.gz") if set(link) <= pool]
        task = link_task(links, [], pool)
        assert len(task.query_ids) == 1_354
        return LexicalTask(task, corpus.document_queries(self.rows(task.query_ids)), self.rows(task.document_ids))


@pytest.fixture(scope="module")
def cppdocs(ssi_data: Path) -> CppDocs:
    return CppDocs(ssi_data)


def plain_bm25(corpus: LexicalCorpus) -> LexicalSettings:
    mean = float(corpus.fields[0].sum(dtype=np.float64)) / corpus.n_documents
    return LexicalSettings("bm25", (1.0,), (1.0,), b=(0.75,), mean_lengths=(mean,))


def scores(task: LexicalTask, scorer: InnerProducts) -> SystemScores:
    return evaluate(task.task, scorer, draw_tuples(task.task, np.random.default_rng(0)))


ONE = LexicalSettings("tfidf", (1.0,), (1.0,))
TITLE_TWICE = LexicalSettings("tfidf", (2.0, 1.0), (0.0, 1.0))
"""The title weighs 2 in documents and nothing in queries: a page names its targets' titles in its text."""


@pytest.mark.slow
def test_random_split(cppdocs: CppDocs) -> None:
    whole, by_field = cppdocs.random_split(cppdocs.whole), cppdocs.random_split(cppdocs.by_field)
    plain = scores(whole, cppdocs.whole.scorer(whole.queries, whole.documents, ONE))
    assert plain.mean("AP") == pytest.approx(0.26, abs=0.005)
    titles = cppdocs.by_field.scorer(by_field.queries, by_field.documents, TITLE_TWICE)
    with_titles = scores(by_field, titles)
    assert with_titles.mean("AP") == pytest.approx(0.38, abs=0.005)
    assert with_titles.rank_loss() < plain.rank_loss() < 5
    bm25 = cppdocs.whole.scorer(whole.queries, whole.documents, plain_bm25(cppdocs.whole))
    assert scores(whole, bm25).mean("AP") == pytest.approx(0.26, abs=0.008)
    lsi = LsiBaseline(cppdocs.whole, ONE, 200, np.random.default_rng(0))
    alone = lsi.scorer(whole.queries, whole.documents, 1.0)
    assert scores(whole, alone).mean("AP") == pytest.approx(0.21, abs=0.008)


def test_disjoint_split(cppdocs: CppDocs) -> None:
    whole, by_field = cppdocs.disjoint_split(cppdocs.whole), cppdocs.disjoint_split(cppdocs.by_field)
    plain = cppdocs.whole.scorer(whole.queries, whole.documents, ONE)
    assert scores(whole, plain).mean("AP") == pytest.approx(0.45, abs=0.012)
    titles = cppdocs.by_field.scorer(by_field.queries, by_field.documents, TITLE_TWICE)
    assert scores(by_field, titles).mean("AP") == pytest.approx(0.57, abs=0.02)


@pytest.mark.slow
def test_ten_keywords(cppdocs: CppDocs) -> None:
    task = cppdocs.random_split(cppdocs.whole)
    counts = cppdocs.whole.counts(cppdocs.rows(task.task.query_ids))
    drawn = draw_keywords(counts, task.task.query_ids, 10, 0, cppdocs.vocabulary)
    task = LexicalTask(task.task, cppdocs.whole.text_queries(drawn), task.documents)
    tfidf = cppdocs.whole.scorer(task.queries, task.documents, ONE)
    assert scores(task, tfidf).mean("AP") == pytest.approx(0.10, abs=0.012)
    bm25 = cppdocs.whole.scorer(task.queries, task.documents, plain_bm25(cppdocs.whole))
    assert scores(task, bm25).mean("AP") == pytest.approx(0.12, abs=0.012)
