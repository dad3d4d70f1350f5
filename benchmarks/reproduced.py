"""The papers' systems side by side: the runs of ``ssi reproduce`` that ``benchmarks/results/reproduced.json`` keeps.

    python benchmarks/reproduced.py [--out DIR] [--only T1a,T6] [--jobs N] [--small] [--json FILE]

Runs the commands, each on one core and ``--jobs`` at a time, and keeps what each prints under ``--json``: the tables
with the p-values of their tests, what was chosen on validation, and the sentences. What this program has finished under
``--out`` is used again, and what is there by then is kept in the file with what the file has of other runs: so runs
made at the same time, each with its own ``--only``, are gathered by a last one. Give a folder of its own to each
program. A run that is no longer in the list stays in the file until one of the same task and corpus with several seeds
takes its place. Each run names the program and the day of its measurement. By the seconds of short runs, each takes up
to about eight minutes of a free core (`FULL_W` half an hour), and all of them about two hours with two jobs.
``--small`` takes minutes, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from provenance import program_of, write_results

FULL_W = "T1a --seeds 3 --steps 2000000 --rates 0.1 --systems tf-idf,margin-ranking-perceptron,utv-plus-i"
"""Full W at the number of steps of the first run of T1a; it takes about eight minutes of a core for each seed."""
RUNS = (
    "T1a --steps 2000000 --rates 0.1 --systems tf-idf,query-expansion,lsi,lsi-tf-idf,bm25,diagonal,"
    "utu-plus-i,utv,utv-plus-i,psi-3",
    FULL_W,
    "T1a --seeds 2 --steps 200000 --rates 0.1 --systems tf-idf,margin-ranking-perceptron,utv-plus-i",
    "T1a --seeds 3 --steps 500000 --rates 0.1"
    " --systems tf-idf,bm25,bm25-anchors,bm25-pagerank,diagonal,utu-plus-i,utv,utv-plus-i,psi-3",
    "T1b --steps 400000 --rates 0.1 --systems tf-idf,utv-plus-i,restricted-utv-plus-i,hash-kernels-3m,cfh-1-grams",
    "T2 --steps 500000 --rates 0.1",
    "T3a --steps 1000000 --rates 0.1",
    "T3b --steps 1000000 --rates 0.1"
    " --systems tf-idf,query-expansion,lsi-tf-idf,bm25,utu-plus-i,utv-plus-i,psi-3,psi-3-separate",
    "T3c --steps 1000000 --rates 0.1",
    "T3d --steps 400000 --rates 0.1",
    "T13 --steps 1000000 --rates 0.1",
    "T9 --steps 500000 --rates 0.1",
    "T12 --dims 500 --steps 500000 --rates 0.1",
    "T4 --steps 500000",
    "T5 --seeds 3 --dims 100 --steps 100000 --rates 0.1 --systems cl-lsi,mates-opca,mates-cca,mates-pca,mates-s2net,"
    "mates-s2net-cl-lsi,psi-cross,psi-cross-cl-lsi",
    "T6 --dims 100 --steps 100000 --rates 0.1 --systems cl-lsi,mates-opca,mates-cca,mates-pca,mates-plsa,mates-jplsa,"
    "mates-cplsa,mates-hdlr,mates-s2net,mates-s2net-cl-lsi,mates-s2net-pca,mates-s2net-random,mates-s2net-squared,"
    "mates-s2net-beta,psi-cross-cl-lsi",
    "T12-T6 --dims 200 --steps 50000 --rates 0.1",
    "T10 --dims 100 --steps 1000000",
    "T11",
    "T12-T7 --corpus esci_sample --dims 500 --steps 50000 --rates 0.1",
    "T7a --corpus esci_sample --dims 50 --steps 100000 --systems graded-tfidf,graded-bm25,graded-likelihood,"
    "graded-pca,graded-ssi,graded-s2net,graded-s2net-pseudo,graded-ranking-svm",
    "T7b --corpus esci_sample --dims 50 --steps 30000 --rates 0.1 --systems graded-tfidf,graded-bm25,graded-likelihood,"
    "graded-expansion,graded-lsi-tfidf,graded-pca,graded-opca,graded-cca,graded-plsa,graded-jplsa,graded-cplsa,graded-hdlr,"
    "graded-diagonal,graded-hash,graded-ssi,graded-s2net,graded-s2net-tfidf,graded-pointwise-svm,graded-ranking-svm,"
    "graded-rsvm-ir,graded-combination",
    *(
        f"T7b-judged --corpus {corpus} --steps 100000 --rates 0.1 --systems graded-tfidf,graded-bm25,graded-likelihood,"
        "graded-expansion,graded-lsi-tfidf,graded-pca,graded-opca,graded-diagonal,graded-ssi-pca,graded-s2net,"
        "graded-s2net-tfidf,graded-ranking-svm,graded-rsvm-ir"
        for corpus in ("cranfield", "cisi", "msrd_movies", "wikimedia_discernatron")
    ),
    "T8 --corpus trec_session_2013 --dims 50 --steps 200000",
    "T14 --corpus trec_session_2013 --dims 50 --steps 200000",
)
"""Options of each run; ``--corpus`` names a folder of ``SSI_DATA``, by default ``DEFAULT_CORPUS``."""
NAMES = {FULL_W: "T1a full W"}
"""Names of runs whose task, corpus and number of seeds are those of another run."""
DEFAULT_CORPUS = "cppdocs"
IN_OTHER_RUNS = {
    "T14a": "the row clicked-over-unclicked of T14",
    "T14b": "the row last-clicked-above-skipped of T14",
    "T14c": "the row clicked-over-previous of T14",
    "T14d": "the row clicked-over-next of T14",
    "T14e": "the row ssi-position-one of T14",
}
"""Tasks without a run of their own, and where their figures are."""
ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Environment in which a run uses one core."""
SMALL = ("--small", "--steps", "600", "--every", "300", "--grid", "2", "--slots", "3000", "--iterations", "2")


def option(run: str, name: str, default: str) -> str:
    """Return the value of an option of a run."""
    words = shlex.split(run)
    return words[words.index(name) + 1] if name in words else default


def task_of(run: str) -> str:
    """Return the id of a run's task."""
    return run.partition(" ")[0]


def heading(run: str) -> str:
    """Return the name of a run: that of `NAMES`, or its task, its corpus if given, and the number of several seeds."""
    if run in NAMES:
        return NAMES[run]
    corpus, seeds = option(run, "--corpus", ""), option(run, "--seeds", "")
    return " ".join([task_of(run), *([corpus] if corpus else []), *([f"{seeds} seeds"] if seeds else [])])


def made(run: str, data: Path, out: Path, small: bool) -> dict[str, Any]:
    """Run one command and return what it prints as JSON, without the seconds, which are of a machine."""
    words = shlex.split(run)
    if "--corpus" in words:
        place = words.index("--corpus") + 1
        words[place] = str(data / words[place])
    program = str(Path(sys.executable).with_name("ssi"))
    command = [program, "reproduce", *words, *(SMALL if small else ()), "--out", str(out / heading(run)), "--json"]
    measured = {"version": program_of(Path(__file__)), "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    environment = {**os.environ, **ONE_CORE, "SSI_DATA": str(data)}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    sections = json.loads(done.stdout)["sections"]
    for shown in (table for section in sections for table in section["tables"]):
        if shown["columns"][-1] == "seconds":
            shown["columns"], shown["rows"] = shown["columns"][:-1], [row[:-1] for row in shown["rows"]]
    for section in sections:
        del section["pictures"]
    return {"command": f"ssi reproduce {run}", **measured, "sections": sections}


def measured_before(file: Path) -> dict[str, Any]:
    """Return the runs of a results file; a run without a program and a day of its own has those of the file."""
    content = json.loads(file.read_text(encoding="utf-8"))
    about = {"version": content["about"].get("program", ""), "date": content["about"].get("date", "")}
    return {name: {"command": run["command"], **about, **run} for name, run in content["runs"].items()}


def is_made(kept: Path, program: str) -> bool:
    """Return whether a run was already made by this program."""
    return kept.exists() and json.loads(kept.read_text(encoding="utf-8"))["version"] == program


def main() -> None:
    """Make the runs that are asked for, and keep them with those made before."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("reproduced"), help="where runs are kept while they are made")
    parser.add_argument("--only", default="", help="tasks or runs, such as 'T6,T1a 3 seeds' (default: all)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument("--small", action="store_true", help="minutes; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="the results file (default: kept under --out alone)")
    options = parser.parse_args()
    data = Path(os.environ.get("SSI_DATA") or Path(__file__).parents[2] / "shared" / "data").resolve()
    only = {name for name in options.only.split(",") if name}
    earlier = measured_before(options.json) if options.json is not None and options.json.exists() else {}
    program = program_of(Path(__file__))

    def make(run: str) -> None:
        """Make a run and keep it under ``--out``."""
        started = time.monotonic()
        content = made(run, data, options.out, options.small)
        kept = options.out / f"{heading(run)}.json"
        kept.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{heading(run)}: {time.monotonic() - started:.0f} s", flush=True)

    asked = [run for run in RUNS if not only or only & {task_of(run), heading(run)}]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(make, (run for run in asked if not is_made(options.out / f"{heading(run)}.json", program))))
    results = {}
    for run in RUNS:
        kept = options.out / f"{heading(run)}.json"
        if kept.exists():
            results[heading(run)] = json.loads(kept.read_text(encoding="utf-8"))
        elif heading(run) in earlier:
            results[heading(run)] = earlier[heading(run)]
    results |= {
        name: run
        for name, run in earlier.items()
        if not any(one == name or one.startswith(f"{name} ") for one in results)
    }
    if options.json:
        write_results(options.json, {"runs": results})


if __name__ == "__main__":
    main()
