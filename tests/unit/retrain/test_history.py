"""What is taken from a log: nothing of the newest slice is learned from, and grades are by liking, not by rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import impressions, make_pairs
from reranker.clicks.propensities import Propensities
from reranker.clicks.simulator import LogPlan, PositionBased, simulate, tables_of
from reranker.errors import NothingToLearn
from reranker.retrain import history
from reranker.retrain.history import grades_of, most_asked, read_history
from reranker.retrain.learner import Learner, LinksAndJudgements
from reranker.retrain.settings import RetrainSettings
from reranker.training import Listener, from_judgements
from tests.engines.memory import memory_engine
from tests.ratings import rating
from tests.seeds import seeded_rng
from tests.unit.retrain.shop import Shop
from tests.unit.small_models import small_model

N_QUERIES, DEPTH = 30, 6


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    rng = seeded_rng(5)
    rankings = np.stack([rng.permutation(40)[:DEPTH] for _ in range(N_QUERIES)])
    attraction = rng.uniform(0.1, 0.9, rankings.shape)
    plan = LogPlan(impressions=1500, users=150, days=10.0, randomised=0.2)
    simulated = simulate(rankings, attraction, PositionBased.power(DEPTH, 1.0), plan, rng)
    made = ClickLog(tmp_path_factory.mktemp("clicks") / "log", create=True)
    tables = tables_of(simulated, [f"query {n}" for n in range(N_QUERIES)], [f"d{n}" for n in range(40)])
    undated = {f"q{row}" for row in range(0, 1500, 50)}
    for name in ("queries", "events"):
        columns = tables[name]
        columns["time"] = [
            None if query in undated else time for query, time in zip(columns["query_id"], columns["time"], strict=True)
        ]
    made.add([tables], "simulated")
    return made


def settings(**changes: object) -> RetrainSettings:
    return RetrainSettings(Path("models"), **changes)  # type: ignore[arg-type]


def test_the_newest_slice_is_not_learned_from(log: ClickLog) -> None:
    history = read_history(log, settings(newest=0.25))
    every = [one for one in impressions(log) if one.clicked]
    dated = [one.time for one in every if one.time is not None]
    newer = [one for one in every if one.time is not None and one.time >= history.cutoff]
    assert history.newest == newer
    assert len(newer) == pytest.approx(0.25 * len(dated), abs=1)
    assert history.learned == len(every) - len(newer)
    assert history.undated == len(every) - len(dated) > 0
    assert (history.first, history.last) == (min(dated), max(dated))
    with make_pairs(log, history.config, until=history.cutoff) as table:
        assert history.pairs == list(table.pairs())
    only_old = [one for one in impressions(log, until=history.cutoff)]
    assert sum(history.shown) == sum(len(one.shown) for one in only_old)
    assert sum(history.clicked) == sum(len(one.clicked) for one in only_old)


def test_propensities_come_from_the_older_part_unless_given(log: ClickLog) -> None:
    found = read_history(log, settings())
    assert found.propensities is not None
    assert found.propensities.by_rank[0] == 1.0
    assert found.config.propensities is not None
    assert max(found.config.propensities) <= 1.0
    given = read_history(log, settings(propensities=Propensities((1.0, 0.5))))
    assert given.config.propensities == (1.0, 0.5)
    assert "given" in given.method
    assert {p.weight for p in given.pairs} != {p.weight for p in found.pairs}


def test_a_large_slice_is_sampled_and_equally_each_time(log: ClickLog, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_history(log, settings())
    monkeypatch.setattr(history, "MAX_JUDGED", 50)
    parts = [read_history(log, settings()).newest for _ in range(2)]
    assert parts[0] == parts[1]
    assert len(parts[0]) == 50
    assert set(one.query_id for one in parts[0]) < set(one.query_id for one in whole.newest)


def test_since_leaves_out_what_is_older(log: ClickLog) -> None:
    whole = read_history(log, settings())
    middle = (whole.first + whole.cutoff) // 2
    part = read_history(log, settings(since=middle))
    assert part.first >= middle
    assert part.undated == 0
    assert part.learned < whole.learned


def test_a_log_of_people_who_never_click(tmp_path: Path) -> None:
    nobody = ClickLog(tmp_path / "log", create=True)
    rng = seeded_rng(6)
    plan = LogPlan(impressions=50, days=2.0)
    simulated = simulate([[0, 1, 2]], [[0.0, 0.0, 0.0]], PositionBased.power(3, 1.0), plan, rng)
    nobody.add([tables_of(simulated, ["query"], ["a", "b", "c"])], "nobody")
    with pytest.raises(NothingToLearn, match="no shown list with a click"):
        read_history(nobody, settings())


def test_nobody_alone_makes_a_document_remembered_for_a_query(log: ClickLog) -> None:
    history = read_history(log, settings())
    people: dict[tuple[str, str], set[str]] = {}
    for shown in impressions(log, until=history.cutoff):
        for hit in shown.clicked:
            people.setdefault((shown.query, hit.document), set()).add(shown.user)
    assert history.remembered == {pair for pair, who in people.items() if len(who) >= 2}
    assert 0 < len(history.remembered) < len(people)
    judged = LinksAndJudgements((from_judgements({"j": {"d1": 2.0}}, {"j": "query 0"}),))
    learner = Learner(small_model(), Path("none"), judged, settings(), Listener())
    preferences = learner._evidence(history.pairs, history).preferences
    clicks = [p for p in preferences if p.worse]
    assert [p.remembered for p in preferences if not p.worse] == [1.0]
    assert {(p.query, p.better) for p in clicks if p.remembered} <= history.remembered
    assert {(p.query, p.better) for p in clicks if not p.remembered}.isdisjoint(history.remembered)
    assert (min(p.remembered for p in clicks), max(p.remembered for p in clicks)) == (0.0, 1.0)


def test_grades_are_by_clicks_of_those_who_looked() -> None:
    """``low`` has fewer clicks than ``top`` and was looked at much less: it is liked more."""
    rated = [
        rating("q", "top", 100, 30),
        rating("q", "low", 100, 9, 12.0),
        rating("q", "never", 100, 0, 50.0),
        rating("alike", "a", 10, 1),
        rating("alike", "b", 10, 1),
        rating("nobody", "a", 10, 0),
    ]
    assert grades_of(rated, {"q", "alike", "nobody"}) == {"q": {"top": 0.0, "low": 1.0, "never": 0.0}}
    assert grades_of(rated, {"alike"}) == {}
    assert grades_of([], {"q"}) == {}


def test_one_click_where_nobody_looks_is_no_certainty() -> None:
    rated = [
        rating("q", "sure", 1000, 600),
        rating("q", "once", 1, 1, 0.1),
        rating("q", "c", 99, 9),
        rating("q", "d", 1000, 300),
    ]
    assert grades_of(rated, {"q"})["q"]["sure"] == 1.0
    assert grades_of(rated, {"q"})["q"]["c"] == 0.0


def test_of_many_repeated_queries_those_with_the_most_clicks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.retrain.history.MOST_QUERIES", 2)
    clicks = {"a": 3, "b": 9, "c": 3, "d": 1}
    repeated = {query: [rating(query, "d1", 9, n), rating(query, "d2", 9, 1)] for query, n in clicks.items()}
    assert list(most_asked(repeated)) == ["a", "b"]
    assert most_asked({}) == {}


def test_earlier_periods_know_only_queries_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, memory_engine()).fill()
    log = shop.log(tmp_path / "log", impressions=2000)
    monkeypatch.setattr("reranker.retrain.history.MOST_QUERIES", 5)
    history = read_history(log, shop.settings(words_only=False))
    assert len(history.repeated) == 5
    assert len(history.periods) == 3 and any(period.repeated for period in history.periods)
    for period in history.periods:
        assert period.repeated.keys() <= history.repeated.keys()
        assert period.lists and all(one.clicked for one in period.lists)
    ends = [max(one.time or 0 for one in period.lists) for period in history.periods]
    assert ends == sorted(ends) and ends[-1] < history.cutoff
