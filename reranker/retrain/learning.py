"""What a retraining learns from, and the models that it learns.

The older part of a click log becomes preferences, beside links and judgements; the newest part is kept for the gate,
as whole impressions, and is never learned from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from sys import intern
from typing import Any, Literal

import numpy as np

from reranker.arrays import Int64
from reranker.baselines.comparison import read_judgements
from reranker.clicks.doctor import Finding, examine
from reranker.clicks.log import DAY_MS, ClickLog
from reranker.clicks.pairs import LogFiles, PairConfig, Rating, impressions, make_pairs, ratings
from reranker.clicks.propensities import Propensities, count_clicks, estimate_propensities
from reranker.clicks.schema import Impression
from reranker.engines.protocol import Engine
from reranker.errors import GateRefused, InputError, NothingToLearn
from reranker.formats import RejectSink, read_links, read_queries
from reranker.models.ranking_model import RankingModel
from reranker.progress import Say
from reranker.records import Pair
from reranker.retrain.gate import ClickedLists, believable, enough, merit_of_live, shown_lists
from reranker.retrain.served_ranks import weighing
from reranker.retrain.settings import GateConfig, Newest, RetrainSettings
from reranker.training import (
    Corpus,
    Listener,
    TrainingReport,
    TrainingSet,
    from_judgements,
    from_links,
    from_pairs,
    train_model,
)
from reranker.training.training_set import mix

PRIOR_LOOKS = 2.0
REMEMBERED_BY = 2
"""People who must have clicked a document for a query before a model remembers it by the query's words: nobody alone
leaves words in a model, and one click, which may be a mistake, does not count as much as a judgement."""
STUDY_SHARES, STUDY_EPOCHS = (0.1, 0.25, 0.5, 1.0), 3
MARK = "retrain"
"""Key of a model's training record that says it was made by a retraining, and from what."""


def cutoff_of(times: Int64, newest: Newest) -> int:
    """Return the time that parts the log: what is as late or later is the newest slice, the rest is learned from.

    Impressions of one moment stay together, so the slice may hold more than its share. Impressions without a time
    have no place in the order and are learned from.

    ``times`` are the milliseconds of the dated impressions, (n,) int64, in any order.

    `NothingToLearn` where no impression has a time, or none is older than the slice.
    """
    if not len(times):
        raise NothingToLearn(
            "no impression of the log has a time, so there is no newest slice to judge a new model by: import logs "
            "whose queries carry a timestamp"
        )
    ordered = np.sort(times)
    if newest.days is not None:
        cutoff = int(ordered[-1]) - round(newest.days * DAY_MS) + 1
    else:
        cutoff = int(ordered[len(ordered) - max(1, math.ceil(newest.share * len(ordered)))])
    if cutoff <= ordered[0]:
        raise NothingToLearn(
            f"all {len(times):,} dated impressions lie within the newest slice, so nothing is left to learn from: "
            "give a smaller --newest, or a log of a longer time"
        )
    return cutoff


@dataclass(frozen=True)
class RetrainResult:
    """How a retraining ended."""

    outcome: Literal["promoted", "refused", "would promote"]
    reason: str
    """Sentences of the gate."""
    index: str
    live_before: str | None
    live_after: str | None
    base: str
    candidate: str
    """Model ids."""
    encoder: str
    """Encoder id of the candidate."""
    model_path: Path
    """Where the candidate lies."""
    data: Mapping[str, Any]
    """What of the log was used, by the names of ``--json``: impressions ``learned`` from and ``judged`` by, ``undated``
    ones among the former; ``cutoff``, ``first`` and ``last`` (milliseconds) of the newest slice and the log; the
    ``people`` of that slice (users, or sessions where no user is known); preferences of clicks (``pairs``) and
    ``other`` ones; ``documents``; what was ``dropped``, by reason."""
    verdict: Mapping[str, Any]
    """The gate's, as JSON."""
    documents_written: int = 0
    """Updates of the index; 0 where the encoder stayed."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    report: Path | None = None

    @property
    def exit_code(self) -> int:
        """Exit status of the command: 0, or that of a refusal."""
        return GateRefused.exit_code if self.outcome == "refused" else 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        values = asdict(self)
        values["model_path"] = str(self.model_path)
        values["report"] = None if self.report is None else str(self.report)
        values["seconds"] = {step: round(value, 3) for step, value in self.seconds.items()}
        return values


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
    remembered: set[tuple[str, str]] = field(default_factory=set)
    """(query, document) that at least `REMEMBERED_BY` people clicked before the cutoff."""
    newest: list[Impression] = field(default_factory=list)
    """With a click, by time; sampled where there are more than may be."""


def read_history(log: LogFiles, settings: RetrainSettings, say: Say = lambda _: None) -> History:
    """Return what one retraining needs of a log.

    `NothingToLearn` if there is no click, nothing older than the newest slice, no pair in it, or no click in the newest
    slice.
    """
    config, since = settings.pairs, settings.since
    moments = [impression.time for impression in impressions(log, config, since=since) if impression.clicked]
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
    by_rank = None if history.propensities is None else history.propensities.by_rank
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
    history.grades = grades_of(_remembering(ratings(log, history.config, since=since, until=cutoff), history), learned)
    _read_newest(history, impressions(log, config, since=cutoff), len(times) - older, settings)
    return history


def _remembering(rated: Iterable[Rating], history: History) -> Iterator[Rating]:
    """Yield ratings, and note what enough people clicked."""
    for rating in rated:
        if rating.clicks >= REMEMBERED_BY:
            history.remembered.add((rating.query, rating.document))
        yield rating


def _shared(pairs: Iterable[Pair]) -> list[Pair]:
    """Return pairs whose equal texts are one object: a log names few queries and documents very often."""
    return [Pair(intern(pair.query), intern(pair.better), intern(pair.worse), pair.weight) for pair in pairs]


def grades_of(rated: Iterable[Rating], queries: Collection[str]) -> dict[str, dict[str, float]]:
    """Return, for some queries, 1 for the shown documents that are liked more than the others on average, else 0.

    Liking is clicks / people who looked (by the propensities), drawn towards the mean of all by `PRIOR_LOOKS` looks,
    so that one click at a rank hardly ever looked at does not count as certainty. Queries whose documents are all
    liked alike are left out.
    """
    clicks = looks = 0.0
    counts: dict[str, dict[str, tuple[int, float]]] = {}
    for rating in rated:
        clicks, looks = clicks + rating.clicks, looks + rating.examined
        if rating.query in queries:
            counts.setdefault(rating.query, {})[rating.document] = (rating.clicks, rating.examined)
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
    with_click = (impression for impression in lists if impression.clicked)
    history.newest = [impression for number, impression in enumerate(with_click) if chosen is None or number in chosen]
    if not history.newest:
        raise NothingToLearn("the newest slice holds no click to judge a new model by: give a larger --newest")


def check_log(log: ClickLog, engine: Engine, index: str, config: PairConfig, *, allow_unsound: bool) -> tuple[str, ...]:
    """Return what the doctor warns of.

    `NothingToLearn` if there is no click, and nothing else is wrong; `GateRefused` if learning from the log would be
    unsound, unless ``allow_unsound``.
    """
    diagnosis = examine(log, engine, index, config=config)
    unsound = [finding for finding in diagnosis.findings if finding.severity == "unsound"]
    if unsound and all(finding.code == "clicks" for finding in unsound):
        raise NothingToLearn(unsound[0].sentence)
    if unsound and not allow_unsound:
        lines = "".join(f"\n  - {finding.sentence}" for finding in unsound)
        raise GateRefused(
            "the click log is unsound to learn from, so nothing was trained (--allow-unsound goes on all the same):"
            f"{lines}",
            index=index,
            codes=tuple(finding.code for finding in unsound),
        )
    return (*diagnosis.sentences("unsound"), *diagnosis.sentences("warning"))


def propensity_finding(log: LogFiles) -> Finding:
    """Return whether the gate will believe what a log says of how much each rank is looked at.

    The gate's own question on its own newest slice, with the lists as they were shown for the live order: no model is
    needed to answer it.
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
    return Finding("propensities", "ok", f"The gate believes the propensities: {checks[1].sentence}.", numbers)


@dataclass(frozen=True)
class LinksAndJudgements:
    """Evidence beside the clicks: of links, and of half of the judged queries.

    ``judged`` are the other half, query text → document id → grade: for the gate, never learned from.
    """

    evidence: tuple[TrainingSet, ...] = ()
    judged: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def preferences(self) -> int:
        """Number of preferences to learn from."""
        return sum(len(part.preferences) for part in self.evidence)


def read_links_and_judgements(
    links: Path | None = None,
    judgements: Path | None = None,
    queries: Path | None = None,
    rejects: RejectSink | None = None,
) -> LinksAndJudgements:
    """Return what the files of links and of judged queries say.

    Judged queries are parted by a hash of their text: the same ones are kept for the gate in every retraining. There,
    queries of one text are one; where two grade the same document, the first one's grade holds.
    """
    evidence = []
    judged: dict[str, dict[str, float]] = {}
    if links is not None:
        evidence.append(from_links(read_links(links, rejects=rejects)))
    if judgements is not None and queries is not None:
        texts = {query.id: " ".join(query.text.split()) for query in read_queries(queries, rejects=rejects)}
        grades = {query: of_query for query, of_query in read_judgements(judgements, rejects).items() if query in texts}
        learned = {query: values for query, values in grades.items() if not is_for_the_gate(texts[query])}
        evidence.append(from_judgements(learned, texts))
        for query, values in grades.items():
            if query not in learned:
                judged[texts[query]] = {**values, **judged.get(texts[query], {})}
        judged = {text: values for text, values in judged.items() if any(grade > 0 for grade in values.values())}
    return LinksAndJudgements(tuple(part for part in evidence if part.preferences), judged)


def is_for_the_gate(text: str) -> bool:
    """Return whether a judged query is kept for the gate: half of all texts are, spelling of letters aside."""
    return bool(hashlib.blake2b(text.lower().encode("utf-8", "surrogatepass"), digest_size=1).digest()[0] & 1)


@dataclass
class Learner:
    """Learns from clicks and what is mixed with them, each time from the same base and documents."""

    base: RankingModel
    documents: Path
    beside_clicks: LinksAndJudgements
    settings: RetrainSettings
    listener: Listener

    def model(self, history: History, checkpoint: Path) -> tuple[RankingModel, TrainingReport]:
        """Return the model of all preferences, and how it came about; a run that was killed goes on.

        What the model keeps about itself depends on the log and the settings alone, so equal logs give equal bytes.
        """
        model, report = self._train(self._evidence(history.pairs, history), {}, checkpoint)
        mark = {
            "base": self.base.model_id,
            "query_side_only": self.settings.query_side_only,
            "click_weight": self.settings.click_weight,
            "cutoff": history.cutoff,
            "pairs": len(history.pairs),
            "config": asdict(history.config),
        }
        return replace(model, training={**model.training, MARK: mark}), report

    def study(self, history: History) -> list[tuple[int, RankingModel]]:
        """Return models of growing parts of the preferences, few epochs each, with the number of preferences.

        Each part holds the ones before it; whole queries are drawn.
        """
        pairs = history.pairs
        queries = sorted({pair.query for pair in pairs})
        order = np.random.default_rng([self.settings.train.seed, 1]).permutation(len(queries))
        models = []
        for share in STUDY_SHARES:
            chosen = {queries[place] for place in order[: max(2, round(share * len(queries)))].tolist()}
            part = [pair for pair in pairs if pair.query in chosen]
            self.listener.say(f"size study: {len(part):,} of {len(pairs):,} preferences")
            model, _ = self._train(self._evidence(part, history), {"epochs": STUDY_EPOCHS}, None)
            models.append((len(part), model))
        return models

    def _evidence(self, pairs: Sequence[Pair], history: History) -> TrainingSet:
        """Return what is learned from; held-out queries are validated on the documents shown for them.

        Grades by pairs would not do: the live order put what was skipped above what was clicked, and loses every pair.
        """
        clicks = from_pairs(pairs)
        graded = {query: history.grades.get(query, judged) for query, judged in clicks.grades.items()}
        kept = np.array([link in history.remembered for link in clicks.links()], bool)
        preferences = replace(clicks.preferences, remembered=clicks.preferences.remembered * kept)
        clicks = replace(clicks, preferences=preferences, grades=graded, judged_only=True)
        if not self.beside_clicks.evidence:
            return clicks
        # Grades of judges before those of clicks: the first part's hold.
        return mix(*((part, 1.0) for part in self.beside_clicks.evidence), (clicks, self.settings.click_weight))

    def _train(
        self, evidence: TrainingSet, changes: dict[str, Any], checkpoint: Path | None
    ) -> tuple[RankingModel, TrainingReport]:
        settings = self.settings
        config = replace(
            settings.train, identity=bool(self.base.identity), query_side_only=settings.query_side_only, **changes
        )
        return train_model(
            Corpus(self.documents, id_field=settings.id_field),
            evidence,
            config,
            base=self.base,
            checkpoint=checkpoint,
            compare=False,
            listener=self.listener,
        )
