"""Tables of words: nearest words of embeddings (T10), also across languages, and DICE neighbours (T11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from papers import registry
from papers.corpora import read_paper_corpus
from papers.cross_tasks import MATES_BUDGET, comparable
from papers.measures import links_loss, mates_loss
from papers.methods.dice import MAX_FREQUENT_WORDS, DiceCounter
from papers.methods.projection import Projection
from papers.methods.rows import frequent_ngrams
from papers.methods.word_pairs import Bilinear, Polynomial
from papers.registry import Budget, FitInput, Fitted, Loss, Progress, Section, System, Table, Task, TaskRequest
from papers.retrieval_studies import Variant, retrieval_study
from papers.runner import with_budget
from papers.study import Study
from reranker.arrays import Float32, Int64
from reranker.errors import RerankerError, TrainingError
from reranker.models.scorers import unit
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder

WORDS_BUDGET = Budget(n_dims=100, n_steps=1_000_000, every=100_000, patience=3, rates=(0.1,))
N_ASKED, N_SHOWN = 12, 5
MIN_DOCUMENTS = 5
"""Smallest number of documents of a shown word: little is learned about rarer ones."""
MAX_NGRAMS = 5_000


@dataclass(frozen=True, eq=False)
class WordSpace:
    """Word vectors of queries and documents."""

    query_words: tuple[str, ...]
    document_words: tuple[str, ...]
    """Words of the document side; both sides have the most frequent word first."""
    U: Float32
    V: Float32
    """Word vectors, (n_query_words, N) and (n_document_words, N) float32; a row is a column of the papers' matrices."""

    def unit(self) -> WordSpace:
        """Return the same words with vectors of length 1."""
        return WordSpace(self.query_words, self.document_words, unit(self.U), unit(self.V))

    def nearest(self, row: int, among: Int64, n: int, of_queries: bool = False) -> list[str]:
        """Return the document words nearest to a word by Euclidean distance; ties are ordered by frequency.

        Parameters
        ----------
        row : int
            Row of V, or of U if ``of_queries``; in V the word itself is left out.
        among : (m,) int64
            Rows of V to choose from, ascending.

        Source: PSI, Table 5; V for both words (A31).
        """
        vector = (self.U if of_queries else self.V)[row].astype(np.float64)
        if not of_queries:
            among = among[among != row]
        distance = np.linalg.norm(self.V[among].astype(np.float64) - vector, axis=1)
        return [self.document_words[among[place]] for place in np.argsort(distance, kind="stable")[:n].tolist()]


def word_space(fitted: Fitted, study: Study) -> WordSpace:
    """Return the word vectors of a fitted system.

    Raises
    ------
    TrainingError
        If the system has no word vectors.
    """
    scorer = fitted.scorer
    if isinstance(scorer, Projection):
        tables = scorer.A, scorer.B
    elif isinstance(scorer, Bilinear):
        tables = scorer.U, scorer.V
    elif isinstance(scorer, Polynomial):
        tables = scorer.U, scorer.factors[0]
    else:
        raise TrainingError(f"a {type(scorer).__name__} has no word vectors: choose a system of embeddings")
    return WordSpace(study.queries.words, study.documents.words, *tables)


def spread_words(names: Sequence[str], frequency: Int64, n: int, least: int) -> list[int]:
    """Return ``n`` positions, evenly spaced in log rank, of names in at least ``least`` documents.

    Names must be ordered by decreasing frequency. Numbers, names of fewer than three characters, and the most frequent
    hundredth, which says little about meaning, are skipped.
    """
    usable = [
        place
        for place, name in enumerate(names)
        if len(name) > 2 and not name.replace(" ", "").isdigit() and frequency[place] >= least
    ]
    usable = usable[len(usable) // 100 :]
    if len(usable) <= n:
        return usable
    ranks = np.geomspace(1, len(usable), n + 1)[1:].round().astype(int) - 1
    return [usable[rank] for rank in dict.fromkeys(ranks.tolist())]


def run_nearest(request: TaskRequest, progress: Progress) -> Section:
    """Return T10: the nearest words of some words, in one language and, if the corpus has two, across them."""
    corpus = read_paper_corpus(request.corpus, request.seed, request.small)
    study = retrieval_study(corpus, Variant("words", request.seed, small=request.small))
    budget = with_budget(WORDS_BUDGET, request)
    failed: list[str] = []
    tables = _tables_of(_asked(request, mates=False), lambda one: _of_documents(one, study, budget, progress), failed)
    if len(list(request.corpus.glob("docs_*.jsonl.gz"))) == 2:
        tables += _across(request, progress, failed)
    sentences = (
        *(("Small run: the words mean nothing.",) if request.small else ()),
        f"Corpus {corpus.name}: {len(corpus.ids):,} documents; {len(study.documents.words):,} words.",
        "Words are evenly spaced in log frequency rank; nearest by Euclidean distance between the columns of V, as in "
        "the paper (A31). Across languages, the columns of U and V are first scaled to unit length, because words of "
        "two languages have vectors of different lengths.",
        *failed,
    )
    return Section("T10", T10.title, sentences, tuple(tables))


def _asked(request: TaskRequest, *, mates: bool) -> list[System]:
    """Return the requested systems that are trained on mates, or those that are not."""
    return [one for one in registry.chosen(request.systems, T10.systems) if ("mates" in one.needs) == mates]


def _tables_of(systems: Iterable[System], table: Callable[[System], Table], failed: list[str]) -> list[Table]:
    """Return the table of each system; failures (also if there are no word vectors) add a sentence to ``failed``."""
    tables = []
    for system in systems:
        try:
            tables.append(table(system))
        except RerankerError as error:
            failed.append(f"{system.title} has no table: {error}")
    return tables


def _across(request: TaskRequest, progress: Progress, failed: list[str]) -> list[Table]:
    """Return tables of words in the queries' language with the nearest words in the documents' language."""
    corpus, study = comparable(request, progress)
    left, right = corpus.queries.language, corpus.documents.language
    budget = with_budget(MATES_BUDGET, request)

    def table(system: System) -> Table:
        space = word_space(_fit(system, study, budget, mates_loss, progress), study).unit()
        title = f"{system.title}: words of {left!r} and the nearest of {right!r}"
        return _table(title, space, _document_frequency(study, queries=True), _frequent(study), of_queries=True)

    return _tables_of(_asked(request, mates=True), table, failed)


def _fit(system: System, study: Study, budget: Budget, loss: Loss, progress: Progress) -> Fitted:
    """Return a system fitted to a study."""
    rng = np.random.default_rng([study.seed, 10])
    return system.fit(FitInput(study, budget, loss, rng, lambda *at: progress(f"T10 {system.name}", *at[1:])))


def _of_documents(system: System, study: Study, budget: Budget, progress: Progress) -> Table:
    """Return the table of document words with their nearest words."""
    space = word_space(_fit(system, study, budget, links_loss, progress), study)
    frequency = _document_frequency(study, queries=False)[: len(space.V)]
    among = _frequent(study)
    title = f"{system.title}: nearest words"
    return _table(title, space, frequency, among[among < len(space.V)], of_queries=False)


def _table(title: str, space: WordSpace, frequency: Int64, among: Int64, of_queries: bool) -> Table:
    """Return a table of some words with their nearest words."""
    names = space.query_words if of_queries else space.document_words
    rows = []
    for place in spread_words(names[: len(frequency)], frequency, N_ASKED, MIN_DOCUMENTS):
        nearest = space.nearest(place, among, N_SHOWN, of_queries)
        rows.append((names[place], f"{frequency[place]:,}", ", ".join(nearest)))
    return Table(title, ("word", "documents", "nearest"), tuple(rows))


def _document_frequency(study: Study, queries: bool) -> Int64:
    """Return the number of texts of one side that contain each word."""
    counts = (study.queries if queries else study.documents).counts
    return np.bincount(counts.indices, minlength=counts.shape[1]).astype(np.int64)


def _frequent(study: Study) -> Int64:
    """Return the words of documents that are frequent enough to be shown."""
    return np.flatnonzero(_document_frequency(study, queries=False) >= MIN_DOCUMENTS)


def run_dice(request: TaskRequest, progress: Progress) -> Section:
    """Return T11: the DICE neighbours of some words and of some 2-grams."""
    texts = read_paper_corpus(request.corpus, request.seed, request.small).plain
    builder = VocabularyBuilder()
    builder.add(texts)
    vocabulary = builder.build(MAX_FREQUENT_WORDS)
    frequency = np.asarray(vocabulary.document_frequency)
    words = [vocabulary.words[at] for at in spread_words(vocabulary.words, frequency, N_ASKED, MIN_DOCUMENTS)]
    grams = frequent_ngrams(texts, 2, max_ngrams=MAX_NGRAMS, min_documents=MIN_DOCUMENTS)
    at = spread_words(grams, np.full(len(grams), MIN_DOCUMENTS), N_ASKED, MIN_DOCUMENTS)
    pairs = [grams[place] for place in at]
    tables = tuple(
        _dice_table(title, terms, dice_of(terms, texts, vocabulary))
        for title, terms in (("1-grams", words), ("2-grams", pairs))
        if terms
    )
    sentences = (
        *(("Small run: the words mean nothing.",) if request.small else ()),
        f"The {N_SHOWN} words with the highest DICE coefficient among the {len(vocabulary):,} most frequent ones, "
        f"counted in {len(texts):,} documents; the word itself, with DICE 1, is left out. `ssi words dice` does the "
        f"same for any term.",
    )
    return Section("T11", T11.title, sentences, tables)


def dice_of(
    terms: Sequence[str], texts: Iterable[Sequence[str]], vocabulary: Vocabulary
) -> dict[str, list[tuple[str, float]]]:
    """Return the nearest frequent words of each term with their DICE coefficients, without the term itself."""
    counter = DiceCounter([term.split(" ") for term in terms], vocabulary, len(vocabulary))
    counter.add(texts)
    nearest = {}
    for term in terms:
        others = [word for word in counter.neighbours(term, N_SHOWN + 1) if word.word != term]
        nearest[term] = [(word.word, word.value) for word in others[:N_SHOWN]]
    return nearest


def _dice_table(title: str, terms: Sequence[str], nearest: dict[str, list[tuple[str, float]]]) -> Table:
    rows = tuple((term, ", ".join(f"{word} {value:.2f}" for word, value in nearest[term])) for term in terms)
    return Table(f"DICE neighbours of {title}", ("term", "words and DICE"), rows)


T10 = Task(
    id="T10",
    title="Nearest words",
    corpora=("cppdocs",),
    run=run_nearest,
    systems=("utv-plus-i", "cl-lsi", "psi-cross-cl-lsi"),
    source="Polynomial Semantic Indexing, table 5",
)
T11 = Task(
    id="T11",
    title="DICE neighbours",
    corpora=("cppdocs",),
    run=run_dice,
    source="Supervised Semantic Indexing, tables 1 and 2",
)

TASKS: tuple[Task, ...] = (T10, T11)
