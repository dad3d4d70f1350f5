"""The whole loop on the embedded engine: promoted, refused, nothing to learn, never anything in between."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from indexer.build import build_index
from indexer.renewal import Target, sync
from indexer.versions import list_versions, promote, register
from reranker.clicks.importing import import_files
from reranker.clicks.log import ClickLog
from reranker.clicks.privacy import Pseudonymiser
from reranker.clicks.schema import TABLES
from reranker.engines import open_engine
from reranker.engines.protocol import Engine, WriteOp, WriteResult
from reranker.errors import ArtifactError, ConfigError, GateRefused, NothingToLearn
from reranker.models.model_folder import load_model
from reranker.models.ranking_model import RankingModel
from reranker.models.training_queries import TrainingQueries
from reranker.releases import CARRIED_FROM, CONTROL_INDEX, read_control, update_control
from reranker.retrain.history import read_history
from reranker.retrain.learner import MARK, LinksAndJudgements
from reranker.retrain.loop import REFUSED, Retraining, folder_of, may_remember_the_forgotten
from reranker.retrain.result import RetrainResult
from reranker.training import Listener, from_links, from_pairs
from reranker.training.form_choice import ScoreForm
from reranker.training.remembering import MemoryTrial
from tests.engines.memory import memory_engine
from tests.live.helpers import write_lines
from tests.served import BM25
from tests.unit.retrain.shop import N_KINDS, N_VECTOR, Shop
from tests.unit.small_models import MEMORY_BM25, small_encoder, small_memory, small_model


class Watched:
    """An engine that counts the writes to each index, and can refuse documents."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.writes: Counter[str] = Counter()
        self.refused: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def bulk(self, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        self.writes[index] += len(ops)
        kept = [op for op in ops if op.id not in self.refused]
        done = {result.id: result for result in self._engine.bulk(index, kept)} if kept else {}
        return [done.get(op.id) or WriteResult(op.id, 400, "mapper_parsing_exception", "no") for op in ops]

    @property
    def of_documents(self) -> int:
        """Writes to anything but the record."""
        return sum(count for name, count in self.writes.items() if name != CONTROL_INDEX)


pytestmark = pytest.mark.slow


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    engine = open_engine(f"tantivy:{tmp_path / 'index'}")
    yield Shop(tmp_path, engine).fill()
    engine.close()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Give folders of click logs, which no test changes; the end of one says the opposite of what went before."""
    path = tmp_path_factory.mktemp("logs")
    shop = Shop(path, open_engine(f"tantivy:{path / 'index'}")).fill()
    shop.log(path / "useful")
    shop.log(path / "turning", turning=True)
    shop.engine.close()
    return {"useful": path / "useful", "turning": path / "turning"}


def retrain(shop: Shop, log: Path, engine: Any = None, **parts: Any) -> RetrainResult:
    settings = shop.settings(**parts.pop("settings", {}))
    return Retraining(engine or shop.engine, shop.index, ClickLog(log), settings, **parts).run()


def test_useful_clicks_go_live(shop: Shop, logs: dict[str, Path]) -> None:
    report = shop.path / "report.html"
    result = retrain(shop, logs["useful"], report=report)
    assert result.outcome == "promoted"
    assert result.exit_code == 0
    record = read_control(shop.engine, shop.index)
    assert record.live == result.candidate == result.live_after != result.live_before == shop.base.model_id
    assert record.previous == (shop.base.model_id,)
    model = load_model(result.model_path)
    assert result.model_path.name == model.model_id[:12]
    assert result.documents_written == len(shop.documents)
    assert shop.share_answered(model) > shop.share_answered(shop.base)
    assert result.data["judged"] < result.data["learned"]
    assert report.stat().st_size > 10_000
    json.dumps(result.to_json(), allow_nan=False)
    work = [path.name for path in (shop.models / ".retrain").rglob("*") if path.is_file()]
    assert work == ["lock"]


def test_a_worse_model_is_refused_and_nothing_changes(shop: Shop, logs: dict[str, Path]) -> None:
    watched = Watched(shop.engine)
    before = read_control(shop.engine, shop.index)
    result = retrain(shop, logs["turning"], watched)
    assert result.outcome == "refused"
    assert result.exit_code == 7
    assert result.reason
    assert read_control(shop.engine, shop.index) == before
    assert not watched.writes
    assert sorted(one.name for one in shop.models.iterdir()) == sorted(
        [
            ".retrain",
            shop.base_path.name,
            REFUSED,
        ]
    )
    assert load_model(shop.models / REFUSED).model_id == result.candidate


def test_a_refused_model_that_somebody_made_live_is_not_overwritten(shop: Shop, logs: dict[str, Path]) -> None:
    shop.base_path.rename(shop.models / REFUSED)
    result = retrain(shop, logs["turning"])
    assert result.outcome == "refused"
    assert load_model(shop.models / REFUSED).model_id == result.candidate != shop.base.model_id
    assert load_model(folder_of(shop.models, shop.base.model_id)).model_id == shop.base.model_id


def test_a_dry_run_leaves_the_record_alone(shop: Shop, logs: dict[str, Path]) -> None:
    before = read_control(shop.engine, shop.index)
    watched = Watched(shop.engine)
    result = retrain(shop, logs["useful"], watched, settings={"dry_run": True})
    assert result.outcome == "would promote"
    assert result.live_after == before.live
    assert read_control(shop.engine, shop.index) == before
    assert not watched.writes
    assert load_model(result.model_path).model_id == result.candidate


def test_the_query_side_alone_touches_no_document(shop: Shop, logs: dict[str, Path]) -> None:
    watched = Watched(shop.engine)
    result = retrain(shop, logs["useful"], watched, settings={"query_side_only": True})
    assert result.outcome == "promoted"
    assert watched.of_documents == 0
    assert watched.writes[CONTROL_INDEX] > 0
    assert result.documents_written == 0
    model = load_model(result.model_path)
    assert model.encoder_id == shop.base.encoder_id
    assert model.model_id != shop.base.model_id
    assert shop.share_answered(model) > shop.share_answered(shop.base)


@pytest.mark.parametrize("vectors", ["only", "learned"])
def test_words_of_given_vectors_are_learned_again_and_no_document_is_written(
    tmp_path: Path, logs: dict[str, Path], vectors: Literal["only", "learned"]
) -> None:
    with closing(open_engine(f"tantivy:{tmp_path / 'index'}")) as engine:
        shop = Shop(tmp_path, engine, lexical=BM25, vectors=vectors).fill()
        watched = Watched(engine)
        result = retrain(shop, logs["useful"], watched, settings={"query_side_only": True})
        assert result.outcome == "promoted"
        assert watched.of_documents == result.documents_written == 0
        model = load_model(result.model_path)
        assert model.encoder_id == shop.base.encoder_id
        assert model.word_encoder is not None and model.word_encoder.weight > 0
        word = model.query_vocabulary.ids(["wish1"])[0]
        documents = model.encoder.encode(list(shop.documents.values())).vectors[:, -N_VECTOR:]
        kinds = np.stack([documents[kind::N_KINDS].mean(axis=0) for kind in range(N_KINDS)])
        assert int(np.argmax(kinds @ model.word_encoder.U[word])) == 1
        assert shop.share_answered(model) > shop.share_answered(shop.base)


def test_a_retraining_of_both_sides_keeps_mean_and_axes_of_given_vectors(tmp_path: Path, logs: dict[str, Path]) -> None:
    with closing(open_engine(f"tantivy:{tmp_path / 'index'}")) as engine:
        shop = Shop(tmp_path, engine, lexical=BM25, vectors="learned").fill()
        result = retrain(shop, logs["useful"])
        assert result.outcome == "promoted"
        field, before = load_model(result.model_path).encoder.vector_field, shop.base.encoder.vector_field
        assert field is not None and before is not None
        np.testing.assert_array_equal(field.axes, before.axes)
        np.testing.assert_array_equal(field.mean, before.mean)


def forgetting(log: Path, folder: Path) -> Path:
    """Return a copy of a log from which one person was forgotten now."""
    shutil.copytree(log, folder)
    ClickLog(folder).forget("somebody", Pseudonymiser.repeatable())
    return folder


def test_a_model_may_remember_who_was_forgotten_since_it_was_made(logs: dict[str, Path], tmp_path: Path) -> None:
    forgotten = ClickLog(forgetting(logs["useful"], tmp_path / "log"))
    moment = max(forgotten.manifest.forgotten.values())
    encoder = small_encoder(lexical=MEMORY_BM25, memory=small_memory())
    hashed = TrainingQueries.of("0" * 32, ["a query"], [])

    def made(cutoff: int, **parts: Any) -> RankingModel:
        return small_model(training={MARK: {"cutoff": cutoff}}, **parts)

    assert may_remember_the_forgotten(made(moment, encoder=encoder), forgotten)
    assert not may_remember_the_forgotten(made(moment + 1, encoder=encoder), forgotten)
    assert not may_remember_the_forgotten(made(moment), forgotten)
    assert may_remember_the_forgotten(made(moment, training_queries=hashed), forgotten)
    assert not may_remember_the_forgotten(made(moment, encoder=encoder), ClickLog(logs["useful"]))
    assert not may_remember_the_forgotten(small_model(encoder=encoder), forgotten)


def test_a_retraining_remembers_what_two_people_clicked_until_they_are_forgotten(
    logs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is that of this night's clicks; a base made of clicks is not kept when somebody was forgotten."""

    def with_memory(run: Any, learned: Any, memory: MemoryTrial, encoder: Any) -> list[ScoreForm]:
        return [ScoreForm(memory.is_kept or memory.settings is not None, learned=True)]

    monkeypatch.setattr("reranker.training.form_choice.forms_of", with_memory)  # a memory, whatever it gains
    shop = Shop(tmp_path, open_engine(f"tantivy:{tmp_path / 'index'}"), lexical=BM25).fill()
    result = retrain(shop, logs["useful"], settings={"dry_run": True})
    model = load_model(result.model_path)
    assert model.encoder.memory is not None
    history = read_history(ClickLog(logs["useful"]), shop.settings())
    by_id: dict[str, set[int]] = {}
    for query, document in set(from_pairs(history.pairs).links()) & history.remembered:
        words = model.query_vocabulary.ids(model.encoder.analyzer.tokens([query])[0])
        by_id.setdefault(document, set()).update(words.tolist())
    rows = model.encoder.memory.counts(list(by_id), len(by_id))
    assert sorted(by_id) == list(model.encoder.memory.ids)
    assert [set(rows[place].indices.tolist()) for place in range(len(by_id))] == list(by_id.values())
    log = forgetting(logs["useful"], tmp_path / "log")
    said: list[str] = []
    for folder, is_new in ((logs["useful"], False), (log, True)):
        options = {"base": result.model_path, "query_side_only": True, "dry_run": True}
        again = retrain(shop, folder, settings=options, listener=Listener(say=said.append))
        assert (again.encoder != model.encoder_id) == is_new
        assert any("the document side is trained too" in text for text in said) == is_new
    shop.engine.close()


def test_every_night_starts_from_the_base(shop: Shop, logs: dict[str, Path]) -> None:
    first = retrain(shop, logs["useful"], settings={"query_side_only": True})
    assert first.outcome == "promoted"
    live = load_model(first.model_path)
    assert live.training[MARK]["base"] == shop.base.model_id
    second_log = shop.log(shop.path / "second", live, seed=2)
    second = retrain(shop, second_log.folder, settings={"query_side_only": True})
    assert second.live_before == first.candidate
    assert second.base == shop.base.model_id


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def doubled(log: Path, folder: Path) -> Path:
    """Return a log with every line twice, the second time in another order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = {
        name: pa.concat_tables([pq.read_table(file, columns=list(TABLES[name])) for file in ClickLog(log).files(name)])
        for name in TABLES
    }
    copy = ClickLog(folder, create=True)
    copy.add([{name: table.slice(0, table.num_rows // 2).to_pydict() for name, table in tables.items()}], "late")
    copy.add([{name: table.to_pydict() for name, table in tables.items()}], "once")
    backwards = {name: table.take(list(range(table.num_rows))[::-1]).to_pydict() for name, table in tables.items()}
    copy.add([backwards], "twice")
    return folder


def test_the_same_log_gives_the_same_bytes(shop: Shop, logs: dict[str, Path]) -> None:
    """Once more from nothing, once with a doubled and shuffled log, once beside an index filled in another order."""
    dry = {"dry_run": True}
    first = retrain(shop, logs["useful"], settings=dry)
    expected = files_of(first.model_path)
    shutil.rmtree(first.model_path)
    again = retrain(shop, logs["useful"], settings=dry)
    assert again.candidate == first.candidate
    assert files_of(again.model_path) == expected
    shutil.rmtree(first.model_path)
    from_doubled = retrain(shop, doubled(logs["useful"], shop.path / "doubled"), settings=dry)
    assert from_doubled.candidate == first.candidate
    other = Shop(shop.path / "other", memory_engine())
    other.documents = dict(reversed(other.documents.items()))
    other.base, other.base_path = shop.base, shop.base_path
    (shop.path / "other").mkdir(exist_ok=True)
    other.fill()
    elsewhere = retrain(other, logs["useful"], settings={**dry, "base": shop.base_path})
    assert elsewhere.candidate == first.candidate
    assert files_of(elsewhere.model_path) == expected


class Stop:
    """Interrupts a training after so many reports of progress."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def __call__(self, title: str, _done: int, _total: int | None) -> None:
        self.left -= title in ("trying settings", "comparing forms", "training")
        if not self.left:
            raise KeyboardInterrupt


def lines_of(log: Path) -> list[dict[str, Any]]:
    """Return a simulated log in the project's own form, a result list a line."""
    import pyarrow.parquet as pq

    tables = {
        name: [row for file in ClickLog(log).files(name) for row in pq.read_table(file).to_pylist()] for name in TABLES
    }
    lines = {
        row["query_id"]: {
            **{name: row[name] for name in ("query_id", "query", "user", "time", "randomised")},
            "session": row["session"],
            "results": [],
            "clicks": [],
        }
        for row in tables["queries"]
    }
    for hit in tables["hits"]:
        lines[hit["query_id"]]["results"].append(hit["document"])
    for event in tables["events"]:
        if event["action"] == "click":
            act = {"doc": event["document"], "rank": event["ordinal"], "time": event["time"]}
            lines[event["query_id"]]["clicks"].append(act)
    return list(lines.values())


def test_a_forgotten_person_was_never_there(shop: Shop, logs: dict[str, Path]) -> None:
    """Forgetting the busiest person and training again gives the bytes of a log without them."""
    lines = lines_of(logs["useful"])
    busiest, clicks = Counter(line["user"] for line in lines if line["clicks"]).most_common(1)[0]
    assert clicks > 5
    folders = {}
    for name, kept in (("all", lines), ("without", [line for line in lines if line["user"] != busiest])):
        file = shop.path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in kept))
        log = ClickLog(shop.path / name, create=True)
        if name == "without":
            shutil.copy(shop.path / "all" / "key", shop.path / "without" / "key")
        import_files(log, [file], log.privacy(), format="json-lines")
        folders[name] = log
    dry = {"dry_run": True}
    before = retrain(shop, folders["all"].folder, settings=dry)
    assert folders["all"].forget(str(busiest), folders["all"].privacy())["queries"] > 0
    after = retrain(shop, folders["all"].folder, settings=dry)
    found = files_of(after.model_path)
    shutil.rmtree(after.model_path)
    never = retrain(shop, folders["without"].folder, settings=dry)
    assert before.candidate != after.candidate == never.candidate
    assert files_of(never.model_path) == found


def test_a_run_that_was_stopped_comes_to_the_same_model(shop: Shop, logs: dict[str, Path]) -> None:
    dry = {"dry_run": True}
    expected = retrain(shop, logs["useful"], settings=dry).candidate
    for stop_after in (2, 12, 16):
        with pytest.raises(KeyboardInterrupt):
            retrain(shop, logs["useful"], settings=dry, listener=Listener(progress=Stop(stop_after)))
    assert [*shop.path.rglob("state.json")], "the folds that ended have left their states"
    result = retrain(shop, logs["useful"], settings=dry)
    assert result.candidate == expected
    assert not [*shop.path.rglob("state.json")]


def test_a_version_that_went_live_meanwhile_is_not_replaced(shop: Shop, logs: dict[str, Path]) -> None:
    other = Shop(shop.path / "x", shop.engine).base
    other = replace(other, training={"another": "model"})

    def meanwhile(text: str) -> None:
        if "preferences from" in text:
            register(shop.engine, shop.index, other, promote=True)

    with pytest.raises(GateRefused, match="nothing was promoted"):
        retrain(shop, logs["useful"], listener=Listener(say=meanwhile))
    assert read_control(shop.engine, shop.index).live == other.model_id


def test_the_same_between_the_vectors_and_the_last_write(shop: Shop, logs: dict[str, Path]) -> None:
    other = replace(shop.base, training={"another": "model"})

    def meanwhile(title: str, done: int, _total: int | None) -> None:
        if title == "writing vectors" and done:
            register(shop.engine, shop.index, other, promote=True)

    with pytest.raises(GateRefused, match="nothing was promoted"):
        retrain(shop, logs["useful"], listener=Listener(progress=meanwhile))
    assert read_control(shop.engine, shop.index).live == other.model_id


def test_an_index_with_fields_of_other_routes_gets_them_of_the_new_version(
    tmp_path: Path, logs: dict[str, Path]
) -> None:
    engine = open_engine(f"tantivy:{tmp_path / 'index'}")
    shop = Shop(tmp_path, engine).with_impacts()
    engine.create_index("shop", {"dynamic": False, "properties": {"title": {"type": "text"}, "text": {"type": "text"}}})
    build_index(engine, "shop", write_lines(tmp_path / "docs.jsonl", shop.documents), None)
    target = Target(engine, "shop", shop.base, ("fetch", "impacts"))
    assert sync(target).written == len(shop.documents)
    promote(engine, "shop", shop.base.model_id)
    result = retrain(shop, logs["useful"])
    assert result.outcome == "promoted"
    kept = next(batch[0].source for batch in engine.scan("shop"))
    parts = {name.split("_", 2)[2] for name in kept if name.startswith(f"ssi_{result.encoder[:12]}")}
    assert parts == {name.split("_", 2)[2] for name in kept if name.startswith(f"ssi_{shop.base.encoder_id[:12]}")}
    assert {"vec", "impacts", "impacts_hash"} <= parts


def test_vectors_of_texts_that_changed_are_renewed_before_their_version_goes_live(
    shop: Shop, logs: dict[str, Path]
) -> None:
    """Nobody ran `ssi sync`: a new query side alone would be served over vectors of what the texts were."""
    shop.engine.bulk(shop.index, [WriteOp("update", f"d00{k}", {"tag": "z", "title": "common new"}) for k in range(4)])
    shop.engine.refresh(shop.index)
    result = retrain(shop, logs["useful"], settings={"query_side_only": True})
    assert (result.outcome, result.documents_written) == ("promoted", 4)
    assert [state.stale for state in list_versions(shop.engine, shop.index)][-1] == 0


def test_documents_the_engine_refuses_keep_the_live_version(shop: Shop, logs: dict[str, Path]) -> None:
    watched = Watched(shop.engine)
    watched.refused = {"d007"}
    with pytest.raises(GateRefused, match="vectors of 1 documents"):
        retrain(shop, logs["useful"], watched)
    assert read_control(shop.engine, shop.index).live == shop.base.model_id


def test_the_calibration_of_the_live_release_is_taken_over(shop: Shop, logs: dict[str, Path]) -> None:
    entry = {"0123456789abcdef:50": {"alpha": 0.8, "measure": "AP"}}

    def calibrate(record: Any) -> Any:
        return record.with_release(replace(record.live_release, calibration=entry))

    update_control(shop.engine, shop.index, calibrate)
    result = retrain(shop, logs["useful"], settings={"query_side_only": True})
    release = read_control(shop.engine, shop.index).release(result.candidate)
    live = f"model {shop.base.model_id[:12]}"
    assert release.calibration == {key: {**value, CARRIED_FROM: live} for key, value in entry.items()}


def test_an_index_without_a_live_version_is_compared_with_the_engines_order(
    tmp_path: Path, logs: dict[str, Path]
) -> None:
    shop = Shop(tmp_path, memory_engine())
    build_index(shop.engine, shop.index, write_lines(tmp_path / "docs.jsonl", shop.documents), None)
    with pytest.raises(ConfigError, match="--warm-start"):
        retrain(shop, logs["useful"])
    result = retrain(shop, logs["useful"], settings={"base": shop.base_path})
    assert result.live_before is None
    record = read_control(shop.engine, shop.index)
    assert record.live == (result.candidate if result.outcome == "promoted" else None)
    assert result.verdict["measured"]


def test_nothing_to_learn_from(shop: Shop, logs: dict[str, Path]) -> None:
    before = read_control(shop.engine, shop.index)
    ClickLog(shop.path / "empty", create=True)
    with pytest.raises(NothingToLearn, match="The log contains no clicks"):
        retrain(shop, shop.path / "empty")
    with pytest.raises(NothingToLearn, match="newest slice"):
        retrain(shop, logs["useful"], settings={"newest": 0.9999})
    with pytest.raises(NothingToLearn, match="no shown list"):
        retrain(shop, logs["useful"], settings={"since": 4_000_000_000_000})
    assert read_control(shop.engine, shop.index) == before


def test_a_few_people_are_too_few(shop: Shop) -> None:
    log = shop.log(shop.path / "few", users=20, impressions=1000)
    result = retrain(shop, log.folder)
    assert result.outcome == "refused"
    assert "too few" in result.reason


def with_numbers_for_ids(log: Path, folder: Path) -> Path:
    """Return a log whose hits and clicks are named by Lucene's numbers."""
    import pyarrow.parquet as pq

    copy = ClickLog(folder, create=True)
    batch = {}
    for name in TABLES:
        rows = [pq.read_table(file, columns=list(TABLES[name])).to_pydict() for file in ClickLog(log).files(name)]
        batch[name] = {column: [value for part in rows for value in part[column]] for column in TABLES[name]}
        if "document" in batch[name]:
            batch[name]["document"] = [str(int(one[1:])) for one in batch[name]["document"]]
    copy.add([batch], "numbers")
    return folder


def test_an_unsound_log_is_refused_before_training(shop: Shop, logs: dict[str, Path]) -> None:
    log = with_numbers_for_ids(logs["useful"], shop.path / "numbers")
    said: list[str] = []
    with pytest.raises(GateRefused, match="Lucene"):
        retrain(shop, log, listener=Listener(say=said.append))
    assert said == []


def test_a_live_model_that_is_not_there_is_told(shop: Shop, logs: dict[str, Path]) -> None:
    moved = shop.path / "elsewhere"
    shop.base_path.rename(moved)
    with pytest.raises(ArtifactError, match="copy its folder there"):
        retrain(shop, logs["useful"])
    result = retrain(shop, logs["useful"], settings={"base": moved})
    assert result.base == shop.base.model_id
    assert result.outcome == "promoted"
    again = retrain(shop, logs["useful"], settings={"dry_run": True})  # the base is kept beside its models
    assert again.base == shop.base.model_id


def test_judged_queries_that_fall_stop_a_promotion(shop: Shop, logs: dict[str, Path]) -> None:
    """The team protects what the live model shows: clicks are better, the judged queries would fall."""
    judged = {
        query: {name: 1.0 for name in shown[:5]}
        for query, shown in zip(shop.queries, shop.shown(shop.base), strict=True)
    }
    other_evidence = LinksAndJudgements((), judged)
    result = retrain(shop, logs["useful"], other_evidence=other_evidence, settings={"dry_run": True})
    assert result.outcome == "refused"
    failed = {one["name"] for one in result.verdict["checks"] if not one["passed"]}
    assert failed == {"judgements"}


def test_links_are_mixed_in(shop: Shop, logs: dict[str, Path]) -> None:
    ids = list(shop.documents)
    links = from_links([(ids[n], ids[(n + 6) % 90]) for n in range(60)])
    plain = retrain(shop, logs["useful"], settings={"dry_run": True})
    mixed = retrain(shop, logs["useful"], other_evidence=LinksAndJudgements((links,)), settings={"dry_run": True})
    assert mixed.data["other"] == 60
    assert mixed.candidate != plain.candidate


def test_only_one_at_a_time(shop: Shop, logs: dict[str, Path]) -> None:
    said: list[str] = []

    def second(text: str) -> None:
        if "preferences from" in text:
            with pytest.raises(GateRefused, match="another `ssi retrain`"):
                retrain(shop, logs["useful"])
            said.append(text)

    retrain(shop, logs["useful"], settings={"dry_run": True}, listener=Listener(say=second))
    assert said


REPEATED = {"words_only": False}


def test_preferences_for_repeated_queries_go_live_and_write_no_document(shop: Shop, logs: dict[str, Path]) -> None:
    """The shop's queries are asked again and again: what was clicked for them is preferred, in the live words."""
    result = retrain(shop, logs["useful"], settings=REPEATED)
    assert (result.outcome, result.documents_written) == ("promoted", 0)
    model = load_model(result.model_path)
    assert model.encoder_id == shop.base.encoder_id and model.repeated is not None
    assert len(model.repeated) > len(shop.queries) / 2
    assert shop.share_answered(model) > shop.share_answered(shop.base) + 0.2
    history = read_history(ClickLog(logs["useful"]), shop.settings())
    for query, rated in history.repeated.items():
        people = {rating.document: (rating.clicks, rating.people) for rating in rated}
        for document, value in model.preferred(query).items():
            assert people[document][0 if value > 0 else 1] >= 2
    assert model.preferred("a query that nobody asked") == {}


def test_preferences_start_anew_each_night_and_keep_the_words_of_the_live_model(
    shop: Shop, logs: dict[str, Path]
) -> None:
    first = retrain(shop, logs["useful"], settings=REPEATED)
    again = retrain(shop, logs["useful"], settings=REPEATED)
    assert again.candidate == first.candidate, "the same clicks and words give the same model"
    assert again.base == first.base == shop.base.model_id
    turned = retrain(shop, logs["turning"], settings=REPEATED)
    assert (turned.outcome, turned.live_after) == ("refused", first.candidate)


def test_the_newest_slice_can_refuse_what_earlier_periods_prefer(shop: Shop, logs: dict[str, Path]) -> None:
    turned = retrain(shop, logs["turning"], settings=REPEATED)
    assert turned.outcome == "refused"
    failed = [check["name"] for check in turned.verdict["checks"] if not check["passed"]]
    assert "newest" in failed and "better" not in failed


def test_no_preference_is_kept_with_words_of_people_who_were_forgotten(
    shop: Shop, logs: dict[str, Path], tmp_path: Path
) -> None:
    first = retrain(shop, logs["useful"], settings=REPEATED)
    live = load_model(first.model_path)
    log = ClickLog(forgetting(logs["useful"], tmp_path / "log"))
    assert may_remember_the_forgotten(live, log)
    after = retrain(shop, tmp_path / "log", settings=REPEATED)
    assert after.encoder != live.encoder_id, "the only candidate is the trained model"
