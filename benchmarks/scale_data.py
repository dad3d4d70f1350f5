"""Made corpora of any size whose truth is known: documents by planted topics, links drawn from a true f(q,d).

    python benchmarks/scale_data.py FOLDER --documents 10000 [--links 200000] [--seed 0]

Words follow Zipf's law: a common vocabulary, and one for each topic, of which a document has three. Each document is
written in one of two dialects, which share a topic's meaning and not its words, so that lexical scores find half of
what belongs together. The truth is a score of the model's own form,

    f(q, d) = B (U q).(V d) + q.d,      V = topics of words,   U = R V,

q and d the tf-idf rows of whole documents, of unit length, and R the topics that each topic refers to. A document's
links are those of a random set of candidates (of the topics that it refers to, the popular ones more often) with the
highest f + T * Gumbel noise: drawn without replacement from softmax(f / T).

FOLDER gets ``docs.jsonl``, ``links_train.tsv``, ``links_valid.tsv`` and ``links_test.tsv`` (of every 20th link, one in
five validates), ``links_sample.tsv`` (test links of 200 sources), and ``truth.json``: sizes, and MAP of the true model
and of q.d alone on that sample, over all documents without the other links. Documents are written in parts of `PART`,
each from a generator of its own, links likewise: memory is that of the rows and topics, and the same seed gives the
same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.arrays import Float32, Int32, Int64

PART = 10_000
COMMON, OF_TOPICS = 2_000, 80_000
"""Words that any text may have, and words of topics."""
MEAN_WORDS, TOPIC_SHARE = 90, 0.55
TOPICS_OF = (0.6, 0.25, 0.15)
"""Shares of the topics of a document."""
REFERS = (0.5, 0.3, 0.2)
"""Weights of what a topic refers to."""
N_CANDIDATES = 192
B, T = 2.0, 0.02
SYLLABLES = [f"{onset}{vowel}" for onset in "b d f g k l m n p r s t v z ch st tr".split() for vowel in "aeiou"]


@dataclass(frozen=True)
class World:
    """What is planted, of n documents: topics of words, and what topics refer to."""

    n_documents: int
    seed: int

    @property
    def n_topics(self) -> int:
        """Topics: 64 in 10,000 documents, by the square root of their number."""
        return max(8, round(0.64 * math.sqrt(self.n_documents)))

    def rng(self, stage: int, part: int = 0) -> np.random.Generator:
        """Return the generator of a part of a stage."""
        return np.random.default_rng([self.seed, stage, part])

    def refers(self) -> Int64:
        """Return what each topic refers to, by `REFERS`: itself and two others, (topics, 3) int64."""
        rng, n = self.rng(0), self.n_topics
        topics: Int64 = np.stack([np.arange(n), rng.permutation(n), rng.permutation(n)], axis=1)
        return topics

    def topic_of_word(self) -> Int64:
        """Return the topic of each word, -1 for common ones; a topic's words are every ``n_topics``-th."""
        topics: Int64 = np.concatenate([np.full(COMMON, -1), np.arange(OF_TOPICS) % self.n_topics])
        return topics

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield number and size of each part."""
        for part, start in enumerate(range(0, self.n_documents, PART)):
            yield part, min(PART, self.n_documents - start)


def spelled(number: int) -> str:
    """Return the word of a number: syllables of its digits, at least two."""
    n, digits = len(SYLLABLES), [number % len(SYLLABLES)]
    while number := number // n:
        digits.append(number % n)
    return "".join(SYLLABLES[digit] for digit in (digits if len(digits) > 1 else [*digits, 0]))


def zipf(rng: np.random.Generator, n_words: npt.ArrayLike, size: int) -> Int64:
    """Return ranks below ``n_words`` with probability about 1 / (rank + 3), by inversion."""
    ranks = 3.0 * ((np.asarray(n_words) + 3.0) / 3.0) ** rng.random(size) - 3.0
    drawn: Int64 = np.minimum(ranks.astype(np.int64), np.asarray(n_words) - 1)
    return drawn


def drawn_documents(world: World, part: int, n: int) -> tuple[Int64, Int64, Int64]:
    """Return the topics of documents, (n, 3), the words of all in order, and where each one's begin, (n + 1,)."""
    rng, n_topics = world.rng(1, part), world.n_topics
    topics = rng.integers(n_topics, size=(n, len(TOPICS_OF)))
    lengths = np.clip(rng.lognormal(np.log(MEAN_WORDS) - 0.18, 0.6, n).astype(np.int64), 12, 2_000)
    owner, total = np.repeat(np.arange(n), lengths), int(lengths.sum())
    topic = topics[owner, rng.choice(len(TOPICS_OF), total, p=TOPICS_OF)]
    of_topic = OF_TOPICS // n_topics
    dialect = rng.integers(2, size=n)[owner]
    ranks = zipf(rng, of_topic // 2, total) * 2 + dialect
    words = np.where(rng.random(total) < TOPIC_SHARE, COMMON + ranks * n_topics + topic, zipf(rng, COMMON, total))
    return topics, words, np.r_[0, np.cumsum(lengths)]


def text_of(words: list[str], lengths: list[int]) -> str:
    """Return words as sentences."""
    sentences, at = [], 0
    for length in lengths:
        if at >= len(words):
            break
        sentences.append(" ".join(words[at : at + length]).capitalize() + ".")
        at += length
    return " ".join([*sentences, " ".join(words[at:])]).rstrip()


def write_documents(world: World, folder: Path) -> tuple[Int64, sp.csr_matrix]:
    """Write the documents; return their topics, (n, 3), and tf-idf rows of unit length."""
    spelling = [spelled(number) for number in range(COMMON + OF_TOPICS)]
    topics, rows = [], []
    with (folder / "docs.jsonl").open("w", encoding="utf-8") as file:
        for part, n in world.parts():
            of, words, starts = drawn_documents(world, part, n)
            sentences = world.rng(2, part).integers(5, 18, size=(n, 400)).tolist()
            for row in range(n):
                texts = [spelling[word] for word in words[starts[row] : starts[row + 1]].tolist()]
                document = {
                    "id": f"d{part * PART + row}",
                    "title": " ".join(texts[:5]).capitalize(),
                    "text": text_of(texts[5:], sentences[row]),
                }
                file.write(json.dumps(document) + "\n")
            counts = sp.csr_matrix((np.ones(len(words), np.float32), words, starts), shape=(n, len(spelling)))
            counts.sum_duplicates()
            topics.append(of)
            rows.append(counts)
    together = sp.vstack(rows, format="csr")
    frequency = np.bincount(together.indices, minlength=len(spelling))
    idf = np.log((1 + world.n_documents) / (1 + frequency)).astype(np.float32)
    together.data = (1 + np.log(together.data)) * idf[together.indices]
    lengths = np.sqrt(np.asarray(together.multiply(together).sum(axis=1)).ravel())
    together.data /= np.repeat(np.maximum(lengths, 1e-9), np.diff(together.indptr)).astype(np.float32)
    return np.concatenate(topics), together


def topic_rows(world: World, rows: sp.csr_matrix) -> Float32:
    """Return V d of each row, (n, topics) float32."""
    topic = world.topic_of_word()
    of_words = np.flatnonzero(topic >= 0)
    V = sp.csr_matrix(
        (np.ones(len(of_words), np.float32), (of_words, topic[of_words])), shape=(len(topic), world.n_topics)
    )
    product: Float32 = (rows @ V).toarray()
    return product


def refer(world: World, answered: Float32) -> Float32:
    """Return U q from V q: what each topic says of those that it refers to, (n, topics) float32."""
    asked = np.zeros_like(answered)
    for weight, topics in zip(REFERS, world.refers().T, strict=True):
        asked[:, topics] += np.float32(weight) * answered  # each is a permutation: no topic is met twice
    return asked


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def true_scores(
    sources: Int64,
    candidates: Int64,
    indptr: Int32,
    words: Int32,
    values: Float32,
    asked: Float32,
    answered: Float32,
    width: int,
) -> Float32:
    """Return f of each source and each of its candidates, (n, m) float32."""
    n, m = candidates.shape
    scores = np.empty((n, m), np.float32)
    query = np.zeros(width, np.float32)
    for i in range(n):
        source = sources[i]
        for at in range(indptr[source], indptr[source + 1]):
            query[words[at]] = values[at]
        for j in range(m):
            document = candidates[i, j]
            score = np.float32(0)
            for at in range(indptr[document], indptr[document + 1]):
                score += query[words[at]] * values[at]
            scores[i, j] = score + B * np.dot(asked[source], answered[document])
        for at in range(indptr[source], indptr[source + 1]):
            query[words[at]] = 0
    return scores


def drawn_links(
    world: World, n_links: int, topics: Int64, rows: sp.csr_matrix, asked: Float32, answered: Float32
) -> Iterator[tuple[Int64, Int64]]:
    """Yield sources and targets, a part of the sources at a time."""
    refers = world.refers()
    by_topic = np.argsort(topics[:, 0], kind="stable")
    first = np.searchsorted(topics[by_topic, 0], np.arange(world.n_topics + 1))
    mean = n_links / world.n_documents
    for part, n in world.parts():
        rng = world.rng(3, part)
        sources = part * PART + np.arange(n)
        which = rng.choice(len(REFERS), (n, N_CANDIDATES), p=REFERS)
        wanted = refers[topics[sources, 0][:, None], which]
        sizes = np.maximum(first[wanted + 1] - first[wanted], 1)
        places = first[wanted] + (sizes * rng.random(wanted.shape) ** 1.5).astype(np.int64)
        candidates = by_topic[np.minimum(places, world.n_documents - 1)]
        candidates.sort(axis=1)
        scores = true_scores(sources, candidates, rows.indptr, rows.indices, rows.data, asked, answered, rows.shape[1])
        again = np.zeros(candidates.shape, bool)
        again[:, 1:] = candidates[:, 1:] == candidates[:, :-1]
        scores[again | (candidates == sources[:, None])] = -np.inf
        noisy = scores + np.float32(T) * rng.gumbel(size=scores.shape).astype(np.float32)
        best = np.take_along_axis(candidates, np.argsort(-noisy, axis=1, kind="stable"), axis=1)
        usable = np.isfinite(scores).sum(axis=1)
        n_of = np.minimum(np.clip(rng.geometric(1 / mean, n), 1, N_CANDIDATES // 2), usable)
        chosen = np.arange(N_CANDIDATES) < n_of[:, None]
        yield np.repeat(sources, n_of), best[chosen]


def write_links(world: World, folder: Path, links: Iterator[tuple[Int64, Int64]]) -> tuple[Int64, Int64, Int64]:
    """Write the links by part; return sources and targets of all, and which part each is of (0 to train, 1, 2 test)."""
    kept: list[list[Int64]] = [[], [], []]
    names = ("train", "valid", "test")
    files = [(folder / f"links_{name}.tsv").open("w", encoding="utf-8") for name in names]
    try:
        for part, (sources, targets) in enumerate(links):
            rng = world.rng(4, part)
            side = np.where(rng.random(len(sources)) < 0.05, np.where(rng.random(len(sources)) < 0.2, 1, 2), 0)
            for number, file in enumerate(files):
                pairs = zip(sources[side == number].tolist(), targets[side == number].tolist(), strict=True)
                file.writelines(f"d{source}\td{target}\n" for source, target in pairs)
            for values, more in zip(kept, (sources, targets, side), strict=True):
                values.append(more)
    finally:
        for file in files:
            file.close()
    return np.concatenate(kept[0]), np.concatenate(kept[1]), np.concatenate(kept[2])


def average_precision(
    sources: Int64,
    links: tuple[Int64, Int64, Int64],
    rows: sp.csr_matrix,
    asked: Float32,
    answered: Float32,
    weight: float,
) -> npt.NDArray[np.float64]:
    """Return AP of test links by ``weight`` * (U q).(V d) + q.d over all documents but those of other links."""
    values = []
    for source in sources.tolist():
        scores = weight * (answered @ asked[source]) + (rows @ rows[source].toarray().ravel())
        own = links[0] == source
        scores[links[1][own & (links[2] != 2)]] = -np.inf
        scores[source] = -np.inf
        relevant = links[1][own & (links[2] == 2)]
        # Ties are broken by number, as everywhere.
        ranks = np.sort(
            [1 + np.count_nonzero(scores > scores[d]) + np.count_nonzero(scores[:d] == scores[d]) for d in relevant]
        )
        values.append(float(np.mean(np.arange(1, len(ranks) + 1) / ranks)))
    return np.array(values)


def make(folder: Path, n_documents: int, n_links: int, seed: int, n_sample: int = 200) -> dict[str, float]:
    """Write a corpus; return what ``truth.json`` says."""
    folder.mkdir(parents=True, exist_ok=True)
    world = World(n_documents, seed)
    topics, rows = write_documents(world, folder)
    answered = topic_rows(world, rows)
    asked = refer(world, answered)
    links = write_links(world, folder, drawn_links(world, n_links, topics, rows, asked, answered))
    tested = np.unique(links[0][links[2] == 2])
    sample = np.sort(world.rng(5).permutation(tested)[:n_sample])
    asking = np.isin(links[0], sample) & (links[2] == 2)
    pairs = zip(links[0][asking].tolist(), links[1][asking].tolist(), strict=True)
    sampled = "".join(f"d{source}\td{target}\n" for source, target in pairs)
    (folder / "links_sample.tsv").write_text(sampled, encoding="utf-8")
    truth: dict[str, float] = {"documents": n_documents, "links": len(links[0]), "topics": world.n_topics, "seed": seed}
    both = {"map": B, "map of q.d": 0.0}
    reached = {n: average_precision(sample, links, rows, asked, answered, w).mean() for n, w in both.items()}
    truth |= {name: round(float(value), 4) for name, value in reached.items()}
    (folder / "truth.json").write_text(json.dumps(truth) + "\n", encoding="utf-8")
    return truth


def main() -> None:
    """Make what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--links", type=int, help="default: 20 a document")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(make(options.folder, options.documents, options.links or 20 * options.documents, options.seed)))


if __name__ == "__main__":
    main()
