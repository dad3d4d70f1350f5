"""Which alpha belongs to a search: one for each query body and window, fitted by `reranker.calibrate`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reranker.engines.bodies import candidate_body, default_query_body
from reranker.errors import ConfigError
from reranker.rerank.blend import DEFAULT_ALPHA, check_alpha
from reranker.text.view import TextView


class ChosenAlpha(NamedTuple):
    """An alpha and where it comes from: ``given``, ``calibrated`` or ``default``."""

    value: float
    origin: str


def body_hash(template: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that name a body template by what decides its hits and their scores.

    What is only shown (``_source``, highlight, aggregations, page size) does not count.
    """
    decisive = candidate_body(template, 1, answers=False)
    content = json.dumps(decisive, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(content.encode("ascii"), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted alphas of a release, by ``<body hash>:<window>``.

    Parameters
    ----------
    alphas : mapping of str to float
        Key `Calibration.key`, value 0 to 1.
    """

    alphas: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, alpha in self.alphas.items():
            digits, _, window = key.partition(":")
            if len(digits) != 16 or not window.isdecimal():
                raise ConfigError(
                    f"calibration {key!r} is not <16 hex digits of the body>:<window> with a number; "
                    "run `ssi calibrate` again"
                )
            check_alpha(alpha)

    @classmethod
    def from_release(cls, entries: Mapping[str, Any]) -> Calibration:
        """Return the calibration kept in a release: ``{key: {"alpha": 0.7, ...}}``.

        Raises
        ------
        ConfigError
            If an entry has no alpha between 0 and 1.
        """
        alphas: dict[str, float] = {}
        for key, entry in entries.items():
            alpha = entry.get("alpha") if isinstance(entry, Mapping) else None
            if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
                raise ConfigError(f"calibration {key!r} of the release has no number alpha; run `ssi calibrate` again")
            alphas[key] = float(alpha)
        return cls(alphas)

    @staticmethod
    def key(template_hash: str, window: int) -> str:
        """Return the key of a body and a window."""
        return f"{template_hash}:{window}"

    def with_alpha(self, template_hash: str, window: int, alpha: float) -> Calibration:
        """Return a calibration that also knows this alpha."""
        return Calibration({**self.alphas, self.key(template_hash, window): check_alpha(alpha)})

    def choose(self, template_hash: str, window: int, given: float | None = None) -> ChosenAlpha:
        """Return the alpha given by the caller, else the fitted one, else `DEFAULT_ALPHA`."""
        if given is not None:
            return ChosenAlpha(check_alpha(given), "given")
        fitted = self.alphas.get(self.key(template_hash, window))
        return ChosenAlpha(DEFAULT_ALPHA, "default") if fitted is None else ChosenAlpha(float(fitted), "calibrated")


def default_template(view: TextView) -> dict[str, Any]:
    """Return the body template used where the team gives none: BM25 over the model's text fields with its weights."""
    weights = view.weights
    fields = [
        spec.path if weight == 1.0 else f"{spec.path}^{weight:g}"
        for spec, weight in zip(view.fields, weights, strict=True)
        if weight > 0
    ]
    return default_query_body("{{query}}", fields or [spec.path for spec in view.fields])
