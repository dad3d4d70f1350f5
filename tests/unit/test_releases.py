"""The control record: one guarded write a change."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines import Engine, WriteOp, WriteResult
from reranker.engines.retry import Retries
from reranker.errors import EngineRejected, EngineUnavailable, InputError, VersionConflict
from reranker.releases import (
    CONTROL_INDEX,
    ControlRecord,
    Release,
    default_store,
    forget_control,
    read_control,
    records_over,
    update_control,
    write_control,
)
from tests.engines.memory import memory_engine
from tests.unit.indexer.stand_ins import FakeTime

A, B = Release("a" * 64, "e" * 64, {"k": {"alpha": 0.5}}, "2026-01-01T00:00:00+00:00"), Release("b" * 64, "e" * 64)


def test_round_trip() -> None:
    engine = memory_engine()
    assert read_control(engine, "shop") == ControlRecord("shop")
    engine.create_index("shop", {})
    (uuid,) = engine.index_uuids("shop").values()
    record = ControlRecord(
        "shop", (A, B), A.model_id, ("x",), {"e": {"state": "running"}}, ("shop-000002",), ("shop-000001",), uuid
    )
    written = write_control(engine, record)
    assert read_control(engine, "shop") == written
    assert replace(written, seq_no=-1, primary_term=-1) == record


def test_a_write_over_something_newer_is_refused() -> None:
    engine = memory_engine()
    stale = write_control(engine, ControlRecord("shop"))
    write_control(engine, stale.with_release(A))
    with pytest.raises(VersionConflict, match="read it again"):
        write_control(engine, stale.with_release(B))
    with pytest.raises(VersionConflict):
        write_control(engine, ControlRecord("shop"))
    assert read_control(engine, "shop").releases == (A,)


def test_a_change_of_nothing_writes_nothing() -> None:
    engine = memory_engine()
    assert update_control(engine, "shop", lambda record: record).seq_no == -1
    assert engine.index_names(CONTROL_INDEX) == ()


def test_concurrent_changes_all_count() -> None:
    engine = memory_engine()

    def adding(name: str) -> Callable[[ControlRecord], ControlRecord]:
        return lambda record: record.with_release(Release(name, "e"))

    def add(name: str) -> None:
        for k in range(5):
            while True:
                try:
                    update_control(engine, "shop", adding(f"{name}{k}"))
                    break
                except VersionConflict:
                    continue

    threads = [threading.Thread(target=add, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_control(engine, "shop").releases) == 20


@pytest.mark.parametrize(
    "source",
    [{}, {"format": 2}, {"format": 1}, {"format": 1, "releases": 3, "live": None, "previous": [], "building": []}],
)
def test_a_foreign_record_is_told(source: dict[str, object]) -> None:
    engine = memory_engine()
    engine.create_index(CONTROL_INDEX, {"dynamic": False})
    engine.bulk(CONTROL_INDEX, [WriteOp("index", "shop", source)])
    with pytest.raises(InputError, match="shop"):
        read_control(engine, "shop")


def test_releases_are_named_by_a_unique_beginning() -> None:
    record = ControlRecord("shop", (A, B, replace(A, model_id="a" * 63 + "b")))
    assert record.release("bbbbbb") is B
    assert record.release("a" * 64) is A
    known = "registered: aaaaaaaaaaaa, bbbbbbbbbbbb, aaaaaaaaaaaa"
    for name, words in {
        "bbbbb": f"'bbbbb' does not name one version of index 'shop'; {known}: give 6 digits or more",
        "aaaaaa": f"'aaaaaa' does not name one version of index 'shop'; {known}: give 6 digits or more, as many",
        "c" * 12: f"'cccccccccccc' is no version of index 'shop'; {known}: register one",
        "": "'' does not name one version",
    }.items():
        with pytest.raises(InputError, match=words):
            record.release(name)


def kept_as(engine: Engine, name: str, **values: object) -> None:
    """Keep a record as programs did that filed it under the name that was typed."""
    if not engine.index_names(CONTROL_INDEX):
        engine.create_index(CONTROL_INDEX, {"dynamic": False})
    empty: dict[str, object] = {"live": None, "previous": [], "progress": {}, "building": [], "retired": []}
    releases = [{key: value for key, value in asdict(release).items() if key != "view"} for release in (A, B)]
    engine.bulk(CONTROL_INDEX, [WriteOp("index", name, {"format": 1, "releases": releases, **empty, **values})])


def test_records_kept_under_an_alias_are_taken_over_and_move_with_the_first_write() -> None:
    engine = memory_engine()
    engine.create_index("shop-1", {})
    engine.swap_alias("shop", "shop-1")
    engine.swap_alias("market", "shop-1")
    kept_as(engine, "shop", live=A.model_id, progress={"e": {"state": "complete"}}, retired=["shop-0"])
    for name in ("shop", "shop-1", "market"):
        record = read_control(engine, name)
        assert (record.key, record.live, record.releases, record.retired) == ("shop-1", A.model_id, (A, B), ("shop-0",))
    assert engine.get(CONTROL_INDEX, ["shop-1"]) == [None], "reading writes nothing"
    update_control(engine, "market", lambda record: record.with_live(B.model_id))
    assert engine.get(CONTROL_INDEX, ["shop"]) == [None]
    for name in ("shop", "shop-1", "market"):
        assert read_control(engine, name).live == B.model_id
        assert read_control(engine, name).previous == (A.model_id,)


def test_of_several_records_of_one_index_the_name_asked_for_decides() -> None:
    engine = memory_engine()
    engine.create_index("shop-1", {})
    engine.swap_alias("shop", "shop-1")
    kept_as(engine, "shop", live=A.model_id)
    kept_as(engine, "market", live=B.model_id)
    assert read_control(engine, "shop").previous == (), "market is another index, or none"
    engine.swap_alias("market", "shop-1")
    for name, live, other in (("shop", A, B), ("market", B, A)):
        record = read_control(engine, name)
        assert (record.live, record.previous) == (live.model_id, (other.model_id,)), "the other can be rolled back to"
        assert set(record.moved) == {"shop", "market"}


@pytest.mark.parametrize(("status", "fails"), [(403, True), (429, True), (404, False)])
def test_an_old_record_that_is_not_deleted_is_said(monkeypatch: pytest.MonkeyPatch, status: int, fails: bool) -> None:
    """A bulk is answered with 200 whatever became of its parts; a record that is not there (404) is gone already."""
    engine = memory_engine()
    record = write_control(engine, ControlRecord("shop"))
    bulk = engine.bulk

    def refusing(index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        return [
            WriteResult(op.id, status, "refused", "not yours") if op.action == "delete" else bulk(index, [op])[0]
            for op in ops
        ]

    monkeypatch.setattr(engine, "bulk", refusing)
    if not fails:
        forget_control(engine, ["market"])
        assert write_control(engine, replace(record, moved=("market",))).moved == ()
        return
    message = rf"'market' could not be deleted: {status} refused: not yours; .*'ssi-control'.* delete"
    for act in (
        lambda: forget_control(engine, ["market"]),
        lambda: write_control(engine, replace(record, moved=("market",)).with_release(A)),
    ):
        with pytest.raises(EngineRejected, match=message) as refusal:
            act()
        assert refusal.value.data["status"] == status
    assert read_control(engine, "shop").releases == (A,), "the record itself is written"


def test_an_alias_of_several_indexes_has_a_record_of_its_own() -> None:
    engine = memory_engine()
    for name in ("shop-1", "shop-2"):
        engine.create_index(name, {})
    engine.swap_alias("shop", "shop-1")
    write_control(engine, replace(read_control(engine, "shop"), releases=(A, B), live=A.model_id))
    engine.swap_alias("shop", "shop-2")
    record = read_control(engine, "shop")
    assert (record.key, record.live, record.uuid) == ("shop", A.model_id, "")
    update_control(engine, "shop", lambda record: record.with_live(B.model_id))
    assert read_control(engine, "shop").live == B.model_id
    assert read_control(engine, "shop-1").live == A.model_id, "a member is served by its own name as before"
    assert read_control(engine, "shop-2").live is None


def test_an_index_of_the_same_name_made_anew_has_nothing_live() -> None:
    engine = memory_engine()
    engine.create_index("shop", {})
    write_control(engine, replace(read_control(engine, "shop"), releases=(A,), live=A.model_id, progress={"e": {}}))
    engine.delete_index("shop")
    engine.create_index("shop", {})
    record = read_control(engine, "shop")
    assert (record.live, record.previous, record.progress, record.releases) == (None, (A.model_id,), {}, (A,))
    update_control(engine, "shop", lambda record: record.with_live(A.model_id))
    assert read_control(engine, "shop").live == A.model_id


def test_what_an_unreadable_neighbour_keeps_hinders_nobody() -> None:
    engine = memory_engine()
    for name in ("shop", "other"):
        engine.create_index(name, {})
    kept_as(engine, "other", format=7)
    assert read_control(engine, "shop").live is None
    with pytest.raises(InputError, match="'other'"):
        records_over(engine, ["other"])


@given(st.lists(st.sampled_from("abc"), max_size=8))
def test_live_and_previous_follow_promotions(names: list[str]) -> None:
    releases = tuple(Release(name * 8, "e") for name in "abc")
    record = ControlRecord("shop", releases)
    history: list[str] = []
    for name in names:
        if record.live and name * 8 != record.live:
            history.append(record.live)
        record = record.with_live(name * 8)
        assert record.live == name * 8
        assert list(record.previous) == history


def test_default_store_is_one_place_a_model_engine_and_index() -> None:
    places = {
        default_store(Path("/m/model"), spec, index)
        for spec in ("tantivy:/a", "tantivy:/b")
        for index in ("x", "y/../z")
    }
    assert len(places) == 4
    assert {place.parent for place in places} == {Path("/m/model.stores")}


def test_default_store_does_not_depend_on_how_a_folder_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    specs = ("tantivy:./a", "tantivy:a", f"tantivy:{tmp_path / 'a'}")
    assert len({default_store(model, spec, "x") for spec in specs for model in (Path("m"), tmp_path / "m")}) == 1


# --- an engine with retries


class Losing:
    """A memory engine whose answers to the next bulk requests are lost, after or before it carried them out.

    Parameters
    ----------
    *carried_out : bool
        One a lost answer.
    """

    def __init__(self, *carried_out: bool, between: Callable[[], None] = lambda: None) -> None:
        self.real = memory_engine()
        self.carried_out = list(carried_out)
        self.between = between
        self.writes = 0
        time = FakeTime()
        self.naps = time.naps
        self.retries = Retries(rng=random.Random(1), notice=lambda _: None, sleep=time.sleep, clock=time.clock)
        self.retries.answered = True

    def bulk(self, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        if not self.carried_out:
            return self.real.bulk(index, ops)
        if self.carried_out.pop(0):
            self.writes += 1
            self.real.bulk(index, ops)
        self.between()
        raise EngineUnavailable("no answer", status=None)

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


def losing(*carried_out: bool, between: Callable[[], None] = lambda: None) -> tuple[Losing, Engine]:
    engine = Losing(*carried_out, between=between)
    return engine, cast(Engine, engine)


def test_a_write_whose_answer_was_lost_is_not_made_again() -> None:
    watched, engine = losing(True)
    calls = 0

    def change(record: ControlRecord) -> ControlRecord:
        nonlocal calls
        calls += 1
        return replace(record, previous=(*record.previous, f"change {calls}"))

    written = update_control(engine, "shop", change)
    assert written.previous == ("change 1",)
    assert (calls, len(watched.naps)) == (1, 1)
    assert read_control(engine, "shop") == written


def test_a_write_that_was_not_carried_out_is_made_again() -> None:
    watched, engine = losing(False, False)
    written = update_control(engine, "shop", lambda record: record.with_release(A))
    assert written.releases == (A,)
    assert len(watched.naps) == 2
    assert read_control(engine, "shop") == written


def test_somebody_else_writing_after_the_lost_answer_is_no_conflict() -> None:
    def rival() -> None:
        update_control(watched.real, "shop", lambda record: record.with_release(B))

    watched, engine = losing(True, between=rival)
    assert update_control(engine, "shop", lambda record: record.with_release(A)).releases == (A, B)


def test_the_record_under_the_former_name_goes_also_where_the_answer_was_lost() -> None:
    def not_deleted() -> None:
        # The request wrote the record; its second part, the deletion, was not carried out.
        watched.real.bulk(CONTROL_INDEX, [WriteOp("index", "shop", former)])

    watched, engine = losing(between=not_deleted)
    engine.create_index("shop-1", {})
    engine.swap_alias("shop", "shop-1")
    update_control(engine, "shop", lambda record: record.with_release(A))
    stored = engine.get(CONTROL_INDEX, ["shop-1"])[0]
    assert stored is not None
    former = stored.source
    engine.bulk(CONTROL_INDEX, [WriteOp("index", "shop", former), WriteOp("delete", "shop-1")])
    watched.carried_out = [True]
    assert update_control(engine, "shop", lambda record: record.with_release(B)).releases == (A, B)
    assert engine.get(CONTROL_INDEX, ["shop"]) == [None]


def test_an_engine_without_retries_says_at_once_that_the_answer_was_lost() -> None:
    watched, engine = losing(True)
    del watched.retries
    with pytest.raises(EngineUnavailable):
        update_control(engine, "shop", lambda record: record.with_release(A))
    assert watched.naps == []


def test_an_engine_that_stays_away_ends_the_change() -> None:
    watched, engine = losing(*[False] * 500)
    with pytest.raises(EngineUnavailable, match=r"the change of the record of 'shop'.*start the same command"):
        update_control(engine, "shop", lambda record: record.with_release(A))
    assert watched.carried_out


def test_records_are_deleted_in_spite_of_a_lost_answer() -> None:
    watched, engine = losing()
    update_control(engine, "shop", lambda record: record.with_release(A))
    watched.carried_out = [True, False]
    forget_control(engine, ["shop"])
    assert read_control(engine, "shop").releases == ()
