"""Results of systems: cached in files, summarized with paired tests, shown as tables, and compared with claims."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import numpy as np
import scipy.sparse as sp

from papers.registry import KEPT_ITERATION, KEPT_STEP, Table
from reranker.arrays import Float64
from reranker.errors import ConfigError, ShapeMismatch
from reranker.evaluation import PairedTest, paired_test, standard_error
from reranker.files import write_file

LOWER = ("rank loss",)
"""Measures in per cent, for which lower is better; for all others higher is better."""


def p_value(p: float) -> str:
    """Return a p-value as text; it is never shown as 0."""
    return "< .0001" if p < 0.0001 else f"{p:.4f}".lstrip("0") if p < 1 else "1"


def seconds(spent: float) -> str:
    """Return a time in seconds, with one decimal if it is short."""
    return f"{spent:.1f}" if spent < 100 else f"{spent:,.0f}"


@dataclass(frozen=True, eq=False)
class CachedResult:
    """Result of one system on one study."""

    values: Mapping[str, Float64]
    """Values by measure, one per query or pair; NaN if a query has none. Empty if the system failed."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings chosen on validation."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time of ``fit`` and of ``measure``."""
    failure: str = ""
    """Reason why there are no values; empty if there are."""


class ResultCache:
    """The files of one system on one study.

    ``NAME.json`` is the report, ``NAME.npz`` holds the values per query, and ``NAME.run.gz`` the rankings in TREC's run
    format. Every file is written atomically, the JSON file last. It contains the hash of the values, so files of
    different runs are never combined.

    Parameters
    ----------
    folder : Path
        Folder of the study; it is created when something is written.
    name : str
        Name of the system.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.report, self.numbers, self.run = (
            folder / f"{file_name(name)}.{suffix}" for suffix in ("json", "npz", "run.gz")
        )

    def load(self, fingerprint: str) -> CachedResult | None:
        """Return the result stored under this fingerprint; None if there is none, or the files are damaged."""
        try:
            report = json.loads(self.report.read_bytes())
            if report["fingerprint"] != fingerprint:
                return None
            data = self.numbers.read_bytes()
            if hashlib.sha256(data).hexdigest() != report["values_sha256"]:
                return None
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                values = {name: arrays[name].astype(np.float64) for name in arrays.files}
            return CachedResult(values, report["settings"], report["seconds"], report["failure"])
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
            return None

    def save(self, fingerprint: str, kept: CachedResult, more: Mapping[str, Any]) -> None:
        """Store values and settings; the entries of ``more`` are added to the JSON file."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **{str(name): array for name, array in kept.values.items()})
        data = buffer.getvalue()
        report = {
            **more,
            "fingerprint": fingerprint,
            "values_sha256": hashlib.sha256(data).hexdigest(),
            "means": {name: _mean(array) for name, array in kept.values.items()},
            "settings": dict(kept.settings),
            "seconds": dict(kept.seconds),
            "failure": kept.failure,
        }
        write_file(self.numbers, data)
        self._write_report(report)

    def keep_tests(self, reference: str, p_values: Mapping[str, float]) -> None:
        """Add the p-values of the paired t-tests against the reference system, by measure, to the JSON file."""
        report = json.loads(self.report.read_bytes())
        tests = {"reference": reference, "p_t_test": dict(p_values)}
        if report.get("paired_tests") != tests:
            self._write_report({**report, "paired_tests": tests})

    def _write_report(self, report: Mapping[str, Any]) -> None:
        text = json.dumps(report, indent=1, ensure_ascii=False, default=_plain) + "\n"
        write_file(self.report, text.encode("utf-8"))

    def keep_run(self, plain: Path) -> None:
        """Compress a finished run file into the cache; equal runs give equal bytes."""
        write_file(self.run, gzip.compress(plain.read_bytes(), 6, mtime=0))


def file_name(name: str) -> str:
    """Return a name in which characters with a special meaning for folders or shells are escaped."""
    return quote(name, safe="+ ,=@").replace(" ", "-") or "-"


def version(name: str = "ssi-reranker", missing: str = "unknown") -> str:
    """Return the version of this program, or of a library."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return missing


def fingerprint(*parts: Any) -> str:
    """Return a hash of everything that values depend on; equal content has equal hashes on every machine.

    Parameters
    ----------
    *parts
        Numbers, texts, arrays, sparse matrices, and mappings, sequences and dataclasses of these.
    """
    state = hashlib.sha256()
    _add(state, parts)
    return state.hexdigest()


def _add(state: Any, value: Any) -> None:
    """Update the hash with one value and its type, so that different values have different encodings."""
    if isinstance(value, np.ndarray):
        state.update(f"array {value.dtype.str} {value.shape};".encode())
        state.update(np.ascontiguousarray(value).data)
    elif sp.issparse(value):
        rows = sp.csr_matrix(cast(Any, value))
        _add(state, (rows.shape, rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _add(state, {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)})
    elif isinstance(value, Mapping):
        _add(state, sorted(value.items()))
    elif isinstance(value, list | tuple):
        state.update(f"sequence {len(value)};".encode())
        for one in value:
            _add(state, one)
    else:
        text = repr(value.item() if isinstance(value, np.generic) else value)
        state.update(f"{len(text)} {text};".encode("utf-8", "surrogatepass"))


def _mean(values: Float64) -> dict[str, float | int | None]:
    """Return mean, standard error and number of the values that are not NaN."""
    numbers = _numbers(values)
    n = len(numbers)
    error = float(numbers.std(ddof=1) / np.sqrt(n)) if n > 1 else None
    return {"mean": float(numbers.mean()) if n else None, "standard_error": error, "n": n}


def _plain(value: Any) -> Any:
    """Return the JSON form of a setting."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, frozenset | set):
        return sorted(value)
    return str(value)


Place = tuple[str, str]
NOTE = (
    "± is the standard error over queries. p is of the paired t-test against {reference}. Figures under “paper” are "
    "the paper's own, on other data: a reference, not something to reach."
)
OVER_SEEDS = (
    "A seed draws the split (unless the corpus has one), the test sample, the order of training and the starts. The "
    "deviation is over seeds; the standard error over queries is in the other tables."
)
AT_START = "its start, untrained"
OVER_QUERIES = "± is the standard error over queries."


class StudySize(NamedTuple):
    """Numbers of a study, as they were counted when it was run."""

    documents: int
    """Number of documents."""
    occurrences: int
    """Number of words in the documents, each as often as it occurs; words outside of the vocabulary do not count."""
    vocabulary: int
    """Number of different words."""
    queries: int
    """Number of test queries."""


@dataclass(frozen=True, eq=False)
class Results:
    """Results of each system on each study."""

    task: str
    """Id of the task."""
    titles: Mapping[str, str]
    """Titles of the systems by name, in the order of the table."""
    values: Mapping[Place, Mapping[str, Float64]]
    """Values by measure, one per query or pair; NaN if a query has none."""
    failures: Mapping[Place, str] = field(default_factory=dict)
    """Reasons why there are no values."""
    settings: Mapping[Place, Mapping[str, Any]] = field(default_factory=dict)
    """Settings chosen on validation."""
    seconds: Mapping[Place, float] = field(default_factory=dict)
    """Time of fit and measurement."""
    reused: frozenset[Place] = frozenset()
    """Results that were reused from an earlier run."""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Group of each test query, by study."""
    corpus: str = ""
    """Name of the corpus."""
    sizes: Mapping[str, StudySize] = field(default_factory=dict)
    """Size of each study."""

    @property
    def studies(self) -> tuple[str, ...]:
        """Names of the studies, in the order in which they were run."""
        return tuple(dict.fromkeys(study for study, _ in (*self.values, *self.failures)))

    @property
    def systems(self) -> tuple[str, ...]:
        """Names of the systems, in the order of the table."""
        return tuple(self.titles)

    def of_study(self, study: str) -> Results:
        """Return the results on one study."""
        parts = (self.values, self.failures, self.settings, self.seconds)
        kept: list[Any] = [{place: value for place, value in part.items() if place[0] == study} for part in parts]
        reused = frozenset(place for place in self.reused if place[0] == study)
        sizes = {name: size for name, size in self.sizes.items() if name == study}
        return replace(
            self, values=kept[0], failures=kept[1], settings=kept[2], seconds=kept[3], reused=reused, sizes=sizes
        )

    def noted(self, note: str = "") -> str:
        """Return the note of a table: the corpus and its size, then ``note``.

        A number that is not the same in all studies is given as a range.
        """
        if not self.sizes:
            return note
        documents, occurrences, vocabulary, queries = (
            f"{min(numbers):,}" if min(numbers) == max(numbers) else f"{min(numbers):,} to {max(numbers):,}"
            for numbers in zip(*self.sizes.values(), strict=True)
        )
        where = (
            f"{self.corpus}: {documents} documents of {occurrences} words, a vocabulary of {vocabulary} words, "
            f"{queries} test queries."
        )
        return f"{where} {note}".rstrip()

    def has(self, system: str, measure: str) -> bool:
        """Return whether a system has values of a measure on any study."""
        return any(name == system and measure in found for (_, name), found in self.values.items())

    def pooled(self, system: str, measure: str) -> Float64:
        """Return the values of all studies, one after the other; NaN for queries without a value."""
        parts = [found[measure] for (_, name), found in self.values.items() if name == system and measure in found]
        return np.concatenate(parts) if parts else np.empty(0)

    def mean(self, system: str, measure: str) -> float:
        """Return the mean over the queries of all studies; NaN if there is no value."""
        numbers = _numbers(self.pooled(system, measure))
        return float(numbers.mean()) if len(numbers) else float("nan")

    def standard_error(self, system: str, measure: str) -> float:
        """Return the standard error of `mean`."""
        return standard_error(_numbers(self.pooled(system, measure)))

    def figure(self, system: str, measure: str) -> str:
        """Return mean ± standard error in the form of the papers; empty if there is no value."""
        mean, error = self.mean(system, measure), self.standard_error(system, measure)
        return "" if np.isnan(mean) else f"{mean:.3f} ± {error:.3f}{' %' if measure in LOWER else ''}"

    def failure(self, system: str) -> str:
        """Return why a system has no values on some study; empty if it has values on all."""
        reasons = dict.fromkeys(reason for (_, name), reason in self.failures.items() if name == system)
        return "; ".join(reasons)

    def kept_start(self, system: str) -> bool:
        """Return whether a system is its untrained start in all studies: no validation was better than the first."""
        found = [settings for (_, name), settings in self.settings.items() if name == system]
        return bool(found) and all(0 in (one.get(KEPT_STEP), one.get(KEPT_ITERATION)) for one in found)

    def title(self, system: str) -> str:
        """Return the title of a system for tables, which says so if it kept its start."""
        return f"{self.titles[system]} ({AT_START})" if self.kept_start(system) else self.titles[system]

    def paired(self, first: str, second: str, measure: str, rng: np.random.Generator | None = None) -> PairedTest:
        """Return the paired test of first minus second over the queries of all studies for which both have values.

        Raises
        ------
        ConfigError
            If there is no such query.
        """
        of_studies = [
            tuple(self.values.get((study, name), {}).get(measure) for name in (first, second)) for study in self.studies
        ]
        pairs = [values for values in of_studies if values[0] is not None and values[1] is not None]
        if not pairs:
            raise ConfigError(f"{first} and {second} have no {measure} on the same study: there is nothing to compare")
        left, right = (np.concatenate(side) for side in zip(*pairs, strict=True))
        both = ~(np.isnan(left) | np.isnan(right))
        return paired_test(left[both], right[both], rng)

    def table(
        self, title: str, paper: Mapping[str, Mapping[str, str]], measures: Sequence[str], reference: str
    ) -> Table:
        """Return the table of the systems, with the paper's figures next to ours.

        ``paper`` holds the printed figures by system name and measure. All other systems are tested against the system
        ``reference``.
        """
        printed = [measure for measure in measures if any(measure in row for row in paper.values())]
        columns = ["system"]
        for measure in measures:
            columns += [measure, "p", *([f"{measure}, paper"] if measure in printed else [])]
        rows = tuple(self._row(name, paper.get(name, {}), measures, printed, reference) for name in self.titles)
        note = NOTE.format(reference=self.titles.get(reference, reference))
        return Table(title, (*columns, "seconds"), rows, self.noted(note))

    def by_study(
        self, title: str, measure: str, columns: Mapping[str, str], note: str = OVER_QUERIES, errors: bool = True
    ) -> Table:
        """Return a table with a row per system and a column per study; ``columns`` is study -> heading.

        With ``errors``, a row below each system shows its p against the first system; otherwise only means are shown.
        """
        parts = [self.of_study(study) for study in columns]
        rows = []
        first = self.systems[0]
        for name in self.titles:
            figures = [part.figure(name, measure) or part.failure(name) for part in parts]
            rows.append((self.title(name), *(text if errors else text.split(" ± ", maxsplit=1)[0] for text in figures)))
            if errors and name != first:
                rows.append((f"p against {self.titles[first]}", *(part._p(name, first, measure) for part in parts)))
        return Table(title, ("system", *columns.values()), tuple(rows), self.noted(note))

    def _row(
        self, name: str, paper: Mapping[str, str], measures: Sequence[str], printed: Sequence[str], reference: str
    ) -> tuple[str, ...]:
        """Return the row of a system; without values, the first column says why."""
        failure = self.failure(name)
        cells = [f"{self.titles[name]} ({failure})" if failure else self.title(name)]
        for measure in measures:
            cells += [self.figure(name, measure), self._p(name, reference, measure)]
            if measure in printed:
                cells.append(paper.get(measure, ""))
        spent = sum(value for (_, system), value in self.seconds.items() if system == name)
        return (*cells, seconds(spent) if spent else "")

    def _p(self, name: str, reference: str, measure: str) -> str:
        """Return p against the reference; empty if there is nothing to compare.

        A system that kept its start is not compared with a reference that this start is equal to, as diag(w) with
        TF-IDF.
        """
        if name == reference or not (self.has(name, measure) and self.has(reference, measure)):
            return ""
        test = self.paired(name, reference, measure)
        same = test.difference == 0 and test.standard_error == 0
        return "" if same and self.kept_start(name) else p_value(test.p_t_test)


def _numbers(values: Float64) -> Float64:
    """Return the values that are not NaN."""
    return values[~np.isnan(values)]


def settings_table(results: Results) -> Table:
    """Return the settings of each system and study that were chosen on validation, or the reason of its failure."""
    several = len({study for study, _ in (*results.settings, *results.failures)}) > 1
    rows = []
    for (study, name), settings in results.settings.items():
        title = f"{results.titles[name]}, {study}" if several else results.titles[name]
        said = ", ".join(_setting(key, value) for key, value in settings.items())
        rows.append((title, results.failures.get((study, name), said)))
    return Table("Chosen on validation", ("system", "settings"), tuple(rows), results.noted())


def _setting(key: str, value: Any) -> str:
    """Return a setting as text; a kept step of 0 is explained."""
    at_start = f" ({AT_START})" if key in (KEPT_STEP, KEPT_ITERATION) and value == 0 else ""
    return f"{key.replace('_', ' ')} {_short(value)}{at_start}"


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


ALL = "all"


def averaged(results: Results) -> Results:
    """Return results with one value per group of `Results.groups`: the mean over its queries in all studies.

    Repeated splits test on a query several times, and queries of a topic share their judgments. Such values are not
    independent, so standard errors and tests over them would be too optimistic. All groups have the same weight. A
    system that failed on a study is left out, because it would have other groups.

    Raises
    ------
    ShapeMismatch
        If a study has no groups.
    """
    missing = [study for study in results.studies if not results.groups.get(study)]
    if missing:
        raise ShapeMismatch(f"the test queries of {', '.join(missing)} have no groups: give one per query")
    values: dict[tuple[str, str], dict[str, Float64]] = {}
    for system in results.systems:
        if results.failure(system):
            continue
        measures = _per_query(results, system)
        if measures:
            values[ALL, system] = {measure: _by_group(results, system, measure) for measure in measures}
    failures = {(ALL, system): results.failure(system) for system in results.systems if results.failure(system)}
    seconds: dict[tuple[str, str], float] = {}
    for (_, system), spent in results.seconds.items():
        seconds[ALL, system] = seconds.get((ALL, system), 0.0) + spent
    kept: dict[tuple[str, str], dict[str, int]] = {
        (ALL, system): {KEPT_STEP: 0} for system in results.systems if results.kept_start(system)
    }
    return replace(results, values=values, failures=failures, settings=kept, seconds=seconds, reused=frozenset())


def spread_over_studies(results: Results, measure: str, title: str) -> Table:
    """Return mean, standard deviation, minimum and maximum of each system's means over studies."""
    rows = []
    for name in results.systems:
        means = np.array(
            [
                np.nanmean(found[measure])
                for (_, system), found in results.values.items()
                if system == name and measure in found
            ]
        )
        if len(means):
            deviation = float(means.std(ddof=1)) if len(means) > 1 else 0.0
            figures = (means.mean(), deviation, means.min(), means.max())
            rows.append((results.title(name), *(f"{figure:.3f}" for figure in figures), str(len(means))))
    note = "Statistics of the means over the test queries of each; overlapping splits are not independent."
    return Table(
        title, ("system", "mean", "deviation", "least", "greatest", "number"), tuple(rows), results.noted(note)
    )


def _per_query(results: Results, system: str) -> list[str]:
    """Return the measures that have one value per query in every study."""
    found = [(study, results.values.get((study, system), {})) for study in results.studies]
    names = found[0][1] if found else {}
    return [
        name
        for name in names
        if all(name in values and len(values[name]) == len(results.groups[study]) for study, values in found)
    ]


def _by_group(results: Results, system: str, measure: str) -> Float64:
    """Return the mean of each group, in the order of the group names; NaN for a group without a value."""
    values = np.concatenate([results.values[study, system][measure] for study in results.studies])
    names = np.concatenate([np.array(results.groups[study], dtype=str) for study in results.studies])
    _, number = np.unique(names, return_inverse=True)
    there = ~np.isnan(values)
    totals = np.bincount(number[there], values[there], minlength=number.max(initial=-1) + 1)
    times = np.bincount(number[there], minlength=len(totals))
    means: Float64 = np.divide(totals, times, out=np.full(len(totals), np.nan), where=times > 0)
    return means


def over_seeds(by_seed: Mapping[int, Results], measures: Sequence[str] = ()) -> list[Table]:
    """Return a table per study and measure: each system's mean over queries by seed, and their mean and deviation.

    A study whose name ends in its seed is the same study of another seed. A system that failed with a seed has no value
    there, and its mean is over the others.

    Parameters
    ----------
    by_seed : mapping
        Results of the same task by seed, at least one.
    measures : sequence of str
        Measures to show; default: all with one value per query or pair in every result.
    """
    first = next(iter(by_seed.values()))
    # A study of this name with every seed, such as a split, is not one of a seed, whatever number it ends in.
    shared = set.intersection(*(set(found.studies) for found in by_seed.values()))

    def general(study: str, seed: int) -> str:
        return study if study in shared else study.removesuffix(f"-{seed}")

    tables = []
    for study in dict.fromkeys(general(name, seed) for seed, found in by_seed.items() for name in found.studies):
        parts = {
            seed: found.of_study(next((one for one in found.studies if general(one, seed) == study), study))
            for seed, found in by_seed.items()
        }
        there = {name: None for part in parts.values() for values in part.values.values() for name in values}
        for measure in measures or [name for name in there if not name.startswith("pair ")]:
            rows = []
            by_system = {name: np.array([part.mean(name, measure) for part in parts.values()]) for name in first.titles}
            for name, means in by_system.items():
                known = _numbers(means)
                summary = f"{known.mean():.4f}" if len(known) else ""
                deviation = f"{known.std(ddof=1):.4f}" if len(known) > 1 else ""
                cells = ("" if np.isnan(mean) else f"{mean:.4f}" for mean in means)
                rows.append((first.titles[name], summary, deviation, *cells))
            columns = ("system", "mean", "deviation", *(f"seed {seed}" for seed in by_seed))
            note = next(iter(parts.values())).noted(f"{OVER_SEEDS} {_order_by_seed(by_system, first.titles)}")
            tables.append(Table(f"{measure} over seeds, {study}", columns, tuple(rows), note))
    return tables


def _order_by_seed(means: Mapping[str, Float64], titles: Mapping[str, str]) -> str:
    """Return a sentence on the pairs of systems of which neither is above the other with all seeds.

    ``means`` are those of each system by seed.
    """
    pairs = []
    for first, second in combinations(means, 2):
        gains = _numbers(means[first] - means[second])
        if (gains > 0).any() and (gains < 0).any():
            above, below = int((gains > 0).sum()), int((gains < 0).sum())
            pairs.append(f"{titles[first]} and {titles[second]} ({above} to {below})")
    if not pairs:
        return "The order of the systems is the same with all seeds."
    said = "Pairs whose order reverses with the seed (number of seeds with the first one higher, and with it lower)"
    return f"{said}: {'; '.join(pairs)}."


LEVEL = 0.01
"""Significance level of the paired t-test, as in the papers, including S2Net (E11)."""


class Claim(NamedTuple):
    """A statement of a paper, ``source``, that one system is better than another."""

    better: str
    worse: str
    source: str


def significance_groups(results: Results, reference: str, measure: str) -> dict[str, list[str]]:
    """Return the titles of the systems above, below and not significantly different from the reference, at `LEVEL`."""
    groups: dict[str, list[str]] = {"above": [], "below": [], "not significantly different from": []}
    for name, title in results.titles.items():
        if name != reference and results.has(name, measure) and results.has(reference, measure):
            test = results.paired(name, reference, measure)
            kind = (
                "not significantly different from"
                if test.p_t_test >= LEVEL
                else "above"
                if test.difference > 0
                else "below"
            )
            groups[kind].append(title)
    return groups


def orderings(results: Results, claims: Sequence[Claim], *measures: str) -> tuple[str, ...]:
    """Return a sentence for each claim whose systems were both run: whether it holds in each measure."""
    return tuple(
        _sentence(results, claim, measures)
        for claim in claims
        if all(results.has(name, measure) for name in (claim.better, claim.worse) for measure in measures)
    )


def _sentence(results: Results, claim: Claim, measures: Sequence[str]) -> str:
    untrained = [results.titles[name] for name in (claim.better, claim.worse) if results.kept_start(name)]
    if untrained:
        verdicts = f"not tested here, because no validation was better than the untrained start of {untrained[0]}"
    else:
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
    p = p_value(test.p_t_test)
    return (
        f"{said} in {measure} (difference {test.difference:+.4f} ± {test.standard_error:.4f}, "
        f"p {p if p.startswith('<') else f'= {p}'}, {test.n:,} queries)"
    )
