"""The corpora of the study in `generalisation`: splits, files for the commands, tasks and texts for the rivals."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from end_to_end_data import N_PARTS, read_collection
from package_corpora import PACKAGES

from reranker.evaluation import RankingTask, draw_keywords, link_task, qrels_task
from reranker.formats import read_ids
from reranker.tables import read_links, read_qrels, read_queries
from reranker.text.analyzers import make_analyzer, parse_analyzer
from reranker.text.tfidf import count_rows
from reranker.text.vocabulary import VocabularyBuilder

LINKED = ("cppdocs", "mdn", "aws", "rfc")
JUDGED = ("nfcorpus", "insuranceqa", "msrd_movies", "esci_sample", "cranfield", "cisi", "wikimedia_discernatron")
MEASURES = {name: "AP" for name in (*LINKED, *PACKAGES, *JUDGED)} | {"msrd_movies": "nDCG@10", "esci_sample": "nDCG@10"}
"""What each corpus is measured by."""
SMALL_DOCUMENTS, SMALL_QUERIES = 400, 200
HELD_OUT = 5
"""One document in five validates the rivals where a split by documents names none for that."""
Grades = Mapping[str, Mapping[str, float]]
"""Query -> document -> grade."""


@dataclass(frozen=True)
class Split:
    """What is learned from, what training stops by, and what is asked at the end.

    ``stop`` is empty where `ssi train` holds out evidence of its own. Rivals are tuned by learning from ``fit`` and
    ranking ``valid_pool`` for ``valid``, and learn from ``learn`` at the end.
    """

    learn: Grades
    stop: Grades
    test: Grades
    pool: frozenset[str]
    fit: Grades
    valid: Grades
    valid_pool: frozenset[str]


@dataclass(frozen=True)
class Corpus:
    """Documents as id -> (title, text), their file, and splits by name; ``queries`` are texts, empty where linked."""

    name: str
    docs: Path
    documents: Mapping[str, tuple[str, str]]
    queries: Mapping[str, str]
    splits: Mapping[str, Split]

    @property
    def linked(self) -> bool:
        """Whether documents ask, by what they link to."""
        return not self.queries

    def task(self, asked: Grades, known: Grades, pool: Collection[str]) -> RankingTask:
        """Return the task of ranking the pool; the targets of ``known`` links do not take part."""
        if self.linked:
            return link_task(pairs(asked), pairs(known), pool, self.documents)
        return qrels_task(asked, self.queries, pool)

    def asked_with(self, kind: str, ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the fields of queries: title and text of a document, its keywords, or the text of a judged query."""
        if not self.linked:
            return {query: (self.queries[query],) for query in ids if query in self.queries}
        known = [document for document in ids if document in self.documents]
        if kind == "document":
            return {document: self.documents[document] for document in known}
        return self._keywords(known, int(kind.partition(":")[2]))

    def _keywords(self, ids: Sequence[str], n_words: int) -> dict[str, tuple[str, ...]]:
        """Return the words that `ssi evaluate --queries keywords:K` draws, as often as they stand in the document."""
        analyzer = make_analyzer(parse_analyzer("unicode"))
        tokens = [[word for part in analyzer.tokens(self.documents[document]) for word in part] for document in ids]
        builder = VocabularyBuilder()
        builder.add(tokens)
        vocabulary = builder.build()
        drawn = draw_keywords(count_rows(vocabulary, tokens), ids, n_words, 0, vocabulary)
        texts: dict[str, tuple[str, ...]] = {}
        for row, document in enumerate(ids):
            span = slice(drawn.indptr[row], drawn.indptr[row + 1])
            numbers = zip(drawn.indices[span].tolist(), drawn.data[span].tolist(), strict=True)
            texts[document] = (" ".join(" ".join([vocabulary.words[word]] * int(n)) for word, n in numbers),)
        return texts


def pairs(grades: Grades) -> list[tuple[str, str]]:
    """Return grades as links."""
    return [(query, document) for query, judged in grades.items() for document in judged]


def together(*parts: Grades) -> Grades:
    """Return the grades of several sets of judgements."""
    return {
        q: {d: g for part in parts for d, g in part.get(q, {}).items()} for q in {q: 0 for part in parts for q in part}
    }


def read_corpus(folder: Path, work: Path, small: bool) -> Corpus:
    """Return a corpus; ``small`` keeps 400 linked documents, or 200 queries and the documents judged for them."""
    if folder.name in (*LINKED, *PACKAGES):
        return _linked(folder, work, small)
    if folder.name in JUDGED:
        return _judged(folder, work, small)
    raise SystemExit(f"corpus {folder.name!r} is not known: choose of {', '.join(MEASURES)}")


def _linked(folder: Path, work: Path, small: bool) -> Corpus:
    """Return a linked corpus with its splits ``links`` (random links) and ``unseen`` (documents apart)."""
    with gzip.open(folder / "docs_en.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = list(file)[: SMALL_DOCUMENTS if small else None]
    documents = _documents(lines)
    links = {part: _links(folder / f"links_{part}.tsv.gz", documents) for part in ("train", "valid", "test", "en")}
    ids = frozenset(documents)
    apart = {part: ids & set(read_ids(folder / f"docs_{part}_ids.txt.gz")) for part in ("train", "test")}
    held = frozenset(document for document in apart["train"] if _hash(document) % HELD_OUT == 0)
    splits = {
        "links": Split(links["train"], links["valid"], links["test"], ids, links["train"], links["valid"], ids),
        "unseen": Split(
            _inside(links["en"], apart["train"]),
            {},
            _inside(links["en"], apart["test"]),
            apart["test"],
            _inside(links["en"], apart["train"] - held),
            _inside(links["en"], held),
            held,
        ),
    }
    return Corpus(folder.name, _write(work / "docs.jsonl", map(str.rstrip, lines)), documents, {}, splits)


def _judged(folder: Path, work: Path, small: bool) -> Corpus:
    """Return a judged corpus: ``split`` by queries, and ``unseen`` where the folder has one by documents.

    Without lists of ids queries are split by the hash of their text: 40 % test, 12 % validation.
    """
    data = read_collection(folder, work, False)
    kept = sorted(data.grades, key=data.key)[: SMALL_QUERIES if small else None]
    grades = {query: data.grades[query] for query in kept}
    judged = {document for of_query in grades.values() for document in of_query}
    with gzip.open(folder / "docs.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [line for line in file if not small or str(json.loads(line)["id"]) in judged]
    documents = _documents(lines)
    ids = frozenset(documents)
    parts: dict[str, dict[str, Grades]] = {}
    if (folder / "qids_train.txt.gz").is_file():
        for name, prefix in (("split", ""), ("unseen", "unseen_")):
            parts[name] = {p: _part(folder, f"{prefix}{p}", grades) for p in ("train", "valid", "test")}
    else:
        train = data.side(test=False)
        sides = {
            "test": data.side(test=True),
            "valid": [q for q in train if data.part(q) == N_PARTS - 1],
            "train": [q for q in train if data.part(q) != N_PARTS - 1],
        }
        parts["split"] = {p: {q: grades[q] for q in side if q in grades} for p, side in sides.items()}
    pools = {
        f"{name}_{part}": ids & set(read_ids(path))
        if (path := folder / f"docs_{name}_{part}.txt.gz").is_file()
        else ids
        for name in parts
        for part in ("valid", "test")
    }
    splits = {
        name: Split(
            of["train"],
            of["valid"],
            of["test"],
            pools[f"{name}_test"],
            of["train"],
            of["valid"],
            pools[f"{name}_valid"],
        )
        for name, of in parts.items()
    }
    by_queries = splits["split"]
    splits["whole"] = replace(by_queries, learn=together(by_queries.learn, by_queries.stop), stop={})
    texts = {query.id: query.text for query in read_queries(folder / "queries.tsv.gz")}
    return Corpus(folder.name, _write(work / "docs.jsonl", map(str.rstrip, lines)), documents, texts, splits)


def learning_from(corpus: Corpus, n_queries: int) -> Corpus:
    """Return a judged corpus with ``whole`` alone, of whose queries a model learns from so many, by their hash.

    One query in five of these validates the rivals.
    """
    whole = corpus.splits["whole"]
    kept = sorted(whole.learn, key=_hash)[:n_queries]
    valid = {query: whole.learn[query] for query in kept[: len(kept) // HELD_OUT]}
    learn = {query: whole.learn[query] for query in kept}
    fit = {query: judged for query, judged in learn.items() if query not in valid}
    return replace(
        corpus, name=f"{corpus.name}-{n_queries}", splits={"whole": replace(whole, learn=learn, fit=fit, valid=valid)}
    )


def _part(folder: Path, part: str, grades: Grades) -> Grades:
    """Return the judgements of a part: its own file's where there is one, else those of its queries."""
    own = folder / f"qrels_{part}.tsv.gz"
    if not own.is_file():
        return {query: grades[query] for query in read_ids(folder / f"qids_{part}.txt.gz") if query in grades}
    kept: dict[str, dict[str, float]] = {}
    for row in read_qrels(own):
        if row.query_id in grades:
            kept.setdefault(row.query_id, {})[row.document_id] = row.grade
    return kept


def _documents(lines: Iterable[str]) -> dict[str, tuple[str, str]]:
    sources = (json.loads(line) for line in lines)
    return {str(one["id"]): (str(one.get("title") or ""), str(one.get("text") or "")) for one in sources}


def _links(path: Path, ids: Collection[str]) -> Grades:
    grades: dict[str, dict[str, float]] = {}
    for source, target in read_links(path):
        if source in ids and target in ids:
            grades.setdefault(source, {})[target] = 1.0
    return grades


def _inside(grades: Grades, ids: Collection[str]) -> Grades:
    """Return the links with both ends among the ids."""
    inside = {q: {d: g for d, g in judged.items() if d in ids} for q, judged in grades.items() if q in ids}
    return {query: judged for query, judged in inside.items() if judged}


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _write(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def arguments(corpus: Corpus, name: str, folder: Path) -> tuple[list[str], list[str]]:
    """Write a split's files; return what `ssi train` and `ssi evaluate` take of them."""
    split = corpus.splits[name]

    def write(part: str, grades: Grades) -> str:
        rows = ((q, d) if corpus.linked else (q, d, f"{g:g}") for q, of in grades.items() for d, g in of.items())
        return str(_write(folder / name / f"{part}.tsv", ("\t".join(row) for row in rows)))

    docs, kind = ["--docs", str(corpus.docs)], "--links" if corpus.linked else "--qrels"
    train = [*docs, kind, write("train", split.learn)]
    if split.stop:
        train += ["--valid", write("valid", split.stop)]
    test = [*docs, "--links-test" if corpus.linked else "--qrels", write("test", split.test)]
    if corpus.linked and split.stop:
        test += ["--known", write("train", split.learn), "--known", write("valid", split.stop)]
    else:
        test += ["--tune", write("tune", together(split.learn, split.stop))]
    if not corpus.linked:
        texts = _write(folder / "queries.tsv", (f"{query}\t{text}" for query, text in corpus.queries.items()))
        train, test = [*train, "--query-file", str(texts)], [*test, "--query-file", str(texts)]
    if len(split.pool) < len(corpus.documents):
        test += ["--pool", str(_write(folder / name / "pool.txt", sorted(split.pool)))]
    return train, test
