"""The steps of the demonstration, one function each; what is shown is left to the caller."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reranker.artifacts import RankingModel, load_model, save_model
from reranker.demo.corpus import PARTS, DemoCorpus, Places, collect_corpus, prepare_folder, python_name, write_corpus
from reranker.demo.examples import Example, examples_of
from reranker.demo.measuring import Measured, measure, questions_of
from reranker.engines import Engine, EngineSettings, open_engine
from reranker.rerank import Reranker, RerankSettings, body_hash, default_template
from reranker.rerank.fitting import Fit, fit_alpha, keep_in_release
from reranker.rerank.opening import open_reranker
from reranker.text.view import TextView
from reranker.training import Corpus, Listener, TrainConfig, from_links, train_model

INDEX = "demo"
VIEW = TextView.parse(["title^1", "text^1"])
"""Equal weights, stated: BM25 searches with the same, and is at its best with them here."""
WINDOW = 200
N_FITTED = 250
N_MEASURED = 500
N_EXAMPLES = 3
FIRST_QUERY = "read a configuration file"

Update = Callable[[int, int | None], None]
Indexing = Callable[[Engine, str, Places, RankingModel, Update], int]
"""Sends the documents with a model's vectors to an index and its local store, and returns their number."""


@dataclass(frozen=True)
class DemoSettings:
    """What `ssi demo` lets the user choose.

    Parameters
    ----------
    folder : Path
        Where documents, links and model are kept.
    dim : int
        N.
    seed : int
        Of all random choices.
    engine : str
        Engine that gets the index ``demo``; empty: the embedded one, in the folder.
    connection : EngineSettings or None
        How to reach it.
    """

    folder: Path = Path(".demo")
    dim: int = 100
    seed: int = 0
    engine: str = ""
    connection: EngineSettings | None = None


@dataclass
class DemoReport:
    """What the demonstration found.

    Parameters
    ----------
    python : str
    documents : int
    links : dict of part to number
    trained : str
        Training's own sentence: better or worse than the lexical baselines, by how much.
    model_id : str
    fit : Fit
        The weight of the model beside BM25, from validation links.
    measured : Measured
        On test links.
    examples : list of Example
    commands : list of str
        What to type next.
    seconds : dict of step to seconds
    """

    python: str
    documents: int
    links: dict[str, int]
    trained: str
    model_id: str
    fit: Fit
    measured: Measured
    examples: list[Example]
    commands: list[str]
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "python": self.python,
            "documents": self.documents,
            "links": self.links,
            "trained": self.trained,
            "model_id": self.model_id,
            "alpha": self.fit.alpha,
            "window": WINDOW,
            "perfect_order_of_the_window": self.fit.ceiling,
            **self.measured.to_json(),
            "examples": [example.to_json() for example in self.examples],
            "commands": self.commands,
            "seconds": {step: round(value, 1) for step, value in self.seconds.items()},
        }


class Demo:
    """One run of the demonstration, step by step.

    Parameters
    ----------
    settings : DemoSettings
    index : callable
        See `Indexing`.
    library : Path or None
        Folder of source files; None for the running Python's standard library.
    """

    def __init__(self, settings: DemoSettings, index: Indexing, library: Path | None = None) -> None:
        self.settings, self._index, self._library = settings, index, library
        self.seconds: dict[str, float] = {}
        self.places = prepare_folder(settings.folder)

    @property
    def engine_spec(self) -> str:
        """The engine of the demonstration."""
        return self.settings.engine or f"tantivy:{self.places.index}"

    def _open(self) -> Engine:
        return open_engine(self.engine_spec, self.settings.connection)

    def timed(self, name: str, started: float) -> None:
        """Note how long a step took."""
        self.seconds[name] = time.monotonic() - started

    def collect(self) -> DemoCorpus:
        """Collect documents and links, and write them into the folder."""
        started = time.monotonic()
        corpus = collect_corpus(self._library)
        write_corpus(corpus, self.places)
        self.timed("collect", started)
        return corpus

    def train(self, corpus: DemoCorpus, say: Callable[[str], None], update: Update) -> tuple[RankingModel, str]:
        """Train on the training links, stop by the validation links, save the model; return it with its verdict."""
        started = time.monotonic()
        model, report = train_model(
            Corpus(self.places.documents, VIEW),
            from_links(corpus.links["train"]),
            TrainConfig(dim=self.settings.dim, seed=self.settings.seed),
            valid=from_links(corpus.links["valid"]),
            listener=Listener(say=say, progress=lambda _, done, total: update(done, total)),
        )
        save_model(model, self.places.model)
        self.timed("train", started)
        verdict = (
            f"MAP {report.valid_map:.4f} on the validation links, {report.lexical_map:.4f} without what was learned"
        )
        return load_model(self.places.model), report.comparison.sentence() if report.comparison else verdict

    def index(self, model: RankingModel, update: Update) -> int:
        """Index the documents with the model's vectors; return their number."""
        started = time.monotonic()
        with closing(self._open()) as engine:
            n_documents = self._index(engine, INDEX, self.places, model, update)
        self.timed("index", started)
        return n_documents

    def search(self, corpus: DemoCorpus, model: RankingModel, update: Update) -> tuple[Fit, Measured, list[Example]]:
        """Fit the model's weight on validation links, measure both orders on test links, and look for examples."""
        started = time.monotonic()
        seed = self.settings.seed
        with closing(self._open()) as engine:
            fit = self._calibrate(engine, corpus, model, update)
            reranker = self._reranker(engine, model)
            questions = questions_of(corpus, "test", ("train", "valid"), N_MEASURED, seed)
            measured = measure(reranker, questions, fit.alpha, update)
            examples = examples_of(measured, reranker, N_EXAMPLES)
        self.timed("search", started)
        return fit, measured, examples

    def report(
        self, corpus: DemoCorpus, model: RankingModel, trained: str, found: tuple[Fit, Measured, list[Example]]
    ) -> DemoReport:
        """Return everything that the steps found."""
        fit, measured, examples = found
        links = {part: len(corpus.links[part]) for part in PARTS}
        query = examples[0].query if examples else FIRST_QUERY
        return DemoReport(
            python_name(), len(corpus.documents), links, trained, model.model_id, fit, measured, examples,
            self.commands(query), self.seconds,
        )  # fmt: skip

    def commands(self, query: str) -> list[str]:
        """Return what to type next, ready for a shell: a search, and the training as a command of its own."""
        places = self.places
        search = ["ssi", "search", query, "--engine", self.engine_spec, "--index", INDEX, "--model", str(places.model)]
        train = [
            "ssi", "train", "--docs", str(places.documents), "--links", str(places.links("train")),
            "--valid", str(places.links("valid")), "--fields", "title^1,text^1",
            "--model", str(places.folder / "my-model"),
        ]  # fmt: skip
        return [shlex.join([*search, "--explain"]), shlex.join(train)]

    def _calibrate(self, engine: Engine, corpus: DemoCorpus, model: RankingModel, update: Update) -> Fit:
        """Fit alpha on validation links and keep it in the model's release."""
        questions = questions_of(corpus, "valid", ("train",), N_FITTED, self.settings.seed)
        topics = [question.topic for question in questions]
        fit = fit_alpha(self._reranker(engine, model), topics, "AP", seed=self.settings.seed, progress=update)
        keep_in_release(engine, INDEX, model.model_id, body_hash(default_template(model.encoder.view)), WINDOW, fit)
        return fit

    def _reranker(self, engine: Engine, model: RankingModel) -> Reranker:
        """Return a reranker with the calibration kept so far."""
        settings = RerankSettings(window=WINDOW, deadline_ms=None)
        return open_reranker(engine, INDEX, model, self.places.model, route="beside", settings=settings)
