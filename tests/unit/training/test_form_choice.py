"""The form that is written is the best one on queries it was not fitted to, and said to be better only if it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    context,
    form_choice,
    from_judgements,
    from_links,
    train_model,
)
from reranker.training.context import Validator
from reranker.training.form_choice import MEASURES, FormChoice, MeasuredForms, ScoreForm, Values, _best, usual_form
from reranker.training.training_set import N_FOLDS, folds_of
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import Sources, synonyms, write_documents

WORDS, LEARNED, MEMORY = ScoreForm(False, False), ScoreForm(False, True), ScoreForm(True, False)
N_TOPICS = 30


def choice_of(
    values: Mapping[ScoreForm, Float64], usual: ScoreForm = WORDS, forms: Sequence[ScoreForm] = ()
) -> FormChoice:
    measured: Values = {form: dict.fromkeys(MEASURES, of) for form, of in values.items()}
    return _best(measured, usual, "held-out queries", forms or [*values])


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


def test_the_sentence_has_one_map_of_the_model_and_says_better_only_where_it_is_shown() -> None:
    rng = seeded_rng(1)
    base, noise = rng.random(200), rng.normal(0, 0.2, 200)
    base += 0.5 - base.mean()
    noise -= noise.mean()
    better = choice_of({WORDS: base, LEARNED: base + 0.1 + noise})
    assert "better than the lexical score on 200 held-out queries: MAP 0.6000 against 0.5000" in better.sentence
    assert "differences MAP +0.1000 ± 0.02" in better.sentence
    assert (f"{better.valid_map:.4f}", f"{better.lexical_map:.4f}") == ("0.6000", "0.5000")
    unclear = choice_of({WORDS: base, LEARNED: base + 0.004 + noise}, LEARNED).sentence
    assert "with no difference shown from the lexical score on 200" in unclear and "MAP +0.0040 ± 0.02" in unclear
    worse = choice_of({WORDS: base, LEARNED: base - 0.1 + noise}, LEARNED).sentence
    assert "the learned part does not pay" in worse and "It has MAP 0.5000;" in worse and "MAP -0.1000 ± 0.02" in worse
    remembering = choice_of({WORDS: base, MEMORY: base + 0.1}, MEMORY).sentence
    assert remembering.endswith("memory: MAP 0.6000, 0.5000 by the lexical score on 200 held-out queries.")


def test_the_only_form_is_said_to_be_that_and_compared_with_the_lexical_score() -> None:
    base = np.linspace(0.1, 0.9, 100)
    only = choice_of({WORDS: base, LEARNED: base - 0.1}, LEARNED, [LEARNED])
    assert only.form == LEARNED and only.lexical == WORDS, "the lexical score is measured but cannot be written"
    said = "learned part, the only form to choose, worse than the lexical score on 100 held-out queries: MAP 0.4000"
    assert said in only.sentence
    assert choice_of({WORDS: base}).sentence == (
        "The model is the lexical score, the only form to choose: MAP 0.5000 on 100 held-out queries."
    )


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
    return train_model(DocumentSource(path), judged()[1], config)


def test_no_query_is_scored_by_what_it_was_fitted_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[set[str], set[str], set[str]]] = []
    measured_forms = form_choice._measured_forms

    def noted(*args: Any) -> MeasuredForms:
        split, fitted = args[2:4]
        seen.append((set(split.valid.query_ids), set(split.train.query_ids), set(fitted.evidence.query_ids)))
        return measured_forms(*args)

    monkeypatch.setattr(form_choice, "_measured_forms", noted)
    model, report = train(write_documents(tmp_path / "docs.jsonl", judged()[0]))
    assert report.form.cross_fitted and len(seen) == N_FOLDS
    assert report.form.n_queries == sum(len(asked) for asked, _, _ in seen)
    for asked, trained, fitted in seen:
        assert asked and not asked & trained and fitted == trained
    assert sorted(sorted(task.query_ids) for task in report.form.tasks) == sorted(sorted(asked) for asked, _, _ in seen)
    assert {len(values) for values in report.form.values.values()} == {report.form.n_queries}
    assert model.metrics["form"] == report.form.to_json()
    assert model.metrics["memory"]["is_on"] == report.form.form.memory == (model.encoder.memory is not None)


def test_a_query_has_a_value_of_each_kind_of_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more queries than are scored, whole pages and their words are the same sample."""
    kinds: list[list[tuple[str, ...]]] = []
    validators = form_choice._validators

    def noted(*args: Any) -> list[Validator]:
        made = validators(*args)
        kinds.append([validator.task.query_ids for validator in made])
        return made

    monkeypatch.setattr(form_choice, "_validators", noted)
    monkeypatch.setattr(context, "MAX_QUERIES", 9)
    documents, links = synonyms()
    path = write_documents(tmp_path / "docs.jsonl", documents)
    config = TrainConfig(dim=4, epochs=1, memory="off")
    _, report = train_model(DocumentSource(path), from_links(links), config)
    assert all(len(whole) == 9 and whole == words for whole, words in kinds)
    assert report.form.n_queries == 9 and report.form.tasks[0].query_ids == kinds[-1][0]


def test_the_learned_part_is_left_out_where_it_does_not_help_and_kept_if_asked_for(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "docs.jsonl", judged()[0])
    model, report = train(path, memory="off")
    assert not report.form.form.learned
    assert model.U.shape == (0, 1) and report.scale == 0
    kept, report = train(path, memory="off", learned_part="on")
    assert report.form.form.learned and ", the only form to choose, " in report.form.sentence
    assert set(report.form.means) == {WORDS, LEARNED} and not report.form.cross_fitted, "nothing is fitted again"
    assert kept.U.shape[1] == 4
