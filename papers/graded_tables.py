"""What T7 shows: tables of DCG, AUC and dimensions beside the paper's figures, ROC curves, and what can be said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from papers.curves import Roc, auc_paired_test, roc_curve
from papers.grades import AUC, DCG, PAIR_GRADE, PAIR_SCORE
from papers.results import Results
from papers.tables import p_value
from papers.task import Table
from reranker.evaluation.measures import PairedTest

DIMENSIONS = (100, 300, 500, 750, 1_000)
LEVEL = 0.01
"""S2Net's level of significance."""
REFERENCE = "graded-tfidf"

PAPER_T7 = {
    "graded-s2net": ("0.892", "0.855", "0.883", "0.901"),
    "graded-tfidf": ("0.861", "0.825", "0.854", "0.876"),
    "graded-hdlr": ("0.855", "0.826", "0.856", "0.877"),
    "graded-cplsa": ("0.853", "0.845", "0.872", "0.890"),
    "graded-pca": ("0.848", "0.815", "0.847", "0.870"),
    "graded-opca": ("0.844", "0.817", "0.850", "0.872"),
    "graded-jplsa": ("0.840", "0.838", "0.864", "0.883"),
    "graded-cca": ("0.836", "0.820", "0.852", "0.874"),
    "graded-plsa": ("0.835", "0.831", "0.860", "0.879"),
}
"""S2Net, Table 2: AUC, NDCG@1, 3 and 5, with 1,000 dimensions (spec 5.9)."""
PAPER_T12 = {
    "AUC": ("0.855", "0.879", "0.880", "0.888", "0.892"),
    "nDCG@1": ("0.843", "0.852", "0.856", "0.860", "0.855"),
    "nDCG@3": ("0.871", "0.879", "0.881", "0.884", "0.883"),
    "nDCG@5": ("0.890", "0.897", "0.899", "0.902", "0.901"),
}
"""S2Net, Table 3: the same of S2Net at `DIMENSIONS` (spec 5.10)."""
PAPER = {
    name: dict(zip(("AUC", "nDCG@1", "nDCG@3", "nDCG@5"), figures, strict=True)) for name, figures in PAPER_T7.items()
}


def dcg_table(per_query: Results, reference: str) -> Table:
    """Return the paired t-tests on the DCG@5 of each query, against the reference and against S2Net."""
    against = [name for name in dict.fromkeys((reference, "graded-s2net")) if per_query.has(name, DCG)]
    columns = ["system", DCG]
    for name in against:
        columns += [f"minus {per_query.titles[name]}", "p"]
    rows = []
    for system in per_query.systems:
        if per_query.has(system, DCG):
            cells = [per_query.titles[system], f"{per_query.mean(system, DCG):.3f}"]
            for name in against:
                test = per_query.paired(system, name, DCG)
                same = system == name
                cells += ["", ""] if same else [f"{test.difference:+.3f} ± {test.standard_error:.3f}",
                                                p_value(test.p_t_test)]  # fmt: skip
            rows.append(tuple(cells))
    note = f"Paired t-tests over queries, as S2Net's for NDCG; its level is {LEVEL}."
    return Table("DCG@5 of each query, paired", tuple(columns), tuple(rows), note)


def order_sentences(per_query: Results, reference: str) -> Iterator[str]:
    """Yield which systems differ from the reference at S2Net's level, in nDCG@10."""
    groups: dict[str, list[str]] = {"above": [], "below": [], "not told apart from": []}
    for name in per_query.systems:
        if name != reference and per_query.has(name, "nDCG@10") and per_query.has(reference, "nDCG@10"):
            test = per_query.paired(name, reference, "nDCG@10")
            kind = "not told apart from" if test.p_t_test >= LEVEL else "above" if test.difference > 0 else "below"
            groups[kind].append(per_query.titles[name])
    for kind, titles in groups.items():
        if titles:
            yield f"nDCG@10 {kind} {per_query.titles[reference]} (p {'≥' if 'not' in kind else '<'} {LEVEL}, paired " \
                  f"t-test over queries): {', '.join(titles)}."  # fmt: skip


def auc_table(results: Results, seed: int) -> Table:
    """Return AUC over splits, and the paired t-tests over 50 random subsets against the reference."""
    reference = REFERENCE if REFERENCE in results.systems else results.systems[0]
    rows = []
    for name in results.systems:
        values = results.pooled(name, AUC)
        if not len(values):
            reason = results.failure(name) or "all judged pairs are relevant, or none is"
            rows.append((f"{results.titles[name]} ({reason})", "", "", "", "", ""))
            continue
        error = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        tests = [] if name == reference else _subset_tests(results, name, reference, seed)
        above = sum(test.difference > 0 and test.p_t_test < LEVEL for test in tests)
        below = sum(test.difference < 0 and test.p_t_test < LEVEL for test in tests)
        mean = f"{np.mean([test.difference for test in tests]):+.3f}" if tests else ""
        verdict = f"{above} above, {below} below, of {len(tests)}" if tests else ""
        rows.append((results.titles[name], f"{values.mean():.3f}", f"{error:.3f}", mean, verdict,
                     PAPER.get(name, {}).get(AUC, "")))  # fmt: skip
    title = results.titles[reference]
    columns = ("system", AUC, "deviation over splits", f"minus {title}", f"splits with p < {LEVEL}", "AUC, paper")
    note = (
        "p of the paired t-test over 50 random halves of a split's test pairs, as S2Net's. The halves overlap, so it "
        "says that a difference is stable on these pairs. The paper's figures are on other data."
    )
    return Table("AUC of all test pairs pooled", columns, tuple(rows), note)


def _subset_tests(results: Results, name: str, reference: str, seed: int) -> list[PairedTest]:
    """Return the tests of the splits that both systems have values for."""
    tests = []
    for number, study in enumerate(results.studies):
        one, other = (results.values.get((study, system), {}) for system in (name, reference))
        if PAIR_SCORE in one and PAIR_SCORE in other:
            positive = one[PAIR_GRADE] >= 1.0
            rng = np.random.default_rng([seed, number])
            tests.append(auc_paired_test(one[PAIR_SCORE], other[PAIR_SCORE], positive, rng=rng))
    return tests


def auc_sentences(results: Results) -> Iterator[str]:
    """Yield which system is best, and what the spread is of."""
    means = {name: results.mean(name, AUC) for name in results.systems if results.has(name, AUC)}
    if means:
        best = max(means, key=lambda name: means[name])
        yield f"The greatest mean AUC is {results.titles[best]}'s, {means[best]:.3f}; its spread is over splits."


def rocs(results: Results) -> dict[str, Roc]:
    """Return the ROC of the paper's systems on the first split."""
    rocs = {}
    for name in ("graded-s2net", "graded-tfidf", "graded-bm25", "graded-pca", "graded-cplsa", "graded-combination"):
        found = results.values.get((results.studies[0], name), {}) if results.studies else {}
        if PAIR_SCORE in found:
            rocs[results.titles[name]] = roc_curve(found[PAIR_SCORE], found[PAIR_GRADE] >= 1.0)
    return rocs


def dimension_table(measure: str, found: Mapping[int, Results]) -> Table:
    """Return one measure by dimensions, a row a system, and the paper's row for S2Net."""
    first = next(iter(found.values()))
    rows = [
        (first.titles[name], *(f"{results.mean(name, measure):.3f}" if results.has(name, measure) else ""
                               for results in found.values()))
        for name in first.systems
    ]  # fmt: skip
    by_size = dict(zip(DIMENSIONS, PAPER_T12[measure], strict=True))
    rows.append(("S2Net, paper", *(by_size.get(n, "") for n in found)))
    note = "The paper's figures are on other data: a reference, not something to reach."
    return Table(f"{measure} by dimensions", ("system", *(str(n) for n in found)), tuple(rows), note)
