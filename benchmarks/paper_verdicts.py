"""The claims of the papers against the kept runs of their systems: which hold, and which are reversed.

A run prints a sentence for each claim that it tested. For claims that a kept run did not test in this way, the verdict
comes from the p-values in its tables, and says "no test kept" where the tables have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from reproduced import task_of

from papers import registry
from papers.claims import CLAIMS
from papers.graded_systems import BY_NAME
from papers.measures import AUC, BOTH_WAYS, DCG, ONE_DIRECTION, RANK_LOSS, TOP
from papers.registry import KEPT_ITERATION, KEPT_STEP
from papers.results import AT_START, LEVEL, LOWER, Claim

Table = Mapping[str, Any]
MEASURES = {"T4": ("AP", RANK_LOSS), "T5": ONE_DIRECTION, "T6": BOTH_WAYS, "T7a": (AUC,), "T7b": (DCG,)}
"""Measures by which the claims of a task are judged; those of all other tasks by AP and rank loss."""
PAIRS_OF_ALL, DCG_OF_QUERIES, SPLITS = "Differences of top-1 accuracy", "DCG@5 of each query, paired", "splits with p <"
IN_ORDER, REVERSED = "in the claimed order", "reversed in the means"
UNKNOWN = "cause unknown"
UNTRAINED = "no validation was better than the untrained start"
VOCABULARY = "likely the vocabulary, which is hardly larger than that of T1a and far below the papers' 2.5 million"
FEW_QUERIES = "likely the small number of queries to train on"
FEW_CLICKS = "likely the small number of clicks to train on"
STEPS = "the order depends on the number of steps (see the first paragraph of this section)"
CAUSES: Mapping[tuple[str, str, str], str] = {
    ("T1a", "utv-plus-i", "utu-plus-i"): STEPS,
    ("T1a", "utu-plus-i", "diagonal"): UNTRAINED,
    ("T1a", "diagonal", "tf-idf"): UNTRAINED,
    ("T2", "utu-plus-i", "diagonal"): UNTRAINED,
    ("T2", "diagonal", "tf-idf"): UNTRAINED,
    ("T1b", "restricted-utv-plus-i", "utv-plus-i"): VOCABULARY,
    ("T1b", "cfh-1-grams", "restricted-utv-plus-i"): VOCABULARY,
    ("T1b", "utv-plus-i", "hash-kernels-3m"): VOCABULARY,
    ("T3d", "restricted-utv-plus-i", "utv-plus-i"): VOCABULARY,
    ("T3d", "cfh-1-grams", "restricted-utv-plus-i"): VOCABULARY,
    ("T4", "psi-cross-tfidf", "psi-cross"): "the weight of a mixture is chosen by rank loss, which improves, not by AP",
    ("T6", "mates-s2net", "mates-opca"): f"{UNTRAINED}, which is OPCA",
    ("T6", "mates-s2net", "cl-lsi"): f"{UNTRAINED}, which is OPCA",
    ("T8", "utv", "tf-idf"): f"{FEW_CLICKS}; without the identity, words that were not trained match nothing",
    ("T8", "hash-kernels-3m", "tf-idf"): f"{FEW_CLICKS}; this kernel has no identity",
    ("T8", "utv-plus-i", "tf-idf"): FEW_CLICKS,
    **{("T7b", claim.better, claim.worse): FEW_QUERIES for claim in CLAIMS["T7b"]},
    **{("T7a", claim.better, claim.worse): FEW_QUERIES for claim in CLAIMS["T7a"]},
}
"""Reason for a claim that does not hold, by task and systems; "likely" precedes one that was not tested."""
_SENTENCE = re.compile(
    r"(?P<part>(?:[^:]*\. )?)Claimed by the paper \((?P<source>[^)]+)\): (?P<claim>.+? above .+?): (?P<said>.+)\.$"
)
_FOUND = re.compile(r"^(holds|not significant|reversed) here in (.+) \(difference ")
_VERDICT = re.compile(
    r"Claimed by the paper|[(]claimed by|Claimed: |nDCG@10 (above|below|not significantly)|against TF-IDF at p <"
    r"|The greatest mean AUC"
)


class Row(NamedTuple):
    """A claim on one run."""

    claim: str
    source: str
    run: str
    verdict: str
    """Such as "holds in AP; not significant in rank loss"."""
    cause: str


def verdict_sentences(run: Mapping[str, Any]) -> list[str]:
    """Return the sentences of a run that compare systems or judge a claim of the papers."""
    return [said for section in run["sections"] for said in section["sentences"] if _VERDICT.search(said)]


def claim_rows(runs: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the claims on each run, in the order of the runs, and then those that no run of their task measured."""
    judged = set()
    for name, run in runs.items():
        task = task_of(name)
        claims = {f"{title(task, one.better)} above {title(task, one.worse)}": one for one in CLAIMS.get(task, ())}
        printed = {}
        for sentence in verdict_sentences(run):
            if match := _SENTENCE.match(sentence):
                printed[match["claim"]] = match
        for words, claim in claims.items():
            part = ""
            if match := printed.get(words):
                part = match["part"].rstrip(" .")
                found = [_short(one) for one in match["said"].split("; ")]
            else:
                found = list(_from_tables(task, run, claim))
            if found:
                place = f"{name}, {part.lower()}" if part else name
                judged.add((task, claim))
                yield Row(words, claim.source, place, "; ".join(found), _cause(task, claim, found))
    for task, several in CLAIMS.items():
        for claim in several:
            both = {claim.better, claim.worse} <= set(registry.task(task).systems)
            if both and (task, claim) not in judged:
                words = f"{title(task, claim.better)} above {title(task, claim.worse)}"
                yield Row(words, claim.source, task, "not measured", "")


def _short(said: str) -> str:
    """Return a verdict of a printed sentence without its figures, which stand with the run."""
    match = _FOUND.match(said)
    return f"{match[1]} in {match[2]}" if match else "not tested"


def _cause(task: str, claim: Claim, found: Sequence[str]) -> str:
    """Return why a claim does not hold; empty if it holds in every measure, or in the means where no test was kept."""
    if all(said.startswith("holds") or said.endswith(f"{IN_ORDER})") for said in found):
        return ""
    return CAUSES.get((task, claim.better, claim.worse), UNKNOWN)


def summary(rows: Sequence[Row]) -> str:
    """Return the number of claims by verdict."""
    measured = [row for row in rows if row.verdict != "not measured"]
    hold = sum(all(said.startswith("holds") for said in row.verdict.split("; ")) for row in measured)
    reversed_ = sum("reversed" in row.verdict for row in measured)
    return (
        f"Of {len(measured)} pairs of a claim and a run, {hold} hold in every measure, and {reversed_} are reversed in "
        f"at least one. {len(rows) - len(measured)} claims were not measured."
    )


@cache
def title(task: str, system: str) -> str:
    """Return the title of a system in the tables of a task."""
    return (BY_NAME[system] if system in BY_NAME else registry.system(system)).title


def row_of(table: Table, name: str) -> Sequence[str] | None:
    """Return the row of a system by its title; None if the table has none."""
    return next((row for row in table["rows"] if row[0] in (name, f"{name} ({AT_START})")), None)


def is_untrained(run: Mapping[str, Any], name: str) -> bool:
    """Return whether a run kept the start of a system: no validation was better."""
    rows = [row_of(shown, name) for section in run["sections"] for shown in section["tables"]]
    kept = re.compile(rf"(?:{KEPT_STEP}|{KEPT_ITERATION}) 0\b")
    return any(row[0] != name or kept.search(row[1]) for row in rows if row is not None)


def _from_tables(task: str, run: Mapping[str, Any], claim: Claim) -> Iterator[str]:
    """Yield the verdict on a claim in each measure, by the tests that the tables of a run have."""
    names = title(task, claim.better), title(task, claim.worse)
    tables = [shown for section in run["sections"] for shown in section["tables"] if "over seeds" not in shown["title"]]
    if all(any(row_of(shown, name) for shown in tables) for name in names):
        if any(is_untrained(run, name) for name in names):
            yield "not tested"
            return
        for measure in MEASURES.get(task, ("AP", RANK_LOSS)):
            yield from _in_measure(tables, names, measure)


def _in_measure(tables: Sequence[Table], names: tuple[str, str], measure: str) -> Iterator[str]:
    """Yield the verdict on a claim in a measure, if there is a table with both systems."""
    for shown in tables:
        first, second = (row_of(shown, name) for name in names)
        if measure in shown["columns"] and first is not None and second is not None:
            at = shown["columns"].index(measure)
            means = [float(row[at].split(" ")[0]) for row in (first, second)]
            unit = " %" if measure in LOWER else ""
            figures = f"{measure} ({first[at].split(' ')[0]}{unit} against {second[at].split(' ')[0]}{unit}"
            gain = means[1] - means[0] if measure in LOWER else means[0] - means[1]
            p = next((p for one in tables if (p := _p_of(one, names, measure))), "")
            if p:
                said = "not significant" if not is_significant(p) else "holds" if gain > 0 else "reversed"
                yield f"{said} in {figures}, p {p if p.startswith('<') else f'= {p}'})"
            else:
                order = IN_ORDER if gain > 0 else REVERSED
                yield f"no test kept in {figures}{_of_splits(shown, first, names[1])}; {order})"
            return


def is_significant(p: str) -> bool:
    """Return whether a printed p-value is below the level of the papers."""
    return p.startswith("<") or float(p) < LEVEL


def _p_of(shown: Table, names: tuple[str, str], measure: str) -> str:
    """Return the p-value of the paired test of two systems in a table; empty if it has none."""
    columns, rows = shown["columns"], shown["rows"]
    if shown["title"] == PAIRS_OF_ALL:
        at = columns.index("paired p")
        return next((row[at] for row in rows if measure == TOP and {row[0], row[1]} == set(names)), "")
    if measure not in columns:
        return ""
    for name, other in (names, names[::-1]):
        row = row_of(shown, name)
        if row is None:
            continue
        if shown["title"] == DCG_OF_QUERIES and f"minus {other}" in columns:
            return str(row[columns.index(f"minus {other}") + 1])
        if f"paired t-test against {other}." in shown["note"]:
            return str(row[columns.index(measure) + 1])
    return ""


def _of_splits(shown: Table, row: Sequence[str], reference: str) -> str:
    """Return the tests within splits against the reference, which are no test over all splits."""
    at = next((at for at, name in enumerate(shown["columns"]) if name.startswith(SPLITS)), None)
    if at is None or f"minus {reference}" not in shown["columns"]:
        return ""
    return f"; splits with p < {LEVEL}: {row[at]}"
