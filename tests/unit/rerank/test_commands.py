"""`ssi search` and `ssi calibrate` as a person types them, on the embedded engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reranker.cli import calibrate
from reranker.cli.main import main
from reranker.engines.local import LocalEngine
from reranker.errors import EngineAuthError
from reranker.models.model_folder import load_model, save_model
from reranker.models.training_queries import TrainingQueries
from tests.served import BM25, model_of, random_documents

BODY = {"query": {"match": {"text": "{{query}}"}}, "_source": ["title"]}


class Site:
    """A folder with documents, a model, an index, judgements and links."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.documents = random_documents(120)
        self.documents["p1"] = {"title": "spare part", "text": "QX-77 [bold]word1[/bold]"}
        lines = [json.dumps({"id": name, **source}) for name, source in self.documents.items()]
        (path / "docs.jsonl").write_text("\n".join(lines) + "\n")
        save_model(model_of({k: v for k, v in self.documents.items() if k != "p1"}), path / "model")
        (path / "body.json").write_text(json.dumps(BODY))
        judged = {
            f"word{i}": [k for k, v in self.documents.items() if f"word{i}" in v["text"].split()][:5] for i in range(20)
        }
        (path / "queries.tsv").write_text("".join(f"{word}\t{word} word0\n" for word in judged))
        (path / "qrels.tsv").write_text(
            "".join(f"{word}\t{name}\t1\n" for word, names in judged.items() for name in names)
        )
        (path / "links.tsv").write_text("".join(f"d{i}\td{(i * 7) % 100}\n" for i in range(40)))
        index = self.run("index", str(path / "docs.jsonl"), "--write-store", "default")
        assert index.exit_code == 0, index.stderr

    def run(self, command: str, *arguments: str, model: str = "model") -> Result:
        """Run a command on the index, from within the folder."""
        common = ["--engine", f"tantivy:{self.path / 'index'}", "--index", "docs", "--model", str(self.path / model)]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.path)
            return CliRunner().invoke(main, [command, *arguments, *common], catch_exceptions=False)

    def json(self, command: str, *arguments: str) -> Any:
        """Run a command with --json and return what it prints."""
        result = self.run(command, *arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


def ids(answer: Any) -> Sequence[str]:
    return [hit["id"] for hit in answer["hits"]]


def test_a_search_prints_ranks_titles_scores_and_former_ranks(site: Site) -> None:
    result = site.run("search", "word3 word11", "--size", "5")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["rank", "id", "title", "score", "was"]
    answer = site.json("search", "word3 word11", "--size", "5")
    for line, hit in zip(lines[1:6], answer["hits"], strict=True):
        cells = line.split()
        assert cells[:2] == [str(hit["rank"]), hit["id"]]
        assert cells[-2:] == [f"{hit['score']:.4f}", str(hit["first_stage_rank"])]
    assert f"{answer['total']} documents match; alpha 0.5 (default)" in result.stdout
    assert "ssi calibrate" in result.stderr


def test_both_routes_and_pages_agree(site: Site) -> None:
    fetch = site.json("search", "word3 word11", "--size", "30")
    beside = site.json("search", "word3 word11", "--size", "30", "--route", "beside")
    assert ids(fetch) == ids(beside)
    paged = [
        one for first in range(0, 30, 10) for one in ids(site.json("search", "word3 word11", "--from", str(first)))
    ]
    assert paged == ids(fetch)


def test_a_window_smaller_than_the_page_leaves_the_rest_in_the_engine_s_order(site: Site) -> None:
    answer = site.json("search", "word3 word11", "--size", "30", "--window", "4", "--alpha", "1")
    before = [hit["first_stage_rank"] for hit in answer["hits"]]
    assert len(before) == 30
    assert sorted(before[:4]) == [1, 2, 3, 4] and before[4:] == list(range(5, 31))
    whole = site.json("search", "word3 word11", "--size", "30", "--window", "200", "--alpha", "1")
    place = {name: rank for rank, name in enumerate(ids(whole))}
    first = [name for name in ids(answer)[:4] if name in place]
    assert first == sorted(first, key=place.__getitem__) and len(first) > 1, "the window is in the model's order"


def test_calibration_of_a_body_with_a_constant_score(site: Site) -> None:
    query = {"bool": {"filter": {"match": {"text": "{{query}}"}}, "must": {"match_all": {}}}}
    (site.path / "constant.json").write_text(json.dumps({"query": query}))
    files = ["--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--dry-run"]
    fit = site.json("calibrate", *files, "--body", "constant.json")
    assert fit["n_queries"] == 20 and 0 <= fit["alpha"] <= 1
    assert any("20 of 20 queries the same score" in warning for warning in fit["warnings"])
    assert not any("the same score" in warning for warning in site.json("calibrate", *files)["warnings"])


def test_calibration_on_quarters_of_grades_and_on_large_grades(site: Site) -> None:
    files = ["--query-file", "queries.tsv", "--dry-run"]
    whole = site.json("calibrate", "--qrels", "qrels.tsv", *files, "--probability")
    lines = (site.path / "qrels.tsv").read_text().splitlines()
    for name, factor in (("quarters.tsv", "0.25"), ("hundreds.tsv", "100")):
        (site.path / name).write_text("".join(f"{line[:-1]}{factor}\n" for line in lines))
        other = site.json("calibrate", "--qrels", name, *files, "--probability")
        assert other["probability"] == whole["probability"]
        for key in ("alpha", "engine", "model", "held_out"):
            assert other[key] == pytest.approx(whole[key], abs=1e-9), (name, key)
        shown = site.run("calibrate", "--qrels", name, *files)
        assert f"relevant by a grade above 0: {len(lines)} of {len(lines)} judgments" in shown.stderr


def test_the_reason_is_said_if_all_judgments_or_links_are_rejected(site: Site) -> None:
    (site.path / "bad.tsv").write_text("word1\td1\tgood\nword2\td2\t1e9\n")
    (site.path / "bad_links.tsv").write_text("d1\n")
    judged = site.run("calibrate", "--qrels", "bad.tsv", "--query-file", "queries.tsv", "--dry-run")
    linked = site.run("calibrate", "--links", "bad_links.tsv", "--docs", "docs.jsonl", "--dry-run")
    assert judged.exit_code == linked.exit_code == 3
    assert "all 2 were refused, the last one at line 2: the grade is 1e9" in " ".join(judged.stderr.split())
    assert "none of the links of 'bad_links.tsv' can be used: all 1 were" in " ".join(linked.stderr.split())


def test_calibration_of_a_window_smaller_than_the_page(site: Site) -> None:
    files = ["--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--dry-run"]
    small, large = (site.json("calibrate", *files, "--window", str(window)) for window in (3, 200))
    assert small["n_queries"] == 20 and 0 <= small["alpha"] <= 1
    assert small["engine"] < large["engine"], "nDCG@10 counts only the candidates of the window"
    assert small["engine"] <= small["fitted"] <= small["ceiling"] < large["ceiling"]


def test_a_body_file_and_an_explanation(site: Site) -> None:
    answer = site.json("search", "qx 77", "--body", str(site.path / "body.json"), "--explain", "--alpha", "1")
    assert ids(answer) == ["p1"]
    hit = answer["hits"][0]
    assert hit["source"] == {"title": "spare part"}
    total = sum(row["value"] for row in hit["explanation"])
    assert total == pytest.approx(hit["score"], abs=1e-6)
    assert {row["query_word"] for row in hit["explanation"] if row["kind"] == "identity"} == {"qx", "77"}
    text = site.run("search", "qx 77", "--explain").stdout
    assert "= the same word" in text
    assert "the engine's score" in text


def test_a_part_number_nobody_has_seen_is_first(site: Site) -> None:
    assert ids(site.json("search", "word0 word1 qx-77", "--alpha", "1"))[0] == "p1"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--body", "nobody.json"], 3, "cannot be read"),
        (["--body", "docs.jsonl"], 3, "is not JSON"),
        (["--body", "list.json"], 3, "must be a JSON object"),
        (["--body", "noplace.json"], 2, "{{query}}"),
        (["--route", "beside", "--store", "nowhere"], 5, "no vector store"),
        (["--window", "0"], 2, "window"),
        (["--alpha", "2"], 2, "alpha"),
    ],
)
def test_bad_input_has_a_message_and_an_exit_code(site: Site, arguments: list[str], code: int, message: str) -> None:
    (site.path / "list.json").write_text("[]")
    (site.path / "noplace.json").write_text('{"query": {"match_all": {}}}')
    result = site.run("search", "word1", *arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_calibration_accounts_for_its_input(site: Site) -> None:
    (site.path / "bad.tsv").write_text((site.path / "qrels.tsv").read_text() + "one column\n")
    arguments = ["--query-file", "queries.tsv", "--window", "50", "--dry-run"]
    result = site.run("calibrate", "--qrels", "bad.tsv", *arguments)
    assert result.exit_code == 8, result.stderr
    assert "1 left out: 1 columns (line " in result.stderr
    assert "was not stored" in result.stdout
    report = json.loads(site.run("calibrate", "--qrels", "bad.tsv", *arguments, "--json").stdout)
    assert "account" not in report
    assert [(one["kind"], len(one["left_out"])) for one in report["accounts"]] == [("records", 1), ("judgments", 0)]
    assert "all used" in site.run("calibrate", "--qrels", "qrels.tsv", *arguments).stderr


def test_calibration_checks_the_documents_of_judgments(site: Site) -> None:
    judgments = (site.path / "qrels.tsv").read_text()
    n = judgments.count("\n")
    options = ["--query-file", "queries.tsv", "--window", "50", "--dry-run"]
    fit = site.json("calibrate", "--qrels", "qrels.tsv", *options)

    def with_unknown(n_unknown: int, code: int, *more: str) -> Result:
        extra = "".join(f"word{number % 20}\tnone{number}\t3\n" for number in range(n_unknown))
        (site.path / "unknown.tsv").write_text(judgments + extra)
        result = site.run("calibrate", "--qrels", "unknown.tsv", *options, *more)
        assert result.exit_code == code, result.stderr
        return result

    few = with_unknown(2, 8, "--json")
    told = f"judgments: {n + 2} given = {n} used + 2 left out: 2 unknown document id (none0, none1)"
    assert told in " ".join(few.stderr.split()) and "cannot be used" not in few.stderr
    assert {**json.loads(few.stdout), "accounts": []} == {**fit, "accounts": []}, "they do not take part in the fit"
    assert f"warning: 17% of the {n + 20} judgments cannot be used" in with_unknown(20, 8).stderr
    refused = with_unknown(n + 10, 3).stderr
    assert "52% of the 210 judgments cannot be used" in refused and "of the index" in refused
    assert f"{n} used + {n + 10} left out" in with_unknown(n + 10, 8, "--allow-partial").stderr


def test_calibration_checks_the_targets_of_links(site: Site) -> None:
    links = (site.path / "links.tsv").read_text()
    (site.path / "some.tsv").write_text(links + "d1\tgone\n")
    options = ["--docs", "docs.jsonl", "--dry-run", "--json"]
    fit = site.json("calibrate", "--links", "links.tsv", *options[:-1])
    result = site.run("calibrate", "--links", "some.tsv", *options)
    assert result.exit_code == 8, result.stderr
    assert "links: 40 given = 39 used + 1 left out: 1 unknown document id (gone)" in " ".join(result.stderr.split())
    assert {**json.loads(result.stdout), "accounts": []} == {**fit, "accounts": []}


def test_calibration_says_that_an_engine_cannot_look_up_ids(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    search = LocalEngine.search

    def without_ids(self: LocalEngine, index: str, body: Any, **options: Any) -> Any:
        if "ids" in body["query"]:
            raise EngineAuthError("no right to search by ids", status=403)
        return search(self, index, body, **options)

    monkeypatch.setattr(LocalEngine, "search", without_ids)
    result = site.run("calibrate", "--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    note = "ids of documents were not checked, because the engine refused the search: no right to search by ids"
    assert json.loads(result.stdout)["accounts"][1]["note"] == note
    assert f"100 given, all used ({note})" in " ".join(result.stderr.split())


def test_calibration_is_kept_and_used(site: Site) -> None:
    files = ["--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--window", "50"]
    dry = site.json("calibrate", *files, "--dry-run")
    assert not dry["kept"]
    assert site.json("search", "word3", "--window", "50")["alpha_origin"] == "default"
    fit = site.json("calibrate", *files)
    assert fit["alpha"] == dry["alpha"]
    assert fit["measure"] == "nDCG@10"
    assert fit["n_queries"] == 20
    answer = site.json("search", "word3", "--window", "50")
    assert (answer["alpha"], answer["alpha_origin"]) == (fit["alpha"], "calibrated")
    assert site.json("search", "word3")["alpha_origin"] == "nearest", "fitted to another window"
    assert site.json("search", "word3", "--window", "50", "--body", "body.json")["alpha_origin"] == "default"
    site.json("calibrate", *files, "--body", "body.json")
    assert site.json("search", "word3", "--window", "50", "--body", "body.json")["alpha_origin"] == "calibrated"


def test_calibration_prints_confidence_intervals(site: Site) -> None:
    arguments = ["--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--window", "50", "--dry-run"]
    fit, shown = site.json("calibrate", *arguments), site.run("calibrate", *arguments).stdout
    t = 2.093024  # of 19 degrees of freedom
    assert f"{fit['held_out']:.4f} ± {t * fit['held_out_error']:.4f}" in shown
    assert f"{fit['gain']:+.4f} ± {t * fit['gain_error']:.4f} (p = " in shown
    assert "± is a 95 % confidence interval" in shown


def test_calibration_prints_a_body_with_the_field_weights_and_compares_it(site: Site) -> None:
    save_model(model_of({k: v for k, v in site.documents.items() if k != "p1"}, lexical=BM25), site.path / "lexical")
    arguments = ["--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--window", "50", "--dry-run"]
    fit = json.loads(site.run("calibrate", *arguments, "--json", model="lexical").stdout)
    assert fit["weighted_body"]["query"]["multi_match"]["fields"] == ["title^1.43", "text"]
    assert fit["comparison"]["means"].keys() == {"engine", "weights", "words", "model"}
    shown = site.run("calibrate", *arguments, model="lexical").stdout
    (line,) = (one for one in shown.splitlines() if one.startswith("search body with the model's field weights: "))
    (site.path / "weighted.json").write_text(line.partition(": ")[2])
    weights = fit["comparison"]["means"]["weights"]["nDCG@10"]
    again = json.loads(site.run("calibrate", *arguments, "--body", "weighted.json", "--json", model="lexical").stdout)
    assert again["engine"] == pytest.approx(weights), "the printed body gives the order that was measured"
    change = fit["comparison"]["differences"]["weights - engine"]["AP"]
    assert f"{change['difference']:+.4f} ± {change['interval']:.4f}" in shown
    none = site.json("calibrate", *arguments)
    assert none["weighted_body"] is None and none["comparison"] is none["stems"] is None, "a model of version 0.1"


def knowing(site: Site, texts: Sequence[str], documents: Sequence[str] = ()) -> str:
    """Save the site's model with a list of training queries and return the name of its folder."""
    queries = TrainingQueries.of("0" * 32, texts, documents)
    save_model(replace(load_model(site.path / "model"), training_queries=queries), site.path / "knowing")
    return "knowing"


def many_queries(site: Site) -> list[str]:
    """Write judgments of 50 queries and return the query texts."""
    texts = [f"word{number % 25} word{number // 25}" for number in range(50)]
    (site.path / "many.tsv").write_text("".join(f"q{number}\t{text}\n" for number, text in enumerate(texts)))
    (site.path / "many.qrels").write_text("".join(f"q{number}\td{number}\t1\n" for number in range(50)))
    return texts


MANY = ("--qrels", "many.qrels", "--query-file", "many.tsv", "--dry-run")


def test_calibration_leaves_out_training_queries(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = many_queries(site)
    model = knowing(site, [text.upper() for text in texts[:15]])
    fit = json.loads(site.run("calibrate", *MANY, "--json", model=model).stdout)
    assert (fit["n_queries"], fit["queries_given"], fit["queries_of_training"]) == (35, 50, 15)
    assert fit["held_out_from_training"] is True
    assert not any("trained on" in warning for warning in fit["warnings"])
    shown = site.run("calibrate", *MANY, model=model)
    assert "on held-out queries (5-fold" in shown.stdout
    assert "35 of 50 queries are used: the model was not trained on them" in " ".join(shown.stdout.split())
    monkeypatch.setattr(calibrate, "MAX_QUERIES", 20)
    some = json.loads(site.run("calibrate", *MANY, "--json", model=model).stdout)
    assert (some["n_queries"], some["queries_of_training"]) == (20, 15)


@pytest.mark.parametrize("n_known", [21, 50])
def test_a_fit_on_training_queries_is_never_called_held_out(site: Site, n_known: int) -> None:
    texts = many_queries(site)
    model = knowing(site, texts[:n_known])
    fit = json.loads(site.run("calibrate", *MANY, "--json", model=model).stdout)
    assert (fit["n_queries"], fit["queries_of_training"], fit["held_out_from_training"]) == (50, n_known, False)
    assert f"the model was trained on {n_known} of the 50 queries" in fit["warnings"][0]
    assert not any("held" in warning for warning in fit["warnings"])
    shown = site.run("calibrate", *MANY, model=model)
    assert "held-out" not in shown.output
    assert "5-fold cross-validation of alpha, on training queries" in shown.stdout
    assert "The fit is on training queries" in " ".join(shown.stderr.split())


def test_calibration_says_that_training_queries_are_unknown(site: Site) -> None:
    many_queries(site)
    fit = json.loads(site.run("calibrate", *MANY, "--json").stdout)
    assert fit["held_out_from_training"] is None and fit["queries_of_training"] is None
    assert "it is unknown whether the model was trained on these queries" in fit["warnings"][0]
    assert "held-out" not in site.run("calibrate", *MANY).output


def test_calibration_leaves_out_source_documents_of_training_links(site: Site) -> None:
    model = knowing(site, [], [f"d{number}" for number in range(8)])
    links = ("--links", "links.tsv", "--docs", "docs.jsonl", "--dry-run", "--json")
    fit = json.loads(site.run("calibrate", *links, model=model).stdout)
    # d0 links only to itself.
    assert (fit["queries_given"], fit["queries_of_training"], fit["n_queries"]) == (39, 7, 32)
    assert fit["held_out_from_training"] is True


def test_calibration_on_the_files_of_the_training(site: Site) -> None:
    """`ssi train` and `ssi calibrate` with the same files, and with a file that contains further queries."""
    many_queries(site)
    for name in ("many.tsv", "many.qrels"):
        lines = (site.path / name).read_text().splitlines(keepends=True)
        (site.path / f"few-{name}").write_text("".join(lines[:20]))
    few = ["--qrels", "few-many.qrels", "--query-file", "few-many.tsv"]
    settings = ["--dim", "4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(site.path)
        trained = CliRunner().invoke(
            main, ["train", "--docs", "docs.jsonl", *few, *settings, "--fields", "title,text", "--model", "trained"]
        )
    assert trained.exit_code == 0, trained.output
    assert site.run("revectorize", model="trained").exit_code == 0
    same = json.loads(site.run("calibrate", *few, "--json", model="trained").stdout)
    assert (same["n_queries"], same["queries_of_training"], same["held_out_from_training"]) == (20, 20, False)
    more = json.loads(site.run("calibrate", *MANY, "--json", model="trained").stdout)
    assert (more["n_queries"], more["queries_of_training"], more["held_out_from_training"]) == (30, 20, True)


@pytest.mark.parametrize(("n", "code"), [(1, 3), (9, 3), (10, 8)])
def test_calibration_needs_ten_queries(site: Site, n: int, code: int) -> None:
    texts = many_queries(site)
    (site.path / "some.tsv").write_text("".join(f"q{k}\t{text}\n" for k, text in enumerate(texts[:n])))
    options = ("--qrels", "many.qrels", "--query-file", "some.tsv", "--dry-run")
    refused = site.run("calibrate", *options)
    assert refused.exit_code == 3 and "of the 50 judgments cannot be used" in refused.stderr
    result = site.run("calibrate", *options, "--allow-partial")
    assert result.exit_code == code
    assert (f"{n} queries are too few to fit alpha: at least 10 are needed" in result.stderr) == (code == 3)
    assert "Traceback" not in result.output


def test_calibration_names_boosts_that_a_high_alpha_removes(site: Site) -> None:
    # With the answers of the model's own order, only alpha = 1 is right, or nearly.
    texts = many_queries(site)
    lines = [
        f"q{k}\t{name}\t1\n"
        for k, text in enumerate(texts)
        for name in ids(site.json("search", text, "--alpha", "1", "--size", "3"))
    ]
    (site.path / "of-model.qrels").write_text("".join(lines))
    query = {"bool": {"must": {"match": {"text": "{{query}}"}}, "should": {"term": {"title": "word3"}}}}
    (site.path / "boosted.json").write_text(json.dumps({"query": query}))
    files = ("--qrels", "of-model.qrels", "--query-file", "many.tsv", "--body", "boosted.json", "--dry-run")
    fit = site.json("calibrate", *files)
    named = [warning for warning in fit["warnings"] if "term (title)" in warning]
    assert fit["alpha"] > 0.9 and len(named) == 1, fit
    assert "--alpha 0.9" in named[0]


def test_calibration_by_links_prints_what_it_found(site: Site) -> None:
    result = site.run("calibrate", "--links", "links.tsv", "--docs", "docs.jsonl", "--queries", "keywords:3")
    assert result.exit_code == 0
    assert "mean AP" in result.stdout
    assert "q·d = 0 for 0.0% of the engine's hits" in result.stdout
    assert "was stored in the release" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give either"),
        (["--qrels", "qrels.tsv"], 2, "give either"),
        (["--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--links", "links.tsv"], 2, "give either"),
        (["--links", "links.tsv", "--docs", "docs.jsonl", "--queries", "document"], 2, "keywords:K"),
        (["--links", "missing.tsv", "--docs", "docs.jsonl"], 3, "missing.tsv"),
    ],
)
def test_calibration_refuses_what_it_cannot_use(site: Site, arguments: list[str], code: int, message: str) -> None:
    result = site.run("calibrate", *arguments)
    assert result.exit_code == code
    assert message in result.stderr


def test_calibration_of_a_model_without_a_release_is_refused_before_any_search(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(model_of(site.documents, n_dims=4), site.path / "other")
    monkeypatch.setattr("reranker.rerank.calibration.alpha.fit_alpha", lambda *_, **__: pytest.fail("it searched"))
    result = site.run("calibrate", "--qrels", "qrels.tsv", "--query-file", "queries.tsv", model="other")
    assert result.exit_code == 3
    assert "is no version of index 'docs'" in result.stderr and "ssi revectorize" in result.stderr


def test_an_index_that_is_not_there_is_told(site: Site) -> None:
    arguments = ["--engine", f"tantivy:{site.path / 'index'}", "--index", "absent", "--model", str(site.path / "model")]
    result = CliRunner().invoke(main, ["search", "word1", *arguments], catch_exceptions=False)
    assert result.exit_code == 4
    assert "absent" in result.stderr


def test_an_engine_that_is_down_is_told(site: Site) -> None:
    arguments = ["--engine", "elasticsearch:http://127.0.0.1:9", "--index", "docs", "--model", str(site.path / "model")]
    result = CliRunner().invoke(main, ["search", "word1", *arguments], catch_exceptions=False)
    assert result.exit_code == 4
    assert "127.0.0.1:9" in result.stderr


@pytest.mark.parametrize("command", ["search", "calibrate"])
def test_an_index_without_the_models_fields_is_said_not_searched(tmp_path: Path, site: Site, command: str) -> None:
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "body": "word3 word11"}\n')
    common = ["--engine", f"tantivy:{tmp_path / 'index'}", "--index", "docs"]
    assert CliRunner().invoke(main, ["index", str(tmp_path / "docs.jsonl"), *common]).exit_code == 0
    topics = ["--qrels", str(site.path / "qrels.tsv"), "--query-file", str(site.path / "queries.tsv")]
    arguments = ["word3"] if command == "search" else topics
    model = ["--model", str(site.path / "model")]
    result = CliRunner().invoke(main, [command, *arguments, *common, *model])
    assert result.exit_code == 3 and "title, text" in result.stderr
    (tmp_path / "body.json").write_text('{"query": {"match": {"body": "{{query}}"}}}')
    found = CliRunner().invoke(main, ["search", "word3", *common, *model, "--body", str(tmp_path / "body.json")])
    assert found.exit_code == 0 and "1 document matches" in found.stdout


def test_a_field_that_the_index_lacks_is_said(tmp_path: Path, site: Site) -> None:
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "word3 word11"}\n')
    common = ["--engine", f"tantivy:{tmp_path / 'index'}", "--index", "docs"]
    assert CliRunner().invoke(main, ["index", str(tmp_path / "docs.jsonl"), *common]).exit_code == 0
    result = CliRunner().invoke(main, ["search", "word3", *common, "--model", str(site.path / "model"), "--json"])
    assert result.exit_code == 0
    assert [notice for notice in json.loads(result.stdout)["notices"] if "title" in notice]
