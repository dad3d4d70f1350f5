"""Synonym rules for a search engine's own analyzer: candidates from U and V, kept if held-out queries gain from them.

A rule ``a => a, b`` means that a query with the word a also finds documents with the word b. Rules are directed: a
query with b is not changed. The gain of a rule is measured as the engine will use it. Lucene scores a word and its
synonyms as one word: their frequencies in a document are added, and the largest document frequency counts
(`SynonymQuery`), so a synonym that is a frequent word also lowers the weight of the query word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float64, Int64
from reranker.errors import ConfigError, InputError
from reranker.evaluation import PairedTest, ndcg_gains, paired_test
from reranker.formats import RejectSink, read_documents
from reranker.lexical.bm25 import bm25_idf, bm25_weights, length_norms
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.progress import Progress, no_progress
from reranker.records import is_relevant
from reranker.rerank.calibrate import Topic
from reranker.text.analyzers import BETWEEN, STOP_WORDS, make_analyzer
from reranker.text.query_keys import query_key
from reranker.text.rows import select_columns, stack_rows, used_columns
from reranker.text.tfidf import text_counts

N_HALVES: Final = 2
DEPTH: Final = 10
"""Ranks that count in the measure, nDCG@10."""
_BATCH = 1_000
_K1, _B = 1.2, 0.75  # Lucene's defaults, for a model without BM25 settings
_SYNTAX = re.compile(r"[,=>#\\\s]|\d")
"""Characters with a meaning in a file of rules, and digits: numbers and part numbers have no synonyms."""

_FUNCTION_WORDS = (
    "i me my you your he him his she her it its we us our they them their who whom whose what which when where why how "
    "this that these those am is are was were be been being do does did done has have had having can could will would "
    "shall should may might must from about than too very so just also any some all each every more most much many "
    "other another such own same only there here again once up down out off over under between through during before "
    "after above below both few because until while s t don d ll m re ve"
)
"""English words without a meaning of their own that Lucene's list of stop words leaves in; they have no synonyms."""


class RuleChange(NamedTuple):
    """Changes of nDCG@10 of the queries of one half by a rule."""

    total: float = 0.0
    """Sum of the changes."""
    squares: float = 0.0
    """Sum of their squares."""


@dataclass(frozen=True, slots=True)
class SynonymConfig:
    """Limits of the search for rules."""

    max_per_word: int = 3
    """Largest number of synonyms of a query word."""
    min_support: int = 3
    """Least `SynonymRule.support` of a rule, at least 1."""
    min_documents: int = 3
    """Least number of documents with the synonym."""
    n_candidates: int = 10
    """Number of document words that are tried for each query word."""
    errors: float = 1.64
    """Standard errors, at least 0, that the gain of a rule must exceed; 1.64 is a one-sided test at the level 5 %."""


@dataclass(frozen=True, slots=True)
class SynonymRule:
    """A rule: queries with ``word`` also find documents with ``synonym``."""

    word: str
    """Word of queries. In a model with a stemmer, the most frequent form of the stem in the documents."""
    synonym: str
    """Word of documents, written likewise."""
    cosine: float
    """U_i . V_j / (|U_i| |V_j|)."""
    support: int
    """Number of judged queries with the word that have a relevant document with the synonym and without the word."""
    queries: int
    """Number of judged queries with the word."""
    gain: float
    """Mean change of nDCG@10 over these queries when the rule is added to the rules of larger gain."""


@dataclass(frozen=True, slots=True)
class SynonymSet:
    """Rules and their evidence."""

    rules: tuple[SynonymRule, ...]
    """Sorted by word, then by gain, largest first."""
    n_queries: int
    """Number of judged queries."""
    n_candidates: int
    """Number of rules that were tried."""
    held_out: PairedTest | None
    """Change of nDCG@10 over all judged queries, each with rules chosen on the other half. None with one query."""
    before: float
    """Mean nDCG@10 of the judged queries without rules."""

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON-compatible values."""
        test = self.held_out
        found = None if test is None else {"difference": test.difference, "p": test.p_t_test}
        return {
            "queries": self.n_queries,
            "candidates": self.n_candidates,
            "ndcg_at_10": self.before,
            "held_out": found,
            "rules": [asdict(rule) for rule in self.rules],
        }

    def lines(self) -> dict[str, str]:
        """Return the rule of each query word in Solr's format, by query word: ``a => a, b, c``."""
        synonyms: dict[str, list[str]] = {}
        for rule in self.rules:
            synonyms.setdefault(rule.word, []).append(rule.synonym)
        return {word: f"{word} => {', '.join([word, *others])}" for word, others in synonyms.items()}

    def text(self) -> str:
        """Return the content of a file for the filter ``synonym_graph``; comments state support and gain."""
        parts = [
            f"# {len(self.rules)} rules from {self.n_queries} judged queries. Use them in the search analyzer, as the "
            "last filter."
        ]
        lines = self.lines()
        for word, line in lines.items():
            parts += [
                f"# {rule.word} -> {rule.synonym}: support {rule.support}, gain {rule.gain:+.4f} nDCG@10 over "
                f"{rule.queries} queries"
                for rule in self.rules
                if rule.word == word
            ]
            parts.append(line)
        return "".join(f"{part}\n" for part in parts)

    def request_body(self) -> dict[str, Any]:
        """Return the body of ``PUT /_synonyms/NAME`` of Elasticsearch; the id of a rule is its query word."""
        return {"synonyms_set": [{"id": word, "synonyms": line} for word, line in self.lines().items()]}


class SynonymDocuments:
    """Word counts of documents, and their scores for query words with synonyms.

    Rows are documents in ascending order of their ids, which breaks ties.

    Parameters
    ----------
    encoder : Encoder
        Provides fields, analyzer and vocabulary, and the field weights, k1 and b if it has settings of BM25. Otherwise
        they are Lucene's, and all fields have the weight 1.
    ids : sequence of str
        Ids of the documents.
    counts : sequence of csr_matrix
        Word counts of each field, (n_documents, any) float32, as `text_counts` returns them.
    forms : mapping
        The most frequent form of each stem; empty without a stemmer.

    Attributes
    ----------
    row_of : mapping
        Row by document id.
    frequency : array
        Number of documents with the word of each column, (m,) int64.
    forms : mapping
        As given.
    """

    def __init__(
        self, encoder: Encoder, ids: Sequence[str], counts: Sequence[sp.csr_matrix], forms: Mapping[str, str]
    ) -> None:
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
        self.row_of = {ids[place]: row for row, place in enumerate(order.tolist())}
        self.forms = forms
        self._vocabulary = encoder.document_vocabulary
        n_fields = len(encoder.view.fields)  # the counts of bigrams, if there are any, follow
        self._columns = used_columns(counts[:n_fields])
        fields = [select_columns(field, self._columns)[order] for field in counts[:n_fields]]
        lexical = encoder.lexical_of_short
        if lexical is not None and lexical.form == "bm25":
            self._k1, weights, b = lexical.k1, lexical.field_weights[:n_fields], lexical.b[:n_fields]
        else:
            self._k1, weights, b = _K1, (1.0,) * n_fields, (_B,) * n_fields
        self._holding = sum(fields[1:], start=fields[0]).tocsc()
        self._holding.sort_indices()
        self.frequency: Int64 = np.diff(self._holding.indptr).astype(np.int64)
        self._fields: list[tuple[sp.csc_matrix, Float64]] = []
        """Word counts of each field, and the factor of a count in each document: weight / length norm."""
        for field, weight, b_of_field in zip(fields, weights, b, strict=True):
            lengths = np.asarray(field.sum(axis=1), np.float64).ravel()
            self._fields.append((field.tocsc(), weight / length_norms(lengths, float(lengths.mean()), b_of_field)))
        self._single: dict[int, tuple[Int64, Float64]] = {}

    @classmethod
    def read(
        cls,
        path: Path,
        encoder: Encoder,
        rejects: RejectSink | None = None,
        progress: Progress = no_progress,
        id_field: str | None = None,
    ) -> SynonymDocuments:
        """Return the documents of a file. Raises `InputError` if it cannot be read or has no document."""
        config = encoder.analyzer.config
        plain = make_analyzer(replace(config, stemmer=None, bigrams=False)) if config.stemmer is not None else None
        ids: list[str] = []
        parts: list[list[sp.csr_matrix]] = []
        forms: Counter[str] = Counter()
        documents = read_documents(path, rejects=rejects, id_field=id_field)
        while batch := list(islice(documents, _BATCH)):
            texts = [encoder.view.texts(document.source) for document in batch]
            parts.append(text_counts(encoder.document_vocabulary, encoder.analyzer, texts, len(encoder.view.fields)))
            ids += [document.id for document in batch]
            if plain is not None:
                for tokens in plain.tokens([part for text in texts for part in text]):
                    forms.update(tokens)
            progress(len(ids), None)
        if not ids:
            raise InputError(f"{str(path)!r} holds no document: give JSON lines or Parquet with an id and text fields")
        counts = [stack_rows(field) for field in zip(*parts, strict=True)]
        return cls(encoder, ids, counts, _form_of_stems(encoder, forms))

    def column(self, word: str) -> int:
        """Return the column of a word, -1 if no document holds it."""
        number = int(self._vocabulary.ids([word])[0])
        place = int(np.searchsorted(self._columns, number))
        return place if place < len(self._columns) and self._columns[place] == number else -1

    def holding(self, column: int) -> Int64:
        """Return the rows of the documents with a word, ascending."""
        start, end = self._holding.indptr[column : column + 2]
        return np.asarray(self._holding.indices[start:end], np.int64)

    def weights(self, columns: tuple[int, ...]) -> tuple[Int64, Float64]:
        """Return the rows of the documents with any of the words, and the score that they get as one word."""
        if len(columns) == 1 and columns[0] in self._single:
            return self._single[columns[0]]
        tf = np.zeros(len(self.row_of))
        for field, factor in self._fields:
            for column in columns:
                span = slice(field.indptr[column], field.indptr[column + 1])
                held_in = field.indices[span]
                tf[held_in] += field.data[span] * factor[held_in]
        rows = np.flatnonzero(tf).astype(np.int64)
        idf = bm25_idf(len(tf), self.frequency[list(columns)].max())
        found = rows, bm25_weights(tf[rows], idf, self._k1)
        if len(columns) == 1:
            self._single[columns[0]] = found
        return found


def _form_of_stems(encoder: Encoder, forms: Counter[str]) -> dict[str, str]:
    """Return the most frequent form of each stem; of equally frequent ones the first in alphabetical order."""
    chosen: dict[str, str] = {}
    ordered = sorted(forms, key=lambda form: (-forms[form], form))
    for start in range(0, len(ordered), _BATCH):
        batch = ordered[start : start + _BATCH]
        for form, tokens in zip(batch, encoder.analyzer.tokens(batch), strict=True):
            if tokens:
                chosen.setdefault(tokens[0], form)
    return chosen


@dataclass(frozen=True, slots=True)
class _Query:
    """A judged query."""

    words: Mapping[str, int]
    """How often it holds each word."""
    relevant: Int64
    """Rows of its relevant documents, (n,) int64: those with a grade above 0."""
    gains: Mapping[int, float]
    """Gain 2^grade - 1 of each of these rows."""
    ideal: float
    """Discounted gain of the best order."""
    excluded: Int64
    """Rows that are left out of the ranking."""
    half: int
    """0 or 1; equal texts are in the same half."""


_DISCOUNTS = 1 / np.log2(np.arange(2, DEPTH + 2))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A rule that is tried."""

    word: str
    column: int
    synonym: str
    cosine: float
    support: int


class _Trial:
    """Measures rules on judged queries."""

    def __init__(self, documents: SynonymDocuments, queries: Sequence[_Query]) -> None:
        self._documents, self.queries = documents, queries
        self.asking: dict[str, list[int]] = {}
        for number, query in enumerate(queries):
            for word in query.words:
                self.asking.setdefault(word, []).append(number)

    def score(self, query: _Query, synonyms: Mapping[str, tuple[int, ...]], skipped: str | None = None) -> Float64:
        """Return the score of all documents for a query without the word ``skipped``, (n_documents,) float64."""
        scores = np.zeros(len(self._documents.row_of))
        for word, count in query.words.items():
            if word != skipped:
                self.add(scores, word, count, synonyms.get(word, ()))
        return scores

    def add(self, scores: Float64, word: str, count: int, synonyms: tuple[int, ...]) -> None:
        """Add the scores of a query word and its synonyms."""
        own = self._documents.column(word)
        columns = (*((own,) if own >= 0 else ()), *synonyms)
        if columns:
            rows, values = self._documents.weights(columns)
            scores[rows] += count * values

    def value(self, query: _Query, scores: Float64) -> float:
        """Return nDCG@10 of the order by scores; documents of score 0 are not found."""
        scores[query.excluded] = 0.0
        depth = min(DEPTH, len(scores))
        last = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        found = np.flatnonzero((scores >= last) & (scores > 0))
        top = found[np.argsort(-scores[found], kind="stable")[:depth]]
        gained = [query.gains.get(row, 0.0) for row in top.tolist()]
        return float(np.dot(gained, _DISCOUNTS[: len(gained)])) / query.ideal

    def values(self, synonyms: Mapping[str, tuple[int, ...]]) -> Float64:
        """Return nDCG@10 of all queries, (n,) float64."""
        return np.array([self.value(query, self.score(query, synonyms)) for query in self.queries])

    def alone(self, word: str, candidates: Sequence[_Candidate], before: Float64) -> list[list[RuleChange]]:
        """Return the changes by each candidate of a word as the only rule, for each half; ``before``: without rules."""
        changes = np.zeros((len(candidates), len(self.asking[word])))
        for asked, number in enumerate(self.asking[word]):
            query = self.queries[number]
            rest = self.score(query, {}, skipped=word)
            for place, candidate in enumerate(candidates):
                scores = rest.copy()
                self.add(scores, word, query.words[word], (candidate.column,))
                changes[place, asked] = self.value(query, scores) - before[number]
        return [self._by_half(self.asking[word], of_rule) for of_rule in changes]

    def _by_half(self, numbers: Sequence[int], changes: Float64) -> list[RuleChange]:
        """Return the changes of these queries by half."""
        half = np.array([self.queries[number].half for number in numbers])
        return [
            RuleChange(float(changes[half == each].sum()), float((changes[half == each] ** 2).sum()))
            for each in range(N_HALVES)
        ]

    def choose(
        self,
        candidates: Sequence[tuple[_Candidate, Sequence[RuleChange]]],
        halves: Collection[int],
        before: Float64,
        config: SynonymConfig,
    ) -> tuple[list[tuple[_Candidate, float]], dict[str, tuple[int, ...]]]:
        """Return the rules that help in each of the halves, with their summed gains, and the synonyms of each word.

        Rules are added in the order of their gain as the only rule. Each must help in addition to those before it.
        """
        values = before.copy()
        synonyms: dict[str, tuple[int, ...]] = {}
        chosen: list[tuple[_Candidate, float]] = []
        helping = [
            (_gain([changes[half] for half in halves]), candidate)
            for candidate, changes in candidates
            if _helps([changes[half] for half in halves], config.errors)
        ]
        for _, candidate in sorted(helping, key=lambda one: (-one[0], one[1].word, one[1].synonym)):
            word = candidate.word
            if len(synonyms.get(word, ())) >= config.max_per_word:
                continue
            tried = {**synonyms, word: (*synonyms.get(word, ()), candidate.column)}
            numbers = [number for number in self.asking[word] if self.queries[number].half in halves]
            new = np.array([self.value(self.queries[n], self.score(self.queries[n], tried)) for n in numbers])
            changes = self._by_half(numbers, new - values[numbers])
            added = [changes[half] for half in halves]
            if _helps(added, config.errors):
                synonyms = tried
                values[numbers] = new
                chosen.append((candidate, _gain(added)))
        return chosen, synonyms


def _gain(changes: Sequence[RuleChange]) -> float:
    return sum(change.total for change in changes)


def _helps(changes: Sequence[RuleChange], errors: float) -> bool:
    """Return whether a rule helps in each half, and by more than ``errors`` standard errors in all of them.

    The variance of the sum of independent changes with mean 0 is estimated by the sum of their squares.
    """
    error = sum(change.squares for change in changes) ** 0.5
    return all(change.total > 0 for change in changes) and _gain(changes) > errors * error


def check_learned(model: RankingModel) -> None:
    """Raise `ConfigError` unless the model has learned vectors of words."""
    if not (model.query_side(1).any() and model.encoder.V.any()):
        raise ConfigError(
            "the model has no learned part (it is a lexical score), and synonyms are read from U and V: train a model "
            "that has one, such as from links"
        )


def find_synonyms(
    model: RankingModel,
    documents: SynonymDocuments,
    topics: Iterable[Topic],
    config: SynonymConfig | None = None,
    progress: Progress = no_progress,
) -> SynonymSet:
    """Return the rules that improve the order of judged queries.

    Candidates for a query word i are the document words j with the largest U_i . V_j / |V_j|, which does not prefer
    frequent words, whose vectors are long. Words with digits and stop words take no part. The queries are split into
    two halves by a hash of their text. A rule is kept if it improves the mean nDCG@10 in both halves, so that the
    queries of each half confirm what the other half suggests, and if it still does when it is added to the rules of
    larger gain.

    Raises
    ------
    ConfigError
        If the model has no learned part (`check_learned`).
    InputError
        If no query has a relevant document and a word.
    """
    config = config or SynonymConfig()
    check_learned(model)
    queries = _queries(model, documents, topics)
    trial = _Trial(documents, queries)
    found = _candidates(model, documents, trial, config)
    before = trial.values({})
    measured: list[tuple[_Candidate, list[RuleChange]]] = []
    for n_done, (word, of_word) in enumerate(found.items(), start=1):
        measured += zip(of_word, trial.alone(word, of_word, before), strict=True)
        progress(n_done, len(found))
    chosen, _ = trial.choose(measured, range(N_HALVES), before, config)
    after = before.copy()
    for half in range(N_HALVES):
        _, synonyms = trial.choose(measured, [1 - half], before, config)
        for number, query in enumerate(queries):
            if query.half == half and not synonyms.keys().isdisjoint(query.words):
                after[number] = trial.value(query, trial.score(query, synonyms))
    written = documents.forms
    rules = [
        SynonymRule(
            written.get(one.word, one.word),
            written.get(one.synonym, one.synonym),
            one.cosine,
            one.support,
            len(trial.asking[one.word]),
            gained / len(trial.asking[one.word]),
        )
        for one, gained in chosen
    ]
    return SynonymSet(
        tuple(sorted(rules, key=lambda rule: (rule.word, -rule.gain, rule.synonym))),
        len(queries),
        len(measured),
        paired_test(after, before) if len(queries) > 1 else None,
        float(before.mean()),
    )


def _queries(model: RankingModel, documents: SynonymDocuments, topics: Iterable[Topic]) -> list[_Query]:
    """Return the topics that have a word and a relevant document among the documents."""
    given = list(topics)
    tokens = model.encoder.analyzer.tokens([topic.query for topic in given])
    queries: list[_Query] = []
    for topic, words in zip(given, tokens, strict=True):
        graded = {documents.row_of[id_]: grade for id_, grade in topic.grades.items() if id_ in documents.row_of}
        relevant = {row: grade for row, grade in graded.items() if is_relevant(grade)}
        gains = ndcg_gains(relevant)
        counts = Counter(word for word in words if BETWEEN not in word)
        if not gains or not counts:
            continue
        best = sorted(gains.values(), reverse=True)[:DEPTH]
        digest = blake2b(query_key(topic.query).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        excluded = [documents.row_of[id_] for id_ in sorted(topic.excluded) if id_ in documents.row_of]
        queries.append(
            _Query(
                dict(counts),
                np.array(sorted(gains), np.int64),
                gains,
                float(np.dot(best, _DISCOUNTS[: len(best)])),
                np.array(excluded, np.int64),
                digest[0] % N_HALVES,
            )
        )
    if not queries:
        raise InputError(
            f"none of the {len(given):,} judged queries has a word and a relevant document among the "
            f"{len(documents.row_of):,} documents: check that the ids belong to these documents"
        )
    return queries


def _candidates(
    model: RankingModel, documents: SynonymDocuments, trial: _Trial, config: SynonymConfig
) -> dict[str, list[_Candidate]]:
    """Return the candidates of each query word that have enough support, by word in alphabetical order."""
    U, V = model.query_side(1).astype(np.float64), model.encoder.V.astype(np.float64)
    vocabulary = model.encoder.document_vocabulary
    stop = _stop_words(model.encoder)
    words = [word for word, asking in sorted(trial.asking.items()) if len(asking) >= config.min_support]
    words = [word for word in words if _may_be_in_rule(word, stop)]
    numbers = model.query_vocabulary.ids(words).tolist()
    columns = np.array([documents.column(word) for word in vocabulary.words[: len(V)]], np.int64)
    usable = np.array([_may_be_in_rule(word, stop) for word in vocabulary.words[: len(V)]], bool) & (columns >= 0)
    usable[usable] = documents.frequency[columns[usable]] >= config.min_documents
    lengths = np.linalg.norm(V, axis=1)
    usable &= lengths > 0
    places = np.flatnonzero(usable)
    unit = V[places] / lengths[places, None]
    found: dict[str, list[_Candidate]] = {}
    for word, number in zip(words, numbers, strict=True):
        if not 0 <= number < len(U) or not U[number].any():
            continue
        cosines = unit @ (U[number] / np.linalg.norm(U[number]))
        order = np.argsort(-cosines, kind="stable")[: config.n_candidates + 1]
        of_word: list[_Candidate] = []
        for at in order[cosines[order] > 0].tolist():
            synonym, column = vocabulary.words[places[at]], int(columns[places[at]])
            if synonym == word:
                continue
            support = _support(documents, trial, word, column)
            if support >= config.min_support:
                of_word.append(_Candidate(word, column, synonym, float(cosines[at]), support))
        if of_word:
            found[word] = of_word[: config.n_candidates]
    return found


def _support(documents: SynonymDocuments, trial: _Trial, word: str, column: int) -> int:
    """Return the number of queries with the word that have a relevant document with the synonym only."""
    own = documents.column(word)
    only = documents.holding(column)
    if own >= 0:
        only = np.setdiff1d(only, documents.holding(own), assume_unique=True)
    has = np.zeros(len(documents.row_of), bool)
    has[only] = True
    return sum(bool(has[trial.queries[number].relevant].any()) for number in trial.asking[word])


def _stop_words(encoder: Encoder) -> frozenset[str]:
    """Return the stop words of all lists, and of the analyzer, as the analyzer writes them."""
    listed = [*_FUNCTION_WORDS.split(), *(word for words in STOP_WORDS.values() for word in words)]
    own = encoder.analyzer.config.stop_words
    listed += [] if own is None or isinstance(own, str) else own
    return frozenset([*listed, *(token for tokens in encoder.analyzer.tokens(listed) for token in tokens)])


def _may_be_in_rule(word: str, stop: Collection[str]) -> bool:
    return len(word) > 1 and word not in stop and BETWEEN not in word and not _SYNTAX.search(word)
