"""Words on a plane: the two directions in which their vectors differ most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from reranker.errors import ConfigError
from reranker.figures import new_figure, picture_bytes, picture_kind
from reranker.words.neighbours import Side, embedding_of, row_of_word

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel

FORMATS = (".png", ".svg")
Spot = tuple[str, Side]


def plane(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the first two principal components of rows, (n, 2) float64; each axis points to its largest value.

    Fewer than two directions leave the rest 0.
    """
    centred = np.asarray(vectors, dtype=np.float64)
    centred = centred - centred.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    found = left[:, :2] * sizes[:2]
    points = np.zeros((len(centred), 2))
    points[:, : found.shape[1]] = found
    for axis in range(2):
        largest = np.abs(points[:, axis]).argmax()
        if points[largest, axis] < 0:
            points[:, axis] *= -1
    return points


def write_words(model: RankingModel, spots: Sequence[Spot], path: Path) -> None:
    """Write a picture of words by the principal components of their vectors.

    Parameters
    ----------
    model : RankingModel
    spots : sequence of (word, side)
        At least two; the first one is drawn bold.
    path : Path
        ``.png`` or ``.svg``.

    Raises
    ------
    ConfigError
        For another kind of file, or fewer than two words.
    InputError
        For an unknown word.
    MissingExtra
        Without matplotlib.
    """
    kind = picture_kind(path, FORMATS)
    if len(spots) < 2:
        raise ConfigError(f"a picture of {len(spots)} words says nothing: ask for more neighbours")
    vectors = np.stack([embedding_of(model, side)[1][row_of_word(model, word, side)] for word, side in spots])
    path.write_bytes(_drawn(plane(vectors), spots, kind[1:]))


def _drawn(points: npt.NDArray[np.float64], spots: Sequence[Spot], kind: str) -> bytes:
    with new_figure(8, 6, extra="evaluation", style={"font.size": 10}) as figure:
        axes = figure.add_subplot()
        colours = ["#0969da" if side == "documents" else "#bc4c00" for _, side in spots]
        axes.scatter(points[:, 0], points[:, 1], c=colours, s=18)
        for place, ((word, _), (x, y)) in enumerate(zip(spots, points.tolist(), strict=True)):
            axes.annotate(word, (x, y), xytext=(4, 4), textcoords="offset points",
                          fontweight="bold" if place == 0 else "normal")  # fmt: skip
        axes.set_xlabel("first principal component")
        axes.set_ylabel("second")
        return picture_bytes(figure, kind, dpi=120)
