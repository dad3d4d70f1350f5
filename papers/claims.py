"""The papers' orderings of systems, and what tests on the same queries say of them here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from papers.results import Results
from papers.tables import LOWER, p_value

LEVEL = 0.01
"""Of the paired t-test, as in the papers (E11)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A paper ranks one system above another.

    Parameters
    ----------
    better, worse : str
        Names of systems.
    source : str
        Where.
    """

    better: str
    worse: str
    source: str


RETRIEVAL: tuple[Claim, ...] = (
    Claim("utv-plus-i", "utu-plus-i", "SSI"),
    Claim("utu-plus-i", "diagonal", "SSI"),
    Claim("diagonal", "tf-idf", "SSI"),
    Claim("utv-plus-i", "utv", "SSI"),
    Claim("margin-ranking-perceptron", "zero-diagonal", "SSI"),
    Claim("utv-plus-i", "margin-ranking-perceptron", "SSI and PSI"),
    Claim("psi-3", "utv-plus-i", "PSI"),
    Claim("restricted-utv-plus-i", "utv-plus-i", "SSI, full vocabulary"),
    Claim("cfh-1-grams", "restricted-utv-plus-i", "SSI, full vocabulary"),
    Claim("cfh-2-grams", "restricted-utv-plus-i", "SSI, full vocabulary"),
    Claim("cfh-1-grams", "cfh-2-grams", "SSI, full vocabulary"),
    Claim("utv-plus-i", "hash-kernels-3m", "SSI"),
    Claim("utv-plus-i", "hash-kernels-diagonal-3m", "SSI and PSI"),
    Claim("hash-kernels-diagonal-3m", "hash-kernels-3m", "SSI"),
    Claim("hash-kernels-diagonal-3m", "tf-idf", "SSI and PSI"),
    Claim("margin-ranking-perceptron", "tf-idf", "SSI and PSI"),
    Claim("utv-plus-i", "tf-idf", "SSI and PSI"),
    Claim("utv-plus-i", "lsi", "SSI and PSI"),
    Claim("utv-plus-i", "lsi-tf-idf", "SSI and PSI"),
    Claim("utv-plus-i", "query-expansion", "SSI and PSI"),
    Claim("lsi-tf-idf", "tf-idf", "PSI"),
)
"""Of SSI and PSI, on retrieval by links (spec 5.7 and 5.1)."""


def orderings(results: Results, claims: Sequence[Claim], *measures: str) -> tuple[str, ...]:
    """Return a sentence for each claim that both systems were run for: whether it holds in each measure."""
    return tuple(
        _sentence(results, claim, measures)
        for claim in claims
        if all(results.has(name, measure) for name in (claim.better, claim.worse) for measure in measures)
    )


def _sentence(results: Results, claim: Claim, measures: Sequence[str]) -> str:
    verdicts = "; ".join(_verdict(results, claim, measure) for measure in measures)
    names = f"{results.titles[claim.better]} above {results.titles[claim.worse]}"
    return f"Claimed by the paper ({claim.source}): {names}: {verdicts}."


def _verdict(results: Results, claim: Claim, measure: str) -> str:
    """Return whether a claim holds in a measure, by the paired t-test over queries."""
    test = results.paired(claim.better, claim.worse, measure)
    gain = -test.difference if measure in LOWER else test.difference
    if test.p_t_test >= LEVEL:
        said = "not significant here"
    else:
        said = "holds here" if gain > 0 else "reversed here"
    return (
        f"{said} in {measure} (difference {test.difference:+.4f} ± {test.standard_error:.4f}, "
        f"p {_equals(p_value(test.p_t_test))}, {test.n:,} queries)"
    )


def _equals(p: str) -> str:
    return p if p.startswith("<") else f"= {p}"
