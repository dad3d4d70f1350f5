"""A corpus of two languages with mates and links, and its studies: finding mates, and retrieval across languages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from papers.corpora import QueryRows, TitledTexts, split_at_random, titled_texts
from papers.methods.rows import idf_of, tfidf_rows
from papers.methods.translation import TextTable, WordTable, fit_dice_table, fit_ibm_table
from papers.methods.word_pairs import join_columns
from papers.registry import Progress
from papers.study import Study, StudyTrial, Texts, link_matrix, study_texts, study_vocabulary
from reranker.arrays import Float64, Int64
from reranker.errors import ConfigError, InputError
from reranker.evaluation import RankingTask, draw_tuples, link_task
from reranker.tables import read_links
from reranker.text.analyzers import Analyzer, make_analyzer, normalised, parse_analyzer
from reranker.text.rows import row_of, with_data

Tokens = list[list[str]]
Links = tuple[tuple[str, str], ...]

ANALYZERS: dict[str, str] = {"en": "unicode,stop=english", "ja": "japanese"}
"""Analyzers by language; other languages use ``unicode``."""
OTHER_SCRIPTS = ("ar", "el", "he", "hi", "ja", "ko", "ru", "th", "uk", "zh")
"""Languages with another script than Latin: Latin words in them are mostly names, which by themselves find the mate."""
TITLE_WEIGHT = 3
"""How often a title counts in a document, because pages name the titles of pages that they link to."""

_LATIN = re.compile("[A-Za-z0-9_]+")
_BATCH = 500


@dataclass(frozen=True)
class Side:
    """The texts of one language."""

    language: str
    """Language code, as in ``docs_<language>.jsonl.gz``."""
    ids: tuple[str, ...]
    """Ids of the texts, ascending."""
    titles: tuple[list[str], ...]
    texts: tuple[list[str], ...]
    """Words of each title and text."""

    def as_queries(self) -> Tokens:
        """Return title and text once each: a page used as a query should not find pages that repeat its own title."""
        return [title + text for title, text in zip(self.titles, self.texts, strict=True)]

    def as_documents(self) -> Tokens:
        """Return the title `TITLE_WEIGHT` times, followed by the text."""
        return [TITLE_WEIGHT * title + text for title, text in zip(self.titles, self.texts, strict=True)]

    def rows_of(self, ids: Sequence[str]) -> list[int]:
        """Return the row of each id."""
        row_of = {one: row for row, one in enumerate(self.ids)}
        return [row_of[one] for one in ids]


@dataclass(frozen=True)
class Bilingual:
    """Texts in two languages, and links within the language of the documents."""

    queries: Side
    documents: Side
    """English if it is one of the two languages, else the alphabetically first."""
    links: Links
    """Links between documents."""
    parts: dict[str, Links] | None = None
    """The corpus's own split of the links, if it has one."""

    @property
    def mates(self) -> tuple[str, ...]:
        """Ids that both sides have, ascending."""
        return tuple(sorted(set(self.queries.ids) & set(self.documents.ids)))


def languages_of(folder: Path) -> tuple[str, str]:
    """Return (language of the queries, language of the documents) of a folder.

    Raises
    ------
    ConfigError
        If the folder does not contain texts of exactly two languages.
    """
    found = sorted(path.name[len("docs_") : -len(".jsonl.gz")] for path in folder.glob("docs_*.jsonl.gz"))
    if len(found) != 2:
        raise ConfigError(
            f"{str(folder)!r} holds texts of {len(found)} languages ({', '.join(found) or 'none'}): a corpus of mates "
            f"has docs_A.jsonl.gz and docs_B.jsonl.gz, in which equal ids are mates"
        )
    documents = "en" if "en" in found else found[0]
    return next(one for one in found if one != documents), documents


def read_bilingual(folder: Path, progress: Progress, limit: int | None = None) -> Bilingual:
    """Return the corpus of a folder.

    Parameters
    ----------
    folder : Path
        Contains ``docs_A.jsonl.gz``, ``docs_B.jsonl.gz`` and, for retrieval, ``links_train``, ``links_valid`` and
        ``links_test.tsv.gz``, or ``links.tsv.gz`` (or ``links_<documents' language>.tsv.gz``) to be split.
    limit : int, optional
        Keep only this number of mates, the first by id.

    Raises
    ------
    ConfigError
        As `languages_of`.
    InputError
        If no id occurs on both sides, or a file cannot be read.
    """
    languages = languages_of(folder)
    raw = [titled_texts(folder / f"docs_{language}.jsonl.gz") for language in languages]
    mates = sorted(set(raw[0]) & set(raw[1]))
    if not mates:
        raise InputError(f"no text of {str(folder)!r} has a mate: give texts of both languages the same id")
    if limit is not None:
        kept = set(mates[:limit])
        raw = [{one: text for one, text in side.items() if one in kept} for side in raw]
    queries, documents = (_side(language, side, progress) for language, side in zip(languages, raw, strict=True))
    known = set(documents.ids)
    parts = _parts(folder, known)
    whole = (folder / f"{stem}.tsv.gz" for stem in (f"links_{documents.language}", "links"))
    path = next((path for path in whole if path.exists()), None)
    links = tuple(link for part in (parts or {}).values() for link in part) if path is None else _links(path, known)
    return Bilingual(queries, documents, links, parts)


def _parts(folder: Path, known: set[str]) -> dict[str, Links] | None:
    """Return the corpus's own split of its links, or None."""
    paths = {part: folder / f"links_{part}.tsv.gz" for part in ("train", "valid", "test")}
    if not all(path.exists() for path in paths.values()):
        return None
    return {part: _links(path, known) for part, path in paths.items()}


def _links(path: Path, known: set[str]) -> Links:
    """Return the distinct links between known documents, without links to itself."""
    links = ((link.source, link.target) for link in read_links(path))
    return tuple(dict.fromkeys((s, t) for s, t in links if s != t and s in known and t in known))


def _side(language: str, sources: TitledTexts, progress: Progress) -> Side:
    """Return the texts of a language as words."""
    analyzer = make_analyzer(parse_analyzer(ANALYZERS.get(language, "unicode")))
    ids = tuple(sorted(sources))
    titles, texts = (_words(analyzer, language, [sources[one][field] for one in ids], progress) for field in range(2))
    return Side(language, ids, titles, texts)


def _words(analyzer: Analyzer, language: str, texts: Sequence[str], progress: Progress) -> tuple[list[str], ...]:
    """Return the words of texts; Latin words are left out if the language has another script."""
    if language in OTHER_SCRIPTS:
        texts = [_LATIN.sub(" ", normalised(text)) for text in texts]
    found: list[list[str]] = []
    for start in range(0, len(texts), _BATCH):
        found.extend(analyzer.tokens(texts[start : start + _BATCH]))
        progress(f"words of {language}", len(found), len(texts))
    return tuple(found)


TRAIN_SHARE = 0.7
VALID_SHARE = 0.1
"""Share of the training mates that is used for validation."""
MATE_WORDS = 20_000
"""Number of words per language for comparable documents (spec 1.3)."""
LINK_WORDS = 30_000
"""Number of words per language for retrieval (spec 1.3)."""
N_TUPLES = (100_000, 100_000)
"""Number of tuples of the rank loss for validation and for the test."""

TRANSLATIONS = ("texts-ibm", "texts-dice", "words-ibm", "words-dice")
"""Views of translated queries: whole texts or word by word, by the table of IBM model 1 or of DICE."""
BESIDE = "beside-texts-ibm"
"""View of a query followed by its translation."""
ONCE = "once"
"""View of documents in the form of queries, with the title once."""


def split_mates(n_mates: int, seed: int) -> QueryRows:
    """Return a random split: `TRAIN_SHARE` for training, of which `VALID_SHARE` for validation; the rest for the test.

    Raises
    ------
    InputError
        If there are fewer than 20 mates.
    """
    if n_mates < 20:
        raise InputError(f"{n_mates} mates are too few for training, validation and test: give 20 or more")
    order = np.random.default_rng([seed, 70]).permutation(n_mates)
    n_train = round(TRAIN_SHARE * n_mates)
    n_valid = max(2, round(VALID_SHARE * n_train))
    train, valid, test = order[n_valid:n_train], order[:n_valid], order[n_train:]
    return QueryRows(*(np.sort(part).astype(np.int64) for part in (train, valid, test)))


def mates_study(corpus: Bilingual, seed: int, n_words: int = MATE_WORDS, n_tuples: tuple[int, int] = N_TUPLES) -> Study:
    """Return the study of finding mates (T5, T6): trained on pairs, tested among the texts of the test part.

    Vocabulary and idf are those of the training pairs. Titles count once on both sides, because both are searched.
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
    relevant = sp.csr_matrix(sp.eye_array(len(mates), dtype=np.float32, format="csr")[split.train])
    rng = np.random.default_rng([seed, 71])

    def trial(rows: Int64, n: int) -> StudyTrial:
        ids = tuple(mates[row] for row in rows)
        grades = sp.csr_matrix(sp.eye_array(len(rows), dtype=np.float32, format="csr"))
        none = sp.csr_matrix(grades.shape, dtype=np.bool_)  # type: ignore[arg-type]
        task = RankingTask(ids, ids, grades, none)
        return StudyTrial(queries.take(rows), rows, task, draw_tuples(task, rng, n))

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


def bilingual_study(
    corpus: Bilingual, seed: int, n_words: int = LINK_WORDS, n_tuples: tuple[int, int] = N_TUPLES
) -> Study:
    """Return the study of cross-language retrieval (T4): a query is a page whose mate links to the relevant documents.

    Links are split as in T1. `TRAIN_SHARE` of the mates train CL-LSI and the word tables. Queries for validation and
    test are pages of the other mates, so no translation was trained on their own mates. The mate of a query is excluded
    from its ranking. Vocabulary and idf are those of all pages of a language, because they need no labels.

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

    def trial(part: str, n: int) -> StudyTrial:
        known = [link for name, links in parts.items() if name != part for link in links]
        task = link_task(parts[part], known, corpus.documents.ids, unseen)
        rows = np.array([mate_row[one] for one in task.query_ids], dtype=np.int64)
        pool = np.array([place[one] for one in task.document_ids], dtype=np.int64)
        return StudyTrial(queries.take(rows), pool, task, draw_tuples(task, rng, n))

    train = [link for link in parts["train"] if link[0] in mate_row]
    others = [link for name in ("valid", "test") for link in parts[name] if link[0] in mate_row]
    return Study(
        name=f"retrieval-{seed}",
        seed=seed,
        documents=document_texts,
        queries=queries,
        relevant=link_matrix(train, mate_row, place),
        own=np.array([place[one] for one in mates], dtype=np.int64),
        valid=trial("valid", n_tuples[0]),
        test=trial("test", n_tuples[1]),
        known=link_matrix(others, mate_row, place),
        mates=pairs,
    )


def _retrieval_texts(
    corpus: Bilingual, mates: Sequence[str], shown: Int64, n_words: int
) -> tuple[Texts, Texts, tuple[Texts, Texts]]:
    """Return the documents, the mates' pages as queries with their translations, and the training pairs.

    Pages whose mates are training pairs have empty translations: a table that was trained on them would translate them
    better than new pages, and the ranker would learn to rely on that.
    """
    once = corpus.documents.as_queries()
    vocabulary = study_vocabulary(once, n_words)
    documents = study_texts(corpus.documents.as_documents(), vocabulary)
    documents = damped(documents, documents.idf)
    plain = damped(study_texts(once, vocabulary), documents.idf)
    documents = documents.with_view(ONCE, plain.rows)
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
    more[BESIDE] = join_columns(queries.rows, more["texts-ibm"])
    return documents, replace(queries, more=more), pairs


def translations(
    counts: sp.csr_matrix, idf: Float64, left: sp.csr_matrix, right: sp.csr_matrix
) -> dict[str, sp.csr_matrix]:
    """Return the tf-idf rows of texts in the other language, by the names of `TRANSLATIONS`.

    Word by word, every word becomes the most probable words of its row. A whole text becomes the words that explain all
    of its words together (`TextTable` with the table of the reverse direction). Counts of translations are fractions,
    so they are damped by ln(1 + tf).

    Parameters
    ----------
    counts : csr_matrix, (n, D_q)
        Counts of the texts to translate.
    idf : (D_d,) float64
        idf of the target language.
    left, right : csr_matrix, (n_pairs, D_q) and (n_pairs, D_d)
        Counts of the mates that the tables are trained on.
    """
    found = {}
    for name, fit in (("ibm", fit_ibm_table), ("dice", fit_dice_table)):
        table: WordTable = fit(left, right)
        back = fit(right, left)
        emissions = sp.csr_matrix(back.probabilities.T)
        translators: dict[str, WordTable | TextTable] = {f"words-{name}": table, f"texts-{name}": TextTable(emissions)}
        for view, translator in translators.items():
            translated = translator.translate(counts)
            found[view] = tfidf_rows(with_data(translated, np.log1p(translated.data)), idf)
    return {view: found[view] for view in TRANSLATIONS}


def _texts(tokens: Sequence[Sequence[str]], train: Int64, n_words: int) -> Texts:
    """Return texts over the vocabulary, and with the idf, of the training rows."""
    vocabulary = study_vocabulary([tokens[row] for row in train], n_words)
    texts = study_texts(tokens, vocabulary)
    return damped(texts, idf_of(texts.counts[train]))


def damped(texts: Texts, idf: Float64) -> Texts:
    """Return the texts with rows of (1 + ln tf) idf at unit length; counts are unchanged.

    Pages of code and tables repeat their words. With raw tf, CL-LSI of 500 factors finds fewer mates (MRR .956 instead
    of .989 on validation pairs of the C++ documentation).
    """
    return replace(texts, rows=tfidf_rows(with_data(texts.counts, 1.0 + np.log(texts.counts.data)), idf), idf=idf)


def _link_parts(corpus: Bilingual, seed: int) -> dict[str, Links]:
    """Return the corpus's own split of its links, or a random one of 70, 10 and 20 per cent."""
    if corpus.parts is not None and all(corpus.parts.values()):
        return corpus.parts
    links = corpus.links
    if len(links) < 10:
        raise InputError(
            f"the corpus has {len(links)} links, and retrieval needs 10 or more: give links_"
            f"{corpus.documents.language}.tsv.gz with one source and target per line"
        )
    parts = map(tuple, split_at_random(links, np.random.default_rng([seed, 73])))
    return dict(zip(("train", "valid", "test"), parts, strict=True))
