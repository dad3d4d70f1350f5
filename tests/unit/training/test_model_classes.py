"""The model classes on data whose answer is known, and the choice among them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from reranker.cli.train import command
from reranker.errors import ConfigError
from reranker.formats import read_documents
from reranker.models.model_classes import AUTO, MODEL_CLASSES
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.models.scorers import FORMS
from reranker.records import Pair
from reranker.tables import read_links
from reranker.text.rows import inner_products
from reranker.text.view import TextView
from reranker.training import DocumentSource, Listener, TrainConfig, TrainingReport, from_links, from_pairs, train_model
from reranker.training.context import TrainedParameters, simplest
from reranker.training.problem import as_trained, csr_of, two_rows
from reranker.training.s2net_class import ITERATIONS, NEGATIVES, iterations_of
from reranker.training.trainer import TrainResult
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import STATED, Links, Said, synonyms, write_documents

NONE = np.zeros((0, 1), np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("synonyms") / "docs.jsonl", synonyms()[0])


@pytest.fixture
def links() -> Links:
    return synonyms()[1]


def train(path: Path, links: Links, model_class: str, **options: Any) -> tuple[RankingModel, TrainingReport]:
    given = {name: options.pop(name) for name in ("base", "listener", "checkpoint") if name in options}
    start: dict[str, Any] = {"dim": 12, "epochs": 3, "generalise": "links", "model_class": model_class, **STATED}
    config = TrainConfig(**(start | options))
    corpus = DocumentSource(path, TextView.parse(["title^1", "text^1"]))
    return train_model(corpus, from_links(links), config, compare=False, **given)


def parameters(name: str, n_parameters: int, values: np.ndarray) -> TrainedParameters:
    U = np.zeros((n_parameters, 1), np.float32)
    return TrainedParameters(name, U, U, TrainResult(U, U, 1, None), values=values)


def test_every_class_has_a_learner_and_a_choice_on_the_command_line() -> None:
    choice = next(option.type for option in command.params if option.name == "model_class")
    assert isinstance(choice, click.Choice)
    assert tuple(choice.choices) == (*MODEL_CLASSES, AUTO)
    for model_class in MODEL_CLASSES.values():
        assert callable(model_class.load_fit())
        assert model_class.form in FORMS


@pytest.mark.parametrize("name", sorted(MODEL_CLASSES))
def test_a_class_learns_two_languages_and_is_served(path: Path, links: Links, name: str, tmp_path: Path) -> None:
    model, report = train(path, links, name)
    assert report.model_class == model.training["class"] == name
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    documents = [{"title": "", "text": text} for text in ("fr3x0 fr3x2", "fr7x0 fr7x3")]
    queries, encoded = (
        loaded.encode_queries(["en3x0 en3x1 en3x2", "en7x0 en7x2 en7x3"]),
        loaded.encoder.encode(documents),
    )
    lexical = model.identity * inner_products(queries.rows, encoded.rows)
    scores = queries.vectors @ encoded.vectors.T + lexical
    exact = model.encoder.documents.vectors(model.encoder.learned_rows(documents))
    np.testing.assert_allclose(scores, model.embed_queries(queries.learned_rows) @ exact.T + lexical, atol=5e-3)
    if name == "lexical":
        assert not scores.any()
        assert report.valid_map == pytest.approx(report.lexical_map)
        return
    assert report.valid_map > report.lexical_map + 0.2
    assert scores[0, 0] > scores[0, 1]
    assert scores[1, 1] > scores[1, 0]


def test_lexical_is_q_d(path: Path, links: Links) -> None:
    model, _ = train(path, links, "lexical")
    queries, documents = model.encode_queries(["en3x1 filler3"]), model.encoder.encode(synonyms()[0][:9])
    assert documents.vectors.shape == (9, 1)
    expected = queries.rows[:, :500].toarray() @ documents.rows[:, :500].toarray().T
    np.testing.assert_allclose(inner_products(queries.rows, documents.rows), expected, atol=1e-6)


def test_tied_is_one_matrix_whichever_way_it_is_asked(path: Path, links: Links) -> None:
    one, other = train(path, links, "tied", epochs=1)[0], train(path, links, "low_rank", tied=True, epochs=1)[0]
    assert one.U is one.encoder.V
    assert one.encoder_id == other.encoder_id


@pytest.mark.parametrize("name", ["cubic", "s2net"])
def test_equal_seeds_give_equal_models(path: Path, links: Links, name: str) -> None:
    ids = [train(path, links, name, seed=seed, epochs=2)[0].model_id for seed in (4, 4, 5)]
    assert ids[0] == ids[1] != ids[2]


def test_a_cubic_starts_at_the_low_rank_model(path: Path, links: Links) -> None:
    """Where validation sees nothing better than the start, Y = 0 and the scores are those of degree 2."""
    low_rank, two = train(path, links, "low_rank", queries="document")
    cubic, three = train(path, links, "cubic", queries="document")
    assert three.valid_map >= two.valid_map - 1e-9
    assert cubic.encoder.form == "cubic"
    assert cubic.encoder.Y is not None
    flat = replace(cubic.encoder, Y=np.zeros_like(cubic.encoder.Y))
    documents = synonyms()[0][:20]
    assert np.abs(flat.encode(documents).vectors).max() > 0
    assert low_rank.U.shape == cubic.U.shape


def test_what_does_not_go_together_is_refused(path: Path, links: Links) -> None:
    for options, match in (
        ({"model_class": "cubic", "tied": True}, "tied is for the class low_rank"),
        ({"model_class": "lexical", "identity": False}, "no identity takes away"),
        ({"model_class": "cubic", "query_side_only": True}, "learns U of a linear"),
        ({"model_class": "quartic"}, "choose one of lexical, tied"),
    ):
        with pytest.raises(ConfigError, match=match):
            TrainConfig(**options)
    base, _ = train(path, links, "cubic", epochs=1)
    with pytest.raises(ConfigError, match=r"document form 'cubic'.*train a new model.*low_rank or tied"):
        train(path, links, "low_rank", base=base)
    linear, _ = train(path, links, "low_rank", epochs=1)
    with pytest.raises(ConfigError, match="goes on from low_rank and tied"):
        train(path, links, "s2net", base=linear)


def test_auto_says_what_it_tried_and_takes_what_the_rule_says(
    path: Path, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reranker.training.learning.race", lambda _: [])  # that of one class finds other settings
    said = Said()
    model, report = train(path, links, AUTO, epochs=2, listener=Listener(said), word_weights="off")
    choice = model.training["choice"]
    assert [row["class"] for row in choice["tried"]] == list(MODEL_CLASSES)
    assert all("seconds" not in row for row in choice["tried"])
    assert choice["chosen"] == model.training["class"] == report.model_class != "lexical"
    assert f"auto takes {choice['chosen']}" in said
    assert "parameters" in said
    single, _ = train(path, links, report.model_class, epochs=2, word_weights="off")
    assert single.encoder_id == model.encoder_id, "what was tried before must not change a class"
    json.dumps(choice)


def test_the_rule_takes_the_simplest_that_is_not_significantly_worse() -> None:
    rng = seeded_rng(3)
    base = rng.random(200)
    same = base + rng.normal(scale=0.05, size=200)
    worse = base - 0.2 + rng.normal(scale=0.01, size=200)
    for given, expected in (
        ([("a", 9, base), ("b", 5, same), ("c", 1, worse)], "b"),
        ([("a", 9, base), ("b", 5, worse), ("c", 1, worse - 0.1)], "a"),
        ([("a", 9, base), ("b", 5, base), ("c", 1, base)], "c"),
        ([("a", 1, base), ("b", 5, worse)], "a"),
    ):
        chosen, why = simplest([parameters(*one) for one in given])
        assert chosen.name == expected
        assert f"auto takes {expected}" in why
        assert "fewest parameters" in why


def test_queries_are_cut_in_their_share_and_texts_never() -> None:
    from reranker.training.config import schedule_of

    schedule = schedule_of(TrainConfig(tied=True), queries_are_texts=False, unseen_documents=False)
    rng = seeded_rng(2)
    dense = rng.random((400, 30)).astype(np.float32)
    rows = two_rows(csr_of_dense(dense), None)
    documents = np.arange(400) < 200
    cut = as_trained(rows, documents, schedule, rng).learned
    lengths = np.diff(cut.indptr)
    assert (lengths[200:] == 30).all()
    assert 0.6 < (lengths[:200] <= 10).mean() < 0.8
    np.testing.assert_array_equal(cut[200:].toarray(), dense[200:])
    short = np.flatnonzero(lengths <= 10)
    np.testing.assert_allclose(np.linalg.norm(cut[short].toarray(), axis=1), 1, rtol=1e-5)
    for row in short.tolist():
        assert set(cut[row].indices) <= set(rows.learned[row].indices)


def csr_of_dense(dense: np.ndarray) -> Any:
    import scipy.sparse as sp

    return sp.csr_matrix(dense)


def test_columns_past_the_width_are_left_out() -> None:
    from reranker.kernels.rows import Rows

    rows = Rows(np.array([0, 2, 2, 4]), np.array([1, 9, 0, 3], np.int32), np.array([1, 2, 3, 4], np.float32))
    assert csr_of(rows, 4).toarray().tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [3, 0, 0, 4]]


def test_s2net_looks_at_as_many_pairs_as_sgd() -> None:
    from reranker.training.config import schedule_of

    schedule = schedule_of(TrainConfig(epochs=20, max_trials=90), queries_are_texts=False, unseen_documents=False)
    assert iterations_of(schedule) == 20 * 90 // NEGATIVES
    assert iterations_of(replace(schedule, epochs=1)) == ITERATIONS[0]
    assert iterations_of(replace(schedule, epochs=1_000)) == ITERATIONS[1]


@pytest.mark.parametrize("name", ["cubic", "s2net"])
def test_stated_preferences_teach_too(path: Path, name: str) -> None:
    """Pairs with documents stated to be worse, of texts: neither class is for links alone."""
    french = [d for d in synonyms()[0] if d["id"].startswith("fr")]
    rng = seeded_rng(5)
    pairs = []
    for number in range(200):
        topic, word = number % 12, int(rng.integers(0, 4))
        better = rng.choice([d["id"] for d in french if d["topic"] == topic])
        worse = rng.choice([d["id"] for d in french if d["topic"] != topic])
        pairs.append(Pair(f"en{topic}x{word} query{number % 50}", str(better), str(worse)))
    corpus = DocumentSource(path, TextView.parse(["title^1", "text^1"]))
    config = TrainConfig(dim=12, model_class=name, **STATED)
    _, report = train_model(corpus, from_pairs(pairs), config, compare=False)
    assert report.valid_map > report.lexical_map + 0.05


def test_a_part_of_the_real_documents_is_learned_by_every_class(ssi_data: Path, tmp_path: Path) -> None:
    """400 linked pages: each class is at least as good as words alone on its validation, and is served."""
    folder = ssi_data / "cppdocs"
    sources = [document for document, _ in zip(read_documents(folder / "docs_en.jsonl.gz"), range(400), strict=False)]
    lines = (json.dumps({"id": one.id, **one.source}) for one in sources)
    (tmp_path / "docs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    ids = {one.id for one in sources}
    links = [link for link in read_links(folder / "links_train.tsv.gz") if ids.issuperset(link)]
    said = Said()
    config = TrainConfig(dim=16, epochs=2, generalise="links", queries="document", model_class=AUTO, **STATED)
    corpus = DocumentSource(tmp_path / "docs.jsonl", TextView.parse(["title^2", "text^1"]))
    model, report = train_model(corpus, from_links(links), config, compare=False, listener=Listener(said))
    reached = {row["class"]: row["map"] for row in model.training["choice"]["tried"]}
    assert min(reached.values()) >= reached["lexical"] - 1e-6
    assert reached["low_rank"] > reached["lexical"]
    assert reached["cubic"] >= reached["low_rank"] - 1e-6
    assert report.valid_map == pytest.approx(reached[report.model_class])
