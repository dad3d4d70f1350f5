"""The form that is written is the best one on queries it was not fitted to, and said to be better only if it is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.arrays import Float64
from reranker.models.ranking_model import RankingModel
from reranker.training import (
    DocumentSource,
    TrainConfig,
    TrainingReport,
    TrainingSet,
    form_choice,
    from_judgements,
    from_links,
    train_model,
)
from reranker.training.form_choice import MEASURES, FormChoice, ScoreForm, Values, _best, usual_form
from reranker.training.training_set import N_FOLDS, folds_of
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import Sources, write_documents

WORDS, LEARNED, MEMORY = ScoreForm(False, False), ScoreForm(False, True), ScoreForm(True, False)
N_TOPICS = 30


def choice_of(values: Mapping[ScoreForm, Float64], usual: ScoreForm = WORDS) -> FormChoice:
    measured: Values = {form: dict.fromkeys(MEASURES, of) for form, of in values.items()}
    return _best(measured, usual, cross_fitted=False)


def test_the_usual_form_is_written_unless_another_is_surely_better() -> None:
    rng = seeded_rng(4)
    base, noise = np.linspace(0.1, 0.9, 100), rng.normal(0, 0.1, 100)
    noise -= noise.mean()  # its standard error is about .01
    for usual, other in ((WORDS, LEARNED), (LEARNED, WORDS), (MEMORY, LEARNED)):
        for gain, written in ((-0.05, usual), (0.0, usual), (0.01, usual), (0.03, other)):
            assert choice_of({usual: base, other: base + noise + gain}, usual).form == written
    assert choice_of({WORDS: base, MEMORY: base + 0.1, LEARNED: base + 0.1}).form == MEMORY, "of equals, fewer parts"


def test_the_usual_form_has_what_gained_on_such_evidence() -> None:
    forms = [ScoreForm(*parts) for parts in product([False, True], repeat=3)]
    links, texts = from_links([("a", "b")]), from_judgements({"q": {"b": 1.0}}, {"q": "words"})
    assert usual_form(forms, links) == ScoreForm(memory=True, learned=True, vectors=True)
    assert usual_form(forms, texts) == ScoreForm(memory=True, learned=False, vectors=True)
    assert usual_form([LEARNED, ScoreForm(True, True)], texts) == ScoreForm(True, True), "there is no other form"
    assert usual_form([WORDS], links) == WORDS


def test_the_sentence_names_the_difference_and_says_better_only_where_it_is_shown() -> None:
    rng = seeded_rng(1)
    base, noise = rng.random(200), rng.normal(0, 0.2, 200)
    noise -= noise.mean()
    better = choice_of({WORDS: base, LEARNED: base + 0.1 + noise}).sentence
    assert "better than the lexical score on 200 held-out queries: MAP +0.1000 ± 0.02" in better
    unclear = choice_of({WORDS: base, LEARNED: base + 0.004 + noise}, LEARNED).sentence
    assert "with no difference shown from the lexical score on 200" in unclear and "MAP +0.0040 ± 0.02" in unclear
    worse = choice_of({WORDS: base, LEARNED: base - 0.1 + noise}, LEARNED).sentence
    assert "the learned part does not pay" in worse and "MAP -0.1000 ± 0.02" in worse


def test_noise_is_hardly_ever_called_better_and_never_written_as_worse() -> None:
    rng = seeded_rng(2)
    said = []
    for _ in range(200):
        base = rng.random(120)
        choice = choice_of({WORDS: base, LEARNED: base + rng.normal(0, 0.1, 120)})
        assert choice.form == WORDS or choice.means[LEARNED]["AP"] > choice.means[WORDS]["AP"]
        said.append("better than" in choice.sentence)
    assert np.mean(said) <= 0.05


def test_folds_part_the_queries_and_keep_equal_texts_together() -> None:
    texts = {f"q{number}": f"Text {number // 3}" for number in range(60)}
    folds = folds_of(texts, N_FOLDS, seeded_rng(3))
    assert sorted(query for fold in folds for query in fold) == sorted(texts)
    assert {len(fold) for fold in folds} == {15}
    for fold in folds:
        assert all(f"q{3 * (int(query[1:]) // 3) + other}" in fold for query in fold for other in range(3))


def judged() -> tuple[Sources, TrainingSet]:
    """Return documents of topics, and two queries a topic, one of which finds it by a word of no document."""
    documents = [{"id": f"d{i}", "title": f"name{i}", "text": f"name{i} common text"} for i in range(N_TOPICS)]
    texts = {f"q{i}.{k}": f"name{i}" if k else f"other{i} name{i}" for i in range(N_TOPICS) for k in range(2)}
    grades = {query: {f"d{query[1:].partition('.')[0]}": 1.0} for query in texts}
    return documents, from_judgements(grades, texts)


def train(path: Path, **settings: Any) -> tuple[RankingModel, TrainingReport]:
    config = TrainConfig(dim=4, epochs=1, **settings)
    return train_model(DocumentSource(path), judged()[1], config, compare=False)


def test_no_query_is_scored_by_what_it_was_fitted_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[set[str], set[str], set[str]]] = []
    values = form_choice._values

    def noted(*args: Any) -> Values:
        split, fitted = args[2:4]
        seen.append((set(split.valid.query_ids), set(split.train.query_ids), set(fitted.evidence.query_ids)))
        return values(*args)

    monkeypatch.setattr(form_choice, "_values", noted)
    model, report = train(write_documents(tmp_path / "docs.jsonl", judged()[0]))
    assert report.form is not None and report.form.cross_fitted and len(seen) == N_FOLDS
    assert report.form.n_queries == sum(len(asked) for asked, _, _ in seen)
    for asked, trained, fitted in seen:
        assert asked and not asked & trained and fitted == trained
    assert model.metrics["form"] == report.form.to_json()
    assert model.metrics["memory"]["is_on"] == report.form.form.memory == (model.encoder.memory is not None)


def test_the_learned_part_is_left_out_where_it_does_not_help_and_kept_if_asked_for(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "docs.jsonl", judged()[0])
    model, report = train(path, memory="off")
    assert report.form is not None and not report.form.form.learned
    assert model.U.shape == (0, 1) and report.scale == 0
    kept, report = train(path, memory="off", learned_part="on")
    assert report.form is not None and report.form.form.learned and report.form.n_queries == 0
    assert kept.U.shape[1] == 4
