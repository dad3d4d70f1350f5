"""Studies of two languages: mates to find, and links from pages of one language to documents of the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from papers.bilingual import Bilingual, Links
from papers.methods.lexical import side_by_side
from papers.methods.rows import Doubles, idf_of, tfidf_rows
from papers.methods.translation import TextTable, Translator, WordTable, fit_dice_table, fit_ibm_table
from papers.study import Ids, Study, Texts, Trial, study_texts, study_vocabulary
from reranker.errors import InputError
from reranker.evaluation.protocols import RankingTask, draw_tuples, link_task
from reranker.text.rows import row_of, with_data

TRAIN_SHARE = 0.7
VALID_SHARE = 0.1
"""Of the training side, taken out of it to tune on."""
MATE_WORDS = 20_000
"""Words a language for comparable documents (spec 1.3)."""
LINK_WORDS = 30_000
"""Words a language for retrieval (spec 1.3)."""
N_TUPLES = (100_000, 100_000)
"""Of the rank loss, to tune and to test on."""

TRANSLATIONS = ("texts-ibm", "texts-dice", "words-ibm", "words-dice")
"""Views of translated queries: the whole text or word by word, with the table of IBM model 1 or of DICE."""
BESIDE = "beside-texts-ibm"
"""View with the query itself and, to its right, its translation."""
ONCE = "once"
"""View of documents as queries have them, the title once."""


@dataclass(frozen=True)
class MateSplit:
    """Rows of mates, in the order of their ids.

    Parameters
    ----------
    train, valid, test : (n,) int64
        Ascending.
    """

    train: Ids
    valid: Ids
    test: Ids


def split_mates(n_mates: int, seed: int) -> MateSplit:
    """Return a random split: `TRAIN_SHARE` to learn from, of which `VALID_SHARE` to tune on, and the rest to test.

    Raises
    ------
    InputError
        If there are fewer than 20 mates.
    """
    if n_mates < 20:
        raise InputError(f"{n_mates} mates are too few to learn from, tune on and test on: give 20 or more")
    order = np.random.default_rng([seed, 70]).permutation(n_mates)
    n_train = round(TRAIN_SHARE * n_mates)
    n_valid = max(2, round(VALID_SHARE * n_train))
    train, valid, test = order[n_valid:n_train], order[:n_valid], order[n_train:]
    return MateSplit(*(np.sort(part).astype(np.int64) for part in (train, valid, test)))


def mates_study(corpus: Bilingual, seed: int, n_words: int = MATE_WORDS, n_tuples: tuple[int, int] = N_TUPLES) -> Study:
    """Return the study of finding mates (T5, T6): learned from pairs, each text of the test side with the test side.

    Vocabulary and idf are those of the training pairs alone. Titles count once on both sides, which are searched both
    ways.
    """
    mates = corpus.mates
    split = split_mates(len(mates), seed)
    sides = []
    for side in (corpus.queries, corpus.documents):
        tokens = side.as_queries()
        sides.append(_texts([tokens[row] for row in side.rows_of(mates)], split.train, n_words))
    queries, documents = sides
    pairs = queries.take(split.train), documents.take(split.train)
    n_train = len(split.train)
    relevant = _matrix(np.arange(n_train), split.train, (n_train, len(mates)))
    rng = np.random.default_rng([seed, 71])

    def trial(rows: Ids, n: int) -> Trial:
        ids = tuple(mates[row] for row in rows)
        size = (len(rows), len(rows))
        grades = _matrix(np.arange(len(rows)), np.arange(len(rows)), size)
        task = RankingTask(ids, ids, grades, _matrix(rows[:0], rows[:0], size).astype(bool))
        return Trial(queries.take(rows), rows, task, draw_tuples(task, rng, n))

    return Study(
        name=f"mates-{seed}",
        seed=seed,
        documents=documents,
        queries=pairs[0],
        relevant=relevant,
        own=np.full(n_train, -1, np.int64),
        valid=trial(split.valid, n_tuples[0]),
        test=trial(split.test, n_tuples[1]),
        mates=pairs,
        train_documents=split.train,
    )


def retrieval_study(
    corpus: Bilingual, seed: int, n_words: int = LINK_WORDS, n_tuples: tuple[int, int] = N_TUPLES
) -> Study:
    """Return the study of cross-language retrieval (T4): the query is a page whose mate links to what it looks for.

    Links are split as in T1. Of the mates `TRAIN_SHARE` are shown to CL-LSI and to the word tables; queries to tune
    and to test on are pages of the other mates, so no translation was learned from their own. The mate itself takes
    no part. Vocabulary and idf are those of all pages of a language, which need no label.

    Raises
    ------
    InputError
        If there are no links, or too few mates.
    """
    mates = corpus.mates
    split = split_mates(len(mates), seed)
    shown = np.sort(np.concatenate([split.train, split.valid]))
    unseen = {mates[row] for row in split.test}
    parts = _link_parts(corpus, seed)
    document_texts, queries, pairs = _retrieval_texts(corpus, mates, shown, n_words)
    rng = np.random.default_rng([seed, 72])
    place = {one: row for row, one in enumerate(corpus.documents.ids)}
    mate_row = {one: row for row, one in enumerate(mates)}

    def trial(part: str, n: int) -> Trial:
        known = [link for name, links in parts.items() if name != part for link in links]
        task = link_task(parts[part], known, corpus.documents.ids, unseen)
        rows = np.array([mate_row[one] for one in task.query_ids], dtype=np.int64)
        pool = np.array([place[one] for one in task.document_ids], dtype=np.int64)
        return Trial(queries.take(rows), pool, task, draw_tuples(task, rng, n))

    shape = (len(mates), len(corpus.documents.ids))
    train = [link for link in parts["train"] if link[0] in mate_row]
    others = [link for name in ("valid", "test") for link in parts[name] if link[0] in mate_row]
    return Study(
        name=f"retrieval-{seed}",
        seed=seed,
        documents=document_texts,
        queries=queries,
        relevant=_link_matrix(train, mate_row, place, shape),
        own=np.array([place[one] for one in mates], dtype=np.int64),
        valid=trial("valid", n_tuples[0]),
        test=trial("test", n_tuples[1]),
        known=_link_matrix(others, mate_row, place, shape),
        mates=pairs,
    )


def _retrieval_texts(
    corpus: Bilingual, mates: Sequence[str], shown: Ids, n_words: int
) -> tuple[Texts, Texts, tuple[Texts, Texts]]:
    """Return the documents, the mates' pages as queries with their translations, and the pairs that are shown.

    Pages whose mates are shown have empty translations: a table that saw their mates would translate them too well to
    learn anything from it.
    """
    once = corpus.documents.as_queries()
    vocabulary = study_vocabulary(once, n_words)
    documents = study_texts(corpus.documents.as_documents(), vocabulary)
    documents = damped(documents, documents.idf)
    plain = damped(study_texts(once, vocabulary), documents.idf)
    documents = replace(documents, more={ONCE: plain.rows})
    pages = corpus.queries.as_queries()
    own = [pages[row] for row in corpus.queries.rows_of(mates)]
    queries = study_texts(own, study_vocabulary(pages, n_words))
    queries = damped(queries, queries.idf)
    mate_texts = plain.take(np.array(corpus.documents.rows_of(mates), dtype=np.int64))
    pairs = queries.take(shown), mate_texts.take(shown)
    hidden = queries.counts.copy()
    hidden.data[np.isin(row_of(hidden), shown)] = 0.0
    hidden.eliminate_zeros()
    more = translations(hidden, documents.idf, *(side.counts for side in pairs))
    more[BESIDE] = side_by_side([queries.rows, more["texts-ibm"]])
    return documents, replace(queries, more=more), pairs


def translations(
    counts: sp.csr_matrix, idf: Doubles, left: sp.csr_matrix, right: sp.csr_matrix
) -> dict[str, sp.csr_matrix]:
    """Return the tf-idf rows of texts in the other language, by the names of `TRANSLATIONS`.

    Word by word, every word becomes the most probable words of its row; a whole text becomes the words that explain
    all of its words together (`TextTable` with the same table turned round). Counts of translations are fractions, so
    they are damped by ln(1 + tf).

    Parameters
    ----------
    counts : csr_matrix, (n, D_q)
        Texts to translate.
    idf : (D_d,) float64
        Of the language they are translated to.
    left, right : csr_matrix, (n_pairs, D_q) and (n_pairs, D_d)
        Counts of the mates that the tables are learned from.
    """
    found = {}
    for name, fit in (("ibm", fit_ibm_table), ("dice", fit_dice_table)):
        table: WordTable = fit(left, right)
        back = fit(right, left)
        emissions = sp.csr_matrix(back.probabilities.T)
        translators: dict[str, Translator] = {f"words-{name}": table, f"texts-{name}": TextTable(emissions)}
        for view, translator in translators.items():
            translated = translator.translate(counts)
            found[view] = tfidf_rows(with_data(translated, np.log1p(translated.data)), idf)
    return {view: found[view] for view in TRANSLATIONS}


def _texts(tokens: Sequence[Sequence[str]], train: Ids, n_words: int) -> Texts:
    """Return texts over the vocabulary, and with the idf, of the training rows."""
    vocabulary = study_vocabulary([tokens[row] for row in train], n_words)
    texts = study_texts(tokens, vocabulary)
    return damped(texts, idf_of(texts.counts[train]))


def damped(texts: Texts, idf: Doubles) -> Texts:
    """Return the texts with rows of (1 + ln tf) idf at unit length; counts stay counts.

    Pages of code and tables repeat their words: with raw tf, CL-LSI of 500 factors finds fewer mates (MRR .956 against
    .989 on validation pairs of the C++ documentation).
    """
    return replace(texts, rows=tfidf_rows(with_data(texts.counts, 1.0 + np.log(texts.counts.data)), idf), idf=idf)


def _link_parts(corpus: Bilingual, seed: int) -> dict[str, Links]:
    """Return the corpus's own split of its links, or a random one of 70, 10 and 20 per cent."""
    if corpus.parts is not None and all(corpus.parts.values()):
        return corpus.parts
    links = corpus.links
    if len(links) < 10:
        raise InputError(
            f"the corpus has {len(links)} links: retrieval needs 10 or more; give links_"
            f"{corpus.documents.language}.tsv.gz with a source and a target a line"
        )
    order = np.random.default_rng([seed, 73]).permutation(len(links))
    cuts = np.split(order, [round(0.7 * len(links)), round(0.8 * len(links))])
    names = ("train", "valid", "test")
    return {name: tuple(links[place] for place in cut) for name, cut in zip(names, cuts, strict=True)}


def _link_matrix(
    links: Iterable[tuple[str, str]], rows: dict[str, int], columns: dict[str, int], shape: tuple[int, int]
) -> sp.csr_matrix:
    """Return 1 at each link."""
    places = [(rows[source], columns[target]) for source, target in links]
    left, right = (np.array([place[side] for place in places], dtype=np.int64) for side in range(2))
    return _matrix(left, right, shape)


def _matrix(rows: Ids, columns: Ids, shape: tuple[int, int]) -> sp.csr_matrix:
    """Return 1 at each place, float32."""
    return sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
