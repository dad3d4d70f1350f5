"""Training without labels: documents and the vectors that they have already, but no links, judgments or pairs.

The lexical score has the settings below, word vectors are learned from the documents, and both are weighed by a rule.
Nothing is measured, since there is nothing to measure by: settings and rule were fixed on corpora with judgments
(`benchmarks/vectors.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Int64
from reranker.errors import ConfigError
from reranker.evaluation import draw_keywords
from reranker.lexical.bm25 import LexicalRows, LexicalSettings
from reranker.lexical.tuning import usual_weights
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.models.training_queries import KEY_DIGITS, TrainingQueries
from reranker.models.vector_field import WordEncoder
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import combine, inner_products
from reranker.text.tfidf import TfIdf
from reranker.training.concurrent_runs import one_core_a_product
from reranker.training.config import TrainConfig, kept_settings
from reranker.training.context import spread_of
from reranker.training.form_choice import GIVEN_WEIGHTS
from reranker.training.learning import mean_vector
from reranker.training.linear import words_only
from reranker.training.reading import (
    DocumentSource,
    Listener,
    TrainingCorpus,
    counted,
    read_corpus_once,
    spellings_of,
    vocabulary_of,
)
from reranker.training.run import RandomStreams
from reranker.training.train import StageClock, StageCost, learned_words
from reranker.training.word_encoder import EncoderProblem
from reranker.training.word_vectors import WantedWords, encoded_words

QUERY_WORDS: Final = 5
"""Words of a drawn query."""
MAX_DRAWN: Final = 500
"""Documents that queries are drawn from."""
MAX_RANKED: Final = 20_000
"""Documents that these are compared with."""


@dataclass(frozen=True)
class UnlabelledReport:
    """How a model without labels came about."""

    notes: tuple[str, ...]
    """Sentences for people."""
    costs: tuple[StageCost, ...]
    """Time and memory of each stage, in order."""


@one_core_a_product()
def train_unlabelled(
    corpus: DocumentSource, config: TrainConfig | None = None, *, listener: Listener | None = None
) -> tuple[RankingModel, UnlabelledReport]:
    """Return a model of BM25 and the vectors that documents have already, and the report of how it came about.

    BM25 has k1 = 1.2, b = .75, and the `usual_weights` of the fields; weights that the view states stay. Unless the
    corpus names an analyzer, words are English stems if they look English (`DocumentTokens.is_english`). The vectors
    have the first weight of `GIVEN_WEIGHTS`, in the ratio of spreads over words that are drawn from documents.

    Raises
    ------
    ConfigError
        If the view has no field of vectors.
    TrainingError
        If the file holds no usable document, or hardly a vector.
    """
    if not corpus.view.vector:
        raise ConfigError("without links, judgments or pairs, the documents need vectors: name their field")
    config, listener = config or TrainConfig(), listener or Listener()
    listener.run.expect({"reading": 1.0, "word vectors": 3.0, "weighing": 0.2})
    clock = StageClock(listener.run)
    streams = RandomStreams(config.seed)
    analyzer = corpus.analyzer or make_analyzer(AnalyzerConfig())
    tokens, given = clock.timed("reading", read_corpus_once, corpus, analyzer, listener)
    if given is None:
        raise ConfigError("the documents need vectors: name their field")
    notes, spellings = [], spellings_of(corpus, tokens)
    if corpus.analyzer is None:
        if tokens.is_english:
            tokens = tokens.stemmed("english")
            analyzer = make_analyzer(tokens.config)
        notes.append(
            "words are English stems: their endings are those of English texts"
            if analyzer.config.stemmer
            else "words are taken as they stand: they do not look English; for stems, name their language (--analyzer)"
        )
    data = counted(tokens, analyzer, TfIdf(vocabulary_of(corpus, tokens), corpus.tf), set())
    prior = encoded_words(corpus.encoder, WantedWords(data.tfidf.vocabulary, analyzer, spellings))
    listener.say("learning word vectors")
    problem = clock.timed("word vectors", learned_words, streams, listener, data, given, None, prior)
    settings = lexical_settings(data, corpus)
    weight = clock.timed("weighing", _weight, data, settings, problem, streams.named("word weights"))
    notes.append(
        f"no labels: BM25 with usual settings, and given vectors of {problem.field.share:.0%} of the documents at the "
        "usual weight"
    )
    for note in notes:
        listener.say(note)
    notes += problem.notes
    nothing = words_only()
    encoder = Encoder(
        corpus.view.with_weights((1.0,) * len(corpus.view.fields)),
        analyzer,
        data.tfidf.vocabulary,
        corpus.tf,
        nothing.V,
        corpus.quantisation,
        lexical=settings,
        vector_field=problem.field,
    )
    model = RankingModel(
        encoder,
        data.tfidf.vocabulary,
        nothing.U,
        training={"config": kept_settings(config), "preferences": 0, "documents": len(data.ids), "class": "unlabelled"},
        metrics={"notes": notes},
        training_queries=TrainingQueries.of(encoder.encoder_id[:KEY_DIGITS], (), ()),
        word_encoder=WordEncoder(problem.U, weight),
        mean_vector=mean_vector(data.counts[0], nothing.V, problem.vectors),
    )
    return model, UnlabelledReport(tuple(notes), tuple(clock.costs))


def lexical_settings(data: TrainingCorpus, corpus: DocumentSource) -> LexicalSettings:
    """Return BM25 with usual settings, and weights that the view states."""
    n = max(len(data.ids), 1)
    lengths = tuple(float(field.sum(dtype=np.float64)) / n for field in data.counts)
    stated = [spec.weight for spec in corpus.view.fields] + [None] * (len(lengths) - len(corpus.view.fields))
    weights = tuple(given or each for given, each in zip(stated, usual_weights(lengths), strict=True))
    asking = tuple(float(length > 0) for length in lengths)
    return LexicalSettings("bm25", weights, asking, b=(0.75,) * len(lengths), mean_lengths=lengths)


def _weight(
    data: TrainingCorpus, settings: LexicalSettings, problem: EncoderProblem, rng: np.random.Generator
) -> float:
    """Return the weight s of the given vectors, by words that are drawn from documents.

    A drawn query finds its own document with a score far above the others, which is left out.
    """
    drawn = np.sort(rng.permutation(problem.has_vector)[:MAX_DRAWN])
    ranked = np.union1d(drawn, rng.permutation(len(data.ids))[:MAX_RANKED])
    vocabulary = data.tfidf.vocabulary
    lexical = LexicalRows(settings, vocabulary.frequency_of, vocabulary.n_documents)
    whole = combine([field[drawn] for field in data.counts], [1.0] * len(data.counts))
    names = [data.ids[row] for row in drawn.tolist()]
    counts: sp.csr_matrix = draw_keywords(whole, names, QUERY_WORDS, 0, vocabulary)
    documents = lexical.documents([field[ranked] for field in data.counts])
    scores: Float32 = inner_products(lexical.queries([counts]), documents)
    own: Int64 = np.searchsorted(ranked, drawn)
    scores[np.arange(len(drawn)), own] = 0.0
    asked = WordEncoder(problem.U, 1.0).vectors(data.tfidf.rows_of_counts(counts))
    unit = spread_of(scores, asked @ problem.vectors[ranked].T)
    return float(f"{GIVEN_WEIGHTS[0] * unit:.4g}")
