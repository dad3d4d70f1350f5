"""The inputs of a training run, checked: settings, evidence, random streams, and the split for validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from reranker.accounts import MAX_SAMPLES, InputAccount, check_unknown
from reranker.errors import ConfigError, TrainingError
from reranker.models.ranking_model import RankingModel
from reranker.text.analyzers import Analyzer, AnalyzerConfig, make_analyzer
from reranker.training.config import Schedule, TrainConfig, schedule_of
from reranker.training.linear import config_from, identity_scale_of
from reranker.training.reading import DocumentSource, Listener, TrainingCorpus
from reranker.training.training_set import Split, TrainingSet, part_to_judge_by, split_training_set

STREAMS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "split": (0,),
        "lexical tuning": (1,),
        "training": (2,),
        "validation": (3,),
        "refit": (5,),
        "judging": (6,),
        "nearest": (7,),
        "memory folds": (8, 0),
        "memory tuning": (8, 1),
        "memory folds of all": (8, 2),
        "memory tuning of all": (8, 3),
        "memory sample": (8, 4),
        "word weights": (9,),
        "form folds": (10,),
        "axes": (11,),
        "word vectors": (12,),
    }
)
"""Random streams of a run, and the spawn key of each: a stream does not depend on which others are used."""


@dataclass(frozen=True)
class RandomStreams:
    """The random generators of a run, by name."""

    seed: int

    def named(self, name: str) -> np.random.Generator:
        """Return the generator of a name of `STREAMS`, at its beginning."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=STREAMS[name]))


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """The inputs of one training. They do not change while its stages run."""

    corpus: DocumentSource
    evidence: TrainingSet
    """Evidence of the training, before the split for validation."""
    config: TrainConfig
    valid: TrainingSet | None
    """Evidence to stop by, never trained on; None: a part of ``evidence``."""
    base: RankingModel | None
    """Model to start from."""
    checkpoint: Path | None
    """Folder for the state of the run."""
    listener: Listener
    streams: RandomStreams

    @property
    def learned_weights(self) -> tuple[float, ...]:
        """Field weights of the rows that V reads: 1 each where the lexical part has weights of its own."""
        view = self.corpus.view
        return (1.0,) * len(view.fields) if self.base is None else view.weights

    @property
    def query_ids(self) -> set[str]:
        """Ids of the documents that are queries."""
        return self.evidence.document_queries | (self.valid.document_queries if self.valid else set())

    @property
    def analyzer(self) -> Analyzer:
        """The analyzer that the documents are read by first."""
        return self.corpus.analyzer or make_analyzer(AnalyzerConfig())


def checked_run(
    corpus: DocumentSource,
    evidence: TrainingSet,
    config: TrainConfig,
    valid: TrainingSet | None,
    base: RankingModel | None,
    checkpoint: Path | None,
    listener: Listener,
) -> TrainingRun:
    """Return the inputs of a run; a model to start from decides view, analyzer and some settings.

    `TrainingError` is raised if there is nothing to learn from, or training and validation evidence are of two kinds;
    `ConfigError` if the base does not fit the settings, or one that they need is missing.
    """
    if not evidence.preferences:
        raise TrainingError(f"there is nothing to learn from: {_no_preference(evidence)}")
    if valid is not None and (valid.texts is None) != (evidence.texts is None):
        raise TrainingError(
            "training and validation evidence are of two kinds, one with documents as queries and one with texts: "
            "give both as links, or both as judgements or pairs"
        )
    if base is not None:
        encoder = base.encoder
        corpus = replace(corpus, view=encoder.view, analyzer=encoder.analyzer, tf=encoder.tf)
        config = config_from(base, config)
    elif config.query_side_only:
        raise ConfigError("query_side_only needs a model to start from, whose document side it keeps: give a base")
    return TrainingRun(corpus, evidence, config, valid, base, checkpoint, listener, RandomStreams(config.seed))


def _no_preference(evidence: TrainingSet) -> str:
    """Return the reason why evidence has no preference."""
    n_judged = sum(map(len, evidence.grades.values()))
    if n_judged and evidence.unit != "pairs":
        return f"none of the {n_judged:,} judgments has a grade above 0, so no document is relevant: check the grades"
    reasons = "; ".join(part.sentence for part in evidence.left_out)
    return reasons or "the links, judgments or pairs are empty"


def check_known(run: TrainingRun, documents: Sequence[str]) -> None:
    """Report preferences with unknown ids by `check_unknown`; ``documents`` are the ids of all documents."""
    evidence = run.evidence
    left_out = evidence.unknown_ids(frozenset(documents))
    account = InputAccount(evidence.unit, evidence.n_given - sum(part.count for part in left_out), left_out)
    known = ", ".join(map(repr, documents[:MAX_SAMPLES]))
    advice = (
        f"the documents of {str(run.corpus.path)!r} have ids such as {known}. Check that the ids belong to these "
        "documents (--docs, --id-field) and queries (--query-file), or remove the lines with other ids"
    )
    check_unknown(account, advice, run.corpus.max_unknown, run.listener.say)


@dataclass(frozen=True, eq=False)
class Division:
    """The evidence of a run, split, and the schedule that follows from it."""

    split: Split
    """Training side and whole validation side."""
    choosing: Split
    """The same with the validation queries that choose settings, epoch and weights."""
    judging: TrainingSet
    """The validation queries that judge the result."""
    judged_apart: bool
    """False where there are too few validation queries: then all of them choose and judge."""
    schedule: Schedule
    """The numbers of training runs."""


def divided(run: TrainingRun, data: TrainingCorpus) -> Division:
    """Return the evidence split for validation.

    Where the analyzer has bigrams, only whole documents are queries: words drawn at random are no bigrams.
    """
    split = split_training_set(run.evidence, run.valid, data.ids, run.streams.named("split"))
    choosing, judging, judged_apart = part_to_judge_by(split.valid, data.row_of, run.streams.named("judging"))
    schedule = schedule_of(
        run.config,
        queries_are_texts=run.evidence.texts is not None,
        unseen_documents=split.unseen_documents,
        links_beside=bool(run.evidence.linked),
        only_whole=run.evidence.texts is None and run.base is None and run.analyzer.config.bigrams,
    )
    if run.base is not None:
        identity = identity_scale_of(
            run.base, query_side_only=run.config.query_side_only, asks_texts=run.evidence.texts is not None
        )
        schedule = replace(schedule, identity_scale=identity)
    return Division(split, replace(split, valid=choosing), judging, judged_apart, schedule)
