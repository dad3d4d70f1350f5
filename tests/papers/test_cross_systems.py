"""Translated queries and mixtures: the identities that they must keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from papers.bilingual import BESIDE, TRANSLATIONS, bilingual_study, read_bilingual
from papers.mates_systems import CROSS_SYSTEMS, fitted_once, part
from papers.measures import links_loss
from papers.methods.lexical import OnView
from papers.methods.word_pairs import Bilinear, Mix, join_columns
from papers.plain_sgd import PlainData
from papers.registry import Budget, FitInput, Fitted
from papers.study import Study, StudyTrial, Texts
from tests.papers.bilingual_corpus import quiet

SMALL = Budget(n_dims=8, n_steps=20_000, every=10_000, patience=1, n_iterations=3, rates=(0.1,), grid=3)
BY_NAME = {one.name: one for one in CROSS_SYSTEMS}
MIXES = ("translated-lsi-tfidf", "cl-lsi-tfidf", "psi-cross-tfidf", "psi-cross-psi")


@pytest.fixture(scope="module")
def study(bilingual_folder: Path) -> Study:
    return bilingual_study(read_bilingual(bilingual_folder, quiet), 0)


def job_of(study: Study, loss: Callable[..., float] = links_loss, budget: Budget = SMALL) -> FitInput:
    return FitInput(study, budget, loss, np.random.default_rng(0), quiet)


def scores_of(fitted: Fitted, study: Study) -> np.ndarray:
    scores = fitted.scores(study, study.test)
    return scores.block(0, scores.shape[0])


def in_english(study: Study) -> Study:
    """Return the study with each query's own mate in the place of its translation: a perfect dictionary."""

    def spoken(texts: Texts, rows: np.ndarray) -> Texts:
        english = study.documents.rows[study.own[rows]]
        beside = join_columns(texts.rows, english)
        return replace(texts, more={**dict.fromkeys(TRANSLATIONS, english), BESIDE: beside})

    def trial(of: StudyTrial) -> StudyTrial:
        row_of = {one: row for row, one in enumerate(sorted(study_ids(study)))}
        return replace(of, queries=spoken(of.queries, np.array([row_of[one] for one in of.task.query_ids])))

    queries = spoken(study.queries, np.arange(len(study.queries)))
    return replace(study, queries=queries, valid=trial(study.valid), test=trial(study.test))


def study_ids(study: Study) -> tuple[str, ...]:
    return study.test.task.document_ids


@pytest.mark.parametrize("name", [one for one in BY_NAME if one not in MIXES])
def test_B15a_B15b_B15c_B15d_read_the_translation_and_say_so(study: Study, name: str) -> None:  # noqa: N802
    fitted = BY_NAME[name].fit(job_of(study))
    assert fitted.query_view == fitted.settings["translation"]
    assert fitted.query_view in TRANSLATIONS
    assert BY_NAME[name].lacks(study) == ()
    assert np.isfinite(scores_of(fitted, study)).all()


def test_B15a_B15b_under_a_perfect_dictionary_is_tfidf(study: Study) -> None:  # noqa: N802
    same = in_english(study)
    row_of = {one: row for row, one in enumerate(study_ids(study))}
    english = study.documents.rows[[row_of[one] for one in study.test.task.query_ids]]
    expected = Bilinear.lexical().score_matrix(english, study.documents.rows[study.test.pool])
    for name in ("translated-tfidf-ibm", "translated-tfidf-dice", "word-translated-tfidf-ibm"):
        np.testing.assert_allclose(scores_of(BY_NAME[name].fit(job_of(same)), same), expected, rtol=1e-5)


def test_B15c_under_a_perfect_dictionary_is_the_cosine_in_the_space_of_lsi(study: Study) -> None:  # noqa: N802
    same = in_english(study)
    fitted = BY_NAME["translated-lsi"].fit(job_of(same))
    scores = scores_of(fitted, same)
    row_of = {one: row for row, one in enumerate(study_ids(study))}
    own = [row_of[one] for one in same.test.task.query_ids]
    assert scores[np.arange(len(own)), own] == pytest.approx(1.0, abs=1e-5)  # a text is most like itself


def test_B15d_learns_on_english_queries_and_is_asked_in_translation(  # noqa: N802
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, PlainData]] = []

    def spy(shape: str, data: PlainData, **settings: object) -> Bilinear:
        seen.append((shape, data))
        return Bilinear.lexical()

    monkeypatch.setattr("papers.fitting.fit_plain", spy)
    fitted = BY_NAME["translated-psi"].fit(job_of(study))
    (shape, data), *_ = seen
    assert shape == "low_rank" and fitted.query_view == "texts-ibm"
    english = study.documents.view("once")[study.own]
    assert (data.q_rows.toarray() == english.toarray()).all()
    assert (data.own == study.own).all() and data.relevant.nnz == study.relevant.nnz and data.known is not None


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_B15c_B16a_B16b_B16c_at_the_ends_a_mixture_is_one_of_its_parts(  # noqa: N802
    study: Study, name: str, alpha: float
) -> None:
    job = job_of(study)
    fitted = BY_NAME[name].fit(job)
    mix = fitted.scorer
    assert isinstance(mix, Mix) and fitted.query_view == BESIDE
    end = replace(mix, weights=(alpha / 2.0, (1.0 - alpha) / 3.0))
    one = part(job, str(fitted.settings["first" if alpha else "second"]))
    expected = scores_of(one, study) / (2.0 if alpha else 3.0)
    np.testing.assert_allclose(scores_of(replace(fitted, scorer=end), study), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MIXES)
def test_B16a_B16b_B16c_alpha_is_the_best_and_parts_are_scaled_by_their_spread(  # noqa: N802
    study: Study, name: str
) -> None:
    job = job_of(study)
    fitted = BY_NAME[name].fit(job)
    parts = [part(job, str(fitted.settings[which])) for which in ("first", "second")]
    assert links_loss(study, study.valid, fitted) <= min(links_loss(study, study.valid, one) for one in parts) + 1e-9
    assert isinstance(fitted.scorer, Mix)
    alpha = fitted.settings["alpha"]
    queries = study.valid.queries.view(BESIDE)
    documents = study.documents.rows[study.valid.pool]
    for scorer, weight, share in zip(fitted.scorer.parts, fitted.scorer.weights, (alpha, 1 - alpha), strict=True):
        assert isinstance(scorer, OnView)
        spread = float(np.std(scorer.score_matrix(queries, documents)))
        assert weight == pytest.approx(share / spread, rel=0.15)


def test_parts_of_mixtures_are_fitted_once_and_as_by_themselves(study: Study) -> None:
    job = job_of(study)
    first, again = part(job, "cl-lsi"), part(job, "cl-lsi")
    assert first is again
    assert part(job_of(study, budget=replace(SMALL, n_dims=4)), "cl-lsi") is not first
    assert first.settings["dimensions"] in (8, 4, 2)
    alone, mix = fitted_once(BY_NAME["translated-lsi"]), fitted_once(BY_NAME["translated-lsi-tfidf"])
    assert alone.fit(job) is part(job, "translated-lsi")
    assert mix is BY_NAME["translated-lsi-tfidf"]


def test_rows_of_mixtures_hold_the_query_and_its_translation(study: Study) -> None:
    width = study.queries.rows.shape[1]
    ours = OnView(Bilinear.lexical(), width, width + study.documents.rows.shape[1])
    beside = study.test.queries.view(BESIDE)
    documents = sp.csr_matrix(study.documents.rows[:5])
    expected = Bilinear.lexical().score_matrix(study.test.queries.view("texts-ibm"), documents)
    np.testing.assert_allclose(ours.score_matrix(beside, documents), expected, rtol=1e-6)
