"""Rankers fitted on graded judgements: every system of the papers that T7 compares, and the course's machines."""

from __future__ import annotations

from papers import graded_features, graded_learned, graded_lexical, graded_projections
from papers.system import System

SYSTEMS: tuple[System, ...] = (
    *graded_lexical.SYSTEMS,
    *graded_projections.SYSTEMS,
    *graded_learned.SYSTEMS,
    *graded_features.SYSTEMS,
)
"""All of them, simplest first."""

BY_NAME = {system.name: system for system in SYSTEMS}
