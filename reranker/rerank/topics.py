"""Queries with known answers, from judgements or from links, as `ssi calibrate` learns from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reranker.encoder import Encoder
from reranker.errors import ConfigError, InputError
from reranker.formats import RejectSink, read_documents, read_links, read_qrels, read_queries
from reranker.text.analyzers import Analyzer, AnalyzerConfig, make_analyzer

TITLE_WORDS = 12
"""Words of a title that make a query; engines refuse queries of a thousand clauses."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A query and what is known of its answers.

    Parameters
    ----------
    query : str
    grades : mapping of document id to float
        Bigger is better; above 0 is relevant.
    excluded : frozenset of str
        Documents left out of the ranking: the one the query was made from.
    """

    query: str
    grades: Mapping[str, float]
    excluded: frozenset[str] = frozenset()


def topics_of_qrels(qrels: Path, queries: Path, rejects: RejectSink | None = None) -> list[Topic]:
    """Return the queries that have at least one relevant document, in the order of the query file.

    Raises
    ------
    InputError
        If no query has one, or a file cannot be read.
    """
    grades: dict[str, dict[str, float]] = {}
    for judgement in read_qrels(qrels, rejects=rejects):
        grades.setdefault(judgement.query_id, {})[judgement.document_id] = judgement.grade
    topics = [
        Topic(query.text, grades[query.id])
        for query in read_queries(queries, rejects=rejects)
        if any(grade > 0 for grade in grades.get(query.id, {}).values())
    ]
    if not topics:
        raise InputError(
            f"no query of {str(queries)!r} has a relevant document in {str(qrels)!r}: the query ids of both files must "
            "be the same, and relevant documents have a grade above 0"
        )
    return topics


def topics_of_links(
    links: Path, documents: Path, encoder: Encoder, queries: str, seed: int, rejects: RejectSink | None = None
) -> list[Topic]:
    """Return one topic a linking document: a short query made of it, the documents it links to as answers.

    Parameters
    ----------
    links, documents : Path
    encoder : Encoder
        Its text view reads the documents; its analyzer, without stemming, cuts them into words.
    queries : str
        ``title`` (the first words of the first field that has any) or ``keywords:K`` (K random words).
    seed : int

    Raises
    ------
    ConfigError
        For another value of ``queries``.
    InputError
        If no link starts at a document of the file.
    """
    n_words = parse_link_queries(queries)
    targets: dict[str, dict[str, float]] = {}
    for link in read_links(links, rejects=rejects):
        if link.source != link.target:
            targets.setdefault(link.source, {})[link.target] = 1.0
    analyzer = make_analyzer(_unstemmed(encoder.analyzer.config))
    topics = []
    for document in read_documents(documents, rejects=rejects):
        if document.id in targets:
            text = _query_text(analyzer, encoder.view.texts(document.source), n_words, seed, document.id)
            if text:
                topics.append(Topic(text, targets[document.id], frozenset([document.id])))
    if not topics:
        raise InputError(
            f"no link of {str(links)!r} starts at a document of {str(documents)!r} with text: check that the ids match"
        )
    return topics


def parse_link_queries(text: str) -> int | None:
    """Return None for ``title``, K for ``keywords:K``; `ConfigError` for anything else."""
    if text == "title":
        return None
    kind, _, number = text.partition(":")
    if kind == "keywords" and number.isdecimal() and 0 < int(number) <= 100:
        return int(number)
    raise ConfigError(f"--queries {text!r} is not legal: write title, or keywords:K with K from 1 to 100")


def _unstemmed(config: AnalyzerConfig) -> AnalyzerConfig:
    """Return how to cut texts into words that an engine would be asked: whole ones."""
    return AnalyzerConfig() if config.kind == "engine" else dataclasses.replace(config, stemmer=None)


def _query_text(analyzer: Analyzer, texts: Sequence[str], n_words: int | None, seed: int, name: str) -> str:
    tokens = analyzer.tokens(list(texts))
    if n_words is None:
        return " ".join(next((words[:TITLE_WORDS] for words in tokens if words), []))
    words = sorted({word for field in tokens for word in field})
    if len(words) > n_words:
        rng = np.random.default_rng([seed, *name.encode("utf-8", "surrogatepass")])
        words = [words[place] for place in rng.choice(len(words), size=n_words, replace=False)]
    return " ".join(words)


def sample(topics: Sequence[Topic], limit: int, seed: int) -> list[Topic]:
    """Return at most ``limit`` topics, drawn at random, in their order."""
    if len(topics) <= limit:
        return list(topics)
    places = np.random.default_rng(seed).choice(len(topics), size=limit, replace=False)
    return [topics[place] for place in np.sort(places).tolist()]
