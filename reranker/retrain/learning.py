"""A new model from preferences and a base, and models of parts of the preferences for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reranker.artifacts import RankingModel
from reranker.records import Pair
from reranker.retrain.history import History
from reranker.retrain.models import MARK
from reranker.retrain.settings import STUDY_EPOCHS, STUDY_SHARES, RetrainSettings
from reranker.retrain.teaching import Teaching
from reranker.training import Corpus, Evidence, Listener, TrainingReport, from_pairs, train_model
from reranker.training.checkpoint import remove_checkpoints
from reranker.training.evidence import mix


class Learner:
    """Learns from clicks and what is mixed with them, each time from the same base.

    Parameters
    ----------
    base : RankingModel
    documents : Path
    teaching : Teaching
    settings : RetrainSettings
    listener : Listener
    """

    def __init__(
        self, base: RankingModel, documents: Path, teaching: Teaching, settings: RetrainSettings, listener: Listener
    ) -> None:
        self.base, self.documents, self.teaching = base, documents, teaching
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

    def _evidence(self, pairs: Sequence[Pair], grades: Mapping[str, Mapping[str, float]]) -> Evidence:
        """Return what is learned from; held-out queries are validated on the documents shown for them.

        Grades by pairs would not do: the live order put what was skipped above what was clicked, and loses every pair.
        """
        clicks = from_pairs(pairs)
        graded = {query: grades.get(query, judged) for query, judged in clicks.grades.items()}
        clicks = replace(clicks, grades=graded, judged_only=True)
        if not self.teaching.evidence:
            return clicks
        # Grades of judges before those of clicks: the first part's hold.
        return mix(*((one, 1.0) for one in self.teaching.evidence), (clicks, self.settings.click_weight))

    def _train(
        self, evidence: Evidence, changes: dict[str, Any], checkpoint: Path | None
    ) -> tuple[RankingModel, TrainingReport]:
        config = replace(
            self.settings.train,
            identity=bool(self.base.identity),
            query_side_only=self.settings.query_side_only,
            **changes,
        )
        return train_model(
            Corpus(self.documents), evidence, config, base=self.base, checkpoint=checkpoint, compare=False,
            listener=self.listener,
        )  # fmt: skip


def remove_checkpoint(checkpoint: Path) -> None:
    """Forget the state of a run that is done."""
    remove_checkpoints(checkpoint)
