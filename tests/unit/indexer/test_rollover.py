"""A rollover: the alias points to another concrete index, whose record of versions is another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from indexer.renewal import Target, sync
from indexer.versions import list_versions, promote
from reranker.cli.main import main
from reranker.engines import Engine, WriteOp, open_engine
from reranker.models.model_folder import save_model
from reranker.releases import CARRIED_FROM, ControlRecord, carried_over, read_control, update_control
from reranker.rerank import DEFAULT_ALPHA
from reranker.rerank.calibration.kept import Calibration
from tests.served import model_of, random_documents

DOCUMENTS = random_documents(20)
MODEL = model_of(DOCUMENTS)
KEY = f"{'0' * 16}:200"


def filled(engine: Engine, concrete: str, former: tuple[str, ...] = ()) -> None:
    engine.create_index(concrete, {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}})
    engine.bulk(concrete, [WriteOp("index", key, source) for key, source in DOCUMENTS.items()])
    engine.refresh(concrete)
    engine.swap_alias("shop", concrete, former)


def calibrated(record: ControlRecord, alpha: float = 0.978) -> ControlRecord:
    entry = {KEY: {"alpha": alpha}}
    return record.with_release(replace(record.release(MODEL.model_id), calibration=entry))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Return an engine whose alias `shop` points to `shop-1`, with a live and calibrated version."""
    with closing(open_engine(f"tantivy:{tmp_path / 'engine'}")) as engine:
        filled(engine, "shop-1")
        sync(Target(engine, "shop", MODEL))
        promote(engine, "shop", MODEL.model_id)
        update_control(engine, "shop", calibrated)
        yield engine


def alpha_of(engine: Engine, name: str) -> float | None:
    calibration = read_control(engine, name).calibration(MODEL.model_id)
    return Calibration.from_release(calibration).alphas.get(KEY)


def ssi(engine: Engine, *arguments: str) -> Result:
    where = ("--engine", engine.spec, "--index", "shop")
    return CliRunner().invoke(main, [*arguments, *where], catch_exceptions=False)


def test_after_a_rollover_sync_keeps_alpha_and_names_its_origin(engine: Engine) -> None:
    filled(engine, "shop-2", ("shop-1",))
    sync(Target(engine, "shop", MODEL))
    assert alpha_of(engine, "shop") == 0.978
    assert read_control(engine, "shop").calibration(MODEL.model_id)[KEY][CARRIED_FROM] == "index shop-1"
    promote(engine, "shop", MODEL.model_id)
    (state,) = list_versions(engine, "shop")
    assert (state.calibrated, state.calibrated_from) == (True, ("index shop-1",))
    assert json.loads(ssi(engine, "versions", "--json").stdout)["versions"][0]["calibrated_from"] == ["index shop-1"]
    assert "index shop-1" in " ".join(ssi(engine, "promote", MODEL.model_id).stdout.split())


def test_promote_carries_alpha_to_a_release_that_was_registered_without_it(engine: Engine) -> None:
    filled(engine, "shop-2", ("shop-1",))
    sync(Target(engine, "shop", MODEL))
    bare = replace(read_control(engine, "shop").release(MODEL.model_id), calibration={})
    update_control(engine, "shop", lambda record: record.with_release(bare))
    promote(engine, "shop", MODEL.model_id)
    assert alpha_of(engine, "shop") == 0.978


def test_a_second_rollover_still_names_the_index_of_the_fit(engine: Engine) -> None:
    for former, concrete in (("shop-1", "shop-2"), ("shop-2", "shop-3")):
        filled(engine, concrete, (former,))
        sync(Target(engine, "shop", MODEL))
    assert read_control(engine, "shop").calibration(MODEL.model_id)[KEY][CARRIED_FROM] == "index shop-1"
    first = carried_over({KEY: {"alpha": 0.5}}, "index shop-1")
    assert carried_over(first, "index shop-2") == first


def test_a_calibration_of_its_own_is_never_replaced(engine: Engine) -> None:
    filled(engine, "shop-2", ("shop-1",))
    sync(Target(engine, "shop", MODEL))
    update_control(engine, "shop", lambda record: calibrated(record, 0.3))
    promote(engine, "shop", MODEL.model_id)
    assert alpha_of(engine, "shop") == 0.3


def test_another_name_or_another_model_gets_nothing(engine: Engine) -> None:
    filled(engine, "other-1", ())
    engine.swap_alias("other", "other-1", ())
    sync(Target(engine, "other", MODEL))
    assert alpha_of(engine, "other") is None
    filled(engine, "shop-2", ("shop-1",))
    second = model_of(DOCUMENTS, n_dims=4)
    sync(Target(engine, "shop", second))
    assert not read_control(engine, "shop").calibration(second.model_id)


def test_a_live_version_without_a_calibration_is_warned_of_with_the_command(engine: Engine, tmp_path: Path) -> None:
    second = model_of(DOCUMENTS, n_dims=4)
    save_model(second, tmp_path / "second")
    sync(Target(engine, "shop", second))
    command = f"ssi calibrate --engine {engine.spec} --index shop --model {tmp_path / 'second'}"
    result = ssi(engine, "promote", "--model", str(tmp_path / "second"))
    told = " ".join(result.stderr.split())
    assert command in told and f"alpha = {DEFAULT_ALPHA}" in told
    assert "without a calibration" in " ".join(ssi(engine, "versions").stderr.split())
    assert json.loads(ssi(engine, "promote", second.model_id, "--json").stdout)["calibrated"] is False
    back = ssi(engine, "rollback")
    assert "without a calibration" not in back.stderr and json.loads(ssi(engine, "versions", "--json").stdout)["live"]


def test_the_fields_of_the_live_version_are_printed_for_a_new_mapping(engine: Engine) -> None:
    second = model_of(DOCUMENTS, n_dims=4)
    sync(Target(engine, "shop", second))
    printed = json.loads(ssi(engine, "versions", "--mapping").stdout)["properties"]
    prefix = f"ssi_{MODEL.encoder_id[:12]}_"
    assert printed and all(name.startswith(prefix) for name in printed), "another version is not live"
    assert printed == {name: engine.index_info("shop-1").properties[name] for name in printed}
    update_control(engine, "shop", lambda record: record.without_live())
    refused = ssi(engine, "versions", "--mapping")
    assert refused.exit_code == 3 and "no version of 'shop' is live" in refused.stderr
