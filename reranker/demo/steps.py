"""The steps of the demonstration: collect, train, index, search, report; what is shown is left to the caller.

BM25's order is measured beside the reranked one on links that nobody has trained on, and the questions whose order
changed most are explained by the pairs of words that moved a document up.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reranker.artifacts import RankingModel, load_model, save_model
from reranker.demo.corpus import PYTHON, DemoCorpus, Places, collect_corpus, prepare_folder, write_corpus
from reranker.engines import Engine, EngineSettings, open_engine
from reranker.evaluation import PairedTest, evaluate_run, paired_test, standard_error
from reranker.progress import Progress, Say
from reranker.rerank import Reranker, RerankSettings, body_hash, default_template
from reranker.rerank.calibrate import Fit, Topic, fit_alpha, keep_in_release, rank_topics
from reranker.rerank.reranker import open_reranker
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
MEASURES = ("AP", "nDCG@10", "RR")
MAX_QUERY_WORDS = 12
N_SHOWN = 3
N_PAIRS = 4
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")

Indexing = Callable[[Engine, str, Places, RankingModel, Progress], None]
"""Sends the documents with a model's vectors to an index and its local store."""


@dataclass(frozen=True)
class Question:
    """A query made of a document's first sentence, and the documents that it should find.

    ``source`` is the document's id.
    """

    source: str
    topic: Topic


@dataclass(frozen=True)
class Measured:
    """Values of both orders, ``bm25`` and ``reranked``, on the same questions.

    ``rankings`` are ids by system and number of the question (text), ``values`` (n,) float64 by system and measure.
    """

    questions: tuple[Question, ...]
    rankings: Mapping[str, Mapping[str, Sequence[str]]]
    values: Mapping[str, Mapping[str, np.ndarray]]

    def test(self, measure: str) -> PairedTest:
        """Return the paired test of reranked minus BM25."""
        return paired_test(self.values["reranked"][measure], self.values["bm25"][measure])

    def ranks(self, number: int, document: str) -> tuple[int, int]:
        """Return the place of a document in BM25's order and in the reranked one, from 1."""
        before, after = (list(self.rankings[system][str(number)]) for system in ("bm25", "reranked"))
        return before.index(document) + 1, after.index(document) + 1

    def to_json(self) -> dict[str, Any]:
        """Return means, standard errors and tests."""
        systems = {
            system: {name: {"mean": float(v.mean()), "standard_error": standard_error(v)} for name, v in values.items()}
            for system, values in self.values.items()
        }
        tests = {
            name: {"difference": test.difference, "standard_error": test.standard_error, "p_t_test": test.p_t_test}
            for name, test in ((name, self.test(name)) for name in MEASURES)
        }
        return {"queries": len(self.questions), "systems": systems, "tests": tests}


@dataclass(frozen=True)
class WordPair:
    """What a word of the query and a word of the document add to the score."""

    query_word: str
    document_word: str
    adds: float


@dataclass(frozen=True)
class Example:
    """One question before and after.

    ``found`` is a document that the one asking links to, which training never saw together with it; ``pairs`` are of
    different words, the most that each adds to its score.
    """

    query: str
    asked_by: str
    found: str
    rank_before: int
    rank_after: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    pairs: tuple[WordPair, ...]


class Demo:
    """One run of the demonstration, step by step, in a folder that keeps documents, links and model.

    ``dim`` is N, ``seed`` that of all random choices; ``engine`` gets the index ``demo``, and is reached by
    ``connection``; empty: the embedded one, in the folder.
    """

    corpus: DemoCorpus
    """Documents and links, after `collect`."""
    model: RankingModel
    trained: str
    """After `train`: the model, and training's own sentence: better or worse than the lexical baselines, by how much"""
    fit: Fit
    measured: Measured
    examples: list[Example]
    """After `search`: the weight of the model from validation links, both orders on test links, and some of these."""

    def __init__(
        self, folder: Path, index: Indexing, dim: int, seed: int, engine: str, connection: EngineSettings | None
    ) -> None:
        self.places = prepare_folder(folder)
        self.engine_spec = engine or f"tantivy:{self.places.index}"
        self.seconds: dict[str, float] = {}
        self._index, self._dim, self._seed, self._connection = index, dim, seed, connection

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - started

    def collect(self) -> None:
        """Collect documents and links, and write them into the folder."""
        with self._timed("collect"):
            self.corpus = collect_corpus()
            write_corpus(self.corpus, self.places)

    def train(self, say: Say, progress: Progress) -> None:
        """Train on the training links, stop by the validation links, save the model."""
        with self._timed("train"):
            model, report = train_model(
                Corpus(self.places.documents, VIEW),
                from_links(self.corpus.links["train"]),
                TrainConfig(dim=self._dim, seed=self._seed),
                valid=from_links(self.corpus.links["valid"]),
                listener=Listener(say=say, progress=lambda _, done, total: progress(done, total)),
            )
            save_model(model, self.places.model)
        verdict = (
            f"MAP {report.valid_map:.4f} on the validation links, {report.lexical_map:.4f} without what was learned"
        )
        self.trained = report.comparison.sentence() if report.comparison else verdict
        self.model = load_model(self.places.model)

    def index(self, progress: Progress) -> None:
        """Index the documents with the model's vectors."""
        with self._timed("index"), closing(open_engine(self.engine_spec, self._connection)) as engine:
            self._index(engine, INDEX, self.places, self.model, progress)

    def search(self, progress: Progress) -> None:
        """Fit the model's weight on validation links, measure both orders on test links, and look for examples."""
        with self._timed("search"), closing(open_engine(self.engine_spec, self._connection)) as engine:
            topics = [
                question.topic for question in questions_of(self.corpus, "valid", ("train",), N_FITTED, self._seed)
            ]
            self.fit = fit_alpha(self._reranker(engine), topics, "AP", seed=self._seed, progress=progress)
            body = body_hash(default_template(self.model.encoder.view))
            keep_in_release(engine, INDEX, self.model.model_id, body, WINDOW, self.fit)
            reranker = self._reranker(engine)
            questions = questions_of(self.corpus, "test", ("train", "valid"), N_MEASURED, self._seed)
            self.measured = measure(reranker, questions, self.fit.alpha, progress)
            self.examples = examples_of(self.measured, reranker, N_EXAMPLES)

    def to_json(self) -> dict[str, Any]:
        """Return what the steps found as JSON values."""
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
            "examples": [asdict(example) for example in self.examples],
            "commands": self.commands(),
            "seconds": {step: round(value, 1) for step, value in self.seconds.items()},
        }

    def commands(self) -> list[str]:
        """Return what to type next, ready for a shell: a search, and the training as a command of its own."""
        places, query = self.places, self.examples[0].query if self.examples else FIRST_QUERY
        search = ["ssi", "search", query, "--engine", self.engine_spec, "--index", INDEX, "--model", str(places.model)]
        train = [
            "ssi", "train", "--docs", str(places.documents), "--links", str(places.links("train")),
            "--valid", str(places.links("valid")), "--fields", "title^1,text^1",
            "--model", str(places.folder / "my-model"),
        ]  # fmt: skip
        return [shlex.join([*search, "--explain"]), shlex.join(train)]

    def _reranker(self, engine: Engine) -> Reranker:
        """Return a reranker with the calibration kept so far."""
        settings = RerankSettings(window=WINDOW, deadline_ms=None)
        return open_reranker(engine, INDEX, self.model, self.places.model, route="beside", settings=settings)


def questions_of(corpus: DemoCorpus, part: str, known: Iterable[str], limit: int, seed: int) -> list[Question]:
    """Return one question a linking document of a part; its own id and its known links are left out of the ranking.

    The links of ``part`` are to be found, those of the parts ``known`` do not take part; at most ``limit`` are drawn.
    """
    targets: dict[str, dict[str, float]] = {}
    for source, target in corpus.links[part]:
        targets.setdefault(source, {})[target] = 1.0
    excluded: dict[str, set[str]] = {source: {source} for source in targets}
    for other in known:
        for source, target in corpus.links[other]:
            if source in excluded:
                excluded[source].add(target)
    sources = sorted(targets)
    if len(sources) > limit:
        chosen = np.sort(np.random.default_rng(seed).choice(len(sources), size=limit, replace=False))
        sources = [sources[place] for place in chosen.tolist()]
    queries = {source: first_sentence(str(corpus.documents[source].source["text"])) for source in sources}
    return [Question(name, Topic(queries[name], targets[name], frozenset(excluded[name]))) for name in sources]


def first_sentence(text: str) -> str:
    """Return the first words of the first sentence, at most `MAX_QUERY_WORDS`, on one line."""
    paragraph = text.strip().partition("\n\n")[0]
    sentence = _SENTENCE_END.split(" ".join(paragraph.split()), maxsplit=1)[0]
    return " ".join(sentence.split()[:MAX_QUERY_WORDS])


def measure(reranker: Reranker, questions: Sequence[Question], alpha: float, progress: Progress) -> Measured:
    """Return both orders of the engine's window for each question, and their values.

    ``alpha`` is the weight of the model, one of `reranker.rerank.calibrate.ALPHAS`.
    """
    by_alpha = rank_topics(reranker, [question.topic for question in questions], progress=progress).by_alpha
    rankings = {"bm25": by_alpha[0.0], "reranked": by_alpha[alpha]}
    qrels = {str(number): dict(question.topic.grades) for number, question in enumerate(questions)}
    values = {
        system: {
            name: np.array([by_query[str(number)] for number in range(len(questions))])
            for name, by_query in evaluate_run(qrels, run, MEASURES).items()
        }
        for system, run in rankings.items()
    }
    return Measured(tuple(questions), rankings, values)


def examples_of(measured: Measured, reranker: Reranker, n: int) -> list[Example]:
    """Return the ``n`` questions whose linked document rose most among the first ten, each of another module."""
    rises: list[tuple[float, int, str]] = []  # (minus the gain in 1 / rank, question number, document)
    for number, question in enumerate(measured.questions):
        for document in question.topic.grades:
            if document in measured.rankings["reranked"][str(number)]:
                before, after = measured.ranks(number, document)
                rises.append((1 / before - 1 / after, number, document))
    examples: list[Example] = []
    seen: set[str] = set()
    for rise, number, document in sorted(rises):
        modules = {measured.questions[number].source.partition(".")[0], document.partition(".")[0]}
        if rise >= 0 or modules & seen:
            continue
        example = _example(measured, number, document, reranker)
        if example.pairs:
            seen |= modules
            examples.append(example)
        if len(examples) == n:
            break
    return examples


def _example(measured: Measured, number: int, document: str, reranker: Reranker) -> Example:
    question = measured.questions[number]
    page = reranker.search(question.topic.query, size=reranker.settings.window, explain=True)
    rows = next((row.contributions for row in page.explanations if row.id == document), ())
    pairs = [WordPair(row.query_word, row.document_word, row.value) for row in rows if row.kind == "learned"]
    helpful = [pair for pair in pairs if pair.adds > 0 and pair.query_word != pair.document_word]
    first = {system: tuple(ranking[str(number)][:N_SHOWN]) for system, ranking in measured.rankings.items()}
    return Example(
        question.topic.query, question.source, document, *measured.ranks(number, document), first["bm25"],
        first["reranked"], tuple(helpful[:N_PAIRS]),
    )  # fmt: skip
