"""What each step costs by the size of its input: laws over made corpora (`scale_data`), with their exponents.

    python benchmarks/scale.py --json benchmarks/results/scale.json [--sizes 10000,30000,100000] [--work FOLDER]

train: `ssi train` with its defaults on n documents and 20 n links; seconds, processor seconds, peak memory, and
MAP on the sample of `scale_data` (`ssi evaluate`) compared with that of the true model.
encode: text to Vd by the trained model, documents a processor second of one thread.

A law y = c * n^e is the least-squares line of log y by log n, over all sizes; processor time hardly changes where other
programs share the machine, which wall time does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from provenance import write_results
from scale_data import make

from reranker.formats import read_documents
from reranker.models.model_folder import load_model

ROOT = Path(__file__).resolve().parents[1]
LINKS_OF = 20
ENCODED = 20_000
"""Documents that are encoded at most, in batches as the indexer's."""
BATCH = 256
COSTS = ("seconds", "cpu_s", "peak_mb")


def ssi(*arguments: str) -> dict[str, Any]:
    """Run a command; return its JSON, with seconds, processor seconds and the most memory that it held."""
    command = [sys.executable, "-m", "reranker", *arguments, "--json"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"ssi {arguments[0]} ended with status {process.returncode}")
    spent = {"seconds": time.perf_counter() - started, "cpu_s": used.ru_utime + used.ru_stime}
    return {**json.loads(output), **spent, "peak_mb": used.ru_maxrss / 1024}


def made(folder: Path, n: int, seed: int) -> dict[str, Any]:
    """Return ``truth.json`` of the corpus in a folder, which is made unless a finished one of this size is there."""
    finished = folder / "truth.json"  # written last
    if finished.exists():
        truth: dict[str, Any] = json.loads(finished.read_text(encoding="utf-8"))
        if (truth["documents"], truth["seed"]) == (n, seed):
            return truth
    return make(folder, n, LINKS_OF * n, seed)


def train(folder: Path, truth: Mapping[str, float], options: argparse.Namespace) -> dict[str, Any]:
    """Return what training costs and what the model finds."""
    docs, model = str(folder / "docs.jsonl"), str(folder / "model")
    links = [str(folder / f"links_{part}.tsv") for part in ("train", "valid", "sample")]
    learning = ["--docs", docs, "--links", links[0], "--valid", links[1]]
    trained = ssi("train", *learning, "--seed", str(options.seed), "--model", model)
    asking = ["--links-test", links[2], "--known", links[0], "--known", links[1], "--baselines", "bm25"]
    tested = ssi("evaluate", "--docs", docs, *asking, "--model", model)
    reached = {name: of["AP"]["mean"] for name, of in tested["systems"].items()}
    row = {**truth, **{name: trained[name] for name in COSTS}, "evaluate_s": tested["seconds"]}
    row |= {"model": reached["model"], "bm25": reached["bm25"], "of the true model's": reached["model"] / truth["map"]}
    return row


def encode(folder: Path, truth: Mapping[str, float]) -> dict[str, Any]:
    """Return what the encoder of a trained model costs."""
    encoder = load_model(folder / "model").encoder
    documents = list(itertools.islice(read_documents(folder / "docs.jsonl"), ENCODED + BATCH))
    batches = [documents[at : at + BATCH] for at in range(0, len(documents), BATCH)]
    encoder.encode([document.source for document in batches[0]])  # compiles
    started = time.process_time()
    for batch in batches[1:]:
        encoder.encode([document.source for document in batch])
    spent, n = time.process_time() - started, len(documents) - BATCH
    return {"documents": truth["documents"], "encoded": n, "cpu_s": spent, "documents_s": n / spent}


def law(rows: Sequence[Mapping[str, float]], value: str) -> dict[str, float]:
    """Return factor and exponent of value = factor * documents^exponent."""
    exponent, factor = np.polyfit(np.log([row["documents"] for row in rows]), np.log([row[value] for row in rows]), 1)
    return {"factor": float(np.exp(factor)), "exponent": float(exponent)}


def main() -> None:
    """Measure what is asked for and keep its figures after each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10000,30000,100000", metavar="LIST", help="documents")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", help="keep corpora and models there, and use its corpora again"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "encode": []}
    # A command's most memory counts what the process that started it held then: that does nothing else.
    apart = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with tempfile.TemporaryDirectory() as scratch, apart:
        for n in (int(size) for size in options.sizes.split(",")):
            folder = (options.work or Path(scratch)) / f"documents-{n}"
            truth = apart.submit(made, folder, n, options.seed).result()
            parts["train"].append(train(folder, truth, options))
            parts["encode"].append(apart.submit(encode, folder, truth).result())
            for part, rows in parts.items():
                print(f"{part}: {json.dumps(rows[-1])}", flush=True)
            laws = {name: law(parts["train"], name) for name in COSTS} if len(parts["train"]) > 2 else {}
            if options.json is not None:
                write_results(options.json, {"seed": options.seed, **parts, "laws": laws})
    for name, of in laws.items():
        print(f"train, {name}: {of['factor']:.3g} * documents^{of['exponent']:.2f}")


if __name__ == "__main__":
    main()
