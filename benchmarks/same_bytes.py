"""Whether two trees of the program give the same bytes: a fixed list of commands, and digests of all they write.

    python benchmarks/same_bytes.py --tree TREE --out FOLDER [--numba-cache FOLDER] [--only WORD,...] [--hash-seed N]
    python benchmarks/same_bytes.py --compare BEFORE/digests.json AFTER/digests.json

The first form runs `STEPS` in a fresh scratch folder, FOLDER/scratch, as ``python -m reranker ...`` by the Python that
runs this script, with TREE alone on PYTHONPATH. It knows the command line and the formats of files and imports nothing
of TREE, so that the same script runs on both. It writes

    FOLDER/digests.json   {step: {file, "stdout" or "exit status": SHA-256}}, each after `MASKS`
    FOLDER/files/STEP/    what was digested, masked, so that differences can be looked at: diff -r A/files B/files
    FOLDER/about.json     how it was run, and the seconds of each step

The second prints every difference and exits with 1 if there is one. Help texts are told apart from the rest: their
differences are printed and do not count. Standard error is kept beside the files and is not digested.

Models learned while numba compiles have been seen to differ from those learned by kernels out of numba's cache. So
NUMBA_CACHE_DIR is a folder of each tree (FOLDER/numba unless --numba-cache says otherwise), and all steps marked
``warm`` (every training, and one of each other command that computes) run once in FOLDER/warming before they count.
What the counted steps still compile after that is printed. Everything runs on one thread.

Inputs are drawn by numpy with a fixed seed, and are digested too (step ``inputs``). With SSI_DATA, cuts of cppdocs
(English and Japanese) and msrd_movies are used as well; without, their steps are left out, which --compare would show.
About 12 minutes of one core; many times that where others use it.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

Digests = dict[str, dict[str, str]]

HELP = "help"
"""Steps of this group print help texts."""
SEED = 11
TOPICS, DOCUMENTS, QUERIES = 8, 240, 96
KNOWN = 190
"""Documents of the links that a model for new documents learns from."""
START = datetime(2025, 6, 1, tzinfo=UTC)
"""When the made logs begin."""

# --- what is masked ---------------------------------------------------------------------------------------------------

_ROW_END = r'("[^"\n]*",\n +)"[\d.,]+"(?=\n +\])'
_CELL_END = (
    r'(<div class="row" role="row"[^>]*>(?:\n<div role="cell"[^\n]*)*\n<div role="cell"[^>]*>)[\d.,]+(?=</div>\n</div>)'
)
MASKS: tuple[tuple[str, str, str, str], ...] = (
    # How long a command took, and its speed: `ssi index`, `revectorize`, `sync`, and the progress kept in an index.
    ("*", "*", r'("(?:seconds|documents_per_s|waited_s)": ?)[\d.e-]+', "<seconds>"),
    ("index rejects", "stdout", r"(, )[\d,]+(?= documents/s)", "<speed>"),
    # An index of the embedded engine has a random name of its own.
    ("*", "*.rows.txt", r'("uuid":"[a-z0-9-]+\.)[0-9a-f]{8}(?=")', "<random>"),
    ("sync again", "stdout", r"(, )[\d.,]+(?= s$)", "<seconds>"),
    # Milliseconds of the parts of a search.
    ("search*", "stdout", r'("timings_ms": )\{[^}]*\}', "<ms>"),
    ("real search", "stdout", r'("timings_ms": )\{[^}]*\}', "<ms>"),
    # Seconds of the steps of a retraining, and of the fit and the measuring of a system of the papers.
    ("retrain*", "stdout", r'("seconds": )\{[^}]*\}', "<seconds>"),
    ("reproduce*", "*.json", r'("seconds": )\{[^}]*\}', "<seconds>"),
    ("retrain*", "*.html", r"(<b>)[\d.,]+ (?:s|min)(?=</b><span>(?:in all|total time)</span>)", "<seconds>"),
    ("retrain*", "*.html", r'(<td class="n">)[\d.,]+ s(?=</td>)', "<seconds>"),
    # The last column of the papers' tables, seconds, as JSON and in the report.
    ("reproduce T[2367]*", "stdout", _ROW_END, '"<seconds>"'),
    ("reproduce T[2367]*", "*report.html", _CELL_END, "<seconds>"),
    # The order of rows by that column, where the table can be sorted by it.
    ("reproduce T[236]*", "*report.html", r'(role="row" style="[^"]*--o\d+:)\d+(?=;">)', "<order>"),
    # The version of the program in the results of the papers' tasks, and the fingerprint, which holds it and names of
    # the functions that measured.
    ("reproduce*", "*.json", r'("version": )"[^"]*"', '"<version>"'),
    ("reproduce*", "*.json", r'("fingerprint": )"[0-9a-f]*"', '"<fingerprint>"'),
    # The day of an import into a click log, in days since 1970; 0 where rows have days of their own.
    ("clicks*", "*clicks.json", r'("imported": ?)[1-9]\d*', "<today>"),
    # When a person was forgotten, milliseconds since 1970.
    ("clicks*", "*clicks.json", r'("[0-9a-f]{20}": ?)\d{13}', "<now>"),
)
"""(steps, files, regular expression, replacement); steps and files by ``fnmatch``, the first group is kept.

Besides, in every text: the path of the scratch folder, the addresses of the two made-up engines, and dates and times
that lie within this run.
"""

_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d)(?:([T ])(\d\d:\d\d(?::\d\d)?)(?:\.\d+)?)?(?:Z|\+00:00| UTC)?")


@dataclass(frozen=True)
class Masking:
    """What is replaced in texts before they are digested.

    Parameters
    ----------
    words : mapping
        Text to what stands for it: paths and addresses.
    begun : datetime
        When this run began.
    """

    words: Mapping[str, str]
    begun: datetime

    def __call__(self, data: bytes, step: str, name: str) -> bytes:
        """Return the content of a file masked; what is no text comes back as it is."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return data
        for found, put in self.words.items():
            text = text.replace(found, put)
        for steps, files, pattern, put in MASKS:
            if fnmatch.fnmatchcase(step, steps) and fnmatch.fnmatchcase(name, files):
                text = re.sub(pattern, rf"\g<1>{put}", text)
        return _TIME.sub(self._now, text).encode("utf-8")

    def _now(self, found: re.Match[str]) -> str:
        """Return a time as it is, or that it was now."""
        day, _, clock = found.groups()
        try:
            said = datetime.fromisoformat(f"{day}T{clock or '00:00'}+00:00")
        except ValueError:
            return found.group()
        first = self.begun if clock else self.begun.replace(hour=0, minute=0, second=0, microsecond=0)
        is_now = first - timedelta(minutes=1) <= said <= datetime.now(UTC)
        return "<now>" if is_now else found.group()


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One command.

    Parameters
    ----------
    name : str
    command : str
        What follows ``ssi``; {model:FOLDER} is the id of the model in a folder, {opensearch} and {elasticsearch} are
        the made-up engines.
    keep : tuple of str
        Files and folders that are digested afterwards.
    warm : bool
        It is run in the warming pass too, and needs nothing of other steps.
    status : int
        The exit status it has to have.
    kill_at : str
        The command is killed as soon as this path is there, and then run again.
    """

    name: str
    command: str
    keep: tuple[str, ...] = ()
    warm: bool = False
    status: int = 0
    kill_at: str = ""


def train(name: str, more: str, data: str = "links", *, warm: bool = False, kill_at: str = "") -> Step:
    """Return a training on the made corpus whose model is digested; ``train NAME`` writes models/NAME."""
    of = {
        "links": "--links made/links_train.tsv --valid made/links_valid.tsv",
        "new": "--links made/links_known.tsv --valid made/links_new.tsv",
        "qrels": "--qrels made/qrels_train.tsv --query-file made/queries.tsv",
        "pairs": "--pairs made/pairs.tsv",
    }[data]
    command = f"train --docs made/docs.jsonl {of} --model models/{name} {more}"
    command += "" if "--warm-start" in more else " --dim 12"
    return Step(f"train {name}", command, (f"models/{name}",), warm=warm, kill_at=kill_at)


TRAININGS = (
    train("links", "--json", warm=True),
    train("bigrams", "--analyzer unicode,bigrams --seed 5"),
    train("documents", "--json", "new"),
    train("rows", "--fields title,text^2 --json"),
    train(
        "stemmed",
        "--analyzer unicode,stem=english,stop=english --fields title^2,text --html --json",
    ),
    train("judgements", "--json", "qrels", warm=True),
    train("judgements-valid", "--valid made/qrels_valid.tsv", "qrels"),
    train("pairs", "--json", "pairs"),
    train("warm-start", "--warm-start models/links --json", "pairs"),
    train("resumed", "--json", kill_at="models/resumed.checkpoint/state.json"),
)

EVALUATING = "evaluate --docs made/docs.jsonl --model models/"
OF_LINKS = "--links-test made/links_test.tsv --known made/links_train.tsv --known made/links_valid.tsv"
OF_QRELS = "--qrels made/qrels_test.tsv --query-file made/queries.tsv"
EVALUATIONS = (
    Step(
        "evaluate links",
        f"{EVALUATING}links {OF_LINKS} --baselines tfidf,bm25,lsi:8 --run-dir runs/links "
        "--without-reverse made/links_train.tsv --json",
        ("runs/links",),
    ),
    Step(
        "evaluate keywords",
        f"{EVALUATING}links {OF_LINKS} --queries keywords:5 --baselines tfidf --pool made/pool.txt",
    ),
    Step(
        "evaluate judgements",
        f"{EVALUATING}judgements {OF_QRELS} --tune made/qrels_train.tsv "
        "--baselines tfidf,bm25,lsi:8 --run-dir runs/qrels --json",
        ("runs/qrels",),
    ),
    Step("evaluate rows", f"{EVALUATING}rows {OF_LINKS} --baselines= --run-dir runs/rows --json", ("runs/rows",)),
)

DOCS = "--engine tantivy:./engine --index docs"
INDEX = ("engine",)
SEARCH = f'search "ask2w1 tell3w4 common5" {DOCS} --model models/links'
INDEXING = (
    Step(
        "index",
        f"index made/docs.jsonl {DOCS} --model models/links --routes fetch --routes beside --store store --json",
        (*INDEX, "store"),
    ),
    Step(
        "index rejects",
        "index made/bad.jsonl --engine tantivy:./engine --index bad --model models/rows "
        "--version-field updated --rejects bad-rejects.jsonl --max-docs 7",
        (*INDEX, "bad-rejects.jsonl"),
        status=8,
    ),
    Step("search fetch", f"{SEARCH} --json --explain --size 20"),
    Step("search beside", f"{SEARCH} --json --explain --route beside --store store --window 50"),
    Step("search body", f"{SEARCH} --json --body made/body.json --alpha 0.7 --from 3"),
    Step("search shown", f"{SEARCH} --explain --size 5"),
    Step(
        "calibrate links",
        f"calibrate {DOCS} --model models/links --links made/links_test.tsv "
        "--docs made/docs.jsonl --queries keywords:5 --json --dry-run",
    ),
    Step(
        "calibrate judgements", f"calibrate {DOCS} --model models/links {OF_QRELS} --body made/body.json --json", INDEX
    ),
    Step("calibrate shown", f"calibrate {DOCS} --model models/links {OF_QRELS} --route beside --store store"),
    Step("search calibrated", f"{SEARCH} --json --body made/body.json"),
    Step("drift", f"drift {DOCS} --model models/links --json"),
    Step("drift shown", f"drift {DOCS} --model models/stemmed --sample 100 --seed 3"),
    Step("revectorize plan", f"revectorize {DOCS} --model models/rows --dry-run"),
    Step("revectorize", f"revectorize {DOCS} --model models/rows --store store-rows --json", (*INDEX, "store-rows")),
    Step("versions", f"versions {DOCS} --json"),
    Step("promote", f"promote {{model:models/rows}} {DOCS} --json"),
    Step("search promoted", f'search "ask1w3 common7" {DOCS} --model models/rows --json --explain'),
    Step("index changed", f"index made/changed.jsonl {DOCS} --json", INDEX),
    Step("versions behind", f"versions {DOCS}"),
    Step("sync", f"sync {DOCS} --model models/rows --store store-rows --json", (*INDEX, "store-rows")),
    Step("sync again", f"sync {DOCS} --model models/rows --verify"),
    Step("rollback", f"rollback {DOCS} --force --json"),
    Step("gc plan", f"gc {DOCS} --keep 0 --dry-run"),
    Step("gc", f"gc {DOCS} --keep 0 --json", INDEX),
    Step("rebuild", f"index made/docs.jsonl {DOCS} --model models/documents --rebuild --json", INDEX),
    Step("search rebuilt", f'search "ask1w3 common7" {DOCS} --model models/documents --json --explain'),
)

REMOTE = tuple(
    Step(
        f"search remote {kind}",
        f'search "ask2w1 tell3w4" --engine {{{kind}}} --index docs --model models/links --body made/body.json --json',
    )
    for kind in ("opensearch", "elasticsearch")
)
"""What is asked of an engine over HTTP; it finds nothing."""

UBI = "logs/ubi_queries.ndjson logs/ubi_events.ndjson.gz"
PAIRS = "clicks pairs logs/clicks.jsonl"
STRATEGIES = (
    "last-clicked-above-skipped",
    "clicked-over-unclicked",
    "clicked-over-previous",
    "clicked-over-next",
    "ssi-position-one",
    "purchase-over-click",
)
CLICKS = (
    Step(
        "clicks import ubi",
        f"clicks import {UBI} --log clicks --key logs/key --rejects ubi-rejects.jsonl --json",
        ("clicks", "ubi-rejects.jsonl"),
        status=8,
    ),
    Step(
        "clicks import lines",
        "clicks import logs/clicks.jsonl logs/metarank.jsonl --log clicks --key logs/key",
        ("clicks",),
    ),
    Step("clicks doctor", "clicks doctor clicks --json --picture doctor.svg", ("doctor.svg",)),
    Step("clicks doctor raw", f"clicks doctor {UBI} {DOCS} --picture doctor.html", ("doctor.html",)),
    *(
        Step(
            f"clicks propensities {method}",
            f"clicks propensities logs/shop.jsonl --method {method} --json --out propensities-{method}.json",
            (f"propensities-{method}.json",),
        )
        for method in ("randomised", "harvest", "em", "rate")
    ),
    Step("clicks propensities shown", "clicks propensities clicks"),
    *(
        Step(
            f"clicks pairs {strategy}",
            f"{PAIRS} --strategy {strategy} --out pairs-{strategy}.tsv --json",
            (f"pairs-{strategy}.tsv",),
        )
        for strategy in STRATEGIES
    ),
    Step(
        "clicks pairs options",
        "clicks pairs clicks --strategy clicked-over-unclicked --min-dwell 2 --network-cap 2 "
        "--propensities propensities-em.json --since 2025-06-02 --out pairs-options.parquet",
        ("pairs-options.parquet",),
    ),
    *(
        Step(
            f"clicks export {form}",
            f"clicks export logs/clicks.jsonl --to {form} --out exported.{form} {more} --json",
            (f"exported.{form}",),
        )
        for form, more in (
            ("trec", ""),
            ("letor", ""),
            ("srw", "--propensities propensities-em.json"),
            ("quepid", "--min-people 2"),
        )
    ),
    Step("clicks forget", "clicks forget u7 --log clicks --key logs/key --json", ("clicks",)),
    Step("clicks expire", "clicks expire --days 100000 --log clicks --json", ("clicks",)),
    Step("interleave report", "interleave report logs/teams.ndjson --json"),
    Step("interleave report shown", "interleave report logs/teams.ndjson"),
)

SHOP = "--engine tantivy:./shop --index shop"
RETRAIN = f"retrain {SHOP} --clicks logs/shop.jsonl"
RETRAINING = (
    Step("shop", f"index made/docs.jsonl {SHOP} --model models/links --json"),
    Step(
        "retrain plan",
        f"{RETRAIN} --dry-run --links made/links_train.tsv --judgments "
        "made/qrels_train.tsv --query-file made/queries.tsv --report plan.html --json",
        ("plan.html",),
    ),
    Step("retrain queries", f"{RETRAIN} --dry-run --query-side-only"),
    Step("retrain refused", f"{RETRAIN} --margin 0.9 --json", ("models/refused",), status=7),
    Step(
        "retrain",
        f"{RETRAIN} --judgments made/qrels_train.tsv --query-file made/queries.tsv --report report.html "
        "--store store-shop --seed 4",
        ("report.html", "shop", "models"),
    ),
    Step("retrain versions", f"versions {SHOP} --json"),
)

WORDS = (
    Step("words similar", "words similar tell3w4 --model models/links --n 8 --json"),
    Step(
        "words similar shown",
        "words similar ask2w1 --model models/bigrams --of queries --by cosine --min-documents 1 --picture near.svg",
        ("near.svg",),
    ),
    Step("words pairs", 'words pairs --query "ask2w1 common5" --model models/links --json'),
    Step("words pairs shown", 'words pairs --query "ask2w1 common5" --model models/judgements --n 5'),
    Step("words dice", 'words dice tell3w4 "the tests" --documents made/docs.jsonl --json'),
)

SMALL = "--small --steps 600 --every 300 --grid 2 --slots 3000 --iterations 2 --json"


def reproduce(task: str, corpus: str, systems: str, *, warm: bool = False) -> Step:
    """Return a task of the papers in small mode."""
    command = f"reproduce {task} {SMALL} --systems {systems} --corpus {corpus} --out reproduced-{task}"
    return Step(f"reproduce {task}", command, (f"reproduced-{task}",), warm=warm)


TASKS = (
    reproduce("T3b", "made", "tf-idf,bm25,lsi-tf-idf,utu-plus-i,utv-plus-i,psi-3,hash-kernels-3m", warm=True),
    reproduce("T2", "made", "tf-idf,diagonal,cfh-5", warm=True),
    reproduce(
        "T7b",
        "judged",
        "graded-tfidf,graded-bm25,graded-cplsa,graded-opca,graded-ssi,graded-s2net,graded-ranking-svm",
        warm=True,
    ),
    reproduce("T6", "mates", "cl-lsi,mates-opca,mates-cca,mates-s2net,translated-likelihood,psi-cross", warm=True),
    reproduce("T14a", "judged", "graded-tfidf,graded-ssi"),
    Step("reproduce list", "reproduce --list"),
    Step("reproduce list json", "reproduce --list --json"),
)

STEPS = (*TRAININGS, *EVALUATIONS, *INDEXING, *REMOTE, *CLICKS, *RETRAINING, *WORDS, *TASKS)

LEARNING = "--dim 20 --json"
REAL = (
    Step(
        "real links",
        "train --docs cppdocs/docs.jsonl --links cppdocs/train.tsv --valid cppdocs/valid.tsv "
        f"{LEARNING} --model models/cppdocs",
        ("models/cppdocs",),
    ),
    Step(
        "real evaluate links",
        "evaluate --docs cppdocs/docs.jsonl --links-test cppdocs/test.tsv --known "
        "cppdocs/train.tsv --model models/cppdocs --baselines bm25 --run-dir runs/cppdocs --json",
        ("runs/cppdocs",),
    ),
    Step(
        "real index",
        "index cppdocs/docs.jsonl --engine tantivy:./real --index cpp --model models/cppdocs --store store-cpp --json",
        ("real", "store-cpp"),
    ),
    Step(
        "real search",
        'search "vector iterator" --engine tantivy:./real --index cpp --model models/cppdocs --explain --json',
    ),
    Step(
        "real calibrate",
        "calibrate --engine tantivy:./real --index cpp --model models/cppdocs --links "
        "cppdocs/test.tsv --docs cppdocs/docs.jsonl --json",
    ),
    Step("real words", "words similar file --model models/cppdocs --by cosine --json"),
    Step(
        "real judgements",
        "train --docs msrd/docs.jsonl --qrels msrd/qrels.tsv --query-file msrd/queries.tsv "
        f"{LEARNING} --model models/msrd",
        ("models/msrd",),
    ),
    Step(
        "real evaluate judgements",
        "evaluate --docs msrd/docs.jsonl --qrels msrd/test.tsv --query-file "
        "msrd/queries.tsv --model models/msrd --baselines tfidf --run-dir runs/msrd --json",
        ("runs/msrd",),
    ),
    Step(
        "real japanese",
        "train --docs japanese/docs.jsonl --links cppdocs/train.tsv --analyzer japanese "
        f"{LEARNING} --model models/japanese",
        ("models/japanese",),
    ),
)
"""Steps on cuts of real data."""


# --- made inputs ------------------------------------------------------------------------------------------------------


def write(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file, gzipped where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def as_lines(rows: Iterable[Any]) -> list[str]:
    return [json.dumps(row) for row in rows]


def some_words(rng: np.random.Generator, stem: str, kinds: int, n: int) -> list[str]:
    return [f"{stem}{number}" for number in rng.integers(0, kinds, n)]


def make_corpus(folder: Path, rng: np.random.Generator) -> list[str]:
    """Write documents of a few topics, links within topics, judged queries and pairs; return the queries' texts.

    Queries say "ask2w1" and documents of the topic "tell2w4"; "ask" words stand in documents of their topic and in
    others: they help a little, and the rest has to be learned.
    """
    documents = []
    for number in range(DOCUMENTS):
        topic = number % TOPICS
        words = [*some_words(rng, f"tell{topic}w", 20, 7), *some_words(rng, "common", 40, 6)]
        asked = [topic if rng.random() < chance else rng.integers(TOPICS) for chance in (0.75, 0, 0)]
        words += [f"ask{one}w{rng.integers(6)}" for one in asked]
        text = " ".join(rng.permutation(words))
        title = f"tell{topic}w{rng.integers(20)} <b>Running</b> the tests {number}"
        documents.append({"id": f"d{number:03}", "title": title, "text": text, "updated": number})
    write(folder / "docs.jsonl", as_lines(documents))
    changed = [{**one, "text": f"{one['text']} common1 changed"} for one in documents[5:25]]
    write(folder / "changed.jsonl", as_lines([*changed, {"id": "new", "title": "common2", "text": "tell1w1 common3"}]))
    broken = ["{", '{"title": "no id"}', '{"id": "d900", "text": 5}', '{"id": "", "text": "x"}', '{"id": "d901"}']
    older = {**documents[3], "text": "older", "updated": 1}
    write(folder / "bad.jsonl", [*as_lines(documents[:20]), *broken, *as_lines([older, documents[21]])])
    write(folder / "pool.txt", (f"d{number:03}" for number in range(0, DOCUMENTS, 2)))
    body = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"]}}, "size": 7}
    write(folder / "body.json", as_lines([body]))

    pairs = [(one, other) for one in range(DOCUMENTS) for other in range(one % TOPICS, DOCUMENTS, TOPICS)]
    linked = rng.permutation([p for p in pairs if p[0] != p[1]])[:800].tolist()
    known, new = ([link for link in linked if {n >= KNOWN for n in link} == {side}] for side in (False, True))
    sides = {"train": linked[:600], "valid": linked[600:680], "test": linked[680:], "known": known, "new": new}
    for name, part in sides.items():
        write(folder / f"links_{name}.tsv", (f"d{one:03}\td{other:03}" for one, other in part))

    queries = [
        f"ask{n % TOPICS}w{n // TOPICS % 6} ask{n % TOPICS}w{rng.integers(6)} common{n % 40}" for n in range(QUERIES)
    ]
    write(folder / "queries.tsv", (f"q{n}\t{text}" for n, text in enumerate(queries)))
    judged = [
        (query, document, int(rng.integers(1, 4)) if query % TOPICS == document % TOPICS else 0)
        for query in range(QUERIES)
        for document in rng.choice(DOCUMENTS, 40, replace=False).tolist()
    ]
    for name, first, end in (("train", 0, 56), ("valid", 56, 72), ("test", 72, QUERIES)):
        write(folder / f"qrels_{name}.tsv", (f"q{q}\td{d:03}\t{grade}" for q, d, grade in judged if first <= q < end))
    preferred = []
    for number in rng.integers(0, QUERIES, 400).tolist():
        better, worse = rng.integers(0, DOCUMENTS // TOPICS), rng.integers(0, DOCUMENTS)
        better = better * TOPICS + number % TOPICS
        preferred.append(f"{queries[number]}\td{better:03}\td{worse:03}\t{1 + int(number) % 3}")
    write(folder / "pairs.tsv", ["query\tbetter\tworse\tweight", *preferred])
    return queries


def make_judged(folder: Path, rng: np.random.Generator) -> None:
    """Write a small collection with graded judgements, as tasks of ads and of clicks take it."""
    documents = []
    for number in range(96):
        words = [*some_words(rng, f"tell{number % 6}w", 5, 5), *some_words(rng, "noise", 40, 6)]
        documents.append({"id": f"d{number:03}", "title": words[0], "text": " ".join(rng.permutation(words))})
    write(folder / "docs.jsonl.gz", as_lines(documents))
    write(folder / "queries.tsv.gz", (f"q{n:02}\task{n % 6} tell{n % 6}w{n % 5} noise{n}" for n in range(36)))
    graded = (
        (query, document, int(rng.integers(2, 4) if document % 6 == query % 6 else rng.integers(0, 2)))
        for query in range(36)
        for document in range(96)
        if (document - query) % 6 < 2
    )
    write(folder / "qrels.tsv.gz", (f"q{query:02}\td{document:03}\t{grade}" for query, document, grade in graded))


def make_mates(folder: Path, rng: np.random.Generator) -> None:
    """Write pages in two made-up languages, in which words of the same number mean the same."""
    pages: dict[str, list[dict[str, str]]] = {"en": [], "xx": []}
    topics = [rng.choice(120, 18, replace=False) for _ in range(TOPICS)]
    for page in range(96):
        shared = rng.choice(topics[page % TOPICS], 14)
        for language, letter in (("en", "w"), ("xx", "v")):
            text = " ".join(f"{letter}{word}" for word in (*shared, *rng.integers(0, 120, 4)))
            pages[language].append({"id": f"p{page:03}", "title": f"{letter}{shared[0]}", "text": text})
    for language, rows in pages.items():
        write(folder / f"docs_{language}.jsonl.gz", as_lines(rows))
    write(
        folder / "links.tsv.gz",
        (f"p{one:03}\tp{other:03}" for one in range(96) for other in range(one % TOPICS, 96, TOPICS) if one != other),
    )


@dataclass(frozen=True)
class Shown:
    """One shown list of a made log: who asked what and when, what was shown, and what was clicked at which rank."""

    number: int
    query: str
    user: int
    time: datetime
    documents: list[str]
    clicked: list[int]
    shuffled: bool

    def at(self, rank: int, seconds: float = 0.0) -> str:
        """Return when something was done at a rank."""
        return (self.time + timedelta(seconds=3 * rank + seconds)).isoformat().replace("+00:00", "Z")


def make_log(queries: Sequence[str], n: int, users: int, rng: np.random.Generator) -> list[Shown]:
    """Return a log of people who look less at lower ranks and mostly click what is of the query's topic."""
    pages = []
    for query in range(len(queries)):
        wanted = rng.choice(DOCUMENTS // TOPICS, 3, replace=False) * TOPICS + query % TOPICS
        pages.append(rng.permutation([*wanted, *rng.choice(DOCUMENTS, 7, replace=False)]))
    log = []
    for number in range(n):
        query = int(len(queries) * rng.random() ** 1.5)
        shuffled = bool(rng.random() < 0.2)
        page = rng.permutation(pages[query]) if shuffled else np.roll(pages[query], 3 * int(rng.integers(2)))
        chance = np.where(page % TOPICS == query % TOPICS, 0.8, 0.08) / np.sqrt(np.arange(1, 11))
        clicked = (np.flatnonzero(rng.random(10) < chance) + 1).tolist()
        when = START + timedelta(seconds=round(number * 8 * 86_400 / n))
        user = int(rng.integers(users))
        log.append(Shown(number, queries[query], user, when, [f"d{d:03}" for d in page], clicked, shuffled))
    return log


def json_lines(log: Iterable[Shown]) -> Iterator[dict[str, Any]]:
    """Yield a log in the project's own form."""
    for one in log:
        yield {
            "query_id": f"i{one.number}",
            "query": one.query,
            "session": f"s{one.user}-{one.number // 50}",
            "user": f"u{one.user}",
            "time": one.at(0),
            "results": one.documents,
            "randomised": one.shuffled,
            "clicks": [
                {"doc": one.documents[rank - 1], "rank": rank, "time": one.at(rank), "end_time": one.at(rank, rank % 4)}
                for rank in one.clicked
            ],
            "add_to_cart": [{"doc": one.documents[rank - 1], "rank": rank} for rank in one.clicked if rank % 2],
            "purchases": [{"doc": one.documents[rank - 1], "rank": rank} for rank in one.clicked if rank % 3 == 1],
            "ip": f"192.0.2.{one.user % 9}",
            "user_agent": "Googlebot/2.1 (+http://www.google.com/bot.html)" if one.user == 3 else "Mozilla/5.0",
        }


def ubi(log: Sequence[Shown]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a log as OpenSearch UBI has it, queries and events: with an e-mail address, and with what is missing."""
    asked, events = [], []
    for one in log:
        who = {"client_id": f"u{one.user}", "application": "shop", "query_id": f"ubi{one.number}"}
        text = f"{one.query} who@example.org" if one.number == 8 else one.query
        if one.number % 41 != 5:
            asked.append({**who, "user_query": text, "timestamp": one.at(0), "query_response_hit_ids": one.documents})
        acts = [(rank, action) for rank in one.clicked for action in ("click", "add_to_cart")[: 1 + rank % 2]]
        for rank, action in [*acts, *((rank, "impression") for rank in (1, 2) if one.number % 3 == 0)]:
            place = {"object": {"object_id": one.documents[rank - 1]}, "position": {"ordinal": rank}}
            events.append(
                {
                    **who,
                    "action_name": action,
                    "session_id": f"s{one.user}",
                    "timestamp": one.at(rank),
                    "event_attributes": place,
                }
            )
    return asked, [*events, *events[:5]]


def metarank(log: Iterable[Shown]) -> Iterator[dict[str, Any]]:
    """Yield a log as Metarank events."""
    for one in log:
        who = {"user": f"m{one.user}", "session": f"ms{one.user}"}
        stamp = str(round(one.time.timestamp() * 1000))
        fields, items = [{"name": "query", "value": one.query}], [{"id": name} for name in one.documents]
        yield {"event": "ranking", "id": f"m{one.number}", "timestamp": stamp, **who, "fields": fields, "items": items}
        for rank in one.clicked:
            yield {
                "event": "interaction",
                "id": f"m{one.number}c{rank}",
                "ranking": f"m{one.number}",
                **who,
                "timestamp": stamp,
                "type": "click",
                "item": one.documents[rank - 1],
            }


def interleaved(log: Iterable[Shown]) -> Iterator[dict[str, Any]]:
    """Yield rows of UBI for lists of two versions, as `ssi serve --interleave` logs them."""
    for one in log:
        teams = " ".join("BA"[(one.number + place) % 3 == 0] for place in range(10))
        marks = {"ssi_teams": teams, "ssi_versions": f"{'a' * 64} {'b' * 64}"}
        yield {
            "query_id": f"t{one.number}",
            "session_id": f"s{one.user}",
            "user_query": one.query,
            "timestamp": one.at(0),
            "query_response_hit_ids": one.documents,
            "query_attributes": marks,
        }
        for rank in one.clicked:
            place = {"object": {"object_id": one.documents[rank - 1]}, "position": {"ordinal": rank}}
            yield {
                "query_id": f"t{one.number}",
                "session_id": f"s{one.user}",
                "action_name": "click",
                "timestamp": one.at(rank),
                "event_attributes": place,
            }


def make_logs(folder: Path, queries: Sequence[str], rng: np.random.Generator) -> None:
    """Write click logs in all forms, and the key of their hashes."""
    log = make_log(queries, 700, 60, rng)
    asked, events = ubi(log[:400])
    write(folder / "ubi_queries.ndjson", [*as_lines(asked), "{broken", '{"user_query": 5}'])
    write(folder / "ubi_events.ndjson.gz", as_lines(events))
    write(folder / "clicks.jsonl", as_lines(json_lines(log)))
    write(folder / "metarank.jsonl", as_lines(metarank(log[:60])))
    write(folder / "teams.ndjson", as_lines(interleaved(log[:200])))
    write(folder / "shop.jsonl", as_lines(json_lines(make_log(queries, 2_500, 350, rng))))
    (folder / "key").write_bytes(bytes(range(32)))
    (folder / "key").chmod(0o600)


def read_lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def cut_real_data(data: Path, folder: Path) -> None:
    """Write cuts of real collections: documents of cppdocs with their links, and some queries of msrd_movies."""
    for language, name in (("en", "cppdocs"), ("ja", "japanese")):
        write(folder / name / "docs.jsonl", read_lines(data / "cppdocs" / f"docs_{language}.jsonl.gz")[2000:2400])
    known = {json.loads(line)["id"] for line in read_lines(data / "cppdocs" / "docs_en.jsonl.gz")[2000:2400]}
    for part in ("train", "valid", "test"):
        links = read_lines(data / "cppdocs" / f"links_{part}.tsv.gz")
        write(folder / "cppdocs" / f"{part}.tsv", (line for line in links if set(line.split("\t")) <= known))
    queries = read_lines(data / "msrd_movies" / "queries.tsv.gz")[:90]
    place = {line.split("\t")[0]: number for number, line in enumerate(queries)}
    judged = [line for line in read_lines(data / "msrd_movies" / "qrels.tsv.gz") if line.split("\t")[0] in place]
    wanted = {line.split("\t")[1] for line in judged}
    documents = read_lines(data / "msrd_movies" / "docs.jsonl.gz")
    write(folder / "msrd" / "docs.jsonl", (line for line in documents if json.loads(line)["id"] in wanted))
    write(folder / "msrd" / "queries.tsv", queries)
    for name, chosen in (("qrels", range(60)), ("test", range(60, 90))):
        write(folder / "msrd" / f"{name}.tsv", (line for line in judged if place[line.split("\t")[0]] in chosen))


def make_inputs(folder: Path, data: str | None) -> None:
    """Write all that steps read into an empty folder."""
    rng = np.random.default_rng(SEED)
    queries = make_corpus(folder / "made", rng)
    make_judged(folder / "judged", rng)
    make_mates(folder / "mates", rng)
    make_logs(folder / "logs", queries, rng)
    if data:
        cut_real_data(Path(data), folder)


# --- made-up engines --------------------------------------------------------------------------------------------------


class MadeUpEngine(ThreadingHTTPServer):
    """Says that it is an engine, takes whatever is put into it, and remembers what it was asked."""

    def __init__(self, kind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.kind = kind
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        """Return status and answer."""
        is_open = self.kind == "opensearch"
        version = "3.1.0" if is_open else "9.0.2"
        modules = [{"name": name} for name in ("lang-painless", "mapper-extras")]
        if path.startswith("/_nodes/_local"):
            return 200, {"nodes": {"one": {"version": version, "modules": modules}}}
        if "/_search" in path:
            return 200, {"took": 1, "timed_out": False, "hits": {"total": {"value": 0, "relation": "eq"}, "hits": []}}
        if method == "GET":
            return 404, {"error": {"type": "resource_not_found_exception", "reason": "not there"}, "status": 404}
        return 200, {"acknowledged": True, "connector_id": "connector1", "model_id": "model1", "task_id": "task1"}


class _Asked(BaseHTTPRequestHandler):
    """One connection of a made-up engine."""

    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        engine = self.server
        assert isinstance(engine, MadeUpEngine)
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        engine.asked.append(f"{self.command} {self.path}\n{body}\n")
        status, said = engine.answer(self.command, self.path)
        data = json.dumps(said).encode()
        self.send_response(status)
        for name, value in (("content-type", "application/json"), ("content-length", str(len(data)))):
            self.send_header(name, value)
        if engine.kind == "elasticsearch":
            self.send_header("x-elastic-product", "Elasticsearch")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


# --- running ----------------------------------------------------------------------------------------------------------


def rows_of(engine: Path) -> str:
    """Return what the embedded engine's indexes hold, as text: its own files carry random names."""
    lines = []
    with sqlite3.connect(engine / "catalogue.sqlite") as catalogue:
        named = catalogue.execute("SELECT name, folder FROM indexes ORDER BY name").fetchall()
        for alias, name in catalogue.execute("SELECT alias, name FROM aliases ORDER BY alias, name"):
            lines.append(f"alias {alias} of {name}")
    for name, folder in named:
        with sqlite3.connect(engine / folder / "documents.sqlite") as index:
            lines += [f"{name} {key}: {value}" for key, value in index.execute("SELECT * FROM meta ORDER BY key")]
            fields = "id, seq_no, version, routing, source"
            for *about, source in index.execute(f"SELECT {fields} FROM documents ORDER BY id"):  # noqa: S608
                lines.append(f"{name} {about} {source.decode() if isinstance(source, bytes) else source}")
    return "\n".join(lines) + "\n"


def contents(path: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of what is to be digested: a file, or all of a folder; gzip unpacked, no locks."""
    if (path / "catalogue.sqlite").is_file():
        yield f"{name}.rows.txt", rows_of(path).encode()
    elif path.is_dir():
        for inner in sorted(path.iterdir()):
            yield from contents(inner, f"{name}/{inner.name}")
    elif path.suffix == ".gz":
        yield name.removesuffix(".gz"), gzip.decompress(path.read_bytes())
    elif path.exists() and path.name not in (".lock", "lock", "lock.mdb", "key"):
        yield name, path.read_bytes()


class Run:
    """A tree at work in a folder.

    Parameters
    ----------
    tree : Path
    out : Path
        Where digests and files go.
    cache : Path
        Folder of numba's cache.
    hash_seed : str
        PYTHONHASHSEED.
    """

    def __init__(self, tree: Path, out: Path, cache: Path, hash_seed: str) -> None:
        self.scratch = out / "scratch"
        self.files = out / "files"
        self.engines = {kind: MadeUpEngine(kind) for kind in ("opensearch", "elasticsearch")}
        words = {str(self.scratch): "<scratch>", str(tree): "<tree>"}
        words |= {engine.url: f"<{kind}>" for kind, engine in self.engines.items()}
        self.mask = Masking(words, datetime.now(UTC))
        kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ} | {
            "PYTHONPATH": str(tree),
            "PYTHONHASHSEED": hash_seed,
            "NUMBA_CACHE_DIR": str(cache),
            "COLUMNS": "120",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "TZ": "UTC",
            "NO_COLOR": "1",
            "MPLBACKEND": "agg",
        }
        self.digests: Digests = {}
        self.seconds: dict[str, float] = {}
        self.wrong: list[str] = []

    def python(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run Python with the tree on its path, in the scratch folder."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.scratch, env=self.environment, capture_output=True, check=False)

    def ssi(self, arguments: Sequence[str], kill_at: str = "") -> tuple[int, bytes, bytes]:
        """Return exit status, standard output and standard error of a command, or of its second try."""
        if kill_at:
            with subprocess.Popen(
                [sys.executable, "-m", "reranker", *arguments],
                cwd=self.scratch,
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as first:
                while first.poll() is None and not (self.scratch / kill_at).exists():
                    time.sleep(0.005)
                if first.poll() is None:
                    first.send_signal(signal.SIGKILL)
                    first.wait()
                else:
                    self.wrong.append(f"{shlex.join(arguments)}: was done before it could be killed")
        done = self.python("-m", "reranker", *arguments)
        return done.returncode, done.stdout, done.stderr

    def filled(self, command: str) -> list[str]:
        """Return the arguments of a command with its places filled in."""
        for kind, engine in self.engines.items():
            command = command.replace(f"{{{kind}}}", f"{kind}:{engine.url}")
        for place in re.findall(r"\{model:(.*?)\}", command):
            manifest = self.scratch / place / "manifest.json"
            found = str(json.loads(manifest.read_bytes())["model_id"]) if manifest.is_file() else "missing"
            command = command.replace(f"{{model:{place}}}", found)
        return shlex.split(command)

    def do(self, step: Step) -> None:
        """Run a step and digest what it wrote."""
        begun = time.perf_counter()
        status, said, errors = self.ssi(self.filled(step.command), step.kill_at)
        self.seconds[step.name] = round(time.perf_counter() - begun, 2)
        found = {"stdout": said, "exit status": str(status).encode()}
        for engine in self.engines.values():
            if engine.asked:
                found["requests"] = "".join(engine.asked).encode()
                engine.asked.clear()
        for name in step.keep:
            found.update(contents(self.scratch / name, name))
        self.keep(step.name, found, errors)
        if status != step.status:
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            self.wrong.append(f"{step.name}: exit status {status}, not {step.status}: {''.join(last)}")

    def keep(self, step: str, found: Mapping[str, bytes], errors: bytes = b"") -> None:
        """Digest what a step wrote, and keep it."""
        folder = self.files / step.replace(" ", "-")
        digests = {}
        for name, data in found.items():
            masked = self.mask(data, step, name)
            digests[name] = hashlib.sha256(masked).hexdigest()
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(masked)
        if errors:
            (folder / "stderr, not digested").write_bytes(self.mask(errors, step, "stderr"))
        self.digests[step] = digests

    def help_texts(self, *command: str) -> None:
        """Keep the help of a command and of all commands under it."""
        status, said, _ = self.ssi([*command, "--help"])
        text = said.decode()
        self.keep(" ".join([HELP, *command]), {"stdout": said, "exit status": str(status).encode()})
        sections = re.findall(
            r"\n(?:Commands|Start|Operate|Clicks|Inspect|Research):\n(.*?)(?=\n\n|\Z)", text, re.DOTALL
        )
        listed = "\n".join(sections)
        for name in re.findall(r"^  (\S+)", listed, re.MULTILINE):
            self.help_texts(*command, name)


def fresh(folder: Path, data: str | None) -> None:
    """Make a folder anew, with the inputs in it."""
    shutil.rmtree(folder, ignore_errors=True)
    make_inputs(folder, data)


def run_all(run: Run, steps: Sequence[Step], data: str | None, cache: Path) -> None:
    """Warm numba's cache, then run and digest every step."""
    counted = run.scratch
    run.scratch = counted.with_name("warming")
    fresh(run.scratch, data)
    begun = time.perf_counter()
    for step in steps:
        if step.warm:
            run.ssi(run.filled(step.command))
    shutil.rmtree(run.scratch)
    run.seconds["warming"] = round(time.perf_counter() - begun, 2)
    before = {path.name for path in cache.rglob("*.nbc")}
    run.scratch = counted
    fresh(run.scratch, data)
    inputs = {name: body for top in sorted(run.scratch.iterdir()) for name, body in contents(top, top.name)}
    run.keep("inputs", inputs)
    for step in steps:
        print(step.name, flush=True)
        run.do(step)
    late = sorted({path.name for path in cache.rglob("*.nbc")} - before)
    if late:
        print("compiled after the warming pass:", *late, sep="\n  ")


def record(options: argparse.Namespace) -> int:
    """Run the steps on a tree; return the exit status."""
    tree, out = options.tree.resolve(), options.out.resolve()
    cache = (options.numba_cache or out / "numba").resolve()
    for name in ("files", "scratch", "warming"):
        shutil.rmtree(out / name, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    data = os.environ.get("SSI_DATA")
    run = Run(tree, out, cache, options.hash_seed)
    where = run.python("-c", "import reranker; print(reranker.__file__, end='')").stdout.decode()
    if not Path(where).is_relative_to(tree):
        print(f"the program that would run is not that of {tree}: {where}", file=sys.stderr)
        return 2
    words = options.only.split(",") if options.only else [""]
    steps = [one for one in (*STEPS, *(REAL if data else ())) if any(word in one.name for word in words)]
    begun = time.perf_counter()
    run_all(run, steps, data, cache)
    if not options.only:
        run.scratch.mkdir(exist_ok=True)
        run.help_texts()
    (out / "digests.json").write_text(json.dumps(run.digests, indent=1) + "\n")
    about = {
        "tree": str(tree),
        "python": sys.version,
        "numpy": np.__version__,
        "hash seed": options.hash_seed,
        "real data": bool(data),
        "seconds": round(time.perf_counter() - begun, 1),
        "seconds by step": run.seconds,
        "not as expected": run.wrong,
    }
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    n_files = sum(len(one) for one in run.digests.values())
    print(f"{len(run.digests)} steps, {n_files} digests, {about['seconds']} s: {out / 'digests.json'}")
    for line in run.wrong:
        print(f"not as expected: {line}")
    return 1 if run.wrong else 0


def differences(before: Digests, after: Digests) -> Iterator[tuple[str, str]]:
    """Yield (step, what differs) of two runs."""
    for step in [*before, *(name for name in after if name not in before)]:
        if step not in before or step not in after:
            yield step, f"only {'before' if step in before else 'after'}"
            continue
        old, new = before[step], after[step]
        for name in [*old, *(one for one in new if one not in old)]:
            if old.get(name) != new.get(name):
                how = "differs" if name in old and name in new else f"only {'before' if name in old else 'after'}"
                yield step, f"{name} {how}"


def compare(before: Path, after: Path) -> int:
    """Print how two runs differ; return the exit status."""
    found = list(differences(json.loads(before.read_bytes()), json.loads(after.read_bytes())))
    texts = [one for one in found if one[0].split()[0] == HELP]
    others = [one for one in found if one not in texts]
    for title, some in (("help texts, which do not count", texts), ("differences", others)):
        print(f"{title}: {len(some)}")
        for step, what in some:
            print(f"  {step}: {what}")
    return 1 if others else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, help="the tree whose program is run")
    parser.add_argument("--out", type=Path, help="where digests and files go")
    parser.add_argument("--numba-cache", type=Path, help="numba's cache, of this tree alone; default: OUT/numba")
    parser.add_argument("--only", default="", help="steps whose names hold one of these words, to try them")
    parser.add_argument("--hash-seed", default="0", help="PYTHONHASHSEED: a number, or random")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="two digests.json")
    options = parser.parse_args()
    if options.compare:
        sys.exit(compare(*options.compare))
    if not (options.tree and options.out):
        parser.error("give --tree and --out, or --compare")
    options.out.mkdir(parents=True, exist_ok=True)
    sys.exit(record(options))


if __name__ == "__main__":
    main()
