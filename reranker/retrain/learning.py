"""What a retraining learns from, clicks with what stands beside them, and the models that it learns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from reranker.artifacts import RankingModel
from reranker.engines.base import Engine
from reranker.errors import NothingToLearn
from reranker.files import replacing
from reranker.formats import RejectSink, read_links, read_qrels, read_queries
from reranker.progress import Progress, no_progress
from reranker.records import Pair
from reranker.retrain.history import History
from reranker.retrain.publishing import MARK
from reranker.retrain.settings import RetrainSettings
from reranker.text.view import TextView
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

STUDY_SHARES, STUDY_EPOCHS = (0.1, 0.25, 0.5, 1.0), 3
BATCH = 500


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
        return sum(len(one.preferences) for one in self.evidence)


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
        grades: dict[str, dict[str, float]] = {}
        for one in read_qrels(judgements, rejects=rejects):
            if one.query_id in texts:
                grades.setdefault(one.query_id, {})[one.document_id] = one.grade
        learned = {query: values for query, values in grades.items() if not is_for_the_gate(texts[query])}
        evidence.append(from_judgements(learned, texts))
        for query, values in grades.items():
            if query not in learned:
                judged[texts[query]] = {**values, **judged.get(texts[query], {})}
        judged = {text: values for text, values in judged.items() if any(grade > 0 for grade in values.values())}
    return LinksAndJudgements(tuple(one for one in evidence if one.preferences), judged)


def is_for_the_gate(text: str) -> bool:
    """Return whether a judged query is kept for the gate: half of all texts are, spelling of letters aside."""
    return bool(hashlib.blake2b(text.lower().encode("utf-8", "surrogatepass"), digest_size=1).digest()[0] & 1)


class Learner:
    """Learns from clicks and what is mixed with them, each time from the same base and documents."""

    def __init__(
        self,
        base: RankingModel,
        documents: Path,
        beside_clicks: LinksAndJudgements,
        settings: RetrainSettings,
        listener: Listener,
    ) -> None:
        self.base, self.documents, self.beside_clicks = base, documents, beside_clicks
        self.settings, self.listener = settings, listener

    def model(self, history: History, checkpoint: Path) -> tuple[RankingModel, TrainingReport]:
        """Return the model of all preferences, and how it came about; a run that was killed goes on.

        What the model keeps about itself depends on the log and the settings alone, so equal logs give equal bytes.
        """
        model, report = self._train(self._evidence(history.pairs, history.grades), {}, checkpoint)
        mark = {
            "base": self.base.model_id,
            "query_side_only": self.settings.query_side_only,
            "click_weight": self.settings.click_weight,
            "cutoff": history.cutoff,
            "pairs": len(history.pairs),
            "config": history.config.to_json(),
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
            model, _ = self._train(self._evidence(part, history.grades), {"epochs": STUDY_EPOCHS}, None)
            models.append((len(part), model))
        return models

    def _evidence(self, pairs: Sequence[Pair], grades: Mapping[str, Mapping[str, float]]) -> TrainingSet:
        """Return what is learned from; held-out queries are validated on the documents shown for them.

        Grades by pairs would not do: the live order put what was skipped above what was clicked, and loses every pair.
        """
        clicks = from_pairs(pairs)
        graded = {query: grades.get(query, judged) for query, judged in clicks.grades.items()}
        clicks = replace(clicks, grades=graded, judged_only=True)
        if not self.beside_clicks.evidence:
            return clicks
        # Grades of judges before those of clicks: the first part's hold.
        return mix(*((one, 1.0) for one in self.beside_clicks.evidence), (clicks, self.settings.click_weight))

    def _train(
        self, evidence: TrainingSet, changes: dict[str, Any], checkpoint: Path | None
    ) -> tuple[RankingModel, TrainingReport]:
        settings = self.settings
        config = replace(
            settings.train, identity=bool(self.base.identity), query_side_only=settings.query_side_only, **changes
        )
        return train_model(
            Corpus(self.documents), evidence, config, base=self.base, checkpoint=checkpoint, compare=False,
            listener=self.listener,
        )  # fmt: skip


def export_documents(engine: Engine, index: str, view: TextView, path: Path, progress: Progress = no_progress) -> int:
    """Write the text fields of all documents of an index as JSON lines and return their number.

    Engines scan in an order of their own, and training depends on the order of its documents: the lines are sorted by
    id (their places in a first, unsorted file are held in memory, about 150 bytes a document). An id that several
    indexes of an alias hold is written once, with the text that sorts first.

    Raises
    ------
    NothingToLearn
        If the index is empty.
    EngineError
        If it cannot be read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unsorted = path.with_name(f".{path.name}.unsorted")
    try:
        places = _scan(engine, index, [spec.path for spec in view.fields], unsorted, progress)
        if not places:
            raise NothingToLearn(f"index {index!r} on {engine.spec} holds no document: fill it with `ssi index`")
        return _sorted(unsorted, places, path)
    finally:
        unsorted.unlink(missing_ok=True)


def _scan(
    engine: Engine, index: str, fields: Sequence[str], path: Path, progress: Progress
) -> list[tuple[str, int, int]]:
    """Write the documents as they come; return (id, first byte, bytes) of each."""
    engine.refresh(index)
    total, places, at = engine.count(index), [], 0
    with path.open("wb") as file:
        for batch in engine.scan(index, source=list(fields), batch_size=BATCH):
            for document in batch:
                source = {name: value for name, value in document.source.items() if name not in ("id", "_id")}
                line = json.dumps({"id": document.id, **dict(sorted(source.items()))}).encode("ascii") + b"\n"
                file.write(line)
                places.append((document.id, at, len(line)))
                at += len(line)
            progress(len(places), total)
    return places


def _sorted(unsorted: Path, places: list[tuple[str, int, int]], path: Path) -> int:
    """Copy the lines in the order of their ids, one an id."""
    places.sort()
    written, begin = 0, 0
    with unsorted.open("rb") as source, replacing(path) as target:
        while begin < len(places):
            end = begin + 1
            while end < len(places) and places[end][0] == places[begin][0]:
                end += 1
            lines = []
            for _, at, n_bytes in places[begin:end]:
                source.seek(at)
                lines.append(source.read(n_bytes))
            target.write(min(lines))
            written, begin = written + 1, end
    return written
