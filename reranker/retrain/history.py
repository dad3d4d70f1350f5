"""The data that a retraining takes from a click log.

The older part of the log is converted to preferences. The newest part is kept for the gate, as whole impressions, and
never used for training.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from sys import intern
from typing import NamedTuple

import numpy as np

from reranker.arrays import Int64
from reranker.clicks.doctor import Finding, examine
from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import (
    ImpressionTable,
    LogFiles,
    PairConfig,
    Rating,
    impression_table,
    make_pairs,
)
from reranker.clicks.propensities import ClickCounts, Propensities, counts_before, estimate_propensities
from reranker.clicks.schema import Impression
from reranker.engines.protocol import Engine
from reranker.errors import GateRefused, InputError, NothingToLearn
from reranker.progress import Say
from reranker.records import Pair
from reranker.retrain.gate import ClickedLists, believable, enough, merit_of_live, shown_lists, weighing
from reranker.retrain.settings import GateConfig, RetrainSettings

PRIOR_EXAMINATIONS = 2.0
N_PERIODS = 4
"""Number of periods, with equal numbers of clicked lists, into which the log before the cutoff is divided."""
MOST_QUERIES = 20_000
"""Largest number of repeated queries for which a model keeps what users preferred."""
REMEMBERED_BY = 2
"""Minimum number of people who must have clicked a document for a query before a model remembers it by the query's
words. So no single person leaves words in a model, and one click, which may be a mistake, counts less than a
judgment."""
MAX_JUDGED = 20_000
"""Maximum number of impressions that the gate compares; of more, a sample is drawn, so that a night is enough."""


def cutoff_of(times: Int64, newest: float) -> int:
    """Return the start of the newest slice in milliseconds. Earlier impressions are used for training.

    Impressions of the same moment stay together, so the slice may be larger than its share. Impressions without a time
    cannot be ordered and are used for training.

    ``times`` are the times of the dated impressions in milliseconds, (n,) int64, in any order, and ``newest`` is the
    share of them that the slice has.

    Raises `NothingToLearn` if no impression has a time, or none is older than the slice.
    """
    if not len(times):
        raise NothingToLearn(
            "no impression of the log has a time, so there is no newest slice for evaluating a new model: import logs "
            "whose queries have a timestamp"
        )
    ordered = np.sort(times)
    cutoff = int(ordered[len(ordered) - max(1, math.ceil(newest * len(ordered)))])
    if cutoff <= ordered[0]:
        raise NothingToLearn(
            f"all {len(times):,} dated impressions are in the newest slice, so nothing is left for training: "
            "give a log of a longer period"
        )
    return cutoff


class EarlierPeriod(NamedTuple):
    """A period of the older log, with the clicks from before it."""

    lists: list[Impression]
    """Impressions with a click, by time; a sample if there are too many."""
    repeated: dict[str, list[Rating]]
    """Repeated queries and their ratings before the period, as in `History`."""


@dataclass
class History:
    """Data extracted from a click log for one retraining."""

    cutoff: int
    """Start of the newest slice, in milliseconds since 1970."""
    first: int
    """Time of the first impression, in milliseconds since 1970."""
    last: int
    """Time of the last impression, in milliseconds since 1970."""
    learned: int
    """Number of impressions with a click before the cutoff, including those without a time."""
    undated: int
    """Number of them without a time."""
    shown: list[int] = field(default_factory=list)
    """Number of impressions by rank, before the cutoff."""
    clicked: list[int] = field(default_factory=list)
    """Number of clicks by rank, before the cutoff."""
    propensities: Propensities | None = None
    """None: all clicks have equal weight; ``method`` contains the reason."""
    method: str = ""
    """How the propensities were estimated."""
    pairs: list[Pair] = field(default_factory=list)
    """Preferences from the clicks before the cutoff."""
    config: PairConfig = field(default_factory=PairConfig)
    """Configuration with which ``pairs`` were computed, including propensities."""
    counts: dict[str, int] = field(default_factory=dict)
    """Counts of searches and preferences before the cutoff, with the reasons for dropping them."""
    grades: dict[str, dict[str, float]] = field(default_factory=dict)
    """Query → shown document → grade, before the cutoff: 1 for documents more attractive than the others, else 0."""
    remembered: set[tuple[str, str]] = field(default_factory=set)
    """Pairs (query, document) that at least `REMEMBERED_BY` people clicked before the cutoff."""
    repeated: dict[str, list[Rating]] = field(default_factory=dict)
    """Queries with a document that at least `REMEMBERED_BY` people clicked, and all their ratings before the cutoff; at
    most `MOST_QUERIES`."""
    periods: list[EarlierPeriod] = field(default_factory=list)
    """Periods before the cutoff, on which preferences that were learned before each can be judged."""
    newest: list[Impression] = field(default_factory=list)
    """Impressions with a click in the newest slice, by time; a sample if there are more than the maximum."""


def read_history(log: LogFiles, settings: RetrainSettings, say: Say = lambda _: None) -> History:
    """Return the data that one retraining needs from a log.

    Raises `NothingToLearn` if there is no click, nothing older than the newest slice, no pair in the older part, or no
    click in the newest slice.
    """
    with impression_table(log, settings.pairs, since=settings.since) as table:
        return _read_history(log, table, settings, say)


def _read_history(log: LogFiles, table: ImpressionTable, settings: RetrainSettings, say: Say) -> History:
    config, since = settings.pairs, settings.since
    times, undated = table.click_times()
    if not len(times) + undated:
        raise NothingToLearn(
            "the click log contains no shown list with a click (robots are excluded): see `ssi clicks doctor`"
        )
    cutoff = cutoff_of(times, settings.newest)
    older = int((times < cutoff).sum())
    history = History(cutoff, int(times.min()), int(times.max()), older + undated, undated)
    _read_rates(history, counts_before(table, cutoff), settings, say)
    by_rank = None if history.propensities is None else history.propensities.by_rank
    history.config = replace(config, propensities=by_rank)
    with make_pairs(log, history.config, since=since, until=cutoff) as made:
        history.pairs, history.counts = _shared(made.pairs()), dict(made.counts)
    if not history.pairs:
        raise NothingToLearn(
            f"strategy {config.strategy!r} finds no preference in {history.learned:,} impressions with a click: give "
            "a longer log"
        )
    say(f"{len(history.pairs):,} preferences from {history.learned:,} impressions with a click")
    learned = {pair.query for pair in history.pairs}
    history.grades = grades_of(_remembering(table.ratings(history.config, cutoff), history), learned)
    history.repeated = most_asked(history.repeated)
    if not settings.words_only:
        history.periods = list(_earlier_periods(table, times[times < cutoff], history, settings))
    _read_newest(history, table.lists(since=cutoff), len(times) - older, settings)
    return history


def _remembering(rated: Iterable[Rating], history: History) -> Iterator[Rating]:
    """Yield the ratings unchanged, and record the documents that enough people clicked, and the queries with one."""
    for query, of_query in _by_query(rated):
        clicked = {rating.document for rating in of_query if rating.clicks >= REMEMBERED_BY}
        if clicked:
            history.remembered.update((query, document) for document in clicked)
            history.repeated[query] = of_query
        yield from of_query


def most_asked(repeated: Mapping[str, list[Rating]]) -> dict[str, list[Rating]]:
    """Return the `MOST_QUERIES` queries with the most clicks, in their order; of equals the first ones.

    The engine is asked once for each of them.
    """
    clicks = {query: sum(rating.clicks for rating in rated) for query, rated in repeated.items()}
    kept = set(sorted(clicks, key=lambda query: -clicks[query])[:MOST_QUERIES])
    return {query: rated for query, rated in repeated.items() if query in kept}


def _by_query(rated: Iterable[Rating]) -> Iterator[tuple[str, list[Rating]]]:
    for query, group in groupby(rated, key=lambda rating: rating.query):
        yield query, list(group)


def _earlier_periods(
    table: ImpressionTable, older: Int64, history: History, settings: RetrainSettings
) -> Iterator[EarlierPeriod]:
    """Yield the periods of the older log, given the times of its impressions with a click, ascending."""
    starts = [int(older[len(older) * number // N_PERIODS]) for number in range(1, N_PERIODS)] if len(older) else []
    most = max(1, MAX_JUDGED // N_PERIODS)
    for start, end in pairwise([*dict.fromkeys(start for start in starts if start > older[0]), history.cutoff]):
        n = int(((older >= start) & (older < end)).sum())
        rated = _by_query(table.ratings(history.config, start))
        known = ((query, of) for query, of in rated if query in history.repeated)
        repeated = {query: of for query, of in known if any(rating.clicks >= REMEMBERED_BY for rating in of)}
        yield EarlierPeriod(_with_click(table.lists(start, end), n, most, settings.train.seed), repeated)


def _shared(pairs: Iterable[Pair]) -> list[Pair]:
    """Return pairs in which equal texts are the same object: a log repeats few queries and documents very often."""
    return [Pair(intern(pair.query), intern(pair.better), intern(pair.worse), pair.weight) for pair in pairs]


def grades_of(rated: Iterable[Rating], queries: Collection[str]) -> dict[str, dict[str, float]]:
    """Return for some queries 1 for the shown documents that are more attractive than average, else 0.

    Attraction is clicks / people who examined the document (by the propensities). It is smoothed towards the mean of
    all documents by `PRIOR_EXAMINATIONS` examinations, so that one click at a rank that is hardly ever examined does
    not count as certain. Queries whose documents are all equally attractive are dropped.
    """
    clicks = examinations = 0.0
    counts: dict[str, dict[str, tuple[int, float]]] = {}
    for rating in rated:
        clicks, examinations = clicks + rating.clicks, examinations + rating.examined
        if rating.query in queries:
            counts.setdefault(rating.query, {})[rating.document] = (rating.clicks, rating.examined)
    prior = PRIOR_EXAMINATIONS * clicks / examinations if examinations else 0.0
    grades = {}
    for query, of_query in counts.items():
        liking = {document: (n + prior) / (seen + PRIOR_EXAMINATIONS) for document, (n, seen) in of_query.items()}
        middle = float(np.mean(list(liking.values()))) * (1 + 1e-9)
        if max(liking.values()) > middle:
            grades[query] = {document: float(value > middle) for document, value in liking.items()}
    return grades


def _read_rates(history: History, counts: ClickCounts, settings: RetrainSettings, say: Say) -> None:
    """Store impressions and clicks by rank, and estimate the propensities."""
    shown, clicked = counts.by_rank()
    history.shown, history.clicked = shown.tolist(), clicked.tolist()
    if settings.propensities is not None:
        history.propensities, history.method = settings.propensities, f"given ({settings.propensities.method})"
        return
    try:
        history.propensities = estimate_propensities(counts)
        history.method = f"{history.propensities.method}, from {history.propensities.n:,} lists"
    except InputError as error:
        history.method = f"none: {error.message}"
        say(f"all clicks have equal weight: {error.message}")


def _with_click(lists: Iterator[Impression], n: int, most: int, seed: int) -> list[Impression]:
    """Return the ``n`` lists with a click, a random sample of ``most`` if there are more."""
    chosen = None
    if n > most:
        chosen = set(np.random.default_rng([seed, n]).choice(n, most, replace=False).tolist())
    with_click = (impression for impression in lists if impression.clicked)
    return [impression for number, impression in enumerate(with_click) if chosen is None or number in chosen]


def _read_newest(history: History, lists: Iterator[Impression], n: int, settings: RetrainSettings) -> None:
    """Store the newest lists with a click."""
    history.newest = _with_click(lists, n, MAX_JUDGED, settings.train.seed)
    if not history.newest:
        raise NothingToLearn("the newest slice has no click for evaluating a new model: give a longer log")


def check_log(log: ClickLog, engine: Engine, index: str, config: PairConfig) -> tuple[str, ...]:
    """Return the doctor's warnings.

    Raises `NothingToLearn` if missing clicks are the only problem, and `GateRefused` if learning from the log would be
    unsound.
    """
    diagnosis = examine(log, engine, index, config=config)
    unsound = [finding for finding in diagnosis.findings if finding.severity == "unsound"]
    if unsound and all(finding.code == "clicks" for finding in unsound):
        raise NothingToLearn(unsound[0].sentence)
    if unsound:
        lines = "".join(f"\n  - {finding.sentence}" for finding in unsound)
        raise GateRefused(
            f"the click log is unsound to learn from, so nothing was trained:{lines}",
            index=index,
            codes=tuple(finding.code for finding in unsound),
        )
    return diagnosis.sentences("warning")


def propensity_finding(log: LogFiles) -> Finding:
    """Return whether the gate would trust the log's examination propensities.

    It runs the gate's own check on its own newest slice. The check compares the lists as shown, the live order, with a
    random order, so no model is needed.
    """
    try:
        history = read_history(log, RetrainSettings(Path()))
    except NothingToLearn as error:
        return Finding("propensities", "warning", f"`ssi retrain` would learn nothing: {error.message}.")
    config = weighing(GateConfig(), history.propensities)
    ranks = [[-float(hit.rank) for hit in impression.shown] for impression in history.newest]
    by_rank = None if history.propensities is None else history.propensities.by_rank
    lists = ClickedLists(shown_lists(history.newest, ranks, ranks), by_rank, config.max_weight)
    merit = merit_of_live(lists, np.random.default_rng([0, 2]), config)
    checks = (enough(merit.difference, "people (or sessions) with clicks", config), believable(merit, config))
    refused = [check.sentence for check in checks if not check.passed]
    numbers = {"live": merit.candidate, "random": merit.live, "people": float(merit.difference.n_clusters)}
    if refused:
        sentence = f"The gate of `ssi retrain` would refuse any model learned from this log: {refused[0]}."
        return Finding("propensities", "warning", sentence, numbers)
    return Finding("propensities", "ok", f"The gate trusts the propensities: {checks[1].sentence}.", numbers)
