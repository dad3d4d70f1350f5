"""The steps of the demonstration: collect documents, train, index, search, click. The caller prints the results.

The orders of BM25 and of the model are compared on links that were not used for training.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reranker.clicks.log import ClickLog
from reranker.clicks.simulator import STEEPNESS, PositionBased, ResultPages, simulate, tables_of, week_of
from reranker.demo.corpus import DemoCorpus, DemoFiles, attracting, collect_corpus, prepare_folder, questions_of
from reranker.demo.library import PYTHON
from reranker.demo.orders import (
    WINDOW,
    Example,
    MeasuredOrders,
    TourAnswer,
    asked_pages,
    best_examples,
    measure,
    toured,
)
from reranker.engines import Engine, EngineSettings, open_engine
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.progress import Progress, Say, timed
from reranker.releases import read_control
from reranker.rerank import Reranker, RerankSettings, default_template
from reranker.rerank.calibration.alpha import Fit, fit_alpha, keep_in_release
from reranker.rerank.search import open_reranker
from reranker.text.view import TextView
from reranker.training import DocumentSource, Listener, TrainConfig, from_links, train_model

INDEX = "demo"
VIEW = TextView.parse(["title^1", "text^1"])
"""Equal field weights, which are not tuned. BM25 uses the same weights, with which it is best on this data."""
N_FITTED = 250
N_MEASURED = 500
N_EXAMPLES = 3
N_CHANGES = 3
"""Number of questions that are shown as changed."""
FIRST_QUERY = "read a configuration file"
WEEK = week_of(3_000, people=750)

Indexing = Callable[[Engine, str, DemoFiles, RankingModel, Progress], None]
"""Function that sends the documents with a model's vectors to an index and a local store."""


@dataclass(frozen=True)
class RelearnedOrders:
    """Result of a retraining on a week of clicks."""

    outcome: str
    reason: str
    before: Mapping[str, Sequence[str]]
    """Query → shown documents, best first, as the live model ranks them."""
    after: Mapping[str, Sequence[str]]
    """The same by the new model."""


Relearning = Callable[[Engine, DemoFiles, ClickLog, Mapping[str, Sequence[str]]], RelearnedOrders]
"""Function that retrains the model on a click log without a change of the index, and ranks the shown lists again."""


@dataclass(frozen=True)
class ChangedAnswer:
    """A question whose first answer the clicks have changed."""

    query: str
    before: str
    """Title of the first document before."""
    after: str
    """Title of the first document after the retraining."""


@dataclass(frozen=True)
class WeekOfClicks:
    """Result of a simulated week of clicks on held-out questions."""

    questions: int
    impressions: int
    clicks: int
    people: int
    outcome: str
    """``would promote`` or ``refused``."""
    reason: str
    before: float
    """nDCG@10 by the true attraction of the questions that were asked more than once, in the live order."""
    after: float
    """The same in the order of the new model."""
    changed: tuple[ChangedAnswer, ...]
    """The questions with another first answer whose nDCG@10 changed most."""


class Demo:
    """A run of the demonstration, step by step. The folder keeps documents, links and the model.

    Parameters
    ----------
    folder : path
        Folder for all files.
    index : callable
        Function that indexes the documents.
    dim : int
        Dimensions N of the model.
    seed : int
        Seed of all random choices.
    engine : str
        Spec of the engine for the index ``demo``; "" is the embedded one in the folder.
    connection : EngineSettings, optional
        Connection settings of the engine.
    """

    corpus: DemoCorpus
    """Documents and links; set by `collect`."""
    model: RankingModel
    """The trained model; set by `train`."""
    trained: str
    """Sentence that compares the model with its lexical score; set by `train`."""
    fit: Fit
    """Weight of the model, fitted to validation links; set by `search`."""
    measured: MeasuredOrders
    """The orders on test links; set by `search`."""
    tour: list[TourAnswer]
    """The answers to the questions of `TOUR`; set by `search`."""
    examples: list[Example]
    """Held-out questions that show the largest effects of reranking; set by `search`."""
    week: WeekOfClicks | None
    """Result of a week of clicks, set by `click`; None if another model is live, or no question finds what attracts."""

    def __init__(
        self, folder: Path, index: Indexing, dim: int, seed: int, engine: str, connection: EngineSettings | None
    ) -> None:
        self.places = prepare_folder(folder)
        self.engine_spec = engine or f"tantivy:{self.places.index}"
        self.seconds: dict[str, float] = {}
        self._index, self._dim, self._seed, self._connection = index, dim, seed, connection

    def collect(self) -> None:
        """Collect documents and links, and write them to the folder."""
        with timed(self.seconds, "collect"):
            self.corpus = collect_corpus()
            with self.places.documents.open("w", encoding="utf-8") as file:
                for document in self.corpus.documents.values():
                    # json.dumps escapes lone surrogates in a docstring, so that the JSON is valid.
                    file.write(json.dumps({"id": document.id, **document.source}) + "\n")
            for part, links in self.corpus.links.items():
                text = "".join(f"{source}\t{target}\n" for source, target in links)
                self.places.links(part).write_text(text, encoding="utf-8")

    def train(self, say: Say, progress: Progress) -> None:
        """Train on the training links with early stopping on the validation links, and save the model."""
        with timed(self.seconds, "train"):
            model, report = train_model(
                DocumentSource(self.places.documents, VIEW),
                from_links(self.corpus.links["train"]),
                TrainConfig(dim=self._dim, seed=self._seed),
                valid=from_links(self.corpus.links["valid"]),
                listener=Listener(say=say, progress=lambda _, done, total: progress(done, total)),
            )
            save_model(model, self.places.model)
        self.trained = report.form.sentence
        self.model = load_model(self.places.model)

    def index(self, progress: Progress) -> None:
        """Index the documents with the model's vectors."""
        with timed(self.seconds, "index"), closing(open_engine(self.engine_spec, self._connection)) as engine:
            self._index(engine, INDEX, self.places, self.model, progress)

    def search(self, progress: Progress) -> None:
        """Fit the model's weight on validation links, measure all orders on test links, and choose examples."""
        with timed(self.seconds, "search"), closing(open_engine(self.engine_spec, self._connection)) as engine:
            topics = questions_of(self.corpus, "valid", ("train",), N_FITTED, self._seed).values()
            self.fit = fit_alpha(self._reranker(engine), list(topics), "AP", seed=self._seed, progress=progress)
            body = default_template(self.model.encoder.view)
            keep_in_release(engine, INDEX, self.model.model_id, body, WINDOW, self.fit)
            reranker = self._reranker(engine)
            questions = questions_of(self.corpus, "test", ("train", "valid"), N_MEASURED, self._seed)
            self.measured = measure(reranker, questions, self.fit.alpha, progress, self._by_impacts(engine))
            self.tour = toured(self._reranker(engine, 0.0), reranker)
            self.examples = best_examples(self.measured, reranker, N_EXAMPLES)

    def click(self, relearn: Relearning) -> None:
        """Simulate a week of clicks on held-out questions, and learn from them without a change of the index.

        A document attracts if the document that the question comes from links to it, or is it.
        """
        with timed(self.seconds, "click"), closing(open_engine(self.engine_spec, self._connection)) as engine:
            # An index that holds another demonstration, too, may have its model live.
            is_live = read_control(engine, INDEX).live == self.model.model_id
            grades = attracting(self.corpus, self.measured.questions)
            pages = asked_pages(self._reranker(engine), grades) if is_live else {}
            self.week = self._week(engine, relearn, pages, grades) if pages else None

    def _week(
        self,
        engine: Engine,
        relearn: Relearning,
        pages: Mapping[str, Sequence[str]],
        grades: Mapping[str, Mapping[str, float]],
    ) -> WeekOfClicks:
        shown = ResultPages.of(pages)
        users = PositionBased.power(shown.rankings.shape[1], STEEPNESS)
        rng = np.random.default_rng(self._seed)
        week = simulate(shown.rankings, shown.attraction_of_grades(grades), users, WEEK, rng)
        log = ClickLog(self.places.clicks, create=True)
        log.add([tables_of(week, shown.queries, shown.documents)], "simulated")
        learned = relearn(engine, self.places, log, pages)
        asked = np.bincount(week.query, minlength=len(pages))
        orders = [ResultPages.of(order) for order in (learned.before, learned.after)]
        attractions = [order.attraction_of_grades(grades) for order in orders]
        each = [order.ndcg_of_each(values) for order, values in zip(orders, attractions, strict=True)]
        before, after = (
            order.true_ndcg(values, np.where(asked > 1, asked, 0))
            for order, values in zip(orders, attractions, strict=True)
        )
        changed = [
            ChangedAnswer(query, *(self._title(order[query][0]) for order in (learned.before, learned.after)))
            for query in (shown.queries[row] for row in np.argsort(-np.abs(each[1] - each[0]), kind="stable").tolist())
            if learned.before[query][0] != learned.after[query][0]
        ]
        return WeekOfClicks(
            questions=len(pages),
            impressions=len(week),
            clicks=int(week.clicked.sum()),
            people=len(np.unique(week.user)),
            outcome=learned.outcome,
            reason=learned.reason,
            before=before,
            after=after,
            changed=tuple(changed[:N_CHANGES]),
        )

    def _title(self, document: str) -> str:
        return str(self.corpus.documents[document].source["title"])

    def to_json(self) -> dict[str, Any]:
        """Return the results of all steps as JSON values."""
        return {
            "python": PYTHON,
            "documents": len(self.corpus.documents),
            "links": {part: len(links) for part, links in self.corpus.links.items()},
            "trained": self.trained,
            "model_id": self.model.model_id,
            "alpha": self.fit.alpha,
            "window": WINDOW,
            "perfect_order_of_the_window": self.fit.ceiling,
            **self.measured.to_json(),
            "tour": [asdict(answer) for answer in self.tour],
            "examples": [asdict(example) for example in self.examples],
            "week": None if self.week is None else asdict(self.week),
            "commands": self.commands(),
            "seconds": {step: round(value, 1) for step, value in self.seconds.items()},
        }

    def commands(self) -> list[str]:
        """Return shell commands to try next: a search, the training, and the retraining on the simulated clicks."""
        places, query = self.places, self.examples[0].query if self.examples else FIRST_QUERY
        search = ["ssi", "search", query, "--engine", self.engine_spec, "--index", INDEX, "--model", str(places.model)]
        train = [
            "ssi",
            "train",
            "--docs",
            str(places.documents),
            "--links",
            str(places.links("train")),
            "--valid",
            str(places.links("valid")),
            "--fields",
            "title^1,text^1",
            "--model",
            str(places.folder / "my-model"),
        ]
        retrain = ["ssi", "retrain", "--engine", self.engine_spec, "--index", INDEX, "--models", str(places.folder)]
        relearned = [] if self.week is None else [[*retrain, "--clicks", str(places.clicks), "--dry-run"]]
        return [shlex.join(command) for command in ([*search, "--explain"], train, *relearned)]

    def _by_impacts(self, engine: Engine) -> Reranker | None:
        """Return the search by impacts; None if the engine cannot store them."""
        if not engine.capabilities().sparse_terms:
            return None
        settings = RerankSettings(window=WINDOW, deadline_ms=None)
        return open_reranker(engine, INDEX, self.model, self.places.model, route="impacts", settings=settings)

    def _reranker(self, engine: Engine, alpha: float | None = None) -> Reranker:
        settings = RerankSettings(window=WINDOW, deadline_ms=None, alpha=alpha)
        return open_reranker(engine, INDEX, self.model, self.places.model, route="beside", settings=settings)
