"""Systems of mates: what each hands to its fit, what it tunes, and where it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from papers import mates_systems
from papers.bilingual import mates_study, read_bilingual
from papers.mates_systems import MATES_SYSTEMS, as_bilinear
from papers.measures import hits, mates_loss, mates_measure, one_way_measure, valid_measure
from papers.methods.projection import Projection
from papers.methods.projections import fit_cca, fit_cl_lsi, fit_opca, fit_pca
from papers.methods.s2net import S2NetSettings
from papers.methods.topics import TopicModel
from papers.methods.word_pairs import Bilinear
from papers.rank_measures import mate_ranks
from papers.registry import Budget, FitInput, Fitted
from papers.study import Study, StudyTrial
from reranker.errors import TrainingError
from tests.papers.bilingual_corpus import quiet

SMALL = Budget(n_dims=8, n_steps=4_000, every=2_000, patience=1, n_iterations=3, rates=(0.1,), grid=2)
BY_NAME = {one.name: one for one in MATES_SYSTEMS}


@pytest.fixture(scope="module")
def study(bilingual_folder: Path) -> Study:
    return mates_study(read_bilingual(bilingual_folder, quiet), 0)


def job_of(study: Study, loss: Callable[..., float] = mates_loss, budget: Budget = SMALL) -> FitInput:
    return FitInput(study, budget, loss, np.random.default_rng(0), quiet)


def rising() -> Callable[..., float]:
    """Return a loss that finds everything worse than what came before: the first one judged is kept."""
    numbers: Iterator[int] = count()
    return lambda *_: float(next(numbers))


def mates(study: Study) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    left, right = mates_systems.mates_of(study)
    return left.rows, right.rows


@pytest.mark.parametrize("name", BY_NAME)
def test_every_system_fits_scores_and_says_what_it_chose(study: Study, name: str) -> None:
    fitted = BY_NAME[name].fit(job_of(study))
    scores = fitted.scores(study, study.test).block(0, 3)
    assert scores.shape == (3, len(study.test.pool))
    assert np.isfinite(scores).all() and np.ptp(scores) > 0
    assert fitted.settings["validation loss"] == pytest.approx(mates_loss(study, study.valid, fitted))


@pytest.mark.parametrize("name", ["cl-lsi", "mates-opca", "mates-cca", "translated-likelihood", "mates-s2net"])
def test_what_learns_from_mates_finds_more_of_them_than_chance(study: Study, name: str) -> None:
    fitted = BY_NAME[name].fit(job_of(study))
    found = float(np.mean(mates_measure(study, study.test, fitted)["MRR"]))
    chance = float(np.mean(1.0 / np.arange(1, len(study.test.pool) + 1)))
    assert found > 3 * chance


def test_B07_cl_lsi_is_the_fit_of_the_mates_cut_to_the_best_size(study: Study) -> None:  # noqa: N802
    fitted = BY_NAME["cl-lsi"].fit(job_of(study))
    x, y = mates(study)
    whole = fit_cl_lsi(x, y, 8, rng=np.random.default_rng(1))
    assert isinstance(fitted.scorer, Projection)
    np.testing.assert_allclose(fitted.scorer.A, whole.A[:, : fitted.scorer.n_dims], atol=1e-5)
    losses = {size: mates_loss(study, study.valid, Fitted(whole.first(size))) for size in (8, 4, 2)}
    assert fitted.settings["dimensions"] == min(losses, key=lambda size: losses[size])


@pytest.mark.parametrize(("name", "setting"), [("mates-opca", "noise"), ("mates-cca", "ridge")])
def test_B08_B09_solved_in_the_reduced_space_is_the_fit_of_the_words(study: Study, name: str, setting: str) -> None:  # noqa: N802
    fitted = BY_NAME[name].fit(job_of(study, rising()))
    x, y = mates(study)
    rng = np.random.default_rng(1)
    value = fitted.settings[setting]
    if setting == "noise":
        expected = fit_opca(x, y, 8, rng=rng, noise=value)
    else:
        expected = fit_cca(x, y, 8, rng=rng, ridge=value)
    rows = study.test.queries.rows, study.documents.rows[study.test.pool]
    np.testing.assert_allclose(fitted.scorer.score_matrix(*rows), expected.score_matrix(*rows), atol=2e-3)


@pytest.mark.parametrize("name", ["mates-plsa", "mates-jplsa", "mates-cplsa"])
def test_B11_B12_B13_topics_are_of_the_mates_counts(study: Study, name: str) -> None:  # noqa: N802
    fitted = BY_NAME[name].fit(job_of(study))
    assert (fitted.query_view, fitted.document_view) == ("counts", "counts")
    assert isinstance(fitted.scorer, TopicModel)
    left, right = mates_systems.mates_of(study)
    assert fitted.scorer.phi_q.shape == (8, len(left.words))
    assert fitted.scorer.phi_d.shape == (8, len(right.words))
    assert fitted.scorer.similarity == "jensen_shannon"


def test_B10_pca_is_of_each_language_alone(study: Study) -> None:  # noqa: N802
    fitted = BY_NAME["mates-pca"].fit(job_of(study, rising()))
    for matrix, rows in zip((fitted.scorer.A, fitted.scorer.B), mates(study), strict=True):  # type: ignore[attr-defined]
        np.testing.assert_allclose(matrix, fit_pca(rows, 8, rng=np.random.default_rng(1)).A, atol=1e-5)


def test_B14_hdlr_learns_from_mates_and_as_many_wrong_pairs_in_the_space_of_opca(  # noqa: N802
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = mates(study)
    row_of = {row.tobytes(): place for place, row in enumerate(x.toarray())}
    mate_of = {row.tobytes(): place for place, row in enumerate(y.toarray())}

    def spy(
        start: Projection, left: sp.csr_matrix, right: sp.csr_matrix, similar: np.ndarray, *_: object, **__: object
    ) -> Projection:
        np.testing.assert_allclose(start.A, mates_systems.start_of("opca", study, 2).A)
        pairs = zip(left.toarray(), right.toarray(), similar, strict=True)
        assert all((row_of[a.tobytes()] == mate_of[b.tobytes()]) == alike for a, b, alike in pairs)
        assert similar.sum() * 2 == len(similar) == 2 * x.shape[0]
        return start

    monkeypatch.setattr(mates_systems, "fit_hdlr", spy)
    assert BY_NAME["mates-hdlr"].fit(job_of(study)).settings["pairs"] == 2 * x.shape[0]


@pytest.mark.parametrize(
    ("name", "kind"), [("mates-s2net", "opca"), ("mates-s2net-cl-lsi", "cl-lsi"), ("mates-s2net-pca", "pca")]
)
def test_M24_s2net_without_gain_is_its_start(study: Study, name: str, kind: str) -> None:  # noqa: N802
    fitted = BY_NAME[name].fit(job_of(study, rising()))
    start = mates_systems.start_of(kind, study, 8)
    assert isinstance(fitted.scorer, Projection)
    np.testing.assert_allclose(fitted.scorer.A, start.A, rtol=1e-6)
    np.testing.assert_allclose(fitted.scorer.B, start.B, rtol=1e-6)


def test_M21_s2net_lowers_the_loss_of_its_start_on_mates(study: Study) -> None:  # noqa: N802
    x, y = mates(study)
    start = mates_systems.start_of("cl-lsi", study, 8)
    fitted = BY_NAME["mates-s2net-cl-lsi"].fit(job_of(study, budget=replace(SMALL, n_iterations=20)))
    assert mate_ranks(fitted.scorer, x, y).mrr > mate_ranks(start, x, y).mrr


def test_M22_M23_M25_options_reach_the_training(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    seen = []

    def spy(data: object, start: Projection, settings: S2NetSettings, **_: object) -> Projection:
        seen.append((start.activation, settings.loss, settings.beta, settings.gamma, settings.max_iterations))
        return start

    monkeypatch.setattr("papers.fitting.fit_s2net", spy)
    for name in ("mates-s2net", "mates-s2net-squared", "mates-s2net-beta", "mates-s2net-sigmoid"):
        BY_NAME[name].fit(job_of(study, budget=replace(SMALL, grid=1)))
    assert seen == [
        ("linear", "logistic", 0.0, 10.0, 3),
        ("linear", "squared", 0.0, 10.0, 3),
        ("linear", "logistic", mates_systems.BETAS[1], 10.0, 3),
        ("sigmoid", "logistic", 0.0, 10.0, 3),
    ]


def test_M21_M23_gamma_and_beta_are_chosen_by_a_quarter_of_the_iterations(  # noqa: N802
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, float, int]] = []

    def spy(data: object, start: Projection, settings: S2NetSettings, **_: object) -> Projection:
        seen.append((settings.gamma, settings.beta, settings.max_iterations))
        # The second gamma with the last beta finds every mate, all others what a smaller space finds.
        return start if seen[-1][:2] == (20.0, mates_systems.BETAS[-1]) else start.first(1)

    monkeypatch.setattr("papers.fitting.fit_s2net", spy)
    fitted = BY_NAME["mates-s2net-beta"].fit(job_of(study, budget=replace(SMALL, grid=3, n_iterations=40)))
    assert seen == [*((g, b, 10) for g in (10.0, 20.0) for b in mates_systems.BETAS), (20.0, 1e-5, 40)]
    assert fitted.settings["settings tried"] == 6
    assert fitted.settings["iterations at most"] == 40


def test_M26_psi_without_gain_is_the_scaled_start(study: Study) -> None:  # noqa: N802
    fitted = BY_NAME["psi-cross-cl-lsi"].fit(job_of(study, rising()))
    start = as_bilinear(mates_systems.start_of("cl-lsi", study, 8), study, mates_systems.SCALES[0])
    assert isinstance(fitted.scorer, Bilinear) and fitted.scorer.identity == 0.0
    np.testing.assert_allclose(fitted.scorer.U, start.U, rtol=1e-6)
    np.testing.assert_allclose(fitted.scorer.V, start.V, rtol=1e-6)
    lengths = np.linalg.norm(start.embed_queries(mates(study)[0]), axis=1)
    assert lengths.mean() == pytest.approx(np.sqrt(mates_systems.SCALES[0]), rel=1e-4)


def test_M26_learns_u_and_v_across_languages_from_links_alone(study: Study) -> None:  # noqa: N802
    budget = replace(SMALL, n_steps=60_000, every=20_000, patience=3)
    without = replace(study, mates=None)
    fitted = BY_NAME["psi-cross"].fit(job_of(without, budget=budget))
    assert isinstance(fitted.scorer, Bilinear) and fitted.scorer.identity == 0.0
    assert fitted.scorer.U.shape == (len(study.queries.words), 8)
    assert mate_ranks(fitted.scorer, *mates(study)).mrr > 0.3


def test_links_to_documents_that_must_not_be_seen_are_no_training_data(study: Study) -> None:
    assert study.train_documents is not None
    data = study.plain_data()
    n = len(study.train_documents)
    assert data.d_rows.shape[0] == n
    assert (data.relevant.toarray() == np.eye(n)).all()
    everything = replace(study, train_documents=None).plain_data()
    assert everything.d_rows.shape[0] == len(study.documents)


def test_without_mates_there_is_an_error_and_the_system_says_what_it_lacks(study: Study) -> None:
    without = replace(study, mates=None)
    assert BY_NAME["mates-opca"].lacks(without) == ("mates",)
    with pytest.raises(TrainingError, match="no mates to train on"):
        BY_NAME["mates-opca"].fit(job_of(without))


class Fixed:
    """Scores given by hand."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores.astype(np.float32)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> np.ndarray:
        return self.scores[: q_rows.shape[0], : d_rows.shape[0]]

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> np.ndarray:
        return np.zeros(q_rows.shape[0], np.float32)


def test_T6_measures_of_scores_by_hand(study: Study) -> None:  # noqa: N802
    """Forward ranks 1, 2, 3; backward ranks 1, 1, 3."""
    scores = np.array([[0.9, 0.1, 0.2], [0.6, 0.5, 0.3], [0.5, 0.4, 0.1]])
    chosen = np.arange(3)
    task = study.test.task.rows(chosen).columns(chosen)
    trial = StudyTrial(study.test.queries.take(chosen), study.test.pool[:3], task, study.test.tuples)
    fitted = Fitted(Fixed(scores))
    values = mates_measure(study, trial, fitted)
    assert values["MRR forward"] == pytest.approx([1, 1 / 2, 1 / 3])
    assert values["MRR backward"] == pytest.approx([1, 1, 1 / 3])
    assert values["MRR"] == pytest.approx([1, 3 / 4, 1 / 3])
    assert values["top-1"].tolist() == [1.0, 0.5, 0.0]
    assert hits(values).tolist() == [1, 0, 0, 1, 1, 0]
    assert mates_loss(study, trial, fitted) == pytest.approx(1 - (1 + 3 / 4 + 1 / 3) / 3)
    assert valid_measure(replace(study, valid=trial), study.test, fitted)["MRR"] == pytest.approx(values["MRR"])


def test_T5_measures_of_scores_by_hand(study: Study) -> None:  # noqa: N802
    n = len(study.test.pool)
    scores = np.zeros((n, n))
    scores[np.arange(n), np.arange(n)] = 2.0
    scores[0, 1] = 3.0  # one document before the mate of query 0
    values = one_way_measure(study, study.test, Fitted(Fixed(scores)))
    assert values["MRR"].tolist() == [0.5] + [1.0] * (n - 1)
    assert values["top-1"].tolist() == [0.0] + [1.0] * (n - 1)
    assert np.nansum(values["rank loss"][1:]) == 0.0
    # The tuples of query 0 are wrong that have the document before the mate.
    tuples = study.test.tuples
    wrong = tuples.negative[tuples.query == 0] == 1
    assert 0 < wrong.sum() < len(wrong)
    assert values["rank loss"][0] == pytest.approx(100 * wrong.mean())


def test_M26_a_rate_that_diverges_gives_way_to_another(study: Study) -> None:  # noqa: N802
    fitted = BY_NAME["psi-cross"].fit(job_of(study, budget=replace(SMALL, rates=(1e12, 0.1))))
    assert fitted.settings["rate"] == 0.1
    with pytest.raises(TrainingError, match="diverged"):
        BY_NAME["psi-cross"].fit(job_of(study, budget=replace(SMALL, rates=(1e12,))))
