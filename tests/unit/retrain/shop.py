"""A small site whose clicks teach what words alone cannot tell: documents, a base model, an index, a click log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from indexer.build import BuildOptions, build_index
from reranker.clicks.log import ClickLog
from reranker.clicks.schema import DAY_MS
from reranker.clicks.simulator import LogPlan, PositionBased, attraction_of, simulate, tables_of
from reranker.engines.protocol import Engine
from reranker.lexical.bm25 import LexicalSettings
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel
from reranker.models.vector_field import VectorField, WordEncoder
from reranker.retrain.loop import folder_of
from reranker.retrain.served_ranks import ServedModel, ServingScores
from reranker.retrain.settings import RetrainSettings
from reranker.training import TrainConfig
from tests.live.helpers import write_lines
from tests.seeds import seeded_rng
from tests.served import model_of, with_mean_vector

Tables = dict[str, dict[str, list[Any]]]
DAYS = 8.0
N_KINDS, N_DOCUMENTS, N_SHOWN = 6, 90, 10
N_VECTOR = 8
"""Numbers of a vector of `with_kinds`."""
FAST = TrainConfig(epochs=4, seed=3)


def shop_documents() -> dict[str, dict[str, Any]]:
    """Return documents that all hold ``common``; ``wish3`` of a query is answered by documents with ``thing3``.

    Two of the 15 answers hold ``wish3``, too, and so do two others: words alone tell little more than chance.
    """
    rng = seeded_rng(11)
    documents = {}
    for number in range(N_DOCUMENTS):
        kind = number % N_KINDS
        words = [f"thing{kind}", *(f"filler{i}" for i in rng.integers(0, 40, rng.integers(4, 12)))]
        if number < 2 * N_KINDS:
            words.append(f"wish{kind}")  # some answers are found by words
        elif number < 4 * N_KINDS:
            words.append(f"wish{(kind + 1) % N_KINDS}")  # and so are others that are none
        documents[f"d{number:03}"] = {"title": "common", "text": " ".join(rng.permutation(words).tolist())}
    return documents


def with_kinds(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the documents with a vector each in the field ``vector``, which is near that of their kind."""
    rng = seeded_rng(12)
    centres = rng.normal(size=(N_KINDS, N_VECTOR))
    return {
        name: {**source, "vector": (centres[n % N_KINDS] + rng.normal(scale=0.1, size=N_VECTOR)).round(4).tolist()}
        for n, (name, source) in enumerate(documents.items())
    }


def reading_kinds(model: RankingModel, *, learned: bool) -> RankingModel:
    """Return a model that reads the field ``vector``, and whose words have no vectors yet.

    It has no U and V unless ``learned``.
    """
    field = VectorField(np.zeros(N_VECTOR, np.float32), np.eye(N_VECTOR, dtype=np.float32), 9.0, 1.0)
    V = model.encoder.V if learned else np.zeros((0, 1), np.float32)
    encoder = replace(model.encoder, view=replace(model.encoder.view, vector="vector"), V=V, vector_field=field)
    words = WordEncoder(np.zeros((len(model.query_vocabulary), N_VECTOR), np.float32), 1.0)
    return replace(model, encoder=encoder, U=model.U if learned else V, word_encoder=words)


def later(tables: Tables) -> Tables:
    """Return the same log `DAYS` later, with query ids of its own."""
    moved = {name: dict(columns) for name, columns in tables.items()}
    for columns in moved.values():
        columns["query_id"] = [f"late-{one}" for one in columns["query_id"]]
    for name in ("queries", "events"):
        moved[name]["time"] = [one + round(DAYS * DAY_MS) for one in moved[name]["time"]]
    return moved


def is_answer(query: str, document: Mapping[str, Any]) -> bool:
    """Return whether a document answers a query of the shop."""
    return query.split(maxsplit=1)[0].replace("wish", "thing") in str(document["text"]).split()


@dataclass
class Shop:
    """A site under a folder, with its base model live in an index of an engine."""

    path: Path
    engine: Engine
    index: str = "shop"
    documents: dict[str, dict[str, Any]] = field(default_factory=shop_documents)
    lexical: LexicalSettings | None = None
    vectors: Literal["", "only", "learned"] = ""
    """Whether documents have vectors, and the base reads only these or has a learned part, too."""

    def __post_init__(self) -> None:
        if self.vectors:
            self.documents = with_kinds(self.documents)
        self.models = self.path / "models"
        noisy = model_of(self.documents, n_dims=16, scale=0.3, lexical=self.lexical)
        self.base: RankingModel = replace(noisy, U=noisy.U * np.float32(0.1))
        if self.vectors:
            self.base = reading_kinds(self.base, learned=self.vectors == "learned")
        self.base_path = folder_of(self.models, self.base.model_id)
        save_model(self.base, self.base_path)
        self.queries = [f"wish{kind} common filler{extra}" for kind in range(N_KINDS) for extra in range(12)]

    def with_impacts(self) -> Shop:
        """Replace the base model by one that impacts can be computed with."""
        self.base = with_mean_vector(self.base, self.documents)
        self.base_path = folder_of(self.models, self.base.model_id)
        save_model(self.base, self.base_path)
        return self

    def fill(self) -> Shop:
        """Index the documents and make the base model live."""
        build_index(
            self.engine, self.index, write_lines(self.path / "docs.jsonl", self.documents), self.base, BuildOptions()
        )
        return self

    def shown(self, model: RankingModel, alpha: float = 0.5) -> list[list[str]]:
        """Return what the shop shows for each of its queries with this model live."""
        scores = ServingScores(self.engine, self.index, [ServedModel(model, alpha)])
        lists = scores.rank_window(self.queries, 200)
        return [
            [lists[q].documents[place] for place in np.argsort(lists[q].ranks[0])[:N_SHOWN].tolist()]
            for q in self.queries
        ]

    def log(
        self,
        folder: Path,
        model: RankingModel | None = None,
        *,
        impressions: int = 3000,
        seed: int = 1,
        users: int = 300,
        turning: bool = False,
    ) -> ClickLog:
        """Return a log of people who look less at lower ranks and click what answers.

        Where it is turning, people of its last fifth click what does not answer: what was learned is then wrong.
        """
        lists = self.shown(model or self.base)
        log = ClickLog(folder, create=True)
        late = impressions // 5
        log.add([self.clicks(lists, impressions - late, seed, users, answers=True)], "old")
        log.add([later(self.clicks(lists, late, seed + 100, users, answers=not turning))], "new")
        return log

    def clicks(self, lists: list[list[str]], n: int, seed: int, users: int, *, answers: bool) -> Tables:
        """Return the tables of a log on some lists, of people who click what answers, or what does not."""
        numbers = {name: number for number, name in enumerate(self.documents)}
        rankings = np.array([[numbers[one] for one in shown] for shown in lists])
        relevant = np.array(
            [
                [is_answer(query, self.documents[one]) for one in shown]
                for query, shown in zip(self.queries, lists, strict=True)
            ]
        )
        attraction = attraction_of(relevant == answers, of_relevant=0.8 if answers else 0.5, of_others=0.05)
        plan = LogPlan(impressions=n, users=users, days=DAYS, randomised=0.15)
        rng = np.random.default_rng(seed)
        simulated = simulate(rankings, attraction, PositionBased.power(N_SHOWN, 1.0), plan, rng)
        return tables_of(simulated, self.queries, list(self.documents))

    def settings(self, **changes: Any) -> RetrainSettings:
        """Return settings of a short training, which keeps no preferences for repeated queries."""
        parts: dict[str, Any] = {"models": self.models, "train": FAST, "words_only": True, **changes}
        return RetrainSettings(**parts)

    def share_answered(self, model: RankingModel) -> float:
        """Return the share of queries whose first document answers."""
        return float(
            np.mean(
                [
                    is_answer(query, self.documents[shown[0]])
                    for query, shown in zip(self.queries, self.shown(model), strict=True)
                ]
            )
        )
