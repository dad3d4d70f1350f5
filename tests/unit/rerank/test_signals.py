"""Signals: the table of a number, what is refused, the fit of planted weights, and that a search never suffers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.engines.protocol import WriteOp
from reranker.engines.vectors import lexical_body
from reranker.errors import ConfigError, EngineRejected, EngineUnavailable, InputError
from reranker.models.model_folder import save_model
from reranker.records import Hit, SearchAnswer
from reranker.releases import Release, read_control, update_control
from reranker.rerank import Calibration, Reranker, RerankSettings, blend, body_hash
from reranker.rerank.calibration.alpha import Fit, fit_alpha, keep_in_release
from reranker.rerank.calibration.fit_warnings import warnings_of
from reranker.rerank.calibration.kept import ChosenAlpha
from reranker.rerank.calibration.topics import Topic
from reranker.rerank.search import calibration_of
from reranker.rerank.signals import Signal, added, parse_signals, typed
from reranker.retrain.served_ranks import ServedModel, ServingScores
from tests.engines.memory import memory_engine
from tests.seeds import seeded_rng
from tests.served import SIGNAL_FIELDS, Served, model_of, random_documents, serve, with_numbers
from tests.unit.rerank.test_reranker import BODY

ROOT = Path(__file__).resolve().parents[3]
TABLE = ((0.0, 0.25), (10.0, 0.5), (30.0, 0.9))


def hit(**values: Any) -> Hit:
    return Hit("a", "docs", 1.0, fields=values)


# The table of a number.


def test_the_share_of_a_number_is_that_of_smaller_ones() -> None:
    numbers = np.array([0.0, 0, 0, 0, 0, 0, 1, 2, 3, 4])
    signal = Signal("votes").with_knots(numbers)
    # Six of ten are 0: half of their share; above each other number, those below and half of itself.
    assert signal.shares(np.array([0.0, 1, 2, 3, 4])) == pytest.approx([0.3, 0.65, 0.75, 0.85, 0.95])
    assert signal.shares(numbers).mean() == pytest.approx(0.5)
    assert signal.shares(np.array([0.5, -7, 1e30])) == pytest.approx([0.475, 0.3, 0.95])


@pytest.mark.parametrize("lower", [False, True])
def test_a_signal_is_monotone_and_means_one_half(lower: bool) -> None:
    rng = seeded_rng(0)
    for numbers in (rng.normal(size=500), rng.pareto(0.5, 500) - 3, rng.integers(-2, 2, 500) * 1.0):
        signal = Signal("x", lower=lower).with_knots(np.asarray(numbers, dtype=np.float64))
        shares = signal.shares(np.sort(numbers))
        steps = np.diff(shares) * (-1 if lower else 1)
        assert (steps >= 0).all() and shares.min() >= 0 and shares.max() <= 1
        assert shares.mean() == pytest.approx(0.5, abs=0.01)
        assert len(signal.knots) <= 32


def test_units_change_nothing() -> None:
    numbers = seeded_rng(1).pareto(1.0, 300)
    first, second = Signal("x").with_knots(numbers), Signal("x").with_knots(1000.0 * numbers - 40.0)
    assert first.shares(numbers) == pytest.approx(second.shares(1000.0 * numbers - 40.0), abs=1e-9)


def test_lower_is_the_other_way_round() -> None:
    numbers = np.array([-5.0, 0.0, 12.0, 40.0, np.nan])
    up, down = Signal("x", knots=TABLE), Signal("x", lower=True, knots=TABLE)
    assert up.shares(numbers) + down.shares(numbers) == pytest.approx(np.ones(5))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_no_number_counts_as_the_middle(number: float) -> None:
    assert Signal("x", knots=TABLE).shares(np.array([number])) == [0.5]


def test_outliers_do_not_move_the_others() -> None:
    numbers = seeded_rng(2).normal(size=1000)
    clean = Signal("x").with_knots(numbers)
    dirty = Signal("x").with_knots(np.append(numbers, [1e308, -1e308, np.inf, np.nan]))
    assert clean.shares(numbers) == pytest.approx(dirty.shares(numbers), abs=0.01)
    assert np.isfinite(dirty.shares(np.array([1e308, -1e308]))).all()
    extremes = Signal("x").with_knots(np.array([-1.7e308, 1.7e308]))
    assert extremes.shares(np.array([-1.7e308, 0.0, 1.7e308])) == pytest.approx([0.25, 0.5, 0.75])


def test_a_constant_tells_nothing() -> None:
    signal = Signal("x").with_knots(np.full(9, 3.0))
    assert (signal.shares(np.array([2.0, 3.0, np.nan])) == 0.5).all()
    with pytest.raises(InputError, match="no candidate of these queries has a number"):
        Signal("x").with_knots(np.array([np.nan, np.inf]))


@pytest.mark.parametrize(
    ("values", "number"),
    [
        ([3, 1.5], 1.5),
        ([True], 1.0),
        (["1577923200000"], 1577923200000.0),
        ([], np.nan),
        (None, np.nan),
        (["NaN"], np.nan),
        (["x", 2], 2.0),
        ([None, [1], {}], np.nan),
        ([10**400], np.nan),
        ([-0.5, float("nan")], -0.5),
    ],
)
def test_the_number_of_a_hit(values: Any, number: float) -> None:
    found = Signal("x", knots=TABLE).numbers([hit(x=values), hit()])
    np.testing.assert_array_equal(found, [number, np.nan])


def test_what_signals_add() -> None:
    signals = [Signal("a", weight=2.0, knots=TABLE), Signal("b", lower=True, weight=0.5, knots=TABLE)]
    assert added(signals, [hit(a=[10], b=[0]), hit(b=[20])]) == pytest.approx([1.0 + 0.375, 1.0 + 0.5 * 0.3])
    assert added([], [hit(), hit()]).tolist() == [0.0, 0.0]
    assert blend(np.array([1.0]), np.array([4.0]), 0.5, 2.0, np.array([0.25])).tolist() == [1.75]


# What is refused.


@pytest.mark.parametrize("text", ["", "a,", "a:up", ":lower", "a,,b", "a:lower:lower"])
def test_signals_that_are_not_legal_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="FIELD:lower"):
        parse_signals(text)


def test_signals_are_parsed() -> None:
    assert parse_signals("votes, price:lower,a.b:higher") == (
        Signal("votes"),
        Signal("price", lower=True),
        Signal("a.b"),
    )
    with pytest.raises(ConfigError, match="twice"):
        parse_signals("a,b,a:lower")
    with pytest.raises(ConfigError, match="at most 8"):
        parse_signals(",".join(f"f{i}" for i in range(9)))


GOOD: dict[str, Any] = Signal("price", "number", True, 0.5, TABLE).to_json()


def test_a_signal_is_kept_whole() -> None:
    assert Signal.from_json(json.loads(json.dumps(GOOD))) == Signal("price", "number", True, 0.5, TABLE)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        5,
        [],
        {},
        {**GOOD, "field": ""},
        {**GOOD, "field": 5},
        {**GOOD, "kind": "text"},
        {**GOOD, "weight": -1},
        {**GOOD, "weight": float("nan")},
        {**GOOD, "weight": "much"},
        {**GOOD, "knots": []},
        {**GOOD, "knots": 5},
        {**GOOD, "knots": [[1, 0.5], [1, 0.6]]},
        {**GOOD, "knots": [[1, 0.5], [2, 0.4]]},
        {**GOOD, "knots": [[1, 2]]},
        {**GOOD, "knots": [[float("inf"), 0.5]]},
        {**GOOD, "knots": [[1]]},
        {**GOOD, "lower": "yes"},
    ],
)
def test_a_damaged_signal_is_refused(entry: Any) -> None:
    with pytest.raises(ConfigError, match="ssi calibrate --signals"):
        Calibration.from_release({"0" * 16 + ":10": {"alpha": 0.5, "signals": [entry]}})


def test_entries_without_signals_load_as_before() -> None:
    calibration = Calibration.from_release({f"{body_hash(BODY)}:10": {"alpha": 0.5}})
    assert calibration.choose(BODY, 10) == ChosenAlpha(0.5, "calibrated", ())
    with pytest.raises(ConfigError, match="not a list"):
        Calibration.from_release({"0" * 16 + ":10": {"alpha": 0.5, "signals": {}}})


def test_the_fields_of_an_index_decide_what_may_be_a_signal() -> None:
    engine = memory_engine()
    engine.create_index(
        "one",
        {
            "properties": {
                **SIGNAL_FIELDS,
                "title": {"type": "text"},
                "tag": {"type": "keyword"},
                "dark": {"type": "long", "doc_values": False},
            }
        },
    )
    wanted = parse_signals("votes,released,shop.stock,price:lower")
    found = typed(wanted, engine, "one")
    assert [signal.kind for signal in found] == ["number", "date", "boolean", "number"]
    assert [signal.lower for signal in found] == [False, False, False, True]
    for name, message in {
        "title": "of type text",
        "tag": "of type keyword",
        "dark": "without doc values",
        "nothing": "no such field",
        "shop": "no such field",
    }.items():
        with pytest.raises(InputError, match=message) as told:
            typed((Signal(name),), engine, "one")
        assert "price, released, shop.stock, votes" in str(told.value)
    engine.create_index("two", {"properties": {"votes": {"type": "date"}, "price": {"type": "long"}}})
    engine.swap_alias("both", "one")
    engine.swap_alias("both", "two")
    assert typed((Signal("price"), Signal("released")), engine, "both")[1].kind == "date"
    with pytest.raises(InputError, match="a date and a number"):
        typed((Signal("votes"),), engine, "both")
    engine.close()


# The fit.


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    documents = random_documents(200)
    engine = memory_engine()
    folder = tmp_path_factory.mktemp("signals")
    model = model_of(documents, scale=0.8)
    yield serve(engine, "docs", folder, with_numbers(documents), model, properties=SIGNAL_FIELDS)
    engine.close()


def reranker_of(served: Served, calibration: Calibration | None = None, **settings: Any) -> Reranker:
    options = {"window": 60, "deadline_ms": None} | settings
    return Reranker(served.engine, "docs", served.model, calibration=calibration, settings=RerankSettings(**options))


def calibrated(alpha: float, *signals: Signal, window: int = 60) -> Calibration:
    key = Calibration.key(body_hash(BODY), window)
    return Calibration({key: alpha}, {key: signals})


def topics_by(served: Served, calibration: Calibration, n: int = 40) -> list[Topic]:
    """Return topics whose relevant documents are the first five under a calibration."""
    reranker = reranker_of(served, calibration)
    queries = [f"word{number % 20} word{(number * 7) % 30}" for number in range(n)]
    return [Topic(query, {hit.id: 1.0 for hit in reranker.search(query, BODY, size=5).hits}) for query in queries]


def planted(served: Served) -> Signal:
    """Return a price whose knots are of the documents, as a fit would find them."""
    prices = [np.min(source["price"]) for source in served.documents.values() if "price" in source]
    return Signal("price", lower=True, weight=2.0).with_knots(np.array(prices))


WANTED = "price:lower,votes,released,shop.stock"


@pytest.fixture(scope="module")
def fit(served: Served) -> Fit:
    topics = topics_by(served, calibrated(0.5, planted(served)))
    signals = typed(parse_signals(WANTED), served.engine, "docs")
    return fit_alpha(reranker_of(served), topics, "nDCG@10", BODY, signals=signals)


def test_the_weight_that_made_the_answers_is_found(fit: Fit) -> None:
    by_field = {found.signal.field: found for found in fit.signals}
    assert by_field["price"].signal.weight in (1.0, 2.0)
    assert by_field["price"].gain.mean > 0.05
    assert by_field["price"].gain.p < 1e-3
    for name in ("votes", "released", "shop.stock"):
        assert by_field[name].signal.weight <= 0.04
        assert abs(by_field[name].gain.mean) < 0.01
    assert fit.signals_gain is not None and fit.signals_gain.p < 1e-3
    assert fit.held_out > 0.9 and fit.fitted >= fit.held_out > fit.engine
    assert max(mean for _, mean in fit.curve) < fit.fitted
    assert by_field["price"].missing == pytest.approx(1 / 7, abs=0.05)


def test_what_counts_is_kept_and_served(served: Served, fit: Fit) -> None:
    model = served.model
    release = Release(model.model_id, model.encoder_id)
    update_control(served.engine, "docs", lambda record: record.with_release(release))
    keep_in_release(served.engine, "docs", model.model_id, BODY, 60, fit)
    (entry,) = read_control(served.engine, "docs").release(model.model_id).calibration.values()
    assert [signal["field"] for signal in entry["signals"]] == [signal.field for signal in fit.weighted()]
    calibration = calibration_of(served.engine, "docs", model.model_id)
    assert calibration.choose(BODY, 60) == ChosenAlpha(fit.alpha, "calibrated", fit.weighted())
    assert calibration.choose(BODY, 60, given=0.3) == ChosenAlpha(0.3, "given", ())
    # The order that is served is the one that was measured.
    topic = topics_by(served, calibrated(0.5, planted(served)), 1)[0]
    page = reranker_of(served, calibration).search(topic.query, BODY, size=5)
    assert len({hit.id for hit in page.hits} & set(topic.grades)) >= 4


def test_noise_loses_nothing_on_other_queries(served: Served) -> None:
    topics = topics_by(served, calibrated(0.5), 60)
    signals = typed(parse_signals("votes,released"), served.engine, "docs")
    alone = fit_alpha(reranker_of(served), topics, "nDCG@10", BODY)
    fit = fit_alpha(reranker_of(served), topics, "nDCG@10", BODY, signals=signals)
    assert fit.held_out == pytest.approx(alone.held_out, abs=0.01)
    assert fit.curve == alone.curve and fit.engine == alone.engine
    nothing = [found.signal.field for found in fit.signals if found.signal.weight == 0]
    assert all(any(f"'{name}': no weight gains" in told for told in warnings_of(fit)) for name in nothing)


def test_alpha_alone_is_the_fit_without_signals(served: Served) -> None:
    """A signal that is the same for all candidates leaves every figure as it is."""
    topics = topics_by(served, calibrated(0.5), 30)
    alone = fit_alpha(reranker_of(served), topics, "AP", BODY)
    assert "signals" not in alone.to_json() and "signals_gain" not in alone.to_json()
    served.engine.put_properties("docs", {"same": {"type": "long"}})
    served.engine.bulk("docs", [WriteOp("update", name, {"same": 7}) for name in served.documents])
    served.engine.refresh("docs")
    fit = fit_alpha(reranker_of(served), topics, "AP", BODY, signals=(Signal("same"),))
    assert fit.signals[0].signal.weight == 0.0 and fit.signals[0].gain == (0.0, 0.0, 1.0)
    assert replace(fit, signals=(), signals_gain=None) == alone
    with pytest.raises(InputError, match="'nowhere': no candidate"):
        fit_alpha(reranker_of(served), topics, "AP", BODY, signals=(Signal("nowhere"),))


def test_a_query_that_finds_nothing_is_a_query_like_others(served: Served) -> None:
    topics = [*topics_by(served, calibrated(0.5), 12), Topic("nowordhere", {"d1": 1.0})]
    for signals in ((), (Signal("votes"),)):
        fit = fit_alpha(reranker_of(served), topics, "nDCG@10", BODY, signals=signals)
        assert fit.n_queries == 13 and fit.fitted == pytest.approx(12 / 13, abs=0.01)


def test_the_warnings_of_signals(fit: Fit) -> None:
    price = fit.signals[0]
    rare = replace(fit, signals=(replace(price, missing=0.8),))
    assert any("80% of the candidates have no number" in told for told in warnings_of(rare))
    useless = replace(fit, signals=(replace(price, signal=replace(price.signal, weight=0.0)),), alpha=0.0)
    texts = " ".join(warnings_of(useless))
    assert "price:higher if lower is not better" in texts and "the engine's order" in texts
    assert "engine and signals" in " ".join(warnings_of(replace(rare, alpha=0.0)))


# A search.


def test_a_page_shows_its_own_fields_alone_and_explains_each_number(served: Served) -> None:
    signals = (planted(served), Signal("votes", weight=0.25, knots=TABLE))
    reranker = reranker_of(served, calibrated(0.5, *signals))
    for body in (BODY, {**BODY, "_source": False}, {**BODY, "fields": ["tag"]}):
        page = reranker.search("word3 word11", body, size=20, explain=True)
        assert page.reranked
        for hit, explanation in zip(page.hits, page.explanations, strict=True):
            assert set(hit.raw.get("fields", {})) == ({"tag"} if "fields" in body else set())
            kinds = [row.kind for row in explanation.contributions]
            assert kinds[-3:] == ["signal", "signal", "engine"]
            assert sum(row.value for row in explanation.contributions) == pytest.approx(hit.score, abs=1e-6)
    plain = reranker_of(served, calibrated(0.5)).search("word3 word11", BODY, size=20)
    given = reranker_of(served, calibrated(0.9, *signals), alpha=0.5).search("word3 word11", BODY, size=20)
    assert given.alpha_origin == "given"
    assert [hit.id for hit in given.hits] == [hit.id for hit in plain.hits] != [hit.id for hit in page.hits]


def test_pages_with_signals_are_one_permutation(served: Served) -> None:
    reranker = reranker_of(served, calibrated(0.0, planted(served)))
    whole = [hit.id for hit in reranker.search("word0 word1", BODY, size=80).hits]
    pages = [reranker.search("word0 word1", BODY, size=16, from_=first) for first in range(0, 80, 16)]
    assert [hit.id for page in pages for hit in page.hits] == whole and len(set(whole)) == len(whole)


class Refusing:
    """An engine that refuses doc values, as one does whose field has become a text."""

    def __init__(self, engine: Any, error: type[Exception]) -> None:
        self._engine, self._error = engine, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def search(self, index: str, body: Mapping[str, Any], **options: Any) -> SearchAnswer:
        if "docvalue_fields" in body:
            raise self._error("field [price] has no doc values")
        answer: SearchAnswer = self._engine.search(index, body, **options)
        return answer


def test_a_search_goes_on_where_the_numbers_can_no_longer_be_read(served: Served) -> None:
    own = served.engine.search("docs", {"query": {"match": {"text": "word3"}}, "size": 10})
    body = {"query": {"match": {"text": "{{query}}"}}}
    key = Calibration.key(body_hash(body), 60)
    fitted = Calibration({key: 0.5}, {key: (planted(served),)})
    settings = RerankSettings(window=60, deadline_ms=None)
    refusing: Any = Refusing(served.engine, EngineRejected)
    page = Reranker(refusing, "docs", served.model, calibration=fitted, settings=settings).search("word3", body)
    assert page.fallback and "ssi calibrate --signals" in str(page.reason)
    assert [hit.id for hit in page.hits] == [hit.id for hit in own.hits]
    away: Any = Refusing(served.engine, EngineUnavailable)
    with pytest.raises(EngineUnavailable):
        Reranker(away, "docs", served.model, calibration=fitted, settings=settings).search("word3", body)


def test_documents_found_by_their_vectors_come_with_their_numbers() -> None:
    body = lexical_body({"query": {"match_all": {}}}, ["a"], 1, False, [{"field": "price"}])
    assert body["docvalue_fields"] == [{"field": "price"}]
    assert "docvalue_fields" not in lexical_body({"query": {"match_all": {}}}, ["a"], 1, False)


def test_retraining_compares_the_order_that_is_served(served: Served) -> None:
    signals = (planted(served),)
    scores = ServingScores(
        served.engine, "docs", [ServedModel(served.model, 0.5), ServedModel(served.model, 0.5, signals)], BODY
    )
    ranked = scores.rank_window(["word3 word11"], 60)["word3 word11"]
    orders = [[ranked.documents[place] for place in np.argsort(ranks)] for ranks in ranked.ranks]
    for order, calibration in zip(orders, (calibrated(0.5), calibrated(0.5, *signals)), strict=True):
        page = reranker_of(served, calibration).search("word3 word11", BODY, size=60)
        assert order == [hit.id for hit in page.hits]
    assert orders[0] != orders[1]


# The command.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("command")
    documents = with_numbers(random_documents(120))
    (path / "docs.jsonl").write_text("".join(f"{json.dumps({'id': n, **d})}\n" for n, d in documents.items()))
    save_model(model_of(documents), path / "model")
    cheap = sorted(documents, key=lambda name: np.min(documents[name].get("price", 1e9)))[:40]
    (path / "queries.tsv").write_text("".join(f"q{i}\tword{i} word0\n" for i in range(20)))
    (path / "qrels.tsv").write_text("".join(f"q{i}\t{name}\t1\n" for i in range(20) for name in cheap))
    assert command(path, "index", str(path / "docs.jsonl")).exit_code == 0
    return path


def command(path: Path, name: str, *arguments: str) -> Any:
    common = ["--engine", f"tantivy:{path / 'index'}", "--index", "docs", "--model", str(path / "model")]
    return CliRunner().invoke(main, [name, *arguments, *common], catch_exceptions=False)


def test_the_command_fits_keeps_and_explains(folder: Path) -> None:
    files = ["--qrels", str(folder / "qrels.tsv"), "--query-file", str(folder / "queries.tsv")]
    table = command(folder, "calibrate", *files, "--signals", "price:lower,votes", "--dry-run")
    assert table.exit_code == 0, table.stderr
    assert "signal price (lower is better), weight" in table.stdout and "gain from all signals" in table.stdout
    fit = json.loads(command(folder, "calibrate", *files, "--signals", "price:lower,votes", "--json").stdout)
    price = next(signal for signal in fit["signals"] if signal["field"] == "price")
    assert price["weight"] > 0 and price["gain"]["p"] < 0.01 and fit["signals_gain"]["mean"] > 0.1
    page = json.loads(command(folder, "search", "word3 word0", "--explain", "--json").stdout)
    rows = [row for hit in page["hits"] for row in hit["explanation"] if row["kind"] == "signal"]
    assert {row["document_word"] for row in rows} >= {"price"}
    assert "its number in" in command(folder, "search", "word3 word0", "--explain").stdout


def test_the_command_fits_a_probability_of_judgements_alone(folder: Path) -> None:
    files = ["--qrels", str(folder / "qrels.tsv"), "--query-file", str(folder / "queries.tsv"), "--dry-run"]
    refused = command(folder, "calibrate", "--links", str(folder / "qrels.tsv"), "--probability")
    assert refused.exit_code == 2 and "needs judgements" in refused.stderr
    # What is cheap is wanted here, whatever the words: f may tell nothing of it, and then that is said.
    told = command(folder, "calibrate", *files, "--probability")
    assert ("with probability 1 / (1 + e^-(" in told.stdout) if told.exit_code == 0 else "--probability" in told.stderr
    assert told.exit_code in (0, 3)


@pytest.mark.slow
def test_the_study_of_signals_runs_small(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "signals.py"), "--sets", "shop", "--seeds", "1", "--small"]
    subprocess.run([*program, "--json", str(tmp_path / "signals.json")], check=True, stdout=subprocess.DEVNULL)
    rows = {row["signals"]: row for row in json.loads((tmp_path / "signals.json").read_text("utf-8"))["rows"]}
    assert list(rows) == ["own", "noise", "both"]
    assert rows["own"]["with_signals"]["gain"] > 0 and any(rows["own"]["weights"].values())
    assert abs(rows["noise"]["with_signals"]["gain"]) < 0.02
    assert rows["own"]["true_order"] > rows["own"]["engine"]


@pytest.mark.parametrize(
    ("signals", "code", "message"),
    [
        ("", 2, "FIELD:lower"),
        ("title", 3, "of type text"),
        ("nothing", 3, "no such field"),
        ("votes,votes", 2, "twice"),
    ],
)
def test_bad_signals_have_a_message_and_an_exit_code(folder: Path, signals: str, code: int, message: str) -> None:
    files = ["--qrels", str(folder / "qrels.tsv"), "--query-file", str(folder / "queries.tsv")]
    result = command(folder, "calibrate", *files, "--signals", signals)
    assert result.exit_code == code, result.output
    assert message in result.stderr and "Traceback" not in result.output
