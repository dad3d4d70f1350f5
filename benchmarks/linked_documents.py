"""What `ssi train` gains on linked documentation: its defaults, and models made for one kind of query.

    python benchmarks/linked_documents.py [--corpora cppdocs] [--small] [--json FILE]

For each corpus of SSI_DATA with links (cppdocs, mdn, aws, rfc) the commands that a user would type: `ssi train` and
`ssi evaluate` beside TF-IDF, BM25 and LSI tuned on the training links. The first rows are the defaults of both
commands; the others state what their queries are. Every query ranks all documents (of the pool, where there is one)
but itself and its known links; MAP over 1,000 ranks with its standard error over queries, p of the paired t-test.
``--small`` takes the first 400 documents: it shows that the script works, not what is gained.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provenance import write_results

DATA = Path(os.environ.get("SSI_DATA", "../shared/data"))
CORPORA = ("cppdocs", "mdn", "aws", "rfc")
SMALL = 400
REFUSED = 7
"""Exit status of `ssi train` where the model is not better than words alone: nothing is written."""

ROWS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("defaults, whole pages", "links", (), ()),
    ("defaults, 10 random words of a page", "links", (), ("--queries", "keywords:10")),
    ("defaults, pages not seen in training", "unseen", (), ()),
    ("--queries document, whole pages", "links", ("--queries", "document"), ()),
    (
        "--queries keywords:10 --dim 300, 10 random words of a page",
        "links",
        ("--queries", "keywords:10", "--dim", "300"),
        ("--queries", "keywords:10"),
    ),
    (
        "--queries document --dim 300, pages not seen in training",
        "unseen",
        ("--queries", "document", "--dim", "300"),
        (),
    ),
)
"""Name, split, options of `ssi train`, options of `ssi evaluate`."""


def lines(path: Path) -> list[str]:
    """Return the lines of a gzipped text file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def prepare(corpus: Path, folder: Path, small: bool) -> tuple[Path, dict[str, Path]]:
    """Write documents and links of both splits to a folder; return the documents' file, and the links by name."""
    documents = lines(corpus / "docs_en.jsonl.gz")[: SMALL if small else None]
    ids = {json.loads(line)["id"] for line in documents}
    parts = {name: set(lines(corpus / f"docs_{name}_ids.txt.gz")) & ids for name in ("train", "test")}
    links = {
        "links": [line.split("\t") for line in lines(corpus / "links_en.tsv.gz")],
        **{
            name: [line.split("\t") for line in lines(corpus / f"links_{name}.tsv.gz")]
            for name in ("train", "valid", "test")
        },
    }
    kept = {name: [pair for pair in links[name] if set(pair[:2]) <= ids] for name in ("train", "valid", "test")}
    kept |= {f"unseen_{name}": [pair for pair in links["links"] if set(pair[:2]) <= parts[name]] for name in parts}
    files = {name: folder / f"{name}.tsv" for name in kept}
    for name, pairs in kept.items():
        files[name].write_text("".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8")
    files["pool"] = folder / "pool.txt"
    files["pool"].write_text("\n".join(sorted(parts["test"])) + "\n", encoding="utf-8")
    path = folder / "docs.jsonl"
    path.write_text("\n".join(documents) + "\n", encoding="utf-8")
    return path, files


def commands(
    row: tuple[str, str, Sequence[str], Sequence[str]], docs: Path, files: dict[str, Path], model: Path
) -> tuple[list[str], list[str]]:
    """Return the arguments of `ssi train` and of `ssi evaluate` for a row."""
    _, split, training, testing = row
    if split == "links":
        learn = ["--links", str(files["train"]), "--valid", str(files["valid"])]
        test = ["--links-test", str(files["test"]), "--known", str(files["train"]), "--known", str(files["valid"])]
        test += ["--without-reverse", str(files["train"])]
    else:
        learn = ["--links", str(files["unseen_train"])]
        test = [
            "--links-test",
            str(files["unseen_test"]),
            "--pool",
            str(files["pool"]),
            "--tune",
            str(files["unseen_train"]),
        ]
    train = ["train", "--docs", str(docs), *learn, *training, "--model", str(model), "--json"]
    evaluate = ["evaluate", "--docs", str(docs), *test, *testing, "--model", str(model), "--json"]
    return train, [*evaluate, "--baselines", "tfidf,bm25,lsi:200"]


def ssi(arguments: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Run a command of the program; return its exit status and its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "reranker", *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, REFUSED):
        raise SystemExit(f"ssi {shlex.join(arguments)} ended with status {done.returncode}")
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}


def study(name: str, small: bool) -> list[dict[str, Any]]:
    """Return the figures of every row on one corpus."""
    rows: list[dict[str, Any]] = []
    models: dict[tuple[str, tuple[str, ...]], tuple[int, dict[str, Any], float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        docs, files = prepare(DATA / name, Path(scratch), small)
        for row in ROWS:
            title, split, training, testing = row
            model = Path(scratch) / f"model_{split}_{'_'.join(training)}"
            train, evaluate = commands(row, docs, files, model)
            if (split, training) not in models:
                started = time.perf_counter()
                status, report = ssi(train)
                models[split, training] = status, report, time.perf_counter() - started
            status, report, seconds = models[split, training]
            found: dict[str, Any] = {
                "corpus": name,
                "row": title,
                "train": shlex.join(["ssi", "train", *training]),
                "evaluate": shlex.join(["ssi", "evaluate", *testing]),
                "train_s": round(seconds, 1),
                "refused": status == REFUSED,
                "training": report,
            }
            if status != REFUSED:
                found["test"] = ssi(evaluate)[1]
            rows.append(found)
            print(f"{name}: {title}: {'refused' if status == REFUSED else 'done'} ({seconds:.0f} s)", flush=True)
    return rows


def main() -> None:
    """Run the rows and keep their figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpora", default="cppdocs", help=f"comma list of {', '.join(CORPORA)}")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [row for name in options.corpora.split(",") for row in study(name, options.small)]
    if options.json:
        write_results(options.json, {"small": options.small, "rows": rows})


if __name__ == "__main__":
    main()
