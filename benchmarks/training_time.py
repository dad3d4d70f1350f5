"""`ssi train` with its defaults by several versions of the program: time, memory, test MAP.

    git worktree add --detach ../before COMMIT
    python benchmarks/training_time.py --tree ../before --tree . --out FILE [--corpora aws,nfcorpus] [--json RESULTS]

Each tree trains on each corpus of SSI_DATA, with the corpus's own validation data, and is asked for the test links
(whole pages, 5 words) or test queries. The trees take turns, corpus by corpus. A line of JSON is added to FILE after
each training: wall time and processor time in seconds, peak memory in MiB, seconds of each stage where the program
tells them, and MAP. What is in FILE is not measured again; a tree is known by the digest of its program.

With --json, the rows of the last tree are written as results, each with those of the first tree as ``before``. The last
tree must be the one that this script is in: the results are of its program.

With --beside, the seconds of other systems on the same corpus are printed, but not kept: the index of bm25s, LightFM
with as many epochs as the last training chose, and LambdaMART by LightGBM on lexical features. `generalisation_peers`
names the libraries.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generalisation_data import MEASURES, Corpus, arguments, read_corpus
from generalisation_peers import Rivals
from provenance import write_results

DATA = Path(os.environ.get("SSI_DATA", "../shared/data"))
CORPORA = ("aws", "nfcorpus", "mdn", "insuranceqa", "cppdocs", "rfc")
DEFAULT_EPOCHS = 10
"""Epochs of LightFM if no training is known, or if nothing was learned."""
ACCEPTED = (0, 8)
"""Exit statuses of a command that did its work; 8: a part of the input was left out."""


def digest_of(tree: Path) -> str:
    """Return a digest of a tree's program."""
    total = hashlib.sha256()
    for path in sorted((tree / "reranker").rglob("*.py")):
        total.update(f"{path.relative_to(tree)}\n".encode() + path.read_bytes())
    return total.hexdigest()[:12]


def ssi(tree: Path, *command: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the JSON of a command of a tree's program, and what it cost."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "reranker", *command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in ACCEPTED:
        raise SystemExit(f"ssi {' '.join(command)} ended with status {process.returncode}")
    cost = {
        "wall_s": round(time.perf_counter() - started, 1),
        "processor_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": round(used.ru_maxrss / 1024),
    }
    return json.loads(output), cost


def row_of(tree: Path, corpus: Corpus, work: Path) -> dict[str, Any]:
    """Train once and ask for the test data."""
    train, test = arguments(corpus, "links" if corpus.linked else "split", work)
    model = work / "model"
    report, cost = ssi(tree, "train", *train, "--model", str(model))
    kinds = ("document", "keywords:5") if corpus.linked else ("text",)
    reached = {}
    for kind in kinds:
        queries = [] if kind == "text" else ["--queries", kind]
        answer, _ = ssi(tree, "evaluate", *test, *queries, "--model", str(model), "--baselines", "bm25")
        reached[kind] = {system: values["AP"]["mean"] for system, values in answer["systems"].items()}
    found = {"MAP": reached, "epochs": report.get("best_epoch"), "stages": report.get("stages")}
    return {"corpus": corpus.name, **cost, **found}


def published(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the results keep of a row: cost and MAP, and no stages, which older versions do not tell."""
    maps = {kind: values["model"] for kind, values in row["MAP"].items()}
    return {**{name: row[name] for name in ("corpus", "wall_s", "processor_s", "peak_mb", "epochs")}, "MAP": maps}


def rivals_sentence(corpus: Corpus, epochs: int, work: Path) -> str:
    """Return the seconds in which other systems learn from the same training data."""
    split, kind = ("links", "document") if corpus.linked else ("split", "text")
    rivals = Rivals(corpus, split, kind, MEASURES[corpus.name], False, None, work)
    seconds = rivals.training_seconds(epochs)
    return f"{corpus.name:12} {epochs} epochs  " + ", ".join(f"{name} {one:.1f} s" for name, one in seconds.items())


def main(given: Sequence[str] | None = None) -> None:
    """Measure the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, action="append", required=True, help="folder of a version; several times")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--corpora", default=",".join(CORPORA))
    parser.add_argument("--json", type=Path, metavar="RESULTS", help="write the results of the last tree here")
    parser.add_argument("--beside", action="store_true", help="print the seconds of bm25s, LightFM and LambdaMART too")
    options = parser.parse_args(given)
    known = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["version"], row["corpus"]) for row in known}
    epochs = {row["corpus"]: row.get("epochs") for row in known}
    for name in options.corpora.split(","):
        for tree in options.tree:
            version = digest_of(tree)
            if (version, name) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                row = row_of(tree.resolve(), read_corpus(DATA / name, Path(folder), False), Path(folder))
            epochs[name] = row["epochs"]
            with options.out.open("a") as file:
                file.write(json.dumps({"version": version, "tree": tree.name, **row}) + "\n")
            known.append({"version": version, **row})
            print(f"{name:12} {tree.name:10} {row['wall_s']:7.1f} s {row['peak_mb']:6,} MiB  {row['MAP']}", flush=True)
        if options.beside:
            with tempfile.TemporaryDirectory() as folder:
                corpus = read_corpus(DATA / name, Path(folder), False)
                print(rivals_sentence(corpus, epochs.get(name) or DEFAULT_EPOCHS, Path(folder)), flush=True)
    if options.json is not None:
        of = {(row["version"], row["corpus"]): published(row) for row in known}
        first, last = digest_of(options.tree[0]), digest_of(options.tree[-1])
        names = options.corpora.split(",")
        write_results(options.json, {"rows": [{**of[last, name], "before": of[first, name]} for name in names]})


if __name__ == "__main__":
    main()
