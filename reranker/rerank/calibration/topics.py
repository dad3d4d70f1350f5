"""Topics: queries with known answers, from judgments or links, to which alpha and the boost of impacts are fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from reranker.config import parse_keywords
from reranker.engines.stored_ids import NO_CHECK, IdCheck
from reranker.errors import InputError
from reranker.formats import RejectSink, read_documents
from reranker.models.ranking_model import Encoder
from reranker.models.training_queries import MAX_TRAINING_QUERIES, TrainingQueries
from reranker.records import is_relevant
from reranker.tables import at_least_one, read_judgements, read_links, read_queries
from reranker.text.analyzers import Analyzer, AnalyzerConfig, make_analyzer

T = TypeVar("T")
TITLE_WORDS = 12
"""Number of words of a title that form a query."""
MAX_QUERY_KEYWORDS = 100
"""Maximum number of random words in a query, because engines reject queries of a thousand clauses."""
MIN_HELD_OUT: Final = 30
"""Number of queries without training queries from which only these are used for fitting."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A query with its judgments."""

    query: str
    grades: Mapping[str, float]
    """Grade by document id; a document is relevant if its grade is above 0."""
    excluded: frozenset[str] = frozenset()
    """Documents that are removed from the ranking: the document from which the query was generated."""


def qrels_of(topics: Sequence[Topic]) -> dict[str, dict[str, float]]:
    """Return the grades of each topic; topics are named ``"0"``, ``"1"``, ... by their positions."""
    return {str(number): dict(topic.grades) for number, topic in enumerate(topics)}


def topics_of_qrels(
    qrels: Path,
    queries: Path,
    rejects: RejectSink | None = None,
    check: IdCheck = NO_CHECK,
) -> list[Topic]:
    """Return the queries that have at least one relevant document, in the order of the query file.

    Judgments whose query has no text, or whose document is unknown by ``check``, are left out.

    Raises `InputError` if there is no such query, or if a file cannot be read or all of its lines were rejected.
    """
    grades = at_least_one("judgments", qrels, rejects, lambda: read_judgements(qrels, rejects))
    asked = at_least_one("queries", queries, rejects, lambda: list(read_queries(queries, rejects=rejects)))
    known = check.known("judgments", grades, {query.id for query in asked})
    topics = [
        Topic(query.text, known[query.id])
        for query in asked
        if any(is_relevant(grade) for grade in known.get(query.id, {}).values())
    ]
    if not topics:
        raise InputError(
            f"no query of {str(queries)!r} has a relevant document in {str(qrels)!r}: the query ids of both files must "
            "match, and relevant documents must have a grade above 0 and be in the index"
        )
    return topics


def topics_of_links(
    links: Path,
    documents: Path,
    encoder: Encoder,
    queries: str,
    seed: int,
    rejects: RejectSink | None = None,
    id_field: str | None = None,
    check: IdCheck = NO_CHECK,
) -> list[Topic]:
    """Return one topic per linking document: a short query generated from it, with the linked documents as answers.

    Parameters
    ----------
    links, documents
        Files of links and of documents.
    encoder
        Its text view selects the fields of a document. Its analyzer, without stemming, splits them into words.
    queries
        How to generate queries: ``title`` (the first words of the first non-empty field) or ``keywords:K`` (K random
        words).
    seed
        Seed for choosing random words.
    rejects
        Receives invalid records.
    id_field
        Field with the document id.
    check
        Links whose source is no document of the file, or whose target is unknown by this check, are left out.

    Raises
    ------
    ConfigError
        For another value of ``queries``.
    InputError
        If no link to a known document starts at a document of the file.
    """
    n_words = parse_keywords(queries, ("title",), MAX_QUERY_KEYWORDS)
    targets: dict[str, dict[str, float]] = {}
    for link in at_least_one("links", links, rejects, lambda: list(read_links(links, rejects=rejects))):
        if link.source != link.target:
            targets.setdefault(link.source, {})[link.target] = 1.0
    config = encoder.analyzer.config
    # Engines search for whole words, so the query must not be stemmed.
    analyzer = make_analyzer(AnalyzerConfig() if config.kind == "engine" else replace(config, stemmer=None))
    texts: dict[str, str] = {}
    for document in read_documents(documents, rejects=rejects, id_field=id_field):
        if document.id in targets:
            fields_of = encoder.view.texts(document.source)
            texts[document.id] = _query_text(analyzer, fields_of, n_words, seed, document.id)
    known = check.known("links", targets, texts)
    topics = [
        Topic(text, known[source], frozenset([source])) for source, text in texts.items() if text and known[source]
    ]
    if not topics:
        raise InputError(
            f"no link of {str(links)!r} leads from a document of {str(documents)!r} with text to a document of the "
            "index: check that the ids match"
        )
    return topics


def _query_text(analyzer: Analyzer, texts: Sequence[str], n_words: int | None, seed: int, name: str) -> str:
    tokens = analyzer.tokens(list(texts))
    if n_words is None:
        return " ".join(next((words[:TITLE_WORDS] for words in tokens if words), []))
    words = sorted({word for field in tokens for word in field})
    if len(words) > n_words:
        rng = np.random.default_rng([seed, *name.encode("utf-8", "surrogatepass")])
        words = [words[place] for place in rng.choice(len(words), size=n_words, replace=False)]
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class FittingTopics:
    """The topics that alpha is fitted to, and how many of the given ones the model has learned from."""

    topics: list[Topic]
    """The given topics that the model has not learned from; all of them if those are too few, or it is unknown."""
    n_given: int
    """Number of given topics."""
    n_learned: int | None
    """Number of given topics that the model has learned from. None: unknown."""

    @property
    def held_out(self) -> bool | None:
        """True if the model has learned from none of the topics; None: unknown."""
        return None if self.n_learned is None else len(self.topics) == self.n_given - self.n_learned

    def sentence(self) -> str:
        """Return which topics are used, and what follows for the fit."""
        if self.n_learned is None:
            return (
                "it is unknown whether the model was trained on these queries, because it does not contain a list of "
                "its training queries (it was trained by an earlier version, from such a model, or on more than "
                f"{MAX_TRAINING_QUERIES:,} queries). If it was, alpha and the gain are too high. Train the model "
                "again, or calibrate on queries that it was not trained on"
            )
        n_others = self.n_given - self.n_learned
        if self.held_out:
            return f"{n_others:,} of {self.n_given:,} queries are used: the model was not trained on them"
        return (
            f"the model was trained on {self.n_learned:,} of the {self.n_given:,} queries, and the other {n_others:,} "
            f"are too few (at least {MIN_HELD_OUT} are needed), so all queries are used. The fit is on training "
            "queries: alpha and the gain are too high, and say little about new queries. Give more queries that the "
            "model was not trained on"
        )


def topics_to_fit(topics: Sequence[Topic], known: TrainingQueries | None) -> FittingTopics:
    """Return the topics that the model has not learned from; all topics if fewer than `MIN_HELD_OUT` would remain.

    The model has learned from a topic if its query text, or the document that it was generated from, is among the
    training queries. ``known`` are these; None: they are unknown.
    """
    if known is None:
        return FittingTopics(list(topics), len(topics), None)
    learned = known.have_texts([topic.query for topic in topics])
    sources = [(place, document) for place, topic in enumerate(topics) for document in topic.excluded]
    are_known = known.have_documents([document for _, document in sources])
    learned[[place for (place, _), is_known in zip(sources, are_known, strict=True) if is_known]] = True
    n_learned = int(learned.sum())
    others = [topic for topic, is_known in zip(topics, learned, strict=True) if not is_known]
    kept = others if len(others) >= MIN_HELD_OUT or not n_learned else list(topics)
    return FittingTopics(kept, len(topics), n_learned)


def sample(population: Sequence[T], limit: int, seed: int) -> list[T]:
    """Return at most ``limit`` randomly sampled elements, in their original order."""
    if len(population) <= limit:
        return list(population)
    places = np.random.default_rng(seed).choice(len(population), size=limit, replace=False)
    return [population[place] for place in np.sort(places).tolist()]
