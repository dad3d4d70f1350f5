"""Corpora from folders and from ir_datasets: documents with links, or with queries and judgments that are split."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.methods.lexical import fit_okapi
from papers.study import Study, StudyTrial, Texts, study_texts, study_vocabulary
from reranker.arrays import Float64, Int64
from reranker.errors import ConfigError, InputError, MissingExtra
from reranker.evaluation import RankingTask, draw_tuples
from reranker.formats import RejectLog, read_documents, read_ids
from reranker.tables import read_judgements, read_links, read_queries
from reranker.text.analyzers import make_analyzer, parse_analyzer
from reranker.text.vocabulary import Vocabulary

LIBRARY = "ir_datasets:"
MAX_DOCUMENTS = 2_000_000
"""Largest number of documents of a data set; studies hold all texts in memory."""
PARTS = ("docs", "queries", "qrels")


TitledTexts = Mapping[str, tuple[str, str]]
"""Title and text by document id."""
Grades = Mapping[str, Mapping[str, float]]
"""Grades by query id and document id."""


class JudgedTexts(NamedTuple):
    """Documents, queries (by id) and judgments; ``name`` has ``-`` for ``/``, as in the name of a folder."""

    name: str
    documents: TitledTexts
    queries: Mapping[str, str]
    grades: Grades
    notes: tuple[str, ...] = ()
    """Summaries of the lines that were rejected while reading."""


def library_name(corpus: Path) -> str | None:
    """Return the name after ``ir_datasets:``, or None for a folder."""
    text = str(corpus)
    return text.removeprefix(LIBRARY) if text.startswith(LIBRARY) else None


def corpus_name(corpus: Path) -> str:
    """Return the name of a corpus for tables: that of its folder, or of its data set in ir_datasets."""
    return library_name(corpus) or corpus.resolve().name


def read_library(name: str) -> JudgedTexts:
    """Return a data set of ir_datasets, which downloads it the first time; grades below 0 (junk, spam) count as 0.

    Raises
    ------
    MissingExtra
        If the library is not installed.
    InputError
        If the library does not know the name, the data set has no documents, queries or judgments or more than
        `MAX_DOCUMENTS` documents, or it cannot be downloaded.
    """
    try:
        ir_datasets = import_module("ir_datasets")
    except ImportError as error:
        raise MissingExtra("ir_datasets", "ir-datasets") from error
    data = _data_set(ir_datasets, name)
    try:
        documents = {str(one.doc_id): _title_and_text(one) for one in islice(data.docs_iter(), MAX_DOCUMENTS + 1)}
        if len(documents) > MAX_DOCUMENTS:
            raise InputError(
                f"{LIBRARY}{name} has more than {MAX_DOCUMENTS:,} documents, and studies hold all texts in memory: "
                f"name a smaller data set, or write a part of it to a folder",
                value=name,
            )
        queries = {str(one.query_id): str(one.default_text()) for one in data.queries_iter()}
        grades: dict[str, dict[str, float]] = {}
        for one in data.qrels_iter():
            grades.setdefault(str(one.query_id), {})[str(one.doc_id)] = max(float(one.relevance), 0.0)
    except (OSError, RuntimeError) as error:  # after its last attempt to download, the library raises RuntimeError
        raise InputError(
            f"{LIBRARY}{name} could not be downloaded or read ({_first_line(error)}): check the network, and the notes "
            f"of ir_datasets on licences and manual downloads of this data set",
            value=name,
        ) from error
    return JudgedTexts(name.replace("/", "-"), documents, queries, grades)


def _data_set(ir_datasets: Any, name: str) -> Any:
    """Return the library's handle of a data set that has all parts."""
    try:
        data = ir_datasets.load(name)
    except KeyError:
        known = sorted(str(one) for one in ir_datasets.registry)
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "its site, ir-datasets.com, lists the names"
        raise InputError(f"ir_datasets knows no data set {name!r}: {hint}", value=name) from None
    missing = [part for part in PARTS if not getattr(data, f"has_{part}")()]
    if missing:
        more = sorted(one for one in map(str, ir_datasets.registry) if one.startswith(f"{name}/"))
        hint = f"its parts are {', '.join(more[:8])}" if more else "name one that has them"
        raise InputError(f"{LIBRARY}{name} has no {' and no '.join(missing)}: {hint}", value=name)
    return data


def _title_and_text(document: Any) -> tuple[str, str]:
    """Return title and text; without a text field, the text is all text except the title."""
    title = str(getattr(document, "title", "") or "")
    text = getattr(document, "text", None)
    if text is None:
        text = str(document.default_text())
        text = text.removeprefix(title).lstrip() if title else text
    return title, str(text)


def _first_line(error: Exception) -> str:
    """Return the first line of an error message, without the list of attempts."""
    return f"{type(error).__name__}: {str(error.args[0] if error.args else error).splitlines()[0][:200]}"


Pair = tuple[str, str]
Tokens = list[list[str]]

ANALYZER = "unicode,stop=english"
TITLE_TIMES = 3
"""How often the title counts in a document; in a document used as a query it counts once."""
SMALL_DOCUMENTS, SMALL_WORDS = 400, 60
_SHARES = (0.7, 0.1)

_DOCUMENTS = ("docs_en.jsonl.gz", "docs.jsonl.gz", "docs.jsonl", "docs.parquet")
NEEDED = """\
  docs.jsonl[.gz]                       {"id", "title", "text"} per line (or docs.parquet), and one of
  links_train.tsv[.gz], links_valid..., links_test...   source id TAB target id
  links.tsv[.gz] (or links_en...)       the same, to be split 70/10/20 at random
  queries.tsv[.gz] and qrels.tsv[.gz]   query id TAB text; query id TAB document id TAB grade"""


@dataclass(frozen=True, eq=False)
class PaperCorpus:
    """Texts as words, with the pairs of a query and a document that belong together."""

    name: str
    ids: tuple[str, ...]
    """Document ids, ascending."""
    documents: Tokens
    """Words of each document, with the title `TITLE_TIMES` times."""
    plain: Tokens
    """Words of each document, with the title once."""
    query_ids: tuple[str, ...]
    queries: Tokens
    """Words of each query; a document used as a query has its title once."""
    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]
    """Relevant pairs (query id, document id) of each part of the split."""
    sides: tuple[frozenset[str], frozenset[str]] | None = None
    """Ids of the documents to train on and to test on; None if the corpus does not define them."""
    notes: tuple[str, ...] = ()
    """Summaries of the lines that were rejected while reading."""

    @property
    def documents_are_queries(self) -> bool:
        """Whether the queries are the documents themselves."""
        return self.query_ids == self.ids


def read_paper_corpus(folder: Path, seed: int, small: bool = False) -> PaperCorpus:
    """Return the corpus of a folder, or of ``ir_datasets:NAME``.

    The seed splits a corpus that has no split (`NEEDED` describes the files of a folder). Small mode keeps the
    `SMALL_DOCUMENTS` documents with the most links or judgments, and their first `SMALL_WORDS` words.

    Raises
    ------
    InputError
        If a file is missing or unusable, or ir_datasets has no such data set.
    MissingExtra
        For ``ir_datasets:`` if that library is not installed.
    """
    split = [file for part in ("train", "valid", "test") if (file := _table(folder, f"links_{part}"))]
    whole = _table(folder, "links") or _table(folder, "links_en")
    if len(split) == 3 or whole is not None:
        return _of_links(folder, split if len(split) == 3 or whole is None else [whole], seed, small)
    if library_name(folder) is None and not (_table(folder, "queries") and _table(folder, "qrels")):
        raise _missing(folder)
    return _of_queries(folder, seed, small)


def _of_links(folder: Path, files: Sequence[Path], seed: int, small: bool) -> PaperCorpus:
    """Return a corpus whose documents are the queries, with links in three files or in one that is split."""
    notes: list[str] = []
    sources = titled_texts(_documents(folder), notes)
    links = [_pairs(file, notes) for file in files]
    parts = links if len(links) > 1 else split_at_random(links[0], np.random.default_rng([seed, 1]))
    ids, documents, plain = _tokens(sources, [one for part in parts for one in part], small)
    known = set(ids)
    kept = [tuple(one for one in dict.fromkeys(part) if known.issuperset(one) and one[0] != one[1]) for part in parts]
    _check(folder.name, kept, ids)
    return PaperCorpus(
        folder.name, ids, documents, plain, ids, plain, kept[0], kept[1], kept[2], _sides(folder), tuple(notes)
    )


def _of_queries(folder: Path, seed: int, small: bool) -> PaperCorpus:
    """Return a corpus of queries with judgments; the split is by query."""
    name, sources, texts, grades, notes = judged_texts(folder)
    judged = [(query, document) for query, row in grades.items() for document, grade in row.items() if grade > 0]
    ids, documents, plain = _tokens(sources, judged, small)
    known = set(ids)
    usable = [(q, d) for q, d in judged if q in texts and d in known]
    names = sorted({q for q, _ in usable})
    groups = split_at_random(names, np.random.default_rng([seed, 1]))
    train, valid, test = (tuple(pair for pair in usable if pair[0] in set(group)) for group in groups)
    _check(name, [train, valid, test], ids)
    words = make_analyzer(parse_analyzer(ANALYZER)).tokens([texts[one] for one in names])
    return PaperCorpus(name, ids, documents, plain, tuple(names), words, train, valid, test, _sides(folder), notes)


def _tokens(sources: TitledTexts, pairs: Iterable[Pair], small: bool) -> tuple[tuple[str, ...], Tokens, Tokens]:
    """Return ascending ids, and words with the title repeated and once; small mode keeps ids that are in most pairs."""
    times = Counter(one for pair in pairs for one in pair)
    ids = sorted(sources, key=lambda one: (-times[one], one))[: SMALL_DOCUMENTS if small else None]
    ids.sort()
    analyzer = make_analyzer(parse_analyzer(ANALYZER))
    titles, texts = (analyzer.tokens([sources[one][part] for one in ids]) for part in range(2))
    if small:
        texts = [text[:SMALL_WORDS] for text in texts]
    documents = [title * TITLE_TIMES + text for title, text in zip(titles, texts, strict=True)]
    plain = [title + text for title, text in zip(titles, texts, strict=True)]
    return tuple(ids), documents, plain


def _pairs(file: Path, notes: list[str]) -> list[Pair]:
    """Return the links of a file."""
    with noted(file.name, notes) as rejects:
        return [(link.source, link.target) for link in read_links(file, rejects=rejects)]


@contextmanager
def noted(name: str, notes: list[str]) -> Iterator[RejectLog]:
    """Yield a sink for rejected lines; afterwards a summary of them is added to ``notes``."""
    with RejectLog() as rejects:
        yield rejects
        if rejects.count:
            notes.append(f"{name}: {rejects.summary()}")


def split_at_random(things: Sequence[Any], rng: np.random.Generator) -> list[list[Any]]:
    """Return random parts of 70, 10 and 20 % of the items, each in the original order."""
    order = rng.permutation(len(things))
    first, second = (round(len(things) * share) for share in (_SHARES[0], sum(_SHARES)))
    return [[things[place] for place in np.sort(part)] for part in np.split(order, [first, second])]


def _sides(folder: Path) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the ids of the documents to train and to test on, if the folder defines them."""
    found = [first_of(folder, (f"docs_{part}_ids.txt.gz", f"docs_{part}_ids.txt")) for part in ("train", "test")]
    if found[0] is None or found[1] is None:
        return None
    return frozenset(read_ids(found[0])), frozenset(read_ids(found[1]))


def _check(name: str, parts: Sequence[Sequence[Pair]], ids: Sequence[str]) -> None:
    """Raise `InputError` for a corpus without training, validation or test pairs."""
    empty = [part for part, pairs in zip(("training", "validation", "test"), parts, strict=True) if not pairs]
    if empty:
        raise InputError(
            f"the corpus {name!r} has no {' and no '.join(empty)} pair between its {len(ids):,} documents and its "
            f"queries: check that the ids in links or judgments are ids of documents"
        )


def _table(folder: Path, stem: str) -> Path | None:
    return first_of(folder, (f"{stem}.tsv.gz", f"{stem}.tsv"))


def first_of(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first of the files that exists."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _missing(folder: Path) -> InputError:
    """Return the error for a folder that is not a corpus, with the files it needs."""
    there = ", ".join(sorted(one.name for one in folder.iterdir())[:20]) if folder.is_dir() else "no such folder"
    return InputError(
        f"{str(folder)!r} holds no corpus for this task ({there}). It needs\n{NEEDED}\n"
        f"Name the folder with --corpus DIR, or set SSI_DATA to a folder that holds it.",
        folder=str(folder),
    )


def judged_texts(folder: Path) -> JudgedTexts:
    """Return the documents, queries and judgments of a folder (see `NEEDED`), or of ``ir_datasets:NAME``.

    Invalid lines are left out.

    Raises
    ------
    InputError
        If a file or a data set is missing or damaged.
    MissingExtra
        For ``ir_datasets:`` if that library is not installed.
    """
    if (name := library_name(folder)) is not None:
        return read_library(name)
    notes: list[str] = []
    tables = {stem: _table(folder, stem) for stem in ("queries", "qrels")}
    absent = [f"{stem}.tsv[.gz]" for stem, file in tables.items() if file is None]
    if tables["queries"] is None or tables["qrels"] is None:
        raise InputError(
            f"{str(folder)!r} has no {' and no '.join(absent)}: this task needs queries with judgments. Name another "
            f"corpus with --corpus DIR; `ssi reproduce --list` shows those of each task",
            folder=str(folder),
        )
    documents = titled_texts(_documents(folder), notes)
    with noted("queries and judgements", notes) as rejects:
        queries = dict(read_queries(tables["queries"], rejects=rejects))
        judged = read_judgements(tables["qrels"], rejects)
    return JudgedTexts(folder.name, documents, queries, judged, tuple(notes))


def titled_texts(file: Path, notes: list[str] | None = None) -> TitledTexts:
    """Return titles and texts of a file of documents, empty if missing; without ``notes``, invalid lines raise."""
    with nullcontext() if notes is None else noted(file.name, notes) as rejects:
        read = read_documents(file, rejects=rejects)
        return {one.id: (str(one.source.get("title") or ""), str(one.source.get("text") or "")) for one in read}


def _documents(folder: Path) -> Path:
    """Return the file of documents."""
    file = first_of(folder, _DOCUMENTS)
    if file is None:
        raise _missing(folder)
    return file


def usable_judgements(
    judged: Grades, queries: Mapping[str, object], documents: Mapping[str, object]
) -> tuple[Grades, dict[str, int]]:
    """Return the judgments of queries and documents with a text, and the number of dropped queries by reason."""
    kept, counts = {}, {"query without a text": 0, "query without a relevant document": 0}
    for query, row in judged.items():
        known = {document: grade for document, grade in row.items() if document in documents}
        if query not in queries:
            counts["query without a text"] += 1
        elif max(known.values(), default=0.0) < 1.0:
            counts["query without a relevant document"] += 1
        else:
            kept[query] = known
    return kept, {reason: number for reason, number in counts.items() if number}


N_SNIPPETS = 100
"""Largest number of result snippets in a pseudo-document."""


def snippet(tokens: Sequence[str], query: Iterable[str], n_words: int = 30) -> tuple[str, ...]:
    """Return the first window of ``n_words`` words that contains the most distinct words of the query.

    This is for engines that return documents without snippets. A shorter document is returned whole.

    Raises
    ------
    ConfigError
        If ``n_words`` is below 1.
    """
    if n_words < 1:
        raise ConfigError(f"n_words is {n_words}: a snippet has at least 1 word")
    wanted = set(query)
    held: dict[str, int] = {}
    best, start = -1, 0
    for end, word in enumerate(tokens):
        if word in wanted:
            held[word] = held.get(word, 0) + 1
        gone = tokens[end - n_words] if end >= n_words else None
        if gone in held:
            held[gone] -= 1
            if not held[gone]:
                del held[gone]
        if end >= min(n_words, len(tokens)) - 1 and len(held) > best:
            best, start = len(held), max(0, end - n_words + 1)
    return tuple(tokens[start : start + n_words])


PSEUDO = "pseudo-documents"
"""Name of the view with the tf-idf rows of all snippets of a query."""
_BLOCK = 256


def with_pseudo_documents(
    queries: Texts,
    query_tokens: Sequence[Sequence[str]],
    documents: Texts,
    document_tokens: Sequence[Sequence[str]],
    vocabulary: Vocabulary,
    n_snippets: int = N_SNIPPETS,
) -> Texts:
    """Return the queries with the view `PSEUDO`: snippets of 30 words from their best documents by BM25.

    Documents that share no word with a query are not results of it. Judgments are not used. Snippets are taken from
    ``document_tokens``, the words in their order; a query has at most ``n_snippets`` results.

    Source: S2Net, advertisements; spec 1.5, R04.
    """
    okapi = fit_okapi(documents.counts)
    texts: list[list[str]] = []
    for start in range(0, len(queries), _BLOCK):
        scores = okapi.score_matrix(queries.counts[start : start + _BLOCK], documents.counts)
        for row, line in enumerate(scores, start):
            best = np.argsort(-line, kind="stable")[:n_snippets]
            words = query_tokens[row]
            cuts = [snippet(document_tokens[document], words) for document in best[line[best] > 0].tolist()]
            texts.append([word for cut in cuts for word in cut])
    return queries.with_view(PSEUDO, study_texts(texts, vocabulary, documents.idf).rows)


N_WORDS = 20_000
"""Largest number of words of the vocabulary."""
N_TUPLES = 20_000
TEST_SHARE, VALID_SHARE = 0.4, 0.25
"""Share of the queries for the test, and of the other queries for validation.

T7 in part has this split (its own is 40, 30 and 30 %).
"""
SMALL_QUERIES, SMALL_JUDGED, SMALL_JUDGED_WORDS = 24, 15, 2_000


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents, queries and judgments."""

    name: str
    document_ids: tuple[str, ...]
    query_ids: tuple[str, ...]
    """Query ids, ascending."""
    documents: Texts
    queries: Texts
    """Texts in the order of the ids, over the words of the documents."""
    grades: sp.csr_matrix
    """Judgments, (n_queries, n_documents) float32; 0 is stored for a document judged not relevant."""
    whole: bool
    """Whether every query ranks all documents, because the judgments list only relevant ones.

    Documents without a judgment then count as not relevant. Otherwise a query ranks only the documents judged for it.
    """
    groups: tuple[str, ...] = ()
    """Group of each query, for instance its topic; default: the query itself. Splits never divide a group."""
    relevant_from: float = 1.0
    """Lowest grade that counts as relevant."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of unused queries or judgments by reason."""

    def group_of(self) -> npt.NDArray[np.str_]:
        """Return the group of each query."""
        return np.array(self.groups or self.query_ids)

    def regraded(self, grade_of: Mapping[float, float]) -> Collection:
        """Return the same judgments on another scale; grades that are not named stay."""
        data = np.array([grade_of.get(float(grade), float(grade)) for grade in self.grades.data], dtype=np.float32)
        grades = sp.csr_matrix((data, self.grades.indices, self.grades.indptr), shape=self.grades.shape)
        return replace(self, grades=grades)

    def trial(self, rows: Int64, seed: int) -> StudyTrial:
        """Return a trial of the given queries, over all documents if ``whole``, else over the judged ones of each."""
        grades = self.grades[rows]
        pool = np.arange(len(self.document_ids)) if self.whole else np.unique(grades.indices).astype(np.int64)
        grades = sp.csr_matrix(grades[:, pool])
        grades.sort_indices()
        task = RankingTask(
            tuple(self.query_ids[row] for row in rows),
            tuple(self.document_ids[column] for column in pool),
            grades,
            sp.csr_matrix(np.zeros(grades.shape, dtype=bool)) if self.whole else _others(grades),
            self.dropped,
            self.relevant_from,
        )
        tuples = draw_tuples(task, np.random.default_rng([seed, 1]), N_TUPLES)
        groups = tuple(self.group_of()[rows].tolist())
        return StudyTrial(self.queries.take(rows), pool.astype(np.int64), task, tuples, groups=groups)

    def study(self, name: str, seed: int, split: QueryRows) -> Study:
        """Return the study of a split."""
        judged = sp.csr_matrix(self.grades[split.train])
        judged.sort_indices()
        relevant = judged.copy()
        relevant.data[relevant.data < self.relevant_from] = 0.0
        relevant.eliminate_zeros()
        return Study(
            name=name,
            seed=seed,
            documents=self.documents,
            queries=self.queries.take(split.train),
            relevant=relevant,
            own=np.full(len(split.train), -1, dtype=np.int64),
            valid=self.trial(split.valid, seed),
            test=self.trial(split.test, seed),
            judged=judged,
        )


@dataclass(frozen=True)
class QueryRows:
    """Rows of the queries to train on, to tune on and to test on."""

    train: Int64
    valid: Int64
    test: Int64


def read_collection(
    folder: Path,
    *,
    small: bool = False,
    max_queries: int | None = None,
    seed: int = 0,
    pseudo_documents: bool = False,
) -> Collection:
    """Return the collection of a folder with docs.jsonl.gz, queries.tsv.gz and qrels.tsv.gz, or of ir_datasets.

    Queries without a relevant document are left out, because every ranking has the same value for them.

    Parameters
    ----------
    small : bool
        Keep 24 queries and 15 judged documents of each.
    max_queries : int, optional
        Keep this number of queries, drawn at random by the seed.
    pseudo_documents : bool
        Give the queries a view of pseudo-documents (R04).

    Raises
    ------
    InputError
        If a file is missing or damaged, or no judgment is usable.
    """
    name, documents, texts, judged, _ = judged_texts(folder)
    grades, dropped = usable_judgements(judged, texts, documents)
    if max_queries is not None and not small:
        grades = some_queries(grades, max_queries, np.random.default_rng(seed))
    if small:
        grades = _small(grades)
    return make_collection(
        name, documents, texts, grades, small=small, dropped=dropped, pseudo_documents=pseudo_documents
    )


def make_collection(
    name: str,
    documents: Mapping[str, tuple[str, str]],
    queries: Mapping[str, str],
    grades: Grades,
    *,
    small: bool = False,
    group_of: Mapping[str, str] | None = None,
    dropped: Mapping[str, int] | None = None,
    pseudo_documents: bool = False,
) -> Collection:
    """Return a collection of texts in memory.

    Parameters
    ----------
    documents : mapping of id to (title, text)
    queries : mapping of id to text
        At least the judged queries.
    grades : mapping of query id to mapping of document id to grade
        All queries and documents must be in the other mappings.
    small : bool
        Keep the judged documents and `SMALL_JUDGED_WORDS` words.
    group_of : mapping of query id to group, optional
    dropped : mapping of str to int, optional
    pseudo_documents : bool
        As in `read_collection`.
    """
    make = make_analyzer(parse_analyzer(ANALYZER))
    used = {document for row in grades.values() for document in row} if small else documents
    document_ids, query_ids = tuple(sorted(used)), tuple(sorted(grades))
    if not query_ids:
        raise InputError(f"{name} has no query with a relevant document among those with a text: check qrels and ids")
    titles = make.tokens([documents[one][0] for one in document_ids])
    bodies = make.tokens([documents[one][1] for one in document_ids])
    tokens = [title * TITLE_TIMES + body for title, body in zip(titles, bodies, strict=True)]
    vocabulary = study_vocabulary(tokens, SMALL_JUDGED_WORDS if small else N_WORDS)
    texts = study_texts(tokens, vocabulary)
    words = make.tokens([queries[one] for one in query_ids])
    asked = study_texts(words, vocabulary, texts.idf)
    if pseudo_documents:
        asked = with_pseudo_documents(asked, words, texts, tokens, vocabulary)
    place = {one: column for column, one in enumerate(document_ids)}
    entries = [(row, place[d], g) for row, query in enumerate(query_ids) for d, g in grades[query].items()]
    rows, columns, data = (np.array(part) for part in zip(*entries, strict=True))
    matrix = _matrix(rows, columns, data, (len(query_ids), len(document_ids)))
    groups = () if group_of is None else tuple(group_of[one] for one in query_ids)
    whole = bool((matrix.data > 0).all())
    return Collection(name, document_ids, query_ids, texts, asked, matrix, whole, groups, 1.0, dropped or {})


def repeated_splits(collection: Collection, n_splits: int, seed: int) -> Iterator[tuple[str, QueryRows]]:
    """Yield random splits of 60 to 40 by group of queries; the training part is split again for validation."""
    for number in range(n_splits):
        rng = np.random.default_rng([seed, number])
        names = rng.permutation(np.unique(collection.group_of()))
        n_test = max(1, round(TEST_SHARE * len(names)))
        yield f"split-{number + 1}", _split(collection, names[n_test:], names[:n_test])


def folds(collection: Collection, n_folds: int, seed: int) -> Iterator[tuple[str, QueryRows]]:
    """Yield the folds of a cross-validation over groups of queries; each query is tested on once."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(np.unique(collection.group_of()))
    for number in range(n_folds):
        test = np.arange(len(names)) % n_folds == number
        yield f"fold-{number + 1}", _split(collection, names[~test], names[test])


def studies_of(collection: Collection, splits: Iterator[tuple[str, QueryRows]], seed: int) -> Iterator[Study]:
    """Yield the study of each split."""
    for number, (name, split) in enumerate(splits):
        yield collection.study(name, seed + number, split)


def _split(collection: Collection, others: npt.NDArray[np.str_], test: npt.NDArray[np.str_]) -> QueryRows:
    """Return the rows of the groups; the first of the other groups are for validation."""
    groups = collection.group_of()
    n_valid = max(1, round(VALID_SHARE * len(others)))
    parts = (others[n_valid:], others[:n_valid], test)
    return QueryRows(*(np.flatnonzero(np.isin(groups, part)).astype(np.int64) for part in parts))


def _others(grades: sp.csr_matrix) -> sp.csr_matrix:
    """Return the pairs that were not judged; they are excluded."""
    judged = np.zeros(grades.shape, dtype=bool)
    judged[np.repeat(np.arange(grades.shape[0]), np.diff(grades.indptr)), grades.indices] = True
    return sp.csr_matrix(~judged)


def some_queries(grades: Grades, n: int, rng: np.random.Generator) -> dict[str, Mapping[str, float]]:
    """Return the judgments of n random queries, or of all if there are not more."""
    names = sorted(grades)
    kept = names if len(names) <= n else sorted(rng.choice(names, n, replace=False).tolist())
    return {name: grades[name] for name in kept}


def _small(grades: Grades) -> dict[str, Mapping[str, float]]:
    """Return a few queries with a few judgments each, from the highest and the lowest grades."""
    kept: dict[str, Mapping[str, float]] = {}
    for query in sorted(grades)[:SMALL_QUERIES]:
        order = sorted(grades[query], key=lambda one, row=grades[query]: (-row[one], one))  # type: ignore[misc]
        half = SMALL_JUDGED // 2
        chosen: Sequence[str] = [*order[:half], *order[half:][-(SMALL_JUDGED - half) :]]
        kept[query] = {one: grades[query][one] for one in chosen}
    return kept


def _matrix(rows: Int64, columns: Int64, data: Float64, shape: tuple[int, int]) -> sp.csr_matrix:
    """Return a CSR matrix with sorted columns and explicit zeros."""
    order = np.lexsort((columns, rows))
    indptr = np.searchsorted(rows[order], np.arange(shape[0] + 1))
    return sp.csr_matrix((data[order].astype(np.float32), columns[order].astype(np.int32), indptr), shape=shape)
