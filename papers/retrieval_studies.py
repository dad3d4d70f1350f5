"""Studies of retrieval by links or judgments, by the papers' protocol: T1, T2 and T3 (spec 4.1, E04)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from papers.corpora import Pair, PaperCorpus, Tokens
from papers.methods.pagerank import pagerank
from papers.methods.rows import binary, frequent_ngrams, idf_of, ngram_counts, tfidf_rows
from papers.methods.word_pairs import join_columns
from papers.study import Study, StudyTrial, Texts, link_matrix, study_texts, study_vocabulary
from reranker.arrays import Float64, Int64
from reranker.errors import ConfigError
from reranker.evaluation import N_TUPLES, RankingTask, draw_tuples, link_task
from reranker.training.problem import cut_to_keywords, two_rows

N_QUERIES = 1_000
N_RANDOM = 10_000


def sample_pools(
    task: RankingTask, rng: np.random.Generator, n_queries: int = N_QUERIES, n_random: int = N_RANDOM
) -> RankingTask:
    """Return the task of some queries, each ranking its judged documents and random others.

    Queries are drawn from those with a relevant document (all, if there are not more), and keep their order. A query
    ranks its judged documents, and ``n_random`` documents drawn from the rest of the pool (all, if there are not more).
    Documents that the task excludes for the query (itself, its training links) are not drawn. The sample is drawn once:
    give the result to every system.

    All other documents become excluded pairs of 5 bytes each: n_queries * (pool - n_random) pairs, 0.5 GB for 1,000
    queries over 100,000 documents.

    Raises
    ------
    ConfigError
        If ``n_queries`` is below 1 or ``n_random`` below 0.

    Source: SSI and PSI, retrieval with 1,000 test queries and 10,000 documents; spec 4.2, E04, A18.
    """
    if n_queries < 1 or n_random < 0:
        raise ConfigError(
            f"{n_queries} queries and {n_random} random documents: draw at least 1 query and at least 0 documents"
        )
    usable = np.flatnonzero(np.diff(task.relevant().indptr) > 0)
    chosen = usable if len(usable) <= n_queries else np.sort(rng.choice(usable, n_queries, replace=False))
    smaller = task.rows(chosen)
    out = [_left_out(smaller, row, rng, n_random) for row in range(len(chosen))]
    indptr = np.concatenate(([0], np.cumsum([len(one) for one in out])))
    indices = np.concatenate([np.empty(0, np.int32), *out])
    excluded = sp.csr_matrix((np.ones(len(indices), dtype=bool), indices, indptr), shape=smaller.excluded.shape)
    return RankingTask(
        smaller.query_ids, smaller.document_ids, smaller.grades, excluded, task.dropped, task.relevant_from
    )


def _left_out(
    task: RankingTask, row: int, rng: np.random.Generator, n_random: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return the documents that are excluded for a query, ascending."""
    parts = (task.grades, task.excluded)
    judged, known = (matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]] for matrix in parts)
    out = np.ones(len(task.document_ids), dtype=bool)
    out[judged] = out[known] = False
    free = np.flatnonzero(out)
    out[known] = True
    out[free if len(free) <= n_random else rng.choice(free, n_random, replace=False)] = False
    return np.flatnonzero(out).astype(np.int32)


LIMITED, SMALL_LIMIT = 30_000, 2_000
"""Number of words of the papers' limited vocabulary, and of any vocabulary in small mode."""
MAX_NGRAMS = 100_000
VALID_TUPLES = 100_000
"""Number of validation tuples, the same as in the test.

Good systems have a rank loss below 1 %; fewer tuples would contain too few errors to choose the best validation.
"""
PRIOR, BIGRAMS, ANCHORS = "prior", "2-grams", "anchor texts"
_TEST, _VALID, _SHARE, _SIDES, _CUT = range(2, 7)


@dataclass(frozen=True)
class Variant:
    """Definition of a study on a corpus."""

    name: str
    seed: int = 0
    n_words: int | None = LIMITED
    """Number of words of the vocabulary; None for all."""
    keywords: int | None = None
    """Number of random words that queries are reduced to (T3); None for whole queries."""
    share: float = 1.0
    """Share of the training links (T9)."""
    disjoint: bool = False
    """Whether the test uses only documents that training never saw (T2)."""
    bigrams: bool = False
    """Whether texts also have a view of words and 2-grams."""
    anchors: bool = False
    """Whether documents also have a view with the texts of the documents that link to them."""
    n_dims: int | None = None
    """N, instead of the budget's (T12)."""
    small: bool = False
    """Whether to use fewer queries and tuples."""


@dataclass(frozen=True, eq=False)
class _Split:
    """Links and documents by use. ``related`` links are not all trained on, but never used as negatives."""

    train: Sequence[Pair]
    related: Sequence[Pair]
    valid: Sequence[Pair]
    test: Sequence[Pair]
    background: Int64
    pool: Int64
    restricted: bool = False


def retrieval_study(corpus: PaperCorpus, variant: Variant) -> Study:
    """Return the study of a corpus: texts over the most frequent words, training links, trials.

    The vocabulary and the idf are those of all documents; on the document-disjoint split only those of training
    documents (A32). In the test up to 1,000 queries rank their own documents and 10,000 random ones (E04). In
    validation all queries are scored on tuples.

    Raises
    ------
    InputError
        If a part of the split has no link.
    """
    split = _disjoint(corpus, variant) if variant.disjoint else _links(corpus, variant)
    documents, queries = _texts(corpus, variant, split)
    row_of = {one: row for row, one in enumerate(corpus.ids)}
    query_of = {one: row for row, one in enumerate(corpus.query_ids)}
    relevant = link_matrix(split.train, query_of, row_of)
    every = (*split.related, *split.valid, *split.test)
    same = corpus.documents_are_queries
    own = np.arange(len(corpus.ids)) if same else np.full(len(corpus.query_ids), -1, np.int64)
    links = relevant if same else None
    if links is not None:
        documents, queries = _with_prior(documents, queries, links)
        documents = with_anchors(documents, links) if variant.anchors else documents
    trials = [
        _trial(task, documents, queries, row_of, query_of, variant, purpose)
        for task, purpose in ((_valid(corpus, split), _VALID), (_test(corpus, split, variant), _TEST))
    ]
    if links is not None:
        trials[1] = replace(trials[1], reversed=_reversed(trials[1], links, query_of))
    background = split.background if split.restricted else None
    return Study(
        name=variant.name,
        seed=variant.seed,
        documents=documents,
        queries=queries,
        relevant=relevant,
        own=own,
        valid=trials[0],
        test=trials[1],
        known=link_matrix(every, query_of, row_of),
        keywords=variant.keywords,
        links=links,
        train_documents=background,
        n_dims=variant.n_dims,
    )


def reversed_share(corpus: PaperCorpus) -> float:
    """Return the share of test links whose reverse is a training link."""
    known = {(target, source) for source, target in corpus.train}
    return sum(one in known for one in corpus.test) / len(corpus.test)


def _links(corpus: PaperCorpus, variant: Variant) -> _Split:
    """Return the corpus's own split, with only a share of the training links if asked for."""
    everything = np.arange(len(corpus.ids))
    train: Sequence[Pair] = corpus.train
    if variant.share < 1.0:
        # Take the first links of one fixed order, so that a larger share contains every smaller one.
        order = np.random.default_rng([variant.seed, _SHARE]).permutation(len(train))
        kept = np.sort(order[: max(1, round(variant.share * len(train)))])
        train = [train[place] for place in kept]
    return _Split(train, corpus.train, corpus.valid, corpus.test, everything, everything)


def _disjoint(corpus: PaperCorpus, variant: Variant) -> _Split:
    """Return links within the training documents, a tenth of them for validation, and links within the others."""
    rng = np.random.default_rng([variant.seed, _SIDES])
    if corpus.sides is None:
        order = rng.permutation(len(corpus.ids))
        chosen = {corpus.ids[place] for place in order[: round(0.7 * len(order))]}
    else:
        chosen = set(corpus.sides[0])
    others = set(corpus.ids) - chosen if corpus.sides is None else set(corpus.sides[1])
    everything = sorted({*corpus.train, *corpus.valid, *corpus.test})
    # A query that is not a document belongs to neither side: its judgments are assigned by their documents.
    same = corpus.documents_are_queries
    inside = [one for one in everything if one[1] in chosen and (not same or one[0] in chosen)]
    test = [one for one in everything if one[1] in others and (not same or one[0] in others)]
    held = rng.random(len(inside)) < 0.1
    train = [one for one, out in zip(inside, held, strict=True) if not out]
    valid = [one for one, out in zip(inside, held, strict=True) if out]
    rows = [np.flatnonzero([one in side for one in corpus.ids]) for side in (chosen, others)]
    return _Split(train, train, valid, test, rows[0], rows[1], restricted=True)


def _texts(corpus: PaperCorpus, variant: Variant, split: _Split) -> tuple[Texts, Texts]:
    """Return documents and queries over the words of the background documents."""
    background = [corpus.documents[row] for row in split.background]
    vocabulary = study_vocabulary(background, SMALL_LIMIT if variant.small else variant.n_words)
    idf = study_texts(background, vocabulary).idf
    documents = study_texts(corpus.documents, vocabulary, idf)
    queries = study_texts(corpus.queries, vocabulary, idf)
    if not variant.bigrams:
        return documents, queries
    plain = [corpus.plain[row] for row in split.background]
    names = frequent_ngrams(plain, 2, max_ngrams=MAX_NGRAMS)
    bigram_idf = idf_of(ngram_counts(plain, 2, names))
    return (
        _with_bigrams(documents, corpus.plain, names, bigram_idf),
        _with_bigrams(queries, corpus.queries, names, bigram_idf),
    )


def _with_bigrams(texts: Texts, tokens: Tokens, names: Sequence[str], idf: Float64) -> Texts:
    """Return texts with a view of their words and then their 2-grams, each part of unit length."""
    rows = tfidf_rows(ngram_counts(tokens, 2, names), idf)
    return texts.with_view(BIGRAMS, join_columns(texts.rows, rows))


def _with_prior(documents: Texts, queries: Texts, links: sp.csr_matrix) -> tuple[Texts, Texts]:
    """Return texts with a view of their counts and one more column: ln(1 + N pi) for documents, 1 for queries."""
    prior = np.log1p(len(documents) * pagerank(links)).astype(np.float32)
    ones = np.ones(len(queries), np.float32)
    columns = [sp.csr_matrix(values.reshape(-1, 1)) for values in (prior, ones)]
    first, second = (
        texts.with_view(PRIOR, join_columns(texts.counts, column))
        for texts, column in zip((documents, queries), columns, strict=True)
    )
    return first, second


def with_anchors(documents: Texts, links: sp.csr_matrix) -> Texts:
    """Return documents with the view `ANCHORS`, (n, 2 D): their counts, then those of the documents that link to them.

    The texts of links are not in these corpora; the whole text of a linking document stands for them. ``links`` are
    those of training, (n, n), so that no test link adds a word.

    Source: COURSE, anchor texts as index terms.
    """
    linking = sp.csr_matrix(links.T @ documents.counts, dtype=np.float32)
    linking.sort_indices()
    return documents.with_view(ANCHORS, join_columns(documents.counts, linking))


def _valid(corpus: PaperCorpus, split: _Split) -> RankingTask:
    """Return the task of the validation links, over the training documents."""
    pool = [corpus.ids[row] for row in split.background]
    return link_task(split.valid, [*split.related, *split.test], pool, corpus.query_ids)


def _test(corpus: PaperCorpus, split: _Split, variant: Variant) -> RankingTask:
    """Return the task of the test links, by the papers' protocol."""
    pool = [corpus.ids[row] for row in split.pool]
    task = link_task(split.test, [*split.related, *split.valid], pool, corpus.query_ids)
    rng = np.random.default_rng([variant.seed, _TEST])
    return sample_pools(task, rng, 100 if variant.small else N_QUERIES, N_RANDOM)


def _trial(
    task: RankingTask,
    documents: Texts,
    queries: Texts,
    row_of: dict[str, int],
    query_of: dict[str, int],
    variant: Variant,
    purpose: int,
) -> StudyTrial:
    """Return the trial of a task: its queries, reduced to keywords once, and its tuples."""
    texts = queries.take(np.array([query_of[one] for one in task.query_ids]))
    if variant.keywords is not None:
        texts = _keywords(texts, variant.keywords, np.random.default_rng([variant.seed, _CUT, purpose]))
    pool = np.array([row_of[one] for one in task.document_ids])
    n_tuples = N_TUPLES if purpose == _TEST else VALID_TUPLES
    rng = np.random.default_rng([variant.seed, 100 + purpose])
    return StudyTrial(texts, pool, task, draw_tuples(task, rng, n_tuples // 10 if variant.small else n_tuples))


def _reversed(trial: StudyTrial, links: sp.csr_matrix, query_of: dict[str, int]) -> sp.csr_matrix:
    """Return the relevant pairs of a trial whose document has a training link to the query."""
    rows = np.array([query_of[query] for query in trial.task.query_ids])
    found = sp.csr_matrix(sp.csr_matrix(links.T)[rows][:, trial.pool].multiply(trial.task.relevant()), dtype=bool)
    found.sort_indices()
    return found


def _keywords(texts: Texts, n_words: int, rng: np.random.Generator) -> Texts:
    """Return texts reduced to a few of their words, with unchanged counts (T3, A21)."""
    rows = cut_to_keywords(two_rows(texts.rows, None), n_words, rng).learned
    counts = sp.csr_matrix(texts.counts.multiply(binary(rows)), dtype=np.float32)
    counts.sort_indices()
    more = {}
    if PRIOR in texts.more:
        more[PRIOR] = join_columns(counts, texts.more[PRIOR][:, counts.shape[1] :])
    return Texts(counts, rows, texts.words, texts.idf, more)
