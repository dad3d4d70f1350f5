"""Synonym rules of a model whose vectors are written by hand, and the command that writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.errors import ConfigError, InputError
from reranker.evaluation import evaluate_run
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.rerank.calibrate import Topic
from reranker.synonyms import SynonymConfig, SynonymDocuments, SynonymSet, find_synonyms
from reranker.text.analyzers import make_analyzer, parse_analyzer
from reranker.text.view import TextView
from reranker.text.vocabulary import VocabularyBuilder
from tests.engines.scripted import ScriptedServer, json_answer

TOPICS = ("red", "old", "fast", "hired", "electric", "small", "blue", "broken", "cheap", "green", "rented", "sold")
DOCUMENTS = {
    **{f"relevant-{word}": f"the automobiles {word} wheel car2000" for word in TOPICS},
    **{f"other-{word}": f"{word} {word} wheel wheel" for word in TOPICS},
    **{f"car-{number}": "a car wash" + " of a long text" * 6 for number in range(3)},
    **{f"filler-{number}": f"nothing of interest {chr(97 + number)}word" for number in range(26)},
}
"""For the query "car red" the word red finds other-red first; only automobiles can lift relevant-red above it."""
JUDGED = [Topic(f"car {word}", {f"relevant-{word}": 1.0}) for word in TOPICS]
VECTORS = {"automobiles": (1.0, 0.1), "wheel": (2.0, 0.0), "car2000": (1.0, 0.0), "the": (1.0, 0.0)}


def model_of(
    spec: str = "unicode",
    documents: Mapping[str, str] = DOCUMENTS,
    vectors: Mapping[str, tuple[float, float]] = VECTORS,
) -> RankingModel:
    """Return a model in which the query word car is related to all words that have a vector."""
    analyzer = make_analyzer(parse_analyzer(spec))
    builder = VocabularyBuilder()
    builder.add(analyzer.tokens(list(documents.values())))
    vocabulary = builder.build()
    V = np.tile(np.array([0.0, 1.0], np.float32), (len(vocabulary), 1))
    for word, vector in vectors.items():
        if (tokens := analyzer.tokens([word])[0]) and tokens[0] in vocabulary:
            V[vocabulary.ids(tokens)[0]] = vector
    U = np.zeros_like(V)
    U[vocabulary.ids(["car"])[0]] = (1.0, 0.0)
    return RankingModel(Encoder(TextView.parse(["text"]), analyzer, vocabulary, "raw", V), vocabulary, U)


def write_inputs(folder: Path, model: RankingModel, documents: Mapping[str, str] = DOCUMENTS) -> tuple[str, ...]:
    """Write model, documents and judgments; return the arguments of the command."""
    save_model(model, folder / "model")
    docs = "".join(json.dumps({"id": id_, "text": text}) + "\n" for id_, text in documents.items())
    (folder / "docs.jsonl").write_text(docs)
    (folder / "queries.tsv").write_text("".join(f"q-{n}\t{topic.query}\n" for n, topic in enumerate(JUDGED)))
    (folder / "qrels.tsv").write_text(
        "".join(f"q-{n}\t{id_}\t1\n" for n, topic in enumerate(JUDGED) for id_ in topic.grades)
    )
    names = {"--model": "model", "--docs": "docs.jsonl", "--qrels": "qrels.tsv", "--query-file": "queries.tsv"}
    return tuple(part for option, name in names.items() for part in (option, str(folder / name)))


@pytest.fixture
def documents_of(tmp_path: Path) -> SynonymDocuments:
    write_inputs(tmp_path, model := model_of())
    return SynonymDocuments.read(tmp_path / "docs.jsonl", model.encoder)


def found_by(tmp_path: Path, model: RankingModel, config: SynonymConfig | None = None) -> SynonymSet:
    write_inputs(tmp_path, model)
    return find_synonyms(model, SynonymDocuments.read(tmp_path / "docs.jsonl", model.encoder), JUDGED, config)


def ssi(*words: object) -> Result:
    return CliRunner().invoke(main, ["words", "synonyms", *map(str, words)])


def flat(result: Result) -> str:
    return " ".join(result.output.split())


def test_the_rule_that_helps_is_kept_and_others_are_not(tmp_path: Path) -> None:
    """The nearer word wheel gains nothing; car2000 has digits and "the" is a stop word, so they are not tried."""
    found = found_by(tmp_path, model_of())
    (rule,) = found.rules
    assert (rule.word, rule.synonym, rule.support, rule.queries) == ("car", "automobiles", 12, 12)
    # relevant-red moves from rank 2 to rank 1
    assert found.before == pytest.approx(1 / np.log2(3))
    assert rule.gain == pytest.approx(1 - 1 / np.log2(3))
    assert rule.cosine == pytest.approx(1 / np.hypot(1, 0.1), abs=1e-6)
    assert found.n_candidates == 2
    assert found.held_out is not None
    assert found.held_out.difference == pytest.approx(rule.gain)
    assert found_by(tmp_path, model_of()) == found


def test_a_rule_needs_support_documents_and_judged_queries(tmp_path: Path) -> None:
    for config in (SynonymConfig(min_support=13), SynonymConfig(min_documents=25)):
        found = found_by(tmp_path, model_of(), config)
        assert (found.rules, found.n_candidates) == ((), 0)
        assert found.request_body() == {"synonyms_set": []}


def test_a_rule_that_helps_one_half_only_is_not_kept(tmp_path: Path) -> None:
    """Three queries gain, and enough to be significant, but all are in one half."""
    model = model_of()
    write_inputs(tmp_path, model)
    documents = SynonymDocuments.read(tmp_path / "docs.jsonl", model.encoder)
    singles = [find_synonyms(model, documents, [topic] * 3) for topic in JUDGED]
    assert [found.rules for found in singles] == [()] * len(JUDGED)
    assert all(found.n_candidates == 2 for found in singles)


def two_words(tmp_path: Path, text_of: Callable[[int], str], config: SynonymConfig | None = None) -> list[str]:
    """Return the synonyms found where the relevant document of each topic has the text of its number."""
    relevant = {f"relevant-{word}": f"{text_of(number)} {word} tyre" for number, word in enumerate(TOPICS)}
    documents = {**DOCUMENTS, **relevant}
    model = model_of("unicode", documents, {"automobiles": (1.0, 0.1), "vehicles": (1.0, 0.2)})
    write_inputs(tmp_path, model, documents)
    found = find_synonyms(model, SynonymDocuments.read(tmp_path / "docs.jsonl", model.encoder), JUDGED, config)
    assert found.n_candidates == 2
    return [rule.synonym for rule in found.rules]


def test_a_word_has_at_most_as_many_synonyms_as_allowed(tmp_path: Path) -> None:
    """Both words help, each for its own documents."""

    def either(number: int) -> str:
        return ("automobiles", "vehicles")[number // 3 % 2]

    both = two_words(tmp_path, either)
    assert sorted(both) == ["automobiles", "vehicles"]
    assert len(two_words(tmp_path, either, SynonymConfig(max_per_word=1))) == 1


def test_a_rule_that_adds_nothing_to_the_rules_before_it_is_not_kept(tmp_path: Path) -> None:
    """Each word lifts the same documents to the first rank."""
    assert len(two_words(tmp_path, lambda _: "automobiles vehicles")) == 1


def test_stems_are_written_as_the_most_frequent_word(tmp_path: Path) -> None:
    found = found_by(tmp_path, model_of("english"))
    assert [(rule.word, rule.synonym) for rule in found.rules] == [("car", "automobiles")]
    assert found.lines() == {"car": "car => car, automobiles"}
    assert found.text().splitlines()[1:] == [
        f"# car -> automobiles: support 12, gain {found.rules[0].gain:+.4f} nDCG@10 over 12 queries",
        "car => car, automobiles",
    ]
    assert found.request_body() == {"synonyms_set": [{"id": "car", "synonyms": "car => car, automobiles"}]}


def test_a_word_and_its_synonym_score_as_one_word(documents_of: SynonymDocuments) -> None:
    """Lucene's SynonymQuery: frequencies are added, and the largest document frequency counts."""
    car, wheel = documents_of.column("car"), documents_of.column("wheel")
    rows, weights = documents_of.weights((car, wheel))
    n, mean = len(DOCUMENTS), np.mean([len(text.split()) for text in DOCUMENTS.values()])
    idf = np.log(1 + (n - 24 + 0.5) / (24 + 0.5))
    by_row = dict(zip(rows.tolist(), weights.tolist(), strict=True))
    assert len(by_row) == 27
    for id_, tf, length in (("car-0", 1, 27), ("other-red", 2, 4), ("relevant-red", 1, 5)):
        norm = 0.25 + 0.75 * length / mean
        assert by_row[documents_of.row_of[id_]] == pytest.approx(idf * 2.2 * (tf / norm) / (1.2 + tf / norm))
    assert documents_of.column("unknown") == -1


def test_the_measure_is_that_of_ir_measures(tmp_path: Path) -> None:
    """The order of a query with graded judgments: other-red (0), relevant-red (2), then the documents of car."""
    model = model_of()
    write_inputs(tmp_path, model)
    documents = SynonymDocuments.read(tmp_path / "docs.jsonl", model.encoder)
    grades = {"relevant-red": 2.0, "car-1": 1.0, "filler-1": 1.0, "car-0": 0.0}
    found = find_synonyms(model, documents, [Topic("car red", grades, frozenset({"car-2"}))])
    order = ["other-red", "relevant-red", "car-0", "car-1"]
    assert found.before == pytest.approx(evaluate_run({"q": grades}, {"q": order}, ["nDCG@10"])["nDCG@10"]["q"])
    assert found.held_out is None
    found = find_synonyms(model, documents, [Topic("car red", grades, frozenset({"other-red"}))])
    order = ["relevant-red", "car-0", "car-1", "car-2"]
    assert found.before == pytest.approx(evaluate_run({"q": grades}, {"q": order}, ["nDCG@10"])["nDCG@10"]["q"])


def test_a_model_without_learned_part_and_unknown_documents_are_refused(tmp_path: Path) -> None:
    model = model_of()
    with pytest.raises(ConfigError, match="no learned part"):
        found_by(tmp_path, replace(model, U=np.zeros_like(model.U)))
    documents = SynonymDocuments.read(tmp_path / "docs.jsonl", model.encoder)
    with pytest.raises(InputError, match="none of the 1 judged queries"):
        find_synonyms(model, documents, [Topic("car", {"missing": 1.0})])


def test_the_command_writes_the_file_and_prints_the_table(tmp_path: Path) -> None:
    given = write_inputs(tmp_path, model_of())
    result = ssi(*given, "--out", tmp_path / "synonyms.txt", "--json")
    assert result.exit_code == 0, result.output
    (rule,) = json.loads(result.stdout)["rules"]
    assert (rule["word"], rule["synonym"], rule["support"]) == ("car", "automobiles", 12)
    written = (tmp_path / "synonyms.txt").read_text()
    assert "support 12" in written
    assert written.splitlines()[-1] == "car => car, automobiles"
    shown = ssi(*given, "--out", tmp_path / "again.txt")
    assert "automobiles" in shown.stdout
    assert (tmp_path / "again.txt").read_text() == written


def test_a_set_is_put_only_after_yes(tmp_path: Path) -> None:
    given = write_inputs(tmp_path, model_of())
    with ScriptedServer("elasticsearch") as server:
        server.script("words", lambda _server, _request: json_answer(200, {"result": "created"}))
        to = (*given, "--engine", server.spec, "--put", "shop words")
        dry = ssi(*to)
        assert dry.exit_code == 0, dry.output
        assert "would send PUT /_synonyms/shop%20words" in flat(dry)
        assert "car => car, automobiles" in flat(dry)
        assert not [request for request in server.requests if request.method == "PUT"]
        assert ssi(*to, "--yes").exit_code == 0
        (put,) = [request for request in server.requests if request.method == "PUT"]
    assert put.path in ("/_synonyms/shop%20words", "/_synonyms/shop words")
    assert json.loads(put.body) == {"synonyms_set": [{"id": "car", "synonyms": "car => car, automobiles"}]}


@pytest.mark.parametrize(
    ("more", "status", "text"),
    [
        ((), 2, "nothing would be written"),
        (("--out", "no-folder/synonyms.txt"), 2, "cannot be written (No such file or directory)"),
        (("--put", "set"), 2, "give --engine"),
        (("--put", "set", "--engine", "tantivy:index"), 2, "tantivy has none"),
        (("--json", "--yes"), 2, "--yes confirms --put"),
        (("--json", "--links", "links.tsv"), 2, "give either --qrels and --query-file, or --links"),
    ],
)
def test_impossible_requests_are_refused_before_the_work(
    more: tuple[str, ...], status: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = ssi(*write_inputs(tmp_path, model_of()), *more)
    assert (result.exit_code, text in flat(result)) == (status, True), result.output


def test_no_judged_query_is_an_error_of_the_input(tmp_path: Path) -> None:
    given = write_inputs(tmp_path, model_of())
    (tmp_path / "qrels.tsv").write_text("q-0\trelevant-red\t0\n")
    result = ssi(*given, "--json")
    assert result.exit_code == 3
    assert "has a relevant document" in flat(result)
    assert "no judged queries" in flat(ssi(*given[:4], "--json"))


def test_links_give_queries_from_the_beginnings_of_documents(tmp_path: Path) -> None:
    """Queries are the sources of the links; a source is left out of its own ranking."""
    given = write_inputs(tmp_path, model_of())[:4]
    with (tmp_path / "docs.jsonl").open("a") as docs:
        docs.writelines(json.dumps({"id": f"from-{word}", "text": f"car {word}"}) + "\n" for word in TOPICS)
    links = tmp_path / "links.tsv"
    links.write_text("".join(f"from-{word}\trelevant-{word}\n" for word in TOPICS))
    result = ssi(*given, "--links", links, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["queries"], found["candidates"]) == (12, 2)
