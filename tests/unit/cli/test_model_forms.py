"""What the commands say of models whose document vectors are no sums of words' rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.errors import ConfigError
from reranker.models.model_folder import save_model
from reranker.training.linear import check_trainable
from reranker.words import related_words
from tests.unit.small_models import small_encoder, small_model


@pytest.mark.parametrize("form", ["cubic", "unit"])
def test_word_pairs_of_no_document_are_refused_with_a_way_out(form: str, tmp_path: Path) -> None:
    save_model(small_model(encoder=small_encoder(form=form)), tmp_path / "m")
    result = CliRunner().invoke(main, ["words", "pairs", "--query", "ash tree", "--model", str(tmp_path / "m")])
    assert result.exit_code == 2
    told = " ".join(result.output.split())
    assert f"this model has '{form}'" in told
    assert "--explain" in told


@pytest.mark.parametrize("form", ["cubic", "unit"])
def test_only_linear_models_are_trained_on(form: str) -> None:
    check_trainable(small_model())
    model = small_model(encoder=small_encoder(form=form))
    with pytest.raises(ConfigError, match=f"document form '{form}'.*starts from linear models only"):
        check_trainable(model)
    with pytest.raises(ConfigError, match="needs the document form 'linear'"):
        related_words(model, "ash")
