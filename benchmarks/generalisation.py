"""What the defaults learn: `ssi train` with its defaults on every corpus of SSI_DATA, beside rivals.

    python benchmarks/generalisation.py --json benchmarks/results/generalisation.json --minilm FOLDER
    python benchmarks/generalisation.py --small --corpora cppdocs,nfcorpus --peers joint-bm25
    SSI_DATA=FOLDER python benchmarks/generalisation.py --corpora foldoc,qt  # made by package_corpora.py

Rows of linked corpora (cppdocs, mdn, aws, rfc; random links, the whole collection ranked): one default model asked with
whole pages, 5 and 10 of their words; models specialised in each (``*-only``); and pages apart, learned from the links
among some documents and asked for those among the others. Rows of judged corpora: ``split`` by queries, with the
corpus's own validation queries as ``--valid``; ``whole``, the same with these among the evidence, of which `ssi train`
holds out its own; and ``unseen``.
nfcorpus and insuranceqa come split; the other judged corpora are split here by the hash of the query's text (40 % test,
12 % validation). msrd_movies and esci_sample are measured by nDCG@10, all others by MAP over 1,000 ranks.

Beside each row, on the same queries: the tuned TF-IDF and BM25 of `ssi evaluate`, and the rivals of
`generalisation_peers`. Every difference is tested by the paired t-test.

``--set "OPTION VALUE ..."`` sets options of every training; ``--learn N`` lets judged corpora learn from N queries
only, in rows of a name of their own (nfcorpus-150). No constant of this file or of the defaults is chosen by the
corpus of a row. Rows with settings by hand are kept: they were measured when `ssi train` had these options.

FILE is written after every row; a row that is in it, with the same command and the same program, is not run again. What
it needs for that (values of single queries, vectors, models at work) lies beside it, in FILE with the ending ``.work``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from generalisation_data import JUDGED, LINKED, MEASURES, Corpus, arguments, learning_from, read_corpus
from generalisation_peers import PEERS, Rivals
from provenance import program_of, write_results

from reranker.evaluation import evaluate_run, paired_test, standard_error

DATA = Path(os.environ.get("SSI_DATA", "../shared/data"))
ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = 8
"""Exit status of a command that left out a part of its input, such as links of unknown documents."""
LEXICAL = ("tfidf", "bm25", "bm25+queries")
"""Baselines of `ssi evaluate`; the last where queries are texts."""
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """A row of the table: the split, and what asks."""

    title: str
    split: str
    kind: str


ROWS: Mapping[str, Row] = {
    "pages": Row("defaults, whole pages", "links", "document"),
    "words5": Row("defaults, 5 random words of a page", "links", "keywords:5"),
    "words10": Row("defaults, 10 random words of a page", "links", "keywords:10"),
    "split": Row("defaults, judged queries, --valid", "split", "text"),
    "whole": Row("defaults, judged queries, none held out by hand", "whole", "text"),
    "unseen": Row("defaults, pages not seen in training", "unseen", ""),
}


@dataclass(frozen=True)
class Job:
    """A row to run: with a seed, and with options of training."""

    key: str
    seed: int
    options: str = ""

    @property
    def row(self) -> Row:
        """What the row is."""
        return ROWS[self.key]


class Study:
    """The rows of one corpus; ``kept`` are the rows of all corpora, those of earlier runs as well."""

    def __init__(self, corpus: Corpus, kept: Results, work: Path, options: argparse.Namespace) -> None:
        self.corpus, self.kept, self.options = corpus, kept, options
        self.work = work / corpus.name
        self.measure = MEASURES[corpus.name.partition("-")[0]]
        self.files = {name: arguments(corpus, name, self.work) for name in corpus.splits}
        own = [Path(__file__).with_name(f"generalisation_{part}.py") for part in ("data", "peers")]
        self.rivals_version = _digest(own)
        self.version = program_of(Path(__file__).resolve())

    def kind(self, row: Row) -> str:
        """Return what asks in a row."""
        return row.kind or ("document" if self.corpus.linked else "text")

    def run(self, job: Job) -> None:
        """Run a row, unless it is there."""
        name, row = self.corpus.name, job.row
        training = shlex.split(job.options)
        training += ["--seed", str(job.seed)] * bool(job.seed)
        asking = ["--queries", row.kind] if row.kind.startswith("keywords") else []
        entry: dict[str, Any] = {
            "corpus": name,
            "key": job.key,
            "row": row.title,
            "seed": job.seed,
            "set": job.options,
            "measure": self.measure,
            "train": shlex.join(["ssi", "train", *training]),
            "evaluate": shlex.join(["ssi", "evaluate", *asking]),
            "version": self.version,
        }
        if self.kept.has("rows", entry):
            return
        model, trained = self._train(row.split, training)
        entry |= trained
        started = time.perf_counter()
        runs = self.work / "runs"
        baselines = LEXICAL[:-1] if self.corpus.linked else LEXICAL
        lexical = [name for name in baselines if self._load(row, f"ssi {name}") is None]
        asking += ["--baselines", ",".join(lexical)]
        test = self._ssi(
            ["evaluate", *self.files[row.split][1], *asking, "--model", str(model), "--run-dir", str(runs)]
        )
        reached = test.report["systems"]["model"][self.measure]
        entry |= {"evaluate_s": round(time.perf_counter() - started, 1), "model": reached, "test": test.report}
        self._keep_values(row, runs, {"model": self._of_model(job)} | {name: f"ssi {name}" for name in lexical})
        self.kept.add("rows", entry)
        print(f"{name}: {row.title} {job.options}: {reached['mean']:.4f}", flush=True)

    def run_rivals(self, key: str, names: Sequence[str]) -> None:
        """Run rivals on the queries of a row, those that are not there."""
        row = ROWS[key]
        rivals: Rivals | None = None
        for name in names:
            entry: dict[str, Any] = {
                "corpus": self.corpus.name,
                "key": key,
                "row": row.title,
                "system": name,
                "version": self.rivals_version,
            }
            if self.kept.has("peers", entry):
                continue
            rivals = rivals or Rivals(
                self.corpus,
                row.split,
                self.kind(row),
                self.measure,
                self.options.small,
                self.options.minilm,
                self.work / "vectors",
            )
            started = time.perf_counter()
            settings, values = rivals.values(name)
            entry |= {"settings": dict(settings), "seconds": round(time.perf_counter() - started, 1)}
            entry |= {m: {"mean": float(v.mean()), "standard_error": standard_error(v)} for m, v in values.items()}
            path = self._values_path(row, f"peer {name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, values[self.measure])
            self.kept.add("peers", entry)
            print(f"{self.corpus.name}: {row.title}: {name} {entry[self.measure]['mean']:.4f}", flush=True)

    def tests(self, entry: dict[str, Any]) -> None:
        """Compare a row's model with each other system on the same queries: means, differences, p.

        Of a rival whose values of single queries were not kept, only the mean is known; its p is None.
        """
        row = ROWS[entry["key"]]
        own = self._load(row, self._of_model(Job(entry["key"], entry["seed"], entry["set"])))
        if own is None:
            return
        against: dict[str, dict[str, Any]] = {}
        known = {
            f"peer {peer['system']}": float(peer[self.measure]["mean"])
            for peer in self.kept.parts["peers"]
            if (peer["corpus"], peer["key"]) == (self.corpus.name, entry["key"])
        }
        for name in (*LEXICAL, *(f"peer {peer}" for peer in PEERS)):
            other = self._load(row, f"ssi {name}" if name in LEXICAL else name)
            if other is not None:
                test = paired_test(own, other)
                against[name] = {"mean": float(other.mean()), "difference": test.difference, "p": test.p_t_test}
            elif name in known:
                against[name] = {"mean": known[name], "difference": float(own.mean()) - known[name], "p": None}
        entry["against"] = against
        for what, names in (("lexical", [*LEXICAL, "peer joint-bm25"]), ("rival", list(against))):
            there = [name for name in names if name in against]
            if there:
                best = max(there, key=lambda name: against[name]["mean"])
                entry[f"best {what}"] = {"system": best, **against[best]}

    def _of_model(self, job: Job) -> str:
        """Return the name of a model's values."""
        return f"model {job.key} {job.seed} {job.options}".strip()

    def _values_path(self, row: Row, system: str) -> Path:
        version = self.rivals_version if system.startswith("peer") else self.version
        digest = hashlib.sha256(f"{system} {version}".encode()).hexdigest()[:12]
        asked = f"{row.split}-{self.kind(row).replace(':', '')}"
        return self.work / "values" / asked / f"{digest}.npy"

    def _load(self, row: Row, system: str) -> Values | None:
        path = self._values_path(row, system)
        return np.load(path) if path.is_file() else None

    def _keep_values(self, row: Row, runs: Path, systems: Mapping[str, str]) -> None:
        """Keep the measure of each query from the run files, in the order of the queries' ids."""
        grades = _read_grades(runs / "qrels.txt")
        for system, name in systems.items():
            values = dict(_read_values(runs / f"{system}.run", grades, self.measure))
            path = self._values_path(row, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.array([values.get(query, 0.0) for query in sorted(grades)]))
        shutil.rmtree(runs)

    def _train(self, split: str, training: Sequence[str]) -> tuple[Path, dict[str, Any]]:
        """Return a model's folder and how it came about; a model is trained once."""
        command = ["train", *self.files[split][0], *training]
        model = self.work / "models" / hashlib.sha256(shlex.join([self.version, *command]).encode()).hexdigest()[:12]
        report = model.with_suffix(".json")
        if not report.is_file():
            model.parent.mkdir(parents=True, exist_ok=True)
            command += ["--model", str(model)]
            started = time.perf_counter()
            done = self._ssi(command)
            about = {
                "train_s": round(time.perf_counter() - started, 1),
                "peak_mb": round(done.peak_mb),
            }
            done.report.pop("model", None)  # a folder of this machine
            report.write_text(json.dumps({**about, "training": done.report}), encoding="utf-8")
        trained: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return model, trained

    def _ssi(self, command: Sequence[str]) -> Done:
        """Run a command of the program; what it says goes to a log."""
        log = self.work / "commands.log"
        with log.open("a", encoding="utf-8") as errors:
            errors.write(f"\nssi {shlex.join(command)}\n")
            errors.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "reranker", *command, "--json"], stdout=subprocess.PIPE, stderr=errors, cwd=ROOT
            )
            assert process.stdout is not None
            output = process.stdout.read()
            # getrusage would return the peak of the largest child so far. On Linux, the peak of a child also includes
            # what this process held when it started the child: it is too high for small corpora after large rivals.
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, LEFT_OUT):
            raise SystemExit(f"ssi {shlex.join(command)} ended with status {process.returncode}: see {log}")
        return Done(process.returncode, json.loads(output) if output.strip() else {}, used.ru_maxrss / 1024)


@dataclass(frozen=True)
class Done:
    """What became of a command: exit status, its JSON, and the most memory it held, in MiB."""

    status: int
    report: dict[str, Any]
    peak_mb: float


class Results:
    """The rows done so far, kept in a file after each of them."""

    def __init__(self, path: Path | None, small: bool) -> None:
        self.path, self.small = path, small
        kept = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}
        usable = kept.get("small") == small
        names = ("rows", "peers", "hand set")
        self.parts: dict[str, list[dict[str, Any]]] = {n: list(kept[n]) if usable else [] for n in names}

    def has(self, part: str, entry: Mapping[str, Any]) -> bool:
        """Return whether a row with the same values under all these names is there."""
        return any(all(row.get(name) == value for name, value in entry.items()) for row in self.parts[part])

    def add(self, part: str, entry: dict[str, Any]) -> None:
        """Add a row, in place of an older one of the same kind."""
        same = ("corpus", "key", "seed", "set", "system")
        place = [entry.get(name) for name in same]
        self.parts[part] = [row for row in self.parts[part] if [row.get(name) for name in same] != place] + [entry]
        self.write()

    def write(self) -> None:
        """Write the file."""
        if self.path is not None:
            write_results(self.path, {"small": self.small, **self.parts})


def jobs_of(corpus: Corpus, options: argparse.Namespace) -> Iterator[Job]:
    """Yield the rows of a corpus: those of the first seed, then the other seeds'."""
    keys = [key for key, row in ROWS.items() if row.split in corpus.splits and key in options.rows]
    for seed, key in product(options.seeds, keys):
        yield Job(key, seed, options.set)


def text_table(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the rows as text: the model, the best lexical baseline, the rivals, and p against the best of all."""
    systems = [*LEXICAL, *(f"peer {name}" for name in PEERS)]
    heads = ["corpus", "row", "model", *systems, "p (lexical)", "p (best)", "train, s", "MB"]
    lines = [heads]
    for row in parts["rows"]:
        against = row.get("against", {})
        means = [f"{against[name]['mean']:.3f}" if name in against else "" for name in systems]
        tests = [
            f"{row[best]['p']:.2g}" if row.get(best, {}).get("p") is not None else ""
            for best in ("best lexical", "best rival")
        ]
        seed = f" (seed {row['seed']})" if row["seed"] else ""
        reached = f"{row['model']['mean']:.3f}"
        name = f"{row['row']}{seed} {row['set']}".strip()
        lines.append([row["corpus"], name, reached, *means, *tests, f"{row['train_s']:.0f}", f"{row['peak_mb']}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    shown = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(shown)


def _digest(paths: Iterable[Path]) -> str:
    """Return a short digest of files' contents."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _read_grades(path: Path) -> dict[str, dict[str, float]]:
    """Return the judgements of a TREC file."""
    grades: dict[str, dict[str, float]] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            query, _, document, grade = line.split()
            grades.setdefault(query, {})[document] = float(grade)
    return grades


def _read_values(path: Path, grades: Mapping[str, Mapping[str, float]], measure: str) -> Iterator[tuple[str, float]]:
    """Yield (query, value) of a TREC run that has its queries one after the other, best documents first."""

    def value(query: str, ranking: list[str]) -> tuple[str, float]:
        return query, evaluate_run({query: grades[query]}, {query: ranking}, [measure])[measure][query]

    at, ranking = "", list[str]()
    with path.open(encoding="utf-8") as file:
        for line in file:
            query, _, document, *_ = line.split(" ", 3)
            if query != at and ranking:
                yield value(at, ranking)
                ranking = []
            at = query
            ranking.append(document)
    if ranking:
        yield value(at, ranking)


def _names(legal: Sequence[str]) -> Any:
    """Return a parser of comma lists of some names."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in legal:
                raise argparse.ArgumentTypeError(f"{name!r} is not known: choose of {', '.join(legal)}")
        return names

    return parse


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument(
        "--corpora",
        type=_names(tuple(MEASURES)),
        default=[*LINKED, *JUDGED],
        metavar="LIST",
        help=f"comma list of {','.join(MEASURES)}; default: those of SSI_DATA",
    )
    for option, legal in {"rows": tuple(ROWS), "peers": tuple(PEERS)}.items():
        made.add_argument(
            f"--{option}",
            type=_names(legal),
            default=list(legal),
            metavar="LIST",
            help=f"comma list; all: {','.join(legal)}",
        )
    made.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0], metavar="LIST")
    made.add_argument("--learn", type=int, metavar="N", help="let judged corpora learn from N queries of row 'whole'")
    made.add_argument("--set", default="", metavar="OPTIONS", help="options of every training: '--dim 300'")
    made.add_argument("--small", action="store_true", help="a cut of each corpus: that it works, not what is gained")
    made.add_argument("--minilm", type=Path, metavar="FOLDER", help="weights of the rival minilm (minilm.py)")
    made.add_argument("--json", type=Path, metavar="FILE", help="written after every row; rows in it are not run again")
    return made


def main() -> None:
    """Run the rows and keep their figures."""
    options = parser().parse_args()
    if options.minilm is None and options.peers == list(PEERS):
        options.peers = [name for name in PEERS if not name.startswith("minilm")]
        print("without minilm: give its weights with --minilm", file=sys.stderr)
    kept = Results(options.json, options.small)
    with tempfile.TemporaryDirectory() as scratch:
        work = options.json.with_suffix(".work").resolve() if options.json else Path(scratch)
        for name in options.corpora:
            corpus = read_corpus(DATA / name, work / name, options.small)
            if options.learn and not corpus.linked:
                corpus = learning_from(corpus, options.learn)
            study = Study(corpus, kept, work, options)
            jobs = list(jobs_of(study.corpus, options))
            for job in jobs:
                study.run(job)
            asked = {(ROWS[job.key].split, study.kind(ROWS[job.key])): job.key for job in reversed(jobs)}
            for key in reversed(asked.values()):
                study.run_rivals(key, options.peers)
            for entry in kept.parts["rows"]:
                if entry["corpus"] == corpus.name and entry["key"] in ROWS:  # not those of options that were removed
                    study.tests(entry)
            kept.write()
            shutil.rmtree(study.work / "models", ignore_errors=True)
    print(text_table(kept.parts))


if __name__ == "__main__":
    main()
