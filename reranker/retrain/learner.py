"""The links and judgments of a retraining, and the models trained on them and on the clicks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from reranker.accounts import InputAccount, account_of_ids, summed
from reranker.engines.stored_ids import FindIds, IdCheck, no_look_up
from reranker.evaluation import Links
from reranker.formats import RejectSink
from reranker.models.ranking_model import RankingModel
from reranker.records import Pair, is_relevant
from reranker.retrain.history import History
from reranker.retrain.settings import RetrainSettings
from reranker.tables import at_least_one, read_judgements, read_links, read_queries
from reranker.text.query_keys import query_key
from reranker.training import (
    DocumentSource,
    Listener,
    TrainingReport,
    TrainingSet,
    from_judgements,
    from_links,
    from_pairs,
    train_model,
)
from reranker.training.training_set import mix

MARK = "retrain"
"""Key in a model's training record that marks it as the result of a retraining and describes its data."""


@dataclass(frozen=True)
class LinksAndJudgements:
    """Training data and judgments in addition to the clicks."""

    evidence: tuple[TrainingSet, ...] = ()
    """Training sets from links and from half of the judged queries."""
    judged: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The other half: query text → document id → grade, for the gate and never used for training."""

    @property
    def preferences(self) -> int:
        """Number of preferences for training."""
        return sum(len(part.preferences) for part in self.evidence)


def read_links_and_judgements(
    links: Path | None = None,
    judgements: Path | None = None,
    queries: Path | None = None,
    rejects: RejectSink | None = None,
    check: Callable[[InputAccount], None] = lambda account: None,
    find: FindIds = no_look_up,
) -> LinksAndJudgements:
    """Return the data from files of links and of judged queries.

    ``check`` receives the accounts of the links and of the judgments. Judgments whose query has no text are left out,
    and so are links and judgments with unknown documents. ``find`` looks up ids in the index.

    Judged queries are split by a hash of their text, so that the same ones are kept for the gate in every retraining.
    Queries with the same text (except for upper or lower case and white space) are merged under the first text. If two
    of them grade the same document, the first grade is used.
    """
    evidence = []
    judged: dict[str, dict[str, float]] = {}
    if links is not None:
        given_links = at_least_one("links", links, rejects, lambda: Links.of(read_links(links, rejects=rejects)))
        evidence.append(from_links(_known_links(given_links, check, find)))
    if judgements is not None and queries is not None:
        asked = at_least_one("queries", queries, rejects, lambda: list(read_queries(queries, rejects=rejects)))
        texts = {query.id: " ".join(query.text.split()) for query in asked}
        given = at_least_one("judgments", judgements, rejects, lambda: read_judgements(judgements, rejects))
        accounts: list[InputAccount] = []
        of_gate = {query: values for query, values in given.items() if is_for_the_gate(texts.get(query, ""))}
        others = {query: values for query, values in given.items() if query not in of_gate}
        learned = IdCheck(accounts.append, find).known("judgments", others, texts)
        kept = IdCheck(accounts.append, find).known("judgments", of_gate, texts)
        check(summed(accounts, "judgments"))
        evidence.append(from_judgements(learned, texts))
        first_text: dict[str, str] = {}
        for query, values in kept.items():
            text = first_text.setdefault(query_key(texts[query]), texts[query])
            judged[text] = {**values, **judged.get(text, {})}
        judged = {
            text: values for text, values in judged.items() if any(is_relevant(grade) for grade in values.values())
        }
    return LinksAndJudgements(tuple(part for part in evidence if part.preferences), judged)


def _known_links(links: Links, check: Callable[[InputAccount], None], find: FindIds) -> Links:
    """Return the links between known documents; ``check`` receives the account."""
    found = find(links.ids)
    check(replace(account_of_ids("links", links, found.ids, found.ids), note=found.note))
    if found.ids is None:
        return links
    known = np.array([id_ in found.ids for id_ in links.ids], dtype=bool)
    return links.part(known[links.source] & known[links.target])


def is_for_the_gate(text: str) -> bool:
    """Return whether a judged query is kept for the gate: half of all texts are, by `query_key`."""
    return bool(hashlib.blake2b(query_key(text).encode("utf-8", "surrogatepass"), digest_size=1).digest()[0] & 1)


@dataclass
class Learner:
    """Trains models on clicks and other evidence, always from the same base model and documents."""

    base: RankingModel
    documents: Path
    other_evidence: LinksAndJudgements
    settings: RetrainSettings
    listener: Listener

    def model(self, history: History, checkpoint: Path) -> tuple[RankingModel, TrainingReport]:
        """Return the model trained on all preferences, and its training report; an interrupted run is resumed.

        The training record in the model depends only on the log and the settings, so equal logs give equal bytes.
        """
        model, report = self._train(self._evidence(history.pairs, history), checkpoint)
        return self.marked(model, history), report

    def marked(self, model: RankingModel, history: History) -> RankingModel:
        """Return a model whose training record says from which base and clicks it comes."""
        mark = {
            "base": self.base.model_id,
            "query_side_only": self.settings.query_side_only,
            "cutoff": history.cutoff,
            "pairs": len(history.pairs),
            "config": asdict(history.config),
        }
        return replace(model, training={**model.training, MARK: mark})

    def _evidence(self, pairs: Sequence[Pair], history: History) -> TrainingSet:
        """Return the training set. Held-out queries are validated on the documents shown for them.

        Grades derived from pairs would be biased: the live order ranked skipped documents above clicked ones, so it
        loses every pair.
        """
        clicks = from_pairs(pairs)
        graded = {query: history.grades.get(query, judged) for query, judged in clicks.grades.items()}
        kept = np.array([link in history.remembered for link in clicks.links()], bool)
        preferences = replace(clicks.preferences, remembered=clicks.preferences.remembered * kept)
        clicks = replace(clicks, preferences=preferences, grades=graded, judged_only=True)
        if not self.other_evidence.evidence:
            return clicks
        # Judgments come before click grades, because the first part's grades have priority.
        return mix(*((part, 1.0) for part in (*self.other_evidence.evidence, clicks)))

    def _train(self, evidence: TrainingSet, checkpoint: Path) -> tuple[RankingModel, TrainingReport]:
        settings = self.settings
        config = replace(settings.train, query_side_only=settings.query_side_only)
        return train_model(
            DocumentSource(self.documents),
            evidence,
            config,
            base=self.base,
            checkpoint=checkpoint,
            listener=self.listener,
        )
