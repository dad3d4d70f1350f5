"""Reduced versions of benchmarks/simulated_clicks.py and benchmarks/click_spam.py, on a site made up here."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.seeds import seeded_rng
from tests.unit.clicks.small_sites import small_site

import click_spam  # isort: skip  # the path is set by small_sites
import simulated_clicks  # isort: skip


@pytest.mark.slow
def test_weights_win_back_most_of_what_position_bias_costs(tmp_path: Path) -> None:
    site = small_site(tmp_path, seeded_rng())
    labels = simulated_clicks.measured(
        site, simulated_clicks.learned(site, site.labels(site.asked, shown_only=True), 0)
    )
    options = argparse.Namespace(searches=100, clip=100.0)
    result = simulated_clicks.run_reader(site, "pbm:2", labels, 0, options, tmp_path)
    assert result["propensities"]["method"] == "harvest"
    assert result["gap"] > 0.02, "without a gap there is nothing to close"
    assert result["closed"] >= 0.5
    assert simulated_clicks.means([result])[0]["closed"] == pytest.approx(result["closed"])


@pytest.mark.slow
def test_fake_clicks_move_nothing_but_a_model_without_rules(tmp_path: Path) -> None:
    site = small_site(tmp_path, seeded_rng(1))
    result = click_spam.run(site, tmp_path, seed=0, searches=20)
    found = click_spam.summary(result)
    assert found["protected: nDCG@10 lost, %"] <= 0.5
    assert found["protected: ranks risen at most"] <= 1
    assert found["spam sessions flagged, %"] >= 95
    assert found["people's sessions flagged, %"] <= 1
    assert found["unprotected: nDCG@10 lost, %"] > 1  # measured: 1.8
    assert found["unprotected: ranks risen at most"] > 5
