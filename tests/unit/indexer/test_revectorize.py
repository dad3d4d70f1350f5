"""Renewing under interference: every conflict is read again, nobody's write is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from indexer.bulk import RetryPolicy
from indexer.encoding import VersionEncoder, present_routes
from indexer.renewal import Renewer, RenewOptions, RenewReport, Target, follow, sync
from reranker.engines.protocol import Capabilities, Engine, WriteOp, WriteResult
from reranker.engines.vectors import field_name
from reranker.errors import EngineAuthError, EngineUnavailable
from reranker.formats import RejectLog
from reranker.releases import read_control
from reranker.store import VectorStore
from tests.served import model_of, random_documents, with_mean_vector
from tests.unit.indexer.stand_ins import FakeTime, ScriptedEngine

DOCUMENTS = random_documents(30)
MODEL = model_of(DOCUMENTS)
SRC = field_name(MODEL.encoder_id, "src")


def filled(*scripts: object) -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.create_index("shop", {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}})
    engine.real.bulk("shop", [WriteOp("index", key, source) for key, source in DOCUMENTS.items()])
    engine.scripts = list(scripts)  # type: ignore[arg-type]
    return engine


def renewer(engine: Engine, options: RenewOptions | None = None) -> Renewer:
    version = VersionEncoder(MODEL.encoder)
    engine.put_properties("shop", version.properties(engine.capabilities()))
    time = FakeTime()
    return Renewer(engine, "shop", version, options, sleep=time.sleep, clock=time.clock)


def all_current(engine: Engine) -> bool:
    documents = [document for batch in engine.scan("shop") for document in batch]
    return all(d.source.get(SRC) == MODEL.encoder.view.source_hash(d.source) for d in documents)


def edit_first(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
    """Somebody edits three documents and deletes one between our reading and our writing."""
    engine.bulk(index, [WriteOp("update", op.id, {"text": f"edited {op.id}"}) for op in ops[:3]])
    engine.bulk(index, [WriteOp("delete", ops[3].id)])
    return engine.bulk(index, ops)


def test_conflicts_are_read_again_and_the_edit_survives() -> None:
    engine = filled(edit_first)
    report = renewer(engine).run()
    # The deleted one is told as missing or as a conflict: both mean, nothing to write.
    assert report.conflicts + report.gone == 4
    assert report.stale == 0
    assert all_current(engine)
    assert engine.count("shop") == 29
    texts = [d.source["text"] for batch in engine.scan("shop") for d in batch]
    assert sum(text.startswith("edited") for text in texts) == 3


def test_conflicts_that_are_settled_are_not_counted_where_no_whole_pass_is_made() -> None:
    engine = filled(edit_first)
    report = renewer(engine).run(verify=False)
    assert (report.conflicts + report.gone, report.stale) == (4, 0)
    assert all_current(engine)


def test_many_documents_whose_words_are_replaced_in_two_steps_all_take_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("indexer.renewal.MAX_RETRIED_IDS", 10)
    capabilities = Capabilities("elasticsearch", "8.19.0", sparse_terms="sparse_vector")
    model = with_mean_vector(MODEL, DOCUMENTS)
    version = VersionEncoder.of_model(model, ("fetch", "impacts"), None, capabilities)
    engine = ScriptedEngine()
    engine.create_index("shop", {"dynamic": False, "properties": {SRC: {"type": "keyword"}}})
    engine.bulk("shop", [WriteOp("index", key, source) for key, source in DOCUMENTS.items()])
    Renewer(engine, "shop", version).run()
    engine.bulk("shop", [WriteOp("update", key, {"text": "word1 word2"}) for key in DOCUMENTS])
    # As a sync by a date does: those changed, and no look at the others afterwards.
    report = Renewer(engine, "shop", version).run(first={"match_all": {}}, verify=False)
    assert report.stale == 0
    assert all_current(engine)


def test_a_copy_with_the_fields_of_another_document_is_written_again() -> None:
    version = VersionEncoder(MODEL.encoder, capabilities=Capabilities("elasticsearch", doc_value_hits=True))
    engine = filled()
    engine.put_properties("shop", version.properties(Capabilities("elasticsearch", doc_value_hits=True)))
    Renewer(engine, "shop", version).run()
    (original,) = engine.get("shop", ["d1"])
    assert original is not None
    engine.bulk("shop", [WriteOp("index", "copy", original.source)])
    assert Renewer(engine, "shop", version).run().written == 1
    name = field_name(MODEL.encoder_id, "id")
    assert [each.source[name] for each in engine.get("shop", ["d1", "copy"]) if each is not None] == ["d1", "copy"]


def test_a_rival_that_never_rests_is_told_not_followed_for_ever() -> None:
    def rival(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        engine.bulk(index, [WriteOp("update", op.id, {"text": f"{op.if_seq_no}"}) for op in ops])
        return engine.bulk(index, ops)

    engine = filled()
    engine.steady = rival
    report = renewer(engine, RenewOptions(max_passes=3)).run()
    assert report.stale > 0
    assert report.passes == 3


def test_a_document_the_engine_refuses_is_kept_apart_and_not_tried_for_ever(tmp_path: Path) -> None:
    def refuse_d3(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        results = {r.id: r for r in engine.bulk(index, [op for op in ops if op.id != "d3"])}
        return [results.get(op.id) or WriteResult(op.id, 400, "document_parsing_exception", "no") for op in ops]

    engine = filled()
    engine.steady = refuse_d3
    version = VersionEncoder(MODEL.encoder, store_path=tmp_path / "store")
    with RejectLog(tmp_path / "r") as rejects, version:
        report = Renewer(engine, "shop", version).run(rejects=rejects)
        version.stored(["d3"])  # nothing of it waits any more
        version.publish()
    assert VectorStore.open(tmp_path / "store").get(["d3"]).places.tolist() == []
    assert (report.written, report.rejected, report.stale) == (29, 1, 0)
    assert '"d3"' in (tmp_path / "r").read_text()
    assert sum("d3" in sent for sent in engine.sent) == 1


def test_refused_documents_of_all_indexes_behind_an_alias_are_kept(tmp_path: Path) -> None:
    def refuses_d1(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        return [
            WriteResult(op.id, 400, "some_exception", "no") if op.id == "d1" else engine.bulk(index, [op])[0]
            for op in ops
        ]

    engine = ScriptedEngine()
    for name in ("shop-1", "shop-2"):
        engine.create_index(name, {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}})
        engine.bulk(name, [WriteOp("index", key, source) for key, source in DOCUMENTS.items()])
        engine.swap_alias("shop", name)
    engine.steady = refuses_d1
    report = sync(Target(engine, "shop", MODEL), RenewOptions(reject_path=tmp_path / "rejects"))
    assert report.rejected == 2
    assert len((tmp_path / "rejects").read_text().splitlines()) == 2


def test_every_pass_says_where_it_begins_and_how_much_it_reads() -> None:
    engine, told = filled(), []
    renewer(engine).run(first={"ids": {"values": [f"d{k}" for k in range(15)]}}, verify=False)
    sync(Target(engine, "shop", MODEL), progress=lambda *numbers: told.append(numbers))
    assert told == [(0, 15), (15, 15), (0, 30), (30, 30)]


def test_what_is_read_is_counted_also_where_no_whole_pass_is_made() -> None:
    engine = filled()
    report = renewer(engine).run(verify=False)
    assert (report.documents, report.written, report.idle) == (30, 30, False)
    engine.bulk("shop", [WriteOp("update", "d1", {"text": "edited"})])
    report = renewer(engine).run(first={"ids": {"values": ["d1"]}}, verify=False)
    assert report.written == 1
    report = renewer(engine).run(first={"match": {"text": "edited"}}, verify=False)
    assert (report.documents, report.written, report.idle) == (1, 0, True)


def test_a_killed_run_skips_what_is_current() -> None:
    engine = filled()
    half = renewer(engine)
    half.run(first={"ids": {"values": [f"d{k}" for k in range(15)]}}, verify=False)
    assert half.report.written == 15
    assert renewer(engine).run().written == 15


def test_a_stop_is_told_and_marked_as_unfinished() -> None:
    def refused(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        raise EngineAuthError("no rights", status=403)

    engine = filled()
    real = engine.real.bulk
    engine.real.bulk = lambda index, ops: refused(engine, index, ops) if index == "shop" else real(index, ops)  # type: ignore[method-assign]
    report = sync(Target(engine, "shop", MODEL), RenewOptions(policy=RetryPolicy(max_calls=1)))
    assert isinstance(report.stopped, EngineAuthError)
    assert report.to_json()["stopped"] == str(report.stopped)
    record = read_control(engine, "shop")
    assert record.progress[MODEL.encoder_id]["state"] == "running"
    assert record.releases == ()


def test_the_speed_limit_is_kept() -> None:
    engine = filled()
    version = VersionEncoder(MODEL.encoder)
    engine.put_properties("shop", version.properties(engine.capabilities()))
    time = FakeTime()
    Renewer(engine, "shop", version, RenewOptions(max_docs_per_s=10), sleep=time.sleep, clock=time.clock).run()
    assert time.now - 1000 == pytest.approx(3.0)


def test_routes_the_index_has_are_kept_up_and_a_new_one_rewrites_current_documents() -> None:
    engine = filled()
    beside = Target(engine, "shop", MODEL, ("beside",))
    assert sync(beside).written == 30
    assert present_routes(engine.index_info("shop").properties, MODEL.encoder_id) == ()
    fetch = Target(engine, "shop", MODEL, ("fetch",))
    assert sync(fetch).written == 30
    vec = field_name(MODEL.encoder_id, "vec")
    assert all(vec in d.source for batch in engine.scan("shop") for d in batch)
    # Asked for less, the fields that are there stay true.
    engine.real.bulk("shop", [WriteOp("update", "d1", {"text": "changed word1"})])
    before = engine.get("shop", ["d1"])[0].source[vec]
    sync(beside)
    assert engine.get("shop", ["d1"])[0].source[vec] != before


def test_following_survives_an_outage_and_nothing_else() -> None:
    reports: Iterator[RenewReport | Exception] = iter(
        [RenewReport(), EngineUnavailable("away"), RenewReport(stopped=EngineUnavailable("x"))]
    )

    def run() -> RenewReport:
        value = next(reports, EngineAuthError("no"))
        if isinstance(value, Exception):
            raise value
        return value

    naps: list[float] = []
    seen: list[bool] = []
    rounds = follow(run, 5.0, sleep=naps.append)
    seen.extend(next(rounds).stopped is None for _ in range(3))
    with pytest.raises(EngineAuthError):
        next(rounds)
    assert seen == [True, False, False]
    assert naps == [5.0] * 3
