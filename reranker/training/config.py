"""Settings of training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reranker.config import check_ranges
from reranker.errors import ConfigError

AUTO_OR_OFF = ("auto", "off")
AUTO_OR_ON = ("auto", "on")
EPOCHS = 10
"""Epochs at most; validation chooses the best one."""
IDENTITY_SCALE = 4.0
"""a, the weight of q.d against the margin of 1 while learning: fixed.

U and V are divided by its root afterwards, so that the model served is UᵀV + I. The number is scale-free, because
document rows are scaled so that relevant documents score .25 above random ones (`LexicalSettings.factor`): with 4 this
difference is the margin. It was measured on cppdocs, mdn, aws and rfc.
"""
TEXT_IDENTITY_SCALE = 12.0
"""The same where queries are texts.

Measured on insuranceqa (MAP .352 with 10, .341 with 4, .322 with 2); on nfcorpus 4 and 16 are equal (.269).
"""
RATE = 0.05
"""Learning rate at the start, fixed; it falls to 0. It is scale-free as `IDENTITY_SCALE` is, and measured with it."""
PATIENCE = 5
"""Epochs without a better validation MAP until training stops."""
MAX_NORM = 3.0
"""Largest norm of a word's vector, fixed: scale-free next to a margin of 1."""
MAX_TRIALS = 100
"""Negatives tried in a step at most."""
NEAREST_SHARE = 0.5
"""Share of the steps whose negative is a hard one."""
STATED_NEGATIVE_RATIO = 0.0
"""Share of the steps whose negative is one of the documents stated to be worse, where there are any."""
VECTOR_DIMS = 128
"""Numbers that are stored of a vector that documents have already: those on which the documents differ most."""
KEPT_NAMES = {"identity_scale": "margin_identity", "stated_negative_ratio": "worse_share"}
"""Names of settings in manifests and checkpoints, where they differ."""


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one training run."""

    RANGES: ClassVar[Mapping[str, str]] = {
        "dim": "[1, inf)",
        "epochs": "[1, inf)",
        "seed": "[0, inf)",
    }

    dim: int = 100
    """N, the dimensions of a vector."""
    seed: int = 0
    """Seed of all random numbers."""
    epochs: int | None = None
    """Epochs at most; None: `EPOCHS`. Validation chooses how many of them count."""
    memory: str = "auto"
    """{'auto', 'off'}: Whether documents remember the training queries that they are relevant to, or the pages that
    link to them, as words of one more field in the lexical part. ``auto``: unless held-out queries show it to be
    worse."""
    word_weights: str = "auto"
    """{'auto', 'off'}: Whether the words of queries have weights in the lexical part, learned from training queries.
    ``auto``: if queries are texts and validation is better with them."""
    learned_part: str = "auto"
    """{'auto', 'on'}: Whether the learned part is written. ``auto``: where documents are the queries, unless held-out
    queries show it to be worse; where texts are, only if they show it to be better."""
    query_side_only: bool = False
    """Learn only U and keep the V of the model to start from: every stored vector stays valid. Needs a model to start
    from."""

    def __post_init__(self) -> None:
        _one_of("memory", self.memory, AUTO_OR_OFF)
        _one_of("word_weights", self.word_weights, AUTO_OR_OFF)
        _one_of("learned_part", self.learned_part, AUTO_OR_ON)
        check_ranges(self, **self.RANGES)


def kept_settings(settings: TrainConfig | Schedule) -> dict[str, Any]:
    """Return settings under the names that manifests and checkpoints keep them by."""
    return {KEPT_NAMES.get(name, name): value for name, value in dataclasses.asdict(settings).items()}


@dataclass(frozen=True)
class Schedule:
    """The numbers of a run: constants of this module, and what follows from `TrainConfig` and the evidence."""

    epochs: int
    rate_start: float
    """Learning rate at the start; it falls to 0."""
    identity_scale: float
    max_norm: float
    max_trials: int
    query_dropout: float
    init_u: float
    """Standard deviation of U before the first step; V is 0."""
    keyword_share: float
    keyword_min: int
    keyword_max: int
    stated_negative_ratio: float
    freeze_documents: bool = False
    nearest_share: float = 0.0
    short_apart: bool = False
    max_steps: int | None = None
    """Largest number of steps of an epoch; None: only the limits of `reranker.training.trainer.steps_of` apply."""


_QUERY_DROPOUT = 0.5  # of documents as queries; texts of people are read whole
_SHARE_BESIDE_TEXTS = 0.7  # share of the steps with a few words of a document, if there are also queries that are texts
_SHARE_APART = 0.25  # share of V's steps that learn for short queries, which have a U of their own
_FEW_WORDS = (1, 10)


def schedule_of(
    config: TrainConfig,
    *,
    queries_are_texts: bool,
    unseen_documents: bool,
    links_beside: bool = False,
    only_whole: bool = False,
) -> Schedule:
    """Return the numbers of a run by its settings and its evidence.

    The source document of a link is a query as a whole and, unless ``only_whole``, by a few of its words. Both need
    different maps, so that short queries get a U of their own. If there are links as well as queries that are texts
    (``links_beside``), there is one U; dropout then spares short queries.
    """
    only_texts = queries_are_texts and not links_beside
    has_few_words = not only_texts and not only_whole
    apart = has_few_words and not links_beside
    share = 0.0
    if apart:
        share = 0.0 if unseen_documents else _SHARE_APART
    elif has_few_words:
        share = _SHARE_BESIDE_TEXTS
    least, most = _FEW_WORDS if has_few_words else (1, 1)

    return Schedule(
        epochs=config.epochs or EPOCHS,
        rate_start=RATE,
        identity_scale=TEXT_IDENTITY_SCALE if only_texts else IDENTITY_SCALE,
        max_norm=MAX_NORM,
        max_trials=MAX_TRIALS,
        query_dropout=0.0 if only_texts else _QUERY_DROPOUT,
        init_u=1.0 / math.sqrt(config.dim),
        keyword_share=share,
        keyword_min=least,
        keyword_max=most,
        stated_negative_ratio=STATED_NEGATIVE_RATIO,
        freeze_documents=config.query_side_only,
        short_apart=apart,
        nearest_share=NEAREST_SHARE,
    )


def _one_of(name: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(legal)}", value=value)
