"""Each trap of real click logs has a log here that falls into it, and the doctor names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.cli.pair_options import METHODS as METHODS_OF_COMMAND
from reranker.clicks.doctor import CHECKS, Diagnosis, Finding, RankRate, bars, examine, write_picture
from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import impressions
from reranker.clicks.propensities import (
    METHODS,
    MIN_RANDOMISED_CLICKS,
    Propensities,
    count_log,
    estimate_propensities,
)
from reranker.clicks.simulator import LogPlan, PositionBased, SimulatedLog, simulate, tables_of
from reranker.engines.protocol import WriteOp
from reranker.errors import ConfigError
from reranker.models.model_folder import save_model
from tests.engines.memory import memory_engine
from tests.reference.click_steps import count_clicks
from tests.unit.small_models import small_model

Tables = dict[str, dict[str, list[Any]]]
K, QUERIES = 5, 8
DOCUMENTS = [f"doc-{n}" for n in range(K * QUERIES)]


def simulated(**plan: Any) -> SimulatedLog:
    shown = np.arange(K * QUERIES).reshape(QUERIES, K)
    attraction = np.full(shown.shape, 0.6)
    options: dict[str, Any] = {"impressions": 2_000, "users": 300, "randomised": 0.6, **plan}
    return simulate(shown, attraction, PositionBased.power(K, 1.0), LogPlan(**options), np.random.default_rng(1))


def sound(**plan: Any) -> Tables:
    return tables_of(simulated(**plan), [f"query {n}" for n in range(QUERIES)], DOCUMENTS)


def examined(tables: Tables, folder: Path, **options: Any) -> Diagnosis:
    log = ClickLog(folder / "log", create=True)
    log.add([tables], "simulated")
    return examine(log, **options)


def finding(diagnosis: Diagnosis, code: str) -> Finding:
    return next(one for one in diagnosis.findings if one.code == code)


def changed(tables: Tables, table: str, column: str, change: Callable[[int, Any], Any]) -> None:
    tables[table][column] = [change(row, value) for row, value in enumerate(tables[table][column])]


def without(tables: Tables, table: str, keep: Callable[[int], bool]) -> None:
    rows = [row for row in range(len(tables[table]["query_id"])) if keep(row)]
    tables[table] = {name: [values[row] for row in rows] for name, values in tables[table].items()}


def test_a_sound_log_has_nothing_but_ok(tmp_path: Path) -> None:
    tables = sound()
    diagnosis = examined(tables, tmp_path)
    assert [one.sentence for one in diagnosis.findings if one.severity != "ok"] == []
    assert diagnosis.severity == "ok" and not diagnosis.sentences("unsound") and not diagnosis.sentences("warning")
    clicks = tables["events"]["action"].count("click")
    assert sum(one.clicked for one in diagnosis.rates) == clicks == diagnosis.numbers["clicks_on_lists"]
    assert [one.shown for one in diagnosis.rates] == [2_000] * K
    json.dumps(diagnosis.to_json(), allow_nan=False)


def test_it_says_how_many_shuffled_lists_are_still_to_come(tmp_path: Path) -> None:
    few = finding(examined(sound(), tmp_path / "few"), "exploration")
    lists, clicks = few.numbers["searches_randomised"], few.numbers["clicks_of_rarest_rank"]
    assert few.severity == "ok" and lists == pytest.approx(1_200, abs=100) and 50 < clicks < MIN_RANDOMISED_CLICKS
    needed = int(re.findall(r"about ([\d,]+) more", few.sentence)[0].replace(",", ""))
    # With as many more as it says each rank has its 400 clicks, within what chance does to the rarest rank.
    enough = examined(sound(impressions=round((lists + needed) / 0.6 * 1.1), users=1500), tmp_path / "enough")
    assert "are enough" in finding(enough, "exploration").sentence
    none = finding(examined(sound(randomised=0.0), tmp_path / "none"), "exploration")
    assert "No list was shuffled" in none.sentence and "ssi serve --explore 1" in none.sentence


def lucene_numbers(tables: Tables) -> None:
    changed(tables, "hits", "document", lambda row, _: str(row % 977))


def hits_of_another_kind(tables: Tables) -> None:
    changed(tables, "hits", "document", lambda _, value: f"sku/{value}")


def nothing_shown(tables: Tables) -> None:
    without(tables, "hits", lambda _: False)
    without(tables, "events", lambda row: tables["events"]["action"][row] == "click")


def no_clicks(tables: Tables) -> None:
    without(tables, "events", lambda row: tables["events"]["action"][row] != "click")


def few_clicks(tables: Tables) -> None:
    without(tables, "events", lambda row: tables["events"]["action"][row] != "click" or row % 40 == 0)


def queries_lost(tables: Tables) -> None:
    without(tables, "queries", lambda row: row % 4 > 0)


def no_texts(tables: Tables) -> None:
    for table in ("queries", "events"):
        changed(tables, table, "query", lambda row, value: value if row % 2 else "")
    changed(tables, "events", "query", lambda _row, _value: "")


def slipping_ordinals(tables: Tables) -> None:
    changed(tables, "events", "ordinal", lambda row, value: 1 + (value + row) % K)


def robot_agents(tables: Tables) -> None:
    robots = set(tables["queries"]["user"][:150])
    users = tables["queries"]["user"]
    changed(tables, "queries", "agent", lambda row, _: "HeadlessChrome" if users[row] in robots else "")


def nobody_named(tables: Tables) -> None:
    for table in ("queries", "events"):
        for column in ("user", "session"):
            changed(tables, table, column, lambda _row, _value: "")


def one_busy_user(tables: Tables) -> None:
    for table in ("queries", "events"):
        changed(tables, table, "session", lambda row, value: f"s{row}" if value < "su2" else value)
        changed(tables, table, "user", lambda _, value: "u0" if value < "u2" else value)


def undated(tables: Tables) -> None:
    for table in ("queries", "events"):
        changed(tables, table, "time", lambda _row, _value: None)


def first_rank_never_clicked(tables: Tables) -> None:
    ordinal, action = tables["events"]["ordinal"], tables["events"]["action"]
    without(tables, "events", lambda row: action[row] != "click" or ordinal[row] != 1)


def hardly_any_query_clicked(tables: Tables) -> None:
    tables["queries"]["query"] = [f"text {row}" for row in range(len(tables["queries"]["query"]))]
    changed(tables, "events", "query", lambda _row, _value: "")
    chosen = set(tables["queries"]["query_id"][:90])
    action, of = tables["events"]["action"], tables["events"]["query_id"]
    without(tables, "events", lambda row: action[row] != "click" or of[row] in chosen)


@pytest.mark.parametrize(
    ("spoil", "code", "severity", "remedy"),
    [
        (lucene_numbers, "lucene_ids", "unsound", "object_id_field"),
        (lucene_numbers, "shown_documents", "unsound", "object_id"),
        (hits_of_another_kind, "shown_documents", "unsound", "same kind of id"),
        (nothing_shown, "lists", "unsound", "query_response_hit_ids"),
        (nothing_shown, "clicks", "unsound", "ids of the shown documents"),
        (no_clicks, "clicks", "unsound", "action 'click'"),
        (few_clicks, "clicks", "warning", "longer"),
        (queries_lost, "queries", "warning", "Import ubi_queries"),
        (no_texts, "texts", "warning", "user_query"),
        (slipping_ordinals, "ordinals", "warning", "position.ordinal"),
        (robot_agents, "robots", "warning", "crawlers"),
        (nobody_named, "people", "warning", "client_id"),
        (one_busy_user, "people", "warning", "One person"),
        (undated, "values", "warning", "ISO 8601"),
        (first_rank_never_clicked, "shape", "warning", "Rank 1 is clicked less"),
        (hardly_any_query_clicked, "coverage", "warning", "every kind of search"),
    ],
)
def test_a_trap_is_named_with_its_remedy(
    spoil: Callable[[Tables], None], code: str, severity: str, remedy: str, tmp_path: Path
) -> None:
    tables = sound()
    spoil(tables)
    diagnosis = examined(tables, tmp_path)
    found = finding(diagnosis, code)
    assert (found.severity, remedy in found.sentence) == (severity, True), found
    assert (diagnosis.sentences("unsound") != ()) == (diagnosis.severity == "unsound")


def test_positions_from_0_are_moved_and_said(tmp_path: Path) -> None:
    tables = sound()
    changed(tables, "events", "ordinal", lambda _, value: value - 1)
    found = finding(examined(tables, tmp_path), "ordinals")
    assert found.severity == "ok" and "from 0 in 1 applications" in found.sentence
    assert found.numbers["positions_agreeing"] == found.numbers["positions_stated"] > 0


def test_a_few_positions_0_among_others_are_a_warning(tmp_path: Path) -> None:
    tables = sound()
    without(tables, "hits", lambda _: False)
    changed(tables, "events", "ordinal", lambda row, value: 0 if row % 100 == 0 else value)
    assert "Count from 1 everywhere" in finding(examined(tables, tmp_path), "ordinals").sentence


def test_without_results_impressions_say_what_was_shown(tmp_path: Path) -> None:
    tables = sound()
    without(tables, "hits", lambda _: False)
    diagnosis = examined(tables, tmp_path)
    assert finding(diagnosis, "lists").severity == "ok" and not diagnosis.sentences("unsound")


def test_an_engine_tells_numbers_that_are_ids_from_numbers_that_are_not(tmp_path: Path) -> None:
    tables = sound()
    for table in ("hits", "events"):
        changed(tables, table, "document", lambda _, value: value.removeprefix("doc-"))
    log = ClickLog(tmp_path / "log", create=True)
    log.add([tables], "simulated")
    with_ids, without_ids = memory_engine(), memory_engine()
    for engine, prefix in ((with_ids, ""), (without_ids, "x")):
        engine.create_index("shop", {"properties": {"title": {"type": "text"}}})
        engine.bulk("shop", [WriteOp("index", f"{prefix}{n}", {"title": "t"}) for n in range(len(DOCUMENTS))])
        engine.refresh("shop")
    assert finding(examine(log, with_ids, "shop"), "resolving").severity == "ok"
    lost = finding(examine(log, without_ids, "shop"), "resolving")
    assert lost.severity == "unsound" and lost.numbers == {"ids_asked": 40, "ids_found": 0}
    assert [one.code for one in examine(log).findings].count("resolving") == 0


def test_numbers_without_clicks_to_compare_are_a_warning(tmp_path: Path) -> None:
    tables = sound()
    without(tables, "events", lambda _: False)
    changed(tables, "hits", "document", lambda _, value: value.removeprefix("doc-"))
    assert finding(examined(tables, tmp_path), "lucene_ids").severity == "warning"


def test_an_empty_log_is_unsound_and_no_accident(tmp_path: Path) -> None:
    diagnosis = examined({}, tmp_path)
    assert diagnosis.severity == "unsound" and not diagnosis.rates
    assert bars(diagnosis.rates) == []
    assert len(diagnosis.findings) == len(CHECKS)  # without the one for an engine, with the click rates


def test_counts_of_a_log_are_those_of_its_impressions(tmp_path: Path) -> None:
    log = ClickLog(tmp_path / "log", create=True)
    log.add([sound()], "simulated")
    counted, told = count_log(log), count_clicks(impressions(log))
    for one, other in zip(counted.by_rank(), told.by_rank(), strict=True):
        np.testing.assert_array_equal(one, other)
    as_rows = [sorted(zip(c.rank, c.shown, c.clicked, c.randomised, strict=True)) for c in (counted, told)]
    assert as_rows[0] == as_rows[1]
    assert len(np.unique(counted.item)) == len(np.unique(told.item)) == K * QUERIES
    np.testing.assert_allclose(
        estimate_propensities(counted, "harvest").by_rank, estimate_propensities(told, "harvest").by_rank, rtol=1e-5
    )


def test_bars_are_as_long_as_the_rates() -> None:
    lines = bars([RankRate(1, 100, 80), RankRate(2, 100, 40), RankRate(3, 100, 1), RankRate(4, 0, 0)], width=10)
    assert [line.count("█") for line in lines] == [10, 5, 0, 0]
    assert "80.00%" in lines[0] and "1 of 100" in lines[2] and "▏" in lines[2]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["clicks", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = ClickLog(tmp_path / "clicks", create=True)
    log.add([sound()], "simulated")
    return log.folder


def test_the_command_says_what_it_found(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "clicks.html"
    result = run("doctor", str(folder), "--picture", str(page))
    assert result.exit_code == 0, result.output
    assert result.output.count("\nok ") + result.output.startswith("ok ") == len(CHECKS) + 1
    assert result.output.count("2,000\n") == K
    text = page.read_text(encoding="utf-8")
    assert "<svg" in text and "Clicked documents are among" in text and "http://" not in text.split("<svg")[0]


def test_the_gates_question_about_propensities_is_asked_before_it_refuses(tmp_path: Path) -> None:
    """One order a query: click rates take all merit for examination, and no gate believes them."""
    log = ClickLog(tmp_path / "clicks", create=True)
    log.add([sound(randomised=0.0)], "one order")
    result = run("doctor", str(log.folder), "--json")
    (told,) = [one for one in json.loads(result.stdout)["findings"] if one["severity"] != "ok"]
    assert told["code"] == "propensities" and "these clicks cannot tell orders apart" in told["sentence"]
    assert told["numbers"]["people"] > 150
    few = ClickLog(tmp_path / "few", create=True)
    few.add([sound(impressions=100)], "few people")
    told = json.loads(run("doctor", str(few.folder), "--json").stdout)["findings"][-1]
    assert told["sentence"].startswith("The gate of `ssi retrain` would refuse any model learned from this log: ")
    assert "are too few: 30 are needed" in told["sentence"]


def test_queries_without_results_or_clicks_are_listed_with_the_nearest_words(tmp_path: Path) -> None:
    """Query 0 is misspelled and finds nothing; nobody clicks for query 1; query 2 is of too few people."""
    names = ["rd shoos", "leather", "secret", "red shoes", *(f"query {n}" for n in range(4, QUERIES))]
    tables = tables_of(simulated(), names, DOCUMENTS)
    texts = dict(zip(tables["queries"]["query_id"], tables["queries"]["query"], strict=True))
    people = dict(zip(tables["queries"]["query_id"], tables["queries"]["user"], strict=True))
    few = sorted({people[query_id] for query_id, text in texts.items() if text == "secret"})[:4]
    asked, shown, acted = ([texts[query_id] for query_id in tables[name]["query_id"]] for name in tables)
    users = list(tables["queries"]["user"])
    without(tables, "queries", lambda row: asked[row] != "secret" or users[row] in few)
    without(tables, "hits", lambda row: shown[row] != "rd shoos")
    without(tables, "events", lambda row: acted[row] not in names[:3])
    log = ClickLog(tmp_path / "clicks", create=True)
    log.add([tables], "simulated")
    failed = examine(log).failed
    by_query = {one.query: one for one in failed}
    assert set(by_query) == {"rd shoos", "leather"}
    nothing, unclicked = by_query["rd shoos"], by_query["leather"]
    assert (nothing.has_results, nothing.nearest) == (False, ("red", "shoes"))
    assert nothing.searches == asked.count("rd shoos") and 5 <= nothing.people <= nothing.searches
    assert (unclicked.has_results, unclicked.nearest) == (True, ())
    page = run("doctor", str(log.folder)).stdout
    assert re.search(r"queries without results[^\n]*\n[^\n]*rd shoos .*red, shoes", page)
    assert re.search(r"queries without a click[^\n]*\n[^\n]*leather", page) and "secret" not in page
    save_model(small_model(), tmp_path / "model")
    told = json.loads(run("doctor", str(log.folder), "--json", "--model", str(tmp_path / "model")).stdout)
    assert {one["query"] for one in told["failed_queries"]} == set(by_query)


def test_an_unsound_log_ends_with_status_7(tmp_path: Path) -> None:
    tables = sound()
    lucene_numbers(tables)
    log = ClickLog(tmp_path / "clicks", create=True)
    log.add([tables], "simulated")
    result = run("doctor", str(log.folder), "--json")
    assert result.exit_code == 7
    told = json.loads(result.stdout)
    assert told["severity"] == "unsound"
    assert "the log is unsound: " in result.stderr


def test_camel_case_rows_are_read_and_said(tmp_path: Path) -> None:
    path = tmp_path / "ubi.ndjson"
    rows = []
    for n in range(20):
        rows.append(
            {
                "queryId": f"q{n}",
                "userQuery": "lamp",
                "clientId": f"c{n}",
                "timestamp": "2026-05-01T10:00:00Z",
                "queryResponse": {"queryResponseHitIds": ["a", "b"]},
            }
        )
        rows.append(
            {
                "actionName": "click",
                "queryId": f"q{n}",
                "clientId": f"c{n}",
                "timestamp": "2026-05-01T10:00:09Z",
                "eventAttributes": {"object": {"objectId": "b"}, "position": {"ordinal": 2}},
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = run("doctor", str(path), "--json")
    assert result.exit_code == 0, result.output
    found = next(one for one in json.loads(result.stdout)["findings"] if one["code"] == "spellings")
    assert found["severity"] == "warning" and found["numbers"]["camel_case"] == 40


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_of_the_same_log_are_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    diagnosis = Diagnosis((), {}, (RankRate(1, 100, 50), RankRate(2, 100, 20)))
    paths = [tmp_path / f"{n}.{suffix}" for n in range(2)]
    for path in paths:
        write_picture(diagnosis, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].stat().st_size > 2_000


def test_pictures_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.html"):
        write_picture(Diagnosis((), {}, ()), tmp_path / "clicks.pdf")


def test_findings_are_escaped_in_the_page(tmp_path: Path) -> None:
    bad = Diagnosis((Finding("x", "warning", "<script>alert(1)</script>"),), {}, ())
    write_picture(bad, tmp_path / "page.html")
    assert "<script>" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_engine_and_index_belong_together(folder: Path) -> None:
    result = run("doctor", str(folder), "--index", "shop")
    assert result.exit_code == 2 and "belong together" in result.output


def test_propensities_are_written_for_pairs(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "propensities.json"
    result = run("propensities", str(folder), "--out", str(file), "--json")
    assert result.exit_code == 0, result.output
    written = Propensities.from_json(json.loads(file.read_text(encoding="utf-8")))
    assert written == Propensities.from_json(json.loads(result.stdout))
    # The shuffled lists alone have too few clicks: auto takes them together with the others.
    assert (written.method, len(written.by_rank)) == ("harvest", K)
    told = json.loads(run("propensities", str(folder), "--method", "randomised", "--json").stdout)
    lists = f"from {told['n']:,} result lists"
    lines = run("propensities", str(folder), "--method", "randomised").output.splitlines()
    assert lists in lines[0] and lines[1].endswith(f" of {told['n']:,}") and told["n"] < 2_000
    assert told["n"] == pytest.approx(1_200, abs=100)
    result = run("pairs", str(folder), "--propensities", str(file), "--out", str(tmp_path / "pairs.parquet"))
    assert result.exit_code == 0, result.output
    for method in METHODS:
        assert run("propensities", str(folder), "--method", method).output.startswith(f"by {method}"), method


def test_the_command_offers_all_methods() -> None:
    assert set(METHODS_OF_COMMAND) == {"auto", *METHODS}
