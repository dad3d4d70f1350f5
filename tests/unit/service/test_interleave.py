"""Team-draft interleaving: what is shown, who is credited, and what the clicks say."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reranker.cli.main import main
from reranker.models.model_folder import save_model
from reranker.rerank import RerankedPage, Reranker
from reranker.service.app import all_parts
from reranker.service.modes import CHALLENGER, LIVE, TeamList, clicks_of, coins, team_draft, team_lists, verdicts
from reranker.service.settings import ServiceSettings
from reranker.service.sink import FileWriter, ImpressionSink
from reranker.service.state import open_state
from tests.engines.memory import memory_engine
from tests.seeds import seeded_rng
from tests.served import model_of, random_documents, serve
from tests.services import PATIENT, client_of

RANKINGS = st.lists(st.integers(0, 30), unique=True, max_size=15)


class Coin:
    """A coin that falls as told."""

    def __init__(self, *falls: float) -> None:
        self.falls = list(falls)

    def random(self) -> float:
        return self.falls.pop(0)


def test_rounds_by_hand() -> None:
    # The live team begins the first round, the other the second, the live one the third; then only it has any left.
    drafted = team_draft(list("abcd"), list("bead"), 6, Coin(0.1, 0.9, 0.1, 0.1))  # type: ignore[arg-type]
    assert drafted == [("a", LIVE), ("b", CHALLENGER), ("e", CHALLENGER), ("c", LIVE), ("d", LIVE)]


@given(RANKINGS, RANKINGS, st.integers(0, 40), st.integers(0, 5))
def test_nothing_is_lost_or_doubled(first: list[int], second: list[int], size: int, seed: int) -> None:
    drafted = team_draft(first, second, size, np.random.default_rng(seed))
    keys = [key for key, _ in drafted]
    union = {*first, *second}
    assert len(keys) == len(set(keys)) == min(size, len(union))
    assert set(keys) <= union
    for ranking, team in ((first, LIVE), (second, CHALLENGER)):
        own = [key for key, whose in drafted if whose == team]
        assert own == [key for key in ranking if key in own]  # a team keeps its own order
    teams = Counter(team for _, team in drafted)
    if set(first) == set(second):
        assert abs(teams[LIVE] - teams[CHALLENGER]) <= 1


@given(RANKINGS, RANKINGS, st.integers(0, 20), st.integers(0, 20), st.integers(0, 5))
def test_a_longer_list_begins_like_a_shorter_one(
    first: list[int], second: list[int], a: int, b: int, seed: int
) -> None:
    short, long = (team_draft(first, second, n, np.random.default_rng(seed)) for n in sorted((a, b)))
    assert long[: len(short)] == short


def test_random_clicks_prefer_nobody() -> None:
    rng = seeded_rng()
    clicks = Counter[str]()
    for _ in range(4_000):
        drafted = team_draft(list(rng.permutation(12)), list(rng.permutation(12)), 10, rng)
        # Most clicks fall on the first places, whatever stands there.
        clicks[drafted[min(int(rng.geometric(0.5)) - 1, 9)][1]] += 1
    assert abs(clicks[LIVE] - clicks[CHALLENGER]) < 4 * np.sqrt(4_000)


def test_the_coins_of_a_session_stay() -> None:
    assert coins("s", "q").random() == coins("s", "q").random()
    assert coins("s", "q").random() != coins("t", "q").random()
    assert coins("s", "Red  Boot ").random() == coins("s", "red boot").random() != coins("s", "redboot").random()


def lists_of(clicks: list[list[str]], session: str = "s{}") -> tuple[dict[str, TeamList], set[tuple[str, str]]]:
    """Return one list a session with documents a1.. of the live team and b1.. of the other, and these clicks."""
    teams = {f"{team.lower()}{n}": team for team in (LIVE, CHALLENGER) for n in range(9)}
    lists = {f"q{i}": TeamList(session.format(i), ("1" * 64, "2" * 64), teams) for i in range(len(clicks))}
    return lists, {(f"q{i}", document) for i, documents in enumerate(clicks) for document in documents}


def test_the_sign_test_over_sessions() -> None:
    lists, clicks = lists_of([["b1"]] * 9 + [["a1"]] + [["a1", "b1"]] * 5 + [[]] * 3)
    verdict = verdicts(lists, clicks, np.random.default_rng(0))[0]
    assert (verdict.wins_challenger, verdict.wins_live, verdict.ties) == (9, 1, 5)
    assert (verdict.lists, verdict.clicked_lists, verdict.sessions) == (18, 15, 15)
    assert (verdict.clicks_challenger, verdict.clicks_live) == (14, 6)
    assert verdict.p == pytest.approx(2 * 11 / 2**10)  # 1 + 10 of 2**10, both sides
    assert verdict.preference == pytest.approx((9 + 2.5) / 15)
    assert verdict.low < verdict.preference < verdict.high
    assert verdict.winner == "challenger"
    assert verdict.sentence().startswith("Version 222222222222 (challenger) is preferred: 9 of 15 sessions")


def test_an_undecided_verdict_says_how_many_sessions_would_decide_it() -> None:
    lists, clicks = lists_of([["b1"]] * 11 + [["a1"]] * 9 + [["a1", "b1"]] * 20)
    verdict = verdicts(lists, clicks, np.random.default_rng(0))[0]
    # 55 % of the sessions that are no ties: (1.96 + .84)² / (4 * .05²) = 785 of these, and as many ties.
    assert verdict.winner == "undecided" and verdict.sessions_needed == pytest.approx(2 * 785, abs=2)
    assert verdict.sentence().endswith("A preference of this size needs about 1,570 sessions with a click.")
    # So many of them do show it, four times of five.
    rng = np.random.default_rng(5)
    shown = [stats.binomtest(int(rng.binomial(785, 0.55)), 785).pvalue < 0.05 for _ in range(400)]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.05)
    level = verdicts(*lists_of([["b1"]] * 5 + [["a1"]] * 5), np.random.default_rng(0))[0]
    assert level.sessions_needed is None and level.to_json()["sessions_needed"] is None


def test_many_sessions_fit_into_memory() -> None:
    n = 50_000
    lists = {f"q{k}": TeamList(f"s{k}", ("live", "other"), {"a": LIVE, "b": CHALLENGER}) for k in range(n)}
    clicks = {(f"q{k}", "a" if k % 5 == 0 else "b") for k in range(n)}
    tracemalloc.start()
    try:
        (verdict,) = verdicts(lists, clicks, np.random.default_rng(0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000_000
    assert verdict.preference == pytest.approx(0.8)
    # 95 % of a mean of n: 1.96 standard errors to each side.
    error = 1.96 * (0.8 * 0.2 / n) ** 0.5
    assert (verdict.low, verdict.high) == pytest.approx((0.8 - error, 0.8 + error), abs=0.2 * error)


def test_one_busy_session_counts_once() -> None:
    unknown, clicks = lists_of([["b1"]] * 5, session="")
    (verdict,) = verdicts(unknown, clicks, np.random.default_rng(0))
    assert verdict.sessions == 5, "a list of nobody known is a session of its own"
    lists, clicks = lists_of([["b1", "b2", "b3"]] * 200, session="the same")
    verdict = verdicts(lists, clicks, np.random.default_rng(0))[0]
    assert (verdict.sessions, verdict.wins_challenger, verdict.clicks_challenger) == (1, 1, 600)
    assert verdict.winner == "undecided"


def test_clicks_on_what_was_not_shown_count_for_nobody() -> None:
    lists, _ = lists_of([[], []])
    verdict = verdicts(lists, {("q0", "never-shown"), ("unknown", "b1")}, np.random.default_rng(0))[0]
    assert (verdict.sessions, verdict.preference, verdict.p, verdict.winner) == (0, 0.5, 1.0, "undecided")


def test_rows_of_other_searches_are_passed_over() -> None:
    rows: list[dict[str, Any]] = [
        {"query_id": "1", "query_response_hit_ids": ["x"], "query_attributes": {"ssi_mode": "rerank"}},
        {"query_id": "2", "query_response_hit_ids": ["x"], "query_attributes": None},
        {
            "query_id": "3",
            "query_response_hit_ids": ["x", "y"],
            "query_attributes": {"ssi_teams": "A", "ssi_versions": "m n"},
        },  # a team is missing
        {"action_name": "click", "query_id": "3", "event_attributes": {"object": None}},
        {"action_name": "view", "query_id": "3", "event_attributes": {"object": {"object_id": "x"}}},
    ]
    assert team_lists(rows) == {}
    assert clicks_of(rows) == set()


def test_two_versions_in_one_list_and_the_report_of_their_clicks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = random_documents(60)
    live, other = model_of(documents, seed=1), model_of(documents, seed=2)
    served = serve(memory_engine(), "docs", tmp_path / "store", documents, live)
    for name, model in (("live", live), ("other", other)):
        save_model(model, tmp_path / "models" / name)
    from reranker.releases import Release, update_control, utc_now

    update_control(
        served.engine,
        "docs",
        lambda record: record.with_release(Release(live.model_id, live.encoder_id, {}, utc_now())).with_live(
            live.model_id
        ),
    )
    log = tmp_path / "ubi.ndjson"
    state = open_state(
        served.engine,
        ServiceSettings(index="docs", rerank=PATIENT),
        models=tmp_path / "models",
        sink=ImpressionSink(FileWriter(log)),
    )
    client = client_of(state, *all_parts(other.model_id[:12]))
    winner = {}
    for n in range(12):
        body = {"query": "word3 word11 word5", "session": f"s{n}", "explain": True}
        answer = client.post("/search", json=body).json()
        assert answer["mode"] == "interleave", answer
        assert answer["versions"] == [live.model_id, other.model_id]
        hits = answer["hits"]
        assert [hit["rank"] for hit in hits] == list(range(1, 11))
        assert len({hit["id"] for hit in hits}) == 10
        assert {hit["team"] for hit in hits} == {LIVE, CHALLENGER}
        assert all(hit["explanation"] for hit in hits)
        second = client.post("/search", json={**body, "from": 5, "size": 5}).json()
        assert [hit["id"] for hit in second["hits"]] == [hit["id"] for hit in hits[5:]]
        chosen = next(hit for hit in hits if hit["team"] == CHALLENGER)
        winner[answer["query_id"]] = chosen["id"]
        event = {
            "action_name": "click",
            "query_id": answer["query_id"],
            "session_id": f"s{n}",
            "event_attributes": {"object": {"object_id": chosen["id"]}, "position": {"ordinal": chosen["rank"]}},
        }
        assert client.post("/events", json={"events": [event]}).status_code == 202
    search = Reranker.search

    def fallen_back(reranker: Reranker, *arguments: Any, **options: Any) -> RerankedPage:
        page = search(reranker, *arguments, **options)
        return replace(page, reranked=reranker.model is not None and reranker.model.model_id == live.model_id)

    with monkeypatch.context() as patch:
        patch.setattr(Reranker, "search", fallen_back)
        answer = client.post("/search", json={"query": "word3 word11 word5", "session": "s"}).json()
    assert "versions" not in answer and not any("team" in hit for hit in answer["hits"]), "nobody is credited"
    state.sink.close(10.0)  # type: ignore[union-attr]
    result = CliRunner().invoke(main, ["interleave", "report", str(log), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    (verdict,) = json.loads(result.stdout)
    assert (verdict["wins_challenger"], verdict["wins_live"], verdict["winner"]) == (12, 0, "challenger")
    assert verdict["p"] == pytest.approx(2 / 2**12)
    shown = CliRunner().invoke(main, ["interleave", "report", str(log)], catch_exceptions=False)
    assert "is preferred" in shown.stdout
    n_rows = len(log.read_text().splitlines())
    assert f"rows: {n_rows} given, all used" in " ".join(shown.stderr.split())
    log.write_text(log.read_text() + "{broken\n")
    for options in ([], ["--json"]):
        bad = CliRunner().invoke(main, ["interleave", "report", str(log), *options], catch_exceptions=False)
        assert bad.exit_code == 8
        told = f"rows: {n_rows + 1} given = {n_rows} used + 1 left out: 1 not_json (line {n_rows + 1})"
        assert told in " ".join(bad.stderr.split())
        assert bad.stdout == (result if options else shown).stdout


def test_a_log_without_interleaving_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"query_id": "1"}\n')
    result = CliRunner().invoke(main, ["interleave", "report", str(tmp_path / "log")])
    assert result.exit_code == 3
    assert "--interleave" in result.stderr
    assert CliRunner().invoke(main, ["interleave", "report"]).exit_code == 2
