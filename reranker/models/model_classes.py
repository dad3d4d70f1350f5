"""The model classes that can be learned, one line each.

Training, the choice among classes, the form a model is served in, refusals, the command line and its help read this
list. A new class is one file with its fit function, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

AUTO = "auto"
"""In place of a class: the one that validation chooses (`reranker.training.context.choose`)."""
DEFAULT_CLASS = "low_rank"


@dataclass(frozen=True, slots=True)
class ModelClass:
    """How a class is learned and served.

    ``fit`` is ``module:function``, imported when the class is learned: (`TrainingContext`, what the run with validation
    ended with or None) -> `TrainedParameters`. Given the former, the second run on all preferences learns as long and
    takes over its weights. ``form`` is of `reranker.models.scorers.FORMS`: how tables become a document's vector, in
    every engine and store; without ``has_vectors`` the scores are q.d alone. ``can_continue``: training can start from
    a model of this class; ``has_own_query_side``: U can be learned while every document's vector stays as it is.
    """

    name: str
    summary: str
    fit: str
    form: str = "linear"
    has_vectors: bool = True
    can_continue: bool = False
    has_own_query_side: bool = False

    def load_fit(self) -> Callable[..., Any]:
        """Return the fit function."""
        fit: Callable[..., Any] = resolve_name(self.fit)
        return fit


_CLASSES = (
    ModelClass("lexical", "only q.d, with tuned parameters", "reranker.training.linear:fit_lexical", has_vectors=False),
    ModelClass("tied", "q'(U'U + I)d", "reranker.training.linear:fit_tied", can_continue=True),
    ModelClass(
        "low_rank", "q'(U'V + I)d", "reranker.training.linear:fit_low_rank", can_continue=True, has_own_query_side=True
    ),
    ModelClass("s2net", "q.d plus the cosine of projected texts", "reranker.training.s2net:fit_s2net_class", "unit"),
    ModelClass("cubic", "low_rank with pairs of words of a document", "reranker.training.cubic:fit_cubic", "cubic"),
)

MODEL_CLASSES: dict[str, ModelClass] = {each.name: each for each in _CLASSES}
"""By name, in the order that ``auto`` tries them."""


def names_where(fits: Callable[[ModelClass], bool], joined_by: str = " or ") -> str:
    """Return the names of the classes that fit, in alphabetical order, for a message."""
    return joined_by.join(sorted(name for name, model_class in MODEL_CLASSES.items() if fits(model_class)))
