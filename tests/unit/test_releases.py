"""The control record: one guarded write a change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines import WriteOp, open_engine
from reranker.errors import InputError, VersionConflict
from reranker.releases import (
    CONTROL_INDEX,
    ControlRecord,
    Release,
    default_store,
    read_control,
    update_control,
    write_control,
)

A, B = Release("a" * 64, "e" * 64, {"k": {"alpha": 0.5}}, "2026-01-01T00:00:00+00:00"), Release("b" * 64, "e" * 64)


def test_round_trip() -> None:
    engine = open_engine("memory:")
    assert read_control(engine, "shop") == ControlRecord("shop")
    record = ControlRecord(
        "shop", (A, B), A.model_id, ("x",), {"e": {"state": "running"}}, ("shop-000002",), ("shop-000001",)
    )
    written = write_control(engine, record)
    assert read_control(engine, "shop") == written
    assert replace(written, seq_no=-1, primary_term=-1) == record


def test_a_write_over_something_newer_is_refused() -> None:
    engine = open_engine("memory:")
    stale = write_control(engine, ControlRecord("shop"))
    write_control(engine, stale.with_release(A))
    with pytest.raises(VersionConflict, match="read it again"):
        write_control(engine, stale.with_release(B))
    with pytest.raises(VersionConflict):
        write_control(engine, ControlRecord("shop"))
    assert read_control(engine, "shop").releases == (A,)


def test_a_change_of_nothing_writes_nothing() -> None:
    engine = open_engine("memory:")
    assert update_control(engine, "shop", lambda record: record).seq_no == -1
    assert engine.index_names(CONTROL_INDEX) == ()


def test_concurrent_changes_all_count() -> None:
    engine = open_engine("memory:")

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
    engine = open_engine("memory:")
    engine.create_index(CONTROL_INDEX, {"dynamic": False})
    engine.bulk(CONTROL_INDEX, [WriteOp("index", "shop", source)])
    with pytest.raises(InputError, match="shop"):
        read_control(engine, "shop")


def test_releases_are_named_by_a_unique_beginning() -> None:
    record = ControlRecord("shop", (A, B))
    assert record.release("aaaaaa") is A
    for name in ("aaaaa", "c" * 12, ""):
        with pytest.raises(InputError, match="aaaaaaaaaaaa, bbbbbbbbbbbb"):
            record.release(name)


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
