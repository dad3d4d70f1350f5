"""The stages that choose the lexical score: its settings, how words are read, and what the words of queries weigh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from reranker.arrays import Float32, Float64, Int64, numbers_of
from reranker.baselines.comparison import tuning_task
from reranker.errors import InputError
from reranker.evaluation import standard_error
from reranker.kernels.rows import dots
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus
from reranker.lexical.tuning import (
    COVERING,
    MAX_QUERIES,
    LexicalMeasure,
    LexicalTask,
    TunedLexical,
    best_lexical,
    tune_lexical,
)
from reranker.text.analyzers import make_analyzer
from reranker.text.tfidf import TfIdf, count_rows
from reranker.text.tokens import DocumentTokens
from reranker.training.context import VALIDATION_WORDS, validators_of
from reranker.training.problem import QuerySet, TwoRows
from reranker.training.reading import TrainingCorpus, counted, vocabulary_of
from reranker.training.run import Division, TrainingRun
from reranker.training.training_set import TrainingSet
from reranker.training.word_weights import choices_of, word_weights


class _OtherReading(NamedTuple):
    """Words of the report about another way to read the documents."""

    taken: str
    """How words are read if it is used."""
    left: str
    """How words are read if it is not."""
    way: str
    """The way itself."""
    own_settings: bool = False
    """True if the settings are tuned for it; False: it is tried with those that were tuned for the known words."""
    least: float = 0.0
    """Share by which MAP must rise."""


_STEMS = _OtherReading("English stems", "taken as they stand", "stems")
BIGRAM_GAIN: Final = 0.03
"""Share by which bigrams must raise MAP: rows and tables become about twice as large, and what is learned noisier."""
_BIGRAMS = _OtherReading("read with their bigrams", "read one by one", "bigrams", own_settings=True, least=BIGRAM_GAIN)
_PAIRS_A_BLOCK: Final = 2**14
KEPT_OF_PAGES: Final = 0.95
"""Share of the MAP of whole pages, by a lexical score of their own, that one for pages and keywords must keep."""


@dataclass(frozen=True, eq=False)
class LexicalChoice:
    """The lexical part of the score, as it was tuned on the training side, and the reading that it is of."""

    settings: LexicalSettings | None
    """None: the lexical rows are those that V reads."""
    bm25: LexicalSettings | None
    """The best settings of the form BM25, which those with a memory start from; None: nothing was tuned."""
    data: TrainingCorpus
    notes: tuple[str, ...] = ()
    """Notes for the user."""


def read_by(run: TrainingRun, tokens: DocumentTokens) -> TrainingCorpus:
    """Return the documents by the analyzer of their words, with a vocabulary of their own or the base's."""
    is_first = tokens.config == run.analyzer.config
    analyzer = run.analyzer if is_first else make_analyzer(tokens.config)
    known = run.base.encoder.document_vocabulary if run.base is not None else vocabulary_of(run.corpus, tokens)
    return counted(tokens, analyzer, TfIdf(known, run.corpus.tf), run.query_ids)


class _Tuned(NamedTuple):
    """The lexical forms, tuned for a reading of the documents; without tasks they are the plain ones."""

    tasks: list[LexicalTask]
    """The tasks that they are tuned on."""
    forms: dict[str, TunedLexical]
    """Tuned for all tasks."""


class _Candidate(NamedTuple):
    """A way to read the documents, with the lexical forms tuned for it."""

    tokens: DocumentTokens
    data: TrainingCorpus
    tuned: _Tuned


def tuned_lexical(run: TrainingRun, tokens: DocumentTokens, data: TrainingCorpus, division: Division) -> LexicalChoice:
    """Return the lexical score tuned on the training side, and the reading of the documents that suits it.

    The settings of a model to start from stay, unless they are of rows with a memory: U and V are learned together with
    rows that have none.
    """
    encoder = None if run.base is None else run.base.encoder
    if encoder is not None and (
        encoder.memory is None or encoder.short_lexical is not None or run.config.query_side_only
    ):
        lexical = encoder.lexical
        return LexicalChoice(lexical, lexical if lexical and lexical.form == "bm25" else None, data)
    say = run.listener.say
    say("tuning the lexical score")
    best = _Candidate(tokens, data, _tuned(run, data, division, division.split.train))
    notes: list[str] = []
    if run.corpus.analyzer is None and best.tuned.tasks:
        stems = tokens.stemmed("english")
        best = _better_reading(run, division, best, stems, _STEMS, notes, is_usual=tokens.is_english)
        # Pairs of shown documents prefer every other order to the one that was shown, so they cannot prove that a
        # larger vocabulary pays.
        if division.split.train.texts is not None and not division.split.train.shown_only:
            bigrams = best.tokens.with_bigrams()
            best = _better_reading(run, division, best, bigrams, _BIGRAMS, notes)
    data, (tasks, forms) = best.data, best.tuned
    tuned = best_lexical(forms)
    for note in tuned.notes:
        say(note)
    say(_sentence(run, data, tuned))
    bm25 = forms["bm25"].settings if tasks else None
    return LexicalChoice(tuned.settings, bm25, data, (*notes, *tuned.notes))


def retuned(
    run: TrainingRun, lexical: LexicalChoice, division: Division, evidence: TrainingSet, *, afresh: bool = False
) -> LexicalChoice:
    """Return the lexical score tuned again, on other evidence, for the same reading of the documents.

    The search goes on from the settings that are known or, ``afresh``, does not know them.
    """
    tasks, forms = _tuned(run, lexical.data, division, evidence, None if afresh else lexical.settings)
    return replace(lexical, settings=best_lexical(forms).settings, bm25=forms["bm25"].settings if tasks else None)


def has_few_queries(run: TrainingRun, choice: LexicalChoice, division: Division) -> bool:
    """Return whether the lexical score gains from being tuned again on all queries.

    Not so where more than `MAX_QUERIES` queries tuned it: then these were a sample.
    """
    may_change = run.base is None and run.valid is None and not division.split.unseen_documents
    return may_change and choice.bm25 is not None and len(division.split.train.query_ids) < MAX_QUERIES


def tuning_tasks(
    run: TrainingRun, data: TrainingCorpus, division: Division, corpus: LexicalCorpus, evidence: TrainingSet
) -> list[LexicalTask]:
    """Return the queries of some evidence that the lexical score is tuned on: texts, whole documents, keywords.

    `InputError` is raised if no query finds anything among the documents.
    """
    schedule, pool = division.schedule, division.split.pool
    vocabulary = data.tfidf.vocabulary

    def rows_of(ids: Sequence[str]) -> Int64:
        return np.array([data.row_of[id_] for id_ in ids], np.int64)

    if evidence.texts is not None:
        task = evidence.task(pool, [], ())
        tokens = data.analyzer.tokens([evidence.texts[query] for query in task.query_ids])
        counts = count_rows(vocabulary, tokens)
        return [LexicalTask(task, corpus.text_queries(counts), rows_of(task.document_ids))]
    task = tuning_task(evidence.links(), data.ids, pool)
    asked, documents = rows_of(task.query_ids), rows_of(task.document_ids)
    tasks = [LexicalTask(task, corpus.document_queries(asked), documents)]
    if schedule.keyword_share > 0 or schedule.short_apart:
        words = corpus.keyword_queries(asked, task.query_ids, VALIDATION_WORDS, run.config.seed, vocabulary)
        tasks.append(LexicalTask(task, words, documents))
    return tasks


def searched(
    run: TrainingRun,
    data: TrainingCorpus,
    corpus: LexicalCorpus,
    tasks: Sequence[LexicalTask],
    rng: np.random.Generator,
    **more: Any,
) -> dict[str, TunedLexical]:
    """Return `tune_lexical` with the weights that the user has given."""
    return tune_lexical(corpus, tasks, rng, stated=_stated_weights(run, data), **more)


def chosen_word_weights(
    run: TrainingRun, choice: LexicalChoice, division: Division, asked: QuerySet, documents: TwoRows
) -> tuple[Float32 | None, tuple[str, ...]]:
    """Return the weights of the words of text queries, (n_words,) float32, and a note; None: 1 each.

    Of the weights tried, those of the highest validation MAP by the lexical score are used if they gain more than two
    standard errors: they are the best of several. Where documents are the queries, U and V learn what weights would
    express, and the model is worse with them.
    """
    lexical, data, say = choice.settings, choice.data, run.listener.say
    if lexical is None or choice.bm25 is None or run.evidence.texts is None or run.config.word_weights == "off":
        return None, ()
    say("weighing the words of queries")
    corpus, n_words = LexicalCorpus(data.counts), len(data.tfidf.vocabulary)
    known = np.flatnonzero(corpus.columns < n_words)

    def values(weights: Float32) -> Float64:
        rng = run.streams.named("validation")
        queries = asked.weighed(weights)
        validators = validators_of(division.choosing, data, queries, documents, division.schedule, rng)
        return np.concatenate([validator.lexical for validator in validators])

    chosen = np.ones(n_words, np.float32)
    before = best = values(chosen)
    task = tuning_tasks(run, data, division, corpus, division.split.train)[0]
    for learned in word_weights(choices_of(corpus, task, lexical, run.streams.named("word weights"))):
        tried = np.ones_like(chosen)
        tried[corpus.columns[known]] = learned[known]
        after = values(tried)
        if after.mean() > best.mean():
            best, chosen = after, tried
    gains = best - before
    is_better = bool(gains.mean() > 2 * standard_error(gains))
    maps = f"validation MAP of the lexical score is {best.mean():.4f}, {before.mean():.4f} without"
    note = f"words of queries {'are weighed' if is_better else 'count alike'}: with weights the {maps}"
    say(note)
    return (chosen if is_better else None), (note,)


def _tuned(
    run: TrainingRun,
    data: TrainingCorpus,
    division: Division,
    evidence: TrainingSet,
    start: LexicalSettings | None = None,
) -> _Tuned:
    """Return the forms of the lexical score, tuned on some evidence.

    Whole pages and keywords share the row of a document, and may want two of them: titles that count for all or for
    nothing. Pages keep `KEPT_OF_PAGES` of what a score of their own reaches on the training links: what they lose to
    keywords is hardly learned back. tf-idf is tuned for both only if it is the best form for pages. The search goes on
    from ``start`` if it is given.
    """
    corpus = LexicalCorpus(data.counts)
    try:
        tasks = tuning_tasks(run, data, division, corpus, evidence)
    except InputError:  # no training query finds anything here: the preferences are refused later, with the reason
        tasks = []

    def tuned(on: Sequence[LexicalTask], **more: Any) -> dict[str, TunedLexical]:
        rng = run.streams.named("lexical tuning")
        return searched(run, data, corpus, on, rng, with_coverage=True, **more)

    of_first = tuned(tasks[:1], start=start)
    if len(tasks) < 2:
        return _Tuned(tasks, of_first)
    pages = best_lexical(of_first)
    forms = ("bm25", "tfidf") if pages.settings.form == "tfidf" else ("bm25",)
    both = tuned(tasks, start=pages.settings, forms=forms)
    floor = KEPT_OF_PAGES * pages.values[0]
    if best_lexical(both).values[0] < floor:
        both = tuned(tasks, start=pages.settings, forms=forms, floor=floor)
    return _Tuned(tasks, both)


def _better_reading(
    run: TrainingRun,
    division: Division,
    known: _Candidate,
    tokens: DocumentTokens,
    said: _OtherReading,
    notes: list[str],
    *,
    is_usual: bool = False,
) -> _Candidate:
    """Return another reading of the documents, with the forms tuned for it, if the lexical score is better by it.

    Otherwise the ``known`` one is returned. MAP on the training queries must rise by more than a standard error, and by
    the share ``said.least``, for one kind of queries, and fall by no more than one for the other. If the other reading
    ``is_usual`` for the language, it need not rise. A sentence about it is added to ``notes``.

    If a ranking chose the documents of the evidence (`TrainingSet.shown_only`), the other reading is used unless the
    `_agreement` with the pairs falls by more than a standard error. MAP would count what only the other reading finds
    as an error, because nobody was shown it.
    """
    train, forms = division.split.train, known.tuned.forms
    measure = _agreement if train.shown_only else _values
    values = measure(run, known.data, division, best_lexical(forms).settings)
    other = read_by(run, tokens)
    again = _tuned(run, other, division, train) if said.own_settings else known.tuned
    changed = measure(run, other, division, best_lexical(again.forms).settings)
    gains = [after - before for after, before in zip(changed, values, strict=True)]
    in_errors = [float(gain.mean()) / (standard_error(gain) or 1.0) for gain in gains]
    share = max(gain.mean() / (before.mean() or 1.0) for gain, before in zip(gains, values, strict=True))
    is_enough = train.shown_only or is_usual or (max(in_errors) > 1 and share > said.least)
    is_better = min(in_errors) >= -1 and is_enough
    means = "; ".join(f"{a.mean():.4f}, {b.mean():.4f} without" for a, b in zip(changed, values, strict=True))
    what = "the share of training pairs in order" if train.shown_only else "training MAP"
    note = f"words are {said.taken if is_better else said.left}: with {said.way} {what} is {means}"
    notes.append(note)
    run.listener.say(note)
    if not is_better:
        return known
    if not said.own_settings:
        again = _tuned(run, other, division, train, best_lexical(forms).settings)
    return _Candidate(tokens, other, again)


def _values(run: TrainingRun, data: TrainingCorpus, division: Division, settings: LexicalSettings) -> list[Float64]:
    """Return the average precision of up to 5,000 training queries of each task by lexical settings."""
    corpus, rng = LexicalCorpus(data.counts), run.streams.named("lexical tuning")
    tasks = tuning_tasks(run, data, division, corpus, division.split.train)
    samples = [task.sample(rng, 10 * MAX_QUERIES) for task in tasks]
    return [LexicalMeasure(corpus, sample, settings.form).values(settings) for sample in samples]


def _agreement(run: TrainingRun, data: TrainingCorpus, division: Division, settings: LexicalSettings) -> list[Float64]:
    """Return the share of the pairs of up to 5,000 training queries, by weight, that lexical settings put in order.

    Ties count half. Only documents of pairs are compared, so a document that was never shown costs nothing. The list
    has one array with a value for each query, for the one task of queries that are texts.
    """
    evidence = division.split.train
    stated, texts = evidence.preferences, evidence.texts or {}
    row = numbers_of(stated.links.ids, data.row_of)
    preference = np.repeat(np.arange(len(stated)), stated.n_worse)
    better, worse = row[stated.links.target[preference]], row[stated.worse]
    asked, query = np.unique(stated.links.source[preference], return_inverse=True)
    drawn = np.zeros(len(asked), bool)
    drawn[run.streams.named("lexical tuning").permutation(len(asked))[: 10 * MAX_QUERIES]] = True
    pairs = np.flatnonzero(drawn[query] & (better >= 0) & (worse >= 0))
    corpus = LexicalCorpus(data.counts)
    rows = corpus.rows(settings)
    tokens = data.analyzer.tokens([texts[stated.links.ids[number]] for number in asked])
    queries = rows.queries(corpus.text_queries(count_rows(data.tfidf.vocabulary, tokens)))
    weighed, ordered = np.zeros(len(asked)), np.zeros(len(asked))
    for start in range(0, len(pairs), _PAIRS_A_BLOCK):
        block = pairs[start : start + _PAIRS_A_BLOCK]
        of_query, weight = query[block], stated.weight[preference[block]]
        above, below = (
            dots(queries[of_query], rows.documents([field[documents] for field in corpus.fields]))
            for documents in (better[block], worse[block])
        )
        weighed += np.bincount(of_query, weight, len(asked))
        ordered += np.bincount(of_query, weight * np.where(above == below, 0.5, above > below), len(asked))
    has_pairs = weighed > 0
    # Without a known pair all readings agree equally well.
    return [ordered[has_pairs] / weighed[has_pairs] if has_pairs.any() else np.zeros(1)]


def _stated_weights(run: TrainingRun, data: TrainingCorpus) -> list[float | None]:
    """Return the field weights that the user has given, None for others; a base's weights are of V's rows."""
    of_fields = [spec.weight if run.base is None else None for spec in run.corpus.view.fields]
    return [*of_fields, *[None] * data.analyzer.config.bigrams]


def _sentence(run: TrainingRun, data: TrainingCorpus, tuned: TunedLexical) -> str:
    names = [spec.path for spec in run.corpus.view.fields] + ["bigrams"] * data.analyzer.config.bigrams
    weights = zip(names, tuned.settings.field_weights, strict=True)
    named = ", ".join(f"{name} {weight:.3g}" for name, weight in weights)
    value = f": MAP {np.mean(tuned.values):.4f} on the training queries" if tuned.values else ""
    form = COVERING if tuned.settings.coverage else tuned.settings.form
    return f"the best lexical score found is {form} (weights of fields {named}){value}"


def with_factor(settings: LexicalSettings, factor: float | None) -> LexicalSettings:
    """Return settings whose rows are multiplied by one more factor (None: 1)."""
    return replace(settings, factor=(factor or 1.0) * settings.factor)
