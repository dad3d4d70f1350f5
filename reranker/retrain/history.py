"""What a retraining takes from a click log: pairs of the older part, whole impressions of the newest one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from reranker.clicks.backends import LogFiles
from reranker.clicks.doctor import examine
from reranker.clicks.log import ClickLog
from reranker.clicks.pair_config import PairConfig
from reranker.clicks.pairs import Rating, impressions, make_pairs, ratings
from reranker.clicks.propensities import Propensities, count_clicks, estimate_propensities
from reranker.clicks.schema import Impression
from reranker.engines.base import Engine
from reranker.errors import GateRefused, InputError, NothingToLearn
from reranker.progress import Say
from reranker.records import Pair
from reranker.retrain.settings import RetrainSettings, cutoff_of

PRIOR_LOOKS = 2.0


@dataclass
class History:
    """A click log, read."""

    cutoff: int
    first: int
    last: int
    """Milliseconds: where the newest slice begins, and the ends of the log."""
    learned: int
    undated: int
    """Impressions with a click before the cutoff, those without a time among them included."""
    shown: list[int] = field(default_factory=list)
    clicked: list[int] = field(default_factory=list)
    """By rank, over all impressions before the cutoff."""
    propensities: Propensities | None = None
    """None: all clicks count alike; ``method`` says why."""
    method: str = ""
    pairs: list[Pair] = field(default_factory=list)
    config: PairConfig = field(default_factory=PairConfig)
    """What they were made by, propensities included."""
    counts: dict[str, int] = field(default_factory=dict)
    """What became of the searches and preferences before the cutoff."""
    grades: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of the shown documents of each query before the cutoff: 1 for those liked more than the others, else 0."""
    newest: list[Impression] = field(default_factory=list)
    """With a click, by time; sampled where there are more than may be."""

    @property
    def people(self) -> int:
        """Distinct users, or sessions where no user is known, in the newest slice."""
        return len({one.user or one.session or one.query_id for one in self.newest})


def read_history(log: LogFiles, settings: RetrainSettings, say: Say = lambda _: None) -> History:
    """Return what one retraining needs of a log.

    Raises
    ------
    NothingToLearn
        If there is no click, nothing older than the newest slice, no pair in it, or no click in the newest slice.
    """
    config, since = settings.pairs, settings.since
    moments = [one.time for one in impressions(log, config, since=since) if one.clicked]
    if not moments:
        raise NothingToLearn(
            "the click log holds no shown list with a click on it (robots left out): `ssi clicks doctor` says why"
        )
    times = np.array([moment for moment in moments if moment is not None], dtype=np.int64)
    undated = len(moments) - len(times)
    cutoff = cutoff_of(times, settings.newest)
    older = int((times < cutoff).sum())
    history = History(cutoff, int(times.min()), int(times.max()), older + undated, undated)
    _read_rates(history, impressions(log, config, since=since, until=cutoff), settings, say)
    propensities = history.propensities
    by_rank = None if propensities is None else tuple(min(p, 1.0) for p in propensities.by_rank)
    history.config = replace(config, propensities=by_rank)
    with make_pairs(log, history.config, since=since, until=cutoff) as table:
        history.pairs, history.counts = _shared(table.pairs()), dict(table.counts)
    if not history.pairs:
        raise NothingToLearn(
            f"strategy {config.strategy!r} finds no preference in {history.learned:,} impressions with a click: give "
            "a longer log, or another --strategy"
        )
    say(f"{len(history.pairs):,} preferences from {history.learned:,} impressions with a click")
    learned = {pair.query for pair in history.pairs}
    history.grades = grades_of(ratings(log, history.config, since=since, until=cutoff), learned)
    _read_newest(history, impressions(log, config, since=cutoff), len(times) - older, settings)
    return history


def _shared(pairs: Iterable[Pair]) -> list[Pair]:
    """Return pairs whose equal texts are one object: a log names few queries and documents very often."""
    texts: dict[str, str] = {}

    def one(text: str) -> str:
        return texts.setdefault(text, text)

    return [Pair(one(pair.query), one(pair.better), one(pair.worse), pair.weight) for pair in pairs]


def grades_of(rated: Iterable[Rating], queries: Collection[str]) -> dict[str, dict[str, float]]:
    """Return, for some queries, 1 for the shown documents that are liked more than the others on average, else 0.

    Liking is clicks / people who looked (by the propensities), drawn towards the mean of all by `PRIOR_LOOKS` looks,
    so that one click at a rank hardly ever looked at does not count as certainty. Queries whose documents are all
    liked alike are left out.
    """
    clicks = looks = 0.0
    counts: dict[str, dict[str, tuple[int, float]]] = {}
    for one in rated:
        clicks, looks = clicks + one.clicks, looks + one.examined
        if one.query in queries:
            counts.setdefault(one.query, {})[one.document] = (one.clicks, one.examined)
    prior = PRIOR_LOOKS * clicks / looks if looks else 0.0
    grades = {}
    for query, of_query in counts.items():
        liking = {document: (n + prior) / (seen + PRIOR_LOOKS) for document, (n, seen) in of_query.items()}
        middle = float(np.mean(list(liking.values()))) * (1 + 1e-9)
        if max(liking.values()) > middle:
            grades[query] = {document: float(value > middle) for document, value in liking.items()}
    return grades


def _read_rates(history: History, lists: Iterator[Impression], settings: RetrainSettings, say: Say) -> None:
    """Note showings and clicks by rank, and find the propensities."""
    counts = count_clicks(lists)
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
        say(f"all clicks count alike: {error.message}")


def _read_newest(history: History, lists: Iterator[Impression], n: int, settings: RetrainSettings) -> None:
    """Keep the lists with a click, at most so many, drawn at random."""
    chosen = None
    if n > settings.max_judged:
        rng = np.random.default_rng([settings.train.seed, n])
        chosen = set(rng.choice(n, settings.max_judged, replace=False).tolist())
    with_click = (one for one in lists if one.clicked)
    history.newest = [one for number, one in enumerate(with_click) if chosen is None or number in chosen]
    if not history.newest:
        raise NothingToLearn("the newest slice holds no click to judge a new model by: give a larger --newest")


def check_log(log: ClickLog, engine: Engine, index: str, config: PairConfig, *, allow_unsound: bool) -> tuple[str, ...]:
    """Return what the doctor warns of.

    `NothingToLearn` if there is no click, and nothing else is wrong; `GateRefused` if learning from the log would be
    unsound, unless ``allow_unsound``.
    """
    diagnosis = examine(log, engine, index, config=config)
    unsound = [one for one in diagnosis.findings if one.severity == "unsound"]
    if unsound and all(one.code == "clicks" for one in unsound):
        raise NothingToLearn(unsound[0].sentence)
    if unsound and not allow_unsound:
        lines = "".join(f"\n  - {one.sentence}" for one in unsound)
        raise GateRefused(
            "the click log is unsound to learn from, so nothing was trained (--allow-unsound goes on all the same):"
            f"{lines}",
            index=index,
            codes=tuple(one.code for one in unsound),
        )
    return (*diagnosis.unsound, *diagnosis.warnings)
