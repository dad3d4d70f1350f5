"""Training and indexing over a vocabulary of 2.5 million words, with the memory that they take.

    python benchmarks/large_vocabulary.py [--documents N] [--rare N] [--small] [--json FILE]

The corpus is made: documents in groups that share 50 words, linked within their group; besides each has words as
frequent as in texts, and 25 rare ones that it shares with the next document alone, so that there are 25 times as many
words as documents. Each job is a process of its own, whose peak memory counts:

- `reranker.training.train_model` with the 30,000 most frequent words, then ``ssi index`` into tantivy with the vectors
- the restricted model, and correlated feature hashing (k = 1 and 5, M12 and M13: the table of DICE neighbours of all
  2.5 million words, then U^T V + I over 30,000 features), by the papers' plain SGD over study rows; then the vectors of
  all documents
"""

from __future__ import annotations

import os

from provenance import write_results

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from papers.methods.word_pairs import correlated_map, dice_neighbours, top_n_map
from papers.plain_sgd import PlainData, fit_plain
from papers.study import study_texts
from reranker.models.model_folder import save_model
from reranker.tables import read_links
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder
from reranker.training import DocumentSource, TrainConfig, from_links, train_model

GROUP, GROUP_WORDS, OF_GROUP, OF_ALL, RARE = 100, 50, 20, 30, 25
FREQUENT_WORDS, FEATURES = 100_000, 30_000
VALID_EVERY = 10
"""One of so many links is for validation."""
JOBS = ("train", "index", "restricted", "cfh-1", "cfh-5")


def made_tokens(n_documents: int) -> Iterator[list[str]]:
    """Yield the words of each document."""
    rng = np.random.default_rng(0)
    for document in range(n_documents):
        group = document // GROUP
        near = rng.integers(0, GROUP_WORDS, OF_GROUP)
        far = (FREQUENT_WORDS * rng.random(OF_ALL) ** 6).astype(np.int64)
        own = [document * RARE // 2 + place for place in range(RARE)]
        yield (
            [f"g{group}x{word}" for word in near]
            + [f"w{word}" for word in far]
            + [f"r{(2 * word + document % 2)}" for word in own]
        )


def made_links(n_documents: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return three links of each document to others of its group, (n, 2)."""
    rng = np.random.default_rng(1)
    source = np.repeat(np.arange(n_documents), 3)
    target = source // GROUP * GROUP + rng.integers(0, GROUP, len(source))
    kept = (target != source) & (target < n_documents)
    return np.column_stack([source[kept], target[kept]])


def write_corpus(folder: Path, n_documents: int) -> None:
    """Write documents and links as `ssi train` takes them."""
    with open(folder / "docs.jsonl", "w", encoding="utf-8") as file:
        for number, words in enumerate(made_tokens(n_documents)):
            file.write(json.dumps({"id": f"d{number}", "text": " ".join(words)}) + "\n")
    np.savetxt(folder / "links.tsv", made_links(n_documents), fmt="d%d", delimiter="\t")


def vocabulary_of(n_documents: int) -> Vocabulary:
    """Return all words."""
    builder = VocabularyBuilder(max_entries=10_000_000)
    builder.add(made_tokens(n_documents))
    return builder.build()


def study(job: str, n_documents: int, steps: int) -> dict[str, Any]:
    """Train one of the papers' models over study rows, and make the vectors of all documents."""
    vocabulary = vocabulary_of(n_documents)
    parts = []
    tokens = list(made_tokens(n_documents))
    for start in range(0, n_documents, 20_000):
        parts.append(study_texts(tokens[start : start + 20_000], vocabulary).counts)
    counts = sp.vstack(parts, format="csr", dtype=np.float32)
    del tokens, parts
    length = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
    rows = sp.csr_matrix(
        (counts.data / np.repeat(length, np.diff(counts.indptr)), counts.indices, counts.indptr), shape=counts.shape
    ).astype(np.float32)
    started = time.perf_counter()
    n = min(FEATURES, len(vocabulary))
    if job == "restricted":
        words = top_n_map(len(vocabulary), n)
    else:
        words = correlated_map(dice_neighbours(counts, n, int(job.removeprefix("cfh-"))), n)
    table_s = time.perf_counter() - started
    source, target = made_links(n_documents).T
    relevant = sp.csr_matrix((np.ones(len(source), np.float32), (source, target)), shape=(n_documents, n_documents))
    data = PlainData(rows, rows, relevant, np.arange(n_documents)).mapped(words)
    started = time.perf_counter()
    model: Any = fit_plain(
        "low_rank", data, n_dims=100, rate=0.1, n_steps=steps, init_std=0.1, rng=np.random.default_rng(0)
    )
    train_s = time.perf_counter() - started
    started = time.perf_counter()
    scorer = getattr(model, "inner", model)
    vectors = scorer.embed_documents(words.rows(rows))
    return {
        "words": len(vocabulary),
        "table_s": table_s,
        "train_s": train_s,
        "steps": steps,
        "vectors_s": time.perf_counter() - started,
        "vectors": list(vectors.shape),
    }


def train(folder: Path) -> None:
    """Train on the most frequent words and write the model."""
    corpus = DocumentSource(folder / "docs.jsonl", TextView.parse(["text"]), max_words=FEATURES)
    config = TrainConfig(epochs=2)
    links = list(read_links(folder / "links.tsv"))
    valid = links[::VALID_EVERY]
    del links[::VALID_EVERY]
    model, _ = train_model(corpus, from_links(links), config, valid=from_links(valid))
    save_model(model, folder / "model")


def command_of(job: str, folder: Path, options: argparse.Namespace) -> list[str]:
    """Return the command of a job."""
    model, docs = str(folder / "model"), str(folder / "docs.jsonl")
    if job == "train":
        return [sys.executable, __file__, "--job", job, "--folder", str(folder)]
    if job == "index":
        ssi = str(Path(sys.executable).with_name("ssi"))
        return [ssi, "index", "--engine", f"tantivy:{folder / 'engine'}", "--index", "docs", docs, "--model", model]
    return [
        sys.executable,
        __file__,
        "--job",
        job,
        "--documents",
        str(options.documents),
        "--steps",
        str(options.steps),
    ]


def measured(command: list[str]) -> dict[str, Any]:
    """Run a command and return its seconds, its peak memory, and what it printed as JSON."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read()
    found: dict[str, Any] = {"seconds": time.perf_counter() - started, "peak_mb": usage.ru_maxrss / 1024}
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}:\n{text[-2000:]}")
    last = text.strip().splitlines()[-1] if text.strip() else ""
    return found | (json.loads(last) if last.startswith("{") else {})


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1_000_000, help="of plain SGD")
    parser.add_argument("--jobs", default=",".join(JOBS), help="by commas")
    parser.add_argument("--small", action="store_true", help="2,000 documents, to try the script")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "large_vocabulary.json")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.small:
        options.documents, options.steps = 2_000, 20_000
    if options.job == "train":
        train(options.folder)
        return
    if options.job:
        print(json.dumps(study(options.job, options.documents, options.steps)))
        return
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder, options.documents)
        for job in options.jobs.split(","):
            results[job] = measured(command_of(job, folder, options))
            more = {key: round(value, 1) for key, value in results[job].items() if isinstance(value, int | float)}
            print(f"{job:<12}{results[job]['seconds']:>8.0f} s{results[job]['peak_mb']:>9,.0f} MB  {more}", flush=True)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    record = {"documents": options.documents, "jobs": results, "machine": machine}
    write_results(options.json, record)


if __name__ == "__main__":
    main()
