"""Documents and links to a model: what is learned, what is claimed, and runs that are killed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.errors import ConfigError, TrainingError
from reranker.formats import read_documents
from reranker.lexical.corpus import LexicalCorpus
from reranker.lexical.tuning import LexicalTask, TunedLexical, tune_lexical
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import SHORT_QUERY, RankingModel
from reranker.progress import RunProgress
from reranker.records import Document, Pair
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import inner_products
from reranker.text.tfidf import count_rows, field_counts
from reranker.text.view import TextView
from reranker.training import (
    DocumentSource,
    Listener,
    TrainConfig,
    TrainingReport,
    TrainingSet,
    from_judgements,
    from_links,
    from_pairs,
    lexical_choice,
    mix,
    reading,
    train_model,
)
from reranker.training.form_choice import ScoreForm
from reranker.training.remembering import PAGE_WEIGHTS, heaviest
from reranker.training.run import STREAMS, RandomStreams
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import (
    Links,
    Said,
    Sources,
    nothing_learned,
    shuffled,
    synonyms,
    write_documents,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("synonyms") / "docs.jsonl", synonyms()[0])


@pytest.fixture
def links() -> Links:
    return synonyms()[1]


def train(path: Path, evidence: TrainingSet, **options: Any) -> tuple[RankingModel, TrainingReport]:
    names = ("valid", "base", "checkpoint", "listener", "view")
    given = {name: options.pop(name) for name in names if name in options}
    view = given.pop("view", TextView.parse(["title^1", "text^1"]))
    with nothing_learned() if options.pop("lexical_only", False) else nullcontext():
        config = TrainConfig(**({"dim": 12, "epochs": 3} | options))
        return train_model(DocumentSource(path, view), evidence, config, **given)


def of_new_documents(links: Links) -> dict[str, TrainingSet]:
    """Return evidence of most documents, and validation evidence of the others."""
    known, new = ([link for link in links if {id_[2:] >= "192" for id_ in link} == {side}] for side in (False, True))
    return {"evidence": from_links(known), "valid": from_links(new)}


@pytest.mark.parametrize("kind", ["links", "documents"])
def test_words_of_two_languages_are_learned_to_belong_together(path: Path, links: Links, kind: str) -> None:
    model, report = train(path, **({"evidence": from_links(links)} if kind == "links" else of_new_documents(links)))
    assert report.split == kind
    assert report.valid_map > report.lexical_map + 0.1
    assert "better than the lexical score" in report.form.sentence
    assert f"MAP {report.valid_map:.4f} against {report.lexical_map:.4f}" in report.form.sentence
    queries = model.encode_queries(["en3x1", "en7x2"])
    documents = model.encoder.encode([{"title": "", "text": text} for text in ("fr3x0 fr3x2", "fr7x0 fr7x3")])
    scores = queries.vectors @ documents.vectors.T
    assert scores[0, 0] > scores[0, 1]
    assert scores[1, 1] > scores[1, 0]


def test_weights_of_fields_are_the_lexical_part_s_alone(path: Path, links: Links) -> None:
    """What is learned reads rows of its own: lexical weights of 1 or of 100 change nothing."""
    views = [TextView.parse(fields) for fields in (["title^1", "text^2"], ["title^100", "text^200"])]
    models = [train(path, from_links(links), view=view, epochs=1)[0] for view in views]
    assert models[0].model_id == models[1].model_id
    for model in models:
        assert model.encoder.view.weights == (1.0, 1.0)
        assert model.encoder.lexical is not None
        title, text = model.encoder.lexical.field_weights
        assert title / text == 0.5


class Stages(RunProgress):
    """Keeps the stages that were expected, and those that began."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[str] = []
        self.begun: list[str] = []

    def expect(self, seconds: Mapping[str, float]) -> None:
        self.expected = list(seconds)
        super().expect(seconds)

    def begin(self, stage: str) -> None:
        self.begun.append(stage)
        super().begin(stage)


def test_every_expected_stage_begins_in_order(path: Path, links: Links) -> None:
    given = {"valid": from_links(links[60:]), "lexical_only": True}
    for options in ({}, given):
        stages = Stages()
        train(path, from_links(links[:60]), epochs=1, listener=Listener(run=stages), **options)
        assert [stage for stage in stages.begun if stage in stages.expected] == stages.expected


def test_words_alone_are_the_tuned_lexical_baseline(path: Path, links: Links) -> None:
    view, documents = TextView.parse(["title", "text"]), synonyms()[0]
    model, _ = train(path, from_links(links), lexical_only=True, memory="off", view=view, word_weights="off")
    settings, vocabulary = model.encoder.lexical, model.encoder.document_vocabulary
    assert settings is not None
    corpus = LexicalCorpus(field_counts(vocabulary, view, model.encoder.analyzer, documents))
    rows = np.arange(len(documents))
    expected = corpus.scorer(corpus.document_queries(rows), rows, settings).block(0, len(rows))
    asked, encoded = model.encode_query_documents(documents), model.encoder.encode(documents)
    # Stored rows are of float16.
    np.testing.assert_allclose(model.scorer.score_matrix(asked.rows, encoded.rows), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("best", ["bm25", "tfidf"])
def test_tfidf_is_tuned_for_both_kinds_only_if_it_is_best_for_pages(
    path: Path, links: Links, monkeypatch: pytest.MonkeyPatch, best: str
) -> None:
    tuned_for_both: list[bool] = []

    def tune(corpus: LexicalCorpus, tasks: Sequence[LexicalTask], *given: Any, **more: Any) -> dict[str, TunedLexical]:
        found = tune_lexical(corpus, tasks, *given, **more)
        if len(tasks) == 1:  # whole pages only
            return {form: replace(each, value=float(form == best)) for form, each in found.items()}
        tuned_for_both.append("tfidf" in found)
        return found

    monkeypatch.setattr(lexical_choice, "tune_lexical", tune)
    train(path, from_links(links), lexical_only=True, word_weights="off")
    assert set(tuned_for_both) == {best == "tfidf"}


def test_random_links_are_not_claimed_to_teach(path: Path) -> None:
    ids = [document["id"] for document in synonyms()[0]]
    rng = seeded_rng(3)
    noise = sorted({(ids[a], ids[b]) for a, b in rng.integers(0, len(ids), (360, 2)).tolist() if a != b})
    _, report = train(path, from_links(noise))
    assert "better than" not in report.form.sentence


def test_the_file_of_documents_is_read_once(path: Path, links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def counting(read: Path, **options: Any) -> Iterator[Document]:
        opened.append(read)
        return read_documents(read, **options)

    monkeypatch.setattr(reading, "read_documents", counting)
    _, report = train_model(DocumentSource(path), from_links(links), TrainConfig())
    assert report.form.n_queries and len(report.notes) > 0, "stems were tried, and forms compared"
    assert opened == [path]


def test_every_random_stream_has_a_beginning_of_its_own() -> None:
    streams = RandomStreams(7)
    first = {name: streams.named(name).integers(2**63) for name in STREAMS}
    assert len(set(first.values())) == len(STREAMS)
    assert {name: streams.named(name).integers(2**63) for name in STREAMS} == first, "whatever else was drawn"
    children = np.random.default_rng(7).spawn(10)
    assert first["refit"] == children[5].integers(2**63), "as in models of before"
    assert first["memory tuning"] == np.random.default_rng(7).spawn(9)[8].spawn(2)[1].integers(2**63)
    with pytest.raises(KeyError):
        streams.named("none")


def test_equal_seeds_give_equal_models(path: Path, links: Links) -> None:
    ids = [train(path, from_links(links), seed=seed, epochs=1)[0].model_id for seed in (4, 4, 5)]
    assert ids[0] == ids[1] != ids[2]


def test_another_data_set_does_not_use_the_checkpoint(path: Path, links: Links, tmp_path: Path) -> None:
    # As many links, of the same sources and targets: sums and counts are equal.
    other = from_links(shuffled(links, seeded_rng(4)))
    train(path, from_links(links), checkpoint=tmp_path / "run", epochs=1)
    said = Said()
    resumed, _ = train(path, other, checkpoint=tmp_path / "run", epochs=1, listener=Listener(said))
    assert "going on" not in said
    assert resumed.model_id == train(path, other, epochs=1)[0].model_id


def test_other_validation_does_not_use_the_checkpoint(path: Path, links: Links, tmp_path: Path) -> None:
    for valid, goes_on in ((links[:40], False), (links[:40], True), (links[40:80], False)):
        said = Said()
        train(
            path,
            from_links(links[80:]),
            valid=from_links(valid),
            checkpoint=tmp_path / "run",
            epochs=1,
            listener=Listener(said),
        )
        assert ("going on after epoch 1" in said) == goes_on


def test_given_validation_is_never_trained_on(path: Path, links: Links) -> None:
    said = Said()
    _, report = train(path, from_links(links[60:]), valid=from_links(links[:60]), listener=Listener(said))
    assert report.split == "given"
    assert "once more" not in said
    # The same where the given links are between documents that training has not seen.
    seen = {d for d, _ in links[:120]} | {d for _, d in links[:120]}
    unseen = [link for link in links if not seen & set(link)]
    assert unseen
    _, report = train(path, from_links(links[:120]), valid=from_links(unseen), listener=Listener(said))
    assert report.split == "documents"
    assert "once more" not in said


def test_training_and_validation_of_two_kinds(path: Path, links: Links) -> None:
    with pytest.raises(TrainingError, match="two kinds"):
        train(path, from_links(links), valid=from_pairs([Pair("en3x1", "fr003", "fr004")]))


def test_nothing_to_learn_from(path: Path) -> None:
    with pytest.raises(TrainingError, match="nothing to learn from"):
        train(path, from_links([]))


def test_pairs_teach_too(path: Path) -> None:
    documents = synonyms()[0]
    french = [d for d in documents if d["id"].startswith("fr")]
    pairs = []
    rng = seeded_rng(5)
    for number in range(200):
        topic, word = number % 12, int(rng.integers(0, 4))
        better = rng.choice([d["id"] for d in french if d["topic"] == topic])
        worse = rng.choice([d["id"] for d in french if d["topic"] != topic])
        pairs.append(Pair(f"en{topic}x{word} query{number % 50}", str(better), str(worse)))
    _, report = train(path, from_pairs(pairs))
    assert report.split == "queries"
    assert report.valid_map > report.lexical_map + 0.05


def test_a_warm_start_keeps_vocabulary_fields_and_shape(path: Path, links: Links) -> None:
    base, _ = train(path, from_links(links[:180]), dim=9)
    # Earlier versions could leave rare words without learned rows.
    encoder = replace(base.encoder, V=base.encoder.V[:100])
    removed = {"queries": "keywords:3", "generalise": "links"}  # settings that they had
    training = {**base.training, "config": {**base.training["config"], **removed}}
    base = replace(base, encoder=encoder, U=base.U[:100], U_short=None, training=training)
    model, report = train(path, from_links(links[180:]), base=base, dim=50, epochs=1, view=TextView.parse(["text"]))
    assert model.encoder.document_vocabulary.words == base.encoder.document_vocabulary.words
    assert model.encoder.view == base.encoder.view
    assert model.U.shape == base.U.shape == (100, 9)
    assert model.training["base"] == base.model_id
    assert model.training["config"]["dim"] == 9
    assert not model.training["config"].keys() & removed
    # It starts where the base stands, not at the lexical score.
    start = report.lexical_map
    assert report.valid_map > start + 0.1


def test_a_warm_start_that_learns_nothing_is_the_base(
    path: Path, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, _ = train(path, from_links(links))
    monkeypatch.setattr("reranker.training.config.RATE", 1e-12)
    assert base.training["schedule"]["margin_identity"] == 4.0
    of_earlier_version = {**base.training, "schedule": {"margin_identity": 9.0}}
    base = replace(base, training=of_earlier_version)
    model, report = train(path, from_links(links), base=base, epochs=1, learned_part="on")
    assert model.training["schedule"]["margin_identity"] == 9.0, "the weight of q.d is that of the base"
    factor = np.float32(np.sqrt(report.scale))
    np.testing.assert_allclose(model.U, base.U * factor, atol=1e-5)
    np.testing.assert_allclose(model.encoder.V, base.encoder.V * factor, atol=1e-5)


def test_a_warm_start_must_fit(path: Path, links: Links) -> None:
    base, _ = train(path, from_links(links), epochs=1)
    with pytest.raises(ConfigError, match=r"does not have q\.d in its score: train without that model"):
        train(path, from_links(links), base=replace(base, identity=0.0))


def forgetful(model: RankingModel) -> RankingModel:
    """Return the model with a query side that has forgotten everything."""
    U = seeded_rng(11).normal(scale=0.05, size=model.U.shape).astype(np.float32)
    return RankingModel(model.encoder, model.query_vocabulary, U, model.identity)


def test_the_query_side_alone_learns_and_keeps_the_encoder(path: Path, links: Links, tmp_path: Path) -> None:
    base = forgetful(train(path, from_links(links), dim=16)[0])
    said = Said()
    options: dict[str, Any] = {"base": base, "epochs": 6, "listener": Listener(said)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reranker.training.config.RATE", 1e-12)
        before = train(path, from_links(links), **options)[1]
    model, report = train(path, from_links(links), query_side_only=True, **options)
    # On the queries that chose the epoch, and on others that judge.
    assert report.result.best_map is not None and before.result.best_map is not None
    assert report.result.best_map > before.result.best_map + 0.4
    assert report.valid_map > before.valid_map + 0.3
    assert model.encoder_id == base.encoder_id
    assert model.encoder.V.tobytes() == base.encoder.V.tobytes()
    assert "once more on everything" in said, "the second run must leave V alone too"
    assert train(path, from_links(links), **options)[0].encoder_id != base.encoder_id
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").encoder_id == base.encoder_id


def test_the_query_side_alone_starts_at_the_base(path: Path, links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a step it is the base, times the weight that validation gives the learned part."""
    base, _ = train(path, from_links(links))
    monkeypatch.setattr("reranker.training.config.RATE", 1e-12)
    model, report = train(path, from_links(links), base=base, query_side_only=True, epochs=1)
    np.testing.assert_allclose(model.U, base.U * np.float32(report.scale), atol=1e-5)


def test_killed_query_side_runs_go_on_to_the_identical_model(
    path: Path, links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reranker.training.trainer.CHECKPOINT_SECONDS", 0.0)
    base = forgetful(train(path, from_links(links), dim=16)[0])
    options: dict[str, Any] = {"base": base, "query_side_only": True, "epochs": 4}
    whole = train(path, from_links(links), **options)[0].model_id

    class Stop(Exception):
        pass

    def stop(title: str, done: int, total: int | None) -> None:
        if title == "training" and total and done >= total * 0.6:
            raise Stop

    with pytest.raises(Stop):
        train(path, from_links(links), checkpoint=tmp_path / "run", listener=Listener(progress=stop), **options)
    said = Said()
    resumed, _ = train(path, from_links(links), checkpoint=tmp_path / "run", listener=Listener(said), **options)
    assert "going on after epoch 2" in said
    assert resumed.model_id == whole


def test_the_query_side_alone_needs_a_base(path: Path, links: Links) -> None:
    with pytest.raises(ConfigError, match="needs a model to start from"):
        train(path, from_links(links), query_side_only=True)


def test_training_goes_on_from_a_tied_model_of_an_earlier_version(path: Path, links: Links) -> None:
    trained, _ = train(path, from_links(links), memory="off", learned_part="on")
    base = replace(trained, U=trained.encoder.V, U_short=None)
    assert base.scorer.is_tied
    for query_side_only in (False, True):
        model, _ = train(
            path, from_links(links), base=base, epochs=1, query_side_only=query_side_only, learned_part="on"
        )
        assert not model.scorer.is_tied
        assert (model.encoder_id == base.encoder_id) is query_side_only


def test_clicks_and_links_are_learned_in_one_run(path: Path, links: Links) -> None:
    """The links teach what belongs together; the clicks, of other words, which of two equals is wanted."""
    rng = seeded_rng(9)
    french = [d for d in synonyms()[0] if d["id"].startswith("fr")]
    clicks = from_pairs(
        Pair(f"en{int(topic)}x{int(word)}", str(better), str(worse))
        for topic, word, better, worse in (
            (
                t,
                rng.integers(0, 4),
                rng.choice([d["id"] for d in french if d["topic"] == t]),
                rng.choice([d["id"] for d in french if d["topic"] != t]),
            )
            for t in range(6)
            for _ in range(8)
        )
    )
    of_later_topics = [(f"en{t}x0", f"fr{t}x0 fr{t}x1", f"fr{t - 6}x0 fr{t - 6}x2") for t in range(6, 12)]

    def right(model: RankingModel) -> int:
        queries = model.encode_queries([query for query, _, _ in of_later_topics]).vectors
        better, worse = (
            model.encoder.encode([{"title": "", "text": row[k]} for row in of_later_topics]).vectors for k in (1, 2)
        )
        return int(((queries * (better - worse)).sum(axis=1) > 0).sum())

    mixed, report = train(path, mix((clicks, 1.0), (from_links(links), 2.0)), epochs=6)
    assert report.split == "queries"
    assert mixed.training["preferences"] == len(links) + len(clicks.preferences)
    alone, _ = train(path, clicks, epochs=6)
    assert right(mixed) == 6  # clicks never mention these topics
    assert right(alone) < 6


def test_pairs_alone_teach_what_only_they_tell(tmp_path: Path) -> None:
    """Documents of a topic answer its query alike; clicks say that new ones are wanted, used ones are not.

    With one skipped document a click, in a pool of a thousand, the pairs must count as much as random negatives do.
    """
    rng = seeded_rng(10)
    documents = [
        {
            "id": f"{t}-{j}-{kind}",
            "title": f"thing{t}",
            "text": f"thing{t} {kind}{int(rng.integers(4))} "
            + " ".join(rng.choice([f"filler{i}" for i in range(90)], 6))
            + " buy" * int(t % 10 == 0),
        }
        for t in range(100)
        for j in range(5)
        for kind in ("new", "used")
    ]
    pairs = [
        Pair(f"buy thing{t}", f"{t}-{int(rng.integers(5))}-new", f"{t}-{int(rng.integers(5))}-used")
        for t in range(70)
        for _ in range(4)
    ]
    model, report = train(write_documents(tmp_path / "shop.jsonl", documents), from_pairs(pairs), epochs=1)
    assert report.valid_map > report.lexical_map + 0.1
    unseen = [f"buy thing{t}" for t in range(70, 100)]
    queries = model.encode_queries(unseen).vectors
    new, used = (
        model.encoder.encode([{"title": "", "text": f"thing{t} {kind}1"} for t in range(70, 100)]).vectors
        for kind in ("new", "used")
    )
    assert ((queries * (new - used)).sum(axis=1) > 0).mean() > 0.98


N_RECURRING = 90


def recurring(n_queries: int, secrets: int) -> tuple[Sources, TrainingSet]:
    """Return documents of common words, each asked for by two of ``secrets`` words of its own that no text holds.

    One of each query's words is common: something is found without what was asked before.
    """
    rng = seeded_rng(11)
    common = [f"common{i}" for i in range(30)]
    documents: Sources = [
        {"id": f"d{i}", "title": f"title{i % 7}", "text": " ".join(rng.choice(common, 12))} for i in range(N_RECURRING)
    ]
    grades, texts = {}, {}
    for number, document in enumerate(documents * n_queries):
        own = rng.choice([f"secret{document['id']}x{i}" for i in range(secrets)], 2, replace=False)
        texts[f"q{number}"] = " ".join([*own, rng.choice(document["text"].split())])
        grades[f"q{number}"] = {document["id"]: 1.0}
    return documents, from_judgements(grades, texts)


@pytest.fixture(scope="module")
def recurring_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("recurring") / "docs.jsonl", recurring(1, 3)[0])


def test_documents_remember_queries_where_validation_is_better_for_it(recurring_path: Path, tmp_path: Path) -> None:
    evidence = recurring(5, 3)[1]
    said = Said()
    model, report = train(recurring_path, evidence, lexical_only=True, listener=Listener(said), word_weights="off")
    assert report.memory.is_on
    assert report.memory.sentence in said
    assert model.metrics["memory"] == report.memory._asdict()
    memory, settings = model.encoder.memory, model.encoder.lexical
    assert memory is not None
    assert settings is not None
    assert len(memory) == N_RECURRING  # the second memory is of everything
    assert "tuning the lexical score on all the queries" in said
    assert settings.mean_lengths[-1] == pytest.approx(memory.rows.sum() / len(memory))
    assert settings.field_weights[-1] > 0
    assert settings.query_weights[-1] == 0
    means = report.form.means
    assert report.form.form == report.form.lexical == ScoreForm(memory=True, learned=False)
    assert report.valid_map == report.lexical_map == means[report.form.form]["AP"]
    assert report.valid_map > means[ScoreForm(memory=False, learned=False)]["AP"] + 0.4
    off, without = train(recurring_path, evidence, lexical_only=True, memory="off", word_weights="off")
    assert without.memory == (False, "queries remembered: off, as asked for")
    assert off.encoder.memory is None
    assert report.lexical_map > without.lexical_map + 0.4
    # What is written is what was made, and made again.
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").model_id == model.model_id
    again, _ = train(recurring_path, evidence, lexical_only=True, word_weights="off")
    assert again.model_id == model.model_id


def test_what_was_never_asked_for_again_is_not_remembered(recurring_path: Path) -> None:
    """One query a document: validation asks for documents that no other query was relevant to."""
    model, report = train(recurring_path, recurring(1, 3)[1], lexical_only=True)
    assert not report.memory.is_on
    assert report.memory.sentence == "queries remembered: off, the tuned weight of the memory is 0"
    assert model.encoder.memory is None


def test_queries_of_training_say_more_than_a_few_of_validation(recurring_path: Path) -> None:
    """Validation asks for known documents by words of their texts: what others asked for does not help it."""
    documents, evidence = recurring(5, 3)
    texts = {f"v{i}": documents[i]["text"] for i in range(3)}
    valid = from_judgements({f"v{i}": {f"d{i}": 1.0} for i in range(3)}, texts)
    model, report = train(recurring_path, evidence, lexical_only=True, valid=valid)
    assert report.valid_map <= report.lexical_map == 1
    assert report.memory.is_on
    assert model.encoder.memory is not None


def test_little_of_what_was_learned_is_added_to_a_memory_unless_it_is_surely_better() -> None:
    better = np.full(40, 0.01)
    noise = np.tile([0.4, -0.4], 20)
    lowest = np.full(40, 0.5)
    assert heaviest(np.stack([lowest + better + noise, lowest + better / 2, lowest])) == 2
    assert heaviest(np.stack([lowest, lowest + better, lowest + better / 2])) == 1
    assert heaviest(np.stack([lowest, lowest, lowest])) == 2


def test_a_warm_start_remembers_its_own_evidence(recurring_path: Path) -> None:
    base, report = train(recurring_path, recurring(5, 3)[1], epochs=2, learned_part="on")
    assert base.encoder.memory is not None
    assert base.training["memory_factor"] >= 1  # what was learned counts by so much less than without
    assert report.valid_map >= report.lexical_map - 0.05
    half = recurring(5, 3)[1].restricted({f"q{i}" for i in range(4 * N_RECURRING) if i % 2})
    again, report = train(recurring_path, half, base=base, epochs=1)
    assert report.memory.is_on
    assert again.encoder.memory is not None
    assert again.encoder.memory.rows.sum() < base.encoder.memory.rows.sum()
    kept, report = train(recurring_path, half, base=base, epochs=1, query_side_only=True)
    assert kept.encoder_id == base.encoder_id
    assert report.memory == (True, "queries remembered: on, as in the model to start from")


def test_no_pages_are_remembered_for_new_documents(path: Path, links: Links) -> None:
    model, report = train(path, **of_new_documents(links), epochs=1)
    assert report.memory == (False, "links remembered: off, no page is known to link to new documents")
    assert model.encoder.short_lexical is None


def linked_notes(n_topics: int = 120) -> tuple[Sources, TrainingSet]:
    """Return notes of three words that link to one card a topic; a card shares no word with its notes."""
    rng = seeded_rng(23)
    sources: Sources = [{"id": f"card{i}", "title": "", "text": f"card{i} paper{i % 7}"} for i in range(n_topics)]
    pairs = []
    for i in range(n_topics):
        for j in range(6):
            words = rng.choice([f"topic{i}word{k}" for k in range(4)], 3, replace=False)
            sources.append({"id": f"note{i}x{j}", "title": "", "text": " ".join((*words, f"common{j}"))})
            pairs.append((f"note{i}x{j}", f"card{i}"))
    return sources, from_links(pairs)


def test_short_queries_find_documents_by_the_words_of_pages_that_link_to_them(tmp_path: Path) -> None:
    sources, evidence = linked_notes()
    model, report = train(write_documents(tmp_path / "docs.jsonl", sources), evidence, epochs=1)
    encoder = model.encoder
    assert report.memory.is_on
    assert encoder.short_lexical is not None
    assert encoder.memory is not None
    assert len(encoder.short_lexical.field_weights) == len(encoder.view.fields) + 1
    cards = [source for source in sources if str(source["id"]).startswith("card")]
    encoded = encoder.encode(cards, [str(card["id"]) for card in cards])
    queries = model.encode_queries(["topic3word0 topic3word1", "topic8word2"])
    scores = inner_products(queries.rows, encoded.rows)
    assert scores.argmax(axis=1).tolist() == [3, 8]
    assert np.count_nonzero(scores[0] == scores[0].max()) == 1
    whole = model.encode_queries([" ".join(f"topic{i}word0" for i in range(SHORT_QUERY + 1))])
    weight = model.short_row_weight * model.training["memory_factor"]  # the best of the weights for whole pages
    assert weight in [pytest.approx(tried) for tried in PAGE_WEIGHTS if tried]
    assert inner_products(whole.rows, encoded.rows).any()  # whole documents read the memory as well


def test_later_clicks_keep_the_memory_of_links(tmp_path: Path) -> None:
    sources, evidence = linked_notes()
    path = write_documents(tmp_path / "docs.jsonl", sources)
    base, _ = train(path, evidence, epochs=1)
    clicks = from_pairs([Pair(f"topic{i}word0 wish", f"card{i}", f"card{(i + 1) % 120}") for i in range(60)])
    for query_side_only in (False, True):
        model, report = train(path, clicks, base=base, epochs=1, query_side_only=query_side_only)
        assert report.memory == (True, "queries remembered: on, as in the model to start from")
        assert model.encoder.short_lexical == base.encoder.short_lexical
        assert model.encoder.memory is not None
        assert model.encoder.memory.ids == base.encoder.memory.ids  # type: ignore[union-attr]


def misleading(n_documents: int = 200) -> tuple[Sources, TrainingSet]:
    """Return documents of two topics each, and queries that name both beside rare words of other documents."""
    rng = seeded_rng(17)
    documents: Sources = []
    for i in range(n_documents):
        words = [f"topic{i % 20}", f"theme{i // 20}", *(f"loud{j}" for j in rng.choice(100, 4, replace=False))]
        documents.append({"id": f"d{i}", "title": words[0], "text": " ".join(words)})
    texts, grades = {}, {}
    for number in range(3 * n_documents):
        document = documents[number % n_documents]
        words = document["text"].split()
        others = rng.choice([f"loud{j}" for j in range(100) if f"loud{j}" not in words], 3, replace=False)
        texts[f"q{number}"] = " ".join([*words[:2], *others])
        grades[f"q{number}"] = {document["id"]: 1.0}
    return documents, from_judgements(grades, texts)


def test_words_of_queries_count_what_validation_is_better_for(tmp_path: Path) -> None:
    documents, evidence = misleading()
    path = write_documents(tmp_path / "docs.jsonl", documents)
    said = Said()
    model, report = train(path, evidence, lexical_only=True, memory="off", listener=Listener(said))
    assert model.word_weights is not None
    of_word = dict(zip(model.query_vocabulary.words, model.word_weights.tolist(), strict=True))
    loud, named = ([w for word, w in of_word.items() if word.startswith(kind)] for kind in ("loud", ("topic", "theme")))
    assert np.mean(named) > 1.8 * np.mean(loud)
    off, without = train(path, evidence, lexical_only=True, memory="off", word_weights="off")
    assert off.word_weights is None
    assert off.encoder_id == model.encoder_id  # documents know nothing of it
    assert report.lexical_map > without.lexical_map + 0.2
    (note,) = (line for line in said.messages if line.startswith("words of queries are weighed"))
    assert note in report.notes
    # The note is of the queries that chose the weights, the report of others.
    weighed, alike = map(float, re.findall(r"\d\.\d{4}", note))
    assert weighed > alike + 0.2
    assert (weighed, alike) == pytest.approx((report.lexical_map, without.lexical_map), abs=0.05)
    again, _ = train(path, evidence, base=model, epochs=1)
    np.testing.assert_array_equal(again.word_weights, model.word_weights)
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").model_id == model.model_id


def test_words_of_documents_that_ask_count_alike(path: Path, links: Links) -> None:
    model, report = train(path, from_links(links), epochs=1)
    assert model.word_weights is None
    assert not any(note.startswith("words of queries") for note in report.notes)


def test_a_model_knows_which_queries_it_has_learned_from(tmp_path: Path) -> None:
    documents, evidence = misleading()
    assert evidence.texts is not None
    path = write_documents(tmp_path / "docs.jsonl", documents)
    half = evidence.restricted(set(list(evidence.texts)[:90]))
    mixed = mix((half, 1.0), (from_links([("d1", "d2"), ("d3", "d4")]), 1.0))
    texts = list(dict.fromkeys(evidence.texts.values()))
    learned = {evidence.texts[query] for query in half.query_ids}
    model, _ = train(path, mixed, lexical_only=True, memory="off", word_weights="off")
    assert model.training_queries is not None
    # Validation held some of them out, and the model was then fitted to all.
    assert model.training_queries.have_texts(texts).tolist() == [text in learned for text in texts]
    assert model.training_queries.have_documents(["d1", "d2", "d3", "d4"]).tolist() == [True, False, True, False]
    assert model.training_queries.key == model.encoder_id[:32]
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").model_id == model.model_id
    rest = evidence.restricted(evidence.texts.keys() - half.query_ids)
    again, _ = train(path, rest, base=model, epochs=1, word_weights="off", memory="off")
    assert again.training_queries is not None
    assert again.training_queries.have_texts(texts).all(), "those of the model to start from are known too"
    unknown, _ = train(path, rest, base=replace(model, training_queries=None), epochs=1, memory="off")
    assert unknown.training_queries is None


def test_given_validation_queries_are_not_learned_from(tmp_path: Path) -> None:
    documents, evidence = misleading()
    path = write_documents(tmp_path / "docs.jsonl", documents)
    sides = [evidence.restricted(set(evidence.query_ids[place::2])) for place in (0, 1)]
    model, _ = train(path, sides[0], valid=sides[1], lexical_only=True, memory="off", word_weights="off")
    assert model.training_queries is not None and evidence.texts is not None
    known = [model.training_queries.have_texts([evidence.texts[q] for q in side.query_ids]) for side in sides]
    assert known[0].all() and not known[1].any()


def inflected(n_documents: int = 120) -> tuple[Sources, TrainingSet]:
    """Return documents with a word of their own in the plural, and queries that ask for it in the singular."""
    rng = seeded_rng(13)
    common = [f"common{i}" for i in range(20)]
    documents: Sources = [
        {"id": f"d{i}", "title": f"{_name(i)}s", "text": " ".join(rng.choice(common, 8))} for i in range(n_documents)
    ]
    texts = {f"q{i}": f"{_name(i)} {rng.choice(common)}" for i in range(n_documents)}
    return documents, from_judgements({f"q{i}": {f"d{i}": 1.0} for i in range(n_documents)}, texts)


def _name(number: int) -> str:
    return "".join("bdgklmnprt"[int(digit)] + "a" for digit in f"{number:03}")


def test_words_are_stems_where_training_queries_find_more_by_them(tmp_path: Path, path: Path, links: Links) -> None:
    documents, evidence = inflected()
    said = Said()
    options: dict[str, Any] = {"lexical_only": True, "listener": Listener(said)}
    model, report = train(write_documents(tmp_path / "docs.jsonl", documents), evidence, **options)
    assert model.encoder.analyzer.config.stemmer == "english"
    assert any(note.startswith("words are English stems") for note in report.notes)
    assert report.lexical_map > 0.9
    stated = DocumentSource(tmp_path / "docs.jsonl", analyzer=make_analyzer(AnalyzerConfig()))
    with nothing_learned():
        as_they_stand, report = train_model(stated, evidence, TrainConfig(dim=12, epochs=1))
    assert as_they_stand.encoder.analyzer.config == AnalyzerConfig()
    assert report.lexical_map < 0.5
    model, report = train(path, from_links(links), epochs=1)  # nothing there has an ending
    assert model.encoder.analyzer.config == AnalyzerConfig()
    assert any(note.startswith("words are taken as they stand") for note in report.notes)


@pytest.mark.parametrize("clicks_are_for_stems", [True, False])
def test_stems_are_used_unless_pairs_of_shown_documents_speak_against_them(
    tmp_path: Path, clicks_are_for_stems: bool
) -> None:
    """Words as they stand found what was shown, so documents that only stems find are in no pair."""
    rng = seeded_rng(17)
    common = [f"common{i}" for i in range(20)]
    documents: Sources = []
    pairs = []
    for i in range(60):
        word = _name(i)
        texts = {"exact": word, "shown": f"{common[i % 20]} {common[i % 7]}", "plural": f"{word}s {word}s {word}s"}
        documents += [
            {"id": f"d{i}-{kind}", "title": text, "text": " ".join(rng.choice(common, 8))}
            for kind, text in texts.items()
        ]
        query = f"{word} {common[i % 20]}"
        pairs.append(Pair(query, f"d{i}-exact", f"d{i}-{'shown' if clicks_are_for_stems else 'plural'}"))
    docs = write_documents(tmp_path / "docs.jsonl", documents)
    model, report = train(docs, from_pairs(pairs), lexical_only=True)
    expected = "english" if clicks_are_for_stems else None
    assert (model.encoder.analyzer.config.stemmer or None) == expected, report.notes
    assert any("the share of training pairs in order is" in note for note in report.notes)
    assert not any("bigrams" in note for note in report.notes), "pairs of shown documents cannot prove that they pay"


def phrases(n: int = 40) -> tuple[Sources, TrainingSet]:
    """Return documents with the words of phrases, in a row in those that the phrase asks for and apart in others."""
    rng = np.random.default_rng(1)
    documents: list[dict[str, Any]] = []
    grades: dict[str, dict[str, float]] = {}
    for i in range(n):
        left, right = _name(i), _name((7 * i + 3) % n)
        for j in range(12):
            between = " ".join(rng.choice([f"w{k}" for k in range(30)], 3))
            text = f"{between} {left} {right}" if j < 6 else f"{left} {between} {right}"
            documents.append({"id": f"d{i}-{j}", "title": "", "text": text})
        grades[f"q{i}"] = {f"d{i}-{j}": 1.0 for j in range(6)}
    texts = {f"q{i}": f"{_name(i)} {_name((7 * i + 3) % n)}" for i in range(n)}
    return documents, from_judgements(grades, texts)


def test_bigrams_are_words_where_training_queries_find_more_by_them(tmp_path: Path, path: Path, links: Links) -> None:
    documents, evidence = phrases()
    options: dict[str, Any] = {"lexical_only": True, "memory": "off"}
    docs = write_documents(tmp_path / "docs.jsonl", documents)
    model, report = train(docs, evidence, **options)
    assert model.encoder.analyzer.config == AnalyzerConfig(bigrams=True)
    assert any(note.startswith("words are read with their bigrams") for note in report.notes)
    assert report.lexical_map > 0.99
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").model_id == model.model_id
    encoder, settings = model.encoder, model.encoder.lexical
    assert settings is not None and len(settings.field_weights) == 3  # title, text, bigrams
    corpus = LexicalCorpus(field_counts(encoder.document_vocabulary, encoder.view, encoder.analyzer, documents))
    texts = list((evidence.texts or {}).values())
    asked = corpus.text_queries(count_rows(encoder.document_vocabulary, encoder.analyzer.tokens(texts)))
    expected = corpus.scorer(asked, np.arange(len(documents)), settings).block(0, len(texts))
    scores = model.scorer.score_matrix(model.encode_queries(texts).rows, encoder.encode(documents).rows)
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-5)
    stated = DocumentSource(docs, analyzer=make_analyzer(AnalyzerConfig()))
    with nothing_learned():
        _, report = train_model(stated, evidence, TrainConfig(dim=12, epochs=1))
    assert report.lexical_map < 0.9
    bigrams = DocumentSource(path, analyzer=make_analyzer(AnalyzerConfig(bigrams=True)))
    model, report = train_model(bigrams, from_links(links), TrainConfig(dim=8, epochs=1, learned_part="on"))
    assert model.encoder.analyzer.config.bigrams
    assert report.memory == (False, "links remembered: off, whole documents are the queries")
    assert model.encoder.short_lexical is None and model.U_short is None


def in_child(action: Callable[[], None]) -> int:
    """Run ``action`` in a copy of this process; return its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        action()
        status = 0
    finally:
        os._exit(status)


@pytest.mark.slow
def test_killed_runs_go_on_to_the_identical_model(path: Path, links: Links, tmp_path: Path) -> None:
    rng = seeded_rng(6)
    settings: dict[str, Any] = {"epochs": 12, "dim": 12}
    whole = train(path, from_links(links), checkpoint=tmp_path / "uninterrupted", **settings)[0].model_id
    said = tmp_path / "said.txt"

    def say(message: str) -> None:
        with said.open("a") as file:
            file.write(message + "\n")

    def work() -> None:
        model, _ = train(path, from_links(links), checkpoint=tmp_path / "run", listener=Listener(say), **settings)
        save_model(model, tmp_path / "model")

    def newest() -> int:
        return max((file.stat().st_mtime_ns for file in tmp_path.glob("run*/state.json")), default=0)

    for _ in range(3):
        before, child = newest(), in_child(work)
        while newest() == before:  # whatever the load: each is killed after it has written a state
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.005))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert os.waitpid(in_child(work), 0)[1] == 0
    assert "going on after epoch" in said.read_text()
    assert load_model(tmp_path / "model").model_id == whole
