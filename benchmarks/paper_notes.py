"""Sentences on the kept runs of the papers' systems: what they say of the papers, and how they differ from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paper_tables import CHOSEN
from paper_verdicts import Table, row_of, title
from reproduced import FULL_W, NAMES, option, task_of

from papers import registry
from papers.corpora import TITLE_TIMES
from papers.graded_systems import BY_NAME
from papers.measures import RANK_LOSS
from papers.registry import Budget
from papers.results import LOWER
from papers.retrieval_systems import FREQUENT, n_frequent_words
from papers.retrieval_tasks import PRINTED_SPLITS

Runs = Mapping[str, Any]
PAPER_DIMENSIONS, PAPER_DOCUMENTS, PAPER_LINKS = 200, 1_828_645, 24_667_286
"""N in the tables of PSI, and the size of its corpus and of SSI's."""
UNSEEN = "Unseen documents: documents not in training"
FULL_W_NAME = NAMES[FULL_W]
LINKED = "Learning with the defaults, after the race was removed"
"""Title of the section with the tuned BM25 of `ssi evaluate`."""

KEPT_LAST = re.compile(r"kept step (\d[\d,]*)\b.* most steps (\d[\d,]*)\b")
"""The best step on validation, and the largest number of steps, in the settings of a system."""


def run_notes(name: str, runs: Runs, defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences that stand with a run; ``defaults`` is the result file of what the defaults learn."""
    if name == "T1a":
        if FULL_W_NAME in runs:
            yield full_w(runs[FULL_W_NAME])
        yield from two_bm25s(runs[name], defaults)
    if name == "T2":
        yield unseen_documents(runs[name])


def figures_of(run: Mapping[str, Any], name: str, measure: str, of_table: str = "") -> str:
    """Return mean ± standard error of a system in the first table that has them."""
    unit = " %" if measure in LOWER else ""
    for shown in _tables(run):
        row = row_of(shown, name)
        if row is not None and measure in shown["columns"] and shown["title"].startswith(of_table):
            text = str(row[shown["columns"].index(measure)])
            return text if text.endswith(unit) else f"{text}{unit}"
    return ""


def full_w(run: Mapping[str, Any]) -> str:
    """Return the sentence on full W and the low-rank model after the same number of steps, at seed 0 and by seed."""
    full, low = title("T1a", "margin-ranking-perceptron"), title("T1a", "utv-plus-i")
    ap, loss = ([figures_of(run, name, measure) for name in (full, low)] for measure in ("AP", RANK_LOSS))
    sentences = [
        f"The papers' order of {low} and {full} is reversed after the same number of steps (run {FULL_W_NAME}): full W "
        f"has AP {ap[0]} against {ap[1]}, and rank loss {loss[0]} against {loss[1]}, with seed 0."
    ]
    tables = {shown["title"].partition(" over seeds")[0]: shown for shown in run["sections"][0]["tables"]}
    if "AP" in tables:
        rows = [row_of(tables[measure], name) or [] for measure in ("AP", RANK_LOSS) for name in (full, low)]
        n_seeds = len(rows[0]) - 3
        above = sum(float(one) > float(other) for one, other in zip(rows[0][3:], rows[1][3:], strict=True))
        sentences.append(
            f"In the mean over {n_seeds} seeds, AP is {rows[0][1]} against {rows[1][1]} and rank loss {rows[2][1]} % "
            f"against {rows[3][1]} %; AP of full W is above with {above} of them."
        )
    chosen = row_of(next(one for one in _tables(run) if one["title"] == CHOSEN), full)
    steps = KEPT_LAST.search(chosen[1]) if chosen else None
    if steps and steps[1] == steps[2]:
        sentences.append("Full W was still improving: its best step is the last one.")
    return " ".join(sentences)


def unseen_documents(run: Mapping[str, Any]) -> str:
    """Return the sentence on T2: the papers' order of the model and TF-IDF on documents that training never saw."""
    model, lexical = title("T2", "utv-plus-i"), title("T2", "tf-idf")
    ap, loss = ([figures_of(run, name, measure, UNSEEN) for name in (model, lexical)] for measure in ("AP", RANK_LOSS))
    links, documents = (PRINTED_SPLITS[split]["utv-plus-i"]["AP"] for split in ("links", "documents"))
    chosen = row_of(next(one for one in _tables(run) if one["title"] == CHOSEN), f"{model}, documents")
    validation = re.search(r"validation ([\d.]+)", chosen[1]) if chosen else None
    said = (
        f"On documents that training never saw, the papers' result is reversed: {model} has AP {ap[0]} against {ap[1]} "
        f"of {lexical}, and rank loss {loss[0]} against {loss[1]}. In the paper, nothing changes: AP {documents} "
        f"against {links} between training documents. Cause unknown."
    )
    if validation:
        said += (
            " The validation links are between training documents, so that early stopping does not see it: the rank "
            f"loss there is {100 * float(validation[1]):.2g} %."
        )
    return said


def two_bm25s(run: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentence on BM25 here and the BM25 of `ssi evaluate` on the same links."""
    for row in defaults["rows"]:
        if (row["corpus"], row["row"], row["set"]) == ("cppdocs", "defaults, whole pages", ""):
            test = row["test"]
            settings = test["settings"]["bm25"]
            of_title, of_text = settings["field_weights"]
            yield (
                f"BM25 has AP {figures_of(run, 'BM25', 'AP')} here and {test['systems']['bm25']['AP']['mean']:.2g} in "
                f"[{LINKED}](learning.md), on the same links. There, `ssi evaluate` weighs two fields (title "
                f"{of_title / of_text:.0f} times the text; of the query only the text, each word once), tuned by MAP, "
                f"over {test['queries']:,} queries. Here, one field has the title {TITLE_TIMES} times and the text, "
                "the query is the title and the text, and k1 and b are tuned by rank loss."
            )
            return


def _tables(run: Mapping[str, Any]) -> Sequence[Table]:
    """Return the tables of a run that are not over seeds."""
    return [one for section in run["sections"] for one in section["tables"] if "over seeds" not in one["title"]]


def differences(runs: Runs) -> str:
    """Return the paragraph on how the runs differ from the experiments of the papers."""
    sentence = next(said for section in runs["T1a"]["sections"] for said in section["sentences"] if "Corpus" in said)
    documents, links = re.findall(r"[\d,]+(?= documents)", sentence)[0], re.findall(r"([\d,]+) /", sentence)[0]
    words = {name: _vocabulary(runs[name]) for name in ("T1a", "T1b")}
    options = {name: run["command"].removeprefix("ssi reproduce ") for name, run in runs.items()}
    one_rate = [name for name, words_of in options.items() if option(words_of, "--rates", ",").count(",") == 0]
    n_last, n_trained = last_steps(runs)
    sentences = (
        f"**How this differs from the papers.** The title of a document counts {TITLE_TIMES} times, that of a query",
        "once; SSI uses only the body text. English stop words are removed; SSI and PSI mention no stop words.",
        f"N is {Budget().n_dims} in T1 to T4, and {PAPER_DIMENSIONS} in PSI's tables.",
        f"The “full vocabulary” of T1b has {words['T1b']:,} words, hardly more than the {words['T1a']:,} of T1a;",
        f"the papers' has 2.5 million. (UᵀV)ₙ therefore has n = {n_frequent_words(words['T1b']):,},",
        f"a third of the vocabulary, and not {FREQUENT:,}.",
        f"The papers tune the learning rate; these runs use one rate: {', '.join(one_rate)}.",
        f"The number of steps is limited, as each command says: {n_last} of {n_trained} trained models were best on",
        f"validation at the last step. The corpus of T1 has {documents} documents and {links} training links;",
        f"the papers' has {PAPER_DOCUMENTS:,} documents and {PAPER_LINKS:,} links.",
        "No task has the corpus of its paper; the sizes are below.",
    )
    return " ".join(sentences)


def last_steps(runs: Runs) -> tuple[int, int]:
    """Return the number of models whose best step was the last one allowed, and the number of models with steps."""
    settings = [
        row[1] for run in runs.values() for one in _tables(run) if one["title"] == CHOSEN for row in one["rows"]
    ]
    found = [KEPT_LAST.search(text) for text in settings]
    steps = [match.groups() for match in found if match]
    return sum(kept == most for kept, most in steps), len(steps)


def _vocabulary(run: Mapping[str, Any]) -> int:
    """Return the number of words of a run, as the note of its first table has it."""
    found = re.search(r"a vocabulary of ([\d,]+) words", _tables(run)[0]["note"])
    return int(found[1].replace(",", "")) if found else 0


def measured_systems(runs: Runs, before: Mapping[str, Any]) -> set[str]:
    """Return the names of the systems that a kept run measured; ``before`` is the result file of earlier runs."""
    names = {name for task in before.values() for name in task.get("systems", ())}
    for run_name, run in runs.items():
        asked = option(run["command"], "--systems", "")
        for name in asked.split(",") if asked else registry.task(task_of(run_name)).systems:
            names.add(name)
    return names


def never_measured(runs: Runs, before: Mapping[str, Any]) -> str:
    """Return the paragraph that lists the systems of the registry that no kept run measured."""
    every = {**registry.systems(), **BY_NAME}
    measured = measured_systems(runs, before)
    missing = [name for name in every if name not in measured]
    return (
        f"**Not measured.** {len(missing)} of the {len(every)} systems are in no kept run: {', '.join(missing)}. "
        "`ssi reproduce TASK --systems NAME` measures them."
    )
