"""The rivals of the study in `generalisation`, each tuned on validation by the grid stated beside it.

- ``joint-bm25``: BM25 over title and text; field weights, k1, b, query tf and analyzer are searched jointly.
- ``bm25+queries``: the same with a third field: the training queries that a document is relevant to, or the titles or
  whole texts of the pages that link to it.
- ``lightfm``: LightFM (Kula 2015), hybrid: words of queries and documents are features; alone and ``+bm25``, the sum
  of both with one weight.
- ``lambdamart``: lightgbm on lexical features of the first `CANDIDATES` documents of ``joint-bm25``.
- ``minilm``: all-MiniLM-L6-v2 as it is published, 256 tokens; alone and ``+bm25``.

Besides the project they need::

    pip install lightgbm lightfm-next onnx onnxruntime tokenizers
    pip install bm25s  # only for `Rivals.training_seconds`

(lightfm itself, 1.17, cannot be built for Python 3.11 and later; lightfm-next is the same code kept up), and the
weights that `minilm` names.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from generalisation_data import Corpus, Grades, together

from reranker.evaluation import BlockScorer, InnerProducts, RankingTask, draw_tuples, evaluate, top_documents
from reranker.text.analyzers import make_analyzer, parse_analyzer
from reranker.text.rows import select_columns, unit_rows, with_data
from reranker.text.tfidf import count_rows
from reranker.text.vocabulary import VocabularyBuilder

Floats = npt.NDArray[np.float32]
Point = Mapping[str, Any]
TUNING_QUERIES, TUNING_DEPTH = 400, 200
ANALYZERS = ("unicode", "unicode,stem=english", "unicode,stem=english,stop=english")
FIELD_WEIGHTS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
BM25_GRID: Mapping[str, Sequence[Any]] = {
    "title": FIELD_WEIGHTS,
    "k1": (0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0),
    "b": (0.0, 0.2, 0.4, 0.6, 0.75, 0.9, 1.0),
    "query tf": ("raw", "log", "once"),
    "analyzer": ANALYZERS,
}
PAGE_GRID: Mapping[str, Sequence[Any]] = {"title asks": (0.0, 0.25, 0.5, 1.0, 2.0)}
MEMORY_WEIGHTS = FIELD_WEIGHTS[1:]
RANDOM_POINTS, PASSES = 24, 2
"""The joint search: random points of the grid, then one name at a time from the best of them, at most so often."""
LIGHTFM_GRID = {"identity": (False, True), "epochs": (5, 10, 20)}
LIGHTFM_WIDTH = 50
LAMBDAMART_GRID = {"num_leaves": (15, 31), "learning_rate": (0.05, 0.1), "trees": (50, 100, 200, 400)}
CANDIDATES, LAMBDAMART_QUERIES = 200, 1_500
MIXTURES = tuple(step / 20 for step in range(21))
_BELOW = 100.0


class Side(NamedTuple):
    """What a rival learns from, and what it ranks then."""

    learn: Grades
    task: RankingTask


class Ranker(NamedTuple):
    """A tuned rival: what it was set to, and its scores on a side."""

    settings: Point
    scorer: Callable[[Side], BlockScorer]


class _Scores:
    """Scores computed by a function of the first and the last row."""

    def __init__(self, shape: tuple[int, int], block: Callable[[int, int], Floats]) -> None:
        self.shape = shape
        self.block = block


@dataclass(frozen=True)
class _Counted:
    """Word counts by one analyzer: a matrix a field of documents and of queries, and of memory texts, by kind."""

    documents: list[sp.csr_matrix]
    queries: list[sp.csr_matrix]
    remembered: Mapping[str, sp.csr_matrix]


def _library(name: str, package: str) -> Any:
    """Import a library, or say what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(f"this rival needs {name}: pip install {package}, or leave it out of --peers") from error


def search(value_of: Callable[[Point], float], grid: Mapping[str, Sequence[Any]], n_random: int) -> tuple[Point, float]:
    """Return the best point of a grid that a joint search finds, and its value; of equals the first."""
    rng = np.random.default_rng(0)
    values: dict[tuple[Any, ...], float] = {}

    def value(point: Point) -> float:
        key = tuple(point[name] for name in grid)
        if key not in values:
            values[key] = value_of(point)
        return values[key]

    points = [{name: legal[int(rng.integers(len(legal)))] for name, legal in grid.items()} for _ in range(n_random)]
    best: Point = max(points, key=value)
    for _ in range(PASSES):
        before = best
        for name, legal in grid.items():
            best = max([best, *({**best, name: one} for one in legal)], key=value)
        if best == before:
            break
    return best, value(best)


class Rivals:
    """All rivals on one kind of query of one split; what several share is done once.

    ``minilm`` is the folder of its weights, ``cache_folder`` keeps its vectors of the corpus's documents.
    """

    def __init__(
        self, corpus: Corpus, split: str, kind: str, measure: str, small: bool, minilm: Path | None, cache_folder: Path
    ) -> None:
        self.corpus, self.measure, self.small = corpus, measure, small
        self._minilm, self._cache_folder = minilm, cache_folder
        of = corpus.splits[split]
        known = of.stop if split == "links" else {}
        valid = corpus.task(of.valid, of.fit, of.valid_pool)
        chosen, _, _ = valid.sample(np.random.default_rng(0), TUNING_QUERIES, len(of.valid_pool))
        self.tuning = Side(of.fit, chosen)
        self.testing = Side(of.learn, corpus.task(of.test, together(of.learn, known), of.pool))
        self.place = {document: row for row, document in enumerate(corpus.documents)}
        ids = dict.fromkeys([*of.learn, *of.fit, *self.tuning.task.query_ids, *self.testing.task.query_ids])
        self.asked = corpus.asked_with(kind, ids)
        self.query_place = {query: row for row, query in enumerate(self.asked)}
        self._fits: dict[tuple[Any, ...], Any] = {}

    def values(self, name: str) -> tuple[Point, Mapping[str, npt.NDArray[np.float64]]]:
        """Return what a rival was set to, and its measures of each test query in the task's order."""
        ranker = self.ranker(name)
        task = self.testing.task
        no_tuples = draw_tuples(task, np.random.default_rng(0), 0)
        return ranker.settings, evaluate(task, ranker.scorer(self.testing), no_tuples, ("AP", "nDCG@10")).values

    def ranker(self, name: str) -> Ranker:
        """Return a rival, tuned.

        Raises
        ------
        SystemExit
            If it is not one of `PEERS`, or what it needs is missing.
        """
        base, plus, _ = name.partition("+bm25")
        if name not in PEERS:
            raise SystemExit(f"rival {name!r} is not known: choose of {', '.join(PEERS)}")
        made: Ranker = getattr(self, PEERS[base])
        return self._mixed(made) if plus else made

    def _value(self, scorer: BlockScorer) -> float:
        """Return what tuning makes as big as it can."""
        task = self.tuning.task
        no_tuples = draw_tuples(task, np.random.default_rng(0), 0)
        return evaluate(task, scorer, no_tuples, (self.measure,), depth=TUNING_DEPTH).mean(self.measure)

    def _rows(self, side: Side) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row numbers of a task's queries and documents."""
        task = side.task
        return (
            np.array([self.query_place[query] for query in task.query_ids], np.int64),
            np.array([self.place[document] for document in task.document_ids], np.int64),
        )

    # Words

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return what was made under a key, made now if it was not."""
        if key not in self._fits:
            self._fits[key] = make()
        return self._fits[key]

    def _counted(self, analyzer: str) -> _Counted:
        """Return everything counted by an analyzer."""
        counted: _Counted = self._once(("counted", analyzer), lambda: self._count(analyzer))
        return counted

    def _count(self, analyzer: str) -> _Counted:
        analyze = make_analyzer(parse_analyzer(analyzer)).tokens
        fields = {f"d{n}": analyze([texts[n] for texts in self.corpus.documents.values()]) for n in range(2)}
        width = len(next(iter(self.asked.values())))
        fields |= {f"q{n}": analyze([texts[n] for texts in self.asked.values()]) for n in range(width)}
        if self.corpus.linked:
            pages = [self.corpus.documents[query] for query in self.asked]
            fields |= {"titles": analyze([title for title, _ in pages]), "texts": analyze([" ".join(p) for p in pages])}
        else:
            fields["queries"] = fields["q0"]
        builder = VocabularyBuilder()
        for tokens in fields.values():
            builder.add(tokens)
        vocabulary = builder.build()
        columns = np.arange(len(vocabulary), dtype=np.int64)
        counts = {name: select_columns(count_rows(vocabulary, tokens), columns) for name, tokens in fields.items()}
        kinds = [name for name in counts if name in ("titles", "texts", "queries")]
        remembered = {name: counts[name] for name in kinds}
        return _Counted([counts["d0"], counts["d1"]], [counts[f"q{n}"] for n in range(width)], remembered)

    def _memory(self, analyzer: str, kind: str, learn: Grades) -> sp.csr_matrix:
        """Return the counts of what each document was relevant to."""
        relevant = _matrix(learn, self.query_place, self.place)
        return sp.csr_matrix(relevant.T @ self._counted(analyzer).remembered[kind])

    # BM25

    def _bm25_scorer(self, point: Point, side: Side) -> InnerProducts:
        """Return BM25 over the weighted sum of the fields, as BM25F with one saturation."""
        counted = self._counted(point["analyzer"])
        fields, weights = [*counted.documents], [point["title"], 1.0]
        if "memory" in point:
            analyzer, kind = point["analyzer"], point["memory"]
            key = ("memory", analyzer, kind, id(side.learn))
            fields.append(self._once(key, lambda: self._memory(analyzer, kind, side.learn)))
            weights.append(point["memory weight"])
        total = _sum(fields, weights)
        rows = _bm25(total, point["k1"], point["b"], _idf(total))
        asked = _sum(counted.queries, [point["title asks"], 1.0] if len(counted.queries) == 2 else [1.0])
        query_tf = {"raw": asked.data, "log": np.log2(1 + asked.data), "once": np.ones_like(asked.data)}
        asked = with_data(asked, query_tf[point["query tf"]].astype(np.float32))
        queries, documents = self._rows(side)
        return InnerProducts(query_rows=asked[queries], document_rows=rows[documents])

    def _tuned_bm25(self, more: Mapping[str, Sequence[Any]]) -> Ranker:
        grid = {**BM25_GRID, **more}
        if len(next(iter(self.asked.values()))) == 2:
            grid |= PAGE_GRID
        best, value = search(
            lambda point: self._value(self._bm25_scorer(point, self.tuning)), grid, 6 if self.small else RANDOM_POINTS
        )
        return Ranker({**best, "tuned": value}, lambda side: self._bm25_scorer(best, side))

    @cached_property
    def bm25(self) -> Ranker:
        """BM25 over title and text."""
        return self._tuned_bm25({})

    @cached_property
    def bm25_memory(self) -> Ranker:
        """BM25 with the field of what documents were relevant to."""
        kinds = ("titles", "texts") if self.corpus.linked else ("queries",)
        return self._tuned_bm25({"memory": kinds, "memory weight": MEMORY_WEIGHTS})

    def _mixed(self, other: Ranker) -> Ranker:
        """Return w times a ranker and 1 - w times BM25, both over the deviation of the query's scores."""

        def blend(side: Side, weight: float) -> BlockScorer:
            first, second = other.scorer(side), self.bm25.scorer(side)
            return _Scores(
                first.shape,
                lambda i, j: weight * _scaled(first.block(i, j)) + (1 - weight) * _scaled(second.block(i, j)),
            )

        n, m = len(self.tuning.task.query_ids), len(self.tuning.task.document_ids)
        parts = [_scaled(ranker.scorer(self.tuning).block(0, n)) for ranker in (other, self.bm25)]

        def value(weight: float) -> float:
            mixed: Floats = (weight * parts[0] + (1 - weight) * parts[1]).astype(np.float32)
            return self._value(_Scores((n, m), lambda i, j: mixed[i:j]))

        tried = {weight: value(weight) for weight in MIXTURES}
        best = max(tried, key=lambda weight: tried[weight])
        return Ranker({**other.settings, "weight": best, "tuned": tried[best]}, lambda side: blend(side, best))

    # LightFM

    def _features(self, identity: bool) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return tf-idf rows of queries and documents; with ``identity`` a feature of its own for each beside them."""
        counted = self._counted("unicode")
        documents = _sum(counted.documents, [1.0, 1.0])
        idf = np.log(len(self.place) / np.maximum(np.bincount(documents.indices, minlength=documents.shape[1]), 1))
        rows = [
            unit_rows(with_data(counts, ((1 + np.log(counts.data)) * idf[counts.indices]).astype(np.float32)))
            for counts in (_sum(counted.queries, [1.0] * len(counted.queries)), documents)
        ]
        if identity:
            rows = [sp.csr_matrix(sp.hstack([part, sp.identity(part.shape[0], np.float32)])) for part in rows]
        return rows[0], rows[1]

    def _lightfm_vectors(
        self, learn: Grades, identity: bool, epochs: Sequence[int]
    ) -> dict[int, tuple[Floats, Floats]]:
        """Return (queries, documents) after each number of epochs, the bias of a document as its last column."""
        queries, documents = self._features(identity)
        matrix = sp.coo_matrix(_matrix(learn, self.query_place, self.place))
        model = _library("lightfm", "lightfm-next").LightFM(LIGHTFM_WIDTH, loss="warp", random_state=0)
        kept, done = {}, 0
        for stop in sorted(epochs):
            model.fit_partial(matrix, queries, documents, epochs=stop - done, num_threads=1)
            done = stop
            _, asked = model.get_user_representations(queries)
            bias, offered = model.get_item_representations(documents)
            asked, offered = np.hstack([asked, np.ones((len(asked), 1))]), np.hstack([offered, bias[:, None]])
            kept[stop] = asked.astype(np.float32), offered.astype(np.float32)
        return kept

    def _dense(self, vectors: tuple[Floats, Floats], side: Side) -> InnerProducts:
        queries, documents = self._rows(side)
        return InnerProducts(query_vectors=vectors[0][queries], document_vectors=vectors[1][documents])

    @cached_property
    def lightfm(self) -> Ranker:
        """LightFM over words."""
        epochs = LIGHTFM_GRID["epochs"][:1] if self.small else LIGHTFM_GRID["epochs"]
        learned = {one: self._lightfm_vectors(self.tuning.learn, bool(one), epochs) for one in LIGHTFM_GRID["identity"]}
        tried = {
            (bool(one), stop): self._value(self._dense(vectors, self.tuning))
            for one, of_epochs in learned.items()
            for stop, vectors in of_epochs.items()
        }
        identity, stop = max(tried, key=lambda point: tried[point])

        def scorer(side: Side) -> BlockScorer:
            if side.learn is self.tuning.learn:
                return self._dense(learned[identity][stop], side)
            key = ("lightfm", id(side.learn), identity, stop)
            again = self._once(key, lambda: self._lightfm_vectors(side.learn, identity, (stop,)))
            return self._dense(again[stop], side)

        return Ranker({"identity": identity, "epochs": stop, "tuned": tried[identity, stop]}, scorer)

    # LambdaMART

    @cached_property
    def _lexical_rows(self) -> list[tuple[sp.csr_matrix, sp.csr_matrix]]:
        """Return rows whose products are features of each pair of fields: BM25, cosine, share of the words held."""
        counted = self._counted(self.bm25.settings["analyzer"])
        idf = _idf(_sum(counted.documents, [1.0, 1.0]))
        rows = []
        for asked in counted.queries:
            once = with_data(asked, np.ones_like(asked.data))
            share = sp.diags(1 / np.maximum(np.diff(asked.indptr), 1)).astype(np.float32) @ once
            query = unit_rows(with_data(asked, (1 + np.log(asked.data)) * idf[asked.indices]))
            for field in counted.documents:
                cosine = unit_rows(with_data(field, (1 + np.log(field.data)) * idf[field.indices]))
                held = with_data(field, np.ones_like(field.data))
                rows += [(once, _bm25(field, 1.2, 0.75, idf)), (query, cosine), (sp.csr_matrix(share), held)]
        return rows

    def _examples(self, side: Side) -> tuple[Floats, npt.NDArray[np.int32], Floats]:
        """Return features (n, m, k) of each query's candidates (n, m), -1 after the end, and BM25's scores of all."""
        queries, documents = self._rows(side)
        bm25 = self.bm25.scorer(side).block(0, len(queries))
        visible = bm25.copy()
        excluded = side.task.excluded.tocoo()
        visible[excluded.row, excluded.col] = -np.inf
        chosen, _ = top_documents(visible, min(CANDIDATES, len(documents)))
        pick = np.maximum(chosen, 0)
        features = [np.take_along_axis(bm25, pick, 1)]
        for asked, offered in self._lexical_rows:
            product = InnerProducts(query_rows=asked[queries], document_rows=offered[documents])
            features.append(np.take_along_axis(product.block(0, len(queries)), pick, 1))
        counted = self._counted(self.bm25.settings["analyzer"])
        features += [np.diff(field.indptr).astype(np.float32)[documents][pick] for field in counted.documents]
        asked_words = np.sum([np.diff(field.indptr) for field in counted.queries], axis=0).astype(np.float32)
        features.append(np.broadcast_to(asked_words[queries, None], pick.shape))
        return np.stack(features, axis=2), chosen, bm25

    def _boosted(self, learn: Grades, num_leaves: int, learning_rate: float, trees: int) -> Any:
        """Return a model of so many trees learned from some of the queries."""

        def learned() -> Any:
            features, labels, groups = self._once(("examples", id(learn)), lambda: self._lessons(learn))
            ranker = _library("lightgbm", "lightgbm").LGBMRanker(
                n_estimators=trees,
                num_leaves=num_leaves,
                learning_rate=learning_rate,
                min_child_samples=50,
                random_state=0,
                deterministic=True,
                force_row_wise=True,
                n_jobs=2,
                verbose=-1,
            )
            return ranker.fit(features, labels, group=groups)

        return self._once(("lambdamart", id(learn), num_leaves, learning_rate, trees), learned)

    def _lessons(self, learn: Grades) -> tuple[Floats, npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return features, grades and candidates a query of training; documents kept for tests are no candidates."""
        kept = set(self.testing.task.document_ids)
        if learn is self.tuning.learn:
            kept |= set(self.tuning.task.document_ids)
        outside = [document for document in self.place if document not in kept]
        task = self.corpus.task(learn, {}, outside or self.place)
        task, _, _ = task.sample(np.random.default_rng(0), LAMBDAMART_QUERIES, len(task.document_ids))
        features, chosen, _ = self._examples(Side(learn, task))
        grades = np.take_along_axis(task.grades.toarray(), np.maximum(chosen, 0), 1)
        there = chosen >= 0
        return features[there], np.rint(grades[there]).clip(0), there.sum(axis=1)

    @cached_property
    def lambdamart(self) -> Ranker:
        """LambdaMART over the first candidates of BM25; the others follow in BM25's order."""
        names = {"num_leaves": (15,), "learning_rate": (0.1,), "trees": (50,)} if self.small else LAMBDAMART_GRID
        most = max(names["trees"])
        examples = self._examples(self.tuning)
        tried = {
            (leaves, rate, trees): self._value(
                _reranked(self._boosted(self.tuning.learn, int(leaves), rate, int(most)), int(trees), *examples)
            )
            for leaves in names["num_leaves"]
            for rate in names["learning_rate"]
            for trees in names["trees"]
        }
        leaves, rate, trees = max(tried, key=lambda point: tried[point])

        def scorer(side: Side) -> BlockScorer:
            model = self._boosted(side.learn, int(leaves), rate, int(most))
            return _reranked(model, int(trees), *self._examples(side))

        settings = {"num_leaves": leaves, "learning_rate": rate, "trees": trees, "tuned": tried[leaves, rate, trees]}
        return Ranker(settings, scorer)

    # Time

    def training_seconds(self, epochs: int) -> dict[str, float]:
        """Return the seconds in which each rival learns once from the training data, at one point of its grid.

        ``bm25s`` splits the texts into words and indexes them; ``tokenise`` is what the other rivals need. ``lightfm``
        makes ``epochs`` epochs. ``lambdamart`` computes its features and the most trees of its grid; ``tuning of bm25``
        is the joint search for the BM25 that gives its candidates.
        """
        seconds: dict[str, float] = {}

        def timed(name: str, work: Callable[[], object]) -> None:
            started = time.perf_counter()
            work()
            seconds[name] = time.perf_counter() - started

        learn = self.testing.learn
        texts = [f"{title}\n{text}" for title, text in self.corpus.documents.values()]

        def index() -> None:
            bm25s = _library("bm25s", "bm25s")
            words = bm25s.tokenize(texts, stopwords=None, show_progress=False)
            bm25s.BM25().index(words, show_progress=False)

        timed("bm25s", index)
        timed("tokenise", lambda: self._counted("unicode"))
        timed("lightfm", lambda: self._lightfm_vectors(learn, False, (epochs,)))
        timed("tuning of bm25", lambda: self.bm25)
        leaves, rate, trees = (max(values) for values in LAMBDAMART_GRID.values())
        timed("lambdamart", lambda: self._boosted(learn, int(leaves), rate, int(trees)))
        return seconds

    # MiniLM

    @cached_property
    def minilm(self) -> Ranker:
        """The published bi-encoder."""
        if self._minilm is None:
            raise SystemExit("the rival minilm needs its weights: give their folder with --minilm (see minilm.py)")
        for name in ("onnx", "onnxruntime", "tokenizers", "safetensors"):
            _library(name, name)
        from minilm import BI_TOKENS, MiniLM, bi_encoder, published_weights

        encoder = MiniLM(bi_encoder(published_weights(self._minilm)), self._minilm / "tokenizer.json", BI_TOKENS, 2)
        kept = self._cache_folder / f"minilm-{self.corpus.name}-{len(self.place)}.npy"
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.save(kept, encoder.run([f"{title}\n{text}" for title, text in self.corpus.documents.values()]))
        documents: Floats = np.load(kept)
        if len(next(iter(self.asked.values()))) == 2:
            queries = documents[[self.place[query] for query in self.asked]]
        else:
            queries = encoder.run([" ".join(dict.fromkeys(text.split())) for (text,) in self.asked.values()])
        return Ranker({}, lambda side: self._dense((queries, documents), side))


PEERS = {
    "joint-bm25": "bm25",
    "bm25+queries": "bm25_memory",
    "lightfm": "lightfm",
    "lightfm+bm25": "lightfm",
    "lambdamart": "lambdamart",
    "minilm": "minilm",
    "minilm+bm25": "minilm",
}
"""Names of the rivals, and the property of `Rivals` that each is."""


def _sum(fields: Sequence[sp.csr_matrix], weights: Sequence[float]) -> sp.csr_matrix:
    """Return the weighted sum of fields, without words that weigh nothing."""
    total = fields[0] * np.float32(weights[0])
    for weight, field in zip(weights[1:], fields[1:], strict=True):
        total = total + field * np.float32(weight)
    total = total.tocsr()
    total.eliminate_zeros()
    return total


def _idf(counts: sp.csr_matrix) -> Floats:
    """Return ln(1 + (n - df + 1/2) / (df + 1/2)) of each word; what a document remembers is among what it holds."""
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    return np.log1p((counts.shape[0] - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)


def _bm25(counts: sp.csr_matrix, k1: float, b: float, idf: Floats) -> sp.csr_matrix:
    """Return idf tf (k1 + 1) / (tf + k1 (1 - b + b len / mean len)) of each counted word."""
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    norm = np.repeat(k1 * (1 - b + b * lengths / (lengths.mean() or 1.0)), np.diff(counts.indptr))
    return with_data(counts, (idf[counts.indices] * counts.data * (k1 + 1) / (counts.data + norm)).astype(np.float32))


def _scaled(scores: Floats) -> Floats:
    """Return scores over the deviation of their row."""
    deviation = scores.std(axis=1, keepdims=True)
    return np.asarray(scores / np.where(deviation > 0, deviation, 1), np.float32)


def _matrix(grades: Grades, rows: Mapping[str, int], columns: Mapping[str, int]) -> sp.csr_matrix:
    """Return 1 where a document is relevant to a query."""
    places = [
        (rows[query], columns[document])
        for query, judged in grades.items()
        for document, grade in judged.items()
        if grade >= 1 and query in rows and document in columns
    ]
    row, column = np.array(places, np.int64).reshape(-1, 2).T
    return sp.csr_matrix((np.ones(len(row), np.float32), (row, column)), (len(rows), len(columns)))


def _reranked(model: Any, trees: int, features: Floats, chosen: npt.NDArray[np.int32], bm25: Floats) -> BlockScorer:
    """Return scores that put the candidates first, by the model, and the rest after them, by BM25."""
    there = chosen >= 0
    scores = np.asarray(bm25 / max(float(bm25.max()), 1e-9) - _BELOW, np.float32)
    predicted = model.predict(features[there], num_iteration=trees).astype(np.float32)
    rows = np.broadcast_to(np.arange(len(chosen))[:, None], chosen.shape)[there]
    scores[rows, chosen[there]] = predicted
    return _Scores((bm25.shape[0], bm25.shape[1]), lambda i, j: scores[i:j].copy())
