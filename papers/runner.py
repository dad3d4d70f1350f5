"""Runs systems on studies: fits, measures and caches each; cached results are reused."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np

from papers.corpora import corpus_name
from papers.measures import PAIR_GRADE, PAIR_SCORE
from papers.registry import Budget, FitInput, Fitted, Loss, Progress, System, TaskRequest
from papers.results import CachedResult, ResultCache, Results, StudySize, file_name, fingerprint, version
from papers.study import Study, StudyTrial, TrialScores
from reranker.arrays import Float32, Float64
from reranker.errors import MissingExtra, RerankerError
from reranker.evaluation import RunWriter, paired_test, top_documents

Measure = Callable[[Study, StudyTrial, Fitted], Mapping[str, Float64]]
"""Function that returns values by measure, one per query or pair; ``rank loss`` is in per cent."""
RUN_DEPTH = 100
"""Number of ranks in run files."""


def run_ranking(  # noqa: PLR0913 - systems, studies, measures, budget and reference
    task: str,
    studies: Iterable[Study],
    systems: Sequence[System],
    loss: Loss,
    measure: Measure,
    request: TaskRequest,
    budget: Budget,
    progress: Progress,
    *,
    reference: str = "",
) -> Results:
    """Return the results of each system on the test trial of each study.

    Results are cached under ``request.out / task / study``, and reused for the same study, system, budget and program
    version. If a study does not have the data that a system needs, or a fit fails, the results hold the reason instead
    of values.

    Parameters
    ----------
    studies : iterable of Study
        Processed one after the other, so a generator needs the memory of only one; names must differ.
    loss, measure : callable
        The loss to tune on the study's valid trial, and the measure to take once on its test trial.
    budget : Budget
        The same for all systems; a study may set other dimensions.
    reference : str
        System that the others are tested against, by default the first; the files store the p-values for each
        study.
    """
    results: dict[tuple[str, str], CachedResult] = {}
    reused: set[tuple[str, str]] = set()
    groups: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, StudySize] = {}
    for study in studies:
        groups[study.name] = study.test.groups
        texts = study.documents
        occurrences = int(texts.counts.sum(dtype=np.float64))
        sizes[study.name] = StudySize(len(texts), occurrences, len(texts.words), len(study.test.queries))
        own = budget if study.n_dims is None else replace(budget, n_dims=study.n_dims)
        content = fingerprint(study)
        caches = {
            system.name: ResultCache(request.out / file_name(task) / file_name(study.name), system.name)
            for system in systems
        }
        for system in systems:
            progress(f"{task} {study.name}: {system.title}", 0, None)
            key = fingerprint(content, system.name, asdict(own), version(), _name(loss), _name(measure))
            result = caches[system.name].load(key)
            if result is not None:
                reused.add((study.name, system.name))
                progress(f"{task} {study.name}: {system.title}, used again", 1, 1)
            else:
                rng = np.random.default_rng([study.seed, crc32(system.name.encode())])
                job = FitInput(study, own, loss, rng, _under(f"{task} {study.name}: {system.title}", progress))
                named = {"task": task, "seed": request.seed}
                result = _result(job, system, measure, caches[system.name], key, named)
            results[study.name, system.name] = result
        tested_against = reference if reference in caches else next(iter(caches), "")
        for name, cache in caches.items():
            p_values = _paired_tests(results[study.name, name].values, results[study.name, tested_against].values)
            if p_values and name != tested_against:
                cache.keep_tests(tested_against, p_values)
    ranking = Results(
        task=task,
        titles={system.name: system.title for system in systems},
        values={place: result.values for place, result in results.items() if not result.failure},
        failures={place: result.failure for place, result in results.items() if result.failure},
        settings={place: result.settings for place, result in results.items()},
        seconds={place: sum(result.seconds.values()) for place, result in results.items()},
        reused=frozenset(reused),
        groups=groups,
        corpus=corpus_name(request.corpus),
        sizes=sizes,
    )
    if request.keep is not None:
        request.keep(ranking)
    return ranking


def _paired_tests(first: Mapping[str, Float64], second: Mapping[str, Float64]) -> dict[str, float]:
    """Return p of the paired t-test in each measure that has one value per query in both results."""
    p_values = {}
    for measure in first.keys() & second.keys() - {PAIR_SCORE, PAIR_GRADE}:
        left, right = first[measure], second[measure]
        if left.shape == right.shape and len(left) > 1:
            both = ~(np.isnan(left) | np.isnan(right))
            p_values[measure] = paired_test(left[both], right[both]).p_t_test
    return dict(sorted(p_values.items()))


def _result(
    job: FitInput, system: System, measure: Measure, cache: ResultCache, key: str, named: dict[str, Any]
) -> CachedResult:
    """Return the result of a system and write it to its files; ``named`` is added to the JSON file."""
    missing = system.lacks(job.study)
    if missing:
        return CachedResult({}, failure=f"needs {', '.join(missing)}, which this corpus does not have")
    try:
        result = _measured(job, system, measure, cache)
    except MissingExtra as error:
        return CachedResult({}, failure=str(error))  # not cached: the library may be installed the next time
    except RerankerError as error:
        result = CachedResult({}, failure=str(error))
    study = job.study
    about = {
        **named,
        "study": study.name,
        "system": system.name,
        "title": system.title,
        "ids": list(system.ids),
        "study_seed": study.seed,
        "version": version(),
        "budget": asdict(job.budget),
        "documents": len(study.documents),
        "words": len(study.documents.words),
        "training_queries": len(study.queries),
        "test_queries": len(study.test.queries),
    }
    cache.save(key, result, about)
    return result


def _measured(job: FitInput, system: System, measure: Measure, cache: ResultCache) -> CachedResult:
    """Fit a system and return its values."""
    study = job.study
    begin = time.perf_counter()
    fitted = system.fit(job)
    middle = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ssi-run-") as aside:
        plain = Path(aside) / "run"
        with RunWriter(plain, study.test.task, system.name) as writer:
            recorded = _Recorded(fitted.scorer, fitted.query_view, fitted.document_view, fitted.settings, writer=writer)
            values = measure(study, study.test, recorded)
        if plain.stat().st_size:
            cache.keep_run(plain)
    end = time.perf_counter()
    arrays = {name: np.asarray(array, np.float64) for name, array in values.items()}
    return CachedResult(arrays, fitted.settings, {"fit": middle - begin, "measure": end - middle})


def _under(name: str, progress: Progress) -> Progress:
    """Return a progress function that prepends the name of a fit."""
    return lambda what, done, total: progress(f"{name}, {what}" if what else name, done, total)


@dataclass(frozen=True, kw_only=True)
class _Recorded(Fitted):
    """A fitted system whose rankings of the test trial are written to a run file while they are measured."""

    writer: RunWriter

    def scores(self, study: Study, trial: StudyTrial) -> TrialScores:
        """Return the scores of a trial; each block is written to the run file the first time it is computed."""
        plain = super().scores(study, trial)
        if trial is not study.test:
            return plain
        return _RecordedScores(plain.scorer, plain.queries, plain.documents, trial, self.writer, [0])


@dataclass(frozen=True)
class _RecordedScores(TrialScores):
    """Scores that are written to a run file as they are computed, in the order of the queries."""

    trial: StudyTrial
    writer: RunWriter
    written: list[int]

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of queries ``start`` to ``stop - 1``."""
        scores = super().block(start, stop)
        if start == self.written[0] and np.isfinite(scores).all():
            self.written[0] = stop
            left = scores.copy()
            excluded = self.trial.task.excluded[start:stop]
            left[np.repeat(np.arange(stop - start), np.diff(excluded.indptr)), excluded.indices] = -np.inf
            documents, best = top_documents(left, RUN_DEPTH)
            self.writer.write(start, documents, best)
        return scores


def _name(function: Any) -> str:
    """Return a name of a function that is the same in every process."""
    named = cast(Any, getattr(function, "func", function))
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def with_budget(budget: Budget, request: TaskRequest) -> Budget:
    """Return the task's budget, or `SMALL` in small mode, with the values that the request overrides."""
    return replace(SMALL if request.small else budget, **request.budget)


def sizes(request: TaskRequest, small: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of dimensions of a study by N: those below the requested maximum, and the maximum."""
    chosen = small if request.small else full
    most = request.budget.get("n_dims")
    return chosen if most is None else (*(n for n in chosen if n < most), most)


SMALL = Budget(
    n_dims=10, n_steps=20_000, every=10_000, patience=2, n_iterations=5, rates=(0.1,), n_slots=100_000, grid=3
)
"""Budget of small mode: seconds; the figures are meaningless."""
