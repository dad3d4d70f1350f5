"""A model beside the lexical baselines on the same queries: which is better, on what, by how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reranker.baselines.tuning import FittedBaseline, LexicalTask
from reranker.errors import ConfigError
from reranker.evaluation.measures import MEASURES, PairedTest, paired_test
from reranker.evaluation.protocols import N_TUPLES, RankingTask, draw_tuples
from reranker.evaluation.ranking import BlockScorer, RunWriter, SystemScores, evaluate, write_qrels

MODEL = "model"
HEADLINE = "AP"
RANK_LOSS = "rank_loss"
LEVEL = 0.01


@dataclass(frozen=True)
class Comparison:
    """Systems on one task, and the model tested against each of the others.

    ``tests`` are of model minus baseline, over queries: rank loss in per cent of a query's test tuples (less is
    better), all others better when bigger; the randomisation test is made for AP. The model stands under `MODEL` in
    ``systems``.
    """

    task: RankingTask
    systems: Mapping[str, SystemScores]
    tests: Mapping[str, Mapping[str, PairedTest]]
    baselines: Mapping[str, FittedBaseline]

    @property
    def best_baseline(self) -> str | None:
        """The baseline with the highest mean AP; None where there is none."""
        names = [name for name in self.systems if name != MODEL]
        return max(names, key=lambda name: self.systems[name].mean(HEADLINE), default=None)

    @property
    def headline(self) -> PairedTest | None:
        """The test of the model against the best baseline in AP; None where there is no baseline."""
        best = self.best_baseline
        return None if best is None else self.tests[best][HEADLINE]

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``no difference`` (at p < .01 in the paired t-test of AP), or ``alone``."""
        test = self.headline
        if test is None:
            return "alone"
        if test.p_t_test >= LEVEL:
            return "no difference"
        return "better" if test.difference > 0 else "worse"

    def sentence(self) -> str:
        """Return one sentence: which is better, on what, by how much."""
        best, test = self.best_baseline, self.headline
        where = f"on {len(self.task.query_ids):,} queries over {len(self.task.document_ids):,} documents"
        value = self.systems[MODEL].mean(HEADLINE)
        if best is None or test is None:
            return f"The model reaches MAP {value:.4f} {where}; no baseline was asked for."
        against = self.systems[best].mean(HEADLINE)
        numbers = (
            f"MAP {value:.4f} against {against:.4f}, difference {test.difference:+.4f} ± {test.standard_error:.4f}, "
            f"p {_p(test.p_t_test)}"
        )
        if self.verdict == "no difference":
            return f"The model and the best lexical baseline ({best}) cannot be told apart {where}: {numbers}."
        return f"The model is {self.verdict} than the best lexical baseline ({best}) {where}: {numbers}."

    def to_json(self) -> dict[str, Any]:
        """Return everything but the values of single queries, as JSON has it."""
        return {
            "queries": len(self.task.query_ids),
            "documents": len(self.task.document_ids),
            "relevant": int(self.task.relevant().nnz),
            "dropped": dict(self.task.dropped),
            "systems": {name: _summary(scores) for name, scores in self.systems.items()},
            "settings": {
                name: {**baseline.settings, "tuned_ap": baseline.tuned_ap} for name, baseline in self.baselines.items()
            },
            "tests": {
                name: {
                    measure: {"queries" if key == "n" else key: value for key, value in asdict(test).items()}
                    for measure, test in tests.items()
                }
                for name, tests in self.tests.items()
            },
            "best_baseline": self.best_baseline,
            "verdict": self.verdict,
            "sentence": self.sentence(),
        }


def compare_systems(
    model: BlockScorer,
    fitted: Mapping[str, FittedBaseline],
    evaluation: LexicalTask,
    rng: np.random.Generator,
    run_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
    n_tuples: int = N_TUPLES,
) -> Comparison:
    """Return the model beside fitted baselines on the same queries, pool and judgements, unseen when they were fitted.

    ``model`` has the scores of ``evaluation.task``, for instance `InnerProducts` of Uq, Vd and the tf-idf rows. ``rng``
    draws the test tuples and the exchanges of the randomisation test. ``<system>.run`` and ``qrels.txt`` are written to
    ``run_dir``; ``progress`` receives the name of each system before it is worked on.
    """
    if MODEL in fitted:
        raise ConfigError(f"a baseline cannot be called {MODEL!r}: the model is; give it another name")
    task = evaluation.task
    tuples = draw_tuples(task, rng, n_tuples)
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_qrels(run_dir / "qrels.txt", task)
    systems: dict[str, SystemScores] = {}
    for name in (MODEL, *fitted):
        if progress is not None:
            progress(name)
        scorer = model if name == MODEL else fitted[name].scorer(evaluation.queries, evaluation.documents)
        with ExitStack() as stack:
            on_block = None
            if run_dir is not None:
                # A colon is not legal in file names everywhere.
                path = run_dir / f"{name.replace(':', '-')}.run"
                on_block = stack.enter_context(RunWriter(path, task, name)).write
            systems[name] = evaluate(task, scorer, tuples, on_block=on_block)
    tests: dict[str, dict[str, PairedTest]] = {}
    ours, drawn = systems[MODEL], systems[MODEL].tuple_counts > 0
    for name in fitted:
        others = systems[name]
        tests[name] = {
            measure: paired_test(ours.values[measure], others.values[measure], rng if measure == HEADLINE else None)
            for measure in MEASURES
        }
        tests[name][RANK_LOSS] = paired_test(ours.query_rank_losses()[drawn], others.query_rank_losses()[drawn])
    return Comparison(task, systems, tests, fitted)


def _summary(scores: SystemScores) -> dict[str, dict[str, float]]:
    summary = {
        measure: {"mean": scores.mean(measure), "standard_error": scores.standard_error(measure)}
        for measure in scores.values
    }
    summary[RANK_LOSS] = {"mean": scores.rank_loss(), "standard_error": scores.rank_loss_standard_error()}
    return summary


def _p(value: float) -> str:
    return "< .0001" if value < 0.0001 else f"= {value:.4f}"
