"""What a model is learned from, whatever file it came in: for each query, documents that should stand above others."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import eq
from typing import NamedTuple

import numpy as np

from reranker.arrays import AnyArray, Bool, Float64, Int32, distinct, first_uses
from reranker.errors import ConfigError, TrainingError
from reranker.evaluation import IdPair, Links, RankingTask, link_task, qrels_task
from reranker.records import Pair

ROUNDING = 1e-9
MIN_VALIDATION = 100
HELD_OUT_DOCUMENTS = 0.2
HELD_OUT_SHARE, MOST_HELD_OUT, HELD_OUT_NUMBER = 0.1, 1 / 3, 150
"""What is held out of links or queries to validate by: the share, or the number where that is more, up to a third. By
fewer the choice of settings, of the learned part's weight and of a memory is mostly chance."""


class Preference(NamedTuple):
    """For query ``query`` (an id), ``better`` should stand above others, and above those in ``worse`` in particular.

    ``weight`` is its share of the training steps; ``remembered``, at least 0, is the weight of the pair of query and
    better document in a memory of queries, see `memory_rows`: 0 leaves it out.
    """

    query: str
    better: str
    worse: tuple[str, ...] = ()
    weight: float = 1.0
    remembered: float = 1.0


@dataclass(frozen=True, eq=False)
class Preferences:  # noqa: PLW1641 - arrays have no hash
    """Preferences as columns, rows of which are `Preference`: of 25 million links no object each is held.

    ``links`` have the queries as sources and the better documents as targets; ``weight`` and ``remembered`` (n,)
    float64 and ``n_worse`` (n,) int32 are as they are said there, ``worse`` the numbers of the worse documents of one
    preference after the other. A column of one value for all, as of links, is stored once (`np.broadcast_to`).
    """

    links: Links
    weight: Float64
    remembered: Float64
    n_worse: Int32
    worse: Int32

    @classmethod
    def of(cls, rows: Iterable[Preference]) -> Preferences:
        """Return preferences as columns."""
        number: dict[str, int] = {}
        numbers, worse, n_worse, weights = array("i"), array("i"), array("i"), array("d")
        for row in rows:
            numbers.extend(number.setdefault(id_, len(number)) for id_ in (row.query, row.better))
            worse.extend(number.setdefault(id_, len(number)) for id_ in row.worse)
            n_worse.append(len(row.worse))
            weights.extend((row.weight, row.remembered))
        of, weight = np.array(numbers, np.int32), np.array(weights, np.float64)
        links = Links(tuple(number), of[::2], of[1::2])
        return cls(links, weight[::2], weight[1::2], np.array(n_worse, np.int32), np.array(worse, np.int32))

    @classmethod
    def of_links(cls, links: Links) -> Preferences:
        """Return preferences for the targets of links, of weight 1."""
        one, none = (np.broadcast_to(np.array(value), len(links)) for value in (1.0, np.int32(0)))
        return cls(links, one, one, none, np.empty(0, np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Preferences]) -> Preferences:
        """Return several as one; ids that are equal get one number."""
        parts = [cls.of(()), *parts]
        number: dict[str, int] = {}
        places = [np.array([number.setdefault(id_, len(number)) for id_ in p.links.ids], np.int32) for p in parts]
        columns = (
            (of[p.links.source], of[p.links.target], p.weight, p.remembered, p.n_worse, of[p.worse])
            for p, of in zip(parts, places, strict=True)
        )
        source, target, *others = map(np.concatenate, zip(*columns, strict=True))
        return cls(Links(tuple(number), source, target), *others)

    def __len__(self) -> int:
        return len(self.links)

    def __iter__(self) -> Iterator[Preference]:
        ends = np.cumsum(self.n_worse)
        for place, (query, better) in enumerate(self.links):
            worse = self.worse[ends[place] - self.n_worse[place] : ends[place]]
            numbers = float(self.weight[place]), float(self.remembered[place])
            yield Preference(query, better, tuple(self.links.ids[number] for number in worse), *numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preferences) and len(self) == len(other) and all(map(eq, self, other))

    def part(self, chosen: Bool) -> Preferences:
        """Return some of the preferences; ``chosen`` (n,) says which."""
        weight, remembered, n_worse = (
            column[chosen] if any(column.strides) else np.broadcast_to(column[:1], int(np.count_nonzero(chosen)))
            for column in tuple[AnyArray, ...]((self.weight, self.remembered, self.n_worse))
        )
        worse = self.worse[np.repeat(chosen, self.n_worse)]
        return Preferences(self.links.part(chosen), weight, remembered, n_worse, worse)

    def asking(self, query_of: Mapping[str, str]) -> Preferences:
        """Return the preferences with other ids of the queries."""
        ids = self.links.ids
        number = {id_: number for number, id_ in enumerate(ids)}
        query = np.array([number.setdefault(query_of.get(id_, id_), len(number)) for id_ in ids], np.int32)
        return replace(self, links=Links(tuple(number), query[self.links.source], self.links.target))

    def queries(self) -> Iterator[str]:
        """Yield the distinct query ids in order of first use."""
        source = self.links.source
        return (self.links.ids[number] for number in source[first_uses(source)])

    def are_in(self, ids: Container[str]) -> tuple[Bool, Bool]:
        """Return of which preferences the query, and of which the better document, is one of ``ids``."""
        known = np.array([id_ in ids for id_ in self.links.ids], bool)
        return known[self.links.source], known[self.links.target]


@dataclass(frozen=True)
class TrainingSet:
    """Preferences with their queries.

    ``texts`` are those of the queries by id, or None where each query is the document of that id (links). ``grades``
    are what validation counts as relevant: query id to document id to grade. ``linked`` are preferences whose queries
    are documents, learned from beside queries that are texts and never validated on (see `mix`). With ``judged_only``
    nothing is known of a document without a grade, so validation leaves it out; else it is not relevant, which is true
    of links and of judged pools, and not of clicks.
    """

    preferences: Preferences
    texts: Mapping[str, str] | None
    grades: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    linked: Preferences = field(default_factory=lambda: Preferences.of(()))
    judged_only: bool = False

    @property
    def query_ids(self) -> tuple[str, ...]:
        """Distinct query ids in order of first use."""
        return tuple(self.preferences.queries())

    @property
    def document_queries(self) -> set[str]:
        """Ids of the documents that are queries."""
        return set((self.preferences if self.texts is None else self.linked).queries())

    @property
    def n_preferences(self) -> int:
        """All preferences that training learns from."""
        return len(self.preferences) + len(self.linked)

    def links(self) -> Links:
        """Return (query id, better document id) of every preference."""
        return self.preferences.links

    def restricted(self, queries: Collection[str]) -> TrainingSet:
        """Return the part about some of the queries, without what is linked."""
        kept = self.preferences.part(self.preferences.are_in(queries)[0])
        grades = {q: g for q, g in self.grades.items() if q in queries}
        return TrainingSet(kept, self.texts, grades, judged_only=self.judged_only)

    def task(self, pool: Collection[str], known: Iterable[IdPair], sources: Collection[str]) -> RankingTask:
        """Return the ranking task of finding what is relevant here, among ``pool``; ``known`` does not take part."""
        if self.texts is None:
            return link_task(self.links(), known, pool, query_ids=sources)
        return qrels_task(self.grades, list(self.texts), pool, known)


def from_links(links: Iterable[IdPair]) -> TrainingSet:
    """Return the evidence of links: a document's links should stand above all that it does not link to."""
    every = Links.of(links)
    return TrainingSet(Preferences.of_links(every.part(every.source != every.target).distinct()), None)


def from_judgements(
    grades: Mapping[str, Mapping[str, float]], texts: Mapping[str, str], relevant_from: float = 1.0
) -> TrainingSet:
    """Return the evidence of graded judgements: a relevant document above those of a lower grade.

    Judged queries without a text are left out. A grade difference weighs by itself: grade 3 over 1 counts more often
    than 3 over 2, since documents of all lower grades are its stated worse ones.
    """
    known = {query: judged for query, judged in grades.items() if query in texts}
    preferences = Preferences.of(
        Preference(query, document, tuple(other for other, value in ranked if value < grade))
        for query, judged in known.items()
        for ranked in [sorted(judged.items())]
        for document, grade in ranked
        if grade >= relevant_from
    )
    return TrainingSet(preferences, texts, known)


def from_pairs(pairs: Iterable[Pair]) -> TrainingSet:
    """Return the evidence of preference pairs; pairs of one query text and better document become one preference.

    Of two opposite pairs of a query the heavier counts, by the difference: clicks state nearly every pair both ways,
    and a step for one and a step for the other would not cancel, since only violated margins move the model. Repeated
    pairs add up. The preference's weight is the mean of its pairs', and it is remembered by so much, up to 1: as a
    judgement is. For validation the better documents are relevant.
    """
    stated: dict[tuple[str, str, str], float] = {}
    for pair in pairs:
        key = (pair.query, pair.better, pair.worse)
        stated[key] = stated.get(key, 0.0) + pair.weight
    worse: dict[tuple[str, str], list[str]] = {}
    weights: dict[tuple[str, str], list[float]] = {}
    grades: dict[str, dict[str, float]] = {}
    for (query, better, other), stated_weight in stated.items():
        opposite = stated.get((query, other, better), 0.0)
        judged = grades.setdefault(query, {})
        for document in (better, other):
            judged.setdefault(document, 0.0)
        # What is left of rounding says nothing.
        if stated_weight - opposite > ROUNDING * stated_weight:
            worse.setdefault((query, better), []).append(other)
            weights.setdefault((query, better), []).append(stated_weight - opposite)
            judged[better] = 1.0
    preferences = Preferences.of(
        Preference(query, better, tuple(lost), weight, min(weight, 1.0))
        for (query, better), lost in worse.items()
        for weight in [float(np.mean(weights[query, better]))]
    )
    return TrainingSet(preferences, {query: query for query in grades}, grades)


def mix(*parts: tuple[TrainingSet, float]) -> TrainingSet:
    """Return one evidence of several, each with its weight: the share of the training steps that it gets.

    A step learns from part k with probability weight_k / sum of the weights, however many preferences the parts have,
    and within the part from a preference with probability by the preference's own weight. Clicks, judgements and pairs
    ask texts, links ask documents: the model is validated on the texts where there are any, and links are then learned
    from beside them. Queries of one text (but for white space) become one query; where two parts grade the same
    document for it, the earlier part's grade holds: give judgements before clicks. Parts of weight 0 or without a
    preference are left out. `ConfigError` is raised if a weight is negative or not finite.

    Source: spec T8 and T14 (clicks), design "Learn" (clicks mixed with links or judgements by weight).
    """
    of_texts: list[Preferences] = []
    linked: list[Preferences] = []
    texts: dict[str, str] = {}
    grades: dict[str, dict[str, float]] = {}
    for part, weight in parts:
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"the weight of evidence is {weight}: it must be finite and at least 0")
        total = sum(map(float, chain(part.preferences.weight, part.linked.weight)))
        if not (weight and total):
            continue
        own, of_part = (replace(p, weight=p.weight * (weight / total)) for p in (part.preferences, part.linked))
        linked.append(of_part)
        if part.texts is None:
            linked.append(own)
            continue
        key = {query: " ".join(text.split()) for query, text in part.texts.items()}
        of_texts.append(own.asking(key))
        texts.update((text, text) for text in key.values())
        for query, judged in part.grades.items():
            grades[key[query]] = {**judged, **grades.get(key[query], {})}
    asking, beside = Preferences.joined(of_texts), Preferences.joined(linked)
    if not asking:
        return TrainingSet(beside, None)
    return TrainingSet(asking, texts, grades, beside, any(part.judged_only for part, _ in parts))


@dataclass(frozen=True)
class Split:
    """Evidence to learn from and evidence to stop by.

    ``kind`` is ``documents`` (no document of the validation side is trained on), ``links``, ``queries`` or ``given``;
    ``held_out`` the documents that training must not touch; ``pool`` those that validation ranks.
    """

    kind: str
    train: TrainingSet
    valid: TrainingSet
    held_out: frozenset[str]
    pool: frozenset[str]

    @property
    def unseen_documents(self) -> bool:
        """True where validation asks for documents that training has not seen."""
        return self.kind == "documents"


MIN_JUDGED = 40
"""Validation queries below which all of them choose and all of them judge."""
JUDGING_SHARE = 1 / 3
MAX_JUDGING = 10_000
"""Queries that judge at most: each ranks the whole pool, and the texts of those that are documents are held."""


def part_to_judge_by(
    valid: TrainingSet, documents: Collection[str], rng: np.random.Generator
) -> tuple[TrainingSet, TrainingSet, bool]:
    """Return the validation evidence to choose by, that to judge the result by, and whether these are two.

    Settings, epoch and the learned part's weight are chosen. A third of the queries judges, at most `MAX_JUDGING`;
    queries of one text stand on one side. Below 40 queries both are all of them. Queries with nothing to find among
    ``documents``, or that are documents and not of these, choose and judge nothing: they count on neither side.
    """
    texts = valid.texts or {}
    asks, answers = valid.preferences.are_in(documents)
    usable = set(valid.preferences.part(answers if texts else answers & asks).queries())
    keys = {query: _key(texts.get(query, query)) for query in valid.query_ids if query in usable}
    n_distinct = len(set(keys.values()))
    if n_distinct < MIN_JUDGED:
        return valid, valid, False
    choosing, judging = _sides(keys, min(JUDGING_SHARE, MAX_JUDGING / n_distinct), rng)
    return valid.restricted(choosing), valid.restricted(judging), True


def _key(text: str) -> str:
    return " ".join(text.lower().split())


def _sides(keys: Mapping[str, str], share: float, rng: np.random.Generator) -> tuple[set[str], set[str]]:
    """Return queries and a random share of them, at least one; those of one key stand on one side."""
    distinct = sorted(set(keys.values()))
    chosen = rng.permutation(len(distinct))[: max(1, round(share * len(distinct)))]
    drawn = {distinct[number] for number in chosen.tolist()}
    taken = {query for query, key in keys.items() if key in drawn}
    return keys.keys() - taken, taken


def split_training_set(
    evidence: TrainingSet,
    valid: TrainingSet | None,
    documents: Collection[str],
    generalise: str,
    rng: np.random.Generator,
) -> Split:
    """Return the evidence split for validation.

    Given validation evidence is used as it is; otherwise a fifth of the documents with the links among them is held
    out (``documents``, and ``auto`` where that leaves at least 100 validation links), or a tenth of the links or
    queries, and more of few: see `HELD_OUT_SHARE`.
    """
    ids = frozenset(documents)
    if valid is not None:
        return _given(evidence, valid, ids, generalise)
    if evidence.texts is not None:
        return _by_query(evidence, ids, rng)
    if generalise != "links":
        split = _by_document(evidence, ids, rng)
        if generalise == "documents" or len(split.valid.preferences) >= MIN_VALIDATION:
            return split
    return _by_link(evidence, ids, rng)


def _share(n: int) -> float:
    return min(max(HELD_OUT_SHARE, HELD_OUT_NUMBER / n), MOST_HELD_OUT)


def asks_for_unseen(evidence: TrainingSet, valid: TrainingSet) -> bool:
    """Return whether most documents that validation asks for are not known from training."""
    asked = valid.links()
    wanted = {asked.ids[number] for number in distinct(asked.target)}
    return len(wanted & _documents_of(evidence)) < len(wanted) / 2


def _documents_of(evidence: TrainingSet) -> set[str]:
    """Return the documents that are preferred, and those that ask."""
    links = evidence.links()
    sides = (links.target,) if evidence.texts is not None else (links.source, links.target)
    return {links.ids[number] for number in distinct(np.concatenate(sides))}


def _given(evidence: TrainingSet, valid: TrainingSet, ids: frozenset[str], generalise: str) -> Split:
    """Judge from the validation links whether unseen documents are what is asked for."""
    unseen = evidence.texts is None and asks_for_unseen(evidence, valid)
    kind = "documents" if generalise == "documents" or (generalise == "auto" and unseen) else "given"
    # The links of unseen documents are asked among themselves: their pool is what training does not know.
    unknown = ids - _documents_of(evidence) if unseen else frozenset()
    return Split(kind, evidence, valid, unknown, unknown or ids)


def _by_document(evidence: TrainingSet, ids: frozenset[str], rng: np.random.Generator) -> Split:
    ordered = sorted(ids)
    chosen = rng.permutation(len(ordered))[: round(HELD_OUT_DOCUMENTS * len(ordered))]
    held_out = frozenset(ordered[number] for number in chosen)
    asks, answers = evidence.preferences.are_in(held_out)
    train, valid = (TrainingSet(evidence.preferences.part(side), None) for side in (~(asks | answers), asks & answers))
    return Split("documents", train, valid, held_out, held_out)


def _by_link(evidence: TrainingSet, ids: frozenset[str], rng: np.random.Generator) -> Split:
    n = len(evidence.preferences)
    chosen = np.zeros(n, bool)
    chosen[rng.permutation(n)[: max(1, round(_share(n) * n))]] = True
    if chosen.all():
        raise TrainingError(f"{n} links are too few to learn from and to validate on: give at least 2")
    train, valid = (TrainingSet(evidence.preferences.part(side), None) for side in (~chosen, chosen))
    return Split("links", train, valid, frozenset(), ids)


def _by_query(evidence: TrainingSet, ids: frozenset[str], rng: np.random.Generator) -> Split:
    # Queries of the same text go to the same side: else validation asks what training has answered.
    texts = evidence.texts or {}
    keys = {query: _key(texts[query]) for query in evidence.query_ids}
    n_distinct = len(set(keys.values()))
    if n_distinct < 2:
        raise TrainingError(f"{n_distinct} distinct query is too few to learn from and to validate on: give at least 2")
    kept, held_out = _sides(keys, _share(n_distinct), rng)
    train = replace(evidence.restricted(kept), linked=evidence.linked)
    return Split("queries", train, evidence.restricted(held_out), frozenset(), ids)
