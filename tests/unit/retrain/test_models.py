"""Where models lie, and which one a retraining starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reranker.errors import ArtifactError, ConfigError
from reranker.models.model_folder import save_model
from reranker.retrain.learner import MARK
from reranker.retrain.loop import StoredModel, base_model, find_model, folder_of
from tests.engines.memory import memory_engine
from tests.unit.small_models import small_model

ENGINE = memory_engine()


def test_a_model_is_found_by_its_id_whatever_its_folder_is_called(tmp_path: Path) -> None:
    first, second = small_model(1), small_model(2)
    save_model(first, folder_of(tmp_path, first.model_id))
    save_model(second, tmp_path / "by hand")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{}")
    for model in (first, second):
        assert find_model(tmp_path, model.model_id, ENGINE).model.model_id == model.model_id
    assert find_model(tmp_path, second.model_id, ENGINE).path == tmp_path / "by hand"
    with pytest.raises(ArtifactError, match=small_model(3).model_id[:12]):
        find_model(tmp_path, small_model(3).model_id, ENGINE)
    with pytest.raises(ArtifactError):
        find_model(tmp_path / "absent", first.model_id, ENGINE)


def test_a_folder_of_that_name_with_another_model_is_passed_over(tmp_path: Path) -> None:
    first, second = small_model(1), small_model(2)
    save_model(second, folder_of(tmp_path, first.model_id))
    save_model(first, tmp_path / "other")
    assert find_model(tmp_path, first.model_id, ENGINE).path == tmp_path / "other"


def test_the_live_model_may_be_the_base(tmp_path: Path) -> None:
    model = small_model(1)
    save_model(model, tmp_path / "base")
    found = find_model(tmp_path / "models", model.model_id, ENGINE, (tmp_path / "base",))
    assert found.path == tmp_path / "base"


def test_the_base_is_never_what_a_retraining_made(tmp_path: Path) -> None:
    base = small_model(1)
    save_model(base, tmp_path / "first")
    made = replace(small_model(2), training={MARK: {"base": base.model_id}})
    live = StoredModel(made, tmp_path / "live")
    assert base_model(tmp_path, live, ENGINE, None).model.model_id == base.model_id
    taught = StoredModel(small_model(4), tmp_path / "taught")
    assert base_model(tmp_path, taught, ENGINE, None) is taught
    assert base_model(tmp_path, taught, ENGINE, tmp_path / "first").model.model_id == base.model_id
    with pytest.raises(ConfigError, match="--warm-start"):
        base_model(tmp_path, None, ENGINE, None)
