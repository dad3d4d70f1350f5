"""Evidence of training, from any kind of file: for each query, documents that should rank above others."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import eq
from typing import NamedTuple

import numpy as np

from reranker.accounts import MAX_SAMPLES, UNKNOWN_DOCUMENT, UNKNOWN_QUERY, LeftOut, merged
from reranker.arrays import AnyArray, Bool, Float64, Int32, distinct, first_uses
from reranker.errors import ConfigError, TrainingError
from reranker.evaluation import IdPair, Links, RankingTask, link_task, qrels_task
from reranker.records import RELEVANT_FROM, Pair
from reranker.text.query_keys import query_key

ROUNDING = 1e-9
MIN_VALIDATION = 100
HELD_OUT_DOCUMENTS = 0.2
HELD_OUT_SHARE, MOST_HELD_OUT, HELD_OUT_NUMBER = 0.1, 1 / 3, 150
"""Links or queries held out for validation: the share, or the number if that is more, up to a third. With fewer, the
choice of settings, of the learned part's weight and of a memory is mostly chance."""


class Preference(NamedTuple):
    """A document that should rank above others for a query."""

    query: str
    """Query id."""
    better: str
    """Id of the document."""
    worse: tuple[str, ...] = ()
    """Ids of documents that it should rank above in particular."""
    weight: float = 1.0
    """Share of the training steps, relative to other preferences."""
    remembered: float = 1.0
    """Weight, at least 0, of the pair of query and document in a memory of queries (`memory_rows`); 0 leaves it out."""


@dataclass(frozen=True, eq=False)
class Preferences:  # noqa: PLW1641 - arrays have no hash
    """Preferences as columns: 25 million links need no object each. Iteration yields `Preference`.

    A column with one value for all rows is stored once (`np.broadcast_to`).
    """

    links: Links
    """Queries as sources, better documents as targets."""
    weight: Float64
    """(n,) float64."""
    remembered: Float64
    """(n,) float64."""
    n_worse: Int32
    """(n,) int32: number of worse documents of each preference."""
    worse: Int32
    """Numbers (of ``links.ids``) of the worse documents, preference after preference."""

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


UNKNOWN_WORSE = "unknown id of the worse document"
OUTWEIGHED = "an opposite pair has the same weight or more"
"""Reasons why a pair is not used, in addition to those of a preference."""


@dataclass(frozen=True)
class TrainingSet:
    """Preferences with their queries."""

    preferences: Preferences
    texts: Mapping[str, str] | None
    """Query id to text; None: each query is the document of that id (links)."""
    grades: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Query id to document id to grade: the relevance that validation uses."""
    linked: Preferences = field(default_factory=lambda: Preferences.of(()))
    """Preferences whose queries are documents, in a set whose other queries are texts. They are trained on and never
    validated on, see `mix`."""
    judged_only: bool = False
    """True if nothing is known about a document without a grade: validation then leaves it out. False: it is not
    relevant, which holds for links and judged pools, and not for clicks."""
    shown_only: bool = False
    """True if a ranking chose the documents that can be in the preferences, as in a click log. The words of documents
    are then read by the choice that ranks the pairs best, see `reranker.training.lexical_choice`. Settings are still
    tuned on the whole pool: among shown documents only, those win that reverse the order that was shown."""
    left_out: tuple[LeftOut, ...] = ()
    """Records that were given and are in no preference: their query has no text, or an opposite pair outweighs them."""
    unit: str = "preferences"
    """Records that are counted: ``preferences``, or ``pairs``, one for each worse document of a preference."""

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
        """Number of preferences that training uses."""
        return len(self.preferences) + len(self.linked)

    @property
    def n_given(self) -> int:
        """Number of records that were given."""
        n_used = sum(int(self.records_of(stated).sum()) for stated in (self.preferences, self.linked))
        return n_used + sum(part.count for part in self.left_out)

    def records_of(self, stated: Preferences) -> Int32:
        """Return how many records each of some preferences stands for, (n,) int32."""
        return stated.n_worse if self.unit == "pairs" else np.ones(len(stated), np.int32)

    def links(self) -> Links:
        """Return (query id, better document id) of every preference."""
        return self.preferences.links

    def unknown_ids(self, documents: Container[str]) -> tuple[LeftOut, ...]:
        """Return the records with an unknown query or document, given the ids of all documents."""
        parts = [part for part in self.left_out if part.is_fault]
        for stated, are_documents in ((self.preferences, self.texts is None), (self.linked, True)):
            asks, answers = stated.are_in(documents)
            no_query = ~asks if are_documents else np.zeros(len(stated), bool)
            for reason, unknown, column in (
                (UNKNOWN_QUERY, no_query, stated.links.source),
                (UNKNOWN_DOCUMENT, ~answers & ~no_query, stated.links.target),
            ):
                parts.append(self.left_out_of(stated, reason, unknown, column))
            if self.unit == "pairs":
                known = np.array([id_ in documents for id_ in stated.links.ids], bool)
                parts.append(self.without_worse(stated, answers & ~no_query, known))
        return merged(parts)

    def left_out_of(self, stated: Preferences, reason: str, fails: Bool, column: Int32) -> LeftOut:
        """Return the records of the preferences that fail, (n,) bool; ``column`` has the number of each one's id."""
        count = int(self.records_of(stated)[fails].sum())
        return LeftOut(reason, count, samples_of(stated.links.ids, column[fails]))

    def without_worse(self, stated: Preferences, usable: Bool, known: Bool) -> LeftOut:
        """Return the pairs with an unknown worse document; ``known`` says of each id whether it is a document.

        Pairs of preferences that are not ``usable``, (n,) bool, are left out for another reason.
        """
        unknown = stated.worse[np.repeat(usable, stated.n_worse) & ~known[stated.worse]]
        return LeftOut(UNKNOWN_WORSE, len(unknown), samples_of(stated.links.ids, unknown))

    def restricted(self, queries: Collection[str]) -> TrainingSet:
        """Return the preferences of some of the queries, without the linked ones."""
        kept = self.preferences.part(self.preferences.are_in(queries)[0])
        grades = {q: g for q, g in self.grades.items() if q in queries}
        return replace(self, preferences=kept, grades=grades, linked=Preferences.of(()), left_out=())

    def task(self, pool: Collection[str], known: Iterable[IdPair], sources: Collection[str]) -> RankingTask:
        """Return the task of ranking the relevant documents first in ``pool``; pairs in ``known`` are excluded."""
        if self.texts is None:
            return link_task(self.links(), known, pool, query_ids=sources)
        return qrels_task(self.grades, list(self.texts), pool, known)


def samples_of(ids: Sequence[str], numbers: AnyArray) -> tuple[str, ...]:
    """Return up to `MAX_SAMPLES` distinct ids in order of first use, given the number of the id of each record."""
    return tuple(ids[number] for number in numbers[first_uses(numbers)][:MAX_SAMPLES].tolist())


def from_links(links: Iterable[IdPair]) -> TrainingSet:
    """Return the evidence of links: the targets of a document's links should rank above all other documents."""
    every = Links.of(links)
    return TrainingSet(Preferences.of_links(every.part(every.source != every.target).distinct()), None)


def from_judgements(
    grades: Mapping[str, Mapping[str, float]], texts: Mapping[str, str], relevant_from: float = RELEVANT_FROM
) -> TrainingSet:
    """Return the evidence of graded judgements: a relevant document should rank above those of a lower grade.

    Judged queries without a text are left out, and counted in ``left_out``. A larger difference of grades counts more
    often, without a weight: documents of all lower grades are the worse ones of a document.
    """
    known = {query: judged for query, judged in grades.items() if query in texts}
    preferences = Preferences.of(
        Preference(query, document, tuple(other for other, value in ranked if value < grade))
        for query, judged in known.items()
        for ranked in [sorted(judged.items())]
        for document, grade in ranked
        if grade >= relevant_from
    )
    unknown = [
        query
        for query, judged in grades.items()
        if query not in texts
        for grade in judged.values()
        if grade >= relevant_from
    ]
    left_out = merged([LeftOut(UNKNOWN_QUERY, len(unknown), tuple(dict.fromkeys(unknown))[:MAX_SAMPLES])])
    return TrainingSet(preferences, texts, known, left_out=left_out)


def from_pairs(pairs: Iterable[Pair]) -> TrainingSet:
    """Return the evidence of preference pairs; pairs of one query text and better document become one preference.

    Of two opposite pairs of a query the heavier one counts, with the difference as its weight: clicks state nearly
    every pair both ways, and two opposite steps would not cancel, since only violated margins move the model. The other
    one is in ``left_out``. The weights of repeated pairs are added, and they are counted as one. A preference has the
    mean weight of its pairs, and is remembered with that weight, up to 1, the weight of a judgement. For validation the
    better documents are relevant. The documents are those that a ranking showed (``shown_only``).
    """
    stated: dict[tuple[str, str, str], float] = {}
    for pair in pairs:
        key = (pair.query, pair.better, pair.worse)
        stated[key] = stated.get(key, 0.0) + pair.weight
    worse: dict[tuple[str, str], list[str]] = {}
    weights: dict[tuple[str, str], list[float]] = {}
    grades: dict[str, dict[str, float]] = {}
    outweighed: list[str] = []
    for (query, better, other), stated_weight in stated.items():
        opposite = stated.get((query, other, better), 0.0)
        judged = grades.setdefault(query, {})
        for document in (better, other):
            judged.setdefault(document, 0.0)
        # The rest may be a rounding error.
        if stated_weight - opposite > ROUNDING * stated_weight:
            worse.setdefault((query, better), []).append(other)
            weights.setdefault((query, better), []).append(stated_weight - opposite)
            judged[better] = 1.0
        else:
            outweighed.append(query)
    preferences = Preferences.of(
        Preference(query, better, tuple(lost), weight, min(weight, 1.0))
        for (query, better), lost in worse.items()
        for weight in [float(np.mean(weights[query, better]))]
    )
    samples = tuple(dict.fromkeys(outweighed))[:MAX_SAMPLES]
    left_out = merged([LeftOut(OUTWEIGHED, len(outweighed), samples, is_fault=False)])
    texts = {query: query for query in grades}
    return TrainingSet(preferences, texts, grades, shown_only=True, left_out=left_out, unit="pairs")


def mix(*parts: tuple[TrainingSet, float]) -> TrainingSet:
    """Return several sets of evidence as one, each with a weight: its share of the training steps.

    A step uses part k with probability weight_k / sum of the weights, regardless of the number of preferences, and
    within the part a preference with probability proportional to its own weight.

    Queries of clicks, judgements and pairs are texts; those of links are documents. If there are texts, the model is
    validated on them, and links are only trained on. Queries of the same text (except for upper or lower case and
    white space) become one query, with the first of their texts. If two parts grade the same document for it, the grade
    of the earlier part is used: give judgements before clicks. Parts of weight 0 or without a preference are left out.
    `ConfigError` is raised if a weight is negative or not finite.

    Source: spec T8 and T14 (clicks), design "Learn" (clicks mixed with links or judgements by weight).
    """
    of_texts: list[Preferences] = []
    linked: list[Preferences] = []
    first_text: dict[str, str] = {}
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
        key = {
            query: first_text.setdefault(query_key(text), " ".join(text.split())) for query, text in part.texts.items()
        }
        of_texts.append(own.asking(key))
        for query, judged in part.grades.items():
            grades[key[query]] = {**judged, **grades.get(key[query], {})}
    asking, beside = Preferences.joined(of_texts), Preferences.joined(linked)
    if not asking:
        return TrainingSet(beside, None)
    judged_only, shown_only = (any(getattr(part, name) for part, _ in parts) for name in ("judged_only", "shown_only"))
    texts = {text: text for text in first_text.values()}
    return TrainingSet(asking, texts, grades, beside, judged_only, shown_only)


@dataclass(frozen=True)
class Split:
    """Evidence split into a training side and a validation side."""

    kind: str
    """Kind of data held out: ``documents`` (with all their links), ``links`` or ``queries``; or ``given``."""
    train: TrainingSet
    valid: TrainingSet
    held_out: frozenset[str]
    """Documents that training must not use."""
    pool: frozenset[str]
    """Documents that validation ranks."""

    @property
    def unseen_documents(self) -> bool:
        """True if the relevant documents of validation are unknown to training."""
        return self.kind == "documents"


MIN_JUDGED = 40
"""Validation queries below which all of them are used both to choose and to judge."""
JUDGING_SHARE = 1 / 3
MAX_JUDGING = 10_000
"""Largest number of queries that judge: each ranks the whole pool."""


def part_to_judge_by(
    valid: TrainingSet, documents: Collection[str], rng: np.random.Generator
) -> tuple[TrainingSet, TrainingSet, bool]:
    """Return the validation evidence that chooses, the evidence that judges, and whether they are different.

    The first chooses settings, epoch and the learned part's weight. A third of the queries judges the result, at most
    `MAX_JUDGING`; queries of one text are on the same side. With fewer than `MIN_JUDGED` queries all of them choose and
    judge. Queries without a relevant document among ``documents``, and queries that are documents but not of these, are
    on neither side.
    """
    texts = valid.texts or {}
    asks, answers = valid.preferences.are_in(documents)
    usable = set(valid.preferences.part(answers if texts else answers & asks).queries())
    keys = {query: query_key(texts.get(query, query)) for query in valid.query_ids if query in usable}
    n_distinct = len(set(keys.values()))
    if n_distinct < MIN_JUDGED:
        return valid, valid, False
    choosing, judging = _sides(keys, min(JUDGING_SHARE, MAX_JUDGING / n_distinct), rng)
    return valid.restricted(choosing), valid.restricted(judging), True


def _sides(keys: Mapping[str, str], share: float, rng: np.random.Generator) -> tuple[set[str], set[str]]:
    """Return the queries in two parts, the second a random share, at least one; equal keys are in the same part."""
    distinct = sorted(set(keys.values()))
    chosen = rng.permutation(len(distinct))[: max(1, round(share * len(distinct)))]
    drawn = {distinct[number] for number in chosen.tolist()}
    taken = {query for query, key in keys.items() if key in drawn}
    return keys.keys() - taken, taken


N_FOLDS = 4
"""Parts of the queries in cross-fitting: each is scored by what the other parts were fitted to."""


def folds_of(texts: Mapping[str, str], n_folds: int, rng: np.random.Generator) -> list[set[str]]:
    """Return the queries (id to text) in ``n_folds`` random parts of equal size; equal texts are in the same part."""
    keys = {query: query_key(text) for query, text in texts.items()}
    distinct_keys = sorted(set(keys.values()))
    order = rng.permutation(len(distinct_keys)).tolist()
    fold_of = {distinct_keys[number]: place % n_folds for place, number in enumerate(order)}
    return [{query for query, key in keys.items() if fold_of[key] == fold} for fold in range(n_folds)]


def split_training_set(
    evidence: TrainingSet, valid: TrainingSet | None, documents: Collection[str], rng: np.random.Generator
) -> Split:
    """Return the evidence split for validation.

    Validation evidence that is given is used unchanged. Otherwise a fifth of the documents is held out with the links
    among them, if these are at least 100 links, or else a part of the links or queries, see `HELD_OUT_SHARE`.
    """
    ids = frozenset(documents)
    if valid is not None:
        return _given(evidence, valid, ids)
    if evidence.texts is not None:
        return _by_query(evidence, ids, rng)
    split = _by_document(evidence, ids, rng)
    return split if len(split.valid.preferences) >= MIN_VALIDATION else _by_link(evidence, ids, rng)


def _share(n: int) -> float:
    return min(max(HELD_OUT_SHARE, HELD_OUT_NUMBER / n), MOST_HELD_OUT)


def asks_for_unseen(evidence: TrainingSet, valid: TrainingSet) -> bool:
    """Return whether most relevant documents of validation are unknown to training."""
    asked = valid.links()
    wanted = {asked.ids[number] for number in distinct(asked.target)}
    return len(wanted & _documents_of(evidence)) < len(wanted) / 2


def _documents_of(evidence: TrainingSet) -> set[str]:
    """Return the documents that are preferred, and those that are queries."""
    links = evidence.links()
    sides = (links.target,) if evidence.texts is not None else (links.source, links.target)
    return {links.ids[number] for number in distinct(np.concatenate(sides))}


def _given(evidence: TrainingSet, valid: TrainingSet, ids: frozenset[str]) -> Split:
    """Return the split with given validation evidence; its links show whether unseen documents are searched for."""
    unseen = evidence.texts is None and asks_for_unseen(evidence, valid)
    # The links of unseen documents are ranked among themselves: the pool is the documents unknown to training.
    unknown = ids - _documents_of(evidence) if unseen else frozenset()
    return Split("documents" if unseen else "given", evidence, valid, unknown, unknown or ids)


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
    # Queries of the same text go to the same side: otherwise validation would repeat training queries.
    texts = evidence.texts or {}
    keys = {query: query_key(texts[query]) for query in evidence.query_ids}
    n_distinct = len(set(keys.values()))
    if n_distinct < 2:
        raise TrainingError(f"{n_distinct} distinct query is too few to learn from and to validate on: give at least 2")
    kept, held_out = _sides(keys, _share(n_distinct), rng)
    train = replace(evidence.restricted(kept), linked=evidence.linked)
    return Split("queries", train, evidence.restricted(held_out), frozenset(), ids)
